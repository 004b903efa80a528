//! Runs an unmasked JIT loop on a tail smaller than a vector, through padded buffers that are copied in and out.

use crate::simd::jit::steps::{ACCUMULATORS, JitStep, StepBuilder};
use smallvec::SmallVec;

/// Function type of a JIT-compiled loop. Arguments: pointers to the arrays, and the number of elements.
pub type LoopFn = unsafe extern "sysv64" fn(*const *mut u8, usize);

/// Bytes of an AVX2 vector.
const VECTOR: usize = 32;

/// How a loop uses one of its arrays.
struct ArrayUse {
    array: usize,
    /// Bytes per element.
    size: usize,
    /// Whether it is the accumulators of a reduction (see `Operand::around`).
    around: bool,
    read: bool,
    written: bool,
}

/// Array usage of a loop, needed to run its tail.
pub struct LoopTail {
    lanes: usize,
    parts: Vec<ArrayUse>,
}

impl LoopTail {
    pub fn new(steps: &StepBuilder) -> LoopTail {
        let mut parts: Vec<ArrayUse> = Vec::new();
        for step in &steps.list {
            let (place, read) = match step {
                JitStep::Load(place) => (place, true),
                JitStep::Store(place, _) => (place, false),
                _ => continue,
            };
            let known = parts.iter().position(|p| p.array == place.array).unwrap_or_else(|| {
                let (array, size) = (place.array, place.form.size() as usize);
                parts.push(ArrayUse { array, size, around: place.around, read: false, written: false });
                parts.len() - 1
            });
            parts[known].read |= read;
            parts[known].written |= !read;
        }
        LoopTail { lanes: steps.set.lanes(), parts }
    }

    /// Runs the JIT loop on `n` elements, including a tail smaller than a vector.
    ///
    /// # Safety
    /// As for [`JitLoop::run`](super::JitLoop::run); `code` is the loop that this was made for.
    #[inline]
    pub unsafe fn run(&self, code: LoopFn, arrays: &[*mut u8], n: usize) {
        let left = n % self.lanes;
        // SAFETY: guaranteed by the caller, for whole vectors of its elements.
        unsafe { code(arrays.as_ptr(), n - left) };
        if left > 0 {
            // SAFETY: guaranteed by the caller, for the elements after those.
            unsafe { self.run_left(code, arrays, n - left, left) };
        }
    }

    unsafe fn run_left(&self, code: LoopFn, arrays: &[*mut u8], from: usize, left: usize) {
        let mut vectors: SmallVec<[[u8; VECTOR]; 16]> = SmallVec::from_elem([0; VECTOR], self.parts.len());
        let mut table: SmallVec<[*mut u8; 24]> = SmallVec::from_slice(arrays);
        let place = |p: &ArrayUse| {
            let first = if p.around { from % ACCUMULATORS } else { from };
            arrays[p.array].wrapping_add(first * p.size)
        };
        for (p, vector) in self.parts.iter().zip(&mut vectors) {
            if p.read {
                // SAFETY: the array has these elements, and they fit a vector.
                unsafe { std::ptr::copy_nonoverlapping(place(p), vector.as_mut_ptr(), left * p.size) };
            }
            table[p.array] = vector.as_mut_ptr();
        }
        // SAFETY: every array that the loop streams has been replaced by a buffer of one vector.
        unsafe { code(table.as_ptr(), self.lanes) };
        for (p, vector) in self.parts.iter().zip(&vectors).filter(|(p, _)| p.written) {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(vector.as_ptr(), place(p), left * p.size) };
        }
    }
}
