//! Linearity of sums: rewrites `Σ (a·x + b·y)` as `a·Σx + b·Σy` if `a` and `b` are constant along the reduced
//! dimensions.
//!
//! Applied only if one of the sums on the right already exists. In the gradient of batch normalization this saves the
//! last reduction over the whole batch. `Σ (x − mean(x))` becomes 0: its computed value would be rounding error only.

use crate::graph::rewrite::{NodeLookup, Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::{HashMap, HashSet};
use systole_ir::op::{Binary, BroadcastInDim, Monoid, Unary};
use systole_ir::{DType, Dims, Graph, Node, Op, ValueId};

/// Maximum number of terms into which a sum is split.
const MAX_TERMS: usize = 4;

/// `± factors · value`, where each factor is a broadcast that is constant along the reduced dimensions.
#[derive(Clone)]
struct LinearTerm {
    negative: bool,
    factors: Vec<ValueId>,
    value: ValueId,
}

/// Rewrites sums of linear combinations as linear combinations of sums.
pub fn run(graph: &Graph) -> Graph {
    let known: HashSet<(ValueId, &Dims)> = graph.nodes.iter().filter_map(|n| sum_of(graph, n)).collect();
    let mut sums: HashMap<(ValueId, Dims), ValueId> = HashMap::new();
    rebuild(graph, |g, _, node, inputs| {
        let (old, _) = sum_of(graph, node)?;
        let Op::Reduce(op) = &node.op else { return None };
        let old_terms = split(&|v| graph.node(v), old, &op.dims);
        let is_known = old_terms.iter().any(|t| known.contains(&(t.value, &op.dims)));
        let linear = old_terms.len() <= MAX_TERMS && old_terms.iter().all(|t| !t.factors.is_empty());
        let mut sum = |g: &mut Rewriter, value: ValueId| {
            let make = || g.push(op.clone(), &[value, inputs[1]], node);
            *sums.entry((value, op.dims.clone())).or_insert_with(make)
        };
        if is_around_mean(graph, old, &op.dims) {
            return Some(smallvec![g.full(&node.outs[0], 0.0, node)]);
        }
        if !is_known || !linear {
            return Some(smallvec![sum(g, inputs[0])]);
        }
        let terms = split(&|v| g.node(v), inputs[0], &op.dims);
        let mut total = None;
        for (t, old) in terms.iter().zip(&old_terms) {
            if is_around_mean(graph, old.value, &op.dims) {
                continue;
            }
            let mut y = sum(g, t.value);
            for &f in &t.factors {
                let factor = without(g, f, &op.dims, node);
                y = g.push(Binary::Multiply, &[y, factor], node);
            }
            total = Some(match (total, t.negative) {
                (None, false) => y,
                (None, true) => g.push(Unary::Negate, &[y], node),
                (Some(before), false) => g.push(Binary::Add, &[before, y], node),
                (Some(before), true) => g.push(Binary::Subtract, &[before, y], node),
            });
        }
        Some(smallvec![total.unwrap_or_else(|| g.full(&node.outs[0], 0.0, node))])
    })
}

/// Whether a value is `x − broadcast(mean(x))`, with the mean over the dimensions `folded`.
fn is_around_mean(graph: &Graph, value: ValueId, folded: &[usize]) -> bool {
    let node = graph.node(value);
    let &[x, broadcast] = &node.inputs[..] else { return false };
    let Op::BroadcastInDim(repeated) = &graph.node(broadcast).op else { return false };
    let kept = (0..graph.ty(x).rank()).filter(|d| !folded.contains(d));
    let mean = graph.node(graph.node(broadcast).inputs[0]);
    let (Op::Binary(Binary::Multiply), &[sum, share]) = (&mean.op, &mean.inputs[..]) else { return false };
    let folds_x = |sum: &Node| sum_of(graph, sum).is_some_and(|(y, dims)| y == x && dims[..] == *folded);
    let count = graph.ty(x).elements() as f64 / graph.ty(sum).elements() as f64;
    node.op == Op::Binary(Binary::Subtract)
        && repeated.dims.iter().copied().eq(kept)
        && folds_x(graph.node(sum))
        && graph.splat(share).is_some_and(|share| (share * count - 1.0).abs() < 1e-6)
}

/// Operand and dimensions of a plain sum of f32 or f64, whose additions may be reassociated.
fn sum_of<'g>(graph: &'g Graph, node: &'g Node) -> Option<(ValueId, &'g Dims)> {
    let Op::Reduce(op) = &node.op else { return None };
    let &[x, init] = &node.inputs[..] else { return None };
    let from_zero = matches!(&graph.node(init).op, Op::Constant(c) if c.value.get(0).as_f64() == 0.0);
    let is_sum = from_zero
        && matches!(node.outs[0].dtype, DType::F32 | DType::F64)
        && Monoid::of(&op.body) == Some(Monoid::Add);
    is_sum.then_some((x, &op.dims))
}

/// Splits a value into terms, at most [`MAX_TERMS`].
fn split<'g>(node: &impl Fn(ValueId) -> &'g Node, value: ValueId, folded: &[usize]) -> Vec<LinearTerm> {
    let mut terms = Vec::new();
    let mut open = vec![LinearTerm { negative: false, factors: Vec::new(), value }];
    let is_factor = |v: ValueId| matches!(&node(v).op, Op::BroadcastInDim(b) if b.dims.iter().all(|d| !folded.contains(d)));
    while let Some(t) = open.pop() {
        let part =
            |value: ValueId, negate: bool| LinearTerm { negative: t.negative ^ negate, value, ..t.clone() };
        match (&node(t.value).op, &node(t.value).inputs[..]) {
            (Op::Unary(Unary::Negate), &[x]) => open.push(part(x, true)),
            // A sum under a factor is not split: if it is a difference from a mean, the two resulting sums would
            // cancel.
            (Op::Binary(op @ (Binary::Add | Binary::Subtract)), &[a, b]) if t.factors.is_empty() => {
                open.push(part(b, *op == Binary::Subtract));
                open.push(part(a, false));
            }
            (Op::Binary(Binary::Multiply), &[a, b]) if is_factor(a) || is_factor(b) => {
                let (factor, value) = if is_factor(a) { (a, b) } else { (b, a) };
                let mut t = part(value, false);
                t.factors.push(factor);
                open.push(t);
            }
            _ => terms.push(t),
        }
        if terms.len() + open.len() > MAX_TERMS {
            terms.append(&mut open);
        }
    }
    terms
}

/// The factor `v` without the reduced dimensions.
fn without(g: &mut Rewriter, v: ValueId, folded: &[usize], like: &Node) -> ValueId {
    let (op, x) = match (&g.node(v).op, &g.node(v).inputs[..]) {
        (Op::BroadcastInDim(op), &[x]) => (op.clone(), x),
        _ => systole_ir::bug!("a factor must be a broadcast"),
    };
    let kept: Vec<usize> = (0..op.shape.rank()).filter(|d| !folded.contains(d)).collect();
    let place = |d: &usize| kept.iter().position(|k| k == d).unwrap_or(0);
    let dims: Dims = op.dims.iter().map(place).collect();
    let shape = kept.iter().map(|&d| op.shape[d]).collect();
    if g.ty(x).shape == shape && dims.iter().copied().eq(0..kept.len()) {
        return x;
    }
    g.push(BroadcastInDim { dims, shape }, &[x], like)
}
