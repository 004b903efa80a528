//! Creates layers by class name from configurations and model files, and registers custom layers, losses and metrics.

use super::built_in::*;
use super::spec::{LayerKind, LayerSpec, snake_case};
use super::{DEFAULTS, LAYER_NAMES};
use crate::did_you_mean::{nearest, nearest_three, unknown};
use crate::layer::adapter::Adapters;
use crate::layer::quantizer::Quantizer;
use crate::loss::{Loss, UserLoss};
use crate::metric::{Metric, UserMetric};
use serde::{Deserializer, de};
use serde_json::Map;
use std::sync::Arc;

impl BuiltIn {
    /// Returns the built-in layer of a class with default arguments; required ones are 0.
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
    /// Creates a layer from a model file's JSON. Missing arguments have their defaults.
    ///
    /// # Errors
    /// If the class or a key is unknown (suggests the nearest name) or a value is invalid.
    pub fn from_json(value: &Value, custom: &CustomLayers) -> Result<LayerSpec> {
        let Value::Object(map) = value else {
            return Err(err!(Config, "expected a layer object, got {value}"));
        };
        const KEYS: [&str; 7] = ["class_name", "name", "trainable", "remat", "config", "lora", "quantize"];
        if let Some(key) = map.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(unknown(&format!("unknown key `{key}` of a layer"), key, &KEYS));
        }
        let Some(class) = map.get("class_name").and_then(Value::as_str) else {
            return Err(err!(Config, "a layer object lacks class_name"));
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

    /// Creates a layer from a table of a configuration file, which holds the layer's arguments, `name`, `trainable` and
    /// `remat`. `class` is Keras's class or its snake case: `Conv2D` or `conv2d`.
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
            return Err(err!(Config, "expected a table of arguments for {class}, got {table}"));
        };
        let known = LAYER_NAMES.iter().find(|c| **c == class || snake_case(c) == class);
        let Some(mut built_in) = known.and_then(|c| BuiltIn::with_defaults(c)) else {
            let e = err!(Config, "unknown layer `{class}`");
            return Err(e.hint(nearest_three(class, LAYER_NAMES, "systole layers")));
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

    /// Sets name and flags from an object of a model file.
    pub(crate) fn placed(mut self, value: &Value) -> Result<LayerSpec> {
        if let Value::Object(keys) = value {
            self.take_place(keys)?;
        }
        self.check()?;
        Ok(self)
    }

    /// Reads name and flags from an object that also holds other keys.
    fn take_place(&mut self, keys: &Map<String, Value>) -> Result<()> {
        let wrong_type = |key: &str, value: &Value| {
            err!(Config, "invalid value for {}'s `{key}`: {value}", self.class_name())
        };
        let flag = |key: &str, default: bool| match keys.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(wrong_type(key, other).because("expected the value true or false")),
        };
        let name = match keys.get("name") {
            None | Some(Value::Null) => None,
            Some(Value::String(s)) => Some(s.clone()),
            Some(other) => return Err(wrong_type("name", other).because("expected a string")),
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
                    return Err(
                        wrong_type("lora", lora).because("rank and alpha of a LoRA layer must be above 0")
                    );
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
        return Err(err!(Config, "unknown layer class `{class}`").hint(match nearest(class, &known) {
            "" => "pass its constructor in CustomObjects".into(),
            meant => {
                format!("did you mean `{meant}`? For a custom layer, pass its constructor in CustomObjects")
            }
        }));
    };
    match config {
        Value::Null => {}
        Value::Object(keys) => {
            for (key, value) in keys {
                built_in = built_in.with(key, value.clone())?;
            }
        }
        other => {
            return Err(err!(Config, "expected an object as config of {class}, got {other}"));
        }
    }
    Ok(built_in)
}

/// Constructor of a custom layer from its [`Layer::config`].
pub type LayerConstructor = fn(&Value) -> Result<Arc<dyn Layer>>;

/// Registry of custom layers, losses and metrics for loading model files. Keras's `custom_objects`.
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

/// Former name of [`CustomObjects`].
pub type CustomLayers = CustomObjects;

impl CustomObjects {
    /// Creates an empty registry of custom objects.
    pub fn new() -> CustomObjects {
        CustomObjects::default()
    }

    /// Adds the constructor of a custom layer class. It overrides a built-in layer of that name.
    pub fn with(mut self, class: &str, constructor: LayerConstructor) -> CustomObjects {
        self.layers.push((class.into(), constructor));
        self
    }

    /// Adds a custom loss: a [`CustomLoss`](crate::loss::CustomLoss) or a [`Loss::custom`]. It gets the arguments in
    /// the file.
    pub fn loss(mut self, loss: impl Into<Loss>) -> CustomObjects {
        if let Loss::Custom(own) = loss.into() {
            self.losses.push(own);
        }
        self
    }

    /// Adds a custom metric: a [`CustomMetric`](crate::metric::CustomMetric) or a [`Metric::custom`]. It gets the
    /// arguments in the file.
    pub fn metric(mut self, metric: impl Into<Metric>) -> CustomObjects {
        match metric.into() {
            Metric::Custom(own) => self.metrics.push(own),
            Metric::Loss(loss) => return self.loss(loss),
            _ => {}
        }
        self
    }

    /// Ignores optimizer, loss and metrics of files, so that models load uncompiled: Keras's
    /// `load_model(compile=False)`.
    pub fn uncompiled(mut self) -> CustomObjects {
        self.uncompiled = true;
        self
    }

    /// Class names of the custom layers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(|(name, _)| name.as_str())
    }

    fn find(&self, class: &str) -> Option<LayerConstructor> {
        self.layers.iter().rev().find(|(name, _)| name == class).map(|(_, f)| *f)
    }

    /// Whether models load uncompiled.
    pub(crate) fn leaves_uncompiled(&self) -> bool {
        self.uncompiled
    }

    /// Resolves a loss named in a file.
    pub(crate) fn known_loss(&self, mut loss: Loss) -> Result<Loss> {
        if let Loss::Custom(own) = loss.base_mut() {
            *own = own.found_in(&self.losses)?;
        }
        Ok(loss)
    }

    /// Resolves a metric named in a file.
    pub(crate) fn known_metric(&self, metric: Metric) -> Result<Metric> {
        Ok(match metric {
            Metric::Custom(own) => Metric::Custom(own.found_in(&self.metrics)?),
            Metric::Loss(loss) => Metric::Loss(self.known_loss(loss)?),
            built_in => built_in,
        })
    }
}
