//! Applications (ResNet, GPT-2, …) compared with keras.applications: names, shapes and order of all weights, and
//! outputs.
//!
//! Weights are generated from their names by a formula (`fixtures/keras/applications.py`). Full-size models are
//! compared by names, shapes and order, small variants also by outputs and gradients. Models that Keras lacks are
//! defined in `fixtures/keras/defined.py`.

use serde_json::{Value, json};
use systole_data::Dataset;
use systole_ir::{DType, GraphBuilder, Literal, Tensor, TensorType};
use systole_nn::applications::{TABLE, by_name};
use systole_nn::{Architecture, Cx, Model, Precision, WeightSpec};
use systole_runtime::{Buffer, Params, backend, jit, value_and_grad};

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// `n` numbers from −1 to 1: SplitMix64, seeded by the path.
fn uniform(path: &str, n: usize) -> Vec<f32> {
    let seed = fnv(path);
    let draw = |i: u64| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    (1..=n as u64).map(|i| draw(i) as f32).collect()
}

fn value(path: &str, shape: &[usize]) -> Literal {
    let mut u = uniform(path, shape.iter().product());
    let is_depthwise = shape.len() == 4 && shape[3] == 1 && shape[2] > 1;
    let fan: usize =
        if is_depthwise { shape[0] * shape[1] } else { shape[..shape.len() - 1].iter().product() };
    let (offset, scale) = match path.rsplit('/').next() {
        Some("gamma" | "moving_variance") => (1.0, 0.25),
        _ if shape.len() == 1 => (0.0, 0.25),
        _ => (0.0, (3.0 / fan as f64).sqrt() as f32),
    };
    u.iter_mut().for_each(|v| *v = offset + scale * *v);
    Literal::from_slice(shape, &u).unwrap()
}

fn cases() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/keras/applications.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all["cases"].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The inputs of a case, with the type of one sample of each: a picture, or integers below a table's length.
fn inputs(case: &Value, model: &Architecture) -> (Vec<Literal>, Vec<TensorType>) {
    let literals: Vec<Literal> = match &case["input"] {
        Value::Object(tables) => model
            .inputs
            .iter()
            .map(|input| {
                let [length, rows] = numbers(&tables[&input.name])[..] else { panic!("two numbers") };
                let drawn = uniform(&input.name, 2 * length as usize);
                let whole: Vec<i32> =
                    drawn.iter().map(|v| ((v + 1.0) / 2.0 * rows as f32).floor() as i32).collect();
                Literal::from_slice([2, length as usize], &whole).unwrap()
            })
            .collect(),
        size => {
            let size: Vec<usize> = numbers(size).into_iter().map(|n| n as usize).collect();
            let picture = uniform("picture", size.iter().product());
            vec![Literal::from_slice(&[&[1], &size[..]].concat()[..], &picture).unwrap()]
        }
    };
    let types = literals.iter().map(|x| TensorType::new(x.dtype(), &x.shape().dims()[1..])).collect();
    (literals, types)
}

/// The application of a case without a function at its end.
fn architecture(case: &Value) -> Architecture {
    let name = case["name"].as_str().unwrap();
    let mut arguments = case["arguments"].as_object().unwrap().clone();
    arguments.insert("classifier_activation".into(), json!("linear"));
    by_name(name, &arguments).unwrap()
}

/// Built for the inputs of the case, with weights that follow from their names.
fn filled(case: &Value) -> Model {
    let architecture = architecture(case);
    let (_, types) = inputs(case, &architecture);
    let mut model = Model::new(architecture);
    model.build(&types).unwrap();
    let paths: Vec<(String, Vec<usize>)> =
        model.weights().iter().map(|(path, v)| (path.to_string(), v.ty().shape.to_vec())).collect();
    for (path, shape) in paths {
        model.set_weight(&path, value(&path, &shape)).unwrap();
    }
    model
}

fn of(case: &Value) -> String {
    format!("{} {}", case["name"], case["arguments"])
}

fn l2(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// What `build` would make, without its values: hundreds of millions of them.
fn weights(case: &Value) -> Vec<WeightSpec> {
    let architecture = architecture(case);
    let (_, types) = inputs(case, &architecture);
    let g = GraphBuilder::new("main");
    let batch = |ty: TensorType| TensorType::new(ty.dtype, &[&[2], ty.shape.dims()].concat()[..]);
    let x: Vec<Tensor> = types.into_iter().map(|ty| g.parameter(batch(ty), "x")).collect();
    let mut cx = Cx::collecting(&g, Precision::Float32);
    let y = architecture.call(&mut cx, &x);
    g.finish(std::slice::from_ref(&y)).unwrap();
    cx.into_specs()
}

#[test]
fn weights_have_keras_names_shapes_and_order() {
    for case in &cases() {
        let weights = weights(case);
        let listed: String = weights.iter().map(|w| format!("{} {:?}\n", w.path, &w.shape[..])).collect();
        let parameters: usize = weights.iter().map(|w| w.shape.iter().product::<usize>()).sum();
        assert_eq!(
            (weights.len(), parameters),
            (case["weights"].as_u64().unwrap() as usize, case["parameters"].as_u64().unwrap() as usize),
            "{}",
            of(case)
        );
        let digest = format!("{:016x}", fnv(&listed));
        assert_eq!(digest, case["digest"].as_str().unwrap(), "{}\n{listed}", of(case));
    }
}

fn check_outputs(case: &Value) {
    systole_runtime::register(systole_cpu::provider());
    let model = &mut filled(case);
    let (x, _) = inputs(case, model.architecture());
    let names: Vec<String> = model.architecture().inputs.iter().map(|i| i.name.clone()).collect();
    let batch = x[0].shape()[0];
    let data = Dataset::from_tensor_slices(names.into_iter().zip(x)).unwrap().batch(batch);
    let y: Vec<f64> = model.predict(&data).unwrap().to_f32s().iter().map(|v| f64::from(*v)).collect();
    let (norm, wanted) = (l2(y.iter().copied()), case["norm"].as_f64().unwrap());
    assert!((norm / wanted - 1.0).abs() < 1e-4, "{}: norm {norm}, Keras's {wanted}", of(case));
    let expected = numbers(&case["output"]);
    let off = l2(y.iter().zip(&expected).map(|(a, b)| a - b)) / l2(expected.iter().copied());
    assert!(off < 1e-4, "{}: off by {off:.1e}\n{:?}\n{expected:?}", of(case), &y[..expected.len()]);
}

#[test]
fn outputs_are_those_of_keras() {
    for case in cases().iter().filter(|case| case["full"] == false) {
        check_outputs(case);
    }
}

#[test]
fn outputs_of_full_size_are_those_of_keras() {
    for case in cases().iter().filter(|case| case["full"] == true && case["norm"].is_number()) {
        check_outputs(case);
    }
}

/// Gradients of the outputs' sum, each times a number that follows from its place, without training: statistics stand still.
fn gradients(case: &Value) -> Vec<(String, Literal)> {
    let model = filled(case);
    systole_runtime::register(systole_cpu::provider());
    let (architecture, on) = (model.architecture().clone(), backend("cpu").unwrap());
    let (x, _) = inputs(case, &architecture);
    let step = jit(move |(trained, other, x): (Params, Params, Vec<Tensor>)| {
        value_and_grad(
            |w: &Params| {
                let all = w.clone().into_iter().chain(other.clone()).collect();
                let y = architecture.call(&mut Cx::new(x[0].builder(), all, Precision::Float32), &x);
                let dims = y.shape().dims().to_vec();
                let cotangent = Literal::from_slice(&dims[..], &uniform("cotangent", dims.iter().product()));
                let all: Vec<usize> = (0..y.rank()).collect();
                (&y * y.builder().constant(cotangent.unwrap())).sum(&all)
            },
            &trained,
        )
    });
    let weights = |moving: bool| -> Params<Buffer> {
        let those = model.weights().into_iter().filter(|(n, _)| n.contains("moving_") == moving);
        those.map(|(n, b)| (n.to_string(), b.clone())).collect()
    };
    let args = (weights(false), weights(true), x.into_iter().map(Buffer::from).collect::<Vec<_>>());
    let (_, grads) = step.on(on).call(args).unwrap();
    let order = model.weights().into_iter().map(|(n, _)| n).filter(|n| !n.contains("moving_"));
    order.map(|n| (n.to_string(), grads[n].to_literal().unwrap())).collect()
}

#[test]
fn gradients_are_those_of_keras() {
    for case in cases().iter().filter(|case| case["full"] == false) {
        let (found, expected) = (gradients(case), case["gradients"].as_array().unwrap());
        assert_eq!(found.len(), expected.len(), "{}", of(case));
        // Of biases before a normalisation, and of keys, gradients are 0 but for rounding.
        let largest = expected.iter().map(|e| e[0].as_f64().unwrap()).fold(0.0, f64::max);
        for ((path, grad), expected) in found.iter().zip(expected) {
            let grad = grad.to_f64s();
            let probe = uniform(&format!("probe {path}"), grad.len());
            let product: f64 = grad.iter().zip(&probe).map(|(g, p)| g * f64::from(*p)).sum();
            let (norm, wanted) = (l2(grad.iter().copied()), numbers(expected));
            let scale = 1e-4 * wanted[0] + 1e-6 * largest;
            let off = (norm - wanted[0])
                .abs()
                .max((product - wanted[1]).abs() / l2(probe.iter().map(|p| f64::from(*p))));
            assert!(off < scale, "{} {path}: norm {norm}, product {product}; Keras's {wanted:?}", of(case));
        }
    }
}

/// torchvision's resnet18 and resnet34 have these numbers of parameters; ours add two moving statistics for each of its gammas.
#[test]
fn residual_networks_of_two_convolutions_have_torchvisions_sizes() {
    for (name, parameters, statistics) in [("resnet18", 11_689_512, 9_600), ("resnet34", 21_797_672, 17_024)]
    {
        let mut model = Model::new(by_name(name, &Default::default()).unwrap());
        model.build(&[TensorType::new(DType::F32, [224, 224, 3])]).unwrap();
        let all: usize = model.weights().iter().map(|(_, v)| v.ty().elements()).sum();
        assert_eq!(all, parameters + statistics, "{name}");
    }
}

#[test]
fn arguments_out_of_place_are_refused_by_name() {
    for row in TABLE {
        let defaults = row.defaults().unwrap();
        for (key, value) in defaults.as_object().unwrap() {
            // An application with its own defaults is itself, and none takes a word for a number.
            assert!(
                by_name(row.name, json!({ key: value }).as_object().unwrap()).is_ok(),
                "{} {key}",
                row.name
            );
            if value.is_number() || value.is_array() {
                let e =
                    by_name(row.name, json!({ key: "much" }).as_object().unwrap()).err().unwrap().to_string();
                assert!(e.contains(&format!("{}'s argument `{key}`", row.name)), "{e}");
            }
        }
    }
    let refused = |name: &str, arguments: Value| {
        by_name(name, arguments.as_object().unwrap()).err().unwrap().to_string()
    };
    assert!(refused("mobilenet", json!({"alpha": -1.0})).contains("alpha"));
    assert!(refused("mobilenetv3small", json!({"size": "tiny"})).contains("small, large"));
    assert!(refused("vgg17", json!({})).contains("`vgg16`"));
    assert!(refused("densenet121", json!({"growth_rat": 3})).contains("`growth_rate`"));
}
