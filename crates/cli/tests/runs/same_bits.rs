//! Tests that the same program, instruction set and seed give bit-identical weights for any number of threads.

use std::sync::Arc;
use systole::cpu::{CpuBackend, Level, ThreadPool};
use systole::nn::Batch;
use systole::prelude::*;

fn batch(samples: usize, shape: &[usize], classes: u64) -> Batch {
    let mut s = systole::ir::rng::RandomStream::new(5, 6, 7);
    let mut dims = vec![samples];
    dims.extend(shape);
    let pixels: Vec<f32> = (0..dims.iter().product::<usize>()).map(|_| s.range(-1.0, 1.0)).collect();
    let labels: Vec<i32> = (0..samples).map(|_| s.below(classes) as i32).collect();
    Batch {
        inputs: vec![Literal::from_slice(dims, &pixels).expect("pixels")],
        label: Some(Literal::from_slice([samples], &labels).expect("labels")),
        ..Default::default()
    }
}

/// Weights after three steps with a number of threads.
fn trained(
    layers: &[LayerSpec],
    precision: Precision,
    threads: usize,
    batch: &Batch,
) -> Vec<(String, Vec<u8>)> {
    let mut model = Sequential::new(layers.iter().cloned());
    let backend = CpuBackend::with(ThreadPool::new(threads), Level::best()).expect("this machine's level");
    model
        .compile(Compile {
            optimizer: adam(1e-3),
            loss: sparse_categorical_crossentropy(),
            precision,
            backend: Some(Arc::new(backend)),
            ..default()
        })
        .expect("compiles");
    for _ in 0..3 {
        model.train_on_batch(batch).expect("a step");
    }
    let bytes = |b: &Buffer| b.to_literal().expect("readable").bytes().to_vec();
    model.weights().into_iter().map(|(n, b)| (n.to_string(), bytes(b))).collect()
}

fn check(name: &str, layers: Vec<LayerSpec>, batch: &Batch) {
    for precision in [Precision::Float32, Precision::MixedBfloat16] {
        let one = trained(&layers, precision, 1, batch);
        assert!(!one.is_empty());
        for threads in [2, 3, 4, 8] {
            let many = trained(&layers, precision, threads, batch);
            for ((path, a), (_, b)) in one.iter().zip(&many) {
                assert!(a == b, "{name}, {}: {path} differs with {threads} threads", precision.name());
            }
        }
    }
}

#[test]
fn the_tutorials_network() {
    let layers = vec![
        conv2d(64, (3, 3)),
        max_pooling2d((2, 2)),
        activation("relu"),
        flatten(),
        dense(10).activation("softmax"),
    ];
    check("tutorial network", layers, &batch(203, &[28, 28, 1], 10));
}

#[test]
fn a_network_with_batch_statistics() {
    let block = |filters| {
        [conv2d(filters, (3, 3)).padding("same").use_bias(false), batch_normalization(), activation("relu")]
    };
    let mut layers: Vec<LayerSpec> = block(16).into_iter().chain(block(24)).collect();
    layers.extend([max_pooling2d((2, 2)), conv2d(32, (3, 3)).activation("gelu"), average_pooling2d((2, 2))]);
    layers.extend([flatten(), dropout(0.3), dense(10).activation("softmax")]);
    check("batch statistics", layers, &batch(61, &[16, 16, 3], 10));
}

#[test]
fn a_perceptron_with_dropout() {
    let layers =
        vec![flatten(), dense(512).activation("relu"), dropout(0.2), dense(10).activation("softmax")];
    check("perceptron", layers, &batch(128, &[28, 28, 1], 10));
}
