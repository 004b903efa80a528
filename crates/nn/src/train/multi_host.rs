//! Multi-host training: checks that hosts agree on the run, and coordinates when they stop and save.
//!
//! Every host runs `fit` with the same arguments, reads the same batches and gives its devices their shards. Local
//! events (a signal, a due backup) are shared, so that all hosts act after the same step.

use crate::model::Model;
use std::collections::VecDeque;
use systole_data::BatchShare;
use systole_ir::rng::fnv1a;
use systole_ir::{Literal, Result, err};
use systole_runtime::{Buffer, HostGroup};

/// Steps between sending a request and reading the combined result. Devices may lag this far behind; reading earlier
/// would wait for them.
const LATER: usize = 2;

/// Actions requested after a step.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct HostRequests {
    /// The user requested a stop.
    pub interrupts: bool,
    /// A callback ended training.
    pub ends: bool,
    /// A backup is due.
    pub saves: bool,
}

impl HostRequests {
    fn to_literal(self) -> Result<Literal> {
        Literal::from_slice([3], &[self.interrupts, self.ends, self.saves].map(i32::from))
    }

    /// Combines the requests of all hosts with logical or.
    fn any(said: &Buffer) -> Result<HostRequests> {
        let said = said.to_literal()?.to_f64s();
        let any = |k: usize| said.chunks(3).any(|row| row[k] != 0.0);
        Ok(HostRequests { interrupts: any(0), ends: any(1), saves: any(2) })
    }
}

/// Coordinates the hosts of a run of `fit`; one instance per host.
pub(crate) struct HostCoordinator {
    /// Exchanges in flight, oldest first.
    asked: VecDeque<Buffer>,
    /// Whether this host has requested a backup that is not written yet.
    wants_backup: bool,
    /// Whether any host keeps backups of the run.
    pub is_kept: bool,
}

impl HostCoordinator {
    pub(crate) fn new(is_kept: bool) -> HostCoordinator {
        HostCoordinator { asked: VecDeque::new(), wants_backup: false, is_kept }
    }

    /// Shares this host's requests after a step; returns the combined requests from some steps ago.
    pub(crate) fn after_step(&mut self, hosts: &dyn HostGroup, own: HostRequests) -> Result<HostRequests> {
        let saves = own.saves && !self.wants_backup;
        self.wants_backup |= saves;
        self.asked.push_back(hosts.share(&HostRequests { saves, ..own }.to_literal()?)?);
        if self.asked.len() <= LATER {
            return Ok(HostRequests::default());
        }
        let due =
            self.asked.pop_front().map_or(Ok(HostRequests::default()), |said| HostRequests::any(&said))?;
        self.wants_backup &= !due.saves;
        Ok(due)
    }

    /// Shares this host's requests after an epoch; returns the combined requests immediately, including those in
    /// flight.
    pub(crate) fn after_epoch(&mut self, hosts: &dyn HostGroup, own: HostRequests) -> Result<HostRequests> {
        self.asked.clear();
        let saves = own.saves || std::mem::take(&mut self.wants_backup);
        HostRequests::any(&hosts.share(&HostRequests { saves, ..own }.to_literal()?)?)
    }
}

impl Model {
    /// Returns the other processes that train this model, if it was compiled for several hosts.
    pub(crate) fn hosts(&self) -> Option<&dyn HostGroup> {
        self.compiled.as_ref()?.backend.hosts()
    }

    /// Returns this process's host index and the number of hosts: `(0, 1)` if it has all devices.
    pub fn host(&self) -> (usize, usize) {
        self.hosts().map_or((0, 1), |h| (h.index(), h.count()))
    }

    /// Whether this process shows progress and writes files: host 0, or the only one.
    pub fn leads(&self) -> bool {
        self.host().0 == 0
    }

    /// Returns the rows of each batch for this process's devices if there are several hosts: for
    /// [`Dataset::batch_share`](systole_data::Dataset::batch_share).
    pub fn share_of_batches(&self) -> Option<BatchShare> {
        let (compiled, hosts) = (self.compiled.as_ref()?, self.hosts()?);
        let devices = compiled.backend.devices().len();
        let each = devices / hosts.count();
        let own = hosts.index() * each..(hosts.index() + 1) * each;
        let (of, parts) = compiled.config.strategy.batch_parts(devices, own);
        Some(BatchShare { parts, of })
    }

    /// Checks that all hosts have equal values. `things` are names with this host's values. Every host must call this
    /// function with the same names. Does nothing with a single host.
    ///
    /// # Errors
    /// If a host has a different value; names it and the lines that differ.
    pub fn agree(&self, things: &[(&str, String)]) -> Result<()> {
        let Some(hosts) = self.hosts() else { return Ok(()) };
        let words = |text: &String| {
            let digest = fnv1a(text.as_bytes());
            [digest as i32, (digest >> 32) as i32, text.len() as i32]
        };
        let own: Vec<i32> = things.iter().flat_map(|(_, text)| words(text)).collect();
        let said = hosts.share(&Literal::from_slice([own.len()], &own)?)?.to_literal()?.to_f64s();
        let rows: Vec<&[f64]> = said.chunks(own.len()).collect();
        for (k, (what, here)) in things.iter().enumerate() {
            let at = |row: &[f64]| [row[3 * k], row[3 * k + 1], row[3 * k + 2]];
            let Some(device) = rows.iter().position(|row| at(row) != at(rows[0])) else { continue };
            let longest = rows.iter().map(|row| row[3 * k + 2] as usize).max().unwrap_or(0);
            let texts = texts(hosts, here, longest)?;
            let other = device * hosts.count() / rows.len();
            let only = |a: &str, b: &str| {
                let lines = a.lines().filter(|line| !b.lines().any(|l| l == *line));
                let lines: Vec<String> = lines.map(|line| format!("`{line}`")).collect();
                lines.join("; ").chars().take(400).collect::<String>()
            };
            let (first, second) = (&texts[0], &texts[device]);
            return Err(err!(Config, "hosts 0 and {other} differ in {what}")
                .because(format!("host 0: {}; host {other}: {}", only(first, second), only(second, first)))
                .hint("start the same command on every host, with an --out folder that all hosts share"));
        }
        Ok(())
    }

    /// Gathers a value of the state; a collective operation if it is sharded over hosts. A value in host memory is not
    /// copied.
    pub(crate) fn whole(&self, value: &Buffer) -> Result<Literal> {
        match self.hosts() {
            Some(hosts) => hosts.gather(value)?.shared_literal(),
            None => value.shared_literal(),
        }
    }

    /// Returns a digest of the weights that are still on the host; device weights came from there. Equal bits give
    /// equal digests.
    pub fn digest_of_weights(&self) -> String {
        let here = self.weights().into_iter().filter_map(|(_, value)| value.host());
        format!("{:016x}", here.fold(0, |sum: u64, value| sum.rotate_left(1) ^ fnv1a(value.bytes())))
    }
}

/// Exchanges a text of up to `longest` bytes between hosts; returns the text of each device's host.
fn texts(hosts: &dyn HostGroup, here: &str, longest: usize) -> Result<Vec<String>> {
    let mut own: Vec<i32> = here.bytes().map(i32::from).collect();
    own.resize(longest, 0);
    let said = hosts.share(&Literal::from_slice([longest], &own)?)?.to_literal()?.to_f64s();
    let text = |row: &[f64]| {
        let bytes: Vec<u8> = row.iter().map(|b| *b as u8).filter(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(said.chunks(longest).map(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates another host with given requests.
    struct Other(std::cell::RefCell<Vec<HostRequests>>);

    impl HostGroup for Other {
        fn index(&self) -> usize {
            0
        }

        fn count(&self) -> usize {
            2
        }

        fn gather(&self, array: &Buffer) -> Result<Buffer> {
            Ok(array.clone())
        }

        fn share(&self, own: &Literal) -> Result<Buffer> {
            let other = self.0.borrow_mut().remove(0).to_literal()?;
            Ok(Literal::from_slice([2, 3], &[own.to_f32s(), other.to_f32s()].concat())?.into())
        }
    }

    #[test]
    fn all_do_what_one_wants_after_the_same_step() {
        let (none, saves) =
            (HostRequests::default(), HostRequests { saves: true, ..HostRequests::default() });
        let stops = HostRequests { interrupts: true, ..HostRequests::default() };
        let other = Other(vec![none, stops, none, none, none].into());
        let mut meetings = HostCoordinator::new(true);
        let said: Vec<HostRequests> =
            [saves, saves, saves, none].map(|own| meetings.after_step(&other, own).unwrap()).into();
        // A backup is requested once until it is made; the other host's signal counts for both.
        assert_eq!(said, [none, none, saves, stops]);
        assert_eq!(meetings.after_epoch(&other, saves).unwrap(), saves);
        assert!(meetings.asked.is_empty());
    }
}
