//! Dequantizing loads: int8 and int4 weights as vectors of f32.

use super::vector::{Portable32, Vector};

/// f32 vectors that can be loaded from int8 and int4.
pub trait DequantizeLoad: Vector<T = f32> {
    /// Loads `n` int8, at most one per lane; the other lanes are 0.
    unsafe fn bytes(p: *const u8, n: usize) -> Self;
    /// Loads `n` int4, two per byte, the first in the low half.
    unsafe fn halves(p: *const u8, n: usize) -> Self;
}

/// Loads as many of eight bytes as `n` int4 occupy.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn word(p: *const u8, n: usize) -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), n.min(16).div_ceil(2)) };
    u64::from_le_bytes(bytes)
}

impl DequantizeLoad for Portable32 {
    #[inline(always)]
    unsafe fn bytes(p: *const u8, n: usize) -> Self {
        let mut all = [0.0; Self::LANES];
        for (i, y) in all.iter_mut().enumerate().take(n) {
            // SAFETY: guaranteed by the caller.
            *y = f32::from(unsafe { *p.add(i) } as i8);
        }
        Portable32(all)
    }
    #[inline(always)]
    unsafe fn halves(p: *const u8, n: usize) -> Self {
        let mut all = [0.0; Self::LANES];
        for (i, y) in all.iter_mut().enumerate().take(n) {
            // SAFETY: guaranteed by the caller.
            let byte = unsafe { *p.add(i / 2) };
            // The sign is the highest of the four bits.
            *y = f32::from((byte << (4 - i % 2 * 4)) as i8 >> 4);
        }
        Portable32(all)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{DequantizeLoad, word};
    use crate::simd::vector::x86::{V8x32, V16x32};
    use std::arch::x86_64::*;

    impl DequantizeLoad for V8x32 {
        #[inline(always)]
        unsafe fn bytes(p: *const u8, n: usize) -> Self {
            // SAFETY: the level is available, and the caller has the bytes there.
            unsafe {
                let word = if n >= 8 { p.cast::<u64>().read_unaligned() } else { word(p, 2 * n) };
                let bytes = _mm_cvtsi64_si128(word as i64);
                V8x32(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)))
            }
        }
        #[inline(always)]
        unsafe fn halves(p: *const u8, n: usize) -> Self {
            // SAFETY: as above.
            unsafe {
                let word = if n >= 8 { p.cast::<u32>().read_unaligned() } else { word(p, n) as u32 };
                let to_top = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
                let top = _mm256_sllv_epi32(_mm256_set1_epi32(word as i32), to_top);
                let all = V8x32(_mm256_cvtepi32_ps(_mm256_srai_epi32::<28>(top)));
                if n % 2 == 1 && n < 8 { without_last(all, n) } else { all }
            }
        }
    }

    /// Clears the extra value in the byte of an odd last value.
    #[inline(always)]
    unsafe fn without_last(all: V8x32, n: usize) -> V8x32 {
        use crate::simd::vector::Vector;
        let mut lanes = [0f32; 8];
        // SAFETY: as above.
        unsafe {
            all.store(lanes.as_mut_ptr());
            V8x32::load_part(lanes.as_ptr(), n)
        }
    }

    impl DequantizeLoad for V16x32 {
        #[inline(always)]
        unsafe fn bytes(p: *const u8, n: usize) -> Self {
            // SAFETY: the level is available; the mask keeps from reading more than the caller has.
            unsafe {
                let bytes = match n >= 16 {
                    true => _mm_loadu_si128(p.cast()),
                    false => _mm_maskz_loadu_epi8(((1u32 << n) - 1) as u16, p.cast()),
                };
                V16x32(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
            }
        }
        #[inline(always)]
        unsafe fn halves(p: *const u8, n: usize) -> Self {
            // SAFETY: as above.
            unsafe {
                let word = if n >= 16 { p.cast::<u64>().read_unaligned() } else { word(p, n) };
                let twice = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
                let words = _mm512_castsi128_si512(_mm_cvtsi64_si128(word as i64));
                let words = _mm512_permutexvar_epi32(twice, words);
                let to_bottom = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
                // The lowest four bits of each lane select its value.
                let numbers = _mm512_setr_ps(
                    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0,
                );
                let all = _mm512_permutexvar_ps(_mm512_srlv_epi32(words, to_bottom), numbers);
                let mask = if n >= 16 { !0 } else { ((1u32 << n) - 1) as u16 };
                V16x32(_mm512_maskz_mov_ps(mask, all))
            }
        }
    }
}
