//! Data movement kernels: strided copies, slices and gathers at run-time indices, scatters, sorting.
//!
//! The family is checked last and accepts every single op, so its last candidate also computes ops that have no family.

mod fft;
#[cfg(feature = "linalg")]
mod lapack;
pub mod scatter;
pub mod sort;
pub mod strided_copies;

use crate::select::{EVERY, Family, KernelCandidate, Problem, SelectResult, answer};
use systole_compile::Kernel;
use systole_ir::Op;

/// Returns the op of a step.
fn op<'a>(p: &Problem<'a>) -> SelectResult<&'a Op> {
    match &p.step.kernel {
        Kernel::Op { op, .. } => Ok(op),
        _ => Err("not a single op".into()),
    }
}

/// Creates the kernel of a linear-algebra call.
fn lapack_call(p: &Problem<'_>) -> SelectResult<Box<dyn crate::kernel::Kernel>> {
    match op(p)? {
        #[cfg(feature = "linalg")]
        Op::CustomCall(c) => answer(
            lapack::LapackKernel::new(c, p.step),
            "not a linear-algebra call, or its operands do not fit",
        ),
        _ => Err("not a linear-algebra call".into()),
    }
}

/// Kernel family for data movement, and for every op that has no separate family.
pub static FAMILY: Family = Family {
    name: "movement",
    doc: "copies, slices, gathers, scatters, sorting; and every other op",
    takes: |step| matches!(step.kernel, Kernel::Op { .. } | Kernel::TopK(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("scatter", EVERY, "scatters to one operand whose body overwrites it or is one \
             associative op",
            |p| match op(p)? {
                Op::Scatter(s) => Ok(Box::new(scatter::bind(s, p.step, p.target.level.vectors())?)),
                _ => Err("not a scatter".into()),
            }),
        KernelCandidate::new("sort", EVERY, "stable sorts of each line along the sorted dimension, or of its first \
             elements",
            |p| match &p.step.kernel {
                Kernel::TopK(t) => Ok(Box::new(sort::SortKernel::top_k(t, p.step))),
                _ => match op(p)? {
                    Op::Sort(s) => Ok(Box::new(sort::SortKernel::new(s, p.step))),
                    _ => Err("not a sort".into()),
                },
            }),
        KernelCandidate::new("copy", EVERY, "transposes, slices, reversals, concatenations, padding: strided \
             copies with constant offsets",
            |p| {
                let reason = "not a transpose, slice, reverse, concatenate or pad";
                answer(strided_copies::StaticCopies::new(op(p)?, p.step), reason)
            }),
        KernelCandidate::new("dynamic_slice", EVERY, "slices at run-time indices; steps that read the slice may \
             request its address instead of a copy",
            |p| match op(p)? {
                Op::DynamicSlice(_) => Ok(Box::new(strided_copies::DynamicSliceKernel::new(p.step))),
                _ => Err("not a dynamic_slice".into()),
            }),
        KernelCandidate::new("dynamic_update_slice", EVERY, "updates of a block at run-time indices, in place \
             if the operand's memory may be reused",
            |p| match op(p)? {
                Op::DynamicUpdateSlice(_) => Ok(Box::new(strided_copies::DynamicUpdateSliceKernel::new(p.step))),
                _ => Err("not a dynamic_update_slice".into()),
            }),
        KernelCandidate::new("gather", EVERY, "gathers: a strided copy of one box for each index vector",
            |p| match op(p)? {
                Op::Gather(g) => Ok(Box::new(strided_copies::GatherKernel::new(g, p.step))),
                _ => Err("not a gather".into()),
            }),
        KernelCandidate::new("lapack", EVERY, "decompositions and triangular solves on the arrays in place; threads \
             share the matrices of a batch",
            lapack_call),
        KernelCandidate::new("fft", EVERY, "Fourier transforms along one dimension, in f32 and f64; lengths without \
             large prime factors",
            |p| match op(p)? {
                Op::CustomCall(c) => fft::bind(c, p.step, p.target.level.vectors())
                    .ok_or_else(|| "not a Fourier transform, or its length has a large prime factor".into()),
                _ => Err("not a Fourier transform".into()),
            }),
        crate::kernels::reference::CANDIDATE,
    ],
};
