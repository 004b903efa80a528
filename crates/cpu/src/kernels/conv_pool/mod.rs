//! Convolutions with the max pooling after them, and their gradients.

pub mod amx;
pub mod amx_gradient;
pub mod forward;
pub mod gradient;
pub mod im2col;
pub mod microkernel;
pub mod winograd;

use crate::select::{Candidate, EVERY, Family};
use systole_compile::Kernel;

/// Convolution, max pooling and what stands between.
pub static FORWARD: Family = Family {
    name: "conv_pool",
    doc: "max pooling with the convolution before it and the product after it",
    takes: |step| matches!(&step.kernel, Kernel::Pool(p) if p.conv.is_some()),
    candidates: &[Candidate {
        name: "forward",
        why: "takes every pooling that the compiler fuses",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Kernel::Pool(pool) => forward::bind(pool, p).ok_or_else(|| "no kernel".into()),
            _ => Err("no pooling".into()),
        },
    }],
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
