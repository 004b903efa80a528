//! Tests of transfer learning: `train --from` with `--fine-tune` and `--freeze-until`, from one model's weights to
//! another.

use crate::program::{Done, Folder};
use serde_json::Value;
use std::process::Stdio;
use std::time::Instant;
use systole::prelude::*;
use systole_data::format::png;

/// Pictures of one shade for each class.
fn shades(f: &Folder, dir: &str, classes: &[(&str, u8)]) {
    for (class, shade) in classes {
        for i in 0..16u8 {
            let picture = Literal::from_slice([16, 16, 1], &[shade + i; 256]).unwrap();
            let part = if i < 8 { "train" } else { "val" };
            f.write(&format!("{dir}/{part}/{class}/{i}.png"), png::to_bytes(&picture).unwrap());
        }
    }
}

const SMALL: [&str; 6] = [
    "--set=layers.0.filters=4",
    "--set=layers.4.filters=4",
    "--set=layers.8.filters=8",
    "--set=data.augment=[]",
    "--batch-size=8",
    "--threads=1",
];

/// Two classes and a model that knows them, and three others.
fn two_and_three(name: &str) -> (Folder, String) {
    let f = Folder::new(name);
    shades(&f, "two", &[("ant", 10), ("bee", 200)]);
    shades(&f, "three", &[("cat", 20), ("dog", 120), ("eel", 220)]);
    f.run(&[&["train", "two", "--out=base", "--epochs=2"], &SMALL[..]].concat()).ok();
    (f, "base/two.safetensors".into())
}

fn weights(f: &Folder, file: &str) -> Vec<(String, Literal)> {
    let model = Model::load(f.path(file)).unwrap();
    model.weights().iter().map(|(path, _)| (path.to_string(), model.weight(path).unwrap())).collect()
}

fn tune(f: &Folder, model: &str, out: &str, more: &[&str]) -> Done {
    let base = ["train", "three", "--from", model, "--out", out, "--threads=1", "--json"];
    f.run(&[&base[..], more].concat())
}

#[test]
fn the_head_is_new_and_all_layers_learn() {
    let (f, model) = two_and_three("tune-whole");
    // Without, other classes are refused, and what would take them is named.
    tune(&f, &model, "no", &[]).fails("data", &["`cat`", "`dog`", "`eel`", "--fine-tune"]);
    let done = tune(&f, &model, "out", &["--fine-tune", "--epochs=3"]).ok();
    for said in [
        "from base/two.safetensors; new: dense/kernel, dense/bias",
        "1 epoch of only the head, then 3 epochs of all",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    let o = done.json();
    assert_eq!((o["epochs"].as_u64(), o["history"].as_array().unwrap().len()), (Some(4), 4), "{o}");
    let (before, after) = (weights(&f, &model), weights(&f, "out/three.safetensors"));
    assert!(before.iter().zip(&after).all(|(a, b)| a.0 == b.0 && a.1 != b.1), "all weights are others");
    assert_eq!(after.last().unwrap().1.shape().dims(), [3]);
    // The same command is the same run; what it made goes on as any model does.
    let again = tune(&f, &model, "out", &["--fine-tune", "--epochs=3"]).ok();
    assert!(again.err.contains("is finished: nothing to train"), "{}", again.err);
    let on = f
        .run(&[
            "train",
            "--from=out/three.safetensors",
            "--data-dir=three",
            "--epochs=1",
            "--out=on",
            "--json",
        ])
        .ok();
    assert_eq!(on.json()["total_steps"], 5 * 3);
}

#[test]
fn layers_stay_frozen_until_the_named_one() {
    let (f, model) = two_and_three("tune-frozen");
    let done = tune(&f, &model, "out", &["--freeze-until=dense", "--epochs=2", "--learning-rate=0.01"]).ok();
    assert!(done.err.contains("Frozen: conv2d"), "{}", done.err);
    let (before, after) = (weights(&f, &model), weights(&f, "out/three.safetensors"));
    let same = |(a, b): (&(String, Literal), &(String, Literal))| a.1 == b.1;
    let kept: Vec<&str> = before.iter().zip(&after).filter(|p| same(*p)).map(|(a, _)| a.0.as_str()).collect();
    let body: Vec<&str> =
        before.iter().map(|(n, _)| n.as_str()).filter(|n| n.starts_with("conv2d")).collect();
    assert!(!body.is_empty() && body.iter().all(|n| kept.contains(n)), "{kept:?}");
    assert!(!kept.iter().any(|n| n.starts_with("dense")), "{kept:?}");
    // What went on from it stays frozen, and is the same model as the configuration's.
    let on =
        ["train", "--from=out/three.safetensors", "--data-dir=three", "--epochs=1", "--out=on", "--json"];
    assert_eq!(f.run(&on).ok().json()["total_steps"], 3 * 3);
    let stayed = weights(&f, "on/three.safetensors");
    assert!(before.iter().zip(&stayed).filter(|(a, _)| a.0.starts_with("conv2d")).all(same));

    let refused = |more: &[&str], names: &[&str]| drop(tune(&f, &model, "no", more).fails("config", names));
    refused(&["--freeze-until=dens"], &["`dens`", "`dense`"]);
    refused(&["--fine-tune", "--set=layers.0.filters=5"], &["conv2d/kernel", "[3, 3, 1, 5]", "[3, 3, 1, 4]"]);
    let wrong = tune(&f, &model, "no", &["--fine-tune", "--set=fine_tune.lr_mult=0.1"]);
    wrong.fails("usage", &["fine_tune.lr_mult=0.1"]);
    assert!(!f.path("no").exists());
    f.run(&["train", "three", "--fine-tune"]).fails("usage", &["--from MODEL"]);
}

#[test]
fn adapters_train_beside_the_weights_of_a_model() {
    let (f, model) = two_and_three("tune-lora");
    let flags = ["--lora=2:6", "--epochs=2", "--set=lora.layers=[\"conv*\"]"];
    let done = tune(&f, &model, "out", &flags).ok();
    for said in ["LoRA: rank 2, alpha 6, on conv2d/kernel", "dense train in full"] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    let (before, after) = (weights(&f, &model), weights(&f, "out/three.safetensors"));
    let names = |all: &[(String, Literal)]| all.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after), "merged");
    for (was, is) in before.iter().zip(&after) {
        let trains = was.0.starts_with("dense") || was.0.starts_with("conv2d") && was.0.ends_with("kernel");
        assert_eq!(was.1 != is.1, trains, "{}", was.0);
    }
    assert!(f.path("out/adapters.safetensors").is_file());
    let dense_too = tune(&f, &model, "no", &["--lora=2", "--set=lora.layers=[\"covn*\"]"]);
    dense_too.fails("config", &["`covn*`"]);
    tune(&f, &model, "no", &["--lora=0"]).fails("usage", &["--lora 0"]);
    f.run(&["train", "three", "--lora=2"]).fails("usage", &["--from MODEL"]);
}

#[test]
fn a_pruned_run_tells_its_zeros() {
    let f = Folder::new("tune-pruned");
    shades(&f, "two", &[("ant", 10), ("bee", 200)]);
    let pruned = [
        "--set=pruning.type=PolynomialDecay",
        "--set=pruning.final_sparsity=0.75",
        "--set=pruning.end_step=3",
        "--set=pruning.frequency=1",
        "--epochs=2",
        "--out=out",
        "--json",
    ];
    let done = f.run(&[&["train", "two"][..], &SMALL, &pruned].concat()).ok();
    assert!(done.err.contains("Zeros after pruning:") && done.err.contains("with deflate"), "{}", done.err);
    let o = done.json();
    let (bytes, packed) =
        (o["pruning"]["file_bytes"].as_u64().unwrap(), o["pruning"]["deflated_bytes"].as_u64().unwrap());
    assert!(packed < bytes, "{packed} of {bytes}");
    for layer in o["pruning"]["layers"].as_array().unwrap() {
        let part = layer["zeros"].as_f64().unwrap() / layer["weights"].as_f64().unwrap();
        assert!((part - 0.75).abs() < 0.1, "{layer}");
    }
    for (set, name) in
        [("type=Polynom", "`Polynom`"), ("sparsity_m_by_n=[4, 2]", "[4, 2]"), ("target_sparsity=1.5", "1.5")]
    {
        f.run(&["train", "two", &format!("--set=pruning.{set}"), "--out=no"]).fails("usage", &[name]);
    }
}

#[test]
fn a_model_trained_for_eight_bits_brings_its_ranges() {
    let f = Folder::new("tune-eight");
    shades(&f, "two", &[("ant", 10), ("bee", 200)]);
    let eight =
        ["--quantize", "--set=quantize.ema_decay=0.8", "--set=quantize.freeze_bn_delay=6", "--epochs=4"];
    f.run(&[&["train", "two", "--out=eight"][..], &SMALL, &eight].concat()).ok();
    let kept = weights(&f, "eight/two.safetensors");
    assert!(kept.iter().any(|(path, _)| path == "activation/output_max"), "behind the relu");
    let quantize = ["quantize", "eight", "--data-dir=two", "--out=eight.tflite"];
    let o = f.run(&[&quantize[..], &["--json"]].concat()).ok().json();
    assert_eq!((&o["trained_ranges"], &o["calibration_samples"]), (&true.into(), &0.into()), "{o}");
    assert_eq!(o["accuracy"]["samples"], 16, "{o}");
    let e = f.run(&[&quantize[..], &["--force", "--calibrate=mse"]].concat());
    e.fails("usage", &["eight/two.best.safetensors", "--calibrate"]);
    // Other formats have no ranges; training goes on with them, or without.
    f.run(&["export", "eight", "--format=torch", "--out=eight.pt"]).ok();
    let on = ["train", "two", "--from", "eight/two.safetensors", "--threads=1", "--epochs=1"];
    f.run(&[&on[..], &["--out=on"]].concat()).ok();
    assert_eq!(weights(&f, "on/two.safetensors").len(), kept.len());
    f.run(&[&on[..], &["--out=off", "--set=quantize=none"]].concat()).ok();
    assert!(weights(&f, "off/two.safetensors").len() < kept.len());
    for (set, name) in [("type=Moving", "MovingAverage"), ("ema_decay=1.5", "1.5")] {
        f.run(&["train", "two", &format!("--set=quantize.{set}"), "--out=no"]).fails("usage", &[name]);
    }
    let skip = "--set=quantize.skip=[\"dens\"]";
    f.run(&["train", "two", skip, "--out=no"]).fails("config", &["`dense`"]);
}

#[test]
fn weights_alone_are_packed_and_channels_taken_out() {
    let f = Folder::new("tune-small");
    shades(&f, "two", &[("ant", 10), ("bee", 200)]);
    let narrow = ["--set=pruning.channels=true", "--set=pruning.frequency=1", "--epochs=2", "--json"];
    let done = f.run(&[&["train", "two", "--out=narrow"][..], &SMALL, &narrow].concat()).ok();
    assert!(done.err.contains("Channels kept: conv2d 2 of 4"), "{}", done.err);
    let o = done.json();
    assert_eq!(o["pruning"]["channels"][2]["after"], 4, "{o}");
    for file in ["narrow/two.safetensors", "narrow/two.best.safetensors"] {
        let kernel = weights(&f, file).into_iter().find(|(path, _)| path == "conv2d_1/kernel").unwrap().1;
        assert_eq!(kernel.shape().dims(), [3, 3, 2, 2], "{file}");
    }
    let said = f.run(&["evaluate", "narrow", "--data-dir=two", "--json"]).ok().json();
    let on = ["train", "two", "--from", "narrow/two.safetensors", "--threads=1", "--epochs=1", "--out=on"];
    f.run(&on).ok();
    f.run(&["train", "two", "--set=pruning.channels=true", "--set=pruning.layers=[\"dense\"]", "--out=no"])
        .fails("unsupported", &["`dense`", "conv2d"]);

    f.run(&[&["train", "two", "--out=base", "--epochs=2"], &SMALL[2..]].concat()).ok();
    for (bits, most) in [("int8", 4.2), ("int4", 8.6)] {
        let out = format!("{bits}.safetensors");
        let args = ["quantize", "base", "--data-dir=two", "--activations=none", "--json"];
        let o = f.run(&[&args[..], &["--weights", bits, "--out", &out]].concat()).ok().json();
        let sum = |key: &str| {
            o["weights"].as_array().unwrap().iter().map(|w| w[key].as_f64().unwrap()).sum::<f64>()
        };
        let times = sum("bytes") / sum("packed_bytes");
        assert!(times > 0.8 * most && times < most, "{bits}: {times}");
        let again = f.run(&["evaluate", &out, "--data-dir=two", "--json"]).ok().json();
        assert_eq!(again["loss"], o["after"]["loss"], "{bits}");
        assert_ne!(o["before"]["loss"], o["after"]["loss"], "{bits}");
    }
    let wrong = ["quantize", "base", "--data-dir=two", "--weights=int4", "--out=n.tflite"];
    f.run(&wrong).fails("usage", &["--activations none"]);
    let wrong = ["quantize", "base", "--activations=none", "--per=tensor", "--out=n.safetensors"];
    f.run(&wrong).fails("usage", &["--per"]);
    let wrong = ["quantize", "base", "--activations=none", "--out=n.tflite"];
    f.run(&wrong).fails("usage", &[".safetensors"]);
    assert!(said["loss"].as_f64().unwrap().is_finite());
}

#[test]
fn a_toml_file_says_all_of_it() {
    let (f, model) = two_and_three("tune-toml");
    let flags =
        ["--fine-tune", "--epochs=2", "--freeze-until=dense", "--freeze-epochs=2", "--learning-rate=0.004"];
    let toml = tune(
        &f,
        &model,
        "no",
        &[&flags[..], &["--set=fine_tune.from=base/two.safetensors", "--print-config"]].concat(),
    );
    let printed: Value = toml.ok().json();
    assert_eq!(printed["fine_tune"]["base_lr"], 0.004, "{printed}");
    let text: String = {
        let args = [
            "train",
            "three",
            "--from",
            &model,
            "--threads=1",
            "--print-config",
            "--set=fine_tune.from=base/two.safetensors",
        ];
        f.run(&[&args[..], &flags].concat()).ok().out
    };
    // The number of classes is the data's.
    f.write("tune.toml", text);
    let a = f.run(&["train", "tune.toml", "--out=a", "--threads=1", "--json"]).ok().json();
    let b = tune(&f, &model, "b", &flags).ok().json();
    assert_eq!((&a["epochs"], &a["history"][3]["loss"]), (&4.into(), &b["history"][3]["loss"]), "{a}");
    assert_eq!(weights(&f, "a/three.safetensors"), weights(&f, "b/three.safetensors"));
}

#[test]
fn killed_runs_end_with_the_same_bits_in_both_phases() {
    killed_runs_end_alike(
        "tune-killed",
        &["--fine-tune", "--epochs=3", "--freeze-epochs=2", "--save-steps=1"],
    );
}

#[test]
fn killed_runs_with_adapters_or_masks_end_with_the_same_bits() {
    let f = Folder::new("tune-packed");
    shades(&f, "two", &[("ant", 10), ("bee", 200)]);
    f.run(&[&["train", "two", "--out=base", "--epochs=1"], &SMALL[2..]].concat()).ok();
    let pack = [
        "quantize",
        "base",
        "--activations=none",
        "--weights=int4",
        "--test-samples=0",
        "--out=p.safetensors",
    ];
    f.run(&[&pack[..], &["--data-dir=two"]].concat()).ok();
    let beside =
        ["train", "two", "--from=p.safetensors", "--lora=2", "--epochs=1", "--threads=1", "--out=beside"];
    let done = f.run(&beside).ok();
    assert!(done.out.contains("Quantized weights in memory") && done.out.contains("/kernel"), "{}", done.out);
    assert!(weights(&f, "beside/two.safetensors").iter().all(|(_, w)| w.dtype() == systole_ir::DType::F32));
    f.run(&["evaluate", "beside", "--data-dir=two"]).ok();
    let lora = ["--lora=2", "--set=lora.train=[\"dense\"]", "--epochs=3", "--save-steps=1"];
    killed_runs_end_alike("tune-lora-killed", &lora);
    let masks = ["--freeze-until=conv2d", "--epochs=3", "--save-steps=1", "--set=pruning.frequency=2"];
    killed_runs_end_alike("tune-masks-killed", &masks);
    let eight = ["--freeze-until=conv2d", "--epochs=3", "--save-steps=1", "--set=quantize.type=Learned"];
    killed_runs_end_alike("tune-eight-killed", &eight);
}

/// Starts a run again and again, killed after 1, 2, ... eighths of the time that a whole one takes here, until it comes
/// to its end.
fn killed_runs_end_alike(name: &str, flags: &[&str]) {
    let (f, model) = two_and_three(name);
    let began = Instant::now();
    tune(&f, &model, "whole", flags).ok();
    let takes = began.elapsed();
    let expected = weights(&f, "whole/three.safetensors");
    let args = [&["train", "three", "--from", &*model, "--out", "cut", "--threads=1"], flags].concat();
    let mut kills = 0;
    loop {
        let mut child = f.command(&args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(takes * (kills + 1) / 8);
        let is_over = child.try_wait().unwrap().is_some();
        let _ = child.kill();
        child.wait().unwrap();
        if is_over {
            break;
        }
        kills += 1;
        assert!(kills < 200, "no start comes to the end");
    }
    assert!(kills > 0, "it ended in an eighth of {takes:?}");
    f.run(&["resume", "cut"]).ok();
    assert_eq!(weights(&f, "cut/three.safetensors"), expected, "after {kills} kills");
}

/// Models without a configuration, as other programs save them: their own layers are trained on a folder of images.
#[test]
fn an_imported_classifier_learns_the_classes_of_a_folder() {
    let f = Folder::new("tune-imported");
    shades(&f, "three", &[("cat", 20), ("dog", 120), ("eel", 220)]);
    for name in ["convnext", "efficientnetv2"] {
        let file = format!("{}/../../fixtures/weights/{name}.keras", env!("CARGO_MANIFEST_DIR"));
        f.run(&["import", &file, "--out", &format!("{name}.safetensors")]).ok();
    }
    let x = input_of("image", F32, [16, 16, 1]);
    let a = x.apply(rescaling(1.0 / 255.0)).apply(conv2d(4, [3, 3]).padding("same").name("a"));
    let b = a.apply(conv2d(4, [3, 3]).padding("same").activation("relu").name("b"));
    let top = add().on(&[&a, &b]).apply(global_average_pooling2d());
    for (name, head) in [("logits", dense(10)), ("binary", dense(1).activation("sigmoid"))] {
        let mut model = functional(std::slice::from_ref(&x), &top.apply(head.name("head"))).unwrap();
        model.build(&[TensorType::new(F32, [16, 16, 1])]).unwrap();
        model.save(f.path(&format!("{name}.safetensors"))).unwrap();
    }
    let taken = [("convnext", 54), ("efficientnetv2", 111), ("logits", 4), ("binary", 4)];
    for (name, weights) in taken {
        let model = format!("{name}.safetensors");
        tune(&f, &model, "no", &[]).fails("usage", &["--fine-tune", &model]);
        let done = tune(&f, &model, name, &["--fine-tune", "--epochs=2"]).ok();
        let from = format!("Weights: {weights} from {model}; new: ");
        assert!(done.err.contains(&from), "{name}: {}", done.err);
        let o = done.json();
        let layers = o["config"]["layers"].as_array().unwrap();
        let units = layers.iter().rev().find_map(|layer| layer["units"].as_u64());
        assert_eq!(units, Some(3), "{name}: the head has an output for each class");
        if ["logits", "binary"].contains(&name) {
            assert_eq!(o["config"]["data"]["scale"], 1.0, "{name}: its first layer rescales");
        }
        let evaluated = f.run(&["evaluate", o["model_file"].as_str().unwrap(), "--json"]).ok().json();
        assert_eq!(evaluated["loss"], o["val_loss"], "{name}");
        // A folder is resized for evaluation too.
        f.run(&["evaluate", &model, "--dataset=folder", "--data-dir=three", "--json"]).ok();
    }
}
