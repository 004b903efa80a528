//! Filter gradient of small images on AMX: `x: bf16[B, …, C], dy: bf16[B, …', F] → dkernel: [taps, C, F]`.
//!
//! K runs over images, in pairs, one pixel after another. Lines of pixels ([`crate::kernels::conv::amx::gradient`])
//! have zeros between them; small images have as many zeros as pixels. For each tap, only the pixels count at which the
//! tap is inside the input. Rows of A tiles are channels, columns of B tiles are features.

use crate::kernel::convolution::is_kernel_gradient;
use crate::kernel::partial_sums::{PartialSums, kernel_of_parts};
use crate::kernel::{Ptr, with_scratch};
use crate::kernels::conv::amx::filter::{CHUNK, tiles};
use crate::kernels::conv::amx::gradient;
use crate::kernels::conv::staging::phases::{gradient_axes, gradient_taps};
use crate::kernels::conv::staging::{FEWEST_TASKS, PixelStrip, StagedAxis, group};
use crate::kernels::conv::strips::strip_arrays::NO_GRADIENT;
use crate::select::SelectResult;
use crate::simd::amx;
use crate::simd::amx::strided::{COLUMNS, StridedKernels, StridedOperands, StridedSums};
use crate::simd::amx::{LANES, LINE};
use crate::simd::level::CompileTarget;
use crate::simd::pack::{PackFn, PanelArgs};
use smallvec::SmallVec;
use std::ops::Range;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Bytes of the packed operands of a strip, which stay in L2.
const STRIP: usize = 1 << 20;
/// Maximum features and channels of one task, so that their sums also stay in L2. Filters with many taps use fewer
/// channels.
const FEATURES: usize = 256;
const CHANNELS: usize = 512;
const FEWEST_CHANNELS: usize = 64;
/// Maximum number of partial sums, and maximum elements of all of them: 16 MiB.
const MOST_PARTS: usize = 16;
const MOST_SUMS: usize = 4 << 20;
/// Bytes of a packed chunk of a panel of two tiles, and elements of two by two tiles of sums.
const PANEL: usize = 2 * LANES * LINE;
const SQUARE: usize = COLUMNS * COLUMNS;
/// Maximum products for which this kernel pays off, in percent of those of tiles along lines.
const FEWER: usize = 80;

/// AMX kernel of filter gradients of small images; K runs over images.
pub struct AmxImagesKernelGradient {
    unit: &'static StridedKernels,
    packs: [PackFn<f32>; 2],
    axes: Vec<StagedAxis>,
    /// Staged coordinates of each tap.
    taps: Vec<SmallVec<[usize; 3]>>,
    batch: usize,
    /// Images of a strip, and rows of `dy` of each image.
    images: usize,
    rows: usize,
    channels: usize,
    features: usize,
    /// Channels, and panels of features, of one task.
    slices: Vec<Range<usize>>,
    groups: Vec<Range<usize>>,
    parts: PartialSums,
    strips_per_part: usize,
}

/// Byte offsets of the pixels at which a tap is inside the input: in packed panels of `x`, and in packed panels of `dy`
/// of one and of two column tiles.
struct TapRuns {
    a: Vec<usize>,
    b: [Vec<usize>; 2],
}

/// Packed operands of a strip, and its sums.
struct PackedStrip {
    a: *mut u8,
    b: *mut u8,
    squares: *mut f32,
    /// Rows of the input, pixels of both operands, and K chunks of each pixel.
    rows: Range<usize>,
    pixels: [usize; 2],
    chunks: usize,
}

/// Panels of one operand of a strip.
struct OperandPanels {
    /// First pixel of the strip's first image; bytes of a pixel, and of an image.
    from: *const u8,
    pixel: usize,
    image: usize,
    /// Columns to pack, and pixels.
    columns: Range<usize>,
    pixels: usize,
}

/// Divides `0..n` into steps of `size`, the last of which may be shorter; returns start and length of each.
fn steps(n: usize, size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(size).map(move |at| (at, size.min(n - at)))
}

impl AmxImagesKernelGradient {
    /// Creates the kernel for bf16 layers on machines with AMX if lines of pixels would be mostly zeros.
    pub fn new(
        c: &Convolution,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxImagesKernelGradient> {
        let unit = amx::kernels_of(target.level).ok_or("this machine has no AMX tile registers")?;
        let lines = gradient::AmxKernelGradient::with(&unit.spread, c, types, target)?;
        let images = AmxImagesKernelGradient::with(&unit.spread, c, types, target)?;
        match images.products() * 100 <= lines.products() * FEWER {
            true => Ok(images),
            false => {
                Err("its images are large enough that lines of pixels fill tiles (candidate amx_gradient)"
                    .into())
            }
        }
    }

    /// Creates the kernel with the given AMX routines.
    pub(crate) fn with(
        unit: &'static StridedKernels,
        c: &Convolution,
        [x, dy, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxImagesKernelGradient> {
        let known = [x.dtype, dy.dtype] == [DType::BF16; 2] && matches!(y.dtype, DType::BF16 | DType::F32);
        ensure!(is_kernel_gradient(c), NO_GRADIENT.into());
        ensure!(known, "operands are not bf16, or the result is neither bf16 nor f32".into());
        let (n, vectors) = (c.dims.input_spatial.len(), target.level.vectors());
        let (batch, channels, features) = (x.shape[0], x.shape[n + 1], dy.shape[n + 1]);
        let mut taps: Vec<SmallVec<[usize; 3]>> = vec![SmallVec::new()];
        for along in gradient_taps(c, y) {
            let with = |tap: &SmallVec<[usize; 3]>| -> Vec<SmallVec<[usize; 3]>> {
                along.iter().map(|&t| tap.iter().copied().chain([t]).collect()).collect()
            };
            taps = taps.iter().flat_map(with).collect();
        }
        let width = (2 * CHANNELS / taps.len()).clamp(FEWEST_CHANNELS, CHANNELS) / COLUMNS * COLUMNS;
        let slices: Vec<Range<usize>> = steps(channels, width).map(|(at, n)| at..at + n).collect();
        let groups = group(features.div_ceil(COLUMNS), features.div_ceil(FEATURES));
        let packs =
            amx::pack::packs(DType::BF16, vectors).ok_or("there is no AMX packing routine for bf16")?;
        let mut this = AmxImagesKernelGradient {
            unit,
            packs,
            axes: gradient_axes(c, x, dy, y),
            taps,
            batch,
            images: CHUNK.min(batch),
            rows: 1,
            channels,
            features,
            parts: PartialSums::new(1, y, vectors),
            strips_per_part: 1,
            slices,
            groups,
        };
        ensure!(this.cut(), "one line of that many images does not stay in L2".into());
        let of_part = this.slices.len() * this.groups.len();
        let most = (MOST_SUMS / y.elements()).clamp(1, MOST_PARTS).min(this.strips());
        this.strips_per_part = this.strips().div_ceil(FEWEST_TASKS.div_ceil(of_part).min(most));
        this.parts = PartialSums::new(this.strips().div_ceil(this.strips_per_part), y, vectors);
        Ok(this)
    }

    /// Chooses the images and rows per strip. Returns whether a strip is small enough.
    fn cut(&mut self) -> bool {
        let count = self.axes[0].count;
        let fits = |rows: &usize| self.bytes(*rows, CHUNK) <= STRIP;
        let most = (1..=count).rev().find(fits).unwrap_or(1);
        self.rows = count.div_ceil(count.div_ceil(most));
        let bytes = self.bytes(self.rows, CHUNK);
        if self.rows == count {
            let chunks = (STRIP / bytes).clamp(1, self.batch.div_ceil(CHUNK));
            self.images = (chunks * CHUNK).min(self.batch);
        }
        bytes <= STRIP
    }

    /// Bytes of the packed operands of a strip.
    fn bytes(&self, rows: usize, images: usize) -> usize {
        let axis = &self.axes[0];
        let most = (((rows - 1) * axis.step + axis.reach - 1) * axis.unit + 1).min(axis.size);
        let [x, y] = self.lines();
        let width = self.slices[0].len().next_multiple_of(COLUMNS);
        (most * x * width + rows * y * self.groups[0].len() * COLUMNS) * images.next_multiple_of(CHUNK) * 2
    }

    /// Pixels of a row of the first dimension, of `x` and of `dy`.
    fn lines(&self) -> [usize; 2] {
        let inner = &self.axes[1..];
        [inner.iter().map(|a| a.size).product(), inner.iter().map(|a| a.count).product()]
    }

    /// Number of strips of the same images.
    fn rows_apart(&self) -> usize {
        self.axes[0].count.div_ceil(self.rows)
    }

    fn strips(&self) -> usize {
        self.batch.div_ceil(self.images) * self.rows_apart()
    }

    fn strip(&self, i: usize) -> PixelStrip {
        let (image, row) = (i / self.rows_apart() * self.images, i % self.rows_apart() * self.rows);
        PixelStrip {
            image,
            images: self.images.min(self.batch - image),
            row,
            rows: self.rows.min(self.axes[0].count - row),
        }
    }

    /// Number of tasks per part.
    fn per_part(&self) -> usize {
        self.slices.len() * self.groups.len()
    }

    /// Number of tile products, two by two at a time.
    fn products(&self) -> usize {
        let inside = |(d, axis): (usize, &StagedAxis), tap: &SmallVec<[usize; 3]>| {
            (0..axis.count).filter(|&p| axis.source(p, tap[d]).is_some()).count()
        };
        let of = |tap: &SmallVec<[usize; 3]>| -> usize {
            self.axes.iter().enumerate().map(|axis| inside(axis, tap)).product()
        };
        let pixels: usize = self.taps.iter().map(of).sum();
        let chunks: usize = steps(self.batch, self.images).map(|(_, n)| n.div_ceil(CHUNK)).sum();
        pixels * chunks * self.channels.div_ceil(COLUMNS) * self.features.div_ceil(COLUMNS)
    }

    /// Rows of the input that a strip reads.
    fn rows_of(&self, strip: PixelStrip) -> Range<usize> {
        let axis = &self.axes[0];
        let rows = || strip.row..strip.row + strip.rows;
        let all = || self.taps.iter().flat_map(move |tap| rows().filter_map(|p| axis.source(p, tap[0])));
        all().min().unwrap_or(0)..all().max().map_or(0, |last| last + 1)
    }

    /// Returns the pixels of a strip at which a tap is inside the input.
    fn runs(&self, tap: &[usize], strip: PixelStrip, first: usize, chunks: usize) -> TapRuns {
        let mut all = vec![(0, 0)];
        for (d, axis) in self.axes.iter().enumerate() {
            let (from, count, before) =
                if d == 0 { (strip.row, strip.rows, first) } else { (0, axis.count, 0) };
            let with = |(x, y): &(usize, usize)| -> Vec<(usize, usize)> {
                let place = |p: usize| {
                    let at = axis.source(from + p, tap[d])?;
                    Some((x * axis.size + at - before, y * axis.count + p))
                };
                (0..count).filter_map(place).collect()
            };
            all = all.iter().flat_map(with).collect();
        }
        let size = |tiles: usize| tiles * LANES * LINE * chunks;
        TapRuns {
            a: all.iter().map(|pixel| pixel.0 * size(2)).collect(),
            b: [1, 2].map(|tiles| all.iter().map(|pixel| pixel.1 * size(tiles)).collect()),
        }
    }

    /// Runs one task: a group of feature panels by one slice of channels, over the strips of one part.
    unsafe fn task(&self, task: usize, x: *const u8, dy: *const u8, sums: *mut f32) {
        let (part, rest) = (task / self.per_part(), task % self.per_part());
        let (slice, group) =
            (self.slices[rest / self.groups.len()].clone(), self.groups[rest % self.groups.len()].clone());
        let columns = group.start * COLUMNS..(group.end * COLUMNS).min(self.features);
        let panels = slice.len().div_ceil(COLUMNS);
        let packed = self.bytes(self.rows, self.images);
        let squares = self.taps.len() * panels * group.len() * SQUARE * 4;
        with_scratch(packed + squares, |scratch| {
            let squares = scratch.wrapping_add(packed).cast::<f32>();
            let first = part * self.strips_per_part;
            let last = (first + self.strips_per_part).min(self.strips());
            // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint sums.
            unsafe {
                (self.unit.configure)(LANES);
                for i in first..last {
                    let strip = self.strip(i);
                    let packed = self.pack(strip, [x, dy], &slice, &columns, scratch, squares);
                    self.multiply(strip, &packed, slice.len(), columns.len(), i > first);
                }
                (self.unit.release)();
                self.write(&slice, &columns, squares, sums.wrapping_add(part * self.parts.size));
            }
        });
    }

    /// Packs both operands of a strip.
    unsafe fn pack(
        &self,
        strip: PixelStrip,
        [x, dy]: [*const u8; 2],
        slice: &Range<usize>,
        columns: &Range<usize>,
        scratch: *mut u8,
        squares: *mut f32,
    ) -> PackedStrip {
        let (rows, [line, out]) = (self.rows_of(strip), self.lines());
        let (axis, chunks) = (&self.axes[0], strip.images.div_ceil(CHUNK));
        let pixels = [rows.len() * line, strip.rows * out];
        let b = scratch.wrapping_add(slice.len().div_ceil(COLUMNS) * pixels[0] * chunks * PANEL);
        let (pixel, of_dy) = (self.channels * 2, self.features * 2);
        let (image, image_of_dy) = (axis.size * line * pixel, axis.count * out * of_dy);
        let left = OperandPanels {
            from: x.wrapping_add(strip.image * image + rows.start * line * pixel),
            pixel,
            image,
            columns: slice.clone(),
            pixels: pixels[0],
        };
        let right = OperandPanels {
            from: dy.wrapping_add(strip.image * image_of_dy + strip.row * out * of_dy),
            pixel: of_dy,
            image: image_of_dy,
            columns: columns.clone(),
            pixels: pixels[1],
        };
        // SAFETY: the caller has both operands, and room for their panels.
        unsafe {
            self.panels(&left, false, strip.images, scratch);
            self.panels(&right, true, strip.images, b);
        }
        PackedStrip { a: scratch, b, squares, rows, pixels, chunks }
    }

    /// Packs the panels of an operand, as A or as B: for each pixel the K chunks of all images.
    unsafe fn panels(&self, of: &OperandPanels, right: bool, images: usize, to: *mut u8) {
        let chunks = images.div_ceil(CHUNK);
        for p in 0..of.pixels {
            for (j, (at, count)) in steps(of.columns.len(), COLUMNS).enumerate() {
                let fill = if right { tiles(count) * LANES } else { COLUMNS };
                let place = j * of.pixels * chunks * PANEL + p * chunks * fill * LINE;
                for (first, images) in steps(images, CHUNK) {
                    let from = first * of.image + p * of.pixel + (of.columns.start + at) * 2;
                    let args = PanelArgs {
                        src: of.from.wrapping_add(from),
                        lane: 2,
                        step: of.image,
                        lanes: count,
                        fill,
                        k: LANES,
                        products: images,
                        dst: to.wrapping_add(place + first / CHUNK * fill * LINE).cast::<f32>(),
                        stride: fill,
                    };
                    // SAFETY: the caller has these images, and room for their words.
                    unsafe { (self.packs[usize::from(right)])(&[args]) };
                }
            }
        }
    }

    /// Multiplies one strip and adds to the sums.
    unsafe fn multiply(
        &self,
        strip: PixelStrip,
        packed: &PackedStrip,
        channels: usize,
        features: usize,
        add: bool,
    ) {
        let &PackedStrip { chunks, pixels, .. } = packed;
        let runs = |tap: &SmallVec<[usize; 3]>| self.runs(tap, strip, packed.rows.start, chunks);
        let runs: Vec<TapRuns> = self.taps.iter().map(runs).collect();
        let mut square = 0;
        for (i, (_, rows)) in steps(channels, COLUMNS).enumerate() {
            let a = packed.a.wrapping_add(i * pixels[0] * chunks * PANEL).cast_const();
            for runs in &runs {
                for (j, (_, columns)) in steps(features, COLUMNS).enumerate() {
                    let width = tiles(columns);
                    let work = StridedSums {
                        operands: StridedOperands {
                            a: [a, a.wrapping_add(LANES * LINE)],
                            a_row: LINE,
                            a_chunk: PANEL,
                            b: packed.b.wrapping_add(j * pixels[1] * chunks * PANEL).cast_const(),
                            b_next: LINE,
                            b_row: width * LINE,
                            b_chunk: width * LANES * LINE,
                            a_runs: runs.a.as_ptr(),
                            b_runs: runs.b[width - 1].as_ptr(),
                            runs: runs.a.len(),
                            chunks,
                            ahead: [std::ptr::null(); 2],
                            two: [rows > LANES, width == 2],
                        },
                        c: packed.squares.wrapping_add(square * SQUARE),
                        c_row: 2 * LINE,
                        add,
                    };
                    square += 1;
                    // SAFETY: tiles stay inside the packed operands and the sums.
                    unsafe { (self.unit.sums)(&work) };
                }
            }
        }
    }

    /// Stores complete sums as rows of the result.
    unsafe fn write(&self, slice: &Range<usize>, columns: &Range<usize>, squares: *const f32, to: *mut f32) {
        let (add, mut square) = (self.parts.begin_with_result(), Ptr::of(squares.cast()));
        for (at, rows) in steps(slice.len(), COLUMNS) {
            for tap in 0..self.taps.len() {
                for (from, n) in steps(columns.len(), COLUMNS) {
                    for i in 0..rows {
                        let row = (tap * self.channels + slice.start + at + i) * self.features;
                        let to = to.wrapping_add(row + columns.start + from);
                        // SAFETY: the caller has all sums, and these elements of the result.
                        unsafe {
                            let to = std::slice::from_raw_parts_mut(to, n);
                            let sums = square.elem::<f32>(i * COLUMNS).cast_const();
                            let sums = std::slice::from_raw_parts(sums, n);
                            match add {
                                true => to.iter_mut().zip(sums).for_each(|(y, x)| *y += x),
                                false => to.copy_from_slice(sums),
                            }
                        }
                    }
                    square = Ptr(square.at(SQUARE * 4));
                }
            }
        }
    }
}

kernel_of_parts!(AmxImagesKernelGradient, |this| (this.products() * COLUMNS) as f64);
