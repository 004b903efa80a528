//! Folds along dimensions, and steps that work row by row.

pub mod fold;
pub mod rows;
pub mod rows_transposed;

use crate::select::{Candidate, EVERY, Family};
use systole_compile::Kernel;

/// Folds, and steps that work row by row.
pub static FAMILY: Family = Family {
    name: "reduce",
    doc: "folds along dimensions, and programs that work row by row",
    takes: |step| matches!(step.kernel, Kernel::Reduce { .. } | Kernel::Rows(_)),
    candidates: &[Candidate {
        name: "fold",
        why: "takes every fold of an element-wise program",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Kernel::Reduce { map, folded, monoid } => {
                Ok(Box::new(fold::ReduceKernel::new(map, folded, *monoid, p.step, p.target.programs())))
            }
            Kernel::Rows(r) => Ok(rows::bind(r, p.step, p.target.programs())),
            _ => Err("no fold".into()),
        },
    }],
};
