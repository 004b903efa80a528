//! IR value of an imported MLIR value: real array, complex array, tuple or token.

use super::complex_number::RealOrComplex;
use super::types::not_there;
use systole_base::Result;
use systole_ir::Tensor;

/// An imported value.
#[derive(Clone)]
pub(super) enum ImportedValue {
    Array(Tensor),
    /// Real and imaginary parts.
    Complex(Tensor, Tensor),
    Tuple(Vec<ImportedValue>),
    Token,
}

impl ImportedValue {
    /// Returns the value as one real array.
    pub(super) fn array(self) -> Result<Tensor> {
        match self {
            ImportedValue::Array(t) => Ok(t),
            ImportedValue::Complex(..) => Err(not_there("expected a real array, got complex numbers")),
            ImportedValue::Tuple(_) => Err(not_there("expected an array, got a tuple")),
            ImportedValue::Token => Err(not_there("expected an array, got a token")),
        }
    }

    /// Returns the value as real or complex numbers.
    pub(super) fn number(&self) -> Result<RealOrComplex> {
        match self {
            ImportedValue::Complex(re, im) => Ok(RealOrComplex::complex(re.clone(), im.clone())),
            other => other.clone().array().map(RealOrComplex::real),
        }
    }

    /// Returns the arrays that hold the value, in order; none for a token.
    pub(super) fn parts(&self) -> Result<Vec<Tensor>> {
        match self {
            ImportedValue::Token => Ok(Vec::new()),
            _ => Ok(self.number()?.parts().cloned().collect()),
        }
    }

    /// Builds a value from one or two arrays; a token from none.
    pub(super) fn of_parts(parts: &mut impl Iterator<Item = Tensor>, count: usize) -> Option<ImportedValue> {
        if count == 0 {
            return Some(ImportedValue::Token);
        }
        let re = parts.next()?;
        Some(if count == 2 { ImportedValue::Complex(re, parts.next()?) } else { ImportedValue::Array(re) })
    }
}

impl From<RealOrComplex> for ImportedValue {
    fn from(n: RealOrComplex) -> ImportedValue {
        match n.im {
            Some(im) => ImportedValue::Complex(n.re, im),
            None => ImportedValue::Array(n.re),
        }
    }
}
