//! Convolution kernels: forward `x: [B, …, C]`, filter `[…, C, F]` → `y: [B, …', F]`, input and filter gradients.
//!
//! Also the batch statistics of the result that batch normalization needs.
//!
//! Layouts are channels-last, except in [`general`] and the fallbacks of all families. No im2col matrix of the whole
//! input is built. [`staging`] copies one strip of the input into a thread's scratch memory, with explicit zeros for
//! padding, or has it read in place; the microkernels ([`microkernel`]) address it through offset tables. [`direct`]
//! computes the definition in this way, [`winograd`] needs fewer multiplications, [`amx`] uses tile registers, and
//! [`amx_images`] uses them for small images. The input gradient of a strided layer is a convolution of a dilated
//! input: [`staging::phases`] splits it into convolutions without input dilation. [`pointwise`] convolutions are plain
//! GEMMs.

mod amx;
mod amx_images;
mod depthwise;
mod direct;
mod epilogue;
mod general;
mod microkernel;
mod pointwise;
mod small_groups;
mod staging;
mod strips;
mod winograd;

use crate::kernel::Kernel;
use crate::select::{AMX, CandidateResult, EVERY, Family, KernelCandidate, Problem, SelectResult};
use crate::simd::level::CompileTarget;
use systole_compile::Kernel as Plan;
use systole_ir::op::Convolution;
use systole_ir::{DType, Op, TensorType, ensure};

/// Kernel families for convolutions.
pub const FAMILIES: &[&Family] = &[&FAMILY, &BATCH_STATISTICS, &epilogue::FAMILY];

/// Kernel family for convolutions and their gradients.
pub static FAMILY: Family = Family {
    name: "conv",
    doc: "convolutions and their gradients, optionally with a bias",
    takes: |step| matches!(&step.kernel, Plan::Op { op: Op::Convolution(_), .. }),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx_images", AMX, "bf16 on AMX tile registers, small images: tile rows are \
             sixteen images, because lines of pixels would leave them empty; taps in the padding are left \
             out",
            |p| forward(p, amx_images::AmxImagesForward::new)),
        KernelCandidate::new("amx", AMX, "bf16 on AMX tile registers, forward and input gradient: \
             the fastest kernel on machines that have them",
            |p| forward(p, amx::AmxForward::new)),
        KernelCandidate::new("pointwise", EVERY, "1×1 kernels with many channels and filters: a GEMM that packs \
             both operands once. With fewer channels or filters, packing does not pay off",
            |p| forward(p, |c, bias, types, _| pointwise::Pointwise::forward(c, bias, types, p))),
        KernelCandidate::new("amx_images_gradient", AMX, "bf16 on AMX tile registers, kernel gradient \
             of small images: K runs over images, because lines of pixels have as many zeros between \
             them",
            |p| gradient(p, amx_images::AmxImagesKernelGradient::new)),
        KernelCandidate::new("amx_gradient", AMX, "bf16 on AMX tile registers, kernel gradient",
            |p| gradient(p, amx::AmxKernelGradient::new)),
        KernelCandidate::new("pointwise_gradient", EVERY, "kernel gradient of 1×1 kernels, as a GEMM",
            |p| gradient(p, |c, types, _| pointwise::Pointwise::gradient(c, types, p))),
        KernelCandidate::new("winograd", EVERY, "3×3 kernels: F(2×2, 3×3) takes 16 multiplications instead of 36. Other \
             kernels would need separate transforms, and larger tiles lose accuracy",
            |p| forward(p, winograd::WinogradForward::new)),
        KernelCandidate::new("winograd_gradient", EVERY, "kernel gradient of 3×3 kernels, by the transposed \
             transforms",
            |p| gradient(p, winograd::WinogradKernelGradient::new)),
        KernelCandidate::new("direct", EVERY, "f32 and narrower floats, one group, forward and input \
             gradient: register tiles over the input in place",
            |p| forward(p, direct::DirectForward::new)),
        KernelCandidate::new("direct_gradient", EVERY, "kernel gradient of the layers that direct supports",
            |p| gradient(p, direct::DirectKernelGradient::new)),
        KernelCandidate::new("small_groups", EVERY, "f32 with one (depthwise), two, four or eight channels and filters per \
             group, one or two spatial dimensions: nothing is padded, and taps in the padding are left out. Larger \
             groups fill vectors",
            |p| forward(p, small_groups::SmallGroups::new)),
        KernelCandidate::new("depthwise", EVERY, "depthwise (one filter per channel): element-wise multiply-adds of rows",
            |p| forward(p, depthwise::DepthwiseForward::new)),
        KernelCandidate::new("grouped", EVERY, "several feature groups, forward and input gradient: the register tiles of \
             direct, group by group",
            |p| forward(p, direct::DirectForward::grouped)),
        KernelCandidate::new("depthwise_gradient", EVERY, "kernel gradient of depthwise convolutions",
            |p| gradient(p, depthwise::DepthwiseKernelGradient::new)),
        crate::kernels::via_f32::CANDIDATE,
        KernelCandidate::new("general", EVERY, "any other attributes: plain loops, in parallel",
            |p| {
                let ConvolutionLayer { c, bias, types } = layer(p)?;
                Ok(Box::new(general::GeneralConvolution::new(c, bias, types)?))
            }),
        crate::kernels::reference::CANDIDATE,
    ],
};

/// Kernel family for convolutions that also return batch statistics of their result.
pub static BATCH_STATISTICS: Family = Family {
    name: "batch_statistics",
    doc: "a convolution and the batch statistics of its result, summed while the result is in cache",
    takes: |step| matches!(step.kernel, Plan::Moments(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx_images", AMX, "bf16 on AMX tile registers, small images",
            |p| forward(p, |c, bias, types, t| amx_images::AmxImagesForward::new(c, bias, types, t)?.with_statistics(t))),
        KernelCandidate::new("amx", AMX, "bf16 on AMX tile registers",
            |p| forward(p, |c, bias, types, t| Ok(amx::AmxForward::new(c, bias, types, t)?.with_statistics(t)))),
        KernelCandidate::new("pointwise", EVERY, "1×1 kernels with many channels and filters",
            |p| forward(p, |c, bias, types, t| {
                Ok(pointwise::Pointwise::forward(c, bias, types, p)?.with_statistics(types[2], t))
            })),
        KernelCandidate::new("winograd", EVERY, "3×3 kernels",
            |p| forward(p, |c, bias, types, t| Ok(winograd::WinogradForward::new(c, bias, types, t)?.with_statistics(t)))),
        KernelCandidate::new("direct", EVERY, "supports every convolution for which the compiler requests statistics",
            |p| forward(p, |c, bias, types, t| Ok(direct::DirectForward::new(c, bias, types, t)?.with_statistics(t)))),
    ],
};

/// A convolution as candidate kernels see it: attributes, whether it has a bias, and types of input, filter and result.
struct ConvolutionLayer<'a> {
    c: &'a Convolution,
    bias: bool,
    types: [&'a TensorType; 3],
}

const NO_CONVOLUTION: &str = "not a convolution";

/// Returns the convolution of a step, with or without batch statistics.
fn layer<'a>(p: &Problem<'a>) -> SelectResult<ConvolutionLayer<'a>> {
    let (c, bias) = match &p.step.kernel {
        Plan::Op { op: Op::Convolution(c), bias } => (c, *bias),
        Plan::Moments(m) => (&m.conv, m.bias),
        _ => return Err(NO_CONVOLUTION.into()),
    };
    let types = [&p.step.input_types[0], &p.step.input_types[1], &p.step.output_types[0]];
    Ok(ConvolutionLayer { c, bias, types })
}

/// Like [`layer`], but only for non-empty arrays of f32, bf16 or f16.
fn floats<'a>(p: &Problem<'a>) -> SelectResult<ConvolutionLayer<'a>> {
    let layer = layer(p)?;
    let known = |t: &TensorType| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.elements() > 0;
    match layer.types.into_iter().all(known) {
        true => Ok(layer),
        false => Err("its elements are not f32, bf16 or f16, or there are none".into()),
    }
}

/// Creates the kernel of a forward convolution or of its input gradient.
fn forward<K: Kernel + 'static>(
    p: &Problem<'_>,
    make: impl FnOnce(&Convolution, bool, [&TensorType; 3], CompileTarget) -> SelectResult<K>,
) -> CandidateResult {
    let ConvolutionLayer { c, bias, types } = floats(p)?;
    Ok(Box::new(make(c, bias, types, p.target)?))
}

/// Creates the kernel of a filter gradient, which has no bias.
fn gradient<K: Kernel + 'static>(
    p: &Problem<'_>,
    make: impl FnOnce(&Convolution, [&TensorType; 3], CompileTarget) -> SelectResult<K>,
) -> CandidateResult {
    let ConvolutionLayer { c, bias, types } = floats(p)?;
    ensure!(!bias, "it has a bias, so it is not a filter gradient".into());
    Ok(Box::new(make(c, types, p.target)?))
}
