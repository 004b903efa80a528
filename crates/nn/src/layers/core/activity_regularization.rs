//! ActivityRegularization layer: adds an L1 and L2 penalty on its input to the loss.

use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::regularized_weight::penalize_output;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::constructors;

/// `x: T[…] → T[…]`: returns the input and adds `l1 · Σ|x| + l2 · Σx²` to the loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivityRegularization {
    /// Factor of the sum of absolute values. Default: 0.
    pub l1: f64,
    /// Factor of the sum of squares. Default: 0.
    pub l2: f64,
}

impl Arguments for ActivityRegularization {
    fn check(&self) -> Result<()> {
        at_least_0("ActivityRegularization", "l1", self.l1)?;
        at_least_0("ActivityRegularization", "l2", self.l2)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let x = cast(cx, x);
        penalize_output(cx, Some(Regularizer { l1: self.l1, l2: self.l2 }), &x);
        Ok(x)
    }
}

impl Layer for ActivityRegularization {
    named!("ActivityRegularization", one_input);

    lowered!(Regularization);
}

constructors!(LayerSpec:
    /// `x: T[…] → T[…]`: returns the input and adds `l1 · Σ|x| + l2 · Σx²` to the loss. Arguments:
    /// [`ActivityRegularization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::activity_regularization, Model};
    /// let layer = activity_regularization(0.0, 1e-4);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [128])])?;
    /// assert_eq!(output.shape.dims(), [128]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn activity_regularization(l1: f64, l2: f64) = ActivityRegularization { l1, l2 };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(activity_regularization(1e-3, 1e-3), &[2, 5], &[2, 5], &[], None)]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
