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
use crate::select::{AMX, Answer, Candidate, EVERY, Family, Problem, Refusal};
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
    candidates: &[
        Candidate {
            name: "amx_images",
            why: "bf16 by tile registers, small images: the rows of a tile are sixteen images, where lines of \
                  pixels would leave them empty, and taps in the padding are left out",
            levels: AMX,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(amx_images::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "amx",
            why: "bf16 by tile registers, forward and gradient with respect to the input: faster than \
                  every other way where they exist",
            levels: AMX,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(amx::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "pointwise",
            why: "1×1 kernels with many channels and filters: a GEMM, which packs both operands once. With \
                  fewer of them packing is not repaid",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(pointwise::Pointwise::forward(c, bias, types, p))
            },
        },
        Candidate {
            name: "amx_images_gradient",
            why: "bf16 by tile registers, gradient with respect to the kernel for small images: K runs over \
                  images, where lines of pixels have as many zeros between them",
            levels: AMX,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(amx_images::KernelGradient::new(c, types, p.target))
            },
        },
        Candidate {
            name: "amx_gradient",
            why: "bf16 by tile registers, gradient with respect to the kernel",
            levels: AMX,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(amx::KernelGradient::new(c, types, p.target))
            },
        },
        Candidate {
            name: "pointwise_gradient",
            why: "gradient with respect to a 1×1 kernel: a GEMM as well",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(pointwise::Pointwise::gradient(c, types, p))
            },
        },
        Candidate {
            name: "winograd",
            why: "3×3 kernels: F(2×2, 3×3) takes 16 multiplications for 36. Other kernels would need \
                  transforms of their own, larger tiles lose accuracy",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(winograd::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "winograd_gradient",
            why: "gradient with respect to a 3×3 kernel, by the transposed transforms",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(winograd::KernelGradient::new(c, types, p.target))
            },
        },
        Candidate {
            name: "direct",
            why: "f32 and narrower floats, one group, forward and gradient with respect to the input: \
                  register tiles over the input as it lies",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(direct::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "direct_gradient",
            why: "gradient with respect to the kernel of such layers",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(direct::KernelGradient::new(c, types, p.target))
            },
        },
        Candidate {
            name: "depthwise",
            why: "one filter for each channel: element-wise multiply-adds of rows",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(depthwise::Forward::new(c, bias, types, p.target.level.vectors()))
            },
        },
        Candidate {
            name: "depthwise_gradient",
            why: "gradient with respect to such filters",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(depthwise::KernelGradient::new(c, types, p.target.level.vectors()))
            },
        },
        crate::kernels::via_f32::CANDIDATE,
        Candidate {
            name: "general",
            why: "any other attributes: plain loops, in parallel",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = layer(p)?;
                made(general::General::new(c, bias, types))
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};

/// Convolutions that also return batch statistics of their result.
pub static BATCH_STATISTICS: Family = Family {
    name: "batch_statistics",
    doc: "a convolution and the batch statistics of its result, summed while that is in cache",
    takes: |step| matches!(step.kernel, Plan::Moments(_)),
    candidates: &[
        Candidate {
            name: "amx_images",
            why: "bf16 by tile registers, small images",
            levels: AMX,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                let kernel = amx_images::Forward::new(c, bias, types, p.target);
                made(kernel.and_then(|k| k.with_statistics(p.target)))
            },
        },
        Candidate {
            name: "amx",
            why: "bf16 by tile registers",
            levels: AMX,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(amx::Forward::new(c, bias, types, p.target).map(|k| k.with_statistics(p.target)))
            },
        },
        Candidate {
            name: "pointwise",
            why: "1×1 kernels with many channels and filters",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                let kernel = pointwise::Pointwise::forward(c, bias, types, p);
                made(kernel.map(|k| k.with_statistics(types[2], p.target)))
            },
        },
        Candidate {
            name: "winograd",
            why: "3×3 kernels",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                let kernel = winograd::Forward::new(c, bias, types, p.target);
                made(kernel.map(|k| k.with_statistics(p.target.level.vectors())))
            },
        },
        Candidate {
            name: "direct",
            why: "takes every convolution that the compiler gives statistics",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                let kernel = direct::Forward::new(c, bias, types, p.target);
                made(kernel.map(|k| k.with_statistics(p.target.level.vectors())))
            },
        },
    ],
};

/// A convolution as candidates see it: its attributes, whether a bias follows, and the types of input, filter and
/// result.
struct Layer<'a> {
    c: &'a Convolution,
    bias: bool,
    types: [&'a TensorType; 3],
}

const NO_CONVOLUTION: &str = "it is no convolution";

/// The convolution of a step, with or without batch statistics.
fn layer<'a>(p: &Problem<'a>) -> Result<Layer<'a>, Refusal> {
    let (c, bias) = match &p.step.kernel {
        Plan::Op { op: Op::Convolution(c), bias } => (c, *bias),
        Plan::Moments(m) => (&m.conv, m.bias),
        _ => return Err(NO_CONVOLUTION.into()),
    };
    let types = [&p.step.input_types[0], &p.step.input_types[1], &p.step.output_types[0]];
    Ok(Layer { c, bias, types })
}

/// As [`layer`], only for non-empty arrays of f32, bf16 or f16.
fn floats<'a>(p: &Problem<'a>) -> Result<Layer<'a>, Refusal> {
    let layer = layer(p)?;
    let known = |t: &TensorType| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.elements() > 0;
    match layer.types.into_iter().all(known) {
        true => Ok(layer),
        false => Err("its elements are not f32, bf16 or f16, or there are none".into()),
    }
}

/// Refuses a bias: a gradient w.r.t. the filter has none.
fn without_bias(layer: Layer<'_>) -> Result<Layer<'_>, Refusal> {
    if layer.bias { Err("it has a bias, so it is no gradient".into()) } else { Ok(layer) }
}

fn made<K: Kernel + 'static>(kernel: Result<K, Refusal>) -> Answer {
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>)
}
