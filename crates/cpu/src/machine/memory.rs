//! Aligned memory, and how much of it is available.

use std::alloc::{Layout, alloc, dealloc};
use std::sync::{Mutex, PoisonError};
use systole_ir::{Error, ErrorKind, Result, knobs};

/// Owned, initially zero bytes. Aligned to cache lines; from 1 MiB on to huge pages.
pub struct AlignedMemory {
    ptr: *mut u8,
    bytes: usize,
    layout: Layout,
}

// SAFETY: plain bytes with one owner; access follows Rust's rules for the `Memory` itself.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above; a shared `Memory` is only read.
unsafe impl Sync for AlignedMemory {}

/// Size of a huge page. Kernels walk along columns: with small pages each element would need its own TLB entry.
const HUGE: usize = 2 << 20;

impl AlignedMemory {
    /// Allocates `bytes` zero bytes.
    pub fn new(bytes: usize) -> Result<AlignedMemory> {
        let memory = AlignedMemory::of(bytes)?;
        // SAFETY: the allocation has that many bytes.
        unsafe { memory.ptr.write_bytes(0, memory.layout.size()) };
        Ok(memory)
    }

    /// `bytes` bytes that are about to be written from end to end: until then they are whatever was there before. Pages that the
    /// system gives anew are made by the threads that write them, side by side.
    pub fn unfilled(bytes: usize) -> Result<AlignedMemory> {
        let memory = AlignedMemory::of(bytes)?;
        if cfg!(debug_assertions) {
            // SAFETY: the allocation has that many bytes. NaN for floats: what is left unwritten shows in tests.
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
        let mut ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            kept().shrink(0);
            // SAFETY: as above.
            ptr = unsafe { alloc(layout) };
        }
        if ptr.is_null() {
            return Err(out_of_memory(bytes));
        }
        // Before the first write, which fixes the page size.
        if huge > 0 {
            advise_huge(ptr, layout.size());
            kept().used += layout.size();
        }
        Ok(AlignedMemory { ptr, bytes, layout })
    }

    /// The first byte.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` points to `bytes` initialised (zeroed) bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        match self.layout.align() {
            HUGE => kept().keep(self.ptr, self.layout),
            // SAFETY: allocated with this layout and freed once.
            _ => unsafe { dealloc(self.ptr, self.layout) },
        }
    }
}

/// Bytes of freed memory that are kept in any case for the next array of the same size: the system gives each page anew at a
/// cost that is that of a few passes over it. As many bytes as are in use are kept too: a step whose arguments stay,
/// as those of other frameworks do, needs the memory of all its results again in the next one, and had it before.
const ALWAYS_KEPT: usize = 64 << 20;

/// From so many bytes on, kept memory goes before new memory is taken from a machine that has little left.
const SMALL: usize = 256 << 20;

/// Freed memory that is kept: where it begins, and its layout.
struct FreeBlock {
    all: Vec<(usize, Layout)>,
    bytes: usize,
    /// Bytes in use, of the sizes that are kept.
    used: usize,
}

static KEPT: Mutex<FreeBlock> = Mutex::new(FreeBlock { all: Vec::new(), bytes: 0, used: 0 });

fn kept() -> std::sync::MutexGuard<'static, FreeBlock> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FreeBlock {
    /// The memory that was freed last of those of a layout.
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

    /// Keeps memory that was in use. What was freed longest ago goes first where there is too much.
    fn keep(&mut self, ptr: *mut u8, layout: Layout) {
        self.all.push((ptr as usize, layout));
        self.bytes += layout.size();
        self.used -= layout.size();
        if self.bytes > ALWAYS_KEPT {
            // A limit is for all that the process has.
            let is_limited = knobs::MEMORY_LIMIT.get_bytes().is_ok_and(|limit| limit.is_some());
            self.shrink(if is_limited { ALWAYS_KEPT } else { self.used.max(ALWAYS_KEPT) });
        }
    }

    /// Gives memory back until so many bytes at most are kept.
    fn shrink(&mut self, most: usize) {
        let mut left = self.bytes;
        let goes = self.all.iter().take_while(|(_, layout)| {
            let is_over = left > most;
            left -= if is_over { layout.size() } else { 0 };
            is_over
        });
        let goes = goes.count();
        for (ptr, layout) in self.all.drain(..goes) {
            // SAFETY: `Memory` of this layout was dropped, and nothing else refers to it.
            unsafe { dealloc(ptr as *mut u8, layout) };
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
    // SAFETY: advice about memory that we own; it changes no contents, and a refusal is harmless.
    unsafe { madvise(ptr.cast(), bytes, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_: *mut u8, _: usize) {}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("cannot get {:.1} MiB of memory", bytes as f64 / (1 << 20) as f64),
    )
    .hint("use a smaller batch")
}

/// Bytes that this process may still use: the machine's available memory, or the rest of its cgroup's limit if that is
/// less. `None` if the system does not report it.
pub fn available() -> Option<usize> {
    Some(free()?.saturating_add(kept().bytes))
}

/// As [`available`], without what this process keeps of freed memory.
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

/// Resident memory of this process in bytes, without what it keeps of freed memory; `None` if the system does not report it.
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
        // As many as are in use; other tests use and free some.
        assert!(bounds(&kept()) >= 7 * (20 << 20));
        drop(second);
        bounds(&kept());
        kept().shrink(0);
        assert_eq!(kept().all.iter().filter(|(_, l)| l.size() == 20 << 20).count(), 0);
        // What a limit is for has no memory beside it.
        let [first, second] = [all(8), all(8)];
        knobs::override_value(knobs::MEMORY_LIMIT, "1024GiB");
        drop(first);
        let limited = kept().bytes;
        knobs::override_value(knobs::MEMORY_LIMIT, "");
        assert!(limited <= ALWAYS_KEPT, "{limited}");
        drop(second);
    }
}
