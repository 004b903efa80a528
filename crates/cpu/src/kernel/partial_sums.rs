//! Sums of parts of a batch, made by different tasks and put together in a tree: the same bits for any number of threads.

use crate::kernel::{Cx, Io, Ptr};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::narrow;
use systole_compile::ALIGN;
use systole_ir::TensorType;

/// The sums of a kernel's gradient: of each part of the batch apart, or where there is one part in the result.
pub struct PartialSums {
    pub count: usize,
    /// Elements of the result.
    pub size: usize,
    narrow: Option<TileFn>,
    /// The sum is added to what the result holds.
    onto: bool,
}

impl PartialSums {
    pub fn new(count: usize, y: &TensorType, level: Level) -> PartialSums {
        PartialSums { count, size: y.elements(), narrow: narrow(y.dtype, level), onto: false }
    }

    fn are_apart(&self) -> bool {
        self.count > 1 || self.narrow.is_some()
    }

    /// Bytes of working memory.
    pub fn bytes(&self) -> usize {
        if self.are_apart() { (self.count * self.size * 4).next_multiple_of(ALIGN) } else { 0 }
    }

    /// Asks for the sum to be added to what the result holds; whether it will.
    pub fn add_to_result(&mut self) -> bool {
        self.onto = self.narrow.is_none();
        self.onto
    }

    /// Whether the first of a part's sums are added to what is there.
    pub fn begin_with_result(&self) -> bool {
        self.onto && !self.are_apart()
    }

    /// Runs `per_part` tasks for each part, which add to its sums from input and cotangent, and puts the parts together.
    ///
    /// # Safety
    /// Tasks of a part have sums of their own, all of which they set; there is the working memory that was asked for.
    pub unsafe fn sum(
        &self,
        cx: &Cx<'_>,
        io: &Io<'_>,
        per_part: usize,
        work: f64,
        task: &(dyn Fn(usize, *const u8, *const u8, *mut f32) + Sync),
    ) {
        let (x, dy, sums) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), self.place(io));
        let body = |i: usize| task(i, x.at(0), dy.at(0), sums.elem(0));
        cx.team.run_with(self.count * per_part, work, cx.flush, &body);
        // SAFETY: every task has left its sums.
        unsafe { self.finish(cx, io) };
    }

    /// Where the first part's sums go.
    fn place(&self, io: &Io<'_>) -> Ptr {
        Ptr(if self.are_apart() { io.scratch } else { io.outputs[0] })
    }

    /// Puts the parts' sums together.
    ///
    /// # Safety
    /// They are complete, and lie where [`PartialSums::place`] says.
    unsafe fn finish(&self, cx: &Cx<'_>, io: &Io<'_>) {
        if self.are_apart() {
            let finish =
                if self.onto { Finish::Add } else { self.narrow.map_or(Finish::Copy, Finish::Narrow) };
            // SAFETY: by the caller's promise; the result has `size` elements.
            unsafe { sum_parts(cx, io.scratch.cast(), self.count, self.size, io.outputs[0], finish) };
        }
    }
}

/// What becomes of a sum.
#[derive(Clone, Copy)]
pub enum Finish {
    Copy,
    /// Added to what the result holds.
    Add,
    /// Rounded by this loop to 16 bits.
    Narrow(TileFn),
}

/// Sums `parts` rows of `size` elements in a tree, and writes the sum.
///
/// # Safety
/// `rows` holds that many elements, which are overwritten; `out` has room for one row.
pub unsafe fn sum_parts(
    cx: &Cx<'_>,
    rows: *mut f32,
    parts: usize,
    size: usize,
    out: *mut u8,
    finish: Finish,
) {
    const BLOCK: usize = 4096;
    let (rows, out) = (Ptr(rows.cast()), Ptr(out));
    let body = |block: usize| {
        let from = block * BLOCK;
        let n = BLOCK.min(size - from);
        let mut step = 1;
        while step < parts {
            for p in (0..parts - step).step_by(2 * step) {
                // SAFETY: two different rows; blocks are disjoint parts of them.
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
        // SAFETY: blocks are disjoint parts of the result.
        unsafe {
            match finish {
                Finish::Narrow(f) => f(out.at(from * 2), sum.cast(), sum.cast(), sum.cast(), n),
                Finish::Copy => std::ptr::copy_nonoverlapping(sum, out.elem(from), n),
                Finish::Add => {
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
