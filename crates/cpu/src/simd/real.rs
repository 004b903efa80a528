//! f32 and f64 as kernels that are written for both see them.

use crate::simd::level::Isa;
use crate::simd::vector::Vector;
use std::ops::{Add, Div, Mul, Sub};

/// f32 or f64.
pub trait Real:
    Copy
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// A vector register of it.
    type V<I: Isa>: Vector<T = Self>;
    /// Rounded to the type.
    fn of(x: f64) -> Self;
    fn sqrt(self) -> Self;
}

impl Real for f32 {
    type V<I: Isa> = I::F32;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
}

impl Real for f64 {
    type V<I: Isa> = I::F64;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
}

/// Loads a vector: whole, or its first `n` lanes.
///
/// # Safety
/// The array has these elements; the CPU has the vector's level.
#[inline(always)]
pub unsafe fn load<V: Vector, const WHOLE: bool>(p: *const V::T, n: usize) -> V {
    // SAFETY: by the caller's promise.
    unsafe { if WHOLE { V::load(p) } else { V::load_part(p, n) } }
}

/// Stores a vector: whole, or its first `n` lanes.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub unsafe fn store<V: Vector, const WHOLE: bool>(x: V, p: *mut V::T, n: usize) {
    // SAFETY: by the caller's promise.
    unsafe { if WHOLE { x.store(p) } else { x.store_part(p, n) } }
}
