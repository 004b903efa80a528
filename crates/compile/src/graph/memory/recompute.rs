//! Rematerialization of cheap values for late readers: copies a few nodes instead of keeping an array.
//!
//! The forward pass leaves arrays for the backward pass. Some are computed by a few instructions, either from arrays
//! that are read there anyway (squares and halves in gelu) or from much smaller ones (one-hot labels). Instead of
//! keeping such an array, its late readers get a copy of its nodes. Results are bit-identical, with less memory and
//! less traffic.

use super::rematerializable::is_one_instruction;
use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use std::collections::{BTreeSet, HashMap, HashSet};
use systole_ir::op::{Binary, LoweringClass};
use systole_ir::{Graph, Node, Op, ValueId};

/// Maximum distance in nodes between readers of the same pass, forward or backward.
const NEAR: usize = 48;
/// Minimum size in bytes; smaller arrays are kept.
const MIN_BYTES: usize = 64 << 10;
/// Maximum number of nodes that are recomputed for one value.
const MAX_NODES: usize = 4;

/// Rematerializes cheap values for late readers.
pub fn run(graph: &Graph) -> Graph {
    let recipes = Recompute::new(graph).recipes();
    // Copies of nodes, by old node and by the first late reader of the value that they are copied for.
    let mut copies: HashMap<(usize, usize), ValueId> = HashMap::new();
    let mut new: Vec<NodeResults> = Vec::with_capacity(graph.nodes.len());
    rebuild(graph, |g, i, node, inputs| {
        let late = |v: &ValueId| recipes.get(&v.index()).filter(|r| r.from <= i);
        let mut operands: Vec<ValueId> = inputs.to_vec();
        for (operand, v) in operands.iter_mut().zip(&node.inputs) {
            if let Some(recipe) = late(v) {
                *operand = copy(g, graph, v.index(), recipe, &new, &mut copies);
            }
        }
        let first = g.push_as(node, &operands);
        let result = |k: usize| ValueId { node: first.node, out: k as u32 };
        let values: NodeResults = (0..node.outs.len()).map(result).collect();
        new.push(values.clone());
        Some(values)
    })
}

/// The copy of node `i` that its late readers use.
fn copy(
    g: &mut Rewriter,
    graph: &Graph,
    i: usize,
    recipe: &RecomputePlan,
    new: &[NodeResults],
    copies: &mut HashMap<(usize, usize), ValueId>,
) -> ValueId {
    if let Some(&known) = copies.get(&(i, recipe.from)) {
        return known;
    }
    let node = &graph.nodes[i];
    let operands: Vec<ValueId> = node
        .inputs
        .iter()
        .map(|v| match recipe.nodes.contains(&v.index()) {
            true => copy(g, graph, v.index(), recipe, new, copies),
            false => new[v.index()][v.out as usize],
        })
        .collect();
    let made = g.push_as(node, &operands);
    copies.insert((i, recipe.from), made);
    made
}

/// The nodes to copy for all readers of a value from node `from` on.
struct RecomputePlan {
    from: usize,
    nodes: BTreeSet<usize>,
}

struct Recompute<'g> {
    graph: &'g Graph,
    users: Vec<Vec<usize>>,
    results: HashSet<usize>,
}

impl<'g> Recompute<'g> {
    fn new(graph: &'g Graph) -> Recompute<'g> {
        let mut users = vec![Vec::new(); graph.nodes.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|v| users[v.index()].push(i));
        }
        Recompute { graph, users, results: graph.results.iter().map(|r| r.index()).collect() }
    }

    fn recipes(&self) -> HashMap<usize, RecomputePlan> {
        (0..self.graph.nodes.len()).filter_map(|i| Some((i, self.recipe(i)?))).collect()
    }

    fn recipe(&self, i: usize) -> Option<RecomputePlan> {
        let node = &self.graph.nodes[i];
        if !is_cheap(node) || node.outs[0].bytes() < MIN_BYTES || self.results.contains(&i) {
            return None;
        }
        let late: Vec<usize> = self.users[i].iter().copied().filter(|&u| u > i + NEAR).collect();
        let from = *late.iter().min()?;
        let same = |u: &usize| is_map(&self.graph.nodes[*u]) && self.elements(*u) == self.elements(i);
        if !late.iter().all(same) {
            return None;
        }
        let (mut nodes, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        self.collect(i, from, &mut nodes, &mut leaves)?;
        let width = node.outs[0].dtype.size();
        // Each leaf must be available: either much smaller than the value, or also read near the late readers.
        let is_there = |&leaf: &usize| {
            let ty = &self.graph.nodes[leaf].outs[0];
            let near = |&u: &usize| {
                u + NEAR > from
                    && !nodes.contains(&u)
                    && is_map(&self.graph.nodes[u])
                    && late.iter().any(|&l| u < l + NEAR)
            };
            ty.bytes() * 16 <= node.outs[0].bytes()
                || (ty.dtype.size() <= 2 * width && self.users[leaf].iter().any(near))
        };
        leaves.iter().all(is_there).then_some(RecomputePlan { from, nodes })
    }

    /// Collects the nodes to recompute for `i`, and the stored values from which they start.
    fn collect(
        &self,
        i: usize,
        from: usize,
        nodes: &mut BTreeSet<usize>,
        leaves: &mut BTreeSet<usize>,
    ) -> Option<()> {
        nodes.insert(i);
        if nodes.len() > MAX_NODES {
            return None;
        }
        for v in &self.graph.nodes[i].inputs {
            let node = &self.graph.nodes[v.index()];
            let read_late = self.users[v.index()].iter().any(|&u| u >= from && is_map(&self.graph.nodes[u]));
            match node.op.rule().lower() {
                LoweringClass::Leaf => {}
                _ if nodes.contains(&v.index()) => {}
                _ if is_free(node) || (is_cheap(node) && !read_late) => {
                    self.collect(v.index(), from, nodes, leaves)?;
                }
                _ => {
                    leaves.insert(v.index());
                }
            }
        }
        Some(())
    }

    fn elements(&self, i: usize) -> usize {
        self.graph.nodes[i].outs[0].elements()
    }
}

/// Whether readers compute it as part of a load.
fn is_free(node: &Node) -> bool {
    matches!(node.op, Op::BroadcastInDim(_) | Op::Iota(_) | Op::Constant(_))
}

fn is_map(node: &Node) -> bool {
    node.op.rule().lower() == LoweringClass::Map && node.outs.len() == 1
}

/// Whether it takes about one vector instruction. Ops on random bits (xor, shifts) are excluded.
fn is_cheap(node: &Node) -> bool {
    let is_bits = matches!(
        node.op,
        Op::Binary(
            Binary::Xor | Binary::ShiftLeft | Binary::ShiftRightArithmetic | Binary::ShiftRightLogical
        )
    );
    is_one_instruction(&node.op) && !is_bits && is_map(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType::F32, GraphBuilder, Literal, TensorType, grad, interp};

    #[test]
    fn late_readers_get_copies_and_the_same_bits() {
        let n = MIN_BYTES / 4;
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(F32, [n]), "x");
        let square = &x * &x;
        let far = (0..NEAR + 20).fold(square.exp(), |y, _| y.sine());
        let graph = g.finish(&[&far * &square + &x, far]).unwrap();
        let after = run(&graph);
        after.verify().unwrap();
        let squares = |graph: &Graph| {
            graph
                .nodes
                .iter()
                .filter(|n| n.op == Op::Binary(Binary::Multiply) && n.inputs[0] == n.inputs[1])
                .count()
        };
        assert_eq!((squares(&graph), squares(&after)), (1, 2));
        let x: Vec<f32> = (0..n).map(|i| (i % 97) as f32 * 0.01).collect();
        let x = Literal::from_slice([n], &x).unwrap();
        assert_eq!(interp::run(&graph, &[&x]).unwrap(), interp::run(&after, &[&x]).unwrap());
    }

    #[test]
    fn gelu_keeps_its_operand_and_its_tanh_for_the_backward_pass() {
        let (side, layers) = (128, 6);
        let ty = TensorType::new(F32, [side, side]);
        let g = GraphBuilder::new("main");
        let x = g.parameter(ty.clone(), "x");
        let weights: Vec<_> = (0..layers).map(|i| g.parameter(ty.clone(), &format!("w{i}"))).collect();
        let y = weights.iter().fold(x, |h, w| h.dot(w).gelu_tanh());
        let refs: Vec<_> = weights.iter().collect();
        let (graph, _) = crate::optimize(&g.finish(&grad(&y.sum_all(), &refs)).unwrap()).unwrap();
        let s = crate::schedule(&graph, &crate::PipelineOptions::default()).unwrap();
        // Forward: the dot, its tanh, gelu. Backward: the cotangents of gelu and of the dot, and the weight gradient.
        // Values at the end of the network, which are read soon, may be kept in addition.
        let arrays = s.steps.iter().flat_map(|step| &step.output_types).filter(|t| **t == ty).count();
        assert!(arrays <= 6 * layers + 6, "{arrays} arrays\n{s}");
    }
}
