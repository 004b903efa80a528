//! Metrics with Keras's names: running sums updated on the device in each step, and the result computed on the host.
//!
//! Sums are f64: a count in f32 stops at 2²⁴ samples, and a mean over an epoch must not depend on the number of
//! samples.

mod calibration;
mod confusion;
pub mod constructors;
mod f_score;
mod iou;
mod regression;

pub use crate::custom_objects::{CustomMetric, UserMetric};
use crate::did_you_mean;
use crate::json::{Deserialize, Serialize};
use crate::loss::{
    self, Loss, Prediction, Reduction, aligned, as_given, as_index, score_of, squeezed_or_expanded,
};
pub use calibration::ExpectedCalibrationError;
pub use confusion::{
    AUC, AucCurve, FalseNegatives, FalsePositives, PrecisionAtRecall, RecallAtPrecision,
    SensitivityAtSpecificity, SpecificityAtSensitivity, Summation, TrueNegatives, TruePositives,
};
use confusion::{ConfusionCell, Thresholding, check_number, check_thresholds, thresholds_of};
pub use constructors::*;
pub use f_score::{Average, F1Score, FBetaScore};
pub use iou::{BinaryIoU, IoU, MeanIoU, OneHotIoU, OneHotMeanIoU};
pub use regression::{
    Aggregation, ConcordanceCorrelation, CosineSimilarity, PearsonCorrelation, R2Score, RootMeanSquaredError,
};
use std::str::FromStr;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Tensor, TensorType, err};
use systole_runtime::Params;

/// A metric: measures the quality of predictions, over any number of batches.
///
/// ```
/// use systole_nn::metric::sparse_categorical_accuracy;
/// use systole_ir::{Literal, Tensor};
/// use systole_runtime::{jit, Buffer, Params};
/// let metric = sparse_categorical_accuracy();
/// let update = jit(|(state, y, p): (Params, Tensor, Tensor)| metric.update(&state, &y, &p, None));
/// let mut state = metric.state(&[2, 2]).map(|_, ty| Buffer::zeros(ty.clone()));
/// let y = Literal::from_slice([2], &[0i32, 1]).unwrap();
/// let p = Literal::from_slice([2, 2], &[0.9f32, 0.1, 0.6, 0.4]).unwrap();
/// state = update.call((state, y.into(), p.into())).unwrap();
/// assert_eq!(metric.result(&state.map(|_, b| b.to_literal().unwrap())), 0.5);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields, skip_serializing_none)]
pub enum Metric {
    /// Accuracy: how often the highest score is the class label's.
    SparseCategoricalAccuracy,
    /// Accuracy: how often the highest score is the one-hot label's class.
    CategoricalAccuracy,
    /// Accuracy: how often `score > threshold` agrees with the label, 0 or 1.
    BinaryAccuracy {
        /// Scores above it count as 1. Keras: 0.5.
        threshold: f64,
    },
    /// Accuracy: how often label and prediction are equal.
    Accuracy,
    /// How often the label's class is among the k highest scores.
    SparseTopKCategoricalAccuracy {
        /// Number of highest scores. Keras: 5.
        k: usize,
    },
    /// How often the one-hot label's class is among the k highest scores.
    TopKCategoricalAccuracy {
        /// Number of highest scores. Keras: 5.
        k: usize,
    },
    /// Precision: fraction of scores above the threshold whose label is 1.
    Precision {
        /// Thresholds; one result for each. Keras: 0.5.
        thresholds: Vec<f64>,
        /// Only the k highest scores of a sample can count as 1; without thresholds all of them do.
        top_k: Option<usize>,
        /// Only this class counts.
        class_id: Option<usize>,
    },
    /// Recall: fraction of labels 1 whose score is above the threshold.
    Recall {
        /// Thresholds; one result for each. Keras: 0.5.
        thresholds: Vec<f64>,
        /// Only the k highest scores of a sample can count as 1; without thresholds all of them do.
        top_k: Option<usize>,
        /// Only this class counts.
        class_id: Option<usize>,
    },
    /// Area under the ROC or precision-recall curve: 1 for perfect separation; 0.5 for chance with ROC.
    AUC(AUC),
    /// F1 score: harmonic mean of precision and recall, with labels per class.
    F1Score(F1Score),
    /// F-beta score: recall weighted β times as much as precision.
    FBetaScore(FBetaScore),
    /// Coefficient of determination R²: 1 − Σ(t − p)² / Σ(t − mean)².
    R2Score(R2Score),
    /// Root mean squared error.
    RootMeanSquaredError(RootMeanSquaredError),
    /// Mean cosine similarity of labels and predictions, 1 for the same direction; the loss of this name is its
    /// negative.
    CosineSimilarity(CosineSimilarity),
    /// Mean Pearson correlation between labels and predictions.
    PearsonCorrelation(PearsonCorrelation),
    /// Mean concordance correlation (Lin), which also requires equal means and variances.
    ConcordanceCorrelation(ConcordanceCorrelation),
    /// Mean intersection over union of some classes.
    IoU(IoU),
    /// Mean intersection over union of all classes.
    MeanIoU(MeanIoU),
    /// Mean intersection over union of some classes, for one-hot labels.
    OneHotIoU(OneHotIoU),
    /// Mean intersection over union of all classes, for one-hot labels.
    OneHotMeanIoU(OneHotMeanIoU),
    /// Mean intersection over union of labels 0 and 1.
    BinaryIoU(BinaryIoU),
    /// Number of samples labelled 1 with a score above the threshold.
    TruePositives(TruePositives),
    /// Number of samples labelled 0 with a score of at most the threshold.
    TrueNegatives(TrueNegatives),
    /// Number of samples labelled 0 with a score above the threshold.
    FalsePositives(FalsePositives),
    /// Number of samples labelled 1 with a score of at most the threshold.
    FalseNegatives(FalseNegatives),
    /// Highest sensitivity over thresholds where the specificity is at least the given value.
    SensitivityAtSpecificity(SensitivityAtSpecificity),
    /// Highest specificity over thresholds where the sensitivity is at least the given value.
    SpecificityAtSensitivity(SpecificityAtSensitivity),
    /// Highest precision over thresholds where the recall is at least the given value.
    PrecisionAtRecall(PrecisionAtRecall),
    /// Highest recall over thresholds where the precision is at least the given value.
    RecallAtPrecision(RecallAtPrecision),
    /// Expected calibration error: mean |confidence − accuracy| over bins of equal confidence width.
    ExpectedCalibrationError(ExpectedCalibrationError),
    /// Mean of a loss.
    Loss(Loss),
    /// Mean of the predictions; labels are ignored.
    Mean {
        /// Metric name.
        name: String,
    },
    /// A custom metric: [`Metric::custom`] or a [`CustomMetric`].
    Custom(UserMetric),
}

impl<M: CustomMetric + 'static> From<M> for Metric {
    #[track_caller]
    fn from(metric: M) -> Metric {
        Metric::Custom(UserMetric::new(metric))
    }
}

impl From<Loss> for Metric {
    fn from(loss: Loss) -> Metric {
        Metric::Loss(loss)
    }
}

/// Registered name of a metric rule.
pub(crate) trait MetricName {
    fn name(&self) -> &'static str;
}

/// Definition of a metric: its running sums, their update per batch, and the results.
pub(crate) trait MetricRule: MetricName {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns names and shapes of the running sums, for a model with `outputs` outputs.
    fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)>;

    /// Traced, `→ f64[…]`: the contribution of a batch to each running sum.
    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor>;

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64>;
}

/// A batch as seen by a metric rule.
pub(crate) struct MetricBatch<'a> {
    metric: &'static str,
    y_true: &'a Tensor,
    pred: Prediction<'a>,
    weight: Option<&'a Tensor>,
}

impl MetricBatch<'_> {
    /// Returns labels and predictions in f32 with equal shapes.
    fn same_shape(&self, p: &Tensor) -> Option<(Tensor, Tensor)> {
        same_shape(self.metric, self.y_true, p)
    }

    fn constant(&self, shape: &[usize], values: &[f64]) -> Tensor {
        let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        match Literal::from_slice(shape, &values) {
            Ok(l) => self.y_true.builder().constant(l),
            Err(e) => self.y_true.fail(e),
        }
    }
}

macro_rules! rules {
    ($($class:ident, $name:literal;)*) => {
        /// Names of metrics that [`Metric::resolve`] accepts, in addition to those of losses.
        pub const NAMES: &[&str] = &[
            "accuracy",
            "sparse_categorical_accuracy",
            "categorical_accuracy",
            "binary_accuracy",
            "sparse_top_k_categorical_accuracy",
            "top_k_categorical_accuracy",
            "precision",
            "recall",
            $($name),*
        ];

        $(impl MetricName for $class {
            fn name(&self) -> &'static str {
                $name
            }
        }

        impl From<$class> for Metric {
            fn from(rule: $class) -> Metric {
                Metric::$class(rule)
            }
        })*

        impl Metric {
            fn rule(&self) -> Option<&dyn MetricRule> {
                match self {
                    $(Metric::$class(rule) => Some(rule),)*
                    _ => None,
                }
            }

            /// Returns the metric by Keras's function or class name, with Keras's defaults.
            fn of_rule(name: &str) -> Option<Metric> {
                match name {
                    $($name | stringify!($class) => Some($class::default().into()),)*
                    _ => None,
                }
            }
        }
    };
}

// Registers metrics: each needs a row here and a variant of [`Metric`].
rules! {
    AUC, "auc";
    F1Score, "f1_score";
    FBetaScore, "fbeta_score";
    R2Score, "r2_score";
    RootMeanSquaredError, "root_mean_squared_error";
    CosineSimilarity, "cosine_similarity";
    PearsonCorrelation, "pearson_correlation";
    ConcordanceCorrelation, "concordance_correlation";
    IoU, "iou";
    MeanIoU, "mean_iou";
    OneHotIoU, "one_hot_iou";
    OneHotMeanIoU, "one_hot_mean_iou";
    BinaryIoU, "binary_iou";
    TruePositives, "true_positives";
    TrueNegatives, "true_negatives";
    FalsePositives, "false_positives";
    FalseNegatives, "false_negatives";
    SensitivityAtSpecificity, "sensitivity_at_specificity";
    SpecificityAtSensitivity, "specificity_at_sensitivity";
    PrecisionAtRecall, "precision_at_recall";
    RecallAtPrecision, "recall_at_precision";
    ExpectedCalibrationError, "expected_calibration_error";
}

fn wrong(what: String, hint: &str) -> Error {
    Error::new(ErrorKind::Config, what).hint(hint)
}

fn refused(seen: &MetricBatch, why: &str, hint: &str) -> Tensor {
    let what =
        format!("labels {} are incompatible with predictions {}", seen.y_true.ty(), seen.pred.value.ty());
    let error = Error::new(ErrorKind::Graph, what).at(format!("metric {}", seen.metric));
    seen.y_true.fail(error.because(why).hint(hint))
}

/// Divides; 0/0 is 0, as in Keras.
fn share(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

fn mean_slots() -> Vec<(&'static str, Vec<usize>)> {
    vec![("total", Vec::new()), ("count", Vec::new())]
}

fn same_shape(metric: &str, y_true: &Tensor, p: &Tensor) -> Option<(Tensor, Tensor)> {
    match squeezed_or_expanded(&y_true.convert(DType::F32), p) {
        (t, p) if t.shape() == p.shape() => Some((t, p)),
        _ => {
            let what = format!("labels {} are incompatible with predictions {}", y_true.ty(), p.ty());
            let error = Error::new(ErrorKind::Graph, what).at(format!("metric {metric}"));
            p.fail(error.hint("give labels the shape of the predictions"));
            None
        }
    }
}

impl FromStr for Metric {
    type Err = Error;

    /// Returns the metric with Keras's defaults. `accuracy` and `acc` need [`Metric::resolve`].
    fn from_str(name: &str) -> Result<Metric> {
        Ok(match name {
            "sparse_categorical_accuracy" => sparse_categorical_accuracy(),
            "categorical_accuracy" => categorical_accuracy(),
            "binary_accuracy" => binary_accuracy(),
            "sparse_top_k_categorical_accuracy" => sparse_top_k_categorical_accuracy(5),
            "top_k_categorical_accuracy" => top_k_categorical_accuracy(5),
            "precision" | "Precision" => precision(),
            "recall" | "Recall" => recall(),
            "accuracy" | "acc" => {
                return Err(err!(Config, "`{name}` depends on the loss")
                    .hint("use Metric::resolve, or name a specific accuracy such as binary_accuracy"));
            }
            _ => match (Metric::of_rule(name), name.parse::<Loss>()) {
                (Some(metric), _) => metric,
                (None, Ok(loss)) => Metric::Loss(loss),
                (None, Err(_)) => return Err(unknown(name)),
            },
        })
    }
}

fn unknown(name: &str) -> Error {
    let losses = loss::NAMES.iter().filter(|name| !NAMES.contains(name));
    let all: Vec<&str> = NAMES.iter().chain(losses).copied().collect();
    did_you_mean::unknown(&format!("unknown metric `{name}`"), name, &all)
}

impl Metric {
    /// Resolves a metric name as Keras's `compile` does: `accuracy` and `acc` mean binary accuracy for one output,
    /// sparse accuracy for class indices, otherwise categorical accuracy. `output` is the predictions' shape.
    pub fn resolve(name: &str, loss: &Loss, output: &[usize]) -> Result<Metric> {
        if !matches!(name, "accuracy" | "acc") {
            return name.parse();
        }
        let output = TensorType::new(DType::F32, output);
        let label = loss.label(&output);
        Ok(match output.shape.last() {
            Some(1) => binary_accuracy(),
            _ if label.dtype.is_int() && label.rank() < output.rank() => sparse_categorical_accuracy(),
            _ if matches!(loss.base(), Loss::SparseCategoricalCrossentropy { .. }) => {
                sparse_categorical_accuracy()
            }
            _ => categorical_accuracy(),
        })
    }

    /// Creates a custom metric, the mean over all samples of `f`: `y_true: T[B, …], y_pred: f32[B, …] → f32[B, …]`. For
    /// a metric that keeps more than a sum see [`CustomMetric`].
    ///
    /// ```
    /// use systole_nn::metric::Metric;
    /// let within = Metric::custom("within_a_tenth", |y_true, y_pred| {
    ///     let error = (y_true - y_pred).abs();
    ///     error.less(&error.scalar_like(0.1)).convert(y_pred.dtype()).mean(&[error.rank() - 1])
    /// });
    /// assert!(within.check().is_ok());
    /// ```
    #[track_caller]
    pub fn custom(name: &str, f: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + 'static) -> Metric {
        Metric::Custom(UserMetric::of_function(name, f))
    }

    /// Validates the metric's arguments.
    ///
    /// # Errors
    /// If a custom metric's name is invalid, the underlying loss is invalid, or an argument is out of range.
    pub fn check(&self) -> Result<()> {
        match self {
            Metric::Custom(own) => own.check(),
            Metric::Loss(loss) if loss.reduced() != Reduction::default() => {
                let e = err!(Config, "metric {} cannot have a reduction", loss.name());
                Err(e.because("a metric is always the mean over all samples").hint("remove reduction"))
            }
            Metric::Loss(loss) => loss.check(),
            Metric::Precision { thresholds, top_k, .. } | Metric::Recall { thresholds, top_k, .. } => {
                check_thresholds(thresholds)?;
                top_k.map_or(Ok(()), |k| check_number("top_k", k, 1))
            }
            Metric::SparseTopKCategoricalAccuracy { k } | Metric::TopKCategoricalAccuracy { k } => {
                check_number("k", *k, 1)
            }
            other => other.rule().map_or(Ok(()), MetricRule::check),
        }
    }

    /// Returns Keras's name of the metric, or the custom metric's name.
    pub fn name(&self) -> &str {
        match self {
            Metric::SparseCategoricalAccuracy => "sparse_categorical_accuracy",
            Metric::CategoricalAccuracy => "categorical_accuracy",
            Metric::BinaryAccuracy { .. } => "binary_accuracy",
            Metric::Accuracy => "accuracy",
            Metric::SparseTopKCategoricalAccuracy { .. } => "sparse_top_k_categorical_accuracy",
            Metric::TopKCategoricalAccuracy { .. } => "top_k_categorical_accuracy",
            Metric::Precision { .. } => "precision",
            Metric::Recall { .. } => "recall",
            Metric::Loss(loss) => loss.name(),
            Metric::Mean { name } => name,
            Metric::Custom(own) => own.get().name(),
            other => other.rule().map_or("", MetricName::name),
        }
    }

    /// Returns the metric's initial state in an epoch: Keras's `reset_state`. `output` is the shape of the model's
    /// output; metrics per class keep a sum for each index of its last axis.
    pub fn initial(&self, output: &[usize]) -> Params<Literal> {
        match self {
            Metric::Custom(own) => own.get().state(),
            _ => self.state(output).map(|_, ty| Literal::zeros(ty.clone())),
        }
    }

    /// Returns the types of the metric's state: running sums that start at 0, except for custom metrics:
    /// [`Metric::initial`].
    pub fn state(&self, output: &[usize]) -> Params<TensorType> {
        if let Metric::Custom(own) = self {
            return own.get().state().map(|_, start| start.ty().clone());
        }
        let slots = match self {
            Metric::Precision { thresholds, top_k, .. } => {
                let n = vec![thresholds_of(thresholds, *top_k).len()];
                vec![("true_positives", n.clone()), ("false_positives", n)]
            }
            Metric::Recall { thresholds, top_k, .. } => {
                let n = vec![thresholds_of(thresholds, *top_k).len()];
                vec![("true_positives", n.clone()), ("false_negatives", n)]
            }
            other => {
                let outputs = output.last().copied().unwrap_or(1);
                other.rule().map_or_else(mean_slots, |rule| rule.slots(outputs))
            }
        };
        let typed =
            |(name, shape): (&str, Vec<usize>)| (name.to_string(), TensorType::new(DType::F64, shape));
        slots.into_iter().map(typed).collect()
    }

    /// Like [`Metric::update`], but only time steps with `mask: bool[B, S]` count. As in Keras, masks apply to means,
    /// but not to confusion-matrix counts and curves.
    pub(crate) fn update_of_counted(
        &self,
        state: &Params,
        y_true: &Tensor,
        y_pred: Prediction<'_>,
        sample_weight: Option<&Tensor>,
        mask: Option<&Tensor>,
    ) -> Params {
        let averages = match self {
            Metric::Precision { .. } | Metric::Recall { .. } => false,
            Metric::Custom(own) => own.mean().is_some(),
            Metric::CosineSimilarity(_) => true,
            other => other.rule().is_none(),
        };
        let mask = mask.filter(|_| averages).map(|mask| mask.convert(DType::F32));
        let weight = match (&mask, sample_weight) {
            (Some(mask), Some(weight)) => {
                Some(mask * crate::loss::aligned(mask, weight).broadcast_to(mask.shape()))
            }
            (Some(mask), None) => Some(mask.clone()),
            (None, weight) => weight.cloned(),
        };
        self.update(state, y_true, y_pred, weight.as_ref())
    }

    /// Traced: returns the metric's state after one more batch. `y_true, y_pred: T[B, …]`, weights `T[B]` or longer.
    #[track_caller]
    pub fn update<'a>(
        &self,
        state: &Params,
        y_true: &Tensor,
        y_pred: impl Into<Prediction<'a>>,
        sample_weight: Option<&Tensor>,
    ) -> Params {
        let pred: Prediction = y_pred.into();
        let seen = |metric| MetricBatch { metric, y_true, pred, weight: sample_weight };
        let added = match self {
            Metric::Precision { thresholds, top_k, class_id }
            | Metric::Recall { thresholds, top_k, class_id } => {
                let thresholds = thresholds_of(thresholds, *top_k);
                let (top_k, class_id) = (*top_k, *class_id);
                let cut =
                    Thresholding { thresholds: &thresholds, top_k, class_id, ..Thresholding::default() };
                let (name, missed) = match self {
                    Metric::Precision { .. } => ("precision", ConfusionCell::FalsePositives),
                    _ => ("recall", ConfusionCell::FalseNegatives),
                };
                cut.count(&seen(name), &[ConfusionCell::TruePositives, missed])
            }
            Metric::Custom(own) if own.mean().is_none() => {
                let (t, p) = as_given(y_true, pred.value);
                return own.update(state, &t, &p, sample_weight);
            }
            other => match other.rule() {
                Some(rule) => rule.sums(&seen(rule.name())),
                None => {
                    let (values, mask) = self.values(y_true, pred);
                    weighted_sums(&values, mask.as_ref(), sample_weight)
                }
            },
        };
        let mut added = added.into_iter();
        state.map(|_, sum| added.next().map_or(sum.clone(), |a| sum + a))
    }

    /// Computes the metric's result from its running sums; the first one if there are several thresholds or classes.
    pub fn result(&self, state: &Params<Literal>) -> f64 {
        self.results(state).first().copied().unwrap_or(f64::NAN)
    }

    /// Computes the metric's results from its running sums: one, or one per threshold or class.
    pub fn results(&self, state: &Params<Literal>) -> Vec<f64> {
        if let Metric::Custom(own) = self {
            return vec![own.get().result(state)];
        }
        let sums: Vec<Vec<f64>> = state.values().map(|l| l.to_f64s()).collect();
        if let Some(rule) = self.rule() {
            return rule.results(&sums);
        }
        let [a, b] = sums.as_slice() else { return Vec::new() };
        let is_confusion = matches!(self, Metric::Precision { .. } | Metric::Recall { .. });
        a.iter().zip(b).map(|(&a, &b)| share(a, if is_confusion { a + b } else { b })).collect()
    }

    /// `→ f32[B, …]`: per-sample values to average, and a mask of those that count.
    #[track_caller]
    fn values(&self, y_true: &Tensor, pred: Prediction) -> (Tensor, Option<Tensor>) {
        let p = pred.value.convert(DType::F32);
        let as_f32 = |b: Tensor| b.convert(DType::F32);
        let values = match self {
            Metric::SparseCategoricalAccuracy => self.labelled(y_true, &p, false, &|y, p| {
                // Class indices may come as floats: 1.5 matches no class.
                let best = p.argmax(p.rank() - 1);
                y.convert(wide(y.dtype())).equal(&best.convert(wide(y.dtype())))
            }),
            Metric::CategoricalAccuracy => {
                self.labelled(y_true, &p, true, &|t, p| t.argmax(t.rank() - 1).equal(&p.argmax(p.rank() - 1)))
            }
            Metric::SparseTopKCategoricalAccuracy { k } => {
                self.labelled(y_true, &p, false, &|y, p| in_top_k(&as_index(y), p, *k))
            }
            Metric::TopKCategoricalAccuracy { k } => {
                self.labelled(y_true, &p, true, &|t, p| in_top_k(&t.argmax(t.rank() - 1), p, *k))
            }
            Metric::BinaryAccuracy { threshold } => match same_shape(self.name(), y_true, &p) {
                Some((t, p)) => as_f32(as_f32(p.greater(&p.scalar_like(*threshold))).equal(&t)),
                None => p.clone(),
            },
            Metric::Accuracy => match same_shape(self.name(), y_true, &p) {
                Some((t, p)) => as_f32(t.equal(&p)),
                None => p.clone(),
            },
            Metric::Loss(loss) => {
                let values = loss.per_sample(y_true, pred);
                let mask = loss.mask(y_true, &values);
                return (values, mask);
            }
            Metric::Custom(own) => match own.mean() {
                Some(f) => {
                    let (t, p) = as_given(y_true, pred.value);
                    f.per_sample(&t, &p)
                }
                None => p.clone(),
            },
            _ => p.clone(),
        };
        (values, None)
    }

    /// Calls `f` with labels and scores as f32\[…\] after checking that shapes are compatible: equal for one-hot
    /// labels, otherwise without the last axis of the scores.
    #[track_caller]
    fn labelled(
        &self,
        y_true: &Tensor,
        p: &Tensor,
        one_hot: bool,
        f: &dyn Fn(&Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let rows = &p.shape()[..p.rank().saturating_sub(1)];
        let labels = match y_true.shape().dims() {
            dims if one_hot && dims == p.shape().dims() => Some(y_true.clone()),
            [rest @ .., 1] if !one_hot && rest == rows => Some(y_true.reshape(rest)),
            dims if !one_hot && dims == rows => Some(y_true.clone()),
            _ => None,
        };
        match labels {
            Some(y) if p.rank() > 0 => f(&y, p).convert(DType::F32),
            _ if one_hot => self.refuse(y_true, p, "use the sparse metric for class indices"),
            _ => self.refuse(y_true, p, "use the metric without `sparse` for one-hot labels"),
        }
    }

    fn refuse(&self, y_true: &Tensor, p: &Tensor, hint: &str) -> Tensor {
        let what = format!("labels {} are incompatible with predictions {}", y_true.ty(), p.ty());
        p.fail(Error::new(ErrorKind::Graph, what).at(format!("metric {}", self.name())).hint(hint))
    }
}

/// Returns the type for comparing labels: a wide integer for integers, a wide float for floats.
fn wide(labels: DType) -> DType {
    match labels {
        d if d.is_float() => DType::F32,
        DType::I64 | DType::U32 | DType::U64 => DType::I64,
        _ => DType::I32,
    }
}

/// `y: I[…], p: f32[…, C] → bool[…]`: whether fewer than k scores are higher than that of class y. Ties count as hits;
/// non-finite scores count as misses, as in TensorFlow.
fn in_top_k(y: &Tensor, p: &Tensor, k: usize) -> Tensor {
    let last = [p.rank() - 1];
    let (own, known) = score_of(y, p);
    let greater = p.greater(&own.broadcast_except(p.shape(), &last));
    let count = greater.convert(DType::I32).sum(&last);
    let finite = p.is_finite().all(&last);
    count.less(&count.scalar_like(k as f64)).and(&known).and(&finite)
}

/// `values: f32[B, …] → [f64[], f64[]]`: Σ w·v and Σ w, each averaged over all axes but the first.
#[track_caller]
fn weighted_sums(values: &Tensor, mask: Option<&Tensor>, sample_weight: Option<&Tensor>) -> Vec<Tensor> {
    let samples = if values.rank() == 0 { 1 } else { values.dim(0) };
    let rest = (values.shape().elements() / samples.max(1)).max(1) as f64;
    let weight = match (mask, sample_weight.map(|w| aligned(values, w))) {
        (Some(m), Some(w)) => Some(m * w),
        (Some(m), None) => Some(m.clone()),
        (None, w) => w,
    };
    let Some(weight) = weight else {
        let count = values.builder().scalar(DType::F64, samples as f64);
        return vec![values.sum_all().convert(DType::F64) / rest, count];
    };
    let weight = weight.broadcast_to(values.shape());
    let sum = |x: &Tensor| x.sum_all().convert(DType::F64) / rest;
    vec![sum(&(values * &weight)), sum(&weight)]
}

// Names of the previous version.
systole_ir::renamed! { Curve => AucCurve }
