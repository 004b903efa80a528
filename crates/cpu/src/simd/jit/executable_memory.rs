//! Executable memory for JIT code.
//!
//! Loops of a few hundred bytes share pages, which are mapped twice: once to write them and once to execute them, so
//! that no mapping is both (W^X). Where the system does not allow that, each loop has pages of its own.

use std::ffi::{c_char, c_long, c_void};
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Executable code; its pages are unmapped when all loops in them are dropped.
pub struct ExecutableMemory {
    code: *const c_void,
    _pages: Arc<Mapping>,
}

// SAFETY: the memory is only read and executed after `new`.
unsafe impl Send for ExecutableMemory {}
// SAFETY: as above.
unsafe impl Sync for ExecutableMemory {}

unsafe extern "C" {
    fn mmap(at: *mut c_void, bytes: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, bytes: usize, access: i32) -> i32;
    fn munmap(at: *mut c_void, bytes: usize) -> i32;
    fn ftruncate(file: i32, bytes: i64) -> i32;
    fn close(file: i32) -> i32;
    fn syscall(number: c_long, ...) -> c_long;
}

const READ: i32 = 1;
const WRITE: i32 = 2;
const RUN: i32 = 4;
const SHARED: i32 = 1;
const PRIVATE: i32 = 2;
const ANONYMOUS: i32 = 0x20;
/// `memfd_create` of x86-64, which old C libraries do not export, and its flag `MFD_CLOEXEC`.
const MEMFD_CREATE: c_long = 319;
const CLOSE_ON_EXEC: c_long = 1;

/// Bytes of pages that loops share. One loop in use keeps them all.
const SHARED_BYTES: usize = 32 << 10;

/// Loops start at cache lines.
const LINE: usize = 64;

/// A mapping, unmapped when dropped.
struct Mapping {
    at: *mut c_void,
    bytes: usize,
}

// SAFETY: the address of memory that no reference points into.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize, access: i32, flags: i32, file: i32) -> Option<Mapping> {
        // SAFETY: a mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe { mmap(null_mut(), bytes, access, flags, file, 0) };
        (at as isize != -1).then_some(Mapping { at, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; code runs only while a reference to its owner is held.
        unsafe { munmap(self.at, self.bytes) };
    }
}

/// Pages that have room for more loops.
struct OpenPages {
    write: Mapping,
    run: Arc<Mapping>,
    used: usize,
    /// A forked child shares the pages, and must not write to the same place as its parent.
    process: u32,
}

static OPEN: Mutex<Option<OpenPages>> = Mutex::new(None);

/// Whether the system refused pages that are mapped twice.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

impl OpenPages {
    fn new() -> Option<OpenPages> {
        let name: *const c_char = c"systole-jit".as_ptr();
        // SAFETY: the system call reads the name, and returns a new file or -1.
        let file =
            i32::try_from(unsafe { syscall(MEMFD_CREATE, name, CLOSE_ON_EXEC) }).ok().filter(|f| *f >= 0)?;
        let map = |access| Mapping::new(SHARED_BYTES, access, SHARED, file);
        // SAFETY: the file was created above, and has no other owner.
        let sized = unsafe { ftruncate(file, SHARED_BYTES as i64) } == 0;
        let both = if sized { map(READ | WRITE).zip(map(READ | RUN)) } else { None };
        // SAFETY: as above; mappings keep the memory.
        unsafe { close(file) };
        let (write, run) = both?;
        Some(OpenPages { write, run: Arc::new(run), used: 0, process: std::process::id() })
    }

    fn add(&mut self, code: &[u8]) -> ExecutableMemory {
        let at = self.used;
        self.used = (at + code.len()).next_multiple_of(LINE);
        // SAFETY: the caller checked the room; no loop is at `at` or behind it.
        unsafe { copy_nonoverlapping(code.as_ptr(), self.write.at.cast::<u8>().add(at), code.len()) };
        let code = self.run.at.cast::<u8>().wrapping_add(at).cast_const().cast();
        ExecutableMemory { code, _pages: self.run.clone() }
    }
}

impl ExecutableMemory {
    /// Copies `code` to executable memory; returns `None` if the system does not allow it, as on hardened systems.
    pub fn new(code: &[u8]) -> Option<ExecutableMemory> {
        ExecutableMemory::in_shared_pages(code).or_else(|| ExecutableMemory::alone(code))
    }

    fn in_shared_pages(code: &[u8]) -> Option<ExecutableMemory> {
        if code.len() > SHARED_BYTES / 2 || IS_REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = |p: &OpenPages| p.used + code.len() <= SHARED_BYTES && p.process == std::process::id();
        if !open.as_ref().is_some_and(has_room) {
            *open = OpenPages::new();
            IS_REFUSED.store(open.is_none(), Ordering::Relaxed);
        }
        open.as_mut().map(|pages| pages.add(code))
    }

    /// Copies `code` to pages of its own.
    fn alone(code: &[u8]) -> Option<ExecutableMemory> {
        let pages = Mapping::new(code.len(), READ | WRITE, PRIVATE | ANONYMOUS, -1)?;
        // SAFETY: the mapping is writable, has that many bytes, and nothing else refers to it.
        unsafe { copy_nonoverlapping(code.as_ptr(), pages.at.cast(), code.len()) };
        // SAFETY: changes the protection of our own mapping; no Rust reference points into it.
        let is_refused = unsafe { mprotect(pages.at, pages.bytes, READ | RUN) } != 0;
        (!is_refused).then(|| ExecutableMemory { code: pages.at, _pages: Arc::new(pages) })
    }

    /// Pointer to the first byte of the machine code.
    pub fn entry(&self) -> *const c_void {
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that returns `x`: `mov eax, x; ret`.
    fn constant(x: i32) -> Vec<u8> {
        [&[0xb8][..], &x.to_le_bytes(), &[0xc3]].concat()
    }

    fn call(memory: &ExecutableMemory) -> i32 {
        // SAFETY: the code is a function without arguments that returns an i32.
        unsafe { std::mem::transmute::<*const c_void, extern "C" fn() -> i32>(memory.entry())() }
    }

    /// More functions than fit into the pages of one mapping, some of them dropped, in shared pages and alone.
    #[test]
    fn functions_share_pages_and_outlive_each_other() {
        for new in [ExecutableMemory::new, ExecutableMemory::alone] {
            let mut all: Vec<ExecutableMemory> =
                (0..2000).map(|x| new(&constant(x)).expect("the system allows it")).collect();
            let mut rest = (0..2000).collect::<Vec<i32>>();
            all = all.into_iter().enumerate().filter(|(i, _)| i % 3 == 0).map(|(_, m)| m).collect();
            rest.retain(|i| i % 3 == 0);
            all.extend((5000..5600).map(|x| new(&constant(x)).expect("the system allows it")));
            rest.extend(5000..5600);
            assert!(all.iter().zip(&rest).all(|(memory, x)| call(memory) == *x));
        }
        let large = [vec![0x90; SHARED_BYTES], constant(7)].concat();
        assert_eq!(call(&ExecutableMemory::new(&large).expect("the system allows it")), 7);
    }
}
