//! The arguments of `systole launch`, and what they make of a launch file.

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
    /// A TOML file with these options, as `launch config` writes it; those that are given here come first
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Whose lines are shown, as 0,2, or none; the log has all, and errors are always shown [default: all]
    #[arg(long, value_name = "N,…", value_parser = shown)]
    pub(super) show: Option<ShownProcesses>,
    /// What each process runs, after `--`: train or resume, with their arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

#[derive(Subcommand)]
pub(super) enum LaunchAction {
    /// Ask five questions and write a file for `launch --config`; options answer them beforehand
    Config(ConfigArgs),
}

#[derive(Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    pub(super) how: ProcessArgs,
    /// The file to write
    #[arg(short, long, value_name = "FILE.toml", default_value = "launch.toml")]
    pub(super) out: PathBuf,
    /// Replace the file when it exists
    #[arg(long)]
    pub(super) force: bool,
}

/// How processes are started: what a launch file holds, too.
#[derive(Args, Clone)]
pub(super) struct ProcessArgs {
    /// How many processes on this machine; with --k8s: how many pods, where nothing else says it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    nproc: Option<u32>,
    /// Start the processes by ssh on the machines of this file, one a line: NAME, or NAME slots=N for N processes there
    #[arg(long, value_name = "FILE", conflicts_with = "nproc")]
    hosts: Option<PathBuf>,
    /// This is a task of SLURM, one of several that srun started: be its process of the run
    #[arg(long, conflicts_with_all = ["nproc", "hosts"])]
    slurm: bool,
    /// This is a pod of an indexed job of Kubernetes: be its process of the run
    #[arg(long, conflicts_with_all = ["hosts", "slurm"])]
    k8s: bool,
    /// This is a host of a TPU slice, of this name where it is given: be its process of the run
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["nproc", "hosts", "slurm", "k8s"])]
    pub(super) tpu: Option<String>,
    /// How many devices each process has [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    devices_per_process: Option<u32>,
    /// How often all are started again, from the last backup, where one was killed; with --elastic: for each machine [default: 0]
    #[arg(long, value_name = "K")]
    max_restarts: Option<u32>,
    /// Leave a machine out that is lost for good, and go on from the last backup with those that are left, MIN processes at least;
    /// the batch stays [default: 1]
    #[arg(long, value_name = "MIN", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    elastic: Option<u32>,
    /// Systole's plugin [default: libsystole_plugin.so beside this program]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// With --hosts: where this program lies on the machines [default: where it lies here]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The port at which process 0 listens, of processes on several machines [default: 8476; of SLURM one of the job's]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Seconds after which a process that is silent counts as lost [default: 120]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// With --hosts: a variable that processes are given beside those of `systole knobs`, with its value of here or this one; may be
    /// given again
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Write every line of every process to this file, too [default: launch.log in the folder of the run, where the command names it]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// The processes whose lines are shown.
#[derive(Clone, Debug)]
pub(super) struct ShownProcesses(pub(super) Vec<u32>);

fn shown(text: &str) -> std::result::Result<ShownProcesses, String> {
    if text == "none" {
        return Ok(ShownProcesses(Vec::new()));
    }
    let numbers = text.split(',').map(|number| number.trim().parse()).collect::<std::result::Result<_, _>>();
    numbers.map(ShownProcesses).map_err(|_| "write numbers of processes, as 0,2, or none".into())
}

impl LaunchArgs {
    /// All options, those of the file too.
    ///
    /// # Errors
    /// When the file is wrong, or nothing says where the processes are.
    pub(super) fn merged(&self) -> Result<LaunchConfig> {
        let file = self.config.as_ref().map(|path| LaunchConfig::read(path)).transpose()?;
        let config = self.how.over(file.unwrap_or_default());
        check(&config)?;
        Ok(config)
    }
}

impl ProcessArgs {
    /// The place that an option names.
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

    /// These options, and where none is given what `file` has.
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

/// What belongs together is there together.
///
/// # Errors
/// Says which option is missing or too much.
pub(super) fn check(config: &LaunchConfig) -> Result<()> {
    let wrong = |what: &str, at: &str, hint: &str| {
        Err(Error::new(ErrorKind::Config, what).at(at.to_string()).hint(hint.to_string()))
    };
    let by_itself = matches!(config.place, LaunchTarget::Slurm | LaunchTarget::K8s | LaunchTarget::Tpu);
    match config.place {
        LaunchTarget::ThisMachine if config.nproc.is_none() => wrong(
            "nothing says where the processes are, and how many",
            "launch",
            "give --nproc N for this machine, --hosts FILE, --slurm, --k8s or --tpu; or --config FILE, which `systole launch config` writes",
        ),
        LaunchTarget::Hosts if config.hosts.is_none() => {
            wrong("the file with the machines is missing", "hosts", "--hosts FILE, with one machine a line")
        }
        _ if by_itself && config.elastic.is_some() => wrong(
            "each part is started by the cluster, which alone can leave one out",
            "--elastic",
            "use it with --nproc or --hosts",
        ),
        _ => Ok(()),
    }
}
