//! [`LayerSpec`]: a layer with its name and flags in a model, and the setters of arguments that several layers share.
//!
//! Setters, model files and configuration tables share one code path: the layer's arguments as a JSON object, with one
//! argument replaced and deserialized again. So all three accept the same arguments and report the same errors.

use super::built_in::*;
use crate::layer::adapter::{Adapters, is_adapter};
use crate::layer::quantizer::Quantizer;
use crate::setters::setters;
use serde_json::json;
use std::panic::Location;
use std::sync::Arc;
use systole_ir::{err, user_line};
use systole_runtime::{Buffer, Params};

/// Kind of layer in a model: built-in, custom or nested model.
#[derive(Clone, Debug)]
pub enum LayerKind {
    /// A layer listed in [`LAYER_NAMES`](super::LAYER_NAMES).
    BuiltIn(BuiltIn),
    /// A custom layer; loading a model file requires its constructor.
    Custom(Arc<dyn Layer>),
    /// A nested model with its initial weights, by their paths in it.
    Model(Arc<dyn NestedModel>, Params<Buffer>),
}

/// A model used as a layer: an [`Architecture`](crate::Architecture).
pub trait NestedModel: Layer {
    /// Rejects models that cannot be layers, and reports the first invalid argument of their layers.
    fn check(&self) -> Result<()>;

    /// Like [`Layer::call`], but with all weights frozen.
    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor;

    /// Whether the layer that owns the weight at `path` is trainable.
    fn trains(&self, path: &str) -> bool;

    /// Initial value of the weight at `path`, if a nested model provides it.
    fn start(&self, path: &str) -> Option<&Buffer>;

    /// The model's layers with their names.
    fn layers(&self) -> Vec<(&str, &LayerSpec)>;

    /// Number of outputs.
    fn outputs(&self) -> usize;
}

/// A layer in a model, with its name and whether it is trainable.
///
/// Setters are named after Keras's arguments. An argument that the layer lacks, or an invalid value, is recorded and
/// reported by [`LayerSpec::check`], which models call when they are built.
///
/// ```
/// use systole_nn::layers::{conv2d, LayerSpec};
/// let c: LayerSpec = conv2d(64, (3, 3)).name("c1").strides((2, 2)).trainable(false);
/// assert_eq!(c.default_name(), "conv2d");
/// let e = conv2d(64, (3, 3)).momentum(0.9).check().unwrap_err().to_string();
/// assert!(e.contains("Conv2D has no argument `momentum`"), "{e}");
/// ```
#[derive(Clone, Debug)]
pub struct LayerSpec {
    pub(super) name: Option<String>,
    kind: LayerKind,
    pub(super) trainable: bool,
    pub(super) remat: bool,
    pub(super) adapters: Option<Arc<Adapters>>,
    pub(super) quantizer: Option<Arc<Quantizer>>,
    mistakes: Vec<Error>,
    /// Source location where the user's program created or applied it.
    asked: Option<&'static Location<'static>>,
}

impl LayerSpec {
    /// Creates a spec of a built-in layer and records the caller's location.
    #[track_caller]
    pub(super) fn of(layer: impl NamedLayer + 'static) -> LayerSpec {
        LayerSpec::new(LayerKind::BuiltIn(BuiltIn::of(layer))).asked_here()
    }

    pub(super) fn new(kind: LayerKind) -> LayerSpec {
        LayerSpec {
            name: None,
            kind,
            trainable: true,
            remat: false,
            adapters: None,
            quantizer: None,
            mistakes: Vec::new(),
            asked: None,
        }
    }

    /// Records the caller's location for errors, if it is in a user's program.
    #[track_caller]
    pub(crate) fn asked_here(mut self) -> LayerSpec {
        let caller = Location::caller();
        if user_line(caller).is_some() {
            self.asked = Some(caller);
        }
        self
    }

    /// Creates a spec of a custom layer.
    #[track_caller]
    pub fn custom(layer: impl Layer + 'static) -> LayerSpec {
        LayerSpec::new(LayerKind::Custom(Arc::new(layer))).asked_here()
    }

    /// Creates a spec of a nested model with its initial weights.
    #[track_caller]
    pub(crate) fn of_model(model: impl NestedModel + 'static, weights: Params<Buffer>) -> LayerSpec {
        LayerSpec::new(LayerKind::Model(Arc::new(model), weights)).asked_here()
    }

    /// Returns the nested model, if it is one.
    pub(crate) fn nested(&self) -> Option<&dyn NestedModel> {
        match &self.kind {
            LayerKind::Model(model, _) => Some(&**model),
            _ => None,
        }
    }

    /// Whether its weight at `path` is trainable according to the layers.
    pub(crate) fn trains(&self, path: &str) -> bool {
        self.trainable
            && match &self.adapters {
                Some(own) if !own.others_train || own.adapts(path) || is_adapter(path) => own.trains(path),
                _ => self.nested().is_none_or(|model| model.trains(path)),
            }
    }

    /// Replaces the LoRA adapters.
    pub(crate) fn with_adapters(self, adapters: Option<Adapters>) -> LayerSpec {
        LayerSpec { adapters: adapters.map(Arc::new), ..self }
    }

    /// LoRA adapters.
    pub(crate) fn adapters(&self) -> Option<&Adapters> {
        self.adapters.as_deref()
    }

    /// Replaces the quantizer for quantization-aware training.
    pub(crate) fn with_quantizer(self, quantizer: Option<Quantizer>) -> LayerSpec {
        LayerSpec { quantizer: quantizer.map(Arc::new), ..self }
    }

    /// Quantizer for quantization-aware training.
    pub(crate) fn quantizer(&self) -> Option<&Quantizer> {
        self.quantizer.as_deref()
    }

    /// Removes the fake quantization that [`Model::enable_quantization`](crate::Model::enable_quantization) added.
    pub fn without_quantization(self) -> LayerSpec {
        self.with_quantizer(None)
    }

    /// Initial value of its weight at `path`, if a nested model provides it.
    pub(crate) fn start(&self, path: &str) -> Option<&Buffer> {
        match &self.kind {
            LayerKind::Model(model, weights) => weights.get(path).or_else(|| model.start(path)),
            _ => None,
        }
    }

    /// Returns the kind of layer: built-in, custom or nested model.
    pub fn kind(&self) -> &LayerKind {
        &self.kind
    }

    /// Returns the layer as a trait object.
    pub fn layer(&self) -> &dyn Layer {
        match &self.kind {
            LayerKind::BuiltIn(b) => b.layer(),
            LayerKind::Custom(l) => l.as_ref(),
            LayerKind::Model(model, _) => as_layer(&**model),
        }
    }

    /// Returns the layer's class name: `Conv2D`.
    pub fn class_name(&self) -> &'static str {
        self.layer().class_name()
    }

    /// Returns the layer name set by the user, if any.
    pub fn given_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns Keras's default name for the layer: the class in snake case, `max_pooling2d`.
    pub fn default_name(&self) -> String {
        snake_case(self.class_name())
    }

    /// Whether the optimizer updates the layer's weights.
    pub fn is_trainable(&self) -> bool {
        self.trainable
    }

    /// Whether the backward pass recomputes the layer (rematerialization).
    pub fn is_remat(&self) -> bool {
        self.remat
    }

    /// Sets the layer's name, the first component of its weights' paths.
    pub fn name(mut self, name: impl Into<String>) -> LayerSpec {
        self.name = Some(name.into());
        self
    }

    /// Sets whether the optimizer updates the layer's weights. Default: true.
    pub fn trainable(mut self, yes: bool) -> LayerSpec {
        self.trainable = yes;
        self
    }

    /// Sets whether the backward pass recomputes the layer from its inputs (rematerialization, gradient checkpointing)
    /// instead of storing intermediate values: less memory, more time, same results. Default: false.
    ///
    /// ```
    /// use systole_nn::layers::{transformer_block, LayerSpec};
    /// let block: LayerSpec = transformer_block(3072, 12).normalize_first(true).remat(true);
    /// assert!(block.check().is_ok());
    /// ```
    pub fn remat(mut self, yes: bool) -> LayerSpec {
        self.remat = yes;
        self
    }

    /// Adds LoRA adapters to each `kernel` (or `embeddings`) of the layer and freezes the kernel itself: `kernel +
    /// alpha / rank · A · B` with `lora_kernel_a: [in, rank]` (he_uniform) and `lora_kernel_b: [rank, out]` (zeros).
    ///
    /// Biases stay trainable, as in Keras. Alpha defaults to the rank; [`LayerSpec::lora_alpha`] changes it. For a
    /// whole model: [`Model::enable_lora`](crate::Model::enable_lora). Source: Hu et al. 2021.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dense, Model};
    /// let mut model = Model::sequential([dense(6).enable_lora(2).lora_alpha(4.0)]);
    /// model.build(&[TensorType::new(F32, [5])])?;
    /// assert!(model.summary().contains("Trainable: 28; not trainable: 30"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[track_caller]
    pub fn enable_lora(mut self, rank: usize) -> LayerSpec {
        if rank == 0 {
            self.mistakes.push(wrong(self.class_name(), "a LoRA rank of at least 1", rank));
        }
        if let Err(e) = self.layer().adapters() {
            self.mistakes.push(e);
        }
        self.with_adapters(Some(Adapters {
            rank,
            alpha: rank as f64,
            weights: None,
            others_train: true,
            packed: Default::default(),
        }))
    }

    /// Sets the LoRA alpha: the product of the adapters is multiplied by alpha / rank. Keras's `lora_alpha`.
    pub fn lora_alpha(mut self, alpha: f64) -> LayerSpec {
        match (self.adapters.as_deref().cloned(), alpha.is_finite() && alpha > 0.0) {
            (Some(own), true) => return self.with_adapters(Some(Adapters { alpha, ..own })),
            (None, _) => self.mistakes.push(
                err!(Config, "cannot set lora_alpha: this {} has no LoRA adapters", self.class_name())
                    .hint("call enable_lora(rank) first"),
            ),
            (_, false) => self.mistakes.push(wrong(self.class_name(), "a lora_alpha above 0", alpha)),
        }
        self
    }

    /// Builds the layer's part of a graph and propagates masks according to the layer.
    pub fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let y = match self.remat {
            true => {
                let builder = cx.builder().clone();
                builder.rematerialized(|| self.call_rounded(cx, inputs))
            }
            false => self.call_rounded(cx, inputs),
        };
        if cx.has_masks()
            && cx.mask_of(&y).is_none()
            && let Some(mask) = self.layer().masks().ok().and_then(|masks| masks.of(cx, inputs, &y))
        {
            cx.set_mask(&y, &mask);
        }
        y
    }

    /// Like [`LayerSpec::call_kind`], with fake quantization if the layer has a quantizer.
    fn call_rounded(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let Some(own) = &self.quantizer else {
            let y = self.call_kind(cx, inputs);
            if cx.has_levels() {
                cx.hand_on_levels(self.layer().lowering().ok().as_ref(), inputs, &y);
            }
            return y;
        };
        let own = &own.of_call(inputs).map_or_else(|| own.clone(), Arc::new);
        cx.with_quantizer(own, |cx| {
            let inputs = own.read(cx, inputs);
            let y = self.call_kind(cx, &inputs);
            cx.hand_on_levels(self.layer().lowering().ok().as_ref(), &inputs, &y);
            own.give(cx, &y)
        })
    }

    fn call_kind(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let builder = cx.builder().clone();
        let rests = !self.trainable || self.adapters().is_some_and(Adapters::freezes_all);
        builder.asked_at(self.asked, || {
            cx.with_adapters(self.adapters.as_ref(), |cx| match &self.kind {
                LayerKind::BuiltIn(b) if rests => cx.frozen(|cx| b.arguments().call_frozen(cx, inputs)),
                LayerKind::Model(model, _) if rests => cx.frozen(|cx| model.call_frozen(cx, inputs)),
                _ => self.layer().call(cx, inputs),
            })
        })
    }

    /// Reports the first invalid argument of the layer.
    pub fn check(&self) -> Result<()> {
        if let Some(e) = self.mistakes.first() {
            return Err(e.clone());
        }
        self.check_arguments().map_err(|e| match self.asked {
            Some(place) => e.at(format!("{}:{}", place.file(), place.line())),
            None => e,
        })
    }

    fn check_arguments(&self) -> Result<()> {
        if let Some(name) = self.name.as_deref().filter(|n| n.is_empty() || n.contains('/')) {
            return Err(err!(Config, "invalid layer name `{name}` for a {}", self.class_name())
                .because("the name is one component of weight paths, which `/` separates"));
        }
        match &self.kind {
            LayerKind::BuiltIn(b) => b.arguments().check(),
            LayerKind::Custom(_) => Ok(()),
            LayerKind::Model(model, _) => model.check(),
        }
    }

    /// Replaces the value of one argument.
    pub(crate) fn with_argument(self, key: &str, value: Value) -> LayerSpec {
        self.set(key, value)
    }

    /// Replaces one argument, or records the error.
    #[track_caller]
    pub(super) fn set(mut self, key: &str, value: Value) -> LayerSpec {
        let changed = match &self.kind {
            LayerKind::BuiltIn(b) => b.with(key, value),
            LayerKind::Custom(_) | LayerKind::Model(..) => Err(err!(
                Config,
                "cannot set argument `{key}` of {}: it is not a built-in layer",
                self.class_name()
            )
            .hint("set the argument in the layer's constructor")),
        };
        match changed {
            Ok(b) => self.kind = LayerKind::BuiltIn(b),
            Err(e) => {
                let caller = Location::caller();
                self.mistakes.push(e.at(format!("{}:{}", caller.file(), caller.line())));
            }
        }
        self
    }

    /// Copies the recorded errors of a wrapped layer.
    pub(super) fn with_mistakes_of(mut self, inner: &LayerSpec) -> LayerSpec {
        self.mistakes.extend(inner.mistakes.iter().cloned());
        self
    }

    /// Returns the layer as JSON for model files: `{"class_name": "Conv2D", "name": "c1", "trainable": true, "remat":
    /// false, "config": {…}}`.
    pub fn to_json(&self) -> Value {
        let mut all = json!({
            "class_name": self.class_name(),
            "name": self.name,
            "trainable": self.trainable,
            "remat": self.remat,
            "config": self.written_config(),
        });
        if let Some(own) = self.adapters() {
            all["lora"] = json!(own);
        }
        if let Some(own) = self.quantizer() {
            all["quantize"] = json!(own);
        }
        all
    }

    /// Returns the arguments, without unused regularizers, constraints and masks, so that files stay byte-identical to
    /// those of earlier versions.
    fn written_config(&self) -> Value {
        let mut config = self.layer().config();
        if let Value::Object(keys) = &mut config {
            let rules = ["kernel_regularizer", "bias_regularizer", "activity_regularizer"];
            let of_parts = ["depthwise_regularizer", "pointwise_regularizer"];
            let constraints = [
                "kernel_constraint",
                "bias_constraint",
                "depthwise_constraint",
                "pointwise_constraint",
                "noise_shape",
                "padding_token",
            ];
            let rules = [rules.as_slice(), &of_parts, &constraints].concat();
            keys.retain(|key, value| !value.is_null() || !rules.contains(&key.as_str()));
            let of_masks = ["mask_zero", "zero_output_for_mask", "use_attention_bias"];
            keys.retain(|key, value| *value != Value::Bool(false) || !of_masks.contains(&key.as_str()));
        }
        config
    }
}

fn as_layer(model: &dyn NestedModel) -> &dyn Layer {
    model
}

// Arguments that layers of several files share; all others are next to their layer.
setters!(LayerSpec:
    /// Activation of the output of Dense and convolutions.
    activation: impl Into<Value> as Value;
    /// Whether Dense or a convolution adds a bias.
    use_bias: bool as bool;
    /// Initializer of the kernel of Dense and convolutions.
    kernel_initializer: impl Into<Value> as Value;
    /// Initializer of the bias.
    bias_initializer: impl Into<Value> as Value;
    /// Penalty on the kernel of Dense or a convolution: "l1", "l2", "l1_l2" or a [`Regularizer`](crate::Regularizer).
    kernel_regularizer: impl Into<Value> as Value;
    /// Penalty on the bias.
    bias_regularizer: impl Into<Value> as Value;
    /// Penalty on the output of Dense or a convolution.
    activity_regularizer: impl Into<Value> as Value;
    /// Constraint on the kernel of Dense or a convolution, applied after each step: "max_norm", "non_neg", "unit_norm",
    /// "min_max_norm" or a [`Constraint`](crate::Constraint).
    kernel_constraint: impl Into<Value> as Value;
    /// Constraint on the bias, applied after each step.
    bias_constraint: impl Into<Value> as Value;
    /// Strides of a window: `2` or `(2, 1)`.
    strides: impl Into<SizeArgument> as SizeArgument;
    /// Padding mode: "valid", "same" or, for Conv1D, "causal".
    padding: impl Into<Value> as Value;
    /// Axis of Softmax, Concatenate and BatchNormalization; one or several for LayerNormalization.
    axis: impl Into<Axes> as Axes;
    /// Whether a normalization layer has a gamma; for Rescaling, the factor.
    scale: impl Into<Value> as Value;
    /// Dropout rate of a recurrent layer's inputs, of attention weights, or of a transformer block.
    dropout: f64 as f64;
    /// Whether each position of an attention layer attends only to itself and earlier positions.
    use_causal_mask: bool as bool;
);

/// Keras's `to_snake_case`: `MaxPooling2D` is `max_pooling2d`, `LeakyReLU` is `leaky_re_lu`.
pub(super) fn snake_case(class: &str) -> String {
    let chars: Vec<char> = class.chars().collect();
    let mut name = String::with_capacity(class.len() + 4);
    for (i, c) in chars.iter().enumerate() {
        let word = c.is_ascii_uppercase()
            && i > 0
            && (chars[i - 1].is_ascii_lowercase() || chars.get(i + 1).is_some_and(char::is_ascii_lowercase));
        if word {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}
