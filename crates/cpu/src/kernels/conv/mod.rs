//! Convolution without patches in memory: register kernels read the input where it lies, or strips of it that were
//! copied to a thread's cache with explicit zeros, through tables of offsets.
//!
//! Layouts are channels-last. [`forward`] also computes the input's gradient, [`gradient`] the kernel's, [`stage`] is
//! how both read the input, [`tiles`] the register kernels. Wide ones that read single pixels are products of matrices:
//! [`pointwise`]. Machines with tile registers have kernels of their own for bf16: [`tiled`], [`tiled_gradient`]. Every other
//! combination of attributes goes the general way: plain loops, in parallel.

mod amx;
mod amx_gradient;
mod batch_statistics;
pub mod depthwise;
mod forward;
mod gradient;
mod microkernel;
mod operands;
mod pointwise;
mod staging;
pub mod winograd;

pub use crate::kernels::conv::amx::Forward;

use crate::kernel::Cx;
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv::operands::is_paired;
use crate::select::{Candidate, EVERY, Family, Problem, Refusal, answer};
use crate::simd::level::{Level, Target};
use smallvec::SmallVec;
use systole_compile::Kernel as Plan;
use systole_compile::{Moments, Step};
use systole_ir::Op;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// The kernel of a convolution of narrow or f32 floats in one of the layouts of layers; `None`: another one.
pub fn bind_dense(c: &Convolution, bias: bool, step: &Step, target: Target) -> Option<Box<dyn Kernel>> {
    let level = target.level.vectors();
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    let known = |t: &TensorType| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.elements() > 0;
    if ![x, k, y].into_iter().all(known) {
        return None;
    }
    if let Some(kernel) = amx::Forward::new(c, bias, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    if let Some(kernel) = pointwise::Pointwise::forward(c, bias, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    if !bias && let Some(kernel) = amx_gradient::KernelGradient::new(c, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    if !bias && let Some(kernel) = pointwise::Pointwise::gradient(c, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    // Pairs are as many products at once as transforms save, and nothing is transformed.
    if target.winograd && !is_paired(target.level, x, k) {
        if let Some(kernel) = winograd::Forward::new(c, bias, x, k, y, level) {
            return Some(Box::new(kernel));
        }
        if !bias && let Some(kernel) = winograd::KernelGradient::new(c, x, k, y, level) {
            return Some(Box::new(kernel));
        }
    }
    if let Some(kernel) = forward::Forward::new(c, bias, x, k, y, target.level) {
        return Some(Box::new(kernel));
    }
    let kernel =
        if bias { None } else { gradient::KernelGradient::new(c, x, k, y, target.level, target.winograd) };
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>)
}

/// The kernel of a convolution that also gives the statistics of its result.
pub fn bind_moments(m: &Moments, step: &Step, target: Target) -> Option<Box<dyn Kernel>> {
    let level = target.level.vectors();
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    if let Some(kernel) = amx::Forward::new(&m.conv, m.bias, [x, k, y], target) {
        return Some(Box::new(kernel.with_moments(target)));
    }
    if let Some(product) = pointwise::Pointwise::forward(&m.conv, m.bias, [x, k, y], target) {
        return Some(Box::new(product.with_moments(y, target)));
    }
    if target.winograd
        && !is_paired(target.level, x, k)
        && let Some(kernel) = winograd::Forward::new(&m.conv, m.bias, x, k, y, level)
    {
        return Some(Box::new(kernel.with_moments(level)));
    }
    let kernel = forward::Forward::new(&m.conv, m.bias, x, k, y, target.level)?;
    Some(Box::new(kernel.with_moments(level)))
}

/// The kernel of any other convolution; `None` where the element types have no path here.
pub fn bind(c: &Convolution, bias: bool, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    if let Some(kernel) = crate::kernels::conv::depthwise::bind(c, bias, step, level) {
        return Some(kernel);
    }
    General::new(c, bias, x, k, y).map(|g| Box::new(g) as Box<dyn Kernel>)
}

/// Plain loops over any attributes; sums in f64, or exactly modulo the result's width.
struct General {
    op: Convolution,
    bias: bool,
    x: TensorType,
    k: TensorType,
    y: TensorType,
}

impl General {
    fn new(c: &Convolution, bias: bool, x: &TensorType, k: &TensorType, y: &TensorType) -> Option<General> {
        let simple = |t: DType| matches!(t, DType::F32 | DType::F64);
        (simple(x.dtype) && x.dtype == y.dtype && y.elements() > 0).then(|| General {
            op: c.clone(),
            bias,
            x: x.clone(),
            k: k.clone(),
            y: y.clone(),
        })
    }

    /// The input coordinate of window element `w` at output coordinate `o` along spatial dimension `i`.
    fn source(&self, i: usize, o: usize, w: usize) -> Option<usize> {
        let c = &self.op;
        let at = (o * c.strides[i] + w * c.rhs_dilation[i]) as i64 - c.padding[i][0];
        let (at, holes) = (usize::try_from(at).ok()?, c.lhs_dilation[i]);
        (at % holes == 0 && at / holes < self.x.shape[c.dims.input_spatial[i]]).then(|| at / holes)
    }

    /// Offsets in input and kernel of the window positions that meet the input at an output position.
    fn window(&self, out: &[usize], pairs: &mut Vec<(usize, usize)>) {
        let d = &self.op.dims;
        let (xs, ks) = (self.x.shape.strides(), self.k.shape.strides());
        pairs.clear();
        pairs.push((0, 0));
        for i in 0..d.input_spatial.len() {
            let size = self.k.shape[d.kernel_spatial[i]];
            let (sx, sk) = (xs[d.input_spatial[i]], ks[d.kernel_spatial[i]]);
            let o = out[d.output_spatial[i]];
            let steps: SmallVec<[(usize, usize); 8]> = (0..size)
                .filter_map(|w| {
                    let k = if self.op.reversal[i] { size - 1 - w } else { w };
                    self.source(i, o, w).map(|at| (at * sx, k * sk))
                })
                .collect();
            *pairs = pairs.iter().flat_map(|&(x, k)| steps.iter().map(move |s| (x + s.0, k + s.1))).collect();
        }
    }

    unsafe fn run_as<T: Copy + Into<f64>>(&self, cx: &Cx<'_>, io: &Io<'_>, narrow: impl Fn(f64) -> T + Sync) {
        let d = &self.op.dims;
        let (xs, ks, ys) = (self.x.shape.strides(), self.k.shape.strides(), self.y.shape.strides());
        let features = self.k.shape[d.kernel_output_feature];
        let inputs = self.k.shape[d.kernel_input_feature];
        let per_group = features / (self.op.feature_groups * self.op.batch_groups);
        let images = self.x.shape[d.input_batch] / self.op.batch_groups;
        let (sx, sk) = (xs[d.input_feature], ks[d.kernel_input_feature]);
        let positions = self.y.elements() / features.max(1);
        let mut outer = self.y.shape.dims().to_vec();
        outer[d.output_feature] = 1;
        let outer = systole_ir::Shape::from(outer);
        let (x, k, y) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let body = |p: usize| {
            let index = outer.unravel(p);
            let mut pairs = Vec::new();
            self.window(&index, &mut pairs);
            let at: usize = index.iter().zip(&ys).map(|(i, s)| i * s).sum();
            for f in 0..features {
                let group = f / per_group;
                let (bg, fg) = (
                    if self.op.batch_groups > 1 { group } else { 0 },
                    if self.op.feature_groups > 1 { group } else { 0 },
                );
                let x0 = (bg * images + index[d.output_batch]) * xs[d.input_batch] + fg * inputs * sx;
                let k0 = f * ks[d.kernel_output_feature];
                let mut sum = 0f64;
                // SAFETY: window offsets were checked against the input; each task has its own output position.
                unsafe {
                    for &(xo, ko) in &pairs {
                        for c in 0..inputs {
                            let (a, b) = (*x.elem::<T>(x0 + xo + c * sx), *k.elem::<T>(k0 + ko + c * sk));
                            sum += a.into() * b.into();
                        }
                    }
                    if self.bias {
                        // Rounded before the bias is added, as two ops would.
                        sum = narrow(sum).into() + (*bias.elem::<T>(f)).into();
                    }
                    *y.elem::<T>(at + f * ys[d.output_feature]) = narrow(sum);
                }
            }
        };
        let taps: usize = d.kernel_spatial.iter().map(|&s| self.k.shape[s]).product();
        let work = (self.y.elements() * inputs * taps) as f64 * 1.5;
        cx.team.run_with(positions, work, cx.flush, &body);
    }
}

impl Kernel for General {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the arrays have the element type that is chosen.
        unsafe {
            match self.x.dtype {
                DType::F32 => self.run_as::<f32>(cx, io, |s| s as f32),
                _ => self.run_as::<f64>(cx, io, |s| s),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

/// Convolutions.
pub static FAMILY: Family = Family {
    name: "conv",
    doc: "convolutions and their gradients, with a bias where one follows",
    takes: |step| matches!(&step.kernel, Plan::Op { op: Op::Convolution(_), .. }),
    candidates: &[
        Candidate {
            name: "dense",
            why: "convolutions of layers and their gradients",
            levels: EVERY,
            accepts: |p| {
                let (c, bias) = convolution(p)?;
                bind_dense(c, bias, p.step, p.target).ok_or_else(|| "it is not dense".into())
            },
        },
        Candidate {
            name: "via_f32",
            why: "narrow floats that no other kernel takes",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Plan::Op { op, bias } => {
                    answer(crate::kernels::via_f32::Widened::new(op, *bias, p)?, "no operand is narrow")
                }
                _ => Err("no convolution".into()),
            },
        },
        Candidate {
            name: "general",
            why: "any other convolution",
            levels: EVERY,
            accepts: |p| {
                let (c, bias) = convolution(p)?;
                bind(c, bias, p.step, p.target.level.vectors())
                    .ok_or_else(|| "its element types have no path".into())
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};

fn convolution<'a>(p: &Problem<'a>) -> std::result::Result<(&'a Convolution, bool), Refusal> {
    match &p.step.kernel {
        Plan::Op { op: Op::Convolution(c), bias } => Ok((c, *bias)),
        _ => Err("no convolution".into()),
    }
}

/// Convolutions with the statistics of their results.
pub static BATCH_STATISTICS: Family = Family {
    name: "batch_statistics",
    doc: "a convolution and the sums of batch normalisation over its result",
    takes: |step| matches!(step.kernel, Plan::Moments(_)),
    candidates: &[Candidate {
        name: "conv",
        why: "takes every convolution that the compiler gives statistics",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Plan::Moments(m) => bind_moments(m, p.step, p.target).ok_or_else(|| "no kernel".into()),
            _ => Err("no statistics".into()),
        },
    }],
};
