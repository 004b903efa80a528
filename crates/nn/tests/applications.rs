//! Architectures by name against keras.applications: names, shapes and order of all weights, and outputs for weights that follow from their
//! names by a formula (`fixtures/keras/applications.py`).
//!
//! Of full-size models names, shapes and order are compared, of small relatives the outputs too.

use serde_json::{Value, json};
use systole_cpu as _;
use systole_ir::{DType, Literal, TensorType};
use systole_nn::Model;
use systole_nn::applications::{TABLE, by_name};

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

/// The application of a case without a function at its end, built for its pictures.
fn built(case: &Value) -> Model {
    let name = case["name"].as_str().unwrap();
    let mut arguments = case["arguments"].as_object().unwrap().clone();
    arguments.insert("classifier_activation".into(), json!("linear"));
    let mut model = Model::new(by_name(name, &arguments).unwrap());
    let shape: Vec<usize> = numbers(&case["input"]).into_iter().map(|n| n as usize).collect();
    model.build(&[TensorType::new(DType::F32, shape)]).unwrap();
    model
}

#[test]
fn weights_have_keras_names_shapes_and_order() {
    let cases = cases();
    for case in &cases {
        let model = built(case);
        let weights = model.weights();
        let listed: String =
            weights.iter().map(|(path, value)| format!("{path} {:?}\n", value.ty().shape.to_vec())).collect();
        let parameters: usize = weights.iter().map(|(_, value)| value.ty().elements()).sum();
        let of = format!("{} {}", case["name"], case["arguments"]);
        assert_eq!(
            (weights.len(), parameters),
            (case["weights"].as_u64().unwrap() as usize, case["parameters"].as_u64().unwrap() as usize),
            "{of}"
        );
        assert_eq!(format!("{:016x}", fnv(&listed)), case["digest"].as_str().unwrap(), "{of}\n{listed}");
    }
}

#[test]
fn outputs_are_those_of_keras() {
    for case in cases().iter().filter(|case| case["full"] == false) {
        let mut model = built(case);
        let paths: Vec<(String, Vec<usize>)> =
            model.weights().iter().map(|(path, v)| (path.to_string(), v.ty().shape.to_vec())).collect();
        for (path, shape) in paths {
            model.set_weight(&path, value(&path, &shape)).unwrap();
        }
        let size: Vec<usize> = numbers(&case["input"]).into_iter().map(|n| n as usize).collect();
        let picture = uniform("picture", size.iter().product());
        let picture = Literal::from_slice(&[&[1], &size[..]].concat()[..], &picture).unwrap();
        let y = model.predict_on_batch(&picture).unwrap().to_f32s();
        let norm = y.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let expected = numbers(&case["output"]);
        let off = y.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
        let wanted = case["norm"].as_f64().unwrap();
        let of = format!("{} {}", case["name"], case["arguments"]);
        assert!((norm / wanted - 1.0).abs() < 1e-4, "{of}: norm {norm}, Keras's {wanted}");
        let size = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
        assert!(
            off < 1e-4 * size,
            "{of}: off by {:.1e}\n{:?}\n{expected:?}",
            off / size,
            &y[..expected.len()]
        );
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
    assert!(refused("mobilenet", json!({"alpha": -1.0})).contains("alpha above 0"));
    assert!(refused("mobilenetv3small", json!({"size": "tiny"})).contains("small, large"));
    assert!(refused("vgg17", json!({})).contains("did you mean `vgg16`"));
    assert!(refused("densenet121", json!({"growth_rat": 3})).contains("did you mean `growth_rate`"));
}
