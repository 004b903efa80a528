//! [`Compile`]: training configuration of a model; [`TrainState`]: arrays that a training step reads and replaces.

use crate::layer::Precision;
use crate::loss::Loss;
use crate::metric::Metric;
use crate::model::output_losses::numbered;
use crate::model::quantize_options::Quantize;
use crate::model::sparsity::Pruning;
use crate::model::train_step::TrainStep;
use crate::optimizer::Optimizer;
use crate::setters::with_defaults;
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_dist::Strategy;
use systole_runtime::{Backend, Buffer, Params, ReadyEvent};

with_defaults! {
    /// Training configuration: the arguments of Keras's `compile`. Keras's dicts for models with several outputs are
    /// separate fields here.
    ///
    /// ```
    /// use systole_data::Dataset;
    /// use systole_ir::Literal;
    /// use systole_nn::{input, layers::dense, loss::*, optimizer::adam, Compile, Fit, Model};
    /// let x = input("x", [3]);
    /// let body = x.apply(dense(8).activation("relu"));
    /// let class = body.apply(dense(2).activation("softmax").name("class"));
    /// let size = body.apply(dense(1).name("size"));
    /// let mut model = Model::functional(&[x], [&class, &size])?;
    /// model.compile(Compile {
    ///     optimizer: adam(0.01),
    ///     losses: [("class".into(), sparse_categorical_crossentropy()), ("size".into(), mean_squared_error())].into(),
    ///     loss_weights: [("size".into(), 0.1)].into(),
    ///     output_metrics: [("size".into(), vec![mean_absolute_error().into()])].into(),
    ///     ..Default::default()
    /// })?;
    /// // Fields of the data by the names of inputs and outputs.
    /// let data = Dataset::from_tensor_slices([
    ///     ("x", Literal::from_slice([4, 3], &[1f32; 12])?),
    ///     ("class", Literal::from_slice([4], &[0i32, 1, 0, 1])?),
    ///     ("size", Literal::from_slice([4], &[1f32, 2., 3., 4.])?),
    /// ])?.batch(2);
    /// let history = model.fit(&data, Fit { epochs: 2, ..Default::default() })?;
    /// assert!(history.last().get("class_loss").is_some() && history.last().get("size_mean_absolute_error").is_some());
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[derive(Clone)]
    pub struct Compile {
        /// Optimizer. Keras's default: RMSprop.
        pub optimizer: Optimizer = crate::optimizer::rmsprop(1e-3),
        /// Loss.
        pub loss: Loss = Loss::SparseCategoricalCrossentropy { from_logits: false, ignore_class: None },
        /// Metrics that ignore sample and class weights.
        pub metrics: Vec<Metric> = Vec::new(),
        /// Metrics weighted by sample and class weights.
        pub weighted_metrics: Vec<Metric> = Vec::new(),
        /// Precision policy.
        pub precision: Precision = Precision::Float32,
        /// Seed of initial weights and of dropout.
        pub seed: u64 = 0,
        /// Backend; `None` selects the best registered one.
        pub backend: Option<Arc<dyn Backend>> = None,
        /// How steps are distributed over the backend's devices.
        pub strategy: Strategy = Strategy::default(),
        /// Losses by output name, instead of `loss`. An output that is not listed has no loss. Empty: `loss` applies to
        /// every output.
        pub losses: BTreeMap<String, Loss> = BTreeMap::new(),
        /// Loss weights by output name; 1 for outputs that are not listed.
        pub loss_weights: BTreeMap<String, f64> = BTreeMap::new(),
        /// Metrics by output name.
        pub output_metrics: BTreeMap<String, Vec<Metric>> = BTreeMap::new(),
        /// Weighted metrics by output name.
        pub output_weighted_metrics: BTreeMap<String, Vec<Metric>> = BTreeMap::new(),
        /// Whether training labels are class probabilities (soft labels), `f32[B, …, C]`, as produced by mixup and cutmix.
        ///
        /// The loss is averaged over the classes by probability, and metrics use the most probable class. Validation labels
        /// are as the loss expects them.
        pub soft_labels: bool = false,
        /// Custom training step, instead of loss and metrics.
        pub train_step: Option<Arc<dyn TrainStep>> = None,
        /// Weight pruning during training.
        pub pruning: Option<Pruning> = None,
        /// Quantization-aware training; `None` trains in float.
        pub quantize: Option<Quantize> = None,
    }
}

impl Compile {
    /// Returns the names in the logs of `metrics` and then `weighted_metrics` for a model with one output.
    ///
    /// Names are unique: a weighted metric whose name is taken is `weighted_…`, others are numbered.
    ///
    /// ```
    /// use systole_nn::{Compile, loss::mean_squared_error, metric::recall};
    /// let metrics = || vec![mean_squared_error().into(), recall(), recall()];
    /// let compile = Compile { metrics: metrics(), weighted_metrics: metrics(), ..Compile::default() };
    /// let names = compile.metric_names();
    /// assert_eq!(names[..3], ["mean_squared_error", "recall", "recall_1"]);
    /// assert_eq!(names[3..], ["weighted_mean_squared_error", "weighted_recall", "weighted_recall_1"]);
    /// ```
    pub fn metric_names(&self) -> Vec<String> {
        let plain = self.metrics.iter().map(|m| (String::new(), m.name(), false));
        numbered(plain.chain(self.weighted_metrics.iter().map(|m| (String::new(), m.name(), true))))
    }
}

/// Arrays that a training step reads and replaces. They are donated to the step and replaced by its results.
#[derive(Clone, Default, Debug)]
pub struct TrainState {
    /// Trainable weights.
    pub trainable: Params<Buffer>,
    /// Other weights: moving statistics, frozen layers.
    pub frozen: Params<Buffer>,
    /// Optimizer slots.
    pub optimizer: Params<Buffer>,
    /// Accumulators of loss and metrics for the current epoch.
    pub metrics: Params<Buffer>,
}

impl TrainState {
    /// Returns the event of the step that produced this state, if it may still be running.
    pub(crate) fn ready_event(&self) -> Option<ReadyEvent> {
        self.metrics.values().next()?.ready_event()
    }
}
