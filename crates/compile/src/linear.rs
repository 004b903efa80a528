//! Sums of linear combinations: `Σ (a·x + b·y)` with `a` and `b` constant along the folded dimensions is
//! `a·Σx + b·Σy`. Done where one of those sums exists already, as in the gradient of batch normalisation: its last
//! sum over the whole batch then needs no pass of its own.

use crate::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{Binary, BroadcastInDim, Monoid, Reduce, Unary};
use systole_ir::{DType, Dims, Graph, Node, Op, ValueId};

/// Terms of a sum that are looked at.
const MAX_TERMS: usize = 4;

/// `± factors · value`; factors are broadcasts that are constant along the folded dimensions.
#[derive(Clone)]
struct Term {
    negative: bool,
    factors: Vec<ValueId>,
    value: ValueId,
}

/// The pass.
pub fn run(graph: &Graph) -> Graph {
    let mut sums: HashMap<(ValueId, Dims), ValueId> = HashMap::new();
    rebuild(graph, |g, _, node, inputs| {
        let Op::Reduce(op) = &node.op else { return None };
        if !is_sum(g, op, node, inputs) {
            return None;
        }
        let mut terms = Vec::new();
        let whole = Term { negative: false, factors: Vec::new(), value: inputs[0] };
        split(g, whole, &op.dims, &mut terms);
        let known = terms.iter().any(|t| sums.contains_key(&(t.value, op.dims.clone())));
        let pays = known && terms.len() <= MAX_TERMS && terms.iter().all(|t| !t.factors.is_empty());
        let mut sum = |g: &mut Rewriter, value: ValueId| {
            let make = || g.push(op.clone(), &[value, inputs[1]], node);
            *sums.entry((value, op.dims.clone())).or_insert_with(make)
        };
        if !pays {
            return Some(smallvec![sum(g, inputs[0])]);
        }
        let mut total = None;
        for t in &terms {
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
        total.map(|v| smallvec![v])
    })
}

/// Whether a fold is a plain sum of floats whose additions may be grouped anew.
fn is_sum(g: &Rewriter, op: &Reduce, node: &Node, inputs: &[ValueId]) -> bool {
    let zero = |v: ValueId| match &g.node(v).op {
        Op::Constant(c) => c.value.get(0).as_f64() == 0.0,
        _ => false,
    };
    node.outs.len() == 1
        && matches!(node.outs[0].dtype, DType::F32 | DType::F64)
        && Monoid::of(&op.body) == Some(Monoid::Add)
        && zero(inputs[1])
}

/// Takes a value apart into terms.
fn split(g: &Rewriter, t: Term, folded: &[usize], terms: &mut Vec<Term>) {
    if terms.len() > MAX_TERMS {
        return;
    }
    let node = g.node(t.value);
    let part = |value: ValueId, negate: bool| Term { negative: t.negative ^ negate, value, ..t.clone() };
    match (&node.op, &node.inputs[..]) {
        (Op::Unary(Unary::Negate), &[x]) => split(g, part(x, true), folded, terms),
        (Op::Binary(op @ (Binary::Add | Binary::Subtract)), &[a, b]) => {
            split(g, part(a, false), folded, terms);
            split(g, part(b, *op == Binary::Subtract), folded, terms);
        }
        (Op::Binary(Binary::Multiply), &[a, b]) if is_factor(g, a, folded) || is_factor(g, b, folded) => {
            let (factor, value) = if is_factor(g, a, folded) { (a, b) } else { (b, a) };
            let mut t = part(value, false);
            t.factors.push(factor);
            split(g, t, folded, terms);
        }
        _ => terms.push(t),
    }
}

/// Whether a value is a broadcast along all folded dimensions.
fn is_factor(g: &Rewriter, v: ValueId, folded: &[usize]) -> bool {
    matches!(&g.node(v).op, Op::BroadcastInDim(b) if b.dims.iter().all(|d| !folded.contains(d)))
}

/// A factor over the dimensions that stay.
fn without(g: &mut Rewriter, v: ValueId, folded: &[usize], like: &Node) -> ValueId {
    let (op, x) = match (&g.node(v).op, &g.node(v).inputs[..]) {
        (Op::BroadcastInDim(op), &[x]) => (op.clone(), x),
        _ => systole_ir::bug!("a factor is a broadcast"),
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
