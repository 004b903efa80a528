//! Kernel and bias gradients of a max-pooled convolution for bf16 on AMX ([`unpooled`]), from the pooled gradient.
//!
//! The pooled gradient is scattered to the elements of its windows in tile registers. The zeros in between are
//! multiplied with the input. So if the input is not finite, [`ConvPoolGradient`] runs instead, which multiplies only
//! the argmax. Partial sums belong to groups of images, which depend on the batch size only, and are added in a tree.

use crate::kernel::padded_input::offsets;
use crate::kernel::partial_sums::{SumStore, sum_parts};
use crate::kernel::skinny_gemm::FewRows;
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::conv_pool::finite_bounds::MaxMagnitudeBf16;
use crate::kernels::conv_pool::gradient::{ConvPoolGradient, SumMethod, fused_gradient, product_of};
use crate::select::{Problem, SelectResult};
use crate::simd::amx::LANES;
use crate::simd::amx::fused::unpooled::FEATURES;
use crate::simd::amx::fused::{FusedAmxKernels, WIDTH, fused_of, unpooled};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::narrow;
use std::ops::Range;
use systole_ir::{DType, Result, ensure};

/// Maximum number of partial sums. It is constant so that results do not depend on the number of threads.
const MOST_PARTS: usize = 32;
/// Images that are summed together: the rows of one tile of the product that computes their gradients.
const IMAGES: usize = LANES;
/// Maximum number of gradient elements that the product computes at a time, so that they stay in cache.
const PRODUCT_ELEMENTS: usize = 1 << 15;

/// AMX kernel of the kernel and bias gradients of a pooled convolution. Operands and results are those of
/// [`UnpooledGradient`](systole_compile::UnpooledGradient).
pub struct AmxConvPoolGradient {
    fused: &'static FusedAmxKernels,
    /// Fallback for inputs that are not finite.
    general: ConvPoolGradient,
    batch: usize,
    /// Height, width and channels of an image.
    image: [usize; 3],
    /// Padding before height and width; negative if the image is cropped.
    low: [i64; 2],
    /// Height and width with padding.
    padded: [usize; 2],
    /// Elements of a padded image between rows of windows, and between windows of a row.
    steps: [usize; 2],
    /// Numbers of window rows and window columns of an image.
    windows: [usize; 2],
    window_elements: usize,
    /// For each tile of taps, the offsets of their inputs, as in [`unpooled::TileGradientArgs`], and the number of
    /// taps.
    taps: Vec<(Vec<usize>, usize)>,
    features: usize,
    magnitude: TileFn,
    level: Level,
    /// Element types of the results: the kernel gradient and, optionally, the bias gradient.
    to: Vec<DType>,
    /// Computes `dy` if the step has the operands of a product instead of an array `dy`.
    product: Option<FewRows>,
    /// Rows of windows that are summed together.
    strip: usize,
}

/// Operands for all images, shared by all tasks.
struct AmxGradientOperands {
    x: Ptr,
    argmax: Ptr,
    /// The pooled gradient, or the right operand of the product that computes it.
    dy: Ptr,
    /// Left operand of the product.
    left: Ptr,
}

/// Checks that tiles can compute a gradient, or returns why not. `padded`: height and width of the padded input.
fn fits(p: &Problem<'_>, window_elements: usize, padded: [i64; 2]) -> SelectResult<()> {
    let (g, types) = (fused_gradient(p)?, &p.step.input_types);
    if types[0].dtype != DType::BF16 || types[2].dtype != DType::BF16 {
        return Err("its input or its gradients are not bf16".into());
    }
    ensure!(types[1].shape[3].is_multiple_of(WIDTH), "the number of channels is not a multiple of 32".into());
    ensure!(window_elements <= unpooled::PLACES, "its windows have more than 16 elements".into());
    ensure!(!g.conv.lhs_dilation.iter().any(|&d| d != 1), "its input is dilated".into());
    ensure!(!padded.iter().any(|&size| size <= 0), "the padding crops the whole input".into());
    Ok(())
}

impl AmxConvPoolGradient {
    /// Creates the AMX gradient kernel of a pooled convolution, and its vector fallback for inputs that are not finite.
    pub fn new(p: &Problem<'_>) -> SelectResult<AmxConvPoolGradient> {
        let g = fused_gradient(p)?;
        let (step, level) = (p.step, p.target.level.vectors());
        let fused = fused_of(p.target.level).ok_or("this machine has no AMX tile registers")?;
        let (x, argmax, dk) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        let c = &g.conv;
        let (channels, features) = (x.shape[3], argmax.shape[3]);
        let window_elements = g.unpool.window[0] * g.unpool.window[1];
        let padded = [0, 1].map(|i| x.shape[i + 1] as i64 + c.padding[i][0] + c.padding[i][1]);
        fits(p, window_elements, padded)?;
        let product = product_of(g, step, level)?.map(|product| product.with_tiles(Some(fused)));
        let general = ConvPoolGradient::new(p, SumMethod::LookUp)?;
        let padded = padded.map(|size| size as usize);
        let strides = [padded[1] * channels, channels];
        // Elements of the image between adjacent pixels of the convolution's result.
        let pixel = [0, 1].map(|i| strides[i] * c.rhs_dilation[i]);
        let window_offsets = offsets([0, 1].map(|i| (g.unpool.window[i], pixel[i])).into_iter());
        let taps = [0, 1].map(|i| (dk.shape[i], strides[i] * c.strides[i]));
        let taps = offsets(taps.into_iter().chain([(channels, 1)]));
        let tile = |t: usize| {
            let taps = &taps[t * LANES..taps.len().min((t + 1) * LANES)];
            let seen = window_offsets.iter().flat_map(|p| taps.iter().map(move |t| p + t)).collect();
            (seen, taps.len())
        };
        let windows = [argmax.shape[1], argmax.shape[2]];
        let images = IMAGES.min(x.shape[0]);
        Ok(AmxConvPoolGradient {
            fused,
            general,
            batch: x.shape[0],
            image: [x.shape[1], x.shape[2], channels],
            low: [0, 1].map(|i| c.padding[i][0]),
            padded,
            steps: [0, 1].map(|i| pixel[i] * g.unpool.strides[i]),
            windows,
            window_elements,
            // The last tile has room for the bias, which is a tap whose input is 1.
            taps: (0..taps.len() / LANES + 1).map(tile).collect(),
            features,
            magnitude: level.tile::<MaxMagnitudeBf16>(),
            level,
            to: step.output_types.iter().map(|t| t.dtype).collect(),
            strip: match product {
                Some(_) => (PRODUCT_ELEMENTS / (images * windows[1] * features)).clamp(1, windows[0]),
                None => windows[0],
            },
            product,
        })
    }

    fn parts(&self) -> usize {
        self.batch.div_ceil(self.images_per_part())
    }

    fn images_per_part(&self) -> usize {
        self.batch.div_ceil(MOST_PARTS).next_multiple_of(IMAGES)
    }

    /// Number of feature groups. Each group is one call.
    fn groups(&self) -> usize {
        self.features.div_ceil(FEATURES)
    }

    /// Elements of one partial sum.
    fn sums(&self) -> usize {
        self.taps.len() * self.groups() * unpooled::SUMS
    }

    /// Elements of a padded image, including the zeros after it that tile loads may read.
    fn staged(&self) -> usize {
        let image = self.padded[0] * self.padded[1] * self.image[2];
        (image + unpooled::slack(self.steps[1])).next_multiple_of(2 * LANES)
    }

    /// Copies the part of an image that is not cropped into a padded image.
    unsafe fn stage(&self, x: *const u16, to: *mut u16) {
        let [height, width, channels] = self.image;
        let from = (-self.low[1]).max(0) as usize;
        let end = (width as i64).min(self.padded[1] as i64 - self.low[1]).max(from as i64) as usize;
        for y in 0..height {
            let line = y as i64 + self.low[0];
            if !(0..self.padded[0] as i64).contains(&line) {
                continue;
            }
            let at = (line as usize * self.padded[1]) as i64 + from as i64 + self.low[1];
            // SAFETY: the range of the row that is inside both images.
            unsafe {
                let (x, to) = (x.add((y * width + from) * channels), to.add(at as usize * channels));
                std::ptr::copy_nonoverlapping(x, to, (end - from) * channels);
            }
        }
    }

    /// Adds the sums over a range of at most [`IMAGES`] images.
    unsafe fn images(&self, images: Range<usize>, given: &AmxGradientOperands, sums: *mut f32) {
        let (staged, row) = (self.staged(), self.windows[1] * self.features);
        let (image, all) = (self.image.iter().product::<usize>(), self.windows[0] * row);
        let tables = (images.len() * staged * 2).next_multiple_of(64);
        let made = if self.product.is_some() { images.len() * self.strip * row * 2 } else { 0 };
        with_scratch(tables + made, |memory| {
            let x = memory.cast::<u16>();
            let made = memory.wrapping_add(tables);
            // SAFETY: operands have the shapes of `new`; scratch has room for images and a strip's gradients; the sums
            // are the caller's.
            unsafe {
                memory.write_bytes(0, tables);
                for (i, image_) in images.clone().enumerate() {
                    self.stage(given.x.elem(image_ * image), x.add(i * staged));
                }
                for from in (0..self.windows[0]).step_by(self.strip) {
                    let rows = self.strip.min(self.windows[0] - from);
                    let (mut dy, mut dy_image) = (given.dy.elem::<u16>(images.start * all + from * row), all);
                    if let Some(product) = &self.product {
                        let columns = from * row..(from + rows) * row;
                        let (left, right) = (given.left.elem(0), given.dy.at(0));
                        product.part(left, right, images.clone(), columns, (made, rows * row));
                        (dy, dy_image) = (made.cast(), rows * row);
                    }
                    let argmax = given.argmax.at(images.start * all + from * row);
                    for (tile, (offsets, taps)) in self.taps.iter().enumerate() {
                        let ones = usize::from(*taps < LANES);
                        let _registers = self.fused.configure(unpooled::shapes(taps + ones, self.windows[1]));
                        for group in 0..self.groups() {
                            let feature = group * FEATURES;
                            (self.fused.unpooled)(&unpooled::TileGradientArgs {
                                images: images.len(),
                                rows,
                                windows: self.windows[1],
                                x: x.add(from * self.steps[0]),
                                image: staged,
                                row: self.steps[0],
                                step: self.steps[1],
                                offsets,
                                taps: *taps,
                                places: self.window_elements,
                                dy: dy.add(feature),
                                argmax: argmax.add(feature),
                                features: self.features,
                                dy_image,
                                argmax_image: all,
                                all: self.features - feature > WIDTH,
                                sums: sums.add((tile * self.groups() + group) * unpooled::SUMS),
                            });
                        }
                    }
                }
            }
        });
    }

    /// Stores the sums of a range of taps as a result of type `to`.
    unsafe fn put(&self, sums: *const f32, taps: Range<usize>, out: *mut u8, to: DType) {
        let f = self.features;
        let mut row = vec![0f32; f];
        for (i, tap) in taps.enumerate() {
            // SAFETY: the result has as many rows of features, and the sums cover all taps.
            unsafe {
                for (j, sum) in row.iter_mut().enumerate() {
                    let part = tap / LANES * self.groups() + j / FEATURES;
                    *sum = *sums.add(part * unpooled::SUMS + unpooled::at(tap % LANES, j % FEATURES));
                }
                let (dst, from) = (out.add(i * f * to.size()), row.as_ptr().cast());
                match narrow(to, self.level) {
                    Some(narrow) => narrow(dst, from, from, from, f),
                    None => std::ptr::copy_nonoverlapping(row.as_ptr(), dst.cast(), f),
                }
            }
        }
    }
}

impl Kernel for AmxConvPoolGradient {
    fn scratch(&self) -> usize {
        let left = self.product.as_ref().map_or(0, FewRows::scratch);
        self.general.scratch().max((self.parts() + 1) * self.sums() * 4 + left)
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let elements = self.batch * self.image.iter().product::<usize>();
        let (mut most, x) = (0f32, io.inputs[0]);
        // SAFETY: the input has `elements` elements.
        unsafe { (self.magnitude)((&raw mut most).cast(), x, x, x, elements) };
        if !most.is_finite() {
            // SAFETY: by the caller's promise.
            return unsafe { self.general.run(cx, io) };
        }
        // SAFETY: scratch has the layout that `scratch()` counts; operands and results have the shapes of `new`.
        unsafe {
            let sums = io.scratch.cast::<f32>();
            let whole = sums.add(self.parts() * self.sums());
            let left = whole.add(self.sums());
            let dy = match &self.product {
                Some(product) => {
                    product.copy_left(io.inputs[2], left);
                    io.inputs[3]
                }
                None => io.inputs[2],
            };
            let argmax = Ptr::of(io.inputs[1]);
            let given =
                AmxGradientOperands { x: Ptr::of(x), argmax, dy: Ptr::of(dy), left: Ptr(left.cast()) };
            let sp = Ptr(sums.cast());
            let body = |part: usize| {
                let end = ((part + 1) * self.images_per_part()).min(self.batch);
                let sum = sp.elem::<f32>(part * self.sums());
                sum.write_bytes(0, self.sums());
                for from in (part * self.images_per_part()..end).step_by(IMAGES) {
                    self.images(from..(from + IMAGES).min(end), &given, sum);
                }
            };
            let work = (self.batch * self.windows.iter().product::<usize>() * self.features) as f64;
            cx.team.run_with(self.parts(), work * self.taps.len() as f64 / 4.0, cx.flush, &body);
            sum_parts(cx, sums, self.parts(), self.sums(), whole.cast(), SumStore::Copy);
            let taps: usize = self.taps.iter().map(|t| t.1).sum();
            self.put(whole, 0..taps, io.outputs[0], self.to[0]);
            if let Some(&to) = self.to.get(1) {
                self.put(whole, taps..taps + 1, io.outputs[1], to);
            }
        }
        Ok(())
    }
}
