//! `systole tpu1`: simulates a model on Google's first TPU (TPU v1), reports cycles, and compares with modern chips.

mod args;
mod int8_model;
mod modern_chips;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::commands::quantize::{self, QuantArgs};
use crate::models::tflite;
use crate::render::screen::{Screen, table};
pub(crate) use args::Tpu1Args;
use serde_json::json;
use std::path::Path;
use systole_ir::{Error, Result, err};
use systole_tflite::TfliteModel as Graph;
use systole_tpu1::{
    ChipProgram, ChipReport, Instruction, PaperComparison, Preset, Tpu1Chip, animate, compare, explain, trace,
};

impl RunCommand for Tpu1Args {
    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        let chip = self.chip().map_err(CommandError::usage)?;
        let mut told = serde_json::Map::new();
        if let Some(name) = &self.model {
            let graph = graph(name, &self, screen)?;
            let report = match &graph {
                Some(graph) => int8_model::report(name, graph, self.batch.map(|n| n as usize), &chip)?,
                None => of_preset(name, &self, &chip)?,
            };
            if let Some(path) = &common.trace {
                write_trace(path, &report)?;
            }
            told = show(&report, &self, screen)?;
            if self.check {
                let none = || err!(Config, "{name} has no weights to compute with");
                let graph = graph.ok_or_else(|| {
                    CommandError::usage(
                        none()
                            .at("--check")
                            .hint_command("name a model file of your own instead of this preset"),
                    )
                })?;
                let words = int8_model::check(name, &graph, &chip)?;
                screen.line(format!("\n{words}"));
                told.insert("check".into(), json!(words));
            }
        } else if let Some(path) = &common.trace {
            let e = err!(Config, "--trace needs a model to simulate");
            return Err(CommandError::usage(
                e.at(format!("--trace {}", path.display())).hint_command("name a model, such as tpu1/mlp0"),
            ));
        }
        self.lessons(&chip, screen, &mut told)?;
        if screen.json {
            screen.object(&told.into());
        }
        Ok(0)
    }

    fn writes_its_own_trace(&self) -> bool {
        true
    }
}

impl Tpu1Args {
    /// Prints the parts that do not need a model: explanation, comparisons, animation.
    fn lessons(
        &self,
        chip: &Tpu1Chip,
        screen: &Screen,
        told: &mut serde_json::Map<String, serde_json::Value>,
    ) -> Result<()> {
        let rows = self.batch.map_or(if chip.matrix <= 16 { chip.matrix } else { 200 }, |n| n as usize);
        if self.explain {
            let text = explain(chip, rows);
            screen.line(format!("\n{text}").trim_start_matches(if self.model.is_none() { "\n" } else { "" }));
            told.insert("explanation".into(), json!(text));
        }
        if self.compare {
            screen.line(format!("{}\n\n{}", table(&compare::rows()), compare::words().join("\n")));
            told.insert("compare".into(), compare::as_json());
        }
        if self.paper {
            let comparison = PaperComparison::new(chip)?;
            screen.line(comparison.text());
            told.insert("paper_comparison".into(), comparison.json());
        }
        if let Some(path) = &self.animate {
            let page = match path.extension().and_then(|e| e.to_str()) {
                Some("svg") => animate::svg(chip, rows),
                Some("html") => animate::html(chip, rows),
                _ => {
                    let e = err!(Config, "{} is not an .svg or .html file", path.display());
                    return Err(e
                        .at("--animate")
                        .hint_command("write the animation to a file that ends in .svg or .html"));
                }
            };
            std::fs::write(path, page).map_err(|e| Error::io("cannot write", path, e))?;
            screen.detail(format!("Wrote {}", path.display()));
            told.insert("animation".into(), json!(path.display().to_string()));
        }
        Ok(())
    }
}

/// Returns the int8 graph of a model file; `None` for an application of the paper.
fn graph(name: &str, args: &Tpu1Args, screen: &Screen) -> CommandResult<Option<Graph>> {
    if tflite::is_lite_file(name) {
        return Ok(Some(tflite::open(name)?));
    }
    if !Path::new(name).exists() {
        return Ok(None);
    }
    let quant = QuantArgs::per_tensor(args.data.clone(), args.dataset.clone(), args.samples);
    quantize::graph(name, &quant, screen).map(Some)
}

fn of_preset(name: &str, args: &Tpu1Args, chip: &Tpu1Chip) -> CommandResult<ChipReport> {
    let batch = args.batch.map(|n| n as usize);
    let preset = Preset::of(name).map_err(CommandError::usage)?;
    let make = |chip: &Tpu1Chip| preset.program(chip, batch);
    let mut report = ChipReport::new(chip, &make)?;
    let usual = batch.is_none_or(|n| n == preset.paper.batch);
    report.paper = usual.then_some(preset.paper);
    report.assumed = Some(preset.reconstruction.into());
    Ok(report)
}

fn show(
    report: &ChipReport,
    args: &Tpu1Args,
    screen: &Screen,
) -> Result<serde_json::Map<String, serde_json::Value>> {
    let today = modern_chips::machines(report)?;
    if !screen.json {
        if args.instructions {
            screen.line(format!("{}\n", report.program.listing().join("\n")));
        }
        screen.line(report.text());
        screen.line(format!("\n{}", modern_chips::text(report, &today)));
    }
    let mut told = match report.json() {
        serde_json::Value::Object(map) => map,
        other => serde_json::Map::from_iter([("report".to_string(), other)]),
    };
    told.insert("today".into(), modern_chips::as_json(&today));
    if args.instructions {
        told.insert("listing".into(), json!(report.program.listing()));
    }
    Ok(told)
}

/// Returns the layer name of each matrix multiply.
fn layers_of(program: &ChipProgram) -> Vec<&str> {
    let (mut layer, mut names) = ("", Vec::new());
    for instruction in &program.instructions {
        match instruction {
            Instruction::DebugTag(n) => {
                layer = program.parts.get(*n as usize).map_or("", |p| p.name.as_str());
            }
            Instruction::MatrixMultiply { .. } => names.push(layer),
            _ => {}
        }
    }
    names
}

fn write_trace(path: &Path, report: &ChipReport) -> Result<()> {
    let names = layers_of(&report.program);
    let value =
        trace(&report.chip, &report.timing, |n| names.get(n).copied().unwrap_or_default().to_string());
    std::fs::write(path, value.to_string())
        .map_err(|e| Error::io("cannot write", path, e).hint_command("choose another file with --trace"))
}
