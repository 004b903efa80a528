//! Launch agent: the process that `launch --hosts` starts over ssh on another machine.
//!
//! The agent starts the training process, passes its output through and obeys commands on standard input. When standard
//! input ends, the launcher or the connection is gone, and the agent ends the process.

use super::signals::{FORWARDED, Signals, apart, end_with_this_process, killed, send};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use std::collections::BTreeMap;
use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use systole_ir::{Result, err, knobs};

/// Name of the launch agent's subcommand.
pub const COMMAND: &str = "launch-agent";
/// Command that kills the process immediately.
pub(crate) const KILL: &str = "KILL";
/// Base of exit codes for processes killed by a signal, as in a shell.
pub(crate) const SIGNALLED: i32 = 128;
/// Polling interval for the end of the process.
const POLL: Duration = Duration::from_millis(20);

/// First line on the agent's standard input. Passing it there hides it from the process list of the machine.
#[derive(Serialize, Deserialize)]
pub(crate) struct AgentRequest {
    /// Working directory.
    pub(crate) folder: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Number of processes that share the machine's cores; 0 if the arguments set the number of threads.
    pub(crate) share: u32,
    /// Whether to print nothing about the process.
    pub(crate) quiet: bool,
}

/// Runs the launch request from standard input and returns the exit code of the process. `note` prints a line about it.
///
/// # Errors
/// If the request cannot be parsed or the process cannot be started.
pub fn run_agent(note: impl Fn(&str)) -> Result<u8> {
    let signals = Signals::install()?;
    let mut first = String::new();
    let order = stdin().lock().read_line(&mut first).ok().and_then(|_| serde_json::from_str(&first).ok());
    let order: AgentRequest = order.ok_or_else(|| {
        let e = err!(Config, "cannot parse the request on standard input");
        e.hint("start the agent with `systole launch --hosts`, and use the same version on all machines")
    })?;
    let mut child = order.start()?;
    if !order.quiet {
        note(&format!("[{COMMAND}] process {}", child.id()));
    }
    attend(&mut child, &signals, &words())
}

impl AgentRequest {
    fn start(&self) -> Result<Child> {
        let failed = |e: std::io::Error| err!(Io, "cannot start a child process").because(e.to_string());
        if !self.folder.is_dir() {
            let e = err!(Io, "no such folder: {}", self.folder.display());
            return Err(e.hint("call the launch in a folder that exists on all machines"));
        }
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        end_with_this_process(&mut command);
        command.args(&self.args).envs(&self.env).current_dir(&self.folder);
        if self.share > 0 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(knobs::THREADS.name, (cores / self.share as usize).max(1).to_string());
        }
        apart(&mut command);
        command.spawn().map_err(failed)
    }
}

/// Reads commands from standard input line by line; the channel closes with the standard input.
fn words() -> Receiver<String> {
    let (told, words) = channel();
    // If the thread cannot be started, standard input appears closed.
    let _ = std::thread::Builder::new().name("systole-agent".into()).spawn(move || {
        for line in stdin().lock().lines().map_while(std::result::Result::ok) {
            if told.send(line).is_err() {
                return;
            }
        }
    });
    words
}

/// Waits for the process and returns the exit code.
fn attend(child: &mut Child, signals: &Signals, words: &Receiver<String>) -> Result<u8> {
    use std::sync::mpsc::TryRecvError::Disconnected;
    let mut until = None;
    // A second signal would end training without a backup.
    let mut is_asked = false;
    loop {
        let ended = child
            .try_wait()
            .map_err(|e| err!(Io, "cannot query the state of a child process").because(e.to_string()))?;
        if let Some(status) = ended {
            let code = killed(status).map(|signal| SIGNALLED + signal).or(status.code());
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        if let Some(signal) = signals.take().filter(|_| until.is_none()) {
            send(child, signal);
            is_asked = true;
        }
        match words.try_recv() {
            Ok(word) if word == KILL => until = Some(Instant::now()),
            Ok(word) => {
                if let Some((signal, _)) = FORWARDED.iter().find(|(_, name)| *name == word) {
                    send(child, *signal);
                    is_asked = true;
                }
            }
            Err(Disconnected) if until.is_none() => {
                // The launcher is gone: let the process save its state.
                if !is_asked {
                    send(child, SIGTERM);
                }
                until = Some(Instant::now() + Duration::from_secs(knobs::GRACE.get_usize() as u64));
            }
            Err(_) => {}
        }
        if until.is_some_and(|at| Instant::now() >= at) {
            // The process may have just ended.
            let _ = child.kill();
        }
        std::thread::sleep(POLL);
    }
}
