//! Accumulates the filter gradient of a convolution fused with max pooling: keeps one im2col patch per window in vector
//! registers.
//!
//! These sums belong to [`ConvPoolGradient`](crate::kernels::conv_pool::gradient::ConvPoolGradient). An image is copied
//! to one patch per window: all input elements that the taps read for any argmax. Lanes are filters. For a tap, a lane
//! needs the patch element at (offset of its argmax) + (offset of the tap): a load of 8 elements from the tap's offset
//! on, and one permutation by the offset of the argmax. Gradients are read from an array, or computed on the fly as a
//! product with a short K, for one window of a few images at a time, so that they never leave L1.

use crate::kernel::padded_input::{PaddedConvInput, offsets};
use crate::select::SelectResult;
use crate::simd::level::Level;
use systole_compile::{Step, UnpooledGradient};
use systole_ir::{DType, ensure};

/// Number of f32 lanes of a vector.
pub const LANES: usize = 16;
/// Maximum elements of a patch.
const MOST_ELEMENTS: usize = 64;
/// Elements loaded per tap: offsets of the argmax are below this.
const SEEN: usize = 8;
/// Maximum elements of a pooling window: offsets of the argmax are looked up in a vector of four.
const WINDOW_ELEMENTS: usize = 4;
/// Number of images whose gradients of one window are computed together.
pub const AT_A_TIME: usize = 4;
/// Maximum number of taps for which the accumulators of two vectors of filters fit the registers.
const MOST_OF_TWO: usize = 9;
/// Larger numbers of taps that have microkernels, with one vector of filters.
const OF_ONE: [usize; 3] = [18, 20, 25];

/// Arguments of a microkernel: sums over a range of windows and images.
struct Im2colArgs {
    /// Patch of the first window of the first image; elements between windows, and between images.
    patches: *const f32,
    patch: usize,
    image: usize,
    windows: usize,
    images: usize,
    /// Offsets in a patch of the four elements of the pooling window, all below [`SEEN`].
    bases: *const i32,
    /// Offset in a patch of each tap.
    taps: *const usize,
    /// Argmax of the first window of the first image; elements between images, and between windows.
    argmax: *const u8,
    argmax_image: usize,
    row: usize,
    /// Gradients of the first window of one image; or the right operand of the product that computes them, with `term`
    /// elements between rows of K.
    dy: *const f32,
    term: usize,
    /// Left operand of the product, each element broadcast to a whole vector. Images of one k are contiguous, with
    /// `factor_term` elements from one k to the next. `terms` is K.
    factors: *const f32,
    factor_term: usize,
    terms: usize,
    /// Accumulated sums f32[taps, filters], with `sum_row` elements between rows.
    sum: *mut f32,
    sum_row: usize,
    /// Accumulated bias gradient.
    bias: *mut f32,
}

/// Function type of a microkernel for a number of taps.
type Im2colFn = unsafe fn(usize, &Im2colArgs);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::kernels::conv_pool::gradient::im2col::{AT_A_TIME, Im2colArgs};
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    /// Gradients of one window: `N` vectors for each image.
    #[repr(align(64))]
    struct WindowGradients<const N: usize>([[[MaybeUninit<f32>; 16]; N]; AT_A_TIME]);

    /// Returns `sum + g * patch[indices]`, lane by lane.
    ///
    /// In assembly, because compilers move the permutations of all taps to the front and then spill the accumulators.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn tap_sum(mut sum: __m512, g: __m512, indices: __m512i, patch: __m512) -> __m512 {
        let _elements: __m512;
        // SAFETY: the level is available; the assembly touches registers only.
        unsafe {
            std::arch::asm!(
                "vpermps {elements}, {indices}, {patch}",
                "vfmadd231ps {sum}, {elements}, {g}",
                elements = out(zmm_reg) _elements,
                indices = in(zmm_reg) indices,
                patch = in(zmm_reg) patch,
                sum = inout(zmm_reg) sum,
                g = in(zmm_reg) g,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    /// Expands `body` for each of `K` taps. The macro unrolls, because compilers keep loops over many taps, which
    /// leaves the accumulators in memory.
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

    /// Computes the gradients of one window for [`AT_A_TIME`] images starting at `from`. The window's columns of the
    /// product start at `at`.
    #[allow(clippy::needless_range_loop)] // As for `sums`.
    #[inline(always)]
    unsafe fn make<const N: usize>(c: &Im2colArgs, from: usize, at: usize, near: &mut WindowGradients<N>) {
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
                    // With one vector of filters, loading whole vectors would take more than one load per multiply-add.
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

    /// Microkernel: sums `K` taps of `N` vectors of filters. `MADE`: gradients are computed as a product; otherwise
    /// they are read from an array, for a single image.
    #[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn sums<const K: usize, const N: usize, const MADE: bool>(c: &Im2colArgs) {
        // SAFETY: the caller's arrays cover the windows, images, taps, vectors and terms; after the last image's
        // factors there is room for `AT_A_TIME` more, whose products are not used. The level is available.
        unsafe {
            let zero = _mm512_setzero_ps();
            let bases = _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_loadu_si128(c.bases.cast())));
            let (mut acc, mut bias) = ([[zero; N]; K], [zero; N]);
            let mut near = WindowGradients([[[const { MaybeUninit::uninit() }; 16]; N]; AT_A_TIME]);
            let mut from = 0;
            while from < c.images {
                // Hides the trip count. Otherwise the compiler would unroll the loop over images, move their
                // permutations to the front and spill the accumulators.
                let images = if MADE { std::hint::black_box(AT_A_TIME.min(c.images - from)) } else { 1 };
                for w in 0..c.windows {
                    let at = w * c.row;
                    if MADE {
                        make::<N>(c, from, at, &mut near);
                    }
                    for i in 0..images {
                        let patch = c.patches.add((from + i) * c.image + w * c.patch);
                        let argmax = c.argmax.add((from + i) * c.argmax_image + at);
                        let (mut base, mut g) = ([_mm512_setzero_si512(); N], [zero; N]);
                        for j in 0..N {
                            let bytes = _mm_loadu_si128(argmax.add(j * 16).cast());
                            // `DEAD` is the sign bit.
                            let alive = !_mm_movepi8_mask(bytes);
                            let lanes = _mm512_cvtepu8_epi32(bytes);
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
    pub unsafe fn run<const N: usize, const MADE: bool>(taps: usize, c: &Im2colArgs) {
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

/// Returns the microkernels `[gradients are read or computed][one or two vectors of filters]`.
fn kernels(level: Level) -> Option<[[Im2colFn; 2]; 2]> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            Some([[x86::run::<1, false>, x86::run::<2, false>], [x86::run::<1, true>, x86::run::<2, true>]])
        }
        _ => None,
    }
}

/// Layout of images as im2col patches, and the microkernels that sum over them.
pub struct Im2col {
    /// Image offset of each window's patch.
    windows: Vec<usize>,
    /// Image offsets of a patch's rows, and the number of contiguous elements of a row.
    parts: Vec<usize>,
    part: usize,
    /// Elements between patches.
    patch: usize,
    /// Offsets in a patch of the elements of the pooling window, as in [`Im2colArgs`].
    bases: [i32; 4],
    taps: Vec<usize>,
    kernels: [[Im2colFn; 2]; 2],
}

/// The pooled gradient: an array of one image, or a product for several images.
#[derive(Clone, Copy)]
pub struct PooledGradients {
    /// The gradient array at the first window of the image, or the product's right operand.
    pub dy: *const f32,
    /// Elements from one k to the next in the right operand.
    pub term: usize,
    /// Left operand of the product as vectors, at the first image; see [`Im2col::spread`]. Null: gradients are an
    /// array.
    pub factors: *const f32,
    /// Elements from one k to the next in the left operand.
    pub factor_term: usize,
    /// K of the product.
    pub terms: usize,
}

/// Checks that there is a microkernel for these elements of a patch, elements of a pooling window, and number of taps.
fn fits(patch: usize, window: usize, taps: usize) -> SelectResult<()> {
    ensure!(patch <= MOST_ELEMENTS, "the taps of a window read more than 64 elements".into());
    ensure!(window <= WINDOW_ELEMENTS, "its windows have more than 4 elements".into());
    if taps > MOST_OF_TWO && !OF_ONE.contains(&taps) {
        return Err(
            "more than 9 taps, and not 18, 20 or 25: other counts would need separate microkernels".into()
        );
    }
    Ok(())
}

impl Im2col {
    /// Creates the layout of a step, or returns why im2col does not support it.
    pub fn new(
        g: &UnpooledGradient,
        step: &Step,
        input: &PaddedConvInput,
        level: Level,
    ) -> SelectResult<Im2col> {
        let (x, argmax, dk) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
        ensure!(step.input_types[2].dtype == DType::F32, "its gradients are not f32".into());
        if !argmax.shape[3].is_multiple_of(LANES) {
            return Err("its number of channels is not a multiple of 16".into());
        }
        let (windows, kernel) = ([argmax.shape[1], argmax.shape[2]], [dk.shape[0], dk.shape[1]]);
        let (channels, c) = (x.shape[3], &g.conv);
        let [between, taps] = [&c.rhs_dilation, &c.strides].map(|steps| [steps[0], steps[1]]);
        let size = |i: usize| (g.unpool.window[i] - 1) * between[i] + (kernel[i] - 1) * taps[i] + 1;
        let (rows, columns) = (size(0), size(1));
        let (patch, count) = (rows * columns * channels, kernel[0] * kernel[1] * channels);
        if input.strides[1] != channels {
            return Err("adjacent pixels of its input are not contiguous in memory".into());
        }
        fits(patch, g.unpool.window.iter().product(), count)?;
        let mut bases = [0; WINDOW_ELEMENTS];
        let line = columns * channels;
        let in_window =
            [(g.unpool.window[0], between[0] * line), (g.unpool.window[1], between[1] * channels)];
        for (base, at) in bases.iter_mut().zip(offsets(in_window.into_iter())) {
            *base = at as i32;
        }
        if bases.iter().any(|&at| at as usize >= SEEN) {
            return Err("elements of a pooling window are more than 8 elements apart in the patch".into());
        }
        let step = [0, 1].map(|i| input.strides[i] * between[i] * g.unpool.strides[i]);
        Ok(Im2col {
            windows: offsets([(windows[0], step[0]), (windows[1], step[1])].into_iter()),
            parts: (0..rows).map(|row| row * input.strides[0]).collect(),
            part: line,
            // A small patch is padded to a vector, so that most loads of a tap stay within one cache line.
            patch: patch.max(LANES),
            bases,
            taps: offsets(
                [(kernel[0], taps[0] * line), (kernel[1], taps[1] * channels), (channels, 1)].into_iter(),
            ),
            kernels: kernels(level).ok_or("the instruction set has no vectors of 16 f32")?,
        })
    }

    /// Elements of an im2col patch.
    pub fn patch_elements(&self) -> usize {
        self.patch
    }

    /// Elements of an image's patches, plus one more patch, because loads for the last taps go beyond the last patch.
    pub fn table(&self) -> usize {
        ((self.windows.len() + 1) * self.patch).next_multiple_of(LANES)
    }

    /// Copies an image to im2col patches.
    ///
    /// # Safety
    /// `x` is an image, and `to` has room for [`table`](Im2col::table) elements.
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

    /// Copies an image to patches in pieces whose size the compiler knows: a few loads and stores each.
    unsafe fn fill_parts<T: Copy>(&self, x: *const f32, to: *mut f32) {
        let pieces = self.part / (size_of::<T>() / size_of::<f32>());
        for (w, window) in self.windows.iter().enumerate() {
            for (p, part) in self.parts.iter().enumerate() {
                let from = x.wrapping_add(window + part).cast::<T>();
                let to = to.wrapping_add(w * self.patch + p * self.part).cast::<T>();
                // SAFETY: a patch is inside the padded image, and `to` has room for all patches.
                (0..pieces).for_each(|i| unsafe { *to.add(i) = *from.add(i) });
            }
        }
    }

    /// Elements that [`spread`](Im2col::spread) writes for `count` elements, plus room for [`AT_A_TIME`] images after
    /// the last one.
    pub fn spread_len(count: usize) -> usize {
        (count + AT_A_TIME) * LANES
    }

    /// Broadcasts each of `count` elements to a vector.
    ///
    /// # Safety
    /// `from` has `count` elements, and `to` has room for [`spread_len`](Im2col::spread_len) elements.
    pub unsafe fn spread(from: *const f32, count: usize, to: *mut f32) {
        for i in 0..count {
            // SAFETY: by the caller's promise.
            unsafe { *to.add(i * LANES).cast::<[f32; LANES]>() = [*from.add(i); LANES] };
        }
    }

    /// Adds the sums over a range of windows and images to `sum: f32[taps + 1, filters]`, whose last row is the bias.
    ///
    /// # Safety
    /// `tables` are the images' patches; `argmax` is that of the first image at its first window. Gradients and argmax
    /// have `filters` elements for each window, a whole number of vectors. Without factors there is one image.
    pub unsafe fn sums(
        &self,
        tables: *const f32,
        (argmax, images): (*const u8, usize),
        windows: std::ops::Range<usize>,
        gradients: PooledGradients,
        (sum, filters): (*mut f32, usize),
    ) {
        let kernels = &self.kernels[usize::from(!gradients.factors.is_null())];
        let together = if self.taps.len() > MOST_OF_TWO { 1 } else { 2 };
        for j in (0..filters).step_by(together * LANES) {
            let at = windows.start * filters + j;
            let call = Im2colArgs {
                patches: tables.wrapping_add(windows.start * self.patch),
                patch: self.patch,
                image: self.table(),
                windows: windows.len(),
                images,
                bases: self.bases.as_ptr(),
                taps: self.taps.as_ptr(),
                argmax: argmax.wrapping_add(at),
                argmax_image: self.windows.len() * filters,
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
