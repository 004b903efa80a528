//! BLIS-style GEMM driver `C[M, N] = A[M, K] · B[K, N]` (also batched), from packed micro-panels and microkernels.
//!
//! Loop nest, outermost first: parts of rows (MC), of columns (NC) and of K blocks, which bound packed memory
//! ([`BlockedGemm::plan`]); groups of B columns; K blocks (KC); row panels of A; register tiles. The group's B
//! micro-panels of one K block stay in L2 while A micro-panels stream past them.
//!
//! A is read unpacked if that costs little: few columns use it, or its cache lines of one tile fit L1 in place. B is
//! read unpacked if there are few rows. Otherwise all threads pack a part and then compute its tiles. If M is one part
//! and there are enough columns for all threads, tasks divide N only: each packs its own B columns, one K block at a
//! time, which then never leave its L2.
//!
//! Partial sums between K blocks are kept in C. AMX kernels have a short KC and keep them in task scratch, tile by
//! tile: rows of C are so far apart that only few of them fit a cache at a time.
//!
//! Inside, K is counted in k-steps of `group` reduction elements, such as 1 for f32, 2 for bf16 pairs, 4 for bytes
//! (VNNI).
//!
//! Determinism: an element is accumulated over K in order within a K block, then block by block, and splits of K are
//! added in a fixed tree. Its value depends on the shapes and the microkernel, not on the number of threads.

pub mod element_types;
mod integers;

use crate::kernel::copy::{BoxCopy, Dim};
use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, joint_stride, offsets};
use crate::kernel::{EpilogueFn, GemmSide, Io, Kernel, KernelContext, OutputBlock, Ptr, with_scratch};
use crate::simd::gemm::{
    CHAIN, GemmElement, GemmTile, LhsLayout, MicrokernelShape, TileConfigGuard, UNROLLED, WIDEST,
};
use crate::simd::level::TileFn;
use crate::simd::pack::{PackFn, PanelArgs};
use smallvec::SmallVec;
use std::ops::Range;
use systole_ir::Result;

/// Maximum MC and NC: rows and columns of C in one part.
const MC_NC: usize = 4096;
/// Maximum MC and NC if partial sums of a part need scratch (f32 sums of narrow results, epilogues).
const MC_NC_IN_SCRATCH: usize = 2048;
/// Elements of the B block (k-steps × columns of a group) that stay in L2.
const B_BLOCK_ELEMENTS: usize = 96 << 10;
/// Elements of 4 bytes in a cache line. K blocks start at multiples of it.
const LINE_ELEMENTS: usize = 16;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Bytes of one L1 way (addresses this far apart share a set), and number of L1 ways that an unpacked A may occupy.
const L1_WAY_BYTES: usize = 4096;
const A_WAYS: usize = 4;
/// Maximum M and N for which an A with contiguous K is read unpacked. No thread then reads data that another thread
/// packed, which is slow between cores that do not share a cache.
const UNPACKED_MN: usize = 512;
/// A micro-panels that one task packs.
const PANELS_PER_TASK: usize = 16;
/// Bytes of complete sums that are buffered per call of the epilogue if its arrays have panel layout.
const EPILOGUE_BYTES: usize = 32 << 10;
/// Maximum elements of a packed operand. Longer operands are cut into parts of K blocks.
const PACKED_ELEMENTS: usize = 4 << 20;
/// Target number of tasks of a parallel loop. It is fixed, so that blocking and rounding do not depend on the thread
/// count.
const TASKS: usize = 16;
/// If each task packs its own B columns: minimum columns of a task, and the divisor of the number of tasks.
const OWN_COLUMNS: usize = 64;
const OWN_TASKS: usize = 8;
/// Maximum bytes of a B that is in every L2 at the end of a product, together with other data.
const SMALL_B: usize = 512 << 10;
/// Approximate nanoseconds for one core to pack an element.
const PACK_NS: f64 = 0.25;

/// Operand A or B as a strided matrix `[batch, M or N, K]`.
///
/// It is first copied if M, N or K consists of several dimensions without a common stride. "Lane" is the dimension that
/// is not reduced: a row of A, a column of B.
struct GemmOperand<T> {
    /// Strides in bytes: between lanes (along M or N), and along K.
    lane_stride: usize,
    k_stride: usize,
    /// Byte offset of each batch element.
    batch: Vec<usize>,
    /// Copy into a dense matrix, and its size in bytes.
    repack: Option<(BoxCopy, usize)>,
    pack: PackFn<T>,
    /// Whether microkernels read it unpacked.
    direct: bool,
}

impl<T> GemmOperand<T> {
    fn new(r: &OperandDims, size: usize, pack: PackFn<T>) -> GemmOperand<T> {
        let (lanes, k) = (count(&r.free), count(&r.inner));
        if let (Some(free), Some(inner)) = (joint_stride(&r.free), joint_stride(&r.inner)) {
            let batch = offsets(&r.batch).into_iter().map(|at| at * size).collect();
            return GemmOperand {
                lane_stride: free * size,
                k_stride: inner * size,
                batch,
                repack: None,
                pack,
                direct: false,
            };
        }
        // The dimension with the smallest stride stays innermost, so that the copy moves whole cache lines instead of
        // elements.
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
        let batch = (0..count(&r.batch)).map(|b| b * lanes * k * size).collect();
        let repack = Some((BoxCopy::new(size, &dims, 0, 0), (stride as usize * size).next_multiple_of(64)));
        let (lane_stride, k_stride) = if by_lanes { (size, lanes * size) } else { (k * size, size) };
        GemmOperand { lane_stride, k_stride, batch, repack, pack, direct: false }
    }

    /// Whether A is contiguous along M, as a packed panel is, and one cache line for each k fits L1 together.
    fn m_contiguous_in_l1(&self, k: usize) -> bool {
        self.lane_stride == size_of::<T>() && k <= A_WAYS * l1_sets(self.k_stride)
    }

    /// Whether A is contiguous along K, and one cache line of each of `lanes` rows fits L1 together.
    fn k_contiguous_in_l1(&self, lanes: usize) -> bool {
        self.k_stride == size_of::<T>() && lanes <= A_WAYS * l1_sets(self.lane_stride)
    }
}

/// Returns the number of different L1 sets that addresses with a stride of `stride` bytes map to: large powers of two
/// conflict.
fn l1_sets(stride: usize) -> usize {
    L1_WAY_BYTES / (stride & stride.wrapping_neg()).clamp(LINE_BYTES, L1_WAY_BYTES)
}

/// Conversion between f32 sums and stored results of a narrower type.
#[derive(Clone, Copy)]
pub struct SumRounding {
    /// Conversion from f32 to the stored type.
    pub narrow: TileFn,
    /// Conversion from the stored type to f32.
    pub widen: TileFn,
    /// Bytes of a stored element.
    pub size: usize,
}

/// Zero-point correction: a k-step of ones, and the function from a column sum of B (A's row replaced by ones) to the
/// value that is added to C.
type Correction<T> = (T, fn(T) -> T);

/// Element types of a GEMM: packing of operands and storage of sums.
pub struct GemmTypes<T: 'static> {
    /// Bytes of an element of A and B as stored.
    pub size: usize,
    /// Reduction elements of one k-step (VNNI group).
    pub group: usize,
    /// Packing of A.
    pub pack_left: PackFn<T>,
    /// Packing of B.
    pub pack_right: PackFn<T>,
    /// Whether microkernels can read A and B as stored, without conversion.
    pub plain: bool,
    /// Rounding of sums to a narrower result type. `None`: sums are stored unchanged.
    pub round: Option<SumRounding>,
    /// Compensation from the column sums of B if packing adds a zero point to A (i8 packed as u8).
    pub correction: Option<Correction<T>>,
    pub abilities: GemmFeatures,
}

/// Optional GEMM features, which are compiled only for the element types that use them.
#[derive(Clone, Copy)]
pub struct GemmFeatures {
    /// Accumulation: `C += A · B` (beta = 1).
    pub accumulate: bool,
    /// Packing B once for many calls.
    pub keep: bool,
    /// Passing blocks of C to an epilogue instead of storing them.
    pub hand_over: bool,
}

impl GemmFeatures {
    pub const ALL: GemmFeatures = GemmFeatures { accumulate: true, keep: true, hand_over: true };
    pub const NONE: GemmFeatures = GemmFeatures { accumulate: false, keep: false, hand_over: false };
}

/// Blocked GEMM kernel `[M, K] · [K, N]`, or a batch of them.
pub struct BlockedGemm<T: 'static> {
    a: GemmOperand<T>,
    b: GemmOperand<T>,
    m: usize,
    n: usize,
    /// K in reduction elements, and in k-steps (padded to whole groups and to the microkernel's unit).
    k: usize,
    k_steps: usize,
    /// Rows that an A micro-panel has room for.
    height: usize,
    shape: MicrokernelShape<T>,
    types: GemmTypes<T>,
    epilogue: Epilogue,
    /// Whether complete sums are passed to an epilogue instead of C.
    hands_over: bool,
    /// Whether B, and the epilogue's arrays, have panel layout `[N / columns, rows, columns]`, with the `columns` of a
    /// register tile.
    panel_layout: [bool; 2],
    plan: BlockingPlan,
}

/// Blocking, as counts: each dimension is divided into this many ranges of nearly equal length.
#[derive(Clone, Copy)]
struct BlockingPlan {
    /// Row panels of A: M is divided into tiles of at most MR rows.
    panels: usize,
    /// K blocks of about KC k-steps.
    blocks: usize,
    /// Parts that are packed and computed one after another: ranges of row panels, of columns, of K blocks.
    row_parts: usize,
    column_parts: usize,
    block_parts: usize,
    /// Ranges of K blocks that are summed in parallel into separate arrays (split-K).
    splits: usize,
    /// Whether tasks divide N only, each packing the B columns that it uses.
    by_columns: bool,
}

/// Returns the `i`-th of `parts` even ranges of `0..n`.
fn even(n: usize, parts: usize, i: usize) -> Range<usize> {
    n * i / parts..n * (i + 1) / parts
}

/// Like [`even`], but ranges start at multiples of `unit`.
fn even_by(unit: usize, n: usize, parts: usize, i: usize) -> Range<usize> {
    let r = even(n.div_ceil(unit), parts, i);
    (r.start * unit).min(n)..(r.end * unit).min(n)
}

/// One part: the ranges of M, N and K that are packed at a time.
struct GemmPart {
    panels: Range<usize>,
    columns: Range<usize>,
    blocks: Range<usize>,
    /// Whether A, and B, are still packed from the previous part.
    left_ready: bool,
    right_ready: bool,
}

/// Addresses of one matrix product of the batch.
#[derive(Clone, Copy)]
struct GemmAddresses<'a> {
    a: Ptr,
    b: Ptr,
    c: Ptr,
    bias: Ptr,
    packed_a: Ptr,
    packed_b: Ptr,
    /// Scratch for split-K sums, or for partial sums between parts that C cannot hold.
    sums: Ptr,
    /// Whether `packed_b` was filled by [`Kernel::keep`].
    kept: bool,
    /// Index in the batch.
    batch: usize,
    finish: Option<EpilogueFn<'a>>,
}

impl<T: GemmElement> BlockedGemm<T> {
    /// Creates the GEMM of `ra` (A) and `rb` (B); `shape` is the microkernel.
    pub fn new(
        ra: &OperandDims,
        rb: &OperandDims,
        shape: MicrokernelShape<T>,
        types: GemmTypes<T>,
        epilogue: Epilogue,
    ) -> BlockedGemm<T> {
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        let mut a = GemmOperand::new(ra, types.size, types.pack_left);
        let mut b = GemmOperand::new(rb, types.size, types.pack_right);
        // Packing pays off if several tiles use an element.
        let in_place =
            a.m_contiguous_in_l1(k) || m.max(n) <= UNPACKED_MN && a.k_contiguous_in_l1(shape.rows());
        a.direct = types.plain && (n <= 2 * shape.columns || in_place);
        b.direct = types.plain && (n == 1 || b.lane_stride == types.size) && m <= 3 * shape.rows();
        let k_steps = k.div_ceil(types.group).next_multiple_of(shape.unit);
        let mut p = BlockedGemm {
            a,
            b,
            m,
            n,
            k,
            k_steps,
            height: 0,
            shape,
            types,
            epilogue,
            hands_over: false,
            panel_layout: [false; 2],
            plan: BlockingPlan {
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

    /// Whether partial sums cannot be kept in C, because it is narrower or not stored.
    fn sums_apart(&self) -> bool {
        self.types.round.is_some() || self.hands_over
    }

    fn plan(&self) -> BlockingPlan {
        let panels = self.m.div_ceil(self.shape.rows()).max(1);
        let tiles = panels * self.n.div_ceil(self.shape.columns).max(1);
        // Small C: shorter K blocks, so that split-K has work for several tasks.
        let chain = if tiles < TASKS { self.shape.chain / 2 } else { self.shape.chain };
        let blocks = self.k_steps.div_ceil(chain).max(1);
        let part = if self.sums_apart() { MC_NC_IN_SCRATCH } else { MC_NC };
        let (row_parts, column_parts) = (self.m.div_ceil(part).max(1), self.n.div_ceil(part).max(1));
        let column_part = self.n / column_parts;
        let by_columns = (self.panel_layout[0] || !self.b.direct)
            && row_parts == 1
            && self.group() == self.shape.group
            && self.m <= self.shape.task_rows
            && column_part >= self.own_tasks(column_part) * OWN_COLUMNS;
        let side = |in_place: bool, n: usize| if in_place { 0 } else { n };
        let (rows, columns) =
            (side(self.a.direct, self.m / row_parts), side(self.b.direct || by_columns, column_part));
        let packed = rows.max(columns) * self.k_steps;
        let block_parts = packed.div_ceil(PACKED_ELEMENTS).clamp(1, blocks);
        // Small C and long K: split-K is the only parallelism.
        let few = tiles < TASKS && block_parts == 1 && self.batches() == 1 && self.types.correction.is_none();
        let splits = if few && !self.hands_over { (TASKS / tiles).min(blocks / 2).max(1) } else { 1 };
        BlockingPlan {
            panels,
            blocks,
            row_parts,
            column_parts,
            block_parts,
            splits,
            by_columns: by_columns && splits == 1,
        }
    }

    /// Returns the columns per group. With an epilogue, as many as fit L2: it then reads and writes long runs of a row.
    /// Groups have about equal sizes, so that threads do not wait for a large last group.
    fn group(&self) -> usize {
        if !self.hands_over || self.panel_layout[0] || self.panel_layout[1] {
            return self.shape.group;
        }
        let most = (B_BLOCK_ELEMENTS / self.k_steps.clamp(1, B_BLOCK_ELEMENTS)).max(self.shape.group);
        self.n.div_ceil(self.n.div_ceil(most).max(1)).next_multiple_of(self.shape.columns)
    }

    /// Returns the number of tasks for `columns` of a part if each task packs its own B columns.
    fn own_tasks(&self, columns: usize) -> usize {
        columns.div_ceil(self.shape.group).next_multiple_of(OWN_TASKS)
    }

    fn batches(&self) -> usize {
        self.a.batch.len()
    }

    /// First row of a row panel; `row(panels)` is M.
    fn row(&self, panel: usize) -> usize {
        self.m * panel / self.plan.panels
    }

    /// First k-step of a K block; for index `blocks`, the end of K.
    fn k_start(&self, block: usize) -> usize {
        // K blocks are whole cache lines of 4-byte elements.
        let line = LINE_ELEMENTS.max(self.shape.unit);
        (self.k_steps.div_ceil(line) * block / self.plan.blocks * line).min(self.k_steps)
    }

    /// Scratch of one product of the batch, in elements: packed A, packed B, sums.
    fn scratch_parts(&self) -> [usize; 3] {
        let p = &self.plan;
        let most = |n: usize, parts: usize| n.div_ceil(parts) + 2 * self.shape.rows().max(self.shape.columns);
        let k_steps = (0..p.block_parts)
            .map(|i| even(p.blocks, p.block_parts, i))
            .map(|r| self.k_start(r.end) - self.k_start(r.start))
            .max()
            .unwrap_or(0);
        let (rows, columns) = (most(self.m, p.row_parts), most(self.n, p.column_parts));
        let a = if self.a.direct { 0 } else { p.panels.div_ceil(p.row_parts) * self.height * k_steps };
        let b = if self.b.direct || p.by_columns { 0 } else { columns * k_steps };
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

    /// Scratch of one product of the batch, in bytes.
    fn scratch_of_one(&self) -> usize {
        self.scratch_parts().iter().sum::<usize>() * size_of::<T>()
    }

    /// Whether the products of a batch run in parallel, each with its thread's scratch, of at most 16 MiB.
    fn side_by_side(&self) -> bool {
        self.batches() >= 4 && self.scratch_of_one() <= 16 << 20
    }

    unsafe fn run_to(
        &self,
        cx: &KernelContext<'_>,
        io: [*const u8; 3],
        (c, finish): (*mut u8, Option<EpilogueFn<'_>>),
        scratch: *mut u8,
        kept: *const u8,
    ) {
        let ([mut a, mut b, bias], mut scratch) = (io, scratch);
        if self.m == 0 || self.n == 0 {
            return;
        }
        for (operand, x) in [(&self.a, &mut a), (&self.b, &mut b)] {
            if let Some((copy, bytes)) = &operand.repack {
                // SAFETY: `scratch` counts the copy's bytes.
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
            let at = GemmAddresses {
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
            // SAFETY: the caller's arrays; `scratch_parts` defines the layout and size of scratch.
            unsafe { self.one(cx, &at) };
        };
        if self.side_by_side() {
            let work = self.work(self.m, self.n, self.k_steps) * self.batches() as f64;
            let bytes = self.scratch_of_one();
            let body = |batch: usize| with_scratch(bytes.max(64), |memory| one(batch, memory));
            cx.team.run_with(self.batches(), work, cx.flush, &body);
        } else {
            (0..self.batches()).for_each(|batch| one(batch, scratch));
        }
    }

    /// Approximate nanoseconds on one core.
    fn work(&self, m: usize, n: usize, k: usize) -> f64 {
        (m * n.next_multiple_of(self.shape.lanes)) as f64 * k as f64 / self.shape.lanes as f64
            * self.shape.step_ns
    }

    /// Computes one product of the batch, part by part.
    unsafe fn one(&self, cx: &KernelContext<'_>, at: &GemmAddresses<'_>) {
        let p = &self.plan;
        for i in 0..p.row_parts {
            for j in 0..p.column_parts {
                for l in 0..p.block_parts {
                    let part = GemmPart {
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
            // SAFETY: every split's sums are complete.
            unsafe { self.reduce_splits(cx, at) };
        }
    }

    /// Packs the A and B panels of a part that are not packed yet.
    unsafe fn pack(&self, cx: &KernelContext<'_>, at: &GemmAddresses<'_>, part: &GemmPart) {
        let row_tasks =
            if self.a.direct || part.left_ready { 0 } else { part.panels.len().div_ceil(PANELS_PER_TASK) };
        let no_right = self.b.direct || self.plan.by_columns || at.kept || part.right_ready;
        // As many tasks as the columns allow if there are few: otherwise a single thread would pack everything.
        let apart = part.blocks.len() * part.columns.len().div_ceil(self.shape.group) >= OWN_TASKS;
        let group = if apart { self.shape.group } else { self.shape.columns };
        let column_tasks = if no_right { 0 } else { part.columns.len().div_ceil(group) };
        let per_block = row_tasks + column_tasks;
        if per_block == 0 {
            return;
        }
        let body = |task: usize| {
            let (block, task) = (part.blocks.start + task / per_block, task % per_block);
            if task < row_tasks {
                let first = part.panels.start + task * PANELS_PER_TASK;
                let panels = first..(first + PANELS_PER_TASK).min(part.panels.end);
                // SAFETY: each task writes its own panels of packed A.
                unsafe { self.pack_left(at, part, block, panels) };
            } else {
                let first = part.columns.start + (task - row_tasks) * group;
                let columns = first..(first + group).min(part.columns.end);
                // SAFETY: each task writes its own columns of packed B.
                unsafe { self.pack_right(at, part, block, columns) };
            }
        };
        let k_steps = self.k_start(part.blocks.end) - self.k_start(part.blocks.start);
        let lanes = row_tasks * PANELS_PER_TASK * self.shape.rows() + column_tasks * group;
        cx.team.run_with(part.blocks.len() * per_block, (lanes * k_steps) as f64 * PACK_NS, cx.flush, &body);
    }

    unsafe fn pack_left(&self, at: &GemmAddresses<'_>, part: &GemmPart, block: usize, panels: Range<usize>) {
        let panel = |p: usize| {
            let rows = self.row(p)..self.row(p + 1);
            let to = self.left_panel(at, part, block, p).cast_mut();
            let fill = if self.shape.registers.is_some() { self.height } else { rows.len() };
            self.panel(&self.a, at.a, rows, fill, block, to)
        };
        let panels: SmallVec<[PanelArgs<T>; PANELS_PER_TASK]> = panels.map(panel).collect();
        // SAFETY: `panel` describes rows of A, and destinations in packed A that `scratch_parts` counts.
        unsafe { (self.a.pack)(&panels) };
    }

    unsafe fn pack_right(
        &self,
        at: &GemmAddresses<'_>,
        part: &GemmPart,
        block: usize,
        columns: Range<usize>,
    ) {
        let panel = |j: usize| {
            let columns = j..(j + self.shape.columns).min(columns.end);
            let fill = self.shape.width(columns.len());
            let to = self.right_panel(at, part, block, j).cast_mut();
            self.panel(&self.b, at.b, columns, fill, block, to)
        };
        let panels: SmallVec<[PanelArgs<T>; PANELS_PER_TASK]> =
            columns.clone().step_by(self.shape.columns).map(panel).collect();
        // SAFETY: as in `pack_left`, for columns of B.
        unsafe { (self.b.pack)(&panels) };
    }

    /// Returns arguments that pack a range of lanes (rows of A, columns of B) of one K block, zero-padded to `fill`
    /// lanes.
    fn panel(
        &self,
        o: &GemmOperand<T>,
        from: Ptr,
        lanes: Range<usize>,
        fill: usize,
        block: usize,
        dst: *mut T,
    ) -> PanelArgs<T> {
        let (start, end) = (self.k_start(block), self.k_start(block + 1));
        let first = start * self.types.group;
        PanelArgs {
            src: from.at(lanes.start * o.lane_stride + first * o.k_stride).cast_const(),
            lane: o.lane_stride,
            step: o.k_stride,
            lanes: lanes.len(),
            fill,
            k: end - start,
            products: (end * self.types.group).min(self.k) - first,
            dst,
            stride: fill,
        }
    }

    /// Address of an A micro-panel. Packed A: `[K blocks, row panels, k-steps, height]`.
    fn left_panel(&self, at: &GemmAddresses<'_>, part: &GemmPart, block: usize, panel: usize) -> *const T {
        let k_steps = self.k_start(block) - self.k_start(part.blocks.start);
        let of_block = self.k_start(block + 1) - self.k_start(block);
        let before = k_steps * part.panels.len() + (panel - part.panels.start) * of_block;
        at.packed_a.elem::<T>(before * self.height)
    }

    /// Address of the B micro-panel that starts at column `j`. Packed B: `[K blocks, column panels, k-steps, columns]`.
    fn right_panel(&self, at: &GemmAddresses<'_>, part: &GemmPart, block: usize, j: usize) -> *const T {
        let columns = part.columns.len().next_multiple_of(self.shape.columns);
        let k_steps = self.k_start(block) - self.k_start(part.blocks.start);
        let of_block = self.k_start(block + 1) - self.k_start(block);
        at.packed_b.elem::<T>(k_steps * columns + (j - part.columns.start) * of_block)
    }

    /// Whether each task packs the B columns that it uses.
    fn packs(&self, at: &GemmAddresses<'_>) -> bool {
        self.plan.by_columns && !self.b.direct && !at.kept
    }

    /// Returns how a part's tiles are divided among tasks: tasks along rows, tasks along columns, and columns of a
    /// task.
    fn grid(&self, part: &GemmPart) -> (usize, usize, usize) {
        let (n, splits, group) = (part.columns.len(), self.plan.splits, self.group());
        // Few rows: each core's L2 has a different part of B.
        if self.plan.by_columns {
            return (1, self.own_tasks(n), group);
        }
        let buffered = self.sums_in_scratch() && part.blocks.len().div_ceil(splits) > 1;
        let rows = part.panels.len() * self.height;
        let fewest = if buffered { rows.div_ceil(self.shape.task_rows) } else { 1 };
        let row_tasks =
            (TASKS / n.div_ceil(group).max(1)).max(fewest).clamp(1, part.panels.len().div_ceil(2));
        // Few tasks have unequal sizes: panels of rows cannot be divided evenly.
        let is_few = |width: usize| row_tasks * n.div_ceil(width) * splits < OWN_TASKS;
        let mut width = group;
        while is_few(width) && width > self.shape.columns && !self.hands_over {
            width = (width / 2).next_multiple_of(self.shape.columns);
        }
        (row_tasks, n.div_ceil(width).max(1), width)
    }

    /// Computes a part's tiles.
    unsafe fn tiles(&self, cx: &KernelContext<'_>, at: &GemmAddresses<'_>, part: &GemmPart) {
        let (splits, n, own) = (self.plan.splits, part.columns.len(), self.plan.by_columns);
        let (row_tasks, column_tasks, width) = self.grid(part);
        let rows = self.row(part.panels.end) - self.row(part.panels.start);
        let k_steps = self.k_start(part.blocks.end) - self.k_start(part.blocks.start);
        // Steps next to a product, such as element-wise ones, are divided by rows. So is a product whose B is in each
        // L2 anyway.
        let by_rows = n * k_steps * size_of::<T>() <= SMALL_B;
        let body = |task: usize| {
            let (split, task) = (task % splits, task / splits);
            let (j, i) = match by_rows {
                true => (task % column_tasks, task / column_tasks),
                false => (task / row_tasks, task % row_tasks),
            };
            let panels = even(part.panels.len(), row_tasks, i);
            let columns = if own {
                even_by(self.shape.columns, n, column_tasks, j)
            } else {
                j * width..((j + 1) * width).min(n)
            };
            let job = GemmTask {
                panels: part.panels.start + panels.start..part.panels.start + panels.end,
                columns: part.columns.start + columns.start..part.columns.start + columns.end,
                blocks: if splits > 1 { even(self.plan.blocks, splits, split) } else { part.blocks.clone() },
                split,
            };
            // SAFETY: tasks write disjoint rows and columns of C, or of their split's sums.
            unsafe { self.job(at, part, &job) };
        };
        cx.team.run_with(splits * column_tasks * row_tasks, self.work(rows, n, k_steps), cx.flush, &body);
    }

    /// Returns the destination of a task's sums after the last K block of a part: C, or scratch.
    fn target(&self, at: &GemmAddresses<'_>, part: &GemmPart, job: &GemmTask) -> SumsLocation<T> {
        let (row, column) = (self.row(job.panels.start), job.columns.start);
        if self.plan.splits > 1 {
            let before = job.split * self.m * self.n;
            return SumsLocation::rows(at.sums.elem(before + row * self.n + column), self.n);
        }
        if self.sums_apart() {
            let columns = part.columns.len();
            let before = (row - self.row(part.panels.start)) * columns + column - part.columns.start;
            return SumsLocation::rows(at.sums.elem(before), columns);
        }
        SumsLocation::rows(at.c.elem(row * self.n + column), self.n)
    }

    /// Scratch of one task, in elements: one K block of packed B, partial sums between K blocks, complete sums of a
    /// panel.
    fn task_scratch(&self, at: &GemmAddresses<'_>, job: &GemmTask) -> [usize; 3] {
        let columns = job.columns.len().next_multiple_of(self.shape.columns);
        let panel = self.height * columns;
        let k_steps = job.blocks.clone().map(|b| self.k_start(b + 1) - self.k_start(b)).max().unwrap_or(0);
        let right = if self.packs(at) { k_steps * columns } else { 0 };
        let sums = if self.sums_in_scratch() && job.blocks.len() > 1 { job.panels.len() * panel } else { 0 };
        let row = if self.completes(job) {
            self.panels_per_call(job) * self.height * self.sums_stride(columns)
        } else {
            0
        };
        [right, sums, row].map(|n| n.next_multiple_of(LINE_ELEMENTS))
    }

    /// Elements between rows of buffered complete sums. One cache line of padding for AMX, whose tiles store 16 rows at
    /// once: rows whose stride is a power of two would conflict in L1.
    fn sums_stride(&self, columns: usize) -> usize {
        columns + if self.shape.registers.is_some() { LINE_ELEMENTS } else { 0 }
    }

    /// Whether partial sums between K blocks are kept in task scratch instead of C: those that C cannot hold, and those
    /// of AMX, whose KC is short.
    fn sums_in_scratch(&self) -> bool {
        self.sums_apart() || self.shape.registers.is_some()
    }

    /// Whether a task's last K block completes its sums, which are then rounded or passed to the epilogue.
    fn completes(&self, job: &GemmTask) -> bool {
        self.sums_apart() && self.plan.splits == 1 && job.blocks.end == self.plan.blocks
    }

    /// Computes a task on this thread.
    unsafe fn job(&self, at: &GemmAddresses<'_>, part: &GemmPart, job: &GemmTask) {
        let parts = self.task_scratch(at, job);
        with_scratch(parts.iter().sum::<usize>() * size_of::<T>(), |memory| {
            let _registers = self.shape.registers.map(|r| TileConfigGuard::new(r, self.height));
            let memory = Ptr(memory);
            let [right, sums, row] =
                [0, parts[0], parts[0] + parts[1]].map(|before| memory.elem::<T>(before));
            let at = GemmAddresses {
                packed_b: if self.packs(at) { Ptr(right.cast()) } else { at.packed_b },
                ..*at
            };
            for block in job.blocks.clone() {
                // SAFETY: the caller's task; `task_scratch` defines the layout and size of `memory`.
                unsafe { self.block(&at, part, job, block, sums, row) };
            }
        });
    }

    /// Computes one K block of a task. `sums` holds its partial sums between K blocks; `row` buffers complete sums.
    unsafe fn block(
        &self,
        at: &GemmAddresses<'_>,
        part: &GemmPart,
        job: &GemmTask,
        block: usize,
        sums: *mut T,
        row: *mut T,
    ) {
        let target = self.target(at, part, job);
        let (first, last) = (block == job.blocks.start, block + 1 == job.blocks.end);
        let completes = last && self.completes(job);
        let columns = job.columns.len().next_multiple_of(self.shape.columns);
        let stride = self.sums_stride(columns);
        let own = job.part(block);
        let mut right = part;
        if self.packs(at) {
            right = &own;
            // SAFETY: task scratch has room for one K block of the task's columns.
            unsafe { self.pack_right(at, right, block, job.columns.clone()) };
        }
        let biased = self.epilogue.bias && block + 1 == self.plan.blocks && self.plan.splits == 1;
        let mut bias = if biased { at.bias.elem::<T>(job.columns.start) } else { std::ptr::null() };
        let corrections;
        if let Some(correction) = self.types.correction {
            // SAFETY: the task's columns of B are packed.
            corrections = unsafe { self.corrections(at, right, job, block, correction) };
            bias = corrections.as_ptr();
        }
        // The first K block of a task starts from C or earlier parts' sums if there are any, otherwise from zero.
        let held = job.blocks.start > 0 || (self.epilogue.accumulate && self.types.round.is_none());
        let continued = first && held && self.plan.splits == 1;
        for (i, panel) in job.panels.clone().enumerate() {
            let before = self.row(panel) - self.row(job.panels.start);
            let rows = self.row(panel + 1) - self.row(panel);
            let (group, (a, left)) = (self.epilogue_group(job, i), self.left(at, part, block, panel));
            let between = match self.sums_in_scratch() {
                true => SumsLocation::tiles(sums.wrapping_add(i * self.height * columns), self.height),
                false => target.down(before),
            };
            let from = match first {
                true if continued => target.down(before),
                true => SumsLocation::none(),
                false => between,
            };
            let to = match last {
                true if completes => self.complete_sums_at(job, panel, &group, (row, stride)),
                true => target.down(before),
                false => between,
            };
            // SAFETY: `from` and `to` cover the panel's rows and the task's columns.
            unsafe { self.row_of_tiles(at, right, job, block, &RowPanel { rows, left, a, from, to, bias }) };
            if completes {
                // SAFETY: the panel's sums of the task's columns are complete and belong to this task.
                unsafe { self.complete_panel(at, job, panel, group, (row, stride)) };
            }
        }
    }

    /// Returns the buffer for a row panel's complete sums before rounding or the epilogue.
    #[inline(always)]
    fn complete_sums_at(
        &self,
        job: &GemmTask,
        panel: usize,
        group: &Range<usize>,
        (row, stride): (*mut T, usize),
    ) -> SumsLocation<T> {
        if !self.panel_layout[1] {
            return SumsLocation { whole: true, ..SumsLocation::rows(row, stride) };
        }
        let waiting = self.row(panel) - self.row(group.start);
        SumsLocation::tiles(
            row.wrapping_add(waiting * self.shape.columns),
            self.panels_per_call(job) * self.height,
        )
    }

    /// Rounds a row panel's complete sums or passes them to the epilogue: as rows, or in panel layout once the last row
    /// panel of `group` is complete.
    #[inline(always)]
    unsafe fn complete_panel(
        &self,
        at: &GemmAddresses<'_>,
        job: &GemmTask,
        panel: usize,
        group: Range<usize>,
        (row, stride): (*mut T, usize),
    ) {
        // SAFETY: by the caller's promise.
        unsafe {
            if !self.panel_layout[1] {
                self.complete(at, job, panel, row, stride);
            } else if panel + 1 == group.end {
                self.complete_in_panels(at, job, group, row);
            }
        }
    }

    /// Computes the zero-point compensation of a K block: one value for each of the task's columns. A row of ones times
    /// B gives the column sums.
    unsafe fn corrections(
        &self,
        at: &GemmAddresses<'_>,
        right: &GemmPart,
        job: &GemmTask,
        block: usize,
        (ones, scale): Correction<T>,
    ) -> [T; WIDEST] {
        let mut corrections = [T::default(); WIDEST];
        let ones = [ones; CHAIN];
        let line = RowPanel {
            rows: 1,
            left: LhsLayout::Packed,
            a: StridedPanel { ptr: ones.as_ptr(), row: 1, k: 1 },
            from: SumsLocation::none(),
            to: SumsLocation::rows(corrections.as_mut_ptr(), 0),
            bias: std::ptr::null(),
        };
        // SAFETY: `ones` has a K block's k-steps, `corrections` the task's columns.
        unsafe { self.row_of_tiles(at, right, job, block, &line) };
        corrections.iter_mut().for_each(|x| *x = scale(*x));
        corrections
    }

    /// Rounds the complete sums of a row panel into C, or passes them to the epilogue. `sums`: rows `stride` elements
    /// apart.
    unsafe fn complete(
        &self,
        at: &GemmAddresses<'_>,
        job: &GemmTask,
        panel: usize,
        sums: *mut T,
        stride: usize,
    ) {
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

    /// Passes complete sums of some row panels to an epilogue whose arrays have panel layout: one contiguous run for
    /// each tile's columns.
    unsafe fn complete_in_panels(
        &self,
        at: &GemmAddresses<'_>,
        job: &GemmTask,
        panels: Range<usize>,
        sums: *mut T,
    ) {
        let Some(finish) = at.finish else { return };
        let width = self.shape.columns;
        let rows = self.row(panels.start)..self.row(panels.end);
        for (tile, j) in job.columns.clone().step_by(width).enumerate() {
            let first = j * self.m + rows.start * width;
            let block = OutputBlock { first, row: 0, stride: 0, rows: 1, columns: rows.len() * width };
            let sums = sums.wrapping_add(tile * width * self.panels_per_call(job) * self.height);
            finish(&block, sums.cast_const().cast());
        }
    }

    /// Number of row panels that are passed to the epilogue together: several with panel layout, so that it reads and
    /// writes long runs.
    fn panels_per_call(&self, job: &GemmTask) -> usize {
        if !self.panel_layout[1] {
            return 1;
        }
        (EPILOGUE_BYTES / (self.height * job.columns.len() * size_of::<T>())).max(1)
    }

    /// Returns the row panels that are passed to the epilogue together with the `i`-th panel of a task.
    fn epilogue_group(&self, job: &GemmTask, i: usize) -> Range<usize> {
        let many = self.panels_per_call(job);
        let first = job.panels.start + i / many * many;
        first..(first + many).min(job.panels.end)
    }

    /// Returns address and strides of a row panel of A in a K block: packed, or in place.
    fn left(
        &self,
        at: &GemmAddresses<'_>,
        part: &GemmPart,
        block: usize,
        panel: usize,
    ) -> (StridedPanel<T>, LhsLayout) {
        if !self.a.direct {
            let ptr = self.left_panel(at, part, block, panel);
            return (StridedPanel { ptr, row: 1, k: self.height }, LhsLayout::Packed);
        }
        let size = size_of::<T>();
        let ptr = at.a.at(self.row(panel) * self.a.lane_stride + self.k_start(block) * self.a.k_stride);
        let a = StridedPanel {
            ptr: ptr.cast_const().cast(),
            row: self.a.lane_stride / size,
            k: self.a.k_stride / size,
        };
        (a, LhsLayout::Strided)
    }

    /// Computes the register tiles of one row panel over a task's columns. `part` is the range that packed B covers.
    unsafe fn row_of_tiles(
        &self,
        at: &GemmAddresses<'_>,
        part: &GemmPart,
        job: &GemmTask,
        block: usize,
        line: &RowPanel<T>,
    ) {
        let k = self.k_start(block + 1) - self.k_start(block);
        // Prefetch of the next A micro-panel, a share of its cache lines with each tile.
        let next = if line.left == LhsLayout::Packed { line.a.k.max(line.rows) * k } else { 0 };
        let lines = k / UNROLLED * (LINE_BYTES / size_of::<T>());
        for (i, j) in job.columns.clone().step_by(self.shape.columns).enumerate() {
            let (column, columns) = (j - job.columns.start, self.shape.columns.min(job.columns.end - j));
            let width = self.shape.width(columns);
            let (from, from_row) = line.from.at(column, width);
            let (c, c_row) = line.to.at(column, width);
            let padded_sums = [line.from.whole, line.to.whole];
            let (b, b_k) = match self.b.direct {
                true => {
                    let from = at.b.at(j * self.b.lane_stride + self.k_start(block) * self.b.k_stride);
                    (from.cast_const().cast(), self.b.k_stride / size_of::<T>())
                }
                false => (self.right_panel(at, part, block, j), width),
            };
            let wanted = i * lines < next;
            let tile = GemmTile {
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
            // SAFETY: the caller's panel covers the rows, the K block and the task's columns.
            unsafe { self.shape.kernel(line.rows, line.left, columns)(&tile) };
        }
    }

    /// Rounds `n` complete sums of one row into C, starting at element `to`.
    unsafe fn round_row(
        &self,
        round: SumRounding,
        at: &GemmAddresses<'_>,
        sums: *mut T,
        to: usize,
        n: usize,
    ) {
        let c = at.c.at(to * round.size);
        let nothing: *const u8 = std::ptr::null();
        if self.epilogue.accumulate {
            let mut old = [T::default(); WIDEST];
            for j in (0..n).step_by(WIDEST) {
                let count = WIDEST.min(n - j);
                // SAFETY: `sums` and C have `n` elements from here on.
                unsafe {
                    (round.widen)(old.as_mut_ptr().cast(), c.add(j * round.size), nothing, nothing, count);
                    for (i, old) in old.iter().enumerate().take(count) {
                        *sums.add(j + i) = sums.add(j + i).read().plus(*old);
                    }
                }
            }
        }
        // SAFETY: `sums` and C have `n` elements from here on.
        unsafe { (round.narrow)(c, sums.cast_const().cast(), nothing, nothing, n) };
    }

    /// Reduces the split-K sums in a fixed binary tree, adds bias and C, and stores the result.
    unsafe fn reduce_splits(&self, cx: &KernelContext<'_>, at: &GemmAddresses<'_>) {
        let (total, splits) = (self.m * self.n, self.plan.splits);
        let body = |row: usize| {
            let (from, to) = (row * self.n, (row + 1) * self.n);
            let element = |split: usize, i: usize| at.sums.elem::<T>(split * total + i);
            let mut step = 1;
            // SAFETY: tasks have disjoint rows of C and of every split's sums.
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

/// Returns the addresses of A, B, and the bias or null.
fn operands(io: &Io<'_>) -> [*const u8; 3] {
    [io.inputs[0], io.inputs[1], io.inputs.get(2).copied().unwrap_or(std::ptr::null())]
}

impl<T: GemmElement> Kernel for BlockedGemm<T> {
    fn scratch(&self) -> usize {
        let repacked = |o: &GemmOperand<T>| o.repack.as_ref().map_or(0, |r| r.1);
        let own = if self.side_by_side() { 0 } else { self.scratch_of_one() };
        repacked(&self.a) + repacked(&self.b) + own
    }

    /// Returns the size of packed B in bytes; 0 if B is read unpacked, copied first, or packed in several parts.
    fn kept(&self, same: &[bool]) -> usize {
        let p = &self.plan;
        let whole = p.column_parts == 1 && p.block_parts == 1 && self.batches() == 1;
        let packs = !self.b.direct && self.b.repack.is_none();
        if !self.types.abilities.keep || !same[1] || !whole || !packs {
            return 0;
        }
        self.n.next_multiple_of(self.shape.columns) * self.k_steps * size_of::<T>()
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        let nothing = Ptr(std::ptr::null_mut());
        let b = Ptr(Ptr::of(inputs[1]).at(self.b.batch[0]));
        let at = GemmAddresses {
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
        let part = GemmPart { panels: 0..0, columns, blocks, left_ready: true, right_ready: false };
        let group = self.shape.group;
        let per_block = self.n.div_ceil(group);
        let body = |task: usize| {
            let first = task % per_block * group;
            // SAFETY: each task writes its own columns and K block of packed B.
            unsafe { self.pack_right(&at, &part, task / per_block, first..(first + group).min(self.n)) };
        };
        let work = (self.n * self.k_steps) as f64 * PACK_NS;
        cx.team.run_with(per_block * self.plan.blocks, work, cx.flush, &body);
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: operands and result have the shapes of `new`; `io.scratch` has `scratch` bytes.
        unsafe { self.run_to(cx, operands(io), (io.outputs[0], None), io.scratch, kept) };
        Ok(())
    }

    /// Returns false for rounded results: as separate steps, product and addition are each rounded.
    fn add_to_result(&mut self) -> bool {
        self.epilogue.accumulate = self.types.abilities.accumulate && self.types.round.is_none();
        self.epilogue.accumulate
    }

    /// Returns false if results are rounded, C is accumulated to, or K is split.
    fn hand_over_blocks(&mut self) -> bool {
        self.hands_over = self.types.abilities.hand_over
            && self.types.round.is_none()
            && !self.epilogue.accumulate
            && self.plan.splits == 1;
        self.replan();
        self.hands_over
    }

    unsafe fn run_by_blocks(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        take: EpilogueFn<'_>,
        kept: *const u8,
    ) {
        // SAFETY: by the caller's promise; with `hands_over`, C is not accessed.
        unsafe { self.run_to(cx, operands(io), (std::ptr::null_mut(), Some(take)), io.scratch, kept) }
    }

    /// Switches operand or result to panels with the columns of a register tile. Returns `None` if operands are
    /// converted while packing, if tasks do not divide N only, for batches, and if N is not a multiple of the tile's
    /// columns.
    fn take_panels(&mut self, which: GemmSide, on: bool) -> Option<usize> {
        let (width, size) = (self.shape.columns, size_of::<T>());
        let [rows, panels] = [[size, self.n * size], [self.k * size, width * size]];
        let fits = match which {
            GemmSide::Right if self.panel_layout[0] => true,
            GemmSide::Right => {
                !self.b.direct && self.b.repack.is_none() && [self.b.lane_stride, self.b.k_stride] == rows
            }
            GemmSide::Result => self.hands_over,
        };
        if !fits || !self.types.plain || self.batches() != 1 || !self.n.is_multiple_of(width) {
            return None;
        }
        self.panel_layout[which as usize] = on;
        if which == GemmSide::Right {
            // Microkernels read the panels directly. Column j is the first of a panel at j · lane_stride; rows are
            // k_stride apart.
            [self.b.lane_stride, self.b.k_stride] = if on { panels } else { rows };
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

/// Address and strides of a row panel of A: element `(row, k)` is at `row · self.row + k · self.k`.
struct StridedPanel<T> {
    ptr: *const T,
    row: usize,
    k: usize,
}

/// Location of the sums of a row panel, starting at the task's first column.
#[derive(Clone, Copy)]
struct SumsLocation<T> {
    /// Null if sums start at zero.
    ptr: *mut T,
    /// Elements between columns.
    column: usize,
    /// Elements between rows; `None`: tiles are dense, with the tile's width.
    row: Option<usize>,
    /// Whether memory is readable and writable up to a whole tile's columns.
    whole: bool,
}

impl<T> SumsLocation<T> {
    fn none() -> SumsLocation<T> {
        SumsLocation { ptr: std::ptr::null_mut(), column: 0, row: None, whole: true }
    }

    /// Rows of a row-major matrix.
    fn rows(ptr: *mut T, row: usize) -> SumsLocation<T> {
        SumsLocation { ptr, column: 1, row: Some(row), whole: false }
    }

    /// Dense tiles of `height` rows, one after another.
    fn tiles(ptr: *mut T, height: usize) -> SumsLocation<T> {
        SumsLocation { ptr, column: height, row: None, whole: true }
    }

    /// Returns the location `rows` further down; tiles stay at the same location.
    fn down(self, rows: usize) -> SumsLocation<T> {
        SumsLocation { ptr: self.ptr.wrapping_add(rows * self.row.unwrap_or(0)), ..self }
    }

    /// Returns the address, and the elements between rows, of the tile at a column.
    fn at(self, column: usize, width: usize) -> (*mut T, usize) {
        (self.ptr.wrapping_add(column * self.column), self.row.unwrap_or(width))
    }
}

/// Row panel times the columns of a task: arguments of [`BlockedGemm::row_of_tiles`].
struct RowPanel<T> {
    rows: usize,
    left: LhsLayout,
    a: StridedPanel<T>,
    from: SumsLocation<T>,
    to: SumsLocation<T>,
    bias: *const T,
}

/// Row panels, columns and K blocks that one task computes.
struct GemmTask {
    panels: Range<usize>,
    columns: Range<usize>,
    blocks: Range<usize>,
    split: usize,
}

impl GemmTask {
    /// The part of the operands that the task packs for one K block.
    fn part(&self, block: usize) -> GemmPart {
        GemmPart {
            panels: self.panels.clone(),
            columns: self.columns.clone(),
            blocks: block..block + 1,
            left_ready: true,
            right_ready: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::AlignedMemory;
    use crate::machine::thread_pool::ThreadPool;
    use crate::simd::gemm::shape_f32;
    use crate::simd::level::Level;
    use crate::simd::loops::{narrow, widen};
    use crate::simd::pack::floats;
    use systole_ir::{DType, bf16};

    /// Compares a row-major product of small integers, whose sums are exact in f32, with a plain loop.
    fn run(level: Level, to: DType, (m, n, k): (usize, usize, usize), epilogue: Epilogue, keep: bool) {
        let matrix = |rows: usize, columns: usize| -> Vec<f32> {
            (0..rows * columns).map(|i| ((i * 37 + i / columns) % 7) as f32 - 3.0).collect()
        };
        let (a, b, bias, old) = (matrix(m, k), matrix(k, n), matrix(1, n), matrix(m, n));
        let dim = |size: usize, src: usize| vec![Dim { size, src: src as isize, dst: 0 }];
        let ra = OperandDims { batch: vec![], free: dim(m, k), inner: dim(k, 1) };
        let rb = OperandDims { batch: vec![], free: dim(n, 1), inner: dim(k, n) };
        let round = narrow(to, level).zip(widen(to, level));
        let types = GemmTypes {
            size: 4,
            group: 1,
            pack_left: floats(DType::F32, level),
            pack_right: floats(DType::F32, level),
            plain: true,
            round: round.map(|(narrow, widen)| SumRounding { narrow, widen, size: 2 }),
            correction: None,
            abilities: GemmFeatures::ALL,
        };
        let p = BlockedGemm::new(&ra, &rb, shape_f32(level, n), types, epilogue);
        let scratch = AlignedMemory::new(p.scratch()).unwrap();
        let team = ThreadPool::new(2);
        let cx = KernelContext { team: &team, flush: false };
        let (mut wide, mut half) = (old.clone(), old.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
        let c: *mut u8 = if round.is_some() { half.as_mut_ptr().cast() } else { wide.as_mut_ptr().cast() };
        let operands = [a.as_ptr().cast(), b.as_ptr().cast(), bias.as_ptr().cast()];
        // B packed ahead of time must not change the result.
        let bytes = p.kept(&[false, true, false]);
        let kept = AlignedMemory::new(bytes.max(1)).unwrap();
        let made = if keep && bytes > 0 { kept.ptr().cast_const() } else { std::ptr::null() };
        // SAFETY: all arrays have the product's sizes, `scratch` and `kept` the bytes that the kernel requested.
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
                // In place, packed, several K blocks, B packed by each task, split-K, K = 0.
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
