//! Ray job: a Python script that runs the program once on each machine.

use super::chips::RequestedChips;
use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use serde_json::Value;
use systole_ir::{Result, err};

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let is_shared = job.spot || job.chips.machines() > 1;
    let bucket = match is_shared {
        true => Some(job.needs_bucket("every machine that may continue the run must see its files")?),
        false => job.bucket.as_deref(),
    };
    let (slice, slices, machines, resources) = match &job.chips {
        RequestedChips::Tpu(slice, _) if slice.generation == "tpu7x" || slice.name.contains(':') => {
            return Err(err!(Config, "the Ray name of {} is unknown", slice.name)
                .at("--slice")
                .hint_command("use a slice of v2 to v6e, or systole cloud gke"));
        }
        RequestedChips::Tpu(slice, cloud) => {
            let (machines, chips) = (cloud.machines(slice.chips), cloud.chips_of_a_machine(slice.chips));
            (format!("\"{}\"", slice.name), slice.slices, machines, format!("{{\"TPU\": {chips}}}"))
        }
        RequestedChips::Gpu { count, .. } => ("None".into(), 1, 1, format!("{{\"GPU\": {count}}}")),
        RequestedChips::Cpu { .. } => {
            let e = err!(Config, "ray supports only TPUs and GPUs, not {}", job.chips.title()).at("--slice");
            return Err(e.hint_command("use systole cloud slurm for CPUs"));
        }
    };
    let words: Vec<String> = command(job).into_iter().map(|word| Value::from(word).to_string()).collect();
    let words = format!("[{}]", words.join(", "));
    let text = format!(
        "{}#\n#   ray job submit --working-dir . -- python job.py\n#\n# Ray's cluster must have the chips, and each machine the program `systole` in its PATH{}.\n\
         # See docs/guide/cloud.md for the commands.\n\n{}",
        job.heading("Ray job: runs the program once on each machine and waits for all.", &job.cost()),
        if bucket.is_some() { ", and the bucket mounted as a folder" } else { "" },
        include_str!("ray_job.py")
            .replace("@NAME@", &job.name)
            .replace("@BUCKET@", bucket.unwrap_or_default())
            .replace("@COMMAND@", &words)
            .replace("@SLICE@", &slice)
            .replace("@SLICES@", &slices.to_string())
            .replace("@MACHINES@", &machines.to_string())
            .replace("@RESOURCES@", &resources)
            .replace("@SECONDS@", &(u64::from(job.max_hours) * 3600).to_string())
            .replace("@SPOT@", if job.spot { "True" } else { "False" }),
    );
    Ok(vec![GeneratedFile::new("job.py", "the job: ray job submit --working-dir . -- python job.py", text)])
}

/// Returns the command line; `RUN` is a placeholder for the run folder.
fn command(job: &CloudJob) -> Vec<String> {
    ["systole".to_string()].into_iter().chain(job.command(job.model(), "RUN")).collect()
}
