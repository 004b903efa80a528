//! Monitored values: lookup in the logs, and whether lower or higher is better.

use crate::json::{Deserialize, Serialize};
use crate::model::history::Logs;
use systole_ir::{Result, err};

/// Whether lower or higher values of a monitored metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// From the name: higher is better for accuracies, precision, recall and AUC; lower for everything else.
    #[default]
    Auto,
    /// Lower is better.
    Min,
    /// Higher is better.
    Max,
}

/// Whether higher is better for a value of this name: accuracy, not loss.
pub fn grows(monitor: &str) -> bool {
    let words = [
        "acc",
        "precision",
        "recall",
        "auc",
        "top_k",
        "f1_",
        "fbeta",
        "r2_",
        "iou",
        "correlation",
        "cosine",
        "sensitivity",
        "specificity",
        "true_positives",
        "true_negatives",
    ];
    words.iter().any(|word| monitor.contains(word))
}

/// Whether higher is better for a monitored value.
pub(crate) fn is_upward(mode: Mode, monitor: &str) -> bool {
    mode == Mode::Max || (mode == Mode::Auto && grows(monitor))
}

/// Returns a monitored value; `None` if it was not measured this time.
pub(crate) fn watched(monitor: &str, logs: &Logs) -> Result<Option<f64>> {
    if let Some(value) = logs.get(monitor) {
        return Ok(Some(value));
    }
    // Validation may run only every few epochs: then the value is missing in between.
    if monitor.strip_prefix("val_").is_some_and(|plain| logs.get(plain).is_some()) {
        return Ok(None);
    }
    let known: Vec<&str> = logs.iter().map(|(n, _)| n).collect();
    Err(err!(Config, "a callback monitors {monitor}, which is not measured")
        .hint(format!("measured are: {}", known.join(", "))))
}

/// Whether the logs contain validation values.
pub(crate) fn is_validated(logs: &Logs) -> bool {
    logs.iter().any(|(name, _)| name.starts_with("val_"))
}

/// Whether a value improves on the best so far by more than `min_delta`.
pub(crate) fn is_better(value: f64, best: Option<f64>, upward: bool, min_delta: f64) -> bool {
    match best {
        None => !value.is_nan(),
        Some(best) if upward => value > best + min_delta.abs(),
        Some(best) => value < best - min_delta.abs(),
    }
}

/// Best monitored value so far.
#[derive(Clone, Debug)]
pub(crate) struct BestValue {
    monitor: String,
    pub(crate) best: Option<f64>,
}

impl BestValue {
    pub(crate) fn new(monitor: &str, best: Option<f64>) -> BestValue {
        BestValue { monitor: monitor.into(), best }
    }

    /// Whether this epoch's value is the best so far; `None` if it was not measured this epoch.
    pub(crate) fn improved(&mut self, logs: &Logs) -> Result<Option<bool>> {
        let Some(value) = watched(&self.monitor, logs)? else { return Ok(None) };
        let better = is_better(value, self.best, grows(&self.monitor), 0.0);
        if better {
            self.best = Some(value);
        }
        Ok(Some(better))
    }
}
