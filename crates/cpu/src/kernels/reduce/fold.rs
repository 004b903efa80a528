//! Reductions with one associative op, over any dimensions, of an array or of an element-wise program's values.
//!
//! Adjacent dimensions that are all folded or all kept are merged; the innermost merged one is `inner`. If `inner` is
//! folded (a row fold), element `i` of a run goes to accumulator `i % LANES`, and a tree reduces the accumulators. If
//! it is kept (a column fold), every column has an accumulator. Long reductions are divided into parts, whose partial
//! results a second tree reduces.
//!
//! The sizes of parts and the number of accumulators depend on the shape alone, so the order of a reduction depends
//! neither on the number of threads nor on the vector width. bf16 and f16 are reduced in f32 and rounded once. A lane
//! is an element in the type in which it is reduced.

use crate::kernel::elementwise::{ElementwiseProgram, RegisterAddresses, TILE, store};
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::simd::jit;
use crate::simd::jit::ResultSink;
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{lane_size, lanes_mut, narrow, widen};
use crate::simd::reduce_loops::{LANES, ReduceLoops, loops_of};
use smallvec::SmallVec;
use std::mem::MaybeUninit;
use std::ops::Range;
use systole_compile::{Map, Step};
use systole_ir::op::Monoid;
use systole_ir::{DType, Result};

/// Elements per part: one block of the parallel loop reduces them to a partial result.
const PART: usize = 1 << 16;
/// Elements per unit of a row fold: longer runs are divided, so that parts have similar sizes.
const CHUNK: usize = 1 << 14;
/// Maximum row length, in elements, that a sequential loop reduces, many rows per call: longer rows use more than half
/// of the [`LANES`] accumulators.
const SHORT: usize = LANES / 2;
/// Columns per block of a column fold.
const COLUMNS: usize = 4 * TILE;

/// Bytes of the accumulators per store of the program, enough for a row fold and for a block of columns.
const ACCUMULATORS: usize = (if COLUMNS > LANES { COLUMNS } else { LANES }) * 8;

/// Mixed-radix iteration over several dimensions: their sizes and strides, in elements.
#[derive(Default)]
struct MixedRadixWalk(Vec<(usize, usize)>);

impl MixedRadixWalk {
    fn count(&self) -> usize {
        self.0.iter().map(|d| d.0).product()
    }

    /// Returns the offset of combination `i`.
    fn at(&self, mut i: usize) -> usize {
        let mut at = 0;
        for &(size, stride) in self.0.iter().rev() {
            at += i % size * stride;
            i /= size;
        }
        at
    }
}

/// Kernel of a reduction, bound to a step.
pub struct ReduceKernel {
    program: ElementwiseProgram,
    loops: ReduceLoops,
    dtype: DType,
    /// Bytes of a lane.
    lane: usize,
    /// Identity of the op, as a lane.
    identity: [u8; 8],
    widen: Option<TileFn>,
    narrow: Option<TileFn>,
    /// Dimensions that are kept, without `inner`.
    kept: MixedRadixWalk,
    /// Dimensions that are folded, without `inner`.
    folded: MixedRadixWalk,
    /// Size of the innermost merged dimension, and whether it is folded.
    inner: usize,
    inner_folded: bool,
    /// Rows per call of a row fold: more than one for short contiguous rows.
    together: usize,
    /// Whether a column fold adds one row after another to the accumulators. Otherwise it reads several short rows at a
    /// time, each with separate accumulators, which is a different order.
    in_turn: bool,
}

impl ReduceKernel {
    /// Whether the element-wise program and the reduction are one loop of machine code.
    pub fn is_fused(&self) -> bool {
        self.program.is_fused()
    }

    /// Whether groups of instructions are machine code.
    pub fn has_groups(&self) -> bool {
        self.program.has_groups()
    }

    /// Creates the kernel that reduces an element-wise program over the `folded` dimensions.
    pub fn new(map: &Map, folded: &[bool], monoid: Monoid, step: &Step, level: Level) -> ReduceKernel {
        ReduceKernel::with(map, folded, monoid, step.output_types[0].dtype, level, jit::is_wanted())
    }

    /// Creates a reduction kernel. `fuse`: use machine code if it supports the program.
    pub(crate) fn with(
        map: &Map,
        folded: &[bool],
        monoid: Monoid,
        dtype: DType,
        level: Level,
        fuse: bool,
    ) -> ReduceKernel {
        let identity = monoid.identity(dtype);
        let bytes = match dtype {
            DType::F16 | DType::BF16 => ((identity.as_f64() as f32).to_bits() as u64).to_le_bytes(),
            _ => identity.to_bits(dtype).to_le_bytes(),
        };
        let mut runs: Vec<(usize, bool)> = Vec::new();
        for (&size, &f) in map.shape.iter().zip(folded) {
            match runs.last_mut() {
                Some(last) if last.1 == f => last.0 *= size,
                _ => runs.push((size, f)),
            }
        }
        let (inner, inner_folded) = runs.pop().unwrap_or((1, false));
        let mut stride = inner;
        let (mut kept_walk, mut folded_walk) = (MixedRadixWalk::default(), MixedRadixWalk::default());
        for &(size, f) in runs.iter().rev() {
            if f { &mut folded_walk } else { &mut kept_walk }.0.insert(0, (size, stride));
            stride *= size;
        }
        let sink = if inner_folded { ResultSink::Along(monoid) } else { ResultSink::Across(monoid) };
        let in_order = inner_folded && folded_walk.0.is_empty() && kept_walk.0.len() <= 1;
        let together = if in_order && (1..=SHORT).contains(&inner) { TILE / inner } else { 1 };
        // Fused machine code reduces one row per call, so short rows are left to the interpreter.
        let program = match together {
            1 => ElementwiseProgram::new(map, sink, inner, level, fuse),
            _ => ElementwiseProgram::interpreted(map, level, fuse),
        };
        ReduceKernel {
            program,
            loops: loops_of(monoid, dtype, level),
            dtype,
            lane: lane_size(dtype),
            identity: bytes,
            widen: widen(dtype, level),
            narrow: narrow(dtype, level),
            kept: kept_walk,
            folded: folded_walk,
            inner,
            inner_folded,
            together,
            in_turn: false,
        }
    }

    /// Creates a column fold of `[rows, columns]` over the first dimension, for [`ReduceKernel::columns`].
    pub fn of_columns(map: &Map, monoid: Monoid, dtype: DType, level: Level) -> ReduceKernel {
        let all = ReduceKernel::with(map, &[true, false], monoid, dtype, level, jit::is_wanted());
        ReduceKernel { in_turn: true, ..all }
    }

    /// Returns, for a row fold, units ([`CHUNK`]) per contiguous run, units per result, units per part.
    fn row_parts(&self) -> (usize, usize, usize) {
        let chunks = self.inner.div_ceil(CHUNK);
        let units = self.folded.count() * chunks;
        let per_part = (PART / self.inner.clamp(1, CHUNK)).max(1);
        (chunks, units, per_part)
    }

    /// Returns, for a column fold, rows per part and rows per pass.
    fn column_parts(&self) -> (usize, usize) {
        let adjacent = self.folded.0.last().map_or(1, |d| d.0);
        let together = if !self.in_turn && self.inner <= TILE / 2 {
            (TILE / self.inner.max(1)).clamp(1, adjacent.max(1))
        } else {
            1
        };
        let width = self.inner.clamp(1, COLUMNS);
        ((PART / width).max(together), together)
    }

    fn parts(&self) -> usize {
        if self.inner_folded {
            let (_, units, per_part) = self.row_parts();
            units.div_ceil(per_part).max(1)
        } else {
            self.folded.count().div_ceil(self.column_parts().0).max(1)
        }
    }

    /// Number of results per store, which is also the number of lanes of one part's partial results.
    fn outputs(&self) -> usize {
        self.kept.count() * if self.inner_folded { 1 } else { self.inner }
    }

    /// Writes the same lane `n` times.
    unsafe fn fill(&self, dst: *mut u8, value: &[u8; 8], n: usize) {
        unsafe fn all<T: Copy>(dst: *mut u8, value: &[u8; 8], n: usize) {
            // SAFETY: by the caller's promise, `dst` has `n` lanes; `T` has at most the 8 bytes of `value`.
            unsafe { lanes_mut::<T>(dst, n).fill(value.as_ptr().cast::<T>().read_unaligned()) };
        }
        // SAFETY: by the caller's promise, `dst` has `n` lanes of `self.lane` bytes.
        unsafe {
            match self.lane {
                1 => all::<u8>(dst, value, n),
                2 => all::<u16>(dst, value, n),
                4 => all::<u32>(dst, value, n),
                _ => all::<u64>(dst, value, n),
            }
        }
    }

    /// Bytes of scratch per thread: accumulators, then the program's registers.
    fn scratch_each(&self) -> usize {
        self.stores() * ACCUMULATORS + self.program.scratch()
    }

    fn stores(&self) -> usize {
        self.program.stores.len()
    }
}

/// State of one thread: accumulators, registers of the program, addresses.
struct FoldWorker<'a> {
    k: &'a ReduceKernel,
    acc: *mut u8,
    scratch: *mut u8,
    regs: RegisterAddresses,
    inputs: SmallVec<[*const u8; 8]>,
    /// The array, if the program only loads an array whose elements are already lanes.
    plain: Option<*const u8>,
}

impl<'a> FoldWorker<'a> {
    fn new(k: &'a ReduceKernel, inputs: &[Ptr], memory: *mut u8) -> FoldWorker<'a> {
        let scratch = memory.wrapping_add(k.stores() * ACCUMULATORS);
        let inputs: SmallVec<[*const u8; 8]> = inputs.iter().map(|p| p.at(0).cast_const()).collect();
        let plain = k.program.is_plain().map(|i| inputs[i]);
        FoldWorker { k, acc: memory, scratch, regs: k.program.start(scratch), inputs, plain }
    }

    /// Computes elements `start..start + n` tile by tile and calls `f(accumulators, lanes, offset in the range,
    /// length)` for each store and tile. Machine code adds to the accumulators itself; then `f` is not called.
    ///
    /// # Safety
    /// The elements exist; the accumulators are initialized for the fold.
    unsafe fn elements(&mut self, start: usize, n: usize, f: impl Fn(*mut u8, *const u8, usize, usize)) {
        if let Some(base) = self.plain {
            // Several results may be sums of the same array, such as the gradients of two biases of one sum.
            let from = base.wrapping_add(start * self.k.lane);
            return self.accumulators().for_each(|acc| f(acc, from, 0, n));
        }
        if self.k.program.is_fused() {
            // SAFETY: by the caller's promise.
            return unsafe { self.fused_elements(start, n) };
        }
        let mut done = 0;
        while done < n {
            let len = self.k.program.tile_len(start + done, start + n);
            // SAFETY: inputs and registers belong to the program; the scratch is this thread's.
            unsafe {
                self.k.program.tile(&mut self.regs, &self.inputs, &[], self.scratch, start + done, len);
            }
            for (s, &register) in self.k.program.stores.iter().enumerate() {
                f(self.acc.wrapping_add(s * ACCUMULATORS), self.regs.at[register], done, len);
            }
            done += len;
        }
    }

    /// Computes [`FoldWorker::elements`] by machine code.
    unsafe fn fused_elements(&mut self, start: usize, n: usize) {
        let (k, acc) = (self.k, self.acc);
        let mut done = 0;
        while done < n {
            let len = k.program.tile_len(start + done, start + n);
            let at = if k.inner_folded { 0 } else { done * k.lane };
            let to = |s: usize| acc.wrapping_add(s * ACCUMULATORS + at);
            // SAFETY: inputs and registers belong to the program; the scratch is this thread's; a row fold has `LANES`
            // accumulators, a column fold one for each of the `n` elements.
            unsafe {
                k.program.run_fused(&mut self.regs, &self.inputs, self.scratch, start + done, len, to);
            }
            done += len;
        }
    }

    /// Returns the accumulators of each store.
    fn accumulators(&self) -> impl Iterator<Item = *mut u8> + use<> {
        let acc = self.acc;
        (0..self.k.stores()).map(move |s| acc.wrapping_add(s * ACCUMULATORS))
    }

    /// Row fold of results `range`: one lane each, starting at `dst`; the stores' results are `apart` bytes apart.
    unsafe fn rows(&mut self, range: Range<usize>, dst: *mut u8, apart: usize) {
        let (k, together) = (self.k, self.k.together);
        let (chunks, units, _) = k.row_parts();
        for from in range.clone().step_by(together) {
            let n = together.min(range.end - from);
            let dst = dst.wrapping_add((from - range.start) * k.lane);
            // SAFETY: `together` is at most `TILE`, so the accumulators have a lane per row; the rest as for `row`.
            unsafe {
                if together == 1 {
                    self.row(from, 0..units, chunks, dst, apart);
                    continue;
                }
                let length = (&raw const k.inner).cast();
                self.elements(from * k.inner, n * k.inner, |acc, p, _, _| {
                    (k.loops.short)(acc, p, length, p, n)
                });
                for (s, acc) in self.accumulators().enumerate() {
                    std::ptr::copy_nonoverlapping(acc.cast_const(), dst.wrapping_add(s * apart), n * k.lane);
                }
            }
        }
    }

    /// Row fold of units `units` of result `o`: one lane at `dst`; the stores' results are `apart` bytes apart.
    unsafe fn row(&mut self, o: usize, units: Range<usize>, chunks: usize, dst: *mut u8, apart: usize) {
        let k = self.k;
        // SAFETY: there are `LANES` accumulators per store; the units are inside the program's index space; by the
        // caller's promise, `dst` has room for a lane per store.
        unsafe {
            self.accumulators().for_each(|acc| k.fill(acc, &k.identity, LANES));
            let base = k.kept.at(o);
            for unit in units {
                let (segment, chunk) = (unit / chunks, unit % chunks);
                let from = chunk * CHUNK;
                let n = CHUNK.min(k.inner - from);
                let start = base + k.folded.at(segment) + from;
                self.elements(start, n, |acc, p, _, n| (k.loops.along)(acc, p, p, p, n));
            }
            for (s, acc) in self.accumulators().enumerate() {
                let (acc, dst) = (acc.cast_const(), dst.wrapping_add(s * apart));
                (k.loops.within)(dst, acc, acc, acc, LANES);
            }
        }
    }

    /// Column fold of `rows` of columns `from..from + width` of kept combination `o`: `width` lanes at `dst`; the
    /// stores' results are `apart` bytes apart.
    unsafe fn columns(
        &mut self,
        o: usize,
        rows: Range<usize>,
        from: usize,
        width: usize,
        dst: *mut u8,
        apart: usize,
    ) {
        let k = self.k;
        let (_, together) = k.column_parts();
        let adjacent = k.folded.0.last().map_or(1, |d| d.0).max(1);
        // SAFETY: there are `together · width ≤ COLUMNS` accumulators per store; rows and columns are inside the
        // program's index space; by the caller's promise, `dst` has room for `width` lanes per store.
        unsafe {
            self.accumulators().for_each(|acc| k.fill(acc, &k.identity, together * width));
            let base = k.kept.at(o) + from;
            let mut row = rows.start;
            while row < rows.end {
                let left_in_run = adjacent - row % adjacent;
                let take = together.min(left_in_run).min(rows.end - row);
                let start = base + k.folded.at(row);
                let lane = k.lane;
                self.elements(start, take * width, |acc, p, at, n| {
                    (k.loops.across)(acc.add(at * lane), p, p, p, n);
                });
                row += take;
            }
            for (s, acc) in self.accumulators().enumerate() {
                for slot in 1..together {
                    let other = acc.add(slot * width * k.lane).cast_const();
                    (k.loops.across)(acc, other, other, other, width);
                }
                std::ptr::copy_nonoverlapping(acc.cast_const(), dst.wrapping_add(s * apart), width * k.lane);
            }
        }
    }
}

impl Kernel for ReduceKernel {
    fn scratch(&self) -> usize {
        self.stores() * self.parts() * self.outputs() * self.lane + 64
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let (operands, inits) = io.inputs.split_at(io.inputs.len() - self.stores());
        let inputs: Vec<Ptr> = operands.iter().map(|&p| Ptr::of(p)).collect();
        let (partial, parts, outputs) = (Ptr(io.scratch), self.parts(), self.outputs());
        let elements = self.inner * self.kept.count() * self.folded.count();
        let work = elements as f64 * 0.1 * self.program.weight() + outputs as f64 * 20.0;
        let per_output = elements / self.kept.count().max(1);
        // Results per block of the parallel loop (of column folds: rows of results), if each is a single part.
        let group =
            if parts == 1 { (PART / per_output.max(1)).clamp(1, self.kept.count().max(1)) } else { 1 };
        let groups = self.kept.count().div_ceil(group);
        let strips = if self.inner_folded { 1 } else { self.inner.div_ceil(COLUMNS) };
        // Bytes between the partial results of adjacent stores.
        let apart = parts * outputs * self.lane;
        let each = self.scratch_each();
        let body = |block: usize| {
            let (o_block, rest) = (block / (parts * strips), block % (parts * strips));
            let (part, strip) = (rest / strips, rest % strips);
            with_scratch(each, |memory| {
                let mut w = FoldWorker::new(self, &inputs, memory);
                let range = o_block * group..((o_block + 1) * group).min(self.kept.count());
                if self.inner_folded && parts == 1 {
                    // SAFETY: scratch holds `parts · outputs` lanes per store; this block writes those of its range.
                    return unsafe { w.rows(range.clone(), partial.at(range.start * self.lane), apart) };
                }
                for o in range {
                    // SAFETY: scratch holds `parts · outputs` lanes per store; no other block writes those of this
                    // part, result and strip.
                    unsafe {
                        if self.inner_folded {
                            let (chunks, units, per_part) = self.row_parts();
                            let range = part * per_part..((part + 1) * per_part).min(units);
                            let dst = partial.at((part * outputs + o) * self.lane);
                            w.row(o, range, chunks, dst, apart);
                        } else {
                            let (rows, _) = self.column_parts();
                            let range = part * rows..((part + 1) * rows).min(self.folded.count());
                            let from = strip * COLUMNS;
                            let width = COLUMNS.min(self.inner - from);
                            let at = part * outputs + o * self.inner + from;
                            w.columns(o, range, from, width, partial.at(at * self.lane), apart);
                        }
                    }
                }
            });
        };
        cx.team.run_with(groups * parts * strips, work, cx.flush, &body);
        for (s, (&init, &out)) in inits.iter().zip(io.outputs).enumerate() {
            let partial = Ptr(partial.at(s * apart));
            // SAFETY: all blocks are done, so the partial results are complete; the initial value is a scalar of the
            // element type, `out` has room for `outputs` elements.
            unsafe { self.finish(partial, parts, outputs, init, out) };
        }
        Ok(())
    }
}

impl ReduceKernel {
    /// Estimated time of the whole reduction on one core, in nanoseconds.
    pub fn work(&self) -> f64 {
        let elements = self.inner * self.kept.count() * self.folded.count();
        elements as f64 * 0.1 * self.program.weight()
    }

    /// Computes results `range` on this thread. Only for row folds of contiguous rows.
    ///
    /// # Safety
    /// As for [`Kernel::run`], for these rows.
    pub unsafe fn rows(&self, inputs: &[*const u8], outputs: &[*mut u8], range: Range<usize>) {
        let (operands, inits) = inputs.split_at(inputs.len() - self.stores());
        let inputs: SmallVec<[Ptr; 8]> = operands.iter().map(|&p| Ptr::of(p)).collect();
        let (count, each) = (range.len(), self.scratch_each().next_multiple_of(64));
        let apart = count * self.lane;
        with_scratch(each + self.stores() * apart, |memory| {
            let partial = Ptr(memory.wrapping_add(each));
            let mut w = FoldWorker::new(self, &inputs, memory);
            // SAFETY: scratch holds `count` lanes per store after the worker's memory.
            unsafe { w.rows(range.clone(), partial.at(0), apart) };
            for (s, (&init, &out)) in inits.iter().zip(outputs).enumerate() {
                let out = out.wrapping_add(range.start * self.dtype.size());
                // SAFETY: as above; by the caller's promise, no other thread writes these rows' results.
                unsafe { self.finish(Ptr(partial.at(s * apart)), 1, count, init, out) };
            }
        });
    }

    /// Runs a column fold of all elements on this thread, in one part, rows in order. Supports at most [`COLUMNS`]
    /// columns.
    ///
    /// # Safety
    /// As for [`Kernel::run`].
    pub unsafe fn columns(&self, inputs: &[*const u8], outputs: &[*mut u8]) {
        let (operands, inits) = inputs.split_at(inputs.len() - self.stores());
        let inputs: SmallVec<[Ptr; 8]> = operands.iter().map(|&p| Ptr::of(p)).collect();
        let each = self.scratch_each().next_multiple_of(64);
        let apart = self.inner * self.lane;
        with_scratch(each + self.stores() * apart, |memory| {
            let partial = Ptr(memory.wrapping_add(each));
            let mut w = FoldWorker::new(self, &inputs, memory);
            // SAFETY: scratch holds a lane per column and store after the worker's memory.
            unsafe { w.columns(0, 0..self.folded.count(), 0, self.inner, partial.at(0), apart) };
            for (s, (&init, &out)) in inits.iter().zip(outputs).enumerate() {
                // SAFETY: as above; `out` has room for `inner` elements.
                unsafe { self.finish(Ptr(partial.at(s * apart)), 1, self.inner, init, out) };
            }
        });
    }

    /// Reduces the parts in a tree, combines the initial value with the result, rounds narrow floats, and stores.
    unsafe fn finish(&self, partial: Ptr, parts: usize, outputs: usize, init: *const u8, out: *mut u8) {
        let row = |p: usize| partial.at(p * outputs * self.lane);
        let mut step = 1;
        // SAFETY: by the caller's promise, there are `parts · outputs` lanes at `partial`; different parts do not
        // overlap. `lanes` has `TILE ≥ n` words of 8 bytes.
        unsafe {
            while step < parts {
                for p in (0..parts - step).step_by(2 * step) {
                    let other = row(p + step).cast_const();
                    (self.loops.across)(row(p), other, other, other, outputs);
                }
                step *= 2;
            }
            let mut first = 0u64;
            let lane = (&raw mut first).cast::<u8>();
            match self.widen {
                Some(widen) => widen(lane, init, init, init, 1),
                None => std::ptr::copy_nonoverlapping(init, lane, self.lane),
            }
            let first = first.to_ne_bytes();
            let mut at = 0;
            let mut lanes = [MaybeUninit::<u64>::uninit(); TILE];
            let lanes = lanes.as_mut_ptr().cast::<u8>();
            while at < outputs {
                let n = TILE.min(outputs - at);
                self.fill(lanes, &first, n);
                let p = row(0).wrapping_add(at * self.lane).cast_const();
                (self.loops.across)(lanes, p, p, p, n);
                store(out.wrapping_add(at * self.dtype.size()), lanes, self.dtype, self.narrow, n);
                at += n;
            }
        }
    }
}
