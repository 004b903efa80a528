//! Fourier transforms: lines in parallel. The loops are those of `simd/fft.rs`.

use crate::kernel::{Cx, Io, Kernel, Ptr, with_scratch};
use crate::select::{Answer, Problem};
use crate::simd::fft::{FftTile, Lines, Plan};
use crate::simd::level::TileFn;
use crate::simd::real::Real;
use systole_ir::Result;
use systole_ir::op::Routine;

/// Elements of lines in one task of the parallel loop, at least.
const TASK: usize = 1 << 12;

/// A bound transform.
pub struct FftKernel<T> {
    plan: Plan<T>,
    lines: usize,
    /// Elements of a line of operands and of results.
    sizes: [usize; 2],
    /// Whether operands and results are complex.
    complex: [bool; 2],
    work_ns: f64,
    tile: TileFn,
}

impl<T: Real> FftKernel<T> {
    pub fn answer(p: &Problem<'_>, kind: Routine) -> Answer {
        let (x, y) = (&p.step.input_types[0].shape, &p.step.output_types[0].shape);
        let length = if kind == Routine::Irfft { y[1] } else { x[1] };
        let work = (x[0] * length) as f64 * (length.max(2) as f64).log2() * 0.25;
        Ok(Box::new(FftKernel::<T> {
            plan: Plan::new(kind, length),
            lines: x[0],
            sizes: [x[1], y[1]],
            complex: [kind != Routine::Rfft, kind != Routine::Irfft],
            work_ns: work,
            tile: p.target.level.vectors().tile::<FftTile<T>>(),
        }))
    }
}

impl<T: Real> Kernel for FftKernel<T> {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let from = [0, self.complex[0] as usize].map(|k| Ptr::of(io.inputs[k]));
        let to = [0, self.complex[1] as usize].map(|k| Ptr(io.outputs[k]));
        let together = self.plan.together();
        let own = (TASK / self.sizes[0].max(1)).max(1).next_multiple_of(together);
        let body = |task: usize| {
            with_scratch(self.plan.scratch() * size_of::<T>(), |scratch| {
                let all = task * own..((task + 1) * own).min(self.lines);
                for first in all.clone().step_by(together) {
                    let lines = Lines {
                        plan: &self.plan,
                        from: from.map(|p| p.elem::<T>(first * self.sizes[0]).cast_const()),
                        to: to.map(|p| p.elem::<T>(first * self.sizes[1])),
                        count: together.min(all.end - first),
                        scratch: scratch.cast(),
                    };
                    let job: *const u8 = (&raw const lines).cast();
                    // SAFETY: the lines lie inside the arrays, no other task writes them, and scratch is the plan's.
                    unsafe { (self.tile)(scratch, job, job, job, 0) };
                }
            });
        };
        cx.team.run_with(self.lines.div_ceil(own), self.work_ns, cx.flush, &body);
        Ok(())
    }
}
