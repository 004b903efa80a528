//! Arguments of `systole tpu1`.

use crate::args::common::DataArgs;
use clap::Args;
use std::path::PathBuf;
use systole_ir::Result;
use systole_tpu1::Tpu1Chip;

#[derive(Args)]
pub(crate) struct Tpu1Args {
    /// Trained model, per-tensor int8 .tflite file, or tpu1/mlp0 … tpu1/cnn1
    ///
    /// A trained model is quantized with its training data. The applications of the TPU paper, with reconstructed
    /// shapes, are tpu1/mlp0, mlp1, lstm0, lstm1, cnn0 and cnn1.
    #[arg(value_name = "MODEL", required_unless_present_any = ["compare", "animate", "explain", "paper"])]
    pub(super) model: Option<String>,
    /// Set the batch size [default: as in the paper; 64 for your own model]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) batch: Option<u32>,
    #[command(flatten)]
    pub(super) data: DataArgs,
    /// Calibrate a trained model on this dataset [default: the training dataset]
    #[arg(long, value_name = "NAME")]
    pub(super) dataset: Option<String>,
    /// Calibrate with N training samples [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) samples: Option<u64>,
    /// Set the weight memory bandwidth [default: 32.2, the paper's 30 GiB/s]
    #[arg(long, value_name = "GB/s")]
    pub(super) memory_bandwidth: Option<f64>,
    /// Set the clock frequency [default: 700]
    #[arg(long, value_name = "MHz")]
    pub(super) clock: Option<f64>,
    /// Set the rows and columns of the systolic array [default: 256]
    #[arg(long, value_name = "N")]
    pub(super) matrix: Option<usize>,
    /// Set the number of accumulator rows [default: 4096]
    #[arg(long, value_name = "N")]
    pub(super) accumulators: Option<usize>,
    /// Explain how one tile moves through the array
    #[arg(long)]
    pub(super) explain: bool,
    /// Write an animation of the wavefront in the array: .svg, or .html with the text
    #[arg(long, value_name = "FILE")]
    pub(super) animate: Option<PathBuf>,
    /// Compare the chip with the CPU and GPU of its time, as in the paper
    #[arg(long)]
    pub(super) compare: bool,
    /// Compare the simulator with the paper's Table 3 and Figure 11, with the error of each value
    #[arg(long)]
    pub(super) paper: bool,
    /// Simulate all instructions on a random sample and compare with the interpreter
    #[arg(long, requires = "model")]
    pub(super) check: bool,
    /// List the instructions of the program
    #[arg(long)]
    pub(super) instructions: bool,
}

impl Tpu1Args {
    /// Returns the first TPU with the options applied.
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
