//! Arguments of `systole selftest`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct SelftestArgs {
    /// Write the report to this file [default: systole-selftest-DEVICE.json]
    #[arg(long, value_name = "FILE.json")]
    pub(super) report: Option<PathBuf>,
    /// Compare N training steps with the CPU
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: u64,
    /// Set the batch size of these training steps
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch_size: u64,
    /// Give up if no check finishes for S seconds
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) time_limit: u64,
    /// Run the checks in this process (used for child processes)
    #[arg(long, hide = true)]
    pub(super) here: bool,
}
