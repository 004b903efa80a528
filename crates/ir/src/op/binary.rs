//! Element-wise ops of two operands of one type. One op is one row of `graph/elementwise.rs`; here
//! are the functions that rows name and the rules that all of the family share.

use super::*;
use crate::graph::{binary_ops, mnemonic};
use crate::require;
use smallvec::smallvec;
use systole_base::{DType, LiteralBuilder, Scalar};

/// Gradients of both operands from `(a, b, y, dy)`.
pub type BinaryVjp = fn(&Tensor, &Tensor, &Tensor, &Tensor) -> [Grad; 2];

/// Everything about one op of the family.
pub struct Row {
    /// The op.
    pub op: Binary,
    /// Its mnemonic, with its dialect where that is not StableHLO.
    pub name: &'static str,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Dialect and section of the specification.
    pub spec: &'static str,
    /// Value on floats, computed in f64 and rounded once; `None`: floats are refused.
    pub float: Option<fn(f64, f64) -> f64>,
    /// Value on integers before wrapping to their width; `None`: they are refused.
    pub int: Option<fn(DType, Scalar, Scalar) -> Scalar>,
    /// Value on bool; `None`: bool is refused.
    pub bool: Option<fn(bool, bool) -> bool>,
    /// Gradients; `None`: zero.
    pub vjp: Option<BinaryVjp>,
    /// Intervals from which tests draw the two operands.
    pub domain: [(f64, f64); 2],
    /// How far a backend's f32 may be from the rounded exact value, in units in the last place.
    pub ulp: u32,
}

use Binary::*;
const WIDE: (f64, f64) = (-4.0, 4.0);

macro_rules! binary_rows {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// The family's table, in the order of the enum.
        pub const ROWS: &[Row] =
            &[$(Row { op: $op, name: mnemonic!($dialect $name), doc: $doc, spec: concat!(stringify!($dialect), ": ", $name), $($rules)* }),*];
    };
}

binary_ops!(binary_rows);

impl Binary {
    /// This op's row.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The value at one element of type `dtype`, rounded to it.
    pub fn apply(self, dtype: DType, a: Scalar, b: Scalar) -> Scalar {
        let row = self.row();
        match (a, b, row.float, row.int, row.bool) {
            (Scalar::Float(a), Scalar::Float(b), Some(f), ..) => Scalar::Float(f(a, b)).round_to(dtype),
            (Scalar::Bool(a), Scalar::Bool(b), .., Some(f)) => Scalar::Bool(f(a, b)),
            (_, _, _, Some(f), _) => f(dtype, a, b).round_to(dtype),
            _ => systole_base::bug!("{} on {dtype} passed infer", row.name),
        }
    }
}

impl OpRule for Binary {
    fn name(&self) -> &'static str {
        self.row().name
    }

    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 2)?;
        let (row, a, b) = (self.row(), args[0], args[1]);
        require!(a == b, "C1", "operand types differ: {a} and {b}");
        let accepted = match a.dtype {
            DType::Bool => row.bool.is_some(),
            d if d.is_float() => row.float.is_some(),
            _ => row.int.is_some(),
        };
        require!(accepted, "-", "is not defined on {} elements", a.dtype);
        Ok(smallvec![a.clone()])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for i in 0..outs[0].elements() {
            b.set(i, self.apply(outs[0].dtype, args[0].get(i), args[1].get(i)));
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        match (self.row().vjp, &dy[0]) {
            (Some(f), Some(dy)) => f(&x[0], &x[1], &y[0], dy).into(),
            _ => vec![Grad::Zero, Grad::Zero],
        }
    }

    fn eval_scalar(&self, args: &[Scalar], out: DType) -> Option<Scalar> {
        Some(self.apply(out, args[0], args[1]))
    }

    fn lower(&self) -> Lowering {
        Lowering::Map
    }
}

fn of(t: Tensor) -> Grad {
    Grad::Of(t)
}

/// Two's complement arithmetic is the same for signed and unsigned; the caller wraps to the width.
fn wrap(a: Scalar, b: Scalar, f: fn(i64, i64) -> i64) -> Scalar {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => Scalar::Uint(f(a as i64, b as i64) as u64),
        _ => Scalar::Int(f(a.as_i64(), b.as_i64())),
    }
}

fn less(a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => a < b,
        _ => a.as_i64() < b.as_i64(),
    }
}

/// IEEE 754-2019 maximum: NaN wins, and 0 is above −0.
pub(crate) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        if a.is_sign_negative() { b } else { a }
    } else {
        a.max(b)
    }
}

/// IEEE 754-2019 minimum: NaN wins, and −0 is below 0.
pub(crate) fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

// The specification leaves integer division by zero open; these are XLA's choices.
fn divide(_: DType, a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => Scalar::Uint(a.checked_div(b).unwrap_or(u64::MAX)),
        _ if b.as_i64() == 0 => Scalar::Int(-1),
        _ => Scalar::Int(a.as_i64().wrapping_div(b.as_i64())),
    }
}

fn remainder(_: DType, a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Uint(a), Scalar::Uint(b)) => Scalar::Uint(a.checked_rem(b).unwrap_or(a)),
        _ if b.as_i64() == 0 => a,
        _ => Scalar::Int(a.as_i64().wrapping_rem(b.as_i64())),
    }
}

/// Wrapping power by squaring; a negative exponent gives 0 except for bases 1 and −1.
fn power(_: DType, a: Scalar, b: Scalar) -> Scalar {
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

/// Shifts by the width or more empty the value. Spec: shift_left.
fn shift_left(dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    let (bits, by) = (a.to_bits(dtype), b.to_bits(dtype));
    Scalar::from_bits(dtype, if by >= dtype.bits() as u64 { 0 } else { bits << by })
}

fn shift_right_logical(dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    let (bits, by) = (a.to_bits(dtype), b.to_bits(dtype));
    Scalar::from_bits(dtype, if by >= dtype.bits() as u64 { 0 } else { bits >> by })
}

fn shift_right_arithmetic(dtype: DType, a: Scalar, b: Scalar) -> Scalar {
    let by = b.to_bits(dtype).min(dtype.bits() as u64 - 1);
    let sign_extended = ((a.to_bits(dtype) << (64 - dtype.bits())) as i64) >> (64 - dtype.bits());
    Scalar::from_bits(dtype, (sign_extended >> by) as u64)
}

/// Ties give half to each side, as XLA and TensorFlow do.
fn pick_vjp(a: &Tensor, b: &Tensor, y: &Tensor, dy: &Tensor) -> [Grad; 2] {
    let half = dy * 0.5;
    let tie = a.equal(b);
    let side = |mine: &Tensor| tie.select(&half, &mine.equal(y).select(dy, &dy.zeros_like()));
    [of(side(a)), of(side(b))]
}

fn power_vjp(a: &Tensor, b: &Tensor, y: &Tensor, dy: &Tensor) -> [Grad; 2] {
    let one = b.zeros_like() + 1.0;
    let zero = b.zeros_like();
    // d/da is b·a^(b−1); where b is 0 it is 0 even at a = 0, where a^(b−1) is infinite.
    let da = b.equal(&zero).select(&zero, &(dy * &(b * &a.power(&(b - &one)))));
    let log_a = a.equal(&zero).select(&zero, &a.log());
    [of(da), of(dy * &(y * &log_a))]
}

fn atan2_vjp(a: &Tensor, b: &Tensor, _: &Tensor, dy: &Tensor) -> [Grad; 2] {
    let scale = dy / &(&(a * a) + &(b * b));
    [of(&scale * b), of(-&(&scale * a))]
}

fn truncated(x: &Tensor) -> Tensor {
    x.sign() * x.abs().floor()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_enum_order() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(row.op as usize, i, "{}", row.name);
        }
    }

    #[test]
    fn corner_values() {
        let i8 = |op: Binary, a, b| op.apply(DType::I8, Scalar::Int(a), Scalar::Int(b));
        assert_eq!(i8(Divide, -128, -1), Scalar::Int(-128));
        assert_eq!(i8(Divide, 5, 0), Scalar::Int(-1));
        assert_eq!(i8(Remainder, 5, 0), Scalar::Int(5));
        assert_eq!(i8(ShiftRightArithmetic, -128, 100), Scalar::Int(-1));
        assert_eq!(i8(ShiftRightLogical, -128, 1), Scalar::Int(64));
        assert_eq!(i8(ShiftLeft, 1, 8), Scalar::Int(0));
        assert_eq!(i8(Power, -1, -3), Scalar::Int(-1));
        assert_eq!(i8(Power, 3, 5), Scalar::Int(-13));
        assert_eq!(maximum(-0.0, 0.0).to_bits(), 0);
        assert!(minimum(1.0, f64::NAN).is_nan());
    }
}
