//! Splits argmax and argmin, written as a reduction with a multi-op body, into two plain reductions: the maximum (or
//! minimum), then the first index that has it.
//!
//! If a row contains NaN, the result is the index of the first NaN. This is the body that JAX emits for `argmax` and
//! `argmin`.

use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::smallvec;
use systole_ir::op::{
    Binary, BroadcastInDim, Compare, CompareType, Constant, Direction, Monoid, Reduce, Select,
};
use systole_ir::{DType, Graph, Literal, Node, Op, Scalar, TensorType, ValueId};

/// Splits argmax and argmin reductions into two plain reductions.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.nodes.iter().flat_map(|n| &n.inputs).chain(&graph.results);
    let read: std::collections::HashSet<ValueId> = uses.copied().collect();
    rebuild(graph, |g, i, node, inputs| {
        let Op::Reduce(reduce) = &node.op else { return None };
        let &[x, place, init, first] = inputs else { return None };
        let &[dim] = &reduce.dims[..] else { return None };
        let extreme = extreme_of(&reduce.body)?;
        let fits = !read.contains(&ValueId::new(i, 0))
            && g.ty(x).shape[dim] > 0
            && counts(g, place, dim)
            && is_splat(g, init, extreme.identity(g.ty(x).dtype))
            && is_splat(g, first, Scalar::of(g.ty(place).dtype, 0.0));
        fits.then(|| two_folds(g, reduce, extreme, [x, place, init], node))
    })
}

/// Whether the body computes argmax or argmin; returns the plain reduction. Its parameters are value and index of the
/// accumulator, then of another element.
fn extreme_of(body: &Graph) -> Option<Monoid> {
    let &[_, picked] = &body.results[..] else { return None };
    let parameter = |v: ValueId| match &body.node(v).op {
        Op::Parameter(p) => Some(p.index),
        _ => None,
    };
    let compared = |v: ValueId, [p, q]: [usize; 2]| match &body.node(v).op {
        Op::Compare(c) if c.compare_type != CompareType::TotalOrder => {
            let inputs = &body.node(v).inputs;
            (parameter(inputs[0]) == Some(p) && parameter(inputs[1]) == Some(q)).then_some(c.direction)
        }
        _ => None,
    };
    let both = |v: ValueId, op: Binary| match &body.node(v).op {
        Op::Binary(b) if *b == op => Some([body.node(v).inputs[0], body.node(v).inputs[1]]),
        _ => None,
    };
    let select = body.node(picked);
    let chooses = matches!(select.op, Op::Select(_))
        && parameter(select.inputs[1]) == Some(1)
        && parameter(select.inputs[2]) == Some(3);
    chooses.then_some(())?;
    // (a above b, or a is NaN), or (a equal to b, and its index before b's).
    let [better, tied] = both(select.inputs[0], Binary::Or)?;
    let [equal, before] = both(tied, Binary::And)?;
    let [above, is_nan] = both(better, Binary::Or)?;
    let fits = compared(equal, [0, 2]) == Some(Direction::Eq)
        && compared(before, [1, 3]) == Some(Direction::Lt)
        && compared(is_nan, [0, 0]) == Some(Direction::Ne);
    match compared(above, [0, 2])? {
        Direction::Gt if fits => Some(Monoid::Maximum),
        Direction::Lt if fits => Some(Monoid::Minimum),
        _ => None,
    }
}

/// Whether an array holds the index of each element along a dimension.
fn counts(g: &Rewriter, v: ValueId, dim: usize) -> bool {
    let node = g.node(v);
    match &node.op {
        Op::Iota(iota) => iota.dim == dim && iota.ty.dtype.is_int(),
        Op::BroadcastInDim(b) => {
            let from = g.ty(node.inputs[0]);
            let place = b.dims.iter().position(|&d| d == dim);
            place.is_some_and(|d| from.shape[d] == b.shape[dim] && counts(g, node.inputs[0], d))
        }
        _ => false,
    }
}

fn is_splat(g: &Rewriter, v: ValueId, value: Scalar) -> bool {
    matches!(&g.node(v).op, Op::Constant(c) if c.value.is_splat() && c.value.get(0) == value)
}

fn two_folds(
    g: &mut Rewriter,
    reduce: &Reduce,
    extreme: Monoid,
    [x, place, init]: [ValueId; 3],
    node: &Node,
) -> NodeResults {
    let ty = g.ty(x).clone();
    let body = extreme.body(ty.dtype);
    let most = g.push(Reduce { body, ..reduce.clone() }, &[x, init], node);
    let dims = (0..ty.rank()).filter(|d| !reduce.dims.contains(d)).collect();
    let wide = g.push(BroadcastInDim { dims, shape: ty.shape.clone() }, &[most], node);
    let compare = |direction| Compare { direction, compare_type: CompareType::of(ty.dtype) };
    let mut is_it = g.push(compare(Direction::Eq), &[x, wide], node);
    if ty.dtype.is_float() {
        // The maximum of a row with NaN is NaN, which equals nothing.
        let is_nan = g.push(compare(Direction::Ne), &[x, x], node);
        is_it = g.push(Op::Binary(Binary::Or), &[is_it, is_nan], node);
    }
    let places = g.ty(place).dtype;
    let last = constant(g, places, places.highest(), node);
    let none = g.push(BroadcastInDim { dims: Default::default(), shape: ty.shape.clone() }, &[last], node);
    let candidates = g.push(Select, &[is_it, place, none], node);
    let body = Monoid::Minimum.body(places);
    let first = g.push(Reduce { body, ..reduce.clone() }, &[candidates, last], node);
    smallvec![most, first]
}

fn constant(g: &mut Rewriter, dtype: DType, value: Scalar, like: &Node) -> ValueId {
    let value = Literal::splat(TensorType::scalar(dtype), value);
    g.push(Constant { value }, &[], like)
}
