//! Imports ONNX operators without tensor operands, or with shapes: Constant, ConstantOfShape, Range, Shape, EyeLike,
//! window functions.

use super::call::{NodeCall, RuleResult, axis, checked, output, unsupported};
use super::conv_pool::sums_in;
use super::op_row::operators;
use crate::model::{OnnxAttribute, broken, dtype_of};
use systole_base::{DType, Literal, Result, TensorType, ensure};
use systole_ir::Tensor;

operators! {
    "BlackmanWindow" 17..17: |c| window(c, [0.42, -0.5, 0.08]);
    "Constant" 1..25: constant;
    "ConstantOfShape" 9..25: filled;
    "EyeLike" 9..22: eye_like;
    "HammingWindow" 17..17: |c| window(c, [25.0 / 46.0, -21.0 / 46.0, 0.0]);
    "HannWindow" 17..17: |c| window(c, [0.5, -0.5, 0.0]);
    "Range" 11..27: range;
    "Shape" 1..25: shape;
    "Size" 1..25: size;
}

fn constant(c: &mut NodeCall) -> RuleResult {
    let floats = |v: &[f32], dims: &[usize]| Literal::from_slice(dims, v);
    let ints = |v: &[i64], dims: &[usize]| Literal::from_slice(dims, v);
    let first = c.node.attributes.keys().next().cloned().unwrap_or_default();
    let value = match c.attribute(&first).map(|a| (first.as_str(), a)) {
        Some(("value", OnnxAttribute::Tensor(v))) => v.clone(),
        Some(("value_float", OnnxAttribute::Float(v))) => floats(&[*v], &[])?,
        Some(("value_int", OnnxAttribute::Int(v))) => ints(&[*v], &[])?,
        Some(("value_floats", OnnxAttribute::Floats(v))) => floats(v, &[v.len()])?,
        Some(("value_ints", OnnxAttribute::Ints(v))) => ints(v, &[v.len()])?,
        _ => {
            return Err(unsupported(format!(
                "a constant must be an array of numbers, got attribute `{first}`"
            )));
        }
    };
    output(c.g.constant(value))
}

/// Imports Shape; the sizes are constant.
fn shape(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let n = x.rank() as i64;
    let own = |v: i64| (if v < 0 { v.saturating_add(n) } else { v }).clamp(0, n) as usize;
    let (from, to) = (own(c.int("start", 0)?), own(c.int("end", n)?));
    let sizes: Vec<i64> = x.shape().iter().map(|&s| s as i64).collect();
    let sizes = sizes.get(from..to.max(from)).unwrap_or_default();
    output(c.g.constant(Literal::from_slice([sizes.len()], sizes)?))
}

fn size(c: &mut NodeCall) -> RuleResult {
    let n = c.tensor(0)?.shape().elements() as i64;
    output(c.g.constant(Literal::from_slice([], &[n])?))
}

fn filled(c: &mut NodeCall) -> RuleResult {
    let size = |v: i64| usize::try_from(v).map_err(|_| broken(format!("invalid dimension size {v}")));
    let dims = c.numbers(0)?.into_iter().map(size).collect::<Result<Vec<_>>>()?;
    let value = match c.attribute("value") {
        Some(OnnxAttribute::Tensor(v)) if v.ty().elements() == 1 => v.reshape([])?,
        None => Literal::scalar(DType::F32, 0.0),
        _ => return Err(broken("value must be a single number")),
    };
    output(c.g.constant(value).broadcast_to(&checked(dims)?.into()))
}

fn range(c: &mut NodeCall) -> RuleResult {
    let mut ends = Vec::new();
    for i in 0..3 {
        let known = c.known(i)?;
        ensure!(known.ty().elements() == 1, broken("start, limit and delta must be scalars"));
        ends.push((known.get(0).as_f64(), known.dtype()));
    }
    let [(start, dtype), (end, _), (step, _)] = ends[..] else {
        return Err(broken("start, limit or delta is missing"));
    };
    let count = ((end - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > super::call::MOST_ELEMENTS as f64 {
        return Err(broken(format!("invalid range from {start} to {end} by {step}")));
    }
    c.stash_type()?;
    let steps = c.g.iota(TensorType::new(sums_in(dtype), [count as usize]), 0);
    output((steps * step + start).convert(dtype))
}

/// Imports EyeLike: the identity matrix with the shape of a value.
fn eye_like(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    ensure!(x.rank() == 2, broken(format!("EyeLike requires a matrix, got {}", x.ty())));
    let by = super::call::moved(c.int("k", 0)?)?;
    let dtype = match c.int("dtype", 0)? {
        0 => x.dtype(),
        code => dtype_of(code).ok_or_else(|| unsupported(format!("unsupported ONNX element type {code}")))?,
    };
    let places = x.ty().with_dtype(DType::I64);
    let (row, column): (Tensor, Tensor) = (c.g.iota(places.clone(), 0), c.g.iota(places, 1));
    output((row + by as f64).equal(&column).convert(dtype))
}

/// Imports a window of constant size: a sum of cosines of 0, 1 and 2 periods.
fn window(c: &mut NodeCall, factors: [f64; 3]) -> RuleResult {
    let n = c.number(0)?;
    let size = usize::try_from(n).ok().filter(|n| *n <= super::call::MOST_ELEMENTS);
    let size = size.ok_or_else(|| broken(format!("invalid window size {n}")))?;
    c.spend(size)?;
    let period = if c.is("periodic", true)? { size } else { size.saturating_sub(1) }.max(1);
    let code = c.int("output_datatype", 1)?;
    let dtype = dtype_of(code).ok_or_else(|| unsupported(format!("unsupported ONNX element type {code}")))?;
    let angle = |i: usize| 2.0 * std::f64::consts::PI * i as f64 / period as f64;
    let value = |i: usize| factors[0] + factors[1] * angle(i).cos() + factors[2] * (2.0 * angle(i)).cos();
    let values: Vec<f64> = (0..size).map(value).collect();
    output(c.g.constant(Literal::from_slice([size], &values)?.convert(dtype)))
}

/// Returns the axes that an attribute list selects.
pub(super) fn dims_of(c: &NodeCall, name: &str, rank: usize) -> Result<Option<Vec<usize>>> {
    c.ints(name)?.map(|list| list.iter().map(|&a| axis(a, rank)).collect()).transpose()
}

#[cfg(test)]
mod tests {
    use crate::model::OnnxNode;
    use crate::test_node::{assert_close, ints, run_constants};

    #[test]
    fn windows_are_sums_of_cosines() {
        let run = |op: &str| run_constants(17, OnnxNode::new(op, ["n"], "y"), &[&ints([], [4])]).remove(0);
        assert_close(&run("HannWindow"), &[0.0, 0.5, 1.0, 0.5]);
        assert_close(&run("HammingWindow"), &[4.0 / 46.0, 25.0 / 46.0, 1.0, 25.0 / 46.0]);
        assert_close(&run("BlackmanWindow"), &[0.0, 0.34, 1.0, 0.34]);
    }
}
