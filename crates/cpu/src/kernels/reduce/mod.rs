//! Reductions along dimensions, and programs of element-wise steps and reductions along rows (softmax, layer
//! normalisation).

pub mod fold;
pub mod rows;
pub mod rows_transposed;

use crate::kernels::reduce::fold::ReduceKernel;
use crate::kernels::reduce::rows::RowsKernel;
use crate::kernels::reduce::rows_transposed::RowsTransposed;
use crate::select::{AVX2_UP, EVERY, Family, KernelCandidate, Problem, answer};
use crate::simd::jit;
use systole_compile::Kernel;

/// Binds a reduction. `fuse`: use machine code where it supports the program.
fn fold(p: &Problem<'_>, fuse: bool) -> Result<ReduceKernel, &'static str> {
    let Kernel::Reduce { map, folded, monoid } = &p.step.kernel else {
        return Err("it is no plain reduction");
    };
    Ok(ReduceKernel::with(map, folded, *monoid, p.step.output_types[0].dtype, p.target.programs(), fuse))
}

/// Reductions, and programs that work row by row.
pub static FAMILY: Family = Family {
    name: "reduce",
    doc: "reductions along dimensions, and programs that work row by row",
    takes: |step| matches!(step.kernel, Kernel::Reduce { .. } | Kernel::Rows(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("rows_transposed", EVERY, "rows of 2 to 32 elements: blocks of rows are transposed, \
             so that SIMD lanes hold different rows",
            |p| match &p.step.kernel {
                Kernel::Rows(r) => answer(
                    RowsTransposed::new(r, p.step, p.target.programs()),
                    "rows are long, or something is read in another way than by rows and columns",
                ),
                _ => Err("it is no program of rows".into()),
            }),
        KernelCandidate::new("rows", EVERY, "all maps and reductions of a few rows before the next rows, whose \
             intermediate values stay in L1",
            |p| match &p.step.kernel {
                Kernel::Rows(r) => Ok(Box::new(RowsKernel::new(r, p.step, p.target.programs()))),
                _ => Err("it is no program of rows".into()),
            }),
        KernelCandidate::new("jit", AVX2_UP, "reductions in machine code made at run time, which also computes the \
             operand in registers",
            |p| {
                if !jit::is_wanted() {
                    return Err("SYSTOLE_JIT is off".into());
                }
                let kernel = fold(p, true)?;
                if !kernel.is_fused() {
                    return Err("rows are short, or an op or element type has no vector form".into());
                }
                Ok(Box::new(kernel))
            }),
        KernelCandidate::new("interpreted", EVERY, "reductions over tiles that vectorised loops have computed; \
             takes every reduction",
            |p| Ok(Box::new(fold(p, false)?))),
    ],
};
