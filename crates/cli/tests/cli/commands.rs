//! End-to-end tests of the command line: runs the real program on small generated datasets.

use crate::program::made::npz;
use crate::program::{Done, Folder, TINY};
use serde_json::Value;
use systole_data::format::{npy, png};
use systole_ir::Literal;

fn train(folder: &Folder, more: &[&str]) -> Done {
    let mut args = vec!["train"];
    args.extend(more);
    args.extend(TINY);
    folder.run(&args)
}

#[test]
fn training_reports_all_it_should_and_its_model_is_usable() {
    let f = Folder::with_data("train");
    let done = train(&f, &["fashion-mnist", "--data-dir", "data", "--json"]).ok();
    let o = done.json();
    let numbers = [
        "epochs",
        "loss",
        "val_loss",
        "sparse_categorical_accuracy",
        "val_sparse_categorical_accuracy",
        "steps",
        "ms_per_step",
        "samples_per_second",
        "peak_rss_mib",
        "seed",
        "seconds",
        "threads",
        "data_wait",
    ];
    for key in numbers {
        assert!(o[key].is_number(), "{key}: {o}");
    }
    for key in ["dataset", "dataset_reason", "precision", "model_file", "backend", "device"] {
        assert!(o[key].is_string(), "{key}: {o}");
    }
    assert_eq!((&o["epochs"], &o["steps"], &o["seed"]), (&2.into(), &4.into(), &3.into()));
    assert_eq!((&o["precision"], &o["interrupted"]), (&"float32".into(), &false.into()));
    assert_eq!(o["history"].as_array().unwrap().len(), 2);
    assert_eq!(o["model_file"], "runs/fashion-mnist/fashion-mnist.safetensors");
    assert!(done.err.starts_with("Data: fashion-mnist"), "{}", done.err);
    assert!(!done.err.contains('\r') && !done.err.contains('\x1b'), "piped progress is plain: {}", done.err);
    assert_eq!(done.err.lines().filter(|l| l.starts_with("Epoch ")).count(), 2, "{}", done.err);

    let model = o["model_file"].as_str().unwrap();
    let e = f.run(&["evaluate", model, "--data-dir", "data", "--json"]).ok().json();
    assert_eq!(e["sparse_categorical_accuracy"], o["val_sparse_categorical_accuracy"]);
    assert_eq!((&e["samples"], &e["dataset"]), (&32.into(), &"fashion-mnist".into()));
    let text = f.run(&["evaluate", model, "--data-dir", "data/fashion-mnist"]).ok().out;
    assert!(text.contains("sparse_categorical_accuracy 0.") && text.contains("32 test images"), "{text}");

    let text = f.run(&["summary", model]).ok().out;
    assert!(text.contains("conv2d (Conv2D)") && text.contains("(None, 26, 26, 2)"), "{text}");
    let s = f.run(&["summary", model, "--json"]).ok().json();
    assert_eq!((&s["steps"], s["classes"].as_array().unwrap().len()), (&4.into(), 10));
}

#[test]
fn the_commands_printed_at_the_end_work_when_pasted() {
    let f = Folder::with_data("paste");
    let done = train(&f, &["fashion-mnist", "--data-dir", "data", "--out", "my runs"]).ok();
    assert!(done.out.starts_with("Data: fashion-mnist"), "{}", done.out);
    assert!(done.out.contains("\nTest: ") && done.out.contains("waiting for data"), "{}", done.out);
    let next = done.out.split_once("Next:\n").unwrap().1;
    assert_eq!(next.lines().count(), 3, "{next}");
    for (line, word) in next.lines().zip(["predict", "train --from", "evaluate"]) {
        assert!(line.contains(word), "{line}");
        let output = std::process::Command::new("sh").arg("-c").arg(line).current_dir(&f.0).output().unwrap();
        Done::of(output, &[line]).ok();
    }
    let files = [
        "backups",
        "fashion-mnist-example.png",
        "fashion-mnist.safetensors",
        "report.html",
        "run.json",
        "tensorboard",
    ];
    assert_eq!(f.files("my runs"), files);
}

#[test]
fn predict_takes_png_and_idx_of_any_size() {
    let f = Folder::with_data("predict");
    f.train("out");
    let model = "out/fashion-mnist.safetensors";
    let rgb: Vec<u8> = (0..40 * 50 * 3).map(|i| (i % 251) as u8).collect();
    png::write(f.path("photo.png"), &Literal::from_slice([40, 50, 3], &rgb).unwrap()).unwrap();
    let idx = "data/fashion-mnist/t10k-images-idx3-ubyte.gz";

    let text = f.run(&["predict", model, "photo.png", "out/fashion-mnist-example.png"]).ok().out;
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.starts_with("photo.png: ") && text.contains(" %  ("), "{text}");

    let json = f.run(&["predict", model, idx, "photo.png", "--limit=3", "--top=2", "--json"]).ok().out;
    let objects: Vec<Value> = json.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(objects.len(), 4);
    assert_eq!((&objects[2]["index"], &objects[2]["image"]), (&2.into(), &idx.into()));
    for o in &objects {
        assert_eq!(o["top"].as_array().unwrap().len(), 2);
        assert_eq!(o["class"], o["top"][0]["class"]);
        let p = o["probability"].as_f64().unwrap();
        assert!((0.1..=1.0).contains(&p), "{o}");
    }
    // The example is the first test picture, and PNG loses nothing.
    let one = |path: &str| f.run(&["predict", model, path, "--limit=1", "--json"]).ok().json()["top"].clone();
    assert_eq!(one(idx), one("out/fashion-mnist-example.png"));
    let all = f.run(&["predict", model, idx]).ok().out;
    assert_eq!(all.lines().count(), 32);
}

#[test]
fn without_a_preset_it_takes_fashion_mnist_or_else_glyphs_and_says_so() {
    let f = Folder::with_data("choice");
    let small = ["--json", "--set=data.test_samples=16"];
    let done = train(&f, &small).ok();
    let o = done.json();
    assert_eq!(
        (&o["dataset"], &o["model_file"]),
        (&"glyphs".into(), &"runs/glyphs/glyphs.safetensors".into())
    );
    assert!(o["dataset_reason"].as_str().unwrap().contains("fashion-mnist"), "{o}");
    let first = done.err.lines().next().unwrap();
    assert!(first.contains("glyphs") && first.contains("fashion-mnist"), "{first}");

    let mut args = vec!["train"];
    args.extend(small);
    args.extend(TINY);
    let output = f.command(&args).env("SYSTOLE_DATA", f.path("data")).output().unwrap();
    let o = Done::of(output, &args).ok().json();
    assert_eq!(
        (&o["dataset"], &o["model_file"]),
        (&"fashion-mnist".into(), &"runs/fashion-mnist/fashion-mnist.safetensors".into())
    );

    // What was asked for is never replaced.
    train(&f, &["fashion-mnist"]).fails("io", &["`fashion-mnist`"]);
    train(&f, &["--data-dir", "elsewhere"]).fails("io", &["`fashion-mnist`", "`elsewhere`"]);
}

#[test]
fn init_writes_the_preset_and_training_from_it_is_the_same() {
    let f = Folder::with_data("init");
    for preset in ["fashion-mnist", "mnist", "glyphs"] {
        f.run(&["init", preset, "--out", "run.toml", "--force"]).ok();
        let from_file = f.run(&["train", "run.toml", "--print-config"]).ok().out;
        let from_preset = f.run(&["train", preset, "--print-config"]).ok().out;
        assert_eq!(from_file, from_preset);
        let text = f.run(&["init", preset]).ok().out;
        assert_eq!(text, std::fs::read_to_string(f.path("run.toml")).unwrap());
        for part in ["[data]", "[[layers]]", "[optimizer]", "[compile]", "[fit]", "# "] {
            assert!(text.contains(part), "{part}");
        }
    }
    f.run(&["init", "--out", "run.toml"]).fails("io", &["run.toml", "--force"]);
    f.run(&["init", "--out", "run.toml", "--force"]).ok();
    let loss = |target: &str| {
        let o = train(&f, &[target, "--data-dir", "data", "--json"]).ok().json();
        (o["loss"].clone(), o["val_loss"].clone(), o["config"].clone())
    };
    assert_eq!(loss("run.toml"), loss("fashion-mnist"));
    // What is printed with the arguments applied reads back, too.
    let printed =
        f.run(&["train", "mnist", "--epochs=9", "--set=data.scale=1/255", "--print-config"]).ok().out;
    f.write("printed.toml", &printed);
    assert_eq!(f.run(&["train", "printed.toml", "--print-config"]).ok().out, printed);
}

#[test]
fn arguments_and_set_reach_the_configuration() {
    let f = Folder::new("set");
    let args = [
        "train",
        "fashion-mnist",
        "--print-config",
        "--json",
        "--epochs=10",
        "--batch-size=7",
        "--learning-rate=0.01",
        "--precision=mixed_bfloat16",
        "--seed=5",
        "--steps-per-epoch=none",
        "--data-dir=somewhere",
        "--set=data.scale=1/255",
        "--set=layers.0.filters=48",
        "--set=layers.4.kernel_initializer=he_normal",
        "--set=optimizer.clipnorm=1",
        "--set=fit.validation_freq=2",
        "--set=data.train_samples=100",
    ];
    let c = f.run(&args).ok().json();
    assert_eq!(
        (&c["fit"]["epochs"], &c["fit"]["batch_size"], &c["seed"]),
        (&10.into(), &7.into(), &5.into())
    );
    assert_eq!((&c["fit"]["steps_per_epoch"], &c["fit"]["validation_freq"]), (&Value::Null, &2.into()));
    assert_eq!((&c["optimizer"]["learning_rate"], &c["optimizer"]["clipnorm"]), (&0.01.into(), &1.into()));
    assert_eq!(
        (&c["layers"][0]["filters"], &c["compile"]["precision"]),
        (&48.into(), &"mixed_bfloat16".into())
    );
    assert_eq!((&c["data"]["scale"], &c["data"]["dir"]), (&(1.0 / 255.0).into(), &"somewhere".into()));
}

#[test]
fn a_pass_over_the_data_is_an_epoch_where_no_steps_are_given() {
    let f = Folder::with_data("pass");
    let set = ["--steps-per-epoch=none", "--set=fit.validation_freq=1", "--set=data.train_samples=40"];
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--json"];
    args.extend(TINY.iter().filter(|a| !a.contains("steps")));
    args.extend(set);
    let o = f.run(&args).ok().json();
    // 40 samples in batches of 16: 3 steps, the last one smaller.
    assert_eq!(o["steps"], 6);
    assert!(o["history"][0]["val_loss"].is_number(), "{o}");
}

#[test]
fn training_goes_on_from_a_saved_model() {
    let f = Folder::with_data("from");
    f.train("out");
    let model = "out/fashion-mnist.safetensors";
    let args = ["train", "--from", model, "--data-dir=data", "--epochs=3", "--out=more", "--json"];
    let o = f.run(&args).ok().json();
    assert_eq!((&o["epochs"], &o["total_epochs"], &o["total_steps"]), (&3.into(), &5.into(), &10.into()));
    assert_eq!(o["history"][0]["epoch"], 3);
    assert_eq!(o["model_file"], "more/fashion-mnist.safetensors");
    // With the layers of another model it cannot.
    f.run(&["train", "fashion-mnist", "--from", model, "--data-dir=data"])
        .fails("config", &["out/fashion-mnist.safetensors", "--from", "--fine-tune"]);
    f.run(&["train", model]).fails("usage", &["--from"]);
}

#[test]
fn two_runs_of_one_seed_are_the_same_and_of_two_seeds_are_not() {
    let f = Folder::with_data("seeds");
    let loss = |seed: &str, threads: &str| {
        let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--json", seed, threads];
        args.extend(TINY.iter().filter(|a| !a.contains("seed") && !a.contains("threads")));
        f.run(&args).ok().json()["loss"].clone()
    };
    assert_eq!(loss("--seed=1", "--threads=1"), loss("--seed=1", "--threads=2"));
    assert_ne!(loss("--seed=1", "--threads=1"), loss("--seed=2", "--threads=1"));
}

#[test]
fn show_prints_each_stage() {
    let f = Folder::new("show");
    f.run(&["init", "fashion-mnist", "--out=run.toml"]).ok();
    let stages = [
        ("traced", "convolution"),
        ("grad", "convolution"),
        ("optimized", "// simplify"),
        ("stablehlo", "func.func"),
        ("recompute", "convolution"),
        ("tile", "module"),
        ("lower", "schedule"),
        ("product_epilogue", "schedule"),
        ("buffers", "arena"),
        ("kernels", "elementwise/"),
    ];
    for target in ["fashion-mnist", "run.toml"] {
        for (stage, part) in stages {
            let text = f.run(&["show", target, "--stage", stage, "--batch-size=4"]).ok().out;
            assert!(text.contains(part), "{stage}: {text}");
        }
    }
    let nodes = |stage: &str| f.run(&["show", "mnist", "--stage", stage]).ok().out.lines().count();
    assert!(nodes("grad") > 2 * nodes("traced") && nodes("optimized") < nodes("grad"));
    let o = f.run(&["show", "glyphs", "--json"]).ok().json();
    assert!(o["text"].as_str().unwrap().contains("convolution"));
    let o = f.run(&["show", "glyphs", "--stage=kernels", "--json"]).ok().json();
    assert!(
        o["steps"].as_array().unwrap().iter().all(|s| s["kernel"]["name"].as_str().unwrap().contains('/'))
    );
    f.run(&["show", "glyphs", "--stage=lowered"]).fails("usage", &["'lower'"]);
    f.run(&["show", "mnst"]).fails("io", &["`mnist`"]);
}

#[test]
fn the_matrix_of_layers_and_what_they_can_do() {
    let f = Folder::new("layers");
    let text = f.run(&["layers"]).ok().out;
    for part in ["layer ", "int8 training", "PyTorch weights", "StochasticDepth", "GroupQueryAttention"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let all = f.run(&["layers", "--json"]).ok().json();
    let find = |name: &str| all.as_array().unwrap().iter().find(|l| l["layer"] == name).unwrap().clone();
    assert_eq!(find("Dense")["adapters"]["supported"], true);
    assert_eq!(find("StochasticDepth")["int8_training"]["supported"], true);
    let depthwise = find("DepthwiseConv2D");
    assert_eq!(
        (&depthwise["operators"]["supported"], &depthwise["adapters"]["supported"]),
        (&true.into(), &false.into())
    );
    assert!(
        depthwise["adapters"]["why"].as_str().unwrap().contains("not an input-by-output matrix"),
        "{depthwise}"
    );
    let text = f.run(&["layers", "Resizing"]).ok().out;
    assert!(text.contains("no operators for the layer") && !text.contains("Conv2D"), "{text}");
    f.run(&["layers", "Desne"]).fails("config", &["`Desne`", "`Dense`"]);
}

#[test]
fn tables_of_ops_and_knobs() {
    let f = Folder::new("tables");
    let text = f.run(&["ops"]).ok().out;
    for part in ["add ", "dot_general", "convolution", "while", "derivative"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let ops = f.run(&["ops", "--json"]).ok().json();
    let ops = ops.as_array().unwrap();
    let find = |name: &str| ops.iter().find(|o| o["name"] == name).unwrap();
    assert_eq!(find("tanh")["derivative"], true);
    assert_eq!(find("floor")["name"], "floor");
    assert_eq!(find("popcnt")["derivative"], false);
    let types = |name: &str| find(name)["dtypes"].as_array().unwrap().clone();
    assert_eq!(types("tanh"), ["f16", "bf16", "f32", "f64"]);
    assert_eq!(types("popcnt").len(), 8);
    assert!(ops.iter().all(|o| !o["dtypes"].as_array().unwrap().is_empty()), "{ops:?}");

    let text = f.run(&["knobs", "--threads=3"]).ok().out;
    assert!(text.contains("SYSTOLE_LOG"), "{text}");
    let knobs = f.run(&["knobs", "--threads=3", "--json"]).ok().json();
    let threads = knobs.as_array().unwrap().iter().find(|k| k["name"] == "SYSTOLE_THREADS").unwrap();
    assert_eq!((&threads["value"], &threads["default"]), (&"3".into(), &"0".into()));
}

#[test]
fn what_a_report_needs_and_what_shells_and_man_need() {
    let f = Folder::new("env");
    f.write("cache/plugins/tpu/libtpu.so", vec![0; 3 << 20]);
    let told = |json: &[&str]| {
        let mut command = f.command(&[&["env"][..], json].concat());
        command.env("HOME", &f.0).env("SYSTOLE_CACHE", f.path("cache")).env("SYSTOLE_GRACE", "7");
        command.env("TPU_PROJECT", "my-secret").env("CLOUDSDK_AUTH_ACCESS_TOKEN", "ya29.token");
        crate::program::Done::of(command.output().unwrap(), &["env"]).ok()
    };
    let (text, json) = (told(&[]).out, told(&["--json"]).json());
    assert_eq!(json["systole"]["version"], env!("CARGO_PKG_VERSION"));
    let caches = json["caches"].as_object().unwrap();
    assert_eq!(
        (&caches["folder"], &caches["plugins"]),
        (&"~/cache".into(), &"1 file, 3 MiB".into()),
        "{text}"
    );
    assert_eq!(json["variables"]["SYSTOLE_GRACE"], "7");
    assert_eq!(
        (&json["variables"]["TPU_PROJECT"], &json["variables"]["CLOUDSDK_AUTH_ACCESS_TOKEN"]),
        (&"set".into(), &"set".into())
    );
    assert!(json["processor"]["cores"].as_u64().unwrap() > 0 && json["devices"]["tpu"].is_array(), "{json}");
    for secret in ["my-secret", "ya29", &f.0.display().to_string()] {
        assert!(!text.contains(secret) && !json.to_string().contains(secret), "{secret}: {text}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = f.run(&["completions", shell]).ok().out;
        assert!(
            script.contains("systole") && script.contains("lr-find") && script.contains("overfit-batches"),
            "{shell}"
        );
    }
    f.run(&["completions", "tcsh"])
        .fails("usage", &["[possible values: bash, elvish, fish, powershell, zsh]"]);
    let written = f.run(&["man", "--out=pages", "--json"]).ok().json();
    let pages = f.files("pages");
    assert_eq!(written["files"].as_array().unwrap().len(), pages.len());
    assert!(pages.contains(&"systole.1".into()) && pages.contains(&"systole-train.1".into()), "{pages:?}");
    assert!(pages.iter().all(|page| !page.contains("here")), "hidden commands have none: {pages:?}");
    let train = std::fs::read_to_string(f.path("pages/systole-train.1")).unwrap();
    assert!(train.starts_with(".ie") && train.contains("overfit"), "{}", &train[..200]);
}

#[test]
fn a_configuration_is_not_a_model() {
    let f = Folder::new("commands-configuration");
    f.write("mine.toml", "[fit]\nepochs = 1\n");
    let export = ["export", "mine.toml", "--format=onnx", "--out=x.onnx"];
    for args in [&export[..], &["evaluate", "mine.toml"], &["quantize", "mine.toml", "--out=x.tflite"]] {
        f.run(args).fails("config", &["mine.toml"]);
    }
}

#[test]
fn wrong_usage_is_a_json_object_too() {
    let f = Folder::new("usage-json");
    for (args, error, hint) in [
        (&["train", "x.toml", "--epochs", "0"][..], "invalid value '0' for '--epochs <N>'", "--help"),
        (&["train", "--epcohs", "1"], "unexpected argument '--epcohs' found", "--epochs"),
        (&["trian"], "unrecognized subcommand 'trian'", "train"),
        (&["evaluate"], "the following required arguments were not provided: <MODEL>", "--help"),
    ] {
        let o = f.run(&[args, &["--json"]].concat()).fails("usage", &[]).json();
        assert!(o["error"].as_str().unwrap().starts_with(error), "{o}");
        assert!(o["try"].as_str().unwrap().contains(hint), "{o}");
        assert_eq!((&o["kind"], &o["exit_code"]), (&"usage".into(), &2.into()));
    }
    let help = f.run(&["train", "--help", "--json"]).ok();
    assert!(help.out.contains("Usage: systole train"), "{}", help.out);
}

#[test]
fn without_arguments_it_shows_five_commands_that_exist() {
    let f = Folder::new("first-steps");
    let text = f.run(&[]).ok().out;
    let program = concat!("  ", env!("CARGO_BIN_EXE_systole"), " ");
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(program)).collect();
    assert_eq!(commands.len(), 5, "{text}");
    for line in commands {
        let name = line.split_whitespace().next().unwrap();
        f.run(&[name, "--help"]).ok();
    }
    assert!(text.trim_end().lines().count() <= 10 && text.contains("-h` lists all commands"), "{text}");
}

#[test]
fn doctor_checks_the_cpu_and_the_c_library() {
    let f = Folder::new("doctor");
    let report = |isa: &str| {
        let mut command = f.command(&["doctor", "--json"]);
        // Without the TPU compiler, which doctor would try.
        command.env("SYSTOLE_ISA", isa).env_remove("SYSTOLE_PYTHON").env("HOME", &f.0);
        Done::of(command.output().unwrap(), &["doctor"]).json()
    };
    let check = |report: &Value, subject: &str| {
        report.as_array().unwrap().iter().find(|check| check["subject"] == subject).unwrap().clone()
    };
    let whole = report("auto");
    assert!(check(&whole, "CPU")["said"].as_str().unwrap().starts_with("kernels of level "), "{whole}");
    let glibc = check(&whole, "glibc");
    assert!(glibc["said"].as_str().unwrap().contains("; systole requires 2."), "{glibc}");
    assert_eq!(glibc["mend"], Value::Null);
    if check(&whole, "CPU")["said"] != "kernels of level portable" {
        assert_eq!(check(&report("portable"), "CPU")["mend"], "unset SYSTOLE_ISA   # it is portable");
    }
}

#[test]
fn help_documents_the_exit_codes_and_wrong_usage_is_2() {
    let f = Folder::new("usage");
    let (short, long) = (f.run(&["-V"]).ok().out, f.run(&["--version"]).ok().out);
    assert_eq!(short, concat!("systole ", env!("CARGO_PKG_VERSION"), "\n"));
    assert!(
        long.starts_with(short.trim_end()) && long.contains("features: cloud, launch, tpu1, tui"),
        "{long}"
    );
    let help = f.run(&["--help"]).ok().out;
    for code in ["0 success", "1 failure", "2 wrong usage", "130", "143"] {
        assert!(help.contains(code), "{help}");
    }
    f.run(&["--json"]).fails("usage", &["'systole'"]);
    let cases: [&[&str]; 10] = [
        &["trian"],
        &["train", "--epoch=3"],
        &["train", "mnist", "--batch-size=0"],
        &["train", "mnist", "--epochs=0"],
        &["train", "mnist", "--epochs=many"],
        &["train", "mnist", "--precision=float23"],
        &["train", "mnist", "--learning-rate=-1"],
        &["train", "mnist", "--set=fit.epoch=3"],
        &["train", "mnist", "--set=fit.batch_size"],
        &["train", "minst"],
    ];
    for args in cases {
        f.run(args).fails("usage", &[]);
    }
    f.run(&["train", "mnist", "--set=data.scael=1"]).fails("usage", &["`scale`", "--set data.scael=1"]);
    let o = f.run(&["train", "mnist", "--set=data.scael=1", "--json"]).fails("usage", &[]).json();
    assert_eq!((&o["exit_code"], &o["kind"]), (&2.into(), &"usage".into()));
    assert!(f.files("runs").is_empty());
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let f = Folder::new("pipe");
    let line = format!("{} ops | head -1", env!("CARGO_BIN_EXE_systole"));
    let output = std::process::Command::new("sh").arg("-c").arg(line).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    drop(f);
}

#[cfg(unix)]
mod signals {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// Trains without end until the first epoch is over, then sends the signal.
    fn interrupt(f: &Folder, signal: &str) -> Done {
        let args = [
            "train",
            "fashion-mnist",
            "--data-dir=data",
            "--json",
            "--epochs=1000000",
            "--steps-per-epoch=2",
            "--batch-size=16",
            "--set=layers.0.filters=2",
            "--set=fit.validation_freq=1000000",
            "--out=out",
        ];
        let mut child = f.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().starts_with("Epoch ") {}
        // Someone must go on reading, or the program waits for room in the pipe.
        let rest = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let output = child.wait_with_output().unwrap();
        Done { err: rest.join().unwrap(), ..Done::of(output, &args) }
    }

    #[test]
    fn training_stops_saves_and_reports() {
        let f = Folder::with_data("signals");
        for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
            let done = interrupt(&f, signal);
            assert_eq!(done.code, Some(code), "{}", done.err);
            let o = done.json();
            assert_eq!(o["interrupted"], true);
            assert!(!o["history"].as_array().unwrap().is_empty() && o["loss"].is_number(), "{o}");
            assert!(
                done.err.contains("Stopped on request") && done.err.contains("continue where it stopped")
            );
            let before = o["total_steps"].as_u64().unwrap();
            let model = "out/fashion-mnist.safetensors";
            let more = ["train", "--from", model, "--data-dir=data", "--epochs=1", "--out=more", "--json"];
            let o = f.run(&more).ok().json();
            assert_eq!(o["total_steps"], before + 2);
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn devices_are_watched_as_lines_and_as_objects() {
    use std::os::unix::fs::PermissionsExt;
    let f = Folder::new("cli-watch");
    let fake = f.write("bin/nvidia-smi", "#!/bin/sh\necho '0, A GPU, 50, 2048, 4096, 40, [N/A]'\n");
    std::fs::set_permissions(&fake, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", f.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let run = |args: &[&str]| {
        let output = f.command(args).env("PATH", &path).output().unwrap();
        crate::program::Done::of(output, args).ok()
    };
    let objects = run(&["devices", "--watch=0.1", "--count=2", "--json"]).out;
    for line in objects.lines() {
        let o: serde_json::Value = serde_json::from_str(line).unwrap();
        let [cpu, gpu, ..] = o["devices"].as_array().unwrap().as_slice() else { panic!("{o}") };
        let (busy, used) = (cpu["busy"].as_f64().unwrap(), cpu["memory_used_mib"].as_f64().unwrap());
        assert!(
            (0.0..=1.0).contains(&busy) && used > 0.0 && used < cpu["memory_mib"].as_f64().unwrap(),
            "{o}"
        );
        assert_eq!(
            (&gpu["device"], &gpu["busy"], &gpu["memory_mib"]),
            (&"cuda:0".into(), &0.5.into(), &4096.0.into())
        );
        assert!(gpu["watts"].is_null(), "{o}");
    }
    assert_eq!(objects.lines().count(), 2);
    let lines = run(&["devices", "--watch=0.1", "--count=2"]).out;
    assert!(
        !lines.contains('\x1b') && lines.matches("50 %     2.0 of 4.0 GiB  A GPU, 40 °C").count() == 2,
        "{lines}"
    );
    f.run(&["devices", "--count=2"]).fails("usage", &["--watch"]);
    f.run(&["devices", "--watch=0"]).fails("usage", &["0.05"]);
}

/// An HTTP/2 frame of stream 1.
fn http2_frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// Serves libtpu's metrics of one device with 16 GiB as its gRPC service does; returns the port. Each frame after the
/// client's preface is read; the one with data (kind 0) names the metric.
fn tpu_metrics_service() -> u16 {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.read_exact(&mut [0; 24]).unwrap();
            let mut head = [0; 9];
            while stream.read_exact(&mut head).is_ok() {
                let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                stream.read_exact(&mut payload).unwrap();
                if head[3] != 0 {
                    continue;
                }
                let name = String::from_utf8_lossy(&payload).into_owned();
                let gauge = match name.as_str() {
                    n if n.contains("memory.total") => vec![0x10, 0x80, 0x80, 0x80, 0x80, 0x40],
                    n if n.contains("memory.usage") => vec![0x10, 0x80, 0x80, 0x80, 0x80, 0x10],
                    _ => [&[9][..], &37.5f64.to_le_bytes()].concat(),
                };
                let metric = [&[0x1a, gauge.len() as u8][..], &gauge].concat();
                let list = [&[0x1a, metric.len() as u8][..], &metric].concat();
                let answer = [&[0x0a, list.len() as u8][..], &list].concat();
                let message = [&[0, 0, 0, 0, answer.len() as u8][..], &answer].concat();
                let frames = [http2_frame(1, 4, &[0x88]), http2_frame(0, 0, &message)].concat();
                stream.write_all(&frames).unwrap();
            }
        }
    });
    port
}

#[test]
#[cfg(target_os = "linux")]
fn tpus_are_watched_through_libtpus_metrics() {
    let f = Folder::new("cli-watch-tpu");
    let run = |port: &str, args: &[&str]| {
        let output = f.command(args).env("TPU_RUNTIME_METRICS_PORTS", port).output().unwrap();
        crate::program::Done::of(output, args)
    };
    let port = tpu_metrics_service().to_string();
    let watch = ["devices", "--watch=0.1", "--count=1"];
    let o = run(&port, &[&watch[..], &["--json"]].concat()).ok().json();
    let tpu = o["devices"].as_array().unwrap().iter().find(|d| d["device"] == "tpu:0").unwrap();
    assert_eq!((&tpu["busy"], &tpu["memory_used_mib"]), (&0.375.into(), &4096.0.into()), "{o}");
    assert_eq!(tpu["memory_mib"], 16384.0);
    let lines = run(&port, &watch).ok().out;
    assert!(lines.contains("38 %    4.0 of 16.0 GiB  duty cycle"), "{lines}");
    // A missing service is reported, and the other devices are shown.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let lines = run(&gone, &watch).ok().out;
    assert!(lines.contains(&format!("port {gone}")) && lines.contains("cpu "), "{lines}");
    run("84x", &watch).fails("config", &["TPU_RUNTIME_METRICS_PORTS"]);
}

#[test]
fn a_flame_graph_has_the_layers_and_their_kernels() {
    let f = Folder::with_data("cli-flame");
    let done = train(&f, &["fashion-mnist", "--data-dir", "data", "--out=run", "--flame=time.svg"]).ok();
    assert!(!done.err.contains("kernels of"), "what is drawn is not printed too: {}", done.err);
    let svg = std::fs::read_to_string(f.path("time.svg")).unwrap();
    for part in ["train step: layers", "<title>conv2d: ", "<title>dense: ", "<title>dot_general"] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert!(!svg.contains("<script") && !svg.contains("href"));
    f.run(&["ops", "--flame=none.svg"]).fails("config", &["--flame"]);
}

#[test]
fn weights_come_in_and_go_out() {
    let f = Folder::new("weights");
    let fixture =
        |name: &str| format!("{}/fixtures/weights/{name}", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let o = f.run(&["import", &fixture("resnet.pt"), "--out", "r.safetensors", "--json"]).ok().json();
    assert_eq!((&o["kind"], &o["output_shape"][0]), (&"a PyTorch file".into(), &5.into()));
    assert_eq!(o["rows"][0]["theirs"], "conv1.weight");
    let o = f.run(&["export", "r.safetensors", "--format", "torch", "--out", "r.pt", "--json"]).ok().json();
    assert!(o["bytes"].as_u64().unwrap() > 10_000 && f.path("r.pt").is_file());
    let text = f.run(&["import", "r.pt", "--out", "again.safetensors"]).ok().out;
    assert!(
        text.contains("layer2.0.downsample.0.weight") && text.contains("by ResNet tensor names"),
        "{text}"
    );
    // The format by the extension.
    f.run(&["export", "again.safetensors", "--out=r.keras"]).ok();
    f.run(&["import", "r.keras", "--out", "k.safetensors"]).ok();
    let two = f.run(&["import", &fixture("nested_layers.keras"), "--out", "two.safetensors", "--json"]).ok();
    assert!(two.json()["params"].as_u64() > Some(0));
    f.run(&["summary", "two.safetensors"]).ok();
    f.run(&["train", "glyphs", "--out=g", "--epochs=1", "--steps-per-epoch=1", "--quiet"]).ok();
    let text = f.run(&["export", "g", "--out=g.pt"]).ok().out;
    assert!(text.contains("g.preprocessing.json") && f.path("g.preprocessing.json").is_file(), "{text}");
}

#[test]
fn models_become_int8_files_that_run_and_predict() {
    let f = Folder::with_data("int8");
    f.train("m");
    let o = f
        .run(&[
            "quantize",
            "m",
            "--data-dir=data",
            "--samples=20",
            "--out=m.tflite",
            "--target=edgetpu",
            "--json",
        ])
        .ok()
        .json();
    assert_eq!((&o["calibration_samples"], &o["accuracy"]["samples"]), (&20.into(), &32.into()));
    assert!(
        o["layers"][0]["snr_db"].as_f64().unwrap() > 15.0 && o["edgetpu"]["operators"][0]["on_chip"] == true,
        "{o}"
    );
    let ops = f.run(&["summary", "m.tflite", "--json"]).ok().json();
    assert_eq!((&ops["operators"][0]["op"], &ops["inputs"][0]["dtype"]), (&"CONV_2D".into(), &"i8".into()));
    let plain = f.run(&["run", "m.tflite", "--random=3", "--output=out.npz"]).ok().out;
    assert!(
        plain.contains("out.npz: out0 i8[1, 10]") && !plain.contains("CONV_2D"),
        "no table unless asked for: {plain}"
    );
    let asked = f.run(&["run", "m.tflite", "--random=3", "--profile"]).ok().out;
    assert!(asked.contains("CONV_2D"), "{asked}");
    let on = |device: &str| {
        f.run(&["run", "m.tflite", "--random=3", "--repeat=2", "--device", device, "--json"]).ok().json()
    };
    let (fast, slow) = (on("cpu"), on("ref"));
    assert!(
        fast["results"] == slow["results"] && fast["device"] == "cpu" && slow["device"] == "ref",
        "{fast}"
    );
    assert!(fast["interpreted"] == 0 && fast["repeat"]["runs"] == 2, "{fast}");
    let profile = f.run(&["run", "m.tflite", "--random=3", "--profile=kernels"]).ok().out;
    let rows = profile.lines().filter(|line| line.trim_end().ends_with('%')).count();
    assert!(rows == ops["operators"].as_array().unwrap().len() && profile.contains("product"), "{profile}");
    int8_files_are_programs_too(&f);
    // The same samples that quantize looked at.
    let of = |file: &str| f.run(&["evaluate", file, "--data-dir=data", "--json"]).ok().json();
    let (whole, ours) = (of("m"), of("m.tflite"));
    let accuracy = |o: &Value| o["accuracy"].as_f64().unwrap();
    assert_eq!(ours["samples"], whole["samples"]);
    assert_eq!(
        (accuracy(&ours), &ours["dataset"]),
        (o["accuracy"]["int8"].as_f64().unwrap(), &whole["dataset"])
    );
    f.run(&["evaluate", "m.tflite", "--data-dir=data", "--tta"]).fails("usage", &["--tta"]);
    let again = f.run(&["predict", "m.tflite", "m/fashion-mnist-example.png", "--json"]).ok().json();
    let before = f.run(&["predict", "m", "m/fashion-mnist-example.png", "--json"]).ok().json();
    let off = again["probability"].as_f64().unwrap() - before["probability"].as_f64().unwrap();
    assert!(again["class"] == before["class"] && off.abs() < 0.1, "{again} {before}");
    let sizes = ["m.tflite", "f.tflite"].map(|name| std::fs::metadata(f.path(name)).unwrap().len());
    assert!(sizes[0] < sizes[1], "{sizes:?}");
    let skip = ["quantize", "m", "--data-dir=data", "--out=n.tflite", "--skip=dens"];
    f.run(&skip).fails("config", &["`dens`", "conv2d"]);
    f.run(&["export", "m", "--format=torch", "--int8", "--out=m.pt"]).fails("usage", &["--format tflite"]);
    let whole = std::fs::read(f.path("m.tflite")).unwrap();
    std::fs::write(f.path("cut.tflite"), &whole[..whole.len() / 2]).unwrap();
    f.run(&["summary", "cut.tflite"]).fails("data", &["5788", "cut.tflite"]);
}

/// `m.tflite` is shown, planned and run as a program: within two steps of its own fixed-point arithmetic.
fn int8_files_are_programs_too(f: &Folder) {
    let kernels = f.run(&["show", "m.tflite", "--stage=kernels"]).ok().out;
    assert!(kernels.contains("CONV_2D") && kernels.contains("bytes of intermediate results"), "{kernels}");
    assert!(f.run(&["show", "m.tflite"]).ok().out.contains("stablehlo.convolution"));
    assert!(f.run(&["plan", "m.tflite", "--targets=v5e-1"]).ok().out.contains("v5litepod-1"));
    let image: Vec<i8> = (0..784).map(|i| (i * 37 % 251 - 125) as i8).collect();
    let image = Literal::from_slice([1, 28, 28, 1], &image).unwrap();
    f.write("image.npz", npz(&[("arg0", npy::to_bytes(&image).unwrap())]));
    let run = |more: &[&str]| {
        let args = [&["run", "m.tflite", "--input=image.npz", "--json"], more].concat();
        f.run(&args).ok().json()
    };
    let (exact, program) = (first(&run(&[])), first(&run(&["--dim=N=1"])));
    assert!(
        exact.len() == 8 && exact.iter().zip(&program).all(|(a, b)| (a - b).abs() <= 2.0),
        "{exact:?} {program:?}"
    );
    f.run(&["export", "m", "--format=tflite", "--float", "--out=f.tflite"]).ok();
    for file in ["m.tflite", "f.tflite"] {
        let limited = f.run(&["run", file, "--random=3", "--memory-limit=10KiB"]);
        limited.fails("unsupported", &["--memory-limit", file]);
    }
    let precise = ["run", "m.tflite", "--random=3", "--precision=mixed_bfloat16"];
    f.run(&precise).fails("usage", &["--precision", "m.tflite"]);
}

/// The first numbers of the first result.
fn first(ran: &Value) -> Vec<f64> {
    ran["results"][0]["first"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// `f.onnx` and `i.onnx` are asked about samples, as the model that they were made of.
fn onnx_files_answer_as_their_model(f: &Folder) {
    let of =
        |file: &str| f.run(&["evaluate", file, "--data-dir=data", "--batch-size=7", "--json"]).ok().json();
    let (whole, floats, integers) = (of("m"), of("f.onnx"), of("i.onnx"));
    let accuracy = &whole["sparse_categorical_accuracy"];
    assert_eq!((&floats["accuracy"], &floats["samples"]), (accuracy, &whole["samples"]));
    let off = integers["accuracy"].as_f64().unwrap() - accuracy.as_f64().unwrap();
    assert!(off.abs() < 0.1, "{integers} {whole}");
    let said = |file: &str| f.run(&["predict", file, "m/fashion-mnist-example.png", "--json"]).ok().json();
    let before = said("m");
    for file in ["f.onnx", "i.onnx"] {
        let now = said(file);
        let off = now["probability"].as_f64().unwrap() - before["probability"].as_f64().unwrap();
        assert!(now["class"] == before["class"] && off.abs() < 0.1, "{now} {before}");
    }
    f.run(&["evaluate", "f.onnx", "--data-dir=data", "--tta"]).fails("usage", &["--tta"]);
    // Others' files know no classes and no scale, and have the channels of pictures in front.
    let theirs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/onnx/cnn.onnx");
    let said =
        f.run(&["predict", theirs, "m/fashion-mnist-example.png", "--scale=1/255", "--json"]).ok().json();
    assert!(said["class"].is_number() || said["class"].is_string(), "{said}");
    let two = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/onnx/attention.onnx");
    f.run(&["predict", two, "m/fashion-mnist-example.png"]).fails("unsupported", &["2", "systole run"]);
}

#[test]
fn models_become_onnx_files_that_run() {
    use systole_program::files::{ArrayFileFormat, stored, write};
    let f = Folder::with_data("onnx");
    f.train("m");
    f.run(&["export", "m", "--format=tflite", "--out=f.tflite"]).ok();
    f.run(&["export", "m", "--format=onnx", "--out=f.onnx"]).ok();
    let pixels = |n: usize| (0..n * 784).flat_map(|i| (i as f32 % 7.0 / 7.0).to_le_bytes()).collect();
    for n in [1, 3] {
        let x = stored("f32", &[n, 28, 28, 1], pixels(n)).unwrap();
        write(&f.path(&format!("{n}.npz")), ArrayFileFormat::Npz, vec![("arg0".into(), x)]).unwrap();
    }
    let right = f.run(&["run", "f.tflite", "--input=1.npz", "--json"]).ok().json();
    for device in ["cpu", "ref"] {
        let done = f.run(&["run", "f.onnx", "--input=3.npz", "--json", "--device", device]).ok();
        assert!(done.err.contains("open sizes of the model: N = 3"), "{}", done.err);
        let made = done.json();
        assert_eq!(made["results"][0]["type"], "f32[3, 10]", "{made}");
        let pairs: Vec<_> = first(&made).into_iter().zip(first(&right)).collect();
        assert!(pairs.len() == 8 && pairs.iter().all(|(a, b)| (a - b).abs() < 1e-5), "{pairs:?}");
    }
    let ops = f.run(&["summary", "f.onnx", "--json"]).ok().json();
    assert_eq!(
        (&ops["opset"], &ops["inputs"][0]["sizes"][0], &ops["error"]),
        (&17.into(), &"N".into(), &Value::Null)
    );
    assert!(f.run(&["summary", "f.onnx"]).ok().out.contains("Input "));
    let shown = f.run(&["show", "f.onnx", "--dim", "N=2"]).ok();
    assert!(shown.out.contains("tensor<2x10xf32>") && shown.err.contains("N = 2"), "{}", shown.out);
    f.run(&["translate", "f.onnx", "f.mlir"]).ok();
    let again = f.run(&["run", "f.mlir", "--input=1.npz", "--json"]).ok().json();
    assert!(first(&again).iter().zip(first(&right)).all(|(a, b)| (a - b).abs() < 1e-5), "{again}");
    f.run(&["run", "f.onnx", "--dim", "M=2", "--random=1"]).fails("config", &["`M`", "`N`"]);
    f.run(&["run", "f.mlir", "--dim", "N=2", "--random=1"]).fails("config", &["--dim"]);
    f.run(&["run", "f.onnx", "--dim", "N", "--random=1"]).fails("usage", &["NAME=N"]);

    let int8 = [
        "export",
        "m",
        "--format=onnx",
        "--int8",
        "--data-dir=data",
        "--samples=20",
        "--out=i.onnx",
        "--json",
    ];
    f.run(&int8).ok();
    let ops = f.run(&["summary", "i.onnx", "--json"]).ok().json();
    let has = |op: &str| ops["operators"].as_array().unwrap().iter().any(|o| o["op"] == op);
    assert!(ops["inputs"][0]["dtype"] == "i8" && has("DequantizeLinear") && has("QuantizeLinear"), "{ops}");
    f.run(&["run", "i.onnx", "--random=3", "--dim=N=2"]).ok();
    onnx_files_answer_as_their_model(&f);
    f.run(&["export", "m", "--format=onnx", "--dynamic", "--out=d.onnx"])
        .fails("usage", &["--dynamic", "--format tflite"]);
    f.run(&["quantize", "m", "--out=e.onnx", "--target=edgetpu"]).fails("usage", &["--target", ".tflite"]);
    let whole = std::fs::read(f.path("f.onnx")).unwrap();
    std::fs::write(f.path("cut.onnx"), &whole[..whole.len() / 2]).unwrap();
    f.run(&["run", "cut.onnx", "--random=1"]).fails("data", &["cut.onnx"]);
    f.run(&["summary", "cut.onnx"]).fails("data", &["cut.onnx"]);
}
