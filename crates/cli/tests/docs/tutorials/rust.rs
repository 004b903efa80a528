//! Rust versions of the tutorial page's lines, run on small data.

use std::path::Path;
use systole::data::DatasetOptions;
use systole::data::format::example::parse_example;
use systole::data::format::png;
use systole::prelude::*;

/// Encodes a PNG image of a class: bright columns or bright rows.
pub fn picture(kind: usize, i: usize) -> Vec<u8> {
    let pixel = |p: usize| [p % 20, p / 20][kind] / 4 % 2 * 200 + (p * 7 + i * 13) % 40;
    let bytes: Vec<u8> = (0..400).map(|p| pixel(p) as u8).collect();
    png::to_bytes(&Literal::from_slice([20, 20, 1], &bytes).unwrap()).unwrap()
}

/// 48 images of ten classes, with one bright column per class.
fn pictures() -> Dataset {
    let labels: Vec<i32> = (0..48).map(|i| i % 10).collect();
    let pixel = |p: usize| if (p % 28) / 2 == (p / 784) % 10 { 200 } else { (p * 31 % 60) as u8 };
    let pixels: Vec<u8> = (0..48 * 784).map(pixel).collect();
    let images = Literal::from_slice([48, 28, 28, 1], &pixels).unwrap();
    let labels = Literal::from_slice([48], &labels).unwrap();
    Dataset::from_tensor_slices([("image", images), ("label", labels)]).unwrap()
}

fn floats() -> Dataset {
    pictures().map(|s: Sample| s.map("image", |x| x.cast(F32) / 255.0))
}

fn network(strategy: Strategy) -> Model {
    let mut model = Sequential::new([
        conv2d(4, (3, 3)),
        max_pooling2d((2, 2)),
        activation("relu"),
        flatten(),
        dense(10),
        activation("softmax"),
    ]);
    let compile = Compile {
        optimizer: adam(1e-3),
        loss: sparse_categorical_crossentropy(),
        metrics: vec![sparse_categorical_accuracy()],
        strategy,
        ..default()
    };
    model.compile(compile).unwrap();
    model
}

fn fit() -> Fit {
    Fit { epochs: 5, validation: Some(floats().batch(16)), validation_freq: 5, verbose: 0, ..default() }
}

pub fn the_tutorials_network_is_trained() {
    let mut model = network(Strategy::one_device());
    let history = model.fit(&floats().shuffle(48, 1).batch(16).prefetch(AUTOTUNE), fit()).unwrap();
    let of = |epoch: usize| history.epochs[epoch]["loss"];
    assert!(of(4) < of(0) && history.last()["val_loss"].is_finite(), "{:?}", history.epochs);
    let told = model.predict(&floats().batch(16)).unwrap();
    assert_eq!(told.ty().to_string(), "f32[48, 10]");
}

pub fn the_strategy_is_an_argument() {
    let weights = |strategy: Strategy| {
        let mut model = network(strategy);
        model.fit(&floats().batch(16), fit()).unwrap();
        model.weight("dense/bias").unwrap().to_f32s()
    };
    let (one, four) = (weights(Strategy::one_device()), weights(Strategy::data_parallel().devices(4)));
    assert!(one.iter().zip(&four).all(|(a, b)| (a - b).abs() < 1e-5), "{one:?} {four:?}");
}

pub fn a_function_is_compiled() {
    let axpy = jit(|(a, x, y): (Tensor, Tensor, Tensor)| a * x + y);
    let vector = |v: &[f32]| Buffer::from(Literal::from_slice([v.len()], v).unwrap());
    let z = axpy.call((Buffer::scalar(F32, 2.0), vector(&[1., 2.]), vector(&[10., 10.]))).unwrap();
    assert_eq!(z.to_literal().unwrap().to_f32s(), [12., 14.]);
}

pub fn a_loop_of_ones_own_takes_gradients() {
    let step = jit(|(w, x): (Tensor, Tensor)| {
        let (loss, slope) = value_and_grad(|w: &Tensor| (w * &x - 6.0) * (w * &x - 6.0), &w);
        (w - slope * 0.001, loss)
    });
    let mut w = Buffer::scalar(F32, 0.0);
    let mut losses = Vec::new();
    for _ in 0..3 {
        let loss;
        (w, loss) = step.call((w, Buffer::scalar(F32, 2.0))).unwrap();
        losses.push(loss.to_f64().unwrap());
    }
    assert!(losses[0] == 36.0 && losses[1] < losses[0] && losses[2] < losses[1], "{losses:?}");
}

pub fn stages_have_the_same_names() {
    let data = pictures().map(|s| s.map("image", |x| x.cast(F32))).cache();
    let batches = data.shuffle(48, 3).repeat_n(2).batch(32).prefetch(AUTOTUNE);
    let sizes: Vec<usize> =
        batches.iter().map(|b| b.unwrap().get("label").unwrap().ty().shape.dims()[0]).collect();
    assert_eq!(sizes, [32, 32, 32]);
}

pub fn pictures_are_resized_and_scaled() {
    let large = pictures().map(|s| s.map("image", |x| x.resize(224, 224).cast(F32) / 255.0));
    let first = large.iter().next().unwrap().unwrap();
    let pixels = first.get("image").unwrap();
    assert_eq!(pixels.ty().to_string(), "f32[224, 224, 1]");
    assert!(pixels.to_f32s().iter().all(|p| (0.0..=1.0).contains(p)));
}

pub fn records_are_interleaved(folder: &Path) {
    let files = format!("{}/train-*", folder.display());
    let records = Dataset::list_files(&files).unwrap();
    let open = |s: Sample| s.text("path").map(|path| Dataset::tfrecord([path]));
    let features = "image: ui8[28, 28, 1], label: i64[]".parse().unwrap();
    let parsed = records.interleave_parallel(open, 4, 16, AUTOTUNE).map(parse_example(features));
    assert_eq!(parsed.iter().collect::<Result<Vec<_>>>().unwrap().len(), 64);
}

pub fn tuning_explains_itself() {
    let options = DatasetOptions { ram_budget: Some(1 << 24), core_budget: Some(2), ..default() };
    let data = pictures().map_parallel(|s: Sample| Ok(s), AUTOTUNE).batch(8).prefetch(AUTOTUNE);
    let data = data.with_options(options);
    let mut run = data.iter();
    assert_eq!(run.by_ref().count(), 6);
    assert!(!run.explain().is_empty() && !run.freeze().to_string().is_empty());
}

pub fn a_pipeline_is_debugged() {
    let all =
        |data: Dataset| data.iter().map(|s| s.unwrap().get("image").unwrap().to_f32s()).collect::<Vec<_>>();
    let data = floats().shuffle(48, 5).batch(8);
    assert!(all(data.debug()) == all(data), "debug() gives other elements");
}

pub fn callbacks_and_backups_are_kept(folder: &Path) {
    let (log, runs) = (folder.join("log.csv"), folder.join("backups"));
    std::fs::create_dir_all(folder).unwrap();
    let callbacks: Vec<Box<dyn Callback>> =
        vec![Box::new(CSVLogger::new(&log)), Box::new(TerminateOnNaN::new())];
    let backup = Some(BackupAndRestore::new(&runs));
    let history =
        network(Strategy::one_device()).fit(&floats().batch(16), Fit { callbacks, backup, ..fit() }).unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap().lines().count(), history.epochs.len() + 1);
    assert!(runs.read_dir().unwrap().count() > 0);
}
