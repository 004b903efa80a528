//! Errors of the program verifier.

use crate::program::kernel::ProgramSchedule;
use systole_ir::{Error, ErrorKind};

/// Creates the error for an invariant that is violated at step `i`.
pub fn broken(s: &ProgramSchedule, i: usize, what: impl Into<String>) -> Error {
    let name = s.steps.get(i).map_or("the end".into(), |step| step.kernel.name());
    Error::new(ErrorKind::Bug, what).at(format!("step {i} {name} of `{}`", s.name))
}
