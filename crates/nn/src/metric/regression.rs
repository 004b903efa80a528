//! Regression metrics: R², root mean squared error, cosine similarity, Pearson and concordance correlation.

use super::{MetricBatch, MetricRule, mean_slots, refused, share, weighted_sums, wrong};
use crate::json::{Deserialize, Serialize};
use crate::setters::arguments;
use systole_ir::{DType, Result, Tensor};

/// Root mean squared error metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RootMeanSquaredError {}

impl MetricRule for RootMeanSquaredError {
    fn slots(&self, _: usize) -> Vec<(&'static str, Vec<usize>)> {
        mean_slots()
    }

    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        match seen.same_shape(&seen.pred.value.convert(DType::F32)) {
            Some((t, p)) => weighted_sums(&((&p - &t) * (&p - &t)), None, seen.weight),
            None => vec![seen.pred.value.convert(DType::F64); 2],
        }
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        vec![share(sums[0][0], sums[1][0]).sqrt()]
    }
}

/// How the regression metric's results of several outputs are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Mean.
    UniformAverage,
    /// Mean weighted by the variance of each output's labels.
    VarianceWeightedAverage,
    /// No aggregation, one result for each output: Keras's `None`.
    None,
}

arguments! {
    /// Coefficient of determination R²: 1 − Σ(t − p)² / Σ(t − mean)².
    pub struct R2Score {
        /// `uniform_average`, `variance_weighted_average` or `none`. Keras: `uniform_average`.
        pub class_aggregation: Aggregation = Aggregation::UniformAverage,
        /// Number of independent regressors, for the adjusted R²; 0: plain R².
        pub num_regressors: usize = 0,
    }
}

impl MetricRule for R2Score {
    fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)> {
        let mut slots =
            ["squared_sum", "sum", "residual", "count"].map(|name| (name, vec![outputs])).to_vec();
        slots.push(("num_samples", Vec::new()));
        slots
    }

    /// In f64, because the variance is a difference of large sums.
    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        let Some((t, p)) =
            seen.same_shape(&seen.pred.value.convert(DType::F32)).filter(|(t, _)| t.rank() == 2)
        else {
            return vec![
                refused(
                    seen,
                    "R² needs labels for each output",
                    "use labels and predictions of shape [batch, outputs]"
                );
                5
            ];
        };
        let weight =
            seen.weight.map_or(p.ones_like(), |w| crate::loss::aligned(&p, w).broadcast_to(p.shape()));
        let [t, p, w] = [t, p, weight].map(|x| x.convert(DType::F64));
        let error = &t - &p;
        let number = t.builder().scalar(DType::F64, t.shape().elements() as f64);
        let sum = |x: Tensor| x.sum(&[0]);
        vec![sum(&t * &t * &w), sum(&t * &w), sum(&error * &error * &w), sum(w), number]
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        let [squares, sum, residual, count, number] = sums else { return Vec::new() };
        let total = |i: usize| squares[i] - sum[i] * (sum[i] / count[i]);
        let score = |i: usize| match 1.0 - residual[i] / total(i) {
            s if s.is_infinite() => 0.0,
            s => s,
        };
        let all = 0..squares.len();
        let scores: Vec<f64> = match self.class_aggregation {
            Aggregation::None => all.map(score).collect(),
            Aggregation::UniformAverage => {
                vec![all.clone().map(score).sum::<f64>() / all.len().max(1) as f64]
            }
            Aggregation::VarianceWeightedAverage => {
                vec![all.clone().map(|i| total(i) * score(i)).sum::<f64>() / all.map(total).sum::<f64>()]
            }
        };
        let (n, regressors) = (number[0], self.num_regressors as f64);
        // With too few samples, falls back to plain R², as Keras does.
        if self.num_regressors == 0 || regressors >= n - 1.0 {
            return scores;
        }
        scores.into_iter().map(|s| 1.0 - (1.0 - s) * (n - 1.0) / (n - regressors - 1.0)).collect()
    }
}

macro_rules! along_an_axis {
    ($($name:ident, $values:ident;)*) => {
        $(impl Default for $name {
            fn default() -> $name {
                $name { axis: -1 }
            }
        }

        impl MetricRule for $name {
            fn check(&self) -> Result<()> {
                match self.axis {
                    0 => Err(wrong("axis 0 is the batch axis".into(), "choose -1 (the last axis) or an axis from 1 up")),
                    _ => Ok(()),
                }
            }

            fn slots(&self, _: usize) -> Vec<(&'static str, Vec<usize>)> {
                mean_slots()
            }

            fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
                let Some((t, p)) = seen.same_shape(&seen.pred.value.convert(DType::F32)) else {
                    return vec![seen.pred.value.convert(DType::F64); 2];
                };
                let rank = p.rank() as i64;
                let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
                if !(1..rank).contains(&axis) {
                    let hint = format!("choose an axis from 1 to {}, or -1", rank - 1);
                    return vec![refused(seen, "axis is out of range for the predictions", &hint); 2];
                }
                weighted_sums(&$values(&t, &p, axis as usize), None, seen.weight)
            }

            fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
                vec![share(sums[0][0], sums[1][0])]
            }
        })*
    };
}

along_an_axis! {
    CosineSimilarity, cosine;
    PearsonCorrelation, pearson;
    ConcordanceCorrelation, concordance;
}

/// Mean cosine similarity of labels and predictions: 1 for the same direction; the loss of this name is its negative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CosineSimilarity {
    /// Axis of the vectors; −1 is the last. Keras: −1.
    pub axis: i64,
}

/// Mean Pearson correlation between labels and predictions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PearsonCorrelation {
    /// Axis of the vectors; −1 is the last. Keras: −1.
    pub axis: i64,
}

/// Mean concordance correlation (Lin), which also requires equal means and variances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConcordanceCorrelation {
    /// Axis of the vectors; −1 is the last. Keras: −1.
    pub axis: i64,
}

fn mean_kept(x: &Tensor, axis: usize) -> Tensor {
    (x.sum(&[axis]) / x.dim(axis as isize) as f64).broadcast_except(x.shape(), &[axis])
}

fn cosine(t: &Tensor, p: &Tensor, axis: usize) -> Tensor {
    let unit = |x: &Tensor| {
        let longest = x.scalar_like(1e7);
        x * (x * x).sum(&[axis]).rsqrt().minimum(&longest).broadcast_except(x.shape(), &[axis])
    };
    (unit(t) * unit(p)).sum(&[axis])
}

fn pearson(t: &Tensor, p: &Tensor, axis: usize) -> Tensor {
    let scaled = |x: &Tensor| {
        let from_mean = x - mean_kept(x, axis);
        let deviation = mean_kept(&(&from_mean * &from_mean), axis).sqrt();
        from_mean / deviation
    };
    (scaled(t) * scaled(p)).sum(&[axis]) / p.dim(axis as isize) as f64
}

fn concordance(t: &Tensor, p: &Tensor, axis: usize) -> Tensor {
    let (t_mean, p_mean) = (mean_kept(t, axis), mean_kept(p, axis));
    let variance = |x: &Tensor, mean: &Tensor| {
        let d = x - mean;
        mean_kept(&(&d * &d), axis)
    };
    let between = &t_mean - &p_mean;
    // As in Keras: both deviations are from the predictions' mean.
    let covariance = (t - &p_mean) * (p - &p_mean);
    let norm = variance(t, &t_mean) + variance(p, &p_mean) + &between * &between;
    (covariance * 2.0 / (norm + 1e-7)).sum(&[axis]) / p.dim(axis as isize) as f64
}
