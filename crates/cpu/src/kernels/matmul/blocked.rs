//! Blocked products of matrices: how operands are packed and tiles ordered so that each cache is used for what it
//! holds.
//!
//! Products are cut into blocks of steps. Of a block, the right operand's panels of a group of columns stay in the
//! second cache while the left operand's panels pass by, each of which meets all of them. Left operands with few rows,
//! or few steps, are read where they lie if the first cache can hold them so. Large operands are packed in parts
//! ([`Blocked::plan`]) by all threads, then all threads compute tiles. Where all rows are one part and there are
//! columns for all threads, each task packs the columns that it uses, block by block, and they never leave its second
//! cache. From block to block, sums wait in the result if blocks are long, else in memory of the task, tile by tile:
//! rows of the result lie so far apart that few of them would fit a cache at a time. An element's value is its chains
//! of steps, block after block: a function of shapes and of the kernels only.

use crate::kernel::copy::{BoxCopy, Dim};
use crate::kernel::product::{Epilogue, Roles, count, joint_stride, offsets};
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, OutputBlock, Ptr, Side, TakeBlock};
use crate::simd::gemm::{CHAIN, Configured, Element, Left, Shape, Tile, UNROLLED, WIDEST};
use crate::simd::level::TileFn;
use crate::simd::pack::{PackFn, PanelArgs};
use smallvec::SmallVec;
use std::ops::Range;
use systole_ir::Result;

/// Rows and columns of the result that are computed before others are begun.
const PART: usize = 4096;
/// As [`PART`], where sums need memory of their own.
const ROUNDED_PART: usize = 2048;
/// Elements of the right operand that stay in the second cache.
const RESIDENT: usize = 96 << 10;
/// Steps that blocks are multiples of.
const LINE: usize = 16;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Bytes after which lines fall into the same sets of the first cache, and lines of a set that an operand may have.
const PAGE: usize = 4096;
const WAYS: usize = 4;
/// Rows and columns up to which rows that lie apart are read in place: no thread has to read then what another one packed,
/// which takes long where they do not share a cache.
const IN_PLACE: usize = 512;
/// Panels that one task packs.
const PANELS: usize = 16;
/// Bytes of complete sums that wait until they are handed on to arrays in panels.
const TOGETHER: usize = 32 << 10;
/// Elements of a packed operand.
const PACKED: usize = 4 << 20;
/// Tasks of a parallel loop to aim at.
const TASKS: usize = 16;
/// Where each task packs its own columns of the right operand: how many columns it has at least, and what the number
/// of tasks is a multiple of.
const OWN_COLUMNS: usize = 64;
const OWN_TASKS: usize = 8;
/// Nanoseconds that one core needs for packing an element, about.
const PACK_NS: f64 = 0.25;

/// An operand as a matrix, copied into order first where its dimensions do not line up.
struct Operand<T> {
    /// Bytes between lanes (rows or columns) and between products.
    lane: usize,
    step: usize,
    /// Byte offset of each batch element.
    batch: Vec<usize>,
    /// The copy and its bytes.
    repack: Option<(BoxCopy, usize)>,
    pack: PackFn<T>,
    /// Whether kernels read it where it lies.
    direct: bool,
}

impl<T> Operand<T> {
    fn new(r: &Roles, size: usize, pack: PackFn<T>) -> Operand<T> {
        let (lanes, products) = (count(&r.free), count(&r.inner));
        if let (Some(free), Some(inner)) = (joint_stride(&r.free), joint_stride(&r.inner)) {
            let batch = offsets(&r.batch).into_iter().map(|at| at * size).collect();
            return Operand {
                lane: free * size,
                step: inner * size,
                batch,
                repack: None,
                pack,
                direct: false,
            };
        }
        // What lies together stays together: lines are copied then, not elements.
        let nearest =
            |dims: &[Dim]| dims.iter().filter(|d| d.size > 1).map(|d| d.src).min().unwrap_or(isize::MAX);
        let by_lanes = nearest(&r.free) < nearest(&r.inner);
        let (outer, last) = if by_lanes { (&r.inner, &r.free) } else { (&r.free, &r.inner) };
        let mut dims: Vec<Dim> = r.batch.iter().chain(outer).chain(last).copied().collect();
        let mut stride = 1;
        for d in dims.iter_mut().rev() {
            d.dst = stride;
            stride *= d.size as isize;
        }
        let batch = (0..count(&r.batch)).map(|b| b * lanes * products * size).collect();
        let repack = Some((BoxCopy::new(size, &dims, 0, 0), (stride as usize * size).next_multiple_of(64)));
        let (lane, step) = if by_lanes { (size, lanes * size) } else { (products * size, size) };
        Operand { lane, step, batch, repack, pack, direct: false }
    }

    /// Whether the lanes of a left operand are neighbours, and a few of them can be in the first cache for all steps.
    fn is_panel(&self, products: usize) -> bool {
        self.lane == size_of::<T>() && products <= WAYS * sets(self.step)
    }

    /// Whether the steps of a left operand are neighbours, and some lanes can be in the first cache at a time.
    fn is_near(&self, lanes: usize) -> bool {
        self.step == size_of::<T>() && lanes <= WAYS * sets(self.lane)
    }
}

/// How many sets of the first cache arrays that lie so many bytes apart begin in.
fn sets(apart: usize) -> usize {
    PAGE / (apart & apart.wrapping_neg()).clamp(LINE_BYTES, PAGE)
}

/// How sums become stored results where those are narrower.
#[derive(Clone, Copy)]
pub struct Rounding {
    /// Sums to results, and results to sums.
    pub narrow: TileFn,
    pub widen: TileFn,
    /// Bytes of a result.
    pub size: usize,
}

/// A step of ones, and what sums with it add to the result.
type Correction<T> = (T, fn(T) -> T);

/// What the stored types need.
pub struct Types<T: 'static> {
    /// Bytes of a stored operand's element.
    pub size: usize,
    /// Products of one step.
    pub group: usize,
    pub pack_left: PackFn<T>,
    pub pack_right: PackFn<T>,
    /// Whether operands are stored as kernels read them.
    pub plain: bool,
    pub round: Option<Rounding>,
    /// Where packing adds an offset to the left operand: a step of ones, and what their sums with the right operand
    /// add to the result.
    pub correction: Option<Correction<T>>,
    pub abilities: Abilities,
}

/// What a blocked product may be asked for besides its sums; less than all for element types of which no program asks more.
#[derive(Clone, Copy)]
pub struct Abilities {
    /// Adding its sums to what the result holds.
    pub accumulate: bool,
    /// Keeping the packed right operand for many calls.
    pub keep: bool,
    /// Handing over blocks of the result.
    pub hand_over: bool,
}

impl Abilities {
    pub const ALL: Abilities = Abilities { accumulate: true, keep: true, hand_over: true };
    pub const NONE: Abilities = Abilities { accumulate: false, keep: false, hand_over: false };
}

/// A product `[M, K] · [K, N]`, or a batch of them.
pub struct Blocked<T: 'static> {
    a: Operand<T>,
    b: Operand<T>,
    m: usize,
    n: usize,
    /// Products of each element, and steps.
    products: usize,
    k: usize,
    /// Rows that a packed panel of the left operand has room for.
    height: usize,
    shape: Shape<T>,
    types: Types<T>,
    epilogue: Epilogue,
    /// Whether complete sums are handed on instead of being stored.
    hands_over: bool,
    /// Whether the right operand, and the arrays that take complete sums, lie in panels of tiles' columns.
    panels: [bool; 2],
    plan: Plan,
}

/// Counts by which a product is cut; ranges are as even as can be.
#[derive(Clone, Copy)]
struct Plan {
    /// Panels of rows.
    panels: usize,
    /// Blocks of steps.
    blocks: usize,
    /// Parts that are packed and computed one after the other: of panels, of columns, of blocks.
    row_parts: usize,
    column_parts: usize,
    block_parts: usize,
    /// Ranges of blocks that are summed on their own, in parallel.
    splits: usize,
    /// Whether tasks share the columns only, and pack the right operand's that they use.
    by_columns: bool,
}

/// The `i`-th of `parts` even ranges of `0..n`.
fn even(n: usize, parts: usize, i: usize) -> Range<usize> {
    n * i / parts..n * (i + 1) / parts
}

/// As [`even`], for columns: ranges begin at multiples of `unit`.
fn even_by(unit: usize, n: usize, parts: usize, i: usize) -> Range<usize> {
    let r = even(n.div_ceil(unit), parts, i);
    (r.start * unit).min(n)..(r.end * unit).min(n)
}

/// One part of a product: what is packed at a time.
struct Chunk {
    panels: Range<usize>,
    columns: Range<usize>,
    blocks: Range<usize>,
    /// Whether an operand is still packed from the part before.
    left_ready: bool,
    right_ready: bool,
}

/// Addresses of one product.
#[derive(Clone, Copy)]
struct At<'a> {
    a: Ptr,
    b: Ptr,
    c: Ptr,
    bias: Ptr,
    packed_a: Ptr,
    packed_b: Ptr,
    /// Partial sums, or sums that are still to be rounded.
    sums: Ptr,
    /// Whether the right operand was packed before.
    kept: bool,
    /// The product's place in the batch.
    batch: usize,
    finish: Option<TakeBlock<'a>>,
}

impl<T: Element> Blocked<T> {
    /// The product of operands in given roles.
    pub fn new(ra: &Roles, rb: &Roles, shape: Shape<T>, types: Types<T>, epilogue: Epilogue) -> Blocked<T> {
        let (m, n, products) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        let mut a = Operand::new(ra, types.size, types.pack_left);
        let mut b = Operand::new(rb, types.size, types.pack_right);
        // Packing pays where an element is used by several tiles.
        let in_place = a.is_panel(products) || m.max(n) <= IN_PLACE && a.is_near(shape.rows());
        a.direct = types.plain && (n <= 2 * shape.columns || in_place);
        b.direct = types.plain && (n == 1 || b.lane == types.size) && m <= 3 * shape.rows();
        let k = products.div_ceil(types.group).next_multiple_of(shape.unit);
        let mut p = Blocked {
            a,
            b,
            m,
            n,
            products,
            k,
            height: 0,
            shape,
            types,
            epilogue,
            hands_over: false,
            panels: [false; 2],
            plan: Plan {
                panels: 0,
                blocks: 0,
                row_parts: 1,
                column_parts: 1,
                block_parts: 1,
                splits: 1,
                by_columns: false,
            },
        };
        p.replan();
        p
    }

    fn replan(&mut self) {
        self.plan = self.plan();
        self.height = self.shape.height(self.m.div_ceil(self.plan.panels));
    }

    /// Whether the result's memory does not hold sums.
    fn sums_apart(&self) -> bool {
        self.types.round.is_some() || self.hands_over
    }

    fn plan(&self) -> Plan {
        let panels = self.m.div_ceil(self.shape.rows()).max(1);
        let tiles = panels * self.n.div_ceil(self.shape.columns).max(1);
        // Of a small result, blocks may be summed in parallel.
        let chain = if tiles < TASKS { self.shape.chain / 2 } else { self.shape.chain };
        let blocks = self.k.div_ceil(chain).max(1);
        let part = if self.sums_apart() { ROUNDED_PART } else { PART };
        let (row_parts, column_parts) = (self.m.div_ceil(part).max(1), self.n.div_ceil(part).max(1));
        let column_part = self.n / column_parts;
        let by_columns = (self.panels[0] || !self.b.direct)
            && row_parts == 1
            && self.group() == self.shape.group
            && self.m <= self.shape.task_rows
            && column_part >= self.own_tasks(column_part) * OWN_COLUMNS;
        let side = |in_place: bool, n: usize| if in_place { 0 } else { n };
        let (rows, columns) =
            (side(self.a.direct, self.m / row_parts), side(self.b.direct || by_columns, column_part));
        let packed = rows.max(columns) * self.k;
        let block_parts = packed.div_ceil(PACKED).clamp(1, blocks);
        // A small result of many products: the only parallelism is in the sums.
        let few = tiles < TASKS && block_parts == 1 && self.batches() == 1 && self.types.correction.is_none();
        let splits = if few && !self.hands_over { (TASKS / tiles).min(blocks / 2).max(1) } else { 1 };
        Plan {
            panels,
            blocks,
            row_parts,
            column_parts,
            block_parts,
            splits,
            by_columns: by_columns && splits == 1,
        }
    }

    /// Columns of a task. Where sums are handed on, about as many as the second cache has room for: what takes them then
    /// reads and writes long runs. All groups of about one size: threads would wait for the last large one.
    fn group(&self) -> usize {
        if !self.hands_over || self.panels[0] || self.panels[1] {
            return self.shape.group;
        }
        let most = (RESIDENT / self.k.clamp(1, RESIDENT)).max(self.shape.group);
        self.n.div_ceil(self.n.div_ceil(most).max(1)).next_multiple_of(self.shape.columns)
    }

    /// Tasks of a part's columns, where each packs its own.
    fn own_tasks(&self, columns: usize) -> usize {
        columns.div_ceil(self.shape.group).next_multiple_of(OWN_TASKS)
    }

    fn batches(&self) -> usize {
        self.a.batch.len()
    }

    /// First row of a panel; `panels` gives the end.
    fn row(&self, panel: usize) -> usize {
        self.m * panel / self.plan.panels
    }

    /// First step of a block; `blocks` gives the end.
    fn step(&self, block: usize) -> usize {
        // Whole cache lines, where there are many steps.
        let line = LINE.max(self.shape.unit);
        (self.k.div_ceil(line) * block / self.plan.blocks * line).min(self.k)
    }

    /// Elements of the packed operands and of the extra sums of one product.
    fn scratch_parts(&self) -> [usize; 3] {
        let p = &self.plan;
        let most = |n: usize, parts: usize| n.div_ceil(parts) + 2 * self.shape.rows().max(self.shape.columns);
        let steps = (0..p.block_parts)
            .map(|i| even(p.blocks, p.block_parts, i))
            .map(|r| self.step(r.end) - self.step(r.start))
            .max()
            .unwrap_or(0);
        let (rows, columns) = (most(self.m, p.row_parts), most(self.n, p.column_parts));
        let a = if self.a.direct { 0 } else { p.panels.div_ceil(p.row_parts) * self.height * steps };
        let b = if self.b.direct || p.by_columns { 0 } else { columns * steps };
        let sums = if p.splits > 1 {
            p.splits * self.m * self.n
        } else if self.sums_apart() && p.block_parts > 1 {
            rows * columns
        } else {
            0
        };
        // Whole cache lines.
        [a, b, sums].map(|n| n.next_multiple_of(64))
    }

    /// Bytes of working memory of one product.
    fn scratch_of_one(&self) -> usize {
        self.scratch_parts().iter().sum::<usize>() * size_of::<T>()
    }

    /// Whether the products of a batch run side by side, each in memory of its thread.
    fn side_by_side(&self) -> bool {
        self.batches() >= 4 && self.scratch_of_one() <= 16 << 20
    }

    unsafe fn run_to(
        &self,
        cx: &Cx<'_>,
        io: [*const u8; 3],
        (c, finish): (*mut u8, Option<TakeBlock<'_>>),
        scratch: *mut u8,
        kept: *const u8,
    ) {
        let ([mut a, mut b, bias], mut scratch) = (io, scratch);
        if self.m == 0 || self.n == 0 {
            return;
        }
        for (operand, x) in [(&self.a, &mut a), (&self.b, &mut b)] {
            if let Some((copy, bytes)) = &operand.repack {
                // SAFETY: scratch has room for the copy.
                unsafe { copy.run(cx, *x, scratch) };
                *x = scratch;
                scratch = scratch.wrapping_add(*bytes);
            }
        }
        let size = self.types.round.map_or(size_of::<T>(), |r| r.size);
        let (a, b, c, bias) = (Ptr::of(a), Ptr::of(b), Ptr(c), Ptr::of(bias));
        let (kept_right, kept) = (Ptr::of(kept), !kept.is_null());
        let one = |batch: usize, scratch: *mut u8| {
            let [packed_a, packed_b, _] = self.scratch_parts().map(|n| n * size_of::<T>());
            let at = At {
                a: Ptr(a.at(self.a.batch[batch])),
                b: Ptr(b.at(self.b.batch[batch])),
                c: Ptr(c.at(batch * self.m * self.n * size)),
                bias,
                packed_a: Ptr(scratch),
                packed_b: Ptr(if kept { kept_right.at(0) } else { scratch.wrapping_add(packed_a) }),
                sums: Ptr(scratch.wrapping_add(packed_a + packed_b)),
                kept,
                batch,
                finish,
            };
            // SAFETY: the caller's arrays; scratch is laid out as counted.
            unsafe { self.one(cx, &at) };
        };
        if self.side_by_side() {
            let work = self.work(self.m, self.n, self.k) * self.batches() as f64;
            let bytes = self.scratch_of_one();
            let body = |batch: usize| with_scratch(bytes.max(64), |memory| one(batch, memory));
            cx.team.run_with(self.batches(), work, cx.flush, &body);
        } else {
            (0..self.batches()).for_each(|batch| one(batch, scratch));
        }
    }

    /// Nanoseconds on one core, about.
    fn work(&self, m: usize, n: usize, k: usize) -> f64 {
        (m * n.next_multiple_of(self.shape.lanes)) as f64 * k as f64 / self.shape.lanes as f64
            * self.shape.step_ns
    }

    /// One product of the batch: part after part.
    unsafe fn one(&self, cx: &Cx<'_>, at: &At<'_>) {
        let p = &self.plan;
        for i in 0..p.row_parts {
            for j in 0..p.column_parts {
                for l in 0..p.block_parts {
                    let part = Chunk {
                        panels: even(p.panels, p.row_parts, i),
                        columns: even_by(self.shape.columns, self.n, p.column_parts, j),
                        blocks: even(p.blocks, p.block_parts, l),
                        left_ready: j > 0 && p.block_parts == 1,
                        right_ready: i > 0 && p.column_parts == 1 && p.block_parts == 1,
                    };
                    // SAFETY: by the caller's promise.
                    unsafe {
                        self.pack(cx, at, &part);
                        self.tiles(cx, at, &part);
                    }
                }
            }
        }
        if p.splits > 1 {
            // SAFETY: all parts are computed.
            unsafe { self.join_splits(cx, at) };
        }
    }

    /// Packs what a part needs.
    unsafe fn pack(&self, cx: &Cx<'_>, at: &At<'_>, part: &Chunk) {
        let row_tasks = if self.a.direct || part.left_ready { 0 } else { part.panels.len().div_ceil(PANELS) };
        let no_right = self.b.direct || self.plan.by_columns || at.kept || part.right_ready;
        let column_tasks = if no_right { 0 } else { part.columns.len().div_ceil(self.shape.group) };
        let per_block = row_tasks + column_tasks;
        if per_block == 0 {
            return;
        }
        let body = |task: usize| {
            let (block, task) = (part.blocks.start + task / per_block, task % per_block);
            if task < row_tasks {
                let first = part.panels.start + task * PANELS;
                let panels = first..(first + PANELS).min(part.panels.end);
                // SAFETY: these panels' places in the packed operand.
                unsafe { self.pack_left(at, part, block, panels) };
            } else {
                let first = part.columns.start + (task - row_tasks) * self.shape.group;
                let columns = first..(first + self.shape.group).min(part.columns.end);
                // SAFETY: as above.
                unsafe { self.pack_right(at, part, block, columns) };
            }
        };
        let steps = self.step(part.blocks.end) - self.step(part.blocks.start);
        let lanes = row_tasks * PANELS * self.shape.rows() + column_tasks * self.shape.group;
        cx.team.run_with(part.blocks.len() * per_block, (lanes * steps) as f64 * PACK_NS, cx.flush, &body);
    }

    unsafe fn pack_left(&self, at: &At<'_>, part: &Chunk, block: usize, panels: Range<usize>) {
        let panel = |p: usize| {
            let rows = self.row(p)..self.row(p + 1);
            let to = self.left_panel(at, part, block, p).cast_mut();
            let fill = if self.shape.registers.is_some() { self.height } else { rows.len() };
            self.panel(&self.a, at.a, rows, fill, block, to)
        };
        let panels: SmallVec<[PanelArgs<T>; PANELS]> = panels.map(panel).collect();
        // SAFETY: the panels' rows are the operand's, and there is room for them.
        unsafe { (self.a.pack)(&panels) };
    }

    unsafe fn pack_right(&self, at: &At<'_>, part: &Chunk, block: usize, columns: Range<usize>) {
        let panel = |j: usize| {
            let columns = j..(j + self.shape.columns).min(columns.end);
            let fill = self.shape.width(columns.len());
            let to = self.right_panel(at, part, block, j).cast_mut();
            self.panel(&self.b, at.b, columns, fill, block, to)
        };
        let panels: SmallVec<[PanelArgs<T>; PANELS]> =
            columns.clone().step_by(self.shape.columns).map(panel).collect();
        // SAFETY: as in `pack_left`.
        unsafe { (self.b.pack)(&panels) };
    }

    /// How to pack some lanes of an operand's block.
    fn panel(
        &self,
        o: &Operand<T>,
        from: Ptr,
        lanes: Range<usize>,
        fill: usize,
        block: usize,
        dst: *mut T,
    ) -> PanelArgs<T> {
        let (step, end) = (self.step(block), self.step(block + 1));
        let products = step * self.types.group;
        PanelArgs {
            src: from.at(lanes.start * o.lane + products * o.step).cast_const(),
            lane: o.lane,
            step: o.step,
            lanes: lanes.len(),
            fill,
            k: end - step,
            products: (end * self.types.group).min(self.products) - products,
            dst,
            stride: fill,
        }
    }

    /// Where a panel of the packed left operand lies.
    fn left_panel(&self, at: &At<'_>, part: &Chunk, block: usize, panel: usize) -> *const T {
        let steps = self.step(block) - self.step(part.blocks.start);
        let of_block = self.step(block + 1) - self.step(block);
        let before = steps * part.panels.len() + (panel - part.panels.start) * of_block;
        at.packed_a.elem::<T>(before * self.height)
    }

    /// Where the panel of the packed right operand that begins at column `j` lies.
    fn right_panel(&self, at: &At<'_>, part: &Chunk, block: usize, j: usize) -> *const T {
        let columns = part.columns.len().next_multiple_of(self.shape.columns);
        let steps = self.step(block) - self.step(part.blocks.start);
        let of_block = self.step(block + 1) - self.step(block);
        at.packed_b.elem::<T>(steps * columns + (j - part.columns.start) * of_block)
    }

    /// Whether each task packs the columns of the right operand that it uses.
    fn packs(&self, at: &At<'_>) -> bool {
        self.plan.by_columns && !self.b.direct && !at.kept
    }

    /// Computes a part's tiles.
    unsafe fn tiles(&self, cx: &Cx<'_>, at: &At<'_>, part: &Chunk) {
        let (splits, group) = (self.plan.splits, self.group());
        // Few rows: each cache gets its part of the right operand.
        let own = self.plan.by_columns;
        let (row_tasks, column_tasks) = if own {
            (1, self.own_tasks(part.columns.len()))
        } else {
            let column_tasks = part.columns.len().div_ceil(group).max(1);
            let waits = self.waits() && part.blocks.len().div_ceil(splits) > 1;
            let rows = part.panels.len() * self.height;
            let fewest = if waits { rows.div_ceil(self.shape.task_rows) } else { 1 };
            let row_tasks = (TASKS / column_tasks).max(fewest).clamp(1, part.panels.len().div_ceil(2));
            (row_tasks, column_tasks)
        };
        let body = |task: usize| {
            let (split, task) = (task % splits, task / splits);
            let (j, i) = (task / row_tasks, task % row_tasks);
            let panels = even(part.panels.len(), row_tasks, i);
            let columns = if own {
                even_by(self.shape.columns, part.columns.len(), column_tasks, j)
            } else {
                j * group..((j + 1) * group).min(part.columns.len())
            };
            let job = Job {
                panels: part.panels.start + panels.start..part.panels.start + panels.end,
                columns: part.columns.start + columns.start..part.columns.start + columns.end,
                blocks: if splits > 1 { even(self.plan.blocks, splits, split) } else { part.blocks.clone() },
                split,
            };
            // SAFETY: each task has its own rows and columns of the result, or of its partial sums.
            unsafe { self.job(at, part, &job) };
        };
        let rows = self.row(part.panels.end) - self.row(part.panels.start);
        let steps = self.step(part.blocks.end) - self.step(part.blocks.start);
        let work = self.work(rows, part.columns.len(), steps);
        cx.team.run_with(splits * column_tasks * row_tasks, work, cx.flush, &body);
    }

    /// Where sums go when a part is done: the result, or memory of their own.
    fn target(&self, at: &At<'_>, part: &Chunk, job: &Job) -> Dest<T> {
        let (row, column) = (self.row(job.panels.start), job.columns.start);
        if self.plan.splits > 1 {
            let before = job.split * self.m * self.n;
            return Dest::rows(at.sums.elem(before + row * self.n + column), self.n);
        }
        if self.sums_apart() {
            let columns = part.columns.len();
            let before = (row - self.row(part.panels.start)) * columns + column - part.columns.start;
            return Dest::rows(at.sums.elem(before), columns);
        }
        Dest::rows(at.c.elem(row * self.n + column), self.n)
    }

    /// Elements of a task's own memory: a block of the right operand, sums between blocks, complete sums of a panel.
    fn own_parts(&self, at: &At<'_>, job: &Job) -> [usize; 3] {
        let columns = job.columns.len().next_multiple_of(self.shape.columns);
        let panel = self.height * columns;
        let steps = job.blocks.clone().map(|b| self.step(b + 1) - self.step(b)).max().unwrap_or(0);
        let right = if self.packs(at) { steps * columns } else { 0 };
        let sums = if self.waits() && job.blocks.len() > 1 { job.panels.len() * panel } else { 0 };
        let row = if self.completes(job) { self.at_once(job) * self.height * self.apart(columns) } else { 0 };
        [right, sums, row].map(|n| n.next_multiple_of(LINE))
    }

    /// Elements between rows of complete sums. Tile registers write whole lines of them, which should not share places
    /// of the first cache.
    fn apart(&self, columns: usize) -> usize {
        columns + if self.shape.registers.is_some() { LINE } else { 0 }
    }

    /// Whether sums wait in a task's memory for the next block: those that the result cannot hold, and those of tile
    /// registers, whose blocks are short.
    fn waits(&self) -> bool {
        self.sums_apart() || self.shape.registers.is_some()
    }

    /// Whether the sums of a job are complete after its last block and are then rounded or handed on.
    fn completes(&self, job: &Job) -> bool {
        self.sums_apart() && self.plan.splits == 1 && job.blocks.end == self.plan.blocks
    }

    /// The tiles of a group of columns and a range of panels and blocks.
    unsafe fn job(&self, at: &At<'_>, part: &Chunk, job: &Job) {
        let parts = self.own_parts(at, job);
        with_scratch(parts.iter().sum::<usize>() * size_of::<T>(), |memory| {
            let _registers = self.shape.registers.map(|r| Configured::new(r, self.height));
            let memory = Ptr(memory);
            let [right, sums, row] =
                [0, parts[0], parts[0] + parts[1]].map(|before| memory.elem::<T>(before));
            let at = At { packed_b: if self.packs(at) { Ptr(right.cast()) } else { at.packed_b }, ..*at };
            for block in job.blocks.clone() {
                // SAFETY: the caller's job; its memory is laid out as counted.
                unsafe { self.block(&at, part, job, block, sums, row) };
            }
        });
    }

    /// One block of steps of a job. Between blocks its sums are in `sums`; `row` has room for those of one panel.
    unsafe fn block(&self, at: &At<'_>, part: &Chunk, job: &Job, block: usize, sums: *mut T, row: *mut T) {
        let target = self.target(at, part, job);
        let (first, last) = (block == job.blocks.start, block + 1 == job.blocks.end);
        let completes = last && self.completes(job);
        let columns = job.columns.len().next_multiple_of(self.shape.columns);
        let apart = self.apart(columns);
        let mine;
        let mut right = part;
        if self.packs(at) {
            mine = Chunk {
                panels: job.panels.clone(),
                columns: job.columns.clone(),
                blocks: block..block + 1,
                left_ready: true,
                right_ready: true,
            };
            right = &mine;
            // SAFETY: the task's memory has room for a block of a group's columns.
            unsafe { self.pack_right(at, right, block, job.columns.clone()) };
        }
        let mut bias: *const T = std::ptr::null();
        if self.epilogue.bias && block + 1 == self.plan.blocks && self.plan.splits == 1 {
            bias = at.bias.elem::<T>(job.columns.start);
        }
        let corrections;
        if let Some(correction) = self.types.correction {
            // SAFETY: the group's columns, packed above.
            corrections = unsafe { self.corrections(at, right, job, block, correction) };
            bias = corrections.as_ptr();
        }
        // What the result holds is added first, if at all.
        let held = job.blocks.start > 0 || (self.epilogue.accumulate && self.types.round.is_none());
        let continued = first && held && self.plan.splits == 1;
        for (i, panel) in job.panels.clone().enumerate() {
            let before = self.row(panel) - self.row(job.panels.start);
            let rows = self.row(panel + 1) - self.row(panel);
            let group = self.handed_on_with(job, i);
            let (a, left) = self.left(at, part, block, panel);
            let between = match self.waits() {
                true => Dest::tiles(sums.wrapping_add(i * self.height * columns), self.height),
                false => target.down(before),
            };
            let from = match first {
                true if continued => target.down(before),
                true => Dest::none(),
                false => between,
            };
            let to = match last {
                true if completes => self.complete_place(job, panel, &group, (row, apart)),
                true => target.down(before),
                false => between,
            };
            // SAFETY: the panel's rows of the group's columns.
            unsafe { self.row_of_tiles(at, right, job, block, &Line { rows, left, a, from, to, bias }) };
            if completes {
                // SAFETY: these rows of the group's columns are complete, and this task's.
                unsafe { self.complete_panel(at, job, panel, group, (row, apart)) };
            }
        }
    }

    /// Where complete sums of a panel of rows wait for what takes them.
    #[inline(always)]
    fn complete_place(
        &self,
        job: &Job,
        panel: usize,
        group: &Range<usize>,
        (row, apart): (*mut T, usize),
    ) -> Dest<T> {
        if !self.panels[1] {
            return Dest { whole: true, ..Dest::rows(row, apart) };
        }
        let waiting = self.row(panel) - self.row(group.start);
        Dest::tiles(row.wrapping_add(waiting * self.shape.columns), self.at_once(job) * self.height)
    }

    /// What follows the last block of a panel of rows: as rows, or in panels of columns once all of `group` are complete.
    #[inline(always)]
    unsafe fn complete_panel(
        &self,
        at: &At<'_>,
        job: &Job,
        panel: usize,
        group: Range<usize>,
        (row, apart): (*mut T, usize),
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            if !self.panels[1] {
                self.complete(at, job, panel, row, apart);
            } else if panel + 1 == group.end {
                self.complete_in_panels(at, job, group, row);
            }
        }
    }

    /// What is added to the columns of a block where packing added an offset to the left operand.
    unsafe fn corrections(
        &self,
        at: &At<'_>,
        right: &Chunk,
        job: &Job,
        block: usize,
        (ones, scale): Correction<T>,
    ) -> [T; WIDEST] {
        let mut corrections = [T::default(); WIDEST];
        let ones = [ones; CHAIN];
        let line = Line {
            rows: 1,
            left: Left::Packed,
            a: Strided { ptr: ones.as_ptr(), row: 1, k: 1 },
            from: Dest::none(),
            to: Dest::rows(corrections.as_mut_ptr(), 0),
            bias: std::ptr::null(),
        };
        // SAFETY: one row of the group's columns.
        unsafe { self.row_of_tiles(at, right, job, block, &line) };
        corrections.iter_mut().for_each(|x| *x = scale(*x));
        corrections
    }

    /// Rounds or hands on the complete sums of a panel, which are in `sums`, rows `stride` apart.
    unsafe fn complete(&self, at: &At<'_>, job: &Job, panel: usize, sums: *mut T, stride: usize) {
        let first = self.row(panel) * self.n + job.columns.start;
        let (rows, columns) = (self.row(panel + 1) - self.row(panel), job.columns.len());
        if let Some(round) = self.types.round {
            for i in 0..rows {
                // SAFETY: by the caller's promise.
                unsafe {
                    self.round_row(round, at, sums.wrapping_add(i * stride), first + i * self.n, columns)
                };
            }
        }
        if let Some(finish) = at.finish {
            let first = at.batch * self.m * self.n + first;
            let sums = sums.cast_const().cast();
            finish(&OutputBlock { first, row: self.n, stride, rows, columns }, sums);
        }
    }

    /// Hands on the complete sums of some panels of rows to arrays that lie in panels: tile by tile, a run each.
    unsafe fn complete_in_panels(&self, at: &At<'_>, job: &Job, panels: Range<usize>, sums: *mut T) {
        let Some(finish) = at.finish else { return };
        let width = self.shape.columns;
        let rows = self.row(panels.start)..self.row(panels.end);
        for (tile, j) in job.columns.clone().step_by(width).enumerate() {
            let first = j * self.m + rows.start * width;
            let block = OutputBlock { first, row: 0, stride: 0, rows: 1, columns: rows.len() * width };
            let sums = sums.wrapping_add(tile * width * self.at_once(job) * self.height);
            finish(&block, sums.cast_const().cast());
        }
    }

    /// Panels of rows whose sums are handed on together: what takes them reads and writes long runs then.
    fn at_once(&self, job: &Job) -> usize {
        if !self.panels[1] {
            return 1;
        }
        (TOGETHER / (self.height * job.columns.len() * size_of::<T>())).max(1)
    }

    /// The panels that are handed on with the `i`-th of a job.
    fn handed_on_with(&self, job: &Job, i: usize) -> Range<usize> {
        let many = self.at_once(job);
        let first = job.panels.start + i / many * many;
        first..(first + many).min(job.panels.end)
    }

    /// The left operand's panel of a block, packed or where it lies.
    fn left(&self, at: &At<'_>, part: &Chunk, block: usize, panel: usize) -> (Strided<T>, Left) {
        if !self.a.direct {
            let ptr = self.left_panel(at, part, block, panel);
            return (Strided { ptr, row: 1, k: self.height }, Left::Packed);
        }
        let size = size_of::<T>();
        let ptr = at.a.at(self.row(panel) * self.a.lane + self.step(block) * self.a.step);
        let a = Strided { ptr: ptr.cast_const().cast(), row: self.a.lane / size, k: self.a.step / size };
        (a, Left::Strided)
    }

    /// The tiles of one panel of rows over a job's columns; `part` says how the right operand is packed.
    unsafe fn row_of_tiles(&self, at: &At<'_>, part: &Chunk, job: &Job, block: usize, line: &Line<T>) {
        let k = self.step(block + 1) - self.step(block);
        // The next panel of the left operand comes while this one is used, a part with each tile.
        let next = if line.left == Left::Packed { line.a.k.max(line.rows) * k } else { 0 };
        let lines = k / UNROLLED * (LINE_BYTES / size_of::<T>());
        for (i, j) in job.columns.clone().step_by(self.shape.columns).enumerate() {
            let (column, columns) = (j - job.columns.start, self.shape.columns.min(job.columns.end - j));
            let width = self.shape.width(columns);
            let (from, from_row) = line.from.at(column, width);
            let (c, c_row) = line.to.at(column, width);
            let padded_sums = [line.from.whole, line.to.whole];
            let (b, b_k) = match self.b.direct {
                true => {
                    let from = at.b.at(j * self.b.lane + self.step(block) * self.b.step);
                    (from.cast_const().cast(), self.b.step / size_of::<T>())
                }
                false => (self.right_panel(at, part, block, j), width),
            };
            let wanted = i * lines < next;
            let tile = Tile {
                k,
                rows: line.rows,
                a: line.a.ptr,
                a_row: line.a.row,
                a_k: line.a.k,
                b,
                b_k,
                padded: !self.b.direct,
                from,
                from_row,
                c,
                c_row,
                padded_sums,
                bias: if line.bias.is_null() { line.bias } else { line.bias.wrapping_add(column) },
                columns,
                ahead: line.a.ptr.wrapping_add(next + if wanted { i * lines } else { 0 }),
                ahead_step: if wanted { LINE_BYTES / size_of::<T>() } else { 0 },
            };
            // SAFETY: the caller's line covers the columns.
            unsafe { self.shape.kernel(line.rows, line.left, columns)(&tile) };
        }
    }

    /// Rounds complete sums of `n` columns to the result from element `to` on.
    unsafe fn round_row(&self, round: Rounding, at: &At<'_>, sums: *mut T, to: usize, n: usize) {
        let c = at.c.at(to * round.size);
        let nothing: *const u8 = std::ptr::null();
        if self.epilogue.accumulate {
            let mut old = [T::default(); WIDEST];
            for j in (0..n).step_by(WIDEST) {
                let count = WIDEST.min(n - j);
                // SAFETY: the caller's row.
                unsafe {
                    (round.widen)(old.as_mut_ptr().cast(), c.add(j * round.size), nothing, nothing, count);
                    for (i, old) in old.iter().enumerate().take(count) {
                        *sums.add(j + i) = sums.add(j + i).read().plus(*old);
                    }
                }
            }
        }
        // SAFETY: the caller's row.
        unsafe { (round.narrow)(c, sums.cast_const().cast(), nothing, nothing, n) };
    }

    /// Adds the partial sums, in a tree, and what else belongs to the result.
    unsafe fn join_splits(&self, cx: &Cx<'_>, at: &At<'_>) {
        let (total, splits) = (self.m * self.n, self.plan.splits);
        let body = |row: usize| {
            let (from, to) = (row * self.n, (row + 1) * self.n);
            let element = |split: usize, i: usize| at.sums.elem::<T>(split * total + i);
            let mut step = 1;
            // SAFETY: rows are disjoint parts of all sums and of the result.
            unsafe {
                while step < splits {
                    for split in (0..splits - step).step_by(2 * step) {
                        for i in from..to {
                            *element(split, i) = (*element(split, i)).plus(*element(split + step, i));
                        }
                    }
                    step *= 2;
                }
                for i in from..to {
                    if self.epilogue.bias {
                        *element(0, i) = (*element(0, i)).plus(*at.bias.elem::<T>(i - from));
                    }
                    if self.types.round.is_none() {
                        let c = at.c.elem::<T>(i);
                        *c =
                            if self.epilogue.accumulate { (*c).plus(*element(0, i)) } else { *element(0, i) };
                    }
                }
                if let Some(round) = self.types.round {
                    self.round_row(round, at, element(0, from), from, self.n);
                }
            }
        };
        cx.team.run_with(self.m, (total * splits) as f64 * 0.3, cx.flush, &body);
    }
}

/// A product's operands, and its bias or null.
fn operands(io: &Io<'_>) -> [*const u8; 3] {
    [io.inputs[0], io.inputs[1], io.inputs.get(2).copied().unwrap_or(std::ptr::null())]
}

impl<T: Element> Kernel for Blocked<T> {
    fn scratch(&self) -> usize {
        let repacked = |o: &Operand<T>| o.repack.as_ref().map_or(0, |r| r.1);
        let own = if self.side_by_side() { 0 } else { self.scratch_of_one() };
        repacked(&self.a) + repacked(&self.b) + own
    }

    /// The right operand, packed.
    fn kept(&self, same: &[bool]) -> usize {
        let p = &self.plan;
        let whole = p.column_parts == 1 && p.block_parts == 1 && self.batches() == 1;
        let packs = !self.b.direct && self.b.repack.is_none();
        if !self.types.abilities.keep || !same[1] || !whole || !packs {
            return 0;
        }
        self.n.next_multiple_of(self.shape.columns) * self.k * size_of::<T>()
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        let nothing = Ptr(std::ptr::null_mut());
        let b = Ptr(Ptr::of(inputs[1]).at(self.b.batch[0]));
        let at = At {
            b,
            packed_b: Ptr(kept),
            a: nothing,
            c: nothing,
            bias: nothing,
            packed_a: nothing,
            sums: nothing,
            kept: false,
            batch: 0,
            finish: None,
        };
        let (columns, blocks) = (0..self.n, 0..self.plan.blocks);
        let part = Chunk { panels: 0..0, columns, blocks, left_ready: true, right_ready: false };
        let group = self.shape.group;
        let per_block = self.n.div_ceil(group);
        let body = |task: usize| {
            let first = task % per_block * group;
            // SAFETY: these columns' places in the packed operand.
            unsafe { self.pack_right(&at, &part, task / per_block, first..(first + group).min(self.n)) };
        };
        let work = (self.n * self.k) as f64 * PACK_NS;
        cx.team.run_with(per_block * self.plan.blocks, work, cx.flush, &body);
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: operands and result are those that this was made for; scratch has as many bytes as it asked for.
        unsafe { self.run_to(cx, operands(io), (io.outputs[0], None), io.scratch, kept) };
        Ok(())
    }

    /// Not where results are rounded: each of two additions would have to be.
    fn add_to_result(&mut self) -> bool {
        self.epilogue.accumulate = self.types.abilities.accumulate && self.types.round.is_none();
        self.epilogue.accumulate
    }

    /// Not where sums are rounded, or added up from sums that were made in parallel.
    fn hand_over_blocks(&mut self) -> bool {
        self.hands_over = self.types.abilities.hand_over
            && self.types.round.is_none()
            && !self.epilogue.accumulate
            && self.plan.splits == 1;
        self.replan();
        self.hands_over
    }

    unsafe fn run_by_blocks(&self, cx: &Cx<'_>, io: &Io<'_>, take: TakeBlock<'_>, kept: *const u8) {
        // SAFETY: by the caller's promise; such products store nothing.
        unsafe { self.run_to(cx, operands(io), (std::ptr::null_mut(), Some(take)), io.scratch, kept) }
    }

    /// Panels have a tile's columns. It cannot where operands have to be converted when they are packed, where tasks do not
    /// share the columns only, and where the last tile has fewer columns.
    fn take_panels(&mut self, which: Side, on: bool) -> Option<usize> {
        let (width, size) = (self.shape.columns, size_of::<T>());
        let [rows, panels] = [[size, self.n * size], [self.products * size, width * size]];
        let fits = match which {
            Side::Right if self.panels[0] => true,
            Side::Right => !self.b.direct && self.b.repack.is_none() && [self.b.lane, self.b.step] == rows,
            Side::Result => self.hands_over,
        };
        if !fits || !self.types.plain || self.batches() != 1 || !self.n.is_multiple_of(width) {
            return None;
        }
        self.panels[which as usize] = on;
        if which == Side::Right {
            // Kernels go from step to step of a tile, and from tile to tile.
            [self.b.lane, self.b.step] = if on { panels } else { rows };
            self.b.direct = on;
        }
        self.replan();
        if on && !self.plan.by_columns {
            self.take_panels(which, false);
            return None;
        }
        Some(width)
    }
}

/// An operand in place.
struct Strided<T> {
    ptr: *const T,
    row: usize,
    k: usize,
}

/// Where sums of a panel of rows are, from the first column on.
#[derive(Clone, Copy)]
struct Dest<T> {
    /// Null: there are none.
    ptr: *mut T,
    /// Elements between columns.
    column: usize,
    /// Elements between rows; `None`: the tile's width.
    row: Option<usize>,
    /// Whether there is room for whole tiles.
    whole: bool,
}

impl<T> Dest<T> {
    fn none() -> Dest<T> {
        Dest { ptr: std::ptr::null_mut(), column: 0, row: None, whole: true }
    }

    /// Rows of a matrix.
    fn rows(ptr: *mut T, row: usize) -> Dest<T> {
        Dest { ptr, column: 1, row: Some(row), whole: false }
    }

    /// One tile of `height` rows after the other.
    fn tiles(ptr: *mut T, height: usize) -> Dest<T> {
        Dest { ptr, column: height, row: None, whole: true }
    }

    /// The same, some rows further down.
    fn down(self, rows: usize) -> Dest<T> {
        Dest { ptr: self.ptr.wrapping_add(rows * self.row.unwrap_or(0)), ..self }
    }

    /// Address and elements between rows of the tile at a column.
    fn at(self, column: usize, width: usize) -> (*mut T, usize) {
        (self.ptr.wrapping_add(column * self.column), self.row.unwrap_or(width))
    }
}

/// A panel of rows that meets a group of columns.
struct Line<T> {
    rows: usize,
    left: Left,
    a: Strided<T>,
    from: Dest<T>,
    to: Dest<T>,
    bias: *const T,
}

/// Chunk of a result that one task computes.
struct Job {
    panels: Range<usize>,
    columns: Range<usize>,
    blocks: Range<usize>,
    split: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::Memory;
    use crate::machine::team::Team;
    use crate::simd::gemm::shape_f32;
    use crate::simd::level::Level;
    use crate::simd::loops::{narrow, widen};
    use crate::simd::pack::floats;
    use systole_ir::{DType, bf16};

    /// Runs a product of whole numbers, row-major, with an epilogue; all sums are exact in f32.
    fn run(level: Level, to: DType, (m, n, k): (usize, usize, usize), epilogue: Epilogue, keep: bool) {
        let matrix = |rows: usize, columns: usize| -> Vec<f32> {
            (0..rows * columns).map(|i| ((i * 37 + i / columns) % 7) as f32 - 3.0).collect()
        };
        let (a, b, bias, old) = (matrix(m, k), matrix(k, n), matrix(1, n), matrix(m, n));
        let dim = |size: usize, src: usize| vec![Dim { size, src: src as isize, dst: 0 }];
        let ra = Roles { batch: vec![], free: dim(m, k), inner: dim(k, 1) };
        let rb = Roles { batch: vec![], free: dim(n, 1), inner: dim(k, n) };
        let round = narrow(to, level).zip(widen(to, level));
        let types = Types {
            size: 4,
            group: 1,
            pack_left: floats(DType::F32, level),
            pack_right: floats(DType::F32, level),
            plain: true,
            round: round.map(|(narrow, widen)| Rounding { narrow, widen, size: 2 }),
            correction: None,
            abilities: Abilities::ALL,
        };
        let p = Blocked::new(&ra, &rb, shape_f32(level, n), types, epilogue);
        let scratch = Memory::new(p.scratch()).unwrap();
        let team = Team::new(2);
        let cx = Cx { team: &team, flush: false };
        let (mut wide, mut half) = (old.clone(), old.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
        let c: *mut u8 = if round.is_some() { half.as_mut_ptr().cast() } else { wide.as_mut_ptr().cast() };
        let operands = [a.as_ptr().cast(), b.as_ptr().cast(), bias.as_ptr().cast()];
        // The right operand packed before must change nothing.
        let bytes = p.kept(&[false, true, false]);
        let kept = Memory::new(bytes.max(1)).unwrap();
        let made = if keep && bytes > 0 { kept.ptr().cast_const() } else { std::ptr::null() };
        // SAFETY: all arrays have the sizes of the product.
        unsafe {
            if !made.is_null() {
                p.keep(&cx, &operands, kept.ptr());
            }
            let io = Io { inputs: &operands, outputs: &[c], scratch: scratch.ptr() };
            p.run_kept(&cx, &io, made).unwrap();
        }
        for i in 0..m * n {
            let mut want: f32 = (0..k).map(|x| a[i / n * k + x] * b[x * n + i % n]).sum();
            want += if epilogue.bias { bias[i % n] } else { 0.0 };
            want += if epilogue.accumulate { old[i] } else { 0.0 };
            let (got, want) = if round.is_some() {
                (half[i].to_f32(), bf16::from_f32(want).to_f32())
            } else {
                (wide[i], want)
            };
            assert_eq!(got, want, "{level:?} {to:?} {m} {n} {k} {epilogue:?}, element {i}");
        }
    }

    #[test]
    fn bias_and_accumulation_in_every_path() {
        for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
            for to in [DType::F32, DType::BF16] {
                // In place, packed, several blocks of steps, packed by tasks, split sums, no products at all.
                for size in [
                    (3, 20, 9),
                    (50, 70, 40),
                    (60, 300, 900),
                    (30, 530, 900),
                    (5, 6, 3000),
                    (4, 5, 0),
                    (100, 9, 800),
                ] {
                    for (bias, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                        run(level, to, size, Epilogue { bias, accumulate }, false);
                        run(level, to, size, Epilogue { bias, accumulate }, true);
                    }
                }
            }
        }
    }
}
