//! Eigenvalues and eigenvectors of Hermitian matrices: reduction to tridiagonal form, then implicit QL and QR iterations
//! whose rotations are applied in batches.
//!
//! Source: LAPACK's sytrd, latrd and steqr; Van Zee, van de Geijn and Quintana-Ortí, "Restructuring the Tridiagonal and
//! Bidiagonal QR Algorithms for Performance", 2014.

use crate::householder::reflector;
use crate::kernels::Rotation;
use crate::matrix::{Matrix, MatrixSlice, MatrixSliceMut};
use crate::qr::apply_q;
use crate::scalar::{MatrixScalar, Real};

/// Columns of a panel.
const PANEL: usize = 32;
/// Rows up to which a matrix is updated after each column.
const UNBLOCKED: usize = 64;

/// Tridiagonal form `T = Qᴴ A Q`: diagonal, subdiagonal and τ. The reflectors of Q are below the subdiagonal of a.
pub struct Tridiagonal<T: MatrixScalar> {
    /// Diagonal.
    pub d: Vec<T::Real>,
    /// Subdiagonal.
    pub e: Vec<T::Real>,
    /// Factors of the reflectors.
    pub taus: Vec<T>,
}

/// Reduces a Hermitian matrix, of which the lower triangle is read. Like in LAPACK, a holds T and the reflectors.
pub fn sytrd<T: MatrixScalar>(a: &mut Matrix<T>) -> Tridiagonal<T> {
    let n = a.rows;
    let off = n.saturating_sub(1);
    let zero = T::Real::default();
    let mut out = Tridiagonal { d: vec![zero; n], e: vec![zero; off], taus: vec![T::zero(); off] };
    if n <= UNBLOCKED {
        reduce_small(a, &mut out);
        return out;
    }
    let mut w = Matrix::zeros(n, PANEL);
    for at in (0..n).step_by(PANEL) {
        let end = (at + PANEL).min(n);
        for j in at..end {
            reduce(a, &mut w, at, j, &mut out);
        }
        if end < n {
            subtract_rank_2(a, &w, (at, end));
        }
        for j in at..end {
            a.set(j, j, T::real(out.d[j]));
            if j < off {
                a.set(j + 1, j, T::real(out.e[j]));
            }
        }
    }
    out
}

/// Reduces a small matrix column by column.
fn reduce_small<T: MatrixScalar>(a: &mut Matrix<T>, out: &mut Tridiagonal<T>) {
    let kernels = T::kernels();
    let n = a.rows;
    let mut y = Vec::new();
    for j in 0..n {
        out.d[j] = a.at(j, j).re();
        a.set(j, j, T::real(out.d[j]));
        if j + 1 == n {
            break;
        }
        let (left, right) = a.data.split_at_mut((j + 1) * n);
        let v = &mut left[j * n + j + 1..];
        let (beta, tau) = reflector(v[0], &mut v[1..]);
        (out.e[j], out.taus[j]) = (beta, tau);
        v[0] = T::ONE;
        y.clear();
        y.resize(n - j - 1, T::zero());
        let rest = &right[j + 1..];
        let size = n - j - 1;
        (kernels.hemv)(MatrixSlice { data: rest, stride: n, rows: size, columns: size }, v, &mut y);
        y.iter_mut().for_each(|x| *x = *x * tau);
        let by = -(tau * (kernels.dot)(&y, v)).scale(T::Real::of(0.5));
        (kernels.axpy)(by, v, &mut y);
        // A −= v yᴴ + y vᴴ below the diagonal.
        (kernels.her2)(
            v,
            &y,
            MatrixSliceMut { data: &mut right[j + 1..], stride: n, rows: size, columns: size },
        );
        v[0] = T::real(beta);
    }
}

/// Column j of a panel that starts at column `at`: brings it up to date, eliminates it, and computes its column of W.
fn reduce<T: MatrixScalar>(
    a: &mut Matrix<T>,
    w: &mut Matrix<T>,
    at: usize,
    j: usize,
    out: &mut Tridiagonal<T>,
) {
    let kernels = T::kernels();
    let (n, done) = (a.rows, j - at);
    let conj_row =
        |m: &Matrix<T>, first: usize| -> Vec<T> { (0..done).map(|k| m.at(j, first + k).conj()).collect() };
    let (of_w, of_v) = (conj_row(w, 0), conj_row(a, at));
    let (left, right) = a.data.split_at_mut(j * n);
    let column = &mut right[j..n];
    let v_block =
        MatrixSlice { data: &left[(at * n + j).min(left.len())..], stride: n, rows: n - j, columns: done };
    (kernels.gemv)(-T::ONE, v_block, &of_w, column);
    (kernels.gemv)(-T::ONE, w.block((j, n), (0, done)), &of_v, column);
    out.d[j] = column[0].re();
    if j + 1 == n {
        return;
    }
    let (beta, tau) = reflector(column[1], &mut column[2..]);
    column[1] = T::ONE;
    (out.e[j], out.taus[j]) = (beta, tau);
    let v = column[1..].to_vec();
    let mut y = vec![T::zero(); n - j - 1];
    (kernels.hemv)(a.block((j + 1, n), (j + 1, n)), &v, &mut y);
    let (old_v, old_w) = (a.block((j + 1, n), (at, j)), w.block((j + 1, n), (0, done)));
    for (x, z) in [(old_w, old_v), (old_v, old_w)] {
        let mut part = vec![T::zero(); done];
        (kernels.gemv_adjoint)(T::ONE, x, &v, &mut part);
        (kernels.gemv)(-T::ONE, z, &part, &mut y);
    }
    y.iter_mut().for_each(|x| *x = *x * tau);
    let by = -(tau * (kernels.dot)(&y, &v)).scale(T::Real::of(0.5));
    (kernels.axpy)(by, &v, &mut y);
    w.column_mut(done)[j + 1..].copy_from_slice(&y);
}

/// Subtracts `V Wᴴ + W Vᴴ` from the lower triangle behind a panel.
fn subtract_rank_2<T: MatrixScalar>(a: &mut Matrix<T>, w: &Matrix<T>, (at, end): (usize, usize)) {
    const WIDTH: usize = 48;
    let n = a.rows;
    let width = end - at;
    let (v, w) = (a.copied((end, n), (at, end)), w.copied((end, n), (0, width)));
    let mut both = v.clone();
    both.data.extend_from_slice(&w.data);
    both.columns = 2 * width;
    let mut right = w;
    right.data.extend_from_slice(&v.data);
    right.columns = 2 * width;
    let right = right.adjoint();
    for left in (0..n - end).step_by(WIDTH) {
        let stop = (left + WIDTH).min(n - end);
        let x = both.block((left, n - end), (0, 2 * width));
        let y = right.block((0, 2 * width), (left, stop));
        (T::kernels().gemm)(-T::ONE, x, y, a.block_mut((end + left, n), (end + left, end + stop)));
    }
}

/// Q of a reduced matrix.
fn orgtr<T: MatrixScalar>(a: &Matrix<T>, taus: &[T]) -> Matrix<T> {
    bordered(&a.copied((1.min(a.rows), a.rows), (0, a.rows.saturating_sub(1))), taus)
}

/// `[[1, 0], [0, Q]]` for the reflectors of Q.
pub(crate) fn bordered<T: MatrixScalar>(reflectors: &Matrix<T>, taus: &[T]) -> Matrix<T> {
    let n = reflectors.rows;
    let mut inner = Matrix::identity(n, n);
    apply_q(reflectors, taus, (true, false), &mut inner, true);
    let mut q = Matrix::identity(n + 1, n + 1);
    for j in 0..n {
        q.column_mut(j + 1)[1..].copy_from_slice(inner.column(j));
    }
    q
}

/// Plane rotation `[c s; −s c] (f, g) = (r, 0)`: c, s and r.
pub(crate) fn givens<R: Real>(f: R, g: R) -> (R, R, R) {
    let zero = R::default();
    if g == zero {
        return (R::ONE, zero, f);
    }
    if f == zero {
        return (zero, R::ONE, g);
    }
    let square = f * f + g * g;
    let r = if square > R::TINY / R::EPSILON && square < R::EPSILON / R::TINY {
        square.sqrt()
    } else {
        f.hypot(g)
    };
    let r = r.copysign(f);
    (f / r, g / r, r)
}

/// Rotations of the columns of a matrix that are applied later, together.
pub(crate) struct RotationBatch<R> {
    rotations: Vec<Rotation<R>>,
    /// Real parts, and below them imaginary parts.
    columns: Matrix<R>,
}

impl<R: Real> RotationBatch<R> {
    pub(crate) fn new<T: MatrixScalar<Real = R>>(z: &Matrix<T>) -> RotationBatch<R> {
        let rows = z.rows;
        let mut columns = Matrix::zeros(if T::IS_COMPLEX { 2 * rows } else { rows }, z.columns);
        for j in 0..z.columns {
            let (re, im) = columns.column_mut(j).split_at_mut(rows);
            re.iter_mut().zip(z.column(j)).for_each(|(to, x)| *to = x.re());
            im.iter_mut().zip(z.column(j)).for_each(|(to, x)| *to = x.im());
        }
        RotationBatch { rotations: Vec::new(), columns }
    }

    pub(crate) fn push(&mut self, k: usize, c: R, s: R) {
        self.rotations.push(Rotation { k: k as u32, c, s });
    }

    /// Applies the rotations once they are many.
    pub(crate) fn settle(&mut self) {
        if self.rotations.len() > 48 * self.columns.columns {
            self.apply();
        }
    }

    fn apply(&mut self) {
        (R::kernels().rotate)(&self.rotations, self.columns.view_mut());
        self.rotations.clear();
    }

    /// Returns the rotated columns, in an order.
    pub(crate) fn finish<T: MatrixScalar<Real = R>>(mut self, order: &[usize]) -> Matrix<T> {
        self.apply();
        let rows = self.columns.rows / if T::IS_COMPLEX { 2 } else { 1 };
        let mut out = Matrix::zeros(rows, self.columns.columns);
        for (j, from) in order.iter().copied().chain(order.len()..self.columns.columns).enumerate() {
            let column = self.columns.column(from);
            for (i, to) in out.column_mut(j).iter_mut().enumerate() {
                *to = T::new(column[i], if T::IS_COMPLEX { column[rows + i] } else { R::default() });
            }
        }
        out
    }
}

/// Iterations for each eigenvalue.
const ITERATIONS: usize = 60;

/// Diagonalizes a tridiagonal matrix; returns whether all iterations converged.
fn steqr<R: Real>(d: &mut [R], e: &mut [R], mut z: Option<&mut RotationBatch<R>>) -> bool {
    let n = d.len();
    let negligible = |d: &[R], e: &[R], i: usize| {
        let size = e[i].modulus();
        size <= R::TINY || size <= R::EPSILON * d[i].modulus().sqrt() * d[i + 1].modulus().sqrt()
    };
    let mut left = ITERATIONS * n;
    let mut start = 0;
    while start < n {
        let mut end = start;
        while end + 1 < n && !negligible(d, e, end) {
            end += 1;
        }
        if end + 1 < n {
            e[end] = R::default();
        }
        let next = end + 1;
        let (mut low, mut high) = (start, end);
        while low < high {
            if left == 0 {
                return false;
            }
            left -= 1;
            // Eigenvalues are found at the end with the smaller elements.
            if d[high].modulus() < d[low].modulus() {
                let m = (low..high).rev().find(|i| negligible(d, e, *i));
                match m {
                    Some(m) if m + 1 == high => (e[m], high) = (R::default(), high - 1),
                    m => sweep_down(d, e, m.map_or(low, |m| m + 1), high, &mut z),
                }
            } else {
                let m = (low..high).find(|i| negligible(d, e, *i));
                match m {
                    Some(m) if m == low => (e[m], low) = (R::default(), low + 1),
                    m => sweep_up(d, e, low, m.unwrap_or(high), &mut z),
                }
            }
            if let Some(z) = &mut z {
                z.settle();
            }
        }
        start = next;
    }
    true
}

/// Shift from the two rows at one end: the eigenvalue near `own`.
fn shift<R: Real>(own: R, other: R, e: R, far: R) -> R {
    let g = (other - own) / (e + e);
    let r = g.hypot(R::ONE);
    far - own + e / (g + r.copysign(g))
}

/// QR iteration of rows m to l, whose last eigenvalue converges.
fn sweep_down<R: Real>(d: &mut [R], e: &mut [R], m: usize, l: usize, z: &mut Option<&mut RotationBatch<R>>) {
    let mut g = shift(d[l], d[l - 1], e[l - 1], d[m]);
    let (mut s, mut c, mut p) = (R::ONE, R::ONE, R::default());
    for i in m..l {
        let (f, b) = (s * e[i], c * e[i]);
        let r;
        (c, s, r) = givens(g, f);
        if i != m {
            e[i - 1] = r;
        }
        g = d[i] - p;
        let r = (d[i + 1] - g) * s + (c + c) * b;
        p = s * r;
        d[i] = g + p;
        g = c * r - b;
        if let Some(z) = z {
            z.push(i, c, s);
        }
    }
    d[l] -= p;
    e[l - 1] = g;
}

/// QL iteration of rows l to m, whose first eigenvalue converges.
fn sweep_up<R: Real>(d: &mut [R], e: &mut [R], l: usize, m: usize, z: &mut Option<&mut RotationBatch<R>>) {
    let mut g = shift(d[l], d[l + 1], e[l], d[m]);
    let (mut s, mut c, mut p) = (R::ONE, R::ONE, R::default());
    for i in (l..m).rev() {
        let (f, b) = (s * e[i], c * e[i]);
        let r;
        (c, s, r) = givens(g, f);
        if i + 1 != m {
            e[i + 1] = r;
        }
        g = d[i + 1] - p;
        let r = (d[i] - g) * s + (c + c) * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        if let Some(z) = z {
            z.push(i, c, -s);
        }
    }
    d[l] -= p;
    e[l] = g;
}

/// Power of two that brings elements into the range where squares neither overflow nor vanish, or 1.
pub(crate) fn scaling<T: MatrixScalar>(a: &[T]) -> T::Real {
    let most = a.iter().fold(T::Real::default(), |m, x| m.most(x.re().modulus()).most(x.im().modulus()));
    let small = (T::Real::TINY / T::Real::EPSILON).sqrt();
    if most == T::Real::default() || most.is_bad() || (most >= small && most <= T::Real::ONE / small) {
        return T::Real::ONE;
    }
    let (mut by, half, two) = (T::Real::ONE, T::Real::of(0.5), T::Real::of(2.0));
    while most * by < T::Real::ONE {
        by = by * two;
    }
    while most * by > two {
        by = by * half;
    }
    by
}

/// Eigenvalues in ascending order, and eigenvectors in place of a, of which the lower triangle is read; returns the
/// values and whether the iterations converged.
pub fn eigh<T: MatrixScalar>(a: &mut Matrix<T>, with_vectors: bool) -> (Vec<T::Real>, bool) {
    let n = a.rows;
    if n == 0 {
        return (Vec::new(), true);
    }
    a.keep_triangle(true);
    if a.data.iter().any(|x| x.is_bad()) {
        return (vec![T::Real::default(); n], false);
    }
    let by = scaling(&a.data);
    if by != T::Real::ONE {
        a.data.iter_mut().for_each(|x| *x = x.scale(by));
    }
    let Tridiagonal { mut d, mut e, taus } = sytrd(a);
    let mut batch = with_vectors.then(|| RotationBatch::new(&orgtr(a, &taus)));
    let converged = steqr(&mut d, &mut e, batch.as_mut());
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| d[i].partial_cmp(&d[j]).unwrap_or(std::cmp::Ordering::Equal));
    if let Some(batch) = batch {
        *a = batch.finish(&order);
    }
    (order.iter().map(|&i| d[i] / by).collect(), converged)
}
