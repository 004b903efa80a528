//! Calls from a loop's code, and where their arrays are.
#![forbid(unsafe_code)]

use crate::run::executor::Executor;
use crate::simd::jit::scalar_code::FrameOffset;
use smallvec::SmallVec;
use std::sync::Arc;

/// Memory of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotMemory {
    /// In the frame.
    Frame(FrameOffset),
    /// `displacement` bytes after the pointer at `pointer` in the frame.
    Pointer { pointer: FrameOffset, displacement: usize },
}

/// What a pointer in the frame points to.
pub enum PointerSource {
    /// An input of the loop.
    Input(usize),
    /// An output of the loop.
    Output(usize),
    Scratch,
    Frame,
    /// A constant of a program.
    Constant(Arc<Executor>, usize),
    InterruptCount,
    /// The number of interrupts itself, before the loop.
    KnownInterrupts,
}

impl PointerSource {
    /// Whether both are the same pointer.
    pub fn is_same(&self, other: &PointerSource) -> bool {
        match (self, other) {
            (PointerSource::Input(a), PointerSource::Input(b)) => a == b,
            (PointerSource::Output(a), PointerSource::Output(b)) => a == b,
            (PointerSource::Constant(p, a), PointerSource::Constant(q, b)) => Arc::ptr_eq(p, q) && a == b,
            (PointerSource::Constant(..), _) | (_, PointerSource::Constant(..)) => false,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// A call from the code.
pub enum JitLoopCall {
    /// The kernel of a step.
    Kernel {
        program: Arc<Executor>,
        step: usize,
        inputs: SmallVec<[SlotMemory; 4]>,
        outputs: SmallVec<[SlotMemory; 2]>,
        scratch: SlotMemory,
    },
    Copy {
        from: SlotMemory,
        to: SlotMemory,
        bytes: usize,
    },
    /// An interrupt was noted since the loop began.
    Interrupted,
}
