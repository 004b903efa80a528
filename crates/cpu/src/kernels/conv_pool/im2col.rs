//! Sums over windows of which all that their taps see, wherever the maximum was, lies together: a patch.
//!
//! An image is laid out as a patch for each window. A lane finds a tap's element at the place of its maximum, from the tap's
//! own place on: one permutation of a short vector. Gradients are read, or made on the way as products of few terms: a window
//! of a few images at a time, so that they never leave the nearest cache.

use crate::kernel::padded::{Padded, offsets};
use crate::simd::level::Level;
use systole_compile::UnpooledGradient;

/// Numbers of a vector.
pub const LANES: usize = 16;
/// Most numbers of a patch.
const MOST_NUMBERS: usize = 64;
/// Numbers that a tap sees from its own first one on.
const SEEN: usize = 8;
/// Images whose gradients of one window are made at a time.
pub const AT_A_TIME: usize = 4;
/// Most taps for which there are registers for the sums of two vectors of filters, and the numbers above for which there are
/// kernels: of one vector.
const MOST_OF_TWO: usize = 9;
const OF_ONE: [usize; 3] = [18, 20, 25];

/// One call of a register kernel: sums over some windows of some images.
struct PatchArgs {
    /// The first window's patch of the first image, and numbers from one window's to the next one's, and from one image's.
    patches: *const f32,
    patch: usize,
    image: usize,
    windows: usize,
    images: usize,
    /// Where in a patch a window's elements lie (4, all below 8), and how much further on each tap's element is.
    bases: *const i32,
    taps: *const usize,
    /// Places of the maxima, `row` elements from window to window.
    place: *const u8,
    place_image: usize,
    row: usize,
    /// Gradients of one image's windows, or the numbers of a term of these, so many elements from term to term.
    dy: *const f32,
    term: usize,
    /// Terms' factors for each image: vectors of the same number. From term to term in elements.
    factors: *const f32,
    factor_term: usize,
    terms: usize,
    /// Added to: a row of filters for each tap, and one for the bias.
    sum: *mut f32,
    sum_row: usize,
    bias: *mut f32,
}

/// A register kernel for a number of taps.
type PatchFn = unsafe fn(usize, &PatchArgs);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::kernels::conv_pool::im2col::{AT_A_TIME, PatchArgs};
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    /// Gradients of a window, `N` vectors of each image.
    #[repr(align(64))]
    struct Near<const N: usize>([[[MaybeUninit<f32>; 16]; N]; AT_A_TIME]);

    /// Adds the products of `g` with the elements at these places of a patch.
    ///
    /// Written out: compilers look all taps' elements up first, and then have no registers for the sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn tap_sum(mut sum: __m512, g: __m512, places: __m512i, patch: __m512) -> __m512 {
        let _elements: __m512;
        // SAFETY: the level is available, and nothing but registers changes.
        unsafe {
            std::arch::asm!(
                "vpermps {elements}, {places}, {patch}",
                "vfmadd231ps {sum}, {elements}, {g}",
                elements = out(zmm_reg) _elements,
                places = in(zmm_reg) places,
                patch = in(zmm_reg) patch,
                sum = inout(zmm_reg) sum,
                g = in(zmm_reg) g,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    /// `body` for each of `K` taps, written out: compilers make loops of many taps, whose sums would be in memory.
    macro_rules! each_tap {
        ($n:ident, $k:ident => $body:expr) => {
            each_tap!(@ $n, $k => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24)
        };
        (@ $n:ident, $k:ident => $body:expr, $($number:literal)*) => {
            $(if $number < $n {
                const $k: usize = $number;
                $body
            })*
        };
    }

    /// Gradients of a window, `at` elements from the first one, of images from `from` on.
    #[allow(clippy::needless_range_loop)] // As below.
    #[inline(always)]
    unsafe fn make<const N: usize>(c: &PatchArgs, from: usize, at: usize, near: &mut Near<N>) {
        // SAFETY: as for `sums`.
        unsafe {
            let zero = _mm512_setzero_ps();
            let mut made = [[zero; N]; AT_A_TIME];
            let (mut factors, mut dy) = (c.factors.add(from * 16), c.dy.add(at));
            for _ in 0..c.terms {
                let mut b = [zero; N];
                for j in 0..N {
                    b[j] = _mm512_loadu_ps(dy.add(j * 16));
                }
                for i in 0..AT_A_TIME {
                    // Of one vector, loads of whole vectors would be more than one for each product.
                    let a = match N {
                        1 => _mm512_set1_ps(*factors.add(i * 16)),
                        _ => _mm512_loadu_ps(factors.add(i * 16)),
                    };
                    for j in 0..N {
                        made[i][j] = _mm512_fmadd_ps(a, b[j], made[i][j]);
                    }
                }
                factors = factors.wrapping_add(c.factor_term);
                dy = dy.wrapping_add(c.term);
            }
            for i in 0..AT_A_TIME {
                for j in 0..N {
                    _mm512_store_ps(near.0[i][j].as_mut_ptr().cast(), made[i][j]);
                }
            }
        }
    }

    /// `K` taps of `N` vectors of filters. `MADE`: gradients are products; otherwise there is one image.
    #[allow(clippy::needless_range_loop)] // Iterators over several arrays at once read worse.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn sums<const K: usize, const N: usize, const MADE: bool>(c: &PatchArgs) {
        // SAFETY: the caller's arrays cover the windows, images, taps, vectors and terms; past the last image there are
        // factors of `AT_A_TIME` more, of which nothing is used. The level is available.
        unsafe {
            let zero = _mm512_setzero_ps();
            let bases = _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_loadu_si128(c.bases.cast())));
            let (mut acc, mut bias) = ([[zero; N]; K], [zero; N]);
            let mut near = Near([[[const { MaybeUninit::uninit() }; 16]; N]; AT_A_TIME]);
            let mut from = 0;
            while from < c.images {
                // A loop over images that were known to be few would be written out, with all of their look-ups first:
                // these leave no registers for the sums.
                let images = if MADE { std::hint::black_box(AT_A_TIME.min(c.images - from)) } else { 1 };
                for w in 0..c.windows {
                    let at = w * c.row;
                    if MADE {
                        make::<N>(c, from, at, &mut near);
                    }
                    for i in 0..images {
                        let patch = c.patches.add((from + i) * c.image + w * c.patch);
                        let place = c.place.add((from + i) * c.place_image + at);
                        let (mut base, mut g) = ([_mm512_setzero_si512(); N], [zero; N]);
                        for j in 0..N {
                            let places = _mm_loadu_si128(place.add(j * 16).cast());
                            let alive = !_mm_movepi8_mask(places);
                            let lanes = _mm512_cvtepu8_epi32(places);
                            base[j] = _mm512_castps_si512(_mm512_permutevar_ps(bases, lanes));
                            let dy = match MADE {
                                true => near.0.as_ptr().add(i).cast::<f32>().add(j * 16),
                                false => c.dy.add(at + j * 16),
                            };
                            g[j] = _mm512_maskz_loadu_ps(alive, dy);
                            bias[j] = _mm512_add_ps(bias[j], g[j]);
                        }
                        each_tap!(K, TAP => {
                            let seen = _mm512_castps256_ps512(_mm256_loadu_ps(patch.add(*c.taps.add(TAP))));
                            for j in 0..N {
                                acc[TAP][j] = tap_sum(acc[TAP][j], g[j], base[j], seen);
                            }
                        });
                    }
                }
                from += AT_A_TIME;
            }
            for j in 0..N {
                for k in 0..K {
                    let to = c.sum.add(k * c.sum_row + j * 16);
                    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), acc[k][j]));
                }
                let to = c.bias.add(j * 16);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), bias[j]));
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub unsafe fn run<const N: usize, const MADE: bool>(taps: usize, c: &PatchArgs) {
        macro_rules! by_taps {
            ($($k:literal)*) => {
                match taps {
                    // SAFETY: the caller's promises are those of `sums`.
                    $($k => unsafe { sums::<$k, N, MADE>(c) },)*
                    _ => {}
                }
            };
        }
        by_taps!(1 2 3 4 5 6 7 8 9);
        if N == 1 {
            by_taps!(18 20 25);
        }
    }
}

/// Kernels for one vector of filters and for two: where gradients are read, and where they are made.
fn kernels(level: Level) -> Option<[[PatchFn; 2]; 2]> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            Some([[x86::run::<1, false>, x86::run::<2, false>], [x86::run::<1, true>, x86::run::<2, true>]])
        }
        _ => None,
    }
}

/// How images are laid out as patches, and what sums over them.
pub struct Patches {
    /// Where in an image each window's patch begins, and its parts of so many numbers that lie together.
    windows: Vec<usize>,
    parts: Vec<usize>,
    part: usize,
    patch: usize,
    bases: [i32; 4],
    taps: Vec<usize>,
    kernels: [[PatchFn; 2]; 2],
}

/// Gradients of a window of each image: an array, or a product.
#[derive(Clone, Copy)]
pub struct Gradients {
    /// Of one image, at the first window; or the first term's numbers, and from one term to the next.
    pub dy: *const f32,
    pub term: usize,
    /// The first image's factors as vectors: see [`Patches::spread`]. Null: gradients are an array.
    pub factors: *const f32,
    pub factor_term: usize,
    pub terms: usize,
}

impl Patches {
    /// `None` where patches are too large, or at levels whose vectors are shorter. `kernel`: height and width; `windows`: rows
    /// and columns of them.
    pub fn new(
        g: &UnpooledGradient,
        input: &Padded,
        (kernel, channels): ([usize; 2], usize),
        windows: [usize; 2],
        level: Level,
    ) -> Option<Patches> {
        let c = &g.conv;
        let [between, taps] = [&c.rhs_dilation, &c.strides].map(|steps| [steps[0], steps[1]]);
        let size = |i: usize| (g.unpool.window[i] - 1) * between[i] + (kernel[i] - 1) * taps[i] + 1;
        let (rows, columns) = (size(0), size(1));
        let elements = g.unpool.window.iter().product::<usize>();
        let (patch, count) = (rows * columns * channels, kernel[0] * kernel[1] * channels);
        let mut bases = [0; 4];
        if patch > MOST_NUMBERS
            || elements > bases.len()
            || (count > MOST_OF_TWO && !OF_ONE.contains(&count))
            || input.strides[1] != channels
        {
            return None;
        }
        let line = columns * channels;
        let in_window =
            [(g.unpool.window[0], between[0] * line), (g.unpool.window[1], between[1] * channels)];
        for (base, at) in bases.iter_mut().zip(offsets(in_window.into_iter())) {
            *base = at as i32;
        }
        if bases.iter().any(|&at| at as usize >= SEEN) {
            return None;
        }
        let step = [0, 1].map(|i| input.strides[i] * between[i] * g.unpool.strides[i]);
        Some(Patches {
            windows: offsets([(windows[0], step[0]), (windows[1], step[1])].into_iter()),
            parts: (0..rows).map(|row| row * input.strides[0]).collect(),
            part: line,
            // Small ones end where a vector does, so that most taps' loads stay in one line of the cache.
            patch: patch.max(LANES),
            bases,
            taps: offsets(
                [(kernel[0], taps[0] * line), (kernel[1], taps[1] * channels), (channels, 1)].into_iter(),
            ),
            kernels: kernels(level)?,
        })
    }

    /// Numbers of a patch.
    pub fn numbers(&self) -> usize {
        self.patch
    }

    /// Numbers of an image's patches, and what the last taps see behind them.
    pub fn table(&self) -> usize {
        ((self.windows.len() + 1) * self.patch).next_multiple_of(LANES)
    }

    /// Lays an image out.
    ///
    /// # Safety
    /// `x` is an image, and `to` has room for [`table`](Patches::table) numbers.
    pub unsafe fn fill(&self, x: *const f32, to: *mut f32) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self.part {
                4 => self.fill_parts::<[f32; 4]>(x, to),
                5 => self.fill_parts::<[f32; 5]>(x, to),
                6 => self.fill_parts::<[f32; 6]>(x, to),
                _ => self.fill_parts::<f32>(x, to),
            }
        }
    }

    /// By pieces of a size that is known: a few loads and stores each.
    unsafe fn fill_parts<T: Copy>(&self, x: *const f32, to: *mut f32) {
        let pieces = self.part / (size_of::<T>() / size_of::<f32>());
        for (w, window) in self.windows.iter().enumerate() {
            for (p, part) in self.parts.iter().enumerate() {
                let from = x.wrapping_add(window + part).cast::<T>();
                let to = to.wrapping_add(w * self.patch + p * self.part).cast::<T>();
                // SAFETY: a patch lies inside the image.
                (0..pieces).for_each(|i| unsafe { *to.add(i) = *from.add(i) });
            }
        }
    }

    /// Numbers of the vectors that [`spread`](Patches::spread) makes of so many.
    pub fn spread_len(count: usize) -> usize {
        (count + AT_A_TIME) * LANES
    }

    /// A vector of each of `count` numbers.
    ///
    /// # Safety
    /// They are at `from`, and `to` has room for [`spread_len`](Patches::spread_len) numbers.
    pub unsafe fn spread(from: *const f32, count: usize, to: *mut f32) {
        for i in 0..count {
            // SAFETY: by the caller's promise.
            unsafe { *to.add(i * LANES).cast::<[f32; LANES]>() = [*from.add(i); LANES] };
        }
    }

    /// Adds what windows of some images have: to rows of `sum_row` filters for each tap, and behind them for the bias.
    ///
    /// # Safety
    /// `tables` are the images' patches, `place` the first image's places; all have `filters` for every window, whole
    /// vectors. Without factors there is one image.
    pub unsafe fn sums(
        &self,
        tables: *const f32,
        (place, images): (*const u8, usize),
        windows: std::ops::Range<usize>,
        gradients: Gradients,
        (sum, filters): (*mut f32, usize),
    ) {
        let kernels = &self.kernels[usize::from(!gradients.factors.is_null())];
        let together = if self.taps.len() > MOST_OF_TWO { 1 } else { 2 };
        for j in (0..filters).step_by(together * LANES) {
            let at = windows.start * filters + j;
            let call = PatchArgs {
                patches: tables.wrapping_add(windows.start * self.patch),
                patch: self.patch,
                image: self.table(),
                windows: windows.len(),
                images,
                bases: self.bases.as_ptr(),
                taps: self.taps.as_ptr(),
                place: place.wrapping_add(at),
                place_image: self.windows.len() * filters,
                row: filters,
                dy: gradients.dy.wrapping_add(at),
                term: gradients.term,
                factors: gradients.factors,
                factor_term: gradients.factor_term,
                terms: gradients.terms,
                sum: sum.wrapping_add(j),
                sum_row: filters,
                bias: sum.wrapping_add(self.taps.len() * filters + j),
            };
            // SAFETY: by the caller's promise; the level was available when the kernels were chosen.
            unsafe { kernels[usize::from(together == 2 && j + LANES < filters)](self.taps.len(), &call) };
        }
    }
}
