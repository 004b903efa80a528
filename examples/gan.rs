//! A small GAN: two networks, two optimizers, and gradient accumulation, which fakes a large batch: the mean
//! gradient of several small batches, then one step (the trick that trains BigGAN on few GPUs).
//!
//! The generator learns to turn noise into points on a circle. Run it: `cargo run --release --example gan`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use systole::ir::rng::RandomStream;
use systole::prelude::*;

const BATCH: usize = 128;

fn network(p: &Params, x: &Tensor) -> Tensor {
    let h = (x.dot(&p["w1"]) + &p["b1"]).leaky_relu(0.2);
    let h = (h.dot(&p["w2"]) + &p["b2"]).leaky_relu(0.2);
    h.dot(&p["w3"]) + &p["b3"]
}

fn weights(sizes: [usize; 4], seed: u64) -> Params<Buffer> {
    let mut p = Params::new();
    for i in 0..3 {
        let w = Initializer::HeNormal.make(&[sizes[i], sizes[i + 1]], seed, &format!("w{i}"));
        p.insert(format!("w{}", i + 1), w.into());
        p.insert(format!("b{}", i + 1), Buffer::zeros(TensorType::new(F32, [sizes[i + 1]])));
    }
    p
}

/// Mean of `−log σ(logit)` where `real`, of `−log(1 − σ(logit))` where not.
fn judge(logits: &Tensor, real: bool) -> Tensor {
    if real { (-logits).softplus().mean_all() } else { logits.softplus().mean_all() }
}

/// Learning rate and step number for an update.
fn inputs(step: &Tensor) -> UpdateInputs {
    UpdateInputs { learning_rate: step.builder().scalar(F32, 1e-3), step: step.clone() }
}

/// Normal draws; real samples are draws scaled onto the circle of radius 2.
fn draw(step: u64, what: u64, circle: bool) -> Result<Buffer> {
    let mut s = RandomStream::new(7, what, step);
    let mut points: Vec<f32> = (0..2 * BATCH).map(|_| s.normal() as f32).collect();
    if circle {
        for p in points.chunks_mut(2) {
            let r = 2.0 / p[0].hypot(p[1]).max(1e-6);
            p.iter_mut().for_each(|x| *x *= r);
        }
    }
    Ok(Literal::from_slice([BATCH, 2], &points)?.into())
}

fn main() -> Result<()> {
    let make = || adam(1e-3).betas(0.5, 0.999).gradient_accumulation_steps(2);
    let (g_opt, d_opt) = (make(), make());
    let (mut g, mut d) = (weights([2, 32, 32, 2], 1), weights([2, 32, 32, 1], 2));
    let (mut g_state, mut d_state) = (g_opt.init(&g)?, d_opt.init(&d)?);

    let d_step = jit(|(d, state, g, real, noise, at): (Params, Params, Params, Tensor, Tensor, Tensor)| {
        let fake = network(&g, &noise);
        let loss = |d: &Params| judge(&network(d, &real), true) + judge(&network(d, &fake), false);
        let (loss, grads) = value_and_grad(loss, &d);
        let (d, state) = d_opt.update(&inputs(&at), &d, &grads, &state);
        (d, state, loss)
    });
    let g_step = jit(|(g, state, d, noise, at): (Params, Params, Params, Tensor, Tensor)| {
        let (loss, grads) = value_and_grad(|g: &Params| judge(&network(&d, &network(g, &noise)), true), &g);
        let (g, state) = g_opt.update(&inputs(&at), &g, &grads, &state);
        (g, state, loss)
    });
    let sample = jit(|(g, noise): (Params, Tensor)| network(&g, &noise));

    for step in 0..3000u64 {
        let at = Buffer::scalar(I64, step as f64);
        let (d_loss, g_loss);
        (d, d_state, d_loss) =
            d_step.call((d, d_state, g.clone(), draw(step, 1, true)?, draw(step, 2, false)?, at.clone()))?;
        (g, g_state, g_loss) = g_step.call((g, g_state, d.clone(), draw(step, 3, false)?, at))?;
        if step % 500 == 0 {
            println!(
                "step {step:4}  discriminator {:.3}  generator {:.3}",
                d_loss.to_f64()?,
                g_loss.to_f64()?
            );
        }
    }
    let points = sample.call((g, draw(0, 4, false)?))?.to_literal()?.to_f32s();
    let radii: Vec<f32> = points.chunks(2).map(|p| p[0].hypot(p[1])).collect();
    let mean = radii.iter().sum::<f32>() / radii.len() as f32;
    let spread = (radii.iter().map(|r| (r - mean).powi(2)).sum::<f32>() / radii.len() as f32).sqrt();
    println!("generated points lie at radius {mean:.2} ± {spread:.2}; the data at 2");
    assert!((mean - 2.0).abs() < 0.6 && spread < 0.8, "the generator must find the circle");
    Ok(())
}
