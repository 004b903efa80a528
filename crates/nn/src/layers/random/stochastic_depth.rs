//! StochasticDepth layer (DropPath): drops whole samples of a residual branch.

use super::dropout::{check_rate, kept};
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::constructors;

/// `x: T[B, …] → T[B, …]`: in training, zeros each sample with probability `drop_path_rate` and divides the others by
/// `1 − drop_path_rate`; otherwise the identity.
///
/// As in `keras.applications.convnext`; PyTorch's `DropPath`. Source: Huang et al. 2016.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StochasticDepth {
    /// Fraction of the samples to drop, 0 to 1. Required in Keras, 0 here.
    pub drop_path_rate: f64,
}

impl Arguments for StochasticDepth {
    fn check(&self) -> Result<()> {
        check_rate("StochasticDepth", "drop_path_rate", self.drop_path_rate)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 0 {
            return Err(
                unfit("StochasticDepth", "a batch [B, …]", x.ty()).hint("feed batches: data.batch(32)")
            );
        }
        let (x, rate) = (cast(cx, x), self.drop_path_rate);
        if rate == 0.0 || !cx.training() {
            return Ok(x);
        }
        if rate == 1.0 {
            return Ok(x.zeros_like());
        }
        let Some(kept) = kept(cx, &[x.dim(0)], rate) else { return Ok(x) };
        let kept = kept.broadcast_in_dim(x.shape(), &[0]);
        Ok(kept.select(&(&x * (1.0 / (1.0 - rate))), &x.zeros_like()))
    }
}

impl Layer for StochasticDepth {
    named!("StochasticDepth", one_input);

    lowered!(Regularization);
}

constructors!(LayerSpec:
    /// `x: T[B, …] → T[B, …]`: in training, zeros a fraction `drop_path_rate` of the samples; otherwise the identity.
    /// Arguments: [`StochasticDepth`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::stochastic_depth, Model};
    /// let layer = stochastic_depth(0.1);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 96])])?;
    /// assert_eq!(output.shape.dims(), [7, 7, 96]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn stochastic_depth(drop_path_rate: f64) = StochasticDepth { drop_path_rate };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(stochastic_depth(0.5), IMAGE, IMAGE, &[], Some(&[]))]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
