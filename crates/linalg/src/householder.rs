//! Householder reflectors `H = I − τ v vᴴ`, one at a time and in blocks `I − V T Vᴴ`.
//!
//! Source: LAPACK's larfg, larft and larfb; Schreiber and Van Loan, 1989.

use crate::matrix::{Matrix, MatrixSlice, MatrixSliceMut};
use crate::scalar::{MatrixScalar, Real};

/// Euclidean norm, without overflow.
pub(crate) fn norm<T: MatrixScalar>(x: &[T]) -> T::Real {
    let square = (T::kernels().dot)(x, x).re();
    let most = T::Real::ONE / T::Real::TINY;
    if square > T::Real::TINY / T::Real::EPSILON && square < most {
        return square.sqrt();
    }
    let large = x.iter().fold(T::Real::default(), |m, v| m.most(v.re().modulus()).most(v.im().modulus()));
    if large == T::Real::default() || large.is_bad() {
        return large;
    }
    let mut sum = T::Real::default();
    for v in x {
        let (re, im) = (v.re() / large, v.im() / large);
        sum += re * re + im * im;
    }
    large * sum.sqrt()
}

/// Computes β and τ with `Hᴴ (alpha, x) = (β, 0)`, β real; x becomes the rest of v, whose first element is 1.
pub(crate) fn reflector<T: MatrixScalar>(alpha: T, x: &mut [T]) -> (T::Real, T) {
    let below = norm(x);
    if below == T::Real::default() && alpha.im() == T::Real::default() {
        return (alpha.re(), T::zero());
    }
    let size = alpha.modulus().hypot(below);
    let beta = -size.copysign(alpha.re());
    let tau = T::new((beta - alpha.re()) / beta, -(alpha.im() / beta));
    let head = alpha - T::real(beta);
    // Reciprocals of tiny numbers overflow.
    if head.size() < T::Real::TINY / T::Real::EPSILON {
        x.iter_mut().for_each(|v| *v = *v / head);
    } else {
        let by = T::ONE / head;
        x.iter_mut().for_each(|v| *v = *v * by);
    }
    (beta, tau)
}

/// Applies `I − tau v vᴴ` from the left; the first element of v is taken as 1.
pub(crate) fn apply_left<T: MatrixScalar>(tau: T, v: &mut [T], mut c: MatrixSliceMut<T>, work: &mut Vec<T>) {
    if tau == T::zero() || c.columns == 0 || v.is_empty() {
        return;
    }
    let first = std::mem::replace(&mut v[0], T::ONE);
    let v = &mut v[..c.rows];
    work.clear();
    work.resize(c.columns, T::zero());
    let view = MatrixSlice { data: c.data, stride: c.stride, rows: c.rows, columns: c.columns };
    (T::kernels().gemv_adjoint)(T::ONE, view, v, work);
    (T::kernels().ger)(-tau, v, work, c.part());
    v[0] = first;
}

/// Applies `I − tau v vᴴ` from the right; the first element of v is taken as 1.
pub(crate) fn apply_right<T: MatrixScalar>(tau: T, v: &mut [T], mut c: MatrixSliceMut<T>, work: &mut Vec<T>) {
    if tau == T::zero() || c.rows == 0 || v.is_empty() {
        return;
    }
    let first = std::mem::replace(&mut v[0], T::ONE);
    let v = &mut v[..c.columns];
    work.clear();
    work.resize(c.rows, T::zero());
    let view = MatrixSlice { data: c.data, stride: c.stride, rows: c.rows, columns: c.columns };
    (T::kernels().gemv)(T::ONE, view, v, work);
    (T::kernels().ger)(-tau, work, v, c.part());
    v[0] = first;
}

/// Vectors `V` of reflectors with ones on the diagonal and zeros above it, and the triangle T of `I − V T Vᴴ`.
pub(crate) struct Reflectors<T> {
    v: Matrix<T>,
    adjoint: Matrix<T>,
    t: Matrix<T>,
}

impl<T: MatrixScalar> Reflectors<T> {
    /// Takes the vectors below the diagonal of a block.
    pub(crate) fn new(block: MatrixSlice<T>, taus: &[T]) -> Reflectors<T> {
        let width = taus.len();
        let mut v = Matrix::zeros(block.rows, width);
        for j in 0..width {
            let column = v.column_mut(j);
            column[j] = T::ONE;
            column[j + 1..].copy_from_slice(&block.column(j)[j + 1..]);
        }
        let adjoint = v.adjoint();
        let products = adjoint.product(&v);
        let mut t = Matrix::zeros(width, width);
        for j in 0..width {
            for i in 0..j {
                let mut sum = T::zero();
                for k in i..j {
                    sum += t.at(i, k) * products.at(k, j);
                }
                t.set(i, j, -(sum * taus[j]));
            }
            t.set(j, j, taus[j]);
        }
        Reflectors { v, adjoint, t }
    }

    /// Applies Q, or Qᴴ, from the left to a block.
    pub(crate) fn apply_left(&self, adjoint: bool, mut c: MatrixSliceMut<T>) {
        if c.columns == 0 || self.t.rows == 0 {
            return;
        }
        let gemm = T::kernels().gemm;
        let view = MatrixSlice { data: c.data, stride: c.stride, rows: c.rows, columns: c.columns };
        let mut w = Matrix::zeros(self.t.rows, c.columns);
        gemm(T::ONE, self.adjoint.view(), view, w.view_mut());
        let w = if adjoint { self.t.adjoint().product(&w) } else { self.t.product(&w) };
        gemm(-T::ONE, self.v.view(), w.view(), c.part());
    }

    /// Applies Q, or Qᴴ, from the right to a block.
    pub(crate) fn apply_right(&self, adjoint: bool, mut c: MatrixSliceMut<T>) {
        if c.rows == 0 || self.t.rows == 0 {
            return;
        }
        let gemm = T::kernels().gemm;
        let view = MatrixSlice { data: c.data, stride: c.stride, rows: c.rows, columns: c.columns };
        let mut w = Matrix::zeros(c.rows, self.t.rows);
        gemm(T::ONE, view, self.v.view(), w.view_mut());
        let w = w.product(&if adjoint { self.t.adjoint() } else { self.t.clone() });
        gemm(-T::ONE, w.view(), self.adjoint.view(), c.part());
    }
}
