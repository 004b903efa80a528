//! Rematerialization (gradient checkpointing) under a memory limit: recomputes values that are live across the memory
//! peak.
//!
//! The forward pass of a training step leaves arrays for the backward pass. Those that are cheap to compute from values
//! that are kept anyway are recomputed directly before the backward pass reads them: element-wise values first, then
//! pooling, contractions last. See Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Here values are
//! chosen by cost, not by layer.

use smallvec::SmallVec;
use std::collections::HashMap;
use systole_ir::op::LoweringClass;
use systole_ir::{Graph, Node, Op, ValueId};

/// Minimum size in bytes; smaller arrays are kept.
const MIN_BYTES: usize = 64 << 10;
/// Maximum distance in nodes for which an element-wise value is assumed to be fused with its readers, not stored.
const NEAR: usize = 48;
/// Maximum number of nodes that are recomputed for one array.
const MAX_NODES: usize = 24;

/// Returns a graph that keeps about `save` bytes less live across its memory peak; `None` if nothing can be saved. It
/// computes the same values by the same operations.
pub fn remat(graph: &Graph, save: usize) -> Option<Graph> {
    let lives = NodeLiveness::of(graph);
    let peak = lives.peak(graph);
    let chosen = choose(graph, &lives, peak, save);
    (!chosen.is_empty()).then(|| RematCopier::new(graph, peak, &chosen).run())
}

/// Live ranges of the nodes, as positions in the graph, and an estimate of which values are stored.
struct NodeLiveness {
    last: Vec<usize>,
    stored: Vec<bool>,
}

/// Whether a node has no array of its own: aliases, and values that consumers compute as part of a load.
fn is_free(node: &Node) -> bool {
    matches!(
        node.op,
        Op::Reshape(_)
            | Op::OptimizationBarrier(_)
            | Op::BitcastConvert(_)
            | Op::BroadcastInDim(_)
            | Op::Iota(_)
    )
}

fn bytes(node: &Node) -> usize {
    node.outs.iter().map(|t| t.bytes()).sum()
}

impl NodeLiveness {
    fn of(graph: &Graph) -> NodeLiveness {
        let n = graph.nodes.len();
        let mut last: Vec<usize> = (0..n).collect();
        let mut read_whole = vec![false; n];
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            let until = if is_free(node) { last[i] } else { i };
            let is_map = node.op.rule().lower() == LoweringClass::Map || is_free(node);
            for v in &node.inputs {
                last[v.index()] = last[v.index()].max(until);
                read_whole[v.index()] |= !is_map;
            }
        }
        graph.results.iter().for_each(|r| last[r.index()] = n);
        let stored = graph.nodes.iter().enumerate().map(|(i, node)| match node.op.rule().lower() {
            LoweringClass::Leaf => false,
            _ if is_free(node) => false,
            LoweringClass::Map => read_whole[i] || last[i] > i + NEAR,
            _ => true,
        });
        NodeLiveness { stored: stored.collect(), last }
    }

    /// The position with the most live bytes.
    fn peak(&self, graph: &Graph) -> usize {
        let mut change = vec![0i64; graph.nodes.len() + 2];
        for (i, node) in graph.nodes.iter().enumerate().filter(|&(i, _)| self.stored[i]) {
            change[i] += bytes(node) as i64;
            change[self.last[i] + 1] -= bytes(node) as i64;
        }
        let (mut live, mut most, mut at) = (0, i64::MIN, 0);
        for (i, c) in change.iter().enumerate() {
            live += c;
            if live > most {
                (most, at) = (live, i);
            }
        }
        at
    }
}

/// The nodes to drop at `peak`, in order of recomputation cost per byte. No dropped node is a source from which another
/// is recomputed.
fn choose(graph: &Graph, lives: &NodeLiveness, peak: usize, save: usize) -> Vec<usize> {
    let crosses = |i: usize| lives.stored[i] && i < peak && lives.last[i] > peak;
    let is_result = |i: usize| lives.last[i] >= graph.nodes.len();
    let mut candidates: Vec<(f64, usize, Vec<usize>)> = (0..peak.min(graph.nodes.len()))
        .filter(|&i| crosses(i) && !is_result(i) && bytes(&graph.nodes[i]) >= MIN_BYTES)
        .filter_map(|i| {
            let (flops, sources) = recipe(graph, i, &crosses)?;
            Some((flops / bytes(&graph.nodes[i]) as f64, i, sources))
        })
        .collect();
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut saved, mut chosen) = (0usize, Vec::new());
    let (mut dropped, mut kept) = (vec![false; graph.nodes.len()], vec![false; graph.nodes.len()]);
    for (_, i, sources) in candidates {
        if saved >= save {
            break;
        }
        if kept[i] || sources.iter().any(|&s| dropped[s]) {
            continue;
        }
        sources.iter().for_each(|&s| kept[s] = true);
        dropped[i] = true;
        saved += bytes(&graph.nodes[i]);
        chosen.push(i);
    }
    chosen
}

/// Cost in flops of recomputing node `i`, and the kept values that this starts from. `None` if it needs too many nodes
/// or control flow.
fn recipe(graph: &Graph, i: usize, is_kept: &dyn Fn(usize) -> bool) -> Option<(f64, Vec<usize>)> {
    let (mut flops, mut sources, mut seen, mut todo) = (0.0, Vec::new(), Vec::new(), vec![i]);
    while let Some(k) = todo.pop() {
        if seen.contains(&k) {
            continue;
        }
        seen.push(k);
        let node = &graph.nodes[k];
        if seen.len() > MAX_NODES
            || matches!(node.op.rule().lower(), LoweringClass::Control | LoweringClass::Exchange)
        {
            return None;
        }
        let types: SmallVec<[_; 4]> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        flops += if is_free(node) { 0.0 } else { node.op.rule().cost(&types, &node.outs).flops };
        for v in &node.inputs {
            let p = v.index();
            if is_kept(p) {
                sources.push(p);
            } else if graph.nodes[p].op.rule().lower() != LoweringClass::Leaf {
                todo.push(p);
            }
        }
    }
    Some((flops, sources))
}

/// Copies the graph. Readers after the peak use second copies of the dropped values.
struct RematCopier<'g> {
    graph: &'g Graph,
    peak: usize,
    dropped: Vec<bool>,
    /// For each node, whether its value is live after the peak.
    survives: Vec<bool>,
    nodes: Vec<Node>,
    /// New index of the first copy of each old node.
    first: Vec<usize>,
    /// New index of the second copy, for the nodes that have one.
    second: HashMap<usize, usize>,
}

impl<'g> RematCopier<'g> {
    fn new(graph: &'g Graph, peak: usize, chosen: &[usize]) -> RematCopier<'g> {
        let lives = NodeLiveness::of(graph);
        let mut dropped = vec![false; graph.nodes.len()];
        chosen.iter().for_each(|&i| dropped[i] = true);
        let survives = (0..graph.nodes.len())
            .map(|i| {
                let leaf = graph.nodes[i].op.rule().lower() == LoweringClass::Leaf;
                leaf || (!dropped[i] && lives.stored[i] && lives.last[i] > peak)
            })
            .collect();
        RematCopier {
            graph,
            peak,
            dropped,
            survives,
            nodes: Vec::new(),
            first: Vec::new(),
            second: HashMap::new(),
        }
    }

    fn run(mut self) -> Graph {
        for (i, node) in self.graph.nodes.iter().enumerate() {
            let mut copy = node.clone();
            for v in copy.inputs.iter_mut() {
                v.node = self.at(v.index(), i) as u32;
            }
            self.nodes.push(copy);
            self.first.push(self.nodes.len() - 1);
        }
        let renumber = |v: &ValueId| ValueId::new(self.first[v.index()], v.out as usize);
        Graph {
            name: self.graph.name.clone(),
            params: self.graph.params.iter().map(renumber).collect(),
            param_names: self.graph.param_names.clone(),
            results: self.graph.results.iter().map(renumber).collect(),
            scopes: self.graph.scopes.clone(),
            nodes: self.nodes,
        }
    }

    /// The new node whose values a node at position `reader` reads for old node `p`.
    fn at(&mut self, p: usize, reader: usize) -> usize {
        if reader <= self.peak || p >= self.peak || !self.leads_to_dropped(p) {
            self.first[p]
        } else {
            self.again(p)
        }
    }

    /// Whether `p` is dropped, or is an alias or broadcast of a dropped value.
    fn leads_to_dropped(&self, p: usize) -> bool {
        let node = &self.graph.nodes[p];
        self.dropped[p] || (is_free(node) && node.inputs.iter().any(|v| self.leads_to_dropped(v.index())))
    }

    /// The second copy of `p`, which is created on first use, or the first copy if that is still live.
    fn again(&mut self, p: usize) -> usize {
        if self.survives[p] || p >= self.peak {
            return self.first[p];
        }
        if let Some(&known) = self.second.get(&p) {
            return known;
        }
        let mut copy = self.graph.nodes[p].clone();
        for v in copy.inputs.iter_mut() {
            v.node = self.again(v.index()) as u32;
        }
        self.nodes.push(copy);
        self.second.insert(p, self.nodes.len() - 1);
        self.nodes.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType::F32, GraphBuilder, Literal, Scalar, TensorType, grad, interp};

    /// Loss and gradients of a deep chain of dots and activations.
    fn chain(side: usize, layers: usize) -> Graph {
        let ty = TensorType::new(F32, [side, side]);
        let g = GraphBuilder::new("main");
        let x = g.parameter(ty.clone(), "x");
        let weights: Vec<_> = (0..layers).map(|i| g.parameter(ty.clone(), &format!("w{i}"))).collect();
        let y = weights.iter().fold(x, |h, w| {
            let z = h.dot(w);
            &z * z.logistic()
        });
        let refs: Vec<_> = weights.iter().collect();
        let mut results = vec![y.sum(&[0, 1])];
        results.extend(grad(&results[0], &refs));
        let graph = g.finish(&results).unwrap();
        crate::optimize(&graph).unwrap().0
    }

    #[test]
    fn memory_falls_and_values_stay() {
        let (side, layers) = (128, 12);
        let graph = chain(side, layers);
        let arena = |g: &Graph| crate::schedule(g, &crate::PipelineOptions::default()).unwrap().arena_bytes;
        let before = arena(&graph);
        let less = remat(&graph, before).unwrap();
        less.verify().unwrap();
        assert!(arena(&less) * 10 < before * 8, "{} of {before}", arena(&less));
        assert!(less.nodes.len() < 2 * graph.nodes.len());
        assert!(remat(&graph, 0).is_none());
    }

    #[test]
    fn the_same_bits_come_out() {
        // Arrays below `MIN_BYTES` are kept; a side of 128 reaches it.
        let graph = chain(128, 3);
        let less = remat(&graph, usize::MAX).unwrap();
        assert!(less.nodes.len() > graph.nodes.len());
        let mut s = systole_ir::rng::RandomStream::new(1, 2, 3);
        let mut args: Vec<Literal> = Vec::new();
        for ty in graph.param_types() {
            let mut b = systole_ir::LiteralBuilder::new(ty.clone());
            (0..ty.elements()).for_each(|i| b.set(i, Scalar::Float(s.range(-0.1, 0.1) as f64)));
            args.push(b.finish());
        }
        let refs: Vec<&Literal> = args.iter().collect();
        assert_eq!(interp::run(&graph, &refs).unwrap(), interp::run(&less, &refs).unwrap());
    }
}
