//! The PyTorch/XLA tutorials' loop: a small convolutional network on MNIST, SGD 0.001. `loop.py` is the same in PyTorch,
//! `loop.toml` without code. `examples/pytorch_loop.rs` adds devices, precision, accumulation and backups.
//!
//! Run it: `cargo run --release --example tutorial_loop`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

fn main() -> Result<()> {
    let data = datasets::mnist(DataDir::default())?;
    let scaled = |s: Sample| s.map("image", |x| x.cast(F32) / 255.0);
    let loader = data.train.map(scaled).shuffle(60_000, 0).batch_drop_remainder(64).prefetch(AUTOTUNE);

    let mut model = Sequential::new([
        conv2d(32, 3).activation("relu"),
        max_pooling2d(2),
        conv2d(64, 3).activation("relu"),
        max_pooling2d(2),
        flatten(),
        dropout(0.25),
        dense(10),
    ]);
    model.build(&[TensorType::new(F32, [28, 28, 1])])?;
    let criterion = sparse_categorical_crossentropy().from_logits(true);
    let optimizer = sgd(0.001).momentum(0.9);
    let accelerator = Accelerator::default();
    let mut state = accelerator.prepare_model(&optimizer, &model)?;
    let forward = model.architecture().clone();
    let loss_of = criterion.clone();
    let step = accelerator.step(
        &optimizer,
        move |cx: &mut Cx, _: &Params, (inputs, labels): &(Tensor, Tensor)| {
            let outputs = forward.call(cx, std::slice::from_ref(inputs));
            loss_of.value(labels, &outputs, None)
        },
    )?;

    for epoch in 0..3 {
        let mut last = None;
        for batch in loader.iter_epoch(epoch) {
            let batch = batch?;
            let pair = (batch.get("image")?.clone().into(), batch.get("label")?.clone().into());
            last = Some(step.call(&mut state, pair)?);
        }
        println!("epoch {}: loss {:.4}", epoch + 1, last.map_or(Ok(f64::NAN), |loss| loss.to_f64())?);
    }
    state.put_into(&mut model)?;
    let metrics = vec![sparse_categorical_accuracy()];
    model.compile(Compile { optimizer, loss: criterion, metrics, ..default() })?;
    let scores = model.evaluate(&data.test.map(scaled).batch(1000))?;
    println!("test accuracy {:.4}", scores["sparse_categorical_accuracy"]);
    Ok(())
}
