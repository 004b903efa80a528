//! [`TrainStepTimes`]: steps that devices still compute, and how long those took that have ended.

use crate::callback::progress::EpochElapsed;
use crate::model::history::History;
use std::time::{Duration, Instant};
use systole_ir::Result;
use systole_runtime::{FinishedStep, InFlight, trace};

/// A step that was begun.
pub(super) struct StartedStep {
    /// When the host turned to it.
    pub(super) at: Instant,
    /// When its batch was there.
    pub(super) fetched: Instant,
    /// Whether a device computes it by itself.
    pub(super) on_device: bool,
}

/// The steps of an epoch by the clock.
#[derive(Default)]
pub(super) struct TrainStepTimes {
    /// Steps that devices may still compute by themselves.
    pub(super) in_flight: InFlight<StartedStep>,
    /// When the last step ended.
    ended: Option<Instant>,
    /// Time that the steps of this epoch waited for data, and that the host waited for them.
    waited: Duration,
    device_waited: Duration,
}

impl TrainStepTimes {
    /// An epoch begins: nothing of it was waited for.
    pub(super) fn begin_epoch(&mut self) {
        (self.waited, self.device_waited) = (Duration::ZERO, Duration::ZERO);
    }

    pub(super) fn elapsed(&self, step: usize, elapsed: Duration) -> EpochElapsed {
        EpochElapsed { step, elapsed, waited: self.waited, device_waited: self.device_waited }
    }

    /// Writes down the steps that have ended, and waits for those before the last `most` that were begun.
    pub(super) fn take_ends(&mut self, most: usize, history: &mut History) -> Result<()> {
        while let Some(FinishedStep { step, at, waited }) = self.in_flight.next_end(most)? {
            // Steps follow each other on the device, so this one's time began when the one before it had ended.
            let from = self.ended.map_or(step.at, |ended| ended.max(step.at));
            let (took, lacked) =
                (at.saturating_duration_since(from), step.fetched.saturating_duration_since(from));
            let millis = |time: Duration| time.as_secs_f32() * 1e3;
            history.step_ms.push(millis(took));
            history.wait_ms.push(millis(lacked));
            history.device_wait_ms.push(millis(waited));
            self.waited += lacked;
            self.device_waited += waited;
            if step.on_device {
                trace::device_span("step", "train step", from.max(step.fetched), at);
            }
            self.ended = Some(at.max(from));
        }
        Ok(())
    }
}
