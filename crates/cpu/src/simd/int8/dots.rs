//! Int8 dot-product GEMM kernels (AVX2, AVX-VNNI, AVX-512, VNNI): accumulate in registers, then requantize or store.

use crate::simd::inline_methods::inlined;
use crate::simd::int8::accumulator_block::{AccumulatorBlock, SumsBuffer, finish};
#[cfg(target_arch = "x86_64")]
use crate::simd::int8::i32x16::Avx2I32x16;
use crate::simd::int8::i32x16::{I32x16, PortableI32x16};
use crate::simd::int8::{COLUMNS, WORDS};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Words of a row per unrolled iteration.
const TOGETHER: usize = 4;

/// Vector of accumulators with its dot-product instruction.
trait DotVector: 'static {
    /// Vector of int32.
    type V: Copy;
    unsafe fn load(p: *const i32) -> Self::V;
    unsafe fn store(v: Self::V, p: *mut i32);
    unsafe fn splat(x: i32) -> Self::V;
    unsafe fn plus(a: Self::V, b: Self::V) -> Self::V;
    /// Computes `sums + b · x` per 32-bit word.
    unsafe fn dot(sums: Self::V, b: Self::V, x: Self::V) -> Self::V;
}

/// Computes `R` rows from `row` on; a panel has `N` vectors.
#[inline(always)]
unsafe fn rows<D: DotVector, const R: usize, const N: usize>(
    t: &AccumulatorBlock<'_>,
    row: usize,
    sums: &mut SumsBuffer,
) {
    let lanes = COLUMNS / N;
    // SAFETY: by the contract of `AccumulatorBlock` rows and panel have all words, and parameters have whole panels.
    unsafe {
        let bias = t.bias;
        // No closures: code that is not inlined into a function with target features loses those features.
        let mut all = [[D::splat(0); N]; R];
        for (r, own) in all.iter_mut().enumerate() {
            let correction = D::splat(*t.corrections.add(row + r));
            for (n, sum) in own.iter_mut().enumerate() {
                *sum = D::plus(D::load(bias.add(n * lanes)), correction);
            }
        }
        let (mut b, a) = (t.b.cast::<i32>(), t.a.add(row * t.a_row));
        let mut left = t.words;
        for step in t.steps {
            let mut a = a.add(*step);
            let now = left.min(WORDS);
            // A few words without a branch, at constant offsets.
            for _ in 0..now / TOGETHER {
                words::<D, R, N, TOGETHER>(&mut all, a, t.a_row, b);
                (a, b) = (a.add(4 * TOGETHER), b.add(COLUMNS * TOGETHER));
            }
            for _ in 0..now % TOGETHER {
                words::<D, R, N, 1>(&mut all, a, t.a_row, b);
                (a, b) = (a.add(4), b.add(COLUMNS));
            }
            left = left.saturating_sub(WORDS);
        }
        for (r, own) in all.iter().enumerate() {
            let mut to = sums.row_mut(row + r);
            // Accumulators that are not requantized are stored where they are wanted.
            let y = t.to[row + r].cast::<i32>();
            if t.ends.is_none() && !y.is_null() {
                to = y.wrapping_add(t.first);
            }
            for (n, v) in own.iter().enumerate() {
                D::store(*v, to.add(n * lanes));
            }
        }
    }
}

/// Adds the products of `K` words.
#[inline(always)]
unsafe fn words<D: DotVector, const R: usize, const N: usize, const K: usize>(
    all: &mut [[D::V; N]; R],
    a: *const u8,
    a_row: usize,
    b: *const i32,
) {
    for word in 0..K {
        // SAFETY: the caller has `K` words of the rows and of the panel.
        unsafe {
            let mut panel = [D::splat(0); N];
            for (n, v) in panel.iter_mut().enumerate() {
                *v = D::load(b.add(word * COLUMNS + n * (COLUMNS / N)));
            }
            for (r, sums) in all.iter_mut().enumerate() {
                let x = D::splat(a.add(r * a_row + 4 * word).cast::<i32>().read_unaligned());
                for (sum, b) in sums.iter_mut().zip(panel) {
                    *sum = D::dot(*sum, b, x);
                }
            }
        }
    }
}

/// Computes and stores all rows of each block, `MOST` rows at a time.
#[inline(always)]
unsafe fn blocks<D: DotVector, L: I32x16, const MOST: usize, const N: usize>(all: &[AccumulatorBlock<'_>]) {
    let mut sums = SumsBuffer::new();
    for t in all {
        let mut row = 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            while row + MOST <= t.rows {
                rows::<D, MOST, N>(t, row, &mut sums);
                row += MOST;
            }
            while row + 4 <= t.rows {
                rows::<D, 4, N>(t, row, &mut sums);
                row += 4;
            }
            while row < t.rows {
                rows::<D, 1, N>(t, row, &mut sums);
                row += 1;
            }
            if t.ends.is_some() {
                finish::<L>(t, &sums, 0, t.rows);
            }
        }
    }
}

/// Portable products of int16 pairs.
struct PlainPairs;

impl DotVector for PlainPairs {
    type V = [i32; 8];
    #[inline(always)]
    unsafe fn load(p: *const i32) -> [i32; 8] {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[i32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(v: [i32; 8], p: *mut i32) {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[i32; 8]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> [i32; 8] {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn plus(a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        let mut all = a;
        for (a, b) in all.iter_mut().zip(b) {
            *a = a.wrapping_add(b);
        }
        all
    }
    #[inline(always)]
    unsafe fn dot(sums: [i32; 8], b: [i32; 8], x: [i32; 8]) -> [i32; 8] {
        let mut all = sums;
        for ((sum, b), x) in all.iter_mut().zip(b).zip(x) {
            let low = i32::from(b as i16) * i32::from(x as i16);
            let high = (b >> 16) * (x >> 16);
            *sum = sum.wrapping_add(low.wrapping_add(high));
        }
        all
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! dots {
    ($name:ident $v:ident $load:ident $store:ident $splat:ident $plus:ident |$sums:ident, $b:ident, $x:ident| $dot:expr) => {
        struct $name;
        // SAFETY of all methods: they are inlined into functions with their target features, which are selected only if
        // the machine has them; addresses are guaranteed by the caller.
        impl DotVector for $name {
            type V = $v;
            inlined! {
                unsafe fn load(p: *const i32) -> $v = $load(p.cast());
                unsafe fn store(v: $v, p: *mut i32) = $store(p.cast(), v);
                unsafe fn splat(x: i32) -> $v = $splat(x);
                unsafe fn plus(a: $v, b: $v) -> $v = $plus(a, b);
                unsafe fn dot($sums: $v, $b: $v, $x: $v) -> $v = $dot;
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
dots!(Pairs256 __m256i _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 _mm256_add_epi32
    |sums, b, x| _mm256_add_epi32(sums, _mm256_madd_epi16(b, x)));
#[cfg(target_arch = "x86_64")]
dots!(Vnni256 __m256i _mm256_loadu_si256 _mm256_storeu_si256 _mm256_set1_epi32 _mm256_add_epi32
    |sums, b, x| _mm256_dpbusd_avx_epi32(sums, b, x));
#[cfg(target_arch = "x86_64")]
dots!(Pairs512 __m512i _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 _mm512_add_epi32
    |sums, b, x| _mm512_add_epi32(sums, _mm512_madd_epi16(b, x)));
#[cfg(target_arch = "x86_64")]
dots!(Vnni512 __m512i _mm512_loadu_si512 _mm512_storeu_si512 _mm512_set1_epi32 _mm512_add_epi32
    |sums, b, x| _mm512_dpbusd_epi32(sums, b, x));

/// Computes int8 GEMM blocks with int16 pairs, portably.
///
/// # Safety
/// See [`AccumulatorBlock`].
pub unsafe fn pairs_plain(all: &[AccumulatorBlock<'_>]) {
    // SAFETY: guaranteed by the caller.
    unsafe { blocks::<PlainPairs, PortableI32x16, 2, 4>(all) }
}

/// Computes int8 GEMM blocks with int16 pairs and AVX2.
///
/// # Safety
/// See [`AccumulatorBlock`]; the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn pairs_avx2(all: &[AccumulatorBlock<'_>]) {
    // SAFETY: guaranteed by the caller.
    unsafe { blocks::<Pairs256, Avx2I32x16, 2, 4>(all) }
}

/// Computes int8 GEMM blocks with int8 quads and AVX-VNNI.
///
/// # Safety
/// See [`AccumulatorBlock`]; the machine has AVX-VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avxvnni,avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn above_avx_vnni(all: &[AccumulatorBlock<'_>]) {
    // SAFETY: guaranteed by the caller.
    unsafe { blocks::<Vnni256, Avx2I32x16, 2, 4>(all) }
}

/// Computes int8 GEMM blocks with int16 pairs and AVX-512.
///
/// # Safety
/// See [`AccumulatorBlock`]; the machine has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn pairs_avx512(all: &[AccumulatorBlock<'_>]) {
    // SAFETY: guaranteed by the caller.
    unsafe { blocks::<Pairs512, __m512i, 8, 2>(all) }
}

/// Computes int8 GEMM blocks with int8 quads and AVX-512 VNNI.
///
/// # Safety
/// See [`AccumulatorBlock`]; the machine has AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn above_avx512_vnni(all: &[AccumulatorBlock<'_>]) {
    // SAFETY: guaranteed by the caller.
    unsafe { blocks::<Vnni512, __m512i, 8, 2>(all) }
}
