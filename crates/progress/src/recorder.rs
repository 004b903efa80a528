//! Records progress events for the run report: the loss by step and the validation time.
//!
//! It uses the events that are shown anyway, a few per second, and adds no work to the steps.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_nn::progress::ProgressEvent;

/// Maximum number of points; beyond it, neighboring points are merged.
const MOST: usize = 2000;

/// Recorded training progress of a run.
#[derive(Clone, Debug, Default)]
pub struct RecordedProgress {
    /// Mean loss of the steps since the previous point, by step number.
    pub by_step: Vec<(f64, f64)>,
    /// Time from the last step of each epoch to the end of the epoch.
    pub testing: Duration,
}

#[derive(Default)]
struct ProgressRecorder {
    seen: RecordedProgress,
    epoch: usize,
    /// Number of steps in earlier epochs, if not known in advance.
    base: usize,
    /// Last step with a reported mean, and the mean loss of the epoch up to it.
    last: Option<(usize, f64)>,
    last_step: Option<Instant>,
}

static RECORDER: Mutex<Option<ProgressRecorder>> = Mutex::new(None);

/// Records one progress event.
pub fn take(event: &ProgressEvent<'_>) {
    let mut recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    recorder.get_or_insert_default().take(event);
}

/// Returns the recorded progress so far.
pub fn recorded() -> RecordedProgress {
    let recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    recorder.as_ref().map_or_else(RecordedProgress::default, |r| r.seen.clone())
}

impl ProgressRecorder {
    fn take(&mut self, event: &ProgressEvent<'_>) {
        match event {
            ProgressEvent::EpochBegin { epoch, steps, before, .. } => {
                self.epoch = *epoch;
                self.base = steps.map_or(self.base, |steps| epoch * steps);
                // The mean loss of steps in an earlier process is unknown.
                self.last = (*before == 0).then_some((0, 0.0));
                self.last_step = None;
            }
            ProgressEvent::Batch { step, logs, .. } => {
                self.last_step = Some(Instant::now());
                let Some(mean) = logs.get("loss") else { return };
                if let Some((before, had)) = self.last.filter(|(before, _)| before < step) {
                    let (n, m) = (*step as f64, before as f64);
                    let of_these = (n * mean - m * had) / (n - m);
                    self.seen.by_step.push(((self.base + step) as f64, of_these));
                    self.thin();
                }
                self.last = Some((*step, mean));
            }
            ProgressEvent::EpochEnd { step, .. } => {
                self.seen.testing += self.last_step.take().map_or(Duration::ZERO, |at| at.elapsed());
                self.base += step;
            }
            ProgressEvent::Validation { .. } => {
                // The time until the next step is validation time.
                self.seen.testing += self.last_step.take().map_or(Duration::ZERO, |at| at.elapsed());
            }
            ProgressEvent::Note(_) => {}
        }
    }

    fn thin(&mut self) {
        let points = &mut self.seen.by_step;
        if points.len() > MOST {
            *points = points
                .chunks(2)
                .map(|two| (two[two.len() - 1].0, two.iter().map(|p| p.1).sum::<f64>() / two.len() as f64))
                .collect();
        }
    }
}

// Names of the previous version.
#[doc(hidden)]
pub use self::RecordedProgress as Recorded;

#[cfg(test)]
mod tests {
    use super::*;
    use systole_nn::Logs;

    #[test]
    fn means_since_the_begin_become_means_of_stretches() {
        let mut r = ProgressRecorder::default();
        let batch = |r: &mut ProgressRecorder, step: usize, loss: f64| {
            let mut logs = Logs::new();
            logs.insert("loss", loss);
            let (elapsed, steps) = (Duration::ZERO, Some(4));
            r.take(&ProgressEvent::Batch {
                step,
                steps,
                elapsed,
                data_wait: 0.0,
                device_wait: 0.0,
                logs: &logs,
            });
        };
        r.take(&ProgressEvent::EpochBegin { epoch: 1, epochs: 3, steps: Some(4), before: 0 });
        // Losses 4, 2, 2: means 4, then (4 + 2 + 2) / 3.
        batch(&mut r, 1, 4.0);
        batch(&mut r, 3, 8.0 / 3.0);
        assert_eq!(r.seen.by_step, [(5.0, 4.0), (7.0, 2.0)]);
        // A run that goes on in an epoch: its first mean is of steps of another process, too.
        r.take(&ProgressEvent::EpochBegin { epoch: 2, epochs: 3, steps: Some(4), before: 2 });
        batch(&mut r, 3, 1.0);
        batch(&mut r, 4, 1.25);
        assert_eq!(r.seen.by_step[2..], [(12.0, 2.0)]);
        for step in 0..3 * MOST {
            r.last = Some((step, 1.0));
            batch(&mut r, step + 1, 1.0);
        }
        assert!(r.seen.by_step.len() <= MOST + 1);
    }
}
