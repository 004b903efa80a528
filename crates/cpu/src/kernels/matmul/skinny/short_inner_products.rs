//! Skinny GEMM `[M, K] · [K, N]` in f32 with N of at most 8, such as the logits of two actions.
//!
//! A is read in place, contiguous along K; columns of B are copied to rows once for each call. Vectors run along K, and the
//! lanes of four sums are added in registers at a time. The order of additions depends on the level only, not on which rows
//! are computed together.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, joint_stride};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::SelectResult;
use crate::simd::level::Level;
use crate::simd::vector::{LaneSums, Portable32};
use std::ops::Range;
use systole_ir::{Result, ensure};

/// Largest N: with more columns, a vector along N has few idle lanes.
const MAX_N: usize = 8;
/// Smallest K, of which a vector along K has few idle lanes, and largest K, for which all columns stay in L1.
const MIN_K: usize = 16;
const MAX_K: usize = 512;
/// Smallest M: with fewer rows, copying B takes as long as the product.
const MIN_M: usize = 16;
/// Rows whose sums are in registers together.
const ROWS: usize = 4;
/// Rows of a task.
const TASK: usize = 128;
/// Lanes of the widest vector: rows of copied columns are padded to as many elements.
const LANES: usize = 16;

/// Arguments of a microkernel: rows of A, contiguous along K, by padded columns of B.
struct ShortDotArgs {
    k: usize,
    a: *const f32,
    a_row: usize,
    b: *const f32,
    b_row: usize,
    /// Bias of each column, or null.
    bias: *const f32,
    c: *mut f32,
    c_row: usize,
    /// Whether to accumulate into C.
    add: bool,
}

/// Microkernel of `R` rows (at most four) by `N` columns. Plain loops, as closures would not inherit the level's target
/// features.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn sums<V: LaneSums, const R: usize, const N: usize>(s: &ShortDotArgs) {
    // SAFETY: the caller's operands cover the rows and columns, and rows of B are padded; the level is available.
    unsafe {
        let zero = V::splat(0.0);
        let mut acc = [[zero; ROWS]; N];
        let whole = s.k / V::LANES * V::LANES;
        let mut at = 0;
        while at < whole {
            let mut b = [zero; N];
            for j in 0..N {
                b[j] = V::load(s.b.add(j * s.b_row + at));
            }
            for i in 0..R {
                let a = V::load(s.a.add(i * s.a_row + at));
                for j in 0..N {
                    acc[j][i] = a.mul_add(b[j], acc[j][i]);
                }
            }
            at += V::LANES;
        }
        if at < s.k {
            for i in 0..R {
                let a = V::load_part(s.a.add(i * s.a_row + at), s.k - at);
                for j in 0..N {
                    acc[j][i] = a.mul_add(V::load(s.b.add(j * s.b_row + at)), acc[j][i]);
                }
            }
        }
        for j in 0..N {
            let totals = V::lane_sums(acc[j]);
            let bias = if s.bias.is_null() { 0.0 } else { *s.bias.add(j) };
            for i in 0..R {
                let to = s.c.add(i * s.c_row + j);
                let sum = totals[i] + bias;
                *to = if s.add { *to + sum } else { sum };
            }
        }
    }
}

/// A microkernel for up to four rows and the level's columns.
type ShortDotFn = unsafe fn(usize, usize, &ShortDotArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, [$($n:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name(rows: usize, columns: usize, s: &ShortDotArgs) {
            match (rows, columns) {
                // SAFETY: the contract is that of `sums`.
                $((4, $n) => unsafe { sums::<$v, 4, $n>(s) },
                (1, $n) => unsafe { sums::<$v, 1, $n>(s) },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, [1 2]);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
#[cfg(target_arch = "x86_64")]
kernels!(avx2, V8x32, [1 2], "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, V16x32, [1 2 3 4], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// Returns the microkernel of a level, and its largest number of columns.
fn kernel(level: Level) -> (ShortDotFn, usize) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => (avx2, 2),
        #[cfg(target_arch = "x86_64")]
        level if level >= Level::Avx512 => (avx512, 4),
        _ => (portable, 2),
    }
}

/// GEMM kernel `[M, K] · [K, N]` in f32 for at most eight columns, with A contiguous along K.
pub struct ShortInnerProducts {
    m: usize,
    n: usize,
    k: usize,
    a_row: usize,
    b_column: usize,
    b_k: usize,
    epilogue: Epilogue,
    run: ShortDotFn,
    most: usize,
}

impl ShortInnerProducts {
    /// Creates the GEMM, or returns why these kernels do not support it.
    pub fn accept(
        ra: &OperandDims,
        rb: &OperandDims,
        epilogue: Epilogue,
        level: Level,
    ) -> SelectResult<ShortInnerProducts, &'static str> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        ensure!(count(&ra.batch) == 1, "it is a batch of GEMMs");
        ensure!((1..=MAX_N).contains(&n), "N is more than 8");
        ensure!((MIN_K..=MAX_K).contains(&k), "K is not in 16 to 512");
        ensure!(m >= MIN_M, "M is less than 16");
        let strides = |r: &OperandDims| Some((joint_stride(&r.free)?, joint_stride(&r.inner)?));
        let (Some((a_row, a_k)), Some((b_column, b_k))) = (strides(ra), strides(rb)) else {
            return Err("an operand is not a matrix with one stride per dimension");
        };
        ensure!(a_k == 1, "the left operand is not contiguous along K");
        let (run, most) = kernel(level);
        Ok(ShortInnerProducts { m, n, k, a_row, b_column, b_k, epilogue, run, most })
    }

    /// Elements of a copied column of B.
    fn b_row(&self) -> usize {
        self.k.next_multiple_of(LANES)
    }

    /// Copies columns of B to rows, padded with zeros.
    unsafe fn pack(&self, b: *const f32, to: *mut f32) {
        for j in 0..self.n {
            // SAFETY: B has `k` elements in each of its columns, and `to` has room for `n` padded rows.
            unsafe {
                let row = to.add(j * self.b_row());
                for k in 0..self.k {
                    *row.add(k) = *b.add(j * self.b_column + k * self.b_k);
                }
                row.add(self.k).write_bytes(0, self.b_row() - self.k);
            }
        }
    }

    /// Computes some rows; `b` is packed.
    unsafe fn rows(&self, rows: Range<usize>, a: Ptr, b: *const f32, bias: *const f32, c: Ptr) {
        let mut i = rows.start;
        while i < rows.end {
            let count = if rows.end - i >= ROWS { ROWS } else { 1 };
            for j in (0..self.n).step_by(self.most) {
                let columns = self.most.min(self.n - j);
                let call = ShortDotArgs {
                    k: self.k,
                    a: a.elem::<f32>(i * self.a_row).cast_const(),
                    a_row: self.a_row,
                    b: b.wrapping_add(j * self.b_row()),
                    b_row: self.b_row(),
                    bias: if bias.is_null() { bias } else { bias.wrapping_add(j) },
                    c: c.elem::<f32>(i * self.n + j),
                    c_row: self.n,
                    add: self.epilogue.accumulate,
                };
                // SAFETY: the caller's operands cover the rows; the kernel was chosen for an available level.
                unsafe { (self.run)(count, columns, &call) };
            }
            i += count;
        }
    }
}

impl Kernel for ShortInnerProducts {
    fn scratch(&self) -> usize {
        self.n * self.b_row() * 4
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: `scratch` counts the copied columns.
        unsafe {
            self.pack(io.inputs[1].cast(), io.scratch.cast());
            self.run_kept(cx, io, io.scratch.cast_const())
        }
    }

    fn kept(&self, same: &[bool]) -> usize {
        if same[1] { self.scratch() } else { 0 }
    }

    unsafe fn keep(&self, _: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the contract of `Kernel::keep`.
        unsafe { self.pack(inputs[1].cast(), kept.cast()) }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let (a, b, c) = (Ptr::of(io.inputs[0]), Ptr::of(kept), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.epilogue.bias { io.inputs[2] } else { std::ptr::null() });
        let body = |task: usize| {
            let rows = task * TASK..((task + 1) * TASK).min(self.m);
            // SAFETY: tasks have disjoint rows.
            unsafe {
                self.rows(rows, a, b.elem::<f32>(0).cast_const(), bias.elem::<f32>(0).cast_const(), c);
            }
        };
        let work = self.m as f64 * (1.0 + (self.k * self.n) as f64 / 40.0);
        cx.team.run_with(self.m.div_ceil(TASK), work, cx.flush, &body);
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

    /// `rows`: B is contiguous along N.
    fn check(level: Level, (m, n, k): (usize, usize, usize), rows: bool, epilogue: Epilogue) {
        let right = if rows { [1, n] } else { [k, 1] };
        let product = IntegerProduct { size: [1, m, n, k], left: [k, 1], right };
        let [a, b] = product.operands();
        product.check(&ShortInnerProducts::accept(&a, &b, epilogue, level).unwrap(), epilogue, level);
    }

    #[test]
    fn rows_and_columns_with_every_epilogue() {
        for level in Level::ALL.into_iter().filter(|&l| l.is_available()) {
            for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let epilogue = Epilogue { bias, accumulate };
                for n in 1..=MAX_N {
                    check(level, (300, n, 64), true, epilogue);
                    check(level, (19, n, 37), false, epilogue);
                }
                check(level, (16, 3, 512), true, epilogue);
            }
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_rows_that_are_computed_together() {
        for level in Level::ALL.into_iter().filter(|&l| l.is_available()) {
            let a: Vec<f32> = (0..5 * 33).map(|i| 1.0 / (1.0 + i as f32)).collect();
            let mut c = [0f32; 2];
            let (run, _) = kernel(level);
            let b = [0.1f32; 48];
            for (c, rows) in c.iter_mut().zip([4, 1]) {
                let mut all = [0f32; ROWS];
                let s = ShortDotArgs {
                    k: 33,
                    a: a.as_ptr(),
                    a_row: 33,
                    b: b.as_ptr(),
                    b_row: 48,
                    bias: std::ptr::null(),
                    c: all.as_mut_ptr(),
                    c_row: 1,
                    add: false,
                };
                // SAFETY: A has five rows, and B one padded column.
                unsafe { run(rows, 1, &s) };
                *c = all[0];
            }
            assert_eq!(c[0].to_bits(), c[1].to_bits(), "{level:?}");
        }
    }
}
