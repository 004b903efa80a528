//! Vectors of f32 that are loaded from bf16 and rounded to bf16.

use crate::simd::math;
use crate::simd::vector::{Portable32, Vector};

/// Conversions of f32 vectors from and to bf16. A rounded vector stays f32; its values are representable in bf16.
///
/// # Safety
/// As for [`Vector`].
pub unsafe trait Halves: Vector<T = f32> {
    /// Loads and widens.
    unsafe fn load_wide(p: *const u16) -> Self;
    /// Rounds to the nearest bf16.
    unsafe fn narrow(self) -> Self;
    /// As [`Halves::narrow`], for finite values only.
    unsafe fn narrow_finite(self) -> Self;
    /// Stores values that are representable in bf16, by truncation.
    unsafe fn store_narrow(self, p: *mut u16);
}

// SAFETY: scalar code, available everywhere.
unsafe impl Halves for Portable32 {
    #[inline(always)]
    unsafe fn load_wide(p: *const u16) -> Self {
        // SAFETY: the caller has the vector's elements at `p`.
        Portable32(unsafe { *p.cast::<[u16; 4]>() }.map(math::from_bf16))
    }
    #[inline(always)]
    unsafe fn narrow(self) -> Self {
        Portable32(self.0.map(|x| math::from_bf16(math::to_bf16(x))))
    }
    #[inline(always)]
    unsafe fn narrow_finite(self) -> Self {
        // SAFETY: available everywhere.
        unsafe { self.narrow() }
    }
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut u16) {
        // SAFETY: the caller has room for the vector's elements at `p`.
        unsafe { *p.cast() = self.0.map(|x| (x.to_bits() >> 16) as u16) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Halves;
    use crate::simd::vector::x86::{V8x32, V16x32};
    use std::arch::x86_64::*;

    // SAFETY: callers ensure that the CPU has these instructions.
    unsafe impl Halves for V16x32 {
        #[inline(always)]
        unsafe fn load_wide(p: *const u16) -> Self {
            // SAFETY: the CPU has the level; the caller has the vector's elements at `p`.
            unsafe {
                let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                V16x32(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)))
            }
        }
        #[inline(always)]
        unsafe fn narrow(self) -> Self {
            // SAFETY: the CPU has the level, by the caller's promise.
            unsafe {
                let x = _mm512_castps_si512(self.0);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(x), _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                let up = _mm512_mask_or_epi32(up, nan, x, _mm512_set1_epi32(0x40_0000));
                V16x32(_mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(0xffff_0000u32 as i32))))
            }
        }
        #[inline(always)]
        unsafe fn narrow_finite(self) -> Self {
            // SAFETY: the CPU has the level, by the caller's promise.
            unsafe {
                let x = _mm512_castps_si512(self.0);
                let odd = _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x1_0000));
                let up = _mm512_add_epi32(x, _mm512_set1_epi32(0x7fff));
                let up = _mm512_mask_add_epi32(up, odd, x, _mm512_set1_epi32(0x8000));
                V16x32(_mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(0xffff_0000u32 as i32))))
            }
        }
        #[inline(always)]
        unsafe fn store_narrow(self, p: *mut u16) {
            // SAFETY: the CPU has the level; the caller has room for the vector's elements at `p`.
            unsafe {
                let high = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
                _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(high));
            }
        }
    }

    // SAFETY: as above.
    unsafe impl Halves for V8x32 {
        #[inline(always)]
        unsafe fn load_wide(p: *const u16) -> Self {
            // SAFETY: the CPU has the level; the caller has the vector's elements at `p`.
            unsafe {
                let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                V8x32(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)))
            }
        }
        #[inline(always)]
        unsafe fn narrow(self) -> Self {
            // SAFETY: the CPU has the level, by the caller's promise.
            unsafe {
                let x = _mm256_castps_si256(self.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(x), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
                let quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x40_0000));
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
                let up = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
                let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000u32 as i32));
                V8x32(_mm256_and_ps(up, high))
            }
        }
        #[inline(always)]
        unsafe fn narrow_finite(self) -> Self {
            // SAFETY: the CPU has the level, by the caller's promise.
            unsafe {
                let x = _mm256_castps_si256(self.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(x), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
                let high = _mm256_set1_epi32(0xffff_0000u32 as i32);
                V8x32(_mm256_castsi256_ps(_mm256_and_si256(up, high)))
            }
        }
        #[inline(always)]
        unsafe fn store_narrow(self, p: *mut u16) {
            // SAFETY: the CPU has the level; the caller has room for the vector's elements at `p`.
            unsafe {
                let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
                let (a, b) = (_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
                _mm_storeu_si128(p.cast(), _mm_packus_epi32(a, b));
            }
        }
    }
}
