//! The arguments of `systole selftest`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct SelftestArgs {
    /// The report [default: systole-selftest-DEVICE.json]
    #[arg(long, value_name = "FILE.json")]
    pub(super) report: Option<PathBuf>,
    /// Steps of the tutorial's training that are compared with the CPU's
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: u64,
    /// Samples in a step of that training
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) batch_size: u64,
    /// Gives up when nothing has come to an end for so many seconds
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) time_limit: u64,
    /// Do the work in this process
    #[arg(long, hide = true)]
    pub(super) here: bool,
}
