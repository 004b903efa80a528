//! Loops over equal layers compute what the layers one after the other do.

use serde_json::json;
use std::sync::Arc;
use systole_ir::{DType, Graph, Literal, LiteralBuilder, Result, Scalar, TensorType, rng::Stream};
use systole_nn::applications::by_name;
use systole_nn::layers::*;
use systole_nn::loss::{Loss, sparse_categorical_crossentropy};
use systole_nn::optimizer::{Optimizer, adam, sgd};
use systole_nn::{Architecture, Compile, Fit, Model, Precision};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, backend};

/// A backend that asks for loops.
struct InLoops(Arc<dyn Backend>);

impl Backend for InLoops {
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

fn open(name: &str) -> Arc<dyn Backend> {
    systole_runtime::register(systole_cpu::provider());
    backend(name).unwrap()
}

fn gpt2(layers: usize, dropout: f64) -> Architecture {
    let arguments = json!({
        "vocabulary_size": 11, "num_layers": layers, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12,
        "max_sequence_length": 6, "dropout": dropout,
    });
    by_name("gpt2", arguments.as_object().unwrap()).unwrap()
}

/// Residual blocks, of which those after the first of each stage are equal, with moving statistics.
fn resnet() -> Architecture {
    let arguments = json!({"classes": 3, "width": 4, "depths": [5, 4]});
    by_name("resnet50", arguments.as_object().unwrap()).unwrap()
}

/// Random numbers: classes below `classes` where they are integers.
fn random(ty: TensorType, classes: u64, seed: u64) -> Literal {
    let mut s = Stream::new(seed, 1, 2);
    let mut b = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let value = match ty.dtype.is_float() {
            true => Scalar::Float(s.uniform_f64() - 0.5),
            false => Scalar::Int(s.below(classes) as i64),
        };
        b.set(i, value);
    }
    b.finish()
}

struct Case {
    architecture: Architecture,
    input: TensorType,
    label: TensorType,
    classes: u64,
    loss: Loss,
    optimizer: Optimizer,
    precision: Precision,
}

impl Case {
    fn gpt2(layers: usize, dropout: f64) -> Case {
        Case {
            architecture: gpt2(layers, dropout),
            input: TensorType::new(DType::I32, [6]),
            label: TensorType::new(DType::I32, [6]),
            classes: 11,
            loss: sparse_categorical_crossentropy().from_logits(true),
            optimizer: adam(0.01),
            precision: Precision::Float32,
        }
    }

    /// Trained in steps that keep differences of rounding small: Adam makes whole steps of gradients that are nothing but
    /// rounding, as those of a bias before normalisation are.
    fn images(architecture: Architecture, shape: &[usize]) -> Case {
        Case {
            architecture,
            input: TensorType::new(DType::F32, shape),
            label: TensorType::new(DType::I32, [0; 0]),
            classes: 3,
            loss: sparse_categorical_crossentropy(),
            optimizer: sgd(1e-3),
            precision: Precision::Float32,
        }
    }

    fn model(&self, on: Arc<dyn Backend>) -> Model {
        let mut model = Model::new(self.architecture.clone());
        let (loss, optimizer, precision) = (self.loss.clone(), self.optimizer.clone(), self.precision);
        let compile =
            Compile { optimizer, loss, precision, seed: 3, backend: Some(on), ..Default::default() };
        model.compile(compile).unwrap();
        model.build(std::slice::from_ref(&self.input)).unwrap();
        model
    }

    /// All weights after a few steps.
    fn trained(&self, on: Arc<dyn Backend>) -> Model {
        let mut model = self.model(on);
        let samples = |t: &TensorType| t.with_shape([&[8], t.shape.dims()].concat());
        let x = random(samples(&self.input), self.classes, 1);
        let y = random(samples(&self.label), self.classes, 2);
        let data = systole_data::Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap().batch(4);
        model.fit(&data, Fit { epochs: 2, ..Default::default() }).unwrap();
        model
    }

    /// The greatest distance between the weights with and without loops, beside their size.
    fn distance(&self, on: &str) -> f64 {
        let (plain, looped) = (self.trained(open(on)), self.trained(Arc::new(InLoops(open(on)))));
        let numbers = |b: &Buffer| b.to_literal().unwrap().to_f64s();
        let pairs = plain.weights().into_iter().zip(looped.weights());
        let distances = pairs.map(|((name, a), (other, b))| {
            assert_eq!(name, other);
            let (a, b) = (numbers(a), numbers(b));
            let off: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            off / a.iter().map(|a| a * a).sum::<f64>().sqrt().max(1e-2)
        });
        distances.fold(0.0, f64::max)
    }

    /// How many loops the training step has.
    fn loops(&self) -> usize {
        whiles(&self.model(open("ref")).train_program(2, true).unwrap().0)
    }
}

fn whiles(graph: &Graph) -> usize {
    graph.nodes.iter().filter(|n| n.op.name() == "while").count()
}

fn sequence(layers: Vec<LayerSpec>) -> Case {
    Case::images(Architecture::sequential(layers), &[4])
}

#[test]
fn transformers_train_alike_with_and_without_loops() {
    for (on, dropout) in [("ref", 0.3), ("cpu", 0.3), ("cpu", 0.0)] {
        let case = Case::gpt2(4, dropout);
        assert_eq!(case.loops(), 2);
        let off = case.distance(on);
        assert!(off < 2e-5, "{on}, dropout {dropout}: {off:.1e}");
    }
}

#[test]
fn statistics_of_residual_blocks_move_alike() {
    let case = Case::images(resnet(), &[32, 32, 3]);
    assert_eq!(case.loops(), 4);
    let off = case.distance("cpu");
    assert!(off < 1e-4, "{off:.1e}");
}

#[test]
fn the_program_does_not_grow_with_the_model() {
    let step = |layers| Case::gpt2(layers, 0.1).model(open("ref")).train_program(2, true).unwrap().0;
    let bodies = |g: &Graph| -> Vec<usize> {
        let loops = g.nodes.iter().filter(|n| n.op.name() == "while");
        loops.map(|n| n.op.rule().regions()[1].nodes.len()).collect()
    };
    let (few, many) = (step(4), step(9));
    assert_eq!((whiles(&few), whiles(&many)), (2, 2));
    assert_eq!(bodies(&few), bodies(&many));
}

/// What a loop cannot step stays as it is; around it, what can be stepped is.
#[test]
fn only_equal_layers_that_nobody_else_reads_become_loops() {
    let hidden = || dense(4).activation("relu");
    let with = |n: usize, last: LayerSpec| {
        let mut layers: Vec<LayerSpec> = (0..n).map(|_| hidden()).collect();
        layers.push(last);
        sequence(layers)
    };
    let head = || dense(3).activation("softmax");
    assert_eq!(with(2, head()).loops(), 0);
    assert_eq!(with(3, head()).loops(), 2);
    // The first of the wide layers takes another input than those after it.
    let wide: Vec<LayerSpec> = (0..4).map(|_| dense(6)).chain([head()]).collect();
    assert_eq!(sequence(wide).loops(), 2);
    // The same weights three times are no three layers.
    let shared: Vec<LayerSpec> = (0..3).map(|_| hidden().name("one")).chain([head()]).collect();
    assert_eq!(sequence(shared).loops(), 0);
    // A frozen layer, and one with another function, end a run.
    for other in [hidden().trainable(false), dense(4)] {
        let layers = vec![hidden(), hidden(), other, hidden(), hidden(), head()];
        assert_eq!(sequence(layers).loops(), 0);
    }
    // The loss asks for the logits of the last of three.
    let softmax = || dense(4).activation("softmax");
    assert_eq!(sequence(vec![softmax(), softmax(), softmax()]).loops(), 0);
    let x = systole_nn::input("x", [4]);
    let a = x.apply(hidden());
    let b = a.apply(hidden());
    let y = b.apply(hidden());
    let y = add().on(&[&a, &y]).apply(head());
    let read = Architecture::functional(&[x], &y).unwrap();
    assert_eq!(Case::images(read, &[4]).loops(), 0);
}
