//! reduce_window and select_and_scatter: pooling, its derivative, running sums.
//!
//! Trailing dimensions that no window spans are `channels`, vectorised over; the dimension before them is walked in
//! strips of pixels; the rest are rows, shared by the threads together with the strips. Folds keep the interpreter's
//! order, except in running folds from the end.

use crate::kernel::Cx;
use crate::kernel::copy::fill;
use crate::kernel::{Io, Kernel, Ptr};
use crate::simd::cells::{Add, Bf16, Cell, F16, Fold, ForFold, for_fold};
use crate::simd::level::{Isa, Level, Tile, TileFn};
use crate::simd::loops::{lanes, lanes_mut};
use std::marker::PhantomData;
use std::ops::Range;
use systole_compile::Step;
use systole_ir::op::{CompareType, Direction, Monoid, ReduceWindow, SelectAndScatter, Window};
use systole_ir::{DType, Graph, Op, Result, Shape};

/// Channels of a window that are compared together; their state stays in the nearest cache.
const LANES: usize = 64;
/// Window elements that one block of a parallel loop looks at, at the least.
const BLOCK: usize = 1 << 14;

/// The kernel of an op of this family; `None`: not of this family, or of another body, type or arity.
pub(crate) fn bind(op: &Op, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    match op {
        Op::ReduceWindow(op) => reduce_window(op, step, level),
        Op::SelectAndScatter(op) => select_and_scatter(op, step, level),
        _ => None,
    }
}

/// A window along one dimension of the operand.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Operand elements.
    size: usize,
    /// Positions of the window.
    count: usize,
    window: usize,
    stride: usize,
    /// Distance of neighbours of the operand on the grid, whose other places are holes.
    base: usize,
    /// Distance of neighbours of the window on the grid.
    hole: usize,
    low: i64,
    /// Distance of neighbours of the operand in memory, in elements.
    distance: usize,
    /// Operand elements from one that a window sees to the next.
    step: usize,
    /// Window elements from one that sees an operand element to the next.
    period: usize,
}

impl Axis {
    fn new(w: &Window, d: usize, x: &Shape, y: &Shape) -> Axis {
        let (base, hole) = (w.base_dilations[d], w.window_dilations[d]);
        let common = gcd(base, hole);
        Axis {
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

    /// One position for each operand element.
    fn is_plain(&self) -> bool {
        let one = self.window == 1 && self.stride == 1 && self.base == 1;
        one && self.low == 0 && self.size == self.count
    }

    /// First operand coordinate in the window at `position`, and how many follow, [`Axis::step`] apart.
    #[inline(always)]
    fn span(&self, position: usize) -> (usize, usize) {
        let at = (position * self.stride) as i64 - self.low;
        let reach = ((self.window - 1) * self.hole) as i64;
        if self.base == 1 && at >= 0 && at + reach < self.size as i64 {
            return (at as usize, self.window);
        }
        self.clipped_span(at)
    }

    /// The positions next to each other whose windows lie one element from each other and end inside the operand.
    #[inline(always)]
    fn inside(&self) -> Range<usize> {
        if self.stride != 1 || self.base != 1 {
            return 0..0;
        }
        let reach = ((self.window - 1) * self.hole) as i64;
        let inside = |at: i64| at.clamp(0, self.count as i64) as usize;
        inside(self.low)..inside(self.size as i64 - reach + self.low)
    }

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

    /// For windows that do not overlap: the coordinates `owned` that position is responsible for, so that each has
    /// one, and those of them in its window.
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

/// Dimensions of the operand, plain neighbours joined.
struct Geometry {
    /// All but the last two; index in row-major order.
    rows: Vec<Axis>,
    /// Pixels of a row.
    columns: Axis,
    /// Elements of a pixel, contiguous in operand and result.
    channels: usize,
}

impl Geometry {
    fn new(window: &Window, x: &Shape, y: &Shape) -> Geometry {
        let mut rows: Vec<Axis> = Vec::new();
        for axis in (0..x.rank()).map(|d| Axis::new(window, d, x, y)) {
            match rows.last_mut() {
                Some(last) if last.is_plain() && axis.is_plain() => {
                    let size = last.size * axis.size;
                    *last = Axis { size, count: size, ..axis };
                }
                _ => rows.push(axis),
            }
        }
        let channels = rows.pop_if(|axis| axis.is_plain()).map_or(1, |axis| axis.size);
        let columns = rows.pop().unwrap_or(Axis {
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
        Geometry { rows, columns, channels }
    }

    fn row_count(&self) -> usize {
        self.rows.iter().map(|a| a.count).product()
    }

    fn window_elements(&self) -> usize {
        self.product(|a| a.window)
    }

    /// Of a number for each dimension but the channels. Far positions may make it greater than any array.
    fn product(&self, f: impl Fn(&Axis) -> usize) -> usize {
        self.rows.iter().chain([&self.columns]).map(f).fold(1, usize::saturating_mul)
    }

    /// Calls `f` with each row axis and its coordinate in row `row`, innermost first.
    fn each_axis(&self, mut row: usize, mut f: impl FnMut(&Axis, usize)) {
        for axis in self.rows.iter().rev() {
            f(axis, row % axis.count);
            row /= axis.count;
        }
    }

    /// Where the operand's rows in the windows of result row `row` start, in row-major order.
    fn seen_rows(&self, row: usize, out: &mut Vec<usize>) {
        out.clear();
        out.push(0);
        // Innermost first: each further axis repeats what is there for each of its coordinates.
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

    /// For windows that do not overlap: where the operand's rows start that result row `row` is responsible for,
    /// those in its windows and the others.
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

/// How rows and strips of their pixels are cut into blocks: by shapes only.
#[derive(Clone, Copy)]
struct Blocks {
    rows: usize,
    columns: usize,
    /// Pixels of a strip.
    strip: usize,
    /// Strips of a row.
    strips: usize,
    /// Strips of a block.
    group: usize,
}

impl Blocks {
    /// `weight` elements are looked at for each pixel.
    fn new(rows: usize, columns: usize, weight: usize) -> Blocks {
        let strip = (BLOCK / weight.max(1)).clamp(1, columns.max(1));
        let strips = columns.div_ceil(strip);
        let group = (BLOCK / (weight * strip).max(1)).max(1);
        Blocks { rows, columns, strip, strips, group }
    }

    fn count(&self) -> usize {
        (self.rows * self.strips).div_ceil(self.group)
    }

    /// Calls `f` with row, first pixel and number of pixels of each strip of a block.
    fn each(&self, block: usize, mut f: impl FnMut(usize, usize, usize)) {
        let from = block * self.group;
        for unit in from..(from + self.group).min(self.rows * self.strips) {
            let (row, first) = (unit / self.strips, unit % self.strips * self.strip);
            f(row, first, self.strip.min(self.columns - first));
        }
    }
}

fn reduce_window(op: &ReduceWindow, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let [x, init] = &step.input_types[..] else { return None };
    let y = step.output_types.first()?;
    let monoid = Monoid::of(&op.body)?;
    if init.dtype != x.dtype {
        return None;
    }
    let at = Geometry::new(&op.window, &x.shape, &y.shape);
    let size = x.dtype.size();
    if let Some(backwards) = running(&at) {
        let tile = for_fold(&ScanAt(level), x.dtype, monoid)?;
        return Some(Box::new(ScanKernel { at, size, backwards, tile }));
    }
    let tile = for_fold(&WindowAt(level), x.dtype, monoid)?;
    let blocks =
        Blocks::new(at.row_count(), at.columns.count, at.window_elements().saturating_mul(at.channels));
    Some(Box::new(WindowKernel { at, size, blocks, tile }))
}

struct WindowAt(Level);
impl ForFold for WindowAt {
    type Out = TileFn;
    fn with<C: Cell, F: Fold<C>>(&self) -> TileFn {
        self.0.tile::<WindowStrip<C, F>>()
    }
}

/// What [`WindowStrip`] reads.
struct Strip<'a> {
    along: Axis,
    channels: usize,
    /// The first pixel's position.
    first: usize,
    /// Where rows of the operand start.
    rows: &'a [usize],
}

/// A strip of `n` pixels of the result; `a`: the operand, `b`: a [`Strip`], `c`: the initial value.
struct WindowStrip<C, F>(PhantomData<(C, F)>);
impl<C: Cell, F: Fold<C>> Tile for WindowStrip<C, F> {
    const EVERY_LEVEL: bool = C::COMMON && F::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: as the type says; spans lie inside the operand, which is apart from the result.
        unsafe {
            let (s, init) = (&*b.cast::<Strip<'_>>(), *c.cast::<C>());
            let inside = s.along.inside();
            let mut i = 0;
            while i < n {
                let at = s.first + i;
                let (from, count) = s.along.span(at);
                // The same elements of neighbouring windows lie together.
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

/// Pixels that lie together: the result itself accumulates, a few window elements at a time. (Every step of a [`Fold`]
/// gives a stored value, so nothing is lost between them.)
#[inline(always)]
unsafe fn fold_pixels<C: Cell, F: Fold<C>>(out: &mut [C], x: *const C, s: &Strip<'_>, count: usize, init: C) {
    let n = out.len();
    let mut left = s.rows.len() * count;
    let (mut row, mut column) = (0, 0);
    // The window's elements in row-major order; called once for each.
    let mut next = || {
        // SAFETY: the window's elements lie inside the operand.
        let element =
            unsafe { lanes::<C>(x.add(s.rows[row] + column * s.along.step * s.channels).cast(), n) };
        column += 1;
        if column == count {
            (row, column) = (row + 1, 0);
        }
        element
    };
    // Folds that networks hardly use go element by element: their loops are many, and each is compiled.
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

/// Four window elements; `FIRST`: after the initial value, not what is there.
#[inline(always)]
fn fold_four<C: Cell, F: Fold<C>, const FIRST: bool>(
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

struct WindowKernel {
    at: Geometry,
    size: usize,
    blocks: Blocks,
    tile: TileFn,
}

impl Kernel for WindowKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (x, init, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let Geometry { columns, channels, .. } = self.at;
        let body = |block: usize| {
            let (mut rows, mut current) = (Vec::new(), usize::MAX);
            self.blocks.each(block, |row, first, n| {
                if row != current {
                    self.at.seen_rows(row, &mut rows);
                    current = row;
                }
                let strip = Strip { along: columns, channels, first, rows: &rows };
                let dst = out.at((row * columns.count + first) * channels * self.size);
                // SAFETY: strips are disjoint parts of the result.
                unsafe { (self.tile)(dst, x.at(0), (&raw const strip).cast(), init.at(0), n) };
            });
        };
        let looked_at =
            (self.blocks.rows * columns.count * channels) as f64 * self.at.window_elements() as f64;
        cx.team.run_with(self.blocks.count(), looked_at * 0.2, cx.flush, &body);
        Ok(())
    }
}

/// Whether all windows start (`false`) or end (`true`) at the same end of the columns: a running fold.
fn running(at: &Geometry) -> Option<bool> {
    let w = &at.columns;
    let others_plain = at.rows.iter().all(Axis::is_plain);
    let unbroken = w.stride == 1 && w.base == 1 && w.hole == 1;
    // Few elements are no gain, and lose what the other kernel does at once.
    if !others_plain || !unbroken || w.size < 4 || w.count != w.size || w.window < w.size {
        return None;
    }
    match w.low {
        0 => Some(true),
        low if low == w.window as i64 - 1 => Some(false),
        _ => None,
    }
}

struct ScanAt(Level);
impl ForFold for ScanAt {
    type Out = TileFn;
    fn with<C: Cell, F: Fold<C>>(&self) -> TileFn {
        self.0.tile::<Scan<C, F>>()
    }
}

/// What [`Scan`] reads.
struct Run {
    channels: usize,
    /// How many of them are folded.
    width: usize,
    backwards: bool,
}

/// Running folds of `n` pixels; `a`: the first pixel, `b`: a [`Run`], `c`: the initial value.
struct Scan<C, F>(PhantomData<(C, F)>);
impl<C: Cell, F: Fold<C>> Tile for Scan<C, F> {
    const EVERY_LEVEL: bool = C::COMMON && F::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: as the type says; operand and result are different arrays.
        unsafe {
            let (r, init) = (&*b.cast::<Run>(), *c.cast::<C>());
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
fn scan_step<C: Cell, F: Fold<C>>(out: &mut [C], before: &[C], x: &[C]) {
    for ((y, b), x) in out.iter_mut().zip(before).zip(x) {
        *y = C::store(F::f(b.load(), x.load()));
    }
}

struct ScanKernel {
    at: Geometry,
    size: usize,
    backwards: bool,
    tile: TileFn,
}

impl Kernel for ScanKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        const WIDTH: usize = 128;
        let (x, init, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let (n, channels) = (self.at.columns.count, self.at.channels);
        // Rows are the outer dimension, strips of channels the inner one.
        let (rows, parts) = (self.at.row_count(), channels.div_ceil(WIDTH));
        let group = (BLOCK / (n * channels.clamp(1, WIDTH))).max(1);
        let body = |block: usize| {
            for unit in block * group..((block + 1) * group).min(rows * parts) {
                let from = unit % parts * WIDTH;
                let run = Run { channels, width: WIDTH.min(channels - from), backwards: self.backwards };
                let at = (unit / parts * n * channels + from) * self.size;
                // SAFETY: units are disjoint parts of operand and result.
                unsafe { (self.tile)(out.at(at), x.at(at), (&raw const run).cast(), init.at(0), n) };
            }
        };
        let work = (rows * n * channels) as f64 * 0.5;
        cx.team.run_with((rows * parts).div_ceil(group), work, cx.flush, &body);
        Ok(())
    }
}

/// Which of two elements a window keeps.
trait Pick: Send + Sync + 'static {
    /// Whether networks pick so: the greatest, yes.
    const COMMON: bool;
    fn keeps<T: PartialOrd>(kept: T, other: T) -> bool;
}
struct Ge;
struct Le;
impl Pick for Ge {
    const COMMON: bool = true;
    #[inline(always)]
    fn keeps<T: PartialOrd>(kept: T, other: T) -> bool {
        kept >= other
    }
}
impl Pick for Le {
    const COMMON: bool = false;
    #[inline(always)]
    fn keeps<T: PartialOrd>(kept: T, other: T) -> bool {
        kept <= other
    }
}

/// What a body of `(kept, other)` compares, as a direction from `kept` to `other`.
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

fn select_and_scatter(op: &SelectAndScatter, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let [x, source, _] = &step.input_types[..] else { return None };
    if Monoid::of(&op.scatter) != Some(Monoid::Add) {
        return None;
    }
    let at = Geometry::new(&op.window(), &x.shape, &source.shape);
    let apart = at.rows.iter().chain([&at.columns]).all(|a| a.stride >= a.window);
    let tile = match direction(&op.select)? {
        Direction::Ge => choose::<Ge>(x.dtype, apart, level)?,
        Direction::Le => choose::<Le>(x.dtype, apart, level)?,
        _ => return None,
    };
    let (elements, dtype) = (x.elements(), x.dtype);
    if apart {
        let weight = at.product(|a| a.stride).saturating_mul(at.channels);
        let blocks = Blocks::new(at.row_count(), at.columns.count, weight);
        return Some(Box::new(ApartKernel { at, elements, size: dtype.size(), blocks, tile }));
    }
    Some(Box::new(OverlapKernel { at, elements, size: dtype.size(), tile }))
}

fn choose<P: Pick>(dtype: DType, apart: bool, level: Level) -> Option<TileFn> {
    match dtype {
        DType::F32 => Some(choose_cell::<f32, P>(apart, level)),
        DType::F64 => Some(choose_cell::<f64, P>(apart, level)),
        DType::BF16 => Some(choose_cell::<Bf16, P>(apart, level)),
        DType::F16 => Some(choose_cell::<F16, P>(apart, level)),
        DType::I32 => Some(choose_cell::<i32, P>(apart, level)),
        DType::I64 => Some(choose_cell::<i64, P>(apart, level)),
        _ => None,
    }
}

fn choose_cell<C: Cell, P: Pick>(apart: bool, level: Level) -> TileFn
where
    Add: Fold<C>,
{
    if apart { level.tile::<ChoiceStrip<C, P, true>>() } else { level.tile::<ChoiceStrip<C, P, false>>() }
}

/// What [`ChoiceStrip`] reads.
struct Choice<'a> {
    along: Axis,
    channels: usize,
    /// Channels that are looked at: from, to.
    part: [usize; 2],
    /// The first pixel's position.
    first: usize,
    /// Where rows of the operand in the windows start.
    seen: &'a [usize],
    /// Where rows start that are only filled.
    others: &'a [usize],
    /// The source's first pixel.
    source: *const u8,
}

/// Windows of a strip of `n` source pixels; `dst`: the whole result, `a`: the operand, `b`: a [`Choice`], `c`: the
/// initial value. `APART`: windows do not overlap, and all elements that the strip is responsible for are written;
/// otherwise source elements are added to the result's.
struct ChoiceStrip<C, P, const APART: bool>(PhantomData<(C, P)>);
impl<C: Cell, P: Pick, const APART: bool> Tile for ChoiceStrip<C, P, APART>
where
    Add: Fold<C>,
{
    const EVERY_LEVEL: bool = C::COMMON && P::COMMON;

    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: as the type says; coordinates are clipped to the operand.
        unsafe {
            let (s, init) = (&*b.cast::<Choice<'_>>(), *c.cast::<C>());
            let (x, out) = (a.cast::<C>(), dst.cast::<C>());
            for i in 0..n {
                let (owned, inside) = s.along.owned(s.first + i);
                if APART {
                    fill_gaps(out, s, owned, inside, init);
                }
                if s.seen.is_empty() || inside[0] == inside[1] {
                    continue;
                }
                let source = s.source.cast::<C>().add(i * s.channels);
                let mut at = s.part[0];
                while at < s.part[1] {
                    let n = LANES.min(s.part[1] - at);
                    let w = Chosen { source: lanes(source.add(at).cast(), n), inside, at, init };
                    if APART && s.seen.len() == 2 && inside[1] - inside[0] == 2 {
                        choose_four::<C, P>(out, x, s, &w);
                    } else {
                        choose_any::<C, P, APART>(out, x, s, &w);
                    }
                    at += n;
                }
            }
        }
    }
}

/// Channels of one window.
struct Chosen<'a, C> {
    /// The source's.
    source: &'a [C],
    /// Columns of the window, from and to.
    inside: [usize; 2],
    /// The first channel.
    at: usize,
    init: C,
}

/// Writes the initial value to what is owned and in no window.
#[inline(always)]
unsafe fn fill_gaps<C: Cell>(out: *mut C, s: &Choice<'_>, owned: [usize; 2], inside: [usize; 2], init: C) {
    let fill = |row: usize, from: usize, to: usize| {
        for k in from * s.channels..to * s.channels {
            // SAFETY: the coordinates are this strip's alone.
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

/// Any window: remembers the number of the element that is kept, lane by lane.
#[inline(always)]
unsafe fn choose_any<C: Cell, P: Pick, const APART: bool>(
    out: *mut C,
    x: *const C,
    s: &Choice<'_>,
    w: &Chosen<'_, C>,
) where
    Add: Fold<C>,
{
    let (start, n) = (w.inside[0] * s.channels + w.at, w.source.len());
    let columns = (0..w.inside[1] - w.inside[0]).map(|k| start + k * s.channels);
    let places = s.seen.iter().flat_map(|&row| columns.clone().map(move |at| row + at));
    let (mut kept, mut which) = ([w.init.load(); LANES], [C::Mark::from(0); LANES]);
    for (number, place) in places.clone().enumerate() {
        let mark = C::Mark::from(number as u32);
        // SAFETY: the window's elements lie inside the operand.
        let others = unsafe { lanes::<C>(x.add(place).cast(), n) };
        for ((kept, which), other) in kept.iter_mut().zip(&mut which).zip(others) {
            let other = other.load();
            // The first is kept whatever the comparison says of it.
            let keeps = number > 0 && P::keeps(*kept, other);
            *kept = if keeps { *kept } else { other };
            *which = if keeps { *which } else { mark };
        }
    }
    for (number, place) in places.enumerate() {
        let mark = C::Mark::from(number as u32);
        // SAFETY: the window's elements lie inside the result, and belong to this call.
        let out = unsafe { lanes_mut::<C>(out.add(place).cast(), n) };
        for ((y, which), v) in out.iter_mut().zip(&which).zip(w.source) {
            let old = if APART { w.init } else { *y };
            let sum = C::store(Add::f(old.load(), v.load()));
            *y = if *which == mark { sum } else { old };
        }
    }
}

/// Two by two, the usual window of max pooling, in registers.
#[inline(always)]
unsafe fn choose_four<C: Cell, P: Pick>(out: *mut C, x: *const C, s: &Choice<'_>, w: &Chosen<'_, C>)
where
    Add: Fold<C>,
{
    let (start, n) = (w.inside[0] * s.channels + w.at, w.source.len());
    let [a, b] = [s.seen[0] + start, s.seen[1] + start];
    // SAFETY: the window's elements lie inside operand and result, and are apart from each other.
    unsafe {
        let x = |at: usize| lanes::<C>(x.add(at).cast(), n);
        let out = |at: usize| lanes_mut::<C>(out.add(at).cast(), n);
        let c = s.channels;
        four::<C, P>(out(a), out(a + c), out(b), out(b + c), x(a), x(a + c), x(b), x(b + c), w);
    }
}

// One reference for each array: that is how the compiler learns that they do not overlap.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn four<C: Cell, P: Pick>(
    y0: &mut [C],
    y1: &mut [C],
    y2: &mut [C],
    y3: &mut [C],
    x0: &[C],
    x1: &[C],
    x2: &[C],
    x3: &[C],
    w: &Chosen<'_, C>,
) where
    Add: Fold<C>,
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

/// Windows that do not overlap: each result element is written once.
struct ApartKernel {
    at: Geometry,
    elements: usize,
    size: usize,
    blocks: Blocks,
    tile: TileFn,
}

impl Kernel for ApartKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let [x, source, init] = [0, 1, 2].map(|k| Ptr::of(io.inputs[k]));
        let out = Ptr(io.outputs[0]);
        let Geometry { columns, channels, .. } = self.at;
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
                let choice = Choice {
                    along: columns,
                    channels,
                    part: [0, channels],
                    first,
                    seen: &seen,
                    others: &others,
                    source: source.at((row * columns.count + first) * channels * self.size),
                };
                // SAFETY: each strip writes what it alone owns.
                unsafe { (self.tile)(out.at(0), x.at(0), (&raw const choice).cast(), init.at(0), n) };
            });
        };
        cx.team.run_with(self.blocks.count(), self.elements as f64 * 0.3, cx.flush, &body);
        Ok(())
    }
}

/// Windows that overlap: threads take images, or channels of the only one, each in the order of the windows.
struct OverlapKernel {
    at: Geometry,
    elements: usize,
    size: usize,
    tile: TileFn,
}

impl OverlapKernel {
    /// Source pixels of rows `rows` and channels `part`, into a result that holds the initial value or sums.
    unsafe fn add(&self, io: [Ptr; 4], rows: std::ops::Range<usize>, part: [usize; 2]) {
        let [x, source, init, out] = io;
        let Geometry { columns, channels, .. } = self.at;
        let mut seen = Vec::new();
        for row in rows {
            self.at.seen_rows(row, &mut seen);
            let source = source.at(row * columns.count * channels * self.size);
            let choice =
                Choice { along: columns, channels, part, first: 0, seen: &seen, others: &[], source };
            // SAFETY: by the caller's promise that nothing else writes these rows' windows in these channels.
            unsafe { (self.tile)(out.at(0), x.at(0), (&raw const choice).cast(), init.at(0), columns.count) };
        }
    }
}

impl Kernel for OverlapKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
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
                // SAFETY: blocks write different channels.
                unsafe { self.add(io, 0..rows * images, [from, (from + WIDTH).min(channels)]) };
            };
            cx.team.run_with(channels.div_ceil(WIDTH), work, cx.flush, &body);
            return Ok(());
        }
        let each = self.elements / images;
        let body = |image: usize| {
            // SAFETY: blocks write different images. Filled here, an image is in cache when it is added to.
            unsafe {
                fill(cx, out.at(image * each * self.size), each, self.size, init.at(0));
                self.add(io, image * rows..(image + 1) * rows, [0, channels]);
            }
        };
        cx.team.run_with(images, work, cx.flush, &body);
        Ok(())
    }
}
