//! Kernel of loops that run as machine code.

use crate::kernel::{InnerProgram, Io, Kernel, KernelContext, with_scratch};
use crate::run::control_flow::WhileKernel;
use crate::run::loop_code::control::is_supported;
use crate::run::loop_code::loop_call::{PointerSource, SlotMemory};
use crate::run::loop_code::loop_function::JitLoopFunction;
use crate::run::loop_code::lowering::{LoopArgument, LoopLowering, SMALL};
use crate::run::loop_code::steps::is_elementwise;
use crate::select::{CandidateResult, Problem};
use crate::simd::jit;
use crate::simd::level::Level;
use std::any::Any;
use std::sync::OnceLock;
use systole_compile::{Kernel as Plan, ProgramSchedule};
use systole_ir::{Result, TensorType};

/// A loop that is compiled to machine code by its first run. Loops inside other compiled loops never run on their own.
pub struct JitLoopKernel {
    plain: WhileKernel,
    inputs: Vec<TensorType>,
    states: Vec<TensorType>,
    level: Level,
    /// `None` inside: the loop cannot be compiled.
    function: OnceLock<Option<JitLoopFunction>>,
}

/// Returns the kernel of a loop, or why it does not run as machine code.
pub fn bind(problem: &Problem<'_>) -> CandidateResult {
    let step = problem.step;
    let Plan::While { captures, starts, cond, body } = &step.kernel else { return Err("not a loop".into()) };
    let level = problem.target.programs();
    if !jit::is_wanted() || !jit::has_scalar_code() {
        return Err("no machine code on this system".into());
    }
    if !has_small_steps(body, level) {
        return Err("no step is on small arrays".into());
    }
    if ![cond, body].iter().all(|s| is_supported(s)) {
        return Err("it writes parts of arrays".into());
    }
    let plain = WhileKernel::new(*captures, starts, [cond, body], problem)?;
    if !plain.precomputes_nothing() {
        return Err("its products have packed operands".into());
    }
    if !plain.updates_in_place(SMALL) {
        return Err("it has large states with two buffers".into());
    }
    Ok(Box::new(JitLoopKernel {
        plain,
        inputs: step.input_types.clone(),
        states: step.output_types.clone(),
        level,
        function: OnceLock::new(),
    }))
}

/// Whether a step of a program, or of a program inside it, is computed element by element.
fn has_small_steps(schedule: &ProgramSchedule, level: Level) -> bool {
    schedule.steps.iter().any(|step| {
        is_elementwise(step, level) || step.kernel.bodies().iter().any(|body| has_small_steps(body, level))
    })
}

impl JitLoopKernel {
    fn compile(&self) -> Option<JitLoopFunction> {
        let mut lowering = LoopLowering::new(self.level);
        let (mut enter, mut leave) = (Vec::new(), Vec::new());
        let mut states = Vec::new();
        for (k, ty) in self.states.iter().enumerate() {
            if ty.bytes() > SMALL {
                let pointer = lowering.pointer(PointerSource::Output(k));
                states.push(SlotMemory::Pointer { pointer, displacement: 0 });
                continue;
            }
            let at = lowering.code.reserve(ty.bytes());
            lowering.code.visible.push((at, ty.bytes()));
            enter.extend(self.plain.starts[k].map(|input| (input, at, ty.bytes())));
            leave.push((k, at, ty.bytes()));
            states.push(SlotMemory::Frame(at));
        }
        let mut inputs = Vec::new();
        for (k, ty) in self.inputs.iter().enumerate().take(self.plain.captures) {
            inputs.push(LoopArgument::Memory(match ty.bytes() > SMALL {
                true => {
                    let pointer = lowering.pointer(PointerSource::Input(k));
                    SlotMemory::Pointer { pointer, displacement: 0 }
                }
                false => {
                    let at = lowering.code.reserve(ty.bytes());
                    enter.push((k, at, ty.bytes()));
                    SlotMemory::Frame(at)
                }
            }));
        }
        lowering.repeat(&self.plain, inputs, states, &self.states, 0)?;
        let mut function = JitLoopFunction::new(lowering)?;
        (function.enter, function.leave) = (enter, leave);
        Some(function)
    }
}

impl Kernel for JitLoopKernel {
    fn scratch(&self) -> usize {
        self.plain.scratch()
    }

    fn inner(&self) -> Vec<InnerProgram<'_>> {
        self.plain.inner()
    }

    fn control_flow(&self) -> Option<&dyn Any> {
        Some(&self.plain)
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let Some(function) = self.function.get_or_init(|| self.compile()) else {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.plain.run(cx, io) };
        };
        for (k, ty) in self.states.iter().enumerate().filter(|(_, ty)| ty.bytes() > SMALL) {
            let Some(from) = self.plain.starts[k].map(|i| io.inputs[i]) else { continue };
            if !std::ptr::eq(from, io.outputs[k]) {
                // SAFETY: both have the state's type and, being different arrays, do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, io.outputs[k], ty.bytes()) };
            }
        }
        // SAFETY: guaranteed by the caller; the frame has the function's size.
        with_scratch(function.frame_bytes(), |frame| unsafe { function.run(cx, io, frame) })
    }
}
