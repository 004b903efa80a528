//! Tests of `systole sweep`: which settings it tries, its summary, and that it resumes bit-identically after a kill.

use crate::program::Folder;
use serde_json::Value;
use std::time::Duration;

const BASE: &str = r#"
seed = 3
[data]
dataset = "fashion-mnist"
dir = "data"
scale = "1/255"
[[layers]]
type = "Flatten"
[[layers]]
type = "Dense"
units = 10
activation = "softmax"
[optimizer]
type = "adam"
learning_rate = 0.05
[compile]
loss = "sparse_categorical_crossentropy"
metrics = ["accuracy"]
[fit]
epochs = 4
batch_size = 16
"#;

fn folder(name: &str, sweep: &str) -> Folder {
    let f = Folder::with_data(name);
    f.write("base.toml", BASE);
    f.write("s.toml", format!("[sweep]\nbase = \"base.toml\"\n{sweep}"));
    f
}

fn files(f: &Folder, sweep: &str, trial: &str) -> Vec<u8> {
    std::fs::read(f.path(&format!("{sweep}/{trial}/fashion-mnist.safetensors"))).unwrap()
}

fn modified(f: &Folder, file: &str) -> std::time::SystemTime {
    std::fs::metadata(f.path(file)).unwrap().modified().unwrap()
}

#[test]
fn a_grid_is_trained_told_and_not_trained_again() {
    let f = folder(
        "sweep-grid",
        "metric = \"accuracy\"\n[sweep.parameters]\noptimizer.learning_rate = [0.05, 1e-7]\nfit.batch_size = [16, 32]\n",
    );
    let listed = f.run(&["sweep", "s.toml", "--dry-run"]).ok().out;
    assert!(
        listed.lines().count() == 5 && listed.contains("trial-004") && !f.path("runs").exists(),
        "{listed}"
    );

    let done = f.run(&["sweep", "s.toml", "--set", "fit.epochs=2", "--json"]).ok();
    let o = done.json();
    assert_eq!(
        (&o["method"], &o["metric"], &o["direction"]),
        (&"grid".into(), &"val_sparse_categorical_accuracy".into(), &"max".into())
    );
    let trials = o["trials"].as_array().unwrap();
    let value = |t: &Value| t["best"]["value"].as_f64().unwrap();
    assert!(trials.len() == 4 && trials.windows(2).all(|w| value(&w[0]) >= value(&w[1])), "{o}");
    assert!(trials[0]["settings"]["optimizer.learning_rate"] == 0.05 && o["best"] == trials[0], "{o}");
    assert!(trials.iter().all(|t| t["epochs"] == 2 && t["curve"].as_array().unwrap().len() == 2), "{o}");
    assert_eq!(done.out.lines().count(), 1, "one object, and nothing of single trials");

    // Each trial is a run like any other.
    let alone = [
        "train",
        "base.toml",
        "--epochs=2",
        "--learning-rate=0.05",
        "--batch-size=32",
        "--out=alone",
        "--set=fit.monitor=accuracy",
        "--quiet",
    ];
    f.run(&alone).ok();
    let plain = std::fs::read(f.path("alone/fashion-mnist.safetensors")).unwrap();
    assert!(files(&f, "runs/s", "trial-002") == plain, "the same bits as without a sweep");
    let compared = f.run(&["compare", "runs/s/trial-001", "runs/s/trial-003"]).ok().out;
    assert!(compared.contains("optimizer.learning_rate"), "{compared}");

    // Again: nothing is trained.
    let before = modified(&f, "runs/s/trial-001/fashion-mnist.safetensors");
    let again = f.run(&["sweep", "s.toml", "--set", "fit.epochs=2"]).ok();
    assert_eq!(modified(&f, "runs/s/trial-001/fashion-mnist.safetensors"), before);
    assert!(
        again.out.contains("Best: val_sparse_categorical_accuracy")
            && again.out.contains("Report: runs/s/sweep.html"),
        "{}",
        again.out
    );
    let page = std::fs::read_to_string(f.path("runs/s/sweep.html")).unwrap();
    for part in ["trial-004", "id=\"curves\"", "id=\"parameters\"", "optimizer.learning_rate"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<script") && !page.contains("http-equiv=\"refresh"), "nothing that runs");
    f.run(&["sweep", "s.toml"]).fails("config", &["runs/s", "--out"]);
}

#[test]
#[cfg(unix)]
fn a_killed_sweep_goes_on_to_the_same_bits() {
    let sweep = "method = \"random\"\ntrials = 3\nseed = 5\n[sweep.parameters]\noptimizer.learning_rate = { min = 1e-3, max = 1e-1, log = true }\n";
    let f = folder("sweep-kill", sweep);
    let args = |out: &'static str| {
        ["sweep", "s.toml", "--set=fit.epochs=6", "--save-steps=1", "--no-report", "--quiet", "--out", out]
    };
    f.run(&args("whole")).ok();
    for (kill, wait) in [("-KILL", 150), ("-KILL", 400), ("-TERM", 300)] {
        let mut child = f
            .command(&args("killed"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while f.files("killed").len() < 2 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(wait));
        std::process::Command::new("kill").args([kill, &child.id().to_string()]).status().unwrap();
        let code = child.wait().unwrap().code();
        // Before it listens for signals, one just ends it.
        assert!([None, Some(143), Some(0)].contains(&code), "{code:?}");
    }
    f.run(&args("killed")).ok();
    for trial in ["trial-001", "trial-002", "trial-003"] {
        assert!(files(&f, "whole", trial) == files(&f, "killed", trial), "{trial}");
    }
}

#[test]
fn halving_goes_on_with_the_survivors() {
    let sweep = "method = \"halving\"\ntrials = 4\nfactor = 2\nmetric = \"accuracy\"\n[sweep.parameters]\noptimizer.learning_rate = [0.05, 0.02, 1e-6, 1e-7]\n";
    let f = folder("sweep-halving", sweep);
    let o = f.run(&["sweep", "s.toml", "--json", "--out", "h", "--no-report"]).ok().json();
    let epochs: Vec<u64> =
        o["trials"].as_array().unwrap().iter().map(|t| t["epochs"].as_u64().unwrap()).collect();
    assert_eq!(epochs, [4, 2, 1, 1], "{o}");
    let best = &o["best"];
    assert!(best["settings"]["optimizer.learning_rate"].as_f64().unwrap() > 1e-3, "{o}");
    // The survivor was stopped twice, and has the bits of a run that never was.
    let rate = format!("--learning-rate={}", best["settings"]["optimizer.learning_rate"]);
    let alone = ["train", "base.toml", &rate, "--out=alone", "--set=fit.monitor=accuracy", "--quiet"];
    f.run(&alone).ok();
    let plain = std::fs::read(f.path("alone/fashion-mnist.safetensors")).unwrap();
    assert!(files(&f, "h", best["trial"].as_str().unwrap()) == plain);
    // One that was left behind can be gone on with, and then the sweep changes nothing of it.
    let again = f.run(&["sweep", "s.toml", "--json", "--out", "h", "--no-report"]).ok().json();
    assert_eq!(again["trials"], o["trials"]);
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    for (name, sweep, parts) in [
        ("key", "[sweep.parameters]\noptimizer.lerning_rate = [1.0]", ["`learning_rate`", "s.toml, line 4"]),
        (
            "shape",
            "[sweep.parameters]\n\"layers.1\" = [{ type = \"Conv2D\", filters = 2, kernel_size = 3 }]",
            ["trial-001", "Conv2D"],
        ),
        ("metric", "metric = \"f2\"\n[sweep.parameters]\nseed = [1]", ["unknown metric `f2`", "accuracy"]),
    ] {
        let f = folder(&format!("sweep-wrong-{name}"), sweep);
        let done = f.run(&["sweep", "s.toml", "--out", "x"]);
        assert!(
            done.code != Some(0) && parts.iter().all(|p| done.err.to_lowercase().contains(&p.to_lowercase())),
            "{}",
            done.err
        );
        assert!(!f.path("x/trial-001").exists(), "{name}");
    }
}

#[test]
fn a_sweep_is_given_more_trials() {
    let sweep = |n: usize| {
        format!(
            "[sweep]\nbase = \"base.toml\"\nmethod = \"random\"\ntrials = {n}\nseed = 5\n[sweep.parameters]\noptimizer.learning_rate = {{ min = 1e-3, max = 1e-1, log = true }}\n"
        )
    };
    let f = folder("sweep-grows", "");
    let run = |n: usize| {
        f.write("s.toml", sweep(n));
        f.run(&["sweep", "s.toml", "--set=fit.epochs=1", "--no-report", "--json", "--out=r"])
    };
    run(2).ok();
    let before = modified(&f, "r/trial-002/fashion-mnist.safetensors");
    let o = run(4).ok().json();
    assert_eq!(o["trials"].as_array().unwrap().len(), 4, "{o}");
    assert_eq!(modified(&f, "r/trial-002/fashion-mnist.safetensors"), before, "finished trials are kept");
    f.write("s.toml", sweep(4));
    f.run(&["sweep", "s.toml", "--set=fit.epochs=1", "--no-report", "--out=whole", "--quiet"]).ok();
    assert!(
        files(&f, "r", "trial-004") == files(&f, "whole", "trial-004"),
        "as if all had been asked for at once"
    );
    run(3).fails("config", &["`r`", "1", "4", "--out"]);
}

#[test]
fn halving_with_more_trials_ranks_all_by_the_same_epochs() {
    let sweep = |rates: &str| {
        format!(
            "[sweep]\nbase = \"base.toml\"\nmethod = \"halving\"\ntrials = 9\nfactor = 2\nmetric = \"loss\"\n[sweep.parameters]\noptimizer.learning_rate = [{rates}]\n"
        )
    };
    let f = folder("sweep-halving-grows", "");
    let run = |rates: &str, out: &str| {
        f.write("s.toml", sweep(rates));
        f.run(&["sweep", "s.toml", "--json", "--out", out, "--no-report"]).ok().json()
    };
    run("0.001, 1e-6", "grown");
    let grown = run("0.001, 1e-6, 0.05, 0.02", "grown");
    let whole = run("0.001, 1e-6, 0.05, 0.02", "whole");
    let best = |o: &Value| o["best"]["settings"].clone();
    assert_eq!(best(&grown), best(&whole), "{grown}");
}
