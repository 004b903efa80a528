//! Narrow-float conversions in f32 vectors: load from and round to bf16 and f16.

use crate::simd::level::{Isa, TileLoop, by_level};
use crate::simd::math;
use crate::simd::vector::{Portable32, Vector};

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};

/// Element type of an array that a microkernel reads or writes, as a const parameter.
pub type NarrowFormat = u8;
/// Array format f32: no conversion.
pub const F32: NarrowFormat = 0;
pub const BF16: NarrowFormat = 1;
/// Array format f16, converted by F16C or AVX-512 instructions, which never flush subnormal numbers to zero.
pub const F16: NarrowFormat = 2;

/// Conversions of f32 vectors from and to a narrow format `F`. A rounded vector stays f32; its values are representable
/// in the format.
///
/// # Safety
/// As for [`Vector`].
pub unsafe trait NarrowFloats: Vector<T = f32> {
    /// Loads narrow values and widens them.
    unsafe fn load_wide<const F: NarrowFormat>(p: *const u16) -> Self;
    /// Rounds to the nearest value of the format.
    unsafe fn narrow<const F: NarrowFormat>(self) -> Self;
    /// Like [`NarrowFloats::narrow`], for finite values only.
    #[inline(always)]
    unsafe fn narrow_finite<const F: NarrowFormat>(self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { self.narrow::<F>() }
    }
    /// Stores values that are representable in the format. Other values are truncated to bf16, or rounded to f16.
    unsafe fn store_narrow<const F: NarrowFormat>(self, p: *mut u16);
}

// SAFETY: scalar code, available everywhere.
unsafe impl NarrowFloats for Portable32 {
    #[inline(always)]
    unsafe fn load_wide<const F: NarrowFormat>(p: *const u16) -> Self {
        // SAFETY: the caller has the vector's elements at `p`.
        let x = unsafe { *p.cast::<[u16; 4]>() };
        Portable32(if F == F16 { x.map(math::from_f16) } else { x.map(math::from_bf16) })
    }
    #[inline(always)]
    unsafe fn narrow<const F: NarrowFormat>(self) -> Self {
        Portable32(self.0.map(|x| match F {
            F16 => math::from_f16(math::to_f16(x)),
            _ => math::from_bf16(math::to_bf16(x)),
        }))
    }
    #[inline(always)]
    unsafe fn store_narrow<const F: NarrowFormat>(self, p: *mut u16) {
        let bits = |x: f32| if F == F16 { math::to_f16(x) } else { (x.to_bits() >> 16) as u16 };
        // SAFETY: the caller has room for the vector's elements at `p`.
        unsafe { *p.cast() = self.0.map(bits) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{F16, NarrowFloats, NarrowFormat};
    use crate::simd::vector::x86::{V8x32, V16x32};
    use std::arch::x86_64::*;

    // SAFETY: callers ensure that the CPU has these instructions.
    unsafe impl NarrowFloats for V16x32 {
        #[inline(always)]
        unsafe fn load_wide<const F: NarrowFormat>(p: *const u16) -> Self {
            // SAFETY: the CPU has the level; the caller has the vector's elements at `p`.
            unsafe {
                if F == F16 {
                    return V16x32(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())));
                }
                let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                V16x32(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)))
            }
        }
        #[inline(always)]
        unsafe fn narrow<const F: NarrowFormat>(self) -> Self {
            // SAFETY: the CPU has the level, guaranteed by the caller.
            unsafe {
                if F == F16 {
                    return V16x32(_mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)));
                }
                let x = _mm512_castps_si512(self.0);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(x), _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                let up = _mm512_mask_or_epi32(up, nan, x, _mm512_set1_epi32(0x40_0000));
                V16x32(_mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(0xffff_0000u32 as i32))))
            }
        }
        #[inline(always)]
        unsafe fn narrow_finite<const F: NarrowFormat>(self) -> Self {
            // SAFETY: the CPU has the level, guaranteed by the caller.
            unsafe {
                if F == F16 {
                    return V16x32(_mm512_cvtph_ps(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)));
                }
                let x = _mm512_castps_si512(self.0);
                let odd = _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x1_0000));
                let up = _mm512_add_epi32(x, _mm512_set1_epi32(0x7fff));
                let up = _mm512_mask_add_epi32(up, odd, x, _mm512_set1_epi32(0x8000));
                V16x32(_mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(0xffff_0000u32 as i32))))
            }
        }
        #[inline(always)]
        unsafe fn store_narrow<const F: NarrowFormat>(self, p: *mut u16) {
            // SAFETY: the CPU has the level; the caller has room for the vector's elements at `p`.
            unsafe {
                if F == F16 {
                    return _mm256_storeu_si256(
                        p.cast(),
                        _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
                    );
                }
                let high = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
                _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(high));
            }
        }
    }

    // SAFETY: as above.
    unsafe impl NarrowFloats for V8x32 {
        #[inline(always)]
        unsafe fn load_wide<const F: NarrowFormat>(p: *const u16) -> Self {
            // SAFETY: the CPU has the level; the caller has the vector's elements at `p`.
            unsafe {
                if F == F16 {
                    return V8x32(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())));
                }
                let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                V8x32(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)))
            }
        }
        #[inline(always)]
        unsafe fn narrow<const F: NarrowFormat>(self) -> Self {
            // SAFETY: the CPU has the level, guaranteed by the caller.
            unsafe {
                if F == F16 {
                    return V8x32(_mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)));
                }
                let x = _mm256_castps_si256(self.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(x), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
                let quiet = _mm256_or_si256(x, _mm256_set1_epi32(0x40_0000));
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
                let up = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
                let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000u32 as i32));
                V8x32(_mm256_and_ps(up, high))
            }
        }
        #[inline(always)]
        unsafe fn narrow_finite<const F: NarrowFormat>(self) -> Self {
            // SAFETY: the CPU has the level, guaranteed by the caller.
            unsafe {
                if F == F16 {
                    return V8x32(_mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)));
                }
                let x = _mm256_castps_si256(self.0);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(x), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
                let high = _mm256_set1_epi32(0xffff_0000u32 as i32);
                V8x32(_mm256_castsi256_ps(_mm256_and_si256(up, high)))
            }
        }
        #[inline(always)]
        unsafe fn store_narrow<const F: NarrowFormat>(self, p: *mut u16) {
            // SAFETY: the CPU has the level; the caller has room for the vector's elements at `p`.
            unsafe {
                if F == F16 {
                    return _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
                }
                let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
                let (a, b) = (_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
                _mm_storeu_si128(p.cast(), _mm_packus_epi32(a, b));
            }
        }
    }
}

/// Widens `n` f16 at `a` to f32.
pub struct WidenF16;
impl TileLoop for WidenF16 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (to, from) = (dst.cast(), a.cast());
        // SAFETY: guaranteed by the contract of `TileLoop::run`; the level is that of the instance.
        unsafe {
            by_level!(
                I::LEVEL,
                widen::<V16x32>(to, from, n),
                widen::<V8x32>(to, from, n),
                widen::<Portable32>(to, from, n)
            )
        }
    }
}

#[inline(always)]
unsafe fn widen<V: NarrowFloats>(to: *mut f32, from: *const u16, n: usize) {
    // SAFETY: the caller has `n` elements on both sides.
    unsafe {
        in_vectors(
            V::LANES,
            n,
            |at| V::load_wide::<F16>(from.add(at)).store(to.add(at)),
            |at| *to.add(at) = math::from_f16(*from.add(at)),
        );
    }
}

/// Calls `vector` for whole vectors of `n` elements, the last of which may overlap the one before, or `scalar` for each
/// element if there is no whole vector.
#[inline(always)]
fn in_vectors(lanes: usize, n: usize, vector: impl Fn(usize), scalar: impl Fn(usize)) {
    (0..n / lanes).for_each(|i| vector(i * lanes));
    match n % lanes {
        0 => {}
        _ if n >= lanes => vector(n - lanes),
        _ => (0..n).for_each(scalar),
    }
}

/// Rounds `n` f32 at `a` to f16: the inverse of [`WidenF16`].
pub struct NarrowF16;
impl TileLoop for NarrowF16 {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        let (to, from) = (dst.cast(), a.cast());
        // SAFETY: guaranteed by the contract of `TileLoop::run`; the level is that of the instance.
        unsafe {
            by_level!(
                I::LEVEL,
                narrow::<V16x32>(to, from, n),
                narrow::<V8x32>(to, from, n),
                narrow::<Portable32>(to, from, n)
            )
        }
    }
}

#[inline(always)]
unsafe fn narrow<V: NarrowFloats>(to: *mut u16, from: *const f32, n: usize) {
    // SAFETY: the caller has `n` elements on both sides.
    unsafe {
        in_vectors(
            V::LANES,
            n,
            |at| V::load(from.add(at)).store_narrow::<F16>(to.add(at)),
            |at| *to.add(at) = math::to_f16(*from.add(at)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::level::Level;
    use systole_ir::f16;

    /// Runs a loop over some elements, in pieces of many lengths.
    fn through<A: Copy, Z: Copy + Default>(run: crate::simd::level::TileFn, x: &[A]) -> Vec<Z> {
        let mut y = vec![Z::default(); x.len()];
        let (mut at, mut n) = (0, 1);
        while at < x.len() {
            n = (n % 37 + 1).min(x.len() - at);
            let from = x[at..].as_ptr().cast();
            // SAFETY: both arrays have `n` elements from `at` on.
            unsafe { run(y[at..].as_mut_ptr().cast(), from, from, from, n) };
            at += n;
        }
        y
    }

    #[test]
    fn every_level_converts_f16_to_the_same_bits() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        // Every 4093rd bit pattern, and the neighborhood of each f16 and of the midpoint between two.
        let middle = |x: u16| math::from_f16(x).to_bits().wrapping_add(0x1000);
        let near = all.iter().flat_map(|&x| [middle(x) - 1, middle(x), middle(x) + 1]);
        let floats = (0..=u32::MAX).step_by(4093).chain(near).map(f32::from_bits).collect::<Vec<f32>>();
        for level in Level::ALL.into_iter().filter(|l| l.is_available()) {
            let wide: Vec<f32> = through(level.tile::<WidenF16>(), &all);
            for (x, y) in all.iter().zip(&wide) {
                let want = f16::from_bits(*x).to_f32();
                assert_eq!(y.to_bits(), math::from_f16(*x).to_bits(), "{level:?} {x:#x}");
                assert!(*y == want || y.is_nan() && want.is_nan(), "{level:?} {x:#x}");
            }
            let half: Vec<u16> = through(level.tile::<NarrowF16>(), &floats);
            for (x, y) in floats.iter().zip(&half) {
                let want = f16::from_f32(*x);
                assert_eq!(*y, math::to_f16(*x), "{level:?} {x} {:#x}", x.to_bits());
                assert!(
                    *y == want.to_bits() || want.is_nan() && f16::from_bits(*y).is_nan(),
                    "{level:?} {x}"
                );
            }
        }
    }
}
