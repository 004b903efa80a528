//! Tests of a run's outcome after it finished or was stopped: its result, its best model, and which runs may be
//! resumed.

use crate::program::{Done, Folder, TINY};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use systole_data::format::png;
use systole_ir::Literal;

fn bytes(f: &Folder, file: &str) -> Vec<u8> {
    std::fs::read(f.path(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The lines below `Next:`.
fn next(done: &Done) -> Vec<String> {
    let (_, next) = done.out.split_once("Next:\n").unwrap_or_else(|| panic!("{}", done.out));
    next.lines().map(str::to_string).collect()
}

fn shell(f: &Folder, line: &str) -> Done {
    let output = Command::new("sh").arg("-c").arg(line).current_dir(&f.0).output().unwrap();
    Done::of(output, &[line]).ok()
}

/// `resume` of a finished run: trains nothing, and leaves everything as it was.
fn is_finished(f: &Folder, out: &str, steps: u64) -> Value {
    let files = || f.files(out).into_iter().filter(|n| n.ends_with(".safetensors")).collect::<Vec<_>>();
    let all = || files().iter().map(|n| bytes(f, &format!("{out}/{n}"))).collect::<Vec<_>>();
    let (names, before) = (files(), all());
    for _ in 0..2 {
        let done = f.run(&["resume", out, "--json"]).ok();
        assert!(done.err.contains("is finished: nothing to train"), "{}", done.err);
        let o = done.json();
        assert_eq!((&o["steps"], &o["total_steps"]), (&0.into(), &steps.into()), "{o}");
        assert!(o["val_loss"].is_number(), "{o}");
        assert_eq!(files(), names);
        assert!(all() == before, "a model of {out} is another one now");
    }
    f.run(&["resume", out, "--json"]).ok().json()
}

#[test]
fn what_next_prints_runs_twice_and_a_finished_run_trains_no_more() {
    let f = Folder::with_data("runs-next");
    let mut done = f.run(&[&["train", "fashion-mnist", "--data-dir=data"], &TINY[..]].concat()).ok();
    let mut steps = 4;
    is_finished(&f, "runs/fashion-mnist", steps);
    for _ in 0..2 {
        for line in next(&done) {
            let one = shell(&f, &line);
            if line.contains("train --from") {
                (done, steps) = (one, steps + 4);
                let o = is_finished(&f, "runs/fashion-mnist", steps);
                assert_eq!(o["history"].as_array().unwrap().len(), 2, "of this run: {o}");
            }
        }
    }
    assert_eq!(steps, 12);
    let notes = f.run(&["summary", "runs/fashion-mnist/fashion-mnist.safetensors", "--json"]).ok().json();
    let history: Value = serde_json::from_str(notes["notes"]["history"].as_str().unwrap()).unwrap();
    let epochs: Vec<u64> = history.as_array().unwrap().iter().map(|e| e["epoch"].as_u64().unwrap()).collect();
    assert_eq!(epochs, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_run_from_a_model_elsewhere_is_finished_too() {
    let f = Folder::with_data("runs-from");
    f.train("first");
    let model = "first/fashion-mnist.safetensors";
    let from = ["train", "--from", model, "--data-dir=data", "--epochs=1", "--out=more", "--json"];
    assert_eq!(f.run(&from).ok().json()["total_steps"], 6);
    // The same command is the same run.
    let again = f.run(&from).ok();
    assert!(again.err.contains("is finished: nothing to train"), "{}", again.err);
    assert_eq!(again.json()["total_steps"], 6);
    f.run(&[&from[..], &["--learning-rate=0.5"]].concat())
        .fails("config", &["`more`", "optimizer.learning_rate", "0.5", "--resume=never"]);
    // It needs the other folder no more.
    std::fs::rename(f.path("first"), f.path("elsewhere")).unwrap();
    is_finished(&f, "more", 6);
    // What another folder holds is not given up for it.
    f.train("other");
    let before = bytes(&f, "other/fashion-mnist.safetensors");
    let model = "more/fashion-mnist.safetensors";
    f.run(&["train", "--from", model, "--data-dir=data", "--epochs=1", "--out=other"])
        .fails("config", &["`other`", "--from", "more/fashion-mnist.safetensors"]);
    assert!(bytes(&f, "other/fashion-mnist.safetensors") == before);
}

/// A run that is validated after each epoch, at a rate at which it becomes worse.
const WILD: [&str; 5] = [
    "--json",
    "--epochs=6",
    "--set=fit.validation_freq=1",
    "--set=optimizer.type=sgd",
    "--learning-rate=0.02",
];

fn wild<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let tiny: Vec<&str> = TINY.into_iter().filter(|a| !a.contains("epochs=")).collect();
    [&["train", "fashion-mnist", "--data-dir=data", "--out", out], &tiny[..], &WILD, more].concat()
}

fn column(o: &Value, name: &str) -> Vec<f64> {
    o["history"].as_array().unwrap().iter().map(|e| e[name].as_f64().unwrap()).collect()
}

#[test]
fn the_best_epoch_is_kept_beside_the_last_and_is_what_the_folder_means() {
    let f = Folder::with_data("runs-best");
    let done = f.run(&wild("out", &[])).ok();
    let o = done.json();
    let values = column(&o, "val_sparse_categorical_accuracy");
    let best = values.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    assert!(best + 1 < values.len(), "the last epoch is the best, this shows nothing: {values:?}");
    assert_eq!((&o["best"]["epoch"], o["best"]["value"].as_f64()), (&(best + 1).into(), Some(values[best])));
    assert_eq!(o["best"]["model_file"], "out/fashion-mnist.best.safetensors");
    let says = format!("Best: val_sparse_categorical_accuracy {:.4} after epoch {}", values[best], best + 1);
    assert!(done.err.contains(&says), "{says}: {}", done.err);

    let measure = |target: &str| f.run(&["evaluate", target, "--data-dir=data", "--json"]).ok().json();
    assert_eq!(measure("out")["sparse_categorical_accuracy"], values[best]);
    assert_eq!(measure("out")["model_file"], "out/fashion-mnist.best.safetensors");
    assert_eq!(
        measure("out/fashion-mnist.safetensors")["sparse_categorical_accuracy"],
        *values.last().unwrap()
    );
    let predict =
        |target: &str| f.run(&["predict", target, "out/fashion-mnist-example.png", "--json"]).ok().out;
    assert_eq!(predict("out"), predict("out/fashion-mnist.best.safetensors"));
    assert_ne!(predict("out"), predict("out/fashion-mnist.safetensors"));
    assert_eq!(f.run(&["summary", "out", "--json"]).ok().json()["epochs"], best + 1);
    let from_best = f.run(&["train", "--from=out", "--data-dir=data", "--out=more", "--epochs=1", "--json"]);
    assert_eq!(from_best.ok().json()["total_epochs"], best + 2);
    f.run(&["resume", "out/run.json"]).fails("io", &["out/run.json"]);
    assert_eq!(is_finished(&f, "out", 12)["best"], o["best"]);

    // By another value, which is checked before anything is read.
    let by_loss = f.run(&wild("loss", &["--set=fit.monitor=loss"])).ok().json();
    let losses = column(&by_loss, "val_loss");
    assert_eq!(by_loss["best"]["value"].as_f64(), losses.iter().copied().reduce(f64::min));
    f.run(&wild("none", &["--set=fit.monitor=acuracy"])).fails("usage", &["fit.monitor=acuracy"]);

    // A run that goes on must beat it; one that begins anew need not.
    let from = ["train", "--from=out/fashion-mnist.safetensors", "--data-dir=data", "--out=out", "--json"];
    let longer = f.run(&[&from[..], &["--epochs=1", "--learning-rate=1e-9"]].concat()).ok().json();
    assert_eq!((&longer["total_epochs"], &longer["best"]), (&7.into(), &o["best"]));
    let anew = f.run(&wild("out", &["--resume=never", "--set=data.test_samples=16"])).ok().json();
    let values = column(&anew, "val_sparse_categorical_accuracy");
    assert_eq!(anew["best"]["value"].as_f64(), values.into_iter().reduce(f64::max));
    // A folder without a model, and one of several, say so.
    f.write("empty/notes.txt", "");
    f.run(&["evaluate", "empty"]).fails("io", &["`empty`"]);
    for name in ["a", "b"] {
        std::fs::copy(f.path("out/fashion-mnist.safetensors"), f.path(&format!("empty/{name}.safetensors")))
            .unwrap();
    }
    f.run(&["predict", "empty", "x.png"])
        .fails("config", &["`empty`", "empty/a.safetensors", "empty/b.safetensors"]);
}

#[test]
fn a_killed_run_keeps_the_best_model_of_one_that_was_not() {
    let f = Folder::with_data("runs-best-killed");
    let how = ["--save-steps=1"];
    let whole = f.run(&wild("whole", &how)).ok().json();
    for wait in [1, 3, 5, 8] {
        let _ = std::fs::remove_dir_all(f.path("cut"));
        let mut child =
            f.command(&wild("cut", &how)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let step = |name: &String| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
        while f.files("cut/backups").iter().filter_map(step).all(|s: u64| s < wait)
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        let _ = child.kill();
        child.wait().unwrap();
        assert_eq!(f.run(&wild("cut", &how)).ok().json()["best"]["epoch"], whole["best"]["epoch"]);
        for file in ["fashion-mnist.safetensors", "fashion-mnist.best.safetensors"] {
            let of = |out: &str| bytes(&f, &format!("{out}/{file}"));
            assert!(of("cut") == of("whole"), "{file}, killed after step {wait}");
        }
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_epoch_shows_how_far_it_came_and_one_epoch_is_no_epochs() {
    let f = Folder::with_data("runs-interrupted");
    let args = [
        "train",
        "fashion-mnist",
        "--data-dir=data",
        "--out=out",
        "--epochs=1",
        "--steps-per-epoch=1000000",
        "--batch-size=16",
        "--set=layers.0.filters=2",
        "--save-steps=1",
    ];
    let mut child = f.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while f.files("out/backups").len() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let told = BufReader::new(child.stderr.take().unwrap());
    let told = std::thread::spawn(move || told.lines().map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let done = Done::of(child.wait_with_output().unwrap(), &args);
    let told = told.join().unwrap();
    assert_eq!(done.code, Some(130), "{told}");
    let line = told.lines().find(|l| l.starts_with("Epoch 1/1")).unwrap_or_else(|| panic!("{told}"));
    assert!(line.contains("/1000000 "), "{line}");
    assert!(done.out.contains("after 0 epochs, "), "{}", done.out);

    let one =
        [&["train", "fashion-mnist", "--data-dir=data", "--epochs=1", "--steps-per-epoch=1"], &args[6..8]]
            .concat();
    let out = f.run(&one).ok().out;
    assert!(out.contains("; after 1 epoch, 1 step, ") && !out.contains(" 0.0 ms per step"), "{out}");
}

/// Pictures of one shade for each class, `n` to train on and as many to test on.
fn shades(f: &Folder, dir: &str, classes: &[(&str, u8)], n: u8) {
    for (class, shade) in classes {
        for i in 0..2 * n {
            let picture = Literal::from_slice([16, 16, 1], &[shade + i; 256]).unwrap();
            let part = if i < n { "train" } else { "val" };
            f.write(&format!("{dir}/{part}/{class}/{i}.png"), png::to_bytes(&picture).unwrap());
        }
    }
}

const SMALL: [&str; 7] = [
    "--set=layers.0.filters=4",
    "--set=layers.4.filters=4",
    "--set=layers.8.filters=8",
    "--set=data.augment=[]",
    "--batch-size=8",
    "--threads=1",
    "--json",
];

#[test]
fn classes_are_known_by_name_not_by_place() {
    let f = Folder::new("runs-classes");
    shades(&f, "three", &[("ant", 10), ("bee", 120), ("cat", 220)], 8);
    let args = ["train", "three", "--out=out", "--epochs=40", "--learning-rate=0.01"];
    let o = f.run(&[&args[..], &SMALL].concat()).ok().json();
    assert_eq!(o["best"]["value"], 1.0, "{o}");
    // Classes in other places: without the first, and with folders of other names among which they stand elsewhere.
    shades(&f, "two", &[("bee", 120), ("cat", 220)], 8);
    let e = f.run(&["evaluate", "out", "--data-dir=two", "--json"]).ok().json();
    assert_eq!(
        (&e["sparse_categorical_accuracy"], &e["most_confused"]),
        (&1.0.into(), &Value::Array(vec![]))
    );
    let model = e["model_file"].as_str().unwrap();
    for data in [&["--data-dir=two"][..], &["two"]] {
        let out = format!("--out=more{}", data.len() + data[0].len());
        let more = [&["train", "--from", model, "--epochs=1", "--learning-rate=1e-6", "--json", &out], data]
            .concat();
        let o = f.run(&more).ok().json();
        assert_eq!(o["val_sparse_categorical_accuracy"], 1.0, "{o}");
        let s = f.run(&["summary", o["model_file"].as_str().unwrap(), "--json"]).ok().json();
        assert_eq!(s["classes"], serde_json::json!(["ant", "bee", "cat"]));
    }
    // Other classes are refused by name, before anything is written.
    shades(&f, "others", &[("bee", 120), ("cow", 220), ("dog", 10)], 2);
    let named = ["`cow`", "`dog`", "`ant`", "`bee`", "`cat`"];
    f.run(&["evaluate", "out", "--data-dir=others"]).fails("data", &named);
    f.run(&["train", "--from", model, "--data-dir=others", "--out=no"]).fails("data", &named);
    f.run(&["train", "others", "--from", model, "--out=no"]).fails("data", &named);
    assert!(!f.path("no").exists());
}

#[test]
fn columns_are_known_by_name_not_by_place() {
    let f = Folder::new("runs-columns");
    let kind = |x: usize, y: usize| if x > y { "wide" } else { "high" };
    let cells = |i: usize| (i * 37 % 100, i * 61 % 100);
    let rows = |row: &dyn Fn(usize, usize) -> String| -> String {
        (0..300).map(|i| row(cells(i).0, cells(i).1) + "\n").collect()
    };
    f.write(
        "a/table.csv",
        "width,height,class\n".to_string() + &rows(&|x, y| format!("{x},{y},{}", kind(x, y))),
    );
    f.write(
        "b/table.csv",
        "class,extra,height,width\n".to_string() + &rows(&|x, y| format!("{},7,{y},{x}", kind(x, y))),
    );
    let args = ["train", "a/table.csv", "--out=out", "--json", "--threads=1", "--learning-rate=0.01"];
    let o = f.run(&args).ok().json();
    let accuracy = |o: &Value| o["sparse_categorical_accuracy"].as_f64().unwrap();
    let of = |dir: &str| accuracy(&f.run(&["evaluate", "out", "--data-dir", dir, "--json"]).ok().json());
    assert!(of("a") > 0.85, "{o}");
    assert!((of("a") - of("b")).abs() < 0.02, "{} {}", of("a"), of("b"));
    let model = o["model_file"].as_str().unwrap();
    let more = [
        "train",
        "b/table.csv",
        "--from",
        model,
        "--epochs=1",
        "--learning-rate=1e-9",
        "--out=more",
        "--json",
    ];
    let more = f.run(&more).ok().json();
    assert!(more["val_sparse_categorical_accuracy"].as_f64().unwrap() > 0.85, "{more}");
}

#[test]
fn ids_and_labels_beyond_the_model_are_refused_before_the_first_step() {
    let f = Folder::new("runs-ids");
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(60);
    f.write("words.txt", &text);
    f.write("digits.txt", "0123 4567 89 ".repeat(200));
    let refused = |args: &[&str], names: &[&str]| {
        let done = f.run(args).fails("data", names);
        assert!(!done.err.contains("Epoch ") && !done.out.contains("Epoch "), "{}\n{}", done.out, done.err);
        assert!(!f.path("no").exists());
    };
    let gpt2 = |file: &'static str, out: &'static str, vocabulary: &'static str| {
        let small = [
            "--set=model.num_layers=1",
            "--set=model.num_heads=2",
            "--set=model.hidden_dim=8",
            "--set=model.intermediate_dim=8",
            "--set=data.sequence_length=16",
            "--set=fit.steps_per_epoch=2",
            "--threads=1",
        ];
        [&["train", "gpt2-small", "--data-dir", file, "--out", out, vocabulary], &small[..]].concat()
    };
    refused(&gpt2("words.txt", "no", "--set=model.vocabulary_size=60"), &["59", "vocabulary_size"]);
    f.run(&gpt2("digits.txt", "digits", "--set=model.vocabulary_size=60")).ok();
    let model = "digits/digits.safetensors";
    refused(&["train", "--from", model, "--data-dir=words.txt", "--out=no"], &["59", "vocabulary_size"]);
    refused(&["evaluate", "digits", "--data-dir=words.txt"], &["59", "vocabulary_size"]);
    refused(&["predict", "digits", "words.txt"], &["114", "words.txt"]);
    // A head with fewer places than the data have tokens.
    let lstm = [
        "train",
        "lstm",
        "--data-dir=words.txt",
        "--out=no",
        "--set=layers.1.units=4",
        "--set=layers.2.units=4",
    ];
    refused(&[&lstm[..], &["--set=layers.3.units=60"]].concat(), &["104", "59"]);
}

/// Where a normalized array is only pooled, its gradient asks which element was the greatest of an array computed anew, with
/// more digits than the greatest was stored with.
#[test]
fn the_greatest_of_rounded_values_has_a_gradient() {
    let f = Folder::new("greatest");
    let toml = r#"
        [data]
        dataset = "cifar10"
        synthetic = "always"
        scale = "1/255"
        [[layers]]
        type = "Conv2D"
        filters = 16
        kernel_size = 3
        strides = 4
        padding = "same"
        [[layers]]
        type = "BatchNormalization"
        [[layers]]
        type = "GlobalMaxPooling2D"
        [[layers]]
        type = "Dense"
        units = 10
        activation = "softmax"
        [optimizer]
        type = "sgd"
        [compile]
        loss = "sparse_categorical_crossentropy"
        precision = "mixed_bfloat16"
        [fit]
        epochs = 1
        batch_size = 32
    "#;
    f.write("greatest.toml", toml);
    let said = f.run(&["train", "greatest.toml", "--fast-dev-run=2", "--limit-val-batches=1"]).ok();
    assert!((said.out.clone() + &said.err).contains("The trial succeeded"), "{}{}", said.out, said.err);
}

/// The averaged model competes with the epochs, and the folder means the best of all.
#[test]
fn an_averaged_model_is_compared_with_the_epochs_and_kept_as_the_best() {
    let f = Folder::new("runs-swa");
    // At this rate the weights jump about; their mean is better.
    let set = "--set=optimizer={type=\"sgd\",learning_rate=1.0,swa={swa_lrs=1.0,swa_epoch_start=0.4,annealing_epochs=1}}";
    let more = ["--epochs=10", "--set=fit.monitor=loss", "--out=out", "--set=data.train_samples=2000", set];
    let done = f.run(&[&["train", "glyphs", "--json"], &DENSE[..], &more].concat()).ok();
    let o = done.json();
    let measured = f.run(&["evaluate", "out", "--json"]).ok().json();
    assert_eq!((&measured["loss"], &measured["loss"]), (&o["best"]["value"], &o["val_loss"]), "{o}");
    assert!(column(&o, "val_loss").iter().all(|loss| *loss >= o["val_loss"].as_f64().unwrap()), "{o}");
    assert_eq!(o["weights"], "mean of the last epochs (SWA)");
    assert!(done.err.contains("after epoch 10 (mean of the last epochs (SWA))"), "{}", done.err);
    is_finished(&f, "out", o["total_steps"].as_u64().unwrap());
}

/// Small runs of one dense layer, validated after each epoch.
const DENSE: [&str; 7] = [
    "--set=layers=[{type=\"Flatten\"},{type=\"Dense\",units=10,activation=\"softmax\"}]",
    "--set=data.train_samples=256",
    "--set=data.test_samples=96",
    "--set=data.augment=[]",
    "--set=fit.validation_freq=1",
    "--batch-size=32",
    "--threads=1",
];

#[test]
fn a_finished_run_that_is_made_longer_stretches_the_schedules_of_the_whole_run() {
    let f = Folder::new("runs-longer");
    let set = "--set=optimizer={type=\"adam\",learning_rate={type=\"OneCycle\",max_learning_rate=0.003}}";
    let enough = "--set=data.train_samples=4000";
    let train = |epochs: &str, more: &[&str]| {
        let args =
            [&["train", "glyphs", "--json", "--out=out", epochs, set], &DENSE[..], &[enough], more].concat();
        f.run(&args)
    };
    let short = train("--epochs=2", &[]).ok().json();
    train("--epochs=4", &[]).fails("config", &["fit.epochs", "4", "2"]);
    let done = train("--epochs=4", &["--resume=force"]).ok();
    for said in [
        "is finished: resuming it for 2 epochs more",
        "the schedule of the whole run now spans 240 steps instead of 120",
        "the learning rate of step 121 is 2.250e-3, was 3.000e-8",
    ] {
        assert!(done.err.contains(said), "{said}: {}", done.err);
    }
    assert!(!done.err.contains("nothing to train"), "{}", done.err);
    let long = done.json();
    assert_eq!((&long["steps"], &long["total_steps"]), (&120.into(), &240.into()));
    let gain = |o: &Value| o["val_loss"].as_f64().unwrap();
    assert!(gain(&long) < 0.99 * gain(&short), "{} and {}", gain(&long), gain(&short));
    // Resumed as it is, the schedule stays.
    let again = f.run(&["resume", "out", "--json"]).ok();
    assert!(again.err.contains("nothing to train") && !again.err.contains("now spans"), "{}", again.err);
}

/// Scores by an untrained network are refused.
#[test]
fn scores_of_generated_images_need_a_trained_network() {
    let f = Folder::new("runs-features");
    let few = ["--set=data.train_samples=80", "--set=data.test_samples=80", "--threads=1", "--no-report"];
    let gan = ["--epochs=1", "--steps-per-epoch=1", "--batch-size=4", "--out=gan"];
    let sets =
        ["--set=biggan.G_ch=1", "--set=biggan.D_ch=1", "--set=biggan.dim_z=8", "--set=biggan.num_D_steps=1"];
    f.run(&[&["train", "biggan"], &few[..], &gan, &sets, &["--set=biggan.G_param=none"]].concat()).ok();
    let network = |out: &str, rate: &str| {
        let layers = "--set=layers=[{type=\"Conv2D\",filters=8,kernel_size=5,strides=3,activation=\"relu\"},{type=\"Flatten\"},{type=\"Dense\",units=10,activation=\"softmax\"}]";
        let sets = ["--set=data.augment=[]", layers];
        let more = ["--epochs=12", "--batch-size=16", "--learning-rate", rate, "--out", out];
        let samples =
            ["--set=data.train_samples=1000", "--set=data.test_samples=80", "--threads=1", "--no-report"];
        f.run(&[&["train", "cifar-cnn", "--synthetic"], &samples[..], &sets, &more].concat()).ok();
    };
    network("untrained", "1e-12");
    network("trained", "0.003");
    let evaluate =
        |features: &str| f.run(&["evaluate", "gan", "--pictures=80", "--json", "--features", features]);
    evaluate("untrained").fails("config", &["0.075", "--features"]);
    let scores = evaluate("trained").ok().json();
    assert!(scores["fid"].is_number() && scores["network_accuracy"].as_f64().unwrap() > 0.15, "{scores}");
}

#[test]
#[cfg(unix)]
fn a_run_whose_reader_is_gone_is_finished() {
    let f = Folder::with_data("outcome-pipe");
    let args = [&["train", "fashion-mnist", "--data-dir=data", "--out=out"], &TINY[..]].concat();
    // The reader closes the pipe before the first line.
    let mut child = f.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    is_finished(&f, "out", 4);
    // A command that only prints ends.
    let mut child =
        f.command(&["devices", "--watch=1"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
