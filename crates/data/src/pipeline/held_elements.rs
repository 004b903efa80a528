//! [`HeldElements`]: stream wrapper for stages that hold elements back (shuffle buffer, unfinished buckets, windows).
//!
//! Its saved state contains no elements: it is the source's state before the oldest held element, and the indices of
//! the held ones counted from there. Restoring reads them again.

use super::cursor::ElementCursor;
use super::position::{IteratorState, foreign};
use crate::sample::Sample;
use std::collections::VecDeque;
use systole_base::{Result, ensure};

/// Minimum distance in elements between saved source states, since saving has a cost.
const APART: u64 = 64;

/// Element with its index in the stream.
pub(crate) type NumberedSample = (u64, Result<Sample>);

pub(crate) struct HeldElements {
    up: Box<dyn ElementCursor>,
    /// Index of the next element.
    seq: u64,
    anchors: VecDeque<(u64, IteratorState)>,
    /// Index before which the next source state is to be saved.
    due: u64,
    /// Number of saved states at which a cleanup is worthwhile.
    crowd: usize,
}

impl HeldElements {
    pub fn new(up: Box<dyn ElementCursor>) -> HeldElements {
        HeldElements { up, seq: 0, anchors: VecDeque::new(), due: 0, crowd: 64 }
    }

    pub fn pull(&mut self) -> Option<NumberedSample> {
        if self.seq >= self.due {
            let state = self.up.save();
            // An expensive state is saved less often.
            self.due = self.seq + (state.size() as u64).max(APART);
            self.anchors.push_back((self.seq, state));
        }
        let item = self.up.next()?;
        self.seq += 1;
        Some((self.seq - 1, item))
    }

    /// Drops saved states that are not needed if nothing before `oldest` is held; calls `oldest` only if a cleanup is
    /// due.
    pub fn forget(&mut self, oldest: impl FnOnce() -> Option<u64>) {
        if self.anchors.len() < self.crowd {
            return;
        }
        let oldest = oldest().unwrap_or(self.seq);
        let keep = self.anchors.partition_point(|(at, _)| *at <= oldest).saturating_sub(1);
        self.anchors.drain(..keep);
        self.crowd = (2 * self.anchors.len()).max(64);
    }

    /// Returns the state, with the indices of the held elements in the holder's order.
    pub fn save(&self, held: &[u64]) -> IteratorState {
        let oldest = held.iter().copied().min().unwrap_or(self.seq);
        if oldest == self.seq {
            return IteratorState::at([0]).over(self.up.save());
        }
        let at = self.anchors.partition_point(|(at, _)| *at <= oldest).saturating_sub(1);
        let Some((from, anchor)) = self.anchors.get(at) else {
            return IteratorState::at([0]).over(self.up.save());
        };
        let mut numbers = vec![self.seq - from];
        numbers.extend(held.iter().map(|seq| seq - from));
        IteratorState::at(numbers).over(anchor.clone())
    }

    /// Restores a saved position and rereads the elements that the stage held, such as a shuffle buffer, in its order.
    pub fn restore(&mut self, state: &IteratorState) -> Result<Vec<NumberedSample>> {
        self.up.restore(state.above(0)?)?;
        let (end, held) = state.numbers.split_first().ok_or_else(foreign)?;
        let mut by_number: Vec<(u64, usize)> = held.iter().enumerate().map(|(i, &seq)| (seq, i)).collect();
        by_number.sort_unstable();
        let mut items: Vec<Option<NumberedSample>> = held.iter().map(|_| None).collect();
        for (seq, i) in by_number {
            ensure!(seq >= self.seq && seq < *end, foreign());
            self.leap(seq)?;
            items[i] = Some(self.pull().ok_or_else(foreign)?);
        }
        self.leap(*end)?;
        Ok(items.into_iter().flatten().collect())
    }

    fn leap(&mut self, seq: u64) -> Result<()> {
        let distance = seq - self.seq;
        ensure!(distance == 0 || self.up.skip(distance) >= distance, foreign());
        self.seq = seq;
        Ok(())
    }
}
