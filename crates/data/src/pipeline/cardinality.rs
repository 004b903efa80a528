//! [`Cardinality`]: number of elements of a pipeline, as far as known without running it.

/// Number of elements that a pipeline yields in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cardinality {
    /// Exactly this many elements.
    Finite(u64),
    /// Endless.
    Infinite,
    /// Unknown without running the pipeline (generators, filters).
    Unknown,
}

impl Cardinality {
    /// Returns the number of elements if it is known and finite.
    pub fn finite(self) -> Option<u64> {
        match self {
            Cardinality::Finite(n) => Some(n),
            _ => None,
        }
    }

    /// Returns `Unknown` unless empty, for stages that yield an unpredictable number of elements per input.
    pub(crate) fn unknown_unless_empty(self) -> Cardinality {
        match self {
            Cardinality::Finite(0) => self,
            _ => Cardinality::Unknown,
        }
    }

    /// Applies a function to a finite number.
    pub(crate) fn map(self, f: impl FnOnce(u64) -> u64) -> Cardinality {
        match self {
            Cardinality::Finite(n) => Cardinality::Finite(f(n)),
            other => other,
        }
    }
}
