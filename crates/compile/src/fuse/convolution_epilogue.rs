//! Convolution epilogues: fuses a convolution with the element-wise map that is the only reader of its result.
//!
//! The map runs on each strip of the result while it is in cache, in place of the strip. Examples are activations and
//! residual sums. The rule runs last: a map that another rule can fuse is left to that rule.

use super::product_epilogue::{merge, only_map};
use crate::program::{Kernel, ProductEpilogue, StepList};
use systole_ir::{Op, TensorType};

/// Fuses element-wise epilogues into convolutions where that is legal.
pub fn join(steps: &mut StepList<'_>) {
    for at in steps.find(|step| matches!(&step.kernel, Kernel::Op { op: Op::Convolution(_), .. })) {
        if let Some((reader, product)) = reader(steps, at) {
            merge(steps, at, reader, |kernel, map| {
                let Kernel::Op { op, bias } = kernel else {
                    systole_ir::bug!("only a convolution can be fused with its epilogue")
                };
                Kernel::ConvolutionEpilogue(ProductEpilogue { op, bias, product, map })
            });
        }
    }
}

/// The epilogue of the convolution at `at`, which has one result of the convolution's element type, and that type.
fn reader(steps: &StepList<'_>, at: usize) -> Option<(usize, TensorType)> {
    let reader = only_map(steps, at)?;
    let product = &steps.step(at)?.output_types[0];
    let [stored] = &steps.step(reader)?.output_types[..] else { return None };
    (stored.dtype == product.dtype).then(|| (reader, product.clone()))
}
