//! Kernels that contain steps or programs: row-wise fused steps, and row blocks.

use super::kernel::{Kernel, ProgramSchedule, Step};
use super::storage::{Location, SlotStorage};
use super::type_check::{CheckResult, holds};
use std::sync::Arc;
use systole_ir::TensorType;

/// Maps and reductions along the rows of the same arrays. All stages run for a few rows before the next rows begin.
#[derive(Clone, Debug)]
pub struct FusedRows {
    /// Number of rows.
    pub rows: usize,
    /// Maps and reductions along rows, in order. Their slots index the arrays of this step: its inputs, its outputs,
    /// then [`FusedRows::locals`].
    pub stages: Vec<Step>,
    /// Bytes of one row of each intermediate array. Only the rows in progress have memory.
    pub locals: Vec<usize>,
}

impl FusedRows {
    /// Short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("rows[{}]", self.stages.len())
    }

    /// Whether output `o` may alias input `i`: no stage after the one that writes `o` reads `i`, and all reads are at
    /// the index that is computed.
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

    /// Checks that stages read only inputs and arrays that an earlier stage has written, and write each array once.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let bytes: Vec<usize> = ins.iter().chain(outs).map(TensorType::bytes).collect();
        let bytes: Vec<usize> =
            bytes.into_iter().chain(self.locals.iter().map(|row| row * self.rows)).collect();
        let mut made: Vec<bool> = (0..bytes.len()).map(|x| x < ins.len()).collect();
        for (k, stage) in self.stages.iter().enumerate() {
            stage.check().map_err(|what| format!("stage {k}: {what}"))?;
            for (&x, ty) in stage.inputs.iter().zip(&stage.input_types) {
                let there = made.get(x).copied().unwrap_or(false);
                holds(there, || format!("stage {k} reads array {x} before it is written"))?;
                holds(bytes[x] == ty.bytes(), || {
                    format!("stage {k} reads array {x} with another size, {ty}")
                })?;
            }
            for (&x, ty) in stage.outputs.iter().zip(&stage.output_types) {
                holds(made.get(x) == Some(&false), || {
                    format!("stage {k} writes array {x} twice, or writes an input")
                })?;
                holds(bytes[x] == ty.bytes(), || {
                    format!("stage {k} writes array {x} with another size, {ty}")
                })?;
                made[x] = true;
            }
        }
        holds(made.iter().all(|made| *made), || "an array of the row-wise step is never written".into())
    }
}

/// A nested program that runs for each block of rows.
///
/// Blocks are divided into groups of consecutive blocks, which may run in parallel. A group runs its blocks in order
/// and has its own copy of the sums; the copies are added in a tree. The order of additions is therefore independent of
/// the number of threads.
#[derive(Clone, Debug)]
pub struct RowBlockLoop {
    /// `(sums so far…, inputs…) → (sums…, outputs…)` for `block` rows.
    pub body: Arc<ProgramSchedule>,
    /// The same for the last block, if it is shorter.
    pub rest: Option<Arc<ProgramSchedule>>,
    /// Total number of rows.
    pub rows: usize,
    /// Rows per block.
    pub block: usize,
    /// Groups of consecutive blocks that may run in parallel.
    pub groups: usize,
    /// Types of the sums, which are the step's first results.
    pub sums: Vec<TensorType>,
    /// For each input of the step, bytes of one row; `None`: each block reads it whole.
    pub inputs: Vec<Option<usize>>,
    /// Bytes of one row of each result after the sums.
    pub outputs: Vec<usize>,
}

impl RowBlockLoop {
    /// Short name for listings and profiles.
    pub(super) fn name(&self) -> String {
        format!("blocks[{}×{}]", self.rows.div_ceil(self.block), self.block)
    }

    /// Whether output `o` may alias input `i`: each block's program reads its rows of `i` before it writes those of
    /// `o`.
    pub fn overwrites(&self, i: usize, o: usize) -> bool {
        let sums = self.sums.len();
        let Some(k) = o.checked_sub(sums) else { return false };
        self.inputs[i] == Some(self.outputs[k])
            && std::iter::once(&self.body).chain(&self.rest).all(|s| reads_before_writing(s, sums + i, o))
    }

    /// Number of arithmetic operations of all row blocks.
    pub fn flops(&self) -> f64 {
        let of = |s: &Arc<ProgramSchedule>| s.steps.iter().map(|step| step.flops).sum::<f64>();
        of(&self.body) * (self.rows / self.block) as f64 + self.rest.as_ref().map_or(0.0, of)
    }
}

/// Whether a program reads parameter `p` for the last time before it writes result `o`, or in the step that writes it
/// in place. A step that reads a part of the parameter as a view reads other elements than those that it writes.
fn reads_before_writing(s: &ProgramSchedule, p: usize, o: usize) -> bool {
    let Some(param) = s.slots.iter().position(|x| x.place == Location::Param(p)) else { return false };
    let Some((first, slot)) = s.first_write(o) else { return false };
    let is_view = |x: &&SlotStorage| matches!(x.place, Location::View(v) if s.views[v].of == param);
    let viewed = s.slots.iter().filter(is_view).map(|x| x.last).max();
    let last = s.slots[param].last;
    let in_place =
        last == first && viewed.is_none_or(|view| view < first) && s.steps[first].may_write_over(param, slot);
    s.slots[s.results[o].slot].place == Location::Result(o)
        && s.results.iter().all(|r| r.slot != param)
        && (last < first || in_place)
}

/// Whether result `o` of a branch may be in the memory of its parameter `p`: it is that parameter, or the branch does not
/// read the parameter after it has written the result.
pub(super) fn branch_overwrites(s: &ProgramSchedule, p: usize, o: usize) -> bool {
    let is_read = s.slots.iter().any(|x| x.place == Location::Param(p));
    !is_read || s.slots[s.results[o].slot].place == Location::Param(p) || reads_before_writing(s, p, o)
}
