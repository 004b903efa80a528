//! Ahead-of-time (AOT) compilation for devices that are not present: request, target topology and compiler report.
//!
//! The compiler itself is in `systole-pjrt` (libtpu, XLA); memory and time estimators implement the same trait.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use systole_ir::Result;

/// Target topology of ahead-of-time compilation: the chips or GPUs to compile for. Cloud product names are in
/// `systole-plan`.
#[derive(Clone, Debug, PartialEq)]
pub struct AotTopology {
    /// The compiler's name of one slice, `v5e:4x4`; for GPUs the display name, `h100`.
    pub topology: String,
    /// Chips along each axis; for GPUs `[1, 1, GPUs per host]`.
    pub extents: Vec<usize>,
    /// Whether each axis wraps around (torus).
    pub rings: Vec<bool>,
    /// The compiler's chip configuration, if not the default.
    pub chip_config: Option<String>,
    /// Target description of one GPU, for a compiler that needs it: a `stream_executor.GpuTargetConfigProto` in text
    /// format.
    pub gpu: Option<String>,
    /// Number of equal slices connected by the data center network.
    pub count: usize,
}

impl AotTopology {
    /// Creates a topology of one slice without wrap-around: `AotTopology::new("v5e", &[2, 2])`.
    pub fn new(generation: &str, extents: &[usize]) -> AotTopology {
        let sizes: Vec<String> = extents.iter().map(usize::to_string).collect();
        AotTopology {
            topology: format!("{generation}:{}", sizes.join("x")),
            extents: extents.to_vec(),
            rings: vec![false; extents.len()],
            chip_config: None,
            gpu: None,
            count: 1,
        }
    }

    /// Creates a topology of `count` GPUs in one machine, from their display name and the target description of one.
    pub fn gpus(name: &str, figures: String, count: usize) -> AotTopology {
        AotTopology {
            topology: name.into(),
            extents: vec![1, 1, count],
            rings: vec![false; 3],
            chip_config: None,
            gpu: Some(figures),
            count: 1,
        }
    }
}

impl fmt::Display for AotTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.write_str(&self.topology),
            n => write!(f, "{n} × {}", self.topology),
        }
    }
}

/// A program and the topology to compile it for ahead of time.
#[derive(Clone, Debug)]
pub struct AotRequest {
    /// StableHLO text with a function `@main`. If it is partitioned, shapes are global (of all partitions together).
    pub program: String,
    /// Target topology.
    pub slice: AotTopology,
    /// Number of replicas, each with its own arrays.
    pub replicas: usize,
    /// Number of partitions per replica (SPMD), split according to the sharding annotations.
    pub partitions: usize,
    /// Whether to compile faster at the expense of run time; memory use differs too.
    pub quick: bool,
    /// Whether to return the optimized HLO.
    pub hlo: bool,
    /// Whether to return the executable (may be large).
    pub executable: bool,
    /// Time limit for the compilation.
    pub time_limit: Duration,
    /// Memory limit for the compilation, in bytes.
    pub memory_limit: usize,
}

impl AotRequest {
    /// Creates a request for one device of a slice, with default limits: ten minutes, 16 GiB.
    pub fn new(program: impl Into<String>, slice: AotTopology) -> AotRequest {
        AotRequest {
            program: program.into(),
            slice,
            replicas: 1,
            partitions: 1,
            quick: false,
            hlo: false,
            executable: false,
            time_limit: Duration::from_secs(600),
            memory_limit: 16 << 30,
        }
    }
}

/// Memory that a compiled program needs on each device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AotMemory {
    /// Program code.
    pub code: u64,
    /// Arguments.
    pub arguments: u64,
    /// Results.
    pub outputs: u64,
    /// Results stored in the memory of donated arguments.
    pub aliased: u64,
    /// Intermediate values.
    pub temporaries: u64,
    /// Peak memory, as reported by the compiler; 0 if not reported.
    pub peak: u64,
}

impl AotMemory {
    /// Bytes of results that need their own memory.
    pub fn results(&self) -> u64 {
        self.outputs.saturating_sub(self.aliased)
    }

    /// Bytes of device memory needed to run the program.
    pub fn need(&self) -> u64 {
        self.code + self.arguments + self.results() + self.temporaries
    }
}

/// The compiler's report on a program. Figures are per device.
#[derive(Clone, Debug, Default)]
pub struct AotReport {
    /// Version string of the compiler.
    pub compiler: String,
    /// Path of the compiler's library.
    pub library: String,
    /// Device kind: `TPU v5 lite`.
    pub device_kind: String,
    /// Number of devices in the topology.
    pub devices: usize,
    /// Device memory available to programs, if the compiler reports it.
    pub memory_limit: Option<u64>,
    /// Compile time in seconds, without loading the compiler.
    pub seconds: f64,
    /// Whether the report comes from the compilation cache.
    pub cached: bool,
    /// Peak memory of the compiler process, in bytes.
    pub compiler_memory: u64,
    /// Memory that the program needs.
    pub memory: AotMemory,
    /// The compiler's cost analysis with its own keys (`flops`, `bytes accessed`, `optimal_seconds`), uncorrected: each
    /// custom call counts −1 s in `optimal_seconds`.
    pub cost: BTreeMap<String, f64>,
    /// Serialized `HloModuleProtoWithConfig`: the optimized program with cycle estimates. Empty if not requested.
    pub hlo: Vec<u8>,
    /// Serialized executable, valid only for this compiler version and topology. Empty if not requested.
    pub executable: Vec<u8>,
}

/// An ahead-of-time compiler for devices that are not present.
pub trait AotCompiler: Send + Sync {
    /// Compiles the program and returns the compiler's report.
    fn compile_ahead(&self, request: &AotRequest) -> Result<AotReport>;
}
