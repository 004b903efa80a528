//! Convolution with fused max pooling for bf16 on AMX ([`pooled`]), optionally followed by a product with few columns.
//!
//! Padding is multiplied as zeros, which must contribute zero. So if sums might not be finite, the vector kernel
//! [`VectorConvPool`] runs instead. Accumulators start with the bias, so each result is rounded once, after bias and
//! pooling.

use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::conv_pool::finite_bounds::{MagnitudeBounds, MaxMagnitudeBf16};
use crate::kernels::conv_pool::forward::VectorConvPool;
use crate::kernels::conv_pool::pooled_convolution::{NO_PRODUCT, PooledConvolution};
use crate::machine::thread_pool::inside;
use crate::select::SelectResult;
use crate::simd::amx::LANES;
use crate::simd::amx::fused::{FusedAmxKernels, WIDTH, few_columns, fused_of, pooled};
use crate::simd::level::TileFn;
use crate::simd::math;
use systole_compile::{MaxPoolArgmax, Relu};
use systole_ir::{DType, Result};

/// Elements of a group that SIMD code interleaves; see [`FusedAmxKernels::groups`].
const FOUR: usize = 4;
/// Approximate number of images per task of the parallel loop.
const IMAGES: usize = 16;

/// Packed operands, shared by all tasks.
#[derive(Clone, Copy)]
struct PackedConvPool {
    bounds: MagnitudeBounds,
    kernel: *const u8,
    bias: *const f32,
    right: *const u8,
}

// SAFETY: threads only read through the pointers, while `run` waits for them.
unsafe impl Sync for PackedConvPool {}

/// AMX kernel of a pooled convolution. Inputs and results are those of [`PooledConvolution`].
pub struct AmxConvPool {
    fused: &'static FusedAmxKernels,
    /// Vector kernel for operands whose sums might not be finite.
    general: VectorConvPool,
    batch: usize,
    /// Height, width and channels of an image.
    image: [usize; 3],
    /// Height and width of the kernel.
    kernel: [usize; 2],
    /// Padding above and to the left.
    low: [usize; 2],
    strides: [usize; 2],
    /// Row dilation of the kernel. Its columns have no dilation.
    dilation: usize,
    /// Elements of a group, which is the input of one kernel column: kernel height × channels, rounded up to a pair.
    group: usize,
    /// Elements of a row of groups, including those after it that tile loads may read.
    line: usize,
    pool: MaxPoolArgmax,
    /// Height and width of the result.
    pooled: [usize; 2],
    features: usize,
    bias: bool,
    /// Columns of the product, and whether it has a bias; `None` without a product.
    product: Option<(usize, bool)>,
    magnitude: TileFn,
}

impl AmxConvPool {
    /// Creates the AMX kernel of a pooled convolution and its vector fallback.
    pub fn new(p: &PooledConvolution<'_>) -> SelectResult<AmxConvPool> {
        let &PooledConvolution { c, pool, inputs, of_product, y, target, .. } = p;
        let (x, k, level) = (&inputs[0], &inputs[1], target.level.vectors());
        let fused = fused_of(target.level).ok_or("this machine has no AMX tile registers")?;
        if !target.excess_precision {
            return Err("needs excess precision: this kernel rounds only once, after bias and maximum".into());
        }
        if x.dtype != DType::BF16 || pool.window != [2, 2] {
            return Err("not bf16 with 2×2 windows: the four pixels of a window are four tiles".into());
        }
        let dense = c.lhs_dilation.iter().all(|&d| d == 1) && c.rhs_dilation[1] == 1;
        if !dense || c.padding.iter().flatten().any(|&p| p < 0) {
            return Err("the input is dilated, the kernel is dilated along rows, or the padding crops".into());
        }
        if !of_product.is_empty() && !(y.elements() / y.shape[0]).is_multiple_of(few_columns::BLOCK) {
            return Err(NO_PRODUCT.into());
        }
        let general = VectorConvPool::any(p)?;
        let (group, low) = ((k.shape[0] * x.shape[3]).next_multiple_of(2), [0, 1].map(|i| c.padding[i][0]));
        let width = (low[1] + c.padding[1][1]) as usize + x.shape[2];
        Ok(AmxConvPool {
            fused,
            general,
            batch: x.shape[0],
            image: [x.shape[1], x.shape[2], x.shape[3]],
            kernel: [k.shape[0], k.shape[1]],
            low: low.map(|p| p as usize),
            strides: [c.strides[0], c.strides[1]],
            dilation: c.rhs_dilation[0],
            group,
            line: (width * group + pooled::BLOCK).next_multiple_of(LANES),
            pool: pool.clone(),
            pooled: [y.shape[1], y.shape[2]],
            features: y.shape[3],
            bias: inputs.len() > 2,
            product: of_product.first().map(|right| (right.shape[0], of_product.len() > 1)),
            magnitude: level.tile::<MaxMagnitudeBf16>(),
        })
    }

    /// Returns K of the convolution as a GEMM: multiply-adds per pixel and feature, including the padding of groups.
    fn products(&self) -> usize {
        self.group * self.kernel[1]
    }

    /// Number of maxima of an image.
    fn row(&self) -> usize {
        self.pooled[0] * self.pooled[1] * self.features
    }

    /// Bytes of the packed bounds, kernel, bias and right operand of the product.
    fn packed_bytes(&self) -> [usize; 4] {
        let right = if self.product.is_some() { few_columns::packed_bytes(self.row()) } else { 0 };
        let kernel = pooled::packed_bytes(self.products(), self.features);
        [size_of::<MagnitudeBounds>(), kernel, self.features.next_multiple_of(WIDTH) * 4, right]
    }

    /// Packs bounds, kernel, bias and the product's right operand.
    unsafe fn pack(&self, inputs: &[*const u8], to: *mut u8) {
        let [bounds, kernel, bias, _] = self.packed_bytes();
        let (f, lines, channels) = (self.features, self.kernel[0], self.image[2]);
        let k = inputs[1].cast::<u16>();
        // SAFETY: operands have the shapes of `new`; `to` has room for all packed operands.
        unsafe {
            let at = |product: usize, feature: usize| {
                let (column, row) = (product / self.group, product % self.group);
                let (line, channel) = (row / channels, row % channels);
                let tap = (line * self.kernel[1] + column) * channels + channel;
                if line < lines { *k.add(tap * f + feature) } else { 0 }
            };
            pooled::pack(self.products(), f, at, to.add(bounds));
            let sums = to.add(bounds + kernel).cast::<f32>();
            sums.write_bytes(0, bias / 4);
            let mut offset = 0f32;
            if self.bias {
                let given = inputs[2].cast::<u16>();
                (0..f).for_each(|j| *sums.add(j) = math::from_bf16(*given.add(j)));
                offset = self.magnitude(given, f);
            }
            let taps = lines * self.kernel[1] * channels;
            let gain = self.magnitude(k, taps * f) * taps as f32;
            to.cast::<MagnitudeBounds>().write(MagnitudeBounds { gain, offset });
            if let Some((columns, _)) = self.product {
                let right = inputs[2 + usize::from(self.bias)].cast();
                few_columns::pack(right, columns, self.row(), to.add(bounds + kernel + bias));
            }
        }
    }

    unsafe fn magnitude(&self, x: *const u16, n: usize) -> f32 {
        let (mut most, x) = (0f32, x.cast());
        // SAFETY: `x` has `n` elements, by the caller's promise.
        unsafe { (self.magnitude)((&raw mut most).cast(), x, x, x, n) };
        most
    }

    /// Returns the packed operands that [`AmxConvPool::pack`] wrote.
    unsafe fn packed(&self, p: *const u8) -> PackedConvPool {
        let [bounds, kernel, bias, _] = self.packed_bytes();
        let at = |bytes: usize| p.wrapping_add(bytes);
        let right = at(bounds + kernel + bias);
        // SAFETY: `pack` has written the bounds at the start.
        let given = unsafe { *p.cast::<MagnitudeBounds>() };
        PackedConvPool { bounds: given, kernel: at(bounds), bias: at(bounds + kernel).cast(), right }
    }

    /// Writes the row of groups for row `y` of the convolution's result. Left and right padding is not written.
    unsafe fn groups(&self, image: *const u16, y: usize, zeros: *const u16, to: *mut u16) {
        let [height, width, channels] = self.image;
        let of = |i: usize| {
            let line = (y * self.strides[0] + i * self.dilation).wrapping_sub(self.low[0]);
            if i < self.kernel[0] && line < height {
                image.wrapping_add(line * width * channels)
            } else {
                zeros
            }
        };
        let to = to.wrapping_add(self.low[1] * self.group);
        // SAFETY: rows of the image and of zeros have its width; the row of groups has room for them.
        unsafe {
            if channels == 1 && self.group == FOUR {
                let lines: [*const u16; FOUR] = std::array::from_fn(of);
                return (self.fused.groups)(lines, width, to);
            }
            for i in 0..self.kernel[0] {
                let (line, to) = (of(i), to.add(i * channels));
                for x in 0..width {
                    std::ptr::copy_nonoverlapping(line.add(x * channels), to.add(x * self.group), channels);
                }
            }
        }
    }

    /// Bytes of a task's scratch: two rows of groups, a row of zeros, and the sums of the product.
    fn task_bytes(&self, images: usize) -> [usize; 3] {
        let zeros = self.image[1] * self.image[2];
        let sums = if self.product.is_some() { images * LANES * 4 } else { 0 };
        [2 * self.line * 2, zeros * 2, sums].map(|bytes| bytes.next_multiple_of(64))
    }

    /// Computes a range of images.
    unsafe fn images(&self, images: std::ops::Range<usize>, packed: &PackedConvPool, io: &ConvPoolArrays) {
        let [lines, zeros, sums] = self.task_bytes(images.len());
        let row = self.row();
        with_scratch(lines + zeros + sums, |memory| {
            let nothing = memory.wrapping_add(lines).cast_const().cast::<u16>();
            let at = |i: usize| memory.cast::<u16>().wrapping_add(i * self.line);
            let from = at(0).cast_const();
            let k = self.products();
            // SAFETY: operands have the shapes of `new`; scratch has room for each part; tasks have disjoint images.
            unsafe {
                memory.write_bytes(0, lines + zeros);
                let registers = self.fused.configure(pooled::shapes(self.pooled[1], k));
                for image in images.clone() {
                    let x = io.x.elem::<u16>(image * self.image.iter().product::<usize>());
                    for r in 0..self.pooled[0] {
                        let y = r * self.pool.strides[0];
                        self.groups(x, y, nothing, at(0));
                        self.groups(x, y + 1, nothing, at(1));
                        let out = image * row + r * self.pooled[1] * self.features;
                        let right = self.strides[1] * self.group;
                        (self.fused.pooled)(&pooled::PooledConvRow {
                            lines: [from, from.add(self.line)],
                            right,
                            step: right * self.pool.strides[1],
                            windows: self.pooled[1],
                            k,
                            kernel: packed.kernel,
                            bias: packed.bias,
                            features: self.features,
                            relu: self.pool.relu != Relu::None,
                            y: io.y.elem(out),
                            argmax: io.argmax.map_or(std::ptr::null_mut(), |p| p.at(out)),
                        });
                    }
                }
                drop(registers);
                let Some((columns, _)) = self.product else { return };
                let c = memory.add(lines + zeros).cast::<f32>();
                let registers = self.fused.configure(few_columns::shapes(images.len()));
                let a = io.y.elem::<u16>(images.start * row).cast_const();
                (self.fused.few_columns)(&few_columns::TileColumnsArgs {
                    rows: images.len(),
                    k: row,
                    a,
                    a_row: row,
                    b: packed.right,
                    c,
                });
                drop(registers);
                for (i, image) in images.enumerate() {
                    for j in 0..columns {
                        let bias = io.shift.map_or(0.0, |b| math::from_bf16(*b.elem::<u16>(j)));
                        *io.out.elem::<u16>(image * columns + j) =
                            math::to_bf16(*c.add(i * LANES + j) + bias);
                    }
                }
            }
        });
    }
}

/// Arrays of one call. `shift`: bias of the product; `out`: result of the product.
struct ConvPoolArrays {
    x: Ptr,
    y: Ptr,
    argmax: Option<Ptr>,
    shift: Option<Ptr>,
    out: Ptr,
}

impl Kernel for AmxConvPool {
    fn scratch(&self) -> usize {
        self.general.scratch().max(self.packed_bytes().iter().sum())
    }

    fn kept(&self, same: &[bool]) -> usize {
        // All inputs must be the same except the image batch and the product's bias, which is not packed.
        let packed = 1..2 + usize::from(self.bias) + usize::from(self.product.is_some());
        if same[packed].iter().all(|&s| s) { self.packed_bytes().iter().sum() } else { 0 }
    }

    unsafe fn keep(&self, _: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.pack(inputs, kept) };
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch has room for the packed operands; operands are those of the step.
        unsafe {
            self.pack(io.inputs, io.scratch);
            self.run_kept(cx, io, io.scratch)
        }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise.
        let packed = unsafe { self.packed(kept) };
        let elements = self.batch * self.image.iter().product::<usize>();
        // SAFETY: the input has `elements` elements.
        let most = unsafe { self.magnitude(io.inputs[0].cast(), elements) };
        let finite = packed.bounds.keep_finite(most);
        if !finite {
            // SAFETY: by the caller's promise. It may overwrite the packed operands in scratch, which are no longer
            // used.
            return unsafe { self.general.run(cx, io) };
        }
        let product = usize::from(self.product.is_some());
        let pooled = &io.outputs[..io.outputs.len() - product];
        let images = ConvPoolArrays {
            x: Ptr::of(io.inputs[0]),
            y: Ptr(pooled[0]),
            argmax: pooled.get(1).map(|&p| Ptr(p)),
            shift: self.product.filter(|p| p.1).map(|_| Ptr::of(io.inputs[io.inputs.len() - 1])),
            out: Ptr(io.outputs[io.outputs.len() - 1]),
        };
        // Inside a parallel loop this thread computes all images; otherwise the images are split among all threads.
        let tasks = if inside() { 1 } else { self.batch.div_ceil(IMAGES) };
        let body = |task: usize| {
            let of_task = self.batch * task / tasks..self.batch * (task + 1) / tasks;
            // SAFETY: tasks have disjoint images.
            unsafe { self.images(of_task, &packed, &images) };
        };
        let work = (self.batch * self.row() * self.products()) as f64 / 100.0;
        cx.team.run_with(tasks, work, cx.flush, &body);
        Ok(())
    }
}
