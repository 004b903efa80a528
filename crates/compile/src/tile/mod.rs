//! Row blocks (mini-batch blocking, loop tiling over the batch): runs parts of a graph for a few samples at a time, so
//! that their intermediate arrays stay in cache.
//!
//! Between two reductions over the batch, every sample depends only on itself. [`outline`] finds such segments for any
//! number of rows ([`row_rules`]: the op of each node for a block; [`segment_partition`]: which nodes can run
//! together). It keeps those that a cost model expects to gain ([`cost`]), and outlines each into one node: a `case`
//! with one branch, which computes the segment for all rows and defines its meaning. The program for one block
//! ([`RowBlockLoop`]) is kept with it, and is what runs. Sums over the rows (weight gradients, losses, statistics) are
//! accumulated block by block in a fixed order. A row need not be a sample: it is one index of the leading dimensions
//! whose sizes multiply to the number of rows.
//!
//! Before this, [`row_chunks`] outlines products whose results are too large to be stored whole.

mod cost;
mod row_chunks;
mod row_rules;
mod segment;
mod segment_partition;

use crate::nested_compiler::NestedCompiler;
use crate::options::{PipelineOptions, RowBlocksMode};
use crate::program::RowBlockLoop;
use cost::{BlockingCostModel, BlockingDecision};
use row_rules::{Use, is_free, prefix, row_op};
use segment::{BlockSegment, base};
use segment_partition::{RowRole, SegmentPartition};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use systole_ir::op::{Case, Constant, Transpose};
use systole_ir::{DType, Graph, Literal, Node, Op, Result, ValueId};

/// Maximum number of row counts for which segments are searched: those for which most bytes can be computed by rows.
const CANDIDATES: usize = 4;
/// Maximum number of passes over the graph. A pass outlines segments of one row count, and the next pass may use
/// another.
const ROUNDS: usize = 3;
/// Maximum number of retries that form segments again without their most expensive nodes.
const TRIALS: usize = 6;

/// A graph with each segment outlined to one node, and the block programs.
#[derive(Default)]
pub struct OutlinedGraph {
    pub graph: Graph,
    /// The block program of each outlined node, by the node's index.
    pub blocks: HashMap<usize, RowBlockLoop>,
}

/// A segment that is expected to gain from blocks.
struct ProfitableSegment<'g> {
    region: BlockSegment<'g>,
    blocks: RowBlockLoop,
    /// Nanoseconds gained, and nanoseconds that blocks cost in addition to the arithmetic (see
    /// [`BlockingDecision::Gains`]).
    gain: f64,
    cost: f64,
}

/// Replaces the segments that gain from row blocks by one node each. Returns the graph unchanged if there are none.
pub fn outline(graph: &Graph, options: &PipelineOptions, compiler: &NestedCompiler) -> Result<OutlinedGraph> {
    let mut now = OutlinedGraph { graph: graph.clone(), blocks: HashMap::new() };
    if options.blocks == RowBlocksMode::Off {
        return Ok(now);
    }
    let chunks = row_chunks::segments(graph, row_chunks::SIZES, options, compiler)?;
    if !chunks.is_empty() {
        now = SegmentOutliner::new(graph, chunks, &now.blocks).run();
    }
    for _ in 0..ROUNDS {
        let mut best: Vec<ProfitableSegment<'_>> = Vec::new();
        let total = |chosen: &[ProfitableSegment<'_>]| chosen.iter().map(|c| c.gain).sum::<f64>();
        for rows in candidates(&now.graph, options.blocks) {
            let chosen = choose(&now.graph, rows, options, compiler)?;
            if total(&chosen) > total(&best) {
                best = chosen;
            }
        }
        let Some(first) = best.first() else { break };
        let costs = BlockingCostModel::new(&now.graph, first.region.rows, options, compiler);
        let (inside, claimed) = (best.iter().map(|c| c.cost).sum(), total(&best));
        let next = SegmentOutliner::new(&now.graph, best, &now.blocks).run();
        let steps = |o: &OutlinedGraph| (compiler.estimate)(&o.graph, &o.blocks, options);
        if !costs.is_better(&steps(&now)?, &steps(&next)?, inside, claimed) {
            break;
        }
        now = next;
    }
    Ok(now)
}

/// Row counts to try: products of leading dimensions, ranked by the bytes of the values that can be computed by that
/// many rows.
fn candidates(graph: &Graph, blocking: RowBlocksMode) -> Vec<usize> {
    let least = if let RowBlocksMode::Cache(bytes) = blocking { bytes } else { 0 };
    let mut bytes: HashMap<usize, usize> = HashMap::new();
    for node in graph.nodes.iter().filter(|n| !is_free(&n.op) && !matches!(n.op, Op::Parameter(_))) {
        for ty in &node.outs {
            let mut rows = 1usize;
            let mut seen = 1;
            for &n in ty.shape.iter() {
                rows = rows.saturating_mul(n);
                if rows > seen {
                    *bytes.entry(rows).or_default() += ty.bytes();
                    seen = rows;
                }
            }
        }
    }
    let by_rows = |rows: usize| -> usize {
        let worth = graph.nodes.iter().filter(|n| n.outs.iter().any(|t| prefix(t, rows).is_some()));
        worth.filter(|n| row_op(graph, n, rows, rows).is_some()).map(|n| n.outs[0].bytes()).sum()
    };
    let mut all: Vec<(usize, usize)> = bytes.into_iter().filter(|&(_, b)| b > least).collect();
    all.sort_unstable_by_key(|&(rows, b)| (Reverse(b), rows));
    all.truncate(2 * CANDIDATES);
    let mut all: Vec<(usize, usize)> = all.into_iter().map(|(rows, _)| (rows, by_rows(rows))).collect();
    all.sort_unstable_by_key(|&(rows, b)| (Reverse(b), rows));
    all.truncate(CANDIDATES);
    all.into_iter().map(|(rows, _)| rows).collect()
}

/// Chooses the segments for a row count that gain from blocks. A segment that loses is formed again without its
/// heaviest node, as often as [`TRIALS`] allows.
fn choose<'g>(
    graph: &'g Graph,
    rows: usize,
    options: &PipelineOptions,
    compiler: &'g NestedCompiler,
) -> Result<Vec<ProfitableSegment<'g>>> {
    let costs = BlockingCostModel::new(graph, rows, options, compiler);
    let mut barred: HashSet<usize> = (0..graph.nodes.len()).filter(|&i| costs.is_hopeless(i)).collect();
    let mut chosen: Vec<ProfitableSegment<'g>> = Vec::new();
    let mut known: HashMap<Vec<usize>, bool> = HashMap::new();
    for trial in 0..=TRIALS {
        let phases = SegmentPartition::new(graph, rows, &|i| barred.contains(&i));
        let needed = phases.needed();
        chosen.clear();
        let mut again = false;
        for members in phases.segments() {
            if members.len() < 2 || !members.iter().any(|&m| phases.roles[m] == RowRole::Rows) {
                continue;
            }
            if known.get(&members) == Some(&false) {
                continue;
            }
            let outs: Vec<ValueId> = members.iter().flat_map(|&m| needed[m].iter().copied()).collect();
            let region = BlockSegment::new(graph, rows, members, outs);
            match costs.judge(&region)? {
                BlockingDecision::Gains(blocks, gain, cost) => {
                    chosen.push(ProfitableSegment { region, blocks: *blocks, gain, cost });
                }
                BlockingDecision::Without(node) if trial < TRIALS => {
                    barred.insert(node);
                    again = true;
                }
                _ => {
                    known.insert(region.members, false);
                }
            }
        }
        if !again {
            break;
        }
    }
    Ok(chosen)
}

/// Rebuilds a graph with each chosen segment as one node.
struct SegmentOutliner<'g> {
    graph: &'g Graph,
    chosen: Vec<ProfitableSegment<'g>>,
    /// Block programs of nodes that an earlier pass outlined.
    before: &'g HashMap<usize, RowBlockLoop>,
    /// The segment of each node, as an index into `chosen`.
    owner: Vec<Option<usize>>,
    nodes: Vec<Node>,
    map: HashMap<ValueId, ValueId>,
    blocks: HashMap<usize, RowBlockLoop>,
}

impl<'g> SegmentOutliner<'g> {
    fn new(
        graph: &'g Graph,
        chosen: Vec<ProfitableSegment<'g>>,
        before: &'g HashMap<usize, RowBlockLoop>,
    ) -> SegmentOutliner<'g> {
        let mut owner = vec![None; graph.nodes.len()];
        for (k, c) in chosen.iter().enumerate() {
            c.region.members.iter().for_each(|&m| owner[m] = Some(k));
        }
        let (nodes, map, blocks) = (Vec::new(), HashMap::new(), HashMap::new());
        SegmentOutliner { graph, chosen, before, owner, nodes, map, blocks }
    }

    fn run(mut self) -> OutlinedGraph {
        let graph = self.graph;
        for &p in &graph.params {
            self.plain(p.index());
        }
        for item in self.order() {
            match self.owner[item] {
                Some(k) => self.segment(k),
                None => self.plain(item),
            }
        }
        let results = graph.results.iter().map(|&r| self.value(r)).collect();
        let params = graph.params.iter().map(|&p| self.value(p)).collect();
        let graph = Graph {
            name: graph.name.clone(),
            params,
            param_names: graph.param_names.clone(),
            results,
            scopes: graph.scopes.clone(),
            nodes: self.nodes,
        };
        OutlinedGraph { graph, blocks: self.blocks }
    }

    /// The node that represents another one in the order: its segment's first member, or the node itself.
    fn item(&self, node: usize) -> usize {
        self.owner[node].map_or(node, |k| self.chosen[k].region.members[0])
    }

    /// Topological order of segments and other nodes; among those that are ready, the first in the graph's order.
    fn order(&self) -> Vec<usize> {
        let n = self.graph.nodes.len();
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
        let mut missing = vec![0usize; n];
        for (i, node) in self.graph.nodes.iter().enumerate().filter(|(_, node)| !is_free(&node.op)) {
            let to = self.item(i);
            for v in node.inputs.iter().filter_map(|&v| base(self.graph, v)) {
                let from = self.item(v.index());
                if from != to {
                    users[from].push(to);
                    missing[to] += 1;
                }
            }
        }
        let is_item = |i: usize| self.item(i) == i && !is_free(&self.graph.nodes[i].op);
        let mut ready: BinaryHeap<Reverse<usize>> =
            (0..n).filter(|&i| is_item(i) && missing[i] == 0).map(Reverse).collect();
        let mut order = Vec::with_capacity(n);
        while let Some(Reverse(i)) = ready.pop() {
            if !matches!(self.graph.nodes[i].op, Op::Parameter(_)) {
                order.push(i);
            }
            for &user in &users[i] {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.push(Reverse(user));
                }
            }
        }
        order
    }

    fn append(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// The new value of an old one. Free nodes are emitted when they are first read.
    fn value(&mut self, v: ValueId) -> ValueId {
        if !self.map.contains_key(&v) {
            self.plain(v.index());
        }
        self.map[&v]
    }

    fn plain(&mut self, i: usize) {
        let old = &self.graph.nodes[i];
        let inputs: SmallVec<[ValueId; 2]> = old.inputs.iter().map(|&v| self.value(v)).collect();
        let node = self.append(Node { inputs, ..old.clone() });
        for k in 0..old.outs.len() {
            self.map.insert(ValueId::new(i, k), ValueId { node, out: k as u32 });
        }
        if let Some(blocks) = self.before.get(&i) {
            self.blocks.insert(node as usize, blocks.clone());
        }
    }

    fn segment(&mut self, k: usize) {
        let region = &self.chosen[k].region;
        let whole = Arc::new(region.whole());
        let like = &self.graph.nodes[region.members[0]];
        let results: Vec<ValueId> = region.sums.iter().chain(&region.outs).copied().collect();
        let index = Constant { value: Literal::scalar(DType::I32, 0.0) };
        let leaf =
            |op: Op, outs| Node { op, inputs: SmallVec::new(), outs, loc: like.loc, scope: like.scope };
        let outs = SmallVec::from_elem(index.value.ty().clone(), 1);
        let reads = region.inputs.clone();
        let mut inputs: SmallVec<[ValueId; 2]> =
            reads.into_iter().map(|(v, how)| self.read(v, how)).collect();
        let index = self.append(leaf(index.into(), outs));
        inputs.push(ValueId { node: index, out: 0 });
        let outs = whole.result_types().into();
        let op = Case { branches: vec![whole] };
        let node = self.append(Node { inputs, ..leaf(op.into(), outs) });
        for (out, &v) in results.iter().enumerate() {
            let made = ValueId { node, out: out as u32 };
            let value = self.narrowed(made, v, like);
            self.map.insert(v, value);
        }
        self.blocks.insert(node as usize, self.chosen[k].blocks.clone());
    }

    /// An operand as the segment reads it: transposed for [`Use::Transposed`].
    fn read(&mut self, v: ValueId, how: Use) -> ValueId {
        let value = self.value(v);
        if how != Use::Transposed {
            return value;
        }
        let (like, ty) = (self.graph.node(v), self.graph.ty(v));
        let op = Transpose { permutation: [1, 0].into_iter().collect() };
        let outs = SmallVec::from_elem(ty.with_shape([ty.shape[1], ty.shape[0]]), 1);
        let inputs = SmallVec::from_elem(value, 1);
        let node = self.append(Node { op: op.into(), inputs, outs, loc: like.loc, scope: like.scope });
        ValueId { node, out: 0 }
    }

    /// A segment's result in the graph's type: sums of bf16 and f16 are accumulated in f32 and rounded once.
    fn narrowed(&mut self, made: ValueId, v: ValueId, like: &Node) -> ValueId {
        let (have, want) = (&self.nodes[made.index()].outs[made.out as usize], self.graph.ty(v));
        if have == want {
            return made;
        }
        let op = systole_ir::op::Convert { to: want.dtype };
        let (inputs, outs) = (SmallVec::from_elem(made, 1), SmallVec::from_elem(want.clone(), 1));
        let node = self.append(Node { op: op.into(), inputs, outs, loc: like.loc, scope: like.scope });
        ValueId { node, out: 0 }
    }
}

#[cfg(test)]
mod row_chunks_tests;
#[cfg(test)]
mod tests;
