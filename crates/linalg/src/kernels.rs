//! Inner loops of decompositions: dot products, rank-1 updates, matrix products and plane rotations.
//!
//! Kernels are written once over [`RealLanes`], vectors of real numbers. [`Kernels`] holds those for any processor until
//! [`KernelTable::install`] replaces them, which the CPU engine does with vectors of its processor.

use crate::matrix_slice::{MatrixSlice, MatrixSliceMut};
use crate::scalar::{Complex, MatrixScalar, Real};
use std::sync::OnceLock;

/// Kernels of one element type. Matrices are column-major.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// `Σ conj(xᵢ) yᵢ`.
    pub dot: fn(&[T], &[T]) -> T,
    /// `y += a x`.
    pub axpy: fn(T, &[T], &mut [T]),
    /// `y += alpha A x`.
    pub gemv: fn(T, MatrixSlice<T>, &[T], &mut [T]),
    /// `y += alpha Aᴴ x`.
    pub gemv_adjoint: fn(T, MatrixSlice<T>, &[T], &mut [T]),
    /// `A += alpha x yᴴ`.
    pub ger: fn(T, &[T], &[T], MatrixSliceMut<T>),
    /// `y += A x` for a Hermitian matrix of which only the lower triangle is read.
    pub hemv: fn(MatrixSlice<T>, &[T], &mut [T]),
    /// `A −= x yᴴ + y xᴴ`, in the lower triangle.
    pub her2: fn(&[T], &[T], MatrixSliceMut<T>),
    /// `C += alpha A B`.
    pub gemm: fn(T, MatrixSlice<T>, MatrixSlice<T>, MatrixSliceMut<T>),
    /// Solves `X Lᵀ = B` in place of B for a small lower triangular L; with `true` its diagonal is 1.
    pub solve_right: fn(MatrixSlice<T>, bool, MatrixSliceMut<T>),
    /// Replaces the lower triangle of a small matrix by L with `L Lᴴ = A`; returns the 1-based index of the first pivot that
    /// is not positive, or 0.
    pub cholesky: fn(MatrixSliceMut<T>) -> i32,
    /// Rotates pairs of columns; see [`Rotation`].
    pub rotate: fn(&[Rotation<T>], MatrixSliceMut<T>),
}

/// Rotation of columns k and k + 1: `(xₖ, xₖ₊₁) ← (c xₖ + s xₖ₊₁, c xₖ₊₁ − s xₖ)`.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<R> {
    /// Index of the first column.
    pub k: u32,
    /// Cosine.
    pub c: R,
    /// Sine.
    pub s: R,
}

/// Kernels in use.
pub struct KernelTable<T: 'static> {
    portable: Kernels<T>,
    installed: OnceLock<Kernels<T>>,
}

impl<T> KernelTable<T> {
    const fn new(portable: Kernels<T>) -> KernelTable<T> {
        KernelTable { portable, installed: OnceLock::new() }
    }

    /// Replaces the portable kernels; the first call decides.
    pub fn install(&self, kernels: Kernels<T>) {
        let _ = self.installed.set(kernels);
    }

    /// The kernels for any processor.
    pub fn portable(&self) -> &Kernels<T> {
        &self.portable
    }

    /// The kernels in use.
    pub fn current(&self) -> &Kernels<T> {
        self.installed.get().unwrap_or(&self.portable)
    }
}

/// Vector of real numbers. Complex numbers are pairs of a real and an imaginary part.
pub trait RealLanes<R: Real>: Copy {
    /// Number of real numbers; even.
    const COUNT: usize;
    /// The number in all lanes.
    fn splat(x: R) -> Self;
    /// Reads real numbers from the first elements; there must be enough.
    fn load<T: MatrixScalar<Real = R>>(from: &[T]) -> Self;
    /// Reads all elements, fewer than a vector holds; the other lanes are zero.
    fn load_few<T: MatrixScalar<Real = R>>(from: &[T]) -> Self;
    /// Writes to the first elements; there must be enough.
    fn store<T: MatrixScalar<Real = R>>(self, to: &mut [T]);
    /// Writes to all elements, fewer than a vector holds.
    fn store_few<T: MatrixScalar<Real = R>>(self, to: &mut [T]);
    /// `a b + self`.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Products of lanes.
    fn mul(self, other: Self) -> Self;
    /// Exchanges real and imaginary parts.
    fn swapped(self) -> Self;
    /// The sums of even and of odd lanes.
    fn sums(self) -> (R, R);
}

/// Vector for any processor.
#[derive(Clone, Copy)]
pub struct PortableLanes<R>([R; 4]);

impl<R: Real> RealLanes<R> for PortableLanes<R> {
    const COUNT: usize = 4;

    #[inline(always)]
    fn splat(x: R) -> Self {
        PortableLanes([x; 4])
    }

    #[inline(always)]
    fn load<T: MatrixScalar<Real = R>>(from: &[T]) -> Self {
        match T::IS_COMPLEX {
            true => PortableLanes([from[0].re(), from[0].im(), from[1].re(), from[1].im()]),
            false => PortableLanes([from[0].re(), from[1].re(), from[2].re(), from[3].re()]),
        }
    }

    #[inline(always)]
    fn load_few<T: MatrixScalar<Real = R>>(from: &[T]) -> Self {
        let mut all = [T::zero(); 4];
        all[..from.len()].copy_from_slice(from);
        PortableLanes::load(&all)
    }

    #[inline(always)]
    fn store<T: MatrixScalar<Real = R>>(self, to: &mut [T]) {
        let [a, b, c, d] = self.0;
        if T::IS_COMPLEX {
            (to[0], to[1]) = (T::new(a, b), T::new(c, d));
        } else {
            (to[0], to[1], to[2], to[3]) = (T::real(a), T::real(b), T::real(c), T::real(d));
        }
    }

    #[inline(always)]
    fn store_few<T: MatrixScalar<Real = R>>(self, to: &mut [T]) {
        let mut all = [T::zero(); 4];
        self.store(&mut all);
        to.copy_from_slice(&all[..to.len()]);
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        PortableLanes(std::array::from_fn(|i| self.0[i] + a.0[i] * b.0[i]))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        PortableLanes(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }

    #[inline(always)]
    fn swapped(self) -> Self {
        let [a, b, c, d] = self.0;
        PortableLanes([b, a, d, c])
    }

    #[inline(always)]
    fn sums(self) -> (R, R) {
        (self.0[0] + self.0[2], self.0[1] + self.0[3])
    }
}

macro_rules! tables {
    ($($name:ident: $ty:ty, $real:ty;)*) => {$(
        /// Kernels of the element type.
        pub static $name: KernelTable<$ty> = KernelTable::new(Kernels {
            dot: dot::<$ty, PortableLanes<$real>>,
            axpy: axpy::<$ty, PortableLanes<$real>>,
            gemv: gemv::<$ty, PortableLanes<$real>>,
            gemv_adjoint: gemv_adjoint::<$ty, PortableLanes<$real>>,
            ger: ger::<$ty, PortableLanes<$real>>,
            hemv: hemv::<$ty, PortableLanes<$real>>,
            her2: her2::<$ty, PortableLanes<$real>>,
            gemm: gemm::<$ty, PortableLanes<$real>>,
            solve_right: solve_right::<$ty, PortableLanes<$real>>,
            cholesky: cholesky::<$ty, PortableLanes<$real>>,
            rotate: rotate::<$ty, PortableLanes<$real>>,
        });
    )*};
}

tables! { F32: f32, f32; F64: f64, f64; }

/// Kernels of complex numbers.
pub mod complex {
    use super::*;
    tables! { F32: Complex<f32>, f32; F64: Complex<f64>, f64; }
}

/// Elements of a vector.
#[inline(always)]
const fn width<T: MatrixScalar, V: RealLanes<T::Real>>() -> usize {
    if T::IS_COMPLEX { V::COUNT / 2 } else { V::COUNT }
}

/// Dot products of N columns with x, with U vectors of sums each.
#[inline(always)]
fn dots<T: MatrixScalar, V: RealLanes<T::Real>, const N: usize, const U: usize>(
    columns: [&[T]; N],
    x: &[T],
) -> [T; N] {
    let zero = V::splat(T::Real::default());
    let (mut re, mut im) = ([[zero; U]; N], [[zero; U]; N]);
    let step = width::<T, V>() * U;
    let whole = x.len() / step * step;
    let mut at = 0;
    while at < whole {
        for u in 0..U {
            let from = at + u * width::<T, V>();
            let v = V::load(&x[from..]);
            for n in 0..N {
                let a = V::load(&columns[n][from..]);
                re[n][u] = re[n][u].mul_add(a, v);
                if T::IS_COMPLEX {
                    im[n][u] = im[n][u].mul_add(a, v.swapped());
                }
            }
        }
        at += step;
    }
    while at < x.len() {
        let end = (at + width::<T, V>()).min(x.len());
        let v: V = load_part(&x[at..end]);
        for n in 0..N {
            let a = load_part(&columns[n][at..end]);
            re[n][0] = re[n][0].mul_add(a, v);
            if T::IS_COMPLEX {
                im[n][0] = im[n][0].mul_add(a, v.swapped());
            }
        }
        at = end;
    }
    let mut all = [T::zero(); N];
    for n in 0..N {
        for u in 0..U {
            let (even, odd) = re[n][u].sums();
            let (plus, minus) = if T::IS_COMPLEX { im[n][u].sums() } else { Default::default() };
            all[n] += T::new(even + odd, plus - minus);
        }
    }
    all
}

/// Reads a vector, or fewer elements at the end of an array.
#[inline(always)]
fn load_part<T: MatrixScalar, V: RealLanes<T::Real>>(from: &[T]) -> V {
    if from.len() == width::<T, V>() { V::load(from) } else { V::load_few(from) }
}

/// Writes what [`load_part`] reads.
#[inline(always)]
fn store_part<T: MatrixScalar, V: RealLanes<T::Real>>(x: V, to: &mut [T]) {
    if to.len() == width::<T, V>() { x.store(to) } else { x.store_few(to) }
}

/// `y += Σ aₙ xₙ` over N columns.
#[inline(always)]
fn axpys<T: MatrixScalar, V: RealLanes<T::Real>, const N: usize>(a: [T; N], columns: [&[T]; N], y: &mut [T]) {
    let step = width::<T, V>();
    let zero = V::splat(T::Real::default());
    let (mut re, mut im) = ([zero; N], [zero; N]);
    for n in 0..N {
        re[n] = V::splat(a[n].re());
        if T::IS_COMPLEX {
            // i x is (−im, re).
            im[n] = alternating::<T::Real, V>(a[n].im());
        }
    }
    let mut at = 0;
    while at < y.len() {
        let end = (at + step).min(y.len());
        let mut sum: V = load_part(&y[at..end]);
        for n in 0..N {
            let x: V = load_part(&columns[n][at..end]);
            sum = sum.mul_add(re[n], x);
            if T::IS_COMPLEX {
                sum = sum.mul_add(im[n], x.swapped());
            }
        }
        store_part(sum, &mut y[at..end]);
        at = end;
    }
}

/// `(−x, x, −x, x …)`
#[inline(always)]
fn alternating<R: Real, V: RealLanes<R>>(x: R) -> V {
    let pattern: [R; 16] = std::array::from_fn(|i| if i % 2 == 0 { -x } else { x });
    V::load(&pattern)
}

/// [`Kernels::dot`].
#[inline(always)]
pub fn dot<T: MatrixScalar, V: RealLanes<T::Real>>(x: &[T], y: &[T]) -> T {
    dots::<T, V, 1, 4>([&x[..y.len()]], y)[0]
}

/// [`Kernels::axpy`].
#[inline(always)]
pub fn axpy<T: MatrixScalar, V: RealLanes<T::Real>>(a: T, x: &[T], y: &mut [T]) {
    axpys::<T, V, 1>([a], [x], y);
}

/// Columns that are read together.
const TOGETHER: usize = 4;

/// [`Kernels::gemv`].
#[inline(always)]
pub fn gemv<T: MatrixScalar, V: RealLanes<T::Real>>(alpha: T, a: MatrixSlice<T>, x: &[T], y: &mut [T]) {
    let y = &mut y[..a.rows];
    let mut j = 0;
    while j + TOGETHER <= a.columns {
        let by: [T; TOGETHER] = std::array::from_fn(|n| alpha * x[j + n]);
        axpys::<T, V, TOGETHER>(by, std::array::from_fn(|n| a.column(j + n)), y);
        j += TOGETHER;
    }
    while j < a.columns {
        axpys::<T, V, 1>([alpha * x[j]], [a.column(j)], y);
        j += 1;
    }
}

/// [`Kernels::gemv_adjoint`].
#[inline(always)]
pub fn gemv_adjoint<T: MatrixScalar, V: RealLanes<T::Real>>(
    alpha: T,
    a: MatrixSlice<T>,
    x: &[T],
    y: &mut [T],
) {
    let x = &x[..a.rows];
    let mut j = 0;
    while j + TOGETHER <= a.columns {
        let sums = dots::<T, V, TOGETHER, 1>(std::array::from_fn(|n| a.column(j + n)), x);
        for n in 0..TOGETHER {
            y[j + n] += alpha * sums[n];
        }
        j += TOGETHER;
    }
    while j < a.columns {
        y[j] += alpha * dots::<T, V, 1, 4>([a.column(j)], x)[0];
        j += 1;
    }
}

/// [`Kernels::ger`].
#[inline(always)]
pub fn ger<T: MatrixScalar, V: RealLanes<T::Real>>(alpha: T, x: &[T], y: &[T], mut a: MatrixSliceMut<T>) {
    for j in 0..a.columns {
        axpys::<T, V, 1>([alpha * y[j].conj()], [x], a.column(j));
    }
}

/// [`Kernels::her2`].
#[inline(always)]
pub fn her2<T: MatrixScalar, V: RealLanes<T::Real>>(x: &[T], y: &[T], mut a: MatrixSliceMut<T>) {
    for j in 0..a.columns {
        let by = [-y[j].conj(), -x[j].conj()];
        axpys::<T, V, 2>(by, [&x[j..], &y[j..]], &mut a.column(j)[j..]);
    }
}

/// Columns j to j + 3 at and below row j + 4, in one pass: `y += A x` and `yⱼ += aⱼᴴ x`.
#[inline(always)]
pub fn hemv<T: MatrixScalar, V: RealLanes<T::Real>>(a: MatrixSlice<T>, x: &[T], y: &mut [T]) {
    let n = a.rows;
    let mut j = 0;
    while j < n {
        let end = (j + TOGETHER).min(n);
        // The triangle on the diagonal.
        for k in j..end {
            y[k] += x[k].scale(a.column(k)[k].re());
            for i in k + 1..end {
                let below = a.column(k)[i];
                y[i] += below * x[k];
                y[k] += below.conj() * x[i];
            }
        }
        if end < n {
            let columns: [&[T]; TOGETHER] = std::array::from_fn(|k| &a.column(j + k)[end..n]);
            let sums = dots::<T, V, TOGETHER, 1>(columns, &x[end..n]);
            axpys::<T, V, TOGETHER>(std::array::from_fn(|k| x[j + k]), columns, &mut y[end..n]);
            for k in 0..TOGETHER {
                y[j + k] += sums[k];
            }
        }
        j = end;
    }
}

/// Rows and columns of the largest triangle of [`Kernels::solve_right`].
const MOST_TRIANGLE: usize = 32;

/// Triangle of a system of equations: rows below the diagonal, negated, and the reciprocals of the diagonal.
struct PackedTriangle<T, const N: usize> {
    rows: [[T; N]; N],
    inverse: [T; N],
    size: usize,
}

/// Solves for U vectors of rows: columns of X in order, each from the previous ones.
#[inline(always)]
fn solve_strip<T: MatrixScalar, V: RealLanes<T::Real>, const U: usize, const N: usize>(
    l: &PackedTriangle<T, N>,
    b: &mut MatrixSliceMut<T>,
    (at, end): (usize, usize),
) {
    let step = width::<T, V>();
    let zero = V::splat(T::Real::default());
    let mut x = [[zero; U]; N];
    for j in 0..l.size {
        let column = &mut b.column(j)[at..end];
        let mut sum = [zero; U];
        for (u, part) in column.chunks(step).enumerate().take(U) {
            sum[u] = load_part(part);
        }
        for (known, by) in x.iter().zip(&l.rows[j][..j]) {
            let re = V::splat(by.re());
            for u in 0..U {
                sum[u] = sum[u].mul_add(re, known[u]);
            }
            if T::IS_COMPLEX {
                let im = alternating::<T::Real, V>(by.im());
                for u in 0..U {
                    sum[u] = sum[u].mul_add(im, known[u].swapped());
                }
            }
        }
        let (re, im) = (V::splat(l.inverse[j].re()), l.inverse[j].im());
        for sum in &mut sum {
            let mut scaled = sum.mul(re);
            if T::IS_COMPLEX {
                scaled = scaled.mul_add(alternating::<T::Real, V>(im), sum.swapped());
            }
            *sum = scaled;
        }
        x[j] = sum;
        for (u, part) in column.chunks_mut(step).enumerate().take(U) {
            store_part(sum[u], part);
        }
    }
}

/// [`Kernels::solve_right`].
#[inline(always)]
pub fn solve_right<T: MatrixScalar, V: RealLanes<T::Real>>(
    l: MatrixSlice<T>,
    unit: bool,
    b: MatrixSliceMut<T>,
) {
    // Clearing the large triangle would take longer than a small solve.
    match l.rows {
        0..=8 => solve_packed::<T, V, 8>(l, unit, b),
        _ => solve_packed::<T, V, MOST_TRIANGLE>(l, unit, b),
    }
}

/// [`solve_right`] for a triangle of at most N rows.
#[inline(always)]
fn solve_packed<T: MatrixScalar, V: RealLanes<T::Real>, const N: usize>(
    l: MatrixSlice<T>,
    unit: bool,
    mut b: MatrixSliceMut<T>,
) {
    let size = l.rows;
    let mut packed = PackedTriangle { rows: [[T::zero(); N]; N], inverse: [T::ONE; N], size };
    for k in 0..size {
        let column = l.column(k);
        if !unit {
            packed.inverse[k] = T::ONE / column[k];
        }
        for j in k + 1..size {
            packed.rows[j][k] = -column[j];
        }
    }
    let step = width::<T, V>();
    let mut at = 0;
    while at < b.rows {
        let left = b.rows - at;
        let vectors = if left > 4 * step {
            8
        } else if left > step {
            4
        } else {
            1
        };
        let end = (at + vectors * step).min(b.rows);
        match vectors {
            8 => solve_strip::<T, V, 8, N>(&packed, &mut b, (at, end)),
            4 => solve_strip::<T, V, 4, N>(&packed, &mut b, (at, end)),
            _ => solve_strip::<T, V, 1, N>(&packed, &mut b, (at, end)),
        }
        at = end;
    }
}

/// [`Kernels::cholesky`]: each column from the previous ones.
#[inline(always)]
pub fn cholesky<T: MatrixScalar, V: RealLanes<T::Real>>(a: MatrixSliceMut<T>) -> i32 {
    let (n, stride) = (a.rows, a.stride);
    for j in 0..n {
        let (done, rest) = a.data.split_at_mut(j * stride);
        let column = &mut rest[j..n];
        let mut k = 0;
        while k + TOGETHER <= j {
            let (mut by, mut known) = ([T::zero(); TOGETHER], [&done[..0]; TOGETHER]);
            for i in 0..TOGETHER {
                known[i] = &done[(k + i) * stride + j..(k + i) * stride + n];
                by[i] = -known[i][0].conj();
            }
            axpys::<T, V, TOGETHER>(by, known, column);
            k += TOGETHER;
        }
        while k < j {
            let known = &done[k * stride + j..k * stride + n];
            axpys::<T, V, 1>([-known[0].conj()], [known], column);
            k += 1;
        }
        let pivot = column[0].re();
        if pivot.is_nan() || pivot <= T::Real::default() {
            return j as i32 + 1;
        }
        let root = pivot.sqrt();
        let by = T::Real::ONE / root;
        column[0] = T::real(root);
        column[1..].iter_mut().for_each(|x| *x = x.scale(by));
    }
    0
}

/// Columns of a tile of a product.
const TILE_COLUMNS: usize = 6;
/// Inner dimension of packed panels.
const DEPTH: usize = 256;
/// Rows of packed panels.
const ROWS: usize = 192;

/// Packs rows of a matrix: for each column, `width` real parts, and for complex numbers as many imaginary parts.
#[inline(always)]
fn pack_rows<T: MatrixScalar, V: RealLanes<T::Real>>(to: &mut Vec<T::Real>, a: MatrixSlice<T>, width: usize) {
    let step = width * if T::IS_COMPLEX { 2 } else { 1 };
    to.clear();
    to.resize(a.rows.div_ceil(width) * step * a.columns, T::Real::default());
    for (panel, first) in to.chunks_exact_mut(step * a.columns).zip((0..a.rows).step_by(width)) {
        let end = (first + width).min(a.rows);
        for (k, row) in panel.chunks_exact_mut(step).enumerate() {
            let column = &a.column(k)[first..end];
            if !T::IS_COMPLEX && column.len() == 2 * V::COUNT {
                V::load(column).store(row);
                V::load(&column[V::COUNT..]).store(&mut row[V::COUNT..]);
                continue;
            }
            let (re, im) = row.split_at_mut(width);
            re.iter_mut().zip(column).for_each(|(to, x)| *to = x.re());
            if T::IS_COMPLEX {
                im.iter_mut().zip(column).for_each(|(to, x)| *to = x.im());
            }
        }
    }
}

/// Packs `alpha` times columns of a matrix: for each row, [`TILE_COLUMNS`] real parts, and for complex numbers as many
/// imaginary parts.
#[inline(always)]
fn pack_columns<T: MatrixScalar>(
    to: &mut Vec<T::Real>,
    alpha: T,
    b: MatrixSlice<T>,
    (k, depth): (usize, usize),
) {
    let step = TILE_COLUMNS * if T::IS_COMPLEX { 2 } else { 1 };
    to.clear();
    to.resize(b.columns.div_ceil(TILE_COLUMNS) * step * depth, T::Real::default());
    for (panel, first) in to.chunks_exact_mut(step * depth).zip((0..b.columns).step_by(TILE_COLUMNS)) {
        for j in first..(first + TILE_COLUMNS).min(b.columns) {
            let at = j - first;
            for (row, x) in panel.chunks_exact_mut(step).zip(&b.column(j)[k..k + depth]) {
                let value = alpha * *x;
                row[at] = value.re();
                if T::IS_COMPLEX {
                    row[TILE_COLUMNS + at] = value.im();
                }
            }
        }
    }
}

/// Product of two packed panels, in vectors: for complex numbers those of the real parts, then of the imaginary parts.
#[inline(always)]
fn tile<T: MatrixScalar, V: RealLanes<T::Real>>(a: &[T::Real], b: &[T::Real]) -> [[V; 2]; TILE_COLUMNS] {
    let mut sums = [[V::splat(T::Real::default()); 2]; TILE_COLUMNS];
    let (rows, columns) = (2 * V::COUNT, if T::IS_COMPLEX { 2 * TILE_COLUMNS } else { TILE_COLUMNS });
    for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(columns)) {
        let (first, second) = (V::load(a), V::load(&a[V::COUNT..]));
        for j in 0..TILE_COLUMNS {
            let x = V::splat(b[j]);
            sums[j][0] = sums[j][0].mul_add(first, x);
            sums[j][1] = sums[j][1].mul_add(second, x);
            if T::IS_COMPLEX {
                let y = b[TILE_COLUMNS + j];
                sums[j][0] = sums[j][0].mul_add(second, V::splat(-y));
                sums[j][1] = sums[j][1].mul_add(first, V::splat(y));
            }
        }
    }
    sums
}

/// Adds two vectors to real numbers, of which there may be fewer.
#[inline(always)]
fn add<T: MatrixScalar, V: RealLanes<T::Real>>(sums: &[V; 2], to: &mut [T]) {
    let one = V::splat(T::Real::ONE);
    for (sum, to) in sums.iter().zip(to.chunks_mut(V::COUNT)) {
        store_part(sum.mul_add(load_part(to), one), to);
    }
}

/// Below this number of multiplications, operands are not packed.
const FEW: usize = 4096;

/// [`Kernels::gemm`].
#[inline(always)]
pub fn gemm<T: MatrixScalar, V: RealLanes<T::Real>>(
    alpha: T,
    a: MatrixSlice<T>,
    b: MatrixSlice<T>,
    mut c: MatrixSliceMut<T>,
) {
    let (m, n, depth) = (c.rows, c.columns, a.columns);
    if m * n * depth <= FEW || n == 1 {
        for j in 0..n {
            gemv::<T, V>(alpha, a, b.column(j), c.column(j));
        }
        return;
    }
    let (parts, tile_rows) = if T::IS_COMPLEX { (2, V::COUNT) } else { (1, 2 * V::COUNT) };
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut values = [T::Real::default(); 64];
    for k in (0..depth).step_by(DEPTH) {
        let kc = DEPTH.min(depth - k);
        pack_columns(&mut right, alpha, b, (k, kc));
        for i in (0..m).step_by(ROWS) {
            let mc = ROWS.min(m - i);
            let block =
                MatrixSlice { data: &a.data[k * a.stride + i..], stride: a.stride, rows: mc, columns: kc };
            pack_rows::<T, V>(&mut left, block, tile_rows);
            for (j, b) in (0..n).step_by(TILE_COLUMNS).zip(right.chunks_exact(TILE_COLUMNS * parts * kc)) {
                for (r, a) in (i..i + mc).step_by(tile_rows).zip(left.chunks_exact(tile_rows * parts * kc)) {
                    let rows = tile_rows.min(i + mc - r);
                    let sums = tile::<T, V>(a, b);
                    for (q, sums) in sums.iter().enumerate().take(n - j) {
                        let to = &mut c.column(j + q)[r..r + rows];
                        if T::IS_COMPLEX {
                            sums[0].store(&mut values);
                            sums[1].store(&mut values[V::COUNT..]);
                            for (p, x) in to.iter_mut().enumerate() {
                                *x += T::new(values[p], values[V::COUNT + p]);
                            }
                        } else {
                            add::<T, V>(sums, to);
                        }
                    }
                }
            }
        }
    }
}

/// Vectors of a row of a strip: the rows of the matrix that are rotated together while the strip is in the cache.
const STRIP: usize = 4;

/// `(c x + s y, c y − s x)`
#[inline(always)]
fn turned<T: MatrixScalar, V: RealLanes<T::Real>>(
    x: [V; STRIP],
    y: [V; STRIP],
    c: V,
    s: V,
    minus: V,
) -> [[V; STRIP]; 2] {
    [
        std::array::from_fn(|l| s.mul(y[l]).mul_add(c, x[l])),
        std::array::from_fn(|l| c.mul(y[l]).mul_add(minus, x[l])),
    ]
}

/// [`Kernels::rotate`].
#[inline(always)]
pub fn rotate<T: MatrixScalar, V: RealLanes<T::Real>>(rotations: &[Rotation<T>], mut x: MatrixSliceMut<T>) {
    let wide = STRIP * V::COUNT;
    let mut strip = vec![[V::splat(T::Real::default()); STRIP]; x.columns];
    let mut room = vec![T::zero(); wide];
    for at in (0..x.rows).step_by(wide) {
        let rows = wide.min(x.rows - at);
        for (j, row) in strip.iter_mut().enumerate() {
            room[..rows].copy_from_slice(&x.column(j)[at..at + rows]);
            *row = std::array::from_fn(|l| V::load(&room[l * V::COUNT..]));
        }
        // The column that two successive rotations share stays in registers.
        let mut i = 0;
        while i < rotations.len() {
            let mut k = rotations[i].k as usize;
            let up = rotations.get(i + 1).is_none_or(|next| next.k as usize == k + 1);
            let mut held = if up { strip[k] } else { strip[k + 1] };
            loop {
                let Rotation { c, s, .. } = rotations[i];
                let (c, s, minus) = (V::splat(c.re()), V::splat(s.re()), V::splat(-s.re()));
                if up {
                    [strip[k], held] = turned::<T, V>(held, strip[k + 1], c, s, minus);
                } else {
                    [held, strip[k + 1]] = turned::<T, V>(strip[k], held, c, s, minus);
                }
                i += 1;
                let wanted = if up { k + 1 } else { k.wrapping_sub(1) };
                if rotations.get(i).is_none_or(|next| next.k as usize != wanted) {
                    break;
                }
                k = wanted;
            }
            strip[if up { k + 1 } else { k }] = held;
        }
        for (j, row) in strip.iter().enumerate() {
            (0..STRIP).for_each(|l| row[l].store(&mut room[l * V::COUNT..]));
            x.column(j)[at..at + rows].copy_from_slice(&room[..rows]);
        }
    }
}
