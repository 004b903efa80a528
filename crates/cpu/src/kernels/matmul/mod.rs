//! GEMM (`dot_general`): `[M, K] · [K, N]`, or a batch of them, with an optional bias.
//!
//! [`FAMILY`] lists the implementations. Skinny products have kernels that read operands in place; all others are
//! [`blocked`], as in BLIS: operands are packed into micro-panels, and microkernels compute register tiles.
//! [`element_types`] selects microkernel and packing for each element type.

pub mod blocked;
mod element_types;
mod few_columns;
mod integers;
mod product;
pub mod product_epilogue;
mod rows_in_place;

use crate::kernel::few_rows::FewRows;
use crate::kernel::inner_products::InnerProducts;
use crate::kernels::matmul::few_columns::FewColumns;
use crate::kernels::matmul::product::Product;
use crate::kernels::reference;
use crate::select::{AMX, Candidate, EVERY, Family};
use crate::simd::amx;
use crate::simd::level::Level;
use systole_compile::Kernel;
use systole_ir::{DType, Op};

/// Levels with vectors of more than 128 bits.
const WIDE: &[Level] = &[Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];

/// The families of this folder.
pub const FAMILIES: &[&Family] = &[&FAMILY, &product_epilogue::FAMILY];

/// GEMM, with its candidates by priority.
pub static FAMILY: Family = Family {
    name: "matmul",
    doc: "products of matrices, with a bias where one follows",
    takes: |step| matches!(&step.kernel, Kernel::Op { op: Op::DotGeneral(_), .. }),
    candidates: &[
        Candidate {
            name: "inner_products",
            why: "at most 16 columns, both operands along at least 128 products: nothing is packed, lanes are added up \
                  at the end. More columns would not leave room for their sums in the first cache",
            levels: EVERY,
            accepts: |p| {
                let d = Product::of(p)?;
                let level = d.target.level;
                let kernel = InnerProducts::accept(&d.left, &d.right, d.types, d.epilogue, level.vectors())?;
                Ok(Box::new(kernel.with_pairs(level, 0)))
            },
        },
        Candidate {
            name: "few_rows",
            why: "at most 64 rows and products, rows of at least 256 columns: these are read where they lie. More rows \
                  or products would reuse what packing costs",
            levels: EVERY,
            accepts: |p| {
                let d = Product::of(p)?.without_bias()?;
                let level = d.target.level;
                let kernel = FewRows::accept(&d.left, &d.right, d.types, level.vectors())?;
                Ok(Box::new(kernel.with_pairs(level).with_tiles(amx::fused::fused_of(level))))
            },
        },
        Candidate {
            name: "few_columns",
            why: "f32 with 9 to 16 columns: one vector of 16 lanes, or two of 8, holds a row of sums. Other counts \
                  would each be a microkernel of their own, and blocked tiles have narrow ones for up to 8",
            levels: WIDE,
            accepts: |p| {
                let d = Product::of(p)?;
                if d.types != [DType::F32; 2] {
                    return Err("its elements are no f32".into());
                }
                let level = d.target.level.vectors();
                Ok(Box::new(FewColumns::accept(&d.left, &d.right, d.epilogue, level)?))
            },
        },
        Candidate {
            name: "rows_in_place",
            why: "bf16 by tile registers, small results of many rows: the left operand is not packed",
            levels: AMX,
            accepts: |p| rows_in_place::bind(&Product::of(p)?.without_bias()?, p),
        },
        Candidate {
            name: "amx",
            why: "bf16 and bytes by tile registers; f32 as two bf16 where the program may (tensor-float-32)",
            levels: AMX,
            accepts: |p| {
                let kernels = amx::kernels_of(p.target.level).ok_or("this machine has no tile registers")?;
                element_types::amx(&Product::of(p)?, kernels)
            },
        },
        Candidate {
            name: "bf16_pairs",
            why: "bf16 by the instruction that multiplies pairs (AVX512_BF16)",
            levels: &[Level::Avx512Bf16],
            accepts: |p| element_types::bf16_pairs(&Product::of(p)?, p.target.level),
        },
        Candidate {
            name: "f32",
            why: "f32, bf16 and f16 by vectors of f32",
            levels: EVERY,
            accepts: |p| element_types::f32(&Product::of(p)?),
        },
        Candidate {
            name: "f64",
            why: "f64 by vectors",
            levels: EVERY,
            accepts: |p| element_types::f64(&Product::of(p)?),
        },
        Candidate {
            name: "grouped_integers",
            why: "bytes and 16-bit integers with 32-bit sums, two or four products in one step",
            levels: EVERY,
            accepts: |p| element_types::grouped_integers(&Product::of(p)?.without_bias()?),
        },
        Candidate {
            name: "integers",
            why: "other integers, in plain loops",
            levels: EVERY,
            accepts: |p| element_types::any_integers(&Product::of(p)?.without_bias()?),
        },
        reference::CANDIDATE,
    ],
};

#[cfg(test)]
mod tests;
