//! Packs AMX operands: 32-bit words of two bf16 or four int8 along K, in chunks of sixteen words.
//!
//! A panel is a sequence of chunks of sixteen words along K. In a panel of A, a tile row is the words of one lane (row
//! of A): one cache line per lane. In a panel of B, a tile row is one word of all lanes (columns of B): VNNI layout.
//! f32 is split into two bf16; in each chunk the plane of high parts is followed by the plane of low parts.

use crate::simd::amx::tile::LANES;
use crate::simd::level::Level;
use crate::simd::math;
use crate::simd::pack::{PackFn, PanelArgs};
use systole_ir::DType;

/// Returns the packing functions of A and B for a stored type; `None` if tile registers have no dot product of it.
pub fn packs<T: 'static>(stored: DType, level: Level) -> Option<[PackFn<T>; 2]> {
    Some(match stored {
        DType::BF16 => both::<T, Bf16Words>(level),
        DType::F32 => both::<T, SplitF32Words>(level),
        DType::I8 | DType::U8 => both::<T, Int8Words>(level),
        _ => return None,
    })
}

#[cfg(target_arch = "x86_64")]
fn both<T: 'static, S: WordSource + avx512::WordVectors>(level: Level) -> [PackFn<T>; 2] {
    match level {
        Level::Portable | Level::Avx2 => [plain::<T, S, true>, plain::<T, S, false>],
        Level::Avx512 | Level::Avx512Bf16 | Level::Amx => {
            [avx512::panels::<T, S, true>, avx512::panels::<T, S, false>]
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn both<T: 'static, S: WordSource>(_: Level) -> [PackFn<T>; 2] {
    [plain::<T, S, true>, plain::<T, S, false>]
}

/// A stored element type, and how it is split into the words of a panel.
trait WordSource: 'static {
    const SIZE: usize;
    /// Elements along K per word.
    const GROUP: usize;
    /// Words per group: two (high and low parts) for split numbers, else one.
    const PLANES: usize;
    /// Returns an element's bits in each plane's word, right-aligned.
    unsafe fn bits(p: *const u8) -> [u32; 2];
}

struct Int8Words;
impl WordSource for Int8Words {
    const SIZE: usize = 1;
    const GROUP: usize = 4;
    const PLANES: usize = 1;
    #[inline(always)]
    unsafe fn bits(p: *const u8) -> [u32; 2] {
        // SAFETY: the caller has an element there.
        [u32::from(unsafe { *p }), 0]
    }
}

struct Bf16Words;
impl WordSource for Bf16Words {
    const SIZE: usize = 2;
    const GROUP: usize = 2;
    const PLANES: usize = 1;
    #[inline(always)]
    unsafe fn bits(p: *const u8) -> [u32; 2] {
        // SAFETY: the caller has an element there.
        [u32::from(unsafe { p.cast::<u16>().read_unaligned() }), 0]
    }
}

/// f32 as the sum of a high and a low bf16. An infinite or NaN high part has a low part of zero.
struct SplitF32Words;
impl WordSource for SplitF32Words {
    const SIZE: usize = 4;
    const GROUP: usize = 2;
    const PLANES: usize = 2;
    #[inline(always)]
    unsafe fn bits(p: *const u8) -> [u32; 2] {
        // SAFETY: the caller has an element there.
        let x = unsafe { p.cast::<f32>().read_unaligned() };
        let high = math::to_bf16(x);
        let rest = x - math::from_bf16(high);
        let low = if math::from_bf16(high).is_finite() { math::to_bf16(rest) } else { 0 };
        [high.into(), low.into()]
    }
}

/// Returns the index of a word in the panel, from chunk, plane, lane, and word within the chunk.
#[inline(always)]
fn place<S: WordSource, const LEFT: bool>(
    fill: usize,
    chunk: usize,
    plane: usize,
    lane: usize,
    word: usize,
) -> usize {
    let before = (chunk * S::PLANES + plane) * LANES * fill;
    before + if LEFT { lane * LANES + word } else { word * fill + lane }
}

/// Returns the number of chunks of a panel.
fn chunks<T, S: WordSource>(p: &PanelArgs<T>) -> usize {
    p.k / (LANES * S::PLANES)
}

/// Packs word by word.
unsafe fn plain<T, S: WordSource, const LEFT: bool>(panels: &[PanelArgs<T>]) {
    for p in panels {
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe { plain_panel::<T, S, LEFT>(p) };
    }
}

unsafe fn plain_panel<T, S: WordSource, const LEFT: bool>(p: &PanelArgs<T>) {
    for chunk in 0..chunks::<T, S>(p) {
        for lane in 0..p.fill {
            for word in 0..LANES {
                let first = (chunk * LANES + word) * S::GROUP;
                let present = if lane < p.lanes { p.products.saturating_sub(first).min(S::GROUP) } else { 0 };
                let mut words = [0; 2];
                for i in 0..present {
                    // SAFETY: the contract of `PackFn` guarantees that the source has this product.
                    let bits = unsafe { S::bits(p.src.add(lane * p.lane + (first + i) * p.step)) };
                    let shift = i * 32 / S::GROUP;
                    words = std::array::from_fn(|plane| words[plane] | bits[plane] << shift);
                }
                for (plane, &bits) in words.iter().enumerate().take(S::PLANES) {
                    let at = place::<S, LEFT>(p.fill, chunk, plane, lane, word);
                    // SAFETY: as above, for the destination.
                    unsafe { *p.dst.cast::<u32>().add(at) = bits };
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use crate::simd::amx::pack::{
        Bf16Words, Int8Words, LANES, SplitF32Words, WordSource, chunks, place, plain_panel,
    };
    use crate::simd::pack::PanelArgs;
    use crate::simd::pack::avx512::transposed_words;
    use std::arch::x86_64::*;

    /// Prefetch distance, in source rows.
    const AHEAD: usize = 16;

    /// Loads sixteen words as one vector per plane. Callers have AVX-512.
    pub trait WordVectors: WordSource {
        /// Loads the words of one lane; only the first `count` elements exist.
        unsafe fn along(p: *const u8, count: usize) -> [__m512i; 2];
        /// Loads one word of the sixteen lanes in the mask: element `i` of the word is at `p + i · step`, for the first
        /// `count` of them.
        unsafe fn across(p: *const u8, step: usize, count: usize, lanes: __mmask16) -> [__m512i; 2];
        /// Like `across`, for 32 lanes as two vectors.
        #[inline(always)]
        unsafe fn across_two(p: *const u8, step: usize, count: usize) -> [[__m512i; 2]; 2] {
            // SAFETY: as above.
            unsafe {
                let second = p.wrapping_add(LANES * Self::SIZE);
                [Self::across(p, step, count, !0), Self::across(second, step, count, !0)]
            }
        }
    }

    /// Mask of the lowest `n` bits, at most all.
    #[inline(always)]
    fn mask(n: usize) -> u64 {
        if n >= 64 { !0 } else { (1 << n) - 1 }
    }

    impl WordVectors for Int8Words {
        #[inline(always)]
        unsafe fn along(p: *const u8, count: usize) -> [__m512i; 2] {
            // SAFETY: the caller's elements, by the mask.
            unsafe { [_mm512_maskz_loadu_epi8(mask(count), p.cast()), _mm512_setzero_si512()] }
        }
        #[inline(always)]
        unsafe fn across(p: *const u8, step: usize, count: usize, lanes: __mmask16) -> [__m512i; 2] {
            // SAFETY: as above.
            unsafe {
                let mut y = _mm512_setzero_si512();
                for i in 0..count {
                    let x = _mm_maskz_loadu_epi8(lanes, p.wrapping_add(i * step).cast());
                    let shift = _mm512_set1_epi32(8 * i as i32);
                    y = _mm512_or_si512(y, _mm512_sllv_epi32(_mm512_cvtepu8_epi32(x), shift));
                }
                [y, _mm512_setzero_si512()]
            }
        }
    }

    impl WordVectors for Bf16Words {
        #[inline(always)]
        unsafe fn along(p: *const u8, count: usize) -> [__m512i; 2] {
            // SAFETY: the caller's elements, by the mask.
            unsafe { [_mm512_maskz_loadu_epi16(mask(count) as u32, p.cast()), _mm512_setzero_si512()] }
        }
        #[inline(always)]
        unsafe fn across(p: *const u8, step: usize, count: usize, lanes: __mmask16) -> [__m512i; 2] {
            let [x, y] = both(lanes, count);
            // SAFETY: as above.
            unsafe {
                let x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(x, p.cast()));
                let y = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(y, p.wrapping_add(step).cast()));
                [_mm512_or_si512(x, _mm512_slli_epi32::<16>(y)), _mm512_setzero_si512()]
            }
        }
        #[inline(always)]
        unsafe fn across_two(p: *const u8, step: usize, count: usize) -> [[__m512i; 2]; 2] {
            let [x, y] = [0, 1].map(|i| if i < count { !0 } else { 0 });
            // SAFETY: as above.
            unsafe {
                let x = _mm512_maskz_loadu_epi16(x, p.cast());
                let y = _mm512_maskz_loadu_epi16(y, p.wrapping_add(step).cast());
                INTERLEAVED.each_ref().map(|order| {
                    let order = _mm512_loadu_si512(order.as_ptr().cast());
                    [_mm512_permutex2var_epi16(x, order, y), _mm512_setzero_si512()]
                })
            }
        }
    }

    impl WordVectors for SplitF32Words {
        #[inline(always)]
        unsafe fn along(p: *const u8, count: usize) -> [__m512i; 2] {
            // SAFETY: the caller's elements, by the masks.
            unsafe {
                let x = _mm512_maskz_loadu_ps(mask(count) as u16, p.cast());
                let y =
                    _mm512_maskz_loadu_ps(mask(count.saturating_sub(16)) as u16, p.wrapping_add(64).cast());
                let ([x, x_low], [y, y_low]) = (split(x), split(y));
                let upper = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
                [_mm512_permutex2var_epi16(x, upper, y), _mm512_permutex2var_epi16(x_low, upper, y_low)]
            }
        }
        #[inline(always)]
        unsafe fn across(p: *const u8, step: usize, count: usize, lanes: __mmask16) -> [__m512i; 2] {
            let [x, y] = both(lanes, count);
            // SAFETY: as above.
            unsafe {
                let [x, x_low] = split(_mm512_maskz_loadu_ps(x, p.cast()));
                let [y, y_low] = split(_mm512_maskz_loadu_ps(y, p.wrapping_add(step).cast()));
                let low = _mm512_or_si512(_mm512_srli_epi32::<16>(x_low), y_low);
                [_mm512_or_si512(_mm512_srli_epi32::<16>(x), y), low]
            }
        }
    }

    /// The masks of the two elements of a word, of which `count` exist.
    #[inline(always)]
    fn both(lanes: __mmask16, count: usize) -> [__mmask16; 2] {
        [if count > 0 { lanes } else { 0 }, if count > 1 { lanes } else { 0 }]
    }

    /// Permutation that takes the upper 16 bits of the 32 lanes of two vectors.
    static UPPER_HALVES: [u16; 32] = {
        let mut halves = [0; 32];
        let mut i = 0;
        while i < 32 {
            halves[i] = 2 * i as u16 + 1;
            i += 1;
        }
        halves
    };

    /// Permutations that interleave the 16-bit lanes of two vectors: first and second half of the result.
    static INTERLEAVED: [[u16; 32]; 2] = {
        let mut order = [[0; 32]; 2];
        let mut i = 0;
        while i < 64 {
            order[i / 32][i % 32] = (i / 2 + i % 2 * 32) as u16;
            i += 1;
        }
        order
    };

    /// High and low part of each number, as f32 whose lower 16 bits are zero.
    #[inline(always)]
    unsafe fn split(x: __m512) -> [__m512i; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let high = rounded(x);
            let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(high));
            let exponent = _mm512_set1_epi32(0x7f80_0000);
            let finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(high, exponent), exponent);
            [high, _mm512_maskz_mov_epi32(finite, rounded(rest))]
        }
    }

    /// Rounds to the nearest bf16, as f32.
    #[inline(always)]
    unsafe fn rounded(x: __m512) -> __m512i {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let y = _mm512_mask_mov_epi32(sum, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), quiet);
            _mm512_and_si512(y, _mm512_set1_epi32(0xffff_0000u32 as i32))
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub unsafe fn panels<T, S: WordVectors, const LEFT: bool>(panels: &[PanelArgs<T>]) {
        let Some(p) = panels.first() else { return };
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe {
            if p.step == S::SIZE {
                panels.iter().for_each(|p| (0..chunks::<T, S>(p)).for_each(|i| along::<T, S, LEFT>(p, i)));
            } else if p.lane == S::SIZE {
                // Panels innermost: each continues the source row where the previous one ended.
                (0..chunks::<T, S>(p)).for_each(|i| panels.iter().for_each(|p| across::<T, S, LEFT>(p, i)));
            } else {
                panels.iter().for_each(|p| plain_panel::<T, S, LEFT>(p));
            }
        }
    }

    /// Source address of a lane of a chunk, and the elements along K from there.
    #[inline(always)]
    fn source<T, S: WordVectors>(p: &PanelArgs<T>, chunk: usize, lane: usize) -> (*const u8, usize) {
        let first = chunk * LANES * S::GROUP;
        (p.src.wrapping_add(lane * p.lane + first * p.step), p.products.saturating_sub(first))
    }

    /// Packs a chunk whose elements along K are contiguous in the source.
    #[inline(always)]
    unsafe fn along<T, S: WordVectors, const LEFT: bool>(p: &PanelArgs<T>, chunk: usize) {
        for lane in (0..p.fill).step_by(LANES) {
            let lanes = p.lanes.saturating_sub(lane);
            let (from, products) = source::<T, S>(p, chunk, lane);
            let words = |i: usize| {
                let from = from.wrapping_add(i * p.lane);
                ahead(from.wrapping_add(4 * LANES * S::GROUP * S::SIZE));
                // SAFETY: guaranteed by the contract of `PackFn`: counts keep to the lanes and products of the source.
                unsafe { S::along(from, if i < lanes { products } else { 0 }) }
            };
            // SAFETY: as above.
            unsafe { square::<T, S, LEFT, true, 1>(p, chunk, lane, |i| [words(i)]) };
        }
    }

    /// Packs a chunk whose lanes are contiguous in the source.
    #[inline(always)]
    unsafe fn across<T, S: WordVectors, const LEFT: bool>(p: &PanelArgs<T>, chunk: usize) {
        let mut lane = 0;
        while lane < p.fill {
            let lanes = p.lanes.saturating_sub(lane);
            let (from, products) = source::<T, S>(p, chunk, lane);
            let place = |i: usize| {
                let from = from.wrapping_add(i * S::GROUP * p.step);
                for j in 0..S::GROUP {
                    ahead(from.wrapping_add((AHEAD + j) * p.step));
                }
                (from, products.saturating_sub(i * S::GROUP).min(S::GROUP))
            };
            // SAFETY: guaranteed by the contract of `PackFn`: masks and counts keep to the lanes and products of the
            // source.
            unsafe {
                if lanes >= 2 * LANES {
                    let words = |i: usize| {
                        let (from, count) = place(i);
                        S::across_two(from, p.step, count)
                    };
                    square::<T, S, LEFT, false, 2>(p, chunk, lane, words);
                    lane += 2 * LANES;
                } else {
                    let words = |i: usize| {
                        let (from, count) = place(i);
                        [S::across(from, p.step, count, mask(lanes) as u16)]
                    };
                    square::<T, S, LEFT, false, 1>(p, chunk, lane, words);
                    lane += LANES;
                }
            }
        }
    }

    /// Writes sixteen words of each of `SQUARES` times sixteen lanes, transposing if source and panel order differ.
    /// `words` returns the words of one lane (`BY_LANE`), or one word of sixteen lanes.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
    unsafe fn square<T, S: WordVectors, const LEFT: bool, const BY_LANE: bool, const SQUARES: usize>(
        p: &PanelArgs<T>,
        chunk: usize,
        lane: usize,
        words: impl Fn(usize) -> [[__m512i; 2]; SQUARES],
    ) {
        // SAFETY: guaranteed by the contract of `PackFn`.
        unsafe {
            let mut squares = [[[_mm512_setzero_si512(); LANES]; 2]; SQUARES];
            for i in 0..LANES {
                let rows = words(i);
                for s in 0..SQUARES {
                    for plane in 0..S::PLANES {
                        if LEFT == BY_LANE {
                            put::<T, S, LEFT>(p, (chunk, plane), lane + s * LANES, i, rows[s][plane]);
                        } else {
                            squares[s][plane][i] = rows[s][plane];
                        }
                    }
                }
            }
            if LEFT != BY_LANE {
                for (s, planes) in squares.iter().enumerate() {
                    for (plane, square) in planes.iter().enumerate().take(S::PLANES) {
                        for (i, row) in transposed_words(*square).iter().enumerate() {
                            put::<T, S, LEFT>(p, (chunk, plane), lane + s * LANES, i, *row);
                        }
                    }
                }
            }
        }
    }

    /// Writes the words of lane `i`, or word `i` of sixteen lanes, to the panel.
    #[inline(always)]
    unsafe fn put<T, S: WordVectors, const LEFT: bool>(
        p: &PanelArgs<T>,
        (chunk, plane): (usize, usize),
        lane: usize,
        i: usize,
        row: __m512i,
    ) {
        let (dst, fill) = (p.dst.cast::<u32>(), p.fill - lane);
        // SAFETY: guaranteed by the contract of `PackFn`: masks and counts keep to the panel.
        unsafe {
            if LEFT && i < fill {
                let at = place::<S, LEFT>(p.fill, chunk, plane, lane + i, 0);
                _mm512_storeu_epi32(dst.wrapping_add(at).cast(), row);
            } else if !LEFT {
                let at = place::<S, LEFT>(p.fill, chunk, plane, lane, i);
                _mm512_mask_storeu_epi32(dst.wrapping_add(at).cast(), mask(fill) as u16, row);
            }
        }
    }

    /// Prefetches a cache line into L2: lanes a power of two apart share few sets of L1.
    #[inline(always)]
    fn ahead(p: *const u8) {
        // SAFETY: a prefetch may have any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::rng::RandomStream;

    /// Compares vectorized with scalar packing, on random bytes with lanes or K contiguous.
    fn check(stored: DType, (lanes, fill, products): (usize, usize, usize), by_lanes: bool, left: bool) {
        let size = stored.size();
        let (words, planes) = if stored == DType::F32 { (2, 2) } else { (4 / size, 1) };
        let k = products.div_ceil(words).next_multiple_of(LANES) * planes;
        let mut stream = RandomStream::new(3, products as u64, lanes as u64);
        let source: Vec<u8> = (0..lanes * products * size).map(|_| stream.below(256) as u8).collect();
        let (lane, step) = if by_lanes { (size, lanes * size) } else { (products * size, size) };
        let pack = |level: Level| -> Vec<u32> {
            let mut to = vec![7u32; fill * k];
            let (src, dst) = (source.as_ptr(), to.as_mut_ptr());
            let panel = PanelArgs { src, lane, step, lanes, fill, k, products, dst, stride: fill };
            let packs = packs::<u32>(stored, level).expect("a stored type of tile registers");
            // SAFETY: the source has these lanes and elements, the destination `k` words of each lane.
            unsafe { packs[usize::from(!left)](&[panel]) };
            to
        };
        assert!(
            pack(Level::Portable) == pack(Level::Avx512),
            "{stored} {lanes} {fill} {products} {by_lanes} {left}"
        );
    }

    #[test]
    fn vectors_pack_as_words_do() {
        let stored = [DType::BF16, DType::F32, DType::I8].into_iter();
        for stored in stored.filter(|_| Level::Avx512.is_available()) {
            for (by_lanes, left) in [(false, false), (false, true), (true, false), (true, true)] {
                for sizes in [(32, 32, 128), (16, 16, 32), (1, 1, 1), (19, 20, 70), (31, 32, 65), (5, 6, 200)]
                {
                    check(stored, sizes, by_lanes, left);
                }
            }
        }
    }

    #[test]
    fn words_hold_pairs_in_order_and_zeros_behind() {
        let source: Vec<u16> = (1..=6).collect();
        let mut to = vec![9u32; 2 * LANES];
        let panel = |to: &mut Vec<u32>| PanelArgs {
            src: source.as_ptr().cast(),
            lane: 6,
            step: 2,
            lanes: 2,
            fill: 2,
            k: LANES,
            products: 3,
            dst: to.as_mut_ptr(),
            stride: 2,
        };
        let [left, right] = packs::<u32>(DType::BF16, Level::Portable).expect("bf16");
        // SAFETY: two lanes of three elements each, and room for a chunk of two lanes.
        unsafe { left(&[panel(&mut to)]) };
        let (a, b) = ([1 | 2 << 16, 3], [4 | 5 << 16, 6]);
        assert_eq!((&to[..2], &to[LANES..LANES + 2]), (&a[..], &b[..]));
        assert!(to[2..LANES].iter().chain(&to[LANES + 2..]).all(|&x| x == 0));
        // SAFETY: as above.
        unsafe { right(&[panel(&mut to)]) };
        assert_eq!(to[..4], [a[0], b[0], a[1], b[1]]);
        assert!(to[4..].iter().all(|&x| x == 0));
    }

    #[test]
    fn split_numbers_add_up() {
        for x in [1.0f32, -std::f32::consts::PI, 1e-30, 12345.678, 0.0, f32::INFINITY, f32::NAN] {
            // SAFETY: one element.
            let [high, low] =
                unsafe { SplitF32Words::bits((&raw const x).cast()) }.map(|b| math::from_bf16(b as u16));
            if x.is_finite() {
                assert!((f64::from(high) + f64::from(low) - f64::from(x)).abs() <= f64::from(x.abs()) * 2e-5);
            } else {
                assert!((high == x || high.is_nan() == x.is_nan()) && low == 0.0, "{x}: {high} and {low}");
            }
        }
    }
}
