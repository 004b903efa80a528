//! Winograd transforms for convolution F(2×2, 3×3) and their gradients, vectorized over channels.
//!
//! Notation as in Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015): the input transform `Bᵀ d
//! B`, the filter transform `G g Gᵀ`, the output transform `Aᵀ m A`; and for gradients `A dy Aᵀ` and `Gᵀ u G`. The
//! batched GEMM between the transforms is in the convolution kernels.

use crate::simd::level::Level;
use crate::simd::vector::{Portable32, Vector};

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86;

/// Elements of a Winograd-transformed tile, 4×4.
pub const COMPONENTS: usize = 16;

/// Input tiles of a Winograd transform, and the destination. Strides are in elements.
pub struct InputTiles {
    /// First elements of the `count` tiles, as offsets from `from`; row and column strides; channels to transform.
    pub from: *const f32,
    pub offsets: *const usize,
    pub count: usize,
    pub row: usize,
    pub column: usize,
    pub channels: usize,
    /// Component `p` of tile `t` is stored at `to + p · component + t · pitch`.
    pub to: *mut f32,
    pub pitch: usize,
    pub component: usize,
}

/// Transformed results of a strip, and the destination of their output tiles. Tiles `[images, rows, columns]` are
/// consecutive. Strides are in elements.
pub struct OutputTiles {
    pub from: *const f32,
    pub pitch: usize,
    pub component: usize,
    pub images: usize,
    pub rows: usize,
    pub columns: usize,
    /// Output rows and columns: at most two per tile.
    pub height: usize,
    pub width: usize,
    pub to: *mut f32,
    pub image: usize,
    pub line: usize,
    pub pixel: usize,
    pub features: usize,
    /// `bias[features]`, readable in whole vectors; null if none.
    pub bias: *const f32,
}

/// 3×3 filters and their transforms, `rows` by `elements`. Tap `t` is at `taps + t · tap`, rows `row` apart; component
/// `p` is at `components + p · component`, rows of whole vectors `wide` apart.
pub struct FilterTransforms {
    pub taps: *mut f32,
    pub tap: usize,
    pub row: usize,
    pub components: *mut f32,
    pub component: usize,
    pub wide: usize,
    pub rows: usize,
    /// Elements per row.
    pub elements: usize,
    /// Whether to add to the taps (beta = 1).
    pub add: bool,
}

/// Function table of the Winograd transforms at one instruction-set level.
#[derive(Clone, Copy)]
pub struct WinogradTransforms {
    /// Input transform `Bᵀ d B`.
    pub input: unsafe fn(&InputTiles),
    /// Transform of the output gradient, `A dy Aᵀ`.
    pub cotangent: unsafe fn(&InputTiles),
    /// Output transform `Aᵀ m A`.
    pub result: unsafe fn(&OutputTiles),
    /// Filter transform `G g Gᵀ`.
    pub kernel: unsafe fn(&FilterTransforms),
    /// Transform of the filter gradient, `Gᵀ u G`.
    pub gradient: unsafe fn(&FilterTransforms),
}

impl WinogradTransforms {
    pub fn of(level: Level) -> WinogradTransforms {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => AVX512,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => AVX2,
            _ => PORTABLE,
        }
    }
}

// The functions below use index loops and no closures: a closure would not inherit the target features.

/// Runs `$do` for each vector of `$n` elements, with its offset and number of lanes.
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

/// Returns `a − b`.
#[inline(always)]
unsafe fn sub<V: Vector<T = f32>>(a: V, b: V) -> V {
    // SAFETY: the level is available.
    unsafe { b.mul_add(V::splat(-1.0), a) }
}

/// Returns row `i` of `Bᵀ` times four elements `step` apart.
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
unsafe fn input<V: Vector<T = f32>>(t: &InputTiles) {
    // SAFETY: the caller guarantees that tiles and components hold all channels.
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
                    let to = to.add(at + 4 * i * t.component);
                    // Stored as whole vectors: rows of components have room for them.
                    sub(a, c).store(to);
                    b.add(c).store(to.add(t.component));
                    sub(c, b).store(to.add(2 * t.component));
                    sub(b, d).store(to.add(3 * t.component));
                    i += 1;
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn cotangent<V: Vector<T = f32>>(t: &InputTiles) {
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
                    let to = to.add(at + 4 * i * t.component);
                    left[i].store(to);
                    left[i].add(right[i]).store(to.add(t.component));
                    sub(left[i], right[i]).store(to.add(2 * t.component));
                    sub(zero, right[i]).store(to.add(3 * t.component));
                    i += 1;
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn result<V: Vector<T = f32>>(r: &OutputTiles) {
    // SAFETY: the caller guarantees that components hold whole vectors of all features, and pixels all features.
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
                            let m = from.add(at + j * r.component);
                            let (a, b) = (V::load(m), V::load(m.add(4 * r.component)));
                            let (c, d) = (V::load(m.add(8 * r.component)), V::load(m.add(12 * r.component)));
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

/// Returns `G` times three vectors.
#[inline(always)]
unsafe fn four<V: Vector<T = f32>>(a: V, b: V, c: V) -> [V; 4] {
    // SAFETY: the level is available.
    unsafe {
        let half = V::splat(0.5);
        let (ends, middle) = (a.add(c), b.mul_add(half, V::splat(0.0)));
        [a, ends.mul_add(half, middle), ends.mul_add(half, sub(V::splat(0.0), middle)), c]
    }
}

/// Returns `Gᵀ` times four vectors.
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
unsafe fn kernel<V: Vector<T = f32>>(w: &FilterTransforms) {
    // SAFETY: the caller guarantees that taps and components hold all rows, both of whole vectors here.
    unsafe {
        for row in 0..w.rows {
            let (taps, components) = (w.taps.add(row * w.row), w.components.add(row * w.wide));
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
                    let components = components.add(at + 4 * i * w.component);
                    let [a, b, c, d] = four(down[0][i], down[1][i], down[2][i]);
                    a.store(components);
                    b.store(components.add(w.component));
                    c.store(components.add(2 * w.component));
                    d.store(components.add(3 * w.component));
                    i += 1;
                }
            });
        }
    }
}

#[inline(always)]
unsafe fn gradient<V: Vector<T = f32>>(w: &FilterTransforms) {
    // SAFETY: the caller guarantees that components hold whole vectors of all rows, and taps all elements.
    unsafe {
        for row in 0..w.rows {
            let (taps, components) = (w.taps.add(row * w.row), w.components.add(row * w.wide));
            vectors!(V, w.elements, at, lanes => {
                let mut down = [[V::splat(0.0); 3]; 4];
                let mut j = 0;
                while j < 4 {
                    let p = components.add(at + j * w.component);
                    let (a, b) = (V::load(p), V::load(p.add(4 * w.component)));
                    down[j] = three(a, b, V::load(p.add(8 * w.component)), V::load(p.add(12 * w.component)));
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
        const $name: WinogradTransforms = {
            transforms!(@of input, InputTiles, $v $(, $feature)?);
            transforms!(@of cotangent, InputTiles, $v $(, $feature)?);
            transforms!(@of result, OutputTiles, $v $(, $feature)?);
            transforms!(@of kernel, FilterTransforms, $v $(, $feature)?);
            transforms!(@of gradient, FilterTransforms, $v $(, $feature)?);
            WinogradTransforms { input, cotangent, result, kernel, gradient }
        };
    };
    (@of $f:ident, $t:ty, $v:ty $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $f(t: &$t) {
            // SAFETY: the contract is that of the loop; the level is available.
            unsafe { crate::simd::winograd::$f::<$v>(t) }
        }
    };
}

transforms!(PORTABLE, Portable32);
transforms!(AVX2, x86::V8x32, "avx2,fma");
transforms!(AVX512, x86::V16x32, "avx512f,avx2,fma");
