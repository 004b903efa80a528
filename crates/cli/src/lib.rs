//! The command line: arguments, dispatch, exit codes. One file for each command; `commands.rs` has their table.

mod args;
mod commands;
mod models;
mod render;
mod run;

use args::common::{self, Common};
use args::outcome::{Failure, Outcome, Run};
use args::{plugins, root, suggest};
use clap::{CommandFactory, Parser};
use commands::Command;
use render::screen::{self, Screen};
use serde_json::json;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use systole_data::disk::{Disk, write_atomically};
use systole_ir::{Error, ErrorKind, knobs as variables};
use systole_runtime::trace;

/// Documented in `--help`; 130 and 143 are what shells report for these signals.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 failure; 2 wrong usage; 130 interrupted (Ctrl-C), 143 terminated: \
    training stops after the current step and the run is saved (`systole resume` goes on); a second signal ends it at \
    once.\n\
    Environment: `systole knobs` lists the variables.";

#[derive(Parser)]
#[command(
    name = "systole",
    version,
    about = "Train deep-learning models on the CPU; compile and plan them for TPUs and GPUs",
    after_help = EXIT_CODES
)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// Every command with its options: what `--help` shows and the guide to the command line is made of.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|e| {
        let args: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
        suggest::with_suggestion(e, command(), &args).exit()
    });
    root::set(command);
    plugins::quieten(&cli.common, cli.command.own_devices());
    let shows_warnings = plugins::shows_warnings(&cli.common);
    let screen = Screen::new(cli.common.json, cli.common.quiet, cli.common.verbose > 0);
    // A panic has printed its message; it must not end in an undocumented exit code.
    let outcome = catch_unwind(AssertUnwindSafe(|| run(cli, &screen)));
    match outcome.unwrap_or_else(|panic| Err(defect(panic.as_ref()).into())) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            report_failure(&screen, &failure);
            let left_out = plugins::what_was_left_out(shows_warnings);
            left_out.filter(|_| failure.code == 1).into_iter().for_each(screen::note);
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: Cli, screen: &Screen) -> Outcome {
    start(&cli.common, cli.command.own_devices())?;
    let flame = cli.common.flame.clone();
    let traced = cli.common.trace.as_ref().filter(|_| !cli.command.writes_its_own_trace());
    if let Some(path) = traced {
        trace::start(path).map_err(|e| e.hint("choose another file with --trace"))?;
    }
    let outcome = cli.command.run(&cli.common, screen);
    // A trace that could not be written is told only where nothing worse happened.
    let written = trace::finish();
    let code = outcome?;
    written?;
    flame.map_or(Ok(()), |path| draw_flames(&path))?;
    Ok(code)
}

fn start(common: &Common, own_devices: Option<&str>) -> Result<(), Failure> {
    for knob in [variables::LOG, variables::THREADS, variables::GRACE, variables::PARANOID] {
        knob.number().map_err(Failure::usage)?;
    }
    if let Some(n) = common.threads {
        variables::override_value(variables::THREADS, n.to_string());
    }
    if let Some(bytes) = common.memory_limit {
        variables::override_value(variables::MEMORY_LIMIT, bytes.to_string());
    }
    if let Some(device) = &common.device {
        let (name, plugin) = device.split_once(':').unwrap_or((device, ""));
        variables::override_value(variables::BACKEND, name);
        if !plugin.is_empty() {
            variables::override_value(variables::PJRT_PLUGIN, plugin);
        }
    }
    plugins::set_options(common, own_devices).map_err(Failure::usage)?;
    if let Some(what) = common.profile {
        variables::override_value(variables::PROFILE, what.name());
    }
    let asked = common.verbose.max(if common.profile.is_some() { 2 } else { 0 });
    let shown = variables::LOG.get_usize().max(asked.into());
    screen::show_events(shown);
    if common.flame.is_some() {
        variables::override_value(variables::PROFILE, common::Profile::Kernels.name());
    }
    let level = if common.flame.is_some() { shown.max(2) } else { shown };
    if level > 0 {
        systole_runtime::event::install(level, screen::log_event);
    }
    systole::register();
    plugins::check_device(common).map_err(Failure::usage)
}

/// The flame graph of all programs that have run, and are dropped by now.
fn draw_flames(path: &Path) -> Result<(), Error> {
    let Some(svg) = systole_report::flame::graph(&screen::profiles()) else {
        let e = Error::new(ErrorKind::Config, "there is nothing to draw a flame graph of").at("--flame");
        return Err(e.because("no program ran on the CPU engine, which alone tells of its kernels"));
    };
    write_atomically(&Disk, path, &[svg.as_bytes()])
}

fn defect(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    Error::new(ErrorKind::Bug, text).hint("please report this, with the command and its input")
}

fn report_failure(screen: &Screen, failure: &Failure) {
    let e = &failure.error;
    screen.error(&e.to_string());
    if screen.json {
        let kind = format!("{:?}", e.kind()).to_lowercase();
        let place = (!e.places().is_empty()).then(|| e.places().join(", in "));
        screen.object(&json!({"error": e.what(), "kind": kind, "where": place, "try": e.hint_text(), "exit_code": failure.code}));
    }
}
