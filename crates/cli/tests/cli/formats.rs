//! Tests that every command that takes a model recognizes the model files of other programs: it reads them, or says what they
//! are and which command reads them; it never calls them damaged.

use crate::program::Folder;
use std::fs;
use std::path::Path;
use systole_ir::{DType, Literal, TensorType};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)).unwrap()
}

/// A folder with one file of each format, each with a usual name and with one that tells nothing.
fn files(name: &str) -> (Folder, Vec<(String, &'static str)>) {
    let f = Folder::new(name);
    let all = [
        ("gguf", [&b"GGUF\x03"[..], &[0; 59]].concat(), "GGUF"),
        ("h5", fixture("weights/cnn.h5"), "HDF5"),
        ("pth", fixture("weights/legacy.pth"), "PyTorch"),
        ("pt", fixture("weights/mixed.pt"), "PyTorch"),
        ("keras", fixture("weights/cnn.keras"), "Keras"),
        ("onnx", fixture("onnx/mlp.onnx"), "ONNX"),
        ("tflite", [&b"\x1c\0\0\0TFL3"[..], &[0; 56]].concat(), ".tflite"),
    ];
    let mut names = Vec::new();
    for (extension, bytes, what) in all {
        for name in [format!("model.{extension}"), format!("{extension}-file")] {
            fs::write(f.path(&name), &bytes).unwrap();
            names.push((name, what));
        }
    }
    (f, names)
}

#[test]
fn commands_tell_what_a_file_of_another_format_is() {
    let (f, names) = files("formats");
    // Each with the formats that it reads.
    let commands: [(&[&str], &[&str]); 13] = [
        (&["summary", "FILE"], &["onnx", "tflite"]),
        (&["predict", "FILE", "x.png"], &["onnx", "tflite"]),
        (&["evaluate", "FILE"], &["onnx", "tflite"]),
        (&["generate", "FILE"], &[]),
        (&["quantize", "FILE", "--out", "out.tflite"], &[]),
        (&["export", "FILE", "--format", "torch", "--out", "out.pt"], &[]),
        (&["train", "mlp", "--from", "FILE", "--out", "out"], &[]),
        (&["import", "FILE", "--out", "out.safetensors"], &["h5", "pth", "pt", "keras"]),
        (&["show", "FILE"], &["onnx", "tflite"]),
        (&["run", "FILE"], &["onnx", "tflite"]),
        (&["check", "FILE"], &["onnx", "tflite"]),
        (&["translate", "FILE", "out.mlir"], &["onnx", "tflite"]),
        (&["plan", "FILE"], &["onnx", "tflite"]),
    ];
    let mut wrong = Vec::new();
    for (words, reads) in commands {
        for (name, what) in &names {
            if reads.iter().any(|format| name.ends_with(format) || name.starts_with(&format!("{format}-"))) {
                continue;
            }
            let args: Vec<&str> =
                words.iter().map(|w| if *w == "FILE" { name.as_str() } else { w }).collect();
            let done = f.run(&args);
            let told = format!("{}{}", done.out, done.err);
            let is_told = told.contains(what) && told.contains("try: ") && !told.contains("damaged");
            if done.code == Some(0) || !is_told {
                wrong.push(format!("{}: {told}", args.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn legacy_files_are_imported_and_guesses_are_printed() {
    let (f, _) = files("formats-legacy");
    let done = f.run(&["import", "model.pth", "--out", "out.safetensors"]);
    done.fails("usage", &["model.pth", "import --list", "--model"]);
    fs::write(f.path("vit.safetensors"), fixture("weights/vit/model.safetensors")).unwrap();
    let done = f.run(&["import", "vit.safetensors", "--out", "vit-out.safetensors"]);
    let told = done.ok().out;
    assert!(told.contains("Guessed, because no file states it: 1 attention heads of width 8."), "{told}");
    fs::create_dir(f.path("vit")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::write(f.path("vit").join(name), fixture(&format!("weights/vit/{name}"))).unwrap();
    }
    let done = f.run(&["import", "vit", "--out", "told.safetensors"]).ok();
    assert!(!done.out.contains("Guessed"), "{}", done.out);
}

/// The commands after `Next:` use the imported model; names that do not exist name a similar one.
#[test]
fn an_import_names_the_commands_that_use_the_model() {
    let f = Folder::new("formats-next");
    let next = |file: &str, out: &str| -> Vec<String> {
        fs::write(f.path(file), fixture(&format!("weights/{file}"))).unwrap();
        let text = f.run(&["import", file, "--out", out]).ok().out;
        let (_, commands) = text.split_once("Next:\n").expect("next commands");
        let words = |line: &str| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
        commands.lines().map(words).collect()
    };
    // Their first layers rescale and standardize.
    let rescaled = next("efficientnetv2.keras", "efficientnetv2.safetensors");
    assert_eq!(
        rescaled,
        [
            "summary efficientnetv2.safetensors",
            "predict efficientnetv2.safetensors IMAGE --scale 1",
            "evaluate efficientnetv2.safetensors FOLDER --scale 1"
        ]
    );
    let standardized = next("convnext.keras", "convnext.safetensors");
    assert!(standardized[1].ends_with("--scale 1"), "{standardized:?}");
    for line in rescaled.iter().chain(&standardized).filter(|line| !line.contains(" FOLDER")) {
        let file = line.split_whitespace().nth(1).unwrap();
        let takes =
            systole_nn::Model::load(f.path(file)).unwrap().architecture().inputs[0].ty.clone().unwrap();
        let picture = Literal::zeros(TensorType::new(DType::U8, takes.shape.dims()));
        fs::write(f.path("x.png"), systole_data::format::png::to_bytes(&picture).unwrap()).unwrap();
        f.run(&line.replace("IMAGE", "x.png").split_whitespace().collect::<Vec<_>>()).ok();
    }
    f.run(&["predict", "convnext.safetensor", "x.png"])
        .fails("io", &["convnext.safetensor", "convnext.safetensors"]);
    f.run(&["export", "convnext.safetensors", "--out", "c.pb"]).fails("usage", &["--out", ".pb", ".onnx"]);
    // Keras reads weights from files that end in .weights.h5.
    f.run(&["export", "convnext.safetensors", "--out", "c.h5"]).fails("usage", &["--out", ".weights.h5"]);
    let scaled = f.run(&["export", "convnext.safetensors", "--out", "c.onnx", "--set=data.scale=1/255"]);
    scaled.fails("usage", &["--set", "--int8"]);
    f.write("a.bar", "abc");
    f.run(&["predict", "convnext.safetensors", "a.bar"]).fails("data", &["a.bar"]);
    f.run(&["evaluate", "convnext.safetensors", "--dataset=cifar10"])
        .fails("io", &["`cifar10`", "cifar-10-binary.tar.gz"]);
}
