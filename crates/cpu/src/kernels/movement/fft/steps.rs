//! Transforms of single arrays in two steps, as tables of n1 · n2 elements: columns, twiddle factors, rows. Lanes are
//! neighboring columns, then neighboring rows.
//!
//! Source: Bailey, "FFTs in External or Hierarchical Memory", 1990.

#![allow(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::passes::{ComplexLanes, Lines, real_pair, transform, transpose};
use super::spec::TwoSteps;
use crate::simd::zip_lanes::ZipLanes;

/// Real and imaginary parts of consecutive elements.
#[derive(Clone, Copy)]
pub struct Planes<T> {
    pub re: *mut T,
    pub im: *mut T,
}

impl<T> Planes<T> {
    pub fn swapped(self) -> Planes<T> {
        Planes { re: self.im, im: self.re }
    }
}

/// Returns buffer `k` as complex vectors.
#[inline(always)]
fn buffer<V: ZipLanes>(s: &TwoSteps<V::T>, buffers: *mut V::T, k: usize) -> Lines<V::T> {
    let re = buffers.wrapping_add(k * s.buffers::<V>() / 4);
    Lines { re, im: re.wrapping_add(V::LANES), step: 2 * V::LANES }
}

/// First step for the columns of group `g`: transforms, and multiplies by the twiddle factors.
///
/// # Safety
/// The CPU has the level of `V`; arrays and buffers have the elements.
#[inline(always)]
pub unsafe fn columns<V: ZipLanes>(
    s: &TwoSteps<V::T>,
    g: usize,
    from: Planes<V::T>,
    table: Planes<V::T>,
    buffers: *mut V::T,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let at = g * V::LANES;
        let count = V::LANES.min(s.n2 - at);
        let [a, b, c, d] = [0, 1, 2, 3].map(|k| buffer::<V>(s, buffers, k));
        let mut x = Lines { re: from.re.add(at), im: from.im.add(at), step: s.n2 };
        if count < V::LANES {
            for j in 0..s.n1 {
                let re = V::load_part(x.re.add(j * s.n2), count);
                ComplexLanes { re, im: V::load_part(x.im.add(j * s.n2), count) }.store(d, j);
            }
            x = d;
        }
        transform::<V>(&s.columns, x, c, [a, b], V::scalar(1.0));
        for k in 0..s.n1 {
            let place = k * s.pitch + at;
            let (re, im) = (s.twiddles.0.as_ptr().add(place), s.twiddles.1.as_ptr().add(place));
            let y = ComplexLanes::<V>::load(c, k).mul(V::load(re), V::load(im));
            y.re.store(table.re.add(place));
            y.im.store(table.im.add(place));
        }
    }
}

/// Second step for the rows of group `g`: element `k1 + n1 · k2` of the result is element `k2` of row `k1`.
///
/// # Safety
/// As for [`columns`].
#[inline(always)]
pub unsafe fn rows<V: ZipLanes>(
    s: &TwoSteps<V::T>,
    g: usize,
    table: Planes<V::T>,
    to: Planes<V::T>,
    scale: V::T,
    buffers: *mut V::T,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let at = g * V::LANES;
        let count = V::LANES.min(s.n1 - at);
        let [a, b, c, d] = [0, 1, 2, 3].map(|k| buffer::<V>(s, buffers, k));
        let mut square = [V::splat(V::scalar(0.0)); 16];
        for (plane, own) in [(table.re, c.re), (table.im, c.im)] {
            let mut j = 0;
            while j < s.pitch {
                for i in 0..V::LANES {
                    square[i] = V::load(plane.add((at + i.min(count - 1)) * s.pitch + j));
                }
                transpose(&mut square);
                for i in 0..V::LANES {
                    square[i].store(own.add((j + i) * c.step));
                }
                j += V::LANES;
            }
        }
        let own = Lines { re: to.re.add(at), im: to.im.add(at), step: s.n1 };
        if count == V::LANES {
            return transform::<V>(&s.rows, c, own, [a, b], scale);
        }
        transform::<V>(&s.rows, c, d, [a, b], scale);
        for k in 0..s.n2 {
            let y = ComplexLanes::<V>::load(d, k);
            y.re.store_part(own.re.add(k * s.n1), count);
            y.im.store_part(own.im.add(k * s.n1), count);
        }
    }
}

/// Splits `2h` real elements into pairs.
///
/// # Safety
/// As for [`columns`].
#[inline(always)]
pub unsafe fn split_pairs<V: ZipLanes>(h: usize, x: *const V::T, to: Planes<V::T>) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut j = 0;
        while j + V::LANES <= h {
            let (re, im) = V::load(x.add(2 * j)).unzip(V::load(x.add(2 * j + V::LANES)));
            re.store(to.re.add(j));
            im.store(to.im.add(j));
            j += V::LANES;
        }
        while j < h {
            (*to.re.add(j), *to.im.add(j)) = (*x.add(2 * j), *x.add(2 * j + 1));
            j += 1;
        }
    }
}

/// Joins pairs to `2h` real elements.
///
/// # Safety
/// As for [`columns`].
#[inline(always)]
pub unsafe fn join_pairs<V: ZipLanes>(h: usize, z: Planes<V::T>, to: *mut V::T) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut j = 0;
        while j + V::LANES <= h {
            let (low, high) = V::load(z.re.add(j)).zip(V::load(z.im.add(j)));
            low.store(to.add(2 * j));
            high.store(to.add(2 * j + V::LANES));
            j += V::LANES;
        }
        while j < h {
            (*to.add(2 * j), *to.add(2 * j + 1)) = (*z.re.add(j), *z.im.add(j));
            j += 1;
        }
    }
}

/// Computes elements `1 ≤ k < h` of a spectrum of real numbers from the transform of their pairs, or the reverse; lanes
/// are neighboring elements. See [`real_spectrum`](super::passes::real_spectrum). `h` is above `V::LANES`.
#[inline(always)]
unsafe fn conjugate_pairs<V: ZipLanes>(
    h: usize,
    z: Planes<V::T>,
    to: Planes<V::T>,
    roots: [&[V::T]; 2],
    inverse: bool,
) {
    // SAFETY: by the caller's promise; elements 1 to h − 1 have whole vectors.
    unsafe {
        let half = V::splat(V::scalar(if inverse { 1.0 } else { 0.5 }));
        let mut k = 1;
        while k <= h / 2 {
            // The last vector overlaps: an element has the same formula from both sides.
            let own = k.min(h - V::LANES);
            let other = h - own + 1 - V::LANES;
            let a = ComplexLanes { re: V::load(z.re.add(own)), im: V::load(z.im.add(own)) };
            let (re, im) = (V::load(z.re.add(other)), V::load(z.im.add(other)));
            let b = ComplexLanes { re: re.reverse(), im: im.reverse() };
            let root = (V::load(roots[0].as_ptr().add(own)), V::load(roots[1].as_ptr().add(own)));
            let [x, y] = real_pair(a, b, root, half, inverse);
            y.re.reverse().store(to.re.add(other));
            y.im.reverse().store(to.im.add(other));
            x.re.store(to.re.add(own));
            x.im.store(to.im.add(own));
            k += V::LANES;
        }
    }
}

/// [`real_spectrum`](super::passes::real_spectrum) of one array; `h` is above `V::LANES`.
///
/// # Safety
/// As for [`columns`]; `roots` have `h + 1` elements.
#[inline(always)]
pub unsafe fn spectrum<V: ZipLanes>(h: usize, z: Planes<V::T>, to: Planes<V::T>, roots: [&[V::T]; 2])
where
    V::T: std::ops::Add<Output = V::T> + std::ops::Sub<Output = V::T>,
{
    // SAFETY: by the caller's promise.
    unsafe {
        let (re, im) = (*z.re, *z.im);
        conjugate_pairs::<V>(h, z, to, roots, false);
        (*to.re, *to.im) = (re + im, V::scalar(0.0));
        (*to.re.add(h), *to.im.add(h)) = (re - im, V::scalar(0.0));
    }
}

/// [`real_pairs`](super::passes::real_pairs) of one array; `h` is above `V::LANES`.
///
/// # Safety
/// As for [`spectrum`].
#[inline(always)]
pub unsafe fn pairs<V: ZipLanes>(h: usize, x: Planes<V::T>, to: Planes<V::T>, roots: [&[V::T]; 2])
where
    V::T: std::ops::Add<Output = V::T> + std::ops::Sub<Output = V::T>,
{
    // SAFETY: by the caller's promise.
    unsafe {
        let (first, last) = (*x.re, *x.re.add(h));
        conjugate_pairs::<V>(h, x, to, roots, true);
        (*to.re, *to.im) = (first + last, first - last);
    }
}
