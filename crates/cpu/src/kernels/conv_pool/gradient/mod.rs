//! Kernel and bias gradients of a max-pooled convolution, computed directly from the pooled gradient.
//!
//! The gradient before pooling is never stored. In each window only the argmax has a gradient, so there is one
//! multiply-add for each window, tap and filter. SIMD lanes are filters. An image is laid out as a table: its entry for
//! an element has all elements of the window that starts there. For a tap, the argmax of each lane is then an index
//! into one table entry: a permutation of one vector register. Partial sums belong to groups of images, which depend on
//! the batch size only, and are added in a tree: results do not depend on the number of threads.
//!
//! If the pooled gradient is a product with a short K (`dy` = left · right), it is computed here, a strip of windows of
//! several images at a time, so that it stays in cache and is never stored as an array. [`Im2col`] replaces tables by
//! im2col patches, with fewer lookups, and computes such products in registers.

mod im2col;
mod zero_products;

use crate::kernel::convert::convert;
use crate::kernel::gemm_dims::roles;
use crate::kernel::padded_input::{PaddedConvInput, offsets};
use crate::kernel::partial_sums::{SumStore, sum_parts};
use crate::kernel::skinny_gemm::FewRows;
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::conv_pool::finite_bounds::MaxMagnitudeF32;
use crate::kernels::conv_pool::gradient::im2col::{Im2col, LANES, PooledGradients};
use crate::kernels::conv_pool::gradient::zero_products::ZeroProducts;
use crate::select::{Problem, SelectResult};
use crate::simd::level::{Isa, Level, TileFn, TileLoop, by_level};
use crate::simd::loops::{lanes, lanes_mut, narrow, widen};
use crate::simd::narrow_floats::{BF16, F16, F32, NarrowFloats, NarrowFormat};
use crate::simd::vector::Portable32;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use systole_compile::Kernel as Plan;
use systole_compile::{DEAD, Step, UnpooledGradient};
use systole_ir::{DType, Result};

/// Maximum number of partial sums. It is constant so that results do not depend on the number of threads.
const MOST_PARTS: usize = 32;
/// Images for which a product computes gradients together, rounded down to its register tile.
const PRODUCT_IMAGES: usize = 16;
/// Maximum gradient elements that a product computes at a time, so that they stay in cache.
const PRODUCT_ELEMENTS: usize = 1 << 15;
/// Elements of an image's patches that are summed per call if the call also computes gradients.
const IM2COL_ELEMENTS: usize = 256;

/// SIMD vectors that can be permuted by the argmax of each lane.
///
/// # Safety
/// As for [`NarrowFloats`].
unsafe trait ArgmaxLookup: NarrowFloats {
    /// Vector type of the argmax of each lane.
    type Argmax: Copy;
    unsafe fn load_argmax(p: *const u8) -> Self::Argmax;
    /// Sets lanes whose argmax is [`DEAD`] to zero.
    unsafe fn alive(self, argmax: Self::Argmax) -> Self;
    /// Returns, for each lane, the element of a table entry of `P` (4 or 16) elements that the argmax selects. Only the
    /// lowest 2 or 4 bits of the argmax count.
    unsafe fn look_up<const P: usize>(table: *const f32, argmax: Self::Argmax) -> Self;
}

// SAFETY: uses no instructions beyond the baseline.
unsafe impl ArgmaxLookup for Portable32 {
    type Argmax = [u8; 4];
    #[inline(always)]
    unsafe fn load_argmax(p: *const u8) -> [u8; 4] {
        // SAFETY: the caller has one byte for each lane at `p`.
        unsafe { *p.cast() }
    }
    #[inline(always)]
    unsafe fn alive(self, argmax: [u8; 4]) -> Self {
        Portable32(std::array::from_fn(|i| if argmax[i] < DEAD { self.0[i] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn look_up<const P: usize>(table: *const f32, argmax: [u8; 4]) -> Self {
        // SAFETY: the index is below `P`, and the caller has `P` elements at `table`.
        Portable32(argmax.map(|p| unsafe { *table.add(p as usize % P) }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::kernels::conv_pool::gradient::ArgmaxLookup;
    use crate::simd::vector::x86::{V8x32, V16x32};
    use std::arch::x86_64::*;
    use systole_compile::DEAD;

    // SAFETY: callers use it only at levels with these instructions.
    unsafe impl ArgmaxLookup for V16x32 {
        type Argmax = __m512i;
        #[inline(always)]
        unsafe fn load_argmax(p: *const u8) -> __m512i {
            // SAFETY: the level is available; the caller has one byte for each lane there.
            unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn alive(self, argmax: __m512i) -> Self {
            // SAFETY: the level is available.
            unsafe {
                let alive = _mm512_cmplt_epu32_mask(argmax, _mm512_set1_epi32(DEAD as i32));
                V16x32(_mm512_maskz_mov_ps(alive, self.0))
            }
        }
        #[inline(always)]
        unsafe fn look_up<const P: usize>(table: *const f32, argmax: __m512i) -> Self {
            // SAFETY: the level is available; the caller has `P` elements there. Permutations ignore higher bits.
            unsafe {
                if P == 4 {
                    V16x32(_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(table)), argmax))
                } else {
                    V16x32(_mm512_permutexvar_ps(argmax, _mm512_loadu_ps(table)))
                }
            }
        }
    }

    // SAFETY: as for `V16x32`.
    unsafe impl ArgmaxLookup for V8x32 {
        type Argmax = __m256i;
        #[inline(always)]
        unsafe fn load_argmax(p: *const u8) -> __m256i {
            // SAFETY: the level is available; the caller has one byte for each lane there.
            unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
        }
        #[inline(always)]
        unsafe fn alive(self, argmax: __m256i) -> Self {
            // SAFETY: the level is available.
            unsafe {
                let dead = _mm256_srai_epi32::<31>(_mm256_slli_epi32::<24>(argmax));
                V8x32(_mm256_andnot_ps(_mm256_castsi256_ps(dead), self.0))
            }
        }
        #[inline(always)]
        unsafe fn look_up<const P: usize>(table: *const f32, argmax: __m256i) -> Self {
            // SAFETY: the level is available; the caller has `P` elements there. Permutations ignore higher bits.
            unsafe {
                if P == 4 {
                    return V8x32(_mm256_permutevar_ps(_mm256_broadcast_ps(&*table.cast()), argmax));
                }
                let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), argmax);
                let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.add(8)), argmax);
                let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(argmax));
                V8x32(_mm256_blendv_ps(low, high, is_high))
            }
        }
    }
}

/// Arguments of a microkernel: sums over windows of an image, for a few taps and one or two vectors of filters.
struct WindowSumArgs {
    /// The image's table.
    table: *const f32,
    /// Table offset of each window, in words, and the number of windows.
    windows: *const usize,
    count: usize,
    /// Offset of each tap from the window, in words.
    taps: *const usize,
    /// Gradients of the first window, f32, bf16 or f16, with `row` elements between windows.
    dy: *const u8,
    argmax: *const u8,
    row: usize,
    /// Table words between the two windows whose elements are in one entry; see [`pair_sums`].
    pair: usize,
    /// Accumulated sums f32[taps, filters], with `sum_row` elements between rows.
    sum: *mut f32,
    sum_row: usize,
    /// Accumulated bias gradient, or null.
    bias: *mut f32,
}

/// Microkernel: sums `K` taps of `N` vectors of filters, with table entries of `P` elements. `F`: format of the
/// gradients.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn sums<V: ArgmaxLookup, const P: usize, const F: NarrowFormat, const K: usize, const N: usize>(
    s: &WindowSumArgs,
) {
    // SAFETY: the caller's table and arrays have the windows, `K` taps and `N` vectors; the level is available.
    unsafe {
        let zero = V::splat(0.0);
        let (mut acc, mut bias) = ([[zero; N]; K], [zero; N]);
        let mut taps = [0; K];
        for k in 0..K {
            taps[k] = *s.taps.add(k);
        }
        let mut at = 0;
        for w in 0..s.count {
            let table = s.table.add(*s.windows.add(w));
            let (mut argmax, mut g) = ([V::load_argmax(s.argmax.add(at)); N], [zero; N]);
            for j in 0..N {
                let at = at + j * V::LANES;
                argmax[j] = V::load_argmax(s.argmax.add(at));
                let dy = match F {
                    F32 => V::load(s.dy.cast::<f32>().add(at)),
                    _ => V::load_wide::<F>(s.dy.cast::<u16>().add(at)),
                };
                g[j] = dy.alive(argmax[j]);
                bias[j] = bias[j].add(g[j]);
            }
            for k in 0..K {
                for j in 0..N {
                    acc[k][j] = V::look_up::<P>(table.add(taps[k]), argmax[j]).mul_add(g[j], acc[k][j]);
                }
            }
            at += s.row;
        }
        for j in 0..N {
            for k in 0..K {
                let to = s.sum.add(k * s.sum_row + j * V::LANES);
                V::load(to).add(acc[k][j]).store(to);
            }
            if !s.bias.is_null() {
                let to = s.bias.add(j * V::LANES);
                V::load(to).add(bias[j]).store(to);
            }
        }
    }
}

/// Returns the byte indices that select each lane's pair of bf16 from a table entry, and each lane's pair of gradients.
/// The pair is the window whose gradients and argmax start at `at` and, if `both`, the next window.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pair_of_windows(
    s: &WindowSumArgs,
    at: usize,
    both: bool,
) -> (std::arch::x86_64::__m512i, std::arch::x86_64::__m512i) {
    use std::arch::x86_64::*;
    // SAFETY: as for `pair_sums`.
    unsafe {
        // The argmax and gradient of each lane of a window. The gradient is zero if the argmax is dead.
        let window = |at: usize| {
            let argmax = _mm512_cvtepu8_epi32(_mm_loadu_si128(s.argmax.add(at).cast()));
            let alive = _mm512_cmplt_epu32_mask(argmax, _mm512_set1_epi32(DEAD as i32));
            let dy = _mm256_loadu_si256(s.dy.cast::<u16>().add(at).cast());
            (_mm512_and_si512(argmax, _mm512_set1_epi32(3)), _mm512_maskz_cvtepu16_epi32(alive, dy))
        };
        let (mut p, mut d) = window(at);
        if both {
            let (q, e) = window(at + s.row);
            p = _mm512_or_si512(p, _mm512_slli_epi32::<16>(q));
            d = _mm512_or_si512(d, _mm512_slli_epi32::<16>(e));
        }
        // An element of an entry has two bytes. Without a second window the shuffle writes zeros for it. An element of
        // the entry could be infinite, and its product with a zero gradient would be NaN.
        let bytes = _mm512_or_si512(_mm512_slli_epi32::<1>(p), _mm512_slli_epi32::<9>(p));
        let from = if both { 0x0908_0100 } else { 0x8080_0100u32 as i32 };
        (_mm512_add_epi8(bytes, _mm512_set1_epi32(from)), d)
    }
}

/// Variant of [`sums`] for bf16, two adjacent windows at a time: a lane's pair of elements times its pair of gradients
/// (VDPBF16PS). A table entry has four elements of one window and four of the next window, which is `pair` words later.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn pair_sums<const K: usize, const N: usize>(s: &WindowSumArgs) {
    use std::arch::x86_64::*;
    // SAFETY: as for `sums`; gradients are bf16, and the table was filled by `Pairs`.
    unsafe {
        let pairs = |sum: __m512, a: __m512i, b: __m512i| {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512i, __m512bh>(a),
                std::mem::transmute::<__m512i, __m512bh>(b),
            )
        };
        let zero = _mm512_setzero_si512();
        let (mut acc, mut bias) = ([[_mm512_setzero_ps(); N]; K], [_mm512_setzero_ps(); N]);
        let ones = _mm512_set1_epi32(0x3f80_3f80);
        let mut taps = [0; K];
        for k in 0..K {
            taps[k] = *s.taps.add(k);
        }
        let (mut w, mut at) = (0, 0);
        while w < s.count {
            let first = *s.windows.add(w);
            let both = w + 1 < s.count && *s.windows.add(w + 1) == first + s.pair;
            let table = s.table.add(first);
            let (mut argmax, mut g) = ([zero; N], [zero; N]);
            for j in 0..N {
                let d;
                (argmax[j], d) = pair_of_windows(s, at + j * 16, both);
                g[j] = d;
                bias[j] = pairs(bias[j], d, ones);
            }
            for k in 0..K {
                let entry = _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(taps[k]).cast()));
                for j in 0..N {
                    acc[k][j] = pairs(acc[k][j], _mm512_shuffle_epi8(entry, argmax[j]), g[j]);
                }
            }
            let more = 1 + both as usize;
            (w, at) = (w + more, at + more * s.row);
        }
        for j in 0..N {
            for k in 0..K {
                let to = s.sum.add(k * s.sum_row + j * 16);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), acc[k][j]));
            }
            if !s.bias.is_null() {
                let to = s.bias.add(j * 16);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), bias[j]));
            }
        }
    }
}

/// Function type of a microkernel for a number of taps, at most `taps` of [`SumKernels`].
type SumKernel = unsafe fn(usize, &WindowSumArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, $n:literal, [$($k:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const P: usize, const F: NarrowFormat>(taps: usize, s: &WindowSumArgs) {
            match taps {
                // SAFETY: the caller's promises are those of `sums`.
                $($k => unsafe { sums::<$v, P, F, $k, $n>(s) },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, 1, [1 2 3 4 5]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
kernels!(avx2, V8x32, 1, [1 2 3 4 5 6 7 8 9 10], "avx2,fma,f16c");
kernels!(avx512x1, V16x32, 1, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(avx512x2, V16x32, 2, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

#[cfg(target_arch = "x86_64")]
macro_rules! pair_kernels {
    ($name:ident, $n:literal, [$($k:literal)*]) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
        unsafe fn $name(taps: usize, s: &WindowSumArgs) {
            match taps {
                // SAFETY: the caller's promises are those of `pair_sums`.
                $($k => unsafe { pair_sums::<$k, $n>(s) },)*
                _ => {}
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pair_kernels!(pairs_x1, 1, [1 2 3 4 5 6 7 8 9 10 11 12]);
#[cfg(target_arch = "x86_64")]
pair_kernels!(pairs_x2, 2, [1 2 3 4 5 6 7 8 9 10 11 12]);

/// Microkernels of a level.
#[derive(Clone, Copy)]
struct SumKernels {
    /// Microkernel for one vector of filters.
    one: SumKernel,
    /// Microkernel for several vectors of filters, and their number.
    more: (SumKernel, usize),
    /// Filters per vector.
    lanes: usize,
    /// Maximum taps of one call: one accumulator for each tap and vector of filters.
    taps: usize,
}

fn shape<const P: usize, const F: NarrowFormat>(level: Level) -> SumKernels {
    let single = |one: SumKernel, lanes, taps| SumKernels { one, more: (one, 1), lanes, taps };
    by_level!(
        level,
        SumKernels { more: (avx512x2::<P, F>, 2), ..single(avx512x1::<P, F>, 16, 12) },
        single(avx2::<P, F>, 8, 10),
        single(portable::<P, F>, 4, 5)
    )
}

/// Returns the microkernels for table entries of `entry` elements and gradients of type `dtype`.
fn shape_of(entry: usize, dtype: DType, level: Level) -> SumKernels {
    match (entry, dtype) {
        (4, DType::F32) => shape::<4, F32>(level),
        (4, DType::F16) => shape::<4, F16>(level),
        (4, _) => shape::<4, BF16>(level),
        (_, DType::F32) => shape::<16, F32>(level),
        (_, DType::F16) => shape::<16, F16>(level),
        _ => shape::<16, BF16>(level),
    }
}

/// Returns the same shape with the microkernels for pairs of windows.
#[cfg(target_arch = "x86_64")]
fn shape_of_pairs(shape: SumKernels) -> SumKernels {
    SumKernels { one: pairs_x1, more: (pairs_x2, 2), ..shape }
}

/// No other architecture has this level.
#[cfg(not(target_arch = "x86_64"))]
fn shape_of_pairs(shape: SumKernels) -> SumKernels {
    shape
}

/// Returns the fused gradient of a step.
pub fn fused_gradient<'a>(p: &Problem<'a>) -> SelectResult<&'a UnpooledGradient> {
    match &p.step.kernel {
        Plan::UnpooledGradient(g) => Ok(g),
        _ => Err("not a gradient of a pooled convolution".into()),
    }
}

/// Returns the product that computes `dy` if the step has its two operands instead of an array.
pub fn product_of(g: &UnpooledGradient, step: &Step, level: Level) -> SelectResult<Option<FewRows>> {
    let [left, right] = &step.input_types[2..] else { return Ok(None) };
    if !g.product {
        return Ok(None);
    }
    let types = [left.dtype; 2];
    let [left, right] = [roles(left, &[], &[0], &[1]), roles(right, &[], &[1], &[0])];
    let product = FewRows::accept(&left, &right, types, level);
    product.map(Some).map_err(|why| format!("the product that computes the pooled gradient: {why}").into())
}

/// Method of summing windows, one for each candidate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SumMethod {
    /// im2col in registers: [`Im2col`].
    Im2col,
    /// Lookups in tables of bf16, two adjacent windows at a time.
    Bf16Pairs,
    /// Lookups in tables of f32.
    LookUp,
}

/// Fills `n` table entries `[f32; 4]` at `dst` from the image at `a`: the elements at the four offsets in `b` (`usize`)
/// from each element.
struct FillTableF32;
impl TileLoop for FillTableF32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: the arguments are those of the type's comment; the image has `n` elements from each offset on.
        unsafe {
            let offsets = *b.cast::<[usize; 4]>();
            let part = |k: usize| lanes::<f32>(a.cast::<f32>().add(offsets[k]).cast(), n);
            let entries = lanes_mut::<[f32; 4]>(dst, n);
            for ((((e, a), b), c), d) in
                entries.iter_mut().zip(part(0)).zip(part(1)).zip(part(2)).zip(part(3))
            {
                *e = [*a, *b, *c, *d];
            }
        }
    }
}

/// Fills `n` table entries of eight bf16 at `dst` from the image at `a` (bf16 widened to f32).
///
/// The first half has the elements at the four offsets in `b` (`usize`) from each element. The second half has those of
/// the window that starts `b[4]` elements later, or zeros after the end of the image.
struct FillTableBf16Pairs;
impl TileLoop for FillTableBf16Pairs {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: as for `FillTableF32`; second windows are read only if they are inside the image.
        unsafe {
            let [offsets @ .., step] = *b.cast::<[usize; 5]>();
            let part = |from: usize, n: usize| lanes::<u32>(a.cast::<u32>().add(from).cast(), n);
            let two = |x: &u32, y: &u32| x >> 16 | y & 0xffff_0000;
            let (entries, both) = (lanes_mut::<[u32; 4]>(dst, n), n.saturating_sub(step));
            let [p, q, r, s] = offsets.map(|offset| part(offset, n));
            for (i, e) in entries[both..].iter_mut().enumerate() {
                let i = both + i;
                *e = [two(&p[i], &q[i]), two(&r[i], &s[i]), 0, 0];
            }
            let next = offsets.map(|offset| part(offset + step.min(n), both));
            let first = p.iter().zip(q).zip(r.iter().zip(s));
            let second = next[0].iter().zip(next[1]).zip(next[2].iter().zip(next[3]));
            for (e, (((p, q), (r, s)), ((t, u), (v, w)))) in entries[..both].iter_mut().zip(first.zip(second))
            {
                *e = [two(p, q), two(r, s), two(t, u), two(v, w)];
            }
        }
    }
}

/// Returns a method's microkernels and the loop that fills their tables, or why there are none.
fn microkernels(
    method: SumMethod,
    entry: usize,
    dtype: DType,
    level: Level,
) -> SelectResult<(SumKernels, TileFn)> {
    let shape = shape_of(entry, dtype, level);
    match method {
        SumMethod::Bf16Pairs if dtype != DType::BF16 => Err("its gradients are not bf16".into()),
        SumMethod::Bf16Pairs if entry != 4 => Err("its windows have more than 4 elements".into()),
        SumMethod::Bf16Pairs => Ok((shape_of_pairs(shape), level.tile::<FillTableBf16Pairs>())),
        _ => Ok((shape, level.tile::<FillTableF32>())),
    }
}

/// Vector kernel of the kernel and bias gradients of a pooled convolution. Operands and results are those of
/// [`UnpooledGradient`].
pub struct ConvPoolGradient {
    input: PaddedConvInput,
    dtype: DType,
    level: Level,
    batch: usize,
    /// Elements of the input.
    elements: usize,
    /// Elements of one image with padding.
    image: usize,
    /// Image offsets of a window's elements from its first one, as many as a table entry has.
    window_offsets: Vec<usize>,
    /// Size of a table entry in 32-bit words: 4 or 16.
    entry: usize,
    /// Fills tables whose entries have 4 words.
    fill: TileFn,
    /// Table words between two windows that are summed as a pair.
    pair: usize,
    /// Start of each window in an image's table, in words.
    windows: Vec<usize>,
    /// Table offset of each tap, in words.
    taps: Vec<usize>,
    /// Taps of one call of a microkernel.
    block: usize,
    features: usize,
    /// Features rounded up to whole vectors.
    padded: usize,
    shape: SumKernels,
    /// Element types of the results: the kernel gradient and, optionally, the bias gradient.
    to: Vec<DType>,
    images_per_part: usize,
    /// Computes `dy` if the step has the operands of a product instead of an array `dy`.
    product: Option<FewRows>,
    /// Replaces tables and their microkernels.
    im2col: Option<Im2col>,
    /// Windows of an image whose gradients are computed together.
    strip: usize,
    /// Computes the maximum magnitude of an image's elements.
    magnitude: TileFn,
    /// Products that the microkernels leave out, needed if an image has an element that is not finite.
    zeros: ZeroProducts,
}

/// Operands shared by all parts.
struct GradientOperands<'a> {
    x: *const f32,
    argmax: *const u8,
    /// The pooled gradient, or the right operand of the product that computes it.
    dy: *const u8,
    /// Left operand of the product.
    left: *const f32,
    /// Set if an image has an element that is not finite.
    is_odd: &'a AtomicBool,
}

/// Returns the images per part, and the windows of an image whose gradients are computed together.
fn portions(
    product: &Option<FewRows>,
    im2col: &Option<Im2col>,
    batch: usize,
    [windows, features]: [usize; 2],
) -> (usize, usize) {
    // A multiple of the product's register tile: each call reads the right operand again.
    let together = match (product, im2col) {
        (Some(product), None) => PRODUCT_IMAGES / product.rows() * product.rows(),
        (Some(_), Some(_)) => PRODUCT_IMAGES,
        _ => 1,
    };
    let images_per_part = batch.div_ceil(MOST_PARTS).max(1).next_multiple_of(together);
    let strip = match (product, im2col) {
        (Some(_), None) => PRODUCT_ELEMENTS / images_per_part.min(batch).max(1) / features,
        (Some(_), Some(im2col)) => IM2COL_ELEMENTS / im2col.patch_elements(),
        _ => windows,
    };
    (images_per_part, strip.clamp(1, windows.max(1)))
}

impl ConvPoolGradient {
    /// Creates the kernel with a method, or returns why the method does not support the problem.
    pub fn new(p: &Problem<'_>, method: SumMethod) -> SelectResult<ConvPoolGradient> {
        let g = fused_gradient(p)?;
        let (step, level) = (p.step, p.target.level.vectors());
        let (x, argmax, dk) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        let dtype = step.input_types[2].dtype;
        let product = product_of(g, step, level)?.map(|product| product.with_pairs(p.target.level));
        let c = &g.conv;
        let input = PaddedConvInput::new(x, &c.padding, &c.lhs_dilation);
        let input = input.ok_or("its padding crops more elements than there are")?;
        let (channels, features) = (x.shape[3], argmax.shape[3]);
        // Elements of the image between adjacent pixels of the convolution's result.
        let pixel = [0, 1].map(|i| input.strides[i] * c.rhs_dilation[i]);
        let entry = if g.unpool.window[0] * g.unpool.window[1] <= 4 { 4 } else { 16 };
        let (shape, fill) = microkernels(method, entry, dtype, level)?;
        let im2col =
            (method == SumMethod::Im2col).then(|| Im2col::new(g, step, &input, level)).transpose()?;
        let in_table = |all: Vec<usize>| all.into_iter().map(|at| at * entry).collect::<Vec<usize>>();
        let taps = [0, 1].map(|i| (dk.shape[i], input.strides[i] * c.strides[i]));
        let taps = in_table(offsets(taps.into_iter().chain([(channels, 1)])));
        let blocks = taps.len().div_ceil(shape.taps);
        let windows = [0, 1].map(|i| (argmax.shape[i + 1], pixel[i] * g.unpool.strides[i]));
        let windows = in_table(offsets(windows.into_iter()));
        let (images_per_part, strip) = portions(&product, &im2col, x.shape[0], [windows.len(), features]);
        Ok(ConvPoolGradient {
            dtype,
            level,
            batch: x.shape[0],
            elements: x.elements(),
            image: input.image,
            window_offsets: offsets([0, 1].map(|i| (g.unpool.window[i], pixel[i])).into_iter()),
            entry,
            fill,
            pair: pixel[1] * g.unpool.strides[1] * entry,
            windows,
            block: taps.len().div_ceil(blocks),
            taps,
            features,
            padded: features.next_multiple_of(shape.lanes),
            shape,
            to: step.output_types.iter().map(|t| t.dtype).collect(),
            images_per_part,
            product,
            im2col,
            strip,
            magnitude: level.tile::<MaxMagnitudeF32>(),
            zeros: ZeroProducts::new(g, argmax, dk, (input.image, input.strides[0], channels)),
            input,
        })
    }

    /// Bytes of the product's left operand with each element broadcast to a vector, for [`Im2col`].
    fn spread_bytes(&self) -> usize {
        match (&self.product, &self.im2col) {
            (Some(product), Some(_)) => {
                let (terms, between, _) = product.terms();
                Im2col::spread_len(terms * between) * 4
            }
            _ => 0,
        }
    }

    fn parts(&self) -> usize {
        self.batch.div_ceil(self.images_per_part)
    }

    /// Elements of one partial sum: a row of filters for each tap, and one for the bias.
    fn sums(&self) -> usize {
        (self.taps.len() + 1) * self.padded
    }

    /// Bytes of the input converted to f32; 0 if it is f32.
    fn wide_bytes(&self) -> usize {
        if self.dtype == DType::F32 { 0 } else { (self.elements * 4).next_multiple_of(64) }
    }

    /// Whether gradients and argmax have whole vectors of features and are read without a copy.
    fn direct(&self) -> bool {
        self.padded == self.features
    }

    /// Fills an image's table: an entry for each element at which a whole window can start.
    unsafe fn fill_table(&self, x: *const f32, table: *mut f32) {
        let n = self.image - self.window_offsets.last().copied().unwrap_or(0);
        // SAFETY: the image has `image` elements, and the table has room for as many entries.
        unsafe {
            if let Some(im2col) = &self.im2col {
                return im2col.fill(x, table);
            }
            if self.entry == 4 {
                let mut offsets = [0; 5];
                offsets.iter_mut().zip(&self.window_offsets).for_each(|(to, offset)| *to = *offset);
                offsets[4] = self.pair / self.entry;
                let (x, offsets) = (x.cast(), (&raw const offsets).cast());
                return (self.fill)(table.cast(), x, offsets, x, n);
            }
            for k in 0..self.window_offsets.len() {
                for (i, x) in lanes::<f32>(x.add(self.window_offsets[k]).cast(), n).iter().enumerate() {
                    *table.add(i * self.entry + k) = *x;
                }
            }
        }
    }

    /// Copies gradients and argmax of a range of windows of one image to rows of whole vectors. The argmax of padding
    /// features is [`DEAD`].
    unsafe fn pack(
        &self,
        (dy, argmax): (*const u8, *const u8),
        count: usize,
        (to, argmax_to): (*mut u8, *mut u8),
    ) {
        let (f, size) = (self.features, self.dtype.size());
        // SAFETY: the caller's arrays have `count` windows, and the copies have room for them in whole vectors.
        unsafe {
            for w in 0..count {
                let row = to.add(w * self.padded * size);
                std::ptr::copy_nonoverlapping(dy.add(w * f * size), row, f * size);
                std::ptr::copy_nonoverlapping(argmax.add(w * f), argmax_to.add(w * self.padded), f);
                argmax_to.add(w * self.padded + f).write_bytes(DEAD, self.padded - f);
            }
        }
    }

    /// Adds the sums of a range of windows of one image. `dy` and `argmax` are those of the first of these windows.
    unsafe fn windows(
        &self,
        table: *const f32,
        (dy, argmax): (*const u8, *const u8),
        windows: &Range<usize>,
        sum: *mut f32,
    ) {
        if let Some(im2col) = &self.im2col {
            let dy = dy.cast::<f32>().wrapping_sub(windows.start * self.features);
            let argmax = argmax.wrapping_sub(windows.start * self.features);
            let (factors, factor_term, terms, term) = (std::ptr::null(), 0, 0, 0);
            let gradients = PooledGradients { dy, term, factors, factor_term, terms };
            // SAFETY: by the caller's promise; the features are whole vectors, as `Im2col::new` has checked.
            unsafe { im2col.sums(table, (argmax, 1), windows.clone(), gradients, (sum, self.features)) };
            return;
        }
        let bias = sum.wrapping_add(self.taps.len() * self.padded);
        for tap in (0..self.taps.len()).step_by(self.block) {
            let (vectors, (more, most)) = (self.padded / self.shape.lanes, self.shape.more);
            for vector in (0..vectors).step_by(most) {
                let j = vector * self.shape.lanes;
                let run = if vector + most <= vectors { more } else { self.shape.one };
                let s = WindowSumArgs {
                    table,
                    windows: self.windows[windows.start..].as_ptr(),
                    count: windows.len(),
                    taps: self.taps[tap..].as_ptr(),
                    dy: dy.wrapping_add(j * self.dtype.size()),
                    argmax: argmax.wrapping_add(j),
                    row: self.padded,
                    pair: self.pair,
                    sum: sum.wrapping_add(tap * self.padded + j),
                    sum_row: self.padded,
                    bias: if tap == 0 { bias.wrapping_add(j) } else { std::ptr::null_mut() },
                };
                let taps = self.block.min(self.taps.len() - tap);
                // SAFETY: offsets of windows and taps stay inside the image's table; rows have whole vectors.
                unsafe { run(taps, &s) };
            }
        }
    }

    /// Words of one image's table.
    fn table(&self) -> usize {
        self.im2col.as_ref().map_or((self.image * self.entry).next_multiple_of(16), Im2col::table)
    }

    /// Bytes of a part's scratch: tables, gradients that a product computes, gradients and argmax in whole vectors.
    /// There is one table per image if a product computes `dy`, otherwise a single table that all images use in turn.
    fn part_bytes(&self) -> [usize; 3] {
        let (tables, made) = match self.product {
            Some(_) => {
                let images = self.images_per_part.min(self.batch);
                let made = if self.im2col.is_some() { 0 } else { images * self.strip * self.features };
                (images, made * self.dtype.size())
            }
            None => (1, 0),
        };
        let packed = if self.direct() { 0 } else { self.strip * self.padded * 5 + 64 };
        [tables * self.table() * 4, made, packed].map(|bytes| bytes.next_multiple_of(64))
    }

    /// Whether all elements of a padded image are finite.
    unsafe fn is_finite(&self, x: *const f32) -> bool {
        let mut greatest = 0f32;
        // SAFETY: the caller's image has `image` elements.
        unsafe { (self.magnitude)((&raw mut greatest).cast(), x.cast(), x.cast(), x.cast(), self.image) };
        greatest.is_finite()
    }

    /// Adds the products that the microkernels leave out to the sums; see [`ZeroProducts`].
    unsafe fn add_zeros(&self, x: *const f32, argmax: *const u8, sums: *mut f32) {
        let places = self.windows.len() * self.features;
        for image in 0..self.batch {
            // SAFETY: the caller's arrays have `batch` images, and rows of `padded` sums for all taps.
            unsafe {
                let x = lanes::<f32>(x.add(image * self.image).cast(), self.image);
                let argmax = lanes::<u8>(argmax.add(image * places), places);
                let sums = lanes_mut::<f32>(sums.cast(), self.taps.len() * self.padded);
                self.zeros.spoil(x, argmax, (sums, self.padded));
            }
        }
    }

    /// Sums over the images of one part.
    unsafe fn part(&self, part: usize, given: &GradientOperands<'_>, sum: *mut f32) {
        let (count, f, size) = (self.windows.len(), self.features, self.dtype.size());
        let images = part * self.images_per_part..((part + 1) * self.images_per_part).min(self.batch);
        let [tables, made, packed] = self.part_bytes();
        with_scratch(tables + made + packed, |memory| {
            let (made, rows) = (memory.wrapping_add(tables), memory.wrapping_add(tables + made));
            let packed = (rows, rows.wrapping_add(self.strip * self.padded * 4));
            // SAFETY: operands have the shapes of `new`; scratch has room for the tables, a strip's gradients and an
            // image's rows; the sum belongs to this part.
            unsafe {
                sum.write_bytes(0, self.sums());
                if images.clone().any(|image| !self.is_finite(given.x.add(image * self.image))) {
                    given.is_odd.store(true, Ordering::Relaxed);
                }
                for start in (0..count).step_by(self.strip) {
                    let strip = start..(start + self.strip).min(count);
                    if let (Some(product), Some(im2col)) = (&self.product, &self.im2col) {
                        let tables = memory.cast::<f32>();
                        for (nth, image) in images.clone().enumerate().filter(|_| start == 0) {
                            im2col.fill(given.x.add(image * self.image), tables.add(nth * self.table()));
                        }
                        let (terms, between, term) = product.terms();
                        let gradients = PooledGradients {
                            dy: given.dy.cast(),
                            term,
                            factors: given.left.add(images.start * LANES),
                            factor_term: between * LANES,
                            terms,
                        };
                        let argmax = (given.argmax.add(images.start * count * f), images.len());
                        im2col.sums(tables, argmax, strip, gradients, (sum, f));
                        continue;
                    }
                    let row = strip.len() * f;
                    if let Some(product) = &self.product {
                        let columns = strip.start * f..strip.end * f;
                        product.part(given.left, given.dy, images.clone(), columns, (made, row));
                    }
                    for image in images.clone() {
                        let at = (image * count + start) * f;
                        let dy = match self.product {
                            Some(_) => made.add((image - images.start) * row * size).cast_const(),
                            None => given.dy.add(at * size),
                        };
                        let mut operands = (dy, given.argmax.add(at));
                        if !self.direct() {
                            self.pack(operands, strip.len(), packed);
                            operands = (packed.0.cast_const(), packed.1.cast_const());
                        }
                        let nth = if self.product.is_some() { image - images.start } else { 0 };
                        let table = memory.cast::<f32>().add(nth * self.table());
                        if start == 0 {
                            self.fill_table(given.x.add(image * self.image), table);
                        }
                        self.windows(table, operands, &strip, sum);
                    }
                }
            }
        });
    }

    /// Stores rows of sums as a result of type `to`.
    unsafe fn put(&self, sums: *const f32, rows: usize, out: *mut u8, to: DType) {
        let f = self.features;
        for r in 0..rows {
            let (from, dst) = (sums.wrapping_add(r * self.padded), out.wrapping_add(r * f * to.size()));
            // SAFETY: the result has `rows` rows of `features` elements.
            unsafe {
                match narrow(to, self.level) {
                    Some(narrow) => narrow(dst, from.cast(), from.cast(), from.cast(), f),
                    None => std::ptr::copy_nonoverlapping(from, dst.cast(), f),
                }
            }
        }
    }
}

impl Kernel for ConvPoolGradient {
    fn scratch(&self) -> usize {
        let left = self.product.as_ref().map_or(0, |p| p.scratch() + self.spread_bytes());
        self.wide_bytes() + self.input.bytes() + (self.parts() + 1) * self.sums() * 4 + 64 + left
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let (wide, padded) = (self.wide_bytes(), self.input.bytes());
        // SAFETY: scratch has the layout that `scratch()` counts; operands and results have the shapes of `new`.
        unsafe {
            let mut x = io.inputs[0];
            if let Some(widen) = widen(self.dtype, self.level) {
                convert(cx, widen, (x, 2), (io.scratch, 4), self.elements);
                x = io.scratch;
            }
            let x = self.input.prepare(cx, x, io.scratch.wrapping_add(wide));
            let sums = io.scratch.wrapping_add(wide + padded);
            let whole = sums.cast::<f32>().add(self.parts() * self.sums());
            let left = whole.wrapping_add(self.sums());
            let dy = match &self.product {
                Some(product) => {
                    product.copy_left(io.inputs[2], left);
                    io.inputs[3]
                }
                None => io.inputs[2],
            };
            let mut factors = left;
            if let (Some(product), Some(_)) = (&self.product, &self.im2col) {
                let (terms, between, _) = product.terms();
                factors = left.add(product.scratch() / 4);
                Im2col::spread(left, terms * between, factors);
            }
            let (xp, argmax, dy) = (Ptr::of(x.cast()), Ptr::of(io.inputs[1]), Ptr::of(dy));
            let (sp, left) = (Ptr(sums), Ptr(factors.cast()));
            let is_odd = AtomicBool::new(false);
            let body = |part: usize| {
                let (x, argmax) = (xp.elem(0), argmax.at(0));
                let given = GradientOperands { x, argmax, dy: dy.at(0), left: left.elem(0), is_odd: &is_odd };
                self.part(part, &given, sp.elem::<f32>(part * self.sums()));
            };
            let products = (self.batch * self.windows.len() * self.padded) as f64 * self.taps.len() as f64;
            cx.team.run_with(self.parts(), products / 16.0, cx.flush, &body);
            sum_parts(cx, sums.cast(), self.parts(), self.sums(), whole.cast(), SumStore::Copy);
            if is_odd.load(Ordering::Relaxed) {
                self.add_zeros(x.cast(), io.inputs[1], whole);
            }
            self.put(whole, self.taps.len(), io.outputs[0], self.to[0]);
            if let Some(&to) = self.to.get(1) {
                self.put(whole.add(self.taps.len() * self.padded), 1, io.outputs[1], to);
            }
        }
        Ok(())
    }
}
