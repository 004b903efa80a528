//! ModelOutput layer: selects a further output of a nested model with several outputs.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::constructors;

/// `x: T[B, …] → U[B, …]`: given the first output `x` of a nested model, returns another of its outputs.
///
/// [`Symbol::apply_all`](crate::Symbol::apply_all) creates it. Keras indexes a list instead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOutput {
    /// Index among the model's outputs; 0 is `x` itself.
    pub index: usize,
}

impl Arguments for ModelOutput {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        match self.index.checked_sub(1) {
        None => Ok(cast_floats(cx, x)),
        Some(more) => cx.more_outputs_of(x).get(more).cloned().ok_or_else(|| {
            err!(Graph, "cannot select output {}: the input is not the first output of a nested model, or the model has fewer outputs", self.index)
                .because("ModelOutput must follow a nested model with several outputs")
                .hint("create the ModelOutput with Symbol::apply_all")
        }),
    }
    }
}

impl Layer for ModelOutput {
    named!("ModelOutput", one_input);
}

constructors!(LayerSpec:
    /// `x: T[B, …] → U[B, …]`: another output of the nested model whose first output is `x`. Arguments: [`ModelOutput`].
    ///
    /// ```
    /// use systole_ir::DType::F32;
    /// use systole_nn::{input, layers::{dense, model_output, LayerSpec}, Architecture, Model};
    /// let x = input("x", [8]);
    /// let hidden = x.apply(dense(4));
    /// let encoder = Architecture::functional(&[x], [&hidden.apply(dense(2)), &hidden.apply(dense(3))])?;
    /// let picture = input("picture", [8]);
    /// let mean = picture.apply(LayerSpec::from(encoder).name("encoder"));
    /// let spread = mean.apply(model_output(1)); // as Symbol::apply_all gives it
    /// let model = Model::functional(&[picture], [&mean, &spread])?;
    /// assert!(model.summary().contains("ModelOutput"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn model_output(index: usize) = ModelOutput { index };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(model_output(0), &[2, 5], &[2, 5], &[], None)]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
