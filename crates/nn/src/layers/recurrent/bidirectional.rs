//! Bidirectional wrapper: runs a recurrent layer forward and backward over a sequence.

use super::rnn::lstm;
use crate::layer::lowering::RecurrentLowering;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::layers::wrapped_layer::WrappedLayer;
use crate::setters::setters;

/// `x: T[B, S, K] → T[B, N]`, or `T[B, S, N]` with the layer's `return_sequences`: merges a forward and a backward
/// recurrent layer.
///
/// With `merge_mode` "concat" N is twice the layer's units. Both output sequences are in the order of the input.
/// Weights: `forward_lstm/…`, `backward_lstm/…`, named after the layer; a `backward_layer` keeps its own name. Source:
/// Schuster and Paliwal 1997.
///
/// ```
/// use systole_nn::layers::{bidirectional, lstm};
/// assert!(bidirectional(lstm(64).return_sequences(true)).merge_mode("sum").check().is_ok());
/// let e = bidirectional(systole_nn::layers::dense(4)).check().unwrap_err().to_string();
/// assert!(e.contains("Bidirectional needs a layer of LSTM, GRU or SimpleRNN"), "{e}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bidirectional {
    /// Recurrent layer. Required.
    pub layer: WrappedLayer,
    /// How the two outputs are merged. Default: "concat".
    pub merge_mode: MergeMode,
    /// Layer of the backward direction, with `go_backwards`. Default: a copy of `layer`.
    pub backward_layer: WrappedLayer,
}

/// How forward and backward outputs are merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeMode {
    /// Concatenation.
    #[default]
    Concat,
    /// Sum.
    Sum,
    /// Product.
    Mul,
    /// Mean.
    Ave,
}

impl Bidirectional {
    /// Returns the forward and backward layer, or why they are invalid.
    fn both(&self) -> Result<[LayerSpec; 2]> {
        let class = "Bidirectional";
        let forward = self.layer.of(class)?;
        let backward = match self.backward_layer == WrappedLayer::default() {
            true => forward.clone().go_backwards(true),
            false => self.backward_layer.of(class)?.clone(),
        };
        let (there, back) = (recurrent(forward)?, recurrent(&backward)?);
        if there.go_backwards || !back.go_backwards {
            return Err(wrong(
                class,
                "a forward layer without go_backwards and a backward_layer with it",
                "another combination",
            ));
        }
        if there.return_sequences != back.return_sequences {
            return Err(wrong(class, "equal return_sequences in both layers", "different values"));
        }
        Ok([forward.clone(), backward])
    }

    /// Returns the forward and backward layer with their names in weight paths.
    pub fn ways(&self) -> Result<[(String, LayerSpec); 2]> {
        let [forward, backward] = self.both()?;
        let own = |spec: &LayerSpec, way: &str| {
            let name = WrappedLayer::name(spec);
            format!("{way}_{}", name.strip_prefix(&format!("{way}_")).unwrap_or(&name))
        };
        // As in Keras, an explicit backward layer keeps its name.
        let back_name = match self.backward_layer == WrappedLayer::default() {
            true => own(&backward, "backward"),
            false => WrappedLayer::name(&backward),
        };
        Ok([(own(&forward, "forward"), forward), (back_name, backward)])
    }
}

/// Returns the lowering of a wrapped recurrent layer, or an error if it is another layer.
fn recurrent(spec: &LayerSpec) -> Result<RecurrentLowering> {
    match spec.layer().lowering() {
        Ok(LayerLowering::Recurrent(own)) => Ok(own),
        _ => Err(wrong("Bidirectional", "a layer of LSTM, GRU or SimpleRNN", spec.class_name())),
    }
}

impl Arguments for Bidirectional {
    fn check(&self) -> Result<()> {
        self.both().map(|_| ())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 3 || x.dim(1) == 0 || x.dim(2) == 0 {
            let needs = "sequences of at least one step and feature [B, S, K]";
            return Err(unfit("Bidirectional", needs, x.ty())
                .hint("put reshape([steps, features]) or an embedding before the layer"));
        }
        // As in Keras, both directions output 0 at masked steps.
        let zeroed = |spec: LayerSpec| {
            let sequences = recurrent(&spec).is_ok_and(|own| own.return_sequences);
            spec.zero_output_for_mask(sequences)
        };
        let mut run = |(name, spec): (String, LayerSpec)| {
            cx.scope(&name, |cx| zeroed(spec).call(cx, std::slice::from_ref(x)))
        };
        let [forward, backward] = self.ways()?;
        let (there, back) = (run(forward), run(backward));
        let back = if back.rank() == 3 { back.reverse(&[1]) } else { back };
        if self.merge_mode != MergeMode::Concat && there.shape() != back.shape() {
            return Err(wrong(
                "Bidirectional",
                "layers with equal units unless merge_mode is \"concat\"",
                back.ty(),
            ));
        }
        Ok(match self.merge_mode {
            MergeMode::Concat => Tensor::concatenate(&[&there, &back], there.rank() - 1),
            MergeMode::Sum => there + back,
            MergeMode::Mul => there * back,
            MergeMode::Ave => (there + back) * 0.5,
        })
    }
}

impl Layer for Bidirectional {
    named!("Bidirectional", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        let named = |(name, spec): (String, LayerSpec)| recurrent(&spec).map(|own| (name, own));
        let [forward, backward] = self.ways()?;
        Ok(LayerLowering::Bidirectional {
            directions: Box::new([named(forward)?, named(backward)?]),
            join: match self.merge_mode {
                MergeMode::Concat => None,
                MergeMode::Sum => Some(ElementWise::Add),
                MergeMode::Mul => Some(ElementWise::Multiply),
                MergeMode::Ave => Some(ElementWise::Average),
            },
        })
    }
}

/// `x: T[B, S, K] → T[B, N]`, or `T[B, S, N]` with the layer's `return_sequences`: a recurrent layer in both directions.
/// Arguments: [`Bidirectional`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::{bidirectional, lstm}, Model};
/// let layer = bidirectional(lstm(32).return_sequences(true));
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 8])])?;
/// assert_eq!(output.shape.dims(), [16, 64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn bidirectional(layer: impl Into<LayerSpec>) -> LayerSpec {
    let layer = layer.into();
    LayerSpec::of(Bidirectional { layer: WrappedLayer::new(layer.clone()), ..Default::default() })
        .with_mistakes_of(&layer)
}

setters!(LayerSpec:
    /// How Bidirectional merges its outputs: "concat", "sum", "mul" or "ave".
    merge_mode: impl Into<Value> as Value;
);

impl LayerSpec {
    /// Sets the layer of Bidirectional's backward direction; it must have `go_backwards`.
    #[track_caller]
    pub fn backward_layer(self, layer: impl Into<LayerSpec>) -> LayerSpec {
        let layer = layer.into();
        self.set("backward_layer", layer.to_json()).with_mistakes_of(&layer)
    }
}

const BOTH_WAYS: &[&str] = &[
    "forward_lstm/kernel",
    "forward_lstm/recurrent_kernel",
    "forward_lstm/bias",
    "backward_lstm/kernel",
    "backward_lstm/recurrent_kernel",
    "backward_lstm/bias",
];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let mixed = bidirectional(lstm(3)).backward_layer(lstm(5).go_backwards(true).name("backward_lstm"));
    vec![
        LayerSample::new(
            bidirectional(lstm(3).return_sequences(true)),
            SEQUENCE,
            &[2, 7, 6],
            BOTH_WAYS,
            FLAT,
        ),
        LayerSample::new(mixed, SEQUENCE, &[2, 8], BOTH_WAYS, Some(&[2, 0, 4])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "bidirectional", "class": "Bidirectional", "x_shape": [2, 4, 3], "kwargs": {"layer": {"class_name": "LSTM", "config": {"units": 2}}}},
    {"name": "bidirectional_sequences", "class": "Bidirectional", "x_shape": [2, 4, 3], "kwargs": {"layer": {"class_name": "GRU", "config": {"units": 2, "return_sequences": true}}, "merge_mode": "sum"}},
    {"name": "bidirectional_ave", "class": "Bidirectional", "x_shape": [2, 4, 3], "kwargs": {"layer": {"class_name": "SimpleRNN", "config": {"units": 2}}, "merge_mode": "ave"}},
    {"name": "bidirectional_mul", "class": "Bidirectional", "x_shape": [2, 4, 3], "kwargs": {"layer": {"class_name": "SimpleRNN", "config": {"units": 2}}, "merge_mode": "mul"}},
    {"name": "bidirectional_mixed", "class": "Bidirectional", "x_shape": [2, 4, 3], "kwargs": {"layer": {"class_name": "LSTM", "config": {"units": 2}}, "backward_layer": {"class_name": "GRU", "config": {"units": 3, "go_backwards": true}}}}
]"#;
