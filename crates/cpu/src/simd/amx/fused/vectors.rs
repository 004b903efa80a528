//! Vector post-processing of AMX accumulators: interleaving, bf16 rounding, max pooling with argmax.

use crate::simd::amx::tile::LANES;
use crate::simd::math;
use systole_compile::DEAD;

/// Pixels per pooling window (2×2).
pub const PIXELS: usize = 4;

/// Vector operations of fused AMX kernels.
///
/// # Safety
/// The vectors' instructions are available; addresses have the elements that each method names.
pub unsafe trait FusedVectors: 'static {
    /// Interleaves 16 even and 16 odd columns of f32 and stores them.
    unsafe fn store(even: *const f32, odd: *const f32, to: *mut f32);
    /// Like `store`, added to `to`.
    unsafe fn add(even: *const f32, odd: *const f32, to: *mut f32);
    /// Like `store`, rounded to bf16.
    unsafe fn narrow(even: *const f32, odd: *const f32, to: *mut u16);
    /// Interleaves four image rows: `to[n, 4]`.
    unsafe fn groups(lines: [*const u16; 4], n: usize, to: *mut u16);
    /// Stores the maximum of a window's [`PIXELS`] pixels, rounded to bf16, and its argmax, for up to 32 columns. All
    /// values are finite. A pixel's sums are two vectors, one tile apart; the next pixel's are two tiles further.
    /// `argmax` may be null.
    unsafe fn pool<const RELU: bool>(sums: *const f32, columns: usize, y: *mut u16, argmax: *mut u8);
    /// Loads 16 words of two bf16: elements `step` apart, starting at each of two addresses. May also read the element
    /// after each.
    unsafe fn seen(x: [*const u16; 2], step: usize, to: *mut u32);
    /// Expands 32 gradients to words for each pair of positions: the gradient is in the low half if argmax is the first
    /// position, in the high half if it is the second, else the word is zero. Words of the first 16 features go to
    /// `to`, the others to `to + half`; the next pair follows `pair` words further.
    unsafe fn spread(dy: *const u16, argmax: *const u8, pairs: usize, to: *mut u32, half: usize, pair: usize);
}

/// Elements between a vector of a tile and the same row of the next tile.
const TILE: usize = LANES * LANES;

/// Scalar implementation of the vector operations of fused AMX kernels.
#[cfg_attr(not(test), expect(dead_code, reason = "used with emulated units only"))]
pub struct ScalarVectors;

// SAFETY: scalar code, available everywhere.
unsafe impl FusedVectors for ScalarVectors {
    unsafe fn store(even: *const f32, odd: *const f32, to: *mut f32) {
        for i in 0..LANES {
            // SAFETY: the caller has whole vectors at these addresses.
            unsafe { (*to.add(2 * i), *to.add(2 * i + 1)) = (*even.add(i), *odd.add(i)) };
        }
    }

    unsafe fn add(even: *const f32, odd: *const f32, to: *mut f32) {
        for i in 0..LANES {
            // SAFETY: the caller has whole vectors at these addresses.
            unsafe {
                *to.add(2 * i) += *even.add(i);
                *to.add(2 * i + 1) += *odd.add(i);
            }
        }
    }

    unsafe fn narrow(even: *const f32, odd: *const f32, to: *mut u16) {
        for i in 0..LANES {
            // SAFETY: the caller has whole vectors at these addresses.
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

    unsafe fn pool<const RELU: bool>(sums: *const f32, columns: usize, y: *mut u16, argmax: *mut u8) {
        for j in 0..columns {
            // SAFETY: the caller has the window's sums, and room for `columns` results.
            unsafe {
                let sum = |i: usize| *sums.add((2 * i + j / LANES) * TILE + j % LANES);
                let x: [f32; PIXELS] = std::array::from_fn(sum);
                let top = x.into_iter().fold(f32::NEG_INFINITY, f32::max);
                let dead = RELU && top <= 0.0;
                *y.add(j) = if dead { 0 } else { math::to_bf16(top + 0.0) };
                if !argmax.is_null() {
                    let first = x.iter().position(|&x| x == top).unwrap_or(0);
                    *argmax.add(j) = if dead { DEAD } else { first as u8 };
                }
            }
        }
    }

    unsafe fn seen(x: [*const u16; 2], step: usize, to: *mut u32) {
        for i in 0..LANES {
            // SAFETY: the caller has the elements at both addresses, and room for 16 words.
            unsafe { *to.add(i).cast::<[u16; 2]>() = x.map(|x| *x.add(i * step)) };
        }
    }

    unsafe fn spread(
        dy: *const u16,
        argmax: *const u8,
        pairs: usize,
        to: *mut u32,
        half: usize,
        pair: usize,
    ) {
        for (p, i) in (0..pairs).flat_map(|p| (0..2 * LANES).map(move |i| (p, i))) {
            // SAFETY: the caller has 32 gradients and argmax, and room for the words of all pairs.
            unsafe {
                let (dy, argmax) = (*dy.add(i), usize::from(*argmax.add(i)));
                let word = [2 * p, 2 * p + 1].map(|p| if argmax == p { dy } else { 0 });
                *to.add(p * pair + i / LANES * half + i % LANES).cast::<[u16; 2]>() = word;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::Avx512Bf16;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::simd::amx::fused::vectors::{FusedVectors, TILE};
    use crate::simd::amx::tile::LANES;
    use std::arch::x86_64::*;
    use systole_compile::DEAD;

    /// AVX-512 with AVX512_BF16. Its conversion flushes subnormals, like the tile instructions.
    pub struct Avx512Bf16;

    /// Interleaves the lanes of two vectors: first and second half of the result.
    #[inline(always)]
    unsafe fn in_turn(even: *const f32, odd: *const f32) -> [__m512; 2] {
        // SAFETY: the caller has whole vectors at these addresses.
        unsafe {
            let (e, o) = (_mm512_loadu_ps(even), _mm512_loadu_ps(odd));
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
            [_mm512_permutex2var_ps(e, low, o), _mm512_permutex2var_ps(e, high, o)]
        }
    }

    /// Converts two vectors of f32 to one vector of bf16.
    #[inline(always)]
    unsafe fn rounded(first: *const f32, second: *const f32) -> __m512i {
        // SAFETY: the caller has a vector at each address; both types have 512 bits.
        unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(second), _mm512_loadu_ps(first))) }
    }

    // SAFETY: callers ensure that the CPU has these instructions.
    unsafe impl FusedVectors for Avx512Bf16 {
        #[inline(always)]
        unsafe fn store(even: *const f32, odd: *const f32, to: *mut f32) {
            // SAFETY: the caller has whole vectors at these addresses.
            unsafe {
                let [low, high] = in_turn(even, odd);
                _mm512_storeu_ps(to, low);
                _mm512_storeu_ps(to.add(LANES), high);
            }
        }

        #[inline(always)]
        unsafe fn add(even: *const f32, odd: *const f32, to: *mut f32) {
            // SAFETY: the caller has whole vectors at these addresses.
            unsafe {
                let [low, high] = in_turn(even, odd);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), low));
                let to = to.add(LANES);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), high));
            }
        }

        #[inline(always)]
        unsafe fn narrow(even: *const f32, odd: *const f32, to: *mut u16) {
            // SAFETY: the caller has whole vectors at these addresses.
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
                // SAFETY: masks keep to the caller's `n` elements of each line and `n` groups.
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
        unsafe fn pool<const RELU: bool>(sums: *const f32, columns: usize, y: *mut u16, argmax: *mut u8) {
            // SAFETY: the caller has the window's sums, and room for `columns` results.
            unsafe {
                let some = u32::MAX >> (32 - columns);
                let pixel = |i: usize| sums.wrapping_add(2 * i * TILE);
                let zero = _mm512_setzero_ps();
                // Maxima of sixteen columns, and masks of where they equal each of the first three pixels.
                let half = |h: usize| {
                    let x = [0, 1, 2, 3].map(|i| _mm512_loadu_ps(pixel(i).wrapping_add(h * TILE)));
                    let top = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
                    let top = if RELU { _mm512_max_ps(top, zero) } else { top };
                    let is = |x: __m512| _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(x, top);
                    (top, [is(x[0]), is(x[1]), is(x[2])])
                };
                let ((low, in_low), (high, in_high)) = (half(0), half(1));
                let of = |i: usize| u32::from(in_low[i]) | u32::from(in_high[i]) << LANES;
                // Positive zero wins over negative zero.
                let [low, high] = [low, high].map(|top| if RELU { top } else { _mm512_add_ps(top, zero) });
                let value: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                _mm512_mask_storeu_epi16(y.cast(), some, value);
                if !argmax.is_null() {
                    let at = |i: i8| _mm256_set1_epi8(i);
                    let p = _mm256_mask_mov_epi8(at(3), of(2), at(2));
                    let p = _mm256_mask_mov_epi8(p, of(1), at(1));
                    let mut p = _mm256_mask_mov_epi8(p, of(0), at(0));
                    if RELU {
                        p = _mm256_mask_mov_epi8(p, _mm512_testn_epi16_mask(value, value), at(DEAD as i8));
                    }
                    _mm256_mask_storeu_epi8(argmax.cast(), some, p);
                }
            }
        }

        #[inline(always)]
        unsafe fn seen(x: [*const u16; 2], step: usize, to: *mut u32) {
            // SAFETY: the caller has the elements at both addresses, and room for 16 words.
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
            argmax: *const u8,
            pairs: usize,
            to: *mut u32,
            half: usize,
            pair: usize,
        ) {
            // SAFETY: the caller has 32 gradients and argmax, and room for the words of all pairs.
            unsafe {
                let dy = _mm512_loadu_si512(dy.cast());
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let twice = _mm512_or_si512(_mm512_slli_epi32::<16>(lanes), lanes);
                let low = _mm512_permutexvar_epi16(twice, dy);
                let high = _mm512_permutexvar_epi16(_mm512_add_epi16(twice, _mm512_set1_epi16(16)), dy);
                let argmax = _mm512_cvtepu8_epi16(_mm256_loadu_si256(argmax.cast()));
                let argmax = _mm512_or_si512(_mm512_slli_epi16::<8>(argmax), argmax);
                for p in 0..pairs {
                    let here = _mm512_set1_epi16(((2 * p) | ((2 * p + 1) << 8)) as i16);
                    let here = _mm512_cmpeq_epi8_mask(argmax, here);
                    let to = to.add(p * pair);
                    _mm512_storeu_si512(to.cast(), _mm512_maskz_mov_epi16(here as u32, low));
                    let high = _mm512_maskz_mov_epi16((here >> 32) as u32, high);
                    _mm512_storeu_si512(to.add(half).cast(), high);
                }
            }
        }
    }
}
