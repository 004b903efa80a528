//! End-to-end tests of the `[[callbacks]]` of a configuration.

use crate::program::Folder;
use systole::config::ConfigDraft;

const CONFIG: &str = r#"
seed = 3
[data]
dataset = "glyphs"
train_samples = 200
test_samples = 50
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
epochs = 30
batch_size = 50
[[callbacks]]
type = "early_stopping"
monitor = "val_accuracy"
patience = 2
restore_best_weights = true
[[callbacks]]
type = "CSVLogger"
filename = "log.csv"
[[callbacks]]
type = "ReduceLROnPlateau"
monitor = "loss"
factor = 0.5
patience = 1
[[callbacks]]
type = "ModelCheckpoint"
filepath = "{epoch:02}.safetensors"
monitor = "val_accuracy"
save_best_only = true
[[callbacks]]
type = "TerminateOnNaN"
"#;

#[test]
fn callbacks_of_a_file_stop_lower_save_and_log() {
    let f = Folder::new("callbacks");
    std::fs::write(f.path("c.toml"), CONFIG).unwrap();
    let done = f.run(&["train", "c.toml", "--out", "run", "--json"]).ok();
    let told = done.json();
    let epochs = told["total_epochs"].as_u64().unwrap();
    assert!(epochs < 30 && done.err.contains("has not improved on"), "{}", done.err);
    assert!(
        told["stopped_because"]
            .as_str()
            .unwrap()
            .starts_with("val_sparse_categorical_accuracy has not improved")
    );
    let log = std::fs::read_to_string(f.path("run/log.csv")).unwrap();
    assert_eq!(log.lines().count() as u64, epochs + 1, "{log}");

    // The last checkpoint is of the best epoch, whose weights the model has again.
    let best = (1..=epochs).rev().find(|e| f.path(&format!("run/{e:02}.safetensors")).is_file()).unwrap();
    assert_eq!(best + 2, epochs, "two epochs were no better");
    let evaluate = |model: &str| {
        let args = ["evaluate", model, "--json"];
        f.run(&args).ok().json()["sparse_categorical_accuracy"].clone()
    };
    assert_eq!(evaluate("run/glyphs.safetensors"), evaluate(&format!("run/{best:02}.safetensors")));
    let weights = format!("epoch {best}, the best by val_sparse_categorical_accuracy (EarlyStopping)");
    assert!(
        done.err.contains(&format!("; weights: {weights}")) && told["weights"] == weights,
        "{}",
        done.err
    );
    assert_eq!(told["val_sparse_categorical_accuracy"], evaluate("run/glyphs.safetensors"));

    // A run that a callback ended is finished.
    let again = f.run(&["resume", "run", "--json"]).ok().json();
    assert_eq!(
        (&again["total_epochs"], &again["total_steps"]),
        (&told["total_epochs"], &told["total_steps"])
    );
}

#[test]
fn mistakes_name_the_key_and_what_there_is() {
    let f = Folder::new("callbacks-mistakes");
    std::fs::write(f.path("c.toml"), CONFIG).unwrap();
    for (set, what, hint) in [
        ("callbacks.0.patience=-1", "expected an integer", ""),
        ("callbacks.0.type=early", "unknown callback `early`", "did you mean `EarlyStopping`"),
        ("callbacks.0.monitor=val_f1", "unknown metric `val_f1`", "val_loss, val_accuracy"),
        ("callbacks.2.factor=2", "factor is 2", "the usual one is 0.1"),
        ("callbacks.1.file=x", "unknown key `file`", "did you mean `filename`"),
        ("callbacks=[{patience=2}]", "the callback table has no key `type`", "available: EarlyStopping"),
        ("callbacks.1.filename=logs/", "`logs/` is not a file name", "inside the run directory"),
        ("callbacks.1.filename=glyphs.safetensors", "a file of the run itself", "another file"),
    ] {
        let told = f.run(&["train", "c.toml", "--out", "x", "--set", set]);
        assert!(told.err.contains(what) && told.err.contains(hint), "{set}: {}", told.err);
        assert!(!f.path("x").exists(), "{set}");
    }
}

#[test]
fn values_of_lightnings_arguments_are_checked_with_the_configuration() {
    let two = "[{ type = \"CSVLogger\", filename = \"a\" }, { type = \"SpikeDetection\", exclude_batches_path = \"a\" }]";
    for (key, value, what) in [
        ("callbacks.0.stopping_threshold", "low", "expected a number"),
        ("callbacks.3.filepath", "../x.safetensors", "is outside the run directory"),
        ("callbacks.3.filepath", "/tmp/x.safetensors", "is outside the run directory"),
        ("callbacks.3.save_top_k", "2", "save_best_only cannot be combined with save_top_k"),
        ("callbacks.3.save_freq", "often", "\"epoch\" or a number of steps"),
        ("callbacks.1.filename", "run.json", "is reserved for the run itself"),
        ("callbacks", two, "two callbacks write to `a`"),
        ("callbacks", "[{ type = \"Timer\", duration = \"soon\" }]", "expected a time, got `soon`"),
        ("callbacks", "[{ type = \"SpikeDetection\", window = 0 }]", "window is 0"),
        ("callbacks", "[{ type = \"LambdaCallback\" }]", "cannot be set in a configuration"),
        ("callbacks.3.save_last", "lnk", "true, false or \"link\""),
        ("callbacks.0.check_on_train_epoch_end", "never", "true or false"),
        ("compile.loss", "{ type = \"mse\", axis = 1 }", "unknown key `axis`"),
        ("compile.loss", "{ type = \"mse\", reduction = \"none\" }", "unknown value `none`"),
        ("fit.val_check_interval", "1.5", "expected a validation interval"),
        ("fit.val_check_interval", "soon", "expected a validation interval"),
        ("fit.check_val_every_n_epoch", "0", "validation_freq is 0"),
    ] {
        let mut draft = ConfigDraft::parse(CONFIG, "c.toml").unwrap();
        draft.set("--set", key, value);
        let told = draft.finish().map(drop).map_err(|refused| refused.error.to_string()).unwrap_err();
        assert!(told.contains(what), "{key}: {told}");
    }
}

/// Lightning's names through the configuration, and validation in the middle of epochs.
#[test]
fn lightnings_callbacks_and_intervals_work_from_a_file() {
    let f = Folder::new("callbacks-lightning");
    std::fs::write(f.path("c.toml"), CONFIG).unwrap();
    let callbacks = "callbacks=[{type=\"ModelCheckpoint\",filename=\"{epoch:02d}-{val_loss:.3f}\",monitor=\"val_loss\",save_top_k=2,save_last=true},\
                     {type=\"CSVLogger\",filename=\"log.csv\"},{type=\"LearningRateMonitor\",log_momentum=true},{type=\"ThroughputMonitor\"},{type=\"GradientAccumulationScheduler\",scheduling={0=2,1=1}},\
                     {type=\"EarlyStopping\",monitor=\"loss\",patience=1,min_delta=1e9}]";
    let args = ["train", "c.toml", "--out", "run", "--json", "--set", callbacks];
    let more = ["--val-check-interval=0.5", "--check-val-every-n-epoch=4", "--set=fit.epochs=6"];
    let done = f.run(&[&args[..], &more].concat()).ok();
    let told = done.json();
    // Ended after the second epoch, which is validated though it is none of the fourth ones.
    let first = told["history"][0]["loss"].as_f64().unwrap();
    assert_eq!(told["stopped_because"], format!("loss has not improved on {first:.4} for 1 epoch"));
    assert_eq!((&told["total_epochs"], told["history"][1]["momentum"].as_f64()), (&2.into(), Some(0.9)));
    let pace = |key: &str| told["history"][1][key].as_f64().unwrap();
    assert!(
        pace("mfu") > 0.0 && pace("mfu") < 1.0 && pace("samples_per_sec") > pace("batches_per_sec"),
        "{told}"
    );
    let log = std::fs::read_to_string(f.path("run/log.csv")).unwrap();
    let last: Vec<&str> = log.lines().last().unwrap().split(',').collect();
    let at = log.lines().next().unwrap().split(',').position(|name| name == "val_loss").unwrap();
    assert_eq!(last[at].parse::<f64>().unwrap(), told["val_loss"].as_f64().unwrap(), "{log}");
    let mut saved = f.files("run/checkpoints");
    saved.sort();
    assert!(saved.len() == 2 && saved[0].starts_with("epoch=02-val_loss="), "{saved:?}");
    assert_eq!(saved.last().unwrap(), "last.safetensors");

    // Within an epoch: 200 samples are four batches.
    let more = ["--val-check-interval=0.5", "--set=fit.check_val_every_n_epoch=1", "--set=fit.epochs=2"];
    let args = ["train", "c.toml", "--out", "half", "--json", "--set=callbacks=[]"];
    let done = f.run(&[&args[..], &more].concat()).ok();
    let told = done.json();
    let steps: Vec<u64> =
        told["validations"].as_array().unwrap().iter().map(|v| v["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [2, 6]);
    assert!(told["validations"][0]["val_loss"].is_f64() && told["history"][1]["val_loss"].is_f64());
    assert!(done.err.contains("Epoch 1/2, after 2 steps of it: val_loss:"), "{}", done.err);
    // The flag alone does so in each epoch, though the file tests after every fourth one.
    let args = [
        "train",
        "c.toml",
        "--out=flag",
        "--json",
        "--set=callbacks=[]",
        "--val-check-interval=2",
        "--epochs=1",
    ];
    let told = f.run(&args).ok().json();
    assert_eq!(
        (&told["validations"][0]["step"], told["validations"].as_array().unwrap().len()),
        (&2.into(), 1)
    );
}
