//! One of the processes of a launch: on this machine a child, on another one what an agent there has started.

use super::agent::{self, AgentRequest, KILL, SIGNALLED};
use super::log_merge::LinePrefix;
use super::signals::{FORWARDED, apart, killed, send};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use systole_data::shell_quoted as quoted;
use systole_ir::{Error, ErrorKind, Result, knobs};

/// What ssh ends with where it does not reach a machine.
const UNREACHED: i32 = 255;
/// What a shell ends with that cannot start a program.
const NO_PROGRAM: [i32; 2] = [126, 127];
/// How long an agent has to end what it started; then the way to it is cut.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Process {
    pub(crate) label: LinePrefix,
    /// Which of the machines it is on.
    pub(crate) machine: usize,
    /// The name of that machine, where it is another one.
    name: Option<String>,
    child: Child,
    agent: Option<AgentConnection>,
    ended: Option<ExitStatus>,
}

/// The way to an agent.
struct AgentConnection {
    orders: Option<ChildStdin>,
    /// When it was told to kill.
    killed: Option<Instant>,
}

/// How a process ended.
pub(crate) enum ProcessExit {
    /// By itself, with this code.
    Code(i32),
    /// It was killed, or cannot be reached: how.
    Lost(String),
}

fn failed(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "cannot start a process").because(e.to_string())
}

impl Process {
    /// One on this machine. `gets_signals`: whether those that are sent to this process reach it, too.
    pub(crate) fn here(
        mut command: Command,
        label: LinePrefix,
        machine: usize,
        gets_signals: bool,
    ) -> Result<Process> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !gets_signals {
            apart(&mut command);
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Process { label, machine, name: None, child, agent: None, ended: None })
    }

    /// One on another machine, where `program` lies.
    pub(crate) fn there(
        order: &AgentRequest,
        program: &Path,
        name: &str,
        label: LinePrefix,
        machine: usize,
    ) -> Result<Process> {
        let way = knobs::SSH.get();
        let mut words = way.split_whitespace();
        let ssh = words.next().ok_or_else(|| knobs::SSH.no_value(&way))?;
        let mut command = Command::new(ssh);
        command.args(words).arg(name).arg(format!("{} {}", quoted(program), agent::COMMAND));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        apart(&mut command);
        let mut child = command.spawn().map_err(|e| {
            let e = Error::new(ErrorKind::Io, format!("cannot start {ssh}")).because(e.to_string());
            e.at("--hosts")
                .hint(format!("install it, or name another way to other machines: {}", knobs::SSH.name))
        })?;
        let mut orders = child.stdin.take();
        let text = serde_json::to_string(order)
            .map_err(|e| Error::new(ErrorKind::Bug, "an order does not serialise").because(e.to_string()))?;
        if let Some(orders) = &mut orders {
            // Where it has ended already, how it ended says why.
            let _ = writeln!(orders, "{text}");
        }
        let agent = Some(AgentConnection { orders, killed: None });
        Ok(Process { label, machine, name: Some(name.into()), child, agent, ended: None })
    }

    /// `process 1`, or `process 1 on node2`.
    pub(crate) fn named(&self) -> String {
        let on = self.name.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        format!("process {}{on}", self.label.index)
    }

    /// The number of the child here.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn streams(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Looks whether it has ended.
    pub(crate) fn look(&mut self) -> Result<()> {
        if self.ended.is_none() {
            let e =
                |e: std::io::Error| Error::new(ErrorKind::Io, "cannot ask a process").because(e.to_string());
            self.ended = self.child.try_wait().map_err(e)?;
        }
        Ok(())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<ProcessExit> {
        let status = self.ended?;
        let way = || knobs::SSH.get().split_whitespace().next().map_or_else(String::new, String::from);
        Some(match (killed(status), status.code().unwrap_or(1), &self.name) {
            (Some(signal), _, None) => ProcessExit::Lost(format!("was killed by signal {signal}")),
            (Some(signal), _, Some(_)) => {
                ProcessExit::Lost(format!("is lost: {} was killed by signal {signal}", way()))
            }
            (None, UNREACHED, Some(_)) => {
                ProcessExit::Lost(format!("cannot be reached: {} ended with {UNREACHED}", way()))
            }
            // Those two are how training ends that is told to stop.
            (None, code, Some(_)) if code > SIGNALLED && ![SIGINT, SIGTERM].contains(&(code - SIGNALLED)) => {
                ProcessExit::Lost(format!("was killed by signal {}", code - SIGNALLED))
            }
            (None, code, _) => ProcessExit::Code(code),
        })
    }

    /// The error of a machine that has no such program.
    ///
    /// # Errors
    /// When it ended so.
    pub(crate) fn check_program(&self) -> Result<()> {
        match (&self.name, self.end()) {
            (Some(name), Some(ProcessExit::Code(code))) if NO_PROGRAM.contains(&code) => {
                let e =
                    Error::new(ErrorKind::Config, format!("{name} cannot start the program")).at("--hosts");
                Err(e.hint("all machines need it at the same path, or name it: --program FILE"))
            }
            _ => Ok(()),
        }
    }

    /// Sends a signal, where it has not ended.
    pub(crate) fn tell(&mut self, signal: i32) {
        let word = FORWARDED.iter().find(|(known, _)| *known == signal).map(|(_, word)| *word);
        match (&mut self.agent, word) {
            _ if self.ended.is_some() => {}
            (None, _) => send(&self.child, signal),
            (Some(agent), Some(word)) => agent.say(word),
            (Some(_), None) => {}
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let is_over = match &mut self.agent {
            None => true,
            Some(agent) => match agent.killed {
                Some(since) => since.elapsed() > PATIENCE,
                None => {
                    agent.say(KILL);
                    agent.killed = Some(Instant::now());
                    false
                }
            },
        };
        if is_over {
            // It may have ended just now.
            let _ = self.child.kill();
        }
    }
}

impl AgentConnection {
    fn say(&mut self, word: &str) {
        if let Some(orders) = &mut self.orders {
            // Where it is gone, so is who would hear it.
            let _ = writeln!(orders, "{word}");
        }
    }
}
