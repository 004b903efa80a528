//! Non-finite losses and anomaly detection: reports the step and the first non-finite data, weights or layer output.

use systole_data::Dataset;
use systole_ir::{Literal, Tensor};
use systole_nn::layers::*;
use systole_nn::loss::{Loss, mean_squared_error, sparse_categorical_crossentropy};
use systole_nn::optimizer::{Optimizer, adam, sgd};
use systole_nn::{Compile, Cx, Fit, History, Layer, Model};

/// 12 points of two numbers, the class whether the first is above 0; `odd` stands at one place of the inputs.
fn points(odd: Option<(usize, f32)>) -> Dataset {
    let mut x: Vec<f32> = (0..24).map(|i| if i % 2 == 0 { (i as f32 - 11.5) / 12.0 } else { 0.5 }).collect();
    let labels: Vec<i32> = (0..12).map(|i| i32::from(x[2 * i] > 0.0)).collect();
    if let Some((place, value)) = odd {
        x[place] = value;
    }
    let x = Literal::from_slice([12, 2], &x).unwrap();
    Dataset::from_tensor_slices([("points", x), ("label", Literal::from_slice([12], &labels).unwrap())])
        .unwrap()
        .batch(4)
}

fn compiled(layers: Vec<LayerSpec>, optimizer: Optimizer, loss: Loss) -> Model {
    let mut model = Model::sequential(layers);
    model.compile(Compile { optimizer, loss, ..Default::default() }).unwrap();
    model
}

fn classifier(optimizer: Optimizer) -> Model {
    let layers =
        vec![dense(8).activation("relu"), dense(8).activation("relu"), dense(2).activation("softmax")];
    compiled(layers, optimizer, sparse_categorical_crossentropy())
}

fn fit(model: &mut Model, data: &Dataset) -> History {
    model.fit(data, Fit { epochs: 4, verbose: 0, ..Fit::default() }).unwrap()
}

/// Why training ended, with all of `parts` in it.
fn ended(history: &History, parts: &[&str]) {
    let why = history.stopped_because.clone().expect("training went on");
    for part in parts {
        assert!(why.contains(part), "no `{part}` in: {why}");
    }
}

fn all_finite(model: &Model) -> bool {
    model.weights().iter().all(|(_, w)| w.to_literal().unwrap().to_f64s().iter().all(|v| v.is_finite()))
}

#[test]
fn a_bad_number_in_the_data_is_named_with_its_sample() {
    for (odd, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let mut model = classifier(adam(0.01));
        // Sample 6 is sample 2 of the second batch.
        let history = fit(&mut model, &points(Some((13, odd))));
        ended(&history, &["not finite at step 2:", "the input `", name, "sample 2 of the batch"]);
        assert_eq!((history.step_ms.len(), model.steps()), (2, 2), "nothing is trained after it");
        assert!(all_finite(&model), "what was learned before is kept");
        assert_eq!(model.epochs(), 1);
    }
}

#[test]
fn what_was_learned_before_a_bad_step_is_kept_to_the_bit() {
    let weights = |data: &Dataset, epochs: usize| {
        let mut model = classifier(adam(0.01));
        model.fit(data, Fit { epochs, verbose: 0, ..Fit::default() }).unwrap();
        model.weights().iter().map(|(_, w)| w.to_literal().unwrap()).collect::<Vec<_>>()
    };
    assert!(weights(&points(Some((13, f32::NAN))), 4) == weights(&points(None).take(1), 1));
}

#[test]
fn a_label_that_is_no_number_is_named() {
    let x = Literal::from_slice([4, 2], &[0f32, 1., 1., 0., 1., 1., 0., 0.]).unwrap();
    let y = Literal::from_slice([4, 1], &[0f32, 1., f32::NAN, 1.]).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap().batch(4);
    let mut model = compiled(vec![dense(1)], sgd(0.1), mean_squared_error());
    ended(&fit(&mut model, &data), &["at step 1:", "the label has NaN", "sample 2 of the batch"]);
}

#[test]
fn too_high_a_learning_rate_is_told_from_its_layer() {
    let mut model = classifier(sgd(1e30));
    let history = fit(&mut model, &points(None));
    ended(&history, &["not finite at step 2:", "layer `dense", "smaller learning rate"]);
    assert!(all_finite(&model));
    // Products of two layers with such weights are beyond f32.
    ended(&history, &["the first non-finite output is that of layer `dense_1` (Dense)", "kernel reaches"]);
}

#[test]
fn a_layer_that_overflows_is_the_one_that_is_named() {
    let layers = vec![dense(4), rescaling(1e30), rescaling(1e30), dense(1)];
    let mut model = compiled(layers, sgd(0.1), mean_squared_error());
    let x = Literal::from_slice([4, 2], &[1f32, 2., 3., 4., 5., 6., 7., 8.]).unwrap();
    let y = Literal::from_slice([4, 1], &[1f32; 4]).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap().batch(4);
    ended(
        &fit(&mut model, &data),
        &["at step 1:", "non-finite output is that of layer `rescaling_1` (Rescaling)", "its input"],
    );
}

#[test]
fn weights_that_are_not_finite_are_named_with_the_step_that_made_them() {
    let mut model = classifier(sgd(0.1));
    fit(&mut model, &points(None).take(1));
    let kernel = Literal::from_slice([8, 8], &[f32::NAN; 64]).unwrap();
    let mut fresh = classifier(sgd(0.1));
    fresh.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [2])]).unwrap();
    fresh.set_weight("dense_1/kernel", kernel).unwrap();
    let history = fit(&mut fresh, &points(None));
    ended(
        &history,
        &[
            "at step 1:",
            "weights of layer `dense_1`",
            "64 of 64 numbers of dense_1/kernel",
            "before the first step",
        ],
    );
}

/// √(0·x): finite, with a derivative that is not.
#[derive(Debug)]
struct Root;
impl Layer for Root {
    fn class_name(&self) -> &'static str {
        "Root"
    }
    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        &inputs[0] + (&inputs[0] * 0.0).abs().sqrt()
    }
}

#[test]
fn a_backward_pass_that_breaks_weights_is_told_by_the_next_step() {
    let layers = vec![dense(4), LayerSpec::custom(Root), dense(2).activation("softmax")];
    let mut model = compiled(layers, sgd(0.1), sparse_categorical_crossentropy());
    let history = fit(&mut model, &points(None));
    ended(&history, &["at step 2:", "weights of layer `dense`", "since the update of step 1"]);
}

#[test]
fn a_good_run_says_nothing() {
    let mut model = classifier(adam(0.01));
    let history = fit(&mut model, &points(None));
    assert_eq!((history.stopped_because, history.step_ms.len()), (None, 12));
}

/// ln x, which half of the points cannot have.
#[derive(Debug)]
struct Ln;
impl Layer for Ln {
    fn class_name(&self) -> &'static str {
        "Ln"
    }
    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        inputs[0].log()
    }
}

/// Training with anomaly detection: the model, why it failed, and the file of the batch.
fn detected(mut model: Model, data: &Dataset, name: &str) -> (Model, String, std::path::PathBuf) {
    let file = std::env::temp_dir().join(format!("systole-anomaly-{name}-{}.npz", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let options = Fit { detect_anomaly: Some(file.clone()), epochs: 2, verbose: 0, ..Fit::default() };
    let told = model.fit(data, options).map(|_| String::new()).unwrap_or_else(|e| e.to_string());
    (model, told, file)
}

#[test]
fn an_anomaly_names_op_layer_and_pass_and_leaves_its_batch() {
    let says = |told: &str, parts: &[&str]| {
        parts.iter().for_each(|part| assert!(told.contains(part), "{part}: {told}"))
    };
    let layers = vec![LayerSpec::custom(Ln).name("logarithm"), dense(2).activation("softmax")];
    let forward = compiled(layers, sgd(0.1), sparse_categorical_crossentropy());
    let (model, told, file) = detected(forward, &points(None), "forward");
    says(
        &told,
        &[
            "step 1 would produce",
            "first NaN is produced by",
            "log",
            "layer `logarithm`",
            "in the forward pass",
        ],
    );
    says(&told, &["of 8 numbers", "inspect the batch of this step"]);
    assert!(model.steps() == 0 && all_finite(&model), "the step is not taken");
    // The batch is what a step takes, by the names of the fields.
    let arrays = systole_data::format::npy::read_npz(&file).unwrap();
    let first = points(None).iter().next().unwrap().unwrap();
    assert_eq!(arrays.len(), 2);
    assert_eq!((&arrays[0].1, &arrays[1].1), (first.get("points").unwrap(), first.get("label").unwrap()));
    assert_eq!(arrays[1].0, "label");
    std::fs::remove_file(file).unwrap();

    let layers = vec![dense(4), LayerSpec::custom(Root).name("root"), dense(2).activation("softmax")];
    let backward = compiled(layers, sgd(0.1), sparse_categorical_crossentropy());
    let (model, told, file) = detected(backward, &points(None), "backward");
    says(&told, &["step 1 would produce", "layer `root`", "in the backward pass"]);
    assert!(all_finite(&model), "weights that the next step would have found broken");
    std::fs::remove_file(file).unwrap();

    let (_, told, file) = detected(classifier(adam(0.01)), &points(Some((13, f32::NAN))), "data");
    says(&told, &["step 2 would produce", "the input `", "sample 2 of the batch"]);
    std::fs::remove_file(file).unwrap();
    let (model, told, file) = detected(classifier(adam(0.01)), &points(None), "good");
    assert_eq!((told.as_str(), model.steps(), file.exists()), ("", 6, false));
    // Nothing of it is in the bits.
    let mut plain = classifier(adam(0.01));
    plain.fit(&points(None), Fit { epochs: 2, verbose: 0, ..Fit::default() }).unwrap();
    assert_eq!(plain.to_file().unwrap(), model.to_file().unwrap());
}
