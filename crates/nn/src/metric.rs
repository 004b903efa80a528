//! Metrics with Keras's names: small running sums on the device, turned into one number on the host.
//!
//! Sums are f64: a count in f32 stops at 2²⁴ samples, and a mean over an epoch must not depend on how many there were.

pub use crate::custom::{CustomMetric, UserMetric};
use crate::loss::{self, Loss, Prediction, aligned, as_given, as_index, score_of, squeezed_or_expanded};
use crate::nearest;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Tensor, TensorType};
use systole_runtime::Params;

/// A number that describes how good predictions are, over any number of batches.
///
/// ```
/// use systole_nn::metric::sparse_categorical_accuracy;
/// use systole_ir::{Literal, Tensor};
/// use systole_runtime::{jit, Buffer, Params};
/// let metric = sparse_categorical_accuracy();
/// let update = jit(|(state, y, p): (Params, Tensor, Tensor)| metric.update(&state, &y, &p, None));
/// let mut state = metric.state().map(|_, ty| Buffer::zeros(ty.clone()));
/// let y = Literal::from_slice([2], &[0i32, 1]).unwrap();
/// let p = Literal::from_slice([2, 2], &[0.9f32, 0.1, 0.6, 0.4]).unwrap();
/// state = update.call((state, y.into(), p.into())).unwrap();
/// assert_eq!(metric.result(&state.map(|_, b| b.to_literal().unwrap())), 0.5);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields)]
pub enum Metric {
    /// How often the greatest score is that of the class number.
    SparseCategoricalAccuracy,
    /// How often the greatest score is where the one-hot label is 1.
    CategoricalAccuracy,
    /// How often `score > threshold` agrees with the label, 0 or 1.
    BinaryAccuracy {
        /// Scores above it mean 1. Keras: 0.5.
        threshold: f64,
    },
    /// How often label and prediction are equal.
    Accuracy,
    /// How often the class number is among the k greatest scores.
    SparseTopKCategoricalAccuracy {
        /// k. Keras: 5.
        k: usize,
    },
    /// How often the one-hot label's class is among the k greatest scores.
    TopKCategoricalAccuracy {
        /// k. Keras: 5.
        k: usize,
    },
    /// Of the scores above the threshold, the share that is labelled 1.
    Precision {
        /// One result for each. Keras: 0.5.
        thresholds: Vec<f64>,
    },
    /// Of what is labelled 1, the share of scores above the threshold.
    Recall {
        /// One result for each. Keras: 0.5.
        thresholds: Vec<f64>,
    },
    /// The mean of a loss.
    Loss(Loss),
    /// The mean of given values; labels are not looked at.
    Mean {
        /// Its name.
        name: String,
    },
    /// One of your own: [`Metric::custom`] or a [`CustomMetric`].
    Custom(UserMetric),
}

impl<M: CustomMetric + 'static> From<M> for Metric {
    #[track_caller]
    fn from(metric: M) -> Metric {
        Metric::Custom(UserMetric::new(metric))
    }
}

/// `y_true: I[B, …], y_pred: T[B, …, C]`: how often the greatest score is that of the class number.
///
/// ```
/// use systole_nn::{layers::dense, loss::sparse_categorical_crossentropy, metric::sparse_categorical_accuracy, Compile, Model};
/// let mut model = Model::sequential([dense(10).activation("softmax")]);
/// let metrics = vec![sparse_categorical_accuracy()];
/// model.compile(Compile { loss: sparse_categorical_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn sparse_categorical_accuracy() -> Metric {
    Metric::SparseCategoricalAccuracy
}

/// `y_true, y_pred: T[B, …, C]`: how often the greatest score is where the one-hot label is 1.
///
/// ```
/// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::categorical_accuracy, Compile, Model};
/// let mut model = Model::sequential([dense(10).activation("softmax")]);
/// let metrics = vec![categorical_accuracy()];
/// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn categorical_accuracy() -> Metric {
    Metric::CategoricalAccuracy
}

/// `y_true, y_pred: T[B, …]`: how often a score above 0.5 meets a label 1, or another a label 0.
///
/// ```
/// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::binary_accuracy, Compile, Model};
/// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
/// let metrics = vec![binary_accuracy()];
/// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn binary_accuracy() -> Metric {
    Metric::BinaryAccuracy { threshold: 0.5 }
}

/// `y_true: I[B, …], y_pred: T[B, …, C]`: how often the class number is among the `k` greatest scores.
///
/// ```
/// use systole_nn::{layers::dense, loss::sparse_categorical_crossentropy, metric::sparse_top_k_categorical_accuracy, Compile, Model};
/// let mut model = Model::sequential([dense(10).activation("softmax")]);
/// let metrics = vec![sparse_top_k_categorical_accuracy(5)];
/// model.compile(Compile { loss: sparse_categorical_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn sparse_top_k_categorical_accuracy(k: usize) -> Metric {
    Metric::SparseTopKCategoricalAccuracy { k }
}

/// `y_true, y_pred: T[B, …, C]`: how often the one-hot label's class is among the `k` greatest scores.
///
/// ```
/// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::top_k_categorical_accuracy, Compile, Model};
/// let mut model = Model::sequential([dense(10).activation("softmax")]);
/// let metrics = vec![top_k_categorical_accuracy(5)];
/// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn top_k_categorical_accuracy(k: usize) -> Metric {
    Metric::TopKCategoricalAccuracy { k }
}

/// `y_true, y_pred: T[B, …]`: of the scores above 0.5, the share that is labelled 1.
///
/// ```
/// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::precision, Compile, Model};
/// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
/// let metrics = vec![precision()];
/// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn precision() -> Metric {
    Metric::Precision { thresholds: vec![0.5] }
}

/// `y_true, y_pred: T[B, …]`: of what is labelled 1, the share of scores above 0.5.
///
/// ```
/// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::recall, Compile, Model};
/// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
/// let metrics = vec![recall()];
/// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn recall() -> Metric {
    Metric::Recall { thresholds: vec![0.5] }
}

/// `y_pred: T[B, …]`: the mean of given values, whatever the labels are.
///
/// ```
/// use systole_nn::{layers::dense, loss::mean_squared_error, metric::mean, Compile, Model};
/// let mut model = Model::sequential([dense(1)]);
/// model.compile(Compile { loss: mean_squared_error(), metrics: vec![mean("mean_output")], ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn mean(name: &str) -> Metric {
    Metric::Mean { name: name.into() }
}

impl From<Loss> for Metric {
    fn from(loss: Loss) -> Metric {
        Metric::Loss(loss)
    }
}

/// The names that [`Metric::resolve`] takes, beside those of losses.
pub const NAMES: [&str; 8] = [
    "accuracy",
    "sparse_categorical_accuracy",
    "categorical_accuracy",
    "binary_accuracy",
    "sparse_top_k_categorical_accuracy",
    "top_k_categorical_accuracy",
    "precision",
    "recall",
];

impl FromStr for Metric {
    type Err = Error;

    /// Keras's defaults. `accuracy` and `acc` need [`Metric::resolve`].
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
                return Err(Error::new(ErrorKind::Config, format!("`{name}` depends on the loss"))
                    .hint("resolve it with Metric::resolve, or name the accuracy you mean"));
            }
            _ => match name.parse::<Loss>() {
                Ok(loss) => Metric::Loss(loss),
                Err(_) => return Err(unknown(name)),
            },
        })
    }
}

fn unknown(name: &str) -> Error {
    let all: Vec<&str> = NAMES.into_iter().chain(loss::NAMES).collect();
    nearest::unknown(&format!("there is no metric `{name}`"), name, &all)
}

impl Metric {
    /// The metric of a name as Keras's `compile` finds it: `accuracy` and `acc` are the binary accuracy for one output,
    /// the sparse one for class numbers, else the categorical one. `output` is the predictions' shape.
    pub fn resolve(name: &str, loss: &Loss, output: &[usize]) -> Result<Metric> {
        if !matches!(name, "accuracy" | "acc") {
            return name.parse();
        }
        let output = TensorType::new(DType::F32, output);
        let label = loss.label(&output);
        Ok(match output.shape.last() {
            Some(1) => binary_accuracy(),
            _ if label.dtype.is_int() && label.rank() < output.rank() => sparse_categorical_accuracy(),
            _ if matches!(loss, Loss::SparseCategoricalCrossentropy { .. }) => sparse_categorical_accuracy(),
            _ => categorical_accuracy(),
        })
    }

    /// `y_true: T[B, …], y_pred: f32[B, …] → f32[B, …]`: the mean over all samples of a function of your own. For one that
    /// keeps more than a sum: [`CustomMetric`].
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

    /// Refuses what has no meaning.
    ///
    /// # Errors
    /// When the name of one of your own is none, or the loss that it is the mean of is refused.
    pub fn check(&self) -> Result<()> {
        match self {
            Metric::Custom(own) => own.check(),
            Metric::Loss(loss) => loss.check(),
            _ => Ok(()),
        }
    }

    /// Keras's name, or that of your own.
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
        }
    }

    /// What is kept from batch to batch as it is when an epoch begins: Keras's `reset_state`.
    pub fn initial(&self) -> Params<Literal> {
        match self {
            Metric::Custom(own) => own.get().state(),
            _ => self.state().map(|_, ty| Literal::zeros(ty.clone())),
        }
    }

    /// Types of what is kept: running sums, which start at 0, but for those of your own: [`Metric::initial`].
    pub fn state(&self) -> Params<TensorType> {
        if let Metric::Custom(own) = self {
            return own.get().state().map(|_, start| start.ty().clone());
        }
        let (names, ty) = match self {
            Metric::Precision { thresholds } => {
                (["true_positives", "false_positives"], TensorType::new(DType::F64, [thresholds.len()]))
            }
            Metric::Recall { thresholds } => {
                (["true_positives", "false_negatives"], TensorType::new(DType::F64, [thresholds.len()]))
            }
            _ => (["total", "count"], TensorType::scalar(DType::F64)),
        };
        names.into_iter().map(|name| (name.to_string(), ty.clone())).collect()
    }

    /// Traced: the sums after one more batch. `y_true, y_pred: T[B, …]`, weights `T[B]` or longer.
    #[track_caller]
    pub fn update<'a>(
        &self,
        state: &Params,
        y_true: &Tensor,
        y_pred: impl Into<Prediction<'a>>,
        sample_weight: Option<&Tensor>,
    ) -> Params {
        let pred: Prediction = y_pred.into();
        let added = match self {
            Metric::Precision { thresholds } => {
                self.confusion(thresholds, y_true, pred.value, sample_weight, false)
            }
            Metric::Recall { thresholds } => {
                self.confusion(thresholds, y_true, pred.value, sample_weight, true)
            }
            Metric::Custom(own) if own.mean().is_none() => {
                let (t, p) = as_given(y_true, pred.value);
                return own.update(state, &t, &p, sample_weight);
            }
            _ => {
                let (values, mask) = self.values(y_true, pred);
                weighted_sums(&values, mask.as_ref(), sample_weight)
            }
        };
        let mut added = added.into_iter();
        state.map(|_, sum| added.next().map_or(sum.clone(), |a| sum + a))
    }

    /// The number that the sums stand for; with several thresholds, that of the first.
    pub fn result(&self, state: &Params<Literal>) -> f64 {
        self.results(state).first().copied().unwrap_or(f64::NAN)
    }

    /// The numbers that the sums stand for: one, or one for each threshold.
    pub fn results(&self, state: &Params<Literal>) -> Vec<f64> {
        if let Metric::Custom(own) = self {
            return vec![own.get().result(state)];
        }
        let sums: Vec<Vec<f64>> = state.values().map(|l| l.to_f64s()).collect();
        let [a, b] = sums.as_slice() else { return Vec::new() };
        // As Keras: nothing seen, or nothing positive, is 0.
        let share = |part: f64, whole: f64| if whole == 0.0 { 0.0 } else { part / whole };
        let is_confusion = matches!(self, Metric::Precision { .. } | Metric::Recall { .. });
        a.iter().zip(b).map(|(&a, &b)| share(a, if is_confusion { a + b } else { b })).collect()
    }

    /// `→ f32[B, …]`: what is averaged, and which of it counts.
    #[track_caller]
    fn values(&self, y_true: &Tensor, pred: Prediction) -> (Tensor, Option<Tensor>) {
        let p = pred.value.convert(DType::F32);
        let as_f32 = |b: Tensor| b.convert(DType::F32);
        let values = match self {
            Metric::SparseCategoricalAccuracy => self.labelled(y_true, &p, false, &|y, p| {
                // Class numbers may come as floats: 1.5 is no class.
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
            Metric::BinaryAccuracy { threshold } => match self.same_shape(y_true, &p) {
                Some((t, p)) => as_f32(as_f32(p.greater(&p.scalar_like(*threshold))).equal(&t)),
                None => p.clone(),
            },
            Metric::Accuracy => match self.same_shape(y_true, &p) {
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
            Metric::Mean { .. } | Metric::Precision { .. } | Metric::Recall { .. } => p.clone(),
        };
        (values, None)
    }

    /// `f` of labels and scores, as f32\[…\], once their shapes are known to fit: equal for one-hot labels, else without
    /// the last axis of the scores.
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
            _ if one_hot => self.refuse(y_true, p, "for class numbers use the sparse metric"),
            _ => self.refuse(y_true, p, "for one-hot labels use the metric without `sparse`"),
        }
    }

    fn same_shape(&self, y_true: &Tensor, p: &Tensor) -> Option<(Tensor, Tensor)> {
        match squeezed_or_expanded(&y_true.convert(DType::F32), p) {
            (t, p) if t.shape() == p.shape() => Some((t, p)),
            _ => {
                self.refuse(y_true, p, "labels must have the shape of the predictions");
                None
            }
        }
    }

    fn refuse(&self, y_true: &Tensor, p: &Tensor, hint: &str) -> Tensor {
        let what = format!("labels {} and predictions {} do not fit", y_true.ty(), p.ty());
        p.fail(Error::new(ErrorKind::Graph, what).at(format!("metric {}", self.name())).hint(hint))
    }

    /// `→ [f64[T], f64[T]]`: weights of true positives and, by threshold, of false negatives or false positives.
    #[track_caller]
    fn confusion(
        &self,
        thresholds: &[f64],
        y_true: &Tensor,
        p: &Tensor,
        sample_weight: Option<&Tensor>,
        missed: bool,
    ) -> Vec<Tensor> {
        let Some((t, p)) = self.same_shape(y_true, &p.convert(DType::F32)) else {
            return vec![p.convert(DType::F64); 2];
        };
        let n = p.shape().elements();
        let weight = match sample_weight {
            Some(w) => aligned(&p, w).broadcast_to(p.shape()),
            None => p.ones_like(),
        };
        let limits: Vec<f32> = thresholds.iter().map(|&t| t as f32).collect();
        let limits = match Literal::from_slice([1, limits.len()], &limits) {
            Ok(l) => p.builder().constant(l),
            Err(e) => p.fail(e),
        };
        let column = |x: &Tensor| x.reshape([n, 1]);
        let positive = column(&t.not_equal(&t.zeros_like()));
        let above = column(&p).greater(&limits);
        let (hit, other) = if missed {
            (above.and(&positive), above.not().and(&positive))
        } else {
            (above.and(&positive), above.and(&positive.not()))
        };
        let sum = |which: Tensor| {
            let zero = weight.scalar_like(0.0);
            which.select(&column(&weight), &zero).sum(&[0]).convert(DType::F64)
        };
        vec![sum(hit), sum(other)]
    }
}

/// The type to compare labels in: integers as they are meant, floats as floats.
fn wide(labels: DType) -> DType {
    match labels {
        d if d.is_float() => DType::F32,
        DType::I64 | DType::U32 | DType::U64 => DType::I64,
        _ => DType::I32,
    }
}

/// `y: I[…], p: f32[…, C] → bool[…]`: fewer than k scores are greater than that of class y. Ties count in its favour;
/// scores that are not finite count as a miss, as in TensorFlow.
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
