//! AMX convolution fused with bias, ReLU and 2×2 max pooling, one row of pooling windows at a time.
//!
//! Only pooled values are written. The input rows are interleaved beforehand, so that the pixels under one column of
//! the filter are adjacent: the K elements of an output pixel are then contiguous (im2col without a copy), and output
//! pixels are A tile rows at a constant stride. Each A tile holds the same position (of the four) of several adjacent
//! windows. A window's four pixels are then the same row of four tiles, and pooling is a vector maximum over these.

use crate::simd::amx::fused::vectors::{FusedVectors, PIXELS};
use crate::simd::amx::tile::{LANES, LINE, TileShape, TileUnit, WIDTH};
use std::mem::MaybeUninit;
use std::ops::Range;

/// K elements per tile: sixteen words of two.
pub const BLOCK: usize = 2 * LANES;
/// Bytes of a tile of packed weights, and f32 elements of an accumulator tile.
const TILE: usize = LANES * LINE;
const SUMS: usize = LANES * LANES;

/// Returns the size of the packed weights in bytes.
pub fn packed_bytes(k: usize, features: usize) -> usize {
    features.div_ceil(WIDTH) * k.div_ceil(BLOCK) * 2 * TILE
}

/// Packs the weights `at(k, feature)` (`[K, features]`) into tiles; zero beyond K and features.
///
/// # Safety
/// There is room for [`packed_bytes`] at `to`.
pub unsafe fn pack(k: usize, features: usize, at: impl Fn(usize, usize) -> u16, to: *mut u8) {
    let blocks = k.div_ceil(BLOCK);
    // SAFETY: the caller has room for the packed weights.
    unsafe { to.write_bytes(0, packed_bytes(k, features)) };
    for x in 0..k {
        for f in 0..features {
            let tile = (f / WIDTH * blocks + x / BLOCK) * 2 + f % WIDTH / LANES;
            let byte = tile * TILE + x % BLOCK / 2 * LINE + f % LANES * 4 + x % 2 * 2;
            // SAFETY: `x < k` and `f < features`, so the word is in the packed weights.
            unsafe { *to.add(byte).cast::<u16>() = at(x, f) };
        }
    }
}

/// Arguments of the AMX convolution with pooling: one row of windows.
pub struct PooledConvRow {
    /// Input of the first window's upper left and lower left pixel.
    pub lines: [*const u16; 2],
    /// Elements between a pixel and its right neighbor, and between windows.
    pub right: usize,
    pub step: usize,
    pub windows: usize,
    /// K of a pixel. Input is readable in whole blocks of [`BLOCK`], unless there is only one block.
    pub k: usize,
    /// Weights, packed by [`pack`].
    pub kernel: *const u8,
    /// `bias[features]`, readable up to a multiple of [`WIDTH`].
    pub bias: *const f32,
    pub features: usize,
    pub relu: bool,
    /// Results `[windows, features]`: pooled values and, unless null, argmax.
    pub y: *mut u16,
    pub argmax: *mut u8,
}

impl PooledConvRow {
    /// Windows per tile: with as few tiles as possible, of nearly equal size.
    fn height(windows: usize) -> usize {
        windows.div_ceil(windows.div_ceil(LANES))
    }

    /// Windows of tile `i`; the last tile may overlap the one before.
    fn tile(&self, i: usize) -> Range<usize> {
        let height = PooledConvRow::height(self.windows);
        let first = (i * height).min(self.windows - height);
        first..first + height
    }
}

/// Tile register shapes for rows of this many windows and K.
pub fn shapes(windows: usize, k: usize) -> [TileShape; 8] {
    let (height, pairs) = (PooledConvRow::height(windows), k.min(BLOCK).div_ceil(2));
    let (pixels, kernel, sums) = ((height, 4 * pairs), (pairs, LINE), (height, LINE));
    [pixels, pixels, pixels, pixels, kernel, kernel, sums, sums]
}

/// Accumulator tiles of the [`PIXELS`] of a tile of windows, each two vectors of features wide.
#[repr(align(64))]
struct PooledTiles([MaybeUninit<f32>; 2 * PIXELS * SUMS]);

/// Computes one row of windows.
///
/// # Safety
/// Operands and results are as described in [`PooledConvRow`]; registers are configured with [`shapes`]; the unit and
/// the vectors are available.
#[inline(always)]
pub(crate) unsafe fn run<U: TileUnit, V: FusedVectors>(r: &PooledConvRow) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (r.k <= BLOCK, r.relu) {
            (true, true) => row::<U, V, true, true>(r),
            (true, false) => row::<U, V, true, false>(r),
            (false, true) => row::<U, V, false, true>(r),
            (false, false) => row::<U, V, false, false>(r),
        }
    }
}

/// Accumulates all K blocks of a pixel, whose input is loaded to register `A`.
#[inline(always)]
unsafe fn multiply<U: TileUnit, const A: u8>(
    pixel: *const u8,
    step: usize,
    kernel: *const u8,
    blocks: usize,
) {
    for b in 0..blocks {
        let kernel = kernel.wrapping_add(b * 2 * TILE);
        // SAFETY: the caller's input and packed weights have this many blocks.
        unsafe {
            U::load::<A>(pixel.wrapping_add(b * LINE), step);
            U::load::<4>(kernel, LINE);
            U::bf16::<6, A, 4>();
            U::load::<5>(kernel.wrapping_add(TILE), LINE);
            U::bf16::<7, A, 5>();
        }
    }
}

/// Pools and stores part `I` of [`PIXELS`] equal parts of a tile's windows.
#[inline(always)]
unsafe fn pool<V: FusedVectors, const RELU: bool, const I: usize>(
    r: &PooledConvRow,
    windows: &Range<usize>,
    feature: usize,
    sums: *const f32,
) {
    let n = windows.len();
    let columns = WIDTH.min(r.features - feature);
    for w in n * I / PIXELS..n * (I + 1) / PIXELS {
        // SAFETY: the caller's results have these windows, and its sums a row for each.
        unsafe {
            let at = (windows.start + w) * r.features + feature;
            let argmax = if r.argmax.is_null() { r.argmax } else { r.argmax.add(at) };
            let sums = sums.add(w * LANES);
            V::pool::<RELU>(sums, columns, r.y.add(at), argmax);
        }
    }
}

/// `ONE`: K fits one block.
#[inline(always)]
unsafe fn row<U: TileUnit, V: FusedVectors, const ONE: bool, const RELU: bool>(r: &PooledConvRow) {
    let mut sums = [const { PooledTiles([const { MaybeUninit::uninit() }; 2 * PIXELS * SUMS]) }; 2];
    let sums = sums.each_mut().map(|s| s.0.as_mut_ptr().cast::<f32>());
    let (tiles, groups) = (r.windows.div_ceil(LANES), r.features.div_ceil(WIDTH));
    let blocks = r.k.div_ceil(BLOCK);
    // Software pipelining: while one group of features is multiplied, the previous one is pooled and stored.
    // Interleaving both in the code lets them overlap in execution.
    for i in 0..tiles * groups + 1 {
        let (tile, group) = (i / groups, i % groups);
        let now = (tile < tiles).then(|| r.tile(tile));
        let kernel = r.kernel.wrapping_add(group * blocks * 2 * TILE);
        let bias = r.bias.wrapping_add(group * WIDTH).cast::<u8>();
        let before = i.checked_sub(1).map(|b| (r.tile(b / groups), b % groups * WIDTH));
        /// Pixel `$i` of all windows; its input is in register `$a`.
        macro_rules! pixel {
            ($i:literal, $a:literal) => {{
                let pixel = |first: usize| {
                    r.lines[$i / 2].wrapping_add($i % 2 * r.right + first * r.step).cast::<u8>()
                };
                // SAFETY: guaranteed by the caller.
                unsafe {
                    if let Some(windows) = &now {
                        let out = sums[i % 2].add(2 * $i * SUMS).cast::<u8>();
                        if ONE {
                            if group == 0 {
                                U::load::<$a>(pixel(windows.start), 2 * r.step);
                            }
                            if $i == 0 {
                                U::load::<4>(kernel, LINE);
                                U::load::<5>(kernel.wrapping_add(TILE), LINE);
                            }
                        }
                        // A stride of zero: every row is the bias.
                        U::load::<6>(bias, 0);
                        U::load::<7>(bias.wrapping_add(LINE), 0);
                        if ONE {
                            U::bf16::<6, $a, 4>();
                            U::bf16::<7, $a, 5>();
                        } else {
                            multiply::<U, $a>(pixel(windows.start), 2 * r.step, kernel, blocks);
                        }
                        U::store::<6>(out, LINE);
                        U::store::<7>(out.wrapping_add(SUMS * 4), LINE);
                    }
                    if let Some((windows, feature)) = &before {
                        pool::<V, RELU, $i>(r, windows, *feature, sums[(i + 1) % 2]);
                    }
                }
            }};
        }
        pixel!(0, 0);
        pixel!(1, 1);
        pixel!(2, 2);
        pixel!(3, 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx::fused::units;
    use crate::simd::math::{from_bf16, to_bf16};
    use systole_compile::DEAD;

    /// A row of windows by every unit, against scalar sums of small integers; many pixels tie.
    fn check(windows: usize, k: usize, features: usize, relu: bool, with_argmax: bool) {
        let (right, step) = (6, 14);
        let line = windows * step + k + BLOCK;
        let number = |i: usize, by: usize| ((i * by + i / 13) % 7) as f32 - 3.0;
        let half = |n: usize, by: usize| (0..n).map(|i| to_bf16(number(i, by))).collect::<Vec<u16>>();
        let (x, kernel) = (half(2 * line, 5), half(k * features, 3));
        let bias: Vec<f32> = (0..features.next_multiple_of(WIDTH)).map(|f| number(f, 2) / 2.0).collect();
        let mut packed = vec![0xffffu16; packed_bytes(k, features) / 2];
        // SAFETY: `packed` has `packed_bytes`.
        unsafe { pack(k, features, |x, f| kernel[x * features + f], packed.as_mut_ptr().cast()) };
        for unit in units() {
            let (mut y, mut argmax) = (vec![0xaaaau16; windows * features], vec![0xaau8; windows * features]);
            let row = PooledConvRow {
                lines: [x.as_ptr(), x[line..].as_ptr()],
                right,
                step,
                windows,
                k,
                kernel: packed.as_ptr().cast(),
                bias: bias.as_ptr(),
                features,
                relu,
                y: y.as_mut_ptr(),
                argmax: if with_argmax { argmax.as_mut_ptr() } else { std::ptr::null_mut() },
            };
            let registers = unit.configure(shapes(windows, k));
            // SAFETY: all arrays have the sizes of the row.
            unsafe { (unit.pooled)(&row) };
            drop(registers);
            for (i, (&y, &argmax)) in y.iter().zip(&argmax).enumerate() {
                let (w, f) = (i / features, i % features);
                let sum = |p: usize| -> f32 {
                    let at = p / 2 * line + w * step + p % 2 * right;
                    let products = (0..k).map(|t| from_bf16(x[at + t]) * from_bf16(kernel[t * features + f]));
                    bias[f] + products.sum::<f32>()
                };
                let all = [0, 1, 2, 3].map(sum);
                let top = all.into_iter().fold(f32::NEG_INFINITY, f32::max);
                let dead = relu && top <= 0.0;
                let first = all.iter().position(|&x| x == top).unwrap_or(4) as u8;
                let want =
                    (if dead { 0.0 } else { from_bf16(to_bf16(top)) }, if dead { DEAD } else { first });
                let want = (want.0, if with_argmax { want.1 } else { 0xaa });
                assert_eq!((from_bf16(y), argmax), want, "{windows}×{k}×{features} {relu}, element {i}");
            }
        }
    }

    #[test]
    fn windows_of_every_count() {
        for (windows, k, features) in [(1, 2, 1), (13, 12, 64), (16, 32, 32), (17, 6, 40), (5, 70, 33)] {
            check(windows, k, features, true, true);
            check(windows, k, features, false, true);
            check(windows, k, features, true, false);
        }
    }

    #[test]
    fn groups_of_four_lines() {
        let line: Vec<u16> = (0..200).collect();
        for (unit, n) in units().flat_map(|u| [1, 7, 8, 9, 16, 28, 35].map(|n| (u, n))) {
            let mut to = vec![0u16; 4 * n + 1];
            let lines = [0, 50, 100, 150].map(|at| line[at..].as_ptr());
            // SAFETY: lines and result have `n` groups.
            unsafe { (unit.groups)(lines, n, to.as_mut_ptr()) };
            let want = (0..4 * n).map(|i| (i % 4 * 50 + i / 4) as u16).chain([0]);
            assert!(to.into_iter().eq(want), "{n}");
        }
    }
}
