//! Convolutions of each channel on its own by dot products of four bytes: sixteen channels of four lines lie in a vector.
//!
//! First the four lines are interleaved, column by column, then each place of a window in a line is one instruction for sixteen
//! channels. Where a window has up to three lines and moves by one, the same four lines give two rows of results.

#[cfg(target_arch = "x86_64")]
use crate::simd::int8::requantize::RequantizeLanes;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::windows::Int8WindowDim;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Channels of a block: what four vectors hold.
pub const BLOCK: usize = 64;
/// Lines of a group.
pub const GROUP: usize = 4;
/// Vectors of a block.
const PARTS: usize = 4;

/// The channel of a block that lies at a place of its four vectors.
pub fn channel(at: usize) -> usize {
    let (part, lane, own) = (at / 16, at % 16 / 4, at % 4);
    16 * lane + 4 * part + own
}

/// Rows of results: one, or two with the same lines.
pub struct DepthwiseDotRows<'a> {
    /// [`GROUP`] lines of the picture for each group; null: outside.
    pub lines: &'a [*const i8],
    pub columns: Int8WindowDim,
    pub channels: usize,
    /// Neighbouring pixels that lie in one block: more than 1 where channels fill a half or a quarter of it and windows move by one.
    pub pixels: usize,
    /// The zero point, 128 more.
    pub outside: u8,
    /// For each block and row of results: `[places of a line, groups, channels]` in the order of [`channel`], four bytes for each.
    pub weights: *const i32,
    /// In the order of [`channel`].
    pub ends: &'a RequantizeParams,
    /// The rows of results; the second may be null.
    pub to: [*mut i8; 2],
    /// [`scratch`] bytes.
    pub scratch: *mut u8,
}

/// Columns that windows meet.
fn span(columns: &Int8WindowDim) -> usize {
    (columns.positions - 1) * columns.stride + (columns.window - 1) * columns.dilation + 1
}

/// Bytes of scratch for so many groups.
pub fn scratch(columns: &Int8WindowDim, groups: usize) -> usize {
    groups * PARTS * part(columns)
}

/// Bytes of the lines of a group in one of the vectors of a block.
fn part(columns: &Int8WindowDim) -> usize {
    (span(columns) + PARTS) * BLOCK
}

/// The first `n` of 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first(n: usize) -> __mmask64 {
    if n >= BLOCK { u64::MAX } else { (1 << n) - 1 }
}

/// The lines of a group from channel `c` on, `n` bytes at most of each pixel, interleaved.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn interleave(d: &DepthwiseDotRows<'_>, group: usize, c: usize, wide: usize) {
    // SAFETY: by the promise of `DepthRows`: lines are whole, and what is outside of them is masked.
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
            // What the line has from here on, or the pixel.
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
        // The border, also over what the last pixels wrote beyond their line.
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

/// All results of a block: `ROWS` rows of them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn results<const ROWS: usize, const THREE: bool>(
    d: &DepthwiseDotRows<'_>,
    block: usize,
    wide: usize,
    weights: *const i32,
) {
    // SAFETY: by the promise of `DepthRows`; the scratch has all columns of the block.
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

/// Rows of results.
///
/// # Safety
/// The machine has AVX-512 with VNNI; lines and rows of results are whole, weights, ends and scratch as [`DepthwiseDotRows`] says.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn depth_rows(d: &DepthwiseDotRows<'_>) {
    let groups = d.lines.len() / GROUP;
    let blocks = if d.pixels > 1 { 1 } else { d.channels.div_ceil(BLOCK) };
    let wide = if d.pixels > 1 { d.channels } else { BLOCK };
    let is_three = d.columns.window == 3 && groups == 1;
    let rows = if d.to[1].is_null() { 1 } else { 2 };
    for block in 0..blocks {
        // SAFETY: by the caller's promise.
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

/// No machine but x86-64 has them.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn depth_rows(_: &DepthRows<'_>) {}
