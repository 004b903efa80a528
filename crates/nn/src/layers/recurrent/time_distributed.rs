//! TimeDistributed wrapper: applies a layer to every time step of a sequence.

use crate::layers::built_in::*;
use crate::layers::core::dense::dense;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::layers::wrapped_layer::WrappedLayer;

/// `x: T[B, S, …] → T[B, S, …']`: applies the same layer, with the same weights, to every time step.
///
/// All steps pass through the layer at once, as a batch of `B · S`. A batch normalization inside therefore uses the
/// statistics of all steps, whereas Keras's normalizes step by step. Weights: those of the layer, under its name.
///
/// ```
/// use systole_nn::layers::{conv2d, time_distributed};
/// let of_each_frame = time_distributed(conv2d(16, 3));
/// assert!(of_each_frame.check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeDistributed {
    /// Wrapped layer. Required.
    pub layer: WrappedLayer,
}

impl TimeDistributed {
    fn call_as(&self, cx: &mut Cx, inputs: &[Tensor], trains: bool) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            let [batch, steps, rest @ ..] = x.shape().dims() else {
                return Err(unfit("TimeDistributed", "sequences [B, S, …]", x.ty())
                    .hint("put reshape([steps, features]) before the layer"));
            };
            if rest.is_empty() || *steps == 0 {
                return Err(unfit("TimeDistributed", "at least one step with features [B, S, …]", x.ty())
                    .hint("put reshape([steps, features]) before the layer"));
            }
            let inner = self.layer.of("TimeDistributed")?.clone().trainable(trains);
            let all = x.reshape([&[batch * steps], rest].concat());
            let y = cx.scope(&WrappedLayer::name(&inner), |cx| inner.call(cx, &[all]));
            if y.is_poisoned() {
                return Ok(y);
            }
            Ok(y.reshape([&[*batch, *steps], &y.shape()[1..]].concat()))
        })
    }
}

impl Arguments for TimeDistributed {
    fn check(&self) -> Result<()> {
        self.layer.of("TimeDistributed").map(|_| ())
    }

    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_as(cx, inputs, false)
    }
}

impl Layer for TimeDistributed {
    named!("TimeDistributed");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_as(cx, inputs, true)
    }

    masked!(First);

    fn decoding(&self) -> Result<IncrementalDecoding> {
        Ok(IncrementalDecoding::Positionwise)
    }
}

/// `x: T[B, S, …] → T[B, S, …']`: applies the same layer to every time step. Arguments: [`TimeDistributed`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::{conv2d, time_distributed}, Model};
/// let layer = time_distributed(conv2d(4, 3).padding("same"));
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [10, 28, 28, 1])])?;
/// assert_eq!(output.shape.dims(), [10, 28, 28, 4]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn time_distributed(layer: impl Into<LayerSpec>) -> LayerSpec {
    let layer = layer.into();
    LayerSpec::of(TimeDistributed { layer: WrappedLayer::new(layer.clone()) }).with_mistakes_of(&layer)
}

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let weights = &["own/kernel", "own/bias"];
    vec![LayerSample::new(time_distributed(dense(3).name("own")), SEQUENCE, &[2, 7, 3], weights, FLAT)]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "time_distributed", "class": "TimeDistributed", "x_shape": [2, 3, 4, 3, 2], "kwargs": {"layer": {"class_name": "Conv2D", "config": {"filters": 2, "kernel_size": 2}}}}
]"#;
