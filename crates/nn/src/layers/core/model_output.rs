//! ModelOutput: what else a model in the place of a layer returned.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;

/// `x: T[B, …] → U[B, …]`: of a model of several outputs in the place of a layer, whose first output is `x`, another one.
///
/// [`Symbol::apply_all`](crate::Symbol::apply_all) makes it; Keras has a place in a list instead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOutput {
    /// Its place among the model's outputs; 0 is `x` itself.
    pub index: usize,
}

impl Arguments for ModelOutput {}

impl Layer for ModelOutput {
    named!("ModelOutput");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| match self.index.checked_sub(1) {
            None => Ok(cast_floats(cx, x)),
            Some(more) => cx.more_outputs_of(x).get(more).cloned().ok_or_else(|| {
                let what = format!("there is no output {} of a model here", self.index);
                Error::new(ErrorKind::Graph, what)
                    .because("it follows a model of several outputs that stands in the place of a layer")
                    .hint("take them from Symbol::apply_all")
            }),
        })
    }
}

/// `x: T[B, …] → U[B, …]`: another output of the model whose first one is `x`. Arguments: [`ModelOutput`].
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
#[track_caller]
pub fn model_output(index: usize) -> LayerSpec {
    LayerSpec::of(ModelOutput { index })
}

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(model_output(0), &[2, 5], &[2, 5], &[], None)]
}

/// Cases of the parity test are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
