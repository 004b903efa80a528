//! A program on one device: compiled, given its arguments, run, its results read and its own claims judged.

use crate::inputs::{name, type_text};
use std::sync::Arc;
use systole_base::{Error, ErrorKind, Literal, Result, ResultExt};
use systole_ir::Graph;
use systole_mlir::import::{Check, Imported};
use systole_mlir::interface::{Face, Interface};
use systole_runtime::{Arg, Backend, Buffer, CompileOptions, DeviceId, Executable, Report};

/// A result as the IR holds it.
#[derive(Clone, Debug)]
pub struct Value {
    /// What the program's writer calls it.
    pub face: Face,
    /// The arrays that hold it.
    pub held: Vec<Literal>,
}

impl Value {
    /// `f32[2, 3]`, with the element's own name.
    pub fn ty(&self) -> String {
        type_text(&self.face)
    }

    /// Its elements as others lay them out, dense and row-major.
    ///
    /// # Errors
    /// When an array is missing.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        self.face.join(&self.held.iter().collect::<Vec<_>>())
    }
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The results.
    pub values: Vec<Value>,
    /// What became of each claim of the program about its own results; an error says which element differs.
    pub checks: Vec<Result<(), String>>,
}

/// A program, compiled for a device.
pub struct Runner {
    executable: Arc<dyn Executable>,
    backend: Arc<dyn Backend>,
    interface: Interface,
    checks: Vec<Check>,
}

impl Runner {
    /// Compiles a program as it is: no bits are given up for speed.
    ///
    /// # Errors
    /// When it needs more memory than there is; those of the device.
    pub fn new(program: &Imported, backend: &Arc<dyn Backend>) -> Result<Runner> {
        let graph = &program.program.graph;
        fits(graph, backend.name() == "ref")?;
        let options = CompileOptions { label: graph.name.clone(), ..CompileOptions::default() };
        Ok(Runner {
            executable: backend.compile(graph, &options)?,
            backend: backend.clone(),
            interface: program.interface.clone(),
            checks: program.checks.clone(),
        })
    }

    /// What compiling found out.
    pub fn report(&self) -> &Report {
        self.executable.report()
    }

    /// Copies the arguments to the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn put(&self, inputs: &[Vec<Literal>]) -> Result<Vec<Buffer>> {
        let put = |(i, held): (usize, &Vec<Literal>)| -> Result<Vec<Buffer>> {
            let each = held.iter().map(|x| self.backend.put(x, DeviceId(0)));
            each.collect::<Result<_>>().at(|| name(i))
        };
        let all = inputs.iter().enumerate().map(put).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Runs once, and waits for the end.
    ///
    /// # Errors
    /// Those of the device.
    pub fn run(&self, arguments: &[Buffer]) -> Result<Vec<Buffer>> {
        let results = self.executable.run(arguments.iter().map(Arg::Borrow).collect())?;
        results.iter().try_for_each(Buffer::block_until_ready)?;
        Ok(results)
    }

    /// Reads results and judges the program's claims.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn results(&self, results: &[Buffer]) -> Result<Ran> {
        let arrays = results.iter().map(Buffer::to_literal).collect::<Result<Vec<_>>>()?;
        let value = |face: &Face| {
            let held = arrays.get(face.first..face.first + face.element.held().len());
            let held = held.ok_or_else(|| Error::new(ErrorKind::Bug, "the device gave too few results"))?;
            Ok(Value { face: face.clone(), held: held.to_vec() })
        };
        let values = self.interface.results.iter().map(value).collect::<Result<Vec<_>>>()?;
        let compared: usize = self.checks.iter().map(Check::arrays).sum();
        let too_few = || Error::new(ErrorKind::Bug, "the device gave too few results");
        let mut rest = arrays.len().checked_sub(compared).map(|at| &arrays[at..]).ok_or_else(too_few)?;
        let mut judge = |check: &Check| {
            let (own, others) = rest.split_at(check.arrays());
            rest = others;
            check.run(&own.iter().collect::<Vec<_>>())
        };
        Ok(Ran { values, checks: self.checks.iter().map(&mut judge).collect() })
    }
}

/// Refuses a program whose arguments and results, with `all` every value of it, do not fit in memory: an error instead of a
/// process that the system kills. What else a program takes, its device says when it compiles.
///
/// # Errors
/// `Unsupported`: how much is needed, how much there is, and what takes most.
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
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("this program needs {} of memory for {what}, and {} are free", mib(need), mib(free)),
    )
    .because(format!("its largest arrays: {}", largest.collect::<Vec<_>>().join(", ")))
    .hint("make the program for smaller arrays, raise --memory-limit, or use a machine with more memory"))
}
