//! What the verifier says.

use crate::program::kernel::Schedule;
use systole_ir::{Error, ErrorKind};

/// An invariant that does not hold at a step.
pub fn broken(s: &Schedule, i: usize, what: impl Into<String>) -> Error {
    let name = s.steps.get(i).map_or("the end".into(), |step| step.kernel.name());
    Error::new(ErrorKind::Bug, what).at(format!("step {i} {name} of `{}`", s.name))
}
