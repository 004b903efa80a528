//! A block of int32 sums, up to [`ROWS`] rows by one panel of columns, and how its results are stored.

use crate::simd::int8::i32x16::I32x16;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::{COLUMNS, ROWS};
use std::mem::MaybeUninit;

/// Up to [`ROWS`] rows by one panel.
pub struct AccumulatorBlock<'a> {
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
    pub ends: &'a RequantizeParams,
    pub first: usize,
    pub columns: usize,
    pub rows: usize,
    /// Where the first column of all of each row goes; null: the row goes nowhere.
    pub to: &'a [*mut i8; ROWS],
}

/// A buffer of sums.
#[repr(align(64))]
pub struct SumsBuffer(MaybeUninit<[i32; ROWS * COLUMNS]>);

impl SumsBuffer {
    /// One whose contents are whatever was there.
    #[inline(always)]
    pub fn new() -> SumsBuffer {
        SumsBuffer(MaybeUninit::uninit())
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

/// Stores the results of rows `from` to `to` of a block, whose sums are complete.
///
/// # Safety
/// The block's columns and rows are those of its ends and addresses.
#[inline(always)]
pub unsafe fn finish<L: I32x16>(block: &AccumulatorBlock<'_>, sums: &SumsBuffer, from: usize, to: usize) {
    let to = to.min(block.rows);
    if block.columns == COLUMNS {
        // SAFETY: by the caller's promise.
        unsafe { finish_whole::<L>(block, sums, from, to) };
        return;
    }
    for at in (0..block.columns).step_by(16) {
        // SAFETY: by the caller's promise.
        unsafe {
            let ends = block.ends.sixteen::<L>(block.first + at);
            for row in from..to {
                let y = block.to[row];
                if !y.is_null() {
                    let x = L::load(sums.row(row).add(at));
                    ends.of(x).narrow(y.add(block.first + at), block.columns - at);
                }
            }
        }
    }
}

/// As [`finish`], of all columns of a panel.
#[inline(always)]
unsafe fn finish_whole<L: I32x16>(block: &AccumulatorBlock<'_>, sums: &SumsBuffer, from: usize, to: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        // No closures: code that is not inlined into a function with target features lacks them.
        let left = block.ends.sixteen::<L>(block.first);
        let right = block.ends.sixteen::<L>(block.first + 16);
        let (low, high) = (block.ends.low as i8, block.ends.high as i8);
        for row in from..to {
            let y = block.to[row];
            if !y.is_null() {
                let x = sums.row(row);
                let (one, two) = (left.unbounded(L::load(x)), right.unbounded(L::load(x.add(16))));
                L::narrow_two(one, two, low, high, y.add(block.first));
            }
        }
    }
}
