//! Inner loops of decompositions: dot products, rank-1 updates, matrix products and plane rotations.
//!
//! Each kernel is a generic loop that the compiler vectorizes. [`Kernels`] holds those for any processor until
//! [`KernelTable::install`] replaces them by those of [`avx2`], which the CPU engine does.

use crate::matrix::{Block, BlockMut};
use crate::scalar::{Complex, Real, Scalar};
use std::sync::OnceLock;

/// Kernels of one element type. Matrices are column-major.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    /// `Σ conj(xᵢ) yᵢ`.
    pub dot: fn(&[T], &[T]) -> T,
    /// `y += a x`.
    pub axpy: fn(T, &[T], &mut [T]),
    /// `y += alpha A x`.
    pub gemv: fn(T, Block<T>, &[T], &mut [T]),
    /// `y += alpha Aᴴ x`.
    pub gemv_adjoint: fn(T, Block<T>, &[T], &mut [T]),
    /// `A += alpha x yᴴ`.
    pub ger: fn(T, &[T], &[T], BlockMut<T>),
    /// `y += A x` for a Hermitian matrix of which only the lower triangle is read.
    pub hemv: fn(Block<T>, &[T], &mut [T]),
    /// `C += alpha A B`.
    pub gemm: fn(T, Block<T>, Block<T>, BlockMut<T>),
    /// Solves `L x = b` in place for each column of b; with `true` the diagonal of L is 1.
    pub forward: fn(Block<T>, bool, BlockMut<T>),
    /// Rotates pairs of columns; see [`Rotation`].
    pub rotate: fn(&[Rotation<T>], BlockMut<T>),
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

    pub(crate) fn get(&self) -> &Kernels<T> {
        self.installed.get().unwrap_or(&self.portable)
    }
}

macro_rules! tables {
    ($($name:ident: $ty:ty, $rows:literal;)*) => {$(
        /// Kernels of the element type.
        pub static $name: KernelTable<$ty> = KernelTable::new(Kernels {
            dot: dot::<$ty, false>,
            axpy: axpy::<$ty, false>,
            gemv: gemv::<$ty, false>,
            gemv_adjoint: gemv_adjoint::<$ty, false>,
            ger: ger::<$ty, false>,
            hemv: hemv::<$ty, false>,
            gemm: gemm::<$ty, $rows, false>,
            forward: forward::<$ty, false>,
            rotate: rotate::<$ty, false>,
        });
    )*};
}

tables! { F32: f32, 16; F64: f64, 8; }

/// Kernels of complex numbers.
pub mod complex {
    use super::*;
    tables! { F32: Complex<f32>, 8; F64: Complex<f64>, 4; }
}

/// Accumulators of a sum.
const LANES: usize = 8;

#[inline(always)]
fn sum<T: Scalar>(lanes: [T; LANES]) -> T {
    let mut half = LANES / 2;
    let mut lanes = lanes;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Dot products of N columns with x.
#[inline(always)]
fn dots<T: Scalar, const N: usize, const FUSED: bool>(columns: [&[T]; N], x: &[T]) -> [T; N] {
    let mut lanes = [[T::zero(); LANES]; N];
    let (chunks, tail) = x.as_chunks::<LANES>();
    let columns = columns.map(|c| c[..x.len()].as_chunks::<LANES>());
    let columns = columns.map(|(whole, rest)| (&whole[..chunks.len()], &rest[..tail.len()]));
    for (k, x) in chunks.iter().enumerate() {
        for n in 0..N {
            let a = &columns[n].0[k];
            for i in 0..LANES {
                lanes[n][i] = lanes[n][i].mul_add::<FUSED>(a[i].conj(), x[i]);
            }
        }
    }
    let mut sums = lanes.map(sum);
    for n in 0..N {
        for (a, x) in columns[n].1.iter().zip(tail) {
            sums[n] = sums[n].mul_add::<FUSED>(a.conj(), *x);
        }
    }
    sums
}

/// `y += Σ aₙ xₙ` over N columns.
#[inline(always)]
fn axpys<T: Scalar, const N: usize, const FUSED: bool>(a: [T; N], columns: [&[T]; N], y: &mut [T]) {
    let columns = columns.map(|c| &c[..y.len()]);
    for i in 0..y.len() {
        let mut sum = y[i];
        for n in 0..N {
            sum = sum.mul_add::<FUSED>(a[n], columns[n][i]);
        }
        y[i] = sum;
    }
}

#[inline(always)]
fn dot<T: Scalar, const FUSED: bool>(x: &[T], y: &[T]) -> T {
    dots::<T, 1, FUSED>([&x[..y.len()]], y)[0]
}

#[inline(always)]
fn axpy<T: Scalar, const FUSED: bool>(a: T, x: &[T], y: &mut [T]) {
    axpys::<T, 1, FUSED>([a], [x], y);
}

/// Columns that are read together.
const TOGETHER: usize = 4;

#[inline(always)]
fn gemv<T: Scalar, const FUSED: bool>(alpha: T, a: Block<T>, x: &[T], y: &mut [T]) {
    let y = &mut y[..a.rows];
    let mut j = 0;
    while j + TOGETHER <= a.columns {
        let by: [T; TOGETHER] = std::array::from_fn(|n| alpha * x[j + n]);
        axpys::<T, TOGETHER, FUSED>(by, std::array::from_fn(|n| a.column(j + n)), y);
        j += TOGETHER;
    }
    while j < a.columns {
        axpys::<T, 1, FUSED>([alpha * x[j]], [a.column(j)], y);
        j += 1;
    }
}

#[inline(always)]
fn gemv_adjoint<T: Scalar, const FUSED: bool>(alpha: T, a: Block<T>, x: &[T], y: &mut [T]) {
    let x = &x[..a.rows];
    let mut j = 0;
    while j + TOGETHER <= a.columns {
        let sums = dots::<T, TOGETHER, FUSED>(std::array::from_fn(|n| a.column(j + n)), x);
        for n in 0..TOGETHER {
            y[j + n] += alpha * sums[n];
        }
        j += TOGETHER;
    }
    while j < a.columns {
        y[j] += alpha * dots::<T, 1, FUSED>([a.column(j)], x)[0];
        j += 1;
    }
}

#[inline(always)]
fn ger<T: Scalar, const FUSED: bool>(alpha: T, x: &[T], y: &[T], mut a: BlockMut<T>) {
    for j in 0..a.columns {
        axpys::<T, 1, FUSED>([alpha * y[j].conj()], [x], a.column(j));
    }
}

/// Columns j to j + 3 at and below row j + 4, in one pass: `y += A x` and `yⱼ += aⱼᴴ x`.
#[inline(always)]
fn hemv<T: Scalar, const FUSED: bool>(a: Block<T>, x: &[T], y: &mut [T]) {
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
            let sums = dots::<T, TOGETHER, FUSED>(columns, &x[end..n]);
            axpys::<T, TOGETHER, FUSED>(std::array::from_fn(|k| x[j + k]), columns, &mut y[end..n]);
            for k in 0..TOGETHER {
                y[j + k] += sums[k];
            }
        }
        j = end;
    }
}

/// Forward substitution, with four right-hand sides at a time.
#[inline(always)]
fn forward<T: Scalar, const FUSED: bool>(l: Block<T>, unit: bool, mut b: BlockMut<T>) {
    for j in 0..b.columns {
        let x = b.column(j);
        for k in 0..l.rows {
            let column = l.column(k);
            let value = if unit { x[k] } else { x[k] / column[k] };
            x[k] = value;
            axpys::<T, 1, FUSED>([-value], [&column[k + 1..l.rows]], &mut x[k + 1..l.rows]);
        }
    }
}

/// Columns of a tile of a product.
const TILE_COLUMNS: usize = 6;
/// Inner dimension of packed panels.
const DEPTH: usize = 256;
/// Rows of packed panels.
const ROWS: usize = 192;

/// Packed panels: for each k, `width` real parts, and for complex numbers as many imaginary parts.
#[inline(always)]
fn packed<T: Scalar>(
    to: &mut Vec<T::Real>,
    (count, depth): (usize, usize),
    width: usize,
    at: impl Fn(usize, usize) -> T,
) {
    let step = width * if T::IS_COMPLEX { 2 } else { 1 };
    to.clear();
    to.resize(count.div_ceil(width) * step * depth, T::Real::default());
    for (panel, first) in to.chunks_exact_mut(step * depth).zip((0..count).step_by(width)) {
        let here = width.min(count - first);
        for (k, row) in panel.chunks_exact_mut(step).enumerate() {
            for i in 0..here {
                let value = at(first + i, k);
                row[i] = value.re();
                if T::IS_COMPLEX {
                    row[width + i] = value.im();
                }
            }
        }
    }
}

/// Product of two packed panels with `M` rows and [`TILE_COLUMNS`] columns: real and imaginary parts.
#[inline(always)]
fn tile<R: Real, const M: usize, const FUSED: bool>(a: &[R], b: &[R]) -> [[R; M]; TILE_COLUMNS] {
    let mut sums = [[R::default(); M]; TILE_COLUMNS];
    for (a, b) in a.chunks_exact(M).zip(b.chunks_exact(TILE_COLUMNS)) {
        for j in 0..TILE_COLUMNS {
            for i in 0..M {
                sums[j][i] = sums[j][i].mul_add::<FUSED>(a[i], b[j]);
            }
        }
    }
    sums
}

type ComplexTile<R, const M: usize> = ([[R; M]; TILE_COLUMNS], [[R; M]; TILE_COLUMNS]);

#[inline(always)]
fn complex_tile<R: Real, const M: usize, const FUSED: bool>(a: &[R], b: &[R]) -> ComplexTile<R, M> {
    let mut re = [[R::default(); M]; TILE_COLUMNS];
    let mut im = re;
    for (a, b) in a.chunks_exact(2 * M).zip(b.chunks_exact(2 * TILE_COLUMNS)) {
        for j in 0..TILE_COLUMNS {
            let (x, y) = (b[j], b[TILE_COLUMNS + j]);
            for i in 0..M {
                re[j][i] = re[j][i].mul_add::<FUSED>(a[i], x).mul_add::<FUSED>(-a[M + i], y);
                im[j][i] = im[j][i].mul_add::<FUSED>(a[i], y).mul_add::<FUSED>(a[M + i], x);
            }
        }
    }
    (re, im)
}

/// Below this number of multiplications, operands are not packed.
const FEW: usize = 4096;

#[inline(always)]
fn gemm<T: Scalar, const M: usize, const FUSED: bool>(
    alpha: T,
    a: Block<T>,
    b: Block<T>,
    mut c: BlockMut<T>,
) {
    let (m, n, depth) = (c.rows, c.columns, a.columns);
    if m * n * depth <= FEW || n == 1 {
        for j in 0..n {
            gemv::<T, FUSED>(alpha, a, b.column(j), c.column(j));
        }
        return;
    }
    let step = if T::IS_COMPLEX { 2 } else { 1 };
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for k in (0..depth).step_by(DEPTH) {
        let kc = DEPTH.min(depth - k);
        packed::<T>(&mut right, (n, kc), TILE_COLUMNS, |j, l| alpha * b.column(j)[k + l]);
        for i in (0..m).step_by(ROWS) {
            let mc = ROWS.min(m - i);
            packed::<T>(&mut left, (mc, kc), M, |r, l| a.column(k + l)[i + r]);
            for (j, b) in (0..n).step_by(TILE_COLUMNS).zip(right.chunks_exact(TILE_COLUMNS * step * kc)) {
                for (r, a) in (i..i + mc).step_by(M).zip(left.chunks_exact(M * step * kc)) {
                    let (rows, columns) = (M.min(i + mc - r), TILE_COLUMNS.min(n - j));
                    if T::IS_COMPLEX {
                        let (re, im) = complex_tile::<T::Real, M, FUSED>(a, b);
                        for q in 0..columns {
                            let to = &mut c.column(j + q)[r..r + rows];
                            to.iter_mut().enumerate().for_each(|(p, x)| *x += T::new(re[q][p], im[q][p]));
                        }
                    } else {
                        let sums = tile::<T::Real, M, FUSED>(a, b);
                        for q in 0..columns {
                            let to = &mut c.column(j + q)[r..r + rows];
                            to.iter_mut().zip(&sums[q]).for_each(|(x, s)| *x += T::real(*s));
                        }
                    }
                }
            }
        }
    }
}

/// Bytes of a row of a strip: the rows of the matrix that are rotated together while the strip is in the cache.
const STRIP: usize = 16;

#[inline(always)]
fn rotate<T: Scalar, const FUSED: bool>(rotations: &[Rotation<T>], mut x: BlockMut<T>) {
    let mut strip = vec![[T::zero(); STRIP]; x.columns];
    for at in (0..x.rows).step_by(STRIP) {
        let rows = STRIP.min(x.rows - at);
        for (j, row) in strip.iter_mut().enumerate() {
            row[..rows].copy_from_slice(&x.column(j)[at..at + rows]);
        }
        // The column that two successive rotations share stays in registers.
        let mut i = 0;
        while i < rotations.len() {
            let mut k = rotations[i].k as usize;
            let up = rotations.get(i + 1).is_none_or(|next| next.k as usize == k + 1);
            let mut held = if up { strip[k] } else { strip[k + 1] };
            loop {
                let Rotation { c, s, .. } = rotations[i];
                if up {
                    let other = strip[k + 1];
                    for l in 0..STRIP {
                        strip[k][l] = (s * other[l]).mul_add::<FUSED>(c, held[l]);
                        held[l] = (c * other[l]).mul_add::<FUSED>(-s, held[l]);
                    }
                } else {
                    let other = strip[k];
                    for l in 0..STRIP {
                        strip[k + 1][l] = (-s * other[l]).mul_add::<FUSED>(c, held[l]);
                        held[l] = (c * other[l]).mul_add::<FUSED>(s, held[l]);
                    }
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
            x.column(j)[at..at + rows].copy_from_slice(&row[..rows]);
        }
    }
}

/// The kernels for processors with AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub mod avx2 {
    use super::{Block, BlockMut, Rotation, Scalar};

    macro_rules! kernels {
        ($($name:ident[$($generic:tt)*]($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {$(
            #[doc = concat!("[`Kernels::", stringify!($name), "`](super::Kernels).")]
            #[target_feature(enable = "avx2,fma")]
            pub fn $name<T: Scalar $($generic)*>($($arg: $ty),*) $(-> $out)? {
                kernels!(@call $name [$($generic)*] ($($arg),*))
            }
        )*};
        (@call gemm [$($generic:tt)*] ($($arg:ident),*)) => { super::gemm::<T, M, true>($($arg),*) };
        (@call $name:ident [] ($($arg:ident),*)) => { super::$name::<T, true>($($arg),*) };
    }

    kernels! {
        dot[](x: &[T], y: &[T]) -> T;
        axpy[](a: T, x: &[T], y: &mut [T]);
        gemv[](alpha: T, a: Block<T>, x: &[T], y: &mut [T]);
        gemv_adjoint[](alpha: T, a: Block<T>, x: &[T], y: &mut [T]);
        ger[](alpha: T, x: &[T], y: &[T], a: BlockMut<T>);
        hemv[](a: Block<T>, x: &[T], y: &mut [T]);
        gemm[, const M: usize](alpha: T, a: Block<T>, b: Block<T>, c: BlockMut<T>);
        forward[](l: Block<T>, unit: bool, b: BlockMut<T>);
        rotate[](rotations: &[Rotation<T>], x: BlockMut<T>);
    }
}
