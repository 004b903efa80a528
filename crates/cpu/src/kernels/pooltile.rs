//! Register kernels that compute the pixels of 2×2 windows of a convolution and keep only the greatest of each window.

use super::gemm::{Portable32, Vector};
use super::math;
use crate::detect::Level;
use std::mem::MaybeUninit;
use systole_compile::{DEAD, Relu};

/// Vectors that can be compared.
///
/// # Safety
/// As for [`Vector`].
unsafe trait Compare: Vector<T = f32> {
    type Mask: Copy;
    unsafe fn ge(self, b: Self) -> Self::Mask;
    /// Lanes where either is NaN.
    unsafe fn unordered(self, b: Self) -> Self::Mask;
    unsafe fn any(a: Self::Mask, b: Self::Mask) -> bool;
    /// `mask ? a : b`
    unsafe fn choose(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// The greater of this and 0; 0 for NaN.
    unsafe fn relu(self) -> Self;
    /// Rounded to bf16.
    unsafe fn narrow(self) -> Self;
    /// Stores bf16 values as such.
    unsafe fn store_narrow(self, p: *mut u16);
    /// The number of the lane's place, given by three comparisons: 0 or 1 by the first; that or 2; that or 3.
    unsafe fn store_places(p: *mut u8, by: [Self::Mask; 3], alive: Option<Self::Mask>);
    /// Lanes above 0.
    unsafe fn positive(self) -> Self::Mask;
}

// SAFETY: plain code, available everywhere.
unsafe impl Compare for Portable32 {
    type Mask = [bool; 4];
    #[inline(always)]
    unsafe fn ge(self, b: Self) -> [bool; 4] {
        std::array::from_fn(|i| self.0[i] >= b.0[i])
    }
    #[inline(always)]
    unsafe fn unordered(self, b: Self) -> [bool; 4] {
        std::array::from_fn(|i| self.0[i].is_nan() | b.0[i].is_nan())
    }
    #[inline(always)]
    unsafe fn any(a: [bool; 4], b: [bool; 4]) -> bool {
        a != [false; 4] || b != [false; 4]
    }
    #[inline(always)]
    unsafe fn choose(mask: [bool; 4], a: Self, b: Self) -> Self {
        Portable32(std::array::from_fn(|i| if mask[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Portable32(self.0.map(|x| if x > 0.0 { x } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn narrow(self) -> Self {
        Portable32(self.0.map(|x| math::from_bf16(math::to_bf16(x))))
    }
    #[inline(always)]
    unsafe fn store_narrow(self, p: *mut u16) {
        // SAFETY: the caller has room for the lanes there.
        unsafe { *p.cast() = self.0.map(|x| (x.to_bits() >> 16) as u16) }
    }
    #[inline(always)]
    unsafe fn store_places(p: *mut u8, by: [[bool; 4]; 3], alive: Option<[bool; 4]>) {
        let place = |i: usize| match by.map(|m| m[i]) {
            [_, _, false] => 3,
            [_, false, _] => 2,
            [first, ..] => u8::from(!first),
        };
        let dead = |i: usize| if alive.is_none_or(|a| a[i]) { 0 } else { DEAD };
        // SAFETY: the caller has room for the lanes there.
        unsafe { *p.cast() = std::array::from_fn::<u8, 4, _>(|i| place(i) | dead(i)) }
    }
    #[inline(always)]
    unsafe fn positive(self) -> [bool; 4] {
        self.0.map(|x| x > 0.0)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::gemm::x86::{V8x32, V16x32};
    use super::{Compare, DEAD};
    use std::arch::x86_64::*;

    // SAFETY: callers keep to the level of these instructions.
    unsafe impl Compare for V16x32 {
        type Mask = __mmask16;
        #[inline(always)]
        unsafe fn ge(self, b: Self) -> __mmask16 {
            // SAFETY: the level is available.
            unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, b.0) }
        }
        #[inline(always)]
        unsafe fn unordered(self, b: Self) -> __mmask16 {
            // SAFETY: the level is available.
            unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, b.0) }
        }
        #[inline(always)]
        unsafe fn any(a: __mmask16, b: __mmask16) -> bool {
            a | b != 0
        }
        #[inline(always)]
        unsafe fn choose(mask: __mmask16, a: Self, b: Self) -> Self {
            // SAFETY: the level is available.
            V16x32(unsafe { _mm512_mask_blend_ps(mask, b.0, a.0) })
        }
        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // The second operand is taken for NaN and for equal zeros.
            // SAFETY: the level is available.
            V16x32(unsafe { _mm512_max_ps(self.0, _mm512_setzero_ps()) })
        }
        #[inline(always)]
        unsafe fn narrow(self) -> Self {
            // SAFETY: the level is available.
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
        unsafe fn store_narrow(self, p: *mut u16) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let high = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
                _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(high));
            }
        }
        #[inline(always)]
        unsafe fn store_places(p: *mut u8, by: [__mmask16; 3], alive: Option<__mmask16>) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let place = _mm_maskz_mov_epi8(!by[0], _mm_set1_epi8(1));
                let place = _mm_mask_mov_epi8(_mm_set1_epi8(2), by[1], place);
                let mut place = _mm_mask_mov_epi8(_mm_set1_epi8(3), by[2], place);
                if let Some(alive) = alive {
                    place = _mm_mask_mov_epi8(_mm_set1_epi8(DEAD as i8), alive, place);
                }
                _mm_storeu_si128(p.cast(), place);
            }
        }
        #[inline(always)]
        unsafe fn positive(self) -> __mmask16 {
            // SAFETY: the level is available.
            unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_setzero_ps()) }
        }
    }

    // SAFETY: as above.
    unsafe impl Compare for V8x32 {
        type Mask = __m256;
        #[inline(always)]
        unsafe fn ge(self, b: Self) -> __m256 {
            // SAFETY: the level is available.
            unsafe { _mm256_cmp_ps::<_CMP_GE_OQ>(self.0, b.0) }
        }
        #[inline(always)]
        unsafe fn unordered(self, b: Self) -> __m256 {
            // SAFETY: the level is available.
            unsafe { _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, b.0) }
        }
        #[inline(always)]
        unsafe fn any(a: __m256, b: __m256) -> bool {
            // SAFETY: the level is available.
            unsafe { _mm256_movemask_ps(_mm256_or_ps(a, b)) != 0 }
        }
        #[inline(always)]
        unsafe fn choose(mask: __m256, a: Self, b: Self) -> Self {
            // SAFETY: the level is available.
            V8x32(unsafe { _mm256_blendv_ps(b.0, a.0, mask) })
        }
        #[inline(always)]
        unsafe fn relu(self) -> Self {
            // SAFETY: the level is available.
            V8x32(unsafe { _mm256_max_ps(self.0, _mm256_setzero_ps()) })
        }
        #[inline(always)]
        unsafe fn narrow(self) -> Self {
            // SAFETY: the level is available.
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
        unsafe fn store_narrow(self, p: *mut u16) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
                let (a, b) = (_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
                _mm_storeu_si128(p.cast(), _mm_packus_epi32(a, b));
            }
        }
        #[inline(always)]
        unsafe fn store_places(p: *mut u8, by: [__m256; 3], alive: Option<__m256>) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let number = |n: i32| _mm256_castsi256_ps(_mm256_set1_epi32(n));
                let place = _mm256_andnot_ps(by[0], number(1));
                let place = _mm256_blendv_ps(number(2), place, by[1]);
                let mut place = _mm256_blendv_ps(number(3), place, by[2]);
                if let Some(alive) = alive {
                    place = _mm256_blendv_ps(number(DEAD as i32), place, alive);
                }
                let wide = _mm256_castps_si256(place);
                let (a, b) = (_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
                let bytes = _mm_packus_epi16(_mm_packus_epi32(a, b), _mm_setzero_si128());
                _mm_storel_epi64(p.cast(), bytes);
            }
        }
        #[inline(always)]
        unsafe fn positive(self) -> __m256 {
            // SAFETY: the level is available.
            unsafe { _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, _mm256_setzero_ps()) }
        }
    }
}

/// One call: some neighbouring windows of a row.
pub struct Windows {
    /// The input at the first pixel of the first window.
    pub x: *const f32,
    /// From a pixel to its right neighbour and to the one below, in the input.
    pub right: usize,
    pub down: usize,
    /// From one window to the next.
    pub step: usize,
    /// Offsets of the taps, and how many.
    pub taps: *const usize,
    pub count: usize,
    /// Kernel panel: a row of whole vectors for each tap.
    pub kernel: *const f32,
    /// Whole vectors, or null.
    pub bias: *const f32,
    pub relu: Relu,
    /// Result and places of the first window, whose type [`Kernels::get`] was told; and from one window to the next.
    pub y: *mut u8,
    pub place: *mut u8,
    pub row: usize,
    /// Filters to write, at most those of the kernel.
    pub columns: usize,
}

/// `G` windows of `N` vectors of filters. `NARROW`: sums are rounded to bf16 before and after the bias is added.
/// (Plain loops: closures would not be compiled for the level.)
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once read worse.
#[inline(always)]
unsafe fn windows<V: Compare, const G: usize, const N: usize, const NARROW: bool>(w: &Windows) {
    // SAFETY: the caller's input covers the windows' pixels at all taps, the panel `N` vectors; the level is
    // available.
    unsafe {
        let zero = V::splat(0.0);
        let mut bias = [zero; N];
        if !w.bias.is_null() {
            for j in 0..N {
                bias[j] = V::load(w.bias.add(j * V::LANES));
            }
        }
        let mut acc = [[if NARROW { [zero; N] } else { bias }; 4]; G];
        let mut kernel = w.kernel;
        for t in 0..w.count {
            let top = w.x.add(*w.taps.add(t));
            let mut row = [zero; N];
            for j in 0..N {
                row[j] = V::load(kernel.add(j * V::LANES));
            }
            for g in 0..G {
                for i in 0..4 {
                    let x = V::splat(*top.add(g * w.step + (i % 2) * w.right + (i / 2) * w.down));
                    for j in 0..N {
                        acc[g][i][j] = x.mul_add(row[j], acc[g][i][j]);
                    }
                }
            }
            kernel = kernel.wrapping_add(N * V::LANES);
        }
        // Finished in a loop, from memory: were it unrolled instead, the code would leave the instruction cache; and
        // indices that vary would keep the sums themselves out of registers.
        let mut made: [[MaybeUninit<[V; 4]>; N]; G] = [[const { MaybeUninit::uninit() }; N]; G];
        for g in 0..G {
            for j in 0..N {
                made[g][j].write([acc[g][0][j], acc[g][1][j], acc[g][2][j], acc[g][3][j]]);
            }
        }
        for g in 0..G {
            for j in 0..N {
                let [mut a, mut b, mut c, mut d] = made[g][j].assume_init();
                if NARROW {
                    [a, b, c, d] = [a.narrow(), b.narrow(), c.narrow(), d.narrow()];
                    if !w.bias.is_null() {
                        let bias = bias[j];
                        [a, b, c, d] = [a.add(bias), b.add(bias), c.add(bias), d.add(bias)];
                        [a, b, c, d] = [a.narrow(), b.narrow(), c.narrow(), d.narrow()];
                    }
                }
                let from = j * V::LANES;
                if from < w.columns {
                    let n = V::LANES.min(w.columns - from);
                    finish::<V, NARROW>(w, [a, b, c, d], g * w.row + from, n);
                }
            }
        }
    }
}

/// The maximum and place of one window go out, `n` lanes of them.
#[inline(always)]
unsafe fn finish<V: Compare, const NARROW: bool>(w: &Windows, x: [V; 4], at: usize, n: usize) {
    // SAFETY: as for `windows`.
    unsafe {
        let [mut a, mut b, mut c, mut d] = x;
        if w.relu == Relu::Before {
            [a, b, c, d] = [a.relu(), b.relu(), c.relu(), d.relu()];
        }
        let first = a.ge(b);
        let top = V::choose(first, a, b);
        let second = top.ge(c);
        let top = V::choose(second, top, c);
        let third = top.ge(d);
        let mut top = V::choose(third, top, d);
        // A NaN that was passed over still is the maximum.
        let nan = [a.unordered(b), c.unordered(d)];
        if V::any(nan[0], nan[1]) {
            top = V::choose(nan[0], a.add(b), V::choose(nan[1], c.add(d), top));
        }
        if w.relu == Relu::After {
            top = top.relu();
        }
        let alive = if w.relu == Relu::None { None } else { Some(top.positive()) };
        let by = [first, second, third];
        if n == V::LANES {
            put::<V, NARROW>(top, w.y, at);
            if !w.place.is_null() {
                V::store_places(w.place.add(at), by, alive);
            }
            return;
        }
        let size = if NARROW { 2 } else { 4 };
        let (mut values, mut places) = ([0f32; 16], [0u8; 16]);
        put::<V, NARROW>(top, values.as_mut_ptr().cast(), 0);
        std::ptr::copy_nonoverlapping(values.as_ptr().cast(), w.y.add(at * size), n * size);
        if !w.place.is_null() {
            V::store_places(places.as_mut_ptr(), by, alive);
            std::ptr::copy_nonoverlapping(places.as_ptr(), w.place.add(at), n);
        }
    }
}

#[inline(always)]
unsafe fn put<V: Compare, const NARROW: bool>(x: V, y: *mut u8, at: usize) {
    // SAFETY: the caller has room for the lanes at element `at`.
    unsafe { if NARROW { x.store_narrow(y.cast::<u16>().add(at)) } else { x.store(y.cast::<f32>().add(at)) } }
}

/// A register kernel for a number of windows up to the level's.
pub type WindowsKernel = unsafe fn(usize, &Windows);

macro_rules! kernels {
    ($name:ident, $v:ty, $n:literal, [$($g:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const NARROW: bool>(count: usize, w: &Windows) {
            match count {
                // SAFETY: the caller's promises are those of `windows`.
                $($g => unsafe { windows::<$v, $g, $n, NARROW>(w) },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, 2, [1]);
#[cfg(target_arch = "x86_64")]
use super::gemm::x86::{V8x32, V16x32};
kernels!(avx2, V8x32, 2, [1], "avx2,fma");
kernels!(avx512x1, V16x32, 1, [1 2 3 4], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(avx512x2, V16x32, 2, [1 2 3], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// A register kernel with the most windows that it takes and the width of its panels.
#[derive(Clone, Copy)]
pub struct WindowsShape {
    pub run: WindowsKernel,
    pub windows: usize,
    pub columns: usize,
}

/// The kernel for this many filters; `narrow`: results are bf16.
pub fn windows_shape(level: Level, filters: usize, narrow: bool) -> WindowsShape {
    let (run, windows, columns): ([WindowsKernel; 2], usize, usize) = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if filters <= 16 => ([avx512x1::<false>, avx512x1::<true>], 4, 16),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => ([avx512x2::<false>, avx512x2::<true>], 3, 32),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => ([avx2::<false>, avx2::<true>], 1, 16),
        _ => ([portable::<false>, portable::<true>], 1, 8),
    };
    WindowsShape { run: run[usize::from(narrow)], windows, columns }
}
