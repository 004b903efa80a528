//! The arrays of one call, and how narrow operands and results are taken.

use crate::kernel::{Io, Ptr};
use crate::kernels::conv::staging::put;
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{narrow, widen};
use crate::simd::narrow_bias::NarrowBias;
use systole_ir::{DType, TensorType};

/// Why kernels of layers refuse a convolution.
pub const NO_LAYER: &str = "it has groups, or its arrays are not channels-last";
/// Why kernels of layers' gradients refuse a convolution.
pub const NO_GRADIENT: &str = "it is not the gradient of a kernel of one group as autodiff makes it";

/// Whether products run along pairs of channels of bf16.
pub fn is_paired(level: Level, x: &TensorType, k: &TensorType) -> bool {
    let channels = x.shape[x.rank() - 1];
    level == Level::Avx512Bf16 && [x.dtype, k.dtype] == [DType::BF16; 2] && channels.is_multiple_of(2)
}

/// How sums in f32 become results, and a bias of the results' type comes to them.
pub struct Stored {
    /// Bytes of a result.
    pub element: usize,
    /// Rounds sums, where results are narrow.
    pub narrow: Option<TileFn>,
    /// Rounds sums, adds a bias and rounds again, as two ops would: see [`NarrowBias`].
    round: Option<TileFn>,
    /// Makes f32 of what is stored.
    pub widen: Option<TileFn>,
}

impl Stored {
    /// For results of type `y`, perhaps with a bias.
    pub fn new(bias: bool, y: &TensorType, level: Level) -> Stored {
        Stored {
            element: y.dtype.size(),
            narrow: narrow(y.dtype, level),
            round: (bias && y.dtype == DType::BF16).then(|| level.tile::<NarrowBias<true>>()),
            widen: widen(y.dtype, level),
        }
    }

    /// Whether a bias, where there is one, is added to sums as they are: they are not rounded before.
    pub fn adds_bias_to_sums(&self) -> bool {
        self.round.is_none()
    }

    /// Stores `n` sums as narrow results; `reread`: leaves in the place of the sums what was stored.
    ///
    /// # Safety
    /// Results are narrow. There are as many sums and results, and of a bias that is added.
    pub unsafe fn put(&self, sums: *mut f32, bias: *const f32, y: *mut u8, n: usize, reread: bool) {
        let row = sums.cast::<u8>();
        // SAFETY: by the caller's promise.
        unsafe {
            if let Some(round) = self.round {
                round(row, row, bias.cast(), (&raw const n).cast(), 1);
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

/// Arrays of one call of a kernel that works strip by strip: operands, the kernel packed, the results, and what each strip
/// leaves for statistics.
pub struct Arrays {
    pub x: Ptr,
    pub kernel: Ptr,
    pub bias: Ptr,
    pub y: Ptr,
    /// A second result: which element of each window is the greatest, where the result is pooled.
    pub second: Option<Ptr>,
    pub statistics: Ptr,
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
            second: io.outputs.get(1).map(|&p| Ptr(p)),
            statistics: Ptr(to.at(bias_bytes)),
        }
    }
}
