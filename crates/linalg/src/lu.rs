//! LU decomposition with partial pivoting, Cholesky decomposition and triangular solves.
//!
//! Source: LAPACK's getrf, potrf and BLAS's trsm, as divide and conquer.

use crate::matrix::{Matrix, MatrixSlice, MatrixSliceMut};
use crate::scalar::{MatrixScalar, Real};

/// Size at which recursion ends.
const SMALL: usize = 32;

/// Solves `X Lᵀ = B` in place of B, for a lower triangular L; with `unit` its diagonal is taken as ones.
pub(crate) fn solve_right<T: MatrixScalar>(l: MatrixSlice<T>, unit: bool, b: MatrixSliceMut<T>) {
    let n = l.rows;
    if b.rows == 1 {
        return solve_vector(l, unit, b);
    }
    if n <= SMALL {
        return (T::kernels().solve_right)(l, unit, b);
    }
    let half = (n / 2).next_multiple_of(8).min(n - 1);
    let part = |top: usize, left: usize, rows: usize, columns: usize| MatrixSlice {
        data: &l.data[top + left * l.stride..],
        stride: l.stride,
        rows,
        columns,
    };
    let (rows, stride) = (b.rows, b.stride);
    if rows == 0 {
        return;
    }
    let (first, rest) = b.data.split_at_mut(half * stride);
    solve_right(part(0, 0, half, half), unit, MatrixSliceMut { data: first, stride, rows, columns: half });
    let below = transposed(part(half, 0, n - half, half));
    let x = MatrixSlice { data: first, stride, rows, columns: half };
    let mut rest = MatrixSliceMut { data: rest, stride, rows, columns: n - half };
    (T::kernels().gemm)(-T::ONE, x, below.view(), rest.part());
    solve_right(part(half, half, n - half, n - half), unit, rest);
}

/// Like [`solve_right`] for one row: `L x = b`, by columns of L.
fn solve_vector<T: MatrixScalar>(l: MatrixSlice<T>, unit: bool, mut b: MatrixSliceMut<T>) {
    let n = l.rows;
    let mut x: Vec<T> = (0..n).map(|j| b.column(j)[0]).collect();
    for at in (0..n).step_by(SMALL) {
        let end = (at + SMALL).min(n);
        for k in at..end {
            let column = &l.column(k)[k..end];
            if !unit {
                x[k] = x[k] / column[0];
            }
            let value = x[k];
            x[k + 1..end].iter_mut().zip(&column[1..]).for_each(|(x, l)| *x -= value * *l);
        }
        let (known, rest) = x.split_at_mut(end);
        if end < n {
            let below = MatrixSlice {
                data: &l.data[end + at * l.stride..],
                stride: l.stride,
                rows: n - end,
                columns: end - at,
            };
            (T::kernels().gemv)(-T::ONE, below, &known[at..], rest);
        }
    }
    x.iter().enumerate().for_each(|(j, x)| b.column(j)[0] = *x);
}

fn transposed<T: MatrixScalar>(a: MatrixSlice<T>) -> Matrix<T> {
    Matrix::from_fn(a.columns, a.rows, |i, j| a.column(i)[j])
}

/// Solves `L X = B` in place of B.
fn solve_left<T: MatrixScalar>(l: MatrixSlice<T>, unit: bool, mut b: MatrixSliceMut<T>) {
    let mut turned =
        transposed(MatrixSlice { data: b.data, stride: b.stride, rows: b.rows, columns: b.columns });
    solve_right(l, unit, turned.view_mut());
    for j in 0..b.columns {
        b.column(j).iter_mut().enumerate().for_each(|(i, x)| *x = turned.at(j, i));
    }
}

/// Solves `X Lᵀ = B` in place of B, for a triangular L, whose elements are overwritten.
pub fn trsm<T: MatrixScalar>(l: &mut Matrix<T>, lower: bool, unit: bool, b: &mut Matrix<T>) {
    let n = l.rows;
    let backwards = |b: &mut Matrix<T>| {
        for j in 0..n / 2 {
            let (x, y) = b.two_columns(j, n - 1 - j);
            x.swap_with_slice(y);
        }
    };
    if lower {
        return solve_right(l.view(), unit, b.view_mut());
    }
    // With rows and columns in the opposite order, an upper triangle is a lower one.
    l.data.reverse();
    backwards(b);
    solve_right(l.view(), unit, b.view_mut());
    backwards(b);
}

/// Replaces a by L and U; returns the 1-based pivots, and the 1-based index of the first zero on U's diagonal, or 0.
pub fn getrf<T: MatrixScalar>(a: &mut Matrix<T>) -> (Vec<i32>, i32) {
    let count = a.rows.min(a.columns);
    let mut pivots = vec![0; count];
    let mut info = 0;
    factor(a, (0, count), &mut pivots, &mut info);
    if a.columns > count {
        let n = a.columns;
        exchange(a, &pivots, (0, count), (count, n));
        eliminate(a, (0, count), (count, n));
    }
    (pivots, info)
}

/// Factors columns `from..to`, from the diagonal down.
fn factor<T: MatrixScalar>(
    a: &mut Matrix<T>,
    (from, to): (usize, usize),
    pivots: &mut [i32],
    info: &mut i32,
) {
    if to - from <= 8 {
        return (from..to).for_each(|j| step(a, j, (from, to), pivots, info));
    }
    let middle = from + ((to - from) / 2).next_multiple_of(8).min(to - from - 1);
    factor(a, (from, middle), pivots, info);
    exchange(a, pivots, (from, middle), (middle, to));
    eliminate(a, (from, middle), (middle, to));
    factor(a, (middle, to), pivots, info);
    exchange(a, pivots, (middle, to), (from, middle));
}

/// Eliminates column j in the columns `from..to`.
fn step<T: MatrixScalar>(
    a: &mut Matrix<T>,
    j: usize,
    (from, to): (usize, usize),
    pivots: &mut [i32],
    info: &mut i32,
) {
    let m = a.rows;
    let column = a.column(j);
    let (mut best, mut most) = (j, column[j].size());
    for (i, x) in column.iter().enumerate().skip(j + 1) {
        let size = x.size();
        if size > most || size.is_nan() && !most.is_nan() {
            (best, most) = (i, size);
        }
    }
    pivots[j] = best as i32 + 1;
    if best != j {
        (from..to).for_each(|k| a.column_mut(k).swap(j, best));
    }
    let head = a.at(j, j);
    if head == T::zero() {
        if *info == 0 {
            *info = j as i32 + 1;
        }
        return;
    }
    let by = T::ONE / head;
    let is_tiny = head.size() < T::Real::TINY / T::Real::EPSILON;
    a.column_mut(j)[j + 1..].iter_mut().for_each(|x| *x = if is_tiny { *x / head } else { *x * by });
    for k in j + 1..to {
        let (factors, target) = a.two_columns(j, k);
        let value = target[j];
        (T::kernels().axpy)(-value, &factors[j + 1..m], &mut target[j + 1..m]);
    }
}

/// Swaps rows by the pivots of some columns, in other columns.
fn exchange<T: MatrixScalar>(
    a: &mut Matrix<T>,
    pivots: &[i32],
    (from, to): (usize, usize),
    columns: (usize, usize),
) {
    for k in columns.0..columns.1 {
        let column = a.column_mut(k);
        (from..to).for_each(|j| column.swap(j, pivots[j] as usize - 1));
    }
}

/// Updates columns to the right of factored ones.
fn eliminate<T: MatrixScalar>(a: &mut Matrix<T>, (from, to): (usize, usize), (left, right): (usize, usize)) {
    let m = a.rows;
    let l = a.copied((from, m), (from, to));
    solve_left(l.block((0, to - from), (0, to - from)), true, a.block_mut((from, to), (left, right)));
    if to < m {
        let u = a.copied((from, to), (left, right));
        let below = l.block((to - from, m - from), (0, to - from));
        (T::kernels().gemm)(-T::ONE, below, u.view(), a.block_mut((to, m), (left, right)));
    }
}

/// Replaces the lower triangle by L with `L Lᴴ = A`; returns the 1-based index of the first pivot that is not positive, or 0.
pub fn potrf<T: MatrixScalar>(a: &mut Matrix<T>) -> i32 {
    let n = a.rows;
    cholesky(a, (0, n))
}

fn cholesky<T: MatrixScalar>(a: &mut Matrix<T>, (from, to): (usize, usize)) -> i32 {
    if to - from <= SMALL {
        let info = (T::kernels().cholesky)(a.block_mut((from, to), (from, to)));
        return if info == 0 { 0 } else { from as i32 + info };
    }
    let half = from + ((to - from) / 2).next_multiple_of(8);
    let info = cholesky(a, (from, half));
    if info != 0 {
        return info;
    }
    // L₂₁ = A₂₁ L₁₁⁻ᴴ.
    let mut l = a.copied((from, half), (from, half));
    if T::IS_COMPLEX {
        l.data.iter_mut().for_each(|x| *x = x.conj());
    }
    solve_right(l.view(), false, a.block_mut((half, to), (from, half)));
    let new = a.copied((half, to), (from, half));
    subtract_square(a, (half, to), &new, &new.adjoint());
    cholesky(a, (half, to))
}

/// Subtracts `x y` from the lower triangle of a diagonal block.
fn subtract_square<T: MatrixScalar>(
    a: &mut Matrix<T>,
    (from, to): (usize, usize),
    x: &Matrix<T>,
    y: &Matrix<T>,
) {
    const WIDTH: usize = 48;
    for at in (from..to).step_by(WIDTH) {
        let end = (at + WIDTH).min(to);
        let rows = x.block((at - from, to - from), (0, x.columns));
        let columns = y.block((0, y.rows), (at - from, end - from));
        (T::kernels().gemm)(-T::ONE, rows, columns, a.block_mut((at, to), (at, end)));
    }
}
