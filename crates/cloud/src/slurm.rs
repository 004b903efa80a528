//! SLURM batch script: one launcher per machine, for the GPUs of one machine or the CPUs of several.

use super::chips::RequestedChips;
use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use super::shell::array;
use systole_ir::{Result, err};

/// CPU cores per GPU.
const CORES: usize = 8;
/// Number of restarts of a killed process before the job ends.
const RESTARTS: u32 = 3;

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let (gpus, cores) = match &job.chips {
        RequestedChips::Gpu { kind, count } => (Some(format!("{kind}:{count}")), CORES * count),
        RequestedChips::Cpu { cores, .. } => (None, *cores),
        RequestedChips::Tpu(..) => {
            let e =
                err!(Config, "slurm supports only GPUs and CPUs, not {}", job.chips.title()).at("--slice");
            return Err(e.hint_command("name GPUs as 8*h100, or cores as 16*cpu; for TPUs use tpu-vm or gke"));
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
        job.heading("A training run as a SLURM batch job: sbatch job.sh", "the cost depends on the cluster");
    let settings = format!("HOURS={}\nCORES={cores}\nCOMMAND={}\n", job.max_hours, array(&command(job)));
    let text = format!(
        "#!/usr/bin/env bash\n{options}{heading}#\n{}set -euo pipefail\n\n{settings}\n{}",
        needs(job, gpus.as_deref()),
        include_str!("slurm.sh"),
    );
    Ok(vec![GeneratedFile::new("job.sh", "the job: sbatch job.sh", text)])
}

/// Command of each SLURM task: a launcher that runs one process.
fn command(job: &CloudJob) -> Vec<String> {
    let mut words = vec!["launch".into(), "--slurm".into(), format!("--max-restarts={RESTARTS}")];
    if job.chips.machines() > 1 {
        // The log contains the lines of all processes.
        words.push("--show=0".into());
    }
    words.push("--".into());
    words.extend(job.command(job.model(), &job.name));
    words
}

/// Requirements, as comments.
fn needs(job: &CloudJob, gpus: Option<&str>) -> String {
    let gres = gpus.and_then(|gpus| gpus.split(':').next()).map_or_else(String::new, |kind| {
        format!("# `gpu:{kind}` must be the cluster's name for these GPUs (sinfo -o %G).\n")
    });
    let plugin = match job.chips.machines() {
        1 => "",
        _ => ", and all machines must see this folder",
    };
    format!(
        "{gres}# `systole` must be in the PATH of the cluster's machines{plugin}.\n\
         # The run is in {}, next to this file; launch-N.log there contains the output of process N.\n",
        job.name
    )
}
