//! Computes batch variances from per-sample variances (two-level moments).
//!
//! The direct form, the mean of `(x − m)²`, reads the whole array twice and needs the batch mean `m` in between. The
//! squared distances from a sample's own mean `mᵢ` need only that sample. They are summed while the sample is in cache,
//! in the convolution that computes it or in its row block. The combination over `P` positions per sample is `Σ (x −
//! m)² = Σᵢ (Σₚ (xᵢₚ − mᵢ)² + P · (mᵢ − m)²)` (Chan, Golub and LeVeque 1979). It is as accurate as the means, which are
//! rounded to the element type.

use crate::graph::rewrite::{NodeLookup, Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::{HashMap, HashSet};
use systole_ir::op::{Binary, BroadcastInDim, Monoid, Reduce};
use systole_ir::{DType, Dims, Graph, Node, Op, ValueId};

/// Computes batch variances from per-sample variances.
pub fn run(graph: &Graph) -> Graph {
    let found: HashMap<usize, usize> = (0..graph.nodes.len())
        .filter_map(|i| squares_around_mean(graph, i).map(|first| (i, first)))
        .collect();
    let firsts: HashSet<usize> = found.values().copied().collect();
    // Per-sample sums, by the old node that sums over samples and positions.
    let mut sums: HashMap<usize, ValueId> = HashMap::new();
    rebuild(graph, |g, i, node, inputs| {
        if firsts.contains(&i) {
            let each = over_positions(g, inputs[0], node);
            sums.insert(i, each);
            return Some(smallvec![over_samples(g, each, node)]);
        }
        let &each = sums.get(found.get(&i)?)?;
        let centred = g.node(g.node(inputs[0]).inputs[0]);
        let (x, mean) = (centred.inputs[0], g.node(centred.inputs[1]).inputs[0]);
        Some(smallvec![squares(g, x, each, mean, node)])
    })
}

/// `Σ (x − mean)²` from per-sample moments; `each` holds the per-sample sums of `x`.
fn squares(g: &mut Rewriter, x: ValueId, each: ValueId, mean: ValueId, like: &Node) -> ValueId {
    let (shape, last) = (g.ty(x).shape.clone(), g.ty(x).rank() - 1);
    let positions = shape[1..last].iter().product::<usize>() as f64;
    let broadcast = |g: &mut Rewriter, v: ValueId, to: ValueId, dims: &[usize]| {
        let shape = g.ty(to).shape.clone();
        g.push(BroadcastInDim { dims: dims.into(), shape }, &[v], like)
    };
    let scaled = |g: &mut Rewriter, v: ValueId, by: f64| {
        let ty = g.ty(v).clone();
        let by = g.full(&ty, by, like);
        g.push(Binary::Multiply, &[v, by], like)
    };
    let squared_distance = |g: &mut Rewriter, a: ValueId, b: ValueId| {
        let d = g.push(Binary::Subtract, &[a, b], like);
        g.push(Binary::Multiply, &[d, d], like)
    };
    let own = scaled(g, each, 1.0 / positions);
    let own_broadcast = broadcast(g, own, x, &[0, last]);
    let within = squared_distance(g, x, own_broadcast);
    let within = over_positions(g, within, like);
    let mean = broadcast(g, mean, own, &[1]);
    let between = squared_distance(g, own, mean);
    let between = scaled(g, between, positions);
    let all = g.push(Binary::Add, &[within, between], like);
    over_samples(g, all, like)
}

fn over_positions(g: &mut Rewriter, x: ValueId, like: &Node) -> ValueId {
    let dims = (1..g.ty(x).rank() - 1).collect();
    sum(g, x, dims, like)
}

fn over_samples(g: &mut Rewriter, x: ValueId, like: &Node) -> ValueId {
    sum(g, x, smallvec![0], like)
}

fn sum(g: &mut Rewriter, x: ValueId, dims: Dims, like: &Node) -> ValueId {
    let dtype = g.ty(x).dtype;
    let zero = g.scalar(dtype, 0.0, like);
    g.push(Reduce { dims, body: Monoid::Add.body(dtype) }, &[x, zero], like)
}

/// The operand of a node that is a plain sum over all dimensions but the last, of f32 or f64, with more than one sample
/// and more than one position.
fn sum_of(graph: &Graph, i: usize) -> Option<ValueId> {
    let node = &graph.nodes[i];
    let Op::Reduce(op) = &node.op else { return None };
    let &[x, init] = &node.inputs[..] else { return None };
    let ty = graph.ty(x);
    let from_zero = matches!(&graph.node(init).op, Op::Constant(c) if c.value.get(0).as_f64() == 0.0);
    let fits = from_zero
        && matches!(ty.dtype, DType::F32 | DType::F64)
        && Monoid::of(&op.body) == Some(Monoid::Add)
        && ty.rank() > 2
        && op.dims.iter().copied().eq(0..ty.rank() - 1)
        && ty.shape[0] > 1
        && ty.shape[1..ty.rank() - 1].iter().product::<usize>() > 1;
    fits.then_some(x)
}

/// If node `i` is a sum of `(x − mean)²`, the node that sums the same `x` for the mean.
fn squares_around_mean(graph: &Graph, i: usize) -> Option<usize> {
    let square = graph.node(sum_of(graph, i)?);
    let &[a, b] = &square.inputs[..] else { return None };
    let centred = graph.node(a);
    let &[x, broadcast] = &centred.inputs[..] else { return None };
    let Op::BroadcastInDim(repeated) = &graph.node(broadcast).op else { return None };
    let fits = a == b
        && square.op == Op::Binary(Binary::Multiply)
        && centred.op == Op::Binary(Binary::Subtract)
        && repeated.dims[..] == [graph.ty(x).rank() - 1];
    let mean = graph.node(graph.node(broadcast).inputs[0]);
    let &[s, share] = &mean.inputs[..] else { return None };
    let count = graph.ty(x).elements() as f64 / graph.ty(s).elements() as f64;
    let is_share = |v| graph.splat(v).is_some_and(|share| (share * count - 1.0).abs() < 1e-6);
    (fits
        && mean.op == Op::Binary(Binary::Multiply)
        && is_share(share)
        && sum_of(graph, s.index()) == Some(x))
    .then_some(s.index())
}
