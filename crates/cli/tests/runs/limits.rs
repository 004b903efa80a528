//! Tests of trial runs and of limits (steps, epochs, time) given on the command line and in TOML.

use crate::program::Folder;

#[test]
fn a_fast_run_tries_everything_and_leaves_nothing() {
    let f = Folder::new("fast-dev-run");
    let done = f.run(&["train", "glyphs", "--fast-dev-run=3", "--json"]).ok();
    let o = done.json();
    assert_eq!((&o["fast_dev_run"], &o["steps"]), (&3.into(), &3.into()), "{o}");
    assert!(
        o["val_loss"].as_f64().unwrap() > 0.0 && done.err.contains("Trial run of 3 batches"),
        "{}",
        done.err
    );
    let left: Vec<_> = std::fs::read_dir(&f.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["no-folder"], "{}", done.out);
    let one = f.run(&["train", "glyphs", "--fast-dev-run"]).ok();
    assert!(
        one.out.contains("Trial run of one batch") && one.out.contains("The trial succeeded: loss"),
        "{}",
        one.out
    );
}

#[test]
fn limits_hold_for_epochs_tests_and_what_is_told() {
    let f = Folder::new("limits");
    let few =
        ["--limit-train-batches", "4", "--limit-val-batches", "2", "--batch-size", "50", "--epochs", "2"];
    let done =
        f.run(&[&["train", "glyphs", "--out", "a", "--steps-per-epoch", "none"][..], &few].concat()).ok();
    assert!(done.out.contains("on 100 images; after 2 epochs, 8 steps"), "{}", done.out);
    // The same from a file.
    let printed = f.run(&[&["train", "glyphs", "--print-config"][..], &few].concat()).ok();
    assert!(printed.out.contains("limit_train_batches = 4"), "{}", printed.out);
    f.write("c.toml", printed.out.replace("limit_val_batches = 2", "limit_val_batches = 0"));
    let done = f.run(&["train", "c.toml", "--out", "b"]).ok();
    assert!(done.out.contains("Training: loss") && !done.out.contains("Test:"), "{}", done.out);
}

#[test]
fn the_loop_alone_leaves_nothing_and_an_anomaly_its_batch() {
    let f = Folder::new("barebones");
    let few = ["--limit-train-batches=4", "--batch-size=20", "--steps-per-epoch=none", "--epochs=2"];
    let done = f.run(&[&["train", "glyphs", "--barebones", "--json"][..], &few].concat()).ok();
    let o = done.json();
    assert_eq!((&o["barebones"], &o["steps"], &o["samples"]), (&true.into(), &8.into(), &160.into()), "{o}");
    assert!(f.files("").iter().all(|name| name == "no-folder"), "{:?}", f.files(""));
    let broken = ["train", "glyphs", "--out=a", "--detect-anomaly", "--learning-rate=1e38"];
    f.run(&[&broken[..], &few].concat()).fails("data", &["2", "`conv2d`", "a/anomaly.npz"]);
    let read = f.run(&["data", "inspect", "a/anomaly.npz"]).ok();
    assert!(read.out.contains("label"), "{}", read.out);
}

#[test]
fn overfitting_a_batch_shows_that_a_model_learns() {
    let f = Folder::new("overfit");
    let run = [
        "train",
        "mlp",
        "--overfit-batches",
        "1",
        "--epochs",
        "60",
        "--out",
        "run",
        "--json",
        "--batch-size",
        "16",
    ];
    let o = f.run(&run).ok().json();
    assert_eq!(o["total_steps"], 60);
    assert!(o["loss"].as_f64().unwrap() < 0.05, "{}", o["loss"]);
}

#[test]
fn wrong_limits_and_times_are_told() {
    let f = Folder::new("limits-wrong");
    for (flag, value) in
        [("--limit-train-batches", "1.5"), ("--limit-val-batches", "half"), ("--max-time", "90")]
    {
        f.run(&["train", "glyphs", flag, value, "--out", "run"]).fails("usage", &[flag]);
    }
    let none = f.run(&["train", "glyphs", "--overfit-batches=0", "--out", "run"]);
    none.fails("config", &["overfit_batches"]);
    let done =
        f.run(&["train", "glyphs", "--max-time", "00:00:00:01", "--epochs", "100000", "--out", "run"]).ok();
    assert!(done.err.contains("(max_time) is reached"), "{}", done.err);
}

/// The largest power of two for whose step the compiler's plan finds room.
#[test]
fn a_batch_is_chosen_by_the_memory_that_its_step_needs() {
    let f = Folder::with_data("auto-batch");
    let batch = |memory: &str| {
        let args = ["train", "cifar-cnn", "--batch-size=auto", "--print-config", "--max-memory", memory];
        let printed = f.run(&args).ok();
        let line = printed.out.lines().find(|l| l.starts_with("batch_size = ")).unwrap().to_string();
        line.trim_start_matches("batch_size = ").parse::<u64>().unwrap()
    };
    let logical = |memory: &str, devices: &str| {
        let strategy = ["--strategy=data_parallel", "--devices", devices];
        let args = ["train", "cifar-cnn", "--batch-size=auto", "--print-config", "--max-memory", memory];
        let printed = f.run(&[&args[..], &strategy].concat()).ok();
        let line = printed.out.lines().find(|l| l.starts_with("batch_size = ")).unwrap().to_string();
        line.trim_start_matches("batch_size = ").parse::<u64>().unwrap()
    };
    let (three, two) = (logical("200MiB", "3"), logical("200MiB", "2"));
    assert!(
        three.is_multiple_of(3) && (three / 3).is_power_of_two() && two <= batch("200MiB"),
        "{three} {two}"
    );
    let (small, large) = (batch("100MiB"), batch("800MiB"));
    assert!(
        small.is_power_of_two() && large.is_power_of_two() && small < large && large < 8192,
        "{small} {large}"
    );
    let run = [
        "train",
        "fashion-mnist",
        "--data-dir=data",
        "--epochs=1",
        "--steps-per-epoch=1",
        "--max-memory=2GiB",
    ];
    let told = f.run(&[&run[..], &["--set=fit.batch_size=auto", "--out=run"]].concat()).ok();
    assert!(told.out.contains("Batch size: 8192, by the compiler's memory plan"), "{}", told.out);
    assert!(
        told.out.contains(
            "of the 2.0 GiB that --memory-limit allows; this is the largest batch size that is tried"
        ),
        "{}",
        told.out
    );
    // The run has the number, so that it goes on with it wherever it goes on.
    let kept = std::fs::read_to_string(f.path("run/run.json")).unwrap();
    assert!(kept.contains("\"batch_size\": 8192"), "{kept}");
    for (memory, size, kind, name) in [
        ("20MiB", "auto", "unsupported", "20 MiB"),
        ("1GiB", "0", "usage", "--batch-size"),
        ("1GiB", "much", "usage", "--batch-size"),
    ] {
        let size = format!("--batch-size={size}");
        let e = f.run(&["train", "fashion-mnist", "--data-dir=data", &size, "--max-memory", memory]);
        e.fails(kind, &[name]);
    }
}
