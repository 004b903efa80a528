//! When work is finished that a device does by itself, and how far the host may be ahead of it.
//!
//! Backends whose runs end when their calls return (the CPU engine, the interpreter) have no events, and pay nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::{Error, Result};

/// Steps that may be under way at once: the host prepares one while another runs. More would ask for more memory, answer
/// a wish to stop later, and make nothing faster.
pub const STEPS_IN_FLIGHT: usize = 2;

/// Says when a run that was begun is finished, and how it went. Copies are of the same run.
#[derive(Clone)]
pub struct ReadyEvent(Arc<ReadySignal>);

struct ReadySignal {
    state: Mutex<ReadyState>,
    changed: Condvar,
}

struct ReadyState {
    /// Devices that are not done.
    left: usize,
    finished: Option<Instant>,
    failed: Option<Error>,
}

impl ReadyEvent {
    /// Of a run on so many devices, each of which says once that it is done.
    pub fn new(devices: usize) -> ReadyEvent {
        let finished = (devices == 0).then(Instant::now);
        let state = Mutex::new(ReadyState { left: devices, finished, failed: None });
        ReadyEvent(Arc::new(ReadySignal { state, changed: Condvar::new() }))
    }

    /// Says that a device is done, and how it went. Called by whatever thread knows.
    pub fn done(&self, outcome: Result<()>) {
        let mut state = self.state();
        if let Err(e) = outcome {
            state.failed.get_or_insert(e);
        }
        state.left = state.left.saturating_sub(1);
        if state.left == 0 {
            state.finished.get_or_insert_with(Instant::now);
            self.0.changed.notify_all();
        }
    }

    /// When it was finished; `None`: it is under way.
    pub fn finished(&self) -> Option<Instant> {
        self.state().finished
    }

    /// Waits until it is finished, and says when that was.
    ///
    /// # Errors
    /// Why the run failed.
    pub fn wait(&self) -> Result<Instant> {
        let under_way = |state: &mut ReadyState| state.finished.is_none();
        let state =
            self.0.changed.wait_while(self.state(), under_way).unwrap_or_else(PoisonError::into_inner);
        match &state.failed {
            Some(e) => Err(e.clone()),
            None => Ok(state.finished.unwrap_or_else(Instant::now)),
        }
    }

    fn state(&self) -> MutexGuard<'_, ReadyState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum StepEnd {
    Was(Instant),
    Comes(ReadyEvent),
}

/// Steps that were begun and whose ends were not taken yet, the oldest first.
///
/// ```
/// use systole_runtime::{InFlight, ReadyEvent, STEPS_IN_FLIGHT};
/// let mut steps = InFlight::default();
/// let event = ReadyEvent::new(1);
/// steps.push("asynchronous", Some(event.clone()));
/// assert!(steps.next_end(STEPS_IN_FLIGHT)?.is_none(), "it is under way, and another may be begun");
/// event.done(Ok(()));
/// assert_eq!(steps.next_end(0)?.unwrap().step, "asynchronous");
/// steps.push("finished when its call returned", None);
/// assert!(steps.next_end(STEPS_IN_FLIGHT)?.is_some());
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct InFlight<T> {
    steps: VecDeque<(T, StepEnd)>,
}

/// A step that is over.
pub struct FinishedStep<T> {
    /// Which.
    pub step: T,
    /// When it ended.
    pub at: Instant,
    /// How long the host stood still until then.
    pub waited: Duration,
}

impl<T> Default for InFlight<T> {
    fn default() -> InFlight<T> {
        InFlight { steps: VecDeque::new() }
    }
}

impl<T> InFlight<T> {
    /// A step that was begun just now; without an event it is finished, too.
    pub fn push(&mut self, step: T, event: Option<ReadyEvent>) {
        self.steps.push_back((step, event.map_or_else(|| StepEnd::Was(Instant::now()), StepEnd::Comes)));
    }

    /// How many ends were not taken.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether all ends were taken.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The oldest step's end: waits for it where more than `most` are left, and has none where it is still under way
    /// otherwise.
    ///
    /// # Errors
    /// Why that step failed.
    pub fn next_end(&mut self, most: usize) -> Result<Option<FinishedStep<T>>> {
        let must = self.steps.len() > most;
        let (at, waited) = match self.steps.front() {
            None => return Ok(None),
            Some((_, StepEnd::Was(at))) => (Ok(*at), Duration::ZERO),
            Some((_, StepEnd::Comes(event))) => match event.finished() {
                Some(_) => (event.wait(), Duration::ZERO),
                None if must => {
                    let since = Instant::now();
                    (event.wait(), since.elapsed())
                }
                None => return Ok(None),
            },
        };
        let step = self.steps.pop_front();
        at.map(|at| step.map(|(step, _)| FinishedStep { step, at, waited }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;

    #[test]
    fn a_run_ends_when_its_last_device_is_done() {
        let run = ReadyEvent::new(2);
        run.done(Ok(()));
        assert!(run.finished().is_none());
        let waiting = run.clone();
        let other = std::thread::spawn(move || waiting.wait().map_err(|e| e.to_string()));
        run.done(Err(Error::new(ErrorKind::Unsupported, "the device is gone")));
        assert!(other.join().unwrap().unwrap_err().contains("the device is gone"));
        assert!(run.finished().is_some());
        assert!(ReadyEvent::new(0).wait().is_ok());
    }

    #[test]
    fn ends_are_taken_in_order() {
        let (first, second) = (ReadyEvent::new(1), ReadyEvent::new(1));
        let mut steps = InFlight::default();
        steps.push(1, Some(first.clone()));
        steps.push(2, Some(second.clone()));
        second.done(Ok(()));
        assert!(steps.next_end(2).unwrap().is_none(), "the second waits for the first");
        first.done(Ok(()));
        let ends = std::iter::from_fn(|| steps.next_end(2).unwrap());
        assert_eq!(ends.map(|e| e.step).collect::<Vec<_>>(), [1, 2]);
        assert!(steps.is_empty());
    }
}
