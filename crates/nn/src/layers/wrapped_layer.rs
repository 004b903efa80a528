//! [`WrappedLayer`]: the inner layer of a wrapper layer such as TimeDistributed.

use super::built_in::*;
use super::from_config::CustomLayers;
use super::spec::{LayerKind, LayerSpec};
use crate::json::one_line;
use serde::de::Error as _;
use serde::{Deserializer, Serializer};

/// Inner layer of a wrapper. Model files store it as `{"class_name": "LSTM", "config": {…}}`, configurations as `{ type
/// = "LSTM", units = 32 }`.
///
/// ```
/// use systole_nn::layers::{dense, LayerSpec};
/// use serde_json::json;
/// let inner = json!({"layer": {"type": "Dense", "units": 4}});
/// let each = LayerSpec::from_table("TimeDistributed", &inner)?;
/// assert_eq!(each.to_json(), systole_nn::layers::time_distributed(dense(4)).to_json());
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct WrappedLayer(Option<Box<LayerSpec>>);

impl WrappedLayer {
    /// Wraps a layer.
    pub(super) fn new(layer: LayerSpec) -> WrappedLayer {
        WrappedLayer(Some(Box::new(layer)))
    }

    /// Returns the inner layer, or an error if it is missing or cannot be wrapped.
    pub(super) fn of(&self, class: &str) -> Result<&LayerSpec> {
        let Some(spec) = &self.0 else {
            return Err(wrong(class, "a layer", "none")
                .hint("give the inner layer: layer = { type = \"Dense\", units = 8 }"));
        };
        if !matches!(spec.kind(), LayerKind::BuiltIn(_)) {
            return Err(wrong(class, "a built-in layer", spec.class_name())
                .because("model files cannot restore a wrapped custom layer or model")
                .hint("write one custom layer that does the work of both"));
        }
        if !spec.is_trainable() {
            return Err(wrong(class, "a trainable inner layer", "a frozen one")
                .hint(format!("set trainable(false) on the {class} instead of its inner layer")));
        }
        spec.check()?;
        Ok(spec)
    }

    /// Name of the inner layer in weight paths.
    pub(super) fn name(spec: &LayerSpec) -> String {
        spec.given_name().map_or_else(|| spec.default_name(), str::to_string)
    }
}

impl PartialEq for WrappedLayer {
    fn eq(&self, other: &WrappedLayer) -> bool {
        let json = |w: &WrappedLayer| w.0.as_ref().map(|spec| spec.to_json());
        json(self) == json(other)
    }
}

impl Serialize for WrappedLayer {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.as_ref().map(|spec| spec.to_json()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WrappedLayer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<WrappedLayer, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let spec = match &mut value {
            Value::Null => return Ok(WrappedLayer(None)),
            Value::Object(keys) if keys.contains_key("class_name") => {
                LayerSpec::from_json(&value, &CustomLayers::new())
            }
            Value::Object(keys) => match keys.remove("type") {
                Some(Value::String(class)) => LayerSpec::from_table(&class, &value),
                _ => return Err(D::Error::custom("expected a layer: { type = \"Dense\", units = 8 }")),
            },
            _ => return Err(D::Error::custom("expected a layer: { type = \"Dense\", units = 8 }")),
        };
        spec.map(WrappedLayer::new).map_err(|e| D::Error::custom(one_line(&e)))
    }
}
