//! How sums are scaled: the definition, as `.tflite` rounds, one sum at a time.

use crate::simd::int8::i32x16::BELOW_HALF;

/// How a sum is scaled.
#[derive(Clone, Debug)]
pub enum RequantizeScale {
    /// By a fixed-point multiplier, rounded twice: `2^left`, `multiplier / 2³¹`, `2^−right`.
    Fixed {
        left: Vec<i32>,
        multiplier: Vec<i32>,
        right: Vec<i32>,
        /// `2^right / 2`, and the zero point before the division where that fits.
        half: Vec<i32>,
        /// −1 where `right` is not 0.
        some: Vec<i32>,
        /// Whether any `left` is not 0.
        is_shifted: bool,
        /// Whether a bound hides how negative numbers are rounded.
        is_bounded: bool,
        /// Whether the zero point is in `half`.
        has_zero: bool,
    },
    /// By a double.
    Factor(Vec<f64>),
}

impl RequantizeScale {
    /// What becomes of a sum of a column, before its bounds: the definition.
    pub fn exact(&self, column: usize, sum: i64, zero: i32) -> i64 {
        match self {
            RequantizeScale::Fixed { left, multiplier, right, .. } => {
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

    /// What sums of a column are multiplied with, before all rounding.
    pub fn slope(&self, column: usize) -> f64 {
        match self {
            RequantizeScale::Fixed { left, multiplier, right, .. } => {
                f64::from(multiplier[column]) * 2f64.powi(left[column] - right[column] - 31)
            }
            RequantizeScale::Factor(f) => f[column],
        }
    }
}
