//! Adds a bias to narrow-float results: round, add, round again, as two separate ops would.

use crate::simd::level::{Isa, Level, TileFn, TileLoop};
use crate::simd::loops::{lanes, lanes_mut};
use crate::simd::math;
use crate::simd::narrow_floats::{BF16, F16, NarrowFloats, NarrowFormat};
use crate::simd::vector::Portable32;
use systole_ir::DType;

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};

/// Rounds `n` rows of f32 to values of a narrow format in place, adds a bias, and rounds again. `dst: [n, width]`, `b:
/// [width]`, `c`: pointer to `width`.
struct NarrowBias<const BIAS: bool, const F: NarrowFormat>;
impl<const BIAS: bool, const F: NarrowFormat> TileLoop for NarrowBias<BIAS, F> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, _: *const u8, b: *const u8, c: *const u8, n: usize) {
        // SAFETY: guaranteed by the contract of `TileLoop::run`, with these operands; the bias does not overlap the rows.
        unsafe {
            let width = *c.cast::<usize>();
            for row in 0..n {
                let y = dst.cast::<f32>().add(row * width);
                match I::LEVEL {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 if F == F16 => f16_row::<V8x32, BIAS>(y, b.cast(), width),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 if F == F16 => f16_row::<V16x32, BIAS>(y, b.cast(), width),
                    _ if F == F16 => f16_row::<Portable32, BIAS>(y, b.cast(), width),
                    _ => bf16_row::<BIAS>(y, b, width),
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn bf16_row<const BIAS: bool>(y: *mut f32, bias: *const u8, width: usize) {
    let round = |x: f32| math::from_bf16(math::to_bf16(x));
    // SAFETY: the caller's row and bias have `width` elements.
    unsafe {
        let bias = if BIAS { lanes::<f32>(bias, width) } else { &[] };
        let y = lanes_mut::<f32>(y.cast(), width);
        if BIAS {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y = round(round(*y) + b));
        } else {
            y.iter_mut().for_each(|y| *y = round(*y));
        }
    }
}

/// Vectorized explicitly, because the compiler does not vectorize the conversions in [`math`].
#[inline(always)]
unsafe fn f16_row<V: NarrowFloats, const BIAS: bool>(y: *mut f32, bias: *const f32, width: usize) {
    let mut at = 0;
    // SAFETY: the caller's row and bias have `width` elements; the level is available.
    unsafe {
        while at < width {
            let (y, bias, n) = (y.add(at), bias.wrapping_add(at), V::LANES.min(width - at));
            let mut x = V::load_part(y, n).narrow::<F16>();
            if BIAS {
                x = x.add(V::load_part(bias, n)).narrow::<F16>();
            }
            x.store_part(y, n);
            at += n;
        }
    }
}

/// Returns the loop that rounds results of a narrow type, with or without a bias; `None` for f32.
pub fn sum_rounding(x: DType, bias: bool, level: Level) -> Option<TileFn> {
    match (x, bias) {
        (DType::BF16, true) => Some(level.tile::<NarrowBias<true, BF16>>()),
        (DType::BF16, false) => Some(level.tile::<NarrowBias<false, BF16>>()),
        (DType::F16, true) => Some(level.tile::<NarrowBias<true, F16>>()),
        (DType::F16, false) => Some(level.tile::<NarrowBias<false, F16>>()),
        _ => None,
    }
}
