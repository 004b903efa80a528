//! `reduce_window` and `select_and_scatter` of any rank: pooling, pooling gradients, cumulative reductions.
//!
//! Trailing dimensions without windows are merged into `channels`, which SIMD lanes run over. The dimension before them
//! (`columns`; its elements are called pixels) is processed in strips. All dimensions before that are `rows`. Threads
//! share the strips of all rows. Each window is reduced in the interpreter's order, except in cumulative reductions
//! from the end.

use crate::kernel::copy::fill;
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::{CandidateResult, Problem, SelectResult};
use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::{lanes, lanes_mut};
use crate::simd::stored_elements::{
    Add, Bf16Bits, F16Bits, ReduceFn, ReduceVisitor, StoredElement, for_fold,
};
use std::marker::PhantomData;
use std::ops::Range;
use systole_compile::Kernel as Plan;
use systole_ir::op::{CompareType, Direction, Monoid, Window};
use systole_ir::{DType, Graph, Op, Result, Shape, ensure};

/// Channels of a window that are compared together: their maxima and argmax stay in L1.
const LANES: usize = 64;
/// Minimum window elements that one block of a parallel loop reads.
const BLOCK: usize = 1 << 14;
/// Minimum elements along a dimension for a cumulative reduction: shorter windows are reduced in one pass by
/// [`WindowKernel`].
const CUMULATIVE_ELEMENTS: usize = 4;

/// Windows along one dimension of the operand. "Grid" is the operand with explicit base dilation.
#[derive(Clone, Copy, Debug)]
struct WindowAxis {
    /// Operand elements.
    size: usize,
    /// Number of window positions: elements of the result.
    count: usize,
    window: usize,
    stride: usize,
    /// Base dilation: grid points between operand elements; those in between are holes.
    base: usize,
    /// Window dilation: grid points between window elements.
    hole: usize,
    /// Padding before the first element, in grid points. Negative: the operand is cropped.
    low: i64,
    /// Stride of the operand in memory, in elements.
    distance: usize,
    /// Operand elements between adjacent elements of a window.
    step: usize,
    /// Window elements between adjacent window elements that are not holes.
    period: usize,
}

impl WindowAxis {
    fn new(w: &Window, d: usize, x: &Shape, y: &Shape) -> WindowAxis {
        let (base, hole) = (w.base_dilations[d], w.window_dilations[d]);
        let common = gcd(base, hole);
        WindowAxis {
            size: x[d],
            count: y[d],
            window: w.dimensions[d],
            stride: w.strides[d],
            base,
            hole,
            low: w.padding[d][0],
            distance: x.strides()[d],
            step: hole / common,
            period: base / common,
        }
    }

    /// Whether there is no window: each result element is the operand element at the same index.
    fn is_plain(&self) -> bool {
        let one = self.window == 1 && self.stride == 1 && self.base == 1;
        one && self.low == 0 && self.size == self.count
    }

    /// Returns the first operand coordinate in the window at `position`, and the number of its coordinates, `step`
    /// apart.
    #[inline(always)]
    fn span(&self, position: usize) -> (usize, usize) {
        let at = (position * self.stride) as i64 - self.low;
        let reach = ((self.window - 1) * self.hole) as i64;
        if self.base == 1 && at >= 0 && at + reach < self.size as i64 {
            return (at as usize, self.window);
        }
        self.clipped_span(at)
    }

    /// Returns the positions whose windows are inside the operand, if the window moves by one element per position.
    #[inline(always)]
    fn inside(&self) -> Range<usize> {
        if self.stride != 1 || self.base != 1 {
            return 0..0;
        }
        let reach = ((self.window - 1) * self.hole) as i64;
        let inside = |at: i64| at.clamp(0, self.count as i64) as usize;
        inside(self.low)..inside(self.size as i64 - reach + self.low)
    }

    /// Like [`WindowAxis::span`], for any padding and dilation; `at`: the grid point of the window's first element.
    #[inline(never)]
    fn clipped_span(&self, at: i64) -> (usize, usize) {
        let hole = self.hole as i64;
        let end = self.size.saturating_sub(1) as i64 * self.base as i64;
        if self.size == 0 || end < at {
            return (0, 0);
        }
        let mut first = if at < 0 { (-at + hole - 1) / hole } else { 0 };
        let limit = ((end - at) / hole + 1).min(self.window as i64);
        let on_element = |k: i64| (at + k * hole) % self.base as i64 == 0;
        let last_try = limit.min(first + self.period as i64);
        while first < last_try && !on_element(first) {
            first += 1;
        }
        if first >= last_try {
            return (0, 0);
        }
        let count = (limit - 1 - first) / self.period as i64 + 1;
        (((at + first * hole) / self.base as i64) as usize, count as usize)
    }

    /// Returns, for disjoint windows without dilations, the range of coordinates that this position writes, and the
    /// range in its window. The written ranges of all positions partition the dimension.
    #[inline(always)]
    fn owned(&self, position: usize) -> ([usize; 2], [usize; 2]) {
        let inside = |at: i64| at.clamp(0, self.size as i64) as usize;
        let at = (position * self.stride) as i64 - self.low;
        let from = if position == 0 { 0 } else { inside(at) };
        let to = if position + 1 == self.count { self.size } else { inside(at + self.stride as i64) };
        ([from, to], [inside(at), inside(at + self.window as i64)])
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Dimensions of the operand, with adjacent dimensions without windows merged.
struct WindowGeometry {
    /// All dimensions before `columns`; a row index counts their positions in row-major order.
    rows: Vec<WindowAxis>,
    /// Pixels of a row.
    columns: WindowAxis,
    /// Elements of a pixel, contiguous in operand and result.
    channels: usize,
}

impl WindowGeometry {
    fn new(window: &Window, x: &Shape, y: &Shape) -> WindowGeometry {
        let mut rows: Vec<WindowAxis> = Vec::new();
        for axis in (0..x.rank()).map(|d| WindowAxis::new(window, d, x, y)) {
            match rows.last_mut() {
                Some(last) if last.is_plain() && axis.is_plain() => {
                    let size = last.size * axis.size;
                    *last = WindowAxis { size, count: size, ..axis };
                }
                _ => rows.push(axis),
            }
        }
        let channels = rows.pop_if(|axis| axis.is_plain()).map_or(1, |axis| axis.size);
        let columns = rows.pop().unwrap_or(WindowAxis {
            size: 1,
            count: 1,
            window: 1,
            stride: 1,
            base: 1,
            hole: 1,
            low: 0,
            distance: channels,
            step: 1,
            period: 1,
        });
        WindowGeometry { rows, columns, channels }
    }

    fn row_count(&self) -> usize {
        self.rows.iter().map(|a| a.count).product()
    }

    fn window_elements(&self) -> usize {
        self.product(|a| a.window)
    }

    /// Returns the product of `f` over rows and columns. Saturates: in padding, windows may have more elements than any
    /// array.
    fn product(&self, f: impl Fn(&WindowAxis) -> usize) -> usize {
        self.rows.iter().chain([&self.columns]).map(f).fold(1, usize::saturating_mul)
    }

    /// Calls `f` with each axis of `rows` and its position in row `row`, innermost first.
    fn each_axis(&self, mut row: usize, mut f: impl FnMut(&WindowAxis, usize)) {
        for axis in self.rows.iter().rev() {
            f(axis, row % axis.count);
            row /= axis.count;
        }
    }

    /// Collects the offsets of the operand's rows in the windows of result row `row`, in row-major order.
    fn seen_rows(&self, row: usize, out: &mut Vec<usize>) {
        out.clear();
        out.push(0);
        // Each axis, innermost first, repeats the offsets collected so far for each of its coordinates.
        self.each_axis(row, |axis, position| {
            let (first, count) = axis.span(position);
            let n = out.len();
            for j in 1..count {
                let more = j * axis.step * axis.distance;
                out.extend_from_within(..n);
                out[j * n..].iter_mut().for_each(|at| *at += more);
            }
            out.truncate(n * count);
            out.iter_mut().for_each(|at| *at += first * axis.distance);
        });
    }

    /// Collects, for disjoint windows, the offsets of the operand's rows that result row `row` writes: those in its
    /// windows (`seen`) and the others.
    fn owned_rows(&self, row: usize, seen: &mut Vec<usize>, others: &mut Vec<usize>) {
        let mut all = vec![(0, true)];
        self.each_axis(row, |axis, position| {
            let (owned, inside) = axis.owned(position);
            let coordinates =
                (owned[0]..owned[1]).map(|i| (i * axis.distance, inside[0] <= i && i < inside[1]));
            all = coordinates
                .flat_map(|(at, is_in)| all.iter().map(move |&(more, was_in)| (at + more, is_in && was_in)))
                .collect();
        });
        let part = |want: bool| all.iter().filter(move |r| r.1 == want).map(|r| r.0);
        seen.clear();
        seen.extend(part(true));
        others.clear();
        others.extend(part(false));
    }
}

/// Division of rows into strips of pixels, and of strips into blocks of the parallel loop. Depends on shapes only.
#[derive(Clone, Copy)]
struct StripBlocks {
    rows: usize,
    columns: usize,
    /// Pixels per strip.
    strip: usize,
    /// Strips per row.
    strips: usize,
    /// Strips per block.
    group: usize,
}

impl StripBlocks {
    /// Divides rows into strips and blocks. `weight`: operand elements that are read per pixel.
    fn new(rows: usize, columns: usize, weight: usize) -> StripBlocks {
        let strip = (BLOCK / weight.max(1)).clamp(1, columns.max(1));
        let strips = columns.div_ceil(strip);
        let group = (BLOCK / (weight * strip).max(1)).max(1);
        StripBlocks { rows, columns, strip, strips, group }
    }

    fn count(&self) -> usize {
        (self.rows * self.strips).div_ceil(self.group)
    }

    /// Calls `f(row, first pixel, pixels)` for each strip of a block.
    fn each(&self, block: usize, mut f: impl FnMut(usize, usize, usize)) {
        let from = block * self.group;
        for unit in from..(from + self.group).min(self.rows * self.strips) {
            let (row, first) = (unit / self.strips, unit % self.strips * self.strip);
            f(row, first, self.strip.min(self.columns - first));
        }
    }
}

/// A `reduce_window` of one array, as its candidate kernels see it.
struct WindowReduction {
    at: WindowGeometry,
    dtype: DType,
    monoid: Monoid,
}

/// Reason why there is no loop for an element type and a body.
const NO_FOLD: &str = "its element type does not support this operation";

/// Returns the `reduce_window` of a step.
fn reduction(p: &Problem<'_>) -> SelectResult<WindowReduction> {
    let Plan::Op { op: Op::ReduceWindow(op), .. } = &p.step.kernel else {
        return Err("not a reduce_window".into());
    };
    let ([x, init], [y]) = (&p.step.input_types[..], &p.step.output_types[..]) else {
        return Err("it reduces several arrays together".into());
    };
    let monoid =
        Monoid::of(&op.body).ok_or("its body is not a single add, multiply, minimum, maximum, and, or")?;
    ensure!(init.dtype == x.dtype, "its initial value and its operand have different types".into());
    Ok(WindowReduction { at: WindowGeometry::new(&op.window, &x.shape, &y.shape), dtype: x.dtype, monoid })
}

/// Creates the `reduce_window` kernel of cumulative reductions.
pub fn cumulative(p: &Problem<'_>) -> CandidateResult {
    let WindowReduction { at, dtype, monoid } = reduction(p)?;
    let backwards = cumulative_from_end(&at)?;
    let tile = for_fold(&ScanFactory(p.target.level.vectors()), dtype, monoid).ok_or(NO_FOLD)?;
    Ok(Box::new(ScanKernel { at, size: dtype.size(), backwards, tile }))
}

/// Creates the kernel of any `reduce_window` of one array.
pub fn reduce_window(p: &Problem<'_>) -> CandidateResult {
    let WindowReduction { at, dtype, monoid } = reduction(p)?;
    let tile = for_fold(&WindowStripFactory(p.target.level.vectors()), dtype, monoid).ok_or(NO_FOLD)?;
    let weight = at.window_elements().saturating_mul(at.channels);
    let blocks = StripBlocks::new(at.row_count(), at.columns.count, weight);
    Ok(Box::new(WindowKernel { at, size: dtype.size(), blocks, tile }))
}

/// Instantiates [`WindowStrip`] for an element type and a fold.
struct WindowStripFactory(Level);
impl ReduceVisitor for WindowStripFactory {
    type Out = TileFn;
    fn with<C: StoredElement, F: ReduceFn<C>>(&self) -> TileFn {
        self.0.tile::<WindowStrip<C, F>>()
    }
}

/// Arguments of [`WindowStrip`].
struct WindowStripArgs<'a> {
    along: WindowAxis,
    channels: usize,
    /// Position of the first pixel.
    first: usize,
    /// Offsets of the operand's rows in the windows.
    rows: &'a [usize],
}

/// Computes a strip of `n` pixels of the result. `a`: the operand, `b`: a [`WindowStripArgs`], `c`: the initial value.
struct WindowStrip<C, F>(PhantomData<(C, F)>);
impl<C: StoredElement, F: ReduceFn<C>> TileLoop for WindowStrip<C, F> {
    const EVERY_LEVEL: bool = C::COMMON && F::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: the arguments are as documented on the type; spans are inside the operand, which is a different array
        // than the result.
        unsafe {
            let (s, init) = (&*b.cast::<WindowStripArgs<'_>>(), *c.cast::<C>());
            let inside = s.along.inside();
            let mut i = 0;
            while i < n {
                let at = s.first + i;
                let (from, count) = s.along.span(at);
                // If the window moves by one element, the same element of adjacent windows is contiguous: one loop.
                let pixels = if inside.contains(&at) { (inside.end - at).min(n - i) } else { 1 };
                let x = a.cast::<C>().wrapping_add(from * s.channels);
                let to = dst.cast::<C>().add(i * s.channels).cast();
                let out = lanes_mut::<C>(to, pixels * s.channels);
                fold_pixels::<C, F>(out, x, s, count, init);
                i += pixels;
            }
        }
    }
}

/// Reduces contiguous pixels: the result is the accumulator, and each pass over it folds four window elements. (Every
/// operation of a [`ReduceFn`] rounds to the stored type, so storing between passes changes no bit.)
#[inline(always)]
unsafe fn fold_pixels<C: StoredElement, F: ReduceFn<C>>(
    out: &mut [C],
    x: *const C,
    s: &WindowStripArgs<'_>,
    count: usize,
    init: C,
) {
    let n = out.len();
    let mut left = s.rows.len() * count;
    let (mut row, mut column) = (0, 0);
    // The next window element of all pixels, in row-major order.
    let mut next = || {
        // SAFETY: rows and spans are clipped to the operand.
        let element =
            unsafe { lanes::<C>(x.add(s.rows[row] + column * s.along.step * s.channels).cast(), n) };
        column += 1;
        if column == count {
            (row, column) = (row + 1, 0);
        }
        element
    };
    // One element at a time for rare types and operations, to keep the number of compiled loops small.
    let four = const { C::COMMON && F::COMMON };
    match left {
        0 => out.fill(init),
        n if !four || n < 4 => {
            left -= 1;
            for (y, a) in out.iter_mut().zip(next()) {
                *y = C::store(F::f(init.load(), a.load()));
            }
        }
        _ => {
            left -= 4;
            fold_four::<C, F, true>(out, init, next(), next(), next(), next());
        }
    }
    while four && left >= 4 {
        left -= 4;
        fold_four::<C, F, false>(out, init, next(), next(), next(), next());
    }
    for _ in 0..left {
        for (y, a) in out.iter_mut().zip(next()) {
            *y = C::store(F::f(y.load(), a.load()));
        }
    }
}

/// Folds four window elements into the accumulators, or into the initial value if `FIRST`.
#[inline(always)]
fn fold_four<C: StoredElement, F: ReduceFn<C>, const FIRST: bool>(
    out: &mut [C],
    init: C,
    a: &[C],
    b: &[C],
    c: &[C],
    d: &[C],
) {
    for ((((y, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let first = if FIRST { init } else { *y };
        let two = F::f(F::f(first.load(), a.load()), b.load());
        *y = C::store(F::f(F::f(two, c.load()), d.load()));
    }
}

/// Kernel of `reduce_window`, window by window.
struct WindowKernel {
    at: WindowGeometry,
    size: usize,
    blocks: StripBlocks,
    tile: TileFn,
}

impl Kernel for WindowKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let (x, init, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let WindowGeometry { columns, channels, .. } = self.at;
        let body = |block: usize| {
            let (mut rows, mut current) = (Vec::new(), usize::MAX);
            self.blocks.each(block, |row, first, n| {
                if row != current {
                    self.at.seen_rows(row, &mut rows);
                    current = row;
                }
                let strip = WindowStripArgs { along: columns, channels, first, rows: &rows };
                let dst = out.at((row * columns.count + first) * channels * self.size);
                // SAFETY: each strip is written by one call; rows are inside the operand.
                unsafe { (self.tile)(dst, x.at(0), (&raw const strip).cast(), init.at(0), n) };
            });
        };
        let looked_at =
            (self.blocks.rows * columns.count * channels) as f64 * self.at.window_elements() as f64;
        cx.team.run_with(self.blocks.count(), looked_at * 0.2, cx.flush, &body);
        Ok(())
    }
}

/// Returns whether a cumulative reduction starts at the last column (`true`: all windows end there) or at the first one
/// (`false`: all windows start there); or why the windows are not a cumulative reduction.
fn cumulative_from_end(at: &WindowGeometry) -> SelectResult<bool> {
    const OTHER_WINDOWS: &str = "its windows do not all start, or all end, at the same end of the dimension";
    let w = &at.columns;
    if !at.rows.iter().all(WindowAxis::is_plain) {
        return Err("more than one dimension has windows, strides or padding".into());
    }
    ensure!(w.stride == 1 && w.base == 1 && w.hole == 1, "its windows have strides or dilations".into());
    if w.size < CUMULATIVE_ELEMENTS {
        return Err("it has fewer than 4 elements along its windows, which are reduced in one pass".into());
    }
    ensure!(w.count == w.size && w.window >= w.size, OTHER_WINDOWS.into());
    match w.low {
        0 => Ok(true),
        low if low == w.window as i64 - 1 => Ok(false),
        _ => Err(OTHER_WINDOWS.into()),
    }
}

/// Instantiates [`CumulativeScan`] for an element type and a fold.
struct ScanFactory(Level);
impl ReduceVisitor for ScanFactory {
    type Out = TileFn;
    fn with<C: StoredElement, F: ReduceFn<C>>(&self) -> TileFn {
        self.0.tile::<CumulativeScan<C, F>>()
    }
}

/// Arguments of [`CumulativeScan`].
struct ScanArgs {
    channels: usize,
    /// Number of channels to reduce.
    width: usize,
    backwards: bool,
}

/// Cumulative reductions of `n` pixels. `a`: the first pixel, `b`: a [`ScanArgs`], `c`: the initial value.
struct CumulativeScan<C, F>(PhantomData<(C, F)>);
impl<C: StoredElement, F: ReduceFn<C>> TileLoop for CumulativeScan<C, F> {
    const EVERY_LEVEL: bool = C::COMMON && F::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: the arguments are as documented on the type; operand and result are different arrays.
        unsafe {
            let (r, init) = (&*b.cast::<ScanArgs>(), *c.cast::<C>());
            let at = |i: usize| if r.backwards { n - 1 - i } else { i } * r.channels;
            if r.width == 1 {
                let mut acc = init.load();
                for i in 0..n {
                    acc = F::f(acc, (*a.cast::<C>().add(at(i))).load());
                    *dst.cast::<C>().add(at(i)) = C::store(acc);
                }
                return;
            }
            for i in 0..n {
                let x = lanes::<C>(a.cast::<C>().add(at(i)).cast(), r.width);
                let out = lanes_mut::<C>(dst.cast::<C>().add(at(i)).cast(), r.width);
                if i == 0 {
                    out.iter_mut().zip(x).for_each(|(y, x)| *y = C::store(F::f(init.load(), x.load())));
                    continue;
                }
                let before = lanes::<C>(dst.cast::<C>().add(at(i - 1)).cast(), r.width);
                scan_step::<C, F>(out, before, x);
            }
        }
    }
}

#[inline(always)]
fn scan_step<C: StoredElement, F: ReduceFn<C>>(out: &mut [C], before: &[C], x: &[C]) {
    for ((y, b), x) in out.iter_mut().zip(before).zip(x) {
        *y = C::store(F::f(b.load(), x.load()));
    }
}

/// Kernel of cumulative reductions along the columns.
struct ScanKernel {
    at: WindowGeometry,
    size: usize,
    backwards: bool,
    tile: TileFn,
}

impl Kernel for ScanKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        const WIDTH: usize = 128;
        let (x, init, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let (n, channels) = (self.at.columns.count, self.at.channels);
        // A task is a strip of channels of one row.
        let (rows, parts) = (self.at.row_count(), channels.div_ceil(WIDTH));
        let group = (BLOCK / (n * channels.clamp(1, WIDTH))).max(1);
        let body = |block: usize| {
            for unit in block * group..((block + 1) * group).min(rows * parts) {
                let from = unit % parts * WIDTH;
                let run = ScanArgs { channels, width: WIDTH.min(channels - from), backwards: self.backwards };
                let at = (unit / parts * n * channels + from) * self.size;
                // SAFETY: each row and strip of channels is written by one call.
                unsafe { (self.tile)(out.at(at), x.at(at), (&raw const run).cast(), init.at(0), n) };
            }
        };
        let work = (rows * n * channels) as f64 * 0.5;
        cx.team.run_with((rows * parts).div_ceil(group), work, cx.flush, &body);
        Ok(())
    }
}

/// Comparison by which a window selects one of two elements.
trait SelectComparison: Send + Sync + 'static {
    /// Whether networks commonly use it, so that it is compiled for every level.
    const COMMON: bool;
    fn keeps<T: PartialOrd>(kept: T, other: T) -> bool;
}
struct SelectGe;
struct SelectLe;
impl SelectComparison for SelectGe {
    const COMMON: bool = true;
    #[inline(always)]
    fn keeps<T: PartialOrd>(kept: T, other: T) -> bool {
        kept >= other
    }
}
impl SelectComparison for SelectLe {
    const COMMON: bool = false;
    #[inline(always)]
    fn keeps<T: PartialOrd>(kept: T, other: T) -> bool {
        kept <= other
    }
}

/// Returns the comparison in a body of `(kept, other)`, as a direction from `kept` to `other`.
fn direction(select: &Graph) -> Option<Direction> {
    let [result] = select.results[..] else { return None };
    let node = select.node(result);
    let Op::Compare(c) = &node.op else { return None };
    let (&[a, b], &[kept, other]) = (&node.inputs[..], &select.params[..]) else { return None };
    if c.compare_type == CompareType::TotalOrder {
        return None;
    }
    match c.direction {
        d if (a, b) == (kept, other) => Some(d),
        Direction::Ge if (a, b) == (other, kept) => Some(Direction::Le),
        Direction::Le if (a, b) == (other, kept) => Some(Direction::Ge),
        _ => None,
    }
}

/// A `select_and_scatter` as its candidate kernels see it.
struct SelectAndScatterProblem {
    at: WindowGeometry,
    dtype: DType,
    /// Elements of the operand.
    elements: usize,
    /// Comparison of the body: [`Direction::Ge`] or [`Direction::Le`].
    direction: Direction,
}

/// Returns the `select_and_scatter` of a step.
fn selection(p: &Problem<'_>) -> SelectResult<SelectAndScatterProblem> {
    let Plan::Op { op: Op::SelectAndScatter(op), .. } = &p.step.kernel else {
        return Err("not a select_and_scatter".into());
    };
    let [x, source, _] = &p.step.input_types[..] else {
        return Err("its operands are not an array, a source and an initial value".into());
    };
    if Monoid::of(&op.scatter) != Some(Monoid::Add) {
        return Err("it scatters by an operation other than add".into());
    }
    let direction = direction(&op.select).filter(|d| matches!(d, Direction::Ge | Direction::Le));
    let direction = direction.ok_or("it selects by a comparison other than >= or <=")?;
    let at = WindowGeometry::new(&op.window(), &x.shape, &source.shape);
    Ok(SelectAndScatterProblem { at, dtype: x.dtype, elements: x.elements(), direction })
}

impl SelectAndScatterProblem {
    /// Returns the loop over strips.
    fn tile<const DISJOINT: bool>(&self, level: Level) -> SelectResult<TileFn> {
        let tile = match self.direction {
            Direction::Ge => select_tile::<SelectGe, DISJOINT>(self.dtype, level),
            _ => select_tile::<SelectLe, DISJOINT>(self.dtype, level),
        };
        tile.ok_or_else(|| "its elements are neither floats nor signed 32-bit or 64-bit integers".into())
    }
}

/// Creates the `select_and_scatter` kernel for windows that do not overlap.
pub fn select_and_scatter_disjoint(p: &Problem<'_>) -> CandidateResult {
    let selection = selection(p)?;
    if selection.at.rows.iter().chain([&selection.at.columns]).any(|a| a.stride < a.window) {
        return Err("its windows overlap".into());
    }
    let tile = selection.tile::<true>(p.target.level.vectors())?;
    let SelectAndScatterProblem { at, dtype, elements, .. } = selection;
    let weight = at.product(|a| a.stride).saturating_mul(at.channels);
    let blocks = StripBlocks::new(at.row_count(), at.columns.count, weight);
    Ok(Box::new(DisjointKernel { at, elements, size: dtype.size(), blocks, tile }))
}

/// Creates the `select_and_scatter` kernel for any windows.
pub fn select_and_scatter(p: &Problem<'_>) -> CandidateResult {
    let selection = selection(p)?;
    let tile = selection.tile::<false>(p.target.level.vectors())?;
    let SelectAndScatterProblem { at, dtype, elements, .. } = selection;
    Ok(Box::new(OverlapKernel { at, elements, size: dtype.size(), tile }))
}

fn select_tile<P: SelectComparison, const DISJOINT: bool>(dtype: DType, level: Level) -> Option<TileFn> {
    match dtype {
        DType::F32 => Some(level.tile::<SelectStrip<f32, P, DISJOINT>>()),
        DType::F64 => Some(level.tile::<SelectStrip<f64, P, DISJOINT>>()),
        DType::BF16 => Some(level.tile::<SelectStrip<Bf16Bits, P, DISJOINT>>()),
        DType::F16 => Some(level.tile::<SelectStrip<F16Bits, P, DISJOINT>>()),
        DType::I32 => Some(level.tile::<SelectStrip<i32, P, DISJOINT>>()),
        DType::I64 => Some(level.tile::<SelectStrip<i64, P, DISJOINT>>()),
        _ => None,
    }
}

/// Arguments of [`SelectStrip`].
struct SelectArgs<'a> {
    along: WindowAxis,
    channels: usize,
    /// The range of channels to compute.
    part: [usize; 2],
    /// Position of the first pixel.
    first: usize,
    /// Offsets of the operand's rows in the windows.
    seen: &'a [usize],
    /// Offsets of rows that are in no window and get the initial value.
    others: &'a [usize],
    /// The source's first pixel.
    source: *const u8,
}

/// Processes the windows of a strip of `n` source pixels.
///
/// `dst`: the whole result, `a`: the operand, `b`: a [`SelectArgs`], `c`: the initial value. `DISJOINT`: windows do not
/// overlap, and every element that the strip owns is written. Otherwise the result holds initial values or sums, and
/// source elements are added to it.
struct SelectStrip<C, P, const DISJOINT: bool>(PhantomData<(C, P)>);
impl<C: StoredElement, P: SelectComparison, const DISJOINT: bool> TileLoop for SelectStrip<C, P, DISJOINT>
where
    Add: ReduceFn<C>,
{
    const EVERY_LEVEL: bool = C::COMMON && P::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: the arguments are as documented on the type; coordinates are clipped to the operand.
        unsafe {
            let (s, init) = (&*b.cast::<SelectArgs<'_>>(), *c.cast::<C>());
            let (x, out) = (a.cast::<C>(), dst.cast::<C>());
            for i in 0..n {
                let (owned, inside) = s.along.owned(s.first + i);
                if DISJOINT {
                    fill_gaps(out, s, owned, inside, init);
                }
                if s.seen.is_empty() || inside[0] == inside[1] {
                    continue;
                }
                let source = s.source.cast::<C>().add(i * s.channels);
                let mut at = s.part[0];
                while at < s.part[1] {
                    let n = LANES.min(s.part[1] - at);
                    let w = WindowChannels { source: lanes(source.add(at).cast(), n), inside, at, init };
                    if DISJOINT && s.seen.len() == 2 && inside[1] - inside[0] == 2 {
                        select_2x2::<C, P>(out, x, s, &w);
                    } else {
                        select_any::<C, P, DISJOINT>(out, x, s, &w);
                    }
                    at += n;
                }
            }
        }
    }
}

/// Up to [`LANES`] channels of one window.
struct WindowChannels<'a, C> {
    /// Channels of the source pixel.
    source: &'a [C],
    /// The range of columns of the window.
    inside: [usize; 2],
    /// The first channel.
    at: usize,
    init: C,
}

/// Writes the initial value to elements that the strip owns and that are in no window.
#[inline(always)]
unsafe fn fill_gaps<C: StoredElement>(
    out: *mut C,
    s: &SelectArgs<'_>,
    owned: [usize; 2],
    inside: [usize; 2],
    init: C,
) {
    let fill = |row: usize, from: usize, to: usize| {
        for k in from * s.channels..to * s.channels {
            // SAFETY: coordinates inside the result, which only this strip owns.
            unsafe { *out.add(row + k) = init };
        }
    };
    for &row in s.others {
        fill(row, owned[0], owned[1]);
    }
    if owned != inside {
        for &row in s.seen {
            fill(row, owned[0], inside[0]);
            fill(row, inside[1], owned[1]);
        }
    }
}

/// Processes any window: one pass finds the argmax of each lane, a second one writes or adds the source.
#[inline(always)]
unsafe fn select_any<C: StoredElement, P: SelectComparison, const DISJOINT: bool>(
    out: *mut C,
    x: *const C,
    s: &SelectArgs<'_>,
    w: &WindowChannels<'_, C>,
) where
    Add: ReduceFn<C>,
{
    let (start, n) = (w.inside[0] * s.channels + w.at, w.source.len());
    let columns = (0..w.inside[1] - w.inside[0]).map(|k| start + k * s.channels);
    let offsets = s.seen.iter().flat_map(|&row| columns.clone().map(move |at| row + at));
    let (mut kept, mut argmax) = ([w.init.load(); LANES], [C::Mark::from(0); LANES]);
    for (number, offset) in offsets.clone().enumerate() {
        let mark = C::Mark::from(number as u32);
        // SAFETY: rows and columns are clipped to the operand.
        let others = unsafe { lanes::<C>(x.add(offset).cast(), n) };
        for ((kept, argmax), other) in kept.iter_mut().zip(&mut argmax).zip(others) {
            let other = other.load();
            // The first element is selected without a comparison.
            let keeps = number > 0 && P::keeps(*kept, other);
            *kept = if keeps { *kept } else { other };
            *argmax = if keeps { *argmax } else { mark };
        }
    }
    for (number, offset) in offsets.enumerate() {
        let mark = C::Mark::from(number as u32);
        // SAFETY: rows and columns are clipped to the result, and no other call writes them at the same time.
        let out = unsafe { lanes_mut::<C>(out.add(offset).cast(), n) };
        for ((y, argmax), v) in out.iter_mut().zip(&argmax).zip(w.source) {
            let old = if DISJOINT { w.init } else { *y };
            let sum = C::store(Add::f(old.load(), v.load()));
            *y = if *argmax == mark { sum } else { old };
        }
    }
}

/// Processes disjoint 2×2 windows, the usual ones of max pooling: one pass, in registers.
#[inline(always)]
unsafe fn select_2x2<C: StoredElement, P: SelectComparison>(
    out: *mut C,
    x: *const C,
    s: &SelectArgs<'_>,
    w: &WindowChannels<'_, C>,
) where
    Add: ReduceFn<C>,
{
    let (start, n) = (w.inside[0] * s.channels + w.at, w.source.len());
    let [a, b] = [s.seen[0] + start, s.seen[1] + start];
    // SAFETY: the four elements are inside operand and result and do not overlap; `n` channels are left of each.
    unsafe {
        let x = |at: usize| lanes::<C>(x.add(at).cast(), n);
        let out = |at: usize| lanes_mut::<C>(out.add(at).cast(), n);
        let c = s.channels;
        four::<C, P>(out(a), out(a + c), out(b), out(b + c), x(a), x(a + c), x(b), x(b + c), w);
    }
}

// One `&mut` for each array tells the compiler that they do not overlap, so that it vectorizes the loop.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn four<C: StoredElement, P: SelectComparison>(
    y0: &mut [C],
    y1: &mut [C],
    y2: &mut [C],
    y3: &mut [C],
    x0: &[C],
    x1: &[C],
    x2: &[C],
    x3: &[C],
    w: &WindowChannels<'_, C>,
) where
    Add: ReduceFn<C>,
{
    let (n, none) = (w.source.len(), w.init);
    let (y0, y1, y2, y3) = (&mut y0[..n], &mut y1[..n], &mut y2[..n], &mut y3[..n]);
    let (x0, x1, x2, x3) = (&x0[..n], &x1[..n], &x2[..n], &x3[..n]);
    for i in 0..n {
        let [a, b, c, d] = [x0[i].load(), x1[i].load(), x2[i].load(), x3[i].load()];
        let first = P::keeps(a, b);
        let top = if first { a } else { b };
        let not_third = P::keeps(top, c);
        let top = if not_third { top } else { c };
        let not_last = P::keeps(top, d);
        let sum = C::store(Add::f(none.load(), w.source[i].load()));
        y0[i] = if first & not_third & not_last { sum } else { none };
        y1[i] = if !first & not_third & not_last { sum } else { none };
        y2[i] = if !not_third & not_last { sum } else { none };
        y3[i] = if not_last { none } else { sum };
    }
}

/// Kernel of `select_and_scatter` with disjoint windows: the strip that owns an element of the result writes it once.
struct DisjointKernel {
    at: WindowGeometry,
    elements: usize,
    size: usize,
    blocks: StripBlocks,
    tile: TileFn,
}

impl Kernel for DisjointKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let [x, source, init] = [0, 1, 2].map(|k| Ptr::of(io.inputs[k]));
        let out = Ptr(io.outputs[0]);
        let WindowGeometry { columns, channels, .. } = self.at;
        if self.blocks.rows * columns.count == 0 {
            // SAFETY: the initial value is a scalar of the result's element type.
            unsafe { fill(cx, out.at(0), self.elements, self.size, init.at(0)) };
            return Ok(());
        }
        let body = |block: usize| {
            let (mut seen, mut others, mut current) = (Vec::new(), Vec::new(), usize::MAX);
            self.blocks.each(block, |row, first, n| {
                if row != current {
                    self.at.owned_rows(row, &mut seen, &mut others);
                    current = row;
                }
                let args = SelectArgs {
                    along: columns,
                    channels,
                    part: [0, channels],
                    first,
                    seen: &seen,
                    others: &others,
                    source: source.at((row * columns.count + first) * channels * self.size),
                };
                // SAFETY: each strip writes only the elements that it owns.
                unsafe { (self.tile)(out.at(0), x.at(0), (&raw const args).cast(), init.at(0), n) };
            });
        };
        cx.team.run_with(self.blocks.count(), self.elements as f64 * 0.3, cx.flush, &body);
        Ok(())
    }
}

/// Kernel of `select_and_scatter` with any windows: tasks are images, or strips of channels of a single image.
///
/// Each task adds in the order of the windows, so results do not depend on the number of threads.
struct OverlapKernel {
    at: WindowGeometry,
    elements: usize,
    size: usize,
    tile: TileFn,
}

impl OverlapKernel {
    /// Adds the source pixels of a range of rows, of the range of channels `part`, to a result that holds initial
    /// values or sums.
    unsafe fn add(&self, io: [Ptr; 4], rows: std::ops::Range<usize>, part: [usize; 2]) {
        let [x, source, init, out] = io;
        let WindowGeometry { columns, channels, .. } = self.at;
        let mut seen = Vec::new();
        for row in rows {
            self.at.seen_rows(row, &mut seen);
            let source = source.at(row * columns.count * channels * self.size);
            let args =
                SelectArgs { along: columns, channels, part, first: 0, seen: &seen, others: &[], source };
            // SAFETY: by the caller's promise, nothing else writes these channels of these rows' windows.
            unsafe { (self.tile)(out.at(0), x.at(0), (&raw const args).cast(), init.at(0), columns.count) };
        }
    }
}

impl Kernel for OverlapKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        const WIDTH: usize = 64;
        let [x, source, init] = [0, 1, 2].map(|k| Ptr::of(io.inputs[k]));
        let out = Ptr(io.outputs[0]);
        let channels = self.at.channels;
        let images = self.at.rows.first().filter(|a| a.is_plain()).map_or(1, |a| a.count);
        let rows = self.at.row_count() / images.max(1);
        let looked_at = (images * rows * self.at.columns.count * channels) as f64;
        let work = looked_at * self.at.window_elements() as f64 * 0.4;
        let io = [x, source, init, out];
        if images < 2 {
            // SAFETY: the initial value is a scalar of the result's element type.
            unsafe { fill(cx, out.at(0), self.elements, self.size, init.at(0)) };
            let body = |block: usize| {
                let from = block * WIDTH;
                // SAFETY: tasks write different channels.
                unsafe { self.add(io, 0..rows * images, [from, (from + WIDTH).min(channels)]) };
            };
            cx.team.run_with(channels.div_ceil(WIDTH), work, cx.flush, &body);
            return Ok(());
        }
        let each = self.elements / images;
        let body = |image: usize| {
            // Filled by the same task, an image is in cache when sums are added to it.
            // SAFETY: tasks write different images.
            unsafe {
                fill(cx, out.at(image * each * self.size), each, self.size, init.at(0));
                self.add(io, image * rows..(image + 1) * rows, [0, channels]);
            }
        };
        cx.team.run_with(images, work, cx.flush, &body);
        Ok(())
    }
}
