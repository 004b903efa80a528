//! Packs int8 weights into the panels that each instruction set reads.

use crate::simd::int8::{COLUMNS, Int8WeightLayout, STEP, WORDS};

/// 64 bytes aligned to a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct PanelCacheLine(#[expect(dead_code, reason = "panels are read and written by address")] [u8; 64]);

/// Weights `[N, K]`, packed in panels of columns.
pub(super) struct PackedInt8Weights {
    lines: Vec<PanelCacheLine>,
}

impl PackedInt8Weights {
    /// Packs the weights `w: i8[N, K]` into panels.
    pub fn new(layout: Int8PanelLayout, w: &[i8]) -> PackedInt8Weights {
        let mut lines = vec![PanelCacheLine([0; 64]); layout.bytes() / 64];
        // SAFETY: the lines have the layout's bytes; `w` has N rows of K elements.
        unsafe { layout.pack(w.as_ptr(), [layout.k, 1], lines.as_mut_ptr().cast()) };
        PackedInt8Weights { lines }
    }

    /// Returns a pointer to the first panel.
    pub fn panels(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }
}

/// Sizes and element order of packed weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Int8PanelLayout {
    pub form: Int8WeightLayout,
    pub n: usize,
    pub k: usize,
}

impl Int8PanelLayout {
    /// Elements of K per 32-bit word.
    fn per_word(&self) -> usize {
        if self.form == Int8WeightLayout::Pairs { 2 } else { 4 }
    }

    /// Number of words of a row that hold data.
    pub fn words(&self) -> usize {
        self.k.div_ceil(self.per_word())
    }

    /// Number of K steps of a row.
    pub fn steps(&self) -> usize {
        self.words().div_ceil(WORDS)
    }

    /// Bytes between rows of the staged input.
    pub fn pitch(&self) -> usize {
        self.steps() * STEP
    }

    /// Bytes of a panel.
    pub fn panel(&self) -> usize {
        self.steps() * WORDS * COLUMNS * 4
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> usize {
        self.n.div_ceil(COLUMNS) * self.panel()
    }

    /// Packs weights; element `[n, k]` is at `n · strides[0] + k · strides[1]`.
    ///
    /// # Safety
    /// `w` has N · K elements with these strides, `to` has room for [`Int8PanelLayout::bytes`].
    pub unsafe fn pack(&self, w: *const i8, [by_n, by_k]: [usize; 2], to: *mut u8) {
        let per_word = self.per_word();
        let mut to = to.cast::<[u8; 4]>();
        for first in (0..self.n).step_by(COLUMNS) {
            for word in 0..self.steps() * WORDS {
                for column in first..first + COLUMNS {
                    let at = |i: usize| match word * per_word + i {
                        // SAFETY: guaranteed by the caller.
                        k if i < per_word && k < self.k && column < self.n => unsafe {
                            *w.add(column * by_n + k * by_k)
                        },
                        _ => 0,
                    };
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        to.write(self.word([at(0), at(1), at(2), at(3)]));
                        to = to.add(1);
                    }
                }
            }
        }
    }

    /// Returns a word of consecutive elements of K.
    fn word(&self, w: [i8; 4]) -> [u8; 4] {
        match self.form {
            Int8WeightLayout::Signed => w.map(|w| w as u8),
            Int8WeightLayout::Above => w.map(|w| w as u8 ^ 0x80),
            Int8WeightLayout::Pairs => {
                let [[a, b], [c, d]] = [w[0], w[1]].map(|w| i16::from(w).to_le_bytes());
                [a, b, c, d]
            }
        }
    }
}
