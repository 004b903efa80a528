//! Compiles and runs a program on one device, reads its results and evaluates its assertions.

use crate::inputs::{name, type_text};
use std::sync::Arc;
use systole_base::{Literal, Result, ResultExt, err};
use systole_ir::Graph;
use systole_mlir::import::{ImportedProgram, ResultCheck};
use systole_mlir::interface::{ProgramInterface, ProgramPort};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceId, Executable, ExecutableArg, ExecutableReport,
};

/// A result of a program with the IR arrays that hold it.
#[derive(Clone, Debug)]
pub struct ResultValue {
    /// Shape and element type of the result in the source program.
    pub face: ProgramPort,
    /// The arrays that hold it.
    pub held: Vec<Literal>,
}

impl ResultValue {
    /// Returns the result's type as text, `f32[2, 3]`, with the source element type.
    pub fn ty(&self) -> String {
        type_text(&self.face)
    }

    /// Returns the result's elements in the external layout, dense and row-major.
    ///
    /// # Errors
    /// If an array is missing.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        self.face.join(&self.held.iter().collect::<Vec<_>>())
    }
}

/// Results of one run of a program, and of its assertions.
#[derive(Clone, Debug)]
pub struct RunResults {
    /// Result values.
    pub values: Vec<ResultValue>,
    /// Outcome of each assertion in the program; an error names the element that differs.
    pub checks: Vec<Result<(), String>>,
}

/// A program compiled for a device.
pub struct ProgramRunner {
    executable: Arc<dyn Executable>,
    backend: Arc<dyn Backend>,
    interface: ProgramInterface,
    checks: Vec<ResultCheck>,
}

/// Returns the options that a program is compiled with: Winograd convolutions, and float16 held in float32, if its format
/// leaves the order of sums open; nothing else that changes a result.
pub fn compile_options(program: &ImportedProgram) -> CompileOptions {
    CompileOptions {
        label: program.program.graph.name.clone(),
        winograd: program.sums_in_any_order,
        wide_float16: program.sums_in_any_order,
        ..CompileOptions::default()
    }
}

impl ProgramRunner {
    /// Compiles a program for a device, with [`compile_options`].
    ///
    /// # Errors
    /// If it needs more memory than is available; errors of the device.
    pub fn new(program: &ImportedProgram, backend: &Arc<dyn Backend>) -> Result<ProgramRunner> {
        let graph = &program.program.graph;
        fits(graph, backend.name() == "ref")?;
        Ok(ProgramRunner {
            executable: backend.compile(graph, &compile_options(program))?,
            backend: backend.clone(),
            interface: program.interface.clone(),
            checks: program.checks.clone(),
        })
    }

    /// Returns the compiler's report on the program.
    pub fn report(&self) -> &ExecutableReport {
        self.executable.report()
    }

    /// Copies the program's arguments to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn put(&self, inputs: &[Vec<Literal>]) -> Result<Vec<Buffer>> {
        let put = |(i, held): (usize, &Vec<Literal>)| -> Result<Vec<Buffer>> {
            let each = held.iter().map(|x| self.backend.put(x, DeviceId(0)));
            each.collect::<Result<_>>().at(|| name(i))
        };
        let all = inputs.iter().enumerate().map(put).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Runs the program once and waits for its end.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn run(&self, arguments: &[Buffer]) -> Result<Vec<Buffer>> {
        let results = self.executable.run(arguments.iter().map(ExecutableArg::Borrow).collect())?;
        results.iter().try_for_each(Buffer::block_until_ready)?;
        Ok(results)
    }

    /// Reads the results of a run and evaluates the program's assertions.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn results(&self, results: &[Buffer]) -> Result<RunResults> {
        let arrays = results.iter().map(Buffer::to_literal).collect::<Result<Vec<_>>>()?;
        let value = |face: &ProgramPort| {
            let held = arrays.get(face.first..face.first + face.element.held().len());
            let held = held.ok_or_else(|| err!(Bug, "the device returned too few results"))?;
            Ok(ResultValue { face: face.clone(), held: held.to_vec() })
        };
        let values = self.interface.results.iter().map(value).collect::<Result<Vec<_>>>()?;
        let compared: usize = self.checks.iter().map(ResultCheck::arrays).sum();
        let too_few = || err!(Bug, "the device returned too few results");
        let mut rest = arrays.len().checked_sub(compared).map(|at| &arrays[at..]).ok_or_else(too_few)?;
        let mut judge = |check: &ResultCheck| {
            let (own, others) = rest.split_at(check.arrays());
            rest = others;
            check.run(&own.iter().collect::<Vec<_>>())
        };
        Ok(RunResults { values, checks: self.checks.iter().map(&mut judge).collect() })
    }
}

/// Rejects a program whose arguments and results (with `all`, all values) do not fit in memory, so that the process is
/// not killed. The device checks its own memory when it compiles.
///
/// # Errors
/// `Unsupported`: required and free memory, and the largest arrays.
pub fn fits(graph: &Graph, all: bool) -> Result<()> {
    let bytes = |v: &systole_ir::ValueId| (graph.ty(*v).bytes(), graph.ty(*v));
    let own = graph.params.iter().chain(&graph.results).map(bytes);
    let inner = graph.nodes.iter().filter(|_| all).flat_map(|n| n.outs.iter().map(|t| (t.bytes(), t)));
    let values: Vec<_> = if all { inner.collect() } else { own.collect() };
    let need = values.iter().fold(0usize, |n, (bytes, _)| n.saturating_add(*bytes));
    let free = systole_data::free_memory();
    if need <= free {
        return Ok(());
    }
    let mib = |n: usize| format!("{} MiB", n.div_ceil(1 << 20));
    let mut largest = values;
    largest.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let largest = largest.iter().take(4).map(|(bytes, ty)| format!("{ty} ({})", mib(*bytes)));
    let what = if all { "all its values" } else { "its arguments and results" };
    Err(err!(
        Unsupported,
        "this program needs {} of memory for {what}, and {} are free",
        mib(need),
        mib(free)
    )
    .because(format!("the largest arrays of the program: {}", largest.collect::<Vec<_>>().join(", ")))
    .hint("use smaller arrays, raise --memory-limit, or use a machine with more memory"))
}
