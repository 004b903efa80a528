//! Launches several processes as the hosts of one training run, and restarts them from the last backup if one is
//! killed.
//!
//! Processes run on this machine, over ssh, or as the rank assigned by a cluster scheduler. The launcher merges their
//! output and forwards signals. With `elastic` a lost machine is dropped.
//!
//! The processes are [training hosts](../../../docs/guide/tpu.md) connected by Systole's own plugin, which exchanges
//! the data. An error that a process reports itself is not retried.

mod agent;
mod log_merge;
mod machines;
mod output;
mod pods;
mod process;
mod process_rank;
mod scheduler_env;
mod signals;
mod watch;

pub use agent::{COMMAND as AGENT, run_agent};
pub use machines::check_hosts;
pub use output::LaunchOutput;
pub use signals::END_WITH_STDIN;

use agent::AgentRequest;
use log_merge::{LinePrefix, MergedLog, lines};
use machines::{LaunchMachine, chosen, machines};
use process::Process;
use process_rank::{PORT, ProcessRank};
use scheduler_env::part;
use serde_json::Value;
use signals::{Signals, end_with_this_process};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use systole_config::{LaunchConfig, LaunchTarget};
use systole_data::RunSecret;
use systole_ir::{Error, ErrorKind, Result, err, knobs};
use watch::{LaunchEnd, watch};

/// The plugin's hint when another process is gone. A launcher that started only this process restarts it.
const START_AGAIN: &str = "start all processes again";

/// Command line that each launched process runs.
pub struct ProcessCommand {
    /// Arguments of this program.
    pub args: Vec<OsString>,
    /// Whether plugin options connect the processes; the hosts of a TPU slice find each other.
    pub is_wired: bool,
    /// Whether the arguments set the number of threads.
    pub sets_threads: bool,
    /// Run folder, if the command names it. The log is written there.
    pub run_dir: Option<PathBuf>,
    /// Global batch size, which stays the same if processes are dropped.
    pub batch: Option<u64>,
}

/// Result of a launch: exit code, restarts and dropped machines.
pub struct LaunchSummary {
    /// Exit code of the launcher.
    pub code: u8,
    /// Number of processes at the end.
    pub processes: u32,
    /// Number of devices at the end.
    pub devices: u32,
    /// Number of restarts of all processes.
    pub restarts: u32,
    /// Names of the dropped machines; `None` is this machine.
    pub left_out: Vec<Option<String>>,
    /// The log file, if one was written.
    pub log: Option<PathBuf>,
    /// The JSON object that the first process printed, if [`Launch::collect_result`] was set.
    pub result: Value,
}

/// A launch whose processes have not been started.
pub struct Launch {
    config: LaunchConfig,
    /// Rank of this process, if a cluster starts one launcher per process.
    part: Option<ProcessRank>,
    machines: Vec<LaunchMachine>,
    env: BTreeMap<String, String>,
    /// Secret that the processes prove to each other, if there are several and the plugin connects them.
    secret: Option<RunSecret>,
    /// Indices of the processes whose output is shown; `None`: all.
    pub shown: Option<Vec<u32>>,
    /// Whether to keep a JSON object that the first process prints, for the [`LaunchSummary`].
    pub collect_result: bool,
}

impl Launch {
    /// Reads the hosts file or the scheduler's environment. `tpu`: name of the TPU that this process is a host of, or
    /// empty.
    ///
    /// # Errors
    /// If the file or the environment does not determine the processes, or a variable of `env` is not set.
    pub fn new(config: LaunchConfig, tpu: &str) -> Result<Launch> {
        let part = part(&config, tpu)?;
        let machines = machines(&config)?;
        let env = environment(&config)?;
        Ok(Launch { config, part, machines, env, secret: None, shown: None, collect_result: false })
    }

    /// Returns the launch options.
    pub fn config(&self) -> &LaunchConfig {
        &self.config
    }

    /// Number of processes of the run.
    pub fn count(&self) -> u32 {
        self.part.as_ref().map_or(self.machines.iter().map(|m| m.slots).sum(), |part| part.count)
    }

    /// Sets the shared secret by which processes authenticate: `SYSTOLE_SECRET`, or a random one.
    ///
    /// # Errors
    /// If the secret is too short, or a cluster starts the launchers and none is set: they cannot agree on a random one.
    pub fn set_secret(&mut self) -> Result<()> {
        let place = self.config.place;
        self.secret = match RunSecret::from_environment()? {
            Some(secret) => Some(secret),
            None if self.count() < 2 => None,
            None if self.part.is_none() => Some(RunSecret::random()?),
            None => {
                let e = err!(Config, "the processes have no common secret");
                let e = e.because("process 0 listens for processes on other machines");
                return Err(e.at(knobs::SECRET.name).hint_setting(match place {
                    LaunchTarget::Slurm => format!("before srun, run: {}", RunSecret::command()),
                    LaunchTarget::K8s => {
                        format!("set {} in all pods from a Kubernetes secret", knobs::SECRET.name)
                    }
                    _ => format!("set {} to the same random text on all machines", knobs::SECRET.name),
                }));
            }
        };
        Ok(())
    }

    /// Starts the processes and waits for their end.
    ///
    /// # Errors
    /// If the log cannot be written, a process cannot be started, or a process is lost and no restart is left.
    pub fn run(self, command: ProcessCommand, output: &dyn LaunchOutput) -> Result<LaunchSummary> {
        let name =
            self.part.as_ref().map_or("launch.log".into(), |part| format!("launch-{}.log", part.index));
        let in_folder = command.run_dir.as_ref().map(|folder| folder.join(name));
        let told = MergedLog::new(output, self.shown.as_deref(), self.config.log.as_deref(), in_folder)?;
        let mut run = RunningLaunch {
            launch: self,
            command,
            output,
            told,
            signals: Signals::install()?,
            result: Mutex::new(Value::Null),
            restarts: 0,
        };
        run.introduce();
        run.all()
    }
}

/// Environment of processes on other machines: Systole's own variables and the named ones.
fn environment(config: &LaunchConfig) -> Result<BTreeMap<String, String>> {
    let own = knobs::KNOBS.iter().filter(|knob| knob.name != knobs::SSH.name && knob.get() != knob.default);
    let mut all: BTreeMap<String, String> = own.map(|knob| (knob.name.to_string(), knob.get())).collect();
    for given in &config.env {
        let (name, value) = match given.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (given.as_str(), std::env::var(given).ok()),
        };
        let value = value.filter(|_| !name.is_empty()).ok_or_else(|| {
            let e = err!(Config, "the variable `{given}` is not set").at("--env");
            e.hint_command("set the variable in the environment, or pass its value: --env NAME=VALUE")
        })?;
        all.insert(name.into(), value);
    }
    Ok(all)
}

/// A running launch.
struct RunningLaunch<'a> {
    launch: Launch,
    command: ProcessCommand,
    output: &'a dyn LaunchOutput,
    told: MergedLog<'a>,
    signals: Signals,
    /// JSON result of the first process.
    result: Mutex<Value>,
    restarts: u32,
}

impl RunningLaunch<'_> {
    /// Reports the rank of this process in a cluster and the address of process 0.
    fn introduce(&self) {
        if let Some(part) = self.launch.part.as_ref().filter(|part| part.count > 1) {
            let (index, count, address) = (part.index, part.count, &part.address);
            self.told.detail(&format!("process {index} of {count}; process 0 is at {address}"));
        }
    }

    /// Starts all processes and restarts them as often as allowed.
    fn all(&mut self) -> Result<LaunchSummary> {
        let mut crew = chosen(&self.launch.machines, 0, 1, None).unwrap_or_default();
        let code = loop {
            match self.round(&crew)? {
                LaunchEnd::With(code) => break code,
                LaunchEnd::Lost { machine, who } => crew = self.after(machine, &who, crew)?,
            }
        };
        let processes = self.launch.part.as_ref().map_or(crew.len() as u32, |part| part.count);
        let out = self.launch.machines.iter().filter(|machine| machine.is_out);
        Ok(LaunchSummary {
            code,
            processes,
            devices: processes * self.devices(),
            restarts: self.restarts,
            left_out: out.map(|machine| machine.name.clone()).collect(),
            log: self.told.log_file(),
            result: std::mem::take(&mut *self.result.lock().unwrap_or_else(PoisonError::into_inner)),
        })
    }

    fn devices(&self) -> u32 {
        self.launch.config.devices_per_process.unwrap_or(1)
    }

    /// SLURM signals all processes of a task. Forwarding would deliver a second signal, which ends training
    /// immediately.
    fn all_get_signals(&self) -> bool {
        self.launch.config.place == LaunchTarget::Slurm
    }

    /// Returns the machines for the next round after a process is lost.
    fn after(&mut self, machine: usize, who: &str, crew: Vec<usize>) -> Result<Vec<usize>> {
        let most = self.launch.config.max_restarts.unwrap_or(0);
        let deaths = &mut self.launch.machines[machine].deaths;
        *deaths += 1;
        let so_far = if self.command.batch.is_some() { *deaths } else { self.restarts + 1 };
        if so_far <= most {
            self.restarts += 1;
            self.told.launch(&format!(
                "{who}: restarting all processes from the last backup ({so_far} of {most})"
            ));
            return Ok(crew);
        }
        let Some(batch) = self.command.batch else {
            let e = Error::new(ErrorKind::Io, who).because("a run needs all of its processes").at("launch");
            return Err(e.hint_command("run the same command again to resume from the last backup; pass --max-restarts N to restart automatically, and --elastic to drop lost machines"));
        };
        self.launch.machines[machine].is_out = true;
        let least = self.launch.config.elastic.unwrap_or(1);
        let crew = chosen(&self.launch.machines, least, self.devices(), Some(batch)).ok_or_else(|| {
            let left = self.launch.machines.iter().filter(|machine| !machine.is_out).map(|machine| machine.slots);
            let (left, devices) = (left.sum::<u32>(), self.devices());
            let why = format!(
                "{left} processes are left; expected at least {least}, with {devices} devices each, dividing the batch size {batch}"
            );
            let e = Error::new(ErrorKind::Io, who).because(why).at("launch");
            e.hint("run the same command again when the machine is back, to resume from the last backup")
        })?;
        self.restarts += 1;
        let left_out = self.launch.machines[machine].name.as_ref().map_or("it".into(), String::clone);
        let rest = if crew.len() == 1 {
            "one process resumes".into()
        } else {
            format!("{} processes resume", crew.len())
        };
        self.told.launch(&format!("{who}: {left_out} is dropped, and {rest} from the last backup"));
        Ok(crew)
    }

    /// Starts one process for each entry of `crew` (its machine) and waits until all have ended.
    fn round(&self, crew: &[usize]) -> Result<LaunchEnd> {
        let port = match (self.launch.config.place, crew.len()) {
            (LaunchTarget::ThisMachine, 2..) => free_port()?,
            _ => self.launch.config.port.unwrap_or(PORT),
        };
        let mut processes: Vec<Process> = Vec::new();
        for index in 0..crew.len() {
            match self.start(crew, index, port) {
                Ok(process) => processes.push(process),
                Err(e) => {
                    processes.iter_mut().for_each(Process::kill);
                    return Err(e);
                }
            }
        }
        let pids: Vec<String> = processes.iter().map(|process| process.id().to_string()).collect();
        let counted = if pids.len() == 1 { "1 process".into() } else { format!("{} processes", pids.len()) };
        self.told.detail(&format!("{counted}: {}", pids.join(", ")));
        let partner = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            for process in &mut processes {
                let (told, more) = process.streams();
                let label = LinePrefix { index: process.label.index, text: process.label.text.clone() };
                scope.spawn({
                    let label = LinePrefix { index: label.index, text: label.text.clone() };
                    let is_first = self.is_first(&label);
                    move || lines(told, |line| self.take(&label, is_first, line))
                });
                let partner = &partner;
                scope.spawn(move || {
                    self.told.errors(&label, more, |line| {
                        if line.contains(START_AGAIN) {
                            partner.store(true, Ordering::SeqCst);
                        }
                    });
                });
            }
            watch(&mut processes, &self.signals, !self.all_get_signals())
        })?;
        seen.judged(&processes, self.launch.part.is_some() && partner.load(Ordering::SeqCst))
    }

    /// Whether the process is the one whose JSON result is kept.
    fn is_first(&self, label: &LinePrefix) -> bool {
        label.index == self.launch.part.as_ref().map_or(0, |part| part.index)
    }

    /// Handles a line of a process's standard output.
    fn take(&self, label: &LinePrefix, is_first: bool, line: &str) {
        let object =
            if self.launch.collect_result && is_first { serde_json::from_str(line).ok() } else { None };
        match object {
            Some(object) => {
                self.told.write(&format!("[{}] {line}", label.text));
                *self.result.lock().unwrap_or_else(PoisonError::into_inner) = object;
            }
            None => self.told.result(label, line),
        }
    }

    fn start(&self, crew: &[usize], at: usize, port: u16) -> Result<Process> {
        let machine = crew[at];
        let name = self.launch.machines[machine].name.as_deref();
        let index = self.launch.part.as_ref().map_or(at as u32, |part| part.index);
        let text = name.map_or_else(|| index.to_string(), |name| format!("{index} {name}"));
        let label = LinePrefix { index, text };
        let options = (knobs::PJRT_OPTIONS.name, self.options(crew, index, port));
        let secret = self.launch.secret.as_ref().map(|secret| (knobs::SECRET.name, secret.text()));
        let args = &self.command.args;
        let Some(name) = name else {
            let mut command = Command::new(here()?);
            end_with_this_process(&mut command);
            command.args(args);
            if self.command.is_wired {
                command.env(options.0, options.1);
            }
            command.envs(secret);
            return Process::here(command, label, machine, self.all_get_signals());
        };
        let mut env = self.launch.env.clone();
        env.insert(options.0.into(), options.1);
        env.extend(secret.map(|(name, text)| (name.to_string(), text.to_string())));
        let folder = std::env::current_dir()
            .map_err(|e| err!(Io, "the current directory does not exist").because(e.to_string()))?;
        let share = if self.command.sets_threads { 0 } else { self.launch.machines[machine].slots };
        let order = AgentRequest {
            folder,
            args: args.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            env,
            share,
            quiet: self.output.is_quiet(),
        };
        let program = self.launch.config.program.clone().map_or_else(here, Ok)?;
        Process::there(&order, &program, name, label, machine)
    }

    /// Plugin options of a process.
    fn options(&self, crew: &[usize], index: u32, port: u16) -> String {
        let given = knobs::PJRT_OPTIONS.get();
        let given = given.split(if given.contains('\n') { '\n' } else { ',' });
        let count = self.launch.part.as_ref().map_or(crew.len() as u32, |part| part.count);
        let first = crew.first().and_then(|&machine| self.launch.machines[machine].name.as_deref());
        let (listens, address) = match (&self.launch.part, first) {
            (Some(part), _) => (format!("0.0.0.0:{}", port_of(&part.address)), part.address.clone()),
            // Without the ssh user name.
            (None, Some(name)) => {
                let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
                (format!("0.0.0.0:{port}"), format!("{host}:{port}"))
            }
            (None, None) => (format!("127.0.0.1:{port}"), format!("127.0.0.1:{port}")),
        };
        let own = [
            format!("num_devices={}", self.devices()),
            format!("num_processes={count}"),
            format!("process_id={index}"),
            format!("coordinator_address={}", if index == 0 { listens } else { address }),
            format!("timeout_seconds={}", self.launch.config.timeout.unwrap_or(120)),
        ];
        let own = if count > 1 { &own[..] } else { &own[..1] };
        let given = given.filter(|option| !option.trim().is_empty()).map(String::from);
        given.chain(own.iter().cloned()).collect::<Vec<_>>().join("\n") + "\n"
    }
}

fn port_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(_, port)| port)
}

fn here() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|e| err!(Io, "cannot determine the path of this program").because(e.to_string()))
}

fn free_port() -> Result<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|e| err!(Io, "no free TCP port was found").because(e.to_string()))
}

// Names of the previous version.
systole_ir::renamed! { Summary => LaunchSummary }
#[doc(hidden)]
pub use self::LaunchOutput as Output;
