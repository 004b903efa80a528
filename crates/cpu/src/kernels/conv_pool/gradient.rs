//! Gradients of a convolution's kernel and bias from that of its max-pooled result, without the full-size gradient.
//!
//! Of each window only the chosen element has a gradient, so one product for each window, tap and filter is enough.
//! An image is laid out as a table: for each element the elements at the same place relative to all of a window's.
//! The remembered places of a vector of filters then are the indices of one look-up in a vector register, for each
//! tap. Images are summed in parts that depend on the batch only, and the parts in a tree.
//!
//! Gradients that are a product of few terms are made here, a strip of windows of some images at a time, so that they
//! are read from a near cache and take no memory. With vectors that hold all that a window's taps see, `patches.rs` does
//! either with fewer look-ups, and makes the gradients in registers.

use crate::kernel::convert::convert;
use crate::kernel::few_rows::FewRows;
use crate::kernel::padded::{Padded, offsets};
use crate::kernel::partial_sums::{Finish, sum_parts};
use crate::kernel::product::roles;
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv_pool::amx_gradient::TileGradient;
use crate::kernels::conv_pool::im2col::{Gradients, LANES, Patches};
use crate::simd::amx::fused::fused_of;
use crate::simd::bf16::Halves;
use crate::simd::level::{Isa, Level, Target, Tile, TileFn};
use crate::simd::loops::{lanes, lanes_mut, narrow, widen};
use crate::simd::vector::Portable32;
use std::ops::Range;
use systole_compile::{DEAD, Step, UnpooledGradient};
use systole_ir::{DType, Result, TensorType};

/// Most partial sums.
const MOST_PARTS: usize = 32;
/// Images for which gradients are made together, about, and how many numbers of them.
const MADE_IMAGES: usize = 16;
const MADE: usize = 1 << 15;
/// Numbers of an image's patches for which a register kernel makes gradients in one call.
const MADE_NUMBERS: usize = 256;

/// Vectors that look numbers up in small tables.
///
/// # Safety
/// As for [`Halves`].
unsafe trait Lookup: Halves {
    /// Remembered places, one for each lane.
    type Places: Copy;
    unsafe fn places(p: *const u8) -> Self::Places;
    /// Zero in lanes whose place is dead.
    unsafe fn alive(self, places: Self::Places) -> Self;
    /// Lane by lane the entry of a table of `P` (4 or 16) numbers.
    unsafe fn look_up<const P: usize>(table: *const f32, places: Self::Places) -> Self;
}

// SAFETY: plain code, available everywhere.
unsafe impl Lookup for Portable32 {
    type Places = [u8; 4];
    #[inline(always)]
    unsafe fn places(p: *const u8) -> [u8; 4] {
        // SAFETY: the caller has a place for each lane there.
        unsafe { *p.cast() }
    }
    #[inline(always)]
    unsafe fn alive(self, places: [u8; 4]) -> Self {
        Portable32(std::array::from_fn(|i| if places[i] < DEAD { self.0[i] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn look_up<const P: usize>(table: *const f32, places: [u8; 4]) -> Self {
        // SAFETY: the index is below `P`.
        Portable32(places.map(|p| unsafe { *table.add(p as usize % P) }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::kernels::conv_pool::gradient::Lookup;
    use crate::simd::vector::x86::{V8x32, V16x32};
    use std::arch::x86_64::*;
    use systole_compile::DEAD;

    // SAFETY: callers keep to the level of these instructions.
    unsafe impl Lookup for V16x32 {
        type Places = __m512i;
        #[inline(always)]
        unsafe fn places(p: *const u8) -> __m512i {
            // SAFETY: the caller has a place for each lane there.
            unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn alive(self, places: __m512i) -> Self {
            // SAFETY: the level is available.
            unsafe {
                let alive = _mm512_cmplt_epu32_mask(places, _mm512_set1_epi32(DEAD as i32));
                V16x32(_mm512_maskz_mov_ps(alive, self.0))
            }
        }
        #[inline(always)]
        unsafe fn look_up<const P: usize>(table: *const f32, places: __m512i) -> Self {
            // SAFETY: the caller has `P` numbers there. Only the lowest bits of an index count.
            unsafe {
                if P == 4 {
                    V16x32(_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(table)), places))
                } else {
                    V16x32(_mm512_permutexvar_ps(places, _mm512_loadu_ps(table)))
                }
            }
        }
    }

    // SAFETY: as above.
    unsafe impl Lookup for V8x32 {
        type Places = __m256i;
        #[inline(always)]
        unsafe fn places(p: *const u8) -> __m256i {
            // SAFETY: the caller has a place for each lane there.
            unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
        }
        #[inline(always)]
        unsafe fn alive(self, places: __m256i) -> Self {
            // SAFETY: the level is available.
            unsafe {
                let dead = _mm256_srai_epi32::<31>(_mm256_slli_epi32::<24>(places));
                V8x32(_mm256_andnot_ps(_mm256_castsi256_ps(dead), self.0))
            }
        }
        #[inline(always)]
        unsafe fn look_up<const P: usize>(table: *const f32, places: __m256i) -> Self {
            // SAFETY: the caller has `P` numbers there. Only the lowest bits of an index count.
            unsafe {
                if P == 4 {
                    return V8x32(_mm256_permutevar_ps(_mm256_broadcast_ps(&*table.cast()), places));
                }
                let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), places);
                let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.add(8)), places);
                let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(places));
                V8x32(_mm256_blendv_ps(low, high, is_high))
            }
        }
    }
}

/// One call of a register kernel: sums over the windows of an image for a few taps and a vector of filters or two.
struct Sums {
    /// The image's table.
    table: *const f32,
    /// Where in it the windows and the taps begin.
    windows: *const usize,
    count: usize,
    taps: *const usize,
    /// Gradients, f32 or bf16, and places of the first window, `row` elements from those of the next.
    dy: *const u8,
    place: *const u8,
    row: usize,
    /// How far in the table two windows lie apart that an entry has the elements of.
    pair: usize,
    /// Added to: a row of filters for each tap, and one for the bias.
    sum: *mut f32,
    sum_row: usize,
    bias: *mut f32,
}

/// `K` taps of `N` vectors of filters, by tables of `P` entries. `NARROW`: gradients are bf16.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once read worse.
#[inline(always)]
unsafe fn sums<V: Lookup, const P: usize, const NARROW: bool, const K: usize, const N: usize>(s: &Sums) {
    // SAFETY: the caller's tables and arrays cover the windows, `K` taps and `N` vectors; the level is available.
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
            let (mut places, mut g) = ([V::places(s.place.add(at)); N], [zero; N]);
            for j in 0..N {
                let at = at + j * V::LANES;
                places[j] = V::places(s.place.add(at));
                let dy = if NARROW {
                    V::load_wide(s.dy.cast::<u16>().add(at))
                } else {
                    V::load(s.dy.cast::<f32>().add(at))
                };
                g[j] = dy.alive(places[j]);
                bias[j] = bias[j].add(g[j]);
            }
            for k in 0..K {
                for j in 0..N {
                    acc[k][j] = V::look_up::<P>(table.add(taps[k]), places[j]).mul_add(g[j], acc[k][j]);
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

/// Bytes of a table's entry for each lane and its gradients: of the window whose gradients and places begin at `at` and,
/// where `both`, of the next one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn pair_of_windows(
    s: &Sums,
    at: usize,
    both: bool,
) -> (std::arch::x86_64::__m512i, std::arch::x86_64::__m512i) {
    use std::arch::x86_64::*;
    // SAFETY: as for `pair_sums`.
    unsafe {
        // Elements and gradients of a window; of a dead place, zero.
        let window = |at: usize| {
            let places = _mm512_cvtepu8_epi32(_mm_loadu_si128(s.place.add(at).cast()));
            let alive = _mm512_cmplt_epu32_mask(places, _mm512_set1_epi32(DEAD as i32));
            let dy = _mm256_loadu_si256(s.dy.cast::<u16>().add(at).cast());
            (_mm512_and_si512(places, _mm512_set1_epi32(3)), _mm512_maskz_cvtepu16_epi32(alive, dy))
        };
        let (mut p, mut d) = window(at);
        if both {
            let (q, e) = window(at + s.row);
            p = _mm512_or_si512(p, _mm512_slli_epi32::<16>(q));
            d = _mm512_or_si512(d, _mm512_slli_epi32::<16>(e));
        }
        // Bytes of the entry: two for each element. Of a window without a neighbour the upper ones are zeros, not
        // an element that may be infinite.
        let bytes = _mm512_or_si512(_mm512_slli_epi32::<1>(p), _mm512_slli_epi32::<9>(p));
        let from = if both { 0x0908_0100 } else { 0x8080_0100u32 as i32 };
        (_mm512_add_epi8(bytes, _mm512_set1_epi32(from)), d)
    }
}

/// As [`sums`], two neighbouring windows at a time: pairs of bf16, of the windows' elements by pairs of gradients.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop)] // As above.
#[inline(always)]
unsafe fn pair_sums<const K: usize, const N: usize>(s: &Sums) {
    use std::arch::x86_64::*;
    // SAFETY: as for `sums`, of gradients of bf16 and by tables of `Pairs`.
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
            let (mut places, mut g) = ([zero; N], [zero; N]);
            for j in 0..N {
                let d;
                (places[j], d) = pair_of_windows(s, at + j * 16, both);
                g[j] = d;
                bias[j] = pairs(bias[j], d, ones);
            }
            for k in 0..K {
                let entry = _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(taps[k]).cast()));
                for j in 0..N {
                    acc[k][j] = pairs(acc[k][j], _mm512_shuffle_epi8(entry, places[j]), g[j]);
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

/// A register kernel for a number of taps up to the level's.
type SumKernel = unsafe fn(usize, &Sums);

macro_rules! kernels {
    ($name:ident, $v:ty, $n:literal, [$($k:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const P: usize, const NARROW: bool>(taps: usize, s: &Sums) {
            match taps {
                // SAFETY: the caller's promises are those of `sums`.
                $($k => unsafe { sums::<$v, P, NARROW, $k, $n>(s) },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, 1, [1 2 3 4 5]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
kernels!(avx2, V8x32, 1, [1 2 3 4 5 6 7 8 9 10], "avx2,fma");
kernels!(avx512x1, V16x32, 1, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
kernels!(avx512x2, V16x32, 2, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

#[cfg(target_arch = "x86_64")]
macro_rules! pair_kernels {
    ($name:ident, $n:literal, [$($k:literal)*]) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
        unsafe fn $name(taps: usize, s: &Sums) {
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

/// The kernels of a level for one vector and for more, its lanes and the most taps that they take.
#[derive(Clone, Copy)]
struct Shape {
    one: SumKernel,
    /// And how many vectors that is.
    more: (SumKernel, usize),
    lanes: usize,
    taps: usize,
}

fn shape<const P: usize, const NARROW: bool>(level: Level) -> Shape {
    let single = |one: SumKernel, lanes, taps| Shape { one, more: (one, 1), lanes, taps };
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Shape { more: (avx512x2::<P, NARROW>, 2), ..single(avx512x1::<P, NARROW>, 16, 12) },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => single(avx2::<P, NARROW>, 8, 10),
        _ => single(portable::<P, NARROW>, 4, 5),
    }
}

/// As [`shape`], by tables of so many entries and gradients of a type.
fn shape_of(entry: usize, dtype: DType, level: Level) -> Shape {
    match (entry, dtype) {
        (4, DType::F32) => shape::<4, false>(level),
        (4, _) => shape::<4, true>(level),
        (_, DType::F32) => shape::<16, false>(level),
        _ => shape::<16, true>(level),
    }
}

/// The product of few terms that makes the gradients.
fn product_of(left: &TensorType, right: &TensorType, level: Level) -> Option<FewRows> {
    let types = [left.dtype; 2];
    let [left, right] = [roles(left, &[], &[0], &[1]), roles(right, &[], &[1], &[0])];
    FewRows::new(&left, &right, types, level)
}

/// The kernel of a step; `None` where the input has no padded form.
pub fn bind(g: &UnpooledGradient, step: &Step, target: Target) -> Option<Box<dyn Kernel>> {
    let level = target.level.vectors();
    let general = Box::new(UnpooledKernel::new(g, step, level)?.with_pairs(target.level));
    Some(match fused_of(target.level) {
        Some(fused) => TileGradient::bind(fused, g, step, (general, level)),
        None => general,
    })
}

/// `n` entries of four elements at `dst`: of an image at `a` those that lie as far on as `b` (four `usize`) says.
struct Fours;
impl Tile for Fours {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says.
        unsafe {
            let places = *b.cast::<[usize; 4]>();
            let part = |k: usize| lanes::<f32>(a.cast::<f32>().add(places[k]).cast(), n);
            let entries = lanes_mut::<[f32; 4]>(dst, n);
            for ((((e, a), b), c), d) in
                entries.iter_mut().zip(part(0)).zip(part(1)).zip(part(2)).zip(part(3))
            {
                *e = [*a, *b, *c, *d];
            }
        }
    }
}

/// `n` entries of eight bf16 at `dst`: of an image of such values at `a` those that lie as far on as `b` (four `usize`) says, and
/// the same for the window that lies as many elements further on as the fifth says, if the image goes on so far.
struct Pairs;
impl Tile for Pairs {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says.
        unsafe {
            let [places @ .., step] = *b.cast::<[usize; 5]>();
            let part = |from: usize, n: usize| lanes::<u32>(a.cast::<u32>().add(from).cast(), n);
            let two = |x: &u32, y: &u32| x >> 16 | y & 0xffff_0000;
            let (entries, both) = (lanes_mut::<[u32; 4]>(dst, n), n.saturating_sub(step));
            let [p, q, r, s] = places.map(|place| part(place, n));
            for (i, e) in entries[both..].iter_mut().enumerate() {
                let i = both + i;
                *e = [two(&p[i], &q[i]), two(&r[i], &s[i]), 0, 0];
            }
            let next = places.map(|place| part(place + step.min(n), both));
            let first = p.iter().zip(q).zip(r.iter().zip(s));
            let second = next[0].iter().zip(next[1]).zip(next[2].iter().zip(next[3]));
            for (e, (((p, q), (r, s)), ((t, u), (v, w)))) in entries[..both].iter_mut().zip(first.zip(second))
            {
                *e = [two(p, q), two(r, s), two(t, u), two(v, w)];
            }
        }
    }
}

/// See the module text.
struct UnpooledKernel {
    input: Padded,
    dtype: DType,
    level: Level,
    batch: usize,
    /// Elements of the input, and of one of its images with padding.
    elements: usize,
    image: usize,
    /// Where a window's elements lie in an image, relative to its first; as many as a table entry has.
    places: Vec<usize>,
    /// Entries' size in words of 32 bits, and what fills those of four.
    entry: usize,
    fill: TileFn,
    /// How far in a table two windows lie apart that are taken at a time.
    pair: usize,
    /// Where each window and each tap begins in an image's table.
    windows: Vec<usize>,
    taps: Vec<usize>,
    /// Taps that are summed together.
    block: usize,
    features: usize,
    /// Rounded up to whole vectors.
    padded: usize,
    shape: Shape,
    /// Types of the results: the kernel's gradient and, perhaps, the bias's.
    to: Vec<DType>,
    images_per_part: usize,
    /// What makes the gradients, where that is done here: a product for a strip of windows, or what sums over patches.
    product: Option<FewRows>,
    patches: Option<Patches>,
    /// Windows of an image that are gone through together.
    strip: usize,
}

/// Gradients and places of one part's images: where they lie, and how gradients are made.
struct Given {
    x: *const f32,
    place: *const u8,
    /// The gradients, or the product's right operand.
    dy: *const u8,
    /// The product's left operand.
    left: *const f32,
}

/// Images of a part, and windows of an image that are gone through together.
fn portions(
    product: &Option<FewRows>,
    patches: &Option<Patches>,
    batch: usize,
    [windows, features]: [usize; 2],
) -> (usize, usize) {
    // Whole calls of what makes them: each reads the right operand anew.
    let together = match (product, patches) {
        (Some(product), None) => MADE_IMAGES / product.rows() * product.rows(),
        (Some(_), Some(_)) => MADE_IMAGES,
        _ => 1,
    };
    let images_per_part = batch.div_ceil(MOST_PARTS).max(1).next_multiple_of(together);
    let strip = match (product, patches) {
        (Some(_), None) => MADE / images_per_part.min(batch).max(1) / features,
        (Some(_), Some(patches)) => MADE_NUMBERS / patches.numbers(),
        _ => windows,
    };
    (images_per_part, strip.clamp(1, windows.max(1)))
}

impl UnpooledKernel {
    fn new(g: &UnpooledGradient, step: &Step, level: Level) -> Option<UnpooledKernel> {
        let (x, place, dk) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        let dtype = step.input_types[2].dtype;
        let product = match &step.input_types[2..] {
            [left, right] if g.product => Some(product_of(left, right, level)?),
            _ => None,
        };
        let c = &g.conv;
        let input = Padded::new(x, &c.padding, &c.lhs_dilation)?;
        let (channels, features) = (x.shape[3], place.shape[3]);
        // A full-size gradient's pixel lies so many elements further on in the image.
        let pixel = [0, 1].map(|i| input.strides[i] * c.rhs_dilation[i]);
        let size = g.unpool.window[0] * g.unpool.window[1];
        let entry = if size <= 4 { 4 } else { 16 };
        let shape = shape_of(entry, dtype, level);
        let in_table = |all: Vec<usize>| all.into_iter().map(|at| at * entry).collect::<Vec<usize>>();
        let taps = in_table(offsets(
            [0, 1].map(|i| (dk.shape[i], input.strides[i] * c.strides[i])).into_iter().chain([(channels, 1)]),
        ));
        let blocks = taps.len().div_ceil(shape.taps);
        let batch = x.shape[0];
        let windows = place.shape[1] * place.shape[2];
        let kernel = ([dk.shape[0], dk.shape[1]], channels);
        let patches = match features.is_multiple_of(LANES) && dtype == DType::F32 {
            true => Patches::new(g, &input, kernel, [place.shape[1], place.shape[2]], level),
            false => None,
        };
        let (images_per_part, strip) = portions(&product, &patches, batch, [windows, features]);
        Some(UnpooledKernel {
            dtype,
            level,
            batch,
            elements: x.elements(),
            image: input.image,
            places: offsets([0, 1].map(|i| (g.unpool.window[i], pixel[i])).into_iter()),
            entry,
            fill: level.tile::<Fours>(),
            pair: pixel[1] * g.unpool.strides[1] * entry,
            windows: in_table(offsets(
                [0, 1].map(|i| (place.shape[i + 1], pixel[i] * g.unpool.strides[i])).into_iter(),
            )),
            block: taps.len().div_ceil(blocks),
            taps,
            features,
            padded: features.next_multiple_of(shape.lanes),
            shape,
            to: step.output_types.iter().map(|t| t.dtype).collect(),
            images_per_part,
            product,
            patches,
            strip,
            input,
        })
    }

    /// With products of bf16 pairs, where a level has those that are fast.
    fn with_pairs(mut self, level: Level) -> UnpooledKernel {
        self.product = self.product.map(|product| product.with_pairs(level));
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512Bf16 && self.dtype == DType::BF16 && self.entry == 4 {
            self.shape = Shape { one: pairs_x1, more: (pairs_x2, 2), ..self.shape };
            self.fill = level.vectors().tile::<Pairs>();
        }
        self
    }

    /// Bytes of the product's left operand as vectors.
    fn spread_bytes(&self) -> usize {
        match (&self.product, &self.patches) {
            (Some(product), Some(_)) => {
                let (terms, between, _) = product.terms();
                Patches::spread_len(terms * between) * 4
            }
            _ => 0,
        }
    }

    fn parts(&self) -> usize {
        self.batch.div_ceil(self.images_per_part)
    }

    /// Sums of one part: a row for each tap, and one for the bias.
    fn sums(&self) -> usize {
        (self.taps.len() + 1) * self.padded
    }

    /// Bytes of the input as f32, where it is not.
    fn wide_bytes(&self) -> usize {
        if self.dtype == DType::F32 { 0 } else { (self.elements * 4).next_multiple_of(64) }
    }

    /// Whether gradients and places are used where they lie.
    fn direct(&self) -> bool {
        self.padded == self.features
    }

    /// Lays an image out for look-ups: an entry for each element from which a whole window lies in the image.
    unsafe fn fill_table(&self, x: *const f32, table: *mut f32) {
        let n = self.image - self.places.last().copied().unwrap_or(0);
        // SAFETY: the image has `image` elements and the table as many entries.
        unsafe {
            if let Some(patches) = &self.patches {
                return patches.fill(x, table);
            }
            if self.entry == 4 {
                let mut places = [0; 5];
                places.iter_mut().zip(&self.places).for_each(|(to, place)| *to = *place);
                places[4] = self.pair / self.entry;
                let (x, places) = (x.cast(), (&raw const places).cast());
                return (self.fill)(table.cast(), x, places, x, n);
            }
            for k in 0..self.places.len() {
                for (i, x) in lanes::<f32>(x.add(self.places[k]).cast(), n).iter().enumerate() {
                    *table.add(i * self.entry + k) = *x;
                }
            }
        }
    }

    /// Gradients and places of some windows of one image, in whole vectors.
    unsafe fn pack(&self, (dy, place): (*const u8, *const u8), count: usize, to: *mut u8, places: *mut u8) {
        let (f, size) = (self.features, self.dtype.size());
        // SAFETY: an image has that many windows; the copies have room for them in whole vectors.
        unsafe {
            for w in 0..count {
                let row = to.add(w * self.padded * size);
                std::ptr::copy_nonoverlapping(dy.add(w * f * size), row, f * size);
                std::ptr::copy_nonoverlapping(place.add(w * f), places.add(w * self.padded), f);
                places.add(w * self.padded + f).write_bytes(DEAD, self.padded - f);
            }
        }
    }

    /// Adds the sums of some windows of one image, whose gradients and places these are.
    unsafe fn windows(
        &self,
        table: *const f32,
        (dy, place): (*const u8, *const u8),
        windows: &Range<usize>,
        sum: *mut f32,
    ) {
        if let Some(patches) = &self.patches {
            let dy = dy.cast::<f32>().wrapping_sub(windows.start * self.features);
            let place = place.wrapping_sub(windows.start * self.features);
            let (factors, factor_term, terms, term) = (std::ptr::null(), 0, 0, 0);
            let gradients = Gradients { dy, term, factors, factor_term, terms };
            // SAFETY: by the caller's promise.
            unsafe { patches.sums(table, (place, 1), windows.clone(), gradients, (sum, self.features)) };
            return;
        }
        let bias = sum.wrapping_add(self.taps.len() * self.padded);
        for tap in (0..self.taps.len()).step_by(self.block) {
            let (vectors, (more, most)) = (self.padded / self.shape.lanes, self.shape.more);
            for vector in (0..vectors).step_by(most) {
                let j = vector * self.shape.lanes;
                let run = if vector + most <= vectors { more } else { self.shape.one };
                let s = Sums {
                    table,
                    windows: self.windows[windows.start..].as_ptr(),
                    count: windows.len(),
                    taps: self.taps[tap..].as_ptr(),
                    dy: dy.wrapping_add(j * self.dtype.size()),
                    place: place.wrapping_add(j),
                    row: self.padded,
                    pair: self.pair,
                    sum: sum.wrapping_add(tap * self.padded + j),
                    sum_row: self.padded,
                    bias: if tap == 0 { bias.wrapping_add(j) } else { std::ptr::null_mut() },
                };
                let taps = self.block.min(self.taps.len() - tap);
                // SAFETY: tables stay inside the image's; rows have whole vectors.
                unsafe { run(taps, &s) };
            }
        }
    }

    /// Elements of one image's table.
    fn table(&self) -> usize {
        self.patches.as_ref().map_or((self.image * self.entry).next_multiple_of(16), Patches::table)
    }

    /// Bytes of the scratch of one part: tables (one where images are gone through one after the other), gradients that
    /// are made, gradients and places in whole vectors.
    fn part_bytes(&self) -> [usize; 3] {
        let (tables, made) = match self.product {
            Some(_) => {
                let images = self.images_per_part.min(self.batch);
                let made = if self.patches.is_some() { 0 } else { images * self.strip * self.features };
                (images, made * self.dtype.size())
            }
            None => (1, 0),
        };
        let packed = if self.direct() { 0 } else { self.strip * self.padded * 5 + 64 };
        [tables * self.table() * 4, made, packed].map(|bytes| bytes.next_multiple_of(64))
    }

    /// Sums over the images of one part.
    unsafe fn part(&self, part: usize, given: &Given, sum: *mut f32) {
        let (count, f, size) = (self.windows.len(), self.features, self.dtype.size());
        let images = part * self.images_per_part..((part + 1) * self.images_per_part).min(self.batch);
        let [tables, made, packed] = self.part_bytes();
        with_scratch(tables + made + packed, |memory| {
            let (made, rows) = (memory.wrapping_add(tables), memory.wrapping_add(tables + made));
            let places = rows.wrapping_add(self.strip * self.padded * 4);
            // SAFETY: operands have the shapes of `new`; scratch has room for the tables, a strip's gradients and an
            // image's rows; the sum is this part's.
            unsafe {
                sum.write_bytes(0, self.sums());
                for start in (0..count).step_by(self.strip) {
                    let strip = start..(start + self.strip).min(count);
                    if let (Some(product), Some(patches)) = (&self.product, &self.patches) {
                        let tables = memory.cast::<f32>();
                        for (nth, image) in images.clone().enumerate().filter(|_| start == 0) {
                            patches.fill(given.x.add(image * self.image), tables.add(nth * self.table()));
                        }
                        let (terms, between, term) = product.terms();
                        let gradients = Gradients {
                            dy: given.dy.cast(),
                            term,
                            factors: given.left.add(images.start * LANES),
                            factor_term: between * LANES,
                            terms,
                        };
                        let place = (given.place.add(images.start * count * f), images.len());
                        patches.sums(tables, place, strip, gradients, (sum, f));
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
                        let mut lying = (dy, given.place.add(at));
                        if !self.direct() {
                            self.pack(lying, strip.len(), rows, places);
                            lying = (rows.cast_const(), places.cast_const());
                        }
                        let nth = if self.product.is_some() { image - images.start } else { 0 };
                        let table = memory.cast::<f32>().add(nth * self.table());
                        if start == 0 {
                            self.fill_table(given.x.add(image * self.image), table);
                        }
                        self.windows(table, lying, &strip, sum);
                    }
                }
            }
        });
    }

    /// Writes rows of sums as a result of a type.
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

impl Kernel for UnpooledKernel {
    fn scratch(&self) -> usize {
        let left = self.product.as_ref().map_or(0, |p| p.scratch() + self.spread_bytes());
        self.wide_bytes() + self.input.bytes() + (self.parts() + 1) * self.sums() * 4 + 64 + left
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (wide, padded) = (self.wide_bytes(), self.input.bytes());
        // SAFETY: scratch is laid out as `scratch()` counts it; operands and results have the shapes of `new`.
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
            if let (Some(product), Some(_)) = (&self.product, &self.patches) {
                let (terms, between, _) = product.terms();
                factors = left.add(product.scratch() / 4);
                Patches::spread(left, terms * between, factors);
            }
            let (xp, place, dy) = (Ptr::of(x.cast()), Ptr::of(io.inputs[1]), Ptr::of(dy));
            let (sp, left) = (Ptr(sums), Ptr(factors.cast()));
            let body = |part: usize| {
                let given = Given { x: xp.elem(0), place: place.at(0), dy: dy.at(0), left: left.elem(0) };
                self.part(part, &given, sp.elem::<f32>(part * self.sums()));
            };
            let products = (self.batch * self.windows.len() * self.padded) as f64 * self.taps.len() as f64;
            cx.team.run_with(self.parts(), products / 16.0, cx.flush, &body);
            sum_parts(cx, sums.cast(), self.parts(), self.sums(), whole.cast(), Finish::Copy);
            self.put(whole, self.taps.len(), io.outputs[0], self.to[0]);
            if let Some(&to) = self.to.get(1) {
                self.put(whole.add(self.taps.len() * self.padded), 1, io.outputs[1], to);
            }
        }
        Ok(())
    }
}
