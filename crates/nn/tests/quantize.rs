//! Quantization-aware training: rounding compared with TensorFlow, ranges, layer support, resuming after kills.
//!
//! The int8 files of such models are tested in the crate `quant`.

mod keras;

use keras::{Fixture, name, relative_l2};
use std::path::{Path, PathBuf};
use systole_data::Dataset;
use systole_ir::{DType::F32, DType::I32, Error, ErrorKind, Literal, Result, Tensor, TensorType, grad};
use systole_nn::callback::{Callback, FitCx};
use systole_nn::layers::*;
use systole_nn::loss::mean_squared_error;
use systole_nn::optimizer::{adam, sgd};
use systole_nn::{
    BackupAndRestore, Compile, Fit, Model, Quantize, QuantizeRanges, fake_quant_with_min_max_vars, input,
    input_of,
};
use systole_runtime::{Buffer, backend, jit};
use systole_testing::assert_error;

#[test]
fn rounding_is_tensorflow_s() {
    let fixture = Fixture::open("fake_quant");
    for case in fixture.list("cases") {
        let get = |part: &str| Buffer::from(fixture.get(&format!("{}/{part}", name(case))).clone());
        let (bits, narrow) =
            (case["num_bits"].as_u64().unwrap() as u32, case["narrow_range"].as_bool().unwrap());
        let f = jit(move |(x, min, max, dy): (Tensor, Tensor, Tensor, Tensor)| {
            let y = fake_quant_with_min_max_vars(&x, &min, &max, bits, narrow);
            let slopes = grad(&(&y * &dy).sum_all(), &[&x, &min, &max]);
            (y, slopes)
        });
        let end =
            |key: &str| Buffer::from(Literal::from_slice([], &[case[key].as_f64().unwrap() as f32]).unwrap());
        let f = f.on(backend("ref").unwrap());
        let (y, slopes) = f.call((get("x"), end("min"), end("max"), get("dy"))).unwrap();
        let expected = |part: &str| fixture.get(&format!("{}/{part}", name(case)));
        let far = |found: &Buffer, part: &str| {
            let found = found.to_literal().unwrap().reshape(expected(part).shape()).unwrap();
            relative_l2(&found, expected(part))
        };
        assert!(far(&y, "y") < 1e-6, "{}", name(case));
        for (slope, part) in slopes.iter().zip(["dx", "dmin", "dmax"]) {
            assert!(far(slope, part) < 1e-6, "{} {part}", name(case));
        }
    }
}

fn data() -> Dataset {
    let x: Vec<f32> = (0..24 * 32).map(|i| (i as f32 * 0.37).sin() * 2.0 + 0.5).collect();
    let y: Vec<i32> = x.chunks(32).map(|c| i32::from(c[0] * c[1] > c[2])).collect();
    let x = Literal::from_slice([24, 4, 4, 2], &x).unwrap();
    let y = Literal::from_slice([24], &y).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap()
}

fn quiet() -> Fit {
    Fit { verbose: 0, ..Fit::default() }
}

fn weights(model: &Model) -> Vec<(String, Literal)> {
    model.weights().iter().map(|(path, _)| (path.to_string(), model.weight(path).unwrap())).collect()
}

fn value(model: &Model, path: &str) -> f32 {
    model.weight(path).unwrap_or_else(|e| panic!("{e}")).to_f32s()[0]
}

/// Without a number of its own an average leaves what the first steps saw behind: step n keeps (1 + n) / (10 + n) of it.
#[test]
fn ranges_of_short_runs_are_those_of_their_last_steps() {
    let mut model = Model::sequential([flatten(), dense(1)]);
    let (optimizer, loss) = (sgd(0.0), mean_squared_error());
    model
        .compile(Compile { optimizer, loss, quantize: Some(Quantize::default()), ..Compile::default() })
        .unwrap();
    let mut follow = |most: f32| {
        let x = Literal::from_slice([2, 2], &[0.0, most, 0.0, 0.0]).unwrap();
        let label = Literal::from_slice([2], &[0f32, 1.0]).unwrap();
        model
            .fit(&Dataset::from_tensor_slices([("x", x), ("label", label)]).unwrap().batch(2), quiet())
            .unwrap();
        value(&model, "flatten/input_max")
    };
    let seen = [follow(100.0), follow(1.0), follow(1.0)];
    let second = 100.0 * (2.0 / 11.0) + 9.0 / 11.0;
    let third = second * (3.0 / 12.0) + 9.0 / 12.0;
    for (seen, expected) in seen.iter().zip([100.0, second, third]) {
        assert!((seen - expected).abs() < 1e-4, "{seen} {expected}");
    }
}

#[test]
fn ranges_follow_the_batches_as_in_tf_mot() {
    let mut model = Model::sequential([flatten(), dense(1)]);
    let quantize =
        Quantize { ranges: QuantizeRanges::MovingAverage { ema_decay: Some(0.75) }, ..Default::default() };
    let (optimizer, loss) = (sgd(0.0), mean_squared_error());
    model.compile(Compile { optimizer, loss, quantize: Some(quantize), ..Compile::default() }).unwrap();
    let batch = |x: [f32; 4]| {
        let x = Literal::from_slice([2, 2], &x).unwrap();
        let label = Literal::from_slice([2], &[0f32, 1.0]).unwrap();
        Dataset::from_tensor_slices([("x", x), ("label", label)]).unwrap().batch(2)
    };
    let mut seen = Vec::new();
    for x in [[0.5, 2.0, 1.0, 4.0], [-1.0, 2.0, 1.0, 2.0], [-3.0, 8.0, 0.0, 0.0]] {
        model.fit(&batch(x), quiet()).unwrap();
        seen.push((value(&model, "flatten/input_min"), value(&model, "flatten/input_max")));
    }
    // The first batch sets the range, in which 0 is; later ones move it a quarter of the way.
    assert_eq!(seen, [(0.0, 4.0), (-0.25, 3.5), (-0.9375, 4.625)]);
    // The values that the layers read are levels of it.
    let step = (4.625 + 0.9375) / 255.0;
    let x = Literal::from_slice([1, 2], &[1.0f32, 100.0]).unwrap();
    let mut plain = Model::sequential([flatten()]);
    plain.build(&[TensorType::new(F32, [2])]).unwrap();
    plain.enable_quantization(&Quantize::default()).unwrap();
    for end in ["min", "max"] {
        let path = format!("flatten/input_{end}");
        plain.set_weight(&path, model.weight(&path).unwrap()).unwrap();
    }
    let y = plain.predict_on_batch(&x).unwrap().to_f32s();
    let zero = (0.9375f32 / step).round();
    assert!((y[0] - (1.0f32 / step).round() * step).abs() < 1e-6, "{y:?}");
    assert!((y[1] - (255.0 - zero) * step).abs() < 1e-5, "{y:?}");
}

/// One step of a model with one dense layer of given weights, by plain SGD of rate 1: the gradients.
#[test]
fn learned_steps_have_the_gradients_of_the_paper() {
    let mut model = Model::sequential([dense(1).use_bias(false)]);
    let quantize = Some(Quantize { ranges: QuantizeRanges::Learned, ..Default::default() });
    let (optimizer, loss) = (sgd(1.0), mean_squared_error());
    model.compile(Compile { optimizer, loss, quantize, ..Compile::default() }).unwrap();
    model.build(&[TensorType::new(F32, [3])]).unwrap();
    let (x, w) = ([1.03f32, -0.31, 300.0], [0.504f32, -0.296, 0.0]);
    let set = |model: &mut Model, path: &str, v: &[f32]| {
        let shape = model.weight(path).unwrap().shape().to_vec();
        model.set_weight(path, Literal::from_slice(shape, v).unwrap()).unwrap();
    };
    set(&mut model, "dense/kernel", &w);
    // The output's levels are too fine to matter.
    for (path, v) in [("input_step", 0.1), ("kernel_step", 0.01), ("output_step", 1e-6)] {
        set(&mut model, &format!("dense/{path}"), &[v]);
    }
    let before = value(&model, "dense/input_step");
    let xs = Literal::from_slice([1, 3], &x).unwrap();
    let label = Literal::from_slice([1], &[0.0f32]).unwrap();
    let data = Dataset::from_tensor_slices([("x", xs), ("label", label)]).unwrap().batch(1);
    model.fit(&data, quiet()).unwrap();
    // Of the output all values lie outside, so its gradient is that of the highest level.
    let (xq, wq) = ([1.0f64, -0.3, 12.7], [0.5f64, -0.3, 0.0]);
    let y = 127.0 * 1e-6 * f64::from(xq.iter().zip(&wq).map(|(x, w)| x * w).sum::<f64>().signum() as f32);
    let moved = f64::from(before - value(&model, "dense/input_step"));
    assert_eq!(moved, 0.0, "nothing passes an output that is outside of its range");
    let scale = 1.0 / (127.0f64).sqrt();
    let output = f64::from(1e-6 - value(&model, "dense/output_step"));
    assert!((output / (2.0 * y * 127.0 * scale) - 1.0).abs() < 1e-3, "{output}");

    // Now the output is within its range.
    set(&mut model, "dense/kernel", &w);
    for (path, v) in [("input_step", 0.1), ("kernel_step", 0.01), ("output_step", 0.01)] {
        set(&mut model, &format!("dense/{path}"), &[v]);
    }
    model.fit(&data, quiet()).unwrap();
    let dy = 2.0 * 0.59;
    // round(x / s) − x / s within, 127 above; weights of the product times the scale 1 / √(3 · 127).
    let of_input = dy * ((10.0 - 10.3) * 0.5 + (-3.0 + 3.1) * -0.3) / (3.0 * 127f64).sqrt();
    let of_kernel = dy * ((50.0 - 50.4) * 1.0 + (-30.0 + 29.6) * -0.3) / (3.0 * 127f64).sqrt();
    for (path, start, expected) in [("input_step", 0.1f32, of_input), ("kernel_step", 0.01, of_kernel)] {
        let moved = f64::from(start) - f64::from(value(&model, &format!("dense/{path}")));
        assert!((moved - expected).abs() < 1e-4 * expected.abs().max(1e-3), "{path}: {moved} {expected}");
    }
}

fn network() -> Vec<LayerSpec> {
    vec![
        conv2d(4, 3).use_bias(false).name("conv"),
        batch_normalization().name("bn"),
        relu().name("relu"),
        flatten(),
        dropout(0.25),
        dense(6).activation("tanh").kernel_regularizer("l2").name("body"),
        dense(2).activation("softmax").name("head"),
    ]
}

fn compiled(quantize: Option<Quantize>) -> Model {
    let mut model = Model::sequential(network());
    model.compile(Compile { optimizer: adam(0.02), seed: 4, quantize, ..Compile::default() }).unwrap();
    model.build(&[TensorType::new(F32, [4, 4, 2])]).unwrap();
    model
}

#[test]
fn places_are_those_of_the_int8_operators() {
    let names = |model: &Model| {
        let all = weights(model).into_iter().map(|(path, _)| path);
        all.filter(|path| path.ends_with("_max")).collect::<Vec<_>>()
    };
    let mut model = compiled(Some(Quantize::default()));
    // Convolution, normalisation and relu are one operator; tanh and softmax have levels of their own.
    assert_eq!(names(&model), ["conv/input_max", "relu/output_max", "body/inner_max", "head/inner_max"]);
    let skip = vec!["body".to_string()];
    let apart = compiled(Some(Quantize { skip, ..Quantize::default() }));
    assert_eq!(names(&apart), ["conv/input_max", "relu/output_max", "head/input_max", "head/inner_max"]);
    // Before it has trained it computes with floats' ranges, which are none.
    assert_error(&model.trained_ranges().unwrap_err(), ErrorKind::Config, &["layer conv"]);
    model.strip_quantization().unwrap();
    assert_eq!(weights(&model), weights(&compiled(None)));
    assert!(model.trained_ranges().unwrap().is_none());
    // Two of one scale: the sum of their ranges.
    let x = input("x", [4, 4, 2]);
    let (a, b) = (x.apply(conv2d(2, 3).name("a")), x.apply(conv2d(2, 3).name("b")));
    let y = concatenate(-1).on(&[&a, &b]).apply(average_pooling2d(2));
    let mut both = Model::functional(&[x], &y).unwrap();
    both.build(&[TensorType::new(F32, [4, 4, 2])]).unwrap();
    both.enable_quantization(&Quantize::default()).unwrap();
    assert_eq!(names(&both), ["a/input_max", "a/output_max", "b/output_max"]);
}

#[test]
fn what_has_no_form_in_eight_bits_is_told() {
    let refused = |layers: Vec<LayerSpec>, skip: &[&str]| {
        let mut model = Model::sequential(layers);
        let skip = skip.iter().map(|s| s.to_string()).collect();
        model.build(&[TensorType::new(F32, [4, 4, 2])]).unwrap();
        model.enable_quantization(&Quantize { skip, ..Quantize::default() }).map_err(|e| e.to_string())
    };
    let slopes = || vec![flatten(), prelu().name("slopes"), dense(2)];
    let e = refused(slopes(), &[]).unwrap_err();
    for part in ["does not support PReLU", "layer slopes", "quantize.skip=[\"slopes\"]"] {
        assert!(e.contains(part), "{part}: {e}");
    }
    refused(slopes(), &["slopes"]).unwrap();
    assert!(refused(slopes(), &["slops"]).unwrap_err().contains("`slopes`"));
    let wide = vec![layer_normalization().axis([1, 2]), flatten(), dense(2)];
    assert!(refused(wide, &[]).unwrap_err().contains("-1"));
    let late = vec![conv2d(2, 3).activation("relu"), batch_normalization(), flatten(), dense(2)];
    assert!(refused(late, &[]).unwrap_err().contains("BatchNormalization"));
    let e = |config: Compile| Model::sequential(network()).compile(config).unwrap_err().to_string();
    let quantize = |ema_decay: f64| {
        Some(Quantize {
            ranges: QuantizeRanges::MovingAverage { ema_decay: Some(ema_decay) },
            ..Quantize::default()
        })
    };
    assert!(e(Compile { quantize: quantize(1.0), ..Compile::default() }).contains("invalid ema_decay 1"));
    let precision = "mixed_bfloat16".parse().unwrap();
    assert!(e(Compile { quantize: quantize(0.9), precision, ..Compile::default() }).contains("float32"));
}

/// Tokens in and scores out by one table, and a block that looks back.
fn language() -> Model {
    let tokens = input_of("tokens", I32, [6]);
    let table = reversible_embedding(7, 8).name("table");
    let vectors = tokens.apply(table.clone());
    let x = add().name("sum").on(&[&vectors, &vectors.apply(position_embedding(9).name("places"))]);
    let x = x.apply(transformer_block(12, 2).normalize_first(true).use_causal_mask(true).name("block"));
    Model::functional(&[tokens], &x.apply(table)).unwrap()
}

#[test]
fn tables_of_tokens_and_scores_are_one_layer_with_two_places() {
    for ranges in [Quantize::default().ranges, QuantizeRanges::Learned] {
        let mut model = language();
        let quantize = Some(Quantize { ranges, ..Quantize::default() });
        let config =
            Compile { optimizer: sgd(0.01), loss: mean_squared_error(), quantize, ..Compile::default() };
        model.compile(config).unwrap();
        let x: Vec<i32> = (0..16 * 6).map(|i| i * i % 7).collect();
        let x = Literal::from_slice([16, 6], &x).unwrap();
        let label = Literal::from_slice([16, 6, 7], &vec![0.5f32; 16 * 6 * 7]).unwrap();
        let data = Dataset::from_tensor_slices([("tokens", x), ("label", label)]).unwrap().batch(4);
        model.fit(&data, Fit { epochs: 3, ..quiet() }).unwrap();
        let found = model.trained_ranges().unwrap().unwrap();
        let places: Vec<&str> =
            found.places.iter().filter(|p| p.layer == "table").map(|p| p.place.as_str()).collect();
        assert_eq!(places, ["output", "rows"], "{ranges:?}");
        assert!(found.per_channel && found.floats.is_empty());
        let steps = found.steps.contains_key(&("table".into(), "embeddings".into()));
        assert_eq!(steps, ranges == QuantizeRanges::Learned);
        // What is hidden lies 8 below the least score, whatever other steps do.
        let scores = found.places.iter().find(|p| p.place == "self_attention/scores").unwrap();
        assert!(scores.range.0 <= -8.0, "{ranges:?}: {:?}", scores.range);
        // What comes later changes nothing.
        let mut of = |last: i32| {
            let x = Literal::from_slice([1, 6], &[3, 1, 4, 1, 5, last]).unwrap();
            model.predict_on_batch(&x).unwrap().to_f32s()
        };
        let (a, b) = (of(2), of(6));
        assert_eq!(a[..5 * 7], b[..5 * 7], "{ranges:?}");
        assert_ne!(a[5 * 7..], b[5 * 7..]);
        let file = model.to_file().unwrap();
        let mut again = Model::from_file(file, &CustomObjects::new()).unwrap();
        let x = Literal::from_slice([1, 6], &[3, 1, 4, 1, 5, 6]).unwrap();
        assert_eq!(again.predict_on_batch(&x).unwrap().to_f32s(), b);
        model.strip_quantization().unwrap();
        assert!(weights(&model).iter().all(|(path, _)| !path.ends_with("_max") && !path.ends_with("_step")));
    }
}

#[test]
fn layers_that_are_used_twice_for_the_same_are_told() {
    let refused = |model: Model, skip: &[&str]| {
        let mut model = model;
        let skip = skip.iter().map(|s| s.to_string()).collect();
        let input = model.architecture().inputs[0].ty.clone().unwrap();
        model.build(&[input]).unwrap();
        model.enable_quantization(&Quantize { skip, ..Quantize::default() }).map_err(|e| e.to_string())
    };
    for skip in [&[][..], &["table"], &["places"], &["sum"], &["block"]] {
        refused(language(), skip).unwrap_or_else(|e| panic!("{skip:?}: {e}"));
    }
    let x = input("x", [4]);
    let layer = dense(4).name("both");
    let twice = Model::functional(std::slice::from_ref(&x), &x.apply(layer.clone()).apply(layer)).unwrap();
    assert!(refused(twice, &[]).unwrap_err().contains("`both`"));
    let (a, b) = (input_of("a", I32, [4]), input_of("b", I32, [4]));
    let table = reversible_embedding(7, 8).name("table");
    let sum = add().on(&[&a.apply(table.clone()), &b.apply(table)]);
    let mut twice = Model::functional(&[a, b], &sum).unwrap();
    twice.build(&[TensorType::new(I32, [4]), TensorType::new(I32, [4])]).unwrap();
    let e = twice.enable_quantization(&Quantize::default()).unwrap_err().to_string();
    assert!(e.contains("`table`"), "{e}");
    let x = input("x", [4, 8]);
    let places = x.apply(position_embedding(4)).apply(dense(3));
    let e = refused(Model::functional(std::slice::from_ref(&x), &places).unwrap(), &[]).unwrap_err();
    assert!(e.contains("PositionEmbedding"), "{e}");
    let capped = x.apply(reversible_embedding(7, 8).logit_soft_cap(3.0));
    let e = refused(Model::functional(&[x], &capped).unwrap(), &[]).unwrap_err();
    assert!(e.contains("logit_soft_cap"), "{e}");
}

#[test]
fn batch_normalisation_freezes_after_a_step() {
    let mut model = compiled(Some(Quantize { freeze_bn_delay: Some(3), ..Quantize::default() }));
    let mut means = Vec::new();
    for _ in 0..3 {
        model.fit(&data().take(16).batch(8), quiet()).unwrap();
        means.push(model.weight("bn/moving_mean").unwrap());
    }
    assert_ne!(means[0], means[1], "the third step is before it");
    assert_eq!(means[1], means[2]);
}

/// Ends the run with an error after a step, as a kill would.
struct Killer(Option<u64>);

impl Callback for Killer {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match self.0 {
            Some(at) if cx.model.steps() == at => Err(Error::new(ErrorKind::Io, "killed")),
            _ => Ok(()),
        }
    }
}

/// A run of 12 steps.
fn run(quantize: &Quantize, dir: Option<&Path>, kill: Option<u64>) -> Result<Model> {
    let mut model = compiled(Some(quantize.clone()));
    let backup = dir.map(|d| BackupAndRestore::new(d).every_steps(1).every(None));
    let fit = Fit { epochs: 4, backup, callbacks: vec![Box::new(Killer(kill))], ..quiet() };
    model.fit(&data().shuffle(9, 5).batch(8), fit)?;
    Ok(model)
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("systole-quantize-{name}-{}", std::process::id()))
}

#[test]
fn killed_runs_end_with_the_same_bits_and_files_keep_ranges() {
    let learned = Quantize { ranges: QuantizeRanges::Learned, ..Quantize::default() };
    let frozen = Quantize { freeze_bn_delay: Some(6), ..Quantize::default() };
    for (n, quantize) in [learned, frozen].iter().enumerate() {
        let whole = run(quantize, None, None).unwrap();
        let dir = folder(&n.to_string());
        for kill in [1, 7] {
            let _ = std::fs::remove_dir_all(&dir);
            assert!(run(quantize, Some(&dir), Some(kill)).is_err());
            let again = run(quantize, Some(&dir), None).unwrap();
            assert_eq!(weights(&again), weights(&whole), "killed after step {kill}");
        }
        std::fs::remove_dir_all(dir).unwrap();
        let mut again = Model::from_file(whole.to_file().unwrap(), &Default::default()).unwrap();
        let mut whole = whole;
        let x = Literal::from_slice([1, 4, 4, 2], &[0.3f32; 32]).unwrap();
        assert_eq!(again.predict_on_batch(&x).unwrap(), whole.predict_on_batch(&x).unwrap());
        let ranges = again.trained_ranges().unwrap().unwrap();
        assert_eq!(ranges, whole.trained_ranges().unwrap().unwrap());
        assert!(ranges.places.len() == 4 && ranges.floats.is_empty(), "{ranges:?}");
        again.fit(&data().batch(8), quiet()).unwrap();
        assert!(again.is_quantized());
    }
}
