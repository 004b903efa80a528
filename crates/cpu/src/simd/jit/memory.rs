//! Memory that holds machine code: written first, then executable, never both.

use std::ffi::c_void;

/// Executable code, freed with its owner.
pub struct Executable {
    code: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory is only read and run after it was made.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, bytes: usize, access: i32) -> i32;
    fn munmap(at: *mut c_void, bytes: usize) -> i32;
}

const READ: i32 = 1;
const WRITE: i32 = 2;
const RUN: i32 = 4;
const PRIVATE: i32 = 2;
const ANONYMOUS: i32 = 0x20;

impl Executable {
    /// A copy of `code`; `None` where the system refuses, as hardened ones do.
    pub fn new(code: &[u8]) -> Option<Executable> {
        let bytes = code.len();
        // SAFETY: a new mapping, in no memory that is in use.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0) };
        if at as isize == -1 {
            return None;
        }
        let made = Executable { code: at, bytes };
        // SAFETY: the mapping has that many bytes, writable, and nobody else knows it.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast(), bytes) };
        // SAFETY: the access to our own mapping is changed; no reference points into it.
        let refused = unsafe { mprotect(at, bytes, READ | RUN) } != 0;
        (!refused).then_some(made)
    }

    /// The first byte.
    pub fn entry(&self) -> *const c_void {
        self.code
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; whoever runs the code holds a reference to its owner.
        unsafe { munmap(self.code, self.bytes) };
    }
}
