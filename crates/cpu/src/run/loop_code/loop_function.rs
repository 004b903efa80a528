//! A lowered loop as a function: its frame, and the calls of kernels from it.

use crate::kernel::{Io, KernelContext};
use crate::machine::interrupt::{InterruptMark, check_interrupt};
use crate::run::loop_code::loop_call::{JitLoopCall, PointerSource, SlotMemory};
use crate::run::loop_code::lowering::LoopLowering;
use crate::simd::jit::scalar_code::FrameOffset;
use crate::simd::jit::scalar_function::ScalarFunction;
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use systole_ir::{Error, Result};

/// A loop compiled to machine code.
pub struct JitLoopFunction {
    function: ScalarFunction,
    calls: Vec<JitLoopCall>,
    constants: Vec<(FrameOffset, u64)>,
    pointers: Vec<(FrameOffset, PointerSource)>,
    /// Small inputs and initial states: input, place in the frame, bytes.
    pub enter: Vec<(usize, FrameOffset, usize)>,
    /// Small states: output, place in the frame, bytes.
    pub leave: Vec<(usize, FrameOffset, usize)>,
}

/// What calls from the code need.
struct LoopContext<'a> {
    function: &'a JitLoopFunction,
    cx: &'a KernelContext<'a>,
    frame: *mut u8,
    error: Option<Error>,
    panic: Option<Box<dyn Any + Send>>,
}

impl LoopContext<'_> {
    /// # Safety
    /// The code that runs has set the pointers in the frame that the memory needs.
    unsafe fn address(&self, memory: &SlotMemory) -> *mut u8 {
        match *memory {
            SlotMemory::Frame(at) => self.frame.wrapping_add(at),
            SlotMemory::Pointer { pointer, displacement } => {
                // SAFETY: the frame has a pointer there, by the caller's promise.
                let base = unsafe { self.frame.add(pointer).cast::<*mut u8>().read() };
                base.wrapping_add(displacement)
            }
        }
    }

    /// # Safety
    /// As for [`LoopContext::address`]; arrays have the sizes of the program's buffer plan.
    unsafe fn call(&self, call: &JitLoopCall) -> Result<()> {
        match call {
            JitLoopCall::Interrupted => check_interrupt(),
            JitLoopCall::Copy { from, to, bytes } => {
                // SAFETY: both arrays have these bytes, and different arrays do not overlap.
                unsafe {
                    let (from, to) = (self.address(from).cast_const(), self.address(to));
                    if !std::ptr::eq(from, to) {
                        std::ptr::copy_nonoverlapping(from, to, *bytes);
                    }
                }
                Ok(())
            }
            JitLoopCall::Kernel { program, step, inputs, outputs, scratch } => {
                // SAFETY: guaranteed by the caller.
                let (inputs, outputs, scratch) = unsafe {
                    let inputs: SmallVec<[*const u8; 8]> =
                        inputs.iter().map(|m| self.address(m).cast_const()).collect();
                    let outputs: SmallVec<[*mut u8; 4]> = outputs.iter().map(|m| self.address(m)).collect();
                    (inputs, outputs, self.address(scratch))
                };
                let io = Io { inputs: &inputs, outputs: &outputs, scratch };
                // SAFETY: the operands have the step's types; each small array has memory of its own, and the others
                // are where the buffer plan puts them.
                unsafe { program.run_step(self.cx, *step, &io) }
            }
        }
    }
}

/// Runs a call; returns 0 if it succeeds. A panic is kept for after the code, which it cannot unwind.
unsafe extern "C" fn run_call(context: *mut c_void, number: usize) -> u32 {
    // SAFETY: the code passes the context that `JitLoopFunction::run` gave it, which no one else uses meanwhile.
    let context = unsafe { &mut *context.cast::<LoopContext<'_>>() };
    let function = context.function;
    // SAFETY: the code sets pointers before the calls that use them.
    let call = AssertUnwindSafe(|| unsafe { context.call(&function.calls[number]) });
    match catch_unwind(call) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => context.error = Some(error),
        Err(panic) => context.panic = Some(panic),
    }
    1
}

impl JitLoopFunction {
    /// Compiles a lowered loop; `None` if it is too large or the system does not allow machine code.
    pub fn new(mut lowering: LoopLowering) -> Option<JitLoopFunction> {
        lowering.code.remove_unused();
        let function = ScalarFunction::new(&lowering.code, run_call)?;
        let constants = lowering.code.constants.iter().map(|(&bits, &at)| (at, bits)).collect();
        let (calls, pointers) = (lowering.calls, lowering.pointers);
        Some(JitLoopFunction { function, calls, constants, pointers, enter: Vec::new(), leave: Vec::new() })
    }

    /// Returns the bytes of the frame.
    pub fn frame_bytes(&self) -> usize {
        self.function.frame
    }

    /// Runs the loop. Large states have their initial values in the outputs.
    ///
    /// # Safety
    /// As for [`crate::kernel::Kernel::run`] of the loop; `frame` has [`JitLoopFunction::frame_bytes`] bytes.
    pub unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>, frame: *mut u8) -> Result<()> {
        for (at, source) in &self.pointers {
            let pointer = match source {
                PointerSource::Input(k) => io.inputs[*k].cast_mut(),
                PointerSource::Output(k) => io.outputs[*k],
                PointerSource::Scratch => io.scratch,
                PointerSource::Frame => frame,
                PointerSource::Constant(program, constant) => {
                    program.schedule().constants[*constant].bytes().as_ptr().cast_mut()
                }
                PointerSource::InterruptCount => InterruptMark::count().cast_mut().cast(),
                PointerSource::KnownInterrupts => InterruptMark::of_run().number() as usize as *mut u8,
            };
            // SAFETY: the lowering reserved 8 bytes of the frame there.
            unsafe { frame.add(*at).cast::<*mut u8>().write(pointer) };
        }
        for &(at, bits) in &self.constants {
            // SAFETY: the lowering reserved 16 bytes of the frame there.
            unsafe { frame.add(at).cast::<[u64; 2]>().write([bits; 2]) };
        }
        for &(input, at, bytes) in &self.enter {
            // SAFETY: the input has these bytes, which the lowering reserved in the frame.
            unsafe { std::ptr::copy_nonoverlapping(io.inputs[input], frame.add(at), bytes) };
        }
        let mut context = LoopContext { function: self, cx, frame, error: None, panic: None };
        // SAFETY: the kernel is selected for machines with AVX2 and FMA only; the frame was filled above.
        unsafe { self.function.run(frame, (&raw mut context).cast()) };
        if let Some(panic) = context.panic {
            resume_unwind(panic);
        }
        if let Some(error) = context.error {
            return Err(error);
        }
        for &(output, at, bytes) in &self.leave {
            // SAFETY: as above, for the outputs.
            unsafe { std::ptr::copy_nonoverlapping(frame.add(at).cast_const(), io.outputs[output], bytes) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::thread_pool::ThreadPool;
    use crate::simd::jit;
    use crate::simd::jit::scalar_code::ScalarItem;
    use crate::simd::level::Level;

    #[test]
    fn a_panic_in_a_call_passes_through_the_code() {
        if !jit::has_scalar_code() || !Level::Avx2.is_available() {
            return;
        }
        let mut lowering = LoopLowering::new(Level::Avx2);
        lowering.code.items.push(ScalarItem::Call(3));
        let function = JitLoopFunction::new(lowering).expect("the system allows machine code");
        let team = ThreadPool::new(1);
        let (cx, mut frame) = (KernelContext { team: &team, flush: false }, [0u8; 64]);
        let io = Io { inputs: &[], outputs: &[], scratch: std::ptr::null_mut() };
        assert!(function.frame_bytes() <= frame.len());
        // SAFETY: the code only calls, without arrays, and the frame is large enough.
        let ran = catch_unwind(AssertUnwindSafe(|| unsafe { function.run(&cx, &io, frame.as_mut_ptr()) }));
        assert!(ran.is_err(), "there is no call of this number");
    }
}
