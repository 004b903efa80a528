//! [`RandomAccess`] and [`ElementCursor`]: the two ways to get at the elements of one epoch.

use super::position::{IteratorState, foreign};
use crate::sample::Sample;
use systole_base::Result;

/// Reads any element of one epoch.
pub trait RandomAccess: Send {
    /// Number of elements; `None` when endless.
    fn len(&self) -> Option<u64>;

    /// True when there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Element `index`, which is below the length. Not for the same index twice with different results.
    fn get(&mut self, index: u64) -> Result<Sample>;
}

/// Walks the elements of one epoch.
pub trait ElementCursor: Send {
    /// The next element, or an error about it; `None` at the end.
    fn next(&mut self) -> Option<Result<Sample>>;

    /// Leaves out up to `n` elements and says how many there were. Errors count as elements, as in `next`.
    fn skip(&mut self, n: u64) -> u64 {
        (0..n).take_while(|_| self.next().is_some()).count() as u64
    }

    /// The state before the next element.
    fn save(&self) -> IteratorState;

    /// Goes to a state that a cursor of the same stage was at. Only for a cursor that was just opened.
    fn restore(&mut self, state: &IteratorState) -> Result<()>;
}

/// Goes to a state that is the number of elements before it, for stages whose state only their elements give.
pub(crate) fn replay(cursor: &mut dyn ElementCursor, state: &IteratorState) -> Result<()> {
    let taken = state.number(0)?;
    match cursor.skip(taken) {
        skipped if skipped < taken => Err(foreign()),
        _ => Ok(()),
    }
}

/// The cursor of anything with access.
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
            // A run without order left gaps, which only its threads know how to fill.
            _ if state.numbers.len() > 1 => Err(foreign()),
            _ => Ok(()),
        }
    }
}
