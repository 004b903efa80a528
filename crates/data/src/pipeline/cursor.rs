//! Element access within one epoch: random access ([`RandomAccess`]) and sequential ([`ElementCursor`]).

use super::position::{IteratorState, foreign};
use crate::sample::Sample;
use systole_base::Result;

/// Random access to the elements of one epoch.
pub trait RandomAccess: Send {
    /// Number of elements; `None` if endless.
    fn len(&self) -> Option<u64>;

    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Returns element `index`, which is below the length. Repeated calls return the same element.
    fn get(&mut self, index: u64) -> Result<Sample>;

    /// Returns elements stacked along a new leading dimension, which is what [`RandomAccess::get`] and stacking give, if
    /// the source can copy them into a batch directly. `None`: it cannot.
    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        let _ = indices;
        None
    }
}

/// Sequential iterator over the elements of one epoch, whose state can be saved and restored.
pub trait ElementCursor: Send {
    /// Returns the next element, or an error about it; `None` at the end.
    fn next(&mut self) -> Option<Result<Sample>>;

    /// Skips up to `n` elements and returns the number skipped. Errors count as elements, as in `next`.
    fn skip(&mut self, n: u64) -> u64 {
        (0..n).take_while(|_| self.next().is_some()).count() as u64
    }

    /// Returns the state before the next element.
    fn save(&self) -> IteratorState;

    /// Restores a state saved by a cursor of the same stage. Only valid on a newly opened cursor.
    fn restore(&mut self, state: &IteratorState) -> Result<()>;
}

/// Restores a state that is an element count by replaying the elements before it.
pub(crate) fn replay(cursor: &mut dyn ElementCursor, state: &IteratorState) -> Result<()> {
    let taken = state.number(0)?;
    match cursor.skip(taken) {
        skipped if skipped < taken => Err(foreign()),
        _ => Ok(()),
    }
}

/// Cursor over random access.
pub(crate) struct AccessCursor {
    pub access: Box<dyn RandomAccess>,
    pub at: u64,
}

impl ElementCursor for AccessCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        if self.access.len().is_some_and(|n| self.at >= n) {
            return None;
        }
        let index = self.at;
        self.at = index.saturating_add(1);
        Some(self.access.get(index))
    }

    fn skip(&mut self, n: u64) -> u64 {
        let n = n.min(self.access.len().unwrap_or(u64::MAX) - self.at);
        self.at += n;
        n
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.at])
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.at = state.number(0)?;
        match self.access.len() {
            Some(n) if self.at > n => Err(foreign()),
            // An unordered run left gaps, which only its threads can fill.
            _ if state.numbers.len() > 1 => Err(foreign()),
            _ => Ok(()),
        }
    }
}
