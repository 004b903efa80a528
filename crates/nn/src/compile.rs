//! [`Compile`]: how a model is trained; [`TrainState`]: what a training step reads and replaces.

use crate::layer::Precision;
use crate::loss::Loss;
use crate::metric::Metric;
use crate::optimizer::Optimizer;
use crate::train_step::TrainStep;
use std::sync::Arc;
use systole_dist::Strategy;
use systole_runtime::{Backend, Buffer, Params, ReadyEvent};

/// How a model is trained: the arguments of Keras's `compile`.
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
    /// Whether the labels of training are shares of classes, `f32[B, …, C]`, as mixup and cutmix make them: the loss is that of
    /// the classes, each by its share, and metrics see the greatest. Validation has labels as the loss takes them.
    pub soft_labels: bool,
    /// A step of your own, in the place of loss and metrics.
    pub train_step: Option<Arc<dyn TrainStep>>,
}

impl Default for Compile {
    fn default() -> Compile {
        Compile {
            optimizer: crate::optimizer::rmsprop(1e-3),
            loss: Loss::SparseCategoricalCrossentropy { from_logits: false, ignore_class: None },
            metrics: Vec::new(),
            weighted_metrics: Vec::new(),
            precision: Precision::Float32,
            seed: 0,
            backend: None,
            strategy: Strategy::default(),
            soft_labels: false,
            train_step: None,
        }
    }
}

impl Compile {
    /// The names by which `metrics` and then `weighted_metrics` are logged, each once: a weighted one whose name is taken is
    /// `weighted_…`, others are numbered.
    ///
    /// ```
    /// use systole_nn::{Compile, metric::{mean_squared_error, recall}};
    /// let metrics = || vec![mean_squared_error(), recall(), recall()];
    /// let compile = Compile { metrics: metrics(), weighted_metrics: metrics(), ..Compile::default() };
    /// let names = compile.metric_names();
    /// assert_eq!(names[..3], ["mean_squared_error", "recall", "recall_1"]);
    /// assert_eq!(names[3..], ["weighted_mean_squared_error", "weighted_recall", "weighted_recall_1"]);
    /// ```
    pub fn metric_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let plain = self.metrics.iter().map(|m| (m, false));
        for (metric, weighted) in plain.chain(self.weighted_metrics.iter().map(|m| (m, true))) {
            let mut stem = metric.name().to_string();
            if weighted && names.contains(&stem) {
                stem = format!("weighted_{stem}");
            }
            let numbered = (1..).map(|n: usize| format!("{stem}_{n}"));
            let free = std::iter::once(stem.clone()).chain(numbered).find(|name| !names.contains(name));
            names.extend(free);
        }
        names
    }

    /// The loss of training: with labels that are shares of classes that of the classes by their shares.
    pub(crate) fn training_loss(&self) -> Loss {
        let of_shares = self.soft_labels.then(|| self.loss.of_shares()).flatten();
        of_shares.unwrap_or_else(|| self.loss.clone())
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
