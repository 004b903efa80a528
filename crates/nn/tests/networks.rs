//! Small recurrent, transformer and residual networks compared with four training steps of Keras.
//!
//! Values are in fixtures/keras/networks.safetensors; gradients are compared with the interpreter at every
//! instruction-set level.

#![allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]

mod keras;

use keras::{Fixture, Worst, relative_l2};
use serde_json::{Value, json};
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level, ThreadPool};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Literal, Tensor, TensorType};
use systole_nn::applications::by_name;
use systole_nn::layers::LayerSpec;
use systole_nn::loss::{Loss, Prediction, sparse_categorical_crossentropy};
use systole_nn::optimizer::{Optimizer, adam, adamw, sgd};
use systole_nn::{Architecture, Batch, Compile, Cx, Model, Precision};
use systole_runtime::{Backend, Buffer, Params, backend, jit, value_and_grad};

fn architecture(network: &Value) -> Architecture {
    if let Some(application) = network["application"].as_str() {
        return by_name(application, network["arguments"].as_object().unwrap()).unwrap();
    }
    let layers = network["layers"].as_array().unwrap().iter();
    Architecture::sequential(
        layers.map(|l| LayerSpec::from_table(l["class"].as_str().unwrap(), &l["kwargs"]).unwrap()),
    )
}

fn loss(network: &Value) -> Loss {
    match network["from_logits"].as_bool().unwrap() {
        true => sparse_categorical_crossentropy().from_logits(true),
        false => sparse_categorical_crossentropy(),
    }
}

fn optimizer(network: &Value) -> Optimizer {
    let (class, kwargs) = (network["optimizer"]["class"].as_str().unwrap(), &network["optimizer"]["kwargs"]);
    let rate = kwargs["learning_rate"].as_f64().unwrap();
    match class {
        "Adam" => adam(rate),
        "AdamW" => adamw(rate).weight_decay(kwargs["weight_decay"].as_f64().unwrap()),
        "SGD" => sgd(rate).momentum(kwargs["momentum"].as_f64().unwrap()),
        other => panic!("optimizer {other}"),
    }
}

/// The network with Keras's initial weights.
fn model(f: &Fixture, network: &Value, backend: &Arc<dyn Backend>) -> Model {
    let mut model = Model::new(architecture(network));
    let backend = Some(backend.clone());
    let compile =
        Compile { optimizer: optimizer(network), loss: loss(network), backend, ..Default::default() };
    model.compile(compile).unwrap();
    let shape: Vec<usize> =
        network["input_shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
    let dtype = if network["tokens"].as_bool().unwrap() { DType::I32 } else { DType::F32 };
    model.build(&[TensorType::new(dtype, shape)]).unwrap();
    for path in paths(network) {
        model.set_weight(&path, f.get(&format!("{}/init/{path}", keras::name(network))).clone()).unwrap();
    }
    model
}

fn paths(network: &Value) -> Vec<String> {
    network["weights"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_string()).collect()
}

fn batch(f: &Fixture, network: &Value, i: usize) -> Batch {
    let of = |part: &str| f.get(&format!("{}/batch{i}/{part}", keras::name(network))).clone();
    Batch { inputs: vec![of("x")], label: Some(of("y")), ..Default::default() }
}

/// Loss and gradients of the first batch, through the same layers and loss as `fit`.
fn gradients(f: &Fixture, network: &Value, on: &Arc<dyn Backend>) -> (f64, Params<Buffer>) {
    gradients_of(&model(f, network, on), loss(network), batch(f, network, 0), on)
}

fn gradients_of(model: &Model, loss: Loss, batch: Batch, on: &Arc<dyn Backend>) -> (f64, Params<Buffer>) {
    let architecture = model.architecture().clone();
    let step = jit(move |(trained, other, x, y): (Params, Params, Tensor, Tensor)| {
        let seed = y.builder().scalar(DType::U64, 0.0);
        value_and_grad(
            |w: &Params| {
                let all = w.clone().into_iter().chain(other.clone()).collect();
                let mut cx = Cx::new(y.builder(), all, Precision::Float32).training_with(&seed, &seed);
                let out = architecture.call(&mut cx, std::slice::from_ref(&x));
                let logits = cx.logits_of(&out);
                loss.value(&y, Prediction { value: &out, logits: logits.as_ref() }, None)
            },
            &trained,
        )
    });
    let weights = |moving: bool| -> Params<Buffer> {
        let of = model.weights().into_iter().filter(|(n, _)| n.contains("moving_") == moving);
        of.map(|(n, b)| (n.to_string(), b.clone())).collect()
    };
    let args = (weights(false), weights(true), batch.inputs[0].clone().into(), batch.label.unwrap().into());
    let (loss, grads) = step.on(on.clone()).call(args).unwrap();
    (loss.to_f64().unwrap(), grads)
}

fn cpu() -> Arc<dyn Backend> {
    systole_runtime::register(systole_cpu::provider());
    backend("cpu").unwrap()
}

/// How far a gradient is off; see `is_noise` of the fixture's script for those that are 0 but for rounding.
fn off(path: &str, own: &Params<Buffer>, reference: impl Fn(&str) -> Literal) -> f64 {
    let of = |path: &str| own[path].to_literal().unwrap();
    let like = match path.strip_suffix("_conv/bias") {
        Some(layer) => Some(format!("{layer}_conv/kernel")),
        None => path.strip_suffix("key/bias").map(|layer| format!("{layer}query/bias")),
    };
    let norm = |x: &Literal| x.to_f64s().iter().map(|v| v * v).sum::<f64>().sqrt();
    match like {
        Some(like) => norm(&of(path)) / norm(&reference(&like)),
        None => relative_l2(&of(path), &reference(path)),
    }
}

/// At least 1e-5, or three times what rounding alone makes of Keras's own run in f32.
fn bound(f: &Fixture, network: &Value, what: &str) -> f64 {
    (3.0 * f.get(&format!("{}/noise/{what}", keras::name(network))).to_f64s()[0]).max(1e-5)
}

#[test]
fn networks_train_as_in_keras() {
    let f = Fixture::open("networks");
    for on in [cpu(), backend("ref").unwrap()] {
        for network in f.list("networks") {
            let name = keras::name(network);
            let expected = f.get(&format!("{name}/losses")).to_f64s();
            let (loss, grads) = gradients(&f, network, &on);
            let mut losses = Worst::below(bound(&f, network, "losses"));
            losses.see(name, (loss / expected[0] - 1.0).abs());
            let mut gradient = Worst::below(bound(&f, network, "grad"));
            for path in grads.names() {
                let reference = |path: &str| f.get(&format!("{name}/grad/{path}")).clone();
                gradient.see(&format!("{name}/{path}"), off(path, &grads, reference));
            }
            let mut model = model(&f, network, &on);
            for (i, expected) in expected.iter().enumerate() {
                let logs = model.train_on_batch(&batch(&f, network, i)).unwrap();
                losses.see(&format!("{name} step {i}"), (logs["loss"] / expected - 1.0).abs());
            }
            let mut weights = Worst::below(bound(&f, network, "final"));
            for path in paths(network) {
                let reference = f.get(&format!("{name}/final/{path}"));
                weights.see(&format!("{name}/{path}"), relative_l2(&model.weight(&path).unwrap(), reference));
            }
            losses.report(&format!("{} {name} losses", on.name()));
            gradient.report(&format!("{} {name} gradients", on.name()));
            weights.report(&format!("{} {name} weights", on.name()));
        }
    }
}

#[test]
fn weights_of_networks_stand_in_keras_s_order() {
    let f = Fixture::open("networks");
    for network in f.list("networks") {
        let model = model(&f, network, &cpu());
        let names: Vec<&str> = model.weights().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, paths(network), "{}", keras::name(network));
    }
}

#[test]
fn resnet50_has_keras_s_weights() {
    let f = Fixture::open("networks");
    let mut model = Model::new(by_name("resnet50", &Default::default()).unwrap());
    model.build(&[TensorType::new(DType::F32, [224, 224, 3])]).unwrap();
    let weights = model.weights();
    let keras = f.list("resnet50");
    assert_eq!(weights.len(), keras.len());
    for ((path, buffer), expected) in weights.iter().zip(keras) {
        assert_eq!((expected[0].as_str(), path.is_empty()), (Some(*path), false));
        let shape: Vec<u64> = buffer.ty().shape.iter().map(|d| *d as u64).collect();
        assert_eq!(expected[1], serde_json::json!(shape), "{path}");
    }
    let count: usize = weights.iter().map(|(_, b)| b.ty().elements()).sum();
    assert_eq!(count, 25_636_712);
}

/// The same sums in another order: what the interpreter rounds once, a kernel rounds at each step.
#[test]
fn gradients_agree_with_the_interpreter_at_every_level() {
    let f = Fixture::open("networks");
    let levels: Vec<Level> = Level::ALL.iter().copied().filter(|l| l.is_available()).collect();
    for network in f.list("networks") {
        let name = keras::name(network);
        let (loss, reference) = gradients(&f, network, &backend("ref").unwrap());
        for &level in &levels {
            let on: Arc<dyn Backend> = Arc::new(CpuBackend::with(ThreadPool::new(2), level).unwrap());
            let (own_loss, grads) = gradients(&f, network, &on);
            assert!((own_loss / loss - 1.0).abs() < 1e-6, "{name} {}: {own_loss}, {loss}", level.name());
            let mut worst = Worst::below(1e-5);
            for path in grads.names() {
                let place = format!("{name}/{path} {}", level.name());
                worst.see(&place, off(path, &grads, |path| reference[path].to_literal().unwrap()));
            }
            worst.report(&format!("{name} {}", level.name()));
        }
    }
}

/// A network of an application, built with weights of its own, and a batch for it.
fn drawn(name: &str, arguments: Value, input: TensorType, batch: usize, classes: i32) -> (Model, Batch) {
    let mut model = Model::new(by_name(name, arguments.as_object().unwrap()).unwrap());
    model.build(std::slice::from_ref(&input)).unwrap();
    let shape = [&[batch], input.shape.dims()].concat();
    let n: usize = shape.iter().product();
    let mut s = RandomStream::new(3, 5, 7);
    let tokens = |s: &mut RandomStream, n: usize| -> Vec<i32> {
        (0..n).map(|_| s.below(classes as u64) as i32).collect()
    };
    let x = match input.dtype {
        DType::I32 => Literal::from_slice(&shape[..], &tokens(&mut s, n)).unwrap(),
        _ => {
            let values: Vec<f32> = (0..n).map(|_| s.range(-1.0, 1.0)).collect();
            Literal::from_slice(&shape[..], &values).unwrap()
        }
    };
    let labels = if input.dtype == DType::I32 { shape } else { vec![batch] };
    let y = tokens(&mut s, labels.iter().product());
    let y = Literal::from_slice(&labels[..], &y).unwrap();
    (model, Batch { inputs: vec![x], label: Some(y), ..Default::default() })
}

/// Blocks of the size that kernels cut into tiles, panels and tasks, with dropout.
#[test]
fn blocks_of_resnet50_and_gpt2_agree_with_the_interpreter_at_every_level() {
    let gpt2 = json!({"hidden_dim": 48, "intermediate_dim": 96, "max_sequence_length": 40, "num_heads": 3,
        "num_layers": 1, "vocabulary_size": 101, "dropout": 0.1});
    let resnet50 = json!({"classes": 7, "depths": [1, 1], "width": 16});
    let cases = [
        ("gpt2", drawn("gpt2", gpt2, TensorType::new(DType::I32, [40]), 2, 101), true),
        ("resnet50", drawn("resnet50", resnet50, TensorType::new(DType::F32, [32, 32, 3]), 3, 7), false),
    ];
    for (name, (model, batch), from_logits) in cases {
        let loss = sparse_categorical_crossentropy().from_logits(from_logits);
        let on = |backend: Arc<dyn Backend>| gradients_of(&model, loss.clone(), batch.clone(), &backend);
        let (wanted, reference) = on(backend("ref").unwrap());
        for level in Level::ALL.iter().copied().filter(|l| l.is_available()) {
            let (own, grads) = on(Arc::new(CpuBackend::with(ThreadPool::new(2), level).unwrap()));
            assert!((own / wanted - 1.0).abs() < 1e-6, "{name} {}: {own}, {wanted}", level.name());
            let mut worst = Worst::below(1e-5);
            for path in grads.names() {
                let place = format!("{name}/{path} {}", level.name());
                worst.see(&place, off(path, &grads, |path| reference[path].to_literal().unwrap()));
            }
            worst.report(&format!("{name} {}", level.name()));
        }
    }
}
