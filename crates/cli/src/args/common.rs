//! Command-line options shared by all commands.

use crate::args::exit_status::{CommandError, CommandResult};
use clap::{ArgAction, Args, ValueEnum};
use std::path::PathBuf;
use systole_config::RunConfig;
use systole_ir::{err, knobs};

/// Options of every command.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct CommonArgs {
    /// Write JSON to standard output, and everything else to standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Use N worker threads; 0 uses one per core [default: SYSTOLE_THREADS, or 0]
    ///
    /// The results do not depend on it.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) threads: Option<u32>,
    /// Run on cpu, ref, tpu, cuda, xla, pjrt or pjrt:FILE [default: the best device]
    ///
    /// `xla` is XLA on this computer's CPU; `pjrt` is Systole's own plugin, `pjrt:FILE` another one.
    #[arg(long, alias = "backend", global = true, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Pass an option to the PJRT plugin, such as cpu_device_count=8; repeatable
    #[arg(long = "plugin-option", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) plugin_options: Vec<String>,
    /// Hide progress output
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print devices and compile times; -vv also prints each kernel
    ///
    /// See the variable SYSTOLE_LOG.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Print a time profile of each program, by layer or by kernel
    ///
    /// The layer profile includes the ten slowest kernels and the fraction of the machine's peak that they reach.
    #[arg(long, global = true, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "layers")]
    pub(crate) profile: Option<ProfileDetail>,
    /// Write a flame graph of program time by layer and kernel
    ///
    /// Draws the data that `--profile=kernels` prints.
    #[arg(long, global = true, value_name = "FILE.svg")]
    pub(crate) flame: Option<PathBuf>,
    /// Write a timeline of threads, steps and kernels (ui.perfetto.dev)
    ///
    /// chrome://tracing reads the file as well.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Limit the process's memory, such as to 512MiB [default: the machine's memory]
    ///
    /// Accepts 2000000000, 512MiB or 4GiB. Programs that need more are rejected before they run.
    #[arg(long, global = true, visible_alias = "max-memory", value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_limit: Option<usize>,
    /// End as on SIGTERM when standard input closes, because the launcher has ended
    #[cfg(feature = "launch")]
    #[arg(long = systole_launch::END_WITH_STDIN, global = true, hide = true)]
    pub(crate) end_with_stdin: bool,
}

/// Level of detail of `--profile`.
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

/// Parses a number of bytes, such as `512MiB`.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    knobs::parse_bytes(text).map_err(|e| e.hint_text().map_or(e.what().to_string(), str::to_string))
}

/// Checks a `KEY=VALUE` option, such as `cpu_device_count=8`.
fn key_value(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() && !text.contains('\n') => {
            Ok(text.into())
        }
        _ => Err("write KEY=VALUE, such as cpu_device_count=8".into()),
    }
}

impl CommonArgs {
    /// Passes the shared options on to a child process of this program.
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

/// Label column of a table; shared by commands.
#[derive(Args, Clone, Default)]
pub(crate) struct LabelArgs {
    /// Predict this table column [default: label, labels, y, target, class or cls]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) label: Option<String>,
}

impl LabelArgs {
    /// Key of the label column in configurations.
    pub(crate) const KEY: &str = "data.records.label";

    /// Returns the option as the user wrote it, and its value.
    pub(crate) fn setting(&self) -> Option<(String, &str)> {
        self.label.as_deref().map(|label| (format!("--label {label}"), label))
    }

    /// Rejects the option for data other than tables and records.
    pub(crate) fn check(&self, config: &RunConfig) -> CommandResult<()> {
        let dataset = &config.data.dataset;
        let Some((flag, _)) = self.setting().filter(|_| dataset != "records") else { return Ok(()) };
        let e = err!(Config, "the data `{dataset}` has no columns").at(flag);
        Err(CommandError::usage(
            e.hint_command("remove --label, or name a table: systole train TABLE.csv --label COLUMN"),
        ))
    }
}

/// Dataset location; shared by commands.
#[derive(Args, Clone, Default)]
pub(crate) struct DataArgs {
    /// Read this dataset folder or its parent folder, record file or text file
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}
