//! Parallel loop over equal-sized blocks of an array.

use crate::machine::thread_pool::ThreadPool;

/// A raw pointer that threads may share.
pub(super) struct SharedAddress<T>(pub *mut T);

// SAFETY: users of the pointer write only to blocks that no other thread touches.
unsafe impl<T: Send> Send for SharedAddress<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedAddress<T> {}

impl<T> SharedAddress<T> {
    pub(super) fn at(&self, at: usize) -> *mut T {
        self.0.wrapping_add(at)
    }
}

/// Calls `f(index, block)` for each block of `size` elements, in any order and on any thread. `work_ns`: total time of
/// all blocks on one core, in nanoseconds.
///
/// ```
/// let mut y = [0; 5];
/// systole_cpu::int8::in_chunks(&systole_cpu::ThreadPool::new(2), &mut y, 2, 1e6, |n, part| part.fill(n));
/// assert_eq!(y, [0, 0, 1, 1, 2]);
/// ```
pub fn in_chunks<T: Send>(
    team: &ThreadPool,
    y: &mut [T],
    size: usize,
    work_ns: f64,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let (length, size) = (y.len(), size.max(1));
    let to = SharedAddress(y.as_mut_ptr());
    team.run(length.div_ceil(size), work_ns, &|n| {
        let from = n * size;
        // SAFETY: disjoint blocks of one array, one per call.
        let part = unsafe { std::slice::from_raw_parts_mut(to.at(from), size.min(length - from)) };
        f(n, part);
    });
}
