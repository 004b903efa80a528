//! Products of matrices.

pub mod blocked;
pub mod dot_general;
pub mod few_columns;
pub mod product_epilogue;

use crate::kernel::product::Epilogue;
use crate::select::{Candidate, EVERY, Family, answer};
use systole_compile::Kernel;
use systole_ir::Op;

/// Products of matrices.
pub static FAMILY: Family = Family {
    name: "matmul",
    doc: "products of matrices, with a bias where one follows",
    takes: |step| matches!(&step.kernel, Kernel::Op { op: Op::DotGeneral(_), .. }),
    candidates: &[
        Candidate {
            name: "dot_general",
            why: "all element types that have a fast path",
            levels: EVERY,
            accepts: |p| {
                let Kernel::Op { op: Op::DotGeneral(d), bias } = &p.step.kernel else {
                    return Err("no product".into());
                };
                let epilogue = Epilogue { bias: *bias, accumulate: false };
                let kernel = dot_general::DotKernel::new(d, epilogue, p.step, p.target);
                answer(kernel, "its element types have no fast path")
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};

/// Products whose elements an element-wise program takes as they are complete.
pub static PRODUCT_EPILOGUE: Family = Family {
    name: "product_epilogue",
    doc: "a product and the element-wise program that alone reads it",
    takes: |step| matches!(step.kernel, Kernel::HandOn(_)),
    candidates: &[Candidate {
        name: "panel_by_panel",
        why: "takes every product with an epilogue",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Kernel::HandOn(h) => Ok(Box::new(product_epilogue::HandOn::new(h, p)?)),
            _ => Err("no epilogue".into()),
        },
    }],
};
