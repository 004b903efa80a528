//! Custom losses and metrics: train, weight, mask, run on several devices, resume, save and load like built-in ones.

use serde_json::json;
use std::path::PathBuf;
use systole_data::{Dataset, Sample};
use systole_dist::Strategy;
use systole_ir::DType::{self, F32, F64, I32};
use systole_ir::{Error, ErrorKind, Literal, Result, Tensor, TensorType};
use systole_nn::callback::{Callback, FitCx};
use systole_nn::layers::{CustomObjects, dense};
use systole_nn::loss::{CustomLoss, Loss, mean_absolute_error, mean_squared_error};
use systole_nn::metric::{CustomMetric, Metric, sparse_categorical_accuracy};
use systole_nn::optimizer::adam;
use systole_nn::{BackupAndRestore, Compile, Fit, History, Model};
use systole_runtime::{Params, backend};
use systole_testing::assert_error;

/// 24 points and a number for each; `sample_weight` where asked for.
fn data(weighted: bool) -> Dataset {
    let x: Vec<f32> = (0..72).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<f32> = x.chunks(3).map(|c| c[0] * c[1] - c[2]).collect();
    let w: Vec<f32> = (0..24).map(|i| 0.5 + (i % 3) as f32).collect();
    let mut fields = vec![
        ("x", Literal::from_slice([24, 3], &x).unwrap()),
        ("label", Literal::from_slice([24, 1], &y).unwrap()),
    ];
    if weighted {
        fields.push(("sample_weight", Literal::from_slice([24], &w).unwrap()));
    }
    Dataset::from_tensor_slices(fields).unwrap()
}

fn squared() -> Loss {
    Loss::custom("squared", |y_true, y_pred| {
        let error = y_true - y_pred;
        (&error * &error).mean(&[1])
    })
}

/// Maximum error so far, starting below any error.
#[derive(Debug)]
struct WorstError;

impl CustomMetric for WorstError {
    fn name(&self) -> &str {
        "worst_error"
    }
    fn state(&self) -> Params<Literal> {
        [("worst".to_string(), Literal::scalar(F64, -1.0))].into_iter().collect()
    }
    fn update(&self, state: &Params, y_true: &Tensor, y_pred: &Tensor, _: Option<&Tensor>) -> Params {
        let worst = (y_true - y_pred).abs().reduce_max(&[0, 1]).convert(F64);
        state.map(|_, seen| seen.maximum(&worst))
    }
    fn result(&self, state: &Params<Literal>) -> f64 {
        state["worst"].to_f64s()[0]
    }
}

/// `|t − p|ᵖ`; labels below −5 count for nothing.
#[derive(Debug)]
struct PowerLoss {
    power: f64,
}

impl CustomLoss for PowerLoss {
    fn name(&self) -> &str {
        "power_loss"
    }
    fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        let error = (y_true - y_pred).abs();
        error.power(&error.scalar_like(self.power)).mean(&[1])
    }
    fn mask(&self, y_true: &Tensor) -> Option<Tensor> {
        Some(y_true.greater(&y_true.scalar_like(-5.0)))
    }
    fn config(&self) -> serde_json::Value {
        json!({ "power": self.power })
    }
}

fn within() -> Metric {
    Metric::custom("within_a_half", |y_true, y_pred| {
        let error = (y_true - y_pred).abs();
        error.less(&error.scalar_like(0.5)).convert(F32).mean(&[1])
    })
}

fn compiled(loss: Loss, metrics: Vec<Metric>, strategy: Strategy) -> Model {
    let mut model = Model::sequential([dense(8).activation("tanh"), dense(1)]);
    model
        .compile(Compile {
            optimizer: adam(0.02),
            loss,
            weighted_metrics: metrics.clone(),
            metrics,
            backend: Some(backend("ref").unwrap()),
            strategy,
            seed: 7,
            ..Default::default()
        })
        .unwrap();
    model
}

fn one(loss: Loss, metrics: Vec<Metric>) -> Model {
    compiled(loss, metrics, Strategy::one_device())
}

fn fit(model: &mut Model, data: &Dataset) -> History {
    let options = Fit { epochs: 3, validation: Some(data.batch(7)), verbose: 0, ..Default::default() };
    model.fit(&data.batch(8), options).unwrap()
}

/// The values of all epochs, whatever they are called.
fn values(history: &History) -> Vec<Vec<f64>> {
    history.epochs.iter().map(|logs| logs.iter().map(|(_, v)| v).collect()).collect()
}

#[test]
fn they_train_as_built_in_ones_to_the_bit() {
    for weighted in [false, true] {
        let metric = Metric::custom("distance", |y_true, y_pred| (y_true - y_pred).abs().mean(&[1]));
        let mut own = one(squared(), vec![metric]);
        let mut built_in = one(mean_squared_error(), vec![mean_absolute_error().into()]);
        let histories = [fit(&mut own, &data(weighted)), fit(&mut built_in, &data(weighted))];
        assert_eq!(values(&histories[0]), values(&histories[1]), "weighted: {weighted}");
        assert_eq!(own.weight("dense/kernel").unwrap(), built_in.weight("dense/kernel").unwrap());
        let last = histories[0].last();
        assert!(last.get("distance").is_some() && last.get("val_weighted_distance").is_some(), "{last:?}");
        let evaluated = own.evaluate(&data(weighted).batch(5)).unwrap();
        assert!((evaluated["loss"] - last["val_loss"]).abs() < 1e-6);
    }
}

#[test]
fn labels_without_the_last_axis_and_scalars_do_as_in_keras() {
    let flat = data(false).map(|s: Sample| s.map("label", |y| y.squeeze(-1)));
    let mut narrow = one(Loss::custom("squared", |t, p| (t - p) * (t - p)), vec![within()]);
    let narrow = fit(&mut narrow, &flat.map(|s: Sample| s.map("label", |y| y.expand_dims(-1))));
    let mut squeezed = one(squared(), vec![]);
    let loss = |h: &History| h.epochs.iter().map(|l| l["loss"]).collect::<Vec<_>>();
    assert_eq!(loss(&fit(&mut squeezed, &flat)), loss(&narrow), "[B] − [B, 1] is not [B, B]");
    let mut whole = one(Loss::custom("whole", |t, p| ((t - p) * (t - p)).mean_all()), vec![]);
    for (a, b) in loss(&fit(&mut whole, &data(false))).iter().zip(loss(&narrow)) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

#[test]
fn masks_and_weights_count() {
    let loss = Loss::from(PowerLoss { power: 1.0 });
    let value = |y: &[f32], w: Option<&[f32]>| {
        let f =
            systole_runtime::jit(|(y, p, w): (Tensor, Tensor, Vec<Tensor>)| loss.value(&y, &p, w.first()));
        let literal = |v: &[f32], dims: &[usize]| Literal::from_slice(dims, v).unwrap();
        let y = literal(y, &[y.len(), 1]);
        let p = Literal::zeros(y.ty().clone());
        let w = w.map(|w| literal(w, &[w.len()]).into()).into_iter().collect();
        f.on(backend("ref").unwrap()).call((y.into(), p.into(), w)).unwrap().to_f64().unwrap()
    };
    assert!((value(&[1.0, 3.0], None) - 2.0).abs() < 1e-6);
    assert!((value(&[1.0, 3.0, -9.0, -9.0], None) - 2.0).abs() < 1e-6, "what is masked counts for nothing");
    assert!((value(&[1.0, 3.0, -9.0, -9.0], Some(&[2.0, 1.0, 5.0, 5.0])) - 2.5).abs() < 1e-6);
}

#[test]
fn metrics_with_a_state_start_anew_with_each_epoch() {
    let mut model = one(squared(), vec![WorstError.into(), within()]);
    let history = fit(&mut model, &data(false));
    let all = model.predict(&data(false).batch(24)).unwrap().to_f64s();
    let worst = data(false)
        .iter()
        .zip(&all)
        .map(|(s, p)| (s.unwrap().get("label").unwrap().to_f64s()[0] - p).abs())
        .fold(0.0, f64::max);
    assert!((history.last()["val_worst_error"] - worst).abs() < 1e-6);
    let easy = data(false).take(1).batch(1);
    assert!(model.evaluate(&easy).unwrap()["worst_error"] < worst, "nothing is left of an earlier pass");
    let none = Metric::from(WorstError);
    assert_eq!(none.result(&none.initial(&[])), -1.0);
    assert_eq!(none.state(&[])["worst"], TensorType::scalar(F64));
}

#[test]
fn several_devices_do_as_one() {
    let metrics = || vec![Metric::from(WorstError), within()];
    let alone = fit(&mut one(Loss::from(PowerLoss { power: 1.5 }), metrics()), &data(true));
    for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
        let mut model = compiled(PowerLoss { power: 1.5 }.into(), metrics(), strategy.devices(2));
        let split = fit(&mut model, &data(true));
        for (a, b) in values(&alone).concat().into_iter().zip(values(&split).concat()) {
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} and {b}");
        }
    }
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("systole-custom-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Ends the run with an error after a step, as a kill would.
struct Killer(u64);

impl Callback for Killer {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.model.steps() == self.0 { Err(Error::new(ErrorKind::Io, "killed")) } else { Ok(()) }
    }
}

#[test]
fn a_killed_run_goes_on_as_if_it_had_not_been() {
    let model = || one(PowerLoss { power: 1.5 }.into(), vec![WorstError.into(), within()]);
    let run = |dir: &PathBuf, kill: u64| {
        let mut m = model();
        let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(Killer(kill))];
        let backup = Some(BackupAndRestore::new(dir));
        let options = Fit { epochs: 3, callbacks, backup, verbose: 0, ..Default::default() };
        m.fit(&data(true).shuffle(24, 5).batch(8), options)
            .map(|h| (values(&h), m.weight("dense/kernel").unwrap()))
    };
    let (whole, killed) = (folder("whole"), folder("killed"));
    let expected = run(&whole, 0).unwrap();
    assert!(run(&killed, 5).unwrap_err().to_string().contains("killed"));
    assert_eq!(run(&killed, 0).unwrap(), expected);
    let mut other = one(PowerLoss { power: 2.0 }.into(), vec![WorstError.into(), within()]);
    let (backup, callbacks) = (Some(BackupAndRestore::new(&killed)), vec![Box::new(Killer(0)) as _]);
    let options = Fit { epochs: 5, backup, callbacks, verbose: 0, ..Default::default() };
    let e = other.fit(&data(true).shuffle(24, 5).batch(8), options);
    assert!(e.unwrap_err().to_string().contains("loss"), "other arguments are another run");
}

#[test]
fn model_files_keep_their_names_and_say_what_they_need() {
    let mut model = one(PowerLoss { power: 1.5 }.into(), vec![within()]);
    fit(&mut model, &data(false));
    let path = folder("file").join("m.safetensors");
    model.save(&path).unwrap();
    let error = |known: &CustomObjects| Model::load_with(&path, known).unwrap_err().to_string();
    let e = Model::load(&path).unwrap_err().to_string();
    for part in [
        "unknown custom loss `power_loss`",
        "not their code",
        "CustomObjects::new().loss(",
        "uncompiled()",
        "m.safetensors",
    ] {
        assert!(e.contains(part), "{part}: {e}");
    }
    let e = error(&CustomObjects::new().loss(PowerLoss { power: 1.5 }));
    assert!(e.contains("`within_a_half`") && e.contains(".metric("), "{e}");
    let e = error(&CustomObjects::new().loss(PowerLoss { power: 9.0 }).metric(within()));
    assert!(e.contains(r#"{"power":1.5}"#) && e.contains(r#"{"power":9.0}"#), "{e}");

    let known = CustomObjects::new().loss(PowerLoss { power: 1.5 }).metric(within());
    let mut again = Model::load_with(&path, &known).unwrap();
    let x = Literal::from_slice([1, 3], &[0.3f32, -0.7, 0.1]).unwrap();
    let expected = model.predict_on_batch(&x).unwrap();
    assert_eq!(again.predict_on_batch(&x).unwrap(), expected);
    assert_eq!(
        values(&fit(&mut again, &data(false))),
        values(&fit(&mut model, &data(false))),
        "it trains on"
    );

    let mut only = Model::load_with(&path, &CustomObjects::new().uncompiled()).unwrap();
    assert_eq!(only.predict_on_batch(&x).unwrap(), expected);
    assert_eq!(Model::load_to_predict(&path).unwrap().predict_on_batch(&x).unwrap(), expected);
    let e = only.evaluate(&data(false).batch(8)).unwrap_err();
    assert_error(&e, ErrorKind::Config, &[]);
}

#[test]
fn files_of_built_in_ones_are_as_they_were() {
    let huber = json!({"class_name": "Huber", "config": {"delta": 2.0}});
    assert_eq!(serde_json::from_value::<Loss>(huber.clone()).unwrap(), Loss::Huber { delta: 2.0 });
    assert_eq!(serde_json::to_value(Loss::Huber { delta: 2.0 }).unwrap(), huber);
    let own = json!({"class_name": "Custom", "config": {"name": "power_loss", "config": {"power": 1.5}}});
    assert_eq!(serde_json::to_value(Loss::from(PowerLoss { power: 1.5 })).unwrap(), own);
    assert_eq!(serde_json::from_value::<Loss>(own).unwrap(), PowerLoss { power: 1.5 }.into());
    assert_ne!(Loss::from(PowerLoss { power: 1.5 }), PowerLoss { power: 2.0 }.into());
    let metric = json!({"class_name": "Custom", "config": {"name": "within_a_half", "config": null}});
    assert_eq!(serde_json::to_value(within()).unwrap(), metric);
}

#[test]
fn names_are_keys_of_the_logs() {
    for name in ["", "a/b", "loss"] {
        let mut model = Model::sequential([dense(1)]);
        let e = model.compile(Compile { loss: Loss::custom(name, |t, p| t - p), ..Default::default() });
        assert_error(&e.unwrap_err(), ErrorKind::Config, &[name]);
        let metrics = vec![Metric::custom(name, |t, p| t - p)];
        let e = model.compile(Compile { metrics, ..Default::default() }).unwrap_err();
        assert_error(&e, ErrorKind::Config, &[name]);
    }
}

/// Cross-entropy of class numbers, written down.
#[derive(Debug)]
struct Nll;

impl CustomLoss for Nll {
    fn name(&self) -> &str {
        "nll"
    }
    fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        -(y_pred.log_softmax() * y_true.one_hot(y_pred.dim(-1), F32)).sum(&[1])
    }
    fn label(&self, output: &TensorType) -> TensorType {
        TensorType::new(I32, &output.shape.dims()[..output.rank() - 1])
    }
}

#[test]
fn class_numbers_come_as_they_are() {
    assert_eq!(
        Metric::resolve("accuracy", &Nll.into(), &[8, 3]).unwrap(),
        sparse_categorical_accuracy(),
        "accuracy is that of the labels"
    );
    let labels: Vec<i32> = (0..24).map(|i| i % 3).collect();
    let x: Vec<f32> = labels.iter().flat_map(|&l| [l as f32, 1.0]).collect();
    let fields = [
        ("x", Literal::from_slice([24, 2], &x).unwrap()),
        ("label", Literal::from_slice([24], &labels).unwrap()),
    ];
    let classes = Dataset::from_tensor_slices(fields).unwrap();
    let mut model = Model::sequential([dense(3)]);
    model
        .compile(Compile {
            loss: Nll.into(),
            optimizer: adam(0.3),
            backend: Some(backend("ref").unwrap()),
            ..Default::default()
        })
        .unwrap();
    model.build(&[TensorType::new(F32, [2])]).unwrap();
    model.train_graph(4).unwrap();
    let history = fit(&mut model, &classes);
    assert!(history.last()["loss"] < history.epochs[0]["loss"]);
    assert_eq!(DType::I32, classes.element_spec().unwrap().get("label").unwrap().dtype);
}
