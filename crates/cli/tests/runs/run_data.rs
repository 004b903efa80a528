//! Tests that a command for a saved model uses the data that the model was trained on, wherever the program runs and
//! whatever other datasets exist, and that evaluated training samples are reported as such.

use crate::program::made::{album, pair, picture, plain, table};
use crate::program::{Done, Folder, TINY};
use serde_json::Value;
use std::fs;

/// A language model that trains in an instant.
const TEXT_MODEL: [&str; 6] = [
    "--set=model.num_layers=1",
    "--set=model.num_heads=2",
    "--set=model.hidden_dim=16",
    "--set=model.intermediate_dim=16",
    "--set=data.sequence_length=16",
    "--epochs=1",
];
const SMALL: [&str; 5] = [
    "--set=layers.0.filters=2",
    "--set=layers.4.filters=2",
    "--set=layers.8.filters=2",
    "--epochs=1",
    "--batch-size=8",
];

/// Runs the program where another text and another Fashion-MNIST are in the default location.
fn run(f: &Folder, args: &[&str]) -> Done {
    let output = f.command(args).env("SYSTOLE_DATA", f.path("others")).output().unwrap();
    Done::of(output, args)
}

/// Trains on a source. Returns the result, and the model file copied out of its run's folder.
fn trained(f: &Folder, source: &str, out: &str, more: &[&str]) -> (Value, String) {
    let o = run(f, &[&["train", source, "--out", out, "--json"], more].concat()).ok().json();
    let alone = format!("alone/{out}.safetensors");
    f.write(&alone, fs::read(f.path(o["model_file"].as_str().unwrap())).unwrap());
    (o, alone)
}

/// A text of 3600 bytes in which no 16 bytes repeat.
fn numbers(from: u32) -> String {
    (from..from + 400).map(|i| format!("{:08x} ", i.wrapping_mul(2_654_435_761))).collect()
}

/// Commands that read data for a saved model, with the names of the data that they print.
fn commands<'a>(model: &'a str, out: &'a str) -> Vec<Vec<&'a str>> {
    vec![
        vec!["evaluate", model, "--json"],
        vec!["train", "--from", model, "--epochs=1", "--steps-per-epoch=1", "--out", out, "--resume=never"],
        vec!["lr-find", "--from", model, "--num-it=20"],
        vec!["quantize", model, "--activations=none", "--out=weights.safetensors", "--force"],
    ]
}

#[test]
fn a_text_of_ones_own_is_the_text_of_every_command() {
    let f = Folder::new("run-data-text");
    f.write("my.txt", numbers(0));
    f.write("others/tiny-shakespeare/input.txt", "First Citizen: hear me speak. ".repeat(150));
    let (o, alone) = trained(&f, "my.txt", "run", &TEXT_MODEL);
    for model in ["run", o["model_file"].as_str().unwrap()] {
        let e = run(&f, &["evaluate", model, "--json"]).ok().json();
        assert_eq!((&e["dataset"], &e["training_samples"]), (&"my".into(), &0.into()), "{e}");
        let more = run(
            &f,
            &["train", "--from", model, "--epochs=1", "--steps-per-epoch=1", "--out=more", "--resume=never"],
        )
        .ok();
        assert!(more.out.contains("Data: my, the data of run/"), "{}", more.out);
        let done = run(&f, &["quantize", model, "--activations=none", "--out=w.safetensors", "--force"]).ok();
        assert!(done.out.contains(" of my\n"), "{}", done.out);
    }
    for args in commands(&alone, "more") {
        run(&f, &args).fails("config", &["`my`", "--data-dir"]);
        run(&f, &[&args[..], &["--data-dir=my.txt"]].concat()).ok();
    }
    // The text by its name: nine tenths of it are training text, wherever a part begins.
    let e = run(&f, &["evaluate", "run", "my.txt", "--json"]).ok().json();
    assert_eq!((&e["samples"], &e["training_samples"]), (&224.into(), &202.into()), "{e}");
    let text = fs::read_to_string(f.path("my.txt")).unwrap();
    f.write("part.txt", &text[5..400]);
    let shown = run(&f, &["evaluate", "run", "part.txt"]).ok().out;
    assert!(shown.contains("24 sequences of part, all of them used in training"), "{shown}");
    let shown = run(&f, &["evaluate", "run", "others/tiny-shakespeare/input.txt"]).ok().out;
    assert!(shown.contains("none of them used in training"), "{shown}");
    // A changed text is neither the run's text nor continued.
    f.write("my.txt", format!("{text}More."));
    run(&f, &["evaluate", "run"]).fails("data", &["my.txt", "`my`", "--data-dir"]);
    run(&f, &["resume", "run"]).fails("config", &["`run`", "--resume=force"]);
    fs::remove_file(f.path("my.txt")).unwrap();
    run(&f, &["evaluate", "run"]).fails("io", &["my.txt"]);
}

#[test]
fn a_default_text_is_not_replaced_by_another() {
    let f = Folder::new("run-data-default");
    f.run(
        &[&["train", "gpt-micro", "--out=run", "--steps-per-epoch=2", "--quiet"], &TEXT_MODEL[..]].concat(),
    )
    .ok();
    assert_eq!(
        f.run(&["evaluate", "run", "--json", "--set=data.test_samples=16"]).ok().json()["dataset"],
        "drawn-text"
    );
    f.write("others/tiny-shakespeare/input.txt", "First Citizen: hear me speak. ".repeat(150));
    run(&f, &["evaluate", "run"]).fails("data", &["input.txt", "`drawn-text`"]);
}

#[test]
fn synthetic_images_do_not_replace_cifar10() {
    let f = Folder::new("run-data-cifar");
    for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    {
        let records =
            |i: usize| (0..3073).map(move |p| if p == 0 { i as u8 % 10 } else { (p * 7 + i * 31) as u8 });
        let bytes: Vec<u8> = (0..20).flat_map(records).collect();
        f.write(&format!("others/cifar10/{name}.bin"), bytes);
    }
    run(&f, &["train", "cifar-cnn", "--out=run", "--quiet", "--epochs=1", "--batch-size=10"]).ok();
    assert_eq!(run(&f, &["evaluate", "run", "--json"]).ok().json()["samples"], 20);
    for command in [&["evaluate", "run"][..], &["train", "--from=run", "--out=more"]] {
        f.run(command).fails("io", &["`cifar10`", "cifar-10-binary.tar.gz", "--synthetic"]);
    }
    f.run(&["resume", "run"]).fails("io", &["`cifar10`"]);
    assert_eq!(f.run(&["evaluate", "run", "--data-dir=others", "--json"]).ok().json()["samples"], 20);
    // On request only, or by a preset that needs shapes only.
    let few = ["--epochs=1", "--steps-per-epoch=1", "--batch-size=2", "--set=data.test_samples=2"];
    f.run(&[&["train", "cifar-cnn", "--out=none"], &few[..]].concat())
        .fails("io", &["`cifar10`", "--synthetic"]);
    assert!(!f.path("none").exists());
    let drawn = f.run(&[&["train", "cifar-cnn", "--synthetic", "--out=drawn"], &few[..]].concat()).ok();
    assert!(drawn.out.contains("Data: colour-glyphs") && drawn.out.contains("generated"), "{}", drawn.out);
    f.run(&["evaluate", "drawn", "--set=data.test_samples=2"]).ok();
    f.run(&["train", "mnist", "--synthetic", "--data-dir=others"])
        .fails("usage", &["--synthetic", "--data-dir"]);
    let small = ["--set=model.width=4", "--set=model.depths=[1,1,1,1]", "--set=data.image_size=[32,32]"];
    let shapes = f.run(&[&["train", "resnet50", "--out=shapes"], &few[..], &small].concat()).ok();
    assert!(shapes.out.contains("Data: colour-glyphs"), "{}", shapes.out);
}

#[test]
fn a_folder_of_pictures_is_the_folder_of_every_command() {
    let f = Folder::new("run-data-album");
    album(&f, "album", 10);
    let (o, alone) = trained(&f, "album", "run", &SMALL);
    let more = ["--samples=4", "--test-samples=4"];
    for (i, model) in ["run", o["model_file"].as_str().unwrap(), &alone].into_iter().enumerate() {
        let file = |end: &str| format!("--out={i}{end}");
        let (lite, onnx, again) = (file(".tflite"), file(".onnx"), file("-more"));
        let all: [&[&str]; 6] = [
            &["evaluate", model],
            &["train", "--from", model, "--epochs=1", &again],
            &["show", model, "--schedule"],
            &["quantize", model, &lite, more[0], more[1]],
            &["export", model, "--format=onnx", "--int8", &onnx, more[0], more[1]],
            &["tpu1", model, "--samples=4"],
        ];
        for args in all {
            let done = run(&f, args);
            if i < 2 {
                assert!(done.code == Some(0) || done.code == Some(3), "{args:?}: {}", done.err);
            } else {
                done.fails("config", &["`album`", "--data-dir"]);
            }
        }
    }
    // The .tflite file of the model knows no more about the location than the model.
    run(&f, &["evaluate", "0.tflite"]).fails("config", &["0.tflite", "--data-dir"]);
    run(&f, &["evaluate", "0.tflite", "--data-dir=album"]).ok();
    let from = ["train", "--from", "run", "--fine-tune", "--epochs=1", "--out=tuned", "--json"];
    assert_eq!(run(&f, &from).ok().json()["dataset"], "album");
}

#[test]
fn training_pictures_are_not_test_pictures() {
    let f = Folder::new("run-data-seen");
    album(&f, "album", 10);
    trained(&f, "album", "run", &SMALL);
    let of = |data: &[&str]| {
        let args = [&["evaluate", "run"], data].concat();
        let o = run(&f, &[&args[..], &["--json"]].concat()).ok().json();
        (o["samples"].as_u64(), o["training_samples"].as_u64(), run(&f, &args).ok().out)
    };
    let (samples, seen, shown) = of(&[]);
    assert_eq!((samples, seen), (Some(4), Some(0)));
    assert!(shown.contains("on 4 test images of album"), "{shown}");
    // The folder itself, under another name, and one class of it.
    for (from, to) in [("album", "copy"), ("album/cat", "one/cat")] {
        fs::create_dir_all(f.path(to)).unwrap();
        for entry in walk(&f.path(from)) {
            let to = f.path(to).join(entry.strip_prefix(f.path(from)).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(entry, to).unwrap();
        }
    }
    for data in ["album", "copy"] {
        let (samples, seen, shown) = of(&[data]);
        assert_eq!((samples, seen), (Some(20), Some(16)), "{data}");
        assert!(
            shown.contains("20 images of ") && shown.contains(", 16 of them used in training"),
            "{shown}"
        );
        assert!(shown.contains("overestimate the accuracy") && !shown.contains("test images"), "{shown}");
    }
    assert_eq!(of(&["one"]).1, Some(8));
    // Another split of the same folder is not the one that training held out.
    assert!(of(&["--set=data.validation_split=0.5"]).1 > Some(0));
    for i in 0..3 {
        f.write(&format!("new/dog/{i}.png"), picture(140 + i, i as usize + 40, None));
    }
    let (_, seen, shown) = of(&["new"]);
    assert_eq!(seen, Some(0));
    assert!(shown.contains("3 images of new, none of them used in training"), "{shown}");
    // Without the folder, and with a changed one, nobody knows.
    fs::remove_file(f.path("album/cat/0.png")).unwrap();
    let (_, seen, shown) = of(&[]);
    assert!(seen.is_none() && shown.contains("the data has changed since training"), "{shown}");
    fs::rename(f.path("album"), f.path("moved")).unwrap();
    let (_, seen, shown) = of(&["copy"]);
    assert!(seen.is_none() && shown.contains("the training data is not available"), "{shown}");
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn training_rows_are_not_test_rows() {
    let f = Folder::new("run-data-rows");
    f.write("t.csv", table("a,b,label", 100, plain));
    trained(&f, "t.csv", "run", &["--epochs=1"]);
    let seen =
        |data: &str| run(&f, &["evaluate", "run", data, "--json"]).ok().json()["training_samples"].clone();
    assert_eq!(seen("t.csv"), 80);
    let of = |i: usize| (pair(i).0, pair(i).1, pair(i).2);
    f.write(
        "new.csv",
        table("b,label,a", 30, |i| format!("{:.4},{},{:.4}", of(i).1 + 9.0, of(i).2, of(i).0)),
    );
    assert_eq!(seen("new.csv"), 0);
}

#[test]
fn a_folder_of_a_published_dataset_is_kept_too() {
    let f = Folder::with_data("run-data-published");
    f.write_set("others/fashion-mnist", 32, 16);
    let (_, alone) = trained(&f, "fashion-mnist", "run", &[&["--data-dir=data"], &TINY[..]].concat());
    assert_eq!(run(&f, &["evaluate", "run", "--json"]).ok().json()["samples"], 32);
    // From another directory as well.
    fs::create_dir(f.path("below")).unwrap();
    let args = ["evaluate", "../run", "--json"];
    let output = f.command(&args).current_dir(f.path("below")).output().unwrap();
    assert_eq!(Done::of(output, &args).ok().json()["samples"], 32);
    run(&f, &["evaluate", &alone]).fails("config", &["`fashion-mnist`", "--data-dir"]);
    assert_eq!(run(&f, &["evaluate", &alone, "--data-dir=others", "--json"]).ok().json()["samples"], 16);
}
