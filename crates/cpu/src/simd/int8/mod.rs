//! Products of bytes with sums of 32 bits, and what becomes of the sums: vectors and plain loops. Products on tile registers,
//! which end in the same way, are in `simd::amx::bytes`.
//!
//! A call computes up to [`ROWS`] rows by a panel of [`COLUMNS`] columns. Along K operands are cut into words of 32 bits: four
//! bytes, or two integers of 16 bits where there is no instruction for bytes ([`Int8WeightLayout`]). Panels hold a word of all their
//! columns, then the next. All sums wrap around at 32 bits, so their order does not matter.

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

/// Columns of a panel.
pub const COLUMNS: usize = 32;
/// Rows of a call, at most.
pub const ROWS: usize = 32;
/// Bytes of a step along K.
pub const STEP: usize = 64;
/// Words of a step.
pub const WORDS: usize = STEP / 4;

/// How operands are stored for an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Int8WeightLayout {
    /// Both are signed bytes.
    Signed,
    /// Signed bytes by weights that are 128 more, as unsigned bytes: −128 · (the sum of a row) belongs to its sums.
    Above,
    /// Integers of 16 bits.
    Pairs,
}
