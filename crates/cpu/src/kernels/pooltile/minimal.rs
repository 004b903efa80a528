//! Windows of 2×2 pixels of a convolution by 3×3 taps from 16 products where the definition has 36: each is one tile of
//! Winograd's F(2×2, 3×3), of which `conv/winograd.rs` tells more.
//!
//! For inputs of few channels, whose transforms would not pay as products of matrices. A row of windows is transformed at
//! once, and vectors of filters take it up from there, without leaving the registers before the maximum. Additions are about
//! as many as products of one channel; cores do them beside each other.

use super::{Compare, Kind, STORED, Stored, WIDE, Windows, finish, finish_finite};
use crate::detect::Level;
use crate::kernels::conv::winograd::{self, PLACES};
use crate::kernels::gemm::Portable32;
use systole_compile::Relu;

#[cfg(target_arch = "x86_64")]
use crate::kernels::gemm::x86::{V8x32, V16x32};

/// Most channels. Several pay where there are 32 registers.
const MOST: usize = 8;

/// A part of a row of windows, transformed: of each of the 4 rows of pixels that it sees, transformed along columns, three
/// arrays over its elements: `e[i] - e[i + 2]`, `e[i] + e[i + 1]` and `e[i + 1] - e[i]`, counted in pixels. The last row has
/// the other sign.
const ARRAYS: usize = 3;
/// Elements of such an array. (Their places are then known when a kernel is compiled.)
const PART: usize = 128;
/// Elements from one row to the next.
const ROW: usize = ARRAYS * PART;
/// Windows that are computed together where there are several channels.
const TOGETHER: usize = 2;

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
            let [a, b] = [[0, 2], [1, 2], [2, 1], [3, 1]][row];
            let (a, b) = (r.x.add(a * r.down), r.x.add(b * r.down));
            let to = r.to.add(row * ROW);
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

/// Where column `J` of a window's transformed tile begins. `at`: the window's first element of a channel.
#[inline(always)]
unsafe fn column<const J: usize>(c: &Call<'_>, at: usize) -> *const f32 {
    let (right, array) = [(0, 0), (1, 1), (1, 2), (1, 0)][J];
    // SAFETY: the caller's window is there.
    unsafe { c.input.add(at + right * c.channels + array * PART) }
}

/// Of one channel, a column of `Aᵀ (u ⊙ v)` and a number.
#[inline(always)]
unsafe fn down<V: Compare, const J: usize>(
    c: &Call<'_>,
    at: usize,
    u: &[V; PLACES],
    start: Option<V>,
) -> [V; 2] {
    // SAFETY: by the caller's promise, the window's elements are there.
    unsafe {
        let x = column::<J>(c, at);
        let v = [V::splat(*x), V::splat(*x.add(ROW)), V::splat(*x.add(2 * ROW)), V::splat(*x.add(3 * ROW))];
        let first = match start {
            Some(start) => v[1].mul_add(u[4 + J], start),
            None => v[1].mul(u[4 + J]),
        };
        let second = v[2].mul(u[8 + J]);
        [v[0].mul_add(u[J], first.add(second)), v[3].mul_add(u[12 + J], first.sub(second))]
    }
}

/// The four pixels of one window from columns of its tile.
#[inline(always)]
unsafe fn pixels<V: Compare>([a, b, c, d]: [[V; 2]; 4]) -> [V; 4] {
    // SAFETY: the level is available.
    unsafe {
        [
            a[0].add(b[0].add(c[0])),
            b[0].sub(c[0]).sub(d[0]),
            a[1].add(b[1].add(c[1])),
            b[1].sub(c[1]).sub(d[1]),
        ]
    }
}

/// Of `W` windows, a column of `Aᵀ Σ (u ⊙ v)` over all channels.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once read worse.
#[inline(always)]
unsafe fn sums<V: Compare, const J: usize, const W: usize>(
    c: &Call<'_>,
    at: usize,
    kernel: *const f32,
) -> [[V; 2]; W] {
    // SAFETY: by the caller's promise, the windows' elements and the kernel's channels are there.
    unsafe {
        let zero = V::splat(0.0);
        let mut m = [[zero; 4]; W];
        for channel in 0..c.channels {
            let u = kernel.add((channel * PLACES + J) * V::LANES);
            let u = [
                V::load(u),
                V::load(u.add(4 * V::LANES)),
                V::load(u.add(8 * V::LANES)),
                V::load(u.add(12 * V::LANES)),
            ];
            for w in 0..W {
                let x = column::<J>(c, at + 2 * w * c.channels + channel);
                for i in 0..4 {
                    m[w][i] = V::splat(*x.add(i * ROW)).mul_add(u[i], m[w][i]);
                }
            }
        }
        let mut down = [[zero; 2]; W];
        for w in 0..W {
            let [a, b, c, d] = m[w];
            down[w] = [a.add(b.add(c)), d.add(b.sub(c))];
        }
        down
    }
}

/// `W` windows of several channels.
#[allow(clippy::needless_range_loop)] // As above.
#[inline(always)]
unsafe fn several<V: Compare, const W: usize, const WHOLE: bool, const KIND: Kind>(
    (w, c): (&Windows, &Call<'_>),
    (from, i): (usize, usize),
    floor: V,
) {
    // SAFETY: by the caller's promise, transformed operands and results cover the windows and filters.
    unsafe {
        let bias = if w.bias.is_null() { V::splat(0.0) } else { V::load(w.bias.add(from)) };
        let (kernel, at) = (c.kernel.add(from * c.channels * PLACES), 2 * i * c.channels);
        let mut x = [[bias; 4]; W];
        let column: [[V; 2]; W] = sums::<V, 0, W>(c, at, kernel);
        for k in 0..W {
            (x[k][0], x[k][2]) = (x[k][0].add(column[k][0]), x[k][2].add(column[k][1]));
        }
        let column: [[V; 2]; W] = sums::<V, 1, W>(c, at, kernel);
        for k in 0..W {
            (x[k][0], x[k][2]) = (x[k][0].add(column[k][0]), x[k][2].add(column[k][1]));
            (x[k][1], x[k][3]) = (x[k][1].add(column[k][0]), x[k][3].add(column[k][1]));
        }
        let column: [[V; 2]; W] = sums::<V, 2, W>(c, at, kernel);
        for k in 0..W {
            (x[k][0], x[k][2]) = (x[k][0].add(column[k][0]), x[k][2].add(column[k][1]));
            (x[k][1], x[k][3]) = (x[k][1].sub(column[k][0]), x[k][3].sub(column[k][1]));
        }
        let column: [[V; 2]; W] = sums::<V, 3, W>(c, at, kernel);
        for k in 0..W {
            (x[k][1], x[k][3]) = (x[k][1].sub(column[k][0]), x[k][3].sub(column[k][1]));
            store::<V, WHOLE, KIND>(w, x[k], bias, floor, (i + k, from));
        }
    }
}

/// The maximum and place of window `i` go out, for filters `from` on: a vector of them (`WHOLE`), or the rest.
#[inline(always)]
unsafe fn store<V: Compare, const WHOLE: bool, const KIND: Kind>(
    w: &Windows,
    x: [V; 4],
    bias: V,
    floor: V,
    (i, from): (usize, usize),
) {
    // SAFETY: by the caller's promise.
    unsafe {
        match WHOLE {
            true => finish_finite::<V, KIND>(w, x, bias, floor, i * w.row + from),
            false => finish::<V, KIND>(w, x, bias, i * w.row + from, w.columns - from),
        }
    }
}

/// One channel, whose kernel stays in registers.
#[inline(always)]
unsafe fn one<V: Compare, const WHOLE: bool, const KIND: Kind>(
    (w, c): (&Windows, &Call<'_>),
    from: usize,
    floor: V,
) {
    // SAFETY: by the caller's promise, transformed operands and results cover the windows and filters.
    unsafe {
        let bias = if w.bias.is_null() { V::splat(0.0) } else { V::load(w.bias.add(from)) };
        let kernel = c.kernel.add(from * PLACES);
        let mut u = [bias; PLACES];
        for (p, u) in u.iter_mut().enumerate() {
            *u = V::load(kernel.add(p * V::LANES));
        }
        for i in 0..w.windows {
            // The place in the middle is added to all four pixels.
            let x = pixels([
                down::<V, 0>(c, 2 * i, &u, None),
                down::<V, 1>(c, 2 * i, &u, Some(bias)),
                down::<V, 2>(c, 2 * i, &u, None),
                down::<V, 3>(c, 2 * i, &u, None),
            ]);
            store::<V, WHOLE, KIND>(w, x, bias, floor, (i, from));
        }
    }
}

/// A vector of filters, or the rest of one.
#[inline(always)]
unsafe fn filters<V: Compare, const ONE: bool, const WHOLE: bool, const KIND: Kind>(
    (w, c): (&Windows, &Call<'_>),
    from: usize,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let floor = V::splat(if w.relu == Relu::None { f32::NEG_INFINITY } else { 0.0 });
        if ONE {
            return one::<V, WHOLE, KIND>((w, c), from, floor);
        }
        let mut i = 0;
        while i + TOGETHER <= w.windows {
            several::<V, TOGETHER, WHOLE, KIND>((w, c), (from, i), floor);
            i += TOGETHER;
        }
        while i < w.windows {
            several::<V, 1, WHOLE, KIND>((w, c), (from, i), floor);
            i += 1;
        }
    }
}

/// `ONE`: there is one channel.
#[inline(always)]
unsafe fn windows<V: Compare, const ONE: bool, const KIND: Kind>(c: &Call<'_>) {
    // Copies that nothing that is stored changes.
    let (w, c) = (*c.windows, Call { ..*c });
    let mut from = 0;
    // SAFETY: by the caller's promise.
    unsafe {
        while from + V::LANES <= w.columns {
            filters::<V, ONE, true, KIND>((&w, &c), from);
            from += V::LANES;
        }
        if from < w.columns {
            filters::<V, ONE, false, KIND>((&w, &c), from);
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
kernels!(avx512, transform_avx512, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

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
        macro_rules! one {
            ($name:ident) => {
                if kind == WIDE { $name::<true, WIDE> } else { $name::<true, STORED> }
            };
        }
        let (run, transform, lanes): (WindowsFn, unsafe fn(&Row), usize) = match (level, channels) {
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 1) => (one!(avx512), transform_avx512, 16),
            #[cfg(target_arch = "x86_64")]
            (Level::Avx512, 2..=MOST) => {
                let run: WindowsFn =
                    if kind == WIDE { avx512::<false, WIDE> } else { avx512::<false, STORED> };
                (run, transform_avx512, 16)
            }
            #[cfg(target_arch = "x86_64")]
            (Level::Avx2, 1) => (one!(avx2), transform_avx2, 8),
            (Level::Portable, 1) => (one!(portable), transform_portable, 4),
            _ => return None,
        };
        let kernel = winograd::of_kernel(level);
        Some(Minimal { channels, lanes, run, transform, kernel })
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
