//! Reverse-mode automatic differentiation: visits nodes backward from a value and appends derivative nodes to the same
//! graph, using each op's `vjp` rule.

use crate::graph::{DERIVATIVE, Grad, GraphBuilder, Op, OptimizationBarrier, Tensor, ValueId};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use systole_base::{TensorType, err};

/// Computes the gradients of the scalar `y: T[]` with respect to each of `xs`, with the types of `xs`.
///
/// Values that `y` does not depend on get zeros. A non-differentiable op on the path is an error that names the op and the reason.
#[track_caller]
pub fn grad(y: &Tensor, xs: &[&Tensor]) -> Vec<Tensor> {
    if y.rank() != 0 && !y.is_poisoned() {
        let error = err!(Graph, "grad needs a scalar loss, got {}", y.ty())
            .hint("sum or average the value first, or use vjp with a cotangent");
        return vec![y.fail(error); xs.len()];
    }
    vjp(&[y], &[&y.ones_like()], xs)
}

/// Computes the cotangents of `xs` from the cotangents `dys` of `ys`: one vector–Jacobian product.
#[track_caller]
pub fn vjp(ys: &[&Tensor], dys: &[&Tensor], xs: &[&Tensor]) -> Vec<Tensor> {
    let Some(g) = ys.first().map(|y| y.builder().clone()) else {
        return xs.iter().map(|x| x.zeros_like()).collect();
    };
    // In a loop body, derivatives with respect to outer tensors are those of their captures.
    let xs: Vec<Tensor> = xs.iter().map(|x| g.capture(x)).collect();
    let xs: &[&Tensor] = &xs.iter().collect::<Vec<_>>();
    if ys.iter().chain(xs).chain(dys).any(|t| t.is_poisoned()) {
        return xs.iter().map(|_| poisoned(&g)).collect();
    }
    let last = ys.iter().map(|y| y.id().index()).max().unwrap_or(0);
    let mut active = reachable_from(&g, xs, last);
    let mut cotangents: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    for (y, dy) in ys.iter().zip(dys) {
        accumulate(&mut cotangents, y.id(), (*dy).clone());
    }
    let mut next = last + 1;
    while next > 0 {
        let node = next - 1;
        next = match g.rematerialized_around(node) {
            Some(run) => {
                let start = run.start;
                back_through_again(&g, run.start..next, &mut active, &mut cotangents);
                start
            }
            None => {
                back_through(&g, node, &active, &mut cotangents);
                node
            }
        };
        if g.error().is_some() {
            return xs.iter().map(|_| poisoned(&g)).collect();
        }
    }
    xs.iter().map(|x| cotangents.get(&x.id()).cloned().unwrap_or_else(|| x.zeros_like())).collect()
}

/// Nodes up to `last` that depend on any of `xs` through floating-point values.
fn reachable_from(g: &GraphBuilder, xs: &[&Tensor], last: usize) -> HashSet<ValueId> {
    let mut active: HashSet<ValueId> = xs.iter().map(|x| x.id()).collect();
    for i in 0..=last {
        g.with_node(i, |n| {
            if n.inputs.iter().any(|v| active.contains(v)) {
                let floats = n.outs.iter().enumerate().filter(|(_, t)| t.dtype.is_float());
                active.extend(floats.map(|(k, _)| ValueId::new(i, k)));
            }
        });
    }
    active
}

fn back_through(
    g: &GraphBuilder,
    node: usize,
    active: &HashSet<ValueId>,
    cotangents: &mut BTreeMap<ValueId, Tensor>,
) {
    let (mut op, inputs, outs) = g.with_node(node, |n| (n.op.clone(), n.inputs.clone(), n.outs.len()));
    let mut dy: Vec<Option<Tensor>> =
        (0..outs).map(|k| cotangents.get(&ValueId::new(node, k)).cloned()).collect();
    if dy.iter().all(Option::is_none) || !inputs.iter().any(|v| active.contains(v)) {
        return;
    }
    let mut x: Vec<Tensor> = inputs.iter().map(|&v| g.value(v)).collect();
    if let Some((augmented, extra)) = g.in_scope_of(node, 0, || op.rule().augment(&x)) {
        let types: Vec<&TensorType> = x.iter().chain(&extra).map(|t| t.ty()).collect();
        match augmented.rule().infer(&types) {
            Ok(outs) => g.augment_node(node, augmented.clone(), &extra, outs),
            Err(c) => systole_base::bug!("type inference failed for augmented {}: {}", op.name(), c.message),
        }
        if g.error().is_some() {
            return;
        }
        x.extend(extra);
        op = augmented;
    }
    let outs = g.with_node(node, |n| n.outs.len());
    dy.resize(outs, None);
    let y: Vec<Tensor> = (0..outs).map(|k| g.value(ValueId::new(node, k))).collect();
    let grads = g.in_scope_of(node, DERIVATIVE, || op.rule().vjp(&x, &y, &dy));
    debug_assert_eq!(grads.len(), x.len(), "{}: expected one gradient per operand", op.name());
    for (v, grad) in inputs.iter().zip(grads) {
        if !active.contains(v) {
            continue;
        }
        match grad {
            Grad::Of(t) => {
                debug_assert!(t.is_poisoned() || t.ty() == g.value(*v).ty(), "{}: {:?}", op.name(), t);
                g.in_scope_of(node, DERIVATIVE, || accumulate(cotangents, *v, t));
            }
            Grad::Zero => {}
            Grad::None { why } => g.in_scope_of(node, DERIVATIVE, || {
                let loc = g.with_node(node, |n| n.loc);
                let mut e = err!(Graph, "cannot differentiate `{}`", op.name())
                    .because(why)
                    .hint("apply stop_gradient to the value, or write the loss without it");
                if let Some(loc) = loc {
                    e = e.at(format!("{}:{}", loc.file, loc.line));
                }
                g.record(e);
            }),
        }
    }
}

/// Differentiates through recomputed copies of the nodes in `run`, so that their values need not be stored since the forward pass.
fn back_through_again(
    g: &GraphBuilder,
    run: Range<usize>,
    active: &mut HashSet<ValueId>,
    cotangents: &mut BTreeMap<ValueId, Tensor>,
) {
    let owed: Vec<ValueId> = cotangents.keys().copied().filter(|v| run.contains(&v.index())).collect();
    if owed.is_empty() {
        return;
    }
    let mut copies: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    let first_copy = g.node_count();
    for node in run {
        let (op, inputs) = g.with_node(node, |n| (n.op.clone(), n.inputs.clone()));
        let outs = match op {
            Op::Parameter(_) => vec![g.value(ValueId::new(node, 0))],
            _ => g.in_scope_of(node, DERIVATIVE, || {
                let inputs: Vec<Tensor> =
                    inputs.iter().map(|&v| copy_of(g, v, active, &mut copies)).collect();
                g.emit(op, &inputs.iter().collect::<Vec<_>>())
            }),
        };
        for (k, copy) in outs.into_iter().enumerate() {
            if active.contains(&ValueId::new(node, k)) {
                active.insert(copy.id());
            }
            copies.insert(ValueId::new(node, k), copy);
        }
    }
    for v in owed {
        if let Some(cotangent) = cotangents.remove(&v) {
            cotangents.insert(copies[&v].id(), cotangent);
        }
    }
    for node in (first_copy..g.node_count()).rev() {
        back_through(g, node, active, cotangents);
    }
}

/// Returns the copy of a value in the range, or an earlier value behind an optimization barrier. Without the barrier,
/// common-subexpression elimination would undo the recomputation.
fn copy_of(
    g: &GraphBuilder,
    v: ValueId,
    active: &mut HashSet<ValueId>,
    copies: &mut BTreeMap<ValueId, Tensor>,
) -> Tensor {
    if let Some(copy) = copies.get(&v) {
        return copy.clone();
    }
    let outer = g.value(v);
    let always_there = g.with_node(v.index(), |n| matches!(n.op, Op::Parameter(_) | Op::Constant(_)));
    if always_there {
        return outer;
    }
    let behind = g.emit(OptimizationBarrier { stop_gradient: false }, &[&outer]).remove(0);
    if active.contains(&v) {
        active.insert(behind.id());
    }
    copies.insert(v, behind.clone());
    behind
}

fn accumulate(cotangents: &mut BTreeMap<ValueId, Tensor>, v: ValueId, t: Tensor) {
    let sum = match cotangents.remove(&v) {
        Some(before) => before + t,
        None => t,
    };
    cotangents.insert(v, sum);
}

fn poisoned(g: &GraphBuilder) -> Tensor {
    g.scalar(systole_base::DType::F32, 0.0).fail(
        g.error()
            .unwrap_or_else(|| err!(Graph, "cannot differentiate a tensor that carries an earlier error")),
    )
}
