//! Tridiagonal systems of equations.

use crate::matrix_slice::MatrixSliceMut;
use crate::scalar::MatrixScalar;

/// Solves a tridiagonal system for each column of b, with partial pivoting; dl, d and du become the factors. Returns the
/// 1-based index of a zero pivot, or 0. Source: LAPACK's gtsv.
pub fn gtsv<T: MatrixScalar>(dl: &mut [T], d: &mut [T], du: &mut [T], mut b: MatrixSliceMut<T>) -> i32 {
    let n = d.len();
    for k in 0..n.saturating_sub(1) {
        if dl[k] == T::zero() {
            if d[k] == T::zero() {
                return k as i32 + 1;
            }
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
    if n > 0 && d[n - 1] == T::zero() {
        return n as i32;
    }
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
    0
}
