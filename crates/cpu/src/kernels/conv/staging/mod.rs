//! Stages a convolution's input in scratch memory: strips of pixels with explicit zeros for padding.
//!
//! Elements are f32 or as stored. A strip is some whole images or some pixel rows of one image, small enough that its
//! input stays in L2. An input without padding and dilation that needs no conversion and whose pixels do not alias in
//! the cache is read in place. Otherwise each task copies its strip into its thread's scratch and widens narrow floats,
//! so there is never a padded copy of the whole input. Inputs with many channels are also cut into slices of channels.

pub mod filter_packing;
pub mod phases;

use crate::kernel::padded_input::offsets;
use crate::kernels::conv::microkernel::{LINE, LINES_PER_ROUND, PrefetchLines};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{InterleaveBf16, widen};
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use systole_ir::{DType, TensorType};

/// Maximum elements of a staged strip if slices of channels can reduce it below: 400 KiB of f32.
const MOST_STAGED: usize = 100 << 10;
/// Minimum number of tasks of a large convolution, so that threads can share it.
pub const FEWEST_TASKS: usize = 8;
/// Elements from which a filter counts as large: 1 MiB of f32.
const LARGE: usize = 256 << 10;
/// Pixels whose distance is a multiple of this many bytes map to the same few L1 sets.
const ALIAS: usize = 2048;

/// One spatial dimension as staged. Staged coordinate `u` holds coordinate `low + u · unit` of the dilated input, in
/// which input elements are `lhs_dilation` apart.
#[derive(Clone, Debug)]
pub struct StagedAxis {
    /// Input elements along the dimension.
    pub size: usize,
    /// Input dilation: distance of input elements in the dilated input.
    pub lhs_dilation: usize,
    /// Coordinate in the dilated input of staged coordinate 0; negative in padding.
    pub low: i64,
    /// Coordinates of the dilated input per staged coordinate.
    pub unit: usize,
    /// Staged coordinates between adjacent pixels (stride).
    pub step: usize,
    /// Staged coordinates that the taps of one pixel span.
    pub reach: usize,
    /// Number of pixels.
    pub count: usize,
}

impl StagedAxis {
    /// Number of staged coordinates that `count` pixels span.
    fn extent(&self, count: usize) -> usize {
        (count - 1) * self.step + self.reach
    }

    /// Returns the input element at staged coordinate `u` of a strip whose first pixel is `first`; `None` for a zero.
    pub fn source(&self, first: usize, u: usize) -> Option<usize> {
        let at = usize::try_from(self.low + ((first * self.step + u) * self.unit) as i64).ok()?;
        (at.is_multiple_of(self.lhs_dilation) && at / self.lhs_dilation < self.size)
            .then(|| at / self.lhs_dilation)
    }

    /// Whether every staged coordinate is an input element: no padding, no input dilation.
    fn is_inside(&self) -> bool {
        let last = self.low + ((self.extent(self.count) - 1) * self.unit) as i64;
        self.lhs_dilation == 1 && self.low >= 0 && last < self.size as i64
    }
}

/// A strip of pixels: pixel rows `row..row + rows` along the first dimension of images `image..image + images`.
#[derive(Clone, Copy, Debug)]
pub struct PixelStrip {
    /// First image.
    pub image: usize,
    /// Number of images.
    pub images: usize,
    /// First pixel row.
    pub row: usize,
    /// Number of pixel rows.
    pub rows: usize,
}

/// Plan for staging the strips of one input. Distances are in elements.
pub struct Staging {
    axes: Vec<StagedAxis>,
    batch: usize,
    /// Images of a strip, and pixel rows of each: all rows, unless a strip is a part of one image.
    images: usize,
    rows: usize,
    /// Number of channels.
    channels: usize,
    /// Number of slices of channels.
    pub slices: usize,
    /// Channels per slice.
    pub width: usize,
    /// Staged elements between columns.
    pub pitch: usize,
    /// Staged elements between coordinates along each axis.
    pub strides: SmallVec<[usize; 3]>,
    /// Staged elements between images.
    pub image: usize,
    /// Input distances: along each axis, between images. `element`: bytes of an element.
    own: SmallVec<[usize; 3]>,
    own_image: usize,
    element: usize,
    /// Bytes of a staged element, and the loop that widens elements to f32. `None`: they are copied as stored.
    staged: usize,
    widen: Option<TileFn>,
    /// Builds staged words of two bf16: each element, and the same element of the next pixel.
    pairs: Option<InterleaveBf16>,
    /// Input offset of the first pixel's first tap, if the input is read in place.
    in_place: Option<usize>,
}

/// Returns the images and pixel rows per strip, for strips of about `pixels` pixels. There are at least `strips` strips
/// if the batch has as many images.
fn cut(batch: usize, rows: usize, row: usize, pixels: usize, strips: usize) -> (usize, usize) {
    let image = rows * row;
    let together = (pixels / image.max(1)).min(batch.div_ceil(strips));
    if together > 1 {
        return (batch.div_ceil(batch.div_ceil(together)), rows);
    }
    let strips = image.div_ceil(pixels).clamp(1, rows.max(1));
    (1, rows.div_ceil(strips))
}

/// Whether pixels that are `step` staged columns of `pitch` bytes apart alias in a cache: the distance is a multiple of
/// `most` bytes.
fn aliases(pitch: usize, step: usize, most: usize) -> bool {
    (pitch * step).is_multiple_of(most)
}

impl Staging {
    /// Plans staging of `x: [B, …, C]` with spatial dimensions `axes`, in strips of about `pixels` pixels.
    ///
    /// `elements`: elements of the filter. With a small filter there are strips for all threads. A large filter is read
    /// again for each strip, which costs more than smaller strips gain.
    pub fn new(
        x: &TensorType,
        axes: Vec<StagedAxis>,
        pixels: usize,
        elements: usize,
        level: Level,
    ) -> Staging {
        let n = axes.len();
        let (batch, channels) = (x.shape[0], x.shape[n + 1]);
        let row = axes[1..].iter().map(|a| a.count).product();
        let strips = if elements > LARGE { 1 } else { FEWEST_TASKS };
        let (images, rows) = cut(batch, axes[0].count, row, pixels, strips);
        let strides = x.shape.strides();
        let (own_image, own): (usize, SmallVec<[usize; 3]>) = (strides[0], strides[1..=n].into());
        let last = &axes[n - 1];
        let mut staging = Staging {
            batch,
            images,
            rows,
            channels,
            slices: 1,
            width: channels,
            pitch: channels,
            strides: own.iter().zip(&axes).map(|(s, a)| s * a.unit).collect(),
            image: own_image,
            own,
            own_image,
            element: x.dtype.size(),
            staged: 4,
            widen: widen(x.dtype, level),
            pairs: None,
            in_place: None,
            axes: Vec::new(),
        };
        let here = x.dtype == DType::F32 && !aliases(channels * 4, last.unit * last.step, 2 * ALIAS);
        staging.axes = axes;
        if here && staging.try_in_place() {
            return staging;
        }
        let places = staging.images * staging.extents().iter().product::<usize>();
        let slices = staging.cuts().find(|s| places * (channels / s) <= MOST_STAGED);
        let slices = slices.or_else(|| staging.cuts().last()).unwrap_or(1);
        staging.set_layout(slices);
        staging
    }

    /// Like [`Staging::new`], but without widening elements to f32. Slices have at most `most` channels if whole
    /// vectors allow it. The input is read in place only if `may` is set.
    pub fn as_stored(
        x: &TensorType,
        axes: Vec<StagedAxis>,
        pixels: usize,
        elements: usize,
        most: usize,
        may: bool,
        level: Level,
    ) -> Staging {
        let mut staging = Staging::new(x, axes, pixels, elements, level);
        (staging.staged, staging.widen, staging.in_place) = (staging.element, None, None);
        let slices = if staging.channels <= most {
            1
        } else {
            staging.cuts().find(|s| staging.channels / s <= most).unwrap_or(1)
        };
        if may && staging.try_in_place() {
            (staging.slices, staging.width) = (slices, staging.channels / slices);
        } else {
            staging.set_layout(slices);
        }
        staging
    }

    /// Switches to reading the input in place if it has no padding and no dilation. Returns whether it did.
    fn try_in_place(&mut self) -> bool {
        let inside = self.axes.iter().all(StagedAxis::is_inside);
        if inside {
            let at = self.own.iter().zip(&self.axes).map(|(s, a)| s * a.low as usize).sum();
            self.in_place = Some(at);
            self.pitch = self.channels * self.axes[self.axes.len() - 1].unit;
            self.strides = self.own.iter().zip(&self.axes).map(|(s, a)| s * a.unit).collect();
            (self.slices, self.width, self.image) = (1, self.channels, self.own_image);
        }
        inside
    }

    /// Returns the same plan in slices of at most `most` channels, if slices of whole vectors can be that small.
    pub fn sliced(mut self, most: usize) -> Staging {
        if self.width > most {
            let slices = self.cuts().find(|s| self.channels / s <= most).unwrap_or(self.slices);
            self.set_layout(slices);
        }
        self
    }

    /// Returns the same plan with words of bf16 pairs, for bf16 inputs.
    pub fn paired(self, pairs: InterleaveBf16) -> Staging {
        Staging { pairs: Some(pairs), ..self }
    }

    /// Number of staged coordinates of a full strip along each axis.
    fn extents(&self) -> SmallVec<[usize; 3]> {
        let count = |d: usize, a: &StagedAxis| if d == 0 { self.rows } else { a.count };
        self.axes.iter().enumerate().map(|(d, a)| a.extent(count(d, a))).collect()
    }

    /// Candidate numbers of slices with at least 64 channels in each, a multiple of 16.
    fn cuts(&self) -> impl Iterator<Item = usize> + use<> {
        let channels = self.channels;
        (1..=channels / 64).filter(move |s| (channels / s).is_multiple_of(16) && channels.is_multiple_of(*s))
    }

    /// Computes the staged layout for `slices` slices of channels. A cache line is inserted after each pixel if pixels
    /// would alias.
    fn set_layout(&mut self, slices: usize) {
        (self.slices, self.width) = (slices, self.channels / slices);
        if self.in_place.is_some() {
            return;
        }
        let step = self.axes[self.axes.len() - 1].step;
        let spare = if aliases(self.width * self.staged, step, ALIAS) { LINE / self.staged } else { 0 };
        self.pitch = self.width + spare;
        let mut stride = self.pitch;
        for (d, extent) in self.extents().into_iter().enumerate().rev() {
            self.strides[d] = stride;
            stride *= extent;
        }
        self.image = stride;
    }

    /// Number of pixel strips of the staged input.
    pub fn strips(&self) -> usize {
        self.batch.div_ceil(self.images) * self.axes[0].count.div_ceil(self.rows)
    }

    /// Number of images of the staged input.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the strips of the first image, or the one strip that contains it and others.
    pub fn strips_of_image(&self) -> impl Iterator<Item = PixelStrip> {
        (0..self.axes[0].count.div_ceil(self.rows)).map(|i| self.strip(i))
    }

    /// Returns pixel strip `i`.
    pub fn strip(&self, i: usize) -> PixelStrip {
        let per_image = self.axes[0].count.div_ceil(self.rows);
        let (image, row) = (i / per_image * self.images, i % per_image * self.rows);
        PixelStrip {
            image,
            images: self.images.min(self.batch - image),
            row,
            rows: self.rows.min(self.axes[0].count - row),
        }
    }

    /// Number of elements of the whole convolution input.
    pub fn input(&self) -> usize {
        self.batch * self.own_image
    }

    /// Elements of scratch for a full strip; 0 if the input is read in place.
    pub fn elements(&self) -> usize {
        if self.in_place.is_some() { 0 } else { self.images * self.image }
    }

    /// Staged elements from the start to the end of a strip.
    pub fn end(&self, strip: PixelStrip) -> usize {
        (strip.images - 1) * self.image + self.axes[0].extent(strip.rows) * self.strides[0]
    }

    /// Bytes of a staged element of the convolution input.
    pub fn size(&self) -> usize {
        self.staged
    }

    /// Returns the staged axes of the spatial dimensions.
    pub fn axes(&self) -> &[StagedAxis] {
        &self.axes
    }

    /// Returns the images of a full strip, and the pixel rows of each image.
    pub fn most(&self) -> (usize, usize) {
        (self.images, self.rows)
    }

    /// Returns offsets of the pixels of a full strip, images outermost, for images of `counts` pixels along each
    /// dimension (at most those of the axes). A strip with fewer images, or with fewer rows of one image, uses the
    /// first entries.
    pub fn pixels(&self, counts: &[usize]) -> Vec<usize> {
        let steps = self.axes.iter().zip(&self.strides).map(|(a, s)| a.step * s);
        self.table(counts, self.image, steps)
    }

    /// Like [`Staging::pixels`], for pairs of adjacent pixels: offsets of the first of each pair.
    pub fn pairs(&self, counts: &[usize]) -> Vec<usize> {
        let last = counts.len() - 1;
        let mut counts: SmallVec<[usize; 3]> = counts.into();
        counts[last] = counts[last].div_ceil(2);
        let distance = |d: usize| if d == last { 2 } else { 1 };
        let axes = self.axes.iter().zip(&self.strides).enumerate();
        self.table(&counts, self.image, axes.map(|(d, (a, s))| a.step * s * distance(d)))
    }

    /// Like [`Staging::pixels`], with other distances between images and along each dimension.
    pub fn table(&self, counts: &[usize], image: usize, steps: impl Iterator<Item = usize>) -> Vec<usize> {
        let rows = self.rows.min(counts[0]);
        let counts = [rows].into_iter().chain(counts[1..].iter().copied());
        offsets([(self.images, image)].into_iter().chain(counts.zip(steps)))
    }

    /// Returns address and bytes of the part of `x` that a strip reads.
    pub fn input_of(&self, x: *const u8, strip: PixelStrip) -> (*const u8, usize) {
        let (axis, line) = (&self.axes[0], self.own[0]);
        let from = axis.low + (strip.row * axis.step * axis.unit) as i64;
        let to = from + ((axis.extent(strip.rows) - 1) * axis.unit) as i64 + 1;
        let [from, to] =
            [from, to].map(|at| at.div_euclid(axis.lhs_dilation as i64).clamp(0, axis.size as i64) as usize);
        let elements = (strip.images - 1) * self.own_image + (to - from) * line;
        let first = strip.image * self.own_image + from * line;
        (x.wrapping_add(first * self.element), elements * self.element)
    }

    /// Copies a slice of a strip of `x` to `scratch` unless the input is read in place. Returns the address of the
    /// first pixel's first tap.
    ///
    /// # Safety
    /// `x` has the type of [`Staging::new`], `scratch` has room for [`Staging::elements`] staged elements.
    pub unsafe fn load(&self, x: *const u8, strip: PixelStrip, slice: usize, scratch: *mut u8) -> *const u8 {
        if let Some(at) = self.in_place {
            let row = strip.row * self.axes[0].step * self.strides[0];
            let from = strip.image * self.own_image + row + at + slice * self.width;
            return x.wrapping_add(from * self.element);
        }
        for i in 0..strip.images {
            let from = (strip.image + i) * self.own_image + slice * self.width;
            // SAFETY: lines are inside the image, and in scratch as laid out by `set_layout`.
            unsafe { self.lines(0, strip, Some((x, from)), scratch.add(i * self.image * self.staged)) };
        }
        scratch.cast_const()
    }

    /// Copies the strip from axis `d` inwards. `from`: the input and an offset in it; `None`: zeros.
    unsafe fn lines(&self, d: usize, strip: PixelStrip, from: Option<(*const u8, usize)>, to: *mut u8) {
        let axis = &self.axes[d];
        let (first, count) = if d == 0 { (strip.row, strip.rows) } else { (0, axis.count) };
        let extent = axis.extent(count);
        // SAFETY: the caller has these lines of the input, and room for the strip from axis `d` inwards.
        unsafe {
            let Some((x, at)) = from else {
                to.write_bytes(0, extent * self.strides[d] * self.staged);
                return;
            };
            if d + 1 == self.axes.len() {
                return self.line(axis, first, extent, x, at, to);
            }
            for u in 0..extent {
                let from = axis.source(first, u).map(|s| (x, at + s * self.own[d]));
                self.lines(d + 1, strip, from, to.add(u * self.strides[d] * self.staged));
            }
        }
    }

    unsafe fn line(
        &self,
        axis: &StagedAxis,
        first: usize,
        extent: usize,
        x: *const u8,
        at: usize,
        to: *mut u8,
    ) {
        let place = |u: usize| to.wrapping_add(u * self.pitch * self.staged);
        let own = self.own[self.own.len() - 1];
        // SAFETY: as for `lines`; `source` returns elements of the input only.
        unsafe {
            if let Some(pairs) = &self.pairs {
                let pixel = |u: usize| axis.source(first, u).map(|s| x.add((at + s * own) * self.element));
                for u in 0..extent {
                    pairs.put(pixel(u), pixel(u + axis.step), place(u).cast(), self.width);
                }
                return;
            }
            if axis.unit == 1 && axis.lhs_dilation == 1 && self.pitch == own {
                // Zeros, one contiguous piece of the input, zeros.
                let low = axis.low + (first * axis.step) as i64;
                let begin = (-low).clamp(0, extent as i64) as usize;
                let end = (axis.size as i64 - low).clamp(begin as i64, extent as i64) as usize;
                to.write_bytes(0, begin * own * self.staged);
                place(end).write_bytes(0, (extent - end) * own * self.staged);
                if begin < end {
                    let from = at + (low + begin as i64) as usize * own;
                    self.put(x, from, place(begin), (end - begin) * own);
                }
                return;
            }
            for u in 0..extent {
                match axis.source(first, u) {
                    Some(s) => self.put(x, at + s * own, place(u), self.width),
                    None => place(u).write_bytes(0, self.width * self.staged),
                }
            }
        }
    }

    unsafe fn put(&self, x: *const u8, from: usize, to: *mut u8, n: usize) {
        let from = x.wrapping_add(from * self.element);
        // SAFETY: the caller has `n` elements of the input, and room for them as staged.
        unsafe {
            match self.widen {
                Some(f) => f(to, from, from, from, n),
                None => std::ptr::copy_nonoverlapping(from, to, n * self.staged),
            }
        }
    }
}

/// Software prefetch of memory that will be read soon, spread over the calls of a microkernel.
///
/// The arithmetic units would be idle during a copy from distant memory.
pub struct SoftwarePrefetch {
    /// Next line and number of remaining lines of two arrays, read in sequence.
    left: [(*const u8, usize); 2],
    /// Lines per call.
    each: usize,
}

/// Maximum bytes of each array that are prefetched: more would evict the data in use.
const MOST_AHEAD: usize = 384 << 10;

impl SoftwarePrefetch {
    /// Plans the prefetch of two arrays (address and bytes), in `calls` calls of a microkernel.
    pub fn new(arrays: [(*const u8, usize); 2], calls: usize) -> SoftwarePrefetch {
        let left = arrays.map(|(at, bytes)| (at, bytes.min(MOST_AHEAD).div_ceil(LINE)));
        let each = (left[0].1 + left[1].1).div_ceil(calls.max(1));
        SoftwarePrefetch { left, each }
    }

    /// Returns a prefetch plan without any memory to prefetch.
    pub fn none() -> SoftwarePrefetch {
        SoftwarePrefetch { left: [(std::ptr::null(), 0); 2], each: 0 }
    }

    /// Returns the lines to prefetch in the next call, which has `rounds` unrolled rounds of K steps.
    #[inline]
    pub fn next(&mut self, rounds: usize) -> PrefetchLines {
        let (at, left) = &mut self.left[usize::from(self.left[0].1 == 0)];
        let count = self.each.min(*left).min(rounds * LINES_PER_ROUND);
        let lines = PrefetchLines { at: *at, end: at.wrapping_add(count * LINE) };
        (*at, *left) = (lines.end, *left - count);
        lines
    }
}

/// Copies `n` elements of a convolution input, converted to f32.
///
/// # Safety
/// Both sides have `n` elements; `widen` is that of the source's type.
#[inline(always)]
pub unsafe fn put(widen: Option<TileFn>, from: *const u8, to: *mut f32, n: usize) {
    // SAFETY: by the caller's promise both sides have `n` elements.
    unsafe {
        match widen {
            Some(f) => f(to.cast(), from, from, from, n),
            None => std::ptr::copy_nonoverlapping(from.cast::<f32>(), to, n),
        }
    }
}

/// Returns the offsets of the taps of one pixel, as runs of consecutive elements, and the elements of a run.
///
/// `taps`: staged coordinates along each axis. A run has the channels of one tap, or of all taps along the last axis if
/// these are contiguous. `channels`: how many of each pixel are read.
pub fn runs(staging: &Staging, taps: &[Vec<usize>], channels: usize) -> (Vec<usize>, usize) {
    let last = &taps[taps.len() - 1];
    let unit = staging.strides[taps.len() - 1];
    let joined = unit == channels && last.windows(2).all(|w| w[0] + 1 == w[1]) && !last.is_empty();
    let mut all = vec![0];
    for (d, taps) in taps.iter().enumerate() {
        let taps = if joined && d + 1 == staging.strides.len() { &taps[..1] } else { &taps[..] };
        all = all.iter().flat_map(|&at| taps.iter().map(move |t| at + t * staging.strides[d])).collect();
    }
    (all, if joined { last.len() * channels } else { channels })
}

/// Cuts `n` items into at most `groups` ranges of nearly equal size.
pub fn group(n: usize, groups: usize) -> Vec<std::ops::Range<usize>> {
    pieces(n, n.div_ceil(groups.clamp(1, n.max(1)))).map(|(at, size)| at..at + size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_every_row_of_every_image() {
        for (batch, rows, row, pixels) in [
            (1, 1, 1, 384),
            (128, 8, 8, 384),
            (16, 56, 56, 384),
            (5, 7, 7, 384),
            (3, 40, 1000, 384),
            (9, 1, 1, 4),
        ] {
            let axis = |count: usize| StagedAxis {
                size: count,
                lhs_dilation: 1,
                low: 0,
                unit: 1,
                step: 1,
                reach: 1,
                count,
            };
            let x = TensorType::new(DType::F32, [batch, rows, row, 3]);
            let staging = Staging::new(&x, vec![axis(rows), axis(row)], pixels, 1, Level::Portable);
            let mut seen = vec![0; batch * rows];
            for i in 0..staging.strips() {
                let s = staging.strip(i);
                for image in s.image..s.image + s.images {
                    (s.row..s.row + s.rows).for_each(|r| seen[image * rows + r] += 1);
                }
                assert!(s.images == 1 || s.images * rows * row <= pixels);
            }
            assert!(seen.iter().all(|&n| n == 1), "{batch} {rows} {row}: {seen:?}");
        }
    }
}
