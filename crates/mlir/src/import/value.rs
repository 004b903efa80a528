//! What a value of a module is here.

use super::complex_number::Number;
use super::types::not_there;
use systole_base::Result;
use systole_ir::Tensor;

/// A value of a module.
#[derive(Clone)]
pub(super) enum Given {
    Array(Tensor),
    /// Real and imaginary parts.
    Complex(Tensor, Tensor),
    Tuple(Vec<Given>),
    Token,
}

impl Given {
    /// The one array that it is.
    pub(super) fn array(self) -> Result<Tensor> {
        match self {
            Given::Array(t) => Ok(t),
            Given::Complex(..) => Err(not_there("complex numbers stand where real ones are needed")),
            Given::Tuple(_) => Err(not_there("a tuple stands where an array is needed")),
            Given::Token => Err(not_there("a token stands where an array is needed")),
        }
    }

    /// Real or complex numbers.
    pub(super) fn number(&self) -> Result<Number> {
        match self {
            Given::Complex(re, im) => Ok(Number::complex(re.clone(), im.clone())),
            other => other.clone().array().map(Number::real),
        }
    }

    /// The arrays that hold it, in order.
    pub(super) fn parts(&self) -> Result<Vec<Tensor>> {
        Ok(self.number()?.parts().cloned().collect())
    }

    /// One or two arrays as the value that they hold.
    pub(super) fn of_parts(parts: &mut impl Iterator<Item = Tensor>, count: usize) -> Option<Given> {
        let re = parts.next()?;
        Some(if count == 2 { Given::Complex(re, parts.next()?) } else { Given::Array(re) })
    }
}

impl From<Number> for Given {
    fn from(n: Number) -> Given {
        match n.im {
            Some(im) => Given::Complex(n.re, im),
            None => Given::Array(n.re),
        }
    }
}
