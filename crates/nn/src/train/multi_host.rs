//! Several hosts that train one model: what they must have in common, and when they stop and save.
//!
//! Every host runs `fit` with the same arguments, reads the same batches and gives its devices their parts. What one of them
//! finds out by itself (a signal, the time for a backup) it tells the others, and all do the same after the same step.

use crate::model::Model;
use std::collections::VecDeque;
use systole_data::BatchShare;
use systole_ir::rng::fnv1a;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_runtime::{Buffer, HostGroup};

/// An answer is read so many steps after it was asked for: devices may be that far behind, and reading it earlier would
/// wait for them.
const LATER: usize = 2;

/// What is to happen after a step.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct HostRequests {
    /// The user asked to stop.
    pub interrupts: bool,
    /// A callback ended training.
    pub ends: bool,
    /// The run is to be saved.
    pub saves: bool,
}

impl HostRequests {
    fn to_literal(self) -> Result<Literal> {
        Literal::from_slice([3], &[self.interrupts, self.ends, self.saves].map(i32::from))
    }

    /// What any host wants.
    fn any(said: &Buffer) -> Result<HostRequests> {
        let said = said.to_literal()?.to_f64s();
        let any = |k: usize| said.chunks(3).any(|row| row[k] != 0.0);
        Ok(HostRequests { interrupts: any(0), ends: any(1), saves: any(2) })
    }
}

/// The hosts of a run of `fit`, on one of them.
pub(crate) struct HostCoordinator {
    /// Answers that are on their way, the oldest first.
    asked: VecDeque<Buffer>,
    /// Whether this host has asked for a backup that was not taken yet.
    wants_backup: bool,
    /// Whether the run is kept in a folder, by whichever host.
    pub is_kept: bool,
}

impl HostCoordinator {
    pub(crate) fn new(is_kept: bool) -> HostCoordinator {
        HostCoordinator { asked: VecDeque::new(), wants_backup: false, is_kept }
    }

    /// After each step: what the hosts wanted some steps ago.
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

    /// After an epoch: what the hosts want now, answers that are on their way included.
    pub(crate) fn after_epoch(&mut self, hosts: &dyn HostGroup, own: HostRequests) -> Result<HostRequests> {
        self.asked.clear();
        let saves = own.saves || std::mem::take(&mut self.wants_backup);
        HostRequests::any(&hosts.share(&HostRequests { saves, ..own }.to_literal()?)?)
    }
}

impl Model {
    /// The other processes that train this model, where it was compiled for devices of several hosts.
    pub(crate) fn hosts(&self) -> Option<&dyn HostGroup> {
        self.compiled.as_ref()?.backend.hosts()
    }

    /// Which host of how many this process is: `(0, 1)` where it has all devices.
    pub fn host(&self) -> (usize, usize) {
        self.hosts().map_or((0, 1), |h| (h.index(), h.count()))
    }

    /// Whether this process shows progress and writes files: it is host 0, or the only one.
    pub fn leads(&self) -> bool {
        self.host().0 == 0
    }

    /// The rows of each batch that this process's devices take, where other hosts take the others: for
    /// [`Dataset::batch_share`](systole_data::Dataset::batch_share).
    pub fn share_of_batches(&self) -> Option<BatchShare> {
        let (compiled, hosts) = (self.compiled.as_ref()?, self.hosts()?);
        let devices = compiled.backend.devices().len();
        let each = devices / hosts.count();
        let own = hosts.index() * each..(hosts.index() + 1) * each;
        let (of, parts) = compiled.config.strategy.batch_parts(devices, own);
        Some(BatchShare { parts, of })
    }

    /// Makes sure that all hosts have the same: names of things, and what each is here. Every host must ask it, of the same
    /// things. Where this is the only one there is nothing to do.
    ///
    /// # Errors
    /// When a host has another; says which, and the lines in which they differ.
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
                let lines =
                    a.lines().filter(|line| !b.lines().any(|l| l == *line)).collect::<Vec<_>>().join("; ");
                lines.chars().take(400).collect::<String>()
            };
            let (first, second) = (&texts[0], &texts[device]);
            return Err(Error::new(ErrorKind::Config, format!("hosts 0 and {other} differ in {what}"))
                .because(format!("host 0: {}; host {other}: {}", only(first, second), only(second, first)))
                .hint("start the same command on every host, with a folder for --out that all of them see"));
        }
        Ok(())
    }

    /// A value of the state, whole; a meeting of all hosts where it is split over them.
    pub(crate) fn whole(&self, value: &Buffer) -> Result<Literal> {
        match self.hosts() {
            Some(hosts) => hosts.gather(value)?.to_literal(),
            None => value.to_literal(),
        }
    }

    /// A digest of the weights that are still on the host; those on devices have come from there. The same for the same bits.
    pub fn digest_of_weights(&self) -> String {
        let here = self.weights().into_iter().filter_map(|(_, value)| value.host());
        format!("{:016x}", here.fold(0, |sum: u64, value| sum.rotate_left(1) ^ fnv1a(value.bytes())))
    }
}

/// What each device's host has as a text, of which the longest has so many bytes.
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

    /// Answers as another host would have made them with this one's.
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
        // A backup is asked for once, until it is taken; the other host's signal counts for both.
        assert_eq!(said, [none, none, saves, stops]);
        assert_eq!(meetings.after_epoch(&other, saves).unwrap(), saves);
        assert!(meetings.asked.is_empty());
    }
}
