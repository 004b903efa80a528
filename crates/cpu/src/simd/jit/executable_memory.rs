//! Executable memory for JIT code: written first, then made executable; never both at once (W^X).

use std::ffi::c_void;

/// Executable memory, unmapped when dropped.
pub struct ExecutableMemory {
    code: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory is only read and executed after `new`.
unsafe impl Send for ExecutableMemory {}
// SAFETY: as above.
unsafe impl Sync for ExecutableMemory {}

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

impl ExecutableMemory {
    /// Copies `code` to executable memory; returns `None` if the system does not allow it, as on hardened systems.
    pub fn new(code: &[u8]) -> Option<ExecutableMemory> {
        let bytes = code.len();
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0) };
        if at as isize == -1 {
            return None;
        }
        let made = ExecutableMemory { code: at, bytes };
        // SAFETY: the mapping is writable, has that many bytes, and nothing else refers to it.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast(), bytes) };
        // SAFETY: changes the protection of our own mapping; no Rust reference points into it.
        let refused = unsafe { mprotect(at, bytes, READ | RUN) } != 0;
        (!refused).then_some(made)
    }

    /// Pointer to the first byte of the machine code.
    pub fn entry(&self) -> *const c_void {
        self.code
    }
}

impl Drop for ExecutableMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; code runs only while a reference to its owner is held.
        unsafe { munmap(self.code, self.bytes) };
    }
}
