//! Int8 GEMM, depthwise and pooling kernels on vectors, and requantization of their int32 accumulators.
//!
//! AMX kernels with the same requantization are in `simd::amx::int8`.
//!
//! A call computes up to [`ROWS`] rows by a panel of [`COLUMNS`] columns. Along K operands are split into 32-bit words:
//! four int8, or two int16 if there is no int8 dot product ([`Int8WeightLayout`]). A panel stores one word of all its
//! columns, then the next word. Accumulators wrap around at 32 bits, so their order does not matter.

pub mod accumulator_block;
pub mod add_sub;
pub mod binary_formula;
pub mod depthwise;
pub mod dots;
pub mod i32x16;
pub mod requantize;
pub mod requantize_f32;
pub mod requantize_ref;
pub mod windows;

/// Columns per panel of packed int8 weights.
pub const COLUMNS: usize = 32;
/// Maximum rows per call of an int8 kernel.
pub const ROWS: usize = 32;
/// Bytes per K step of an int8 kernel.
pub const STEP: usize = 64;
/// 32-bit words per K step of an int8 kernel.
pub const WORDS: usize = STEP / 4;

/// Operand layout of a dot-product instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Int8WeightLayout {
    /// Both operands are int8.
    Signed,
    /// Int8 by uint8 weights (`w + 128`): `−128 ·` (sum of the row) is added to the accumulators.
    Above,
    /// Both operands are int16.
    Pairs,
}
