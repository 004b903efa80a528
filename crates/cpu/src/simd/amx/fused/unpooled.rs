//! AMX gradient of a max-pooled convolution w.r.t. its weights, from the pooled gradient and each window's argmax.
//!
//! `sums[tap, feature] += Σ x[window, position, tap] · dy[window, feature]`, where `position` is the window's argmax
//! for that feature. There is one product per pair of window positions (a bf16 pair is two positions): A is the input
//! under each tap at the two positions, for some adjacent windows (K). B is `dy` of these windows, zero where argmax is
//! another position.

use crate::simd::amx::fused::vectors::FusedVectors;
use crate::simd::amx::tile::{LANES, LINE, TileShape, TileUnit, WIDTH};
use std::mem::MaybeUninit;

/// Maximum positions per pooling window.
pub const PLACES: usize = 16;
/// Elements of `sums` per call: tiles of [`LANES`] features by as many taps.
pub const SUMS: usize = TILES * TILE;
const TILES: usize = 4;
/// Maximum features per call of the AMX gradient kernel.
pub const FEATURES: usize = TILES * LANES;
/// Words per tile.
const TILE: usize = LANES * LANES;
/// Two bf16 ones: the input of the bias, which is an additional tap.
const ONES: u32 = 0x3f80_3f80;

/// Arguments of the AMX gradient of a pooled convolution: windows `[images, rows, windows]`. Strides are in elements.
pub struct TileGradientArgs<'a> {
    pub images: usize,
    pub rows: usize,
    pub windows: usize,
    /// Input of the first window; strides between images, rows of windows, and windows. [`slack`] more elements after a
    /// row's last window are readable and finite.
    pub x: *const u16,
    pub image: usize,
    pub row: usize,
    pub step: usize,
    /// `offsets[places, taps]`: input element of a tap at a position of the window, relative to the window's first
    /// element. If there are fewer than [`LANES`] taps, the next row of `sums` accumulates the bias gradient.
    pub offsets: &'a [usize],
    pub taps: usize,
    pub places: usize,
    /// Gradient and argmax of the first window and feature, `[rows, windows, features]` per image.
    pub dy: *const u16,
    pub argmax: *const u8,
    pub features: usize,
    /// Elements between images.
    pub dy_image: usize,
    pub argmax_image: usize,
    /// Whether there are [`FEATURES`] features, or half as many.
    pub all: bool,
    /// [`SUMS`] elements, which are accumulated into.
    pub sums: *mut f32,
}

/// Returns the number of elements that are read after a row of windows with this stride.
pub fn slack(step: usize) -> usize {
    LANES * step.max(2) + 2
}

/// Returns the windows per tile: a row is split into tiles of nearly equal size.
fn height(windows: usize) -> usize {
    windows.div_ceil(windows.div_ceil(LANES))
}

/// Returns the tile register shapes for these taps (including the bias) and windows per row.
pub fn shapes(taps: usize, windows: usize) -> [TileShape; 8] {
    let height = height(windows);
    let (sums, taps, gradients) = ((taps, LINE), (taps, 4 * height), (height, LINE));
    [sums, sums, sums, sums, taps, taps, gradients, gradients]
}

/// Input of the taps at two positions (A tile).
#[repr(C, align(64))]
struct InputTile([MaybeUninit<u32>; TILE]);

/// Masked gradients at two positions (B tiles).
#[repr(C, align(64))]
struct MaskedGradients([[MaybeUninit<u32>; TILE]; TILES]);

/// Accumulates the gradient of all windows.
///
/// # Safety
/// Operands and sums are as described in [`TileGradientArgs`]; registers are configured with [`shapes`]; the unit and
/// the vectors are available.
#[inline(always)]
pub(crate) unsafe fn run<U: TileUnit, V: FusedVectors>(c: &TileGradientArgs<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (c.all, c.places) {
            // A constant trip count lets the compiler unroll the loops over positions.
            (true, 4) => places::<U, V, true, 2>(c, 2),
            (true, n) => places::<U, V, true, 0>(c, n.div_ceil(2)),
            (false, n) => places::<U, V, false, 0>(c, n.div_ceil(2)),
        }
    }
}

/// `ALL`: there are [`FEATURES`] features. `P`: pairs of positions, unless 0.
#[inline(always)]
unsafe fn places<U: TileUnit, V: FusedVectors, const ALL: bool, const P: usize>(
    c: &TileGradientArgs<'_>,
    pairs: usize,
) {
    let pairs = if P > 0 { P } else { pairs };
    let mut seen = [const { InputTile([MaybeUninit::uninit(); TILE]) }; PLACES / 2];
    let mut gradients = [const { MaskedGradients([[MaybeUninit::uninit(); TILE]; TILES]) }; PLACES / 2];
    if c.taps < LANES {
        for seen in &mut seen {
            seen.0[c.taps * LANES..][..LANES].fill(MaybeUninit::new(ONES));
        }
    }
    let (height, sums) = (height(c.windows), c.sums.cast::<u8>());
    // SAFETY: guaranteed by the caller.
    unsafe {
        U::load::<0>(sums, LINE);
        U::load::<1>(sums.add(TILE * 4), LINE);
        U::load::<2>(sums.add(2 * TILE * 4), LINE);
        U::load::<3>(sums.add(3 * TILE * 4), LINE);
        for image in 0..c.images {
            for row in 0..c.rows {
                for from in (0..c.windows).step_by(height) {
                    let n = height.min(c.windows - from);
                    let x = c.x.add(image * c.image + row * c.row + from * c.step);
                    for (p, seen) in seen.iter_mut().enumerate().take(pairs) {
                        see::<V>(c, x, p, seen);
                    }
                    let at = (row * c.windows + from) * c.features;
                    let dy = c.dy.add(image * c.dy_image + at);
                    let argmax = c.argmax.add(image * c.argmax_image + at);
                    let to = gradients.as_mut_ptr().cast::<u32>();
                    for w in 0..height {
                        for g in 0..1 + usize::from(ALL) {
                            let at = w * c.features + g * WIDTH;
                            let to = to.add(2 * g * TILE + w * LANES);
                            if w < n {
                                V::spread(dy.add(at), argmax.add(at), pairs, to, TILE, TILES * TILE);
                            } else {
                                for tile in (0..pairs).flat_map(|p| [p * TILES, p * TILES + 1]) {
                                    to.add(tile * TILE).write_bytes(0, LANES);
                                }
                            }
                        }
                    }
                    for (seen, gradients) in seen.iter().zip(&gradients).take(pairs) {
                        multiply::<U, ALL>(seen, gradients);
                    }
                }
            }
        }
        U::store::<0>(sums, LINE);
        U::store::<1>(sums.add(TILE * 4), LINE);
        U::store::<2>(sums.add(2 * TILE * 4), LINE);
        U::store::<3>(sums.add(3 * TILE * 4), LINE);
    }
}

/// Loads the input of all taps at a pair of positions, for a tile of windows that starts at `x`.
#[inline(always)]
unsafe fn see<V: FusedVectors>(c: &TileGradientArgs<'_>, x: *const u16, pair: usize, seen: &mut InputTile) {
    // An odd last position is paired with itself: no argmax selects the other half.
    let places = [2 * pair, (2 * pair + 1).min(c.places - 1)];
    for t in 0..c.taps {
        // SAFETY: guaranteed by the caller; there is an offset for each tap at each position.
        unsafe {
            let x = places.map(|p| x.add(*c.offsets.get_unchecked(p * c.taps + t)));
            V::seen(x, c.step, seen.0.as_mut_ptr().cast::<u32>().add(t * LANES));
        }
    }
}

/// Accumulates the product of a pair of positions.
#[inline(always)]
unsafe fn multiply<U: TileUnit, const ALL: bool>(seen: &InputTile, gradients: &MaskedGradients) {
    // SAFETY: both are whole tiles; registers are configured for them.
    unsafe {
        U::load::<4>(seen.0.as_ptr().cast(), LINE);
        U::load::<6>(gradients.0[0].as_ptr().cast(), LINE);
        U::bf16::<0, 4, 6>();
        U::load::<7>(gradients.0[1].as_ptr().cast(), LINE);
        U::bf16::<1, 4, 7>();
        if ALL {
            U::load::<6>(gradients.0[2].as_ptr().cast(), LINE);
            U::bf16::<2, 4, 6>();
            U::load::<7>(gradients.0[3].as_ptr().cast(), LINE);
            U::bf16::<3, 4, 7>();
        }
    }
}

/// Returns the index of a tap and feature in `sums`.
pub fn at(tap: usize, feature: usize) -> usize {
    feature / LANES * TILE + tap * LANES + feature % LANES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx::fused::units;
    use crate::simd::math::{from_bf16, to_bf16};
    use systole_compile::DEAD;

    /// Compares sums over windows on every unit with scalar sums of small integers.
    fn check(windows: usize, step: usize, offsets: &[usize], taps: usize, all: bool) {
        let (images, rows, features) = (3, 2, FEATURES + 6);
        let places = offsets.len() / taps;
        let (row, image) = (windows * step + 3, 2 * (windows * step + 3) + 90 + slack(step));
        let number = |i: usize, by: usize| ((i * by + i / 13) % 7) as f32 - 3.0;
        let half = |n: usize, by: usize| (0..n).map(|i| to_bf16(number(i, by))).collect::<Vec<u16>>();
        let count = rows * windows * features;
        let (x, dy) = (half(images * image, 5), half(images * count, 3));
        let argmax: Vec<u8> =
            (0..images * count).map(|i| if i % 5 == 0 { DEAD } else { (i * 11 % places) as u8 }).collect();
        for unit in units() {
            let mut sums = vec![1f32; SUMS];
            let call = TileGradientArgs {
                images,
                rows,
                windows,
                x: x.as_ptr(),
                image,
                row,
                step,
                offsets,
                taps,
                places,
                dy: dy.as_ptr(),
                argmax: argmax.as_ptr(),
                features,
                dy_image: count,
                argmax_image: count,
                all,
                sums: sums.as_mut_ptr(),
            };
            let rows_of_taps = (taps + 1).min(LANES);
            let registers = unit.configure(shapes(rows_of_taps, windows));
            // SAFETY: all arrays have the sizes of the call.
            unsafe { (unit.unpooled)(&call) };
            drop(registers);
            for (tap, f) in (0..rows_of_taps).flat_map(|t| (0..FEATURES).map(move |f| (t, f))) {
                let mut want = 1.0;
                for i in (0..images * count).filter(|i| i % features == f && (all || f < WIDTH)) {
                    let (image_, w) = (i / count, i % count / features);
                    let at = image_ * image + w / windows * row + w % windows * step;
                    let seen = |p: u8| {
                        if tap < taps { from_bf16(x[at + offsets[usize::from(p) * taps + tap]]) } else { 1.0 }
                    };
                    want += if argmax[i] < DEAD { seen(argmax[i]) * from_bf16(dy[i]) } else { 0.0 };
                }
                assert_eq!(sums[at(tap, f)], want, "{windows}×{step} {taps} taps, tap {tap}, feature {f}");
            }
        }
    }

    #[test]
    fn windows_and_taps_of_every_count() {
        let offsets = |places: &[usize], taps: &[usize]| -> Vec<usize> {
            places.iter().flat_map(|p| taps.iter().map(move |t| p + t)).collect()
        };
        let nine = [0, 1, 2, 28, 29, 30, 56, 57, 58];
        for all in [true, false] {
            check(13, 2, &offsets(&[0, 1, 28, 29], &nine), 9, all);
            check(18, 2, &offsets(&[0, 1, 2], &nine), 9, all);
            check(5, 6, &offsets(&[0, 3, 28, 31], &(0..16).collect::<Vec<_>>()), 16, all);
            check(1, 3, &offsets(&[0, 1], &[4]), 1, all);
        }
    }
}
