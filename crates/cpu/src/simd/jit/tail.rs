//! Elements that fill no vector, for loops that have no masks: copied to arrays that have room for one, and back.

use crate::simd::jit::steps::{ACCUMULATORS, Step, Steps};
use smallvec::SmallVec;

/// A loop's machine code: the arrays' addresses, and how many elements.
pub type Code = unsafe extern "sysv64" fn(*const *mut u8, usize);

/// Bytes of a vector.
const VECTOR: usize = 32;

/// What a loop does to one of its arrays.
struct ArrayUse {
    array: usize,
    /// Bytes of an element.
    size: usize,
    /// Whether it is accumulators that every round starts again with.
    around: bool,
    read: bool,
    written: bool,
}

/// What the loop needs to know of its arrays.
pub struct Rest {
    lanes: usize,
    parts: Vec<ArrayUse>,
}

impl Rest {
    pub fn new(steps: &Steps) -> Rest {
        let mut parts: Vec<ArrayUse> = Vec::new();
        for step in &steps.list {
            let (place, read) = match step {
                Step::Load(place) => (place, true),
                Step::Store(place, _) => (place, false),
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
        Rest { lanes: steps.set.lanes(), parts }
    }

    /// Runs the loop for `n` elements.
    ///
    /// # Safety
    /// As for the `run` of the loop; `code` is the loop that this was made with.
    #[inline]
    pub unsafe fn run(&self, code: Code, arrays: &[*mut u8], n: usize) {
        let left = n % self.lanes;
        // SAFETY: whole vectors of the caller's elements.
        unsafe { code(arrays.as_ptr(), n - left) };
        if left > 0 {
            // SAFETY: the caller's elements from there on.
            unsafe { self.run_left(code, arrays, n - left, left) };
        }
    }

    unsafe fn run_left(&self, code: Code, arrays: &[*mut u8], from: usize, left: usize) {
        let mut vectors: SmallVec<[[u8; VECTOR]; 16]> = SmallVec::from_elem([0; VECTOR], self.parts.len());
        let mut table: SmallVec<[*mut u8; 24]> = SmallVec::from_slice(arrays);
        let place = |p: &ArrayUse| {
            let first = if p.around { from % ACCUMULATORS } else { from };
            arrays[p.array].wrapping_add(first * p.size)
        };
        for (p, vector) in self.parts.iter().zip(&mut vectors) {
            if p.read {
                // SAFETY: these elements are the array's, and fit a vector.
                unsafe { std::ptr::copy_nonoverlapping(place(p), vector.as_mut_ptr(), left * p.size) };
            }
            table[p.array] = vector.as_mut_ptr();
        }
        // SAFETY: all arrays that the loop walks along have room for one vector.
        unsafe { code(table.as_ptr(), self.lanes) };
        for (p, vector) in self.parts.iter().zip(&vectors).filter(|(p, _)| p.written) {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(vector.as_ptr(), place(p), left * p.size) };
        }
    }
}
