//! Storage of arrays: slots, their live ranges and their memory locations.

use systole_ir::{Result, TensorType, err};

/// Alignment of arrays in the arena in bytes: a cache line, and the widest vector (512 bits).
pub const ALIGN: usize = 64;

/// Index into `ProgramSchedule::slots`.
pub type SlotId = usize;

/// Storage of one array of a program.
#[derive(Clone, Debug)]
pub struct SlotStorage {
    /// Size in bytes.
    pub bytes: usize,
    /// Memory location.
    pub place: Location,
    /// Start of the live range: the step that writes it; 0 for parameters and constants.
    pub first: usize,
    /// End of the live range: the last step that reads it; the number of steps for results.
    pub last: usize,
}

/// Memory location of an array: arena, parameter, constant or result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// The caller's argument with this index.
    Param(usize),
    /// An entry of `ProgramSchedule::constants`.
    Constant(usize),
    /// Byte offset in the arena. Slots share bytes if their live ranges do not overlap, or if a step writes one over an
    /// operand that it is the last to read (see `Step::overwrites`).
    Arena(usize),
    /// The memory of the result with this index, also for the arrays that steps overwrite with it.
    Result(usize),
    /// A part of another array: an entry of `ProgramSchedule::views`.
    View(usize),
}

/// Type and memory location of a program's result.
#[derive(Clone, Debug)]
pub struct ResultPlan {
    /// Type of the result.
    pub ty: TensorType,
    /// The slot that holds it: its own, another result's, a parameter's or a constant's.
    pub slot: SlotId,
    /// A donated parameter of the same size whose memory the result may reuse.
    pub reuse: Option<usize>,
}

/// An array that aliases a contiguous part of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotView {
    /// Slot of the other array.
    pub of: SlotId,
    /// The `dynamic_slice` step whose indices give the offset at run time. It copies nothing.
    pub by: usize,
}

/// Bytes of an array; an error if they overflow `usize`.
pub fn array_bytes(ty: &TensorType) -> Result<usize> {
    ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size())).ok_or_else(|| {
        err!(Unsupported, "an array of type {ty} exceeds the address space").hint("use smaller shapes")
    })
}
