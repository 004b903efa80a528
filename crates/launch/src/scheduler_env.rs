//! Process rank from the environment of SLURM or a TPU VM.
//!
//! Only environment variables are read, and the metadata server on a TPU VM. Kubernetes is in `pods.rs`.

use crate::pods::of_pod;
use crate::process_rank::{PORT, ProcessRank, VariableLookup};
use systole_config::{LaunchConfig, LaunchTarget};
use systole_ir::{Error, ErrorKind, Result, err};
use systole_pjrt::TpuClusterResolver;

/// Coordinator ports of SLURM jobs: the last 4096 ports, selected by job id as in JAX.
const JOB_PORTS: u32 = 4096;

/// Returns the rank of this process; `None` if the launcher starts all processes. `tpu`: expected name of the TPU.
///
/// # Errors
/// If the process runs in another environment, or variables are missing.
pub(crate) fn part(config: &LaunchConfig, tpu: &str) -> Result<Option<ProcessRank>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let part = match config.place {
        LaunchTarget::ThisMachine | LaunchTarget::Hosts => return Ok(None),
        LaunchTarget::Slurm => of_slurm(config, &variable)?,
        LaunchTarget::K8s => of_pod(config, &variable)?,
        LaunchTarget::Tpu => of_tpu(config, tpu)?,
    };
    if part.index >= part.count {
        let e = err!(
            Config,
            "the index of this process is {}, but there are {} processes",
            part.index,
            part.count
        )
        .because("indices start at 0");
        return Err(e
            .at(format!("--{}", config.place.name()))
            .hint("check the environment variables of the scheduler"));
    }
    Ok(Some(part))
}

fn of_slurm(config: &LaunchConfig, variable: VariableLookup<'_>) -> Result<ProcessRank> {
    let wrong = |what: &str| {
        let e = Error::new(ErrorKind::Config, what).at("--slurm");
        e.hint("start one launcher per process with srun: srun systole launch --slurm -- train …")
    };
    let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
    let number = |names: &[&str]| first(names).and_then(|text| text.trim().parse::<u32>().ok());
    let job = number(&["SLURM_JOB_ID", "SLURM_JOBID"]).ok_or_else(|| wrong("this is not a SLURM job"))?;
    if first(&["SLURM_STEP_ID", "SLURM_STEPID"]).is_none() {
        return Err(wrong("this is the batch script of a SLURM job, not one of its tasks"));
    }
    let tasks = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
    let (Some(index), Some(count)) = (number(&["SLURM_PROCID"]), number(&tasks)) else {
        return Err(wrong("SLURM did not set the task index and the number of tasks"));
    };
    let nodes = first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]);
    let node = nodes.as_deref().map(first_node).filter(|node| !node.is_empty());
    let node = node.ok_or_else(|| wrong("SLURM did not set the list of machines"))?;
    let port = config.port.map_or(65_536 - JOB_PORTS + job % JOB_PORTS, u32::from);
    Ok(ProcessRank { index, count, address: format!("{node}:{port}") })
}

/// Returns the first machine of a SLURM node list: `gpu07` of `gpu[07-09,12],x`.
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

fn of_tpu(config: &LaunchConfig, name: &str) -> Result<ProcessRank> {
    let tpu = TpuClusterResolver::new("").map_err(|e| e.at("--tpu"))?;
    if let Some(other) = tpu.name.as_ref().filter(|other| !name.is_empty() && *other != name) {
        return Err(err!(Config, "this is a host of the TPU {other}, not of {name}")
            .at("--tpu")
            .hint("run the command on the hosts of the TPU with this name"));
    }
    let Some(first) = tpu.hosts.first() else {
        let e = err!(Config, "the hosts of the TPU are unknown").at("--tpu");
        let why = tpu.explain().join("; ");
        return Err(e.because(why).hint("run the command on each host of the slice, on the TPU VM itself"));
    };
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(ProcessRank {
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

    fn part_of(index: u32, count: u32, address: &str) -> ProcessRank {
        ProcessRank { index, count, address: address.into() }
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
        assert!(told(&all[1..]).contains("SLURM"));
        assert!(told(&[all[0], all[2]]).contains("not one of its tasks"));
        assert!(told(&all[..2]).contains("the task index"));
        assert!(told(&all[..4]).contains("the list of machines"));
    }
}
