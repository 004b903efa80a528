//! Imports ONNX scatters: ScatterND, ScatterElements, Scatter, TensorScatter.

use super::call::{NodeCall, RuleResult, axis, output, unsupported};
use super::indexing::{from_start, places};
use super::op_row::operators;
use crate::model::broken;
use std::sync::Arc;
use systole_base::{DType, Result};
use systole_ir::op::{Monoid, Scatter, scatter::overwrite_body};
use systole_ir::{Graph, Tensor};

operators! {
    "Scatter" 9..10: scatter_elements;
    "ScatterElements" 11..18: scatter_elements;
    "ScatterND" 11..18: scatter_nd;
    "TensorScatter" 24..24: tensor_scatter;
}

/// Returns the body that combines an element with its update.
fn combiner(c: &NodeCall, dtype: DType) -> Result<Arc<Graph>> {
    let monoid = match c.word("reduction", "none")?.as_str() {
        "none" => return Ok(overwrite_body(dtype)),
        "add" => Monoid::Add,
        "mul" => Monoid::Multiply,
        "max" => Monoid::Maximum,
        "min" => Monoid::Minimum,
        other => return Err(unsupported(format!("unsupported reduction {other}"))),
    };
    Ok(monoid.body(dtype))
}

/// Imports ScatterND: replaces or combines the slices at index vectors.
fn scatter_nd(c: &mut NodeCall) -> RuleResult {
    let (x, at, updates) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let n = at.shape().last().copied().unwrap_or(0);
    let leading = at.rank().saturating_sub(1);
    let fits = (1..=x.rank()).contains(&n) && updates.rank() == leading + x.rank() - n;
    if !fits || !at.dtype().is_int() {
        return Err(broken(format!(
            "indices {} and updates {} do not match {}",
            at.ty(),
            updates.ty(),
            x.ty()
        )));
    }
    let at = from_start(c, &at, &x.shape()[..n])?;
    let body = combiner(c, x.dtype())?;
    let spec = Scatter {
        update_window_dims: (leading..updates.rank()).collect(),
        inserted_window_dims: (0..n).collect(),
        scatter_dims_to_operand_dims: (0..n).collect(),
        index_vector_dim: leading,
        ..Scatter::rows(x.ty(), leading, body)
    };
    output(x.scatter(&at, &updates, spec))
}

/// Imports ScatterElements: one element per index, along an axis.
fn scatter_elements(c: &mut NodeCall) -> RuleResult {
    let (x, updates) = (c.tensor(0)?, c.tensor(2)?);
    let dim = axis(c.int("axis", 0)?, x.rank())?;
    let at = places(c, 1, x.shape()[dim])?;
    if at.rank() != x.rank() || at.shape() != updates.shape() {
        return Err(broken(format!(
            "indices {} and updates {} do not match {}",
            at.ty(),
            updates.ty(),
            x.ty()
        )));
    }
    let body = combiner(c, x.dtype())?;
    output(element_scatter(&x, dim, &at, &updates, body))
}

/// `x: T[…], at: I[updates…], updates: T[updates…] → T[…]`: combines elements whose index along `dim` is in `at`.
fn element_scatter(x: &Tensor, dim: usize, at: &Tensor, updates: &Tensor, body: Arc<Graph>) -> Tensor {
    let rank = x.rank();
    let apart = [at.shape().dims(), &[1]].concat();
    let along = |d: usize| if d == dim { at.clone() } else { at.builder().iota(at.ty().clone(), d) };
    let columns: Vec<Tensor> = (0..rank).map(|d| along(d).reshape(apart.clone())).collect();
    let at = Tensor::concatenate(&columns.iter().collect::<Vec<_>>(), rank);
    let spec = Scatter {
        update_window_dims: Default::default(),
        inserted_window_dims: (0..rank).collect(),
        scatter_dims_to_operand_dims: (0..rank).collect(),
        index_vector_dim: rank,
        ..Scatter::rows(x.ty(), rank, body)
    };
    x.scatter(&at, updates, spec)
}

/// Imports TensorScatter: writes new positions into a cache, from each sample's write index on.
fn tensor_scatter(c: &mut NodeCall) -> RuleResult {
    let (x, updates) = (c.tensor(0)?, c.tensor(1)?);
    let dim = axis(c.int("axis", -2)?, x.rank())?;
    if updates.rank() != x.rank() || dim == 0 {
        return Err(broken(format!("updates {} do not match {}", updates.ty(), x.ty())));
    }
    let mut at = c.g.iota(updates.ty().with_dtype(DType::I64), dim);
    if let Some(from) = c.optional(2)? {
        at = &at + from.convert(DType::I64).broadcast_in_dim(at.shape(), &[0]);
    }
    let at = match c.word("mode", "linear")?.as_str() {
        "linear" => at,
        "circular" => at.remainder(&at.scalar_like(x.shape()[dim] as f64)),
        other => return Err(unsupported(format!("unsupported mode {other}"))),
    };
    output(element_scatter(&x, dim, &at, &updates, overwrite_body(x.dtype())))
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{floats, ints, run_node};

    /// The examples of the ONNX specification.
    #[test]
    fn elements_are_replaced_or_combined() {
        let (x, at) = (floats([1, 5], [1.0, 2.0, 3.0, 4.0, 5.0]), ints([1, 2], [1, -2]));
        let updates = floats([1, 2], [1.1, 2.1]);
        let node =
            OnnxNode::new("ScatterElements", ["x", "at", "u"], "y").with("axis", OnnxAttribute::Int(1));
        let run = |reduction: &str, at| {
            let node = node.clone().with("reduction", OnnxAttribute::Text(reduction.into()));
            run_node(18, node, &[&x, &at, &updates]).remove(0).to_f32s()
        };
        assert_eq!(run("none", at.clone()), [1.0, 1.1, 3.0, 2.1, 5.0]);
        assert_eq!(run("max", at), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(run("add", ints([1, 2], [1, 1])), [1.0, 2.0 + 1.1 + 2.1, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn slices_are_replaced_at_index_vectors() {
        let x = floats([3, 2], [0.0; 6]);
        let updates = floats([2, 2], [1.0, 2.0, 3.0, 4.0]);
        let node = OnnxNode::new("ScatterND", ["x", "at", "u"], "y");
        let y = run_node(18, node.clone(), &[&x, &ints([2, 1], [2, -3]), &updates]);
        assert_eq!(y[0].to_f32s(), [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
        let node = node.with("reduction", OnnxAttribute::Text("mul".into()));
        let y =
            run_node(18, node, &[&floats([2], [2.0, 3.0]), &ints([2, 1], [1, 1]), &floats([2], [5.0, 7.0])]);
        assert_eq!(y[0].to_f32s(), [2.0, 105.0]);
    }

    #[test]
    fn caches_are_written_from_each_sample_s_index_on() {
        let x = floats([2, 3, 1], [0.0; 6]);
        let updates = floats([2, 2, 1], [1.0, 2.0, 3.0, 4.0]);
        let node = OnnxNode::new("TensorScatter", ["x", "u", "at"], "y")
            .with("mode", OnnxAttribute::Text("circular".into()));
        let y = run_node(24, node, &[&x, &updates, &ints([2], [1, 2])]);
        assert_eq!(y[0].to_f32s(), [0.0, 1.0, 2.0, 4.0, 0.0, 3.0]);
    }
}
