//! GEMM kernels (`dot_general`): `[M, K] · [K, N]`, or a batch of them, with an optional bias.
//!
//! [`FAMILY`] lists the implementations. [`skinny`] products have kernels that read operands in place; all others are
//! [`blocked`], as in BLIS: operands are packed into micro-panels, and microkernels compute register tiles.
//! [`blocked::element_types`] selects microkernel and packing for each element type.

pub mod blocked;
mod gemm_problem;
pub mod product_epilogue;
mod rows_in_place;
mod skinny;

use crate::kernel::dot_product_gemm::InnerProducts;
use crate::kernel::skinny_gemm::FewRows;
use crate::kernels::matmul::blocked::element_types;
use crate::kernels::matmul::gemm_problem::GemmProblem;
use crate::kernels::matmul::skinny::few_columns::FewColumns;
use crate::kernels::matmul::skinny::gemv::Gemv;
use crate::kernels::matmul::skinny::short_inner_products::ShortInnerProducts;
use crate::kernels::matmul::skinny::tiny::Tiny;
use crate::kernels::reference;
use crate::select::{AMX, EVERY, Family, KernelCandidate};
use crate::simd::amx;
use crate::simd::level::Level;
use systole_compile::Kernel;
use systole_ir::{DType, Op, ensure};

/// Levels with vectors of more than 128 bits.
const WIDE: &[Level] = &[Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];

/// Kernel families for GEMMs.
pub const FAMILIES: &[&Family] = &[&FAMILY, &product_epilogue::FAMILY, &skinny::quantized_weights::FAMILY];

/// Kernel family for GEMMs, with candidates by priority.
pub static FAMILY: Family = Family {
    name: "matmul",
    doc: "GEMM, optionally with a bias",
    takes: |step| matches!(&step.kernel, Kernel::Op { op: Op::DotGeneral(_), .. }),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("tiny", EVERY, "f32, M, N and K of at most 32: a call of blocked GEMM takes longer than the \
             product",
            |p| {
                let d = GemmProblem::of(p)?;
                ensure!(d.types == [DType::F32; 2], "its elements are not f32".into());
                Ok(Box::new(Tiny::accept(&d.left, &d.right, d.epilogue, d.target.level.vectors())?))
            }),
        KernelCandidate::new("inner_products", EVERY, "N of at most 16, K of at least 128, both operands \
             contiguous along K: no packing, and SIMD lanes are summed at the end. A larger N would not \
             leave its partial sums in L1",
            |p| {
                let d = GemmProblem::of(p)?;
                let level = d.target.level;
                let kernel = InnerProducts::accept(&d.left, &d.right, d.types, d.epilogue, level.vectors())?;
                Ok(Box::new(kernel.with_pairs(level, 0)))
            }),
        KernelCandidate::new("few_rows", EVERY, "M and K of at most 64, N of at least 256: rows of the right \
             operand are read in place. With a larger M or K, reuse pays for packing",
            |p| {
                let d = GemmProblem::of(p)?.without_bias()?;
                let level = d.target.level;
                let kernel = FewRows::accept(&d.left, &d.right, d.types, level.vectors())?;
                Ok(Box::new(kernel.with_pairs(level).with_tiles(amx::fused::fused_of(level))))
            }),
        KernelCandidate::new("gemv", EVERY, "f32, M of at most 8: the right operand is read once and in place, \
             because packing would move it three times",
            |p| {
                let d = GemmProblem::of(p)?;
                ensure!(d.types == [DType::F32; 2], "its elements are not f32".into());
                Ok(Box::new(Gemv::accept(&d.left, &d.right, d.epilogue, d.target.level.vectors())?))
            }),
        KernelCandidate::new("few_columns", WIDE, "f32, N of 9 to 16: one vector of 16 lanes, or two of 8, holds a \
             row of sums. Each other N would need a separate microkernel, and blocked GEMM has narrow tiles \
             for up to 8",
            |p| {
                let d = GemmProblem::of(p)?;
                ensure!(d.types == [DType::F32; 2], "its elements are not f32".into());
                let level = d.target.level.vectors();
                Ok(Box::new(FewColumns::accept(&d.left, &d.right, d.epilogue, level)?))
            }),
        KernelCandidate::new("short_inner_products", EVERY, "f32, N of at most 8, K of 16 to 512, left operand contiguous along K: columns \
             are copied once, and lanes of sums along K are added in registers. Blocked GEMM would pack the left operand",
            |p| {
                let d = GemmProblem::of(p)?;
                ensure!(d.types == [DType::F32; 2], "its elements are not f32".into());
                Ok(Box::new(ShortInnerProducts::accept(&d.left, &d.right, d.epilogue, d.target.level.vectors())?))
            }),
        KernelCandidate::new("via_f32", WIDE, "f16 whose f32 product few_columns supports, which reads operands in place: whole \
             operands are converted, one more pass over them",
            |p| {
                let d = GemmProblem::of(p)?.without_bias()?;
                ensure!(d.types[0] == DType::F16, "its operands are not f16".into());
                FewColumns::accept(&d.left, &d.right, d.epilogue, d.target.level.vectors())?;
                crate::kernels::via_f32::product(p)
            }),
        KernelCandidate::new("rows_in_place", AMX, "bf16 on AMX tile registers, small result and large M: the left \
             operand is not packed",
            |p| rows_in_place::bind(&GemmProblem::of(p)?.without_bias()?, p)),
        KernelCandidate::new("amx", AMX, "bf16 and int8 on AMX tile registers; f32 split into two bf16 if the \
             program allows it (tensor-float-32)",
            |p| {
                let kernels = amx::kernels_of(p.target.level).ok_or("this machine has no AMX tile registers")?;
                element_types::amx(&GemmProblem::of(p)?, kernels)
            }),
        KernelCandidate::new("bf16_pairs", &[Level::Avx512Bf16], "bf16 by dot products of pairs (AVX512_BF16)",
            |p| element_types::bf16_pairs(&GemmProblem::of(p)?, p.target.level)),
        KernelCandidate::new("f32", EVERY, "blocked GEMM in f32, also of bf16 and f16, which are widened during \
             packing",
            |p| element_types::f32(&GemmProblem::of(p)?)),
        KernelCandidate::new("f64", EVERY, "blocked GEMM in f64", |p| element_types::f64(&GemmProblem::of(p)?)),
        KernelCandidate::new("grouped_integers", EVERY, "int8 and int16 with 32-bit sums, two or four \
             multiply-adds in one instruction",
            |p| element_types::grouped_integers(&GemmProblem::of(p)?.without_bias()?)),
        KernelCandidate::new("integers", EVERY, "other integers, in plain loops",
            |p| element_types::any_integers(&GemmProblem::of(p)?.without_bias()?)),
        reference::CANDIDATE,
    ],
};

#[cfg(test)]
mod tests;
