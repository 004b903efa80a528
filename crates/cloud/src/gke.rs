//! Google Kubernetes Engine (GKE): JobSet manifest, node pool request, time-limit guard, container image and scripts.

use super::generated_file::GeneratedFile;
use super::image;
use super::job::CloudJob;
use super::shell::{script, word};
use super::time_limit;
use super::tpu_vm::topology;
use super::yaml::yaml;
use serde_json::{Value, json};
use systole_ir::{Result, err, knobs};
use systole_plan::{CloudNames, TpuSlice};

/// Termination grace period of a pod in seconds: spot, on demand. Spot machines give pods 15 of their 30 seconds.
const GRACE: (u32, u32) = (15, 60);
/// Seconds of the grace period for a step and the backup.
const SAVING: (&str, &str) = ("12", "50");
/// Number of restarts of all pods after an error; preemptions do not count.
const RESTARTS: u32 = 3;

pub(super) fn files(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let (slice, cloud) = job.tpu("gke")?;
    if cloud.node(slice.chips).label.is_empty() {
        let e = err!(Config, "GKE does not offer {}", slice.generation).at("--slice");
        return Err(e.hint_command("use a TPU VM: systole cloud tpu-vm"));
    }
    let bucket = job.needs_bucket("a pod loses its disk when it ends")?;
    let image = job.needs_image()?;
    let mut objects = Vec::new();
    if let Some(text) = job.toml() {
        objects.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": named(&job.name), "data": {job.model(): text},
        }));
    }
    objects.push(jobset(job, slice, cloud, bucket, image));
    objects.extend(time_limit::objects(&job.name, job.max_hours));
    let documents: String = objects.iter().map(|object| format!("---\n{}", yaml(object))).collect();
    let what = "A training run as a JobSet: one pod per machine; all pods restart together.";
    let pool = json!({"nodePool": pool(job, slice, cloud)});
    let pool = serde_json::to_string_pretty(&pool).unwrap_or_default() + "\n";
    Ok(vec![
        GeneratedFile::new(
            "run.sh",
            "creates node pools, starts the job, shows its output, deletes",
            run(job, slice, bucket),
        ),
        GeneratedFile::new("delete.sh", "deletes the paid resources", delete(job, slice)),
        GeneratedFile::new(
            "jobset.yaml",
            "the job and its time-limit guard",
            job.heading(what, &job.cost()) + &documents,
        ),
        GeneratedFile::new(
            "node-pool.json",
            "the request: projects.locations.clusters.nodePools.create",
            pool,
        ),
        image::dockerfile(),
    ])
}

fn named(name: &str) -> Value {
    json!({"name": name, "namespace": "default"})
}

fn jobset(job: &CloudJob, slice: &TpuSlice, cloud: &CloudNames, bucket: &str, image: &str) -> Value {
    let pods = cloud.machines(slice.chips);
    let mut metadata = named(&job.name);
    // Each slice's pods get a node pool of their own.
    metadata["annotations"] =
        json!({"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"});
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {
                "maxRestarts": RESTARTS,
                "rules": [
                    {"name": "timeIsOver", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
                    {
                        "name": "machineTaken",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    },
                ],
            },
            "replicatedJobs": [{
                "name": "slice",
                "replicas": slice.slices,
                "template": {"spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": job.max_hours * 3600,
                    "podFailurePolicy": {"rules": [
                        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    ]},
                    "template": pod(job, slice, cloud, bucket, image),
                }},
            }],
        },
    })
}

fn pod(job: &CloudJob, slice: &TpuSlice, cloud: &CloudNames, bucket: &str, image: &str) -> Value {
    let mut selector = json!({
        "cloud.google.com/gke-tpu-accelerator": cloud.node(slice.chips).label,
        "cloud.google.com/gke-tpu-topology": topology(slice),
    });
    let attributes = json!({"bucketName": bucket, "mountOptions": "implicit-dirs"});
    let mut mounts = vec![json!({"name": "runs", "mountPath": "/runs"})];
    let mut volumes = vec![
        json!({"name": "runs", "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}}),
    ];
    let mut model = job.model().to_string();
    if job.toml().is_some() {
        mounts.push(json!({"name": "config", "mountPath": "/config"}));
        volumes.push(json!({"name": "config", "configMap": {"name": job.name}}));
        model = format!("/config/{model}");
    }
    let mut command = ["systole", "launch", "--k8s", "--"].map(String::from).to_vec();
    command.extend(job.command(&model, &format!("/runs/{}", job.name)));
    let chips = json!({"google.com/tpu": cloud.chips_of_a_machine(slice.chips)});
    let container = json!({
        "name": "train",
        "image": image,
        "command": command,
        "env": variables(job, slice, cloud),
        "ports": [{"containerPort": 8471}, {"containerPort": 8081}],
        "resources": {"requests": chips, "limits": chips},
        "volumeMounts": mounts,
    });
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": if job.spot { GRACE.0 } else { GRACE.1 },
        // Service account with access to the bucket; run.sh prints the setup.
        "serviceAccountName": "systole",
        "containers": [container],
        "volumes": volumes,
    });
    if job.spot {
        selector["cloud.google.com/gke-spot"] = json!("true");
        let key = "cloud.google.com/gke-spot";
        spec["tolerations"] =
            json!([{"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"}]);
    }
    spec["nodeSelector"] = selector;
    json!({"metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}}, "spec": spec})
}

/// Environment variables for the program and libtpu. GKE sets the pod's index in its slice; `systole launch` numbers
/// the pods slice by slice.
fn variables(job: &CloudJob, slice: &TpuSlice, cloud: &CloudNames) -> Value {
    let grace = if job.spot { SAVING.0 } else { SAVING.1 };
    let noted = |what: &str| {
        let field = format!("metadata.annotations['jobset.sigs.k8s.io/{what}']");
        json!({"fieldRef": {"fieldPath": field}})
    };
    let processes = slice.slices * cloud.machines(slice.chips);
    // Created by run.sh; libtpu connects the pods without it.
    let secret = json!({"name": job.name, "key": "secret", "optional": true});
    let mut all = vec![
        json!({"name": "SYSTOLE_GRACE", "value": grace}),
        json!({"name": "NUM_PROCESSES", "value": processes.to_string()}),
        json!({"name": knobs::SECRET.name, "valueFrom": {"secretKeyRef": secret}}),
    ];
    for (name, what) in [
        ("JOBSET_NAME", "jobset-name"),
        ("REPLICATED_JOB_NAME", "replicatedjob-name"),
        ("REPLICATED_JOB_REPLICAS", "replicatedjob-replicas"),
        ("JOB_INDEX", "job-index"),
    ] {
        all.push(json!({"name": name, "valueFrom": noted(what)}));
    }
    if slice.slices > 1 {
        let first = format!("{0}-slice-0-0.{0}", job.name);
        all.push(json!({"name": "MEGASCALE_COORDINATOR_ADDRESS", "value": first}));
        all.push(json!({"name": "MEGASCALE_PORT", "value": "8081"}));
        all.push(json!({"name": "MEGASCALE_NUM_SLICES", "value": slice.slices.to_string()}));
        all.push(json!({"name": "MEGASCALE_SLICE_ID", "valueFrom": noted("job-index")}));
    }
    all.into()
}

/// Autoscaled node pool: all machines of a slice are created when pods request them, and deleted when no pod does.
fn pool(job: &CloudJob, slice: &TpuSlice, cloud: &CloudNames) -> Value {
    let machines = cloud.machines(slice.chips);
    let mut config = json!({
        "machineType": cloud.machine_type(slice.chips),
        "oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "workloadMetadataConfig": {"mode": "GKE_METADATA"},
        "resourceLabels": {"made-by": "systole"},
    });
    if job.spot {
        config["spot"] = json!(true);
    }
    let mut pool = json!({
        "name": format!("{}-0", job.name),
        "initialNodeCount": 0,
        "locations": [job.region.zone],
        "autoscaling": {"enabled": true, "totalMinNodeCount": 0, "totalMaxNodeCount": machines, "locationPolicy": "ANY"},
        "config": config,
    });
    if machines > 1 {
        pool["placementPolicy"] = json!({"type": "COMPACT", "tpuTopology": topology(slice)});
    }
    pool
}

fn settings(job: &CloudJob, slice: &TpuSlice, bucket: &str) -> [(&'static str, String); 4] {
    [
        ("NAME", word(&job.name)),
        ("SLICES", slice.slices.to_string()),
        ("MAX_HOURS", job.max_hours.to_string()),
        ("BUCKET", word(bucket)),
    ]
}

fn run(job: &CloudJob, slice: &TpuSlice, bucket: &str) -> String {
    let needs = format!(
        "#\n# Requirements: gcloud, kubectl, a GKE cluster in the region {} with the add-on GcsFuseCsiDriver and workload identity, JobSet in the\n\
         # cluster, a quota for these chips, and the image (Dockerfile). See docs/guide/cloud.md for the commands.\n#\n#   CLUSTER=NAME ./run.sh\n",
        job.region.region
    );
    let what =
        "Creates the node pools, starts the job, shows its output, and deletes both when it has ended.";
    script(&(job.heading(what, &job.cost()) + &needs), &settings(job, slice, bucket), include_str!("gke.sh"))
}

fn delete(job: &CloudJob, slice: &TpuSlice) -> String {
    let what = "Deletes the job and its node pools, which cost money until then.";
    script(&job.heading(what, &job.cost()), &settings(job, slice, "")[..2], include_str!("gke_delete.sh"))
}
