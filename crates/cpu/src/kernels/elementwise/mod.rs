//! Element-wise programs: interpreted tile by tile, or machine code.

pub mod jit;
pub mod map;

use crate::select::{Candidate, EVERY, Family};
use systole_compile::Kernel;

/// Element-wise programs.
pub static FAMILY: Family = Family {
    name: "elementwise",
    doc: "element-wise programs over one index space",
    takes: |step| matches!(step.kernel, Kernel::Map(_) | Kernel::Parts(_)),
    candidates: &[Candidate {
        name: "map",
        why: "takes every element-wise program",
        levels: EVERY,
        accepts: |p| {
            let level = p.target.programs();
            Ok(Box::new(match &p.step.kernel {
                Kernel::Map(m) => map::MapKernel::new(m, level),
                Kernel::Parts(m) => map::MapKernel::of_parts(m, level),
                _ => return Err("no element-wise program".into()),
            }))
        },
    }],
};
