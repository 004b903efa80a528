//! Receives signals to forward, and sends signals to child processes.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use systole_ir::{Error, ErrorKind, Result};

/// Forwarded signals, with their names in the agent protocol.
pub(crate) const FORWARDED: [(i32, &str); 2] = [(SIGINT, "INT"), (SIGTERM, "TERM")];

/// Signals received by this process, to be forwarded.
pub(crate) struct Signals([(i32, Arc<AtomicBool>); 2]);

impl Signals {
    pub(crate) fn install() -> Result<Signals> {
        let signals = FORWARDED.map(|(signal, _)| (signal, Arc::default()));
        for (signal, flag) in &signals {
            flag::register(*signal, Arc::clone(flag))
                .map_err(|e| Error::new(ErrorKind::Io, "cannot listen for Ctrl-C").because(e.to_string()))?;
        }
        Ok(Signals(signals))
    }

    /// Takes a received signal, if there is one.
    pub(crate) fn take(&self) -> Option<i32> {
        self.0.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst)).map(|(signal, _)| *signal)
    }
}

/// Sends a signal to a child that has not been waited for.
pub(crate) fn send(child: &Child, signal: i32) {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = if signal == SIGINT { Signal::INT } else { Signal::TERM };
        // The process may have just ended.
        let _ = kill_process(Pid::from_child(child), signal);
    }
    #[cfg(not(unix))]
    let _ = (child, signal);
}

/// Returns the signal that killed a process.
pub(crate) fn killed(status: ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    return status.code().is_none().then_some(0);
}

/// Puts a child into its own process group, so that the terminal's Ctrl-C reaches only this process, which forwards it
/// once.
pub(crate) fn apart(command: &mut std::process::Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}
