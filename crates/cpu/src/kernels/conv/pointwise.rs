//! Convolutions that read one input element for each pixel: products `[pixels, C] · [C, F]` of matrices, and the
//! kernel's gradient `[C, pixels] · [pixels, F]`.
//!
//! Large ones are faster as such: both operands are packed once for all tiles, and threads share what is packed. Where a
//! forward pass has strides, the product copies the pixels that are read together first.

use crate::kernel::convolution::{is_channels_last, is_kernel_gradient};
use crate::kernel::copy::Dim;
use crate::kernel::product::{Epilogue, Roles};
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv::batch_statistics::Moments;
use crate::kernels::matmul::dot_general::DotKernel;
use crate::simd::level::{Target, TileFn};
use crate::simd::loops::widen;
use crate::simd::ranges::pieces;
use systole_compile::ALIGN;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// Elements of the kernel from which on a product pays: no second-level cache holds smaller blocks of it together with
/// a strip's pixels. Below, strips are faster: nothing but the kernel is copied.
const LARGE: usize = 256 << 10;
/// Channels and features from which on it pays for a kernel's gradient: of a small result, all time goes into copies.
const WIDE: usize = 128;
/// Pixels whose statistics are gathered together.
const PIXELS: usize = 384;

/// A convolution as a product.
pub struct Pointwise {
    product: DotKernel,
    statistics: Option<Statistics>,
}

impl Pointwise {
    /// `x: [B, …, C], kernel: [1, …, C, F] → [B, …', F]` in any order of the kernel's dimensions.
    pub fn forward(
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        target: Target,
    ) -> Option<Pointwise> {
        let (d, n) = (&c.dims, c.dims.input_spatial.len());
        let single = d.kernel_spatial.iter().all(|&s| k.shape[s] == 1);
        let fits = single
            && c.feature_groups == 1
            && c.batch_groups == 1
            && is_channels_last(d.input_batch, d.input_feature, &d.input_spatial)
            && is_channels_last(d.output_batch, d.output_feature, &d.output_spatial)
            && is_inside(c, x, &c.strides, &y.shape[1..=n]);
        let (channels, features) = (x.shape[n + 1], y.shape[n + 1]);
        let wide = channels.min(features) >= WIDE && channels * features >= LARGE;
        // Of narrow results sums are rounded before the bias, which products do not.
        if !fits || !wide || bias && y.dtype != DType::F32 {
            return None;
        }
        let own = k.shape.strides();
        let (channel, feature) = (own[d.kernel_input_feature], own[d.kernel_output_feature]);
        let ra = Roles {
            batch: Vec::new(),
            free: pixels(x, &c.strides, &y.shape[1..=n]),
            inner: vec![dim(channels, 1)],
        };
        let rb = Roles {
            batch: Vec::new(),
            free: vec![dim(features, feature)],
            inner: vec![dim(channels, channel)],
        };
        let epilogue = Epilogue { bias, accumulate: false };
        let product = DotKernel::product(&ra, &rb, [x.dtype, y.dtype], epilogue, target)?;
        Some(Pointwise { product, statistics: None })
    }

    /// `x: [B, …, C], dy: [B, …', F] → [1, …, C, F]`, as the convolution that autodiff makes of it.
    pub fn gradient(c: &Convolution, [x, dy, y]: [&TensorType; 3], target: Target) -> Option<Pointwise> {
        let n = c.dims.input_spatial.len();
        let fits = is_kernel_gradient(c)
            && y.shape[..n].iter().all(|&taps| taps == 1)
            && c.rhs_dilation.iter().all(|&step| step == 1)
            && is_inside(c, x, &c.rhs_dilation, &dy.shape[1..=n]);
        let (channels, features) = (x.shape[n + 1], dy.shape[n + 1]);
        if !fits || channels.min(features) < WIDE {
            return None;
        }
        let products = |t: &TensorType| pixels(t, &c.rhs_dilation, &dy.shape[1..=n]);
        let ra = Roles { batch: Vec::new(), free: vec![dim(channels, 1)], inner: products(x) };
        let rb = Roles { batch: Vec::new(), free: vec![dim(features, 1)], inner: products(dy) };
        let product = DotKernel::product(&ra, &rb, [x.dtype, y.dtype], Epilogue::default(), target)?;
        Some(Pointwise { product, statistics: None })
    }

    /// Two more results, see [`Moments`].
    pub fn with_moments(self, y: &TensorType, target: Target) -> Pointwise {
        Pointwise { statistics: Some(Statistics::new(y, target)), ..self }
    }
}

fn dim(size: usize, stride: usize) -> Dim {
    Dim { size, src: stride as isize, dst: 0 }
}

/// Whether `counts` pixels, `steps` apart from the first on, are all elements of the input.
fn is_inside(c: &Convolution, x: &TensorType, steps: &[usize], counts: &[usize]) -> bool {
    (0..counts.len()).all(|i| {
        c.padding[i][0] == 0
            && c.lhs_dilation[i] == 1
            && counts[i] > 0
            && (counts[i] - 1) * steps[i] < x.shape[i + 1]
    })
}

/// The pixels of all images, as dimensions of a product: one where they follow each other.
fn pixels(x: &TensorType, steps: &[usize], counts: &[usize]) -> Vec<Dim> {
    let own = x.shape.strides();
    let spatial = counts.iter().zip(steps).enumerate().map(|(i, (&n, step))| dim(n, own[i + 1] * step));
    std::iter::once(dim(x.shape[0], own[0])).chain(spatial).collect()
}

/// Gathers statistics of a result that was just written, the end of it first: that is still near.
struct Statistics {
    moments: Moments,
    images: usize,
    /// Pixels of an image, and where the parts of an image begin that are gathered together.
    pixels: usize,
    parts: Vec<(usize, usize)>,
    features: usize,
    /// Offsets of the pixels of a part.
    rows: Vec<usize>,
    element: usize,
    widen: Option<TileFn>,
}

impl Statistics {
    fn new(y: &TensorType, target: Target) -> Statistics {
        let features = y.shape[y.rank() - 1];
        let pixels = y.elements() / y.shape[0] / features;
        let parts: Vec<(usize, usize)> = pieces(pixels, PIXELS).collect();
        let most = parts.iter().map(|p| p.1).max().unwrap_or(0);
        let level = target.level.vectors();
        Statistics {
            moments: Moments::new(features, parts.iter().map(|p| p.1).collect(), level),
            images: y.shape[0],
            pixels,
            parts,
            features,
            rows: (0..most).map(|i| i * features).collect(),
            element: y.dtype.size(),
            widen: widen(y.dtype, level),
        }
    }

    fn bytes(&self) -> usize {
        self.moments.elements(self.images) * 4
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>, left: Ptr) {
        let y = Ptr(io.outputs[0]);
        let tasks = self.images * self.parts.len();
        let body = |task: usize| {
            let (image, part) =
                ((tasks - 1 - task) / self.parts.len(), (tasks - 1 - task) % self.parts.len());
            let (from, count) = self.parts[part];
            let elements = count * self.features;
            let at = y.at((image * self.pixels + from) * self.features * self.element);
            let gather = |c: *const f32| {
                // SAFETY: the part's pixels; `left` has room for what all parts leave.
                unsafe {
                    let (rows, n) = (&self.rows[..count], self.features);
                    self.moments.gather(image, 1, part, c, rows, 0, n, left.elem(0));
                }
            };
            match self.widen {
                None => gather(at.cast()),
                Some(widen) => with_scratch(elements * 4, |wide| {
                    // SAFETY: as many elements on both sides.
                    unsafe { widen(wide, at, at, at, elements) };
                    gather(wide.cast());
                }),
            }
        };
        let work = (self.images * self.pixels * self.features) as f64 * 0.2;
        cx.team.run_with(tasks, work, cx.flush, &body);
        // SAFETY: every part has left its sums.
        unsafe { self.moments.write(self.images, left, io) };
    }
}

impl Kernel for Pointwise {
    fn scratch(&self) -> usize {
        let statistics = self.statistics.as_ref().map_or(0, Statistics::bytes);
        self.product.scratch().next_multiple_of(ALIGN) + statistics
    }

    fn add_to_result(&mut self) -> bool {
        self.product.add_to_result()
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.product.kept(same)
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.product.keep(cx, inputs, kept) };
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: by the caller's promise; working memory is laid out as counted.
        unsafe {
            self.product.run_kept(cx, io, kept)?;
            if let Some(s) = &self.statistics {
                s.run(cx, io, Ptr(io.scratch.wrapping_add(self.product.scratch().next_multiple_of(ALIGN))));
            }
        }
        Ok(())
    }
}
