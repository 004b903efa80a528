//! Finds all layers of a Keras model that do not exist here, so that one error names them.

use super::config::{self, NETWORKS, OTHER_CLASSES, arguments, name_of, text};
use super::operations;
use serde_json::{Map, Value};
use systole_ir::{Error, Result, TensorType, err};
use systole_nn::Architecture;
use systole_nn::did_you_mean::nearest;
use systole_nn::layers::{BuiltIn, LAYER_NAMES};

/// Maximum layers that are named for each class.
const MOST_NAMES: usize = 3;

/// Returns the layers, and the type of one sample of each input.
///
/// # Errors
/// If layers are unsupported (names them all), or one has an unsupported argument.
pub(super) fn architecture(model: &Value) -> Result<(Architecture, Vec<TensorType>)> {
    let unknown = UnknownLayers::of(model);
    match (unknown.error(), config::architecture(model)) {
        (Some(e), Err(_)) => Err(e),
        (Some(e), _) if unknown.has_foreign => Err(e),
        (_, made) => made,
    }
}

/// Layers of one class that does not exist here.
struct UnknownClass {
    class: String,
    layers: Vec<String>,
    count: usize,
}

/// Layers that do not exist here, by class.
#[derive(Default)]
struct UnknownLayers {
    found: Vec<UnknownClass>,
    /// Whether a class is of another package than Keras, although a layer here may have its name.
    has_foreign: bool,
}

impl UnknownLayers {
    fn of(model: &Value) -> UnknownLayers {
        let mut all = UnknownLayers::default();
        all.visit_network(model);
        all
    }

    fn visit_network(&mut self, model: &Value) {
        let config = model.get("config");
        let layers =
            config.and_then(|config| config.get("layers").or(Some(config))).and_then(Value::as_array);
        layers.into_iter().flatten().for_each(|layer| self.visit(layer, None));
    }

    /// Checks a layer, and those that it wraps; `outer` is the name of the wrapper.
    fn visit(&mut self, layer: &Value, outer: Option<&str>) {
        let Ok((class, config)) = arguments(layer) else { return };
        let name = outer.or_else(|| name_of(layer).ok()).unwrap_or(class);
        if NETWORKS.contains(&class) {
            return self.visit_network(layer);
        }
        if is_foreign(layer) {
            self.has_foreign = true;
            return self.add(class, name);
        }
        let node = layer.get("inbound_nodes").and_then(|nodes| nodes.get(0)).unwrap_or(&Value::Null);
        if OTHER_CLASSES.contains(&class) || operations::is_operation(layer, node) {
            return;
        }
        match (class, config.get("cell")) {
            ("RNN", Some(cell)) => cells(cell).into_iter().for_each(|cell| self.visit_cell(cell, name)),
            _ if BuiltIn::with_defaults(class).is_none() => self.add(class, name),
            _ => wrapped(config).for_each(|inner| self.visit(inner, Some(name))),
        }
    }

    fn visit_cell(&mut self, cell: &Value, name: &str) {
        let class = text(cell, "class_name").unwrap_or_default();
        let is_known = BuiltIn::with_defaults(class.strip_suffix("Cell").unwrap_or(class)).is_some();
        if is_foreign(cell) || !is_known {
            self.has_foreign |= is_foreign(cell);
            self.add(class, name);
        }
    }

    fn add(&mut self, class: &str, layer: &str) {
        let known = self.found.iter().position(|other| other.class == class);
        let at = known.unwrap_or_else(|| {
            self.found.push(UnknownClass { class: class.into(), layers: Vec::new(), count: 0 });
            self.found.len() - 1
        });
        let found = &mut self.found[at];
        found.count += 1;
        if found.layers.len() < MOST_NAMES {
            found.layers.push(layer.into());
        }
    }

    /// Returns the error that names them; `None` if all exist here.
    fn error(&self) -> Option<Error> {
        let one = |found: &UnknownClass| {
            let more = match found.count - found.layers.len() {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            format!("`{}` ({}{more})", found.class, found.layers.join(", "))
        };
        let names: Vec<String> = self.found.iter().map(one).collect();
        let similar = |found: &UnknownClass| match nearest(&found.class, LAYER_NAMES) {
            "" => None,
            similar => Some(format!("`{similar}` is similar to `{}`", found.class)),
        };
        let similar: Vec<String> = self.found.iter().filter_map(similar).collect();
        if names.is_empty() {
            return None;
        }
        let e = err!(Data, "unsupported classes of layers: {}", names.join(", "));
        let e = if similar.is_empty() { e } else { e.because(similar.join("; ")) };
        Some(e.hint_command("remove the layer, or pass your own model with --model"))
    }
}

/// Whether a class is of another package than Keras.
fn is_foreign(layer: &Value) -> bool {
    let module = text(layer, "module").is_some_and(|m| {
        m != "keras" && m != "builtins" && !m.starts_with("keras.") && !m.starts_with("tf_keras")
    });
    module
        || text(layer, "registered_name")
            .is_some_and(|name| name.contains('>') && !name.starts_with("Keras>"))
}

/// Returns the layers that a layer wraps.
fn wrapped(config: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    ["layer", "backward_layer"]
        .into_iter()
        .filter_map(|key| config.get(key))
        .filter(|inner| inner.is_object())
}

/// Returns the cells of an `RNN`: one, or the stacked ones.
fn cells(cell: &Value) -> Vec<&Value> {
    let stacked = cell.get("config").and_then(|config| config.get("cells")).and_then(Value::as_array);
    stacked.map_or_else(|| vec![cell], |cells| cells.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_unknown_layers_are_named_at_once() {
        let layer = |class: &str, name: &str| json!({"class_name": class, "config": {"name": name}});
        let cell = json!({"class_name": "MyCell", "config": {"units": 2}});
        let mut foreign = layer("Dense", "dense_of_mine");
        foreign["module"] = Value::Null;
        foreign["registered_name"] = "mine>Dense".into();
        let model = json!({"class_name": "Sequential", "config": {"layers": [
            layer("InputLayer", "x"), layer("Dense", "fine"), layer("Foo", "a"), layer("Denze", "b"), layer("Foo", "c"),
            {"class_name": "Functional", "config": {"name": "inner", "layers": [layer("Deep", "d")]}},
            {"class_name": "TimeDistributed", "config": {"name": "t", "layer": layer("Inside", "e")}},
            {"class_name": "RNN", "config": {"name": "r", "cell": cell}}, foreign,
        ]}});
        let what = architecture(&model).unwrap_err().to_string();
        for named in [
            "`Foo` (a, c)",
            "`Denze` (b)",
            "`Deep` (d)",
            "`Inside` (t)",
            "`MyCell` (r)",
            "`Dense` (dense_of_mine)",
            "`Dense` is similar to `Denze`",
        ] {
            assert!(what.contains(named), "{what}");
        }
        assert!(!what.contains("fine"), "{what}");
    }
}
