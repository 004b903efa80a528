//! Receives signals to forward, sends signals to child processes, and lets them end with this process.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use systole_ir::{Result, err};

/// Forwarded signals, with their names in the agent protocol.
pub(crate) const FORWARDED: [(i32, &str); 2] = [(SIGINT, "INT"), (SIGTERM, "TERM")];

/// Signals received by this process, to be forwarded.
pub(crate) struct Signals {
    received: Vec<(i32, Arc<AtomicBool>)>,
    /// Whether a signal was taken.
    is_asked: AtomicBool,
}

impl Signals {
    pub(crate) fn install() -> Result<Signals> {
        let mut received = Vec::new();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // nohup starts programs that go on when the terminal is closed.
            if signal == SIGHUP && ignores_hangup() {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            flag::register(signal, Arc::clone(&flag))
                .map_err(|e| err!(Io, "cannot listen for Ctrl-C").because(e.to_string()))?;
            received.push((signal, flag));
        }
        Ok(Signals { received, is_asked: AtomicBool::new(false) })
    }

    /// Takes a received signal, if there is one. A closed terminal may be reported by the shell and by the kernel, so
    /// SIGHUP never counts as a second signal, which ends training without a backup.
    pub(crate) fn take(&self) -> Option<i32> {
        let (signal, _) = self.received.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst))?;
        let was_asked = self.is_asked.swap(true, Ordering::SeqCst);
        Some(*signal).filter(|signal| *signal != SIGHUP || !was_asked)
    }
}

/// Whether this process was started with SIGHUP ignored. Only Linux reports it; elsewhere SIGHUP ends the launcher, and
/// with it the processes.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}

/// Option of this program: end as on SIGTERM when standard input closes.
///
/// The launcher and its agents hold the only write end of a child's standard input, so it closes however they end, even by
/// SIGKILL. Unlike Linux's PR_SET_PDEATHSIG this works on every Unix, and it is no second signal in addition to a forwarded
/// SIGTERM, which would end training without a backup.
pub const END_WITH_STDIN: &str = "end-with-stdin";

/// Makes a child end with this process, whatever ends this process.
pub(crate) fn end_with_this_process(command: &mut Command) {
    command.arg(format!("--{END_WITH_STDIN}")).stdin(Stdio::piped());
}

/// Sends a signal to a child that has not been waited for; SIGTERM for all but SIGINT.
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
pub(crate) fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::low_level::raise;

    #[cfg(unix)]
    #[test]
    fn a_closed_terminal_is_forwarded_once() {
        let signals = Signals::install().unwrap();
        assert_eq!(signals.take(), None);
        if !ignores_hangup() {
            raise(SIGHUP).unwrap();
            assert_eq!(signals.take(), Some(SIGHUP));
            raise(SIGHUP).unwrap();
            assert_eq!(signals.take(), None);
        }
        raise(SIGTERM).unwrap();
        assert_eq!(signals.take(), Some(SIGTERM));
        raise(SIGINT).unwrap();
        assert_eq!((signals.take(), signals.take()), (Some(SIGINT), None));
    }
}
