//! Hessenberg and Schur forms of general matrices.
//!
//! Source: LAPACK's gehrd, lahqr and lanv2; Golub and Van Loan, 7.5.

use crate::eigh::{bordered, scaling};
use crate::householder::{apply_left, apply_right, reflector};
use crate::matrix::Matrix;
use crate::scalar::{Complex, MatrixScalar, Real};

/// Replaces a by its Hessenberg form `Qᴴ A Q`, with Q's reflectors below the subdiagonal, for the 1-based rows `low` to
/// `high`; returns τ.
pub fn gehrd<T: MatrixScalar>(a: &mut Matrix<T>, low: usize, high: usize) -> Vec<T> {
    let n = a.rows;
    let mut taus = vec![T::zero(); n.saturating_sub(1)];
    let mut work = Vec::new();
    for j in low - 1..high.max(1) - 1 {
        let mut v = a.column(j)[j + 1..high].to_vec();
        let (beta, tau) = reflector(v[0], &mut v[1..]);
        v[0] = T::ONE;
        apply_right(tau, &mut v, a.block_mut((0, high), (j + 1, high)), &mut work);
        apply_left(tau.conj(), &mut v, a.block_mut((j + 1, high), (j + 1, n)), &mut work);
        a.column_mut(j)[j + 1..high].copy_from_slice(&v);
        a.set(j + 1, j, T::real(beta));
        taus[j] = tau;
    }
    taus
}

/// Schur form `A = Z T Zᴴ`.
pub struct Schur<T> {
    /// T: upper triangular; for real matrices with blocks of two rows.
    pub t: Matrix<T>,
    /// Z.
    pub z: Matrix<T>,
    /// Whether the iterations converged.
    pub converged: bool,
}

/// An element type with a QR iteration of its own.
pub trait SchurElement: MatrixScalar {
    /// Brings a Hessenberg matrix into Schur form, and multiplies z by the transformations.
    fn iterate(h: &mut Matrix<Self>, z: &mut Matrix<Self>) -> bool;
}

/// Schur form of a square matrix. The transformations are computed in any case: eigenvalues alone are rarely needed.
pub fn schur<T: SchurElement>(mut a: Matrix<T>) -> Schur<T> {
    let n = a.rows;
    if n == 0 || a.data.iter().any(|x| x.is_bad()) {
        return Schur { t: a.clone(), z: Matrix::identity(n, n), converged: n == 0 };
    }
    let by = scaling(&a.data);
    a.data.iter_mut().for_each(|x| *x = x.scale(by));
    let taus = gehrd(&mut a, 1, n);
    let mut z = bordered(&a.copied((1, n), (0, n - 1)), &taus);
    for j in 0..n {
        let from = (j + 2).min(n);
        a.column_mut(j)[from..].fill(T::zero());
    }
    let converged = T::iterate(&mut a, &mut z);
    a.data.iter_mut().for_each(|x| *x = x.scale(T::Real::ONE / by));
    Schur { t: a, z, converged }
}

/// First row of the block of rows up to i that no negligible subdiagonal element divides.
fn block_start<T: MatrixScalar>(h: &Matrix<T>, i: usize) -> usize {
    let zero = T::Real::default();
    let tiny = T::Real::TINY * (T::Real::of(h.rows as f64) / T::Real::EPSILON);
    let size = |i: usize, j: usize| h.at(i, j).size();
    for k in (1..=i).rev() {
        let below = size(k, k - 1);
        if below <= tiny {
            return k;
        }
        let mut near = size(k - 1, k - 1) + size(k, k);
        if near == zero {
            near = if k >= 2 { size(k - 1, k - 2) } else { zero };
            near += if k < i { size(k + 1, k) } else { zero };
        }
        if below <= T::Real::EPSILON * near {
            let above = size(k - 1, k);
            let (ab, ba) = if below > above { (below, above) } else { (above, below) };
            let (own, apart) = (size(k, k), (h.at(k - 1, k - 1) - h.at(k, k)).size());
            let (aa, bb) = if own > apart { (own, apart) } else { (apart, own) };
            let sum = aa + ab;
            if ba * (ab / sum) <= tiny.most(T::Real::EPSILON * (bb * (aa / sum))) {
                return k;
            }
        }
    }
    0
}

/// Iterations for each eigenvalue.
const ITERATIONS: usize = 60;
/// Iterations after which a shift is replaced by an arbitrary one.
const EXCEPTIONAL: usize = 10;

impl<R: Real> SchurElement for Complex<R> {
    fn iterate(h: &mut Matrix<Self>, z: &mut Matrix<Self>) -> bool {
        let mut end = h.rows;
        let (mut turn, mut left) = (0_usize, ITERATIONS * h.rows);
        while end > 0 {
            let i = end - 1;
            let l = block_start(h, i);
            if l > 0 {
                h.set(l, l - 1, Complex::zero());
            }
            if l == i {
                (end, turn) = (i, 0);
                continue;
            }
            if left == 0 {
                return false;
            }
            (turn, left) = (turn + 1, left - 1);
            let shift = if turn.is_multiple_of(EXCEPTIONAL) {
                h.at(i, i) + Complex::real(R::of(0.75) * h.at(i, i - 1).re.modulus())
            } else {
                complex_shift(h, i)
            };
            complex_sweep(h, z, (l, i), shift);
        }
        true
    }
}

/// Principal square root.
fn root<R: Real>(x: Complex<R>) -> Complex<R> {
    let size = x.modulus();
    if size == R::default() {
        return x;
    }
    let half = R::of(0.5);
    let large = ((size + x.re.modulus()) * half).sqrt();
    let small = x.im.modulus() * half / large;
    let (re, im) = if x.re >= R::default() { (large, small) } else { (small, large) };
    Complex { re, im: im.copysign(x.im) }
}

/// Eigenvalue of the last two rows that is near the last element.
fn complex_shift<R: Real>(h: &Matrix<Complex<R>>, i: usize) -> Complex<R> {
    let own = h.at(i, i);
    let product = root(h.at(i - 1, i)) * root(h.at(i, i - 1));
    let size = product.size();
    if size == R::default() {
        return own;
    }
    let half = (h.at(i - 1, i - 1) - own).scale(R::of(0.5));
    let scale = R::ONE / half.size().most(size);
    let (x, p) = (half.scale(scale), product.scale(scale));
    let mut y = root(x * x + p * p);
    if x.re * y.re + x.im * y.im < R::default() {
        y = -y;
    }
    own - product * (product / (x + y).scale(R::ONE / scale))
}

/// One implicit QR step of the rows l to i.
fn complex_sweep<R: Real>(
    h: &mut Matrix<Complex<R>>,
    z: &mut Matrix<Complex<R>>,
    (l, i): (usize, usize),
    shift: Complex<R>,
) {
    let n = h.rows;
    for k in l..i {
        let (x, y) =
            if k == l { (h.at(l, l) - shift, h.at(l + 1, l)) } else { (h.at(k, k - 1), h.at(k + 1, k - 1)) };
        let size = x.modulus().hypot(y.modulus());
        if size == R::default() {
            continue;
        }
        // [c, s; −s̄, c̄] (x, y) = (size, 0).
        let (c, s) = (x.conj().scale(R::ONE / size), y.conj().scale(R::ONE / size));
        if k > l {
            h.set(k, k - 1, Complex::real(size));
            h.set(k + 1, k - 1, Complex::zero());
        }
        for j in k..n {
            let column = h.column_mut(j);
            let (a, b) = (column[k], column[k + 1]);
            column[k] = c * a + s * b;
            column[k + 1] = c.conj() * b - s.conj() * a;
        }
        let rows = (k + 3).min(i + 1);
        for (m, rows) in [(&mut *h, rows), (&mut *z, n)] {
            let (a, b) = m.two_columns(k, k + 1);
            for (a, b) in a[..rows].iter_mut().zip(&mut b[..rows]) {
                let (x, y) = (*a, *b);
                *a = x * c.conj() + y * s.conj();
                *b = y * c - x * s;
            }
        }
    }
}

macro_rules! real {
    ($($ty:ty)*) => {$(
        impl SchurElement for $ty {
            fn iterate(h: &mut Matrix<Self>, z: &mut Matrix<Self>) -> bool {
                francis(h, z)
            }
        }
    )*};
}
real!(f32 f64);

/// Double-shift QR iterations on a real matrix.
fn francis<R: Real>(h: &mut Matrix<R>, z: &mut Matrix<R>) -> bool {
    let n = h.rows;
    let mut end = n;
    let (mut turn, mut left) = (0_usize, ITERATIONS * n);
    while end > 0 {
        let i = end - 1;
        let l = block_start(h, i);
        if l > 0 {
            h.set(l, l - 1, R::default());
        }
        if l == i {
            (end, turn) = (i, 0);
            continue;
        }
        if l + 1 == i {
            standardize(h, z, l);
            (end, turn) = (l, 0);
            continue;
        }
        if left == 0 {
            return false;
        }
        (turn, left) = (turn + 1, left - 1);
        let shifts = real_shifts(h, (l, i), turn);
        real_sweep(h, z, (l, i), shifts);
    }
    true
}

/// Shifts of a block: `(re₁, im₁, re₂, im₂)`, a conjugate pair or one real number twice.
fn real_shifts<R: Real>(h: &Matrix<R>, (l, i): (usize, usize), turn: usize) -> [R; 4] {
    let zero = R::default();
    let (mut a, mut b, mut c, mut d);
    if turn.is_multiple_of(EXCEPTIONAL) {
        let at_start = !turn.is_multiple_of(2 * EXCEPTIONAL);
        let (x, y, own) = if at_start {
            (h.at(l + 1, l), h.at(l + 2, l + 1), h.at(l, l))
        } else {
            (h.at(i, i - 1), h.at(i - 1, i - 2), h.at(i, i))
        };
        let s = x.modulus() + y.modulus();
        a = R::of(0.75) * s + own;
        (b, c, d) = (R::of(-0.4375) * s, s, a);
    } else {
        (a, b, c, d) = (h.at(i - 1, i - 1), h.at(i - 1, i), h.at(i, i - 1), h.at(i, i));
    }
    let s = a.modulus() + b.modulus() + c.modulus() + d.modulus();
    if s == zero {
        return [zero; 4];
    }
    (a, b, c, d) = (a / s, b / s, c / s, d / s);
    let mean = (a + d) * R::of(0.5);
    let det = (a - mean) * (d - mean) - b * c;
    let root = det.modulus().sqrt();
    if det >= zero {
        return [mean * s, root * s, mean * s, -(root * s)];
    }
    let (x, y) = (mean + root, mean - root);
    let near = if (x - d).modulus() <= (y - d).modulus() { x } else { y } * s;
    [near, zero, near, zero]
}

/// One implicit double-shift QR step of the rows l to i.
fn real_sweep<R: Real>(
    h: &mut Matrix<R>,
    z: &mut Matrix<R>,
    (l, i): (usize, usize),
    [r1, i1, r2, i2]: [R; 4],
) {
    let n = h.rows;
    let mut v = [R::default(); 3];
    let mut m = i - 2;
    loop {
        let own = h.at(m, m);
        let s = (own - r2).modulus() + i2.modulus() + h.at(m + 1, m).modulus();
        let below = h.at(m + 1, m) / s;
        v[0] = below * h.at(m, m + 1) + (own - r1) * ((own - r2) / s) - i1 * (i2 / s);
        v[1] = below * (own + h.at(m + 1, m + 1) - r1 - r2);
        v[2] = below * h.at(m + 2, m + 1);
        let s = v[0].modulus() + v[1].modulus() + v[2].modulus();
        v.iter_mut().for_each(|x| *x = *x / s);
        if m == l {
            break;
        }
        let near = h.at(m - 1, m - 1).modulus() + own.modulus() + h.at(m + 1, m + 1).modulus();
        if h.at(m, m - 1).modulus() * (v[1].modulus() + v[2].modulus()) <= R::EPSILON * v[0].modulus() * near
        {
            break;
        }
        m -= 1;
    }
    for k in m..i {
        let count = 3.min(i - k + 1);
        if k > m {
            (0..count).for_each(|r| v[r] = h.at(k + r, k - 1));
        }
        let (head, rest) = v[..count].split_at_mut(1);
        let (beta, tau) = reflector(head[0], rest);
        if k > m {
            h.set(k, k - 1, beta);
            (1..count).for_each(|r| h.set(k + r, k - 1, R::default()));
        } else if m > l {
            let value = h.at(k, k - 1) * (R::ONE - tau);
            h.set(k, k - 1, value);
        }
        let w = if count == 3 { [R::ONE, v[1], v[2]] } else { [R::ONE, v[1], R::default()] };
        let part = |m: &mut Matrix<R>, rows| three_columns(m, k, rows, count, tau, w);
        three_rows(h, k, count, n, tau, w);
        part(h, (k + 4).min(i + 1));
        part(z, n);
    }
}

/// Applies a reflector to rows k, k + 1 and k + 2.
fn three_rows<R: Real>(h: &mut Matrix<R>, k: usize, count: usize, n: usize, tau: R, w: [R; 3]) {
    for j in k..n {
        let column = &mut h.column_mut(j)[k..k + count];
        let mut sum = column[0] + w[1] * column[1];
        if count == 3 {
            sum += w[2] * column[2];
            column[2] -= sum * tau * w[2];
        }
        column[0] -= sum * tau;
        column[1] -= sum * tau * w[1];
    }
}

/// Applies a reflector to columns k, k + 1 and k + 2.
fn three_columns<R: Real>(m: &mut Matrix<R>, k: usize, rows: usize, count: usize, tau: R, w: [R; 3]) {
    let stride = m.rows;
    let (a, rest) = m.data[k * stride..].split_at_mut(stride);
    let (b, c) = rest.split_at_mut(stride);
    let (a, b) = (&mut a[..rows], &mut b[..rows]);
    if count == 2 {
        for (a, b) in a.iter_mut().zip(b) {
            let sum = (*a + w[1] * *b) * tau;
            *a -= sum;
            *b -= sum * w[1];
        }
        return;
    }
    for ((a, b), c) in a.iter_mut().zip(b).zip(&mut c[..rows]) {
        let sum = (*a + w[1] * *b + w[2] * *c) * tau;
        *a -= sum;
        *b -= sum * w[1];
        *c -= sum * w[2];
    }
}

/// Brings the block of rows l and l + 1 into standard form: triangular, or with equal diagonal elements.
fn standardize<R: Real>(h: &mut Matrix<R>, z: &mut Matrix<R>, l: usize) {
    let (n, i) = (h.rows, l + 1);
    let ([a, b, c, d], cos, sin) = standard([h.at(l, l), h.at(l, i), h.at(i, l), h.at(i, i)]);
    let turn = |x: &mut R, y: &mut R| (*x, *y) = (cos * *x + sin * *y, cos * *y - sin * *x);
    for j in i + 1..n {
        let (x, y) = h.column_mut(j).split_at_mut(i);
        turn(&mut x[l], &mut y[0]);
    }
    for (m, rows) in [(&mut *h, l), (&mut *z, n)] {
        let (x, y) = m.two_columns(l, i);
        x[..rows].iter_mut().zip(&mut y[..rows]).for_each(|(x, y)| turn(x, y));
    }
    h.set(l, l, a);
    h.set(l, i, b);
    h.set(i, l, c);
    h.set(i, i, d);
}

/// Standard form of a real 2 by 2 matrix, and its rotation. Source: LAPACK's lanv2.
fn standard<R: Real>([mut a, mut b, mut c, mut d]: [R; 4]) -> ([R; 4], R, R) {
    let (zero, one, half) = (R::default(), R::ONE, R::of(0.5));
    let sign = |x: R| one.copysign(x);
    if c == zero {
        return ([a, b, c, d], one, zero);
    }
    if b == zero {
        return ([d, -c, zero, a], zero, one);
    }
    if a - d == zero && sign(b) != sign(c) {
        return ([a, b, c, d], one, zero);
    }
    let difference = a - d;
    let p = half * difference;
    let (most, least) =
        if b.modulus() > c.modulus() { (b.modulus(), c.modulus()) } else { (c.modulus(), b.modulus()) };
    let least = least * sign(b) * sign(c);
    let scale = p.modulus().most(most);
    let x = (p / scale) * p + (most / scale) * least;
    if x >= R::of(4.0) * R::EPSILON {
        let x = p + (scale.sqrt() * x.sqrt()).copysign(p);
        let tau = c.hypot(x);
        return ([d + x, b - c, zero, d - (most / x) * least], x / tau, c / tau);
    }
    let sum = b + c;
    let tau = sum.hypot(difference);
    let mut cos = (half * (one + sum.modulus() / tau)).sqrt();
    let mut sin = -(p / (tau * cos)) * sign(sum);
    let (aa, bb) = (a * cos + b * sin, b * cos - a * sin);
    let (cc, dd) = (c * cos + d * sin, d * cos - c * sin);
    (a, b, c, d) = (aa * cos + cc * sin, bb * cos + dd * sin, cc * cos - aa * sin, dd * cos - bb * sin);
    let mean = half * (a + d);
    (a, d) = (mean, mean);
    if c != zero && b == zero {
        (b, c) = (-c, zero);
        (cos, sin) = (-sin, cos);
    } else if c != zero && sign(b) == sign(c) {
        let (sab, sac) = (b.modulus().sqrt(), c.modulus().sqrt());
        let p = (sab * sac).copysign(c);
        let tau = one / (b + c).modulus().sqrt();
        (a, d, b, c) = (mean + p, mean - p, b - c, zero);
        let (c1, s1) = (sab * tau, sac * tau);
        (cos, sin) = (cos * c1 - sin * s1, cos * s1 + sin * c1);
    }
    ([a, b, c, d], cos, sin)
}
