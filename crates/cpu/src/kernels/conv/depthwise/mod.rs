//! Depthwise convolution (one filter per channel, feature groups = channels) and its input and filter gradients.
//!
//! In the form that autodiff creates, the input gradient is again a depthwise convolution, and the filter gradient is a
//! convolution with batch groups. All three are sums of element-wise products of rows of channels. Layouts are
//! channels-last, and each channel has exactly one filter.

mod padded_images;

use crate::kernel::convolution::is_channels_last;
use crate::kernel::padded_input::{PaddedConvInput, offsets};
use crate::kernel::partial_sums::{SumStore, sum_parts};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::kernels::conv::depthwise::padded_images::PaddedImages;
use crate::select::SelectResult;
use crate::simd::level::{CompileTarget, Level, TileFn, by_level};
use crate::simd::loops::{narrow, widen};
use crate::simd::vector::{Portable32, Vector};
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType, ensure};

/// Arguments of a microkernel: row `p` of `out` is `(+)= Σᵢ a[left[i] + at[p]] · b[i · channels] + bias`, element-wise
/// along the channels; `bias` may be null.
struct DepthwiseRowsArgs {
    channels: usize,
    a: *const f32,
    left: *const usize,
    count: usize,
    b: *const f32,
    at: *const usize,
    rows: usize,
    out: *mut f32,
    bias: *const f32,
    add: bool,
}

/// Rows whose sums stay in registers at the same time, so that `b` is read once for all of them: most networks have 3 ×
/// 3 filters.
const TOGETHER: usize = 9;

/// Computes all rows of the results.
///
/// # Safety
/// The CPU has the level of `V`; the rows are inside their arrays.
#[inline(always)]
unsafe fn all_rows<V: Vector<T = f32>>(r: &DepthwiseRowsArgs) {
    // SAFETY: by the caller's promise; lanes end with the channels.
    unsafe {
        let whole = r.channels / V::LANES * V::LANES;
        for c in (0..whole).step_by(V::LANES) {
            some_channels::<V, true>(r, c, V::LANES);
        }
        if whole < r.channels {
            some_channels::<V, false>(r, whole, r.channels - whole);
        }
    }
}

#[inline(always)]
unsafe fn some_channels<V: Vector<T = f32>, const WHOLE: bool>(
    r: &DepthwiseRowsArgs,
    c: usize,
    lanes: usize,
) {
    // SAFETY: as for `all_rows`.
    unsafe {
        let mut p = 0;
        while p + TOGETHER <= r.rows {
            sums::<V, TOGETHER, WHOLE>(r, p, c, lanes);
            p += TOGETHER;
        }
        while p + 3 <= r.rows {
            sums::<V, 3, WHOLE>(r, p, c, lanes);
            p += 3;
        }
        for p in p..r.rows {
            sums::<V, 1, WHOLE>(r, p, c, lanes);
        }
    }
}

/// Computes `P` rows of results starting at row `p`, for the `lanes` channels starting at `c`.
#[inline(always)]
unsafe fn sums<V: Vector<T = f32>, const P: usize, const WHOLE: bool>(
    r: &DepthwiseRowsArgs,
    p: usize,
    c: usize,
    lanes: usize,
) {
    // SAFETY: as for `all_rows`.
    unsafe {
        let load = |from: *const f32| if WHOLE { V::load(from) } else { V::load_part(from, lanes) };
        let at: [usize; P] = std::array::from_fn(|i| *r.at.add(p + i));
        let mut acc = [V::splat(0.0); P];
        for i in 0..r.count {
            let a = r.a.add(*r.left.add(i) + c);
            let b = load(r.b.add(i * r.channels + c));
            for (acc, at) in acc.iter_mut().zip(at) {
                *acc = load(a.add(at)).mul_add(b, *acc);
            }
        }
        let bias = if r.bias.is_null() { V::splat(0.0) } else { load(r.bias.add(c)) };
        for (i, acc) in acc.into_iter().enumerate() {
            let out = r.out.add((p + i) * r.channels + c);
            let before = if r.add { load(out) } else { V::splat(0.0) };
            let y = before.add(acc).add(bias);
            if WHOLE { y.store(out) } else { y.store_part(out, lanes) }
        }
    }
}

type DepthwiseRowsFn = unsafe fn(&DepthwiseRowsArgs);

macro_rules! levels {
    ($name:ident, $v:ty $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name(r: &DepthwiseRowsArgs) {
            // SAFETY: the caller's promises are those of `all_rows`.
            unsafe { all_rows::<$v>(r) }
        }
    };
}
levels!(portable, Portable32);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
#[cfg(target_arch = "x86_64")]
levels!(avx2, V8x32, "avx2,fma");
#[cfg(target_arch = "x86_64")]
levels!(avx512, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

fn rows_of(level: Level) -> DepthwiseRowsFn {
    by_level!(level, avx512, avx2, portable)
}

/// Depthwise convolution kernel: `x: f32|bf16|f16[B, …, C]`, one filter per channel → `y: [B, …', C]`.
pub struct DepthwiseForward {
    input: PaddedInput,
    /// Offsets of output pixels, and of filter taps, in the padded input.
    pixel: Vec<usize>,
    tap: Vec<usize>,
    batch: usize,
    channels: usize,
    product: DepthwiseRowsFn,
    bias: bool,
    /// Conversions of narrow types: of the filter to f32, and of the results.
    filter: Option<TileFn>,
    narrow: Option<TileFn>,
}

/// Depthwise filter gradient kernel: `x: f32|bf16|f16[B, …, C], dy: [B, …', C] → […, 1, C]`.
pub struct DepthwiseKernelGradient {
    input: PaddedImages,
    /// The output gradient, which has no padding.
    dy: PaddedImages,
    /// Offsets of the pixels of `dy`, and of filter taps, in the padded input.
    pixel: Vec<usize>,
    tap: Vec<usize>,
    batch: usize,
    channels: usize,
    images_per_part: usize,
    product: DepthwiseRowsFn,
    narrow: Option<TileFn>,
}

/// Padding of the input: of the whole batch by all threads, or per image by each task.
enum PaddedInput {
    Whole(PaddedConvInput),
    Images(PaddedImages),
}

/// Minimum number of images for tasks that compute whole images.
const MANY: usize = 8;
/// Maximum number of tasks in that case.
const TASKS: usize = 16;
/// Maximum number of partial sums of a filter gradient.
const MOST_PARTS: usize = 32;
/// Pixels per call of the microkernel.
const PIXELS: usize = 64;

const REVERSED: &str = "its kernel is reversed";
const CROPS: &str = "its padding crops more elements than there are";

/// Returns offsets in the padded input along its spatial dimensions.
fn along(strides: &[usize], sizes: &[usize], steps: &[usize]) -> Vec<usize> {
    offsets(sizes.iter().zip(steps).zip(strides).map(|((&size, step), stride)| (size, stride * step)))
}

impl DepthwiseForward {
    /// Creates the kernel, or returns why it does not support the convolution.
    pub fn new(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<DepthwiseForward> {
        let level = target.level.vectors();
        ensure!(!c.reversal.iter().any(|&r| r), REVERSED.into());
        let ([x, k, y], d, n) = (types, &c.dims, c.dims.input_spatial.len());
        let (batch, channels) = (x.shape[0], x.shape[x.rank() - 1]);
        let fits = c.feature_groups == channels
            && c.feature_groups == y.shape[n + 1]
            && is_channels_last(d.input_batch, d.input_feature, &d.input_spatial)
            && is_channels_last(d.output_batch, d.output_feature, &d.output_spatial)
            // Filters are [taps, C]; either of the two feature dimensions may hold the channels.
            && d.kernel_spatial.iter().copied().eq(0..n);
        ensure!(fits, "it is not depthwise (one filter per channel)".into());
        let is_narrow = types.iter().any(|t| t.dtype != DType::F32);
        let input = if batch >= MANY && !(is_narrow && bias) {
            PaddedInput::Images(PaddedImages::new(x, &c.padding, &c.lhs_dilation, level).ok_or(CROPS)?)
        } else if is_narrow {
            return Err("narrow floats with few images, or with a bias that is added to rounded sums".into());
        } else {
            PaddedInput::Whole(PaddedConvInput::new(x, &c.padding, &c.lhs_dilation).ok_or(CROPS)?)
        };
        let strides = match &input {
            PaddedInput::Whole(padded) => &padded.strides,
            PaddedInput::Images(images) => &images.strides,
        };
        Ok(DepthwiseForward {
            pixel: along(strides, &y.shape[1..=n], &c.strides),
            tap: along(strides, &k.shape[..n], &c.rhs_dilation),
            input,
            batch,
            channels,
            product: rows_of(level),
            bias,
            filter: widen(k.dtype, level),
            narrow: narrow(y.dtype, level),
        })
    }

    /// Returns the arguments for the pixels starting at `from` of an image at `a`.
    fn rows(
        &self,
        a: *const f32,
        b: *const f32,
        from: usize,
        out: *mut f32,
        bias: *const f32,
    ) -> DepthwiseRowsArgs {
        let own = &self.pixel[from..(from + PIXELS).min(self.pixel.len())];
        DepthwiseRowsArgs {
            channels: self.channels,
            a,
            left: self.tap.as_ptr(),
            count: self.tap.len(),
            b,
            at: own.as_ptr(),
            rows: own.len(),
            out,
            bias,
            add: false,
        }
    }

    /// Pads the whole input first, then computes all pixels.
    unsafe fn run_whole(&self, input: &PaddedConvInput, cx: &KernelContext<'_>, io: &Io<'_>) {
        // SAFETY: scratch is the padded input's; operands have the shapes of `new`.
        let x = unsafe { input.prepare(cx, io.inputs[0], io.scratch) };
        let (xp, kp, yp) = (Ptr::of(x.cast()), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let (pixels, channels) = (self.pixel.len(), self.channels);
        let strips = pixels.div_ceil(PIXELS);
        let body = |task: usize| {
            let (image, from) = (task / strips, task % strips * PIXELS);
            let out = yp.elem((image * pixels + from) * channels);
            let rows =
                self.rows(xp.elem::<f32>(image * input.image), kp.elem(0), from, out, bias.at(0).cast());
            // SAFETY: rows are inside the padded input and the filter; tasks have disjoint pixels.
            unsafe { (self.product)(&rows) };
        };
        cx.team.run_with(self.batch * strips, self.work(), cx.flush, &body);
    }

    /// Runs with tasks that pad and compute their images one after another.
    unsafe fn run_images(&self, input: &PaddedImages, cx: &KernelContext<'_>, io: &Io<'_>) {
        let (pixels, channels) = (self.pixel.len(), self.channels);
        let taps = self.tap.len() * channels;
        let mut k = io.inputs[1];
        if let Some(widen) = self.filter {
            // SAFETY: scratch starts with room for the filter.
            unsafe { widen(io.scratch, k, k, k, taps) };
            k = io.scratch;
        }
        let own = input.bytes() + self.strip();
        let scratch = Ptr(io.scratch.wrapping_add((taps * 4).next_multiple_of(64)));
        let (xp, kp, yp) = (Ptr::of(io.inputs[0]), Ptr::of(k), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let tasks = self.batch.min(TASKS);
        let body = |task: usize| {
            let padded = scratch.at(task * own).cast::<f32>();
            let strip = scratch.at(task * own + input.bytes());
            // SAFETY: tasks have disjoint images and disjoint parts of scratch, with room for a padded image and a
            // strip of results; rows are inside the image and the filter.
            unsafe {
                input.begin(padded);
                for image in task * self.batch / tasks..(task + 1) * self.batch / tasks {
                    let x = input.load(xp.at(0), image, padded);
                    for from in (0..pixels).step_by(PIXELS) {
                        let at = (image * pixels + from) * channels;
                        let out = if self.narrow.is_some() { strip.cast() } else { yp.elem::<f32>(at) };
                        let rows = self.rows(x, kp.elem(0), from, out, bias.at(0).cast());
                        (self.product)(&rows);
                        if let Some(narrow) = self.narrow {
                            narrow(yp.at(at * 2), strip, strip, strip, rows.rows * channels);
                        }
                    }
                }
            }
        };
        cx.team.run_with(tasks, self.work(), cx.flush, &body);
    }

    /// Bytes of the results of one call, if they are rounded afterwards.
    fn strip(&self) -> usize {
        if self.narrow.is_some() { (PIXELS * self.channels * 4).next_multiple_of(64) } else { 0 }
    }

    fn work(&self) -> f64 {
        (self.batch * self.pixel.len() * self.channels * self.tap.len()) as f64 * 0.15
    }
}

impl DepthwiseKernelGradient {
    /// Creates the kernel, or returns why it does not support the convolution.
    pub fn new(
        c: &Convolution,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<DepthwiseKernelGradient> {
        let level = target.level.vectors();
        ensure!(!c.reversal.iter().any(|&r| r), REVERSED.into());
        let ([x, k, y], d, n) = (types, &c.dims, c.dims.input_spatial.len());
        let (batch, channels) = (x.shape[0], x.shape[x.rank() - 1]);
        let fits = c.batch_groups == channels
            && k.shape[n + 1] == channels
            && is_channels_last(d.input_feature, d.input_batch, &d.input_spatial)
            && is_channels_last(d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial)
            && d.output_spatial.iter().copied().eq(0..n);
        ensure!(fits, "not a gradient of depthwise filters".into());
        let input = PaddedImages::new(x, &c.padding, &c.lhs_dilation, level).ok_or(CROPS)?;
        Ok(DepthwiseKernelGradient {
            tap: along(&input.strides, &y.shape[..n], &c.strides),
            pixel: along(&input.strides, &k.shape[1..=n], &c.rhs_dilation),
            input,
            dy: PaddedImages::new(k, &vec![[0; 2]; n], &vec![1; n], level).ok_or(CROPS)?,
            batch,
            channels,
            images_per_part: batch.div_ceil(MOST_PARTS),
            product: rows_of(level),
            narrow: narrow(y.dtype, level),
        })
    }

    /// Number of batch parts with separate sums.
    fn parts(&self) -> usize {
        self.batch.div_ceil(self.images_per_part)
    }

    /// Bytes of the sums of one part.
    fn sums(&self) -> usize {
        self.tap.len() * self.channels * 4
    }
}

impl Kernel for DepthwiseForward {
    fn scratch(&self) -> usize {
        match &self.input {
            PaddedInput::Whole(padded) => padded.bytes(),
            PaddedInput::Images(images) => {
                let filter = (self.tap.len() * self.channels * 4).next_multiple_of(64);
                filter + self.batch.min(TASKS) * (images.bytes() + self.strip())
            }
        }
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe {
            match &self.input {
                PaddedInput::Whole(padded) => self.run_whole(padded, cx, io),
                PaddedInput::Images(images) => self.run_images(images, cx, io),
            }
        }
        Ok(())
    }
}

impl Kernel for DepthwiseKernelGradient {
    fn scratch(&self) -> usize {
        let images = self.input.bytes() + self.dy.bytes();
        (self.parts() * self.sums()).next_multiple_of(64) + self.parts() * images
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let (xp, dyp, sums) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.scratch));
        let (parts, taps, channels) = (self.parts(), self.tap.len(), self.channels);
        let images = Ptr(io.scratch.wrapping_add((parts * self.sums()).next_multiple_of(64)));
        let own = self.input.bytes() + self.dy.bytes();
        let body = |part: usize| {
            let first = part * self.images_per_part;
            let padded = images.at(part * own).cast::<f32>();
            let wide = images.at(part * own + self.input.bytes()).cast::<f32>();
            // SAFETY: rows are inside the padded image and `dy`; parts have disjoint sums and images.
            unsafe {
                self.input.begin(padded);
                for image in first..(first + self.images_per_part).min(self.batch) {
                    let x = self.input.load(xp.at(0), image, padded);
                    let dy = self.dy.load(dyp.at(0), image, wide);
                    let rows = DepthwiseRowsArgs {
                        channels,
                        a: x,
                        left: self.pixel.as_ptr(),
                        count: self.pixel.len(),
                        b: dy,
                        at: self.tap.as_ptr(),
                        rows: taps,
                        out: sums.elem(part * taps * channels),
                        bias: std::ptr::null(),
                        add: image > first,
                    };
                    (self.product)(&rows);
                }
            }
        };
        let work = (self.batch * self.pixel.len() * channels * taps) as f64 * 0.15;
        cx.team.run_with(parts, work, cx.flush, &body);
        let finish = self.narrow.map_or(SumStore::Copy, SumStore::Narrow);
        // SAFETY: the partial sums and the result have that many elements.
        unsafe { sum_parts(cx, sums.elem(0), parts, taps * channels, io.outputs[0], finish) };
        Ok(())
    }
}
