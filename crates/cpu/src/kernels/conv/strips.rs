//! Convolutions that pack their kernel once and then compute the result strip by strip of pixels.

use crate::kernel::{Cx, Io, Kernel, Ptr};
use crate::kernels::conv::batch_statistics::BatchStatistics;
use crate::kernels::conv::operands::Arrays;
use crate::kernels::conv::staging::Staging;
use crate::simd::level::TileFn;
use systole_compile::Pool;
use systole_ir::{Result, TensorType};

/// A convolution by strips. Working memory has the packed kernel, the bias as f32 in whole vectors, and what strips leave
/// for statistics.
pub trait Strips: Send + Sync {
    /// How strips of the input are brought to working memory.
    fn staging(&self) -> &Staging;

    /// Statistics of the result, where they are gathered: two more results.
    fn statistics(&self) -> Option<&BatchStatistics>;

    /// Bytes of the packed kernel, and of the bias.
    fn bytes(&self) -> [usize; 2];

    /// How a bias is widened, and its features, where there is one.
    fn bias(&self) -> Option<(Option<TileFn>, usize)>;

    /// Whether the kernel lies as it would be packed.
    fn is_packed(&self) -> bool {
        false
    }

    /// Packs the kernel.
    ///
    /// # Safety
    /// The kernel has the type that this was made for; `packed` has room.
    unsafe fn pack(&self, cx: &Cx<'_>, kernel: Ptr, packed: Ptr);

    /// Tasks, and what they take on one core, in nanoseconds.
    fn tasks(&self) -> (usize, f64);

    /// Computes one task's part of the result, and leaves its statistics.
    ///
    /// # Safety
    /// The arrays have the types that this was made for; the kernel is packed.
    unsafe fn task(&self, task: usize, to: &Arrays);

    /// See [`Kernel::pool_result`].
    fn pool(&mut self, pool: &Pool, y: &TensorType) -> bool {
        let _ = (pool, y);
        false
    }
}

impl<S: Strips> Kernel for S {
    fn scratch(&self) -> usize {
        let statistics = self.statistics().map_or(0, |s| s.elements(self.staging().batch()));
        self.bytes().iter().sum::<usize>() + statistics * 4
    }

    fn pool_result(&mut self, pool: &Pool, y: &TensorType) -> bool {
        self.pool(pool, y)
    }

    fn kept(&self, same: &[bool]) -> usize {
        if same[1] && !self.is_packed() { self.bytes()[0] } else { 0 }
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.pack(cx, Ptr::of(inputs[1]), Ptr(kept)) };
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch has room for the packed kernel.
        unsafe {
            if self.is_packed() {
                return self.run_kept(cx, io, io.inputs[1]);
            }
            self.pack(cx, Ptr::of(io.inputs[1]), Ptr(io.scratch));
            self.run_kept(cx, io, io.scratch)
        }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: scratch has those parts.
        let arrays = unsafe { Arrays::new(io, kept, self.bytes(), self.bias()) };
        // SAFETY: the kernel is packed; tasks write disjoint parts of the result.
        let body = |task: usize| unsafe { self.task(task, &arrays) };
        let (tasks, work) = self.tasks();
        cx.team.run_with(tasks, work, cx.flush, &body);
        if let Some(statistics) = self.statistics() {
            // SAFETY: every strip has left its part; two more results have a value for each feature of each image.
            unsafe { statistics.write(self.staging().batch(), arrays.statistics, io) };
        }
        Ok(())
    }
}
