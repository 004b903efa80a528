//! Cost model of row blocks (mini-batch blocking), in nanoseconds of one core.
//!
//! The gain is memory traffic: arrays between kernels stay in L2 instead of going through memory. The cost is that each
//! block reads the weights again and adds to all sums. The constants have the order of magnitude of current machines.
//! They only have to distinguish large differences, and must not depend on the machine that compiles: the block size
//! determines the order in which sums are added, and so the bits of the result.

use super::row_rules::{Use, row_op};
use super::segment::BlockSegment;
use crate::graph::optimize;
use crate::nested_compiler::NestedCompiler;
use crate::options::{PipelineOptions, RoundingOptions, RowBlocksMode};
use crate::program::{Kernel, Location, ProgramSchedule, RowBlockLoop, SlotStorage, Step};
use std::sync::Arc;
use systole_ir::{Graph, Op, Result, ValueId};

/// Nanoseconds per byte moved from or to L2 (`NEAR`), the shared last-level cache and memory.
const NEAR: f64 = 0.012;
const SHARED: f64 = 0.033;
const MEMORY: f64 = 0.09;
/// Fraction of the cache that holds data to be reused.
const ROOM: f64 = 0.85;
/// Bytes of the largest working set that is assumed to stay in the last-level cache.
const SHARED_BYTES: usize = 6 << 20;
/// Nanoseconds of overhead per kernel call.
const CALL: f64 = 400.0;
/// Nanoseconds per arithmetic operation of a GEMM at full speed.
const FLOP: f64 = 1.0 / 80.0;
/// GEMM rows (M) from which the arithmetic units are fully used.
const FULL_ROWS: f64 = 8.0;
/// Minimum number of blocks, so that several threads have work; fewer only if every block is one row.
const FEWEST_BLOCKS: usize = 16;
/// Minimum gain of a segment in nanoseconds.
const WORTH: f64 = 15_000.0;
/// Fraction of the saved traffic that must remain as gain. The model is rough, and blocks have costs that it ignores.
const SURE: f64 = 0.2;
/// Block sizes whose cost is within this factor of the minimum count as equal, which is the model's resolution. The
/// largest of them is used: fewer kernel calls.
const ALIKE: f64 = 1.1;
/// Number of rows of the program that is compiled to measure memory and traffic per row.
const PROBE: usize = 8;
/// Maximum number of groups of blocks: the number of threads that can work at once, and of copies of the sums.
const GROUPS: usize = 64;
/// Maximum total bytes of all copies of the sums; at least [`FEWEST_GROUPS`] copies are made anyway.
const COPIES: usize = 2 << 20;
const FEWEST_GROUPS: usize = 8;

/// Whether a segment runs by row blocks, and the block size.
pub enum BlockingDecision {
    /// Run it in blocks. Nanoseconds gained, and nanoseconds that blocks cost in addition to the arithmetic.
    Gains(Box<RowBlockLoop>, f64, f64),
    /// Blocks cost more than they gain; they may gain without this node.
    Without(usize),
    /// Blocks cost more than they gain.
    Loses,
}

/// Cost model of row blocks for a graph and a row count.
pub struct BlockingCostModel<'g> {
    graph: &'g Graph,
    rows: usize,
    cache: usize,
    /// Rows per block if blocks are forced and gains are ignored.
    forced: Option<usize>,
    rounding: RoundingOptions,
    compiler: &'g NestedCompiler,
}

/// Memory traffic and arithmetic of a segment.
#[derive(Default)]
struct SegmentTraffic {
    /// Bytes of operands that are read whole, counted once per read.
    weights: f64,
    /// Bytes of operands that are read whole, counted once each.
    weight_bytes: f64,
    /// Bytes of all sums.
    sums: usize,
    /// Bytes per row that kernels of the segment pass to each other, and nanoseconds that those of all rows cost
    /// without blocks.
    inside: f64,
    saved: f64,
    /// Bytes per row that are live at the same time.
    live: f64,
    /// Arithmetic operations per row: of GEMMs, and of all kernels.
    flops: f64,
    work: f64,
    /// Minimum M of the segment's GEMMs per row of the segment.
    product_rows: f64,
    /// Kernel calls per block.
    calls: f64,
}

impl<'g> BlockingCostModel<'g> {
    /// Creates the cost model for segments of `rows` rows.
    pub fn new(
        graph: &'g Graph,
        rows: usize,
        options: &PipelineOptions,
        compiler: &'g NestedCompiler,
    ) -> BlockingCostModel<'g> {
        let (cache, forced) = match options.blocks {
            RowBlocksMode::Off => (0, None),
            RowBlocksMode::Cache(bytes) => (bytes, None),
            RowBlocksMode::Rows(n) => (usize::MAX / 8, Some(n)),
        };
        BlockingCostModel { graph, rows, cache, forced, rounding: options.rounding, compiler }
    }

    /// Whether node `i` rules out row blocks: its sums, or the operands that each block reads whole, exceed the cache
    /// budget.
    pub fn is_hopeless(&self, i: usize) -> bool {
        let node = &self.graph.nodes[i];
        let Some(row) = row_op(self.graph, node, self.rows, self.rows) else { return false };
        let sums: usize = if row.sums { node.outs.iter().map(|t| t.bytes()).sum() } else { 0 };
        sums > self.cache || self.whole_bytes(i) > 4 * self.cache
    }

    /// Bytes of the operands that a node reads whole. The table of a gather counts 0: only some of its rows are read.
    fn whole_bytes(&self, i: usize) -> usize {
        let node = &self.graph.nodes[i];
        if matches!(node.op, Op::Gather(_)) {
            return 0;
        }
        let Some(row) = row_op(self.graph, node, self.rows, self.rows) else { return 0 };
        let whole = node.inputs.iter().zip(&row.uses).filter(|(_, how)| **how != Use::Rows);
        whole.map(|(&v, _)| self.graph.ty(v).bytes()).sum()
    }

    fn sum_bytes(&self, region: &BlockSegment<'_>) -> usize {
        region.sums.iter().map(|&v| region.sum_type(v).bytes()).sum()
    }

    /// Measures a segment by its program for `probe` rows. The program is fused, so only materialized arrays count.
    fn loads(&self, region: &BlockSegment<'_>, body: &ProgramSchedule, probe: usize) -> SegmentTraffic {
        let (rows, times) = (self.rows as f64, self.rows as f64 / probe as f64);
        let sums = region.sums.len();
        let mut l = SegmentTraffic {
            sums: self.sum_bytes(region),
            live: body.arena_bytes as f64 / probe as f64,
            calls: body.steps.len() as f64,
            product_rows: f64::INFINITY,
            ..SegmentTraffic::default()
        };
        let mut uses = vec![0; body.slots.len()];
        for step in &body.steps {
            let is_table = matches!(&step.kernel, Kernel::Op { op: Op::Gather(_), .. });
            for (k, &slot) in step.inputs.iter().chain(&step.outputs).enumerate() {
                let writes = k >= step.inputs.len();
                let bytes = body.slots[slot].bytes as f64;
                let again = uses[slot] > 0;
                uses[slot] += 1;
                match body.slots[slot].place {
                    Location::Param(p) if p < sums => {}
                    Location::Param(p) if region.inputs[p - sums].1 != Use::Rows => {
                        if !(is_table && k == 0) {
                            l.weights += bytes;
                            l.weight_bytes += if again { 0.0 } else { bytes };
                        }
                    }
                    // The first read of an input and the write of a result happen with or without blocks.
                    Location::Param(_) if !again => {}
                    Location::Result(_) if writes => {}
                    Location::Constant(_) => {}
                    _ => {
                        l.inside += bytes * times / rows;
                        l.saved += bytes * times * self.price(bytes * times);
                    }
                }
            }
            l.work += step.flops * times / rows;
            if let Kernel::Op { op: Op::DotGeneral(d), .. } = &step.kernel {
                l.flops += step.flops * times / rows;
                let a = &step.input_types[0];
                if !d.lhs_contract.contains(&0) && d.lhs_batch.is_empty() {
                    let free: usize = d.lhs_free(a.rank()).iter().map(|&k| a.shape[k]).product();
                    l.product_rows = l.product_rows.min(free as f64 / probe as f64);
                }
            }
        }
        // Inputs that are read again and results that are read must stay in cache as well.
        let stays = |(storage, &uses): (&SlotStorage, &usize)| match storage.place {
            Location::Param(p) if p < sums || region.inputs[p - sums].1 != Use::Rows => 0,
            Location::Param(_) | Location::Result(_) if uses > 1 => storage.bytes,
            _ => 0,
        };
        l.live += body.slots.iter().zip(&uses).map(stays).sum::<usize>() as f64 / probe as f64;
        l
    }

    /// Whether the program with new segments (`after`), whose blocks cost `inside`, saves at least the fraction
    /// [`SURE`] of what the segments claim. Each segment was judged alone and not fused with its surroundings: the
    /// program without it may fuse away some of the arrays, and a segment must write what another segment reads.
    pub fn is_better(
        &self,
        before: &ProgramSchedule,
        after: &ProgramSchedule,
        inside: f64,
        claimed: f64,
    ) -> bool {
        let gain = self.traffic(before) - self.traffic(after) - inside;
        self.forced.is_some() || gain > SURE * claimed
    }

    /// Nanoseconds of memory traffic of a program: each kernel moves each of its arrays once.
    pub fn traffic(&self, s: &ProgramSchedule) -> f64 {
        let of_step = |step: &Step| -> f64 {
            let mut slots: Vec<usize> = step.inputs.iter().chain(&step.outputs).copied().collect();
            slots.sort_unstable();
            slots.dedup();
            let bytes = slots.into_iter().map(|slot| s.slots[slot].bytes as f64);
            bytes.map(|bytes| bytes * self.price(bytes)).sum()
        };
        s.steps.iter().map(of_step).sum()
    }

    /// Nanoseconds per byte of an array of this size that one kernel writes completely before the next reads it.
    fn price(&self, bytes: f64) -> f64 {
        match bytes {
            b if b > SHARED_BYTES as f64 => MEMORY,
            b if b > self.cache as f64 / 2.0 => SHARED,
            _ => NEAR,
        }
    }

    /// Decides whether a segment gains from row blocks, and chooses the block size.
    pub fn judge(&self, region: &BlockSegment<'_>) -> Result<BlockingDecision> {
        let made: usize =
            region.members.iter().flat_map(|&m| &self.graph.nodes[m].outs).map(|t| t.bytes()).sum();
        if let Some(block) = self.forced {
            let loads = SegmentTraffic { sums: self.sum_bytes(region), ..SegmentTraffic::default() };
            let blocks = self.blocks(region, &loads, block.clamp(1, self.rows))?;
            return Ok(BlockingDecision::Gains(Box::new(blocks), made as f64, 0.0));
        }
        if made < self.cache {
            return Ok(BlockingDecision::Loses);
        }
        let probe = PROBE.min(self.rows);
        let loads = self.loads(region, &self.program(region, probe)?, probe);
        if loads.saved < WORTH {
            return Ok(BlockingDecision::Loses);
        }
        let costs: Vec<(usize, f64)> =
            sizes(self.rows).map(|block| (block, self.cost(&loads, block))).collect();
        let cost = costs.iter().map(|c| c.1).fold(f64::INFINITY, f64::min);
        let gain = loads.saved - cost;
        if gain > WORTH.max(SURE * loads.saved) {
            let alike = costs.iter().filter(|c| c.1 <= ALIKE * cost).map(|c| c.0);
            let block = alike.max().unwrap_or(1);
            return Ok(BlockingDecision::Gains(Box::new(self.blocks(region, &loads, block)?), gain, cost));
        }
        Ok(self.heaviest(region).map_or(BlockingDecision::Loses, BlockingDecision::Without))
    }

    /// Total nanoseconds that blocks of a size cost, in addition to the arithmetic.
    fn cost(&self, l: &SegmentTraffic, block: usize) -> f64 {
        let (cache, rows, block) = (self.cache as f64, self.rows as f64, block as f64);
        let (count, sums) = ((rows / block).ceil(), l.sums as f64);
        // The live rows of a block have priority in cache; weights and sums, touched once per block, get the rest.
        let live = l.live * block;
        let fits = |room: f64, bytes: f64| (room / bytes.max(1.0)).clamp(0.0, 1.0);
        let each = |beside: f64, bytes: f64| {
            let near = fits(ROOM * cache - beside, bytes);
            let shared = fits(SHARED_BYTES as f64 - beside, bytes).max(near);
            near * NEAR + (shared - near) * SHARED + (1.0 - shared) * MEMORY
        };
        let (of_rows, of_others) = (each(0.0, live), each(live, l.weight_bytes + sums));
        let idle = (FULL_ROWS / (l.product_rows * block)).clamp(1.0, FULL_ROWS) - 1.0;
        // Load imbalance: groups with one block less wait for the others; half of the groups on average.
        let groups = self.groups(l.sums, count as usize) as f64;
        let uneven = ((count / groups).ceil() * groups / count - 1.0) / 2.0;
        // Copies of the sums are zeroed, and read again by the reduction over groups.
        let copies = groups * sums;
        count * ((l.weights + 2.0 * sums) * of_others + l.calls * CALL)
            + rows * (l.inside * of_rows + l.flops * FLOP * idle + l.work * FLOP * uneven)
            + 2.0 * copies * self.price(copies).max(SHARED)
    }

    /// The member with the most bytes of sums and whole operands per block, if these are more than 1/16 of the cache.
    fn heaviest(&self, region: &BlockSegment<'_>) -> Option<usize> {
        let weight = |m: usize| {
            let sums: usize =
                region.sums.iter().filter(|v| v.index() == m).map(|&v| self.graph.ty(v).bytes()).sum();
            2 * sums + self.whole_bytes(m)
        };
        let worst = region.members.iter().copied().max_by_key(|&m| weight(m))?;
        (weight(worst) > self.cache / 16).then_some(worst)
    }

    fn groups(&self, sums: usize, count: usize) -> usize {
        let most = COPIES.checked_div(sums).map_or(GROUPS, |copies| copies.clamp(FEWEST_GROUPS, GROUPS));
        most.min(count)
    }

    fn program(&self, region: &BlockSegment<'_>, block: usize) -> Result<ProgramSchedule> {
        let (body, _) = optimize(&region.body(block))?;
        let donated = (0..region.sums.len()).collect();
        let rounding = self.rounding;
        (self.compiler.schedule)(
            &body,
            &PipelineOptions { donated, state_at: Some(0), blocks: RowBlocksMode::Off, rounding },
        )
    }

    fn blocks(
        &self,
        region: &BlockSegment<'_>,
        loads: &SegmentTraffic,
        block: usize,
    ) -> Result<RowBlockLoop> {
        self.row_loop(region, block, self.groups(loads.sums, self.rows.div_ceil(block)))
    }

    /// Compiles a segment to a loop over blocks of `block` rows in `groups` groups.
    pub fn row_loop(&self, region: &BlockSegment<'_>, block: usize, groups: usize) -> Result<RowBlockLoop> {
        let row_bytes = |v: ValueId| self.graph.ty(v).bytes() / self.rows;
        let rest = self.rows % block;
        let row_of = |&(v, how): &(ValueId, Use)| (how == Use::Rows).then(|| row_bytes(v));
        Ok(RowBlockLoop {
            body: Arc::new(self.program(region, block)?),
            rest: if rest == 0 { None } else { Some(Arc::new(self.program(region, rest)?)) },
            rows: self.rows,
            block,
            groups,
            sums: region.sums.iter().map(|&v| region.sum_type(v)).collect(),
            inputs: region.inputs.iter().map(row_of).collect(),
            outputs: region.outs.iter().map(|&v| row_bytes(v)).collect(),
        })
    }
}

/// Candidate block sizes: 2ᵏ and 3·2ᵏ rows, and the sizes that give 2ᵏ or 3·2ᵏ blocks, which divide evenly among
/// groups. All give at least [`FEWEST_BLOCKS`] blocks, or blocks of one row.
fn sizes(rows: usize) -> impl Iterator<Item = usize> {
    let round = || (0..16).flat_map(|k| [1usize << k, 3 << k]);
    let counts = round().filter(move |count| (FEWEST_BLOCKS..=rows).contains(count));
    round()
        .chain(counts.map(move |count| rows.div_ceil(count)))
        .map(move |b| rows.div_ceil(rows.div_ceil(b)))
        .filter(move |&b| b == 1 || rows.div_ceil(b) >= FEWEST_BLOCKS)
}
