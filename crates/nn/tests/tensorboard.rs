//! TensorBoard event files: read back by our parser and by Python's `tensorboard` (with SYSTOLE_PYTHON).

mod events;

use events::{field, fields, read, scalars, steps_of, tags};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use systole_data::Dataset;
use systole_data::file_system::{FaultInjectingFileSystem, FileSystem, InjectedFault};
use systole_data::format::tensorboard_events::files_of;
use systole_data::format::tfrecord::{OnCorrupt, TfRecordCompression, TfRecordReader};
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::callback::{Callback, EarlyStopping, FitCx, HParamValue, TensorBoard, UpdateFreq};
use systole_nn::layers::*;
use systole_nn::metric::Metric;
use systole_nn::optimizer::adam;
use systole_nn::{BackupAndRestore, Batch, Compile, Fit, History, Model};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("systole-tensorboard-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }

    fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that starts another one lends it its locks for a moment: no run is to be started again meanwhile.
static ALONE: Mutex<()> = Mutex::new(());

/// Dies after a step.
struct Killer(Option<u64>);

impl Callback for Killer {
    fn wants_batch(&self, _: u64) -> bool {
        self.0.is_some()
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match self.0 == Some(cx.model.steps()) {
            true => Err(Error::new(ErrorKind::Data, "killed")),
            false => Ok(()),
        }
    }
}

fn data() -> Dataset {
    let x: Vec<f32> = (0..60).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = x.chunks(3).map(|c| i32::from(c[0] > c[1])).collect();
    let x = Literal::from_slice([20, 3], &x).unwrap();
    let y = Literal::from_slice([20], &y).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap().batch(6)
}

/// Three epochs of four steps.
fn train(callbacks: Vec<Box<dyn Callback>>, backups: Option<&Path>) -> Result<(Model, History)> {
    let mut model = Model::sequential([dense(4).activation("relu"), dense(2).activation("softmax")]);
    let metrics = vec![Metric::SparseCategoricalAccuracy];
    model.compile(Compile { optimizer: adam(0.01), metrics, seed: 3, ..Compile::default() })?;
    let fit = Fit {
        epochs: 3,
        validation: Some(data()),
        callbacks,
        backup: backups.map(|dir| BackupAndRestore::new(dir).every_steps(3).every(None)),
        verbose: 0,
        ..Fit::default()
    };
    let history = model.fit(&data(), fit)?;
    Ok((model, history))
}

fn board<F: FileSystem>(log: TensorBoard<F>) -> TensorBoard<F> {
    log.update_freq(UpdateFreq::Batch).call("sparse_categorical_accuracy", "accuracy")
}

#[test]
fn tags_steps_and_values_are_keras_s() {
    let dir = Folder::new("tags");
    let log = board(TensorBoard::new(dir.logs())).histogram_freq(2).write_steps_per_second(true);
    let log = log.text("configuration", "*small*").hparam("lr", HParamValue::Number(0.01));
    let (_, history) = train(vec![Box::new(log)], None).unwrap();
    let (run, validation) = (read(&dir.logs().join("train")), read(&dir.logs().join("validation")));
    let weights =
        ["dense/bias", "dense/kernel", "dense_1/bias", "dense_1/kernel"].map(|w| format!("{w}/histogram"));
    let mut expected = vec![
        "batch_accuracy",
        "batch_loss",
        "batch_steps_per_second",
        "epoch_accuracy",
        "epoch_learning_rate",
        "epoch_loss",
        "epoch_steps_per_second",
        "graph",
    ];
    expected.extend(weights.iter().map(String::as_str));
    expected.sort_unstable();
    assert_eq!(tags(&run), expected);
    let expected = [
        "epoch_accuracy",
        "epoch_loss",
        "evaluation_accuracy_vs_iterations",
        "evaluation_loss_vs_iterations",
    ];
    assert_eq!(tags(&validation), expected);
    assert_eq!(
        tags(&read(&dir.logs())),
        ["_hparams_/session_end_info", "_hparams_/session_start_info", "configuration"]
    );

    assert_eq!(steps_of(&run, "batch_loss"), (1..=12).collect::<Vec<_>>());
    assert_eq!(steps_of(&run, "epoch_loss"), [0, 1, 2]);
    assert_eq!(steps_of(&run, "dense/kernel/histogram"), [0, 2]);
    assert_eq!(steps_of(&validation, "evaluation_loss_vs_iterations"), [4, 8, 12]);
    let single = |name: &str| history.get(name).iter().map(|&v| v as f32).collect::<Vec<_>>();
    assert_eq!(scalars(&run, "epoch_loss"), single("loss"));
    assert_eq!(scalars(&run, "epoch_accuracy"), single("sparse_categorical_accuracy"));
    assert_eq!(scalars(&validation, "epoch_loss"), single("val_loss"));
    assert_eq!(scalars(&run, "epoch_learning_rate"), [0.01; 3]);
    assert!(scalars(&run, "epoch_steps_per_second").iter().all(|&v| v > 0.0 && v.is_finite()));
    // 30 buckets of three doubles.
    assert!(
        run.iter()
            .filter(|e| e.0.ends_with("/histogram"))
            .all(|e| field(&e.2, 4).unwrap().len() == 30 * 3 * 8)
    );
}

#[test]
fn gradients_have_histograms_where_that_is_asked_for() {
    let dir = Folder::new("gradients");
    let log = TensorBoard::new(dir.logs()).histogram_freq(2).write_grads(true);
    let (with, _) = train(vec![Box::new(log)], None).unwrap();
    let run = read(&dir.logs().join("train"));
    assert_eq!(steps_of(&run, "dense/kernel_grad/histogram"), [0, 2]);
    assert_eq!(tags(&run).iter().filter(|tag| tag.ends_with("_grad/histogram")).count(), 4);
    assert_eq!(with.to_file().unwrap(), train(Vec::new(), None).unwrap().0.to_file().unwrap());
    // Each number is the slope of the loss: of the mean cross-entropy of six samples here.
    let batch = data().iter().next().unwrap().unwrap();
    let batch = Batch::from_sample(&batch, &["x".to_string()]).unwrap();
    let (mut model, at) = (with, |x: &Literal, by: f32| {
        let mut values = x.to_f32s();
        values[1] += by;
        Literal::from_slice(x.shape().dims().to_vec(), &values).unwrap()
    });
    let kernel = model.weight("dense_1/kernel").unwrap();
    let gradients = model.gradients(&batch).unwrap();
    let (_, told) = gradients.iter().find(|(name, _)| name == "dense_1/kernel").unwrap();
    let mut loss = |by: f32| {
        model.set_weight("dense_1/kernel", at(&kernel, by)).unwrap();
        model.evaluate_steps(&data(), Some(1)).unwrap()["loss"]
    };
    let slope = (loss(1e-2) - loss(-1e-2)) / 2e-2;
    assert!((told.to_f64s()[1] - slope).abs() < 1e-3, "{} {slope}", told.to_f64s()[1]);
    let e =
        train(vec![Box::new(TensorBoard::new(dir.logs()).write_grads(true))], None).map(drop).unwrap_err();
    assert!(e.to_string().contains("histogram_freq"), "{e}");
}

#[test]
fn by_epochs_nothing_is_asked_of_a_step() {
    let dir = Folder::new("epochs");
    let log = TensorBoard::new(dir.logs()).write_graph(false);
    assert!(!log.wants_batch(1));
    let every = TensorBoard::new(dir.logs()).update_freq(UpdateFreq::Steps(5));
    assert_eq!((1..=12).filter(|&s| every.wants_batch(s)).collect::<Vec<_>>(), [5, 10]);
    train(vec![Box::new(log)], None).unwrap();
    let run = read(&dir.logs().join("train"));
    assert_eq!(tags(&run), ["epoch_learning_rate", "epoch_loss", "epoch_sparse_categorical_accuracy"]);
    let none = TensorBoard::new(dir.logs()).update_freq(UpdateFreq::Steps(0));
    assert!(train(vec![Box::new(none)], None).unwrap_err().to_string().contains("update_freq is 0"));
    // As Keras, a second run adds; unless it is asked to take the place of the first.
    train(vec![Box::new(every)], None).unwrap();
    assert_eq!(steps_of(&read(&dir.logs().join("train")), "epoch_loss"), [0, 1, 2, 0, 1, 2]);
    train(vec![Box::new(TensorBoard::new(dir.logs()).overwrite(true))], None).unwrap();
    for run in ["train", "validation"] {
        assert_eq!(steps_of(&read(&dir.logs().join(run)), "epoch_loss"), [0, 1, 2], "{run}");
    }
}

#[test]
fn a_run_killed_at_any_step_has_every_step_once() {
    let _alone = ALONE.lock();
    let run = |dir: &Folder, kill| {
        let log =
            board(TensorBoard::new(dir.logs())).histogram_freq(1).hparam("lr", HParamValue::Number(0.01));
        train(vec![Box::new(log), Box::new(Killer(kill))], Some(&dir.0.join("backups")))
    };
    let whole = Folder::new("whole");
    run(&whole, None).unwrap();
    // What begins and ends a run has its time.
    let all = |dir: &Folder| {
        ["train", "validation"].map(|run| {
            let mut events = read(&dir.logs().join(run));
            events.sort();
            events
        })
    };
    let expected = all(&whole);
    for kill in 1..12 {
        let dir = Folder::new("killed");
        assert!(run(&dir, Some(kill)).is_err());
        // A second time, a step later.
        assert!(run(&dir, Some(kill + 1)).is_err(), "{kill}");
        run(&dir, None).unwrap();
        let found = all(&dir);
        // Killed before its first backup it begins anew, and adds to what is there.
        if kill > 3 {
            assert_eq!(found, expected, "killed after {kill}");
            assert_eq!(
                tags(&read(&dir.logs())),
                ["_hparams_/session_end_info", "_hparams_/session_start_info"]
            );
        }
        assert_eq!(tags(&found[0]), tags(&expected[0]), "killed after {kill}");
    }
}

/// The step of the newest backup in a directory.
fn latest_backup(dir: &Path) -> u64 {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let step = |name: String| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
    names.filter_map(step).max().expect("a backup")
}

/// A logger changes nothing of a run: it may join one that goes on, and leave it, and the others keep their states.
#[test]
fn a_run_goes_on_with_and_without_a_logger() {
    let _alone = ALONE.lock();
    let run = |dir: &Folder, logs: bool, kill| {
        let mut callbacks: Vec<Box<dyn Callback>> = vec![Box::new(EarlyStopping::new("loss", 2))];
        if logs {
            callbacks.push(Box::new(board(TensorBoard::new(dir.logs()))));
        }
        callbacks.push(Box::new(Killer(kill)));
        train(callbacks, Some(&dir.0.join("backups")))
    };
    let weights = |model: &Model| -> Vec<Vec<u8>> {
        model.weights().iter().map(|(_, w)| w.to_literal().unwrap().bytes().to_vec()).collect()
    };
    let whole = Folder::new("alone");
    let expected = weights(&run(&whole, false, None).unwrap().0);
    for logs_first in [false, true] {
        let dir = Folder::new("joins");
        assert!(run(&dir, logs_first, Some(7)).is_err());
        let resumed_from = latest_backup(&dir.0.join("backups"));
        let (model, history) = run(&dir, !logs_first, None).unwrap();
        assert_eq!((weights(&model), history.epochs.len()), (expected.clone(), 3), "{logs_first}");
        let steps = steps_of(&read(&dir.logs().join("train")), "batch_loss");
        // A logger that joins a run logs from the step after the backup on. Which steps have a backup depends on the
        // speed of the disk: a backup is skipped while the one before it is being written.
        let expected: Vec<_> = if logs_first { (1..=7).collect() } else { (resumed_from + 1..=12).collect() };
        assert_eq!(steps, expected, "{logs_first}");
    }
    // Others may not.
    let dir = Folder::new("others");
    assert!(run(&dir, true, Some(7)).is_err());
    let e = train(vec![Box::new(Killer(None))], Some(&dir.0.join("backups"))).unwrap_err().to_string();
    assert!(e.contains("3 callbacks"), "{e}");
}

#[test]
fn a_full_disk_ends_no_training_and_loses_no_event() {
    let full = InjectedFault::Error(std::io::ErrorKind::StorageFull);
    let run = |dir: &Folder, files: FaultInjectingFileSystem| {
        train(vec![Box::new(board(TensorBoard::with_files(files, dir.logs())))], None)
    };
    let whole = Folder::new("room");
    let (model, history) = run(&whole, FaultInjectingFileSystem::never()).unwrap();
    assert!(history.notes.is_empty());
    let expected = ["train", "validation"].map(|run| read(&whole.logs().join(run)));
    // Three calls begin a file, and a new run.
    for call in 0..3 {
        let e = run(&Folder::new("begin"), FaultInjectingFileSystem::at(call, full)).unwrap_err().to_string();
        assert!(e.contains("events.out.tfevents") && e.contains("log_dir"), "{e}");
    }
    for call in [3, 5, 8, 14, 17, 20] {
        let dir = Folder::new("full");
        let (same, history) = run(&dir, FaultInjectingFileSystem::at(call, full)).unwrap();
        assert_eq!(same.to_file().unwrap(), model.to_file().unwrap());
        assert!(
            matches!(&history.notes[..], [n] if n.starts_with("TensorBoard's events are not written yet")),
            "{:?}",
            history.notes
        );
        assert_eq!(["train", "validation"].map(|run| read(&dir.logs().join(run))), expected, "call {call}");
    }
    let dir = Folder::new("full");
    let (same, history) = run(&dir, FaultInjectingFileSystem::from(8, full)).unwrap();
    assert_eq!(same.to_file().unwrap(), model.to_file().unwrap());
    assert!(history.notes.last().unwrap().contains("last events are not written"), "{:?}", history.notes);
    // The begin, two values of step 1, one of step 2, and a part of the other, which TensorBoard would wait for the rest of.
    let file = files_of(&dir.logs().join("train")).remove(0);
    let mut reader = TfRecordReader::open(&file, TfRecordCompression::None, OnCorrupt::Fail).unwrap();
    assert_eq!(std::iter::from_fn(|| reader.next()?.ok().map(<[u8]>::len)).count(), 5);
}

#[test]
fn weights_are_pictures_of_their_shape() {
    let dir = Folder::new("pictures");
    let log = TensorBoard::new(dir.logs()).histogram_freq(1).write_images(true);
    train(vec![Box::new(log)], None).unwrap();
    let run = read(&dir.logs().join("train"));
    // Width and height, then the picture: a kernel of 4 by 2 lies.
    let sizes: BTreeMap<&str, String> = run
        .iter()
        .filter(|e| e.0.ends_with("/image"))
        .map(|(tag, _, tensor)| {
            let texts: Vec<Vec<u8>> = fields(tensor).into_iter().filter(|f| f.0 == 8).map(|f| f.1).collect();
            assert!(texts.len() == 3 && texts[2].starts_with(b"\x89PNG"), "{tag}");
            (
                tag.as_str(),
                format!("{}x{}", String::from_utf8_lossy(&texts[0]), String::from_utf8_lossy(&texts[1])),
            )
        })
        .collect();
    let sizes: Vec<(&str, &str)> = sizes.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let expected = [
        ("dense/bias/image", "1x4"),
        ("dense/kernel/image", "4x3"),
        ("dense_1/bias/image", "1x2"),
        ("dense_1/kernel/image", "4x2"),
    ];
    assert_eq!(sizes, expected);
}

/// Prints as JSON what TensorBoard's own reader finds in a folder.
const READ: &str = r#"
import json, sys
from tensorboard.backend.event_processing import plugin_event_accumulator as accumulator
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util import tensor_util
told = {}
for run in sys.argv[2:]:
    events = accumulator.EventAccumulator(sys.argv[1] + "/" + run, tensor_size_guidance={p: 0 for p in ["scalars", "histograms", "images", "text", "hparams"]})
    events.Reload()
    tags = {tag: [(e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
    of = lambda plugin: events.PluginTagToContent(plugin) if plugin in events._plugin_to_tag_to_content else {}
    found = {"scalars": {tag: [(s, float(v)) for s, v in tags[tag]] for tag in of("scalars")}}
    found["histograms"] = {tag: [(s, v.shape, float(v[:, 2].sum())) for s, v in tags[tag]] for tag in of("histograms")}
    found["images"] = {tag: [(s, [x.decode() for x in v[:2]], len(v)) for s, v in tags[tag]] for tag in of("images")}
    found["text"] = {tag: [(s, v.item().decode()) for s, v in tags[tag]] for tag in of("text")}
    start = of("hparams").get("_hparams_/session_start_info")
    if start is not None:
        info = hparams.parse_session_start_info_plugin_data(start)
        found["hparams"] = {name: getattr(v, v.WhichOneof("kind")) for name, v in info.hparams.items()}
        end = hparams.parse_session_end_info_plugin_data(of("hparams")["_hparams_/session_end_info"])
        found["status"] = end.status
    if events.Tags()["graph"]:
        found["graph"] = [[n.name, n.op, list(n.input)] for n in events.Graph().node]
    told[run] = found
print(json.dumps(told))
"#;

#[test]
#[allow(clippy::print_stdout, reason = "says what was skipped")]
fn tensorboard_reads_what_is_written() {
    const NAME: &str = "tensorboard_reads_what_is_written";
    let Ok(python) = std::env::var("SYSTOLE_PYTHON") else {
        println!("SKIPPED {NAME}: SYSTOLE_PYTHON names no Python with tensorboard");
        return;
    };
    let _alone = ALONE.lock();
    let has = std::process::Command::new(&python).args(["-c", "import tensorboard"]).output();
    if !has.is_ok_and(|o| o.status.success()) {
        println!("SKIPPED {NAME}: {python} has no tensorboard");
        return;
    }
    let dir = Folder::new("peer");
    let log = board(TensorBoard::new(dir.logs()))
        .histogram_freq(1)
        .write_images(true)
        .text("configuration", "*small*");
    let log = log
        .hparam("lr", HParamValue::Number(0.01))
        .hparam("name", HParamValue::Text("small".into()))
        .hparam("yes", HParamValue::Bool(true));
    let (_, history) = train(vec![Box::new(log), Box::new(Killer(None))], None).unwrap();
    let logs = dir.logs().display().to_string();
    let out = std::process::Command::new(&python)
        .args(["-c", READ, &logs, "train", "validation", "."])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();

    let series = |run: &str, tag: &str| -> Vec<(u64, f32)> {
        let values = told[run]["scalars"][tag].as_array().unwrap_or_else(|| panic!("{run} {tag}: {told}"));
        values.iter().map(|v| (v[0].as_u64().unwrap(), v[1].as_f64().unwrap() as f32)).collect()
    };
    let expected =
        |name: &str| (0..).zip(history.get(name)).map(|(i, v)| (i, v as f32)).collect::<Vec<(u64, f32)>>();
    assert_eq!(series("train", "epoch_loss"), expected("loss"));
    assert_eq!(series("train", "epoch_accuracy"), expected("sparse_categorical_accuracy"));
    assert_eq!(series("validation", "epoch_loss"), expected("val_loss"));
    assert_eq!(
        series("train", "batch_loss").iter().map(|v| v.0).collect::<Vec<_>>(),
        (1..=12).collect::<Vec<_>>()
    );
    assert_eq!(series("validation", "evaluation_loss_vs_iterations").len(), 3);
    let kernel = &told["train"]["histograms"]["dense/kernel/histogram"];
    assert_eq!(kernel[2], serde_json::json!([2, [30, 3], 12.0]));
    assert_eq!(told["train"]["images"]["dense/kernel/image"][0], serde_json::json!([0, ["4", "3"], 3]));
    let root = &told["."];
    assert_eq!(root["text"]["configuration"], serde_json::json!([[0, "*small*"]]));
    assert_eq!(root["hparams"], serde_json::json!({"lr": 0.01, "name": "small", "yes": true}));
    assert_eq!(root["status"], 1);
    let graph = serde_json::json!([
        ["image", "Placeholder", []],
        ["dense", "Dense", ["image"]],
        ["dense_1", "Dense", ["dense"]]
    ]);
    assert_eq!(told["train"]["graph"], graph);
}
