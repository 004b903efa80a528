//! Requantizes int32 sums to int8 in the activation unit, with the arithmetic of TFLite's reference kernels.
//!
//! The paper does not specify this arithmetic.

use systole_tflite::{multiply_by_quantized_multiplier, quantize_multiplier};

/// Positive scale factor of requantization on TPU v1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleFactor {
    /// Fixed-point factor `multiplier · 2^(shift − 31)`, rounded twice, half away from zero: for convolutions, sums and
    /// products.
    Fixed {
        /// Multiplier from 2³⁰ to 2³¹ − 1, or 0.
        multiplier: i32,
        /// Binary exponent.
        shift: i32,
    },
    /// Double-precision factor, rounded once, half away from zero: for dense layers.
    Real(f64),
}

/// Value of the shift register if the multiplier register holds an `f64`.
const REAL: u64 = u64::MAX;

impl ScaleFactor {
    /// Returns the fixed-point factor of a number of at least 2⁻³²; smaller numbers become 0.
    pub fn fixed(number: f64) -> ScaleFactor {
        let (multiplier, shift) = quantize_multiplier(number);
        ScaleFactor::Fixed { multiplier, shift }
    }

    /// Returns `x` multiplied by the scale factor, rounded.
    pub fn apply(self, x: i32) -> i32 {
        match self {
            ScaleFactor::Fixed { multiplier, shift } => {
                multiply_by_quantized_multiplier(x, multiplier, shift)
            }
            ScaleFactor::Real(factor) => (f64::from(x) * factor).round() as i32,
        }
    }

    /// Encodes the factor in the two registers.
    pub(crate) fn registers(self) -> [u64; 2] {
        match self {
            ScaleFactor::Fixed { multiplier, shift } => {
                [i64::from(multiplier) as u64, i64::from(shift) as u64 & !(1 << 63)]
            }
            ScaleFactor::Real(factor) => [factor.to_bits(), REAL],
        }
    }

    /// Decodes the factor from the two registers.
    pub(crate) fn of_registers([multiplier, shift]: [u64; 2]) -> ScaleFactor {
        match shift {
            REAL => ScaleFactor::Real(f64::from_bits(multiplier)),
            _ => ScaleFactor::Fixed { multiplier: multiplier as i32, shift: shift as i32 },
        }
    }
}

/// Returns the mean of `n` values with this sum, rounded half away from zero.
pub(crate) fn mean(sum: i32, n: i32) -> i32 {
    let n = n.max(1);
    if sum > 0 { (sum + n / 2) / n } else { (sum - n / 2) / n }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known values of LiteRT's kernels.
    #[test]
    fn factors_are_the_known_ones() {
        let fixed = |number, multiplier, shift| {
            assert_eq!(ScaleFactor::fixed(number), ScaleFactor::Fixed { multiplier, shift })
        };
        fixed(0.5, 1 << 30, 0);
        fixed(1.0, 1 << 30, 1);
        fixed(0.1, 1_717_986_918, -3);
        fixed(1e-12, 0, 0);
        fixed(0.999_999_999_99, 1 << 30, 1);
        assert_eq!(ScaleFactor::Fixed { multiplier: 1_548_931_170, shift: -8 }.apply(27_861), 79);
        assert_eq!(ScaleFactor::fixed(0.00586).apply(85), 1);
        assert_eq!([1, -1, 3, -3].map(|x| ScaleFactor::Real(0.5).apply(x)), [1, -1, 2, -2]);
        assert_eq!([5, -5, 6, -6].map(|x| mean(x, 4)), [1, -1, 2, -2]);
    }

    #[test]
    fn registers_hold_every_factor() {
        for scale in [
            ScaleFactor::fixed(0.3),
            ScaleFactor::fixed(1e-7),
            ScaleFactor::fixed(700.0),
            ScaleFactor::Real(0.017),
        ] {
            assert_eq!(ScaleFactor::of_registers(scale.registers()), scale);
        }
    }
}
