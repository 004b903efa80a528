//! Depthwise convolution (one filter per channel, feature groups = channels), forward and both gradients.
//!
//! As autodiff makes them, the gradient w.r.t. the input is a depthwise convolution again, and the one w.r.t. the
//! filter a convolution with batch groups. All three are sums of element-wise products of rows of channels. Layouts
//! are channels-last, and each channel has exactly one filter.

use crate::kernel::Cx;
use crate::kernel::convolution::is_channels_last;
use crate::kernel::padded::{Padded, offsets};
use crate::kernel::partial_sums::{Finish, sum_parts};
use crate::kernel::{Io, Kernel, Ptr};
use crate::select::Refusal;
use crate::simd::level::{Isa, Level, Tile, TileFn};
use crate::simd::math;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// One result row, for [`ProductLoop`]: `out (+)= Σᵢ a[left[i]] · b[i · step] + bias`, element-wise along the
/// channels; `bias` may be null.
struct Rows {
    a: *const f32,
    left: *const usize,
    b: *const f32,
    step: usize,
    count: usize,
    out: *mut f32,
    bias: *const f32,
    add: bool,
}

struct ProductLoop;

/// Channels whose accumulators stay in registers during the sum.
const WIDE: usize = 32;

impl Tile for ProductLoop {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: `a` is a `Rows` whose rows have `n` channels.
        unsafe {
            let r = &*a.cast::<Rows>();
            let mut from = 0;
            while from + WIDE <= n {
                columns::<I, WIDE>(r, from);
                from += WIDE;
            }
            for c in from..n {
                columns::<I, 1>(r, c);
            }
        }
    }
}

#[inline(always)]
unsafe fn columns<I: Isa, const W: usize>(r: &Rows, from: usize) {
    // SAFETY: the rows have `W` channels from `from` on.
    unsafe {
        let mut acc = [0f32; W];
        for i in 0..r.count {
            let x = &*r.a.add(*r.left.add(i) + from).cast::<[f32; W]>();
            let k = &*r.b.add(i * r.step + from).cast::<[f32; W]>();
            for ((acc, x), k) in acc.iter_mut().zip(x).zip(k) {
                *acc = math::mul_add::<I>(*x, *k, *acc);
            }
        }
        let out = &mut *r.out.add(from).cast::<[f32; W]>();
        for (i, (out, acc)) in out.iter_mut().zip(&acc).enumerate() {
            let before = if r.add { *out } else { 0.0 };
            let bias = if r.bias.is_null() { 0.0 } else { *r.bias.add(from + i) };
            *out = before + *acc + bias;
        }
    }
}

/// `x: f32[B, …, C]`, one filter per channel → `y: f32[B, …', C]`.
pub struct Forward {
    input: Padded,
    /// Offsets of output pixels, and of filter taps, in the padded input.
    pixel: Vec<usize>,
    tap: Vec<usize>,
    batch: usize,
    channels: usize,
    product: TileFn,
    bias: bool,
}

/// Gradient w.r.t. the filter: `x: f32[B, …, C], dy: f32[B, …', C] → f32[…, 1, C]`.
pub struct KernelGradient {
    input: Padded,
    /// Offsets of the pixels of `dy`, and of filter taps, in the padded input.
    pixel: Vec<usize>,
    tap: Vec<usize>,
    batch: usize,
    channels: usize,
    images_per_part: usize,
    product: TileFn,
}

/// Most partial sums of a gradient w.r.t. the filter.
const MOST_PARTS: usize = 32;

/// The padded input that both kernels need, and its channels.
fn prepare(c: &Convolution, types: [&TensorType; 3]) -> std::result::Result<(Padded, usize), Refusal> {
    let [x, _, y] = types;
    if [x.dtype, y.dtype] != [DType::F32; 2] || types.iter().any(|t| t.elements() == 0) {
        return Err("its elements are not f32, or there are none".into());
    }
    if c.reversal.iter().any(|&r| r) {
        return Err("its kernel is reversed".into());
    }
    let input = Padded::new(x, &c.padding, &c.lhs_dilation).ok_or("its padding crops more than there is")?;
    Ok((input, x.shape[x.rank() - 1]))
}

/// Offsets in the padded input along its spatial dimensions.
fn along(input: &Padded, sizes: &[usize], steps: &[usize]) -> Vec<usize> {
    offsets(sizes.iter().zip(steps).zip(&input.strides).map(|((&size, step), stride)| (size, stride * step)))
}

impl Forward {
    pub fn new(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        level: Level,
    ) -> std::result::Result<Forward, Refusal> {
        let ([x, k, y], d, n) = (types, &c.dims, c.dims.input_spatial.len());
        let (input, channels) = prepare(c, types)?;
        let fits = c.feature_groups == channels
            && c.feature_groups == y.shape[n + 1]
            && is_channels_last(d.input_batch, d.input_feature, &d.input_spatial)
            && is_channels_last(d.output_batch, d.output_feature, &d.output_spatial)
            // Filters are [taps, C], whichever of the two feature dimensions has the channels.
            && d.kernel_spatial.iter().copied().eq(0..n);
        if !fits {
            return Err("it is not depthwise: one filter for each channel".into());
        }
        Ok(Forward {
            pixel: along(&input, &y.shape[1..=n], &c.strides),
            tap: along(&input, &k.shape[..n], &c.rhs_dilation),
            input,
            batch: x.shape[0],
            channels,
            product: level.tile::<ProductLoop>(),
            bias,
        })
    }
}

impl KernelGradient {
    pub fn new(
        c: &Convolution,
        types: [&TensorType; 3],
        level: Level,
    ) -> std::result::Result<KernelGradient, Refusal> {
        let ([x, k, y], d, n) = (types, &c.dims, c.dims.input_spatial.len());
        let (input, channels) = prepare(c, types)?;
        let fits = c.batch_groups == channels
            && k.shape[n + 1] == channels
            && is_channels_last(d.input_feature, d.input_batch, &d.input_spatial)
            && is_channels_last(d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial)
            && d.output_spatial.iter().copied().eq(0..n);
        if !fits {
            return Err("it is no gradient of depthwise filters".into());
        }
        let batch = x.shape[0];
        Ok(KernelGradient {
            tap: along(&input, &y.shape[..n], &c.strides),
            pixel: along(&input, &k.shape[1..=n], &c.rhs_dilation),
            input,
            batch,
            channels,
            images_per_part: batch.div_ceil(MOST_PARTS),
            product: level.tile::<ProductLoop>(),
        })
    }
}

impl Kernel for Forward {
    fn scratch(&self) -> usize {
        self.input.bytes()
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        const PIXELS: usize = 64;
        // SAFETY: scratch is the padded input's; operands have the shapes of `new`.
        let x = unsafe { self.input.prepare(cx, io.inputs[0], io.scratch) };
        let (xp, kp, yp) = (Ptr::of(x.cast()), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let (pixels, channels) = (self.pixel.len(), self.channels);
        let strips = pixels.div_ceil(PIXELS);
        let body = |task: usize| {
            let (image, from) = (task / strips, task % strips * PIXELS);
            for p in from..(from + PIXELS).min(pixels) {
                let rows = Rows {
                    a: xp.elem::<f32>(image * self.input.image + self.pixel[p]),
                    left: self.tap.as_ptr(),
                    b: kp.elem(0),
                    step: channels,
                    count: self.tap.len(),
                    out: yp.elem((image * pixels + p) * channels),
                    bias: bias.at(0).cast(),
                    add: false,
                };
                let a = (&raw const rows).cast::<u8>();
                // SAFETY: rows lie inside the padded input and the filter; tasks have their own pixels.
                unsafe { (self.product)(yp.at(0), a, a, a, channels) };
            }
        };
        let work = (self.batch * pixels * channels * self.tap.len()) as f64 * 0.15;
        cx.team.run_with(self.batch * strips, work, cx.flush, &body);
        Ok(())
    }
}

impl Kernel for KernelGradient {
    fn scratch(&self) -> usize {
        self.input.bytes() + self.batch.div_ceil(self.images_per_part) * self.tap.len() * self.channels * 4
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch begins with the padded input; operands have the shapes of `new`.
        let x = unsafe { self.input.prepare(cx, io.inputs[0], io.scratch) };
        let (xp, dyp) = (Ptr::of(x.cast()), Ptr::of(io.inputs[1]));
        let sums = Ptr(io.scratch.wrapping_add(self.input.bytes()));
        let (pixels, taps, channels) = (self.pixel.len(), self.tap.len(), self.channels);
        let parts = self.batch.div_ceil(self.images_per_part);
        let body = |part: usize| {
            let first = part * self.images_per_part;
            for image in first..(first + self.images_per_part).min(self.batch) {
                for (t, tap) in self.tap.iter().enumerate() {
                    let rows = Rows {
                        a: xp.elem::<f32>(image * self.input.image + tap),
                        left: self.pixel.as_ptr(),
                        b: dyp.elem(image * pixels * channels),
                        step: channels,
                        count: pixels,
                        out: sums.elem((part * taps + t) * channels),
                        bias: std::ptr::null(),
                        add: image > first,
                    };
                    let a = (&raw const rows).cast::<u8>();
                    // SAFETY: rows lie inside the padded input and `dy`; parts have their own sums.
                    unsafe { (self.product)(sums.at(0), a, a, a, channels) };
                }
            }
        };
        let work = (self.batch * pixels * channels * taps) as f64 * 0.15;
        cx.team.run_with(parts, work, cx.flush, &body);
        // SAFETY: the partial sums and the result have that many elements.
        unsafe { sum_parts(cx, sums.elem(0), parts, taps * channels, io.outputs[0], Finish::Copy) };
        Ok(())
    }
}
