//! Which process of a run a pod is: by the variables of Kubernetes's indexed jobs, of JobSet, of Kubeflow's trainers and of GKE's TPUs.
//! Nobody is asked.
//!
//! A JobSet has as many equal jobs as its replicated job has replicas, and each as many pods. Pods count job by job, and have names in
//! the cluster: `JOBSET-REPLICATEDJOB-JOB-POD.JOBSET`. JobSet itself sets no variables: a manifest takes them from its annotations, as
//! `systole cloud gke` does.

use crate::process_rank::{PORT, ProcessRank, VariableLookup};
use systole_config::LaunchConfig;
use systole_ir::{Error, ErrorKind, Result};

/// Which pod of its job this is, counted from 0.
const POD: &str = "JOB_COMPLETION_INDEX";
/// Which process of all this is: Kubeflow's trainers for JAX and PyTorch.
const PROCESS: [&str; 2] = ["PROCESS_ID", "RANK"];
/// How many processes there are.
const COUNT: [&str; 2] = ["NUM_PROCESSES", "WORLD_SIZE"];
/// Where process 0 is.
const ADDRESS: [&str; 2] = ["COORDINATOR_ADDRESS", "MASTER_ADDR"];
const ADDRESS_PORT: [&str; 2] = ["COORDINATOR_PORT", "MASTER_PORT"];
/// What a JobSet's manifest takes from its annotations: the set's name, that of the replicated job, which of its jobs this is, and how
/// many they are.
const SET: &str = "JOBSET_NAME";
const REPLICATED: &str = "REPLICATED_JOB_NAME";
const JOB: [&str; 2] = ["JOB_INDEX", "MEGASCALE_SLICE_ID"];
const JOBS: [&str; 2] = ["REPLICATED_JOB_REPLICAS", "MEGASCALE_NUM_SLICES"];
/// What GKE tells pods with TPUs: the hosts of the slice, which are the pods of a job; and where the first host of all slices is.
const HOSTS: &str = "TPU_WORKER_HOSTNAMES";
const SLICES_ADDRESS: &str = "MEGASCALE_COORDINATOR_ADDRESS";

/// The part of a pod.
///
/// # Errors
/// When a variable is missing, or is no number where it must be one.
pub(crate) fn of_pod(config: &LaunchConfig, variable: VariableLookup<'_>) -> Result<ProcessRank> {
    let pod = Pod { variable };
    pod.first_number(&[POD, PROCESS[0], PROCESS[1]])?.ok_or_else(no_pod)?;
    let hosts = pod.hosts();
    let jobs = pod.first_number(&JOBS)?;
    let of_job = hosts.as_ref().map(|all| u32::try_from(all.len()).unwrap_or(u32::MAX));
    let of_hosts = || of_job.map(|pods| pods.saturating_mul(jobs.unwrap_or(1)));
    let count = config.nproc.or(pod.first_number(&COUNT)?).or_else(of_hosts);
    let count = count.ok_or_else(|| {
        let hint = format!("--nproc N, or one of {}", COUNT.join(", "));
        missing("nothing says how many pods there are", hint)
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
    Error::new(ErrorKind::Config, what).at("--k8s").hint(hint)
}

fn no_pod() -> Error {
    let hint = format!("Kubernetes sets {POD} in pods of a job with completionMode: Indexed");
    missing("nothing says which pod of its job this is", hint)
}

/// How a manifest takes a variable from what JobSet notes of a pod.
fn annotated(variable: &str, annotation: &str) -> String {
    format!("{variable} from the field metadata.annotations['jobset.sigs.k8s.io/{annotation}']")
}

struct Pod<'a> {
    variable: VariableLookup<'a>,
}

impl Pod<'_> {
    /// The first of these variables that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| (self.variable)(name).map(|value| (*name, value)))
    }

    fn first_number(&self, names: &[&'static str]) -> Result<Option<u32>> {
        let Some((name, text)) = self.first(names) else { return Ok(None) };
        let number = text.trim().parse().map_err(|_| {
            let e = Error::new(ErrorKind::Config, format!("{name} is `{text}`, which is no number"));
            e.at("--k8s").hint("set it to a whole number from 0 up")
        })?;
        Ok(Some(number))
    }

    fn hosts(&self) -> Option<Vec<String>> {
        let list = (self.variable)(HOSTS)?;
        Some(list.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect())
    }

    /// Which process this is: as it is told, or counted job by job.
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
            missing("nothing says how many jobs the JobSet has", hint)
        })?;
        let job = job.ok_or_else(|| {
            let hint = format!("set {}", annotated(JOB[0], "job-index"));
            missing(&format!("nothing says of which of {jobs} jobs this pod is"), hint)
        })?;
        let pod = pod.ok_or_else(no_pod)?;
        let of_each = hosts.or_else(|| (jobs > 0 && count.is_multiple_of(jobs)).then(|| count / jobs));
        match of_each {
            Some(pods) if pod < pods && job < jobs && pods.checked_mul(jobs) == Some(count) => {
                Ok(job * pods + pod)
            }
            _ => {
                let what = format!("pod {pod} of job {job} is none of {count} in {jobs} equal jobs");
                let hint = format!("check {}, {} and {}", COUNT[0], JOBS[0], JOB[0]);
                Err(missing(&what, hint))
            }
        }
    }

    /// Where process 0 is, where no variable says it outright.
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
                    format!("{name} is set as in a JobSet: set {}, too", annotated(SET, "jobset-name"))
                }
                None => format!("set {} to pod 0's name, such as JOB-0.SERVICE", ADDRESS[0]),
            };
            missing("nothing says where pod 0 is", hint)
        })
    }

    /// `JOBSET-REPLICATEDJOB`: by its variable, or the pod's own name without its two numbers.
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
            missing(&format!("nothing says which job of the JobSet {set} has pod 0"), hint)
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
                ["which pod of its job this is", "JOB_COMPLETION_INDEX"],
            ),
            ("JOB_COMPLETION_INDEX=1", ["how many pods there are", "--nproc N"]),
            ("JOB_COMPLETION_INDEX=1 NUM_PROCESSES=2", ["where pod 0 is", "COORDINATOR_ADDRESS"]),
            ("JOB_COMPLETION_INDEX=one NUM_PROCESSES=2", ["JOB_COMPLETION_INDEX is `one`", "whole number"]),
            (
                &format!("{set} JOB_COMPLETION_INDEX=3 REPLICATED_JOB_NAME=slice"),
                [
                    "how many jobs the JobSet has",
                    "REPLICATED_JOB_REPLICAS from the field metadata.annotations",
                ],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=3 REPLICATED_JOB_REPLICAS=2"),
                ["which job of the JobSet my-run has pod 0", "replicatedjob-name"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=3 REPLICATED_JOB_REPLICAS=2 HOSTNAME=other-slice-1-3"),
                ["which job of the JobSet my-run has pod 0", "REPLICATED_JOB_NAME"],
            ),
            (
                &format!("{set} REPLICATED_JOB_REPLICAS=2"),
                ["which pod of its job this is", "JOB_COMPLETION_INDEX"],
            ),
            (
                "JOBSET_NAME=s NUM_PROCESSES=8 JOB_COMPLETION_INDEX=3 REPLICATED_JOB_REPLICAS=2",
                ["of which of 2 jobs this pod is", "JOB_INDEX from the field"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=4 REPLICATED_JOB_REPLICAS=2"),
                ["pod 4 of job 1 is none of 8 in 2", "NUM_PROCESSES"],
            ),
            (
                &format!("{set} JOB_COMPLETION_INDEX=1 REPLICATED_JOB_REPLICAS=3"),
                ["none of 8 in 3", "REPLICATED_JOB_REPLICAS"],
            ),
            (
                "REPLICATED_JOB_NAME=slice JOB_COMPLETION_INDEX=1 NUM_PROCESSES=2",
                ["where pod 0 is", "JOBSET_NAME from the field"],
            ),
        ] {
            let e = found(line).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(e.contains(part), "{line}: {e}"));
            assert!(e.contains("where: --k8s") && e.contains("try: "), "{e}");
        }
    }
}
