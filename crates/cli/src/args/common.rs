//! Options that commands share.

use clap::{ArgAction, Args, ValueEnum};
use std::path::PathBuf;
use systole_ir::knobs;

/// Options of every command.
#[derive(Args)]
pub(crate) struct CommonArgs {
    /// Write JSON to standard output, and everything else to standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Worker threads; 0: one for each core. Results do not depend on it
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) threads: Option<u32>,
    /// What to run on: cpu, ref, tpu, cuda, xla (XLA on this processor), or pjrt:FILE with a PJRT plugin [default: the best that this machine has]
    #[arg(long, alias = "backend", global = true, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// An option that a PJRT plugin's devices are opened with, such as cpu_device_count=8 for xla; may be given again
    #[arg(long = "plugin-option", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) plugin_options: Vec<String>,
    /// Show no progress
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say more: devices and compile times; twice: each kernel (see the variable SYSTOLE_LOG)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Show, at the end of each program, where its time went: by layer, and the ten slowest kernels with the part of the
    /// machine's peak that they reach; or each kernel
    #[arg(long, global = true, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "layers")]
    pub(crate) profile: Option<ProfileDetail>,
    /// Draw where the time of programs went, by layer and kernel, as a flame graph; takes what `--profile=kernels` shows
    #[arg(long, global = true, value_name = "FILE.svg")]
    pub(crate) flame: Option<PathBuf>,
    /// Write a timeline of threads, steps and kernels, for ui.perfetto.dev or chrome://tracing
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Memory that the process may use, as 2000000000, 512MiB or 4GiB; programs that need more are refused before they
    /// run [default: what the machine has]
    #[arg(long, global = true, visible_alias = "max-memory", value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_limit: Option<usize>,
}

/// What `--profile` shows.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ProfileDetail {
    Layers,
    Kernels,
}

impl ProfileDetail {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ProfileDetail::Layers => "layers",
            ProfileDetail::Kernels => "kernels",
        }
    }
}

/// A number of bytes, as 512MiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    knobs::parse_bytes(text).map_err(|e| e.hint_text().map_or(e.what().to_string(), str::to_string))
}

/// An option with its value, as cpu_device_count=8.
fn key_value(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() && !text.contains('\n') => {
            Ok(text.into())
        }
        _ => Err("write KEY=VALUE, such as cpu_device_count=8".into()),
    }
}

impl CommonArgs {
    /// The options that a child process of this program must be given too.
    pub(crate) fn pass_on(&self, child: &mut std::process::Command) {
        child.args(self.threads.map(|n| format!("--threads={n}")));
        child.args(self.device.iter().map(|name| format!("--device={name}")));
        child.args(self.plugin_options.iter().map(|option| format!("--plugin-option={option}")));
        child.args(self.quiet.then_some("--quiet"));
        child.args((0..self.verbose).map(|_| "--verbose"));
        child.args(self.profile.map(|what| format!("--profile={}", what.name())));
        child.args(self.memory_limit.map(|bytes| format!("--memory-limit={bytes}")));
        if let Some(path) = &self.trace {
            child.arg("--trace").arg(path);
        }
    }
}

/// Where data sets lie; shared by commands.
#[derive(Args, Clone, Default)]
pub(crate) struct DataArgs {
    /// Folder of the data set, or its parent
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}
