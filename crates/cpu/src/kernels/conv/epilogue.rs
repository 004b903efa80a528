//! Convolution with a fused element-wise epilogue, which is the only reader of the convolution's result.
//!
//! The epilogue's result takes the place of the convolution's: the convolution writes a block of it, and the program
//! reads and overwrites that block, while it is in cache ([`by_strips`]) or when all of it is written ([`separate`]).

use crate::kernel::{Io, Kernel, KernelContext, OutputBlock, Ptr};
use crate::select::{CandidateResult, EVERY, Family, KernelCandidate, Problem, SelectResult};
use smallvec::SmallVec;
use systole_compile::{Kernel as StepKernel, ProductEpilogue as Plan, Step};
use systole_ir::{Result, ensure};

/// Kernel family for a convolution with an element-wise epilogue.
pub static FAMILY: Family = Family {
    name: "conv_epilogue",
    doc: "convolution fused with the element-wise program that is the only reader of its result",
    takes: |step| matches!(step.kernel, StepKernel::ConvolutionEpilogue(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("by_strips", EVERY, "the program runs on each strip of the result while it is in cache",
            by_strips),
        KernelCandidate::new("separate", EVERY, "the program runs when the result is written, in its place: supports \
             every convolution with an epilogue",
            separate),
    ],
};

fn plan<'a>(p: &Problem<'a>) -> SelectResult<&'a Plan, &'static str> {
    match &p.step.kernel {
        StepKernel::ConvolutionEpilogue(plan) => Ok(plan),
        _ => Err("not a convolution with an epilogue"),
    }
}

/// Returns the kernels of the convolution and of the program, whose last operand is the convolution's result.
fn parts(plan: &Plan, p: &Problem<'_>) -> Result<[Box<dyn Kernel>; 2]> {
    let (step, operands) = (p.step, plan.operands());
    let conv = Step {
        kernel: StepKernel::Op { op: plan.op.clone(), bias: plan.bias },
        inputs: step.inputs[..operands].to_vec(),
        input_types: step.input_types[..operands].to_vec(),
        output_types: vec![plan.product.clone()],
        ..step.clone()
    };
    let (mut inputs, mut input_types) =
        (step.inputs[operands..].to_vec(), step.input_types[operands..].to_vec());
    inputs.push(step.outputs[0]);
    input_types.push(plan.product.clone());
    let map = Step { kernel: StepKernel::Map(plan.map.clone()), inputs, input_types, ..step.clone() };
    Ok([p.bind(&conv)?, p.bind(&map)?])
}

fn by_strips(p: &Problem<'_>) -> CandidateResult {
    let plan = plan(p)?;
    let [mut conv, map] = parts(plan, p)?;
    let columns = plan.product.shape.last().copied().unwrap_or(1);
    ensure!(map.takes_blocks(columns), "its element-wise program cannot run on blocks of the result".into());
    ensure!(conv.hand_over_blocks(), "its convolution is not computed strip by strip".into());
    Ok(Box::new(ConvolutionEpilogue { conv, map, operands: plan.operands(), by_blocks: true }))
}

fn separate(p: &Problem<'_>) -> CandidateResult {
    let plan = plan(p)?;
    let [conv, map] = parts(plan, p)?;
    Ok(Box::new(ConvolutionEpilogue { conv, map, operands: plan.operands(), by_blocks: false }))
}

/// A convolution and the program that overwrites its result.
struct ConvolutionEpilogue {
    conv: Box<dyn Kernel>,
    map: Box<dyn Kernel>,
    /// Number of inputs of the convolution; the remaining inputs belong to the program.
    operands: usize,
    /// Whether the program runs on each block of the result.
    by_blocks: bool,
}

impl ConvolutionEpilogue {
    /// # Safety
    /// As for [`Kernel::run_kept`]; `kept` is null if nothing was precomputed.
    unsafe fn run_blocks(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) {
        let (operands, others) = io.inputs.split_at(self.operands);
        let (others, y): (SmallVec<[Ptr; 8]>, Ptr) =
            (others.iter().map(|&p| Ptr::of(p)).collect(), Ptr(io.outputs[0]));
        let take = |block: &OutputBlock, sums: *const u8| {
            let inputs: SmallVec<[*const u8; 8]> =
                others.iter().map(|p| p.at(0).cast_const()).chain([sums]).collect();
            // SAFETY: each element is in one block, so that tasks access disjoint elements of the result.
            unsafe { self.map.run_block(&inputs, &[y.at(0)], block) };
        };
        let io = Io { inputs: operands, outputs: io.outputs, scratch: io.scratch };
        // SAFETY: by the caller's promise operands, result and scratch are the convolution's.
        unsafe { self.conv.run_by_blocks(cx, &io, &take, kept) };
    }

    /// Runs the program on the whole result.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; the convolution has run.
    unsafe fn run_map(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let others = &io.inputs[self.operands..];
        let inputs: SmallVec<[*const u8; 8]> =
            others.iter().copied().chain([io.outputs[0].cast_const()]).collect();
        // SAFETY: the program reads each element of the result at the index that it writes.
        unsafe { self.map.run(cx, &Io { inputs: &inputs, outputs: io.outputs, scratch: io.scratch }) }
    }

    fn operands<'a>(&self, io: &Io<'a>) -> Io<'a> {
        Io { inputs: &io.inputs[..self.operands], outputs: io.outputs, scratch: io.scratch }
    }
}

impl Kernel for ConvolutionEpilogue {
    fn scratch(&self) -> usize {
        self.conv.scratch().max(self.map.scratch())
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.conv.kept(&same[..self.operands])
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.conv.keep(cx, &inputs[..self.operands], kept) }
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe {
            if self.by_blocks {
                self.run_blocks(cx, io, std::ptr::null());
                return Ok(());
            }
            self.conv.run(cx, &self.operands(io))?;
            self.run_map(cx, io)
        }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe {
            if self.by_blocks {
                self.run_blocks(cx, io, kept);
                return Ok(());
            }
            self.conv.run_kept(cx, &self.operands(io), kept)?;
            self.run_map(cx, io)
        }
    }
}
