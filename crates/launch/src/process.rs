//! A launched process: a child process on this machine, or a process started by a launch agent over ssh.

use super::agent::{self, AgentRequest, KILL, SIGNALLED};
use super::log_merge::LinePrefix;
use super::signals::{FORWARDED, apart, killed, send};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use systole_data::shell_quoted as quoted;
use systole_ir::{Error, Result, err, knobs};

/// Exit code of ssh if it cannot reach a machine.
const UNREACHED: i32 = 255;
/// Exit codes of a shell that cannot start a program.
const NO_PROGRAM: [i32; 2] = [126, 127];
/// Time for an agent to kill its process before the ssh connection is cut.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Process {
    pub(crate) label: LinePrefix,
    /// Index of its machine.
    pub(crate) machine: usize,
    /// Name of its machine, if it is another one.
    name: Option<String>,
    child: Child,
    agent: Option<AgentConnection>,
    ended: Option<ExitStatus>,
}

/// Connection to a launch agent.
struct AgentConnection {
    orders: Option<ChildStdin>,
    /// When the agent was ordered to kill the process.
    killed: Option<Instant>,
}

/// How a process ended.
pub(crate) enum ProcessExit {
    /// The process exited with this code.
    Code(i32),
    /// The process was killed or is unreachable, with a description.
    Lost(String),
}

fn failed(e: std::io::Error) -> Error {
    err!(Io, "cannot start a child process").because(e.to_string())
}

impl Process {
    /// Starts a process on this machine. `gets_signals`: whether signals to the launcher's process group reach it too.
    pub(crate) fn here(
        mut command: Command,
        label: LinePrefix,
        machine: usize,
        gets_signals: bool,
    ) -> Result<Process> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if !gets_signals {
            apart(&mut command);
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Process { label, machine, name: None, child, agent: None, ended: None })
    }

    /// Starts a process on another machine, where `program` is installed.
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
            let e = err!(Io, "cannot start {ssh}").because(e.to_string());
            e.at("--hosts").hint_setting(format!(
                "install the remote shell, or set another remote shell with {}",
                knobs::SSH.name
            ))
        })?;
        let mut orders = child.stdin.take();
        let text = serde_json::to_string(order)
            .map_err(|e| err!(Bug, "cannot serialize the request").because(e.to_string()))?;
        if let Some(orders) = &mut orders {
            // If ssh has already ended, its exit code explains why.
            let _ = writeln!(orders, "{text}");
        }
        let agent = Some(AgentConnection { orders, killed: None });
        Ok(Process { label, machine, name: Some(name.into()), child, agent, ended: None })
    }

    /// Name for messages: `process 1`, or `process 1 on node2`.
    pub(crate) fn named(&self) -> String {
        let on = self.name.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        format!("process {}{on}", self.label.index)
    }

    /// Process id of the local child.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn streams(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Polls whether the process has ended.
    pub(crate) fn look(&mut self) -> Result<()> {
        if self.ended.is_none() {
            let e = |e: std::io::Error| {
                err!(Io, "cannot query the state of a child process").because(e.to_string())
            };
            self.ended = self.child.try_wait().map_err(e)?;
        }
        Ok(())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns how the process ended, if it has.
    pub(crate) fn end(&self) -> Option<ProcessExit> {
        let status = self.ended?;
        let way = || knobs::SSH.get().split_whitespace().next().map_or_else(String::new, String::from);
        Some(match (killed(status), status.code().unwrap_or(1), &self.name) {
            (Some(signal), _, None) => ProcessExit::Lost(format!("was killed by signal {signal}")),
            (Some(signal), _, Some(_)) => {
                ProcessExit::Lost(format!("is lost: {} was killed by signal {signal}", way()))
            }
            (None, UNREACHED, Some(_)) => {
                ProcessExit::Lost(format!("is unreachable: {} exited with {UNREACHED}", way()))
            }
            // SIGINT and SIGTERM are how training ends on request.
            (None, code, Some(_)) if code > SIGNALLED && ![SIGINT, SIGTERM].contains(&(code - SIGNALLED)) => {
                ProcessExit::Lost(format!("was killed by signal {}", code - SIGNALLED))
            }
            (None, code, _) => ProcessExit::Code(code),
        })
    }

    /// Reports a machine that does not have the program.
    ///
    /// # Errors
    /// If the shell on the machine could not start the program.
    pub(crate) fn check_program(&self) -> Result<()> {
        match (&self.name, self.end()) {
            (Some(name), Some(ProcessExit::Code(code))) if NO_PROGRAM.contains(&code) => {
                let e = err!(Config, "{name} cannot start the program").at("--hosts");
                Err(e.hint_command("install the program at the same path on all machines, or name its path with --program FILE"))
            }
            _ => Ok(()),
        }
    }

    /// Sends a signal, unless the process has ended.
    pub(crate) fn tell(&mut self, signal: i32) {
        let word = FORWARDED.iter().find(|(known, _)| *known == signal).map(|(_, word)| *word);
        match (&mut self.agent, word) {
            _ if self.ended.is_some() => {}
            (None, _) => send(&self.child, signal),
            (Some(agent), Some(word)) => agent.say(word),
            (Some(_), None) => {}
        }
    }

    /// Kills the process.
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
            // The process may have just ended.
            let _ = self.child.kill();
        }
    }
}

impl AgentConnection {
    fn say(&mut self, word: &str) {
        if let Some(orders) = &mut self.orders {
            // If the connection is gone, the agent ends the process itself.
            let _ = writeln!(orders, "{word}");
        }
    }
}
