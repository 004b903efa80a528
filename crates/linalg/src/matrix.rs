//! Column-major matrices.

pub use crate::matrix_slice::{MatrixSlice, MatrixSliceMut};
use crate::scalar::MatrixScalar;

/// Column-major matrix.
#[derive(Clone, Debug)]
pub struct Matrix<T> {
    /// Elements, column by column.
    pub data: Vec<T>,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

impl<T: MatrixScalar> Matrix<T> {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, columns: usize) -> Matrix<T> {
        Matrix { data: vec![T::zero(); rows * columns], rows, columns }
    }

    /// A matrix with ones on the diagonal.
    pub fn identity(rows: usize, columns: usize) -> Matrix<T> {
        let mut m = Matrix::zeros(rows, columns);
        (0..rows.min(columns)).for_each(|i| m.set(i, i, T::ONE));
        m
    }

    /// A matrix of the values of `f(i, j)`.
    pub fn from_fn(rows: usize, columns: usize, f: impl Fn(usize, usize) -> T) -> Matrix<T> {
        let mut m = Matrix::zeros(rows, columns);
        for j in 0..columns {
            m.column_mut(j).iter_mut().enumerate().for_each(|(i, x)| *x = f(i, j));
        }
        m
    }

    /// Element (i, j).
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> T {
        self.data[i + j * self.rows]
    }

    /// Sets element (i, j).
    #[inline(always)]
    pub fn set(&mut self, i: usize, j: usize, value: T) {
        self.data[i + j * self.rows] = value;
    }

    /// Column j.
    pub fn column(&self, j: usize) -> &[T] {
        &self.data[j * self.rows..(j + 1) * self.rows]
    }

    /// Column j, writable.
    pub fn column_mut(&mut self, j: usize) -> &mut [T] {
        &mut self.data[j * self.rows..(j + 1) * self.rows]
    }

    /// Two different columns, writable.
    pub fn two_columns(&mut self, j: usize, k: usize) -> (&mut [T], &mut [T]) {
        let n = self.rows;
        if j < k {
            let (low, high) = self.data.split_at_mut(k * n);
            (&mut low[j * n..(j + 1) * n], &mut high[..n])
        } else {
            let (high, low) = self.two_columns(k, j);
            (low, high)
        }
    }

    /// Rows and columns in half-open ranges.
    pub fn block(&self, (top, bottom): (usize, usize), (left, right): (usize, usize)) -> MatrixSlice<'_, T> {
        let start = (left * self.rows + top).min(self.data.len());
        MatrixSlice {
            data: &self.data[start..],
            stride: self.rows,
            rows: bottom - top,
            columns: right - left,
        }
    }

    /// Like [`Matrix::block`], writable.
    pub fn block_mut(
        &mut self,
        (top, bottom): (usize, usize),
        (left, right): (usize, usize),
    ) -> MatrixSliceMut<'_, T> {
        let start = (left * self.rows + top).min(self.data.len());
        MatrixSliceMut {
            stride: self.rows,
            data: &mut self.data[start..],
            rows: bottom - top,
            columns: right - left,
        }
    }

    /// The whole matrix.
    pub fn view(&self) -> MatrixSlice<'_, T> {
        self.block((0, self.rows), (0, self.columns))
    }

    /// The whole matrix, writable.
    pub fn view_mut(&mut self) -> MatrixSliceMut<'_, T> {
        self.block_mut((0, self.rows), (0, self.columns))
    }

    /// A copy of a block.
    pub fn copied(&self, rows: (usize, usize), columns: (usize, usize)) -> Matrix<T> {
        let block = self.block(rows, columns);
        let mut data = Vec::with_capacity(block.rows * block.columns);
        (0..block.columns).for_each(|j| data.extend_from_slice(block.column(j)));
        Matrix { data, rows: block.rows, columns: block.columns }
    }

    /// The conjugate transpose.
    pub fn adjoint(&self) -> Matrix<T> {
        transposed(self.rows, self.columns, &self.data, T::conj)
    }

    /// The transpose.
    pub fn transpose(&self) -> Matrix<T> {
        transposed(self.rows, self.columns, &self.data, |x| x)
    }

    /// `self · other`.
    pub fn product(&self, other: &Matrix<T>) -> Matrix<T> {
        let mut out = Matrix::zeros(self.rows, other.columns);
        (T::kernels().gemm)(T::ONE, self.view(), other.view(), out.view_mut());
        out
    }

    /// Sets elements above the diagonal, or below it, to zero.
    pub fn keep_triangle(&mut self, lower: bool) {
        for j in 0..self.columns {
            let n = self.rows;
            let column = self.column_mut(j);
            let clear = if lower { 0..j.min(n) } else { (j + 1).min(n)..n };
            column[clear].fill(T::zero());
        }
    }
}

/// Transposes in blocks that fit in the cache.
fn transposed<T: MatrixScalar>(rows: usize, columns: usize, data: &[T], f: impl Fn(T) -> T) -> Matrix<T> {
    const SIZE: usize = 16;
    let mut out = Matrix::zeros(columns, rows);
    for i0 in (0..rows).step_by(SIZE) {
        for j0 in (0..columns).step_by(SIZE) {
            for i in i0..(i0 + SIZE).min(rows) {
                for j in j0..(j0 + SIZE).min(columns) {
                    out.data[j + i * columns] = f(data[i + j * rows]);
                }
            }
        }
    }
    out
}
