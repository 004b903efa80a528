//! What the generators share: block sizes, and the types of a draw.

use systole_ir::TensorType;

/// Counters per block of the parallel loop.
pub const BLOCK: usize = 1 << 12;
/// Counters per call of the vector loop whose words go to a stack buffer, to be narrowed or permuted from there.
pub const BUFFER: usize = 256;

/// Types of the generator's state and of the random bits.
pub struct Draw<'a> {
    pub state: &'a TensorType,
    pub bits: &'a TensorType,
}
