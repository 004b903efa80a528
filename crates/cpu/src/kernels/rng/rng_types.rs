//! Block sizes and operand types shared by the random number generators (Philox, Threefry).

use systole_ir::TensorType;

/// Counters per block of the parallel loop.
pub const BLOCK: usize = 1 << 12;
/// Counters per call of the vector loop whose words go to a stack buffer, where they are narrowed or permuted.
pub const BUFFER: usize = 256;

/// Types of the generator's state and of the random bits.
pub struct Draw<'a> {
    pub state: &'a TensorType,
    pub bits: &'a TensorType,
}
