//! A custom job of Vertex AI: the JSON of its request, and the commands around it.

use super::generated_file::GeneratedFile;
use super::image;
use super::job::CloudJob;
use super::shell::{script, word};
use super::tpu_vm::topology;
use serde_json::{Value, json};
use systole_ir::{Error, ErrorKind, Result};

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let (slice, cloud) = job.tpu("vertex")?;
    let refused =
        |what: String, at: &str, hint: &str| Err(Error::new(ErrorKind::Config, what).at(at).hint(hint));
    if !cloud.vertex {
        let what = format!("training of Vertex AI on {} is not known here", slice.generation);
        return refused(what, "--slice", "take v5e or v6e, or systole cloud tpu-vm");
    }
    if slice.slices > 1 {
        let what = "a custom job of Vertex AI has one slice".into();
        return refused(what, "--num-slices", "take one larger slice, or systole cloud gke");
    }
    if job.spot && job.chips.machines() > 1 {
        let what = format!("Vertex AI has no spot slices of several machines, as {}", slice.name);
        return refused(
            what,
            "--spot",
            "leave --spot out, take 8 chips at most, or systole cloud gke or tpu-vm",
        );
    }
    let bucket = job.needs_bucket("a container's disk goes with the job")?;
    let request =
        request(job, bucket, job.needs_image()?, &cloud.machine_type(slice.chips), &topology(slice));
    let request = serde_json::to_string_pretty(&request).unwrap_or_default() + "\n";
    let settings = [
        ("NAME", word(&job.name)),
        ("REGION", word(&job.region.region)),
        ("BUCKET", word(bucket)),
        ("MODEL_FILE", job.toml().map_or_else(String::new, |_| word(job.model()))),
    ];
    let cost = format!("{}; what Vertex AI itself adds is not in it", job.cost());
    let needs = "#\n# Needs gcloud, the API (gcloud services enable aiplatform.googleapis.com), a quota for training on these chips, and the image\n\
                 # (Dockerfile).\n";
    let what = "Sends the custom job to Vertex AI and shows what it says.";
    let run = script(&(job.heading(what, &cost) + needs), &settings, include_str!("vertex.sh"));
    let what = "Cancels the job that run.sh sent. It costs money until then, or until its time is over.";
    let cancel = "gcloud ai custom-jobs cancel \"$(<job.name)\" --region=\"$REGION\"\n";
    Ok(vec![
        GeneratedFile::new("run.sh", "sends the job and shows what it says", run),
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
                // Google ends the job then, and the run goes on from its last backup when the job is sent again.
                "timeout": format!("{}s", job.max_hours * 3600),
                "restartJobOnWorkerRestart": true,
                "strategy": if job.spot { "SPOT" } else { "STANDARD" },
            },
        },
        "labels": {"made-by": "systole"},
    })
}
