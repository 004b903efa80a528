//! LoRA and pruning: trainable and frozen weights, saved files, removed channels, and resuming after kills.

use std::path::{Path, PathBuf};
use systole_data::Dataset;
use systole_ir::{
    DType::{F32, I8, I32, U8},
    Error, ErrorKind, Literal, Result, TensorType,
};
use systole_nn::applications::Gpt2;
use systole_nn::callback::{Callback, FitCx};
use systole_nn::layers::{
    LayerSpec, add, batch_normalization, conv2d, dense, depthwise_conv2d, embedding, flatten, max_pooling2d,
    multi_head_attention, relu, reversible_embedding, spectral_normalization,
};
use systole_nn::loss::Loss;
use systole_nn::optimizer::{adam, sgd};
use systole_nn::{
    BackupAndRestore, Compile, FineTune, Fit, LoraOptions, Model, Pruning, WeightBits, any_input,
    layers::{CustomObjects, global_average_pooling1d},
};
use systole_testing::assert_error;

fn data() -> Dataset {
    let x: Vec<f32> = (0..24 * 32).map(|i| (i as f32 * 0.37).sin() * 2.0 + 0.5).collect();
    let y: Vec<i32> = x.chunks(32).map(|c| i32::from(c[0] * c[1] > c[2])).collect();
    let x = Literal::from_slice([24, 4, 4, 2], &x).unwrap();
    let y = Literal::from_slice([24], &y).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap()
}

fn network() -> Vec<LayerSpec> {
    vec![
        conv2d(4, 3).activation("relu").name("conv"),
        batch_normalization().name("bn"),
        flatten(),
        dense(6).activation("tanh").kernel_regularizer("l2").name("body"),
        dense(2).activation("softmax").name("head"),
    ]
}

fn compiled(pruning: Option<Pruning>) -> Model {
    let mut model = Model::sequential(network());
    model.compile(Compile { optimizer: adam(0.02), seed: 4, pruning, ..Compile::default() }).unwrap();
    model.build(&[TensorType::new(F32, [4, 4, 2])]).unwrap();
    model
}

fn adapted() -> Model {
    let mut model = compiled(None);
    let options = LoraOptions { rank: 2, alpha: Some(6.0), train: vec!["head".into()], ..Default::default() };
    assert_eq!(model.enable_lora(options).unwrap(), ["conv/kernel", "body/kernel"]);
    model
}

fn weights(model: &Model) -> Vec<(String, Literal)> {
    model.weights().iter().map(|(path, _)| (path.to_string(), model.weight(path).unwrap())).collect()
}

fn quiet() -> Fit {
    Fit { verbose: 0, ..Fit::default() }
}

fn input() -> Literal {
    let x: Vec<f32> = (0..96).map(|i| (i as f32 * 0.7).cos()).collect();
    Literal::from_slice([3, 4, 4, 2], &x).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("systole-lora-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn furthest(a: &Literal, b: &Literal) -> f64 {
    assert_eq!(a.shape(), b.shape());
    a.to_f64s().iter().zip(b.to_f64s()).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()))
}

#[test]
fn adapters_change_nothing_at_first_and_merge_into_what_they_are() {
    let (mut plain, mut model) = (compiled(None), adapted());
    assert_eq!(plain.predict_on_batch(&input()).unwrap(), model.predict_on_batch(&input()).unwrap());
    let before = weights(&model);
    model.fit(&data().batch(8), Fit { epochs: 3, ..quiet() }).unwrap();
    let moved: Vec<String> =
        weights(&model).into_iter().zip(&before).filter(|(a, b)| a.1 != b.1).map(|(a, _)| a.0).collect();
    assert_eq!(
        moved,
        [
            "conv/lora_kernel_a",
            "conv/lora_kernel_b",
            "body/lora_kernel_a",
            "body/lora_kernel_b",
            "head/kernel",
            "head/bias"
        ]
    );
    let slots = model.to_file().unwrap().tensors;
    assert!(!slots.iter().any(|(name, _)| name.starts_with("optimizer/") || name.contains("lora")));
    assert!(model.summary().contains("Trainable: 102;"), "{}", model.summary());

    let trained = model.predict_on_batch(&input()).unwrap();
    assert!(furthest(&trained, &plain.predict_on_batch(&input()).unwrap()) > 1e-3, "it has learnt");
    let dir = folder("merge");
    std::fs::create_dir_all(&dir).unwrap();
    let (file, own) = (dir.join("merged.safetensors"), dir.join("adapters.safetensors"));
    model.save(&file).unwrap();
    model.save_adapters(&own).unwrap();
    let mut saved = Model::load(&file).unwrap();
    let names = |m: &Model| m.weights().iter().map(|(path, _)| path.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&saved), names(&plain));
    assert!(saved.architecture().nodes.iter().all(|n| n.layer.is_trainable()));
    assert!(furthest(&trained, &saved.predict_on_batch(&input()).unwrap()) < 1e-5);
    // The adapters of the file on the model that they were made for; the head trained whole.
    let mut again = adapted();
    again.load_adapters(&own).unwrap();
    for path in ["head/kernel", "head/bias"] {
        again.set_weight(path, model.weight(path).unwrap()).unwrap();
    }
    assert_eq!(again.predict_on_batch(&input()).unwrap(), trained);
    model.merge_lora().unwrap();
    assert_eq!(weights(&model), weights(&saved));
    // It goes on as a whole.
    model.fit(&data().batch(8), quiet()).unwrap();
    assert!(plain.load_adapters(&own).unwrap_err().to_string().contains("4 adapters"));
    std::fs::remove_dir_all(dir).unwrap();
}

fn wide() -> Model {
    let layers = vec![
        flatten(),
        dense(48).activation("relu").name("a"),
        dense(40).activation("tanh").name("b"),
        dense(2).activation("softmax").name("head"),
    ];
    let mut model = Model::sequential(layers);
    model.compile(Compile { optimizer: adam(0.02), seed: 4, ..Compile::default() }).unwrap();
    model.build(&[TensorType::new(F32, [4, 4, 2])]).unwrap();
    model
}

/// A model whose two large kernels lie packed in its file.
fn packed(bits: WeightBits) -> Model {
    let mut file = wide().to_file().unwrap();
    assert_eq!(file.pack_weights(bits).unwrap().len(), 2);
    Model::from_file(file, &CustomObjects::new()).unwrap()
}

#[test]
fn packed_kernels_stay_whole_numbers_beside_adapters() {
    for bits in [WeightBits::Int8, WeightBits::Int4] {
        let mut plain = packed(bits);
        let before = plain.predict_on_batch(&input()).unwrap();
        let mut model = packed(bits);
        // "a" has adapters, "b" is frozen as it is, the head trains.
        let options = LoraOptions {
            rank: 2,
            layers: vec!["a".into()],
            train: vec!["head".into()],
            ..LoraOptions::default()
        };
        assert_eq!(model.enable_lora(options.clone()).unwrap(), ["a/kernel"]);
        assert_eq!(model.packed_weights(), ["a/kernel", "b/kernel"]);
        let numbers = model.weight("a/kernel_numbers").unwrap();
        let expected = if bits == WeightBits::Int8 { (I8, vec![32, 48]) } else { (U8, vec![32 * 48 / 2]) };
        assert_eq!((numbers.dtype(), numbers.shape().to_vec()), expected);
        assert!(model.weight("a/kernel").is_err());
        assert_eq!(furthest(&model.predict_on_batch(&input()).unwrap(), &before), 0.0, "{bits:?}");
        model.fit(&data().batch(8), Fit { epochs: 3, ..quiet() }).unwrap();
        assert_eq!(model.weight("a/kernel_numbers").unwrap(), numbers);
        let trained = model.predict_on_batch(&input()).unwrap();
        assert!(furthest(&trained, &before) > 1e-3, "it has learnt");
        // The file has floats, with what the adapters add, where the plain model has them.
        let file = model.to_file().unwrap();
        let names =
            |file: &systole_nn::ModelFile| file.tensors.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
        let of_weights: Vec<String> =
            names(&plain.to_file().unwrap()).into_iter().filter(|n| n.starts_with("weights/")).collect();
        assert_eq!(names(&file), of_weights);
        let mut saved = Model::from_file(file, &CustomObjects::new()).unwrap();
        assert!(furthest(&trained, &saved.predict_on_batch(&input()).unwrap()) < 1e-5);
        assert_eq!(saved.weight("b/kernel").unwrap(), plain.weight("b/kernel").unwrap());
        // What is merged is floats; what had no adapters is packed still.
        model.merge_lora().unwrap();
        assert_eq!(weights(&model), weights(&saved));
        model.enable_lora(options).unwrap();
        assert_eq!(model.packed_weights(), ["b/kernel"]);
        // A weight that was set anew is no longer what the file has packed.
        let mut other = packed(bits);
        other.set_weight("a/kernel", Literal::zeros(TensorType::new(F32, [32, 48]))).unwrap();
        other.enable_lora(LoraOptions::default()).unwrap();
        assert_eq!(other.packed_weights(), ["b/kernel"]);
    }
}

#[test]
fn wrong_options_are_told() {
    let is_refused = |options: LoraOptions, names: &[&str]| {
        assert_error(&compiled(None).enable_lora(options).unwrap_err(), ErrorKind::Config, names);
    };
    let names = |name: &str| vec![name.to_string()];
    is_refused(LoraOptions { rank: 0, ..Default::default() }, &["`rank`"]);
    is_refused(LoraOptions { alpha: Some(-1.0), ..Default::default() }, &["`alpha`"]);
    is_refused(LoraOptions { layers: names("bdy"), ..Default::default() }, &["`bdy`", "`body`"]);
    is_refused(LoraOptions { layers: names("bn"), ..Default::default() }, &["`bn`"]);
    is_refused(LoraOptions { train: names("tail"), ..Default::default() }, &["`tail`"]);
    is_refused(LoraOptions { layers: names("head"), train: names("head"), ..Default::default() }, &[]);
    let e = Model::sequential(network()).enable_lora(LoraOptions::default()).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["model.build"]);
    let e = adapted().enable_lora(LoraOptions::default()).unwrap_err().to_string();
    assert!(e.contains("merge_lora"), "{e}");
    assert!(dense(3).enable_lora(0).check().unwrap_err().to_string().contains("LoRA"));
    let e = spectral_normalization(dense(3)).enable_lora(2).check().unwrap_err().to_string();
    assert!(e.contains("SpectralNormalization") && e.contains("LoRA"), "{e}");
    assert!(dense(3).lora_alpha(2.0).check().unwrap_err().to_string().contains("enable_lora(rank) first"));
}

#[test]
fn attention_embeddings_and_gpt2_take_adapters() {
    let tokens = any_input("x");
    let table = tokens.apply(embedding(11, 8).name("table"));
    let y = multi_head_attention(2, 4)
        .name("attention")
        .on(&[&table])
        .apply(global_average_pooling1d())
        .apply(dense(2));
    let mut model = Model::functional(&[tokens], &y).unwrap();
    model.build(&[TensorType::new(I32, [5])]).unwrap();
    let x = Literal::from_slice([2, 5], &[1i32, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    let before = model.predict_on_batch(&x).unwrap();
    let layers = vec!["*attention*".to_string(), "table".into()];
    let paths = model.enable_lora(LoraOptions { rank: 3, layers, ..Default::default() }).unwrap();
    assert_eq!(
        paths,
        [
            "table/embeddings",
            "attention/query/kernel",
            "attention/key/kernel",
            "attention/value/kernel",
            "attention/attention_output/kernel"
        ]
    );
    assert_eq!(before, model.predict_on_batch(&x).unwrap());
    assert_eq!(model.weight("attention/query/lora_kernel_a").unwrap().shape().dims(), [8, 2, 3]);
    assert_eq!(model.weight("table/lora_embeddings_b").unwrap().shape().dims(), [3, 8]);

    let small = Gpt2 {
        vocabulary_size: 17,
        num_layers: 2,
        num_heads: 2,
        hidden_dim: 8,
        intermediate_dim: 16,
        max_sequence_length: 8,
        ..Gpt2::default()
    };
    let mut model = Model::new(small.architecture().unwrap());
    let loss = Loss::SparseCategoricalCrossentropy { from_logits: true, ignore_class: None };
    model.compile(Compile { optimizer: sgd(0.1), loss, ..Compile::default() }).unwrap();
    model.build(&[TensorType::new(I32, [6])]).unwrap();
    let layers = vec!["*query*".to_string(), "*value*".into()];
    let paths = model.enable_lora(LoraOptions { rank: 2, layers, ..Default::default() }).unwrap();
    assert_eq!(paths.len(), 4, "{paths:?}");
    let tokens: Vec<i32> = (0..24).map(|i| i * 7 % 17).collect();
    let tokens = Literal::from_slice([4, 6], &tokens).unwrap();
    let data = Dataset::from_tensor_slices([("tokens", tokens.clone()), ("label", tokens)]).unwrap().batch(2);
    let before = weights(&model);
    model.fit(&data, quiet()).unwrap();
    for ((path, was), (_, is)) in before.iter().zip(weights(&model)) {
        assert_eq!(
            *was != is,
            path.contains("lora_kernel_b") || (*was != is && path.contains("lora")),
            "{path}"
        );
    }
}

/// Fails after a step, as if the process were killed.
struct Killer(Option<u64>);

impl Callback for Killer {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match self.0 {
            Some(at) if cx.model.steps() == at => Err(Error::new(ErrorKind::Io, "killed")),
            _ => Ok(()),
        }
    }
}

/// A run of 12 steps, of a model that `make` gives, in two phases where that is asked for.
fn run(make: fn() -> Model, phases: bool, dir: Option<&Path>, kill: Option<u64>) -> Result<Model> {
    let mut model = make();
    let backup = dir.map(|d| BackupAndRestore::new(d).every_steps(1).every(None));
    let fit = Fit { epochs: 4, backup, callbacks: vec![Box::new(Killer(kill))], ..quiet() };
    let data = data().shuffle(9, 5).batch(8);
    match phases {
        true => model.fine_tune(&data, FineTune { epochs: 3, base_lr: 0.05, ..Default::default() }, fit)?,
        false => model.fit(&data, fit)?,
    };
    Ok(model)
}

fn killed_runs_are_whole(name: &str, make: fn() -> Model, phases: bool) -> Model {
    let whole = run(make, phases, None, None).unwrap();
    assert_eq!(whole.steps(), 12);
    let dir = folder(name);
    for kill in [2, 5, 9] {
        let _ = std::fs::remove_dir_all(&dir);
        assert!(run(make, phases, Some(&dir), Some(kill)).is_err());
        let again = run(make, phases, Some(&dir), None).unwrap();
        assert_eq!(weights(&again), weights(&whole), "{name} killed after step {kill}");
    }
    std::fs::remove_dir_all(dir).unwrap();
    whole
}

#[test]
fn killed_runs_with_adapters_end_with_the_same_bits() {
    killed_runs_are_whole("kill", adapted, false);
    let whole = killed_runs_are_whole("kill-phases", adapted, true);
    assert_eq!(whole.weight("body/kernel").unwrap(), adapted().weight("body/kernel").unwrap());
    assert_ne!(whole.weight("body/lora_kernel_b").unwrap(), adapted().weight("body/lora_kernel_b").unwrap());
}

fn pruned() -> Model {
    compiled(Some(Pruning::polynomial_decay(0.25, 0.75, 9).begin_step(1).frequency(2)))
}

/// Adapters beside packed kernels.
fn packed_and_adapted() -> Model {
    let mut model = packed(WeightBits::Int4);
    model.enable_lora(LoraOptions { rank: 2, train: vec!["head".into()], ..Default::default() }).unwrap();
    model
}

#[test]
fn killed_runs_beside_packed_kernels_end_with_the_same_bits() {
    let whole = killed_runs_are_whole("packed", packed_and_adapted, false);
    assert_eq!(whole.packed_weights(), ["a/kernel", "b/kernel"]);
    assert_ne!(
        whole.weight("a/lora_kernel_b").unwrap(),
        packed_and_adapted().weight("a/lora_kernel_b").unwrap()
    );
}

fn zeros(model: &Model) -> Vec<(String, f64)> {
    let all = model.sparsity().unwrap();
    all.into_iter().map(|s| (s.path, s.zeros as f64 / s.weights as f64)).collect()
}

#[test]
fn pruned_weights_are_zero_at_the_end_and_after_kills() {
    let whole = killed_runs_are_whole("pruned", pruned, false);
    for (path, part) in zeros(&whole) {
        assert!((part - 0.75).abs() < 0.05, "{path}: {part}");
    }
    // The file is plain, loads anywhere, and trains on.
    let file = whole.to_file().unwrap();
    assert!(file.tensors.iter().all(|(name, _)| !name.contains("mask")));
    let mut again = Model::from_file(file, &Default::default()).unwrap();
    assert_eq!(zeros(&again), zeros(&whole));
    again.fit(&data().batch(8), quiet()).unwrap();
    assert_ne!(zeros(&again), zeros(&whole), "nothing prunes any more");
    killed_runs_are_whole("pruned-phases", pruned, true);
}

#[test]
fn pruning_by_layer_globally_and_in_blocks() {
    let part = |pruning: Pruning| {
        let mut model = compiled(Some(pruning));
        model.fit(&data().batch(8), Fit { epochs: 2, ..quiet() }).unwrap();
        model
    };
    let half = || Pruning::constant_sparsity(0.5).frequency(2);
    let own = zeros(&part(half().layers(&["body"])));
    assert_eq!(
        own.iter().filter(|(_, part)| *part > 0.0).map(|(p, _)| p.as_str()).collect::<Vec<_>>(),
        ["body/kernel"]
    );
    let global = part(half().global(true));
    let (none, all) =
        global.sparsity().unwrap().iter().fold((0, 0), |(z, n), s| (z + s.zeros, n + s.weights));
    assert_eq!(none * 2, all, "half of all");
    assert!(zeros(&global).iter().any(|(_, part)| (part - 0.5).abs() > 0.02), "not of each");
    let blocks = part(Pruning::constant_sparsity(0.0).sparsity_m_by_n(1, 2));
    let kernel = blocks.weight("body/kernel").unwrap();
    for pair in kernel.to_f64s().chunks(12) {
        assert!(
            (0..6).all(|i| (pair[i] == 0.0) != (pair[6 + i] == 0.0)),
            "one of two along the inputs: {pair:?}"
        );
    }
    // Means of weights keep the zeros of the end.
    let mut model = Model::sequential(network());
    let optimizer = adam(0.02).ema(0.9);
    model.compile(Compile { optimizer, pruning: Some(half()), ..Compile::default() }).unwrap();
    model.fit(&data().batch(8), Fit { epochs: 2, ..quiet() }).unwrap();
    assert!(zeros(&model).iter().all(|(_, part)| *part >= 0.5), "{:?}", zeros(&model));
}

#[test]
fn wrong_pruning_is_told() {
    let e = |pruning: Pruning| {
        let mut model = Model::sequential(network());
        let compiled = model.compile(Compile { pruning: Some(pruning), ..Compile::default() });
        compiled.and_then(|()| model.fit(&data().batch(8), quiet()).map(drop)).unwrap_err().to_string()
    };
    assert!(e(Pruning::constant_sparsity(1.0)).contains("invalid target_sparsity 1"));
    assert!(e(Pruning::constant_sparsity(0.5).frequency(0)).contains("`frequency`"));
    assert!(e(Pruning::constant_sparsity(0.5).begin_step(9).end_step(3)).contains("before begin_step"));
    assert!(e(Pruning::constant_sparsity(0.5).sparsity_m_by_n(4, 4)).contains("[4, 4]"));
    assert!(e(Pruning::constant_sparsity(0.5).layers(&["tail"])).contains("finds no weights to prune"));
}

/// A network of all that channels go through: two branches that both lose inputs, and a sum that keeps its channels whole.
fn channelled() -> Model {
    let x = systole_nn::input("x", [8, 8, 3]);
    let a = x
        .apply(conv2d(8, 3).padding("same").use_bias(false).name("a"))
        .apply(batch_normalization().name("bn"));
    let a =
        a.apply(relu()).apply(depthwise_conv2d(3).depth_multiplier(2).name("deep")).apply(max_pooling2d(2));
    let b = a.apply(conv2d(6, 1).activation("tanh").name("b"));
    let c = a.apply(conv2d(6, 1).name("c"));
    let y = add().on(&[&b, &c]).apply(conv2d(4, 2).padding("same").name("d")).apply(flatten());
    let y = y.apply(dense(5).activation("relu").name("e")).apply(dense(2).activation("softmax").name("f"));
    Model::functional(&[x], &y).unwrap()
}

#[test]
fn channels_are_pruned_and_removed() {
    let x: Vec<f32> = (0..24 * 192).map(|i| (i as f32 * 0.37).sin() + 0.2).collect();
    let y: Vec<i32> = (0..24).map(|i| i % 2).collect();
    let x = Literal::from_slice([24, 8, 8, 3], &x).unwrap();
    let y = Literal::from_slice([24], &y).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap();
    let pruning = Pruning::constant_sparsity(0.5).frequency(2).channels(true);
    let mut model = channelled();
    let compile = |pruning| Compile { optimizer: adam(0.02), seed: 4, pruning, ..Compile::default() };
    model.compile(compile(Some(pruning.clone()))).unwrap();
    model.fit(&data.batch(8), Fit { epochs: 3, ..quiet() }).unwrap();
    let one = data.batch(24);
    let before = model.predict(&one).unwrap();
    let removed = model.remove_channels().unwrap();
    let told: Vec<(&str, usize, usize)> =
        removed.iter().map(|r| (r.layer.as_str(), r.before, r.after)).collect();
    // b and c end in a sum, f in the output.
    assert_eq!(told, [("a", 8, 4), ("d", 4, 2), ("e", 5, 3)]);
    let shape = |path: &str| model.weight(path).unwrap().shape().to_vec();
    assert_eq!((shape("a/kernel"), shape("bn/moving_mean")), (vec![3, 3, 3, 4], vec![4]));
    assert_eq!((shape("deep/kernel"), shape("deep/bias")), (vec![3, 3, 4, 2], vec![8]));
    assert_eq!((shape("b/kernel"), shape("d/kernel")), (vec![1, 1, 8, 6], vec![2, 2, 6, 2]));
    assert_eq!((shape("e/kernel"), shape("f/kernel")), (vec![9 * 2, 3], vec![3, 2]));
    let after = model.predict(&one).unwrap();
    assert!(furthest(&before, &after) < 1e-6, "{}", furthest(&before, &after));
    assert!(model.remove_channels().unwrap().is_empty());
    let again = Model::from_file(model.to_file().unwrap(), &Default::default()).unwrap();
    assert_eq!(weights(&again), weights(&model));

    let refused = |pruning: Pruning| {
        let mut model = channelled();
        model.compile(compile(Some(pruning)))?;
        model.fit(&data.batch(8), quiet())
    };
    let e = |pruning: Pruning| refused(pruning).unwrap_err().to_string();
    let global = refused(pruning.clone().global(true)).unwrap_err();
    assert_error(&global, ErrorKind::Config, &["`channels`", "`global`"]);
    let wrong = e(pruning.clone().layers(&["b"]));
    for part in ["`b`", "add (Add)", "a, d, e"] {
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
    assert!(
        e(pruning.clone().layers(&["f"])).contains("activation"),
        "{}",
        e(pruning.clone().layers(&["f"]))
    );
}

/// Tied embeddings are one layer with two calls: its adapters are merged once.
#[test]
fn adapters_of_a_layer_that_is_called_twice_are_merged_once() {
    let (tokens, table) = (any_input("tokens"), reversible_embedding(7, 3).name("table"));
    let scores = tokens.apply(table.clone()).apply(dense(3).name("body")).apply(table);
    let mut model = Model::functional(&[tokens], &scores).unwrap();
    model.build(&[TensorType::new(I32, [4])]).unwrap();
    model.enable_lora(LoraOptions { rank: 2, ..Default::default() }).unwrap();
    let b = Literal::from_slice([2, 3], &[0.5f32, -1., 2., 1., 0.25, -0.5]).unwrap();
    model.set_weight("table/lora_embeddings_b", b).unwrap();
    let x = Literal::from_slice([1, 4], &[0i32, 3, 6, 1]).unwrap();
    let trained = model.predict_on_batch(&x).unwrap().to_f32s();
    let mut written = Model::from_file(model.to_file().unwrap(), &CustomObjects::default()).unwrap();
    model.merge_lora().unwrap();
    for (what, model) in [("written", &mut written), ("merged", &mut model)] {
        let same = model.predict_on_batch(&x).unwrap().to_f32s();
        assert!(
            same.iter().zip(&trained).all(|(a, b)| (a - b).abs() < 1e-5),
            "{what}: {same:?}, {trained:?}"
        );
    }
}
