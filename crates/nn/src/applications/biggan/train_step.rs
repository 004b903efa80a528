//! BigGAN training step: discriminator updates, a generator update, and the EMA of the generator's weights.

use super::options::BigGan;
use crate::model::train_step::{StepCx, TrainStep};
use crate::optimizer::Optimizer;
use systole_ir::{DType, Error, ErrorKind, Tensor, TensorType};
use systole_runtime::Params;

/// Name of the step in model files.
pub(crate) const NAME: &str = "biggan";

/// Mean discriminator loss and outputs for real and generated images, for the log.
struct DiscriminatorScores {
    loss: Tensor,
    real: Tensor,
    fake: Tensor,
}

impl DiscriminatorScores {
    fn add(self, other: Option<DiscriminatorScores>) -> DiscriminatorScores {
        let Some(o) = other else { return self };
        DiscriminatorScores { loss: o.loss + self.loss, real: o.real + self.real, fake: o.fake + self.fake }
    }
}

impl TrainStep for BigGan {
    fn name(&self) -> &str {
        NAME
    }

    fn config(&self) -> Option<serde_json::Value> {
        serde_json::to_value(self).ok()
    }

    fn sample_types(&self) -> Option<(Vec<TensorType>, TensorType)> {
        let [image, class] = self.data_types();
        Some((vec![image], class))
    }

    fn batches(&self) -> usize {
        self.num_D_steps
    }

    fn configure_optimizers(&self) -> Option<Optimizer> {
        Some(self.optimizer())
    }

    fn fields(&self) -> Vec<String> {
        vec!["image".into()]
    }

    fn logged(&self) -> Vec<String> {
        ["D_loss", "G_loss", "D_real", "D_fake"].map(str::to_string).to_vec()
    }

    /// Expects `image: f32[B, H, W, 3]` from 0 to 1 and `label: i32[B]`, where B covers `num_D_steps` batches.
    fn training_step(&self, cx: &mut StepCx) -> Tensor {
        let (steps, parts) = (self.num_D_steps, self.num_D_accumulations);
        let (image, label) = match self.parted(cx, steps * parts) {
            Ok(parted) => parted,
            Err(failed) => return failed,
        };
        let each = image.dim(0);
        let mut scores = None;
        for step in 0..steps {
            let (noise, class) = self.drawn(cx, each, parts);
            let mut sums = Params::new();
            for part in 0..parts {
                let real = (column(&image, step * parts + part), column(&label, step * parts + part));
                let fake = (column(&noise, part), column(&class, part));
                let mut told = None;
                let (_, grads) = cx.gradients("D", |cx| {
                    let made = self.discriminate(cx, &real, &fake);
                    let loss = &made.loss / parts as f64;
                    told = Some(made);
                    loss
                });
                sums = sum(sums, grads);
                scores = told.map(|told| told.add(scores.take()));
            }
            let grads = regularized(cx.weights(), sums, self.D_ortho, &[]);
            cx.apply_gradients(&grads);
        }
        let g_loss = self.generator_update(cx, each);
        if let Some(step) = cx.step().cloned() {
            cx.follow("G", &self.kept(&step));
        }
        match scores {
            Some(scores) => log(cx, &scores, &g_loss, (steps * parts) as f64),
            None => g_loss,
        }
    }

    /// Uses the whole batch, of any size, with moving statistics.
    fn validation_step(&self, cx: &mut StepCx) -> Tensor {
        let (image, label) = match self.parted(cx, 1) {
            Ok(parted) => parted,
            Err(failed) => return failed,
        };
        let (noise, class) = self.drawn(cx, image.dim(0), 1);
        let fake = (column(&noise, 0), column(&class, 0));
        let scores = self.discriminate(cx, &(column(&image, 0), column(&label, 0)), &fake);
        let g_loss = -&scores.fake;
        log(cx, &scores, &g_loss, 1.0)
    }
}

impl BigGan {
    /// Splits images (scaled to −1..1) and classes into `n` parts: `f32[b, n, H, W, 3], i32[b, n]`. With samples
    /// sharded over devices, each part contains samples of every device.
    fn parted(&self, cx: &mut StepCx, n: usize) -> Result<(Tensor, Tensor), Tensor> {
        let (image, label) = (cx.field(0), cx.label());
        if image.is_poisoned() || label.is_poisoned() {
            return Err(if image.is_poisoned() { image } else { label });
        }
        let wrong = |what: String, why: String, hint: String| {
            Err(image.fail(Error::new(ErrorKind::Graph, what).because(why).hint(hint)))
        };
        let side = self.resolution;
        if image.shape().dims().get(1..) != Some(&[side, side, 3]) {
            let what = format!("the images have type {}", image.ty());
            let why = format!("this BigGAN expects {side} × {side} pixels and 3 colors");
            return wrong(what, why, format!("resize the images with data.image_size = [{side}, {side}]"));
        }
        let batch = image.dim(0);
        if batch % n != 0 || batch == 0 {
            let what = format!("cannot split a step of {batch} images into {n} parts");
            let why = format!(
                "there are {} discriminator updates with {} parts each",
                self.num_D_steps,
                n / self.num_D_steps
            );
            return wrong(what, why, "use a batch size that is a multiple of num_D_accumulations".into());
        }
        let each = batch / n;
        let pixels = image.convert(DType::F32) * 2.0 - 1.0;
        Ok((pixels.reshape([each, n, side, side, 3]), label.convert(DType::I32).reshape([each, n])))
    }

    /// Draws noise and classes for generated images: `f32[b, n, noise], i32[b, n]`.
    fn drawn(&self, cx: &mut StepCx, each: usize, n: usize) -> (Tensor, Tensor) {
        let noise = cx.normal(&[each, n, self.noise()]);
        let noise = if self.z_var == 1.0 { noise } else { noise * self.z_var };
        (noise, cx.integers(&[each, n], self.n_classes))
    }

    /// Discriminator hinge loss `mean relu(1 − D(x)) + mean relu(1 + D(G(z)))`, with real and generated images in one
    /// batch.
    fn discriminate(
        &self,
        cx: &mut StepCx,
        real: &(Tensor, Tensor),
        fake: &(Tensor, Tensor),
    ) -> DiscriminatorScores {
        let made = cx.network("G", &[&fake.0, &fake.1]).stop_gradient().convert(DType::F32);
        let pictures = pairs(&made, &real.0);
        let classes = pairs(&fake.1, &real.1);
        let scores = cx.network("D", &[&pictures, &classes]).convert(DType::F32);
        if scores.is_poisoned() {
            return DiscriminatorScores { loss: scores.clone(), real: scores.clone(), fake: scores };
        }
        let both = scores.reshape([real.0.dim(0), 2]);
        let (of_made, of_real) = (column(&both, 0), column(&both, 1));
        let loss = (-&of_real + 1.0).relu().mean_all() + (&of_made + 1.0).relu().mean_all();
        DiscriminatorScores { loss, real: of_real.mean_all(), fake: of_made.mean_all() }
    }

    /// Updates the generator and returns its hinge loss `−mean D(G(z))`.
    fn generator_update(&self, cx: &mut StepCx, each: usize) -> Tensor {
        let each = if self.G_batch_size > 0 { self.G_batch_size } else { each };
        let parts = self.num_G_accumulations;
        let (noise, class) = self.drawn(cx, each, parts);
        let (mut sums, mut total) = (Params::new(), None);
        for part in 0..parts {
            let (z, y) = (column(&noise, part), column(&class, part));
            let (loss, grads) = cx.gradients("G", |cx| {
                let made = cx.network("G", &[&z, &y]);
                let scores = cx.network("D", &[&made, &y]).convert(DType::F32);
                -scores.mean_all() / parts as f64
            });
            sums = sum(sums, grads);
            total = Some(total.map_or(loss.clone(), |t: Tensor| t + loss));
        }
        let grads = regularized(cx.weights(), sums, self.G_ortho, &["shared"]);
        cx.apply_gradients(&grads);
        total.unwrap_or_else(|| noise.scalar_like(0.0))
    }

    /// `f32[]`: EMA decay in this step.
    fn kept(&self, step: &Tensor) -> Tensor {
        let builder = step.builder();
        let none = builder.scalar(DType::F32, 0.0);
        if !self.ema {
            return none;
        }
        let begun = step.compare(&step.scalar_like(self.ema_start as f64), systole_ir::op::Direction::Ge);
        begun.select(&builder.scalar(DType::F32, self.ema_decay), &none)
    }
}

fn log(cx: &mut StepCx, scores: &DiscriminatorScores, g_loss: &Tensor, parts: f64) -> Tensor {
    let d_loss = &scores.loss / parts;
    cx.log("D_loss", &d_loss);
    cx.log("G_loss", g_loss);
    cx.log("D_real", &(&scores.real / parts));
    cx.log("D_fake", &(&scores.fake / parts));
    d_loss + g_loss
}

/// Selects part `i`: `T[b, n, …] → T[b, …]`.
fn column(x: &Tensor, i: usize) -> Tensor {
    if x.is_poisoned() {
        return x.clone();
    }
    let rest: Vec<usize> = [&x.shape().dims()[..1], &x.shape().dims()[2..]].concat();
    x.slice_dim(1, i, i + 1).reshape(rest)
}

/// Interleaves two batches: `T[b, …], T[b, …] → T[2b, …]`, so that corresponding samples are on the same device.
fn pairs(a: &Tensor, b: &Tensor) -> Tensor {
    if a.is_poisoned() {
        return a.clone();
    }
    let dims = b.shape().dims().to_vec();
    let wide: Vec<usize> = [&dims[..1], &[1], &dims[1..]].concat();
    let both = Tensor::concatenate(&[&a.reshape(wide.clone()), &b.reshape(wide)], 1);
    both.reshape([&[2 * dims[0]], &dims[1..]].concat())
}

fn sum(before: Params, grads: Params) -> Params {
    if before.is_empty() {
        return grads;
    }
    grads.map(|name, g| before.get(name).map_or(g.clone(), |b| b + g))
}

/// Adds the gradients of orthogonal regularization ([`orthogonal`]), except for biases and for layers in `without`.
fn regularized(weights: &Params, grads: Params, strength: f64, without: &[&str]) -> Params {
    if strength == 0.0 {
        return grads;
    }
    grads.map(|path, g| {
        let is_meant = |part: &str| !without.contains(&part);
        match weights.get(path).filter(|w| w.rank() > 1 && path.split('/').all(is_meant)) {
            Some(w) => g + orthogonal(w, path.ends_with("embeddings")) * strength,
            None => g.clone(),
        }
    })
}

/// Gradient of orthogonal regularization: `w: f32[…, F] → f32[…, F]`, `2·(WWᵀ ⊙ (1 − I))W`. W has one row per output,
/// or for an embedding table its own rows.
pub(super) fn orthogonal(w: &Tensor, is_table: bool) -> Tensor {
    let last = w.dim(-1);
    let columns = w.reshape([w.ty().elements() / last.max(1), last]);
    let rows = if is_table { columns.clone() } else { columns.transpose(&[1, 0]) };
    let products = rows.dot(&rows.transpose(&[1, 0]));
    let n = rows.dim(0);
    let numbers: Vec<i32> = (0..n as i32).collect();
    let Ok(numbers) = systole_ir::Literal::from_slice([n], &numbers) else { return w.zeros_like() };
    let identity = w.builder().constant(numbers).one_hot(n, DType::F32);
    let others = &products - &products * identity;
    let g = others.dot(&rows) * 2.0;
    let g = if is_table { g } else { g.transpose(&[1, 0]) };
    g.reshape(w.shape().dims().to_vec())
}
