//! Convolutions by strips: the filter is packed once, then the result is computed strip by strip of output pixels.

pub mod batch_statistics;
pub mod strip_arrays;

use crate::kernel::{EpilogueFn, Io, Kernel, KernelContext, OutputBlock, Ptr};
use crate::kernels::conv::strips::batch_statistics::BatchStatistics;
use crate::kernels::conv::strips::strip_arrays::StripArrays;
use crate::simd::level::TileFn;
use systole_compile::MaxPoolArgmax;
use systole_ir::{Result, TensorType};

/// A forward convolution that runs by strips. Its scratch holds, in this order: the packed filter, the bias as f32 in
/// whole vectors, and the partial statistics of all strips.
pub trait StripConvolution: Send + Sync {
    /// Number of images.
    fn batch(&self) -> usize;

    /// Returns the statistics of the result, if they are gathered. The step then has two more results.
    fn statistics(&self) -> Option<&BatchStatistics>;

    /// Bytes of the packed filter, and of the bias.
    fn bytes(&self) -> [usize; 2];

    /// Returns, if there is a bias, the loop that widens it to f32 (`None`: it is f32) and its elements.
    fn bias(&self) -> Option<(Option<TileFn>, usize)>;

    /// Whether the filter is already stored in packed order, and is read in place.
    fn is_packed(&self) -> bool {
        false
    }

    /// Packs the filter.
    ///
    /// # Safety
    /// `kernel` has the type that the kernel was created for; `packed` has room for the packed filter.
    unsafe fn pack(&self, cx: &KernelContext<'_>, kernel: Ptr, packed: Ptr);

    /// Number of tasks, and the total time of all tasks on one core in nanoseconds.
    fn tasks(&self) -> (usize, f64);

    /// Computes one task's part of the result and stores its partial statistics.
    ///
    /// # Safety
    /// The arrays have the types that the kernel was created for; the filter is packed.
    unsafe fn task(&self, task: usize, to: &StripArrays);

    /// Returns the block of the result that one task writes, and the bytes of an element; `None` if it is not a block,
    /// or tasks write more than the convolution's result.
    fn block(&self, task: usize) -> Option<(OutputBlock, usize)> {
        let _ = task;
        None
    }

    /// Fuses max pooling into the kernel, if it supports that; see [`Kernel::pool_result`].
    fn pool(&mut self, pool: &MaxPoolArgmax, y: &TensorType) -> bool {
        let _ = (pool, y);
        false
    }
}

impl<S: StripConvolution> Kernel for S {
    fn scratch(&self) -> usize {
        let statistics = self.statistics().map_or(0, |s| s.elements(self.batch()));
        self.bytes().iter().sum::<usize>() + statistics * 4
    }

    fn pool_result(&mut self, pool: &MaxPoolArgmax, y: &TensorType) -> bool {
        self.pool(pool, y)
    }

    fn kept(&self, same: &[bool]) -> usize {
        if same[1] && !self.is_packed() { self.bytes()[0] } else { 0 }
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: the caller passes the filter that the kernel was created for, and `kept` has room for the packed
        // filter.
        unsafe { self.pack(cx, Ptr::of(inputs[1]), Ptr(kept)) };
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch starts with room for the packed filter; a filter that is read in place needs none.
        unsafe {
            if self.is_packed() {
                return self.run_kept(cx, io, io.inputs[1]);
            }
            self.pack(cx, Ptr::of(io.inputs[1]), Ptr(io.scratch));
            self.run_kept(cx, io, io.scratch)
        }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { run_strips(self, cx, io, kept, None) };
        Ok(())
    }

    fn hand_over_blocks(&mut self) -> bool {
        self.statistics().is_none() && self.tasks().0 > 0 && self.block(0).is_some()
    }

    unsafe fn run_by_blocks(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        take: EpilogueFn<'_>,
        kept: *const u8,
    ) {
        let kept = match kept.is_null() {
            false => kept,
            true if self.is_packed() => io.inputs[1],
            true => {
                // SAFETY: scratch starts with room for the packed filter.
                unsafe { self.pack(cx, Ptr::of(io.inputs[1]), Ptr(io.scratch)) };
                io.scratch
            }
        };
        // SAFETY: by the caller's promise; `kept` is the packed filter.
        unsafe { run_strips(self, cx, io, kept, Some(take)) };
    }
}

/// Computes all strips with the packed filter `kept`; `take` gets the block of each.
///
/// # Safety
/// As for [`Kernel::run_kept`].
unsafe fn run_strips<S: StripConvolution>(
    s: &S,
    cx: &KernelContext<'_>,
    io: &Io<'_>,
    kept: *const u8,
    take: Option<EpilogueFn<'_>>,
) {
    // SAFETY: `scratch` counts these parts, and there is a third input if there is a bias.
    let arrays = unsafe { StripArrays::new(io, kept, s.bytes(), s.bias()) };
    let body = |task: usize| {
        // SAFETY: the filter is packed; tasks write disjoint parts of the result and of the statistics.
        unsafe { s.task(task, &arrays) };
        if let (Some(take), Some((block, element))) = (take, s.block(task)) {
            take(&block, arrays.y.at(block.first * element));
        }
    };
    let (tasks, work) = s.tasks();
    cx.team.run_with(tasks, work, cx.flush, &body);
    if let Some(statistics) = s.statistics() {
        // SAFETY: every strip has stored its partial statistics; results 1 and 2 have an element for each feature of each
        // image.
        unsafe { statistics.write(s.batch(), arrays.statistics, io) };
    }
}
