//! [`HeldElements`]: a stream of which a stage keeps elements back (a shuffle buffer, unfinished buckets, windows), and which
//! can say where it stands without saving an element: the state of the source before the oldest element that is held,
//! and the numbers of the held ones counted from there. They are read again when the state is restored.

use super::cursor::ElementCursor;
use super::position::{IteratorState, foreign};
use crate::sample::Sample;
use std::collections::VecDeque;
use systole_base::Result;

/// States of the source are remembered at least this many elements apart, since taking one costs time.
const APART: u64 = 64;

/// An element with its number in the stream.
pub(crate) type NumberedSample = (u64, Result<Sample>);

pub(crate) struct HeldElements {
    up: Box<dyn ElementCursor>,
    /// The number of the next element.
    seq: u64,
    anchors: VecDeque<(u64, IteratorState)>,
    /// The element before which the next state is to be remembered.
    due: u64,
    /// Anchors at which it is worth looking for ones that can be forgotten.
    crowd: usize,
}

impl HeldElements {
    pub fn new(up: Box<dyn ElementCursor>) -> HeldElements {
        HeldElements { up, seq: 0, anchors: VecDeque::new(), due: 0, crowd: 64 }
    }

    pub fn pull(&mut self) -> Option<NumberedSample> {
        if self.seq >= self.due {
            let state = self.up.save();
            // A state that is expensive to take is taken less often.
            self.due = self.seq + (state.size() as u64).max(APART);
            self.anchors.push_back((self.seq, state));
        }
        let item = self.up.next()?;
        self.seq += 1;
        Some((self.seq - 1, item))
    }

    /// Forgets states that are not needed when nothing before `oldest` is held; asks only when it is worth it.
    pub fn forget(&mut self, oldest: impl FnOnce() -> Option<u64>) {
        if self.anchors.len() < self.crowd {
            return;
        }
        let oldest = oldest().unwrap_or(self.seq);
        let keep = self.anchors.partition_point(|(at, _)| *at <= oldest).saturating_sub(1);
        self.anchors.drain(..keep);
        self.crowd = (2 * self.anchors.len()).max(64);
    }

    /// The state, with the numbers of the elements that are held, in the holder's order.
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

    /// Goes to a state and reads what was held there again, in the holder's order.
    pub fn restore(&mut self, state: &IteratorState) -> Result<Vec<NumberedSample>> {
        self.up.restore(state.above(0)?)?;
        let (end, held) = state.numbers.split_first().ok_or_else(foreign)?;
        let mut by_number: Vec<(u64, usize)> = held.iter().enumerate().map(|(i, &seq)| (seq, i)).collect();
        by_number.sort_unstable();
        let mut items: Vec<Option<NumberedSample>> = held.iter().map(|_| None).collect();
        for (seq, i) in by_number {
            if seq < self.seq || seq >= *end {
                return Err(foreign());
            }
            self.leap(seq)?;
            items[i] = Some(self.pull().ok_or_else(foreign)?);
        }
        self.leap(*end)?;
        Ok(items.into_iter().flatten().collect())
    }

    fn leap(&mut self, seq: u64) -> Result<()> {
        let distance = seq - self.seq;
        if distance > 0 && self.up.skip(distance) < distance {
            return Err(foreign());
        }
        self.seq = seq;
        Ok(())
    }
}
