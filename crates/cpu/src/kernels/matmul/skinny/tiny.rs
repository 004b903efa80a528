//! Tiny GEMM `[M, K] · [K, N]` in f32 with M, N and K of at most 32, or a batch of them, such as the state of a filter.
//!
//! A call of blocked GEMM takes longer than such a product. Vectors run along N; B is read in place if its rows are
//! contiguous, and copied otherwise. Sums over K are in order.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, joint_stride, offsets};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::SelectResult;
use crate::simd::level::Level;
use crate::simd::vector::{Portable32, Vector};
use std::mem::MaybeUninit;
use systole_ir::{Result, ensure};

/// Largest M, N and K.
const MOST: usize = 32;
/// Rows whose sums are in registers together.
const ROWS: usize = 4;
/// Nanoseconds of a task at least.
const TASK_NS: f64 = 2000.0;

/// Arguments of a microkernel: one product.
struct TinyArgs {
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    a_row: usize,
    a_k: usize,
    /// B, contiguous along N.
    b: *const f32,
    b_row: usize,
    /// Bias of each column, or null.
    bias: *const f32,
    c: *mut f32,
    /// Whether to accumulate into C.
    add: bool,
}

/// Computes `R` rows from row `i` on, all columns.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn rows<V: Vector<T = f32>, const R: usize>(s: &TinyArgs, i: usize) {
    // SAFETY: the caller's operands cover the product; the level is available.
    unsafe {
        let a = s.a.add(i * s.a_row);
        let mut at = 0;
        while at < s.n {
            let lanes = V::LANES.min(s.n - at);
            let mut acc = [V::splat(0.0); R];
            for k in 0..s.k {
                let b = V::load_part(s.b.add(k * s.b_row + at), lanes);
                for r in 0..R {
                    acc[r] = V::splat(*a.add(r * s.a_row + k * s.a_k)).mul_add(b, acc[r]);
                }
            }
            for r in 0..R {
                let to = s.c.add((i + r) * s.n + at);
                if !s.bias.is_null() {
                    acc[r] = acc[r].add(V::load_part(s.bias.add(at), lanes));
                }
                if s.add {
                    acc[r] = V::load_part(to, lanes).add(acc[r]);
                }
                acc[r].store_part(to, lanes);
            }
            at += lanes;
        }
    }
}

#[inline(always)]
unsafe fn product<V: Vector<T = f32>>(s: &TinyArgs) {
    let mut i = 0;
    // SAFETY: guaranteed by the caller.
    unsafe {
        while i + ROWS <= s.m {
            rows::<V, ROWS>(s, i);
            i += ROWS;
        }
        match s.m - i {
            3 => rows::<V, 3>(s, i),
            2 => rows::<V, 2>(s, i),
            1 => rows::<V, 1>(s, i),
            _ => {}
        }
    }
}

type TinyFn = unsafe fn(&TinyArgs);

macro_rules! kernels {
    ($name:ident, $v:ty $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name(s: &TinyArgs) {
            // SAFETY: guaranteed by the caller.
            unsafe { product::<$v>(s) }
        }
    };
}
kernels!(portable, Portable32);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
#[cfg(target_arch = "x86_64")]
kernels!(avx2, V8x32, "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// GEMM kernel `[M, K] · [K, N]` in f32 for tiny matrices.
pub struct Tiny {
    m: usize,
    n: usize,
    k: usize,
    a_row: usize,
    a_k: usize,
    b_column: usize,
    b_k: usize,
    /// Offsets of both operands for each product of the batch.
    batch: Vec<[usize; 2]>,
    epilogue: Epilogue,
    run: TinyFn,
    /// Products of a task.
    task: usize,
    work_ns: f64,
}

impl Tiny {
    /// Creates the GEMM, or returns why these kernels do not support it.
    pub fn accept(
        ra: &OperandDims,
        rb: &OperandDims,
        epilogue: Epilogue,
        level: Level,
    ) -> SelectResult<Tiny, &'static str> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        ensure!(m <= MOST && n <= MOST && k <= MOST, "M, N or K is more than 32");
        ensure!(m * n * k > 0, "an operand is empty");
        let strides = |r: &OperandDims| Some((joint_stride(&r.free)?, joint_stride(&r.inner)?));
        let (Some((a_row, a_k)), Some((b_column, b_k))) = (strides(ra), strides(rb)) else {
            return Err("an operand is not a matrix with one stride per dimension");
        };
        let run = match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2 as TinyFn,
            #[cfg(target_arch = "x86_64")]
            level if level >= Level::Avx512 => avx512,
            _ => portable,
        };
        let batch: Vec<[usize; 2]> =
            offsets(&ra.batch).into_iter().zip(offsets(&rb.batch)).map(|(a, b)| [a, b]).collect();
        let each_ns = 20.0 + (m * n.div_ceil(16) * k) as f64 * 0.15;
        let task = (TASK_NS / each_ns).ceil() as usize;
        let work_ns = each_ns * batch.len() as f64;
        Ok(Tiny { m, n, k, a_row, a_k, b_column, b_k, batch, epilogue, run, task, work_ns })
    }

    /// Computes a product of the batch.
    unsafe fn one(&self, which: usize, a: *const f32, b: *const f32, bias: *const f32, c: *mut f32) {
        let [a_at, b_at] = self.batch[which];
        let mut copied = MaybeUninit::<[f32; MOST * MOST]>::uninit();
        // SAFETY: the operands have the products that the offsets point to; K · N elements fit.
        unsafe {
            let (mut b, mut b_row) = (b.add(b_at), self.b_k);
            if self.b_column != 1 && self.n > 1 {
                let to = copied.as_mut_ptr().cast::<f32>();
                for j in 0..self.n {
                    for k in 0..self.k {
                        *to.add(k * self.n + j) = *b.add(j * self.b_column + k * self.b_k);
                    }
                }
                (b, b_row) = (to.cast_const(), self.n);
            }
            (self.run)(&TinyArgs {
                m: self.m,
                n: self.n,
                k: self.k,
                a: a.add(a_at),
                a_row: self.a_row,
                a_k: self.a_k,
                b,
                b_row,
                bias,
                c: c.add(which * self.m * self.n),
                add: self.epilogue.accumulate,
            });
        }
    }
}

impl Kernel for Tiny {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let bias = if self.epilogue.bias { io.inputs[2] } else { std::ptr::null() };
        if self.batch.len() == 1 {
            // SAFETY: by the contract of `Kernel::run`.
            unsafe {
                self.one(0, io.inputs[0].cast(), io.inputs[1].cast(), bias.cast(), io.outputs[0].cast())
            };
            return Ok(());
        }
        let (a, b, bias, c) =
            (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr::of(bias), Ptr(io.outputs[0]));
        let count = self.batch.len();
        let body = |task: usize| {
            for which in task * self.task..((task + 1) * self.task).min(count) {
                let [a, b, bias] = [a, b, bias].map(|p| p.at(0).cast_const().cast());
                // SAFETY: tasks have different products.
                unsafe { self.one(which, a, b, bias, c.elem(0)) };
            }
        };
        cx.team.run_with(count.div_ceil(self.task), self.work_ns, cx.flush, &body);
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

    /// `turned`: strides along K and rows or columns are exchanged, of A and of B.
    fn check(level: Level, size: [usize; 4], turned: [bool; 2], epilogue: Epilogue) {
        let [_, m, n, k] = size;
        let left = if turned[0] { [1, m] } else { [k, 1] };
        let right = if turned[1] { [k, 1] } else { [1, n] };
        let product = IntegerProduct { size, left, right };
        let [a, b] = product.operands();
        product.check(&Tiny::accept(&a, &b, epilogue, level).unwrap(), epilogue, level);
    }

    #[test]
    fn every_order_of_operands_with_every_epilogue() {
        for level in Level::ALL.into_iter().filter(|&l| l.is_available()) {
            for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                for turned in [[false, false], [false, true], [true, false], [true, true]] {
                    for size in [[1, 1, 1, 1], [1, 6, 6, 6], [1, 3, 17, 5], [1, 32, 32, 32], [200, 5, 7, 3]] {
                        check(level, size, turned, Epilogue { bias, accumulate });
                    }
                }
            }
        }
    }
}
