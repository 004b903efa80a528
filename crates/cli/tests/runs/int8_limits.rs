//! Tests that quantization which loses the accuracy of a model ends with its own exit code and names a remedy that works.

use crate::program::{Done, Folder};
use serde_json::Value;

/// Row `i` of a table whose first column decides, next to a column 5000 times as large that says nothing.
fn row(i: usize) -> (f64, f64) {
    let draw = |k: usize| (i * 7919 + k * 104_729).wrapping_mul(2_654_435_761) % 10_007;
    (draw(1) as f64 / 10_007.0, draw(2) as f64 / 2.0)
}

fn quantize(f: &Folder, more: &[&str]) -> Done {
    f.run(&[&["quantize", "run", "--out=q.tflite", "--force", "--json"], more].concat())
}

/// Trains on a table, quantizes it, and returns the report of a lossy result.
fn lossy(f: &Folder, line: impl Fn(usize) -> String, more: &[&str]) -> (Value, String) {
    let rows: String = (0..400).map(|i| line(i) + "\n").collect();
    f.write("t.csv", format!("a,b,label\n{rows}"));
    let args = ["train", "t.csv", "--out=run", "--epochs=30", "--batch-size=32", "--seed=3", "--quiet"];
    f.run(&[&args[..], more].concat()).ok();
    let done = quantize(f, &[]);
    assert_eq!(done.code, Some(3), "{}\n{}", done.out, done.err);
    let o = done.json();
    assert_eq!(o["accepted"], false, "{o}");
    assert!(f.path("q.tflite").is_file());
    let skip: Vec<&str> =
        o["remedy"]["skip"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    let option = format!("--skip={}", skip.join(","));
    assert!(done.err.contains(&format!("add --skip {} --force", skip.join(","))), "{}", done.err);
    (o, option)
}

#[test]
fn a_classifier_that_int8_spoils_is_refused_with_a_remedy() {
    let f = Folder::new("int8-classes");
    let class =
        |i: usize| format!("{:.4},{:.1},{}", row(i).0, row(i).1, ["no", "yes"][(row(i).0 > 0.5) as usize]);
    let (o, skip) = lossy(&f, class, &[]);
    let drop = |o: &Value| o["accuracy"]["float"].as_f64().unwrap() - o["accuracy"]["int8"].as_f64().unwrap();
    assert!(drop(&o) > 0.02, "{o}");
    let mended = quantize(&f, &[&skip]).ok().json();
    assert!(drop(&mended) <= 0.02 + 1e-9 && mended["accepted"] == true, "{mended}");
    assert_eq!(mended["accuracy"], o["remedy"]["accuracy"]);
    // The user's limit; and no samples, no verdict.
    assert_eq!(quantize(&f, &["--max-accuracy-drop=100"]).ok().json()["accepted"], true);
    assert!(quantize(&f, &["--test-samples=0"]).ok().json()["accepted"].is_null());
    quantize(&f, &["--max-accuracy-drop=-1"]).fails("usage", &["--max-accuracy-drop"]);
    let export = ["export", "run", "--format=onnx", "--int8", "--out=q.onnx"];
    assert_eq!(f.run(&export).code, Some(3));
    let help = f.run(&["--help"]).ok().out;
    assert!(help.contains("3 quantization loses more accuracy"), "{help}");
}

#[test]
fn a_regression_has_an_error_and_a_limit() {
    let f = Folder::new("int8-values");
    let value =
        |i: usize| format!("{:.4},{:.1},{:.4}", row(i).0, row(i).1, 3.0 * row(i).0 + 0.5 + i as f64 * 1e-6);
    let (o, skip) = lossy(&f, value, &[]);
    let rmse = |o: &Value, of: &str| o["accuracy"][of].as_f64().unwrap();
    assert!(rmse(&o, "int8_rmse") > 1.05 * rmse(&o, "float_rmse"), "{o}");
    let mended = quantize(&f, &[&skip]).ok().json();
    assert!(rmse(&mended, "int8_rmse") < rmse(&o, "int8_rmse"), "{mended}");
    assert_eq!(quantize(&f, &["--max-error-increase=100000"]).ok().json()["accepted"], true);
    let shown = f.run(&["quantize", "run", "--out=r.tflite"]);
    assert!(
        shown.out.contains("RMSE on 80 test samples") && !shown.out.contains("same class"),
        "{}",
        shown.out
    );
}

/// The table preset's normalization cannot be trained for int8: the hint leaves it in floats, and the model is quantized.
#[test]
fn a_table_is_trained_for_int8_as_the_hint_says() {
    let f = Folder::new("int8-trained");
    let rows: String = (0..200).map(|i| format!("{:.4},{:.1},{}\n", row(i).0, row(i).1, i % 2)).collect();
    f.write("t.csv", format!("a,b,label\n{rows}"));
    let train = |more: &[&str]| {
        let args = ["train", "t.csv", "--out=run", "--quantize", "--epochs=1", "--batch-size=32", "--quiet"];
        f.run(&[&args[..], more].concat())
    };
    train(&[]).fails("unsupported", &["batch_normalization"]);
    train(&["--set=quantize.skip=[\"batch_normalization\"]"]).ok();
    let o = quantize(&f, &["--max-accuracy-drop=100"]).ok().json();
    let alone = |layer: &str| {
        let layers = o["layers"].as_array().unwrap();
        let found = layers.iter().find(|l| l["layer"] == layer).unwrap_or_else(|| panic!("{layer}: {o}"));
        found["alone_agrees"].clone()
    };
    assert!(alone("batch_normalization").is_null() && alone("dense").is_number(), "{o}");
}
