//! Interrupts runs after Ctrl-C (SIGINT): a run that was in progress, or waited, fails 0.3 seconds later.
//!
//! The host program's signal handler calls [`note_interrupt`]. Programs that end sooner, such as a training step, are not
//! affected, so a host program that saves its state after Ctrl-C still can.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::{Result, ensure, err};

/// Time after which a run fails.
const PATIENCE: Duration = Duration::from_millis(300);

/// Number of interrupts so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The last interrupt that a run noticed, and when.
static NOTICED: Mutex<Option<(u64, Instant)>> = Mutex::new(None);

thread_local! {
    /// The mark of the thread's run.
    static RUN: Cell<Option<InterruptMark>> = const { Cell::new(None) };
}

/// Number of interrupts before a run.
#[derive(Clone, Copy, PartialEq)]
pub struct InterruptMark(u64);

impl InterruptMark {
    /// Returns the mark of a run that is called now.
    pub fn now() -> InterruptMark {
        InterruptMark(COUNT.load(Ordering::Relaxed))
    }

    /// Returns the mark of the thread's run.
    pub(crate) fn of_run() -> InterruptMark {
        RUN.get().unwrap_or_else(InterruptMark::now)
    }

    /// Returns the number of interrupts.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the address of the number of interrupts so far.
    pub(crate) fn count() -> *const u64 {
        COUNT.as_ptr().cast_const()
    }

    /// Runs a program that fails after a later interrupt.
    pub fn run<R>(self, run: impl FnOnce() -> R) -> R {
        let before = RUN.replace(Some(self));
        let made = run();
        RUN.set(before);
        made
    }
}

/// Notes an interrupt; may be called by a signal handler.
pub fn note_interrupt() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Fails if the thread's run is to end.
#[inline]
pub(crate) fn check_interrupt() -> Result<()> {
    match RUN.get() {
        Some(mark) if mark != InterruptMark::now() => ended(InterruptMark::now()),
        _ => Ok(()),
    }
}

#[cold]
fn ended(InterruptMark(count): InterruptMark) -> Result<()> {
    let mut noticed = NOTICED.lock().unwrap_or_else(PoisonError::into_inner);
    let since = match *noticed {
        Some((known, since)) if known == count => since,
        _ => noticed.insert((count, Instant::now())).1,
    };
    let what = "the run was interrupted by Ctrl-C (SIGINT)";
    ensure!(since.elapsed() < PATIENCE, err!(Interrupted, "{what}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;

    #[test]
    fn only_runs_before_an_interrupt_fail_and_only_after_a_while() {
        let run = InterruptMark::now();
        assert!(run.run(check_interrupt).is_ok());
        note_interrupt();
        assert!(check_interrupt().is_ok(), "no run");
        assert!(run.run(check_interrupt).is_ok(), "at first");
        std::thread::sleep(PATIENCE);
        assert!(run.run(check_interrupt).is_err_and(|e| e.kind() == ErrorKind::Interrupted));
        assert!(InterruptMark::now().run(check_interrupt).is_ok(), "a later run");
    }
}
