//! Kernels: one file for each family. [`bind`] turns a step of a schedule into something that runs.
//!
//! The contract of every kernel ([`Kernel::run`]): `inputs` and `outputs` point to arrays of the step's types, aligned
//! to their elements. Outputs overlap neither each other nor the inputs, except where the buffer plan lets a step
//! write in place (element-wise steps on inputs they read at the same index; `dynamic_update_slice` on its operand);
//! those kernels look for equal pointers themselves. `scratch` points to as many bytes as the kernel asked for.

pub mod amx;
mod attention;
mod cells;
mod conv;
mod convpool;
mod depthwise;
mod dot;
mod dots;
mod fallback;
pub mod gemm;
mod halves;
mod handon;
mod jit;
mod lanes;
mod map;
pub mod math;
mod matmul;
pub(crate) mod moves;
mod onto;
mod pack;
mod pool;
mod pooltile;
mod reduce;
mod rng;
mod rows;
mod scatter;
mod slim;
mod sort;
mod thin;
mod tilegrad;
mod tilepool;
mod turned;
mod unpooled;
mod widened;
mod window;

use crate::detect::{Level, Target, TileFn};
use crate::exec::{Cx, Executor};
pub(crate) use matmul::Side;
use systole_compile::{Kernel as Plan, Step};
use systole_ir::{DType, Op, Result, bug};

/// Addresses of one call's arrays.
pub struct Io<'a> {
    /// Operands.
    pub inputs: &'a [*const u8],
    /// Results.
    pub outputs: &'a [*mut u8],
    /// Working memory of the size that [`Kernel::scratch`] names.
    pub scratch: *mut u8,
}

/// A step bound to this machine.
pub trait Kernel: Send + Sync {
    /// Computes the outputs.
    ///
    /// # Safety
    /// See the module text.
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()>;

    /// Where in its first operand lies the part that it slices, in bytes.
    ///
    /// # Safety
    /// The indices among `inputs` can be read.
    unsafe fn part_at(&self, inputs: &[*const u8]) -> usize {
        let _ = inputs;
        0
    }

    /// Bytes of working memory that all threads of one call share.
    fn scratch(&self) -> usize {
        0
    }

    /// Bytes of what it can make once of the operands that are the `same` for many calls; 0: nothing.
    fn kept(&self, same: &[bool]) -> usize {
        let _ = same;
        0
    }

    /// Makes that of the operands; only those that are the same have addresses.
    ///
    /// # Safety
    /// `kept` has room for [`Kernel::kept`] bytes; see also the module text.
    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        let _ = (cx, inputs, kept);
    }

    /// Computes the outputs with what [`Kernel::keep`] made.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `kept` was made of the same operands.
    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let _ = kept;
        // SAFETY: by the caller's promise.
        unsafe { self.run(cx, io) }
    }

    /// Asks a kernel with one result to add to what that holds instead of overwriting it; whether it will.
    fn add_to_result(&mut self) -> bool {
        false
    }

    /// Asks a product to take a matrix in panels of columns ([`crate::panels`]) from now on, or as rows again: how many
    /// columns they have, if it can.
    fn take_panels(&mut self, which: Side, on: bool) -> Option<usize> {
        let _ = (which, on);
        None
    }

    /// Programs that it runs, for profiles.
    fn inner(&self) -> Vec<Inner<'_>> {
        Vec::new()
    }
}

/// A program inside a kernel, and what it is there.
pub(crate) type Inner<'a> = (String, &'a Executor);

/// The loop that adds `n` elements to those at its destination; narrow floats are not its element types.
pub(crate) fn adder(dtype: DType, level: Level) -> TileFn {
    reduce::loops_of(systole_ir::op::Monoid::Add, dtype, level.vectors()).across
}

/// An address that may cross threads: blocks of one kernel touch disjoint parts of what it points to.
#[derive(Clone, Copy)]
pub(crate) struct Ptr(pub *mut u8);

// SAFETY: an address is data; what is done with it is justified where it is used.
unsafe impl Send for Ptr {}
// SAFETY: as above.
unsafe impl Sync for Ptr {}

impl Ptr {
    pub(crate) fn of(p: *const u8) -> Ptr {
        Ptr(p.cast_mut())
    }

    /// The address `bytes` further on. A method, so that closures capture the whole `Ptr`.
    #[inline(always)]
    pub(crate) fn at(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }

    /// The address of element `i` of type `T`.
    #[inline(always)]
    pub(crate) fn elem<T>(self, i: usize) -> *mut T {
        self.0.cast::<T>().wrapping_add(i)
    }
}

/// Asks for the cache line of an address: where the hardware cannot foresee what comes next.
#[inline(always)]
pub(crate) fn fetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, for which any address will do.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    let _ = p;
}

/// The kernel for a step.
pub fn bind(step: &Step, target: Target) -> Result<Box<dyn Kernel>> {
    let (level, programs) = (target.level.vectors(), target.programs());
    Ok(match &step.kernel {
        Plan::Map(m) => Box::new(map::MapKernel::new(m, programs)),
        Plan::Parts(p) => Box::new(map::MapKernel::of_parts(p, programs)),
        Plan::Reduce { map, folded, monoid } => {
            Box::new(reduce::ReduceKernel::new(map, folded, *monoid, step, programs))
        }
        Plan::HandOn(h) => Box::new(handon::HandOn::new(h, step, target)?),
        Plan::Rows(r) => rows::bind(r, step, programs),
        Plan::While { captures, starts, cond, body } => {
            Box::new(crate::exec::WhileKernel::new(*captures, starts, [cond, body], step, target)?)
        }
        Plan::Case { branches } => Box::new(crate::exec::CaseKernel::new(branches, step, target)?),
        Plan::Blocks(b) => Box::new(crate::blocks::BlocksKernel::new(b, target)?),
        Plan::Attention(a) => Box::new(attention::AttentionKernel::new(a, step, target.level)),
        Plan::Onto { op } => Box::new(onto::Onto::new(op, step, target)?),
        Plan::Pool(p) => known(step, convpool::bind(p, step, target)),
        Plan::Unpool(u) => known(step, pool::bind_unpool(u, step, level)),
        Plan::UnpooledGradient(g) => known(step, unpooled::bind(g, step, target)),
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
        && let Some(k) = dot::DotKernel::new(d, matmul::Epilogue { bias, accumulate: false }, step, target)
    {
        return Ok(Box::new(k));
    }
    if let Op::Convolution(c) = op
        && let Some(k) = conv::bind_dense(c, bias, step, target)
    {
        return Ok(k);
    }
    if let Some(k) = widened::Widened::new(op, bias, step, target)? {
        return Ok(Box::new(k));
    }
    let fast = match op {
        Op::Convolution(c) => conv::bind(c, bias, step, level),
        Op::ReduceWindow(_) | Op::SelectAndScatter(_) => window::bind(op, step, level),
        Op::RngBitGenerator(_) => rng::bind(op, step, level),
        Op::Scatter(_) => scatter::bind(op, step, level),
        Op::Sort(s) => Some(Box::new(sort::SortKernel::new(s, step)) as Box<dyn Kernel>),
        op => moves::bind(op, step),
    };
    if let Some(k) = fast {
        return Ok(k);
    }
    Ok(Box::new(fallback::Reference::new(op, bias, step)))
}
