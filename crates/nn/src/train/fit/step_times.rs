//! [`TrainStepTimes`]: timing of training steps, finished and in flight on devices.

use crate::callback::progress::EpochElapsed;
use crate::model::history::History;
use std::time::{Duration, Instant};
use systole_ir::Result;
use systole_runtime::{FinishedStep, InFlight, trace};

/// A started step.
pub(super) struct StartedStep {
    /// When the host started preparing it.
    pub(super) at: Instant,
    /// When its batch was available.
    pub(super) fetched: Instant,
    /// Whether a device computes it asynchronously.
    pub(super) on_device: bool,
}

/// Timing of an epoch's steps.
#[derive(Default)]
pub(super) struct TrainStepTimes {
    /// Steps that devices may still be computing.
    pub(super) in_flight: InFlight<StartedStep>,
    /// When the last step ended.
    ended: Option<Instant>,
    /// Time in this epoch that steps waited for data, and that the host waited for steps.
    waited: Duration,
    device_waited: Duration,
}

impl TrainStepTimes {
    /// Resets the waiting times for a new epoch.
    pub(super) fn begin_epoch(&mut self) {
        (self.waited, self.device_waited) = (Duration::ZERO, Duration::ZERO);
    }

    pub(super) fn elapsed(&self, step: usize, elapsed: Duration) -> EpochElapsed {
        EpochElapsed { step, elapsed, waited: self.waited, device_waited: self.device_waited }
    }

    /// Records finished steps; waits until at most `most` steps are in flight.
    pub(super) fn take_ends(&mut self, most: usize, history: &mut History) -> Result<()> {
        while let Some(FinishedStep { step, at, waited }) = self.in_flight.next_end(most)? {
            // Steps run in sequence on the device, so this step's time starts when the previous one ended.
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
