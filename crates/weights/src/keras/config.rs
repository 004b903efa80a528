//! Converts a Keras model config, Sequential or Functional, to Systole layers.

use serde_json::{Map, Value};
use std::collections::HashMap;
use systole_ir::{DType, Error, ErrorKind, Result, ResultExt, TensorType};
use systole_nn::LayerLowering;
use systole_nn::did_you_mean::nearest;
use systole_nn::layers::{BuiltIn, LAYER_NAMES, LayerSpec};
use systole_nn::{Architecture, Symbol};

/// Maximum number of layers; prevents memory exhaustion by a typo.
const MOST: usize = 3000;
/// Arguments that do not affect what a layer computes with given weights.
const IDLE: [&str; 13] = [
    "dtype",
    "seed",
    "batch_shape",
    "batch_input_shape",
    "sparse",
    "ragged",
    "optional",
    "renorm_momentum",
    "renorm_clipping",
    "autocast",
    "input_length",
    "implementation",
    "noise_shape",
];

fn wrong(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, "cannot convert the Keras model config")
        .because(why)
        .hint_command("define the model in a TOML file and pass it with --model")
}

/// Returns the layers, and the type of one sample of each input.
///
/// # Errors
/// If a layer is unsupported (names it), or has an unsupported argument.
pub(crate) fn architecture(model: &Value) -> Result<(Architecture, Vec<TensorType>)> {
    let class = model.get("class_name").and_then(Value::as_str).unwrap_or_default();
    let config = model.get("config").ok_or_else(|| wrong("it has no config"))?;
    // Keras 2 wrote the layers of a Sequential as a bare list.
    let layers = config.get("layers").or(Some(config)).and_then(Value::as_array);
    let layers = layers.ok_or_else(|| wrong("it has no list of layers"))?;
    if layers.len() > MOST {
        return Err(wrong(format!("it has {} layers; at most {MOST} are supported", layers.len())));
    }
    match class {
        "Sequential" => sequential(layers),
        "Functional" | "Model" => functional(config, layers),
        other => Err(wrong(format!("it is a custom class `{other}`, expected Sequential or Functional"))),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

fn arguments(layer: &Value) -> Result<(&str, &Map<String, Value>)> {
    let class = text(layer, "class_name").ok_or_else(|| wrong("a layer has no class_name"))?;
    let config = layer.get("config").and_then(Value::as_object);
    Ok((class, config.ok_or_else(|| wrong(format!("{class} has no config")))?))
}

/// Returns the type of one sample of an input, from `[null, 28, 28, 1]`.
fn input_type(config: &Map<String, Value>) -> Result<Option<TensorType>> {
    let Some(shape) = config.get("batch_shape").or_else(|| config.get("batch_input_shape")) else {
        return Ok(None);
    };
    let dims = shape.as_array().map(|s| s.iter().skip(1).map(Value::as_u64).collect::<Option<Vec<u64>>>());
    let Some(dims) = dims else { return Ok(None) };
    let dims = dims
        .ok_or_else(|| wrong(format!("an input has the shape {shape}: unknown sizes are not supported")))?;
    let dtype = config.get("dtype").and_then(Value::as_str).map_or(Some(DType::F32), of_name);
    let dtype = dtype.ok_or_else(|| wrong("an input has an unsupported element type"))?;
    let dims: Vec<usize> = dims.into_iter().map(|d| d as usize).collect();
    Ok(Some(TensorType::new(dtype, dims)))
}

fn of_name(name: &str) -> Option<DType> {
    match name {
        "float32" | "float16" | "bfloat16" | "float64" => Some(DType::F32),
        "int32" | "int64" => Some(DType::I32),
        _ => None,
    }
}

fn sequential(layers: &[Value]) -> Result<(Architecture, Vec<TensorType>)> {
    let (mut specs, mut input) = (Vec::new(), None);
    for layer in layers {
        let (class, config) = arguments(layer)?;
        if input.is_none() {
            input = input_type(config)?;
        }
        if class != "InputLayer" {
            specs.push(spec(class, config)?);
        }
    }
    let input = input.ok_or_else(|| wrong("it has no input shape"))?;
    if specs.first().is_some_and(|s| matches!(s.layer().lowering(), Ok(LayerLowering::Embedding { .. }))) {
        let ids = TensorType::new(DType::I32, input.shape.dims());
        return Ok((Architecture::sequential(specs), vec![ids]));
    }
    Ok((Architecture::sequential(specs), vec![input]))
}

/// Converts a Keras class and its arguments to a layer.
fn spec(class: &str, config: &Map<String, Value>) -> Result<LayerSpec> {
    let name = config.get("name").and_then(Value::as_str).unwrap_or(class);
    let place = || format!("layer {name}");
    let Some(known) = BuiltIn::with_defaults(class) else {
        let e = Error::new(ErrorKind::Data, format!("layer {name}: unsupported class {class}"));
        let e = match nearest(class, LAYER_NAMES) {
            "" => e,
            similar => e.because(format!("the most similar supported class is {similar}")),
        };
        return Err(e.hint_command("remove the layer, or pass your own model with --model"));
    };
    let known = known.layer().config();
    let mut kept = Map::new();
    for (key, value) in config {
        let is_known = known.get(key).is_some();
        match key.as_str() {
            "name" | "trainable" => drop(kept.insert(key.clone(), value.clone())),
            // The weights already exist.
            k if k.ends_with("_initializer") || k == "initializer" => {}
            k if k == "activation" || k == "recurrent_activation" => {
                kept.insert(key.clone(), activation(value).at(place)?);
            }
            _ if is_known => drop(kept.insert(key.clone(), value.clone())),
            "data_format" if value.as_str() == Some("channels_last") => {}
            k if IDLE.contains(&k) || k.ends_with("_regularizer") || k.ends_with("_constraint") => {}
            _ if value.is_null() || *value == Value::Bool(false) => {}
            _ => {
                return Err(
                    wrong(format!("{class} does not support the argument `{key}` = {value}")).at(place())
                );
            }
        }
    }
    LayerSpec::from_table(class, &Value::Object(kept)).at(place)
}

/// Converts `"relu"`, or Keras's serialized function.
fn activation(value: &Value) -> Result<Value> {
    match value {
        Value::Null => Ok(Value::from("linear")),
        Value::String(_) => Ok(value.clone()),
        other => match text(other, "config") {
            Some(name) => Ok(Value::from(name)),
            None => Err(wrong(format!("unsupported activation {other}"))),
        },
    }
}

/// A value in a functional model: layer and call index.
type NodeKey = (String, u64);

/// Collects the values that a call's arguments refer to, in order.
fn places(value: &Value, found: &mut Vec<NodeKey>) {
    match value {
        Value::Array(items) => match items.as_slice() {
            // Keras 2 and keras_history of Keras 3: ["dense", 0, 0, …].
            [Value::String(name), Value::Number(call), Value::Number(_), ..] => {
                found.push((name.clone(), call.as_u64().unwrap_or(0)));
            }
            items => items.iter().for_each(|item| places(item, found)),
        },
        Value::Object(map) => match map.get("config").and_then(|c| c.get("keras_history")) {
            Some(history) => places(history, found),
            None => map.values().for_each(|item| places(item, found)),
        },
        _ => {}
    }
}

fn functional(config: &Value, layers: &[Value]) -> Result<(Architecture, Vec<TensorType>)> {
    let mut made: HashMap<NodeKey, Symbol> = HashMap::new();
    let mut types: HashMap<String, TensorType> = HashMap::new();
    let mut waiting: Vec<(&Value, usize)> = Vec::new();
    for layer in layers {
        let (class, arguments) = arguments(layer)?;
        let name = text(layer, "name").or_else(|| arguments.get("name").and_then(Value::as_str));
        let name = name.ok_or_else(|| wrong(format!("a {class} has no name")))?;
        if class == "InputLayer" {
            let ty = input_type(arguments)?.ok_or_else(|| wrong(format!("input {name} has no shape")))?;
            made.insert((name.into(), 0), systole_nn::input_of(name, ty.dtype, ty.shape.dims()));
            types.insert(name.into(), ty);
            continue;
        }
        let calls = layer.get("inbound_nodes").and_then(Value::as_array).map_or(0, Vec::len);
        waiting.extend((0..calls.min(MOST)).map(|call| (layer, call)));
    }
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut left = Vec::new();
        for (layer, call) in waiting {
            if !apply(layer, call, &mut made)? {
                left.push((layer, call));
            }
        }
        if left.len() == before {
            return Err(wrong("its layers depend on each other in a cycle"));
        }
        waiting = left;
    }
    let listed = |key: &str| {
        let mut found = Vec::new();
        places(config.get(key).unwrap_or(&Value::Null), &mut found);
        found
    };
    let (inputs, outputs) = (listed("input_layers"), listed("output_layers"));
    let [output] = &outputs[..] else {
        return Err(wrong(format!("it has {} outputs; only models with one are supported", outputs.len())));
    };
    let symbol =
        |place: &NodeKey| made.get(place).cloned().ok_or_else(|| wrong(format!("unknown layer {}", place.0)));
    let symbols = inputs.iter().map(symbol).collect::<Result<Vec<_>>>()?;
    let types = inputs.iter().filter_map(|(name, _)| types.get(name).cloned()).collect();
    Ok((Architecture::functional(&symbols, &symbol(output)?)?, types))
}

/// Applies the layers of a nested Sequential.
fn chained(layer: &Value, input: &Symbol) -> Result<Symbol> {
    let layers = layer.get("config").and_then(|c| c.get("layers")).and_then(Value::as_array);
    let layers = layers.ok_or_else(|| wrong("a nested Sequential has no list of layers"))?;
    let mut x = input.clone();
    for inner in layers.iter().take(MOST) {
        let (class, config) = arguments(inner)?;
        if class != "InputLayer" {
            x = x.apply(spec(class, config)?);
        }
    }
    Ok(x)
}

/// Applies a layer to its inputs if they are available.
fn apply(layer: &Value, call: usize, made: &mut HashMap<NodeKey, Symbol>) -> Result<bool> {
    let (class, config) = arguments(layer)?;
    let node = layer.get("inbound_nodes").and_then(|n| n.get(call)).unwrap_or(&Value::Null);
    let mut feeds = Vec::new();
    let kwargs = match node.get("args") {
        Some(args) => {
            places(args, &mut feeds);
            let kwargs = node.get("kwargs").cloned().unwrap_or(Value::Null);
            for key in ["query", "value", "key"] {
                places(kwargs.get(key).unwrap_or(&Value::Null), &mut feeds);
            }
            kwargs
        }
        None => {
            places(node, &mut feeds);
            Value::Null
        }
    };
    let Some(inputs) = feeds.iter().map(|place| made.get(place).cloned()).collect::<Option<Vec<_>>>() else {
        return Ok(false);
    };
    if class == "Sequential" {
        let [input] = &inputs[..] else { return Err(wrong("a nested Sequential has several inputs")) };
        let chained = chained(layer, input)?;
        let name = text(layer, "name").or(config.get("name").and_then(Value::as_str)).unwrap_or(class);
        made.insert((name.into(), call as u64), chained);
        return Ok(true);
    }
    let mut spec = spec(class, config)?;
    if kwargs.get("use_causal_mask") == Some(&Value::Bool(true)) {
        spec = spec.use_causal_mask(true);
    }
    let name = spec.given_name().unwrap_or(class).to_string();
    let mut masks = Vec::new();
    ["mask", "attention_mask", "initial_state"]
        .iter()
        .for_each(|k| places(kwargs.get(k).unwrap_or(&Value::Null), &mut masks));
    if !masks.is_empty() {
        return Err(wrong(format!("layer {name} is called with a mask or a state")));
    }
    made.insert((name, call as u64), spec.on(&inputs.iter().collect::<Vec<_>>()));
    Ok(true)
}
