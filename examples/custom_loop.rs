//! A training loop of your own, as the PyTorch tutorials write it: for each epoch, for each batch: forward, loss,
//! backward, SGD step. The step is one compiled function; parameters go in by value and are updated in place.
//!
//! Run it: `cargo run --release --example custom_loop`; with `SYSTOLE_PROFILE=layers` it shows where the time went.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::prelude::*;

/// `x: f32[B, 784] → f32[B, 10]`: the forward pass, in plain tensor operations. Profiles show its parts by their names.
fn forward(p: &Params, x: &Tensor) -> Tensor {
    let hidden = named_scope("hidden", || (x.dot(&p["w1"]) + &p["b1"]).relu());
    named_scope("logits", || hidden.dot(&p["w2"]) + &p["b2"])
}

/// Mean cross-entropy of `logits: f32[B, 10]` against `labels: i32[B]`.
fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let picked = logits.log_softmax() * labels.one_hot(10, F32);
    -(picked.sum(&[1]).mean_all())
}

fn main() -> Result<()> {
    if std::env::var_os("SYSTOLE_PROFILE").is_some() {
        systole::runtime::events::install(2, |_, message| println!("{message}"));
    }
    let data = datasets::glyphs(0)?;
    let flat = |s: Sample| s.map("image", |x| x.cast(F32).flatten() / 255.0);
    let train = data.train.map(flat).shuffle(60_000, 1).batch_drop_remainder(100).prefetch(AUTOTUNE);

    let init = |shape: [usize; 2], name: &str| Initializer::GlorotUniform.make(&shape, 0, name).into();
    let mut params: Params<Buffer> = Params::new();
    params.insert("w1", init([784, 64], "w1"));
    params.insert("b1", Buffer::zeros(TensorType::new(F32, [64])));
    params.insert("w2", init([64, 10], "w2"));
    params.insert("b2", Buffer::zeros(TensorType::new(F32, [10])));

    let step = jit(|(params, x, y, lr): (Params, Tensor, Tensor, Tensor)| {
        let (loss, grads) = value_and_grad(|p: &Params| cross_entropy(&forward(p, &x), &y), &params);
        (params.zip(&grads, |p, g| p - g * &lr), loss)
    });

    let mut first = None;
    let mut last = 0.0;
    for epoch in 0..2 {
        for batch in train.iter_epoch(epoch).take(200) {
            let batch = batch?;
            let x = batch.get("image")?.clone().into();
            let y = batch.get("label")?.clone().into();
            let loss;
            (params, loss) = step.call((params, x, y, Buffer::scalar(F32, 0.1)))?;
            last = loss.to_f64()?;
            first.get_or_insert(last);
        }
        println!("epoch {}: loss {last:.4}", epoch + 1);
    }
    assert!(last < 0.5 * first.unwrap_or(f64::NAN), "the loss must fall");
    Ok(())
}
