//! Pooling and folds over windows.

pub mod max_pool;
pub mod reduce_window;

use crate::select::{Candidate, EVERY, Family, answer};
use systole_compile::Kernel;
use systole_ir::Op;

/// Pooling and folds over windows.
pub static FAMILY: Family = Family {
    name: "pool",
    doc: "folds over windows, max pooling's gradient",
    takes: |step| {
        matches!(step.kernel, Kernel::Pool(_) | Kernel::Unpool(_))
            || matches!(&step.kernel, Kernel::Op { op: Op::ReduceWindow(_) | Op::SelectAndScatter(_), .. })
    },
    candidates: &[
        Candidate {
            name: "max_pool",
            why: "max pooling of an array, with the argmax of each window where its gradient needs it",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Kernel::Pool(pool) => answer(
                    max_pool::PoolKernel::new(pool, p.step, p.target.level.vectors()),
                    "its element types have no path",
                ),
                _ => Err("no max pooling that the compiler fuses".into()),
            },
        },
        Candidate {
            name: "unpool",
            why: "max pooling's gradient by the places that the forward pass kept",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Kernel::Unpool(u) => max_pool::bind_unpool(u, p.step, p.target.level.vectors())
                    .ok_or_else(|| "no kernel".into()),
                _ => Err("no places were kept".into()),
            },
        },
        Candidate {
            name: "reduce_window",
            why: "folds over windows",
            levels: EVERY,
            accepts: |p| match &p.step.kernel {
                Kernel::Op { op, .. } => reduce_window::bind(op, p.step, p.target.level.vectors())
                    .ok_or_else(|| "its windows or types have no path".into()),
                _ => Err("no fold over windows".into()),
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};
