//! `systole show`: the graphs that a model is compiled from.

use super::common::Common;
use super::kernels;
use super::outcome::{Outcome, Run};
use super::screen::Screen;
use super::target::{Target, config_of};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::json;
use systole_ir::Result;
use systole_ir::text::{print, print_annotated};
use systole_nn::Model;

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// A model file, a preset or a TOML file
    target: String,
    /// What to print: a graph, or the program after a pass, stage or rule of the compiler
    #[arg(long, value_name = "NAME", default_value = "traced", value_parser = stages())]
    stage: String,
    /// Samples in a step [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
}

/// Forms of a training step that are no stage of the compiler.
const FORMS: [(&str, &str); 5] = [
    ("traced", "The layers' forward pass, as they built it"),
    ("grad", "A whole training step: forward, loss, backward, update, metrics"),
    ("optimized", "The training step after the compiler's passes"),
    ("stablehlo", "The training step as StableHLO text without comments, for other compilers"),
    (
        "kernels",
        "Each step of the program with its kernel on this machine's cores, and why better ones refused",
    ),
];

/// All that can be printed, in the order in which it comes about.
fn stages() -> PossibleValuesParser {
    let compiler = systole_compile::stages().into_iter();
    let all = FORMS.into_iter().chain(compiler).map(|(name, doc)| PossibleValue::new(name).help(doc));
    PossibleValuesParser::new(all)
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
    if screen.json && args.stage == "kernels" {
        return kernels::object(&mut model, &args.target, batch_size, screen);
    }
    let text = graph_text(&mut model, &args.stage, batch_size)?;
    let text = text.trim_end();
    match screen.json {
        true => screen.object(&json!({"target": args.target, "stage": args.stage, "text": text})),
        false => screen.line(text),
    }
    Ok(0)
}

fn graph_text(model: &mut Model, stage: &str, batch_size: usize) -> Result<String> {
    Ok(match stage {
        "traced" => print_annotated(&*model.forward_graph(batch_size)?),
        "grad" => print_annotated(&*model.train_graph(batch_size)?),
        "optimized" => {
            let (graph, stats) = systole_compile::optimize_with(&*model.train_graph(batch_size)?, true)?;
            let steps: Vec<String> =
                stats.iter().map(|s| format!("// {}: {} nodes to {}\n", s.name, s.before, s.after)).collect();
            steps.concat() + &print_annotated(&graph)
        }
        "stablehlo" => print(&*model.train_graph(batch_size)?),
        "kernels" => kernels::text(model, batch_size)?,
        stage => kernels::after(model, batch_size, stage)?,
    })
}
