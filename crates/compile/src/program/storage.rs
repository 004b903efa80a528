//! Storage of arrays: slots, their live ranges and their locations in memory.

use systole_ir::{Error, ErrorKind, Result, TensorType};

/// Alignment of arrays in the arena in bytes: a cache line, and the widest vector (512 bits).
pub const ALIGN: usize = 64;

/// Index into `Schedule::slots`.
pub type SlotId = usize;

/// Storage of one array.
#[derive(Clone, Debug)]
pub struct SlotStorage {
    /// Size.
    pub bytes: usize,
    /// Its memory.
    pub place: Location,
    /// Start of the live range: the step that writes it; 0 for parameters and constants.
    pub first: usize,
    /// End of the live range: the last step that reads it; the number of steps for results.
    pub last: usize,
}

/// The memory of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// The caller's argument of this index.
    Param(usize),
    /// An entry of `Schedule::constants`.
    Constant(usize),
    /// This byte offset of the arena. Slots share bytes if their live ranges do not overlap, or if a step writes one in
    /// place of an operand that it is the last to read (see `Step::overwrites`).
    Arena(usize),
    /// The memory of the result of this index.
    Result(usize),
    /// A part of another array: an entry of `Schedule::views`.
    View(usize),
}

/// One result.
#[derive(Clone, Debug)]
pub struct ResultPlan {
    /// Its type.
    pub ty: TensorType,
    /// The slot that holds it: its own, another result's, a parameter's or a constant's.
    pub slot: SlotId,
    /// A donated parameter of the same size whose memory the result may take.
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

/// Bytes of an array; an error where they overflow `usize`.
pub fn array_bytes(ty: &TensorType) -> Result<usize> {
    ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size())).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("an array of type {ty} does not fit an address space"))
            .hint("use smaller shapes")
    })
}
