//! Compiled training, evaluation and prediction steps of a model, and metric accumulators.

use crate::layer::{Cx, Precision};
use crate::loss::{Loss, Prediction};
use crate::metric::Metric;
use crate::model::architecture::Architecture;
use crate::model::batch::{Batch, DeviceBatch};
use crate::model::compile::{Compile, TrainState};
use crate::model::history::Logs;
use crate::model::output_losses::{BatchLosses, OutputLosses};
use crate::model::sparsity::{MASK, Pruning};
use crate::model::step_input::{StepInput, values};
use crate::model::train_step::{BatchTree, OptimizerUpdate, StepCx, TrainStep as OwnStep};
use crate::optimizer::{LossScale, Optimizer, UpdateInputs};
use std::sync::Arc;
use systole_ir::{DType, Graph, Literal, Result, Tensor, TensorType, grad};
use systole_runtime::{Backend, Buffer, Executable, Jit, Params, TensorTree, ValueRoles, jit};

/// Learning rate `f32[]` (and other scheduled values: [`Optimizer::values_at`]), step `u64[]` and seed `u64[]`. They
/// are graph inputs, so changing them does not recompile.
pub(crate) type Controls = (Tensor, Tensor, Tensor);

/// Creates the controls of one step.
pub(crate) fn controls(values: Literal, step: u64, seed: u64) -> (Buffer, Buffer, Buffer) {
    let word = |v: u64| {
        let mut l = Literal::zeros(TensorType::scalar(DType::U64));
        l.bytes_mut().copy_from_slice(&v.to_le_bytes());
        Buffer::from(l)
    };
    (values.into(), word(step), word(seed))
}

type TrainIn = (Params, Params, Params, Params, BatchTree, Controls);
type TrainOut = (Params, Params, Params, Params);
type EvaluateIn = (Params, Params, Params, BatchTree);
type PredictIn = (Params, Params, Vec<StepInput>);
pub(crate) type TracedStep<I, O> = Jit<I, O, Box<dyn Fn(I) -> O + Send + Sync>>;

pub(crate) fn union(a: &Params, b: &Params) -> Params {
    a.iter().chain(b.iter()).map(|(n, t)| (n.to_string(), t.clone())).collect()
}

/// Training step: forward, loss, backward, optimizer update and metrics in one graph.
pub(crate) struct CompiledTrainStep {
    function: TracedStep<TrainIn, TrainOut>,
    recipe: TrainRecipe,
    optimizer: Optimizer,
    pub(crate) metrics: MetricSet,
    loss_scale: Option<LossScale>,
}

impl CompiledTrainStep {
    pub(crate) fn new(
        architecture: &Arc<Architecture>,
        config: &Compile,
        goals: &OutputLosses,
        backend: &Arc<dyn Backend>,
    ) -> CompiledTrainStep {
        let metrics = MetricSet::new(config, goals);
        let loss_scale = (config.precision == Precision::MixedFloat16).then(LossScale::default);
        let recipe = TrainRecipe {
            architecture: architecture.clone(),
            optimizer: config.optimizer.clone(),
            goals: goals.clone(),
            precision: config.precision,
            metrics: metrics.clone(),
            loss_scale: loss_scale.clone(),
            loops: backend.wants_loops(),
            own: config.train_step.clone(),
            pruning: config.pruning.clone(),
        };
        let function = recipe.clone().function().on(backend.clone());
        CompiledTrainStep { function, recipe, optimizer: config.optimizer.clone(), metrics, loss_scale }
    }

    /// Returns zeroed slots for the optimizer and loss scaling, and masks of ones for pruned weights.
    pub(crate) fn optimizer_state(&self, trainable: &Params<Buffer>) -> Result<Params<Buffer>> {
        let mut state = self.optimizer.init(trainable)?;
        if let Some(scale) = &self.loss_scale {
            scale.init().into_iter().for_each(|(n, b)| state.insert(n, b));
        }
        let pruning = self.recipe.pruning.as_ref();
        let channels = match pruning.filter(|pruning| pruning.channels) {
            Some(pruning) => Some(pruning.channel_members(&self.recipe.architecture)?),
            None => None,
        };
        for (path, weight) in trainable.iter() {
            let shape = weight.ty().shape.dims();
            let is_masked = match &channels {
                Some(members) => members.iter().any(|member| member == path),
                None => pruning.is_some_and(|pruning| pruning.prunes(path, shape)),
            };
            if is_masked {
                let ones = Literal::from_slice(shape.to_vec(), &vec![1f32; weight.ty().elements()])?;
                state.insert(format!("{MASK}{path}"), ones.into());
            }
        }
        Ok(state)
    }

    /// Runs one step; the state is donated and replaced.
    pub(crate) fn run(
        &self,
        state: &mut TrainState,
        batch: DeviceBatch,
        controls: (Buffer, Buffer, Buffer),
    ) -> Result<()> {
        let taken = std::mem::take(state);
        let args = (taken.trainable, taken.frozen, taken.optimizer, taken.metrics, batch, controls);
        let (trainable, frozen, optimizer, metrics) = self.function.call(args)?;
        *state = TrainState { trainable, frozen, optimizer, metrics };
        Ok(())
    }

    /// Compiles for a batch's types, so that graph errors occur before the state is donated.
    pub(crate) fn prepare(
        &self,
        state: &TrainState,
        batch: &DeviceBatch,
        controls: (Buffer, Buffer, Buffer),
    ) -> Result<Arc<dyn Executable>> {
        let s = state.clone();
        self.function.executable((s.trainable, s.frozen, s.optimizer, s.metrics, batch.clone(), controls))
    }

    /// Returns the graph, with loops over repeated segments of the model if requested.
    pub(crate) fn trace(
        &self,
        state: &TrainState,
        metrics: Params<Buffer>,
        batch: &Batch,
        controls: (Buffer, Buffer, Buffer),
        loops: bool,
    ) -> Result<(Arc<Graph>, ValueRoles)> {
        let s = state.clone();
        let recipe = TrainRecipe { loops, ..self.recipe.clone() };
        let args = (s.trainable, s.frozen, s.optimizer, metrics, batch.buffers(), controls);
        recipe.function().program(args)
    }

    /// Whether the step uses loops over repeated segments of the model.
    pub(crate) fn loops(&self) -> bool {
        self.recipe.loops
    }

    pub(crate) fn compiled_programs(&self) -> usize {
        self.function.compiled_programs()
    }

    /// Whether the losses of the epoch so far are finite; waits for the step.
    pub(crate) fn losses_are_finite(&self, state: &TrainState) -> Result<bool> {
        state.metrics.get(LOSS_TOTAL).map_or(Ok(true), |total| Ok((total.to_f64()? as f32).is_finite()))
    }
}

/// Everything that a training step is traced from.
#[derive(Clone)]
struct TrainRecipe {
    architecture: Arc<Architecture>,
    optimizer: Optimizer,
    goals: OutputLosses,
    precision: Precision,
    metrics: MetricSet,
    loss_scale: Option<LossScale>,
    loops: bool,
    /// Custom training step, instead of loss and metrics.
    own: Option<Arc<dyn OwnStep>>,
    pruning: Option<Pruning>,
}

impl TrainRecipe {
    fn function(self) -> TracedStep<TrainIn, TrainOut> {
        let traced: Box<dyn Fn(TrainIn) -> TrainOut + Send + Sync> = Box::new(move |args| self.trace(args));
        jit(traced)
            .named("train step")
            .flush_denormals(true)
            .winograd(true)
            .excess_precision(true)
            .batch(4)
            .whole(3)
    }

    fn trace(&self, args: TrainIn) -> TrainOut {
        if let Some(own) = &self.own {
            return self.trace_own(&**own, args);
        }
        let (trainable, frozen, slots, metrics, batch, controls) = args;
        let (inputs, labels, weights) = batch;
        let (learning_rate, step, seed) = controls;
        let builder = learning_rate.builder().clone();
        let mut cx =
            Cx::new(&builder, union(&trainable, &frozen), self.precision).training_with(&seed, &step);
        cx = cx.with_loops(self.loops);
        let outputs = self.architecture.call_all(&mut cx, &values(inputs));
        let outcome =
            builder.scope("loss", || self.goals.outcome(&mut cx, &outputs, (&labels, &weights), true));
        let loss = outcome.loss.clone();
        let labels = self.classes_of(labels);
        let update = UpdateInputs { learning_rate, step: step.convert(DType::I64) };
        let changed = cx.take_updates();
        let masks = own_slots(&slots, MASK);
        let slots = slots.into_iter().filter(|(name, _)| !name.starts_with(MASK)).collect();
        let (new, mut slots) = self.descend(&loss, &update, &trainable, &changed, &slots);
        let new = builder.scope("optimizer", || masked(cx.constrained(new), &masks));
        masks.into_iter().for_each(|(path, mask)| slots.insert(format!("{MASK}{path}"), mask));
        let metrics = builder
            .scope("metrics", || self.metrics.update(&metrics, &cx, &outputs, (&labels, &weights), &outcome));
        let good = self.good(&metrics);
        (kept(&good, &new, &trainable), kept(&good, &changed, &frozen), slots, metrics)
    }

    /// Converts soft labels to class labels for metrics: the most probable class, in the form that the loss expects.
    fn classes_of(&self, labels: Vec<Tensor>) -> Vec<Tensor> {
        let class = |(i, label): (usize, Tensor)| {
            let goal = self.goals.all.get(i);
            match goal.and_then(|goal| goal.loss.as_ref().filter(|_| goal.soft.is_some())).map(Loss::base) {
                Some(Loss::SparseCategoricalCrossentropy { .. }) if label.rank() > 0 => {
                    label.argmax(label.rank() - 1)
                }
                _ => label,
            }
        };
        labels.into_iter().enumerate().map(class).collect()
    }

    /// `bool[]`: whether the loss is finite. Otherwise weights keep their values, so that the cause can be diagnosed
    /// and the model file stays valid. Slots are not protected, because `fit` recreates them. With loss scaling, the
    /// gradients decide instead. Uses f32, which every device can check.
    fn good(&self, metrics: &Params) -> Option<Tensor> {
        self.loss_scale.is_none().then(|| metrics[LOSS_TOTAL].convert(DType::F32).is_finite())
    }

    /// Like [`TrainRecipe::trace`], for a custom training step.
    fn trace_own(
        &self,
        own: &dyn OwnStep,
        (trainable, frozen, slots, metrics, batch, (learning_rate, step, seed)): TrainIn,
    ) -> TrainOut {
        let cx = Cx::new(step.builder(), union(&trainable, &frozen), self.precision);
        let cx = cx.training_with(&seed, &step).with_loops(self.loops);
        let at = UpdateInputs { learning_rate, step: step.convert(DType::I64) };
        let (optimizer, loss_scale) = (self.optimizer.clone(), self.loss_scale.clone());
        let updates = OptimizerUpdate { optimizer, at, loss_scale, slots };
        let size = batch.0.first().map_or(1, |x| x.value.dim(0));
        let architecture = self.architecture.clone();
        let after = StepCx::run(own, cx, architecture, batch, trainable.clone(), Some(updates));
        let metrics = self.metrics.update_logged(&metrics, &after.logged, &after.loss, size);
        let good = self.good(&metrics);
        let weights = kept(&good, &after.trainable, &trainable);
        (weights, kept(&good, &after.changed, &frozen), after.slots, metrics)
    }

    /// Backward pass and update, starting from the weights as changed by layers; with `mixed_float16`, of the scaled
    /// loss.
    fn descend(
        &self,
        loss: &Tensor,
        at: &UpdateInputs,
        weights: &Params,
        changed: &Params,
        slots: &Params,
    ) -> (Params, Params) {
        let leaves: Vec<&Tensor> = weights.values().collect();
        let scaled = self.loss_scale.as_ref().map_or(loss.clone(), |s| s.scale(loss, slots));
        let grads: Params = weights.names().map(str::to_string).zip(grad(&scaled, &leaves)).collect();
        let weights = weights.map(|name, old| changed.get(name).unwrap_or(old).clone());
        loss.builder().scope("optimizer", || match &self.loss_scale {
            Some(scale) => scale.update(&self.optimizer, at, &weights, &grads, slots),
            None => self.optimizer.update(at, &weights, &grads, slots),
        })
    }
}

/// Applies pruning masks to the updated weights.
fn masked(weights: Params, masks: &Params) -> Params {
    if masks.is_empty() {
        return weights;
    }
    weights.map(|name, w| {
        let zeroed = |mask: &Tensor| mask.greater(&mask.zeros_like()).select(w, &w.zeros_like());
        masks.get(name).map_or_else(|| w.clone(), zeroed)
    })
}

/// Selects the new weights if the step was good, otherwise the old ones.
fn kept(good: &Option<Tensor>, new: &Params, old: &Params) -> Params {
    let keep = |new: Option<&Tensor>, old: &Tensor| match (new, good) {
        (Some(new), Some(good)) => good.select(new, old),
        (new, _) => new.unwrap_or(old).clone(),
    };
    let Some(builder) = old.values().next().map(|t| t.builder().clone()) else { return Params::new() };
    builder.scope("optimizer", || old.map(|name, old| keep(new.get(name), old)))
}

/// Evaluation step: loss and metrics of a batch in inference mode.
pub(crate) struct EvaluateStep {
    function: TracedStep<EvaluateIn, Params>,
    pub(crate) metrics: MetricSet,
}

impl EvaluateStep {
    pub(crate) fn new(
        architecture: &Arc<Architecture>,
        config: &Compile,
        goals: &OutputLosses,
        backend: &Arc<dyn Backend>,
    ) -> EvaluateStep {
        let metrics = MetricSet::new(config, goals);
        let (set, architecture, goals) = (metrics.clone(), architecture.clone(), goals.clone());
        let (precision, own) = (config.precision, config.train_step.clone());
        let loops = backend.wants_loops();
        let traced: Box<dyn Fn(EvaluateIn) -> Params + Send + Sync> =
            Box::new(move |(trainable, frozen, state, (inputs, labels, weights))| {
                let builder = state[LOSS_COUNT].builder().clone();
                let mut cx = Cx::new(&builder, union(&trainable, &frozen), precision).with_loops(loops);
                if let Some(own) = &own {
                    let size = inputs.first().map_or(1, |x| x.value.dim(0));
                    let batch = (inputs, labels, weights);
                    let after = StepCx::run(&**own, cx, architecture.clone(), batch, trainable, None);
                    return set.update_logged(&state, &after.logged, &after.loss, size);
                }
                let outputs = architecture.call_all(&mut cx, &values(inputs));
                let told = (&labels[..], &weights[..]);
                let outcome = goals.outcome(&mut cx, &outputs, told, false);
                set.update(&state, &cx, &outputs, told, &outcome)
            });
        let function = jit(traced)
            .on(backend.clone())
            .named("evaluate step")
            .flush_denormals(true)
            .winograd(true)
            .excess_precision(true)
            .batch(3)
            .whole(2)
            .any_batch(true);
        EvaluateStep { function, metrics }
    }

    pub(crate) fn run(
        &self,
        state: &TrainState,
        metrics: Params<Buffer>,
        batch: &Batch,
    ) -> Result<Params<Buffer>> {
        self.function.call((state.trainable.clone(), state.frozen.clone(), metrics, batch.buffers()))
    }
}

/// Prediction step: outputs of a batch.
pub(crate) struct PredictStep {
    function: TracedStep<PredictIn, Vec<Tensor>>,
}

impl PredictStep {
    pub(crate) fn new(
        architecture: &Arc<Architecture>,
        precision: Precision,
        backend: &Arc<dyn Backend>,
    ) -> PredictStep {
        let architecture = architecture.clone();
        let loops = backend.wants_loops();
        let traced: Box<dyn Fn(PredictIn) -> Vec<Tensor> + Send + Sync> =
            Box::new(move |(trainable, frozen, inputs)| {
                let builder = inputs[0].value.builder().clone();
                let mut cx = Cx::new(&builder, union(&trainable, &frozen), precision).with_loops(loops);
                architecture.call_all(&mut cx, &values(inputs))
            });
        let function = jit(traced)
            .on(backend.clone())
            .named("predict step")
            .flush_denormals(true)
            .winograd(true)
            .excess_precision(true);
        PredictStep { function: function.batch(2).any_batch(true) }
    }

    fn args(state: &TrainState, inputs: Vec<StepInput<Buffer>>) -> <PredictIn as TensorTree>::Host {
        (state.trainable.clone(), state.frozen.clone(), inputs)
    }

    pub(crate) fn run(&self, state: &TrainState, inputs: Vec<StepInput<Buffer>>) -> Result<Vec<Buffer>> {
        self.function.call(PredictStep::args(state, inputs))
    }

    pub(crate) fn prepare(
        &self,
        state: &TrainState,
        inputs: Vec<StepInput<Buffer>>,
    ) -> Result<Arc<dyn Executable>> {
        self.function.executable(PredictStep::args(state, inputs))
    }

    pub(crate) fn trace(&self, state: &TrainState, batch: &Batch) -> Result<Arc<Graph>> {
        self.function.trace(PredictStep::args(state, batch.buffers().0))
    }
}

/// Running means of the loss and all metrics, as accumulators in the graph.
#[derive(Clone)]
pub(crate) struct MetricSet {
    members: Vec<MetricEntry>,
    /// Losses that are logged separately: index and name.
    losses: Vec<(usize, String)>,
    /// Names of values logged by a custom training step.
    logged: Vec<String>,
}

#[derive(Clone)]
struct MetricEntry {
    name: String,
    metric: Metric,
    weighted: bool,
    /// Index of its entry in the output losses, and of the model's output.
    goal: usize,
    output: usize,
}

const LOSS_TOTAL: &str = "loss/total";
const LOSS_COUNT: &str = "loss/count";

impl MetricSet {
    fn new(config: &Compile, goals: &OutputLosses) -> MetricSet {
        let named = goals.metrics().zip(goals.metric_names());
        let members = named.map(|((goal, of, (metric, weighted)), name)| MetricEntry {
            name,
            metric: metric.clone(),
            weighted: *weighted,
            goal,
            output: of.output,
        });
        let members = members.collect();
        let losses = goals.losses().collect();
        let logged = config.train_step.as_ref().map_or(Vec::new(), |step| step.logged());
        MetricSet { members, losses, logged }
    }

    /// Names of means in addition to the loss and metrics.
    fn means(&self) -> impl Iterator<Item = &String> {
        self.losses.iter().map(|(_, name)| name).chain(&self.logged)
    }

    /// Returns zeroed accumulators for an epoch. `outputs` are the shapes of the model's outputs.
    pub(crate) fn zeros(&self, outputs: &[Vec<usize>]) -> Params<Buffer> {
        let scalar = TensorType::scalar(DType::F64);
        let mut state = Params::new();
        state.insert(LOSS_TOTAL, Buffer::zeros(scalar.clone()));
        state.insert(LOSS_COUNT, Buffer::zeros(scalar.clone()));
        self.means().for_each(|name| state.insert(format!("{name}/total"), Buffer::zeros(scalar.clone())));
        for m in &self.members {
            let output = outputs.get(m.output).map_or(&[][..], Vec::as_slice);
            for (slot, start) in m.metric.initial(output) {
                state.insert(format!("{}/{slot}", m.name), Buffer::from(start));
            }
        }
        state
    }

    /// Each batch's loss is weighted by its number of samples, as in Keras's `fit`.
    fn update(
        &self,
        state: &Params,
        cx: &Cx,
        outputs: &[Tensor],
        (labels, weights): (&[Tensor], &[Tensor]),
        outcome: &BatchLosses,
    ) -> Params {
        let mut new = state.clone();
        let size = outputs.first().map_or(1, |y| y.dim(0)) as f64;
        let add = |total: &str, value: &Tensor| &state[total] + value.convert(DType::F64) * size;
        new.insert(LOSS_TOTAL, add(LOSS_TOTAL, &outcome.loss));
        new.insert(LOSS_COUNT, &state[LOSS_COUNT] + size);
        for (goal, name) in &self.losses {
            let total = format!("{name}/total");
            // A missing output already made the loss an error tensor.
            if let Some(Some(value)) = outcome.each.get(*goal) {
                new.insert(total.clone(), add(&total, value));
            }
        }
        for m in &self.members {
            let (Some(label), Some(y)) = (labels.get(m.goal), outputs.get(m.output)) else { continue };
            let own = own_slots(state, &format!("{}/", m.name));
            let logits = cx.logits_of(y);
            let prediction = Prediction { value: y, logits: logits.as_ref() };
            let weight = weights.get(m.goal).filter(|_| m.weighted);
            let mask = cx.mask_of(y);
            let updated = m.metric.update_of_counted(&own, label, prediction, weight, mask.as_ref());
            for (slot, value) in updated {
                new.insert(format!("{}/{slot}", m.name), value);
            }
        }
        new
    }

    /// Like [`MetricSet::update`], for values logged by a custom training step.
    fn update_logged(&self, state: &Params, values: &Params, loss: &Tensor, size: usize) -> Params {
        let mut new = state.clone();
        let size = size as f64;
        new.insert(LOSS_TOTAL, &state[LOSS_TOTAL] + loss.convert(DType::F64) * size);
        new.insert(LOSS_COUNT, &state[LOSS_COUNT] + size);
        for name in &self.logged {
            // A missing value already made the step's loss an error tensor.
            let Some(value) = values.get(name) else { continue };
            let total = format!("{name}/total");
            new.insert(total.clone(), &state[&total[..]] + value * size);
        }
        new
    }

    /// Computes the values of the accumulators.
    pub(crate) fn logs(&self, state: &Params<Buffer>) -> Result<Logs> {
        let mut logs = Logs::new();
        let value = |name: &str| state.get(name).map_or(Ok(0.0), Buffer::to_f64);
        let count = value(LOSS_COUNT)?;
        let mean = |total: f64| if count == 0.0 { 0.0 } else { total / count };
        logs.insert("loss", mean(value(LOSS_TOTAL)?));
        for name in self.means() {
            logs.insert(name.clone(), mean(value(&format!("{name}/total"))?));
        }
        for m in &self.members {
            let own: Params<Literal> = own_slots(state, &format!("{}/", m.name))
                .into_iter()
                .map(|(n, b)| Ok((n, b.to_literal()?)))
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .collect();
            for (i, value) in m.metric.results(&own).into_iter().enumerate() {
                logs.insert(if i == 0 { m.name.clone() } else { format!("{}_{i}", m.name) }, value);
            }
        }
        Ok(logs)
    }
}

/// Returns the entries whose names start with `prefix`, without it.
fn own_slots<T: Clone>(state: &Params<T>, prefix: &str) -> Params<T> {
    let own = state.iter().filter_map(|(n, v)| Some((n.strip_prefix(prefix)?.to_string(), v.clone())));
    own.collect()
}
