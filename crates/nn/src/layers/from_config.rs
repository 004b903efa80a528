//! Layers by their names, from configurations and model files; and what these name that is a user's own.

use super::built_in::*;
use super::spec::{LayerKind, LayerSpec, snake_case};
use super::{DEFAULTS, LAYER_NAMES};
use crate::did_you_mean::{nearest, unknown};
use crate::layer::adapter::Adapters;
use crate::layer::quantizer::Quantizer;
use crate::loss::{Loss, UserLoss};
use crate::metric::{Metric, UserMetric};
use serde::{Deserializer, de};
use serde_json::Map;
use std::sync::Arc;

impl BuiltIn {
    /// The layer of a class with every argument at its default; required ones are 0.
    pub fn with_defaults(class: &str) -> Option<BuiltIn> {
        let at = LAYER_NAMES.iter().position(|name| *name == class)?;
        Some(DEFAULTS[at]())
    }
}

impl<'de> Deserialize<'de> for BuiltIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<BuiltIn, D::Error> {
        #[derive(Deserialize)]
        struct StoredLayer {
            class_name: String,
            config: Value,
        }
        let StoredLayer { class_name, config } = StoredLayer::deserialize(deserializer)?;
        let Some(layer) = BuiltIn::with_defaults(&class_name) else {
            return Err(de::Error::unknown_variant(&class_name, LAYER_NAMES));
        };
        layer.reread(config).map_err(de::Error::custom)
    }
}

impl LayerSpec {
    /// From a model file. Arguments that are absent have their defaults.
    ///
    /// # Errors
    /// When the class or a key is unknown (names the nearest) or a value is wrong.
    pub fn from_json(value: &Value, custom: &CustomLayers) -> Result<LayerSpec> {
        let Value::Object(map) = value else {
            return Err(Error::new(ErrorKind::Config, format!("a layer is an object, not {value}")));
        };
        const KEYS: [&str; 7] = ["class_name", "name", "trainable", "remat", "config", "lora", "quantize"];
        if let Some(key) = map.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(unknown(&format!("a layer has no key `{key}`"), key, &KEYS));
        }
        let Some(class) = map.get("class_name").and_then(Value::as_str) else {
            return Err(Error::new(ErrorKind::Config, "a layer has no class_name"));
        };
        let config = map.get("config").unwrap_or(&Value::Null);
        let mut spec = match custom.find(class) {
            Some(constructor) => LayerSpec::new(LayerKind::Custom(constructor(config)?)),
            None => LayerSpec::new(LayerKind::BuiltIn(built_in_from(class, config, custom)?)),
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
        let mut spec = LayerSpec::new(LayerKind::BuiltIn(built_in));
        spec.take_place(keys)?;
        spec.check()?;
        Ok(spec)
    }

    /// With the name and flags of an object of a model file.
    pub(crate) fn placed(mut self, value: &Value) -> Result<LayerSpec> {
        if let Value::Object(keys) = value {
            self.take_place(keys)?;
        }
        self.check()?;
        Ok(self)
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
        let adapters = match keys.get("lora").filter(|lora| !lora.is_null()) {
            None => None,
            Some(lora) => {
                let read: serde_json::Result<Adapters> = serde_json::from_value(lora.clone());
                let read = read.map_err(|e| wrong_type("lora", lora).because(e.to_string()))?;
                read.packed
                    .values()
                    .try_for_each(crate::layer::quantized_weight::QuantizedWeightLayout::check)?;
                if read.rank == 0 || read.rank > 1 << 16 || !read.alpha.is_finite() {
                    return Err(wrong_type("lora", lora).because("its rank and alpha must be above 0"));
                }
                Some(Arc::new(read))
            }
        };
        let quantizer = keys.get("quantize").filter(|own| !own.is_null()).map(|own| {
            let read: serde_json::Result<Quantizer> = serde_json::from_value(own.clone());
            read.map(Arc::new).map_err(|e| wrong_type("quantize", own).because(e.to_string()))
        });
        let quantizer = quantizer.transpose()?;
        (self.name, self.trainable, self.remat) = (name, flag("trainable", true)?, flag("remat", false)?);
        self.adapters = adapters;
        self.quantizer = quantizer;
        Ok(())
    }
}

fn built_in_from(class: &str, config: &Value, custom: &CustomLayers) -> Result<BuiltIn> {
    let Some(mut built_in) = BuiltIn::with_defaults(class) else {
        let known: Vec<&str> = LAYER_NAMES.iter().copied().chain(custom.names()).collect();
        return Err(Error::new(ErrorKind::Config, format!("there is no layer class `{class}`")).hint(
            match nearest(class, &known) {
                "" => "pass its constructor in CustomLayers".into(),
                meant => format!(
                    "did you mean `{meant}`? A layer of your own: pass its constructor in CustomLayers"
                ),
            },
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

/// Makes a layer of the user's from its [`Layer::config`].
pub type LayerConstructor = fn(&Value) -> Result<Arc<dyn Layer>>;

/// What model files mention and Systole does not have: layers, losses and metrics of your own. Keras's `custom_objects`.
///
/// ```
/// use std::sync::Arc;
/// use systole_nn::{Cx, Layer, layers::CustomObjects, loss::Loss};
/// use systole_ir::Tensor;
/// #[derive(Debug)]
/// struct Twice;
/// impl Layer for Twice {
///     fn class_name(&self) -> &'static str { "Twice" }
///     fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor { &inputs[0] * 2.0 }
/// }
/// let custom = CustomObjects::new()
///     .with("Twice", |_| Ok(Arc::new(Twice)))
///     .loss(Loss::custom("cubic", |y_true, y_pred| (y_true - y_pred).abs().power(&y_pred.scalar_like(3.0))));
/// assert_eq!(custom.names().collect::<Vec<_>>(), ["Twice"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CustomObjects {
    layers: Vec<(String, LayerConstructor)>,
    losses: Vec<UserLoss>,
    metrics: Vec<UserMetric>,
    uncompiled: bool,
}

/// The name of [`CustomObjects`] when it held layers only.
pub type CustomLayers = CustomObjects;

impl CustomObjects {
    /// None.
    pub fn new() -> CustomObjects {
        CustomObjects::default()
    }

    /// Adds the constructor of a class of layers. It wins over a built-in layer of that name.
    pub fn with(mut self, class: &str, constructor: LayerConstructor) -> CustomObjects {
        self.layers.push((class.into(), constructor));
        self
    }

    /// Adds a loss: a [`CustomLoss`](crate::loss::CustomLoss) or a [`Loss::custom`], with the arguments that files have.
    pub fn loss(mut self, loss: impl Into<Loss>) -> CustomObjects {
        if let Loss::Custom(own) = loss.into() {
            self.losses.push(own);
        }
        self
    }

    /// Adds a metric: a [`CustomMetric`](crate::metric::CustomMetric) or a [`Metric::custom`], with the arguments that files
    /// have.
    pub fn metric(mut self, metric: impl Into<Metric>) -> CustomObjects {
        match metric.into() {
            Metric::Custom(own) => self.metrics.push(own),
            Metric::Loss(loss) => return self.loss(loss),
            _ => {}
        }
        self
    }

    /// Leaves optimizer, loss and metrics of files out: models come uncompiled, as by Keras's `load_model(compile=False)`.
    pub fn uncompiled(mut self) -> CustomObjects {
        self.uncompiled = true;
        self
    }

    /// Class names of the layers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(|(name, _)| name.as_str())
    }

    fn find(&self, class: &str) -> Option<LayerConstructor> {
        self.layers.iter().rev().find(|(name, _)| name == class).map(|(_, f)| *f)
    }

    /// Whether models come without what they were compiled with.
    pub(crate) fn leaves_uncompiled(&self) -> bool {
        self.uncompiled
    }

    /// The loss that a file names.
    pub(crate) fn known_loss(&self, mut loss: Loss) -> Result<Loss> {
        if let Loss::Custom(own) = loss.base_mut() {
            *own = own.found_in(&self.losses)?;
        }
        Ok(loss)
    }

    /// The metric that a file names.
    pub(crate) fn known_metric(&self, metric: Metric) -> Result<Metric> {
        Ok(match metric {
            Metric::Custom(own) => Metric::Custom(own.found_in(&self.metrics)?),
            Metric::Loss(loss) => Metric::Loss(self.known_loss(loss)?),
            built_in => built_in,
        })
    }
}
