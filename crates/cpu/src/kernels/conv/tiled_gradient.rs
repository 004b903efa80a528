//! `x: bf16[B, …, C], dy: bf16[B, …', F] → dkernel: [taps, C, F]` by tile registers.
//!
//! Products run along pixels, in pairs. Of the staged input, words are made of each element and that of the next pixel:
//! whatever a tap's distance, sixteen pairs of sixteen channels are rows of a tile that lie at equal distances, as long
//! as pixels are counted along the staged lines, zeros at their ends included. The cotangent is copied to such places, with zeros
//! between, and packed: rows of its tiles are features. Sums are turned around when they are complete.

use super::stage::{Ahead, Axis, FEWEST_TASKS, Stage, Strip, group};
use super::{Parts, is_kernel_gradient};
use crate::detect::{Level, Target};
use crate::exec::{Cx, with_scratch};
use crate::kernels::amx::spread::{COLUMNS, Operands, Spread, Sums};
use crate::kernels::amx::{self, LANES, LINE};
use crate::kernels::lanes::Pairs;
use crate::kernels::pack::{PackFn, PanelArgs};
use crate::kernels::{Io, Kernel, Ptr};
use smallvec::SmallVec;
use std::ops::Range;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// Pixels of a chunk.
const CHUNK: usize = 2 * LANES;
/// Bytes of a staged strip and of the cotangent that meets it, which stay in the second-level cache.
const STRIP: usize = 1 << 20;
/// Features that one task computes at most, and channels: fewer of kernels with many taps.
const FEATURES: usize = 256;
const CHANNELS: usize = 512;
const FEWEST_CHANNELS: usize = 64;
/// Most partial sums, and most elements of all of them.
const MOST_PARTS: usize = 16;
const MOST_SUMS: usize = 4 << 20;

pub struct KernelGradient {
    unit: &'static Spread,
    pack: PackFn<f32>,
    pairs: Pairs,
    turn: TurnFn,
    stage: Stage,
    /// Where each run of columns begins among the words of a strip, in bytes, and columns of a run.
    runs: Vec<usize>,
    length: usize,
    /// Row of the result that each column of each run is, for the first slice.
    out: Vec<usize>,
    features: usize,
    groups: Vec<Range<usize>>,
    parts: Parts,
    strips_per_part: usize,
    /// Pixels along each dimension of the cotangent, and staged pixels between them.
    counts: SmallVec<[usize; 3]>,
    steps: SmallVec<[usize; 3]>,
    /// Staged words between two of those staged pixels that are counted.
    pixel: usize,
}

/// Adds or writes the transpose of a square of sums: from rows of [`COLUMNS`] to `rows` rows `stride` apart, `columns`
/// of each.
type TurnFn = unsafe fn(*const f32, *const *mut f32, [usize; 2], bool);

impl KernelGradient {
    /// The kernel for layers of bf16 on machines with tile registers.
    pub fn new(c: &Convolution, [x, dy, y]: [&TensorType; 3], target: Target) -> Option<KernelGradient> {
        KernelGradient::with(&amx::kernels_of(target.level)?.spread, c, [x, dy, y], target)
    }

    fn with(
        unit: &'static Spread,
        c: &Convolution,
        [x, dy, y]: [&TensorType; 3],
        target: Target,
    ) -> Option<KernelGradient> {
        let known = [x.dtype, dy.dtype] == [DType::BF16; 2] && matches!(y.dtype, DType::BF16 | DType::F32);
        // Zeros between pixels meet elements that the definition does not have there.
        if !is_kernel_gradient(c) || !known || !target.winograd {
            return None;
        }
        let (n, vectors) = (c.dims.input_spatial.len(), target.level.vectors());
        let (channels, features) = (x.shape[n + 1], dy.shape[n + 1]);
        let axis = |i: usize| {
            let (taps, step) = (y.shape[i], c.rhs_dilation[i]);
            // Of an input of which every pixel sees one element, only those are staged.
            let (unit, step) = if taps == 1 { (step, 1) } else { (1, step) };
            let reach = (taps - 1) * c.strides[i] + 1;
            let (size, holes, count) = (x.shape[i + 1], c.lhs_dilation[i], dy.shape[i + 1]);
            Axis { size, holes, low: -c.padding[i][0], unit, step, reach, count }
        };
        let taps: usize = y.shape[..n].iter().product();
        let width = (2 * CHANNELS / taps).clamp(FEWEST_CHANNELS, CHANNELS).min(channels);
        let pixels = STRIP / (width * 4 + features.min(FEATURES) * 2);
        let axes: Vec<Axis> = (0..n).map(axis).collect();
        let close = axes.iter().all(|a| a.unit == 1);
        let stage = Stage::as_stored(x, axes, pixels, y.elements(), width, close, vectors);
        let last = stage.axes()[n - 1].step * stage.pitch;
        let distance = |i: usize| stage.axes()[i].step * stage.strides[i];
        if !(0..n).all(|i| distance(i).is_multiple_of(last)) {
            return None;
        }
        let along: Vec<Vec<usize>> =
            (0..n).map(|i| (0..y.shape[i]).map(|t| t * c.strides[i]).collect()).collect();
        let (runs, length) = super::stage::runs(&stage, &along);
        let out = (0..taps).flat_map(|tap| (0..stage.width).map(move |c| tap * channels + c)).collect();
        let size = y.elements();
        let groups = group(features.div_ceil(COLUMNS), features.div_ceil(FEATURES));
        let most = (MOST_SUMS / size).clamp(1, MOST_PARTS).min(stage.strips());
        let parts = FEWEST_TASKS.div_ceil(stage.slices * groups.len()).min(most);
        let strips_per_part = stage.strips().div_ceil(parts);
        let parts = stage.strips().div_ceil(strips_per_part);
        let [pack, _] = amx::pack::packs(DType::BF16, vectors)?;
        Some(KernelGradient {
            unit,
            pack,
            pairs: Pairs::new(vectors),
            turn: turn_of(target.level),
            runs: runs.into_iter().map(|at| at * 4).collect(),
            length,
            out,
            features,
            groups,
            parts: Parts::new(parts, y, vectors),
            strips_per_part,
            counts: dy.shape[1..=n].into(),
            steps: (0..n).map(|i| distance(i) / last).collect(),
            pixel: last,
            stage,
        })
    }

    /// Tasks of a part.
    fn per_part(&self) -> usize {
        self.stage.slices * self.groups.len()
    }

    /// Staged pixels from the first to the last one of so many rows of an image.
    fn span(&self, rows: usize) -> usize {
        let last = |(count, step): (&usize, &usize)| (count - 1) * step;
        let inner: usize = self.counts[1..].iter().zip(&self.steps[1..]).map(last).sum();
        (rows - 1) * self.steps[0] + inner + 1
    }

    /// Pixels of the cotangent in a row of the first dimension, and in an image.
    fn pixels(&self) -> [usize; 2] {
        let row = self.counts[1..].iter().product();
        [row, row * self.counts[0]]
    }

    /// Pairs of tiles of columns in a run.
    fn across(&self) -> usize {
        self.length.div_ceil(COLUMNS)
    }

    /// One task: some features of the channels of one slice, over the strips of one part.
    unsafe fn task(&self, task: usize, x: *const u8, dy: *const u8, sums: *mut f32) {
        let (part, rest) = (task / self.per_part(), task % self.per_part());
        let (slice, group) = (rest / self.groups.len(), self.groups[rest % self.groups.len()].clone());
        let columns = group.start * COLUMNS..(group.end * COLUMNS).min(self.features);
        let (images, rows) = self.stage.most();
        let chunks = self.span(rows).div_ceil(CHUNK);
        // What the last pairs of pixels and tiles read beyond a strip.
        let beyond = CHUNK * self.pixel * 4 + 2 * LINE;
        let staged = self.stage.elements() * 2;
        let words = images * self.stage.image * 4 + beyond;
        let spread = images * chunks * CHUNK * columns.len() * 2;
        let packed = group.len() * images * chunks * 2 * LANES * LINE;
        let blocks = group.len() * self.runs.len() * self.across();
        let parts = [staged, words, spread, packed, blocks * COLUMNS * COLUMNS * 4];
        let parts = parts.map(|bytes| bytes.next_multiple_of(LINE));
        with_scratch(parts.iter().sum(), |scratch| {
            let mut at = scratch;
            let [staged, words, spread, packed, squares] = parts.map(|bytes| {
                let place = at;
                at = at.wrapping_add(bytes);
                place
            });
            let first = part * self.strips_per_part;
            let last = (first + self.strips_per_part).min(self.stage.strips());
            // SAFETY: operands have the shapes of `new`, scratch is laid out as above, tasks write disjoint sums.
            unsafe {
                (self.unit.configure)(LANES);
                for i in first..last {
                    let strip = self.stage.strip(i);
                    let elements = self.stage.load(x, strip, slice, staged);
                    self.words(elements, self.stage.end(strip), words);
                    words.add(self.stage.end(strip) * 4).write_bytes(0, beyond);
                    let chunks = self.left(dy, strip, &columns, spread, packed);
                    let next = (i + 1 < last).then(|| self.stage.strip(i + 1));
                    let mut ahead = self.next(next, x, dy, blocks);
                    self.strip(
                        strip.images,
                        chunks,
                        &group,
                        [packed, words],
                        squares.cast(),
                        i > first,
                        &mut ahead,
                    );
                }
                (self.unit.release)();
                let to = part * self.parts.size + slice * self.stage.width * self.features;
                self.turn_all(&columns, squares.cast(), sums.wrapping_add(to));
            }
        });
    }

    /// Makes words of `n` elements that follow each other and of those a pixel further on, zeros at the end.
    unsafe fn words(&self, from: *const u8, n: usize, to: *mut u8) {
        let both = n.saturating_sub(self.pixel);
        // SAFETY: by the caller's promise there are `n` elements, and room for as many words.
        unsafe {
            self.pairs.put(Some(from), Some(from.wrapping_add(self.pixel * 2)), to.cast(), both);
            self.pairs.put(Some(from.wrapping_add(both * 2)), None, to.add(both * 4).cast(), n - both);
        }
    }

    /// What comes after a strip, to be fetched meanwhile.
    fn next(&self, strip: Option<Strip>, x: *const u8, dy: *const u8, calls: usize) -> Ahead {
        let Some(next) = strip else { return Ahead::none() };
        let [row, image] = self.pixels();
        let to = (next.image * image + next.row * row) * self.features * 2;
        let bytes = next.images * next.rows * row * self.features * 2;
        Ahead::new([self.stage.input_of(x, next), (dy.wrapping_add(to), bytes)], calls)
    }

    /// Packs the cotangent of a strip: panels of features, of each image its chunks of staged pixels. How many those are.
    unsafe fn left(
        &self,
        dy: *const u8,
        strip: Strip,
        columns: &Range<usize>,
        spread: *mut u8,
        packed: *mut u8,
    ) -> usize {
        let span = self.span(strip.rows);
        let (chunks, [row, image]) = (span.div_ceil(CHUNK), self.pixels());
        let size = self.features * 2;
        let from = dy.wrapping_add((strip.image * image + strip.row * row) * size + columns.start * 2);
        // Where nothing lies between the pixels they are packed from where they are.
        let dense = span == strip.rows * row;
        let (source, step) = if dense { (from, size) } else { (spread.cast_const(), columns.len() * 2) };
        if !dense {
            // SAFETY: there is room for the whole strip.
            unsafe { self.spread(from, strip, columns.len(), spread) };
        }
        for (j, panel) in columns.clone().step_by(COLUMNS).enumerate() {
            for i in 0..strip.images {
                let place = (j * strip.images + i) * chunks * 2 * LANES * LINE;
                let before = if dense { i * image * step } else { i * chunks * CHUNK * step };
                let args = PanelArgs {
                    src: source.wrapping_add(before + (panel - columns.start) * 2),
                    lane: 2,
                    step,
                    lanes: COLUMNS.min(columns.end - panel),
                    fill: COLUMNS,
                    k: chunks * LANES,
                    products: span,
                    dst: packed.wrapping_add(place).cast::<f32>(),
                    stride: COLUMNS,
                };
                // SAFETY: the pixels of one image; there is room for its chunks.
                unsafe { (self.pack)(&[args]) };
            }
        }
        chunks
    }

    /// Copies the pixels of a strip to where they are counted, zeros between.
    unsafe fn spread(&self, from: *const u8, strip: Strip, columns: usize, to: *mut u8) {
        let ([row, image], n) = (self.pixels(), self.counts.len());
        let (size, wide) = (self.features * 2, columns * 2);
        let chunks = self.span(strip.rows).div_ceil(CHUNK);
        // Lines of the last dimension; of one dimension, each pixel.
        let line = if n > 1 { self.counts[n - 1] } else { 1 };
        for i in 0..strip.images {
            let to = to.wrapping_add(i * chunks * CHUNK * wide);
            let mut written = 0;
            for l in 0..strip.rows * row / line {
                let (mut rest, mut at) = (l * line, 0);
                for d in (1..n).rev() {
                    at += rest % self.counts[d] * self.steps[d];
                    rest /= self.counts[d];
                }
                at += rest * self.steps[0];
                // SAFETY: the line's pixels on both sides.
                unsafe {
                    to.add(written * wide).write_bytes(0, (at - written) * wide);
                    for p in 0..line {
                        let pixel = from.add((i * image + l * line + p) * size);
                        std::ptr::copy_nonoverlapping(pixel, to.add((at + p) * wide), wide);
                    }
                }
                written = at + line;
            }
        }
    }

    /// Adds the products of one strip.
    #[allow(clippy::too_many_arguments)]
    unsafe fn strip(
        &self,
        images: usize,
        chunks: usize,
        group: &Range<usize>,
        [a, b]: [*mut u8; 2],
        squares: *mut f32,
        add: bool,
        ahead: &mut Ahead,
    ) {
        let a_runs: SmallVec<[usize; 16]> = (0..images).map(|i| i * chunks * 2 * LANES * LINE).collect();
        let b_runs: SmallVec<[usize; 16]> = (0..images).map(|i| i * self.stage.image * 4).collect();
        let mut square = 0;
        for run in &self.runs {
            for j in 0..self.across() {
                for panel in 0..group.len() {
                    let features = self.features - (group.start + panel) * COLUMNS;
                    let left = a.wrapping_add(panel * images * chunks * 2 * LANES * LINE).cast_const();
                    let fetched = ahead.next(images * chunks);
                    let work = Sums {
                        operands: Operands {
                            a: [left, left.wrapping_add(LANES * LINE)],
                            a_row: LINE,
                            a_chunk: 2 * LANES * LINE,
                            b: b.wrapping_add(run + j * COLUMNS * 4).cast_const(),
                            b_row: 2 * self.pixel * 4,
                            b_chunk: CHUNK * self.pixel * 4,
                            a_runs: a_runs.as_ptr(),
                            b_runs: b_runs.as_ptr(),
                            runs: images,
                            chunks,
                            ahead: [fetched.at, fetched.end],
                            two: [features > LANES, self.length - j * COLUMNS > LANES],
                        },
                        c: squares.wrapping_add(square * COLUMNS * COLUMNS),
                        add,
                    };
                    square += 1;
                    // SAFETY: tiles stay inside the strip and what follows it, the packed cotangent and the squares.
                    unsafe { (self.unit.sums)(&work) };
                }
            }
        }
    }

    /// Writes complete sums: rows of squares are features, those of the result channels.
    unsafe fn turn_all(&self, columns: &Range<usize>, squares: *const f32, to: *mut f32) {
        let (mut square, add) = (squares, self.parts.begin_with_result());
        for run in 0..self.runs.len() {
            for j in (0..self.length).step_by(COLUMNS) {
                let out = &self.out[run * self.length + j..(run + 1) * self.length];
                for panel in columns.clone().step_by(COLUMNS) {
                    let mut rows = [std::ptr::null_mut(); COLUMNS];
                    for (row, out) in rows.iter_mut().zip(out) {
                        *row = to.wrapping_add(out * self.features + panel);
                    }
                    let counts = [out.len().min(COLUMNS), (columns.end - panel).min(COLUMNS)];
                    // SAFETY: rows and columns are those of the result.
                    unsafe { (self.turn)(square, rows.as_ptr(), counts, add) };
                    square = square.wrapping_add(COLUMNS * COLUMNS);
                }
            }
        }
    }
}

/// Number by number.
unsafe fn turn(square: *const f32, to: *const *mut f32, [rows, columns]: [usize; 2], add: bool) {
    for i in 0..rows {
        // SAFETY: by the promise of `TurnFn`.
        unsafe {
            let to = *to.add(i);
            for j in 0..columns {
                let before = if add { *to.add(j) } else { 0.0 };
                *to.add(j) = before + *square.add(j * COLUMNS + i);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn turn_of(level: Level) -> TurnFn {
    if level.vectors() == Level::Avx512 { avx512::turn } else { turn }
}

#[cfg(not(target_arch = "x86_64"))]
fn turn_of(_: Level) -> TurnFn {
    turn
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{COLUMNS, LANES};
    use crate::kernels::pack::avx512::transposed_words;
    use std::arch::x86_64::*;

    /// Sixteen by sixteen.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn turn(square: *const f32, to: *const *mut f32, [rows, columns]: [usize; 2], add: bool) {
        for i in (0..rows).step_by(LANES) {
            for j in (0..columns).step_by(LANES) {
                let mask = (1u32 << (columns - j).min(LANES)) - 1;
                // SAFETY: by the promise of `TurnFn`; the mask keeps to the columns.
                unsafe {
                    let mut words = [_mm512_setzero_si512(); LANES];
                    for (k, word) in words.iter_mut().enumerate() {
                        *word = _mm512_loadu_si512(square.add((j + k) * COLUMNS + i).cast());
                    }
                    let turned = transposed_words(words);
                    for (k, row) in turned.iter().enumerate().take(rows - i) {
                        let (to, mut y) = ((*to.add(i + k)).add(j), _mm512_castsi512_ps(*row));
                        if add {
                            y = _mm512_add_ps(_mm512_maskz_loadu_ps(mask as u16, to), y);
                        }
                        _mm512_mask_storeu_ps(to, mask as u16, y);
                    }
                }
            }
        }
    }
}

impl Kernel for KernelGradient {
    fn scratch(&self) -> usize {
        self.parts.bytes()
    }

    fn add_to_result(&mut self) -> bool {
        self.parts.add_to_result()
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let (x, dy) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]));
        let sums = self.parts.place(io);
        let body = |task: usize| {
            // SAFETY: tasks have their own sums.
            unsafe { self.task(task, x.at(0), dy.at(0), sums.elem(0)) };
        };
        let pixels = self.stage.batch() * self.pixels()[1];
        let work = pixels as f64 * self.parts.size as f64 / 500.0;
        cx.team.run_with(self.parts.count * self.per_part(), work, cx.flush, &body);
        // SAFETY: every task has left its sums.
        unsafe { self.parts.finish(cx, io) };
        Ok(())
    }
}
