//! config.json of Hugging Face and files without it: every key counts or is an error that names it, and guesses are told.

use super::{fixture, open, written};
use serde_json::{Value, json};
use systole_ir::{DType, Literal};
use systole_nn::{Architecture, Model};
use systole_weights::WeightSource;

fn config(folder: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(folder).join("config.json")).unwrap()).unwrap()
}

/// Returns a fixture with a changed config.json.
fn with(folder: &str, key: &str, value: Value) -> WeightSource {
    let (mut source, mut config) = (open(folder), config(folder));
    config[key] = value;
    source.set_config(config.to_string().as_bytes()).unwrap();
    source
}

/// Returns a file of tensors without config.json.
pub fn alone(tensors: &[(String, Literal)]) -> WeightSource {
    let floats = tensors.iter().filter(|(_, v)| v.dtype() == DType::F32);
    let arrays: Vec<(&str, &Literal)> = floats.map(|(n, v)| (n.as_str(), v)).collect();
    WeightSource::from_bytes("x.safetensors", written(&arrays)).unwrap()
}

#[track_caller]
fn refused(source: &WeightSource, part: &str) {
    let e = source.architecture().map(|_| ()).expect_err(part).to_string();
    assert!(e.contains(part), "{part}: {e}");
}

fn layer(architecture: &Architecture, name: &str) -> Value {
    let node = architecture.nodes.iter().find(|n| n.name == name).unwrap_or_else(|| panic!("no {name}"));
    Value::from_iter(node.layer.layer().config().as_object().unwrap().clone())
}

fn derived(source: &WeightSource) -> Architecture {
    source.architecture().unwrap_or_else(|e| panic!("{e}")).unwrap().0
}

#[test]
fn keys_that_are_not_known_are_errors_that_name_them() {
    for folder in ["bert", "bert_classifier", "vit", "resnet", "resnet_basic", "gpt2"] {
        assert!(open(folder).architecture().is_ok(), "{folder}");
        refused(&with(folder, "rotary_base", json!(10000)), "unknown key rotary_base = 10000");
        assert!(with(folder, "rotary_base", Value::Null).architecture().is_ok(), "{folder}: unset");
        refused(&with(folder, "model_type", json!("albert")), "model_type albert");
    }
}

#[test]
fn options_that_change_the_results_are_followed_or_errors() {
    for (folder, key, value, part) in [
        ("gpt2", "scale_attn_weights", json!(false), "scale_attn_weights"),
        ("gpt2", "activation_function", json!("relu"), "activation_function is relu"),
        ("gpt2", "n_layer", json!(3), "n_layer is 3, but the tensors have 2"),
        ("gpt2", "n_head", json!(3), "not divisible by 3 heads"),
        ("bert", "hidden_act", json!("silu"), "hidden_act is silu"),
        ("bert", "hidden_size", json!(16), "hidden_size is 16"),
        ("bert", "num_attention_heads", json!("two"), "num_attention_heads is \"two\""),
        ("bert", "pruned_heads", json!({"0": [1]}), "pruned_heads"),
        ("bert_classifier", "problem_type", json!("ranking"), "problem_type ranking"),
        ("bert_classifier", "num_labels", json!(2), "num_labels has 2 labels"),
        ("vit", "qkv_bias", json!(false), "qkv_bias"),
        ("vit", "patch_size", json!(8), "patch_size is 8"),
        ("resnet", "hidden_act", json!("gelu"), "hidden_act is gelu"),
        ("resnet", "depths", json!([1, 3]), "depths is [1, 3]"),
        ("resnet", "layer_type", json!("basic"), "layer_type is basic"),
    ] {
        refused(&with(folder, key, value), part);
    }
    let strides = |key: &str, layers: &[&str]| -> Vec<Value> {
        let architecture = derived(&with("resnet", key, json!(true)));
        layers.iter().map(|name| layer(&architecture, name)["strides"].clone()).collect()
    };
    let names = ["conv2_block1_0_conv", "conv2_block1_2_conv", "conv3_block1_1_conv", "conv3_block1_2_conv"];
    let [two, one] = [json!([2, 2]), json!([1, 1])];
    assert_eq!(strides("downsample_in_first_stage", &names), [&two, &two, &one, &two].map(Value::clone));
    assert_eq!(strides("downsample_in_bottleneck", &names), [&one, &one, &two, &one].map(Value::clone));
}

#[test]
fn heads_have_the_activation_of_their_problem() {
    for folder in ["bert_classifier", "vit", "resnet"] {
        let activation = |kind: Value| {
            layer(&derived(&with(folder, "problem_type", kind)), "predictions")["activation"].clone()
        };
        assert_eq!(activation(Value::Null), "softmax", "{folder}");
        assert_eq!(activation(json!("single_label_classification")), "softmax", "{folder}");
        assert_eq!(activation(json!("multi_label_classification")), "sigmoid", "{folder}");
        assert_eq!(activation(json!("regression")), "linear", "{folder}");
    }
    // One output is a score: a softmax of it would always be 1.
    let one = |(name, value): &(String, Literal)| {
        let (shape, values) = (value.shape().to_vec(), value.to_f32s());
        let value = match name.starts_with("classifier.") {
            true => {
                Literal::from_slice([&[1], &shape[1..]].concat(), &values[..values.len() / shape[0]]).unwrap()
            }
            false => value.clone(),
        };
        (name.clone(), value)
    };
    let source = alone(&open("bert_classifier").tensors().iter().map(one).collect::<Vec<_>>());
    assert_eq!(layer(&derived(&source), "predictions")["activation"], "linear");
    let guesses = source.guesses().unwrap().join("; ");
    assert!(
        guesses.contains("a regression") && guesses.contains("1 attention heads of width 8"),
        "{guesses}"
    );
    assert!(guesses.contains("hidden_act = gelu") && guesses.contains("layer_norm_eps"), "{guesses}");
}

#[test]
fn guesses_are_told_only_without_a_config() {
    for folder in ["bert", "bert_classifier", "vit", "resnet", "gpt2"] {
        assert_eq!(open(folder).guesses().unwrap(), [""; 0], "{folder}");
        let alone = alone(open(folder).tensors());
        assert!(!alone.guesses().unwrap().is_empty(), "{folder}");
    }
}

/// RoBERTa's first position is 2; the fixture's BERT is one with other names, and 7 positions instead of 9.
#[test]
fn robertas_positions_start_after_that_of_padding() {
    let renamed = |prefix: &str| -> Vec<(String, Literal)> {
        let of = |(name, value): &(String, Literal)| {
            let value = match name.contains("token_type_embeddings") {
                true => Literal::from_slice([1, 8], &value.to_f32s()[..8]).unwrap(),
                false => value.clone(),
            };
            let name = name.replace("bert.", prefix).replace("classifier.", "classifier.out_proj.");
            (name.replace(&format!("{prefix}pooler."), "classifier."), value)
        };
        open("bert_classifier").tensors().iter().map(of).collect()
    };
    let mut settings = config("bert_classifier");
    for kind in ["roberta", "camembert", "xlm-roberta"] {
        let mut source = alone(&renamed("roberta."));
        for (key, value) in
            [("model_type", json!(kind)), ("pad_token_id", json!(1)), ("type_vocab_size", json!(1))]
        {
            settings[key] = value;
        }
        source.set_config(settings.to_string().as_bytes()).unwrap();
        let (layers, inputs) = source.architecture().unwrap_or_else(|e| panic!("{e}")).unwrap();
        assert_eq!(inputs[0].shape.dims(), [7]);
        let mut model = Model::new(layers);
        model.build(&inputs).unwrap();
        let report = source.fill(&mut model, false).unwrap_or_else(|e| panic!("{e}"));
        assert!(report.left_over.is_empty());
        let table = open("bert_classifier");
        let rows = &table.tensors().iter().find(|(n, _)| n.contains("position_embeddings")).unwrap().1;
        assert_eq!(model.weight("position_embedding/embeddings").unwrap().to_f32s(), rows.to_f32s()[16..]);
        let row = report.rows.iter().find(|r| r.ours == "position_embedding/embeddings").unwrap();
        assert_eq!(row.how, "rows 2..9");
    }
    let guesses = alone(&renamed("roberta.")).guesses().unwrap().join("; ");
    assert!(guesses.contains("positions that start at 2"), "{guesses}");
    refused(&alone(&renamed("")), "RoBERTa");
}

#[test]
fn class_names_are_those_of_the_config_unless_they_are_defaults() {
    let names = |labels: Value| with("bert_classifier", "id2label", labels).class_names();
    assert_eq!(names(json!({"1": "dog", "0": "cat", "2": "LABEL_2"})), ["cat", "dog", "LABEL_2"]);
    assert_eq!(names(json!({"0": "LABEL_0", "1": "LABEL_1"})), [""; 0]);
    assert_eq!(names(json!({"0": "cat", "2": "dog"})), [""; 0], "an index is missing");
    assert_eq!(open("earliest.h5").class_names(), [""; 0]);
}
