//! Aligned memory allocation with reuse of freed memory, and queries for available memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::{Mutex, PoisonError};
use systole_ir::{Error, Result, ensure, err, knobs};

/// Owned memory, aligned to cache lines; to huge pages from 1 MiB on.
pub struct AlignedMemory {
    ptr: *mut u8,
    bytes: usize,
    layout: Layout,
}

// SAFETY: plain bytes with one owner; access follows Rust's rules for the `AlignedMemory` itself.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above; a shared `AlignedMemory` is only read.
unsafe impl Sync for AlignedMemory {}

/// Size of a huge page. Kernels walk along columns: with small pages each element would need its own TLB entry.
const HUGE: usize = 2 << 20;

impl AlignedMemory {
    /// Allocates `bytes` bytes, filled with zeros.
    pub fn new(bytes: usize) -> Result<AlignedMemory> {
        let memory = AlignedMemory::of(bytes)?;
        // SAFETY: the allocation has that many bytes.
        unsafe { memory.ptr.write_bytes(0, memory.layout.size()) };
        Ok(memory)
    }

    /// Allocates `bytes` bytes without initializing them; the caller overwrites all. New pages are then faulted in by
    /// the threads that write them, in parallel.
    pub fn unfilled(bytes: usize) -> Result<AlignedMemory> {
        let memory = AlignedMemory::of(bytes)?;
        if cfg!(debug_assertions) {
            // SAFETY: the allocation has that many bytes. Debug builds fill with NaN, so that unwritten elements show
            // up in tests.
            unsafe { memory.ptr.write_bytes(0xff, memory.layout.size()) };
        }
        Ok(memory)
    }

    fn of(bytes: usize) -> Result<AlignedMemory> {
        // The last page is rounded up to a huge one if most of it is used.
        let huge = bytes.saturating_add(HUGE / 2) / HUGE * HUGE;
        let align = if huge > 0 { HUGE } else { systole_compile::ALIGN };
        let layout =
            Layout::from_size_align(bytes.max(huge).max(1), align).map_err(|_| out_of_memory(bytes))?;
        if huge > 0
            && let Some(ptr) = kept().take(layout)
        {
            return Ok(AlignedMemory { ptr, bytes, layout });
        }
        // SAFETY: the size is not zero.
        let mut ptr = unsafe { System.alloc(layout) };
        if ptr.is_null() {
            kept().shrink(0);
            // SAFETY: as above.
            ptr = unsafe { System.alloc(layout) };
        }
        ensure!(!ptr.is_null(), out_of_memory(bytes));
        // Before the first write, which fixes the page size.
        if huge > 0 {
            advise_huge(ptr, layout.size());
            kept().used += layout.size();
        }
        Ok(AlignedMemory { ptr, bytes, layout })
    }

    /// Pointer to the first byte of the memory.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Returns the contents of the memory as bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` points to `bytes` initialized (zeroed) bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    /// Fills the memory with a byte.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: the allocation has that many bytes, and nothing else refers to it.
        unsafe { self.ptr.write_bytes(byte, self.bytes) };
    }

    /// Returns the size of the memory in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        match self.layout.align() {
            HUGE => kept().keep(self.ptr, self.layout),
            // SAFETY: allocated with this layout and freed once.
            _ => unsafe { System.dealloc(self.ptr, self.layout) },
        }
    }
}

/// Bytes of freed memory that are always kept for reuse: a page from the system costs as much as a few passes over it.
/// In addition, as many bytes are kept as are in use. If the caller keeps a step's arguments alive, as other frameworks
/// do, the next step needs the memory of all its results again.
const ALWAYS_KEPT: usize = 64 << 20;

/// If an allocation has at least this many bytes and little memory is left, kept memory is freed first.
const SMALL: usize = 256 << 20;

/// A freed block that is kept for reuse: its address and layout.
struct FreeBlock {
    all: Vec<(usize, Layout)>,
    bytes: usize,
    /// Bytes in use, of blocks large enough to be kept.
    used: usize,
}

static KEPT: Mutex<FreeBlock> = Mutex::new(FreeBlock { all: Vec::new(), bytes: 0, used: 0 });

fn kept() -> std::sync::MutexGuard<'static, FreeBlock> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FreeBlock {
    /// Takes the most recently freed block of this layout.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let Some(at) = self.all.iter().rposition(|(_, l)| *l == layout) else {
            if self.bytes > SMALL && free().is_some_and(|free| free < layout.size().saturating_add(SMALL)) {
                self.shrink(0);
            }
            return None;
        };
        self.bytes -= layout.size();
        self.used += layout.size();
        Some(self.all.remove(at).0 as *mut u8)
    }

    /// Keeps a freed block. If too much is kept, the oldest blocks are freed.
    fn keep(&mut self, ptr: *mut u8, layout: Layout) {
        self.all.push((ptr as usize, layout));
        self.bytes += layout.size();
        self.used -= layout.size();
        if self.bytes > ALWAYS_KEPT {
            // A memory limit applies to the whole process.
            let is_limited = knobs::MEMORY_LIMIT.get_bytes().is_ok_and(|limit| limit.is_some());
            self.shrink(if is_limited { ALWAYS_KEPT } else { self.used.max(ALWAYS_KEPT) });
        }
    }

    /// Frees kept blocks until at most `most` bytes remain.
    fn shrink(&mut self, most: usize) {
        let mut left = self.bytes;
        let goes = self.all.iter().take_while(|(_, layout)| {
            let is_over = left > most;
            left -= if is_over { layout.size() } else { 0 };
            is_over
        });
        let goes = goes.count();
        for (ptr, layout) in self.all.drain(..goes) {
            // SAFETY: an `AlignedMemory` of this layout was dropped, and nothing else refers to it.
            unsafe { System.dealloc(ptr as *mut u8, layout) };
        }
        self.bytes = left;
    }
}

#[cfg(target_os = "linux")]
fn advise_huge(ptr: *mut u8, bytes: usize) {
    unsafe extern "C" {
        fn madvise(addr: *mut std::ffi::c_void, length: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    // SAFETY: only advice about memory that we own; it changes no contents, and failure is harmless.
    unsafe { madvise(ptr.cast(), bytes, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_: *mut u8, _: usize) {}

fn out_of_memory(bytes: usize) -> Error {
    err!(Unsupported, "cannot allocate {:.1} MiB of memory", bytes as f64 / (1 << 20) as f64)
        .because("the memory or the address space of the process is limited (ulimit -v, a container)")
        .hint("raise the limit, or use a smaller batch: --batch-size")
}

/// Returns the bytes that this process can still use: the machine's available memory, or the rest of its cgroup limit
/// if that is less. Returns `None` if the system does not report it.
pub fn available() -> Option<usize> {
    Some(free()?.saturating_add(kept().bytes))
}

/// Like [`available`], but without freed memory that this process keeps for reuse.
fn free() -> Option<usize> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let machine = line.split_whitespace().nth(1)?.parse::<usize>().ok()?.checked_mul(1024)?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let left = |limit: &str, used: &str| Some(number(limit)?.saturating_sub(number(used)?));
    let group = left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current").or_else(|| {
        left("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
    });
    Some(group.map_or(machine, |g| g.min(machine)))
}

/// Returns the resident memory of this process in bytes, without freed memory kept for reuse; `None` if the system does
/// not report it.
pub(crate) fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let all = line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)?;
    Some(all.saturating_sub(kept().bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_aligned() {
        for bytes in [0, 1, 100, 5 << 20] {
            let m = AlignedMemory::new(bytes).unwrap();
            assert!((m.ptr() as usize).is_multiple_of(64) && m.bytes().iter().all(|&b| b == 0));
        }
        assert!(AlignedMemory::new(usize::MAX / 2).is_err());
    }

    #[test]
    fn freed_memory_is_used_again_and_bounded() {
        for round in 0..50 {
            let all: Vec<AlignedMemory> = (1..6).map(|i| AlignedMemory::unfilled(i << 21).unwrap()).collect();
            // SAFETY: the memory has that many bytes.
            all.iter().for_each(|m| unsafe { m.ptr().write_bytes(round, m.len()) });
        }
        assert!(AlignedMemory::new(6 << 20).unwrap().bytes().iter().all(|&b| b == 0));
        let all = |n: usize| (0..n).map(|_| AlignedMemory::unfilled(20 << 20).unwrap()).collect::<Vec<_>>();
        let first = all(8);
        let second = all(8);
        drop(first);
        let bounds = |kept: &FreeBlock| {
            assert!(kept.bytes <= ALWAYS_KEPT.max(kept.used), "{} kept, {} used", kept.bytes, kept.used);
            assert_eq!(kept.bytes, kept.all.iter().map(|(_, l)| l.size()).sum::<usize>());
            kept.bytes
        };
        // As many bytes as are in use; other tests allocate and free some.
        assert!(bounds(&kept()) >= 7 * (20 << 20));
        drop(second);
        bounds(&kept());
        kept().shrink(0);
        assert_eq!(kept().all.iter().filter(|(_, l)| l.size() == 20 << 20).count(), 0);
        // With a memory limit nothing is kept for reuse.
        let [first, second] = [all(8), all(8)];
        knobs::override_value(knobs::MEMORY_LIMIT, "1024GiB");
        drop(first);
        let limited = kept().bytes;
        knobs::override_value(knobs::MEMORY_LIMIT, "");
        assert!(limited <= ALWAYS_KEPT, "{limited}");
        drop(second);
    }
}
