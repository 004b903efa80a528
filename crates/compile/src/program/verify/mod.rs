//! The verifier of programs, as `Graph::verify` is that of graphs: [`slots`] (one writer for each array, before all
//! readers), `Step::check` (what each kernel reads and writes) and [`places`] (arrays that live together do not share
//! bytes; what a run may overwrite is not read later). Stages run it in debug builds and with `SYSTOLE_PARANOID`.

mod bodies;
mod error;
mod places;
mod slots;
#[cfg(test)]
mod tests;

use super::kernel::{Kernel, Schedule};
use error::broken;
use systole_ir::{Result, ResultExt};

/// Checks a program whose arrays have no places yet. Bodies were checked when they were compiled.
///
/// An error names the step and the invariant that does not hold: a defect of a stage, not of the input.
pub fn verify_steps(s: &Schedule) -> Result<()> {
    slots::check(s)?;
    for (i, step) in s.steps.iter().enumerate() {
        let checked = step.check().and_then(|()| bodies::check(step));
        checked.map_err(|what| broken(s, i, what))?;
    }
    Ok(())
}

/// Checks a finished program and those inside it: the steps as such, and where arrays lie. `donated`: the parameters
/// whose memory a run may overwrite.
pub fn verify_planned(s: &Schedule, donated: &[usize]) -> Result<()> {
    verify_steps(s)?;
    places::check(s, donated)?;
    for (i, step) in s.steps.iter().enumerate() {
        for body in step.kernel.bodies() {
            let inner = donated_inside(&step.kernel, body);
            verify_planned(body, &inner).at(|| format!("step {i} {} of `{}`", step.kernel.name(), s.name))?;
        }
    }
    Ok(())
}

/// The parameters that a body may overwrite: the states of a loop, and the sums of blocks.
fn donated_inside(kernel: &Kernel, body: &Schedule) -> Vec<usize> {
    match kernel {
        Kernel::While { captures, body: trip, .. } if std::ptr::eq(&**trip, body) => {
            (*captures..body.params.len()).collect()
        }
        Kernel::Blocks(b) => (0..b.sums.len()).collect(),
        _ => Vec::new(),
    }
}
