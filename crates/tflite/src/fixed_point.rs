//! Fixed-point arithmetic of LiteRT's reference kernels, bit-exact. Source: gemmlowp and `quantization_util`.

use crate::op::FusedActivation;

/// Converts `d ≥ 0` to a quantized multiplier `(m, shift)` with `d = m · 2^(shift − 31)` and `m` from 2³⁰ to 2³¹ − 1.
/// Negligibly small values become (0, 0).
///
/// ```
/// use systole_tflite::quantize_multiplier;
/// assert_eq!(quantize_multiplier(0.5), (1 << 30, 0));
/// assert_eq!(quantize_multiplier(0.1), (1717986918, -3));
/// ```
pub fn quantize_multiplier(d: f64) -> (i32, i32) {
    if d == 0.0 || !d.is_finite() {
        return (0, 0);
    }
    let (fraction, mut shift) = frexp(d);
    let mut m = (fraction * (1i64 << 31) as f64).round() as i64;
    if m == 1 << 31 {
        m /= 2;
        shift += 1;
    }
    if shift < -31 { (0, 0) } else { (m as i32, shift.min(30)) }
}

/// Splits `d = fraction · 2^exponent` with ½ ≤ fraction < 1; `d` is finite and not 0.
fn frexp(d: f64) -> (f64, i32) {
    let bits = d.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i32;
    if exponent == 0 {
        let (fraction, exponent) = frexp(d * (1u64 << 60) as f64);
        return (fraction, exponent - 60);
    }
    (f64::from_bits((bits & !(0x7ff << 52)) | (1022 << 52)), exponent - 1022)
}

/// Returns the rounded high half of `2ab`: SaturatingRoundingDoublingHighMul.
pub(crate) fn high_mul(a: i32, b: i32) -> i32 {
    if a == i32::MIN && b == i32::MIN {
        return i32::MAX;
    }
    let ab = i64::from(a) * i64::from(b);
    let nudge = if ab >= 0 { 1 << 30 } else { 1 - (1 << 30) };
    ((ab + nudge) / (1 << 31)) as i32
}

/// Computes `x / 2^exponent`, rounded half away from zero: RoundingDivideByPOT.
pub(crate) fn divide_by_power(x: i32, exponent: i32) -> i32 {
    let exponent = exponent.clamp(0, 31) as u32;
    let mask = ((1i64 << exponent) - 1) as i32;
    let threshold = (mask >> 1) + i32::from(x < 0);
    let shifted = if exponent == 31 { x >> 31 } else { x >> exponent };
    shifted.wrapping_add(i32::from((x & mask) > threshold))
}

/// Computes `x · m · 2^(shift − 31)` with two roundings, like LiteRT's default build: MultiplyByQuantizedMultiplier.
///
/// ```
/// use systole_tflite::{multiply_by_quantized_multiplier, quantize_multiplier};
/// let (m, shift) = quantize_multiplier(0.00586);
/// assert_eq!(multiply_by_quantized_multiplier(85, m, shift), 1);
/// ```
pub fn multiply_by_quantized_multiplier(x: i32, m: i32, shift: i32) -> i32 {
    let (left, right) = (shift.max(0) as u32, (-shift).max(0));
    divide_by_power(high_mul(x.wrapping_shl(left), m), right)
}

/// Returns the smallest and largest integer after a fused activation: `(min, max)`.
pub fn activation_range(activation: FusedActivation, scale: f32, zero_point: i32) -> (i32, i32) {
    let q = |x: f32| zero_point.saturating_add((x / scale).round() as i32);
    let (low, high) = activation.bounds();
    let low = if low.is_finite() { q(low).max(-128) } else { -128 };
    let high = if high.is_finite() { q(high).min(127) } else { 127 };
    (low.min(127), high.max(-128))
}

/// Returns the multipliers of ADD and SUB: for both operands, shifted left by 20 bits, and for their sum.
pub fn sum_multipliers(a: f32, b: f32, y: f32) -> [(i32, i32); 3] {
    let twice = 2.0 * f64::from(a.max(b));
    let of = |s: f32| quantize_multiplier(f64::from(s) / twice);
    [of(a), of(b), quantize_multiplier(twice / ((1 << 20) as f64 * f64::from(y)))]
}

/// Returns MEAN's multiplier for a sum of `n ≥ 1` integers: 1/n is folded into it with as many bits as fit.
pub fn mean_multiplier(x: f32, y: f32, n: usize) -> (i32, i32) {
    let (m, shift) = quantize_multiplier(f64::from(x) / f64::from(y));
    let n = n.max(1);
    let up = (63 - (n as u64).leading_zeros() as i32).min(32).min(31 + shift).max(0);
    (((i64::from(m) << up) / n as i64) as i32, shift - up)
}

/// Computes `x · 2^exponent`, saturated.
pub(crate) fn shifted_left(x: i32, exponent: u32) -> i32 {
    (i64::from(x) << exponent.min(31)).clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// Computes `e^a` for `a ≤ 0`, from 5 integer bits to none.
pub(crate) fn exp_on_negative_values(a: i32) -> i32 {
    const QUARTER: i32 = 1 << 24;
    const FACTORS: [i32; 7] = [1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242];
    if a == 0 {
        return i32::MAX;
    }
    let within = (a & (QUARTER - 1)) - QUARTER;
    let mut result = exp_on_a_quarter(shifted_left(within, 5));
    let remainder = within.wrapping_sub(a);
    for (i, factor) in FACTORS.iter().enumerate() {
        if remainder & (QUARTER << i) != 0 {
            result = high_mul(result, *factor);
        }
    }
    result
}

/// Computes `e^a` for −¼ ≤ a ≤ 0 with a polynomial around −⅛.
fn exp_on_a_quarter(a: i32) -> i32 {
    const EXP_OF_MINUS_EIGHTH: i32 = 1895147668;
    const THIRD: i32 = 715827883;
    let x = a.wrapping_add(1 << 28);
    let x2 = high_mul(x, x);
    let x3 = high_mul(x2, x);
    let x4_over_4 = divide_by_power(high_mul(x2, x2), 2);
    let sum = high_mul(x4_over_4.wrapping_add(x3), THIRD).wrapping_add(x2);
    let tail = divide_by_power(sum, 1);
    EXP_OF_MINUS_EIGHTH.wrapping_add(high_mul(EXP_OF_MINUS_EIGHTH, x.wrapping_add(tail)))
}

/// Computes `1 / x` for `x > 0` with 12 integer bits: `(value, bits over unity)`.
pub(crate) fn reciprocal(x: i32) -> (i32, i32) {
    let headroom = (x as u32).leading_zeros();
    let fraction = (x as u32).wrapping_shl(headroom).wrapping_sub(1 << 31) as i32;
    (one_over_one_plus(fraction), 12 - headroom as i32)
}

/// Computes `1 / (1 + a)` for 0 ≤ a ≤ 1 with three Newton iterations.
fn one_over_one_plus(a: i32) -> i32 {
    const START: i32 = 1515870810;
    const SLOPE: i32 = -1010580540;
    let half = ((i64::from(a) + i64::from(i32::MAX) + 1) / 2) as i32;
    let mut x = START.wrapping_add(high_mul(half, SLOPE));
    for _ in 0..3 {
        let rest = (1i32 << 29).wrapping_sub(high_mul(half, x));
        x = x.wrapping_add(shifted_left(high_mul(x, rest), 2));
    }
    shifted_left(x, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipliers_are_the_known_ones() {
        assert_eq!(quantize_multiplier(1.0), (1 << 30, 1));
        assert_eq!(quantize_multiplier(1e-12), (0, 0));
        assert_eq!(quantize_multiplier(0.999_999_999_99), (1 << 30, 1));
        // The single-rounding build returns 78 here.
        assert_eq!(multiply_by_quantized_multiplier(27861, 1548931170, -8), 79);
    }

    #[test]
    fn multipliers_outside_the_range_are_zero_or_the_greatest() {
        for d in [f64::INFINITY, f64::NAN, 0.0, 2f64.powi(-33)] {
            assert_eq!(quantize_multiplier(d), (0, 0), "{d}");
        }
        assert_eq!(quantize_multiplier(2f64.powi(-32)), (1 << 30, -31));
        assert_eq!(quantize_multiplier(2f64.powi(40)), (1 << 30, 30));
    }

    #[test]
    fn high_halves_are_floors_of_the_product_and_a_half() {
        let ends = [0, 1, 2, 3, 7, 1 << 15, (1 << 15) + 1, 1 << 29, 1 << 30, 1717986918, i32::MAX];
        let all = || ends.into_iter().flat_map(|x| [x, -x]).chain([i32::MIN, i32::MIN + 1]);
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let floor = (i128::from(a) * i128::from(b) + (1 << 30)) >> 31;
            assert_eq!(i128::from(high_mul(a, b)), floor.min(i32::MAX.into()), "{a} {b}");
        }
    }

    #[test]
    fn quotients_by_powers_are_the_nearest_ones() {
        let ends = [0, 1, 2, 3, 5, 6, 12345, 1 << 29, 1 << 30, (1 << 30) + 1, i32::MAX];
        for x in ends.into_iter().flat_map(|x| [x, -x]).chain([i32::MIN]) {
            for exponent in 0..=31 {
                let nearest = (f64::from(x) / 2f64.powi(exponent)).round();
                assert_eq!(f64::from(divide_by_power(x, exponent)), nearest, "{x} / 2^{exponent}");
            }
        }
    }

    #[test]
    fn activations_bound_integers() {
        use FusedActivation::{None, Relu, Relu6, ReluN1To1};
        for (activation, scale, zero, range) in [
            (None, 0.5, 3, (-128, 127)),
            (Relu, 0.5, -3, (-3, 127)),
            (Relu6, 0.05, -100, (-100, 20)),
            (Relu6, 0.01, 0, (0, 127)),
            (ReluN1To1, 0.25, 10, (6, 14)),
            (ReluN1To1, 0.25, 200, (127, 127)),
            (ReluN1To1, 0.25, -300, (-128, -128)),
        ] {
            assert_eq!(activation_range(activation, scale, zero), range, "{activation:?} {scale} {zero}");
        }
    }

    #[test]
    fn sums_and_means_have_the_reference_multipliers() {
        // 0.75/1.5, 0.25/1.5 and 1.5/(2²⁰ · 0.5).
        let all = [(1 << 30, 0), (1431655765, -2), (1610612736, -18)];
        assert_eq!(sum_multipliers(0.75, 0.25, 0.5), all);
        assert_eq!(sum_multipliers(0.25, 0.75, 0.5), [all[1], all[0], all[2]]);
        for ((x, y, n), multiplier) in [
            ((0.5, 0.25, 1), (1 << 30, 2)),
            ((0.5, 0.25, 3), (715827882, 1)),
            ((0.1, 0.2, 49), (701219150, -5)),
            ((1.0, 1.0, 1 << 40), (1 << 22, -31)),
            ((2f32.powi(-31), 1.0, 1000), (2147483, -31)),
            ((1.0, 1.0, 0), (1 << 30, 1)),
        ] {
            assert_eq!(mean_multiplier(x, y, n), multiplier, "{x} {y} {n}");
        }
    }

    /// The bits of the three Newton iterations, computed with integers of any size.
    #[test]
    fn reciprocals_have_the_reference_bits() {
        for (sum, value) in [(524_289, 2_147_479_552), (524_293, 2_147_463_170), (524_295, 2_147_454_972)] {
            assert_eq!(reciprocal(sum), (value, 0));
        }
    }

    #[test]
    fn division_rounds_half_away_from_zero() {
        assert_eq!([3, -3, 5, -5, 1, -1].map(|x| divide_by_power(x, 1)), [2, -2, 3, -3, 1, -1]);
        assert_eq!([2, -2, 6, -6].map(|x| divide_by_power(x, 2)), [1, -1, 2, -2]);
    }

    #[test]
    fn exponentials_and_reciprocals_are_close_to_the_true_ones() {
        for i in 0..200 {
            let x = -f64::from(i) * 0.07;
            let found = f64::from(exp_on_negative_values((x * 2f64.powi(26)) as i32)) / 2f64.powi(31);
            assert!((found - x.exp()).abs() < 1e-6, "e^{x} = {found}");
        }
        for sum in [1.0, 1.5, 7.25, 100.0] {
            let (value, over) = reciprocal((sum * 2f64.powi(19)) as i32);
            let found = f64::from(value) / 2f64.powi(31 + over);
            assert!((found * sum - 1.0).abs() < 1e-6, "1/{sum} = {found}");
        }
    }

    #[test]
    fn numbers_are_split_into_fraction_and_exponent() {
        for (d, split) in [(1.0, (0.5, 1)), (-6.0, (-0.75, 3)), (0.375, (0.75, -1))] {
            assert_eq!(frexp(d), split);
        }
        // Subnormal: 2⁻¹⁰²⁴ and 3 · 2⁻¹⁰⁷⁴.
        assert_eq!(frexp(f64::MIN_POSITIVE / 4.0), (0.5, -1023));
        assert_eq!(frexp(f64::from_bits(3)), (0.75, -1072));
    }
}
