//! The gradient of a convolution's kernel from that of its pooled result, whose place in each window is remembered.
//!
//! For each place of a window there is a product of what the taps see there with the gradients that belong there. A
//! tile of gradients has a row for each of some neighbouring windows and zeros where the place is another one. Words of
//! it are two neighbouring features of one window, as in [`thin`](super::thin), so what the taps see comes twice.

use super::super::{LANES, LINE, Unit};
use super::{TileShape, Vectors, WIDTH};
use std::mem::MaybeUninit;

/// Most places of a window.
pub const PLACES: usize = 16;
/// Sums of one call: even and odd columns of two groups of features, [`LANES`] taps each.
pub const SUMS: usize = 4 * TILE;
/// Words of a tile.
const TILE: usize = LANES * LANES;
/// What a bias sees, in bf16.
const ONE: u32 = 0x3f80;

/// Rows of windows of some images.
pub struct Call<'a> {
    pub images: usize,
    pub rows: usize,
    pub windows: usize,
    /// The input of the first window, and elements to the next image, row of windows and window. Behind the last window
    /// of a row, as many as [`slack`] says can be read and are finite.
    pub x: *const u16,
    pub image: usize,
    pub row: usize,
    pub step: usize,
    /// What a tap sees at a place, relative to the window: taps of one place lie together. Where there is room behind
    /// the taps, ones follow as another one.
    pub offsets: &'a [usize],
    pub taps: usize,
    pub places: usize,
    /// Gradients and places of the first window and feature; windows are `features` apart, rows of them follow each
    /// other.
    pub dy: *const u16,
    pub place: *const u8,
    pub features: usize,
    /// Elements from image to image.
    pub dy_image: usize,
    pub place_image: usize,
    /// Whether there are two groups of features, not one.
    pub two: bool,
    /// [`SUMS`], which are added to.
    pub sums: *mut f32,
}

/// Elements that are read behind a row of windows so many elements apart.
pub fn slack(step: usize) -> usize {
    LANES * step.max(2) + 2
}

/// Windows of one tile: rows are cut as evenly as can be.
fn height(windows: usize) -> usize {
    windows.div_ceil(windows.div_ceil(LANES))
}

/// The registers for so many taps, ones among them, and windows of a row.
pub fn shapes(taps: usize, windows: usize) -> [TileShape; 8] {
    let height = height(windows);
    let (sums, taps, gradients) = ((taps, LINE), (taps, 4 * height), (height, LINE));
    [sums, sums, sums, sums, taps, taps, gradients, gradients]
}

/// What the taps see at one place, in the low and in the high half of words.
#[repr(C, align(64))]
struct Seen([[MaybeUninit<u32>; TILE]; 2]);

/// Gradients at one place, of two groups of features.
#[repr(C, align(64))]
struct Gradients([[MaybeUninit<u32>; TILE]; 2]);

/// See the module text.
///
/// # Safety
/// Operands and sums are as the call says; registers are configured as [`shapes`] says; the unit and the vectors are
/// available.
#[inline(always)]
pub(super) unsafe fn run<U: Unit, V: Vectors>(c: &Call<'_>) {
    let places = c.places;
    let mut seen = [const { Seen([[MaybeUninit::uninit(); TILE]; 2]) }; PLACES];
    let mut gradients = [const { Gradients([[MaybeUninit::uninit(); TILE]; 2]) }; PLACES];
    if c.taps < LANES {
        for (at, shift) in seen.iter_mut().flat_map(|s| s.0.iter_mut().zip([0, 16])) {
            at[c.taps * LANES..][..LANES].fill(MaybeUninit::new(ONE << shift));
        }
    }
    let (height, sums) = (height(c.windows), c.sums.cast::<u8>());
    let groups = 1 + usize::from(c.two);
    // SAFETY: by the caller's promise.
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
                    for p in 0..places {
                        let [low, high] = seen[p].0.each_mut().map(|s| s.as_mut_ptr().cast::<u32>());
                        for t in 0..c.taps {
                            let x = x.add(*c.offsets.get_unchecked(p * c.taps + t));
                            V::seen(x, c.step, low.add(t * LANES), high.add(t * LANES));
                        }
                    }
                    let at = (row * c.windows + from) * c.features;
                    let dy = c.dy.add(image * c.dy_image + at);
                    let place = c.place.add(image * c.place_image + at);
                    let to = gradients.as_mut_ptr().cast::<u32>();
                    for w in 0..height {
                        for g in 0..groups {
                            let at = w * c.features + g * WIDTH;
                            let to = to.add(g * TILE + w * LANES);
                            if w < n {
                                V::spread(dy.add(at), place.add(at), places, to, 2 * TILE);
                            } else {
                                (0..places).for_each(|p| to.add(p * 2 * TILE).write_bytes(0, LANES));
                            }
                        }
                    }
                    for (seen, gradients) in seen.iter().zip(&gradients).take(places) {
                        U::load::<4>(seen.0[0].as_ptr().cast(), LINE);
                        U::load::<5>(seen.0[1].as_ptr().cast(), LINE);
                        U::load::<6>(gradients.0[0].as_ptr().cast(), LINE);
                        U::bf16::<0, 4, 6>();
                        U::bf16::<1, 5, 6>();
                        if c.two {
                            U::load::<7>(gradients.0[1].as_ptr().cast(), LINE);
                            U::bf16::<2, 4, 7>();
                            U::bf16::<3, 5, 7>();
                        }
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

/// Where the sum of a tap and a feature of two groups is among [`SUMS`].
pub fn at(tap: usize, feature: usize) -> usize {
    (feature / WIDTH * 2 + feature % 2) * TILE + tap * LANES + feature % WIDTH / 2
}
