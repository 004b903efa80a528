//! State of the terminal dashboard, built from progress events and captured lines.

use crate::progress::called;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use systole_nn::progress::ProgressEvent;

/// Number of log lines to keep.
const LINES: usize = 200;

/// Progress of the run.
pub(super) struct DashboardState {
    pub(super) began: Instant,
    /// Current epoch, from 0.
    pub(super) epoch: usize,
    pub(super) epochs: usize,
    pub(super) step: usize,
    pub(super) steps: Option<usize>,
    /// Steps of this epoch from before the run was resumed.
    before: usize,
    pub(super) elapsed: Duration,
    pub(super) data_wait: f64,
    pub(super) device_wait: f64,
    /// Loss and metrics of the current epoch so far.
    pub(super) values: Vec<(String, f64)>,
    /// Values per finished epoch, by epoch number from 1.
    pub(super) curves: Vec<(String, Vec<(f64, f64)>)>,
    /// Mean loss of consecutive steps.
    pub(super) by_step: Vec<(f64, f64)>,
    pub(super) lines: VecDeque<String>,
    /// Resident memory in MiB.
    pub(super) memory: Option<f64>,
    pub(super) is_stopping: bool,
}

impl DashboardState {
    pub(super) fn new() -> DashboardState {
        DashboardState {
            began: Instant::now(),
            epoch: 0,
            epochs: 0,
            step: 0,
            steps: None,
            before: 0,
            elapsed: Duration::ZERO,
            data_wait: 0.0,
            device_wait: 0.0,
            values: Vec::new(),
            curves: Vec::new(),
            by_step: Vec::new(),
            lines: VecDeque::new(),
            memory: None,
            is_stopping: false,
        }
    }

    /// Handles one event.
    pub(super) fn take(&mut self, event: &ProgressEvent<'_>) {
        match event {
            ProgressEvent::EpochBegin { epoch, epochs, steps, before } => {
                (self.epoch, self.epochs, self.steps) = (*epoch, *epochs, *steps);
                (self.step, self.before, self.elapsed) = (*before, *before, Duration::ZERO);
            }
            ProgressEvent::Batch { step, steps, elapsed, data_wait, device_wait, logs } => {
                (self.step, self.steps, self.elapsed) = (*step, *steps, *elapsed);
                (self.data_wait, self.device_wait) = (*data_wait, *device_wait);
                self.values = logs.iter().map(|(name, v)| (called(name), v)).collect();
            }
            ProgressEvent::EpochEnd { step, steps, elapsed, logs, .. } => {
                (self.step, self.steps, self.elapsed) = (*step, *steps, *elapsed);
                self.values = logs.iter().map(|(name, v)| (called(name), v)).collect();
                self.add_points(self.epoch as f64 + 1.0, logs.iter());
            }
            ProgressEvent::Validation { step, logs } => {
                let each = self.steps.filter(|n| *n > 0).map_or(0.0, |n| *step as f64 / n as f64);
                self.add_points(
                    self.epoch as f64 + each,
                    logs.iter().filter(|(name, _)| name.starts_with("val_")),
                );
            }
            ProgressEvent::Note(text) => self.line(text),
        }
    }

    /// Adds a point to the curve of each value, at epoch `at`.
    fn add_points<'v>(&mut self, at: f64, values: impl Iterator<Item = (&'v str, f64)>) {
        for (name, value) in values.map(|(name, v)| (called(name), v)) {
            match self.curves.iter_mut().find(|(n, _)| *n == name) {
                Some((_, curve)) => curve.push((at, value)),
                None => self.curves.push((name, vec![(at, value)])),
            }
        }
    }

    /// Adds lines to the log.
    pub(super) fn line(&mut self, text: &str) {
        // Control characters could move the cursor.
        let plain =
            |line: &str| line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        self.lines.extend(text.lines().map(plain));
        while self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }

    /// Completed fraction of the epoch and of the run.
    pub(super) fn done(&self) -> [f64; 2] {
        let of_epoch = self.steps.filter(|n| *n > 0).map_or(0.0, |n| (self.step as f64 / n as f64).min(1.0));
        let of_run = (self.epoch as f64 + of_epoch) / self.epochs.max(1) as f64;
        [of_epoch, of_run.min(1.0)]
    }

    /// Seconds per step, and until the epoch's end.
    pub(super) fn pace(&self) -> (f64, Option<f64>) {
        let each = self.elapsed.as_secs_f64() / self.step.saturating_sub(self.before).max(1) as f64;
        (each, self.steps.map(|n| each * n.saturating_sub(self.step) as f64))
    }

    /// Training and test values of the first metric other than the loss, otherwise of the loss.
    pub(super) fn metric(&self) -> (String, [Vec<(f64, f64)>; 2]) {
        let names = self.curves.iter().map(|(name, _)| name.strip_prefix("val_").unwrap_or(name));
        let name =
            names.clone().find(|n| *n != "loss").or(names.clone().next()).unwrap_or("loss").to_string();
        let of = |wanted: &str| {
            let curve = self.curves.iter().find(|(n, _)| n == wanted).map(|(_, c)| c.as_slice());
            curve.unwrap_or_default().iter().copied().filter(|p| p.1.is_finite()).collect()
        };
        let curves = [of(&name), of(&format!("val_{name}"))];
        (name, curves)
    }
}
