//! Convolutions: `x: [B, …, C]` by a filter `[…, C, F]` gives `y: [B, …', F]`; also the gradients w.r.t. input and
//! filter, and the sums that batch normalisation takes over the result.
//!
//! Layouts are channels-last, except in [`general`] and the fallbacks of all families. No im2col matrix of the whole
//! input is built. [`staging`] copies one strip of the input into a thread's working memory, with explicit zeros for
//! padding, or lets it be read in place; the microkernels ([`microkernel`]) address it through offset tables.
//! [`direct`] and [`direct_gradient`] compute the definition in this way, [`winograd`] needs fewer multiplications,
//! [`amx`] and [`amx_gradient`] use tile registers. The gradient w.r.t. the input of a strided layer is a convolution
//! of a dilated input: [`phases`] splits it into convolutions without input dilation. [`pointwise`] convolutions are
//! plain GEMMs.

mod amx;
mod amx_gradient;
mod batch_statistics;
mod depthwise;
mod direct;
mod direct_gradient;
mod general;
mod microkernel;
mod operands;
mod phases;
mod pointwise;
mod staging;
mod strips;
mod weights;
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
            name: "amx",
            why: "layers of bf16 and their inputs' gradients where there are tile registers, which no other way beats",
            levels: AMX,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(amx::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "pointwise",
            why: "windows of one element with many channels and features: a product of matrices packs both operands once. \
                  Fewer of them would be packed for too few products",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(pointwise::Pointwise::forward(c, bias, types, p))
            },
        },
        Candidate {
            name: "amx_gradient",
            why: "gradients of kernels of bf16 where there are tile registers",
            levels: AMX,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(amx_gradient::KernelGradient::new(c, types, p.target))
            },
        },
        Candidate {
            name: "pointwise_gradient",
            why: "the gradient of such a kernel of one element is a product as well",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(pointwise::Pointwise::gradient(c, types, p))
            },
        },
        Candidate {
            name: "winograd",
            why: "windows of 3 by 3: F(2×2, 3×3) takes 16 products for 36. Other windows would need transforms of their own, \
                  larger tiles lose digits",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(winograd::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "winograd_gradient",
            why: "the gradient of such a kernel, by the transposed transforms",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(winograd::KernelGradient::new(c, types, p.target))
            },
        },
        Candidate {
            name: "direct",
            why: "layers of one group, of f32 and narrower floats, and their inputs' gradients, by the definition",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(direct::Forward::new(c, bias, types, p.target))
            },
        },
        Candidate {
            name: "direct_gradient",
            why: "gradients of such kernels",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(floats(p)?)?;
                made(direct_gradient::KernelGradient::new(c, types, p.target))
            },
        },
        crate::kernels::via_f32::CANDIDATE,
        Candidate {
            name: "depthwise",
            why: "a filter of its own for each channel: products of rows, element by element",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = layer(p)?;
                made(depthwise::Forward::new(c, bias, types, p.target.level.vectors()))
            },
        },
        Candidate {
            name: "depthwise_gradient",
            why: "the gradient of such filters",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, types, .. } = without_bias(layer(p)?)?;
                made(depthwise::KernelGradient::new(c, types, p.target.level.vectors()))
            },
        },
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
    doc: "a convolution, and the sums of batch normalisation over its result, taken while that is near",
    takes: |step| matches!(step.kernel, Plan::Moments(_)),
    candidates: &[
        Candidate {
            name: "amx",
            why: "layers of bf16 where there are tile registers",
            levels: AMX,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                made(amx::Forward::new(c, bias, types, p.target).map(|k| k.with_statistics(p.target)))
            },
        },
        Candidate {
            name: "pointwise",
            why: "windows of one element with many channels and features",
            levels: EVERY,
            accepts: |p| {
                let Layer { c, bias, types } = floats(p)?;
                let kernel = pointwise::Pointwise::forward(c, bias, types, p);
                made(kernel.map(|k| k.with_statistics(types[2], p.target)))
            },
        },
        Candidate {
            name: "winograd",
            why: "windows of 3 by 3",
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
        false => Err("its elements are no floats of at most 32 bits, or there are none".into()),
    }
}

/// Refuses a bias: a gradient w.r.t. the filter has none.
fn without_bias(layer: Layer<'_>) -> Result<Layer<'_>, Refusal> {
    if layer.bias { Err("it has a bias, so it is no gradient".into()) } else { Ok(layer) }
}

fn made<K: Kernel + 'static>(kernel: Result<K, Refusal>) -> Answer {
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>)
}

#[cfg(test)]
mod tests;
