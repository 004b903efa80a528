//! Parity tests of the preprocessing layers against Keras: `fixtures/keras/preprocessing.json`.

use super::*;
use serde_json::{Value, json};
use systole_base::ErrorKind;
use systole_testing::assert_error;

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/keras/preprocessing.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    list(value).iter().map(|v| v.as_str().unwrap().to_string()).collect()
}

/// Flattens nested lists of numbers.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(all) => all.iter().flat_map(numbers).collect(),
        other => vec![other.as_f64().unwrap()],
    }
}

fn same(what: &Value, got: &Literal, keras: &Value) {
    let (got, keras) = (got.to_f64s(), numbers(keras));
    assert_eq!(got.len(), keras.len(), "{what}: {got:?} and {keras:?}");
    for (a, b) in got.iter().zip(&keras) {
        assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{what}: {got:?} and {keras:?}");
    }
}

/// Creates the layer with a case's arguments, by deserialization.
fn with_arguments<T: Serialize + serde::de::DeserializeOwned>(base: &T, kwargs: &Value) -> T {
    let mut all = serde_json::to_value(base).unwrap();
    for (key, value) in kwargs.as_object().unwrap() {
        all[key] = value.clone();
    }
    serde_json::from_value(all).unwrap()
}

#[test]
fn texts_become_keras_s_numbers() {
    let fixture = fixture();
    let texts = strings(&fixture["texts"]);
    for case in list(&fixture["vectorizations"]) {
        let mut kwargs = case["kwargs"].clone();
        let all = kwargs.as_object_mut().unwrap();
        for key in ["standardize", "split"] {
            if all.get(key).is_some_and(Value::is_null) {
                all[key] = json!("none");
            }
        }
        let mut lookup = serde_json::Map::new();
        for key in ["max_tokens", "pad_to_max_tokens"] {
            lookup.extend(all.remove(key).map(|value| (key.to_string(), value)));
        }
        lookup.extend(all.get("output_mode").map(|mode| ("output_mode".to_string(), mode.clone())));
        let base = TextVectorization::default();
        let inner = serde_json::to_value(&base).unwrap()["lookup"].clone();
        kwargs["lookup"] = with_arguments(&inner, &Value::Object(lookup));
        let mut layer: TextVectorization = with_arguments(&base, &kwargs);
        layer.adapt(&texts).unwrap();
        assert_eq!(layer.get_vocabulary(), strings(&case["vocabulary"]), "{}", case["kwargs"]);
        same(&case["kwargs"], &layer.call_batch(&strings(&case["asked"])).unwrap(), &case["y"]);
        let again = TextVectorization::from_json(&layer.to_json().unwrap()).unwrap();
        same(&case["kwargs"], &again.call_batch(&strings(&case["asked"])).unwrap(), &case["y"]);
    }
}

#[test]
fn words_and_integers_are_looked_up_as_by_keras() {
    for case in list(&fixture()["lookups"]) {
        let kwargs = &case["kwargs"];
        if case["asked"][0].is_string() {
            let mut layer: StringLookup = with_arguments(&StringLookup::default(), kwargs);
            layer.adapt(list(&case["adapted"]).iter().map(strings)).unwrap();
            assert_eq!(layer.get_vocabulary(), strings(&case["vocabulary"]), "{kwargs}");
            same(kwargs, &layer.call(&strings(&case["asked"])).unwrap(), &case["y"]);
        } else {
            let integers = |v: &Value| numbers(v).into_iter().map(|n| n as i64).collect::<Vec<_>>();
            let mut layer: IntegerLookup = with_arguments(&IntegerLookup::default(), kwargs);
            layer.adapt(list(&case["adapted"]).iter().map(integers)).unwrap();
            assert_eq!(layer.get_vocabulary(), integers(&case["vocabulary"]), "{kwargs}");
            same(kwargs, &layer.call(&integers(&case["asked"])).unwrap(), &case["y"]);
        }
    }
}

#[test]
fn hashes_are_tensorflow_s() {
    let fixture = fixture();
    for case in list(&fixture["hashes"]) {
        let layer: Hashing = with_arguments(&Hashing::default(), &case["kwargs"]);
        let asked =
            list(&case["asked"]).iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_string));
        same(&case["kwargs"], &layer.call(asked).unwrap(), &case["y"]);
    }
    let case = &fixture["crossings"][0];
    let layer = HashedCrossing { num_bins: case["num_bins"].as_u64().unwrap(), ..Default::default() };
    for (pair, bin) in list(&case["asked"]).iter().zip(list(&case["y"])) {
        let features = [
            CrossedFeature::Text(pair[0].as_str().unwrap().into()),
            CrossedFeature::Int(pair[1].as_i64().unwrap()),
        ];
        assert_eq!(layer.bin(&features).unwrap(), bin.as_u64().unwrap(), "{pair}");
    }
}

#[test]
fn vocabularies_may_be_given_and_go_both_ways() {
    let mut lookup = StringLookup::default().mask_token("");
    let words = |all: &[&str]| all.iter().map(|w| w.to_string()).collect::<Vec<_>>();
    lookup.set_vocabulary(&words(&["", "[UNK]", "a", "b"]), None).unwrap();
    assert_eq!(lookup.call(&words(&["b", "c", ""])).unwrap().to_f64s(), [3.0, 1.0, 0.0]);
    assert_eq!(lookup.invert(&[2, 0, 9, -1]), ["a", "", "[UNK]", "[UNK]"]);
    let e = lookup.set_vocabulary(&words(&["a", "b", "a"]), None).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["StringLookup", "`\"a\"`"]);
    let e = lookup.set_vocabulary(&words(&["a", ""]), None).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["StringLookup", "`\"\"`"]);
    let e = lookup.clone().num_oov_indices(0).call(&words(&["zebra"])).unwrap_err();
    assert_error(&e, ErrorKind::Data, &["zebra", "num_oov_indices"]);
    let mut rare = StringLookup::default().output_mode(LookupOutputMode::TfIdf);
    rare.set_vocabulary(&words(&["a", "b"]), Some(&[0.5, 1.5])).unwrap();
    assert_eq!(rare.call(&words(&["a", "a", "q", "b"])).unwrap().to_f64s(), [1.0, 1.0, 1.5]);
    assert!(StringLookup::from_json(r#"{"max_tokens": 1}"#).is_err());
}

#[test]
fn pipelines_look_fields_up() {
    use systole_data::{Dataset, Sample};
    let ids = Literal::from_slice([2, 2], &[7i32, 9, 9, 1]).unwrap();
    let mut lookup = IntegerLookup::default();
    lookup.set_vocabulary(&[9, 7], None).unwrap();
    let data = Dataset::from_tensor_slices([("ids", ids)]).unwrap();
    let rows: Vec<Vec<f64>> =
        data.map(lookup.on("ids")).iter().map(|s| s.unwrap().get("ids").unwrap().to_f64s()).collect();
    assert_eq!(rows, [[2.0, 1.0], [1.0, 0.0]]);
    let wrong =
        data.map(|s: Sample| s.map("ids", |x| x.cast(systole_base::DType::F32))).map(lookup.on("ids"));
    let e = wrong.iter().next().unwrap().unwrap_err();
    assert_error(&e, ErrorKind::Data, &["IntegerLookup", "`ids`", "f32[2]"]);
}
