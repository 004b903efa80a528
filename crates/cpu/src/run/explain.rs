//! Explains kernel selection: the kernel of each step, and why candidates of higher priority rejected it.
//!
//! `systole show --stage kernels` prints this.

use crate::kernel::{KernelChoice, ProgramView};
use std::fmt::Write;
use systole_ir::TensorType;

/// A step of a compiled program and its kernel.
///
/// ```
/// use std::sync::Arc;
/// use systole_cpu::{CpuBackend, Level, ThreadPool};
/// use systole_ir::{DType, GraphBuilder, TensorType};
/// let g = GraphBuilder::new("twice");
/// let x = g.parameter(TensorType::new(DType::F32, [4]), "x");
/// let graph = g.finish(&[&x + &x])?;
/// let backend = CpuBackend::with(ThreadPool::new(1), Level::Portable)?;
/// let steps = backend.explain(&graph, &Default::default())?;
/// assert_eq!(steps[0].kernel.name, "elementwise/interpreted");
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepKernel {
    /// Nested programs that contain the step, outermost first: `block`, `while`, `do`, `case 0`. Empty at top level.
    pub program: Vec<String>,
    /// Index of the step in its program.
    pub step: usize,
    /// Description of the computation.
    pub computes: String,
    /// Layer that the step belongs to, or empty.
    pub layer: String,
    /// Types of the results.
    pub results: Vec<TensorType>,
    /// Selected kernel.
    pub kernel: ChosenKernel,
}

/// A kernel and the selection that led to it.
#[derive(Clone, Debug)]
pub struct ChosenKernel {
    /// Name as `family/candidate`.
    pub name: String,
    /// Candidates of higher priority, and why they rejected the step.
    pub refused: Vec<(String, String)>,
    /// Kernels that it calls, such as the matrix product of a convolution.
    pub inside: Vec<ChosenKernel>,
}

impl ChosenKernel {
    fn of(choice: &KernelChoice) -> ChosenKernel {
        let refused = choice.refused.iter().map(|(name, why)| (name.to_string(), why.to_string()));
        ChosenKernel {
            name: format!("{}/{}", choice.family, choice.candidate),
            refused: refused.collect(),
            inside: choice.inside.iter().map(ChosenKernel::of).collect(),
        }
    }

    /// Whether this kernel, or one that it calls, is `family/candidate`.
    pub fn uses(&self, name: &str) -> bool {
        self.name == name || self.inside.iter().any(|k| k.uses(name))
    }

    fn write(&self, indent: usize, text: &mut String) {
        for (name, why) in &self.refused {
            let _ = writeln!(text, "{:indent$}not {name}: {why}", "");
        }
        for inner in &self.inside {
            let _ = writeln!(text, "{:indent$}inside it {}", "", inner.name);
            inner.write(indent + 2, text);
        }
    }
}

/// Returns all steps of a program; steps of nested programs follow the step that contains them.
pub(crate) fn steps(program: &dyn ProgramView) -> Vec<StepKernel> {
    let mut all = Vec::new();
    collect(program, &[], &mut all);
    all
}

fn collect(program: &dyn ProgramView, around: &[String], all: &mut Vec<StepKernel>) {
    for (i, step) in program.steps().iter().enumerate() {
        all.push(StepKernel {
            program: around.to_vec(),
            step: i,
            computes: step.kernel.name(),
            layer: step.scope.to_string(),
            results: step.output_types.clone(),
            kernel: ChosenKernel::of(&program.choices()[i]),
        });
        for (name, inner) in program.kernels()[i].inner() {
            collect(inner, &[around, &[name]].concat(), all);
        }
    }
}

/// Formats steps as lines of text: index, computation, layer, results, kernel. Indented below each line are the
/// candidates that rejected it and the kernels it calls. Nested programs are indented.
pub fn kernel_listing(steps: &[StepKernel]) -> String {
    let mut text = String::new();
    let mut before: &[String] = &[];
    for step in steps {
        let indent = 4 * step.program.len();
        if let Some(name) = step.program.last().filter(|_| step.program != before || step.step == 0) {
            let _ = writeln!(text, "{:1$}{name}:", "", indent - 2);
        }
        before = &step.program;
        let of = if step.layer.is_empty() { "" } else { " of layer " };
        let results: Vec<String> = step.results.iter().map(|t| t.to_string()).collect();
        let what = format!("{} {}{of}{}", step.step, step.computes, step.layer);
        let _ = writeln!(text, "{:indent$}{what} -> {}: {}", "", results.join(", "), step.kernel.name);
        step.kernel.write(indent + 4, &mut text);
    }
    text
}
