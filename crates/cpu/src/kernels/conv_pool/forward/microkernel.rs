//! Microkernels of a convolution with fused 2×2 max pooling; only the maximum and argmax of a window are stored.
//!
//! The four pixels of a window are accumulators. Lanes are filters. A microkernel computes `G` windows of `N` vectors
//! of filters: 4 · G · N accumulators.

use crate::simd::inline_methods::inlined;
use crate::simd::level::Level;
use crate::simd::narrow_floats::{self, NarrowFloats, NarrowFormat};
use crate::simd::vector::{Portable32, Vector};
use std::mem::MaybeUninit;
use systole_compile::{DEAD, Relu};

/// SIMD vectors with comparisons, selection, and the arithmetic of Winograd transforms.
///
/// # Safety
/// As for [`Vector`].
pub unsafe trait CompareVector: NarrowFloats {
    type Mask: Copy;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn ge(self, b: Self) -> Self::Mask;
    unsafe fn gt(self, b: Self) -> Self::Mask;
    /// Mask of lanes in which either operand is NaN.
    unsafe fn unordered(self, b: Self) -> Self::Mask;
    unsafe fn none() -> Self::Mask;
    unsafe fn any(a: Self::Mask, b: Self::Mask) -> bool;
    unsafe fn not(a: Self::Mask) -> Self::Mask;
    unsafe fn and(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Selects between masks: `mask ? a : b`.
    unsafe fn pick(mask: Self::Mask, a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Selects between vectors: `mask ? a : b`.
    unsafe fn choose(mask: Self::Mask, a: Self, b: Self) -> Self;
    /// Returns the maximum; `b` if either is NaN or both are zeros.
    unsafe fn max(self, b: Self) -> Self;
    /// Stores the argmax as bytes: 2 if it is in the `right` pair of pixels, plus 1 if it is the `second` of its pair;
    /// [`DEAD`] in lanes of `dead`.
    unsafe fn store_argmax(p: *mut u8, right: Self::Mask, second: Self::Mask, dead: Self::Mask);
}

/// SIMD vectors of accumulators, whose multiply-add may differ from that of [`CompareVector`] (bf16 pairs).
///
/// # Safety
/// As for [`Vector`].
pub(crate) unsafe trait AccumulatorVector: Vector<T = f32> {
    /// Vector type in which accumulators are compared.
    type Compared: CompareVector;
    fn compared(self) -> Self::Compared;
    /// Stores finite maxima, rounded to a narrow format.
    unsafe fn store_rounded<const F: NarrowFormat>(y: Self::Compared, p: *mut u16);
}

// SAFETY: as for `Compare`.
unsafe impl<V: CompareVector> AccumulatorVector for V {
    type Compared = V;
    #[inline(always)]
    fn compared(self) -> V {
        self
    }
    #[inline(always)]
    unsafe fn store_rounded<const F: NarrowFormat>(y: V, p: *mut u16) {
        // SAFETY: as for `Compare`.
        unsafe {
            match F {
                // Storing f16 rounds.
                narrow_floats::F16 => y.store_narrow::<F>(p),
                _ => y.narrow_finite::<F>().store_narrow::<F>(p),
            }
        }
    }
}

// SAFETY: uses no instructions beyond the baseline.
unsafe impl CompareVector for Portable32 {
    type Mask = [bool; 4];
    inlined! {
        unsafe fn sub(self, b: Self) -> Self = Portable32(std::array::from_fn(|i| self.0[i] - b.0[i]));
        unsafe fn mul(self, b: Self) -> Self = Portable32(std::array::from_fn(|i| self.0[i] * b.0[i]));
        unsafe fn ge(self, b: Self) -> [bool; 4] = std::array::from_fn(|i| self.0[i] >= b.0[i]);
        unsafe fn gt(self, b: Self) -> [bool; 4] = std::array::from_fn(|i| self.0[i] > b.0[i]);
    }
    #[inline(always)]
    unsafe fn unordered(self, b: Self) -> [bool; 4] {
        std::array::from_fn(|i| self.0[i].is_nan() | b.0[i].is_nan())
    }
    inlined! {
        unsafe fn none() -> [bool; 4] = [false; 4];
        unsafe fn any(a: [bool; 4], b: [bool; 4]) -> bool = a != [false; 4] || b != [false; 4];
        unsafe fn not(a: [bool; 4]) -> [bool; 4] = a.map(|a| !a);
        unsafe fn and(a: [bool; 4], b: [bool; 4]) -> [bool; 4] = std::array::from_fn(|i| a[i] & b[i]);
    }
    #[inline(always)]
    unsafe fn pick(mask: [bool; 4], a: [bool; 4], b: [bool; 4]) -> [bool; 4] {
        std::array::from_fn(|i| if mask[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn choose(mask: [bool; 4], a: Self, b: Self) -> Self {
        Portable32(std::array::from_fn(|i| if mask[i] { a.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        Portable32(std::array::from_fn(|i| if self.0[i] > b.0[i] { self.0[i] } else { b.0[i] }))
    }
    #[inline(always)]
    unsafe fn store_argmax(p: *mut u8, right: [bool; 4], second: [bool; 4], dead: [bool; 4]) {
        let argmax = |i: usize| 2 * u8::from(right[i]) + u8::from(second[i]);
        // SAFETY: the caller has room for the lanes at `p`.
        unsafe { *p.cast() = std::array::from_fn::<u8, 4, _>(|i| if dead[i] { DEAD } else { argmax(i) }) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::kernels::conv_pool::forward::microkernel::{AccumulatorVector, CompareVector};
    use crate::simd::inline_methods::inlined;
    use crate::simd::narrow_floats::NarrowFormat;
    use crate::simd::vector::x86::{HalfPairs16, V8x32, V16x32};
    use std::arch::x86_64::*;
    use systole_compile::DEAD;

    // SAFETY: callers use it only at levels with these instructions.
    unsafe impl CompareVector for V16x32 {
        type Mask = __mmask16;
        inlined! {
            unsafe fn sub(self, b: Self) -> Self = V16x32(_mm512_sub_ps(self.0, b.0));
            unsafe fn mul(self, b: Self) -> Self = V16x32(_mm512_mul_ps(self.0, b.0));
            unsafe fn ge(self, b: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, b.0);
            unsafe fn gt(self, b: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, b.0);
            unsafe fn unordered(self, b: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, b.0);
            unsafe fn none() -> __mmask16 = 0;
            unsafe fn any(a: __mmask16, b: __mmask16) -> bool = a | b != 0;
            unsafe fn not(a: __mmask16) -> __mmask16 = !a;
            unsafe fn and(a: __mmask16, b: __mmask16) -> __mmask16 = a & b;
            unsafe fn pick(mask: __mmask16, a: __mmask16, b: __mmask16) -> __mmask16 = mask & a | !mask & b;
        }
        #[inline(always)]
        unsafe fn choose(mask: __mmask16, a: Self, b: Self) -> Self {
            // SAFETY: the level is available.
            V16x32(unsafe { _mm512_mask_blend_ps(mask, b.0, a.0) })
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: the level is available.
            V16x32(unsafe { _mm512_max_ps(self.0, b.0) })
        }
        #[inline(always)]
        unsafe fn store_argmax(p: *mut u8, right: __mmask16, second: __mmask16, dead: __mmask16) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let pair = _mm_maskz_mov_epi8(right, _mm_set1_epi8(2));
                let argmax = _mm_mask_add_epi8(pair, second, pair, _mm_set1_epi8(1));
                _mm_storeu_si128(p.cast(), _mm_mask_mov_epi8(argmax, dead, _mm_set1_epi8(DEAD as i8)));
            }
        }
    }

    // SAFETY: as for `V16x32`.
    unsafe impl AccumulatorVector for HalfPairs16 {
        type Compared = V16x32;
        #[inline(always)]
        fn compared(self) -> V16x32 {
            V16x32(self.0)
        }
        #[inline(always)]
        unsafe fn store_rounded<const F: NarrowFormat>(y: V16x32, p: *mut u16) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe { HalfPairs16(y.0).store_rounded(p) }
        }
    }

    // SAFETY: as for `V16x32`.
    unsafe impl CompareVector for V8x32 {
        type Mask = __m256;
        inlined! {
            unsafe fn sub(self, b: Self) -> Self = V8x32(_mm256_sub_ps(self.0, b.0));
            unsafe fn mul(self, b: Self) -> Self = V8x32(_mm256_mul_ps(self.0, b.0));
            unsafe fn ge(self, b: Self) -> __m256 = _mm256_cmp_ps::<_CMP_GE_OQ>(self.0, b.0);
            unsafe fn gt(self, b: Self) -> __m256 = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, b.0);
            unsafe fn unordered(self, b: Self) -> __m256 = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, b.0);
            unsafe fn none() -> __m256 = _mm256_setzero_ps();
            unsafe fn any(a: __m256, b: __m256) -> bool = _mm256_movemask_ps(_mm256_or_ps(a, b)) != 0;
            unsafe fn not(a: __m256) -> __m256 = _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
            unsafe fn and(a: __m256, b: __m256) -> __m256 = _mm256_and_ps(a, b);
            unsafe fn pick(mask: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, mask);
        }
        #[inline(always)]
        unsafe fn choose(mask: __m256, a: Self, b: Self) -> Self {
            // SAFETY: the level is available.
            V8x32(unsafe { _mm256_blendv_ps(b.0, a.0, mask) })
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: the level is available.
            V8x32(unsafe { _mm256_max_ps(self.0, b.0) })
        }
        #[inline(always)]
        unsafe fn store_argmax(p: *mut u8, right: __m256, second: __m256, dead: __m256) {
            // SAFETY: the level is available; the caller has room for the lanes there.
            unsafe {
                let number = |n: i32| _mm256_castsi256_ps(_mm256_set1_epi32(n));
                let argmax = _mm256_or_ps(_mm256_and_ps(right, number(2)), _mm256_and_ps(second, number(1)));
                let wide = _mm256_castps_si256(_mm256_blendv_ps(argmax, number(DEAD as i32), dead));
                let (a, b) = (_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
                let bytes = _mm_packus_epi16(_mm_packus_epi32(a, b), _mm_setzero_si128());
                _mm_storel_epi64(p.cast(), bytes);
            }
        }
    }
}

/// Arguments of a microkernel: a row of windows for one panel of filters.
#[derive(Clone, Copy)]
pub struct WindowRowArgs {
    /// Input at the first tap of the first window's first pixel.
    pub x: *const u8,
    /// Bytes of the input from a pixel of a window to the pixel on its right.
    pub right: usize,
    /// Bytes of the input from a pixel of a window to the pixel below it.
    pub down: usize,
    /// Bytes of the input between windows.
    pub step: usize,
    /// Number of windows.
    pub windows: usize,
    /// Byte offset of each tap's word. A word is one f32 or two adjacent bf16.
    pub taps: *const usize,
    /// Number of words.
    pub count: usize,
    /// Panel of the kernel: a row of whole vectors for each tap's word.
    pub kernel: *const f32,
    /// Words between rows of the panel.
    pub panel: usize,
    /// Bias as f32, padded to whole vectors, or null.
    pub bias: *const f32,
    pub relu: Relu,
    /// Whether input and sums are known to be finite.
    pub finite: bool,
    /// Maxima of the first window, of the element type given by the microkernel's [`ResultRounding`].
    pub y: *mut u8,
    /// Argmax of the first window, or null.
    pub argmax: *mut u8,
    /// Elements between windows, in both `y` and `argmax`.
    pub row: usize,
    /// Number of filters to store, at most those of the microkernel.
    pub columns: usize,
}

/// Expands `body` for each of `G` windows of `N` vectors. The macro unrolls, because accumulators stay in registers
/// only if every index is a constant before the compiler optimizes.
macro_rules! each_cell {
    ($g:ident, $n:ident, $i:ident, $j:ident => $body:expr) => {
        each_cell!(@ $g, $n, $i, $j => $body, [0 0] [0 1] [0 2] [0 3] [1 0] [1 1] [1 2] [2 0] [2 1] [3 0])
    };
    (@ $g:ident, $n:ident, $i:ident, $j:ident => $body:expr, $([$a:literal $b:literal])*) => {
        $(if $a < $g && $b < $n {
            const $i: usize = $a;
            const $j: usize = $b;
            $body
        })*
    };
}

/// Type and rounding of a pooled convolution's results, as a const parameter.
pub type ResultRounding = u8;
/// Result type f32 of a pooled convolution. Accumulators start with the bias.
pub const WIDE: ResultRounding = 0;
/// bf16 results. Each pixel is rounded to bf16 before and after the bias is added.
const ROUNDED: ResultRounding = 1;
/// Result type bf16 of a pooled convolution. Accumulators start with the bias, and only the maximum is rounded.
pub const STORED: ResultRounding = 2;
/// Like [`ROUNDED`], for f16.
const ROUNDED_F16: ResultRounding = 3;
/// Result type f16 of a pooled convolution; like [`STORED`].
pub const STORED_F16: ResultRounding = 4;

/// Whether pixels are rounded before and after the bias is added.
const fn rounds_pixels(kind: ResultRounding) -> bool {
    kind == ROUNDED || kind == ROUNDED_F16
}

/// Whether only the maximum is rounded.
const fn rounds_maxima(kind: ResultRounding) -> bool {
    kind == STORED || kind == STORED_F16
}

/// Whether narrow results are f16.
const fn is_f16(kind: ResultRounding) -> bool {
    kind == ROUNDED_F16 || kind == STORED_F16
}

/// Rounds to the result type.
#[inline(always)]
unsafe fn narrow<V: CompareVector, const KIND: ResultRounding>(x: V) -> V {
    // SAFETY: the CPU supports the level, by the caller's promise.
    unsafe {
        if is_f16(KIND) {
            x.narrow::<{ narrow_floats::F16 }>()
        } else {
            x.narrow::<{ narrow_floats::BF16 }>()
        }
    }
}

/// Rounds finite numbers to the result type.
#[inline(always)]
unsafe fn narrow_finite<V: CompareVector, const KIND: ResultRounding>(x: V) -> V {
    // SAFETY: the CPU supports the level, by the caller's promise.
    unsafe {
        if is_f16(KIND) {
            x.narrow_finite::<{ narrow_floats::F16 }>()
        } else {
            x.narrow_finite::<{ narrow_floats::BF16 }>()
        }
    }
}

/// Microkernel: computes `G` windows, starting at `first`, of `N` vectors of filters. (Loops, not closures, because
/// closures would not be compiled with the level's target features.)
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn windows<S: AccumulatorVector, const G: usize, const N: usize, const KIND: ResultRounding>(
    w: &WindowRowArgs,
    first: usize,
) {
    // SAFETY: the input has all taps of the windows' pixels, the panel has `N` vectors, and the level is available, by
    // the caller's promise.
    unsafe {
        let zero = S::splat(0.0);
        let mut bias = [zero; N];
        if !w.bias.is_null() {
            for j in 0..N {
                bias[j] = S::load(w.bias.add(j * S::LANES));
            }
        }
        let mut acc = [[if rounds_pixels(KIND) { [zero; N] } else { bias }; 4]; G];
        // Both rows of pixels share the offsets, so that these fit the general-purpose registers.
        let mut pixels = [[0, w.right]; G];
        for g in 0..G {
            pixels[g] = [g * w.step, g * w.step + w.right];
        }
        let (mut kernel, x) = (w.kernel, w.x.add(first * w.step));
        for t in 0..w.count {
            let top = x.add(*w.taps.add(t));
            let rows = [top, top.add(w.down)];
            let mut row = [zero; N];
            for j in 0..N {
                row[j] = S::load(kernel.add(j * S::LANES));
            }
            for g in 0..G {
                for i in 0..4 {
                    let x = S::splat(rows[i / 2].add(pixels[g][i % 2]).cast::<f32>().read_unaligned());
                    for j in 0..N {
                        acc[g][i][j] = x.mul_add(row[j], acc[g][i][j]);
                    }
                }
            }
            kernel = kernel.wrapping_add(w.panel);
        }
        if w.finite && w.columns >= N * S::LANES {
            let floor = S::Compared::splat(if w.relu == Relu::None { f32::NEG_INFINITY } else { 0.0 });
            each_cell!(G, N, I, J => {
                let x = [acc[I][0][J], acc[I][1][J], acc[I][2][J], acc[I][3][J]];
                let x = [x[0].compared(), x[1].compared(), x[2].compared(), x[3].compared()];
                let at = (first + I) * w.row + J * S::LANES;
                finish_finite::<S, KIND>(w, x, bias[J].compared(), floor, at);
            });
            return;
        }
        finish_any::<S, G, N, KIND>(w, first, acc, bias);
    }
}

/// Stores maxima and argmax of `G` windows whose sums may be infinite or NaN, or whose filters do not fill the vectors:
/// the rare case.
#[inline(always)]
unsafe fn finish_any<S: AccumulatorVector, const G: usize, const N: usize, const KIND: ResultRounding>(
    w: &WindowRowArgs,
    first: usize,
    acc: [[[S; N]; 4]; G],
    bias: [S; N],
) {
    // Accumulators are copied to memory and read in a loop: this needs little code, and variable indices into the
    // accumulators would keep them out of registers in the loop over taps. SAFETY: as for `windows`.
    unsafe {
        let mut made: [[MaybeUninit<[S; 4]>; N]; G] = [[const { MaybeUninit::uninit() }; N]; G];
        for g in 0..G {
            for j in 0..N {
                made[g][j].write([acc[g][0][j], acc[g][1][j], acc[g][2][j], acc[g][3][j]]);
            }
        }
        #[allow(clippy::needless_range_loop, reason = "loops over constants are unrolled")]
        for g in 0..G {
            for j in 0..N {
                let from = j * S::LANES;
                if from < w.columns {
                    let at = (first + g) * w.row + from;
                    let n = S::LANES.min(w.columns - from);
                    let x = made[g][j].assume_init();
                    let x = [x[0].compared(), x[1].compared(), x[2].compared(), x[3].compared()];
                    finish::<S::Compared, KIND>(w, x, bias[j].compared(), at, n);
                }
            }
        }
    }
}

/// Stores maximum and argmax of one window with finite sums at element `at`. `floor`: 0 with relu, otherwise −∞.
#[inline(always)]
pub unsafe fn finish_finite<S: AccumulatorVector, const KIND: ResultRounding>(
    w: &WindowRowArgs,
    x: [S::Compared; 4],
    bias: S::Compared,
    floor: S::Compared,
    at: usize,
) {
    // SAFETY: as for `windows`.
    unsafe {
        let [mut a, mut b, mut c, mut d] = x;
        if rounds_pixels(KIND) {
            a = narrow_finite::<S::Compared, KIND>(a);
            b = narrow_finite::<S::Compared, KIND>(b);
            c = narrow_finite::<S::Compared, KIND>(c);
            d = narrow_finite::<S::Compared, KIND>(d);
            if !w.bias.is_null() {
                a = narrow_finite::<S::Compared, KIND>(a.add(bias));
                b = narrow_finite::<S::Compared, KIND>(b.add(bias));
                c = narrow_finite::<S::Compared, KIND>(c.add(bias));
                d = narrow_finite::<S::Compared, KIND>(d.add(bias));
            }
        }
        let (left, right) = (b.max(a), d.max(c));
        let top = right.max(left);
        // Relu before or after the maximum gives the same maximum, and the same argmax where it is not dead.
        let y = top.max(floor);
        match KIND {
            STORED => S::store_rounded::<{ narrow_floats::BF16 }>(y, w.y.cast::<u16>().add(at)),
            STORED_F16 => S::store_rounded::<{ narrow_floats::F16 }>(y, w.y.cast::<u16>().add(at)),
            _ => put::<S::Compared, KIND>(y, w.y, at),
        }
        if !w.argmax.is_null() {
            // In the pair that has the maximum, select the second pixel if the first one is less: ties go to the first.
            let in_right = right.gt(left);
            let second = top.gt(S::Compared::choose(in_right, c, a));
            S::Compared::store_argmax(w.argmax.add(at), in_right, second, floor.ge(top));
        }
    }
}

/// Stores `n` lanes of the maximum and argmax of one window at element `at`; sums may be infinite or NaN.
#[inline(always)]
pub unsafe fn finish<V: CompareVector, const KIND: ResultRounding>(
    w: &WindowRowArgs,
    x: [V; 4],
    bias: V,
    at: usize,
    n: usize,
) {
    // SAFETY: as for `windows`.
    unsafe {
        let [mut a, mut b, mut c, mut d] =
            if rounds_pixels(KIND) { rounded::<V, KIND>(x, bias, !w.bias.is_null()) } else { x };
        let zero = V::splat(0.0);
        if w.relu == Relu::Before {
            [a, b, c, d] = [rectified(a), rectified(b), rectified(c), rectified(d)];
        }
        let first = a.ge(b);
        let top = V::choose(first, a, b);
        let second = top.ge(c);
        let top = V::choose(second, top, c);
        let third = top.ge(d);
        let kept = V::choose(third, top, d);
        let mut top = kept;
        // Comparisons skip a NaN, but the maximum is NaN.
        let nan = [a.unordered(b), c.unordered(d)];
        if V::any(nan[0], nan[1]) {
            top = V::choose(nan[0], a.add(b), V::choose(nan[1], c.add(d), top));
        }
        // The gradient follows the element that the comparisons keep; relu's gradient follows the value it is applied
        // to.
        let dead = match w.relu {
            Relu::None => V::none(),
            Relu::Before => zero.ge(kept),
            Relu::After => zero.ge(top),
        };
        if w.relu == Relu::After {
            top = rectified(top);
        }
        if rounds_maxima(KIND) {
            top = narrow::<V, KIND>(top);
        }
        let left = V::and(third, second);
        let later = V::not(V::pick(left, first, third));
        if n == V::LANES {
            put::<V, KIND>(top, w.y, at);
            if !w.argmax.is_null() {
                V::store_argmax(w.argmax.add(at), V::not(left), later, dead);
            }
            return;
        }
        let size = if KIND == WIDE { 4 } else { 2 };
        let (mut values, mut argmax) = ([0f32; 16], [0u8; 16]);
        put::<V, KIND>(top, values.as_mut_ptr().cast(), 0);
        std::ptr::copy_nonoverlapping(values.as_ptr().cast(), w.y.add(at * size), n * size);
        if !w.argmax.is_null() {
            V::store_argmax(argmax.as_mut_ptr(), V::not(left), later, dead);
            std::ptr::copy_nonoverlapping(argmax.as_ptr(), w.argmax.add(at), n);
        }
    }
}

/// Rounds the pixels as separate ops would: first the sums, then again after the bias is added.
#[inline(always)]
unsafe fn rounded<V: CompareVector, const KIND: ResultRounding>(
    [a, b, c, d]: [V; 4],
    bias: V,
    biased: bool,
) -> [V; 4] {
    // SAFETY: as for `windows`.
    unsafe {
        let [a, b, c, d] =
            [narrow::<V, KIND>(a), narrow::<V, KIND>(b), narrow::<V, KIND>(c), narrow::<V, KIND>(d)];
        if !biased {
            return [a, b, c, d];
        }
        [
            narrow::<V, KIND>(a.add(bias)),
            narrow::<V, KIND>(b.add(bias)),
            narrow::<V, KIND>(c.add(bias)),
            narrow::<V, KIND>(d.add(bias)),
        ]
    }
}

/// Applies relu; NaN stays NaN.
#[inline(always)]
unsafe fn rectified<V: CompareVector>(x: V) -> V {
    // SAFETY: as for `windows`.
    unsafe {
        let zero = V::splat(0.0);
        V::choose(zero.ge(x), zero, x)
    }
}

/// Stores a vector of results at element `at`.
#[inline(always)]
unsafe fn put<V: CompareVector, const KIND: ResultRounding>(x: V, y: *mut u8, at: usize) {
    // SAFETY: the caller has room for the lanes at element `at`.
    unsafe {
        let narrow = y.cast::<u16>().wrapping_add(at);
        match KIND {
            WIDE => x.store(y.cast::<f32>().add(at)),
            ROUNDED_F16 | STORED_F16 => x.store_narrow::<{ narrow_floats::F16 }>(narrow),
            _ => x.store_narrow::<{ narrow_floats::BF16 }>(narrow),
        }
    }
}

/// Function type of a microkernel, which loops over the windows of a row.
pub type WindowsKernel = unsafe fn(&WindowRowArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, $n:literal, $most:literal, [$($g:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const KIND: ResultRounding>(w: &WindowRowArgs) {
            // Each call computes as many windows as fit, and the last one the rest. A window takes some hundred cycles;
            // dividing the windows evenly would cost a good part of that.
            let mut from = 0;
            while from < w.windows {
                let n = $most.min(w.windows - from);
                match n {
                    // SAFETY: the caller's promises are those of `windows`.
                    $($g => unsafe { windows::<$v, $g, $n, KIND>(w, from) },)*
                    _ => {}
                }
                from += n;
            }
        }
    };
}
kernels!(portable1, Portable32, 1, 1, [1]);
kernels!(portable2, Portable32, 2, 1, [1]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{HalfPairs16, V8x32, V16x32};
kernels!(avx2x1, V8x32, 1, 2, [1 2], "avx2,fma,f16c");
kernels!(avx2x2, V8x32, 2, 1, [1], "avx2,fma,f16c");
kernels!(avx512x1, V16x32, 1, 4, [1 2 3 4], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(avx512x2, V16x32, 2, 3, [1 2 3], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(avx512x3, V16x32, 3, 2, [1 2], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(avx512x4, V16x32, 4, 1, [1], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(pairs1, HalfPairs16, 1, 4, [1 2 3 4], "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");
kernels!(pairs2, HalfPairs16, 2, 3, [1 2 3], "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");
kernels!(pairs3, HalfPairs16, 3, 2, [1 2], "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");
kernels!(pairs4, HalfPairs16, 4, 1, [1], "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma");

/// Microkernels of a level: for panels of one vector of filters, of two, and so on.
#[derive(Clone, Copy)]
pub struct WindowKernels {
    kernels: &'static [WindowsKernel],
    lanes: usize,
}

/// Element types of operands and results in microkernels, and where sums are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MicrokernelTypes {
    /// f32 operands, f32 results.
    Wide,
    /// Operands of this narrow format, widened to f32; results are rounded to it before and after the bias is added.
    Rounded(NarrowFormat),
    /// Operands of this narrow format, widened to f32; results are rounded to it once.
    Once(NarrowFormat),
    /// Pairs of bf16 (VDPBF16PS); results are rounded to bf16 once.
    Pairs,
}

impl MicrokernelTypes {
    /// Bytes of an input element as microkernels read it.
    pub fn size(self) -> usize {
        if self == MicrokernelTypes::Pairs { 2 } else { 4 }
    }
}

/// Returns the microkernels of a vector level. `Pairs` requires a machine with AVX512_BF16.
pub fn windows_shape(level: Level, stored: MicrokernelTypes) -> WindowKernels {
    macro_rules! kinds {
        ($($name:ident)*) => {
            match stored {
                MicrokernelTypes::Wide => &[$($name::<WIDE>),*],
                MicrokernelTypes::Rounded(narrow_floats::F16) => &[$($name::<ROUNDED_F16>),*],
                MicrokernelTypes::Rounded(_) => &[$($name::<ROUNDED>),*],
                MicrokernelTypes::Once(narrow_floats::F16) => &[$($name::<STORED_F16>),*],
                MicrokernelTypes::Once(_) | MicrokernelTypes::Pairs => &[$($name::<STORED>),*],
            }
        };
    }
    let (kernels, lanes): (&[WindowsKernel], _) = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if stored == MicrokernelTypes::Pairs => {
            (&[pairs1::<STORED>, pairs2::<STORED>, pairs3::<STORED>, pairs4::<STORED>], 16)
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => (kinds!(avx512x1 avx512x2 avx512x3 avx512x4), 16),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (kinds!(avx2x1 avx2x2), 8),
        _ => (kinds!(portable1 portable2), 4),
    };
    WindowKernels { kernels, lanes }
}

impl WindowKernels {
    /// Returns how many filters each panel has for `features` filters: as few panels as possible, of about the same
    /// width.
    pub fn panel(&self, features: usize) -> usize {
        let vectors = features.div_ceil(self.lanes).max(1);
        vectors.div_ceil(vectors.div_ceil(self.kernels.len())) * self.lanes
    }

    /// Returns the microkernel for a panel of `columns` filters.
    pub fn kernel(&self, columns: usize) -> WindowsKernel {
        self.kernels[columns.div_ceil(self.lanes) - 1]
    }
}
