//! Arrays of one call of a convolution by strips, and conversion of f32 accumulators to narrow results.

use crate::kernel::{Io, Ptr};
use crate::kernels::conv::staging::put;
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{narrow, widen};
use crate::simd::narrow_bias::sum_rounding;
use systole_ir::{DType, TensorType};

/// Accumulators that one call rounds and stores: they stay in L1.
const TOGETHER: usize = 1024;

/// Reason why a layer's convolution kernel rejects a convolution: groups, or arrays that are not channels-last.
pub const NO_LAYER: &str = "it has groups, or its arrays are not channels-last";
/// Reason why a filter-gradient kernel rejects a convolution.
pub const NO_GRADIENT: &str =
    "not the kernel gradient of a convolution with one group as autodiff creates it";

/// Whether K steps are pairs of bf16 channels (VDPBF16PS): both operands are bf16 and the channel count is even.
pub fn is_paired(level: Level, x: &TensorType, k: &TensorType) -> bool {
    let channels = x.shape[x.rank() - 1];
    level == Level::Avx512Bf16 && [x.dtype, k.dtype] == [DType::BF16; 2] && channels.is_multiple_of(2)
}

/// Conversion of f32 accumulators to results: rounding to the result type, and a bias of that type.
pub struct ResultConversion {
    /// Bytes of a result element.
    pub element: usize,
    /// Rounds f32 to the result type. `None`: results are f32.
    pub narrow: Option<TileFn>,
    /// For narrow results with a bias: rounds, adds the bias and rounds again, as two ops would.
    round: Option<TileFn>,
    /// Widens results to f32. `None`: results are f32.
    pub widen: Option<TileFn>,
}

impl ResultConversion {
    /// Creates the conversion to results of type `y`; `bias`: whether a bias is added.
    pub fn new(bias: bool, y: &TensorType, level: Level) -> ResultConversion {
        ResultConversion {
            element: y.dtype.size(),
            narrow: narrow(y.dtype, level),
            round: sum_rounding(y.dtype, true, level).filter(|_| bias),
            widen: widen(y.dtype, level),
        }
    }

    /// Whether a bias, if there is one, is added to the accumulators before any rounding.
    pub fn adds_bias_to_sums(&self) -> bool {
        self.round.is_none()
    }

    /// Rounds rows of `width` accumulators at the offsets `from` and stores them at the offsets `to` of `y`. With
    /// `reread` the accumulators are then replaced by the rounded values, so that statistics are those of the stored
    /// values.
    ///
    /// # Safety
    /// Results are narrower than f32. There is a row at each offset, offsets ascend and rows do not overlap, and `bias`
    /// has `width` elements if there is a bias.
    pub unsafe fn put(
        &self,
        (sums, from): (*mut f32, &[usize]),
        bias: *const f32,
        (y, to): (*mut u8, &[usize]),
        width: usize,
        reread: bool,
    ) {
        // Rows that are contiguous on both sides take one call of each loop.
        let most = (TOGETHER / width.max(1)).max(1);
        let mut p = 0;
        while p < from.len() {
            let last = (p + most).min(from.len()) - 1;
            let dense = |at: &[usize]| at[last] - at[p] == (last - p) * width;
            let rows = if dense(from) && dense(to) { last + 1 - p } else { 1 };
            // SAFETY: by the caller's promise, for rows that follow each other without a gap.
            unsafe {
                let y = y.add(to[p] * self.element);
                self.put_rows(sums.add(from[p]), bias, y, [rows, width], reread);
            }
            p += rows;
        }
    }

    unsafe fn put_rows(
        &self,
        sums: *mut f32,
        bias: *const f32,
        y: *mut u8,
        [rows, width]: [usize; 2],
        reread: bool,
    ) {
        let (row, n) = (sums.cast::<u8>(), rows * width);
        // SAFETY: by the caller's promise all arrays have `n` elements, of the types that the loops were created for.
        unsafe {
            if let Some(round) = self.round {
                round(row, row, bias.cast(), (&raw const width).cast(), rows);
            }
            if let Some(narrow) = self.narrow {
                narrow(y, row, row, row, n);
            }
            if let (Some(widen), true) = (self.widen, reread) {
                widen(row, y, y, y, n);
            }
        }
    }
}

/// Arrays of one call of a kernel by strips: operands, the packed filter, results, and partial statistics.
pub struct StripArrays {
    pub x: Ptr,
    pub kernel: Ptr,
    pub bias: Ptr,
    pub y: Ptr,
    /// Second result, if there is one: the argmax of each window if the result is max-pooled.
    pub second: Option<Ptr>,
    pub statistics: Ptr,
}

impl StripArrays {
    /// Divides the scratch memory into packed filter (`packed` bytes), bias and statistics, and widens the bias to f32.
    /// `bias`: the loop that widens it, and its elements.
    ///
    /// # Safety
    /// Scratch has these parts, and there is a third input if `bias` is set.
    pub unsafe fn new(
        io: &Io<'_>,
        kept: *const u8,
        [packed, bias_bytes]: [usize; 2],
        bias: Option<(Option<TileFn>, usize)>,
    ) -> StripArrays {
        let to = Ptr(io.scratch.wrapping_add(packed));
        if let Some((widen, features)) = bias {
            // SAFETY: by the caller's promise the third input is the bias, and scratch has room for it in f32.
            unsafe { put(widen, io.inputs[2], to.elem(0), features) };
        }
        StripArrays {
            x: Ptr::of(io.inputs[0]),
            kernel: Ptr::of(kept),
            bias: to,
            y: Ptr(io.outputs[0]),
            second: io.outputs.get(1).map(|&p| Ptr(p)),
            statistics: Ptr(to.at(bias_bytes)),
        }
    }
}
