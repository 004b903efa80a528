//! Tests that tables of few rows train to what they can give, with no setting by the user.

use crate::program::Folder;
use serde_json::Value;
use std::fmt::Write;

/// Pseudo-random numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Nearly normal: the sum of three.
    fn normal(&mut self) -> f64 {
        self.next() + self.next() + self.next()
    }
}

/// 150 rows of three classes that overlap little; the columns differ by a factor of 100,000.
fn classes() -> String {
    let mut noise = Noise(7);
    let mut text = String::from("alcohol,acid,proline,class\n");
    for row in 0..150 {
        let class = row % 3;
        let [a, b, c] = [0, 1, 2].map(|column| f64::from(u8::from(class == column)) * 3.0 + noise.normal());
        writeln!(
            text,
            "{},{},{},{}",
            13.0 + a,
            0.02 + 0.01 * b,
            1000.0 + 300.0 * c,
            ["red", "white", "rose"][class]
        )
        .unwrap();
    }
    text
}

/// 200 rows with a target of mean 150 and standard deviation 70.
fn numbers() -> String {
    let mut noise = Noise(11);
    let mut text = String::from("age,pressure,label\n");
    for _ in 0..200 {
        let (a, b) = (noise.normal(), noise.normal());
        writeln!(
            text,
            "{},{},{}",
            50.0 + 10.0 * a,
            120.0 + b,
            150.0 + 50.0 * a - 45.0 * b + 5.0 * noise.normal()
        )
        .unwrap();
    }
    text
}

fn trained(f: &Folder, table: &str, text: String, more: &[&str]) -> (Value, String) {
    f.write(table, text.as_bytes());
    let done = f.run(&[&["train", table, "--out", "run", "--json", "--threads=2"], more].concat()).ok();
    (done.json(), done.err.clone())
}

#[test]
fn a_table_of_150_rows_is_learnt() {
    let f = Folder::new("few-rows");
    let (result, told) = trained(&f, "wine.csv", classes(), &["--set=data.records.label=class"]);
    let accuracy = result["val_sparse_categorical_accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.9, "{accuracy}\n{told}");
    assert!(told.contains("300 epochs, because 120 rows"), "{told}");
}

#[test]
fn numbers_of_any_scale_are_learnt() {
    let f = Folder::new("few-numbers");
    let (result, told) = trained(&f, "target.csv", numbers(), &[]);
    let r2 = result["val_r2_score"].as_f64().unwrap();
    assert!(r2 >= 0.95, "{r2}\n{told}");
    assert!(told.contains("the last layer rescales"), "{told}");
}

#[test]
fn any_regression_loss_gets_one_linear_unit_and_fitting_metrics() {
    let f = Folder::new("any-loss");
    let more = ["--set=compile.loss=mean_absolute_error", "--epochs=2"];
    let (result, _) = trained(&f, "target.csv", numbers(), &more);
    let config = &result["config"];
    assert_eq!(
        (&config["fit"]["epochs"], &config["compile"]["loss"]),
        (&2.into(), &"mean_absolute_error".into())
    );
    let layers = config["layers"].as_array().unwrap();
    let [.., dense, rescaling] = &layers[..] else { panic!("{layers:?}") };
    assert_eq!((&dense["units"], dense.get("activation")), (&1.into(), None));
    assert_eq!(rescaling["type"], "Rescaling");
    for metric in ["mean_absolute_error", "root_mean_squared_error", "r2_score"] {
        assert!(result[format!("val_{metric}")].is_f64(), "{metric}: {result}");
    }
}
