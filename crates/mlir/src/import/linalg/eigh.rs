//! Imports Hermitian eigendecomposition (eigh) with parallel Jacobi rotations: each step rotates N / 2 pairs of rows
//! and columns at once, in a round-robin order.
//!
//! Source: Brent and Luk, "The Solution of Singular-Value and Symmetric Eigenvalue Problems on Multiprocessor Arrays",
//! 1985; Golub and Van Loan, 8.5.

use super::blocks::{adjoint, beside, block, lower, masked, padded, places, repeated, with_unit_diagonal};
use crate::import::complex_number::{RealOrComplex, copysign};
use systole_base::{DType, Shape};
use systole_ir::{Tensor, control_builders};

/// Maximum number of sweeps. Convergence is quadratic in the last ones, so no matrix needs as many.
const MOST_SWEEPS: f64 = 40.0;

/// Decomposes `a: T[K, N, N] → (v: T[K, N, N], w: T[K, N])`: a · v = v · diag(w), from a's lower (or upper) triangle; w
/// ascending if `sorted`. NaN if a is not finite.
pub(super) fn decomposed(a: &RealOrComplex, from_lower: bool, sorted: bool) -> (RealOrComplex, Tensor) {
    let (lead, n) = (a.shape()[0], a.shape()[1]);
    let below = if from_lower { a.clone() } else { adjoint(a) };
    let whole = whole_of(&below);
    // Scales the largest element to 1, so that squares neither overflow nor underflow.
    let scale = whole.abs().reduce_max(&[1, 2]).reshape([lead, 1, 1]);
    let is_zero = scale.equal(&scale.scalar_like(0.0));
    let w = whole.map(|t| t / &is_zero.select(&scale.scalar_like(1.0), &scale));
    let odd = n % 2;
    let w = if odd == 1 { padded(&w, (0, 1), (0, 1)) } else { w };
    let v = with_unit_diagonal(&w.zeros_like());
    let (w, v) = if n > 1 { swept(w, v) } else { (w, v) };
    // An added zero row only meets zeros, and is last again after each sweep.
    let v = block(&v, (0, n), (0, n));
    let found = diagonal(&block(&w, (0, n), (0, n))).re;
    let (v, found) = if sorted { in_order(&v, &found) } else { (v, found) };
    let poison = &scale * 0.0;
    let found = &(&found * &scale.reshape([lead, 1])) + &poison.reshape([lead, 1]);
    (v.map(|t| t + &poison), found)
}

/// Returns the Hermitian matrix with the lower triangle of `a`.
fn whole_of(a: &RealOrComplex) -> RealOrComplex {
    let below = lower(a, false);
    let on = masked(&RealOrComplex::real(a.re.clone()), &places(a, 0).equal(&places(a, 1)));
    below.add(&adjoint(&below)).add(&on)
}

/// Returns the diagonal: `T[K, N, N] → T[K, N]`.
fn diagonal(a: &RealOrComplex) -> RealOrComplex {
    masked(a, &places(a, 0).equal(&places(a, 1))).sum(&[1])
}

/// Runs sweeps until the off-diagonal elements of `w` are negligible; returns w and the vectors.
fn swept(w: RealOrComplex, v: RealOrComplex) -> (RealOrComplex, RealOrComplex) {
    let complex = w.is_complex();
    let parts: Vec<Tensor> = w.parts().chain(v.parts()).cloned().collect();
    let first = w.g().scalar(DType::I32, 0.0);
    let init: Vec<&Tensor> = std::iter::once(&first).chain(&parts).collect();
    let numbers = |s: &[Tensor]| -> Option<(RealOrComplex, RealOrComplex)> {
        Some(match s {
            [a, b] => (RealOrComplex::real(a.clone()), RealOrComplex::real(b.clone())),
            [a, b, c, d] => {
                (RealOrComplex::complex(a.clone(), b.clone()), RealOrComplex::complex(c.clone(), d.clone()))
            }
            _ => return None,
        })
    };
    let last = control_builders::while_loop(
        &init,
        |s| {
            let more = s[0].less(&s[0].scalar_like(MOST_SWEEPS));
            numbers(&s[1..]).map_or(more.clone(), |(w, _)| more.and(&has_rest(&w)))
        },
        |s| {
            let Some((w, v)) = numbers(&s[1..]) else { return s.to_vec() };
            let done = repeated((w.shape()[1] - 1).max(1), &[w, v], |_, s| {
                let (w, v) = step(&s[0], &s[1]);
                vec![w, v]
            });
            let count = &s[0] + &s[0].scalar_like(1.0);
            let part = |x: &RealOrComplex| if complex { x.widened() } else { x.clone() };
            std::iter::once(count)
                .chain(done.iter().flat_map(|x| part(x).parts().cloned().collect::<Vec<_>>()))
                .collect()
        },
    );
    last.get(1..).and_then(numbers).unwrap_or((w, v))
}

/// Returns `bool[]`: whether off-diagonal elements matter in the norm of any matrix.
fn has_rest(w: &RealOrComplex) -> Tensor {
    let eps = if w.ty().dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let beside_it = masked(w, &places(w, 0).not_equal(&places(w, 1)));
    let (rest, all) = (beside_it.norm().sum(&[1, 2]), w.norm().sum(&[1, 2]));
    let counts = rest.greater(&(&all * &all.scalar_like(eps * eps)));
    let most = counts.convert(DType::I32).reduce_max(&[0]);
    most.greater(&most.scalar_like(0.0))
}

/// Rotates rows and columns i against i + N / 2, then permutes them to the next round.
fn step(w: &RealOrComplex, v: &RealOrComplex) -> (RealOrComplex, RealOrComplex) {
    let (n, h) = (w.shape()[1], w.shape()[1] / 2);
    let on = diagonal(w).re;
    let (a, c) = (on.slice_dim(1, 0, h), on.slice_dim(1, h, n));
    let b = diagonal(&block(w, (0, h), (h, n)));
    let (cosine, sine, t) = rotation(&a, &b, &c);
    let change = &t * &b.abs();
    let on = Tensor::concatenate(&[&(&a - &change), &(&c + &change)], 1);
    let (w, v) = (columns(w, &cosine, &sine), columns(v, &cosine, &sine));
    let w = rows(&w, &cosine, &sine);
    // Sets elements that rotations make zero or real exactly.
    let (row, column) = (places(&w, 0), places(&w, 1));
    let apart = (&row - &column).abs();
    let on = on.reshape([on.shape()[0], n, 1]).broadcast_to(w.shape());
    let (here, pair) = (apart.equal(&apart.scalar_like(0.0)), apart.equal(&apart.scalar_like(h as f64)));
    let kept = masked(&w, &here.or(&pair).not());
    let re = here.select(&on, &kept.re);
    let w = RealOrComplex { re, im: kept.im };
    (next_order(&next_order(&w, 1), 2), next_order(&v, 2))
}

/// Returns the rotations of [[a, b], [b̄, c]] for `a, c: T[K, H]`: cosine, sine with b's phase, and the size of their
/// quotient.
fn rotation(a: &Tensor, b: &RealOrComplex, c: &Tensor) -> (Tensor, RealOrComplex, Tensor) {
    let size = b.abs();
    let zero = size.scalar_like(0.0);
    let idle = size.equal(&zero);
    let one = size.scalar_like(1.0);
    let safe = idle.select(&one, &size);
    let tau = &(c - a) / &(&safe * 2.0);
    let root = (&(&tau * &tau) + 1.0).sqrt();
    let t = copysign(&(&one / &(&tau.abs() + &root)), &tau);
    let t = idle.select(&zero, &t);
    let cosine = &one / &(&(&t * &t) + 1.0).sqrt();
    let sine = &t * &cosine;
    let sine = if b.is_complex() {
        b.map(|x| x / &safe).scale(&sine)
    } else {
        RealOrComplex::real(copysign(&sine, &(&b.re * &sine)))
    };
    (cosine, sine, t)
}

/// Computes `x · [[c, s], [−s̄, c]]`.
fn columns(x: &RealOrComplex, cosine: &Tensor, sine: &RealOrComplex) -> RealOrComplex {
    let (k, h, n) = (cosine.shape()[0], cosine.shape()[1], x.shape()[2]);
    let wide = Shape::new([k, x.shape()[1], h]);
    let c = cosine.reshape([k, 1, h]).broadcast_to(&wide);
    let s = sine.map(|t| t.reshape([k, 1, h]).broadcast_to(&wide));
    let (left, right) = (x.slice_dim(2, 0, h), x.slice_dim(2, h, n));
    let new_left = left.scale(&c).sub(&right.mul(&s.conj()));
    beside(&new_left, &left.mul(&s).add(&right.scale(&c)), 2)
}

/// Computes `[[c, −s], [s̄, c]] · x`.
fn rows(x: &RealOrComplex, cosine: &Tensor, sine: &RealOrComplex) -> RealOrComplex {
    let (k, h, n) = (cosine.shape()[0], cosine.shape()[1], x.shape()[1]);
    let wide = Shape::new([k, h, x.shape()[2]]);
    let c = cosine.reshape([k, h, 1]).broadcast_to(&wide);
    let s = sine.map(|t| t.reshape([k, h, 1]).broadcast_to(&wide));
    let (top, bottom) = (x.slice_dim(1, 0, h), x.slice_dim(1, h, n));
    let new_top = top.scale(&c).sub(&bottom.mul(&s));
    beside(&new_top, &top.mul(&s.conj()).add(&bottom.scale(&c)), 1)
}

/// Permutes to the next round of the round-robin tournament: all but the first move one position.
fn next_order(x: &RealOrComplex, dim: usize) -> RealOrComplex {
    let n = x.shape()[dim];
    let h = n / 2;
    if h < 2 {
        return x.clone();
    }
    let part = |from: usize, to: usize| x.slice_dim(dim, from, to);
    let parts = [part(0, 1), part(h, h + 1), part(1, h - 1), part(h + 1, n), part(h - 1, h)];
    let held: Vec<&RealOrComplex> = parts.iter().filter(|p| p.shape()[dim] > 0).collect();
    RealOrComplex::concatenate(&held, dim).unwrap_or_else(|| x.clone())
}

/// Sorts eigenvalues ascending, and the vectors with them.
fn in_order(v: &RealOrComplex, w: &Tensor) -> (RealOrComplex, Tensor) {
    let (k, n) = (w.shape()[0], w.shape()[1]);
    let wide = Shape::new([k, n, n]);
    let came_from = w.argsort(1, false).reshape([k, 1, n]).broadcast_to(&wide);
    let pick = places(v, 0).broadcast_to(&wide).equal(&came_from).convert(v.ty().dtype);
    (v.matmul(&RealOrComplex::real(pick)), w.sort(1, false))
}
