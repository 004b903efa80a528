//! `systole launch`: several processes as the hosts of one run. It wires them, merges what they print, forwards signals, and starts all
//! of them again from the last backup where one was killed, without who is lost for good where that is asked.
//!
//! The processes are those that [several hosts](../../../docs/guide/tpu.md) would run, over Systole's own plugin; what they exchange is
//! the plugin's. An error that a process tells of by itself is none that another start would mend.

mod agent;
mod args;
mod machines;
mod pods;
mod process;
mod questions;
mod signals;
mod surroundings;
mod told;
mod watch;
mod words;

pub(crate) use agent::{COMMAND as AGENT, LaunchAgentArgs};
pub(crate) use args::LaunchArgs;

use crate::args::common::Common;
use crate::args::outcome::{Failure, Outcome, Run};
use crate::render::screen::Screen;
use agent::Order;
use args::Action;
use machines::{Machine, chosen, machines};
use process::Process;
use serde_json::{Value, json};
use signals::Signals;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use surroundings::{PORT, Part, part};
use systole_config::{LaunchConfig, LaunchPlace};
use systole_ir::{Error, ErrorKind, Result, knobs};
use told::{Label, Told, lines};
use watch::{Ended, watch};
use words::Words;

/// What the plugin tries where a partner is gone: the launch that has started this process alone does so, too.
const START_AGAIN: &str = "start all processes again";

impl Run for LaunchArgs {
    fn run(self, common: &Common, screen: &Screen) -> Outcome {
        if let Some(Action::Config(args)) = &self.action {
            return questions::configure(args, screen);
        }
        if common.trace.is_some() || common.flame.is_some() {
            let e = Error::new(ErrorKind::Config, "a timeline is one of a process").at("launch");
            return Err(Failure::usage(e.hint("leave --trace and --flame out, or use train alone")));
        }
        let config = self.merged().map_err(Failure::usage)?;
        let part = part(&config, self.how.tpu.as_deref().unwrap_or_default()).map_err(Failure::usage)?;
        let machines = machines(&config).map_err(Failure::usage)?;
        let count = part.as_ref().map_or(machines.iter().map(|m| m.slots).sum(), |part| part.count);
        let words = Words::of(&self.command, common, &config, count).map_err(Failure::usage)?;
        let batch = config.elastic.map(|_| batch(&words)).transpose()?;
        let name = part.as_ref().map_or("launch.log".into(), |part| format!("launch-{}.log", part.index));
        let in_folder = words.folder.as_ref().map(|folder| folder.join(name));
        let told = Told::new(screen, self.show.as_ref(), config.log.as_deref(), in_folder)?;
        let mut launch = Launch {
            env: environment(&config).map_err(Failure::usage)?,
            config,
            part,
            machines,
            words,
            batch,
            screen,
            told,
            signals: Signals::install()?,
            result: Mutex::new(Value::Null),
            restarts: 0,
        };
        launch.introduce();
        launch.all()
    }

    fn starts_children(&self) -> bool {
        true
    }
}

/// The samples of a step of a run that may go on with fewer processes.
fn batch(words: &Words) -> Result<u64, Failure> {
    if !words.are_wired {
        let e = Error::new(ErrorKind::Unsupported, "a TPU slice stays as it is").at("--elastic");
        return Err(Failure::usage(e.hint("it is for Systole's own plugin")));
    }
    words.batch()
}

/// What processes on other machines find in their environment: this program's own variables, and those that were named.
fn environment(config: &LaunchConfig) -> Result<BTreeMap<String, String>> {
    let own = knobs::KNOBS.iter().filter(|knob| knob.name != knobs::SSH.name && knob.get() != knob.default);
    let mut all: BTreeMap<String, String> = own.map(|knob| (knob.name.to_string(), knob.get())).collect();
    for given in &config.env {
        let (name, value) = match given.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (given.as_str(), std::env::var(given).ok()),
        };
        let value = value.filter(|_| !name.is_empty()).ok_or_else(|| {
            let e =
                Error::new(ErrorKind::Config, format!("the variable `{given}` is not set here")).at("--env");
            e.hint("set it, or give its value: --env NAME=VALUE")
        })?;
        all.insert(name.into(), value);
    }
    Ok(all)
}

/// What is launched.
struct Launch<'a> {
    config: LaunchConfig,
    /// The part of this launch, where a cluster starts one for each process.
    part: Option<Part>,
    machines: Vec<Machine>,
    words: Words,
    /// The samples of a step, where machines may be left out.
    batch: Option<u64>,
    env: BTreeMap<String, String>,
    screen: &'a Screen,
    told: Told<'a>,
    signals: Signals,
    /// What the first process hands over.
    result: Mutex<Value>,
    restarts: u32,
}

impl Launch<'_> {
    /// Says which process of a cluster's this is, and by which name it looks for the first.
    fn introduce(&self) {
        if let Some(part) = self.part.as_ref().filter(|part| part.count > 1) {
            let (index, count, address) = (part.index, part.count, &part.address);
            self.told.detail(&format!("process {index} of {count}; process 0 is at {address}"));
        }
    }

    /// Starts all, and again where it may.
    fn all(&mut self) -> Outcome {
        let mut crew = chosen(&self.machines, 0, 1, None).unwrap_or_default();
        let code = loop {
            match self.round(&crew)? {
                Ended::With(code) => break code,
                Ended::Lost { machine, who } => crew = self.after(machine, &who, crew)?,
            }
        };
        if self.screen.json {
            let count = self.part.as_ref().map_or(crew.len() as u32, |part| part.count);
            let out = self.machines.iter().filter(|machine| machine.is_out);
            let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
            self.screen.object(&json!({
                "processes": count,
                "devices": count * self.devices(),
                "restarts": self.restarts,
                "left_out": out.map(|machine| machine.name.clone()).collect::<Vec<_>>(),
                "log": self.told.log_file(),
                "exit_code": code,
                "result": *result,
            }));
        }
        Ok(code)
    }

    fn devices(&self) -> u32 {
        self.config.devices_per_process.unwrap_or(1)
    }

    /// SLURM sends signals to all processes of a task: a second one would end training at once.
    fn all_get_signals(&self) -> bool {
        self.config.place == LaunchPlace::Slurm
    }

    /// Who takes part after one is lost.
    fn after(&mut self, machine: usize, who: &str, crew: Vec<usize>) -> Result<Vec<usize>> {
        let most = self.config.max_restarts.unwrap_or(0);
        let deaths = &mut self.machines[machine].deaths;
        *deaths += 1;
        let so_far = if self.batch.is_some() { *deaths } else { self.restarts + 1 };
        if so_far <= most {
            self.restarts += 1;
            self.told
                .launch(&format!("{who}: all are started again from the last backup ({so_far} of {most})"));
            return Ok(crew);
        }
        let Some(batch) = self.batch else {
            let e = Error::new(ErrorKind::Io, who).because("all processes of a run are needed").at("launch");
            return Err(e.hint("the same command goes on from the last backup; --max-restarts N does so by itself, and --elastic leaves out who is lost for good"));
        };
        self.machines[machine].is_out = true;
        let least = self.config.elastic.unwrap_or(1);
        let crew = chosen(&self.machines, least, self.devices(), Some(batch)).ok_or_else(|| {
            let left = self.machines.iter().filter(|machine| !machine.is_out).map(|machine| machine.slots);
            let (left, devices) = (left.sum::<u32>(), self.devices());
            let why = format!(
                "{left} are left; {least} at least are wanted, of {devices} devices each, that divide a batch of {batch}"
            );
            let e = Error::new(ErrorKind::Io, who).because(why).at("launch");
            e.hint("the same command goes on from the last backup when the machine is back")
        })?;
        self.restarts += 1;
        let left_out = self.machines[machine].name.as_ref().map_or("it".into(), String::clone);
        let rest =
            if crew.len() == 1 { "one process goes".into() } else { format!("{} processes go", crew.len()) };
        self.told.launch(&format!("{who}: {left_out} is left out, and {rest} on from the last backup"));
        Ok(crew)
    }

    /// Starts one process for each entry of `crew`, its machine, and waits until all have ended.
    fn round(&self, crew: &[usize]) -> Result<Ended> {
        let port = match (self.config.place, crew.len()) {
            (LaunchPlace::ThisMachine, 2..) => free_port()?,
            _ => self.config.port.unwrap_or(PORT),
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
                let label = Label { index: process.label.index, text: process.label.text.clone() };
                scope.spawn({
                    let label = Label { index: label.index, text: label.text.clone() };
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
        seen.judged(&processes, self.part.is_some() && partner.load(Ordering::SeqCst))
    }

    /// Whether a process is the one whose object is handed over.
    fn is_first(&self, label: &Label) -> bool {
        label.index == self.part.as_ref().map_or(0, |part| part.index)
    }

    /// A line of a process's standard output.
    fn take(&self, label: &Label, is_first: bool, line: &str) {
        let object = if self.screen.json && is_first { serde_json::from_str(line).ok() } else { None };
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
        let name = self.machines[machine].name.as_deref();
        let index = self.part.as_ref().map_or(at as u32, |part| part.index);
        let text = name.map_or_else(|| index.to_string(), |name| format!("{index} {name}"));
        let label = Label { index, text };
        let options = (knobs::PJRT_OPTIONS.name, self.options(crew, index, port));
        let args = &self.words.args;
        let Some(name) = name else {
            let mut command = Command::new(here()?);
            command.args(args);
            if self.words.are_wired {
                command.env(options.0, options.1);
            }
            return Process::here(command, label, machine, self.all_get_signals());
        };
        let mut env = self.env.clone();
        env.insert(options.0.into(), options.1);
        let folder = std::env::current_dir()
            .map_err(|e| Error::new(ErrorKind::Io, "there is no folder to be in").because(e.to_string()))?;
        let share = if self.words.names_threads() { 0 } else { self.machines[machine].slots };
        let order = Order {
            folder,
            args: args.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            env,
            share,
            quiet: self.screen.quiet,
        };
        let program = self.config.program.clone().map_or_else(here, Ok)?;
        Process::there(&order, &program, name, label, machine)
    }

    /// What the plugin of a process is opened with.
    fn options(&self, crew: &[usize], index: u32, port: u16) -> String {
        let given = knobs::PJRT_OPTIONS.get();
        let given = given.split(if given.contains('\n') { '\n' } else { ',' });
        let count = self.part.as_ref().map_or(crew.len() as u32, |part| part.count);
        let first = crew.first().and_then(|&machine| self.machines[machine].name.as_deref());
        let (listens, address) = match (&self.part, first) {
            (Some(part), _) => (format!("0.0.0.0:{}", port_of(&part.address)), part.address.clone()),
            // Without the name of the user there.
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
            format!("timeout_seconds={}", self.config.timeout.unwrap_or(120)),
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
    std::env::current_exe().map_err(|e| {
        Error::new(ErrorKind::Io, "this program does not know where it lies").because(e.to_string())
    })
}

fn free_port() -> Result<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|e| Error::new(ErrorKind::Io, "there is no free port").because(e.to_string()))
}
