//! Errors reported before the first training step: infinite data, invalid path templates, invalid arguments.
//!
//! On the reference backend with tiny data.

use systole_data::Dataset;
use systole_ir::{Literal, Result};
use systole_nn::callback::*;
use systole_nn::layers::*;
use systole_nn::loss::{binary_crossentropy, categorical_crossentropy, sparse_categorical_crossentropy};
use systole_nn::metric::sparse_categorical_accuracy;
use systole_nn::optimizer::{Optimizer, sgd};
use systole_nn::schedule::Schedule;
use systole_nn::{Compile, Fit, History, Model};
use systole_runtime::backend;

fn points() -> Dataset {
    let x: Vec<f32> = (0..20).flat_map(|i| [i as f32 / 10.0 - 1.0, 0.5]).collect();
    let labels: Vec<i32> = (0..20).map(|i| i / 10).collect();
    let x = Literal::from_slice([20, 2], &x).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", Literal::from_slice([20], &labels).unwrap())]).unwrap()
}

fn model(optimizer: Optimizer) -> Model {
    let mut model = Model::sequential([dense(2).activation("softmax")]);
    let (loss, metrics) = (sparse_categorical_crossentropy(), vec![sparse_categorical_accuracy()]);
    let backend = Some(backend("ref").unwrap());
    model.compile(Compile { optimizer, loss, metrics, backend, ..Default::default() }).unwrap();
    model
}

fn quiet() -> Fit {
    Fit { verbose: 0, ..Default::default() }
}

fn with(callback: impl Callback + 'static, more: Fit) -> Result<History> {
    model(sgd(0.1)).fit(&points().batch(10), Fit { callbacks: vec![Box::new(callback)], ..more })
}

#[track_caller]
fn told<T>(result: Result<T>, parts: &[&str]) {
    let e = result.err().expect("an error").to_string();
    for part in parts {
        assert!(e.contains(part), "`{part}` is missing: {e}");
    }
}

#[test]
fn data_without_an_end_are_refused() {
    let endless = points().batch(10).repeat();
    let unknown = points().filter(|_| true).repeat().batch(10);
    for data in [&endless, &unknown] {
        told(model(sgd(0.1)).fit(data, quiet()), &["never ends", "steps_per_epoch"]);
        told(model(sgd(0.1)).evaluate(data), &["never ends", "evaluate_steps"]);
        told(model(sgd(0.1)).predict(data), &["never ends", "take"]);
        let validation = Fit { validation: Some(data.clone()), ..quiet() };
        told(
            model(sgd(0.1)).fit(&points().batch(10), validation),
            &["the validation never ends", "validation_steps"],
        );
    }
    let few =
        Fit { steps_per_epoch: Some(3), validation: Some(unknown), validation_steps: Some(1), ..quiet() };
    model(sgd(0.1)).fit(&endless, few).unwrap();
    told(model(sgd(0.1)).fit(&points(), quiet()), &["batch", "add .batch(n)"]);
}

#[test]
fn checkpoints_are_checked_first_and_make_their_folder() {
    let dir = std::env::temp_dir().join(format!("systole-early-{}", std::process::id()));
    let path = |name: &str| dir.join("new/folder").join(name).display().to_string();
    told(with(ModelCheckpoint::new(&path("{batch}")), quiet()), &["{batch}", "after epochs"]);
    told(with(ModelCheckpoint::new(&path("{val_lost}")), quiet()), &["`val_lost` is not measured"]);
    told(with(ModelCheckpoint::new(&path("{epoch:q}")), quiet()), &["not a number format"]);
    assert!(!dir.exists());
    let four = Fit { epochs: 4, validation: Some(points().batch(10)), validation_freq: 2, ..quiet() };
    with(ModelCheckpoint::new(&path("{epoch:>3}-{val_loss:.1e}.safetensors")), four).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(dir.join("new/folder"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    // Epochs without a validation have no name for the file.
    assert!(names.len() == 2 && names[0].starts_with("  2-") && names[1].starts_with("  4-"), "{names:?}");
    assert!(names[0].contains("e-01") || names[0].contains("e+00"), "{names:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn arguments_without_a_meaning_are_refused() {
    for amount in [1.5, -0.5, f64::NAN] {
        for loss in [categorical_crossentropy(), binary_crossentropy()] {
            let loss = loss.label_smoothing(amount);
            let mut m = Model::sequential([dense(2)]);
            told(m.compile(Compile { loss, ..Default::default() }), &["label_smoothing", "0 to 1"]);
        }
    }
    told(with(ReduceLROnPlateau::new("loss").factor(2.0), quiet()), &["factor is 2", "decrease"]);
    let scheduled = || model(sgd(Schedule::cosine_decay(0.1, 10)));
    let callbacks = || -> [Box<dyn Callback>; 2] {
        [Box::new(ReduceLROnPlateau::new("loss")), Box::new(LearningRateScheduler(|_, rate| rate))]
    };
    for callback in callbacks() {
        let options = Fit { callbacks: vec![callback], ..quiet() };
        told(scheduled().fit(&points().batch(10), options), &["schedule", "learning_rate"]);
    }
    let history = model(sgd(0.1).gradient_accumulation_steps(5)).fit(&points().batch(10), quiet()).unwrap();
    assert!(history.notes.iter().any(|n| n.contains("no weight will change")), "{:?}", history.notes);
}

#[test]
fn a_log_that_is_added_to_keeps_its_columns() {
    let path = std::env::temp_dir().join(format!("systole-early-{}.csv", std::process::id()));
    std::fs::write(&path, "epoch,learning_rate,accuracy,loss\n0,0.1,0.5,2\n").unwrap();
    let history = with(CSVLogger::new(&path).append(true), quiet()).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let last: Vec<&str> = text.lines().last().unwrap().split(',').collect();
    assert_eq!((last.len(), last[2], last[3].is_empty()), (4, "", false), "{text}");
    assert!(
        history.notes.iter().any(|n| n.contains("no column for sparse_categorical_accuracy")),
        "{:?}",
        history.notes
    );
}
