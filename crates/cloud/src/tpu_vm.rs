//! Cloud TPU with gcloud: queued-resource request, run script, delete script and the script for the machines.

use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use super::shell::{array, script, word};
use serde_json::{Value, json};
use systole_ir::{Result, err};
use systole_plan::TpuSlice;

/// Maximum wait for the queued resource; the request fails after a day.
const WAITS: &str = "86400s";

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let (slice, cloud) = job.tpu("tpu-vm")?;
    let Some(api) = cloud.api.as_deref() else {
        let e = err!(Config, "{} is not available as a TPU VM", slice.generation).at("--slice");
        return Err(e.hint_command("GKE offers these chips: use systole cloud gke"));
    };
    let bucket = match (job.spot, job.chips.machines() > 1) {
        (true, _) => Some(job.needs_bucket("machines lose their disks when they are preempted")?),
        (_, true) => Some(job.needs_bucket("all machines must see the run folder")?),
        _ => job.bucket.as_deref(),
    };
    let out = bucket.map_or_else(|| "run".into(), |_| format!("runs/{}", job.name));
    let settings = [
        ("NAME", word(&job.name)),
        ("ZONE", word(&job.region.zone)),
        ("SLICES", slice.slices.to_string()),
        ("MAX_HOURS", job.max_hours.to_string()),
        ("SPOT", if job.spot { "yes" } else { "no" }.into()),
        ("BUCKET", word(bucket.unwrap_or_default())),
        ("MODEL_FILE", job.toml().map_or_else(String::new, |_| word(job.model()))),
        ("COMMAND", array(&job.command(job.model(), &out))),
    ];
    let needs = format!(
        "#\n# Requirements: gcloud (gcloud auth login; gcloud config set project PROJECT), the API (gcloud services enable\n\
         # tpu.googleapis.com) and a quota for these chips in {}. A guard on the machine deletes it if this shell is gone.\n",
        job.region.zone
    );
    let what = "Trains on a Cloud TPU: requests the machines, copies the program, starts and watches it, deletes the machines.";
    let run = script(&(job.heading(what, &job.cost()) + &needs), &settings, include_str!("tpu_vm.sh"));
    let delete = script(
        &job.heading("Deletes the machines requested by run.sh, which cost money until then.", &job.cost()),
        &settings[..2],
        "gcloud compute tpus queued-resources delete \"$NAME\" --zone=\"$ZONE\" --force --quiet\n",
    );
    let request =
        serde_json::to_string_pretty(&request(job, slice, api, &cloud.runtime)).unwrap_or_default() + "\n";
    Ok(vec![
        GeneratedFile::new("run.sh", "requests machines, copies, starts, watches, deletes", run),
        GeneratedFile::new("delete.sh", "deletes the paid resources", delete),
        GeneratedFile::new(
            "queued-resource.json",
            "the request: projects.locations.queuedResources.create",
            request,
        ),
        GeneratedFile::new("machine.sh", "run by run.sh on each machine", include_str!("machine.sh").into()),
    ])
}

/// A `QueuedResource` of the API v2. The script replaces `PROJECT`.
fn request(job: &CloudJob, slice: &TpuSlice, api: &str, runtime: &str) -> Value {
    let mut node = json!({
        "runtimeVersion": runtime,
        // As in gcloud's own requests: the program downloads libtpu from the network.
        "networkConfig": {"network": "default", "enableExternalIps": true},
        "serviceAccount": {"scope": ["https://www.googleapis.com/auth/cloud-platform"]},
        "labels": {"made-by": "systole"},
    });
    // A custom topology has no accelerator name.
    match slice.name.contains(':') {
        true => node["acceleratorConfig"] = json!({"type": api, "topology": topology(slice)}),
        false => node["acceleratorType"] = json!(slice.name),
    }
    let mut spec = json!({"parent": format!("projects/PROJECT/locations/{}", job.region.zone)});
    match slice.slices {
        1 => spec["nodeId"] = json!(job.name),
        n => spec["multisliceParams"] = json!({"nodeCount": n, "nodeIdPrefix": job.name}),
    }
    spec["node"] = node;
    let mut request = json!({"tpu": {"nodeSpec": [spec]}, "queueingPolicy": {"validUntilDuration": WAITS}});
    if job.spot {
        request["spot"] = json!({});
    }
    request
}

/// Formats the topology: `4x4`.
pub(super) fn topology(slice: &TpuSlice) -> String {
    slice.topology.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}
