//! Imports `ApproxTopK` (JAX's `approx_max_k` and `approx_min_k`) as an exact top-k by a sort.

use super::call::{ImportRule, OpCall, OpImport, call};
use super::types::{held, not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{Attribute, MlirModule, Operation, find};
use std::sync::Arc;
use systole_base::{Result, TensorType};
use systole_ir::op::Direction;
use systole_ir::{Graph, GraphBuilder, Tensor};

pub(super) const OPERATIONS: &[OpImport] = &[call("ApproxTopK", ImportRule::Values(sorted))];

fn sorted(call: &OpCall) -> Result<Vec<ImportedValue>> {
    let (op, operands, results) = (call.op, call.operands, call.results);
    let count = results.len();
    let arrays = operands.iter().take(count).map(|v| v.clone().array()).collect::<Result<Vec<_>>>()?;
    let first = arrays.first().ok_or_else(|| wrong("an operand is missing"))?;
    if operands.len() != 2 * count || arrays.iter().any(|x| x.shape() != first.shape()) {
        return Err(wrong("ApproxTopK requires arrays of one shape and one initial value for each"));
    }
    let config = ["mhlo.backend_config", "backend_config"].into_iter().find_map(|key| {
        match find(&op.attributes, key) {
            Some(Attribute::Dictionary(entries)) => find(entries, "reduction_dim"),
            _ => None,
        }
    });
    let dim = match config {
        Some(Attribute::Int(d)) => usize::try_from(*d).ok().filter(|d| *d < first.rank()),
        _ => None,
    };
    let dim = dim.ok_or_else(|| wrong("ApproxTopK has no valid `reduction_dim`"))?;
    let types: Vec<&TensorType> = arrays.iter().map(Tensor::ty).collect();
    let by = comparator(direction(op, call.module)?, &types)?;
    let sorted = Tensor::sort_by(&arrays.iter().collect::<Vec<_>>(), dim, true, by);
    let mut all = Vec::new();
    for (x, ty) in sorted.iter().zip(results) {
        let size = held(ty)?.first().and_then(|ty| ty.shape.get(dim).copied());
        let size = size.filter(|n| *n <= first.shape()[dim]).ok_or_else(|| {
            wrong(format!("ApproxTopK cannot return {ty} from {} elements", first.shape()[dim]))
        })?;
        all.push(ImportedValue::Array(x.slice_dim(dim, 0, size)));
    }
    Ok(all)
}

/// Returns the direction of the comparator function.
fn direction(op: &Operation, module: &MlirModule) -> Result<Direction> {
    let named = match find(&op.attributes, "called_computations") {
        Some(Attribute::List(names)) => match names.as_slice() {
            [Attribute::Symbol(name)] => module.functions.iter().find(|f| f.name == *name),
            _ => None,
        },
        _ => None,
    };
    let f = named.ok_or_else(|| wrong("ApproxTopK has no comparator function"))?;
    let first = f.body.operations.first().filter(|_| f.body.operations.len() == 2);
    let compare =
        first.filter(|o| o.name == "stablehlo.compare" && Some(&*o.operands) == f.body.arguments.get(..2));
    match compare.and_then(|o| find(&o.attributes, "comparison_direction")) {
        Some(Attribute::Keyword(_, word)) if word == "GT" => Ok(Direction::Gt),
        Some(Attribute::Keyword(_, word)) if word == "LT" => Ok(Direction::Lt),
        _ => Err(not_there(format!("unsupported ApproxTopK comparator @{}", f.name))
            .because("the comparator does more than compare two values")),
    }
}

fn comparator(direction: Direction, types: &[&TensorType]) -> Result<Arc<Graph>> {
    let g = GraphBuilder::new("by");
    let scalars = types.iter().flat_map(|ty| [ty, ty]);
    let values: Vec<Tensor> = scalars.map(|ty| g.parameter(TensorType::scalar(ty.dtype), "x")).collect();
    match values.as_slice() {
        [a, b, ..] => g.finish(&[a.compare(b, direction)]),
        _ => Err(wrong("an operand is missing")),
    }
}
