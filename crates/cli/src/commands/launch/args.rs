//! Arguments of `systole launch`, merged with the options of a launch file.

use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use systole_config::{LaunchConfig, LaunchTarget};
use systole_ir::{Error, ErrorKind, Result};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct LaunchArgs {
    #[command(subcommand)]
    pub(super) action: Option<LaunchAction>,
    #[command(flatten)]
    pub(super) how: ProcessArgs,
    /// Read these options from a TOML file, as written by `launch config`
    ///
    /// Options on the command line take precedence.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Show the output of these processes, such as 0,2, or none [default: all]
    ///
    /// The log contains the output of all processes. Errors are always shown.
    #[arg(long, value_name = "N,…", value_parser = shown)]
    pub(super) show: Option<ShownProcesses>,
    /// Command of each process, after `--`: train or resume with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

#[derive(Subcommand)]
pub(super) enum LaunchAction {
    /// Ask five questions and write a launch file
    ///
    /// Options answer the questions in advance.
    Config(ConfigArgs),
}

#[derive(Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    pub(super) how: ProcessArgs,
    /// Write this launch file
    #[arg(short, long, value_name = "FILE.toml", default_value = "launch.toml")]
    pub(super) out: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    pub(super) force: bool,
}

/// How processes are started; also the content of a launch file.
#[derive(Args, Clone)]
pub(super) struct ProcessArgs {
    /// Start N processes on this machine
    ///
    /// With --k8s: the number of pods, if the environment does not give it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    nproc: Option<u32>,
    /// Start the processes by ssh on the machines listed in this file
    ///
    /// One machine per line: NAME, or NAME slots=N for N processes on it.
    #[arg(long, value_name = "FILE", conflicts_with = "nproc")]
    hosts: Option<PathBuf>,
    /// Join the run as one process, in a SLURM task started by srun
    #[arg(long, conflicts_with_all = ["nproc", "hosts"])]
    slurm: bool,
    /// Join the run as one process, in a pod of a Kubernetes indexed job
    #[arg(long, conflicts_with_all = ["hosts", "slurm"])]
    k8s: bool,
    /// Join the run as one process, on a host of a TPU slice, with an optional name
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["nproc", "hosts", "slurm", "k8s"])]
    pub(super) tpu: Option<String>,
    /// Give each process N devices [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    devices_per_process: Option<u32>,
    /// Restart from the last backup up to K times if a process is killed [default: 0]
    ///
    /// With --elastic: the number per machine.
    #[arg(long, value_name = "K")]
    max_restarts: Option<u32>,
    /// Drop lost machines and continue with at least MIN processes [default: 1]
    ///
    /// Training continues from the last backup with the same global batch size.
    #[arg(long, value_name = "MIN", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    elastic: Option<u32>,
    /// Connect the processes with this PJRT plugin [default: Systole's, built in]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Start this program on the machines of --hosts [default: the path here]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Let process 0 listen on this port [default: 8476; SLURM: from the job id]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Treat a process as lost after SECONDS without a message [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Pass on an environment variable with --hosts; repeatable
    ///
    /// Passed in addition to the variables of `systole knobs`, with the given value or the value in this environment.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Write all output to this log file [default: launch.log in the run folder]
    ///
    /// The default applies if the command names the run folder.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Process indices whose output is shown.
#[derive(Clone, Debug)]
pub(super) struct ShownProcesses(pub(super) Vec<u32>);

fn shown(text: &str) -> std::result::Result<ShownProcesses, String> {
    if text == "none" {
        return Ok(ShownProcesses(Vec::new()));
    }
    let numbers = text.split(',').map(|number| number.trim().parse()).collect::<std::result::Result<_, _>>();
    numbers.map(ShownProcesses).map_err(|_| "expected process indices such as 0,2, or none".into())
}

impl LaunchArgs {
    /// Merges the options with those of the launch file.
    ///
    /// # Errors
    /// If the file is invalid or no option says where the processes run.
    pub(super) fn merged(&self) -> Result<LaunchConfig> {
        let file = self.config.as_ref().map(|path| LaunchConfig::read(path)).transpose()?;
        let config = self.how.over(file.unwrap_or_default());
        check(&config)?;
        Ok(config)
    }
}

impl ProcessArgs {
    /// Returns where the processes run, if an option says so.
    pub(super) fn place(&self) -> Option<LaunchTarget> {
        let named = [
            (self.hosts.is_some(), LaunchTarget::Hosts),
            (self.slurm, LaunchTarget::Slurm),
            (self.k8s, LaunchTarget::K8s),
            (self.tpu.is_some(), LaunchTarget::Tpu),
            (self.nproc.is_some(), LaunchTarget::ThisMachine),
        ];
        named.into_iter().find_map(|(is_named, place)| is_named.then_some(place))
    }

    /// Returns these options, with missing ones taken from `file`.
    pub(super) fn over(&self, file: LaunchConfig) -> LaunchConfig {
        let env = if self.env.is_empty() { file.env } else { self.env.clone() };
        LaunchConfig {
            place: self.place().unwrap_or(file.place),
            nproc: self.nproc.or(file.nproc),
            hosts: self.hosts.clone().or(file.hosts),
            devices_per_process: self.devices_per_process.or(file.devices_per_process),
            max_restarts: self.max_restarts.or(file.max_restarts),
            elastic: self.elastic.or(file.elastic),
            plugin: self.plugin.clone().or(file.plugin),
            program: self.program.clone().or(file.program),
            port: self.port.or(file.port),
            timeout: self.timeout.or(file.timeout),
            env,
            log: self.log.clone().or(file.log),
        }
    }
}

/// Checks that the options are complete and consistent.
///
/// # Errors
/// Names the missing or conflicting option.
pub(super) fn check(config: &LaunchConfig) -> Result<()> {
    let wrong = |what: &str, at: &str, hint: &str| {
        Err(Error::new(ErrorKind::Config, what).at(at.to_string()).hint_command(hint.to_string()))
    };
    let by_itself = matches!(config.place, LaunchTarget::Slurm | LaunchTarget::K8s | LaunchTarget::Tpu);
    match config.place {
        LaunchTarget::ThisMachine if config.nproc.is_none() => wrong(
            "no option says where the processes run",
            "launch",
            "pass --nproc N for this machine, or --hosts FILE, --slurm, --k8s or --tpu; or pass --config FILE, written by `systole launch config`",
        ),
        LaunchTarget::Hosts if config.hosts.is_none() => wrong(
            "the file that lists the machines is missing",
            "hosts",
            "pass --hosts FILE with one machine per line",
        ),
        _ if by_itself && config.elastic.is_some() => wrong(
            "the cluster starts the processes, so Systole cannot drop one",
            "--elastic",
            "use --elastic with --nproc or --hosts",
        ),
        _ => Ok(()),
    }
}
