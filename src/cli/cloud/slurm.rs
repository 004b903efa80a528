//! A batch script of SLURM, for a machine with GPUs.

use super::chips::Chips;
use super::file::File;
use super::job::Job;
use super::shell::array;
use systole_ir::{Error, ErrorKind, Result};

/// Processor cores for each GPU.
const CORES: usize = 8;

pub(super) fn files(job: &Job) -> Result<Vec<File>> {
    let Chips::Gpu { kind, count } = &job.chips else {
        let e =
            Error::new(ErrorKind::Config, format!("SLURM is for GPUs here, not for {}", job.chips.title()));
        return Err(e.at("--slice").hint("name GPUs, as 8*h100; TPUs go with tpu-vm and gke"));
    };
    let name = &job.name;
    let options = [
        format!("--job-name={name}"),
        "--nodes=1".into(),
        "--ntasks=1".into(),
        format!("--gres=gpu:{kind}:{count}"),
        format!("--cpus-per-task={}", CORES * count),
        format!("--time={}:00:00", job.max_hours),
        format!("--output={name}-%j.log"),
        "--open-mode=append".into(),
        "--requeue".into(),
        "--signal=TERM@120".into(),
    ];
    let options: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
    let heading =
        job.heading("A training as a batch job of SLURM: sbatch job.sh", "the cluster says what it costs");
    let text = format!(
        "#!/usr/bin/env bash\n{options}{heading}#\n# `gpu:{kind}` must be the cluster's own name of these GPUs (sinfo -o %G), and `systole` in the PATH of its machines. The folder of\n\
         # the run is {name}, beside the file that sbatch was called with.\nset -euo pipefail\n\nHOURS={}\nCOMMAND={}\n\n{}",
        job.max_hours,
        array(&job.command(job.model(), name)),
        include_str!("slurm.sh"),
    );
    Ok(vec![File::new("job.sh", "the job: sbatch job.sh", text)])
}
