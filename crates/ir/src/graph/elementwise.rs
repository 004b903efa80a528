//! The element-wise ops, one row each: everything about an op stands in its row, and what needs to know of it is made
//! from there (the enums below, the rules in `op/unary.rs` and `op/binary.rs`, the methods of tensors, the op table).
//!
//! A row: variant, dialect and mnemonic, method (`_`: an operator), one line for `systole ops`, and the fields of
//! [`unary::Row`](crate::op::unary::Row) or [`binary::Row`](crate::op::binary::Row), whose file holds the functions that
//! a row names.

/// Calls a macro with the rows of all ops of one operand.
#[rustfmt::skip]
macro_rules! unary_ops {
    ($callback:ident) => {
        $callback! {
            Abs = StableHLO "abs", abs, "|x|.", { float: Some(f64::abs), int: Some(int_abs), vjp: Some(|x, _, dy| dy * &x.sign()), domain: (-4.0, 4.0), ulp: 0 };
            Cbrt = StableHLO "cbrt", cbrt, "Cube root.", { float: Some(f64::cbrt), int: None, vjp: Some(|_, y, dy| dy / &(&(y * y) * 3.0)), domain: (0.1, 8.0), ulp: 4 };
            Ceil = StableHLO "ceil", ceil, "Rounds up.", { float: Some(f64::ceil), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            CountLeadingZeros = StableHLO "count_leading_zeros", count_leading_zeros, "Leading zero bits.", { float: None, int: Some(leading_zeros), vjp: None, domain: (-99.0, 99.0), ulp: 0 };
            Cosine = StableHLO "cosine", cosine, "cos x, radians.", { float: Some(f64::cos), int: None, vjp: Some(|x, _, dy| -&(dy * &x.sine())), domain: (-9.0, 9.0), ulp: 8 };
            Erf = CHLO "erf", erf, "The error function.", { float: Some(erf), int: None, vjp: Some(erf_vjp), domain: (-4.0, 4.0), ulp: 8 };
            ErfInv = CHLO "erf_inv", erf_inv, "The inverse of the error function.", { float: Some(erf_inv), int: None, vjp: Some(erf_inv_vjp), domain: (-0.95, 0.95), ulp: 8 };
            Exponential = StableHLO "exponential", exp, "eˣ.", { float: Some(f64::exp), int: None, vjp: Some(|_, y, dy| dy * y), domain: (-9.0, 9.0), ulp: 4 };
            ExponentialMinusOne = StableHLO "exponential_minus_one", expm1, "eˣ − 1, accurate near 0.", { float: Some(f64::exp_m1), int: None, vjp: Some(|_, y, dy| dy * &(y + 1.0)), domain: (-4.0, 4.0), ulp: 8 };
            Floor = StableHLO "floor", floor, "Rounds down.", { float: Some(f64::floor), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            IsFinite = StableHLO "is_finite", is_finite, "Neither infinite nor NaN.", { float: Some(|x| x.is_finite() as u8 as f64), int: None, vjp: None, domain: (-4.0, 4.0), ulp: 0 };
            Log = StableHLO "log", log, "ln x.", { float: Some(f64::ln), int: None, vjp: Some(|x, _, dy| dy / x), domain: (0.1, 9.0), ulp: 4 };
            LogPlusOne = StableHLO "log_plus_one", log1p, "ln(1 + x), accurate near 0.", { float: Some(f64::ln_1p), int: None, vjp: Some(|x, _, dy| dy / &(x + 1.0)), domain: (-0.9, 9.0), ulp: 8 };
            Logistic = StableHLO "logistic", logistic, "1 / (1 + e⁻ˣ).", { float: Some(logistic), int: None, vjp: Some(|_, y, dy| dy * &(y * &(1.0 - y))), domain: (-9.0, 9.0), ulp: 8 };
            Negate = StableHLO "negate", negate, "−x.", { float: Some(|x| -x), int: Some(|d, s| Scalar::Int(s.as_i64().wrapping_neg()).round_to(d)), vjp: Some(|_, _, dy| -dy), domain: (-4.0, 4.0), ulp: 0 };
            Not = StableHLO "not", not, "Complement of bits or of bool.", { float: None, int: Some(not), vjp: None, domain: (-99.0, 99.0), ulp: 0 };
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

/// Calls a macro with the rows of all ops of two operands.
#[rustfmt::skip]
macro_rules! binary_ops {
    ($callback:ident) => {
        $callback! {
            Add = StableHLO "add", _, "Sum; or of bool.", { float: Some(|a, b| a + b), int: Some(|_, a, b| wrap(a, b, i64::wrapping_add)), bool: Some(|a, b| a | b), vjp: Some(|_, _, _, dy| [of(dy.clone()), of(dy.clone())]), domain: [WIDE, WIDE], ulp: 0 };
            And = StableHLO "and", and, "Bit-wise or logical and.", { float: None, int: Some(|_, a, b| wrap(a, b, |a, b| a & b)), bool: Some(|a, b| a & b), vjp: None, domain: [(-99.0, 99.0); 2], ulp: 0 };
            Atan2 = StableHLO "atan2", atan2, "Angle of the point (x: second, y: first).", { float: Some(f64::atan2), int: None, bool: None, vjp: Some(atan2_vjp), domain: [(0.5, 4.0), WIDE], ulp: 8 };
            Divide = StableHLO "divide", _, "Quotient; of integers rounded towards zero.", { float: Some(|a, b| a / b), int: Some(divide), bool: None, vjp: Some(|_, b, y, dy| { let d = dy / b; [of(d.clone()), of(-&(&d * y))] }), domain: [WIDE, (0.5, 4.0)], ulp: 0 };
            Maximum = StableHLO "maximum", maximum, "The greater; NaN wins.", { float: Some(maximum), int: Some(|_, a, b| if less(a, b) { b } else { a }), bool: Some(|a, b| a | b), vjp: Some(pick_vjp), domain: [WIDE, WIDE], ulp: 0 };
            Minimum = StableHLO "minimum", minimum, "The lesser; NaN wins.", { float: Some(minimum), int: Some(|_, a, b| if less(b, a) { b } else { a }), bool: Some(|a, b| a & b), vjp: Some(pick_vjp), domain: [WIDE, WIDE], ulp: 0 };
            Multiply = StableHLO "multiply", _, "Product; and of bool.", { float: Some(|a, b| a * b), int: Some(|_, a, b| wrap(a, b, i64::wrapping_mul)), bool: Some(|a, b| a & b), vjp: Some(|a, b, _, dy| [of(dy * b), of(dy * a)]), domain: [WIDE, WIDE], ulp: 0 };
            Or = StableHLO "or", or, "Bit-wise or logical or.", { float: None, int: Some(|_, a, b| wrap(a, b, |a, b| a | b)), bool: Some(|a, b| a | b), vjp: None, domain: [(-99.0, 99.0); 2], ulp: 0 };
            Power = StableHLO "power", power, "First to the power of the second.", { float: Some(f64::powf), int: Some(power), bool: None, vjp: Some(power_vjp), domain: [(0.2, 3.0), WIDE], ulp: 32 };
            Remainder = StableHLO "remainder", remainder, "Remainder with the sign of the first.", { float: Some(|a, b| a % b), int: Some(remainder), bool: None, vjp: Some(|a, b, _, dy| [of(dy.clone()), of(-&(dy * &truncated(&(a / b))))]), domain: [WIDE, (0.7, 4.0)], ulp: 0 };
            ShiftLeft = StableHLO "shift_left", shift_left, "Bits up.", { float: None, int: Some(shift_left), bool: None, vjp: None, domain: [(-99.0, 99.0), (0.0, 9.0)], ulp: 0 };
            ShiftRightArithmetic = StableHLO "shift_right_arithmetic", shift_right_arithmetic, "Bits down, keeping the sign.", { float: None, int: Some(shift_right_arithmetic), bool: None, vjp: None, domain: [(-99.0, 99.0), (0.0, 9.0)], ulp: 0 };
            ShiftRightLogical = StableHLO "shift_right_logical", shift_right_logical, "Bits down, filling with zeros.", { float: None, int: Some(shift_right_logical), bool: None, vjp: None, domain: [(-99.0, 99.0), (0.0, 9.0)], ulp: 0 };
            Subtract = StableHLO "subtract", _, "Difference.", { float: Some(|a, b| a - b), int: Some(|_, a, b| wrap(a, b, i64::wrapping_sub)), bool: None, vjp: Some(|_, _, _, dy| [of(dy.clone()), of(-dy)]), domain: [WIDE, WIDE], ulp: 0 };
            Xor = StableHLO "xor", xor, "Exclusive or.", { float: None, int: Some(|_, a, b| wrap(a, b, |a, b| a ^ b)), bool: Some(|a, b| a ^ b), vjp: None, domain: [(-99.0, 99.0); 2], ulp: 0 };
        }
    };
}
pub(crate) use binary_ops;

/// A mnemonic with its dialect, where that is not StableHLO.
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
        /// An element-wise op of one operand: `x: T[…] → T[…]` (`is_finite`: `bool[…]`).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Unary { $($op),* }

        impl Unary {
            /// Every op of the family.
            pub const ALL: &[Unary] = &[$(Unary::$op),*];
        }
    };
}

unary_ops!(unary_enum);

macro_rules! binary_enum {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// An element-wise op of two operands: `a: T[…], b: T[…] → T[…]`. Shapes are equal; see
        /// [`Tensor`](crate::Tensor) for the operators that broadcast.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Binary { $($op),* }

        impl Binary {
            /// Every op of the family.
            pub const ALL: &[Binary] = &[$(Binary::$op),*];
        }
    };
}

binary_ops!(binary_enum);
