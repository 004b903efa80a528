//! What test programs say of their own results: `check.expect_close` and its kin, as ops or as custom calls.

use super::attribute::{elements, size, target};
use super::types::wrong;
use crate::syntax::{Attribute, Operation, find};
use systole_base::{Literal, Result, Scalar};

/// One claim about an array: what is compared with what, and how nearly.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultCheck {
    /// How.
    kind: CheckKind,
    /// What it is compared with, where that stands in the program.
    expected: Option<Literal>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CheckKind {
    /// The same bits, but that all NaN are one.
    Equal,
    /// Within a share of the greater or an absolute difference: that of JAX's and of StableHLO's tests.
    AlmostEqual(f64),
    /// Within so many representable numbers.
    Ulps(u64, u64),
}

impl ResultCheck {
    /// The claims of an op, one for each part of complex numbers.
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
                CheckKind::AlmostEqual(tolerance.ok_or_else(|| wrong("`tolerance` is no number"))?)
            }
            "check.expect_close" => {
                CheckKind::Ulps(int("min_ulp_difference", 0)?, int("max_ulp_difference", 3)?)
            }
            _ => return Err(wrong(format!("{name} is not supported"))),
        };
        let mut expected = elements(op, "value")?.into_iter();
        Ok((0..parts).map(|_| ResultCheck { kind, expected: expected.next() }).collect())
    }

    /// That two arrays are the same.
    pub(super) fn equal() -> ResultCheck {
        ResultCheck { kind: CheckKind::Equal, expected: None }
    }

    /// How many results of the graph it compares.
    pub fn arrays(&self) -> usize {
        if self.expected.is_some() { 1 } else { 2 }
    }

    /// Compares; the first element that differs, with both values, is the error.
    ///
    /// # Errors
    /// A line that says which element differs.
    pub fn run(&self, arrays: &[&Literal]) -> Result<(), String> {
        let (Some(actual), Some(expected)) =
            (arrays.first(), self.expected.as_ref().or(arrays.get(1).copied()))
        else {
            return Err("nothing to compare".into());
        };
        if actual.ty() != expected.ty() {
            return Err(format!("{} is compared with {}", actual.ty(), expected.ty()));
        }
        let differs = |i: &usize| !self.agree(actual.get(*i), expected.get(*i), actual);
        match (0..actual.ty().elements()).find(differs) {
            Some(i) => {
                let index = actual.shape().unravel(i);
                Err(format!("element {index:?} is {}, not {}", told(actual.get(i)), told(expected.get(i))))
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

/// A value with all its digits.
fn told(value: Scalar) -> String {
    match value {
        Scalar::Bool(v) => v.to_string(),
        Scalar::Int(v) => v.to_string(),
        Scalar::Uint(v) => v.to_string(),
        Scalar::Float(v) => format!("{v:?}"),
    }
}

/// Bits of a float as a number in the order of the floats.
fn ordered(bits: u64, width: u32) -> i64 {
    let magnitude = (bits & !(1 << (width - 1))) as i64;
    if bits >> (width - 1) & 1 == 1 { -magnitude } else { magnitude }
}
