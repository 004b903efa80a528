//! The arrays of one call, and how f32 accumulators become narrow results.

use crate::kernel::{Io, Ptr};
use crate::kernels::conv::staging::put;
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{narrow, widen};
use crate::simd::narrow_bias::NarrowBias;
use systole_ir::{DType, TensorType};

/// Refusal by kernels of layers.
pub const NO_LAYER: &str = "it has groups, or its arrays are not channels-last";
/// Refusal by kernels of gradients w.r.t. the filter.
pub const NO_GRADIENT: &str = "it is not the gradient of a kernel of one group as autodiff makes it";

/// Whether K steps are pairs of bf16 channels (VDPBF16PS): both operands are bf16 and the channel count is even.
pub fn is_paired(level: Level, x: &TensorType, k: &TensorType) -> bool {
    let channels = x.shape[x.rank() - 1];
    level == Level::Avx512Bf16 && [x.dtype, k.dtype] == [DType::BF16; 2] && channels.is_multiple_of(2)
}

/// How f32 accumulators become results: rounding to the result type, and a bias of that type.
pub struct Stored {
    /// Bytes of a result element.
    pub element: usize,
    /// Rounds f32 to the result type. `None`: results are f32.
    pub narrow: Option<TileFn>,
    /// For bf16 results with a bias: rounds, adds the bias and rounds again, as two ops would. See [`NarrowBias`].
    round: Option<TileFn>,
    /// Widens results to f32. `None`: results are f32.
    pub widen: Option<TileFn>,
}

impl Stored {
    /// For results of type `y`; `bias`: whether one is added.
    pub fn new(bias: bool, y: &TensorType, level: Level) -> Stored {
        Stored {
            element: y.dtype.size(),
            narrow: narrow(y.dtype, level),
            round: (bias && y.dtype == DType::BF16).then(|| level.tile::<NarrowBias<true>>()),
            widen: widen(y.dtype, level),
        }
    }

    /// Whether a bias, if there is one, is added to the accumulators before any rounding.
    pub fn adds_bias_to_sums(&self) -> bool {
        self.round.is_none()
    }

    /// Rounds `n` accumulators and stores them at `y`. With `reread` the accumulators are then replaced by the
    /// rounded values, so that statistics are those of what was stored.
    ///
    /// # Safety
    /// Results are narrower than f32. `sums` and `y` have `n` elements, and so has `bias` if there is a bias.
    pub unsafe fn put(&self, sums: *mut f32, bias: *const f32, y: *mut u8, n: usize, reread: bool) {
        let row = sums.cast::<u8>();
        // SAFETY: by the caller's promise all arrays have `n` elements, of the types that the loops were made for.
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

/// Arrays of one call of a kernel that works by strips: operands, the packed filter, results, and partial statistics.
pub struct Arrays {
    pub x: Ptr,
    pub kernel: Ptr,
    pub bias: Ptr,
    pub y: Ptr,
    /// The second result, if there is one: argmax of each window where the result is max-pooled.
    pub second: Option<Ptr>,
    pub statistics: Ptr,
}

impl Arrays {
    /// Divides working memory (packed filter of `packed` bytes, bias, statistics) and widens the bias to f32 there.
    /// `bias`: what widens it, and its elements.
    ///
    /// # Safety
    /// Working memory has these parts, and there is a third input where `bias` is.
    pub unsafe fn new(
        io: &Io<'_>,
        kept: *const u8,
        [packed, bias_bytes]: [usize; 2],
        bias: Option<(Option<TileFn>, usize)>,
    ) -> Arrays {
        let to = Ptr(io.scratch.wrapping_add(packed));
        if let Some((widen, features)) = bias {
            // SAFETY: by the caller's promise the third input is the bias, and working memory has room for it in f32.
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
