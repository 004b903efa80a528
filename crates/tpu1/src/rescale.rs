//! How sums of 32 bits become 8: the activation unit's arithmetic, which is that of .tflite's reference kernels. The paper says
//! nothing of it.

use systole_tflite::{multiply_by_quantized_multiplier, quantize_multiplier};

/// A positive factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleFactor {
    /// `multiplier · 2^(shift − 31)`, rounded twice, half away from zero: as convolutions, sums and products are scaled.
    Fixed {
        /// From 2³⁰ to 2³¹ − 1, or 0.
        multiplier: i32,
        /// Of the binary point.
        shift: i32,
    },
    /// The number itself, rounded once, half away from zero: as dense layers are scaled.
    Real(f64),
}

/// The shift register's value where the multiplier register holds an `f64`.
const REAL: u64 = u64::MAX;

impl ScaleFactor {
    /// The fixed-point form of a number from 2⁻³² up; smaller ones are 0.
    pub fn fixed(number: f64) -> ScaleFactor {
        let (multiplier, shift) = quantize_multiplier(number);
        ScaleFactor::Fixed { multiplier, shift }
    }

    /// `x` scaled.
    pub fn apply(self, x: i32) -> i32 {
        match self {
            ScaleFactor::Fixed { multiplier, shift } => {
                multiply_by_quantized_multiplier(x, multiplier, shift)
            }
            ScaleFactor::Real(factor) => (f64::from(x) * factor).round() as i32,
        }
    }

    /// As the two registers hold it.
    pub(crate) fn registers(self) -> [u64; 2] {
        match self {
            ScaleFactor::Fixed { multiplier, shift } => {
                [i64::from(multiplier) as u64, i64::from(shift) as u64 & !(1 << 63)]
            }
            ScaleFactor::Real(factor) => [factor.to_bits(), REAL],
        }
    }

    /// What two registers hold.
    pub(crate) fn of_registers([multiplier, shift]: [u64; 2]) -> ScaleFactor {
        match shift {
            REAL => ScaleFactor::Real(f64::from_bits(multiplier)),
            _ => ScaleFactor::Fixed { multiplier: multiplier as i32, shift: shift as i32 },
        }
    }
}

/// The mean of `n` values with this sum, half away from zero.
pub(crate) fn mean(sum: i32, n: i32) -> i32 {
    let n = n.max(1);
    if sum > 0 { (sum + n / 2) / n } else { (sum - n / 2) / n }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values known of LiteRT's kernels.
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
