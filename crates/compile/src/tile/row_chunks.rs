//! Row chunks: a product with many more columns than its operands, such as the logits of a language model, is computed
//! for a part of the rows at a time, together with everything that reads it.
//!
//! In a training step these are the cross-entropy, its gradient and both gradient products (fused cross-entropy). The
//! logits and their gradient then never exist for all tokens. In contrast to row blocks, the chunks run one after
//! another, and all threads work on one chunk. Chunks by rows need no second product, as chunks of the vocabulary would.

use super::ProfitableSegment;
use super::cost::BlockingCostModel;
use super::row_rules::{Use, is_free, row_op};
use super::segment::{BlockSegment, base};
use super::segment_partition::{RowRole, SegmentPartition};
use crate::nested_compiler::NestedCompiler;
use crate::options::PipelineOptions;
use systole_ir::op::LoweringClass;
use systole_ir::{Graph, Op, Result, ValueId};

/// Which products are computed in chunks, and how large these are.
#[derive(Clone, Copy)]
pub struct ChunkSizes {
    /// Bytes of a product's result from which it is computed in chunks.
    pub large: usize,
    /// Bytes of the part of a result that a chunk computes, unless this is fewer than `min_rows` rows.
    pub chunk: usize,
    /// Minimum number of rows of a chunk: each chunk reads the weights and adds to their gradient.
    pub min_rows: usize,
}

/// The sizes for all programs. Each chunk reads and packs the weights again: chunks of 256 rows of GPT-2's logits took 13 %
/// more time than all 1024 rows at once, so smaller results are stored whole.
pub const SIZES: ChunkSizes = ChunkSizes { large: 256 << 20, chunk: 128 << 20, min_rows: 256 };
/// A product is wide if it has more than this many times as many columns as the rows of its left operand.
const WIDE: usize = 4;
/// Minimum number of terms of a product's sums. With fewer, the arithmetic is no more than that of element-wise ops.
const MIN_TERMS: usize = 4;

/// Returns the segments of a graph that run in chunks: one for each wide product whose result is only read row by row.
pub fn segments<'g>(
    graph: &'g Graph,
    sizes: ChunkSizes,
    options: &PipelineOptions,
    compiler: &'g NestedCompiler,
) -> Result<Vec<ProfitableSegment<'g>>> {
    let mut all: Vec<ProfitableSegment<'g>> = Vec::new();
    for product in 0..graph.nodes.len() {
        let Some(rows) = wide_product(graph, product, sizes) else { continue };
        let costs = BlockingCostModel::new(graph, rows, options, compiler);
        // Row blocks are better where their operands stay in cache.
        if !costs.is_hopeless(product) || all.iter().any(|s| s.region.members.contains(&product)) {
            continue;
        }
        let Some(region) = WideSegment::new(graph, product, rows).region() else { continue };
        let overlaps =
            |s: &ProfitableSegment<'_>| region.members.iter().any(|m| s.region.members.contains(m));
        if region.rows != all.first().map_or(region.rows, |s| s.region.rows) || all.iter().any(overlaps) {
            continue;
        }
        let block = sizes.rows(graph.nodes[product].outs[0].bytes(), rows);
        let blocks = costs.row_loop(&region, block, 1)?;
        all.push(ProfitableSegment { region, blocks, gain: 0.0, cost: 0.0 });
    }
    Ok(all)
}

impl ChunkSizes {
    /// Rows per chunk of a result of `bytes`: all chunks have about the same size.
    fn rows(self, bytes: usize, rows: usize) -> usize {
        let most = (self.chunk / (bytes / rows).max(1)).max(self.min_rows);
        rows.div_ceil(rows.div_ceil(most))
    }
}

/// The number of rows of a product that is computed in chunks; `None` for other nodes.
fn wide_product(graph: &Graph, node: usize, sizes: ChunkSizes) -> Option<usize> {
    let node = &graph.nodes[node];
    let Op::DotGeneral(_) = &node.op else { return None };
    let (out, left) = (&node.outs[0], graph.ty(node.inputs[0]));
    let columns = *out.shape.last()?;
    if out.bytes() < sizes.large || columns == 0 {
        return None;
    }
    let rows = out.elements() / columns;
    let terms = left.elements() / rows;
    if rows < 2 * sizes.min_rows || terms < MIN_TERMS || columns <= WIDE * terms {
        return None;
    }
    let row = row_op(graph, node, rows, rows)?;
    (!row.sums && row.uses[0] == Use::Rows && row.uses[1] != Use::Rows).then_some(rows)
}

/// Collects the nodes that run together with a wide product.
struct WideSegment<'g> {
    graph: &'g Graph,
    product: usize,
    rows: usize,
    /// Elements from which a value counts as wide: those of the product's result.
    elements: usize,
    /// Whether a node depends on the product.
    depends: Vec<bool>,
}

impl<'g> WideSegment<'g> {
    fn new(graph: &'g Graph, product: usize, rows: usize) -> WideSegment<'g> {
        let mut depends = vec![false; graph.nodes.len()];
        depends[product] = true;
        for (i, node) in graph.nodes.iter().enumerate().skip(product + 1) {
            depends[i] = node.inputs.iter().any(|v| depends[v.index()]);
        }
        let elements = graph.nodes[product].outs[0].elements();
        WideSegment { graph, product, rows, elements, depends }
    }

    fn is_wide(&self, v: ValueId) -> bool {
        self.graph.ty(v).elements() >= self.elements
    }

    /// Operands of a node, behind free nodes.
    fn operands(&self, i: usize) -> impl Iterator<Item = ValueId> + '_ {
        self.graph.nodes[i].inputs.iter().filter_map(|&v| base(self.graph, v))
    }

    /// Candidates for the segment: the product, the readers of wide values, the nodes on the paths from the product to these
    /// readers, and wide element-wise operands such as one-hot labels.
    fn candidates(&self) -> Vec<bool> {
        let nodes = &self.graph.nodes;
        let mut member = vec![false; nodes.len()];
        member[self.product] = true;
        let mut count = 0;
        while count < member.iter().filter(|m| **m).count() {
            count = member.iter().filter(|m| **m).count();
            for i in (0..nodes.len()).filter(|&i| !is_free(&nodes[i].op)) {
                member[i] |= self.operands(i).any(|v| member[v.index()] && self.is_wide(v));
            }
            for i in (0..nodes.len()).rev().filter(|&i| i != self.product) {
                if !member[i] {
                    continue;
                }
                for v in self.operands(i) {
                    let is_map = self.graph.node(v).op.rule().lower() == LoweringClass::Map;
                    member[v.index()] |= self.depends[v.index()] || self.is_wide(v) && is_map;
                }
            }
        }
        member
    }

    /// The segment; `None` if a wide value would leave it.
    fn region(&self) -> Option<BlockSegment<'g>> {
        let candidates = self.candidates();
        let partition = SegmentPartition::new(self.graph, self.rows, &|i| !candidates[i]);
        let members = partition.segments().into_iter().find(|s| s.contains(&self.product))?;
        let mut needed = partition.needed();
        let outs: Vec<ValueId> = members.iter().flat_map(|&m| std::mem::take(&mut needed[m])).collect();
        let leaves = |v: &ValueId| partition.roles[v.index()] == RowRole::Rows && self.is_wide(*v);
        (members.len() > 1 && !outs.iter().any(leaves))
            .then(|| BlockSegment::new(self.graph, self.rows, members, outs))
    }
}
