//! Limits of runs: `limit_train_batches`, `overfit_batches`, `fast_dev_run`, `max_time`; the batch-size finder.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use systole_data::Dataset;
use systole_ir::{DType, ErrorKind, Literal, Result, TensorType};
use systole_nn::callback::{Callback, EarlyStopping, FitCx};
use systole_nn::layers::dense;
use systole_nn::loss::mean_squared_error;
use systole_nn::optimizer::sgd;
use systole_nn::{
    BackupAndRestore, BatchSizeFinder, Compile, Fit, KeepBest, Limit, Model, max_time, needed_by_step,
};
use systole_runtime::backend;
use systole_testing::assert_error;

/// 40 samples in batches of 4; y = 2x + 1.
fn line() -> Dataset {
    let x: Vec<f32> = (0..40).map(|i| i as f32 / 40.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 2.0 * x + 1.0).collect();
    let column = |v: &[f32]| Literal::from_slice([40, 1], v).unwrap();
    Dataset::from_tensor_slices([("x", column(&x)), ("label", column(&y))]).unwrap()
}

fn batches() -> Dataset {
    line().shuffle(40, 7).batch(4)
}

fn model() -> Model {
    let mut model = Model::sequential([dense(1)]);
    let backend = Some(backend("ref").unwrap());
    let compile =
        Compile { optimizer: sgd(0.3), loss: mean_squared_error(), backend, seed: 5, ..Default::default() };
    model.compile(compile).unwrap();
    model
}

/// The number of samples is the largest power of two whose step fits, by the plan, and one that does not fit is refused.
#[test]
fn the_largest_batch_that_fits_is_found() {
    let mut model = Model::sequential([dense(64).activation("relu"), dense(1)]);
    systole_runtime::register(systole_cpu::provider());
    let backend = Some(backend("cpu").unwrap());
    model
        .compile(Compile { optimizer: sgd(0.3), loss: mean_squared_error(), backend, ..Default::default() })
        .unwrap();
    model.build(&[TensorType::new(DType::F32, [256])]).unwrap();
    let mut needs = |batch: usize| needed_by_step(&*model.train_executable(batch).unwrap(), true).unwrap();
    let (small, large) = (needs(256), needs(512));
    let within =
        |memory: f64| BatchSizeFinder { memory: Some(memory as u64), margin: 0.0, ..Default::default() };
    let found = model.find_batch_size(within((small + large) / 2.0)).unwrap();
    assert_eq!((found.batch_size, found.needed, found.is_most), (256, small as u64, false));
    let most = BatchSizeFinder { max_val: 64, ..within(large) };
    assert_eq!(model.find_batch_size(most).map(|f| (f.batch_size, f.is_most)).unwrap(), (64, true));
    assert_eq!(model.find_batch_size(within(1e4)).unwrap_err().kind(), ErrorKind::Unsupported);
    // What the computer has is what is free there.
    assert!(model.find_batch_size(BatchSizeFinder::default()).unwrap().batch_size > 256);
}

fn quiet() -> Fit {
    Fit { verbose: 0, ..Default::default() }
}

fn weights(model: &Model) -> Vec<Vec<u8>> {
    model.weights().iter().map(|(_, w)| w.to_literal().unwrap().bytes().to_vec()).collect()
}

#[test]
fn limits_are_counts_or_shares() {
    assert_eq!("1".parse::<Limit>().unwrap(), Limit::Batches(1));
    assert_eq!("1.0".parse::<Limit>().unwrap(), Limit::Share(1.0));
    for wrong in ["1.5", "-1", "few", "NaN"] {
        let e = wrong.parse::<Limit>().unwrap_err().to_string();
        assert!(e.contains(wrong) && e.contains("0.1"), "{e}");
    }
    let of = |text: &str, steps| text.parse::<Limit>().unwrap().of("limit", &batches(), steps);
    assert_eq!(
        [of("3", None), of("30", None), of("0.25", None), of("0.5", Some(4))].map(Result::unwrap),
        [3, 10, 2, 2]
    );
    let endless = batches().repeat();
    assert_eq!(Limit::Batches(3).of("limit", &endless, None).unwrap(), 3);
    let e = Limit::Share(0.5).of("limit_val_batches", &endless, None).unwrap_err().to_string();
    assert!(e.contains("limit_val_batches = 10"), "{e}");
    assert_eq!(max_time("01:00:00:02").unwrap(), Duration::from_secs(86_402));
    for wrong in ["12", "00:00:00:00", "1:2:3", "a:b:c:d", "99999999999999999999:0:0:0"] {
        assert!(max_time(wrong).unwrap_err().to_string().contains("half a day"), "{wrong}");
    }
}

#[test]
fn an_epoch_has_as_many_batches_as_the_limit_leaves() {
    let steps = |fit: Fit| {
        let mut m = model();
        let fit = Fit { epochs: 2, validation: Some(line().batch(4)), ..fit };
        let history = m.fit(&batches(), Fit { verbose: 0, ..fit }).unwrap();
        (m.steps(), history.get("val_loss").len(), history.samples)
    };
    let train = |text: &str| Fit { limit_train_batches: Some(text.parse().unwrap()), ..quiet() };
    assert_eq!(steps(train("3")), (6, 2, 24));
    assert_eq!(steps(train("0.5")), (10, 2, 40));
    assert_eq!(steps(Fit { steps_per_epoch: Some(4), ..train("0.5") }), (4, 2, 16));
    assert_eq!(steps(Fit { limit_val_batches: Some(Limit::Batches(0)), ..train("2") }), (4, 0, 16));
    let e = model().fit(&batches(), train("0.01")).unwrap_err().to_string();
    assert!(e.contains("limit_train_batches"), "{e}");
    // A limited validation is of the first batches.
    let mut m = model();
    let limited =
        Fit { limit_val_batches: Some(Limit::Batches(2)), validation: Some(line().batch(4)), ..quiet() };
    let history = m.fit(&batches(), limited).unwrap();
    let direct = m.evaluate_steps(&line().batch(4), Some(2)).unwrap();
    assert_eq!(history.last()["val_loss"], direct["loss"]);
    assert_ne!(m.evaluate(&line().batch(4)).unwrap()["loss"], direct["loss"]);
}

#[test]
fn overfitting_takes_the_same_batches_in_every_epoch() {
    let fit = |epochs| Fit {
        epochs,
        overfit_batches: Some(Limit::Batches(1)),
        validation: Some(line().batch(4)),
        ..quiet()
    };
    let mut m = model();
    let history = m.fit(&batches(), fit(400)).unwrap();
    assert!(m.steps() == 400 && history.last()["loss"] < 1e-6, "{:?}", history.last());
    // The batch of the first epoch, and no other.
    let mut by_hand = model();
    let first = batches().take(1);
    for _ in 0..3 {
        let sample = first.iter_epoch(0).next().unwrap().unwrap();
        let batch = systole_nn::Batch::from_sample(&sample, &["x".into()]).unwrap();
        by_hand.train_on_batch(&batch).unwrap();
    }
    let mut three = model();
    three.fit(&batches(), fit(3)).unwrap();
    assert_eq!(weights(&three), weights(&by_hand));
}

/// Counts its calls.
struct Counting(Arc<Mutex<usize>>);

impl Callback for Counting {
    fn on_train_batch_end(&mut self, _: &mut FitCx<'_>) -> Result<()> {
        *self.0.lock().unwrap() += 1;
        Ok(())
    }
}

#[test]
fn a_trial_keeps_nothing() {
    let dir = std::env::temp_dir().join(format!("systole-trial-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let called = Arc::new(Mutex::new(0));
    let mut m = model();
    let fit = Fit {
        epochs: 50,
        fast_dev_run: Some(2),
        validation: Some(line().batch(4)),
        validation_freq: 10,
        callbacks: vec![Box::new(EarlyStopping::new("no such value", 1)), Box::new(Counting(called.clone()))],
        backup: Some(BackupAndRestore::new(dir.join("backup"))),
        best: Some(KeepBest::new(dir.join("best.safetensors"), "val_loss")),
        ..quiet()
    };
    let history = m.fit(&batches(), fit).unwrap();
    assert_eq!((m.steps(), history.epochs.len(), history.get("val_loss").len()), (2, 1, 1));
    assert_eq!((*called.lock().unwrap(), std::fs::read_dir(&dir).unwrap().count()), (0, 0));
    std::fs::remove_dir_all(&dir).unwrap();
    let e = model().fit(&batches(), Fit { fast_dev_run: Some(0), ..quiet() }).unwrap_err().to_string();
    assert!(e.contains("fast_dev_run is 0"), "{e}");
}

#[test]
fn the_loop_alone_keeps_nothing_and_trains_the_same() {
    let dir = std::env::temp_dir().join(format!("systole-barebones-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let called = Arc::new(Mutex::new(0));
    let fit = |barebones| Fit {
        epochs: 3,
        barebones,
        callbacks: vec![Box::new(Counting(called.clone()))],
        backup: Some(BackupAndRestore::new(dir.join("backup"))),
        detect_anomaly: Some(dir.join("anomaly.npz")),
        ..quiet()
    };
    let (mut alone, mut whole) = (model(), model());
    let history = alone.fit(&batches(), fit(true)).unwrap();
    assert_eq!((alone.steps(), history.epochs.len(), *called.lock().unwrap()), (30, 3, 0));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    whole.fit(&batches(), fit(false)).unwrap();
    assert!(*called.lock().unwrap() > 0 && weights(&alone) == weights(&whole));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn validation_that_cannot_run_is_told_before_the_first_step() {
    let wide = Literal::from_slice([4, 2], &[0f32; 8]).unwrap();
    let wrong = Dataset::from_tensor_slices([("x", wide.clone()), ("label", wide)]).unwrap().batch(4);
    let mut m = model();
    m.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [1])]).unwrap();
    let fit = |n| Fit { num_sanity_val_steps: n, validation: Some(wrong.clone()), ..quiet() };
    assert_error(&m.fit(&batches(), fit(1)).unwrap_err(), ErrorKind::Data, &["num_sanity_val_steps"]);
    assert_eq!(m.steps(), 0);
    assert!(m.fit(&batches(), fit(0)).is_err() && m.steps() == 10);
    // What was looked at before changes nothing.
    let (mut with, mut without) = (model(), model());
    let fit = |n| Fit { num_sanity_val_steps: n, validation: Some(line().batch(4)), epochs: 2, ..quiet() };
    let a = with.fit(&batches(), fit(2)).unwrap();
    let b = without.fit(&batches(), fit(0)).unwrap();
    assert_eq!((weights(&with), a.epochs), (weights(&without), b.epochs));
}

#[test]
fn time_ends_a_run_over_all_its_starts() {
    let dir = std::env::temp_dir().join(format!("systole-max-time-{}", std::process::id()));
    let fit = |millis| Fit {
        epochs: 1_000_000,
        max_time: Some(Duration::from_millis(millis)),
        backup: Some(BackupAndRestore::new(&dir)),
        ..quiet()
    };
    let mut m = model();
    let history = m.fit(&batches(), fit(300)).unwrap();
    assert!(history.stopped_because.unwrap().contains("0.3 s"));
    let steps = m.steps();
    assert!(steps > 0);
    // The run is over, whoever starts it again.
    let mut again = model();
    again.fit(&batches(), fit(300)).unwrap();
    assert_eq!((again.steps(), weights(&again)), (steps, weights(&m)));
    std::fs::remove_dir_all(&dir).unwrap();
}
