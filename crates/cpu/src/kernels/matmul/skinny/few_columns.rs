//! Skinny GEMM `[M, K] · [K, N]` in f32 with 9 ≤ N ≤ 16, such as a classifier's last layer.
//!
//! A row of C is one vector of 16 lanes or two of 8. B is dense and read in place, one row for each k; each element of
//! A is broadcast once. SIMD lanes beyond column N compute values that are never used: they read the beginning of B's
//! next row. The last rows of B are therefore read from a padded copy.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, joint_stride};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::SelectResult;
use crate::simd::level::Level;
use crate::simd::prefetch::fetch;
use crate::simd::vector::Vector;
use std::ops::Range;
use systole_ir::{Result, ensure};

/// Columns of the microkernel: maximum N.
const WIDTH: usize = 16;
/// N is larger than this: a row is stored as two overlapping halves.
const HALF: usize = WIDTH / 2;
/// Maximum K block: this many rows of B stay in L1. Sums are kept in C between K blocks.
const KC: usize = 512;
/// Minimum M: fewer independent accumulators cannot hide the latency of FMA.
const MIN_M: usize = 6;
/// Prefetch distance in A, in rows, if M is contiguous.
const AHEAD: usize = 32;
/// Register tiles of one task.
const TILES: usize = 8;

/// Arguments of a microkernel: a register tile of rows over a K block.
struct ColumnsArgs {
    k: usize,
    a: *const f32,
    /// Strides in elements along M and K.
    a_row: usize,
    a_k: usize,
    /// B; [`WIDTH`] elements are read from each row.
    b: *const f32,
    b_k: usize,
    /// Bias of [`WIDTH`] elements, or null for no bias.
    bias: *const f32,
    c: *mut f32,
    columns: usize,
    /// Whether to accumulate into C instead of overwriting it.
    add: bool,
}

/// Microkernel of `R` rows by `N` vectors. `M_CONTIGUOUS`: A is contiguous along M, otherwise along K. Plain loops,
/// because closures would not inherit the level's target features.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn sums<V: Vector<T = f32>, const R: usize, const N: usize, const M_CONTIGUOUS: bool>(
    s: &ColumnsArgs,
) {
    // SAFETY: the caller's operands cover the rows, the K block and the columns; the level is available.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; R];
        // One pointer for three rows, at `p`, `p + stride` and `p + 2 · stride`: x86 addressing modes cover these.
        let mut thirds = [s.a; R];
        for r in 0..R {
            thirds[r] = s.a.add(r / 3 * 3 * s.a_row);
        }
        let (mut a, mut b) = (s.a, s.b);
        for _ in 0..s.k {
            let mut y = [acc[0][0]; N];
            for j in 0..N {
                y[j] = V::load(b.add(j * V::LANES));
            }
            if M_CONTIGUOUS {
                // The hardware prefetcher does not follow so many streams.
                fetch(a.wrapping_add(AHEAD));
            }
            for r in 0..R {
                let x = if M_CONTIGUOUS { *a.add(r) } else { *thirds[r].add(r % 3 * s.a_row) };
                let x = V::splat(x);
                for j in 0..N {
                    acc[r][j] = x.mul_add(y[j], acc[r][j]);
                }
            }
            a = a.wrapping_add(s.a_k);
            for r in 0..R {
                thirds[r] = thirds[r].wrapping_add(1);
            }
            b = b.wrapping_add(s.b_k);
        }
        store_sums(s, acc);
    }
}

/// Adds bias and previous contents of C, and stores the tile.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn store_sums<V: Vector<T = f32>, const R: usize, const N: usize>(
    s: &ColumnsArgs,
    mut acc: [[V; N]; R],
) {
    // SAFETY: by the caller's promise C has `R` dense rows of `columns` elements, and bias `WIDTH` elements.
    unsafe {
        for r in 0..R {
            for j in 0..N {
                if !s.bias.is_null() {
                    acc[r][j] = acc[r][j].add(V::load(s.bias.add(j * V::LANES)));
                }
                if s.add {
                    let from = j * V::LANES;
                    let n = V::LANES.min(s.columns - from);
                    acc[r][j] = V::load_part(s.c.add(r * s.columns + from), n).add(acc[r][j]);
                }
            }
        }
        // Rows are stored as whole vectors: lanes beyond the last column are overwritten by the next row. The last row
        // is stored as two overlapping halves, because masked stores would delay the next tile's loads.
        for r in 0..R - 1 {
            for j in 0..N {
                acc[r][j].store(s.c.add(r * s.columns + j * V::LANES));
            }
        }
        let mut last = [0f32; WIDTH];
        for j in 0..N {
            acc[R - 1][j].store(last.as_mut_ptr().add(j * V::LANES));
        }
        let c = s.c.add((R - 1) * s.columns);
        for from in [0, s.columns - HALF] {
            *c.add(from).cast::<[f32; HALF]>() = *last.as_ptr().add(from).cast::<[f32; HALF]>();
        }
    }
}

/// Function type of a microkernel for any number of rows up to the level's MR.
type FewColumnsFn = unsafe fn(usize, &ColumnsArgs);

#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($name:ident, $v:ty, $n:literal, [$($r:literal)*], $feature:literal) => {
        #[target_feature(enable = $feature)]
        unsafe fn $name<const M_CONTIGUOUS: bool>(rows: usize, s: &ColumnsArgs) {
            match rows {
                // SAFETY: the caller's promises are those of `sums`.
                $($r => unsafe { sums::<$v, $r, $n, M_CONTIGUOUS>(s) },)*
                _ => {}
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
#[cfg(target_arch = "x86_64")]
kernels!(avx2, V8x32, 2, [1 2 3 4 5 6], "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, V16x32, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// Returns the microkernel of a level for A contiguous along M (`near`) or along K, and its MR.
fn kernel(level: Level, near: bool) -> Option<(FewColumnsFn, usize)> {
    match (level, near) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, true) => Some((avx512::<true>, 16)),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, false) => Some((avx512::<false>, 12)),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, true) => Some((avx2::<true>, 6)),
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, false) => Some((avx2::<false>, 6)),
        _ => None,
    }
}

/// GEMM kernel `[M, K] · [K, N]` in f32 for small N, with A contiguous along M or along K.
pub struct FewColumns {
    m: usize,
    n: usize,
    k: usize,
    a_row: usize,
    a_k: usize,
    epilogue: Epilogue,
    run: FewColumnsFn,
    tiles: usize,
}

impl FewColumns {
    /// Creates the GEMM, or returns why these kernels do not support it.
    pub fn accept(
        ra: &OperandDims,
        rb: &OperandDims,
        epilogue: Epilogue,
        level: Level,
    ) -> SelectResult<FewColumns, &'static str> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        let strides = |r: &OperandDims| Some((joint_stride(&r.free)?, joint_stride(&r.inner)?));
        let (Some((a_row, a_k)), Some((b_column, b_k))) = (strides(ra), strides(rb)) else {
            return Err("an operand is not a matrix with one stride per dimension");
        };
        let near = a_row == 1;
        let (run, rows) = kernel(level, near).ok_or("the instruction set has no suitable vectors")?;
        ensure!(count(&ra.batch) == 1, "it is a batch of GEMMs");
        ensure!((HALF + 1..=WIDTH).contains(&n), "N is not in 9 to 16");
        ensure!(m >= MIN_M && k != 0, "M is less than 6");
        ensure!(b_column == 1 && (b_k == n || k == 1), "the rows of the right operand are not contiguous");
        // With other strides, or long K along M-contiguous rows, each read would touch a different cache line.
        if near && k > KC || !near && a_k != 1 {
            return Err("the left operand is contiguous neither along M nor along K");
        }
        Ok(FewColumns { m, n, k, a_row, a_k, epilogue, run, tiles: m.div_ceil(rows) })
    }

    /// Number of rows of B that are read in place: those with at least `WIDTH` readable elements.
    fn in_place(&self) -> usize {
        if self.k <= KC { 0 } else { self.k - (WIDTH - self.n).div_ceil(self.n) }
    }

    /// Copies a row of N elements and zero-pads it to [`WIDTH`].
    unsafe fn pad(&self, from: *const f32, to: *mut f32) {
        // SAFETY: by the caller's promise `from` has N elements, and `to` room for `WIDTH`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, self.n);
            to.add(self.n).write_bytes(0, WIDTH - self.n);
        }
    }

    /// Computes a range of register tiles over one K block.
    unsafe fn chain(
        &self,
        tiles: &Range<usize>,
        products: Range<usize>,
        a: Ptr,
        (b, b_k): (*const f32, usize),
        bias: Ptr,
        c: Ptr,
    ) {
        let first = products.start == 0;
        for tile in tiles.clone() {
            let (from, to) = (self.m * tile / self.tiles, self.m * (tile + 1) / self.tiles);
            let call = ColumnsArgs {
                k: products.len(),
                a: a.elem::<f32>(from * self.a_row + products.start * self.a_k).cast_const(),
                a_row: self.a_row,
                a_k: self.a_k,
                b,
                b_k,
                bias: if first && self.epilogue.bias { bias.elem::<f32>(0) } else { std::ptr::null() },
                c: c.elem::<f32>(from * self.n),
                columns: self.n,
                add: !first || self.epilogue.accumulate,
            };
            // SAFETY: the caller's operands cover the tile; the kernel was chosen for an available level.
            unsafe { (self.run)(to - from, &call) };
        }
    }
}

impl Kernel for FewColumns {
    /// Bytes of scratch: the padded bias, then padded rows of B.
    fn scratch(&self) -> usize {
        (self.k - self.in_place() + 1) * WIDTH * 4
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let (a, b, c) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let scratch = Ptr(io.scratch);
        let in_place = self.in_place();
        // SAFETY: `k` is below K; `scratch()` counts `WIDTH` elements for the bias and for each copied row.
        unsafe {
            for k in in_place..self.k {
                self.pad(b.elem::<f32>(k * self.n), scratch.elem::<f32>((k - in_place + 1) * WIDTH));
            }
            if self.epilogue.bias {
                self.pad(io.inputs[2].cast(), scratch.elem::<f32>(0));
            }
        }
        let body = |task: usize| {
            let tiles = task * TILES..((task + 1) * TILES).min(self.tiles);
            let mut from = 0;
            while from < self.k {
                let inside = from < in_place;
                let to = if inside { (from + KC).min(in_place) } else { self.k };
                let (rows, b_k) = match inside {
                    true => (b.elem::<f32>(from * self.n), self.n),
                    false => (scratch.elem::<f32>((from - in_place + 1) * WIDTH), WIDTH),
                };
                // SAFETY: tasks have disjoint rows of C; K blocks do not mix rows read in place and from scratch.
                unsafe { self.chain(&tiles, from..to, a, (rows, b_k), scratch, c) };
                from = to;
            }
        };
        let work = (self.m * self.k) as f64 * 0.2;
        cx.team.run_with(self.tiles.div_ceil(TILES), work, cx.flush, &body);
        Ok(())
    }

    fn add_to_result(&mut self) -> bool {
        self.epilogue.accumulate = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matmul::skinny::integer_product::IntegerProduct;

    /// `near`: A is contiguous along M.
    fn check(level: Level, (m, n, k): (usize, usize, usize), near: bool, epilogue: Epilogue) {
        let left = if near { [1, m] } else { [k, 1] };
        let product = IntegerProduct { size: [1, m, n, k], left, right: [1, n] };
        let [a, b] = product.operands();
        product.check(&FewColumns::accept(&a, &b, epilogue, level).unwrap(), epilogue, level);
    }

    #[test]
    fn rows_and_columns_with_every_epilogue() {
        for level in Level::ALL.into_iter().filter(|&l| l.is_available() && kernel(l, true).is_some()) {
            for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let epilogue = Epilogue { bias, accumulate };
                for size in [(48, 10, 1100), (7, 9, 513), (6, 16, 600), (150, 10, 1), (13, 15, 512)] {
                    check(level, size, false, epilogue);
                }
                for size in [(300, 10, 16), (6, 16, 1), (31, 9, 512)] {
                    check(level, size, true, epilogue);
                }
            }
        }
    }
}
