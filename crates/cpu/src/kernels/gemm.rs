//! Matrix products of f32 and f64: register kernels and the blocked loops around them.
//!
//! A kernel computes a tile of `MR` rows by a few vectors of columns. It reads the left operand with any two strides,
//! so panels need no packing where a matrix lies well, and the right operand by rows of whole vectors. Every element
//! of a result is the sum over blocks of [`KC`] products, each block a chain of multiply-adds in order: the same bits
//! however the work is cut. Blocks and the choice of kernel depend on shapes and on the instruction set only.

use crate::detect::Level;

/// Longest chain of products that one accumulator sums.
pub const KC: usize = 256;

/// One call of a register kernel.
pub struct TileArgs<T> {
    /// Products for each element.
    pub k: usize,
    /// Left operand: element (row, k) at `row · a_row + k · a_k`.
    pub a: *const T,
    pub a_row: usize,
    pub a_k: usize,
    /// Right operand: row k at `k · b_k`, whole vectors readable.
    pub b: *const T,
    pub b_k: usize,
    /// Result tile, rows `c_row` apart.
    pub c: *mut T,
    pub c_row: usize,
    /// Whether to add to the result or to replace it.
    pub add: bool,
    /// Added to each row, or null; whole vectors readable.
    pub bias: *const T,
    /// Columns to write, at most those of the kernel.
    pub columns: usize,
}

/// A register kernel for a number of rows up to the level's.
pub type TileKernel<T> = unsafe fn(usize, &TileArgs<T>);

/// Vectors of one element type at one level.
///
/// # Safety
/// The methods may only be called where the level's instructions are available.
pub unsafe trait Vector: Copy {
    type T: Copy;
    const LANES: usize;
    unsafe fn splat(x: Self::T) -> Self;
    unsafe fn load(p: *const Self::T) -> Self;
    unsafe fn store(self, p: *mut Self::T);
    /// `self · b + c`
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
}

macro_rules! array_vector {
    ($name:ident, $t:ty, $n:expr) => {
        /// A vector that the compiler lays out for the baseline instruction set.
        #[derive(Clone, Copy)]
        pub struct $name([$t; $n]);
        // SAFETY: plain arithmetic, available everywhere.
        unsafe impl Vector for $name {
            type T = $t;
            const LANES: usize = $n;
            #[inline(always)]
            unsafe fn splat(x: $t) -> Self {
                $name([x; $n])
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                // SAFETY: the caller has the lanes there; arrays need only their elements' alignment.
                $name(unsafe { *p.cast::<[$t; $n]>() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                // SAFETY: as for `load`.
                unsafe { *p.cast::<[$t; $n]>() = self.0 }
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                let mut y = c.0;
                for i in 0..$n {
                    y[i] += self.0[i] * b.0[i];
                }
                $name(y)
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                let mut y = self.0;
                for i in 0..$n {
                    y[i] += b.0[i];
                }
                $name(y)
            }
        }
    };
}
array_vector!(Portable32, f32, 4);
array_vector!(Portable64, f64, 2);

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! intrinsic_vector {
        ($name:ident, $reg:ty, $t:ty, $n:expr, $set:ident, $load:ident, $store:ident, $fma:ident, $add:ident) => {
            #[derive(Clone, Copy)]
            pub struct $name($reg);
            // SAFETY: callers keep to the level of these instructions.
            unsafe impl Vector for $name {
                type T = $t;
                const LANES: usize = $n;
                #[inline(always)]
                unsafe fn splat(x: $t) -> Self {
                    // SAFETY: the level is available.
                    $name(unsafe { $set(x) })
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> Self {
                    // SAFETY: the level is available and the caller has the lanes there.
                    $name(unsafe { $load(p) })
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut $t) {
                    // SAFETY: as for `load`.
                    unsafe { $store(p, self.0) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                    // SAFETY: the level is available.
                    $name(unsafe { $fma(self.0, b.0, c.0) })
                }
                #[inline(always)]
                unsafe fn add(self, b: Self) -> Self {
                    // SAFETY: the level is available.
                    $name(unsafe { $add(self.0, b.0) })
                }
            }
        };
    }
    intrinsic_vector!(
        V8x32,
        __m256,
        f32,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
    intrinsic_vector!(
        V4x64,
        __m256d,
        f64,
        4,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_storeu_pd,
        _mm256_fmadd_pd,
        _mm256_add_pd
    );
    intrinsic_vector!(
        V16x32,
        __m512,
        f32,
        16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps
    );
    intrinsic_vector!(
        V8x64,
        __m512d,
        f64,
        8,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_add_pd
    );
}

/// The tile of `M` rows by `N` vectors.
#[inline(always)]
unsafe fn tile<V: Vector, const M: usize, const N: usize>(t: &TileArgs<V::T>) {
    // SAFETY: the caller's pointers cover `M` rows, `k` products and `N` vectors; the level is available.
    unsafe {
        let zero = V::splat(std::mem::zeroed());
        let mut acc = [[zero; N]; M];
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.k {
            let mut row = [zero; N];
            let mut j = 0;
            while j < N {
                row[j] = V::load(b.add(j * V::LANES));
                j += 1;
            }
            let mut i = 0;
            while i < M {
                let x = V::splat(*a.add(i * t.a_row));
                let mut j = 0;
                while j < N {
                    acc[i][j] = x.mul_add(row[j], acc[i][j]);
                    j += 1;
                }
                i += 1;
            }
            a = a.wrapping_add(t.a_k);
            b = b.wrapping_add(t.b_k);
        }
        write_tile::<V, M, N>(t, &acc);
    }
}

/// Writes the accumulators to the result: whole vectors, or by way of a small buffer where it is narrower.
#[inline(always)]
unsafe fn write_tile<V: Vector, const M: usize, const N: usize>(t: &TileArgs<V::T>, acc: &[[V; N]; M]) {
    // SAFETY: the caller's result has `M` rows of `columns` columns.
    unsafe {
        if t.columns == N * V::LANES {
            finish::<V, M, N>(t, acc, t.c, t.c_row);
            return;
        }
        let mut buffer = [std::mem::zeroed::<V::T>(); 24 * 32];
        let wide = N * V::LANES;
        for i in 0..M {
            let kept = if t.add { t.columns } else { 0 };
            std::ptr::copy_nonoverlapping(t.c.add(i * t.c_row), buffer.as_mut_ptr().add(i * wide), kept);
        }
        finish::<V, M, N>(t, acc, buffer.as_mut_ptr(), wide);
        for i in 0..M {
            std::ptr::copy_nonoverlapping(buffer.as_ptr().add(i * wide), t.c.add(i * t.c_row), t.columns);
        }
    }
}

#[inline(always)]
unsafe fn finish<V: Vector, const M: usize, const N: usize>(
    t: &TileArgs<V::T>,
    acc: &[[V; N]; M],
    c: *mut V::T,
    c_row: usize,
) {
    // SAFETY: `c` has `M` rows of `N` vectors.
    unsafe {
        for (i, row) in acc.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let p = c.add(i * c_row + j * V::LANES);
                let mut y = *sum;
                if t.add {
                    y = V::load(p).add(y);
                }
                if !t.bias.is_null() {
                    y = y.add(V::load(t.bias.add(j * V::LANES)));
                }
                y.store(p);
            }
        }
    }
}

macro_rules! by_rows {
    ($rows:expr, $v:ty, $n:literal, $t:expr, $($m:literal)*) => {
        match $rows {
            // SAFETY: the caller's promises are those of `tile`.
            $($m => unsafe { tile::<$v, $m, $n>($t) },)*
            _ => {}
        }
    };
}

macro_rules! kernels {
    ($name:ident, $v:ty, $t:ty, $n:literal, [$($m:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name(rows: usize, t: &TileArgs<$t>) {
            by_rows!(rows, $v, $n, t, $($m)*);
        }
    };
}

kernels!(portable32x2, Portable32, f32, 2, [1 2 3 4]);
kernels!(portable64x2, Portable64, f64, 2, [1 2 3 4]);
kernels!(avx2_32x2, x86::V8x32, f32, 2, [1 2 3 4 5 6], "avx2,fma");
kernels!(avx2_32x1, x86::V8x32, f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12], "avx2,fma");
kernels!(avx2_64x2, x86::V4x64, f64, 2, [1 2 3 4 5 6], "avx2,fma");
kernels!(avx512_32x2, x86::V16x32, f32, 2, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx2,fma");
kernels!(avx512_32x1, x86::V16x32, f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24], "avx512f,avx2,fma");
kernels!(avx512_64x2, x86::V8x64, f64, 2, [1 2 3 4 5 6 7 8 9 10 11 12], "avx512f,avx2,fma");

/// A register kernel with its greatest tile.
#[derive(Clone, Copy)]
pub struct Shape<T> {
    /// The kernel.
    pub run: TileKernel<T>,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

/// Element types that have register kernels.
pub trait Float: Copy + Send + Sync + 'static + PartialEq + std::ops::AddAssign {
    /// The kernel for a product of `n` columns.
    fn shape(level: Level, n: usize) -> Shape<Self>;
    /// Zero.
    const ZERO: Self;
}

impl Float for f32 {
    const ZERO: f32 = 0.0;
    fn shape(level: Level, n: usize) -> Shape<f32> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if n <= 16 => Shape { run: avx512_32x1, rows: 24, columns: 16 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Shape { run: avx512_32x2, rows: 12, columns: 32 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 if n <= 8 => Shape { run: avx2_32x1, rows: 12, columns: 8 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Shape { run: avx2_32x2, rows: 6, columns: 16 },
            _ => {
                let _ = n;
                Shape { run: portable32x2, rows: 4, columns: 8 }
            }
        }
    }
}

impl Float for f64 {
    const ZERO: f64 = 0.0;
    fn shape(level: Level, _: usize) -> Shape<f64> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Shape { run: avx512_64x2, rows: 12, columns: 16 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Shape { run: avx2_64x2, rows: 6, columns: 8 },
            _ => Shape { run: portable64x2, rows: 4, columns: 4 },
        }
    }
}

/// A matrix in memory: element (i, j) at `i · row + j · col`.
#[derive(Clone, Copy)]
pub struct View<T> {
    pub ptr: *const T,
    pub row: usize,
    pub col: usize,
}

impl<T> View<T> {
    /// The part from (i, j) on.
    pub fn from(self, i: usize, j: usize) -> View<T> {
        View { ptr: self.ptr.wrapping_add(i * self.row + j * self.col), ..self }
    }
}

/// Elements of the packed form of `k` rows by `n` columns.
pub fn packed_len(columns: usize, k: usize, n: usize) -> usize {
    n.next_multiple_of(columns) * k
}

/// Packs `k` rows of `n` columns of the right operand: panels of the kernel's width `w`, each `k` rows, zeros beyond
/// the last column.
///
/// # Safety
/// The view covers the range; `dst` has room for [`packed_len`] elements.
pub unsafe fn pack_right<T: Float>(w: usize, b: View<T>, k: usize, n: usize, dst: *mut T) {
    for (p, j0) in (0..n).step_by(w).enumerate() {
        let columns = w.min(n - j0);
        let panel = dst.wrapping_add(p * w * k);
        // SAFETY: by the caller's promise.
        unsafe {
            if b.col == 1 {
                for i in 0..k {
                    let to = panel.add(i * w);
                    std::ptr::copy_nonoverlapping(b.ptr.add(i * b.row + j0), to, columns);
                    (columns..w).for_each(|j| *to.add(j) = T::ZERO);
                }
            } else {
                // Columns lie apart: go along them, so that reads are contiguous where rows are.
                for j in 0..columns {
                    let from = b.ptr.add((j0 + j) * b.col);
                    for i in 0..k {
                        *panel.add(i * w + j) = *from.add(i * b.row);
                    }
                }
                for i in 0..k {
                    (columns..w).for_each(|j| *panel.add(i * w + j) = T::ZERO);
                }
            }
        }
    }
}

/// A right operand ready for kernels: panel `p` begins at `p · panel`, rows `row` apart.
#[derive(Clone, Copy)]
pub struct Panels<T> {
    pub ptr: *const T,
    pub panel: usize,
    pub row: usize,
}

/// `c (+)= a · b` for `m` rows, `n` columns and at most [`KC`] products, kernel by kernel.
///
/// # Safety
/// Views and panels cover the sizes; `c` overlaps neither operand; the kernel's level is available.
#[allow(clippy::too_many_arguments)]
pub unsafe fn block<T: Float>(
    shape: &Shape<T>,
    (m, n, k): (usize, usize, usize),
    a: View<T>,
    b: Panels<T>,
    c: *mut T,
    c_row: usize,
    add: bool,
    bias: *const T,
) {
    for (p, j) in (0..n).step_by(shape.columns).enumerate() {
        let columns = shape.columns.min(n - j);
        for i in (0..m).step_by(shape.rows) {
            let rows = shape.rows.min(m - i);
            let args = TileArgs {
                k,
                a: a.from(i, 0).ptr,
                a_row: a.row,
                a_k: a.col,
                b: b.ptr.wrapping_add(p * b.panel),
                b_k: b.row,
                c: c.wrapping_add(i * c_row + j),
                c_row,
                add,
                bias: if bias.is_null() { bias } else { bias.wrapping_add(j) },
                columns,
            };
            // SAFETY: the tile lies inside the block.
            unsafe { (shape.run)(rows, &args) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Float + From<f32> + Into<f64>>(level: Level, tolerance: f64) {
        let mut s = systole_ir::rng::Stream::new(3, 1, 4);
        for (m, n, k) in [(1, 1, 1), (5, 3, 7), (24, 16, 9), (13, 33, 64), (25, 17, 255), (7, 70, 30)] {
            let mut draw = |len: usize| -> Vec<T> { (0..len).map(|_| T::from(s.range(-1.0, 1.0))).collect() };
            let (a, b) = (draw(m * k), draw(k * n));
            let shape = T::shape(level, n);
            let mut packed = vec![T::ZERO; packed_len(shape.columns, k, n)];
            let mut c = vec![T::from(0.5); m * n];
            let bias: Vec<T> = draw(n.next_multiple_of(shape.columns));
            // SAFETY: all sizes are those of the vectors.
            unsafe {
                let view = View { ptr: b.as_ptr(), row: n, col: 1 };
                pack_right(shape.columns, view, k, n, packed.as_mut_ptr());
                let panels = Panels { ptr: packed.as_ptr(), panel: shape.columns * k, row: shape.columns };
                let av = View { ptr: a.as_ptr(), row: k, col: 1 };
                block(&shape, (m, n, k), av, panels, c.as_mut_ptr(), n, true, bias.as_ptr());
            }
            for i in 0..m {
                for j in 0..n {
                    let exact: f64 = (0..k).map(|x| a[i * k + x].into() * b[x * n + j].into()).sum();
                    let want = exact + 0.5 + bias[j].into();
                    assert!((c[i * n + j].into() - want).abs() < tolerance, "{m} {n} {k}: {i} {j}");
                }
            }
        }
    }

    #[test]
    fn tiles_of_every_level_agree_with_a_plain_sum() {
        for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
            check::<f32>(level, 2e-5);
            check::<f64>(level, 1e-13);
        }
    }
}
