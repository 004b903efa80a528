//! Filter gradient of a convolution on AMX: `x: bf16[B, …, C], dy: bf16[B, …', F] → dkernel: [taps, C, F]`.
//!
//! K runs over pixels, in pairs. From the staged input, words are built of each element and the same channel of the
//! next pixel, in planes of 16 channels. K counts pixels along the staged lines, including zeros at their ends. So for
//! any tap, the rows of a B tile (16 pairs of pixels by 16 channels) are a constant distance apart and are loaded from
//! the planes. If the channels are not a multiple of 16, words stay in the order of the elements, and the columns of a
//! tile cover several taps. `dy` is copied to the same positions, with zeros in between, and packed as A, whose rows
//! are features. The accumulators, features by channels, are transposed when they are complete.

use crate::kernel::convolution::is_kernel_gradient;
use crate::kernel::partial_sums::{PartialSums, kernel_of_parts};
use crate::kernel::with_scratch;
use crate::kernels::conv::staging::phases::{gradient_axes, gradient_taps};
use crate::kernels::conv::staging::{FEWEST_TASKS, PixelStrip, SoftwarePrefetch, Staging, group, runs};
use crate::kernels::conv::strips::strip_arrays::NO_GRADIENT;
use crate::select::SelectResult;
use crate::simd::amx;
use crate::simd::amx::strided::{COLUMNS, StridedKernels, StridedOperands, StridedSums};
use crate::simd::amx::{LANES, LINE};
use crate::simd::level::{CompileTarget, Isa, Level, TileFn, TileLoop};
use crate::simd::loops::InterleaveBf16;
use crate::simd::pack::{PackFn, PanelArgs};
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use std::ops::Range;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Pixels of a K chunk: 16 pairs.
const CHUNK: usize = 2 * LANES;
/// Bytes of a strip, of its words and of the `dy` that they are multiplied by. They stay in L2.
const STRIP: usize = 512 << 10;
/// K chunks whose tiles of A and B stay in L1 while all of them are multiplied.
const KC_CHUNKS: usize = 12;
/// K chunks of `dy` that are packed for all features before the next chunks are read.
const PACKED: usize = 4;
/// Maximum features and channels of one task. Filters with many taps use fewer channels, down to `FEWEST_CHANNELS`.
const FEATURES: usize = 256;
const CHANNELS: usize = 512;
const FEWEST_CHANNELS: usize = 64;
/// Maximum number of partial sums, and maximum elements of all of them: 16 MiB.
const MOST_PARTS: usize = 16;
const MOST_SUMS: usize = 4 << 20;

/// AMX kernel of filter gradients; K runs over lines of pixels.
pub struct AmxKernelGradient {
    unit: &'static StridedKernels,
    pack: PackFn<f32>,
    transpose: TransposeFn,
    staging: Staging,
    words: WordLayout,
    /// Columns of the GEMM (taps and channels), and the result row of each, for the first slice of channels.
    columns: Vec<TapColumns>,
    out: Vec<usize>,
    features: usize,
    /// Panels of [`COLUMNS`] features that one task computes.
    groups: Vec<Range<usize>>,
    parts: PartialSums,
    strips_per_part: usize,
    /// Pixels along each dimension of `dy`, and the staged pixels between them.
    counts: SmallVec<[usize; 3]>,
    steps: SmallVec<[usize; 3]>,
}

/// Memory layout of a strip's words.
struct WordLayout {
    /// Builds planes. `None`: words are in the order of the elements.
    planes: Option<TileFn>,
    pairs: InterleaveBf16,
    /// Bytes between staged pixels, between pixels that K counts, and between column tiles.
    staged: usize,
    pixel: usize,
    plane: usize,
}

impl WordLayout {
    fn new(staging: &Staging, vectors: Level) -> WordLayout {
        let step = staging.axes()[staging.axes().len() - 1].step;
        let planes = staging.width.is_multiple_of(LANES);
        let staged = if planes { LINE } else { staging.pitch * 4 };
        // An odd number of cache lines, so that planes do not alias.
        let plane = ((staging.end(staging.strip(0)) / staging.pitch + CHUNK * step) | 1) * LINE;
        WordLayout {
            planes: planes.then(|| vectors.tile::<InterleavePlanes>()),
            pairs: InterleaveBf16::new(vectors),
            staged,
            pixel: step * staged,
            plane: if planes { plane } else { LINE },
        }
    }
}

/// Returns the number of batch parts with separate partial sums, and the strips per part.
fn cut(staging: &Staging, size: usize, groups: usize) -> (usize, usize) {
    let most = (MOST_SUMS / size).clamp(1, MOST_PARTS).min(staging.strips());
    let parts = FEWEST_TASKS.div_ceil(staging.slices * groups).min(most);
    let strips_per_part = staging.strips().div_ceil(parts);
    (staging.strips().div_ceil(strips_per_part), strips_per_part)
}

/// Columns of at most two tiles: byte offset of their words in a strip, the first column, and the number of columns.
struct TapColumns {
    at: usize,
    first: usize,
    count: usize,
}

/// Pixels from which words are built.
struct PixelPairArgs {
    /// Elements between adjacent pixels, and between a pixel and the pixel that it is paired with.
    pitch: usize,
    next: usize,
    count: usize,
    planes: usize,
    /// Bytes between planes.
    plane: usize,
}

/// Builds planes of words at `dst` from the bf16 elements at `a`, as described by the [`PixelPairArgs`] at `b`.
struct InterleavePlanes;
impl TileLoop for InterleavePlanes {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, _: usize) {
        // SAFETY: the caller has all pixels and their paired pixels, and room for all planes.
        unsafe {
            let pixels = &*b.cast::<PixelPairArgs>();
            for i in 0..pixels.count {
                for plane in 0..pixels.planes {
                    let from = a.cast::<u16>().add(i * pixels.pitch + plane * LANES);
                    let y = from.add(pixels.next);
                    let [x, y] = [from, y].map(|p| *p.cast::<[u16; LANES]>());
                    let words: [u32; LANES] =
                        std::array::from_fn(|j| u32::from(x[j]) | u32::from(y[j]) << 16);
                    dst.add(plane * pixels.plane + i * LINE).cast::<[u32; LANES]>().write(words);
                }
            }
        }
    }
}

/// Writes or adds the transpose of a block of accumulators: from rows of [`COLUMNS`] numbers to result rows at the
/// given addresses. The sizes are the number of result rows and the elements of each.
type TransposeFn = unsafe fn(*const f32, *const *mut f32, [usize; 2], bool);

impl AmxKernelGradient {
    /// Creates the AMX filter-gradient kernel, for bf16 layers on machines with AMX.
    pub fn new(
        c: &Convolution,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxKernelGradient> {
        let unit = amx::kernels_of(target.level).ok_or("this machine has no AMX tile registers")?;
        AmxKernelGradient::with(&unit.spread, c, types, target)
    }

    /// Creates the kernel with the given AMX routines.
    pub(crate) fn with(
        unit: &'static StridedKernels,
        c: &Convolution,
        [x, dy, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<AmxKernelGradient> {
        let known = [x.dtype, dy.dtype] == [DType::BF16; 2] && matches!(y.dtype, DType::BF16 | DType::F32);
        ensure!(is_kernel_gradient(c), NO_GRADIENT.into());
        ensure!(known, "operands are not bf16, or the result is neither bf16 nor f32".into());
        if !target.winograd {
            return Err(
                "zeros between pixels would be multiplied by elements that the definition does not read"
                    .into(),
            );
        }
        let (n, vectors) = (c.dims.input_spatial.len(), target.level.vectors());
        let (channels, features) = (x.shape[n + 1], dy.shape[n + 1]);
        let taps: usize = y.shape[..n].iter().product();
        let width = (2 * CHANNELS / taps).clamp(FEWEST_CHANNELS, CHANNELS).min(channels);
        let pixels = STRIP / (width * 4 + features.min(FEATURES) * 2);
        let axes = gradient_axes(c, x, dy, y);
        let close = axes.iter().all(|a| a.unit == 1);
        let staging = Staging::as_stored(x, axes, pixels, y.elements(), width, close, vectors);
        let last = staging.axes()[n - 1].step * staging.pitch;
        let distance = |i: usize| staging.axes()[i].step * staging.strides[i];
        if !(0..n).all(|i| distance(i).is_multiple_of(last)) {
            return Err("its row stride is not a multiple of its pixel stride".into());
        }
        let words = WordLayout::new(&staging, vectors);
        let taps = gradient_taps(c, y);
        let (columns, out) = match words.planes {
            Some(_) => in_planes(&staging, &taps, channels, words.plane),
            None => in_runs(&staging, &taps, channels),
        };
        let groups = group(features.div_ceil(COLUMNS), features.div_ceil(FEATURES));
        let (parts, strips_per_part) = cut(&staging, y.elements(), groups.len());
        let [pack, _] =
            amx::pack::packs(DType::BF16, vectors).ok_or("there is no AMX packing routine for bf16")?;
        Ok(AmxKernelGradient {
            unit,
            pack,
            transpose: transpose_of(target.level),
            words,
            columns,
            out,
            features,
            groups,
            parts: PartialSums::new(parts, y, vectors),
            strips_per_part,
            counts: dy.shape[1..=n].into(),
            steps: (0..n).map(|i| distance(i) / last).collect(),
            staging,
        })
    }

    /// Number of tile products, two by two at a time.
    pub fn products(&self) -> usize {
        let chunks = self.span(self.staging.most().1).div_ceil(CHUNK);
        let strips = self.staging.strips() * self.staging.slices * self.staging.most().0;
        strips * chunks * self.columns.len() * self.features.div_ceil(COLUMNS)
    }

    /// Number of tasks per part.
    fn per_part(&self) -> usize {
        self.staging.slices * self.groups.len()
    }

    /// Number of staged pixels from the first to the last pixel of `rows` rows of an image.
    fn span(&self, rows: usize) -> usize {
        let last = |(count, step): (&usize, &usize)| (count - 1) * step;
        let inner: usize = self.counts[1..].iter().zip(&self.steps[1..]).map(last).sum();
        (rows - 1) * self.steps[0] + inner + 1
    }

    /// Pixels of `dy` in a row of the first dimension, and in an image.
    fn pixels(&self) -> [usize; 2] {
        let row = self.counts[1..].iter().product();
        [row, row * self.counts[0]]
    }

    /// Bytes of a strip's words, including the bytes that tiles read beyond them.
    fn words_bytes(&self) -> usize {
        match self.words.planes {
            Some(_) => self.staging.width / LANES * self.words.plane,
            None => self.staging.end(self.staging.strip(0)) * 4 + CHUNK * self.words.pixel + 2 * LINE,
        }
    }

    /// Runs one task: a group of feature panels by one slice of channels, over the strips of one part.
    unsafe fn task(&self, task: usize, x: *const u8, dy: *const u8, sums: *mut f32) {
        let (part, rest) = (task / self.per_part(), task % self.per_part());
        let (slice, group) = (rest / self.groups.len(), self.groups[rest % self.groups.len()].clone());
        let columns = group.start * COLUMNS..(group.end * COLUMNS).min(self.features);
        let (images, rows) = self.staging.most();
        let chunks = self.span(rows).div_ceil(CHUNK);
        let staged = self.staging.elements() * 2;
        let words = self.words_bytes();
        let spread = images * chunks * CHUNK * columns.len() * 2;
        let packed = group.len() * images * chunks * 2 * LANES * LINE;
        let blocks = group.len() * self.columns.len();
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
            let last = (first + self.strips_per_part).min(self.staging.strips());
            // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint sums.
            unsafe {
                (self.unit.configure)(LANES);
                for i in first..last {
                    let strip = self.staging.strip(i);
                    let elements = self.staging.load(x, strip, slice, staged);
                    self.words(elements, self.staging.end(strip), words);
                    let chunks = self.left(dy, strip, &columns, spread, packed);
                    let next = (i + 1 < last).then(|| self.staging.strip(i + 1));
                    let calls = blocks * (strip.images * chunks).div_ceil(KC_CHUNKS);
                    let mut prefetch = self.next(next, x, dy, calls);
                    self.strip(
                        strip.images,
                        chunks,
                        &group,
                        [packed, words],
                        squares.cast(),
                        i > first,
                        &mut prefetch,
                    );
                }
                (self.unit.release)();
                let to = part * self.parts.size + slice * self.staging.width * self.features;
                self.transpose_all(&columns, squares.cast(), sums.wrapping_add(to));
            }
        });
    }

    /// Builds words of `n` contiguous elements. Zeros replace partners beyond the end, and follow the words.
    unsafe fn words(&self, from: *const u8, n: usize, to: *mut u8) {
        let (pitch, words) = (self.staging.pitch, &self.words);
        let next = words.pixel / words.staged * pitch;
        let whole = n.saturating_sub(next);
        // SAFETY: the caller has `n` elements, and room for `words_bytes` bytes.
        unsafe {
            let Some(planes) = words.planes else {
                words.pairs.put(Some(from), Some(from.wrapping_add(next * 2)), to.cast(), whole);
                let rest = from.wrapping_add(whole * 2);
                words.pairs.put(Some(rest), None, to.add(whole * 4).cast(), n - whole);
                to.add(n * 4).write_bytes(0, CHUNK * words.pixel + 2 * LINE);
                return;
            };
            let count = self.staging.width / LANES;
            let all = PixelPairArgs { pitch, next, count: whole / pitch, planes: count, plane: words.plane };
            planes(to, from, (&raw const all).cast(), from, 0);
            for plane in 0..count {
                let to = to.add(plane * words.plane);
                for i in whole / pitch..n / pitch {
                    let rest = from.wrapping_add((i * pitch + plane * LANES) * 2);
                    words.pairs.put(Some(rest), None, to.add(i * LINE).cast(), LANES);
                }
                to.add(n / pitch * LINE).write_bytes(0, words.plane - n / pitch * LINE);
            }
        }
    }

    /// Returns the prefetch of the next strip's operands, in `calls` calls of the microkernel.
    fn next(&self, strip: Option<PixelStrip>, x: *const u8, dy: *const u8, calls: usize) -> SoftwarePrefetch {
        let Some(next) = strip else { return SoftwarePrefetch::none() };
        let [row, image] = self.pixels();
        let to = (next.image * image + next.row * row) * self.features * 2;
        let bytes = next.images * next.rows * row * self.features * 2;
        SoftwarePrefetch::new([self.staging.input_of(x, next), (dy.wrapping_add(to), bytes)], calls)
    }

    /// Packs `dy` of a strip as A: panels of features, and in each panel the K chunks of one image after another.
    /// Returns the chunks per image.
    unsafe fn left(
        &self,
        dy: *const u8,
        strip: PixelStrip,
        columns: &Range<usize>,
        spread: *mut u8,
        packed: *mut u8,
    ) -> usize {
        let span = self.span(strip.rows);
        let (chunks, [row, image]) = (span.div_ceil(CHUNK), self.pixels());
        let size = self.features * 2;
        let from = dy.wrapping_add((strip.image * image + strip.row * row) * size + columns.start * 2);
        // Without gaps between pixels, `dy` is packed directly.
        let dense = span == strip.rows * row;
        let (source, step) = if dense { (from, size) } else { (spread.cast_const(), columns.len() * 2) };
        if !dense {
            // SAFETY: `spread` has room for the whole strip.
            unsafe { self.spread(from, strip, columns.len(), spread) };
        }
        for i in 0..strip.images {
            let before = if dense { i * image * step } else { i * chunks * CHUNK * step };
            for (first, count) in pieces(chunks, PACKED) {
                for (j, panel) in columns.clone().step_by(COLUMNS).enumerate() {
                    let place = ((j * strip.images + i) * chunks + first) * 2 * LANES * LINE;
                    let at = before + first * CHUNK * step + (panel - columns.start) * 2;
                    let args = PanelArgs {
                        src: source.wrapping_add(at),
                        lane: 2,
                        step,
                        lanes: COLUMNS.min(columns.end - panel),
                        fill: COLUMNS,
                        k: count * LANES,
                        products: (span - first * CHUNK).min(count * CHUNK),
                        dst: packed.wrapping_add(place).cast::<f32>(),
                        stride: COLUMNS,
                    };
                    // SAFETY: the source has the pixels of one image; `packed` has room for its chunks.
                    unsafe { (self.pack)(&[args]) };
                }
            }
        }
        chunks
    }

    /// Copies the pixels of a strip to the positions that K counts, with zeros in between.
    unsafe fn spread(&self, from: *const u8, strip: PixelStrip, columns: usize, to: *mut u8) {
        let ([row, image], n) = (self.pixels(), self.counts.len());
        let (size, wide) = (self.features * 2, columns * 2);
        let chunks = self.span(strip.rows).div_ceil(CHUNK);
        // Lines of the last dimension. With one dimension, each pixel is a line.
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
                // SAFETY: both sides have the pixels of the line.
                unsafe {
                    to.add(written * wide).write_bytes(0, (at - written) * wide);
                    if wide == size {
                        let from = from.add((i * image + l * line) * size);
                        std::ptr::copy_nonoverlapping(from, to.add(at * wide), line * wide);
                    } else {
                        for p in 0..line {
                            let pixel = from.add((i * image + l * line + p) * size);
                            std::ptr::copy_nonoverlapping(pixel, to.add((at + p) * wide), wide);
                        }
                    }
                }
                written = at + line;
            }
        }
    }

    /// Multiplies one strip, a few K chunks at a time, and adds to the accumulators.
    #[allow(clippy::too_many_arguments)]
    unsafe fn strip(
        &self,
        images: usize,
        chunks: usize,
        group: &Range<usize>,
        [a, b]: [*mut u8; 2],
        squares: *mut f32,
        add: bool,
        prefetch: &mut SoftwarePrefetch,
    ) {
        const PANEL: usize = 2 * LANES * LINE;
        let image = self.staging.image / self.staging.pitch * self.words.staged;
        let b_chunk = CHUNK * self.words.pixel;
        let (mut add, together) = (add, (KC_CHUNKS / chunks.max(1)).max(1));
        for (first, images_of) in pieces(images, together) {
            let runs_of = |size: usize| -> SmallVec<[usize; 16]> {
                (0..images_of).map(|i| (first + i) * size).collect()
            };
            let (a_runs, b_runs) = (runs_of(chunks * PANEL), runs_of(image));
            for (from, count) in pieces(chunks, KC_CHUNKS) {
                let mut square = 0;
                for columns in &self.columns {
                    for panel in 0..group.len() {
                        let features = self.features - (group.start + panel) * COLUMNS;
                        let left = a.wrapping_add((panel * images * chunks + from) * PANEL).cast_const();
                        let fetched = prefetch.next(images_of * count);
                        let work = StridedSums {
                            operands: StridedOperands {
                                a: [left, left.wrapping_add(LANES * LINE)],
                                a_row: LINE,
                                a_chunk: PANEL,
                                b: b.wrapping_add(columns.at + from * b_chunk).cast_const(),
                                b_next: self.words.plane,
                                b_row: 2 * self.words.pixel,
                                b_chunk,
                                a_runs: a_runs.as_ptr(),
                                b_runs: b_runs.as_ptr(),
                                runs: images_of,
                                chunks: count,
                                ahead: [fetched.at, fetched.end],
                                two: [features > LANES, columns.count > LANES],
                            },
                            c: squares.wrapping_add(square * COLUMNS * COLUMNS),
                            c_row: 2 * LINE,
                            add,
                        };
                        square += 1;
                        // SAFETY: tiles stay inside the words and the zeros behind them, the packed `dy` and the
                        // accumulators.
                        unsafe { (self.unit.sums)(&work) };
                    }
                }
                add = true;
            }
        }
    }

    /// Stores complete sums transposed: the rows of `squares` are features, those of the result are channels.
    unsafe fn transpose_all(&self, columns: &Range<usize>, squares: *const f32, to: *mut f32) {
        let (mut square, add) = (squares, self.parts.begin_with_result());
        for of in &self.columns {
            for panel in columns.clone().step_by(COLUMNS) {
                let mut rows = [std::ptr::null_mut(); COLUMNS];
                for (row, out) in rows.iter_mut().zip(&self.out[of.first..]) {
                    *row = to.wrapping_add(out * self.features + panel);
                }
                let counts = [of.count, (columns.end - panel).min(COLUMNS)];
                // SAFETY: rows and columns are those of the result.
                unsafe { (self.transpose)(square, rows.as_ptr(), counts, add) };
                square = square.wrapping_add(COLUMNS * COLUMNS);
            }
        }
    }
}

/// Returns the columns and their result rows if words are in planes: for each tap, two planes at a time.
fn in_planes(
    staging: &Staging,
    along: &[Vec<usize>],
    channels: usize,
    plane: usize,
) -> (Vec<TapColumns>, Vec<usize>) {
    let mut taps = vec![0];
    for (taps_of, stride) in along.iter().zip(&staging.strides) {
        taps =
            taps.iter().flat_map(|at| taps_of.iter().map(move |t| at + t * stride / staging.pitch)).collect();
    }
    let (mut columns, mut out) = (Vec::new(), Vec::new());
    for from in (0..staging.width).step_by(COLUMNS) {
        for (tap, at) in taps.iter().enumerate() {
            let count = COLUMNS.min(staging.width - from);
            columns.push(TapColumns { at: from / LANES * plane + at * LINE, first: out.len(), count });
            out.extend((from..from + count).map(|c| tap * channels + c));
        }
    }
    (columns, out)
}

/// Returns the columns and their result rows if words are in element order: columns run over all contiguous taps.
fn in_runs(staging: &Staging, along: &[Vec<usize>], channels: usize) -> (Vec<TapColumns>, Vec<usize>) {
    let (runs, length) = runs(staging, along, staging.width);
    let taps = along.iter().map(Vec::len).product();
    let out = (0..taps).flat_map(|tap| (0..staging.width).map(move |c| tap * channels + c)).collect();
    let mut columns = Vec::new();
    for (i, at) in runs.iter().enumerate() {
        for from in (0..length).step_by(COLUMNS) {
            let count = COLUMNS.min(length - from);
            columns.push(TapColumns { at: (at + from) * 4, first: i * length + from, count });
        }
    }
    (columns, out)
}

/// Transposes without SIMD instructions.
unsafe fn transpose(square: *const f32, to: *const *mut f32, [rows, columns]: [usize; 2], add: bool) {
    for i in 0..rows {
        // SAFETY: the caller has the accumulators, and the rows and columns of the result.
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
fn transpose_of(level: Level) -> TransposeFn {
    if level.vectors() == Level::Avx512 { avx512::transpose } else { transpose }
}

#[cfg(not(target_arch = "x86_64"))]
fn transpose_of(_: Level) -> TransposeFn {
    transpose
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use crate::simd::amx::LANES;
    use crate::simd::amx::strided::COLUMNS;
    use crate::simd::pack::avx512::transposed_words;
    use std::arch::x86_64::*;

    /// Transposes an f32 matrix in blocks of 16 by 16 with AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn transpose(square: *const f32, to: *const *mut f32, [rows, columns]: [usize; 2], add: bool) {
        for i in (0..rows).step_by(LANES) {
            for j in (0..columns).step_by(LANES) {
                let mask = (1u32 << (columns - j).min(LANES)) - 1;
                // SAFETY: as for the portable transpose; whole blocks of accumulators are readable; the mask excludes
                // lanes beyond the columns.
                unsafe {
                    let mut words = [_mm512_setzero_si512(); LANES];
                    for (k, word) in words.iter_mut().enumerate() {
                        *word = _mm512_loadu_si512(square.add((j + k) * COLUMNS + i).cast());
                    }
                    let transposed = transposed_words(words);
                    for (k, row) in transposed.iter().enumerate().take(rows - i) {
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

kernel_of_parts!(AmxKernelGradient, |this| {
    let pixels = this.staging.batch() * this.pixels()[1];
    pixels as f64 * this.parts.size as f64 / 500.0
});
