//! Every built-in layer compared with Keras's values and gradients (`layers` and `sequences` of fixtures/keras).
//!
//! A fixed set of checks covers output shapes, JSON, precisions, determinism, and errors that name the layer.

#![allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use systole_ir::{DType, Error, GraphBuilder, Literal, Result, Tensor, TensorType, vjp};
use systole_nn::layers::testing::{LayerSample, parity_cases, samples};
use systole_nn::layers::*;
use systole_nn::{Activation, Cx, Initializer, Layer, Precision, WeightSpec};
use systole_runtime::{Buffer, Params, backend, jit};

/// Backends that all cases run on.
const BACKENDS: &[&str] = &["ref", "cpu"];

fn open(name: &str) -> std::sync::Arc<dyn systole_runtime::Backend> {
    systole_runtime::register(systole_cpu::provider());
    backend(name).unwrap()
}

/// A layer called once: with which weights, on what, how.
struct LayerCall<'a> {
    spec: &'a LayerSpec,
    name: &'a str,
    weights: Params<Buffer>,
    inputs: Vec<Literal>,
    precision: Precision,
    /// Seed and step of a training call.
    training: Option<(u64, u64)>,
}

/// What a call gives.
struct Outcome {
    y: Literal,
    /// Cotangents of the inputs that have one.
    dx: Vec<Literal>,
    /// Cotangents of all weights, by variable.
    dw: BTreeMap<String, Literal>,
    /// New values of variables that training updates.
    after: BTreeMap<String, Literal>,
}

impl<'a> LayerCall<'a> {
    fn new(spec: &'a LayerSpec, inputs: &[Literal]) -> LayerCall<'a> {
        LayerCall {
            spec,
            name: "layer",
            weights: Params::new(),
            inputs: inputs.to_vec(),
            precision: Precision::Float32,
            training: None,
        }
    }

    /// With weights as its initializers make them.
    fn initialised(mut self) -> Result<LayerCall<'a>> {
        let types: Vec<TensorType> = self.inputs.iter().map(|x| x.ty().clone()).collect();
        let (_, specs) = infer(self.spec, self.name, &types, self.precision)?;
        for w in specs {
            self.weights.insert(w.path.clone(), w.initializer.make(&w.shape, 11, &w.path).into());
        }
        Ok(self)
    }

    /// `dy` absent: ones.
    fn run(self, backend_name: &str, dy: Option<Literal>) -> Result<Outcome> {
        let LayerCall { spec, name, weights, inputs, precision, training } = self;
        let f = jit(|(weights, inputs, dy): (Params, Vec<Tensor>, Vec<Tensor>)| {
            let g = some_builder(&weights, &inputs);
            let mut cx = Cx::new(&g, weights.clone(), precision);
            if let Some((seed, step)) = training {
                let word = |v: u64| g.constant(Literal::from_slice([], &[v]).unwrap());
                cx = cx.training_with(&word(seed), &word(step));
            }
            let y = cx.scope(name, |cx| spec.call(cx, &inputs));
            let after = cx.take_updates();
            let dy = dy.first().cloned().unwrap_or_else(|| y.ones_like());
            let floats: Vec<&Tensor> =
                inputs.iter().filter(|x| x.dtype().is_float()).chain(weights.values()).collect();
            let mut grads = vjp(&[&y], &[&dy], &floats);
            let dw = grads.split_off(floats.len() - weights.len());
            (y, grads, dw, after)
        });
        let names: Vec<String> = weights.names().map(variable).collect();
        let inputs: Vec<Buffer> = inputs.into_iter().map(Buffer::from).collect();
        let dy: Vec<Buffer> = dy.into_iter().map(Buffer::from).collect();
        let (y, dx, dw, after) = f.on(open(backend_name)).call((weights, inputs, dy))?;
        let literal = |b: Buffer| b.to_literal();
        Ok(Outcome {
            y: y.to_literal()?,
            dx: dx.into_iter().map(literal).collect::<Result<_>>()?,
            dw: names.into_iter().zip(dw).map(|(n, b)| Ok((n, b.to_literal()?))).collect::<Result<_>>()?,
            after: after.iter().map(|(n, b)| Ok((variable(n), b.to_literal()?))).collect::<Result<_>>()?,
        })
    }
}

fn some_builder(weights: &Params, inputs: &[Tensor]) -> GraphBuilder {
    let first = inputs.first().or(weights.values().next());
    first.expect("a layer has inputs").builder().clone()
}

/// `layer/query/kernel` → `query/kernel`.
fn variable(path: &str) -> String {
    path.split_once('/').map_or(path, |(_, own)| own).to_string()
}

/// Output type and weights of a layer for inputs of these types.
fn infer(
    spec: &LayerSpec,
    name: &str,
    inputs: &[TensorType],
    precision: Precision,
) -> Result<(TensorType, Vec<WeightSpec>)> {
    spec.check()?;
    let g = GraphBuilder::new("main");
    let inputs: Vec<Tensor> = inputs.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let mut cx = Cx::collecting(&g, precision);
    let y = cx.scope(name, |cx| spec.call(cx, &inputs));
    g.finish(std::slice::from_ref(&y))?;
    Ok((y.ty().clone(), cx.into_specs()))
}

fn refusal(spec: &LayerSpec, inputs: &[TensorType]) -> String {
    match infer(spec, "the_layer", inputs, Precision::Float32) {
        Err(e) => e.to_string(),
        Ok((ty, _)) => panic!("{} took {inputs:?} and gave {ty}", spec.class_name()),
    }
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

// ---- Keras's values ----

struct Fixture {
    tensors: BTreeMap<String, Literal>,
    cases: Vec<Value>,
}

fn fixture(name: &str) -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/keras/{name}.safetensors"));
    let bytes = std::fs::read(path).expect("the fixture is committed");
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).expect("a safetensors file");
    let cases = metadata.metadata().as_ref().expect("metadata")["cases"].clone();
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let literal = |view: &safetensors::tensor::TensorView| {
        let dtype = DType::parse(&format!("{:?}", view.dtype()).to_lowercase()).expect("a known type");
        Literal::from_bytes(TensorType::new(dtype, view.shape()), view.data()).expect("whole tensor")
    };
    let tensors = file.tensors().iter().map(|(name, view)| (name.clone(), literal(view))).collect();
    Fixture { tensors, cases: serde_json::from_str(&cases).expect("cases are JSON") }
}

/// The layer of a case: a class with Keras's arguments, or an activation function with its own.
fn layer_of(case: &Value) -> LayerSpec {
    let class = case["class"].as_str().expect("class");
    let kwargs = &case["kwargs"];
    let Some(function) = class.strip_prefix("activations.") else {
        // In Keras an argument of the call.
        let mut kwargs = kwargs.clone();
        if let Some(causal) = case["call"].get("use_causal_mask") {
            kwargs["use_causal_mask"] = causal.clone();
        }
        let spec = LayerSpec::from_table(class, &kwargs).unwrap_or_else(|e| panic!("{case}: {e}"));
        let Some(rank) = case["lora"]["rank"].as_u64() else { return spec };
        let spec = spec.enable_lora(rank as usize);
        return case["lora"]["alpha"].as_f64().map_or(spec.clone(), |alpha| spec.lora_alpha(alpha));
    };
    if kwargs.get("axis").is_some() {
        return LayerSpec::from_table("Softmax", kwargs).expect("softmax takes an axis");
    }
    let plain = kwargs.as_object().expect("kwargs").is_empty();
    let value = if plain { json!(function) } else { json!({ function: kwargs }) };
    LayerSpec::from_table("Activation", &json!({ "activation": value }))
        .unwrap_or_else(|e| panic!("{case}: {e}"))
}

/// Greatest difference over the greatest magnitude of what is expected.
fn deviation(got: &Literal, expected: &Literal) -> f64 {
    assert_eq!(got.shape(), expected.shape());
    let (got, expected) = (got.to_f64s(), expected.to_f64s());
    let scale = expected.iter().fold(0.0, |m: f64, e| m.max(e.abs()));
    let difference = got.iter().zip(&expected).fold(0.0, |m: f64, (g, e)| {
        // A NaN must not pass as "not greater".
        if (g - e).is_nan() { f64::INFINITY } else { m.max((g - e).abs()) }
    });
    if difference == 0.0 { 0.0 } else { difference / scale.max(f64::MIN_POSITIVE) }
}

/// The greatest magnitude.
fn size(x: &Literal) -> f64 {
    x.to_f64s().iter().fold(0.0, |m: f64, v| m.max(v.abs()))
}

/// The tolerance of a case. Inputs of mean 100 lose two of f32's seven digits in Keras's own subtraction of the mean.
fn tolerance(name: &str) -> f64 {
    if name.ends_with("_offset") { 1e-4 } else { 1e-5 }
}

/// Everything the fixture holds of a case, compared; returns deviations by what was compared.
fn compare(f: &Fixture, case: &Value, backend_name: &str) -> Vec<(String, f64)> {
    let name = case["name"].as_str().expect("name");
    let spec = layer_of(case);
    let of = |part: &str| f.tensors.get(&format!("{name}/{part}")).cloned();
    let inputs: Vec<Literal> =
        of("x").into_iter().chain((0..3).filter_map(|i| of(&format!("x{i}")))).collect();
    let mut call = LayerCall::new(&spec, &inputs);
    let prefix = format!("{name}/w/");
    for (key, value) in f.tensors.iter().filter(|(k, _)| k.starts_with(&prefix)) {
        call.weights.insert(format!("layer/{}", &key[prefix.len()..]), value.clone().into());
    }
    if case["training"] == json!(true) {
        call.training = Some((1, 2));
    }
    let out = call.run(backend_name, of("dy")).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut found = vec![("y".to_string(), deviation(&out.y, &of("y").expect("y")))];
    if case["gradients"] == json!(false) {
        return found;
    }
    if let Some(dx) = of("dx") {
        found.push(("dx".into(), deviation(&out.dx[0], &dx)));
    }
    for (i, dx) in (0..3).filter_map(|i| Some((i, of(&format!("dx{i}"))?))) {
        found.push((format!("dx{i}"), deviation(&out.dx[i], &dx)));
    }
    for (group, got) in [("dw", &out.dw), ("after", &out.after)] {
        let prefix = format!("{name}/{group}/");
        for (key, expected) in f.tensors.iter().filter(|(k, _)| k.starts_with(&prefix)) {
            let var = key[prefix.len()..].to_string();
            let got = got.get(&var).unwrap_or_else(|| panic!("{name}: no {group}/{var}"));
            // The softmax takes away what all keys have in common: rounding is all there is.
            let d = match var.as_str() {
                "key/bias" => size(got).max(size(expected)) / size(&of("dw/query/bias").expect("its like")),
                _ => deviation(got, expected),
            };
            found.push((format!("{group}/{var}"), d));
        }
        let expected = f.tensors.keys().filter(|k| k.starts_with(&prefix)).count();
        assert!(group == "dw" || got.len() == expected, "{name}: updates {:?}", got.keys());
    }
    found
}

/// A case that a file lists and the fixture lacks would be compared with nothing.
#[test]
fn the_fixture_has_the_cases_that_the_layers_list() {
    let known = fixture("layers").cases;
    for case in
        parity_cases().flat_map(|text| serde_json::from_str::<Vec<Value>>(text).expect("cases are JSON"))
    {
        let same = |c: &Value| ["name", "class", "kwargs"].iter().all(|k| c[k] == case[k]);
        assert!(known.iter().any(same), "run fixtures/keras/generate.py layers: {case}");
    }
}

#[test]
fn layers_match_keras() {
    let f = fixture("layers");
    assert!(f.cases.len() > 90, "{} cases", f.cases.len());
    for backend_name in BACKENDS {
        let mut wrong = Vec::new();
        for case in &f.cases {
            let name = case["name"].as_str().expect("name");
            for (what, d) in compare(&f, case, backend_name) {
                if d > tolerance(name) {
                    wrong.push(format!("{backend_name} {name} {what}: {d:.2e}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn layers_with_adapters_match_keras() {
    let f = fixture("lora");
    assert!(f.cases.len() > 5, "{} cases", f.cases.len());
    for backend_name in BACKENDS {
        for case in &f.cases {
            let found = compare(&f, case, backend_name);
            assert!(found.iter().any(|(what, _)| what.starts_with("dw/lora_") && what.ends_with("_b")));
            let wrong: Vec<_> = found.iter().filter(|(_, d)| *d > 1e-5).collect();
            assert!(wrong.is_empty(), "{backend_name} {}: {wrong:?}", case["name"]);
        }
    }
    // Another alpha is not Keras's.
    let mut case = f.cases[1].clone();
    case["lora"]["alpha"] = json!(7.0);
    assert!(compare(&f, &case, "ref").iter().any(|(_, d)| *d > 1e-3));
}

#[test]
fn layers_of_sequences_match_keras() {
    let f = fixture("sequences");
    assert!(f.cases.len() > 45, "{} cases", f.cases.len());
    for backend_name in BACKENDS {
        let (mut wrong, mut worst) = (Vec::new(), (0.0, String::new()));
        for case in &f.cases {
            let name = case["name"].as_str().expect("name");
            for (what, d) in compare(&f, case, backend_name) {
                // Forty steps of rounding in Keras itself; see the same case in f64.
                let allowed = if name.ends_with("_long") { 5e-5 } else { 1e-5 };
                if d > allowed {
                    wrong.push(format!("{backend_name} {name} {what}: {d:.2e}"));
                }
                if d > worst.0 {
                    worst = (d, format!("{name} {what}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        println!("{backend_name}: at most {:.1e} ({})", worst.0, worst.1);
    }
}

#[test]
fn weights_stand_in_keras_s_order() {
    for case in &fixture("sequences").cases {
        let f = fixture("sequences");
        let name = case["name"].as_str().expect("name");
        let inputs = (0..3).filter_map(|i| Some(f.tensors.get(&format!("{name}/x{i}"))?.ty().clone()));
        let spec = layer_of(case);
        let (_, weights) = infer(&spec, "layer", &inputs.collect::<Vec<_>>(), Precision::Float32).unwrap();
        let names: Vec<String> = weights.iter().map(|w| variable(&w.path)).collect();
        let keras: Vec<&str> =
            case["weights"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        // A reversible table has only the weights of the direction it was used in.
        assert!(
            keras.starts_with(&names.iter().map(String::as_str).collect::<Vec<_>>())
                || name == "reversible_untied",
            "{name}: {names:?}, {keras:?}"
        );
    }
}

#[test]
fn a_wrong_layer_does_not_match_keras() {
    let f = fixture("layers");
    let mut case = f.cases.iter().find(|c| c["name"] == "conv2d_same_s2").expect("the case").clone();
    case["kwargs"]["use_bias"] = json!(false);
    assert!(compare_is_off(&f, &case));
    let mut case = f.cases.iter().find(|c| c["name"] == "layer_norm").expect("the case").clone();
    case["kwargs"]["epsilon"] = json!(2e-3);
    assert!(compare_is_off(&f, &case));
    let f = fixture("sequences");
    for (name, key, value) in [
        ("lstm", "go_backwards", json!(true)),
        ("gru", "recurrent_activation", json!("tanh")),
        ("attention", "use_causal_mask", json!(true)),
    ] {
        let mut case = f.cases.iter().find(|c| c["name"] == name).expect("the case").clone();
        case["kwargs"][key] = value;
        assert!(compare_is_off(&f, &case), "{name}");
    }
}

fn compare_is_off(f: &Fixture, case: &Value) -> bool {
    compare(f, case, "ref").iter().any(|(_, d)| *d > 1e-5)
}

// ---- the battery ----

/// Numbers around zero, or small indices, that differ between elements.
fn sample(ty: &TensorType, salt: usize) -> Literal {
    let n = ty.elements();
    let value = |i: usize| ((i * 37 + salt * 17 + 5) % 101) as f32 / 40.0 - 1.2;
    if ty.dtype.is_float() {
        let values: Vec<f32> = (0..n).map(value).collect();
        return Literal::from_slice(ty.shape.clone(), &values).unwrap().convert(ty.dtype);
    }
    let values: Vec<i32> = (0..n).map(|i| (i % 7) as i32).collect();
    Literal::from_slice(ty.shape.clone(), &values).unwrap().convert(ty.dtype)
}

fn inputs_of(t: &LayerSample) -> Vec<Literal> {
    t.inputs.iter().enumerate().map(|(i, ty)| sample(ty, i)).collect()
}

#[test]
fn the_battery_has_every_layer() {
    let trials = samples();
    let tried: Vec<&str> = trials.iter().map(|t| t.spec.class_name()).collect();
    for class in LAYER_NAMES {
        assert!(tried.contains(class), "{class}");
    }
    assert_eq!(tried.iter().filter(|c| !LAYER_NAMES.contains(c)).count(), 0);
}

#[test]
fn output_shapes_and_weights_are_as_documented() {
    for t in samples() {
        let (ty, weights) = infer(&t.spec, "l", &t.inputs, Precision::Float32).unwrap();
        assert_eq!(ty, f32s(&t.output), "{:?}", t.spec);
        let names: Vec<String> = weights.iter().map(|w| w.path.clone()).collect();
        let expected: Vec<String> = t.weights.iter().map(|w| format!("l/{w}")).collect();
        assert_eq!(names, expected, "{:?}", t.spec);
        for w in weights {
            let is_kept = ["moving", "vector_u"].iter().any(|name| w.path.contains(name));
            assert_eq!(w.trainable, !is_kept, "{}", w.path);
        }
    }
}

#[test]
fn a_layer_survives_its_json_form() {
    for t in samples() {
        let spec = t.spec.name("a_name").trainable(false).remat(true);
        let text = spec.to_json().to_string();
        let again =
            LayerSpec::from_json(&serde_json::from_str(&text).unwrap(), &CustomLayers::new()).unwrap();
        assert_eq!(again.to_json().to_string(), text);
        assert_eq!((again.given_name(), again.is_trainable()), (Some("a_name"), false));
        let (LayerKind::BuiltIn(a), LayerKind::BuiltIn(b)) = (spec.kind(), again.kind()) else {
            panic!("{text}")
        };
        assert_eq!(a, b, "{text}");
        let derived = serde_json::to_value(a).unwrap();
        assert_eq!(
            (&derived["class_name"], &derived["config"]),
            (&spec.to_json()["class_name"], &a.layer().config())
        );
        assert_eq!(serde_json::from_value::<BuiltIn>(derived).unwrap(), *a);
    }
}

#[test]
fn layers_run_under_every_precision_and_twice_alike() {
    for backend_name in BACKENDS {
        for t in samples() {
            let run = |precision| {
                let mut call = LayerCall::new(&t.spec, &inputs_of(&t));
                (call.precision, call.training) = (precision, Some((3, 4)));
                call.initialised().unwrap().run(backend_name, None).unwrap()
            };
            let exact = run(Precision::Float32);
            assert_eq!(run(Precision::Float32).y, exact.y, "{:?}", t.spec);
            // Eight bits of bf16's mantissa, eleven of f16's, over sums of a few dozen products.
            for (precision, tolerance) in [(Precision::MixedBfloat16, 0.03), (Precision::MixedFloat16, 4e-3)]
            {
                let mixed = run(precision);
                assert_eq!(mixed.y.dtype(), precision.compute_dtype(), "{:?}", t.spec);
                let d = deviation(&mixed.y, &exact.y);
                assert!(d < tolerance, "{:?} {}: {d}", t.spec, precision.name());
                for (name, grad) in &mixed.dw {
                    assert_eq!(grad.dtype(), DType::F32, "{name}: weights and their gradients stay f32");
                }
            }
        }
    }
}

#[test]
fn inputs_of_a_wrong_shape_are_refused_by_name() {
    for t in samples() {
        let class = t.spec.class_name();
        let too_many = [t.inputs.clone(), vec![f32s(&[1]); 3]].concat();
        for inputs in t.refused.iter().chain([&too_many]) {
            let e = refusal(&t.spec, inputs);
            assert!(e.contains(class) && e.contains("layer the_layer") && e.contains("try: "), "{e}");
        }
        assert!(refusal(&t.spec, &[]).contains(class));
    }
}

#[test]
fn byte_images_are_cast() {
    let bytes = TensorType::new(DType::U8, [1, 6, 5, 3]);
    let x = sample(&bytes, 0);
    for spec in [conv2d(2, 3), max_pooling2d(2), batch_normalization(), rescaling(2.0), activation("relu")] {
        let run =
            |x: &Literal| LayerCall::new(&spec, std::slice::from_ref(x)).initialised()?.run("ref", None);
        assert_eq!(run(&x).unwrap().y, run(&x.convert(DType::F32)).unwrap().y, "{spec:?}");
    }
    let lookup = embedding(256, 2);
    let run = |x: &Literal| LayerCall::new(&lookup, std::slice::from_ref(x)).initialised()?.run("ref", None);
    assert_eq!(run(&x).unwrap().y, run(&x.convert(DType::I64)).unwrap().y);
    // On the way to an embedding integers stay integers.
    for spec in [flatten(), reshape([-1]), concatenate(-1)] {
        let (ty, _) = infer(&spec, "l", std::slice::from_ref(&bytes), Precision::MixedBfloat16).unwrap();
        assert_eq!(ty.dtype, DType::U8, "{spec:?}");
    }
}

// ---- single layers ----

fn ones(shape: &[usize]) -> Literal {
    let n = shape.iter().product();
    Literal::from_slice(shape, &vec![1f32; n]).unwrap()
}

fn drop_ones(rate: f64, name: &str, seed: u64, step: u64) -> Vec<f32> {
    let spec = dropout(rate);
    let mut call = LayerCall::new(&spec, &[ones(&[100, 200])]);
    (call.name, call.training) = (name, Some((seed, step)));
    call.run("ref", None).unwrap().y.to_f32s()
}

#[test]
fn dropout_keeps_its_share_and_the_mean() {
    for rate in [0.1, 0.5, 0.8] {
        let y = drop_ones(rate, "d", 1, 1);
        let scale = (1.0 / (1.0 - rate)) as f32;
        assert!(y.iter().all(|v| *v == 0.0 || *v == scale), "{rate}");
        let kept = y.iter().filter(|v| **v != 0.0).count() as f64 / y.len() as f64;
        // Four standard deviations of a binomial share.
        let sigma = (rate * (1.0 - rate) / y.len() as f64).sqrt();
        assert!((kept - (1.0 - rate)).abs() < 4.0 * sigma, "rate {rate} kept {kept}");
    }
}

#[test]
fn dropout_is_a_function_of_seed_step_and_layer() {
    let base = drop_ones(0.5, "d", 1, 1);
    assert_eq!(base, drop_ones(0.5, "d", 1, 1));
    for (name, seed, step) in [("d", 2, 1), ("d", 1, 2), ("d_1", 1, 1)] {
        let other = drop_ones(0.5, name, seed, step);
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count() as f64 / base.len() as f64;
        assert!((same - 0.5).abs() < 0.02, "{name} {seed} {step}: {same} of the elements agree");
    }
}

#[test]
fn dropout_rests_outside_training_and_at_its_ends() {
    let x = sample(&f32s(&[4, 5]), 0);
    let spec = dropout(0.5);
    assert_eq!(LayerCall::new(&spec, std::slice::from_ref(&x)).run("ref", None).unwrap().y, x);
    assert!(drop_ones(0.0, "d", 1, 1).iter().all(|v| *v == 1.0));
    assert!(drop_ones(1.0, "d", 1, 1).iter().all(|v| *v == 0.0));
}

#[test]
fn dropout_sends_gradients_where_it_let_values_pass() {
    let spec = dropout(0.25);
    let mut call = LayerCall::new(&spec, &[ones(&[8, 9])]);
    call.training = Some((5, 6));
    let out = call.run("ref", None).unwrap();
    assert_eq!(out.dx[0], out.y);
}

#[test]
fn a_frozen_batch_normalisation_uses_its_moving_statistics() {
    let x = sample(&f32s(&[6, 3]), 1);
    let run = |spec: &LayerSpec, training| {
        let mut call = LayerCall::new(spec, std::slice::from_ref(&x)).initialised().unwrap();
        call.training = training;
        call.run("ref", None).unwrap()
    };
    let frozen = batch_normalization().trainable(false);
    let out = run(&frozen, Some((1, 1)));
    assert_eq!(out.y, run(&batch_normalization(), None).y);
    assert!(out.after.is_empty());
    assert_eq!(run(&batch_normalization(), Some((1, 1))).after.len(), 2);
}

#[test]
fn means_do_not_overflow_half_precision() {
    // 64 · 64 · 100 is beyond f16's 65,504.
    let x = Literal::from_slice([1, 64, 64, 1], &[100f32; 4096]).unwrap();
    for spec in [global_average_pooling2d(), average_pooling2d(64)] {
        let mut call = LayerCall::new(&spec, std::slice::from_ref(&x));
        call.precision = Precision::MixedFloat16;
        assert_eq!(call.run("ref", None).unwrap().y.to_f32s(), [100.0], "{spec:?}");
    }
}

#[test]
fn relu_s_options_are_keras_s() {
    let x = Literal::from_slice([1, 5], &[-2f32, 0.5, 1.0, 3.0, 9.0]).unwrap();
    let spec = relu().max_value(6.0).negative_slope(0.5).threshold(1.0);
    let out = LayerCall::new(&spec, &[x]).run("ref", None).unwrap();
    assert_eq!(out.y.to_f32s(), [-1.5, -0.25, 0.0, 3.0, 6.0]);
    assert_eq!(out.dx[0].to_f32s(), [0.5, 0.5, 0.5, 1.0, 0.0]);
}

#[test]
fn merges_fold_and_repeat() {
    let a = Literal::from_slice([2, 2], &[1f32, 2., 3., 4.]).unwrap();
    let b = Literal::from_slice([2, 1], &[10f32, -10.]).unwrap();
    let run = |spec: &LayerSpec| {
        LayerCall::new(spec, &[a.clone(), b.clone()]).run("ref", None).unwrap().y.to_f32s()
    };
    assert_eq!(run(&add()), [11., 12., -7., -6.]);
    assert_eq!(run(&subtract()), [-9., -8., 13., 14.]);
    assert_eq!(run(&multiply()), [10., 20., -30., -40.]);
    assert_eq!(run(&average()), [5.5, 6., -3.5, -3.]);
    assert_eq!(run(&maximum()), [10., 10., 3., 4.]);
    assert_eq!(run(&minimum()), [1., 2., -10., -10.]);
    assert_eq!(run(&concatenate(1)), [1., 2., 10., 3., 4., -10.]);
}

#[test]
fn computing_a_layer_again_changes_no_bit() {
    for backend_name in BACKENDS {
        for t in samples() {
            let run = |spec: &LayerSpec| {
                let mut call = LayerCall::new(spec, &inputs_of(&t));
                call.training = Some((3, 4));
                call.initialised().unwrap().run(backend_name, None).unwrap()
            };
            let (kept, again) = (run(&t.spec), run(&t.spec.clone().remat(true)));
            assert_eq!(again.y, kept.y, "{:?}", t.spec);
            assert_eq!(again.dx, kept.dx, "{:?}", t.spec);
            assert_eq!(again.dw, kept.dw, "{:?}", t.spec);
        }
    }
}

#[test]
fn recurrent_layers_drop_the_same_features_at_every_step() {
    // A kernel of ones on inputs of ones: the sum is how many features stay, times 1 / (1 − rate).
    let spec = simple_rnn(1).activation("linear").recurrent_initializer("zeros").kernel_initializer("ones");
    let spec = spec.return_sequences(true).dropout(0.5);
    let mut call = LayerCall::new(&spec, &[ones(&[4, 6, 200])]);
    call.training = Some((1, 1));
    let y = call.initialised().unwrap().run("ref", None).unwrap().y.to_f32s();
    for sample in y.chunks(6) {
        assert!(sample.iter().all(|v| *v == sample[0]), "{sample:?}");
        assert!((sample[0] - 200.0).abs() < 60.0, "{}", sample[0]);
    }
    assert!(y[0] != y[6] || y[6] != y[12], "each sample has its own");
}

#[test]
fn a_reversible_embedding_shares_its_table() {
    let table = reversible_embedding(5, 3).name("table");
    let g = GraphBuilder::new("main");
    let tokens = g.parameter(TensorType::new(DType::I32, [2, 4]), "tokens");
    let mut cx = Cx::collecting(&g, Precision::Float32);
    let x = cx.scope("table", |cx| table.call(cx, &[tokens]));
    let logits = cx.scope("table", |cx| table.call(cx, &[x]));
    assert_eq!(*logits.ty(), f32s(&[2, 4, 5]));
    assert_eq!(cx.into_specs().len(), 1);
}

#[test]
fn the_forget_gates_of_an_lstm_start_open() {
    let (_, weights) = infer(&lstm(3), "l", &[f32s(&[1, 2, 2])], Precision::Float32).unwrap();
    let bias = weights[2].initializer.make(&weights[2].shape, 1, "l/bias");
    assert_eq!(bias.to_f32s(), [0., 0., 0., 1., 1., 1., 0., 0., 0., 0., 0., 0.]);
}

// ---- what users see when something is wrong ----

#[test]
fn refusals_say_what_to_put_before_the_layer() {
    let e = refusal(&conv2d(64, (3, 3)), &[f32s(&[1000, 784])]);
    assert!(e.contains("Conv2D") && e.contains("[B, H, W, C]") && e.contains("f32[1000, 784]"), "{e}");
    assert!(e.contains("reshape([28, 28, 1])"), "{e}");
    let e = refusal(&conv2d(64, (3, 3)), &[f32s(&[1000, 3072])]);
    assert!(e.contains("reshape([32, 32, 3])"), "{e}");
    let e = refusal(&max_pooling2d(2), &[f32s(&[1000, 28, 20])]);
    assert!(e.contains("reshape([28, 20, 1])"), "{e}");
    let e = refusal(&conv2d(8, 5).dilation_rate(2), &[f32s(&[1, 8, 20, 1])]);
    assert!(e.contains("9×9") && e.contains("kernel_size") && e.contains("f32[1, 8, 20, 1]"), "{e}");
    let e = refusal(&dense(1 << 62), &[f32s(&[1, 1 << 20])]);
    assert!(e.contains("2⁴⁰"), "{e}");
}

/// The mistake that building a model would report.
fn mistake(spec: LayerSpec) -> String {
    spec.check().expect_err("the mistake is found").to_string()
}

#[test]
fn wrong_arguments_surface_with_the_nearest_right_one_and_the_users_line() {
    let e = mistake(conv2d(64, 3).padding("smae"));
    assert!(e.contains("Conv2D") && e.contains("`padding`") && e.contains("\"smae\""), "{e}");
    assert!(e.contains("`same`") && e.contains("tests/layers.rs:"), "{e}");
    let e = mistake(dense(10).strides(2));
    assert!(e.contains("`strides`") && e.contains("`units`"), "{e}");
    let e = mistake(activation("rleu"));
    assert!(e.contains("`relu`") && e.contains("tests/layers.rs:"), "{e}");
    let e = mistake(dense(10).kernel_initializer("glorot_unifrom"));
    assert!(e.contains("glorot_uniform"), "{e}");
    assert!(mistake(flatten().axis(1)).contains("it accepts none"));
    // The first mistake counts.
    assert!(mistake(dense(1).groups(1).padding("x")).contains("groups"));
}

#[test]
fn impossible_argument_values_are_found_before_any_input() {
    let cases = [
        (dense(0), "units"),
        (conv2d(0, 3), "filters"),
        (conv2d(4, (3, 0)), "kernel_size"),
        (conv2d(4, 3).strides(0), "strides"),
        (conv2d(4, 3).dilation_rate((1, 0)), "dilation_rate"),
        (conv2d(4, 3).groups(0), "groups"),
        (conv2d(4, 3).groups(3), "groups"),
        (depthwise_conv2d(3).depth_multiplier(0), "depth_multiplier"),
        (max_pooling2d(0), "pool_size"),
        (average_pooling2d(2).strides(0), "strides"),
        (reshape([-1, -1]), "target_shape"),
        (reshape([-2]), "target_shape"),
        (dropout(1.5), "rate"),
        (dropout(f64::NAN), "rate"),
        (batch_normalization().momentum(1.1), "momentum"),
        (layer_normalization().epsilon(-1.0), "epsilon"),
        (layer_normalization().axis([]), "axis"),
        (lstm(0), "units"),
        (gru(4).dropout(-0.1), "dropout"),
        (simple_rnn(4).recurrent_dropout(1.1), "recurrent_dropout"),
        (multi_head_attention(0, 4), "num_heads"),
        (multi_head_attention(2, 0), "key_dim"),
        (multi_head_attention(2, 4).value_dim(0), "value_dim"),
        (multi_head_attention(2, 4).attention_axes([]), "attention axis"),
        (transformer_block(0, 2), "intermediate_dim"),
        (transformer_block(8, 0), "num_heads"),
        (transformer_block(8, 2).layer_norm_epsilon(-1.0), "layer_norm_epsilon"),
        (position_embedding(0), "sequence_length"),
        (reversible_embedding(4, 0), "output_dim"),
        (reversible_embedding(4, 2).logit_soft_cap(0.0), "logit_soft_cap"),
        (embedding(0, 4), "input_dim"),
        (embedding(4, 0), "output_dim"),
        (rescaling(f64::INFINITY), "scale"),
        (leaky_relu().negative_slope(-1.0), "negative_slope"),
        (relu().max_value(-1.0), "max_value"),
        (relu().threshold(-1.0), "threshold"),
        (ELU { alpha: f64::NAN }.into(), "alpha"),
        (dense(4).name("a/b"), "a/b"),
    ];
    for (spec, argument) in cases {
        let class = spec.class_name();
        // Used in spite of it, the layer refuses as well instead of panicking.
        if argument != "a/b" {
            let g = GraphBuilder::new("main");
            let x = g.parameter(f32s(&[2, 6, 6, 3]), "x");
            let y = spec.call(&mut Cx::collecting(&g, Precision::Float32), &[x]);
            assert!(g.finish(&[y]).is_err(), "{class} {argument}");
        }
        let e = mistake(spec);
        assert!(e.contains(class) && e.contains(argument), "{e}");
    }
}

#[test]
fn default_names_are_keras_s() {
    let cases = [
        (conv2d(1, 1), "conv2d"),
        (depthwise_conv2d(1), "depthwise_conv2d"),
        (max_pooling2d(2), "max_pooling2d"),
        (global_average_pooling2d(), "global_average_pooling2d"),
        (batch_normalization(), "batch_normalization"),
        (dense(1), "dense"),
        (relu(), "re_lu"),
        (leaky_relu(), "leaky_re_lu"),
        (elu(), "elu"),
        (activation("relu"), "activation"),
        (lstm(1), "lstm"),
        (simple_rnn(1), "simple_rnn"),
        (multi_head_attention(1, 1), "multi_head_attention"),
        (zero_padding2d(1), "zero_padding2d"),
    ];
    for (spec, name) in cases {
        assert_eq!(spec.default_name(), name);
    }
}

#[test]
fn setters_take_names_and_values() {
    let by_name = dense(3).activation("gelu").kernel_initializer("he_normal").bias_initializer("ones");
    let by_value = dense(3)
        .activation(Activation::Gelu { approximate: false })
        .kernel_initializer(Initializer::HeNormal)
        .bias_initializer(Initializer::Ones);
    assert_eq!(by_name.to_json(), by_value.to_json());
    by_name.check().unwrap();
    let plain = Dense { units: 3, use_bias: false, ..Default::default() };
    assert_eq!(LayerSpec::from(plain).to_json(), dense(3).use_bias(false).to_json());
}

#[test]
fn tables_of_a_configuration_take_keras_s_spellings() {
    let table = json!({
        "filters": 8, "kernel_size": [3, 5], "strides": 2, "padding": "same", "activation": "relu",
        "kernel_initializer": "he_normal", "name": "c1", "trainable": false,
    });
    let spec = LayerSpec::from_table("Conv2D", &table).unwrap();
    let same =
        conv2d(8, (3, 5)).strides(2).padding("same").activation("relu").kernel_initializer("he_normal");
    assert_eq!(spec.to_json(), same.name("c1").trainable(false).to_json());
    let error = |class: &str, table: Value| LayerSpec::from_table(class, &table).unwrap_err().to_string();
    assert!(error("Conv2d", json!({})).contains("`Conv2D`"));
    assert!(error("dense", json!({"unit": 3})).contains("`units`"));
    assert!(error("Dense", json!({"units": "many"})).contains("`units`"));
    assert!(error("Dense", json!({"units": 3, "trainable": "no"})).contains("true or false"));
    assert!(error("Dense", json!({"units": 3, "name": 7})).contains("name"));
    assert!(error("Dense", json!({})).contains("units of at least 1"));
    assert!(error("Dense", json!([1])).contains("expected a table"));
}

/// `x: T[…] → T[…]`: a factor that is a setting.
#[derive(Debug)]
struct Times(f64);

impl Layer for Times {
    fn class_name(&self) -> &'static str {
        "Times"
    }
    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        &inputs[0] * self.0
    }
    fn config(&self) -> Value {
        json!({ "factor": self.0 })
    }
}

fn make_times(config: &Value) -> Result<Arc<dyn Layer>> {
    let factor = config["factor"].as_f64();
    let factor = factor.ok_or_else(|| Error::new(systole_ir::ErrorKind::Config, "Times needs a factor"))?;
    Ok(Arc::new(Times(factor)))
}

#[test]
fn layers_of_ones_own_are_saved_and_loaded_by_their_constructor() {
    let spec = LayerSpec::custom(Times(3.0)).name("t");
    assert_eq!(spec.default_name(), "times");
    let saved = spec.to_json();
    let custom = CustomLayers::new().with("Times", make_times);
    let loaded = LayerSpec::from_json(&saved, &custom).unwrap();
    assert_eq!(loaded.to_json(), saved);
    let y = LayerCall::new(&loaded, &[ones(&[2])]).run("ref", None).unwrap().y;
    assert_eq!(y.to_f32s(), [3.0, 3.0]);
    let e = LayerSpec::from_json(&saved, &CustomLayers::new()).unwrap_err().to_string();
    assert!(e.contains("`Times`") && e.contains("CustomObjects"), "{e}");
    assert!(mistake(LayerSpec::custom(Times(1.0)).strides(2)).contains("Times"));
}

#[test]
fn model_files_with_wrong_layers_are_refused() {
    let error = |value: Value| LayerSpec::from_json(&value, &CustomLayers::new()).unwrap_err().to_string();
    assert!(error(json!(3)).contains("expected a layer object"));
    assert!(error(json!({"config": {}})).contains("class_name"));
    assert!(error(json!({"class_name": "Desne"})).contains("`Dense`"));
    assert!(error(json!({"class_name": "Dense", "confg": {}})).contains("`config`"));
    assert!(error(json!({"class_name": "Dense", "config": {"unts": 3}})).contains("`units`"));
    assert!(error(json!({"class_name": "Dense", "config": 3})).contains("expected an object"));
    assert!(error(json!({"class_name": "Dense", "config": {"units": -3}})).contains("units"));
    assert!(error(json!({"class_name": "Dense", "config": {}})).contains("units of at least 1"));
}

/// Layers that change pictures by chance: only while training, by the seed and step alone, each sample by its own draws, and what
/// comes out is what they promise.
#[test]
fn pictures_are_changed_by_chance() {
    let (n, h, w) = (16, 4, 5);
    let values: Vec<f32> = (0..n * h * w).map(|i| (i % (h * w)) as f32 * 0.1 - 0.7).collect();
    let x = Literal::from_slice([n, h, w, 1], &values).unwrap();
    let run = |spec: &LayerSpec, training: Option<(u64, u64)>| {
        let mut call = LayerCall::new(spec, std::slice::from_ref(&x)).initialised().unwrap();
        call.training = training;
        call.run("cpu", None).unwrap().y
    };
    let rows =
        |y: &Literal| y.to_f64s().chunks(y.shape().elements() / n).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let given = rows(&x);
    for spec in [
        random_flip("horizontal_and_vertical"),
        random_translation(0.4, 0.4),
        random_rotation(0.5),
        random_zoom(0.5),
        random_brightness(0.5).value_range((-2.0, 2.0)),
        random_contrast((0.5, 0.5)).value_range((-5.0, 5.0)),
    ] {
        let what = spec.class_name();
        assert_eq!(run(&spec, None), x, "{what} without training");
        let y = run(&spec, Some((1, 2)));
        assert_eq!(run(&spec, Some((1, 2))), y, "{what}: one seed and step, one result");
        assert_ne!(run(&spec, Some((1, 3))), y, "{what}: each step has its own draws");
        let (least, most) = (given[0][0] - 1e-6, given[0][h * w - 1] + 1e-6);
        let all = rows(&y);
        assert!(all.iter().any(|row| *row != all[0]), "{what}: samples have their own draws");
        let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len() as f64;
        for row in &all {
            match what {
                // Nothing new is seen: pixels are read between others.
                "RandomTranslation" | "RandomRotation" | "RandomZoom" => {
                    assert!(row.iter().all(|v| (least..=most).contains(v)), "{what}: {row:?}");
                }
                "RandomBrightness" => {
                    let by: Vec<f64> = row.iter().zip(&given[0]).map(|(a, b)| a - b).collect();
                    let kept = row.iter().zip(&by).filter(|(v, _)| v.abs() < 2.0).map(|(_, by)| *by);
                    let kept: Vec<f64> = kept.collect();
                    assert!(kept.iter().all(|by| (by - kept[0]).abs() < 1e-5 && by.abs() <= 2.0), "{by:?}");
                }
                "RandomContrast" => assert!((mean(row) - mean(&given[0])).abs() < 1e-5),
                _ => {
                    let flipped = |rows: bool, columns: bool| -> Vec<f64> {
                        let at = |i: usize| {
                            let (r, c) = (i / w, i % w);
                            let (r, c) =
                                (if rows { h - 1 - r } else { r }, if columns { w - 1 - c } else { c });
                            given[0][r * w + c]
                        };
                        (0..h * w).map(at).collect()
                    };
                    let ways = [(false, false), (false, true), (true, false), (true, true)];
                    let near = |a: &[f64]| a.iter().zip(row).all(|(a, b)| (a - b).abs() < 1e-6);
                    assert!(ways.iter().any(|(r, c)| near(&flipped(*r, *c))), "{row:?}");
                }
            }
        }
    }
    // A part of the picture, the same one for the batch.
    let y = run(&random_crop(2, 3), Some((1, 2)));
    let crops: Vec<Vec<f64>> = (0..3)
        .flat_map(|top| (0..3).map(move |left| (top, left)))
        .map(|(top, left)| (0..6).map(|i| given[0][(top + i / 3) * w + left + i % 3]).collect())
        .collect();
    let all = rows(&y);
    assert!(crops.contains(&all[0]) && all.iter().all(|row| *row == all[0]), "{:?}", all[0]);
    let e = random_rotation((0.3, 0.1)).check().unwrap_err().to_string();
    assert!(e.contains("RandomRotation") && e.contains("-1"), "{e}");
    let e = random_zoom(0.2).interpolation("bicubic").check().unwrap_err().to_string();
    assert!(e.contains("nearest"), "{e}");
}
