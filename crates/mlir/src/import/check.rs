//! Imports `check.expect_close` and similar assertions of StableHLO test programs, as ops or custom calls.

use super::attribute::{elements, size, target};
use super::types::wrong;
use crate::syntax::{Attribute, Operation, find};
use systole_base::{Literal, Result, Scalar};

/// An assertion of a test program about an array: expected value and tolerance.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultCheck {
    /// Kind of comparison.
    kind: CheckKind,
    /// Expected value if the program contains it.
    expected: Option<Literal>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CheckKind {
    /// Bitwise equal, except that all NaNs are equal.
    Equal,
    /// Within a relative or absolute tolerance, as in the tests of JAX and StableHLO.
    AlmostEqual(f64),
    /// Between a minimum and a maximum distance in representable numbers (ULPs).
    Ulps(u64, u64),
}

impl ResultCheck {
    /// Returns the assertions of an op, one per part of a complex number.
    pub(super) fn of(op: &Operation, parts: usize) -> Result<Vec<ResultCheck>> {
        let name = target(op).unwrap_or(&op.name);
        let int = |name: &str, usual: usize| -> Result<u64> { Ok(size(op, name)?.unwrap_or(usual) as u64) };
        let kind = match name {
            "check.expect_eq" | "check.eq" | "check.expect_eq_const" => CheckKind::Equal,
            "check.expect_almost_eq" | "check.almost_eq" | "check.expect_almost_eq_const" => {
                let tolerance = match find(&op.attributes, "tolerance") {
                    None => Some(1e-3),
                    Some(Attribute::Float(digits, _)) => digits.parse().ok(),
                    Some(_) => None,
                };
                CheckKind::AlmostEqual(tolerance.ok_or_else(|| wrong("`tolerance` must be a number"))?)
            }
            "check.expect_close" => {
                CheckKind::Ulps(int("min_ulp_difference", 0)?, int("max_ulp_difference", 3)?)
            }
            _ => return Err(wrong(format!("unsupported op {name}"))),
        };
        let mut expected = elements(op, "value")?.into_iter();
        Ok((0..parts).map(|_| ResultCheck { kind, expected: expected.next() }).collect())
    }

    /// Returns the assertion that two arrays are equal.
    pub(super) fn equal() -> ResultCheck {
        ResultCheck { kind: CheckKind::Equal, expected: None }
    }

    /// Returns the number of graph results that the assertion compares.
    pub fn arrays(&self) -> usize {
        if self.expected.is_some() { 1 } else { 2 }
    }

    /// Evaluates the assertion on arrays; the error describes the difference.
    ///
    /// # Errors
    /// A line with the first element that differs and both values.
    pub fn run(&self, arrays: &[&Literal]) -> Result<(), String> {
        let (Some(actual), Some(expected)) =
            (arrays.first(), self.expected.as_ref().or(arrays.get(1).copied()))
        else {
            return Err("the assertion has no array to compare".into());
        };
        if actual.ty() != expected.ty() {
            return Err(format!("cannot compare {} with {}", actual.ty(), expected.ty()));
        }
        let differs = |i: &usize| !self.agree(actual.get(*i), expected.get(*i), actual);
        match (0..actual.ty().elements()).find(differs) {
            Some(i) => {
                let index = actual.shape().unravel(i);
                Err(format!(
                    "element {index:?} is {}, expected {}",
                    told(actual.get(i)),
                    told(expected.get(i))
                ))
            }
            None => Ok(()),
        }
    }

    fn agree(&self, a: Scalar, b: Scalar, like: &Literal) -> bool {
        let (Scalar::Float(x), Scalar::Float(y)) = (a, b) else { return a == b };
        if x.is_nan() || y.is_nan() {
            return x.is_nan() && y.is_nan();
        }
        match self.kind {
            CheckKind::Equal => x == y,
            CheckKind::AlmostEqual(tolerance) => {
                x == y || (x - y).abs() <= tolerance || (x - y).abs() <= tolerance * x.abs().max(y.abs())
            }
            CheckKind::Ulps(least, most) => {
                let place = |v: Scalar| ordered(v.to_bits(like.dtype()), like.dtype().bits());
                let apart = place(a).abs_diff(place(b));
                x == y && least == 0 || (least..=most).contains(&apart)
            }
        }
    }
}

/// Formats a value with all digits.
fn told(value: Scalar) -> String {
    match value {
        Scalar::Bool(v) => v.to_string(),
        Scalar::Int(v) => v.to_string(),
        Scalar::Uint(v) => v.to_string(),
        Scalar::Float(v) => format!("{v:?}"),
    }
}

/// Maps float bits to integers in the order of the floats.
fn ordered(bits: u64, width: u32) -> i64 {
    let magnitude = (bits & !(1 << (width - 1))) as i64;
    if bits >> (width - 1) & 1 == 1 { -magnitude } else { magnitude }
}
