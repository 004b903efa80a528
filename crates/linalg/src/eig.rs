//! Eigenvalues and eigenvectors of general matrices, from their Schur form.
//!
//! Source: LAPACK's trevc and geev.

use crate::householder::norm;
use crate::matrix::Matrix;
use crate::scalar::{Complex, MatrixScalar, Real};
use crate::schur::Schur;

/// Eigenvalues on the diagonal of a Schur form.
pub fn eigenvalues<T: MatrixScalar>(t: &Matrix<T>) -> Vec<Complex<T::Real>> {
    let n = t.rows;
    let mut values: Vec<Complex<T::Real>> =
        (0..n).map(|i| Complex { re: t.at(i, i).re(), im: t.at(i, i).im() }).collect();
    for i in 1..n {
        if !T::IS_COMPLEX && t.at(i, i - 1) != T::zero() {
            let im = t.at(i, i - 1).modulus().sqrt() * t.at(i - 1, i).modulus().sqrt();
            (values[i - 1].im, values[i].im) = (im, -im);
        }
    }
    values
}

/// Eigenvectors of norm 1, in columns, from a Schur form; complex ones have a real largest element.
pub fn eigenvectors<T: MatrixScalar>(schur: &Schur<T>, left: bool) -> Matrix<Complex<T::Real>> {
    let n = schur.t.rows;
    let complex = |x: T| Complex { re: x.re(), im: x.im() };
    let z = Matrix::from_fn(n, n, |i, j| complex(schur.z.at(i, j)));
    // Left eigenvectors are the right ones of Tᴴ, which is upper triangular with rows and columns backwards.
    let back = |i: usize| if left { n - 1 - i } else { i };
    let t = Matrix::from_fn(n, n, |i, j| {
        let x = if left { schur.t.at(back(j), back(i)).conj() } else { schur.t.at(i, j) };
        complex(x)
    });
    let mut values = eigenvalues(&schur.t);
    if left {
        values.reverse();
        values.iter_mut().for_each(|x| *x = x.conj());
    }
    let mut x = Matrix::zeros(n, n);
    for j in 0..n {
        let column = substituted(&t, values[j], j);
        for (i, value) in column.into_iter().enumerate() {
            x.set(back(i), back(j), value);
        }
    }
    let mut vectors = z.product(&x);
    for j in 0..n {
        normalize(vectors.column_mut(j), T::IS_COMPLEX || eigenvalue_is_complex(&values, back(j)));
    }
    if !T::IS_COMPLEX {
        conjugate_pairs(&mut vectors, &schur.t);
    }
    vectors
}

fn eigenvalue_is_complex<R: Real>(values: &[Complex<R>], j: usize) -> bool {
    values[j].im != R::default()
}

/// The second vector of a pair is the conjugate of the first.
fn conjugate_pairs<T: MatrixScalar>(vectors: &mut Matrix<Complex<T::Real>>, t: &Matrix<T>) {
    for i in 1..t.rows {
        if t.at(i, i - 1) != T::zero() {
            let (x, y) = vectors.two_columns(i - 1, i);
            y.iter_mut().zip(&*x).for_each(|(y, x)| *y = x.conj());
        }
    }
}

/// Solves `(T − value) x = 0` by back substitution, for the eigenvalue of row j.
fn substituted<R: Real>(t: &Matrix<Complex<R>>, value: Complex<R>, j: usize) -> Vec<Complex<R>> {
    type C<R> = Complex<R>;
    let n = t.rows;
    let zero = C::<R>::zero();
    let pairs = |i: usize| i > 0 && t.at(i, i - 1) != zero;
    let floor = (R::EPSILON * norm_of(t, value, j)).most(R::TINY / R::EPSILON);
    let safe = |x: C<R>| if x.size() < floor { C::real(floor) } else { x };
    let mut x = vec![zero; n];
    // The block of the eigenvalue itself.
    let mut top = if pairs(j) { j - 1 } else { j };
    let last = if j + 1 < n && pairs(j + 1) { j + 1 } else { j };
    x[last] = C::ONE;
    if last > top || pairs(last) {
        top = last - 1;
        // Of the two equations, the one with the larger off-diagonal element.
        if t.at(top, last).size() >= t.at(last, top).size() {
            x[top] = C::ONE;
            x[last] = (value - t.at(top, top)) / t.at(top, last);
        } else {
            x[top] = (value - t.at(last, last)) / t.at(last, top);
        }
    }
    // Right-hand side of the rows above.
    let mut b: Vec<C<R>> = vec![zero; top];
    for k in top..=last {
        (C::<R>::kernels().axpy)(-x[k], &t.column(k)[..top], &mut b);
    }
    let limit = R::EPSILON / R::TINY;
    while top > 0 {
        let i = top - 1;
        if pairs(i) {
            let k = i - 1;
            let (p, q, r, s) = (t.at(k, k) - value, t.at(k, i), t.at(i, k), t.at(i, i) - value);
            let det = safe(p * s - q * r);
            x[k] = (s * b[k] - q * b[i]) / det;
            x[i] = (p * b[i] - r * b[k]) / det;
            top = k;
        } else {
            x[i] = b[i] / safe(t.at(i, i) - value);
            top = i;
        }
        b.truncate(top);
        let size = (top..=i).fold(R::default(), |m, k| m.most(x[k].size()));
        if size > limit {
            let by = R::ONE / size;
            x.iter_mut().chain(&mut b).for_each(|v| *v = v.scale(by));
        }
        for k in top..=i {
            (C::<R>::kernels().axpy)(-x[k], &t.column(k)[..top], &mut b);
        }
    }
    x
}

/// Size of the part of a triangular matrix that an eigenvector depends on.
fn norm_of<R: Real>(t: &Matrix<Complex<R>>, value: Complex<R>, j: usize) -> R {
    (0..=j).fold(value.size(), |m, i| m.most(t.at(i, i).size()))
}

/// Scales to norm 1, and turns the largest element onto the real axis.
fn normalize<R: Real>(x: &mut [Complex<R>], turn: bool) {
    let by = R::ONE / norm(x);
    x.iter_mut().for_each(|v| *v = v.scale(by));
    if turn {
        let mut best = Complex::zero();
        let mut at = 0;
        for (i, v) in x.iter().enumerate() {
            if v.square() > best.square() {
                (best, at) = (*v, i);
            }
        }
        let by = best.conj().scale(R::ONE / best.modulus());
        x.iter_mut().for_each(|v| *v = *v * by);
        if let Some(v) = x.get_mut(at) {
            v.im = R::default();
        }
    }
}
