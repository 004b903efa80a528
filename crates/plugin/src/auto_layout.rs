//! Chooses layouts of results that the caller leaves open (`Layout.AUTO`): one in which a final transpose moves nothing,
//! as in XLA.

use crate::attributes::{dims, numbers};
use systole_mlir::syntax::{Attribute, FunctionValue, MlirFunction, MlirModule, find};

/// Maximum call depth that is followed.
const MOST_CALLS: usize = 16;

/// Returns the layout mode of a result of the entry function: `{0,1}`, or `default`. `arguments`: the modes of the
/// arguments.
pub(crate) fn chosen(
    module: &MlirModule,
    main: &MlirFunction,
    result: usize,
    arguments: &[String],
) -> String {
    let value = main.body.operations.last().and_then(|last| last.operands.get(result));
    let found = value.and_then(|value| LayoutSource::of(module, main, *value, MOST_CALLS));
    let Some(LayoutSource { argument, order }) = found else { return "default".into() };
    // The dimensions of the source, from minor to major, each as the dimension of the result that it becomes.
    let own: Vec<usize> = match argument.and_then(|i| parsed(&arguments[i])) {
        Some(own) if own.len() == order.len() => own,
        _ => (0..order.len()).rev().collect(),
    };
    let place = |d: &usize| order.iter().position(|o| o == d);
    match own.iter().map(place).collect::<Option<Vec<_>>>() {
        Some(dims) => format!("{{{}}}", dims.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
        None => "default".into(),
    }
}

/// Parses `{0,1}`.
fn parsed(mode: &str) -> Option<Vec<usize>> {
    let dims = mode.strip_prefix('{')?.strip_suffix('}')?.split(',').filter(|d| !d.is_empty());
    dims.map(|d| d.trim().parse().ok()).collect()
}

/// Array that a value has the elements of, and for each dimension of the value that of the array.
struct LayoutSource {
    /// Index of the argument; `None` for another array, which is row-major.
    argument: Option<usize>,
    order: Vec<usize>,
}

impl LayoutSource {
    /// Follows a value of `f` back through transposes and ops that return their operand.
    fn of(module: &MlirModule, f: &MlirFunction, value: FunctionValue, calls: usize) -> Option<LayoutSource> {
        let rank = dims(f, value)?.len();
        let argument = f.body.arguments.iter().position(|a| *a == value);
        let here = LayoutSource { argument, order: (0..rank).collect() };
        let Some(op) = f.body.operations.iter().find(|op| op.results.contains(&value)) else {
            return Some(here);
        };
        match op.name.as_str() {
            "stablehlo.transpose" => {
                let below = LayoutSource::of(module, f, *op.operands.first()?, calls)?;
                let order = numbers(&op.attributes, "permutation");
                let order = order.into_iter().map(|d| below.order.get(d).copied()).collect::<Option<_>>()?;
                Some(LayoutSource { order, ..below })
            }
            "sdy.sharding_constraint" | "sdy.reshard" => {
                LayoutSource::of(module, f, *op.operands.first()?, calls)
            }
            "func.call" if calls > 0 => {
                let Attribute::Symbol(callee) = find(&op.attributes, "callee")? else { return None };
                let called = module.functions.iter().find(|f| f.name == *callee)?;
                let k = op.results.iter().position(|r| *r == value)?;
                let inner = called.body.operations.last()?.operands.get(k)?;
                let below = LayoutSource::of(module, called, *inner, calls - 1)?;
                let Some(argument) = below.argument else { return Some(below) };
                let outer = LayoutSource::of(module, f, *op.operands.get(argument)?, calls - 1)?;
                let order =
                    below.order.into_iter().map(|d| outer.order.get(d).copied()).collect::<Option<_>>()?;
                Some(LayoutSource { argument: outer.argument, order })
            }
            _ => Some(here),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
      func.func @main(%x: tensor<2x3x4xf32>) -> (tensor<4x2x3xf32>, tensor<2x3x4xf32>, tensor<3x2x4xf32>, tensor<4x3x2xf32>) {
        %0 = stablehlo.transpose %x, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
        %1 = stablehlo.multiply %x, %x : tensor<2x3x4xf32>
        %2 = func.call @turned(%1) : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
        %3 = stablehlo.transpose %x, dims = [2, 1, 0] : (tensor<2x3x4xf32>) -> tensor<4x3x2xf32>
        return %0, %1, %2, %3 : tensor<4x2x3xf32>, tensor<2x3x4xf32>, tensor<3x2x4xf32>, tensor<4x3x2xf32>
      }
      func.func private @turned(%x: tensor<2x3x4xf32>) -> tensor<3x2x4xf32> {
        %0 = stablehlo.transpose %x, dims = [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
        return %0 : tensor<3x2x4xf32>
      }";

    #[test]
    fn transposes_of_results_move_nothing() {
        let module = systole_mlir::text::parse(TEXT).unwrap();
        let of = |k: usize, mode: &str| chosen(&module, &module.functions[0], k, &[mode.to_owned()]);
        // Row-major x has dimension 2 as the minor one, which is dimension 0 of the first result.
        let modes: Vec<String> = (0..4).map(|k| of(k, "default")).collect();
        assert_eq!(modes, ["{0,2,1}", "{2,1,0}", "{2,0,1}", "{0,1,2}"]);
        // The argument's own layout is followed; a product is row-major.
        let modes: Vec<String> = (0..4).map(|k| of(k, "{0,1,2}")).collect();
        assert_eq!(modes, ["{1,2,0}", "{2,1,0}", "{2,0,1}", "{2,1,0}"]);
        assert_eq!(of(9, ""), "default");
    }
}
