//! How a convolution's kernel is packed: rows of its features, a row for each tap and channel, or pair of channels.

use crate::kernels::conv::staging::put;
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{Pairs, widen};
use crate::simd::ranges::pieces;
use systole_ir::TensorType;
use systole_ir::op::Convolution;

/// How the kernel lies in memory.
pub struct Weights {
    pub channel: usize,
    pub feature: usize,
    element: usize,
    pub widen: Option<TileFn>,
    /// Of channels that are pairs: what makes such words, and how far apart its two lie.
    pairs: Option<(Pairs, usize)>,
    /// The kernel lies as it would be packed.
    pub in_order: bool,
}

impl Weights {
    pub fn new(c: &Convolution, k: &TensorType, level: Level) -> Weights {
        let own = k.shape.strides();
        Weights {
            channel: own[c.dims.kernel_input_feature],
            feature: own[c.dims.kernel_output_feature],
            element: k.dtype.size(),
            widen: widen(k.dtype, level),
            pairs: None,
            in_order: false,
        }
    }

    /// Of pairs of channels.
    pub fn paired(self, level: Level) -> Weights {
        Weights { channel: 2 * self.channel, pairs: Some((Pairs::new(level), self.channel)), ..self }
    }

    /// Copies elements from `at` on as numbers, or as words of pairs.
    #[inline(always)]
    unsafe fn put(&self, kernel: *const u8, at: usize, to: *mut f32, n: usize) {
        let from = |at: usize| kernel.wrapping_add(at * self.element);
        // SAFETY: by the caller's promise.
        unsafe {
            match &self.pairs {
                None => put(self.widen, from(at), to, n),
                Some((pairs, next)) => pairs.put(Some(from(at)), Some(from(at + next)), to, n),
            }
        }
    }

    /// Copies channels that lie together.
    #[inline(always)]
    unsafe fn put_channels(&self, kernel: *const u8, at: usize, to: *mut f32, n: usize) {
        let from = kernel.wrapping_add(at * self.element);
        // SAFETY: by the caller's promise; pairs that lie together are words.
        unsafe {
            match self.pairs {
                None => put(self.widen, from, to, n),
                Some(_) => std::ptr::copy_nonoverlapping(from, to.cast(), n * 4),
            }
        }
    }

    /// Packs `n` channels of `columns` features, rows `wide` apart, with zeros between.
    ///
    /// # Safety
    /// The kernel has those elements, and `to` room for `n` rows.
    pub unsafe fn pack(
        &self,
        kernel: *const u8,
        at: usize,
        n: usize,
        columns: usize,
        wide: usize,
        to: *mut f32,
    ) {
        // Channels of a block that is turned around in the first-level cache.
        const TURN: usize = 32;
        // A word for each channel or pair, and how far apart they lie where they follow each other.
        let together = if self.pairs.is_some() { 2 } else { 1 };
        // SAFETY: by the caller's promise.
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
