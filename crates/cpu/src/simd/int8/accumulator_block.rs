//! Int32 accumulator block of up to [`ROWS`] rows by one panel of columns, stored as it is or requantized.

use crate::simd::int8::i32x16::I32x16;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::{COLUMNS, ROWS};
use std::mem::MaybeUninit;

/// Operands and result addresses of one block: up to [`ROWS`] rows by one panel.
pub struct AccumulatorBlock<'a> {
    /// Pointer to the first row, and bytes between rows. Multiples of 16 rows are readable, each to the end of its K
    /// steps.
    pub a: *const u8,
    pub a_row: usize,
    /// Offset of each K step in a row.
    pub steps: &'a [usize],
    /// Number of words along K that hold data; at most the words of all steps.
    pub words: usize,
    /// The panel, with all words of the K steps.
    pub b: *const u8,
    /// Values added to the accumulators of each row; [`ROWS`] elements.
    pub corrections: *const i32,
    /// Initial accumulators of the panel's columns; [`COLUMNS`] elements.
    pub bias: *const i32,
    /// Requantization parameters; `None` stores the accumulators.
    pub ends: Option<&'a RequantizeParams>,
    /// First column of the panel, in the parameters and in the result.
    pub first: usize,
    pub columns: usize,
    pub rows: usize,
    /// Result address of column 0 of each row; null if the row is discarded. Accumulators are int32 there, with room for
    /// all columns of a panel.
    pub to: &'a [*mut i8; ROWS],
}

/// Buffer of the int32 accumulators of one block.
#[repr(align(64))]
pub struct SumsBuffer(MaybeUninit<[i32; ROWS * COLUMNS]>);

impl SumsBuffer {
    /// Creates an uninitialized accumulator buffer.
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

/// Requantizes and stores rows `from` to `to` of a block with complete accumulators.
///
/// # Safety
/// The block's columns and rows are inside its requantization parameters and result addresses.
#[inline(always)]
pub unsafe fn finish<L: I32x16>(block: &AccumulatorBlock<'_>, sums: &SumsBuffer, from: usize, to: usize) {
    let to = to.min(block.rows);
    let Some(params) = block.ends else {
        // SAFETY: guaranteed by the caller.
        unsafe { store_sums::<L>(block, sums, from, to) };
        return;
    };
    if block.columns == COLUMNS {
        // SAFETY: guaranteed by the caller.
        unsafe { finish_whole::<L>(block, params, sums, from, to) };
        return;
    }
    for at in (0..block.columns).step_by(16) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let ends = params.sixteen::<L>(block.first + at);
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

/// Like [`finish`], for all columns of a panel.
#[inline(always)]
unsafe fn finish_whole<L: I32x16>(
    block: &AccumulatorBlock<'_>,
    params: &RequantizeParams,
    sums: &SumsBuffer,
    from: usize,
    to: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // No closures: code that is not inlined into a function with target features loses those features.
        let left = params.sixteen::<L>(block.first);
        let right = params.sixteen::<L>(block.first + 16);
        let (low, high) = (params.low as i8, params.high as i8);
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

/// Stores accumulators without requantization.
#[inline(always)]
unsafe fn store_sums<L: I32x16>(block: &AccumulatorBlock<'_>, sums: &SumsBuffer, from: usize, to: usize) {
    for row in from..to {
        let y = block.to[row];
        if !y.is_null() {
            let (x, y) = (sums.row(row), y.cast::<i32>().wrapping_add(block.first));
            // SAFETY: guaranteed by the caller.
            unsafe {
                L::load(x).store(y);
                if block.columns > 16 {
                    L::load(x.add(16)).store(y.add(16));
                }
            }
        }
    }
}
