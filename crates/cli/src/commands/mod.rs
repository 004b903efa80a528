//! The table of commands: what each does, its name, its file. A new command is one file that implements [`Run`], and one
//! row here; `if "NAME"` puts it behind a feature of the program.

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
use crate::args::{clap_root, plugins, suggest};
use crate::render::screen::{self, Screen};
use clap::{CommandFactory, Parser, Subcommand};
use serde_json::json;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, knobs as variables};
use systole_runtime::trace;

macro_rules! commands {
    ($($(#[$about:meta])* $name:ident($args:ty) $(if $feature:literal)?,)*) => {
        /// A command with its arguments.
        #[derive(Subcommand)]
        pub(crate) enum Command {
            $($(#[$about])* $(#[cfg(feature = $feature)])? $name($args),)*
        }

        impl RunCommand for Command {
            fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
                match self {
                    $($(#[cfg(feature = $feature)])? Command::$name(args) => args.run(common, screen),)*
                }
            }

            fn starts_children(&self) -> bool {
                match self {
                    $($(#[cfg(feature = $feature)])? Command::$name(args) => args.starts_children(),)*
                }
            }

            fn own_devices(&self) -> Option<&str> {
                match self {
                    $($(#[cfg(feature = $feature)])? Command::$name(args) => args.own_devices(),)*
                }
            }

            fn writes_its_own_trace(&self) -> bool {
                match self {
                    $($(#[cfg(feature = $feature)])? Command::$name(args) => args.writes_its_own_trace(),)*
                }
            }
        }
    };
}

commands! {
    /// Train a model: from a folder of pictures, a preset, a TOML file, or a saved model
    Train(train::TrainArgs),
    /// Go on with a training run that was stopped or killed, where it was; every train does so too
    Resume(resume::ResumeArgs),
    /// Start several processes as the hosts of one run, here or on other machines, and start them again where one dies
    Launch(launch::LaunchArgs) if "launch",
    /// What `launch --hosts` starts on another machine
    #[command(name = systole_launch::AGENT, hide = true)]
    LaunchAgent(launch::LaunchAgentArgs) if "launch",
    /// Look for the learning rate to train with: a short run whose rate rises, its curve, and what that suggests
    LrFind(lr_find::LrFindArgs),
    /// Try many settings: a grid, draws at random or successive halving; a table and a page of which are the best
    Sweep(sweep::SweepArgs),
    /// Compare runs: how they went, and in what their settings differ
    Compare(compare::CompareArgs),
    /// Measure a saved model on test data
    Evaluate(evaluate::EvaluateArgs),
    /// Say what is in pictures, rows of tables or sentences
    Predict(predict::PredictArgs),
    /// Go on with a text: a language model's own words after a prompt
    Generate(generate::GenerateArgs),
    /// Look at data, convert, count, check and time them, follow one element through a pipeline
    Data(data::DataCommand),
    /// Show a model's layers, shapes and numbers of weights, or a .tflite or .onnx file's operators
    Summary(summary::SummaryArgs),
    /// Read weights of PyTorch, Hugging Face or Keras into a model file; nothing in them is executed
    Import(import::ImportArgs),
    /// Write a model's weights for Keras, PyTorch or as safetensors, or the model as .tflite or ONNX
    Export(export::ExportArgs),
    /// Turn a trained model into one of eight-bit integers: a .tflite or .onnx file, and what that costs in accuracy
    Quantize(quantize::QuantizeArgs),
    /// Measure how fast training steps, predictions and single operations run on synthetic data
    Bench(bench::BenchArgs),
    /// Compile a training step for a TPU slice that is not here, with Google's own compiler
    Compile(compile::CompileArgs),
    /// Run a program of another system: StableHLO text or bytecode, as JAX, PyTorch/XLA or `systole show` write it, an ONNX model, or a .tflite file
    Run(run::RunArgs),
    /// Find the first op of a program whose value differs between two devices
    Check(check::CheckArgs),
    /// Make a program that fails as small as it can be while it still fails, for a report
    Shrink(shrink::ShrinkArgs),
    /// Write a program as StableHLO text or as bytecode, for readers of any version
    Translate(translate::TranslateArgs),
    /// List what this machine can run on: cores, accelerators, plugins and where they were looked for
    Devices(devices::DevicesArgs),
    /// Look for what keeps TPUs and GPUs from use, and say what mends it
    Doctor(doctor::DoctorArgs),
    /// Fetch the plugin for TPU, GPU or XLA on this processor with pip, without installing it
    Setup(setup::SetupArgs),
    /// What a child of this program is started with: the compiler may end its process
    #[command(name = systole_pjrt::COMMAND, hide = true)]
    CompileHere(compile_here::CompileHereArgs),
    /// Test whether a device computes what the CPU does (--device tpu, cuda, cpu, pjrt:FILE), and write a report to share
    Selftest(selftest::SelftestArgs),
    /// Say what TPU slices, GPUs and this computer would need for a model: memory, time and money
    Plan(plan::PlanArgs),
    /// Show every TPU generation and GPU: peak, memory, bandwidth, watts, slices, price, source, and what tutorials print
    Chips(chips::ChipsArgs),
    /// Simulate the first TPU (2015): where the cycles of a model go there, its array, and what other chips would need
    Tpu1(tpu1::Tpu1Args) if "tpu1",
    /// Write what a cloud, a cluster or a notebook needs to run a training there: scripts, manifests, notebooks
    Cloud(cloud::CloudArgs) if "cloud",
    /// Write a commented TOML file with a whole training run
    Init(init::InitArgs),
    /// Print the graphs that a model is compiled from
    Show(show::ShowArgs),
    /// List the operations of the intermediate representation
    Ops(ops::OpsArgs),
    /// List the built-in layers and what each can do
    Layers(layers::LayersArgs),
    /// List the environment variables and their values
    Knobs(knobs::KnobsArgs),
    /// Say what the report of a problem needs: version, system, processor, devices, variables; no secrets
    Env(env::EnvArgs),
    /// Print what a shell needs to complete commands and options
    Completions(completions::CompletionsArgs),
    /// Write a manual page for each command
    Man(man::ManArgs),
}

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
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: CommonArgs,
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
    clap_root::set(command);
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

fn run(cli: Cli, screen: &Screen) -> CommandResult {
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

fn start(common: &CommonArgs, own_devices: Option<&str>) -> Result<(), CommandError> {
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
    if level > 0 {
        systole_runtime::events::install(level, screen::log_event);
    }
    systole::register();
    plugins::check_device(common).map_err(CommandError::usage)
}

/// The flame graph of all programs that have run, and are dropped by now.
fn draw_flames(path: &Path) -> Result<(), Error> {
    let Some(svg) = systole_report::flame::graph(&screen::profiles()) else {
        let e = Error::new(ErrorKind::Config, "there is nothing to draw a flame graph of").at("--flame");
        return Err(e.because("no program ran on the CPU engine, which alone tells of its kernels"));
    };
    write_atomically(&OsFileSystem, path, &[svg.as_bytes()])
}

fn defect(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
    Error::new(ErrorKind::Bug, text).hint("please report this, with the command and its input")
}

fn report_failure(screen: &Screen, failure: &CommandError) {
    let e = &failure.error;
    screen.error(&e.to_string());
    if screen.json {
        let kind = format!("{:?}", e.kind()).to_lowercase();
        let place = (!e.places().is_empty()).then(|| e.places().join(", in "));
        screen.object(&json!({"error": e.what(), "kind": kind, "where": place, "try": e.hint_text(), "exit_code": failure.code}));
    }
}
