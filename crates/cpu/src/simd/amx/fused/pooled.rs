//! A row of 2×2 windows of a convolution, of which only the greatest pixel goes out.
//!
//! Lines of the convolution's input lie in groups: for each pixel what one column of the kernel sees of it. A pixel's
//! products then are neighbours in memory, and pixels are rows of a tile one step apart. Tiles hold the same pixel of
//! some neighbouring windows, so that a window's pixels are the same row of several tiles.

use crate::simd::amx::fused::vectors::{PIXELS, Vectors};
use crate::simd::amx::tile::{LANES, LINE, TileShape, Unit, WIDTH};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Products of a block: words are pairs of them.
pub const BLOCK: usize = 2 * LANES;
/// Bytes of a tile of the kernel, and sums of one.
const TILE: usize = LANES * LINE;
const SUMS: usize = LANES * LANES;

/// Bytes of the packed kernel.
pub fn packed_bytes(k: usize, features: usize) -> usize {
    features.div_ceil(WIDTH) * k.div_ceil(BLOCK) * 2 * TILE
}

/// Packs the kernel, `at(product, feature)`.
///
/// # Safety
/// There is room for [`packed_bytes`] at `to`.
pub unsafe fn pack(k: usize, features: usize, at: impl Fn(usize, usize) -> u16, to: *mut u8) {
    let blocks = k.div_ceil(BLOCK);
    // SAFETY: the caller's room.
    unsafe { to.write_bytes(0, packed_bytes(k, features)) };
    for x in 0..k {
        for f in 0..features {
            let tile = (f / WIDTH * blocks + x / BLOCK) * 2 + f % WIDTH / LANES;
            let byte = tile * TILE + x % BLOCK / 2 * LINE + f % LANES * 4 + x % 2 * 2;
            // SAFETY: a word of the tile.
            unsafe { *to.add(byte).cast::<u16>() = at(x, f) };
        }
    }
}

/// One row of windows.
pub struct Row {
    /// The input of the first window's upper left and lower left pixel.
    pub lines: [*const u16; 2],
    /// Elements from a pixel to its right neighbour, and from a window to the next.
    pub right: usize,
    pub step: usize,
    pub windows: usize,
    /// Products of a pixel. Whole blocks can be read, unless there is only one.
    pub k: usize,
    /// As [`pack`] makes it.
    pub kernel: *const u8,
    /// Whole [`WIDTH`]s.
    pub bias: *const f32,
    pub features: usize,
    pub relu: bool,
    /// Results of the first window, `features` from those of the next; places may be null.
    pub y: *mut u16,
    pub place: *mut u8,
}

impl Row {
    /// Windows whose pixels are one tile: as few tiles as there can be, as even as can be.
    fn height(windows: usize) -> usize {
        windows.div_ceil(windows.div_ceil(LANES))
    }

    /// Windows that are computed together; the last ones may overlap with those before.
    fn tile(&self, i: usize) -> Range<usize> {
        let height = Row::height(self.windows);
        let first = (i * height).min(self.windows - height);
        first..first + height
    }
}

/// The registers for rows of so many windows and so many products.
pub fn shapes(windows: usize, k: usize) -> [TileShape; 8] {
    let (height, pairs) = (Row::height(windows), k.min(BLOCK).div_ceil(2));
    let (pixels, kernel, sums) = ((height, 4 * pairs), (pairs, LINE), (height, LINE));
    [pixels, pixels, pixels, pixels, kernel, kernel, sums, sums]
}

/// Tiles of sums of [`PIXELS`] and two vectors of features.
#[repr(align(64))]
struct Sums([MaybeUninit<f32>; 2 * PIXELS * SUMS]);

/// See the module text.
///
/// # Safety
/// Operands and results are as the row says; registers are configured as [`shapes`] says; the unit and the vectors are
/// available.
#[inline(always)]
pub(crate) unsafe fn run<U: Unit, V: Vectors>(r: &Row) {
    // SAFETY: the caller's promises.
    unsafe {
        match (r.k <= BLOCK, r.relu) {
            (true, true) => row::<U, V, true, true>(r),
            (true, false) => row::<U, V, true, false>(r),
            (false, true) => row::<U, V, false, true>(r),
            (false, false) => row::<U, V, false, false>(r),
        }
    }
}

/// Adds the products of all blocks of a pixel, whose register of the input is `A`, to the registers of sums.
#[inline(always)]
unsafe fn multiply<U: Unit, const A: u8>(pixel: *const u8, step: usize, kernel: *const u8, blocks: usize) {
    for b in 0..blocks {
        let kernel = kernel.wrapping_add(b * 2 * TILE);
        // SAFETY: the caller's pixels and kernel have so many blocks.
        unsafe {
            U::load::<A>(pixel.wrapping_add(b * LINE), step);
            U::load::<4>(kernel, LINE);
            U::bf16::<6, A, 4>();
            U::load::<5>(kernel.wrapping_add(TILE), LINE);
            U::bf16::<7, A, 5>();
        }
    }
}

/// Stores the `I`th of [`PIXELS`] parts of a tile's windows.
#[inline(always)]
unsafe fn pool<V: Vectors, const RELU: bool, const I: usize>(
    r: &Row,
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
            let place = if r.place.is_null() { r.place } else { r.place.add(at) };
            let sums = sums.add(w * LANES);
            V::pool::<RELU>(sums, columns, r.y.add(at), place);
        }
    }
}

/// `ONE`: there is one block of products.
#[inline(always)]
unsafe fn row<U: Unit, V: Vectors, const ONE: bool, const RELU: bool>(r: &Row) {
    let mut sums = [const { Sums([const { MaybeUninit::uninit() }; 2 * PIXELS * SUMS]) }; 2];
    let sums = sums.each_mut().map(|s| s.0.as_mut_ptr().cast::<f32>());
    let (tiles, groups) = (r.windows.div_ceil(LANES), r.features.div_ceil(WIDTH));
    let blocks = r.k.div_ceil(BLOCK);
    // While the tiles of one group of features are summed, the windows of the group before go out: both go on at the
    // same time where they are near each other in the program.
    for i in 0..tiles * groups + 1 {
        let (tile, group) = (i / groups, i % groups);
        let now = (tile < tiles).then(|| r.tile(tile));
        let kernel = r.kernel.wrapping_add(group * blocks * 2 * TILE);
        let bias = r.bias.wrapping_add(group * WIDTH).cast::<u8>();
        let before = i.checked_sub(1).map(|b| (r.tile(b / groups), b % groups * WIDTH));
        /// One pixel of all windows, whose register of the input is `$a`.
        macro_rules! pixel {
            ($i:literal, $a:literal) => {{
                let pixel = |first: usize| {
                    r.lines[$i / 2].wrapping_add($i % 2 * r.right + first * r.step).cast::<u8>()
                };
                // SAFETY: by the caller's promise.
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
                        // A step of zero: the bias is every row.
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

    /// A line of windows by every unit, against plain sums of small numbers; many of them tie.
    fn check(windows: usize, k: usize, features: usize, relu: bool, places: bool) {
        let (right, step) = (6, 14);
        let line = windows * step + k + BLOCK;
        let number = |i: usize, by: usize| ((i * by + i / 13) % 7) as f32 - 3.0;
        let half = |n: usize, by: usize| (0..n).map(|i| to_bf16(number(i, by))).collect::<Vec<u16>>();
        let (x, kernel) = (half(2 * line, 5), half(k * features, 3));
        let bias: Vec<f32> = (0..features.next_multiple_of(WIDTH)).map(|f| number(f, 2) / 2.0).collect();
        let mut packed = vec![0xffffu16; packed_bytes(k, features) / 2];
        // SAFETY: there is room for all of it.
        unsafe { pack(k, features, |x, f| kernel[x * features + f], packed.as_mut_ptr().cast()) };
        for unit in units() {
            let (mut y, mut place) = (vec![0xaaaau16; windows * features], vec![0xaau8; windows * features]);
            let row = Row {
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
                place: if places { place.as_mut_ptr() } else { std::ptr::null_mut() },
            };
            let registers = unit.configure(shapes(windows, k));
            // SAFETY: all arrays have the sizes of the row.
            unsafe { (unit.pooled)(&row) };
            drop(registers);
            for (i, (&y, &place)) in y.iter().zip(&place).enumerate() {
                let (w, f) = (i / features, i % features);
                let sum = |p: usize| -> f32 {
                    let at = p / 2 * line + w * step + p % 2 * right;
                    let products = (0..k).map(|t| from_bf16(x[at + t]) * from_bf16(kernel[t * features + f]));
                    from_bf16(to_bf16(bias[f] + products.sum::<f32>()))
                };
                let all = [0, 1, 2, 3].map(sum);
                let top = all.into_iter().fold(f32::NEG_INFINITY, f32::max);
                let dead = relu && top <= 0.0;
                let first = all.iter().position(|&x| x == top).unwrap_or(4) as u8;
                let want = (if dead { 0.0 } else { top }, if dead { DEAD } else { first });
                let want = (want.0, if places { want.1 } else { 0xaa });
                assert_eq!((from_bf16(y), place), want, "{windows}×{k}×{features} {relu}, element {i}");
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
            // SAFETY: lines and groups have so many numbers.
            unsafe { (unit.groups)(lines, n, to.as_mut_ptr()) };
            let want = (0..4 * n).map(|i| (i % 4 * 50 + i / 4) as u16).chain([0]);
            assert!(to.into_iter().eq(want), "{n}");
        }
    }
}
