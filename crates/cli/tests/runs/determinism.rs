//! Determinism tests: the sample order and the final weights do not depend on the number of training threads, the
//! number of data threads, the prefetch depth, the cache or tuning.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use systole::cpu::{CpuBackend, Level, ThreadPool};
use systole::data::DatasetOptions;
use systole::prelude::*;

const SAMPLES: i64 = 70;

/// How the data are prepared.
#[derive(Clone, Copy, Debug)]
struct Preparing {
    workers: usize,
    prefetch: usize,
    cache: bool,
    tuned: bool,
}

fn element(i: i64) -> Result<Sample> {
    let x: Vec<f32> = (0..6).map(|k| ((i * 7 + k) as f32).sin()).collect();
    Ok(Sample::new([
        ("x", Literal::from_slice([6], &x)?),
        ("label", Literal::from_slice([], &[(i % 3) as i32])?),
        ("id", Literal::from_slice([], &[i])?),
    ]))
}

/// A stream without random access, with a function, chance, a shuffle and batches.
fn pipeline(p: Preparing) -> Dataset {
    let Preparing { workers, prefetch, cache, tuned } = p;
    let threads = if tuned { AUTOTUNE } else { workers };
    let mut d = Dataset::from_generator(|| (0..SAMPLES).map(element))
        .map_parallel(|s| s.map("x", |x| x * 2 + 1), threads);
    if cache {
        d = d.cache();
    }
    d.shuffle(25, 4)
        .map_random_parallel(
            9,
            |s, draws| {
                let noise = f64::from(draws.range(-0.1, 0.1));
                s.map("x", |x| x + noise)
            },
            threads,
        )
        .map_parallel(|s| s.map("x", |x| x / 3.0), threads)
        .batch(8)
        .prefetch(if tuned { AUTOTUNE } else { prefetch })
        .with_options(DatasetOptions { core_budget: Some(workers), ..DatasetOptions::default() })
}

fn matrix() -> Vec<Preparing> {
    let mut all = Vec::new();
    for workers in [1, 2, 8] {
        for prefetch in [1, 8, 32] {
            for (cache, tuned) in [(false, false), (false, true), (true, false), (true, true)] {
                all.push(Preparing { workers, prefetch, cache, tuned });
            }
        }
    }
    all
}

/// Of every byte of two epochs.
fn stream_hash(p: Preparing) -> u64 {
    let (d, mut hash) = (pipeline(p), DefaultHasher::new());
    for epoch in 0..2 {
        for batch in d.iter_epoch(epoch) {
            let batch = batch.expect("a batch");
            batch.fields().for_each(|(_, x)| x.get().expect("an array").bytes().hash(&mut hash));
        }
    }
    hash.finish()
}

fn weights_hash(threads: usize, p: Preparing) -> u64 {
    let mut model =
        Sequential::new([dense(8).activation("relu"), dropout(0.2), dense(3).activation("softmax")]);
    let backend = CpuBackend::with(ThreadPool::new(threads), Level::best()).expect("this machine's level");
    let config = Compile {
        optimizer: adam(1e-2),
        loss: sparse_categorical_crossentropy(),
        backend: Some(Arc::new(backend)),
        ..default()
    };
    model.compile(config).expect("compiles");
    let data = pipeline(p).map(|s| s.without("id"));
    model.fit(&data, Fit { epochs: 2, verbose: 0, ..default() }).expect("trains");
    let mut hash = DefaultHasher::new();
    for (name, value) in model.weights() {
        (name, value.to_literal().expect("readable").bytes()).hash(&mut hash);
    }
    hash.finish()
}

#[test]
fn one_stream_of_samples() {
    let all = matrix();
    assert_eq!(all.len(), 36);
    let one = stream_hash(all[0]);
    for p in all {
        assert_eq!(stream_hash(p), one, "{p:?}");
    }
}

#[test]
fn one_set_of_weights() {
    let all = matrix();
    let one = weights_hash(1, all[0]);
    for threads in [1, 2, 4] {
        for &p in &all {
            assert_eq!(weights_hash(threads, p), one, "{threads} threads, {p:?}");
        }
    }
}
