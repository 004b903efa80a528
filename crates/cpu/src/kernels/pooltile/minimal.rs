//! Windows of 2×2 pixels of a convolution by 3×3 taps from 16 products where the definition has 36: each is one tile of
//! Winograd's F(2×2, 3×3), of which `conv/winograd.rs` tells more.
//!
//! For inputs of few channels, whose transforms would not pay as products of matrices. A row of windows is transformed at
//! once, and vectors of filters take it up from there, without leaving the registers before the maximum. There are about as
//! many additions as products, which cores do beside each other.

use super::{Compare, Kind, STORED, Stored, WIDE, Windows, finish, finish_finite};
use crate::detect::Level;
use crate::kernels::conv::winograd::{self, PLACES};
use crate::kernels::gemm::Portable32;
use systole_compile::Relu;

#[cfg(target_arch = "x86_64")]
use crate::kernels::gemm::x86::{V8x32, V16x32};

/// Most channels.
const MOST: usize = 8;

/// A part of a row of windows, transformed: of each of the 4 rows of pixels that it sees, transformed along columns, three
/// arrays over its elements: `e[i] - e[i + 2]`, `e[i] + e[i + 1]` and `e[i + 1] - e[i]`, counted in pixels.
const ARRAYS: usize = 3;
/// Elements of such an array. (Their places are then known when a kernel is compiled.)
const PART: usize = 128;

/// One call: what [`Windows`] says of results, bias and sizes, and transformed operands.
struct Call<'a> {
    windows: &'a Windows,
    channels: usize,
    /// [`PLACES`] vectors for each vector of filters and channel.
    kernel: *const f32,
    input: *const f32,
}

/// What of an input is transformed.
struct Row {
    x: *const f32,
    /// Elements of a row of pixels, and from one to the next.
    count: usize,
    down: usize,
    channels: usize,
    to: *mut f32,
}

#[inline(always)]
unsafe fn transform<V: Compare>(r: &Row) {
    // SAFETY: the caller has four rows of `count` elements and two pixels there, and room for whole vectors.
    unsafe {
        let mut row = 0;
        while row < 4 {
            let [a, b] = [[0, 2], [1, 2], [2, 1], [1, 3]][row];
            let (a, b) = (r.x.add(a * r.down), r.x.add(b * r.down));
            let to = r.to.add(row * ARRAYS * PART);
            let mut at = 0;
            while at < r.count {
                let lanes = V::LANES.min(r.count - at);
                let mut e = [V::splat(0.0); 3];
                let mut k = 0;
                while k < 3 {
                    let at = at + k * r.channels;
                    let (a, b): (V, V) = match lanes == V::LANES {
                        true => (V::load(a.add(at)), V::load(b.add(at))),
                        false => (V::load_part(a.add(at), lanes), V::load_part(b.add(at), lanes)),
                    };
                    e[k] = if row == 1 { a.add(b) } else { a.sub(b) };
                    k += 1;
                }
                e[0].sub(e[2]).store(to.add(at));
                e[0].add(e[1]).store(to.add(at + PART));
                e[1].sub(e[0]).store(to.add(at + 2 * PART));
                at += V::LANES;
            }
            row += 1;
        }
    }
}

/// `Aᵀ (u ⊙ v) A` and a number: the four pixels of one window. `left`, `right`: the first elements of its two pixels in the
/// arrays.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once read worse.
#[inline(always)]
unsafe fn tile<V: Compare>(left: *const f32, right: *const f32, u: &[V; PLACES], start: V) -> [V; 4] {
    // SAFETY: by the caller's promise, the window's elements are there.
    unsafe {
        let column = [left, right.add(PART), right.add(2 * PART), right];
        let zero = V::splat(0.0);
        let mut down = [[zero; 2]; 4];
        for j in 0..4 {
            let mut v = [zero; 4];
            for i in 0..4 {
                v[i] = V::splat(*column[j].add(i * ARRAYS * PART));
            }
            // The place in the middle is added to all four pixels.
            let first = if j == 1 { v[1].mul_add(u[4 + j], start) } else { v[1].mul(u[4 + j]) };
            let second = v[2].mul(u[8 + j]);
            let (above, below) = (v[0].mul_add(u[j], first.add(second)), v[3].mul(u[12 + j]));
            down[j] = [above, first.sub(second).sub(below)];
        }
        let mut pixels = [zero; 4];
        for i in 0..2 {
            let [a, b, c, d] = [down[0][i], down[1][i], down[2][i], down[3][i]];
            pixels[2 * i] = a.add(b.add(c));
            pixels[2 * i + 1] = b.sub(c).sub(d);
        }
        pixels
    }
}

/// The four pixels of one window: sums over all channels, and a number. `u`: the first channel's transformed kernel.
#[inline(always)]
unsafe fn pixels<V: Compare, const ONE: bool>(
    c: &Call<'_>,
    (at, kernel): (usize, *const f32),
    u: &[V; PLACES],
    start: V,
) -> [V; 4] {
    // SAFETY: by the caller's promise, all channels are there.
    unsafe {
        let (left, right) = (c.input.add(at), c.input.add(at + c.channels));
        let mut pixels = tile(left, right, u, start);
        if !ONE {
            for channel in 1..c.channels {
                let u = load(kernel.add(channel * PLACES * V::LANES));
                let more = tile(left.add(channel), right.add(channel), &u, V::splat(0.0));
                for k in 0..4 {
                    pixels[k] = pixels[k].add(more[k]);
                }
            }
        }
        pixels
    }
}

#[allow(clippy::needless_range_loop)] // As above.
#[inline(always)]
unsafe fn load<V: Compare>(kernel: *const f32) -> [V; PLACES] {
    // SAFETY: the caller has a vector for each place there.
    unsafe {
        let mut u = [V::splat(0.0); PLACES];
        for p in 0..PLACES {
            u[p] = V::load(kernel.add(p * V::LANES));
        }
        u
    }
}

/// `ONE`: there is one channel, whose kernel stays in registers.
#[inline(always)]
unsafe fn windows<V: Compare, const ONE: bool, const KIND: Kind>(c: &Call<'_>) {
    // Known to be changed by nothing that is stored.
    let (w, c) = (*c.windows, Call { ..*c });
    // SAFETY: by the caller's promise, transformed operands and results cover the windows and filters.
    unsafe {
        let floor = V::splat(if w.relu == Relu::None { f32::NEG_INFINITY } else { 0.0 });
        let mut from = 0;
        while from < w.columns {
            let bias = if w.bias.is_null() { V::splat(0.0) } else { V::load(w.bias.add(from)) };
            let kernel = c.kernel.add(from * c.channels * PLACES);
            let u = load::<V>(kernel);
            let n = V::LANES.min(w.columns - from);
            // Two loops: what the second takes would not leave the kernel in registers.
            if n == V::LANES {
                for i in 0..w.windows {
                    let x = pixels::<V, ONE>(&c, (2 * i * c.channels, kernel), &u, bias);
                    finish_finite::<V, KIND>(&w, x, bias, floor, i * w.row + from);
                }
            } else {
                for i in 0..w.windows {
                    let x = pixels::<V, ONE>(&c, (2 * i * c.channels, kernel), &u, bias);
                    finish::<V, KIND>(&w, x, bias, i * w.row + from, n);
                }
            }
            from += V::LANES;
        }
    }
}

type WindowsFn = unsafe fn(&Call<'_>);

macro_rules! kernels {
    ($name:ident, $transform:ident, $v:ty $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const ONE: bool, const KIND: Kind>(c: &Call<'_>) {
            // SAFETY: the caller's promises are those of `windows`.
            unsafe { windows::<$v, ONE, KIND>(c) }
        }
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $transform(r: &Row) {
            // SAFETY: the caller's promises are those of `transform`.
            unsafe { transform::<$v>(r) }
        }
    };
}
kernels!(portable, transform_portable, Portable32);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, transform_avx2, V8x32, "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, transform_avx512, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2");

/// The kernels of a convolution.
pub struct Minimal {
    channels: usize,
    lanes: usize,
    run: WindowsFn,
    transform: unsafe fn(&Row),
    kernel: unsafe fn(&winograd::Window),
}

impl Minimal {
    /// For a kernel of 3×3 taps and windows that touch each other; `None` where these would not pay.
    pub fn new(channels: usize, stored: Stored, level: Level) -> Option<Minimal> {
        let kind = match stored {
            Stored::Wide => WIDE,
            Stored::Once => STORED,
            Stored::Rounded | Stored::Pairs => return None,
        };
        let one = channels == 1;
        macro_rules! which {
            ($name:ident) => {
                match (one, kind) {
                    (true, WIDE) => $name::<true, WIDE>,
                    (false, WIDE) => $name::<false, WIDE>,
                    (true, _) => $name::<true, STORED>,
                    (false, _) => $name::<false, STORED>,
                }
            };
        }
        let (run, transform, lanes): (WindowsFn, unsafe fn(&Row), usize) = match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => (which!(avx512), transform_avx512, 16),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => (which!(avx2), transform_avx2, 8),
            _ => (which!(portable), transform_portable, 4),
        };
        let kernel = winograd::of_kernel(level);
        (1..=MOST).contains(&channels).then_some(Minimal { channels, lanes, run, transform, kernel })
    }

    /// Bytes of a part of a row of windows, transformed.
    pub const PART_BYTES: usize = 4 * ARRAYS * PART * 4;

    /// Windows of a part at most.
    pub fn most(&self) -> usize {
        PART / (2 * self.channels)
    }

    /// Elements of the transformed kernel for each filter, in whole vectors of these.
    pub fn elements(&self) -> usize {
        self.channels * PLACES
    }

    /// Transforms a panel of a kernel: rows of `columns` filters, whole vectors, for each tap and channel.
    ///
    /// # Safety
    /// The panel is there, and room for [`elements`](Minimal::elements) of each filter.
    pub unsafe fn kernel(&self, panel: *const f32, columns: usize, to: *mut f32) {
        for at in (0..columns).step_by(self.lanes) {
            let w = winograd::Window {
                taps: panel.wrapping_add(at).cast_mut(),
                tap: self.channels * columns,
                row: columns,
                places: to.wrapping_add(at * self.elements()),
                place: self.lanes,
                wide: PLACES * self.lanes,
                rows: self.channels,
                elements: self.lanes,
                add: false,
            };
            // SAFETY: by the caller's promise.
            unsafe { (self.kernel)(&w) };
        }
    }

    /// Transforms some windows of a row, whose first element is at `x`, with `down` elements from row to row.
    ///
    /// # Safety
    /// All that the windows see is there, and room for [`PART_BYTES`](Minimal::PART_BYTES); there are at most
    /// [`most`](Minimal::most).
    pub unsafe fn row(&self, x: *const f32, down: usize, windows: usize, to: *mut f32) {
        let channels = self.channels;
        // SAFETY: by the caller's promise.
        unsafe { (self.transform)(&Row { x, count: 2 * windows * channels, down, channels, to }) };
    }

    /// The windows of a transformed part by a panel of transformed filters.
    ///
    /// # Safety
    /// As [`Windows`] says of its results; operands are transformed as above.
    pub unsafe fn windows(&self, windows: &Windows, kernel: *const f32, input: *const f32) {
        // SAFETY: by the caller's promise; the level was available when the kernel was chosen.
        unsafe { (self.run)(&Call { windows, channels: self.channels, kernel, input }) };
    }
}
