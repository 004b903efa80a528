//! What is drawn, and how many counters at a time, by whatever algorithm.

use systole_ir::TensorType;

/// Counters of one block of the parallel loop.
pub const BLOCK: usize = 1 << 12;
/// Counters that are drawn into a buffer before their words are put in place.
pub const BUFFER: usize = 256;

/// Types of a draw: the generator's state, and the bits.
pub struct Draw<'a> {
    pub state: &'a TensorType,
    pub bits: &'a TensorType,
}
