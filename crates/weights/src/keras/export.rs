//! Exports a model as Keras `.weights.h5`, or as `.keras` with its layers.

use crate::hdf5::write::{Hdf5Group, file};
use crate::names::keras as names;
use crate::names::layer::{FLATTEN, OURS};
use crate::weight_mapping::{self, ExportedFile};
use serde_json::{Map, Value, json};
use std::path::Path;
use systole_data::format::zip::{StoredZipEntry, archive};
use systole_ir::{DType, Literal, Result, TensorType, err};
use systole_nn::layers::LayerKind;
use systole_nn::{LayerNode, Model, NodeInput};

/// Layers that Keras defines inside an application.
const OF_CONVNEXT: [&str; 2] = ["LayerScale", "StochasticDepth"];

pub(crate) fn export(model: &Model, out: &Path) -> Result<ExportedFile> {
    check(model)?;
    let (rules, layers) = names::written(model)?;
    let (arrays, rows) = weight_mapping::taken(model, &rules)?;
    let mut root = Hdf5Group::default();
    for (path, name) in layers {
        let vars = root.at(&path).at("vars");
        vars.attributes.push(("name".into(), name));
    }
    for (path, value) in arrays {
        let (group, index) = path.rsplit_once('/').unwrap_or(("", &path));
        root.at(group).arrays.push((index.into(), value));
    }
    for group in names::dropping(model) {
        root.at(&format!("{group}/seed_generator/vars")).arrays.push(("0".into(), seed()?));
    }
    root.at("vars").attributes.push(("name".into(), "functional".into()));
    let weights = file(&root);
    let note = "Keras's, numbered by class".to_string();
    if out.extension().is_none_or(|e| e != "keras") {
        return Ok(ExportedFile { bytes: weights, rows, notes: vec![note] });
    }
    let head = |name: &str, head: Vec<u8>| StoredZipEntry { name: name.into(), head, data: &[] };
    let metadata = json!({"keras_version": "3.0.0", "date_saved": "1980-01-01@00:00:00"});
    let bytes = archive(vec![
        head("metadata.json", metadata.to_string().into_bytes()),
        head("config.json", config(model)?.to_string().into_bytes()),
        head("model.weights.h5", weights),
    ])
    .concat();
    Ok(ExportedFile { bytes, rows, notes: vec![note] })
}

fn check(model: &Model) -> Result<()> {
    let nodes = &model.architecture().nodes;
    if let Some(node) = nodes.iter().find(|n| matches!(n.layer.kind(), LayerKind::Model(..))) {
        return Err(err!(
            Unsupported,
            "layer {} is a nested model, which the Keras format does not support",
            node.name
        )
        .hint(FLATTEN));
    }
    let lacks = nodes.iter().find_map(|node| {
        let (name, class) = (&node.name, node.layer.class_name());
        let config = node.layer.layer().config();
        let is_set = |key: &&str| config.get(*key).is_some_and(|v| !v.is_null() && *v != Value::Bool(false));
        if OURS.contains(&class) {
            return Some(format!("layer {name} is a {class}, which Keras does not have"));
        }
        if let Some(key) = ["return_state", "initial_state"].into_iter().find(is_set) {
            return Some(format!(
                "layer {name} has the argument `{key}`: Keras has an output or input for each state"
            ));
        }
        let key = ["padding_token", "use_attention_bias"].into_iter().find(is_set)?;
        Some(format!("layer {name} has the argument `{key}`, which Keras does not have"))
    });
    match lacks {
        Some(what) => Err(err!(Config, "{what}").hint_command("use --format torch or safetensors")),
        None => Ok(()),
    }
}

/// Returns config.json: the layers as a functional model.
fn config(model: &Model) -> Result<Value> {
    let architecture = model.architecture();
    let mut layers = Vec::new();
    let mut inputs = Vec::new();
    for spec in &architecture.inputs {
        let ty = spec.ty.clone().unwrap_or_else(|| TensorType::new(DType::F32, [1]));
        let config = json!({"batch_shape": batched(ty.shape.dims()), "dtype": keras_dtype(ty.dtype), "name": spec.name});
        layers.push(entry("InputLayer", &spec.name, config, json!([])));
        inputs.push(json!([spec.name, 0, 0]));
    }
    let mut calls = Vec::new();
    for (i, node) in architecture.nodes.iter().enumerate() {
        let before = architecture.nodes[..i].iter().filter(|n| n.name == node.name).count();
        calls.push((node.name.clone(), before));
    }
    for (i, node) in architecture.nodes.iter().enumerate() {
        if calls[i].1 > 0 {
            continue;
        }
        let same = (0..architecture.nodes.len()).filter(|k| architecture.nodes[*k].name == node.name);
        let inbound: Vec<Value> = same.map(|k| call(model, &architecture.nodes[k], &calls)).collect();
        layers.push(entry(node.layer.class_name(), &node.name, arguments(node)?, inbound.into()));
    }
    let output = |source| match source {
        NodeInput::Layer(i) => json!([calls[i].0, calls[i].1, 0]),
        NodeInput::Input(i) => json!([architecture.inputs[i].name, 0, 0]),
    };
    let outputs: Vec<Value> = architecture.outputs().map(output).collect();
    let config = json!({
        "name": "functional", "trainable": true, "layers": layers, "input_layers": inputs, "output_layers": outputs,
    });
    Ok(json!({
        "module": "keras.src.models.functional", "class_name": "Functional", "config": config,
        "registered_name": "Functional", "build_config": {"input_shape": null},
    }))
}

fn entry(class: &str, name: &str, config: Value, inbound: Value) -> Value {
    let (module, registered) = match OF_CONVNEXT.contains(&class) {
        true => ("keras.src.applications.convnext", json!(class)),
        false => ("keras.layers", Value::Null),
    };
    json!({
        "module": module, "class_name": class, "config": config, "registered_name": registered, "name": name,
        "inbound_nodes": inbound,
    })
}

fn batched(dims: &[usize]) -> Value {
    let mut all = vec![Value::Null];
    all.extend(dims.iter().map(|d| json!(d)));
    all.into()
}

fn keras_dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        _ => "float32",
    }
}

/// Returns one call of a layer.
fn call(model: &Model, node: &LayerNode, calls: &[(String, usize)]) -> Value {
    let architecture = model.architecture();
    let tensor = |source: &NodeInput| {
        let (name, call, shape) = match source {
            NodeInput::Input(i) => {
                let spec = &architecture.inputs[*i];
                (spec.name.clone(), 0, spec.ty.as_ref().map(|t| t.shape.to_vec()))
            }
            NodeInput::Layer(i) => {
                let row = model.summary_rows().get(*i);
                (calls[*i].0.clone(), calls[*i].1, row.map(|r| r.output_shape.to_vec()))
            }
        };
        let shape = batched(&shape.unwrap_or_default());
        json!({"class_name": "__keras_tensor__", "config": {"shape": shape, "dtype": "float32", "keras_history": [name, call, 0]}})
    };
    let mut feeds: Vec<Value> = node.inputs.iter().map(tensor).collect();
    let mut kwargs = Map::new();
    if node.layer.class_name() == "MultiHeadAttention" {
        if let [one] = &feeds[..] {
            feeds = vec![one.clone(), one.clone()];
        }
        if node.layer.layer().config().get("use_causal_mask") == Some(&Value::Bool(true)) {
            kwargs.insert("use_causal_mask".into(), true.into());
        }
        return json!({"args": feeds, "kwargs": kwargs});
    }
    let merges = ["Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot"];
    let args = if merges.contains(&node.layer.class_name()) { json!([feeds]) } else { json!(feeds) };
    json!({"args": args, "kwargs": kwargs})
}

/// Returns the layer's arguments, which have Keras's names.
fn arguments(node: &LayerNode) -> Result<Value> {
    let mut config = match node.layer.layer().config() {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    config.retain(|key, value| !key.ends_with("initializer") && key != "use_causal_mask" && !value.is_null());
    for key in ["activation", "recurrent_activation"] {
        if config.get(key) == Some(&json!({"gelu": {"approximate": false}})) {
            config.insert(key.into(), "gelu".into());
        }
        if let Some(value) = config.get(key).filter(|v| !v.is_string()) {
            return Err(err!(Config, "layer {}: the activation {value} has no name in Keras", node.name)
                .hint_command("write only the weights: --out FILE.weights.h5"));
        }
    }
    if let Some(Value::Array(sizes)) = config.get_mut("noise_shape") {
        sizes.iter_mut().filter(|size| **size == json!(0)).for_each(|size| *size = Value::Null);
    }
    config.insert("name".into(), node.name.clone().into());
    config.insert("trainable".into(), node.layer.is_trainable().into());
    Ok(config.into())
}

/// Returns the seed generator state that Keras saves for Dropout.
fn seed() -> Result<Literal> {
    Literal::from_slice([2], &[0u32, 0])
}
