//! Whether sums of products can be infinite or NaN, from the greatest magnitudes of the operands: kernels that leave out
//! checks for these, or multiply by zeros that the definition does not have, ask first.

use crate::simd::level::{Isa, Tile};
use crate::simd::loops::lanes;
use crate::simd::math;

/// Magnitudes and sums up to this have room for rounding: none becomes infinite.
const MODERATE: f32 = 1e37;

/// What sums of products are at most for an input of magnitude 1, and the greatest bias.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Bounds {
    pub gain: f32,
    pub offset: f32,
}

impl Bounds {
    /// Whether no sum over inputs of this magnitude can be infinite or NaN. A magnitude that is NaN is not within bounds.
    pub fn keep_finite(&self, magnitude: f32) -> bool {
        magnitude <= MODERATE && magnitude * self.gain + self.offset <= MODERATE
    }
}

/// Sets the number at `dst` to the greatest magnitude of `n` numbers at `a`, or to a NaN where there is one.
pub struct Magnitude;
impl Tile for Magnitude {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // Without their signs, floats are in the order of their bits, and NaN is above all.
        // SAFETY: as the type says.
        unsafe {
            let greatest = lanes::<u32>(a, n).iter().fold(0, |most, x| most.max(x & (u32::MAX >> 1)));
            *dst.cast::<f32>() = f32::from_bits(greatest);
        }
    }
}

/// The same of `n` bf16.
pub struct MagnitudeOfBf16;
impl Tile for MagnitudeOfBf16 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // SAFETY: as the type says.
        unsafe {
            let greatest = lanes::<u16>(a, n).iter().fold(0, |most: u16, x| most.max(x & (u16::MAX >> 1)));
            *dst.cast::<f32>() = math::from_bf16(greatest);
        }
    }
}
