//! What a value of a module is here.

use super::complex_number::RealOrComplex;
use super::types::not_there;
use systole_base::Result;
use systole_ir::Tensor;

/// A value of a module.
#[derive(Clone)]
pub(super) enum ImportedValue {
    Array(Tensor),
    /// Real and imaginary parts.
    Complex(Tensor, Tensor),
    Tuple(Vec<ImportedValue>),
    Token,
}

impl ImportedValue {
    /// The one array that it is.
    pub(super) fn array(self) -> Result<Tensor> {
        match self {
            ImportedValue::Array(t) => Ok(t),
            ImportedValue::Complex(..) => Err(not_there("complex numbers stand where real ones are needed")),
            ImportedValue::Tuple(_) => Err(not_there("a tuple stands where an array is needed")),
            ImportedValue::Token => Err(not_there("a token stands where an array is needed")),
        }
    }

    /// Real or complex numbers.
    pub(super) fn number(&self) -> Result<RealOrComplex> {
        match self {
            ImportedValue::Complex(re, im) => Ok(RealOrComplex::complex(re.clone(), im.clone())),
            other => other.clone().array().map(RealOrComplex::real),
        }
    }

    /// The arrays that hold it, in order.
    pub(super) fn parts(&self) -> Result<Vec<Tensor>> {
        Ok(self.number()?.parts().cloned().collect())
    }

    /// One or two arrays as the value that they hold.
    pub(super) fn of_parts(parts: &mut impl Iterator<Item = Tensor>, count: usize) -> Option<ImportedValue> {
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
