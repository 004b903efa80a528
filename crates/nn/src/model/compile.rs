//! [`Compile`]: how a model is trained; [`TrainState`]: what a training step reads and replaces.

use crate::layer::Precision;
use crate::loss::Loss;
use crate::metric::Metric;
use crate::model::output_losses::numbered;
use crate::model::quantize_options::Quantize;
use crate::model::sparsity::Pruning;
use crate::model::train_step::TrainStep;
use crate::optimizer::Optimizer;
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_dist::Strategy;
use systole_runtime::{Backend, Buffer, Params, ReadyEvent};

/// How a model is trained: the arguments of Keras's `compile`. What Keras takes as dicts for models of several outputs has fields
/// of its own here.
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
    /// The optimizer. Keras's default: RMSprop.
    pub optimizer: Optimizer,
    /// The loss.
    pub loss: Loss,
    /// Metrics over samples, each weighing the same.
    pub metrics: Vec<Metric>,
    /// Metrics that sample and class weights weigh.
    pub weighted_metrics: Vec<Metric>,
    /// Element types.
    pub precision: Precision,
    /// Seed of initial weights and of dropout.
    pub seed: u64,
    /// The backend; the best registered one when `None`.
    pub backend: Option<Arc<dyn Backend>>,
    /// How steps are split over the backend's devices.
    pub strategy: Strategy,
    /// Losses by the names of the model's outputs, in the place of `loss`. An output that is not named has none. Empty: `loss` for
    /// each output.
    pub losses: BTreeMap<String, Loss>,
    /// How much the loss of an output counts, by its name; 1 where it is not named.
    pub loss_weights: BTreeMap<String, f64>,
    /// Metrics by the names of outputs.
    pub output_metrics: BTreeMap<String, Vec<Metric>>,
    /// Metrics by the names of outputs that weights of samples weigh.
    pub output_weighted_metrics: BTreeMap<String, Vec<Metric>>,
    /// Whether the labels of training are shares of classes, `f32[B, …, C]`, as mixup and cutmix make them: the loss is that of
    /// the classes, each by its share, and metrics see the greatest. Validation has labels as the loss takes them.
    pub soft_labels: bool,
    /// A step of your own, in the place of loss and metrics.
    pub train_step: Option<Arc<dyn TrainStep>>,
    /// Which weights become zero while the model trains.
    pub pruning: Option<Pruning>,
    /// How the model is trained for eight bits. None: as it is.
    pub quantize: Option<Quantize>,
}

impl Default for Compile {
    fn default() -> Compile {
        Compile {
            optimizer: crate::optimizer::rmsprop(1e-3),
            loss: Loss::SparseCategoricalCrossentropy { from_logits: false, ignore_class: None },
            metrics: Vec::new(),
            weighted_metrics: Vec::new(),
            losses: BTreeMap::new(),
            loss_weights: BTreeMap::new(),
            output_metrics: BTreeMap::new(),
            output_weighted_metrics: BTreeMap::new(),
            precision: Precision::Float32,
            seed: 0,
            backend: None,
            strategy: Strategy::default(),
            soft_labels: false,
            train_step: None,
            pruning: None,
            quantize: None,
        }
    }
}

impl Compile {
    /// The names by which `metrics` and then `weighted_metrics` of a model with one output are logged, each once: a weighted one whose name is taken is
    /// `weighted_…`, others are numbered.
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

/// Everything that a training step reads and replaces. Donated to the step and put back from its results.
#[derive(Clone, Default, Debug)]
pub struct TrainState {
    /// Weights that the optimizer changes.
    pub trainable: Params<Buffer>,
    /// Other weights: moving statistics, frozen layers.
    pub frozen: Params<Buffer>,
    /// The optimizer's slots.
    pub optimizer: Params<Buffer>,
    /// Accumulators of loss and metrics over the current epoch.
    pub metrics: Params<Buffer>,
}

impl TrainState {
    /// The step that this state comes from, where it may be under way still.
    pub(crate) fn ready_event(&self) -> Option<ReadyEvent> {
        self.metrics.values().next()?.ready_event()
    }
}
