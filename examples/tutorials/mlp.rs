//! The tutorials' dense network with dropout on 784 inputs. `mlp.py` is the same in Keras, `mlp.toml` without code.
//!
//! Run it: `cargo run --release --example tutorial_mlp`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

fn main() -> Result<()> {
    let data = datasets::fashion_mnist(DataDir::default())?;
    let flat = |s: Sample| s.map("image", |x| x.cast(F32).flatten() / 255.0);
    let train = data.train.map(flat).shuffle(60_000, 0).batch(128).prefetch(AUTOTUNE);
    let test = data.test.map(flat).batch(1000);

    let mut model =
        Sequential::new([dense(512).activation("relu"), dropout(0.2), dense(10).activation("softmax")]);
    model.compile(Compile {
        optimizer: adam(1e-3),
        loss: sparse_categorical_crossentropy(),
        metrics: vec![sparse_categorical_accuracy()],
        ..default()
    })?;
    model.fit(&train, Fit { epochs: 5, ..default() })?;
    let metrics = model.evaluate(&test)?;
    println!("test accuracy {:.4}", metrics["sparse_categorical_accuracy"]);
    Ok(())
}
