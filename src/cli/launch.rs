//! `systole launch`: several processes on this machine as the hosts of one run. It wires them, merges what they print, forwards
//! signals, and starts all of them again from the last backup where one was killed.
//!
//! The processes are those that [several hosts](../../docs/guide/tpu.md) would run, over Systole's own plugin; what they exchange is
//! the plugin's. An error that a process tells of by itself is none that another start would mend.

use super::common::Common;
use super::outcome::{Failure, Outcome, Run};
use super::screen::{Screen, note};
use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systole_ir::{Error, ErrorKind, Result, knobs};

/// How often it is looked whether a process has ended or a signal has come.
const POLL: Duration = Duration::from_millis(20);
/// How long the others have to notice that one is gone, and to say so.
const NOTICE: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(crate) struct LaunchArgs {
    /// How many processes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nproc: u32,
    /// How many devices each process has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    devices_per_process: u32,
    /// How often all are started again, from the last backup, where one was killed
    #[arg(long, value_name = "K", default_value_t = 0)]
    max_restarts: u32,
    /// Systole's plugin [default: libsystole_plugin.so beside this program]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Seconds after which a process that is silent counts as lost
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// What each process runs, after `--`: train or resume, with their arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A process, and how it ended.
struct Host {
    child: Child,
    ended: Option<ExitStatus>,
}

/// How all of them ended.
enum Ended {
    /// By themselves, with this code.
    With(u8),
    /// This one was killed.
    Died(String),
}

impl Run for LaunchArgs {
    fn run(self, common: &Common, screen: &Screen) -> Outcome {
        if common.trace.is_some() || common.flame.is_some() {
            let e = Error::new(ErrorKind::Config, "a timeline is one of a process").at("launch");
            return Err(Failure::usage(e.hint("leave --trace and --flame out, or use train alone")));
        }
        let words = self.words(common).map_err(Failure::usage)?;
        let signals = Signals::install()?;
        let result = Mutex::new(Value::Null);
        let mut restarts = 0;
        let code = loop {
            match self.round(&words, &signals, screen, &result)? {
                Ended::With(code) => break code,
                Ended::Died(who) if restarts < self.max_restarts => {
                    restarts += 1;
                    let of = format!("{restarts} of {}", self.max_restarts);
                    note(&format!("[launch] {who}: all are started again from the last backup ({of})"));
                }
                Ended::Died(who) => {
                    let e = Error::new(ErrorKind::Io, who).because("all processes of a run are needed");
                    let hint =
                        "the same command goes on from the last backup; --max-restarts N does so by itself";
                    return Err(e.at("launch").hint(hint).into());
                }
            }
        };
        if screen.json {
            let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
            screen.object(&json!({
                "processes": self.nproc,
                "devices": self.nproc * self.devices_per_process,
                "restarts": restarts,
                "exit_code": code,
                "result": result,
            }));
        }
        Ok(code)
    }

    fn starts_children(&self) -> bool {
        true
    }
}

impl LaunchArgs {
    /// The arguments of each process.
    fn words(&self, common: &Common) -> Result<Vec<OsString>> {
        let (first, rest) =
            self.command.split_first().ok_or_else(|| Error::new(ErrorKind::Bug, "no command"))?;
        if first != "train" && first != "resume" {
            let what = format!("`{}` is not run by several processes", first.display());
            let hint = "name train or resume after `--`: launch --nproc 2 -- train fashion-mnist";
            return Err(Error::new(ErrorKind::Config, what).at("launch").hint(hint));
        }
        let names = |option: &str| {
            rest.iter().any(|word| {
                let word = word.to_string_lossy();
                word.strip_prefix(option).is_some_and(|end| end.is_empty() || end.starts_with('='))
            })
        };
        let mut own: Vec<OsString> = Vec::new();
        let has_device = common.device.is_some() || names("--device") || names("--backend");
        if !has_device && knobs::PJRT_PLUGIN.get().is_empty() || self.plugin.is_some() {
            own.push(format!("--device=pjrt:{}", self.library()?.display()).into());
        } else if !has_device {
            own.push("--device=pjrt".into());
        }
        if common.threads.is_none() && !names("--threads") {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            own.push(format!("--threads={}", (cores / self.nproc as usize).max(1)).into());
        }
        let mut passed = Command::new("");
        common.pass_on(&mut passed);
        let passed = passed.get_args().map(OsString::from);
        let json = common.json.then(|| "--json".into());
        Ok([first.clone()].into_iter().chain(own).chain(passed).chain(json).chain(rest.to_vec()).collect())
    }

    fn library(&self) -> Result<PathBuf> {
        if let Some(plugin) = &self.plugin {
            return Ok(plugin.clone());
        }
        let name = format!("{}systole_plugin{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name(&name));
        beside.filter(|path| path.is_file()).ok_or_else(|| {
            let e =
                Error::new(ErrorKind::Config, format!("there is no {name} beside this program")).at("launch");
            e.hint("`cargo build --release -p systole-plugin` makes it; or name it: --plugin FILE")
        })
    }

    /// Starts all of them and waits until all have ended.
    fn round(
        &self,
        words: &[OsString],
        signals: &Signals,
        screen: &Screen,
        result: &Mutex<Value>,
    ) -> Result<Ended> {
        let address = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|e| Error::new(ErrorKind::Io, "there is no free port").because(e.to_string()))?;
        let mut hosts: Vec<Host> = Vec::new();
        for index in 0..self.nproc {
            match self.start(words, index, &address.to_string()) {
                Ok(child) => hosts.push(Host { child, ended: None }),
                Err(e) => {
                    hosts.iter_mut().for_each(Host::kill);
                    return Err(e);
                }
            }
        }
        let pids: Vec<String> = hosts.iter().map(|host| host.child.id().to_string()).collect();
        if !screen.quiet {
            note(&format!("[launch] {} processes: {}", self.nproc, pids.join(", ")));
        }
        std::thread::scope(|scope| {
            for (index, host) in hosts.iter_mut().enumerate() {
                let (told, more) = (host.child.stdout.take(), host.child.stderr.take());
                scope.spawn(move || {
                    lines(told, |line| {
                        let object =
                            if screen.json && index == 0 { serde_json::from_str(line).ok() } else { None };
                        match object {
                            Some(object) => *result.lock().unwrap_or_else(PoisonError::into_inner) = object,
                            None => screen.line(format!("[{index}] {line}")),
                        }
                    });
                });
                scope.spawn(move || lines(more, |line| note(&format!("[{index}] {line}"))));
            }
            watch(&mut hosts, signals)
        })
    }

    fn start(&self, words: &[OsString], index: u32, address: &str) -> Result<Child> {
        let failed =
            |e: std::io::Error| Error::new(ErrorKind::Io, "cannot start a process").because(e.to_string());
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        let given = knobs::PJRT_OPTIONS.get();
        let given = given.split(if given.contains('\n') { '\n' } else { ',' });
        let own = [
            format!("num_devices={}", self.devices_per_process),
            format!("num_processes={}", self.nproc),
            format!("process_id={index}"),
            format!("coordinator_address={address}"),
            format!("timeout_seconds={}", self.timeout),
        ];
        let own = if self.nproc > 1 { &own[..] } else { &own[..1] };
        let given = given.filter(|option| !option.trim().is_empty()).map(String::from);
        let options: Vec<String> = given.chain(own.iter().cloned()).collect();
        command.args(words).env(knobs::PJRT_OPTIONS.name, options.join("\n") + "\n");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A terminal's Ctrl-C is for this process, which forwards it once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map_err(failed)
    }
}

/// Hands each line on as it comes.
fn lines(stream: Option<impl Read>, mut each: impl FnMut(&str)) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        each(String::from_utf8_lossy(&bytes).trim_end());
        bytes.clear();
    }
}

/// Signals to this process that are to be forwarded.
struct Signals([(i32, Arc<AtomicBool>); 2]);

impl Signals {
    fn install() -> Result<Signals> {
        let signals = [(SIGINT, Arc::default()), (SIGTERM, Arc::default())];
        for (signal, flag) in &signals {
            flag::register(*signal, Arc::clone(flag))
                .map_err(|e| Error::new(ErrorKind::Io, "cannot listen for Ctrl-C").because(e.to_string()))?;
        }
        Ok(Signals(signals))
    }

    /// The one that has come.
    fn take(&self) -> Option<i32> {
        self.0.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst)).map(|(signal, _)| *signal)
    }
}

/// Waits until all have ended: where one is killed the others are, too, once they had time to say so.
fn watch(hosts: &mut [Host], signals: &Signals) -> Result<Ended> {
    let (mut ends, mut asked): (Option<Instant>, Option<i32>) = (None, None);
    let mut gone = None;
    loop {
        if let Some(signal) = signals.take() {
            asked = Some(signal);
            hosts.iter().for_each(|host| host.tell(signal));
        }
        for host in hosts.iter_mut() {
            host.look()?;
        }
        // The first one: the others may be killed from here.
        gone = gone.or_else(|| hosts.iter().enumerate().find_map(|(i, host)| Some((i, killed(host.ended)?))));
        if hosts.iter().all(|host| host.ended.is_some()) {
            return Ok(judged(hosts, asked, gone));
        }
        let failed = |host: &Host| host.ended.is_some_and(|status| !status.success());
        match ends {
            None if hosts.iter().any(failed) => ends = Some(Instant::now() + NOTICE),
            // What was told to stop needs the time that it needs, and ends the others with it.
            Some(at) if Instant::now() > at && gone.is_some() => {
                hosts.iter_mut().for_each(Host::kill);
            }
            _ => {}
        }
        std::thread::sleep(POLL);
    }
}

/// `asked`: the signal that was forwarded. What was to stop is not started again.
fn judged(hosts: &[Host], asked: Option<i32>, gone: Option<(usize, i32)>) -> Ended {
    match (gone, asked) {
        (Some((index, signal)), None) => {
            return Ended::Died(format!("process {index} was killed by signal {signal}"));
        }
        (Some(_), Some(asked)) => return Ended::With(u8::try_from(128 + asked).unwrap_or(1)),
        (None, _) => {}
    }
    let codes = hosts.iter().filter_map(|host| host.ended.and_then(|status| status.code()));
    Ended::With(codes.max().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// The signal that ended a process.
fn killed(status: Option<ExitStatus>) -> Option<i32> {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status?);
    #[cfg(not(unix))]
    return status.and_then(|status| status.code().is_none().then_some(0));
}

impl Host {
    fn look(&mut self) -> Result<()> {
        if self.ended.is_none() {
            let e =
                |e: std::io::Error| Error::new(ErrorKind::Io, "cannot ask a process").because(e.to_string());
            self.ended = self.child.try_wait().map_err(e)?;
        }
        Ok(())
    }

    /// Sends a signal, where it has not ended.
    fn tell(&self, signal: i32) {
        #[cfg(unix)]
        if self.ended.is_none() {
            use rustix::process::{Pid, Signal, kill_process};
            let signal = if signal == SIGINT { Signal::INT } else { Signal::TERM };
            // It may have ended just now.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
        #[cfg(not(unix))]
        let _ = signal;
    }

    fn kill(&mut self) {
        if self.ended.is_none() {
            // As above.
            let _ = self.child.kill();
        }
    }
}
