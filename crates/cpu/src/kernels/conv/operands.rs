//! The arrays of one call, and how narrow operands and results are taken.

use crate::kernel::{Io, Ptr};
use crate::kernels::conv::staging::put;
use crate::simd::level::{Level, TileFn};
use crate::simd::narrow_bias::NarrowBias;
use systole_ir::{DType, TensorType};

/// What rounds sums of narrow results to which a bias is added after rounding, and rounds again: see [`NarrowBias`].
pub fn bias_rounding(bias: bool, y: &TensorType, level: Level) -> Option<TileFn> {
    (bias && y.dtype == DType::BF16).then(|| level.tile::<NarrowBias<true>>())
}

/// Whether products run along pairs of channels of bf16.
pub fn is_paired(level: Level, x: &TensorType, k: &TensorType) -> bool {
    let channels = x.shape[x.rank() - 1];
    level == Level::Avx512Bf16 && [x.dtype, k.dtype] == [DType::BF16; 2] && channels.is_multiple_of(2)
}

/// Arrays of one call of a kernel that works strip by strip: operands, the kernel packed, the result, and what each strip
/// leaves for statistics.
pub struct Arrays {
    pub x: Ptr,
    pub kernel: Ptr,
    pub bias: Ptr,
    pub y: Ptr,
    pub moments: Ptr,
}

impl Arrays {
    /// Working memory has the packed kernel, of so many bytes, the bias as f32 in whole vectors, and statistics. The bias
    /// is widened: by what, and how many features it has.
    ///
    /// # Safety
    /// Working memory has those parts, and a third operand is there where `bias` is.
    pub unsafe fn new(
        io: &Io<'_>,
        kept: *const u8,
        [packed, bias_bytes]: [usize; 2],
        bias: Option<(Option<TileFn>, usize)>,
    ) -> Arrays {
        let to = Ptr(io.scratch.wrapping_add(packed));
        if let Some((widen, features)) = bias {
            // SAFETY: by the caller's promise.
            unsafe { put(widen, io.inputs[2], to.elem(0), features) };
        }
        Arrays {
            x: Ptr::of(io.inputs[0]),
            kernel: Ptr::of(kept),
            bias: to,
            y: Ptr(io.outputs[0]),
            moments: Ptr(to.at(bias_bytes)),
        }
    }
}
