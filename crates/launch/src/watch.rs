//! Waits for the processes of a launch and determines how the launch ended.

use super::process::{Process, ProcessExit};
use super::signals::Signals;
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::time::{Duration, Instant};
use systole_ir::Result;

/// Polling interval for ended processes and signals.
const POLL: Duration = Duration::from_millis(20);
/// Time for the other processes to notice and report a lost process.
const NOTICE: Duration = Duration::from_secs(2);

/// How the processes of a launch ended.
pub(crate) enum LaunchEnd {
    /// All exited; the exit code.
    With(u8),
    /// A process was lost: its machine and a description.
    Lost { machine: usize, who: String },
}

/// Events until all processes ended.
pub(crate) struct ProcessEvents {
    /// The signal that was forwarded.
    asked: Option<i32>,
    /// The first lost process; the launcher may have killed the others.
    lost: Option<(usize, String)>,
}

/// Waits until all processes have ended. After a process is lost, kills the others once they had time to report it.
/// `forwards`: whether to forward signals. A closed terminal (SIGHUP) is always forwarded, as SIGTERM.
pub(crate) fn watch(processes: &mut [Process], signals: &Signals, forwards: bool) -> Result<ProcessEvents> {
    let mut seen = ProcessEvents { asked: None, lost: None };
    let mut ends: Option<Instant> = None;
    loop {
        if let Some(received) = signals.take() {
            let signal = if received == SIGHUP { SIGTERM } else { received };
            seen.asked = Some(signal);
            if forwards || received == SIGHUP {
                processes.iter_mut().for_each(|process| process.tell(signal));
            }
        }
        for process in processes.iter_mut() {
            process.look()?;
        }
        seen.lost = seen.lost.or_else(|| processes.iter().find_map(lost));
        if processes.iter().all(Process::has_ended) {
            return Ok(seen);
        }
        let failed =
            |process: &Process| process.end().is_some_and(|end| !matches!(end, ProcessExit::Code(0)));
        match ends {
            None if processes.iter().any(failed) => ends = Some(Instant::now() + NOTICE),
            // Processes told to stop take as long as they need, and the others end with them.
            Some(at) if Instant::now() > at && seen.lost.is_some() => {
                processes.iter_mut().for_each(Process::kill);
            }
            _ => {}
        }
        std::thread::sleep(POLL);
    }
}

fn lost(process: &Process) -> Option<(usize, String)> {
    match process.end() {
        Some(ProcessExit::Lost(how)) => Some((process.machine, format!("{} {how}", process.named()))),
        _ => None,
    }
}

impl ProcessEvents {
    /// Determines how the launch ended. `partner`: whether a process reported the loss of a process that another
    /// launcher started. A run that was asked to stop is not restarted.
    ///
    /// # Errors
    /// If a machine does not have the program.
    pub(crate) fn judged(self, processes: &[Process], partner: bool) -> Result<LaunchEnd> {
        processes.iter().try_for_each(Process::check_program)?;
        let codes = processes.iter().filter_map(|process| match process.end() {
            Some(ProcessExit::Code(code)) => Some(code),
            _ => None,
        });
        let code = codes.max().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        Ok(match (self.lost, self.asked) {
            (Some((machine, who)), None) => LaunchEnd::Lost { machine, who },
            (Some(_), Some(asked)) => LaunchEnd::With(u8::try_from(128 + asked).unwrap_or(1)),
            (None, None) if partner && code == 1 => {
                LaunchEnd::Lost { machine: 0, who: "another process is lost".into() }
            }
            (None, _) => LaunchEnd::With(code),
        })
    }
}
