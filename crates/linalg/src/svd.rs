//! Singular value decomposition: reduction to bidiagonal form, then implicit QR iterations with and without shift.
//!
//! Source: LAPACK's gebrd, labrd and bdsqr; Demmel and Kahan, 1990.

use crate::eigh::{RotationBatch, bordered, givens, scaling};
use crate::householder::{apply_left, apply_right, reflector};
use crate::matrix::{Matrix, MatrixSlice, MatrixSliceMut};
use crate::qr::{apply_q, geqrf};
use crate::scalar::{MatrixScalar, Real};

/// Columns of a panel.
const PANEL: usize = 32;
/// Columns up to which a matrix is updated after each reflector.
const UNBLOCKED: usize = 48;

/// `A = Q B Pᴴ`: B's diagonal and superdiagonal; the reflectors of P, below the diagonal of a matrix without first row.
struct Bidiagonal<T: MatrixScalar> {
    d: Vec<T::Real>,
    e: Vec<T::Real>,
    taus_q: Vec<T>,
    taus_p: Vec<T>,
    /// Column i holds the i-th vector of P.
    p: Matrix<T>,
}

/// Updates of a panel that are not applied yet: `A − V Yᴴ − X Pᴴ`, where V is in A.
struct Panel<T> {
    x: Matrix<T>,
    y: Matrix<T>,
}

/// Reduces a matrix with at least as many rows as columns; the reflectors of Q stay below the diagonal.
fn gebrd<T: MatrixScalar>(a: &mut Matrix<T>) -> Bidiagonal<T> {
    let (m, n) = (a.rows, a.columns);
    let mut out = Bidiagonal {
        d: Vec::new(),
        e: Vec::new(),
        taus_q: Vec::new(),
        taus_p: Vec::new(),
        p: Matrix::zeros(n, n),
    };
    if n <= UNBLOCKED {
        reduce_small(a, &mut out);
        return out;
    }
    let mut panel = Panel { x: Matrix::zeros(m, PANEL), y: Matrix::zeros(n, PANEL) };
    for at in (0..n).step_by(PANEL) {
        let end = (at + PANEL).min(n);
        for i in at..end {
            column(a, &mut panel, &mut out, at, i);
            if i + 1 < n {
                row(a, &mut panel, &mut out, at, i);
            }
        }
        if end < n {
            let width = end - at;
            let v = a.copied((end, m), (at, end));
            let y = panel.y.copied((end, n), (0, width)).adjoint();
            let p = out.p.copied((end, n), (at, end)).adjoint();
            let gemm = T::kernels().gemm;
            gemm(-T::ONE, v.view(), y.view(), a.block_mut((end, m), (end, n)));
            gemm(-T::ONE, panel.x.block((end, m), (0, width)), p.view(), a.block_mut((end, m), (end, n)));
        }
    }
    out
}

/// Reduces a small matrix, with all of it up to date.
fn reduce_small<T: MatrixScalar>(a: &mut Matrix<T>, out: &mut Bidiagonal<T>) {
    let (m, n) = (a.rows, a.columns);
    let mut work = Vec::new();
    for i in 0..n {
        let (left, right) = a.data.split_at_mut((i + 1) * m);
        let v = &mut left[i * m + i..];
        let (beta, tau) = reflector(v[0], &mut v[1..]);
        v[0] = T::ONE;
        out.d.push(beta);
        out.taus_q.push(tau);
        if i + 1 == n {
            break;
        }
        let rest = MatrixSliceMut { data: &mut right[i..], stride: m, rows: m - i, columns: n - i - 1 };
        apply_left(tau.conj(), v, rest, &mut work);
        let u = &mut out.p.column_mut(i)[i + 1..];
        (i + 1..n).for_each(|k| u[k - i - 1] = a.at(i, k).conj());
        let (beta, tau) = reflector(u[0], &mut u[1..]);
        u[0] = T::ONE;
        out.e.push(beta);
        out.taus_p.push(tau);
        if i + 1 < m {
            apply_right(tau, u, a.block_mut((i + 1, m), (i + 1, n)), &mut work);
        }
    }
}

/// Conjugated elements of row i.
fn conj_row<T: MatrixScalar>(m: &Matrix<T>, i: usize, (from, to): (usize, usize)) -> Vec<T> {
    (from..to).map(|k| m.at(i, k).conj()).collect()
}

/// `y −= Z (Xᴴ v)`.
fn subtract<T: MatrixScalar>(y: &mut [T], z: MatrixSlice<T>, x: MatrixSlice<T>, v: &[T]) {
    let mut part = vec![T::zero(); x.columns];
    (T::kernels().gemv_adjoint)(T::ONE, x, v, &mut part);
    (T::kernels().gemv)(-T::ONE, z, &part, y);
}

/// Eliminates column i below the diagonal, and computes its column of Y.
fn column<T: MatrixScalar>(
    a: &mut Matrix<T>,
    panel: &mut Panel<T>,
    out: &mut Bidiagonal<T>,
    at: usize,
    i: usize,
) {
    let kernels = T::kernels();
    let (m, n, done) = (a.rows, a.columns, i - at);
    let (of_y, of_p) = (conj_row(&panel.y, i, (0, done)), conj_row(&out.p, i, (at, i)));
    let (left, right) = a.data.split_at_mut(i * m);
    let own = &mut right[i..m];
    let v =
        MatrixSlice { data: &left[(at * m + i).min(left.len())..], stride: m, rows: m - i, columns: done };
    (kernels.gemv)(-T::ONE, v, &of_y, own);
    (kernels.gemv)(-T::ONE, panel.x.block((i, m), (0, done)), &of_p, own);
    let (beta, tau) = reflector(own[0], &mut own[1..]);
    own[0] = T::ONE;
    out.d.push(beta);
    out.taus_q.push(tau);
    if i + 1 == n {
        return;
    }
    let v = own.to_vec();
    let mut y = vec![T::zero(); n - i - 1];
    (kernels.gemv_adjoint)(T::ONE, a.block((i, m), (i + 1, n)), &v, &mut y);
    subtract(&mut y, panel.y.block((i + 1, n), (0, done)), a.block((i, m), (at, i)), &v);
    subtract(&mut y, out.p.block((i + 1, n), (at, i)), panel.x.block((i, m), (0, done)), &v);
    y.iter_mut().for_each(|x| *x = *x * tau);
    panel.y.column_mut(done)[i + 1..].copy_from_slice(&y);
}

/// Eliminates row i right of the superdiagonal, and computes its column of X.
fn row<T: MatrixScalar>(
    a: &mut Matrix<T>,
    panel: &mut Panel<T>,
    out: &mut Bidiagonal<T>,
    at: usize,
    i: usize,
) {
    let kernels = T::kernels();
    let (m, n, done) = (a.rows, a.columns, i - at);
    let mut u = conj_row(a, i, (i + 1, n));
    let (of_v, of_x) = (conj_row(a, i, (at, i + 1)), conj_row(&panel.x, i, (0, done)));
    (kernels.gemv)(-T::ONE, panel.y.block((i + 1, n), (0, done + 1)), &of_v, &mut u);
    (kernels.gemv)(-T::ONE, out.p.block((i + 1, n), (at, i)), &of_x, &mut u);
    let (beta, tau) = reflector(u[0], &mut u[1..]);
    u[0] = T::ONE;
    out.e.push(beta);
    out.taus_p.push(tau);
    let mut x = vec![T::zero(); m - i - 1];
    (kernels.gemv)(T::ONE, a.block((i + 1, m), (i + 1, n)), &u, &mut x);
    subtract(&mut x, a.block((i + 1, m), (at, i + 1)), panel.y.block((i + 1, n), (0, done + 1)), &u);
    subtract(&mut x, panel.x.block((i + 1, m), (0, done)), out.p.block((i + 1, n), (at, i)), &u);
    x.iter_mut().for_each(|v| *v = *v * tau);
    panel.x.column_mut(done)[i + 1..].copy_from_slice(&x);
    out.p.column_mut(i)[i + 1..].copy_from_slice(&u);
}

/// Smaller singular value of `[[f, g], [0, h]]`.
fn smaller<R: Real>(f: R, g: R, h: R) -> R {
    let (f, g, h) = (f.modulus(), g.modulus(), h.modulus());
    let (least, most) = if f < h { (f, h) } else { (h, f) };
    if least == R::default() {
        return least;
    }
    let (sum, difference) = (R::ONE + least / most, (most - least) / most);
    if g < most {
        let ratio = (g / most) * (g / most);
        let bottom = (sum * sum + ratio).sqrt() + (difference * difference + ratio).sqrt();
        return least * (R::of(2.0) / bottom);
    }
    let ratio = most / g;
    if ratio == R::default() {
        return least * most / g;
    }
    let (a, b) = (sum * ratio, difference * ratio);
    let bottom = (R::ONE + a * a).sqrt() + (R::ONE + b * b).sqrt();
    R::of(2.0) * (least / bottom) * ratio
}

/// Rotations of left and right singular vectors.
struct Sides<R> {
    left: Option<RotationBatch<R>>,
    right: Option<RotationBatch<R>>,
}

impl<R: Real> Sides<R> {
    fn push(&mut self, k: usize, left: (R, R), right: (R, R)) {
        if let (Some(u), Some(v)) = (&mut self.left, &mut self.right) {
            u.push(k, left.0, left.1);
            v.push(k, right.0, right.1);
        }
    }
}

/// Iterations for each pair of singular values.
const ITERATIONS: usize = 12;

/// Size up to which a superdiagonal element is zero.
fn threshold<R: Real>(d: &[R], e: &[R], tolerance: R) -> R {
    let n = d.len();
    let size = R::of(n as f64);
    let mut mu = d[0].modulus();
    let mut least = mu;
    for i in 1..n {
        mu = if mu == R::default() { mu } else { d[i].modulus() * (mu / (mu + e[i - 1].modulus())) };
        least = if mu < least { mu } else { least };
    }
    let small = R::of(6.0) * size * size * R::TINY;
    (tolerance * (least / size.sqrt())).most(small)
}

/// Diagonalizes an upper bidiagonal matrix; returns whether all iterations converged.
fn bdsqr<R: Real>(d: &mut [R], e: &mut [R], sides: &mut Sides<R>) -> bool {
    let n = d.len();
    if n == 0 {
        return true;
    }
    let size = R::of(n as f64);
    let tolerance = R::of(10.0) * R::EPSILON;
    let threshold = threshold(d, e, tolerance);
    let mut left = ITERATIONS * n * n;
    let mut block = (usize::MAX, 0, true);
    let mut high = n - 1;
    while high > 0 {
        let mut low = high;
        let mut most = d[high].modulus();
        while low > 0 && e[low - 1].modulus() > threshold {
            low -= 1;
            most = most.most(d[low].modulus()).most(e[low].modulus());
        }
        if low > 0 {
            e[low - 1] = R::default();
        }
        if low == high {
            high -= 1;
            continue;
        }
        if left < high - low {
            return false;
        }
        // A new block: the direction is from the larger end to the smaller one.
        let is_new = block.0 == usize::MAX || low > block.1 || high < block.0;
        let down = if is_new { d[low].modulus() >= d[high].modulus() } else { block.2 };
        let Some(least) = smallest(d, e, (low, high), down, tolerance) else { continue };
        block = (low, high, down);
        let mut shift = R::default();
        if size * tolerance * (least / most) > R::EPSILON.most(R::of(0.01) * tolerance) {
            let (first, pair) = if down { (low, high - 1) } else { (high, low) };
            shift = smaller(d[pair], e[pair], d[pair + 1]);
            let ratio = shift / d[first].modulus();
            if d[first] != R::default() && ratio * ratio < R::EPSILON {
                shift = R::default();
            }
        }
        left -= high - low;
        match (shift == R::default(), down) {
            (true, _) => without_shift(d, e, (low, high), down, sides),
            (false, _) => with_shift(d, e, (low, high), down, shift, sides),
        }
        let last = if down { high - 1 } else { low };
        if e[last].modulus() <= threshold {
            e[last] = R::default();
        }
        for side in [&mut sides.left, &mut sides.right].into_iter().flatten() {
            side.settle();
        }
    }
    true
}

/// Estimates the smallest singular value of a block; `None` if a negligible element was set to zero.
fn smallest<R: Real>(
    d: &[R],
    e: &mut [R],
    (low, high): (usize, usize),
    down: bool,
    tolerance: R,
) -> Option<R> {
    let zero = R::default();
    let (end, own) = if down { (high - 1, high) } else { (low, low) };
    if e[end].modulus() <= tolerance * d[own].modulus() {
        e[end] = zero;
        return None;
    }
    let mut mu = d[if down { low } else { high }].modulus();
    let mut least = mu;
    for step in 0..high - low {
        let (i, next) = if down { (low + step, low + step + 1) } else { (high - 1 - step, high - 1 - step) };
        if e[i].modulus() <= tolerance * mu {
            e[i] = zero;
            return None;
        }
        mu = d[next].modulus() * (mu / (mu + e[i].modulus()));
        least = if mu < least { mu } else { least };
    }
    Some(least)
}

/// QR iteration without shift, which keeps tiny singular values accurate.
fn without_shift<R: Real>(
    d: &mut [R],
    e: &mut [R],
    (low, high): (usize, usize),
    down: bool,
    sides: &mut Sides<R>,
) {
    let (mut c, mut old_c, mut old_s) = (R::ONE, R::ONE, R::default());
    let (mut s, mut r);
    for step in 0..high - low {
        // Row i, the next row, the element between them and the one before it.
        let (i, next, own) = if down {
            (low + step, low + step + 1, low + step)
        } else {
            (high - step, high - step - 1, high - step - 1)
        };
        (c, s, r) = givens(d[i] * c, e[own]);
        if step > 0 {
            e[if down { own - 1 } else { own + 1 }] = old_s * r;
        }
        (old_c, old_s, d[i]) = givens(old_c * r, d[next] * s);
        if down {
            sides.push(own, (old_c, old_s), (c, s));
        } else {
            sides.push(own, (c, -s), (old_c, -old_s));
        }
    }
    let (last, own) = if down { (high, high - 1) } else { (low, low) };
    let h = d[last] * c;
    d[last] = h * old_c;
    e[own] = h * old_s;
}

/// QR iteration with a shift.
fn with_shift<R: Real>(
    d: &mut [R],
    e: &mut [R],
    (low, high): (usize, usize),
    down: bool,
    shift: R,
    sides: &mut Sides<R>,
) {
    let first = if down { low } else { high };
    let mut f = (d[first].modulus() - shift) * (R::ONE.copysign(d[first]) + shift / d[first]);
    let mut g = e[if down { low } else { high - 1 }];
    let count = high - low;
    for step in 0..count {
        let (i, next, own) = if down {
            (low + step, low + step + 1, low + step)
        } else {
            (high - step, high - step - 1, high - step - 1)
        };
        let (c, s, r) = givens(f, g);
        if step > 0 {
            e[if down { own - 1 } else { own + 1 }] = r;
        }
        f = c * d[i] + s * e[own];
        e[own] = c * e[own] - s * d[i];
        g = s * d[next];
        d[next] = c * d[next];
        let (c2, s2, r) = givens(f, g);
        d[i] = r;
        f = c2 * e[own] + s2 * d[next];
        d[next] = c2 * d[next] - s2 * e[own];
        if step + 1 < count {
            let after = if down { own + 1 } else { own - 1 };
            g = s2 * e[after];
            e[after] = c2 * e[after];
        }
        if down {
            sides.push(own, (c2, s2), (c, s));
        } else {
            sides.push(own, (c, -s), (c2, -s2));
        }
    }
    e[if down { high - 1 } else { low }] = f;
}

/// Singular values in descending order, U and Vᴴ.
pub struct Svd<T: MatrixScalar> {
    /// Singular values.
    pub s: Vec<T::Real>,
    /// Left singular vectors in columns, if requested.
    pub u: Option<Matrix<T>>,
    /// Right singular vectors in rows, conjugated, if requested.
    pub vh: Option<Matrix<T>>,
    /// Whether the iterations converged.
    pub converged: bool,
}

/// Decomposes `a = U diag(s) Vᴴ`; `vectors` is `Some(full)` for all or only the first `min(m, n)` vectors.
pub fn svd<T: MatrixScalar>(mut a: Matrix<T>, vectors: Option<bool>) -> Svd<T> {
    if a.data.iter().any(|x| x.is_bad()) {
        let s = vec![T::Real::default(); a.rows.min(a.columns)];
        return Svd { s, u: None, vh: None, converged: false };
    }
    if a.rows < a.columns {
        let flipped = svd(a.adjoint(), vectors);
        let turn = |m: Option<Matrix<T>>| m.map(|m| m.adjoint());
        return Svd { u: turn(flipped.vh), vh: turn(flipped.u), ..flipped };
    }
    let by = scaling(&a.data);
    if by != T::Real::ONE {
        a.data.iter_mut().for_each(|x| *x = x.scale(by));
    }
    let (m, n) = (a.rows, a.columns);
    // The vectors of a tall matrix are those of its R.
    let tall = (m * 10 >= n * 16).then(|| {
        let taus = geqrf(&mut a);
        let mut r = a.copied((0, n), (0, n));
        r.keep_triangle(false);
        (std::mem::replace(&mut a, r), taus)
    });
    let full = vectors == Some(true);
    let mut b = gebrd(&mut a);
    let mut sides = Sides { left: None, right: None };
    if vectors.is_some() {
        let mut q = Matrix::identity(a.rows, if full { a.rows } else { n });
        apply_q(&a, &b.taus_q, (true, false), &mut q, true);
        sides.left = Some(RotationBatch::new(&q));
        let inner = b.p.copied((1.min(n), n), (0, n.saturating_sub(1)));
        let p = if n == 0 { Matrix::zeros(0, 0) } else { bordered(&inner, &b.taus_p) };
        sides.right = Some(RotationBatch::new(&p));
    }
    let converged = bdsqr(&mut b.d, &mut b.e, &mut sides);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| {
        b.d[j].modulus().partial_cmp(&b.d[i].modulus()).unwrap_or(std::cmp::Ordering::Equal)
    });
    let s = order.iter().map(|&i| b.d[i].modulus() / by).collect();
    let u = sides.left.map(|left| {
        let u: Matrix<T> = left.finish(&order);
        match &tall {
            None => u,
            Some((reflectors, taus)) => {
                let mut out = Matrix::identity(m, if full { m } else { n });
                (0..n).for_each(|j| out.column_mut(j)[..n].copy_from_slice(u.column(j)));
                apply_q(reflectors, taus, (true, false), &mut out, false);
                out
            }
        }
    });
    let vh = sides.right.map(|right| right_vectors(right, &b.d, &order));
    Svd { s, u, vh, converged }
}

/// The rows of Vᴴ; a negative value on B's diagonal turns its vector.
fn right_vectors<T: MatrixScalar>(
    right: RotationBatch<T::Real>,
    d: &[T::Real],
    order: &[usize],
) -> Matrix<T> {
    let mut v: Matrix<T> = right.finish(order);
    for (j, from) in order.iter().enumerate() {
        if d[*from] < T::Real::default() {
            v.column_mut(j).iter_mut().for_each(|x| *x = -*x);
        }
    }
    v.adjoint()
}
