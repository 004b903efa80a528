//! What training reports: values by name for each epoch.

use systole_data::PipelineReport;

/// A step that spends less of its time waiting for data does not really wait.
const WAITED: f64 = 0.05;

/// Loss and metrics by name, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs(Vec<(String, f64)>);

impl Logs {
    /// No values.
    pub fn new() -> Logs {
        Logs::default()
    }

    /// Sets a value.
    pub fn insert(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(n, v)| (n.as_str(), *v))
    }

    /// Adds all of `other` under `prefix`.
    pub fn extend_with_prefix(&mut self, prefix: &str, other: &Logs) {
        other.iter().for_each(|(n, v)| self.insert(format!("{prefix}{n}"), v));
    }
}

impl std::ops::Index<&str> for Logs {
    type Output = f64;

    /// The value of a name.
    ///
    /// # Panics
    /// When there is none; [`Logs::get`] does not.
    fn index(&self, name: &str) -> &f64 {
        match self.0.iter().find(|(n, _)| n == name) {
            Some((_, v)) => v,
            None => panic!("no value `{name}` was logged"),
        }
    }
}

/// The epoch that was the best.
#[derive(Clone, Debug, PartialEq)]
pub struct BestEpoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// What was watched: `val_loss`.
    pub monitor: String,
    /// How good it was.
    pub value: f64,
}

/// A validation in the middle of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Steps of the run before it.
    pub step: u64,
    /// Its values, under names with `val_`.
    pub logs: Logs,
}

/// What `fit` returns.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Values of each epoch that was finished (or interrupted after at least one step).
    pub epochs: Vec<Logs>,
    /// Validations in the middle of epochs ([`Fit::val_check_interval`](crate::Fit::val_check_interval)), in order.
    pub validations: Vec<Validation>,
    /// Number of the first epoch, from 0.
    pub initial_epoch: usize,
    /// Wall-clock milliseconds of each step, waiting for data included: from when the step before it had ended, or the host
    /// turned to this one, until it had ended, whoever computes it.
    pub step_ms: Vec<f32>,
    /// Milliseconds of each step that were spent waiting for data. Where a device works by itself, those in which it had
    /// nothing to do.
    pub wait_ms: Vec<f32>,
    /// Milliseconds of each step that the host waited for a device which works by itself; 0 where it computes the steps.
    pub device_wait_ms: Vec<f32>,
    /// What the stages of the training data did, how they were tuned and why; `None` where no step was taken. Without
    /// `steps_per_epoch` every epoch runs the pipeline anew: this is the last one's.
    pub data: Option<PipelineReport>,
    /// Milliseconds that steps stood still for each backup.
    pub backup_ms: Vec<f32>,
    /// Samples trained on.
    pub samples: u64,
    /// The epoch whose model [`Fit::best`](crate::Fit::best) kept.
    pub best: Option<BestEpoch>,
    /// What went wrong without ending training: backups, checkpoints and logs that could not be written.
    pub notes: Vec<String>,
    /// Whether the user stopped it.
    pub interrupted: bool,
    /// Why it ended early, when a callback or the data did that.
    pub stopped_because: Option<String>,
}

impl History {
    /// One value of every epoch that has it.
    pub fn get(&self, name: &str) -> Vec<f64> {
        self.epochs.iter().filter_map(|e| e.get(name)).collect()
    }

    /// The last epoch's values.
    pub fn last(&self) -> Logs {
        self.epochs.last().cloned().unwrap_or_default()
    }

    /// Milliseconds of all steps, the first left out where there are others: it compiles.
    fn all_ms(each: &[f32]) -> f64 {
        each.iter().skip(usize::from(each.len() > 1)).map(|ms| f64::from(*ms)).sum()
    }

    /// Milliseconds of all steps, waiting for data included and compiling left out.
    pub fn total_step_ms(&self) -> f64 {
        History::all_ms(&self.step_ms)
    }

    /// The part of the steps' time that went by waiting for data, 0 to 1.
    pub fn data_wait(&self) -> f64 {
        match self.total_step_ms() {
            0.0 => 0.0,
            all => (History::all_ms(&self.wait_ms) / all).min(1.0),
        }
    }

    /// The part of the steps' time that the host waited for a device which works by itself, 0 to 1. It says how much of
    /// its time the host has left, and no more.
    pub fn device_wait(&self) -> f64 {
        match self.total_step_ms() {
            0.0 => 0.0,
            all => (History::all_ms(&self.device_wait_ms) / all).min(1.0),
        }
    }

    /// In plain words: compute-bound, or input-bound with the slow stage and what a program can do, where that helps. Empty
    /// where no step was taken.
    pub fn verdict(&self) -> String {
        self.told(PipelineReport::verdict)
    }

    /// As [`verdict`](History::verdict), without what to do.
    pub fn finding(&self) -> String {
        self.told(PipelineReport::finding)
    }

    fn told(&self, verdict: fn(&PipelineReport, f64) -> String) -> String {
        let Some(report) = &self.data else { return String::new() };
        match self.steps_that_waited() {
            // What happens now and then, as at the start of an epoch, says nothing about how fast data come.
            (few, all) if 2 * few < all && self.data_wait() >= WAITED => format!(
                "compute-bound: {:.1} % of the time went to waiting for data, in {few} of {all} steps",
                100.0 * self.data_wait()
            ),
            _ => verdict(report, self.data_wait()),
        }
    }

    /// How many steps spent more than a little of their time waiting, of how many.
    fn steps_that_waited(&self) -> (usize, usize) {
        let each = self.step_ms.iter().zip(&self.wait_ms).skip(usize::from(self.step_ms.len() > 1));
        let waited = each.clone().filter(|(step, wait)| f64::from(**wait) >= WAITED * f64::from(**step));
        (waited.count(), each.count())
    }

    /// Whether most steps waited for data.
    pub fn waits_steadily(&self) -> bool {
        let (few, all) = self.steps_that_waited();
        2 * few >= all && self.data_wait() >= WAITED
    }

    /// Median step time in milliseconds, the first step (which compiles) left out where there are others.
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

    /// A run whose steps took 10 ms, of which those of `waits` went to waiting.
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
