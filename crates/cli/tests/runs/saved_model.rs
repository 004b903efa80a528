//! The saved model is the tested model: `evaluate` of a written file gives the figures that `train` reported, bit by
//! bit, for every way of training.

use crate::program::{Done, Folder};
use serde_json::Value;

/// Settings of all runs: few samples, no report.
const SMALL: [&str; 5] = [
    "--threads=1",
    "--set=fit.report=false",
    "--set=fit.logger=none",
    "--set=fit.validation_freq=1",
    "--set=fit.monitor=loss",
];

/// Ways of training, with their arguments; those with `--lora` start from a saved model, and QLoRA from a packed one.
const WAYS: [(&str, &[&str]); 10] = [
    ("plain", &[]),
    ("LoRA", &["--lora=2:8", "--learning-rate=0.02"]),
    ("QLoRA", &["--lora=2:8", "--learning-rate=0.02"]),
    ("EMA", &["--set=optimizer.use_ema=true", "--set=optimizer.ema_momentum=0.9"]),
    ("SWA", &["--set=optimizer.swa={swa_lrs=0.001,swa_epoch_start=0.5,annealing_epochs=1}"]),
    ("pruning", &["--set=pruning.target_sparsity=0.5", "--set=pruning.frequency=2"]),
    ("channel pruning", &["--set=pruning.channels=true", "--set=pruning.frequency=2"]),
    ("QAT", &["--quantize"]),
    (
        "EarlyStopping",
        &[
            "--set=callbacks=[{type=\"EarlyStopping\",patience=1,restore_best_weights=true}]",
            "--learning-rate=0.3",
        ],
    ),
    (
        "ModelCheckpoint",
        &["--set=callbacks=[{type=\"ModelCheckpoint\",filepath=\"kept.safetensors\",save_best_only=true}]"],
    ),
];

const GLYPHS: [&str; 3] = ["--set=data.train_samples=192", "--set=data.test_samples=96", "--batch-size=32"];
const TEXT: [&str; 3] = ["--data-dir=text.txt", "--set=data.sequence_length=16", "--batch-size=8"];

/// A tiny version of a preset.
struct Preset {
    name: &'static str,
    data: &'static str,
    settings: Vec<&'static str>,
    /// Ways that this preset refuses, with the kind of the error and a name in it.
    refuses: &'static [(&'static str, &'static str, &'static str)],
}

fn text() -> String {
    let animals = ["cat", "dog", "sea"];
    (0..120).map(|i| format!("the {} of {} {i}\n", animals[i % 3], ["sun", "moon"][i % 2])).collect()
}

/// Compares the values of `train --json` with `evaluate --json` of a file.
fn same(f: &Folder, case: &str, reported: &Value, file: &Value, names: &[String]) {
    let data = if f.path("text.txt").is_file() { "--data-dir=text.txt" } else { "--threads=1" };
    let measured = f.run(&["evaluate", file.as_str().unwrap(), data, "--json"]).ok().json();
    assert!(!names.is_empty(), "{case}: {reported}");
    for name in names {
        let own = name.trim_start_matches("val_");
        assert!(measured[own].is_number(), "{case}: {own} of {measured}");
        assert_eq!(reported[name], measured[own], "{case}: {name} of {file}");
    }
}

/// The last model has the reported test figures, the best model its own.
fn holds(f: &Folder, case: &str, done: &Done) {
    let o = done.json();
    let names: Vec<String> =
        o.as_object().unwrap().keys().filter(|name| name.starts_with("val_")).cloned().collect();
    same(f, case, &o, &o["model_file"], &names);
    let Some(monitor) = o["best"]["monitor"].as_str() else { return };
    let best = serde_json::json!({ monitor: o["best"]["value"] });
    same(f, &format!("{case}, best"), &best, &o["best"]["model_file"], &[monitor.to_string()]);
}

fn holds_for(preset: &Preset) {
    let f = Folder::new(&format!("saved-{}", preset.name));
    if preset.settings.contains(&TEXT[0]) {
        f.write("text.txt", text());
    }
    let train = |more: &[&str]| {
        let all = [&["train", preset.data, "--json"], &preset.settings[..], &SMALL, more].concat();
        f.run(&all)
    };
    let base = train(&["--epochs=1", "--out=base"]).ok().json()["model_file"].as_str().unwrap().to_string();
    let packed = ["--activations=none", "--weights=int8", "--out=packed.safetensors"];
    f.run(&[&["quantize", &base], &packed[..]].concat()).ok();
    for (way, args) in WAYS {
        let case = format!("{} with {way}", preset.name);
        let from = match way {
            "LoRA" => Some(format!("--from={base}")),
            "QLoRA" => Some("--from=packed.safetensors".into()),
            _ => None,
        };
        let from: Vec<&str> = from.as_deref().into_iter().collect();
        let done = train(&[&["--epochs=4", "--out", way], &from[..], args].concat());
        match preset.refuses.iter().find(|(refused, ..)| *refused == way) {
            Some((_, kind, name)) => drop(done.fails(kind, &[name])),
            None => holds(&f, &case, &done.ok()),
        }
    }
}

#[test]
fn the_saved_mlp_is_the_tested_one() {
    let layers = "--set=layers=[{type=\"Flatten\"},{type=\"Dense\",units=16,activation=\"relu\"},{type=\"Dropout\",rate=0.2},{type=\"Dense\",units=10,activation=\"softmax\"}]";
    let settings = [&[layers], &GLYPHS[..]].concat();
    holds_for(&Preset { name: "mlp", data: "mlp", settings, refuses: &[] });
}

#[test]
fn the_saved_cnn_is_the_tested_one() {
    let layers = "--set=layers=[{type=\"Conv2D\",filters=4,kernel_size=3},{type=\"BatchNormalization\"},{type=\"Activation\",activation=\"relu\"},{type=\"MaxPooling2D\"},{type=\"Conv2D\",filters=4,kernel_size=3,activation=\"relu\"},{type=\"Flatten\"},{type=\"Dense\",units=10,activation=\"softmax\"}]";
    let settings = [&[layers], &GLYPHS[..]].concat();
    holds_for(&Preset { name: "cnn", data: "glyphs", settings, refuses: &[] });
}

#[test]
fn the_saved_lstm_is_the_tested_one() {
    let layers = "--set=layers=[{type=\"Embedding\",input_dim=256,output_dim=8},{type=\"LSTM\",units=8,return_sequences=true},{type=\"Dense\",units=256,activation=\"softmax\"}]";
    let settings = [&[layers], &TEXT[..]].concat();
    let refuses = &[("QAT", "unsupported", "LSTM"), ("channel pruning", "unsupported", "`dense`")];
    holds_for(&Preset { name: "lstm", data: "lstm", settings, refuses });
}

#[test]
fn the_saved_gpt_with_tied_embeddings_is_the_tested_one() {
    let sizes = [
        "--set=model.hidden_dim=16",
        "--set=model.num_layers=2",
        "--set=model.num_heads=2",
        "--set=model.intermediate_dim=32",
    ];
    let settings = [&sizes[..], &TEXT[..]].concat();
    holds_for(&Preset {
        name: "gpt",
        data: "gpt-micro",
        settings,
        refuses: &[("channel pruning", "config", "`*`")],
    });
}
