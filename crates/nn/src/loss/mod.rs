//! Losses with Keras's names, formulas and clipping, and custom losses.
//!
//! A loss gives one value per sample (or pixel, or token); [`Loss::reduce`] averages them. All arithmetic is f32,
//! whatever the layers compute in.

mod axis_reduction;
pub mod constructors;
mod ctc;
mod formulas;

pub use crate::custom_objects::{CustomLoss, UserLoss};
use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize};
pub use constructors::*;
use formulas::{binary_from_logits, binary_from_probabilities, clipped, smoothed, sparse_crossentropy};
use serde::Deserializer;
use std::str::FromStr;
use systole_ir::{DType, Error, ErrorKind, Result, Shape, Tensor, TensorType, err};

/// A model's prediction: its output and, after a softmax or sigmoid, the logits before it.
///
/// Cross-entropies use the logits if available, as Keras does with TensorFlow: log-softmax of the logits is more
/// accurate than the logarithm of the rounded softmax. Other losses use the value.
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// Model output.
    pub value: &'a Tensor,
    /// Input of the softmax or sigmoid that produced the output, with the same shape.
    pub logits: Option<&'a Tensor>,
}

impl<'a> From<&'a Tensor> for Prediction<'a> {
    fn from(value: &'a Tensor) -> Prediction<'a> {
        Prediction { value, logits: None }
    }
}

impl<'a> From<&Prediction<'a>> for Prediction<'a> {
    fn from(p: &Prediction<'a>) -> Prediction<'a> {
        *p
    }
}

/// A loss function, built-in or custom.
///
/// ```
/// use systole_nn::loss::sparse_categorical_crossentropy;
/// use systole_ir::{Literal, Tensor};
/// use systole_runtime::jit;
/// let loss = jit(|(y, p): (Tensor, Tensor)| sparse_categorical_crossentropy().value(&y, &p, None));
/// let y = Literal::from_slice([2], &[0i32, 1]).unwrap();
/// let p = Literal::from_slice([2, 2], &[0.5f32, 0.5, 0.75, 0.25]).unwrap();
/// let value = loss.call((y.into(), p.into())).unwrap().to_f64().unwrap();
/// assert!((value - (2f64.ln() + 4f64.ln()) / 2.0).abs() < 1e-6);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "class_name", content = "config", deny_unknown_fields)]
pub enum Loss {
    /// −ln p\[y\] for class indices y: I\[…\] or I\[…, 1\] and predictions T\[…, C\].
    SparseCategoricalCrossentropy {
        /// Whether predictions are logits, not probabilities.
        #[serde(default)]
        from_logits: bool,
        /// Label class to ignore.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ignore_class: Option<i64>,
    },
    /// −Σ t·ln p over the last axis, for distributions t of the predictions' shape.
    CategoricalCrossentropy {
        /// Whether predictions are logits, not probabilities.
        #[serde(default)]
        from_logits: bool,
        /// Label smoothing s: targets become t(1 − s) + s / C.
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Mean over the last axis of −t·ln p − (1 − t)·ln(1 − p).
    BinaryCrossentropy {
        /// Whether predictions are logits, not probabilities.
        #[serde(default)]
        from_logits: bool,
        /// Label smoothing s: targets become t(1 − s) + s / 2.
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Mean over the last axis of (t − p)².
    MeanSquaredError,
    /// Mean over the last axis of |t − p|.
    MeanAbsoluteError,
    /// Mean over the last axis of ½e² for |e| ≤ δ, otherwise δ|e| − ½δ².
    Huber {
        /// Threshold δ.
        delta: f64,
    },
    /// 100 times the mean over the last axis of |t − p| / |t|.
    MeanAbsolutePercentageError,
    /// Mean over the last axis of (ln(1 + t) − ln(1 + p))², with t and p clipped at 0.
    MeanSquaredLogarithmicError,
    /// −Σ t·p over the last axis, both normalized to length 1.
    CosineSimilarity,
    /// Mean over the last axis of ln cosh(p − t).
    LogCosh,
    /// Mean over the last axis of max(1 − t·p, 0); labels 0 and 1 become −1 and 1.
    Hinge,
    /// Mean over the last axis of max(1 − t·p, 0)²; labels 0 and 1 become −1 and 1.
    SquaredHinge,
    /// max(highest wrong score − right score + 1, 0) over the last axis.
    CategoricalHinge,
    /// Σ t·ln(t / p) over the last axis, both clipped at 1e-7.
    KLDivergence,
    /// Mean over the last axis of p − t·ln p.
    Poisson,
    /// Binary focal loss: cross-entropy terms times (1 − pₜ)^γ, with pₜ the probability of the true label.
    BinaryFocalCrossentropy {
        /// Whether to weight label 1 by α and label 0 by 1 − α.
        #[serde(default)]
        apply_class_balancing: bool,
        /// Weight α of label 1.
        #[serde(default = 0.25)]
        alpha: f64,
        /// Focusing exponent γ.
        #[serde(default = 2.0)]
        gamma: f64,
        /// Whether predictions are logits, not probabilities.
        #[serde(default)]
        from_logits: bool,
        /// Label smoothing s: targets become t(1 − s) + s / 2.
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Categorical focal loss: −Σ α·(1 − p)^γ·t·ln p over the last axis.
    CategoricalFocalCrossentropy {
        /// Weight α.
        #[serde(default = 0.25)]
        alpha: f64,
        /// Focusing exponent γ.
        #[serde(default = 2.0)]
        gamma: f64,
        /// Whether predictions are logits, not probabilities.
        #[serde(default)]
        from_logits: bool,
        /// Label smoothing s: targets become t(1 − s) + s / C.
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Dice loss 1 − 2·Σ t·p / (Σ t + Σ p), over the whole batch.
    Dice {
        /// Axes to sum over, one or several. Default: all, which gives one value for the batch.
        #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_several")]
        axis: Vec<i64>,
    },
    /// Tversky loss 1 − Σ t·p / (Σ t·p + α·Σ t·(1 − p) + β·Σ (1 − t)·p): Dice with weights for false negatives and
    /// false positives.
    Tversky {
        /// Weight α of false negatives.
        #[serde(default = 0.5)]
        alpha: f64,
        /// Weight β of false positives.
        #[serde(default = 0.5)]
        beta: f64,
        /// Axes to sum over, one or several. Default: all, which gives one value for the batch.
        #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_several")]
        axis: Vec<i64>,
    },
    /// Circle loss: pulls unit vectors of one class together and pushes others apart, over all pairs of a batch (Sun et
    /// al. 2020).
    Circle {
        /// Scale γ of the cosines.
        #[serde(default = 80.0)]
        gamma: f64,
        /// Margin between similarities within and across classes.
        #[serde(default = 0.4)]
        margin: f64,
        /// Whether to exclude pairs of a vector with itself.
        #[serde(default = true)]
        remove_diagonal: bool,
    },
    /// Connectionist temporal classification: −ln of the probability of an unaligned label sequence; class 0 is the
    /// blank, predictions are logits.
    CTC,
    /// Generalized cross-entropy (1 − p\[y\]^q) / q for class indices y: between cross-entropy (q near 0) and the mean
    /// absolute error (1), which is robust to label noise.
    CategoricalGeneralizedCrossEntropy {
        /// Exponent q, between 0 and 1.
        #[serde(default = 0.5)]
        q: f64,
    },
    /// A custom loss: [`Loss::custom`] or a [`CustomLoss`].
    Custom(UserLoss),
    /// A loss with another class axis or reduction: see [`Loss::axis`] and [`Loss::reduction`].
    #[serde(skip)]
    Adapted {
        /// Wrapped loss.
        loss: Box<Loss>,
        /// Class axis.
        axis: i64,
        /// Reduction over samples.
        reduction: Reduction,
    },
}

/// Parses an axis or a list of axes.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<i64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected an axis or a list of axes: -1 or [1, 2]")]
    enum AxisOrAxes {
        One(i64),
        Several(Vec<i64>),
    }
    Ok(match AxisOrAxes::deserialize(deserializer)? {
        AxisOrAxes::One(axis) => vec![axis],
        AxisOrAxes::Several(axes) => axes,
    })
}

impl<L: CustomLoss + 'static> From<L> for Loss {
    #[track_caller]
    fn from(loss: L) -> Loss {
        Loss::Custom(UserLoss::new(loss))
    }
}

/// How the losses of samples are reduced: mean, sum, or mean by sample weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Σ w·l / number of values, so that weights of mean 1 keep the loss's scale. Keras's default.
    #[default]
    #[serde(alias = "mean")]
    SumOverBatchSize,
    /// Σ w·l.
    Sum,
    /// Σ w·l / Σ w.
    MeanWithSampleWeight,
}

/// Registers losses. Each row gives the variant, the constructor (also the name in configurations) and aliases.
macro_rules! losses {
    ($($variant:ident $function:ident $($other:literal)*;)*) => {
        /// Names of losses that [`Loss::from_str`] accepts, in addition to the abbreviations `mse`, `mae`, `mape`,
        /// `msle`, `kld` and `bce`.
        pub const NAMES: [&str; [$(stringify!($function)),*].len()] = [$(stringify!($function)),*];

        impl FromStr for Loss {
            type Err = Error;

            /// Returns the loss with Keras's defaults: predictions are probabilities, no label smoothing.
            fn from_str(name: &str) -> Result<Loss> {
                match name {
                    $(stringify!($function) $(| $other)* => Ok($function()),)*
                    _ => Err(unknown(&format!("unknown loss `{name}`"), name, &NAMES)),
                }
            }
        }

        impl Loss {
            /// Returns Keras's name of the loss, or the custom loss's name.
            pub fn name(&self) -> &str {
                match self {
                    $(Loss::$variant { .. } => stringify!($function),)*
                    Loss::Custom(own) => own.get().name(),
                    Loss::Adapted { loss, .. } => loss.name(),
                }
            }
        }
    };
}

losses! {
    SparseCategoricalCrossentropy sparse_categorical_crossentropy;
    CategoricalCrossentropy categorical_crossentropy;
    BinaryCrossentropy binary_crossentropy "bce";
    MeanSquaredError mean_squared_error "mse" "MSE";
    MeanAbsoluteError mean_absolute_error "mae" "MAE";
    Huber huber;
    MeanAbsolutePercentageError mean_absolute_percentage_error "mape" "MAPE";
    MeanSquaredLogarithmicError mean_squared_logarithmic_error "msle" "MSLE";
    CosineSimilarity cosine_similarity;
    LogCosh log_cosh "logcosh";
    Hinge hinge;
    SquaredHinge squared_hinge;
    CategoricalHinge categorical_hinge;
    KLDivergence kl_divergence "kld" "KLD";
    Poisson poisson;
    BinaryFocalCrossentropy binary_focal_crossentropy;
    CategoricalFocalCrossentropy categorical_focal_crossentropy;
    Dice dice "Dice";
    Tversky tversky;
    Circle circle;
    CTC ctc "CTC";
    CategoricalGeneralizedCrossEntropy categorical_generalized_cross_entropy;
}

/// Probabilities are clipped this far from 0 and 1 before taking the logarithm.
const EPSILON: f64 = 1e-7;

/// Chainable settings. A setting that the loss does not have is ignored.
impl Loss {
    /// Sets the focusing exponent γ of focal losses: how strongly easy samples are down-weighted.
    pub fn gamma(mut self, value: f64) -> Loss {
        if let Loss::BinaryFocalCrossentropy { gamma, .. }
        | Loss::CategoricalFocalCrossentropy { gamma, .. } = self.base_mut()
        {
            *gamma = value;
        }
        self
    }

    /// Returns `from_logits` and `label_smoothing` of cross-entropies.
    fn of_crossentropy(&mut self) -> Option<(&mut bool, Option<&mut f64>)> {
        match self.base_mut() {
            Loss::SparseCategoricalCrossentropy { from_logits, .. } => Some((from_logits, None)),
            Loss::CategoricalCrossentropy { from_logits, label_smoothing }
            | Loss::BinaryCrossentropy { from_logits, label_smoothing }
            | Loss::BinaryFocalCrossentropy { from_logits, label_smoothing, .. }
            | Loss::CategoricalFocalCrossentropy { from_logits, label_smoothing, .. } => {
                Some((from_logits, Some(label_smoothing)))
            }
            _ => None,
        }
    }

    /// Sets whether the loss gets logits rather than probabilities as predictions.
    pub fn from_logits(mut self, yes: bool) -> Loss {
        if let Some((from_logits, _)) = self.of_crossentropy() {
            *from_logits = yes;
        }
        self
    }

    /// Sets label smoothing of categorical and binary cross-entropies: mixes targets with the uniform distribution.
    pub fn label_smoothing(mut self, amount: f64) -> Loss {
        if let Some((_, Some(label_smoothing))) = self.of_crossentropy() {
            *label_smoothing = amount;
        }
        self
    }

    /// Ignores labels of this class in sparse categorical cross-entropy.
    pub fn ignore_class(mut self, class: i64) -> Loss {
        if let Loss::SparseCategoricalCrossentropy { ignore_class, .. } = self.base_mut() {
            *ignore_class = Some(class);
        }
        self
    }

    /// Creates a loss from a function `y_true: T[B, …], y_pred: f32[B, …] → f32[B, …]`, as Keras accepts functions. For
    /// a loss with arguments, a mask or class indices as labels see [`CustomLoss`].
    ///
    /// ```
    /// use systole_nn::loss::Loss;
    /// let log_cosh = Loss::custom("log_cosh", |y_true, y_pred| {
    ///     let error = y_pred - y_true;
    ///     (&error + (&error * -2.0).softplus() - 2f64.ln()).mean(&[error.rank() - 1])
    /// });
    /// assert!(log_cosh.check().is_ok());
    /// ```
    #[track_caller]
    pub fn custom(name: &str, f: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + 'static) -> Loss {
        Loss::Custom(UserLoss::of_function(name, f))
    }

    /// Validates the loss's arguments.
    ///
    /// # Errors
    /// If label smoothing is outside 0 to 1, another argument is out of range, or a custom name is invalid.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        match self {
            Loss::Adapted { loss, axis: 0, .. } if !matches!(loss.base(), Loss::Custom(_)) => wrong(
                "axis is 0".into(),
                "axis 0 is the batch: set the axis of the classes, such as -1 for the last",
            ),
            Loss::Adapted { loss, .. } => loss.check(),
            Loss::CategoricalCrossentropy { label_smoothing: s, .. }
            | Loss::BinaryCrossentropy { label_smoothing: s, .. }
            | Loss::BinaryFocalCrossentropy { label_smoothing: s, .. }
            | Loss::CategoricalFocalCrossentropy { label_smoothing: s, .. }
                if !(0.0..=1.0).contains(s) =>
            {
                wrong(format!("label_smoothing is {s}"), "choose a value from 0 to 1; the usual one is 0.1")
            }
            Loss::Huber { delta } if !(*delta > 0.0 && delta.is_finite()) => {
                wrong(format!("delta is {delta}"), "choose a value above 0; the usual one is 1")
            }
            Loss::BinaryFocalCrossentropy { gamma, .. }
            | Loss::CategoricalFocalCrossentropy { gamma, .. }
                if !(*gamma >= 0.0 && gamma.is_finite()) =>
            {
                wrong(format!("gamma is {gamma}"), "choose a value of at least 0; the usual one is 2")
            }
            Loss::Tversky { alpha, beta, .. }
                if !(*alpha >= 0.0 && *beta >= 0.0 && (alpha + beta).is_finite()) =>
            {
                wrong(
                    format!("alpha is {alpha} and beta is {beta}"),
                    "choose values of at least 0; 0.5 gives Dice",
                )
            }
            Loss::Circle { gamma, margin, .. } if !(*gamma > 0.0 && (0.0..=1.0).contains(margin)) => wrong(
                format!("gamma is {gamma} and margin is {margin}"),
                "choose gamma above 0 and a margin from 0 to 1; the usual values are 80 and 0.4",
            ),
            Loss::CategoricalGeneralizedCrossEntropy { q } if !(*q > 0.0 && *q < 1.0) => {
                wrong(format!("q is {q}"), "choose a value between 0 and 1; the usual one is 0.5")
            }
            Loss::Custom(own) => own.check(),
            _ => Ok(()),
        }
    }

    /// Returns the type of one label for an output of this type.
    pub(crate) fn label(&self, output: &TensorType) -> TensorType {
        match (self, output.shape.dims()) {
            (
                Loss::SparseCategoricalCrossentropy { .. }
                | Loss::Circle { .. }
                | Loss::CTC
                | Loss::CategoricalGeneralizedCrossEntropy { .. },
                [rest @ .., _],
            ) => TensorType::new(DType::I32, rest),
            (Loss::Custom(own), _) => own.get().label(output),
            (Loss::Adapted { loss, axis, .. }, _) => loss.label_along(*axis, output),
            _ => output.clone(),
        }
    }
}

/// Traced computation of the loss.
impl Loss {
    /// Computes the weighted mean loss over the batch, `y_true, y_pred: T[B, …, C] → f32[]`, as Keras's `loss(y_true,
    /// y_pred)`.
    #[track_caller]
    pub fn value<'a>(
        &self,
        y_true: &Tensor,
        y_pred: impl Into<Prediction<'a>>,
        sample_weight: Option<&Tensor>,
    ) -> Tensor {
        self.value_of_counted(y_true, y_pred, sample_weight, None)
    }

    /// Like [`Loss::value`], but only time steps with `counts: bool[B, S]` contribute to the mean.
    #[track_caller]
    pub(crate) fn value_of_counted<'a>(
        &self,
        y_true: &Tensor,
        y_pred: impl Into<Prediction<'a>>,
        sample_weight: Option<&Tensor>,
        counts: Option<&Tensor>,
    ) -> Tensor {
        let (values, how) = (self.per_sample(y_true, y_pred), self.reduced());
        let mask = self.mask(y_true, &values);
        if let Some(counts) = counts.filter(|_| values.rank() > 0 && !values.is_poisoned()) {
            let counts = aligned(&values, counts).broadcast_to(values.shape());
            let counts = mask.map_or_else(|| counts.clone(), |mask| &counts * mask);
            return Loss::reduce_counted(how, &values, sample_weight, &counts);
        }
        let Some(mut mask) = mask else { return Loss::reduce_by(how, &values, sample_weight) };
        if how == Reduction::SumOverBatchSize {
            // Ignored labels are excluded from the denominator too; Keras's ε avoids 0 / 0 for a batch of ignored
            // labels.
            let (count, total) = (values.shape().elements() as f64, mask.sum_all());
            mask = mask * (total.scalar_like(count) / (total + EPSILON));
        }
        let weight = sample_weight.map(|w| aligned(&values, w));
        Loss::reduce_by(how, &values, Some(&weight.map_or(mask.clone(), |w| w * mask)))
    }

    /// Computes the loss of each sample, pixel or token, `y_true, y_pred: T[B, …, C] → f32[B, …]`.
    ///
    /// Labels may lack the last axis (sparse cross-entropy) or have size 1 there. Incompatible labels are an error of
    /// the graph; a class index outside 0..C gives NaN.
    #[track_caller]
    pub fn per_sample<'a>(&self, y_true: &Tensor, y_pred: impl Into<Prediction<'a>>) -> Tensor {
        let pred: Prediction = y_pred.into();
        let last = |x: &Tensor| [x.rank().saturating_sub(1)];
        match *self {
            Loss::SparseCategoricalCrossentropy { from_logits, ignore_class } => {
                let (x, is_logits) = scores(pred, from_logits);
                let Some(y) = self.class_numbers(y_true, &x) else { return poisoned(y_true) };
                sparse_crossentropy(&y, &x, is_logits, ignore_class)
            }
            Loss::CategoricalCrossentropy { from_logits, label_smoothing } => {
                let (x, is_logits) = scores(pred, from_logits);
                let Some((t, x)) = self.same_shape(y_true, &x) else { return poisoned(y_true) };
                let classes = x.dim(-1) as f64;
                let t = smoothed(&t, label_smoothing, 1.0 / classes);
                if is_logits {
                    return -(t * x.log_softmax()).sum(&last(&x));
                }
                let sum = x.sum(&last(&x)).broadcast_except(x.shape(), &last(&x));
                -(t * clipped(&(&x / sum)).log()).sum(&last(&x))
            }
            Loss::BinaryCrossentropy { from_logits, label_smoothing } => {
                let (x, is_logits) = scores(pred, from_logits);
                let Some((t, x)) = self.same_shape(y_true, &x) else { return poisoned(y_true) };
                let t = smoothed(&t, label_smoothing, 0.5);
                mean_last(&if is_logits {
                    binary_from_logits(&t, &x)
                } else {
                    binary_from_probabilities(&t, &x)
                })
            }
            Loss::CategoricalGeneralizedCrossEntropy { q } => {
                let p = pred.value.convert(DType::F32);
                let Some(y) = self.class_numbers(y_true, &p) else { return poisoned(y_true) };
                formulas::generalized_crossentropy(&y, &p, q)
            }
            Loss::Circle { gamma, margin, remove_diagonal } => {
                let p = pred.value.convert(DType::F32);
                match self.class_numbers(y_true, &p).filter(|_| p.rank() == 2) {
                    Some(y) => formulas::circle(&y, &p, gamma, margin, remove_diagonal),
                    None => poisoned(y_true),
                }
            }
            Loss::CTC => self.of_sequences(y_true, &pred.value.convert(DType::F32)),
            Loss::Adapted { ref loss, axis, .. } => loss.along(axis, y_true, pred),
            Loss::Custom(ref own) => {
                let (t, p) = as_given(y_true, pred.value);
                own.per_sample(&t, &p)
            }
            _ => match self.same_shape(y_true, &pred.value.convert(DType::F32)) {
                Some((t, p)) => self.of_values(&t, &p),
                None => poisoned(y_true),
            },
        }
    }

    /// Returns the equivalent loss for labels that are class probabilities; `None` if the loss has no classes.
    pub(crate) fn of_shares(&self) -> Option<Loss> {
        match *self {
            Loss::SparseCategoricalCrossentropy { from_logits, .. } => {
                Some(Loss::CategoricalCrossentropy { from_logits, label_smoothing: 0.0 })
            }
            Loss::CategoricalCrossentropy { .. } => Some(self.clone()),
            Loss::Adapted { ref loss, axis: -1, reduction } => Some(loss.of_shares()?.reduction(reduction)),
            _ => None,
        }
    }

    /// CTC loss `y_true: int[B, L], x: f32[B, T, C] → f32[B]`.
    #[track_caller]
    fn of_sequences(&self, y_true: &Tensor, x: &Tensor) -> Tensor {
        if (y_true.rank(), x.rank()) == (2, 3) && y_true.dim(0) == x.dim(0) && x.dim(1) > 0 {
            return ctc::ctc(&as_index(y_true).convert(DType::I32), x);
        }
        let why = "expected labels as class indices [batch, labels], padded with 0, and predictions as logits [batch, steps, classes]";
        self.refuse::<Tensor>(y_true, x, why, "give the last layer one unit for each class and the blank");
        poisoned(y_true)
    }

    /// Losses of labels and predictions with equal shapes, `t, p: f32[B, …, C] → f32[B, …]`.
    fn of_values(&self, t: &Tensor, p: &Tensor) -> Tensor {
        match *self {
            Loss::MeanAbsoluteError => mean_last(&(t - p).abs()),
            Loss::Huber { delta } => {
                let e = t - p;
                let size = e.abs();
                let (near, far) = ((&e * &e) * 0.5, &size * delta - 0.5 * delta * delta);
                mean_last(&size.less_equal(&size.scalar_like(delta)).select(&near, &far))
            }
            Loss::MeanAbsolutePercentageError => formulas::absolute_percentage(t, p),
            Loss::MeanSquaredLogarithmicError => formulas::squared_logarithmic(t, p),
            Loss::CosineSimilarity => formulas::cosine(t, p),
            Loss::LogCosh => formulas::log_cosh(t, p),
            Loss::Hinge => mean_last(&formulas::hinge(t, p)),
            Loss::SquaredHinge => {
                let hinge = formulas::hinge(t, p);
                mean_last(&(&hinge * &hinge))
            }
            Loss::CategoricalHinge => formulas::categorical_hinge(t, p),
            Loss::KLDivergence => formulas::divergence(t, p),
            Loss::Dice { ref axis } | Loss::Tversky { ref axis, .. } => {
                let rank = p.rank() as i64;
                let axes: Vec<i64> = axis.iter().map(|a| if *a < 0 { a + rank } else { *a }).collect();
                if let Some(wrong) = axes.iter().find(|a| !(0..rank).contains(*a)) {
                    let why = format!("axis {wrong} is out of range for {rank} dimensions");
                    self.refuse::<Tensor>(t, p, &why, "remove axis, or choose axes of the predictions");
                    return poisoned(t);
                }
                let mut axes: Vec<usize> = axes.into_iter().map(|a| a as usize).collect();
                axes.sort_unstable();
                axes.dedup();
                let axes = if axes.is_empty() { (0..p.rank()).collect() } else { axes };
                match *self {
                    Loss::Tversky { alpha, beta, .. } => formulas::tversky(t, p, alpha, beta, &axes),
                    _ => formulas::dice(t, p, &axes),
                }
            }
            Loss::Poisson => formulas::poisson(t, p),
            Loss::BinaryFocalCrossentropy {
                apply_class_balancing,
                alpha,
                gamma,
                from_logits,
                label_smoothing,
            } => {
                let t = smoothed(t, label_smoothing, 0.5);
                let p = if from_logits { p.logistic() } else { p.clone() };
                mean_last(&formulas::binary_focal(&t, &p, apply_class_balancing.then_some(alpha), gamma))
            }
            Loss::CategoricalFocalCrossentropy { alpha, gamma, from_logits, label_smoothing } => {
                let t = smoothed(t, label_smoothing, 1.0 / p.dim(-1) as f64);
                let p = if from_logits { p.softmax() } else { p.clone() };
                formulas::categorical_focal(&t, &p, alpha, gamma)
            }
            _ => mean_last(&((t - p) * (t - p))),
        }
    }

    /// Reduces per-sample losses to their weighted mean Σ w·l / number of values: `values: f32[B, …], sample_weight:
    /// T[B] or longer → f32[]`.
    #[track_caller]
    pub fn reduce(values: &Tensor, sample_weight: Option<&Tensor>) -> Tensor {
        Loss::reduce_by(Reduction::SumOverBatchSize, values, sample_weight)
    }

    /// Reduces masked values: `values, counts: f32[B, …] → f32[]`: Σ w·l·counts / Σ counts, and 0 if nothing counts.
    /// Depending on the loss's reduction, the sum only, or divided by Σ w·counts.
    fn reduce_counted(
        how: Reduction,
        values: &Tensor,
        sample_weight: Option<&Tensor>,
        counts: &Tensor,
    ) -> Tensor {
        let weight = sample_weight.map(|w| aligned(values, w).broadcast_to(values.shape()));
        let weighed = weight.as_ref().map_or_else(|| values.clone(), |w| values * w);
        let zero = values.zeros_like();
        let kept = counts.not_equal(&zero).select(&(weighed * counts), &zero).sum_all();
        let total = match (how, weight) {
            (Reduction::Sum, _) => return kept,
            (Reduction::MeanWithSampleWeight, Some(w)) => (w * counts).sum_all(),
            _ => counts.sum_all(),
        };
        let none = total.equal(&total.zeros_like());
        none.select(&total.zeros_like(), &(kept / none.select(&total.ones_like(), &total)))
    }

    /// Reduces per-sample losses like [`Loss::reduce`], with the given reduction.
    #[track_caller]
    pub fn reduce_by(how: Reduction, values: &Tensor, sample_weight: Option<&Tensor>) -> Tensor {
        // A single value for the batch counts once per weight, as in Keras.
        let spread = sample_weight.filter(|_| values.rank() == 0).map(|w| values.broadcast_to(w.shape()));
        let values = spread.as_ref().unwrap_or(values);
        let weight = sample_weight.map(|w| aligned(values, w));
        let sum = weight.as_ref().map_or(values.clone(), |w| values * w).sum_all();
        let count = values.shape().elements() as f64;
        match (how, weight) {
            (Reduction::Sum, _) => sum,
            (Reduction::MeanWithSampleWeight, Some(w)) => {
                let total = w.broadcast_to(values.shape()).sum_all();
                let zero = total.zeros_like();
                let is_zero = total.equal(&zero);
                is_zero.select(&zero, &(sum / is_zero.select(&total.ones_like(), &total)))
            }
            _ => sum / count,
        }
    }

    /// Returns a mask `→ f32[…]` with the shape of `values`: 0 for labels of the ignored class, otherwise 1. `None` if
    /// no class is ignored.
    #[track_caller]
    pub fn mask(&self, y_true: &Tensor, values: &Tensor) -> Option<Tensor> {
        if let Loss::Adapted { loss, .. } = self {
            return loss.mask(y_true, values);
        }
        if let Loss::Custom(own) = self {
            let mask = own.mask(y_true)?;
            return Some(aligned(values, &mask).broadcast_to(values.shape()));
        }
        if let Loss::Circle { .. } = self {
            // A vector whose pairs all satisfy the margin does not count.
            return Some(values.greater(&values.zeros_like()).convert(DType::F32));
        }
        let Loss::SparseCategoricalCrossentropy { ignore_class: Some(class), .. } = *self else {
            return None;
        };
        if values.is_poisoned() {
            return Some(values.clone());
        }
        let y = as_index(y_true).reshape(values.shape());
        Some(y.not_equal(&y.scalar_like(class as f64)).convert(DType::F32))
    }

    /// Returns labels as integers with the predictions' shape without its last axis.
    fn class_numbers(&self, y_true: &Tensor, x: &Tensor) -> Option<Tensor> {
        let expected = &x.shape()[..x.rank().saturating_sub(1)];
        let labels = match y_true.shape().dims() {
            [rest @ .., 1] if rest == expected => y_true.reshape(rest),
            dims if dims == expected && x.rank() > 0 => y_true.clone(),
            dims => {
                let hint = if x.rank() > 0 && dims == x.shape().dims() {
                    "use categorical_crossentropy for one-hot labels"
                } else {
                    "give one class index for each prediction"
                };
                return self.refuse(
                    y_true,
                    x,
                    "expected class indices as labels, one for each row of predictions",
                    hint,
                );
            }
        };
        if x.dim(-1) == 1 {
            let hint =
                "use binary_crossentropy for one output, or give the last layer one unit for each class";
            return self.refuse(y_true, x, "the loss of a single class is always 0", hint);
        }
        Some(as_index(&labels))
    }

    /// Returns labels and predictions in f32 with equal shapes; a last axis of size 1 may be missing.
    fn same_shape(&self, y_true: &Tensor, x: &Tensor) -> Option<(Tensor, Tensor)> {
        let t = y_true.convert(DType::F32);
        match squeezed_or_expanded(&t, x) {
            (t, x) if t.shape() == x.shape() && x.rank() > 0 => Some((t, x)),
            _ => {
                let hint = match self {
                    Loss::CategoricalCrossentropy { .. } => {
                        "use sparse_categorical_crossentropy for class indices"
                    }
                    _ => "give the last layer as many units as a label has values",
                };
                self.refuse(y_true, x, "expected labels with the shape of the predictions", hint)
            }
        }
    }

    fn refuse<T>(&self, y_true: &Tensor, x: &Tensor, why: &str, hint: &str) -> Option<T> {
        let what = format!("labels {} are incompatible with predictions {}", y_true.ty(), x.ty());
        let error = Error::new(ErrorKind::Graph, what).at(format!("loss {}", self.name()));
        y_true.fail(error.because(why).hint(hint));
        None
    }
}

/// Returns a cross-entropy's input in f32, and whether it is logits.
fn scores(pred: Prediction, from_logits: bool) -> (Tensor, bool) {
    match pred.logits {
        Some(x) => (x.convert(DType::F32), true),
        None => (pred.value.convert(DType::F32), from_logits),
    }
}

/// Returns labels and predictions for a custom function: floats in f32, integers unchanged, ranks adapted as in Keras.
pub(crate) fn as_given(y_true: &Tensor, y_pred: &Tensor) -> (Tensor, Tensor) {
    let t = if y_true.dtype().is_float() { y_true.convert(DType::F32) } else { y_true.clone() };
    squeezed_or_expanded(&t, &y_pred.convert(DType::F32))
}

/// Returns a poisoned tensor for a graph whose error is already recorded.
fn poisoned(like: &Tensor) -> Tensor {
    like.fail(err!(Graph, "labels are incompatible with predictions"))
}

/// Converts labels to signed integers wide enough to compare with any class index.
pub(crate) fn as_index(y: &Tensor) -> Tensor {
    match y.dtype() {
        DType::I32 | DType::I64 => y.clone(),
        DType::U32 | DType::U64 => y.convert(DType::I64),
        _ => y.convert(DType::I32),
    }
}

/// Gathers the score of each label's class, `y: I[…], x: T[…, C] → T[…]`, and bool\[…\] whether the class exists.
///
/// Uses comparison and sum, not gather: it fuses with surrounding ops and its derivative is a select.
pub(crate) fn score_of(y: &Tensor, x: &Tensor) -> (Tensor, Tensor) {
    let last = [x.rank().saturating_sub(1)];
    let wide = y.broadcast_except(x.shape(), &last);
    let places = x.builder().iota(wide.ty().clone(), last[0]);
    let picked = wide.equal(&places).select(x, &x.zeros_like()).sum(&last);
    let classes = y.scalar_like(x.dim(-1) as f64);
    let known = y.greater_equal(&y.zeros_like()).and(&y.less(&classes));
    (picked, known)
}

pub(crate) fn mean_last(x: &Tensor) -> Tensor {
    x.sum(&[x.rank().saturating_sub(1)]) / x.dim(-1) as f64
}

/// Applies Keras's rule for ranks that differ by one: a last axis of 1 is dropped, or added to a tensor of rank 1.
pub(crate) fn squeezed_or_expanded(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let adapt = |long: &Tensor, short: &Tensor| match (long.shape().dims(), short.rank()) {
        ([_, 1], 1) => (long.clone(), short.reshape([short.dim(0), 1])),
        ([rest @ .., 1], n) if rest.len() == n => (long.reshape(rest), short.clone()),
        _ => (long.clone(), short.clone()),
    };
    if a.rank() > b.rank() {
        adapt(a, b)
    } else {
        let (b, a) = adapt(b, a);
        (a, b)
    }
}

/// Converts sample weights to f32, broadcastable to `values`: missing axes are the trailing ones.
#[track_caller]
pub(crate) fn aligned(values: &Tensor, weight: &Tensor) -> Tensor {
    let weight = weight.convert(DType::F32);
    let mut dims = weight.shape().to_vec();
    while dims.len() > values.rank() && dims.last() == Some(&1) {
        dims.pop();
    }
    let fits =
        dims.len() <= values.rank() && dims.iter().zip(values.shape().iter()).all(|(w, v)| w == v || *w == 1);
    if !fits {
        let what = format!(
            "sample weights {} are incompatible with values of shape {}",
            weight.ty(),
            values.shape()
        );
        let error = Error::new(ErrorKind::Graph, what).hint("give one weight for each sample: shape [batch]");
        return weight.fail(error);
    }
    dims.resize(values.rank(), 1);
    let shape = Shape::from(dims);
    if shape == *weight.shape() { weight } else { weight.reshape(TensorType::new(DType::F32, shape).shape) }
}
