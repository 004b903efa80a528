//! Fused attention for bf16 with dot products of bf16 pairs (VDPBF16PS or AMX tile registers).
//!
//! A 32-bit word holds two adjacent K steps.
//!
//! Scores are accumulated in f32, and softmax and its gradient are f32. Weights and gradients w.r.t. the scores are
//! rounded to bf16 when they become operands of a GEMM, as in a program without this kernel. The GEMMs for dK and dV
//! reduce over queries, and have features as rows and keys as columns. So the words of both operands are pairs of
//! queries, and only two rows of scores have to be interleaved.
//!
//! Tile registers operate on whole tiles. Operands are zero-padded along the reduction to a multiple of sixteen words,
//! and there is room for whole tiles of rows and columns of sums. Rows and columns beyond the last ones may hold any
//! values: they contribute only to sums beyond the result.

use crate::kernel::Ptr;
use crate::kernels::attention::{
    AttentionArrays, AttentionKernel, LINE, RightOperand, ScoreRow, ScratchAllocator, StridedMatrix, multiply,
};
use crate::simd::amx::LANES;
use crate::simd::amx::strided::{COLUMNS, StridedKernels, StridedOperands, StridedSums};
use crate::simd::gemm::{MicrokernelShape, TileConfigGuard};
use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::lanes_mut;
use crate::simd::pack::{PackFn, PanelArgs};
use crate::simd::{amx, math};
use std::ops::Range;
use systole_ir::DType;
use systole_ir::attention::AttentionOperand;

/// GEMMs of bf16 pairs, and the loops that prepare their operands.
pub struct Bf16PairGemms {
    /// Register tiles of the GEMMs whose results have keys as columns (N).
    pub to_keys: MicrokernelShape<f32>,
    /// Register tiles of the GEMMs whose results have key features as columns.
    pub to_width: MicrokernelShape<f32>,
    /// Register tiles of the GEMMs whose results have value features as columns.
    pub to_depth: MicrokernelShape<f32>,
    /// AMX kernels that compute all of these GEMMs, if the level has tile registers.
    tiles: Option<StridedKernels>,
    pack: PackFn<f32>,
    /// Packs pairs of rows as a left operand whose rows are features.
    pack_left: PackFn<f32>,
    interleave: TileFn,
    round: TileFn,
}

impl Bf16PairGemms {
    /// Selects the GEMMs for these numbers of keys, key features and value features. `None` if the level has no pair
    /// GEMMs.
    pub fn new(level: Level, sizes: [usize; 3]) -> Option<Bf16PairGemms> {
        match amx::kernels_of(level) {
            Some(kernels) => Bf16PairGemms::with_tiles(kernels, level.vectors()),
            None => Bf16PairGemms::with_vectors(level, sizes),
        }
    }

    /// Creates the GEMMs on tile registers; `vectors` is the level of all other loops.
    pub(crate) fn with_tiles(kernels: &amx::AmxKernels, vectors: Level) -> Option<Bf16PairGemms> {
        let [pack_left, pack] = amx::pack::packs(DType::BF16, vectors)?;
        Some(Bf16PairGemms {
            to_keys: kernels.bf16,
            to_width: kernels.bf16,
            to_depth: kernels.bf16,
            tiles: Some(kernels.spread),
            pack,
            pack_left,
            interleave: vectors.tile::<InterleaveBf16Rows>(),
            round: vectors.tile::<RoundToBf16>(),
        })
    }

    /// Creates the GEMMs on vectors (VDPBF16PS).
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_vectors(level: Level, [keys, width, depth]: [usize; 3]) -> Option<Bf16PairGemms> {
        use crate::simd::gemm::shape_halves;
        use crate::simd::pack::halves;
        Some(Bf16PairGemms {
            to_keys: shape_halves(level, keys)?,
            to_width: shape_halves(level, width)?,
            to_depth: shape_halves(level, depth)?,
            tiles: None,
            pack: halves(),
            pack_left: halves(),
            interleave: level.vectors().tile::<InterleaveBf16Rows>(),
            round: level.vectors().tile::<RoundToBf16>(),
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn with_vectors(_: Level, _: [usize; 3]) -> Option<Bf16PairGemms> {
        None
    }

    /// Number of words of `steps` K steps in an operand, including the zero padding.
    fn words(&self, steps: usize) -> usize {
        if self.tiles.is_some() { words(steps).next_multiple_of(LANES) } else { words(steps) }
    }

    /// Number of rows that a left operand, or a result, of `rows` rows has room for.
    fn rows(&self, rows: usize) -> usize {
        if self.tiles.is_some() { rows.next_multiple_of(LANES) } else { rows }
    }

    /// Configures this thread's tile registers until the guard is dropped, if these GEMMs need them.
    fn configured(&self) -> Option<TileConfigGuard> {
        self.to_keys.registers.map(|r| TileConfigGuard::new(r, COLUMNS))
    }

    /// Returns a left operand whose rows (M) are features, from packed pairs of rows with `stride` words for each pair.
    fn features(&self, at: *mut f32, stride: usize) -> StridedMatrix {
        StridedMatrix { at, row: if self.tiles.is_some() { LANES } else { 1 }, step: stride }
    }

    /// Like [`multiply`], where `k` counts words.
    unsafe fn multiply(
        &self,
        shape: &MicrokernelShape<f32>,
        [m, n, k]: [usize; 3],
        a: StridedMatrix,
        b: RightOperand,
        c: StridedMatrix,
        add: bool,
    ) {
        // SAFETY: the caller's matrices, which have room for whole tiles if tile registers are used.
        unsafe {
            match &self.tiles {
                Some(tiles) => multiply_tiles(tiles, [m, n, k], a, b, c, add),
                None => multiply(shape, [m, n, k], a, b, c, add),
            }
        }
    }
}

/// Like [`multiply`], by whole tiles: memory beyond the last rows and columns of `c` is overwritten.
unsafe fn multiply_tiles(
    tiles: &StridedKernels,
    [m, n, k]: [usize; 3],
    a: StridedMatrix,
    b: RightOperand,
    c: StridedMatrix,
    add: bool,
) {
    const WORD: usize = size_of::<f32>();
    let left = |row: usize| a.at.wrapping_add(row * a.row).cast_const().cast::<u8>();
    let begin = 0;
    for (panel, j) in (0..n).step_by(COLUMNS).enumerate() {
        for i in (0..m).step_by(COLUMNS) {
            let operands = StridedOperands {
                a: [left(i), left(i + LANES)],
                a_row: a.row * WORD,
                a_chunk: LANES * a.step * WORD,
                b: b.at.wrapping_add(panel * b.tile).cast_const().cast(),
                b_next: amx::LINE,
                b_row: b.step * WORD,
                b_chunk: LANES * b.step * WORD,
                a_runs: &raw const begin,
                b_runs: &raw const begin,
                runs: 1,
                chunks: k.div_ceil(LANES),
                ahead: [std::ptr::null(); 2],
                two: [m - i > LANES, n - j > LANES],
            };
            let sums =
                StridedSums { operands, c: c.at.wrapping_add(i * c.row + j), c_row: c.row * WORD, add };
            // SAFETY: the caller's matrices have room for whole tiles; it has configured the registers.
            unsafe { (tiles.sums)(&sums) };
        }
    }
}

/// Number of words of `steps` K steps.
fn words(steps: usize) -> usize {
    steps.div_ceil(2)
}

/// Offsets of a task's arrays in its scratch, in words.
struct PairScratchOffsets {
    keys_transposed: usize,
    /// Pairs of rows of V in the forward pass, of K in the gradient.
    rows: usize,
    queries: usize,
    scores: usize,
    /// Weights, or gradients w.r.t. the scores, as bf16 in pairs along the keys.
    rounded: usize,
    output: usize,
    bits: usize,
    /// For the gradient only.
    values_transposed: usize,
    cotangent: usize,
    dscores: usize,
    /// Pairs of queries: Q and the output's gradient by features, weights and gradients w.r.t. the scores by keys.
    query_pairs: usize,
    cotangent_pairs: usize,
    weight_pairs: usize,
    dscore_pairs: usize,
    /// Partial sums of dK and dV, features by keys; a transposed copy, keys by features.
    sums: usize,
    transposed: usize,
    total: usize,
}

impl AttentionKernel {
    fn pair_places(&self, pairs: &Bf16PairGemms) -> PairScratchOffsets {
        let mut room = ScratchAllocator { taken: 0 };
        let keys = AttentionKernel::padded(&pairs.to_keys, self.keys);
        let (width, depth) = (self.width_row(), self.depth_row());
        let gradient = self.found.gradient.is_some();
        let derivative = |n: usize| if gradient { n } else { 0 };
        let (row, block, block_words) = (self.score_row(), pairs.rows(self.block), pairs.words(self.block));
        PairScratchOffsets {
            keys_transposed: room.take(pairs.words(self.width) * keys),
            rows: room.take(pairs.words(self.keys) * if gradient { width } else { depth }),
            queries: room.take(block * self.words_of(self.width)),
            scores: room.take((block + 1) * row),
            rounded: room.take(block * self.words_of(self.keys)),
            output: room.take(block * width.max(depth)),
            bits: room.take(self.keys + 8),
            values_transposed: room.take(derivative(pairs.words(self.depth) * keys)),
            cotangent: room.take(derivative(block * self.words_of(self.depth))),
            dscores: room.take(derivative((block + 1) * row)),
            query_pairs: room.take(derivative(block_words * width)),
            cotangent_pairs: room.take(derivative(block_words * depth)),
            weight_pairs: room.take(derivative(block_words * row)),
            dscore_pairs: room.take(derivative(block_words * row)),
            sums: room.take(derivative(if self.parts == 1 { self.pair_sums_of_one(pairs) } else { 0 })),
            transposed: room.take(derivative(self.keys * width.max(depth))),
            total: room.taken,
        }
    }

    /// Words between rows of `steps` K steps: whole cache lines plus one, so that powers of two do not alias.
    fn words_of(&self, steps: usize) -> usize {
        words(steps).next_multiple_of(LINE) + LINE
    }

    /// Bytes of a task's scratch.
    pub(crate) fn pair_scratch(&self, pairs: &Bf16PairGemms) -> usize {
        self.pair_places(pairs).total * 4
    }

    /// Number of floats of a task's partial sums of dK and dV.
    pub(crate) fn pair_sums_of_one(&self, pairs: &Bf16PairGemms) -> usize {
        (pairs.rows(self.width) + pairs.rows(self.depth)) * self.score_row()
    }

    /// Copies rows of a head unchanged: words are pairs along the features.
    unsafe fn words_of_rows(
        &self,
        pairs: &Bf16PairGemms,
        from: *mut u8,
        features: usize,
        rows: usize,
        to: *mut f32,
    ) -> StridedMatrix {
        let (row, last) = (self.words_of(features), words(features) - 1);
        for r in 0..rows {
            let (from, to) = (from.wrapping_add(r * self.heads * features * 2), to.wrapping_add(r * row));
            // SAFETY: the caller has these rows, and room for them; the second half of an odd last word is zero, as is
            // the rest.
            unsafe {
                to.add(last).write_bytes(0, pairs.words(features) - last);
                std::ptr::copy_nonoverlapping(from.cast_const(), to.cast(), features * 2);
            }
        }
        StridedMatrix { at: to, row, step: 1 }
    }

    /// Packs words of two adjacent rows of a head, for each feature.
    unsafe fn pairs_of_rows(
        &self,
        (pairs, pack): (&Bf16PairGemms, PackFn<f32>),
        from: *mut u8,
        features: usize,
        rows: usize,
        to: *mut f32,
        stride: usize,
    ) {
        let panel = PanelArgs {
            src: from.cast_const(),
            lane: 2,
            step: self.heads * features * 2,
            lanes: features,
            fill: stride,
            k: pairs.words(rows),
            products: rows,
            dst: to,
            stride,
        };
        // SAFETY: the caller has these rows, and room for the pairs.
        unsafe { pack(&[panel]) };
    }

    /// Packs rows of a head as columns of a right operand: words are pairs along the features.
    unsafe fn transposed_pairs(
        &self,
        pairs: &Bf16PairGemms,
        from: *mut u8,
        features: usize,
        rows: usize,
        to: *mut f32,
    ) -> RightOperand {
        let (columns, lane) = (pairs.to_keys.columns, self.heads * features * 2);
        for first in (0..rows).step_by(columns) {
            let panel = PanelArgs {
                src: from.wrapping_add(first * lane).cast_const(),
                lane,
                step: 2,
                lanes: columns.min(rows - first),
                fill: columns,
                k: pairs.words(features),
                products: features,
                dst: to.wrapping_add(first * pairs.words(features)),
                stride: columns,
            };
            // SAFETY: as above.
            unsafe { (pairs.pack)(&[panel]) };
        }
        RightOperand { at: to, step: columns, tile: pairs.words(features) * columns }
    }

    /// Runs a whole task. `shared` has the partial sums of all tasks if a head has several tasks.
    pub(crate) unsafe fn by_pairs(
        &self,
        pairs: &Bf16PairGemms,
        io: &AttentionArrays,
        task: usize,
        scratch: *mut f32,
        shared: Ptr,
    ) {
        let (head, part) = (task / self.parts, task % self.parts);
        let _registers = pairs.configured();
        // SAFETY: by the caller's promise; the registers are configured.
        unsafe {
            if self.found.gradient.is_none() {
                self.forward_by_pairs(pairs, io, head, part, scratch);
            } else if self.parts == 1 {
                let sums = scratch.wrapping_add(self.pair_places(pairs).sums);
                self.backward_by_pairs(pairs, io, head, part, (scratch, sums));
                self.store_sums_by_pairs(pairs, io, head, sums, scratch);
            } else {
                let sums = shared.elem(task * self.pair_sums_of_one(pairs));
                self.backward_by_pairs(pairs, io, head, part, (scratch, sums));
            }
        }
    }

    /// Computes the attention of a task's queries.
    unsafe fn forward_by_pairs(
        &self,
        pairs: &Bf16PairGemms,
        io: &AttentionArrays,
        head: usize,
        part: usize,
        scratch: *mut f32,
    ) {
        let at = self.pair_places(pairs);
        let place = |offset: usize| scratch.wrapping_add(offset);
        let (depth, score_row) = (self.depth_row(), self.score_row());
        let keys = self.keys_of(part);
        // SAFETY: addresses are those of the head's rows; scratch has the computed layout.
        unsafe {
            let k = self.address(io.k, head, self.keys, 0, self.width);
            let k = self.transposed_pairs(pairs, k, self.width, keys, place(at.keys_transposed));
            let v = self.address(io.v, head, self.keys, 0, self.depth);
            self.pairs_of_rows((pairs, pairs.pack), v, self.depth, keys, place(at.rows), depth);
            let v = RightOperand { at: place(at.rows), step: depth, tile: pairs.to_depth.columns };
            let scores = StridedMatrix { at: place(at.scores), row: score_row, step: 1 };
            let weights = StridedMatrix { at: place(at.rounded), row: self.words_of(self.keys), step: 1 };
            let output = StridedMatrix { at: place(at.output), row: depth, step: 1 };
            for block in self.blocks(part) {
                let (rows, seen) = (block.len(), self.seen(block.end - 1));
                let q = self.address(io.q, head, self.queries, block.start, self.width);
                let q = self.words_of_rows(pairs, q, self.width, rows, place(at.queries));
                pairs.multiply(&pairs.to_keys, [rows, seen, words(self.width)], q, k, scores, false);
                let whole = 2 * pairs.words(seen);
                let mut sums = [1f32; 256];
                for (r, query) in block.clone().enumerate() {
                    let own = scores.at.add(r * score_row);
                    let bits = self.bits(io.random, head, query, place(at.bits));
                    let mut row =
                        ScoreRow { scale: self.scale(), ..self.row(own, std::ptr::null_mut(), bits) };
                    self.along(self.softmax, &mut row, self.seen(query), whole);
                    io.note(row.sum);
                    sums[r] = row.sum;
                    let to: *mut u8 = weights.at.add(r * weights.row).cast();
                    let from = own.cast_const().cast();
                    (pairs.round)(to, from, from, from, whole);
                }
                pairs.multiply(&pairs.to_depth, [rows, self.depth, words(seen)], weights, v, output, false);
                for (r, query) in block.enumerate() {
                    let to = self.address(io.out[0], head, self.queries, query, self.depth);
                    self.store(output.at.add(r * depth), 1.0 / sums[r], self.depth, to);
                }
            }
        }
    }

    /// Computes gradients w.r.t. the scores of a block of queries, in place of those w.r.t. the weights, and rounds a
    /// copy to bf16.
    unsafe fn dscores_of_block(
        &self,
        pairs: &Bf16PairGemms,
        io: &AttentionArrays,
        (head, block): (usize, Range<usize>),
        [scores, dscores, rounded]: [StridedMatrix; 3],
        whole: usize,
        room: *mut f32,
    ) {
        let score_row = self.score_row();
        for (r, query) in block.enumerate() {
            let own = |x: StridedMatrix| x.at.wrapping_add(r * score_row);
            // SAFETY: the caller has these rows of scores, and room for the random bits of a row.
            unsafe {
                let bits = self.bits(io.random, head, query, room);
                let mut row = ScoreRow { scale: self.scale(), ..self.row(own(scores), own(dscores), bits) };
                self.along(self.softmax_gradient, &mut row, self.seen(query), whole);
                io.note(row.sum);
                let from = own(dscores).cast_const().cast();
                (pairs.round)(rounded.at.add(r * rounded.row).cast(), from, from, from, whole);
            }
        }
    }

    /// Interleaves two adjacent rows of scores to words, for `whole` keys. The last of an odd number of rows is paired
    /// with zeros.
    unsafe fn pairs_of_scores(
        &self,
        pairs: &Bf16PairGemms,
        from: StridedMatrix,
        [rows, whole]: [usize; 2],
        to: *mut f32,
    ) {
        let score_row = self.score_row();
        // SAFETY: the caller's rows have room for one more, and there is room for their pairs in whole tiles.
        unsafe {
            if rows % 2 == 1 {
                from.at.add(rows * score_row).write_bytes(0, whole);
            }
            for pair in 0..words(rows) {
                let first = from.at.add(2 * pair * score_row).cast_const();
                let second = first.add(score_row).cast();
                let to = to.wrapping_add(pair * score_row).cast();
                (pairs.interleave)(to, first.cast(), second, second, whole);
            }
            for none in words(rows)..pairs.words(rows) {
                to.wrapping_add(none * score_row).write_bytes(0, whole);
            }
        }
    }

    /// Stores dQ of a block.
    unsafe fn store_queries(&self, output: StridedMatrix, head: usize, block: Range<usize>, dq: Ptr) {
        for (r, query) in block.enumerate() {
            // SAFETY: the caller's rows of sums; the result has a row for each query.
            unsafe {
                let to = self.address(dq, head, self.queries, query, self.width);
                self.store(output.at.add(r * output.row), self.scale(), self.width, to);
            }
        }
    }

    /// Computes dQ of a task's queries, and the task's partial sums of dK and dV at `sums`: features by keys.
    unsafe fn backward_by_pairs(
        &self,
        pairs: &Bf16PairGemms,
        io: &AttentionArrays,
        head: usize,
        part: usize,
        (scratch, sums): (*mut f32, *mut f32),
    ) {
        let at = self.pair_places(pairs);
        let place = |offset: usize| scratch.wrapping_add(offset);
        let (width, depth, score_row) = (self.width_row(), self.depth_row(), self.score_row());
        let keys = self.keys_of(part);
        let tile = pairs.to_keys.columns;
        // SAFETY: as for `forward_by_pairs`.
        unsafe {
            sums.write_bytes(0, self.pair_sums_of_one(pairs));
            let dk = StridedMatrix { at: sums, row: score_row, step: 1 };
            let dv = StridedMatrix { at: sums.add(pairs.rows(self.width) * score_row), ..dk };
            let k = self.address(io.k, head, self.keys, 0, self.width);
            let kt = self.transposed_pairs(pairs, k, self.width, keys, place(at.keys_transposed));
            self.pairs_of_rows((pairs, pairs.pack), k, self.width, keys, place(at.rows), width);
            let k = RightOperand { at: place(at.rows), step: width, tile: pairs.to_width.columns };
            let v = self.address(io.v, head, self.keys, 0, self.depth);
            let v = self.transposed_pairs(pairs, v, self.depth, keys, place(at.values_transposed));
            let scores = StridedMatrix { at: place(at.scores), row: score_row, step: 1 };
            let dscores = StridedMatrix { at: place(at.dscores), ..scores };
            let rounded = StridedMatrix { at: place(at.rounded), row: self.words_of(self.keys), step: 1 };
            let output = StridedMatrix { at: place(at.output), row: width, step: 1 };
            let by_keys = |at: *mut f32| RightOperand { at, step: score_row, tile };
            for block in self.blocks(part) {
                let (rows, seen) = (block.len(), self.seen(block.end - 1));
                let q = self.address(io.q, head, self.queries, block.start, self.width);
                let dy = self.address(io.dy, head, self.queries, block.start, self.depth);
                let left = (pairs, pairs.pack_left);
                self.pairs_of_rows(left, q, self.width, rows, place(at.query_pairs), width);
                self.pairs_of_rows(left, dy, self.depth, rows, place(at.cotangent_pairs), depth);
                let q = self.words_of_rows(pairs, q, self.width, rows, place(at.queries));
                let dy = self.words_of_rows(pairs, dy, self.depth, rows, place(at.cotangent));
                pairs.multiply(&pairs.to_keys, [rows, seen, words(self.width)], q, kt, scores, false);
                pairs.multiply(&pairs.to_keys, [rows, seen, words(self.depth)], dy, v, dscores, false);
                let whole = 2 * pairs.words(seen);
                let along = [scores, dscores, rounded];
                self.dscores_of_block(pairs, io, (head, block.clone()), along, whole, place(at.bits));
                for (from, to) in [(scores, at.weight_pairs), (dscores, at.dscore_pairs)] {
                    self.pairs_of_scores(pairs, from, [rows, whole], place(to));
                }
                let dy_pairs = pairs.features(place(at.cotangent_pairs), depth);
                let weights = by_keys(place(at.weight_pairs));
                pairs.multiply(&pairs.to_keys, [self.depth, seen, words(rows)], dy_pairs, weights, dv, true);
                let q_pairs = pairs.features(place(at.query_pairs), width);
                let by_scores = by_keys(place(at.dscore_pairs));
                pairs.multiply(&pairs.to_keys, [self.width, seen, words(rows)], q_pairs, by_scores, dk, true);
                if let Some(dq) = io.result_of(&self.found, AttentionOperand::Queries) {
                    let dims = [rows, self.width, words(seen)];
                    pairs.multiply(&pairs.to_width, dims, rounded, k, output, false);
                    self.store_queries(output, head, block, dq);
                }
            }
        }
    }

    /// Adds the partial sums of a head's tasks and stores dK and dV, transposed back to keys by features. `room` is the
    /// scratch of a task.
    pub(crate) unsafe fn store_sums_by_pairs(
        &self,
        pairs: &Bf16PairGemms,
        io: &AttentionArrays,
        head: usize,
        sums: *mut f32,
        room: *mut f32,
    ) {
        let (each, score_row) = (self.pair_sums_of_one(pairs), self.score_row());
        let rows = room.wrapping_add(self.pair_places(pairs).transposed);
        // SAFETY: the tasks' sums are stored one after another; scratch has the computed layout.
        unsafe {
            self.add_sums(sums, each);
            let dv = sums.add(pairs.rows(self.width) * score_row);
            for (wanted, from, scale, features, row) in [
                (AttentionOperand::Keys, sums, self.scale(), self.width, self.width_row()),
                (AttentionOperand::Values, dv, 1.0, self.depth, self.depth_row()),
            ] {
                let Some(result) = io.result_of(&self.found, wanted) else { continue };
                let transpose = PanelArgs {
                    src: from.cast_const().cast(),
                    lane: score_row * 4,
                    step: 4,
                    lanes: features,
                    fill: row,
                    k: self.keys,
                    products: self.keys,
                    dst: rows,
                    stride: row,
                };
                (self.floats)(&[transpose]);
                for key in 0..self.keys {
                    let to = self.address(result, head, self.keys, key, features);
                    self.store(rows.add(key * row), scale, features, to);
                }
            }
        }
    }

    fn scale(&self) -> f32 {
        self.found.attention.scale as f32
    }
}

/// Rounds f32 to bf16; the first number of a word is its lower half.
struct RoundToBf16;
impl TileLoop for RoundToBf16 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: both have `n` elements and do not overlap.
        let (to, x) = unsafe { (lanes_mut::<u16>(dst, n), lanes_mut::<f32>(a.cast_mut(), n)) };
        to.iter_mut().zip(x).for_each(|(to, &mut x)| *to = math::to_bf16(x));
    }
}

/// Interleaves two rows of f32 as words of bf16; the first row gives the lower halves.
struct InterleaveBf16Rows;
impl TileLoop for InterleaveBf16Rows {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: all three have `n` elements; the destination overlaps neither.
        let (to, x, y) = unsafe {
            let [x, y] = [a, b].map(|p| std::slice::from_raw_parts(p.cast::<f32>(), n));
            (lanes_mut::<u32>(dst, n), x, y)
        };
        for (to, (&x, &y)) in to.iter_mut().zip(x.iter().zip(y)) {
            *to = u32::from(math::to_bf16(x)) | u32::from(math::to_bf16(y)) << 16;
        }
    }
}
