//! End-to-end tests of `--logger tensorboard` and of the `TensorBoard` entry of `[[callbacks]]`.

#[path = "../../../../crates/nn/tests/events/mod.rs"]
mod events;
use crate::program::{Done, Folder};
use events::{read, steps_of, tags};

/// Two epochs of four steps.
const SMALL: &str = r#"
seed = 3
[data]
dataset = "fashion-mnist"
dir = "data"
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
epochs = 2
batch_size = 16
"#;
const RUN: [&str; 2] = ["train", "small.toml"];

/// A folder with that run's configuration.
fn folder(name: &str) -> Folder {
    let f = Folder::with_data(name);
    f.write("small.toml", SMALL);
    f
}

#[test]
fn the_flag_writes_what_keras_would_and_none_takes_it_out() {
    let f = folder("logger");
    let run = |more: &[&str]| f.run(&[&RUN[..], more].concat());
    let told = run(&["--out=with", "--logger=tensorboard"]).ok();
    assert!(told.out.contains("tensorboard --logdir with/tensorboard"), "{}", told.out);
    let train = read(&f.path("with/tensorboard/train"));
    assert_eq!(tags(&train), ["epoch_accuracy", "epoch_learning_rate", "epoch_loss", "graph"]);
    assert_eq!(steps_of(&train, "epoch_loss"), [0, 1]);
    let validation = read(&f.path("with/tensorboard/validation"));
    assert!(tags(&validation).contains(&"evaluation_accuracy_vs_iterations"), "{:?}", tags(&validation));
    let root = read(&f.path("with/tensorboard"));
    assert_eq!(tags(&root), ["_hparams_/session_end_info", "_hparams_/session_start_info", "configuration"]);
    let text = |tag: &str| {
        let event = root.iter().find(|e| e.0 == tag).unwrap();
        String::from_utf8_lossy(&event.2).into_owned()
    };
    assert!(text("configuration").contains("batch_size = 16"), "{}", text("configuration"));

    // What was mistaken, and what the test data are, as pictures.
    let pictures = read(&f.path("with/tensorboard/pictures"));
    assert_eq!(tags(&pictures), ["misclassified", "misclassified_classes", "samples"]);
    assert_eq!(steps_of(&pictures, "samples"), [1]);

    // The same bits as without it, and no folder; it is there by default.
    run(&["--out=without", "--logger=none"]).ok();
    assert!(!f.path("without/tensorboard").exists());
    let told = run(&["--out=default"]).ok();
    assert!(told.out.contains("tensorboard --logdir default/tensorboard"), "{}", told.out);
    assert_eq!(read(&f.path("default/tensorboard/train")).len(), train.len());
    let arrays = |out: &str| {
        let file = std::fs::read(f.path(out).join("fashion-mnist.safetensors")).unwrap();
        file[8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize..].to_vec()
    };
    assert!(arrays("with") == arrays("without") && arrays("with") == arrays("default"));
    // With another logger it is the same run, which is over.
    for more in [&["--logger=none"][..], &["--logger=tensorboard"], &["--set=fit.logger=none"]] {
        let again = run(&[&["--out=default", "--json"], more].concat()).ok().json();
        assert_eq!(again["steps"], 0, "{more:?}: {again}");
    }

    // A run that is over stays as it is; one that starts anew takes its place.
    run(&["--out=with", "--logger=tensorboard"]).ok();
    assert_eq!(read(&f.path("with/tensorboard/train")), train);
    f.run(&["resume", "with"]).ok();
    assert_eq!(read(&f.path("with/tensorboard/train")), train);
    run(&["--out=with", "--logger=tensorboard", "--resume=never"]).ok();
    assert_eq!(steps_of(&read(&f.path("with/tensorboard/train")), "epoch_loss"), [0, 1]);
    // One that goes on from its model adds.
    f.run(&[
        "train",
        "--from=with/fashion-mnist.safetensors",
        "--data-dir=data",
        "--epochs=1",
        "--out=with",
        "--logger=tensorboard",
    ])
    .ok();
    assert_eq!(steps_of(&read(&f.path("with/tensorboard/train")), "epoch_loss"), [0, 1, 2]);

    let shown = |more: &[&str]| run(&[more, &["--print-config"]].concat()).ok().out;
    let table = "--set=callbacks=[{ type = \"tensorboard\", update_freq = 2 }]";
    assert!(shown(&["--logger=tensorboard"]).contains("type = \"TensorBoard\""));
    assert_eq!(shown(&[table, "--logger=tensorboard"]).to_lowercase().matches("tensorboard").count(), 1);
    assert!(!shown(&[table, "--logger=none"]).contains("callbacks"));
    let wrong = f.run(&[&RUN[..], &["--set=fit.logger=wandb"]].concat());
    wrong.fails("usage", &["fit.logger", "`wandb`"]);
}

#[test]
fn mistakes_are_told_before_the_first_step() {
    let f = folder("logger-mistakes");
    let run = |table: &str| {
        let set = format!("--set=callbacks=[{{ type = \"TensorBoard\", {table} }}]");
        f.run(&[&RUN[..], &["--out=x", &set]].concat())
    };
    for (table, name) in [
        ("update_freq = 0", "update_freq"),
        ("update_freq = \"step\"", "update_freq"),
        ("log_dir = \"\"", "log_dir"),
        ("histogram_frequency = 1", "`histogram_freq`"),
    ] {
        run(table).fails("usage", &[name]);
        assert!(!f.path("x").exists(), "{table}");
    }
    f.run(&[&RUN[..], &["--out=x", "--logger=wandb"]].concat()).fails("usage", &["--logger"]);
    // A folder that cannot be made.
    f.write("file", "");
    let told = run(&format!("log_dir = {:?}", f.path("file").display().to_string()));
    told.fails("io", &["log_dir"]);
}

/// What docs/guide/toolbox.md shows runs as it is printed.
#[test]
fn the_commands_of_the_page_run() {
    let f = folder("toolbox-page");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/toolbox.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut ran = 0;
    for line in blocks.flat_map(str::lines).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().map(|w| w.trim_matches('\'')).collect();
        assert_eq!(words[0], "systole", "{line}");
        Done::of(f.command(&words[1..]).output().unwrap(), &words[1..]).ok();
        ran += 1;
    }
    assert_eq!(ran, 10);
    let kept = f.files("runs/kept/checkpoints");
    assert!(kept.len() == 2 && kept.iter().all(|n| n.starts_with("epoch=0")), "{kept:?}");
    assert_eq!(steps_of(&read(&f.path("runs/watched/tensorboard/train")), "epoch_loss"), [0, 1]);
    let closer = read(&f.path("runs/closer/tensorboard/train"));
    assert!(tags(&closer).iter().any(|t| t.ends_with("/kernel/histogram")), "{:?}", tags(&closer));
    assert!(steps_of(&closer, "batch_loss").len() > 2);
}
