//! Parallel reduction over the batch: tasks sum parts of a batch, and a fixed binary tree adds the partial sums.
//!
//! The number of parts does not depend on the number of threads, so results are bit-identical for any number.

use crate::kernel::{Io, KernelContext, Ptr};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::narrow;
use systole_compile::ALIGN;
use systole_ir::TensorType;

/// Partial sums of a weight gradient: `[count, size]` in f32 scratch. With one part and an f32 result, they are the
/// result itself.
pub struct PartialSums {
    pub count: usize,
    /// Elements of the result.
    pub size: usize,
    narrow: Option<TileFn>,
    /// Whether the sum is accumulated into the result (beta = 1).
    onto: bool,
}

impl PartialSums {
    pub fn new(count: usize, y: &TensorType, level: Level) -> PartialSums {
        PartialSums { count, size: y.elements(), narrow: narrow(y.dtype, level), onto: false }
    }

    fn are_apart(&self) -> bool {
        self.count > 1 || self.narrow.is_some()
    }

    /// Returns the size of the scratch memory for partial sums, in bytes.
    pub fn bytes(&self) -> usize {
        if self.are_apart() { (self.count * self.size * 4).next_multiple_of(ALIGN) } else { 0 }
    }

    /// Makes the partial sums accumulate into the result. Returns whether that is supported; it is not if results are
    /// rounded.
    pub fn add_to_result(&mut self) -> bool {
        self.onto = self.narrow.is_none();
        self.onto
    }

    /// Whether tasks accumulate into the result from the first sum on: there is one part, and it is the result.
    pub fn begin_with_result(&self) -> bool {
        self.onto && !self.are_apart()
    }

    /// Computes the partial sums: runs `per_part` tasks for each part, with task index, input, cotangent and sums as
    /// arguments, and reduces the parts.
    ///
    /// # Safety
    /// Tasks write disjoint elements of the sums, and together all of them; `io.scratch` has [`PartialSums::bytes`]
    /// bytes.
    pub unsafe fn sum(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        per_part: usize,
        work: f64,
        task: &(dyn Fn(usize, *const u8, *const u8, *mut f32) + Sync),
    ) {
        let (x, dy, sums) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), self.place(io));
        let body = |i: usize| task(i, x.at(0), dy.at(0), sums.elem(0));
        cx.team.run_with(self.count * per_part, work, cx.flush, &body);
        // SAFETY: all tasks have written their sums.
        unsafe { self.finish(cx, io) };
    }

    /// Returns the address of the first part's sums.
    fn place(&self, io: &Io<'_>) -> Ptr {
        Ptr(if self.are_apart() { io.scratch } else { io.outputs[0] })
    }

    /// Reduces the parts into the result.
    ///
    /// # Safety
    /// The sums are complete, and at [`PartialSums::place`].
    unsafe fn finish(&self, cx: &KernelContext<'_>, io: &Io<'_>) {
        if self.are_apart() {
            let finish =
                if self.onto { SumStore::Add } else { self.narrow.map_or(SumStore::Copy, SumStore::Narrow) };
            // SAFETY: guaranteed by the caller; the result has `size` elements.
            unsafe { sum_parts(cx, io.scratch.cast(), self.count, self.size, io.outputs[0], finish) };
        }
    }
}

/// Implements [`Kernel`](crate::kernel::Kernel) for a weight gradient with fields and methods `parts`, `per_part` and
/// `task`. The expression is the time of all tasks on one core in nanoseconds.
macro_rules! kernel_of_parts {
    ($name:ty, |$this:ident| $work:expr) => {
        impl $crate::kernel::Kernel for $name {
            fn scratch(&self) -> usize {
                self.parts.bytes()
            }

            fn add_to_result(&mut self) -> bool {
                self.parts.add_to_result()
            }

            unsafe fn run(
                &self,
                cx: &$crate::kernel::KernelContext<'_>,
                io: &$crate::kernel::Io<'_>,
            ) -> systole_ir::Result<()> {
                let $this = self;
                let work: f64 = $work;
                // SAFETY: tasks write disjoint sums.
                let task = |i: usize, x: *const u8, dy: *const u8, sums: *mut f32| unsafe {
                    self.task(i, x, dy, sums)
                };
                // SAFETY: as above; the tasks of a part write all of its sums.
                unsafe { self.parts.sum(cx, io, self.per_part(), work, &task) };
                Ok(())
            }
        }
    };
}
pub(crate) use kernel_of_parts;

/// How a sum is stored: overwrite, accumulate or narrow.
#[derive(Clone, Copy)]
pub enum SumStore {
    Copy,
    /// Accumulate into the result.
    Add,
    /// Round to 16 bits with this loop.
    Narrow(TileFn),
}

/// Adds `rows: f32[parts, size]` over `parts` in a fixed binary tree, which overwrites `rows`. `finish` stores the sum to
/// `out`.
///
/// # Safety
/// `rows` has `parts · size` elements, which are overwritten; `out` has room for `size` elements.
pub unsafe fn sum_parts(
    cx: &KernelContext<'_>,
    rows: *mut f32,
    parts: usize,
    size: usize,
    out: *mut u8,
    finish: SumStore,
) {
    const BLOCK: usize = 4096;
    let (rows, out) = (Ptr(rows.cast()), Ptr(out));
    let body = |block: usize| {
        let from = block * BLOCK;
        let n = BLOCK.min(size - from);
        let mut step = 1;
        while step < parts {
            for p in (0..parts - step).step_by(2 * step) {
                // SAFETY: the two rows are different, and tasks have disjoint blocks of them.
                let (sum, more) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(rows.elem::<f32>(p * size + from), n),
                        std::slice::from_raw_parts(rows.elem::<f32>((p + step) * size + from), n),
                    )
                };
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
            step *= 2;
        }
        let sum = rows.elem::<f32>(from).cast_const();
        // SAFETY: tasks have disjoint blocks of the result.
        unsafe {
            match finish {
                SumStore::Narrow(f) => f(out.at(from * 2), sum.cast(), sum.cast(), sum.cast(), n),
                SumStore::Copy => std::ptr::copy_nonoverlapping(sum, out.elem(from), n),
                SumStore::Add => {
                    let (sum, out) = (
                        std::slice::from_raw_parts(sum, n),
                        std::slice::from_raw_parts_mut(out.elem::<f32>(from), n),
                    );
                    out.iter_mut().zip(sum).for_each(|(out, sum)| *out += sum);
                }
            }
        }
    };
    cx.team.run_with(size.div_ceil(BLOCK), (parts * size) as f64 * 0.3, cx.flush, &body);
}
