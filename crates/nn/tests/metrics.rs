//! Metrics against Keras, batch by batch; exact counts beyond what f32 can hold; labels that cannot fit.

mod keras;

use keras::{Fixture, Worst, config, max_relative, name};
use serde_json::{Value, json};
use systole_ir::{DType, GraphBuilder, Literal, Tensor, TensorType};
use systole_nn::loss::{
    Loss, binary_crossentropy, categorical_crossentropy, huber, mean_absolute_error, mean_squared_error,
    sparse_categorical_crossentropy,
};
use systole_nn::metric::*;
use systole_runtime::{Buffer, Params, backend, jit};

/// The metric of a case, with Keras's defaults filled in.
fn metric_of(case: &Value) -> Metric {
    let number = |key: &str, default: f64| case["kwargs"].get(key).map_or(default, |v| v.as_f64().unwrap());
    let thresholds = match &case["kwargs"]["thresholds"] {
        Value::Array(list) => list.iter().map(|v| v.as_f64().unwrap()).collect(),
        one => vec![one.as_f64().unwrap_or(0.5)],
    };
    let k = number("k", 5.0) as usize;
    let kwargs = match case["class"].as_str().unwrap() {
        "BinaryAccuracy" => json!({ "threshold": number("threshold", 0.5) }),
        "TopKCategoricalAccuracy" | "SparseTopKCategoricalAccuracy" => json!({ "k": k }),
        "Precision" | "Recall" => json!({ "thresholds": thresholds }),
        "Mean" => json!({ "name": "mean" }),
        "SparseCategoricalCrossentropy" => return sparse_categorical_crossentropy().into(),
        "BinaryCrossentropy" => return binary_crossentropy().into(),
        "MeanSquaredError" => return mean_squared_error().into(),
        "MeanAbsoluteError" => return mean_absolute_error().into(),
        _ => json!({}),
    };
    serde_json::from_value(config(&case["class"], &kwargs)).unwrap()
}

fn zeros(metric: &Metric) -> Params<Buffer> {
    metric.state().map(|_, ty| Buffer::zeros(ty.clone()))
}

fn results(metric: &Metric, state: &Params<Buffer>) -> Vec<f64> {
    metric.results(&state.map(|_, b| b.to_literal().unwrap()))
}

#[test]
fn every_metric_is_keras_s_after_each_batch() {
    let fixture = Fixture::open("metrics");
    // Keras adds up weights in f32.
    let mut worst = Worst::below(1e-6);
    for case in fixture.list("cases") {
        let metric = metric_of(case);
        let step = jit(|(state, y, p, w): (Params, Tensor, Tensor, Vec<Tensor>)| {
            metric.update(&state, &y, &p, w.first())
        })
        .on(backend("ref").unwrap());
        let expected = fixture.get(&format!("{}/values", name(case)));
        let width = expected.shape()[1..].iter().product::<usize>();
        let mut state = zeros(&metric);
        for batch in 0..3 {
            let part = |part: &str| fixture.find(&format!("{}/batch{batch}/{part}", name(case))).cloned();
            let p = part("y_pred").unwrap();
            let y = part("y_true").unwrap_or_else(|| p.clone());
            let weight = part("sample_weight").into_iter().map(Buffer::from).collect();
            state = step.call((state, y.into(), p.into(), weight)).unwrap();
            let found = results(&metric, &state);
            let row = &expected.to_f64s()[batch * width..(batch + 1) * width];
            worst.see(&format!("{} batch {batch}", name(case)), max_relative(&found, row));
        }
    }
    worst.report("metrics");
}

/// 2²⁴ + 1 samples of 1: a sum in f32 would stop at 2²⁴.
#[test]
fn sums_do_not_stop_at_2_to_the_24() {
    let metric = binary_accuracy();
    let step = jit(|(state, y): (Params, Tensor)| metric.update(&state, &y, &y, None));
    let full = Literal::scalar(DType::F64, (1u64 << 24) as f64);
    let mut state = metric.state().map(|_, _| Buffer::from(full.clone()));
    let one = Literal::from_slice([1], &[1f32]).unwrap();
    state = step.on(backend("ref").unwrap()).call((state, one.into())).unwrap();
    for sum in state.values() {
        assert_eq!(sum.to_f64().unwrap(), ((1u64 << 24) + 1) as f64);
    }
}

#[test]
fn accuracy_is_resolved_as_keras_does() {
    let resolve = |loss: Loss, output: &[usize]| Metric::resolve("accuracy", &loss, output).unwrap();
    assert_eq!(resolve(sparse_categorical_crossentropy(), &[8, 10]), sparse_categorical_accuracy());
    assert_eq!(resolve(categorical_crossentropy(), &[8, 10]), categorical_accuracy());
    assert_eq!(resolve(binary_crossentropy(), &[8, 1]), binary_accuracy());
    assert_eq!(Metric::resolve("acc", &mean_squared_error(), &[8, 1]).unwrap(), binary_accuracy());
    assert_eq!(Metric::resolve("mse", &huber(), &[8, 1]).unwrap(), mean_squared_error().into());
    let message = Metric::resolve("acuracy", &huber(), &[8, 1]).unwrap_err().to_string();
    assert!(message.contains("did you mean `accuracy`"), "{message}");
}

#[test]
fn names_and_configurations_read_back() {
    for name in NAMES.into_iter().skip(1).chain(systole_nn::loss::NAMES) {
        let metric: Metric = name.parse().unwrap();
        assert_eq!(metric.name(), name);
        let text = serde_json::to_string(&metric).unwrap();
        assert_eq!(serde_json::from_str::<Metric>(&text).unwrap(), metric, "{text}");
    }
}

/// Class numbers that are not among the scores, and scores that are no numbers, are misses.
#[test]
fn what_cannot_be_right_is_a_miss() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let p = [[0.1, 0.7, 0.2], [0.1, 0.7, 0.2], [nan, 0.7, 0.2], [0.1, inf, 0.2]];
    let p = Literal::from_slice([4, 3], p.as_flattened()).unwrap();
    let y = Literal::from_slice([4], &[9i32, -1, 1, 0]).unwrap();
    for metric in [sparse_categorical_accuracy(), sparse_top_k_categorical_accuracy(3)] {
        let step = jit(|(state, y, p): (Params, Tensor, Tensor)| metric.update(&state, &y, &p, None));
        let args = (zeros(&metric), y.clone().into(), p.clone().into());
        let state = step.on(backend("ref").unwrap()).call(args).unwrap();
        assert_eq!(results(&metric, &state), [0.0], "{}", metric.name());
    }
}

#[test]
fn labels_that_cannot_fit_say_what_to_change() {
    let float = |d: &[usize]| TensorType::new(DType::F32, d);
    let cases = [
        (sparse_categorical_accuracy(), float(&[8, 5]), "without `sparse`"),
        (categorical_accuracy(), float(&[8]), "use the sparse metric"),
        (top_k_categorical_accuracy(2), float(&[8]), "use the sparse metric"),
        (binary_accuracy(), float(&[8]), "the shape of the predictions"),
        (precision(), float(&[8, 4]), "the shape of the predictions"),
    ];
    for (metric, y, hint) in cases {
        let g = GraphBuilder::new("main");
        let state = metric.state().map(|name, ty| g.parameter(ty.clone(), name));
        let (y, p) = (g.parameter(y, "y"), g.parameter(float(&[8, 5]), "p"));
        let sums: Vec<Tensor> = metric.update(&state, &y, &p, None).into_iter().map(|(_, t)| t).collect();
        let message = g.finish(&sums).unwrap_err().to_string();
        assert!(message.contains(hint) && message.contains(metric.name()), "{message}");
    }
}
