//! Backend interface: compiling a graph into an executable, running it on devices, and coordinating hosts.

use crate::Buffer;
use std::sync::Arc;
use systole_ir::{Graph, Literal, Result, Shardings, TensorType};

/// Index of a device in a backend, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct DeviceId(pub usize);

/// A device of a backend and its description.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Index in the backend.
    pub id: DeviceId,
    /// One-line description for display: `2 cores, avx512`.
    pub description: String,
}

/// An argument of [`Executable::run`]: donated or borrowed.
pub enum ExecutableArg<'a> {
    /// Donated: the executable may overwrite it in place and return it as a result.
    Donate(Buffer),
    /// Borrowed: left unchanged.
    Borrow(&'a Buffer),
}

impl ExecutableArg<'_> {
    /// Returns the argument's array, donated or borrowed.
    pub fn buffer(&self) -> &Buffer {
        match self {
            ExecutableArg::Donate(b) => b,
            ExecutableArg::Borrow(b) => b,
        }
    }
}

/// Compile options. Results do not depend on them, except for the rounding options named below.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Parameters that runs usually donate, so that results can reuse their memory.
    pub donated: Vec<usize>,
    /// Program name for messages and profiles.
    pub label: String,
    /// Whether denormals may be flushed to zero (allowed in training, not in op tests).
    pub flush_denormals: bool,
    /// Whether convolutions may use Winograd transforms: fewer multiplications, but different rounding, and an infinity
    /// spreads to neighboring elements (allowed in training, not in op tests).
    pub winograd: bool,
    /// Whether intermediate bf16 and f16 values may stay in f32 until they are stored; an infinity among them may
    /// become a NaN (XLA's `allow_excess_precision`; allowed in training, not in op tests).
    pub excess_precision: bool,
    /// Whether a product and the sum that alone reads it may be contracted to a fused multiply-add, which rounds once.
    pub contraction: bool,
    /// Whether float16 values may be held in f32 between all operations, also products: for models whose format leaves
    /// that open. Backends without float16 arithmetic do so.
    pub wide_float16: bool,
    /// Roles of parameters and results, for backends that split a program over devices.
    pub roles: ValueRoles,
}

/// Roles of a program's parameters and results when it is split over devices.
#[derive(Clone, Debug, Default)]
pub struct ValueRoles {
    /// Parameters with the batch in dimension 0.
    pub batch: Vec<usize>,
    /// Parameters that are replicated on every device, whatever their size.
    pub whole: Vec<usize>,
    /// For each result, the parameter that it replaces in the next run, if any.
    pub replaces: Vec<Option<usize>>,
    /// Whether a batch that does not divide evenly may be replicated. Training steps allow it only for the last,
    /// smaller batch of an epoch.
    pub any_batch: bool,
}

/// Statistics of a compilation: time, memory and kernels.
#[derive(Clone, Debug, Default)]
pub struct ExecutableReport {
    /// Compile time in milliseconds.
    pub compile_ms: f64,
    /// Bytes of temporary memory, without arguments and results.
    pub arena_bytes: usize,
    /// Peak bytes per device during a run, arguments and results included, if the device's compiler reports it;
    /// otherwise 0.
    pub peak_bytes: usize,
    /// Number of kernels in the program.
    pub kernels: usize,
    /// Floating-point operations of one run.
    pub flops: f64,
}

/// A compiled graph that can run on its backend's devices.
pub trait Executable: Send + Sync {
    /// Types of the parameters.
    fn param_types(&self) -> &[TensorType];

    /// Runs the program once. Arguments must have the parameters' types; donated arguments are consumed.
    fn run(&self, args: Vec<ExecutableArg<'_>>) -> Result<Vec<Buffer>>;

    /// Statistics of the compilation.
    fn report(&self) -> &ExecutableReport;

    /// Readable listing of the compiled program; empty if the backend has none.
    fn listing(&self) -> String {
        String::new()
    }
}

/// A backend: compiles graphs and runs them on its devices.
pub trait Backend: Send + Sync {
    /// Name of the backend: `cpu`, `ref`, …
    fn name(&self) -> &str;

    /// Devices of the backend, never empty.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Whether equal layers should be compiled as a loop (scan over layers), because long programs compile slowly.
    /// False for engines that run unrolled layers faster.
    fn wants_loops(&self) -> bool {
        false
    }

    /// Whether steps run on the same cores as the input pipeline. A prefetch-to-device thread would then only compete
    /// for cores: the pipeline prefetches already, and there is nothing to copy.
    fn shares_cores(&self) -> bool {
        false
    }

    /// Memory of each device in bytes, as reported by the device; for host memory, the free part.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Returns this backend with `count` logical devices. `None` if the number of devices is fixed.
    fn with_devices(&self, count: usize) -> Option<Result<Arc<dyn Backend>>> {
        let _ = count;
        None
    }

    /// Collective operations between hosts, if several processes drive this backend's devices.
    fn hosts(&self) -> Option<&dyn HostGroup> {
        None
    }

    /// Compiles a graph.
    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>>;

    /// Compiles a graph for several devices (SPMD). `None` if the backend does not partition programs itself.
    ///
    /// The graph has global types. Arguments are [`ShardedArray`](crate::ShardedArray)s with the given mesh and
    /// shardings, or host arrays, which the run splits. Results are [`ShardedArray`](crate::ShardedArray)s.
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

/// The processes, one per host of a slice, that together drive a backend's devices.
///
/// Runs on all devices, and the methods marked as collective, must be called by every host in the same order; otherwise
/// they deadlock.
pub trait HostGroup {
    /// Index of this host, from 0. Host 0 shows progress and writes files.
    fn index(&self) -> usize;

    /// Number of hosts.
    fn count(&self) -> usize;

    /// Gathers an array to every host, so that it can be read there. Collective if other hosts hold shards of it.
    fn gather(&self, array: &Buffer) -> Result<Buffer>;

    /// `own: T[n] → T[devices, n]`: gathers each host's values, one row for each device in device order. Collective;
    /// reading the result waits for it.
    fn share(&self, own: &Literal) -> Result<Buffer>;
}
