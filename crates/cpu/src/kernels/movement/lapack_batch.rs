//! Linear-algebra calls (`syevd`, `gesdd`, …) for a batch of matrices: threads share the matrices.

use crate::kernel::literal::literal;
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use std::sync::{Mutex, PoisonError};
use systole_compile::Step;
use systole_ir::interp::EvalCx;
use systole_ir::op::custom_call::{LAPACK, lapack_batch_dims};
use systole_ir::op::{CustomCall, OpRule};
use systole_ir::{Error, Literal, Result, TensorType};

/// Maximum number of parts of a batch. They do not depend on the number of threads.
const PARTS: usize = 64;

/// Nanoseconds per element of a matrix, times its number of columns: decompositions need a few times n³ operations.
const NS: f64 = 1.5;

/// Kernel for a linear-algebra call on matrices with leading batch dimensions.
pub struct LapackBatchKernel {
    call: CustomCall,
    /// Number of matrices.
    batch: usize,
    /// Matrices of a part; the last may have fewer.
    part: usize,
    /// Types of operands and results for one matrix.
    inputs: Vec<TensorType>,
    outputs: Vec<TensorType>,
    work_ns: f64,
}

impl LapackBatchKernel {
    /// Creates the kernel; `None` for other calls, for one matrix, and if operands or results differ in their batch
    /// dimensions.
    pub fn new(call: &CustomCall, step: &Step) -> Option<LapackBatchKernel> {
        let first = step.input_types.first()?;
        if call.target != LAPACK || call.has_side_effect {
            return None;
        }
        let dims = lapack_batch_dims(&call.config, first.rank())?;
        let lead = &first.shape[..dims];
        let batch: usize = lead.iter().product();
        let own = |ty: &TensorType| (ty.shape.get(..dims)? == lead).then(|| ty.with_shape(&ty.shape[dims..]));
        let inputs = step.input_types.iter().map(own).collect::<Option<Vec<_>>>()?;
        let outputs = step.output_types.iter().map(own).collect::<Option<Vec<_>>>()?;
        let columns = *first.shape.last()? as f64;
        let work_ns = first.elements() as f64 * columns * NS;
        let part = batch.div_ceil(PARTS);
        (batch > 1).then(|| LapackBatchKernel { call: call.clone(), batch, part, inputs, outputs, work_ns })
    }

    /// Computes `n` matrices from number `at` on.
    ///
    /// # Safety
    /// `inputs` and `outputs` are the addresses of the step's arrays, and no other thread writes these matrices.
    unsafe fn run_part(&self, at: usize, n: usize, inputs: &[Ptr], outputs: &[Ptr]) -> Result<()> {
        let of_part = |ty: &TensorType| {
            let shape: Vec<usize> = [n].into_iter().chain(ty.shape.iter().copied()).collect();
            ty.with_shape(shape)
        };
        let mut args = Vec::with_capacity(inputs.len());
        for (ty, ptr) in self.inputs.iter().zip(inputs) {
            // SAFETY: the array has `batch` matrices of this type, and the part is within them.
            args.push(unsafe { literal(&of_part(ty), ptr.at(at * ty.bytes()).cast_const())? });
        }
        let refs: Vec<&Literal> = args.iter().collect();
        let results: Vec<TensorType> = self.outputs.iter().map(of_part).collect();
        let call = CustomCall { results: results.clone(), ..self.call.clone() };
        let values = call.eval(&mut EvalCx::default(), &refs, &results.into_iter().collect())?;
        for ((value, ty), out) in values.iter().zip(&self.outputs).zip(outputs) {
            let bytes = value.bytes();
            // SAFETY: as above; `eval` returns the types in `results`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.at(at * ty.bytes()), bytes.len()) };
        }
        Ok(())
    }
}

impl Kernel for LapackBatchKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let inputs: Vec<Ptr> = io.inputs.iter().map(|&p| Ptr::of(p)).collect();
        let outputs: Vec<Ptr> = io.outputs.iter().map(|&p| Ptr(p)).collect();
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let body = |part: usize| {
            let at = part * self.part;
            // SAFETY: by the contract of `Kernel::run`; parts are disjoint.
            if let Err(e) = unsafe { self.run_part(at, self.part.min(self.batch - at), &inputs, &outputs) } {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
        };
        cx.team.run_with(self.batch.div_ceil(self.part), self.work_ns, cx.flush, &body);
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
