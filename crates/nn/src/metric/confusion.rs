//! Confusion-matrix metrics at thresholds: true/false positives and negatives, precision at recall, AUC.

use super::{MetricBatch, MetricRule, refused, share, wrong};
use crate::json::{Deserialize, Serialize};
use crate::loss::aligned;
use crate::setters::arguments;
use systole_ir::{DType, Literal, Result, Tensor};

/// Value that `top_k` gives to scores outside the k highest, and a threshold below all other scores.
const BELOW_ALL: f64 = -1e10;

/// Cell of the confusion matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfusionCell {
    TruePositives,
    FalsePositives,
    TrueNegatives,
    FalseNegatives,
}

impl ConfusionCell {
    pub(super) const ALL: [ConfusionCell; 4] = [
        ConfusionCell::TruePositives,
        ConfusionCell::TrueNegatives,
        ConfusionCell::FalsePositives,
        ConfusionCell::FalseNegatives,
    ];

    pub(super) fn slot(self) -> &'static str {
        match self {
            ConfusionCell::TruePositives => "true_positives",
            ConfusionCell::FalsePositives => "false_positives",
            ConfusionCell::TrueNegatives => "true_negatives",
            ConfusionCell::FalseNegatives => "false_negatives",
        }
    }
}

/// How scores are thresholded into positives and negatives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thresholding<'a> {
    pub thresholds: &'a [f64],
    /// Only the k highest scores of a row can be positive.
    pub top_k: Option<usize>,
    /// Only this class counts.
    pub class_id: Option<usize>,
    /// Whether each column is counted separately.
    pub multi_label: bool,
    /// Weights of the columns.
    pub label_weights: &'a [f64],
    pub from_logits: bool,
}

impl Thresholding<'_> {
    /// Returns the total sample weight in each cell of the confusion matrix, `→ f64[T]`, or `f64[T, L]` with several
    /// labels.
    #[track_caller]
    pub fn count(&self, seen: &MetricBatch, cells: &[ConfusionCell]) -> Vec<Tensor> {
        let Some((t, p, weight)) = self.columns(seen) else {
            return vec![seen.pred.value.convert(DType::F64); cells.len()];
        };
        let [n, labels] = [t.dim(0), t.dim(1)];
        let deep = |x: &Tensor| x.reshape([n, 1, labels]);
        let (above, weight) = (self.above(&deep(&p)), deep(&weight));
        let positive = deep(&t).not_equal(&weight.zeros_like());
        let sum = |which: Tensor| {
            let zero = weight.scalar_like(0.0);
            let sum = which.select(&weight, &zero).sum(&[0]).convert(DType::F64);
            if labels == 1 && !self.multi_label { sum.reshape([self.thresholds.len()]) } else { sum }
        };
        let of = |cell: &ConfusionCell| match cell {
            ConfusionCell::TruePositives => sum(above.and(&positive)),
            ConfusionCell::FalsePositives => sum(above.and(&positive.not())),
            ConfusionCell::FalseNegatives => sum(above.not().and(&positive)),
            ConfusionCell::TrueNegatives => sum(above.not().and(&positive.not())),
        };
        cells.iter().map(of).collect()
    }

    /// Returns labels, scores and weights as `f32[N, L]`: one column unless `multi_label`.
    fn columns(&self, seen: &MetricBatch) -> Option<(Tensor, Tensor, Tensor)> {
        let value = seen.pred.value.convert(DType::F32);
        let (t, mut p) = seen.same_shape(&if self.from_logits { value.logistic() } else { value })?;
        let last = p.rank().saturating_sub(1);
        let classes = if p.rank() == 0 { 0 } else { p.dim(-1) };
        let wants = self.top_k.unwrap_or(0).max(self.class_id.map_or(0, |c| c + 1));
        if wants > classes || (self.class_id.is_some() && p.rank() < 2) {
            let hint = format!(
                "use a top_k of at most {classes} and a class_id below it: the size of the predictions' last axis"
            );
            refused(seen, "the predictions have too few classes", &hint);
            return None;
        }
        if self.multi_label && p.rank() != 2 {
            refused(
                seen,
                "multi_label requires predictions of rank 2",
                "use predictions [batch, labels], or set multi_label = false",
            );
            return None;
        }
        let mut weight = match seen.weight {
            Some(w) => aligned(&p, w).broadcast_to(p.shape()),
            None => p.ones_like(),
        };
        if !self.label_weights.is_empty() && !self.multi_label {
            let own = seen.constant(&[self.label_weights.len()], self.label_weights);
            weight = weight * own.broadcast_to(p.shape());
        }
        if let Some(k) = self.top_k {
            let (_, places) = p.top_k(k);
            let kept = places.one_hot(classes, DType::F32).sum(&[last]).greater(&p.zeros_like());
            p = kept.select(&p, &p.scalar_like(BELOW_ALL).broadcast_to(p.shape()));
        }
        let narrow = |x: &Tensor| match self.class_id {
            Some(class) => x.slice_dim(last, class, class + 1),
            None => x.clone(),
        };
        let shape = if self.multi_label { [p.dim(0), classes] } else { [narrow(&p).shape().elements(), 1] };
        Some((narrow(&t).reshape(shape), narrow(&p).reshape(shape), narrow(&weight).reshape(shape)))
    }

    /// `p: f32[N, 1, L] → bool[N, T, L]`: whether scores exceed the thresholds. For evenly spaced thresholds Keras
    /// computes a score's bin by a product, whose rounding decides for scores equal to a threshold; this does the same.
    fn above(&self, p: &Tensor) -> Tensor {
        let n = self.thresholds.len();
        let shape = [1, n, 1];
        let constant = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
            match Literal::from_slice(shape, &values) {
                Ok(l) => p.builder().constant(l),
                Err(e) => p.fail(e),
            }
        };
        if !is_even(self.thresholds) {
            return p.greater(&constant(self.thresholds));
        }
        let mut limits: Vec<f64> = (0..n).map(|i| i as f64).collect();
        if self.thresholds[0] < 0.0 || self.thresholds[n - 1] > 1.0 {
            limits[0] = -1.0;
        }
        let within = p.clamp(&p.scalar_like(0.0), &p.scalar_like(1.0));
        (within * (n as f64 - 1.0)).greater(&constant(&limits))
    }
}

/// Whether thresholds are 0, 1 / (n − 1) … 1, within the tolerance of NumPy's `allclose`.
fn is_even(thresholds: &[f64]) -> bool {
    let n = thresholds.len();
    let place = |i: usize| (i as f32 / (n as f32 - 1.0)) as f64;
    n >= 3 && thresholds.iter().enumerate().all(|(i, t)| (t - place(i)).abs() <= 1e-7 + 1e-5 * place(i))
}

/// Returns 0, 1 / (n − 1) … 1.
fn evenly(n: usize) -> Vec<f64> {
    if n == 1 { vec![0.5] } else { (0..n).map(|i| i as f64 / (n as f64 - 1.0)).collect() }
}

/// Rejects thresholds outside 0 to 1.
pub(super) fn check_thresholds(thresholds: &[f64]) -> Result<()> {
    match thresholds.iter().find(|t| !(0.0..=1.0).contains(*t)) {
        Some(t) => Err(wrong(
            format!("threshold {t} is outside 0 to 1"),
            "choose values from 0 to 1; the usual one is 0.5",
        )),
        None => Ok(()),
    }
}

/// Returns the thresholds of precision and recall; with `top_k` and none given, all k picked scores count.
pub(super) fn thresholds_of(given: &[f64], top_k: Option<usize>) -> Vec<f64> {
    match (given, top_k) {
        ([], None) => vec![0.5],
        ([], Some(_)) => vec![BELOW_ALL],
        (given, _) => given.to_vec(),
    }
}

pub(super) fn check_number(name: &str, number: usize, least: usize) -> Result<()> {
    if number >= least {
        return Ok(());
    }
    Err(wrong(format!("{name} is {number}"), &format!("choose an integer of at least {least}")))
}

macro_rules! counts {
    ($($name:ident;)*) => {
        $(impl MetricRule for $name {
            fn check(&self) -> Result<()> {
                check_thresholds(&self.thresholds)
            }

            fn slots(&self, _: usize) -> Vec<(&'static str, Vec<usize>)> {
                vec![("accumulator", vec![self.thresholds.len()])]
            }

            fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
                Thresholding { thresholds: &self.thresholds, ..Thresholding::default() }.count(seen, &[ConfusionCell::$name])
            }

            fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
                sums.first().cloned().unwrap_or_default()
            }
        })*
    };
}

counts! {
    TruePositives;
    TrueNegatives;
    FalsePositives;
    FalseNegatives;
}

arguments! {
    /// Metric: number of samples labelled 1 with a score above the threshold.
    pub struct TruePositives {
        /// Thresholds; one result for each. Keras: 0.5.
        pub thresholds: Vec<f64> = vec![0.5],
    }
}

arguments! {
    /// Metric: number of samples labelled 0 with a score of at most the threshold.
    pub struct TrueNegatives {
        /// Thresholds; one result for each. Keras: 0.5.
        pub thresholds: Vec<f64> = vec![0.5],
    }
}

arguments! {
    /// Metric: number of samples labelled 0 with a score above the threshold.
    pub struct FalsePositives {
        /// Thresholds; one result for each. Keras: 0.5.
        pub thresholds: Vec<f64> = vec![0.5],
    }
}

arguments! {
    /// Metric: number of samples labelled 1 with a score of at most the threshold.
    pub struct FalseNegatives {
        /// Thresholds; one result for each. Keras: 0.5.
        pub thresholds: Vec<f64> = vec![0.5],
    }
}

/// Sensitivity, specificity and precision at one threshold.
struct ThresholdRates {
    sensitivity: f64,
    specificity: f64,
    precision: f64,
}

fn shares(sums: &[Vec<f64>]) -> Vec<ThresholdRates> {
    let [tp, tn, fp, fne] = sums else { return Vec::new() };
    let one = |i: usize| ThresholdRates {
        sensitivity: share(tp[i], tp[i] + fne[i]),
        specificity: share(tn[i], tn[i] + fp[i]),
        precision: share(tp[i], tp[i] + fp[i]),
    };
    (0..tp.len()).map(one).collect()
}

macro_rules! bests {
    ($($name:ident, $key:ident, $held:ident => $best:ident;)*) => {
        $(impl MetricRule for $name {
            fn check(&self) -> Result<()> {
                check_number("num_thresholds", self.num_thresholds, 1)?;
                match (0.0..=1.0).contains(&self.$key) {
                    true => Ok(()),
                    false => Err(wrong(format!("{} is {}", stringify!($key), self.$key), "choose a number from 0 to 1")),
                }
            }

            fn slots(&self, _: usize) -> Vec<(&'static str, Vec<usize>)> {
                ConfusionCell::ALL.map(|c| (c.slot(), vec![self.num_thresholds])).to_vec()
            }

            fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
                let thresholds = evenly(self.num_thresholds);
                let cut = Thresholding { thresholds: &thresholds, class_id: self.class_id, ..Thresholding::default() };
                cut.count(seen, &ConfusionCell::ALL)
            }

            fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
                let enough = shares(sums).into_iter().filter(|s| s.$held >= self.$key);
                vec![enough.map(|s| s.$best).fold(0.0, f64::max)]
            }
        })*
    };
}

bests! {
    SensitivityAtSpecificity, specificity, specificity => sensitivity;
    SpecificityAtSensitivity, sensitivity, sensitivity => specificity;
    PrecisionAtRecall, recall, sensitivity => precision;
    RecallAtPrecision, precision, precision => sensitivity;
}

arguments! {
    /// Highest sensitivity over thresholds where the specificity is at least the given value.
    #[serde(skip_serializing_none)]
    pub struct SensitivityAtSpecificity {
        /// Minimum specificity; Keras has no default.
        pub specificity: f64 = 0.5,
        /// Number of thresholds, evenly spaced from 0 to 1. Keras: 200.
        pub num_thresholds: usize = 200,
        /// Only this class counts.
        pub class_id: Option<usize> = None,
    }
}

arguments! {
    /// Highest specificity over thresholds where the sensitivity is at least the given value.
    #[serde(skip_serializing_none)]
    pub struct SpecificityAtSensitivity {
        /// Minimum sensitivity; Keras has no default.
        pub sensitivity: f64 = 0.5,
        /// Number of thresholds, evenly spaced from 0 to 1. Keras: 200.
        pub num_thresholds: usize = 200,
        /// Only this class counts.
        pub class_id: Option<usize> = None,
    }
}

arguments! {
    /// Highest precision over thresholds where the recall is at least the given value.
    #[serde(skip_serializing_none)]
    pub struct PrecisionAtRecall {
        /// Minimum recall; Keras has no default.
        pub recall: f64 = 0.5,
        /// Number of thresholds, evenly spaced from 0 to 1. Keras: 200.
        pub num_thresholds: usize = 200,
        /// Only this class counts.
        pub class_id: Option<usize> = None,
    }
}

arguments! {
    /// Highest recall over thresholds where the precision is at least the given value.
    #[serde(skip_serializing_none)]
    pub struct RecallAtPrecision {
        /// Minimum precision; Keras has no default.
        pub precision: f64 = 0.5,
        /// Number of thresholds, evenly spaced from 0 to 1. Keras: 200.
        pub num_thresholds: usize = 200,
        /// Only this class counts.
        pub class_id: Option<usize> = None,
    }
}

/// Curve whose area [`AUC`] computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AucCurve {
    /// Receiver operating characteristic: recall over false-positive rate.
    #[default]
    #[serde(alias = "roc")]
    ROC,
    /// Precision over recall.
    #[serde(alias = "pr")]
    PR,
    /// Precision gain over recall gain.
    #[serde(alias = "prgain")]
    PRGAIN,
}

/// How the curve of [`AUC`] is interpolated between two thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Summation {
    /// Mean of both values; for `PR` the interpolation of Davis and Goadrich.
    #[default]
    Interpolation,
    /// The larger value.
    Majoring,
    /// The smaller value.
    Minoring,
}

arguments! {
    /// Area under the ROC or precision-recall curve: 1 for perfect separation; 0.5 for chance with ROC.
    pub struct AUC {
        /// Number of thresholds, evenly spaced from 0 to 1. Keras: 200.
        pub num_thresholds: usize = 200,
        /// `ROC`, `PR` or `PRGAIN`. Keras: `ROC`.
        pub curve: AucCurve = AucCurve::ROC,
        /// `interpolation`, `majoring` or `minoring`. Keras: `interpolation`.
        pub summation_method: Summation = Summation::Interpolation,
        /// Thresholds between 0 and 1, in place of `num_thresholds`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub thresholds: Vec<f64> = Vec::new(),
        /// Whether each column is a separate label; the areas are averaged.
        pub multi_label: bool = false,
        /// Number of labels. Default: the number of model outputs.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub num_labels: Option<usize> = None,
        /// Weight of each label. Default: equal.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub label_weights: Vec<f64> = Vec::new(),
        /// Whether predictions are logits, not probabilities.
        pub from_logits: bool = false,
    }
}

impl AUC {
    /// Returns the thresholds, from below 0 to above 1.
    fn limits(&self) -> Vec<f64> {
        let mut limits = match self.thresholds.is_empty() {
            true => evenly(self.num_thresholds),
            false => [&[0.0], &self.thresholds[..], &[1.0]].concat(),
        };
        limits.sort_by(f64::total_cmp);
        if let [first, .., last] = &mut limits[..] {
            (*first, *last) = (-1e-7, 1.0 + 1e-7);
        }
        limits
    }

    /// Computes the area from the counts at each threshold.
    fn area(&self, cells: [&[f64]; 4]) -> f64 {
        let [tp, tn, fp, fne] = cells;
        if self.curve == AucCurve::PR && self.summation_method == Summation::Interpolation {
            return interpolated(tp, fp, fne);
        }
        let point = |i: usize| {
            let recall = share(tp[i], tp[i] + fne[i]);
            match self.curve {
                AucCurve::ROC => (share(fp[i], fp[i] + tn[i]), recall),
                AucCurve::PR => (recall, share(tp[i], tp[i] + fp[i])),
                AucCurve::PRGAIN if tp[i] == 0.0 => (0.0, 1.0),
                AucCurve::PRGAIN => {
                    let factor = share(tp[i] + fne[i], tn[i] + fp[i]);
                    let gain = |lost: f64| 1.0 - factor * share(lost, tp[i]);
                    (gain(fne[i]).max(0.0), gain(fp[i]))
                }
            }
        };
        let points: Vec<(f64, f64)> = (0..tp.len()).map(point).collect();
        let height = |a: f64, b: f64| match self.summation_method {
            Summation::Interpolation => (a + b) / 2.0,
            Summation::Minoring => a.min(b),
            Summation::Majoring => a.max(b),
        };
        points.windows(2).map(|w| (w[0].0 - w[1].0) * height(w[0].1, w[1].1)).sum()
    }
}

/// Area under the precision-recall curve with true positives interpolated between thresholds (Davis and Goadrich 2006).
fn interpolated(tp: &[f64], fp: &[f64], fne: &[f64]) -> f64 {
    let between = |i: usize| {
        let (p, next) = (tp[i] + fp[i], tp[i + 1] + fp[i + 1]);
        let gained = tp[i] - tp[i + 1];
        let slope = share(gained, (p - next).max(0.0));
        let intercept = tp[i + 1] - slope * next;
        let ratio = if p > 0.0 && next > 0.0 { p / next } else { 1.0 };
        share(slope * (gained + intercept * ratio.ln()), (tp[i + 1] + fne[i + 1]).max(0.0))
    };
    (0..tp.len().saturating_sub(1)).map(between).sum()
}

impl MetricRule for AUC {
    fn check(&self) -> Result<()> {
        check_thresholds(&self.thresholds)?;
        check_number("num_thresholds", self.num_thresholds, 2)?;
        match (self.num_labels, self.multi_label) {
            (Some(_), false) => Err(wrong(
                "num_labels requires multi_label = true".into(),
                "set multi_label = true, or remove num_labels",
            )),
            _ => Ok(()),
        }
    }

    fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)> {
        let mut shape = vec![self.limits().len()];
        if self.multi_label {
            shape.push(self.num_labels.unwrap_or(outputs));
        }
        ConfusionCell::ALL.map(|c| (c.slot(), shape.clone())).to_vec()
    }

    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        let cut = Thresholding {
            thresholds: &self.limits(),
            multi_label: self.multi_label,
            label_weights: &self.label_weights,
            from_logits: self.from_logits,
            ..Thresholding::default()
        };
        cut.count(seen, &ConfusionCell::ALL)
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        let [tp, tn, fp, fne] = sums else { return Vec::new() };
        let labels = (tp.len() / self.limits().len()).max(1);
        let column =
            |all: &[f64], l: usize| all.iter().copied().skip(l).step_by(labels).collect::<Vec<f64>>();
        let area = |l: usize| self.area([&column(tp, l), &column(tn, l), &column(fp, l), &column(fne, l)]);
        let weight =
            |l: usize| if self.multi_label { self.label_weights.get(l).copied().unwrap_or(1.0) } else { 1.0 };
        let total: f64 = (0..labels).map(weight).sum();
        vec![share((0..labels).map(|l| area(l) * weight(l)).sum(), total)]
    }
}
