//! Hints to the hardware: cache lines that will be needed.

use crate::simd::vector::Vector;

/// Asks for the cache line of an address: where the hardware cannot foresee what comes next.
#[inline(always)]
pub fn fetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, for which any address will do.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    let _ = p;
}

/// Asks for the cache lines of `N` vectors.
#[inline(always)]
pub fn prefetch_row<V: Vector, const N: usize>(row: *const V::T) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..N * V::LANES * size_of::<V::T>()).step_by(64) {
        let p = row.wrapping_byte_add(at);
        // SAFETY: a hint; SSE is part of the architecture.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast()) };
    }
    let _ = row;
}

/// Asks for a cache line for the second cache.
#[inline(always)]
pub fn prefetch_far<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast())
    };
    let _ = p;
}
