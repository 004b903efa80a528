//! Checks by magnitude bounds that no sum of products can overflow to infinity or NaN.
//!
//! Used by kernels that do not handle infinity and NaN: they skip checks for NaN, or multiply by zeros that the
//! definition does not have.

use crate::simd::level::{Isa, TileLoop};
use crate::simd::loops::lanes;
use crate::simd::math;

/// Maximum magnitude that counts as finite: far enough below `f32::MAX` that rounding errors do not produce infinity.
const MODERATE: f32 = 1e37;

/// Bounds on the magnitude of sums of products.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct MagnitudeBounds {
    /// Bound on the sums for inputs of magnitude 1.
    pub gain: f32,
    /// Bound on the bias.
    pub offset: f32,
}

impl MagnitudeBounds {
    /// Whether no sum over inputs of at most this magnitude can be infinite or NaN. Returns false for a NaN magnitude.
    pub fn keep_finite(&self, magnitude: f32) -> bool {
        magnitude <= MODERATE && magnitude * self.gain + self.offset <= MODERATE
    }
}

/// Writes the maximum magnitude of `n` f32 at `a` to the f32 at `dst`, or NaN if any of them is NaN.
pub struct MaxMagnitudeF32;
impl TileLoop for MaxMagnitudeF32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // Without the sign bit, floats compare like their bits as integers, and NaN is above infinity. SAFETY: the
        // arguments are as documented on the type.
        unsafe {
            let greatest = lanes::<u32>(a, n).iter().fold(0, |most, x| most.max(x & (u32::MAX >> 1)));
            *dst.cast::<f32>() = f32::from_bits(greatest);
        }
    }
}

/// Like [`MaxMagnitudeF32`], for `n` bf16 at `a`.
pub struct MaxMagnitudeBf16;
impl TileLoop for MaxMagnitudeBf16 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: the arguments are as documented on the type.
        unsafe {
            let greatest = lanes::<u16>(a, n).iter().fold(0, |most: u16, x| most.max(x & (u16::MAX >> 1)));
            *dst.cast::<f32>() = math::from_bf16(greatest);
        }
    }
}
