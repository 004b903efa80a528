//! Rank of one process in a distributed run, with the coordinator address.

/// Default port of process 0, as in JAX.
pub(crate) const PORT: u16 = 8476;
/// Index of a process, number of processes and coordinator address.
#[derive(Debug, PartialEq)]
pub(crate) struct ProcessRank {
    pub(crate) index: u32,
    pub(crate) count: u32,
    /// Address of process 0, `HOST:PORT`.
    pub(crate) address: String,
}

/// Looks up an environment variable.
pub(crate) type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;
