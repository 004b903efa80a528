//! [`Rescale`]: how pixels become the inputs of a model.

use crate::host_array::cast;
use std::fmt;
use std::str::FromStr;
use systole_base::{DType, Literal};

/// Conversion of pixels to the inputs of a model, as Keras's `Rescaling` layer: `x: T[…] → f32[…]`, times a factor.
///
/// ```
/// use systole_data::Rescale;
/// assert_eq!(Rescale::by(1.0 / 255.0).divisor(), Some(255.0));
/// assert_eq!(Rescale::by(0.3).divisor(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rescale {
    scale: f64,
}

impl Rescale {
    /// Creates the conversion that multiplies by `scale`.
    pub fn by(scale: f64) -> Rescale {
        Rescale { scale }
    }

    /// The factor.
    pub fn scale(self) -> f64 {
        self.scale
    }

    /// Returns n if the factor is 1/n. Then numbers are divided by n: `x / 255` and `x * (1/255)` round differently, and
    /// tutorials divide.
    pub fn divisor(self) -> Option<f64> {
        let divisor = (1.0 / self.scale).round();
        ((1.0 / self.scale - divisor).abs() < 1e-9 * divisor).then_some(divisor)
    }

    /// Converts and scales an array: `x: T[…] → f32[…]`.
    pub(crate) fn apply(self, x: &Literal) -> Literal {
        let mut y = cast(x, DType::F32);
        if self.scale == 1.0 {
            return y;
        }
        let (divisor, scale) = (self.divisor().map(|n| n as f32), self.scale as f32);
        if let Ok(all) = y.as_mut_slice::<f32>() {
            match divisor {
                Some(n) => all.iter_mut().for_each(|x| *x /= n),
                None => all.iter_mut().for_each(|x| *x *= scale),
            }
        }
        y
    }
}

/// The factor, so that [`Rescale::from_str`] reads the same one.
impl fmt::Display for Rescale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.scale)
    }
}

impl FromStr for Rescale {
    type Err = std::num::ParseFloatError;

    fn from_str(text: &str) -> Result<Rescale, Self::Err> {
        text.parse().map(Rescale::by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostArray;

    #[test]
    fn integers_are_converted_when_they_are_read() {
        let bytes = Literal::from_slice([4], &[0u8, 1, 77, 255]).unwrap();
        let x = HostArray::from(&bytes).rescale(1.0 / 255.0);
        let (stored, rescale) = x.before_rescale().unwrap();
        assert_eq!(
            (stored.as_slice::<u8>().unwrap(), rescale.divisor()),
            (&[0, 1, 77, 255][..], Some(255.0))
        );
        assert_eq!(x.get().unwrap().to_f32s(), [0.0, 1.0 / 255.0, 77.0 / 255.0, 1.0]);
        // An operation computes it.
        let y = x.clone() * 2.0;
        assert!(y.before_rescale().is_none());
        assert_eq!(y.get().unwrap().to_f32s()[3], 2.0);
        assert_eq!(x.into_literal().unwrap().to_f32s()[3], 1.0);
        assert_eq!(HostArray::from(&bytes).rescale(0.3).into_literal().unwrap().to_f32s()[1], 0.3);
    }

    #[test]
    fn fractions_are_converted_at_once() {
        let x = HostArray::from(Literal::from_slice([2], &[1f32, 3.0]).unwrap()).rescale(0.5);
        assert!(x.before_rescale().is_none());
        assert_eq!(x.get().unwrap().to_f32s(), [0.5, 1.5]);
    }

    #[test]
    fn a_factor_is_read_as_it_is_written() {
        for scale in [1.0, 1.0 / 255.0, 0.3, 1.0 / 127.5] {
            assert_eq!(Rescale::by(scale).to_string().parse(), Ok(Rescale::by(scale)));
        }
    }
}
