//! Arguments of `systole selftest`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct SelftestArgs {
    /// Write the report to this file [default: systole-selftest-DEVICE.json]
    #[arg(long, value_name = "FILE.json")]
    pub(super) report: Option<PathBuf>,
    /// Test only these operations, such as scatter,dot_general [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(super) ops: Vec<String>,
    /// Compare N training steps with the CPU
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: u64,
    /// Set the batch size of these training steps
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch_size: u64,
    /// Set the sizes of the tutorial, resnet50 and gpt2-small [default: full on tpu and cuda, small elsewhere]
    #[arg(long, value_name = "SIZE")]
    pub(super) size: Option<CheckSize>,
    /// Give up if no check finishes for S seconds
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) time_limit: u64,
    /// Run the checks in this process (used for child processes)
    #[arg(long, hide = true)]
    pub(super) here: bool,
}

/// Sizes of the models of `systole selftest`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CheckSize {
    /// A few seconds on a CPU: narrow models, few steps
    Small,
    /// The presets as `systole train` runs them, and all 300 steps of the tutorial
    Full,
}

impl CheckSize {
    pub(super) fn name(self) -> &'static str {
        match self {
            CheckSize::Small => "small",
            CheckSize::Full => "full",
        }
    }
}
