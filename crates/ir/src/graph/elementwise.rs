//! Table of element-wise ops, one row each: mnemonic, evaluation, derivative and test domain.
//!
//! Everything else about these ops is generated from their rows: the enums below, the rules in `op/unary.rs` and
//! `op/binary.rs`, the tensor methods and the op table.
//!
//! Columns: variant, dialect and mnemonic, method name (`_` for operators), one line for `systole ops`, and the fields
//! of [`unary::UnaryOpRow`](crate::op::unary::UnaryOpRow) or [`binary::BinaryOpRow`](crate::op::binary::BinaryOpRow).
//! Scalar functions that rows refer to follow the tables; longer derivatives are in those files.

use systole_base::{DType, Scalar};

/// Calls a macro with the rows of all unary ops.
#[rustfmt::skip]
macro_rules! unary_ops {
    ($callback:ident) => {
        $callback! {
            Abs = StableHLO "abs", abs, "|x|.", { float: Some(f64::abs), int: Some(int_abs), vjp: Some(|x, _, dy| dy * &x.sign()), domain: (-4.0, 4.0), ulp: 0 };
            Cbrt = StableHLO "cbrt", cbrt, "Cube root.", { float: Some(f64::cbrt), int: None, vjp: Some(|_, y, dy| dy / &(&(y * y) * 3.0)), domain: (0.1, 8.0), ulp: 4 };
            Ceil = StableHLO "ceil", ceil, "Rounds up.", { float: Some(f64::ceil), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            CountLeadingZeros = StableHLO "count_leading_zeros", count_leading_zeros, "Number of leading zero bits.", { float: None, int: Some(leading_zeros), vjp: None, domain: (-99.0, 99.0), ulp: 0 };
            Cosine = StableHLO "cosine", cosine, "cos x, radians.", { float: Some(f64::cos), int: None, vjp: Some(|x, _, dy| -&(dy * &x.sine())), domain: (-9.0, 9.0), ulp: 8 };
            Erf = CHLO "erf", erf, "Error function.", { float: Some(erf), int: None, vjp: Some(erf_vjp), domain: (-4.0, 4.0), ulp: 8 };
            Erfc = CHLO "erfc", erfc, "1 − erf x, accurate where erf x is near 1.", { float: Some(erfc), int: None, vjp: Some(|x, y, dy| -&erf_vjp(x, y, dy)), domain: (-4.0, 4.0), ulp: 32 };
            ErfInv = CHLO "erf_inv", erf_inv, "Inverse error function.", { float: Some(erf_inv), int: None, vjp: Some(|_, y, dy| dy * &((y * y).exp() * (1.0 / std::f64::consts::FRAC_2_SQRT_PI))), domain: (-0.95, 0.95), ulp: 8 };
            Exponential = StableHLO "exponential", exp, "eˣ.", { float: Some(f64::exp), int: None, vjp: Some(|_, y, dy| dy * y), domain: (-9.0, 9.0), ulp: 4 };
            ExponentialMinusOne = StableHLO "exponential_minus_one", expm1, "eˣ − 1, accurate near 0.", { float: Some(f64::exp_m1), int: None, vjp: Some(|_, y, dy| dy * &(y + 1.0)), domain: (-4.0, 4.0), ulp: 8 };
            Floor = StableHLO "floor", floor, "Rounds down.", { float: Some(f64::floor), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            IsFinite = StableHLO "is_finite", is_finite, "Whether x is neither infinite nor NaN.", { float: Some(|x| x.is_finite() as u8 as f64), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            Log = StableHLO "log", log, "ln x.", { float: Some(f64::ln), int: None, vjp: Some(|x, _, dy| dy / x), domain: (0.1, 9.0), ulp: 4 };
            LogPlusOne = StableHLO "log_plus_one", log1p, "ln(1 + x), accurate near 0.", { float: Some(f64::ln_1p), int: None, vjp: Some(|x, _, dy| dy / &(x + 1.0)), domain: (-0.9, 9.0), ulp: 8 };
            Logistic = StableHLO "logistic", logistic, "1 / (1 + e⁻ˣ).", { float: Some(logistic), int: None, vjp: Some(|_, y, dy| dy * &(y * &(1.0 - y))), domain: (-9.0, 9.0), ulp: 8 };
            Negate = StableHLO "negate", negate, "−x.", { float: Some(|x| -x), int: Some(|d, s| Scalar::Int(s.as_i64().wrapping_neg()).round_to(d)), vjp: Some(|_, _, dy| -dy), domain: (-4.0, 4.0), ulp: 0 };
            Not = StableHLO "not", not, "Bitwise or logical not.", { float: None, int: Some(not), vjp: None, domain: (-99.0, 99.0), ulp: 0 };
            Popcnt = StableHLO "popcnt", popcnt, "Number of set bits.", { float: None, int: Some(popcnt), vjp: None, domain: (-99.0, 99.0), ulp: 0 };
            RoundNearestAfz = StableHLO "round_nearest_afz", round_nearest_afz, "Rounds to nearest, halves away from zero.", { float: Some(f64::round), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            RoundNearestEven = StableHLO "round_nearest_even", round_nearest_even, "Rounds to nearest, halves to even.", { float: Some(f64::round_ties_even), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            Rsqrt = StableHLO "rsqrt", rsqrt, "1/√x.", { float: Some(|x| 1.0 / x.sqrt()), int: None, vjp: Some(|x, y, dy| &(dy * &(y / x)) * -0.5), domain: (0.1, 9.0), ulp: 4 };
            Sign = StableHLO "sign", sign, "−1, 0 or 1.", { float: Some(sign), int: Some(int_sign), vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            Sine = StableHLO "sine", sine, "sin x, radians.", { float: Some(f64::sin), int: None, vjp: Some(|x, _, dy| dy * &x.cosine()), domain: (-9.0, 9.0), ulp: 8 };
            Sqrt = StableHLO "sqrt", sqrt, "√x.", { float: Some(f64::sqrt), int: None, vjp: Some(|_, y, dy| &(dy / y) * 0.5), domain: (0.1, 9.0), ulp: 0 };
            Tan = StableHLO "tan", tan, "tan x, radians.", { float: Some(f64::tan), int: None, vjp: Some(|_, y, dy| dy * &(&(y * y) + 1.0)), domain: (-1.3, 1.3), ulp: 8 };
            Tanh = StableHLO "tanh", tanh, "Hyperbolic tangent.", { float: Some(f64::tanh), int: None, vjp: Some(|_, y, dy| dy * &(1.0 - &(y * y))), domain: (-4.0, 4.0), ulp: 8 };
        }
    };
}
pub(crate) use unary_ops;

/// Calls a macro with the rows of all binary ops.
#[rustfmt::skip]
macro_rules! binary_ops {
    ($callback:ident) => {
        $callback! {
            Add = StableHLO "add", _, "Sum; logical or for bool.", { float: Some(|a, b| a + b), int: Some(|_, a, b| wrap(a, b, i64::wrapping_add)), bool: Some(|a, b| a | b), vjp: Some(|_, _, _, dy| [of(dy.clone()), of(dy.clone())]), domain: [WIDE, WIDE], ulp: 0 };
            And = StableHLO "and", and, "Bitwise or logical and.", { float: None, int: Some(|_, a, b| wrap(a, b, |a, b| a & b)), bool: Some(|a, b| a & b), vjp: None, domain: [(-99.0, 99.0); 2], ulp: 0 };
            Atan2 = StableHLO "atan2", atan2, "Angle of the point (x: second, y: first).", { float: Some(f64::atan2), int: None, bool: None, vjp: Some(atan2_vjp), domain: [(0.5, 4.0), WIDE], ulp: 8 };
            Divide = StableHLO "divide", _, "Quotient; integers round toward zero.", { float: Some(|a, b| a / b), int: Some(divide), bool: None, vjp: Some(|_, b, y, dy| { let d = dy / b; [of(d.clone()), of(-&(&d * y))] }), domain: [WIDE, (0.5, 4.0)], ulp: 0 };
            Maximum = StableHLO "maximum", maximum, "Maximum; NaN propagates.", { float: Some(maximum), int: Some(|_, a, b| if less(a, b) { b } else { a }), bool: Some(|a, b| a | b), vjp: Some(pick_vjp), domain: [WIDE, WIDE], ulp: 0 };
            Minimum = StableHLO "minimum", minimum, "Minimum; NaN propagates.", { float: Some(minimum), int: Some(|_, a, b| if less(b, a) { b } else { a }), bool: Some(|a, b| a & b), vjp: Some(pick_vjp), domain: [WIDE, WIDE], ulp: 0 };
            Multiply = StableHLO "multiply", _, "Product; logical and for bool.", { float: Some(|a, b| a * b), int: Some(|_, a, b| wrap(a, b, i64::wrapping_mul)), bool: Some(|a, b| a & b), vjp: Some(|a, b, _, dy| [of(dy * b), of(dy * a)]), domain: [WIDE, WIDE], ulp: 0 };
            Or = StableHLO "or", or, "Bitwise or logical or.", { float: None, int: Some(|_, a, b| wrap(a, b, |a, b| a | b)), bool: Some(|a, b| a | b), vjp: None, domain: [(-99.0, 99.0); 2], ulp: 0 };
            Power = StableHLO "power", power, "First operand to the power of the second.", { float: Some(f64::powf), int: Some(power), bool: None, vjp: Some(power_vjp), domain: [(0.2, 3.0), WIDE], ulp: 32 };
            Remainder = StableHLO "remainder", remainder, "Remainder with the sign of the first operand.", { float: Some(|a, b| a % b), int: Some(remainder), bool: None, vjp: Some(|a, b, _, dy| [of(dy.clone()), of(-&(dy * &truncated(&(a / b))))]), domain: [WIDE, (0.7, 4.0)], ulp: 0 };
            ShiftLeft = StableHLO "shift_left", shift_left, "Left shift of bits.", { float: None, int: Some(shift_left), bool: None, vjp: None, domain: [(-99.0, 99.0), (0.0, 9.0)], ulp: 0 };
            ShiftRightArithmetic = StableHLO "shift_right_arithmetic", shift_right_arithmetic, "Right shift of bits, extending the sign.", { float: None, int: Some(shift_right_arithmetic), bool: None, vjp: None, domain: [(-99.0, 99.0), (0.0, 9.0)], ulp: 0 };
            ShiftRightLogical = StableHLO "shift_right_logical", shift_right_logical, "Right shift of bits, filling with zeros.", { float: None, int: Some(shift_right_logical), bool: None, vjp: None, domain: [(-99.0, 99.0), (0.0, 9.0)], ulp: 0 };
            Subtract = StableHLO "subtract", _, "Difference.", { float: Some(|a, b| a - b), int: Some(|_, a, b| wrap(a, b, i64::wrapping_sub)), bool: None, vjp: Some(|_, _, _, dy| [of(dy.clone()), of(-dy)]), domain: [WIDE, WIDE], ulp: 0 };
            Xor = StableHLO "xor", xor, "Bitwise or logical exclusive or.", { float: None, int: Some(|_, a, b| wrap(a, b, |a, b| a ^ b)), bool: Some(|a, b| a ^ b), vjp: None, domain: [(-99.0, 99.0); 2], ulp: 0 };
        }
    };
}
pub(crate) use binary_ops;

/// The mnemonic, with the dialect prefix if it is not StableHLO.
macro_rules! mnemonic {
    (StableHLO $name:literal) => {
        $name
    };
    (CHLO $name:literal) => {
        concat!("chlo.", $name)
    };
}
pub(crate) use mnemonic;

macro_rules! unary_enum {
    ($($op:ident = $dialect:ident $name:literal, $method:ident, $doc:literal, { $($rules:tt)* };)*) => {
        /// Element-wise unary op: `x: T[…] → T[…]` (`is_finite`: `bool[…]`).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Unary { $($op),* }

        impl Unary {
            /// All element-wise unary ops.
            pub const ALL: &[Unary] = &[$(Unary::$op),*];

            /// Returns the op's mnemonic, with its dialect if that is not StableHLO.
            pub fn name(self) -> &'static str {
                [$(mnemonic!($dialect $name)),*][self as usize]
            }
        }
    };
}

unary_ops!(unary_enum);

macro_rules! binary_enum {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// Element-wise binary op: `a: T[…], b: T[…] → T[…]`. Shapes are equal; the operators of
        /// [`Tensor`](crate::Tensor) broadcast.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Binary { $($op),* }

        impl Binary {
            /// All element-wise binary ops.
            pub const ALL: &[Binary] = &[$(Binary::$op),*];

            /// Returns the op's mnemonic, with its dialect if that is not StableHLO.
            pub fn name(self) -> &'static str {
                [$(mnemonic!($dialect $name)),*][self as usize]
            }
        }
    };
}

binary_ops!(binary_enum);

/// Default interval of random test inputs.
pub(crate) const WIDE: (f64, f64) = (-4.0, 4.0);

/// Logistic sigmoid: 1 / (1 + e⁻ˣ).
pub(crate) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Sign: −1, −0, 0, 1 or NaN. Spec: sign.
pub(crate) fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

/// Sign of an integer: −1, 0 or 1.
pub(crate) fn int_sign(_: DType, s: Scalar) -> Scalar {
    Scalar::Int(s.as_i64().signum())
}

/// Absolute value of an integer, wrapping.
pub(crate) fn int_abs(dtype: DType, s: Scalar) -> Scalar {
    Scalar::Int(s.as_i64().wrapping_abs()).round_to(dtype)
}

/// Bitwise not; logical not for bool.
pub(crate) fn not(dtype: DType, s: Scalar) -> Scalar {
    match s {
        Scalar::Bool(b) => Scalar::Bool(!b),
        Scalar::Uint(u) => Scalar::Uint(!u).round_to(dtype),
        other => Scalar::Int(!other.as_i64()),
    }
}

/// Number of set bits.
pub(crate) fn popcnt(dtype: DType, s: Scalar) -> Scalar {
    Scalar::Int(s.to_bits(dtype).count_ones() as i64).convert_to(dtype)
}

/// Number of leading zero bits.
pub(crate) fn leading_zeros(dtype: DType, s: Scalar) -> Scalar {
    let unused = 64 - dtype.bits();
    Scalar::Int((s.to_bits(dtype).leading_zeros() - unused) as i64).convert_to(dtype)
}

/// Error function to about 1e-16: rational approximation below 1 (Cephes, ndtr.c), Taylor series below 2.5, continued
/// fraction of `erfc` above. Abramowitz & Stegun 7.1.6 and 7.1.14.
pub(crate) fn erf(x: f64) -> f64 {
    const T: [f64; 5] = [
        9.604_973_739_870_516,
        9.002_601_972_038_427e1,
        2.232_005_345_946_843e3,
        7.003_325_141_128_051e3,
        5.559_230_130_103_949e4,
    ];
    const U: [f64; 6] = [
        1.0,
        3.356_171_416_475_031e1,
        5.213_579_497_801_527e2,
        4.594_323_829_709_801e3,
        2.262_900_006_138_909e4,
        4.926_739_426_086_359e4,
    ];
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return x.signum();
    }
    if a < 1.0 {
        let horner = |all: &[f64]| all.iter().fold(0.0, |sum, c| sum * (x * x) + c);
        return x * horner(&T) / horner(&U);
    }
    if a < 2.5 {
        // erf(x) = 2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·…·(2n+1)); all terms are positive.
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > sum.abs() * 1e-17 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        return std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    let mut f = a;
    for k in (1..=120).rev() {
        f = a + k as f64 / 2.0 / f;
    }
    let erfc = (-a * a).exp() / (f * std::f64::consts::PI.sqrt());
    (1.0 - erfc).copysign(x)
}

/// Complementary error function 1 − erf(x), relative error about 4e-16: the continued fraction of A & S 7.1.14 where
/// the difference would cancel.
pub(crate) fn erfc(x: f64) -> f64 {
    if x < 1.0 {
        return 1.0 - erf(x);
    }
    if x > 28.0 {
        return 0.0;
    }
    let f = (1..=500).rev().fold(x, |f, k| x + k as f64 / 2.0 / f);
    // e^(−x²) as the product of an exact square and a small correction.
    let high = f64::from_bits(x.to_bits() & !0x7ff_ffff);
    (-high * high).exp() * ((high - x) * (high + x)).exp() / (f * std::f64::consts::PI.sqrt())
}

/// Inverse of [`erf`] to about 1e-15: Halley's iteration from an initial guess by logarithms (Winitzki, 2008).
pub(crate) fn erf_inv(x: f64) -> f64 {
    use std::f64::consts::{FRAC_2_SQRT_PI, PI};
    let a = x.abs();
    if a.is_nan() || a > 1.0 {
        return f64::NAN;
    }
    if a == 1.0 {
        return f64::INFINITY.copysign(x);
    }
    if a < 1e-8 {
        return x / FRAC_2_SQRT_PI;
    }
    let (log, shape) = ((-a * a).ln_1p(), 0.147);
    let middle = 2.0 / (PI * shape) + log / 2.0;
    let mut y = ((middle * middle - log / shape).sqrt() - middle).sqrt();
    for _ in 0..12 {
        let over = if a < 0.5 { erf(y) - a } else { (1.0 - a) - erfc(y) };
        let newton = over / (FRAC_2_SQRT_PI * (-y * y).exp());
        let step = newton / (1.0 + y * newton);
        y -= step;
        if step.abs() <= y * 1e-16 {
            break;
        }
    }
    y.copysign(x)
}

/// Reference values of unary ops, as (argument, result), for ops that the XLA fixture may lack.
pub const KNOWN: &[(Unary, &[(f64, f64)])] = &[
    // Computed with 60 digits.
    (
        Unary::Erfc,
        &[
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_13),
            (2.0, 0.004_677_734_981_047_266),
            (5.0, 1.537_459_794_428_035e-12),
            (20.0, 5.395_865_611_607_901e-176),
            (-1.0, 1.842_700_792_949_715),
            (f64::INFINITY, 0.0),
            (f64::NEG_INFINITY, 2.0),
            (f64::NAN, f64::NAN),
        ],
    ),
    (
        Unary::ErfInv,
        &[
            (0.0, 0.0),
            (0.1, 0.088_855_990_494_257_69),
            (0.5, 0.476_936_276_204_469_9),
            (0.9, 1.163_087_153_676_674_3),
            (0.999, 2.326_753_765_513_524_5),
            (1.0, f64::INFINITY),
            (-0.5, -0.476_936_276_204_469_9),
            (1.5, f64::NAN),
        ],
    ),
];

/// Applies integer arithmetic to signed or unsigned operands (the same in two's complement); the caller wraps to the width.
pub(crate) fn wrap(a: Scalar, b: Scalar, f: fn(i64, i64) -> i64) -> Scalar {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => Scalar::Uint(f(a as i64, b as i64) as u64),
        _ => Scalar::Int(f(a.as_i64(), b.as_i64())),
    }
}

/// Whether integer `a` is less than `b`.
pub(crate) fn less(a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => a < b,
        _ => a.as_i64() < b.as_i64(),
    }
}

/// IEEE 754-2019 maximum: NaN propagates, and 0 > −0.
pub(crate) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        if a.is_sign_negative() { b } else { a }
    } else {
        a.max(b)
    }
}

/// IEEE 754-2019 minimum: NaN propagates, and −0 < 0.
pub(crate) fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

// Division with XLA's results for integer division by zero, which the specification leaves undefined.
pub(crate) fn divide(_: DType, a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => Scalar::Uint(a.checked_div(b).unwrap_or(u64::MAX)),
        _ if b.as_i64() == 0 => Scalar::Int(-1),
        _ => Scalar::Int(a.as_i64().wrapping_div(b.as_i64())),
    }
}

/// Remainder with XLA's results for division by zero.
pub(crate) fn remainder(_: DType, a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => Scalar::Uint(a.checked_rem(b).unwrap_or(a)),
        _ if b.as_i64() == 0 => a,
        _ => Scalar::Int(a.as_i64().wrapping_rem(b.as_i64())),
    }
}

/// Integer power by squaring, wrapping. A negative exponent gives 0 except for bases 1 and −1.
pub(crate) fn power(_: DType, a: Scalar, b: Scalar) -> Scalar {
    let (mut base, mut exponent) = (a.as_i64(), b.as_i64());
    let mut result = 1i64;
    if exponent < 0 && matches!(b, Scalar::Int(_)) {
        result = match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
        exponent = 0;
    }
    let mut exponent = exponent as u64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    if matches!(a, Scalar::Uint(_)) { Scalar::Uint(result as u64) } else { Scalar::Int(result) }
}

/// Left shift; a shift by the bit width or more gives 0. Spec: shift_left.
pub(crate) fn shift_left(dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    let (bits, by) = (a.to_bits(dtype), b.to_bits(dtype));
    Scalar::from_bits(dtype, if by >= dtype.bits() as u64 { 0 } else { bits << by })
}

/// Right shift that fills with zeros; a shift by the bit width or more gives 0.
pub(crate) fn shift_right_logical(dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    let (bits, by) = (a.to_bits(dtype), b.to_bits(dtype));
    Scalar::from_bits(dtype, if by >= dtype.bits() as u64 { 0 } else { bits >> by })
}

/// Right shift that extends the sign; a shift by the bit width or more gives 0 or −1.
pub(crate) fn shift_right_arithmetic(dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    let by = b.to_bits(dtype).min(dtype.bits() as u64 - 1);
    let sign_extended = ((a.to_bits(dtype) << (64 - dtype.bits())) as i64) >> (64 - dtype.bits());
    Scalar::from_bits(dtype, (sign_extended >> by) as u64)
}
