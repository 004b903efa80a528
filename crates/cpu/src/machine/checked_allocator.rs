//! [`CheckedAllocator`]: global allocator that calls a handler when memory is exhausted, before the process aborts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The system's allocator, with a function that is called with the size if memory is refused, for example because the
/// address space is limited (`ulimit -v`). That function may end the process; it must not allocate. If it returns, the
/// process aborts as it does without it.
///
/// ```no_run
/// #[global_allocator]
/// static ALLOCATOR: systole_cpu::CheckedAllocator = systole_cpu::CheckedAllocator::new(|_| std::process::exit(1));
/// # fn main() {}
/// ```
pub struct CheckedAllocator {
    report: fn(usize),
    /// Set by the first report, so that a report that allocates does not report again.
    has_reported: AtomicBool,
}

impl CheckedAllocator {
    /// Creates the allocator with the function to call.
    pub const fn new(report: fn(usize)) -> CheckedAllocator {
        CheckedAllocator { report, has_reported: AtomicBool::new(false) }
    }

    fn checked(&self, ptr: *mut u8, bytes: usize) -> *mut u8 {
        if ptr.is_null() && !self.has_reported.swap(true, Relaxed) {
            (self.report)(bytes);
        }
        ptr
    }
}

// SAFETY: every call is passed on to the system's allocator, whose results are returned unchanged.
unsafe impl GlobalAlloc for CheckedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of this call.
        self.checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.checked(unsafe { System.realloc(ptr, layout, size) }, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn only_refused_memory_is_reported_and_only_once() {
        static REFUSED: AtomicUsize = AtomicUsize::new(0);
        let allocator = CheckedAllocator::new(|bytes| {
            REFUSED.fetch_add(bytes, Relaxed);
        });
        let small = Layout::from_size_align(64, 8).unwrap();
        let huge = Layout::from_size_align(1 << 62, 8).unwrap();
        // SAFETY: the sizes are not zero, and what was allocated is freed with its layout.
        unsafe {
            let ptr = allocator.alloc_zeroed(small);
            assert!(!ptr.is_null());
            let ptr = allocator.realloc(ptr, small, 128);
            allocator.dealloc(ptr, Layout::from_size_align(128, 8).unwrap());
            assert_eq!(REFUSED.load(Relaxed), 0);
            // The optimizer removes allocations that nothing uses.
            let is_refused = || black_box(allocator.alloc(black_box(huge))).is_null();
            assert!(is_refused() && is_refused());
        }
        assert_eq!(REFUSED.load(Relaxed), 1 << 62);
    }
}
