//! [`LayerSpec`]: a layer with its name in a model, and the setters of arguments that several layers have.
//!
//! Setters, model files and configuration tables all go through one path: the layer's arguments as a JSON object,
//! one of them replaced, read back. So all three know the same arguments and say the same about wrong ones.

use super::built_in::*;
use crate::layer::adapter::{Adapters, is_adapter};
use crate::layer::quantizer::Quantizer;
use crate::setters::setters;
use serde_json::json;
use std::panic::Location;
use std::sync::Arc;
use systole_ir::user_line;
use systole_runtime::{Buffer, Params};

/// A built-in layer or a user's.
#[derive(Clone, Debug)]
pub enum LayerKind {
    /// One of [`LAYER_NAMES`](super::LAYER_NAMES).
    BuiltIn(BuiltIn),
    /// A layer from outside; model files need its constructor to load it.
    Custom(Arc<dyn Layer>),
    /// A model, and the weights that it brings, by their paths in it.
    Model(Arc<dyn NestedModel>, Params<Buffer>),
}

/// A model in the place of a layer: an [`Architecture`](crate::Architecture).
pub trait NestedModel: Layer {
    /// Errors where it cannot be a layer, or with the first argument of its layers that was given wrongly.
    fn check(&self) -> Result<()>;

    /// As [`Layer::call`], where none of its weights trains.
    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor;

    /// Whether the layer with the weight of this path trains.
    fn trains(&self, path: &str) -> bool;

    /// What the weight of this path starts as, where a model inside brings it.
    fn start(&self, path: &str) -> Option<&Buffer>;

    /// Its layers with their names.
    fn layers(&self) -> Vec<(&str, &LayerSpec)>;

    /// How many outputs it has.
    fn outputs(&self) -> usize;
}

/// A layer in its place in a model: its name, what it is, whether it trains.
///
/// Setters have the names of Keras's arguments. One that the layer does not have, or a wrong value, is remembered and
/// surfaces from [`LayerSpec::check`], which models call when they are built.
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
    /// Where a user's program made or applied it.
    asked: Option<&'static Location<'static>>,
}

impl LayerSpec {
    /// A built-in layer that the caller asked for.
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

    /// Remembers the caller, for errors, where it is a line of a user's program.
    #[track_caller]
    pub(crate) fn asked_here(mut self) -> LayerSpec {
        let caller = Location::caller();
        if user_line(caller).is_some() {
            self.asked = Some(caller);
        }
        self
    }

    /// A layer of your own.
    #[track_caller]
    pub fn custom(layer: impl Layer + 'static) -> LayerSpec {
        LayerSpec::new(LayerKind::Custom(Arc::new(layer))).asked_here()
    }

    /// A model as a layer, with weights that it brings.
    #[track_caller]
    pub(crate) fn of_model(model: impl NestedModel + 'static, weights: Params<Buffer>) -> LayerSpec {
        LayerSpec::new(LayerKind::Model(Arc::new(model), weights)).asked_here()
    }

    /// The model that it is.
    pub(crate) fn nested(&self) -> Option<&dyn NestedModel> {
        match &self.kind {
            LayerKind::Model(model, _) => Some(&**model),
            _ => None,
        }
    }

    /// Whether its weight of this path trains, as far as layers say.
    pub(crate) fn trains(&self, path: &str) -> bool {
        self.trainable
            && match &self.adapters {
                Some(own) if !own.others_train || own.adapts(path) || is_adapter(path) => own.trains(path),
                _ => self.nested().is_none_or(|model| model.trains(path)),
            }
    }

    /// With these adapters, or with none.
    pub(crate) fn with_adapters(self, adapters: Option<Adapters>) -> LayerSpec {
        LayerSpec { adapters: adapters.map(Arc::new), ..self }
    }

    /// Its adapters.
    pub(crate) fn adapters(&self) -> Option<&Adapters> {
        self.adapters.as_deref()
    }

    /// Trained for eight bits in this way, or not.
    pub(crate) fn with_quantizer(self, quantizer: Option<Quantizer>) -> LayerSpec {
        LayerSpec { quantizer: quantizer.map(Arc::new), ..self }
    }

    /// How it is trained for eight bits.
    pub(crate) fn quantizer(&self) -> Option<&Quantizer> {
        self.quantizer.as_deref()
    }

    /// Without what [`Model::enable_quantization`](crate::Model::enable_quantization) added.
    pub fn without_quantization(self) -> LayerSpec {
        self.with_quantizer(None)
    }

    /// What its weight of this path starts as, where a model brings it.
    pub(crate) fn start(&self, path: &str) -> Option<&Buffer> {
        match &self.kind {
            LayerKind::Model(model, weights) => weights.get(path).or_else(|| model.start(path)),
            _ => None,
        }
    }

    /// What it is.
    pub fn kind(&self) -> &LayerKind {
        &self.kind
    }

    /// The layer.
    pub fn layer(&self) -> &dyn Layer {
        match &self.kind {
            LayerKind::BuiltIn(b) => b.layer(),
            LayerKind::Custom(l) => l.as_ref(),
            LayerKind::Model(model, _) => as_layer(&**model),
        }
    }

    /// `Conv2D`.
    pub fn class_name(&self) -> &'static str {
        self.layer().class_name()
    }

    /// The name it was given.
    pub fn given_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Keras's name for one without: the class in snake case, `max_pooling2d`.
    pub fn default_name(&self) -> String {
        snake_case(self.class_name())
    }

    /// Whether the optimizer may change its weights.
    pub fn is_trainable(&self) -> bool {
        self.trainable
    }

    /// Whether the backward pass computes it again.
    pub fn is_remat(&self) -> bool {
        self.remat
    }

    /// Names the layer: the first part of its weights' paths.
    pub fn name(mut self, name: impl Into<String>) -> LayerSpec {
        self.name = Some(name.into());
        self
    }

    /// Whether the optimizer may change its weights. Default: true.
    pub fn trainable(mut self, yes: bool) -> LayerSpec {
        self.trainable = yes;
        self
    }

    /// Whether the backward pass computes the layer again from its inputs instead of keeping what is inside it: less
    /// memory for more time, the same results. Default: false.
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

    /// Low-rank adapters beside each `kernel` (or `embeddings`) of the layer, which itself does not train any more:
    /// `kernel + alpha / rank · A · B` with `lora_kernel_a: [in, rank]` (he_uniform) and `lora_kernel_b: [rank, out]` (zeros).
    /// Biases go on training, as in Keras. Alpha is the rank; [`LayerSpec::lora_alpha`] sets another. Of a whole model:
    /// [`Model::enable_lora`](crate::Model::enable_lora). Source: Hu et al. 2021.
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
            self.mistakes.push(wrong(self.class_name(), "a rank of its adapters of at least 1", rank));
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

    /// What the product of the adapters is multiplied by, over their rank: Keras's `lora_alpha`.
    pub fn lora_alpha(mut self, alpha: f64) -> LayerSpec {
        match (self.adapters.as_deref().cloned(), alpha.is_finite() && alpha > 0.0) {
            (Some(own), true) => return self.with_adapters(Some(Adapters { alpha, ..own })),
            (None, _) => self.mistakes.push(
                Error::new(ErrorKind::Config, format!("this {} has no adapters", self.class_name()))
                    .hint("call enable_lora(rank) first"),
            ),
            (_, false) => self.mistakes.push(wrong(self.class_name(), "a lora_alpha above 0", alpha)),
        }
        self
    }

    /// Builds the layer's part of a graph. Which steps count goes on from the inputs to the output, as the layer's kind has it.
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

    /// As [`LayerSpec::call_kind`], at the levels of eight bits where the layer is trained for those.
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

    /// Errors with the first argument that was given wrongly.
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
            let what = format!("`{name}` cannot be the name of a {}", self.class_name());
            return Err(Error::new(ErrorKind::Config, what)
                .because("it is one part of the paths of weights, which `/` separates"));
        }
        match &self.kind {
            LayerKind::BuiltIn(b) => b.arguments().check(),
            LayerKind::Custom(_) => Ok(()),
            LayerKind::Model(model, _) => model.check(),
        }
    }

    /// With another value of one argument.
    pub(crate) fn with_argument(self, key: &str, value: Value) -> LayerSpec {
        self.set(key, value)
    }

    /// Replaces one argument, or remembers why that cannot be.
    #[track_caller]
    pub(super) fn set(mut self, key: &str, value: Value) -> LayerSpec {
        let changed = match &self.kind {
            LayerKind::BuiltIn(b) => b.with(key, value),
            LayerKind::Custom(_) | LayerKind::Model(..) => Err(Error::new(
                ErrorKind::Config,
                format!("{} takes no argument `{key}` here", self.class_name()),
            )
            .hint("set it in the layer's own constructor")),
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

    /// What was said wrongly of a layer inside of this one is wrong here, too.
    pub(super) fn with_mistakes_of(mut self, inner: &LayerSpec) -> LayerSpec {
        self.mistakes.extend(inner.mistakes.iter().cloned());
        self
    }

    /// For model files: `{"class_name": "Conv2D", "name": "c1", "trainable": true, "remat": false,
    /// "config": {…}}`.
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

    /// The layer's arguments without rules and masks that it has not: files of earlier versions and theirs of today are the same bytes.
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
            ];
            let rules = [rules.as_slice(), &of_parts, &constraints].concat();
            keys.retain(|key, value| !value.is_null() || !rules.contains(&key.as_str()));
            let of_masks = ["mask_zero", "zero_output_for_mask"];
            keys.retain(|key, value| *value != Value::Bool(false) || !of_masks.contains(&key.as_str()));
        }
        config
    }
}

fn as_layer(model: &dyn NestedModel) -> &dyn Layer {
    model
}

// Arguments that layers of several files have; all others stand beside their layer.
setters!(LayerSpec:
    /// Function applied at the end of Dense and convolutions.
    activation: impl Into<Value> as Value;
    /// Whether Dense or a convolution adds a bias.
    use_bias: bool as bool;
    /// How the kernel of Dense or Conv2D starts.
    kernel_initializer: impl Into<Value> as Value;
    /// How a bias starts.
    bias_initializer: impl Into<Value> as Value;
    /// Penalty on the kernel of Dense or a convolution: "l1", "l2", "l1_l2" or a [`Regularizer`](crate::Regularizer).
    kernel_regularizer: impl Into<Value> as Value;
    /// Penalty on a bias.
    bias_regularizer: impl Into<Value> as Value;
    /// Penalty on the output of Dense or a convolution.
    activity_regularizer: impl Into<Value> as Value;
    /// Where the kernel of Dense or a convolution is brought back to after each step: "max_norm", "non_neg", "unit_norm",
    /// "min_max_norm" or a [`Constraint`](crate::Constraint).
    kernel_constraint: impl Into<Value> as Value;
    /// Where a bias is brought back to after each step.
    bias_constraint: impl Into<Value> as Value;
    /// Steps of a window: `2` or `(2, 1)`.
    strides: impl Into<SizeArgument> as SizeArgument;
    /// "valid" or "same"; of Conv1D "causal", too.
    padding: impl Into<Value> as Value;
    /// The dimension of Softmax, Concatenate and BatchNormalization; one or several of LayerNormalization.
    axis: impl Into<Axes> as Axes;
    /// Whether a normalisation has a gamma; Rescaling's factor.
    scale: impl Into<Value> as Value;
    /// What fraction a recurrent layer drops of its inputs, an attention of its weights, a transformer block of both.
    dropout: f64 as f64;
    /// Whether a place of an attention sees only itself and those before it.
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
