//! Compares whole training steps with XLA: MLIR's parser reads the StableHLO text of a step, XLA compiles it for this
//! CPU, and the results must match Systole's engine. Needs a Python with JAX, named by SYSTOLE_PYTHON.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::path::Path;
use std::process::Command;
use systole::prelude::*;
use systole::runtime::{CompileOptions, ExecutableArg, backend};
use systole::{ir, register};

/// Arguments for a training step: weights as they start, small random numbers elsewhere, labels below ten.
fn arguments(model: &Model, graph: &ir::Graph) -> Vec<Literal> {
    let mut s = ir::rng::RandomStream::new(5, 6, 7);
    let mut draw = |name: &str, ty: &TensorType| -> Literal {
        let weight = name.split_once('/').and_then(|(_, path)| model.weight(path).ok());
        if let Some(w) = weight.filter(|w| w.ty() == ty) {
            return w;
        }
        let mut b = ir::LiteralBuilder::new(ty.clone());
        for i in 0..ty.elements() {
            b.set(
                i,
                if ty.dtype.is_float() { Scalar::Float(s.uniform_f64()) } else { Scalar::Uint(s.below(10)) },
            );
        }
        b.finish()
    };
    graph.param_names.iter().zip(graph.param_types()).map(|(n, t)| draw(n, &t)).collect()
}

fn through_xla(python: &str, name: &str, graph: &ir::Graph, args: &[Literal]) -> Vec<Literal> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("xla-{name}"));
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let types = |t: &[TensorType]| t.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(";");
    let bytes: Vec<u8> = args.iter().flat_map(|a| a.bytes().to_vec()).collect();
    let results = graph.result_types();
    std::fs::write(dir.join("program.mlir"), ir::text::print(graph)).expect("written");
    std::fs::write(dir.join("types.txt"), format!("{}\n{}\n", types(&graph.param_types()), types(&results)))
        .expect("written");
    std::fs::write(dir.join("args.bin"), bytes).expect("written");
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fixtures/ops/run_text.py");
    let out = Command::new(python).arg(script).arg(&dir).output().expect("Python starts");
    assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    let bytes = std::fs::read(dir.join("results.bin")).expect("results");
    let mut rest = &bytes[..];
    let mut take = |t: TensorType| {
        let (own, after) = rest.split_at(t.bytes());
        rest = after;
        Literal::from_bytes(t, own).expect("a whole array")
    };
    results.into_iter().map(&mut take).collect()
}

fn check(name: &str, layers: Vec<LayerSpec>, optimizer: Optimizer) {
    let Ok(python) = std::env::var("SYSTOLE_PYTHON") else {
        println!("SKIPPED {name}: SYSTOLE_PYTHON names no Python with JAX");
        return;
    };
    register();
    let mut model = Sequential::new(layers);
    let metrics = vec![sparse_categorical_accuracy()];
    model.compile(Compile { optimizer, metrics, seed: 3, ..default() }).expect("compiles");
    model.build(&[TensorType::new(F32, [12, 12, 1])]).expect("builds");
    let graph = model.train_graph(8).expect("a graph");
    let args = arguments(&model, &graph);
    let theirs = through_xla(&python, name, &graph, &args);
    let program = backend("cpu").expect("cpu").compile(&graph, &CompileOptions::default()).expect("compiles");
    let buffers: Vec<Buffer> = args.into_iter().map(Buffer::from).collect();
    let ours = program.run(buffers.iter().map(ExecutableArg::Borrow).collect()).expect("runs");
    for (k, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        let (a, b) = (a.to_literal().expect("readable").to_f64s(), b.to_f64s());
        let off: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let size: f64 = b.iter().map(|b| b * b).sum::<f64>().sqrt();
        assert!(off <= 1e-5 * size.max(1e-3), "{name}: result {k} is {off:.1e} off, of size {size:.1e}");
    }
}

#[test]
fn tutorial_step() {
    let layers = vec![
        conv2d(16, (3, 3)),
        max_pooling2d((2, 2)),
        activation("relu"),
        flatten(),
        dense(10),
        activation("softmax"),
    ];
    check("tutorial", layers, adam(1e-3));
}

/// Dropout draws the same bits in XLA, so even a random step agrees.
#[test]
fn step_with_normalisation_and_dropout() {
    let layers = vec![
        conv2d(8, (3, 3)).padding("same").use_bias(false),
        batch_normalization(),
        activation("gelu"),
        average_pooling2d((2, 2)),
        dropout(0.3),
        global_average_pooling2d(),
        layer_normalization(),
        dense(10).activation("softmax"),
    ];
    check("normalised", layers, sgd(0.1).momentum(0.9).nesterov(true));
}
