//! Software prefetch of cache lines into L1 and L2.

use crate::simd::vector::Vector;

/// Prefetches one cache line into L1, for accesses that the hardware prefetcher does not predict.
#[inline(always)]
pub fn fetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may have any address; SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    let _ = p;
}

/// Prefetches the cache lines of `N` vectors into L1.
#[inline(always)]
pub fn prefetch_row<V: Vector, const N: usize>(row: *const V::T) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..N * V::LANES * size_of::<V::T>()).step_by(64) {
        let p = row.wrapping_byte_add(at);
        // SAFETY: a prefetch may have any address; SSE is part of the architecture.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast()) };
    }
    let _ = row;
}

/// Prefetches one cache line into L2.
#[inline(always)]
pub fn prefetch_far<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch may have any address; SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast())
    };
    let _ = p;
}
