//! Int8 depthwise convolution with AVX-512 VNNI: four image rows by sixteen channels per vector.
//!
//! Four image rows are first interleaved column by column. Each window column is then one dot-product instruction for
//! sixteen channels. With at most three window rows and stride 1, the same four image rows yield two result rows.

#[cfg(target_arch = "x86_64")]
use crate::simd::int8::requantize::RequantizeLanes;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::windows::Int8WindowDim;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Channels per block of the int8 depthwise kernel: four vectors.
pub const BLOCK: usize = 64;
/// Image rows per group of the int8 depthwise kernel.
pub const GROUP: usize = 4;
/// Vectors per block.
const PARTS: usize = 4;

/// Returns the channel of a block at position `at` of its four interleaved vectors.
pub fn channel(at: usize) -> usize {
    let (part, lane, own) = (at / 16, at % 16 / 4, at % 4);
    16 * lane + 4 * part + own
}

/// Arguments of [`depth_rows`]: one result row, or two that read the same image rows.
pub struct DepthwiseDotRows<'a> {
    /// [`GROUP`] image rows per group; null for padding.
    pub lines: &'a [*const i8],
    pub columns: Int8WindowDim,
    pub channels: usize,
    /// Adjacent pixels per block: more than 1 if channels fill half or a quarter of a block and the stride is 1.
    pub pixels: usize,
    /// Padding value: the zero point plus 128.
    pub outside: u8,
    /// For each block and result row: `[window columns, groups, channels]` in the order of [`channel`], four bytes
    /// each.
    pub weights: *const i32,
    /// Requantization parameters in the order of [`channel`].
    pub ends: &'a RequantizeParams,
    /// The result rows; the second may be null.
    pub to: [*mut i8; 2],
    /// Scratch buffer of [`scratch`] bytes.
    pub scratch: *mut u8,
}

/// Returns the number of padded columns that windows cover.
fn span(columns: &Int8WindowDim) -> usize {
    (columns.positions - 1) * columns.stride + (columns.window - 1) * columns.dilation + 1
}

/// Returns the size of the scratch memory for `groups` groups, in bytes.
pub fn scratch(columns: &Int8WindowDim, groups: usize) -> usize {
    groups * PARTS * part(columns)
}

/// Returns the size of a group's image rows in one vector of a block, in bytes.
fn part(columns: &Int8WindowDim) -> usize {
    (span(columns) + PARTS) * BLOCK
}

/// Mask of the first `n` of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first(n: usize) -> __mmask64 {
    if n >= BLOCK { u64::MAX } else { (1 << n) - 1 }
}

/// Interleaves a group's image rows from channel `c` on, at most `wide` bytes per pixel.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn interleave(d: &DepthwiseDotRows<'_>, group: usize, c: usize, wide: usize) {
    // SAFETY: by the contract of `DepthwiseDotRows` rows are whole; bytes outside are masked.
    unsafe {
        let lines = &d.lines[group * GROUP..(group + 1) * GROUP];
        let (columns, all) = (&d.columns, part(&d.columns));
        let to = d.scratch.add(group * PARTS * all);
        let outside = _mm512_set1_epi8(d.outside as i8);
        let above = _mm512_set1_epi8(-128);
        let before = columns.before.min(span(columns));
        let end = (before + columns.size).min(span(columns));
        for i in (before..end).step_by(d.pixels) {
            let px = i - before;
            let at = px * d.channels + c;
            // Bytes left in the row, or in the pixel.
            let left = if d.pixels > 1 { (columns.size - px) * d.channels } else { d.channels - c };
            let mut x = [outside; GROUP];
            for (x, line) in x.iter_mut().zip(lines) {
                if !line.is_null() {
                    let bytes = if left >= BLOCK {
                        _mm512_loadu_si512(line.add(at).cast())
                    } else {
                        _mm512_maskz_loadu_epi8(first(left), line.add(at))
                    };
                    *x = _mm512_xor_si512(bytes, above);
                }
            }
            let low = [_mm512_unpacklo_epi8(x[0], x[1]), _mm512_unpacklo_epi8(x[2], x[3])];
            let high = [_mm512_unpackhi_epi8(x[0], x[1]), _mm512_unpackhi_epi8(x[2], x[3])];
            let quads = [
                _mm512_unpacklo_epi16(low[0], low[1]),
                _mm512_unpackhi_epi16(low[0], low[1]),
                _mm512_unpacklo_epi16(high[0], high[1]),
                _mm512_unpackhi_epi16(high[0], high[1]),
            ];
            for (q, x) in quads.iter().enumerate() {
                _mm512_storeu_si512(to.add(q * all + i * wide).cast(), *x);
            }
        }
        // The padding; this overwrites what the last pixels wrote past the end of their row.
        for q in 0..PARTS {
            for i in (0..before).chain(end..span(columns)) {
                let to = to.add(q * all + i * wide);
                if wide == BLOCK {
                    _mm512_storeu_si512(to.cast(), outside);
                } else {
                    to.write_bytes(d.outside, wide);
                }
            }
        }
    }
}

/// Computes all results of a block for `ROWS` result rows.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn results<const ROWS: usize, const THREE: bool>(
    d: &DepthwiseDotRows<'_>,
    block: usize,
    wide: usize,
    weights: *const i32,
) {
    // SAFETY: guaranteed by the contract of `DepthRows`; the scratch has all columns of the block.
    unsafe {
        let columns = &d.columns;
        let (all, groups) = (part(columns), d.lines.len() / GROUP);
        let (places, groups) = if THREE { (3, 1) } else { (columns.window, groups) };
        let each = places * groups * BLOCK;
        let ends: [RequantizeLanes<__m512i>; PARTS] = [
            d.ends.sixteen(block * BLOCK),
            d.ends.sixteen(block * BLOCK + 16),
            d.ends.sixteen(block * BLOCK + 32),
            d.ends.sixteen(block * BLOCK + 48),
        ];
        let bias = d.ends.bias.as_ptr().add(block * BLOCK);
        let (low, high) = (_mm512_set1_epi8(d.ends.low as i8), _mm512_set1_epi8(d.ends.high as i8));
        for ox in (0..columns.positions).step_by(d.pixels) {
            let mut sums = [[_mm512_setzero_si512(); PARTS]; ROWS];
            for row in &mut sums {
                for (q, sum) in row.iter_mut().enumerate() {
                    *sum = _mm512_loadu_si512(bias.add(16 * q).cast());
                }
            }
            for k in 0..places {
                for group in 0..groups {
                    let at = (ox * columns.stride + k * columns.dilation) * wide;
                    let from = d.scratch.add(group * PARTS * all + at);
                    let w = weights.add((k * groups + group) * BLOCK);
                    for q in 0..PARTS {
                        let x = _mm512_loadu_si512(from.add(q * all).cast());
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let w = _mm512_loadu_si512(w.add(r * each + 16 * q).cast());
                            sums[q] = _mm512_dpbusd_epi32(sums[q], x, w);
                        }
                    }
                }
            }
            let at = ox * d.channels + block * BLOCK;
            let left =
                if d.pixels > 1 { (columns.positions - ox) * d.channels } else { d.channels - block * BLOCK };
            for (sums, to) in sums.iter().zip(d.to) {
                let one = _mm512_packs_epi32(ends[0].unbounded(sums[0]), ends[1].unbounded(sums[1]));
                let two = _mm512_packs_epi32(ends[2].unbounded(sums[2]), ends[3].unbounded(sums[3]));
                let y = _mm512_max_epi8(_mm512_packs_epi16(one, two), low);
                let y = _mm512_min_epi8(y, high);
                if left >= BLOCK {
                    _mm512_storeu_si512(to.add(at).cast(), y);
                } else {
                    _mm512_mask_storeu_epi8(to.add(at), first(left), y);
                }
            }
        }
    }
}

/// Computes one or two result rows of an int8 depthwise convolution.
///
/// # Safety
/// The machine has AVX-512 VNNI; image rows and result rows are whole; weights, requantization parameters and scratch
/// are as [`DepthwiseDotRows`] documents.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn depth_rows(d: &DepthwiseDotRows<'_>) {
    let groups = d.lines.len() / GROUP;
    let blocks = if d.pixels > 1 { 1 } else { d.channels.div_ceil(BLOCK) };
    let wide = if d.pixels > 1 { d.channels } else { BLOCK };
    let is_three = d.columns.window == 3 && groups == 1;
    let rows = if d.to[1].is_null() { 1 } else { 2 };
    for block in 0..blocks {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for group in 0..groups {
                interleave(d, group, block * BLOCK, wide);
            }
            let weights = d.weights.add(block * rows * d.columns.window * groups * BLOCK);
            match (rows, is_three) {
                (2, true) => results::<2, true>(d, block, wide, weights),
                (2, false) => results::<2, false>(d, block, wide, weights),
                (_, true) => results::<1, true>(d, block, wide, weights),
                (_, false) => results::<1, false>(d, block, wide, weights),
            }
        }
    }
}

/// Stub: only x86-64 has these instructions.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn depth_rows(_: &DepthwiseDotRows<'_>) {}
