//! Backward compatibility tests: models, finished runs and backups written by an earlier version load and give
//! bit-identical results.

use crate::program::{Done, Folder};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What the program of that commit wrote; its README says how.
fn fixtures() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fixtures/compat/722460d")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// A folder with a copy of all fixtures, since runs write into their folders.
fn copied(name: &str) -> Folder {
    let folder = Folder::new(name);
    copy(&fixtures(), &folder.0);
    folder
}

/// The kernels of every machine, so that bits can be compared.
fn portable(folder: &Folder, args: &[&str]) -> Done {
    Done::of(folder.command(args).env("SYSTOLE_ISA", "portable").output().unwrap(), args).ok()
}

fn recorded(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixtures().join(name)).unwrap()).unwrap()
}

#[test]
fn a_model_predicts_and_measures_as_it_did() {
    let folder = copied("compat-model");
    let said = portable(&folder, &["predict", "model.safetensors", "picture.png", "--json", "--threads=2"]);
    assert_eq!(said.json(), recorded("model-predicts.json"));
    let measured = portable(&folder, &["evaluate", "model.safetensors", "--json", "--threads=2"]).json();
    for (name, value) in recorded("model-evaluates.json").as_object().unwrap() {
        if name != "seconds" {
            assert_eq!(&measured[name], value, "{name}");
        }
    }
}

#[test]
fn a_finished_run_prints_its_result_and_trains_nothing() {
    let folder = copied("compat-finished");
    let model = folder.path("finished/glyphs.safetensors");
    let before = std::fs::read(&model).unwrap();
    let done = portable(&folder, &["resume", "finished", "--json"]);
    assert!(done.err.contains("is finished: nothing to train"), "{}", done.err);
    let result = done.json();
    assert_eq!((&result["steps"], &result["total_steps"]), (&0.into(), &24.into()));
    assert_eq!(result["val_loss"].as_f64(), Some(2.1876989006996155));
    assert_eq!(result["history"].as_array().unwrap().len(), 2);
    assert!(std::fs::read(&model).unwrap() == before, "the model file is another one now");
}

#[test]
fn an_interrupted_run_ends_with_the_same_bits() {
    let folder = copied("compat-interrupted");
    let done = portable(&folder, &["resume", "interrupted", "--json", "--threads=2"]);
    assert!(done.err.contains("Resuming at epoch 2, after 46 steps of it"), "{}", done.err);
    let model = std::fs::read(folder.path("interrupted/glyphs.safetensors")).unwrap();
    let expected = std::fs::read(fixtures().join("interrupted-resumed.safetensors")).unwrap();
    assert!(model == expected, "the model is another one than the earlier version ends with");
}
