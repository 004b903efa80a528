//! Pads images and widens them to f32 one at a time, in the scratch memory of each task.
//!
//! Padding the whole batch first would move it through main memory; a single image stays in cache.

use crate::kernel::padded_input::{PaddedDim, offsets, strides_of};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::widen;
use smallvec::SmallVec;
use systole_ir::{DType, TensorType};

/// Padding and widening of one image at a time into a task's scratch.
pub struct PaddedImages {
    /// Elements that are contiguous both in the image and in the padded image, and the start of each such run in both.
    run: usize,
    runs: Vec<[usize; 2]>,
    /// Elements of an image, and bytes of an element.
    own: usize,
    size: usize,
    widen: Option<TileFn>,
    /// Elements of a padded image.
    elements: usize,
    /// Strides of a padded image along each spatial dimension, in elements.
    pub strides: SmallVec<[usize; 3]>,
}

impl PaddedImages {
    /// Plans the padding of `x: f32|bf16|f16[B, …, C]`. `None`: the padding crops more than there is.
    pub fn new(
        x: &TensorType,
        padding: &[[i64; 2]],
        dilation: &[usize],
        level: Level,
    ) -> Option<PaddedImages> {
        let (channels, n, own) = (x.shape[x.rank() - 1], padding.len(), x.shape.strides());
        let places: Vec<PaddedDim> =
            (0..n).map(|i| PaddedDim::of(x.shape[i + 1], padding[i], dilation[i])).collect::<Option<_>>()?;
        let strides = strides_of(&places, channels);
        // Whole lines if the pixels of a line are adjacent, otherwise single pixels.
        let is_line = dilation.last().is_none_or(|&d| d == 1);
        let is_whole = places
            .iter()
            .zip(x.shape.dims()[1..].iter())
            .all(|(p, &size)| p.padded == size && p.count == size);
        let outer = match (is_whole, is_line) {
            (true, _) => 0,
            (_, true) => n.saturating_sub(1),
            _ => n,
        };
        let run = channels * places[outer..].iter().map(|p| p.count).product::<usize>();
        let begin = |at: fn(&PaddedDim) -> usize, strides: &[usize]| {
            places.iter().zip(strides).map(|(p, stride)| at(p) * stride).sum::<usize>()
        };
        let (from, to) = (begin(|p| p.first, &own[1..]), begin(|p| p.at as usize, &strides));
        let sources = offsets((0..outer).map(|i| (places[i].count, own[i + 1])));
        let targets = offsets((0..outer).map(|i| (places[i].count, strides[i] * dilation[i])));
        let runs = sources.into_iter().zip(targets).map(|(s, t)| [from + s, to + t]).collect();
        let elements = places.iter().map(|p| p.padded).product::<usize>() * channels;
        let size = if x.dtype == DType::F32 { 4 } else { 2 };
        Some(PaddedImages { run, runs, own: own[0], size, widen: widen(x.dtype, level), elements, strides })
    }

    /// Whether images are read in place: they are f32 without padding.
    fn is_in_place(&self) -> bool {
        self.widen.is_none() && self.runs == [[0, 0]] && [self.run, self.own] == [self.elements; 2]
    }

    /// Bytes of a zero-padded image; 0 if images are read in place.
    pub fn bytes(&self) -> usize {
        if self.is_in_place() { 0 } else { (self.elements * 4).next_multiple_of(64) }
    }

    /// Initializes `to` for [`PaddedImages::load`]: zeros the padding, which all images share.
    ///
    /// # Safety
    /// `to` has room for [`PaddedImages::bytes`].
    pub unsafe fn begin(&self, to: *mut f32) {
        // SAFETY: by the caller's promise.
        unsafe { to.write_bytes(0, self.bytes() / 4) };
    }

    /// Copies an image of `x` into the padded buffer and returns where to read it.
    ///
    /// # Safety
    /// `x` is an array of the type of `new` and has that image; `to` is from [`PaddedImages::begin`].
    pub unsafe fn load(&self, x: *const u8, image: usize, to: *mut f32) -> *const f32 {
        if self.is_in_place() {
            return x.cast::<f32>().wrapping_add(image * self.own);
        }
        for [source, target] in &self.runs {
            // SAFETY: runs are inside the image and the padded image.
            unsafe {
                let from = x.add((image * self.own + source) * self.size);
                let to = to.add(*target);
                match self.widen {
                    Some(widen) => widen(to.cast(), from, from, from, self.run),
                    None => to.copy_from_nonoverlapping(from.cast(), self.run),
                }
            }
        }
        to
    }
}
