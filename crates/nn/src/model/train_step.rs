//! [`TrainStep`]: custom training steps for `fit`: GANs, several losses, research code.

use crate::layer::Cx;
use crate::model::architecture::Architecture;
use crate::model::step_input::{StepInput, values};
use crate::optimizer::{LossScale, Optimizer, UpdateInputs};
use std::fmt::Debug;
use std::sync::Arc;
use systole_ir::op::{RngAlgorithm, RngBitGenerator};
use systole_ir::{DType, Error, ErrorKind, Literal, Tensor, TensorType, err, grad, rng};
use systole_runtime::Params;

/// A custom training step for `fit`, instead of a loss of the model's output; an argument of
/// [`Compile`](crate::Compile).
///
/// Like Keras's `train_step` or PyTorch Lightning's `LightningModule`. Epochs, callbacks, backups, strategies, mixed
/// precision, progress and history work as usual.
///
/// A model may have additional networks ([`Architecture::with_network`]); the whole step is traced into one program.
///
/// ```
/// use systole_data::Dataset;
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::{layers::dense, optimizer::adam, Compile, Fit, Model, StepCx, TrainStep};
/// /// Reconstructs its input, and keeps what lies in between small.
/// #[derive(Debug)]
/// struct Autoencoder;
/// impl TrainStep for Autoencoder {
///     fn name(&self) -> &str { "autoencoder" }
///     fn fields(&self) -> Vec<String> { vec!["x".into()] }
///     fn logged(&self) -> Vec<String> { vec!["size".into()] }
///     fn training_step(&self, cx: &mut StepCx) -> Tensor {
///         let x = cx.field(0);
///         let code = cx.network("encoder", &[&x]);
///         let error = cx.forward(&[&code]) - &x;
///         let size = (&code * &code).mean_all();
///         cx.log("size", &size);
///         (&error * &error).mean_all() + size * 1e-3
///     }
/// }
/// let x = Literal::from_slice([8, 2], &[0f32, 0., 1., 2., 2., 4., 3., 6., 4., 8., 5., 10., 6., 12., 7., 14.])?;
/// let data = Dataset::from_tensor_slices([("x", x)])?.batch(4);
/// let encoder = Model::sequential([dense(1)]).architecture().clone();
/// let decoder = Model::sequential([dense(2)]).architecture().clone();
/// let mut model = Model::new(decoder.with_network("encoder", encoder, &[systole_ir::TensorType::new(systole_ir::DType::F32, [2])])?);
/// model.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [1])])?;
/// model.compile(Compile { optimizer: adam(0.05), train_step: Some(std::sync::Arc::new(Autoencoder)), ..Default::default() })?;
/// let history = model.fit(&data, Fit { epochs: 30, ..Default::default() })?;
/// assert!(history.last()["loss"] < 0.5 * history.get("loss")[0] && history.last()["size"] > 0.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub trait TrainStep: Debug + Send + Sync {
    /// Name in model files and backups.
    fn name(&self) -> &str;

    /// Returns the optimizer, instead of [`Compile::optimizer`](crate::Compile::optimizer). Networks with separate
    /// optimizers are entries of its [`optimizer_map`](Optimizer::map_optimizer).
    fn configure_optimizers(&self) -> Option<Optimizer> {
        None
    }

    /// Returns the configuration of a built-in step for model files; custom steps are not saved.
    fn config(&self) -> Option<serde_json::Value> {
        None
    }

    /// Types of one sample of each of the [`fields`](TrainStep::fields), and of its label. If known, steps can be
    /// planned and compiled without data.
    fn sample_types(&self) -> Option<(Vec<TensorType>, TensorType)> {
        None
    }

    /// Number of dataset batches that one step consumes, concatenated.
    fn batches(&self) -> usize {
        1
    }

    /// Names of the data fields that a step reads, in the order of [`StepCx::field`]. Default: the inputs of the model,
    /// or the only field that is not a label. Labels and sample weights need not be listed: [`StepCx::label`].
    fn fields(&self) -> Vec<String> {
        Vec::new()
    }

    /// Names that every step passes to [`StepCx::log`].
    fn logged(&self) -> Vec<String> {
        Vec::new()
    }

    /// `→ f32[]`: computes the loss to log. If the step does not call [`StepCx::minimize`], all weights are updated to
    /// minimize this loss, as in Lightning's automatic optimization.
    fn training_step(&self, cx: &mut StepCx) -> Tensor;

    /// `→ f32[]`: computes the validation loss of a batch. Default: the training step in inference mode, without
    /// updates.
    fn validation_step(&self, cx: &mut StepCx) -> Tensor {
        self.training_step(cx)
    }
}

/// Context of a custom training step: batch, networks, updates, logs.
pub struct StepCx {
    cx: Cx,
    architecture: Arc<Architecture>,
    fields: Vec<Tensor>,
    label: Option<Tensor>,
    sample_weight: Option<Tensor>,
    trainable: Params,
    /// Non-trainable weights changed by calls, such as moving statistics.
    changed: Params,
    updates: Option<OptimizerUpdate>,
    minimized: usize,
    logged: Params,
    draws: u64,
}

/// Optimizer and its state for the updates of a training step.
pub(crate) struct OptimizerUpdate {
    pub(crate) optimizer: Optimizer,
    pub(crate) at: UpdateInputs,
    pub(crate) loss_scale: Option<LossScale>,
    pub(crate) slots: Params,
}

/// Results of a step.
pub(crate) struct StepResult {
    pub(crate) loss: Tensor,
    pub(crate) trainable: Params,
    pub(crate) changed: Params,
    pub(crate) slots: Params,
    pub(crate) logged: Params,
}

/// Inputs, labels and sample weights as arguments of a step.
pub(crate) type BatchTree = (Vec<StepInput>, Vec<Tensor>, Vec<Tensor>);

impl StepCx {
    /// Returns field `i` of the batch, in the order of [`TrainStep::fields`]: `T[B, …]`.
    #[track_caller]
    pub fn field(&self, i: usize) -> Tensor {
        self.fields.get(i).cloned().unwrap_or_else(|| {
            let what = format!("the step reads field {i}, but the batch has {} fields", self.fields.len());
            self.nothing(&what, "list the fields in TrainStep::fields")
        })
    }

    /// Returns the labels of the batch, `T[B, …]`.
    #[track_caller]
    pub fn label(&self) -> Tensor {
        let none =
            || self.nothing("the step reads labels, but the data contains none", "add a field `label`");
        self.label.clone().unwrap_or_else(none)
    }

    /// Returns the sample weights of the batch, `f32[B]`, if the data or class weights define any.
    pub fn sample_weight(&self) -> Option<&Tensor> {
        self.sample_weight.as_ref()
    }

    /// Number of samples of the batch.
    pub fn batch_size(&self) -> usize {
        self.fields.first().map_or(0, |x| x.dim(0))
    }

    /// Returns the layer context, for calling layers.
    pub fn cx(&mut self) -> &mut Cx {
        &mut self.cx
    }

    /// Whether this is a training step rather than validation.
    pub fn training(&self) -> bool {
        self.updates.is_some()
    }

    /// Returns the output of the model's own layers.
    #[track_caller]
    pub fn forward(&mut self, inputs: &[&Tensor]) -> Tensor {
        let architecture = self.architecture.clone();
        self.call(&architecture, None, inputs)
    }

    /// Returns the output of an additional network.
    #[track_caller]
    pub fn network(&mut self, name: &str, inputs: &[&Tensor]) -> Tensor {
        let architecture = self.architecture.clone();
        let Some((_, network)) = architecture.networks.iter().find(|(n, _)| n == name) else {
            let all: Vec<&str> = architecture.networks.iter().map(|(n, _)| n.as_str()).collect();
            let hint = match all.as_slice() {
                [] => "add it to the architecture with with_network".into(),
                all => format!("use one of: {}", all.join(", ")),
            };
            return self.nothing(&format!("unknown network `{name}`"), &hint);
        };
        self.call(network, Some(name), inputs)
    }

    /// Returns the current values of the trainable weights; paths of networks start with their names.
    pub fn weights(&self) -> &Params {
        &self.trainable
    }

    /// `→ f32[], …`: computes a loss and its gradients with respect to the trainable weights of a network, or for `""`
    /// of the model's own layers, without an update. Gradients may be summed over several batches before
    /// [`StepCx::apply_gradients`].
    #[track_caller]
    pub fn gradients(&mut self, network: &str, loss: impl FnOnce(&mut StepCx) -> Tensor) -> (Tensor, Params) {
        let value = scalar(loss(self));
        let meant = self.trained_paths(network);
        let value = self.cx.with_penalties(&value, |path| self.architecture.is_of(network, path));
        let leaves: Vec<Tensor> = meant.iter().filter_map(|p| self.trainable.get(p)).cloned().collect();
        if self.updates.is_none() {
            return (value, Params::new());
        }
        let grads = grad(&value, &leaves.iter().collect::<Vec<_>>());
        (value, meant.into_iter().zip(grads).collect())
    }

    /// Updates the weights of these gradients with their optimizer. Does nothing in validation; not supported with
    /// `mixed_float16`.
    pub fn apply_gradients(&mut self, grads: &Params) {
        self.minimized += 1;
        let Some(updates) = &mut self.updates else { return };
        if updates.loss_scale.is_some() {
            // Counts as several updates, which `mixed_float16` rejects: nothing scales the losses of explicit
            // gradients.
            self.minimized += 1;
        }
        let pairs = grads.names().filter_map(|p| Some((p.to_string(), self.trainable.get(p)?.clone())));
        let weights: Params = pairs.collect();
        let weights = weights.map(|name, old| self.changed.get(name).unwrap_or(old).clone());
        let builder = self.cx.builder().clone();
        let (new, slots) = builder
            .scope("optimizer", || updates.optimizer.update(&updates.at, &weights, grads, &updates.slots));
        updates.slots = slots;
        self.adopt(new);
    }

    /// Updates the frozen weights of the model's own layers as an exponential moving average (EMA) of a network with
    /// the same layers.
    ///
    /// `keep` (`f32[]`) is the fraction of the old value that is kept. Includes moving statistics. Only in training.
    pub fn follow(&mut self, network: &str, keep: &Tensor) {
        if self.updates.is_none() {
            return;
        }
        let prefix = format!("{network}/");
        let all = self.cx.known_weights();
        let pairs = all.iter().filter_map(|(path, new)| {
            let own = path.strip_prefix(&prefix)?;
            Some((own.to_string(), all.get(own)?.clone(), new.clone()))
        });
        let pairs: Vec<_> = pairs.collect();
        for (own, old, new) in pairs {
            let wide = keep.broadcast_to(old.shape());
            let rest = (keep.ones_like() - keep).broadcast_to(old.shape());
            let value = old * wide + new * rest;
            self.cx.replace_weight(&own, &value);
            self.changed.insert(own, value);
        }
    }

    /// `→ i64[]`: number of updates before this step; `None` in validation.
    pub fn step(&self) -> Option<&Tensor> {
        self.updates.as_ref().map(|u| &u.at.step)
    }

    fn trained_paths(&self, network: &str) -> Vec<String> {
        let of = |path: &&str| self.architecture.is_of(network, path);
        self.trainable.names().filter(of).map(str::to_string).collect()
    }

    /// Updates weights to minimize `loss` (`f32[]`), and returns the loss. The weights are those of this network, or
    /// for `""` of the model's own layers. The rest of the step sees the updated weights. In validation only computes
    /// the loss.
    #[track_caller]
    pub fn minimize(&mut self, network: &str, loss: impl FnOnce(&mut StepCx) -> Tensor) -> Tensor {
        let value = scalar(loss(self));
        self.minimized += 1;
        let meant = self.trained_paths(network);
        if meant.is_empty() && self.updates.is_some() {
            return self.nothing(
                &format!("`{network}` has no trainable weights"),
                "pass the name of a network, or \"\" for the model",
            );
        }
        let value = self.cx.with_penalties(&value, |path| self.architecture.is_of(network, path));
        self.descend(&value, &meant);
        value
    }

    /// Logs the epoch mean of a value (`f32[]`) under this name.
    pub fn log(&mut self, name: &str, value: &Tensor) {
        self.logged.insert(name, value.stop_gradient().convert(DType::F64));
    }

    /// `→ f32[shape]`: standard normal draws, new in each step. In validation each batch has the same.
    pub fn normal(&mut self, shape: &[usize]) -> Tensor {
        let bits = self.bits(shape);
        let unit = bits.shift_right_logical(&bits.scalar_like(9.0)).convert(DType::F32) * 2f64.powi(-23);
        // In the open interval (−1, 1).
        let spread = unit * (2.0 - 2f64.powi(-23)) - (1.0 - 2f64.powi(-24));
        spread.erf_inv() * std::f64::consts::SQRT_2
    }

    /// `→ i32[shape]`: uniform integers from 0 to below `limit`, new in each step. In validation each batch has the
    /// same.
    pub fn integers(&mut self, shape: &[usize], limit: usize) -> Tensor {
        let drawn = (self.uniform(shape) * limit as f64).floor();
        // The product may be rounded up to the limit.
        drawn.minimum(&drawn.scalar_like(limit.saturating_sub(1) as f64)).convert(DType::I32)
    }

    /// `→ f32[shape]`: uniform draws from 0 to below 1, new in each step. In validation each batch has the same.
    pub fn uniform(&mut self, shape: &[usize]) -> Tensor {
        let bits = self.bits(shape);
        bits.shift_right_logical(&bits.scalar_like(8.0)).convert(DType::F32) * 2f64.powi(-24)
    }

    fn bits(&mut self, shape: &[usize]) -> Tensor {
        let draw = rng::hash_name("step of one's own") ^ rng::mix(self.draws);
        self.draws += 1;
        let builder = self.cx.builder().clone();
        let Ok(word) = Literal::from_slice([1], &[draw]) else {
            return self.nothing("cannot draw random numbers", "");
        };
        let word = builder.constant(word);
        let key = self.cx.draw_key().map_or_else(|| word.clone(), |key| key.reshape([1]).xor(&word));
        let state = Tensor::concatenate(&[&key, &key.zeros_like()], 0);
        let op = RngBitGenerator { algorithm: RngAlgorithm::Philox, ty: TensorType::new(DType::U32, shape) };
        builder.emit(op, &[&state]).remove(1)
    }

    fn nothing(&self, what: &str, hint: &str) -> Tensor {
        let t = self.cx.builder().scalar(DType::F32, 0.0);
        t.fail(Error::new(ErrorKind::Graph, what).hint(hint))
    }

    #[track_caller]
    fn call(&mut self, network: &Architecture, name: Option<&str>, inputs: &[&Tensor]) -> Tensor {
        let inputs: Vec<Tensor> = inputs.iter().map(|x| (*x).clone()).collect();
        let y = match name {
            Some(name) => self.cx.scope(name, |cx| network.call(cx, &inputs)),
            None => network.call(&mut self.cx, &inputs),
        };
        for (path, value) in self.cx.take_updates() {
            self.cx.replace_weight(&path, &value);
            self.changed.insert(path, value);
        }
        y
    }

    /// Updates these weights once.
    fn descend(&mut self, loss: &Tensor, paths: &[String]) {
        let Some(updates) = &mut self.updates else { return };
        let own = |tree: &Params| -> Params {
            paths.iter().filter_map(|p| Some((p.clone(), tree.get(p)?.clone()))).collect()
        };
        let weights = own(&self.trainable);
        let leaves: Vec<&Tensor> = weights.values().collect();
        let scaled =
            updates.loss_scale.as_ref().map_or_else(|| loss.clone(), |s| s.scale(loss, &updates.slots));
        let grads: Params = weights.names().map(str::to_string).zip(grad(&scaled, &leaves)).collect();
        let weights = weights.map(|name, old| self.changed.get(name).unwrap_or(old).clone());
        let (new, slots) = loss.builder().scope("optimizer", || match &updates.loss_scale {
            Some(scale) => scale.update(&updates.optimizer, &updates.at, &weights, &grads, &updates.slots),
            None => updates.optimizer.update(&updates.at, &weights, &grads, &updates.slots),
        });
        updates.slots = slots;
        self.adopt(new);
    }

    /// Sets updated weights for the rest of the step.
    fn adopt(&mut self, new: Params) {
        for (path, value) in self.cx.constrained(new) {
            self.cx.replace_weight(&path, &value);
            if self.changed.get(&path).is_some() {
                self.changed.insert(path.clone(), value.clone());
            }
            self.trainable.insert(path, value);
        }
    }

    /// Runs a training step without updates and returns the non-trainable weights that it changes.
    pub(crate) fn statistics(
        step: &dyn TrainStep,
        cx: Cx,
        architecture: Arc<Architecture>,
        batch: BatchTree,
        trainable: Params,
    ) -> Params {
        let mut own = StepCx::new(cx, architecture, batch, trainable, None);
        step.training_step(&mut own);
        own.changed
    }

    fn new(
        cx: Cx,
        architecture: Arc<Architecture>,
        (fields, labels, weights): BatchTree,
        trainable: Params,
        updates: Option<OptimizerUpdate>,
    ) -> StepCx {
        StepCx {
            cx,
            architecture,
            fields: values(fields),
            label: labels.into_iter().next(),
            sample_weight: weights.into_iter().next(),
            trainable,
            changed: Params::new(),
            updates,
            minimized: 0,
            logged: Params::new(),
            draws: 0,
        }
    }

    /// Traces a step. `cx` is bound to all weights, `trainable` are the trainable ones, and `updates` is set in
    /// training.
    pub(crate) fn run(
        step: &dyn TrainStep,
        cx: Cx,
        architecture: Arc<Architecture>,
        batch: BatchTree,
        trainable: Params,
        updates: Option<OptimizerUpdate>,
    ) -> StepResult {
        let trains = updates.is_some();
        let mut own = StepCx::new(cx, architecture, batch, trainable, updates);
        let loss = if trains { step.training_step(&mut own) } else { step.validation_step(&mut own) };
        let mut loss = scalar(loss);
        if own.minimized == 0 {
            loss = own.cx.with_penalties(&loss, |_| true);
            let all: Vec<String> = own.trainable.names().map(str::to_string).collect();
            own.descend(&loss, &all);
        }
        if own.minimized > 1 && own.updates.as_ref().is_some_and(|u| u.loss_scale.is_some()) {
            let e = err!(Config, "mixed_float16 does not support a step with several updates")
                .because("loss scaling applies to a single loss")
                .hint("use mixed_bfloat16");
            loss = loss.fail(e);
        }
        for name in step.logged().iter().filter(|name| own.logged.get(name).is_none()) {
            let e = err!(Graph, "the training step {} did not log `{name}`", step.name());
            loss = loss.fail(e.hint("log every name in TrainStep::logged: cx.log(…)"));
        }
        let slots = own.updates.map_or_else(Params::new, |u| u.slots);
        let trainable = own.trainable.map(|name, old| own.changed.get(name).unwrap_or(old).clone());
        StepResult { loss, trainable, changed: own.changed, slots, logged: own.logged }
    }
}

/// Checks that a loss is a scalar and converts it to `f32[]`.
fn scalar(loss: Tensor) -> Tensor {
    if loss.is_poisoned() || (loss.rank() == 0 && loss.dtype().is_float()) {
        return loss.convert(DType::F32);
    }
    let e = err!(Graph, "the loss of the step must be a scalar, got {}", loss.ty())
        .because("a step minimizes a single number")
        .hint("take the mean over the batch: .mean_all()");
    loss.fail(e)
}
