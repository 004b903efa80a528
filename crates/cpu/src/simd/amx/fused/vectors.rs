//! What kernels do with sums that have left the tile registers.

use crate::simd::amx::tile::LANES;
use crate::simd::math;
use systole_compile::DEAD;

/// Pixels of a window.
pub const PIXELS: usize = 4;

/// See the module text.
///
/// # Safety
/// The vectors' instructions are available; addresses have the elements that each method names.
pub unsafe trait Vectors: 'static {
    /// 16 sums of even columns and 16 of odd ones, in turn.
    unsafe fn store(even: *const f32, odd: *const f32, to: *mut f32);
    /// Added to what is there.
    unsafe fn add(even: *const f32, odd: *const f32, to: *mut f32);
    /// Rounded to bf16.
    unsafe fn narrow(even: *const f32, odd: *const f32, to: *mut u16);
    /// `n` groups of four: one number of each line.
    unsafe fn groups(lines: [*const u16; 4], n: usize, to: *mut u16);
    /// The greatest of the rounded [`PIXELS`] of a window for up to 32 columns, which are finite. Sums of a pixel are
    /// two vectors, one tile apart, and the next pixel's a tile further on. `place` may be null.
    unsafe fn pool<const RELU: bool>(sums: *const f32, columns: usize, y: *mut u16, place: *mut u8);
    /// Words of 16 numbers `step` apart from each of two places on. Numbers may be read with the one behind each.
    unsafe fn seen(x: [*const u16; 2], step: usize, to: *mut u32);
    /// 32 gradients for each pair of places: words of the one that belongs to the first place and the one that belongs
    /// to the second, or of zeros. Words of 16 features go to `to`, those of the others `half` further on, those of
    /// the next pair `pair` further on.
    unsafe fn spread(dy: *const u16, place: *const u8, pairs: usize, to: *mut u32, half: usize, pair: usize);
}

/// Elements from a vector of sums to the same row of the next tile.
const TILE: usize = LANES * LANES;

/// Plain code.
#[cfg_attr(not(test), expect(dead_code, reason = "beside emulated units"))]
pub struct Plain;

// SAFETY: available everywhere.
unsafe impl Vectors for Plain {
    unsafe fn store(even: *const f32, odd: *const f32, to: *mut f32) {
        for i in 0..LANES {
            // SAFETY: the caller's vectors.
            unsafe { (*to.add(2 * i), *to.add(2 * i + 1)) = (*even.add(i), *odd.add(i)) };
        }
    }

    unsafe fn add(even: *const f32, odd: *const f32, to: *mut f32) {
        for i in 0..LANES {
            // SAFETY: the caller's vectors.
            unsafe {
                *to.add(2 * i) += *even.add(i);
                *to.add(2 * i + 1) += *odd.add(i);
            }
        }
    }

    unsafe fn narrow(even: *const f32, odd: *const f32, to: *mut u16) {
        for i in 0..LANES {
            // SAFETY: the caller's vectors.
            unsafe {
                *to.add(2 * i) = math::to_bf16(*even.add(i));
                *to.add(2 * i + 1) = math::to_bf16(*odd.add(i));
            }
        }
    }

    unsafe fn groups(lines: [*const u16; 4], n: usize, to: *mut u16) {
        for i in 0..n {
            // SAFETY: the caller's lines and groups.
            unsafe { *to.add(4 * i).cast::<[u16; 4]>() = lines.map(|line| *line.add(i)) };
        }
    }

    unsafe fn pool<const RELU: bool>(sums: *const f32, columns: usize, y: *mut u16, place: *mut u8) {
        for j in 0..columns {
            // SAFETY: the caller's sums and results.
            unsafe {
                let sum = |i: usize| *sums.add((2 * i + j / LANES) * TILE + j % LANES);
                let x: [f32; PIXELS] = std::array::from_fn(|i| math::from_bf16(math::to_bf16(sum(i))));
                let top = x.into_iter().fold(f32::NEG_INFINITY, f32::max);
                let dead = RELU && top <= 0.0;
                *y.add(j) = if dead { 0 } else { math::to_bf16(top + 0.0) };
                if !place.is_null() {
                    let first = x.iter().position(|&x| x == top).unwrap_or(0);
                    *place.add(j) = if dead { DEAD } else { first as u8 };
                }
            }
        }
    }

    unsafe fn seen(x: [*const u16; 2], step: usize, to: *mut u32) {
        for i in 0..LANES {
            // SAFETY: the caller's numbers and words.
            unsafe { *to.add(i).cast::<[u16; 2]>() = x.map(|x| *x.add(i * step)) };
        }
    }

    unsafe fn spread(dy: *const u16, place: *const u8, pairs: usize, to: *mut u32, half: usize, pair: usize) {
        for (p, i) in (0..pairs).flat_map(|p| (0..2 * LANES).map(move |i| (p, i))) {
            // SAFETY: the caller's gradients, places and words.
            unsafe {
                let (dy, place) = (*dy.add(i), usize::from(*place.add(i)));
                let word = [2 * p, 2 * p + 1].map(|p| if place == p { dy } else { 0 });
                *to.add(p * pair + i / LANES * half + i % LANES).cast::<[u16; 2]>() = word;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::Avx512Bf16;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::simd::amx::fused::vectors::{TILE, Vectors};
    use crate::simd::amx::tile::LANES;
    use std::arch::x86_64::*;
    use systole_compile::DEAD;

    /// AVX-512 with AVX512_BF16, whose conversion takes numbers below the normal range as zero; tiles have none.
    pub struct Avx512Bf16;

    /// Lanes of two vectors in turn: those of the first or of the second half.
    #[inline(always)]
    unsafe fn in_turn(even: *const f32, odd: *const f32) -> [__m512; 2] {
        // SAFETY: the caller's vectors.
        unsafe {
            let (e, o) = (_mm512_loadu_ps(even), _mm512_loadu_ps(odd));
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            [_mm512_permutex2var_ps(e, low, o), _mm512_permutex2var_ps(e, high, o)]
        }
    }

    /// Two vectors, one behind the other, rounded.
    #[inline(always)]
    unsafe fn rounded(first: *const f32, second: *const f32) -> __m512i {
        // SAFETY: the caller's vectors; both types are 512 bits.
        unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(second), _mm512_loadu_ps(first))) }
    }

    // SAFETY: callers keep to the machines that have these instructions.
    unsafe impl Vectors for Avx512Bf16 {
        #[inline(always)]
        unsafe fn store(even: *const f32, odd: *const f32, to: *mut f32) {
            // SAFETY: the caller's vectors.
            unsafe {
                let [low, high] = in_turn(even, odd);
                _mm512_storeu_ps(to, low);
                _mm512_storeu_ps(to.add(LANES), high);
            }
        }

        #[inline(always)]
        unsafe fn add(even: *const f32, odd: *const f32, to: *mut f32) {
            // SAFETY: the caller's vectors.
            unsafe {
                let [low, high] = in_turn(even, odd);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), low));
                let to = to.add(LANES);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), high));
            }
        }

        #[inline(always)]
        unsafe fn narrow(even: *const f32, odd: *const f32, to: *mut u16) {
            // SAFETY: the caller's vectors.
            unsafe {
                let halves = rounded(even, odd);
                let low = _mm512_set1_epi32(0x10_0000);
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let words = _mm512_or_si512(_mm512_slli_epi32::<16>(lanes), lanes);
                let in_turn = _mm512_or_si512(words, low);
                _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(in_turn, halves));
            }
        }

        #[inline(always)]
        unsafe fn groups(lines: [*const u16; 4], n: usize, to: *mut u16) {
            let some = |n: usize| u32::MAX.checked_shr(32 - 2 * n as u32).unwrap_or(0) as __mmask16;
            for i in (0..n).step_by(LANES) {
                let rest = LANES.min(n - i);
                // SAFETY: the caller's lines and groups, of which no more than `n` are touched.
                unsafe {
                    let all = u16::MAX >> (LANES - rest);
                    let [a, b, c, d] =
                        lines.map(|p| _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(all, p.add(i).cast())));
                    let ab = _mm512_or_si512(a, _mm512_slli_epi32::<16>(b));
                    let cd = _mm512_or_si512(c, _mm512_slli_epi32::<16>(d));
                    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
                    let to = to.add(4 * i).cast::<i32>();
                    let first = _mm512_permutex2var_epi32(ab, low, cd);
                    _mm512_mask_storeu_epi32(to, some(rest.min(8)), first);
                    let second = _mm512_permutex2var_epi32(ab, high, cd);
                    _mm512_mask_storeu_epi32(to.wrapping_add(LANES), some(rest.saturating_sub(8)), second);
                }
            }
        }

        #[inline(always)]
        unsafe fn pool<const RELU: bool>(sums: *const f32, columns: usize, y: *mut u16, place: *mut u8) {
            // SAFETY: the caller's sums and results.
            unsafe {
                let some = u32::MAX >> (32 - columns);
                let pixel = |i: usize| sums.wrapping_add(2 * i * TILE);
                let of = |p: *const f32| rounded(p, p.wrapping_add(TILE));
                let x = [of(pixel(0)), of(pixel(1)), of(pixel(2)), of(pixel(3))];
                // Without relu, negative numbers' bits are turned to the order of integers, and zeros are one.
                let keyed = |x: __m512i| {
                    let x = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(x, _mm512_set1_epi16(i16::MAX)), x);
                    let below = _mm512_srli_epi16::<1>(_mm512_srai_epi16::<15>(x));
                    _mm512_xor_si512(x, below)
                };
                let [a, b, c, d] =
                    if RELU { x } else { [keyed(x[0]), keyed(x[1]), keyed(x[2]), keyed(x[3])] };
                let mut top = _mm512_max_epi16(_mm512_max_epi16(a, b), _mm512_max_epi16(c, d));
                if RELU {
                    top = _mm512_max_epi16(top, _mm512_setzero_si512());
                }
                let value = if RELU {
                    top
                } else {
                    _mm512_xor_si512(top, _mm512_srli_epi16::<1>(_mm512_srai_epi16::<15>(top)))
                };
                _mm512_mask_storeu_epi16(y.cast(), some, value);
                if !place.is_null() {
                    let at = |i: i8| _mm256_set1_epi8(i);
                    let p = _mm256_mask_mov_epi8(at(3), _mm512_cmpeq_epi16_mask(c, top), at(2));
                    let p = _mm256_mask_mov_epi8(p, _mm512_cmpeq_epi16_mask(b, top), at(1));
                    let mut p = _mm256_mask_mov_epi8(p, _mm512_cmpeq_epi16_mask(a, top), at(0));
                    if RELU {
                        p = _mm256_mask_mov_epi8(p, _mm512_testn_epi16_mask(top, top), at(DEAD as i8));
                    }
                    _mm256_mask_storeu_epi8(place.cast(), some, p);
                }
            }
        }

        #[inline(always)]
        unsafe fn seen(x: [*const u16; 2], step: usize, to: *mut u32) {
            // SAFETY: the caller's numbers and words.
            unsafe {
                let words = if step == 2 && x[1] == x[0].wrapping_add(1) {
                    _mm512_loadu_si512(x[0].cast())
                } else {
                    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                    let at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step as i32));
                    let [a, b] = x.map(|x| _mm512_i32gather_epi32::<2>(at, x.cast()));
                    _mm512_mask_mov_epi16(a, 0xaaaa_aaaa, _mm512_slli_epi32::<16>(b))
                };
                _mm512_storeu_si512(to.cast(), words);
            }
        }

        #[inline(always)]
        unsafe fn spread(
            dy: *const u16,
            place: *const u8,
            pairs: usize,
            to: *mut u32,
            half: usize,
            pair: usize,
        ) {
            // SAFETY: the caller's gradients, places and words.
            unsafe {
                let dy = _mm512_loadu_si512(dy.cast());
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let twice = _mm512_or_si512(_mm512_slli_epi32::<16>(lanes), lanes);
                let low = _mm512_permutexvar_epi16(twice, dy);
                let high = _mm512_permutexvar_epi16(_mm512_add_epi16(twice, _mm512_set1_epi16(16)), dy);
                let place = _mm512_cvtepu8_epi16(_mm256_loadu_si256(place.cast()));
                let place = _mm512_or_si512(_mm512_slli_epi16::<8>(place), place);
                for p in 0..pairs {
                    let here = _mm512_set1_epi16(((2 * p) | ((2 * p + 1) << 8)) as i16);
                    let here = _mm512_cmpeq_epi8_mask(place, here);
                    let to = to.add(p * pair);
                    _mm512_storeu_si512(to.cast(), _mm512_maskz_mov_epi16(here as u32, low));
                    let high = _mm512_maskz_mov_epi16((here >> 32) as u32, high);
                    _mm512_storeu_si512(to.add(half).cast(), high);
                }
            }
        }
    }
}
