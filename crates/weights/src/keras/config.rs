//! Converts a Keras model config, Sequential or Functional, to Systole layers.

use super::operations;
use serde_json::{Map, Value};
use std::collections::HashMap;
use systole_ir::{DType, Error, Result, ResultExt, TensorType, ensure, err};
use systole_nn::LayerLowering;
use systole_nn::layers::{BuiltIn, LayerSpec, add, rescaling, select_step, slice_steps};
use systole_nn::{Architecture, Symbol};

/// Maximum number of layers; prevents memory exhaustion by a typo.
const MOST: usize = 3000;
/// Arguments that do not affect what a layer computes with given weights.
const IDLE: [&str; 12] = [
    "dtype",
    "seed",
    "batch_shape",
    "batch_input_shape",
    "sparse",
    "ragged",
    "renorm_momentum",
    "renorm_clipping",
    "optional",
    "autocast",
    "input_length",
    "implementation",
];

/// Classes of models, which may be layers of others.
pub(super) const NETWORKS: [&str; 3] = ["Sequential", "Functional", "Model"];

/// Classes that are no layers here, or layers of another name: [`layer`] and [`functional`] read them.
pub(super) const OTHER_CLASSES: [&str; 5] =
    ["InputLayer", "NotEqual", "Any", "CustomScaleLayer", "GroupedQueryAttention"];

pub(super) fn wrong(why: impl Into<String>) -> Error {
    err!(Data, "cannot convert the Keras model config")
        .because(why)
        .hint_command("define the model in a TOML file and pass it with --model")
}

/// Returns the layers, and the type of one sample of each input.
///
/// # Errors
/// If a layer is unsupported, or has an unsupported argument.
pub(super) fn architecture(model: &Value) -> Result<(Architecture, Vec<TensorType>)> {
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

/// Whether an argument changes further training only: what a layer computes is the same.
fn is_of_training(key: &str) -> bool {
    key.ends_with("_regularizer") || key.ends_with("_constraint") || key == "noise_shape"
}

/// Returns the arguments that change further training only, are set, and do not exist here, with their layers.
pub(crate) fn unused_settings(model: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match model {
        Value::Array(items) => found.extend(items.iter().flat_map(unused_settings)),
        Value::Object(object) => {
            if let Ok((class, config)) = arguments(model)
                && let Some(known) = BuiltIn::with_defaults(class)
            {
                let known = known.layer().config();
                let is_unused = |key: &str, value: &Value| {
                    is_of_training(key) && !value.is_null() && known.get(key).is_none()
                };
                let name = text(model.get("config").unwrap_or(model), "name").unwrap_or(class);
                let keys = config.iter().filter(|(key, value)| is_unused(key, value)).map(|(key, _)| key);
                found.extend(keys.map(|key| format!("{key} of the layer {name}")));
            }
            found.extend(object.values().flat_map(unused_settings));
        }
        _ => {}
    }
    found
}

/// Returns the names of the models that are layers of a model.
pub(crate) fn nested_models(model: &Value) -> Vec<String> {
    let layers = model.get("config").and_then(|config| config.get("layers")).and_then(Value::as_array);
    let mut found = Vec::new();
    for layer in layers.into_iter().flatten() {
        let class = text(layer, "class_name").unwrap_or_default();
        let config = layer.get("config").and_then(Value::as_object);
        if is_network(layer) || config.is_some_and(|config| is_several(class, config)) {
            found.extend(name_of(layer).ok().map(str::to_string));
            found.extend(nested_models(layer));
        }
    }
    found
}

/// Calls `found` with the name and the arguments of each `Normalization` whose statistics are weights.
pub(crate) fn each_normalization(model: &mut Value, found: &mut impl FnMut(&str, &mut Map<String, Value>)) {
    match model {
        Value::Array(items) => items.iter_mut().for_each(|item| each_normalization(item, found)),
        Value::Object(object) => {
            let is_one = object.get("class_name").is_some_and(|class| class == "Normalization");
            if let (true, Some(Value::Object(arguments))) = (is_one, object.get_mut("config"))
                && arguments.get("mean").is_none_or(Value::is_null)
                && let Some(name) = arguments.get("name").and_then(Value::as_str).map(str::to_string)
            {
                return found(&name, arguments);
            }
            object.values_mut().for_each(|value| each_normalization(value, found));
        }
        _ => {}
    }
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

pub(super) fn arguments(layer: &Value) -> Result<(&str, &Map<String, Value>)> {
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

fn is_network(layer: &Value) -> bool {
    text(layer, "class_name").is_some_and(|class| NETWORKS.contains(&class))
}

/// Returns the input type of the first layer that states one, also in models that are layers.
fn first_input(layers: &[Value]) -> Result<Option<TensorType>> {
    for layer in layers {
        let (_, config) = arguments(layer)?;
        let inner = config.get("layers").and_then(Value::as_array);
        let found = match (input_type(config)?, inner) {
            (None, Some(inner)) if is_network(layer) => first_input(inner)?,
            (found, _) => found,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn sequential(layers: &[Value]) -> Result<(Architecture, Vec<TensorType>)> {
    let input = first_input(layers)?.ok_or_else(|| wrong("it has no input shape"))?;
    if layers.iter().any(is_network) {
        let x = systole_nn::input_of("input", input.dtype, input.shape.dims());
        let y = chained(layers, &x)?;
        return Ok((Architecture::functional(&[x], &[y][..])?, vec![input]));
    }
    let mut specs = Vec::new();
    for layer in layers {
        let (class, config) = arguments(layer)?;
        if class != "InputLayer" {
            specs.extend(layers_of(class, config)?);
        }
    }
    if specs.first().is_some_and(|s| matches!(s.layer().lowering(), Ok(LayerLowering::Embedding { .. }))) {
        let ids = TensorType::new(DType::I32, input.shape.dims());
        return Ok((Architecture::sequential(specs), vec![ids]));
    }
    Ok((Architecture::sequential(specs), vec![input]))
}

/// Returns the layers of a Keras layer: one, for a TimeDistributed Sequential each of its layers, applied to every step, and
/// for stacked cells one for each cell.
fn layers_of(class: &str, config: &Map<String, Value>) -> Result<Vec<LayerSpec>> {
    if let Some(cells) = stacked_cells(config) {
        return stacked_layers(cells, config);
    }
    let inner = config.get("layer").filter(|inner| is_distributed_chain(class, inner));
    let Some(inner) = inner else { return Ok(vec![spec(class, config)?]) };
    let mut found = Vec::new();
    for layer in
        inner.get("config").and_then(|c| c.get("layers")).and_then(Value::as_array).into_iter().flatten()
    {
        let (of, own) = arguments(layer)?;
        if of != "InputLayer" {
            let name = own.get("name").cloned().unwrap_or(Value::Null);
            let wrapped = [("layer".to_string(), layer.clone()), ("name".to_string(), name)];
            found.extend(layers_of(class, &wrapped.into_iter().collect())?);
        }
    }
    Ok(found)
}

/// Returns the cells of an `RNN` that stacks several.
fn stacked_cells(config: &Map<String, Value>) -> Option<&Vec<Value>> {
    let cell = config.get("cell").filter(|cell| text(cell, "class_name") == Some("StackedRNNCells"))?;
    cell.get("config")?.get("cells")?.as_array()
}

/// Returns a recurrent layer for each of the stacked cells, of which all but the last return sequences. To go backwards, the
/// steps and their mask are reversed in front of them.
fn stacked_layers(cells: &[Value], config: &Map<String, Value>) -> Result<Vec<LayerSpec>> {
    let is_set = |key: &str| config.get(key) == Some(&Value::Bool(true));
    ensure!(!is_set("return_state"), wrong("StackedRNNCells does not support the argument `return_state`"));
    let mut found = Vec::new();
    if is_set("go_backwards") {
        found.push(slice_steps(0).reverse(true));
    }
    for (i, cell) in cells.iter().enumerate() {
        let mut own = config.clone();
        own.insert("name".into(), name_of(cell)?.into());
        own.insert("cell".into(), cell.clone());
        own.insert("go_backwards".into(), false.into());
        if i + 1 < cells.len() {
            own.insert("return_sequences".into(), true.into());
            own.insert("zero_output_for_mask".into(), false.into());
        }
        found.push(spec("RNN", &own)?);
    }
    Ok(found)
}

/// Whether a layer becomes several layers here.
fn is_several(class: &str, config: &Map<String, Value>) -> bool {
    let inner = config.get("layer");
    inner.is_some_and(|inner| is_distributed_chain(class, inner)) || stacked_cells(config).is_some()
}

/// Whether a layer is a TimeDistributed of a Sequential.
fn is_distributed_chain(class: &str, inner: &Value) -> bool {
    class == "TimeDistributed" && text(inner, "class_name") == Some("Sequential")
}

/// Converts a Keras class and its arguments to a layer; `RNN` of a cell is the cell's layer.
fn spec(class: &str, config: &Map<String, Value>) -> Result<LayerSpec> {
    match (class, config.get("cell")) {
        ("RNN", Some(cell)) => {
            let (cell, of_cell) = arguments(cell)?;
            let name = |(key, _): &(&String, &Value)| *key != "name" && *key != "trainable";
            let both = config.iter().filter(|(key, _)| *key != "cell").chain(of_cell.iter().filter(name));
            let both = both.map(|(key, value)| (key.clone(), value.clone())).collect();
            layer(cell.strip_suffix("Cell").unwrap_or(cell), &both)
        }
        // The name of the class before Keras renamed it.
        ("GroupedQueryAttention", _) => layer("GroupQueryAttention", config),
        _ => layer(class, config),
    }
}

/// Converts a class that exists here and its arguments to a layer.
fn layer(class: &str, config: &Map<String, Value>) -> Result<LayerSpec> {
    let name = config.get("name").and_then(Value::as_str).unwrap_or(class);
    let place = || format!("layer {name}");
    let Some(known) = BuiltIn::with_defaults(class) else {
        // `unknown_layers` names all of the model.
        return Err(wrong(format!("layer {name} has the unsupported class {class}")));
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
            "layer" | "backward_layer" if is_known && value.is_object() => {
                let (class, arguments) = arguments(value).at(place)?;
                kept.insert(key.clone(), spec(class, arguments).at(place)?.to_json());
            }
            "mean" | "variance" if class == "Normalization" && value.is_number() => {
                kept.insert(key.clone(), vec![value.clone()].into());
            }
            _ if is_known => drop(kept.insert(key.clone(), value.clone())),
            "data_format" if value.as_str() == Some("channels_last") => {}
            // How fractions of the range are rounded when bins are learned; and what is beside a picture that is not padded.
            "epsilon" if class == "Discretization" => {}
            "fill_mode" | "fill_value" if config.get("pad_to_aspect_ratio") == Some(&Value::Bool(false)) => {}
            k if IDLE.contains(&k) || is_of_training(k) => {}
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

/// A value in a functional model: layer, call index, and index of the output.
type NodeKey = (String, u64, u64);

/// Collects the values that a call's arguments refer to, in order.
fn places(value: &Value, found: &mut Vec<NodeKey>) {
    match value {
        Value::Array(items) => match items.as_slice() {
            // Keras 2 and keras_history of Keras 3: ["dense", 0, 0, …].
            [Value::String(name), Value::Number(call), Value::Number(output), ..] => {
                found.push((name.clone(), call.as_u64().unwrap_or(0), output.as_u64().unwrap_or(0)));
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

/// The values of a functional model that are computed so far.
#[derive(Default)]
struct FunctionalValues {
    symbols: HashMap<NodeKey, Symbol>,
    /// What Keras's own mask operations compute: the masked value and the number that masks it.
    masks: HashMap<NodeKey, (NodeKey, f64)>,
    /// Masks that layers here compute too: those of `Masking` and `Embedding`.
    known_masks: Vec<(NodeKey, f64)>,
}

fn functional(config: &Value, layers: &[Value]) -> Result<(Architecture, Vec<TensorType>)> {
    let (mut symbols, mut types) = (Vec::new(), Vec::new());
    let mut inputs: HashMap<String, (Symbol, TensorType)> = HashMap::new();
    for layer in layers {
        let (class, arguments) = arguments(layer)?;
        if class == "InputLayer" {
            let name = name_of(layer)?;
            let ty = input_type(arguments)?.ok_or_else(|| wrong(format!("input {name} has no shape")))?;
            let symbol = systole_nn::input_of(name, ty.dtype, ty.shape.dims());
            inputs.insert(name.into(), (symbol, ty));
        }
    }
    for (name, ..) in listed(config, "input_layers") {
        let (symbol, ty) = inputs.get(&name).ok_or_else(|| wrong(format!("unknown input {name}")))?;
        symbols.push(symbol.clone());
        types.push(ty.clone());
    }
    let outputs = connected(config, layers, &symbols)?;
    Ok((Architecture::functional(&symbols, &outputs[..])?, types))
}

pub(super) fn name_of(layer: &Value) -> Result<&str> {
    let (class, arguments) = arguments(layer)?;
    let name = text(layer, "name").or_else(|| arguments.get("name").and_then(Value::as_str));
    name.ok_or_else(|| wrong(format!("a {class} has no name")))
}

/// Returns the values that `input_layers` or `output_layers` list.
fn listed(config: &Value, key: &str) -> Vec<NodeKey> {
    let mut found = Vec::new();
    places(config.get(key).unwrap_or(&Value::Null), &mut found);
    found
}

/// Applies the layers of a functional model to its inputs; returns its outputs.
fn connected(config: &Value, layers: &[Value], inputs: &[Symbol]) -> Result<Vec<Symbol>> {
    let mut values = FunctionalValues::default();
    values.symbols.extend(listed(config, "input_layers").into_iter().zip(inputs.iter().cloned()));
    // The calls of a nested model are counted from 1, those of a layer from 0.
    let mut used = Vec::new();
    places(&Value::Array(layers.to_vec()), &mut used);
    used.extend(listed(config, "output_layers"));
    let first =
        |name: &str| used.iter().filter(|(n, ..)| n == name).map(|(_, call, _)| *call).min().unwrap_or(0);
    let mut waiting: Vec<(&Value, NodeKey, usize)> = Vec::new();
    for layer in layers.iter().filter(|l| text(l, "class_name") != Some("InputLayer")) {
        let name = name_of(layer)?;
        let calls = layer.get("inbound_nodes").and_then(Value::as_array).map_or(0, Vec::len);
        let first = first(name);
        waiting.extend((0..calls.min(MOST)).map(|i| (layer, (name.to_string(), first + i as u64, 0), i)));
    }
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut left = Vec::new();
        for (layer, key, call) in waiting {
            if !apply(layer, &key, call, &mut values)? {
                left.push((layer, key, call));
            }
        }
        ensure!(left.len() != before, wrong("its layers depend on each other in a cycle"));
        waiting = left;
    }
    let symbol = |place: &NodeKey| {
        values.symbols.get(place).cloned().ok_or_else(|| wrong(format!("unknown layer {}", place.0)))
    };
    let outputs = listed(config, "output_layers").iter().map(symbol).collect::<Result<Vec<_>>>()?;
    if outputs.is_empty() { Err(wrong("it has no outputs")) } else { Ok(outputs) }
}

/// Applies the layers of a Sequential one after the other.
fn chained(layers: &[Value], input: &Symbol) -> Result<Symbol> {
    let mut x = input.clone();
    for inner in layers.iter().take(MOST) {
        let (class, config) = arguments(inner)?;
        match class {
            "InputLayer" => {}
            _ if is_network(inner) => x = nested(class, inner, &[x])?,
            _ => x = layers_of(class, config)?.into_iter().fold(x, |x, layer| x.apply(layer)),
        }
    }
    Ok(x)
}

/// Applies a nested Sequential or functional model.
fn nested(class: &str, layer: &Value, inputs: &[Symbol]) -> Result<Symbol> {
    let one = |all: &[Symbol], what: &str| match all {
        [one] => Ok(one.clone()),
        _ => Err(wrong(format!("a nested {class} has {} {what}; only one is supported", all.len()))),
    };
    let config = layer.get("config").unwrap_or(&Value::Null);
    let layers = config.get("layers").and_then(Value::as_array);
    let layers = layers.ok_or_else(|| wrong(format!("a nested {class} has no list of layers")))?;
    if class == "Sequential" {
        return chained(layers, &one(inputs, "inputs")?);
    }
    one(&connected(config, layers, inputs)?, "outputs")
}

/// Notes the mask that Keras computes by operations of its own: `value ≠ number`, and whether that holds for any
/// feature.
fn note_mask(class: &str, node: &Value, key: &NodeKey, values: &mut FunctionalValues) -> Result<bool> {
    let arguments = node.get("args").unwrap_or(&Value::Null);
    let mut feeds = Vec::new();
    places(arguments, &mut feeds);
    let Some(from) = feeds.first() else { return Err(wrong(format!("{class} has no input"))) };
    let mask = match class {
        "NotEqual" => arguments.get(1).and_then(Value::as_f64).map(|number| (from.clone(), number)),
        _ => values.masks.get(from).cloned(),
    };
    let mask = mask.ok_or_else(|| {
        wrong(format!("{} is an operation that is supported only where Keras computes a mask", key.0))
    })?;
    values.masks.insert(key.clone(), mask);
    Ok(true)
}

/// Rejects a mask that the layers here do not pass on by themselves.
fn check_masks(name: &str, kwargs: &Value, values: &FunctionalValues) -> Result<()> {
    let mut masks = Vec::new();
    for key in ["mask", "attention_mask"] {
        places(kwargs.get(key).unwrap_or(&Value::Null), &mut masks);
    }
    let is_known = |place: &NodeKey| values.masks.get(place).is_some_and(|m| values.known_masks.contains(m));
    ensure!(masks.iter().all(is_known), wrong(format!("layer {name} is called with a mask")));
    Ok(())
}

/// Returns the values that a call reads, and its keyword arguments.
fn feeds_of(node: &Value) -> (Vec<NodeKey>, Value) {
    let mut feeds = Vec::new();
    let Some(args) = node.get("args") else {
        places(node, &mut feeds);
        return (feeds, Value::Null);
    };
    places(args, &mut feeds);
    let kwargs = node.get("kwargs").cloned().unwrap_or(Value::Null);
    for key in ["query", "value", "key", "initial_state"] {
        places(kwargs.get(key).unwrap_or(&Value::Null), &mut feeds);
    }
    (feeds, kwargs)
}

/// Computes `x + scale · branch`, as InceptionResNetV2's own layer does.
fn scaled_sum(name: &str, config: &Map<String, Value>, inputs: &[Symbol]) -> Result<Symbol> {
    let scale = config.get("scale").and_then(Value::as_f64);
    let ([x, branch], Some(scale)) = (inputs, scale) else {
        return Err(wrong(format!("layer {name}: CustomScaleLayer needs two inputs and a scale")));
    };
    let branch = branch.apply(rescaling(scale).name(format!("{name}_scale")));
    Ok(add().name(name).on(&[x, &branch]))
}

/// Applies a layer to its inputs if they are available.
fn apply(layer: &Value, key: &NodeKey, call: usize, values: &mut FunctionalValues) -> Result<bool> {
    let (class, config) = arguments(layer)?;
    let node = layer.get("inbound_nodes").and_then(|n| n.get(call)).unwrap_or(&Value::Null);
    let (feeds, kwargs) = feeds_of(node);
    if ["NotEqual", "Any"].contains(&class) {
        let is_ready = |from: &NodeKey| values.masks.contains_key(from) || class == "NotEqual";
        return Ok(feeds.iter().all(is_ready) && note_mask(class, node, key, values)?);
    }
    if let Some((mask, ..)) = feeds.iter().find(|from| values.masks.contains_key(from)) {
        return Err(wrong(format!("layer {} uses the operation {mask}, which is not a layer", key.0)));
    }
    let inputs = feeds.iter().map(|place| values.symbols.get(place).cloned()).collect::<Option<Vec<_>>>();
    let Some(inputs) = inputs else { return Ok(false) };
    if NETWORKS.contains(&class) {
        let made = nested(class, layer, &inputs)?;
        values.symbols.insert(key.clone(), made);
        return Ok(true);
    }
    let operation =
        if operations::is_operation(layer, node) { operations::layer(class, config, node)? } else { None };
    // Masks are computed after the values that they belong to.
    let mut masks = Vec::new();
    places(kwargs.get("mask").unwrap_or(&Value::Null), &mut masks);
    if !masks.iter().all(|place| values.masks.contains_key(place) || values.symbols.contains_key(place)) {
        return Ok(false);
    }
    if class == "CustomScaleLayer" {
        let scaled = scaled_sum(&key.0, config, &inputs)?;
        values.symbols.insert(key.clone(), scaled);
        return Ok(true);
    }
    if is_several(class, config)
        && let [x] = &inputs[..]
    {
        let y = layers_of(class, config)?.into_iter().fold(x.clone(), |x, layer| x.apply(layer));
        values.symbols.insert(key.clone(), y);
        return Ok(true);
    }
    let mut spec = operation.map_or_else(|| spec(class, config), Ok)?;
    if kwargs.get("use_causal_mask") == Some(&Value::Bool(true)) {
        spec = spec.use_causal_mask(true);
    }
    if kwargs.get("initial_state").is_some_and(|states| !states.is_null()) {
        let has_mask = kwargs.get("mask").is_some_and(|mask| !mask.is_null());
        ensure!(!has_mask, wrong(format!("layer {} is called with a mask and an initial state", key.0)));
        spec = spec.initial_state(true);
    }
    check_masks(&key.0, &kwargs, values)?;
    let number = match class {
        "Masking" => Some(config.get("mask_value").and_then(Value::as_f64).unwrap_or(0.0)),
        _ => config.get("mask_zero").filter(|mask| **mask == Value::Bool(true)).map(|_| 0.0),
    };
    values.known_masks.extend(feeds.first().cloned().zip(number));
    let made = spec.on(&inputs.iter().collect::<Vec<_>>());
    match config.get("return_state") {
        Some(Value::Bool(true)) => values.symbols.extend(outputs_and_states(class, config, key, &made)?),
        _ => drop(values.symbols.insert(key.clone(), made)),
    }
    Ok(true)
}

/// Returns the outputs of a recurrent layer with `return_state`, which Keras returns one by one: `made` has the states as
/// further steps.
fn outputs_and_states(
    class: &str,
    config: &Map<String, Value>,
    key: &NodeKey,
    made: &Symbol,
) -> Result<Vec<(NodeKey, Symbol)>> {
    let cell = config.get("cell").and_then(|cell| text(cell, "class_name")).unwrap_or(class);
    let states = match cell.trim_end_matches("Cell") {
        "LSTM" | "ConvLSTM1D" | "ConvLSTM2D" | "ConvLSTM3D" => 2,
        "GRU" | "SimpleRNN" => 1,
        _ => return Err(wrong(format!("{class} does not support the argument `return_state`"))),
    };
    let name = |part: &str| format!("{}_{part}", key.0);
    let output = match config.get("return_sequences") {
        Some(Value::Bool(true)) => slice_steps(0).end(-states),
        _ => select_step(0),
    };
    let output = output.name(name("output"));
    let state = |i: i64| select_step(i - states).name(name(&format!("state_{i}")));
    let parts = std::iter::once(output).chain((0..states).map(state));
    let place = |i: usize| (key.0.clone(), key.1, i as u64);
    Ok(parts.enumerate().map(|(i, part)| (place(i), made.apply(part))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_of_training_that_do_not_exist_here_are_named() {
        let dense = json!({"class_name": "Dense", "config": {
            "name": "head", "units": 2, "tuning_regularizer": {"class_name": "L2"}, "bias_constraint": null,
        }});
        let inner = json!({"class_name": "Sequential", "config": {"name": "inner", "layers": [
            {"class_name": "BatchNormalization", "config": {"name": "norm", "renorm_constraint": "max_norm"}},
        ]}});
        let model = json!({"class_name": "Sequential", "config": {"layers": [dense, inner]}});
        let expected = ["tuning_regularizer of the layer head", "renorm_constraint of the layer norm"];
        assert_eq!(unused_settings(&model), expected);
    }

    #[test]
    fn nested_models_are_found_at_every_depth() {
        let dense = |name: &str| json!({"class_name": "Dense", "config": {"name": name}});
        let inner = json!({"class_name": "Sequential", "config": {"name": "inner", "layers": [dense("a")]}});
        let outer =
            json!({"class_name": "Functional", "config": {"name": "outer", "layers": [dense("b"), inner]}});
        let model =
            json!({"class_name": "Sequential", "config": {"name": "model", "layers": [outer, dense("c")]}});
        assert_eq!(nested_models(&model), ["outer", "inner"]);
        assert_eq!(nested_models(&dense("d")), [""; 0]);
    }
}
