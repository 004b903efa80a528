//! Losses compared with Keras: values, reduced values and gradients; also incompatible labels.

mod keras;

use keras::{Fixture, Worst, max_relative, name, relative_l2};
use serde_json::{Value, json};
use systole_ir::{DType, Error, ErrorKind, GraphBuilder, Literal, Tensor, TensorType, grad};
use systole_nn::loss::*;
use systole_nn::metric::Metric;
use systole_runtime::{Buffer, backend, jit};

fn loss_of(case: &Value) -> Loss {
    let whole = json!({ "class_name": case["class"], "config": case["kwargs"] });
    let loss: Loss = serde_json::from_value(whole).unwrap();
    assert_eq!(serde_json::from_value::<Loss>(serde_json::to_value(&loss).unwrap()).unwrap(), loss);
    loss
}

/// Per-sample values, the reduced value and its gradient.
fn run(case: &Value, fixture: &Fixture) -> (Literal, f64, Literal) {
    let loss = loss_of(case);
    let via = case["via"].as_str();
    let f = jit(|(y_true, x, weight): (Tensor, Tensor, Vec<Tensor>)| {
        let value = match via {
            Some("softmax") => x.softmax(),
            Some("sigmoid") => x.logistic(),
            _ => x.clone(),
        };
        let pred = Prediction { value: &value, logits: via.is_some().then_some(&x) };
        let values = loss.per_sample(&y_true, pred);
        let total = loss.value(&y_true, pred, weight.first());
        let slope = grad(&total, &[&x]).remove(0);
        (values, total, slope)
    })
    .on(backend("ref").unwrap());
    let get = |part: &str| Buffer::from(fixture.get(&format!("{}/{part}", name(case))).clone());
    let weight = if case["sample_weight"] == true { vec![get("sample_weight")] } else { vec![] };
    let (values, total, slope) = f.call((get("y_true"), get("y_pred"), weight)).unwrap();
    (values.to_literal().unwrap(), total.to_f64().unwrap(), slope.to_literal().unwrap())
}

#[test]
fn every_loss_is_keras_s() {
    let fixture = Fixture::open("losses");
    let mut worst = [Worst::below(1e-6), Worst::below(1e-6), Worst::below(1e-6)];
    for case in fixture.list("cases") {
        let expected = |part: &str| fixture.get(&format!("{}/{part}", name(case)));
        let (values, total, slope) = run(case, &fixture);
        // Scalars are kept with one axis.
        let values = match values.ty().rank() {
            0 => Literal::from_slice([1], &values.to_f32s()).unwrap(),
            _ => values,
        };
        worst[0].see(name(case), relative_l2(&values, expected("values")));
        worst[1].see(name(case), max_relative(&[total], &expected("value").to_f64s()));
        worst[2].see(name(case), relative_l2(&slope, expected("grad")));
    }
    worst.iter().zip(["values", "reduced", "gradients"]).for_each(|(w, what)| w.report(what));
}

fn f32s(shape: &[usize], data: &[f32]) -> Buffer {
    Literal::from_slice(shape, data).unwrap().into()
}

fn value(loss: &Loss, y: Buffer, p: Buffer, weight: Vec<Buffer>) -> f64 {
    let f = jit(|(y, p, w): (Tensor, Tensor, Vec<Tensor>)| loss.value(&y, &p, w.first()));
    f.on(backend("ref").unwrap()).call((y, p, weight)).unwrap().to_f64().unwrap()
}

fn i32s(data: &[i32]) -> Buffer {
    Literal::from_slice([data.len()], data).unwrap().into()
}

/// Two equal labels need three steps: what cannot be said costs ∞, and a label that there is not is no number.
#[test]
fn sequences_that_cannot_be_said_cost_without_end() {
    let labels = |l: &[i32]| Literal::from_slice([1, 2], l).unwrap().into();
    let logits = || f32s(&[1, 2, 3], &[0.; 6]);
    assert_eq!(value(&ctc(), labels(&[1, 1]), logits(), vec![]), f64::INFINITY);
    assert!((value(&ctc(), labels(&[1, 2]), logits(), vec![]) - 9f64.ln()).abs() < 1e-6);
    assert!(value(&ctc(), labels(&[1, 3]), logits(), vec![]).is_nan());
}

/// The numbers are Keras 3.15.1's for `ignore_class=-1`.
#[test]
fn ignored_classes_leave_numerator_and_denominator() {
    let logits = [1f32, 2., 0., 0., 1., 5., 3., 1., 1., 0.5, 0.25, -1.];
    let y = || i32s(&[1, -1, 0, 2]);
    let loss = sparse_categorical_crossentropy().from_logits(true).ignore_class(-1);
    let plain = value(&loss, y(), f32s(&[4, 3], &logits), vec![]);
    let weighted = value(&loss, y(), f32s(&[4, 3], &logits), vec![f32s(&[4], &[1., 2., 0.5, 3.])]);
    assert!((plain / 0.9470877647399902 - 1.0).abs() < 2e-7, "{plain}");
    assert!((weighted / 2.3699049949645996 - 1.0).abs() < 2e-7, "{weighted}");
    assert_eq!(value(&loss, i32s(&[-1; 4]), f32s(&[4, 3], &logits), vec![]), 0.0);
}

/// Keras has no fixture of this: TensorFlow refuses another axis than the last.
#[test]
fn classes_along_another_axis_are_those_of_the_moved_ones() {
    let first = [1f32, 2., 0., 0.5, -1., 0.25, 3., 1., 1., 0.5, 0.25, -1.];
    let moved: Vec<f32> = (0..12).map(|i| first[(i / 6) * 6 + (i % 3) * 2 + (i % 6) / 3]).collect();
    let y = |shape: &[usize]| Buffer::from(Literal::from_slice(shape, &[0i32, 2, -1, 1]).unwrap());
    let loss = || sparse_categorical_crossentropy().from_logits(true).ignore_class(-1);
    let last = value(&loss(), y(&[2, 2]), f32s(&[2, 2, 3], &moved), vec![]);
    for (axis, labels) in [(1, &[2, 2][..]), (-2, &[2, 2]), (1, &[2, 1, 2])] {
        assert_eq!(value(&loss().axis(axis), y(labels), f32s(&[2, 3, 2], &first), vec![]), last);
    }
}

#[test]
fn a_class_number_out_of_range_is_nan_not_silence() {
    let p = [0.2, 0.3, 0.5, 0.1, 0.1, 0.8];
    for bad in [-1, 3] {
        assert!(
            value(&sparse_categorical_crossentropy(), i32s(&[0, bad]), f32s(&[2, 3], &p), vec![]).is_nan()
        );
    }
    let bytes = Literal::from_slice([2], &[0u8, 255]).unwrap();
    assert!(value(&sparse_categorical_crossentropy(), bytes.into(), f32s(&[2, 3], &p), vec![]).is_nan());
}

#[test]
fn the_binary_logits_formula_has_its_derivative_at_zero() {
    let f = jit(|(t, x): (Tensor, Tensor)| {
        let loss = binary_crossentropy().from_logits(true).value(&t, &x, None);
        grad(&loss, &[&x]).remove(0)
    });
    let slope =
        f.on(backend("ref").unwrap()).call((f32s(&[1, 2], &[0., 1.]), f32s(&[1, 2], &[0., 0.]))).unwrap();
    assert_eq!(slope.to_literal().unwrap().to_f32s(), [0.25, -0.25]);
}

/// With more than 256 classes a byte label must not be compared as a byte.
#[test]
fn byte_labels_name_the_right_one_of_many_classes() {
    let mut p = vec![1.0f32 / 1024.0; 300];
    p[4] = 0.5;
    let label = Literal::from_slice([1], &[4u8]).unwrap();
    let found = value(&sparse_categorical_crossentropy(), label.into(), f32s(&[1, 300], &p), vec![]);
    let expected = -(0.5f64 / (0.5 + 299.0 / 1024.0)).ln();
    assert!((found - expected).abs() < 1e-6, "{found} {expected}");
}

#[test]
fn half_precision_predictions_are_computed_in_f32() {
    let x = Literal::from_slice([1, 2], &[12.0f32, 0.0]).unwrap().convert(DType::F16);
    let found = value(&sparse_categorical_crossentropy().from_logits(true), i32s(&[0]), x.into(), vec![]);
    // ln(1 + e^-12): in f16 it would be 0.
    assert!((found / (-12f64).exp().ln_1p() - 1.0).abs() < 0.02, "{found}");
}

fn error_of(loss: &Loss, y: TensorType, p: TensorType, weight: Option<TensorType>) -> String {
    let g = GraphBuilder::new("main");
    let (y, p) = (g.parameter(y, "y"), g.parameter(p, "p"));
    let w = weight.map(|ty| g.parameter(ty, "w"));
    let value = loss.value(&y, &p, w.as_ref());
    g.finish(&[value]).unwrap_err().to_string()
}

#[test]
fn labels_that_cannot_fit_say_what_to_change() {
    let (int, float) =
        (|d: &[usize]| TensorType::new(DType::I32, d), |d: &[usize]| TensorType::new(DType::F32, d));
    let sparse = sparse_categorical_crossentropy();
    let cases = [
        (sparse.clone(), float(&[8, 5]), float(&[8, 5]), "use categorical_crossentropy for one-hot labels"),
        (sparse.clone(), int(&[7]), float(&[8, 5]), "one class index for each prediction"),
        (sparse.clone(), int(&[8]), float(&[8, 1]), "use binary_crossentropy for one output"),
        (sparse, int(&[]), float(&[]), "one class index for each prediction"),
        (categorical_crossentropy(), int(&[8]), float(&[8, 5]), "use sparse_categorical_crossentropy"),
        (binary_crossentropy(), float(&[8, 2]), float(&[8, 1]), "as many units as a label has values"),
        (mean_squared_error(), float(&[8]), float(&[8, 5]), "as many units as a label has values"),
        (mean_absolute_error(), float(&[8, 1]), float(&[8, 5]), "as many units as a label has values"),
        (ctc(), int(&[8]), float(&[8, 5]), "one unit for each class and the blank"),
        (categorical_crossentropy().axis(2), float(&[8, 5]), float(&[8, 5]), "remove axis to use -1"),
        (Loss::Dice { axis: vec![3] }, float(&[8, 5]), float(&[8, 5]), "choose axes of the predictions"),
    ];
    for (loss, y, p, hint) in cases {
        let message = error_of(&loss, y.clone(), p.clone(), None);
        let parts = [hint, loss.name(), &y.to_string(), &p.to_string()];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let message = error_of(&huber(), float(&[8]), float(&[8, 1]), Some(float(&[7])));
    assert!(message.contains("f32[7]") && message.contains("[8]"), "{message}");
}

/// The first error is the one to show; what follows from it must neither replace it nor panic.
#[test]
fn losses_and_metrics_of_a_poisoned_prediction_keep_its_error() {
    for name in NAMES {
        for rank in 0..=2 {
            let g = GraphBuilder::new("main");
            let y = g.parameter(TensorType::new(DType::F32, &[2, 3][..rank]), "y");
            let p = y.fail(Error::new(ErrorKind::Graph, "the first error"));
            let loss: Loss = name.parse().unwrap();
            let value = loss.value(&y, &p, Some(&y));
            let metric = Metric::from(loss);
            let state = metric.state(&[2, 3]).map(|name, ty| g.parameter(ty.clone(), name));
            metric.update(&state, &y, &p, None);
            assert_eq!(g.finish(&[value]).unwrap_err().what(), "the first error", "{name} {rank}");
        }
    }
}

#[test]
fn names_and_configurations_read_back() {
    for name in NAMES {
        let loss: Loss = name.parse().unwrap();
        assert_eq!(loss.name(), name);
        let text = serde_json::to_string(&loss).unwrap();
        assert_eq!(serde_json::from_str::<Loss>(&text).unwrap(), loss, "{text}");
    }
    assert_eq!("mse".parse::<Loss>().unwrap(), mean_squared_error());
    let message = "categorical_cross_entropy".parse::<Loss>().unwrap_err().to_string();
    assert!(message.contains("`categorical_crossentropy`"), "{message}");
    let unknown = json!({ "class_name": "Huber", "config": { "delta": 1.0, "detla": 2.0 } });
    assert!(serde_json::from_value::<Loss>(unknown).unwrap_err().to_string().contains("detla"));
    for (class, arguments, part) in [
        ("MeanSquaredError", json!({ "axis": 1 }), "unknown field `axis`, expected one of `reduction`"),
        ("Huber", json!({ "delta": 1.0, "axis": 1 }), "unknown field `axis`"),
        ("CosineSimilarity", json!({ "axes": 1 }), "`axis`, `reduction`"),
        ("MeanSquaredError", json!({ "reduction": "none" }), "unknown variant `none`"),
    ] {
        let json = json!({ "class_name": class, "config": arguments });
        let message = serde_json::from_value::<Loss>(json).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    assert!(categorical_crossentropy().axis(0).check().unwrap_err().to_string().contains("axis"));
    let metric = Metric::from(mean_squared_error().reduction(Reduction::Sum));
    assert!(metric.check().unwrap_err().to_string().contains("reduction"));
    let settled = categorical_crossentropy().axis(1).label_smoothing(0.1).axis(-1);
    assert_eq!(settled, categorical_crossentropy().label_smoothing(0.1));
}
