//! Which kernel each step of a program got, and why candidates of higher priority refused (`systole show --stage
//! kernels`).

use crate::kernel::{KernelChoice, ProgramView};
use std::fmt::Write;
use systole_ir::TensorType;

/// A step of a compiled program and its kernel.
///
/// ```
/// use std::sync::Arc;
/// use systole_cpu::{CpuBackend, Level, Team};
/// use systole_ir::{DType, GraphBuilder, TensorType};
/// let g = GraphBuilder::new("twice");
/// let x = g.parameter(TensorType::new(DType::F32, [4]), "x");
/// let graph = g.finish(&[&x + &x])?;
/// let backend = CpuBackend::with(Team::new(1), Level::Portable)?;
/// let steps = backend.explain(&graph, &Default::default())?;
/// assert_eq!(steps[0].kernel.name, "elementwise/interpreted");
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepKernel {
    /// The nested programs that contain it, outermost first: `block`, `while`, `do`, `case 0`. Empty at top level.
    pub program: Vec<String>,
    /// Its index in its program.
    pub step: usize,
    /// What it computes.
    pub computes: String,
    /// The layer that it comes from; empty: none.
    pub layer: String,
    /// Types of its results.
    pub results: Vec<TensorType>,
    /// What was chosen.
    pub kernel: ChosenKernel,
}

/// A kernel, and how it was chosen.
#[derive(Clone, Debug)]
pub struct ChosenKernel {
    /// `family/candidate`.
    pub name: String,
    /// Candidates of higher priority, and why they refused.
    pub refused: Vec<(String, String)>,
    /// Kernels that it calls, such as the matrix product inside a convolution.
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

/// All steps of a program; the steps of nested programs follow the step that contains them.
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

/// The steps as lines of text: index, what it computes, layer, results, kernel. Below each line follow the candidates
/// that refused, and the kernels that it calls. Nested programs are indented.
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
