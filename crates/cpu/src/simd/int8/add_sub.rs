//! Quantized add and subtract of two int8 tensors with three scales; also row sums.

use crate::simd::int8::i32x16::{I32x16, PortableI32x16};
use crate::simd::int8::windows::instances;
use crate::simd::level::Level;

/// Fixed-point factor below 1: `multiplier / 2^(31 + right)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedPointFactor {
    pub multiplier: i32,
    pub right: i32,
}

impl FixedPointFactor {
    #[inline(always)]
    fn of<L: I32x16>(self, x: L) -> L {
        let [by, half, some] = [self.right, (1 << self.right) >> 1, -i32::from(self.right > 0)];
        x.high(L::splat(self.multiplier)).divided(L::splat(by), L::splat(half), L::splat(some))
    }
}

/// Quantization parameters of an add or subtract.
#[derive(Clone, Copy, Debug)]
pub struct AddParams {
    /// Zero points and factors of the operands, which are shifted left by 20 bits first.
    pub zeros: [i32; 2],
    pub factors: [FixedPointFactor; 2],
    /// Whether the second operand is subtracted.
    pub is_difference: bool,
    /// Factor of the sum.
    pub factor: FixedPointFactor,
    /// Zero point, minimum and maximum of the result.
    pub zero: i32,
    pub low: i32,
    pub high: i32,
}

impl AddParams {
    /// Returns the results for all pairs of int8 values, in order.
    fn all(&self) -> Vec<i64> {
        let scaled = |x: i32, i: usize| {
            let x = PortableI32x16::splat((x - self.zeros[i]) << 20);
            self.factors[i].of::<PortableI32x16>(x)[0]
        };
        let [left, right] = [0, 1].map(|i| (-128..128).map(|x| scaled(x, i)).collect::<Vec<i32>>());
        let (zero, low, high) = (
            PortableI32x16::splat(self.zero),
            PortableI32x16::splat(self.low),
            PortableI32x16::splat(self.high),
        );
        let mut all = Vec::with_capacity(1 << 16);
        for a in left {
            for b in right.as_chunks::<16>().0 {
                let a = PortableI32x16::splat(a);
                let sum = if self.is_difference { a.sub(*b) } else { a.add(*b) };
                let y = I32x16::min(I32x16::max(self.factor.of::<PortableI32x16>(sum).add(zero), low), high);
                all.extend(y.iter().map(|y| i64::from(*y)));
            }
        }
        all
    }
}

/// `(a · x + b · y + constant) / 2^shift`, rounded down and clamped: equals an [`AddParams`] for all int8 x and y, in
/// fewer instructions.
#[derive(Clone, Copy, Debug)]
pub struct LinearFormula {
    pub weights: [i32; 2],
    pub constant: i32,
    pub shift: i32,
}

impl LinearFormula {
    /// Returns a formula that equals `how` for all pairs of int8 values, if one is found.
    pub fn of(how: &AddParams) -> Option<LinearFormula> {
        let real = |f: FixedPointFactor| f64::from(f.multiplier) / 2f64.powi(31 + f.right);
        let whole = 2f64.powi(20) * real(how.factor);
        let sign = if how.is_difference { -1.0 } else { 1.0 };
        let slopes = [real(how.factors[0]) * whole, sign * real(how.factors[1]) * whole];
        LinearFormula::fit(slopes, &how.all(), [how.low, how.high])
    }

    /// Returns a formula with about these slopes that equals `exact` for all pairs in order, within bounds, if one is
    /// found.
    pub fn fit(slopes: [f64; 2], exact: &[i64], bounds: [i32; 2]) -> Option<LinearFormula> {
        let most = slopes.iter().map(|s| s.abs()).sum::<f64>() * 128.0;
        // Tries the finest step sizes whose sums fit 32 bits first, then coarser ones. Unsuitable ones are rejected
        // early.
        let finest = (31.0 - most.max(1.0).log2()).floor().clamp(8.0, 28.0) as i32;
        let near = [0, 1, -1, 2, -2, 3, -3];
        let steps = near.iter().flat_map(|a| near.iter().map(move |b| [*a, *b]));
        let all = (8.max(finest - 3)..=finest).rev().flat_map(|shift| steps.clone().map(move |s| (shift, s)));
        all.into_iter().find_map(|(shift, step)| {
            let weight = |i: usize| (slopes[i] * 2f64.powi(shift)).round() as i32 + step[i];
            LinearFormula::through(bounds, exact, [weight(0), weight(1)], shift)
        })
    }

    /// Returns the formula with these weights, if some constant is exact. The constant is the middle of the valid
    /// range.
    fn through([low, high]: [i32; 2], exact: &[i64], weights: [i32; 2], shift: i32) -> Option<LinearFormula> {
        let (mut least, mut most) = (i64::MIN / 2, i64::MAX / 2);
        for (a, row) in (-128..128).zip(exact.chunks_exact(256)) {
            for (b, y) in (-128..128).zip(row) {
                let own = a * i64::from(weights[0]) + b * i64::from(weights[1]);
                if *y > low.into() {
                    least = least.max((y << shift) - own);
                }
                if *y < high.into() {
                    most = most.min(((y + 1) << shift) - 1 - own);
                }
            }
            if least > most {
                return None;
            }
        }
        let constant = i32::try_from((least + most).div_euclid(2)).ok()?;
        let bound = weights.iter().map(|w| i64::from(w.abs()) * 128).sum::<i64>() + i64::from(constant).abs();
        (bound < 1 << 31).then_some(LinearFormula { weights, constant, shift })
    }
}

/// Arguments of [`addition`]: `n` elements per operand.
pub struct AddArgs<'a> {
    pub how: &'a AddParams,
    pub x: [*const i8; 2],
    pub n: usize,
    pub to: *mut i8,
}

/// Returns the scaled elements of operand `i` from `at` on.
#[inline(always)]
unsafe fn scaled<L: I32x16>(b: &AddArgs<'_>, i: usize, at: usize) -> L {
    // SAFETY: guaranteed by the caller.
    let x = unsafe { L::widen(b.x[i].add(at), b.n - at) }.sub(L::splat(b.how.zeros[i]));
    b.how.factors[i].of(x.shifted_left(L::splat(20)))
}

#[inline(always)]
unsafe fn add<L: I32x16>(b: &AddArgs<'_>) {
    let how = b.how;
    for at in (0..b.n).step_by(16) {
        let n = b.n - at;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (one, two) = (scaled::<L>(b, 0, at), scaled::<L>(b, 1, at));
            let sum = if how.is_difference { one.sub(two) } else { one.add(two) };
            let y = how.factor.of(sum).add(L::splat(how.zero));
            y.max(L::splat(how.low)).min(L::splat(how.high)).narrow(b.to.add(at), n);
        }
    }
}
instances!(
    /// Returns the add/subtract kernel for a level.
    addition(AddArgs<'_>) = add
);

/// Arguments of [`row_sums`]: rows of int8 to be summed.
pub struct Int8RowSums<'a> {
    pub a: *const u8,
    pub a_row: usize,
    pub rows: usize,
    /// Offset of each K step in a row, and the total number of bytes.
    pub steps: &'a [usize],
    pub bytes: usize,
    /// Result: −128 times the sum of each row.
    pub to: *mut i32,
}

#[inline(always)]
unsafe fn sum<L: I32x16>(r: &Int8RowSums<'_>) {
    for row in 0..r.rows {
        let (mut left, mut all) = (r.bytes, L::splat(0));
        for step in r.steps {
            let n = left.min(crate::simd::int8::STEP);
            // SAFETY: the caller guarantees that the rows have these bytes.
            unsafe {
                let from = r.a.add(row * r.a_row + step).cast::<i8>();
                for at in (0..n).step_by(16) {
                    all = all.add(L::widen(from.add(at), n - at));
                }
            }
            left -= n;
        }
        let mut lanes = [0i32; 16];
        // SAFETY: sixteen lanes; the result has these rows.
        unsafe {
            all.store(lanes.as_mut_ptr());
            r.to.add(row).write(lanes.iter().fold(0i32, |s, v| s.wrapping_add(*v)).wrapping_mul(-128));
        }
    }
}
instances!(
    /// Returns the row-sum kernel for a level.
    row_sums(Int8RowSums<'_>) = sum
);

/// Like [`row_sums`], 64 bytes at a time.
///
/// # Safety
/// The rows have these bytes, and the machine has AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,f16c")]
pub unsafe fn row_sums_of_quads(r: &Int8RowSums<'_>) {
    use std::arch::x86_64::*;
    let ones = _mm512_set1_epi8(1);
    for row in 0..r.rows {
        let (mut left, mut all) = (r.bytes, _mm512_setzero_si512());
        for step in r.steps {
            let n = left.min(crate::simd::int8::STEP);
            // SAFETY: guaranteed by the caller; the mask keeps from reading more.
            let x = unsafe {
                let from = r.a.add(row * r.a_row + step).cast::<i8>();
                _mm512_maskz_loadu_epi8(u64::MAX.checked_shr(64 - n as u32).unwrap_or(0), from)
            };
            all = _mm512_dpbusd_epi32(all, ones, x);
            left -= n;
        }
        let sum = _mm512_reduce_add_epi32(all).wrapping_mul(-128);
        // SAFETY: the result has these rows.
        unsafe { r.to.add(row).write(sum) };
    }
}
