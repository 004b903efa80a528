//! Progress of training as events. The library prints nothing: the program installs a function that shows them.

use crate::model::history::Logs;
use std::sync::OnceLock;
use std::time::Duration;

/// What happened.
#[derive(Clone, Debug)]
pub enum ProgressEvent<'a> {
    /// An epoch begins, or a run goes on in it: its number from 0, how many there are, its steps where known.
    EpochBegin {
        /// From 0.
        epoch: usize,
        /// All epochs.
        epochs: usize,
        /// Steps in it.
        steps: Option<usize>,
        /// Steps of it that were taken before, where a run goes on.
        before: usize,
    },
    /// A step has ended.
    Batch {
        /// Steps that have ended in this epoch.
        step: usize,
        /// Steps in it.
        steps: Option<usize>,
        /// Time since it began.
        elapsed: Duration,
        /// The part of it that steps waited for data, 0 to 1.
        data_wait: f64,
        /// The part of it that the host waited for a device which works by itself, 0 to 1.
        device_wait: f64,
        /// Loss and metrics since it began.
        logs: &'a Logs,
    },
    /// The epoch is over, validation included; or the run was stopped in it.
    EpochEnd {
        /// Steps taken.
        step: usize,
        /// Steps in it, where known: more than were taken where the run was stopped.
        steps: Option<usize>,
        /// Time that the steps took, validation left out.
        elapsed: Duration,
        /// The part of it that steps waited for data, 0 to 1.
        data_wait: f64,
        /// The part of it that the host waited for a device which works by itself, 0 to 1.
        device_wait: f64,
        /// Loss, metrics, and `val_…` of them.
        logs: &'a Logs,
    },
    /// A validation in the middle of an epoch.
    Validation {
        /// Steps that have ended in this epoch.
        step: usize,
        /// Loss and metrics since it began, and `val_…` of them.
        logs: &'a Logs,
    },
    /// Something that the user should know, and that does not end training.
    Note(&'a str),
}

static SHOW: OnceLock<fn(&ProgressEvent<'_>)> = OnceLock::new();

/// Installs what shows progress; the first call wins.
pub fn install(show: fn(&ProgressEvent<'_>)) {
    let _ = SHOW.set(show);
}

pub(crate) fn report(event: &Option<ProgressEvent<'_>>) {
    if let (Some(show), Some(event)) = (SHOW.get(), event) {
        show(event);
    }
}

/// The epoch that is being reported.
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

    /// Reading metrics back costs a little: a few times a second is enough for the eye.
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

    /// `whole`: the epoch came to its end, so that its steps are known by now.
    pub(crate) fn end<'a>(&self, at: EpochElapsed, logs: &'a Logs, whole: bool) -> Option<ProgressEvent<'a>> {
        let EpochElapsed { step, elapsed, .. } = at;
        let steps = self.steps.or(whole.then_some(step));
        let (data_wait, device_wait) = (at.share(at.waited), at.share(at.device_waited));
        self.shown().then_some(ProgressEvent::EpochEnd { step, steps, elapsed, data_wait, device_wait, logs })
    }
}

/// How far an epoch is: steps that have ended, their time, and the time in it that they waited for data, and that the host
/// waited for the device.
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
