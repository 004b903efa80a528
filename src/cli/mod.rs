//! The command line: arguments, dispatch, exit codes. One file for each command.

mod bench;
mod compile;
mod confusion;
mod data;
mod devices;
mod evaluate;
mod init;
mod kernels;
mod ops;
mod plan;
mod predict;
mod report;
mod resume;
mod screen;
mod selftest;
mod setup;
mod show;
mod stop;
mod target;
mod train;

use crate::config::Refused;
use clap::{ArgAction, Args, Parser, Subcommand};
use screen::Screen;
use serde_json::json;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use systole_ir::{Error, ErrorKind, knobs};
use systole_runtime::trace;

/// Documented in `--help`; 130 and 143 are what shells report for these signals.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 failure; 2 wrong usage; 130 interrupted (Ctrl-C), 143 terminated: \
    training stops after the current step and the run is saved (`systole resume` goes on); a second signal ends it at \
    once.\n\
    Environment: `systole knobs` lists the variables.";

#[derive(Parser)]
#[command(name = "systole", version, about = "Train deep-learning models on CPU, GPU and TPU", after_help = EXIT_CODES)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// Options of every command.
#[derive(Args)]
struct Common {
    /// Write JSON to standard output, and everything else to standard error
    #[arg(long, global = true)]
    json: bool,
    /// Worker threads; 0: one for each core. Results do not depend on it
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    threads: Option<u32>,
    /// What to run on: cpu, ref, tpu, cuda, or pjrt:FILE with a PJRT plugin [default: the best that this machine has]
    #[arg(long, global = true, value_name = "NAME")]
    device: Option<String>,
    /// Show no progress
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Say more: devices and compile times; twice: each kernel (see the variable SYSTOLE_LOG)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Show, at the end of each program, how long its kernels took and which part of the machine's peak they reach
    #[arg(long, global = true)]
    profile: bool,
    /// Write a timeline of threads, steps and kernels, for ui.perfetto.dev or chrome://tracing
    #[arg(long, global = true, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Memory that the process may use, as 2000000000, 512MiB or 4GiB; programs that need more are refused before they
    /// run [default: what the machine has]
    #[arg(long, global = true, value_name = "BYTES", value_parser = bytes)]
    memory_limit: Option<usize>,
}

fn bytes(text: &str) -> Result<usize, String> {
    knobs::parse_bytes(text).map_err(|e| e.hint_text().map_or(e.what().to_string(), str::to_string))
}

impl Common {
    /// The options that a child process of this program must be given too.
    fn pass_on(&self, child: &mut std::process::Command) {
        child.args(self.threads.map(|n| format!("--threads={n}")));
        child.args(self.device.iter().map(|name| format!("--device={name}")));
        child.args(self.quiet.then_some("--quiet"));
        child.args((0..self.verbose).map(|_| "--verbose"));
        child.args(self.profile.then_some("--profile"));
        child.args(self.memory_limit.map(|bytes| format!("--memory-limit={bytes}")));
        if let Some(path) = &self.trace {
            child.arg("--trace").arg(path);
        }
    }
}

#[derive(Subcommand)]
enum Command {
    /// Train a model: from a folder of pictures, a preset, a TOML file, or a saved model
    Train(train::TrainArgs),
    /// Go on with a training run that was stopped or killed, where it was; every train does so too
    Resume(train::ResumeArgs),
    /// Measure a saved model on test data
    Evaluate(evaluate::EvaluateArgs),
    /// Say what is in pictures (JPEG, PNG or IDX files)
    Predict(predict::PredictArgs),
    /// Look at data, convert, count, check and time them, follow one element through a pipeline
    Data(data::DataCommand),
    /// Show a model's layers, shapes and numbers of weights
    Summary {
        /// A model file, a preset or a TOML file
        target: String,
    },
    /// Measure how fast training steps, predictions and single operations run on synthetic data
    Bench(bench::BenchArgs),
    /// Compile a training step for a TPU slice that is not here, with Google's own compiler
    Compile(compile::CompileArgs),
    /// List what this machine can run on: cores, accelerators, plugins and where they were looked for
    Devices,
    /// Look for what keeps TPUs and GPUs from use, and say what mends it
    Doctor,
    /// Fetch the plugin for TPU or GPU with pip, without installing it
    Setup(setup::SetupArgs),
    /// What a child of this program is started with: the compiler may end its process
    #[command(name = systole_pjrt::COMMAND, hide = true)]
    CompileHere {
        /// Where the request lies
        folder: PathBuf,
    },
    /// Test whether a device computes what the CPU does (--device tpu, cuda, cpu, pjrt:FILE), and write a report to share
    Selftest(selftest::SelftestArgs),
    /// Say what TPU slices, GPUs and this computer would need for a model: memory, time and money
    Plan(plan::PlanArgs),
    /// Write a commented TOML file with a whole training run
    Init(init::InitArgs),
    /// Print the graphs that a model is compiled from
    Show(show::ShowArgs),
    /// List the operations of the intermediate representation
    Ops,
    /// List the environment variables and their values
    Knobs,
}

/// Why a command did not succeed.
pub(crate) struct Failure {
    error: Error,
    code: u8,
}

/// What a command that was not refused exits with: 0, or 128 and the number of the signal that ended it.
type Outcome = Result<u8, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, code: 1 }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        Failure { code: if refused.in_setting { 2 } else { 1 }, error: refused.error }
    }
}

impl Failure {
    /// An argument makes no sense.
    fn usage(error: Error) -> Failure {
        Failure { error, code: 2 }
    }
}

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let screen = Screen::new(cli.common.json, cli.common.quiet, cli.common.verbose > 0);
    // A panic has printed its message; it must not end in an undocumented exit code.
    let outcome = catch_unwind(AssertUnwindSafe(|| run(cli, &screen)));
    match outcome.unwrap_or_else(|panic| Err(defect(panic.as_ref()).into())) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            report_failure(&screen, &failure);
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: Cli, screen: &Screen) -> Outcome {
    start(&cli.common)?;
    let traced = cli.common.trace.as_ref().filter(|_| !cli.command.starts_children());
    if let Some(path) = traced {
        trace::start(path).map_err(|e| e.hint("choose another file with --trace"))?;
    }
    let outcome = dispatch(cli.command, &cli.common, screen);
    // A trace that could not be written is told only where nothing worse happened.
    let written = trace::finish();
    let code = outcome?;
    written?;
    Ok(code)
}

fn start(common: &Common) -> Result<(), Failure> {
    for knob in [knobs::LOG, knobs::THREADS, knobs::GRACE, knobs::PARANOID] {
        knob.number().map_err(Failure::usage)?;
    }
    if let Some(n) = common.threads {
        knobs::override_value(knobs::THREADS, n.to_string());
    }
    if let Some(bytes) = common.memory_limit {
        knobs::override_value(knobs::MEMORY_LIMIT, bytes.to_string());
    }
    if let Some(device) = &common.device {
        let (name, plugin) = device.split_once(':').unwrap_or((device, ""));
        knobs::override_value(knobs::BACKEND, name);
        if !plugin.is_empty() {
            knobs::override_value(knobs::PJRT_PLUGIN, plugin);
        }
    }
    let asked = common.verbose.max(if common.profile { 2 } else { 0 });
    let level = knobs::LOG.get_usize().max(asked.into());
    if level > 0 {
        systole_runtime::event::install(level, screen::log_event);
    }
    crate::register();
    Ok(())
}

impl Command {
    /// Whether the work is done by children of this process, which are given its options.
    fn starts_children(&self) -> bool {
        match self {
            Command::Bench(args) => !args.here,
            Command::Selftest(args) => !args.is_here(),
            _ => false,
        }
    }
}

fn dispatch(command: Command, common: &Common, screen: &Screen) -> Outcome {
    match command {
        Command::Train(args) => train::run(args, screen),
        Command::Resume(args) => train::resume(args, screen),
        Command::Bench(args) => bench::run(&args, common, screen),
        Command::Evaluate(args) => evaluate::run(&args, screen),
        Command::Predict(args) => predict::run(&args, screen),
        Command::Data(command) => data::run(command, screen),
        Command::Summary { target } => show::summary(&target, screen),
        Command::Compile(args) => compile::run(&args, screen),
        Command::Devices => devices::devices(screen),
        Command::Doctor => devices::doctor(screen),
        Command::Setup(args) => setup::run(&args, screen),
        Command::CompileHere { folder } => {
            systole_pjrt::serve(&folder)?;
            Ok(0)
        }
        Command::Selftest(args) => selftest::run(&args, common, screen),
        Command::Plan(args) => plan::run(&args, screen),
        Command::Init(args) => init::run(&args, screen),
        Command::Show(args) => show::run(&args, screen),
        Command::Ops => ops::ops(screen),
        Command::Knobs => ops::knobs(screen),
    }
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

/// Where data sets lie; shared by commands.
#[derive(Args, Clone, Default)]
struct DataArgs {
    /// Folder of the data set, or its parent
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}
