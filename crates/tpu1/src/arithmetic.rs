//! How sums of 32 bits become 8: the activation unit's arithmetic, which is that of .tflite's reference kernels. The paper says
//! nothing of it.

/// A positive factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
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

impl Scale {
    /// The fixed-point form of a number from 2⁻³² up; smaller ones are 0.
    pub fn fixed(number: f64) -> Scale {
        if number <= 0.0 || !number.is_finite() {
            return Scale::Fixed { multiplier: 0, shift: 0 };
        }
        let mut shift = number.log2().floor() as i32 + 1;
        let mut multiplier = (number / 2f64.powi(shift) * 2f64.powi(31)).round();
        // The logarithm may be off by one beside a power of two.
        while multiplier >= 2f64.powi(31) {
            shift += 1;
            multiplier = (number / 2f64.powi(shift) * 2f64.powi(31)).round();
        }
        while multiplier < 2f64.powi(30) {
            shift -= 1;
            multiplier = (number / 2f64.powi(shift) * 2f64.powi(31)).round();
        }
        match shift < -31 {
            true => Scale::Fixed { multiplier: 0, shift: 0 },
            false => Scale::Fixed { multiplier: multiplier as i32, shift: shift.min(30) },
        }
    }

    /// `x` scaled.
    pub fn apply(self, x: i32) -> i32 {
        match self {
            Scale::Fixed { multiplier, shift } => {
                let (left, right) = (shift.max(0) as u32, (-shift).clamp(0, 31) as u32);
                halve(high_product(x.wrapping_shl(left), multiplier), right)
            }
            Scale::Real(factor) => (f64::from(x) * factor).round() as i32,
        }
    }

    /// As the two registers hold it.
    pub(crate) fn registers(self) -> [u64; 2] {
        match self {
            Scale::Fixed { multiplier, shift } => [i64::from(multiplier) as u64, i64::from(shift) as u64 & !(1 << 63)],
            Scale::Real(factor) => [factor.to_bits(), REAL],
        }
    }

    /// What two registers hold.
    pub(crate) fn of_registers([multiplier, shift]: [u64; 2]) -> Scale {
        match shift {
            REAL => Scale::Real(f64::from_bits(multiplier)),
            _ => Scale::Fixed { multiplier: multiplier as i32, shift: shift as i32 },
        }
    }
}

/// The upper half of `2ab`, rounded.
fn high_product(a: i32, b: i32) -> i32 {
    if a == i32::MIN && b == i32::MIN {
        return i32::MAX;
    }
    let product = i64::from(a) * i64::from(b);
    let nudge = if product >= 0 { 1 << 30 } else { 1 - (1 << 30) };
    ((product + nudge) / (1 << 31)) as i32
}

/// `x / 2^exponent`, half away from zero.
fn halve(x: i32, exponent: u32) -> i32 {
    let mask = ((1i64 << exponent) - 1) as i32;
    let threshold = (mask >> 1) + i32::from(x < 0);
    (x >> exponent.min(31)).wrapping_add(i32::from((x & mask) > threshold))
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
        let fixed = |number, multiplier, shift| assert_eq!(Scale::fixed(number), Scale::Fixed { multiplier, shift });
        fixed(0.5, 1 << 30, 0);
        fixed(1.0, 1 << 30, 1);
        fixed(0.1, 1_717_986_918, -3);
        fixed(1e-12, 0, 0);
        fixed(0.999_999_999_99, 1 << 30, 1);
        assert_eq!(Scale::Fixed { multiplier: 1_548_931_170, shift: -8 }.apply(27_861), 79);
        assert_eq!(Scale::fixed(0.00586).apply(85), 1);
        assert_eq!([1, -1, 3, -3].map(|x| Scale::Real(0.5).apply(x)), [1, -1, 2, -2]);
        assert_eq!([5, -5, 6, -6].map(|x| mean(x, 4)), [1, -1, 2, -2]);
    }

    #[test]
    fn registers_hold_every_factor() {
        for scale in [Scale::fixed(0.3), Scale::fixed(1e-7), Scale::fixed(700.0), Scale::Real(0.017)] {
            assert_eq!(Scale::of_registers(scale.registers()), scale);
        }
    }
}
