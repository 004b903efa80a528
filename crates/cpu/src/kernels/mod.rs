//! Kernels: one file for each family. [`bind`] turns a step of a schedule into something that runs.
//!
//! The contract of every kernel ([`Kernel::run`]): `inputs` and `outputs` point to arrays of the step's types, aligned
//! to their elements. Outputs overlap neither each other nor the inputs, except where the buffer plan lets a step
//! write in place (element-wise steps on inputs they read at the same index; `dynamic_update_slice` on its operand);
//! those kernels look for equal pointers themselves. `scratch` points to as many bytes as the kernel asked for.

mod accumulate;
mod attention;
mod conv;
mod conv_pool;
mod elementwise;
pub(crate) mod matmul;
pub(crate) mod movement;
mod pool;
pub(crate) mod reduce;
mod reference;
mod rng;
mod via_f32;

use crate::kernel::Kernel;
use crate::machine::level::Target;
use systole_compile::{Kernel as Plan, Step};
use systole_ir::{Op, Result, bug};

/// The kernel for a step.
pub fn bind(step: &Step, target: Target) -> Result<Box<dyn Kernel>> {
    let (level, programs) = (target.level.vectors(), target.programs());
    Ok(match &step.kernel {
        Plan::Map(m) => Box::new(elementwise::map::MapKernel::new(m, programs)),
        Plan::Parts(p) => Box::new(elementwise::map::MapKernel::of_parts(p, programs)),
        Plan::Reduce { map, folded, monoid } => {
            Box::new(reduce::fold::ReduceKernel::new(map, folded, *monoid, step, programs))
        }
        Plan::HandOn(h) => Box::new(matmul::product_epilogue::HandOn::new(h, step, target)?),
        Plan::Rows(r) => reduce::rows::bind(r, step, programs),
        Plan::While { captures, starts, cond, body } => {
            Box::new(crate::run::control::WhileKernel::new(*captures, starts, [cond, body], step, target)?)
        }
        Plan::Case { branches } => Box::new(crate::run::control::CaseKernel::new(branches, step, target)?),
        Plan::Blocks(b) => Box::new(crate::run::row_blocks::BlocksKernel::new(b, target)?),
        Plan::Attention(a) => Box::new(attention::AttentionKernel::new(a, step, target.level)),
        Plan::Onto { op } => Box::new(accumulate::Onto::new(op, step, target)?),
        Plan::Pool(p) => known(step, conv_pool::forward::bind(p, step, target)),
        Plan::Unpool(u) => known(step, pool::max_pool::bind_unpool(u, step, level)),
        Plan::UnpooledGradient(g) => known(step, conv_pool::gradient::bind(g, step, target)),
        Plan::Moments(m) => known(step, conv::bind_moments(m, step, target)),
        Plan::Op { op, bias } => bind_op(op, *bias, step, target)?,
    })
}

/// The kernel of a fused step: templates make only what kernels know.
fn known(step: &Step, kernel: Option<Box<dyn Kernel>>) -> Box<dyn Kernel> {
    match kernel {
        Some(kernel) => kernel,
        None => bug!("no kernel for {} of {:?}", step.kernel.name(), step.input_types),
    }
}

fn bind_op(op: &Op, bias: bool, step: &Step, target: Target) -> Result<Box<dyn Kernel>> {
    let level = target.level.vectors();
    if let Op::DotGeneral(d) = op
        && let Some(k) = matmul::dot_general::DotKernel::new(
            d,
            matmul::blocked::Epilogue { bias, accumulate: false },
            step,
            target,
        )
    {
        return Ok(Box::new(k));
    }
    if let Op::Convolution(c) = op
        && let Some(k) = conv::bind_dense(c, bias, step, target)
    {
        return Ok(k);
    }
    if let Some(k) = via_f32::Widened::new(op, bias, step, target)? {
        return Ok(Box::new(k));
    }
    let fast = match op {
        Op::Convolution(c) => conv::bind(c, bias, step, level),
        Op::ReduceWindow(_) | Op::SelectAndScatter(_) => pool::reduce_window::bind(op, step, level),
        Op::RngBitGenerator(_) => rng::bind(op, step, level),
        Op::Scatter(_) => movement::scatter::bind(op, step, level),
        Op::Sort(s) => Some(Box::new(movement::sort::SortKernel::new(s, step)) as Box<dyn Kernel>),
        op => movement::moves::bind(op, step),
    };
    if let Some(k) = fast {
        return Ok(k);
    }
    Ok(Box::new(reference::Reference::new(op, bias, step)))
}
