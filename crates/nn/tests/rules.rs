//! Side effects of layers in a training step: regularization losses, weight constraints, spectral normalization, noise.
//!
//! Compared with values computed in the tests; the layers' formulas are compared with Keras in `layers.rs`.

use systole_data::Dataset;
use systole_ir::{Literal, Result, Tensor};
use systole_nn::layers::*;
use systole_nn::loss::mean_squared_error;
use systole_nn::optimizer::sgd;
use systole_nn::{Batch, Compile, Constraint, Fit, Model, Regularizer, StepCx, TrainStep};
use systole_runtime::backend;

/// One sample `x` with a label.
fn one(x: &[f32], label: &[f32]) -> Dataset {
    let row = |v: &[f32]| Literal::from_slice([1, v.len()], v).unwrap();
    Dataset::from_tensor_slices([("x", row(x)), ("label", row(label))]).unwrap().batch(1)
}

fn compiled(layers: impl IntoIterator<Item = LayerSpec>, learning_rate: f64, step: Option<Own>) -> Model {
    let mut model = Model::sequential(layers);
    let train_step = step.map(|s| std::sync::Arc::new(s) as std::sync::Arc<dyn TrainStep>);
    let (loss, backend) = (mean_squared_error(), Some(backend("ref").unwrap()));
    model
        .compile(Compile { optimizer: sgd(learning_rate), loss, train_step, backend, ..Default::default() })
        .unwrap();
    model
}

/// The loss of one step, and the kernel `dense/kernel` after it.
fn stepped(mut model: Model, data: &Dataset) -> Result<(f64, Vec<f32>)> {
    let history = model.fit(data, Fit { verbose: 0, ..Default::default() })?;
    Ok((history.last()["loss"], model.weight("dense/kernel")?.to_f32s()))
}

fn near(got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((f64::from(*g) - e).abs() < 1e-5, "{got:?} {expected:?}");
    }
}

fn plain() -> LayerSpec {
    dense(1).use_bias(false).kernel_initializer("ones")
}

/// Of `(w₁ + 2 w₂ − 4)²` at ones: loss 1, gradient `2 · (3 − 4) · [1, 2]`.
const X: [f32; 2] = [1.0, 2.0];

#[test]
fn penalties_are_in_the_loss_and_in_the_gradient() {
    let data = one(&X, &[4.0]);
    let (loss, w) = stepped(compiled([plain()], 0.1, None), &data).unwrap();
    assert!((loss - 1.0).abs() < 1e-6);
    near(&w, &[1.2, 1.4]);
    let ruled = plain().kernel_regularizer(Regularizer { l1: 0.1, l2: 0.2 });
    let (loss, w) = stepped(compiled([ruled.clone()], 0.1, None), &data).unwrap();
    // l1 · 2 + l2 · 2; its gradient is l1 + 2 · l2 each.
    assert!((loss - 1.6).abs() < 1e-6, "{loss}");
    near(&w, &[1.2 - 0.05, 1.4 - 0.05]);
    // What is shown of gradients is what the step has.
    let mut model = compiled([ruled.clone()], 0.1, None);
    let row = |v: &[f32]| Literal::from_slice([1, v.len()], v).unwrap();
    model.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [2])]).unwrap();
    let batch = Batch { inputs: vec![row(&X)], label: Some(row(&[4.0])), ..Default::default() };
    let gradients = model.gradients(&batch).unwrap();
    near(&gradients[0].1.to_f32s(), &[-2.0 + 0.5, -4.0 + 0.5]);
    let mut model = compiled([ruled.clone()], 0.1, None);
    model.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [2])]).unwrap();
    assert!((model.evaluate(&data).unwrap()["loss"] - 1.6).abs() < 1e-6);
    // A layer that does not train has none.
    let mut frozen = compiled([ruled.trainable(false), dense(1).use_bias(false).name("last")], 0.1, None);
    frozen.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [2])]).unwrap();
    frozen.set_weight("last/kernel", Literal::from_slice([1, 1], &[1f32]).unwrap()).unwrap();
    assert!((frozen.evaluate(&data).unwrap()["loss"] - 1.0).abs() < 1e-6);
}

#[test]
fn penalties_on_outputs_are_those_of_what_comes_out() {
    let data = one(&X, &[4.0]);
    for spec in [
        vec![plain().activity_regularizer(Regularizer { l1: 0.1, l2: 0.0 })],
        vec![plain(), activity_regularization(0.1, 0.0)],
    ] {
        let (loss, w) = stepped(compiled(spec, 0.1, None), &data).unwrap();
        // The output is 3; the penalty's gradient 0.1 · x.
        assert!((loss - 1.3).abs() < 1e-6, "{loss}");
        near(&w, &[1.2 - 0.01, 1.4 - 0.02]);
    }
}

/// The model's own loss, minimised by hand.
#[derive(Debug)]
struct Own {
    by_hand: bool,
}

impl TrainStep for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn training_step(&self, cx: &mut StepCx) -> Tensor {
        let loss = |cx: &mut StepCx| {
            let (x, label) = (cx.field(0), cx.label());
            let error = cx.forward(&[&x]) - label;
            (&error * &error).mean_all()
        };
        if self.by_hand { cx.minimize("", loss) } else { loss(cx) }
    }
}

#[test]
fn a_step_of_ones_own_has_penalties_and_constraints() {
    let data = one(&X, &[4.0]);
    let ruled = plain().kernel_regularizer(Regularizer { l1: 0.1, l2: 0.2 });
    for by_hand in [false, true] {
        let (loss, w) = stepped(compiled([ruled.clone()], 0.1, Some(Own { by_hand })), &data).unwrap();
        assert!((loss - 1.6).abs() < 1e-6, "{loss}");
        near(&w, &[1.15, 1.35]);
        let held = ruled.clone().kernel_constraint("unit_norm");
        let (_, w) = stepped(compiled([held], 0.1, Some(Own { by_hand })), &data).unwrap();
        let length = 1.15f64.hypot(1.35);
        near(&w, &[1.15 / length, 1.35 / length]);
    }
}

#[test]
fn constraints_hold_after_each_step() {
    // Without a constraint: 1.2, 1.4 (see above), of length 1.8439.
    let length = 1.2f64.hypot(1.4);
    let cases = [
        (Constraint::MaxNorm { max_value: 2.0, axis: 0 }, [1.2, 1.4]),
        (Constraint::MaxNorm { max_value: 1.0, axis: 0 }, [1.2 / length, 1.4 / length]),
        (Constraint::UnitNorm { axis: -2 }, [1.2 / length, 1.4 / length]),
        (Constraint::UnitNorm { axis: 1 }, [1.0, 1.0]),
        (
            Constraint::MinMaxNorm { min_value: 3.0, max_value: 4.0, rate: 0.5, axis: 0 },
            [1.2, 1.4].map(|w| w * (1.5 + length / 2.0) / length),
        ),
        (Constraint::NonNeg, [1.2, 1.4]),
    ];
    for (constraint, expected) in cases {
        let data = one(&X, &[4.0]);
        let (_, w) = stepped(compiled([plain().kernel_constraint(constraint)], 0.1, None), &data).unwrap();
        near(&w, &expected);
    }
    // Towards −4 the gradient is 2 · 7 · [1, 2].
    let (_, w) =
        stepped(compiled([plain().kernel_constraint("non_neg")], 0.1, None), &one(&X, &[-4.0])).unwrap();
    near(&w, &[0.0, 0.0]);
}

#[test]
fn rules_that_cannot_be_are_told() {
    let told = |spec: LayerSpec, part: &str| {
        let e = stepped(compiled([spec], 0.1, None), &one(&X, &[4.0])).unwrap_err().to_string();
        assert!(e.contains(part), "`{part}` is missing: {e}");
    };
    told(
        plain().kernel_constraint(Constraint::UnitNorm { axis: 2 }),
        "axis 2, but its weight has 2 dimensions",
    );
    told(plain().kernel_constraint(Constraint::MaxNorm { max_value: -1.0, axis: 0 }), "invalid values");
    let e = dense(1).kernel_constraint("max_nrom").check().unwrap_err().to_string();
    assert!(e.contains("`max_norm`"), "{e}");
    let e = dense(1).bias_regularizer(Regularizer { l1: -1.0, l2: 0.0 }).check().unwrap_err().to_string();
    assert!(e.contains("l1") && e.contains("l2"), "{e}");
}

/// The greatest singular value of a matrix of rows of `n`.
fn stretch(matrix: &[f32], n: usize) -> f64 {
    let mut u = vec![1.0f64; n];
    let mut length = 0.0;
    for _ in 0..200 {
        let v: Vec<f64> =
            matrix.chunks(n).map(|row| row.iter().zip(&u).map(|(a, b)| f64::from(*a) * b).sum()).collect();
        let back = |j: usize| matrix.chunks(n).zip(&v).map(|(row, v)| f64::from(row[j]) * v).sum::<f64>();
        u = (0..n).map(back).collect();
        length = u.iter().map(|a| a * a).sum::<f64>().sqrt();
        u.iter_mut().for_each(|a| *a /= length);
    }
    length.sqrt()
}

#[test]
fn spectral_normalisation_keeps_the_kernel_from_stretching() {
    // Steps so small that what is seen is the normalised kernel; each goes on from where the last one's vector pointed.
    for step in [None, Some(Own { by_hand: true })] {
        let layer = spectral_normalization(dense(3).kernel_initializer("he_uniform").name("own"));
        let mut model = compiled([layer.name("sn")], 1e-9, step);
        let x =
            Literal::from_slice([8, 4], &(0..32).map(|i| i as f32 / 9.0 - 1.0).collect::<Vec<_>>()).unwrap();
        let label = Literal::from_slice([8, 3], &[1f32; 24]).unwrap();
        let data = Dataset::from_tensor_slices([("x", x), ("label", label)]).unwrap().batch(2);
        model.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [4])]).unwrap();
        let before = model.weight("sn/vector_u").unwrap();
        model.fit(&data, Fit { epochs: 10, verbose: 0, ..Default::default() }).unwrap();
        assert_ne!(model.weight("sn/vector_u").unwrap(), before);
        let sigma = stretch(&model.weight("sn/own/kernel").unwrap().to_f32s(), 3);
        assert!((sigma - 1.0).abs() < 1e-3, "{sigma}");
    }
}

/// `n` values after a training step that changes nothing, of inputs that all are `x`.
fn noisy(layer: LayerSpec, shape: [usize; 4], x: f32) -> Vec<f32> {
    use systole_ir::DType;
    use systole_nn::{Cx, Precision};
    use systole_runtime::{Buffer, jit};
    let f = jit(move |x: Tensor| {
        let g = x.builder().clone();
        let word = |v: u64| g.constant(Literal::from_slice([], &[v]).unwrap());
        let mut cx = Cx::collecting(&g, Precision::Float32).training_with(&word(3), &word(5));
        cx.scope("noise", |cx| layer.call(cx, &[x.convert(DType::F32)]))
    });
    let n = shape.iter().product();
    let x = Literal::from_slice(shape, &vec![x; n]).unwrap();
    f.on(backend("ref").unwrap()).call(Buffer::from(x)).unwrap().to_literal().unwrap().to_f32s()
}

fn mean_and_variance(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    (mean, values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n)
}

#[test]
fn noise_has_the_mean_and_variance_that_it_names() {
    let shape = [10, 10, 10, 20];
    // Four standard deviations of the mean and of the variance of 20,000 normal draws.
    let near = |values: &[f32], mean: f64, variance: f64| {
        let (m, v) = mean_and_variance(values);
        assert!((m - mean).abs() < 4.0 * (variance / 20_000.0).sqrt(), "mean {m}, not {mean}");
        assert!(
            (v / variance - 1.0).abs() < 4.0 * (2.0f64 / 20_000.0).sqrt(),
            "variance {v}, not {variance}"
        );
    };
    near(&noisy(gaussian_noise(0.5), shape, 2.0), 2.0, 0.25);
    near(&noisy(gaussian_dropout(0.2), shape, 2.0), 2.0, 4.0 * 0.25);
    assert_eq!(noisy(gaussian_noise(0.0), shape, 2.0)[..3], [2.0; 3]);
    // Of two values: kept and dropped, with the mean 0 that inputs of mean 0 and variance 1 would keep.
    let y = noisy(alpha_dropout(0.3), shape, 0.0);
    let (low, high) = y.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    assert!(y.iter().all(|v| *v == low || *v == high) && low < 0.0 && high > 0.0);
    let dropped = y.iter().filter(|v| **v == low).count() as f64 / y.len() as f64;
    assert!((dropped - 0.3).abs() < 4.0 * (0.21f64 / 20_000.0).sqrt(), "{dropped}");
    assert!(mean_and_variance(&y).0.abs() < 0.05);
}

#[test]
fn spatial_dropout_drops_whole_channels() {
    let y = noisy(spatial_dropout2d(0.5), [50, 3, 4, 20], 1.0);
    let mut kept = 0;
    for sample in y.chunks(3 * 4 * 20) {
        for c in 0..20 {
            let channel: Vec<f32> = sample.iter().skip(c).step_by(20).copied().collect();
            assert!(channel.iter().all(|v| *v == channel[0] && [0.0, 2.0].contains(v)), "{channel:?}");
            kept += usize::from(channel[0] == 2.0);
        }
    }
    // Four standard deviations of 1,000 throws.
    assert!((kept as f64 - 500.0).abs() < 4.0 * 250f64.sqrt(), "{kept}");
}

#[test]
fn whole_samples_are_dropped_where_a_branch_is() {
    let drops = [
        stochastic_depth(0.25),
        dropout(0.25).noise_shape([0, 1, 1, 1]),
        LayerSpec::from_table("Dropout", &serde_json::json!({"rate": 0.25, "noise_shape": [null, 1, 1, 1]}))
            .unwrap(),
    ];
    for layer in drops {
        let y = noisy(layer, [1000, 2, 3, 2], 1.0);
        let samples = y.chunks(2 * 3 * 2);
        let kept = samples.clone().filter(|s| s[0] > 0.0).count();
        let value = 1.0 / 0.75;
        assert!(
            samples.clone().all(|s| s.iter().all(|v| *v == s[0] && (*v == 0.0 || (*v - value).abs() < 1e-6)))
        );
        // Four standard deviations of 1,000 throws.
        assert!((kept as f64 - 750.0).abs() < 4.0 * 187.5f64.sqrt(), "{kept}");
    }
}

#[test]
fn layers_inside_of_others_come_back_from_files_and_tables() {
    use serde_json::json;
    let spec = bidirectional(gru(4).return_sequences(true)).merge_mode("ave").name("both");
    let again = LayerSpec::from_json(&spec.to_json(), &CustomLayers::new()).unwrap();
    assert_eq!(again.to_json(), spec.to_json());
    let table = json!({"layer": {"type": "GRU", "units": 4, "return_sequences": true}, "merge_mode": "ave", "name": "both"});
    assert_eq!(LayerSpec::from_table("Bidirectional", &table).unwrap().to_json(), spec.to_json());
    let told = |class: &str, table: serde_json::Value, part: &str| {
        let e = LayerSpec::from_table(class, &table).unwrap_err().to_string();
        assert!(e.contains(part), "`{part}` is missing: {e}");
    };
    told("Bidirectional", json!({}), "Bidirectional needs a layer");
    told("Bidirectional", json!({"layer": {"type": "LSMT", "units": 4}}), "`LSTM`");
    told("Bidirectional", json!({"layer": {"type": "LSTM", "unit": 4}}), "`units`");
    told("Bidirectional", json!({"layer": {"type": "LSTM", "units": 4}, "merge_mode": "add"}), "merge_mode");
    told("TimeDistributed", json!({"layer": 3}), "expected a layer");
    let e = time_distributed(dense(4).padding("x")).check().unwrap_err().to_string();
    assert!(e.contains("`padding`"), "{e}");
}

#[test]
fn files_say_nothing_of_rules_that_a_layer_has_not() {
    let keys = |spec: LayerSpec| spec.to_json()["config"].as_object().unwrap().len();
    // As files of versions before there were any: a run that goes on from one ends with the same bytes.
    assert_eq!(keys(dense(3)), 5);
    assert_eq!(keys(dense(3).kernel_regularizer("l2").bias_constraint("non_neg")), 7);
    let spec = dense(3).kernel_regularizer("l1").kernel_constraint("unit_norm");
    let again = LayerSpec::from_json(&spec.to_json(), &CustomLayers::new()).unwrap();
    assert_eq!(again.to_json(), spec.to_json());
}

/// Each part of a separable convolution has its own rules; so has a depthwise one.
#[test]
fn parts_of_separable_convolutions_have_rules() {
    let x = Literal::from_slice([1, 3, 2], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
    let label = Literal::from_slice([1, 2, 1], &[0f32, 0.]).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("label", label)]).unwrap().batch(1);
    let loss = |layer: LayerSpec| compiled([layer], 0.0, None).evaluate(&data).unwrap()["loss"];
    let separable = || {
        separable_conv1d(1, 2)
            .depthwise_initializer("ones")
            .pointwise_initializer("ones")
            .bias_initializer("ones")
    };
    // Kernels of 4, 2 and 1 ones; outputs are 11 and 19.
    let plain = loss(separable());
    let l1 = |l1: f64| Regularizer { l1, l2: 0.0 };
    let near = |layer: LayerSpec, penalty: f64| {
        let more = loss(layer) - plain;
        assert!((more - penalty).abs() < 1e-3 * plain, "{more} {penalty}");
    };
    near(separable().depthwise_regularizer(l1(100.0)), 400.0);
    near(separable().pointwise_regularizer(l1(100.0)), 200.0);
    near(separable().bias_regularizer(l1(100.0)), 100.0);
    near(separable().activity_regularizer(l1(10.0)), 300.0);
    let e = separable().pointwise_regularizer(l1(-1.0)).check().unwrap_err().to_string();
    assert!(e.contains("l1"), "{e}");
    // The gradient of every weight is positive: constraints stop them at 0.
    let constrained = separable().depthwise_constraint("non_neg").pointwise_constraint("non_neg").name("own");
    let mut model = compiled([constrained], 10.0, None);
    model.fit(&data, Fit { verbose: 0, ..Default::default() }).unwrap();
    let all = |path: &str, model: &Model| model.weight(path).unwrap().to_f64s();
    assert!(all("own/depthwise_kernel", &model).iter().all(|w| *w == 0.0));
    assert!(all("own/pointwise_kernel", &model).iter().all(|w| *w == 0.0));
    assert!(all("own/bias", &model)[0] < 0.0);
    let depthwise = || depthwise_conv1d(2).depthwise_initializer("ones").use_bias(false);
    let label = Literal::from_slice([1, 2, 2], &[0f32; 4]).unwrap();
    let x = Literal::from_slice([1, 3, 2], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("label", label)]).unwrap().batch(1);
    let loss = |layer: LayerSpec| compiled([layer], 0.0, None).evaluate(&data).unwrap()["loss"];
    let more = loss(depthwise().depthwise_regularizer(l1(10.0))) - loss(depthwise());
    assert!((more - 40.0).abs() < 1e-3, "{more}");
    let mut model = compiled([depthwise().depthwise_constraint("max_norm").name("own")], 0.0, None);
    model.fit(&data, Fit { verbose: 0, ..Default::default() }).unwrap();
    assert!(all("own/kernel", &model).iter().all(|w| *w <= 1.0));
}
