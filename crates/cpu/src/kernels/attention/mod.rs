//! Fused multi-head attention and its gradient, by blocks of queries; the score matrix is never stored.
//!
//! The scores of a block against all keys stay in cache, and the gradient recomputes them.
//!
//! A task has a head, or some of its queries if there are few heads. It packs keys and values as its GEMMs read them,
//! then processes one block of queries after another against all keys: keys are not blocked, and the softmax is not an
//! online softmax. With a causal mask, a block ends at the diagonal. Everything is f32 until results are stored, except
//! in [`bf16_pairs`].
//!
//! If a result is not finite, an attention with a mask is recomputed with all keys: keys that are left out have weights
//! of zero, and zero times infinity or NaN is NaN. Blocks and tasks follow from shapes and the instruction set, and
//! partial sums of the tasks of a head are added in a binary tree, so the number of threads changes no bits.

mod bf16_pairs;
#[cfg(test)]
mod tests;

use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::attention::bf16_pairs::Bf16PairGemms;
use crate::select::{AMX, CandidateResult, EVERY, Family, KernelCandidate, Problem, SelectResult};
use crate::simd::gemm::{GemmTile as Product, LhsLayout, MicrokernelShape, shape_f32};
use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::{lanes_mut, narrow};
use crate::simd::math;
use crate::simd::pack::{PackFn, PanelArgs, floats};
use crate::simd::philox::PhiloxWords;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use systole_compile::Step;
use systole_ir::attention::{AttentionDropout, AttentionMatch, AttentionOperand, HIDDEN};
use systole_ir::{DType, Result};

/// Maximum register tiles of rows (M) in a block of queries.
const TILES: usize = 4;
/// Approximate bytes of a block's scores.
const SCORES: usize = 256 << 10;
/// Target number of tasks, and minimum queries of a task.
const TASKS: usize = 16;
const FEWEST: usize = 64;
/// f32 elements of a cache line: arrays in scratch are aligned to cache lines.
const LINE: usize = 16;
/// Independent accumulators of a reduction along a row.
const ACCUMULATORS: usize = 32;

/// Fused attention kernel: forward pass or gradient.
pub struct AttentionKernel {
    found: AttentionMatch,
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    /// Features of queries and keys, and of values.
    width: usize,
    depth: usize,
    /// Queries per block.
    block: usize,
    /// Tasks per head.
    parts: usize,
    dtype: DType,
    pack: PackFn<f32>,
    floats: PackFn<f32>,
    narrow: Option<TileFn>,
    words: PhiloxWords,
    softmax: TileFn,
    softmax_gradient: TileFn,
    /// Register tiles of the GEMMs whose results have keys, key features or value features as columns (N).
    to_keys: MicrokernelShape<f32>,
    to_width: MicrokernelShape<f32>,
    to_depth: MicrokernelShape<f32>,
    /// GEMMs of bf16 pairs, if the level has them. `None`: GEMMs are f32.
    pairs: Option<Bf16PairGemms>,
    /// The same kernel with all keys, for results that are not finite; `None`: this kernel already uses all keys.
    whole: Option<Box<AttentionKernel>>,
}

/// f32 matrix with arbitrary row and column strides: a left operand (A) or a result.
///
/// As a left operand, tile registers read sixteen contiguous words of K, and the next ones at sixteen times `step`.
#[derive(Clone, Copy)]
pub(crate) struct StridedMatrix {
    at: *mut f32,
    row: usize,
    step: usize,
}

/// Right operand (B): whole vectors for each K step, and the distance to the next column tile.
#[derive(Clone, Copy)]
pub(crate) struct RightOperand {
    at: *mut f32,
    step: usize,
    tile: usize,
}

/// Allocates offsets in a task's scratch, one after another.
pub(crate) struct ScratchAllocator {
    taken: usize,
}

impl ScratchAllocator {
    fn take(&mut self, floats: usize) -> usize {
        let at = self.taken;
        self.taken += floats.next_multiple_of(LINE) + LINE;
        at
    }
}

/// Offsets of a task's arrays in its scratch, in floats.
struct ScratchOffsets {
    keys_transposed: usize,
    values: usize,
    queries: usize,
    scores: usize,
    output: usize,
    bits: usize,
    /// For the gradient only.
    keys: usize,
    values_transposed: usize,
    cotangent: usize,
    dscores: usize,
    /// Partial sums of dK, followed by those of dV.
    sums: usize,
    total: usize,
}

impl AttentionKernel {
    /// Creates the kernel with these pair GEMMs, or with f32 GEMMs; `level` is the level of vectors.
    fn with(
        found: &AttentionMatch,
        step: &Step,
        level: Level,
        pairs: Option<Bf16PairGemms>,
    ) -> AttentionKernel {
        let all = || Box::new(AttentionKernel::with_all_keys(found, step, level, None));
        let whole = found.attention.causal.then(all);
        AttentionKernel { whole, ..AttentionKernel::with_all_keys(found, step, level, pairs) }
    }

    fn with_all_keys(
        found: &AttentionMatch,
        step: &Step,
        level: Level,
        pairs: Option<Bf16PairGemms>,
    ) -> AttentionKernel {
        let [q, k, v] = [found.q, found.k, found.v].map(|i| &step.input_types[i]);
        let [batch, queries, heads, width] = [0, 1, 2, 3].map(|d| q.shape[d]);
        let (keys, depth) = (k.shape[1], v.shape[3]);
        let [to_keys, to_width, to_depth] = match &pairs {
            Some(pairs) => [pairs.to_keys, pairs.to_width, pairs.to_depth],
            None => [keys, width, depth].map(|n| shape_f32(level, n)),
        };
        let most = (TILES * to_keys.rows()).min((SCORES / 4 / keys.max(1)).max(to_keys.rows()));
        let blocks = queries.div_ceil(most).max(1);
        let parts = (TASKS / (batch * heads).max(1)).clamp(1, queries.div_ceil(FEWEST).max(1));
        AttentionKernel {
            found: found.clone(),
            batch,
            heads,
            queries,
            keys,
            width,
            depth,
            block: queries.div_ceil(blocks),
            parts,
            dtype: q.dtype,
            pack: floats(q.dtype, level),
            floats: floats(DType::F32, level),
            narrow: narrow(q.dtype, level),
            words: PhiloxWords::new(level),
            softmax: level.tile::<SoftmaxDropout>(),
            softmax_gradient: level.tile::<SoftmaxGradient>(),
            to_keys,
            to_width,
            to_depth,
            pairs,
            whole: None,
        }
    }

    /// Floats between rows of `columns` columns: whole tiles.
    fn padded(shape: &MicrokernelShape<f32>, columns: usize) -> usize {
        columns.next_multiple_of(shape.columns)
    }

    fn width_row(&self) -> usize {
        Self::padded(&self.to_width, self.width)
    }

    fn depth_row(&self) -> usize {
        Self::padded(&self.to_depth, self.depth)
    }

    /// Floats between rows of scores: a cache line more than whole tiles, so that powers of two do not alias.
    fn score_row(&self) -> usize {
        Self::padded(&self.to_keys, self.keys) + LINE
    }

    fn places(&self) -> ScratchOffsets {
        let mut room = ScratchAllocator { taken: 0 };
        let transposed = Self::padded(&self.to_keys, self.keys);
        let (width, depth) = (self.width_row(), self.depth_row());
        let derivative = |n: usize| if self.found.gradient.is_some() { n } else { 0 };
        ScratchOffsets {
            keys_transposed: room.take(self.width * transposed),
            values: room.take(if self.found.gradient.is_some() { 0 } else { self.keys * depth }),
            queries: room.take(self.block * width),
            scores: room.take(self.block * self.score_row()),
            output: room.take(self.block * width.max(depth)),
            bits: room.take(self.keys + 8),
            keys: room.take(derivative(self.keys * width)),
            values_transposed: room.take(derivative(self.depth * transposed)),
            cotangent: room.take(derivative(self.block * depth)),
            dscores: room.take(derivative(self.block * self.score_row())),
            sums: room.take(derivative(if self.parts == 1 { self.sums_of_one() } else { 0 })),
            total: room.taken,
        }
    }

    /// Number of floats of a task's partial sums of dK and dV, with f32 GEMMs.
    fn sums_of_one(&self) -> usize {
        self.keys * (self.width_row() + self.depth_row())
    }

    /// Like [`AttentionKernel::sums_of_one`], for f32 or pair GEMMs.
    fn sums_of_a_task(&self) -> usize {
        self.pairs.as_ref().map_or_else(|| self.sums_of_one(), |pairs| self.pair_sums_of_one(pairs))
    }

    /// Number of keys, from the first on, for which a query's scores are computed.
    fn seen(&self, query: usize) -> usize {
        if self.whole.is_some() { self.keys.min(query + 1) } else { self.keys }
    }

    /// Sets the computed entries of a row of scores that the mask hides.
    unsafe fn hide(&self, row: *mut f32, query: usize, value: f64) {
        let from = self.keys.min(query + 1);
        if self.found.attention.causal && self.whole.is_none() {
            // SAFETY: the row has an entry for each key.
            unsafe { lanes_mut::<f32>(row.add(from).cast(), self.keys - from).fill(value as f32) };
        }
    }

    /// Returns the address of sequence position `place` of a head in an array `[batch, places, heads, features]`.
    fn address(&self, array: Ptr, head: usize, places: usize, place: usize, features: usize) -> *mut u8 {
        let (b, n) = (head / self.heads, head % self.heads);
        array.at((((b * places) + place) * self.heads + n) * features * self.dtype.size())
    }

    /// Copies rows of a head as f32 to rows `stride` floats apart, zero-padded after the features.
    unsafe fn rows(&self, from: *mut u8, features: usize, rows: usize, to: *mut f32, stride: usize) {
        let size = self.dtype.size();
        let panel = PanelArgs {
            src: from.cast_const(),
            lane: size,
            step: self.heads * features * size,
            lanes: features,
            fill: stride,
            k: rows,
            products: rows,
            dst: to,
            stride,
        };
        // SAFETY: the caller has these rows, and room for the copy.
        unsafe { (self.pack)(&[panel]) };
    }

    /// Packs rows of a head as columns of a right operand: a transposed copy in panels.
    unsafe fn transposed(&self, from: *mut u8, features: usize, rows: usize, to: *mut f32) -> RightOperand {
        let (size, columns) = (self.dtype.size(), self.to_keys.columns);
        let lane = self.heads * features * size;
        for first in (0..rows).step_by(columns) {
            let panel = PanelArgs {
                src: from.wrapping_add(first * lane).cast_const(),
                lane,
                step: size,
                lanes: columns.min(rows - first),
                fill: columns,
                k: features,
                products: features,
                dst: to.wrapping_add(first * features),
                stride: columns,
            };
            // SAFETY: as for `rows`.
            unsafe { (self.pack)(&[panel]) };
        }
        RightOperand { at: to, step: columns, tile: features * columns }
    }

    /// Multiplies a row of results by `by` and stores it.
    unsafe fn store(&self, row: *mut f32, by: f32, features: usize, to: *mut u8) {
        // SAFETY: the caller's row and its destination have `features` elements.
        unsafe {
            lanes_mut::<f32>(row.cast(), features).iter_mut().for_each(|x| *x *= by);
            match self.narrow {
                Some(narrow) => {
                    let from = row.cast_const().cast();
                    narrow(to, from, from, from, features);
                }
                None => std::ptr::copy_nonoverlapping(row.cast_const(), to.cast(), features),
            }
        }
    }

    /// Returns the blocks of queries of a task.
    fn blocks(&self, part: usize) -> impl Iterator<Item = Range<usize>> {
        let (from, to) = (self.queries * part / self.parts, self.queries * (part + 1) / self.parts);
        let count = (to - from).div_ceil(self.block);
        (0..count).map(move |i| {
            let at = |i: usize| from + (to - from) * i / count;
            at(i)..at(i + 1)
        })
    }

    /// Number of keys that a task's queries attend to.
    fn keys_of(&self, part: usize) -> usize {
        self.seen((self.queries * (part + 1) / self.parts).max(1) - 1)
    }

    /// Returns the random bits for the weights of a query; null without dropout.
    unsafe fn bits(&self, state: Ptr, head: usize, query: usize, buffer: *mut f32) -> *const u32 {
        if self.found.attention.dropout.is_none() {
            return std::ptr::null();
        }
        let first = (head * self.queries + query) * self.keys;
        // SAFETY: the buffer has room for the words of a row, and for those before and after them.
        unsafe { self.words.draw(state.at(0).cast(), first, self.seen(query), buffer.cast()) }
    }

    fn row(&self, scores: *mut f32, dscores: *mut f32, bits: *const u32) -> ScoreRow {
        let AttentionDropout { threshold, factor } =
            self.found.attention.dropout.unwrap_or(AttentionDropout { threshold: 0, factor: 1.0 });
        ScoreRow { scores, dscores, bits, threshold, factor: factor as f32, scale: 1.0, sum: 0.0 }
    }

    /// Computes the attention of a task's queries.
    unsafe fn forward(&self, io: &AttentionArrays, head: usize, part: usize, scratch: *mut f32) {
        let at = self.places();
        let place = |offset: usize| scratch.wrapping_add(offset);
        let (width, depth, score_row) = (self.width_row(), self.depth_row(), self.score_row());
        let keys = self.keys_of(part);
        // SAFETY: addresses are those of the head's rows; scratch has the computed layout.
        unsafe {
            let k = self.address(io.k, head, self.keys, 0, self.width);
            let k = self.transposed(k, self.width, keys, place(at.keys_transposed));
            let v = self.address(io.v, head, self.keys, 0, self.depth);
            self.rows(v, self.depth, keys, place(at.values), depth);
            let v = RightOperand { at: place(at.values), step: depth, tile: self.to_depth.columns };
            let scores = StridedMatrix { at: place(at.scores), row: score_row, step: 1 };
            let output = StridedMatrix { at: place(at.output), row: depth, step: 1 };
            for block in self.blocks(part) {
                let (rows, seen) = (block.len(), self.seen(block.end - 1));
                let q = self.scaled_queries(io, head, &block, place(at.queries), width);
                multiply(&self.to_keys, [rows, seen, self.width], q, k, scores, false);
                let mut sums = [1f32; 256];
                for (r, query) in block.clone().enumerate() {
                    let own = place(at.scores + r * score_row);
                    let bits = self.bits(io.random, head, query, place(at.bits));
                    let mut row = self.row(own, std::ptr::null_mut(), bits);
                    self.hide(own, query, HIDDEN);
                    self.along(self.softmax, &mut row, self.seen(query), seen);
                    io.note(row.sum);
                    sums[r] = row.sum;
                }
                multiply(&self.to_depth, [rows, self.depth, seen], scores, v, output, false);
                for (r, query) in block.enumerate() {
                    let to = self.address(io.out[0], head, self.queries, query, self.depth);
                    self.store(output.at.add(r * depth), 1.0 / sums[r], self.depth, to);
                }
            }
        }
    }

    /// Runs a loop along the scores that a query attends to. Scores of the other keys of its block become 0.
    unsafe fn along(&self, f: TileFn, row: &mut ScoreRow, seen: usize, all: usize) {
        let nothing: *const u8 = std::ptr::null();
        // SAFETY: the row has `all` scores, and as many gradients if there are any.
        unsafe {
            f((&raw mut *row).cast(), nothing, nothing, nothing, seen);
            row.scores.add(seen).write_bytes(0, all - seen);
            if !row.dscores.is_null() {
                row.dscores.add(seen).write_bytes(0, all - seen);
            }
        }
    }

    unsafe fn scaled_queries(
        &self,
        io: &AttentionArrays,
        head: usize,
        block: &Range<usize>,
        to: *mut f32,
        stride: usize,
    ) -> StridedMatrix {
        let q = self.address(io.q, head, self.queries, block.start, self.width);
        // SAFETY: the caller has these queries, and room for them.
        unsafe {
            self.rows(q, self.width, block.len(), to, stride);
            let scale = self.found.attention.scale as f32;
            lanes_mut::<f32>(to.cast(), block.len() * stride).iter_mut().for_each(|x| *x *= scale);
        }
        StridedMatrix { at: to, row: stride, step: 1 }
    }

    /// Computes dQ of a task's queries, and the task's partial sums of dK and dV at `sums`.
    unsafe fn backward(
        &self,
        io: &AttentionArrays,
        head: usize,
        part: usize,
        scratch: *mut f32,
        sums: *mut f32,
    ) {
        let at = self.places();
        let place = |offset: usize| scratch.wrapping_add(offset);
        let (width, depth, score_row) = (self.width_row(), self.depth_row(), self.score_row());
        let keys = self.keys_of(part);
        let (dk, dv) = (sums, sums.wrapping_add(self.keys * width));
        let scale = self.found.attention.scale as f32;
        // SAFETY: as for `forward`.
        unsafe {
            sums.write_bytes(0, self.sums_of_one());
            let k = self.address(io.k, head, self.keys, 0, self.width);
            let kt = self.transposed(k, self.width, keys, place(at.keys_transposed));
            self.rows(k, self.width, keys, place(at.keys), width);
            let k = RightOperand { at: place(at.keys), step: width, tile: self.to_width.columns };
            let v = self.address(io.v, head, self.keys, 0, self.depth);
            let v = self.transposed(v, self.depth, keys, place(at.values_transposed));
            let scores = StridedMatrix { at: place(at.scores), row: score_row, step: 1 };
            let dscores = StridedMatrix { at: place(at.dscores), ..scores };
            let across = |x: StridedMatrix| StridedMatrix { row: x.step, step: x.row, ..x };
            let output = StridedMatrix { at: place(at.output), row: width, step: 1 };
            for block in self.blocks(part) {
                let (rows, seen) = (block.len(), self.seen(block.end - 1));
                let q = self.scaled_queries(io, head, &block, place(at.queries), width);
                let dy = self.address(io.dy, head, self.queries, block.start, self.depth);
                self.rows(dy, self.depth, rows, place(at.cotangent), depth);
                let dy = StridedMatrix { at: place(at.cotangent), row: depth, step: 1 };
                multiply(&self.to_keys, [rows, seen, self.width], q, kt, scores, false);
                multiply(&self.to_keys, [rows, seen, self.depth], dy, v, dscores, false);
                for (r, query) in block.clone().enumerate() {
                    let bits = self.bits(io.random, head, query, place(at.bits));
                    let own = |x: StridedMatrix| x.at.wrapping_add(r * score_row);
                    let mut row = self.row(own(scores), own(dscores), bits);
                    self.hide(own(scores), query, HIDDEN);
                    self.along(self.softmax_gradient, &mut row, self.seen(query), seen);
                    self.hide(own(dscores), query, 0.0);
                    io.note(row.sum);
                }
                let right = |x: StridedMatrix, tile| RightOperand { at: x.at, step: x.row, tile };
                let matrix = |at, row| StridedMatrix { at, row, step: 1 };
                let (by_dy, dv) = (right(dy, self.to_depth.columns), matrix(dv, depth));
                multiply(&self.to_depth, [seen, self.depth, rows], across(scores), by_dy, dv, true);
                let (by_q, dk) = (right(q, self.to_width.columns), matrix(dk, width));
                multiply(&self.to_width, [seen, self.width, rows], across(dscores), by_q, dk, true);
                if let Some(dq) = io.result_of(&self.found, AttentionOperand::Queries) {
                    multiply(&self.to_width, [rows, self.width, seen], dscores, k, output, false);
                    for (r, query) in block.enumerate() {
                        let to = self.address(dq, head, self.queries, query, self.width);
                        self.store(output.at.add(r * width), scale, self.width, to);
                    }
                }
            }
        }
    }

    /// Adds the partial sums of a head's tasks in a binary tree, `each` floats per task; the first task's sums receive
    /// the result.
    unsafe fn add_sums(&self, sums: *mut f32, each: usize) {
        // SAFETY: the tasks' sums are stored one after another.
        unsafe {
            let mut step = 1;
            while step < self.parts {
                for part in (0..self.parts - step).step_by(2 * step) {
                    let to = lanes_mut::<f32>(sums.add(part * each).cast(), each);
                    let from = lanes_mut::<f32>(sums.add((part + step) * each).cast(), each);
                    to.iter_mut().zip(from).for_each(|(x, y)| *x += *y);
                }
                step *= 2;
            }
        }
    }

    /// Adds the partial sums of a head's tasks and stores dK and dV.
    unsafe fn store_sums(&self, io: &AttentionArrays, head: usize, sums: *mut f32) {
        let (width, depth, each) = (self.width_row(), self.depth_row(), self.sums_of_one());
        // SAFETY: the tasks' sums are stored one after another, and results have a row for each key.
        unsafe {
            self.add_sums(sums, each);
            let dv = sums.add(self.keys * width);
            for (wanted, from, row, features) in [
                (AttentionOperand::Keys, sums, width, self.width),
                (AttentionOperand::Values, dv, depth, self.depth),
            ] {
                let Some(result) = io.result_of(&self.found, wanted) else { continue };
                for key in 0..self.keys {
                    let to = self.address(result, head, self.keys, key, features);
                    self.store(from.add(key * row), 1.0, features, to);
                }
            }
        }
    }
}

/// Detection of results that are not finite.
impl AttentionKernel {
    /// Whether any operand or result is infinite or NaN. The last query sees all keys, and all queries see the first
    /// key. So an operand that is not finite and that no softmax shows reaches one of these.
    fn is_odd(&self, io: &AttentionArrays) -> bool {
        let first = |result: Ptr, features: usize| (result, self.keys, 0, features);
        let last = |result: Ptr, features: usize| (result, self.queries, self.queries - 1, features);
        let of = |wanted: AttentionOperand| io.result_of(&self.found, wanted);
        let all = match self.found.gradient {
            None => vec![last(io.out[0], self.depth)],
            Some(_) => {
                let keys = of(AttentionOperand::Keys).map(|r| first(r, self.width));
                let values = of(AttentionOperand::Values).map(|r| first(r, self.depth));
                of(AttentionOperand::Queries)
                    .map(|r| last(r, self.width))
                    .into_iter()
                    .chain(keys)
                    .chain(values)
                    .collect()
            }
        };
        let heads = 0..self.batch * self.heads;
        io.odd.load(Ordering::Relaxed)
            || all.iter().any(|&(result, places, place, features)| {
                places > 0
                    && heads.clone().any(|head| {
                        let at = self.address(result, head, places, place, features);
                        // SAFETY: the result has this row.
                        (0..features).any(|i| unsafe { !self.is_finite(at, i) })
                    })
            })
    }

    /// Whether element `i` of a row is finite.
    unsafe fn is_finite(&self, row: *const u8, i: usize) -> bool {
        // SAFETY: the caller's row has the element.
        unsafe {
            match self.dtype {
                DType::F32 => row.cast::<f32>().add(i).read().is_finite(),
                DType::BF16 => math::from_bf16(row.cast::<u16>().add(i).read()).is_finite(),
                _ => math::from_f16(row.cast::<u16>().add(i).read()).is_finite(),
            }
        }
    }
}

/// The arrays of one call.
pub(crate) struct AttentionArrays {
    q: Ptr,
    k: Ptr,
    v: Ptr,
    random: Ptr,
    dy: Ptr,
    out: [Ptr; 3],
    /// Whether a softmax had an input that is not finite.
    odd: AtomicBool,
}

impl AttentionArrays {
    /// Records whether the sum of a softmax is finite.
    fn note(&self, sum: f32) {
        if !sum.is_finite() {
            self.odd.store(true, Ordering::Relaxed);
        }
    }

    fn of(found: &AttentionMatch, io: &Io<'_>) -> AttentionArrays {
        let input = |i: usize| Ptr::of(io.inputs[i]);
        let nothing = Ptr(std::ptr::null_mut());
        let mut out = [nothing; 3];
        out.iter_mut().zip(io.outputs).for_each(|(to, &from)| *to = Ptr(from));
        AttentionArrays {
            q: input(found.q),
            k: input(found.k),
            v: input(found.v),
            random: found.random.map_or(nothing, input),
            dy: found.gradient.as_ref().map_or(nothing, |(dy, _)| input(*dy)),
            out,
            odd: AtomicBool::new(false),
        }
    }

    /// Returns the destination of dQ, dK or dV, if it is requested.
    fn result_of(&self, found: &AttentionMatch, wanted: AttentionOperand) -> Option<Ptr> {
        let (_, results) = found.gradient.as_ref()?;
        results.iter().position(|&r| r == wanted).map(|i| self.out[i])
    }
}

impl Kernel for AttentionKernel {
    fn scratch(&self) -> usize {
        let own = match self.found.gradient {
            Some(_) if self.parts > 1 => self.batch * self.heads * self.parts * self.sums_of_a_task() * 4,
            _ => 0,
        };
        own.max(self.whole.as_ref().map_or(0, |whole| whole.scratch()))
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let arrays = AttentionArrays::of(&self.found, io);
        let heads = self.batch * self.heads;
        let (at, each, shared) = (self.places(), self.sums_of_a_task(), Ptr(io.scratch));
        let bytes = self.pairs.as_ref().map_or(at.total * 4, |p| self.pair_scratch(p));
        let (pairs, features) = (heads * self.queries * self.keys, self.width + self.depth);
        if heads * self.queries == 0 {
            return Ok(());
        }
        let body = |task: usize| {
            let (head, part) = (task / self.parts, task % self.parts);
            with_scratch(bytes, |scratch| {
                let scratch: *mut f32 = scratch.cast();
                // SAFETY: arrays are those that the kernel was created for; tasks have disjoint queries and sums.
                unsafe {
                    if let Some(pairs) = &self.pairs {
                        self.by_pairs(pairs, &arrays, task, scratch, shared);
                    } else if self.found.gradient.is_none() {
                        self.forward(&arrays, head, part, scratch);
                    } else if self.parts == 1 {
                        let sums = scratch.wrapping_add(at.sums);
                        self.backward(&arrays, head, part, scratch, sums);
                        self.store_sums(&arrays, head, sums);
                    } else {
                        self.backward(&arrays, head, part, scratch, shared.elem(task * each));
                    }
                }
            });
        };
        let work = pairs as f64 * (1.0 + features as f64 / 16.0);
        cx.team.run_with(heads * self.parts, work, cx.flush, &body);
        if self.found.gradient.is_some() && self.parts > 1 {
            let body = |head: usize| {
                let sums = shared.elem(head * self.parts * each);
                // SAFETY: all tasks are done; heads have disjoint sums and results.
                match &self.pairs {
                    None => unsafe { self.store_sums(&arrays, head, sums) },
                    Some(pairs) => with_scratch(bytes, |scratch| unsafe {
                        self.store_sums_by_pairs(pairs, &arrays, head, sums, scratch.cast());
                    }),
                }
            };
            let work = (heads * self.parts * each) as f64;
            cx.team.run_with(heads, work, cx.flush, &body);
        }
        match &self.whole {
            // SAFETY: by the caller's promise; results are overwritten.
            Some(whole) if self.is_odd(&arrays) => unsafe { whole.run(cx, io) },
            _ => Ok(()),
        }
    }
}

/// Computes `c: [m, n] = a: [m, k] · b: [k, n]`; with `add`, adds the product to `c`.
unsafe fn multiply(
    shape: &MicrokernelShape<f32>,
    [m, n, k]: [usize; 3],
    a: StridedMatrix,
    b: RightOperand,
    c: StridedMatrix,
    add: bool,
) {
    let panels = m.div_ceil(shape.rows());
    for panel in 0..panels {
        let (from, to) = (m * panel / panels, m * (panel + 1) / panels);
        for (tile, j) in (0..n).step_by(shape.columns).enumerate() {
            let columns = shape.columns.min(n - j);
            let to_write = c.at.wrapping_add(from * c.row + j);
            let product = Product {
                k,
                rows: to - from,
                a: a.at.wrapping_add(from * a.row),
                a_row: a.row,
                a_k: a.step,
                b: b.at.wrapping_add(tile * b.tile),
                b_k: b.step,
                padded: true,
                from: if add { to_write } else { std::ptr::null() },
                from_row: c.row,
                c: to_write,
                c_row: c.row,
                padded_sums: [false; 2],
                bias: std::ptr::null(),
                columns,
                ahead: std::ptr::null(),
                ahead_step: 0,
            };
            // SAFETY: the caller's matrices; rows of right operands are whole vectors.
            unsafe { shape.kernel(to - from, LhsLayout::Strided, columns)(&product) };
        }
    }
}

/// Scores of a query, with arguments and results of a loop along them.
pub(crate) struct ScoreRow {
    scores: *mut f32,
    /// Gradients w.r.t. the weights, which are replaced by gradients w.r.t. the scores.
    dscores: *mut f32,
    /// Random bits; null without dropout. Weights whose bits are below `threshold` are dropped, the others are
    /// multiplied by `factor`.
    bits: *const u32,
    threshold: u32,
    factor: f32,
    /// Factor of the scores before the softmax.
    scale: f32,
    /// Sum of the exponentials.
    sum: f32,
}

/// Returns the maximum, ignoring NaNs.
#[inline(always)]
fn maximum(x: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; ACCUMULATORS];
    let (whole, rest) = x.as_chunks::<ACCUMULATORS>();
    for chunk in whole {
        for (m, &x) in most.iter_mut().zip(chunk) {
            *m = if x > *m { x } else { *m };
        }
    }
    most.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
}

/// Sums `f` over all pairs: independent accumulators, added in a binary tree, then the remaining pairs in order.
#[inline(always)]
fn total(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0f32; ACCUMULATORS];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<ACCUMULATORS>(), y.as_chunks::<ACCUMULATORS>());
    for (x, y) in x.iter().zip(y) {
        for i in 0..ACCUMULATORS {
            sums[i] += f(x[i], y[i]);
        }
    }
    let mut step = ACCUMULATORS / 2;
    while step > 0 {
        for i in 0..step {
            sums[i] += sums[i + step];
        }
        step /= 2;
    }
    x_rest.iter().zip(y_rest).fold(sums[0], |s, (&x, &y)| s + f(x, y))
}

/// Computes `x = exp(x − max x)` in place; returns the sum.
#[inline(always)]
fn exponentials<I: Isa>(x: &mut [f32]) -> f32 {
    let top = maximum(x);
    x.iter_mut().for_each(|x| *x = math::exp::<I>(*x - top));
    total(x, x, |x, _| x)
}

/// Multiplies scores by a scale.
#[inline(always)]
fn scaled(x: &mut [f32], scale: f32) {
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Dropout: sets weights whose bits are below the threshold to 0 and multiplies the others.
#[inline(always)]
fn apply_dropout(x: &mut [f32], bits: &[u32], threshold: u32, factor: f32) {
    for (x, &bits) in x.iter_mut().zip(bits) {
        let kept = *x * factor;
        *x = if bits >= threshold { kept } else { 0.0 };
    }
}

/// Softmax without its division, then dropout: scores of a [`ScoreRow`] become weights that must still be divided by
/// `sum`.
struct SoftmaxDropout;
impl TileLoop for SoftmaxDropout {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, _: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: `dst` is a row whose arrays have `n` elements.
        unsafe {
            let row = &mut *dst.cast::<ScoreRow>();
            let x = std::slice::from_raw_parts_mut(row.scores, n);
            scaled(x, row.scale);
            row.sum = exponentials::<I>(x);
            if !row.bits.is_null() {
                apply_dropout(x, std::slice::from_raw_parts(row.bits, n), row.threshold, row.factor);
            }
        }
    }
}

/// Softmax, dropout and their gradient: scores of a [`ScoreRow`] become weights after dropout.
///
/// Gradients w.r.t. the weights become gradients w.r.t. the scores: `dS = P ⊙ (dP − Σ P ⊙ dP)`, with `P` before
/// dropout.
struct SoftmaxGradient;
impl TileLoop for SoftmaxGradient {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, _: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: as for `SoftmaxDropout`; scores and gradients are different arrays.
        unsafe {
            let row = &mut *dst.cast::<ScoreRow>();
            let x = std::slice::from_raw_parts_mut(row.scores, n);
            let d = std::slice::from_raw_parts_mut(row.dscores, n);
            scaled(x, row.scale);
            row.sum = exponentials::<I>(x);
            let inverse = 1.0 / row.sum;
            x.iter_mut().for_each(|x| *x *= inverse);
            if !row.bits.is_null() {
                apply_dropout(d, std::slice::from_raw_parts(row.bits, n), row.threshold, row.factor);
            }
            let mean = total(x, d, |x, d| x * d);
            d.iter_mut().zip(&*x).for_each(|(d, &x)| *d = x * (*d - mean));
            if !row.bits.is_null() {
                apply_dropout(x, std::slice::from_raw_parts(row.bits, n), row.threshold, row.factor);
            }
        }
    }
}

/// Kernel family for multi-head attention.
pub static FAMILY: Family = Family {
    name: "attention",
    doc: "multi-head attention or its gradient, without storing all scores",
    takes: |step| matches!(step.kernel, systole_compile::Kernel::Attention(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("amx", AMX, "bf16 on AMX tile registers", by_pairs),
        KernelCandidate::new("bf16_pairs", &[Level::Avx512Bf16], "bf16 by the pair dot-product instruction \
             (AVX512_BF16)",
            by_pairs),
        KernelCandidate::new("f32", EVERY, "supports every attention that the compiler recognizes, in f32",
            |p| {
                Ok(Box::new(AttentionKernel::with(found(p)?, p.step, p.target.level.vectors(), None)))
            }),
    ],
};

fn found<'a>(p: &Problem<'a>) -> SelectResult<&'a AttentionMatch> {
    match &p.step.kernel {
        systole_compile::Kernel::Attention(found) => Ok(found),
        _ => Err("not an attention".into()),
    }
}

/// Creates the kernel with bf16 pair GEMMs, if the instruction set has them.
fn by_pairs(p: &Problem<'_>) -> CandidateResult {
    let found = found(p)?;
    let [q, k, v] = [found.q, found.k, found.v].map(|i| &p.step.input_types[i]);
    if q.dtype != DType::BF16 {
        return Err("its operands are not bf16".into());
    }
    let sizes = [k.shape[1], q.shape[3], v.shape[3]];
    let pairs =
        Bf16PairGemms::new(p.target.level, sizes).ok_or("no bf16 pair kernel supports these sizes")?;
    Ok(Box::new(AttentionKernel::with(found, p.step, p.target.level.vectors(), Some(pairs))))
}
