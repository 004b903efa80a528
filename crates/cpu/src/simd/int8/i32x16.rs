//! `i32x16`: vector of sixteen int32, and TFLite fixed-point arithmetic on it.

use crate::simd::inline_methods::inlined;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Vector of sixteen int32. Callers guarantee that pointers cover what a method reads or writes.
pub trait I32x16: Copy + 'static {
    fn splat(x: i32) -> Self;
    unsafe fn load(p: *const i32) -> Self;
    unsafe fn store(self, p: *mut i32);
    /// Loads the first `n` of sixteen int8 and widens them; the other lanes are 0.
    unsafe fn widen(p: *const i8, n: usize) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// Products of int16 values. The upper halves of `other` are 0, or sign extensions in both operands.
    fn times_short(self, other: Self) -> Self;
    fn shifted_left(self, by: Self) -> Self;
    /// Low halves of the products.
    fn times(self, other: Self) -> Self;
    /// `x / 2^by`, rounded down, for `by` below 32.
    fn shifted_right(self, by: i32) -> Self;
    /// `(x · m + 2³⁰) / 2³¹`, rounded down: the rounding doubling high multiply, for `m ≥ 0`.
    fn high(self, m: Self) -> Self;
    /// `x / 2^by`, rounded half away from zero. `half` is `2^by / 2`; `some` is −1 if `by` is not 0. `x + half` does
    /// not wrap.
    fn divided(self, by: Self, half: Self, some: Self) -> Self;
    /// `(x + half) / 2^by`, rounded down.
    fn divided_down(self, by: Self, half: Self) -> Self;
    /// `x · f`, rounded half away from zero, for sixteen factors `f`. Results fit int32.
    unsafe fn scaled(self, f: *const f64) -> Self;
    /// `⌊x · high + (x · low + start)⌋`, where `high`, `low` and `start` are f32 bit patterns. The inner sum is rounded
    /// to f32 and the outer one down. Results fit int32.
    #[inline(always)]
    fn near(self, high: Self, low: Self, start: Self) -> Self {
        let (x, [high, low, start]) = (lanes(self), [high, low, start].map(lanes));
        let one = |i: usize| {
            let [high, low, start] = [high[i], low[i], start[i]].map(|bits| f32::from_bits(bits as u32));
            let x = f64::from(x[i] as f32);
            let inner = (x * f64::from(low) + f64::from(start)) as f32;
            (x * f64::from(high) + f64::from(inner)).floor() as i32
        };
        // SAFETY: sixteen lanes.
        unsafe { Self::load(std::array::from_fn::<i32, 16, _>(one).as_ptr()) }
    }
    /// `below` if `x < limit`, else `other`.
    #[inline(always)]
    fn choose(self, limit: Self, below: Self, other: Self) -> Self {
        let (x, [limit, below, other]) = (lanes(self), [limit, below, other].map(lanes));
        let one = |i: usize| if x[i] < limit[i] { below[i] } else { other[i] };
        // SAFETY: sixteen lanes.
        unsafe { Self::load(std::array::from_fn::<i32, 16, _>(one).as_ptr()) }
    }
    /// `(x ± n / 2) / n`, rounded towards zero: a rounded mean, for magnitudes below 2²⁴.
    fn mean_of(self, n: i32) -> Self;
    /// Stores the first `n` lanes as int8; they fit.
    unsafe fn narrow(self, p: *mut i8, n: usize);
    /// Clamps 32 values of any size to a range and stores them as int8.
    #[inline(always)]
    unsafe fn narrow_two(one: Self, two: Self, low: i8, high: i8, p: *mut i8) {
        let (low, high) = (Self::splat(low.into()), Self::splat(high.into()));
        // SAFETY: guaranteed by the caller.
        unsafe {
            one.max(low).min(high).narrow(p, 16);
            two.max(low).min(high).narrow(p.add(16), 16);
        }
    }
}

/// Returns all lanes as an array.
#[inline(always)]
fn lanes<L: I32x16>(x: L) -> PortableI32x16 {
    let mut all = [0; 16];
    // SAFETY: sixteen lanes.
    unsafe { x.store(all.as_mut_ptr()) };
    all
}

/// Largest double below 0.5: adding it before truncation rounds half away from zero.
pub const BELOW_HALF: f64 = 0.5 - f64::EPSILON / 4.0;

/// Portable implementation of a vector of sixteen int32.
pub type PortableI32x16 = [i32; 16];

/// Applies an expression to each lane: a loop without a closure, which stays in one function.
macro_rules! each {
    (|$i:ident| $of:expr) => {{
        let mut all = [0; 16];
        let mut $i = 0;
        while $i < 16 {
            all[$i] = $of;
            $i += 1;
        }
        all
    }};
}

impl I32x16 for PortableI32x16 {
    #[inline(always)]
    fn splat(x: i32) -> PortableI32x16 {
        [x; 16]
    }
    inlined! {
        unsafe fn load(p: *const i32) -> PortableI32x16 = p.cast::<PortableI32x16>().read_unaligned();
        unsafe fn store(self, p: *mut i32) = p.cast::<PortableI32x16>().write_unaligned(self);
    }
    #[inline(always)]
    unsafe fn widen(p: *const i8, n: usize) -> PortableI32x16 {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { some_bytes(p, n) };
        each!(|i| i32::from(bytes[i]))
    }
    inlined! {
        fn add(self, other: PortableI32x16) -> PortableI32x16 = each!(|i| self[i].wrapping_add(other[i]));
        fn sub(self, other: PortableI32x16) -> PortableI32x16 = each!(|i| self[i].wrapping_sub(other[i]));
        fn max(self, other: PortableI32x16) -> PortableI32x16 = each!(|i| if self[i] > other[i] { self[i] } else { other[i] });
        fn min(self, other: PortableI32x16) -> PortableI32x16 = each!(|i| if self[i] < other[i] { self[i] } else { other[i] });
    }
    #[inline(always)]
    fn times_short(self, other: PortableI32x16) -> PortableI32x16 {
        each!(|i| self[i] as i16 as i32 * other[i] as i16 as i32)
    }
    inlined! {
        fn shifted_left(self, by: PortableI32x16) -> PortableI32x16 = each!(|i| self[i].wrapping_shl(by[i] as u32));
        fn times(self, other: PortableI32x16) -> PortableI32x16 = each!(|i| self[i].wrapping_mul(other[i]));
        fn shifted_right(self, by: i32) -> PortableI32x16 = each!(|i| self[i] >> (by & 31));
    }
    #[inline(always)]
    fn high(self, m: PortableI32x16) -> PortableI32x16 {
        each!(|i| ((self[i] as i64 * m[i] as i64 + (1 << 30)) >> 31) as i32)
    }
    #[inline(always)]
    fn divided(self, by: PortableI32x16, half: PortableI32x16, some: PortableI32x16) -> PortableI32x16 {
        each!(|i| self[i].wrapping_add(half[i]).wrapping_add((self[i] >> 31) & some[i]) >> (by[i] & 31))
    }
    #[inline(always)]
    fn divided_down(self, by: PortableI32x16, half: PortableI32x16) -> PortableI32x16 {
        each!(|i| self[i].wrapping_add(half[i]) >> (by[i] & 31))
    }
    #[inline(always)]
    unsafe fn scaled(self, f: *const f64) -> PortableI32x16 {
        each!(|i| {
            // SAFETY: the caller guarantees that there are sixteen factors, and results of 32 bits.
            unsafe {
                let y = f64::from(self[i]) * *f.add(i);
                (y + BELOW_HALF.copysign(y)).to_int_unchecked()
            }
        })
    }
    #[inline(always)]
    fn mean_of(self, n: i32) -> PortableI32x16 {
        each!(|i| (if self[i] > 0 { self[i] + n / 2 } else { self[i] - n / 2 }) / n)
    }
    #[inline(always)]
    unsafe fn narrow(self, p: *mut i8, n: usize) {
        let bytes: [i8; 16] = each!(|i| self[i] as i8);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if n >= 16 {
                p.cast::<[i8; 16]>().write_unaligned(bytes);
            } else {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, n);
            }
        }
    }
}

/// Loads the first `n` of sixteen bytes, padded with zeros.
#[inline(always)]
unsafe fn some_bytes(p: *const i8, n: usize) -> [i8; 16] {
    let mut bytes = [0i8; 16];
    // SAFETY: guaranteed by the caller.
    unsafe {
        if n >= 16 {
            bytes = p.cast::<[i8; 16]>().read_unaligned();
        } else {
            std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), n);
        }
    }
    bytes
}

/// AVX2 implementation of a vector of sixteen int32: two registers.
#[cfg(target_arch = "x86_64")]
pub type Avx2I32x16 = [__m256i; 2];

/// Applies one intrinsic to both vectors.
#[cfg(target_arch = "x86_64")]
macro_rules! both {
    ($f:expr, $a:expr $(, $b:expr)?) => {{
        // SAFETY: as for the `impl`.
        unsafe { [$f($a[0] $(, $b[0])?), $f($a[1] $(, $b[1])?)] }
    }};
}

// SAFETY of all methods: they are inlined into functions with the target features of AVX2, which are selected only if
// the machine has them; addresses are guaranteed by the caller.
#[cfg(target_arch = "x86_64")]
impl I32x16 for Avx2I32x16 {
    #[inline(always)]
    fn splat(x: i32) -> Avx2I32x16 {
        // SAFETY: as above.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const i32) -> Avx2I32x16 {
        // SAFETY: as above.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(8).cast())] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut i32) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_si256(p.cast(), self[0]);
            _mm256_storeu_si256(p.add(8).cast(), self[1]);
        }
    }
    #[inline(always)]
    unsafe fn widen(p: *const i8, n: usize) -> Avx2I32x16 {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm_loadu_si128(some_bytes(p, n).as_ptr().cast());
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))]
        }
    }
    inlined! {
        fn add(self, other: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_add_epi32, self, other);
        fn sub(self, other: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_sub_epi32, self, other);
        fn max(self, other: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_max_epi32, self, other);
        fn min(self, other: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_min_epi32, self, other);
        fn times_short(self, other: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_madd_epi16, self, other);
        fn shifted_left(self, by: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_sllv_epi32, self, by);
        fn times(self, other: Avx2I32x16) -> Avx2I32x16 = both!(_mm256_mullo_epi32, self, other);
    }
    #[inline(always)]
    fn shifted_right(self, by: i32) -> Avx2I32x16 {
        // SAFETY: as above.
        unsafe {
            let by = _mm_cvtsi32_si128(by);
            [_mm256_sra_epi32(self[0], by), _mm256_sra_epi32(self[1], by)]
        }
    }
    #[inline(always)]
    fn high(self, m: Avx2I32x16) -> Avx2I32x16 {
        both!(eight_high, self, m)
    }
    #[inline(always)]
    fn divided(self, by: Avx2I32x16, half: Avx2I32x16, some: Avx2I32x16) -> Avx2I32x16 {
        let sign = both!(_mm256_srai_epi32::<31>, self);
        let down = both!(_mm256_and_si256, sign, some);
        both!(_mm256_srav_epi32, self.add(half).add(down), by)
    }
    #[inline(always)]
    fn divided_down(self, by: Avx2I32x16, half: Avx2I32x16) -> Avx2I32x16 {
        both!(_mm256_srav_epi32, self.add(half), by)
    }
    #[inline(always)]
    unsafe fn scaled(self, f: *const f64) -> Avx2I32x16 {
        // SAFETY: as above.
        unsafe { [eight_scaled_by_four(self[0], f), eight_scaled_by_four(self[1], f.add(8))] }
    }
    #[inline(always)]
    fn mean_of(self, n: i32) -> Avx2I32x16 {
        // Same as for AVX-512.
        let (half, zero) = (Avx2I32x16::splat(n / 2), Avx2I32x16::splat(0));
        let (up, down) = (self.add(half), self.sub(half));
        let positive = both!(_mm256_cmpgt_epi32, self, zero);
        // SAFETY: as above.
        unsafe {
            let n = _mm256_set1_ps(n as f32);
            let low = _mm256_cvtepi32_ps(_mm256_blendv_epi8(down[0], up[0], positive[0]));
            let high = _mm256_cvtepi32_ps(_mm256_blendv_epi8(down[1], up[1], positive[1]));
            [_mm256_cvttps_epi32(_mm256_div_ps(low, n)), _mm256_cvttps_epi32(_mm256_div_ps(high, n))]
        }
    }
    #[inline(always)]
    unsafe fn narrow(self, p: *mut i8, n: usize) {
        // SAFETY: as above.
        unsafe {
            // Packing works within 128-bit lanes, so the two middle quarters are swapped.
            let shorts = _mm256_permute4x64_epi64::<0xd8>(_mm256_packs_epi32(self[0], self[1]));
            let bytes =
                _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256::<1>(shorts));
            if n >= 16 {
                _mm_storeu_si128(p.cast(), bytes);
            } else {
                let mut all = [0i8; 16];
                _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
                std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
            }
        }
    }
}

/// AVX2: half of [`I32x16::high`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn eight_high(x: __m256i, m: __m256i) -> __m256i {
    // SAFETY: as above.
    unsafe {
        let nudge = _mm256_set1_epi64x(1 << 30);
        let odd = _mm256_mul_epi32(_mm256_srli_epi64::<32>(x), _mm256_srli_epi64::<32>(m));
        let even = _mm256_add_epi64(_mm256_mul_epi32(x, m), nudge);
        let odd = _mm256_slli_epi64::<1>(_mm256_add_epi64(odd, nudge));
        _mm256_blend_epi32::<0xaa>(_mm256_srli_epi64::<31>(even), odd)
    }
}

/// AVX2: half of [`I32x16::scaled`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn eight_scaled_by_four(x: __m256i, f: *const f64) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let low = four_scaled(_mm256_castsi256_si128(x), f);
        let high = four_scaled(_mm256_extracti128_si256::<1>(x), f.add(4));
        _mm256_set_m128i(high, low)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn four_scaled(x: __m128i, f: *const f64) -> __m128i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let y = _mm256_mul_pd(_mm256_cvtepi32_pd(x), _mm256_loadu_pd(f));
        let sign = _mm256_and_pd(y, _mm256_set1_pd(-0.0));
        let nudge = _mm256_or_pd(sign, _mm256_set1_pd(BELOW_HALF));
        _mm256_cvttpd_epi32(_mm256_add_pd(y, nudge))
    }
}

/// Mask of the first `n` of sixteen lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

/// Half of [`I32x16::scaled`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn eight_scaled(x: __m256i, f: *const f64) -> __m256i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let y = _mm512_mul_pd(_mm512_cvtepi32_pd(x), _mm512_loadu_pd(f));
        let sign = _mm512_and_pd(y, _mm512_set1_pd(-0.0));
        let nudge = _mm512_or_pd(sign, _mm512_set1_pd(BELOW_HALF));
        _mm512_cvttpd_epi32(_mm512_add_pd(y, nudge))
    }
}

// SAFETY of all methods: they are inlined into functions with the target features of AVX-512, which are selected only
// if the machine has them.
#[cfg(target_arch = "x86_64")]
impl I32x16 for __m512i {
    #[inline(always)]
    fn splat(x: i32) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi32(x) }
    }
    inlined! {
        unsafe fn load(p: *const i32) -> __m512i = _mm512_loadu_si512(p.cast());
        unsafe fn store(self, p: *mut i32) = _mm512_storeu_si512(p.cast(), self);
    }
    #[inline(always)]
    unsafe fn widen(p: *const i8, n: usize) -> __m512i {
        // SAFETY: guaranteed by the caller; the mask keeps from reading more.
        unsafe {
            let bytes =
                if n >= 16 { _mm_loadu_si128(p.cast()) } else { _mm_maskz_loadu_epi8(first(n), p.cast()) };
            _mm512_cvtepi8_epi32(bytes)
        }
    }
    inlined! {
        fn add(self, other: __m512i) -> __m512i = _mm512_add_epi32(self, other);
        fn sub(self, other: __m512i) -> __m512i = _mm512_sub_epi32(self, other);
        fn max(self, other: __m512i) -> __m512i = _mm512_max_epi32(self, other);
        fn min(self, other: __m512i) -> __m512i = _mm512_min_epi32(self, other);
        fn times_short(self, other: __m512i) -> __m512i = _mm512_madd_epi16(self, other);
        fn shifted_left(self, by: __m512i) -> __m512i = _mm512_sllv_epi32(self, by);
        fn times(self, other: __m512i) -> __m512i = _mm512_mullo_epi32(self, other);
        fn shifted_right(self, by: i32) -> __m512i = _mm512_sra_epi32(self, _mm_cvtsi32_si128(by));
    }
    #[inline(always)]
    fn high(self, m: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let nudge = _mm512_set1_epi64(1 << 30);
            let odd = _mm512_mul_epi32(_mm512_srli_epi64::<32>(self), _mm512_srli_epi64::<32>(m));
            let even = _mm512_add_epi64(_mm512_mul_epi32(self, m), nudge);
            // Bits 31 to 62 of each product, in its own half of the 64 bits.
            let odd = _mm512_slli_epi64::<1>(_mm512_add_epi64(odd, nudge));
            _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64::<31>(even), odd)
        }
    }
    #[inline(always)]
    fn divided(self, by: __m512i, half: __m512i, some: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let down = _mm512_and_si512(_mm512_srai_epi32::<31>(self), some);
            _mm512_srav_epi32(_mm512_add_epi32(_mm512_add_epi32(self, half), down), by)
        }
    }
    #[inline(always)]
    fn divided_down(self, by: __m512i, half: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srav_epi32(_mm512_add_epi32(self, half), by) }
    }
    #[inline(always)]
    unsafe fn scaled(self, f: *const f64) -> __m512i {
        // SAFETY: the caller guarantees that there are sixteen factors, and results of 32 bits.
        unsafe {
            let low = eight_scaled(_mm512_castsi512_si256(self), f);
            let high = eight_scaled(_mm512_extracti64x4_epi64::<1>(self), f.add(8));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }
    #[inline(always)]
    fn near(self, high: __m512i, low: __m512i, start: __m512i) -> __m512i {
        const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
        // SAFETY: as above.
        unsafe {
            let x = _mm512_cvtepi32_ps(self);
            let inner = _mm512_fmadd_ps(x, _mm512_castsi512_ps(low), _mm512_castsi512_ps(start));
            let y = _mm512_fmadd_round_ps::<DOWN>(x, _mm512_castsi512_ps(high), inner);
            _mm512_cvt_roundps_epi32::<DOWN>(y)
        }
    }
    #[inline(always)]
    fn choose(self, limit: __m512i, below: __m512i, other: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_mask_mov_epi32(other, _mm512_cmplt_epi32_mask(self, limit), below) }
    }
    #[inline(always)]
    fn mean_of(self, n: i32) -> __m512i {
        // SAFETY: as above. Truncating quotients of integers below 2²⁴ is exact: their distance to the next integer is
        // at least 1/n, more than half an f32 step.
        unsafe {
            let half = _mm512_set1_epi32(n / 2);
            let positive = _mm512_cmpgt_epi32_mask(self, _mm512_setzero_si512());
            let down = _mm512_sub_epi32(self, half);
            let x = _mm512_mask_add_epi32(down, positive, self, half);
            let y = _mm512_div_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(n as f32));
            _mm512_cvttps_epi32(y)
        }
    }
    #[inline(always)]
    unsafe fn narrow_two(one: __m512i, two: __m512i, low: i8, high: i8, p: *mut i8) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Packing works within 128-bit lanes: four bytes of `one`, four of `two`, then both again.
            let shorts = _mm512_packs_epi32(one, two);
            let bytes = _mm512_packs_epi16(shorts, shorts);
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
            let bytes = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, bytes));
            let bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8(low));
            _mm256_storeu_si256(p.cast(), _mm256_min_epi8(bytes, _mm256_set1_epi8(high)));
        }
    }
    #[inline(always)]
    unsafe fn narrow(self, p: *mut i8, n: usize) {
        // SAFETY: guaranteed by the caller; the mask keeps from writing more.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(self);
            if n >= 16 {
                _mm_storeu_si128(p.cast(), bytes);
            } else {
                _mm_mask_storeu_epi8(p.cast(), first(n), bytes);
            }
        }
    }
}
