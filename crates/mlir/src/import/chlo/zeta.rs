//! Imports the Hurwitz zeta function and polygamma. `x` is f32 or f64.
//!
//! Source: CHLO's decomposition; F. Johansson, Rigorous high-precision computation of the Hurwitz zeta function and its
//! derivatives (2015), formula (5): nine terms of the series, then twelve of the Euler-Maclaurin expansion.

use super::gamma::{digamma, lgamma};
use systole_base::DType;
use systole_ir::Tensor;

/// (2k)! / B₂ₖ, largest k first.
#[rustfmt::skip]
const COEFFICIENTS: [f64; 12] = [
    -7.166_165_256_175_667e18, 1.815_210_540_194_355e17, -4.597_978_722_407_472e15, 1.164_678_281_435_006_7e14,
    -2_950_130_727_918.164, 7.472_424_96e10, -1.892_437_580_318_379_2e9, 47_900_160.0,
    -1_209_600.0, 30_240.0, -720.0, 12.0,
];

/// Computes Σ (k + q)⁻ˣ over k ≥ 0.
pub(super) fn zeta(x: &Tensor, q: &Tensor) -> Tensor {
    let minus_x = -x;
    let mut at = q.clone();
    let mut sum = q.power(&minus_x);
    for _ in 0..9 {
        at = at + 1.0;
        sum = sum + at.power(&minus_x);
    }
    at = at + 1.0;
    let last = at.power(&minus_x);
    let correction = &last * &at / (x - 1.0);
    let accurate = &sum + correction + tail(x, &at, &last);
    // If the next term is negligible, the expansion would only overflow.
    let epsilon = if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let value = last.abs().less(&(sum.abs() * epsilon)).select(&sum, &accurate);
    at_edges(x, q, &value)
}

/// Computes q⁻ˣ (½ + x/q (B₂/2! + …)) with Horner's rule.
fn tail(x: &Tensor, at: &Tensor, last: &Tensor) -> Tensor {
    let inverse_square = 1.0 / (at * at);
    let mut sum = at.zeros_like();
    let mut power = 22.0;
    for c in &COEFFICIENTS[..11] {
        let factors = (x + power) * (x + (power - 1.0));
        sum = factors * (&inverse_square * (&sum + 1.0 / c));
        power -= 2.0;
    }
    last * &(x / at * (sum + 1.0 / COEFFICIENTS[11]) + 0.5)
}

/// Applies the edge cases: NaN for x < 1, +∞ at 1, poles at integers q ≤ 0.
fn at_edges(x: &Tensor, q: &Tensor, value: &Tensor) -> Tensor {
    let (nan, infinity) = (x.scalar_like(f64::NAN), x.scalar_like(f64::INFINITY));
    let (zero, one) = (x.scalar_like(0.0), x.scalar_like(1.0));
    let value = x.less(&one).select(&nan, value);
    let is_whole = |t: &Tensor| t.equal(&t.floor());
    let low = q.less_equal(&zero);
    let value = low.and(&x.not_equal(&x.floor())).select(&nan, &value);
    let is_even = is_whole(x).and(&x.remainder(&x.scalar_like(2.0)).equal(&zero));
    let pole = is_even.select(&infinity, &nan);
    let value = low.and(&is_whole(q)).select(&pole, &value);
    x.equal(&one).select(&infinity, &value)
}

/// Computes the n-th derivative of digamma: (−1)ⁿ⁺¹ n! ζ(n + 1, x); NaN unless n is a natural number.
pub(super) fn polygamma(n: &Tensor, x: &Tensor) -> Tensor {
    let next = n + 1.0;
    let sign = n.remainder(&n.scalar_like(2.0)) * 2.0 - 1.0;
    let value = sign * lgamma(&next).exp() * zeta(&next, x);
    let value = n.equal(&n.scalar_like(0.0)).select(&digamma(x), &value);
    let unnatural = n.not_equal(&n.floor()).or(&n.less(&n.scalar_like(0.0)));
    unnatural.select(&x.scalar_like(f64::NAN), &value)
}
