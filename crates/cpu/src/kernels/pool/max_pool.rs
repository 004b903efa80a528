//! Max pooling that stores the argmax of each window, and the gradient of pooling, vectorized over channels.
//!
//! Windows do not overlap and are inside the image. Maxima are those of `reduce_window` by `maximum`, argmax is that of
//! `select_and_scatter` by `ge`, also for NaN, ties and zeros of both signs.

use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::{lanes, lanes_mut};
use crate::simd::pool_row::{PoolRowArgs, pool_row};
use crate::simd::stored_elements::{Bf16Bits, F16Bits, StoredElement};
use std::marker::PhantomData;
use systole_compile::{MaxPoolArgmax, Step, Unpool};
use systole_ir::{DType, Result};

/// Minimum operand elements of one block of a parallel loop.
const BLOCK: usize = 1 << 14;

/// Sizes of images before and after pooling, and the parallel loop over their rows.
struct PoolSizes {
    batch: usize,
    /// Height and width before pooling.
    full: [usize; 2],
    /// Height and width after pooling.
    pooled: [usize; 2],
    channels: usize,
    /// Bytes of an element.
    size: usize,
}

impl PoolSizes {
    fn new(full: &systole_ir::TensorType, pooled: &systole_ir::TensorType) -> PoolSizes {
        PoolSizes {
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

    /// Calls `f(image, row)` for every row of windows, in parallel. `ns_each`: nanoseconds per full-size element.
    fn each_row(&self, cx: &KernelContext<'_>, ns_each: f64, f: impl Fn(usize, usize) + Sync) {
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

/// Kernel of max pooling, which runs a [`PoolRowArgs`] for each row of windows.
pub struct PoolKernel {
    images: PoolSizes,
    pool: MaxPoolArgmax,
    tile: TileFn,
}

impl PoolKernel {
    /// Creates a max-pooling kernel. `None` for unsupported element types.
    pub fn new(pool: &MaxPoolArgmax, step: &Step, level: Level) -> Option<PoolKernel> {
        let y = &step.output_types[0];
        let tile = pool_row(pool.operand.dtype, y.dtype, level)?;
        Some(PoolKernel { images: PoolSizes::new(&pool.operand, y), pool: pool.clone(), tile })
    }
}

impl Kernel for PoolKernel {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let m = &self.images;
        let (x, y) = (Ptr::of(io.inputs[0]), Ptr(io.outputs[0]));
        let argmax = io.outputs.get(1).map(|&p| Ptr(p));
        let line = m.full[1] * m.channels;
        m.each_row(cx, 0.2, |image, row| {
            let from = (image * m.full[0] + row * self.pool.strides[0]) * line;
            let to = (image * m.pooled[0] + row) * m.pooled[1] * m.channels;
            let r = PoolRowArgs {
                window: self.pool.window,
                step: self.pool.strides[1] * m.channels,
                line,
                channels: m.channels,
                relu: self.pool.relu,
                argmax: argmax.map_or(std::ptr::null_mut(), |p| p.at(to)),
            };
            let (dst, x) = (y.at(to * m.size), x.at(from * m.size).cast_const());
            // SAFETY: windows are inside the image; calls have disjoint rows of the results.
            unsafe { (self.tile)(dst, x, (&raw const r).cast(), x, m.pooled[1]) };
        });
        Ok(())
    }
}

/// Arguments of [`UnpoolRow`].
struct UnpoolArgs {
    at: Unpool,
    /// Elements between rows of the result.
    line: usize,
    channels: usize,
    /// Argmax of the first window. Null: the gradient goes to every element of the window (average pooling).
    argmax: *const u8,
}

/// Computes the gradient of `n` adjacent windows.
///
/// `dst`: the result at the first window, `a`: the pooled gradient, `b`: an [`UnpoolArgs`]. Writes elements of the
/// windows only, not those between them.
struct UnpoolRow<C>(PhantomData<C>);
impl<C: StoredElement<Lane = f32>> TileLoop for UnpoolRow<C> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
        // SAFETY: the caller's arrays are as documented on the type; elements of a window do not overlap.
        unsafe {
            let r = &*b.cast::<UnpoolArgs>();
            let [height, width] = r.at.window;
            for i in 0..n {
                let dy = lanes::<C>(a.cast::<C>().add(i * r.channels).cast(), r.channels);
                let x = dst.cast::<C>().add(i * r.at.strides[1] * r.channels);
                for number in 0..height * width {
                    let at = number / width * r.line + number % width * r.channels;
                    let x = lanes_mut(x.add(at).cast(), r.channels);
                    if r.argmax.is_null() {
                        put_all(x, dy);
                    } else {
                        put_chosen(x, dy, lanes(r.argmax.add(i * r.channels), r.channels), number as u8);
                    }
                }
            }
        }
    }
}

/// Writes the channels of one window element: the gradient if it is the argmax, otherwise 0. `select_and_scatter` adds
/// to 0, which turns −0 into 0: so does this.
#[inline(always)]
fn put_chosen<C: StoredElement<Lane = f32>>(x: &mut [C], dy: &[C], argmax: &[u8], number: u8) {
    for ((x, dy), argmax) in x.iter_mut().zip(dy).zip(argmax) {
        *x = if *argmax == number { dy.unsigned_zero() } else { C::store(0.0) };
    }
}

/// Writes the channels of one window element if every element has the gradient. It is added to 0, as in
/// [`put_chosen`].
#[inline(always)]
fn put_all<C: StoredElement<Lane = f32>>(x: &mut [C], dy: &[C]) {
    for (x, dy) in x.iter_mut().zip(dy) {
        *x = dy.unsigned_zero();
    }
}

/// Kernel of the input gradient of pooling.
pub struct UnpoolKernel {
    images: PoolSizes,
    at: Unpool,
    tile: TileFn,
}

impl UnpoolKernel {
    /// Creates the kernel of the max pooling gradient. `None` for elements other than f32, bf16 or f16.
    pub fn new(at: &Unpool, step: &Step, level: Level) -> Option<UnpoolKernel> {
        let full = &step.output_types[0];
        let tile = match full.dtype {
            DType::F32 => level.tile::<UnpoolRow<f32>>(),
            DType::BF16 => level.tile::<UnpoolRow<Bf16Bits>>(),
            DType::F16 => level.tile::<UnpoolRow<F16Bits>>(),
            _ => return None,
        };
        Some(UnpoolKernel { images: PoolSizes::new(full, &step.input_types[0]), at: *at, tile })
    }

    /// Writes zeros to elements that no window covers, in the rows from this row of windows to the next one. Covered
    /// elements may be zeroed as well: they are written afterwards.
    unsafe fn fill_gaps(&self, image: *mut u8, row: usize) {
        let m = &self.images;
        let line = m.full[1] * m.channels * m.size;
        let end = if row + 1 == m.pooled[0] { m.full[0] } else { (row + 1) * self.at.strides[0] };
        let covered = row * self.at.strides[0] + self.at.window[0];
        let seen = m.pooled[1] * self.at.strides[1] * m.channels * m.size;
        for y in row * self.at.strides[0]..end {
            // SAFETY: rows inside the image, which no other call writes.
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
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let m = &self.images;
        let (dy, dx) = (Ptr::of(io.inputs[0]), Ptr(io.outputs[0]));
        let argmax = io.inputs.get(1).map(|&p| Ptr::of(p));
        let line = m.full[1] * m.channels;
        m.each_row(cx, 0.2, |image, row| {
            let from = (image * m.pooled[0] + row) * m.pooled[1] * m.channels;
            let start = dx.at(image * m.full[0] * line * m.size);
            let r = UnpoolArgs {
                at: self.at,
                line,
                channels: m.channels,
                argmax: argmax.map_or(std::ptr::null(), |p| p.at(from).cast_const()),
            };
            // SAFETY: windows do not overlap, so only one row of windows writes each row of the result.
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
