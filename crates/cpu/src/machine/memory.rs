//! Aligned memory, and how much of it is available.

use std::alloc::{Layout, alloc, dealloc};
use systole_ir::{Error, ErrorKind, Result};

/// Owned, initially zero bytes. Aligned to cache lines; from 1 MiB on to huge pages.
pub struct Memory {
    ptr: *mut u8,
    bytes: usize,
    layout: Layout,
}

// SAFETY: plain bytes with one owner; access follows Rust's rules for the `Memory` itself.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared `Memory` is only read.
unsafe impl Sync for Memory {}

/// Size of a huge page. Kernels walk along columns: with small pages each element would need its own TLB entry.
const HUGE: usize = 2 << 20;

impl Memory {
    /// Allocates `bytes` zero bytes.
    pub fn new(bytes: usize) -> Result<Memory> {
        // The last page is rounded up to a huge one if most of it is used.
        let huge = bytes.saturating_add(HUGE / 2) / HUGE * HUGE;
        let align = if huge > 0 { HUGE } else { systole_compile::ALIGN };
        let layout =
            Layout::from_size_align(bytes.max(huge).max(1), align).map_err(|_| out_of_memory(bytes))?;
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            return Err(out_of_memory(bytes));
        }
        // Before the first write, which fixes the page size.
        if huge > 0 {
            advise_huge(ptr, layout.size());
        }
        // SAFETY: the allocation has that many bytes.
        unsafe { ptr.write_bytes(0, layout.size()) };
        Ok(Memory { ptr, bytes, layout })
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

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed once.
        unsafe { dealloc(self.ptr, self.layout) };
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

/// Resident memory of this process in bytes; `None` if the system does not report it.
pub(crate) fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_aligned() {
        for bytes in [0, 1, 100, 5 << 20] {
            let m = Memory::new(bytes).unwrap();
            assert!((m.ptr() as usize).is_multiple_of(64) && m.bytes().iter().all(|&b| b == 0));
        }
        assert!(Memory::new(usize::MAX / 2).is_err());
    }
}
