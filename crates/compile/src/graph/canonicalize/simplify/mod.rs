//! Algebraic simplification: bit-exact identities, constant folding, and merging of chains of data movement (reshapes,
//! transposes).
//!
//! Bit-exact means for finite numbers, infinities and signed zeros; NaN payloads are not preserved. So `x + 0.0` stays
//! (it turns −0 into +0), while `x − 0.0` and `x · 1` become `x`.

mod constant_folding;
mod convolution;
mod outer_product;

use crate::graph::canonicalize::simplify::constant_folding::{
    constant, fold_constants, is, map_before_broadcast, one_for_all, splat,
};
use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::{SmallVec, smallvec};
use systole_ir::interp::EvalCx;
use systole_ir::op::{
    Binary, BroadcastInDim, Constant, Convert, DotGeneral, Reshape, Slice, Transpose, Unary,
};
use systole_ir::{DType, Dims, Graph, Node, Op, Scalar, ValueId};

/// Runs algebraic simplification.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        if matches!(&node.op, Op::OptimizationBarrier(b) if b.stop_gradient) {
            // Gradients are part of the graph already, so that the barrier has no further effect.
            return Some(inputs.iter().copied().collect::<NodeResults>());
        }
        let value = fold_constants(g, node, inputs)
            .or_else(|| map_before_broadcast(g, node, inputs))
            .or_else(|| match &node.op {
                Op::Binary(op) => binary(g, *op, inputs).or_else(|| from_constant(g, *op, node, inputs)),
                Op::Unary(op) => unary(g, *op, inputs),
                Op::Select(_) => select(g, inputs),
                Op::DotGeneral(op) => {
                    outer_product::run(g, op, node, inputs).or_else(|| dot(g, op, node, inputs))
                }
                Op::Convolution(op) => convolution::run(g, op, node, inputs),
                Op::Constant(c) => one_for_all(g, c, node),
                op => moves(g, op, node, inputs),
            });
        value.map(|v| smallvec![v])
    })
}

fn binary(g: &mut Rewriter, op: Binary, inputs: &[ValueId]) -> Option<ValueId> {
    let (a, b) = (inputs[0], inputs[1]);
    let dtype = g.ty(a).dtype;
    let int = !dtype.is_float() && dtype != DType::Bool;
    let (sa, sb) = (splat(g, a), splat(g, b));
    let one = |s| is(s, 1.0);
    let zero = |s| is(s, 0.0);
    match op {
        Binary::Multiply if one(sb) => Some(a),
        Binary::Multiply if one(sa) => Some(b),
        Binary::Divide if one(sb) => Some(a),
        Binary::Subtract if zero(sb) => Some(a),
        Binary::Add if is(sb, -0.0) || (int && zero(sb)) => Some(a),
        Binary::Add if is(sa, -0.0) || (int && zero(sa)) => Some(b),
        Binary::Multiply if int && zero(sb) => Some(b),
        Binary::Multiply if int && zero(sa) => Some(a),
        Binary::Maximum | Binary::Minimum | Binary::And | Binary::Or if a == b => Some(a),
        Binary::And | Binary::Or if dtype == DType::Bool => {
            let keeps = |s: Option<Scalar>| s == Some(Scalar::Bool(op == Binary::And));
            if keeps(sa) { Some(b) } else { keeps(sb).then_some(a) }
        }
        _ => None,
    }
}

/// `(c − x) − d` of integers with constant c and d becomes `(c − d) − x`: JAX's way to count backward.
fn from_constant(g: &mut Rewriter, op: Binary, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let is_difference = |g: &Rewriter, v: ValueId| g.node(v).op == Op::Binary(Binary::Subtract);
    let ty = &node.outs[0];
    if op != Binary::Subtract || !ty.dtype.is_int() || ty.rank() > 0 || !is_difference(g, inputs[0]) {
        return None;
    }
    let (c, x) = (g.node(inputs[0]).inputs[0], g.node(inputs[0]).inputs[1]);
    let (c, d) = (constant(g, c)?.clone(), constant(g, inputs[1])?.clone());
    let rule = Op::Binary(Binary::Subtract);
    let value = rule.rule().eval(&mut EvalCx::default(), &[&c, &d], &node.outs).ok()?.into_iter().next()?;
    let from = g.push(Constant { value }, &[], node);
    Some(g.push(Binary::Subtract, &[from, x], node))
}

fn unary(g: &mut Rewriter, op: Unary, inputs: &[ValueId]) -> Option<ValueId> {
    let inner = g.node(inputs[0]);
    match (op, &inner.op) {
        (Unary::Negate, Op::Unary(Unary::Negate)) | (Unary::Not, Op::Unary(Unary::Not)) => {
            Some(inner.inputs[0])
        }
        (Unary::Abs, Op::Unary(Unary::Abs)) => Some(inputs[0]),
        _ => None,
    }
}

fn select(g: &mut Rewriter, inputs: &[ValueId]) -> Option<ValueId> {
    if inputs[1] == inputs[2] {
        return Some(inputs[1]);
    }
    splat(g, inputs[0]).map(|p| if p.as_bool() { inputs[1] } else { inputs[2] })
}

/// Whether converting `from` to `through` and back preserves every value.
fn widens(from: DType, through: DType) -> bool {
    use DType::*;
    match (from, through) {
        (Bool, _) => true,
        (F16 | BF16, F32 | F64) | (F32, F64) => true,
        (I8 | U8, F16) | (I8 | U8 | I16 | U16, F32) => true,
        (I8 | U8 | I16 | U16 | I32 | U32, F64) => true,
        (I8 | U8, BF16) => true,
        (a, b) if a.is_int() && b.is_int() => {
            b.bits() > a.bits() && (a.is_unsigned_int() || b.is_signed_int())
        }
        _ => false,
    }
}

fn moves(g: &mut Rewriter, op: &Op, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let x = *inputs.first()?;
    let same = *g.ty(x) == node.outs[0];
    let (inner_op, inner) = (g.node(x).op.clone(), g.node(x).inputs.first().copied());
    match (op, &inner_op, inner) {
        (Op::Convert(_) | Op::Reshape(_) | Op::BitcastConvert(_), ..) if same => Some(x),
        (Op::BroadcastInDim(b), ..) if same && b.dims.iter().copied().eq(0..b.dims.len()) => Some(x),
        (Op::Transpose(t), ..) if t.permutation.iter().copied().eq(0..t.permutation.len()) => Some(x),
        (Op::Slice(Slice { strides, .. }), ..) if same && strides.iter().all(|&s| s == 1) => Some(x),
        (Op::Pad(_), ..) if same && is_no_pad(op) => Some(x),
        (Op::Concatenate(_), ..) if inputs.len() == 1 => Some(x),
        (Op::Reverse(r), ..) if r.dims.iter().all(|&d| g.ty(x).shape[d] <= 1) => Some(x),
        (Op::Convert(c), Op::Convert(_), Some(y)) if widens(g.ty(y).dtype, g.ty(x).dtype) => {
            if g.ty(y).dtype == c.to { Some(y) } else { exact_convert(g, y, x, c, node) }
        }
        // A broadcast that only adds dimensions of size 1 has the same elements as its operand.
        (Op::DynamicUpdateSlice(d), ..) => {
            let entry = unit_broadcast(g, inputs[1], node)?;
            let inputs: SmallVec<[ValueId; 5]> =
                inputs.iter().enumerate().map(|(i, &v)| if i == 1 { entry } else { v }).collect();
            Some(g.push(*d, &inputs, node))
        }
        (Op::Reshape(_), Op::Reshape(_), Some(y)) if *g.ty(y) == node.outs[0] => Some(y),
        (Op::Reshape(r), Op::Reshape(_), Some(y)) => Some(g.push(r.clone(), &[y], node)),
        (Op::Reshape(r), Op::BroadcastInDim(_), Some(y)) if g.ty(y).rank() == 0 => {
            Some(g.push(BroadcastInDim { dims: Dims::new(), shape: r.shape.clone() }, &[y], node))
        }
        (Op::Transpose(t), Op::Transpose(u), Some(y)) => {
            let permutation: Dims = t.permutation.iter().map(|&d| u.permutation[d]).collect();
            Some(g.push(Transpose { permutation }, &[y], node))
        }
        (Op::Transpose(t), Op::DotGeneral(d), _) => transposed_dot(g, t, &d.clone(), x, node),
        (Op::Transpose(t), ..) if keeps_order(t, g.ty(x).shape.dims()) => {
            Some(g.push(Reshape { shape: node.outs[0].shape.clone() }, &[x], node))
        }
        (Op::BroadcastInDim(b), Op::BroadcastInDim(c), Some(y)) => {
            let dims: Dims = c.dims.iter().map(|&d| b.dims[d]).collect();
            // Dimensions that the inner broadcast expands and the outer one keeps are expanded by the merged one.
            Some(g.push(BroadcastInDim { dims, shape: b.shape.clone() }, &[y], node))
        }
        _ => None,
    }
}

/// Rewrites a broadcast to the same elements in the same order as a reshape.
fn unit_broadcast(g: &mut Rewriter, v: ValueId, node: &Node) -> Option<ValueId> {
    let Op::BroadcastInDim(b) = &g.node(v).op else { return None };
    let (x, shape) = (g.node(v).inputs[0], b.shape.clone());
    let is_moved = b.dims.is_sorted() && g.ty(x).elements() == g.ty(v).elements() && g.ty(x).rank() > 0;
    is_moved.then(|| g.push(Reshape { shape }, &[x], node))
}

/// `convert(convert(y))` through a type that holds every value of `y` becomes one conversion, if the result is the
/// same.
fn exact_convert(g: &mut Rewriter, y: ValueId, x: ValueId, c: &Convert, node: &Node) -> Option<ValueId> {
    // Conversion to bool is `!= 0`, and integers wrap where floats saturate.
    let (from, through) = (g.ty(y).dtype, g.ty(x).dtype);
    let alike = from.is_float() == through.is_float() && from != DType::Bool && through != DType::Bool;
    alike.then(|| g.push(*c, &[y], node))
}

fn is_no_pad(op: &Op) -> bool {
    let Op::Pad(p) = op else { return false };
    p.low.iter().chain(&p.high).all(|&v| v == 0) && p.interior.iter().all(|&v| v == 0)
}

/// Whether a transpose moves only dimensions of size 1, so that the element order stays.
fn keeps_order(t: &Transpose, dims: &[usize]) -> bool {
    let long: Vec<usize> = t.permutation.iter().copied().filter(|&d| dims[d] != 1).collect();
    long.is_sorted()
}

/// `transpose(dot(a, b))` that swaps the free dimensions of `a` and `b` becomes `dot(b, a)`. Backends take operands in
/// any dimension order, so this saves the transpose.
fn transposed_dot(
    g: &mut Rewriter,
    t: &Transpose,
    d: &DotGeneral,
    x: ValueId,
    node: &Node,
) -> Option<ValueId> {
    let (a, b) = (g.node(x).inputs[0], g.node(x).inputs[1]);
    let batch = d.lhs_batch.len();
    let rows = d.lhs_free(g.ty(a).rank()).len();
    let rank = t.permutation.len();
    let swapped = (0..batch).chain(batch + rows..rank).chain(batch..batch + rows);
    if !t.permutation.iter().copied().eq(swapped) {
        return None;
    }
    let op = DotGeneral {
        lhs_batch: d.rhs_batch.clone(),
        rhs_batch: d.lhs_batch.clone(),
        lhs_contract: d.rhs_contract.clone(),
        rhs_contract: d.lhs_contract.clone(),
        element_type: d.element_type,
    };
    Some(g.push(op, &[b, a], node))
}

/// A matrix that is contracted with a vector along its columns becomes the right operand, whose rows are then read in
/// place.
fn vector_first(g: &mut Rewriter, d: &DotGeneral, node: &Node, [a, b]: [ValueId; 2]) -> Option<ValueId> {
    let fits = g.ty(a).rank() == 2 && g.ty(b).rank() == 1 && d.lhs_contract[..] == [0];
    let (lhs_contract, rhs_contract) = (d.rhs_contract.clone(), d.lhs_contract.clone());
    fits.then(|| g.push(DotGeneral { lhs_contract, rhs_contract, ..d.clone() }, &[b, a], node))
}

/// A dot of a transposed operand contracts other dimensions of the untransposed operand instead.
fn dot(g: &mut Rewriter, d: &DotGeneral, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let untransposed = |g: &Rewriter, v: ValueId, free: Dims, batch: &Dims, contract: &Dims| {
        let Op::Transpose(t) = &g.node(v).op else { return None };
        let to = |dims: &Dims| -> Dims { dims.iter().map(|&k| t.permutation[k]).collect() };
        // The result needs the free dimensions in the same order as before.
        to(&free).is_sorted().then(|| (g.node(v).inputs[0], to(batch), to(contract)))
    };
    let (a, b) = (inputs[0], inputs[1]);
    let lhs = untransposed(g, a, d.lhs_free(g.ty(a).rank()), &d.lhs_batch, &d.lhs_contract);
    let rhs = untransposed(g, b, d.rhs_free(g.ty(b).rank()), &d.rhs_batch, &d.rhs_contract);
    if lhs.is_none() && rhs.is_none() {
        return vector_first(g, d, node, [a, b]);
    }
    let (a, lhs_batch, lhs_contract) = lhs.unwrap_or((a, d.lhs_batch.clone(), d.lhs_contract.clone()));
    let (b, rhs_batch, rhs_contract) = rhs.unwrap_or((b, d.rhs_batch.clone(), d.rhs_contract.clone()));
    let op = DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, element_type: d.element_type };
    Some(g.push(op, &[a, b], node))
}
