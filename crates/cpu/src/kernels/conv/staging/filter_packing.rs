//! Packs a convolution's filter for the direct and Winograd microkernels.
//!
//! The packed filter has rows of features, one row per K step (a tap and a channel, or a pair of channels).

use crate::kernels::conv::staging::put;
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{InterleaveBf16, widen};
use crate::simd::ranges::pieces;
use systole_ir::TensorType;
use systole_ir::op::Convolution;

/// Memory layout of a convolution filter when packed for microkernels.
pub struct FilterLayout {
    /// Elements between channels (or pairs of channels).
    pub channel: usize,
    /// Elements between features.
    pub feature: usize,
    element: usize,
    /// Widens elements to f32. `None`: they are f32.
    pub widen: Option<TileFn>,
    /// For pairs of bf16 channels: the loop that builds 32-bit words, and the elements between the two channels.
    pairs: Option<(InterleaveBf16, usize)>,
    /// Whether the filter is already stored in packed order, and is read in place.
    pub in_order: bool,
}

impl FilterLayout {
    /// Returns the layout of a convolution's filter.
    pub fn new(c: &Convolution, k: &TensorType, level: Level) -> FilterLayout {
        let own = k.shape.strides();
        FilterLayout {
            channel: own[c.dims.kernel_input_feature],
            feature: own[c.dims.kernel_output_feature],
            element: k.dtype.size(),
            widen: widen(k.dtype, level),
            pairs: None,
            in_order: false,
        }
    }

    /// Returns the same filter with pairs of channels as K steps.
    pub fn paired(self, level: Level) -> FilterLayout {
        FilterLayout {
            channel: 2 * self.channel,
            pairs: Some((InterleaveBf16::new(level), self.channel)),
            ..self
        }
    }

    /// Copies `n` elements starting at `at` as f32, or as words of pairs, whose other halves are one channel further.
    #[inline(always)]
    unsafe fn put(&self, kernel: *const u8, at: usize, to: *mut f32, n: usize) {
        let from = |at: usize| kernel.wrapping_add(at * self.element);
        // SAFETY: the caller's filter has these elements, and those of the next channel if there are pairs.
        unsafe {
            match &self.pairs {
                None => put(self.widen, from(at), to, n),
                Some((pairs, next)) => pairs.put(Some(from(at)), Some(from(at + next)), to, n),
            }
        }
    }

    /// Copies `n` channels, or pairs of channels, that are contiguous in memory.
    #[inline(always)]
    unsafe fn put_channels(&self, kernel: *const u8, at: usize, to: *mut f32, n: usize) {
        let from = kernel.wrapping_add(at * self.element);
        // SAFETY: by the caller's promise; two contiguous bf16 channels are already a word.
        unsafe {
            match self.pairs {
                None => put(self.widen, from, to, n),
                Some(_) => std::ptr::copy_nonoverlapping(from, to.cast(), n * 4),
            }
        }
    }

    /// Packs `n` channels (or pairs) of `columns` features into rows of `wide` elements, zero-padded. `at`: the offset
    /// of the first element.
    ///
    /// # Safety
    /// The filter has those elements, and `to` has room for `n` rows.
    pub unsafe fn pack(
        &self,
        kernel: *const u8,
        at: usize,
        n: usize,
        columns: usize,
        wide: usize,
        to: *mut f32,
    ) {
        // Channels of a block that is transposed in the L1 cache: with 64 features the block takes 8 KiB.
        const TURN: usize = 32;
        // Elements between K steps whose channels are contiguous: a pair is one step.
        let together = if self.pairs.is_some() { 2 } else { 1 };
        // SAFETY: by the caller's promise about the filter and `to`.
        unsafe {
            if self.feature == 1 {
                for k in 0..n {
                    self.put(kernel, at + k * self.channel, to.add(k * wide), columns);
                }
            } else if self.channel == together {
                let mut turned = [[0f32; TURN]; 64];
                for (k0, count) in pieces(n, TURN) {
                    for (j, line) in turned[..columns].iter_mut().enumerate() {
                        let at = at + k0 * together + j * self.feature;
                        self.put_channels(kernel, at, line.as_mut_ptr(), count);
                    }
                    for k in 0..count {
                        let row = std::slice::from_raw_parts_mut(to.add((k0 + k) * wide), columns);
                        row.iter_mut().zip(&turned).for_each(|(to, line)| *to = line[k]);
                    }
                }
            } else {
                for k in 0..n {
                    for j in 0..columns {
                        let at = at + k * self.channel + j * self.feature;
                        self.put(kernel, at, to.add(k * wide + j), 1);
                    }
                }
            }
            if columns < wide {
                (0..n).for_each(|k| {
                    std::slice::from_raw_parts_mut(to.add(k * wide + columns), wide - columns).fill(0.0)
                });
            }
        }
    }
}
