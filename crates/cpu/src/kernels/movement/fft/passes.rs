//! Stockham's algorithm on vectors whose lanes are different transforms: mixed radices, and no bit reversal.
//!
//! Source: Van Loan, "Computational Frameworks for the Fast Fourier Transform", 1992, 1.7.

// Functions use index loops and no closures: a closure would not inherit the target features.
#![allow(clippy::needless_range_loop, reason = "several arrays have the same index")]

use super::plan::{FftPass, FftPlan, LARGEST_PRIME};
use crate::simd::zip_lanes::ZipLanes;

/// Elements of the transforms in memory: lanes of element `j` are at `re + j · step` and `im + j · step`.
#[derive(Clone, Copy)]
pub struct Lines<T> {
    pub re: *mut T,
    pub im: *mut T,
    pub step: usize,
}

impl<T> Lines<T> {
    /// Real and imaginary parts exchanged: transforms of exchanged parts are inverse transforms.
    pub fn swapped(self) -> Lines<T> {
        Lines { re: self.im, im: self.re, step: self.step }
    }

    /// The elements `n` addresses further.
    pub fn after(self, n: usize) -> Lines<T> {
        Lines { re: self.re.wrapping_add(n), im: self.im.wrapping_add(n), step: self.step }
    }

    /// Pairs of real elements as complex numbers.
    pub fn pairs(self) -> Lines<T> {
        Lines { re: self.re, im: self.re.wrapping_add(self.step), step: 2 * self.step }
    }
}

/// A complex number in each lane.
#[derive(Clone, Copy)]
pub struct ComplexLanes<V> {
    pub re: V,
    pub im: V,
}

impl<V: ZipLanes> ComplexLanes<V> {
    #[inline(always)]
    pub unsafe fn load(x: Lines<V::T>, j: usize) -> Self {
        // SAFETY: the caller has element `j`.
        unsafe { ComplexLanes { re: V::load(x.re.add(j * x.step)), im: V::load(x.im.add(j * x.step)) } }
    }

    #[inline(always)]
    pub unsafe fn store(self, x: Lines<V::T>, j: usize) {
        // SAFETY: as for `load`.
        unsafe {
            self.re.store(x.re.add(j * x.step));
            self.im.store(x.im.add(j * x.step));
        }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the level is available, here and below.
        unsafe { ComplexLanes { re: self.re.add(b.re), im: self.im.add(b.im) } }
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: as above.
        unsafe { ComplexLanes { re: self.re.sub(b.re), im: self.im.sub(b.im) } }
    }

    #[inline(always)]
    pub unsafe fn mul(self, re: V, im: V) -> Self {
        // SAFETY: as above.
        unsafe {
            ComplexLanes {
                re: self.re.mul_sub(re, self.im.mul(im)),
                im: self.re.mul_add(im, self.im.mul(re)),
            }
        }
    }

    #[inline(always)]
    unsafe fn scale(self, by: V) -> Self {
        // SAFETY: as above.
        unsafe { ComplexLanes { re: self.re.mul(by), im: self.im.mul(by) } }
    }

    /// Returns `a − i · b` and `a + i · b`.
    #[inline(always)]
    unsafe fn turned(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: as above.
        unsafe {
            [
                ComplexLanes { re: a.re.add(b.im), im: a.im.sub(b.re) },
                ComplexLanes { re: a.re.sub(b.im), im: a.im.add(b.re) },
            ]
        }
    }
}

#[inline(always)]
unsafe fn four<V: ZipLanes>(a: [ComplexLanes<V>; 4]) -> [ComplexLanes<V>; 4] {
    // SAFETY: the level is available.
    unsafe {
        let (s, t) = (a[0].add(a[2]), a[0].sub(a[2]));
        let (u, v) = (a[1].add(a[3]), a[1].sub(a[3]));
        let [right, left] = ComplexLanes::turned(t, v);
        [s.add(u), right, s.sub(u), left]
    }
}

#[inline(always)]
unsafe fn eight<V: ZipLanes>(a: [ComplexLanes<V>; 8]) -> [ComplexLanes<V>; 8] {
    // SAFETY: the level is available.
    unsafe {
        let e = four([a[0], a[2], a[4], a[6]]);
        let o = four([a[1], a[3], a[5], a[7]]);
        let root = V::splat(V::scalar(std::f64::consts::FRAC_1_SQRT_2));
        // The first and third are multiplied by (1 − i) / √2 and (−1 − i) / √2.
        let first = ComplexLanes { re: o[1].re.add(o[1].im), im: o[1].im.sub(o[1].re) }.scale(root);
        let third = ComplexLanes { re: o[3].im.sub(o[3].re), im: o[3].im.add(o[3].re) }.scale(root);
        let [second, sixth] = ComplexLanes::turned(e[2], o[2]);
        let (y1, y5) = (e[1].add(first), e[1].sub(first));
        // `third` lacks the sign of its imaginary part: (−x + y) − i (x + y).
        let third = ComplexLanes { re: third.re, im: V::splat(V::scalar(0.0)).sub(third.im) };
        [e[0].add(o[0]), y1, second, e[3].add(third), e[0].sub(o[0]), y5, sixth, e[3].sub(third)]
    }
}

/// Transforms an odd number of elements by sums of cosines and sines of pairs.
#[inline(always)]
unsafe fn odd<V: ZipLanes>(n: usize, a: &mut [ComplexLanes<V>], roots: &[V::T]) {
    // SAFETY: the level is available; `a` has `n` elements, and `roots` n pairs.
    unsafe {
        let zero = V::splat(V::scalar(0.0));
        let half = n / 2;
        let mut y = [ComplexLanes { re: zero, im: zero }; LARGEST_PRIME + 1];
        let mut all = a[0];
        for j in 1..=half {
            let (sum, difference) = (a[j].add(a[n - j]), a[j].sub(a[n - j]));
            (a[j], a[n - j]) = (sum, difference);
            all = all.add(sum);
        }
        for k in 1..=half {
            let (mut c, mut d, mut at) = (a[0], ComplexLanes { re: zero, im: zero }, 0);
            for j in 1..=half {
                at += k;
                at -= if at >= n { n } else { 0 };
                let (cos, sin) = (V::splat(roots[2 * at]), V::splat(roots[2 * at + 1]));
                c = ComplexLanes { re: a[j].re.mul_add(cos, c.re), im: a[j].im.mul_add(cos, c.im) };
                let u = a[n - j];
                d = ComplexLanes { re: u.re.mul_add(sin, d.re), im: u.im.mul_add(sin, d.im) };
            }
            [y[k], y[n - k]] = ComplexLanes::turned(c, d);
        }
        a[0] = all;
        a[1..n].copy_from_slice(&y[1..n]);
    }
}

/// Transforms `R` elements in place.
#[inline(always)]
unsafe fn butterfly<V: ZipLanes, const R: usize>(a: &mut [ComplexLanes<V>; R], roots: &[V::T]) {
    // SAFETY: the level is available.
    unsafe {
        match R {
            2 => (a[0], a[1]) = (a[0].add(a[1]), a[0].sub(a[1])),
            4 => {
                let y = four([a[0], a[1], a[2], a[3]]);
                a[..4].copy_from_slice(&y);
            }
            8 => {
                let y = eight([a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]]);
                a[..8].copy_from_slice(&y);
            }
            _ => odd(R, a, roots),
        }
    }
}

/// Runs one pass: `to[q + s · (R · p + k)] = w^(p · k) · butterfly(from[q + s · (p + m · k)])` with `s = stride`, `m =
/// count`. The last pass has no twiddle factors and multiplies by `scale`.
#[inline(always)]
unsafe fn pass<V: ZipLanes, const R: usize>(
    pass: &FftPass<V::T>,
    from: Lines<V::T>,
    to: Lines<V::T>,
    scale: V::T,
) {
    // SAFETY: the caller's arrays have all elements of the plan.
    unsafe {
        let zero = V::splat(V::scalar(0.0));
        let (m, s) = (pass.count, pass.stride);
        let by = V::splat(scale);
        for p in 0..m {
            let w = pass.twiddles.as_ptr().wrapping_add(2 * (R - 1) * p);
            for q in 0..s {
                let mut a = [ComplexLanes { re: zero, im: zero }; R];
                for k in 0..R {
                    a[k] = ComplexLanes::load(from, q + s * (p + m * k));
                }
                butterfly::<V, R>(&mut a, &pass.roots);
                if m == 1 {
                    for k in 0..R {
                        a[k].scale(by).store(to, q + s * k);
                    }
                    continue;
                }
                a[0].store(to, q + s * R * p);
                for k in 1..R {
                    let (re, im) = (V::splat(*w.add(2 * k - 2)), V::splat(*w.add(2 * k - 1)));
                    a[k].mul(re, im).store(to, q + s * (R * p + k));
                }
            }
        }
    }
}

/// Runs one pass of a larger odd radix.
#[inline(always)]
unsafe fn odd_pass<V: ZipLanes>(pass: &FftPass<V::T>, from: Lines<V::T>, to: Lines<V::T>, scale: V::T) {
    // SAFETY: as for `pass`.
    unsafe {
        let zero = V::splat(V::scalar(0.0));
        let (r, m, s) = (pass.radix, pass.count, pass.stride);
        let mut a = [ComplexLanes { re: zero, im: zero }; LARGEST_PRIME + 1];
        for p in 0..m {
            for q in 0..s {
                for k in 0..r {
                    a[k] = ComplexLanes::load(from, q + s * (p + m * k));
                }
                odd(r, &mut a, &pass.roots);
                for k in 0..r {
                    let at = 2 * ((r - 1) * p + k);
                    let y = match k {
                        _ if m == 1 => a[k].scale(V::splat(scale)),
                        0 => a[k],
                        _ => a[k].mul(V::splat(pass.twiddles[at - 2]), V::splat(pass.twiddles[at - 1])),
                    };
                    y.store(to, q + s * (r * p + k));
                }
            }
        }
    }
}

/// Computes the forward transforms of all lanes, times `scale`. `buffers` have room for the plan's elements, and may
/// be neither `from` nor `to`.
///
/// # Safety
/// The CPU has the level of `V`; the arrays have the plan's elements, each a whole vector.
#[inline(always)]
pub unsafe fn transform<V: ZipLanes>(
    plan: &FftPlan<V::T>,
    from: Lines<V::T>,
    to: Lines<V::T>,
    buffers: [Lines<V::T>; 2],
    scale: V::T,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let last = plan.passes.len();
        if last == 0 {
            ComplexLanes::<V>::load(from, 0).scale(V::splat(scale)).store(to, 0);
        }
        let mut from = from;
        for (i, step) in plan.passes.iter().enumerate() {
            let to = if i + 1 == last { to } else { buffers[i % 2] };
            match step.radix {
                2 => pass::<V, 2>(step, from, to, scale),
                3 => pass::<V, 3>(step, from, to, scale),
                4 => pass::<V, 4>(step, from, to, scale),
                5 => pass::<V, 5>(step, from, to, scale),
                8 => pass::<V, 8>(step, from, to, scale),
                _ => odd_pass::<V>(step, from, to, scale),
            }
            from = to;
        }
    }
}

/// Returns the elements `k` and `h − k` of the spectrum of `2h` real numbers, from those of the transform of pairs, or
/// the reverse with `inverse`: both are `s ± w · d` with sums `s` and differences `d` of conjugates.
#[inline(always)]
pub unsafe fn real_pair<V: ZipLanes>(
    a: ComplexLanes<V>,
    b: ComplexLanes<V>,
    (re, im): (V, V),
    half: V,
    inverse: bool,
) -> [ComplexLanes<V>; 2] {
    // SAFETY: the level is available.
    unsafe {
        let s = ComplexLanes { re: a.re.add(b.re), im: a.im.sub(b.im) };
        let d = ComplexLanes { re: a.re.sub(b.re), im: a.im.add(b.im) };
        // Forward: X[k] = (s − i w d) / 2. Inverse: Z[k] = s + i w̄ d.
        let turned = if inverse { d.mul(re, V::splat(V::scalar(0.0)).sub(im)) } else { d.mul(re, im) };
        let [minus, plus] = ComplexLanes::turned(s, turned);
        let (own, other) = if inverse { (plus, minus) } else { (minus, plus) };
        let other = ComplexLanes { re: other.re, im: V::splat(V::scalar(0.0)).sub(other.im) };
        [own.scale(half), other.scale(half)]
    }
}

/// Computes the spectrum of `2h` real numbers, elements `0 ≤ k ≤ h`, from the transform `z` of their pairs. `roots`:
/// `e^(−2πi k / 2h)`.
///
/// # Safety
/// As for [`transform`].
#[inline(always)]
pub unsafe fn real_spectrum<V: ZipLanes>(h: usize, z: Lines<V::T>, to: Lines<V::T>, roots: [&[V::T]; 2]) {
    // SAFETY: by the caller's promise.
    unsafe {
        let zero = V::splat(V::scalar(0.0));
        let first = ComplexLanes::<V>::load(z, 0);
        ComplexLanes { re: first.re.add(first.im), im: zero }.store(to, 0);
        ComplexLanes { re: first.re.sub(first.im), im: zero }.store(to, h);
        let half = V::splat(V::scalar(0.5));
        for k in 1..=h / 2 {
            let (a, b) = (ComplexLanes::<V>::load(z, k), ComplexLanes::<V>::load(z, h - k));
            let root = (V::splat(roots[0][k]), V::splat(roots[1][k]));
            let [own, other] = real_pair(a, b, root, half, false);
            other.store(to, h - k);
            own.store(to, k);
        }
    }
}

/// Computes the transform of pairs, from which [`transform`] with exchanged parts computes `2h` real numbers, from their
/// spectrum `x`. Imaginary parts of the elements 0 and h are ignored.
///
/// # Safety
/// As for [`transform`].
#[inline(always)]
pub unsafe fn real_pairs<V: ZipLanes>(h: usize, x: Lines<V::T>, to: Lines<V::T>, roots: [&[V::T]; 2]) {
    // SAFETY: by the caller's promise.
    unsafe {
        let (first, last) = (ComplexLanes::<V>::load(x, 0), ComplexLanes::<V>::load(x, h));
        ComplexLanes { re: first.re.add(last.re), im: first.re.sub(last.re) }.store(to, 0);
        let one = V::splat(V::scalar(1.0));
        for k in 1..=h / 2 {
            let (a, b) = (ComplexLanes::<V>::load(x, k), ComplexLanes::<V>::load(x, h - k));
            let root = (V::splat(roots[0][k]), V::splat(roots[1][k]));
            let [own, other] = real_pair(a, b, root, one, true);
            other.store(to, h - k);
            own.store(to, k);
        }
    }
}

/// Transposes a square of vectors in place.
///
/// # Safety
/// The CPU has the level of `V`; `square` has `V::LANES` vectors.
#[inline(always)]
pub unsafe fn transpose<V: ZipLanes>(square: &mut [V; 16]) {
    // SAFETY: by the caller's promise.
    unsafe {
        let half = V::LANES / 2;
        let mut turns = V::LANES;
        while turns > 1 {
            let rows = *square;
            for i in 0..half {
                (square[2 * i], square[2 * i + 1]) = rows[i].zip(rows[i + half]);
            }
            turns /= 2;
        }
    }
}
