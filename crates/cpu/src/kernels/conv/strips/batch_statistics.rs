//! Batch normalization statistics of a convolution's result: per-image sums and squared deviations of each feature.
//!
//! The squared deviations are relative to the mean. Statistics are gathered strip by strip, while a strip is in L2.
//!
//! Each part of an image has its own mean, and a second pass sums the squared deviations from it.
//! [`BatchStatistics::finish`] combines the parts around the mean of the image (Chan, Golub and LeVeque 1979), in their
//! order and in f64.

use crate::kernel::{Io, Ptr};
use crate::simd::level::{Isa, Level, TileFn, TileLoop};

/// Features of the pixels of one part: pixel `i` is at `c + rows[i]`.
struct PixelRows {
    c: *const f32,
    rows: *const usize,
    pixels: usize,
    /// Destinations of each feature's sum and of its squared deviations.
    sums: *mut f32,
    squares: *mut f32,
}

/// Computes sums and squared deviations of `n` features of the [`PixelRows`] at `a`.
struct GatherStatistics;

impl TileLoop for GatherStatistics {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: the caller's rows and both destinations have `n` features.
        unsafe {
            let part = &*a.cast::<PixelRows>();
            let mut from = 0;
            while from + 64 <= n {
                columns::<64>(part, from);
                from += 64;
            }
            while from + 32 <= n {
                columns::<32>(part, from);
                from += 32;
            }
            while from + 16 <= n {
                columns::<16>(part, from);
                from += 16;
            }
            (from..n).for_each(|c| columns::<1>(part, c));
        }
    }
}

#[inline(always)]
unsafe fn columns<const W: usize>(part: &PixelRows, from: usize) {
    let row = |i: usize| {
        // SAFETY: the caller's part has this many pixels of at least `from + W` features.
        unsafe { &*part.c.add(*part.rows.add(i) + from).cast::<[f32; W]>() }
    };
    let (mut sums, mut squares) = ([0f32; W], [0f32; W]);
    for i in 0..part.pixels {
        sums.iter_mut().zip(row(i)).for_each(|(sum, x)| *sum += x);
    }
    let means = sums.map(|sum| sum / part.pixels as f32);
    for i in 0..part.pixels {
        for ((sum, x), mean) in squares.iter_mut().zip(row(i)).zip(&means) {
            *sum += (x - mean) * (x - mean);
        }
    }
    // SAFETY: as above.
    unsafe {
        *part.sums.add(from).cast::<[f32; W]>() = sums;
        *part.squares.add(from).cast::<[f32; W]>() = squares;
    }
}

/// Computes each image's sums and squared deviations of the `features` features of a convolution's result.
pub struct BatchStatistics {
    features: usize,
    /// Pixels of each part of an image.
    parts: Vec<usize>,
    gather: TileFn,
}

impl BatchStatistics {
    /// Plans statistics of images whose parts have these numbers of pixels.
    pub fn new(features: usize, parts: Vec<usize>, level: Level) -> BatchStatistics {
        BatchStatistics { features, parts, gather: level.tile::<GatherStatistics>() }
    }

    /// Number of elements of the partial statistics of all images.
    pub fn elements(&self, images: usize) -> usize {
        images * self.parts.len() * 2 * self.features
    }

    /// Writes the partial statistics of features `from..from + n` to `all`: for part `part` of one image, or for
    /// several images that are one part each. Pixel `i` is at `c + rows[i]`, image after image.
    ///
    /// # Safety
    /// There are as many rows as the parts have pixels; `all` has room for [`BatchStatistics::elements`].
    pub unsafe fn gather(
        &self,
        (image, images, part): (usize, usize, usize),
        (c, rows): (*const f32, &[usize]),
        (from, n): (usize, usize),
        all: *mut f32,
    ) {
        let pixels = self.parts[part];
        for i in 0..images {
            let rows = rows[i * pixels..][..pixels].as_ptr();
            let sums = all.wrapping_add(((image + i) * self.parts.len() + part) * 2 * self.features + from);
            let these = PixelRows { c, rows, pixels, sums, squares: sums.wrapping_add(self.features) };
            let these = (&raw const these).cast();
            // SAFETY: by the caller's promise.
            unsafe { (self.gather)(std::ptr::null_mut(), these, these, these, n) };
        }
    }

    /// Writes the partial statistics of features `from..from + n` of a part of an image to `all`, given as `[shifts,
    /// sums, squares]`: the sums of deviations from `shifts` instead of the mean, and the sums of squares of these
    /// deviations.
    ///
    /// # Safety
    /// There are `n` of each; `all` has room for [`BatchStatistics::elements`].
    pub unsafe fn gather_shifted(
        &self,
        image: usize,
        part: usize,
        from: usize,
        n: usize,
        [numbers, sums, squares]: [*const f32; 3],
        all: *mut f32,
    ) {
        let count = self.parts[part] as f32;
        let at = (image * self.parts.len() + part) * 2 * self.features + from;
        for i in 0..n {
            // SAFETY: by the caller's promise.
            unsafe {
                let (number, sum, square) = (*numbers.add(i), *sums.add(i), *squares.add(i));
                *all.add(at + i) = count.mul_add(number, sum);
                *all.add(at + self.features + i) = (square - sum * sum / count).max(0.0);
            }
        }
    }

    /// Combines the partial statistics at `all` into the second and third result, `f32[images, features]` each.
    ///
    /// # Safety
    /// All parts of the images are gathered; the two results exist.
    pub unsafe fn write(&self, images: usize, all: Ptr, io: &Io<'_>) {
        // SAFETY: by the caller's promise.
        unsafe {
            let all = std::slice::from_raw_parts(all.elem::<f32>(0), self.elements(images));
            let result = |k: usize| {
                std::slice::from_raw_parts_mut(io.outputs[k].cast::<f32>(), images * self.features)
            };
            self.finish(all, result(1), result(2));
        }
    }

    /// Combines the partial statistics in `all` into sums and squared deviations, `f32[images, features]` each.
    fn finish(&self, all: &[f32], sums: &mut [f32], squares: &mut [f32]) {
        let n = self.features;
        let images = sums.chunks_exact_mut(n).zip(squares.chunks_exact_mut(n));
        for (image, (sums, squares)) in all.chunks_exact(2 * n * self.parts.len()).zip(images) {
            let parts = || image.chunks_exact(2 * n).zip(&self.parts);
            let count = self.parts.iter().sum::<usize>() as f64;
            for f in 0..n {
                let total = parts().map(|(part, _)| part[f] as f64).sum::<f64>();
                let around = parts().map(|(part, &own)| {
                    let off = part[f] as f64 / own as f64 - total / count;
                    part[n + f] as f64 + own as f64 * off * off
                });
                (sums[f], squares[f]) = (total as f32, around.sum::<f64>() as f32);
            }
        }
    }
}
