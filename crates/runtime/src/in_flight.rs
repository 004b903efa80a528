//! Completion events of asynchronous runs, and the queue of steps in flight that bounds how far the host runs ahead.
//!
//! Synchronous backends (the CPU engine, the interpreter) have no events and no overhead.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::{Error, Result};

/// Maximum number of steps in flight: the host prepares one while another runs. More would need more memory and delay a
/// stop request without being faster.
pub const STEPS_IN_FLIGHT: usize = 2;

/// Completion event of an asynchronous run, with its result. Clones refer to the same run.
#[derive(Clone)]
pub struct ReadyEvent(Arc<ReadySignal>);

struct ReadySignal {
    state: Mutex<ReadyState>,
    changed: Condvar,
}

struct ReadyState {
    /// Number of devices that are still running.
    left: usize,
    finished: Option<Instant>,
    failed: Option<Error>,
}

impl ReadyEvent {
    /// Creates the event of a run on `devices` devices, each of which calls [`ReadyEvent::done`] once.
    pub fn new(devices: usize) -> ReadyEvent {
        let finished = (devices == 0).then(Instant::now);
        let state = Mutex::new(ReadyState { left: devices, finished, failed: None });
        ReadyEvent(Arc::new(ReadySignal { state, changed: Condvar::new() }))
    }

    /// Reports that one device has finished, with its result. Callable from any thread.
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

    /// When the run finished; `None` while it is running.
    pub fn finished(&self) -> Option<Instant> {
        self.state().finished
    }

    /// Waits until the run finishes; returns when it did.
    ///
    /// # Errors
    /// The error of the failed run.
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

/// Queue of started training steps whose completion was not yet consumed, oldest first.
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

/// A completed step and the time when it finished.
pub struct FinishedStep<T> {
    /// The step, as passed to [`InFlight::push`].
    pub step: T,
    /// When it completed.
    pub at: Instant,
    /// How long the host waited for it.
    pub waited: Duration,
}

impl<T> Default for InFlight<T> {
    fn default() -> InFlight<T> {
        InFlight { steps: VecDeque::new() }
    }
}

impl<T> InFlight<T> {
    /// Adds a step that was just started to the queue; without an event it is already complete.
    pub fn push(&mut self, step: T, event: Option<ReadyEvent>) {
        self.steps.push_back((step, event.map_or_else(|| StepEnd::Was(Instant::now()), StepEnd::Comes)));
    }

    /// Number of training steps in the queue.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the queue of training steps is empty.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Removes the oldest step if it is complete. Waits for it if more than `most` steps are queued; otherwise returns
    /// `None` while it is running.
    ///
    /// # Errors
    /// The error of the failed step.
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
        let other = std::thread::spawn(move || waiting.wait());
        run.done(Err(Error::new(ErrorKind::Unsupported, "the device is gone")));
        assert_eq!(other.join().unwrap().unwrap_err().kind(), ErrorKind::Unsupported);
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
