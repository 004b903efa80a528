//! Non-sequential models compared with Keras (fixtures/keras/graphs.safetensors): several inputs and outputs, nested
//! models, masks.
//!
//! Covers `fit`, `evaluate`, `predict`, files and backups.

#![allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]

mod keras;

use keras::{Fixture, Worst, name, relative_l2};
use serde_json::Value;
use std::path::PathBuf;
use systole_data::Dataset;
use systole_ir::{DType, ErrorKind, Literal, TensorType};
use systole_nn::layers::*;
use systole_nn::loss::{mean_squared_error, sparse_categorical_crossentropy};
use systole_nn::metric::Metric;
use systole_nn::optimizer::{adam, sgd};
use systole_nn::{
    Architecture, BackupAndRestore, Batch, Compile, Fit, History, Model, ModelFile, input, input_of, layers,
};
use systole_testing::assert_error;

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// The model of a name, as fixtures/keras/parts/graphs.py makes it.
fn model_of(name: &str) -> Model {
    systole_runtime::register(systole_cpu::provider());
    let (architecture, compile) = match name {
        "two_outputs" => two_outputs(),
        "masked_tags" => masked_tags(),
        "masked_steps" => masked_steps(),
        "masked_attention" => masked_attention(),
        "outputs_inside" => outputs_inside(),
        other => panic!("no model {other}"),
    };
    let mut model = Model::new(architecture);
    model.compile(Compile { optimizer: sgd(0.05), ..compile }).unwrap();
    let types: Vec<TensorType> =
        model.architecture().inputs.iter().map(|input| input.ty.clone().unwrap()).collect();
    model.build(&types).unwrap();
    model
}

fn two_outputs() -> (Architecture, Compile) {
    let (a, b) = (input("a", [6]), input("b", [6]));
    let encoder =
        Architecture::sequential([dense(5).activation("relu").name("hidden"), dense(3).name("code")]);
    let encoder = LayerSpec::from(encoder).name("encoder");
    let both = concatenate(-1).name("both").on(&[&a.apply(encoder.clone()), &b.apply(encoder)]);
    let class = both.apply(dense(3).activation("softmax").name("class"));
    let size = both.apply(dense(1).name("size"));
    let compile = Compile {
        losses: [("class".into(), sparse_categorical_crossentropy()), ("size".into(), mean_squared_error())]
            .into(),
        loss_weights: [("class".into(), 1.0), ("size".into(), 0.3)].into(),
        output_metrics: [
            ("class".into(), vec![Metric::SparseCategoricalAccuracy]),
            ("size".into(), vec!["mae".parse().unwrap()]),
        ]
        .into(),
        output_weighted_metrics: [("size".into(), vec!["mape".parse().unwrap()])].into(),
        ..Compile::default()
    };
    (Architecture::functional(&[a, b], [&class, &size]).unwrap(), compile)
}

/// The encoder of `outputs_inside`: two outputs behind one normalisation.
fn encoder_of_two() -> LayerSpec {
    let x = input("x", [4]);
    let hidden =
        x.apply(dense(5).activation("relu").name("hidden")).apply(batch_normalization().name("norm"));
    let [mean, spread] =
        [dense(3).name("mean"), dense(3).activation("tanh").name("spread")].map(|d| hidden.apply(d));
    LayerSpec::from(Architecture::functional(&[x], [&mean, &spread]).unwrap()).name("encoder")
}

fn outputs_inside() -> (Architecture, Compile) {
    let steps = input("steps", [4]);
    let [mean, spread] = &steps.apply_all(encoder_of_two())[..] else { panic!("two outputs") };
    let size = multiply().name("times").on(&[mean, spread]).apply(dense(1).name("size"));
    let code = spread.apply(identity().name("code"));
    let compile = Compile {
        losses: [("size".into(), mean_squared_error()), ("code".into(), "mae".parse().unwrap())].into(),
        output_metrics: [("size".into(), vec!["mae".parse().unwrap()])].into(),
        ..Compile::default()
    };
    (Architecture::functional(&[steps], [&size, &code]).unwrap(), compile)
}

fn masked_tags() -> (Architecture, Compile) {
    let tokens = input_of("tokens", DType::I32, [5]);
    let gru = bidirectional(gru(2).return_sequences(true).name("gru")).name("both");
    let y = tokens
        .apply(embedding(7, 4).mask_zero(true).name("table"))
        .apply(lstm(3).return_sequences(true).name("lstm"))
        .apply(gru)
        .apply(time_distributed(dense(4).activation("tanh").name("own")).name("each"))
        .apply(dense(3).activation("softmax").name("tags"));
    let compile = Compile {
        metrics: vec![Metric::SparseCategoricalAccuracy],
        weighted_metrics: vec!["sparse_categorical_crossentropy".parse().unwrap()],
        ..Compile::default()
    };
    (Architecture::functional(&[tokens], &y).unwrap(), compile)
}

fn masked_steps() -> (Architecture, Compile) {
    let steps = input("steps", [5, 3]);
    let x = steps
        .apply(masking().name("masking"))
        .apply(dense(4).activation("relu").name("dense"))
        .apply(batch_normalization().name("norm"));
    let a = x.apply(simple_rnn(3).return_sequences(true).zero_output_for_mask(true).name("rnn"));
    let a = a.apply(global_average_pooling1d().name("pool"));
    let b = x.apply(gru(2).reset_after(false).name("gru"));
    let c = x.apply(lstm(2).go_backwards(true).unroll(true).name("lstm"));
    let d = x.apply(bidirectional(simple_rnn(2).name("inner")).name("both"));
    let y = concatenate(-1).name("all").on(&[&a, &b, &c, &d]).apply(dense(1).name("size"));
    let compile =
        Compile { loss: mean_squared_error(), metrics: vec!["mae".parse().unwrap()], ..Compile::default() };
    (Architecture::functional(&[steps], &y).unwrap(), compile)
}

fn masked_attention() -> (Architecture, Compile) {
    let tokens = input_of("tokens", DType::I32, [5]);
    let x = tokens.apply(embedding(7, 4).mask_zero(true).name("table"));
    let own = x.apply(rescaling(1.0).name("own"));
    let a = multi_head_attention(2, 3).name("heads").on(&[&own, &own]);
    let x = add().name("sum").on(&[&x, &a]).apply(layer_normalization().name("norm"));
    let b = group_query_attention(2, 4, 2).use_causal_mask(true).name("groups").on(&[&x, &x]);
    let x = maximum().name("most").on(&[&x, &b]);
    let c = attention().name("plain").on(&[&x, &x]);
    let d = additive_attention().name("additive").on(&[&x, &c]);
    let times = multiply().name("times").on(&[&c, &d]);
    let x = concatenate(-1).name("all").on(&[&times, &x]).apply(global_average_pooling1d().name("pool"));
    let y = x.apply(dense(2).activation("softmax").name("class"));
    let compile = Compile { metrics: vec![Metric::SparseCategoricalAccuracy], ..Compile::default() };
    (Architecture::functional(&[tokens], &y).unwrap(), compile)
}

/// Arrays one after the other.
fn joined(parts: &[&Literal]) -> Literal {
    let mut dims = parts[0].shape().to_vec();
    dims[0] = parts.iter().map(|p| p.shape()[0]).sum();
    let bytes: Vec<u8> = parts.iter().flat_map(|p| p.bytes().iter().copied()).collect();
    Literal::from_bytes(TensorType::new(parts[0].dtype(), dims), &bytes).unwrap()
}

/// Batches `range` of the fixture as a pipeline, with fields by the names of inputs and outputs.
fn data(f: &Fixture, model: &Model, name: &str, range: std::ops::Range<usize>) -> Dataset {
    let of = |part: &str, key: &str| -> Option<Literal> {
        let all: Option<Vec<&Literal>> =
            range.clone().map(|i| f.find(&format!("{name}/batch{i}/{part}/{key}"))).collect();
        Some(joined(&all?))
    };
    let mut fields: Vec<(String, Literal)> = Vec::new();
    for input in &model.architecture().inputs {
        fields.push((input.name.clone(), of("x", &input.name).unwrap()));
    }
    let outputs = model.architecture().output_names();
    for output in &outputs {
        let (label, weight) = match outputs.len() {
            1 => ("label".to_string(), "sample_weight".to_string()),
            _ => (output.to_string(), format!("{output}_sample_weight")),
        };
        fields.push((label, of("y", output).unwrap()));
        fields.extend(of("w", output).map(|w| (weight, w)));
    }
    let rows = fields[0].1.shape()[0] / range.len();
    Dataset::from_tensor_slices(fields).unwrap().batch(rows)
}

fn start(f: &Fixture, model: &mut Model, name: &str, weights: &[&str]) {
    for path in weights {
        model.set_weight(path, f.get(&format!("{name}/init/{path}")).clone()).unwrap();
    }
}

fn paths(described: &Value, key: &str) -> Vec<String> {
    described[key].as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_string()).collect()
}

#[test]
fn graphs_match_keras() {
    let f = Fixture::open("graphs");
    for described in f.list("models") {
        let name = name(described);
        let mut model = model_of(name);
        let all = paths(described, "weights");
        let weights: Vec<&str> = all.iter().map(String::as_str).collect();
        let ours: Vec<&str> = model.weights().iter().map(|(path, _)| *path).collect();
        assert_eq!(ours, weights, "{name}: the order of weights");
        start(&f, &mut model, name, &weights);
        let mut worst = Worst::below(2e-5);
        let first = data(&f, &model, name, 0..1);
        for (output, y) in model.predict_all(&first).unwrap() {
            let keras = f.get(&format!("{name}/predicted/{output}"));
            worst.see(&format!("{name} {output}"), relative_l2(&y, keras));
        }
        let batch = batch_of(&model, &first);
        let gradients = model.gradients(&batch).unwrap();
        // Rounding of what others add up to is no deviation: a softmax takes away what all keys have in common.
        let least = gradients.iter().map(|(_, g)| norm(g)).fold(0.0, f64::max) * 1e-3;
        for (path, gradient) in &gradients {
            let keras = f.get(&format!("{name}/grad/{path}"));
            let deviation = relative_l2(gradient, keras) * norm(keras) / norm(keras).max(least);
            worst.see(&format!("{name} gradient of {path}"), deviation);
        }
        let validation = data(&f, &model, name, 2..3);
        let train = data(&f, &model, name, 0..2);
        // Two epochs, and evaluation after the last.
        let fit = Fit {
            epochs: 2,
            validation: Some(validation.clone()),
            validation_freq: 2,
            verbose: 0,
            ..Fit::default()
        };
        let history = model.fit(&train, fit).unwrap();
        for (key, values) in described["history"].as_object().unwrap() {
            let ours = history.get(key);
            let keras: Vec<f64> = values.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            assert_eq!(ours.len(), keras.len(), "{name} {key}: {ours:?}");
            for (a, b) in ours.iter().zip(&keras) {
                worst.see(&format!("{name} {key}"), (a - b).abs() / b.abs().max(1e-3));
            }
        }
        let known = described["history"].as_object().unwrap();
        for (key, _) in history.last().iter() {
            assert!(known.contains_key(key), "{name}: {key} is no name of Keras's");
        }
        for path in &weights {
            let keras = f.get(&format!("{name}/final/{path}"));
            worst.see(&format!("{name} final {path}"), relative_l2(&model.weight(path).unwrap(), keras));
        }
        worst.report(name);
    }
}

fn norm(x: &Literal) -> f64 {
    x.to_f64s().iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// The first batch of a pipeline with one field for each input and output.
fn batch_of(model: &Model, data: &Dataset) -> Batch {
    let sample = data.iter().next().unwrap().unwrap();
    let get = |name: &str| sample.get(name).ok().cloned();
    let inputs = model.architecture().inputs.iter().map(|i| get(&i.name).unwrap()).collect();
    let outputs = model.architecture().output_names();
    if outputs.len() == 1 {
        return Batch { inputs, label: get("label"), weight: get("sample_weight"), ..Batch::default() };
    }
    let of = |output: &&str| (get(output).unwrap(), get(&format!("{output}_sample_weight")));
    let mut all = outputs.iter().map(of);
    let (label, weight) = all.next().unwrap();
    Batch { inputs, label: Some(label), weight, more: all.collect(), ..Batch::default() }
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("systole-graphs-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A file brings back the model inside, all outputs, losses by name and the optimizer's state: training goes on to the same bits.
#[test]
fn files_hold_models_of_several_outputs() {
    let f = Fixture::open("graphs");
    let dir = folder("file");
    let path = dir.join("model.safetensors");
    let mut model = model_of("two_outputs");
    let compile = Compile { optimizer: adam(0.01), ..model.compile_config().unwrap().clone() };
    model.compile(compile).unwrap();
    let train = data(&f, &model, "two_outputs", 0..2);
    model.fit(&train, Fit { epochs: 1, verbose: 0, ..Fit::default() }).unwrap();
    model.save(&path).unwrap();
    let mut again = Model::load(&path).unwrap();
    assert_eq!(again.architecture().output_names(), ["class", "size"]);
    assert_eq!(again.output_types().len(), 2);
    assert_eq!(again.summary(), model.summary());
    assert!(again.summary().contains("encoder (Sequential)"), "{}", again.summary());
    let on = |model: &mut Model| -> (History, Vec<Literal>) {
        let fit = Fit {
            epochs: 3,
            initial_epoch: 1,
            validation: Some(train.clone()),
            verbose: 0,
            ..Fit::default()
        };
        let history = model.fit(&train, fit).unwrap();
        (history, model.weights().iter().map(|(_, w)| w.to_literal().unwrap()).collect())
    };
    let ((a, wa), (b, wb)) = (on(&mut model), on(&mut again));
    assert_eq!(wa, wb);
    assert_eq!(a.get("val_size_loss"), b.get("val_size_loss"));
    // One array in another shape is a file of another model.
    let mut file = ModelFile::load(&path).unwrap();
    let architecture = file.metadata.get_mut("architecture").unwrap();
    *architecture = architecture.replace(r#""more_outputs":[{"layer":"#, r#""more_outputs":[{"layer":9"#);
    let e = Model::from_file(file, &CustomObjects::new()).unwrap_err();
    assert_error(&e, ErrorKind::Data, &[]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A run that was stopped goes on to the bits of one that was not.
#[test]
fn runs_of_several_outputs_go_on_from_backups() {
    let f = Fixture::open("graphs");
    let dir = folder("backup");
    let run = |backup: Option<BackupAndRestore>, pause: Option<usize>| {
        let mut model = model_of("two_outputs");
        let train = data(&f, &model, "two_outputs", 0..3);
        let fit = Fit { epochs: 4, backup, pause_after: pause, verbose: 0, ..Fit::default() };
        let history = model.fit(&train, fit).unwrap();
        let weights: Vec<Literal> = model.weights().iter().map(|(_, w)| w.to_literal().unwrap()).collect();
        (history.get("class_loss"), history.get("size_mean_absolute_percentage_error"), weights)
    };
    let whole = run(None, None);
    run(Some(BackupAndRestore::new(&dir)), Some(2));
    assert_eq!(run(Some(BackupAndRestore::new(&dir)), None), whole);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_does_not_fit_several_outputs_is_told() {
    let f = Fixture::open("graphs");
    let compiled = |change: &dyn Fn(&mut Compile)| {
        let (architecture, mut compile) = two_outputs();
        change(&mut compile);
        Model::new(architecture).compile(compile).unwrap_err().to_string()
    };
    let e = compiled(&|c| drop(c.losses.insert("sise".into(), mean_squared_error())));
    assert!(e.contains("`sise`") && e.contains("`size`"), "{e}");
    let e = compiled(&|c| c.metrics = vec![Metric::SparseCategoricalAccuracy]);
    assert!(e.contains("2 outputs") && e.contains("output_metrics"), "{e}");
    let e = compiled(&|c| c.loss_weights = [("size".into(), f64::NAN)].into());
    assert!(e.contains("NaN"), "{e}");
    let mut model = model_of("two_outputs");
    let all = data(&f, &model, "two_outputs", 0..1);
    let without = all.map(|s: systole_data::Sample| s.without("size"));
    let e = model.fit(&without, Fit { verbose: 0, ..Fit::default() }).unwrap_err().to_string();
    assert!(e.contains("`size`"), "{e}");
    let weights = Fit { class_weight: [(0, 2.0)].into(), verbose: 0, ..Fit::default() };
    let e = model.fit(&all, weights).unwrap_err().to_string();
    assert!(e.contains("class_weight") && e.contains("sample_weight"), "{e}");
    let x = input("x", [4]);
    let twice = [&x.apply(dense(1).name("y")), &x.apply(dense(1).name("y"))];
    let e = Model::functional(std::slice::from_ref(&x), twice)
        .unwrap()
        .compile(Compile::default())
        .unwrap_err()
        .to_string();
    assert!(e.contains("`y`"), "{e}");
}

/// An output whose loss is left out is measured and not trained; one that is not named at all needs no labels.
#[test]
fn outputs_may_have_no_loss() {
    let f = Fixture::open("graphs");
    let (architecture, mut compile) = two_outputs();
    compile.losses.remove("class");
    compile.loss_weights.clear();
    compile.output_metrics.remove("class");
    let mut model = Model::new(architecture);
    model.compile(compile).unwrap();
    let all = data(&f, &model, "two_outputs", 0..2).map(|s: systole_data::Sample| s.without("class"));
    model.build(&[f32s(&[6]), f32s(&[6])]).unwrap();
    let before = model.weight("class/kernel").unwrap();
    let history = model.fit(&all, Fit { epochs: 2, verbose: 0, ..Fit::default() }).unwrap();
    assert_eq!(model.weight("class/kernel").unwrap(), before);
    // With one loss there is nothing to tell apart.
    assert!(history.last().get("size_loss").is_none() && history.last().get("loss").is_some());
    assert_eq!(model.predict_all(&all).unwrap().len(), 2);
}

/// A model brings its weights along; frozen, none of them changes, and moving statistics stay.
#[test]
fn models_inside_of_models() {
    systole_runtime::register(systole_cpu::provider());
    let mut body = Model::sequential([dense(4).name("a"), layers::batch_normalization().name("norm")]);
    body.build(&[f32s(&[3])]).unwrap();
    body.set_weight("norm/moving_mean", Literal::from_slice([4], &[1f32, 2., 3., 4.]).unwrap()).unwrap();
    let inner = Architecture::sequential([LayerSpec::from(&body).name("body"), dense(4).name("top")]);
    let built = |frozen: bool| {
        let x = input("x", [3]);
        let outer = LayerSpec::from(inner.clone()).name("outer").trainable(!frozen);
        let y = x.apply(outer).apply(dense(1).name("head"));
        let mut model = Model::functional(&[x], &y).unwrap();
        model
            .compile(Compile { loss: mean_squared_error(), optimizer: sgd(0.1), ..Compile::default() })
            .unwrap();
        model.build(&[f32s(&[3])]).unwrap();
        model
    };
    let x = Literal::from_slice([4, 3], &[1f32, 2., 3., 4., 5., 6., 7., 8., 9., 1., 0., 1.]).unwrap();
    let y = Literal::from_slice([4, 1], &[1f32, 2., 3., 4.]).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap().batch(4);
    let kernel = "outer/body/a/kernel";
    for frozen in [true, false] {
        let mut model = built(frozen);
        assert_eq!(model.weight(kernel).unwrap(), body.weight("a/kernel").unwrap());
        let mean = |m: &Model| m.weight("outer/body/norm/moving_mean").unwrap();
        let before = (mean(&model), model.weight("head/kernel").unwrap());
        model.fit(&data, Fit { verbose: 0, ..Fit::default() }).unwrap();
        assert_eq!(model.weight(kernel).unwrap() == body.weight("a/kernel").unwrap(), frozen);
        assert_eq!(mean(&model) == before.0, frozen);
        assert_ne!(model.weight("head/kernel").unwrap(), before.1);
        let again = Model::from_file(model.to_file().unwrap(), &CustomObjects::new()).unwrap();
        assert_eq!(again.architecture().to_json(), model.architecture().to_json());
        assert_eq!(mean(&again), mean(&model));
    }
    // Inside, what does not train is said of single layers, too.
    let part = Architecture::sequential([dense(4).name("a").trainable(false), dense(2).name("b")]);
    let mut model = Model::sequential([LayerSpec::from(part).name("part")]);
    model.build(&[f32s(&[3])]).unwrap();
    let file = model.to_file().unwrap();
    let summary = model.summary();
    assert!(summary.contains("Trainable: 10; not trainable: 16"), "{summary}");
    assert!(file.metadata["architecture"].contains(r#""class_name":"Sequential""#));
}

/// A model of several outputs is computed once: what it draws is the same for all of them, through files and loops, too.
#[test]
fn all_outputs_of_a_model_inside_are_of_one_call() {
    systole_runtime::register(systole_cpu::provider());
    let x = input("x", [64]);
    let dropped = x.apply(dropout(0.5));
    let twice = Architecture::functional(&[x], [&dropped, &dropped.apply(rescaling(3.0))]).unwrap();
    let y = input("y", [64]);
    let [once, thrice] = &y.apply_all(LayerSpec::from(twice).name("twice"))[..] else {
        panic!("two outputs")
    };
    // The same value is the first output of both of these.
    let z = input("z", [64]);
    let passed = |scale: f64| {
        LayerSpec::from(
            Architecture::functional(std::slice::from_ref(&z), [&z, &z.apply(rescaling(scale))]).unwrap(),
        )
    };
    let (a, b) = (y.apply_all(passed(2.0).name("a")), y.apply_all(passed(5.0).name("b")));
    let difference = subtract().on(&[&thrice.apply(rescaling(1.0 / 3.0)), once]);
    let model =
        Model::functional(&[y], [&difference, &subtract().name("scaled").on(&[&b[1], &a[1]])]).unwrap();
    let mut model = Model::from_file(
        {
            let mut model = model;
            model.build(&[f32s(&[64])]).unwrap();
            model.to_file().unwrap()
        },
        &CustomObjects::new(),
    )
    .unwrap();
    let x = Literal::from_slice([1, 64], &(0..64).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    let data = Dataset::from_tensor_slices([("y", x.clone())]).unwrap().batch(1);
    let all = model.predict_all(&data).unwrap();
    let named: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(named, ["subtract", "scaled"]);
    assert!(all[0].1.to_f32s().iter().all(|v| v.abs() < 1e-5));
    assert!(all[1].1.to_f32s().iter().zip(x.to_f32s()).all(|(v, x)| (v - 3.0 * x).abs() < 1e-4));
    let g = systole_ir::GraphBuilder::new("training");
    let seed = g.scalar(DType::U64, 7.0);
    let step = g.scalar(DType::U64, 1.0);
    let mut cx = systole_nn::Cx::new(&g, Default::default(), systole_nn::Precision::Float32)
        .training_with(&seed, &step);
    let input = g.parameter(f32s(&[1, 64]), "y");
    let outputs = model.architecture().call_all(&mut cx, &[input]);
    let results = systole_ir::interp::run(&g.finish(&outputs).unwrap(), &[&x]).unwrap();
    assert!(results[0].to_f32s().iter().all(|v| v.abs() < 1e-4), "one mask for both outputs");
}

#[test]
fn what_cannot_be_a_layer_is_told() {
    let x = input("x", [4]);
    let lost = x.apply(dense(4)).apply(model_output(1));
    let e = Model::functional(&[x], &lost).unwrap().build(&[f32s(&[4])]).unwrap_err().to_string();
    assert!(e.contains("output 1") && e.contains("apply_all"), "{e}");
    let x = input("x", [4]);
    let inner = Architecture::functional(std::slice::from_ref(&x), &x.apply(dense(2))).unwrap();
    let mut outer = Model::sequential([LayerSpec::from(inner).name("inner")]);
    let e = outer.build(&[f32s(&[5])]).unwrap_err().to_string();
    assert!(e.contains("`x`") && e.contains("inner"), "{e}");
}
