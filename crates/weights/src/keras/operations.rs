//! Converts Keras operations that are not layers (`x * 2`, `keras.ops.relu(x)`) to layers.

use super::config::wrong;
use serde_json::{Map, Value, json};
use systole_ir::Result;
use systole_nn::layers::{LayerSpec, permute, rescaling, reshape};

/// Operations of two values that are layers too.
const MERGES: [&str; 5] = ["Add", "Subtract", "Multiply", "Maximum", "Minimum"];

/// Class of an operation, its activation, and an argument with the only value that the activation supports.
type ActivationOperation = (&'static str, &'static str, Option<(&'static str, f64)>);

/// Operations that are activations.
const ACTIVATIONS: [ActivationOperation; 20] = [
    ("Relu", "relu", None),
    ("Relu6", "relu6", None),
    ("Sigmoid", "sigmoid", None),
    ("Tanh", "tanh", None),
    ("Exp", "exponential", None),
    ("Silu", "silu", None),
    ("Softplus", "softplus", None),
    ("Softsign", "softsign", None),
    ("Selu", "selu", None),
    ("HardSigmoid", "hard_sigmoid", None),
    ("HardSilu", "hard_silu", None),
    ("HardTanh", "hard_tanh", None),
    ("LogSigmoid", "log_sigmoid", None),
    ("TanhShrink", "tanh_shrink", None),
    ("SparsePlus", "sparse_plus", None),
    ("SparseSigmoid", "sparse_sigmoid", None),
    ("Softmax", "softmax", Some(("axis", -1.0))),
    ("LogSoftmax", "log_softmax", Some(("axis", -1.0))),
    ("Celu", "celu", Some(("alpha", 1.0))),
    ("Squareplus", "squareplus", Some(("b", 4.0))),
];

/// Whether a layer of a functional model is an operation of `keras.ops`. Legacy `.h5` files do not name modules, but only
/// layers have a `trainable` or a `dtype` there.
pub(super) fn is_operation(layer: &Value, node: &Value) -> bool {
    match layer.get("module").and_then(Value::as_str) {
        Some(module) => module.starts_with("keras.") && module.contains(".ops"),
        None => {
            let config = layer.get("config").and_then(Value::as_object);
            node.get("args").is_some()
                && config.is_some_and(|c| !c.contains_key("trainable") && !c.contains_key("dtype"))
        }
    }
}

fn is_tensor(value: &Value) -> bool {
    value.get("class_name").is_some_and(|class| class == "__keras_tensor__")
}

/// Returns a number: plain, or serialized by NumPy.
fn number(value: &Value) -> Option<f64> {
    let is_numpy = value.get("class_name").is_some_and(|class| class == "__numpy__");
    let inner = is_numpy.then(|| value.get("config").and_then(|c| c.get("value")).and_then(Value::as_f64));
    value.as_f64().or(inner.flatten())
}

/// Returns the layer that computes an operation; `None` if a layer of this class computes the same.
///
/// # Errors
/// If no layer computes it; names it.
pub(super) fn layer(class: &str, config: &Map<String, Value>, node: &Value) -> Result<Option<LayerSpec>> {
    let args = node.get("args").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if class == "Concatenate" || MERGES.contains(&class) && args.iter().all(is_tensor) {
        return Ok(None);
    }
    let found = match args {
        [x] if is_tensor(x) => of_one(class, config)?,
        [x, other] if is_tensor(x) => number(other).and_then(|n| of_number(class, n, false)),
        [other, x] if is_tensor(x) => number(other).and_then(|n| of_number(class, n, true)),
        _ => None,
    };
    let name = config.get("name").and_then(Value::as_str).unwrap_or(class);
    match found {
        Some(found) => Ok(Some(found.name(name))),
        None => Err(wrong(format!("`{class}` ({name}) is an operation, not a layer")).because(
            "of operations, only +, −, ×, ÷ with numbers, +, −, ×, maximum, minimum of two values, concatenate, \
             reshape, transpose and activations are supported",
        )),
    }
}

/// Returns the layer of `x ∘ number`, or of `number ∘ x` if the number is the first operand.
fn of_number(class: &str, number: f64, is_first: bool) -> Option<LayerSpec> {
    match class {
        "Add" => Some(rescaling(1.0).offset(number)),
        "Multiply" => Some(rescaling(number)),
        "Subtract" if is_first => Some(rescaling(-1.0).offset(number)),
        "Subtract" => Some(rescaling(1.0).offset(-number)),
        "Divide" | "TrueDivide" if !is_first && number != 0.0 => Some(rescaling(1.0 / number)),
        _ => None,
    }
}

/// Returns the layer of an operation of one value.
fn of_one(class: &str, config: &Map<String, Value>) -> Result<Option<LayerSpec>> {
    let argument = |key: &str| config.get(key).and_then(Value::as_f64);
    let flag = |key: &str, default: bool| config.get(key).and_then(Value::as_bool).unwrap_or(default);
    let list = |key: &str| -> Option<Vec<i64>> {
        config.get(key)?.as_array()?.iter().map(|v| v.as_i64().or(v.is_null().then_some(-1))).collect()
    };
    let activation = match class {
        "Negative" => return Ok(Some(rescaling(-1.0))),
        // The batch is the first size.
        "Reshape" => {
            return Ok(list("newshape").filter(|s| s.first() == Some(&-1)).map(|s| reshape(&s[1..])));
        }
        "Transpose" => {
            let axes = list("axes").filter(|axes| axes.first() == Some(&0));
            return Ok(axes.map(|axes| permute(axes[1..].iter().map(|&a| a as usize).collect::<Vec<_>>())));
        }
        "Gelu" => json!({"gelu": {"approximate": flag("approximate", true)}}),
        "LeakyRelu" => json!({"leaky_relu": {"negative_slope": argument("negative_slope").unwrap_or(0.2)}}),
        "Elu" => json!({"elu": {"alpha": argument("alpha").unwrap_or(1.0)}}),
        _ => {
            let row = ACTIVATIONS.iter().find(|(name, ..)| *name == class);
            let fits = |(_, _, default): &&ActivationOperation| {
                default.is_none_or(|(key, value)| argument(key).is_none_or(|found| found == value))
            };
            let Some((_, activation, _)) = row.filter(fits) else { return Ok(None) };
            Value::from(*activation)
        }
    };
    LayerSpec::from_table("Activation", &json!({"activation": activation})).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;
    use systole_testing::assert_error;

    #[test]
    fn operations_with_numbers_are_layers_and_others_are_refused_by_name() {
        let x = json!({"class_name": "__keras_tensor__", "config": {}});
        let of = |class: &str, config: Value, args: &[&Value]| {
            layer(class, config.as_object().unwrap(), &json!({ "args": args }))
                .map(|l| l.map(|l| l.to_json()))
        };
        let named = json!({"name": "n"});
        let rescaled = |scale: f64, offset: f64| Some(rescaling(scale).offset(offset).name("n").to_json());
        let two = json!(2.0);
        assert_eq!(of("Add", named.clone(), &[&x, &two]).unwrap(), rescaled(1.0, 2.0));
        assert_eq!(of("Subtract", named.clone(), &[&two, &x]).unwrap(), rescaled(-1.0, 2.0));
        assert_eq!(of("TrueDivide", named.clone(), &[&x, &two]).unwrap(), rescaled(0.5, 0.0));
        assert_eq!(of("Add", named.clone(), &[&x, &x]).unwrap(), None);
        assert!(of("Gelu", json!({"name": "n"}), &[&x]).unwrap().unwrap().to_string().contains("true"));
        for (class, config, args) in [
            ("Softmax", json!({"name": "n", "axis": 1}), &[&x][..]),
            ("TrueDivide", named.clone(), &[&two, &x]),
            ("Power", named.clone(), &[&x, &two]),
            ("Transpose", json!({"name": "n", "axes": [1, 0]}), &[&x]),
        ] {
            assert_error(&of(class, config, args).unwrap_err(), ErrorKind::Data, &[class, "--model"]);
        }
    }
}
