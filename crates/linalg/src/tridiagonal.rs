//! Tridiagonal systems of equations.

use crate::matrix_slice::MatrixSliceMut;
use crate::scalar::{MatrixScalar, Real};

/// Solves a tridiagonal system for each column of b, with partial pivoting; dl, d and du become the factors. Returns the
/// 1-based index of a zero pivot, or 0. Source: LAPACK's gtsv.
pub fn gtsv<T: MatrixScalar>(dl: &mut [T], d: &mut [T], du: &mut [T], mut b: MatrixSliceMut<T>) -> i32 {
    let zero = eliminate(dl, d, du, &mut b);
    if zero == 0 {
        substitute(dl, d, du, &mut b);
    }
    zero
}

/// Like [`gtsv`], but for a singular matrix too: pivots smaller than ε max |U| are replaced by that number, with their
/// sign. The solution of such a system is large, and points in the direction of the null space (inverse iteration).
pub fn gtsv_perturbed<T: MatrixScalar>(dl: &mut [T], d: &mut [T], du: &mut [T], mut b: MatrixSliceMut<T>) {
    eliminate(dl, d, du, &mut b);
    let n = d.len();
    // The factors of the last rows have no elements to their right.
    let right = du.iter().take(n.saturating_sub(1)).chain(dl.iter().take(n.saturating_sub(2)));
    let largest = d.iter().chain(right).fold(T::Real::ZERO, |most, x| most.most(x.modulus()));
    let least = if largest == T::Real::ZERO { T::Real::EPSILON } else { largest * T::Real::EPSILON };
    for pivot in d.iter_mut() {
        let size = pivot.modulus();
        if size == T::Real::ZERO {
            *pivot = T::real(least);
        } else if size < least {
            *pivot = pivot.scale(least / size);
        }
    }
    substitute(dl, d, du, &mut b);
}

/// Factors the matrix, and applies L⁻¹ to b: d, du and dl become the diagonals of U. Returns the 1-based index of the first
/// pivot that is zero, or 0.
fn eliminate<T: MatrixScalar>(dl: &mut [T], d: &mut [T], du: &mut [T], b: &mut MatrixSliceMut<T>) -> i32 {
    let n = d.len();
    for k in 0..n.saturating_sub(1) {
        if dl[k] == T::zero() {
            // Nothing to eliminate, even if the pivot is zero.
        } else if d[k].size() >= dl[k].size() {
            let by = dl[k] / d[k];
            d[k + 1] -= by * du[k];
            (0..b.columns).for_each(|j| {
                let x = b.column(j);
                x[k + 1] -= by * x[k];
            });
            dl[k] = T::zero();
        } else {
            let by = d[k] / dl[k];
            d[k] = dl[k];
            let old = d[k + 1];
            d[k + 1] = du[k] - by * old;
            if k + 2 < n {
                dl[k] = du[k + 1];
                du[k + 1] = -(by * dl[k]);
            }
            du[k] = old;
            (0..b.columns).for_each(|j| {
                let x = b.column(j);
                (x[k], x[k + 1]) = (x[k + 1], x[k] - by * x[k + 1]);
            });
        }
    }
    d.iter().position(|pivot| *pivot == T::zero()).map_or(0, |k| k as i32 + 1)
}

/// Applies U⁻¹ to b.
fn substitute<T: MatrixScalar>(dl: &[T], d: &[T], du: &[T], b: &mut MatrixSliceMut<T>) {
    let n = d.len();
    for j in 0..b.columns {
        let x = b.column(j);
        for k in (0..n).rev() {
            let mut sum = x[k];
            if k + 1 < n {
                sum -= du[k] * x[k + 1];
            }
            if k + 2 < n {
                sum -= dl[k] * x[k + 2];
            }
            x[k] = sum / d[k];
        }
    }
}
