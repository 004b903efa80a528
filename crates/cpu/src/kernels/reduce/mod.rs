//! Reduction kernels, and row programs of element-wise steps and reductions along rows (softmax, layer normalization).

pub mod fold;
pub mod rows;
pub mod rows_transposed;

use crate::kernels::reduce::fold::ReduceKernel;
use crate::kernels::reduce::rows::RowsKernel;
use crate::kernels::reduce::rows_transposed::RowsTransposed;
use crate::select::{AVX2_UP, EVERY, Family, KernelCandidate, Problem, answer};
use crate::simd::jit;
use systole_compile::Kernel;
use systole_ir::ensure;

/// Creates a reduction kernel. `fuse`: use machine code if it supports the program.
fn fold(p: &Problem<'_>, fuse: bool) -> Result<ReduceKernel, &'static str> {
    let Kernel::Reduce { map, folded, monoid } = &p.step.kernel else { return Err("not a plain reduction") };
    Ok(ReduceKernel::with(map, folded, *monoid, p.step.output_types[0].dtype, p.target.programs(), fuse))
}

/// Kernel family for reductions, and for programs that run row by row.
pub static FAMILY: Family = Family {
    name: "reduce",
    doc: "reductions along dimensions, and programs that run row by row",
    takes: |step| matches!(step.kernel, Kernel::Reduce { .. } | Kernel::Rows(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("rows_transposed", EVERY, "rows of 2 to 32 elements: blocks of rows are transposed, \
             so that SIMD lanes hold different rows",
            |p| match &p.step.kernel {
                Kernel::Rows(r) => answer(
                    RowsTransposed::new(r, p.step, p.target.programs()),
                    "rows are long, or an array is not read by rows and columns",
                ),
                _ => Err("not a row program".into()),
            }),
        KernelCandidate::new("rows", EVERY, "all element-wise steps and reductions of a few rows before the next rows; \
             intermediate values stay in L1",
            |p| match &p.step.kernel {
                Kernel::Rows(r) => Ok(Box::new(RowsKernel::new(r, p.step, p.target.programs()))),
                _ => Err("not a row program".into()),
            }),
        KernelCandidate::new("jit", AVX2_UP, "JIT-compiled reductions that also compute the \
             operand in registers",
            |p| {
                ensure!(jit::is_wanted(), "the JIT is disabled (SYSTOLE_JIT)".into());
                let kernel = fold(p, true)?;
                if !kernel.is_fused() {
                    return Err("rows are short, or an op or element type has no vector form".into());
                }
                Ok(Box::new(kernel))
            }),
        KernelCandidate::new("jit_groups", AVX2_UP, "reductions over tiles that JIT-compiled groups of instructions \
             and vectorized loops have computed",
            |p| {
                ensure!(jit::is_wanted(), "the JIT is disabled (SYSTOLE_JIT)".into());
                let kernel = fold(p, true)?;
                ensure!(kernel.has_groups(), "no two instructions form a group".into());
                Ok(Box::new(kernel))
            }),
        KernelCandidate::new("interpreted", EVERY, "reductions over tiles that vectorized loops have computed; \
             supports every reduction",
            |p| Ok(Box::new(fold(p, false)?))),
    ],
};
