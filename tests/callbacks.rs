//! `[[callbacks]]` of a configuration as a user meets them.

mod program;

use program::Folder;

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
    assert!(done.err.contains("The weights of the best epoch are back"), "{}", done.err);

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
        ("callbacks.0.patience=-1", "expected a whole number", ""),
        ("callbacks.0.type=early", "there is no callback `early`", "did you mean `EarlyStopping`"),
        ("callbacks.0.monitor=val_f1", "nothing is measured by the name `val_f1`", "loss, accuracy"),
        ("callbacks.2.factor=2", "factor is 2", "0.1 is usual"),
        ("callbacks.1.file=x", "there is no key `file`", "did you mean `filename`"),
        ("callbacks=[{patience=2}]", "a callback has no `type`", "one of: EarlyStopping"),
        ("callbacks.1.filename=logs/", "`logs/` is no file's name", "within the run's folder"),
    ] {
        let told = f.run(&["train", "c.toml", "--out", "x", "--set", set]);
        assert!(told.err.contains(what) && told.err.contains(hint), "{set}: {}", told.err);
        assert!(!f.path("x").exists(), "{set}");
    }
}
