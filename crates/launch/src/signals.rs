//! Receives signals to forward, sends signals to child processes, and lets them end with this process.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use systole_ir::{Error, ErrorKind, Result};

/// Forwarded signals, with their names in the agent protocol.
pub(crate) const FORWARDED: [(i32, &str); 2] = [(SIGINT, "INT"), (SIGTERM, "TERM")];

/// Received signals, each with the one to forward: a closed terminal ends the processes as SIGTERM does.
const RECEIVED: [(i32, i32); 3] = [(SIGINT, SIGINT), (SIGTERM, SIGTERM), (SIGHUP, SIGTERM)];

/// Signals received by this process: the signal to forward, and whether it was received.
pub(crate) struct Signals(Vec<(i32, Arc<AtomicBool>)>);

impl Signals {
    pub(crate) fn install() -> Result<Signals> {
        let mut signals = Vec::new();
        for (received, forwarded) in RECEIVED {
            // nohup starts programs that go on when the terminal is closed.
            if received == SIGHUP && ignores_hangup() {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            flag::register(received, Arc::clone(&flag))
                .map_err(|e| Error::new(ErrorKind::Io, "cannot listen for Ctrl-C").because(e.to_string()))?;
            signals.push((forwarded, flag));
        }
        Ok(Signals(signals))
    }

    /// Takes a received signal, if there is one, and returns the signal to forward.
    pub(crate) fn take(&self) -> Option<i32> {
        self.0.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst)).map(|(signal, _)| *signal)
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
pub(crate) fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}
