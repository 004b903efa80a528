//! The TPU tutorials' convolutional network on Fashion-MNIST. `cnn.py` is the same in Keras, `cnn.toml` without code.
//!
//! Run it: `cargo run --release --example tutorial_cnn`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

fn main() -> Result<()> {
    let data = datasets::fashion_mnist(DataDir::default())?;
    let pixels = |s: Sample| s.map("image", |x| x.cast(F32));
    let train = data.train.map(pixels).shuffle(60_000, 0).repeat().batch(1000).prefetch(AUTOTUNE);
    let test = data.test.map(pixels).batch(1000);

    let mut model = Sequential::new([
        conv2d(64, (3, 3)),
        max_pooling2d((2, 2)),
        activation("relu"),
        flatten(),
        dense(10),
        activation("softmax"),
    ]);
    model.compile(Compile {
        optimizer: adam(1e-3),
        loss: sparse_categorical_crossentropy(),
        metrics: vec![sparse_categorical_accuracy()],
        strategy: Strategy::auto(),
        ..default()
    })?;
    let fit =
        Fit { epochs: 5, steps_per_epoch: Some(60), validation: Some(test), validation_freq: 5, ..default() };
    let history = model.fit(&train, fit)?;
    println!("test accuracy {:.4}", history.last()["val_sparse_categorical_accuracy"]);
    Ok(())
}
