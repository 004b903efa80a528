//! Arithmetic of floats and interleaved lanes, for Fourier transforms: [`ZipLanes`].

use crate::simd::vector::{Portable32, Portable64, Vector};

/// Vectors of floats whose lanes can be interleaved.
///
/// # Safety
/// As for [`Vector`]: callers ensure that the CPU has the instructions.
pub unsafe trait ZipLanes: Vector {
    /// Rounds a number to the element type.
    fn scalar(x: f64) -> Self::T;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    /// Returns `self · b − c`.
    unsafe fn mul_sub(self, b: Self, c: Self) -> Self;
    /// Returns `[a₀, b₀, a₁, b₁, …]` in two vectors.
    unsafe fn zip(self, b: Self) -> (Self, Self);
    /// Returns `[a₀, a₂, …]` and `[a₁, a₃, …]` of two vectors in a row: the reverse of `zip`.
    unsafe fn unzip(self, b: Self) -> (Self, Self);
    /// Returns the lanes in reverse order.
    unsafe fn reverse(self) -> Self;
}

macro_rules! portable {
    ($name:ident, $t:ty) => {
        // SAFETY: plain arithmetic, available everywhere.
        unsafe impl ZipLanes for $name {
            #[inline(always)]
            fn scalar(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            unsafe fn sub(self, b: Self) -> Self {
                $name(std::array::from_fn(|i| self.0[i] - b.0[i]))
            }
            #[inline(always)]
            unsafe fn mul(self, b: Self) -> Self {
                $name(std::array::from_fn(|i| self.0[i] * b.0[i]))
            }
            #[inline(always)]
            unsafe fn mul_sub(self, b: Self, c: Self) -> Self {
                $name(std::array::from_fn(|i| self.0[i] * b.0[i] - c.0[i]))
            }
            #[inline(always)]
            unsafe fn zip(self, b: Self) -> (Self, Self) {
                let lane = |i: usize| if i.is_multiple_of(2) { self.0[i / 2] } else { b.0[i / 2] };
                let high = |i: usize| lane(i + Self::LANES);
                ($name(std::array::from_fn(lane)), $name(std::array::from_fn(high)))
            }
            #[inline(always)]
            unsafe fn unzip(self, b: Self) -> (Self, Self) {
                let lane = |i: usize| if i < Self::LANES { self.0[i] } else { b.0[i - Self::LANES] };
                let odd = |i: usize| lane(2 * i + 1);
                ($name(std::array::from_fn(|i| lane(2 * i))), $name(std::array::from_fn(odd)))
            }
            #[inline(always)]
            unsafe fn reverse(self) -> Self {
                $name(std::array::from_fn(|i| self.0[Self::LANES - 1 - i]))
            }
        }
    };
}
portable!(Portable32, f32);
portable!(Portable64, f64);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::ZipLanes;
    use crate::simd::inline_methods::inlined;
    use crate::simd::vector::x86::{V4x64, V8x32, V8x64, V16x32};
    use std::arch::x86_64::*;

    macro_rules! intrinsics {
        ($name:ident, $t:ty, $sub:ident, $mul:ident, $fms:ident, |$a:ident, $b:ident| $zip:expr,
         |$c:ident, $d:ident| $unzip:expr, |$x:ident| $reverse:expr) => {
            // SAFETY: callers ensure that the CPU has these instructions.
            unsafe impl ZipLanes for $name {
                #[inline(always)]
                fn scalar(x: f64) -> $t {
                    x as $t
                }
                inlined! {
                    unsafe fn sub(self, b: Self) -> Self = $name($sub(self.0, b.0));
                    unsafe fn mul(self, b: Self) -> Self = $name($mul(self.0, b.0));
                    unsafe fn mul_sub(self, b: Self, c: Self) -> Self = $name($fms(self.0, b.0, c.0));
                }
                #[inline(always)]
                unsafe fn zip(self, b: Self) -> (Self, Self) {
                    let ($a, $b) = (self.0, b.0);
                    // SAFETY: by the caller's promise.
                    let (low, high) = unsafe { $zip };
                    ($name(low), $name(high))
                }
                #[inline(always)]
                unsafe fn unzip(self, b: Self) -> (Self, Self) {
                    let ($c, $d) = (self.0, b.0);
                    // SAFETY: as above.
                    let (even, odd) = unsafe { $unzip };
                    ($name(even), $name(odd))
                }
                #[inline(always)]
                unsafe fn reverse(self) -> Self {
                    let $x = self.0;
                    // SAFETY: as above.
                    $name(unsafe { $reverse })
                }
            }
        };
    }
    intrinsics!(
        V8x32,
        f32,
        _mm256_sub_ps,
        _mm256_mul_ps,
        _mm256_fmsub_ps,
        |a, b| {
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        },
        |a, b| {
            let low = _mm256_permute2f128_ps::<0x20>(a, b);
            let high = _mm256_permute2f128_ps::<0x31>(a, b);
            (_mm256_shuffle_ps::<0x88>(low, high), _mm256_shuffle_ps::<0xdd>(low, high))
        },
        |x| _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0))
    );
    intrinsics!(
        V4x64,
        f64,
        _mm256_sub_pd,
        _mm256_mul_pd,
        _mm256_fmsub_pd,
        |a, b| {
            let (low, high) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
            (_mm256_permute2f128_pd::<0x20>(low, high), _mm256_permute2f128_pd::<0x31>(low, high))
        },
        |a, b| {
            let low = _mm256_permute2f128_pd::<0x20>(a, b);
            let high = _mm256_permute2f128_pd::<0x31>(a, b);
            (_mm256_unpacklo_pd(low, high), _mm256_unpackhi_pd(low, high))
        },
        |x| _mm256_permute4x64_pd::<0x1b>(x)
    );
    intrinsics!(
        V16x32,
        f32,
        _mm512_sub_ps,
        _mm512_mul_ps,
        _mm512_fmsub_ps,
        |a, b| {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b))
        },
        |a, b| {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        },
        |x| _mm512_permutexvar_ps(_mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), x)
    );
    intrinsics!(
        V8x64,
        f64,
        _mm512_sub_pd,
        _mm512_mul_pd,
        _mm512_fmsub_pd,
        |a, b| {
            let low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
            let high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
            (_mm512_permutex2var_pd(a, low, b), _mm512_permutex2var_pd(a, high, b))
        },
        |a, b| {
            let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
            let odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
            (_mm512_permutex2var_pd(a, even, b), _mm512_permutex2var_pd(a, odd, b))
        },
        |x| _mm512_permutexvar_pd(_mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0), x)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::level::Level;

    /// Checks the moves of lanes with the numbers 0, 1, …
    #[inline(always)]
    unsafe fn check<V: ZipLanes>()
    where
        V::T: PartialEq + std::fmt::Debug,
    {
        let l = V::LANES;
        let numbers: Vec<V::T> = (0..2 * l).map(|i| V::scalar(i as f64)).collect();
        let stored = |a: V, b: V| {
            let mut to = numbers.clone();
            // SAFETY: both halves have whole vectors; the caller has the level.
            unsafe {
                a.store(to.as_mut_ptr());
                b.store(to.as_mut_ptr().add(l));
            }
            to
        };
        let wanted =
            |f: &dyn Fn(usize) -> usize| (0..2 * l).map(|i| V::scalar(f(i) as f64)).collect::<Vec<_>>();
        // SAFETY: as above.
        unsafe {
            let (a, b) = (V::load(numbers.as_ptr()), V::load(numbers.as_ptr().add(l)));
            let (x, y) = a.zip(b);
            assert_eq!(stored(x, y), wanted(&|i| i / 2 + i % 2 * l));
            let (x, y) = a.unzip(b);
            assert_eq!(stored(x, y), wanted(&|i| i % l * 2 + i / l));
            assert_eq!(stored(b.reverse(), a.reverse()), wanted(&|i| 2 * l - 1 - i));
            let product = |i: usize| if i < l { l } else { (i - l) * (i - l) - (i - l) };
            assert_eq!(stored(b.sub(a), a.mul_sub(a, a)), wanted(&product));
        }
    }

    #[test]
    fn lanes_move_as_documented() {
        // SAFETY: portable, or the level was detected.
        unsafe {
            check::<Portable32>();
            check::<Portable64>();
        }
        #[cfg(target_arch = "x86_64")]
        {
            use crate::simd::vector::x86::{V4x64, V8x32, V8x64, V16x32};
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2() {
                // SAFETY: the caller has the level.
                unsafe {
                    check::<V8x32>();
                    check::<V4x64>();
                }
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            unsafe fn avx512() {
                // SAFETY: as above.
                unsafe {
                    check::<V16x32>();
                    check::<V8x64>();
                }
            }
            // SAFETY: the level was detected.
            unsafe {
                if Level::Avx2.is_available() {
                    avx2();
                }
                if Level::Avx512.is_available() {
                    avx512();
                }
            }
        }
    }
}
