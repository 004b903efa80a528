//! The left operand of a convolution as register kernels read it: strips of pixels, in f32 or as stored, with explicit
//! zeros.
//!
//! A strip is some whole images or some rows of one image, small enough that its input stays in the second-level
//! cache. Where the input has no padding and lies well it is read in place; otherwise each task copies its strip with
//! zeros around it (and narrow floats widened) into its thread's working memory, so no padded copy of the whole input
//! ever exists. Wide inputs are cut into slices of channels as well.

use crate::kernel::padded::offsets;
use crate::kernels::conv::microkernel::{LINE, LINES, Lines};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{Pairs, widen};
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use systole_ir::{DType, TensorType};

/// Elements of a staged strip at most, where slices of channels can bring it below.
const MOST_STAGED: usize = 100 << 10;
/// Fewest tasks that a large product is cut into, so that threads share it.
pub const FEWEST_TASKS: usize = 8;
/// Elements of a kernel from which on it is large.
const LARGE: usize = 256 << 10;
/// Rows of a tile this many bytes apart would share one set of the first-level cache.
const ALIAS: usize = 2048;

/// One spatial dimension as staged: coordinate `u` holds input coordinate `low + u · unit` of a line in which input
/// elements lie `holes` apart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Input elements.
    pub size: usize,
    pub holes: usize,
    pub low: i64,
    pub unit: usize,
    /// Staged coordinates between pixels, and how many of them the taps of one pixel span.
    pub step: usize,
    pub reach: usize,
    /// Pixels.
    pub count: usize,
}

impl Axis {
    fn extent(&self, count: usize) -> usize {
        (count - 1) * self.step + self.reach
    }

    /// The input element at staged coordinate `u` of a strip that begins at pixel `first`.
    fn source(&self, first: usize, u: usize) -> Option<usize> {
        let at = usize::try_from(self.low + ((first * self.step + u) * self.unit) as i64).ok()?;
        (at.is_multiple_of(self.holes) && at / self.holes < self.size).then(|| at / self.holes)
    }

    /// Whether every staged coordinate is an input element.
    fn is_inside(&self) -> bool {
        let last = self.low + ((self.extent(self.count) - 1) * self.unit) as i64;
        self.holes == 1 && self.low >= 0 && last < self.size as i64
    }
}

/// Images `image..image + images`, of which pixel rows `row..row + rows`.
#[derive(Clone, Copy, Debug)]
pub struct Strip {
    pub image: usize,
    pub images: usize,
    pub row: usize,
    pub rows: usize,
}

/// How strips of one input are brought to working memory.
pub struct Staging {
    axes: Vec<Axis>,
    batch: usize,
    /// Images, or pixel rows of one image, in each strip.
    images: usize,
    rows: usize,
    /// Channels, slices of them and the channels of each.
    channels: usize,
    pub slices: usize,
    pub width: usize,
    /// Distances in memory: between staged columns, along each axis, between images.
    pub pitch: usize,
    pub strides: SmallVec<[usize; 3]>,
    pub image: usize,
    /// Distances in the input.
    own: SmallVec<[usize; 3]>,
    own_image: usize,
    element: usize,
    /// Bytes of an element as staged, and how it becomes that.
    staged: usize,
    widen: Option<TileFn>,
    /// What is staged are words of pairs: each element, and that of the next pixel.
    pairs: Option<Pairs>,
    /// Where the first pixel's first tap lies in the input, if that is read in place.
    in_place: Option<usize>,
}

/// How a batch of images is cut: whole images or rows of one in each strip, so that a strip has about `pixels` pixels,
/// and that there are `strips` of them if there are as many images.
fn cut(batch: usize, rows: usize, row: usize, pixels: usize, strips: usize) -> (usize, usize) {
    let image = rows * row;
    let together = (pixels / image.max(1)).min(batch.div_ceil(strips));
    if together > 1 {
        return (batch.div_ceil(batch.div_ceil(together)), rows);
    }
    let strips = image.div_ceil(pixels).clamp(1, rows.max(1));
    (1, rows.div_ceil(strips))
}

/// Whether pixels `step` elements of so many bytes apart would share sets of a cache.
fn far(pitch: usize, step: usize, most: usize) -> bool {
    (pitch * step).is_multiple_of(most)
}

impl Staging {
    /// `x: [B, …, C]` with spatial dimensions as in `axes`, in strips of about `pixels` pixels. Where the other factor
    /// of the product has few `elements` there are strips for all threads; reading a large one again for each strip
    /// costs more than smaller strips give.
    pub fn new(x: &TensorType, axes: Vec<Axis>, pixels: usize, elements: usize, level: Level) -> Staging {
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
        let here = x.dtype == DType::F32 && !far(channels * 4, last.unit * last.step, 2 * ALIAS);
        staging.axes = axes;
        if here && staging.lies_well() {
            return staging;
        }
        let places = staging.images * staging.extents().iter().product::<usize>();
        let slices = staging.cuts().find(|s| places * (channels / s) <= MOST_STAGED);
        let slices = slices.or_else(|| staging.cuts().last()).unwrap_or(1);
        staging.lay(slices);
        staging
    }

    /// As [`Staging::new`], with elements as they are stored, in slices of at most `most` channels where slices of whole
    /// vectors can bring it there; read in place only where that `may` be.
    pub fn as_stored(
        x: &TensorType,
        axes: Vec<Axis>,
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
        if may && staging.lies_well() {
            (staging.slices, staging.width) = (slices, staging.channels / slices);
        } else {
            staging.lay(slices);
        }
        staging
    }

    /// Whether the input is read in place, for which it must have no padding and no holes.
    fn lies_well(&mut self) -> bool {
        let inside = self.axes.iter().all(Axis::is_inside);
        if inside {
            let at = self.own.iter().zip(&self.axes).map(|(s, a)| s * a.low as usize).sum();
            self.in_place = Some(at);
            self.pitch = self.channels * self.axes[self.axes.len() - 1].unit;
            self.strides = self.own.iter().zip(&self.axes).map(|(s, a)| s * a.unit).collect();
            (self.slices, self.width, self.image) = (1, self.channels, self.own_image);
        }
        inside
    }

    /// The same in slices of at most `most` channels, where slices of whole vectors can bring it there.
    pub fn sliced(mut self, most: usize) -> Staging {
        if self.width > most {
            let slices = self.cuts().find(|s| self.channels / s <= most).unwrap_or(self.slices);
            self.lay(slices);
        }
        self
    }

    /// With words of pairs of bf16, for inputs of that type.
    pub fn paired(self, pairs: Pairs) -> Staging {
        Staging { pairs: Some(pairs), ..self }
    }

    /// Staged coordinates of a strip along each axis.
    fn extents(&self) -> SmallVec<[usize; 3]> {
        let count = |d: usize, a: &Axis| if d == 0 { self.rows } else { a.count };
        self.axes.iter().enumerate().map(|(d, a)| a.extent(count(d, a))).collect()
    }

    /// Numbers of slices that leave whole vectors.
    fn cuts(&self) -> impl Iterator<Item = usize> + use<> {
        let channels = self.channels;
        (1..=channels / 64).filter(move |s| (channels / s).is_multiple_of(16) && channels.is_multiple_of(*s))
    }

    /// Lays out staged strips for so many slices of the channels.
    fn lay(&mut self, slices: usize) {
        (self.slices, self.width) = (slices, self.channels / slices);
        if self.in_place.is_some() {
            return;
        }
        let step = self.axes[self.axes.len() - 1].step;
        let spare = if far(self.width * self.staged, step, ALIAS) { LINE / self.staged } else { 0 };
        self.pitch = self.width + spare;
        let mut stride = self.pitch;
        for (d, extent) in self.extents().into_iter().enumerate().rev() {
            self.strides[d] = stride;
            stride *= extent;
        }
        self.image = stride;
    }

    /// How many strips there are.
    pub fn strips(&self) -> usize {
        self.batch.div_ceil(self.images) * self.axes[0].count.div_ceil(self.rows)
    }

    /// Images.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The strips of the first image.
    pub fn strips_of_image(&self) -> impl Iterator<Item = Strip> {
        (0..self.axes[0].count.div_ceil(self.rows)).map(|i| self.strip(i))
    }

    /// Strip number `i`.
    pub fn strip(&self, i: usize) -> Strip {
        let per_image = self.axes[0].count.div_ceil(self.rows);
        let (image, row) = (i / per_image * self.images, i % per_image * self.rows);
        Strip {
            image,
            images: self.images.min(self.batch - image),
            row,
            rows: self.rows.min(self.axes[0].count - row),
        }
    }

    /// Elements of the whole input.
    pub fn input(&self) -> usize {
        self.batch * self.own_image
    }

    /// Elements of working memory that a strip takes.
    pub fn elements(&self) -> usize {
        if self.in_place.is_some() { 0 } else { self.images * self.image }
    }

    /// Elements of working memory before the end of a strip.
    pub fn end(&self, strip: Strip) -> usize {
        (strip.images - 1) * self.image + self.axes[0].extent(strip.rows) * self.strides[0]
    }

    /// Bytes of an element as staged.
    pub fn size(&self) -> usize {
        self.staged
    }

    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Images, or pixel rows of one image, of a whole strip.
    pub fn most(&self) -> (usize, usize) {
        (self.images, self.rows)
    }

    /// Offsets of the pixels of a whole strip, images first, for an image of `counts` pixels along each dimension
    /// (at most those of the axes): those of fewer rows of one image, or of fewer images, are the first of them.
    pub fn pixels(&self, counts: &[usize]) -> Vec<usize> {
        let steps = self.axes.iter().zip(&self.strides).map(|(a, s)| a.step * s);
        self.table(counts, self.image, steps)
    }

    /// As [`Staging::pixels`], of the first pixels of pairs.
    pub fn pairs(&self, counts: &[usize]) -> Vec<usize> {
        let last = counts.len() - 1;
        let mut counts: SmallVec<[usize; 3]> = counts.into();
        counts[last] = counts[last].div_ceil(2);
        let distance = |d: usize| if d == last { 2 } else { 1 };
        let axes = self.axes.iter().zip(&self.strides).enumerate();
        self.table(&counts, self.image, axes.map(|(d, (a, s))| a.step * s * distance(d)))
    }

    /// As [`Staging::pixels`], with other distances between images and along each dimension.
    pub fn table(&self, counts: &[usize], image: usize, steps: impl Iterator<Item = usize>) -> Vec<usize> {
        let rows = self.rows.min(counts[0]);
        let counts = [rows].into_iter().chain(counts[1..].iter().copied());
        offsets([(self.images, image)].into_iter().chain(counts.zip(steps)))
    }

    /// The part of `x` that a strip reads, and its bytes.
    pub fn input_of(&self, x: *const u8, strip: Strip) -> (*const u8, usize) {
        let (axis, line) = (&self.axes[0], self.own[0]);
        let from = axis.low + (strip.row * axis.step * axis.unit) as i64;
        let to = from + ((axis.extent(strip.rows) - 1) * axis.unit) as i64 + 1;
        let [from, to] =
            [from, to].map(|at| at.div_euclid(axis.holes as i64).clamp(0, axis.size as i64) as usize);
        let elements = (strip.images - 1) * self.own_image + (to - from) * line;
        let first = strip.image * self.own_image + from * line;
        (x.wrapping_add(first * self.element), elements * self.element)
    }

    /// Brings a slice of a strip of `x` to `scratch` unless it is read in place; returns where its first pixel's
    /// first tap lies.
    ///
    /// # Safety
    /// `x` has the type of [`Staging::new`], `scratch` room for [`Staging::elements`].
    pub unsafe fn load(&self, x: *const u8, strip: Strip, slice: usize, scratch: *mut u8) -> *const u8 {
        if let Some(at) = self.in_place {
            let row = strip.row * self.axes[0].step * self.strides[0];
            let from = strip.image * self.own_image + row + at + slice * self.width;
            return x.wrapping_add(from * self.element);
        }
        for i in 0..strip.images {
            let from = (strip.image + i) * self.own_image + slice * self.width;
            // SAFETY: lines lie inside the image, and in scratch as laid out in `new`.
            unsafe { self.lines(0, strip, Some((x, from)), scratch.add(i * self.image * self.staged)) };
        }
        scratch.cast_const()
    }

    /// Copies everything from axis `d` on; `None`: zeros.
    unsafe fn lines(&self, d: usize, strip: Strip, from: Option<(*const u8, usize)>, to: *mut u8) {
        let axis = &self.axes[d];
        let (first, count) = if d == 0 { (strip.row, strip.rows) } else { (0, axis.count) };
        let extent = axis.extent(count);
        // SAFETY: by the caller's promise.
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

    unsafe fn line(&self, axis: &Axis, first: usize, extent: usize, x: *const u8, at: usize, to: *mut u8) {
        let place = |u: usize| to.wrapping_add(u * self.pitch * self.staged);
        let own = self.own[self.own.len() - 1];
        // SAFETY: by the caller's promise.
        unsafe {
            if let Some(pairs) = &self.pairs {
                let pixel = |u: usize| axis.source(first, u).map(|s| x.add((at + s * own) * self.element));
                for u in 0..extent {
                    pairs.put(pixel(u), pixel(u + axis.step), place(u).cast(), self.width);
                }
                return;
            }
            if axis.unit == 1 && axis.holes == 1 && self.pitch == own {
                // Zeros, one piece of the input, zeros.
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
        // SAFETY: by the caller's promise.
        unsafe {
            match self.widen {
                Some(f) => f(to, from, from, from, n),
                None => std::ptr::copy_nonoverlapping(from, to, n * self.staged),
            }
        }
    }
}

/// Memory that will be read soon, fetched piece by piece while other work goes on: copying from far memory would leave
/// the arithmetic units idle.
pub struct Prefetch {
    /// Where the next line and how many there are, in two arrays one after the other.
    left: [(*const u8, usize); 2],
    /// Lines of one call.
    each: usize,
}

/// Bytes of an array that are fetched at most: more would push out what is being worked on.
const MOST_AHEAD: usize = 384 << 10;

impl Prefetch {
    /// Two arrays of so many bytes, in `calls` calls of a register kernel.
    pub fn new(arrays: [(*const u8, usize); 2], calls: usize) -> Prefetch {
        let left = arrays.map(|(at, bytes)| (at, bytes.min(MOST_AHEAD).div_ceil(LINE)));
        let each = (left[0].1 + left[1].1).div_ceil(calls.max(1));
        Prefetch { left, each }
    }

    pub fn none() -> Prefetch {
        Prefetch { left: [(std::ptr::null(), 0); 2], each: 0 }
    }

    /// The lines of the next call, which has `rounds` rounds of products.
    #[inline]
    pub fn next(&mut self, rounds: usize) -> Lines {
        let (at, left) = &mut self.left[usize::from(self.left[0].1 == 0)];
        let count = self.each.min(*left).min(rounds * LINES);
        let lines = Lines { at: *at, end: at.wrapping_add(count * LINE) };
        (*at, *left) = (lines.end, *left - count);
        lines
    }
}

/// Copies `n` elements as f32.
///
/// # Safety
/// Both sides have `n` elements; `widen` is that of the source's type.
#[inline(always)]
pub unsafe fn put(widen: Option<TileFn>, from: *const u8, to: *mut f32, n: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        match widen {
            Some(f) => f(to.cast(), from, from, from, n),
            None => std::ptr::copy_nonoverlapping(from.cast::<f32>(), to, n),
        }
    }
}

/// Offsets of the taps of one pixel, by the taps' coordinates along each axis, in runs of `run` consecutive elements:
/// channels, and taps along the last axis where these follow each other.
pub fn runs(staging: &Staging, taps: &[Vec<usize>]) -> (Vec<usize>, usize) {
    let last = &taps[taps.len() - 1];
    let unit = staging.strides[taps.len() - 1];
    let joined = unit == staging.width && last.windows(2).all(|w| w[0] + 1 == w[1]) && !last.is_empty();
    let mut all = vec![0];
    for (d, taps) in taps.iter().enumerate() {
        let taps = if joined && d + 1 == staging.strides.len() { &taps[..1] } else { &taps[..] };
        all = all.iter().flat_map(|&at| taps.iter().map(move |t| at + t * staging.strides[d])).collect();
    }
    (all, if joined { last.len() * staging.width } else { staging.width })
}

/// Cuts a batch of work into groups: `pieces` of at most `of`.
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
            let axis =
                |count: usize| Axis { size: count, holes: 1, low: 0, unit: 1, step: 1, reach: 1, count };
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
