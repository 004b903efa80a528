//! What blocks gain and cost, in nanoseconds of one core.
//!
//! The gain is traffic: arrays between kernels stay in the near cache instead of going through memory. The cost is
//! that every block reads the weights again and adds to all sums. The numbers below are of the order of today's
//! machines; they only have to tell large differences apart, and must not depend on the machine that compiles, since
//! sizes of blocks decide in which order sums are added.

use super::region::{Region, base};
use super::rules::{Use, is_map, row_op, sum_type};
use crate::schedule::{Blocks, Options, Schedule};
use systole_ir::{Graph, Op, Result, ValueId};

/// Nanoseconds for a byte from or to the near cache, the shared cache and memory.
const NEAR: f64 = 0.012;
const SHARED: f64 = 0.033;
const MEMORY: f64 = 0.09;
/// Arrays up to this many bytes are taken to stay in the shared cache.
const SHARED_BYTES: usize = 6 << 20;
/// Nanoseconds of one kernel call.
const CALL: f64 = 700.0;
/// Nanoseconds of one arithmetic operation of a product at its best.
const FLOP: f64 = 1.0 / 80.0;
/// Rows of products that keep the arithmetic units busy.
const FULL_ROWS: f64 = 8.0;
/// Blocks that there are at least, or one for each row.
const FEWEST_BLOCKS: usize = 16;
/// What a segment must gain at least.
const WORTH: f64 = 30_000.0;
/// Rows of the program whose memory is measured.
const PROBE: usize = 8;
/// Most groups of blocks: as many threads can work, and as many copies of the sums exist.
const GROUPS: usize = 64;
/// Bytes of all copies of the sums up to which there are more than [`FEWEST_GROUPS`].
const COPIES: usize = 2 << 20;
const FEWEST_GROUPS: usize = 8;

/// What becomes of a segment.
pub enum Verdict {
    /// It runs by blocks; nanoseconds gained.
    Gains(Blocks, f64),
    /// It may gain without this node.
    Without(usize),
    /// It does not gain.
    Loses,
}

pub struct Costs<'g> {
    graph: &'g Graph,
    rows: usize,
    cache: usize,
    /// How many nodes other than free ones read each node.
    readers: Vec<usize>,
    /// Whether all readers are element-wise.
    into_maps: Vec<bool>,
}

/// Bytes and work of a segment.
struct Loads {
    /// Whole operands, each time that they are read.
    weights: usize,
    /// Whole operands once.
    weight_bytes: usize,
    sums: usize,
    /// Reads and writes inside, for a row, and what they cost without blocks.
    inside: f64,
    saved: f64,
    /// What is read from and written to arrays of all rows, for a row.
    outside: f64,
    /// Work of products for a row.
    flops: f64,
    /// Rows of its products for each row of the segment, at the least.
    product_rows: f64,
}

impl<'g> Costs<'g> {
    pub fn new(graph: &'g Graph, rows: usize, cache: usize) -> Costs<'g> {
        let mut readers = vec![0; graph.nodes.len()];
        let mut into_maps = vec![true; graph.nodes.len()];
        for node in graph.nodes.iter().filter(|n| !super::rules::is_free(&n.op)) {
            for v in node.inputs.iter().filter_map(|&v| base(graph, v)) {
                readers[v.index()] += 1;
                into_maps[v.index()] &= is_map(&node.op);
            }
        }
        Costs { graph, rows, cache, readers, into_maps }
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

    fn loads(&self, region: &Region<'_>) -> Loads {
        let (g, rows) = (self.graph, self.rows as f64);
        let bytes = |v: ValueId| g.ty(v).bytes();
        let mut l = Loads {
            weights: 0,
            weight_bytes: 0,
            sums: region.sums.iter().map(|&v| g.ty(v).elements() * sum_type(g.ty(v).dtype).size()).sum(),
            inside: 0.0,
            saved: 0.0,
            outside: 0.0,
            flops: 0.0,
            product_rows: f64::INFINITY,
        };
        for &(v, how) in &region.inputs {
            match how {
                Use::Rows => l.outside += bytes(v) as f64 / rows,
                _ if bytes(v) <= 4 * self.cache => l.weight_bytes += bytes(v),
                _ => {}
            }
        }
        l.outside += region.outs.iter().map(|&v| bytes(v) as f64).sum::<f64>() / rows;
        for &m in &region.members {
            let node = &g.nodes[m];
            l.weights += self.whole_bytes(m);
            if let Op::DotGeneral(d) = &node.op {
                let types: Vec<_> = node.inputs.iter().map(|&v| g.ty(v)).collect();
                l.flops += node.op.rule().cost(&types, &node.outs).flops / rows;
                if !d.lhs_contract.contains(&0) && d.lhs_batch.is_empty() {
                    let free: usize =
                        d.lhs_free(types[0].rank()).iter().map(|&k| types[0].shape[k]).product();
                    l.product_rows = l.product_rows.min(free as f64 / rows);
                }
            }
            for (k, ty) in node.outs.iter().enumerate() {
                let v = ValueId::new(m, k);
                let fused = is_map(&node.op) && self.into_maps[m];
                if fused || region.sums.contains(&v) {
                    continue;
                }
                let reads = self.readers[m] as f64;
                let writes = 1.0;
                // What leaves the segment is written either way.
                let traffic =
                    ty.bytes() as f64 * (reads + if region.outs.contains(&v) { 0.0 } else { writes });
                l.inside += traffic / rows;
                let price = if ty.bytes() > SHARED_BYTES { MEMORY } else { SHARED };
                if ty.bytes() > self.cache / 2 {
                    l.saved += traffic * price;
                } else {
                    l.saved += traffic * NEAR;
                }
            }
        }
        l
    }

    pub fn judge(&self, region: &Region<'_>) -> Result<Verdict> {
        let loads = self.loads(region);
        if loads.saved < WORTH {
            return Ok(Verdict::Loses);
        }
        let probe = PROBE.min(self.rows);
        let body = self.program(region, probe)?;
        let memory = body.arena_bytes as f64 / probe as f64;
        let steps = body.steps.len() as f64;
        let mut best: Option<(f64, usize)> = None;
        for block in sizes(self.rows) {
            let cost = self.cost(&loads, memory, steps, block);
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, block));
            }
        }
        let gain = best.map_or(f64::NEG_INFINITY, |(cost, _)| loads.saved - cost);
        match best {
            Some((_, block)) if gain > WORTH => {
                let blocks = self.blocks(region, &loads, block)?;
                Ok(Verdict::Gains(blocks, gain))
            }
            _ => Ok(self.heaviest(region).map_or(Verdict::Loses, Verdict::Without)),
        }
    }

    /// What blocks of a size cost in all, beside the work itself.
    fn cost(&self, l: &Loads, memory: f64, steps: f64, block: usize) -> f64 {
        let cache = self.cache as f64;
        let rows = self.rows as f64;
        let count = (rows / block as f64).ceil();
        let live = memory * block as f64 + (l.weight_bytes + l.sums) as f64;
        // How much of what lives fits each cache.
        let near = (0.75 * cache / live).min(1.0);
        let shared = (SHARED_BYTES as f64 / live).min(1.0) - near;
        let each = near * NEAR + shared * SHARED + (1.0 - near - shared) * MEMORY;
        let products = l.product_rows * block as f64;
        let idle = (FULL_ROWS / products).max(1.0).min(FULL_ROWS) - 1.0;
        let again = (l.weights + 2 * l.sums) as f64;
        count * (again * each + steps * CALL)
            + rows * (l.inside * each + l.flops * FLOP * idle)
            + 2.0 * (self.groups(l.sums, count as usize) * l.sums) as f64 * SHARED
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
        let most = if sums == 0 { GROUPS } else { (COPIES / sums).clamp(FEWEST_GROUPS, GROUPS) };
        most.min(count)
    }

    fn program(&self, region: &Region<'_>, block: usize) -> Result<Schedule> {
        let (body, _) = crate::optimize(&region.body(block))?;
        let donated = (0..region.sums.len()).collect();
        crate::schedule(&body, &Options { donated, state_at: Some(0), cache: 0 })
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

/// Sizes of blocks to choose from: enough blocks for several threads.
fn sizes(rows: usize) -> impl Iterator<Item = usize> {
    let doubled = (0..16).flat_map(|k| [1usize << k, 3 << k]);
    doubled
        .filter(move |&b| b == 1 || FEWEST_BLOCKS * b <= rows)
        .map(move |b| rows.div_ceil(rows.div_ceil(b)))
}
