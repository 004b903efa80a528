//! Rewrites a sum of zero-padded pieces as a concatenation, and `x` + scatter onto zeros as a scatter onto `x`.
//!
//! The gradient of slicing is a sum of zero-padded pieces. If the pieces tile the array without overlap, the sum is
//! their concatenation (which keeps a −0 that adding zeros would turn into +0). The gradient of an embedding lookup is
//! a scatter-add of rows onto zeros. If this is added to another array, the rows are scattered onto that array instead.

use crate::graph::rewrite::{NodeLookup, Rewriter, rebuild};
use smallvec::smallvec;
use systole_ir::op::{Binary, Concatenate, Monoid};
use systole_ir::{Graph, Op, ValueId};

/// Maximum number of pieces of one sum.
const MAX_PIECES: usize = 32;

/// A range `from..to` along one dimension of the sum.
struct PaddedPiece {
    value: ValueId,
    dim: usize,
    from: usize,
    to: usize,
}

/// Rewrites sums of zero-padded pieces as concatenations or scatters.
pub fn run(graph: &Graph) -> Graph {
    let uses = graph.use_counts();
    rebuild(graph, |g, _, node, inputs| {
        if node.op != Op::Binary(Binary::Add) {
            return None;
        }
        let alone = |k: usize| uses[node.inputs[k].index()] == 1;
        for (k, other) in [(0, 1), (1, 0)] {
            if alone(k)
                && let Some(sum) = scattered_onto(g, inputs[k], inputs[other])
            {
                return Some(smallvec![sum]);
            }
        }
        let mut pieces = Vec::new();
        for &v in inputs {
            collect(g, v, &mut pieces)?;
        }
        pieces.sort_by_key(|p| p.from);
        let dim = pieces[0].dim;
        let size = node.outs[0].shape[dim];
        let fills = pieces.iter().all(|p| p.dim == dim)
            && pieces.windows(2).all(|pair| pair[0].to == pair[1].from)
            && (pieces[0].from, pieces[pieces.len() - 1].to) == (0, size);
        let values: Vec<ValueId> = pieces.iter().map(|p| p.value).collect();
        fills.then(|| smallvec![g.push(Concatenate { dim }, &values, node)])
    })
}

/// `x + v`, where `v` is a scatter-add onto zeros, as a scatter-add onto `x`.
fn scattered_onto(g: &mut Rewriter, v: ValueId, x: ValueId) -> Option<ValueId> {
    let node = g.node(v).clone();
    let Op::Scatter(s) = &node.op else { return None };
    let &[zeros, indices, updates] = &node.inputs[..] else { return None };
    let adds = Monoid::of(&s.body) == Some(Monoid::Add) && g.ty(v).dtype.is_float();
    (adds && g.is_zero(zeros)).then(|| g.push(s.clone(), &[x, indices, updates], &node))
}

/// Appends the pieces of a sum; `None` if it has other terms.
fn collect(g: &Rewriter, v: ValueId, pieces: &mut Vec<PaddedPiece>) -> Option<()> {
    let node = g.node(v);
    match &node.op {
        Op::Binary(Binary::Add) => node.inputs.iter().try_for_each(|&x| collect(g, x, pieces)),
        Op::Pad(p) if pieces.len() < MAX_PIECES => {
            let zero = g.is_zero(node.inputs[1]);
            let dims = 0..p.low.len();
            let padded: Vec<usize> = dims.filter(|&d| p.low[d] != 0 || p.high[d] != 0).collect();
            let plain = p.interior.iter().all(|&i| i == 0) && p.low.iter().chain(&p.high).all(|&n| n >= 0);
            let (&[dim], true) = (&padded[..], zero && plain) else { return None };
            let (value, from) = (node.inputs[0], p.low[dim] as usize);
            let to = from + g.ty(value).shape[dim];
            pieces.push(PaddedPiece { value, dim, from, to });
            Some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use systole_ir::DType::{F32, I32};
    use systole_ir::{GraphBuilder, Op, Tensor, TensorType, grad};

    #[test]
    fn the_derivative_of_slices_joins_what_they_are_of() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [3, 8]), "x");
        let part = |from: usize, to: usize| x.slice_dim(1, from, to);
        let parts = [part(2, 3).exp(), part(0, 2).tanh(), part(3, 8).sine()];
        let y = parts.iter().map(Tensor::sum_all).reduce(|a, b| a + b).unwrap();
        let dx = grad(&y, &[&x]);
        let (graph, _) = crate::optimize(&g.finish(&dx).unwrap()).unwrap();
        let count = |what: fn(&Op) -> bool| graph.nodes.iter().filter(|n| what(&n.op)).count();
        assert_eq!(count(|op| matches!(op, Op::Concatenate(_))), 1);
        assert_eq!(count(|op| matches!(op, Op::Pad(_))), 0);
        let y = part(0, 5).sum_all() + part(2, 8).exp().sum_all();
        let (graph, _) = crate::optimize(&g.finish(&grad(&y, &[&x])).unwrap()).unwrap();
        assert!(graph.nodes.iter().any(|n| matches!(n.op, Op::Pad(_))), "the pieces overlap");
    }

    #[test]
    fn sums_of_cut_values_stay() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [8]), "x");
        let y = g.parameter(TensorType::new(F32, [6]), "y");
        let zero = g.constant(systole_ir::Literal::from_slice([], &[0f32]).unwrap());
        let cut = x.pad(&zero, &[-2], &[0], &[0]) + y.exp().pad(&zero, &[-1], &[1], &[0]);
        let (graph, _) = crate::optimize(&g.finish(&[cut]).unwrap()).unwrap();
        assert!(!graph.nodes.iter().any(|n| matches!(n.op, Op::Concatenate(_))));
    }

    #[test]
    fn a_table_that_is_looked_up_and_multiplied_gets_one_gradient_in_place() {
        let g = GraphBuilder::new("main");
        let table = g.parameter(TensorType::new(F32, [50, 8]), "table");
        let tokens = g.parameter(TensorType::new(I32, [6]), "tokens");
        let logits = table.take(&tokens).dot_general(&table, &[], &[], &[1], &[1]);
        let (graph, _) =
            crate::optimize(&g.finish(&grad(&logits.sine().sum_all(), &[&table])).unwrap()).unwrap();
        let s = crate::schedule(&graph, &crate::PipelineOptions::default()).unwrap();
        let rows = s.steps.iter().find(|step| step.kernel.name() == "scatter").unwrap();
        assert_eq!(rows.input_types[0].shape.dims(), [50, 8]);
        let onto = s.steps.iter().find(|step| step.outputs.contains(&rows.inputs[0])).unwrap();
        assert_eq!(onto.kernel.name(), "dot_general", "{s}");
    }
}
