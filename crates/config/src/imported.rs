//! Sizes of saved models that contain no configuration, such as imported ones: the `[model]` table that builds their
//! layers.

use super::RunConfig;
use super::model_sections::{self, to_json};
use serde_json::{Map, Value as Json, json};
use systole_nn::applications::{TABLE, by_name};
use systole_nn::{Architecture, LayerNode};
use toml::{Table, Value};

/// Arguments that another task may change: the head, dropout, and how the step is computed.
const FREE: [&str; 7] =
    ["classes", "classifier_activation", "dropout", "mask_zero", "output", "padding_token", "remat"];

/// Returns the `[model]` table of a GPT-2 or BERT that has exactly these layers; `None` for other models.
///
/// The pooling that sentence-transformers appends to a BERT is no part of it.
pub fn application_of(architecture: &Architecture) -> Option<Table> {
    let architecture = &without_pooling(architecture);
    let (name, arguments) = gpt2(architecture).or_else(|| bert(architecture))?;
    let built = by_name(name, arguments.as_object()?).ok()?;
    if !same_layers(&built, architecture) {
        return None;
    }
    let mut table: Table = Value::try_from(&arguments).ok()?.try_into().ok()?;
    table.insert("application".into(), name.into());
    Some(table)
}

/// Returns the `layers` tables of a configuration that build these layers; `None` if no tables do, as for several inputs.
pub fn layer_tables(architecture: &Architecture) -> Option<Vec<Table>> {
    let tables = tables_of(&architecture.to_json())?;
    let built = model_sections::architecture(None, &tables).ok()?;
    same_layers(&built, architecture).then_some(tables)
}

/// Converts the JSON of a model file to tables; a layer names its inputs unless its only input is the previous layer.
fn tables_of(model: &Json) -> Option<Vec<Table>> {
    let layers = model["layers"].as_array()?;
    let source = |feed: &Json| match feed.get("layer") {
        Some(index) => layers.get(index.as_u64()? as usize)?["name"].as_str(),
        None => (feed["input"] == 0).then_some("input"),
    };
    let table = |(index, node): (usize, &Json)| -> Option<Table> {
        let layer = &node["layer"];
        let mut table = Table::from_iter([
            ("type".to_string(), layer["class_name"].as_str()?.into()),
            ("name".to_string(), node["name"].as_str()?.into()),
        ]);
        match tables_of(&layer["config"]) {
            Some(inner) => drop(table.insert("layers".into(), inner.into())),
            None => {
                let set = layer["config"].as_object().into_iter().flatten().filter(|(_, v)| !v.is_null());
                for (key, value) in set {
                    table.insert(key.clone(), Value::try_from(value).ok()?);
                }
            }
        }
        if layer["trainable"] == false {
            table.insert("trainable".into(), false.into());
        }
        let feeds = node["inputs"].as_array()?;
        let previous = index.checked_sub(1).map_or(json!({"input": 0}), |i| json!({"layer": i}));
        if *feeds != [previous] {
            let names = feeds.iter().map(source).collect::<Option<Vec<&str>>>()?;
            table.insert("inputs".into(), names.into());
        }
        Some(table)
    };
    layers.iter().enumerate().map(table).collect()
}

/// Returns the layers before an appended pooling of tokens.
fn without_pooling(architecture: &Architecture) -> Architecture {
    let mut core = architecture.clone();
    while core
        .nodes
        .last()
        .is_some_and(|n| ["mean_pooling", "first_step", "normalize"].contains(&n.name.as_str()))
    {
        let Some(input) = core.nodes.pop().and_then(|node| node.inputs.first().copied()) else { break };
        core.output = input;
    }
    core
}

/// Whether two models have the same layers, apart from frozen ones and quantization-aware training.
pub fn same_layers(a: &Architecture, b: &Architecture) -> bool {
    let layers = |model: &Architecture| -> Vec<(String, Json)> {
        let free = |n: &LayerNode| {
            let layer = n.layer.clone().name(&n.name).trainable(true);
            (n.name.clone(), layer.without_quantization().to_json())
        };
        model.nodes.iter().map(free).collect()
    };
    layers(a) == layers(b)
}

/// Compares the sizes that a configuration sets with those of a saved model: the keys that differ, each with a text such as
/// `model.hidden_dim is 64, but 48 in the saved model`. Empty if they agree, or cannot be compared.
pub fn size_conflicts(config: &RunConfig, saved: &Architecture) -> Vec<(String, String)> {
    differences(config, saved).unwrap_or_default()
}

fn differences(config: &RunConfig, saved: &Architecture) -> Option<Vec<(String, String)>> {
    let theirs = application_of(saved)?;
    // Sizes that the tokenizer sets.
    let mut config = config.clone();
    config.fit_usual_tokens().ok()?;
    let name = |table: &Table| table.get("application").and_then(Value::as_str).map(str::to_string);
    let ours = config.model.as_ref().filter(|ours| {
        let family = |name: Option<String>| {
            TABLE.iter().find(|row| Some(row.name) == name.as_deref()).map(|row| row.family)
        };
        family(name(ours)) == family(name(&theirs))
    })?;
    let defaults = TABLE.iter().find(|row| Some(row.name) == name(ours).as_deref())?.defaults().ok()?;
    let mut all = Vec::new();
    for (key, their) in
        theirs.iter().filter(|(key, _)| *key != "application" && !FREE.contains(&key.as_str()))
    {
        let (their, our) = (to_json(their), ours.get(key).map_or_else(|| defaults[key].clone(), to_json));
        let is_same = match (our.as_f64(), their.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => our == their,
        };
        if !is_same {
            all.push((
                format!("model.{key}"),
                format!("model.{key} is {our}, but {their} in the saved model"),
            ));
        }
    }
    let longest = theirs.get("max_sequence_length").and_then(Value::as_integer);
    let length = config.data.sequence_length.map(|n| n as i64);
    if let Some((length, longest)) = length.zip(longest).filter(|(length, longest)| length > longest) {
        let what = format!(
            "data.sequence_length is {length}, but the saved model has {longest} positions (max_sequence_length)"
        );
        all.push(("data.sequence_length".into(), what));
    }
    Some(all)
}

/// Returns an argument of a layer by name.
fn argument(architecture: &Architecture, layer: &str, argument: &str) -> Option<Json> {
    let node = architecture.nodes.iter().find(|n| n.name == layer)?;
    node.layer.layer().config().get(argument).cloned()
}

fn num_layers(architecture: &Architecture) -> usize {
    let is_block = |n: &&LayerNode| n.name.starts_with("transformer_layer_");
    architecture.nodes.iter().filter(is_block).count()
}

/// Arguments that both families read from the embeddings and the first block.
fn common(architecture: &Architecture) -> Option<Map<String, Json>> {
    let mut all = Map::new();
    all.insert("num_layers".into(), json!(num_layers(architecture)));
    for (ours, layer, theirs) in [
        ("vocabulary_size", "token_embedding", "input_dim"),
        ("hidden_dim", "token_embedding", "output_dim"),
        ("max_sequence_length", "position_embedding", "sequence_length"),
        ("intermediate_dim", "transformer_layer_0", "intermediate_dim"),
        ("num_heads", "transformer_layer_0", "num_heads"),
        ("dropout", "transformer_layer_0", "dropout"),
    ] {
        all.insert(ours.into(), argument(architecture, layer, theirs)?);
    }
    Some(all)
}

fn gpt2(architecture: &Architecture) -> Option<(&'static str, Json)> {
    let mut all = common(architecture)?;
    all.insert("tie_weights".into(), argument(architecture, "token_embedding", "tie_weights")?);
    Some(("gpt2", all.into()))
}

fn bert(architecture: &Architecture) -> Option<(&'static str, Json)> {
    let mut all = common(architecture)?;
    let has = |name: &str| architecture.nodes.iter().any(|n| n.name == name);
    let of = |layer: &str, name: &str| argument(architecture, layer, name);
    all.insert("num_segments".into(), of("segment_embedding", "input_dim").unwrap_or(json!(0)));
    all.insert("mask_zero".into(), of("token_embedding", "mask_zero")?);
    if let Some(token) = of("token_embedding", "padding_token").filter(|token| !token.is_null()) {
        all.insert("padding_token".into(), token);
    }
    all.insert("activation".into(), of("transformer_layer_0", "activation")?);
    all.insert("layer_norm_epsilon".into(), of("transformer_layer_0", "layer_norm_epsilon")?);
    all.insert("output".into(), json!(if has("pooled_dense") { "pooled" } else { "sequence" }));
    if let Some(activation) = of("pooled_dense", "activation") {
        all.insert("pooled_activation".into(), activation);
    }
    if has("predictions") {
        all.insert("classes".into(), of("predictions", "units")?);
        all.insert("classifier_activation".into(), of("predictions", "activation")?);
    }
    Some(("bertbase", all.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(name: &str, arguments: Json) -> Architecture {
        by_name(name, arguments.as_object().unwrap()).unwrap()
    }

    #[test]
    fn sizes_are_read_from_the_layers() {
        let small = json!({"vocabulary_size": 31, "num_layers": 2, "num_heads": 3, "hidden_dim": 12,
                           "intermediate_dim": 20, "max_sequence_length": 9});
        for (name, more) in [
            ("gpt2", json!({"tie_weights": false})),
            ("gpt2", json!({"dropout": 0.0})),
            ("bertbase", json!({"classes": 3, "mask_zero": true, "activation": "relu"})),
            ("bertbase", json!({"output": "sequence", "num_segments": 0, "layer_norm_epsilon": 1e-5})),
            ("bertbase", json!({"classes": 1, "classifier_activation": "linear"})),
            ("bertbase", json!({"classes": 2, "pooled_activation": "relu", "num_segments": 0})),
        ] {
            let mut arguments = small.clone();
            more.as_object().unwrap().iter().for_each(|(key, value)| arguments[key] = value.clone());
            let architecture = built(name, arguments.clone());
            let table = application_of(&architecture).unwrap_or_else(|| panic!("{name} {more}"));
            assert_eq!(table["application"].as_str(), Some(name));
            for (key, value) in arguments.as_object().unwrap() {
                assert_eq!(to_json(&table[key]), *value, "{name}.{key}");
            }
        }
        let resnet = built("resnet18", json!({"classes": 3}));
        assert!(application_of(&resnet).is_none());
    }

    #[test]
    fn sizes_that_differ_are_both_named() {
        let saved = built(
            "gpt2",
            json!({"vocabulary_size": 500, "num_layers": 1, "num_heads": 2, "hidden_dim": 8,
                                         "intermediate_dim": 16, "max_sequence_length": 32}),
        );
        let mut config = RunConfig::preset("gpt-micro").unwrap();
        config.model = application_of(&saved);
        config.data.sequence_length = Some(32);
        assert!(size_conflicts(&config, &saved).is_empty());
        config.model.as_mut().unwrap().insert("hidden_dim".into(), 64.into());
        config.data.sequence_length = Some(33);
        let all = size_conflicts(&config, &saved);
        assert!(all[0].1.contains("model.hidden_dim is 64, but 8 in the saved model"), "{all:?}");
        assert!(
            all[1].1.contains("data.sequence_length is 33, but the saved model has 32 positions"),
            "{all:?}"
        );
        config.model = None;
        assert!(size_conflicts(&config, &saved).is_empty());
        // Unset sizes are those of the tokenizer, here bytes.
        let saved = RunConfig::preset("gpt-micro").unwrap().untrained().unwrap();
        let config = RunConfig::preset("gpt-micro").unwrap();
        assert!(size_conflicts(&config, saved.architecture()).is_empty());
    }
}
