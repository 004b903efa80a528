//! Tests of `data.augment` and `--augment`, and of test-time augmentation in `evaluate` and `predict`.

use crate::program::Folder;
use serde_json::Value;

const SMALL: &str = r#"
    [data]
    dataset = "fashion-mnist"
    dir = "data"
    scale = "1/255"
    train_samples = 32
    test_samples = 16
    [[layers]]
    type = "Flatten"
    [[layers]]
    type = "Dense"
    units = 10
    activation = "softmax"
    [optimizer]
    type = "sgd"
    learning_rate = 0.1
    [compile]
    loss = "sparse_categorical_crossentropy"
    metrics = ["sparse_categorical_accuracy"]
    [fit]
    epochs = 1
    batch_size = 16
"#;

fn trained(f: &Folder, out: &str, more: &[&str]) -> Vec<u8> {
    f.write("small.toml", SMALL);
    f.run(&[&["train", "small.toml", "--seed=3", "--out", out][..], more].concat()).ok();
    std::fs::read(f.path(out).join("fashion-mnist.safetensors")).unwrap()
}

/// The weights alone: the configuration is in the file too.
fn arrays(file: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    &file[8 + header..]
}

#[test]
fn flag_list_and_table_are_the_same() {
    let f = Folder::with_data("augment");
    let flag = trained(&f, "flag", &["--augment", "flip,rotate=20,zoom,erase=1"]);
    let list =
        trained(&f, "list", &["--set=data.augment=[\"zoom=1.1\", \"rotate=20\", \"flip\", \"erase=1\"]"]);
    let table = trained(
        &f,
        "table",
        &["--set=data.augment={ erase = 1, flip = true, rotate = 20, zoom = 1.1, warp = false }"],
    );
    let without = trained(&f, "without", &["--augment", "none"]);
    // RandAugment takes grey pictures, too.
    let drawn = ["randaugment", "rand_augment"].map(|name| trained(&f, name, &["--augment", name]));
    assert!(arrays(&drawn[0]) != arrays(&without) && arrays(&drawn[0]) == arrays(&drawn[1]));
    let symmetries =
        [("by-flag", "--augment=flip_vert"), ("by-table", "--set=data.augment={ flip_vert = true }")];
    let turned = symmetries.map(|(out, flag)| trained(&f, out, &[flag]));
    assert!(arrays(&turned[0]) != arrays(&without) && arrays(&turned[0]) == arrays(&turned[1]));
    assert!(arrays(&flag) == arrays(&list) && arrays(&flag) == arrays(&table));
    assert!(arrays(&flag) != arrays(&without));
    // Test pictures are as they are: what is measured of a model does not depend on what it was trained with.
    let measured = |set: &[&str]| -> Value {
        let args = ["evaluate", "flag/fashion-mnist.safetensors", "--json", "--data-dir", "data"];
        serde_json::from_str(f.run(&[&args[..], set].concat()).ok().out.trim()).unwrap()
    };
    let (as_trained, plain) = (measured(&[]), measured(&["--set=data.augment=[]"]));
    assert_eq!(as_trained["loss"], plain["loss"]);
    let mixed = [measured(&["--tta=2"]), measured(&["--tta=2"]), measured(&["--tta=3"])];
    assert_eq!((&mixed[0]["loss"], &mixed[0]["tta"]), (&mixed[1]["loss"], &2.into()));
    assert!(mixed[0]["loss"] != mixed[2]["loss"] && mixed[0]["loss"] != plain["loss"]);
    assert!(mixed[0]["sparse_categorical_accuracy"].is_number(), "{}", mixed[0]);
    let by_table = measured(&["--set=data.tta=2"]);
    assert_eq!((&by_table["loss"], &by_table["tta"]), (&mixed[0]["loss"], &2.into()));
    let said = |more: &[&str]| {
        f
            .run(
                &[
                    &[
                        "predict",
                        "flag/fashion-mnist.safetensors",
                        "flag/fashion-mnist-example.png",
                        "--json",
                    ][..],
                    more,
                ]
                .concat(),
            )
            .ok()
            .out
    };
    assert!(said(&["--tta"]) == said(&["--tta=4"]) && said(&["--tta"]) != said(&[]));
    assert!(said(&["--set=data.tta=4"]) == said(&["--tta"]));
}

#[test]
fn wrong_names_and_values_are_told_before_training() {
    let f = Folder::new("augment-wrong");
    for (names, told) in [
        ("rotat=10", "did you mean `rotate`"),
        ("rotate=fast", "expected a number from 0 to 180"),
        ("flip=2", "takes no value"),
        ("random_hue", "the images are grayscale"),
    ] {
        let done = f.run(&["train", "glyphs", "--augment", names, "--out", "run"]);
        assert!(done.code != Some(0) && done.err.contains(told), "{names}: {}", done.err);
        assert!(!f.path("run").exists(), "{names}");
    }
}

/// mixup and cutmix with labels that are numbers: through both doors, with precision, accumulation and devices, and in the search for a
/// rate. A kill test of `tests/runs/resume.rs` has them too.
#[test]
fn pictures_are_mixed_whatever_else_training_does() {
    let f = Folder::with_data("mixed");
    let mix = ["--augment", "mixup=0.4,cutmix", "--epochs=2"];
    let whole = trained(&f, "whole", &mix);
    let table = trained(&f, "table", &["--epochs=2", "--set=data.augment={ mixup = 0.4, cutmix = true }"]);
    assert!(arrays(&whole) == arrays(&table));
    assert!(arrays(&whole) != arrays(&trained(&f, "plain", &["--epochs=2"])));
    assert!(arrays(&whole) != arrays(&trained(&f, "mixup", &["--augment=mixup=0.4", "--epochs=2"])));
    for (out, more) in [
        ("bf16", &["--precision=mixed_bfloat16", "--set=optimizer.gradient_accumulation_steps=2"][..]),
        ("two", &["--strategy=data_parallel", "--devices=2", "--class-weights=balanced"]),
    ] {
        let args = ["train", "small.toml", "--json", "--out", out];
        let o = f.run(&[&args[..], &mix, more].concat()).ok().json();
        assert!(o["loss"].as_f64().unwrap().is_finite() && o["val_loss"].as_f64().unwrap() > 0.0, "{o}");
    }
    f.run(&["lr-find", "small.toml", "--augment=mixup", "--num-it=20"]).ok();
    // What looks at the step from beside it: its operations, its gradients, its memory, each of its values.
    let watched =
        "callbacks=[{type=\"ThroughputMonitor\"},{type=\"TensorBoard\",histogram_freq=1,write_grads=true}]";
    let args =
        ["train", "small.toml", "--augment=mixup", "--epochs=2", "--batch-size=auto", "--detect-anomaly"];
    let o = f.run(&[&args[..], &["--json", "--out=watched", "--set", watched]].concat()).ok().json();
    assert!(o["history"][1]["flops_per_sec"].as_f64().unwrap() > 0.0, "{o}");
    let e = f.run(&["train", "small.toml", "--augment=mixup=0", "--out=no"]);
    assert!(e.code == Some(2) && e.err.contains("expected a number from 0.001"), "{}", e.err);
    let e = f.run(&[
        "train",
        "small.toml",
        "--augment=mixup",
        "--set=compile.loss=mean_squared_error",
        "--set=compile.metrics=[]",
    ]);
    assert!(e.err.contains("does not support soft labels"), "{}", e.err);
}
