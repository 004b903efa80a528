//! `systole summary`: prints a model's layers, output shapes and weight counts.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::models::command_target::CommandTarget;
use crate::models::imported;
use crate::models::onnx;
use crate::models::tflite;
use crate::render::screen::Screen;
use clap::Args;
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct SummaryArgs {
    /// Model file, run folder, preset, TOML file, or .tflite or .onnx file
    target: String,
}

impl RunCommand for SummaryArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        summary(&self.target, screen)
    }
}

/// Prints layers, output shapes and weight counts.
fn summary(target: &str, screen: &Screen) -> CommandResult {
    if tflite::is_lite_file(target) {
        return tflite::summary(target, screen);
    }
    if onnx::is_onnx_file(target) {
        return onnx::summary(target, screen);
    }
    let model = match CommandTarget::of_model(target)? {
        CommandTarget::Model(path) => imported::load_to_predict(&path)?,
        other => other.model()?,
    };
    if !screen.json {
        screen.line(model.summary().trim_end());
        return Ok(0);
    }
    let rows = model.summary_rows().iter();
    let layers: Value = rows
        .map(|r| json!({"layer": r.layer, "output_shape": r.output_shape.dims(), "params": r.params}))
        .collect();
    let params: usize = model.weights().iter().map(|(_, b)| b.ty().elements()).sum();
    screen.object(&json!({
        "target": target, "layers": layers, "params": params, "classes": model.class_names,
        "steps": model.steps(), "epochs": model.epochs(), "notes": model.notes,
    }));
    Ok(0)
}
