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
                let kernel = match p.operands {
                    None => dot_general::DotKernel::new(d, epilogue, p.step, p.target),
                    Some([left, right]) => {
                        let types = [p.step.input_types[0].dtype, d.element_type];
                        dot_general::DotKernel::product(left, right, types, epilogue, p.target)
                    }
                };
                answer(kernel, "its element types have no fast path")
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};
