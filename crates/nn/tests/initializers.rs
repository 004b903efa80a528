//! Initializers compared with Keras's distributions; determinism; their form in configurations.

mod keras;

use keras::Worst;
use serde_json::Value;
use systole_ir::Literal;
use systole_nn::Initializer;

fn cases() -> (u64, Vec<Value>) {
    let text = std::fs::read_to_string(keras::path("initializers.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    (all["seeds"].as_u64().unwrap(), all["cases"].as_array().unwrap().clone())
}

fn initializer_of(case: &Value) -> Initializer {
    match &case["kwargs"]["value"] {
        Value::Null => case["name"].as_str().unwrap().parse().unwrap(),
        value => Initializer::Constant { value: value.as_f64().unwrap() },
    }
}

fn shape_of(case: &Value) -> Vec<usize> {
    case["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect()
}

/// A fact of a sorted sample, as NumPy computes it.
fn fact(sorted: &[f64], key: &str) -> f64 {
    let n = sorted.len() as f64;
    let mean = sorted.iter().sum::<f64>() / n;
    match key {
        "mean" => mean,
        "std" => (sorted.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n).sqrt(),
        "min" => sorted[0],
        "max" => sorted[sorted.len() - 1],
        quantile => {
            let at = quantile[1..].parse::<f64>().unwrap() / 100.0 * (n - 1.0);
            let (below, part) = (at.floor() as usize, at.fract());
            sorted[below] + part * (sorted[(below + 1).min(sorted.len() - 1)] - sorted[below])
        }
    }
}

fn sorted(values: &Literal) -> Vec<f64> {
    let mut v = values.to_f64s();
    v.sort_by(f64::total_cmp);
    v
}

/// The mean of each fact over as many seeds as Keras's: both have a standard error of spread/√seeds; their difference
/// lies within 5 of its own standard deviations.
#[test]
fn distributions_are_keras_s() {
    let (seeds, cases) = cases();
    let mut worst = Worst::below(5.0);
    for case in cases {
        let (initializer, shape) = (initializer_of(&case), shape_of(&case));
        let samples: Vec<Vec<f64>> =
            (0..seeds).map(|seed| sorted(&initializer.make(&shape, seed, "test/kernel"))).collect();
        for (key, expected) in case["mean_over_seeds"].as_object().unwrap() {
            let found = samples.iter().map(|s| fact(s, key)).sum::<f64>() / seeds as f64;
            let spread = case["spread_over_seeds"][key].as_f64().unwrap();
            let sigma = spread * (2.0 / seeds as f64).sqrt() + 1e-9;
            let expected = expected.as_f64().unwrap();
            worst.see(&format!("{} {shape:?} {key}", case["name"]), (found - expected).abs() / sigma);
        }
    }
    worst.report("facts, in standard deviations");
}

#[test]
fn draws_keep_to_the_rule_s_limits() {
    for case in cases().1 {
        let (initializer, shape) = (initializer_of(&case), shape_of(&case));
        let rule = &case["rule"];
        let number = |key: &str| rule[key].as_f64();
        let limit = number("limit").or_else(|| Some(number("stddev_before_truncation")? * 2.0));
        let (Some(limit), values) = (limit, initializer.make(&shape, 1, "w").to_f64s()) else { continue };
        let greatest = values.iter().fold(0f64, |a, x| a.max(x.abs()));
        assert!(greatest <= limit * (1.0 + 1e-6) && greatest > limit * 0.98, "{initializer:?} {shape:?}");
    }
}

#[test]
fn orthogonal_frames_are_orthonormal() {
    for shape in [
        vec![300, 200],
        vec![150, 150],
        vec![40, 90],
        vec![3, 3, 16, 8],
        vec![2, 2, 3, 40],
        vec![5, 1],
        vec![1, 5],
    ] {
        let q = Initializer::Orthogonal { gain: 2.0 }.make(&shape, 4, "w").to_f64s();
        let columns = *shape.last().unwrap();
        let rows = q.len() / columns;
        let at = |i: usize, k: usize| if rows >= columns { q[k * columns + i] } else { q[i * columns + k] };
        let (short, long) = (rows.min(columns), rows.max(columns));
        for i in 0..short {
            for j in 0..short {
                let dot: f64 = (0..long).map(|k| at(i, k) * at(j, k)).sum();
                let expected = if i == j { 4.0 } else { 0.0 };
                assert!((dot - expected).abs() < 1e-6, "{shape:?} {i} {j} {dot}");
            }
        }
    }
}

#[test]
fn values_depend_on_seed_and_path_and_nothing_else() {
    for name in ["glorot_uniform", "he_normal", "random_normal", "orthogonal"] {
        let initializer: Initializer = name.parse().unwrap();
        let make = |seed, path| initializer.make(&[20, 30], seed, path);
        assert_eq!(make(1, "a/kernel"), make(1, "a/kernel"));
        assert_ne!(make(1, "a/kernel"), make(2, "a/kernel"));
        assert_ne!(make(1, "a/kernel"), make(1, "b/kernel"));
    }
    // An element's draw is a function of its index: a longer weight begins as a shorter one.
    for initializer in [
        Initializer::RandomNormal { mean: 0.0, stddev: 1.0 },
        Initializer::RandomUniform { minval: 0.0, maxval: 1.0 },
    ] {
        let short = initializer.make(&[100], 1, "w").to_f32s();
        assert_eq!(initializer.make(&[1000], 1, "w").to_f32s()[..100], short);
    }
}

#[test]
fn empty_and_scalar_weights_are_fine() {
    for name in ["glorot_normal", "he_uniform", "orthogonal", "zeros"] {
        let initializer: Initializer = name.parse().unwrap();
        for shape in [&[][..], &[0], &[0, 3], &[3, 0], &[1]] {
            let value = initializer.make(shape, 1, "w");
            assert_eq!(value.shape().dims(), shape);
            assert!(value.to_f64s().iter().all(|x| x.is_finite()), "{name} {shape:?}");
        }
    }
}

#[test]
fn configurations_read_back() {
    let names = ["glorot_uniform", "random_uniform", "truncated_normal", "ones", "constant", "orthogonal"];
    for name in names {
        let initializer: Initializer = name.parse().unwrap();
        let text = serde_json::to_string(&initializer).unwrap();
        assert_eq!(serde_json::from_str::<Initializer>(&text).unwrap(), initializer, "{text}");
    }
    let message = "glorot_unifrom".parse::<Initializer>().unwrap_err().to_string();
    assert!(message.contains("`glorot_uniform`"), "{message}");
}
