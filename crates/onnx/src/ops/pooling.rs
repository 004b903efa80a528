//! Imports ONNX Lp pooling, LRN, and the indices of MaxPool.

use super::call::{NodeCall, RuleResult, output, unsupported};
use super::conv_pool::{OnnxWindow, spatial, sums_in};
use super::op_row::operators;
use super::values::RuleOutput;
use crate::model::broken;
use std::sync::Arc;
use systole_base::{DType, Literal, Result, TensorType, ensure};
use systole_ir::op::{Monoid, Window};
use systole_ir::{Graph, GraphBuilder, Tensor};

operators! {
    "GlobalLpPool" 2..22: global_lp_pool;
    "LRN" 1..13: local_response;
    "LpPool" 2..22: lp_pool;
}

/// Raises sizes to the power p.
fn raised(x: &Tensor, p: i64) -> Result<Tensor> {
    match p {
        1 => Ok(x.abs()),
        2 => Ok(x * x),
        3.. => Ok(x.abs().power(&x.scalar_like(p as f64).broadcast_to(x.shape()))),
        _ => Err(unsupported(format!("unsupported norm order {p}")).hint("use an order of at least 1")),
    }
}

fn root(x: &Tensor, p: i64) -> Tensor {
    match p {
        1 => x.clone(),
        2 => x.sqrt(),
        _ => x.power(&x.scalar_like(1.0 / p as f64).broadcast_to(x.shape())),
    }
}

fn lp_pool(c: &mut NodeCall) -> RuleResult {
    let (x, p) = (c.tensor(0)?, c.int("p", 2)?);
    let input = spatial(&x)?;
    let moves = OnnxWindow::of(c, &input, c.sizes("kernel_shape")?.unwrap_or_default())?;
    let wide = raised(&x.convert(sums_in(x.dtype())), p)?;
    output(root(&Monoid::Add.over_windows(&wide, moves.window()), p).convert(x.dtype()))
}

fn global_lp_pool(c: &mut NodeCall) -> RuleResult {
    let (x, p) = (c.tensor(0)?, c.int("p", 2)?);
    let dims: Vec<usize> = (2..spatial(&x)?.len() + 2).collect();
    let mut shape = x.shape().to_vec();
    dims.iter().for_each(|&d| shape[d] = 1);
    let sum = raised(&x.convert(sums_in(x.dtype())), p)?.sum(&dims);
    output(root(&sum, p).convert(x.dtype()).reshape(shape))
}

/// Imports LRN: x / (bias + alpha / size · Σ x²)^beta, summed over the nearest `size` channels.
fn local_response(c: &mut NodeCall) -> RuleResult {
    let (x, size) = (c.tensor(0)?, c.count("size", 0)?);
    let (alpha, beta, bias) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?, c.float("bias", 1.0)?);
    let rank = x.rank();
    ensure!(rank >= 2, broken(format!("{} has no channels", x.ty())));
    let wide = x.convert(sums_in(x.dtype()));
    let (mut window, mut padding) = (vec![1; rank], vec![[0, 0]; rank]);
    window[1] = size;
    padding[1] = [(size as i64 - 1) / 2, size as i64 / 2];
    let sums = (&wide * &wide).sum_pool(&window, &vec![1; rank], &padding);
    let base = sums * (alpha / size as f64) + bias;
    let power = base.power(&base.scalar_like(beta).broadcast_to(base.shape()));
    output((wide / power).convert(x.dtype()))
}

/// Body `(best, place, x, i) → (best, place)`: the larger value, or the first of equal ones.
fn first_maximum(dtype: DType) -> Result<Arc<Graph>> {
    let g = GraphBuilder::new("body");
    let port = |name: &str, dtype| g.parameter(TensorType::scalar(dtype), name);
    let (best, place) = (port("best", dtype), port("place", DType::I64));
    let (x, i) = (port("x", dtype), port("i", DType::I64));
    let is_first = x.equal(&best).and(&i.less(&place));
    let is_better = x.greater(&best).or(&is_first);
    g.finish(&[is_better.select(&x, &best), is_better.select(&i, &place)])
}

/// Returns the maximum of each window and its index in the flattened array `[N, C, …]`; by columns, the first spatial
/// dimension is contiguous.
pub(super) fn max_with_places(x: &Tensor, window: Window, by_columns: bool) -> RuleResult {
    let g = x.builder();
    let places = x.ty().with_dtype(DType::I64);
    let along = |d: usize| g.iota(places.clone(), d) * x.shape()[d + 1..].iter().product::<usize>() as f64;
    let at = (1..x.rank()).fold(along(0), |at, d| at + along(d));
    let dtype = x.dtype();
    let least = Literal::splat(TensorType::scalar(dtype), Monoid::Maximum.identity(dtype));
    let inits = [g.constant(least), g.constant(Literal::from_slice([], &[i64::MAX])?)];
    let body = first_maximum(dtype)?;
    let mut made = Tensor::reduce_window(&[x, &at], &[&inits[0], &inits[1]], window, body);
    if by_columns && let Some(at) = made.get_mut(1) {
        *at = column_order(at, &x.shape()[2..]);
    }
    Ok(made.into_iter().map(RuleOutput::Tensor).collect())
}

/// Converts indices of images from row order to column order.
fn column_order(at: &Tensor, sizes: &[usize]) -> Tensor {
    let size = |n: usize| at.scalar_like(n.max(1) as f64).broadcast_to(at.shape());
    let mut rest = at.remainder(&size(sizes.iter().product()));
    let mut y = at - &rest;
    for (d, &n) in sizes.iter().enumerate().rev() {
        y = y + rest.remainder(&size(n)) * sizes[..d].iter().product::<usize>() as f64;
        rest = rest / size(n);
    }
    y
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{assert_close, floats, run_node};

    #[test]
    fn norms_are_pooled() {
        let x = floats([1, 1, 4], [3.0, -4.0, 0.0, 2.0]);
        let node = |op: &str| OnnxNode::new(op, ["x"], "y");
        let pool = node("LpPool").ints("kernel_shape", [2]);
        assert_close(&run_node(22, pool.clone(), &[&x])[0], &[5.0, 4.0, 2.0]);
        let pool = pool.with("p", OnnxAttribute::Int(1));
        assert_close(&run_node(22, pool, &[&x])[0], &[7.0, 4.0, 2.0]);
        let global = node("GlobalLpPool").with("p", OnnxAttribute::Int(3));
        assert_close(&run_node(22, global, &[&x])[0], &[99f32.powf(1.0 / 3.0)]);
    }

    #[test]
    fn channels_are_divided_by_their_neighbours() {
        let x = floats([1, 3, 1], [1.0, 2.0, 3.0]);
        let node = OnnxNode::new("LRN", ["x"], "y").with("size", OnnxAttribute::Int(2));
        let node = node.with("alpha", OnnxAttribute::Float(2.0)).with("beta", OnnxAttribute::Float(0.5));
        // An even window reaches one channel further after than before.
        let expected = [1.0 / 6f32.sqrt(), 2.0 / 14f32.sqrt(), 3.0 / 10f32.sqrt()];
        assert_close(&run_node(13, node, &[&x])[0], &expected);
    }

    #[test]
    fn maxima_have_their_places() {
        let x = floats([1, 2, 2, 2], [1.0, 4.0, 4.0, 2.0, 5.0, 6.0, 7.0, 8.0]);
        let mut node = OnnxNode::new("MaxPool", ["x"], "y").ints("kernel_shape", [2, 2]);
        node.outputs.push("i".into());
        let y = run_node(12, node.clone(), &[&x]);
        assert_eq!((y[0].to_f32s(), y[1].to_f64s()), (vec![4.0, 8.0], vec![1.0, 7.0]));
        let y = run_node(12, node.with("storage_order", OnnxAttribute::Int(1)), &[&x]);
        assert_eq!(y[1].to_f64s(), [2.0, 7.0]);
    }
}
