//! Fallback integer GEMM for any integer types in plain loops: one task for each row of C.

use crate::kernel::gemm_dims::{OperandDims, offsets};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use systole_ir::{DType, Result};

/// Integer GEMM, accumulated in i64: exact modulo the width of the result. Tables hold element offsets of A and B.
pub struct IntegerGemm {
    batch: Vec<(usize, usize)>,
    inner: Vec<(usize, usize)>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    from: DType,
    to: DType,
}

impl IntegerGemm {
    /// Creates the GEMM of `ra` (A) and `rb` (B).
    pub fn new(ra: &OperandDims, rb: &OperandDims, from: DType, to: DType) -> IntegerGemm {
        IntegerGemm {
            batch: offsets(&ra.batch).into_iter().zip(offsets(&rb.batch)).collect(),
            inner: offsets(&ra.inner).into_iter().zip(offsets(&rb.inner)).collect(),
            rows: offsets(&ra.free),
            columns: offsets(&rb.free),
            from,
            to,
        }
    }

    unsafe fn run_any(&self, cx: &KernelContext<'_>, a: *const u8, b: *const u8, c: *mut u8) {
        // SAFETY: by the caller's promise the operands have element type `from`.
        unsafe {
            match self.from {
                DType::I8 => self.run_as::<i8>(cx, a, b, c, |x| x as i64),
                DType::I16 => self.run_as::<i16>(cx, a, b, c, |x| x as i64),
                DType::I32 => self.run_as::<i32>(cx, a, b, c, |x| x as i64),
                DType::U8 => self.run_as::<u8>(cx, a, b, c, |x| x as i64),
                DType::U16 => self.run_as::<u16>(cx, a, b, c, |x| x as i64),
                DType::U32 => self.run_as::<u32>(cx, a, b, c, |x| x as i64),
                DType::U64 => self.run_as::<u64>(cx, a, b, c, |x| x as i64),
                _ => self.run_as::<i64>(cx, a, b, c, |x| x),
            }
        }
    }

    unsafe fn run_as<T: Copy>(
        &self,
        cx: &KernelContext<'_>,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        wide: impl Fn(T) -> i64 + Sync,
    ) {
        let (a, b, c) = (Ptr::of(a), Ptr::of(b), Ptr(c));
        let (m, n) = (self.rows.len(), self.columns.len());
        let body = |task: usize| {
            let (batch, i) = (task / m, task % m);
            let (at_a, at_b) = (self.batch[batch].0 + self.rows[i], self.batch[batch].1);
            let mut sums = vec![0i64; n];
            // SAFETY: all offsets are inside the operands; tasks have disjoint rows of C.
            unsafe {
                for &(ka, kb) in &self.inner {
                    let x = wide(*a.elem::<T>(at_a + ka));
                    for (s, &j) in sums.iter_mut().zip(&self.columns) {
                        *s = s.wrapping_add(x.wrapping_mul(wide(*b.elem::<T>(at_b + kb + j))));
                    }
                }
                let size = self.to.size();
                for (j, s) in sums.iter().enumerate() {
                    let at = ((batch * m + i) * n + j) * size;
                    // Little endian: the low bytes are the sum modulo the result's width.
                    std::ptr::copy_nonoverlapping(s.to_le_bytes().as_ptr(), c.at(at), size);
                }
            }
        };
        let tasks = self.batch.len() * m;
        cx.team.run_with(tasks, (tasks * n * self.inner.len()) as f64, cx.flush, &body);
    }
}

impl Kernel for IntegerGemm {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise operands and result have the shapes and types of `new`.
        unsafe { self.run_any(cx, io.inputs[0], io.inputs[1], io.outputs[0]) };
        Ok(())
    }
}
