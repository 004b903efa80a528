//! Program verifier: checks steps, types, bodies and the buffer plan after each stage.
//!
//! [`slots`]: each array has one writer, before all readers. `Step::check`: types of the operands and results of each
//! kernel. [`bodies`]: signatures of nested programs. [`buffer_plan`]: arrays with overlapping live ranges do not
//! overlap in memory, and donated memory is not read after it is overwritten. Stages run it in debug builds and with
//! `SYSTOLE_PARANOID`.

mod bodies;
mod buffer_plan;
mod error;
mod slots;
#[cfg(test)]
mod tests;

use super::kernel::{Kernel, ProgramSchedule};
use error::broken;
use systole_ir::{Result, ResultExt};

/// Checks a program before the buffer plan. Bodies were checked when they were compiled.
///
/// An error names the step and the broken invariant: a bug in a stage, not in the input.
pub fn verify_steps(s: &ProgramSchedule) -> Result<()> {
    slots::check(s)?;
    for (i, step) in s.steps.iter().enumerate() {
        let checked = step.check().and_then(|()| bodies::check(step));
        checked.map_err(|what| broken(s, i, what))?;
    }
    Ok(())
}

/// Checks a finished program and its bodies: the steps, and the buffer plan. `donated`: the parameters whose memory a
/// run may overwrite.
pub fn verify_planned(s: &ProgramSchedule, donated: &[usize]) -> Result<()> {
    verify_steps(s)?;
    buffer_plan::check(s, donated)?;
    for (i, step) in s.steps.iter().enumerate() {
        for body in step.kernel.bodies() {
            let inner = donated_inside(&step.kernel, body);
            verify_planned(body, &inner).at(|| format!("step {i} {} of `{}`", step.kernel.name(), s.name))?;
        }
    }
    Ok(())
}

/// The parameters that a body may overwrite: loop states, and the sums of blocks.
fn donated_inside(kernel: &Kernel, body: &ProgramSchedule) -> Vec<usize> {
    match kernel {
        Kernel::While { captures, body: trip, .. } if std::ptr::eq(&**trip, body) => {
            (*captures..body.params.len()).collect()
        }
        Kernel::Blocks(b) => (0..b.sums.len()).collect(),
        _ => Vec::new(),
    }
}
