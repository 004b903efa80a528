//! Convolutions with the max pooling after them, and their gradients.

pub mod amx;
pub mod amx_gradient;
mod finite;
pub mod forward;
pub mod gradient;
pub mod im2col;
pub mod microkernel;
mod pooled;
pub mod winograd;
mod winograd_tiles;

use crate::kernels::conv_pool::forward::{Ask, Forward};
use crate::kernels::conv_pool::pooled::PooledConvolution;
use crate::select::{AMX, Candidate, EVERY, Family};
use systole_compile::Kernel;

/// Convolution, max pooling and what stands between.
pub static FORWARD: Family = Family {
    name: "conv_pool",
    doc: "max pooling with the convolution before it and the product after it",
    takes: |step| matches!(&step.kernel, Kernel::Pool(p) if p.conv.is_some()),
    candidates: &[
        Candidate {
            name: "winograd_tiles",
            why: "many channels and windows of 3 by 3: each window of 2 by 2 pixels is one of Winograd's tiles",
            levels: EVERY,
            accepts: |p| Ok(Box::new(winograd_tiles::WinogradTiles::new(p)?)),
        },
        Candidate {
            name: "amx",
            why: "bf16 where there are tile registers",
            levels: AMX,
            accepts: |p| Ok(Box::new(amx::TilePool::new(&PooledConvolution::of(p)?)?)),
        },
        Candidate {
            name: "winograd",
            why: "few channels: transformed rows stay in the nearest cache, and the products in registers",
            levels: EVERY,
            accepts: |p| Ok(Box::new(Forward::new(&PooledConvolution::of(p)?, Ask::Winograd)?)),
        },
        Candidate {
            name: "registers",
            why: "windows of 2 by 2 in registers, by the definition. Others would need register kernels of their own",
            levels: EVERY,
            accepts: |p| Ok(Box::new(Forward::new(&PooledConvolution::of(p)?, Ask::Registers)?)),
        },
        Candidate {
            name: "forward",
            why: "takes every pooling that the compiler fuses: rows of pixels go to the nearest cache first",
            levels: EVERY,
            accepts: |p| Ok(Box::new(Forward::new(&PooledConvolution::of(p)?, Ask::Rows)?)),
        },
    ],
};

/// The gradient of a pooled convolution's kernel.
pub static GRADIENT: Family = Family {
    name: "conv_pool_gradient",
    doc: "gradients of a convolution's kernel from those of its pooled result",
    takes: |step| matches!(step.kernel, Kernel::UnpooledGradient(_)),
    candidates: &[Candidate {
        name: "gradient",
        why: "takes every gradient that the compiler fuses",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Kernel::UnpooledGradient(g) => {
                gradient::bind(g, p.step, p.target).ok_or_else(|| "no kernel".into())
            }
            _ => Err("no gradient".into()),
        },
    }],
};
