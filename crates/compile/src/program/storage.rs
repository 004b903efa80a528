//! Where arrays lie: slots, their lifetimes and their places in memory.

use systole_ir::{Error, ErrorKind, Result, TensorType};

/// Alignment of arrays in the arena: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// Index into `Schedule::slots`.
pub type Slot = usize;

/// Storage of one array.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Size.
    pub bytes: usize,
    /// Where it lies.
    pub place: Location,
    /// The step that writes it (0 for parameters and constants).
    pub first: usize,
    /// The last step that reads it.
    pub last: usize,
}

/// Where an array lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// The caller's argument.
    Param(usize),
    /// `Schedule::constants`.
    Constant(usize),
    /// At this byte of the arena. Slots whose lifetimes do not overlap share bytes; an element-wise step may write
    /// over an operand that it is the last to read.
    Arena(usize),
    /// The memory of a result.
    Result(usize),
    /// Inside another array; see `Schedule::views`.
    View(usize),
}

/// One result.
#[derive(Clone, Debug)]
pub struct ResultPlan {
    /// Its type.
    pub ty: TensorType,
    /// The slot that holds it: its own, another result's, a parameter's or a constant's.
    pub slot: Slot,
    /// A donated parameter of the same size into whose memory it may be written.
    pub reuse: Option<usize>,
}

/// Where an array lies that is a contiguous part of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// The other array's.
    pub of: Slot,
    /// The step that slices it, whose indices say where. It moves nothing.
    pub by: usize,
}

/// Bytes of an array; an error where they overflow.
pub fn array_bytes(ty: &TensorType) -> Result<usize> {
    ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size())).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("an array of type {ty} does not fit an address space"))
            .hint("use smaller shapes")
    })
}
