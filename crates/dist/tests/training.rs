//! Training on eight logical devices gives the results of one device: every built-in strategy, on the CPU engine and on
//! the reference interpreter.

use std::collections::BTreeMap;
use std::sync::Arc;
use systole_data::Dataset;
use systole_dist::{Strategy, partition};
use systole_ir::ErrorKind;
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, Literal, Result};
use systole_nn::layers::{self, LayerSpec};
use systole_nn::loss::sparse_categorical_crossentropy;
use systole_nn::metric::Metric;
use systole_nn::optimizer::{Optimizer, adam, adamw, sgd};
use systole_nn::{Batch, Compile, Fit, Model};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ReferenceBackend, ShardedArray,
    ValueRoles, backend,
};
use systole_testing::assert_error;

const BATCH: usize = 16;
const CLASSES: usize = 5;

fn cpu() -> Arc<dyn Backend> {
    systole_runtime::register(systole_cpu::provider());
    backend("cpu").unwrap()
}

fn reference() -> Arc<dyn Backend> {
    Arc::new(ReferenceBackend)
}

/// A network, the shape of a sample, and whether samples are tokens.
struct Case {
    name: &'static str,
    layers: fn() -> Vec<LayerSpec>,
    sample: &'static [usize],
    tokens: bool,
    optimizer: fn() -> Optimizer,
}

const CASES: &[Case] = &[
    Case {
        name: "mlp with dropout, adam",
        layers: || {
            vec![
                layers::dense(48).activation("relu"),
                layers::dropout(0.3),
                layers::dense(32).activation("tanh"),
                layers::dense(CLASSES).activation("softmax"),
            ]
        },
        sample: &[24],
        tokens: false,
        optimizer: || adam(0.01),
    },
    Case {
        name: "convolutions of the tutorial, sgd with momentum, clipped",
        layers: || {
            vec![
                layers::conv2d(8, 3).activation("relu"),
                layers::max_pooling2d(2),
                layers::conv2d(16, 3).activation("relu"),
                layers::flatten(),
                layers::dense(16).activation("relu"),
                layers::dropout(0.5),
                layers::dense(CLASSES).activation("softmax"),
            ]
        },
        sample: &[10, 10, 1],
        tokens: false,
        optimizer: || sgd(0.05).momentum(0.9).global_clipnorm(0.5),
    },
    Case {
        name: "convolutions with batch normalization, adamw, clipped",
        layers: || {
            vec![
                layers::conv2d(8, 3),
                layers::batch_normalization(),
                layers::relu(),
                layers::global_average_pooling2d(),
                layers::dense(CLASSES).activation("softmax"),
            ]
        },
        sample: &[6, 6, 3],
        tokens: false,
        optimizer: || adamw(0.01).weight_decay(0.01).global_clipnorm(1.0),
    },
    Case {
        name: "lstm, adam",
        layers: || vec![layers::lstm(16), layers::dense(CLASSES).activation("softmax")],
        sample: &[5, 12],
        tokens: false,
        optimizer: || adam(0.01),
    },
    Case {
        name: "transformer, adamw, clipped",
        layers: || {
            vec![
                layers::embedding(40, 16),
                layers::transformer_block(32, 2),
                layers::layer_normalization(),
                layers::flatten(),
                layers::dense(CLASSES).activation("softmax"),
            ]
        },
        sample: &[6],
        tokens: true,
        optimizer: || adamw(0.01).weight_decay(0.01).global_clipnorm(1.0),
    },
];

/// Networks with equal layers, which become loops if the backend wants them.
const DEEP: &[Case] = &[
    Case {
        name: "equal blocks with batch normalization and dropout, adamw, clipped",
        layers: || {
            let block = || {
                vec![layers::dense(24), layers::batch_normalization(), layers::relu(), layers::dropout(0.2)]
            };
            let mut all: Vec<LayerSpec> = (0..5).flat_map(|_| block()).collect();
            all.push(layers::dense(CLASSES).activation("softmax"));
            all
        },
        sample: &[24],
        tokens: false,
        optimizer: || adamw(0.01).weight_decay(0.01).global_clipnorm(1.0),
    },
    Case {
        name: "equal transformer blocks, adam",
        layers: || {
            let mut all = vec![layers::embedding(40, 16)];
            all.extend((0..4).map(|_| layers::transformer_block(32, 2)));
            all.extend([layers::flatten(), layers::dense(CLASSES).activation("softmax")]);
            all
        },
        sample: &[6],
        tokens: true,
        optimizer: || adam(0.003),
    },
];

/// A backend that wants loops over equal layers, like compilers that are slow on long programs.
struct Looping(Arc<dyn Backend>);

impl Backend for Looping {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.0.devices()
    }

    fn wants_loops(&self) -> bool {
        true
    }

    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        self.0.compile(graph, options)
    }

    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer> {
        self.0.put(value, device)
    }
}

impl Case {
    fn model(&self, on: Arc<dyn Backend>, strategy: Strategy) -> Model {
        let mut model = Model::sequential((self.layers)());
        model
            .compile(Compile {
                optimizer: (self.optimizer)(),
                loss: sparse_categorical_crossentropy(),
                metrics: vec![Metric::SparseCategoricalAccuracy],
                backend: Some(on),
                seed: 3,
                strategy,
                ..Default::default()
            })
            .unwrap();
        model
    }

    fn batch(&self, i: u64, size: usize) -> Batch {
        let mut rng = RandomStream::new(11, 5, i);
        let shape: Vec<usize> = std::iter::once(size).chain(self.sample.iter().copied()).collect();
        let n = shape.iter().product();
        let x = match self.tokens {
            true => {
                let tokens: Vec<i32> = (0..n).map(|_| rng.below(40) as i32).collect();
                Literal::from_slice(shape, &tokens)
            }
            false => {
                let values: Vec<f32> = (0..n).map(|_| rng.uniform_f64() as f32 - 0.5).collect();
                Literal::from_slice(shape, &values)
            }
        };
        let labels: Vec<i32> = (0..size).map(|_| rng.below(CLASSES as u64) as i32).collect();
        let label = Literal::from_slice([size], &labels).unwrap();
        Batch { inputs: vec![x.unwrap()], label: Some(label), ..Batch::default() }
    }

    /// Losses and accuracies of ten steps.
    fn curve(&self, model: &mut Model) -> Vec<[f64; 2]> {
        (0..10)
            .map(|i| {
                let logs = model
                    .train_on_batch(&self.batch(i, BATCH))
                    .unwrap_or_else(|e| panic!("{}: {e}", self.name));
                [logs["loss"], logs["sparse_categorical_accuracy"]]
            })
            .collect()
    }
}

fn eight(strategy: Strategy) -> Strategy {
    strategy.devices(8)
}

fn assert_close(what: &str, one: &[[f64; 2]], many: &[[f64; 2]]) {
    for (step, (a, b)) in one.iter().zip(many).enumerate() {
        let off = (a[0] - b[0]).abs() / a[0].abs();
        assert!(off <= 1e-5, "{what}, step {step}: loss {} on one device, {} on eight", a[0], b[0]);
        assert_eq!(a[1], b[1], "{what}, step {step}: accuracy");
    }
}

fn eight_devices_train_as_one(cases: &[Case], on: fn() -> Arc<dyn Backend>) {
    for case in cases {
        let one = case.curve(&mut case.model(on(), Strategy::one_device()));
        assert!(one[9][0] != one[0][0], "{} did not train", case.name);
        for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
            let what = format!("{}, {strategy}, {}", case.name, on().name());
            let many = case.curve(&mut case.model(on(), eight(strategy)));
            assert_close(&what, &one, &many);
        }
    }
}

#[test]
fn eight_devices_train_as_one_on_the_cpu() {
    eight_devices_train_as_one(CASES, cpu);
}

#[test]
fn equal_layers_in_loops_train_on_eight_devices_as_on_one() {
    eight_devices_train_as_one(DEEP, || Arc::new(Looping(cpu())));
}

/// Devices share the work of the loops. Collectives are inside loops only for statistics of the whole batch; gradients
/// of stacked weights are reduced once, after the loop.
#[test]
fn loops_over_equal_layers_are_split_and_meet_only_where_they_must() {
    for (case, meets) in DEEP.iter().zip([true, false]) {
        for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
            let what = format!("{}, {strategy}", case.name);
            let on = Arc::new(Looping(reference()));
            let (whole, _) = training_graph(case, on.clone());
            let own = split_graph(case, on, strategy);
            let loops =
                |g: &Graph| g.nodes.iter().filter(|n| n.op.name() == "while").cloned().collect::<Vec<_>>();
            let (whole, own) = (loops(&whole), loops(&own));
            assert!(whole.len() == 2 && own.len() == 2, "{what}");
            assert_eq!(own.iter().map(|n| n.op.meets()).collect::<Vec<_>>(), [meets; 2], "{what}");
            for (whole, own) in whole.iter().zip(&own) {
                let smaller = whole.outs.iter().zip(&own.outs).any(|(w, o)| w.elements() == 8 * o.elements());
                let types = (&whole.outs, &own.outs);
                assert!(smaller, "{what}: each device runs all of the loop: {types:?}");
            }
        }
    }
}

#[test]
fn eight_devices_train_as_one_on_the_interpreter() {
    eight_devices_train_as_one(CASES, reference);
}

fn training_graph(case: &Case, on: Arc<dyn Backend>) -> (Arc<Graph>, ValueRoles) {
    let mut model = case.model(on, Strategy::one_device());
    model.build(&case.batch(0, 1).sample_types().unwrap()).unwrap();
    model.train_program(BATCH, true).unwrap()
}

/// The partitioned training step of eight devices.
fn split_graph(case: &Case, on: Arc<dyn Backend>, strategy: Strategy) -> Arc<Graph> {
    let (graph, roles) = training_graph(case, on);
    let spread = strategy.spread(&"data=8".parse().unwrap(), &graph, &roles, true).unwrap();
    let state: Vec<usize> = (0..graph.params.len()).filter(|i| !roles.batch.contains(i)).collect();
    partition(&graph, &spread, &state).unwrap()
}

/// Number of collectives of each kind in a device's training step.
fn collectives(case: &Case, strategy: Strategy) -> BTreeMap<&'static str, usize> {
    let own = split_graph(case, reference(), strategy);
    let mut counts = BTreeMap::new();
    for node in own.nodes.iter().filter(|n| n.op.collective().is_some()) {
        *counts.entry(node.op.name()).or_insert(0) += 1;
    }
    counts
}

/// Data parallel: reductions of gradients, losses and statistics. Fully sharded: reduce-scatter of the gradients of
/// sharded weights, all-gather of their values.
#[test]
fn devices_exchange_what_the_strategy_says() {
    for case in CASES {
        let names: Vec<_> = collectives(case, Strategy::data_parallel()).into_keys().collect();
        let sums: Vec<&str> = names.iter().copied().filter(|n| *n != "replica_id").collect();
        assert_eq!(sums, ["all_reduce"], "{}", case.name);
    }
    let sharded = collectives(&CASES[0], Strategy::fully_sharded());
    assert_eq!((sharded["all_gather"], sharded["reduce_scatter"]), (2, 2), "{sharded:?}");
    assert!(!sharded.contains_key("all_to_all"), "{sharded:?}");
}

/// Bytes of the weights on each device.
fn bytes(model: &Model) -> Vec<usize> {
    let weights = model.weights();
    let pieces = weights
        .iter()
        .map(|(path, b)| b.data::<ShardedArray>().unwrap_or_else(|| panic!("{path} is not sharded")));
    let mut sums = vec![0; 8];
    for p in pieces {
        assert_eq!(p.parts.len(), 8);
        sums.iter_mut().zip(&p.parts).for_each(|(sum, part)| *sum += part.ty().bytes());
    }
    sums
}

#[test]
fn weights_are_split_where_they_shall_be() {
    let case = &CASES[0];
    let mut whole = case.model(cpu(), eight(Strategy::data_parallel()));
    let mut split = case.model(cpu(), eight(Strategy::fully_sharded()));
    for model in [&mut whole, &mut split] {
        model.train_on_batch(&case.batch(0, BATCH)).unwrap();
    }
    // 24 × 48 and 48 × 32 are split, the others are too small.
    let all = 4 * (24 * 48 + 48 + 48 * 32 + 32 + 32 * CLASSES + CLASSES);
    assert_eq!(bytes(&whole), [all; 8]);
    assert_eq!(bytes(&split), [all - 4 * 7 * (24 * 6 + 6 * 32); 8]);
}

fn data(case: &Case, samples: usize, batch: usize) -> Dataset {
    let all = case.batch(77, samples);
    let slices = [("x", all.inputs[0].clone()), ("label", all.label.unwrap())];
    Dataset::from_tensor_slices(slices).unwrap().batch(batch)
}

/// Includes the last, smaller batch of an epoch, which cannot be split over eight devices.
#[test]
fn fit_evaluate_and_predict_are_those_of_one_device() {
    let case = &CASES[0];
    let run = |strategy: Strategy| {
        let mut model = case.model(cpu(), strategy);
        let fit = Fit { epochs: 2, ..Default::default() };
        let history = model.fit(&data(case, 43, BATCH), fit).unwrap();
        let logs = model.evaluate(&data(case, 43, 9)).unwrap();
        let x = model.predict(&data(case, 43, BATCH)).unwrap();
        (history.last()["loss"], logs["loss"], x)
    };
    let one = run(Strategy::one_device());
    for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
        let many = run(eight(strategy));
        assert!((one.0 - many.0).abs() < 1e-5 * one.0, "{} {}", one.0, many.0);
        assert!((one.1 - many.1).abs() < 1e-5 * one.1, "{} {}", one.1, many.1);
        let far = one.2.to_f64s().into_iter().zip(many.2.to_f64s()).map(|(a, b)| (a - b).abs());
        assert!(far.fold(0.0, f64::max) < 1e-5);
    }
}

/// Saved models are not sharded: training continues with any number of devices.
#[test]
fn a_saved_model_goes_on_with_another_number_of_devices() {
    let case = &CASES[0];
    let path = std::env::temp_dir().join(format!("systole-strategies-{}.safetensors", std::process::id()));
    let mut model = case.model(cpu(), Strategy::fully_sharded().devices(8));
    model.train_on_batch(&case.batch(0, BATCH)).unwrap();
    model.save(&path).unwrap();
    let expected = model.train_on_batch(&case.batch(1, BATCH)).unwrap()["loss"];
    for strategy in
        [Strategy::one_device(), Strategy::fully_sharded().devices(4), Strategy::data_parallel().devices(2)]
    {
        let mut again = Model::load(&path).unwrap();
        let config = again.compile_config().unwrap().clone();
        again.set_strategy(strategy.clone(), Some(cpu())).unwrap();
        assert_eq!(again.compile_config().unwrap().seed, config.seed);
        let loss = again.train_on_batch(&case.batch(1, BATCH)).unwrap()["loss"];
        assert!((loss - expected).abs() < 1e-5 * expected, "{strategy}: {loss} {expected}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_batch_that_does_not_divide_names_sizes_that_do() {
    let case = &CASES[0];
    let mut model = case.model(cpu(), eight(Strategy::data_parallel()));
    let error = model.train_on_batch(&case.batch(0, 30)).unwrap_err().to_string();
    assert!(error.contains("30 samples") && error.contains("24 or 32"), "{error}");
    // The state is complete.
    model.train_on_batch(&case.batch(0, 32)).unwrap();
    // Smaller than an earlier batch: the last batch of an epoch.
    model.train_on_batch(&case.batch(0, 5)).unwrap();
    let error = model.train_on_batch(&case.batch(0, 33)).unwrap_err().to_string();
    assert!(error.contains("32 or 40"), "{error}");
}

#[test]
fn meshes_and_shardings_that_do_not_fit_are_refused() {
    let case = &CASES[0];
    let compiled = |strategy: Strategy| {
        let mut model = Model::sequential((case.layers)());
        let backend = Some(cpu());
        model.compile(Compile {
            loss: sparse_categorical_crossentropy(),
            backend,
            strategy,
            ..Default::default()
        })?;
        model.train_on_batch(&case.batch(0, BATCH))
    };
    let said = |strategy: Strategy| compiled(strategy).unwrap_err();
    let two = || Strategy::data_parallel().mesh("data=4,model=2".parse().unwrap());
    assert!(compiled(two()).is_ok());
    let error = said(two().shard("dense/kernel", [None, Some("model")]));
    assert_error(&error, ErrorKind::Unsupported, &["data=4,model=2", "XLA"]);
    let error = said(two().shard("dense*/kernel", [None, Some("rows")]));
    assert_error(&error, ErrorKind::Config, &["`rows`"]);
    let error = said(Strategy::data_parallel().devices(0));
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(Strategy::parse("horizontal").is_err());
}
