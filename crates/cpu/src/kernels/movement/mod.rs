//! Data movement: copies, slices, gathers, scatters, sorting.

pub mod moves;
pub mod scatter;
pub mod sort;

use crate::select::{Candidate, EVERY, Family};
use systole_compile::Kernel;
use systole_ir::Op;

/// Data movement, and every op that has no family of its own.
pub static FAMILY: Family = Family {
    name: "movement",
    doc: "copies, slices, gathers, scatters, sorting; and every other op",
    takes: |step| matches!(step.kernel, Kernel::Op { .. }),
    candidates: &[
        Candidate {
            name: "scatter",
            why: "scatters whose body is one op",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Kernel::Op { op: op @ Op::Scatter(_), .. } => {
                    scatter::bind(op, p.step, p.target.level.vectors())
                        .ok_or_else(|| "its body is no single op".into())
                }
                _ => Err("no scatter".into()),
            },
        },
        Candidate {
            name: "sort",
            why: "sorts",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Kernel::Op { op: Op::Sort(s), .. } => Ok(Box::new(sort::SortKernel::new(s, p.step))),
                _ => Err("no sort".into()),
            },
        },
        Candidate {
            name: "copy",
            why: "copies of boxes, slices and gathers",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Kernel::Op { op, .. } => moves::bind(op, p.step).ok_or_else(|| "it is no copy".into()),
                _ => Err("no op".into()),
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};
