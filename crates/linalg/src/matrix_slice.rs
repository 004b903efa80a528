//! Views of blocks of column-major matrices.

/// View of a column-major block: element (i, j) is `data[i + j * stride]`.
#[derive(Clone, Copy)]
pub struct MatrixSlice<'a, T> {
    /// Elements from the first one on.
    pub data: &'a [T],
    /// Distance between columns.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

/// Like [`MatrixSlice`], writable.
pub struct MatrixSliceMut<'a, T> {
    /// Elements from the first one on.
    pub data: &'a mut [T],
    /// Distance between columns.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

impl<'a, T> MatrixSlice<'a, T> {
    /// Returns column j.
    #[inline(always)]
    pub fn column(&self, j: usize) -> &'a [T] {
        &self.data[j * self.stride..j * self.stride + self.rows]
    }
}

impl<T> MatrixSliceMut<'_, T> {
    /// Returns column j.
    #[inline(always)]
    pub fn column(&mut self, j: usize) -> &mut [T] {
        &mut self.data[j * self.stride..j * self.stride + self.rows]
    }

    /// Borrows the block again.
    pub(crate) fn part(&mut self) -> MatrixSliceMut<'_, T> {
        MatrixSliceMut { data: self.data, stride: self.stride, rows: self.rows, columns: self.columns }
    }
}
