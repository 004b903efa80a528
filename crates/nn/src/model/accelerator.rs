//! [`Accelerator`]: custom training loops with strategies, mixed precision, gradient accumulation and layers.
//!
//! [`LoopState`] holds everything that changes; [`crate::LoopBackup`] backs it up.

use crate::layer::{Cx, Precision};
use crate::model::Model;
use crate::model::compiled_steps::{Controls, controls, union};
use crate::optimizer::{LossScale, Optimizer, UpdateInputs};
use crate::setters::with_defaults;
use std::sync::Arc;
use systole_dist::Strategy;
use systole_ir::{DType, Result, Tensor, err, grad};
use systole_runtime::{Backend, Buffer, Jit, Params, TensorTree, backend, jit};

with_defaults! {
    /// Settings of a custom training loop, like Hugging Face's `Accelerator` for PyTorch.
    ///
    /// A step is a function from weights and a batch to a loss, traced once per argument types: forward, loss, backward
    /// and update become one program. A batch is any tree of tensors whose first dimension is the batch.
    ///
    /// ```
    /// use systole_ir::{Literal, Result, Tensor};
    /// use systole_nn::{optimizer::sgd, Accelerator, Cx};
    /// use systole_runtime::{Buffer, Params};
    /// # fn main() -> Result<()> {
    /// let x: Buffer = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?.into();
    /// let y: Buffer = Literal::from_slice([4, 1], &[1f32, 3., 5., 7.])?.into();
    /// let mut weights: Params<Buffer> = Params::new();
    /// weights.insert("w", Literal::from_slice([1, 1], &[0f32])?.into());
    /// weights.insert("b", Literal::from_slice([1], &[0f32])?.into());
    ///
    /// let accelerator = Accelerator::default();
    /// let optimizer = sgd(0.05).momentum(0.9);
    /// let mut state = accelerator.prepare(&optimizer, weights)?;
    /// let step = accelerator.step(&optimizer, |_: &mut Cx, p: &Params, (x, y): &(Tensor, Tensor)| {
    ///     let error = x.dot(&p["w"]) + &p["b"] - y;
    ///     (&error * &error).mean_all()
    /// })?;
    /// for _ in 0..200 {
    ///     step.call(&mut state, (x.clone(), y.clone()))?;
    /// }
    /// let loss = step.call(&mut state, (x, y))?;
    /// assert!(loss.to_f64()? < 1e-3 && state.steps == 201);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone)]
    pub struct Accelerator {
        /// Backend; `None` selects the best registered one.
        pub backend: Option<Arc<dyn Backend>> = None,
        /// How steps are distributed over the backend's devices.
        pub strategy: Strategy = Strategy::default(),
        /// Precision policy. Weights passed to a step are cast to the compute type; layers cast by themselves.
        pub precision: Precision = Precision::Float32,
        /// Number of steps per weight update, which uses the mean of their gradients.
        pub gradient_accumulation_steps: usize = 1,
        /// Seed of dropout and other random draws.
        pub seed: u64 = 0,
    }
}

/// State of a custom training loop: arrays that its steps read and replace.
#[derive(Clone, Debug)]
pub struct LoopState {
    /// Trainable weights by path.
    pub params: Params<Buffer>,
    /// Other weights: moving statistics, frozen layers.
    pub frozen: Params<Buffer>,
    /// Slots of the optimizer and of loss scaling.
    pub optimizer: Params<Buffer>,
    /// Number of steps so far; with gradient accumulation each micro-batch counts.
    pub steps: u64,
}

type LoopStepInputs<B> = (Params, Params, Params, B, Controls);
type LoopStepOutputs<A> = (Params, Params, Params, Tensor, A);
type BoxedJit<I, O> = Jit<I, O, Box<dyn Fn(I) -> O + Send + Sync>>;

/// A compiled training step, created by [`Accelerator::step`] or [`Accelerator::step_with`].
pub struct LoopStep<B: TensorTree, A: TensorTree> {
    function: BoxedJit<LoopStepInputs<B>, LoopStepOutputs<A>>,
    optimizer: Optimizer,
    seed: u64,
}

/// A compiled function of the weights that does not update them, created by [`Accelerator::function`].
pub struct LoopFunction<B: TensorTree, O: TensorTree> {
    function: BoxedJit<(Params, Params, B), O>,
}

impl Accelerator {
    /// Sets the distribution strategy.
    #[deprecated = "write Accelerator { strategy, ..default() }"]
    pub fn strategy(mut self, strategy: Strategy) -> Accelerator {
        self.strategy = strategy;
        self
    }

    /// Sets the precision policy of the training loop.
    #[deprecated = "write Accelerator { precision, ..default() }"]
    pub fn precision(mut self, precision: Precision) -> Accelerator {
        self.precision = precision;
        self
    }

    /// Sets the number of steps per weight update (gradient accumulation).
    #[deprecated = "write Accelerator { gradient_accumulation_steps, ..default() }"]
    pub fn gradient_accumulation_steps(mut self, steps: usize) -> Accelerator {
        self.gradient_accumulation_steps = steps;
        self
    }

    /// Creates the state of a custom training loop that starts with these weights.
    ///
    /// # Errors
    /// If a setting of the optimizer is invalid.
    pub fn prepare(&self, optimizer: &Optimizer, params: Params<Buffer>) -> Result<LoopState> {
        let mut slots = self.accumulating(optimizer)?.init(&params)?;
        if let Some(scale) = self.loss_scale() {
            scale.init().into_iter().for_each(|(name, value)| slots.insert(name, value));
        }
        Ok(LoopState { params, frozen: Params::new(), optimizer: slots, steps: 0 })
    }

    /// Creates the state of a custom training loop that trains the weights of a built model.
    ///
    /// # Errors
    /// As [`Accelerator::prepare`], and if the model has no weights yet.
    pub fn prepare_model(&self, optimizer: &Optimizer, model: &Model) -> Result<LoopState> {
        if !model.is_built() {
            let e = err!(Config, "the model has no weights to train");
            return Err(e.hint("build the model with the type of one sample: model.build(&[…])"));
        }
        let is_trained = |path: &str| model.specs.iter().any(|s| s.path == path && s.trainable);
        let all = model.weights().into_iter().map(|(path, value)| (path.to_string(), value.clone()));
        let (params, frozen): (Vec<_>, Vec<_>) = all.partition(|(path, _)| is_trained(path));
        let state = self.prepare(optimizer, params.into_iter().collect())?;
        Ok(LoopState { frozen: frozen.into_iter().collect(), ..state })
    }

    /// Creates a training step: computes the loss `f32[]` of a batch and its gradient, and updates the weights.
    ///
    /// `f` gets the context for layers ([`crate::Architecture::call`]), the weights for functions of plain tensors, and
    /// the batch. Dropout is active, and batch normalization uses batch statistics and updates its moving statistics.
    ///
    /// # Errors
    /// If the backend or the strategy is not available.
    pub fn step<B, F>(&self, optimizer: &Optimizer, f: F) -> Result<LoopStep<B, ()>>
    where
        B: TensorTree + 'static,
        F: Fn(&mut Cx, &Params, &B) -> Tensor + Send + Sync + 'static,
    {
        self.step_with(optimizer, move |cx, params, batch| (f(cx, params, batch), ()))
    }

    /// Like [`Accelerator::step`], for a function with auxiliary outputs: scores, norms, samples.
    ///
    /// # Errors
    /// As [`Accelerator::step`].
    pub fn step_with<B, A, F>(&self, optimizer: &Optimizer, f: F) -> Result<LoopStep<B, A>>
    where
        B: TensorTree + 'static,
        A: TensorTree + 'static,
        F: Fn(&mut Cx, &Params, &B) -> (Tensor, A) + Send + Sync + 'static,
    {
        let optimizer = self.accumulating(optimizer)?;
        let (precision, scale, rule) = (self.precision, self.loss_scale(), optimizer.clone());
        let traced: Box<dyn Fn(LoopStepInputs<B>) -> LoopStepOutputs<A> + Send + Sync> =
            Box::new(move |(params, frozen, slots, batch, (learning_rate, step, seed))| {
                let weights = union(&params, &frozen);
                let mut cx = Cx::new(step.builder(), weights, precision).training_with(&seed, &step);
                let (loss, more) = f(&mut cx, &cast(&params, precision), &batch);
                let loss = cx.with_penalties(&checked(loss), |_| true);
                let leaves: Vec<&Tensor> = params.values().collect();
                let scaled = scale.as_ref().map_or_else(|| loss.clone(), |s| s.scale(&loss, &slots));
                let grads: Params = params.names().map(str::to_string).zip(grad(&scaled, &leaves)).collect();
                let at = UpdateInputs { learning_rate, step: step.convert(DType::I64) };
                let updates = cx.take_updates();
                let params = params.map(|name, old| updates.get(name).unwrap_or(old).clone());
                let (new, slots) = step.builder().scope("optimizer", || match &scale {
                    Some(scale) => scale.update(&rule, &at, &params, &grads, &slots),
                    None => rule.update(&at, &params, &grads, &slots),
                });
                let new = cx.constrained(new);
                let frozen = frozen.map(|name, old| updates.get(name).unwrap_or(old).clone());
                (new, frozen, slots, loss, more)
            });
        let function = self.jit(traced, "step of your own")?.batch(3);
        Ok(LoopStep { function, optimizer, seed: self.seed })
    }

    /// Creates a function of the weights and a batch in inference mode, for evaluation, prediction or sampling.
    ///
    /// # Errors
    /// As [`Accelerator::step`].
    pub fn function<B, O, F>(&self, f: F) -> Result<LoopFunction<B, O>>
    where
        B: TensorTree + 'static,
        O: TensorTree + 'static,
        F: Fn(&mut Cx, &Params, &B) -> O + Send + Sync + 'static,
    {
        let precision = self.precision;
        let traced: Box<dyn Fn((Params, Params, B)) -> O + Send + Sync> =
            Box::new(move |(params, frozen, batch)| {
                let mut leaves = Vec::new();
                batch.flatten(&mut leaves);
                let mut all = params.values().chain(frozen.values()).chain(&leaves);
                let Some(first) = all.next() else { systole_ir::bug!("function without inputs") };
                let mut cx = Cx::new(first.builder(), union(&params, &frozen), precision);
                f(&mut cx, &cast(&params, precision), &batch)
            });
        let function = self.jit(traced, "function of your own")?.batch(2).any_batch(true);
        Ok(LoopFunction { function })
    }

    fn jit<I: TensorTree, O: TensorTree>(
        &self,
        traced: Box<dyn Fn(I) -> O + Send + Sync>,
        name: &str,
    ) -> Result<BoxedJit<I, O>> {
        let device = self.backend.clone().map_or_else(|| backend("auto"), Ok)?;
        let device = self.strategy.on(device)?;
        let function = jit(traced).on(device).named(name);
        Ok(function.flush_denormals(true).winograd(true).excess_precision(true))
    }

    fn loss_scale(&self) -> Option<LossScale> {
        (self.precision == Precision::MixedFloat16).then(LossScale::default)
    }

    fn accumulating(&self, optimizer: &Optimizer) -> Result<Optimizer> {
        optimizer.check()?;
        match (self.gradient_accumulation_steps, optimizer.gradient_accumulation_steps) {
            (0, _) => Err(err!(Config, "gradient_accumulation_steps is 0")
                .hint("use 1 to update the weights at every step")),
            (1, _) => Ok(optimizer.clone()),
            (a, Some(b)) if a != b => {
                Err(err!(Config, "conflicting gradient_accumulation_steps: {a} and {b}")
                    .because("the first number is from the accelerator, the second from the optimizer")
                    .hint("set gradient_accumulation_steps in only one of accelerator and optimizer"))
            }
            (steps, _) => Ok(optimizer.clone().gradient_accumulation_steps(steps)),
        }
    }
}

/// Casts the weights to the compute type.
fn cast(params: &Params, precision: Precision) -> Params {
    params.map(|_, p| if p.dtype() == DType::F32 { p.convert(precision.compute_dtype()) } else { p.clone() })
}

/// Checks that the loss is a scalar and converts it to `f32[]`.
fn checked(loss: Tensor) -> Tensor {
    if loss.is_poisoned() || (loss.rank() == 0 && loss.dtype().is_float()) {
        return loss.convert(DType::F32);
    }
    let e = err!(Graph, "the loss of a step must be a scalar, got {}", loss.ty())
        .because("gradients are those of a single number")
        .hint("take the mean over the batch: .mean_all()");
    loss.fail(e)
}

impl<B: TensorTree, A: TensorTree> LoopStep<B, A> {
    /// Runs a training step and updates the state in place. Returns the loss, `f32[]`; reading it waits for the step.
    ///
    /// # Errors
    /// If the step cannot be compiled or the device fails. If the step had started, the state is lost.
    pub fn call(&self, state: &mut LoopState, batch: B::Host) -> Result<Buffer> {
        Ok(self.call_with(state, batch)?.0)
    }

    /// Like [`LoopStep::call`], and also returns the auxiliary outputs of [`Accelerator::step_with`]'s function.
    ///
    /// # Errors
    /// As [`LoopStep::call`].
    pub fn call_with(&self, state: &mut LoopState, batch: B::Host) -> Result<(Buffer, A::Host)> {
        let values = controls(self.optimizer.values_at(state.steps), state.steps, self.seed);
        let LoopState { params, frozen, optimizer: slots, steps } = state.taken();
        let (params, frozen, optimizer, loss, more) =
            self.function.call((params, frozen, slots, batch, values))?;
        *state = LoopState { params, frozen, optimizer, steps: steps + 1 };
        Ok((loss, more))
    }

    /// Number of compiled programs of the step: one per argument types.
    pub fn compiled_programs(&self) -> usize {
        self.function.compiled_programs()
    }
}

impl<B: TensorTree, O: TensorTree> LoopFunction<B, O> {
    /// Runs the compiled function with the current weights and a batch.
    ///
    /// # Errors
    /// If it cannot be compiled, the device fails, or there are neither weights nor a batch.
    pub fn call(&self, state: &LoopState, batch: B::Host) -> Result<O::Host> {
        let mut leaves = Vec::new();
        let skeleton = B::flatten_host(batch, &mut leaves);
        if leaves.is_empty() && state.params.is_empty() && state.frozen.is_empty() {
            let e = err!(Config, "the function has no inputs");
            return Err(e
                .because("the function gets neither weights nor a batch")
                .hint("pass a batch or prepared weights"));
        }
        let batch = B::unflatten_host(&skeleton, &mut leaves.into_iter());
        self.function.call((state.params.clone(), state.frozen.clone(), batch))
    }
}

impl LoopState {
    /// Moves all values out of the state.
    fn taken(&mut self) -> LoopState {
        let empty = LoopState {
            params: Params::new(),
            frozen: Params::new(),
            optimizer: Params::new(),
            steps: self.steps,
        };
        std::mem::replace(self, empty)
    }

    /// Copies the loop's weights back into the model they come from, to save it or predict with it.
    ///
    /// # Errors
    /// If the model lacks one of the weights.
    pub fn put_into(&self, model: &mut Model) -> Result<()> {
        for (path, value) in self.params.iter().chain(self.frozen.iter()) {
            model.set_weight(path, value.to_literal()?)?;
        }
        Ok(())
    }
}
