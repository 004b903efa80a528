//! Slice propagation: moves slices from the results of element-wise ops to their operands.
//!
//! If only slices of an element-wise value are used, such as the gates of a recurrent layer that were computed
//! together, each slice is computed from slices of the operands. The lowering makes these strided loads of the
//! element-wise programs (see `lower/grouping.rs`), so that no array is needed for them, and the computation fuses with
//! the users of each slice.

use crate::graph::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{BroadcastInDim, Constant, LoweringClass, Slice};
use systole_ir::{Dims, Graph, Literal, Node, Op, Shape, TensorType, ValueId};

/// Minimum contiguous run in elements for a slice to be read in place: element-wise programs loop over rows, and the
/// overhead of a row is about the cost of some dozens of elements.
pub const RUN: usize = 128;

/// Whether element-wise programs read a slice of `x` in place, with strides and an offset.
pub fn is_read_in_place(s: &Slice, x: &TensorType) -> bool {
    let sizes = || s.start.iter().zip(&s.limit).map(|(a, b)| b - a);
    let cut = |d: usize| s.limit[d] - s.start[d] < x.shape[d];
    let Some(last) = (0..x.rank()).rev().find(|&d| cut(d)) else { return false };
    s.strides.iter().all(|&step| step == 1) && sizes().skip(last).product::<usize>() >= RUN
}

/// Start and limit of a slice in each dimension.
type SliceBounds = (Dims, Dims);

/// Moves slices from the results of element-wise ops to their operands.
pub fn run(graph: &Graph) -> Graph {
    let cut = nodes_to_cut(graph);
    if cut.iter().all(|ranges| !ranges) {
        return graph.clone();
    }
    let mut cutting = SlicePropagation { graph, cut, inputs: HashMap::new(), made: HashMap::new() };
    let new = rebuild(graph, |g, i, node, inputs| {
        if cutting.cut[i] {
            cutting.inputs.insert(i, inputs.to_vec());
        }
        let Op::Slice(s) = &node.op else { return None };
        let x = node.inputs[0].index();
        cutting.cut[x].then(|| smallvec![cutting.part(g, x, &(s.start.clone(), s.limit.clone()))])
    });
    crate::graph::canonicalize::dead_code::run(&new)
}

/// The element-wise nodes to compute slice by slice: only slices of them are used, and these have no more elements in
/// total than the node itself.
fn nodes_to_cut(graph: &Graph) -> Vec<bool> {
    let mut blocked = vec![false; graph.nodes.len()];
    loop {
        let cut = wanted_slices(graph, &blocked);
        // An element-wise operand fuses with its user, so either both are sliced or neither.
        let apart = |node: &Node| {
            let operands = node.inputs.iter().filter(|&&v| graph.ty(v).rank() > 0);
            operands.map(|v| v.index()).any(|x| !cut[x] && is_map(graph, &graph.nodes[x]))
        };
        let wrong: Vec<usize> = (0..cut.len()).filter(|&i| cut[i] && apart(&graph.nodes[i])).collect();
        if wrong.is_empty() {
            return cut;
        }
        wrong.into_iter().for_each(|i| blocked[i] = true);
    }
}

/// Element-wise nodes of which only slices are used, except those in `blocked`.
fn wanted_slices(graph: &Graph, blocked: &[bool]) -> Vec<bool> {
    // For each node the slices that are used; `None` means all of it.
    let mut wanted: Vec<Option<Vec<SliceBounds>>> = vec![Some(Vec::new()); graph.nodes.len()];
    graph.results.iter().for_each(|r| wanted[r.index()] = None);
    let mut cut = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let ranges = wanted[i].take().unwrap_or_default();
        let elements =
            |(start, limit): &SliceBounds| start.iter().zip(limit).map(|(a, b)| b - a).product::<usize>();
        cut[i] = !blocked[i]
            && !ranges.is_empty()
            && is_map(graph, node)
            && ranges.iter().map(elements).sum::<usize>() <= node.outs[0].elements();
        for &v in &node.inputs {
            let whole = graph.ty(v).rank() == 0 || v.out != 0;
            let more = match &node.op {
                Op::Slice(s) if is_read_in_place(s, graph.ty(v)) => vec![(s.start.clone(), s.limit.clone())],
                _ if cut[i] && !whole => ranges.clone(),
                _ => {
                    wanted[v.index()] = None;
                    continue;
                }
            };
            if let Some(all) = &mut wanted[v.index()] {
                all.extend(more.into_iter().filter(|r| !all.contains(r)).collect::<Vec<_>>());
            }
        }
    }
    cut
}

/// Whether each element depends only on the same element of the operands, and on scalars.
fn is_map(graph: &Graph, node: &Node) -> bool {
    let alike = |&v: &ValueId| graph.ty(v).rank() == 0 || graph.ty(v).shape == node.outs[0].shape;
    node.op.rule().lower() == LoweringClass::Map
        && node.outs.len() == 1
        && !node.inputs.is_empty()
        && node.inputs.iter().all(alike)
}

struct SlicePropagation<'g> {
    graph: &'g Graph,
    /// The nodes that are computed slice by slice.
    cut: Vec<bool>,
    /// New operands of these nodes.
    inputs: HashMap<usize, Vec<ValueId>>,
    /// Slices made so far: of an old node that is computed by slices (`Ok`), or of a new value (`Err`).
    made: HashMap<(Result<usize, ValueId>, SliceBounds), ValueId>,
}

impl SlicePropagation<'_> {
    /// Computes a slice of the result of node `i`.
    fn part(&mut self, g: &mut Rewriter, i: usize, range: &SliceBounds) -> ValueId {
        let key = (Ok(i), range.clone());
        if let Some(&known) = self.made.get(&key) {
            return known;
        }
        let node = &self.graph.nodes[i];
        let operands: Vec<(ValueId, ValueId)> =
            node.inputs.iter().copied().zip(self.inputs[&i].iter().copied()).collect();
        let mut inputs = Vec::with_capacity(operands.len());
        for (old, new) in operands {
            inputs.push(match self.graph.ty(old).rank() {
                0 => new,
                _ if self.cut[old.index()] => self.part(g, old.index(), range),
                _ => self.slice(g, new, range, node),
            });
        }
        let value = g.push(node.op.clone(), &inputs, node);
        self.made.insert(key, value);
        value
    }

    /// A slice of an operand. Slices of broadcasts and splat constants become broadcasts of the smaller shape.
    fn slice(&mut self, g: &mut Rewriter, x: ValueId, range: &SliceBounds, like: &Node) -> ValueId {
        let key = (Err(x), range.clone());
        if let Some(&known) = self.made.get(&key) {
            return known;
        }
        let (start, limit) = range;
        let shape: Shape = start.iter().zip(limit).map(|(a, b)| b - a).collect();
        let (op, inner) = (g.node(x).op.clone(), g.node(x).inputs.first().copied());
        let value = match (&op, inner) {
            (Op::BroadcastInDim(b), Some(inner)) => {
                // Dimensions that the broadcast expands are not sliced in its operand.
                let own = g.ty(inner).shape.clone();
                let along = |of: &Dims, whole: &dyn Fn(usize) -> usize| -> Dims {
                    b.dims
                        .iter()
                        .enumerate()
                        .map(|(k, &d)| if own[k] == b.shape[d] { of[d] } else { whole(k) })
                        .collect()
                };
                let (start, limit) = (along(start, &|_| 0), along(limit, &|k| own[k]));
                let all = (0..own.rank()).all(|k| limit[k] - start[k] == own[k]);
                let inner = if all { inner } else { self.slice(g, inner, &(start, limit), like) };
                g.push(BroadcastInDim { dims: b.dims.clone(), shape }, &[inner], like)
            }
            (Op::Constant(c), _) if c.value.is_splat() && c.value.ty().elements() > 0 => {
                let value = Literal::splat(TensorType::scalar(c.value.ty().dtype), c.value.get(0));
                let scalar = g.push(Constant { value }, &[], like);
                g.push(BroadcastInDim { dims: Dims::new(), shape }, &[scalar], like)
            }
            _ => {
                let strides = start.iter().map(|_| 1).collect();
                g.push(Slice { start: start.clone(), limit: limit.clone(), strides }, &[x], like)
            }
        };
        self.made.insert(key, value);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kernel, PipelineOptions, ProgramSchedule};
    use systole_ir::DType::F32;
    use systole_ir::{GraphBuilder, Tensor};

    /// The program of `build(x, v)` with `x: f32[6, columns]` and `v: f32[columns]`.
    fn steps(columns: usize, build: impl Fn(&Tensor, &Tensor) -> Vec<Tensor>) -> ProgramSchedule {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [6, columns]), "x");
        let v = g.parameter(TensorType::new(F32, [columns]), "v");
        let graph = g.finish(&build(&x, &v)).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        crate::schedule(&graph, &PipelineOptions::default()).unwrap()
    }

    fn halves(x: &Tensor) -> (Tensor, Tensor) {
        let columns = x.dim(1);
        (x.slice_dim(1, 0, columns / 2), x.slice_dim(1, columns / 2, columns))
    }

    fn names(s: &ProgramSchedule) -> Vec<String> {
        s.steps.iter().map(|step| step.kernel.name()).collect()
    }

    #[test]
    fn a_value_of_which_slices_are_wanted_is_no_array() {
        let s = steps(512, |x, v| {
            let (a, b) = halves(&(x * 2.0 + v).tanh());
            vec![a.exp() * b]
        });
        // The vector is sliced before it is broadcast, by steps of their own; `x` is read in place.
        assert_eq!(names(&s), ["slice", "slice", "map[8]"], "{s}");
        assert_eq!(s.arena_bytes, 2 * 256 * 4, "{s}");
    }

    #[test]
    fn a_value_that_is_wanted_whole_is_sliced_in_place() {
        let s = steps(512, |x, _| {
            let y = x.tanh();
            let (a, b) = halves(&y);
            vec![a * b, y]
        });
        assert_eq!(names(&s), ["tanh", "multiply"], "{s}");
        // Overlapping slices would compute elements twice.
        let s = steps(512, |x, _| {
            let y = x.tanh();
            vec![y.slice_dim(1, 0, 300) * y.slice_dim(1, 200, 500)]
        });
        assert_eq!(names(&s), ["tanh", "multiply"], "{s}");
    }

    #[test]
    fn slices_of_short_rows_and_those_that_others_read_are_arrays() {
        let s = steps(64, |x, _| {
            let (a, b) = halves(&x.tanh());
            vec![a * b]
        });
        assert_eq!(names(&s), ["tanh", "slice", "slice", "multiply"], "{s}");
        let s = steps(512, |x, _| {
            let (a, b) = halves(x);
            vec![a.dot(&b.transpose(&[1, 0])), a.exp()]
        });
        assert_eq!(names(&s).iter().filter(|name| *name == "slice").count(), 2, "{s}");
    }

    #[test]
    fn a_slice_knows_where_it_begins() {
        let s = steps(512, |x, _| vec![x.slice_dim(0, 1, 4).slice_dim(1, 128, 384).exp()]);
        let Some(Kernel::Map(map)) = s.steps.last().map(|step| &step.kernel) else { panic!("{s}") };
        let crate::MapLoad::Array { strides, offset, .. } = &map.loads[0] else { panic!("{s}") };
        // The first slice is a step, because a slice reads it. The second is read in place in its result.
        assert_eq!((&strides[..], *offset, s.steps.len()), (&[512, 1][..], 128, 2), "{s}");
    }
}
