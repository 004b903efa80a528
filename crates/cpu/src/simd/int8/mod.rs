//! Products of bytes with sums of 32 bits, and what becomes of the sums: vectors and plain loops. Products on tile registers,
//! which end in the same way, are in `simd::amx::bytes`.
//!
//! A call computes up to [`ROWS`] rows by a panel of [`COLUMNS`] columns. Along K operands are cut into words of 32 bits: four
//! bytes, or two integers of 16 bits where there is no instruction for bytes ([`Form`]). Panels hold a word of all their
//! columns, then the next. All sums wrap around at 32 bits, so their order does not matter.

pub mod depthwise;
pub mod dots;
pub mod ends;
pub mod lanes;
pub mod near;
pub mod pairs;
pub mod scaled;
pub mod sums;
pub mod windows;

use ends::Ends;
use std::mem::MaybeUninit;

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

/// Up to [`ROWS`] rows by one panel.
pub struct Block<'a> {
    /// The first row, and bytes from one to the next. Multiples of 16 rows can be read, each to the end of its steps.
    pub a: *const u8,
    pub a_row: usize,
    /// Where each step of a row begins.
    pub steps: &'a [usize],
    /// Words along K that count; at most those of the steps.
    pub words: usize,
    /// The panel: all words of the steps.
    pub b: *const u8,
    /// What is added to the sums of each row; it has [`ROWS`].
    pub corrections: *const i32,
    /// What becomes of the sums, and the panel's first column.
    pub ends: &'a Ends,
    pub first: usize,
    pub columns: usize,
    pub rows: usize,
    /// Where the first column of all of each row goes; null: the row goes nowhere.
    pub to: &'a [*mut i8; ROWS],
}

/// A buffer of sums.
#[repr(align(64))]
pub struct Sums(MaybeUninit<[i32; ROWS * COLUMNS]>);

impl Sums {
    /// One whose contents are whatever was there.
    #[inline(always)]
    pub fn new() -> Sums {
        Sums(MaybeUninit::uninit())
    }

    #[inline(always)]
    pub fn row(&self, row: usize) -> *const i32 {
        self.0.as_ptr().cast::<i32>().wrapping_add(row * COLUMNS)
    }

    #[inline(always)]
    pub fn row_mut(&mut self, row: usize) -> *mut i32 {
        self.0.as_mut_ptr().cast::<i32>().wrapping_add(row * COLUMNS)
    }
}
