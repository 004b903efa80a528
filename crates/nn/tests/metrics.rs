//! Metrics compared with Keras, batch by batch; exact counts beyond f32's range; incompatible labels.

mod keras;

use keras::{Fixture, Worst, max_relative, name};
use serde_json::{Value, json};
use systole_data::Dataset;
use systole_dist::Strategy;
use systole_ir::{DType, GraphBuilder, Literal, Tensor, TensorType};
use systole_nn::layers::dense;
use systole_nn::loss::{
    Loss, binary_crossentropy, categorical_crossentropy, huber, mean_squared_error,
    sparse_categorical_crossentropy,
};
use systole_nn::metric::*;
use systole_nn::{Compile, Logs, Model};
use systole_runtime::{Buffer, Params, backend, jit};

/// The metric of a case, with Keras's defaults filled in.
fn metric_of(case: &Value) -> Metric {
    let class = case["class"].as_str().unwrap();
    if class == "Mean" {
        return mean("mean");
    }
    let spelled =
        |c: char| if c.is_uppercase() { format!("_{}", c.to_ascii_lowercase()) } else { c.to_string() };
    let snake: String = class.replace("KLD", "KlD").chars().map(spelled).collect();
    let snake = snake.trim_start_matches('_').replace("log_cosh_error", "log_cosh");
    let start = class.parse().or_else(|_| snake.parse()).unwrap_or(Metric::Accuracy);
    let is_loss = matches!(start, Metric::Loss(_));
    let mut json = serde_json::to_value(start).unwrap();
    for (key, value) in case["kwargs"].as_object().unwrap() {
        let given = match (key.as_str(), value) {
            ("dtype", _) => continue,
            ("thresholds", Value::Number(one)) => json!([one]),
            ("class_aggregation", Value::Null) => json!("none"),
            _ => value.clone(),
        };
        let config = if is_loss { &mut json["config"]["config"] } else { &mut json["config"] };
        config[key] = given;
    }
    if case["kwargs"].get("top_k").is_some() && case["kwargs"].get("thresholds").is_none() {
        json["config"]["thresholds"] = json!([]);
    }
    let metric: Metric = serde_json::from_value(json).unwrap();
    metric.check().unwrap();
    metric
}

fn zeros(metric: &Metric) -> Params<Buffer> {
    zeros_for(metric, &[1])
}

fn zeros_for(metric: &Metric, output: &[usize]) -> Params<Buffer> {
    metric.state(output).map(|_, ty| Buffer::zeros(ty.clone()))
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
        let output = fixture.get(&format!("{}/batch0/y_pred", name(case))).shape().to_vec();
        let mut state = zeros_for(&metric, &output);
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
    let mut state = metric.state(&[1]).map(|_, _| Buffer::from(full.clone()));
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
    assert!(message.contains("`accuracy`"), "{message}");
}

#[test]
fn names_and_configurations_read_back() {
    for name in NAMES.iter().copied().skip(1).chain(systole_nn::loss::NAMES) {
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
        let state = metric.state(&[8, 5]).map(|name, ty| g.parameter(ty.clone(), name));
        let (y, p) = (g.parameter(y, "y"), g.parameter(float(&[8, 5]), "p"));
        let sums: Vec<Tensor> = metric.update(&state, &y, &p, None).into_iter().map(|(_, t)| t).collect();
        let message = g.finish(&sums).unwrap_err().to_string();
        assert!(message.contains(hint) && message.contains(metric.name()), "{message}");
    }
}

/// What 21 weighted samples in batches of 8 give: the last batch has 5, which no number of devices divides.
fn evaluated(strategy: Strategy) -> Logs {
    let x: Vec<f32> = (0..63).map(|i| (i * 37 % 41) as f32 / 20.0 - 1.0).collect();
    let y: Vec<f32> =
        (0..21).flat_map(|i| (0..4).map(move |c| f32::from(u8::from(i * 5 % 4 == c)))).collect();
    let w: Vec<f32> = (0..21).map(|i| (i % 5) as f32 / 2.0).collect();
    let data = Dataset::from_tensor_slices([
        ("x", Literal::from_slice([21, 3], &x).unwrap()),
        ("label", Literal::from_slice([21, 4], &y).unwrap()),
        ("sample_weight", Literal::from_slice([21], &w).unwrap()),
    ]);
    let metrics = || -> Vec<Metric> {
        vec![
            AUC { num_thresholds: 12, ..AUC::default() }.into(),
            AUC { multi_label: true, num_thresholds: 6, curve: AucCurve::PR, ..AUC::default() }.into(),
            F1Score { average: Some(Average::Macro), ..F1Score::default() }.into(),
            Metric::Precision { thresholds: vec![], top_k: Some(2), class_id: Some(1) },
            one_hot_mean_iou(4),
            r2_score(),
            root_mean_squared_error(),
            pearson_correlation(),
            SensitivityAtSpecificity { specificity: 0.5, num_thresholds: 5, class_id: None }.into(),
            expected_calibration_error(),
        ]
    };
    let mut model = Model::sequential([dense(4).activation("softmax")]);
    model
        .compile(Compile {
            loss: categorical_crossentropy(),
            metrics: metrics(),
            weighted_metrics: metrics(),
            strategy,
            backend: Some(backend("ref").unwrap()),
            seed: 5,
            ..Compile::default()
        })
        .unwrap();
    model.evaluate(&data.unwrap().batch(8)).unwrap()
}

#[test]
fn they_are_the_same_on_several_devices() {
    let one = evaluated(Strategy::one_device());
    assert_eq!(one.iter().count(), 1 + 2 * 10);
    for devices in [3] {
        let several = evaluated(Strategy::data_parallel().devices(devices));
        for (name, value) in one.iter() {
            assert!((several[name] - value).abs() < 1e-6, "{name} on {devices}: {value} {}", several[name]);
        }
    }
    assert!((one["auc"] - one["weighted_auc"]).abs() > 1e-3, "weights count: {one:?}");
}

#[test]
fn arguments_without_a_meaning_are_refused() {
    let cases: [(Metric, &str); 8] = [
        (AUC { num_thresholds: 1, ..AUC::default() }.into(), "num_thresholds is 1"),
        (AUC { num_labels: Some(3), ..AUC::default() }.into(), "multi_label"),
        (AUC { thresholds: vec![1.5], ..AUC::default() }.into(), "threshold 1.5"),
        (fbeta_score(0.0), "beta is 0"),
        (recall_at_precision(1.5), "precision is 1.5"),
        (MeanIoU::default().into(), "num_classes is missing"),
        (iou(3, &[3]), "target_class_ids contains 3"),
        (CosineSimilarity { axis: 0 }.into(), "axis 0"),
    ];
    for (metric, part) in cases {
        let message = metric.check().unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}
