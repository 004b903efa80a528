//! One image of a batch at a time, widened to f32 and padded, in the memory of one task: what passes over the whole batch
//! would send through memory stays in cache.

use crate::kernel::padded_input::{PaddedDim, offsets, strides_of};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::widen;
use smallvec::SmallVec;
use systole_ir::{DType, TensorType};

pub struct PaddedImages {
    /// Elements that are adjacent in the image and in the padded one, and where the runs of them begin in each.
    run: usize,
    runs: Vec<[usize; 2]>,
    /// Elements of an image, and bytes of one.
    own: usize,
    size: usize,
    widen: Option<TileFn>,
    /// Elements of a padded image, and how far apart they are along each spatial dimension.
    elements: usize,
    pub strides: SmallVec<[usize; 3]>,
}

impl PaddedImages {
    /// `x: f32|bf16|f16[B, …, C]`; `None`: the padding crops more than there is.
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
        // Whole lines where the pixels of one are adjacent, else pixels.
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

    /// Whether images are read where they are: they are f32 without padding.
    fn is_in_place(&self) -> bool {
        self.widen.is_none() && self.runs == [[0, 0]] && [self.run, self.own] == [self.elements; 2]
    }

    /// Bytes of a padded image; 0: none is made.
    pub fn bytes(&self) -> usize {
        if self.is_in_place() { 0 } else { (self.elements * 4).next_multiple_of(64) }
    }

    /// Makes `to` ready for [`PaddedImages::load`]: the padding, which all images have alike.
    ///
    /// # Safety
    /// `to` has room for [`PaddedImages::bytes`].
    pub unsafe fn begin(&self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.write_bytes(0, self.bytes() / 4) };
    }

    /// Writes an image of `x` to where it belongs, and says where to read it.
    ///
    /// # Safety
    /// `x` is an array of the type of `new` and has that image; `to` is from [`PaddedImages::begin`].
    pub unsafe fn load(&self, x: *const u8, image: usize, to: *mut f32) -> *const f32 {
        if self.is_in_place() {
            return x.cast::<f32>().wrapping_add(image * self.own);
        }
        for [source, target] in &self.runs {
            // SAFETY: runs lie inside the image and the padded one.
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
