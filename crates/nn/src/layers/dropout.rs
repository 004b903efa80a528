//! Dropout: noise that keeps a network from relying on single features.

use super::*;
use serde::Deserialize;

/// `x: T[…] → T[…]`: while training, each element is 0 with probability `rate` and else divided by `1 − rate`, so
/// that its mean stays; otherwise the input.
///
/// Which elements is a function of the model's seed, the step and the layer's name: the same run drops the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dropout {
    /// Fraction that is dropped, 0 to 1. Required in Keras, 0 here.
    pub rate: f64,
}

impl Arguments for Dropout {
    fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.rate) {
            return Err(wrong("Dropout", "a rate from 0 to 1", self.rate));
        }
        Ok(())
    }
}

impl Layer for Dropout {
    fn class_name(&self) -> &'static str {
        "Dropout"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            let x = cast(cx, x);
            if self.rate == 0.0 || !cx.training() {
                return Ok(x);
            }
            if self.rate == 1.0 {
                return Ok(x.zeros_like());
            }
            let Some(bits) = cx.random_bits(x.shape().dims()) else { return Ok(x) };
            // An element is kept when its 32 bits, read as a fraction of 2³², reach the rate.
            let threshold = (self.rate * 2f64.powi(32)).round().min(f64::from(u32::MAX));
            let kept = bits.greater_equal(&bits.scalar_like(threshold));
            Ok(kept.select(&(&x * (1.0 / (1.0 - self.rate))), &x.zeros_like()))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }
}
