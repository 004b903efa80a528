//! Callbacks in `fit`: early stopping, checkpoints, monitors, skipped batches, gradient accumulation.
//!
//! Also tests validation within epochs, and that a killed and resumed run makes the same decisions as an uninterrupted
//! one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use systole_data::Dataset;
use systole_data::file_system::{FaultInjectingFileSystem, InjectedFault};
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::callback::*;
use systole_nn::layers::dense;
use systole_nn::loss::mean_squared_error;
use systole_nn::optimizer::sgd;
use systole_nn::schedule::Schedule;
use systole_nn::{BackupAndRestore, Compile, Fit, History, Logs, Model};
use systole_runtime::backend;
use systole_testing::assert_error;

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("systole-callbacks-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let mut names: Vec<String> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// x and 2x + 1.
fn line(x: &[f32]) -> Dataset {
    let y: Vec<f32> = x.iter().map(|x| 2.0 * x + 1.0).collect();
    let column = |v: &[f32]| Literal::from_slice([v.len(), 1], v).unwrap();
    Dataset::from_tensor_slices([("x", column(x)), ("label", column(&y))]).unwrap()
}

/// Ten batches of one.
fn ten() -> Dataset {
    line(&[0.1, -0.4, 0.9, 0.3, -0.8, 0.5, 0.7, -0.2, 0.6, -0.5]).batch(1)
}

fn model(rate: f64) -> Model {
    let mut model = Model::sequential([dense(1)]);
    let config = Compile {
        optimizer: sgd(rate).momentum(0.5),
        loss: mean_squared_error(),
        backend: Some(backend("ref").unwrap()),
        seed: 4,
        ..Compile::default()
    };
    model.compile(config).unwrap();
    model
}

fn quiet(callbacks: Vec<Box<dyn Callback>>) -> Fit {
    Fit { callbacks, verbose: 0, ..Fit::default() }
}

/// Fails after a step, as if the process were killed.
struct Killer(u64);

impl Callback for Killer {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match cx.model.steps() == self.0 {
            true => Err(Error::new(ErrorKind::Io, "killed")),
            false => Ok(()),
        }
    }
}

/// Adds the value `v`: one for each epoch.
struct Told(Vec<f64>);

impl Callback for Told {
    fn wants_batch(&self, _: u64) -> bool {
        false
    }

    fn values(&mut self, cx: &mut FitCx<'_>) -> Result<Logs> {
        let mut logs = Logs::new();
        if !cx.is_within_epoch {
            logs.insert("v", self.0[cx.epoch]);
        }
        Ok(logs)
    }
}

/// Returns the number of epochs until training ended, and why.
fn ends(values: &[f64], stop: EarlyStopping) -> (usize, String) {
    let callbacks: Vec<Box<dyn Callback>> =
        vec![Box::new(stop.strict(false)), Box::new(Told(values.to_vec()))];
    let history = model(0.1).fit(&ten(), Fit { epochs: values.len(), ..quiet(callbacks) }).unwrap();
    (history.epochs.len(), history.stopped_because.unwrap_or_default())
}

#[test]
fn early_stopping_has_the_conditions_of_keras_and_lightning_in_their_order() {
    let stop = || EarlyStopping::new("v", 2).mode(Mode::Min);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let cases = [
        (ends(&[3., 2., 2., 2., 1.], stop()), 4, "v has not improved on 2.0000 for 2 epochs"),
        (ends(&[3., 2.9, 2.8, 2.], stop().min_delta(0.5)), 3, "v has not improved on 3.0000 for 2 epochs"),
        (ends(&[1., nan, 0.], stop()), 2, "v is NaN, best was 1.0000 (check_finite)"),
        (ends(&[nan, 0.], stop()), 1, "v is NaN (check_finite)"),
        (ends(&[1., nan, 0.9, 0.8], stop().check_finite(false)), 4, ""),
        (
            ends(&[1., 0.5, 0.4, 0.], stop().stopping_threshold(0.5)),
            3,
            "v is 0.4000, better than 0.5 (stopping_threshold)",
        ),
        (
            ends(&[1., 11., 0.], stop().divergence_threshold(10.)),
            2,
            "v is 11.0000, worse than 10 (divergence_threshold)",
        ),
        // What is not finite is told first.
        (
            ends(&[1., inf, 0.], stop().divergence_threshold(10.)),
            2,
            "v is inf, best was 1.0000 (check_finite)",
        ),
        (
            ends(&[1., 2., 5.], stop().mode(Mode::Max).stopping_threshold(4.)),
            3,
            "v is 5.0000, better than 4 (stopping_threshold)",
        ),
        (
            ends(&[1., 2., -5.], stop().mode(Mode::Max).divergence_threshold(0.)),
            3,
            "v is -5.0000, worse than 0 (divergence_threshold)",
        ),
        (
            ends(&[5., 4., 3., 3., 3.], stop().baseline(1.)),
            2,
            "v has not passed the baseline 1 for 2 epochs; its best is 4.0000",
        ),
        (
            ends(&[1., 2., 3., 2.9, 4., 5.], stop().start_from_epoch(2)),
            6,
            "v has not improved on 2.9000 for 2 epochs",
        ),
    ];
    for (i, ((epochs, why), wanted, told)) in cases.into_iter().enumerate() {
        assert_eq!((epochs, why.as_str()), (wanted, told), "case {i}");
    }
}

#[test]
fn a_value_that_is_not_measured_is_an_error_before_the_first_step() {
    let told = |stop: EarlyStopping, fit: Fit, parts: &[&str]| {
        let mut model = model(0.1);
        let e = model.fit(&ten(), Fit { callbacks: vec![Box::new(stop)], ..fit }).unwrap_err().to_string();
        assert!(parts.iter().all(|part| e.contains(part)), "{e}");
        assert_eq!(model.steps(), 0);
    };
    let fit = || quiet(Vec::new());
    told(EarlyStopping::new("val_loss", 1), fit(), &["monitors val_loss", "the run has no validation"]);
    let validated = Fit { validation: Some(ten()), ..fit() };
    told(EarlyStopping::new("val_los", 1), validated, &["monitors val_los", "measured are: loss"]);
    told(
        EarlyStopping::new("loss", 1).min_delta(f64::NAN),
        fit(),
        &["min_delta is not a number", "EarlyStopping"],
    );
    let loose = EarlyStopping::new("val_loss", 1).strict(false);
    let history = model(0.1).fit(&ten(), quiet(vec![Box::new(loose)])).unwrap();
    assert_eq!(history.stopped_because, None);
}

/// Returns the checkpoint names left after four epochs with falling loss.
fn kept(name: &str, save: impl Fn(&Path) -> ModelCheckpoint) -> Vec<String> {
    let dir = folder(name);
    let fit = Fit { epochs: 4, ..quiet(vec![Box::new(save(&dir))]) };
    let history = model(0.1).fit(&ten(), fit).unwrap();
    assert!(history.get("loss").windows(2).all(|w| w[1] < w[0]));
    let names = names(&dir);
    for name in &names {
        Model::load(dir.join(name)).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
    names.iter().map(|n| n.trim_end_matches(".safetensors").to_string()).collect()
}

#[test]
fn checkpoints_are_kept_as_lightning_keeps_them() {
    let save = |dir: &Path| ModelCheckpoint::in_dir(dir, "{epoch:02d}-{step}");
    let top = |k, mode| move |dir: &Path| save(dir).monitor("loss", mode).save_top_k(k);
    assert_eq!(kept("one", save), ["epoch=04-step=40"]);
    assert_eq!(kept("two", top(2, Mode::Min)), ["epoch=03-step=30", "epoch=04-step=40"]);
    assert_eq!(kept("worst", top(2, Mode::Max)), ["epoch=01-step=10", "epoch=02-step=20"]);
    assert_eq!(kept("all", top(-1, Mode::Min)).len(), 4);
    assert_eq!(kept("none", top(0, Mode::Min)), [""; 0]);
    assert_eq!(kept("last", |dir| save(dir).save_top_k(0).save_last(true)), ["last"]);
    let plain = |dir: &Path| save(dir).auto_insert_metric_name(false).every_n_epochs(2).save_top_k(-1);
    assert_eq!(kept("plain", plain), ["02-20", "04-40"]);
    let steps = |dir: &Path| save(dir).every_n_train_steps(15).save_top_k(-1);
    assert_eq!(kept("steps", steps), ["epoch=02-step=15", "epoch=03-step=30"]);
    let fixed = |dir: &Path| ModelCheckpoint::in_dir(dir, "m").save_top_k(-1);
    assert_eq!(kept("versions", fixed), ["m-v1", "m-v2", "m-v3", "m"]);
    let keras = |dir: &Path| ModelCheckpoint::new(dir.join("{epoch}.safetensors").to_str().unwrap());
    assert_eq!(kept("keras", move |dir| keras(dir).save_freq(SaveFreq::Steps(20))), ["2", "4"]);
    let threshold = |dir: &Path| keras(dir).save_best_only("loss", Mode::Min).initial_value_threshold(1e-9);
    assert_eq!(kept("threshold", threshold), [""; 0]);
    assert_eq!(kept("best", move |dir| keras(dir).save_best_only("loss", Mode::Max)), ["1"]);
}

#[test]
fn a_link_is_to_the_checkpoint_that_was_written_last() {
    let save = |dir: &Path| ModelCheckpoint::in_dir(dir, "{epoch}").save_last(SaveLast::Link);
    let dir = folder("link");
    let last = dir.join("last.safetensors");
    // In the first epoch the loss is the greatest: it stays the best, and the last that was written.
    for (mode, epochs, to) in [(Mode::Min, 2, 2), (Mode::Max, 3, 1)] {
        let save = save(&dir).monitor("loss", mode);
        model(0.1).fit(&ten(), Fit { epochs, ..quiet(vec![Box::new(save)]) }).unwrap();
        let name = format!("epoch={to}.safetensors");
        let (found, target) = (names(&dir), std::fs::read_link(&last));
        assert_eq!(
            found.iter().filter(|n| n.contains('=')).count(),
            if to == 2 { 1 } else { 2 },
            "{found:?}"
        );
        if cfg!(unix) {
            assert_eq!(target.unwrap(), Path::new(&name), "within the folder, which may be moved");
        }
        assert_eq!(Model::load(&last).unwrap().epochs(), to);
    }
    std::fs::remove_dir_all(&dir).unwrap();
    // Nothing else is kept, or there are no links: the model itself.
    let plain = |dir: &Path| save(dir).save_top_k(0);
    assert_eq!(kept("link-alone", plain), ["last"]);
    // A call that fails in the first epoch is made good in the next ones.
    for (call, fault) in
        (0..9).flat_map(|call| [(call, io::ErrorKind::Unsupported), (call, io::ErrorKind::StorageFull)])
    {
        let dir = folder("link-faulty");
        let mut save =
            ModelCheckpoint::with_files(FaultInjectingFileSystem::at(call, InjectedFault::Error(fault)), "");
        save.filepath = Some(dir.join("{epoch}.safetensors").display().to_string());
        let save = save.save_last(SaveLast::Link);
        model(0.1).fit(&ten(), Fit { epochs: 3, ..quiet(vec![Box::new(save)]) }).unwrap();
        let last = dir.join("last.safetensors");
        assert_eq!(Model::load(&last).unwrap().epochs(), 3, "{call} {fault}");
        assert_eq!(std::fs::symlink_metadata(last).unwrap().is_symlink(), cfg!(unix));
        assert!(names(&dir).iter().all(|name| name.ends_with(".safetensors")), "{:?}", names(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn checkpoints_look_where_they_are_told_to() {
    let saved = |at_end: Option<bool>, freq| {
        let dir = folder("at-end");
        let mut save =
            ModelCheckpoint::in_dir(&dir, "{epoch}-{step}").monitor("val_loss", Mode::Min).save_top_k(-1);
        save.save_on_train_epoch_end = at_end;
        let fit = Fit {
            epochs: 2,
            validation: Some(ten()),
            validation_freq: freq,
            val_check_interval: (freq == 1).then(|| "0.5".parse().unwrap()),
            ..quiet(vec![Box::new(save)])
        };
        model(0.1).fit(&ten(), fit).unwrap();
        let names = names(&dir);
        std::fs::remove_dir_all(dir).unwrap();
        names.iter().map(|n| n.trim_end_matches(".safetensors").to_string()).collect::<Vec<_>>()
    };
    let all = ["epoch=1-step=10", "epoch=1-step=5", "epoch=2-step=15", "epoch=2-step=20"];
    assert_eq!(
        (saved(None, 1), saved(Some(false), 1)),
        (all.map(String::from).into(), all.map(String::from).into())
    );
    assert_eq!(saved(Some(true), 1), [all[0], all[3]]);
    assert_eq!(
        (saved(Some(true), 2), saved(Some(false), 2)),
        (vec![all[0].into(), all[3].into()], vec![all[3].into()])
    );
}

#[test]
fn names_that_are_there_before_a_run_are_spared() {
    let dir = folder("spared");
    std::fs::write(dir.join("m.safetensors"), "mine").unwrap();
    let save = ModelCheckpoint::in_dir(&dir, "m");
    model(0.1).fit(&ten(), Fit { epochs: 2, ..quiet(vec![Box::new(save)]) }).unwrap();
    assert_eq!(names(&dir), ["m-v1.safetensors", "m.safetensors"]);
    assert_eq!(std::fs::read(dir.join("m.safetensors")).unwrap(), b"mine");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn weights_alone_and_what_an_error_leaves() {
    let dir = folder("exception");
    let save = ModelCheckpoint::in_dir(&dir, "w").save_weights_only(true).save_on_exception(true);
    let mut whole = model(0.1);
    let e = whole.fit(&ten(), Fit { epochs: 3, ..quiet(vec![Box::new(save), Box::new(Killer(13))]) });
    assert_eq!(e.unwrap_err().what(), "killed");
    assert_eq!(names(&dir), ["on_exception.safetensors", "w.safetensors"]);
    let left = Model::load(dir.join("on_exception.safetensors")).unwrap();
    assert_eq!(
        (left.steps(), left.weight("dense/kernel").unwrap()),
        (13, whole.weight("dense/kernel").unwrap())
    );
    let file = systole_nn::ModelFile::load(dir.join("w.safetensors")).unwrap();
    assert!(file.tensors.iter().all(|(name, _)| name.starts_with("weights/")), "{:?}", file.tensors);
    // It trains on, with a fresh optimizer.
    let mut again = Model::load(dir.join("w.safetensors")).unwrap();
    again.fit(&ten(), quiet(Vec::new())).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn arguments_of_checkpoints_that_do_not_go_together_are_refused() {
    let base = || ModelCheckpoint::in_dir("nowhere", "m");
    let keras = || ModelCheckpoint::new("nowhere/m.safetensors");
    let mut both = keras();
    both.filename = Some("m".into());
    for (save, part) in [
        (both, "filepath cannot be combined with filename"),
        (
            base().every_n_epochs(2).every_n_train_steps(3),
            "every_n_train_steps and every_n_epochs are mutually exclusive",
        ),
        (base().save_top_k(-2), "save_top_k is -2"),
        (base().save_top_k(2), "no monitor"),
        (keras().save_top_k(2), "would have the name `nowhere/m.safetensors`"),
        (
            keras().save_best_only("loss", Mode::Min).save_top_k(1),
            "save_best_only cannot be combined with save_top_k",
        ),
        (keras().initial_value_threshold(1.0), "without save_best_only"),
        (keras().save_freq(SaveFreq::Steps(0)), "save_freq is 0"),
        (base().train_time_interval("soon"), "expected a time, got `soon`"),
        (keras().save_best_only("val_loss", Mode::Min), "the run has no validation"),
    ] {
        let e = model(0.1).fit(&ten(), quiet(vec![Box::new(save)])).unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    }
    assert!(!Path::new("nowhere").exists());
}

#[test]
fn the_learning_rate_is_written_wherever_its_monitor_stands() {
    let dir = folder("monitor");
    let csv = dir.join("log.csv");
    let monitor = LearningRateMonitor::new().log_momentum(true).log_weight_decay(true).log_key_prefix("lr-");
    let halve = LearningRateScheduler(|epoch, rate| if epoch == 0 { rate } else { rate / 2.0 });
    let callbacks: Vec<Box<dyn Callback>> =
        vec![Box::new(CSVLogger::new(&csv)), Box::new(monitor), Box::new(halve)];
    let history = model(0.1).fit(&ten(), Fit { epochs: 2, ..quiet(callbacks) }).unwrap();
    assert_eq!(history.get("lr-learning_rate"), [0.1, 0.05]);
    assert_eq!((history.get("lr-momentum"), history.get("lr-weight_decay")), (vec![0.5; 2], vec![0.0; 2]));
    let text = std::fs::read_to_string(csv).unwrap();
    let header = text.lines().next().unwrap();
    assert!(
        header.starts_with("epoch,learning_rate,loss,lr-learning_rate,lr-momentum,lr-weight_decay"),
        "{text}"
    );
    // The momentum of a schedule, where there is one.
    let mut scheduled = model(0.1);
    let config = scheduled.compile_config().unwrap().clone();
    let momentum = Schedule::PiecewiseConstantDecay { boundaries: vec![9], values: vec![0.9, 0.7] };
    let optimizer = config.optimizer.clone().momentum_schedule(momentum);
    scheduled.compile(Compile { optimizer, ..config }).unwrap();
    let monitor: Vec<Box<dyn Callback>> = vec![Box::new(LearningRateMonitor::new().log_momentum(true))];
    let history = scheduled.fit(&ten(), quiet(monitor)).unwrap();
    assert_eq!(history.get("momentum"), [0.7]);
    // Steps see it where that is asked for.
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, monitor) = (seen.clone(), LearningRateMonitor::new().logging_interval(LoggingInterval::Step));
    let look = LambdaCallback::new().on_train_batch_end(move |cx| {
        log.lock().unwrap().push(cx.logs.get("learning_rate"));
        Ok(())
    });
    model(0.1).fit(&ten(), quiet(vec![Box::new(look), Box::new(monitor)])).unwrap();
    assert_eq!(*seen.lock().unwrap(), [Some(0.1); 10]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn closures_are_called_at_every_hook() {
    let log = Arc::new(Mutex::new(String::new()));
    let at = |mark: char| {
        let log = log.clone();
        move |_: &mut FitCx<'_>| {
            log.lock().unwrap().push(mark);
            Ok(())
        }
    };
    let failed = log.clone();
    let hooks = LambdaCallback::new()
        .on_train_begin(at('<'))
        .on_epoch_begin(at('('))
        .on_train_batch_end(at('.'))
        .on_validation_end(at('v'))
        .on_epoch_end(at(')'))
        .on_train_end(at('>'))
        .on_exception(move |_, e| failed.lock().unwrap().push_str(e.what()));
    let fit = |callbacks| Fit {
        epochs: 2,
        validation: Some(ten()),
        val_check_interval: Some("0.5".parse().unwrap()),
        ..quiet(callbacks)
    };
    model(0.1).fit(&ten(), fit(vec![Box::new(hooks)])).unwrap();
    assert_eq!(*log.lock().unwrap(), "<(.....v.....)(.....v.....)>");
    log.lock().unwrap().clear();
    let failed = log.clone();
    let hooks = LambdaCallback::new().on_exception(move |_, e| failed.lock().unwrap().push_str(e.what()));
    assert!(model(0.1).fit(&ten(), fit(vec![Box::new(hooks), Box::new(Killer(3))])).is_err());
    assert_eq!(*log.lock().unwrap(), "killed");
}

#[test]
fn a_timer_counts_all_starts_of_a_run() {
    let slow = |ms| {
        LambdaCallback::new().on_train_batch_end(move |_| {
            std::thread::sleep(Duration::from_millis(ms));
            Ok(())
        })
    };
    let fit = |callbacks| Fit { epochs: 9, ..quiet(callbacks) };
    let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(Timer::new("00:00:01")), Box::new(slow(120))];
    let history = model(0.1).fit(&ten(), fit(callbacks)).unwrap();
    assert_eq!(
        history.stopped_because.as_deref(),
        Some("the time limit of 00:00:01 for this run is reached (Timer)")
    );
    assert!((1..=10).contains(&history.samples), "{}", history.samples);
    let mut timer = Timer::new("00:01:00").interval(TimerInterval::Epoch);
    let values = serde_json::json!({"seconds": CallbackState::float(Some(59.9999))});
    timer.restore(&CallbackState { values, tensors: Vec::new() }).unwrap();
    let history = model(0.1).fit(&ten(), fit(vec![Box::new(timer), Box::new(slow(1))])).unwrap();
    assert_eq!(history.epochs.len(), 1);
    let e = model(0.1).fit(&ten(), fit(vec![Box::new(Timer::new("1h"))])).unwrap_err().to_string();
    assert!(e.contains("`1h`") && e.contains("Timer"), "{e}");
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_where_that_is_asked_for() {
    let broken = line(&[0.1, f32::NAN]).batch(1);
    let ends =
        |raise| model(0.1).fit(&broken, quiet(vec![Box::new(TerminateOnNaN::new().raise_error(raise))]));
    assert!(ends(false).unwrap().stopped_because.unwrap().contains("step 2"));
    let e = ends(true).unwrap_err().to_string();
    assert!(e.contains("step 2") && e.contains("NaN") && e.contains("sample 0"), "{e}");
}

#[test]
fn a_loss_that_jumps_ends_training_and_its_batch_is_left_out_next_time() {
    let dir = folder("spike");
    let path = dir.join("skip_batches.json");
    // Weights stay, so that losses are c(x + d)²: nearly as x² here, where x is large.
    let x: Vec<f32> = [1., 1., 1., 1.6, 1., 1., 2.2, 1., 1.].iter().map(|x| x * 1e4).collect();
    let data = line(&x).batch(1);
    let fit = |spike: SpikeDetection| model(0.0).fit(&data, quiet(vec![Box::new(spike)]));
    // The fourth differs from the mean 1 by 1.56; the seventh, of 4.84, by 3.58 from 1.26, which is more than twice that.
    let e = fit(SpikeDetection::new(&path)).unwrap_err().to_string();
    assert!(e.contains("batch 7") && e.contains("epoch 1"), "{e}");
    let left_out: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(left_out, serde_json::json!([{"epoch": 0, "batch": 5}, {"epoch": 0, "batch": 6}]));
    let history = fit(SpikeDetection::new(&path)).unwrap();
    assert_eq!(history.samples, 7);
    assert!(history.notes[0].contains("found: 2"), "{:?}", history.notes);
    // Other limits find others.
    std::fs::remove_file(&path).unwrap();
    for (spike, told) in [
        (SpikeDetection::new(&path).rtol(1.5), "batch 4 of"),
        (SpikeDetection::new(&path).rtol(1.5).warmup(4), "batch 7 of"),
        (SpikeDetection::new(&path).window(1), "batch 7 of"),
        (SpikeDetection::new(&path).mode(Mode::Max).rtol(0.4), "batch 8 of"),
    ] {
        let e = fit(spike).unwrap_err().to_string();
        assert!(e.contains(told), "{told}: {e}");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(fit(SpikeDetection::new(&path).atol(1e12)).is_ok());
    std::fs::write(&path, "[3]").unwrap();
    let e = fit(SpikeDetection::new(&path)).unwrap_err().to_string();
    assert!(e.contains(&path.display().to_string()), "{e}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn validations_in_the_middle_of_epochs_are_seen_and_kept() {
    let fit = |interval: &str, freq, callbacks| Fit {
        epochs: 2,
        validation: Some(ten()),
        validation_freq: freq,
        val_check_interval: Some(interval.parse().unwrap()),
        ..quiet(callbacks)
    };
    let steps = |history: &History| history.validations.iter().map(|v| v.step).collect::<Vec<_>>();
    let history = model(0.1).fit(&ten(), fit("0.4", 1, Vec::new())).unwrap();
    assert_eq!(steps(&history), [4, 8, 14, 18]);
    assert_eq!(history.get("val_loss").len(), 0, "10 is no multiple of 4");
    let history = model(0.1).fit(&ten(), fit("5", 2, Vec::new())).unwrap();
    assert_eq!((steps(&history), history.get("val_loss").len()), (vec![15], 1));
    let mut short = model(0.1);
    short.fit(&ten().take(5), quiet(Vec::new())).unwrap();
    let half = model(0.1).fit(&ten(), fit("5", 1, Vec::new())).unwrap();
    assert_eq!(half.validations[0].logs["val_loss"], short.evaluate(&ten()).unwrap()["loss"]);
    let history = model(0.1).fit(&ten(), fit("13", 1, Vec::new())).unwrap();
    assert_eq!(steps(&history), [13], "through the epochs");
    // A value of a validation is judged after each.
    let stop = EarlyStopping::new("val_loss", 2).min_delta(1e9);
    let history = model(0.1).fit(&ten(), fit("0.2", 1, vec![Box::new(stop)])).unwrap();
    assert_eq!((steps(&history), history.samples), (vec![2, 4, 6], 6));
    // Or at the ends of epochs alone, or of validations alone.
    let stop = || EarlyStopping::new("val_loss", 2).min_delta(1e9).check_on_train_epoch_end(true);
    let history = model(0.1).fit(&ten(), fit("0.5", 1, vec![Box::new(stop())])).unwrap();
    assert_eq!((steps(&history), history.samples), (vec![5, 15], 20), "two epochs of four validations");
    let trains = EarlyStopping::new("loss", 2).min_delta(1e9).check_on_train_epoch_end(false);
    let history = model(0.1).fit(&ten(), fit("0.2", 1, vec![Box::new(trains)])).unwrap();
    assert_eq!(steps(&history), [2, 4, 6]);
    let e = model(0.1).fit(&ten().filter(|_| true), fit("0.5", 1, Vec::new())).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["val_check_interval"]);
}

#[test]
fn the_last_epoch_is_validated_where_that_is_asked_for_and_callbacks_see_it() {
    let dir = folder("last");
    let csv = dir.join("log.csv");
    let fit = |callbacks| Fit {
        epochs: 4,
        validation: Some(ten()),
        validation_freq: 3,
        validate_last: true,
        ..quiet(callbacks)
    };
    let last = |csv: &Path| {
        let text = std::fs::read_to_string(csv).unwrap();
        let lines: Vec<Vec<String>> =
            text.lines().skip(1).map(|l| l.split(',').map(String::from).collect()).collect();
        lines.iter().map(|line| line[3].clone()).collect::<Vec<_>>()
    };
    let history = model(0.1).fit(&ten(), fit(vec![Box::new(CSVLogger::new(&csv))])).unwrap();
    let values = history.get("val_loss").iter().map(f64::to_string).collect::<Vec<_>>();
    assert_eq!(last(&csv), ["", "", &values[0], &values[1]]);
    // Ended by a callback, in an epoch that nobody knew to be the last.
    let stop = EarlyStopping::new("loss", 1).min_delta(1e9);
    let history = model(0.1).fit(&ten(), fit(vec![Box::new(CSVLogger::new(&csv)), Box::new(stop)])).unwrap();
    assert_eq!((history.epochs.len(), history.get("val_loss").len()), (2, 1));
    assert_eq!(last(&csv), ["", &history.last()["val_loss"].to_string()]);
    let stop = EarlyStopping::new("loss", 1).min_delta(1e9);
    let save = ModelCheckpoint::in_dir(dir.join("saved"), "{epoch}").monitor("val_loss", Mode::Min);
    model(0.1).fit(&ten(), fit(vec![Box::new(save), Box::new(stop)])).unwrap();
    assert_eq!(names(&dir.join("saved")), ["epoch=2.safetensors"]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Computes steps by hand: w ← w − rate · mean gradient of a group, by the accumulation steps of each epoch.
fn by_hand(x: &[f64], factors: &[usize]) -> (f64, f64) {
    let (mut w, mut b, mut sum, mut gathered) = (0.0, 0.0, (0.0, 0.0), 0);
    for (i, factor) in factors.iter().enumerate() {
        if i > 0 && *factor != factors[i - 1] {
            (sum, gathered) = ((0.0, 0.0), 0);
        }
        for x in x {
            let d = 2.0 * (w * x + b - (2.0 * x + 1.0));
            (sum, gathered) = ((sum.0 + d * x, sum.1 + d), gathered + 1);
            if gathered == *factor {
                let by = 0.1 / *factor as f64;
                (w, b, sum, gathered) = (w - by * sum.0, b - by * sum.1, (0.0, 0.0), 0);
            }
        }
    }
    (w, b)
}

#[test]
fn gradients_are_gathered_by_the_epoch() {
    let x = [0.1f32, -0.4, 0.9, 0.3, -0.8];
    let data = line(&x).batch(1);
    let new = |optimizer: systole_nn::optimizer::Optimizer| {
        let mut model = Model::sequential([dense(1).kernel_initializer("zeros")]);
        let backend = Some(backend("ref").unwrap());
        model
            .compile(Compile { optimizer, loss: mean_squared_error(), backend, ..Compile::default() })
            .unwrap();
        model
    };
    let schedule = |s: &[(usize, usize)]| GradientAccumulationScheduler::new(s.iter().copied());
    let trained = |s: &[(usize, usize)], epochs| {
        let mut model = new(sgd(0.1));
        let history = model.fit(&data, Fit { epochs, ..quiet(vec![Box::new(schedule(s))]) }).unwrap();
        let of = |name: &str| model.weight(name).unwrap().to_f64s()[0];
        ((of("dense/kernel"), of("dense/bias")), history.notes, model)
    };
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (s, factors) in [
        (&[(0, 2), (2, 1)][..], &[2, 2, 1, 1][..]),
        (&[(1, 5)], &[1, 5, 5]),
        (&[(0, 4), (1, 2), (3, 3)], &[4, 2, 2, 3]),
    ] {
        let ((w, b), notes, model) = trained(s, factors.len());
        let (wanted, bias) = by_hand(&x, factors);
        assert!(
            (w - wanted).abs() < 1e-5 && (b - bias).abs() < 1e-5,
            "{factors:?}: {w} {b}, {wanted} {bias}"
        );
        // It has its own number again, and what was left out is told.
        assert_eq!(model.compile_config().unwrap().optimizer.gradient_accumulation_steps, None);
        assert_eq!(notes.is_empty(), factors[0] != 4, "{notes:?}");
    }
    // Adam counts changes of the weights: the same as one run after another by hand has it.
    let adam = || systole_nn::optimizer::adam(0.1);
    let mut changing = new(adam());
    changing.fit(&data, Fit { epochs: 2, ..quiet(vec![Box::new(schedule(&[(0, 5), (1, 1)]))]) }).unwrap();
    let mut plain = new(adam());
    plain.fit(&line(&[0.1, -0.4, 0.9, 0.3, -0.8]).batch(5), Fit { epochs: 1, ..quiet(Vec::new()) }).unwrap();
    plain.fit(&data, Fit { epochs: 1, ..quiet(Vec::new()) }).unwrap();
    let (a, b) = (changing.weight("dense/kernel").unwrap(), plain.weight("dense/kernel").unwrap());
    assert!((a.to_f64s()[0] - b.to_f64s()[0]).abs() < 1e-5, "{a:?} {b:?}");
    let e = new(sgd(0.1)).fit(&data, quiet(vec![Box::new(schedule(&[(0, 0)]))])).unwrap_err().to_string();
    assert!(e.contains("0 accumulation") && e.contains("{ 0 = 8, 10 = 1 }"), "{e}");
}

#[test]
fn the_pace_is_that_of_the_steps() {
    let monitor = ThroughputMonitor::new().available_flops(1e6);
    let slow = LambdaCallback::new().on_train_batch_end(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    });
    let fit = Fit { epochs: 2, ..quiet(vec![Box::new(monitor), Box::new(slow)]) };
    let mut m = model(0.1);
    let history = m.fit(&ten(), fit).unwrap();
    let last = history.last();
    assert!(last["batches_per_sec"] < 200.0 && last["batches_per_sec"] > 1.0, "{last:?}");
    assert_eq!(last["samples_per_sec"], last["batches_per_sec"]);
    let flops = systole_ir::cost::cost(m.train_graph(1).as_ref().unwrap()).flops;
    assert!(
        (last["flops_per_sec"] / last["batches_per_sec"] / flops - 1.0).abs() < 1e-9 && flops > 4.0,
        "{last:?}"
    );
    assert_eq!(last["mfu"], last["flops_per_sec"] / 1e6);
    let e = model(0.1).fit(&ten(), quiet(vec![Box::new(ThroughputMonitor::new().available_flops(0.0))]));
    assert!(e.unwrap_err().to_string().contains("available_flops is 0"));
}

/// Runs in `dir` with all callbacks that make decisions; `kill`: fails after that step.
fn run(dir: &Path, backups: bool, kill: u64) -> Result<(Model, History)> {
    let save = |name: &str| ModelCheckpoint::in_dir(dir.join("saved"), name);
    let mut place =
        save("{epoch}-{step}-{val_loss:.3f}").monitor("val_loss", Mode::Min).save_top_k(2).save_last(true);
    let (logged, text) = (|name: &str| name.to_string(), String::new());
    let at = CallbackRunInfo {
        folder: dir,
        logged: &logged,
        names: Vec::new(),
        text,
        hparams: Vec::new(),
        peak_flops: &|| None,
    };
    place.dirpath = Some("saved".into());
    place.take_place(&at);
    let mut fixed = ModelCheckpoint::in_dir("fixed", "m").save_top_k(-1).every_n_train_steps(7);
    fixed.take_place(&at);
    let callbacks: Vec<Box<dyn Callback>> = vec![
        Box::new(EarlyStopping::new("val_loss", 5).min_delta(0.002).restore_best_weights(true)),
        Box::new(place),
        Box::new(fixed),
        Box::new(CSVLogger::new(dir.join("log.csv"))),
        Box::new(LearningRateMonitor::new()),
        Box::new(ReduceLROnPlateau::new("loss").patience(1).factor(0.5)),
        Box::new(SpikeDetection::new(dir.join("skip.json")).rtol(1e9)),
        Box::new(Timer::new("01:00:00")),
        Box::new(GradientAccumulationScheduler::new([(0, 1), (1, 3), (2, 2)])),
        Box::new(Killer(kill)),
    ];
    let mut model = model(0.05);
    let fit = Fit {
        epochs: 4,
        validation: Some(ten()),
        val_check_interval: Some("0.3".parse()?),
        validate_last: true,
        backup: backups.then(|| BackupAndRestore::new(dir.join("backups")).every_steps(3).every(None)),
        ..quiet(callbacks)
    };
    let history = model.fit(&ten().shuffle(5, 2), fit)?;
    Ok((model, history))
}

#[test]
fn a_run_that_was_killed_decides_as_one_that_was_not() {
    let whole = folder("whole");
    let (model, expected) = run(&whole, false, u64::MAX).unwrap();
    assert!(expected.validations.len() > 3 && names(&whole.join("saved")).len() == 3);
    let all = |dir: &Path| {
        let of = |part: &str| {
            let files = names(&dir.join(part)).into_iter();
            files.map(|n| (n.clone(), std::fs::read(dir.join(part).join(n)).unwrap())).collect::<Vec<_>>()
        };
        (of("saved"), of("fixed"), std::fs::read(dir.join("log.csv")).unwrap())
    };
    let wanted = all(&whole);
    let cut = folder("cut");
    for kill in (1..model.steps()).step_by(3) {
        let _ = std::fs::remove_dir_all(&cut);
        std::fs::create_dir_all(&cut).unwrap();
        assert!(run(&cut, true, kill).is_err());
        let again = run(&cut, true, kill + 1);
        assert!(again.is_err() || kill + 1 > model.steps());
        let (same, history) = run(&cut, true, u64::MAX).unwrap();
        assert_eq!(same.to_file().unwrap(), model.to_file().unwrap(), "killed after {kill}");
        assert_eq!(history.epochs, expected.epochs, "killed after {kill}");
        assert_eq!(history.validations, expected.validations, "killed after {kill}");
        assert_eq!(history.stopped_because, expected.stopped_because, "killed after {kill}");
        assert!(all(&cut) == wanted, "killed after {kill}: {:?}", names(&cut.join("saved")));
    }
    std::fs::remove_dir_all(whole).unwrap();
    std::fs::remove_dir_all(cut).unwrap();
}
