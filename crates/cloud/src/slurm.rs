//! A batch script of SLURM: a launch on each machine, for the GPUs of one or the processors of several.

use super::chips::RequestedChips;
use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use super::shell::array;
use systole_ir::{Error, ErrorKind, Result};

/// Processor cores for each GPU.
const CORES: usize = 8;
/// How often a process that was killed is started again, before the job ends.
const RESTARTS: u32 = 3;

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let (gpus, cores) = match &job.chips {
        RequestedChips::Gpu { kind, count } => (Some(format!("{kind}:{count}")), CORES * count),
        RequestedChips::Cpu { cores, .. } => (None, *cores),
        RequestedChips::Tpu(..) => {
            let what = format!("SLURM is for GPUs and processors here, not for {}", job.chips.title());
            let e = Error::new(ErrorKind::Config, what).at("--slice");
            return Err(e.hint("name GPUs, as 8*h100, or cores, as 16*cpu; TPUs go with tpu-vm and gke"));
        }
    };
    let (name, machines) = (&job.name, job.chips.machines());
    let mut options = vec![
        format!("--job-name={name}"),
        format!("--nodes={machines}"),
        format!("--ntasks={machines}"),
        "--ntasks-per-node=1".into(),
        format!("--cpus-per-task={cores}"),
    ];
    options.extend(gpus.iter().map(|gpus| format!("--gres=gpu:{gpus}")));
    options.extend([
        format!("--time={}:00:00", job.max_hours),
        format!("--output={name}-%j.log"),
        "--open-mode=append".into(),
        "--requeue".into(),
        "--signal=TERM@120".into(),
    ]);
    let options: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
    let heading =
        job.heading("A training as a batch job of SLURM: sbatch job.sh", "the cluster says what it costs");
    let settings = format!("HOURS={}\nCORES={cores}\nCOMMAND={}\n", job.max_hours, array(&command(job)));
    let text = format!(
        "#!/usr/bin/env bash\n{options}{heading}#\n{}set -euo pipefail\n\n{settings}\n{}",
        needs(job, gpus.as_deref()),
        include_str!("slurm.sh"),
    );
    Ok(vec![GeneratedFile::new("job.sh", "the job: sbatch job.sh", text)])
}

/// What each task runs: a launch, which is its process of the run.
fn command(job: &CloudJob) -> Vec<String> {
    let mut words = vec!["launch".into(), "--slurm".into(), format!("--max-restarts={RESTARTS}")];
    if job.chips.machines() > 1 {
        // The log has the lines of all.
        words.push("--show=0".into());
    }
    words.push("--".into());
    words.extend(job.command(job.model(), &job.name));
    words
}

/// What must be there, as comments.
fn needs(job: &CloudJob, gpus: Option<&str>) -> String {
    let gres = gpus.and_then(|gpus| gpus.split(':').next()).map_or_else(String::new, |kind| {
        format!("# `gpu:{kind}` must be the cluster's own name of these GPUs (sinfo -o %G).\n")
    });
    let plugin = match job.chips.machines() {
        1 => "",
        _ => ", with libsystole_plugin.so beside it, and all of them must see this folder",
    };
    format!(
        "{gres}# `systole` must be in the PATH of the cluster's machines{plugin}.\n\
         # The run is in {}, beside the file that sbatch was called with; launch-N.log there has what process N said.\n",
        job.name
    )
}
