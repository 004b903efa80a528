//! Convolutions fused with the max pooling that follows, and the gradients of their kernels.
//!
//! The convolution's result is never an array: each window of it is pooled where it is computed. The forward pass
//! stores the argmax of each window, which is all that the gradient needs of it.

mod amx;
mod finite_bounds;
mod forward;
mod gradient;
mod pooled_convolution;
mod winograd_tiles;

use crate::kernels::conv_pool::forward::{RequestedMethod, VectorConvPool};
use crate::kernels::conv_pool::gradient::{ConvPoolGradient, SumMethod};
use crate::kernels::conv_pool::pooled_convolution::PooledConvolution;
use crate::select::{AMX, EVERY, Family, KernelCandidate};
use crate::simd::level::Level;
use systole_compile::Kernel;

/// The families of this folder.
pub const FAMILIES: &[&Family] = &[&FORWARD, &GRADIENT];

/// Convolution, bias, relu, max pooling and, where one follows, a product with few columns.
pub static FORWARD: Family = Family {
    name: "conv_pool",
    doc: "a convolution with the max pooling after it, and a GEMM after that",
    takes: |step| matches!(&step.kernel, Kernel::Pool(p) if p.conv.is_some()),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("winograd_tiles", EVERY, "many channels, 3×3 kernel and 2×2 windows: each window is \
             one output tile of F(2×2, 3×3)",
            |p| Ok(Box::new(winograd_tiles::WinogradTiles::new(p)?))),
        KernelCandidate::new("amx", AMX, "bf16 by tile registers",
            |p| Ok(Box::new(amx::AmxConvPool::new(&PooledConvolution::of(p)?)?))),
        KernelCandidate::new("winograd", EVERY, "few channels and a 3×3 kernel: transformed rows stay in L1, and \
             sums in registers",
            |p| Ok(Box::new(VectorConvPool::new(&PooledConvolution::of(p)?, RequestedMethod::Winograd)?))),
        KernelCandidate::new("registers", EVERY, "2×2 windows whose four sums stay in registers. Other windows \
             would need microkernels of their own",
            |p| Ok(Box::new(VectorConvPool::new(&PooledConvolution::of(p)?, RequestedMethod::Registers)?))),
        KernelCandidate::new("forward", EVERY, "takes every pooling that the compiler fuses: rows of the \
             convolution go to L1, then are pooled",
            |p| Ok(Box::new(VectorConvPool::new(&PooledConvolution::of(p)?, RequestedMethod::Rows)?))),
    ],
};

/// The gradient of a pooled convolution's kernel and bias.
pub static GRADIENT: Family = Family {
    name: "conv_pool_gradient",
    doc: "gradients with respect to kernel and bias of a pooled convolution, from that of its pooled result",
    takes: |step| matches!(step.kernel, Kernel::UnpooledGradient(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx", AMX, "bf16 where there are tile registers: gradients are spread to whole \
             windows, mostly zeros, which become operands of tiles",
            |p| Ok(Box::new(amx::AmxConvPoolGradient::new(p)?))),
        KernelCandidate::new("im2col", &[Level::Avx512, Level::Avx512Bf16, Level::Amx], "f32 by vectors of 16 \
             filters, few channels: where all that a window's taps read has at most 64 elements, a tap is \
             one permutation of them. Other numbers of taps would need kernels of their own",
            |p| Ok(Box::new(ConvPoolGradient::new(p, SumMethod::Im2col)?))),
        KernelCandidate::new("bf16_pairs", &[Level::Avx512Bf16], "bf16 by the instruction that multiplies pairs \
             (AVX512_BF16), which are two neighbouring windows of up to 4 elements",
            |p| Ok(Box::new(ConvPoolGradient::new(p, SumMethod::Bf16Pairs)?))),
        KernelCandidate::new("lookup", EVERY, "takes every gradient that the compiler fuses: a tap is one look-up \
             by argmax in a table of windows",
            |p| Ok(Box::new(ConvPoolGradient::new(p, SumMethod::LookUp)?))),
    ],
};
