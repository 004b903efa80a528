//! The part of a run that one process has.

/// Where process 0 listens, if nothing says it: JAX's port.
pub(crate) const PORT: u16 = 8476;
/// One of a run's processes.
#[derive(Debug, PartialEq)]
pub(crate) struct ProcessRank {
    pub(crate) index: u32,
    pub(crate) count: u32,
    /// Where process 0 listens, `HOST:PORT`.
    pub(crate) address: String,
}

/// What a variable is set to.
pub(crate) type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;
