//! Sliding windows: reduce_window with one associative op, and select_and_scatter as autodiff makes it of max pooling.
//!
//! The fast paths run along the last dimension, over which the window does not extend (channels-last pooling): each
//! window position is one contiguous row.

use super::lanes::{Bf16, Exact, F16, Round};
use super::reduce::{Add, Fold, Max, Min, across_loop};
use super::{Io, Kernel, Ptr};
use crate::detect::{Isa, Level, Tile, TileFn};
use crate::exec::Cx;
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::sync::Arc;
use systole_compile::Step;
use systole_ir::op::{Direction, Monoid, ReduceWindow, SelectAndScatter, Window};
use systole_ir::{DType, Graph, GraphBuilder, Op, Result, Shape, TensorType};

/// A window that lies outside the last dimension, over an operand.
struct Rows {
    window: Window,
    input: Shape,
    /// Output positions and the operand's strides, without the last dimension.
    outer: Shape,
    strides: SmallVec<[usize; 4]>,
    /// Elements of a row.
    width: usize,
    sizes: Shape,
}

impl Rows {
    fn new(window: &Window, x: &TensorType, y: &TensorType) -> Option<Rows> {
        let last = x.rank().checked_sub(1)?;
        let alone = window.dimensions[last] == 1
            && window.strides[last] == 1
            && window.padding[last] == [0, 0]
            && window.base_dilations[last] == 1;
        alone.then(|| Rows {
            window: window.clone(),
            input: x.shape.clone(),
            outer: Shape::new(&y.shape[..last]),
            strides: x.shape.strides().iter().copied().take(last).collect(),
            width: x.shape[last],
            sizes: Shape::new(&window.dimensions[..last]),
        })
    }

    /// The offset in the operand of window element `k` at output position `out`; `None` in padding and holes.
    fn source(&self, out: &[usize], k: &[usize]) -> Option<usize> {
        let w = &self.window;
        let mut at = 0;
        for d in 0..out.len() {
            let i = (out[d] * w.strides[d] + k[d] * w.window_dilations[d]) as i64 - w.padding[d][0];
            let i = usize::try_from(i).ok()?;
            let holes = w.base_dilations[d];
            if i % holes != 0 || i / holes >= self.input[d] {
                return None;
            }
            at += i / holes * self.strides[d];
        }
        Some(at)
    }

    /// Window elements relative to the first, when windows lie inside the operand without holes in it.
    fn plain_offsets(&self) -> Option<Vec<usize>> {
        let w = &self.window;
        let inside = (0..self.outer.rank()).all(|d| {
            let reach = self.outer[d].saturating_sub(1) * w.strides[d]
                + (w.dimensions[d] - 1) * w.window_dilations[d];
            w.padding[d][0] == 0 && w.base_dilations[d] == 1 && reach < self.input[d]
        });
        let offset = |k: &[usize]| -> usize {
            (0..k.len()).map(|d| k[d] * w.window_dilations[d] * self.strides[d]).sum()
        };
        inside.then(|| self.sizes.indices().map(|k| offset(&k)).collect())
    }

    /// Calls `f(position, offsets of the window's rows)` for positions of a range of the outermost dimension.
    fn each(
        &self,
        range: std::ops::Range<usize>,
        plain: Option<&[usize]>,
        mut f: impl FnMut(usize, &[usize]),
    ) {
        let per: usize = self.outer.iter().skip(1).product();
        let mut rows: Vec<usize> = Vec::with_capacity(self.sizes.elements());
        let Some(offsets) = plain else {
            for p in range.start * per..range.end * per {
                let index = self.outer.unravel(p);
                rows.clear();
                rows.extend(self.sizes.indices().filter_map(|k| self.source(&index, &k)));
                f(p, &rows);
            }
            return;
        };
        // Positions along the last outer dimension lie evenly apart.
        let last = self.outer.rank() - 1;
        let line = if last == 0 { 1 } else { self.outer[last] };
        let step = if last == 0 { 0 } else { self.window.strides[last] * self.strides[last] };
        for first in (range.start * per..range.end * per).step_by(line.max(1)) {
            let index = self.outer.unravel(first);
            let start: usize =
                index.iter().enumerate().map(|(d, i)| i * self.window.strides[d] * self.strides[d]).sum();
            for i in 0..line {
                rows.clear();
                rows.extend(offsets.iter().map(|o| start + i * step + o));
                f(first + i, &rows);
            }
        }
    }

    /// Whether each element of the operand lies in exactly one window.
    fn tiles(&self) -> bool {
        let w = &self.window;
        let even = |d: usize| {
            w.strides[d] == w.dimensions[d]
                && w.window_dilations[d] == 1
                && self.outer[d] * w.strides[d] == self.input[d]
        };
        (0..self.outer.rank()).all(even)
    }

    /// Sizes of the outermost dimension, and how many of it one block takes.
    fn blocks(&self) -> (usize, usize) {
        let outermost = self.outer.first().copied().unwrap_or(1);
        let per = self.outer.iter().skip(1).product::<usize>() * self.width * self.sizes.elements();
        (outermost, ((1 << 15) / per.max(1)).clamp(1, outermost.max(1)))
    }
}

/// One window of reduce_window, for [`FoldLoop`].
struct Window1 {
    x: *const f32,
    out: *mut f32,
    init: f32,
    rows: *const usize,
    count: usize,
}

/// Folds the rows of one window, a register's worth of columns at a time.
struct FoldLoop<F>(PhantomData<F>);

/// Columns that stay in registers while the rows pass.
const WIDE: usize = 64;

impl<F: Fold<f32>> Tile for FoldLoop<F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: `a` is a `Window1` whose rows lie inside the operand and whose result has `n` columns.
        unsafe {
            let w = &*a.cast::<Window1>();
            let rows = std::slice::from_raw_parts(w.rows, w.count);
            let mut from = 0;
            while from + WIDE <= n {
                let mut acc = [w.init; WIDE];
                for row in rows {
                    let x = &*w.x.add(row + from).cast::<[f32; WIDE]>();
                    for (a, x) in acc.iter_mut().zip(x) {
                        *a = F::f(*a, *x);
                    }
                }
                *w.out.add(from).cast::<[f32; WIDE]>() = acc;
                from += WIDE;
            }
            for c in from..n {
                *w.out.add(c) = rows.iter().fold(w.init, |a, row| F::f(a, *w.x.add(row + c)));
            }
        }
    }
}

/// reduce_window by a monoid.
pub struct Pool {
    rows: Rows,
    plain: Option<Vec<usize>>,
    across: TileFn,
    /// The whole window at once, for f32.
    fold: Option<TileFn>,
    size: usize,
    elements: usize,
}

impl Pool {
    pub fn new(op: &ReduceWindow, step: &Step, level: Level) -> Option<Pool> {
        let (x, y) = (&step.input_types[0], &step.output_types[0]);
        if step.output_types.len() != 1 || matches!(x.dtype, DType::F16 | DType::BF16) || x.rank() < 2 {
            return None;
        }
        let monoid = Monoid::of(&op.body)?;
        let across = across_loop(monoid, x.dtype, level);
        let rows = Rows::new(&op.window, x, y)?;
        let fold = match (x.dtype, monoid) {
            (DType::F32, Monoid::Maximum) => Some(level.tile::<FoldLoop<Max>>()),
            (DType::F32, Monoid::Minimum) => Some(level.tile::<FoldLoop<Min>>()),
            (DType::F32, Monoid::Add) => Some(level.tile::<FoldLoop<Add>>()),
            _ => None,
        };
        let plain = rows.plain_offsets();
        Some(Pool { rows, plain, across, fold, size: x.dtype.size(), elements: y.elements() })
    }

    unsafe fn window(&self, x: Ptr, to: *mut u8, init: Ptr, sources: &[usize]) {
        let width = self.rows.width;
        // SAFETY: rows of the operand and of the result; the initial value is a scalar of the element type.
        unsafe {
            if let Some(fold) = self.fold {
                let w = Window1 {
                    x: x.elem(0),
                    out: to.cast(),
                    init: *init.elem::<f32>(0),
                    rows: sources.as_ptr(),
                    count: sources.len(),
                };
                let a = (&raw const w).cast::<u8>();
                return fold(to, a, a, a, width);
            }
            for c in 0..width {
                std::ptr::copy_nonoverlapping(init.at(0).cast_const(), to.add(c * self.size), self.size);
            }
            for &at in sources {
                let from = x.at(at * self.size).cast_const();
                (self.across)(to, from, from, from, width);
            }
        }
    }
}

impl Kernel for Pool {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (x, init, y) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let (outermost, take) = self.rows.blocks();
        let row = self.rows.width * self.size;
        let body = |block: usize| {
            let range = block * take..((block + 1) * take).min(outermost);
            self.rows.each(range, self.plain.as_deref(), |p, sources| {
                // SAFETY: each block has its own positions of the result.
                unsafe { self.window(x, y.at(p * row), init, sources) };
            });
        };
        let work = (self.elements * self.rows.sizes.elements()) as f64 * 0.2;
        cx.team.run_with(outermost.div_ceil(take), work, cx.flush, &body);
        Ok(())
    }
}

/// One window of select_and_scatter, for [`PickLoop`].
struct Pick {
    x: *const f32,
    out: *mut f32,
    source: *const f32,
    rows: *const usize,
    count: usize,
    /// Where windows tile the operand: every element is written, from this value, and nothing is read.
    fresh: Option<f32>,
}

/// Adds each source element to the row whose element is the window's greatest (or least), the first of equals.
/// Sums are rounded to the type that is stored, as storing each of them would.
struct PickLoop<const GREATEST: bool, R>(PhantomData<R>);

impl<const GREATEST: bool, R: Round> Tile for PickLoop<GREATEST, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: `a` is a `Pick` whose rows lie inside operand and result.
        unsafe {
            let p = &*a.cast::<Pick>();
            let rows = std::slice::from_raw_parts(p.rows, p.count);
            let Some((first, others)) = rows.split_first() else { return };
            let mut from = 0;
            while from < n {
                if from + WIDE <= n {
                    pick_columns::<GREATEST, WIDE, R>(p, *first, others, from);
                    from += WIDE;
                } else {
                    pick_columns::<GREATEST, 1, R>(p, *first, others, from);
                    from += 1;
                }
            }
        }
    }
}

/// `W` columns of one window.
#[inline(always)]
unsafe fn pick_columns<const GREATEST: bool, const W: usize, R: Round>(
    p: &Pick,
    first: usize,
    others: &[usize],
    from: usize,
) {
    // SAFETY: the rows have `W` columns from `from` on.
    unsafe {
        let mut kept = *p.x.add(first + from).cast::<[f32; W]>();
        let mut place = [0u32; W];
        for (k, row) in others.iter().enumerate() {
            let x = &*p.x.add(row + from).cast::<[f32; W]>();
            for ((kept, place), x) in kept.iter_mut().zip(&mut place).zip(x) {
                let keeps = if GREATEST { *kept >= *x } else { *kept <= *x };
                *place = if keeps { *place } else { k as u32 + 1 };
                *kept = if keeps { *kept } else { *x };
            }
        }
        let source = &*p.source.add(from).cast::<[f32; W]>();
        for (k, row) in std::iter::once(&first).chain(others).enumerate() {
            let out = &mut *p.out.add(row + from).cast::<[f32; W]>();
            let before = match p.fresh {
                Some(value) => [value; W],
                None => *out,
            };
            for (((o, b), s), place) in out.iter_mut().zip(&before).zip(source).zip(&place) {
                *o = if *place == k as u32 { R::round(*b + *s) } else { *b };
            }
        }
    }
}

fn pick_loop<const GREATEST: bool>(stored: DType, level: Level) -> TileFn {
    match stored {
        DType::BF16 => level.tile::<PickLoop<GREATEST, Bf16>>(),
        DType::F16 => level.tile::<PickLoop<GREATEST, F16>>(),
        _ => level.tile::<PickLoop<GREATEST, Exact>>(),
    }
}

/// select_and_scatter by ≥ or ≤ and add, on f32.
pub struct Unpool {
    rows: Rows,
    plain: Option<Vec<usize>>,
    fresh: bool,
    pick: TileFn,
    elements: usize,
}

impl Unpool {
    /// `stored`: the type that the f32 elements of the step have in memory.
    pub fn new(op: &SelectAndScatter, step: &Step, stored: DType, level: Level) -> Option<Unpool> {
        let (x, source) = (&step.input_types[0], &step.input_types[1]);
        // The outermost dimension is shared out: windows must not reach across it.
        let apart =
            op.dimensions.first() == Some(&1) && op.strides.first() == Some(&1) && op.padding[0] == [0, 0];
        if x.dtype != DType::F32 || x.rank() < 2 || !apart || Monoid::of(&op.scatter) != Some(Monoid::Add) {
            return None;
        }
        let pick = match direction(&op.select)? {
            Direction::Ge => pick_loop::<true>(stored, level),
            Direction::Le => pick_loop::<false>(stored, level),
            _ => return None,
        };
        let rows = Rows::new(&op.window(), x, source)?;
        let (plain, fresh) = (rows.plain_offsets(), rows.tiles());
        Some(Unpool { rows, plain, fresh, pick, elements: x.elements() })
    }
}

/// The relation of a body that compares its two parameters in order.
pub fn direction(body: &Graph) -> Option<Direction> {
    let node = body.node(*body.results.first()?);
    match &node.op {
        Op::Compare(c) if node.inputs[..] == body.params[..] => Some(c.direction),
        _ => None,
    }
}

/// The body `(a, b) → a direction b` over f32 scalars.
pub fn comparison(direction: Direction) -> Arc<Graph> {
    let g = GraphBuilder::new("select");
    let a = g.parameter(TensorType::scalar(DType::F32), "a");
    let b = g.parameter(TensorType::scalar(DType::F32), "b");
    match g.finish(&[a.compare(&b, direction)]) {
        Ok(body) => body,
        Err(e) => systole_ir::bug!("comparison: {e}"),
    }
}

impl Kernel for Unpool {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (x, source, out) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let init = Ptr::of(io.inputs[2]);
        let (outermost, take) = self.rows.blocks();
        let each = self.elements / outermost.max(1);
        let body = |block: usize| {
            let range = block * take..((block + 1) * take).min(outermost);
            // SAFETY: each block has its own part of the result, which it fills first; rows lie inside both arrays.
            unsafe {
                let value = *init.elem::<f32>(0);
                let per = (1 << 14) / each.max(1);
                let mut at = range.start;
                while at < range.end {
                    // A few images at a time: what was filled is still in cache when it is added to.
                    let end = (at + per.max(1)).min(range.end);
                    if !self.fresh {
                        std::slice::from_raw_parts_mut(out.elem::<f32>(at * each), (end - at) * each)
                            .fill(value);
                    }
                    self.rows.each(at..end, self.plain.as_deref(), |p, sources| {
                        let pick = Pick {
                            x: x.elem(0),
                            out: out.elem(0),
                            source: source.elem::<f32>(p * self.rows.width),
                            rows: sources.as_ptr(),
                            count: sources.len(),
                            fresh: self.fresh.then_some(value),
                        };
                        let a = (&raw const pick).cast::<u8>();
                        (self.pick)(out.at(0), a, a, a, self.rows.width);
                    });
                    at = end;
                }
            }
        };
        cx.team.run_with(outermost.div_ceil(take), self.elements as f64 * 0.4, cx.flush, &body);
        Ok(())
    }
}
