//! Tests of `fit.class_weight` and `--class-weights` on an imbalanced table: one class has three quarters of the rows.

use crate::program::Folder;

fn table(f: &Folder) {
    let row = |i: usize| {
        let rare = i.is_multiple_of(4);
        format!("{},{},{}\n", i % 7, if rare { 1 } else { 0 } + i % 3, if rare { "rare" } else { "usual" })
    };
    f.write("t.csv", format!("a,b,label\n{}", (0..80).map(row).collect::<String>()));
}

fn train(f: &Folder, out: &str, more: &[&str]) -> Vec<u8> {
    f.run(&[&["train", "t.csv", "--epochs", "2", "--seed", "4", "--out", out][..], more].concat()).ok();
    std::fs::read(f.path(out).join("t.safetensors")).unwrap()
}

/// The weights alone: the configuration is in the file too.
fn arrays(file: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    &file[8 + header..]
}

#[test]
fn balanced_weights_are_those_of_the_counts() {
    let f = Folder::new("class-weight");
    table(&f);
    // As many of each class are kept for the test: 60 to 20 before, and the same shares after.
    let balanced = train(&f, "balanced", &["--class-weights", "balanced"]);
    let two_thirds = 2.0 / 3.0;
    let by_hand = train(&f, "by-hand", &["--class-weights", &format!("rare=2.0,usual={two_thirds}")]);
    let toml = format!("--set=fit.class_weight={{ rare = 2.0, usual = {two_thirds} }}");
    let by_table = train(&f, "by-table", &[&toml]);
    let without = train(&f, "without", &[]);
    assert!(arrays(&balanced) == arrays(&by_hand), "balanced is not 2 and 2/3");
    assert!(arrays(&by_hand) == arrays(&by_table) && arrays(&by_hand) != arrays(&without));
}

/// With a weight of 0 for one class, what is weighed is measured on the other alone.
#[test]
fn weighted_metrics_weigh_by_class() {
    let f = Folder::new("weighted-metrics");
    table(&f);
    let metrics = ["--set=compile.metrics=[\"accuracy\"]", "--set=compile.weighted_metrics=[\"accuracy\"]"];
    let run = |out: &str, more: &[&str]| {
        let all = ["train", "t.csv", "--epochs", "6", "--batch-size", "8", "--json", "--out", out];
        f.run(&[&all[..], &metrics, more].concat())
    };
    let done = run("run", &["--class-weights", "rare=0,usual=1", "--set=fit.monitor=weighted_accuracy"]).ok();
    let out: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let last = |name: &str| out["history"].as_array().unwrap().last().unwrap()[name].as_f64().unwrap();
    let (plain, weighted) =
        (last("sparse_categorical_accuracy"), last("weighted_sparse_categorical_accuracy"));
    // Three of four are usual, and only they count where the loss looks: all of them are soon right, and none of the others.
    assert!(weighted > plain, "{weighted} {plain}");
    assert!(last("val_weighted_sparse_categorical_accuracy") == last("val_sparse_categorical_accuracy"));
    let wrong = f.run(&["train", "t.csv", "--set=compile.weighted_metrics=[\"acuracy\"]", "--out", "wrong"]);
    wrong.fails("usage", &["compile.weighted_metrics", "`acuracy`"]);
}

#[test]
fn wrong_classes_and_weights_are_told() {
    let f = Folder::new("class-weight-wrong");
    table(&f);
    for (weights, kind, name) in [
        ("rar=2", "config", "`rare`"),
        ("rare=-1", "usage", "--class-weights"),
        ("even", "usage", "class_weight"),
        ("rare=2,usual", "usage", "`usual`"),
    ] {
        let done = f.run(&["train", "t.csv", "--class-weights", weights, "--out", "run"]);
        done.fails(kind, &[name]);
        assert!(!f.path("run").exists(), "{weights}");
    }
    let done = f.run(&[
        "train",
        "gpt2-small",
        "--class-weights",
        "balanced",
        "--fast-dev-run",
        "--set=model.num_layers=1",
    ]);
    done.fails("config", &["class_weight"]);
}
