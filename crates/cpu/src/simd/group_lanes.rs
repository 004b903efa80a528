//! Spreads one channel of each group over the group's lanes, for convolutions with a few channels per group.

use crate::simd::vector::{Portable32, Vector};

/// Vectors of f32 whose lanes are groups of 2, 4 or 8 channels.
///
/// # Safety
/// As for [`Vector`]: callers ensure that the CPU has the instructions.
pub unsafe trait GroupLanes: Vector<T = f32> {
    /// Which lane each lane reads.
    type Lanes: Copy;
    /// Returns the lanes that hold channel `j` of each lane's group of `size` channels.
    unsafe fn lanes(size: usize, j: usize) -> Self::Lanes;
    /// Reads each lane from another one.
    unsafe fn pick(self, lanes: Self::Lanes) -> Self;
}

fn numbers<const N: usize>(size: usize, j: usize) -> [i32; N] {
    std::array::from_fn(|lane| (lane / size * size + j) as i32)
}

// SAFETY: plain indexing, available everywhere.
unsafe impl GroupLanes for Portable32 {
    type Lanes = [i32; Portable32::LANES];
    #[inline(always)]
    unsafe fn lanes(size: usize, j: usize) -> Self::Lanes {
        numbers(size, j)
    }
    #[inline(always)]
    unsafe fn pick(self, lanes: Self::Lanes) -> Self {
        Portable32(lanes.map(|lane| self.0[lane as usize]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{GroupLanes, numbers};
    use crate::simd::vector::x86::{V8x32, V16x32};
    use std::arch::x86_64::*;

    // SAFETY: callers ensure that the CPU has these instructions.
    unsafe impl GroupLanes for V8x32 {
        type Lanes = __m256i;
        #[inline(always)]
        unsafe fn lanes(size: usize, j: usize) -> __m256i {
            let numbers = numbers::<8>(size, j);
            // SAFETY: the array has eight elements.
            unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) }
        }
        #[inline(always)]
        unsafe fn pick(self, lanes: __m256i) -> V8x32 {
            // SAFETY: by the caller's promise.
            V8x32(unsafe { _mm256_permutevar8x32_ps(self.0, lanes) })
        }
    }

    // SAFETY: as above.
    unsafe impl GroupLanes for V16x32 {
        type Lanes = __m512i;
        #[inline(always)]
        unsafe fn lanes(size: usize, j: usize) -> __m512i {
            let numbers = numbers::<16>(size, j);
            // SAFETY: the array has sixteen elements.
            unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
        }
        #[inline(always)]
        unsafe fn pick(self, lanes: __m512i) -> V16x32 {
            // SAFETY: by the caller's promise.
            V16x32(unsafe { _mm512_permutexvar_ps(lanes, self.0) })
        }
    }
}
