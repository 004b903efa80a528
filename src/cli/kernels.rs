//! `systole show --stage kernels`: which kernel of the CPU engine computes each step of a model's training program.

use super::Outcome;
use super::screen::Screen;
use serde_json::{Value, json};
use systole_cpu::{ChosenKernel, CpuBackend, StepKernel, kernel_listing};
use systole_ir::Result;
use systole_nn::Model;
use systole_runtime::CompileOptions;

/// The steps of the training program, as the knobs have it compiled.
fn steps(model: &mut Model, batch_size: usize) -> Result<Vec<StepKernel>> {
    let graph = model.train_graph(batch_size)?;
    let options = CompileOptions {
        donated: (0..graph.params.len()).collect(),
        label: "train step".into(),
        flush_denormals: true,
        winograd: true,
        excess_precision: true,
        ..CompileOptions::default()
    };
    CpuBackend::new()?.explain(&graph, &options)
}

/// Each step and its kernel on a line.
pub(crate) fn text(model: &mut Model, batch_size: usize) -> Result<String> {
    Ok(kernel_listing(&steps(model, batch_size)?))
}

/// Prints the steps as objects.
pub(crate) fn object(model: &mut Model, target: &str, batch_size: usize, screen: &Screen) -> Outcome {
    let steps: Vec<Value> = steps(model, batch_size)?.iter().map(step).collect();
    screen.object(&json!({"target": target, "stage": "kernels", "steps": steps}));
    Ok(0)
}

fn step(step: &StepKernel) -> Value {
    let results: Vec<String> = step.results.iter().map(|t| t.to_string()).collect();
    json!({
        "program": step.program, "step": step.step, "computes": step.computes, "layer": step.layer,
        "results": results, "kernel": kernel(&step.kernel),
    })
}

fn kernel(k: &ChosenKernel) -> Value {
    let refused: Vec<Value> =
        k.refused.iter().map(|(name, why)| json!({"candidate": name, "reason": why})).collect();
    let inside: Vec<Value> = k.inside.iter().map(kernel).collect();
    json!({"name": k.name, "refused": refused, "inside": inside})
}
