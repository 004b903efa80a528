//! Scalar reference of requantization: the definition of TFLite's rounding, one accumulator at a time.

use crate::simd::int8::i32x16::BELOW_HALF;

/// Per-column factors of accumulators.
#[derive(Clone, Debug)]
pub enum RequantizeScale {
    /// Fixed-point factor, rounded twice: `2^left · multiplier / 2³¹ · 2^−right`.
    Fixed(FixedPointScale),
    /// Double-precision factor.
    Factor(Vec<f64>),
}

/// Per-column fixed-point factors.
#[derive(Clone, Debug)]
pub struct FixedPointScale {
    pub left: Vec<i32>,
    pub multiplier: Vec<i32>,
    pub right: Vec<i32>,
    /// `2^right / 2`, plus the zero point shifted left by `right` if that fits.
    pub half: Vec<i32>,
    /// −1 if `right` is not 0.
    pub some: Vec<i32>,
    /// Whether any `left` is not 0.
    pub is_shifted: bool,
    /// Whether clamping hides how negative values are rounded.
    pub is_bounded: bool,
    /// Whether `half` includes the zero point.
    pub has_zero: bool,
}

impl RequantizeScale {
    /// Returns the requantized value of an accumulator of `column`, before clamping. This is the definition.
    pub fn exact(&self, column: usize, sum: i64, zero: i32) -> i64 {
        match self {
            RequantizeScale::Fixed(FixedPointScale { left, multiplier, right, .. }) => {
                let product = (sum << left[column]) * i64::from(multiplier[column]);
                let (x, right) = ((product + (1 << 30)) >> 31, right[column]);
                let away = if right > 0 && x < 0 { -1 } else { 0 };
                ((x + ((1 << right) >> 1) + away) >> right) + i64::from(zero)
            }
            RequantizeScale::Factor(f) => {
                let y = sum as f64 * f[column];
                (y + BELOW_HALF.copysign(y)) as i64 + i64::from(zero)
            }
        }
    }

    /// Returns a column's factor as a real number, without rounding.
    pub fn slope(&self, column: usize) -> f64 {
        match self {
            RequantizeScale::Fixed(FixedPointScale { left, multiplier, right, .. }) => {
                f64::from(multiplier[column]) * 2f64.powi(left[column] - right[column] - 31)
            }
            RequantizeScale::Factor(f) => f[column],
        }
    }
}
