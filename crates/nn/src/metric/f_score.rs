//! F1 and F-beta scores.

use super::{MetricBatch, MetricRule, refused, wrong};
use crate::json::{Deserialize, Serialize};
use crate::setters::arguments;
use systole_ir::{DType, Result, Tensor};

/// How F-scores of several classes are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Average {
    /// From the counts of all classes together.
    Micro,
    /// Mean of the classes' scores.
    Macro,
    /// Mean weighted by class frequency.
    Weighted,
}

/// F1 score: harmonic mean of precision and recall, for one-hot or multi-label targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, skip_serializing_none)]
pub struct F1Score {
    /// `micro`, `macro` or `weighted`. Default: one result for each class.
    pub average: Option<Average>,
    /// Scores above it count as 1. Default: the highest score of each sample counts as 1.
    pub threshold: Option<f64>,
}

arguments! {
    /// F-beta score: recall weighted β times as much as precision.
    #[serde(skip_serializing_none)]
    pub struct FBetaScore {
        /// `micro`, `macro` or `weighted`. Default: one result for each class.
        pub average: Option<Average> = None,
        /// Weight of recall relative to precision. Keras: 1.
        pub beta: f64 = 1.0,
        /// Scores above it count as 1. Default: the highest score of each sample counts as 1.
        pub threshold: Option<f64> = None,
    }
}

/// Keras's ε, which avoids 0 / 0.
const EPSILON: f64 = 1e-7;

impl FBetaScore {
    fn scores(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        let [tp, fp, fne, there] = sums else { return Vec::new() };
        let square = self.beta * self.beta;
        let one = |i: usize| {
            let precision = tp[i] / (tp[i] + fp[i] + EPSILON);
            let recall = tp[i] / (tp[i] + fne[i] + EPSILON);
            (1.0 + square) * (precision * recall / (square * precision + recall + EPSILON))
        };
        let scores: Vec<f64> = (0..tp.len()).map(one).collect();
        match self.average {
            None => scores,
            Some(Average::Weighted) => {
                let total: f64 = there.iter().sum::<f64>() + EPSILON;
                vec![scores.iter().zip(there).map(|(s, w)| s * (w / total)).sum()]
            }
            Some(_) => vec![scores.iter().sum::<f64>() / scores.len().max(1) as f64],
        }
    }
}

impl MetricRule for FBetaScore {
    fn check(&self) -> Result<()> {
        if !(self.beta > 0.0 && self.beta.is_finite()) {
            return Err(wrong(
                format!("beta is {}", self.beta),
                "choose a value above 0; the usual one is 1",
            ));
        }
        match self.threshold {
            Some(t) if !(t > 0.0 && t <= 1.0) => {
                Err(wrong(format!("threshold is {t}"), "choose a value above 0 and at most 1"))
            }
            _ => Ok(()),
        }
    }

    fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)> {
        let classes = if self.average == Some(Average::Micro) { 1 } else { outputs };
        let names = ["true_positives", "false_positives", "false_negatives", "intermediate_weights"];
        names.map(|name| (name, vec![classes])).to_vec()
    }

    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        let Some((t, p)) =
            seen.same_shape(&seen.pred.value.convert(DType::F32)).filter(|(t, _)| t.rank() == 2)
        else {
            let hint = "use labels and predictions of shape [batch, classes]; convert class indices with to_categorical";
            return vec![refused(seen, "an F-score needs labels for each class", hint); 4];
        };
        let chosen = match self.threshold {
            Some(limit) => p.greater(&p.scalar_like(limit)),
            None => {
                let most = p.reduce_max(&[1]).broadcast_except(p.shape(), &[1]);
                p.greater_equal(&most).and(&p.abs().greater(&p.scalar_like(1e-9)))
            }
        };
        let chosen = chosen.convert(DType::F32);
        let weight = seen.weight.map(|w| crate::loss::aligned(&p, w).broadcast_to(p.shape()));
        let sum = |x: Tensor| {
            let x = weight.as_ref().map_or(x.clone(), |w| x * w);
            match self.average {
                Some(Average::Micro) => x.sum_all().reshape([1]),
                _ => x.sum(&[0]),
            }
            .convert(DType::F64)
        };
        vec![sum(&chosen * &t), sum(&chosen * (1.0 - &t)), sum((1.0 - &chosen) * &t), sum(t.clone())]
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        self.scores(sums)
    }
}

impl F1Score {
    fn general(&self) -> FBetaScore {
        FBetaScore { average: self.average, beta: 1.0, threshold: self.threshold }
    }
}

impl MetricRule for F1Score {
    fn check(&self) -> Result<()> {
        self.general().check()
    }

    fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)> {
        self.general().slots(outputs)
    }

    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        self.general().sums(seen)
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        self.general().scores(sums)
    }
}
