//! [`TrainStep`]: what a training step does, written by the user, under `fit`: GANs, several losses, research code.

use crate::layer::Cx;
use crate::model::architecture::Architecture;
use crate::optimizer::{LossScale, Optimizer, UpdateInputs};
use std::fmt::Debug;
use std::sync::Arc;
use systole_ir::op::{RngAlgorithm, RngBitGenerator};
use systole_ir::{DType, Error, ErrorKind, Literal, Tensor, TensorType, grad, rng};
use systole_runtime::Params;

/// The step of a model that `fit` trains, in the place of one loss of the model's output: an argument of
/// [`Compile`](crate::Compile). Keras's `train_step`, the `LightningModule` of PyTorch Lightning. Epochs, callbacks, backups, strategies,
/// mixed precision, progress and history are `fit`'s as ever.
///
/// A model may have networks beside its own layers ([`Architecture::with_network`]); the whole step is traced into one program.
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
    /// Its name in model files and backups.
    fn name(&self) -> &str;

    /// The optimizer, in the place of [`Compile::optimizer`](crate::Compile::optimizer). Networks with optimizers of their own are
    /// entries of its [`optimizer_map`](Optimizer::map_optimizer).
    fn configure_optimizers(&self) -> Option<Optimizer> {
        None
    }

    /// What makes a step that Systole has itself what it is, for model files; the steps of a user's own are not kept.
    fn config(&self) -> Option<serde_json::Value> {
        None
    }

    /// Types of one sample of each of the [`fields`](TrainStep::fields), and of its label: where they are known, steps can be planned and
    /// compiled without data.
    fn sample_types(&self) -> Option<(Vec<TensorType>, TensorType)> {
        None
    }

    /// How many batches a step takes at once, as one.
    fn batches(&self) -> usize {
        1
    }

    /// Names of the fields of the data that a step takes, in the order of [`StepCx::field`]. Unless written: the inputs of the model, or
    /// the only field that is no label. Labels and weights of samples need not be named: [`StepCx::label`].
    fn fields(&self) -> Vec<String> {
        Vec::new()
    }

    /// Names that [`StepCx::log`] is given, in every step.
    fn logged(&self) -> Vec<String> {
        Vec::new()
    }

    /// `→ f32[]`: the loss that is shown. Where nothing was given to [`StepCx::minimize`], all weights are changed to make it less:
    /// Lightning's automatic optimization.
    fn training_step(&self, cx: &mut StepCx) -> Tensor;

    /// `→ f32[]`: the loss of a batch that is measured. Unless written: the training step in inference mode, without its updates.
    fn validation_step(&self, cx: &mut StepCx) -> Tensor {
        self.training_step(cx)
    }
}

/// Where a step of one's own happens: its batch, its networks, its updates.
pub struct StepCx {
    cx: Cx,
    architecture: Arc<Architecture>,
    fields: Vec<Tensor>,
    label: Option<Tensor>,
    sample_weight: Option<Tensor>,
    trainable: Params,
    /// Statistics and the like that calls have changed.
    changed: Params,
    updates: Option<OptimizerUpdate>,
    minimized: usize,
    logged: Params,
    draws: u64,
}

/// What changes weights, while training.
pub(crate) struct OptimizerUpdate {
    pub(crate) optimizer: Optimizer,
    pub(crate) at: UpdateInputs,
    pub(crate) loss_scale: Option<LossScale>,
    pub(crate) slots: Params,
}

/// What a step leaves.
pub(crate) struct StepResult {
    pub(crate) loss: Tensor,
    pub(crate) trainable: Params,
    pub(crate) changed: Params,
    pub(crate) slots: Params,
    pub(crate) logged: Params,
}

/// Inputs, labels and weights of samples, as a step takes them.
pub(crate) type BatchTree = (Vec<Tensor>, Vec<Tensor>, Vec<Tensor>);

impl StepCx {
    /// Field `i` of the batch, in the order of [`TrainStep::fields`]: `T[B, …]`.
    #[track_caller]
    pub fn field(&self, i: usize) -> Tensor {
        self.fields.get(i).cloned().unwrap_or_else(|| {
            let what = format!("the step asks for field {i} of a batch of {}", self.fields.len());
            self.nothing(&what, "name the fields in TrainStep::fields")
        })
    }

    /// The labels of the batch, `T[B, …]`.
    #[track_caller]
    pub fn label(&self) -> Tensor {
        let none = || self.nothing("the step asks for labels, and the data have none", "add a field `label`");
        self.label.clone().unwrap_or_else(none)
    }

    /// The weights of the batch's samples, `f32[B]`, where the data or classes have some.
    pub fn sample_weight(&self) -> Option<&Tensor> {
        self.sample_weight.as_ref()
    }

    /// Number of samples.
    pub fn batch_size(&self) -> usize {
        self.fields.first().map_or(0, |x| x.dim(0))
    }

    /// The step's context for layers.
    pub fn cx(&mut self) -> &mut Cx {
        &mut self.cx
    }

    /// Whether this is a training step.
    pub fn training(&self) -> bool {
        self.updates.is_some()
    }

    /// The output of the model's own layers.
    #[track_caller]
    pub fn forward(&mut self, inputs: &[&Tensor]) -> Tensor {
        let architecture = self.architecture.clone();
        self.call(&architecture, None, inputs)
    }

    /// The output of a network beside them.
    #[track_caller]
    pub fn network(&mut self, name: &str, inputs: &[&Tensor]) -> Tensor {
        let architecture = self.architecture.clone();
        let Some((_, network)) = architecture.networks.iter().find(|(n, _)| n == name) else {
            let all: Vec<&str> = architecture.networks.iter().map(|(n, _)| n.as_str()).collect();
            let hint = match all.as_slice() {
                [] => "add it to the architecture: with_network".into(),
                all => format!("there are: {}", all.join(", ")),
            };
            return self.nothing(&format!("the model has no network `{name}`"), &hint);
        };
        self.call(network, Some(name), inputs)
    }

    /// The weights that are trained, as they are now; those of networks begin with their names.
    pub fn weights(&self) -> &Params {
        &self.trainable
    }

    /// `→ f32[], …`: a loss and its gradients by weights that are trained, which stay as they are: those of a network, or with `""` of the
    /// model's own layers. Sums over several batches are one batch's: [`StepCx::apply_gradients`].
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

    /// Changes the weights that gradients were made of, by their optimizer. Nothing in validation. `mixed_float16` is refused.
    pub fn apply_gradients(&mut self, grads: &Params) {
        self.minimized += 1;
        let Some(updates) = &mut self.updates else { return };
        if updates.loss_scale.is_some() {
            // A step with gradients of its own is refused like one of several updates: nothing scales their losses.
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

    /// Weights of the model's own layers, which do not train, go towards those of a network of the same layers: `keep` (`f32[]`) of each
    /// stays. Moving statistics too. Only while training.
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

    /// `→ i64[]`: updates before this step; `None` in validation.
    pub fn step(&self) -> Option<&Tensor> {
        self.updates.as_ref().map(|u| &u.at.step)
    }

    fn trained_paths(&self, network: &str) -> Vec<String> {
        let of = |path: &&str| self.architecture.is_of(network, path);
        self.trainable.names().filter(of).map(str::to_string).collect()
    }

    /// Changes weights so that `loss` (`f32[]`) becomes less, and returns it: those of the network of this name, or `""` for the model's own
    /// layers. What comes after it in the step sees the changed weights. In validation only the loss is computed.
    #[track_caller]
    pub fn minimize(&mut self, network: &str, loss: impl FnOnce(&mut StepCx) -> Tensor) -> Tensor {
        let value = scalar(loss(self));
        self.minimized += 1;
        let meant = self.trained_paths(network);
        if meant.is_empty() && self.updates.is_some() {
            return self.nothing(
                &format!("`{network}` has no weights to change"),
                "name a network, or \"\" for the model",
            );
        }
        let value = self.cx.with_penalties(&value, |path| self.architecture.is_of(network, path));
        self.descend(&value, &meant);
        value
    }

    /// Keeps a value (`f32[]`) of the step, whose mean over the epoch is logged under this name.
    pub fn log(&mut self, name: &str, value: &Tensor) {
        self.logged.insert(name, value.stop_gradient().convert(DType::F64));
    }

    /// `→ f32[shape]`: draws from the normal distribution, others in each step. In validation each batch has the same.
    pub fn normal(&mut self, shape: &[usize]) -> Tensor {
        let bits = self.bits(shape);
        let unit = bits.shift_right_logical(&bits.scalar_like(9.0)).convert(DType::F32) * 2f64.powi(-23);
        // In (−1, 1), both ends left out.
        let spread = unit * (2.0 - 2f64.powi(-23)) - (1.0 - 2f64.powi(-24));
        spread.erf_inv() * std::f64::consts::SQRT_2
    }

    /// `→ i32[shape]`: draws from 0 to below `limit`, others in each step. In validation each batch has the same.
    pub fn integers(&mut self, shape: &[usize], limit: usize) -> Tensor {
        let drawn = (self.uniform(shape) * limit as f64).floor();
        // The greatest draw times the limit may be rounded up to it.
        drawn.minimum(&drawn.scalar_like(limit.saturating_sub(1) as f64)).convert(DType::I32)
    }

    /// `→ f32[shape]`: draws from 0 to below 1, others in each step. In validation each batch has the same.
    pub fn uniform(&mut self, shape: &[usize]) -> Tensor {
        let bits = self.bits(shape);
        bits.shift_right_logical(&bits.scalar_like(8.0)).convert(DType::F32) * 2f64.powi(-24)
    }

    fn bits(&mut self, shape: &[usize]) -> Tensor {
        let draw = rng::hash_name("step of one's own") ^ rng::mix(self.draws);
        self.draws += 1;
        let builder = self.cx.builder().clone();
        let Ok(word) = Literal::from_slice([1], &[draw]) else { return self.nothing("no draw", "") };
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

    /// One update of these weights.
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

    /// Weights after an update, for all that comes after it.
    fn adopt(&mut self, new: Params) {
        for (path, value) in self.cx.constrained(new) {
            self.cx.replace_weight(&path, &value);
            if self.changed.get(&path).is_some() {
                self.changed.insert(path.clone(), value.clone());
            }
            self.trainable.insert(path, value);
        }
    }

    /// What a training step without its updates changes besides the trained weights.
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
            fields,
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

    /// Traces a step: weights `cx` is bound to, of which `trainable` are trained; `updates` while training.
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
            let e = Error::new(ErrorKind::Config, "a step with several updates has no loss scale")
                .because("mixed_float16 scales one loss")
                .hint("use mixed_bfloat16");
            loss = loss.fail(e);
        }
        for name in step.logged().iter().filter(|name| own.logged.get(name).is_none()) {
            let e = Error::new(ErrorKind::Graph, format!("the step {} did not log `{name}`", step.name()));
            loss = loss.fail(e.hint("log all that TrainStep::logged names: cx.log(…)"));
        }
        let slots = own.updates.map_or_else(Params::new, |u| u.slots);
        let trainable = own.trainable.map(|name, old| own.changed.get(name).unwrap_or(old).clone());
        StepResult { loss, trainable, changed: own.changed, slots, logged: own.logged }
    }
}

/// A loss as `f32[]`.
fn scalar(loss: Tensor) -> Tensor {
    if loss.is_poisoned() || (loss.rank() == 0 && loss.dtype().is_float()) {
        return loss.convert(DType::F32);
    }
    let e = Error::new(ErrorKind::Graph, format!("the loss of the step is {}", loss.ty()))
        .because("a step makes one number less")
        .hint("take the mean over the batch: .mean_all()");
    loss.fail(e)
}
