//! The greatest or least element and its place, which programs write as one reduction of pairs: a body of comparisons picks
//! one of two values and one of two places. The same is two reductions by one op each: the extreme, then the first (or
//! last) place where it stands. What a body picks is told by asking it, so that its form does not matter.

use super::folds::combine;
use super::rewrite::{Rewriter, Values, rebuild};
use smallvec::SmallVec;
use systole_ir::interp::EvalCx;
use systole_ir::op::{
    Binary, BroadcastInDim, Compare, CompareType, Constant, Direction, Iota, Monoid, Reduce, Reshape, Select,
};
use systole_ir::{DType, Graph, Literal, Node, Op, Scalar, TensorType, ValueId};

/// Elements that are folded into one result below which the general kernel is as fast.
const FEW: usize = 4;

/// What a body picks of two pairs of which the left one has the lower place. A NaN is taken before any number.
#[derive(Clone, Copy)]
struct Pick {
    /// Whether the greater value.
    greatest: bool,
    /// Of equal ones the left, else the right.
    first: bool,
}

/// Entry point of the pass.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::Reduce(reduce) = &node.op else { return None };
        let &[x, places, _, _] = inputs else { return None };
        let &[dim] = &reduce.dims[..] else { return None };
        let ty = g.ty(x).clone();
        let fits = ty.shape[dim] >= FEW && counts(g, places, dim) && i32::try_from(ty.shape[dim]).is_ok();
        let pick = fits.then(|| Pick::of(&reduce.body)).flatten()?;
        Some(two_folds(g, reduce, node, inputs, pick))
    })
}

/// Whether a value is the number of each element along a dimension.
fn counts(g: &Rewriter, v: ValueId, dim: usize) -> bool {
    let node = g.node(v);
    match &node.op {
        Op::Iota(iota) => iota.dim == dim && matches!(iota.ty.dtype, DType::I32 | DType::U32 | DType::I64),
        Op::BroadcastInDim(b) => {
            let from = b.dims.iter().position(|&d| d == dim);
            from.is_some_and(|from| {
                let whole = g.ty(node.inputs[0]).shape[from] == g.ty(v).shape[dim];
                whole && counts(g, node.inputs[0], from)
            })
        }
        Op::Reshape(_) => {
            // Sizes of one may have come or gone, where only one other is left.
            let size = g.ty(v).shape[dim];
            let from = g.ty(node.inputs[0]);
            let is_line = g.ty(v).elements() == size && from.elements() == size;
            let at = from.shape.iter().position(|&n| n == size);
            is_line && at.is_some_and(|at| counts(g, node.inputs[0], at))
        }
        _ => false,
    }
}

impl Pick {
    /// `None`: the body does something else.
    fn of(body: &Graph) -> Option<Pick> {
        let value = body.ty(*body.params.first()?).dtype;
        let place = body.ty(*body.params.get(1)?).dtype;
        if body.params.len() != 4 || body.results.len() != 2 || !Pick::compares_only(body) {
            return None;
        }
        let mut cx = EvalCx::default();
        // Whether the left one is picked; `None`: value and place are not of one pair.
        let mut left = |a: f64, b: f64| {
            let of = |v: f64| Scalar::of(value, v);
            let (low, high) = (Scalar::of(place, 40.0), Scalar::of(place, 70.0));
            let picked = cx.run_scalars(body, &[of(a), low, of(b), high]).ok()?;
            let bits = |s: Scalar, d: DType| s.to_bits(d);
            let is_left = bits(picked[1], place) == bits(low, place);
            let is_right = bits(picked[1], place) == bits(high, place);
            let wanted = of(if is_left { a } else { b });
            let same = bits(picked[0], value) == bits(wanted, value)
                || wanted.as_f64().is_nan() && picked[0].as_f64().is_nan();
            ((is_left || is_right) && same).then_some(is_left)
        };
        let (greater, less, equal) = (left(2.0, 1.0)?, left(1.0, 2.0)?, left(1.0, 1.0)?);
        if greater == less {
            return None;
        }
        if value.is_float() {
            let nan = f64::NAN;
            if !left(nan, 1.0)? || left(1.0, nan)? || left(nan, nan)? != equal {
                return None;
            }
        }
        Some(Pick { greatest: greater, first: equal })
    }

    /// Whether the body only compares values with values and places with places, and selects: then few examples tell all.
    fn compares_only(body: &Graph) -> bool {
        let param = |v: &ValueId| body.params.iter().position(|p| p == v);
        body.nodes.iter().all(|n| match &n.op {
            Op::Parameter(_) | Op::Select(_) => true,
            Op::Compare(c) => {
                let sides: Option<Vec<usize>> = n.inputs.iter().map(param).collect();
                c.compare_type != CompareType::TotalOrder && sides.is_some_and(|s| s[0] % 2 == s[1] % 2)
            }
            Op::Binary(Binary::And | Binary::Or | Binary::Xor) => n.outs[0].dtype == DType::Bool,
            Op::Unary(op) => n.outs[0].dtype == DType::Bool && *op == systole_ir::op::Unary::Not,
            _ => false,
        })
    }
}

/// The extreme, the place where it stands, and both with the initial values.
fn two_folds(g: &mut Rewriter, reduce: &Reduce, node: &Node, inputs: &[ValueId], pick: Pick) -> Values {
    let (x, dim) = (inputs[0], reduce.dims[0]);
    let (ty, place) = (g.ty(x).clone(), g.ty(inputs[1]).dtype);
    let monoid = if pick.greatest { Monoid::Maximum } else { Monoid::Minimum };
    let best = fold(g, x, dim, monoid, node);
    let kept: SmallVec<[usize; 6]> = (0..ty.rank()).filter(|&d| d != dim).collect();
    let spread = BroadcastInDim { dims: kept.into_iter().collect(), shape: ty.shape.clone() };
    let best_of_line = g.push(spread, &[best], node);
    let compare = |direction| Compare { direction, compare_type: CompareType::of(ty.dtype) };
    let mut hit = g.push(compare(Direction::Eq), &[x, best_of_line], node);
    if ty.dtype.is_float() {
        let nan = g.push(compare(Direction::Ne), &[x, x], node);
        hit = g.push(Op::Binary(Binary::Or), &[hit, nan], node);
    }
    let places = g.push(Iota { dim, ty: ty.with_dtype(DType::I32) }, &[], node);
    let monoid = if pick.first { Monoid::Minimum } else { Monoid::Maximum };
    let none = constant(g, monoid.identity(DType::I32), DType::I32, node);
    let none = g.push(BroadcastInDim { dims: Default::default(), shape: ty.shape.clone() }, &[none], node);
    let hits = g.push(Select, &[hit, places, none], node);
    let at = fold(g, hits, dim, monoid, node);
    let at =
        if place == DType::I32 { at } else { g.push(systole_ir::op::Convert { to: place }, &[at], node) };
    let shape = g.ty(best).shape.clone();
    let init = |g: &mut Rewriter, v: ValueId| {
        g.push(BroadcastInDim { dims: Default::default(), shape: shape.clone() }, &[v], node)
    };
    let inits = [init(g, inputs[2]), init(g, inputs[3])];
    let all = combine(g, &reduce.body, &inits, &[best, at], node);
    let shaped = |(v, out): (ValueId, &TensorType)| g.push(Reshape { shape: out.shape.clone() }, &[v], node);
    all.into_iter().zip(&node.outs).map(shaped).collect()
}

fn fold(g: &mut Rewriter, x: ValueId, dim: usize, monoid: Monoid, like: &Node) -> ValueId {
    let dtype = g.ty(x).dtype;
    let identity = constant(g, monoid.identity(dtype), dtype, like);
    g.push(Reduce { dims: [dim].into_iter().collect(), body: monoid.body(dtype) }, &[x, identity], like)
}

fn constant(g: &mut Rewriter, value: Scalar, dtype: DType, like: &Node) -> ValueId {
    let value = Literal::splat(TensorType::scalar(dtype), value);
    g.push(Constant { value }, &[], like)
}
