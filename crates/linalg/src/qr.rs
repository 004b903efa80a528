//! QR decomposition, with and without column pivoting, and products with its Q.
//!
//! Source: LAPACK's geqrf, orgqr, ormqr and geqp3.

use crate::householder::{Reflectors, apply_left, norm, reflector};
use crate::matrix::{Matrix, MatrixSliceMut};
use crate::scalar::{MatrixScalar, Real};

/// Columns of a panel.
pub(crate) const PANEL: usize = 32;

/// Replaces a by R and the reflectors below its diagonal; returns τ.
pub fn geqrf<T: MatrixScalar>(a: &mut Matrix<T>) -> Vec<T> {
    let (m, n) = (a.rows, a.columns);
    let count = m.min(n);
    let mut taus = Vec::with_capacity(count);
    let mut work = Vec::new();
    for at in (0..count).step_by(PANEL) {
        // The last columns are one panel.
        let end = if n - at <= PANEL + PANEL / 2 { count } else { (at + PANEL).min(count) };
        if at < taus.len() {
            break;
        }
        let right = if end == count { n } else { end };
        for j in at..end {
            taus.push(eliminate(a, j, (j + 1, right), &mut work));
        }
        if right < n {
            let q = Reflectors::new(a.block((at, m), (at, end)), &taus[at..end]);
            q.apply_left(true, a.block_mut((at, m), (end, n)));
        }
    }
    taus
}

/// Eliminates column j below the diagonal, and updates the given columns.
fn eliminate<T: MatrixScalar>(a: &mut Matrix<T>, j: usize, columns: (usize, usize), work: &mut Vec<T>) -> T {
    let m = a.rows;
    let column = &mut a.column_mut(j)[j..];
    let (head, rest) = column.split_at_mut(1);
    let (beta, tau) = reflector(head[0], rest);
    head[0] = T::real(beta);
    if columns.0 < columns.1 && tau != T::zero() {
        let (left, right) = a.data.split_at_mut(columns.0 * m);
        let v = &mut left[j * m + j..(j + 1) * m];
        let block =
            MatrixSliceMut { data: &mut right[j..], stride: m, rows: m - j, columns: columns.1 - columns.0 };
        apply_left(tau.conj(), v, block, work);
    }
    tau
}

/// Replaces a by the first columns of `H₁ H₂ …`.
pub fn orgqr<T: MatrixScalar>(a: &mut Matrix<T>, taus: &[T]) {
    let mut q = Matrix::identity(a.rows, a.columns);
    apply_q(a, taus, (true, false), &mut q, true);
    *a = q;
}

/// Replaces c by `Q c`, or with `(left, adjoint)` by `Qᴴ c`, `c Q`, `c Qᴴ`. `is_identity`: c is the identity, of which
/// only the block that is not trivial is computed.
pub fn apply_q<T: MatrixScalar>(
    a: &Matrix<T>,
    taus: &[T],
    (left, adjoint): (bool, bool),
    c: &mut Matrix<T>,
    is_identity: bool,
) {
    let (m, count) = (a.rows, taus.len());
    if left && count <= PANEL && c.columns <= 2 * PANEL {
        return apply_one_by_one(a, taus, adjoint, c, is_identity);
    }
    let panels: Vec<usize> = (0..count).step_by(PANEL).collect();
    // Q = P₁ P₂ …; the factor next to c comes first.
    let order: Vec<usize> = if left != adjoint { panels.into_iter().rev().collect() } else { panels };
    for at in order {
        let end = (at + PANEL).min(count);
        let q = Reflectors::new(a.block((at, m), (at, end)), &taus[at..end]);
        let (rows, columns) = (c.rows, c.columns);
        let first = if is_identity { at } else { 0 };
        if left {
            q.apply_left(adjoint, c.block_mut((at, m), (first.min(columns), columns)));
        } else {
            q.apply_right(adjoint, c.block_mut((first.min(rows), rows), (at, m)));
        }
    }
}

/// Replaces c by `Q c` or `Qᴴ c`, without blocks.
fn apply_one_by_one<T: MatrixScalar>(
    a: &Matrix<T>,
    taus: &[T],
    adjoint: bool,
    c: &mut Matrix<T>,
    is_identity: bool,
) {
    let (m, count, columns) = (a.rows, taus.len(), c.columns);
    let mut work = Vec::new();
    let mut v = Vec::with_capacity(m);
    for step in 0..count {
        let j = if adjoint { step } else { count - 1 - step };
        v.clear();
        v.extend_from_slice(&a.column(j)[j..]);
        let first = if is_identity { j.min(columns) } else { 0 };
        let tau = if adjoint { taus[j].conj() } else { taus[j] };
        apply_left(tau, &mut v, c.block_mut((j, m), (first, columns)), &mut work);
    }
}

/// Like [`geqrf`] of the permuted columns with descending norms; `order` becomes the 1-based permutation. Columns whose
/// order is not 0 at first stay in front.
pub fn geqp3<T: MatrixScalar>(a: &mut Matrix<T>, order: &mut [i32]) -> Vec<T> {
    let (m, n) = (a.rows, a.columns);
    let mut fixed = 0;
    for j in 0..n {
        let is_fixed = order[j] != 0;
        order[j] = j as i32 + 1;
        if is_fixed {
            if j != fixed {
                swap_columns(a, j, fixed);
                order[j] = order[fixed];
                order[fixed] = j as i32 + 1;
            }
            fixed += 1;
        }
    }
    let mut norms: Vec<T::Real> = vec![T::Real::default(); n];
    let mut first = norms.clone();
    let (mut taus, mut work) = (Vec::new(), Vec::new());
    for j in 0..m.min(n) {
        if j == fixed {
            (j..n).for_each(|k| norms[k] = norm(&a.column(k)[j..]));
            first.copy_from_slice(&norms);
        }
        if j >= fixed {
            let mut best = j;
            for k in j + 1..n {
                if norms[k] > norms[best] {
                    best = k;
                }
            }
            if best != j {
                swap_columns(a, j, best);
                order.swap(j, best);
                norms[best] = norms[j];
                first[best] = first[j];
            }
        }
        taus.push(eliminate(a, j, (j + 1, n), &mut work));
        if j >= fixed {
            (j + 1..n).for_each(|k| downdate(a, j, k, &mut norms, &mut first));
        }
    }
    taus
}

/// Norm of column k below row j, from the norm with row j; computed again after cancellation.
fn downdate<T: MatrixScalar>(
    a: &Matrix<T>,
    j: usize,
    k: usize,
    norms: &mut [T::Real],
    first: &mut [T::Real],
) {
    if norms[k] == T::Real::default() {
        return;
    }
    let ratio = a.at(j, k).modulus() / norms[k];
    let left = (T::Real::ONE - ratio * ratio).most(T::Real::default());
    let since = norms[k] / first[k];
    if left * since * since <= T::Real::EPSILON.sqrt() {
        norms[k] = norm(&a.column(k)[j + 1..]);
        first[k] = norms[k];
    } else {
        norms[k] = norms[k] * left.sqrt();
    }
}

fn swap_columns<T: MatrixScalar>(a: &mut Matrix<T>, j: usize, k: usize) {
    let (x, y) = a.two_columns(j, k);
    x.swap_with_slice(y);
}
