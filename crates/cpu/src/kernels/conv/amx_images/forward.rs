//! Forward convolution and input gradient of small images on AMX: `x: bf16[B, …, C], kernel → y: [B, …', F]`.
//!
//! The rows of an A tile are the same pixel of up to sixteen images. Lines of pixels ([`crate::kernels::conv::amx`])
//! would leave most rows empty. Strips are staged with images innermost. All rows of a tile use the same taps, so taps
//! in the padding are left out, and no zeros are staged for them.

use crate::kernel::convolution::is_forward;
use crate::kernel::{KernelContext, Ptr, with_scratch};
use crate::kernels::conv::amx;
use crate::kernels::conv::amx::filter::{AmxFilter, CHUNK, FilterStrides, PhaseTaps, tiles};
use crate::kernels::conv::staging::phases::{AxisPhase, choices};
use crate::kernels::conv::staging::{PixelStrip, SoftwarePrefetch, StagedAxis};
use crate::kernels::conv::strips::StripConvolution;
use crate::kernels::conv::strips::batch_statistics::BatchStatistics;
use crate::kernels::conv::strips::strip_arrays::{NO_LAYER, StripArrays};
use crate::select::SelectResult;
use crate::simd::amx::strided::{
    COLUMNS, STATISTICS, StridedKernels, StridedOperands, StridedProduct, TileRowOutput,
};
use crate::simd::amx::{LANES, LINE, kernels_of};
use crate::simd::level::{CompileTarget, TileFn};
use crate::simd::loops::widen;
use smallvec::SmallVec;
use std::ops::Range;
use systole_compile::ALIGN;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Target bytes of a strip, which stays in L2 with the packed filter that it is multiplied by; and the maximum, for
/// results whose single line needs more.
const STRIP: usize = 512 << 10;
const MOST: usize = 1 << 20;
/// Tile rows whose distance is a multiple of this many bytes map to the same few L1 sets.
const ALIAS: usize = 2048;
/// Maximum products for which this kernel pays off, in percent of the products of tiles whose rows follow each other in
/// a line. Here no pixels that two rows of a tile share are read from L1.
const FEWER: usize = 70;
/// Maximum pixels of an image in a strip whose squared deviations are first computed relative to one of its pixels:
/// with more, sums of squares lose digits.
const PIXELS: usize = 160;

/// AMX kernel of forward convolutions and input gradients of small images.
pub struct AmxImagesForward {
    unit: &'static StridedKernels,
    staged: StagedImages,
    phases: Vec<ImagesPhase>,
    filter: AmxFilter,
    /// Panels of columns (features) that one task computes.
    groups: Vec<Range<usize>>,
    features: usize,
    bias: bool,
    /// Widens the bias to f32. `None`: the bias is f32.
    widen: Option<TileFn>,
    /// Bytes of an image of the result, and of an element.
    image: usize,
    element: usize,
    statistics: Option<BatchStatistics>,
}

/// Layout of staged strips: pixels of the input in image order, and for each pixel all images.
struct StagedImages {
    first: StagedAxis,
    batch: usize,
    /// Images of a strip, and rows of the result along the first dimension, for each phase.
    images: usize,
    rows: usize,
    /// Pixels of a row of the input, and of an image.
    line: usize,
    image: usize,
    channels: usize,
    /// Bytes between images.
    pitch: usize,
}

/// Output positions that use the same filter taps, ignoring padding.
struct ImagesPhase {
    classes: Vec<PositionClass>,
    /// Bytes between adjacent positions along each dimension: in the staged strip and in the result.
    steps: SmallVec<[[usize; 2]; 3]>,
    /// Byte offset of the phase in a staged image that starts with the first row of the input (wraps around if
    /// negative), and in an image of the result.
    base: [usize; 2],
}

/// Output positions of a phase whose taps inside the input are the same.
struct PositionClass {
    /// Positions along each dimension; the class has all combinations.
    positions: SmallVec<[Vec<usize>; 3]>,
    /// Start of each tap, in bytes: relative to the position in the staged strip, and in packed panels of one and of
    /// two column tiles.
    runs: Vec<usize>,
    packed_runs: [Vec<usize>; 2],
}

/// Groups the positions along an axis by the taps that are inside the input there.
fn classes(axis: &StagedAxis, phase: &AxisPhase) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut all: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for position in 0..phase.count {
        let meets = |t: &usize| axis.source(position, phase.taps[*t].1).is_some();
        let taps: Vec<usize> = (0..phase.taps.len()).filter(meets).collect();
        match all.iter_mut().find(|(own, _)| *own == taps) {
            Some((_, positions)) => positions.push(position),
            None => all.push((taps, vec![position])),
        }
    }
    // Statistics start with a pixel that has the most taps inside the input, because it is nearest to the others.
    all.sort_by_key(|(taps, _)| std::cmp::Reverse(taps.len()));
    all
}

/// Taps of a phase as (index, byte offset in the staged strip), and the positions at which exactly these taps are
/// inside the input.
type TapPositions = (Vec<(usize, usize)>, SmallVec<[Vec<usize>; 3]>);

/// Returns the position classes of a phase. `own`: bytes between pixels of the input along each axis.
fn combined(
    axes: &[(StagedAxis, Vec<AxisPhase>)],
    chosen: &[&AxisPhase],
    own: &[usize],
) -> Vec<TapPositions> {
    let mut all: Vec<TapPositions> = vec![(vec![(0, 0)], SmallVec::new())];
    for (d, phase) in chosen.iter().enumerate() {
        let unit = axes[d].0.unit * own[d];
        let of_axis = classes(&axes[d].0, phase);
        let with = |(taps, positions): &TapPositions| -> Vec<TapPositions> {
            let and = |(more, at): &(Vec<usize>, Vec<usize>)| {
                let both = |(number, place): &(usize, usize)| -> Vec<(usize, usize)> {
                    let tap = |&t: &usize| (number * phase.taps.len() + t, place + phase.taps[t].1 * unit);
                    more.iter().map(tap).collect()
                };
                let mut positions = positions.clone();
                positions.push(at.clone());
                (taps.iter().flat_map(both).collect(), positions)
            };
            of_axis.iter().map(and).collect()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

impl ImagesPhase {
    fn new(
        staged: &StagedImages,
        axes: &[(StagedAxis, Vec<AxisPhase>)],
        choice: &[usize],
        layout: &FilterStrides,
        y: &TensorType,
    ) -> (ImagesPhase, PhaseTaps) {
        let n = choice.len();
        let chosen: SmallVec<[&AxisPhase; 3]> = (0..n).map(|i| &axes[i].1[choice[i]]).collect();
        let mut taps = vec![0];
        for (phase, stride) in chosen.iter().zip(&layout.spatial) {
            taps = taps.iter().flat_map(|at| phase.taps.iter().map(move |t| at + t.0 * stride)).collect();
        }
        let taps = PhaseTaps::new(taps, staged.channels);
        // Bytes between pixels of the input.
        let mut own: SmallVec<[usize; 3]> = SmallVec::from_elem(staged.images * staged.pitch, n);
        for d in (1..n).rev() {
            own[d - 1] = own[d] * axes[d].0.size;
        }
        let class = |(own, positions): TapPositions| PositionClass {
            packed_runs: [0, 1].map(|i| own.iter().map(|t| taps.packed_runs[i][t.0]).collect()),
            runs: own.into_iter().map(|t| t.1).collect(),
            positions,
        };
        let (out, element) = (y.shape.strides(), y.dtype.size());
        let step = |d: usize| {
            let axis = &axes[d].0;
            [axis.step * axis.unit * own[d], out[d + 1] * axes[d].1.len() * element]
        };
        let low = |d: usize| own[d].wrapping_mul(axes[d].0.low as usize);
        let phase = ImagesPhase {
            classes: combined(axes, &chosen, &own).into_iter().map(class).collect(),
            steps: (0..n).map(step).collect(),
            base: [
                (0..n).fold(0, |at, d| at.wrapping_add(low(d))),
                (0..n).map(|d| choice[d] * out[d + 1] * element).sum(),
            ],
        };
        (phase, taps)
    }

    /// Returns the positions of a class in a strip, as byte offsets of their first tap and in an image of the result.
    fn places(&self, class: &PositionClass, strip: PixelStrip) -> Vec<[usize; 2]> {
        let mut all = vec![self.base];
        for (d, (positions, steps)) in class.positions.iter().zip(&self.steps).enumerate() {
            let inside = |p: &&usize| d > 0 || (strip.row..strip.row + strip.rows).contains(*p);
            let with = |at: &[usize; 2]| -> Vec<[usize; 2]> {
                let place = |p: &usize| [0, 1].map(|i| at[i].wrapping_add(p * steps[i]));
                positions.iter().filter(inside).map(place).collect()
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }

    /// Number of runs of all positions.
    fn runs(&self) -> usize {
        let of = |c: &PositionClass| c.runs.len() * c.positions.iter().map(Vec::len).product::<usize>();
        self.classes.iter().map(of).sum()
    }
}

impl StagedImages {
    fn new(x: &TensorType, axes: &[(StagedAxis, Vec<AxisPhase>)]) -> Option<StagedImages> {
        let (batch, channels) = (x.shape[0], x.shape[x.rank() - 1]);
        let bytes = channels.next_multiple_of(CHUNK) * 2;
        let pitch = if bytes.is_multiple_of(ALIAS) { bytes + LINE } else { bytes };
        let line = x.shape[2..x.rank() - 1].iter().product();
        let first = axes[0].0.clone();
        let images = batch.div_ceil(batch.div_ceil(LANES));
        let (count, image) = (first.count, x.shape[1] * line);
        let mut staged = StagedImages { first, batch, images, rows: 1, line, image, channels, pitch };
        let bytes = |s: &StagedImages, rows: usize| s.most(rows) * line * s.images * pitch;
        let fits = |rows: &usize| bytes(&staged, *rows) <= STRIP;
        let most = (1..=count).rev().find(fits).unwrap_or(1);
        staged.rows = count.div_ceil(count.div_ceil(most));
        (bytes(&staged, staged.rows) <= MOST).then_some(staged)
    }

    /// Maximum rows of the input that `rows` rows of the result read.
    fn most(&self, rows: usize) -> usize {
        (((rows - 1) * self.first.step + self.first.reach - 1) * self.first.unit + 1).min(self.first.size)
    }

    /// Bytes of a staged strip.
    fn bytes(&self) -> usize {
        self.most(self.rows) * self.line * self.images * self.pitch
    }

    /// Number of strips of the same images.
    fn parts(&self) -> usize {
        self.first.count.div_ceil(self.rows)
    }

    fn strips(&self) -> usize {
        self.batch.div_ceil(self.images) * self.parts()
    }

    fn strip(&self, i: usize) -> PixelStrip {
        let (image, row) = (i / self.parts() * self.images, i % self.parts() * self.rows);
        PixelStrip {
            image,
            images: self.images.min(self.batch - image),
            row,
            rows: self.rows.min(self.first.count - row),
        }
    }

    /// Rows of the input that a strip reads.
    fn rows_of(&self, strip: PixelStrip) -> Range<usize> {
        let axis = &self.first;
        let from = axis.low + (strip.row * axis.step * axis.unit) as i64;
        let to = from + (((strip.rows - 1) * axis.step + axis.reach - 1) * axis.unit) as i64 + 1;
        let [from, to] = [from, to].map(|at| at.clamp(0, axis.size as i64) as usize);
        from..to
    }

    /// Copies a strip of `x` to `to`.
    ///
    /// # Safety
    /// `x` has the type of [`StagedImages::new`], `to` has room for [`StagedImages::bytes`].
    unsafe fn load(&self, x: *const u8, strip: PixelStrip, to: *mut u8) {
        let (rows, size) = (self.rows_of(strip), self.channels * 2);
        let zeros = self.channels.next_multiple_of(CHUNK) * 2 - size;
        for i in 0..strip.images {
            let from = x.wrapping_add(((strip.image + i) * self.image + rows.start * self.line) * size);
            for p in 0..rows.len() * self.line {
                let to = to.wrapping_add((p * self.images + i) * self.pitch);
                // SAFETY: a pixel of the input, and its position in the strip.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.add(p * size), to, size);
                    to.add(size).write_bytes(0, zeros);
                }
            }
        }
    }

    /// Returns address and bytes of a strip's input; only that of its first image if its images are not contiguous.
    fn input_of(&self, x: *const u8, strip: PixelStrip) -> (*const u8, usize) {
        let (rows, size) = (self.rows_of(strip), self.channels * 2);
        let images = if rows.len() == self.first.size { strip.images } else { 1 };
        let first = (strip.image * self.image + rows.start * self.line) * size;
        (x.wrapping_add(first), images * rows.len() * self.line * size)
    }
}

/// Positions of one class in a strip.
struct ClassPositions<'a> {
    class: &'a PositionClass,
    taps: &'a PhaseTaps,
    all: &'a [[usize; 2]],
    strip: PixelStrip,
    /// Range of column panels.
    group: Range<usize>,
    /// The staged strip as if it started with the first row of the input, and the strip's images of the result.
    a: *const u8,
    y: *mut u8,
    /// Statistics of the strip: [`STATISTICS`] numbers for each image and panel.
    statistics: Ptr,
    /// Whether these are the first positions of the strip.
    begins: bool,
}

impl AmxImagesForward {
    /// Creates the kernel for bf16 layers on machines with AMX if lines of pixels would leave tiles empty.
    pub fn new(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxImagesForward> {
        let unit = kernels_of(target.level).ok_or("this machine has no AMX tile registers")?;
        let lines = amx::AmxForward::with(&unit.spread, c, bias, types, target)?;
        let images = AmxImagesForward::with(&unit.spread, c, bias, types, target)?;
        match images.products() * 100 <= lines.products() * FEWER {
            true => Ok(images),
            false => {
                Err("its images are large enough that lines of pixels fill tiles (candidate amx)".into())
            }
        }
    }

    /// Creates the kernel with the given AMX routines.
    pub(crate) fn with(
        unit: &'static StridedKernels,
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxImagesForward> {
        let vectors = target.level.vectors();
        let known = [x.dtype, k.dtype] == [DType::BF16; 2] && matches!(y.dtype, DType::BF16 | DType::F32);
        ensure!(is_forward(c), NO_LAYER.into());
        ensure!(known, "operands are not bf16, or the result is neither bf16 nor f32".into());
        let axes = amx::forward::axes(c, x, k, y);
        let staged = StagedImages::new(x, &axes).ok_or("one line of that many images does not stay in L2")?;
        let layout = FilterStrides::new(c, k);
        let features = y.shape[y.rank() - 1];
        let along: Vec<usize> = axes.iter().map(|a| a.1.len()).collect();
        let phase = |choice: &SmallVec<[usize; 3]>| ImagesPhase::new(&staged, &axes, choice, &layout, y);
        let (phases, taps) = choices(&along).iter().map(phase).unzip();
        let filter = AmxFilter::new(taps, layout, features, vectors)?;
        Ok(AmxImagesForward {
            unit,
            groups: filter.groups(staged.strips()),
            staged,
            phases,
            filter,
            features,
            bias,
            widen: widen(y.dtype, vectors),
            image: y.elements() / y.shape[0] * y.dtype.size(),
            element: y.dtype.size(),
            statistics: None,
        })
    }

    /// Adds batch statistics as results, like [`amx::AmxForward::with_statistics`].
    pub fn with_statistics(mut self, target: CompileTarget) -> SelectResult<AmxImagesForward> {
        let inner = self.image / self.element / self.features / self.staged.first.count;
        if self.staged.rows * inner > PIXELS {
            return Err(
                "an image has too many pixels to sum squared deviations from a single pixel in f32".into()
            );
        }
        let parts = (0..self.staged.parts()).map(|i| self.staged.strip(i).rows * inner).collect();
        self.statistics = Some(BatchStatistics::new(self.features, parts, target.level.vectors()));
        Ok(self)
    }

    /// Number of products of a row tile and a column tile.
    fn products(&self) -> usize {
        let of = |(phase, taps): (&ImagesPhase, &PhaseTaps)| phase.runs() * taps.chunks;
        let image: usize = self.phases.iter().zip(&self.filter.taps).map(of).sum();
        image * self.staged.batch.div_ceil(self.staged.images)
    }

    /// Runs one task: a group of panels of one strip.
    unsafe fn strip(&self, task: usize, to: &StripArrays) {
        let strips = self.staged.strips();
        let (group, i) = (self.groups[task / strips].clone(), task % strips);
        let strip = self.staged.strip(i);
        let staged = self.staged.bytes().next_multiple_of(LINE);
        let measured =
            if self.statistics.is_some() { strip.images * group.len() * STATISTICS * 4 } else { 0 };
        with_scratch(staged + measured, |scratch| {
            let statistics = Ptr(scratch.wrapping_add(staged));
            let before = self.staged.rows_of(strip).start * self.staged.line;
            let before = before * self.staged.images * self.staged.pitch;
            let mut prefetch = self.next(task + 1, &group, to.x.at(0));
            let mut begins = true;
            // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint parts.
            unsafe {
                self.staged.load(to.x.at(0), strip, scratch);
                (self.unit.configure)(strip.images);
                for (phase, taps) in self.phases.iter().zip(&self.filter.taps) {
                    for class in &phase.classes {
                        let all = &phase.places(class, strip)[..];
                        let (group, a) = (group.clone(), scratch.wrapping_sub(before).cast_const());
                        let y = to.y.at(strip.image * self.image);
                        let w = ClassPositions { class, taps, all, strip, group, a, y, statistics, begins };
                        self.class(&w, to, &mut prefetch);
                        begins &= all.is_empty();
                    }
                }
                (self.unit.release)();
                self.gather(strip, i % self.staged.parts(), &group, statistics, to);
            }
        });
    }

    /// Stores the statistics of a strip.
    unsafe fn gather(
        &self,
        strip: PixelStrip,
        part: usize,
        group: &Range<usize>,
        statistics: Ptr,
        to: &StripArrays,
    ) {
        let Some(m) = &self.statistics else { return };
        for (i, image) in (strip.image..).take(strip.images).enumerate() {
            for (j, panel) in group.clone().enumerate() {
                let at = (i * group.len() + j) * STATISTICS;
                let kinds = [0, 1, 2].map(|k| statistics.elem::<f32>(at + k * COLUMNS).cast_const());
                let columns = &self.filter.panels[panel];
                // SAFETY: the caller has computed these numbers, and has room for those of all strips.
                unsafe {
                    let all = to.statistics.elem(0);
                    m.gather_shifted(image, part, columns.start, columns.len(), kinds, all);
                }
            }
        }
    }

    /// Computes the positions of a class: each call multiplies two positions by a panel of up to two column tiles.
    unsafe fn class(&self, w: &ClassPositions<'_>, to: &StripArrays, prefetch: &mut SoftwarePrefetch) {
        for first in (0..w.all.len()).step_by(2) {
            let two = first + 1 < w.all.len();
            let both = [first, first + usize::from(two)];
            for panel in w.group.clone() {
                let columns = &self.filter.panels[panel];
                let width = tiles(columns.len());
                let fetched = prefetch.next(w.class.runs.len() * w.taps.chunks);
                let bias = to.bias.elem::<f32>(columns.start).cast_const();
                let work = StridedProduct {
                    operands: StridedOperands {
                        a: both.map(|i| w.a.wrapping_add(w.all[i][0])),
                        a_row: self.staged.pitch,
                        a_chunk: LINE,
                        b: to.kernel.at(self.filter.at(w.taps, panel)).cast_const(),
                        b_next: LINE,
                        b_row: width * LINE,
                        b_chunk: width * LANES * LINE,
                        a_runs: w.class.runs.as_ptr(),
                        b_runs: w.class.packed_runs[width - 1].as_ptr(),
                        runs: w.class.runs.len(),
                        chunks: w.taps.chunks,
                        ahead: [fetched.at, fetched.end],
                        two: [two, width == 2],
                    },
                    height: w.strip.images,
                    columns: columns.len(),
                    rows: both.map(|i| self.rows(w, i, panel)),
                    bias: if self.bias { bias } else { std::ptr::null() },
                    narrow: self.element == 2,
                };
                // SAFETY: tiles stay inside the strip, its images of the result and the packed filter.
                unsafe { (self.unit.windows)(&work) };
            }
        }
    }

    /// Returns the destination of a position times a panel of columns.
    fn rows(&self, w: &ClassPositions<'_>, place: usize, panel: usize) -> TileRowOutput {
        let statistics = w.statistics.elem((panel - w.group.start) * STATISTICS);
        TileRowOutput {
            to: w.y.wrapping_add(w.all[place][1] + self.filter.panels[panel].start * self.element),
            row: self.image,
            skip: 0,
            statistics: if self.statistics.is_some() { statistics } else { std::ptr::null_mut() },
            apart: w.group.len() * STATISTICS,
            begins: w.begins && place == 0,
        }
    }

    /// Returns the prefetch of the input of task `task`, this thread's next one, while it computes `group`.
    fn next(&self, task: usize, group: &Range<usize>, x: *const u8) -> SoftwarePrefetch {
        let strips = self.staged.strips();
        if task >= strips * self.groups.len() {
            return SoftwarePrefetch::none();
        }
        let strip = self.staged.strip(task % strips);
        let pairs = |p: &ImagesPhase| -> usize {
            p.classes.iter().map(|c| p.places(c, strip).len().div_ceil(2)).sum::<usize>() * group.len()
        };
        SoftwarePrefetch::new([self.staged.input_of(x, strip), (x, 0)], self.phases.iter().map(pairs).sum())
    }
}

impl StripConvolution for AmxImagesForward {
    fn batch(&self) -> usize {
        self.staged.batch
    }

    fn statistics(&self) -> Option<&BatchStatistics> {
        self.statistics.as_ref()
    }

    fn bytes(&self) -> [usize; 2] {
        [self.filter.bytes, self.filter.panels.len() * COLUMNS * 4].map(|bytes| bytes.next_multiple_of(ALIGN))
    }

    fn bias(&self) -> Option<(Option<TileFn>, usize)> {
        self.bias.then_some((self.widen, self.features))
    }

    unsafe fn pack(&self, cx: &KernelContext<'_>, kernel: Ptr, packed: Ptr) {
        // SAFETY: by the caller's promise.
        unsafe { self.filter.pack(cx, kernel, packed) };
    }

    fn tasks(&self) -> (usize, f64) {
        let work = (self.products() * LANES * self.filter.panels.len()) as f64;
        (self.staged.strips() * self.groups.len(), work)
    }

    unsafe fn task(&self, task: usize, to: &StripArrays) {
        // SAFETY: by the caller's promise.
        unsafe { self.strip(task, to) };
    }
}
