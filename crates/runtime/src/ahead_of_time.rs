//! Compiling for machines that are not here: what is asked, and what the compiler says of the program.
//!
//! No compiler is here: `systole-pjrt` offers Google's, through the same trait that estimators use.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use systole_ir::Result;

/// Chips or GPUs wired together, as a compiler is told of them. Names of what clouds sell are in `systole-plan`.
#[derive(Clone, Debug, PartialEq)]
pub struct AotTopology {
    /// The compiler's name of one slice: `v5e:4x4`. GPUs have the name that the reader knows: `h100`.
    pub topology: String,
    /// Chips along each axis; for GPUs one slice, one host, and the GPUs of the host.
    pub extents: Vec<usize>,
    /// Which axes are closed to rings.
    pub rings: Vec<bool>,
    /// The compiler's configuration of a chip, where it is not its default.
    pub chip_config: Option<String>,
    /// The figures of one GPU, for a compiler that knows none by name: the text of a
    /// `stream_executor.GpuTargetConfigProto`.
    pub gpu: Option<String>,
    /// How many equal slices the data centre's network joins.
    pub count: usize,
}

impl AotTopology {
    /// One slice of a generation without rings: `AheadSlice::new("v5e", &[2, 2])`.
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

    /// So many GPUs of one machine, by the name that messages have and the figures of one.
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

/// A program to compile for a slice.
#[derive(Clone, Debug)]
pub struct AotRequest {
    /// StableHLO text with a function `@main`. Where it is partitioned, shapes are those of all partitions together.
    pub program: String,
    /// What it is to run on.
    pub slice: AotTopology,
    /// Copies of the program that run beside each other, each with arrays of its own.
    pub replicas: usize,
    /// Parts that the compiler splits the arrays of a copy into, as annotations in the program say.
    pub partitions: usize,
    /// Whether the compiler is to take a fraction of its time, for a program that is slower and needs other memory.
    pub quick: bool,
    /// Whether to bring the compiler's own program along.
    pub hlo: bool,
    /// Whether to bring the executable along; may be large.
    pub executable: bool,
    /// The time that compiling may take.
    pub time_limit: Duration,
    /// The memory in bytes that compiling may take.
    pub memory_limit: usize,
}

impl AotRequest {
    /// A program for one device of a slice, with the usual limits: ten minutes, 16 GiB.
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

/// What each device needs for a program, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AotMemory {
    /// The program itself.
    pub code: u64,
    /// Arguments.
    pub arguments: u64,
    /// Results.
    pub outputs: u64,
    /// Results that lie in the memory of donated arguments.
    pub aliased: u64,
    /// Intermediate values.
    pub temporaries: u64,
    /// The most that is in use at once, as the compiler counts it; 0 where it does not say.
    pub peak: u64,
}

impl AotMemory {
    /// Results that need memory of their own.
    pub fn results(&self) -> u64 {
        self.outputs.saturating_sub(self.aliased)
    }

    /// What must fit into the device's memory.
    pub fn need(&self) -> u64 {
        self.code + self.arguments + self.results() + self.temporaries
    }
}

/// What a compiler says of a program. Figures are those of one device.
#[derive(Clone, Debug, Default)]
pub struct AotReport {
    /// The compiler's own words for its version.
    pub compiler: String,
    /// The file it was loaded from.
    pub library: String,
    /// The kind of device: `TPU v5 lite`.
    pub device_kind: String,
    /// Devices of the slice.
    pub devices: usize,
    /// Memory of a device that programs may use, where the compiler says so.
    pub memory_limit: Option<u64>,
    /// Seconds that compiling took, without loading the compiler.
    pub seconds: f64,
    /// Whether the answer is of an earlier time, and nothing was compiled now.
    pub cached: bool,
    /// The most memory in bytes that the compiler's process used.
    pub compiler_memory: u64,
    /// What the program needs.
    pub memory: AotMemory,
    /// The compiler's cost analysis by its own names (`flops`, `bytes accessed`, `optimal_seconds`), uncorrected:
    /// each custom call counts −1 s in `optimal_seconds`.
    pub cost: BTreeMap<String, f64>,
    /// A serialized `HloModuleProtoWithConfig`: the optimized program, with cycle estimates. Empty if not asked for.
    pub hlo: Vec<u8>,
    /// The serialized executable, for this very compiler and slice. Empty if not asked for.
    pub executable: Vec<u8>,
}

/// A compiler for machines that are not here.
pub trait AotCompiler: Send + Sync {
    /// Compiles, or says why that failed.
    fn compile_ahead(&self, request: &AotRequest) -> Result<AotReport>;
}
