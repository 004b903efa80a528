//! Gradients of a convolution's kernel and bias from that of its max-pooled result by tile registers ([`unpooled`]), for
//! bf16.
//!
//! Zeros of the gradient are multiplied with the input, so one that is not finite goes to the kernel that looks numbers
//! up. Images are summed in parts that depend on the batch only, and the parts in a tree.

use crate::kernel::few_rows::FewRows;
use crate::kernel::padded::offsets;
use crate::kernel::partial_sums::{Finish, sum_parts};
use crate::kernel::product::roles;
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv_pool::finite::MagnitudeOfBf16;
use crate::simd::amx::LANES;
use crate::simd::amx::fused::unpooled::FEATURES;
use crate::simd::amx::fused::{Fused, WIDTH, unpooled};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::narrow;
use std::ops::Range;
use systole_compile::{Step, UnpooledGradient};
use systole_ir::{DType, Result};

/// Most partial sums.
const MOST_PARTS: usize = 32;
/// Images that are gone through together: a tile of rows of the product that makes their gradients.
const IMAGES: usize = LANES;
/// Gradients that are made at a time.
const MADE: usize = 1 << 15;

/// See the module text.
pub struct TileGradient {
    fused: &'static Fused,
    general: Box<dyn Kernel>,
    batch: usize,
    /// Height, width and channels of an image.
    image: [usize; 3],
    /// Zeros before height and width, and their sizes with zeros.
    low: [i64; 2],
    padded: [usize; 2],
    /// From one row of windows to the next, and from one window, in a padded image.
    steps: [usize; 2],
    /// Windows of an image, and places in one.
    windows: [usize; 2],
    places: usize,
    /// For each tile of taps what these see, as [`unpooled::TileGradientArgs`] has it, and how many they are.
    taps: Vec<(Vec<usize>, usize)>,
    features: usize,
    magnitude: TileFn,
    level: Level,
    /// Types of the results: the kernel's gradient and, perhaps, the bias's.
    to: Vec<DType>,
    /// What makes the gradients, where that is done here.
    product: Option<FewRows>,
    /// Rows of windows that are gone through together.
    strip: usize,
}

/// Arrays that have all images.
struct Given {
    x: Ptr,
    place: Ptr,
    /// The gradients, or the product's right operand.
    dy: Ptr,
    /// The product's left operand.
    left: Ptr,
}

/// What makes the gradients, where that is done here.
fn product_of(fused: &'static Fused, g: &UnpooledGradient, step: &Step, level: Level) -> Option<FewRows> {
    match &step.input_types[2..] {
        [left, right] if g.product => {
            let [left, right] = [roles(left, &[], &[0], &[1]), roles(right, &[], &[1], &[0])];
            FewRows::new(&left, &right, [DType::BF16; 2], level).map(|thin| thin.with_tiles(Some(fused)))
        }
        _ => None,
    }
}

impl TileGradient {
    /// The kernel; or `general`, where that has to do.
    pub fn bind(
        fused: &'static Fused,
        g: &UnpooledGradient,
        step: &Step,
        (general, level): (Box<dyn Kernel>, Level),
    ) -> Box<dyn Kernel> {
        let (x, place, dk) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        let c = &g.conv;
        let [height, width] = [0, 1].map(|i| x.shape[i + 1] as i64 + c.padding[i][0] + c.padding[i][1]);
        let places = g.unpool.window[0] * g.unpool.window[1];
        let (channels, features) = (x.shape[3], place.shape[3]);
        let product = product_of(fused, g, step, level);
        let fits = step.input_types[2].dtype == DType::BF16
            && x.dtype == DType::BF16
            && product.is_some() == g.product
            && features.is_multiple_of(WIDTH)
            && places <= unpooled::PLACES
            && c.lhs_dilation.iter().all(|&d| d == 1)
            && height > 0
            && width > 0;
        if !fits {
            return general;
        }
        let padded = [height as usize, width as usize];
        let strides = [padded[1] * channels, channels];
        // A full-size gradient's pixel lies so many elements further on in the image.
        let pixel = [0, 1].map(|i| strides[i] * c.rhs_dilation[i]);
        let at_places = offsets([0, 1].map(|i| (g.unpool.window[i], pixel[i])).into_iter());
        let taps = [0, 1].map(|i| (dk.shape[i], strides[i] * c.strides[i]));
        let taps = offsets(taps.into_iter().chain([(channels, 1)]));
        let tile = |t: usize| {
            let taps = &taps[t * LANES..taps.len().min((t + 1) * LANES)];
            let seen = at_places.iter().flat_map(|p| taps.iter().map(move |t| p + t)).collect();
            (seen, taps.len())
        };
        let windows = [place.shape[1], place.shape[2]];
        let images = IMAGES.min(x.shape[0]);
        Box::new(TileGradient {
            fused,
            general,
            batch: x.shape[0],
            image: [x.shape[1], x.shape[2], channels],
            low: [0, 1].map(|i| c.padding[i][0]),
            padded,
            steps: [0, 1].map(|i| pixel[i] * g.unpool.strides[i]),
            windows,
            places,
            // With the bias, which sees ones.
            taps: (0..taps.len() / LANES + 1).map(tile).collect(),
            features,
            magnitude: level.tile::<MagnitudeOfBf16>(),
            level,
            to: step.output_types.iter().map(|t| t.dtype).collect(),
            strip: match product {
                Some(_) => (MADE / (images * windows[1] * features)).clamp(1, windows[0]),
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

    /// Groups of features that are summed together.
    fn groups(&self) -> usize {
        self.features.div_ceil(FEATURES)
    }

    /// Sums of one part.
    fn sums(&self) -> usize {
        self.taps.len() * self.groups() * unpooled::SUMS
    }

    /// Elements of a padded image and of what may be read behind it.
    fn staged(&self) -> usize {
        let image = self.padded[0] * self.padded[1] * self.image[2];
        (image + unpooled::slack(self.steps[1])).next_multiple_of(2 * LANES)
    }

    /// Copies an image into zeros.
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
            // SAFETY: what of the line is inside both images.
            unsafe {
                let (x, to) = (x.add((y * width + from) * channels), to.add(at as usize * channels));
                std::ptr::copy_nonoverlapping(x, to, (end - from) * channels);
            }
        }
    }

    /// Sums over some images.
    unsafe fn images(&self, images: Range<usize>, given: &Given, sums: *mut f32) {
        let (staged, row) = (self.staged(), self.windows[1] * self.features);
        let (image, all) = (self.image.iter().product::<usize>(), self.windows[0] * row);
        let tables = (images.len() * staged * 2).next_multiple_of(64);
        let made = if self.product.is_some() { images.len() * self.strip * row * 2 } else { 0 };
        with_scratch(tables + made, |memory| {
            let x = memory.cast::<u16>();
            let made = memory.wrapping_add(tables);
            // SAFETY: operands have the shapes of `bind`; scratch has room for images and a strip's gradients; the sums
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
                    let place = given.place.at(images.start * all + from * row);
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
                                places: self.places,
                                dy: dy.add(feature),
                                place: place.add(feature),
                                features: self.features,
                                dy_image,
                                place_image: all,
                                all: self.features - feature > WIDTH,
                                sums: sums.add((tile * self.groups() + group) * unpooled::SUMS),
                            });
                        }
                    }
                }
            }
        });
    }

    /// Writes the sums of some taps from `first` on as a result of a type.
    unsafe fn put(&self, sums: *const f32, taps: Range<usize>, out: *mut u8, to: DType) {
        let f = self.features;
        let mut row = vec![0f32; f];
        for (i, tap) in taps.enumerate() {
            // SAFETY: the result has so many rows of features.
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

impl Kernel for TileGradient {
    fn scratch(&self) -> usize {
        let left = self.product.as_ref().map_or(0, FewRows::scratch);
        self.general.scratch().max((self.parts() + 1) * self.sums() * 4 + left)
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let elements = self.batch * self.image.iter().product::<usize>();
        let (mut most, x) = (0f32, io.inputs[0]);
        // SAFETY: the input has so many elements.
        unsafe { (self.magnitude)((&raw mut most).cast(), x, x, x, elements) };
        if !most.is_finite() {
            // SAFETY: by the caller's promise.
            return unsafe { self.general.run(cx, io) };
        }
        // SAFETY: scratch is laid out as `scratch()` counts it; operands and results have the shapes of `bind`.
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
            let place = Ptr::of(io.inputs[1]);
            let given = Given { x: Ptr::of(x), place, dy: Ptr::of(dy), left: Ptr(left.cast()) };
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
            sum_parts(cx, sums, self.parts(), self.sums(), whole.cast(), Finish::Copy);
            let taps: usize = self.taps.iter().map(|t| t.1).sum();
            self.put(whole, 0..taps, io.outputs[0], self.to[0]);
            if let Some(&to) = self.to.get(1) {
                self.put(whole, taps..taps + 1, io.outputs[1], to);
            }
        }
        Ok(())
    }
}
