//! Bias of a narrow-float result: added after rounding and rounded again, as two separate ops would.

use crate::simd::level::{Isa, Level, Tile, TileFn};
use crate::simd::loops::{lanes, lanes_mut};
use crate::simd::math;
use systole_ir::DType;

/// Rounds `n` rows of f32 to bf16 values in place, adds a bias, and rounds again. `dst: [n, width]`, `b: [width]`, `c`:
/// pointer to `width`.
pub struct NarrowBias<const BIAS: bool>;
impl<const BIAS: bool> Tile for NarrowBias<BIAS> {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, _: *const u8, b: *const u8, c: *const u8, n: usize) {
        let round = |x: f32| math::from_bf16(math::to_bf16(x));
        // SAFETY: by the promises of `Tile::run`, with these operands; the bias does not overlap the rows.
        unsafe {
            let width = *c.cast::<usize>();
            let bias = if BIAS { lanes::<f32>(b, width) } else { &[] };
            for row in 0..n {
                let y = lanes_mut::<f32>(dst.cast::<f32>().add(row * width).cast(), width);
                if BIAS {
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y = round(round(*y) + b));
                } else {
                    y.iter_mut().for_each(|y| *y = round(*y));
                }
            }
        }
    }
}

/// The loop that rounds results of a narrow type, with a bias or without; `None` for f32.
pub fn sum_rounding(x: DType, bias: bool, level: Level) -> Option<TileFn> {
    match (x, bias) {
        (DType::F32, _) => None,
        (_, true) => Some(level.tile::<NarrowBias<true>>()),
        (_, false) => Some(level.tile::<NarrowBias<false>>()),
    }
}
