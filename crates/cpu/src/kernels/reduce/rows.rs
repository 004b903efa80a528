//! Fused row programs (softmax, layer normalization), computed one block of rows at a time.
//!
//! All element-wise steps and reductions run for a block of rows before the next block: intermediate arrays exist for
//! one block only and stay in the cache. The plan is [`FusedRows`].

use crate::kernel::elementwise::MapKernel;
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::reduce::fold::ReduceKernel;
use crate::simd::level::Level;
use smallvec::SmallVec;
use systole_compile::{FusedRows, Kernel as Plan, Step};
use systole_ir::Result;

/// Maximum bytes that a block of rows touches in all arrays, unless it is a single row: less than a core's L2 cache.
const BLOCK_BYTES: usize = 1 << 18;
/// Minimum number of blocks, so that all threads get work, unless blocks would become smaller than [`LEAST_BYTES`].
const BLOCKS: usize = 16;
/// Minimum bytes that a block touches: below this the overhead per block outweighs its work.
const LEAST_BYTES: usize = 1 << 14;

/// Kernel of a stage.
pub(crate) enum StageKernel {
    Map(MapKernel),
    Fold(ReduceKernel),
}

/// One element-wise program or reduction of the step.
///
/// `inputs` and `outputs` are indices of arrays: the step's inputs, its outputs, then the locals.
pub(crate) struct RowsStage {
    pub work: StageKernel,
    pub inputs: Vec<usize>,
    pub outputs: Vec<usize>,
}

/// Kernel of a row program, bound to a step.
pub struct RowsKernel {
    rows: usize,
    /// Rows per block.
    block: usize,
    stages: Vec<RowsStage>,
    /// Per local array: bytes of a row, and offset of the current block's rows in scratch.
    locals: Vec<(usize, usize)>,
    scratch: usize,
    work_ns: f64,
}

impl RowsKernel {
    /// Creates the kernel of a row-wise fusion (softmax, layer normalization).
    pub fn new(plan: &FusedRows, step: &Step, level: Level) -> RowsKernel {
        let of_rows = step.input_types.iter().chain(&step.output_types).map(|t| t.bytes() / plan.rows);
        let row_bytes = of_rows.sum::<usize>() + plan.locals.iter().sum::<usize>();
        let rows_of = |bytes: usize| (bytes / row_bytes.max(1)).clamp(1, plan.rows);
        let block = rows_of(BLOCK_BYTES).min(plan.rows.div_ceil(BLOCKS)).max(rows_of(LEAST_BYTES));
        // Blocks of nearly equal size: otherwise the last block could be short, which balances threads badly.
        let block = plan.rows.div_ceil(plan.rows.div_ceil(block));
        let mut scratch = 0;
        let locals = plan.locals.iter().map(|&bytes| {
            let at = scratch;
            scratch += (bytes * block).next_multiple_of(64);
            (bytes, at)
        });
        let locals: Vec<(usize, usize)> = locals.collect();
        let stages: Vec<RowsStage> = plan.stages.iter().map(|s| RowsStage::new(s, level)).collect();
        let work_ns = stages.iter().map(|s| s.work.nanoseconds()).sum();
        RowsKernel { rows: plan.rows, block, stages, locals, scratch, work_ns }
    }
}

impl RowsStage {
    fn new(step: &Step, level: Level) -> RowsStage {
        let work = match &step.kernel {
            Plan::Map(m) => StageKernel::Map(MapKernel::new(m, level)),
            Plan::Reduce { map, folded, monoid } => {
                StageKernel::Fold(ReduceKernel::new(map, folded, *monoid, step, level))
            }
            other => systole_ir::bug!("unexpected {} in a row program", other.name()),
        };
        RowsStage { work, inputs: step.inputs.clone(), outputs: step.outputs.clone() }
    }
}

impl StageKernel {
    /// Returns the estimated time of the row program on one core, in nanoseconds.
    pub fn nanoseconds(&self) -> f64 {
        match self {
            StageKernel::Map(m) => m.elements() as f64 * 0.15 * m.weight(),
            StageKernel::Fold(f) => f.work(),
        }
    }
}

impl Kernel for RowsKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let inputs = io.inputs.iter().map(|&p| Ptr::of(p));
        let arrays: SmallVec<[Ptr; 16]> = inputs.chain(io.outputs.iter().map(|&p| Ptr(p))).collect();
        let body = |block: usize| {
            let rows = block * self.block..((block + 1) * self.block).min(self.rows);
            with_scratch(self.scratch, |scratch| {
                // Stages address rows by their index in the whole array, so the base of a local array is moved back.
                let locals = self
                    .locals
                    .iter()
                    .map(|&(bytes, at)| scratch.wrapping_add(at).wrapping_sub(rows.start * bytes));
                let arrays: SmallVec<[*mut u8; 24]> = arrays.iter().map(|p| p.at(0)).chain(locals).collect();
                for stage in &self.stages {
                    let inputs: SmallVec<[*const u8; 8]> =
                        stage.inputs.iter().map(|&k| arrays[k].cast_const()).collect();
                    let outputs: SmallVec<[*mut u8; 4]> = stage.outputs.iter().map(|&k| arrays[k]).collect();
                    // SAFETY: by the contract of `Kernel::run`. By the plan, a stage reads only these rows of arrays
                    // that other stages write, so blocks are independent; locals have room for a block's rows.
                    unsafe {
                        match &stage.work {
                            StageKernel::Map(m) => {
                                let each = m.elements() / self.rows;
                                m.range(&inputs, &outputs, rows.start * each..rows.end * each);
                            }
                            StageKernel::Fold(f) => f.rows(&inputs, &outputs, rows.clone()),
                        }
                    }
                }
            });
        };
        cx.team.run_with(self.rows.div_ceil(self.block), self.work_ns, cx.flush, &body);
        Ok(())
    }
}
