//! The arguments of `systole tpu1`.

use crate::args::common::DataArgs;
use clap::Args;
use std::path::PathBuf;
use systole_ir::Result;
use systole_tpu1::Tpu1Chip;

#[derive(Args)]
pub(crate) struct Tpu1Args {
    /// A trained model (quantised on its training data), an int8 .tflite file with one scale for each tensor, or an application
    /// of the paper with reconstructed shapes: tpu1/mlp0, mlp1, lstm0, lstm1, cnn0, cnn1
    #[arg(value_name = "MODEL", required_unless_present_any = ["compare", "animate", "explain"])]
    pub(super) model: Option<String>,
    /// Samples of a batch [default: the paper's; of a model of yours 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) batch: Option<u32>,
    #[command(flatten)]
    pub(super) data: DataArgs,
    /// The data set that a model is quantised on [default: the one it was trained on]
    #[arg(long, value_name = "NAME")]
    pub(super) dataset: Option<String>,
    /// Training samples whose values tell the ranges [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) samples: Option<u64>,
    /// Bandwidth of the weight memory [default: 32.2, which is the 30 GiB/s of the paper's Figure 1]
    #[arg(long, value_name = "GB/s")]
    pub(super) memory_bandwidth: Option<f64>,
    /// Cycles [default: 700]
    #[arg(long, value_name = "MHz")]
    pub(super) clock: Option<f64>,
    /// Rows and columns of the array of multipliers [default: 256]
    #[arg(long, value_name = "N")]
    pub(super) matrix: Option<usize>,
    /// Rows of accumulators [default: 4096]
    #[arg(long, value_name = "N")]
    pub(super) accumulators: Option<usize>,
    /// Walk one tile through the array
    #[arg(long)]
    pub(super) explain: bool,
    /// Draw the wavefront in the array as a moving picture: .svg, or .html with the walk beside it
    #[arg(long, value_name = "FILE")]
    pub(super) animate: Option<PathBuf>,
    /// Set the chip beside the CPU and the GPU of its day, as the paper did
    #[arg(long)]
    pub(super) compare: bool,
    /// Run a model's program, instruction by instruction, on a drawn sample, and compare with the int8 interpreter
    #[arg(long, requires = "model")]
    pub(super) check: bool,
    /// List the instructions
    #[arg(long)]
    pub(super) instructions: bool,
}

impl Tpu1Args {
    /// The first TPU, with what the options change.
    pub(super) fn chip(&self) -> Result<Tpu1Chip> {
        let v1 = Tpu1Chip::v1();
        let chip = Tpu1Chip {
            matrix: self.matrix.unwrap_or(v1.matrix),
            accumulators: self.accumulators.unwrap_or(v1.accumulators),
            clock_mhz: self.clock.unwrap_or(v1.clock_mhz),
            bandwidth_gb: self.memory_bandwidth.unwrap_or(v1.bandwidth_gb),
            ..v1
        };
        chip.check()?;
        Ok(chip)
    }
}
