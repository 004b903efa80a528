//! Arguments of `systole plan`.

use crate::models::program::DimArgs;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// Preset, TOML file, StableHLO text or bytecode, ONNX or .tflite model
    ///
    /// StableHLO text is written by JAX or by `systole show MODEL --stage stablehlo`.
    #[arg(required_unless_present = "matmul")]
    pub(super) target: Option<String>,
    /// Estimate an M×K by K×N matrix product instead of a model
    #[arg(long, value_name = "MxKxN", conflicts_with = "target")]
    pub(super) matmul: Option<String>,
    /// Set the element type of --matmul
    #[arg(long, value_name = "TYPE", default_value = "bf16", requires = "matmul")]
    pub(super) dtype: String,
    /// Compare these slices and GPUs, such as v5e-16,h100,cpu [default: small ones]
    ///
    /// Also accepts v2-8, 2*v5e-16, v5p:4x4x4 and 8*h100.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) targets: Vec<String>,
    /// Compare every named slice, every GPU and this computer
    #[arg(long, conflicts_with = "targets")]
    pub(super) all: bool,
    /// Set the global batch size over all devices [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch_size: Option<u64>,
    /// Plan for float32, mixed_bfloat16 or mixed_float16 [default: as in training]
    #[arg(long, value_name = "POLICY")]
    pub(super) precision: Option<String>,
    /// Set any TOML key, such as biggan.num_D_accumulations=8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) sets: Vec<String>,
    #[command(flatten)]
    pub(super) dims: DimArgs,
    /// Plan a run of N steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "epochs")]
    pub(super) steps: Option<u64>,
    /// Plan a run of N epochs [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) epochs: Option<u64>,
    /// Assume N training samples per epoch [default: the size of the dataset]
    ///
    /// Default for resnet50: ImageNet's 1,281,167.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "steps")]
    pub(super) samples: Option<u64>,
    /// Limit the cost of the run, in dollars
    #[arg(long, value_name = "$", value_parser = positive)]
    pub(super) budget: Option<f64>,
    /// Limit the time of the run, in hours
    #[arg(long, value_name = "H", value_parser = positive)]
    pub(super) deadline: Option<f64>,
    /// Use spot (preemptible) prices for the recommendation
    #[arg(long)]
    pub(super) spot: bool,
    /// Use this cloud region, or prefix [default: the first with a price per chip]
    #[arg(long, value_name = "R")]
    pub(super) region: Option<String>,
    /// Read chips and prices that replace or extend the built-in tables
    #[arg(long, value_name = "FILE")]
    pub(super) tables: Option<PathBuf>,
    /// Compile with Google's compiler and use its times and memory; needs libtpu
    ///
    /// Takes some seconds to a minute for each TPU generation.
    #[arg(long)]
    pub(super) compiled: bool,
    /// Shard the step over several devices [default: data_parallel]
    ///
    /// fully_sharded also shards weights and optimizer state. The default is data_parallel, estimated by a formula.
    /// With --compiled the compiler shards the step for each slice, and its own collectives are counted.
    #[arg(long, value_name = "STRATEGY", value_parser = ["data_parallel", "fully_sharded"])]
    pub(super) strategy: Option<String>,
    /// Name the mesh axes, for --compiled with --strategy [default: data=N]
    ///
    /// The default puts all devices on one axis.
    #[arg(long, value_name = "AXIS=N,…", requires = "compiled", requires = "strategy")]
    pub(super) mesh: Option<String>,
    /// Print all columns: time ranges, hosts, MFU, energy, spot prices
    #[arg(long)]
    pub(super) wide: bool,
    /// Print per layer: time, matrix unit utilization, padding and how to avoid it
    #[arg(long)]
    pub(super) layers: bool,
    /// Explain how each figure is computed
    #[arg(long)]
    pub(super) explain: bool,
    /// Assume that one host's input pipeline delivers N samples per second
    ///
    /// Measure it with `systole data bench`.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) input_rate: Option<f64>,
    /// Assume this host time to dispatch a step, in ms [default: 0.15]
    ///
    /// The default is an assumption for Systole with PJRT.
    #[arg(long, value_name = "MS", value_parser = positive)]
    pub(super) dispatch: Option<f64>,
    /// Write an HTML page with the table, the recommendation, memory and time
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
    value.ok_or_else(|| "expected a number greater than 0".into())
}
