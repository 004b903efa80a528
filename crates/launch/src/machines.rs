//! Machines of a launch: parses the hosts file and selects the machines of a round.

use std::path::Path;
use systole_config::{LaunchConfig, LaunchTarget};
use systole_ir::{Error, Result, err};
use systole_nn::did_you_mean::suggestion;

/// Maximum number of processes; more are assumed to be a mistake.
const MOST: u32 = 1024;

/// A machine that runs processes. All processes of a machine are lost together.
#[derive(Debug, PartialEq)]
pub(crate) struct LaunchMachine {
    /// Name, or `None` for this machine.
    pub(crate) name: Option<String>,
    /// Number of processes.
    pub(crate) slots: u32,
    /// How often a process of this machine was the first to die.
    pub(crate) deaths: u32,
    /// Whether the machine is dropped.
    pub(crate) is_out: bool,
}

impl LaunchMachine {
    fn new(name: Option<String>, slots: u32) -> LaunchMachine {
        LaunchMachine { name, slots, deaths: 0, is_out: false }
    }
}

/// Checks that the hosts file of a launch can be read and is valid.
///
/// # Errors
/// If the file cannot be read or has an invalid line.
pub fn check_hosts(config: &LaunchConfig) -> Result<()> {
    machines(config).map(drop)
}

/// Returns the configured machines. On this machine, each process counts as a machine.
///
/// # Errors
/// If the hosts file cannot be read or has an invalid line.
pub(crate) fn machines(config: &LaunchConfig) -> Result<Vec<LaunchMachine>> {
    match (&config.hosts, config.place) {
        (Some(path), LaunchTarget::Hosts) => {
            let text = std::fs::read_to_string(path)
                .map_err(|e| Error::io("cannot read", path, e).at("--hosts").hint("check the path"))?;
            listed(&text, path)
        }
        _ => Ok((0..config.nproc.unwrap_or(1)).map(|_| LaunchMachine::new(None, 1)).collect()),
    }
}

fn listed(text: &str, path: &Path) -> Result<Vec<LaunchMachine>> {
    let mut machines: Vec<LaunchMachine> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = || format!("{}, line {}", path.display(), index + 1);
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        // The name becomes an argument of ssh.
        if name.starts_with('-') || name.contains('=') {
            let e = err!(Config, "`{name}` is not a machine name").at(place());
            return Err(e.hint_setting("write NAME, or NAME slots=N"));
        }
        if machines.iter().any(|machine| machine.name.as_deref() == Some(name)) {
            let e = err!(Config, "{name} is listed twice").at(place());
            return Err(e.hint_setting(format!("for several processes on the machine write: {name} slots=2")));
        }
        let mut slots = 1;
        for word in words {
            slots = slots_of(word).map_err(|e| e.at(place()))?;
        }
        machines.push(LaunchMachine::new(Some(name.into()), slots));
    }
    let processes: u32 = machines.iter().map(|machine| machine.slots).sum();
    if !(1..=MOST).contains(&processes) {
        let e = err!(Config, "{} lists {processes} processes", path.display());
        return Err(e
            .at("--hosts")
            .hint_setting(format!("write one machine per line, with at most {MOST} processes in total")));
    }
    Ok(machines)
}

fn slots_of(word: &str) -> Result<u32> {
    let hint = "write NAME, or NAME slots=N";
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    if key != "slots" {
        let e = err!(Config, "unknown word `{word}`");
        return Err(e.hint_setting(if value.is_empty() { hint.into() } else { suggestion(key, &["slots"]) }));
    }
    let number = value.parse().ok().filter(|n| (1..=MOST).contains(n));
    number.ok_or_else(|| err!(Config, "expected a number of slots, got `{value}`").hint_setting(hint))
}

/// Returns the machine of each process for a round: all remaining machines, or with `batch` the most machines whose
/// devices divide the batch; the others stay in reserve. `None` if no choice of at least `least` processes divides it.
pub(crate) fn chosen(
    machines: &[LaunchMachine],
    least: u32,
    devices: u32,
    batch: Option<u64>,
) -> Option<Vec<usize>> {
    let left: Vec<usize> = (0..machines.len()).filter(|&k| !machines[k].is_out).collect();
    let processes = |n: usize| left[..n].iter().map(|&k| u64::from(machines[k].slots)).sum::<u64>();
    let fits = |n: &usize| {
        let processes = processes(*n);
        let divides = |batch: u64| batch.is_multiple_of(processes * u64::from(devices));
        processes >= u64::from(least) && batch.is_none_or(divides)
    };
    let n = (1..=left.len()).rev().find(fits)?;
    Some(left[..n].iter().flat_map(|&k| (0..machines[k].slots).map(move |_| k)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_machines_are_read_and_mistakes_are_told() {
        let read = |text: &str| listed(text, Path::new("hosts"));
        let text = "# mine\nnode1\n\n  node2 slots=3  # two sockets\nme@10.0.0.7\n";
        let found: Vec<(String, u32)> =
            read(text).unwrap().into_iter().map(|m| (m.name.unwrap_or_default(), m.slots)).collect();
        assert_eq!(found, [("node1".into(), 1), ("node2".into(), 3), ("me@10.0.0.7".into(), 1)]);
        for (text, parts) in [
            ("", ["lists 0 processes", "one machine per line"]),
            ("a\n-oProxyCommand=x", ["is not a machine name", "line 2"]),
            ("a\nb\na", ["a is listed twice", "line 3"]),
            ("a slot=2", ["unknown word `slot=2`", "slots"]),
            ("a slots=many", ["expected a number of slots, got `many`", "line 1"]),
            ("a 2", ["unknown word `2`", "NAME slots=N"]),
        ] {
            let e = read(text).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(e.contains(part), "{text}: {e}"));
        }
    }

    #[test]
    fn as_many_take_part_as_the_batch_divides_by() {
        let mut four: Vec<LaunchMachine> = (0..4).map(|_| LaunchMachine::new(None, 1)).collect();
        assert_eq!(chosen(&four, 1, 2, None), Some(vec![0, 1, 2, 3]));
        four[1].is_out = true;
        assert_eq!(chosen(&four, 1, 2, None), Some(vec![0, 2, 3]));
        assert_eq!(chosen(&four, 1, 2, Some(12)), Some(vec![0, 2, 3]));
        // Three do not divide it, two do; the third one stays in reserve.
        assert_eq!(chosen(&four, 1, 2, Some(16)), Some(vec![0, 2]));
        assert_eq!(chosen(&four, 3, 2, Some(16)), None);
        four[0].is_out = true;
        assert_eq!(chosen(&four, 1, 2, Some(16)), Some(vec![2, 3]));
        let uneven = [LaunchMachine::new(None, 2), LaunchMachine::new(None, 1)];
        assert_eq!(chosen(&uneven, 1, 1, Some(8)), Some(vec![0, 0]));
        assert_eq!(chosen(&uneven, 1, 1, Some(9)), Some(vec![0, 0, 1]));
        assert_eq!(chosen(&uneven, 1, 1, Some(7)), None);
    }
}
