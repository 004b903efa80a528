//! Attention of bf16 by products of pairs: words of 32 bits hold two neighbouring steps of a sum.
//!
//! Scores are summed in f32, and so is all that happens along them; weights and the derivatives by scores are rounded to
//! bf16 where they become operands again, as a program without this kernel would. Sums over queries, which give the
//! derivatives by keys and values, have the features as rows and the keys as columns: then pairs of queries are the words
//! of both operands, and only two rows of scores have to be interleaved.
//!
//! Tile registers take whole tiles: operands have zeros after their last word up to a multiple of sixteen, and there is
//! room for as many rows and columns of sums. What the rows and columns beyond the last ones hold meets no others.

use crate::kernel::Ptr;
use crate::kernels::attention::{Arrays, AttentionKernel, Columns, LINE, Room, Row, Rows, multiply};
use crate::simd::amx;
use crate::simd::amx::LANES;
use crate::simd::amx::spread::{COLUMNS, Operands, Spread, Sums};
use crate::simd::gemm::{Configured, Shape};
use crate::simd::level::{Isa, Level, Tile, TileFn};
use crate::simd::loops::lanes_mut;
use crate::simd::math;
use crate::simd::pack::{PackFn, PanelArgs};
use std::ops::Range;
use systole_ir::DType;
use systole_ir::attention::Wanted;

/// What products of pairs need.
pub struct Pairs {
    pub to_keys: Shape<f32>,
    pub to_width: Shape<f32>,
    pub to_depth: Shape<f32>,
    /// What computes all of them, where the level has tile registers.
    tiles: Option<Spread>,
    pack: PackFn<f32>,
    /// Packs pairs of rows whose features are rows of a left operand.
    pack_left: PackFn<f32>,
    interleave: TileFn,
    round: TileFn,
}

impl Pairs {
    /// For so many keys, features of keys and features of values; `None` where the level has no such products.
    pub fn new(level: Level, sizes: [usize; 3]) -> Option<Pairs> {
        match amx::kernels_of(level) {
            Some(kernels) => Pairs::with_tiles(kernels, level.vectors()),
            None => Pairs::with_vectors(level, sizes),
        }
    }

    /// By tile registers, beside vectors of a level.
    pub(crate) fn with_tiles(kernels: &amx::Kernels, vectors: Level) -> Option<Pairs> {
        let [pack_left, pack] = amx::pack::packs(DType::BF16, vectors)?;
        Some(Pairs {
            to_keys: kernels.bf16,
            to_width: kernels.bf16,
            to_depth: kernels.bf16,
            tiles: Some(kernels.spread),
            pack,
            pack_left,
            interleave: vectors.tile::<Interleave>(),
            round: vectors.tile::<Round>(),
        })
    }

    /// By vectors.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_vectors(level: Level, [keys, width, depth]: [usize; 3]) -> Option<Pairs> {
        use crate::simd::gemm::shape_halves;
        use crate::simd::pack::halves;
        Some(Pairs {
            to_keys: shape_halves(level, keys)?,
            to_width: shape_halves(level, width)?,
            to_depth: shape_halves(level, depth)?,
            tiles: None,
            pack: halves(),
            pack_left: halves(),
            interleave: level.vectors().tile::<Interleave>(),
            round: level.vectors().tile::<Round>(),
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn with_vectors(_: Level, _: [usize; 3]) -> Option<Pairs> {
        None
    }

    /// Words of so many steps in an operand, zeros after the last ones included.
    fn words(&self, steps: usize) -> usize {
        if self.tiles.is_some() { words(steps).next_multiple_of(LANES) } else { words(steps) }
    }

    /// Rows that a left operand, and sums, of so many have room for.
    fn rows(&self, rows: usize) -> usize {
        if self.tiles.is_some() { rows.next_multiple_of(LANES) } else { rows }
    }

    /// This thread's tile registers for these products, where they need them.
    fn configured(&self) -> Option<Configured> {
        self.to_keys.registers.map(|r| Configured::new(r, COLUMNS))
    }

    /// Packed pairs of rows, their features `stride` apart, as a left operand whose rows are features.
    fn features(&self, at: *mut f32, stride: usize) -> Rows {
        Rows { at, row: if self.tiles.is_some() { LANES } else { 1 }, step: stride }
    }

    /// As [`multiply`]; `k` counts words.
    unsafe fn multiply(
        &self,
        shape: &Shape<f32>,
        [m, n, k]: [usize; 3],
        a: Rows,
        b: Columns,
        c: Rows,
        add: bool,
    ) {
        // SAFETY: the caller's matrices, which have room for whole tiles where registers are tiles.
        unsafe {
            match &self.tiles {
                Some(tiles) => multiply_tiles(tiles, [m, n, k], a, b, c, add),
                None => multiply(shape, [m, n, k], a, b, c, add),
            }
        }
    }
}

/// As [`multiply`], of whole tiles: what lies beyond the sums' last rows and columns is overwritten.
unsafe fn multiply_tiles(tiles: &Spread, [m, n, k]: [usize; 3], a: Rows, b: Columns, c: Rows, add: bool) {
    const WORD: usize = size_of::<f32>();
    let left = |row: usize| a.at.wrapping_add(row * a.row).cast_const().cast::<u8>();
    let begin = 0;
    for (panel, j) in (0..n).step_by(COLUMNS).enumerate() {
        for i in (0..m).step_by(COLUMNS) {
            let operands = Operands {
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
            let sums = Sums { operands, c: c.at.wrapping_add(i * c.row + j), c_row: c.row * WORD, add };
            // SAFETY: the caller's matrices have room for whole tiles; it has configured the registers.
            unsafe { (tiles.sums)(&sums) };
        }
    }
}

/// Words of so many steps.
fn words(steps: usize) -> usize {
    steps.div_ceil(2)
}

/// Where a task's arrays lie in its scratch, in words.
struct Places {
    keys_turned: usize,
    /// Pairs of values forward, pairs of keys backward.
    rows: usize,
    queries: usize,
    scores: usize,
    /// Scores rounded, in pairs along the keys.
    rounded: usize,
    output: usize,
    bits: usize,
    /// The derivative's.
    values_turned: usize,
    cotangent: usize,
    slopes: usize,
    /// Pairs of queries: queries and cotangents by features, weights and slopes by keys.
    query_pairs: usize,
    cotangent_pairs: usize,
    weight_pairs: usize,
    slope_pairs: usize,
    /// Sums by features and keys; a copy with keys as rows.
    sums: usize,
    turned: usize,
    total: usize,
}

impl AttentionKernel {
    fn pair_places(&self, pairs: &Pairs) -> Places {
        let mut room = Room { taken: 0 };
        let keys = AttentionKernel::padded(&pairs.to_keys, self.keys);
        let (width, depth) = (self.width_row(), self.depth_row());
        let gradient = self.found.gradient.is_some();
        let derivative = |n: usize| if gradient { n } else { 0 };
        let (row, block, block_words) = (self.score_row(), pairs.rows(self.block), pairs.words(self.block));
        Places {
            keys_turned: room.take(pairs.words(self.width) * keys),
            rows: room.take(pairs.words(self.keys) * if gradient { width } else { depth }),
            queries: room.take(block * self.words_of(self.width)),
            scores: room.take((block + 1) * row),
            rounded: room.take(block * self.words_of(self.keys)),
            output: room.take(block * width.max(depth)),
            bits: room.take(self.keys + 8),
            values_turned: room.take(derivative(pairs.words(self.depth) * keys)),
            cotangent: room.take(derivative(block * self.words_of(self.depth))),
            slopes: room.take(derivative((block + 1) * row)),
            query_pairs: room.take(derivative(block_words * width)),
            cotangent_pairs: room.take(derivative(block_words * depth)),
            weight_pairs: room.take(derivative(block_words * row)),
            slope_pairs: room.take(derivative(block_words * row)),
            sums: room.take(derivative(if self.parts == 1 { self.pair_sums_of_one(pairs) } else { 0 })),
            turned: room.take(derivative(self.keys * width.max(depth))),
            total: room.taken,
        }
    }

    /// Words between rows of so many steps: whole lines and one more, so that rows do not share sets of the cache.
    fn words_of(&self, steps: usize) -> usize {
        words(steps).next_multiple_of(LINE) + LINE
    }

    /// Bytes of a task's scratch.
    pub(crate) fn pair_scratch(&self, pairs: &Pairs) -> usize {
        self.pair_places(pairs).total * 4
    }

    /// Floats of a task's derivatives by keys and values.
    pub(crate) fn pair_sums_of_one(&self, pairs: &Pairs) -> usize {
        (pairs.rows(self.width) + pairs.rows(self.depth)) * self.score_row()
    }

    /// Rows of a head as they are, words along the features.
    unsafe fn words_of_rows(
        &self,
        pairs: &Pairs,
        from: *mut u8,
        features: usize,
        rows: usize,
        to: *mut f32,
    ) -> Rows {
        let (row, last) = (self.words_of(features), words(features) - 1);
        for r in 0..rows {
            let (from, to) = (from.wrapping_add(r * self.heads * features * 2), to.wrapping_add(r * row));
            // SAFETY: the caller's rows and room for them; the half of a last word is zero, and so are those after it.
            unsafe {
                to.add(last).write_bytes(0, pairs.words(features) - last);
                std::ptr::copy_nonoverlapping(from.cast_const(), to.cast(), features * 2);
            }
        }
        Rows { at: to, row, step: 1 }
    }

    /// Words of two neighbouring rows of a head, for each feature, packed by one of the two.
    unsafe fn pairs_of_rows(
        &self,
        (pairs, pack): (&Pairs, PackFn<f32>),
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
        // SAFETY: the caller's rows and room for the pairs.
        unsafe { pack(&[panel]) };
    }

    /// Rows of a head as columns of a right operand, words along the features.
    unsafe fn turned_pairs(
        &self,
        pairs: &Pairs,
        from: *mut u8,
        features: usize,
        rows: usize,
        to: *mut f32,
    ) -> Columns {
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
        Columns { at: to, step: columns, tile: pairs.words(features) * columns }
    }

    /// All of a task; `shared` has the sums of all tasks where a head has several.
    pub(crate) unsafe fn by_pairs(
        &self,
        pairs: &Pairs,
        io: &Arrays,
        task: usize,
        scratch: *mut f32,
        shared: Ptr,
    ) {
        let (head, part) = (task / self.parts, task % self.parts);
        let _registers = pairs.configured();
        // SAFETY: by the caller's promise.
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

    /// The attention of a task's queries.
    unsafe fn forward_by_pairs(
        &self,
        pairs: &Pairs,
        io: &Arrays,
        head: usize,
        part: usize,
        scratch: *mut f32,
    ) {
        let at = self.pair_places(pairs);
        let place = |offset: usize| scratch.wrapping_add(offset);
        let (depth, score_row) = (self.depth_row(), self.score_row());
        let keys = self.keys_of(part);
        // SAFETY: addresses are those of the head's rows; scratch is laid out as counted.
        unsafe {
            let k = self.address(io.k, head, self.keys, 0, self.width);
            let k = self.turned_pairs(pairs, k, self.width, keys, place(at.keys_turned));
            let v = self.address(io.v, head, self.keys, 0, self.depth);
            self.pairs_of_rows((pairs, pairs.pack), v, self.depth, keys, place(at.rows), depth);
            let v = Columns { at: place(at.rows), step: depth, tile: pairs.to_depth.columns };
            let scores = Rows { at: place(at.scores), row: score_row, step: 1 };
            let weights = Rows { at: place(at.rounded), row: self.words_of(self.keys), step: 1 };
            let output = Rows { at: place(at.output), row: depth, step: 1 };
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
                    let mut row = Row { scale: self.scale(), ..self.row(own, std::ptr::null_mut(), bits) };
                    self.along(self.soften, &mut row, self.seen(query), whole);
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

    /// Slopes of a block of queries in place of what they are made from, and the same rounded.
    unsafe fn slopes_of_block(
        &self,
        pairs: &Pairs,
        io: &Arrays,
        (head, block): (usize, Range<usize>),
        [scores, slopes, rounded]: [Rows; 3],
        whole: usize,
        room: *mut f32,
    ) {
        let score_row = self.score_row();
        for (r, query) in block.enumerate() {
            let own = |x: Rows| x.at.wrapping_add(r * score_row);
            // SAFETY: the caller's rows of scores, and room for a row's random bits.
            unsafe {
                let bits = self.bits(io.random, head, query, room);
                let mut row = Row { scale: self.scale(), ..self.row(own(scores), own(slopes), bits) };
                self.along(self.slope, &mut row, self.seen(query), whole);
                let from = own(slopes).cast_const().cast();
                (pairs.round)(rounded.at.add(r * rounded.row).cast(), from, from, from, whole);
            }
        }
    }

    /// Words of two neighbouring rows of scores, for `whole` keys.
    unsafe fn pairs_of_scores(&self, pairs: &Pairs, from: Rows, [rows, whole]: [usize; 2], to: *mut f32) {
        let score_row = self.score_row();
        // SAFETY: the caller's rows with room for one more, and room for their pairs in whole tiles.
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

    /// Stores a block's derivatives by queries.
    unsafe fn store_queries(&self, output: Rows, head: usize, block: Range<usize>, dq: Ptr) {
        for (r, query) in block.enumerate() {
            // SAFETY: the caller's rows of sums; the result has a row for each query.
            unsafe {
                let to = self.address(dq, head, self.queries, query, self.width);
                self.store(output.at.add(r * output.row), self.scale(), self.width, to);
            }
        }
    }

    /// The derivatives by a task's queries, and its share of those by keys and values at `sums`: features by keys.
    unsafe fn backward_by_pairs(
        &self,
        pairs: &Pairs,
        io: &Arrays,
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
            let dk = Rows { at: sums, row: score_row, step: 1 };
            let dv = Rows { at: sums.add(pairs.rows(self.width) * score_row), ..dk };
            let k = self.address(io.k, head, self.keys, 0, self.width);
            let k_turned = self.turned_pairs(pairs, k, self.width, keys, place(at.keys_turned));
            self.pairs_of_rows((pairs, pairs.pack), k, self.width, keys, place(at.rows), width);
            let k = Columns { at: place(at.rows), step: width, tile: pairs.to_width.columns };
            let v = self.address(io.v, head, self.keys, 0, self.depth);
            let v = self.turned_pairs(pairs, v, self.depth, keys, place(at.values_turned));
            let scores = Rows { at: place(at.scores), row: score_row, step: 1 };
            let slopes = Rows { at: place(at.slopes), ..scores };
            let rounded = Rows { at: place(at.rounded), row: self.words_of(self.keys), step: 1 };
            let output = Rows { at: place(at.output), row: width, step: 1 };
            let by_keys = |at: *mut f32| Columns { at, step: score_row, tile };
            for block in self.blocks(part) {
                let (rows, seen) = (block.len(), self.seen(block.end - 1));
                let q = self.address(io.q, head, self.queries, block.start, self.width);
                let dy = self.address(io.dy, head, self.queries, block.start, self.depth);
                let left = (pairs, pairs.pack_left);
                self.pairs_of_rows(left, q, self.width, rows, place(at.query_pairs), width);
                self.pairs_of_rows(left, dy, self.depth, rows, place(at.cotangent_pairs), depth);
                let q = self.words_of_rows(pairs, q, self.width, rows, place(at.queries));
                let dy = self.words_of_rows(pairs, dy, self.depth, rows, place(at.cotangent));
                pairs.multiply(&pairs.to_keys, [rows, seen, words(self.width)], q, k_turned, scores, false);
                pairs.multiply(&pairs.to_keys, [rows, seen, words(self.depth)], dy, v, slopes, false);
                let whole = 2 * pairs.words(seen);
                let along = [scores, slopes, rounded];
                self.slopes_of_block(pairs, io, (head, block.clone()), along, whole, place(at.bits));
                for (from, to) in [(scores, at.weight_pairs), (slopes, at.slope_pairs)] {
                    self.pairs_of_scores(pairs, from, [rows, whole], place(to));
                }
                let dy_pairs = pairs.features(place(at.cotangent_pairs), depth);
                let weights = by_keys(place(at.weight_pairs));
                pairs.multiply(&pairs.to_keys, [self.depth, seen, words(rows)], dy_pairs, weights, dv, true);
                let q_pairs = pairs.features(place(at.query_pairs), width);
                let by_scores = by_keys(place(at.slope_pairs));
                pairs.multiply(&pairs.to_keys, [self.width, seen, words(rows)], q_pairs, by_scores, dk, true);
                if let Some(dq) = io.result_of(&self.found, Wanted::Queries) {
                    let dims = [rows, self.width, words(seen)];
                    pairs.multiply(&pairs.to_width, dims, rounded, k, output, false);
                    self.store_queries(output, head, block, dq);
                }
            }
        }
    }

    /// Adds the sums of a head's tasks in a tree and stores them, keys as rows again; `room` is a task's scratch.
    pub(crate) unsafe fn store_sums_by_pairs(
        &self,
        pairs: &Pairs,
        io: &Arrays,
        head: usize,
        sums: *mut f32,
        room: *mut f32,
    ) {
        let (each, score_row) = (self.pair_sums_of_one(pairs), self.score_row());
        let rows = room.wrapping_add(self.pair_places(pairs).turned);
        // SAFETY: the tasks' sums lie one after the other; scratch is laid out as counted.
        unsafe {
            self.add_sums(sums, each);
            let dv = sums.add(pairs.rows(self.width) * score_row);
            for (wanted, from, scale, features, row) in [
                (Wanted::Keys, sums, self.scale(), self.width, self.width_row()),
                (Wanted::Values, dv, 1.0, self.depth, self.depth_row()),
            ] {
                let Some(result) = io.result_of(&self.found, wanted) else { continue };
                let turn = PanelArgs {
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
                (self.floats)(&[turn]);
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

/// Numbers rounded to bf16, the first of a word in its lower half.
struct Round;
impl Tile for Round {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: both have `n` elements and do not overlap.
        let (to, x) = unsafe { (lanes_mut::<u16>(dst, n), lanes_mut::<f32>(a.cast_mut(), n)) };
        to.iter_mut().zip(x).for_each(|(to, &mut x)| *to = math::to_bf16(x));
    }
}

/// Words of two arrays' numbers, rounded to bf16.
struct Interleave;
impl Tile for Interleave {
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
