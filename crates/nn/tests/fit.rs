//! `fit`: steps and epochs, compilations, class and sample weights, callbacks, stopping, files, custom layers.
//!
//! On the reference backend with tiny data.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use systole_data::file_system::{FaultInjectingFileSystem, InjectedFault};
use systole_data::{Dataset, HostArray};
use systole_ir::{DType, ErrorKind, Literal, Result, Tensor, TensorType};
use systole_nn::callback::*;
use systole_nn::layers::*;
use systole_nn::loss::sparse_categorical_crossentropy;
use systole_nn::metric::sparse_categorical_accuracy;
use systole_nn::optimizer::{Swa, adam, sgd};
use systole_nn::schedule::Schedule;
use systole_nn::{
    BackupAndRestore, Compile, Cx, Fit, Initializer, Layer, Limit, Logs, Model, Precision, input,
};
use systole_runtime::backend;
use systole_testing::assert_error;

/// 20 points of two classes, one on each side of a line; `sample_weight` where given.
fn points(weights: Option<&[f32]>) -> Dataset {
    let mut s = systole_ir::rng::RandomStream::new(3, 1, 4);
    let labels: Vec<i32> = (0..20).map(|i| i % 2).collect();
    let x: Vec<f32> = labels
        .iter()
        .flat_map(|&l| [l as f32 * 2.0 - 1.0 + s.range(-0.5, 0.5), s.range(-1.0, 1.0)])
        .collect();
    let mut fields = vec![
        ("x", Literal::from_slice([20, 2], &x).unwrap()),
        ("label", Literal::from_slice([20], &labels).unwrap()),
    ];
    if let Some(w) = weights {
        fields.push(("sample_weight", Literal::from_slice([20], w).unwrap()));
    }
    Dataset::from_tensor_slices(fields).unwrap()
}

fn model(layers: Vec<LayerSpec>) -> Model {
    let mut model = Model::sequential(layers);
    model
        .compile(Compile {
            optimizer: adam(0.05),
            loss: sparse_categorical_crossentropy(),
            metrics: vec![sparse_categorical_accuracy()],
            backend: Some(backend("ref").unwrap()),
            seed: 5,
            ..Default::default()
        })
        .unwrap();
    model
}

fn classifier() -> Model {
    model(vec![dense(4).activation("tanh"), dense(2).activation("softmax")])
}

fn quiet() -> Fit {
    Fit { verbose: 0, ..Default::default() }
}

#[test]
fn learns_and_reports_each_epoch() {
    let mut m = classifier();
    let options = Fit { epochs: 15, validation: Some(points(None).batch(20)), validation_freq: 5, ..quiet() };
    let history = m.fit(&points(None).shuffle(20, 1).batch(5), options).unwrap();
    assert_eq!(history.epochs.len(), 15);
    assert_eq!(history.step_ms.len(), 60);
    assert_eq!((history.samples, m.steps(), m.epochs()), (300, 60, 15));
    assert_eq!(history.get("val_loss").len(), 3, "validated in epochs 5, 10 and 15");
    assert!(history.last()["loss"] < 0.5 * history.epochs[0]["loss"]);
    assert_eq!(history.last()["val_sparse_categorical_accuracy"], 1.0);
    let logs = m.evaluate(&points(None).batch(7)).unwrap();
    assert!(
        (logs["loss"] - history.last()["val_loss"]).abs() < 1e-6,
        "batches of any size give the same mean"
    );
}

#[test]
fn a_smaller_last_batch_compiles_once_more_and_changed_inputs_never() {
    let mut m = classifier();
    let decay = LearningRateScheduler(|epoch, _| 0.1 / (epoch + 1) as f64);
    m.fit(&points(None).batch(8), Fit { epochs: 3, callbacks: vec![Box::new(decay)], ..quiet() }).unwrap();
    assert_eq!(m.compiled_programs(), 2, "batches of 8 and of 4");
    assert!((m.learning_rate() - 0.1 / 3.0).abs() < 1e-12);
    m.set_learning_rate(0.5);
    m.fit(&points(None).batch(8), Fit { epochs: 1, ..quiet() }).unwrap();
    assert_eq!(m.compiled_programs(), 2);
}

/// Batches of eight samples of two bytes, converted by `f`.
fn pixels(f: impl Fn(HostArray) -> HostArray + Send + Sync + Copy + 'static) -> Dataset {
    let bytes: Vec<u8> = (0..40).map(|i| (i * 37 % 256) as u8).collect();
    let labels: Vec<i32> = (0..20).map(|i| i % 2).collect();
    let fields = [
        ("x", Literal::from_slice([20, 2], &bytes).unwrap()),
        ("label", Literal::from_slice([20], &labels).unwrap()),
    ];
    Dataset::from_tensor_slices(fields).unwrap().batch(8).map(move |s| s.map("x", f))
}

#[test]
fn steps_convert_pixels_as_the_pipeline_does() {
    let trained = |data: &Dataset| {
        let mut m = classifier();
        let validation = Some(data.clone());
        let history = m.fit(data, Fit { epochs: 2, validation, class_weight: [(0, 2.0)].into(), ..quiet() });
        let kernel = m.weight("dense/kernel").unwrap();
        assert_eq!(m.architecture().inputs[0].ty.as_ref().unwrap().to_string(), "f32[2]");
        (history.unwrap().last(), kernel, m.predict(data).unwrap())
    };
    let by_255 = trained(&pixels(|x| x.rescale(1.0 / 255.0)));
    assert_eq!(by_255, trained(&pixels(|x| x.cast(DType::F32) / 255.0)));
    assert_eq!(trained(&pixels(|x| x.rescale(0.3))), trained(&pixels(|x| x.cast(DType::F32) * 0.3)));
    assert_eq!(trained(&pixels(|x| x.rescale(1.0))), trained(&pixels(|x| x.cast(DType::F32))));
    assert_ne!(by_255, trained(&pixels(|x| x.rescale(1.0))));
}

#[test]
fn another_scale_is_another_program() {
    let mut m = classifier();
    m.fit(&pixels(|x| x.rescale(1.0 / 255.0)), quiet()).unwrap();
    assert_eq!(m.compiled_programs(), 2, "batches of 8 and of 4");
    m.fit(&pixels(|x| x.rescale(1.0 / 255.0)), quiet()).unwrap();
    assert_eq!(m.compiled_programs(), 2);
    m.fit(&pixels(|x| x.rescale(0.5)), quiet()).unwrap();
    assert_eq!(m.compiled_programs(), 4);
    m.fit(&pixels(|x| x.cast(DType::F32)), quiet()).unwrap();
    assert_eq!(m.compiled_programs(), 6);
}

#[test]
fn steps_per_epoch_goes_on_through_the_data_and_says_when_they_end() {
    let mut m = classifier();
    let endless = points(None).repeat().batch(8);
    let history = m.fit(&endless, Fit { epochs: 2, steps_per_epoch: Some(4), ..quiet() }).unwrap();
    assert_eq!(history.step_ms.len(), 8);
    let e =
        m.fit(&points(None).batch(8), Fit { epochs: 2, steps_per_epoch: Some(2), ..quiet() }).unwrap_err();
    assert!(e.to_string().contains("2 steps") && e.to_string().contains(".repeat()"), "{e}");
    assert_eq!(m.steps(), 11, "weights of the last finished step stay");
}

#[test]
fn class_weights_are_sample_weights_by_label() {
    let class = [(0, 0.25), (1, 3.0)].into();
    let by_label: Vec<f32> = (0..20).map(|i| if i % 2 == 0 { 0.25 } else { 3.0 }).collect();
    let (mut a, mut b, mut plain) = (classifier(), classifier(), classifier());
    let run =
        |m: &mut Model, data: Dataset, options: Fit| m.fit(&data.batch(10), options).unwrap().last()["loss"];
    let with_class = run(&mut a, points(None), Fit { epochs: 2, class_weight: class, ..quiet() });
    let with_sample = run(&mut b, points(Some(&by_label)), Fit { epochs: 2, ..quiet() });
    let without = run(&mut plain, points(None), Fit { epochs: 2, ..quiet() });
    assert_eq!(with_class, with_sample);
    assert_ne!(with_class, without);
    assert_eq!(a.weight("dense/kernel").unwrap(), b.weight("dense/kernel").unwrap());
}

#[test]
fn a_saved_model_goes_on_exactly_where_it_was() {
    let dir = tempdir("resume");
    let path = dir.join("m.safetensors");
    let data = points(None).batch(5);
    let mut straight = classifier();
    straight.fit(&data, Fit { epochs: 4, ..quiet() }).unwrap();

    let mut first = classifier();
    first.fit(&data, Fit { epochs: 2, ..quiet() }).unwrap();
    first.class_names = vec!["left".into(), "right".into()];
    first.save(&path).unwrap();
    let mut second = Model::load(&path).unwrap();
    assert_eq!((second.steps(), second.epochs()), (8, 2));
    assert_eq!(second.class_names, first.class_names);
    assert_eq!(second.summary(), first.summary());
    second.fit(&data, Fit { epochs: 4, initial_epoch: 2, ..quiet() }).unwrap();
    for (path, value) in straight.weights() {
        assert_eq!(value.to_literal().unwrap(), second.weight(path).unwrap(), "{path}");
    }
}

/// Notes the rate of the step after each.
struct Rates(Arc<Mutex<Vec<f64>>>);
impl Callback for Rates {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.0.lock().unwrap().push(cx.model.learning_rate());
        Ok(())
    }
}

#[test]
fn a_schedule_over_the_whole_run_takes_its_steps_from_it() {
    let data = points(None).batch(5);
    let mut m = classifier();
    m.set_learning_rate(Schedule::one_cycle(0.05));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let look = Rates(seen.clone());
    m.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(look)], ..quiet() }).unwrap();
    let cycle = Schedule::one_cycle(0.05).over(8);
    assert_eq!(*seen.lock().unwrap(), (1..=8).map(|step| cycle.at(step)).collect::<Vec<_>>());
    assert!((m.learning_rate() / (0.05 / 1e5) - 1.0).abs() < 1e-9);

    // A second run has a cycle of its own, from where the first ended; saved models keep it.
    m.set_learning_rate(Schedule::flat_cosine(0.02));
    m.fit(&data, Fit { epochs: 3, initial_epoch: 2, ..quiet() }).unwrap();
    assert_eq!((m.steps(), m.learning_rate()), (12, 0.0));
    let path = tempdir("one-cycle").join("m.safetensors");
    m.save(&path).unwrap();
    assert_eq!(Model::load(&path).unwrap().learning_rate(), 0.0);

    // After a warm-up of 2 of the 8 steps; where that is over before the run, the cycle has all of them.
    for warmup in [2, 14] {
        let mut m = classifier();
        m.fit(&data, Fit { epochs: 3, ..quiet() }).unwrap();
        m.set_learning_rate(Schedule::flat_cosine(0.02).after_warmup(warmup));
        m.fit(&data, Fit { epochs: 5, initial_epoch: 3, ..quiet() }).unwrap();
        assert_eq!((m.steps(), m.learning_rate()), (20, 0.0), "{warmup}");
    }

    // A filtered stream does not report its length, but its owner may know it. It does not bound the data.
    let stream = || points(None).filter(|_| true).batch(5);
    for (known, taken) in [(Some(4), 12), (Some(2), 12)] {
        let mut m = classifier();
        m.set_learning_rate(Schedule::flat_cosine(0.02));
        m.fit(&stream(), Fit { epochs: 3, num_training_batches: known, ..quiet() }).unwrap();
        let cosine = Schedule::flat_cosine(0.02).over(3 * known.unwrap() as u64);
        assert_eq!((m.steps(), m.learning_rate()), (taken, cosine.at(taken)), "{known:?}");
    }
    let half = Some(Limit::Share(0.5));
    let mut m = classifier();
    let options = Fit { epochs: 3, num_training_batches: Some(4), limit_train_batches: half, ..quiet() };
    m.fit(&stream(), options).unwrap();
    assert_eq!(m.steps(), 6);
    let e = m.fit(&stream(), Fit { limit_train_batches: half, ..quiet() }).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["limit_train_batches"]);

    m.set_learning_rate(Schedule::one_cycle(0.05));
    let endless = points(None).repeat().batch(5);
    let e = m.fit(&endless, Fit { epochs: 3, ..quiet() }).unwrap_err().to_string();
    assert!(e.contains("steps_per_epoch"), "{e}");
}

#[test]
fn early_stopping_waits_and_restores() {
    let mut m = classifier();
    m.set_learning_rate(0.0);
    let stop = EarlyStopping::new("loss", 3).restore_best_weights(true);
    let history = m
        .fit(&points(None).batch(20), Fit { epochs: 50, callbacks: vec![Box::new(stop)], ..quiet() })
        .unwrap();
    assert_eq!(history.epochs.len(), 4, "the first epoch is the best, three more do not beat it");
    assert!(history.stopped_because.unwrap().contains("loss has not improved"));
    let wrong = EarlyStopping::new("val_accuracy", 3);
    let e = m.fit(&points(None).batch(20), Fit { callbacks: vec![Box::new(wrong)], ..quiet() }).unwrap_err();
    assert!(
        e.to_string().contains("val_accuracy") && e.to_string().contains("sparse_categorical_accuracy"),
        "{e}"
    );
}

#[test]
fn plateau_lowers_the_rate_and_nan_ends_training() {
    let mut m = classifier();
    let plateau = || Box::new(ReduceLROnPlateau::new("loss").factor(0.5).patience(2).min_lr(0.3));
    m.compile(Compile { optimizer: sgd(0.0), backend: Some(backend("ref").unwrap()), ..Default::default() })
        .unwrap();
    m.set_learning_rate(1.0);
    // The learning rate does not move these weights: every gradient is multiplied by a zero sample weight.
    let still = points(Some(&[0.0; 20])).batch(20);
    m.fit(&still, Fit { epochs: 6, callbacks: vec![plateau()], ..quiet() }).unwrap();
    assert_eq!(m.learning_rate(), 0.3, "1 → 0.5 → 0.3, not below the least rate");

    let mut m = classifier();
    let broken = points(Some(&[f32::NAN; 20])).batch(5);
    let history = m
        .fit(&broken, Fit { epochs: 9, callbacks: vec![Box::new(TerminateOnNaN::new())], ..quiet() })
        .unwrap();
    assert_eq!(history.step_ms.len(), 1);
    assert!(history.stopped_because.unwrap().contains("not finite at step 1"));
}

#[test]
fn checkpoints_and_csv_lines_are_written() {
    let dir = tempdir("files");
    let template = dir.join("{epoch:02}-{loss:.1}.safetensors");
    let csv = dir.join("log.csv");
    let mut m = classifier();
    let callbacks: Vec<Box<dyn Callback>> =
        vec![Box::new(ModelCheckpoint::new(template.to_str().unwrap())), Box::new(CSVLogger::new(&csv))];
    let options =
        Fit { epochs: 2, callbacks, validation: Some(points(None).batch(20)), validation_freq: 2, ..quiet() };
    let history = m.fit(&points(None).batch(20), options).unwrap();
    for (i, logs) in history.epochs.iter().enumerate() {
        let path = dir.join(format!("{:02}-{:.1}.safetensors", i + 1, logs["loss"]));
        assert_eq!(Model::load(&path).unwrap().epochs(), i + 1);
    }
    let text = std::fs::read_to_string(csv).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split(',').collect()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(
        lines[0],
        [
            "epoch",
            "learning_rate",
            "loss",
            "sparse_categorical_accuracy",
            "val_loss",
            "val_sparse_categorical_accuracy"
        ]
    );
    assert!(lines[1][4].is_empty() && lines[2][4].parse::<f64>().is_ok(), "{text}");
    assert_eq!(lines[2][2].parse::<f64>().unwrap(), history.epochs[1]["loss"]);
}

#[test]
fn a_full_disk_costs_no_training_and_no_line_of_the_log() {
    let dir = tempdir("full-log");
    let log = |name: &str, files: FaultInjectingFileSystem| {
        let path = dir.join(name);
        let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(CSVLogger::with_files(files, &path))];
        let history =
            classifier().fit(&points(None).batch(20), Fit { epochs: 4, callbacks, ..quiet() }).unwrap();
        (history.epochs.len(), std::fs::read_to_string(path).unwrap())
    };
    let whole = log("whole", FaultInjectingFileSystem::never());
    assert_eq!((whole.0, whole.1.lines().count()), (4, 5));
    // Opening and cutting the file, then three calls for each epoch; the last epoch has no next one.
    for call in 2..11 {
        let full = FaultInjectingFileSystem::at(call, InjectedFault::Error(std::io::ErrorKind::StorageFull));
        assert_eq!(log("full", full), whole, "call {call}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_full_disk_costs_no_training_and_the_last_checkpoint_is_written() {
    let dir = tempdir("full-checkpoint");
    let path = dir.join("model.safetensors");
    let full = InjectedFault::Error(std::io::ErrorKind::StorageFull);
    let train = |files: FaultInjectingFileSystem| {
        let _ = std::fs::remove_file(&path);
        let checkpoint = ModelCheckpoint::with_files(files, path.to_str().unwrap());
        let mut model = classifier();
        let fit = Fit { epochs: 3, callbacks: vec![Box::new(checkpoint)], ..quiet() };
        assert_eq!(model.fit(&points(None).batch(20), fit).unwrap().epochs.len(), 3);
        model
    };
    let bytes = || Model::load(&path).unwrap().to_file().unwrap().to_bytes().unwrap();
    let counting = FaultInjectingFileSystem::never();
    train(FaultInjectingFileSystem::never())
        .to_file()
        .unwrap()
        .save_with(&counting, &dir.join("count"))
        .unwrap();
    let (whole, calls) = (bytes(), counting.calls().len());
    // Each call of the first two saves; the third writes what is newest then.
    for call in 0..2 * calls {
        train(FaultInjectingFileSystem::at(call, full));
        assert_eq!(bytes(), whole, "call {call}");
    }
    // A disk that is full from the second save on: the first checkpoint stays whole, and training ends as ever.
    for call in calls..calls + 3 {
        let model = train(FaultInjectingFileSystem::from(call, full));
        assert_eq!((model.epochs(), Model::load(&path).unwrap().epochs()), (3, 1), "call {call}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_cannot_be_written_is_told_once_and_once_at_the_end() {
    let dir = tempdir("read-only");
    let (csv, saved) = (dir.join("log.csv"), dir.join("model.safetensors"));
    let train = |log: FaultInjectingFileSystem, checkpoint: FaultInjectingFileSystem| {
        let callbacks: Vec<Box<dyn Callback>> = vec![
            Box::new(CSVLogger::with_files(log, &csv)),
            Box::new(ModelCheckpoint::with_files(checkpoint, saved.to_str().unwrap())),
        ];
        let mut model = classifier();
        let history = model.fit(&points(None).batch(20), Fit { epochs: 6, callbacks, ..quiet() }).unwrap();
        (model.to_file().unwrap().to_bytes().unwrap(), history.notes)
    };
    let (weights, notes) = train(FaultInjectingFileSystem::never(), FaultInjectingFileSystem::never());
    assert!(notes.is_empty(), "{notes:?}");
    for kind in [std::io::ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::StorageFull] {
        // Behind the begin of the log, which is two calls.
        let (same, notes) = train(
            FaultInjectingFileSystem::from(2, InjectedFault::Error(kind)),
            FaultInjectingFileSystem::from(0, InjectedFault::Error(kind)),
        );
        assert!(same == weights, "training was changed");
        let told = [
            ("an epoch of the log is not written yet", "log.csv"),
            ("a checkpoint is not written yet", "model.safetensors"),
            ("the last epochs of the log are not written", ""),
            ("the last checkpoint is not written", ""),
        ];
        assert_eq!(notes.len(), told.len(), "{notes:#?}");
        for (note, (what, file)) in notes.iter().zip(told) {
            assert!(note.starts_with(what) && note.contains(file), "{note}");
        }
    }
    // Where it can be written again, nothing is missing and nothing more is said.
    let once = InjectedFault::Error(std::io::ErrorKind::StorageFull);
    let (_, notes) = train(FaultInjectingFileSystem::at(2, once), FaultInjectingFileSystem::at(0, once));
    assert_eq!(notes.len(), 2, "{notes:#?}");
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), 7);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_log_that_cannot_be_begun_ends_a_new_run_and_no_run_that_goes_on() {
    let dir = tempdir("log-begin");
    let (csv, backups) = (dir.join("log.csv"), dir.join("backups"));
    let full = InjectedFault::Error(std::io::ErrorKind::ReadOnlyFilesystem);
    let train = |epochs, files: FaultInjectingFileSystem| {
        let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(CSVLogger::with_files(files, &csv))];
        let backup = Some(BackupAndRestore::new(&backups));
        classifier().fit(&points(None).batch(20), Fit { epochs, callbacks, backup, ..quiet() })
    };
    let e = train(2, FaultInjectingFileSystem::from(0, full)).unwrap_err().to_string();
    assert!(e.contains("log.csv"), "{e}");
    train(4, FaultInjectingFileSystem::never()).unwrap();
    let whole = std::fs::read_to_string(&csv).unwrap();
    for call in 0..2 {
        std::fs::remove_dir_all(&backups).unwrap();
        train(2, FaultInjectingFileSystem::never()).unwrap();
        // Of an epoch behind the backup.
        let two = std::fs::read_to_string(&csv).unwrap();
        std::fs::write(&csv, format!("{two}2,0.1,0.1,0.1,,\n")).unwrap();
        let history = train(4, FaultInjectingFileSystem::at(call, full)).unwrap();
        assert_eq!(history.epochs.len(), 4);
        assert_eq!(std::fs::read_to_string(&csv).unwrap(), whole, "call {call}");
        assert!(
            matches!(&history.notes[..], [n] if n.starts_with("the log is not written yet")),
            "{:?}",
            history.notes
        );
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_stop_flag_ends_after_the_step_with_the_history_so_far() {
    struct StopAt(usize, Arc<AtomicBool>);
    impl Callback for StopAt {
        fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
            if cx.model.steps() as usize == self.0 {
                self.1.store(true, Ordering::Relaxed);
            }
            Ok(())
        }
    }
    let flag = Arc::new(AtomicBool::new(false));
    let mut m = classifier();
    let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(StopAt(6, flag.clone()))];
    let history =
        m.fit(&points(None).batch(5), Fit { epochs: 9, callbacks, stop: Some(flag), ..quiet() }).unwrap();
    assert!(history.interrupted);
    assert_eq!((m.steps(), history.epochs.len(), m.epochs()), (6, 2, 1));
}

#[test]
fn waiting_for_data_is_measured_and_explained() {
    const SLOW: std::time::Duration = std::time::Duration::from_millis(40);
    let slow = points(None).batch(5).map(|s| {
        std::thread::sleep(SLOW);
        s
    });
    let history = classifier().fit(&slow, Fit { epochs: 2, ..quiet() }).unwrap();
    let waited: f32 = history.wait_ms.iter().sum();
    assert!(waited >= 8.0 * SLOW.as_secs_f32() * 1e3, "{waited}");
    assert!(history.data_wait() > 0.05 && history.data_wait() <= 1.0);
    let verdict = history.verdict();
    for part in ["input-bound", "the slowest stage is map", "prefetch(AUTOTUNE)"] {
        assert!(verdict.contains(part), "{part}: {verdict}");
    }
    assert_eq!(history.data.unwrap().elements, 4, "those of the last epoch");
    let nothing = classifier().fit(&slow, Fit { epochs: 0, ..quiet() }).unwrap();
    assert_eq!((nothing.data_wait(), nothing.verdict()), (0.0, String::new()));
}

#[test]
fn functional_models_join_branches_and_share_layers() {
    let x = input("x", [2]);
    let shared = dense(3).name("shared").activation("tanh");
    let (a, b) = (x.apply(shared.clone()), x.apply(rescaling(-1.0)).apply(shared));
    let joined = concatenate(-1).on(&[&add().on(&[&a, &b]), &x]);
    let y = joined.apply(dense(2).activation("softmax"));
    let mut m = Model::functional(&[x], &y).unwrap();
    m.compile(Compile {
        optimizer: adam(0.05),
        backend: Some(backend("ref").unwrap()),
        ..Default::default()
    })
    .unwrap();
    let history = m.fit(&points(None).batch(10), Fit { epochs: 12, ..quiet() }).unwrap();
    assert!(history.last()["loss"] < history.epochs[0]["loss"]);
    let paths: Vec<&str> = m.weights().iter().map(|(p, _)| *p).collect();
    assert_eq!(paths, ["shared/kernel", "shared/bias", "dense/kernel", "dense/bias"]);
    let again = Model::from_file(m.to_file().unwrap(), &CustomLayers::default()).unwrap();
    assert_eq!(again.weight("shared/kernel").unwrap(), m.weight("shared/kernel").unwrap());
}

/// `x: T[B, K] → T[B, K]`: a learned scale for each feature, times a fixed factor.
#[derive(Debug)]
struct Scale {
    factor: f64,
}

impl Layer for Scale {
    fn class_name(&self) -> &'static str {
        "Scale"
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let scale = cx.weight("scale", &[inputs[0].dim(-1)], &Initializer::Ones);
        &inputs[0] * scale * self.factor
    }
    fn config(&self) -> serde_json::Value {
        serde_json::json!({ "factor": self.factor })
    }
}

#[test]
fn layers_of_the_users_own_train_save_and_load() {
    let mut m = model(vec![LayerSpec::custom(Scale { factor: 2.0 }), dense(2).activation("softmax")]);
    m.fit(&points(None).batch(10), Fit { epochs: 3, ..quiet() }).unwrap();
    assert_ne!(m.weight("scale/scale").unwrap().to_f32s(), [1.0, 1.0], "it trains");
    let path = tempdir("custom").join("m.safetensors");
    m.save(&path).unwrap();
    let e = Model::load(&path).unwrap_err();
    assert!(e.to_string().contains("Scale"), "{e}");
    let custom = CustomLayers::new().with("Scale", |c| {
        Ok(Arc::new(Scale { factor: c["factor"].as_f64().unwrap_or(1.0) }) as Arc<dyn Layer>)
    });
    let mut again = Model::load_with(&path, &custom).unwrap();
    let x = Literal::from_slice([1, 2], &[0.3f32, -0.7]).unwrap();
    assert_eq!(again.predict_on_batch(&x).unwrap(), m.predict_on_batch(&x).unwrap());
}

#[test]
fn mistakes_name_the_layer_the_data_and_the_cure() {
    let mut m = model(vec![conv2d(4, (3, 3)), flatten(), dense(2)]);
    let e = m.fit(&points(None).batch(5), quiet()).unwrap_err().to_string();
    assert!(e.contains("conv2d"), "{e}");
    let mut m = classifier();
    let e = m.fit(&points(None), quiet()).unwrap_err().to_string();
    assert!(e.contains(".batch(") || e.contains("batch"), "{e}");
    let unlabelled = points(None).map(|s: systole_data::Sample| s.without("label")).batch(5);
    assert_error(&m.fit(&unlabelled, quiet()).unwrap_err(), ErrorKind::Data, &["`x`", "`label`"]);
    let mut raw = Model::sequential([dense(2)]);
    assert!(raw.fit(&points(None).batch(5), quiet()).unwrap_err().to_string().contains("compile"));
    m.fit(&points(None).batch(5), quiet()).unwrap();
    let wide = Literal::zeros(TensorType::new(DType::F32, [1, 3]));
    let e = m.predict_on_batch(&wide).unwrap_err().to_string();
    assert!(e.contains("[3]") && e.contains("[2]"), "{e}");
}

#[test]
fn float16_trains_under_its_loss_scale() {
    for precision in [Precision::MixedFloat16, Precision::MixedBfloat16] {
        let mut m = Model::sequential([dense(4).activation("tanh"), dense(2).activation("softmax")]);
        let backend = Some(backend("ref").unwrap());
        m.compile(Compile { optimizer: adam(0.05), precision, backend, ..Default::default() }).unwrap();
        let history = m.fit(&points(None).batch(5), Fit { epochs: 10, ..quiet() }).unwrap();
        let losses: Vec<f64> = history.get("loss");
        assert!(losses[9] < 0.6 * losses[0], "{precision:?}: {losses:?}");
        assert_eq!(m.weight("dense/kernel").unwrap().dtype(), DType::F32, "weights stay f32");
    }
}

/// A fresh folder for files of one test.
fn tempdir(name: &str) -> std::path::PathBuf {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fit-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn logs_keep_order() {
    let mut logs = Logs::new();
    logs.insert("b", 1.0);
    logs.insert("a", 2.0);
    logs.insert("b", 3.0);
    assert_eq!(logs.iter().collect::<Vec<_>>(), [("b", 3.0), ("a", 2.0)]);
}

#[test]
fn the_weights_at_the_end_are_their_running_means() {
    let run = |ema: bool, epochs| {
        let mut m = model(vec![dense(2).activation("softmax")]);
        let optimizer = if ema { sgd(0.5).ema(0.9) } else { sgd(0.5) };
        m.compile(Compile { optimizer, ..m.compile_config().unwrap().clone() }).unwrap();
        m.fit(&points(None).batch(5), Fit { epochs, ..quiet() }).unwrap();
        m
    };
    let kernel = |m: &Model| m.weights()[0].1.to_literal().unwrap().to_f32s();
    // The means of what the steps of the same run without them gave, by hand.
    let mut plain = model(vec![dense(2).activation("softmax")]);
    plain.compile(Compile { optimizer: sgd(0.5), ..plain.compile_config().unwrap().clone() }).unwrap();
    let mut mean: Option<Vec<f32>> = None;
    for epoch in 0..2 {
        for sample in points(None).batch(5).iter_epoch(epoch) {
            let batch = systole_nn::Batch::from_sample(&sample.unwrap(), &["x".into()]).unwrap();
            plain.train_on_batch(&batch).unwrap();
            let now = kernel(&plain);
            mean = Some(match mean {
                None => now,
                Some(mean) => {
                    mean.iter().zip(now).map(|(mean, now)| 0.9 * mean + (1.0 - 0.9) * now).collect()
                }
            });
        }
    }
    let (with, mean) = (run(true, 2), mean.unwrap());
    assert!(
        kernel(&with).iter().zip(&mean).all(|(a, b)| (a - b).abs() < 1e-6),
        "{:?} {mean:?}",
        kernel(&with)
    );
    assert_ne!(kernel(&with), kernel(&run(false, 2)));
    let bad = |optimizer: systole_nn::optimizer::Optimizer| optimizer.check().unwrap_err().to_string();
    assert!(bad(sgd(0.1).ema(1.5)).contains("ema_momentum is 1.5"));
    assert!(bad(sgd(0.1).ema(0.9).ema_overwrite_frequency(0)).contains("ema_overwrite_frequency is 0"));
}

/// Weights at the end of each epoch.
#[derive(Default)]
struct EachEpoch(Arc<Mutex<Vec<Vec<f32>>>>, Arc<Mutex<Vec<f64>>>);

impl Callback for EachEpoch {
    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.1.lock().unwrap().push(cx.model.learning_rate());
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let kernel = cx.model.weights()[0].1.to_literal()?.to_f32s();
        self.0.lock().unwrap().push(kernel);
        Ok(())
    }
}

#[test]
fn the_last_epochs_weights_have_a_mean_and_statistics_of_their_own() {
    let mut m = model(vec![dense(3), batch_normalization().momentum(0.5), dense(2).activation("softmax")]);
    let optimizer = sgd(0.5).swa(Swa::new(0.1).swa_epoch_start(0.5).annealing_epochs(2));
    m.compile(Compile { optimizer, ..m.compile_config().unwrap().clone() }).unwrap();
    let (seen, rates) = (EachEpoch::default(), EachEpoch::default());
    let (kernels, seen_rates) = (seen.0.clone(), rates.1.clone());
    let data = points(None).batch(5);
    let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(seen), Box::new(rates)];
    m.fit(&data, Fit { epochs: 6, callbacks, ..quiet() }).unwrap();
    // The rate goes from its own to that of averaging, epoch by epoch.
    let rates = seen_rates.lock().unwrap();
    for (rate, expected) in rates.iter().zip([0.5, 0.5, 0.5, 0.5, 0.3, 0.1]) {
        assert!((rate - expected).abs() < 1e-12, "{rates:?}");
    }
    let kernels = kernels.lock().unwrap();
    let means: Vec<f32> = (0..6).map(|i| kernels[3..].iter().map(|k| k[i]).sum::<f32>() / 3.0).collect();
    let weight = |name: &str| {
        let all = m.weights();
        all.iter().find(|(n, _)| n.ends_with(name)).unwrap().1.to_literal().unwrap().to_f32s()
    };
    let kernel = weight("dense/kernel");
    assert!(kernel.iter().zip(&means).all(|(a, b)| (a - b).abs() < 1e-6), "{kernel:?} {means:?}");
    assert_ne!(kernel, kernels[5]);
    // The mean over the batches of what the layer before it gives.
    let (mut expected, mut batches) = ([0f32; 3], 0.0);
    for sample in data.iter() {
        let x = sample.unwrap().get("x").unwrap().clone();
        let x = systole_ir::Literal::to_f32s(
            &Literal::from_bytes(TensorType::new(DType::F32, [5, 2]), x.bytes()).unwrap(),
        );
        for (j, sum) in expected.iter_mut().enumerate() {
            let each = x.chunks(2).map(|row| row[0] * kernel[j] + row[1] * kernel[3 + j]);
            *sum += each.sum::<f32>() / 5.0 + weight("dense/bias")[j];
        }
        batches += 1.0;
    }
    let moving = weight("moving_mean");
    for (sum, moving) in expected.iter().zip(&moving) {
        assert!((sum / batches - moving).abs() < 1e-5, "{expected:?} {batches} {moving:?}");
    }
    let bad = |swa: Swa| sgd(0.1).swa(swa).check().unwrap_err().to_string();
    assert!(bad(Swa::new(0.0)).contains("swa_lrs"));
    assert!(bad(Swa::new(0.1).swa_epoch_start(1.5)).contains("swa_epoch_start"));
    let both = sgd(0.1).ema(0.9).swa(Swa::new(0.1)).check().unwrap_err();
    assert_error(&both, ErrorKind::Config, &["use_ema", "`swa`"]);
}

#[test]
fn validation_and_the_best_model_take_the_running_means() {
    let dir = tempdir("swap-ema");
    let run = |name: &str, swap: Option<bool>| {
        let mut m = model(vec![dense(2).activation("softmax")]);
        let optimizer = sgd(0.5).ema(0.9);
        m.compile(Compile { optimizer, ..m.compile_config().unwrap().clone() }).unwrap();
        let seen = EachEpoch::default();
        let kernels = seen.0.clone();
        let mut callbacks: Vec<Box<dyn Callback>> = vec![Box::new(seen)];
        callbacks
            .extend(swap.map(|on| Box::new(SwapEMAWeights::new().swap_on_epoch(on)) as Box<dyn Callback>));
        let data = points(None).batch(5);
        let path = dir.join(format!("{name}.safetensors"));
        let best = Some(systole_nn::KeepBest::new(&path, "val_loss"));
        let h = m
            .fit(&data, Fit { epochs: 3, validation: Some(data.clone()), callbacks, best, ..quiet() })
            .unwrap();
        let best = Model::load(&path).unwrap();
        let kernel = |m: &Model| m.weights()[0].1.to_literal().unwrap().to_f32s();
        let seen = kernels.lock().unwrap().clone();
        (h, seen, kernel(&m), kernel(&best))
    };
    let ((plain, raw, end, _), (swapped, raw_too, same_end, best), (on_epoch, means, _, _)) =
        (run("plain", None), run("swap", Some(false)), run("epoch", Some(true)));
    // Training does not change; what is measured does, and at the end all have the means.
    assert_eq!((&raw, &end, plain.get("loss")), (&raw_too, &same_end, swapped.get("loss")));
    assert_ne!(plain.get("val_loss"), swapped.get("val_loss"));
    assert_eq!(swapped.get("val_loss"), on_epoch.get("val_loss"));
    assert_ne!(means, raw);
    let mut none = classifier();
    let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(SwapEMAWeights::new())];
    let e = none.fit(&points(None).batch(5), Fit { callbacks, ..quiet() }).unwrap_err().to_string();
    assert!(e.contains("use_ema"), "{e}");
    // The loss falls, so the best is the last: it is kept as it was measured.
    assert_eq!((&best, means.last().unwrap()), (&end, &end));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn labels_that_are_shares_of_classes_have_the_loss_of_each_by_its_share() {
    let losses = |label: Literal, soft_labels: bool| {
        let mut m = model(vec![dense(2).activation("softmax")]);
        m.compile(Compile { soft_labels, ..m.compile_config().unwrap().clone() }).unwrap();
        let x = Literal::from_slice([2, 2], &[0.5f32, -1., 1., 0.25]).unwrap();
        let data = Dataset::from_tensor_slices([("x", x), ("label", label)]).unwrap().batch(2);
        m.fit(&data, Fit { epochs: 2, ..quiet() })
            .map(|h| (h.get("loss")[0], h.get("sparse_categorical_accuracy")[0]))
    };
    let of = |a: i32, b: i32| losses(Literal::from_slice([2], &[a, b]).unwrap(), false).unwrap().0;
    let shares = |rows: &[f32]| losses(Literal::from_slice([2, 2], rows).unwrap(), true);
    // Of two labels each: 0.7 of the one and 0.3 of the other.
    let (mixed, accuracy) = shares(&[0.7, 0.3, 0.3, 0.7]).unwrap();
    assert!((mixed - (0.7 * of(0, 1) + 0.3 * of(1, 0))).abs() < 1e-6, "{mixed}");
    assert_eq!(accuracy, losses(Literal::from_slice([2], &[0, 1]).unwrap(), false).unwrap().1);
    let mut m = classifier();
    let config = m.compile_config().unwrap().clone();
    let loss = systole_nn::loss::mean_squared_error();
    let e = m.compile(Compile { soft_labels: true, loss, metrics: vec![], ..config }).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["mean_squared_error"]);
}
