//! [`Model`]: an architecture with its weights: `build`, `compile`, `evaluate`, `predict`, `summary`. Training is in `fit`.

pub(crate) mod accelerator;
pub(crate) mod architecture;
pub(crate) mod batch;
pub(crate) mod compile;
pub(crate) mod compiled_steps;
pub(crate) mod gradient_accumulation;
pub(crate) mod history;
pub(crate) mod infinite_data;
pub(crate) mod layer_loops;
pub(crate) mod model_file;
mod output_activation;
pub(crate) mod output_losses;
pub(crate) mod quantize_options;
pub(crate) mod sparsity;
pub(crate) mod step_input;
pub(crate) mod train_step;
pub(crate) mod weight_only_quantization;

use crate::layer::quantized_weight::QuantizedWeight;
use crate::layer::{Cx, Precision, WeightSpec};
use crate::layers::{LayerSpec, NestedModel};
use crate::model::architecture::{Architecture, InputSpec, NodeInput, Outputs, Symbol};
use crate::model::batch::{Batch, BatchFields, without_batch};
use crate::model::compile::{Compile, TrainState};
use crate::model::compiled_steps::{CompiledTrainStep, EvaluateStep, PredictStep, controls};
use crate::model::gradient_accumulation::AccumulationPhase;
use crate::model::history::Logs;
use crate::model::infinite_data::check_end;
use crate::model::output_losses::OutputLosses;
use crate::optimizer::schedule::Schedule;
use std::fmt::Write;
use std::sync::Arc;
use systole_data::{Dataset, Sample};
use systole_dist::Strategy;
use systole_ir::{
    DType, Error, Graph, GraphBuilder, Literal, Result, ResultExt, Shape, Tensor, TensorType, err,
};
use systole_runtime::{Backend, Buffer, DeviceInfo, Executable, Params, ValueRoles, backend};

pub(crate) struct CompiledSteps {
    pub(crate) config: Compile,
    pub(crate) goals: OutputLosses,
    pub(crate) train: CompiledTrainStep,
    pub(crate) evaluate: EvaluateStep,
    pub(crate) predict: PredictStep,
    pub(crate) backend: Arc<dyn Backend>,
}

/// Row of [`Model::summary`]: a layer, its output shape and weight count.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryRow {
    /// Layer name and class: `conv2d (Conv2D)`.
    pub layer: String,
    /// Output shape without the batch dimension.
    pub output_shape: Shape,
    /// Number of weights.
    pub params: usize,
}

/// A model: layers, weights and, after `compile`, the training configuration.
///
/// ```
/// use systole_data::Dataset;
/// use systole_ir::Literal;
/// use systole_nn::{layers::*, metric::Metric, optimizer::adam, Compile, Fit, Model};
/// let points = Literal::from_slice([4, 2], &[-1f32, 0., 1., 0., -1., 1., 1., 1.])?;
/// let labels = Literal::from_slice([4], &[0i32, 1, 0, 1])?;
/// let data = Dataset::from_tensor_slices([("points", points), ("label", labels)])?.batch(4);
///
/// let mut model = Model::sequential([dense(8).activation("relu"), dense(2).activation("softmax")]);
/// model.compile(Compile { optimizer: adam(0.1), metrics: vec![Metric::SparseCategoricalAccuracy], ..Default::default() })?;
/// let history = model.fit(&data, Fit { epochs: 20, ..Default::default() })?;
/// assert_eq!(history.last()["sparse_categorical_accuracy"], 1.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct Model {
    pub(crate) architecture: Arc<Architecture>,
    pub(crate) specs: Vec<WeightSpec>,
    pub(crate) rows: Vec<SummaryRow>,
    /// Output types, after building.
    pub(crate) outputs: Vec<TensorType>,
    pub(crate) state: TrainState,
    pub(crate) compiled: Option<CompiledSteps>,
    /// Prediction step of a model that is not compiled.
    predicts: Option<PredictStep>,
    pub(crate) seed: u64,
    /// Number of optimizer steps so far.
    pub(crate) step: u64,
    /// Number of finished epochs.
    pub(crate) epoch: usize,
    /// Current gradient accumulation phase, if the factor was changed during training.
    pub(crate) phase: Option<AccumulationPhase>,
    /// Names of the classes, for predictions and reports.
    pub class_names: Vec<String>,
    /// Notes stored in the model file (data scaling, dataset): free text by key.
    pub notes: std::collections::BTreeMap<String, String>,
}

impl Model {
    /// Creates a sequential model. Its input shape is inferred from the first data.
    pub fn sequential(layers: impl IntoIterator<Item = LayerSpec>) -> Model {
        Model::new(Architecture::sequential(layers))
    }

    /// Creates a functional model from `inputs` to its outputs, `&y` or `[&a, &b]`; see [`crate::input`].
    pub fn functional(inputs: &[Symbol], outputs: impl Outputs) -> Result<Model> {
        Ok(Model::new(Architecture::functional(inputs, outputs)?))
    }

    /// Creates a model with this architecture.
    pub fn new(architecture: Architecture) -> Model {
        Model {
            architecture: Arc::new(architecture),
            specs: Vec::new(),
            rows: Vec::new(),
            outputs: Vec::new(),
            state: TrainState::default(),
            compiled: None,
            predicts: None,
            seed: 0,
            step: 0,
            epoch: 0,
            phase: None,
            class_names: Vec::new(),
            notes: Default::default(),
        }
    }

    /// Architecture (layers without weights) of the model.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Whether the model's input shapes are known and its weights exist.
    pub fn is_built(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Type of the model's first output for one sample, after building.
    pub fn output_type(&self) -> Option<&TensorType> {
        self.outputs.first()
    }

    /// Types of the model's outputs for one sample; empty before building.
    pub fn output_types(&self) -> &[TensorType] {
        &self.outputs
    }

    /// Output shapes; empty before building.
    pub(crate) fn output_shapes(&self) -> Vec<Vec<usize>> {
        self.outputs.iter().map(|output| output.shape.to_vec()).collect()
    }

    /// Number of optimizer steps that the model was trained.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Number of epochs that the model was trained.
    pub fn epochs(&self) -> usize {
        self.epoch
    }

    /// Training configuration, if the model is compiled.
    pub fn compile_config(&self) -> Option<&Compile> {
        self.compiled.as_ref().map(|c| &c.config)
    }

    /// Infers all shapes from the input types (of one sample). Initial weights are generated when first read, so that a
    /// program that exceeds the memory is rejected before they are allocated.
    ///
    /// # Errors
    /// If a layer rejects its input shape; names the layer.
    pub fn build(&mut self, inputs: &[TensorType]) -> Result<()> {
        self.architecture.check()?;
        let mut architecture = with_inputs(&self.architecture, inputs)?;
        let quantize = self.compile_config().and_then(|c| c.quantize.clone());
        if let Some(quantize) = &quantize {
            architecture = architecture.without_quantizers().quantized(quantize)?;
        }
        let precision = self.compiled.as_ref().map_or(Precision::Float32, |c| c.config.precision);
        let built = infer(&architecture, precision)?;
        self.architecture = Arc::new(architecture);
        if let Some(config) = self.compile_config().filter(|_| quantize.is_some()).cloned() {
            // Existing steps were traced without quantization points.
            self.adopt_config(config)?;
        }
        self.predicts = None;
        self.rows = built.rows;
        self.outputs = built.outputs;
        let architecture = self.architecture.clone();
        self.adopt(built.specs, |spec, seed| match architecture.start(&spec.path) {
            Some(brought) if brought.ty().shape.dims() == spec.shape => Ok(brought.clone()),
            _ => Ok(drawn_when_read(spec.clone(), seed)),
        })
    }

    /// Returns the first output's type (of one sample) for inputs of these types, without building the model.
    ///
    /// # Errors
    /// If a layer rejects its input shape; names the layer.
    pub fn output_for(&self, inputs: &[TensorType]) -> Result<TensorType> {
        self.architecture.check()?;
        let mut outputs = infer(&with_inputs(&self.architecture, inputs)?, Precision::Float32)?.outputs;
        Ok(outputs.swap_remove(0))
    }

    /// Infers output shapes if the input types are known, without creating weights.
    pub(crate) fn build_shapes(&mut self, precision: Precision) -> Result<()> {
        let built = infer(&self.architecture, precision)?;
        self.rows = built.rows;
        self.outputs = built.outputs;
        Ok(())
    }

    /// Sets the weight specs and creates each weight with `make`.
    pub(crate) fn adopt(
        &mut self,
        specs: Vec<WeightSpec>,
        mut make: impl FnMut(&WeightSpec, u64) -> Result<Buffer>,
    ) -> Result<()> {
        let mut state =
            TrainState { metrics: std::mem::take(&mut self.state.metrics), ..TrainState::default() };
        for spec in &specs {
            let value = make(spec, self.seed)?;
            if self.trains(spec) { &mut state.trainable } else { &mut state.frozen }
                .insert(spec.path.clone(), value);
        }
        self.specs = specs;
        self.state = state;
        Ok(())
    }

    pub(crate) fn trains(&self, spec: &WeightSpec) -> bool {
        let (first, rest) = spec.path.split_once('/').unwrap_or((&spec.path, ""));
        let beside = self.architecture.networks.iter().find(|(name, _)| name == first);
        spec.trainable
            && match beside {
                Some((_, network)) => network.trains(rest),
                None => self.architecture.trains(&spec.path),
            }
    }

    /// Sets optimizer, loss, metrics and precision. Existing weights are kept.
    ///
    /// # Errors
    /// Reports the first invalid argument of a layer, the optimizer, the loss or a metric.
    pub fn compile(&mut self, mut config: Compile) -> Result<()> {
        self.architecture.check()?;
        if let Some(own) = config.train_step.as_ref().and_then(|step| step.configure_optimizers()) {
            config.optimizer = own;
        }
        config.optimizer.check()?;
        config.check_arguments()?;
        config.pruning.as_ref().map_or(Ok(()), |pruning| pruning.check())?;
        if config.pruning.is_some() && config.train_step.is_some() {
            return Err(err!(Unsupported, "pruning is not supported with a custom training step")
                .hint("remove either pruning or train_step"));
        }
        if config.soft_labels && config.loss.of_shares().is_none() {
            return Err(err!(Config, "{} does not support soft labels (class probabilities)", config.loss.name())
                .hint("use sparse_categorical_crossentropy or categorical_crossentropy, or train without mixup and cutmix"));
        }
        if !self.is_built() {
            self.seed = config.seed;
        }
        self.check_quantize(&config)?;
        self.adopt_config(config)?;
        self.state.optimizer = Params::new();
        self.requantize()
    }

    /// Devices that the model's steps run on; empty before [`compile`](Model::compile).
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.compiled.as_ref().map_or(Vec::new(), |c| c.backend.devices())
    }

    /// Switches to another strategy, on `backend` or the best registered one, and keeps weights and optimizer state.
    /// Model files hold whole arrays, so the number of devices may change.
    ///
    /// # Errors
    /// If the model is not compiled, or the mesh does not match the backend.
    pub fn set_strategy(&mut self, strategy: Strategy, backend: Option<Arc<dyn Backend>>) -> Result<()> {
        let config = self.compiled()?.config.clone();
        self.adopt_config(Compile { strategy, backend, ..config })
    }

    /// Recompiles the steps for the current layers and resets the optimizer state.
    pub(crate) fn recompile(&mut self) -> Result<()> {
        self.predicts = None;
        self.state.optimizer = Params::new();
        match self.compile_config().cloned() {
            Some(config) => self.adopt_config(config),
            None => Ok(()),
        }
    }

    pub(crate) fn adopt_config(&mut self, config: Compile) -> Result<()> {
        let backend = match &config.backend {
            Some(b) => b.clone(),
            None => backend("auto")?,
        };
        let backend = config.strategy.on(backend)?;
        let a = &self.architecture;
        let goals = OutputLosses::of(a, &config)?;
        self.compiled = Some(CompiledSteps {
            train: CompiledTrainStep::new(a, &config, &goals, &backend),
            evaluate: EvaluateStep::new(a, &config, &goals, &backend),
            predict: PredictStep::new(a, config.precision, &backend),
            backend,
            goals,
            config,
        });
        Ok(())
    }

    pub(crate) fn compiled(&self) -> Result<&CompiledSteps> {
        self.compiled.as_ref().ok_or_else(|| {
            err!(Config, "the model is not compiled")
                .hint("call compile(Compile { optimizer, loss, metrics, ..default() }) first")
        })
    }

    /// Builds the model from the first data if necessary, and creates the optimizer slots.
    pub(crate) fn ready_for(&mut self, batch: &Batch) -> Result<()> {
        self.build_for(batch)?;
        self.check_step_batch(batch)?;
        if self.state.optimizer.is_empty() {
            self.check_pruning()?;
            let slots = self.compiled()?.train.optimizer_state(&self.state.trainable)?;
            self.state.optimizer = slots;
        }
        Ok(())
    }

    /// Builds the model from the first batch, if the batch determines the input types.
    pub(crate) fn build_for(&mut self, batch: &Batch) -> Result<()> {
        if self.is_built() {
            return Ok(());
        }
        if !self.has_own_fields() {
            return self.build(&batch.sample_types()?);
        }
        let known: Option<Vec<TensorType>> = self.architecture.inputs.iter().map(|i| i.ty.clone()).collect();
        let types = known.ok_or_else(|| {
            err!(Config, "the model's shapes are not known yet")
                .because(
                    "the model's custom training step reads its own fields, which do not determine the input \
                    types",
                )
                .hint("build the model with the types of one sample: model.build(&[…])")
        })?;
        self.build(&types)
    }

    /// Whether steps read other data fields than the model's inputs.
    fn has_own_fields(&self) -> bool {
        let step = self.compiled.as_ref().and_then(|c| c.config.train_step.as_ref());
        step.is_some_and(|step| !step.fields().is_empty())
    }

    /// Rejects a training or evaluation batch that does not match the model.
    pub(crate) fn check_step_batch(&self, batch: &Batch) -> Result<()> {
        if self.has_own_fields() { Ok(()) } else { self.check_batch(batch) }
    }

    pub(crate) fn check_batch(&self, batch: &Batch) -> Result<()> {
        for (spec, ty) in self.architecture.inputs.iter().zip(batch.sample_types()?) {
            check_input(spec, &ty)?;
        }
        self.check_ids(batch)
    }

    /// Input names, to extract batches.
    pub(crate) fn input_names(&self) -> Vec<String> {
        self.architecture.inputs.iter().map(|i| i.name.clone()).collect()
    }

    /// Fields of a training or evaluation batch.
    pub(crate) fn batch_fields(&self) -> BatchFields {
        let outputs = self.compiled.as_ref().map_or(Vec::new(), |c| c.goals.label_names());
        match self.compiled.as_ref().and_then(|c| c.config.train_step.as_ref()) {
            Some(step) if !step.fields().is_empty() => {
                BatchFields { inputs: step.fields(), outputs, ..BatchFields::default() }
            }
            step => {
                let (inputs, is_own) = (self.input_names(), step.is_some());
                BatchFields { inputs, labelled: !is_own, outputs, are_rescaled_later: !is_own }
            }
        }
    }

    /// Extracts a batch from a dataset element.
    pub(crate) fn batch_of(&self, sample: &Sample) -> Result<Batch> {
        Batch::of_fields(sample, &self.batch_fields())
    }

    /// Restores an earlier state and step number.
    pub(crate) fn put_back(&mut self, state: TrainState, step: u64) {
        (self.state, self.step) = (state, step);
    }

    /// Learning rate, step and seed of the next step.
    pub(crate) fn controls(&self) -> (Buffer, Buffer, Buffer) {
        let Some(c) = &self.compiled else {
            return controls(Literal::scalar(DType::F32, 0.0), self.step, self.seed);
        };
        let (values, seed) = (c.config.optimizer.values_at(self.step), c.config.seed);
        match self.phase {
            None => controls(values, self.step, seed),
            Some(phase) => controls(values, phase.step(self.step), phase.seed(seed)),
        }
    }

    /// Computes loss and metrics over `data` (batches), in inference mode.
    ///
    /// # Errors
    /// If the model is not compiled, or the data does not match it.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Logs> {
        self.evaluate_steps(data, None)
    }

    /// Like [`Model::evaluate`], over at most `steps` batches.
    pub fn evaluate_steps(&mut self, data: &Dataset, steps: Option<usize>) -> Result<Logs> {
        check_end(data, steps, "the evaluation", "limit the data (Dataset::take, evaluate_steps)")?;
        let mut metrics = None;
        for sample in data.iter().take(steps.unwrap_or(usize::MAX)) {
            let batch = self.batch_of(&sample?)?;
            self.build_for(&batch)?;
            self.check_step_batch(&batch)?;
            let evaluate = &self.compiled()?.evaluate;
            let sums = metrics.unwrap_or_else(|| evaluate.metrics.zeros(&self.output_shapes()));
            metrics = Some(evaluate.run(&self.state, sums, &batch)?);
        }
        let Some(metrics) = metrics else {
            return Err(err!(Data, "cannot evaluate: the dataset yields no batch")
                .hint("check the dataset's take/skip/filter stages"));
        };
        self.compiled()?.evaluate.metrics.logs(&metrics)
    }

    /// Returns the first output for all samples of `data` (batches), concatenated: `→ f32[N, …]`.
    pub fn predict(&mut self, data: &Dataset) -> Result<Literal> {
        Ok(self.predict_all(data)?.swap_remove(0).1)
    }

    /// Returns all outputs by name for all samples of `data` (batches), concatenated: `→ f32[N, …]` each.
    pub fn predict_all(&mut self, data: &Dataset) -> Result<Vec<(String, Literal)>> {
        check_end(data, None, "the prediction", "limit the data (Dataset::take)")?;
        let names: Vec<String> = self.architecture.output_names().into_iter().map(str::to_string).collect();
        let mut parts: Vec<Vec<Literal>> = vec![Vec::new(); names.len()];
        for sample in data.iter() {
            let outputs = self.predict_sample(&sample?)?;
            parts.iter_mut().zip(outputs).for_each(|(parts, output)| parts.push(output));
        }
        names.into_iter().zip(parts).map(|(name, parts)| Ok((name, join(&parts)?))).collect()
    }

    /// Returns the first output for one batch: `x: T[B, …] → f32[B, …]`.
    pub fn predict_on_batch(&mut self, x: &Literal) -> Result<Literal> {
        let name = self.input_names().into_iter().next().unwrap_or_default();
        self.predict_on_sample(&Sample::new([(name, x.clone())]))
    }

    /// Returns the first output for one batch whose fields are the inputs by name: `→ f32[B, …]`.
    pub fn predict_on_sample(&mut self, batch: &Sample) -> Result<Literal> {
        Ok(self.predict_sample(batch)?.swap_remove(0))
    }

    /// Makes a built model accept token sequences `I[B, length]` of another length for prediction, at most that of its
    /// position embedding.
    pub fn set_sequence_length(&mut self, length: usize) {
        let inputs = &mut Arc::make_mut(&mut self.architecture).inputs;
        let types = inputs.iter_mut().filter_map(|input| input.ty.as_mut());
        for ty in types.filter(|ty| ty.dtype.is_int() && ty.rank() == 1) {
            *ty = ty.with_shape([length]);
        }
    }

    fn predict_sample(&mut self, sample: &Sample) -> Result<Vec<Literal>> {
        let inputs = self.input_names();
        let fields = BatchFields { inputs, are_rescaled_later: true, ..BatchFields::default() };
        let batch = Batch::inputs_beside(sample, &fields)?;
        if !self.is_built() {
            self.build(&batch.sample_types()?)?;
        }
        self.check_batch(&batch)?;
        let inputs = batch.buffers().0;
        let step = match (&self.compiled, &self.predicts) {
            (Some(c), _) => &c.predict,
            (None, Some(step)) => step,
            (None, None) => {
                let step = PredictStep::new(&self.architecture, Precision::Float32, &backend("auto")?);
                self.predicts.insert(step)
            }
        };
        let outputs = step.run(&self.state, inputs)?;
        outputs.into_iter().map(|y| Ok(y.to_literal()?.convert(DType::F32))).collect()
    }

    /// Returns a weight by path (`conv2d/kernel`). A collective operation of all hosts if the weight is sharded over
    /// several.
    pub fn weight(&self, path: &str) -> Result<Literal> {
        let found = self.state.trainable.get(path).or_else(|| self.state.frozen.get(path));
        self.whole(found.ok_or_else(|| self.no_weight(path))?)
    }

    /// Replaces a weight of the model by path.
    pub fn set_weight(&mut self, path: &str, value: Literal) -> Result<()> {
        let missing = self.no_weight(path);
        let group = if self.state.trainable.get(path).is_some() {
            &mut self.state.trainable
        } else {
            &mut self.state.frozen
        };
        let Some(old) = group.get(path) else { return Err(missing) };
        if old.ty() != value.ty() {
            return Err(err!(Config, "weight {path} has type {}, got {}", old.ty(), value.ty()));
        }
        group.insert(path, value.into());
        Ok(())
    }

    /// Like [`Model::set_weight`], but copies another model's weight of the same type; a quantized weight stays
    /// quantized.
    pub(crate) fn take_weight(&mut self, path: &str, from: &Model) -> Result<()> {
        let theirs =
            from.weights().into_iter().find(|(name, _)| *name == path).map(|(_, value)| value.clone());
        let Some(packed) = theirs.filter(|value| value.origin::<QuantizedWeight>().is_some()) else {
            return self.set_weight(path, from.weight(path)?);
        };
        let is_trained = self.state.trainable.get(path).is_some();
        let group = if is_trained { &mut self.state.trainable } else { &mut self.state.frozen };
        group.insert(path, packed);
        Ok(())
    }

    /// Paths and values of all weights, in the order in which layers requested them.
    pub fn weights(&self) -> Vec<(&str, &Buffer)> {
        let find = |p: &str| self.state.trainable.get(p).or_else(|| self.state.frozen.get(p));
        self.specs.iter().filter_map(|s| Some((s.path.as_str(), find(&s.path)?))).collect()
    }

    fn no_weight(&self, path: &str) -> Error {
        let all: Vec<&str> = self.specs.iter().map(|s| s.path.as_str()).collect();
        err!(Config, "unknown weight {path}").hint(if all.is_empty() {
            "build the model first".into()
        } else {
            format!("use one of its weights: {}", all.join(", "))
        })
    }

    /// Sets the learning rate, a constant or a schedule, without recompiling.
    pub fn set_learning_rate(&mut self, learning_rate: impl Into<Schedule>) {
        if let Some(c) = &mut self.compiled {
            c.config.optimizer.learning_rate = learning_rate.into();
        }
    }

    /// Learning rate of the next step.
    pub fn learning_rate(&self) -> f64 {
        self.compiled.as_ref().map_or(0.0, |c| c.config.optimizer.rate_at(self.step))
    }

    /// Returns a table of layers, output shapes and weight counts. A sequential model has shapes only after building or
    /// seeing data.
    ///
    /// ```
    /// use systole_nn::{input, layers::dense, Model};
    /// let x = input("x", [784]);
    /// let y = x.apply(dense(10));
    /// assert!(Model::functional(&[x], &y)?.summary().contains("Weights: 7,850"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn summary(&self) -> String {
        if self.is_built() {
            return table_of(
                &self.rows,
                [self.state.trainable.values(), self.state.frozen.values()]
                    .map(|group| group.map(|b| b.ty().elements()).sum()),
                self.weights().iter().map(|(_, b)| b.ty().bytes()).sum(),
            );
        }
        if self.architecture.inputs.iter().any(|i| i.ty.is_none()) {
            return "The model has no shapes yet: fit, evaluate or build it first.\n".into();
        }
        match self.architecture.check().and_then(|()| infer(&self.architecture, Precision::Float32)) {
            Ok(shapes) => {
                let count = |trains: bool| {
                    let of = shapes.specs.iter().filter(|s| self.trains(s) == trains);
                    of.map(|s| s.shape.iter().product::<usize>()).sum()
                };
                table_of(&shapes.rows, [count(true), count(false)], 4 * (count(true) + count(false)))
            }
            Err(e) => format!("The model has no shapes: {e}\n"),
        }
    }

    /// Rows of the model's summary.
    pub fn summary_rows(&self) -> &[SummaryRow] {
        &self.rows
    }

    /// Returns the graph of the forward pass for this batch size.
    pub fn forward_graph(&self, batch_size: usize) -> Result<Arc<Graph>> {
        let precision = self.compiled.as_ref().map_or(Precision::Float32, |c| c.config.precision);
        let step = PredictStep::new(&self.architecture, precision, &backend("ref")?);
        let inputs = self.architecture.inputs.iter().filter_map(|i| i.ty.as_ref());
        let inputs = inputs.map(|t| Literal::zeros(with_batch(t, batch_size))).collect();
        step.trace(&self.state, &Batch { inputs, ..Batch::default() })
    }

    /// Returns the graph of the forward pass in float32 for this batch size, as exporters write it. Its parameters are
    /// the weights in the order of [`Model::weights`] and the inputs, images as f32.
    ///
    /// # Errors
    /// If the model has no shapes yet.
    pub fn inference_graph(&self, batch_size: usize) -> Result<Arc<Graph>> {
        let g = GraphBuilder::new("main");
        let weights = self.weights();
        let weights = weights.iter().map(|(name, w)| (name.to_string(), g.parameter(w.ty().clone(), name)));
        let mut cx = Cx::new(&g, weights.collect(), Precision::Float32);
        let mut inputs = Vec::new();
        for spec in &self.architecture.inputs {
            let ty = spec.ty.as_ref().ok_or_else(|| {
                err!(Config, "the shape of input {} is unknown", spec.name)
                    .hint("build the model, or load a trained model")
            })?;
            let dtype = if ty.dtype.is_float() || ty.dtype == DType::U8 { DType::F32 } else { ty.dtype };
            let ty = with_batch(ty, batch_size);
            inputs.push(g.parameter(TensorType::new(dtype, ty.shape), &spec.name));
        }
        g.finish(&self.architecture.call_all(&mut cx, &inputs))
    }

    /// Returns the graph of a training step (forward, loss, backward, update, metrics) for this batch size.
    pub fn train_graph(&mut self, batch_size: usize) -> Result<Arc<Graph>> {
        let loops = self.compiled()?.train.loops();
        Ok(self.train_program(batch_size, loops)?.0)
    }

    /// Like [`Model::train_graph`], and also returns the roles of the graph's parameters and results. With `loops`,
    /// repeated identical layers become loops over their stacked weights, for compilers that are slow on long programs:
    /// the same arithmetic, with a program length that does not grow with the model's depth.
    pub fn train_program(&mut self, batch_size: usize, loops: bool) -> Result<(Arc<Graph>, ValueRoles)> {
        let batch = self.example_batch(batch_size)?;
        self.ready_for(&batch)?;
        let metrics = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        self.compiled()?.train.trace(&self.state, metrics, &batch, self.controls(), loops)
    }

    /// Compiles the training step for this batch size without running it; the executable's report contains the memory
    /// use.
    ///
    /// # Errors
    /// If the model is not compiled or has no shapes, or the step cannot be compiled because it exceeds the memory.
    pub fn train_executable(&mut self, batch_size: usize) -> Result<Arc<dyn Executable>> {
        let batch = self.example_batch(batch_size)?;
        self.ready_for(&batch)?;
        self.state.metrics = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        self.compiled()?.train.prepare(&self.state, &batch.buffers(), self.controls())
    }

    /// Returns the argument types of a step with this batch size: its fields, and the label of its first output, whose
    /// shape depends on the loss.
    ///
    /// # Errors
    /// If the model has no shapes yet.
    pub fn step_types(&self, batch_size: usize) -> Result<(Vec<TensorType>, TensorType)> {
        let output = self.output_type().ok_or_else(|| {
            err!(Config, "the model's shapes are not known yet")
                .hint("build the model, or load a trained model")
        })?;
        let own = self.compiled.as_ref().and_then(|c| c.config.train_step.as_ref());
        let all = |types: &[TensorType], n: usize| types.iter().map(|t| with_batch(t, n)).collect();
        if let Some((fields, label)) = own.and_then(|step| step.sample_types()) {
            let n = batch_size * own.map_or(1, |step| step.batches());
            return Ok((all(&fields, n), with_batch(&label, n)));
        }
        let inputs: Vec<TensorType> = self.architecture.inputs.iter().filter_map(|i| i.ty.clone()).collect();
        let label = self.label_types().into_iter().next().unwrap_or_else(|| output.clone());
        Ok((all(&inputs, batch_size), with_batch(&label, batch_size)))
    }

    /// Label types of one sample for all outputs with labels, as their losses expect them.
    fn label_types(&self) -> Vec<TensorType> {
        let goals = self.compiled.as_ref().map_or(&[][..], |c| &c.goals.all);
        let of_goals = goals.iter().filter_map(|goal| {
            let output = self.outputs.get(goal.output)?;
            let loss = goal.soft.as_ref().or(goal.loss.as_ref());
            Some(loss.map_or_else(|| output.clone(), |loss| loss.label(output)))
        });
        let labels: Vec<TensorType> = of_goals.collect();
        if labels.is_empty() { self.own_label().into_iter().collect() } else { labels }
    }

    /// Label type of one sample for a custom training step, as the loss expects it.
    fn own_label(&self) -> Option<TensorType> {
        let output = self.output_type()?;
        Some(self.compile_config().map_or_else(|| output.clone(), |config| config.loss.label(output)))
    }

    /// Creates a batch of zeros with the types of a step.
    fn example_batch(&self, batch_size: usize) -> Result<Batch> {
        let (inputs, label) = self.step_types(batch_size)?;
        let more = self.label_types().into_iter().skip(1);
        Ok(Batch {
            inputs: inputs.into_iter().map(Literal::zeros).collect(),
            label: Some(Literal::zeros(label)),
            more: more.map(|ty| (Literal::zeros(with_batch(&ty, batch_size)), None)).collect(),
            ..Batch::default()
        })
    }
}

/// Adds the batch dimension to a sample type.
fn with_batch(sample: &TensorType, batch_size: usize) -> TensorType {
    sample.with_shape(std::iter::once(batch_size).chain(sample.shape.iter().copied()).collect::<Shape>())
}

/// Formats the summary from the rows, the numbers of trainable and frozen weights, and their size in bytes.
fn table_of(rows: &[SummaryRow], [trainable, frozen]: [usize; 2], bytes: usize) -> String {
    let mut table = vec![["Layer (class)".to_string(), "Output shape".into(), "Params".into()]];
    for row in rows {
        let shape: Vec<String> =
            std::iter::once("None".into()).chain(row.output_shape.iter().map(|d| d.to_string())).collect();
        table.push([row.layer.clone(), format!("({})", shape.join(", ")), grouped(row.params as u64)]);
    }
    let width = |k: usize| table.iter().map(|r| r[k].chars().count()).max().unwrap_or(0);
    let (a, b, c) = (width(0), width(1), width(2));
    let mut out = String::new();
    for (i, row) in table.iter().enumerate() {
        let _ = writeln!(out, "{:<a$}  {:<b$}  {:>c$}", row[0], row[1], row[2]);
        if i == 0 {
            let _ = writeln!(out, "{}", "-".repeat(a + b + c + 4));
        }
    }
    let _ = writeln!(out, "{}", "-".repeat(a + b + c + 4));
    let all = trainable + frozen;
    let _ = writeln!(out, "Weights: {} ({:.2} MB)", grouped(all as u64), bytes as f64 * 1e-6);
    let (trainable, frozen) = (grouped(trainable as u64), grouped(frozen as u64));
    let _ = writeln!(out, "Trainable: {trainable}; not trainable: {frozen}");
    out
}

/// Uses the model, with its current weights, as a layer of another model, as in Keras. The weights are copies under the
/// layer's name and are not shared with this model.
///
/// ```
/// use systole_ir::{DType::F32, Literal, TensorType};
/// use systole_nn::{Model, input, layers::{LayerSpec, dense}};
/// let mut body = Model::sequential([dense(4).name("a")]);
/// body.build(&[TensorType::new(F32, [3])])?;
/// let x = input("x", [3]);
/// let y = x.apply(LayerSpec::from(&body).name("body").trainable(false)).apply(dense(2));
/// let mut model = Model::functional(&[x.clone()], &y)?;
/// model.build(&[TensorType::new(F32, [3])])?;
/// assert_eq!(model.weight("body/a/kernel")?, body.weight("a/kernel")?);
/// # Ok::<(), systole_ir::Error>(())
/// ```
impl From<&Model> for LayerSpec {
    #[track_caller]
    fn from(model: &Model) -> LayerSpec {
        let weights = model.weights().into_iter().map(|(path, value)| (path.to_string(), value.clone()));
        LayerSpec::of_model((*model.architecture).clone(), weights.collect())
    }
}

/// Returns a lazy buffer of a weight's initial values, generated when first read.
pub(crate) fn drawn_when_read(spec: WeightSpec, seed: u64) -> Buffer {
    let ty = TensorType::new(spec.dtype, &spec.shape[..]);
    Buffer::lazy(ty, move || spec.initializer.make(&spec.shape, seed, &spec.path).convert(spec.dtype))
}

/// Fills in the input types (of one sample) of an architecture.
fn with_inputs(architecture: &Architecture, inputs: &[TensorType]) -> Result<Architecture> {
    let mut architecture = architecture.clone();
    if inputs.len() != architecture.inputs.len() {
        let names: Vec<&str> = architecture.inputs.iter().map(|i| i.name.as_str()).collect();
        return Err(err!(
            Config,
            "the model has {} inputs ({}), the data has {}",
            names.len(),
            names.join(", "),
            inputs.len()
        ));
    }
    for (spec, ty) in architecture.inputs.iter_mut().zip(inputs) {
        check_input(spec, ty)?;
        spec.ty.get_or_insert(ty.clone());
    }
    Ok(architecture)
}

struct InferredModel {
    specs: Vec<WeightSpec>,
    rows: Vec<SummaryRow>,
    outputs: Vec<TensorType>,
}

/// Traces the model on a batch of two to collect weights and output shapes.
pub(crate) fn infer_specs(architecture: &Architecture, precision: Precision) -> Result<Vec<WeightSpec>> {
    Ok(infer(architecture, precision)?.specs)
}

fn infer(architecture: &Architecture, precision: Precision) -> Result<InferredModel> {
    let g = GraphBuilder::new("build");
    let mut cx = Cx::collecting(&g, precision);
    let mut shapes = Vec::new();
    let outputs = traced(architecture, &mut cx, "", &mut shapes)?;
    for (name, network) in &architecture.networks {
        cx.scope(name, |cx| traced(network, cx, &format!("{name}/"), &mut shapes))
            .at(|| format!("network {name}"))?;
    }
    g.finish(&outputs).at(|| "building the model".into())?;
    let specs = cx.into_specs();
    let rows = shapes
        .into_iter()
        .map(|(name, class, ty)| {
            let prefix = format!("{name}/");
            let own = specs.iter().filter(|s| s.path.starts_with(&prefix));
            let params = own.map(|s| s.shape.iter().product::<usize>()).sum();
            SummaryRow { layer: format!("{name} ({class})"), output_shape: without_batch(&ty).shape, params }
        })
        .collect();
    Ok(InferredModel { specs, rows, outputs: outputs.iter().map(|y| without_batch(y.ty())).collect() })
}

/// Traces a network for a batch of two. Returns its outputs and adds each layer's name, class and output to `shapes`.
fn traced(
    architecture: &Architecture,
    cx: &mut Cx,
    prefix: &str,
    shapes: &mut Vec<(String, &'static str, TensorType)>,
) -> Result<Vec<Tensor>> {
    let mut inputs = Vec::new();
    for spec in &architecture.inputs {
        let Some(ty) = &spec.ty else {
            return Err(err!(Config, "the shape of input {} is unknown", spec.name)
                .hint("fit the model on data, or build it with the type of one sample"));
        };
        let shape: Shape = std::iter::once(2).chain(ty.shape.iter().copied()).collect();
        inputs.push(cx.builder().parameter(ty.with_shape(shape), &format!("{prefix}{}", spec.name)));
    }
    Ok(architecture.call_with(cx, &inputs, |node, y| {
        shapes.push((format!("{prefix}{}", node.name), node.layer.class_name(), y.ty().clone()));
    }))
}

fn check_input(spec: &InputSpec, ty: &TensorType) -> Result<()> {
    match &spec.ty {
        Some(known) if known.shape != ty.shape => Err(err!(
            Data,
            "samples of input {} have shape {}, but the model expects {}",
            spec.name,
            ty.shape,
            known.shape
        )
        .hint("resize or reshape the data in the pipeline, or build the model for this shape")),
        _ => Ok(()),
    }
}

/// Concatenates output batches along the first dimension.
fn join(parts: &[Literal]) -> Result<Literal> {
    let first = parts.first().ok_or_else(|| err!(Data, "cannot predict: the dataset yields no batch"))?;
    let rows = parts.iter().map(|p| p.shape()[0]).sum::<usize>();
    let mut dims = first.shape().to_vec();
    dims[0] = rows;
    let bytes: Vec<u8> = parts.iter().flat_map(|p| p.bytes().iter().copied()).collect();
    Literal::from_bytes(first.ty().with_shape(dims), &bytes)
}

/// Formats a number with thousands separators: `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a count with a pluralized noun: `1 epoch`, `1,200 epochs`.
pub fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(n), if n == 1 { "" } else { "s" })
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layers: Vec<&str> = self.architecture.nodes.iter().map(|p| p.name.as_str()).collect();
        let output = |source| match source {
            NodeInput::Input(i) => format!("input {i}"),
            NodeInput::Layer(i) => layers[i].to_string(),
        };
        let outputs: Vec<String> = self.architecture.outputs().map(output).collect();
        write!(f, "Model({} → {})", layers.join(", "), outputs.join(", "))
    }
}
