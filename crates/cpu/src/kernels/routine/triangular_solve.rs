//! Triangular systems: matrices and panels of columns in parallel. The loops are those of `simd/triangle.rs`.

use crate::kernel::{Cx, Io, Kernel, Ptr};
use crate::select::{Answer, Problem};
use crate::simd::level::TileFn;
use crate::simd::real::Real;
use crate::simd::triangle::{Solve, SolveTile};
use std::marker::PhantomData;
use systole_ir::Result;
use systole_ir::op::Routine;

/// Columns of a panel.
const PANEL: usize = 32;

/// A bound solver.
pub struct SolveKernel<T> {
    matrices: usize,
    n: usize,
    columns: usize,
    unit_diagonal: bool,
    tile: TileFn,
    of: PhantomData<fn() -> T>,
}

impl<T: Real> SolveKernel<T> {
    pub fn answer(p: &Problem<'_>, routine: Routine) -> Answer {
        let b = &p.step.input_types[1].shape;
        Ok(Box::new(SolveKernel::<T> {
            matrices: b[0],
            n: b[1],
            columns: b[2],
            unit_diagonal: routine == Routine::TriangularSolve { unit_diagonal: true },
            tile: p.target.level.vectors().tile::<SolveTile<T>>(),
            of: PhantomData,
        }))
    }
}

impl<T: Real> Kernel for SolveKernel<T> {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (n, columns) = (self.n, self.columns);
        let (l, b, x) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let panels = columns.div_ceil(PANEL);
        let body = |task: usize| {
            let (matrix, first) = (task / panels, task % panels * PANEL);
            let width = PANEL.min(columns - first);
            let side = matrix * n * columns + first;
            for i in 0..n {
                let at = side + i * columns;
                // SAFETY: the panel lies inside the arrays, and no other task writes it.
                unsafe {
                    std::ptr::copy_nonoverlapping(b.elem::<T>(at).cast_const(), x.elem::<T>(at), width)
                };
            }
            let solve = Solve {
                l: l.elem::<T>(matrix * n * n).cast_const(),
                n,
                x: x.elem::<T>(side),
                row: columns,
                columns: width,
                unit_diagonal: self.unit_diagonal,
            };
            let job: *const u8 = (&raw const solve).cast();
            // SAFETY: as above.
            unsafe { (self.tile)(x.at(0), job, job, job, 0) };
        };
        let work = (self.matrices * n * n * columns) as f64 * 0.1;
        cx.team.run_with(self.matrices * panels, work, cx.flush, &body);
        Ok(())
    }
}
