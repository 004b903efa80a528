//! Triangular systems and Cholesky's decomposition by blocks of rows: what a block changes in later rows is a product,
//! whose sums stay in registers.

use crate::simd::level::{Isa, Tile};
use crate::simd::real::{Real, load, store};
use crate::simd::vector::Vector;
use std::marker::PhantomData;

/// Rows of a block.
pub const BLOCK: usize = 32;
/// Rows whose sums are in registers at a time.
const ROWS: usize = 4;

/// `c[i, j] −= Σ a[k, i] · b[k, j]` for `rows × columns` elements; strides in elements.
#[derive(Clone, Copy)]
struct Update<T> {
    c: *mut T,
    c_row: usize,
    a: *const T,
    /// Strides along k and i.
    a_strides: [usize; 2],
    b: *const T,
    b_row: usize,
    rows: usize,
    columns: usize,
    depth: usize,
}

impl<T: Real> Update<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(&self) {
        let lanes = T::V::<I>::LANES;
        for j in (0..self.columns).step_by(2 * lanes) {
            let left = self.columns - j;
            let mut i = 0;
            // SAFETY: rows and columns lie inside the block.
            unsafe {
                while i + ROWS <= self.rows {
                    if left >= 2 * lanes {
                        self.sums::<T::V<I>, ROWS, true>(i, j, left);
                    } else {
                        self.sums::<T::V<I>, ROWS, false>(i, j, left);
                    }
                    i += ROWS;
                }
                while i < self.rows {
                    if left >= 2 * lanes {
                        self.sums::<T::V<I>, 1, true>(i, j, left);
                    } else {
                        self.sums::<T::V<I>, 1, false>(i, j, left);
                    }
                    i += 1;
                }
            }
        }
    }

    /// `R` rows and two vectors of columns, of which `left` exist.
    #[inline(always)]
    unsafe fn sums<V: Vector<T = T>, const R: usize, const WHOLE: bool>(
        &self,
        i: usize,
        j: usize,
        left: usize,
    ) {
        let counts = [left.min(V::LANES), left.saturating_sub(V::LANES).min(V::LANES)];
        let c = |r: usize, h: usize| self.c.wrapping_add((i + r) * self.c_row + j + h * V::LANES);
        // SAFETY: by the caller's promise; lanes that do not exist are neither read nor written.
        unsafe {
            let mut sums = [[V::splat(T::of(0.0)); 2]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                for (h, sum) in sums.iter_mut().enumerate() {
                    *sum = load::<V, WHOLE>(c(r, h), counts[h]);
                }
            }
            let [along, across] = self.a_strides;
            for k in 0..self.depth {
                let b = self.b.add(k * self.b_row + j);
                let b =
                    [load::<V, WHOLE>(b, counts[0]), load::<V, WHOLE>(b.wrapping_add(V::LANES), counts[1])];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let a = V::splat(T::of(0.0) - *self.a.add(k * along + (i + r) * across));
                    sums[0] = a.mul_add(b[0], sums[0]);
                    sums[1] = a.mul_add(b[1], sums[1]);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                store::<V, WHOLE>(sums[0], c(r, 0), counts[0]);
                store::<V, WHOLE>(sums[1], c(r, 1), counts[1]);
            }
        }
    }
}

/// `row[..n] /= by`
#[inline(always)]
unsafe fn divide<T: Real>(row: *mut T, n: usize, by: T) {
    // SAFETY: by the caller's promise, the row has `n` elements.
    unsafe { std::slice::from_raw_parts_mut(row, n) }.iter_mut().for_each(|x| *x = *x / by);
}

/// Columns of the sides of `l · x = b`, solved in place.
pub struct Solve<T> {
    /// `[n, n]`
    pub l: *const T,
    pub n: usize,
    /// The first of the columns, and the distance of its rows.
    pub x: *mut T,
    pub row: usize,
    pub columns: usize,
    pub unit_diagonal: bool,
}

/// Runs the [`Solve`] that the first operand points to.
pub struct SolveTile<T>(PhantomData<T>);
impl<T: Real> Tile for SolveTile<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, job: *const u8, _: *const u8, _: *const u8, _: usize) {
        // SAFETY: by the type's documentation; rows and columns lie inside the arrays.
        unsafe {
            let s = &*job.cast::<Solve<T>>();
            for first in (0..s.n).step_by(BLOCK) {
                let end = (first + BLOCK).min(s.n);
                let update = |from: usize, rows: usize, depth: usize| Update {
                    c: s.x.wrapping_add(from * s.row),
                    c_row: s.row,
                    a: s.l.wrapping_add(from * s.n + first),
                    a_strides: [1, s.n],
                    b: s.x.wrapping_add(first * s.row).cast_const(),
                    b_row: s.row,
                    rows,
                    columns: s.columns,
                    depth,
                };
                for i in first..end {
                    update(i, 1, i - first).run::<I>();
                    if !s.unit_diagonal {
                        divide(s.x.add(i * s.row), s.columns, *s.l.add(i * s.n + i));
                    }
                }
                update(end, s.n - end, end - first).run::<I>();
            }
        }
    }
}

/// A part of the decomposition a = uᵀ · u, in place: rows of u are made block by block.
pub struct Factor<T> {
    /// `[n, n]`, of which only what lies on and above the diagonal is used.
    pub u: *mut T,
    pub n: usize,
    /// The rows of the block.
    pub first: usize,
    pub end: usize,
    pub part: Part,
}

/// Which part.
#[derive(Clone, Copy)]
pub enum Part {
    /// The block's own columns.
    Diagonal,
    /// So many columns of the block's rows from this one on, when the diagonal is done.
    Columns(usize, usize),
    /// What the block takes from so many later rows from this one on.
    Rows(usize, usize),
}

/// Runs the [`Factor`] that the first operand points to.
pub struct FactorTile<T>(PhantomData<T>);
impl<T: Real> Tile for FactorTile<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, job: *const u8, _: *const u8, _: *const u8, _: usize) {
        // SAFETY: by the type's documentation; rows and columns lie inside the array.
        unsafe {
            let f = &*job.cast::<Factor<T>>();
            let at = |i: usize, j: usize| f.u.wrapping_add(i * f.n + j);
            // Rows from `i` on, columns from `j` on, less what `depth` rows of the block give them.
            let update = |[i, j]: [usize; 2], rows: usize, columns: usize, depth: usize| Update {
                c: at(i, j),
                c_row: f.n,
                a: at(f.first, i).cast_const(),
                a_strides: [f.n, 1],
                b: at(f.first, j).cast_const(),
                b_row: f.n,
                rows,
                columns,
                depth,
            };
            match f.part {
                Part::Diagonal => {
                    for i in f.first..f.end {
                        update([i, i], 1, f.end - i, i - f.first).run::<I>();
                        let root = (*at(i, i)).sqrt();
                        *at(i, i) = root;
                        divide(at(i, i + 1), f.end - i - 1, root);
                    }
                }
                Part::Columns(j, count) => {
                    for i in f.first..f.end {
                        update([i, j], 1, count, i - f.first).run::<I>();
                        divide(at(i, j), count, *at(i, i));
                    }
                }
                Part::Rows(i, count) => update([i, i], count, f.n - i, f.end - f.first).run::<I>(),
            }
        }
    }
}
