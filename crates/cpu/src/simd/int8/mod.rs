//! Products of bytes with sums of 32 bits, and what becomes of the sums: vectors and plain loops. Products on tile registers,
//! which end in the same way, are in `simd::amx::bytes`.
//!
//! A call computes up to [`ROWS`] rows by a panel of [`COLUMNS`] columns. Along K operands are cut into words of 32 bits: four
//! bytes, or two integers of 16 bits where there is no instruction for bytes ([`Form`]). Panels hold a word of all their
//! columns, then the next. All sums wrap around at 32 bits, so their order does not matter.

pub mod block;
pub mod depthwise;
pub mod dots;
pub mod ends;
pub mod lanes;
pub mod near;
pub mod pairs;
pub mod scaled;
pub mod sums;
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
pub enum Form {
    /// Both are signed bytes.
    Signed,
    /// Signed bytes by weights that are 128 more, as unsigned bytes: −128 · (the sum of a row) belongs to its sums.
    Above,
    /// Integers of 16 bits.
    Pairs,
}
