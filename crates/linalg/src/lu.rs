//! LU decomposition with partial pivoting, Cholesky decomposition and triangular solves.
//!
//! Source: LAPACK's getrf, potrf and BLAS's trsm, as divide and conquer.

use crate::matrix::{Matrix, MatrixSlice, MatrixSliceMut};
use crate::scalar::{MatrixScalar, Real};

/// Size at which recursion ends.
const SMALL: usize = 24;

/// Solves `L X = B` in place.
pub(crate) fn solve_lower<T: MatrixScalar>(l: MatrixSlice<T>, unit: bool, mut b: MatrixSliceMut<T>) {
    let n = l.rows;
    if n <= SMALL {
        return (T::kernels().forward)(l, unit, b);
    }
    let half = (n / 2).next_multiple_of(8).min(n - 1);
    let part = |top: usize, left: usize, rows: usize, columns: usize| MatrixSlice {
        data: &l.data[top + left * l.stride..],
        stride: l.stride,
        rows,
        columns,
    };
    solve_lower(part(0, 0, half, half), unit, rows_of(&mut b, 0, half));
    let x = copied(&rows_of(&mut b, 0, half));
    (T::kernels().gemm)(-T::ONE, part(half, 0, n - half, half), x.view(), rows_of(&mut b, half, n));
    solve_lower(part(half, half, n - half, n - half), unit, rows_of(&mut b, half, n));
}

fn rows_of<'a, T>(b: &'a mut MatrixSliceMut<T>, from: usize, to: usize) -> MatrixSliceMut<'a, T> {
    MatrixSliceMut { data: &mut b.data[from..], stride: b.stride, rows: to - from, columns: b.columns }
}

fn copied<T: MatrixScalar>(b: &MatrixSliceMut<T>) -> Matrix<T> {
    let mut data = Vec::with_capacity(b.rows * b.columns);
    (0..b.columns).for_each(|j| data.extend_from_slice(&b.data[j * b.stride..j * b.stride + b.rows]));
    Matrix { data, rows: b.rows, columns: b.columns }
}

/// A triangular matrix in a system of equations.
#[derive(Clone, Copy)]
pub struct Triangle {
    /// Whether the unknown is on the right side of the matrix.
    pub left: bool,
    /// Whether the lower triangle is read.
    pub lower: bool,
    /// Whether the matrix is transposed.
    pub transpose: bool,
    /// Whether the matrix is conjugated.
    pub conjugate: bool,
    /// Whether the diagonal is taken as ones.
    pub unit: bool,
}

/// Solves `op(A) X = B`, or `X op(A) = B`.
pub fn trsm<T: MatrixScalar>(a: &Matrix<T>, b: &Matrix<T>, how: Triangle) -> Matrix<T> {
    // X op(A) = B is op(A)ᵀ Xᵀ = Bᵀ.
    let turn = how.transpose == how.left;
    let lower = how.lower != turn;
    let n = a.rows;
    let flip = |i: usize| if lower { i } else { n - 1 - i };
    let element = |i: usize, j: usize| {
        let (i, j) = (flip(i), flip(j));
        let value = if turn { a.at(j, i) } else { a.at(i, j) };
        if how.conjugate { value.conj() } else { value }
    };
    let l = if lower && !turn && !how.conjugate { a.clone() } else { Matrix::from_fn(n, n, element) };
    let mut x = if how.left { b.clone() } else { b.transpose() };
    let upside_down = |x: &mut Matrix<T>| {
        if !lower {
            (0..x.columns).for_each(|j| x.column_mut(j).reverse());
        }
    };
    upside_down(&mut x);
    solve_lower(l.view(), how.unit, x.view_mut());
    upside_down(&mut x);
    if how.left { x } else { x.transpose() }
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
    solve_lower(l.block((0, to - from), (0, to - from)), true, a.block_mut((from, to), (left, right)));
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
        for j in from..to {
            let pivot = a.at(j, j).re();
            if pivot.is_nan() || pivot <= T::Real::default() {
                return j as i32 + 1;
            }
            let root = pivot.sqrt();
            let by = T::Real::ONE / root;
            a.set(j, j, T::real(root));
            a.column_mut(j)[j + 1..to].iter_mut().for_each(|x| *x = x.scale(by));
            for k in j + 1..to {
                let (column, target) = a.two_columns(j, k);
                (T::kernels().axpy)(-column[k].conj(), &column[k..to], &mut target[k..to]);
            }
        }
        return 0;
    }
    let half = from + ((to - from) / 2).next_multiple_of(8);
    let info = cholesky(a, (from, half));
    if info != 0 {
        return info;
    }
    // L₂₁ = A₂₁ L₁₁⁻ᴴ, of which the adjoint is a forward substitution.
    let l = a.copied((from, half), (from, half));
    let mut below = a.copied((half, to), (from, half)).adjoint();
    solve_lower(l.view(), false, below.view_mut());
    let new = below.adjoint();
    for j in 0..half - from {
        a.column_mut(from + j)[half..to].copy_from_slice(new.column(j));
    }
    subtract_square(a, (half, to), &new, &below);
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
