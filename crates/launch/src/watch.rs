//! Waiting for the processes of a launch, and judging how they ended.

use super::process::{Process, ProcessExit};
use super::signals::Signals;
use std::time::{Duration, Instant};
use systole_ir::Result;

/// How often it is looked whether a process has ended or a signal has come.
const POLL: Duration = Duration::from_millis(20);
/// How long the others have to notice that one is gone, and to say so.
const NOTICE: Duration = Duration::from_secs(2);

/// How all of them ended.
pub(crate) enum LaunchEnd {
    /// By themselves, with this code.
    With(u8),
    /// One was lost: its machine, and how.
    Lost { machine: usize, who: String },
}

/// What happened until all had ended.
pub(crate) struct ProcessEvents {
    /// The signal that was forwarded.
    asked: Option<i32>,
    /// The first that was lost; the others may have been killed from here.
    lost: Option<(usize, String)>,
}

/// Waits until all have ended: where one is killed the others are, too, once they had time to say so. `forwards`: whether signals to
/// this process are sent on.
pub(crate) fn watch(processes: &mut [Process], signals: &Signals, forwards: bool) -> Result<ProcessEvents> {
    let mut seen = ProcessEvents { asked: None, lost: None };
    let mut ends: Option<Instant> = None;
    loop {
        if let Some(signal) = signals.take() {
            seen.asked = Some(signal);
            processes.iter_mut().filter(|_| forwards).for_each(|process| process.tell(signal));
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
            // What was told to stop needs the time that it needs, and ends the others with it.
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
    /// `partner`: whether a process said that one was lost which another launch has started. What was to stop is not started again.
    ///
    /// # Errors
    /// When a machine has no such program.
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
