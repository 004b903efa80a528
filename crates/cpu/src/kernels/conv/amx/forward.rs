//! Forward convolution and input gradient on AMX tile registers: `x: bf16[B, …, C], kernel → y: [B, …', F]`.
//!
//! The rows of an A tile are adjacent pixels of a line of the result. Their channels are a constant distance apart, so
//! for each tap the tile is loaded from the image itself, or from a strip that was copied with explicit zeros. Phases
//! and strips are those of the other kernels ([`crate::kernels::conv::staging::phases`]).

use crate::kernel::convolution::is_forward;
use crate::kernel::{KernelContext, Ptr, with_scratch};
use crate::kernels::conv::amx::filter::{AmxFilter, CHUNK, FilterStrides, PhaseTaps, tiles};
use crate::kernels::conv::staging::phases::{AxisPhase, axis, choices};
use crate::kernels::conv::staging::{PixelStrip, SoftwarePrefetch, StagedAxis, Staging};
use crate::kernels::conv::strips::StripConvolution;
use crate::kernels::conv::strips::batch_statistics::BatchStatistics;
use crate::kernels::conv::strips::strip_arrays::{NO_LAYER, StripArrays};
use crate::select::SelectResult;
use crate::simd::amx;
use crate::simd::amx::strided::{
    COLUMNS, STATISTICS, StridedKernels, StridedOperands, StridedProduct, TileRowOutput,
};
use crate::simd::amx::{LANES, LINE};
use crate::simd::level::{CompileTarget, TileFn};
use crate::simd::loops::widen;
use smallvec::SmallVec;
use std::ops::Range;
use systole_compile::ALIGN;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Bytes of a strip of the input. It stays in L2 with the packed filter that it is multiplied by.
const STRIP: usize = 256 << 10;
/// Maximum and minimum number of pixels of a strip.
const MOST_PIXELS: usize = 512;
const FEWEST_PIXELS: usize = 64;

/// AMX kernel of forward convolutions and input gradients; tile rows are lines of pixels.
pub struct AmxForward {
    unit: &'static StridedKernels,
    staging: Staging,
    phases: Vec<AmxPhase>,
    filter: AmxFilter,
    /// Panels of columns (features) that one task computes.
    groups: Vec<Range<usize>>,
    features: usize,
    bias: bool,
    /// Widens the bias to f32. `None`: the bias is f32.
    widen: Option<TileFn>,
    /// Elements of an image of the result, and bytes of an element.
    image: usize,
    element: usize,
    statistics: Option<BatchStatistics>,
}

/// Output positions that use the same taps.
struct AmxPhase {
    /// Start of each run of taps in a staged strip, in bytes.
    runs: Vec<usize>,
    /// Images, then each dimension: number of pixels, and bytes between pixels in the staged strip and in the result.
    dims: SmallVec<[PhaseDim; 4]>,
    /// Byte offset of the phase in an image of the result.
    base: usize,
}

#[derive(Clone, Copy)]
struct PhaseDim {
    count: usize,
    staged: usize,
    result: usize,
}

/// Pixels at a constant distance: byte offsets of the first pixel in the staged strip and in the result, and the index
/// of the image within the strip.
struct PixelLine {
    staged: usize,
    result: usize,
    image: usize,
}

/// Lines of equal length, cut into row tiles. The last tile of a line ends with the line, so it may overlap the
/// previous tile.
struct PixelLines {
    all: Vec<PixelLine>,
    length: usize,
    /// Bytes between adjacent pixels.
    staged: usize,
    result: usize,
    /// Tiles per line, and rows per tile.
    tiles: usize,
    height: usize,
}

impl AmxPhase {
    fn new(
        staging: &Staging,
        axes: &[(StagedAxis, Vec<AxisPhase>)],
        choice: &[usize],
        k: &FilterStrides,
        y: &TensorType,
    ) -> (AmxPhase, PhaseTaps) {
        let n = choice.len();
        let chosen: SmallVec<[&AxisPhase; 3]> = (0..n).map(|i| &axes[i].1[choice[i]]).collect();
        let last = &chosen[n - 1].taps;
        let (unit, tap) = (staging.strides[n - 1], k.spatial[n - 1]);
        // Whether two taps of the last dimension are contiguous in the staged strip and in the filter.
        let follow = |t: &[(usize, usize)]| {
            t[1].1 == t[0].1 + 1 && t[1].0 * tap == t[0].0 * tap + staging.width * k.channel
        };
        let joined = !last.is_empty() && unit == staging.width && last.windows(2).all(follow);
        let mut all = vec![(0, 0)];
        for (d, phase) in chosen.iter().enumerate() {
            let taps = if joined && d + 1 == n { &phase.taps[..1] } else { &phase.taps[..] };
            let place =
                |&(w, u): &(usize, usize)| (w * k.spatial[d], u * staging.strides[d] * staging.size());
            let with = |&(tap, run): &(usize, usize)| -> Vec<(usize, usize)> {
                taps.iter().map(place).map(|(t, r)| (tap + t, run + r)).collect()
            };
            all = all.iter().flat_map(with).collect();
        }
        let length = if joined { last.len() * staging.width } else { staging.width };
        let (taps, runs): (Vec<usize>, Vec<usize>) = all.into_iter().unzip();
        let (own, element) = (y.shape.strides(), y.dtype.size());
        let images = PhaseDim { count: 0, staged: staging.image * staging.size(), result: own[0] * element };
        let along = |i: usize| PhaseDim {
            count: chosen[i].count,
            staged: axes[i].0.step * staging.strides[i] * staging.size(),
            result: own[i + 1] * axes[i].1.len() * element,
        };
        let phase = AmxPhase {
            runs,
            dims: std::iter::once(images).chain((0..n).map(along)).collect(),
            base: (0..n).map(|i| choice[i] * own[i + 1] * element).sum(),
        };
        (phase, PhaseTaps::new(taps, length))
    }

    /// Divides a strip into lines, as long as constant distances allow. `apart`: no line has pixels of two images.
    fn lines(&self, strip: PixelStrip, apart: bool) -> PixelLines {
        let mut dims = self.dims.clone();
        dims[0].count = strip.images;
        dims[1].count = dims[1].count.min(strip.row + strip.rows).saturating_sub(strip.row);
        let PhaseDim { mut count, staged, result } = dims[dims.len() - 1];
        dims.truncate(dims.len() - 1);
        while let Some(d) = dims.last() {
            let follows = d.staged == count * staged && d.result == count * result;
            if d.count > 1 && (!follows || apart && dims.len() == 1) {
                break;
            }
            count *= d.count;
            dims.truncate(dims.len() - 1);
        }
        let mut all = vec![PixelLine { staged: 0, result: 0, image: 0 }];
        for (i, d) in dims.iter().enumerate() {
            let places = |line: &PixelLine| -> Vec<PixelLine> {
                let place = |k: usize| PixelLine {
                    staged: line.staged + k * d.staged,
                    result: line.result + k * d.result,
                    image: if i == 0 { k } else { line.image },
                };
                (0..d.count).map(place).collect()
            };
            all = all.iter().flat_map(places).collect();
        }
        let tiles = count.div_ceil(LANES);
        PixelLines { all, length: count, staged, result, tiles, height: count.div_ceil(tiles.max(1)) }
    }
}

impl PixelLines {
    /// Number of tiles of all lines.
    fn tiles(&self) -> usize {
        self.all.len() * self.tiles
    }

    /// Returns the line of a tile, its first pixel, and how many of its pixels the previous tile also covers.
    fn tile(&self, i: usize) -> (&PixelLine, usize, usize) {
        let first = i % self.tiles * self.height;
        let from = first.min(self.length - self.height);
        (&self.all[i / self.tiles], from, first - from)
    }

    /// Whether a tile is the first tile of its image.
    fn begins(&self, i: usize) -> bool {
        let line = i / self.tiles;
        i.is_multiple_of(self.tiles) && (line == 0 || self.all[line - 1].image != self.all[line].image)
    }
}

/// One phase of one strip.
struct StripPhase<'a> {
    phase: &'a AmxPhase,
    taps: &'a PhaseTaps,
    lines: &'a PixelLines,
    /// Range of column panels.
    group: Range<usize>,
    /// The staged strip, and the address of the phase in the strip's part of the result.
    a: *mut u8,
    y: *mut u8,
    /// Statistics of the strip: [`STATISTICS`] numbers for each image and panel.
    statistics: Ptr,
}

/// Returns the staged axes of a convolution's input with their phases.
pub fn axes(
    c: &Convolution,
    x: &TensorType,
    k: &TensorType,
    y: &TensorType,
) -> Vec<(StagedAxis, Vec<AxisPhase>)> {
    let d = &c.dims;
    let of = |i: usize| axis(c, i, x.shape[i + 1], k.shape[d.kernel_spatial[i]], y.shape[i + 1]);
    (0..d.input_spatial.len()).map(of).collect()
}

/// Plans how strips of the input are staged: in the stored element type.
fn stage(
    x: &TensorType,
    axes: &[(StagedAxis, Vec<AxisPhase>)],
    target: CompileTarget,
) -> SelectResult<Staging> {
    let channels = x.shape[x.rank() - 1];
    // In a chunk that is not full, the elements after the last channel belong to the next pixel. They are multiplied by
    // zero weights, which changes the result if they are infinite or NaN: allowed only with `target.winograd`.
    let whole = channels.is_multiple_of(CHUNK);
    if !whole && !target.winograd {
        return Err(
            "its channels do not fill tile rows, and zero weights may turn infinity into NaN (option winograd)".into()
        );
    }
    let pixels = (STRIP / (2 * channels)).clamp(FEWEST_PIXELS, MOST_PIXELS);
    let own = axes.iter().map(|a| a.0.clone()).collect();
    let staging = Staging::as_stored(x, own, pixels, 1, channels, whole, target.level.vectors());
    if !whole && staging.pitch != channels {
        return Err("its channels do not fill tile rows, and its pixels are not contiguous".into());
    }
    Ok(staging)
}

impl AmxForward {
    /// Creates the AMX convolution kernel, for bf16 layers on machines with AMX.
    pub fn new(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxForward> {
        let unit = amx::kernels_of(target.level).ok_or("this machine has no AMX tile registers")?;
        AmxForward::with(&unit.spread, c, bias, types, target)
    }

    /// Creates the kernel with the given AMX routines.
    pub(crate) fn with(
        unit: &'static StridedKernels,
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxForward> {
        let vectors = target.level.vectors();
        let known = [x.dtype, k.dtype] == [DType::BF16; 2] && matches!(y.dtype, DType::BF16 | DType::F32);
        ensure!(is_forward(c), NO_LAYER.into());
        ensure!(known, "operands are not bf16, or the result is neither bf16 nor f32".into());
        let axes = axes(c, x, k, y);
        let staging = stage(x, &axes, target)?;
        let layout = FilterStrides::new(c, k);
        let features = y.shape[y.rank() - 1];
        let along: Vec<usize> = axes.iter().map(|a| a.1.len()).collect();
        let phase = |choice: &SmallVec<[usize; 3]>| AmxPhase::new(&staging, &axes, choice, &layout, y);
        let (phases, taps) = choices(&along).iter().map(phase).unzip();
        let filter = AmxFilter::new(taps, layout, features, vectors)?;
        Ok(AmxForward {
            unit,
            groups: filter.groups(staging.strips()),
            staging,
            phases,
            filter,
            features,
            bias,
            widen: widen(y.dtype, vectors),
            image: y.elements() / y.shape[0],
            element: y.dtype.size(),
            statistics: None,
        })
    }

    /// Adds two results for each image and feature: the sum, and the sum of squared deviations from the mean. Only for
    /// convolutions without input dilation.
    pub fn with_statistics(mut self, target: CompileTarget) -> AmxForward {
        let inner: usize = self.phases[0].dims[2..].iter().map(|d| d.count).product();
        let parts = self.staging.strips_of_image().map(|s| s.rows * inner).collect();
        self.statistics = Some(BatchStatistics::new(self.features, parts, target.level.vectors()));
        self
    }

    /// Number of products of a row tile and a column tile.
    pub fn products(&self) -> usize {
        let strip = self.staging.strip(0);
        let of = |(phase, taps): (&AmxPhase, &PhaseTaps)| {
            phase.lines(strip, false).tiles() * taps.runs() * taps.chunks
        };
        self.phases.iter().zip(&self.filter.taps).map(of).sum::<usize>() * self.staging.strips()
    }

    /// Runs one task: a group of panels of one strip.
    unsafe fn strip(&self, task: usize, to: &StripArrays) {
        let group = self.groups[task / self.staging.strips()].clone();
        let strip = self.staging.strip(task % self.staging.strips());
        let staged = (self.staging.elements() * self.staging.size() + LINE).next_multiple_of(LINE);
        let part = strip.row / self.staging.most().1;
        let measured =
            if self.statistics.is_some() { strip.images * group.len() * STATISTICS * 4 } else { 0 };
        with_scratch(staged + measured, |scratch| {
            let statistics = Ptr(scratch.wrapping_add(staged));
            // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint parts.
            unsafe {
                let a = self.staging.load(to.x.at(0), strip, 0, scratch);
                if a == scratch.cast_const() {
                    // Bytes beyond the strip that the last chunk reads.
                    scratch.add(self.staging.end(strip) * self.staging.size()).write_bytes(0, LINE);
                }
                let mut prefetch = self.next(task + 1, &group, to.x.at(0));
                for (phase, taps) in self.phases.iter().zip(&self.filter.taps) {
                    let lines = phase.lines(strip, self.statistics.is_some());
                    if lines.tiles() > 0 {
                        let at = strip.image * self.image * self.element + phase.base;
                        let y = to.y.at(at + strip.row * phase.dims[1].result);
                        let group = group.clone();
                        let (lines, a) = (&lines, a.cast_mut());
                        let w = StripPhase { phase, taps, lines, group, a, y, statistics };
                        self.phase(&w, to, &mut prefetch);
                    }
                }
                (self.unit.release)();
                let Some(m) = &self.statistics else { return };
                for (i, image) in (strip.image..).take(strip.images).enumerate() {
                    for (j, panel) in group.clone().enumerate() {
                        let at = (i * group.len() + j) * STATISTICS;
                        let kinds = [0, 1, 2].map(|k| statistics.elem::<f32>(at + k * COLUMNS).cast_const());
                        let columns = &self.filter.panels[panel];
                        let all = to.statistics.elem(0);
                        m.gather_shifted(image, part, columns.start, columns.len(), kinds, all);
                    }
                }
            }
        });
    }

    /// Computes one phase of a strip: each call multiplies two row tiles by a panel of up to two column tiles.
    unsafe fn phase(&self, w: &StripPhase<'_>, to: &StripArrays, prefetch: &mut SoftwarePrefetch) {
        let &StripPhase { phase, taps, lines, a, .. } = w;
        // SAFETY: the AMX kernels were chosen for this machine.
        unsafe { (self.unit.configure)(lines.height) };
        for first in (0..lines.tiles()).step_by(2) {
            let two = first + 1 < lines.tiles();
            let left = [0, usize::from(two)].map(|i| {
                let (line, from, _) = lines.tile(first + i);
                a.wrapping_add(line.staged + from * lines.staged).cast_const()
            });
            for panel in w.group.clone() {
                let columns = &self.filter.panels[panel];
                let width = tiles(columns.len());
                let fetched = prefetch.next(taps.runs() * taps.chunks);
                let bias = to.bias.elem::<f32>(columns.start).cast_const();
                let work = StridedProduct {
                    operands: StridedOperands {
                        a: left,
                        a_row: lines.staged,
                        a_chunk: LINE,
                        b: to.kernel.at(self.filter.at(taps, panel)).cast_const(),
                        b_next: LINE,
                        b_row: width * LINE,
                        b_chunk: width * LANES * LINE,
                        a_runs: phase.runs.as_ptr(),
                        b_runs: taps.packed_runs[width - 1].as_ptr(),
                        runs: phase.runs.len(),
                        chunks: taps.chunks,
                        ahead: [fetched.at, fetched.end],
                        two: [two, width == 2],
                    },
                    height: lines.height,
                    columns: columns.len(),
                    rows: [0, usize::from(two)].map(|i| self.rows(w, first + i, panel)),
                    bias: if self.bias { bias } else { std::ptr::null() },
                    narrow: self.element == 2,
                };
                // SAFETY: tiles stay inside the strip, its part of the result and the packed filter.
                unsafe { (self.unit.windows)(&work) };
            }
        }
    }

    /// Returns the destination of a row tile times a panel of columns.
    fn rows(&self, w: &StripPhase<'_>, tile: usize, panel: usize) -> TileRowOutput {
        let (line, from, skip) = w.lines.tile(tile);
        let at = line.result + from * w.lines.result + self.filter.panels[panel].start * self.element;
        let of = (line.image * w.group.len() + panel - w.group.start) * STATISTICS;
        let measured = self.statistics.is_some();
        TileRowOutput {
            to: w.y.wrapping_add(at),
            row: w.lines.result,
            skip,
            statistics: if measured { w.statistics.elem(of) } else { std::ptr::null_mut() },
            apart: 0,
            begins: w.lines.begins(tile),
        }
    }

    /// Returns the prefetch of the input of task `task`, this thread's next one, while it computes `group`.
    fn next(&self, task: usize, group: &Range<usize>, x: *const u8) -> SoftwarePrefetch {
        let strips = self.staging.strips();
        if task >= strips * self.groups.len() {
            return SoftwarePrefetch::none();
        }
        let strip = self.staging.strip(task % strips);
        let calls =
            |p: &AmxPhase| p.lines(strip, self.statistics.is_some()).tiles().div_ceil(2) * group.len();
        SoftwarePrefetch::new([self.staging.input_of(x, strip), (x, 0)], self.phases.iter().map(calls).sum())
    }
}

impl StripConvolution for AmxForward {
    fn batch(&self) -> usize {
        self.staging.batch()
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
        let (images, rows) = self.staging.most();
        let pixels = |p: &AmxPhase| images * rows * p.dims[2..].iter().map(|d| d.count).product::<usize>();
        let phases = self.phases.iter().zip(&self.filter.taps);
        let products: usize = phases.map(|(p, t)| pixels(p) * t.runs() * t.chunks).sum();
        let work = (products * self.filter.panels.len() * self.staging.strips()) as f64;
        (self.staging.strips() * self.groups.len(), work)
    }

    unsafe fn task(&self, task: usize, to: &StripArrays) {
        // SAFETY: by the caller's promise.
        unsafe { self.strip(task, to) };
    }
}
