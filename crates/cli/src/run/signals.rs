//! Handles Ctrl-C and SIGTERM: the first signal stops training after the current step, the second exits immediately.
//! The end of the launcher stops training as well.

#[cfg(feature = "launch")]
use crate::render::screen::ignore_closed_output;
use crate::render::screen::note;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use systole_ir::{Result, err, knobs};

/// Polling interval for signals.
const POLL: Duration = Duration::from_millis(200);

/// Exit code after SIGTERM.
pub(crate) const TERMINATED: u8 = 143;

/// The signal handlers of this process.
static INSTALLED: OnceLock<StopSignal> = OnceLock::new();

/// Whether the user requested a stop, and by which signal.
#[derive(Clone)]
pub(crate) struct StopSignal {
    /// Flag for `Fit::stop`.
    pub(crate) asked: Arc<AtomicBool>,
    code: Arc<AtomicUsize>,
}

impl StopSignal {
    /// Installs the signal handlers, once per process.
    pub(crate) fn install() -> Result<StopSignal> {
        match INSTALLED.get() {
            Some(stop) => Ok(stop.clone()),
            None => StopSignal::take_over().map(|stop| INSTALLED.get_or_init(|| stop).clone()),
        }
    }

    fn take_over() -> Result<StopSignal> {
        let stop = StopSignal { asked: Arc::default(), code: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            let code = 128 + signal;
            // Actions run in registration order: the first signal finds `asked` unset and does not exit.
            flag::register_conditional_shutdown(signal, code, stop.asked.clone())
                .and_then(|_| flag::register_usize(signal, stop.code.clone(), code as usize))
                .and_then(|_| flag::register(signal, stop.asked.clone()))
                .map_err(|e| err!(Io, "cannot listen for Ctrl-C").because(e.to_string()))?;
        }
        stop.watch(Duration::from_secs(knobs::GRACE.get_usize() as u64));
        Ok(stop)
    }

    /// Stops training as the first SIGTERM does; unlike a second signal, a second call has no effect.
    #[cfg(feature = "launch")]
    fn terminate(&self) {
        let _ = self.code.compare_exchange(0, TERMINATED.into(), Ordering::SeqCst, Ordering::SeqCst);
        self.asked.store(true, Ordering::SeqCst);
    }

    /// Exits the program if the current step and the final backup take longer than the grace period.
    fn watch(&self, grace: Duration) {
        let (asked, code) = (self.asked.clone(), self.code.clone());
        let watching = move || {
            while !asked.load(Ordering::SeqCst) {
                std::thread::sleep(POLL);
            }
            std::thread::sleep(grace);
            note("the grace period to save is over (SYSTOLE_GRACE); earlier backups are intact");
            std::process::exit(code.load(Ordering::SeqCst) as i32);
        };
        // Without this thread the program may only take longer to exit.
        let _ = std::thread::Builder::new().name("systole-grace".into()).spawn(watching);
    }

    /// Returns 130 or 143 after a signal, otherwise 0.
    pub(crate) fn exit_code(&self) -> u8 {
        self.code.load(Ordering::SeqCst) as u8
    }
}

/// Ends this process as SIGTERM does when standard input closes, because its launcher has ended.
///
/// # Errors
/// If no thread can be started.
#[cfg(feature = "launch")]
pub(crate) fn end_with_stdin() -> Result<()> {
    // The launcher was the reader.
    ignore_closed_output();
    let waiting = || {
        // The launcher writes nothing.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        match INSTALLED.get() {
            Some(stop) => stop.terminate(),
            // Training has not started.
            None => std::process::exit(TERMINATED.into()),
        }
    };
    std::thread::Builder::new()
        .name("systole-launcher".into())
        .spawn(waiting)
        .map(drop)
        .map_err(|e| err!(Io, "cannot watch standard input").because(e.to_string()))
}
