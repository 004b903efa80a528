//! Reads Keras's reference results (`fixtures/keras`, see its README) and measures deviations from them.

// Each test program uses a part of this.
#![allow(dead_code)]

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use systole_ir::{DType, Literal, TensorType};

/// The path of a file in `fixtures/keras`.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/keras").join(name)
}

/// The arrays and JSON tables of one fixture file.
pub struct Fixture {
    arrays: BTreeMap<String, Literal>,
    tables: BTreeMap<String, Value>,
}

impl Fixture {
    pub fn open(name: &str) -> Fixture {
        let bytes = std::fs::read(path(&format!("{name}.safetensors"))).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let texts = header.metadata().clone().unwrap();
        let tables = texts.into_iter().map(|(k, v)| (k, serde_json::from_str(&v).unwrap())).collect();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let array = |(name, view): (String, safetensors::tensor::TensorView)| {
            let dtype = match view.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F64 => DType::F64,
                Dtype::I32 => DType::I32,
                Dtype::U8 => DType::U8,
                other => panic!("{name} is {other:?}"),
            };
            (name, Literal::from_bytes(TensorType::new(dtype, view.shape()), view.data()).unwrap())
        };
        Fixture { arrays: file.tensors().into_iter().map(array).collect(), tables }
    }

    /// The array of a name.
    pub fn get(&self, name: &str) -> &Literal {
        self.find(name).unwrap_or_else(|| panic!("the fixture has no {name}"))
    }

    /// The array of a name, where there is one.
    pub fn find(&self, name: &str) -> Option<&Literal> {
        self.arrays.get(name)
    }

    /// A list of the metadata.
    pub fn list(&self, name: &str) -> &[Value] {
        self.tables[name].as_array().unwrap()
    }
}

/// The name of a case.
pub fn name(case: &Value) -> &str {
    case["name"].as_str().unwrap()
}

/// A case's Keras class and arguments in the form in which Systole's configurations are stored.
pub fn config(class: &Value, kwargs: &Value) -> Value {
    match kwargs.as_object() {
        Some(map) if map.is_empty() => json!({ "class_name": class }),
        _ => json!({ "class_name": class, "config": kwargs }),
    }
}

/// ‖a − b‖ / ‖b‖; 0 when both are zero.
pub fn relative_l2(a: &Literal, b: &Literal) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.to_f64s(), b.to_f64s());
    let difference: f64 = a.iter().zip(&b).map(|(x, y)| (x - y) * (x - y)).sum();
    if difference == 0.0 { 0.0 } else { (difference / b.iter().map(|y| y * y).sum::<f64>()).sqrt() }
}

/// max |a − b| / |b|; 0 when both are zero.
pub fn max_relative(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let one = |(x, y): (&f64, &f64)| if x == y { 0.0 } else { (x - y).abs() / y.abs() };
    a.iter().zip(b).map(one).fold(0.0, f64::max)
}

/// The greatest of some deviations and where it was; fails when it is above the bound (or not a number).
pub struct Worst {
    bound: f64,
    value: f64,
    place: String,
}

impl Worst {
    pub fn below(bound: f64) -> Worst {
        Worst { bound, value: 0.0, place: "-".into() }
    }

    pub fn see(&mut self, place: &str, value: f64) {
        assert!(value <= self.bound, "{place}: deviates by {value:e}, allowed are {:e}", self.bound);
        if value >= self.value {
            (self.value, self.place) = (value, place.to_string());
        }
    }

    /// The number and where, for the test's output.
    #[allow(clippy::print_stdout)]
    pub fn report(&self, what: &str) {
        println!("{what}: at most {:.2e} ({}), allowed {:.0e}", self.value, self.place, self.bound);
    }
}
