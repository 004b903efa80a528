//! Int8 matrix multiplication for dense layers and convolutions (im2col), with weights packed once.
//!
//! A task computes some rows and some panels of columns. Rows are read in place if the instruction reads bytes and they
//! do not end too close to the end of the array. Convolution windows are gathered (im2col). With stride 1 and channels
//! that fill whole K steps, they are read from a padded copy of the image instead, whose pixels are consecutive rows.

use crate::int8::isa::Int8Isa;
use crate::int8::output_quantization::{OutputQuantization, ends, fast_ends, starts};
use crate::int8::packed_weights::PackedInt8Weights;
use crate::int8::parallel_blocks::SharedAddress;
use crate::int8::staging::{ConvInput, SLACK, widen};
use crate::int8::windows::Int8WindowDim;
use crate::kernel::with_scratch;
use crate::machine::thread_pool::{self, ThreadPool};
use crate::simd::int8::accumulator_block::AccumulatorBlock;
use crate::simd::int8::add_sub::Int8RowSums;
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::{COLUMNS, Int8WeightLayout, ROWS, STEP};
use std::ops::Range;

/// Bytes of rows that a task stages at a time: they stay in L2.
const STAGED: usize = 1 << 18;
/// Maximum number of rows per task.
const MOST_ROWS: usize = 256;
/// Maximum K. Also the maximum size in bytes of packed weights that are mostly padding; no real network needs more, and
/// it would take too much memory.
const MOST_K: usize = 1 << 19;
const MOST_PADDED: usize = 1 << 26;
/// Maximum bytes of an image that is copied with padding.
const MOST_PICTURE: usize = 1 << 26;
/// Minimum columns per thread if many rows are split by columns; with fewer, threads write to the same cache lines.
const APART: usize = 128;
/// Blocks per call: they stay in L1.
const BLOCKS: usize = 32;

/// How the rows of the left operand are obtained.
#[derive(Clone, Copy, Debug)]
enum RowSource {
    /// Rows of the input.
    Rows,
    /// Windows, gathered (im2col).
    Windows(ConvInput),
    /// Pixels of a padded image; each K step of a row reads one tap of the window.
    Bordered(ConvInput),
}

/// An int8 dense layer or convolution with packed weights.
pub struct Int8Matmul {
    unit: Int8Isa,
    packed: PackedInt8Weights,
    ends: RequantizeParams,
    k: usize,
    n: usize,
    from: RowSource,
    steps: Vec<usize>,
}

impl Int8Matmul {
    /// Creates a dense layer: `x: i8[M, K]`, `w: i8[N, K] → i8[M, N]`. Returns `None` if an accumulator could overflow
    /// 32 bits or the sizes do not match.
    pub fn dense(
        unit: Int8Isa,
        w: &[i8],
        k: usize,
        input_zero: i32,
        output: &OutputQuantization,
    ) -> Option<Int8Matmul> {
        Int8Matmul::new(unit, w, k, input_zero, output, RowSource::Rows, true)
    }

    /// Like [`Int8Matmul::dense`], but faster to create and slightly slower to run: for weights that are used once.
    pub fn dense_once(
        unit: Int8Isa,
        w: &[i8],
        k: usize,
        input_zero: i32,
        output: &OutputQuantization,
    ) -> Option<Int8Matmul> {
        Int8Matmul::new(unit, w, k, input_zero, output, RowSource::Rows, false)
    }

    /// Creates a convolution: `x: i8[B, H, W, C]`, `w: i8[N, h, w, C] → i8[B, H', W', N]`. `along`: window geometry of
    /// rows and columns.
    pub fn convolution(
        unit: Int8Isa,
        w: &[i8],
        along: [Int8WindowDim; 2],
        channels: usize,
        input_zero: i32,
        output: &OutputQuantization,
    ) -> Option<Int8Matmul> {
        let [rows, columns] = along;
        let k = rows.window.checked_mul(columns.window)?.checked_mul(channels).filter(|k| *k > 0)?;
        let zero = i8::try_from(input_zero).ok()?;
        let picture = ConvInput { rows, columns, channels, zero };
        let is_pixel =
            |a: &Int8WindowDim| a.window == 1 && a.stride == 1 && a.before == 0 && a.positions == a.size;
        let n = w.len() / k;
        let from = if along.iter().all(is_pixel) {
            RowSource::Rows
        } else if in_place(unit, &picture, n) {
            RowSource::Bordered(picture)
        } else {
            RowSource::Windows(picture)
        };
        Int8Matmul::new(unit, w, k, input_zero, output, from, true)
    }

    fn new(
        unit: Int8Isa,
        w: &[i8],
        k: usize,
        zero: i32,
        output: &OutputQuantization,
        from: RowSource,
        is_kept: bool,
    ) -> Option<Int8Matmul> {
        if k == 0 || w.is_empty() || !w.len().is_multiple_of(k) {
            return None;
        }
        let n = w.len() / k;
        let whole = k.next_multiple_of(STEP) * n.next_multiple_of(COLUMNS);
        if k > MOST_K || whole > MOST_PADDED.max(8 * w.len()) {
            return None;
        }
        let (start, bounds) = starts(output, n, zero, |i| Box::new(w[i * k..(i + 1) * k].iter().copied()))?;
        let ends = match is_kept {
            true => fast_ends(unit, output, &start, &bounds)?,
            false => ends(output, &start, &bounds)?,
        };
        let packed = PackedInt8Weights::new(unit.form(), w, n, k);
        let steps = match from {
            RowSource::Rows | RowSource::Windows(_) => (0..packed.steps).map(|s| s * STEP).collect(),
            RowSource::Bordered(p) => {
                let [_, line] = p.bordered();
                let place = |at: usize| {
                    let (ky, kx) = (at / p.columns.window, at % p.columns.window);
                    (ky * p.rows.dilation * line + kx * p.columns.dilation) * p.channels
                };
                let each = p.channels / STEP;
                (0..packed.steps).map(|s| place(s / each) + s % each * STEP).collect()
            }
        };
        Some(Int8Matmul { unit, packed, ends, k, n, from, steps })
    }

    /// Whether all rows are copied before they are multiplied.
    fn stages(&self) -> bool {
        matches!(self.from, RowSource::Windows(_)) || self.unit.form() == Int8WeightLayout::Pairs
    }

    /// Computes the int8 layer for all rows of `x` into `y`.
    pub fn run(&self, team: &ThreadPool, x: &[i8], y: &mut [i8]) {
        let (images, rows) = match &self.from {
            RowSource::Rows => (1, x.len() / self.k),
            RowSource::Windows(p) => (1, x.len() / p.size() * p.positions()),
            RowSource::Bordered(p) => {
                let [_, line] = p.bordered();
                (x.len() / p.size(), (p.rows.positions - 1) * line + p.columns.positions)
            }
        };
        let made = match &self.from {
            RowSource::Bordered(p) => images * p.positions(),
            _ => rows,
        };
        assert_eq!(y.len(), made * self.n, "result has {made} rows and {} columns", self.n);
        let y = SharedAddress(y.as_mut_ptr());
        let work = MatmulTask { product: self, x, y: &y, bordered: std::ptr::null(), size: 0, rows, images };
        match &self.from {
            RowSource::Bordered(p) => {
                let [h, w] = p.bordered();
                let size = h * w * p.channels;
                // The kernel reads whole tiles of rows.
                with_scratch(images * size + ROWS * p.channels, |to| {
                    let to = SharedAddress(to.cast::<i8>());
                    team.run(images * h, (images * size) as f64 / 8.0, &|line| {
                        let (n, y) = (line / h, line % h);
                        // SAFETY: each image row has its own part of the buffer.
                        unsafe { p.line_with_border(&x[n * p.size()..], y, to.at(line * w * p.channels)) };
                    });
                    // SAFETY: the end of the scratch buffer, which is read; its sums are discarded.
                    unsafe { to.at(images * size).write_bytes(0, ROWS * p.channels) };
                    MatmulTask { bordered: to.at(0).cast(), size, ..work }.run_on(team);
                });
            }
            _ => work.run_on(team),
        }
    }
}

/// Whether a padded copy of the image beats gathering windows. Gathering costs as much as multiplying some number of
/// columns; padding costs the additional rows.
fn in_place(unit: Int8Isa, p: &ConvInput, n: usize) -> bool {
    let small = |a: &Int8WindowDim| (a.window - 1).checked_mul(a.dilation).is_some_and(|more| more <= a.size);
    if p.size() > MOST_PICTURE || ![p.rows, p.columns].iter().all(small) {
        return false;
    }
    let [_, line] = p.bordered();
    unit.form() != Int8WeightLayout::Pairs
        && p.channels.is_multiple_of(STEP)
        && p.rows.stride == 1
        && p.columns.stride == 1
        && (line - p.columns.positions) * n < unit.gathering() * p.columns.positions
}

/// Up to [`ROWS`] rows that are ready to be multiplied.
struct StagedRows {
    a: *const u8,
    a_row: usize,
    corrections: [i32; ROWS],
    rows: usize,
    /// Start of each result row; null if the row is padding.
    to: [*mut i8; ROWS],
}

/// How a matmul is partitioned into tasks.
struct MatmulPartition {
    /// Rows per task, and number of column groups.
    per_task: usize,
    groups: usize,
    /// Work of the busiest thread: rows times columns.
    time: usize,
}

/// One execution of a matmul.
#[derive(Clone, Copy)]
struct MatmulTask<'a> {
    product: &'a Int8Matmul,
    x: &'a [i8],
    y: &'a SharedAddress<i8>,
    /// The padded images, and the size of one.
    bordered: *const u8,
    size: usize,
    /// Rows per padded image; without padding all rows belong to one image.
    rows: usize,
    images: usize,
}

// SAFETY: the pointers are to arrays that threads only read.
unsafe impl Sync for MatmulTask<'_> {}

impl MatmulTask<'_> {
    /// Runs the tasks on the threads.
    fn run_on(&self, team: &ThreadPool) {
        let p = self.product;
        // Nested parallel loops run on one thread.
        let threads = if thread_pool::inside() { 1 } else { team.threads() };
        let panels = p.n.div_ceil(COLUMNS);
        let MatmulPartition { per_task, groups, .. } = self.shares(threads);
        let parts = self.rows.div_ceil(per_task);
        let tasks = self.images * parts;
        // With few rows, reading the weights dominates.
        let weights = p.n as f64 * p.k as f64;
        let time = ((self.images * self.rows) as f64 * weights / 400.0).max(weights / 40.0);
        team.run(tasks * groups, time, &|task| {
            let (group, task) = (task % groups, task / groups);
            let (image, part) = (task / parts, task % parts);
            let from = part * per_task;
            let rows = per_task.min(self.rows - from);
            let own = panels * group / groups..panels * (group + 1) / groups;
            self.task(image, from, rows, own);
        });
    }

    /// Returns the partition that finishes first: by rows only, or also by columns. Uses whole blocks of rows if
    /// partial blocks gain little.
    fn shares(&self, threads: usize) -> MatmulPartition {
        let p = self.product;
        let groups = threads.clamp(1, p.n.div_ceil(COLUMNS));
        let least = p.unit.least_rows();
        let sooner = |a: MatmulPartition, b: MatmulPartition| if 33 * b.time < 32 * a.time { b } else { a };
        let of =
            |groups| sooner(self.shares_of(threads, groups, ROWS), self.shares_of(threads, groups, least));
        let (by_rows, by_columns) = (of(1), of(groups));
        if self.rows <= self.most_rows() {
            // Each thread reads only a part of the weights.
            sooner(by_columns, by_rows)
        } else if p.n / groups >= APART {
            sooner(by_rows, by_columns)
        } else {
            by_rows
        }
    }

    /// Maximum number of rows per task.
    fn most_rows(&self) -> usize {
        (STAGED / self.product.packed.pitch() / ROWS).clamp(1, MOST_ROWS / ROWS) * ROWS
    }

    /// Returns the partition into `groups` column groups and tasks of a multiple of `each` rows, with its estimated
    /// time.
    fn shares_of(&self, threads: usize, groups: usize, each: usize) -> MatmulPartition {
        let p = self.product;
        let panels = p.n.div_ceil(COLUMNS);
        // Equally many tasks per thread, unless images already define the tasks.
        let mut parts = self.rows.div_ceil(self.most_rows());
        if self.images == 1 && groups == 1 {
            parts = parts.next_multiple_of(threads);
        }
        let per_task = self.rows.div_ceil(parts.max(1)).next_multiple_of(each).max(each);
        let tasks = self.images * self.rows.div_ceil(per_task) * groups;
        let columns = panels.div_ceil(groups) * COLUMNS + if p.stages() { p.unit.gathering() } else { 0 };
        MatmulPartition { per_task, groups, time: tasks.div_ceil(threads) * per_task * columns }
    }

    fn task(&self, image: usize, from: usize, rows: usize, panels: Range<usize>) {
        let pitch = self.product.packed.pitch();
        // The rows, and one more that is being widened.
        let staged = rows.next_multiple_of(ROWS) * pitch;
        with_scratch(staged + pitch + SLACK, |scratch| {
            let one = |at: usize| {
                let (first, own) = (from + at, ROWS.min(rows - at));
                // SAFETY: each tile has its part of the scratch buffer; the row that is being widened comes after all
                // of them.
                unsafe { self.ready(image, first, own, scratch.add(at * pitch), scratch.add(staged)) }
            };
            let ready: Vec<StagedRows> = (0..rows).step_by(ROWS).map(one).collect();
            let configured = self.product.unit.configure();
            let (each, end) = ((BLOCKS / ready.len().max(1)).max(1), panels.end);
            for first in panels.step_by(each) {
                let some = (first..end.min(first + each)).flat_map(|n| ready.iter().map(move |r| (n, r)));
                let blocks: Vec<AccumulatorBlock> = some.map(|(panel, r)| self.block(panel, r)).collect();
                // SAFETY: rows are staged or were checked to be entirely inside their array; tasks write to disjoint
                // rows and columns.
                unsafe { configured.blocks(&blocks) };
            }
        });
    }

    fn block<'b>(&'b self, panel: usize, r: &'b StagedRows) -> AccumulatorBlock<'b> {
        let p = self.product;
        AccumulatorBlock {
            a: r.a,
            a_row: r.a_row,
            steps: &p.steps,
            words: p.packed.words,
            b: p.packed.panel(panel),
            corrections: r.corrections.as_ptr(),
            ends: &p.ends,
            first: panel * COLUMNS,
            columns: COLUMNS.min(p.n - panel * COLUMNS),
            rows: r.rows,
            to: &r.to,
        }
    }

    /// Returns rows `first` to `first + rows`, in place or staged.
    ///
    /// # Safety
    /// `to` has room for [`ROWS`] rows, `spare` for one row and [`SLACK`] bytes.
    unsafe fn ready(
        &self,
        image: usize,
        first: usize,
        rows: usize,
        to: *mut u8,
        spare: *mut u8,
    ) -> StagedRows {
        let p = self.product;
        let (pitch, k) = (p.packed.pitch(), p.k);
        let to_row = |row: Option<usize>| row.map_or(std::ptr::null_mut(), |row| self.y.at(row * p.n));
        let mut ready = StagedRows {
            a: to,
            a_row: pitch,
            corrections: [0; ROWS],
            rows,
            to: std::array::from_fn(|i| to_row((i < rows).then_some(first + i))),
        };
        match &p.from {
            RowSource::Bordered(picture) => {
                let [_, line] = picture.bordered();
                ready.a = self.bordered.wrapping_add(image * self.size + first * picture.channels);
                ready.a_row = picture.channels;
                let (w, own) = (picture.columns.positions, image * picture.positions());
                ready.to = std::array::from_fn(|i| {
                    let (oy, ox) = ((first + i) / line, (first + i) % line);
                    to_row((i < rows && ox < w).then_some(own + oy * w + ox))
                });
            }
            RowSource::Rows if p.unit.form() != Int8WeightLayout::Pairs && self.reaches(first, rows) => {
                ready.a = self.x.as_ptr().wrapping_add(first * k).cast();
                ready.a_row = k;
            }
            RowSource::Rows => {
                let row = |i: usize, to: *mut i8| {
                    let from = &self.x[(first + i) * k..(first + i + 1) * k];
                    // SAFETY: rows have room for K bytes.
                    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), k) };
                };
                // SAFETY: guaranteed by the caller.
                unsafe { self.stage(rows, to, spare, row) };
            }
            RowSource::Windows(picture) => {
                // SAFETY: guaranteed by the caller; a short copy overruns only into the next row.
                let row = |i: usize, to: *mut i8| unsafe { picture.window(self.x, first + i, to) };
                // SAFETY: guaranteed by the caller.
                unsafe { self.stage(rows, to, spare, row) };
            }
        }
        if p.unit.form() == Int8WeightLayout::Above {
            let (bytes, to) = (4 * p.packed.words, ready.corrections.as_mut_ptr());
            let sums = Int8RowSums { a: ready.a, a_row: ready.a_row, rows, steps: &p.steps, bytes, to };
            // SAFETY: the rows can be read to the end of their K steps.
            unsafe { p.unit.row_sums()(&sums) };
        }
        ready
    }

    /// Whether whole tiles of rows can be read to the end of their K steps.
    fn reaches(&self, first: usize, rows: usize) -> bool {
        let p = self.product;
        (first + rows.next_multiple_of(16) - 1) * p.k + p.packed.pitch() <= self.x.len()
    }

    /// Writes rows one by one, zero-padded to whole K steps, and zero rows to the end of a tile.
    unsafe fn stage(&self, rows: usize, to: *mut u8, spare: *mut u8, row: impl Fn(usize, *mut i8)) {
        let p = self.product;
        let (pitch, k) = (p.packed.pitch(), p.k);
        for i in 0..rows {
            let to = to.wrapping_add(i * pitch);
            // SAFETY: guaranteed by the caller.
            unsafe {
                if p.unit.form() == Int8WeightLayout::Pairs {
                    row(i, spare.cast());
                    widen(spare.cast(), k, to.cast());
                    to.add(2 * k).write_bytes(0, pitch - 2 * k);
                } else {
                    row(i, to.cast());
                    // Tile instructions multiply the rest by zero weights.
                    if p.unit.form() != Int8WeightLayout::Signed {
                        to.add(k).write_bytes(0, pitch - k);
                    }
                }
            }
        }
        let whole = rows.next_multiple_of(16);
        // SAFETY: guaranteed by the caller.
        unsafe { to.add(rows * pitch).write_bytes(0, (whole - rows) * pitch) };
    }
}
