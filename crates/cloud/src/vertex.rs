//! Vertex AI custom job: the JSON request and scripts to submit and cancel it.

use super::generated_file::GeneratedFile;
use super::image;
use super::job::CloudJob;
use super::shell::{script, word};
use super::tpu_vm::topology;
use serde_json::{Value, json};
use systole_ir::{Error, ErrorKind, Result};

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let (slice, cloud) = job.tpu("vertex")?;
    let refused = |what: String, at: &str, hint: &str| {
        Err(Error::new(ErrorKind::Config, what).at(at).hint_command(hint))
    };
    if !cloud.vertex {
        let what = format!("Vertex AI training on {} is not supported", slice.generation);
        return refused(what, "--slice", "use v5e or v6e, or systole cloud tpu-vm");
    }
    if slice.slices > 1 {
        let what = "a Vertex AI custom job supports one slice".into();
        return refused(what, "--num-slices", "use one larger slice, or systole cloud gke");
    }
    if job.spot && job.chips.machines() > 1 {
        let what = format!("Vertex AI has no spot slices of several machines, such as {}", slice.name);
        return refused(
            what,
            "--spot",
            "remove --spot, use at most 8 chips, or use systole cloud gke or tpu-vm",
        );
    }
    let bucket = job.needs_bucket("a container loses its disk when the job ends")?;
    let request =
        request(job, bucket, job.needs_image()?, &cloud.machine_type(slice.chips), &topology(slice));
    let request = serde_json::to_string_pretty(&request).unwrap_or_default() + "\n";
    let settings = [
        ("NAME", word(&job.name)),
        ("REGION", word(&job.region.region)),
        ("BUCKET", word(bucket)),
        ("MODEL_FILE", job.toml().map_or_else(String::new, |_| word(job.model()))),
    ];
    let cost = format!("{}; the fee of Vertex AI is not included", job.cost());
    let needs = "#\n# Requirements: gcloud, the API (gcloud services enable aiplatform.googleapis.com), a quota for training on these chips, and the\n\
                # image (Dockerfile).\n";
    let what = "Submits the custom job to Vertex AI and shows its output.";
    let run = script(&(job.heading(what, &cost) + needs), &settings, include_str!("vertex.sh"));
    let what = "Cancels the job submitted by run.sh. It costs money until then, or until its time limit.";
    let cancel = "gcloud ai custom-jobs cancel \"$(<job.name)\" --region=\"$REGION\"\n";
    Ok(vec![
        GeneratedFile::new("run.sh", "submits the job and shows its output", run),
        GeneratedFile::new(
            "delete.sh",
            "cancels the job",
            script(&job.heading(what, &cost), &settings[1..2], cancel),
        ),
        GeneratedFile::new("job.json", "the request: projects.locations.customJobs.create", request),
        image::dockerfile(),
    ])
}

/// Buckets are mounted below `/gcs` in every container.
fn request(job: &CloudJob, bucket: &str, image: &str, machine: &str, topology: &str) -> Value {
    let folder = format!("/gcs/{bucket}/{}", job.name);
    let model = match job.toml() {
        Some(_) => format!("{folder}/{}", job.model()),
        None => job.model().into(),
    };
    let machines = job.chips.machines();
    json!({
        "displayName": job.name,
        "jobSpec": {
            "workerPoolSpecs": [{
                "machineSpec": {"machineType": machine, "tpuTopology": topology},
                "replicaCount": machines.to_string(),
                "containerSpec": {
                    "imageUri": image,
                    "command": ["systole"],
                    "args": job.command(&model, &format!("{folder}/run")),
                },
            }],
            "scheduling": {
                // Google ends the job at this time limit. The run resumes from its last backup if the job is submitted
                // again.
                "timeout": format!("{}s", job.max_hours * 3600),
                "restartJobOnWorkerRestart": true,
                "strategy": if job.spot { "SPOT" } else { "STANDARD" },
            },
        },
        "labels": {"made-by": "systole"},
    })
}
