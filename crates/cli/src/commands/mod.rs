//! Table of all subcommands, argument parsing and dispatch.
//!
//! A new command is one file that implements [`Run`] and one row here; `if "NAME"` puts the command behind a cargo
//! feature.

mod bench;
mod check;
mod chips;
#[cfg(feature = "cloud")]
mod cloud;
mod compare;
mod compile;
mod compile_here;
mod completions;
mod data;
mod devices;
mod doctor;
mod env;
mod evaluate;
mod export;
mod generate;
mod import;
mod init;
mod knobs;
#[cfg(feature = "launch")]
mod launch;
mod layers;
mod lr_find;
mod man;
mod ops;
mod plan;
mod predict;
mod quantize;
mod resume;
mod run;
mod selftest;
mod setup;
mod show;
mod shrink;
mod summary;
mod sweep;
#[cfg(feature = "tpu1")]
mod tpu1;
mod train;
mod translate;

use crate::args::common::{self, CommonArgs};
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::args::{clap_root, grouped_help, plugins, suggest};
use crate::render::first_steps::first_steps;
use crate::render::screen::{self, Screen};
use crate::render::version::long_version;
#[cfg(feature = "launch")]
use crate::run::{out_of_memory, signals};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, Result, err, knobs as variables};
use systole_runtime::trace;

macro_rules! commands {
    ($($group:literal { $($(#[$about:meta])* $name:ident($args:ty) $(if $feature:literal)?,)* })*) => {
        /// A command with its arguments.
        #[derive(Subcommand)]
        pub(crate) enum Command {
            $($($(#[$about])* $(#[cfg(feature = $feature)])? $name($args),)*)*
        }

        /// Headings of `--help`, each with the commands below it.
        const GROUPS: &[(&str, &[&str])] = &[$(($group, &[$(stringify!($name)),*])),*];

        impl RunCommand for Command {
            fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
                match self {
                    $($($(#[cfg(feature = $feature)])? Command::$name(args) => args.run(common, screen),)*)*
                }
            }

            fn starts_children(&self) -> bool {
                match self {
                    $($($(#[cfg(feature = $feature)])? Command::$name(args) => args.starts_children(),)*)*
                }
            }

            fn own_devices(&self) -> Option<&str> {
                match self {
                    $($($(#[cfg(feature = $feature)])? Command::$name(args) => args.own_devices(),)*)*
                }
            }

            fn only_prints(&self) -> bool {
                match self {
                    $($($(#[cfg(feature = $feature)])? Command::$name(args) => args.only_prints(),)*)*
                }
            }

            fn writes_its_own_trace(&self) -> bool {
                match self {
                    $($($(#[cfg(feature = $feature)])? Command::$name(args) => args.writes_its_own_trace(),)*)*
                }
            }
        }
    };
}

commands! {
    "Train and use" {
        /// Train a model from an image folder, a preset, a TOML file or a saved model
        Train(train::TrainArgs),
        /// Resume an interrupted training run
        ///
        /// Training continues where it stopped or was killed. `systole train` resumes automatically as well.
        Resume(resume::ResumeArgs),
        /// Evaluate a saved model on test data
        Evaluate(evaluate::EvaluateArgs),
        /// Run inference on images, tables or text
        Predict(predict::PredictArgs),
        /// Generate text from a prompt with a language model
        Generate(generate::GenerateArgs),
        /// Quantize a trained model to int8 as .tflite or .onnx and report the accuracy
        Quantize(quantize::QuantizeArgs),
        /// Find a good learning rate with a short range test
        ///
        /// Trains for a short time with a rising learning rate, plots the loss and suggests a rate.
        LrFind(lr_find::LrFindArgs),
        /// Search hyperparameters: grid, random search or successive halving
        ///
        /// Prints a table of the trials and writes an HTML page, best trials first.
        Sweep(sweep::SweepArgs),
        /// Compare training runs: their results and the settings that differ
        Compare(compare::CompareArgs),
        /// Launch distributed training: several processes on one or more machines
        ///
        /// If a process dies, all processes are restarted from the last backup.
        Launch(launch::LaunchArgs) if "launch",
        /// Run on another machine by `launch --hosts`
        #[command(name = systole_launch::AGENT, hide = true)]
        LaunchAgent(launch::LaunchAgentArgs) if "launch",
    }
    "Inspect" {
        /// Inspect, convert, summarize, verify, benchmark and trace data pipelines
        Data(data::DataCommand),
        /// Show a model's layers, shapes and weight counts, or a file's operators
        ///
        /// Accepts Systole models and .tflite and .onnx files.
        Summary(summary::SummaryArgs),
        /// Print the computation graphs that a model compiles to
        Show(show::ShowArgs),
        /// List the built-in layers and what each supports
        Layers(layers::LayersArgs),
        /// List the operations of the intermediate representation
        Ops(ops::OpsArgs),
        /// Find the first op of a program whose value differs between two devices
        Check(check::CheckArgs),
        /// Minimize a failing program for a bug report
        Shrink(shrink::ShrinkArgs),
    }
    "Convert" {
        /// Import PyTorch, Hugging Face or Keras weights into a model file
        ///
        /// Code in the weight file is never executed.
        Import(import::ImportArgs),
        /// Export weights for Keras, PyTorch or safetensors, or a model as .tflite or ONNX
        Export(export::ExportArgs),
        /// Convert a program between StableHLO text and bytecode, for any version
        Translate(translate::TranslateArgs),
        /// Run a StableHLO program, an ONNX model or a .tflite file
        ///
        /// Reads StableHLO text and bytecode as written by JAX, PyTorch/XLA or `systole show`.
        Run(run::RunArgs),
    }
    "Hardware and cost" {
        /// List available devices: CPU cores, accelerators, plugins and search paths
        Devices(devices::DevicesArgs),
        /// Diagnose missing CPU features, an old glibc, and unusable TPUs and GPUs
        Doctor(doctor::DoctorArgs),
        /// Download the plugin for TPU, GPU or XLA:CPU with pip, without installing it
        Setup(setup::SetupArgs),
        /// Compile in a child process, because the compiler may abort it
        #[command(name = systole_pjrt::COMMAND, hide = true)]
        CompileHere(compile_here::CompileHereArgs),
        /// Test that a device computes what the CPU computes, and write a report
        ///
        /// Use --device tpu, cuda, cpu or pjrt:FILE. The report can be shared.
        Selftest(selftest::SelftestArgs),
        /// Benchmark training steps, predictions and single ops on synthetic data
        Bench(bench::BenchArgs),
        /// Estimate memory, time and cost of a model on TPU slices, GPUs and this CPU
        Plan(plan::PlanArgs),
        /// List TPU generations and GPUs with peak FLOP/s, bandwidth, power and price
        ///
        /// Also shows memory, slices, sources, and the figures that well-known tutorials print.
        Chips(chips::ChipsArgs),
        /// Compile a training step for a TPU slice or GPU without having one
        ///
        /// Uses Google's own TPU compiler (libtpu).
        Compile(compile::CompileArgs),
        /// Simulate a model on the first TPU (2015), cycle by cycle
        ///
        /// Shows how the cycles are spent, the systolic array, and what other chips would need.
        Tpu1(tpu1::Tpu1Args) if "tpu1",
        /// Write scripts, manifests or notebooks to train in a cloud or on a cluster
        Cloud(cloud::CloudArgs) if "cloud",
    }
    "Set up and report" {
        /// Write a commented TOML file that configures a training run
        Init(init::InitArgs),
        /// Print version, system, CPU, devices, caches and variables for a bug report
        ///
        /// Secrets are not printed.
        Env(env::EnvArgs),
        /// List the environment variables and their values
        Knobs(knobs::KnobsArgs),
        /// Print a shell completion script
        Completions(completions::CompletionsArgs),
        /// Write a manual page for each command
        Man(man::ManArgs),
    }
}

/// Shown in `--help`. 130 and 143 are the exit codes that shells report for these signals.
const EXIT_CODES: &str = "Exit codes: 0 success; 1 failure; 2 wrong usage; 3 quantization loses more accuracy than accepted; \
    130 interrupted (Ctrl-C), 143 terminated: \
    training stops after the current step and the run is saved (`systole resume` continues it); a second signal ends it \
    immediately.\n\
    Environment: `systole knobs` lists the variables.";

#[derive(Parser)]
#[command(
    name = "systole",
    version,
    long_version = long_version(),
    about = "Train deep-learning models on the CPU; compile and plan them for TPUs and GPUs",
    after_help = EXIT_CODES
)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: CommonArgs,
}

/// Returns the clap definition of every command, for `--help` and the generated command-line guide.
pub fn command() -> clap::Command {
    grouped_help::grouped(Cli::command(), GROUPS)
}

fn parse() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command().try_get_matches()?)
}

/// Parses the process's arguments, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    if std::env::args_os().len() == 1 {
        Screen::new(false, false, false).line(first_steps());
        return ExitCode::SUCCESS;
    }
    let cli = parse().unwrap_or_else(|e| {
        let args: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
        let e = suggest::with_suggestion(e, command(), &args);
        if !e.use_stderr() {
            e.exit();
        }
        let failure = CommandError::usage(suggest::usage_error(&e));
        if args.iter().any(|a| a == "--json") {
            Screen::new(true, true, false).object(&failure_object(&failure));
        }
        screen::usage_error(&e.render(), &failure.kind());
        std::process::exit(failure.code.into())
    });
    clap_root::set(command);
    plugins::quieten(&cli.common, cli.command.own_devices());
    let shows_warnings = plugins::shows_warnings(&cli.common);
    let screen = Screen::new(cli.common.json, cli.common.quiet, cli.common.verbose > 0);
    if cli.common.json {
        out_of_memory::report_as_json();
    }
    // A panic has already printed its message; map it to a documented exit code.
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

fn run(cli: Cli, screen: &Screen) -> CommandResult {
    let writes_profile = cli.common.trace.is_some() || cli.common.flame.is_some();
    screen::end_with_reader(cli.command.only_prints() && !writes_profile);
    start(&cli.common, cli.command.own_devices())?;
    let flame = cli.common.flame.clone();
    let traced = cli.common.trace.as_ref().filter(|_| !cli.command.writes_its_own_trace());
    if let Some(path) = traced {
        trace::start(path).map_err(|e| e.hint_command("choose another file with --trace"))?;
    }
    let outcome = cli.command.run(&cli.common, screen);
    // A trace that cannot be written is reported only if the command itself succeeded.
    let written = trace::finish();
    let code = outcome?;
    written?;
    flame.map_or(Ok(()), |path| draw_flames(&path))?;
    Ok(code)
}

fn start(common: &CommonArgs, own_devices: Option<&str>) -> CommandResult<()> {
    #[cfg(feature = "launch")]
    if common.end_with_stdin {
        signals::end_with_stdin()?;
    }
    for knob in [variables::LOG, variables::THREADS, variables::GRACE, variables::PARANOID] {
        knob.number().map_err(CommandError::usage)?;
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
    plugins::set_options(common, own_devices).map_err(CommandError::usage)?;
    if let Some(what) = common.profile {
        variables::override_value(variables::PROFILE, what.name());
    }
    let asked = common.verbose.max(if common.profile.is_some() { 2 } else { 0 });
    let shown = variables::LOG.get_usize().max(asked.into());
    screen::show_events(shown);
    if common.flame.is_some() {
        variables::override_value(variables::PROFILE, common::ProfileDetail::Kernels.name());
    }
    let level = if common.flame.is_some() { shown.max(2) } else { shown };
    systole_runtime::events::install(level, screen::log_event);
    #[cfg(feature = "launch")]
    systole_runtime::register(crate::run::linked_plugin::provider());
    systole::register();
    plugins::check_device(common).map_err(CommandError::usage)
}

/// Writes the flame graph of all programs that ran.
fn draw_flames(path: &Path) -> Result<(), Error> {
    let Some(svg) = systole_report::flame::graph(&screen::profiles()) else {
        let e = err!(Config, "cannot draw a flame graph: no kernel profile was recorded").at("--flame");
        return Err(e
            .because("no program ran on the CPU engine, the only device that profiles kernels")
            .hint("pass --device cpu with a command that trains or runs a model"));
    };
    write_atomically(&OsFileSystem, path, &[svg.as_bytes()])
}

fn defect(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    // Scoped threads of the standard library panic where the system refuses them.
    if text.contains("failed to spawn thread") {
        return err!(Io, "cannot start a thread")
            .because(text)
            .hint("raise the limits of the process (ulimit -u, ulimit -v), or use fewer threads: --threads");
    }
    Error::new(ErrorKind::Bug, text).hint("please report this bug, with the command and its input")
}

fn report_failure(screen: &Screen, failure: &CommandError) {
    let e = &failure.error;
    let source = e.hint_source().filter(|_| variables::LOG.get_usize() > 0);
    let source = source.map_or(String::new(), |s| format!("\n  source: {}:{}", s.file(), s.line()));
    screen.error(&failure.kind(), &format!("{e}{source}"));
    if screen.json {
        screen.object(&failure_object(failure));
    }
}

/// The JSON object that a failing command prints.
fn failure_object(failure: &CommandError) -> serde_json::Value {
    let (e, kind, exit_code) = (&failure.error, failure.kind(), failure.code);
    let place = (!e.places().is_empty()).then(|| e.places().join(", in "));
    let why = (!e.reasons().is_empty()).then(|| e.reasons().join("; "));
    json!({
        "error": e.what(), "kind": kind, "where": place, "why": why, "try": e.hint_text(), "exit_code": exit_code,
    })
}
