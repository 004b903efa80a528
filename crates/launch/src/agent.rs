//! `systole launch-agent`: what `launch --hosts` starts on another machine. It starts the process there, hands its output through,
//! and does as it is told over its standard input; when that ends, the launch or the way to it is gone, and the process ends, too.

use super::signals::{FORWARDED, Signals, apart, killed, send};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use std::collections::BTreeMap;
use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use systole_ir::{Error, ErrorKind, Result, knobs};

/// The command's name.
pub const COMMAND: &str = "launch-agent";
/// The word that ends the process at once.
pub(crate) const KILL: &str = "KILL";
/// What the exit codes of processes that a signal killed begin with, as a shell has it.
pub(crate) const SIGNALLED: i32 = 128;
/// How often it is looked whether the process has ended.
const POLL: Duration = Duration::from_millis(20);

/// The first line of an agent's standard input. Nothing of it stands in a command that others on the machine could read.
#[derive(Serialize, Deserialize)]
pub(crate) struct AgentRequest {
    /// The folder to be in.
    pub(crate) folder: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// How many processes share the machine's cores; 0: the arguments say how many threads.
    pub(crate) share: u32,
    /// Whether to say nothing of the process.
    pub(crate) quiet: bool,
}

/// Runs what standard input orders, and returns the exit code of the process. `note` takes a line about it.
///
/// # Errors
/// If the order is not readable or the process cannot be started.
pub fn run_agent(note: impl Fn(&str)) -> Result<u8> {
    let signals = Signals::install()?;
    let mut first = String::new();
    let order = stdin().lock().read_line(&mut first).ok().and_then(|_| serde_json::from_str(&first).ok());
    let order: AgentRequest = order.ok_or_else(|| {
        let e = Error::new(ErrorKind::Config, "an agent is told what to run over its standard input");
        e.hint("it is for `systole launch --hosts` to start it; both programs must be of one version")
    })?;
    let mut child = order.start()?;
    if !order.quiet {
        note(&format!("[{COMMAND}] process {}", child.id()));
    }
    attend(&mut child, &signals, &words())
}

impl AgentRequest {
    fn start(&self) -> Result<Child> {
        let failed =
            |e: std::io::Error| Error::new(ErrorKind::Io, "cannot start a process").because(e.to_string());
        if !self.folder.is_dir() {
            let e = Error::new(ErrorKind::Io, format!("there is no folder {} here", self.folder.display()));
            return Err(e.hint("the launch is called in a folder that all machines have"));
        }
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(&self.args).envs(&self.env).current_dir(&self.folder).stdin(Stdio::null());
        if self.share > 0 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(knobs::THREADS.name, (cores / self.share as usize).max(1).to_string());
        }
        apart(&mut command);
        command.spawn().map_err(failed)
    }
}

/// What is told, line by line; it ends with the standard input.
fn words() -> Receiver<String> {
    let (told, words) = channel();
    // Where there is no thread the standard input seems to have ended.
    let _ = std::thread::Builder::new().name("systole-agent".into()).spawn(move || {
        for line in stdin().lock().lines().map_while(std::result::Result::ok) {
            if told.send(line).is_err() {
                return;
            }
        }
    });
    words
}

/// Waits for the process; the code to end with.
fn attend(child: &mut Child, signals: &Signals, words: &Receiver<String>) -> Result<u8> {
    use std::sync::mpsc::TryRecvError::Disconnected;
    let mut until = None;
    loop {
        let ended = child
            .try_wait()
            .map_err(|e| Error::new(ErrorKind::Io, "cannot ask a process").because(e.to_string()))?;
        if let Some(status) = ended {
            let code = killed(status).map(|signal| SIGNALLED + signal).or(status.code());
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        if let Some(signal) = signals.take() {
            send(child, signal);
        }
        match words.try_recv() {
            Ok(word) if word == KILL => until = Some(Instant::now()),
            Ok(word) => {
                if let Some((signal, _)) = FORWARDED.iter().find(|(_, name)| *name == word) {
                    send(child, *signal);
                }
            }
            Err(Disconnected) if until.is_none() => {
                // Nobody is there any more: it may still save what it has.
                send(child, SIGTERM);
                until = Some(Instant::now() + Duration::from_secs(knobs::GRACE.get_usize() as u64));
            }
            Err(_) => {}
        }
        if until.is_some_and(|at| Instant::now() >= at) {
            // As with signals: it may have ended just now.
            let _ = child.kill();
        }
        std::thread::sleep(POLL);
    }
}
