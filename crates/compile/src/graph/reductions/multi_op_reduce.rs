//! Rewrites reductions with multi-op bodies as a tree of element-wise ops: each level combines neighbors, all pairs at
//! once.
//!
//! Elements keep their order and are grouped as a tree, as the specification of `reduce` allows.

use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::SmallVec;
use systole_ir::op::{BroadcastInDim, LoweringClass, Monoid, Reduce, Reshape, Slice, Transpose};
use systole_ir::{Graph, Node, Op, ValueId};

/// Minimum number of elements per result; with fewer, the general kernel is as fast.
const FEW: usize = 16;
/// Minimum number of elements of an operand; with fewer, the general kernel is as fast.
const SMALL: usize = 1 << 12;

/// Rewrites reductions with multi-op bodies as trees of element-wise ops.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::Reduce(reduce) = &node.op else { return None };
        let x = g.ty(*inputs.first()?);
        let folded: usize = reduce.dims.iter().map(|&d| x.shape[d]).product();
        let is_large = folded >= FEW && x.elements() >= SMALL;
        (is_large && Monoid::of(&reduce.body).is_none() && is_element_wise(&reduce.body))
            .then(|| fold(g, reduce, node, inputs))
    })
}

fn is_element_wise(body: &Graph) -> bool {
    body.nodes.iter().all(|n| {
        matches!(n.op, Op::Parameter(_) | Op::Constant(_))
            || n.op.rule().lower() == LoweringClass::Map && n.outs.len() == 1
    })
}

fn fold(g: &mut Rewriter, reduce: &Reduce, node: &Node, inputs: &[ValueId]) -> NodeResults {
    let (operands, inits) = inputs.split_at(inputs.len() / 2);
    let mut rows: Vec<ValueId> = operands.iter().map(|&x| as_rows(g, x, reduce, node)).collect();
    // Combined rows that had no neighbor; they come after all others.
    let mut last: Option<Vec<ValueId>> = None;
    loop {
        let count = g.ty(rows[0]).shape[0];
        if count == 1 {
            break;
        }
        let even = count / 2 * 2;
        if even < count {
            let alone: Vec<ValueId> = rows.iter().map(|&x| slice(g, x, [even, count, 1], node)).collect();
            last = Some(match last {
                Some(last) => combine(g, &reduce.body, &alone, &last, node),
                None => alone,
            });
        }
        let left: Vec<ValueId> = rows.iter().map(|&x| slice(g, x, [0, even, 2], node)).collect();
        let right: Vec<ValueId> = rows.iter().map(|&x| slice(g, x, [1, even, 2], node)).collect();
        rows = combine(g, &reduce.body, &left, &right, node);
    }
    if let Some(last) = last {
        rows = combine(g, &reduce.body, &rows, &last, node);
    }
    let shape = g.ty(rows[0]).shape.clone();
    let spread = |g: &mut Rewriter, &x: &ValueId| {
        g.push(BroadcastInDim { dims: Default::default(), shape: shape.clone() }, &[x], node)
    };
    let inits: Vec<ValueId> = inits.iter().map(|init| spread(g, init)).collect();
    let all = combine(g, &reduce.body, &inits, &rows, node);
    let shaped = |(x, out): (ValueId, &systole_ir::TensorType)| {
        g.push(Reshape { shape: out.shape.clone() }, &[x], node)
    };
    all.into_iter().zip(&node.outs).map(shaped).collect()
}

/// `x: T[…] → T[N, K]`: the N elements that are reduced, in order, for each of the K results.
fn as_rows(g: &mut Rewriter, x: ValueId, reduce: &Reduce, node: &Node) -> ValueId {
    let shape = g.ty(x).shape.clone();
    let mut dims: SmallVec<[usize; 6]> = reduce.dims.iter().copied().collect();
    dims.sort_unstable();
    let kept = (0..shape.rank()).filter(|d| !reduce.dims.contains(d));
    let permutation = dims.iter().copied().chain(kept).collect();
    let folded: usize = dims.iter().map(|&d| shape[d]).product();
    let moved = g.push(Transpose { permutation }, &[x], node);
    g.push(Reshape { shape: [folded, shape.elements() / folded.max(1)].into() }, &[moved], node)
}

/// Rows `from`, `from + step`, … below `to`.
fn slice(g: &mut Rewriter, x: ValueId, [from, to, step]: [usize; 3], node: &Node) -> ValueId {
    let columns = g.ty(x).shape[1];
    let slice = Slice {
        start: [from, 0].into_iter().collect(),
        limit: [to, columns].into_iter().collect(),
        strides: [step, 1].into_iter().collect(),
    };
    g.push(slice, &[x], node)
}

/// Applies the body to arrays; `left` are the values of its first parameters.
fn combine(g: &mut Rewriter, body: &Graph, left: &[ValueId], right: &[ValueId], like: &Node) -> Vec<ValueId> {
    let shape = g.ty(left[0]).shape.clone();
    let given: Vec<Option<ValueId>> = left.iter().chain(right).copied().map(Some).collect();
    g.on_arrays(body, &given, &body.results, &shape, like)
}
