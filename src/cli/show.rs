//! `systole show`: the graphs that a model is compiled from.

use super::common::Common;
use super::kernels;
use super::outcome::{Outcome, Run};
use super::screen::Screen;
use super::target::{Target, config_of};
use clap::{Args, ValueEnum};
use serde_json::json;
use systole_ir::Result;
use systole_ir::text::{print, print_annotated};
use systole_nn::Model;

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// A model file, a preset or a TOML file
    target: String,
    /// Which graph
    #[arg(long, value_enum, default_value_t = Stage::Traced)]
    stage: Stage,
    /// Samples in a step [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stage {
    /// The layers' forward pass, as they built it
    Traced,
    /// A whole training step: forward, loss, backward, update, metrics
    Grad,
    /// The training step after the compiler's passes
    Optimized,
    /// The training step as StableHLO text without comments, for other compilers
    Stablehlo,
    /// Each step of the compiled training program with its kernel on this machine's cores
    Kernels,
}

impl Run for ShowArgs {
    fn run(self, _: &Common, screen: &Screen) -> Outcome {
        run(&self, screen)
    }
}

fn run(args: &ShowArgs, screen: &Screen) -> Outcome {
    let target = Target::of(&args.target)?;
    let mut model = target.model()?;
    let trained = config_of(&model, &args.target)?.map_or(32, |c| c.fit.batch_size);
    let batch_size = args.batch_size.map_or(trained, |n| n as usize);
    if screen.json && matches!(args.stage, Stage::Kernels) {
        return kernels::object(&mut model, &args.target, batch_size, screen);
    }
    let text = graph_text(&mut model, args.stage, batch_size)?;
    let text = text.trim_end();
    match screen.json {
        true => screen.object(&json!({"target": args.target, "stage": stage_name(args.stage), "text": text})),
        false => screen.line(text),
    }
    Ok(0)
}

fn graph_text(model: &mut Model, stage: Stage, batch_size: usize) -> Result<String> {
    Ok(match stage {
        Stage::Traced => print_annotated(&*model.forward_graph(batch_size)?),
        Stage::Grad => print_annotated(&*model.train_graph(batch_size)?),
        Stage::Optimized => {
            let (graph, stats) = systole_compile::optimize_with(&*model.train_graph(batch_size)?, true)?;
            let steps: Vec<String> =
                stats.iter().map(|s| format!("// {}: {} nodes to {}\n", s.name, s.before, s.after)).collect();
            steps.concat() + &print_annotated(&graph)
        }
        Stage::Stablehlo => print(&*model.train_graph(batch_size)?),
        Stage::Kernels => kernels::text(model, batch_size)?,
    })
}

fn stage_name(stage: Stage) -> String {
    stage.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
}
