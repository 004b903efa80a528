//! Element-wise unary ops: rules shared by the whole family. Each op is a row in `graph/elementwise.rs`; this file
//! contains only derivatives that need more than an expression.

use super::*;
pub use crate::graph::elementwise::KNOWN;
use crate::graph::elementwise::*;
use crate::graph::unary_ops;

/// Table row of a unary op: evaluation, derivative, documentation and test domain.
pub struct UnaryOpRow {
    /// The op.
    pub op: Unary,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Dialect and section of the specification.
    pub spec: &'static str,
    /// Evaluation on floats, computed in f64 and rounded once; `None` if floats are not supported.
    pub float: Option<fn(f64) -> f64>,
    /// Evaluation on integers and bool; `None` if they are not supported.
    pub int: Option<fn(DType, Scalar) -> Scalar>,
    /// Cotangent of `x` from `(x, y, dy)`; `None` if the op is constant almost everywhere, so that the gradient is
    /// zero.
    pub vjp: Option<fn(&Tensor, &Tensor, &Tensor) -> Tensor>,
    /// Interval of random test arguments.
    pub domain: (f64, f64),
    /// Tolerance of a backend's f32 result against the rounded exact value, in units in the last place (ULP).
    pub ulp: u32,
}

use Unary::*;

macro_rules! unary_rows {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// Rows of all unary ops, in the order of the enum.
        pub const ROWS: &[UnaryOpRow] =
            &[$(UnaryOpRow { op: $op, doc: $doc, spec: concat!(stringify!($dialect), ": ", $name), $($rules)* }),*];
    };
}

unary_ops!(unary_rows);

impl Unary {
    /// Returns this op's row in [`ROWS`]: evaluation, derivative, documentation and test domain.
    pub fn row(self) -> &'static UnaryOpRow {
        &ROWS[self as usize]
    }

    /// Evaluates a unary op on one element of type `dtype`, rounded to the result type.
    pub fn apply(self, dtype: DType, x: Scalar) -> Scalar {
        let row = self.row();
        match (x, row.float, row.int) {
            (Scalar::Float(v), Some(f), _) if self == IsFinite => Scalar::Bool(f(v) != 0.0),
            (Scalar::Float(v), Some(f), _) => Scalar::Float(f(v)).round_to(dtype),
            (_, _, Some(f)) => f(dtype, x),
            _ => systole_base::bug!("type inference accepted {} on {dtype}", self.name()),
        }
    }
}

impl OpRule for Unary {
    lowered!(Map);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 1)?;
        let (row, x) = (self.row(), args[0]);
        let accepted = match x.dtype {
            d if d.is_float() => row.float.is_some(),
            DType::Bool => *self == Not,
            d if d.is_unsigned_int() => row.int.is_some() && !matches!(self, Abs | Sign),
            _ => row.int.is_some(),
        };
        require!(accepted, "-", "not supported for element type {}", x.dtype);
        Ok(smallvec![if *self == IsFinite { x.with_dtype(DType::Bool) } else { x.clone() }])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for i in 0..outs[0].elements() {
            b.set(i, self.apply(args[0].dtype(), args[0].get(i)));
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        match (self.row().vjp, &dy[0]) {
            (Some(f), Some(dy)) => vec![Grad::Of(f(&x[0], &y[0], dy))],
            _ => vec![Grad::Zero],
        }
    }

    fn eval_scalar(&self, args: &[Scalar], out: DType) -> Option<Scalar> {
        // For `is_finite`, the result type differs from the operand type, but the value does not depend on it.
        Some(self.apply(out, args[0]))
    }
}

/// d erf(x)/dx = 2/√π · exp(−x²)
fn erf_vjp(x: &Tensor, _: &Tensor, dy: &Tensor) -> Tensor {
    let slope = (-&(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI;
    dy * &slope
}

// Names of the previous version.
systole_base::renamed! { Row => UnaryOpRow }

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
    fn values_are_those_of_tables() {
        for (op, table) in KNOWN {
            let f = op.row().float.unwrap();
            for &(x, y) in *table {
                let found = f(x);
                let near = (found - y).abs() <= y.abs() * 4.0 * f64::EPSILON;
                assert!(found == y || near || found.is_nan() && y.is_nan(), "{}({x}) is {found}", op.name());
            }
        }
    }

    #[test]
    fn erf_inv_inverts_erf() {
        for i in 1..1000 {
            let x = i as f64 / 1000.0;
            assert!((erf(erf_inv(x)) - x).abs() <= 4.0 * f64::EPSILON, "{x}");
        }
        assert_eq!(erf_inv(-0.0).to_bits(), (-0.0f64).to_bits());
    }

    #[test]
    fn erf_matches_tables() {
        // Abramowitz & Stegun, table 7.1; erf is odd.
        for (x, y) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - y).abs() < 2e-15, "{x}: {} {y}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!((erf(2.499_999_999) - erf(2.500_000_001)).abs() < 1e-11);
    }
}
