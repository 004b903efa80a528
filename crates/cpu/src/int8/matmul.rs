//! Int8 matrix multiplication for dense layers and convolutions (im2col), with weights packed once.
//!
//! [`Int8Matmul`] requantizes the accumulators, [`Int8Gemm`] passes them to an epilogue. A task computes some rows and
//! some panels of columns. Rows are read in place if the instruction reads bytes and they do not end too close to the end
//! of the array. Convolution windows are gathered (im2col). With stride 1 and channels
//! that fill whole K steps, they are read from a padded copy of the image instead, whose pixels are consecutive rows.

use crate::int8::isa::Int8Isa;
use crate::int8::output_quantization::{OutputQuantization, ends, fast_ends, starts};
use crate::int8::packed_weights::{Int8PanelLayout, PackedInt8Weights};
use crate::int8::parallel_blocks::SharedAddress;
use crate::int8::staging::{ConvInput, SLACK, widen};
use crate::int8::windows::Int8WindowDim;
use crate::kernel::{EpilogueFn, KernelContext, OutputBlock, with_scratch};
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
    gemm: Int8Gemm,
    packed: PackedInt8Weights,
    ends: RequantizeParams,
}

/// An int8 dense layer or convolution: sizes, and where the rows of its left operand are.
pub(crate) struct Int8Gemm {
    unit: Int8Isa,
    layout: Int8PanelLayout,
    from: RowSource,
    /// Offset of each K step in a row.
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
        Int8Matmul::new(Int8Gemm::dense(unit, k, w.len() / k.max(1))?, w, input_zero, output, true)
    }

    /// Like [`Int8Matmul::dense`], but faster to create and slightly slower to run: for weights that are used once.
    pub fn dense_once(
        unit: Int8Isa,
        w: &[i8],
        k: usize,
        input_zero: i32,
        output: &OutputQuantization,
    ) -> Option<Int8Matmul> {
        Int8Matmul::new(Int8Gemm::dense(unit, k, w.len() / k.max(1))?, w, input_zero, output, false)
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
        let gemm = Int8Gemm::convolution(unit, along, channels, zero, w.len() / k)?;
        Int8Matmul::new(gemm, w, input_zero, output, true)
    }

    fn new(
        gemm: Int8Gemm,
        w: &[i8],
        zero: i32,
        output: &OutputQuantization,
        is_kept: bool,
    ) -> Option<Int8Matmul> {
        let Int8PanelLayout { n, k, .. } = gemm.layout;
        if w.len() != n * k {
            return None;
        }
        let (start, bounds) = starts(output, n, zero, |i| Box::new(w[i * k..(i + 1) * k].iter().copied()))?;
        let ends = match is_kept {
            true => fast_ends(gemm.unit, output, &start, &bounds)?,
            false => ends(output, &start, &bounds)?,
        };
        let packed = PackedInt8Weights::new(gemm.layout, w);
        Some(Int8Matmul { gemm, packed, ends })
    }

    /// Computes the int8 layer for all rows of `x` into `y`.
    pub fn run(&self, team: &ThreadPool, x: &[i8], y: &mut [i8]) {
        let (rows, n) = (self.gemm.result_rows(x.len()), self.gemm.layout.n);
        assert_eq!(y.len(), rows * n, "result has {rows} rows and {n} columns");
        let y = SharedAddress(y.as_mut_ptr());
        let result = GemmResult::Bytes(&self.ends, &y);
        self.gemm.run_with(&KernelContext { team, flush: false }, x, self.packed.panels(), result);
    }
}

impl Int8Gemm {
    /// Creates the product `x: i8[M, K]`, `w: i8[N, K] → i32[M, N]`. Returns `None` if a size is 0, or K is too large.
    pub(crate) fn dense(unit: Int8Isa, k: usize, n: usize) -> Option<Int8Gemm> {
        Int8Gemm::new(unit, k, n, RowSource::Rows)
    }

    /// Creates the convolution `x: i8[B, H, W, C]`, `w: i8[N, h, w, C] → i32[B, H', W', N]`. `zero`: value of the padding.
    pub(crate) fn convolution(
        unit: Int8Isa,
        along: [Int8WindowDim; 2],
        channels: usize,
        zero: i8,
        n: usize,
    ) -> Option<Int8Gemm> {
        let [rows, columns] = along;
        let k = rows.window.checked_mul(columns.window)?.checked_mul(channels)?;
        let picture = ConvInput { rows, columns, channels, zero };
        let is_pixel =
            |a: &Int8WindowDim| a.window == 1 && a.stride == 1 && a.before == 0 && a.positions == a.size;
        let from = if along.iter().all(is_pixel) {
            RowSource::Rows
        } else if in_place(unit, &picture, n) {
            RowSource::Bordered(picture)
        } else {
            RowSource::Windows(picture)
        };
        Int8Gemm::new(unit, k, n, from)
    }

    fn new(unit: Int8Isa, k: usize, n: usize, from: RowSource) -> Option<Int8Gemm> {
        if k == 0 || n == 0 || k > MOST_K {
            return None;
        }
        let whole = k.next_multiple_of(STEP).checked_mul(n.next_multiple_of(COLUMNS))?;
        if whole > MOST_PADDED.max(8 * k * n) {
            return None;
        }
        let layout = Int8PanelLayout { form: unit.form(), n, k };
        let steps = match from {
            RowSource::Rows | RowSource::Windows(_) => (0..layout.steps()).map(|s| s * STEP).collect(),
            RowSource::Bordered(p) => {
                let [_, line] = p.bordered();
                let place = |at: usize| {
                    let (ky, kx) = (at / p.columns.window, at % p.columns.window);
                    (ky * p.rows.dilation * line + kx * p.columns.dilation) * p.channels
                };
                let each = p.channels / STEP;
                (0..layout.steps()).map(|s| place(s / each) + s % each * STEP).collect()
            }
        };
        Some(Int8Gemm { unit, layout, from, steps })
    }

    /// Returns the bytes of the packed weights.
    pub(crate) fn packed_bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Packs weights; element `[n, k]` is at `n · strides[0] + k · strides[1]`.
    ///
    /// # Safety
    /// `w` has N · K elements with these strides, `to` has room for [`Int8Gemm::packed_bytes`].
    pub(crate) unsafe fn pack(&self, w: *const i8, strides: [usize; 2], to: *mut u8) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.layout.pack(w, strides, to) }
    }

    /// Computes all accumulators of `x`, and passes them to `take` block by block, on any thread.
    ///
    /// # Safety
    /// `panels` holds the weights that [`Int8Gemm::pack`] packed.
    pub(crate) unsafe fn run(
        &self,
        cx: &KernelContext<'_>,
        x: &[i8],
        panels: *const u8,
        take: EpilogueFn<'_>,
    ) {
        self.run_with(cx, x, panels, GemmResult::Sums(take));
    }

    /// Whether all rows are copied before they are multiplied.
    fn stages(&self) -> bool {
        matches!(self.from, RowSource::Windows(_)) || self.unit.form() == Int8WeightLayout::Pairs
    }

    /// Returns the images of `x`, and the rows of each that tasks compute, with those that are discarded.
    fn images_and_rows(&self, x: usize) -> [usize; 2] {
        match &self.from {
            RowSource::Rows => [1, x / self.layout.k],
            RowSource::Windows(p) => [1, x / p.size() * p.positions()],
            RowSource::Bordered(p) => {
                let [_, line] = p.bordered();
                [x / p.size(), (p.rows.positions - 1) * line + p.columns.positions]
            }
        }
    }

    /// Returns the rows of the result for `x` bytes of input.
    fn result_rows(&self, x: usize) -> usize {
        let [images, rows] = self.images_and_rows(x);
        match &self.from {
            RowSource::Bordered(p) => images * p.positions(),
            _ => rows,
        }
    }

    fn run_with(&self, cx: &KernelContext<'_>, x: &[i8], panels: *const u8, result: GemmResult<'_>) {
        let [images, rows] = self.images_and_rows(x.len());
        let work =
            MatmulTask { gemm: self, panels, x, result, bordered: std::ptr::null(), size: 0, rows, images };
        match &self.from {
            RowSource::Bordered(p) => {
                let [h, w] = p.bordered();
                let size = h * w * p.channels;
                // The kernel reads whole tiles of rows.
                with_scratch(images * size + ROWS * p.channels, |to| {
                    let to = SharedAddress(to.cast::<i8>());
                    cx.team.run(images * h, (images * size) as f64 / 8.0, &|line| {
                        let (n, y) = (line / h, line % h);
                        // SAFETY: each image row has its own part of the buffer.
                        unsafe { p.line_with_border(&x[n * p.size()..], y, to.at(line * w * p.channels)) };
                    });
                    // SAFETY: the end of the scratch buffer, which is read; its sums are discarded.
                    unsafe { to.at(images * size).write_bytes(0, ROWS * p.channels) };
                    MatmulTask { bordered: to.at(0).cast(), size, ..work }.run_on(cx);
                });
            }
            _ => work.run_on(cx),
        }
    }

    /// Returns the result row of row `at` of an image, or of the next row that is not discarded.
    fn result_row(&self, image: usize, at: usize) -> usize {
        match &self.from {
            RowSource::Bordered(p) => {
                let ([_, line], w) = (p.bordered(), p.columns.positions);
                image * p.positions() + at / line * w + (at % line).min(w)
            }
            _ => at,
        }
    }

    /// Whether row `at` of an image is discarded.
    fn is_discarded(&self, at: usize) -> bool {
        match &self.from {
            RowSource::Bordered(p) => at % p.bordered()[1] >= p.columns.positions,
            _ => false,
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

/// Where the accumulators of a matmul go.
#[derive(Clone, Copy)]
enum GemmResult<'a> {
    /// Requantized to a row-major array.
    Bytes(&'a RequantizeParams, &'a SharedAddress<i8>),
    /// Passed to an epilogue, block by block.
    Sums(EpilogueFn<'a>),
}

/// Block of accumulators of one task that an epilogue reads: address, and columns of a row.
#[derive(Clone, Copy)]
struct SumsBlock {
    at: *mut i32,
    stride: usize,
}

/// One execution of a matmul.
#[derive(Clone, Copy)]
struct MatmulTask<'a> {
    gemm: &'a Int8Gemm,
    /// The packed weights.
    panels: *const u8,
    x: &'a [i8],
    result: GemmResult<'a>,
    /// The padded images, and the size of one.
    bordered: *const u8,
    size: usize,
    /// Rows per padded image; without padding all rows belong to one image.
    rows: usize,
    images: usize,
}

/// Initial accumulators of products that are passed to an epilogue.
static ZEROS: [i32; COLUMNS] = [0; COLUMNS];

// SAFETY: the pointers are to arrays that threads only read.
unsafe impl Sync for MatmulTask<'_> {}

impl MatmulTask<'_> {
    /// Runs the tasks on the threads.
    fn run_on(&self, cx: &KernelContext<'_>) {
        let Int8PanelLayout { n, k, .. } = self.gemm.layout;
        // Nested parallel loops run on one thread.
        let threads = if thread_pool::inside() { 1 } else { cx.team.threads() };
        let panels = n.div_ceil(COLUMNS);
        let MatmulPartition { per_task, groups, .. } = self.shares(threads);
        let parts = self.rows.div_ceil(per_task);
        let tasks = self.images * parts;
        // With few rows, reading the weights dominates.
        let weights = n as f64 * k as f64;
        let time = ((self.images * self.rows) as f64 * weights / 400.0).max(weights / 40.0);
        cx.team.run_with(tasks * groups, time, cx.flush, &|task| {
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
        let n = self.gemm.layout.n;
        let groups = threads.clamp(1, n.div_ceil(COLUMNS));
        let least = self.gemm.unit.least_rows();
        let sooner = |a: MatmulPartition, b: MatmulPartition| if 33 * b.time < 32 * a.time { b } else { a };
        let of =
            |groups| sooner(self.shares_of(threads, groups, ROWS), self.shares_of(threads, groups, least));
        let (by_rows, by_columns) = (of(1), of(groups));
        if self.rows <= self.most_rows() {
            // Each thread reads only a part of the weights.
            sooner(by_columns, by_rows)
        } else if n / groups >= APART {
            sooner(by_rows, by_columns)
        } else {
            by_rows
        }
    }

    /// Maximum number of rows per task.
    fn most_rows(&self) -> usize {
        (STAGED / self.gemm.layout.pitch() / ROWS).clamp(1, MOST_ROWS / ROWS) * ROWS
    }

    /// Returns the partition into `groups` column groups and tasks of a multiple of `each` rows, with its estimated
    /// time.
    fn shares_of(&self, threads: usize, groups: usize, each: usize) -> MatmulPartition {
        let p = self.gemm;
        let panels = p.layout.n.div_ceil(COLUMNS);
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
        let pitch = self.gemm.layout.pitch();
        let tiles = rows.div_ceil(ROWS);
        let each = (BLOCKS / tiles.max(1)).max(1).min(panels.len());
        // The rows, and one more that is being widened.
        let staged = rows.next_multiple_of(ROWS) * pitch;
        let sums = match self.result {
            GemmResult::Bytes(..) => 0,
            GemmResult::Sums(_) => tiles * ROWS * each * COLUMNS * 4,
        };
        with_scratch(sums + staged + pitch + SLACK, |scratch| {
            let buffer = SumsBlock { at: scratch.cast(), stride: each * COLUMNS };
            let scratch = scratch.wrapping_add(sums);
            let start = self.gemm.result_row(image, from);
            let one = |at: usize| {
                let (first, own) = (from + at, ROWS.min(rows - at));
                let to = self.addresses(image, first..first + own, start, buffer);
                // SAFETY: each tile has its part of the scratch buffer; the row that is being widened comes after all
                // of them.
                unsafe { self.ready(image, first, own, to, scratch.add(at * pitch), scratch.add(staged)) }
            };
            let ready: Vec<StagedRows> = (0..rows).step_by(ROWS).map(one).collect();
            let configured = self.gemm.unit.configure();
            let done = self.gemm.result_row(image, from + rows) - start;
            for first in panels.clone().step_by(each.max(1)) {
                let group = first..panels.end.min(first + each);
                let some = group.clone().flat_map(|n| ready.iter().map(move |r| (n, r)));
                let blocks: Vec<AccumulatorBlock> =
                    some.map(|(panel, r)| self.block(panel, panel - first, r)).collect();
                // SAFETY: rows are staged or were checked to be entirely inside their array; tasks write to disjoint
                // rows and columns.
                unsafe { configured.blocks(&blocks) };
                if let GemmResult::Sums(take) = self.result {
                    take(&self.output_block(start, done, group, buffer.stride), buffer.at.cast());
                }
            }
        });
    }

    /// Returns the rectangle of the result that a group of panels has computed for rows `start` to `start + rows`.
    fn output_block(&self, start: usize, rows: usize, panels: Range<usize>, stride: usize) -> OutputBlock {
        let n = self.gemm.layout.n;
        let columns = n.min(panels.end * COLUMNS) - panels.start * COLUMNS;
        OutputBlock { first: start * n + panels.start * COLUMNS, row: n, stride, rows, columns }
    }

    /// Returns the address of each result row, null if it is discarded. The buffer's first row is result row `start`.
    fn addresses(
        &self,
        image: usize,
        rows: Range<usize>,
        start: usize,
        buffer: SumsBlock,
    ) -> [*mut i8; ROWS] {
        std::array::from_fn(|i| {
            let at = rows.start + i;
            if at >= rows.end || self.gemm.is_discarded(at) {
                return std::ptr::null_mut();
            }
            let row = self.gemm.result_row(image, at);
            match self.result {
                GemmResult::Bytes(_, y) => y.at(row * self.gemm.layout.n),
                GemmResult::Sums(_) => buffer.at.wrapping_add((row - start) * buffer.stride).cast(),
            }
        })
    }

    /// Returns the block of one panel, which is number `place` of its group.
    fn block<'b>(&'b self, panel: usize, place: usize, r: &'b StagedRows) -> AccumulatorBlock<'b> {
        let Int8Gemm { layout, steps, .. } = self.gemm;
        let (bias, ends, first) = match self.result {
            GemmResult::Bytes(ends, _) => {
                (ends.bias.as_ptr().wrapping_add(panel * COLUMNS), Some(ends), panel)
            }
            GemmResult::Sums(_) => (ZEROS.as_ptr(), None, place),
        };
        AccumulatorBlock {
            a: r.a,
            a_row: r.a_row,
            steps,
            words: layout.words(),
            b: self.panels.wrapping_add(panel * layout.panel()),
            corrections: r.corrections.as_ptr(),
            bias,
            ends,
            first: first * COLUMNS,
            columns: COLUMNS.min(layout.n - panel * COLUMNS),
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
        results: [*mut i8; ROWS],
        to: *mut u8,
        spare: *mut u8,
    ) -> StagedRows {
        let p = self.gemm;
        let (pitch, k) = (p.layout.pitch(), p.layout.k);
        let mut ready = StagedRows { a: to, a_row: pitch, corrections: [0; ROWS], rows, to: results };
        match &p.from {
            RowSource::Bordered(picture) => {
                ready.a = self.bordered.wrapping_add(image * self.size + first * picture.channels);
                ready.a_row = picture.channels;
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
            let (bytes, to) = (4 * p.layout.words(), ready.corrections.as_mut_ptr());
            let sums = Int8RowSums { a: ready.a, a_row: ready.a_row, rows, steps: &p.steps, bytes, to };
            // SAFETY: the rows can be read to the end of their K steps.
            unsafe { p.unit.row_sums()(&sums) };
        }
        ready
    }

    /// Whether whole tiles of rows can be read to the end of their K steps.
    fn reaches(&self, first: usize, rows: usize) -> bool {
        let layout = self.gemm.layout;
        (first + rows.next_multiple_of(16) - 1) * layout.k + layout.pitch() <= self.x.len()
    }

    /// Writes rows one by one, zero-padded to whole K steps, and zero rows to the end of a tile.
    unsafe fn stage(&self, rows: usize, to: *mut u8, spare: *mut u8, row: impl Fn(usize, *mut i8)) {
        let p = self.gemm;
        let (pitch, k) = (p.layout.pitch(), p.layout.k);
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
