//! Transforms of as many arrays as a vector has lanes, read from and written to any layout.

#![allow(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::passes::{ComplexLanes, Lines, real_pairs, real_spectrum, transform, transpose};
use super::plan::FftPlan;
use super::spec::FftSpec;
use crate::simd::zip_lanes::ZipLanes;
use systole_ir::op::fft::FftType;

/// Elements in memory of arrays, up to `V::LANES` or, if `lane` is 1, as many for each of [`FftSpec::wide`] vectors:
/// element `j` of array `i` is at `j · step + i · lane`; `step` or `lane` is 1.
#[derive(Clone, Copy)]
pub struct LaneLayout {
    pub step: usize,
    pub lane: usize,
    pub count: usize,
}

/// Part of an operand or result of a group of arrays.
#[derive(Clone, Copy)]
pub struct GroupArrays<T> {
    pub re: *mut T,
    /// Null for real numbers.
    pub im: *mut T,
    pub len: usize,
    pub layout: LaneLayout,
}

/// Number of buffers of [`FftSpec::buffer`] elements that [`group`] needs: for passes, operands and results.
pub fn group_buffers(wide: usize) -> usize {
    4 + 2 * wide
}

/// Reads elements into vectors `to + w · buffer + j · pitch`. Lanes beyond the arrays hold any numbers.
#[inline(always)]
unsafe fn read<V: ZipLanes>(
    from: *const V::T,
    len: usize,
    at: LaneLayout,
    to: *mut V::T,
    [buffer, pitch]: [usize; 2],
) {
    // SAFETY: the caller's arrays have these elements, and its buffer whole vectors.
    unsafe {
        let mut j = 0;
        if at.lane == 1 {
            // Row by row: rows may be whole pages apart.
            while j < len {
                let mut i = 0;
                while i < at.count {
                    V::load_part(from.add(j * at.step + i), at.count - i)
                        .store(to.add(i / V::LANES * buffer + j * pitch));
                    i += V::LANES;
                }
                j += 1;
            }
            return;
        }
        let mut square = [V::splat(V::scalar(0.0)); 16];
        while j + V::LANES <= len {
            for i in 0..V::LANES {
                square[i] = V::load(from.add(j + i.min(at.count - 1) * at.lane));
            }
            transpose(&mut square);
            for i in 0..V::LANES {
                square[i].store(to.add((j + i) * pitch));
            }
            j += V::LANES;
        }
        while j < len {
            for i in 0..V::LANES {
                *to.add(j * pitch + i) = *from.add(j + i.min(at.count - 1) * at.lane);
            }
            j += 1;
        }
    }
}

/// Writes vectors `from + w · buffer + j · pitch` to the elements.
#[inline(always)]
unsafe fn write<V: ZipLanes>(
    from: *const V::T,
    [buffer, pitch]: [usize; 2],
    len: usize,
    at: LaneLayout,
    to: *mut V::T,
) {
    // SAFETY: as for `read`.
    unsafe {
        let mut j = 0;
        if at.lane == 1 {
            while j < len {
                let mut i = 0;
                while i < at.count {
                    let (x, place) =
                        (V::load(from.add(i / V::LANES * buffer + j * pitch)), to.add(j * at.step + i));
                    match at.count - i {
                        rest if rest < V::LANES => x.store_part(place, rest),
                        _ => x.store(place),
                    }
                    i += V::LANES;
                }
                j += 1;
            }
            return;
        }
        let mut square = [V::splat(V::scalar(0.0)); 16];
        while j + V::LANES <= len {
            for i in 0..V::LANES {
                square[i] = V::load(from.add((j + i) * pitch));
            }
            transpose(&mut square);
            for i in 0..at.count {
                square[i].store(to.add(j + i * at.lane));
            }
            j += V::LANES;
        }
        while j < len {
            for i in 0..at.count {
                *to.add(j + i * at.lane) = *from.add(j * pitch + i);
            }
            j += 1;
        }
    }
}

impl<T> GroupArrays<T> {
    /// Returns the arrays in place.
    fn in_place(&self) -> Lines<T> {
        Lines { re: self.re, im: self.im, step: self.layout.step }
    }

    /// Returns the vectors of these arrays in a buffer.
    fn in_buffer(&self, buffer: *mut T, lanes: usize) -> Lines<T> {
        let step = if self.im.is_null() { lanes } else { 2 * lanes };
        Lines { re: buffer, im: buffer.wrapping_add(lanes), step }
    }
}

/// Returns buffer `k` as complex vectors.
#[inline(always)]
fn buffer<V: ZipLanes>(spec: &FftSpec<V::T>, buffers: *mut V::T, k: usize) -> Lines<V::T> {
    let re = buffers.wrapping_add(k * spec.buffer::<V>());
    Lines { re, im: re.wrapping_add(V::LANES), step: 2 * V::LANES }
}

/// Transforms a group of arrays.
///
/// # Safety
/// The CPU has the level of `V`, the arrays have the elements, and `buffers` [`group_buffers`] · [`FftSpec::buffer`].
#[inline(always)]
pub unsafe fn group<V: ZipLanes>(
    spec: &FftSpec<V::T>,
    plan: &FftPlan<V::T>,
    from: GroupArrays<V::T>,
    to: GroupArrays<V::T>,
    buffers: *mut V::T,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        if spec.wide == 1 && from.layout.lane == 1 && from.layout.count == V::LANES {
            return lines::<V>(spec, plan, from.in_place(), to.in_place(), buffers);
        }
        let size = spec.buffer::<V>();
        let given = buffers.add(4 * size);
        let made = given.add(spec.wide * size);
        let (x, y) = (from.in_buffer(given, V::LANES), to.in_buffer(made, V::LANES));
        read::<V>(from.re, from.len, from.layout, x.re, [size, x.step]);
        if !from.im.is_null() {
            read::<V>(from.im, from.len, from.layout, x.im, [size, x.step]);
        }
        for w in 0..from.layout.count.div_ceil(V::LANES) {
            lines::<V>(spec, plan, x.after(w * size), y.after(w * size), buffers);
        }
        write::<V>(y.re, [size, y.step], to.len, to.layout, to.re);
        if !to.im.is_null() {
            write::<V>(y.im, [size, y.step], to.len, to.layout, to.im);
        }
    }
}

/// Transforms vectors of lanes.
#[inline(always)]
unsafe fn lines<V: ZipLanes>(
    spec: &FftSpec<V::T>,
    plan: &FftPlan<V::T>,
    x: Lines<V::T>,
    y: Lines<V::T>,
    buffers: *mut V::T,
) {
    let [a, b, c, d] = [0, 1, 2, 3].map(|k| buffer::<V>(spec, buffers, k));
    let (n, h) = (spec.n, spec.n / 2);
    let (one, scale) = (V::scalar(1.0), V::scalar(1.0 / n as f64));
    let roots = [&spec.roots.0[..], &spec.roots.1[..]];
    // SAFETY: by the caller's promise.
    unsafe {
        let zero = V::splat(V::scalar(0.0));
        match (spec.kind, spec.is_paired()) {
            (FftType::Fft, _) => transform::<V>(plan, x, y, [a, b], one),
            (FftType::Ifft, _) => transform::<V>(plan, x.swapped(), y.swapped(), [a, b], scale),
            (FftType::Rfft, true) => {
                transform::<V>(plan, x.pairs(), c, [a, b], one);
                real_spectrum::<V>(h, c, y, roots);
            }
            (FftType::Irfft, true) => {
                real_pairs::<V>(h, x, c, roots);
                transform::<V>(plan, c.swapped(), y.pairs().swapped(), [a, b], scale);
            }
            (FftType::Rfft, false) => {
                for j in 0..n {
                    ComplexLanes { re: V::load(x.re.add(j * x.step)), im: zero }.store(c, j);
                }
                transform::<V>(plan, c, d, [a, b], one);
                for k in 0..=h {
                    ComplexLanes::<V>::load(d, k).store(y, k);
                }
            }
            (FftType::Irfft, false) => {
                ComplexLanes { re: V::load(x.re), im: zero }.store(c, 0);
                for k in 1..=h {
                    let own = ComplexLanes::<V>::load(x, k);
                    own.store(c, k);
                    ComplexLanes { re: own.re, im: zero.sub(own.im) }.store(c, n - k);
                }
                transform::<V>(plan, c.swapped(), d.swapped(), [a, b], scale);
                for j in 0..n {
                    V::load(d.re.add(j * d.step)).store(y.re.add(j * y.step));
                }
            }
        }
    }
}
