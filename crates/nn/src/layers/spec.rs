//! [`LayerSpec`]: a layer with its name in its place in a model; its JSON form; errors that name the nearest argument.
//!
//! Setters, model files and configuration tables all go through one path: the layer's arguments as a JSON object,
//! one of them replaced, read back. So all three know the same arguments and say the same about wrong ones.

use super::*;
use crate::nearest::{nearest, unknown};
use serde::Deserialize;
use serde_json::{Map, json};
use std::sync::Arc;

macro_rules! built_in {
    ($($(#[$doc:meta])* $class:ident($layer:ty)),* $(,)?) => {
        /// The layers that model files can hold without help. Closed: nothing registers itself here.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "class_name", content = "config")]
        pub enum BuiltIn {
            $($(#[$doc])* $class($layer)),*
        }

        /// Class names of the built-in layers.
        pub const LAYER_NAMES: &[&str] = &[$(stringify!($class)),*];

        impl BuiltIn {
            /// The layer.
            pub fn layer(&self) -> &dyn Layer {
                self.arguments()
            }

            fn arguments(&self) -> &dyn Arguments {
                match self {
                    $(BuiltIn::$class(l) => l),*
                }
            }

            /// The layer of a class with every argument at its default; required ones are 0.
            pub fn with_defaults(class: &str) -> Option<BuiltIn> {
                match class {
                    $(stringify!($class) => Some(BuiltIn::$class(Default::default())),)*
                    _ => None,
                }
            }

            /// This class with other arguments.
            fn reread(&self, config: Value) -> serde_json::Result<BuiltIn> {
                match self {
                    $(BuiltIn::$class(_) => Ok(BuiltIn::$class(serde_json::from_value(config)?))),*
                }
            }
        }

        $(impl From<$layer> for LayerSpec {
            fn from(layer: $layer) -> LayerSpec {
                LayerSpec::new(Kind::BuiltIn(BuiltIn::$class(layer)))
            }
        })*
    };
}

built_in!(
    /// Weighted sums of all features.
    Dense(Dense),
    /// Convolution over images.
    Conv2D(Conv2D),
    /// Convolution of each channel on its own.
    DepthwiseConv2D(DepthwiseConv2D),
    /// Greatest pixel of each window.
    MaxPooling2D(MaxPooling2D),
    /// Mean pixel of each window.
    AveragePooling2D(AveragePooling2D),
    /// Greatest pixel of the image.
    GlobalMaxPooling2D(GlobalMaxPooling2D),
    /// Mean pixel of the image.
    GlobalAveragePooling2D(GlobalAveragePooling2D),
    /// Features in one dimension.
    Flatten(Flatten),
    /// Features in another shape.
    Reshape(Reshape),
    /// An activation function.
    Activation(ActivationLayer),
    /// max(x, 0) with options.
    ReLU(ReLU),
    /// A line with a kink at 0.
    LeakyReLU(LeakyReLU),
    /// Exponential below 0.
    ELU(ELU),
    /// Probabilities along an axis.
    Softmax(Softmax),
    /// Random zeros while training.
    Dropout(Dropout),
    /// Features normalised over the batch.
    BatchNormalization(BatchNormalization),
    /// Samples normalised over their features.
    LayerNormalization(LayerNormalization),
    /// Vectors by number.
    Embedding(Embedding),
    /// A factor and an offset.
    Rescaling(Rescaling),
    /// Sum of inputs.
    Add(Add),
    /// Difference of two inputs.
    Subtract(Subtract),
    /// Product of inputs.
    Multiply(Multiply),
    /// Mean of inputs.
    Average(Average),
    /// Greatest of inputs.
    Maximum(Maximum),
    /// Least of inputs.
    Minimum(Minimum),
    /// Inputs joined.
    Concatenate(Concatenate),
    /// A border of zeros.
    ZeroPadding2D(ZeroPadding2D),
    /// Long short-term memory.
    LSTM(LSTM),
    /// Gated recurrent unit.
    GRU(GRU),
    /// A plain recurrent layer.
    SimpleRNN(SimpleRNN),
    /// Attention of several heads.
    MultiHeadAttention(MultiHeadAttention),
    /// Attention and a feed-forward network, each with a residual and a normalisation.
    TransformerBlock(TransformerBlock),
    /// Vectors by place in the sequence.
    PositionEmbedding(PositionEmbedding),
    /// Vectors by number, and back.
    ReversibleEmbedding(ReversibleEmbedding),
);

impl BuiltIn {
    fn class(&self) -> &'static str {
        self.layer().class_name()
    }

    fn config(&self) -> Map<String, Value> {
        match self.layer().config() {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// This layer with one argument replaced.
    fn with(&self, key: &str, value: Value) -> Result<BuiltIn> {
        let mut config = self.config();
        let Some(slot) = config.get_mut(key) else {
            let known: Vec<&str> = config.keys().map(String::as_str).collect();
            return Err(unknown(&format!("{} has no argument `{key}`", self.class()), key, &known));
        };
        let shown = value.to_string();
        *slot = value;
        self.reread(Value::Object(config)).map_err(|e| {
            let what = format!("{}'s argument `{key}` cannot be {shown}", self.class());
            Error::new(ErrorKind::Config, what).because(e.to_string())
        })
    }
}

/// A built-in layer or a user's.
#[derive(Clone, Debug)]
pub enum Kind {
    /// One of [`LAYER_NAMES`].
    BuiltIn(BuiltIn),
    /// A layer from outside; model files need its constructor to load it.
    Custom(Arc<dyn Layer>),
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
    name: Option<String>,
    kind: Kind,
    trainable: bool,
    remat: bool,
    mistakes: Vec<Error>,
}

impl LayerSpec {
    fn new(kind: Kind) -> LayerSpec {
        LayerSpec { name: None, kind, trainable: true, remat: false, mistakes: Vec::new() }
    }

    /// A layer of your own.
    pub fn custom(layer: impl Layer + 'static) -> LayerSpec {
        LayerSpec::new(Kind::Custom(Arc::new(layer)))
    }

    /// What it is.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The layer.
    pub fn layer(&self) -> &dyn Layer {
        match &self.kind {
            Kind::BuiltIn(b) => b.layer(),
            Kind::Custom(l) => l.as_ref(),
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

    /// Builds the layer's part of a graph.
    pub fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        if self.remat {
            let builder = cx.builder().clone();
            return builder.rematerialized(|| self.call_kind(cx, inputs));
        }
        self.call_kind(cx, inputs)
    }

    fn call_kind(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        match &self.kind {
            // Keras: a frozen batch normalisation uses its moving statistics even while training.
            Kind::BuiltIn(BuiltIn::BatchNormalization(b)) if !self.trainable => b.call_as(cx, inputs, false),
            _ => self.layer().call(cx, inputs),
        }
    }

    /// Errors with the first argument that was given wrongly.
    pub fn check(&self) -> Result<()> {
        if let Some(e) = self.mistakes.first() {
            return Err(e.clone());
        }
        if let Some(name) = self.name.as_deref().filter(|n| n.is_empty() || n.contains('/')) {
            let what = format!("`{name}` cannot be the name of a {}", self.class_name());
            return Err(Error::new(ErrorKind::Config, what)
                .because("it is one part of the paths of weights, which `/` separates"));
        }
        match &self.kind {
            Kind::BuiltIn(b) => b.arguments().check(),
            Kind::Custom(_) => Ok(()),
        }
    }

    /// Replaces one argument, or remembers why that cannot be.
    #[track_caller]
    pub(super) fn set(mut self, key: &str, value: Value) -> LayerSpec {
        let changed = match &self.kind {
            Kind::BuiltIn(b) => b.with(key, value),
            Kind::Custom(l) => Err(Error::new(
                ErrorKind::Config,
                format!("{} takes no argument `{key}` here", l.class_name()),
            )
            .hint("set it in the layer's own constructor")),
        };
        match changed {
            Ok(b) => self.kind = Kind::BuiltIn(b),
            Err(e) => {
                let caller = std::panic::Location::caller();
                self.mistakes.push(e.at(format!("{}:{}", caller.file(), caller.line())));
            }
        }
        self
    }

    /// For model files: `{"class_name": "Conv2D", "name": "c1", "trainable": true, "remat": false,
    /// "config": {…}}`.
    pub fn to_json(&self) -> Value {
        json!({
            "class_name": self.class_name(),
            "name": self.name,
            "trainable": self.trainable,
            "remat": self.remat,
            "config": self.layer().config(),
        })
    }

    /// From a model file. Arguments that are absent have their defaults.
    ///
    /// # Errors
    /// When the class or a key is unknown (names the nearest) or a value is wrong.
    pub fn from_json(value: &Value, custom: &CustomLayers) -> Result<LayerSpec> {
        let Value::Object(map) = value else {
            return Err(Error::new(ErrorKind::Config, format!("a layer is an object, not {value}")));
        };
        const KEYS: [&str; 5] = ["class_name", "name", "trainable", "remat", "config"];
        if let Some(key) = map.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(unknown(&format!("a layer has no key `{key}`"), key, &KEYS));
        }
        let Some(class) = map.get("class_name").and_then(Value::as_str) else {
            return Err(Error::new(ErrorKind::Config, "a layer has no class_name"));
        };
        let config = map.get("config").unwrap_or(&Value::Null);
        let mut spec = match custom.find(class) {
            Some(constructor) => LayerSpec::new(Kind::Custom(constructor(config)?)),
            None => LayerSpec::new(Kind::BuiltIn(built_in_from(class, config, custom)?)),
        };
        spec.take_place(map)?;
        spec.check()?;
        Ok(spec)
    }

    /// From a table of a configuration file: the layer's arguments, `name`, `trainable` and `remat` side by side.
    /// `class` is Keras's class or its snake case: `Conv2D` or `conv2d`.
    ///
    /// ```
    /// use serde_json::json;
    /// use systole_nn::layers::LayerSpec;
    /// let c = LayerSpec::from_table("conv2d", &json!({"filters": 64, "kernel_size": 3, "name": "c1"})).unwrap();
    /// assert_eq!(c.class_name(), "Conv2D");
    /// let e = LayerSpec::from_table("Conv2D", &json!({"filtres": 64})).unwrap_err().to_string();
    /// assert!(e.contains("did you mean `filters`"), "{e}");
    /// ```
    pub fn from_table(class: &str, table: &Value) -> Result<LayerSpec> {
        let Value::Object(keys) = table else {
            return Err(Error::new(
                ErrorKind::Config,
                format!("the arguments of {class} are no table: {table}"),
            ));
        };
        let known = LAYER_NAMES.iter().find(|c| **c == class || snake_case(c) == class);
        let Some(mut built_in) = known.and_then(|c| BuiltIn::with_defaults(c)) else {
            return Err(unknown(&format!("there is no layer `{class}`"), class, LAYER_NAMES));
        };
        for (key, value) in keys.iter().filter(|(k, _)| !["name", "trainable", "remat"].contains(&k.as_str()))
        {
            built_in = built_in.with(key, value.clone())?;
        }
        let mut spec = LayerSpec::new(Kind::BuiltIn(built_in));
        spec.take_place(keys)?;
        spec.check()?;
        Ok(spec)
    }

    /// Name and flags from an object that has them beside other keys.
    fn take_place(&mut self, keys: &Map<String, Value>) -> Result<()> {
        let wrong_type = |key: &str, value: &Value| {
            Error::new(ErrorKind::Config, format!("{}'s `{key}` cannot be {value}", self.class_name()))
        };
        let flag = |key: &str, default: bool| match keys.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(wrong_type(key, other).because("it takes true or false")),
        };
        let name = match keys.get("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(s)) => Some(s.clone()),
            Some(other) => return Err(wrong_type("name", other).because("it takes a text")),
        };
        (self.name, self.trainable, self.remat) = (name, flag("trainable", true)?, flag("remat", false)?);
        Ok(())
    }
}

fn built_in_from(class: &str, config: &Value, custom: &CustomLayers) -> Result<BuiltIn> {
    let Some(mut built_in) = BuiltIn::with_defaults(class) else {
        let known: Vec<&str> = LAYER_NAMES.iter().copied().chain(custom.names()).collect();
        return Err(Error::new(ErrorKind::Config, format!("there is no layer class `{class}`")).hint(
            format!(
                "did you mean `{}`? A layer of your own: pass its constructor in CustomLayers",
                nearest(class, &known)
            ),
        ));
    };
    match config {
        Value::Null => {}
        Value::Object(keys) => {
            for (key, value) in keys {
                built_in = built_in.with(key, value.clone())?;
            }
        }
        other => {
            let what = format!("the config of {class} is no object: {other}");
            return Err(Error::new(ErrorKind::Config, what));
        }
    }
    Ok(built_in)
}

/// Keras's `to_snake_case`: `MaxPooling2D` is `max_pooling2d`, `LeakyReLU` is `leaky_re_lu`.
fn snake_case(class: &str) -> String {
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

/// Makes a layer of the user's from its [`Layer::config`].
pub type LayerConstructor = fn(&Value) -> Result<Arc<dyn Layer>>;

/// Constructors of layers that model files mention and Systole does not have.
///
/// ```
/// use std::sync::Arc;
/// use systole_nn::{Cx, Layer, layers::CustomLayers};
/// use systole_ir::Tensor;
/// #[derive(Debug)]
/// struct Twice;
/// impl Layer for Twice {
///     fn class_name(&self) -> &'static str { "Twice" }
///     fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor { &inputs[0] * 2.0 }
/// }
/// let custom = CustomLayers::new().with("Twice", |_| Ok(Arc::new(Twice)));
/// assert_eq!(custom.names().collect::<Vec<_>>(), ["Twice"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CustomLayers(Vec<(String, LayerConstructor)>);

impl CustomLayers {
    /// None.
    pub fn new() -> CustomLayers {
        CustomLayers::default()
    }

    /// Adds the constructor of a class. It wins over a built-in layer of that name.
    pub fn with(mut self, class: &str, constructor: LayerConstructor) -> CustomLayers {
        self.0.push((class.into(), constructor));
        self
    }

    /// Class names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    fn find(&self, class: &str) -> Option<LayerConstructor> {
        self.0.iter().rev().find(|(name, _)| name == class).map(|(_, f)| *f)
    }
}
