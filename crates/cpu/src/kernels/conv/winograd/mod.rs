//! Convolutions with windows of 3 by 3 from fewer products: F(2×2, 3×3) of Winograd's minimal filtering (Lavin and Gray,
//! "Fast Algorithms for Convolutional Neural Networks", 2015).
//!
//! The result is cut into tiles of 2 by 2 pixels. With `d` the 4 by 4 elements of the input that a tile sees and `g`
//! the window, the tile is `Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A`: 16 products where the definition has 36. Sums over channels are
//! taken of the products, so for each of the 16 places there is one product of matrices: `[tiles, C]` and `[C, F]`.
//! The kernel's gradient goes the way back: `Gᵀ [Σ (Bᵀ d B) ⊙ (A dy Aᵀ)] G`.
//!
//! The transforms add and halve, so that errors stay near those of the definition, relative to the sum of absolute
//! products; but an infinity spreads over its tile as a NaN. Programs whose letter counts are computed without them.

mod forward;
mod gradient;

pub use crate::kernels::conv::winograd::forward::Forward;
pub use crate::kernels::conv::winograd::gradient::KernelGradient;

use crate::kernels::conv::staging::Axis;
use crate::simd::level::Level;
use crate::simd::vector::{Portable32, Vector};
use systole_ir::TensorType;
use systole_ir::op::Convolution;

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86;

/// Places of a transformed tile.
pub const PLACES: usize = 16;
/// Elements between arrays of one place each, beside what they hold: so that the same element of all places does not
/// fall into one set of a cache.
const APART: usize = 16;
/// What transforming the kernel costs, one way, in multiply-adds for each pair of channel and feature.
const KERNEL: usize = 90;
/// Fewest channels and features, and most pairs of them: the transformed kernel takes 64 bytes for each.
const NARROWEST: usize = 16;
const MOST_PAIRS: usize = 1 << 20;

/// What one way through the transforms costs beside the products, in multiply-adds. Measured where the definition's
/// multiply-adds go through at full speed; it includes what short sums cost the products.
struct Costs {
    /// For each tile: of one channel and of one feature.
    channel: usize,
    feature: usize,
    /// For each strip: of one element of the transformed kernel or of its sums.
    strip: usize,
}

/// The sizes of a convolution's result, of its channels, and the strips that it is cut into.
struct Sizes {
    batch: usize,
    pixels: [usize; 2],
    channels: usize,
    features: usize,
    strips: usize,
}

impl Costs {
    /// Whether transforms pay for a convolution with windows of 3 by 3.
    fn pays(&self, s: &Sizes) -> bool {
        let tiles = s.batch * s.pixels[0].div_ceil(2) * s.pixels[1].div_ceil(2);
        let pairs = s.channels * s.features;
        let each = PLACES * pairs + self.channel * s.channels + self.feature * s.features;
        let own = tiles * each + (KERNEL + PLACES * self.strip * s.strips) * pairs;
        let direct = 9 * s.batch * s.pixels[0] * s.pixels[1] * pairs;
        s.channels.min(s.features) >= NARROWEST && pairs <= MOST_PAIRS && own < direct
    }
}

/// Whether a convolution of two spatial dimensions moves its window by single elements of an input without holes.
pub fn is_plain(c: &Convolution) -> bool {
    let ones = |of: &[usize]| of.iter().all(|&n| n == 1);
    c.padding.len() == 2 && ones(&c.strides) && ones(&c.lhs_dilation) && ones(&c.rhs_dilation)
}

/// The axes of `x: [B, H, W, C]` for a result of `rows` by `columns` pixels: a pixel of the stage is a tile.
fn axes(x: &TensorType, padding: &[[i64; 2]], result: [usize; 2], reach: usize) -> Vec<Axis> {
    let axis = |i: usize| Axis {
        size: x.shape[i + 1],
        holes: 1,
        low: -padding[i][0],
        unit: 1,
        step: 2,
        reach,
        count: result[i].div_ceil(2),
    };
    vec![axis(0), axis(1)]
}

/// Distance between transformed tiles of so many channels: whole vectors, and not a power of two times a line.
fn padded(channels: usize) -> usize {
    channels.next_multiple_of(16) + 16
}

/// Where tiles lie, and where their transforms go.
struct Tiles {
    /// Offsets of `count` tiles' first elements from `from`, distances between rows and columns, channels to transform.
    from: *const f32,
    offsets: *const usize,
    count: usize,
    row: usize,
    column: usize,
    channels: usize,
    /// Place `p` of tile `t` goes to `to + p · place + t · pitch`.
    to: *mut f32,
    pitch: usize,
    place: usize,
}

/// Transformed results of a strip, and where the tiles go: images, rows and columns of tiles, one after the other.
struct Pixels {
    from: *const f32,
    pitch: usize,
    place: usize,
    images: usize,
    rows: usize,
    columns: usize,
    /// Rows and columns of pixels, at most two for each tile.
    height: usize,
    width: usize,
    to: *mut f32,
    image: usize,
    line: usize,
    pixel: usize,
    features: usize,
    /// Added to each pixel, or null; whole vectors readable.
    bias: *const f32,
}

/// `rows` rows of elements of a window, transformed one way or the other: tap `t` at `taps + t · tap`, rows `row`
/// apart; place `p` at `places + p · place`, rows of whole vectors `wide` apart.
pub struct Window {
    pub taps: *mut f32,
    pub tap: usize,
    pub row: usize,
    pub places: *mut f32,
    pub place: usize,
    pub wide: usize,
    pub rows: usize,
    /// Elements of a row.
    pub elements: usize,
    /// Adds to what the taps hold.
    pub add: bool,
}

/// The transforms at one level.
#[derive(Clone, Copy)]
struct Transforms {
    /// `Bᵀ d B`
    input: unsafe fn(&Tiles),
    /// `A dy Aᵀ`
    cotangent: unsafe fn(&Tiles),
    /// `Aᵀ m A`
    result: unsafe fn(&Pixels),
    /// `G g Gᵀ`
    kernel: unsafe fn(&Window),
    /// `Gᵀ u G`
    gradient: unsafe fn(&Window),
}

impl Transforms {
    fn of(level: Level) -> Transforms {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => AVX512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => AVX2,
            _ => PORTABLE,
        }
    }
}

/// `G g Gᵀ`
pub fn of_kernel(level: Level) -> unsafe fn(&Window) {
    Transforms::of(level).kernel
}

// The functions below count by hand and take no closures, which would not be compiled for the level.

/// Calls `$do` with the offset of each vector of `$n` elements, and its number of elements.
macro_rules! vectors {
    ($v:ty, $n:expr, $at:ident, $lanes:ident => $do:block) => {{
        let mut $at = 0;
        while $at < $n {
            let $lanes = <$v>::LANES.min($n - $at);
            $do
            $at += <$v>::LANES;
        }
    }};
}

#[inline(always)]
unsafe fn get<V: Vector<T = f32>>(p: *const f32, lanes: usize) -> V {
    // SAFETY: the caller has `lanes` elements there; the level is available.
    unsafe { if lanes == V::LANES { V::load(p) } else { V::load_part(p, lanes) } }
}

#[inline(always)]
unsafe fn set<V: Vector<T = f32>>(v: V, p: *mut f32, lanes: usize) {
    // SAFETY: as for `get`.
    unsafe { if lanes == V::LANES { v.store(p) } else { v.store_part(p, lanes) } }
}

/// `a - b`
#[inline(always)]
unsafe fn sub<V: Vector<T = f32>>(a: V, b: V) -> V {
    // SAFETY: the level is available.
    unsafe { b.mul_add(V::splat(-1.0), a) }
}

/// Row `i` of `Bᵀ` times four elements `step` apart.
#[inline(always)]
unsafe fn across<V: Vector<T = f32>>(i: usize, x: *const f32, step: usize, lanes: usize) -> V {
    // SAFETY: the caller has the four elements.
    unsafe {
        let [a, b] = [[0, 2], [1, 2], [2, 1], [1, 3]][i];
        let (a, b) = (get::<V>(x.add(a * step), lanes), get::<V>(x.add(b * step), lanes));
        if i == 1 { a.add(b) } else { sub(a, b) }
    }
}

#[inline(always)]
unsafe fn input<V: Vector<T = f32>>(t: &Tiles) {
    // SAFETY: by the caller's promise, tiles and places hold all channels.
    unsafe {
        for tile in 0..t.count {
            let (from, to) = (t.from.add(*t.offsets.add(tile)), t.to.add(tile * t.pitch));
            vectors!(V, t.channels, at, lanes => {
                let mut i = 0;
                while i < 4 {
                    let x = from.add(at);
                    let a: V = across(i, x, t.row, lanes);
                    let b: V = across(i, x.add(t.column), t.row, lanes);
                    let c: V = across(i, x.add(2 * t.column), t.row, lanes);
                    let d: V = across(i, x.add(3 * t.column), t.row, lanes);
                    let to = to.add(at + 4 * i * t.place);
                    // Whole vectors: rows of places have room for them.
                    sub(a, c).store(to);
                    b.add(c).store(to.add(t.place));
                    sub(c, b).store(to.add(2 * t.place));
                    sub(b, d).store(to.add(3 * t.place));
                    i += 1;
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn cotangent<V: Vector<T = f32>>(t: &Tiles) {
    // SAFETY: as for `input`.
    unsafe {
        let zero = V::splat(0.0);
        for tile in 0..t.count {
            let (from, to) = (t.from.add(*t.offsets.add(tile)), t.to.add(tile * t.pitch));
            vectors!(V, t.channels, at, lanes => {
                let x = from.add(at);
                let (a, b): (V, V) = (get(x, lanes), get(x.add(t.column), lanes));
                let (c, d): (V, V) = (get(x.add(t.row), lanes), get(x.add(t.row + t.column), lanes));
                let left = [a, a.add(c), sub(a, c), sub(zero, c)];
                let right = [b, b.add(d), sub(b, d), sub(zero, d)];
                let mut i = 0;
                while i < 4 {
                    let to = to.add(at + 4 * i * t.place);
                    left[i].store(to);
                    left[i].add(right[i]).store(to.add(t.place));
                    sub(left[i], right[i]).store(to.add(2 * t.place));
                    sub(zero, right[i]).store(to.add(3 * t.place));
                    i += 1;
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn result<V: Vector<T = f32>>(r: &Pixels) {
    // SAFETY: by the caller's promise, places hold whole vectors of all features, pixels all features.
    unsafe {
        let mut from = r.from;
        for image in 0..r.images {
            for row in 0..r.rows {
                let line = r.to.wrapping_add(image * r.image + 2 * row * r.line);
                for column in 0..r.columns {
                    let to = line.wrapping_add(2 * column * r.pixel);
                    let (below, beside) = (2 * row + 1 < r.height, 2 * column + 1 < r.width);
                    vectors!(V, r.features, at, lanes => {
                        let mut sums = [V::splat(0.0); 4];
                        let mut rest = [V::splat(0.0); 4];
                        let mut j = 0;
                        while j < 4 {
                            let m = from.add(at + j * r.place);
                            let (a, b) = (V::load(m), V::load(m.add(4 * r.place)));
                            let (c, d) = (V::load(m.add(8 * r.place)), V::load(m.add(12 * r.place)));
                            sums[j] = a.add(b).add(c);
                            rest[j] = sub(sub(b, c), d);
                            j += 1;
                        }
                        let bias = if r.bias.is_null() { V::splat(0.0) } else { V::load(r.bias.add(at)) };
                        let to = to.wrapping_add(at);
                        let mut k = 0;
                        while k < 2 {
                            let [a, b, c, d] = if k == 0 { sums } else { rest };
                            if k == 0 || below {
                                let to = to.wrapping_add(k * r.line);
                                set(a.add(b).add(c).add(bias), to, lanes);
                                if beside {
                                    set(sub(sub(b, c), d).add(bias), to.wrapping_add(r.pixel), lanes);
                                }
                            }
                            k += 1;
                        }
                    });
                    from = from.wrapping_add(r.pitch);
                }
            }
        }
    }
}

/// `G` times three vectors.
#[inline(always)]
unsafe fn four<V: Vector<T = f32>>(a: V, b: V, c: V) -> [V; 4] {
    // SAFETY: the level is available.
    unsafe {
        let half = V::splat(0.5);
        let (ends, middle) = (a.add(c), b.mul_add(half, V::splat(0.0)));
        [a, ends.mul_add(half, middle), ends.mul_add(half, sub(V::splat(0.0), middle)), c]
    }
}

/// `Gᵀ` times four vectors.
#[inline(always)]
unsafe fn three<V: Vector<T = f32>>(a: V, b: V, c: V, d: V) -> [V; 3] {
    // SAFETY: the level is available.
    unsafe {
        let half = V::splat(0.5);
        let (sum, difference) = (b.add(c), sub(b, c));
        [sum.mul_add(half, a), difference.mul_add(half, V::splat(0.0)), sum.mul_add(half, d)]
    }
}

#[inline(always)]
unsafe fn kernel<V: Vector<T = f32>>(w: &Window) {
    // SAFETY: by the caller's promise, taps and places hold all rows, both of whole vectors here.
    unsafe {
        for row in 0..w.rows {
            let (taps, places) = (w.taps.add(row * w.row), w.places.add(row * w.wide));
            vectors!(V, w.elements, at, lanes => {
                let _ = lanes;
                let mut down = [[V::splat(0.0); 4]; 3];
                let mut j = 0;
                while j < 3 {
                    let tap = taps.add(at + j * w.tap);
                    down[j] =
                        four(V::load(tap), V::load(tap.add(3 * w.tap)), V::load(tap.add(6 * w.tap)));
                    j += 1;
                }
                let mut i = 0;
                while i < 4 {
                    let places = places.add(at + 4 * i * w.place);
                    let [a, b, c, d] = four(down[0][i], down[1][i], down[2][i]);
                    a.store(places);
                    b.store(places.add(w.place));
                    c.store(places.add(2 * w.place));
                    d.store(places.add(3 * w.place));
                    i += 1;
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn gradient<V: Vector<T = f32>>(w: &Window) {
    // SAFETY: by the caller's promise, places hold whole vectors of all rows, taps all elements.
    unsafe {
        for row in 0..w.rows {
            let (taps, places) = (w.taps.add(row * w.row), w.places.add(row * w.wide));
            vectors!(V, w.elements, at, lanes => {
                let mut down = [[V::splat(0.0); 3]; 4];
                let mut j = 0;
                while j < 4 {
                    let p = places.add(at + j * w.place);
                    let (a, b) = (V::load(p), V::load(p.add(4 * w.place)));
                    down[j] = three(a, b, V::load(p.add(8 * w.place)), V::load(p.add(12 * w.place)));
                    j += 1;
                }
                let mut i = 0;
                while i < 3 {
                    let sums = three(down[0][i], down[1][i], down[2][i], down[3][i]);
                    let mut j = 0;
                    while j < 3 {
                        let tap = taps.add(at + (3 * i + j) * w.tap);
                        let before = if w.add { get::<V>(tap, lanes) } else { V::splat(0.0) };
                        set(before.add(sums[j]), tap, lanes);
                        j += 1;
                    }
                    i += 1;
                }
            });
        }
    }
}

macro_rules! transforms {
    ($name:ident, $v:ty $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[doc = $feature])?
        const $name: Transforms = {
            transforms!(@of input, Tiles, $v $(, $feature)?);
            transforms!(@of cotangent, Tiles, $v $(, $feature)?);
            transforms!(@of result, Pixels, $v $(, $feature)?);
            transforms!(@of kernel, Window, $v $(, $feature)?);
            transforms!(@of gradient, Window, $v $(, $feature)?);
            Transforms { input, cotangent, result, kernel, gradient }
        };
    };
    (@of $f:ident, $t:ty, $v:ty $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $f(t: &$t) {
            // SAFETY: the caller's promises are those of the loop; the level is available.
            unsafe { crate::kernels::conv::winograd::$f::<$v>(t) }
        }
    };
}

transforms!(PORTABLE, Portable32);
transforms!(AVX2, x86::V8x32, "avx2,fma");
transforms!(AVX512, x86::V16x32, "avx512f,avx2,fma");
