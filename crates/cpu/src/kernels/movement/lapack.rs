//! Linear-algebra calls (`getrf`, `syevd`, `gesdd`, …), on the step's arrays in place. Threads share the matrices of a
//! batch.

use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use smallvec::SmallVec;
use std::sync::{Mutex, PoisonError};
use systole_compile::Step;
use systole_ir::op::CustomCall;
use systole_ir::op::custom_call::LAPACK;
use systole_ir::{Error, Result, TensorType};
use systole_linalg::LapackRoutine;

/// Maximum number of parts of a batch. They do not depend on the number of threads.
const PARTS: usize = 64;

/// Nanoseconds per element of a matrix, times its number of columns: decompositions need a few times n³ operations.
const NS: f64 = 1.5;

/// Kernel for a linear-algebra call on a matrix, or on matrices with leading batch dimensions.
pub struct LapackKernel {
    routine: LapackRoutine,
    /// Matrices of a part; the last may have fewer.
    part: usize,
    /// Bytes of each operand and of each result for one matrix.
    bytes: [Vec<usize>; 2],
    work_ns: f64,
}

impl LapackKernel {
    /// Creates the kernel; `None` for other calls, and if operands or results do not fit the routine.
    pub fn new(call: &CustomCall, step: &Step) -> Option<LapackKernel> {
        if call.target != LAPACK || call.has_side_effect {
            return None;
        }
        let types: Vec<&TensorType> = step.input_types.iter().collect();
        let routine = LapackRoutine::new(&call.config, &types, &step.output_types).ok()?;
        let first = step.input_types.first()?;
        let columns = *first.shape.last()? as f64;
        let work_ns = first.elements() as f64 * columns * NS;
        let (part, bytes) = (routine.batch().div_ceil(PARTS), routine.matrix_bytes());
        Some(LapackKernel { routine, part, bytes, work_ns })
    }

    /// Computes `n` matrices from number `at` on.
    ///
    /// # Safety
    /// `inputs` and `outputs` are the addresses of the step's arrays, and no other thread writes these matrices.
    unsafe fn run_part(&self, at: usize, n: usize, inputs: &[Ptr], outputs: &[Ptr]) -> Result<()> {
        let args = inputs.iter().zip(&self.bytes[0]);
        // SAFETY: the arrays have `batch` matrices of these sizes, and the part is within them.
        let args = args.map(|(ptr, bytes)| unsafe {
            std::slice::from_raw_parts(ptr.at(at * bytes).cast_const(), n * bytes)
        });
        let args: SmallVec<[&[u8]; 8]> = args.collect();
        let results = outputs.iter().zip(&self.bytes[1]);
        // SAFETY: as above; results do not overlap, and no other thread uses this part of them.
        let results = results
            .map(|(ptr, bytes)| unsafe { std::slice::from_raw_parts_mut(ptr.at(at * bytes), n * bytes) });
        let mut results: SmallVec<[&mut [u8]; 9]> = results.collect();
        self.routine.run(n, &args, &mut results)
    }
}

impl Kernel for LapackKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let inputs: SmallVec<[Ptr; 8]> = io.inputs.iter().map(|&p| Ptr::of(p)).collect();
        let outputs: SmallVec<[Ptr; 9]> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let batch = self.routine.batch();
        if batch <= 1 {
            // SAFETY: by the contract of `Kernel::run`.
            return unsafe { self.run_part(0, batch, &inputs, &outputs) };
        }
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let body = |part: usize| {
            let at = part * self.part;
            // SAFETY: by the contract of `Kernel::run`; parts are disjoint.
            if let Err(e) = unsafe { self.run_part(at, self.part.min(batch - at), &inputs, &outputs) } {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        };
        cx.team.run_with(batch.div_ceil(self.part), self.work_ns, cx.flush, &body);
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
