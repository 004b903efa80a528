//! Time-limit guard for GKE: a pod on one of the cluster's own machines that deletes the JobSet after the maximum
//! hours.
//!
//! It works even if nobody watches the job. Node pools without pods scale down by themselves.

use serde_json::{Value, json};

/// Small image with a shell, `sleep` and `curl`.
const IMAGE: &str = "curlimages/curl:8.11.1";

/// Returns the Kubernetes objects: service account, role, role binding and the guard's job.
pub(super) fn objects(job: &str, hours: u32) -> Vec<Value> {
    let name = format!("{job}-guard");
    let metadata = json!({"name": name, "namespace": "default"});
    let rule = json!({
        "apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "resourceNames": [job], "verbs": ["delete"],
    });
    let address = format!(
        "https://kubernetes.default.svc/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{job}"
    );
    let curl = "curl -fsS --retry 10 --cacert ca.crt -H \"Authorization: Bearer $(cat token)\" -X DELETE";
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let script = format!("sleep {} && cd {account} && {curl} {address}", hours * 3600);
    let limits = json!({"cpu": "10m", "memory": "64Mi"});
    let container = json!({
        "name": "guard",
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "resources": {"requests": limits, "limits": limits},
    });
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }),
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "backoffLimit": 3,
                "ttlSecondsAfterFinished": 3600,
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": name,
                    "containers": [container],
                }},
            },
        }),
    ]
}
