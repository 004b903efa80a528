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

use crate::args::common::Common;
use crate::args::outcome::{Outcome, Run};
use crate::render::screen::Screen;
use clap::Subcommand;

macro_rules! commands {
    ($($(#[$about:meta])* $name:ident($args:ty) $(if $feature:literal)?,)*) => {
        /// A command with its arguments.
        #[derive(Subcommand)]
        pub(crate) enum Command {
            $($(#[$about])* $(#[cfg(feature = $feature)])? $name($args),)*
        }

        impl Run for Command {
            fn run(self, common: &Common, screen: &Screen) -> Outcome {
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
