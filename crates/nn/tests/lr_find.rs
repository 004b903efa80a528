//! Learning-rate finder: suggestions match fastai's formulas, and the model is unchanged afterwards.

use systole_data::Dataset;
use systole_ir::{ErrorKind, Literal};
use systole_nn::layers::*;
use systole_nn::loss::mean_squared_error;
use systole_nn::optimizer::{Optimizer, adam, sgd};
use systole_nn::schedule::Schedule;
use systole_nn::{Compile, Fit, LrFind, LrFindResult, Model, Precision, SUGGESTIONS};
use systole_runtime::backend;
use systole_testing::assert_error;

/// A loss that falls in the middle, rises at the end and trembles. The numbers are from fastai's functions in NumPy.
#[test]
fn suggestions_are_fastais() {
    let n = 100;
    let rates: Vec<f64> = (0..n).map(|i| 1e-7 * 1e8f64.powf(i as f64 / (n - 1) as f64)).collect();
    let losses = rates.iter().enumerate().map(|(i, rate)| {
        let x = rate.log10();
        let (fall, rise) = (1.5 / (1.0 + (-2.2 * (x + 2.6)).exp()), (x + 0.6).max(0.0).powi(2) * 1.2);
        2.3 - fall + rise + 0.01 * (i as f64 * 1.7).sin()
    });
    let found = LrFindResult { losses: losses.collect(), rates, num_it: n, stopped_because: None };
    let expected = [0.002310129700083158, 0.000756463327554629, 0.029150530628251757, 0.001917910261672489];
    for (name, expected) in SUGGESTIONS.into_iter().zip(expected) {
        let rate = found.suggestion(name).unwrap();
        assert!((rate / expected - 1.0).abs() < 1e-9, "{name}: {rate:e}, fastai has {expected:e}");
    }
    assert_eq!(found.suggestion("best"), None);

    let short =
        LrFindResult { rates: vec![1e-3; 12], losses: vec![1.0; 12], num_it: 20, stopped_because: None };
    assert!(short.suggestion("slide").is_none(), "five points are no slide");
    let spoilt = LrFindResult { losses: [vec![1.0; 40], vec![f64::NAN; 60]].concat(), ..found };
    assert_eq!(spoilt.curve().1.len(), 30, "nothing after the first NaN counts");
}

/// `y = 2·x₀ − x₁` at 32 points.
fn line() -> Dataset {
    let mut s = systole_ir::rng::RandomStream::new(3, 1, 4);
    let x: Vec<f32> = (0..64).map(|_| s.range(-1.0, 1.0)).collect();
    let y: Vec<f32> = x.chunks(2).map(|x| 2.0 * x[0] - x[1]).collect();
    let fields = [
        ("x", Literal::from_slice([32, 2], &x).unwrap()),
        ("label", Literal::from_slice([32, 1], &y).unwrap()),
    ];
    Dataset::from_tensor_slices(fields).unwrap()
}

fn model(optimizer: Optimizer, precision: Precision) -> Model {
    let mut model = Model::sequential([dense(8).activation("tanh"), batch_normalization(), dense(1)]);
    let compile = Compile {
        optimizer,
        loss: mean_squared_error(),
        precision,
        backend: Some(backend("ref").unwrap()),
        seed: 5,
        ..Default::default()
    };
    model.compile(compile).unwrap();
    model
}

fn bits(model: &Model) -> Vec<Literal> {
    model.weights().iter().map(|(_, b)| b.to_literal().unwrap()).collect()
}

#[test]
fn weights_optimizer_step_and_schedule_are_what_they_were() {
    let data = line().shuffle(32, 3).batch(8);
    for precision in [Precision::Float32, Precision::MixedFloat16] {
        let optimizer = adam(Schedule::cosine_decay(0.05, 100)).gradient_accumulation_steps(2);
        let quiet = || Fit { epochs: 1, verbose: 0, ..Default::default() };
        let (mut straight, mut looked) = (model(optimizer.clone(), precision), model(optimizer, precision));
        straight.fit(&data, quiet()).unwrap();
        looked.fit(&data, quiet()).unwrap();
        let found = looked.lr_find(&data, LrFind { end_lr: 1.0, num_it: 30, ..Default::default() }).unwrap();
        assert_eq!((found.rates.len(), found.losses.len()), (30, 30), "{:?}", found.stopped_because);
        assert_eq!((found.rates[0], looked.steps()), (1e-7, straight.steps()));
        assert_eq!(looked.learning_rate(), straight.learning_rate());
        assert_eq!(bits(&looked), bits(&straight));
        // Slots too: training goes on as if nothing had been.
        let go_on = || Fit { initial_epoch: 1, epochs: 3, verbose: 0, ..Default::default() };
        straight.fit(&data, go_on()).unwrap();
        looked.fit(&data, go_on()).unwrap();
        assert_eq!(bits(&looked), bits(&straight));
    }
}

#[test]
fn what_is_found_trains_and_divergence_ends_the_search() {
    let data = line().batch(8);
    let mut m = model(sgd(0.0), Precision::Float32);
    let found = m.lr_find(&data, LrFind::default()).unwrap();
    assert!(found.rates.len() < 100 && found.stopped_because.is_some(), "rate 10 is too much for any loss");
    let rate = found.suggestion("valley").unwrap();
    assert!((1e-4..1.0).contains(&rate), "{rate}");
    m.set_learning_rate(rate);
    let history = m.fit(&data, Fit { epochs: 60, verbose: 0, ..Default::default() }).unwrap();
    assert!(history.last()["loss"] < 0.5 * history.epochs[0]["loss"], "{rate}");

    let wrong = [
        (LrFind { start_lr: 0.0, ..Default::default() }, ["start_lr", "0"]),
        (LrFind { start_lr: 1.0, end_lr: 0.1, ..Default::default() }, ["end_lr", "0.1"]),
        (LrFind { num_it: 3, ..Default::default() }, ["num_it", "3"]),
    ];
    for (options, names) in wrong {
        assert_error(&m.lr_find(&data, options).unwrap_err(), ErrorKind::Config, &names);
    }
    let e = m.lr_find(&line().take(0).batch(8), LrFind::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data, "{e}");
}
