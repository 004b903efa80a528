//! Kernels that consist of steps or programs of their own: rows at a time, and blocks of rows.

use super::check::{Checked, holds};
use super::kernel::{Kernel, Schedule, Step};
use super::storage::Location;
use systole_ir::TensorType;

/// Steps that work on rows of the same arrays, one after the other for each few rows.
#[derive(Clone, Debug)]
pub struct Rows {
    /// How many rows.
    pub rows: usize,
    /// Maps and folds along rows. Their slots are arrays of this step: its inputs, its outputs, then [`Rows::locals`].
    pub stages: Vec<Step>,
    /// Bytes of one row of each array that exists only on the way.
    pub locals: Vec<usize>,
}

impl Rows {
    /// A short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("rows[{}]", self.stages.len())
    }

    /// Whether output `o` may lie where input `i` does: row by row, all reading is done before writing starts.
    pub fn overwrites(&self, i: usize, o: usize, inputs: usize) -> bool {
        let writes = self.stages.iter().position(|st| st.outputs.contains(&(inputs + o)));
        self.stages.iter().enumerate().filter(|(_, st)| st.inputs.contains(&i)).all(|(k, st)| {
            let reads = st.inputs.iter().enumerate().filter(|(_, x)| **x == i);
            writes.is_some_and(|w| k <= w)
                && reads.into_iter().all(|(n, _)| match &st.kernel {
                    Kernel::Map(m) => m.reads_in_place(n),
                    Kernel::Reduce { map, .. } => {
                        n < st.inputs.len() - map.stores.len() && map.reads_in_place(n)
                    }
                    _ => false,
                })
        })
    }

    /// Stages read arrays that are there, and write each array once.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> Checked {
        let bytes: Vec<usize> = ins.iter().chain(outs).map(TensorType::bytes).collect();
        let bytes: Vec<usize> =
            bytes.into_iter().chain(self.locals.iter().map(|row| row * self.rows)).collect();
        let mut made: Vec<bool> = (0..bytes.len()).map(|x| x < ins.len()).collect();
        for (k, stage) in self.stages.iter().enumerate() {
            stage.check().map_err(|what| format!("stage {k}: {what}"))?;
            for (&x, ty) in stage.inputs.iter().zip(&stage.input_types) {
                let there = made.get(x).copied().unwrap_or(false);
                holds(there, || format!("stage {k} reads array {x} before it is written"))?;
                holds(bytes[x] == ty.bytes(), || format!("stage {k} reads array {x} as {ty}"))?;
            }
            for (&x, ty) in stage.outputs.iter().zip(&stage.output_types) {
                holds(made.get(x) == Some(&false), || format!("stage {k} writes array {x} again"))?;
                holds(bytes[x] == ty.bytes(), || format!("stage {k} writes array {x} as {ty}"))?;
                made[x] = true;
            }
        }
        holds(made.iter().all(|made| *made), || "an array of the rows is never written".into())
    }
}

/// A program for a block of rows, run for one block after the other.
///
/// The blocks are dealt out to groups in runs; the blocks of a group are in order, the sums of the groups are added
/// in a tree.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// `(sums so far…, inputs…) → (sums…, outputs…)` for a block.
    pub body: Schedule,
    /// The same for the last block where that is shorter.
    pub rest: Option<Schedule>,
    /// Rows in all.
    pub rows: usize,
    /// Rows of a block.
    pub block: usize,
    /// Runs of blocks that may run at the same time.
    pub groups: usize,
    /// Types of the sums: the step's first results.
    pub sums: Vec<TensorType>,
    /// Bytes of one row of each input of the step; `None`: every block reads all of it.
    pub inputs: Vec<Option<usize>>,
    /// Bytes of one row of each result after the sums.
    pub outputs: Vec<usize>,
}

impl Blocks {
    /// A short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("blocks[{}×{}]", self.rows.div_ceil(self.block), self.block)
    }

    /// Whether blocks may write rows of output `o` over the same rows of input `i`: in a block's program the reading is
    /// done before.
    pub fn overwrites(&self, i: usize, o: usize) -> bool {
        let sums = self.sums.len();
        let Some(k) = o.checked_sub(sums) else { return false };
        let done_before = |s: &Schedule| {
            let result = s.results[o].slot;
            let Some(param) = s.slots.iter().position(|x| x.place == Location::Param(sums + i)) else {
                return false;
            };
            let (last, first) = (s.slots[param].last, s.slots[result].first);
            s.slots[result].place == Location::Result(o)
                && s.results.iter().all(|r| r.slot != param)
                && (last < first || last == first && s.steps[first].may_write_over(param, result))
        };
        self.inputs[i] == Some(self.outputs[k])
            && std::iter::once(&self.body).chain(&self.rest).all(done_before)
    }

    /// Arithmetic operations of all blocks.
    pub fn flops(&self) -> f64 {
        let of = |s: &Schedule| s.steps.iter().map(|step| step.flops).sum::<f64>();
        of(&self.body) * (self.rows / self.block) as f64 + self.rest.as_ref().map_or(0.0, of)
    }
}
