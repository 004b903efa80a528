//! Constant folding: evaluates ops on small constants at compile time.

use crate::graph::rewrite::Rewriter;
use smallvec::SmallVec;
use systole_ir::interp::EvalCx;
use systole_ir::op::{BroadcastInDim, Constant, LoweringClass};
use systole_ir::{Dims, Literal, Node, Op, Scalar, TensorType, ValueId};

/// Maximum number of elements of a folded result.
const FOLD_LIMIT: usize = 256;

/// Evaluates an op on small constants.
pub fn fold_constants(g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let foldable = matches!(
        node.op.rule().lower(),
        LoweringClass::Map | LoweringClass::Move | LoweringClass::Fold | LoweringClass::Contract
    ) && !inputs.is_empty()
        && node.outs.len() == 1
        && node.outs[0].elements() <= FOLD_LIMIT
        // A broadcast scalar is cheaper for its consumers than a constant array.
        && !matches!(&node.op, Op::BroadcastInDim(_) if g.ty(inputs[0]).rank() == 0);
    if !foldable {
        return None;
    }
    let args: Option<Vec<Literal>> = inputs.iter().map(|&v| constant(g, v).cloned()).collect();
    let args = args?;
    if args.iter().any(|a| a.ty().elements() > 4 * FOLD_LIMIT) {
        return None;
    }
    let refs: Vec<&Literal> = args.iter().collect();
    let value = node.op.rule().eval(&mut EvalCx::default(), &refs, &node.outs).ok()?.into_iter().next()?;
    Some(g.push(Constant { value }, &[], node))
}

/// Turns a splat constant into a broadcast scalar, so that no kernel reads it from memory.
pub fn one_for_all(g: &mut Rewriter, c: &Constant, node: &Node) -> Option<ValueId> {
    let ty = c.value.ty();
    if ty.elements() <= FOLD_LIMIT || !c.value.is_splat() {
        return None;
    }
    let one = &c.value.bytes()[..ty.dtype.size()];
    let value = Literal::from_bytes(TensorType::scalar(ty.dtype), one).ok()?;
    let shape = ty.shape.clone();
    let one = g.push(Constant { value }, &[], node);
    Some(g.push(BroadcastInDim { dims: Dims::new(), shape }, &[one], node))
}

/// Returns the value of a constant node; `None` for other nodes.
pub fn constant(g: &Rewriter, v: ValueId) -> Option<&Literal> {
    match &g.node(v).op {
        Op::Constant(c) => Some(&c.value),
        _ => None,
    }
}

/// The scalar that all elements of a value equal, if it is a constant or a broadcast of one.
pub fn splat(g: &Rewriter, v: ValueId) -> Option<Scalar> {
    match &g.node(v).op {
        Op::Constant(c) if c.value.ty().elements() <= FOLD_LIMIT && c.value.is_splat() => {
            Some(c.value.get(0))
        }
        Op::BroadcastInDim(_) => splat(g, g.node(v).inputs[0]),
        _ => None,
    }
}

/// `map(broadcast(a), broadcast(b))` of scalars becomes `broadcast(map(a, b))`, which computes one element.
pub fn map_before_broadcast(g: &mut Rewriter, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    if node.op.rule().lower() != LoweringClass::Map || inputs.is_empty() || node.outs.len() != 1 {
        return None;
    }
    let shape = node.outs[0].shape.clone();
    if shape.rank() == 0 || matches!(node.op, Op::OptimizationBarrier(_)) {
        return None;
    }
    let scalar = |g: &Rewriter, v: ValueId| match &g.node(v).op {
        Op::BroadcastInDim(_) => {
            let inner = g.node(v).inputs[0];
            (g.ty(inner).rank() == 0).then_some(inner)
        }
        _ => (g.ty(v).rank() == 0).then_some(v),
    };
    let scalars: Option<SmallVec<[ValueId; 3]>> = inputs.iter().map(|&v| scalar(g, v)).collect();
    let scalars = scalars?;
    let folded = match scalars.iter().map(|&v| constant(g, v).cloned()).collect::<Option<Vec<Literal>>>() {
        Some(args) => {
            let refs: Vec<&Literal> = args.iter().collect();
            let types: Vec<_> = args.iter().map(|a| a.ty()).collect();
            let outs = node.op.rule().infer(&types).ok()?;
            let value = node.op.rule().eval(&mut EvalCx::default(), &refs, &outs).ok()?.into_iter().next()?;
            g.push(Constant { value }, &[], node)
        }
        None => g.push(node.op.clone(), &scalars, node),
    };
    Some(g.push(BroadcastInDim { dims: Dims::new(), shape }, &[folded], node))
}

/// Whether a scalar is known and equals this number.
pub fn is(s: Option<Scalar>, value: f64) -> bool {
    // Compares bits, because 0 and −0 differ here.
    s.is_some_and(|s| match s {
        Scalar::Float(f) => f.to_bits() == value.to_bits(),
        Scalar::Bool(_) => false,
        s => s.as_f64() == value && value.is_sign_positive(),
    })
}
