//! `systole show --stage`: prints a program after a compiler pass, stage or rule, and the kernel chosen for each step.

use crate::args::exit_status::CommandResult;
use crate::render::screen::Screen;
use serde_json::{Value, json};
use systole_compile::{StageOutput, form_after};
use systole_cpu::{ChosenKernel, CpuBackend, StepKernel, kernel_listing};
use systole_ir::text::print_annotated;
use systole_ir::{Graph, Result};
use systole_runtime::CompileOptions;

/// Compile options of a training step.
pub(crate) fn training(parameters: usize) -> CompileOptions {
    CompileOptions {
        donated: (0..parameters).collect(),
        label: "train step".into(),
        flush_denormals: true,
        winograd: true,
        excess_precision: true,
        ..CompileOptions::default()
    }
}

/// Returns the graph or program after the named compiler stage.
pub(crate) fn after(graph: &Graph, options: &CompileOptions, stage: &str) -> Result<String> {
    let options = CpuBackend::new()?.program_options(options);
    Ok(match form_after(graph, &options, stage)? {
        StageOutput::Graph(graph) => print_annotated(&graph),
        StageOutput::Program(program) => program.to_string(),
    })
}

/// Lists each step with its kernel, compiled with the current environment variables.
pub(crate) fn text(graph: &Graph, options: &CompileOptions) -> Result<String> {
    Ok(kernel_listing(&CpuBackend::new()?.explain(graph, options)?))
}

/// Prints the steps as JSON.
pub(crate) fn object(
    graph: &Graph,
    options: &CompileOptions,
    target: &str,
    screen: &Screen,
) -> CommandResult {
    let steps: Vec<Value> = CpuBackend::new()?.explain(graph, options)?.iter().map(step).collect();
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
