//! Int8 depthwise convolution and pooling kernels, one result row at a time.

use crate::simd::int8::i32x16::{I32x16, PortableI32x16};
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::level::Level;
use std::ops::Range;

/// Instantiates a loop over [`I32x16`] for each vector level.
macro_rules! instances {
    ($(#[$doc:meta])* $name:ident($args:ty) = $run:ident) => {
        $(#[$doc])*
        ///
        /// The returned function requires that the machine has the level and that the arguments meet their contract.
        pub fn $name(level: Level) -> unsafe fn(&$args) {
            unsafe fn plain(args: &$args) {
                // SAFETY: guaranteed by the caller.
                unsafe { $run::<PortableI32x16>(args) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c")]
            unsafe fn avx2(args: &$args) {
                // SAFETY: guaranteed by the caller.
                unsafe { $run::<$crate::simd::int8::i32x16::Avx2I32x16>(args) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
            unsafe fn avx512(args: &$args) {
                // SAFETY: guaranteed by the caller.
                unsafe { $run::<std::arch::x86_64::__m512i>(args) }
            }
            match level.vectors() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2,
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512,
                _ => plain,
            }
        }
    };
}
pub(super) use instances;

/// Maximum taps of an int8 depthwise window.
pub const MOST_TAPS: usize = 128;

/// Window geometry along one dimension of an image. All fields but `before` are at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int8WindowDim {
    /// Pixels of the image.
    pub size: usize,
    /// Taps of a window.
    pub window: usize,
    /// Pixels between windows.
    pub stride: usize,
    /// Pixels between taps.
    pub dilation: usize,
    /// Padding before the image.
    pub before: usize,
    /// Number of windows.
    pub positions: usize,
}

impl Int8WindowDim {
    /// Returns the pixel of tap `k` of window `at`, or `None` if it is padding.
    #[inline(always)]
    pub fn place(&self, at: usize, k: usize) -> Option<usize> {
        (at * self.stride + k * self.dilation).checked_sub(self.before).filter(|&p| p < self.size)
    }

    /// Returns the pixels that window `at` covers, without dilation.
    #[inline(always)]
    pub fn inside(&self, at: usize) -> Range<usize> {
        let first = at * self.stride;
        let end = (first + self.window).saturating_sub(self.before).min(self.size);
        first.saturating_sub(self.before).min(end)..end
    }
}

/// Arguments of [`depth_row`]: one result row of a depthwise convolution.
pub struct DepthwiseRow<'a> {
    /// Image row for each window row; null for padding.
    pub rows: &'a [*const i8],
    pub columns: Int8WindowDim,
    pub channels: usize,
    /// A pixel filled with the zero point.
    pub outside: *const i8,
    /// `[taps, channels]`, channels padded to whole panels: int16 values in 32 bits, upper half 0.
    pub weights: *const i32,
    pub padded: usize,
    pub ends: &'a RequantizeParams,
    pub to: *mut i8,
}

/// Finds the pixel address of each tap of window `ox`.
#[inline(always)]
fn place(d: &DepthwiseRow<'_>, ox: usize, taps: &mut [*const i8; MOST_TAPS]) {
    for (ky, row) in d.rows.iter().enumerate() {
        for kx in 0..d.columns.window {
            let place = d.columns.place(ox, kx).filter(|_| !row.is_null());
            let tap = place.map_or(d.outside, |px| row.wrapping_add(px * d.channels));
            taps[ky * d.columns.window + kx] = tap;
        }
    }
}

#[inline(always)]
unsafe fn depth<L: I32x16>(d: &DepthwiseRow<'_>) {
    let mut taps = [d.outside; MOST_TAPS];
    let count = d.rows.len() * d.columns.window;
    // Between two adjacent inner windows all taps move by the same distance.
    let (mut was_inside, next) = (false, d.columns.stride * d.channels);
    let is_whole = d.rows.iter().all(|row| !row.is_null());
    for ox in 0..d.columns.positions {
        let is_inside =
            d.columns.place(ox, 0).is_some() && d.columns.place(ox, d.columns.window - 1).is_some();
        if is_inside && was_inside && is_whole {
            for tap in &mut taps[..count] {
                *tap = tap.wrapping_add(next);
            }
        } else {
            place(d, ox, &mut taps);
        }
        was_inside = is_inside;
        for c in (0..d.channels).step_by(16) {
            let n = d.channels - c;
            // SAFETY: taps are pixels with all channels; weights and requantization parameters have whole panels.
            unsafe {
                let mut sum = L::load(d.ends.bias.as_ptr().add(c));
                let mut w = d.weights.add(c);
                for tap in &taps[..count] {
                    sum = sum.add(L::widen(tap.add(c), n).times_short(L::load(w)));
                    w = w.add(d.padded);
                }
                let y = d.ends.sixteen::<L>(c).of(sum);
                y.narrow(d.to.add(ox * d.channels + c), n);
            }
        }
    }
}
instances!(
    /// Returns the depthwise convolution kernel for a level.
    depth_row(DepthwiseRow<'_>) = depth
);

/// Reduction of an int8 pooling window: maximum, mean or sum.
pub enum PoolReduce<'a> {
    /// Maximum, clamped to a range.
    Max(i32, i32),
    /// Mean, clamped to a range.
    Mean(i32, i32),
    /// Scaled sum, with the same requantization parameters for all channels (one panel).
    Sum(&'a RequantizeParams),
}

/// Arguments of [`pool_row`]: one result row of a pooling.
pub struct Int8PoolRow<'a> {
    /// Image rows that the windows cover; at least one.
    pub rows: &'a [*const i8],
    pub columns: Int8WindowDim,
    pub channels: usize,
    pub fold: PoolReduce<'a>,
    pub to: *mut i8,
}

/// Sums a window of one channel, sixteen pixels at a time.
#[inline(always)]
unsafe fn sum_of_one<L: I32x16>(rows: &[*const i8], inside: Range<usize>) -> i32 {
    let (mut all, mut lanes) = (L::splat(0), [0i32; 16]);
    // SAFETY: the rows have these pixels.
    unsafe {
        for row in rows {
            for px in inside.clone().step_by(16) {
                all = all.add(L::widen(row.add(px), inside.end - px));
            }
        }
        all.store(lanes.as_mut_ptr());
    }
    lanes.iter().fold(0, |sum, v| sum.wrapping_add(*v))
}

/// Reduces sixteen channels of a window, from `c` on.
#[inline(always)]
unsafe fn folded<L: I32x16, const MAX: bool>(
    p: &Int8PoolRow<'_>,
    inside: &Range<usize>,
    c: usize,
    start: L,
) -> L {
    let mut all = start;
    for row in p.rows {
        for px in inside.clone() {
            // SAFETY: the rows have these pixels, with all channels.
            let x = unsafe { L::widen(row.add(px * p.channels + c), p.channels - c) };
            all = if MAX { all.max(x) } else { all.add(x) };
        }
    }
    all
}

#[inline(always)]
unsafe fn pool<L: I32x16>(p: &Int8PoolRow<'_>) {
    for ox in 0..p.columns.positions {
        let inside = p.columns.inside(ox);
        if let (1, PoolReduce::Sum(ends)) = (p.channels, &p.fold) {
            // SAFETY: as below.
            unsafe {
                let sum = sum_of_one::<L>(p.rows, inside);
                let y = ends.sixteen::<L>(0).of(L::load(ends.bias.as_ptr()).add(L::splat(sum)));
                // Not `narrow(…, 1)`: LLVM (Rust 1.95) turns a masked store whose mask is known to be 1 into a
                // four-byte store.
                let mut lanes = [0i32; 16];
                y.store(lanes.as_mut_ptr());
                p.to.add(ox).write(lanes[0] as i8);
            }
            continue;
        }
        for c in (0..p.channels).step_by(16) {
            let n = p.channels - c;
            // SAFETY: the rows have these pixels, with all channels.
            unsafe {
                let y = match &p.fold {
                    PoolReduce::Max(low, high) => {
                        let greatest = folded::<L, true>(p, &inside, c, L::splat(-128));
                        greatest.max(L::splat(*low)).min(L::splat(*high))
                    }
                    PoolReduce::Mean(low, high) => {
                        let n = (p.rows.len() * inside.len()).max(1) as i32;
                        let sum = folded::<L, false>(p, &inside, c, L::splat(0));
                        sum.mean_of(n).max(L::splat(*low)).min(L::splat(*high))
                    }
                    PoolReduce::Sum(ends) => {
                        let sum = folded::<L, false>(p, &inside, c, L::load(ends.bias.as_ptr()));
                        ends.sixteen::<L>(0).of(sum)
                    }
                };
                y.narrow(p.to.add(ox * p.channels + c), n);
            }
        }
    }
}
instances!(
    /// Returns the pooling kernel for a level.
    pool_row(Int8PoolRow<'_>) = pool
);
