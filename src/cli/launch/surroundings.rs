//! Which process of a run this is, as SLURM, Kubernetes or a TPU's host say it. Their variables are read, and nobody is asked but the
//! metadata server of a TPU VM.

use crate::config::{LaunchConfig, LaunchPlace};
use systole_ir::{Error, ErrorKind, Result};
use systole_pjrt::TpuClusterResolver;

/// Where process 0 listens, if nothing says it: JAX's port.
pub(super) const PORT: u16 = 8476;
/// The ports of jobs of SLURM: the last of all, one of them by the job's number, as JAX has it.
const JOB_PORTS: u32 = 4096;

/// Variables that say which process a pod is: of indexed jobs, then of Kubeflow's trainers for JAX and PyTorch.
const INDEX: [&str; 3] = ["JOB_COMPLETION_INDEX", "PROCESS_ID", "RANK"];
const COUNT: [&str; 2] = ["NUM_PROCESSES", "WORLD_SIZE"];
const ADDRESS: [&str; 2] = ["COORDINATOR_ADDRESS", "MASTER_ADDR"];
const ADDRESS_PORT: [&str; 2] = ["COORDINATOR_PORT", "MASTER_PORT"];

/// One of a run's processes.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    pub(super) index: u32,
    pub(super) count: u32,
    /// Where process 0 listens, `HOST:PORT`.
    pub(super) address: String,
}

/// The part of this process; `None` where a launch starts all of them. `tpu`: the name of the TPU that it shall be.
///
/// # Errors
/// When the surroundings are others, or do not say enough.
pub(super) fn part(config: &LaunchConfig, tpu: &str) -> Result<Option<Part>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let part = match config.place {
        LaunchPlace::ThisMachine | LaunchPlace::Hosts => return Ok(None),
        LaunchPlace::Slurm => of_slurm(config, &variable)?,
        LaunchPlace::K8s => of_pod(config, &variable)?,
        LaunchPlace::Tpu => of_tpu(config, tpu)?,
    };
    if part.index >= part.count {
        let what = format!("this is process {} of {}", part.index, part.count);
        let e = Error::new(ErrorKind::Config, what).because("processes count from 0");
        return Err(e.at(format!("--{}", config.place.name())).hint("check the variables that say so"));
    }
    Ok(Some(part))
}

type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

fn of_slurm(config: &LaunchConfig, variable: Variables<'_>) -> Result<Part> {
    let wrong = |what: &str| {
        let e = Error::new(ErrorKind::Config, what).at("--slurm");
        e.hint("start it by srun, once for each process: srun systole launch --slurm -- train …")
    };
    let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
    let number = |names: &[&str]| first(names).and_then(|text| text.trim().parse::<u32>().ok());
    let job = number(&["SLURM_JOB_ID", "SLURM_JOBID"]).ok_or_else(|| wrong("this is no job of SLURM"))?;
    if first(&["SLURM_STEP_ID", "SLURM_STEPID"]).is_none() {
        return Err(wrong("this is the script of a job, and none of its tasks"));
    }
    let tasks = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let (Some(index), Some(count)) = (number(&["SLURM_PROCID"]), number(&tasks)) else {
        return Err(wrong("SLURM does not say which task this is, and of how many"));
    };
    let nodes = first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]);
    let node = nodes.as_deref().map(first_node).filter(|node| !node.is_empty());
    let node = node.ok_or_else(|| wrong("SLURM does not say on which machines the job is"))?;
    let port = config.port.map_or(65_536 - JOB_PORTS + job % JOB_PORTS, u32::from);
    Ok(Part { index, count, address: format!("{node}:{port}") })
}

/// The first of SLURM's list of machines: `gpu07` of `gpu[07-09,12],x`.
fn first_node(list: &str) -> String {
    let (mut node, mut rest) = (String::new(), list.trim());
    loop {
        let Some(at) = rest.find(['[', ',']) else { return node + rest };
        node += &rest[..at];
        if rest[at..].starts_with(',') {
            return node;
        }
        let (numbers, after) = rest[at + 1..].split_once(']').unwrap_or((&rest[at + 1..], ""));
        node += numbers.split([',', '-']).next().unwrap_or_default();
        rest = after;
    }
}

fn of_pod(config: &LaunchConfig, variable: Variables<'_>) -> Result<Part> {
    let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
    let number = |names: &[&str]| first(names).and_then(|text| text.trim().parse::<u32>().ok());
    let missing = |what: &str, hint: String| Error::new(ErrorKind::Config, what).at("--k8s").hint(hint);
    let of_tpu = variable("TPU_WORKER_HOSTNAMES").map(|list| {
        list.split(',').map(|name| name.trim().to_string()).filter(|n| !n.is_empty()).collect::<Vec<_>>()
    });
    let index = number(&INDEX).ok_or_else(|| {
        let hint = "Kubernetes sets JOB_COMPLETION_INDEX in pods of a job with completionMode: Indexed";
        missing("nothing says which pod of the job this is", hint.into())
    })?;
    let count = config.nproc.or(number(&COUNT)).or(of_tpu.as_ref().map(|all| all.len() as u32));
    let count = count.ok_or_else(|| {
        missing("nothing says how many pods there are", format!("--nproc N, or one of {}", COUNT.join(", ")))
    })?;
    let port = config.port.map(u32::from).or(number(&ADDRESS_PORT)).unwrap_or(PORT.into());
    let given = first(&ADDRESS).or_else(|| of_tpu.and_then(|all| all.into_iter().next()));
    let given = match given {
        None if count == 1 => Some("127.0.0.1".into()),
        given => given,
    };
    let address = given.ok_or_else(|| {
        let hint = format!("set {} to pod 0's name, such as JOB-0.SERVICE", ADDRESS[0]);
        missing("nothing says where pod 0 is", hint)
    })?;
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(Part { index, count, address: if has_port { address } else { format!("{address}:{port}") } })
}

fn of_tpu(config: &LaunchConfig, name: &str) -> Result<Part> {
    let tpu = TpuClusterResolver::new("").map_err(|e| e.at("--tpu"))?;
    if let Some(other) = tpu.name.as_ref().filter(|other| !name.is_empty() && *other != name) {
        let what = format!("this is a host of the TPU {other}, not of {name}");
        return Err(Error::new(ErrorKind::Config, what).at("--tpu").hint("run it on the hosts of that one"));
    }
    let Some(first) = tpu.hosts.first() else {
        let e = Error::new(ErrorKind::Config, "nothing says which hosts the TPU has").at("--tpu");
        let why = tpu.explain().join("; ");
        return Err(e.because(why).hint("run it on the TPU VM itself, on each host of the slice"));
    };
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Part {
        index: number(tpu.slice_id * tpu.hosts.len() + tpu.worker),
        count: number(tpu.slices * tpu.hosts.len()),
        address: format!("{first}:{}", config.port.unwrap_or(PORT)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    fn part_of(index: u32, count: u32, address: &str) -> Part {
        Part { index, count, address: address.into() }
    }

    #[test]
    fn the_first_machine_of_a_list_is_found() {
        for (list, first) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("gpu[07-09,12],x", "gpu07"),
            ("a-b[3,5]", "a-b3"),
            ("rack[1-2]n[03-04],z", "rack1n03"),
            ("", ""),
        ] {
            assert_eq!(first_node(list), first, "{list}");
        }
    }

    #[test]
    fn a_task_of_slurm_is_known_by_its_variables() {
        let all = [
            ("SLURM_JOB_ID", "70001"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_NODELIST", "n[1-4]"),
        ];
        let config = LaunchConfig::default();
        assert_eq!(of_slurm(&config, &set(&all)).unwrap(), part_of(2, 4, "n1:61809"));
        let other = LaunchConfig { port: Some(9000), ..config.clone() };
        assert_eq!(of_slurm(&other, &set(&all)).unwrap().address, "n1:9000");
        let told = |all: &[(&str, &str)]| of_slurm(&config, &set(all)).unwrap_err().to_string();
        assert!(told(&all[1..]).contains("this is no job of SLURM"));
        assert!(told(&[all[0], all[2]]).contains("none of its tasks"));
        assert!(told(&all[..2]).contains("which task this is"));
        assert!(told(&all[..4]).contains("on which machines"));
    }

    #[test]
    fn a_pod_is_known_by_its_variables() {
        let config = LaunchConfig::default();
        let found = |all: &[(&str, &str)]| of_pod(&config, &set(all));
        let indexed =
            [("JOB_COMPLETION_INDEX", "1"), ("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "job-0.svc")];
        assert_eq!(found(&indexed).unwrap(), part_of(1, 2, "job-0.svc:8476"));
        let torch = [("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "m"), ("MASTER_PORT", "23456")];
        assert_eq!(found(&torch).unwrap(), part_of(0, 3, "m:23456"));
        let with_port = [indexed[0], indexed[1], ("COORDINATOR_ADDRESS", "m:77")];
        assert_eq!(found(&with_port).unwrap().address, "m:77");
        let of_tpu = [("JOB_COMPLETION_INDEX", "1"), ("TPU_WORKER_HOSTNAMES", "a.s, b.s")];
        assert_eq!(found(&of_tpu).unwrap(), part_of(1, 2, "a.s:8476"));
        for (all, part) in [
            (&indexed[1..], "which pod of the job this is"),
            (&indexed[..1], "how many pods there are"),
            (&indexed[..2], "where pod 0 is"),
        ] {
            assert!(found(all).unwrap_err().to_string().contains(part), "{part}");
        }
    }
}
