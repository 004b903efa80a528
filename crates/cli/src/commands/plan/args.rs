//! The arguments of `systole plan`.

use crate::models::program::DimArgs;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// A preset, a TOML file, or a program: StableHLO text (from JAX or `systole show MODEL --stage stablehlo`) or bytecode, or an
    /// ONNX model
    #[arg(required_unless_present = "matmul")]
    pub(super) target: Option<String>,
    /// Instead of a model: a product of an M×K with a K×N matrix
    #[arg(long, value_name = "MxKxN", conflicts_with = "target")]
    pub(super) matmul: Option<String>,
    /// Element type of --matmul
    #[arg(long, value_name = "TYPE", default_value = "bf16", requires = "matmul")]
    pub(super) dtype: String,
    /// Slices and GPUs, as v2-8,v5e-16,2*v5e-16,v5p:4x4x4,h100,8*h100,cpu [default: a choice of small ones]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) targets: Vec<String>,
    /// Every slice that has a name, every GPU, and this computer
    #[arg(long, conflicts_with = "targets")]
    pub(super) all: bool,
    /// Samples in a step of all devices together [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch_size: Option<u64>,
    /// float32, mixed_bfloat16 or mixed_float16 [default: as in training]
    #[arg(long, value_name = "POLICY")]
    pub(super) precision: Option<String>,
    /// Set any key of the TOML: biggan.num_D_accumulations=8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) sets: Vec<String>,
    #[command(flatten)]
    pub(super) dims: DimArgs,
    /// Steps of the run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "epochs")]
    pub(super) steps: Option<u64>,
    /// Epochs of the run [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) epochs: Option<u64>,
    /// Training samples of an epoch [default: as many as the data set has; resnet50: ImageNet's 1,281,167]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "steps")]
    pub(super) samples: Option<u64>,
    /// Dollars that the run may cost
    #[arg(long, value_name = "$", value_parser = positive)]
    pub(super) budget: Option<f64>,
    /// Hours that the run may take
    #[arg(long, value_name = "H", value_parser = positive)]
    pub(super) deadline: Option<f64>,
    /// Advise by spot prices: capacity that may be taken back at any time
    #[arg(long)]
    pub(super) spot: bool,
    /// The provider's region, or its beginning [default: the first of each chip's prices]
    #[arg(long, value_name = "R")]
    pub(super) region: Option<String>,
    /// A TOML file with chips and prices that replace or extend the built-in ones
    #[arg(long, value_name = "FILE")]
    pub(super) tables: Option<PathBuf>,
    /// Let Google's compiler compile the step for each TPU generation, and take times and memory from its program: some
    /// seconds to a minute for each. Needs libtpu
    #[arg(long)]
    pub(super) compiled: bool,
    /// How a step is split over the devices: data_parallel (each has all weights) or fully_sharded (each keeps a part of
    /// weights and optimizer state) [default: data_parallel, by a formula]. With --compiled the compiler splits it, for
    /// each slice, and its own collectives count
    #[arg(long, value_name = "STRATEGY", value_parser = ["data_parallel", "fully_sharded"])]
    pub(super) strategy: Option<String>,
    /// The devices as a box with named axes, for --compiled with --strategy [default: data=N, all of them]
    #[arg(long, value_name = "AXIS=N,…", requires = "compiled", requires = "strategy")]
    pub(super) mesh: Option<String>,
    /// All columns: ranges of times, hosts, MFU, energy, spot prices; lines as long as they are
    #[arg(long)]
    pub(super) wide: bool,
    /// Each layer: time, use of the matrix units, padding and what would remove it
    #[arg(long)]
    pub(super) layers: bool,
    /// How each figure came about
    #[arg(long)]
    pub(super) explain: bool,
    /// Samples a second that the input pipeline of one host makes, where you know it: `systole data bench` tells
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) input_rate: Option<f64>,
    /// Milliseconds in which a host starts a step [default: 0.15, an assumption for Systole through PJRT]
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub(super) dispatch: Option<f64>,
    /// Write a page with the table, what each machine's memory and time go to, the advice and the sources
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl PlanArgs {
    pub(super) fn is_fully_sharded(&self) -> bool {
        self.strategy.as_deref() == Some("fully_sharded")
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|x| *x > 0.0 && x.is_finite());
    value.ok_or_else(|| "must be a number above 0".into())
}
