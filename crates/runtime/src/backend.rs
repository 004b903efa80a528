//! The interface between a finished graph and a machine.

use crate::Buffer;
use std::sync::Arc;
use systole_ir::{Graph, Literal, Result, Shardings, TensorType};

/// A device of a backend, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct DeviceId(pub usize);

/// What a backend says of one of its devices.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its number.
    pub id: DeviceId,
    /// One line for people: `2 cores, avx512`.
    pub description: String,
}

/// An argument of a run.
pub enum ExecutableArg<'a> {
    /// Given away: the executable may overwrite it in place and hand it back as a result.
    Donate(Buffer),
    /// Lent: it is the same afterwards.
    Borrow(&'a Buffer),
}

impl ExecutableArg<'_> {
    /// The array, whoever owns it.
    pub fn buffer(&self) -> &Buffer {
        match self {
            ExecutableArg::Donate(b) => b,
            ExecutableArg::Borrow(b) => b,
        }
    }
}

/// Choices for one compilation. But for the roundings that are named, results of a run do not depend on them.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Parameters that runs will usually donate, so that results may be planned into their memory.
    pub donated: Vec<usize>,
    /// Name for messages and profiles.
    pub label: String,
    /// Whether tiny numbers may be flushed to zero (training may, op tests may not).
    pub flush_denormals: bool,
    /// Whether convolutions may be computed through transforms of their operands (Winograd): fewer products, which
    /// round elsewhere, and an infinity spreads to its neighbours (training may, op tests may not).
    pub winograd: bool,
    /// Whether narrow floats may keep more digits than their type has until they are stored, and an infinity among them
    /// may become a NaN (XLA's `allow_excess_precision`; training may, op tests may not).
    pub excess_precision: bool,
    /// What parameters and results are to backends that spread a program over devices.
    pub roles: ValueRoles,
}

/// What the parameters and results of a program mean where it is spread over devices.
#[derive(Clone, Debug, Default)]
pub struct ValueRoles {
    /// Parameters whose dimension 0 runs over samples.
    pub batch: Vec<usize>,
    /// Parameters that every device has whole, whatever their size.
    pub whole: Vec<usize>,
    /// For each result the parameter whose place it takes, where it takes one.
    pub replaces: Vec<Option<usize>>,
    /// Whether every device may compute the whole of a batch that does not divide. Training steps may only for the last
    /// batch of an epoch: one smaller than those before.
    pub any_batch: bool,
}

/// What a compilation produced, for people and programs.
#[derive(Clone, Debug, Default)]
pub struct ExecutableReport {
    /// Milliseconds spent compiling.
    pub compile_ms: f64,
    /// Bytes of working memory beside arguments and results.
    pub arena_bytes: usize,
    /// Bytes that a run holds on each device at the most, arguments and results included, where the device's own compiler says so;
    /// otherwise 0.
    pub peak_bytes: usize,
    /// Kernels in the schedule.
    pub kernels: usize,
    /// Arithmetic operations of one run.
    pub flops: f64,
    /// The compiled program in readable form, where there is one.
    pub listing: String,
}

/// A compiled graph.
pub trait Executable: Send + Sync {
    /// Types of the parameters.
    fn param_types(&self) -> &[TensorType];

    /// Runs once. Arguments must have the parameters' types; donated ones are consumed.
    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>>;

    /// What compiling found out.
    fn report(&self) -> &ExecutableReport;
}

/// A way to run graphs: an engine and its devices.
pub trait Backend: Send + Sync {
    /// `cpu`, `ref`, …
    fn name(&self) -> &str;

    /// Its devices, never empty.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Whether its compiler takes long for long programs, so that equal layers are better given as loops. An engine
    /// that is faster on unrolled layers says no.
    fn wants_loops(&self) -> bool {
        false
    }

    /// Whether steps run on the cores that input pipelines run on. A thread that brings the next batch to the device
    /// meanwhile only disturbs them there: the pipeline's own stages are ahead already, and there is nothing to copy.
    fn shares_cores(&self) -> bool {
        false
    }

    /// Bytes that each device has, as the device itself says; of the computer's own memory what is free.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// The same with so many devices, where it has fewer and makes as many as it is asked for; `None`: it has what it has.
    fn with_devices(&self, count: usize) -> Option<Result<Arc<dyn Backend>>> {
        let _ = count;
        None
    }

    /// What processes on several hosts do together, where this backend's devices are driven by more than this one.
    fn hosts(&self) -> Option<&dyn HostGroup> {
        None
    }

    /// Compiles a graph.
    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>>;

    /// Compiles a graph for several devices at once, or `None` where the backend does not split programs by itself.
    ///
    /// The graph and its types are those of all devices together. Runs take arguments whose storage is
    /// [`Pieces`](crate::Pieces) of the spread's mesh and sharding, or host arrays, which they split; results are pieces.
    fn compile_spread(
        &self,
        _graph: &Arc<Graph>,
        _spread: &Shardings,
        _options: &CompileOptions,
    ) -> Option<Result<Arc<dyn Executable>>> {
        None
    }

    /// Copies a host array to a device.
    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer>;
}

/// Processes, one on each host of a slice, that drive a backend's devices together.
///
/// Runs of programs on all devices, and the calls of this trait that say so, are meetings: every host makes the same ones
/// in the same order, or those that wait wait for ever.
pub trait HostGroup {
    /// Which host this is, from 0. Host 0 shows progress and writes files.
    fn index(&self) -> usize;

    /// How many there are.
    fn count(&self) -> usize;

    /// The array with all of it on every host, so that it can be read there. A meeting where parts lie at other hosts.
    fn gather(&self, array: &Buffer) -> Result<Buffer>;

    /// `own: T[n] → T[devices, n]`: for each device of all hosts, in their order, what its host says. A meeting; the
    /// answer is waited for where it is read.
    fn share(&self, own: &Literal) -> Result<Buffer>;
}
