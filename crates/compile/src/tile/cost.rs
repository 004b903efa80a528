//! What blocks gain and cost, in nanoseconds of one core.
//!
//! The gain is traffic: arrays between kernels stay in the near cache instead of going through memory. The cost is
//! that every block reads the weights again and adds to all sums. The numbers below are of the order of today's
//! machines; they only have to tell large differences apart, and must not depend on the machine that compiles, since
//! sizes of blocks decide in which order sums are added.

use super::region::Region;
use super::rules::{Use, row_op};
use crate::compiler::Compiler;
use crate::graph::optimize;
use crate::options::{Blocking, Options};
use crate::program::{Blocks, Kernel, Location, Schedule, Step, Storage};
use systole_ir::{Graph, Op, Result, ValueId};

/// Nanoseconds for a byte from or to the near cache, the shared cache and memory.
const NEAR: f64 = 0.012;
const SHARED: f64 = 0.033;
const MEMORY: f64 = 0.09;
/// The part of the near cache that holds what is wanted again.
const ROOM: f64 = 0.85;
/// Arrays up to this many bytes are taken to stay in the shared cache.
const SHARED_BYTES: usize = 6 << 20;
/// Nanoseconds of one kernel call.
const CALL: f64 = 400.0;
/// Nanoseconds of one arithmetic operation of a product at its best.
const FLOP: f64 = 1.0 / 80.0;
/// Rows of products that keep the arithmetic units busy.
const FULL_ROWS: f64 = 8.0;
/// Blocks that there are at least, or one for each row.
const FEWEST_BLOCKS: usize = 16;
/// What a segment must gain at least.
const WORTH: f64 = 15_000.0;
/// The share of the traffic saved that must be left as gain: the model is rough, and blocks cost what it does not see.
const SURE: f64 = 0.2;
/// Sizes whose costs are within this of the least are alike, as the model tells no nearer; of them the largest is taken, whose
/// kernels run longer.
const ALIKE: f64 = 1.1;
/// Rows of the program whose memory is measured.
const PROBE: usize = 8;
/// Most groups of blocks: as many threads can work, and as many copies of the sums exist.
const GROUPS: usize = 64;
/// Bytes of all copies of the sums up to which there are more than [`FEWEST_GROUPS`].
const COPIES: usize = 2 << 20;
const FEWEST_GROUPS: usize = 8;

/// What becomes of a segment.
pub enum Verdict {
    /// It runs by blocks; nanoseconds gained, and those that blocks cost beside the work itself.
    Gains(Box<Blocks>, f64, f64),
    /// It may gain without this node.
    Without(usize),
    /// It does not gain.
    Loses,
}

pub struct Costs<'g> {
    graph: &'g Graph,
    rows: usize,
    cache: usize,
    /// The size of blocks where nothing is asked for gains.
    forced: Option<usize>,
    excess_precision: bool,
    compiler: &'g Compiler,
}

/// Bytes and work of a segment.
#[derive(Default)]
struct Loads {
    /// Whole operands, each time that they are read.
    weights: f64,
    /// Whole operands once.
    weight_bytes: f64,
    sums: usize,
    /// Reads and writes between kernels for a row, and what those of all rows cost without blocks.
    inside: f64,
    saved: f64,
    /// Bytes that live at the same time, for a row.
    live: f64,
    /// Work for a row: of products, and of all kernels.
    flops: f64,
    work: f64,
    /// Rows of its products for each row of the segment, at the least.
    product_rows: f64,
    /// Kernel calls of a block.
    calls: f64,
}

impl<'g> Costs<'g> {
    pub fn new(graph: &'g Graph, rows: usize, options: &Options, compiler: &'g Compiler) -> Costs<'g> {
        let (cache, forced) = match options.blocks {
            Blocking::Off => (0, None),
            Blocking::Cache(bytes) => (bytes, None),
            Blocking::Rows(n) => (usize::MAX / 8, Some(n)),
        };
        Costs { graph, rows, cache, forced, excess_precision: options.excess_precision, compiler }
    }

    /// Whether a node reads or sums so much for every block that no block can gain.
    pub fn is_hopeless(&self, i: usize) -> bool {
        let node = &self.graph.nodes[i];
        let Some(row) = row_op(self.graph, node, self.rows, self.rows) else { return false };
        let sums: usize = if row.sums { node.outs.iter().map(|t| t.bytes()).sum() } else { 0 };
        sums > self.cache || self.whole_bytes(i) > 4 * self.cache
    }

    /// Bytes of the whole operands of a node; of tables only rows are read.
    fn whole_bytes(&self, i: usize) -> usize {
        let node = &self.graph.nodes[i];
        if matches!(node.op, Op::Gather(_)) {
            return 0;
        }
        let Some(row) = row_op(self.graph, node, self.rows, self.rows) else { return 0 };
        let whole = node.inputs.iter().zip(&row.uses).filter(|(_, how)| **how != Use::Rows);
        whole.map(|(&v, _)| self.graph.ty(v).bytes()).sum()
    }

    fn sum_bytes(&self, region: &Region<'_>) -> usize {
        region.sums.iter().map(|&v| region.sum_type(v).bytes()).sum()
    }

    /// What the program for `probe` rows says of all rows: it has been fused, so that only arrays count that exist.
    fn loads(&self, region: &Region<'_>, body: &Schedule, probe: usize) -> Loads {
        let (rows, times) = (self.rows as f64, self.rows as f64 / probe as f64);
        let sums = region.sums.len();
        let mut l = Loads {
            sums: self.sum_bytes(region),
            live: body.arena_bytes as f64 / probe as f64,
            calls: body.steps.len() as f64,
            product_rows: f64::INFINITY,
            ..Loads::default()
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
                    // What comes from outside is read once, and what leaves is written once, either way.
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
        // What comes from outside and is read again, and what leaves and is read, must stay near as well.
        let stays = |(storage, &uses): (&Storage, &usize)| match storage.place {
            Location::Param(p) if p < sums || region.inputs[p - sums].1 != Use::Rows => 0,
            Location::Param(_) | Location::Result(_) if uses > 1 => storage.bytes,
            _ => 0,
        };
        l.live += body.slots.iter().zip(&uses).map(stays).sum::<usize>() as f64 / probe as f64;
        l
    }

    /// Whether a program with new segments, which cost so much `inside` them, moves less between its kernels than the
    /// one before, by a good part of what the segments claim to gain. They are weighed by themselves, each value in
    /// them as an array; the program without them may compute many of those on the way, and what a segment must leave
    /// for another it must write.
    pub fn is_better(&self, before: &Schedule, after: &Schedule, inside: f64, claimed: f64) -> bool {
        let gain = self.traffic(before) - self.traffic(after) - inside;
        self.forced.is_some() || gain > SURE * claimed
    }

    /// What the arrays of a program cost, once for each kernel that reads or writes them.
    pub fn traffic(&self, s: &Schedule) -> f64 {
        let of_step = |step: &Step| -> f64 {
            let mut slots: Vec<usize> = step.inputs.iter().chain(&step.outputs).copied().collect();
            slots.sort_unstable();
            slots.dedup();
            let bytes = slots.into_iter().map(|slot| s.slots[slot].bytes as f64);
            bytes.map(|bytes| bytes * self.price(bytes)).sum()
        };
        s.steps.iter().map(of_step).sum()
    }

    /// Nanoseconds for a byte of an array that passes between kernels whole.
    fn price(&self, bytes: f64) -> f64 {
        match bytes {
            b if b > SHARED_BYTES as f64 => MEMORY,
            b if b > self.cache as f64 / 2.0 => SHARED,
            _ => NEAR,
        }
    }

    pub fn judge(&self, region: &Region<'_>) -> Result<Verdict> {
        let made: usize =
            region.members.iter().flat_map(|&m| &self.graph.nodes[m].outs).map(|t| t.bytes()).sum();
        if let Some(block) = self.forced {
            let loads = Loads { sums: self.sum_bytes(region), ..Loads::default() };
            let blocks = self.blocks(region, &loads, block.clamp(1, self.rows))?;
            return Ok(Verdict::Gains(Box::new(blocks), made as f64, 0.0));
        }
        if made < self.cache {
            return Ok(Verdict::Loses);
        }
        let probe = PROBE.min(self.rows);
        let loads = self.loads(region, &self.program(region, probe)?, probe);
        if loads.saved < WORTH {
            return Ok(Verdict::Loses);
        }
        let costs: Vec<(usize, f64)> =
            sizes(self.rows).map(|block| (block, self.cost(&loads, block))).collect();
        let cost = costs.iter().map(|c| c.1).fold(f64::INFINITY, f64::min);
        let gain = loads.saved - cost;
        if gain > WORTH.max(SURE * loads.saved) {
            let alike = costs.iter().filter(|c| c.1 <= ALIKE * cost).map(|c| c.0);
            let block = alike.max().unwrap_or(1);
            return Ok(Verdict::Gains(Box::new(self.blocks(region, &loads, block)?), gain, cost));
        }
        Ok(self.heaviest(region).map_or(Verdict::Loses, Verdict::Without))
    }

    /// What blocks of a size cost in all, beside the work itself.
    fn cost(&self, l: &Loads, block: usize) -> f64 {
        let (cache, rows, block) = (self.cache as f64, self.rows as f64, block as f64);
        let (count, sums) = ((rows / block).ceil(), l.sums as f64);
        // A block's rows pass from kernel to kernel and stay in the caches; what is read or added to once in each block
        // has the room that they leave.
        let live = l.live * block;
        let fits = |room: f64, bytes: f64| (room / bytes.max(1.0)).clamp(0.0, 1.0);
        let each = |beside: f64, bytes: f64| {
            let near = fits(ROOM * cache - beside, bytes);
            let shared = fits(SHARED_BYTES as f64 - beside, bytes).max(near);
            near * NEAR + (shared - near) * SHARED + (1.0 - shared) * MEMORY
        };
        let (of_rows, of_others) = (each(0.0, live), each(live, l.weight_bytes + sums));
        let idle = (FULL_ROWS / (l.product_rows * block)).clamp(1.0, FULL_ROWS) - 1.0;
        // Groups that have one block less than others wait for them, half of them on average.
        let groups = self.groups(l.sums, count as usize) as f64;
        let uneven = ((count / groups).ceil() * groups / count - 1.0) / 2.0;
        // Copies of the sums are set to zero, added to, and read again by the sum over the groups.
        let copies = groups * sums;
        count * ((l.weights + 2.0 * sums) * of_others + l.calls * CALL)
            + rows * (l.inside * of_rows + l.flops * FLOP * idle + l.work * FLOP * uneven)
            + 2.0 * copies * self.price(copies).max(SHARED)
    }

    /// The member that costs most for each block.
    fn heaviest(&self, region: &Region<'_>) -> Option<usize> {
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

    fn program(&self, region: &Region<'_>, block: usize) -> Result<Schedule> {
        let (body, _) = optimize(&region.body(block))?;
        let donated = (0..region.sums.len()).collect();
        let excess_precision = self.excess_precision;
        (self.compiler.schedule)(
            &body,
            &Options { donated, state_at: Some(0), blocks: Blocking::Off, excess_precision },
        )
    }

    fn blocks(&self, region: &Region<'_>, loads: &Loads, block: usize) -> Result<Blocks> {
        let row_bytes = |v: ValueId| self.graph.ty(v).bytes() / self.rows;
        let rest = self.rows % block;
        let row_of = |&(v, how): &(ValueId, Use)| (how == Use::Rows).then(|| row_bytes(v));
        Ok(Blocks {
            body: self.program(region, block)?,
            rest: if rest == 0 { None } else { Some(self.program(region, rest)?) },
            rows: self.rows,
            block,
            groups: self.groups(loads.sums, self.rows.div_ceil(block)),
            sums: region.sums.iter().map(|&v| region.sum_type(v)).collect(),
            inputs: region.inputs.iter().map(row_of).collect(),
            outputs: region.outs.iter().map(|&v| row_bytes(v)).collect(),
        })
    }
}

/// Sizes of blocks to choose from, enough blocks for several threads: round sizes, and those that make round numbers of
/// blocks, which all groups have equally many of.
fn sizes(rows: usize) -> impl Iterator<Item = usize> {
    let round = || (0..16).flat_map(|k| [1usize << k, 3 << k]);
    let counts = round().filter(move |count| (FEWEST_BLOCKS..=rows).contains(count));
    round()
        .chain(counts.map(move |count| rows.div_ceil(count)))
        .map(move |b| rows.div_ceil(rows.div_ceil(b)))
        .filter(move |&b| b == 1 || rows.div_ceil(b) >= FEWEST_BLOCKS)
}
