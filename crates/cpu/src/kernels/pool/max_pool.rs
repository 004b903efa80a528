//! Max pooling that remembers places, and its derivative: vectorised over channels.
//!
//! Windows do not overlap and lie inside the image. Values are those of `reduce_window` by `maximum`, places those of
//! `select_and_scatter` by `ge`, also for NaN, ties and zeros of both signs.

use crate::kernel::Cx;
use crate::kernel::{Io, Kernel, Ptr};
use crate::simd::cells::{Bf16, Cell};
use crate::simd::level::{Isa, Level, Tile, TileFn};
use crate::simd::loops::{lanes, lanes_mut};
use crate::simd::pool_row::{Row, pool_row};
use std::marker::PhantomData;
use systole_compile::{Pool, Step, Unpool};
use systole_ir::{DType, Result};

/// Elements that one block of a parallel loop looks at, at the least.
const BLOCK: usize = 1 << 14;

/// Images, their sizes before and after pooling, and how their rows are shared out.
struct Images {
    batch: usize,
    /// Height and width of the operand.
    full: [usize; 2],
    /// Of the result.
    pooled: [usize; 2],
    channels: usize,
    /// Bytes of an element.
    size: usize,
}

impl Images {
    fn new(full: &systole_ir::TensorType, pooled: &systole_ir::TensorType) -> Images {
        Images {
            batch: full.shape[0],
            full: [full.shape[1], full.shape[2]],
            pooled: [pooled.shape[1], pooled.shape[2]],
            channels: full.shape[3],
            size: full.dtype.size(),
        }
    }

    fn elements(&self) -> usize {
        self.batch * self.full[0] * self.full[1] * self.channels
    }

    /// Runs `f` for image and row of every row of the result.
    fn each_row(&self, cx: &Cx<'_>, ns_each: f64, f: impl Fn(usize, usize) + Sync) {
        let rows = self.batch * self.pooled[0];
        let group = (BLOCK / (self.elements() / rows.max(1)).max(1)).max(1);
        let body = |block: usize| {
            for row in block * group..((block + 1) * group).min(rows) {
                f(row / self.pooled[0], row % self.pooled[0]);
            }
        };
        cx.team.run_with(rows.div_ceil(group), self.elements() as f64 * ns_each, cx.flush, &body);
    }
}

/// Max pooling of an array.
pub struct PoolKernel {
    images: Images,
    pool: Pool,
    tile: TileFn,
}

impl PoolKernel {
    pub fn new(pool: &Pool, step: &Step, level: Level) -> Option<PoolKernel> {
        let y = &step.output_types[0];
        let tile = pool_row(pool.operand.dtype, y.dtype, level)?;
        Some(PoolKernel { images: Images::new(&pool.operand, y), pool: pool.clone(), tile })
    }
}

impl Kernel for PoolKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let m = &self.images;
        let (x, y) = (Ptr::of(io.inputs[0]), Ptr(io.outputs[0]));
        let argmax = io.outputs.get(1).map(|&p| Ptr(p));
        let line = m.full[1] * m.channels;
        m.each_row(cx, 0.2, |image, row| {
            let from = (image * m.full[0] + row * self.pool.strides[0]) * line;
            let to = (image * m.pooled[0] + row) * m.pooled[1] * m.channels;
            let r = Row {
                window: self.pool.window,
                step: self.pool.strides[1] * m.channels,
                line,
                channels: m.channels,
                relu: self.pool.relu,
                argmax: argmax.map_or(std::ptr::null_mut(), |p| p.at(to)),
            };
            let (dst, x) = (y.at(to * m.size), x.at(from * m.size).cast_const());
            // SAFETY: windows lie inside the image; rows of the results are disjoint.
            unsafe { (self.tile)(dst, x, (&raw const r).cast(), x, m.pooled[1]) };
        });
        Ok(())
    }
}

/// What [`UnpoolRow`] reads.
struct Spread {
    at: Unpool,
    /// Elements from one row of the result to the next, and of a pixel.
    line: usize,
    channels: usize,
    /// The first window's places; null: all of them.
    place: *const u8,
}

/// `n` windows; `dst`: the result at the first window, `a`: gradients, `b`: a [`Spread`]. Writes the windows only.
struct UnpoolRow<C>(PhantomData<C>);
impl<C: Cell<Lane = f32>> Tile for UnpoolRow<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says; the parts of the result are apart from each other.
        unsafe {
            let r = &*b.cast::<Spread>();
            let [height, width] = r.at.window;
            for i in 0..n {
                let dy = lanes::<C>(a.cast::<C>().add(i * r.channels).cast(), r.channels);
                let x = dst.cast::<C>().add(i * r.at.strides[1] * r.channels);
                for number in 0..height * width {
                    let at = number / width * r.line + number % width * r.channels;
                    let x = lanes_mut(x.add(at).cast(), r.channels);
                    if r.place.is_null() {
                        put_all(x, dy);
                    } else {
                        put_chosen(x, dy, lanes(r.place.add(i * r.channels), r.channels), number as u8);
                    }
                }
            }
        }
    }
}

/// One element of the window. The sum with zero is what `select_and_scatter` computes: it has no −0.
#[inline(always)]
fn put_chosen<C: Cell<Lane = f32>>(x: &mut [C], dy: &[C], place: &[u8], number: u8) {
    for ((x, dy), place) in x.iter_mut().zip(dy).zip(place) {
        *x = C::store(if *place == number { 0.0 + dy.load() } else { 0.0 });
    }
}

/// As [`put_chosen`] for every place: the sum of one gradient and zeros.
#[inline(always)]
fn put_all<C: Cell<Lane = f32>>(x: &mut [C], dy: &[C]) {
    for (x, dy) in x.iter_mut().zip(dy) {
        *x = C::store(0.0 + dy.load());
    }
}

/// The derivative of pooling as an array.
struct UnpoolKernel {
    images: Images,
    at: Unpool,
    tile: TileFn,
}

/// The kernel of an unpooling; `None` for types that have no path here.
pub fn bind_unpool(at: &Unpool, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    Some(Box::new(UnpoolKernel::new(at, step, level)?))
}

impl UnpoolKernel {
    fn new(at: &Unpool, step: &Step, level: Level) -> Option<UnpoolKernel> {
        let full = &step.output_types[0];
        let tile = match full.dtype {
            DType::F32 => level.tile::<UnpoolRow<f32>>(),
            DType::BF16 => level.tile::<UnpoolRow<Bf16>>(),
            _ => return None,
        };
        Some(UnpoolKernel { images: Images::new(full, &step.input_types[0]), at: *at, tile })
    }

    /// Zeros in what the windows of a row leave out of the rows that it is responsible for.
    unsafe fn fill_gaps(&self, image: *mut u8, row: usize) {
        let m = &self.images;
        let line = m.full[1] * m.channels * m.size;
        let end = if row + 1 == m.pooled[0] { m.full[0] } else { (row + 1) * self.at.strides[0] };
        let covered = row * self.at.strides[0] + self.at.window[0];
        let seen = m.pooled[1] * self.at.strides[1] * m.channels * m.size;
        for y in row * self.at.strides[0]..end {
            // SAFETY: the rows belong to this call.
            unsafe {
                let start = image.add(y * line);
                if y >= covered || self.at.window[1] < self.at.strides[1] {
                    start.write_bytes(0, line);
                } else {
                    start.add(seen.min(line)).write_bytes(0, line.saturating_sub(seen));
                }
            }
        }
    }
}

impl Kernel for UnpoolKernel {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let m = &self.images;
        let (dy, dx) = (Ptr::of(io.inputs[0]), Ptr(io.outputs[0]));
        let place = io.inputs.get(1).map(|&p| Ptr::of(p));
        let line = m.full[1] * m.channels;
        m.each_row(cx, 0.2, |image, row| {
            let from = (image * m.pooled[0] + row) * m.pooled[1] * m.channels;
            let start = dx.at(image * m.full[0] * line * m.size);
            let r = Spread {
                at: self.at,
                line,
                channels: m.channels,
                place: place.map_or(std::ptr::null(), |p| p.at(from).cast_const()),
            };
            // SAFETY: rows of the result belong to one row of the gradients each.
            unsafe {
                self.fill_gaps(start, row);
                let dst = start.add(row * self.at.strides[0] * line * m.size);
                let dy = dy.at(from * m.size).cast_const();
                (self.tile)(dst, dy, (&raw const r).cast(), dy, m.pooled[1]);
            }
        });
        Ok(())
    }
}
