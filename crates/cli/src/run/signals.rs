//! Ctrl-C and SIGTERM: the first asks training to stop after the current step, the second ends the program at once.

use crate::render::screen::note;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use systole_ir::{Error, ErrorKind, Result, knobs};

/// How often it is looked whether a signal has come.
const POLL: Duration = Duration::from_millis(200);

/// Whether, and by which signal, the user asked to stop.
#[derive(Clone)]
pub(crate) struct StopSignal {
    /// For `Fit::stop`.
    pub(crate) asked: Arc<AtomicBool>,
    code: Arc<AtomicUsize>,
}

impl StopSignal {
    /// Takes the two signals over from here on: once for all runs of a process.
    pub(crate) fn install() -> Result<StopSignal> {
        static INSTALLED: OnceLock<StopSignal> = OnceLock::new();
        match INSTALLED.get() {
            Some(stop) => Ok(stop.clone()),
            None => StopSignal::take_over().map(|stop| INSTALLED.get_or_init(|| stop).clone()),
        }
    }

    fn take_over() -> Result<StopSignal> {
        let stop = StopSignal { asked: Arc::default(), code: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            let code = 128 + signal;
            // Actions run in the order they are registered: the first signal finds `asked` unset, and passes.
            flag::register_conditional_shutdown(signal, code, stop.asked.clone())
                .and_then(|_| flag::register_usize(signal, stop.code.clone(), code as usize))
                .and_then(|_| flag::register(signal, stop.asked.clone()))
                .map_err(|e| Error::new(ErrorKind::Io, "cannot listen for Ctrl-C").because(e.to_string()))?;
        }
        stop.watch(Duration::from_secs(knobs::GRACE.get_usize() as u64));
        Ok(stop)
    }

    /// Ends the program where finishing the step and saving take longer than whoever sent the signal will wait.
    fn watch(&self, grace: Duration) {
        let (asked, code) = (self.asked.clone(), self.code.clone());
        let watching = move || {
            while !asked.load(Ordering::SeqCst) {
                std::thread::sleep(POLL);
            }
            std::thread::sleep(grace);
            note("the time to save is over (SYSTOLE_GRACE); what was saved before is whole");
            std::process::exit(code.load(Ordering::SeqCst) as i32);
        };
        // Without the thread the program may only take longer to end.
        let _ = std::thread::Builder::new().name("systole-grace".into()).spawn(watching);
    }

    /// 130 or 143 when asked to stop, else 0.
    pub(crate) fn exit_code(&self) -> u8 {
        self.code.load(Ordering::SeqCst) as u8
    }
}
