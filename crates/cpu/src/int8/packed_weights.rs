//! Packs int8 weights into the panels that each instruction set reads.

use crate::simd::int8::{COLUMNS, Int8WeightLayout, STEP, WORDS};

/// 64 bytes aligned to a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct PanelCacheLine([u8; 64]);

/// Weights `[N, K]`, packed in panels of columns.
pub(super) struct PackedInt8Weights {
    lines: Vec<PanelCacheLine>,
    /// Number of K steps of a row, and number of words that hold data.
    pub steps: usize,
    pub words: usize,
}

impl PackedInt8Weights {
    /// Packs the weights `w: i8[N, K]` into panels.
    pub fn new(form: Int8WeightLayout, w: &[i8], n: usize, k: usize) -> PackedInt8Weights {
        let per_word = if form == Int8WeightLayout::Pairs { 2 } else { 4 };
        let words = k.div_ceil(per_word);
        let steps = words.div_ceil(WORDS);
        let panel = steps * WORDS * COLUMNS * 4;
        let nothing = if form == Int8WeightLayout::Above { 128 } else { 0 };
        let mut lines = vec![PanelCacheLine([nothing; 64]); n.div_ceil(COLUMNS) * panel / 64];
        for (column, row) in w.chunks_exact(k.max(1)).enumerate() {
            let first = column / COLUMNS * panel + column % COLUMNS * 4;
            for (i, part) in row.chunks(per_word).enumerate() {
                let mut word = [nothing; 4];
                match form {
                    Int8WeightLayout::Signed => word.iter_mut().zip(part).for_each(|(to, &w)| *to = w as u8),
                    Int8WeightLayout::Above => {
                        word.iter_mut().zip(part).for_each(|(to, &w)| *to = w as u8 ^ 0x80)
                    }
                    Int8WeightLayout::Pairs => {
                        let halves = word.chunks_exact_mut(2).zip(part);
                        halves.for_each(|(to, &w)| to.copy_from_slice(&i16::from(w).to_le_bytes()));
                    }
                }
                let at = first + i * COLUMNS * 4;
                lines[at / 64].0[at % 64..][..4].copy_from_slice(&word);
            }
        }
        PackedInt8Weights { lines, steps, words }
    }

    /// Returns a pointer to the first word of weight panel `n`.
    pub fn panel(&self, n: usize) -> *const u8 {
        self.lines.as_ptr().cast::<u8>().wrapping_add(n * self.steps * WORDS * COLUMNS * 4)
    }

    /// Bytes between rows of the staged input.
    pub fn pitch(&self) -> usize {
        self.steps * STEP
    }
}
