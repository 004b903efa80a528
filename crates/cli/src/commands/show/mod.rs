//! `systole show`: prints a model's computation graphs, or a program at any compiler stage.

mod kernels;
mod rate_schedule;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::{CommandTarget, config_of};
use crate::models::program::{self, DimArgs};
use crate::models::tflite;
use crate::render::screen::Screen;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use rate_schedule::ScheduleArgs;
use serde_json::json;
use std::path::PathBuf;
use systole_ir::text::{print, print_annotated};
use systole_ir::{Error, ErrorKind, Graph};
use systole_runtime::CompileOptions;

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// Model file, run folder, preset, TOML file, StableHLO program, ONNX or .tflite model
    ///
    /// StableHLO may be text or bytecode.
    target: String,
    /// Print this graph or compiler stage
    #[arg(long, value_name = "NAME", default_value = "traced", value_parser = stages())]
    stage: String,
    /// Plot the learning rate of each step instead of printing a graph
    #[arg(long, conflicts_with_all = ["stage", "batch_size"])]
    schedule: bool,
    /// Plot N steps with --schedule [default: as in training]
    #[arg(long, value_name = "N", requires = "schedule", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Write the plot of --schedule to an .svg file
    #[arg(long, value_name = "FILE.svg", requires = "schedule")]
    out: Option<PathBuf>,
    /// Set the batch size [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    #[command(flatten)]
    dims: DimArgs,
}

/// Graphs that are not stages of the compiler.
const FORMS: [(&str, &str); 5] = [
    ("traced", "The layers' forward pass as traced; for a program, all of it"),
    ("grad", "A whole training step: forward, loss, backward, update, metrics"),
    ("optimized", "The training step after the compiler's passes"),
    ("stablehlo", "The training step as StableHLO text without comments, for other compilers"),
    ("kernels", "Each step with its kernel on this machine, and why faster kernels were rejected"),
];

/// Returns all graphs and stages in compilation order.
fn stages() -> PossibleValuesParser {
    let compiler = systole_compile::stages().into_iter();
    let all = FORMS.into_iter().chain(compiler).map(|(name, doc)| PossibleValue::new(name).help(doc));
    PossibleValuesParser::new(all)
}

impl RunCommand for ShowArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        if self.schedule {
            let asked = ScheduleArgs { target: &self.target, steps: self.steps, out: self.out.as_ref() };
            return rate_schedule::show(&asked, screen);
        }
        if program::is_program(&self.target) {
            return show_program(&self, screen);
        }
        let target = CommandTarget::of_model(&self.target)?;
        let mut model = target.model()?;
        let trained = config_of(&model, &self.target)?.map_or(32, |c| c.fit.batch_size);
        let batch_size = self.batch_size.map_or(trained, |n| n as usize);
        if self.stage == "traced" {
            return shown(&self, &print_annotated(&*model.forward_graph(batch_size)?), screen);
        }
        let graph = model.train_graph(batch_size)?;
        let options = kernels::training(graph.params.len());
        match self.stage.as_str() {
            "grad" => shown(&self, &print_annotated(&graph), screen),
            _ => show_stage(&self, &graph, &options, screen),
        }
    }
}

/// Prints a program file, which has no layers and no derivative.
fn show_program(args: &ShowArgs, screen: &Screen) -> CommandResult {
    let refused = |option: &str, what: &str, hint: &str| {
        Err(CommandError::usage(Error::new(ErrorKind::Config, what).at(option).hint_command(hint)))
    };
    if args.batch_size.is_some() {
        return refused("--batch-size", "the shapes of a program are fixed", "remove --batch-size");
    }
    if args.stage == "grad" {
        let hint = "print the whole program with --stage traced; list the other stages with --help";
        return refused("--stage grad", "a program has no training step", hint);
    }
    if args.stage == "kernels" && tflite::is_lite_file(&args.target) && args.dims.dims.is_empty() {
        let model = tflite::open(&args.target)?;
        if model.is_quantized() {
            return tflite::kernels(&args.target, model, screen);
        }
    }
    let imported = program::open(&args.target, &args.dims)?.imported;
    let options = systole_program::run::compile_options(&imported);
    let graph = imported.program.graph;
    match args.stage.as_str() {
        "traced" => shown(args, &print_annotated(&graph), screen),
        _ => show_stage(args, &graph, &options, screen),
    }
}

/// Prints a stage of a whole program.
fn show_stage(args: &ShowArgs, graph: &Graph, options: &CompileOptions, screen: &Screen) -> CommandResult {
    let text = match args.stage.as_str() {
        "optimized" => {
            let (graph, stats) = systole_compile::optimize_with(graph, options.excess_precision)?;
            let steps: Vec<String> =
                stats.iter().map(|s| format!("// {}: {} nodes to {}\n", s.name, s.before, s.after)).collect();
            steps.concat() + &print_annotated(&graph)
        }
        "stablehlo" => print(graph),
        "kernels" if screen.json => return kernels::object(graph, options, &args.target, screen),
        "kernels" => kernels::text(graph, options)?,
        stage => kernels::after(graph, options, stage)?,
    };
    shown(args, &text, screen)
}

fn shown(args: &ShowArgs, text: &str, screen: &Screen) -> CommandResult {
    let text = text.trim_end();
    match screen.json {
        true => screen.object(&json!({"target": args.target, "stage": args.stage, "text": text})),
        false => screen.line(text),
    }
    Ok(0)
}
