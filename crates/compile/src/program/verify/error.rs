//! The errors of the verifier.

use crate::program::kernel::ProgramSchedule;
use systole_ir::{Error, ErrorKind};

/// The error for an invariant that does not hold at step `i`.
pub fn broken(s: &ProgramSchedule, i: usize, what: impl Into<String>) -> Error {
    let name = s.steps.get(i).map_or("the end".into(), |step| step.kernel.name());
    Error::new(ErrorKind::Bug, what).at(format!("step {i} {name} of `{}`", s.name))
}
