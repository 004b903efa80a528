//! [`Cardinality`]: how many elements there are, as far as that is known without running a pipeline.

/// How many elements a pipeline yields in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cardinality {
    /// This many.
    Finite(u64),
    /// It never ends.
    Infinite,
    /// Not known without running it (generators, filters).
    Unknown,
}

impl Cardinality {
    /// The number when it is known and finite.
    pub fn finite(self) -> Option<u64> {
        match self {
            Cardinality::Finite(n) => Some(n),
            _ => None,
        }
    }

    /// What is left when only running tells how many elements each one becomes.
    pub(crate) fn unknown_unless_empty(self) -> Cardinality {
        match self {
            Cardinality::Finite(0) => self,
            _ => Cardinality::Unknown,
        }
    }

    /// Changes a finite number.
    pub(crate) fn map(self, f: impl FnOnce(u64) -> u64) -> Cardinality {
        match self {
            Cardinality::Finite(n) => Cardinality::Finite(f(n)),
            other => other,
        }
    }
}
