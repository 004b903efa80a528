//! Process rank of a Kubernetes pod, from the environment variables of indexed jobs, JobSet, Kubeflow trainers and GKE
//! TPUs.
//!
//! Only the environment is read; no server is queried.
//!
//! A JobSet has as many equal jobs as its replicated job has replicas, each with the same number of pods. Pods are
//! numbered job by job and have the cluster names `JOBSET-REPLICATEDJOB-JOB-POD.JOBSET`. JobSet itself sets no
//! variables; a manifest copies them from its annotations, as `systole cloud gke` does.

use crate::process_rank::{PORT, ProcessRank, VariableLookup};
use systole_config::LaunchConfig;
use systole_ir::{Error, ErrorKind, Result, err};

/// Index of the pod in its job, from 0.
const POD: &str = "JOB_COMPLETION_INDEX";
/// Index of the process among all, set by Kubeflow's trainers for JAX and PyTorch.
const PROCESS: [&str; 2] = ["PROCESS_ID", "RANK"];
/// Number of processes.
const COUNT: [&str; 2] = ["NUM_PROCESSES", "WORLD_SIZE"];
/// Address of process 0.
const ADDRESS: [&str; 2] = ["COORDINATOR_ADDRESS", "MASTER_ADDR"];
const ADDRESS_PORT: [&str; 2] = ["COORDINATOR_PORT", "MASTER_PORT"];
/// Variables that a JobSet manifest copies from annotations: name of the set, name of the replicated job, index of the
/// job, number of jobs.
const SET: &str = "JOBSET_NAME";
const REPLICATED: &str = "REPLICATED_JOB_NAME";
const JOB: [&str; 2] = ["JOB_INDEX", "MEGASCALE_SLICE_ID"];
const JOBS: [&str; 2] = ["REPLICATED_JOB_REPLICAS", "MEGASCALE_NUM_SLICES"];
/// Variables that GKE sets in pods with TPUs: the hosts of the slice (the pods of a job), and the first host of all
/// slices.
const HOSTS: &str = "TPU_WORKER_HOSTNAMES";
const SLICES_ADDRESS: &str = "MEGASCALE_COORDINATOR_ADDRESS";

/// Returns the rank of a pod.
///
/// # Errors
/// If a variable is missing or is not a number.
pub(crate) fn of_pod(config: &LaunchConfig, variable: VariableLookup<'_>) -> Result<ProcessRank> {
    let pod = Pod { variable };
    pod.first_number(&[POD, PROCESS[0], PROCESS[1]])?.ok_or_else(no_pod)?;
    let hosts = pod.hosts();
    let jobs = pod.first_number(&JOBS)?;
    let of_job = hosts.as_ref().map(|all| u32::try_from(all.len()).unwrap_or(u32::MAX));
    let of_hosts = || of_job.map(|pods| pods.saturating_mul(jobs.unwrap_or(1)));
    let count = config.nproc.or(pod.first_number(&COUNT)?).or_else(of_hosts);
    let count = count.ok_or_else(|| {
        let hint = format!("pass --nproc N, or set one of {}", COUNT.join(", "));
        missing("the number of pods is unknown", hint)
    })?;
    let index = pod.index(count, jobs, of_job)?;
    let port = config.port.map(u32::from).or(pod.first_number(&ADDRESS_PORT)?).unwrap_or(PORT.into());
    let address = match pod.first(&ADDRESS).map(|(_, address)| address) {
        Some(address) => address,
        None => pod.found_address(count, jobs.unwrap_or(1), hosts)?,
    };
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(ProcessRank { index, count, address: if has_port { address } else { format!("{address}:{port}") } })
}

fn missing(what: &str, hint: String) -> Error {
    Error::new(ErrorKind::Config, what).at("--k8s").hint_command(hint)
}

fn no_pod() -> Error {
    let hint = format!("use a job with completionMode: Indexed, in whose pods Kubernetes sets {POD}");
    missing("the index of this pod in its job is unknown", hint)
}

/// Describes how a manifest sets a variable from a JobSet annotation.
fn annotated(variable: &str, annotation: &str) -> String {
    format!("{variable} from the field metadata.annotations['jobset.sigs.k8s.io/{annotation}']")
}

struct Pod<'a> {
    variable: VariableLookup<'a>,
}

impl Pod<'_> {
    /// Returns the first of these variables that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| (self.variable)(name).map(|value| (*name, value)))
    }

    fn first_number(&self, names: &[&'static str]) -> Result<Option<u32>> {
        let Some((name, text)) = self.first(names) else { return Ok(None) };
        let number = text.trim().parse().map_err(|_| {
            let e = err!(Config, "{name}: expected a number, got `{text}`");
            e.at("--k8s").hint_setting(format!("set {name} to an integer of at least 0"))
        })?;
        Ok(Some(number))
    }

    fn hosts(&self) -> Option<Vec<String>> {
        let list = (self.variable)(HOSTS)?;
        Some(list.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect())
    }

    /// Returns the index of this process, from its variable or counted job by job.
    fn index(&self, count: u32, jobs: Option<u32>, hosts: Option<u32>) -> Result<u32> {
        let (pod, process) = (self.first_number(&[POD])?, self.first_number(&PROCESS)?);
        let job = self.first_number(&JOB)?;
        if jobs.unwrap_or(1) == 1 && job.unwrap_or(0) == 0 {
            return pod.or(process).ok_or_else(no_pod);
        }
        if let Some(process) = process {
            return Ok(process);
        }
        let jobs = jobs.ok_or_else(|| {
            let hint = format!("set {}", annotated(JOBS[0], "replicatedjob-replicas"));
            missing("the number of jobs in the JobSet is unknown", hint)
        })?;
        let job = job.ok_or_else(|| {
            let hint = format!("set {}", annotated(JOB[0], "job-index"));
            missing(&format!("the job of this pod is unknown: the JobSet has {jobs} jobs"), hint)
        })?;
        let pod = pod.ok_or_else(no_pod)?;
        let of_each = hosts.or_else(|| (jobs > 0 && count.is_multiple_of(jobs)).then(|| count / jobs));
        match of_each {
            Some(pods) if pod < pods && job < jobs && pods.checked_mul(jobs) == Some(count) => {
                Ok(job * pods + pod)
            }
            _ => {
                let what = format!("pod {pod} of job {job} is not one of {count} pods in {jobs} equal jobs");
                let hint = format!("check {}, {} and {}", COUNT[0], JOBS[0], JOB[0]);
                Err(missing(&what, hint))
            }
        }
    }

    /// Determines the address of process 0 if no variable contains it.
    fn found_address(&self, count: u32, jobs: u32, hosts: Option<Vec<String>>) -> Result<String> {
        if count == 1 {
            return Ok("127.0.0.1".into());
        }
        if let Some(set) = (self.variable)(SET) {
            return Ok(format!("{}-0-0.{set}", self.replicated(&set)?));
        }
        let of_slices = || (self.variable)(SLICES_ADDRESS).map(|address| host_of(&address).to_string());
        let first = hosts.and_then(|all| all.into_iter().next()).filter(|_| jobs <= 1);
        first.or_else(of_slices).ok_or_else(|| {
            let hint = match self.first(&[REPLICATED, JOB[0]]) {
                Some((name, _)) => {
                    format!("{name} is set as in a JobSet: also set {}", annotated(SET, "jobset-name"))
                }
                None => format!("set {} to the name of pod 0, such as JOB-0.SERVICE", ADDRESS[0]),
            };
            missing("the address of pod 0 is unknown", hint)
        })
    }

    /// Returns `JOBSET-REPLICATEDJOB`, from its variable or from the pod's own name without the two numbers.
    fn replicated(&self, set: &str) -> Result<String> {
        if let Some(name) = (self.variable)(REPLICATED) {
            return Ok(format!("{set}-{name}"));
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let own = (self.variable)("HOSTNAME").and_then(|name| {
            let (rest, pod) = name.split('.').next()?.rsplit_once('-')?;
            let (stem, job) = rest.rsplit_once('-')?;
            let fits = is_number(pod) && is_number(job) && stem.starts_with(&format!("{set}-"));
            fits.then(|| stem.to_string())
        });
        own.ok_or_else(|| {
            let hint = format!("set {}", annotated(REPLICATED, "replicatedjob-name"));
            missing(&format!("the replicated job of JobSet {set} is unknown"), hint)
        })
    }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables as a test writes them: `NAME=value NAME=value`.
    fn found(line: &str) -> Result<(u32, u32, String)> {
        found_by(&LaunchConfig::default(), line)
    }

    fn found_by(config: &LaunchConfig, line: &str) -> Result<(u32, u32, String)> {
        let all: Vec<(&str, &str)> =
            line.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
        let set = |name: &str| all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        of_pod(config, &set).map(|part| (part.index, part.count, part.address))
    }

    fn is(line: &str, index: u32, count: u32, address: &str) {
        assert_eq!(found(line).unwrap(), (index, count, address.into()), "{line}");
    }

    #[test]
    fn a_pod_of_an_indexed_job_or_a_trainer_is_known_by_its_variables() {
        let job = "JOB_COMPLETION_INDEX=1 NUM_PROCESSES=2";
        is(&format!("{job} COORDINATOR_ADDRESS=job-0.svc"), 1, 2, "job-0.svc:8476");
        is(&format!("{job} COORDINATOR_ADDRESS=m:77"), 1, 2, "m:77");
        is("RANK=0 WORLD_SIZE=3 MASTER_ADDR=m MASTER_PORT=23456", 0, 3, "m:23456");
        is("JOB_COMPLETION_INDEX=1 TPU_WORKER_HOSTNAMES=a.s,b.s", 1, 2, "a.s:8476");
        is("JOB_COMPLETION_INDEX=0 NUM_PROCESSES=1", 0, 1, "127.0.0.1:8476");
        let config = LaunchConfig { nproc: Some(4), port: Some(9), ..LaunchConfig::default() };
        let of_four = found_by(&config, "JOB_COMPLETION_INDEX=3 MASTER_ADDR=m MASTER_PORT=23456").unwrap();
        assert_eq!(of_four, (3, 4, "m:9".into()));
    }

    #[test]
    fn pods_of_a_jobset_count_job_by_job_and_find_the_first_by_its_name() {
        let set = "JOBSET_NAME=my-run REPLICATED_JOB_NAME=slice NUM_PROCESSES=8";
        let two = "REPLICATED_JOB_REPLICAS=2";
        is(&format!("{set} {two} JOB_INDEX=0 JOB_COMPLETION_INDEX=3"), 3, 8, "my-run-slice-0-0.my-run:8476");
        is(&format!("{set} {two} JOB_INDEX=1 JOB_COMPLETION_INDEX=3"), 7, 8, "my-run-slice-0-0.my-run:8476");
        // One job, however much is said of it.
        is(&format!("{set} JOB_INDEX=0 JOB_COMPLETION_INDEX=5"), 5, 8, "my-run-slice-0-0.my-run:8476");
        is(&format!("{set} JOB_COMPLETION_INDEX=5"), 5, 8, "my-run-slice-0-0.my-run:8476");
        // The pod's own name in the place of the replicated job's.
        let named = "JOBSET_NAME=my-run HOSTNAME=my-run-some-workers-1-3 NUM_PROCESSES=8";
        is(
            &format!("{named} {two} JOB_INDEX=1 JOB_COMPLETION_INDEX=3"),
            7,
            8,
            "my-run-some-workers-0-0.my-run:8476",
        );
        // What is told outright comes first.
        is(
            &format!("{set} {two} JOB_INDEX=1 JOB_COMPLETION_INDEX=0 PROCESS_ID=6 COORDINATOR_ADDRESS=x:1"),
            6,
            8,
            "x:1",
        );
    }

    #[test]
    fn pods_of_slices_are_counted_by_what_gke_tells_them() {
        let slices = "MEGASCALE_NUM_SLICES=2 MEGASCALE_COORDINATOR_ADDRESS=m-slice-0-0.m:8081 JOB_INDEX=1 JOB_COMPLETION_INDEX=1";
        // The first host of its own slice is not process 0.
        is(&format!("{slices} TPU_WORKER_HOSTNAMES=m-slice-1-0.m,m-slice-1-1.m"), 3, 4, "m-slice-0-0.m:8476");
        is(&format!("{slices} NUM_PROCESSES=4"), 3, 4, "m-slice-0-0.m:8476");
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_told() {
        let set = "JOBSET_NAME=my-run NUM_PROCESSES=8 JOB_INDEX=1";
        for (line, parts) in [
            (
                "NUM_PROCESSES=2 COORDINATOR_ADDRESS=m",
                ["the index of this pod in its job", "JOB_COMPLETION_INDEX"],
            ),
            ("JOB_COMPLETION_INDEX=1", ["the number of pods", "--nproc N"]),
            ("JOB_COMPLETION_INDEX=1 NUM_PROCESSES=2", ["the address of pod 0", "COORDINATOR_ADDRESS"]),
            (
                "JOB_COMPLETION_INDEX=one NUM_PROCESSES=2",
                ["JOB_COMPLETION_INDEX: expected a number, got `one`", "integer"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=3 REPLICATED_JOB_NAME=slice"),
                [
                    "the number of jobs in the JobSet",
                    "REPLICATED_JOB_REPLICAS from the field metadata.annotations",
                ],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=3 REPLICATED_JOB_REPLICAS=2"),
                ["the replicated job of JobSet my-run", "replicatedjob-name"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=3 REPLICATED_JOB_REPLICAS=2 HOSTNAME=other-slice-1-3"),
                ["the replicated job of JobSet my-run", "REPLICATED_JOB_NAME"],
            ),
            (
                &format!("{set} REPLICATED_JOB_REPLICAS=2"),
                ["the index of this pod in its job", "JOB_COMPLETION_INDEX"],
            ),
            (
                "JOBSET_NAME=s NUM_PROCESSES=8 JOB_COMPLETION_INDEX=3 REPLICATED_JOB_REPLICAS=2",
                ["the JobSet has 2 jobs", "JOB_INDEX from the field"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=4 REPLICATED_JOB_REPLICAS=2"),
                ["pod 4 of job 1 is not one of 8 pods in 2", "NUM_PROCESSES"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=1 REPLICATED_JOB_REPLICAS=3"),
                ["not one of 8 pods in 3", "REPLICATED_JOB_REPLICAS"],
            ),
            (
                "REPLICATED_JOB_NAME=slice JOB_COMPLETION_INDEX=1 NUM_PROCESSES=2",
                ["the address of pod 0", "JOBSET_NAME from the field"],
            ),
        ] {
            let e = found(line).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(e.contains(part), "{line}: {e}"));
            assert!(e.contains("where: --k8s") && e.contains("try: "), "{e}");
        }
    }
}
