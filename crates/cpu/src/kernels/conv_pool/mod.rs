//! Kernels for convolutions with fused max pooling, and their kernel gradients.
//!
//! The convolution's result is never stored: each window of it is pooled as soon as it is computed. The forward pass
//! stores the argmax of each window, and the gradient needs nothing else of the result.

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

/// Kernel families for convolutions with fused max pooling.
pub const FAMILIES: &[&Family] = &[&FORWARD, &GRADIENT];

/// Kernel family for convolution + bias + relu + max pooling, optionally followed by a product with few columns.
pub static FORWARD: Family = Family {
    name: "conv_pool",
    doc: "convolution with fused max pooling, optionally followed by a GEMM",
    takes: |step| matches!(&step.kernel, Kernel::Pool(p) if p.conv.is_some()),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("winograd_tiles", EVERY, "many channels, 3×3 kernel and 2×2 windows: each window is \
             one output tile of F(2×2, 3×3)",
            |p| Ok(Box::new(winograd_tiles::WinogradTiles::new(p)?))),
        KernelCandidate::new("amx", AMX, "bf16 on AMX tile registers",
            |p| Ok(Box::new(amx::AmxConvPool::new(&PooledConvolution::of(p)?)?))),
        KernelCandidate::new("winograd", EVERY, "few channels and a 3×3 kernel: transformed rows stay in L1, and \
             sums in registers",
            |p| Ok(Box::new(VectorConvPool::new(&PooledConvolution::of(p)?, RequestedMethod::Winograd)?))),
        KernelCandidate::new("registers", EVERY, "2×2 windows whose four sums stay in registers. Other windows \
             would need separate microkernels",
            |p| Ok(Box::new(VectorConvPool::new(&PooledConvolution::of(p)?, RequestedMethod::Registers)?))),
        KernelCandidate::new("forward", EVERY, "supports every pooling that the compiler fuses: rows of the \
             convolution stay in L1 and are pooled there",
            |p| Ok(Box::new(VectorConvPool::new(&PooledConvolution::of(p)?, RequestedMethod::Rows)?))),
    ],
};

/// Kernel family for the kernel and bias gradients of a pooled convolution.
pub static GRADIENT: Family = Family {
    name: "conv_pool_gradient",
    doc: "kernel and bias gradients of a pooled convolution, from the gradient of its pooled result",
    takes: |step| matches!(step.kernel, Kernel::UnpooledGradient(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx", AMX, "bf16 on AMX tile registers: gradients are scattered to whole \
             windows, mostly zeros, which become tile operands",
            |p| Ok(Box::new(amx::AmxConvPoolGradient::new(p)?))),
        KernelCandidate::new("im2col", &[Level::Avx512, Level::Avx512Bf16, Level::Amx], "f32 by vectors of 16 \
             filters, few channels: if the taps of a window read at most 64 elements, a tap is one permutation of \
             them. Other numbers of taps would need separate microkernels",
            |p| Ok(Box::new(ConvPoolGradient::new(p, SumMethod::Im2col)?))),
        KernelCandidate::new("bf16_pairs", &[Level::Avx512Bf16], "bf16 by the pair dot-product instruction \
             (AVX512_BF16); a pair is two adjacent windows of up to 4 elements",
            |p| Ok(Box::new(ConvPoolGradient::new(p, SumMethod::Bf16Pairs)?))),
        KernelCandidate::new("lookup", EVERY, "supports every gradient that the compiler fuses: a tap is one lookup \
             by argmax in a table of windows",
            |p| Ok(Box::new(ConvPoolGradient::new(p, SumMethod::LookUp)?))),
    ],
};
