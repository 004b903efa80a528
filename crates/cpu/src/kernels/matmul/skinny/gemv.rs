//! GEMV and products `[M, K] · [K, N]` in f32 of at most eight rows, such as a layer of one sample or of one token.
//!
//! Each element of the right operand is used at most eight times, so memory bandwidth decides: it is read once, in
//! place and in storage order. If N is contiguous, parts of K have separate sums, which are added in order; the number
//! of parts depends on sizes alone. If K is contiguous, columns are inner products.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, joint_stride};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::SelectResult;
use crate::simd::level::Level;
use crate::simd::prefetch::prefetch_far;
use crate::simd::vector::{Portable32, Vector};
use systole_ir::{Result, ensure};

/// Maximum M: with more rows, packing pays off.
const MAX_M: usize = 8;
/// Minimum K and N: below, other kernels read operands in place, or there is little to stream.
const MIN_K: usize = 65;
const MIN_N: usize = 64;
/// Rows of the right operand that are read in parallel.
pub(super) const ROWS: usize = 4;
/// Columns whose sums are kept at a time, in L1.
pub(super) const COLUMNS: usize = 4096;
/// Elements of the right operand that one task reads, and maximum number of parts of K.
const TASK: usize = 1 << 17;
const PARTS: usize = 16;
/// Columns of a task of inner products.
pub(super) const DOTS: usize = 64;
/// Prefetch distance along a row of inner products, in elements.
pub(super) const AHEAD: usize = 512;
/// Columns of one or two rows that are computed at a time if K is contiguous.
const COLUMNS_AT_ONCE: usize = 4;
/// Lanes of the widest vector.
pub(super) const LANES: usize = 16;

/// Arguments of a microkernel.
struct VectorArgs {
    /// Rows of B along K, or elements of a row that is contiguous along K.
    k: usize,
    /// Columns.
    n: usize,
    /// A as f32, dense rows `a_row` elements apart.
    a: *const f32,
    a_row: usize,
    /// B; its rows along K (or its columns, if K is contiguous) are `b_step` elements apart.
    b: *const f32,
    b_step: usize,
    /// Sums, rows `c_row` elements apart.
    c: *mut f32,
    c_row: usize,
}

/// Computes `C = A · B`, B contiguous along N. Plain loops, because closures would not inherit the level's target
/// features.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn along_n<V: Vector<T = f32>, const M: usize>(s: &VectorArgs) {
    // SAFETY: the caller's operands cover `M` rows, `k` and `n`; the level is available.
    unsafe {
        for m in 0..M {
            s.c.add(m * s.c_row).write_bytes(0, s.n);
        }
        let whole = s.k / ROWS * ROWS;
        for k in (0..whole).step_by(ROWS) {
            let mut x = [[V::splat(0.0); ROWS]; M];
            for m in 0..M {
                for r in 0..ROWS {
                    x[m][r] = V::splat(*s.a.add(m * s.a_row + k + r));
                }
            }
            let b = s.b.add(k * s.b_step);
            for at in (0..s.n).step_by(V::LANES) {
                let lanes = V::LANES.min(s.n - at);
                let full = lanes == V::LANES;
                let mut y = [x[0][0]; ROWS];
                for r in 0..ROWS {
                    let p = b.add(r * s.b_step + at);
                    // The rows after these: the hardware prefetcher does not predict where they start.
                    prefetch_far(p.wrapping_add(ROWS * s.b_step));
                    y[r] = if full { V::load(p) } else { V::load_part(p, lanes) };
                }
                for m in 0..M {
                    let to = s.c.add(m * s.c_row + at);
                    let mut sum = if full { V::load(to) } else { V::load_part(to, lanes) };
                    for r in 0..ROWS {
                        sum = x[m][r].mul_add(y[r], sum);
                    }
                    if full { sum.store(to) } else { sum.store_part(to, lanes) }
                }
            }
        }
        for k in whole..s.k {
            for m in 0..M {
                let x = V::splat(*s.a.add(m * s.a_row + k));
                for at in (0..s.n).step_by(V::LANES) {
                    let lanes = V::LANES.min(s.n - at);
                    let to = s.c.add(m * s.c_row + at);
                    let y = V::load_part(s.b.add(k * s.b_step + at), lanes);
                    x.mul_add(y, V::load_part(to, lanes)).store_part(to, lanes);
                }
            }
        }
    }
}

/// Computes `C = A · Bᵀ`, both contiguous along K: `n` columns, one after another.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn along_k<V: Vector<T = f32>, const M: usize>(s: &VectorArgs) {
    // SAFETY: as for `along_n`.
    unsafe {
        let mut n = 0;
        while n < s.n {
            // Several columns at a time are several streams from memory; with more rows, registers are few.
            match M {
                1 | 2 if s.n - n >= COLUMNS_AT_ONCE => {
                    dots::<V, M, COLUMNS_AT_ONCE>(s, n);
                    n += COLUMNS_AT_ONCE;
                }
                _ => {
                    dots::<V, M, 1>(s, n);
                    n += 1;
                }
            }
        }
    }
}

/// Computes `N` columns from `first` on, each in the same order of sums.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn dots<V: Vector<T = f32>, const M: usize, const N: usize>(s: &VectorArgs, first: usize) {
    // SAFETY: as for `along_n`; there are `N` columns from `first` on.
    unsafe {
        let b = s.b.add(first * s.b_step);
        // Two sums for each element, so that a multiply-add seldom waits for the previous one.
        let mut sums = [[[V::splat(0.0); 2]; N]; M];
        for at in (0..s.k).step_by(2 * V::LANES) {
            for n in 0..N {
                prefetch_far(b.wrapping_add(n * s.b_step + at + AHEAD));
            }
            for half in 0..2 {
                let at = at + half * V::LANES;
                if at >= s.k {
                    break;
                }
                let lanes = V::LANES.min(s.k - at);
                let mut x = [sums[0][0][0]; M];
                for m in 0..M {
                    x[m] = V::load_part(s.a.add(m * s.a_row + at), lanes);
                }
                for n in 0..N {
                    let y = V::load_part(b.add(n * s.b_step + at), lanes);
                    for m in 0..M {
                        sums[m][n][half] = x[m].mul_add(y, sums[m][n][half]);
                    }
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                *s.c.add(m * s.c_row + first + n) = finish_dots(sums[m][n]);
            }
        }
    }
}

/// Returns the sum of all lanes of two vectors.
#[inline(always)]
pub(super) unsafe fn finish_dots<V: Vector<T = f32>>(sums: [V; 2]) -> f32 {
    let mut lanes = [0f32; LANES];
    // SAFETY: the level is available.
    unsafe { sums[0].add(sums[1]).store(lanes.as_mut_ptr()) };
    let mut left = V::LANES;
    while left > 1 {
        left /= 2;
        for i in 0..left {
            lanes[i] += lanes[i + left];
        }
    }
    lanes[0]
}

/// Function type of a microkernel for any number of rows up to [`MAX_M`].
type VectorFn = unsafe fn(usize, &VectorArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, [$($m:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const K_CONTIGUOUS: bool>(rows: usize, s: &VectorArgs) {
            match rows {
                // SAFETY: the caller's promises are those of `along_n` and `along_k`.
                $($m => unsafe { if K_CONTIGUOUS { along_k::<$v, $m>(s) } else { along_n::<$v, $m>(s) } },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, [1 2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
#[cfg(target_arch = "x86_64")]
kernels!(avx2, V8x32, [1 2 3 4 5 6 7 8], "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, V16x32, [1 2 3 4 5 6 7 8], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// Returns the microkernel of a level.
fn kernel(level: Level, k_contiguous: bool) -> VectorFn {
    match (level, k_contiguous) {
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, true) => avx512::<true>,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx512, false) => avx512::<false>,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, true) => avx2::<true>,
        #[cfg(target_arch = "x86_64")]
        (Level::Avx2, false) => avx2::<false>,
        (_, true) => portable::<true>,
        (_, false) => portable::<false>,
    }
}

/// GEMV kernel: a product of few rows in f32.
pub struct Gemv {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    a_row: usize,
    a_k: usize,
    /// Elements between rows of B, or between its columns if K is contiguous.
    pub(super) b_step: usize,
    pub(super) k_contiguous: bool,
    /// Number of parts of K with separate sums.
    pub(super) parts: usize,
    pub(super) epilogue: Epilogue,
    run: VectorFn,
}

impl Gemv {
    /// Creates the product, or returns why these kernels do not support it.
    pub fn accept(
        ra: &OperandDims,
        rb: &OperandDims,
        epilogue: Epilogue,
        level: Level,
    ) -> SelectResult<Gemv, &'static str> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        ensure!((1..=MAX_M).contains(&m), "M is more than 8");
        ensure!(k >= MIN_K && n >= MIN_N, "K is less than 65, or N less than 64");
        ensure!(count(&ra.batch) == 1, "it is a batch of GEMMs");
        let strides = |r: &OperandDims| Some((joint_stride(&r.free)?, joint_stride(&r.inner)?));
        let (Some((a_row, a_k)), Some((b_column, b_k))) = (strides(ra), strides(rb)) else {
            return Err("an operand is not a matrix with one stride per dimension");
        };
        let k_contiguous = match (b_column, b_k) {
            (1, _) => false,
            (_, 1) => true,
            _ => return Err("the right operand is contiguous neither along K nor along N"),
        };
        let parts = if k_contiguous { 1 } else { (k * n.min(COLUMNS) / TASK).clamp(1, PARTS) };
        let b_step = if k_contiguous { b_column } else { b_k };
        Ok(Gemv {
            m,
            n,
            k,
            a_row,
            a_k,
            b_step,
            k_contiguous,
            parts,
            epilogue,
            run: kernel(level, k_contiguous),
        })
    }

    /// Number of elements of the copy of A.
    fn left(&self) -> usize {
        (self.m * self.k).next_multiple_of(LANES)
    }

    /// Copies A densely into scratch. Returns the copy, and the address for the sums of parts.
    ///
    /// # Safety
    /// Operands and scratch are those of the product.
    pub(super) unsafe fn copy_left(&self, io: &Io<'_>) -> (Ptr, Ptr) {
        let (a, copy) = (io.inputs[0].cast::<f32>(), Ptr(io.scratch).elem::<f32>(0));
        for m in 0..self.m {
            for k in 0..self.k {
                // SAFETY: A has M rows and K columns with these strides, scratch `left()` elements for its copy.
                unsafe { *copy.add(m * self.k + k) = *a.add(m * self.a_row + k * self.a_k) };
            }
        }
        (Ptr(io.scratch), Ptr(Ptr(io.scratch).at(self.left() * 4)))
    }

    /// Runs one task: a range of columns, and one part of K.
    unsafe fn task(&self, task: usize, a: *const f32, b: Ptr, sums: Ptr) {
        let width = if self.k_contiguous { DOTS } else { COLUMNS };
        let (at, part) = (task / self.parts * width, task % self.parts);
        let along = |part: usize| part * self.k / self.parts;
        let from = along(part);
        let b_at = if self.k_contiguous { at * self.b_step } else { from * self.b_step + at };
        let args = VectorArgs {
            k: along(part + 1) - from,
            n: width.min(self.n - at),
            a: a.wrapping_add(from),
            a_row: self.k,
            b: b.elem::<f32>(b_at).cast_const(),
            b_step: self.b_step,
            c: sums.elem::<f32>(part * self.m * self.n + at),
            c_row: self.n,
        };
        // SAFETY: the operands cover the columns and the part of K; the kernel was chosen for an available level.
        unsafe { (self.run)(self.m, &args) };
    }

    /// Adds the parts in order, then bias and previous contents.
    pub(super) unsafe fn finish(&self, sums: *const f32, bias: *const f32, c: *mut f32) {
        let size = self.m * self.n;
        for i in 0..size {
            // SAFETY: there are sums of all parts, and `n` elements of the bias if there is one.
            unsafe {
                let mut sum = *sums.add(i);
                for part in 1..self.parts {
                    sum += *sums.add(part * size + i);
                }
                if !bias.is_null() {
                    sum += *bias.add(i % self.n);
                }
                if self.epilogue.accumulate {
                    sum += *c.add(i);
                }
                *c.add(i) = sum;
            }
        }
    }
}

impl Kernel for Gemv {
    /// Bytes of scratch: A, then the sums of each part.
    fn scratch(&self) -> usize {
        (self.left() + self.parts * self.m * self.n) * 4
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let b = Ptr::of(io.inputs[1]);
        // SAFETY: by the caller's promise.
        let (left, sums) = unsafe { self.copy_left(io) };
        let width = if self.k_contiguous { DOTS } else { COLUMNS };
        let body = |task: usize| {
            // SAFETY: tasks have disjoint columns or parts, and disjoint sums.
            unsafe { self.task(task, left.elem(0), b, sums) }
        };
        let work = (self.k * self.n) as f64 * 0.2;
        cx.team.run_with(self.n.div_ceil(width) * self.parts, work, cx.flush, &body);
        let bias = if self.epilogue.bias { io.inputs[2].cast() } else { std::ptr::null() };
        // SAFETY: all tasks have ended.
        unsafe { self.finish(sums.elem(0), bias, io.outputs[0].cast()) };
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

    fn check(level: Level, (m, n, k): (usize, usize, usize), k_contiguous: bool, epilogue: Epilogue) {
        let right = if k_contiguous { [k, 1] } else { [1, n] };
        let product = IntegerProduct { size: [1, m, n, k], left: [k, 1], right };
        let [a, b] = product.operands();
        product.check(&Gemv::accept(&a, &b, epilogue, level).unwrap(), epilogue, level);
    }

    #[test]
    fn few_rows_in_both_layouts_with_every_epilogue() {
        for level in Level::ALL.into_iter().filter(|&l| l.is_available()) {
            for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let epilogue = Epilogue { bias, accumulate };
                for size in [(1, 64, 65), (1, 768, 770), (8, 100, 131), (3, 5000, 66), (5, 333, 1027)] {
                    check(level, size, false, epilogue);
                    check(level, size, true, epilogue);
                }
            }
        }
    }
}
