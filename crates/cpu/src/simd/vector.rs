//! SIMD vector trait [`Vector`], with portable, AVX2 and AVX-512 implementations.

/// Vector of one element type at one level.
///
/// # Safety
/// The methods may only be called if the CPU has the level's instructions.
pub unsafe trait Vector: Copy {
    type T: Copy;
    const LANES: usize;
    unsafe fn splat(x: Self::T) -> Self;
    unsafe fn load(p: *const Self::T) -> Self;
    unsafe fn store(self, p: *mut Self::T);
    /// Loads the first `n` lanes, at most all; the others are zero.
    unsafe fn load_part(p: *const Self::T, n: usize) -> Self;
    /// Stores the first `n` lanes.
    unsafe fn store_part(self, p: *mut Self::T, n: usize);
    /// Returns `self · b + c`.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
}

/// Vectors of f32 whose lanes can be added.
///
/// # Safety
/// As for [`Vector`].
pub unsafe trait LaneSums: Vector<T = f32> {
    /// Returns the sum of all lanes of each vector, in an order that does not depend on the other vectors.
    unsafe fn lane_sums(x: [Self; 4]) -> [f32; 4];
}

// SAFETY: plain arithmetic, available everywhere.
unsafe impl LaneSums for Portable32 {
    #[inline(always)]
    unsafe fn lane_sums(x: [Self; 4]) -> [f32; 4] {
        x.map(|Portable32([a, b, c, d])| (a + b) + (c + d))
    }
}

macro_rules! array_vector {
    ($(#[$doc:meta])* $name:ident, $t:ty, $n:expr, |$x:ident, $y:ident| $add:expr, |$a:ident, $b:ident| $product:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub [$t; $n]);
        // SAFETY: plain arithmetic, available everywhere.
        unsafe impl Vector for $name {
            type T = $t;
            const LANES: usize = $n;
            #[inline(always)]
            unsafe fn splat(x: $t) -> Self {
                $name([x; $n])
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                // SAFETY: the caller has the lanes there; arrays need only their elements' alignment.
                $name(unsafe { *p.cast::<[$t; $n]>() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                // SAFETY: as for `load`.
                unsafe { *p.cast::<[$t; $n]>() = self.0 }
            }
            #[inline(always)]
            unsafe fn load_part(p: *const $t, n: usize) -> Self {
                let mut y = [<$t>::default(); $n];
                for (i, y) in y.iter_mut().enumerate().take(n) {
                    // SAFETY: the caller has `n` lanes there.
                    *y = unsafe { *p.add(i) };
                }
                $name(y)
            }
            #[inline(always)]
            unsafe fn store_part(self, p: *mut $t, n: usize) {
                for (i, y) in self.0.iter().enumerate().take(n) {
                    // SAFETY: as for `load_part`.
                    unsafe { *p.add(i) = *y };
                }
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                let mut y = c.0;
                for i in 0..$n {
                    let ($a, $b) = (self.0[i], b.0[i]);
                    let ($x, $y) = (y[i], $product);
                    y[i] = $add;
                }
                $name(y)
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                let mut y = self.0;
                for i in 0..$n {
                    let ($x, $y) = (y[i], b.0[i]);
                    y[i] = $add;
                }
                $name(y)
            }
        }
    };
}
array_vector!(
    /// Array that the compiler vectorizes for the baseline instruction set.
    Portable32, f32, 4, |x, y| x + y, |a, b| a * b
);
array_vector!(
    /// Array that the compiler vectorizes for the baseline instruction set.
    Portable64, f64, 2, |x, y| x + y, |a, b| a * b
);
array_vector!(
    /// Four i32 lanes; `mul_add` multiplies pairs of i16 and accumulates both products.
    PortablePairs, i32, 4, |x, y| x.wrapping_add(y),
    |a, b| ((a as i16 as i32) * (b as i16 as i32)).wrapping_add((a >> 16) * (b >> 16))
);

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use crate::simd::inline_methods::inlined;
    use crate::simd::vector::{LaneSums, Vector};
    use std::arch::x86_64::*;

    /// Implements a vector with intrinsics; arguments are the register and pointer types and one intrinsic per
    /// operation.
    macro_rules! intrinsic_vector {
        ($name:ident, $reg:ty, $t:ty, $n:expr, $p:ty; $set:expr, $load:expr, $store:expr, $load_part:expr,
         $store_part:expr, $fma:expr, $add:expr) => {
            #[derive(Clone, Copy)]
            pub struct $name(pub $reg);
            // SAFETY: callers ensure that the CPU has these instructions.
            unsafe impl Vector for $name {
                type T = $t;
                const LANES: usize = $n;
                inlined! {
                    unsafe fn splat(x: $t) -> Self = $name($set(x));
                    unsafe fn load(p: *const $t) -> Self = $name($load(p.cast::<$p>()));
                    unsafe fn store(self, p: *mut $t) = $store(p.cast::<$p>(), self.0);
                    unsafe fn load_part(p: *const $t, n: usize) -> Self = $name($load_part(p.cast::<$p>(), n));
                    unsafe fn store_part(self, p: *mut $t, n: usize) = $store_part(p.cast::<$p>(), n, self.0);
                    unsafe fn mul_add(self, b: Self, c: Self) -> Self = $name($fma(self.0, b.0, c.0));
                    unsafe fn add(self, b: Self) -> Self = $name($add(self.0, b.0));
                }
            }
        };
    }

    /// Returns the lowest `n` bits, at most 16.
    #[inline(always)]
    fn bits(n: usize) -> u16 {
        if n >= 16 { !0 } else { (1 << n) - 1 }
    }
    #[inline(always)]
    unsafe fn first8(n: usize) -> __m256i {
        // SAFETY: callers have AVX2.
        unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
    }
    #[inline(always)]
    unsafe fn first4(n: usize) -> __m256i {
        // SAFETY: callers have AVX2.
        unsafe { _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)) }
    }

    intrinsic_vector! {
        V8x32, __m256, f32, 8, f32;
        _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps,
        |p, n| _mm256_maskload_ps(p, first8(n)),
        |p, n, x| _mm256_maskstore_ps(p, first8(n), x),
        _mm256_fmadd_ps, _mm256_add_ps
    }
    intrinsic_vector! {
        V4x64, __m256d, f64, 4, f64;
        _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd,
        |p, n| _mm256_maskload_pd(p, first4(n)),
        |p, n, x| _mm256_maskstore_pd(p, first4(n), x),
        _mm256_fmadd_pd, _mm256_add_pd
    }
    intrinsic_vector! {
        Pairs8, __m256i, i32, 8, __m256i;
        _mm256_set1_epi32, _mm256_loadu_si256, _mm256_storeu_si256,
        |p: *const __m256i, n| _mm256_maskload_epi32(p.cast(), first8(n)),
        |p: *mut __m256i, n, x| _mm256_maskstore_epi32(p.cast(), first8(n), x),
        |a, b, c| _mm256_add_epi32(c, _mm256_madd_epi16(a, b)), _mm256_add_epi32
    }
    /// Defines sixteen f32 lanes; the types differ in `mul_add`.
    macro_rules! floats16 {
        ($name:ident, $fma:expr) => {
            intrinsic_vector! {
                $name, __m512, f32, 16, f32;
                _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
                |p, n| _mm512_maskz_loadu_ps(bits(n), p),
                |p, n, x| _mm512_mask_storeu_ps(p, bits(n), x),
                $fma, _mm512_add_ps
            }
        };
    }
    floats16!(V16x32, _mm512_fmadd_ps);

    /// Adds pairs of neighboring 128-bit parts of four vectors: each part holds a sum of each vector.
    macro_rules! lane_sums {
        ($name:ident, $add:ident, $low:ident, $high:ident, $low_pairs:ident, $high_pairs:ident, $cast:ident, $back:ident,
         |$x:ident| $parts:expr) => {
            // SAFETY: callers ensure that the CPU has these instructions.
            unsafe impl LaneSums for $name {
                #[inline(always)]
                unsafe fn lane_sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        let ab = $add($low(a.0, b.0), $high(a.0, b.0));
                        let cd = $add($low(c.0, d.0), $high(c.0, d.0));
                        let low = $back($low_pairs($cast(ab), $cast(cd)));
                        let $x = $add(low, $back($high_pairs($cast(ab), $cast(cd))));
                        let mut sums = [0f32; 4];
                        _mm_storeu_ps(sums.as_mut_ptr(), $parts);
                        sums
                    }
                }
            }
        };
    }
    lane_sums!(
        V16x32,
        _mm512_add_ps,
        _mm512_unpacklo_ps,
        _mm512_unpackhi_ps,
        _mm512_unpacklo_pd,
        _mm512_unpackhi_pd,
        _mm512_castps_pd,
        _mm512_castpd_ps,
        |x| {
            let half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half))
        }
    );
    lane_sums!(
        V8x32,
        _mm256_add_ps,
        _mm256_unpacklo_ps,
        _mm256_unpackhi_ps,
        _mm256_unpacklo_pd,
        _mm256_unpackhi_pd,
        _mm256_castps_pd,
        _mm256_castpd_ps,
        |x| _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
    );
    intrinsic_vector! {
        V8x64, __m512d, f64, 8, f64;
        _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd,
        |p, n| _mm512_maskz_loadu_pd(bits(n) as u8, p),
        |p, n, x| _mm512_mask_storeu_pd(p, bits(n) as u8, x),
        _mm512_fmadd_pd, _mm512_add_pd
    }
    /// Defines sixteen i32 lanes whose `mul_add` accumulates groups of narrow integers; the types differ in `mul_add`.
    macro_rules! sums16 {
        ($name:ident, $fma:expr) => {
            intrinsic_vector! {
                $name, __m512i, i32, 16, i32;
                _mm512_set1_epi32, _mm512_loadu_epi32, _mm512_storeu_epi32,
                |p, n| _mm512_maskz_loadu_epi32(bits(n), p),
                |p, n, x| _mm512_mask_storeu_epi32(p, bits(n), x),
                $fma, _mm512_add_epi32
            }
        };
    }
    sums16!(Pairs16, |a, b, c| _mm512_add_epi32(c, _mm512_madd_epi16(a, b)));
    sums16!(Quads16, |a, b, c| _mm512_dpbusd_epi32(c, a, b));

    /// Reinterprets sixteen f32 lanes as pairs of bf16, the operand type of `VDPBF16PS`.
    #[inline(always)]
    unsafe fn pairs(x: __m512) -> __m512bh {
        // SAFETY: both types have 512 bits, and any bits are valid.
        unsafe { std::mem::transmute(x) }
    }
    floats16!(HalfPairs16, |a, b, c| _mm512_dpbf16_ps(c, pairs(a), pairs(b)));

    impl HalfPairs16 {
        /// Stores accumulators rounded to bf16. The conversion flushes subnormals, which `VDPBF16PS` does not produce
        /// either.
        #[inline(always)]
        pub unsafe fn store_rounded(self, p: *mut u16) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let halves: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(self.0));
                _mm256_storeu_si256(p.cast(), halves);
            }
        }
    }

    /// Interleaves two rows of bf16 into words (VNNI pairs): 16 columns, and the next 16. A missing second row is read
    /// as zeros.
    #[inline(always)]
    pub unsafe fn in_turn(first: *const u16, second: Option<*const u16>) -> [HalfPairs16; 2] {
        // SAFETY: the level is available; the caller's rows have 32 columns.
        unsafe {
            let a = _mm512_loadu_si512(first.cast());
            let b = second.map_or(_mm512_setzero_si512(), |p| _mm512_loadu_si512(p.cast()));
            let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            // Permutation indices from 32 on select from the second row.
            let low = _mm512_or_si512(
                lanes,
                _mm512_slli_epi32::<16>(_mm512_add_epi32(lanes, _mm512_set1_epi32(32))),
            );
            let high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
            let words = |which| HalfPairs16(_mm512_castsi512_ps(_mm512_permutex2var_epi16(a, which, b)));
            [words(low), words(high)]
        }
    }
}
