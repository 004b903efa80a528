//! Folders that transformers wrote (`fixtures/weights/hugging_face.py`): imported models compute what its models do.

use super::{fixture, open};
use serde_json::{Value, json};
use systole_data::Dataset;
use systole_ir::{ErrorKind, Literal};
use systole_nn::Model;
use systole_testing::assert_error;
use systole_weights::{Tower, WeightFormat, WeightSource, export, families};

/// Returns an array of a case.
fn expected(case: &str, name: &str) -> Literal {
    let all = open("hugging_face_expected.safetensors");
    let name = format!("{case}/{name}");
    all.tensors().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name}")).1.clone()
}

fn folder(name: &str) -> WeightSource {
    open(&format!("hugging_face/{name}"))
}

/// Builds and fills the model of a folder.
#[track_caller]
fn filled(source: &WeightSource) -> Model {
    let (layers, inputs) = source.architecture().unwrap_or_else(|e| panic!("{e}")).expect("a known family");
    let mut model = Model::new(layers);
    model.build(&inputs).unwrap();
    source.fill(&mut model, false).unwrap_or_else(|e| panic!("{e}"));
    model
}

/// Returns the largest difference of the model's outputs from those of transformers, relative to the largest value.
#[track_caller]
fn difference(source: &WeightSource, case: &str) -> f32 {
    let mut model = filled(source);
    let names: Vec<String> = model.architecture().inputs.iter().map(|i| i.name.clone()).collect();
    let inputs: Vec<(String, Literal)> = names.iter().map(|n| (n.clone(), expected(case, n))).collect();
    if inputs[0].1.dtype().is_int() {
        model.set_sequence_length(inputs[0].1.shape()[1]);
    }
    systole_runtime::register(systole_cpu::provider());
    let found = model.predict(&Dataset::from_tensor_slices(inputs).unwrap().batch(8)).unwrap();
    let y = expected(case, "y");
    assert_eq!(found.shape(), y.shape(), "{case}");
    let (found, y) = (found.to_f32s(), y.to_f32s());
    let scale = y.iter().fold(1f32, |m, v| m.max(v.abs()));
    found.iter().zip(&y).map(|(a, b)| (a - b).abs() / scale).fold(0f32, f32::max)
}

const FOLDERS: [&str; 16] = [
    "roberta_classifier",
    "mpnet",
    "mpnet_classifier",
    "albert",
    "albert_classifier",
    "t5",
    "t5_whole",
    "deit_classifier",
    "deit_teacher",
    "dinov2",
    "dinov2_classifier",
    "convnext_classifier",
    "swin",
    "swin_classifier",
    "whisper",
    "clip",
];

#[test]
fn families_compute_what_transformers_does() {
    for name in FOLDERS.iter().filter(|name| **name != "clip") {
        let most = difference(&folder(name), name);
        assert!(most <= 1e-5, "{name} differs by {most:e}");
    }
}

#[test]
fn clip_is_read_as_either_of_its_encoders() {
    for (tower, case) in [(Tower::Images, "clip_images"), (Tower::Texts, "clip_texts")] {
        let mut source = folder("clip");
        assert!(source.has_towers());
        source.select_tower(tower);
        let most = difference(&source, case);
        assert!(most <= 1e-5, "{case} differs by {most:e}");
    }
}

#[test]
fn unknown_keys_and_wrong_sizes_of_every_family_are_named() {
    for name in FOLDERS {
        let text = std::fs::read(fixture("hugging_face").join(name).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&text).unwrap();
        let with = |key: &str, value: Value| {
            let (mut source, mut config) = (folder(name), config.clone());
            let part = if name == "clip" { &mut config["vision_config"] } else { &mut config };
            part[key] = value;
            source.set_config(config.to_string().as_bytes()).unwrap();
            source.architecture().map(|_| ()).expect_err(name)
        };
        assert_error(&with("rotary_base", json!(10000)), ErrorKind::Data, &["rotary_base"]);
        let size = ["hidden_size", "d_model", "num_stages", "embed_dim"];
        let size = size.into_iter().find(|key| config.get(key).is_some()).unwrap_or("hidden_size");
        let size = if name.starts_with("swin") { "embed_dim" } else { size };
        assert_error(&with(size, json!(77)), ErrorKind::Data, &["77"]);
    }
}

/// safetensors and PyTorch files of every family are read again by the layers' names; Keras lacks layers or arguments.
#[test]
fn weights_of_every_family_survive_an_export() {
    for name in FOLDERS {
        let model = filled(&folder(name));
        super::survives(&model, WeightFormat::Safetensors, "again.safetensors");
        super::survives(&model, WeightFormat::Torch, "again.pt");
        if name != "convnext_classifier" {
            let e = export(&model, WeightFormat::Keras, std::path::Path::new("x.keras")).err().expect(name);
            assert_error(&e, ErrorKind::Config, &["--format"]);
        }
    }
}

/// Every family of the table is a folder of the fixtures.
#[test]
fn every_family_is_tested() {
    let kind = |name: &str| folder(name).model_type().unwrap_or_default().to_string();
    let older = ["bert", "vit", "gpt2", "resnet"].map(|name| open(name).model_type().unwrap().to_string());
    let tested: Vec<String> = FOLDERS.iter().map(|name| kind(name)).chain(older).collect();
    for family in families() {
        let is_tested = family.model_types.iter().any(|kind| tested.iter().any(|t| t == kind));
        assert!(is_tested, "no folder of {}", family.name);
    }
}

#[test]
fn large_language_models_are_refused_by_name() {
    let folder = std::env::temp_dir().join(format!("systole-hf-llama-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let e = WeightSource::open(&folder).err().unwrap();
    assert_error(&e, ErrorKind::Unsupported, &["`llama`", "import --list"]);
    std::fs::remove_dir_all(&folder).unwrap();
}
