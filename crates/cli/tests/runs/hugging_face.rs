//! End-to-end tests of Hugging Face folders with tokenizer or image processor: `predict` gives the classes and embeddings that
//! transformers computes (`fixtures/weights/hugging_face_predict.py`).

use crate::program::{Done, Folder, probabilities};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&fs::read(fixtures().join(path)).unwrap()).unwrap()
}

fn expected() -> Value {
    json_of("weights/hugging_face_predict/expected.json")
}

/// Copies a folder of the fixtures, with the tokenizer of its family.
fn copy(f: &Folder, name: &str) {
    let from = fixtures().join("weights/hugging_face_predict").join(name);
    let mut folders = vec![PathBuf::new()];
    while let Some(within) = folders.pop() {
        for entry in fs::read_dir(from.join(&within)).unwrap() {
            let path = within.join(entry.unwrap().file_name());
            if from.join(&path).is_dir() {
                folders.push(path);
            } else {
                f.write(&format!("{name}/{}", path.display()), fs::read(from.join(&path)).unwrap());
            }
        }
    }
    let tokenizer = &json_of("tokenizer/encoders.json")["tokenizers"][name]["json"];
    if !tokenizer.is_null() {
        f.write(&format!("{name}/tokenizer.json"), tokenizer.to_string());
    }
}

fn photo(f: &Folder, name: &str) {
    f.write(name, fs::read(fixtures().join("weights/hugging_face_predict").join(name)).unwrap());
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().map(|v| v.as_f64().unwrap()).collect()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64], most: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1f64, |m, v| m.max(v.abs()));
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f64::max);
    assert!(difference <= most, "{what}: {difference:e}: {found:?} {expected:?}");
}

/// Answers as JSON lines.
fn answers(done: &Done) -> Vec<Value> {
    done.out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

#[test]
fn classifiers_of_texts_equal_transformers() {
    let (f, all) = (Folder::new("hf-classes"), expected());
    for name in ["roberta", "xlm_roberta", "albert"] {
        copy(&f, name);
        for (text, p) in all["models"][name]["classes"].as_object().unwrap() {
            let answer = f.run(&["predict", name, "--text", text, "--json"]).ok().json();
            assert!(["cold", "mild", "warm"].contains(&answer["class"].as_str().unwrap()), "{answer}");
            close(&probabilities(&answer), &numbers(p), 1e-4, &format!("{name} {text:?}"));
        }
    }
    // From the imported file, texts of different lengths together: padding does not count.
    f.run(&["import", "roberta", "--out", "r.safetensors"]).ok();
    let texts: Vec<Value> =
        all["texts"].as_array().unwrap().iter().map(|text| json!({"text": text})).collect();
    f.write("texts.jsonl", texts.iter().map(|t| format!("{t}\n")).collect::<String>());
    let rows = answers(&f.run(&["predict", "r.safetensors", "texts.jsonl", "--json"]).ok());
    for (row, text) in rows.iter().zip(all["texts"].as_array().unwrap()) {
        let p = &all["models"]["roberta"]["classes"][text.as_str().unwrap()];
        close(&probabilities(row), &numbers(p), 1e-4, "roberta together");
    }
}

#[test]
fn embeddings_of_texts_equal_transformers() {
    let (f, all) = (Folder::new("hf-embed"), expected());
    for name in ["mpnet", "t5"] {
        copy(&f, name);
        for (text, y) in all["models"][name]["embeddings"].as_object().unwrap() {
            let answer = f.run(&["predict", name, "--text", text, "--embed", "--json"]).ok().json();
            close(&numbers(&answer["values"]), &numbers(y), 1e-4, &format!("{name} {text:?}"));
        }
    }
    f.run(&["predict", "t5", "--text", "sea"]).fails("unsupported", &["`t5`", "--embed"]);
    // The nearest of several texts, by the cosine.
    let texts = all["texts"].as_array().unwrap();
    let mut arguments = vec!["predict", "mpnet", "--text", "The sea is calm!", "--json"];
    texts.iter().for_each(|text| arguments.extend(["--candidate", text.as_str().unwrap()]));
    let answer = f.run(&arguments).ok().json();
    assert!(
        answer["similarity"].as_f64().unwrap() <= 1.0001 && answer.get("probability").is_none(),
        "{answer}"
    );
}

/// photo.png needs no resizing; wide.png does, as Pillow resizes.
#[test]
fn images_are_prepared_as_the_folder_says() {
    let (f, all) = (Folder::new("hf-images"), expected());
    ["photo.png", "wide.png"].iter().for_each(|name| photo(&f, name));
    for name in ["deit", "convnext", "dinov2"] {
        copy(&f, name);
        for photo in ["photo.png", "wide.png"] {
            let what = format!("{name} {photo}");
            let models = &all["models"][name];
            match models.get("classes") {
                Some(p) => {
                    let answer = f.run(&["predict", name, photo, "--json"]).ok().json();
                    close(&probabilities(&answer), &numbers(&p[photo]), 1e-4, &what);
                    let more = f.run(&["predict", name, photo, "--embed", "--json"]).ok().json();
                    assert!(numbers(&more["values"]).len() > 3, "{more}");
                }
                None => {
                    f.run(&["predict", name, photo]).fails("unsupported", &[name, "--embed"]);
                    let answer = f.run(&["predict", name, photo, "--embed", "--json"]).ok().json();
                    close(&numbers(&answer["values"]), &numbers(&models["embeddings"][photo]), 1e-4, &what);
                }
            }
        }
    }
    // The imported file keeps the preparation.
    f.run(&["import", "deit", "--out", "d.safetensors"]).ok();
    let answer = f.run(&["predict", "d.safetensors", "photo.png", "--json"]).ok().json();
    close(
        &probabilities(&answer),
        &numbers(&all["models"]["deit"]["classes"]["photo.png"]),
        1e-4,
        "deit imported",
    );
}

#[test]
fn clip_embeds_and_ranks_texts_and_images() {
    let (f, all) = (Folder::new("hf-clip"), expected());
    copy(&f, "clip");
    photo(&f, "photo.png");
    let clip = &all["models"]["clip"];
    f.write("pets/cat/1.png", fs::read(f.path("photo.png")).unwrap());
    f.write("pets/dog/1.png", fs::read(f.path("photo.png")).unwrap());
    f.run(&["evaluate", "clip", "pets"]).fails("unsupported", &["clip", "--embed"]);
    let answer = f.run(&["predict", "clip", "photo.png", "--embed", "--json"]).ok().json();
    close(&numbers(&answer["values"]), &numbers(&clip["images"]["photo.png"]), 1e-4, "clip image");
    for (text, y) in clip["texts"].as_object().unwrap() {
        let answer = f.run(&["predict", "clip", "--text", text, "--embed", "--json"]).ok().json();
        close(&numbers(&answer["values"]), &numbers(y), 1e-4, &format!("clip {text:?}"));
    }
    let texts = all["texts"].as_array().unwrap();
    let mut arguments = vec!["predict", "clip", "photo.png", "--json", "--top", "4"];
    texts.iter().for_each(|text| arguments.extend(["--candidate", text.as_str().unwrap()]));
    let answer = f.run(&arguments).ok().json();
    close(&probabilities(&answer), &numbers(&clip["ranked"]), 1e-4, "clip ranked");
    assert!(texts.contains(&answer["class"]), "{answer}");
    // Images for a text; and an encoder alone.
    let answer =
        f.run(&["predict", "clip", "--text", "sea", "--candidate", "photo.png", "--json"]).ok().json();
    assert_eq!(answer["class"], "photo.png");
    f.run(&["import", "clip", "--encoder", "texts", "--out", "t.safetensors"]).ok();
    let answer = f.run(&["predict", "t.safetensors", "--text", "sea", "--embed", "--json"]).ok().json();
    close(&numbers(&answer["values"]), &numbers(&clip["texts"]["sea"]), 1e-4, "clip texts imported");
    f.run(&["predict", "clip", "photo.png", "--candidate", "photo.png", "--candidate", "sea"])
        .fails("usage", &["--candidate", "`sea`"]);
}

#[test]
fn families_are_listed_and_language_models_refused() {
    let f = Folder::new("hf-list");
    let shown = f.run(&["import", "--list"]).ok().out;
    let listed = f.run(&["import", "--list", "--json"]).ok().json();
    for family in listed.as_array().unwrap() {
        assert!(shown.contains(family["name"].as_str().unwrap()), "{shown}");
    }
    assert!(shown.contains("xlm-roberta") && shown.contains("whisper"), "{shown}");
    f.run(&["import", "--out", "x.safetensors"]).fails("usage", &[]);
    f.write("llm/config.json", "{\"model_type\": \"qwen2\"}");
    f.run(&["import", "llm", "--out", "x.safetensors"]).fails("unsupported", &["`qwen2`", "import --list"]);
    f.run(&["predict", "llm", "--text", "x"]).fails("unsupported", &["`qwen2`"]);
}

/// RoBERTa masks its padding in training too; other families cannot be described by a configuration yet.
#[test]
fn folders_are_fine_tuned_or_refused() {
    let f = Folder::new("hf-tune");
    let row = |i: usize| format!("the sea is {} {i},{}\n", ["calm", "blue"][i % 2], ["yes", "no"][i % 2]);
    f.write("texts.csv", (0..40).fold("text,label\n".to_string(), |all, i| all + &row(i)));
    ["roberta", "mpnet", "deit"].iter().for_each(|name| copy(&f, name));
    let more = ["--fine-tune", "--epochs=1", "--threads=1", "--json", "--out", "tuned"];
    let done = f.run(&[&["train", "texts.csv", "--from", "roberta"], &more[..]].concat()).ok().json();
    assert_eq!(done["config"]["model"]["padding_token"], 1, "{done}");
    let evaluated = f.run(&["evaluate", "tuned/texts.safetensors", "--json"]).ok().json();
    assert_eq!(evaluated["loss"], done["val_loss"], "{done}");
    f.run(&["predict", "tuned", "--text", "calm"]).ok();
    f.run(&[&["train", "texts.csv", "--from", "mpnet"], &more[..]].concat())
        .fails("unsupported", &["`mpnet`"]);
    // Images: the processor's pixels from 0 to 255, cropped to the aspect ratio.
    ["photo.png", "wide.png"].iter().for_each(|name| photo(&f, name));
    for (i, name) in ["photo.png", "wide.png"].iter().enumerate() {
        for copy in 0..4 {
            f.write(&format!("album/{}/{copy}.png", ["a", "b"][i]), fs::read(f.path(name)).unwrap());
        }
    }
    fs::remove_dir_all(f.path("tuned")).unwrap();
    f.run(&["import", "deit", "--out", "d.safetensors"]).ok();
    let done = f.run(&[&["train", "album", "--from", "d.safetensors"], &more[..]].concat()).ok().json();
    assert_eq!(done["config"]["data"]["scale"], 1.0, "{done}");
    assert_eq!(done["config"]["data"]["resize"]["crop_to_aspect_ratio"], true, "{done}");
}
