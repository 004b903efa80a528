//! Training history returned by `fit`: logs per epoch, step times, input bottleneck analysis.

use systole_data::PipelineReport;

/// Minimum fraction of a step's time spent waiting for data to count as waiting.
const WAITED: f64 = 0.05;

/// Key of the model's note that names the weights that `fit` kept, if they are not those after the last step.
pub(crate) const WEIGHTS_NOTE: &str = "weights";

/// Values of loss and metrics by name, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs(Vec<(String, f64)>);

impl Logs {
    /// Creates empty logs.
    pub fn new() -> Logs {
        Logs::default()
    }

    /// Sets a value of the logs.
    pub fn insert(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns a value of the logs by name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    /// Iterates over names and values of the logs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(n, v)| (n.as_str(), *v))
    }

    /// Adds all values of `other` with `prefix` before their names.
    pub fn extend_with_prefix(&mut self, prefix: &str, other: &Logs) {
        other.iter().for_each(|(n, v)| self.insert(format!("{prefix}{n}"), v));
    }
}

impl std::ops::Index<&str> for Logs {
    type Output = f64;

    /// Returns a value by name.
    ///
    /// # Panics
    /// If the name is missing; use [`Logs::get`] to avoid that.
    fn index(&self, name: &str) -> &f64 {
        match self.0.iter().find(|(n, _)| n == name) {
            Some((_, v)) => v,
            None => panic!("no value `{name}` was logged"),
        }
    }
}

/// The best epoch of a run and its monitored value.
#[derive(Clone, Debug, PartialEq)]
pub struct BestEpoch {
    /// Epoch number, from 1.
    pub epoch: usize,
    /// Name of the monitored value: `val_loss`.
    pub monitor: String,
    /// Monitored value in that epoch.
    pub value: f64,
}

/// Results of a validation during an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// Epoch, from 0.
    pub epoch: usize,
    /// Number of steps of the run before it.
    pub step: u64,
    /// Logs, with names that start with `val_`.
    pub logs: Logs,
}

/// Result of `fit`: logs per epoch, timing and notes.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Logs of each epoch that finished (or was interrupted after at least one step).
    pub epochs: Vec<Logs>,
    /// Validations during epochs ([`Fit::val_check_interval`](crate::Fit::val_check_interval)), in order.
    pub validations: Vec<Validation>,
    /// Number of the first epoch, from 0.
    pub initial_epoch: usize,
    /// Wall-clock milliseconds of each step, including waiting for data. A step is timed from the end of the previous
    /// step, or from its start on the host, until it finishes.
    pub step_ms: Vec<f32>,
    /// Milliseconds of each step spent waiting for data. With an asynchronous device, the time that the device was
    /// idle.
    pub wait_ms: Vec<f32>,
    /// Milliseconds of each step that the host waited for an asynchronous device; 0 if the host computes the steps.
    pub device_wait_ms: Vec<f32>,
    /// Report on the stages of the training pipeline and their autotuning; `None` without steps. Without
    /// `steps_per_epoch` every epoch restarts the pipeline, and this is the last epoch's report.
    pub data: Option<PipelineReport>,
    /// Milliseconds that steps were blocked by each backup.
    pub backup_ms: Vec<f32>,
    /// Number of samples trained on.
    pub samples: u64,
    /// Epoch of the model that [`Fit::best`](crate::Fit::best) kept.
    pub best: Option<BestEpoch>,
    /// Whether the last validation measured the final weights: no average and no callback has replaced them since.
    pub is_final_validated: bool,
    /// Failures that did not stop training: backups, checkpoints and logs that could not be written.
    pub notes: Vec<String>,
    /// Whether the user interrupted the run.
    pub interrupted: bool,
    /// Reason for an early stop by a callback or the end of the data.
    pub stopped_because: Option<String>,
}

impl History {
    /// Returns the logged value of this name for every epoch that has one.
    pub fn get(&self, name: &str) -> Vec<f64> {
        self.epochs.iter().filter_map(|e| e.get(name)).collect()
    }

    /// Returns the loss and metrics of the last epoch.
    pub fn last(&self) -> Logs {
        self.epochs.last().cloned().unwrap_or_default()
    }

    /// Sum over all steps, without the first (which compiles) if there are others.
    fn all_ms(each: &[f32]) -> f64 {
        each.iter().skip(usize::from(each.len() > 1)).map(|ms| f64::from(*ms)).sum()
    }

    /// Returns the milliseconds of all steps, including waiting for data, excluding compilation.
    pub fn total_step_ms(&self) -> f64 {
        History::all_ms(&self.step_ms)
    }

    /// Fraction of the steps' time spent waiting for data, 0 to 1.
    pub fn data_wait(&self) -> f64 {
        match self.total_step_ms() {
            0.0 => 0.0,
            all => (History::all_ms(&self.wait_ms) / all).min(1.0),
        }
    }

    /// Fraction of the steps' time that the host waited for an asynchronous device, 0 to 1: the host's spare time.
    pub fn device_wait(&self) -> f64 {
        match self.total_step_ms() {
            0.0 => 0.0,
            all => (History::all_ms(&self.device_wait_ms) / all).min(1.0),
        }
    }

    /// Reports whether training is compute-bound or input-bound, with the slow stage and a suggestion if useful. Empty
    /// without steps.
    pub fn verdict(&self) -> String {
        self.told(PipelineReport::verdict)
    }

    /// Like [`verdict`](History::verdict), without a suggestion.
    pub fn finding(&self) -> String {
        self.told(PipelineReport::finding)
    }

    fn told(&self, verdict: fn(&PipelineReport, f64) -> String) -> String {
        let Some(report) = &self.data else { return String::new() };
        match self.steps_that_waited() {
            // Occasional waits, such as at the start of an epoch, do not make training input-bound.
            (few, all) if 2 * few < all && self.data_wait() >= WAITED => format!(
                "compute-bound: {:.1} % of the time went to waiting for data, in {few} of {all} steps",
                100.0 * self.data_wait()
            ),
            _ => verdict(report, self.data_wait()),
        }
    }

    /// Number of steps that waited for data, and number of all steps.
    fn steps_that_waited(&self) -> (usize, usize) {
        let each = self.step_ms.iter().zip(&self.wait_ms).skip(usize::from(self.step_ms.len() > 1));
        let waited = each.clone().filter(|(step, wait)| f64::from(**wait) >= WAITED * f64::from(**step));
        (waited.count(), each.count())
    }

    /// Whether most training steps waited for data.
    pub fn waits_steadily(&self) -> bool {
        let (few, all) = self.steps_that_waited();
        2 * few >= all && self.data_wait() >= WAITED
    }

    /// Median step time in milliseconds, without the first step (which compiles) if there are others.
    pub fn median_step_ms(&self) -> f64 {
        let mut ms: Vec<f32> =
            self.step_ms.iter().copied().skip(usize::from(self.step_ms.len() > 1)).collect();
        ms.sort_by(f32::total_cmp);
        ms.get(ms.len() / 2).copied().unwrap_or(0.0) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_data::Dataset;

    /// Creates a history of 10 ms steps with these waiting times.
    fn run(waits: &[f32]) -> History {
        let data = Dataset::range(4);
        let mut elements = data.iter();
        elements.next();
        History {
            step_ms: vec![10.0; waits.len()],
            wait_ms: waits.to_vec(),
            data: Some(elements.report()),
            ..History::default()
        }
    }

    #[test]
    fn waiting_now_and_then_is_no_bound() {
        let start = run(&[9.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(
            start.verdict(),
            "compute-bound: 20.0 % of the time went to waiting for data, in 2 of 9 steps"
        );
        assert!(!start.waits_steadily());
        let steady = run(&[9.0, 4.0, 4.0, 4.0, 4.0]);
        assert!(steady.verdict().starts_with("input-bound: 40.0 %") && steady.waits_steadily());
        assert!(steady.verdict().contains("prefetch(AUTOTUNE)") && !steady.finding().contains("prefetch"));
        let hardly = run(&[9.0, 0.1, 0.1, 0.1, 0.1]);
        assert!(hardly.verdict().starts_with("compute-bound: 1.0 %"), "{}", hardly.verdict());
    }
}
