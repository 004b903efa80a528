//! The TPU tutorials' training run: a convolutional network on Fashion-MNIST, 5 epochs of 60 steps of 1000 images,
//! pixels 0–255 as they are. `systole train fashion-mnist` does the same from the shell.
//!
//! Run it: `cargo run --release --example fashion_mnist`
//! (with the data set's folder as argument, in SYSTOLE_DATA, or downloaded once).

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

fn main() -> Result<()> {
    let dir = std::env::args().nth(1).map_or(DataDir::default(), DataDir::at);
    let data = datasets::fashion_mnist(dir)?;
    let to_float = |s: Sample| s.map("image", |x| x.cast(F32));
    let train = data.train.map(to_float).shuffle(60_000, 1).repeat().batch(1000).prefetch(AUTOTUNE);
    let test = data.test.map(to_float).batch(1000);

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
        seed: 1,
        ..default()
    })?;
    let history = model.fit(
        &train,
        Fit { epochs: 5, steps_per_epoch: Some(60), validation: Some(test), validation_freq: 5, ..default() },
    )?;
    print!("{}", model.summary());

    let accuracy = history.last()["val_sparse_categorical_accuracy"];
    println!("test accuracy {accuracy:.4} at {:.1} ms a step", history.median_step_ms());
    model.class_names = data.class_names;
    model.save("fashion-mnist.safetensors")?;

    let again = load_model("fashion-mnist.safetensors")?;
    assert_eq!(again.weight("dense/bias")?, model.weight("dense/bias")?);
    assert!(accuracy > 0.84, "the tutorial's recipe reaches about 0.87");
    Ok(())
}
