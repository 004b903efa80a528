//! GaussianNoise, GaussianDropout and AlphaDropout layers, active in training only.
//!
//! The noise depends on the model's seed, the step and the layer's name, as in [`Dropout`](crate::layers::Dropout).

use super::dropout::{check_rate, kept};
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::constructors;

/// `x: T[…] → T[…]`: in training, adds normal noise of mean 0; otherwise the identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GaussianNoise {
    /// Standard deviation of the noise, 0 to 1. Required in Keras, 0 here.
    pub stddev: f64,
}

impl Arguments for GaussianNoise {
    fn check(&self) -> Result<()> {
        check_rate("GaussianNoise", "stddev", self.stddev)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let x = cast(cx, x);
        if self.stddev == 0.0 {
            return Ok(x);
        }
        let noise = normal(cx, x.shape());
        Ok(noise.map_or(x.clone(), |n| (x.convert(DType::F32) + n * self.stddev).convert(x.dtype())))
    }
}

impl Layer for GaussianNoise {
    named!("GaussianNoise", one_input);

    lowered!(Regularization);
}

/// `x: T[…] → T[…]`: in training, multiplies by normal noise of mean 1 and variance `rate / (1 − rate)`; otherwise the
/// identity.
///
/// The variance equals that of [`Dropout`](crate::layers::Dropout)'s factors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GaussianDropout {
    /// Rate of a Dropout with the same variance, 0 to below 1. Required in Keras, 0 here.
    pub rate: f64,
}

impl Arguments for GaussianDropout {
    fn check(&self) -> Result<()> {
        match (0.0..1.0).contains(&self.rate) {
            true => Ok(()),
            false => Err(wrong("GaussianDropout", "a rate from 0 to below 1", self.rate)),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let x = cast(cx, x);
        if self.rate == 0.0 {
            return Ok(x);
        }
        let stddev = (self.rate / (1.0 - self.rate)).sqrt();
        let noise = normal(cx, x.shape());
        Ok(noise.map_or(x.clone(), |n| (x.convert(DType::F32) * (n * stddev + 1.0)).convert(x.dtype())))
    }
}

impl Layer for GaussianDropout {
    named!("GaussianDropout", one_input);

    lowered!(Regularization);
}

/// `x: T[…] → T[…]`: in training, sets each element to −1.758 with probability `rate`, then restores mean 0 and
/// variance 1; otherwise the identity.
///
/// For SELU networks. Source: Klambauer et al. 2017.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlphaDropout {
    /// Fraction of the elements to drop, 0 to 1. Required in Keras, 0 here.
    pub rate: f64,
}

/// Negative saturation value of SELU: −α·λ.
const SELU_LIMIT: f64 = -1.673_263_242_354_377_2 * 1.050_700_987_355_480_5;

impl Arguments for AlphaDropout {
    fn check(&self) -> Result<()> {
        check_rate("AlphaDropout", "rate", self.rate)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let x = cast(cx, x);
        if self.rate == 0.0 {
            return Ok(x);
        }
        let Some(kept) = kept(cx, x.shape(), self.rate) else { return Ok(x) };
        if self.rate == 1.0 {
            return Ok(x.zeros_like());
        }
        let factor = ((1.0 - self.rate) * (1.0 + self.rate * SELU_LIMIT.powi(2))).sqrt().recip();
        let shift = -factor * SELU_LIMIT * self.rate;
        let dropped = x.builder().full(x.ty(), SELU_LIMIT);
        Ok(kept.select(&x, &dropped) * factor + shift)
    }
}

impl Layer for AlphaDropout {
    named!("AlphaDropout", one_input);

    lowered!(Regularization);
}

/// `→ f32[shape]`: standard normal draws. `None` outside training.
fn normal(cx: &mut Cx, shape: &[usize]) -> Option<Tensor> {
    let bits = cx.random_bits(shape)?;
    let unit = bits.shift_right_logical(&bits.scalar_like(9.0)).convert(DType::F32) * 2f64.powi(-23);
    // In the open interval (−1, 1).
    let spread = unit * (2.0 - 2f64.powi(-23)) - (1.0 - 2f64.powi(-24));
    Some(spread.erf_inv() * std::f64::consts::SQRT_2)
}

constructors!(LayerSpec:
    /// `x: T[…] → T[…]`: in training, adds normal noise; otherwise the identity. Arguments: [`GaussianNoise`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::gaussian_noise, Model};
    /// let layer = gaussian_noise(0.1);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [128])])?;
    /// assert_eq!(output.shape.dims(), [128]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn gaussian_noise(stddev: f64) = GaussianNoise { stddev };

    /// `x: T[…] → T[…]`: in training, multiplies by normal noise of mean 1; otherwise the identity. Arguments:
    /// [`GaussianDropout`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::gaussian_dropout, Model};
    /// let layer = gaussian_dropout(0.1);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [128])])?;
    /// assert_eq!(output.shape.dims(), [128]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn gaussian_dropout(rate: f64) = GaussianDropout { rate };

    /// `x: T[…] → T[…]`: in training, drops a fraction `rate` of the elements but keeps mean and variance; otherwise the
    /// identity. Arguments: [`AlphaDropout`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::alpha_dropout, Model};
    /// let layer = alpha_dropout(0.1);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [128])])?;
    /// assert_eq!(output.shape.dims(), [128]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn alpha_dropout(rate: f64) = AlphaDropout { rate };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(gaussian_noise(0.5), &[2, 5], &[2, 5], &[], None),
        LayerSample::new(gaussian_dropout(0.3), &[2, 5], &[2, 5], &[], None),
        LayerSample::new(alpha_dropout(0.3), &[2, 5], &[2, 5], &[], None),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
