//! Element-wise binary ops: rules shared by the whole family. Each op is a row in `graph/elementwise.rs`; this file
//! contains only derivatives that need more than an expression.

use super::*;
use crate::graph::binary_ops;
use crate::graph::elementwise::*;

/// Computes the gradients of both operands from `(a, b, y, dy)`.
pub type BinaryVjp = fn(&Tensor, &Tensor, &Tensor, &Tensor) -> [Grad; 2];

/// Table row of a binary op: evaluation, derivative, documentation and test domains.
pub struct BinaryOpRow {
    /// The op.
    pub op: Binary,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Dialect and section of the specification.
    pub spec: &'static str,
    /// Evaluation on floats, computed in f64 and rounded once; `None` if floats are not supported.
    pub float: Option<fn(f64, f64) -> f64>,
    /// Evaluation on integers before wrapping to their width; `None` if integers are not supported.
    pub int: Option<fn(DType, Scalar, Scalar) -> Scalar>,
    /// Evaluation on bool; `None` if bool is not supported.
    pub bool: Option<fn(bool, bool) -> bool>,
    /// Gradients; `None`: zero.
    pub vjp: Option<BinaryVjp>,
    /// Intervals of random test arguments.
    pub domain: [(f64, f64); 2],
    /// Tolerance of a backend's f32 result against the rounded exact value, in units in the last place (ULP).
    pub ulp: u32,
}

use Binary::*;

macro_rules! binary_rows {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// Rows of all binary ops, in the order of the enum.
        pub const ROWS: &[BinaryOpRow] =
            &[$(BinaryOpRow { op: $op, doc: $doc, spec: concat!(stringify!($dialect), ": ", $name), $($rules)* }),*];
    };
}

binary_ops!(binary_rows);

impl Binary {
    /// Returns this op's row in [`ROWS`]: evaluation, derivative, documentation and test domains.
    pub fn row(self) -> &'static BinaryOpRow {
        &ROWS[self as usize]
    }

    /// Evaluates a binary op on one pair of elements of type `dtype`, rounded to it.
    pub fn apply(self, dtype: DType, a: Scalar, b: Scalar) -> Scalar {
        let row = self.row();
        match (a, b, row.float, row.int, row.bool) {
            (Scalar::Float(a), Scalar::Float(b), Some(f), ..) => Scalar::Float(f(a, b)).round_to(dtype),
            (Scalar::Bool(a), Scalar::Bool(b), .., Some(f)) => Scalar::Bool(f(a, b)),
            (_, _, _, Some(f), _) => f(dtype, a, b).round_to(dtype),
            _ => systole_base::bug!("type inference accepted {} on {dtype}", self.name()),
        }
    }
}

impl OpRule for Binary {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 2)?;
        let (row, a, b) = (self.row(), args[0], args[1]);
        require!(a == b, "C1", "operand types differ: {a} and {b}");
        let accepted = match a.dtype {
            DType::Bool => row.bool.is_some(),
            d if d.is_float() => row.float.is_some(),
            _ => row.int.is_some(),
        };
        require!(accepted, "-", "not supported for element type {}", a.dtype);
        Ok(smallvec![a.clone()])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
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
}

fn of(t: Tensor) -> Grad {
    Grad::Of(t)
}

/// Gradient of maximum and minimum. Ties give half to each operand, as in XLA and TensorFlow. If the result is NaN,
/// both operands get the full cotangent, so that NaN propagates.
fn pick_vjp(a: &Tensor, b: &Tensor, y: &Tensor, dy: &Tensor) -> [Grad; 2] {
    let half = dy * 0.5;
    let tie = a.equal(b);
    let beside = |other: &Tensor| tie.select(&half, &other.equal(y).select(&dy.zeros_like(), dy));
    [of(beside(b)), of(beside(a))]
}

fn power_vjp(a: &Tensor, b: &Tensor, y: &Tensor, dy: &Tensor) -> [Grad; 2] {
    let one = b.zeros_like() + 1.0;
    let zero = b.zeros_like();
    // d/da is b·a^(b−1). If b is 0 it is 0 even at a = 0, where a^(b−1) is infinite.
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

// Names of the previous version.
systole_base::renamed! { Row => BinaryOpRow }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_enum_order() {
        for (i, row) in ROWS.iter().enumerate() {
            assert_eq!(row.op as usize, i, "{}", row.op.name());
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
