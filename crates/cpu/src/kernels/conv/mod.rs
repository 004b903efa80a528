//! Convolutions: `x: [B, …, C]` by a filter `[…, C, F]` gives `y: [B, …', F]`; also the gradients w.r.t. input and
//! filter, and the sums that batch normalisation takes over the result.
//!
//! Layouts are channels-last, except in [`general`] and the fallbacks of all families. No im2col matrix of the whole
//! input is built. [`staging`] copies one strip of the input into a thread's working memory, with explicit zeros for
//! padding, or lets it be read in place; the microkernels ([`microkernel`]) address it through offset tables.
//! [`direct`] computes the definition in this way, [`winograd`] needs fewer multiplications, [`amx`] uses tile
//! registers, and [`amx_images`] does for small images. The gradient w.r.t. the input of a strided layer is a
//! convolution of a dilated input: [`staging::phases`] splits it into convolutions without input dilation.
//! [`pointwise`] convolutions are plain GEMMs.

mod amx;
mod amx_images;
mod depthwise;
mod direct;
mod general;
mod microkernel;
mod pointwise;
mod staging;
mod strips;
mod winograd;

use crate::kernel::Kernel;
use crate::select::{AMX, CandidateResult, EVERY, Family, KernelCandidate, Problem, SelectResult};
use crate::simd::level::CompileTarget;
use systole_compile::Kernel as Plan;
use systole_ir::op::Convolution;
use systole_ir::{DType, Op, TensorType};

/// The families of this folder.
pub const FAMILIES: &[&Family] = &[&FAMILY, &BATCH_STATISTICS];

/// Convolutions and their gradients.
pub static FAMILY: Family = Family {
    name: "conv",
    doc: "convolutions and their gradients, with a bias where one follows",
    takes: |step| matches!(&step.kernel, Plan::Op { op: Op::Convolution(_), .. }),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx_images", AMX, "bf16 by tile registers, small images: the rows of a tile are \
             sixteen images, where lines of pixels would leave them empty, and taps in the padding are left \
             out",
            |p| forward(p, amx_images::AmxImagesForward::new)),
        KernelCandidate::new("amx", AMX, "bf16 by tile registers, forward and gradient with respect to the input: \
             faster than every other way where they exist",
            |p| forward(p, amx::AmxForward::new)),
        KernelCandidate::new("pointwise", EVERY, "1×1 kernels with many channels and filters: a GEMM, which packs \
             both operands once. With fewer of them packing is not repaid",
            |p| forward(p, |c, bias, types, _| pointwise::Pointwise::forward(c, bias, types, p))),
        KernelCandidate::new("amx_images_gradient", AMX, "bf16 by tile registers, gradient with respect to the \
             kernel for small images: K runs over images, where lines of pixels have as many zeros between \
             them",
            |p| gradient(p, amx_images::AmxImagesKernelGradient::new)),
        KernelCandidate::new("amx_gradient", AMX, "bf16 by tile registers, gradient with respect to the kernel",
            |p| gradient(p, amx::AmxKernelGradient::new)),
        KernelCandidate::new("pointwise_gradient", EVERY, "gradient with respect to a 1×1 kernel: a GEMM as well",
            |p| gradient(p, |c, types, _| pointwise::Pointwise::gradient(c, types, p))),
        KernelCandidate::new("winograd", EVERY, "3×3 kernels: F(2×2, 3×3) takes 16 multiplications for 36. Other \
             kernels would need transforms of their own, larger tiles lose accuracy",
            |p| forward(p, winograd::WinogradForward::new)),
        KernelCandidate::new("winograd_gradient", EVERY, "gradient with respect to a 3×3 kernel, by the transposed \
             transforms",
            |p| gradient(p, winograd::WinogradKernelGradient::new)),
        KernelCandidate::new("direct", EVERY, "f32 and narrower floats, one group, forward and gradient with \
             respect to the input: register tiles over the input as it lies",
            |p| forward(p, direct::DirectForward::new)),
        KernelCandidate::new("direct_gradient", EVERY, "gradient with respect to the kernel of such layers",
            |p| gradient(p, direct::DirectKernelGradient::new)),
        KernelCandidate::new("depthwise", EVERY, "one filter for each channel: element-wise multiply-adds of rows",
            |p| forward(p, depthwise::DepthwiseForward::new)),
        KernelCandidate::new("depthwise_gradient", EVERY, "gradient with respect to such filters",
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

/// Convolutions that also return batch statistics of their result.
pub static BATCH_STATISTICS: Family = Family {
    name: "batch_statistics",
    doc: "a convolution and the batch statistics of its result, summed while that is in cache",
    takes: |step| matches!(step.kernel, Plan::Moments(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx_images", AMX, "bf16 by tile registers, small images",
            |p| forward(p, |c, bias, types, t| amx_images::AmxImagesForward::new(c, bias, types, t)?.with_statistics(t))),
        KernelCandidate::new("amx", AMX, "bf16 by tile registers",
            |p| forward(p, |c, bias, types, t| Ok(amx::AmxForward::new(c, bias, types, t)?.with_statistics(t)))),
        KernelCandidate::new("pointwise", EVERY, "1×1 kernels with many channels and filters",
            |p| forward(p, |c, bias, types, t| {
                Ok(pointwise::Pointwise::forward(c, bias, types, p)?.with_statistics(types[2], t))
            })),
        KernelCandidate::new("winograd", EVERY, "3×3 kernels",
            |p| forward(p, |c, bias, types, t| Ok(winograd::WinogradForward::new(c, bias, types, t)?.with_statistics(t)))),
        KernelCandidate::new("direct", EVERY, "takes every convolution that the compiler gives statistics",
            |p| forward(p, |c, bias, types, t| Ok(direct::DirectForward::new(c, bias, types, t)?.with_statistics(t)))),
    ],
};

/// A convolution as candidates see it: its attributes, whether a bias follows, and the types of input, filter and
/// result.
struct ConvolutionLayer<'a> {
    c: &'a Convolution,
    bias: bool,
    types: [&'a TensorType; 3],
}

const NO_CONVOLUTION: &str = "it is no convolution";

/// The convolution of a step, with or without batch statistics.
fn layer<'a>(p: &Problem<'a>) -> SelectResult<ConvolutionLayer<'a>> {
    let (c, bias) = match &p.step.kernel {
        Plan::Op { op: Op::Convolution(c), bias } => (c, *bias),
        Plan::Moments(m) => (&m.conv, m.bias),
        _ => return Err(NO_CONVOLUTION.into()),
    };
    let types = [&p.step.input_types[0], &p.step.input_types[1], &p.step.output_types[0]];
    Ok(ConvolutionLayer { c, bias, types })
}

/// As [`layer`], only for non-empty arrays of f32, bf16 or f16.
fn floats<'a>(p: &Problem<'a>) -> SelectResult<ConvolutionLayer<'a>> {
    let layer = layer(p)?;
    let known = |t: &TensorType| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.elements() > 0;
    match layer.types.into_iter().all(known) {
        true => Ok(layer),
        false => Err("its elements are not f32, bf16 or f16, or there are none".into()),
    }
}

/// The kernel of a layer, or of the gradient w.r.t. its input.
fn forward<K: Kernel + 'static>(
    p: &Problem<'_>,
    make: impl FnOnce(&Convolution, bool, [&TensorType; 3], CompileTarget) -> SelectResult<K>,
) -> CandidateResult {
    let ConvolutionLayer { c, bias, types } = floats(p)?;
    Ok(Box::new(make(c, bias, types, p.target)?))
}

/// The kernel of a gradient w.r.t. the filter, which has no bias.
fn gradient<K: Kernel + 'static>(
    p: &Problem<'_>,
    make: impl FnOnce(&Convolution, [&TensorType; 3], CompileTarget) -> SelectResult<K>,
) -> CandidateResult {
    let ConvolutionLayer { c, bias, types } = floats(p)?;
    if bias {
        return Err("it has a bias, so it is no gradient".into());
    }
    Ok(Box::new(make(c, types, p.target)?))
}
