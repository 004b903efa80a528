//! Element-wise ops of one operand. One op is one row of `graph/elementwise.rs`; here
//! are the functions that rows name and the rules that all of the family share.

use super::*;
use crate::graph::{mnemonic, unary_ops};
use crate::require;
use smallvec::smallvec;
use systole_base::{DType, LiteralBuilder, Scalar};

/// Everything about one op of the family.
pub struct Row {
    /// The op.
    pub op: Unary,
    /// Its mnemonic, with its dialect where that is not StableHLO.
    pub name: &'static str,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Dialect and section of the specification.
    pub spec: &'static str,
    /// Value on floats, computed in f64 and rounded once; `None`: floats are refused.
    pub float: Option<fn(f64) -> f64>,
    /// Value on integers and bool; `None`: they are refused.
    pub int: Option<fn(DType, Scalar) -> Scalar>,
    /// Cotangent of `x` from `(x, y, dy)`; `None`: constant almost everywhere, the gradient is zero.
    pub vjp: Option<fn(&Tensor, &Tensor, &Tensor) -> Tensor>,
    /// Interval from which tests draw arguments.
    pub domain: (f64, f64),
    /// How far a backend's f32 may be from the rounded exact value, in units in the last place.
    pub ulp: u32,
}

use Unary::*;

macro_rules! unary_rows {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// The family's table, in the order of the enum.
        pub const ROWS: &[Row] =
            &[$(Row { op: $op, name: mnemonic!($dialect $name), doc: $doc, spec: concat!(stringify!($dialect), ": ", $name), $($rules)* }),*];
    };
}

unary_ops!(unary_rows);

impl Unary {
    /// This op's row.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The value at one element of type `dtype`, rounded to the result type.
    pub fn apply(self, dtype: DType, x: Scalar) -> Scalar {
        let row = self.row();
        match (x, row.float, row.int) {
            (Scalar::Float(v), Some(f), _) if self == IsFinite => Scalar::Bool(f(v) != 0.0),
            (Scalar::Float(v), Some(f), _) => Scalar::Float(f(v)).round_to(dtype),
            (_, _, Some(f)) => f(dtype, x),
            _ => systole_base::bug!("{} on {dtype} passed infer", row.name),
        }
    }
}

impl OpRule for Unary {
    fn name(&self) -> &'static str {
        self.row().name
    }

    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint> {
        expect_args(args, 1)?;
        let (row, x) = (self.row(), args[0]);
        let accepted = match x.dtype {
            d if d.is_float() => row.float.is_some(),
            DType::Bool => *self == Not,
            d if d.is_unsigned_int() => row.int.is_some() && !matches!(self, Abs | Sign),
            _ => row.int.is_some(),
        };
        require!(accepted, "-", "is not defined on {} elements", x.dtype);
        Ok(smallvec![if *self == IsFinite { x.with_dtype(DType::Bool) } else { x.clone() }])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>> {
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
        // Of `is_finite` the operand's type is not the result's, and its value does not depend on it.
        Some(self.apply(out, args[0]))
    }

    fn lower(&self) -> Lowering {
        Lowering::Map
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// −1, −0, 0, 1 or NaN. Spec: sign.
fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { x.signum() }
}

fn int_sign(_: DType, s: Scalar) -> Scalar {
    Scalar::Int(s.as_i64().signum())
}

fn int_abs(dtype: DType, s: Scalar) -> Scalar {
    Scalar::Int(s.as_i64().wrapping_abs()).round_to(dtype)
}

fn not(dtype: DType, s: Scalar) -> Scalar {
    match s {
        Scalar::Bool(b) => Scalar::Bool(!b),
        Scalar::Uint(u) => Scalar::Uint(!u).round_to(dtype),
        other => Scalar::Int(!other.as_i64()),
    }
}

fn popcnt(dtype: DType, s: Scalar) -> Scalar {
    Scalar::Int(s.to_bits(dtype).count_ones() as i64).convert_to(dtype)
}

fn leading_zeros(dtype: DType, s: Scalar) -> Scalar {
    let unused = 64 - dtype.bits();
    Scalar::Int((s.to_bits(dtype).leading_zeros() - unused) as i64).convert_to(dtype)
}

/// d erf(x)/dx = 2/√π · exp(−x²)
fn erf_vjp(x: &Tensor, _: &Tensor, dy: &Tensor) -> Tensor {
    let slope = (-&(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI;
    dy * &slope
}

/// The error function to about 1e-16: its Taylor series near zero, else a continued fraction of `erfc`.
/// Abramowitz & Stegun 7.1.6 and 7.1.14.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return x.signum();
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

/// d erf⁻¹(x)/dx = √π/2 · exp(y²)
fn erf_inv_vjp(_: &Tensor, y: &Tensor, dy: &Tensor) -> Tensor {
    dy * &((y * y).exp() * (1.0 / std::f64::consts::FRAC_2_SQRT_PI))
}

/// erfc of positive numbers without cancellation where that would show: the continued fraction of A & S 7.1.14.
fn erfc(y: f64) -> f64 {
    if y < 1.0 {
        return 1.0 - erf(y);
    }
    let f = (1..=500).rev().fold(y, |f, k| y + k as f64 / 2.0 / f);
    (-y * y).exp() / (f * std::f64::consts::PI.sqrt())
}

/// The inverse of [`erf`] to about 1e-15: Halley's iteration from a first guess by logarithms (Winitzki, 2008).
pub fn erf_inv(x: f64) -> f64 {
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

/// Values of ops that the fixture of XLA's answers may lack, from tables: argument and result.
pub const KNOWN: &[(Unary, &[(f64, f64)])] = &[(
    // Computed with 60 digits.
    ErfInv,
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
)];

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
    fn values_are_those_of_tables() {
        for (op, table) in KNOWN {
            let f = op.row().float.unwrap();
            for &(x, y) in *table {
                let found = f(x);
                let near = (found - y).abs() <= y.abs() * 4.0 * f64::EPSILON;
                assert!(
                    found == y || near || found.is_nan() && y.is_nan(),
                    "{}({x}) is {found}",
                    op.row().name
                );
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
        // Abramowitz & Stegun, table 7.1, and symmetric.
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
