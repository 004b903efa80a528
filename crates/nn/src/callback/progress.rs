//! Training progress events. The library prints nothing; the program installs a function that displays them.

use crate::model::history::Logs;
use std::sync::OnceLock;
use std::time::Duration;

/// A progress event of training.
#[derive(Clone, Debug)]
pub enum ProgressEvent<'a> {
    /// An epoch starts, or a run resumes in it.
    EpochBegin {
        /// Epoch, from 0.
        epoch: usize,
        /// Total epochs.
        epochs: usize,
        /// Steps per epoch, if known.
        steps: Option<usize>,
        /// Steps of the epoch done before a resume.
        before: usize,
    },
    /// A step has ended.
    Batch {
        /// Finished steps of this epoch.
        step: usize,
        /// Steps per epoch, if known.
        steps: Option<usize>,
        /// Time since the epoch started.
        elapsed: Duration,
        /// Fraction of the time that steps waited for data, 0 to 1.
        data_wait: f64,
        /// Fraction of the time that the host waited for an asynchronous device, 0 to 1.
        device_wait: f64,
        /// Loss and metrics of the epoch so far.
        logs: &'a Logs,
    },
    /// The epoch is complete, including validation; or the run was stopped within it.
    EpochEnd {
        /// Finished steps.
        step: usize,
        /// Steps per epoch, if known: more than the finished ones if the run was stopped.
        steps: Option<usize>,
        /// Training time, without validation.
        elapsed: Duration,
        /// Fraction of the time that steps waited for data, 0 to 1.
        data_wait: f64,
        /// Fraction of the time that the host waited for an asynchronous device, 0 to 1.
        device_wait: f64,
        /// Loss, metrics, and their `val_…` values.
        logs: &'a Logs,
    },
    /// A validation within an epoch.
    Validation {
        /// Finished steps of this epoch.
        step: usize,
        /// Loss and metrics of the epoch so far, and their `val_…` values.
        logs: &'a Logs,
    },
    /// A note for the user; training continues.
    Note(&'a str),
}

static SHOW: OnceLock<fn(&ProgressEvent<'_>)> = OnceLock::new();

/// Installs the function that displays progress; the first call wins.
pub fn install(show: fn(&ProgressEvent<'_>)) {
    let _ = SHOW.set(show);
}

pub(crate) fn report(event: &Option<ProgressEvent<'_>>) {
    if let (Some(show), Some(event)) = (SHOW.get(), event) {
        show(event);
    }
}

/// Progress reports of one epoch.
pub(crate) struct EpochProgress {
    pub(crate) epoch: usize,
    pub(crate) epochs: usize,
    pub(crate) steps: Option<usize>,
    pub(crate) verbose: usize,
}

impl EpochProgress {
    fn shown(&self) -> bool {
        self.verbose > 0 && SHOW.get().is_some()
    }

    /// Whether to report this step. Reading metrics back has a cost, so it is limited to a few times per second.
    pub(crate) fn wants_batch(&self, step: usize, steps: Option<usize>, elapsed: Duration) -> bool {
        let rate = step as f64 / elapsed.as_secs_f64().max(1e-6);
        let every = (rate / 5.0).ceil().max(1.0) as usize;
        self.shown() && (step.is_multiple_of(every) || step == 1 || Some(step) == steps)
    }

    pub(crate) fn begin(&self, before: usize) -> Option<ProgressEvent<'static>> {
        let EpochProgress { epoch, epochs, steps, .. } = *self;
        let event = ProgressEvent::EpochBegin { epoch, epochs, steps, before };
        self.shown().then_some(event)
    }

    pub(crate) fn batch<'a>(&self, at: EpochElapsed, logs: &'a Logs) -> ProgressEvent<'a> {
        let (data_wait, device_wait) = (at.share(at.waited), at.share(at.device_waited));
        ProgressEvent::Batch {
            step: at.step,
            steps: self.steps,
            elapsed: at.elapsed,
            data_wait,
            device_wait,
            logs,
        }
    }

    /// Returns the event for the end of an epoch. `whole`: the epoch is complete, so its number of steps is known.
    pub(crate) fn end<'a>(&self, at: EpochElapsed, logs: &'a Logs, whole: bool) -> Option<ProgressEvent<'a>> {
        let EpochElapsed { step, elapsed, .. } = at;
        let steps = self.steps.or(whole.then_some(step));
        let (data_wait, device_wait) = (at.share(at.waited), at.share(at.device_waited));
        self.shown().then_some(ProgressEvent::EpochEnd { step, steps, elapsed, data_wait, device_wait, logs })
    }
}

/// Progress within an epoch: finished steps, their time, and the time therein that they waited for data and that the
/// host waited for the device.
#[derive(Clone, Copy, Default)]
pub(crate) struct EpochElapsed {
    pub(crate) step: usize,
    pub(crate) elapsed: Duration,
    pub(crate) waited: Duration,
    pub(crate) device_waited: Duration,
}

impl EpochElapsed {
    fn share(&self, part: Duration) -> f64 {
        match self.elapsed.as_secs_f64() {
            0.0 => 0.0,
            all => (part.as_secs_f64() / all).min(1.0),
        }
    }
}
