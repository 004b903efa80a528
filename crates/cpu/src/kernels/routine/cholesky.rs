//! Cholesky's decomposition: matrices, and parts of each, in parallel. The loops are those of `simd/triangle.rs`; they work
//! on uᵀ · u, whose rows are the columns of l, in scratch.

use crate::kernel::{Cx, Io, Kernel, Ptr};
use crate::select::{Answer, Problem};
use crate::simd::level::TileFn;
use crate::simd::real::Real;
use crate::simd::triangle::{BLOCK, Factor, FactorTile, Part};
use std::marker::PhantomData;
use systole_ir::Result;
use systole_ir::op::Routine;

/// Columns of the block's rows that are one task.
const COLUMNS: usize = 64;

/// A bound decomposition.
pub struct CholeskyKernel<T> {
    matrices: usize,
    n: usize,
    tile: TileFn,
    of: PhantomData<fn() -> T>,
}

impl<T: Real> CholeskyKernel<T> {
    pub fn answer(p: &Problem<'_>, _: Routine) -> Answer {
        let shape = &p.step.input_types[0].shape;
        Ok(Box::new(CholeskyKernel::<T> {
            matrices: shape[0],
            n: shape[1],
            tile: p.target.level.vectors().tile::<FactorTile<T>>(),
            of: PhantomData,
        }))
    }

    /// Runs blocks of so many of `count` rows or columns from `from` on.
    fn parts(&self, cx: &Cx<'_>, [from, size, depth]: [usize; 3], run: &(dyn Fn(usize, usize) + Sync)) {
        let left = self.n - from;
        let body = |k: usize| run(from + k * size, size.min(left - k * size));
        let work = (left * left * depth) as f64 * 0.05;
        cx.team.run_with(left.div_ceil(size), work, cx.flush, &body);
    }

    unsafe fn decompose(&self, cx: &Cx<'_>, a: Ptr, u: Ptr, l: Ptr) {
        let n = self.n;
        let task = |first: usize, part: Part| {
            let end = (first + BLOCK).min(n);
            let factor = Factor { u: u.elem::<T>(0), n, first, end, part };
            let job: *const u8 = (&raw const factor).cast();
            // SAFETY: by the caller's promise; parts that run at the same time write other elements.
            unsafe { (self.tile)(u.at(0), job, job, job, 0) };
        };
        // What lies on and below the diagonal, turned.
        // SAFETY: by the caller's promise, all three are `[n, n]`.
        self.parts(cx, [0, BLOCK, 4], &|first, rows| unsafe { turn::<T>(a, u, n, [first, rows], false) });
        for first in (0..n).step_by(BLOCK) {
            let end = (first + BLOCK).min(n);
            task(first, Part::Diagonal);
            self.parts(cx, [end, COLUMNS, BLOCK], &|j, count| task(first, Part::Columns(j, count)));
            self.parts(cx, [end, BLOCK, BLOCK], &|i, count| task(first, Part::Rows(i, count)));
        }
        // SAFETY: as above.
        self.parts(cx, [0, BLOCK, 4], &|first, rows| unsafe { turn::<T>(u, l, n, [first, rows], true) });
    }
}

/// Rows of `to` from columns of `from`: below the diagonal and zeros above it, or else above it.
unsafe fn turn<T: Real>(from: Ptr, to: Ptr, n: usize, [first, rows]: [usize; 2], below: bool) {
    for j in (0..n).step_by(8) {
        for i in first..first + rows {
            for j in j..(j + 8).min(n) {
                let is_wanted = if below { j <= i } else { j >= i };
                // SAFETY: by the caller's promise, both are `[n, n]`.
                unsafe {
                    if is_wanted {
                        *to.elem::<T>(i * n + j) = *from.elem::<T>(j * n + i);
                    } else if below {
                        *to.elem::<T>(i * n + j) = T::of(0.0);
                    }
                }
            }
        }
    }
}

impl<T: Real> Kernel for CholeskyKernel<T> {
    fn scratch(&self) -> usize {
        self.matrices * self.n * self.n * size_of::<T>()
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let bytes = self.n * self.n * size_of::<T>();
        let (a, u, l) = (Ptr::of(io.inputs[0]), Ptr(io.scratch), Ptr(io.outputs[0]));
        let body = |k: usize| {
            let part = |p: Ptr| Ptr(p.at(k * bytes));
            // SAFETY: each matrix is one task, in its own part of the arrays.
            unsafe { self.decompose(cx, part(a), part(u), part(l)) };
        };
        let work = (self.matrices * self.n * self.n * self.n) as f64 * 0.03;
        cx.team.run_with(self.matrices, work, cx.flush, &body);
        Ok(())
    }
}
