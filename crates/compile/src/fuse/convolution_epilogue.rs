//! Convolution epilogues: fuses a convolution with the element-wise map that is the only reader of its result.
//!
//! The map runs on each strip of the result while it is in cache, in place of the strip. Examples are activations and
//! residual sums. The rule runs last: a map that another rule can fuse is left to that rule.

use super::product_epilogue::put_last;
use crate::program::{Kernel, ProductEpilogue, Step, StepList};
use systole_ir::Op;

/// Fuses element-wise epilogues into convolutions where that is legal.
pub fn join(steps: &mut StepList<'_>) {
    for at in steps.find(|step| matches!(&step.kernel, Kernel::Op { op: Op::Convolution(_), .. })) {
        if let Some(reader) = reader(steps, at) {
            fuse(steps, at, reader);
        }
    }
}

/// The map that is the only reader of the convolution at `at`, reads each element once at the element's own index, and
/// has one result of the convolution's type.
fn reader(steps: &StepList<'_>, at: usize) -> Option<usize> {
    let step = steps.step(at)?;
    let (result, ty) = (step.outputs[0], &step.output_types[0]);
    let reader = steps.only_reader(result)?;
    let other = steps.step(reader)?;
    let Kernel::Map(map) = &other.kernel else { return None };
    let k = other.inputs.iter().position(|&x| x == result)?;
    let [stored] = &other.output_types[..] else { return None };
    let fits = stored.dtype == ty.dtype
        && other.input_types[k].dtype == ty.dtype
        && map.shape.elements() == ty.elements()
        && map.linear_loads(k) == Some(1);
    fits.then_some(reader)
}

/// Merges the convolution at `at` and its epilogue. The inputs are those of the convolution, then those of the map.
fn fuse(steps: &mut StepList<'_>, at: usize, reader: usize) {
    let (Some(conv), Some(mut step)) = (steps.list[at].take(), steps.list[reader].take()) else { return };
    let (Kernel::Op { op, bias }, Kernel::Map(mut map)) = (conv.kernel, step.kernel) else {
        systole_ir::bug!("only a convolution and an element-wise program can be fused")
    };
    let Some(k) = step.inputs.iter().position(|&x| x == conv.outputs[0]) else {
        systole_ir::bug!("the element-wise program does not read the convolution's result")
    };
    step.inputs.remove(k);
    let product = step.input_types.remove(k).with_shape(conv.output_types[0].shape.clone());
    put_last(&mut map, k, step.inputs.len());
    steps.list[reader] = Some(Step {
        kernel: Kernel::ConvolutionEpilogue(ProductEpilogue { op, bias, product, map }),
        inputs: conv.inputs.into_iter().chain(step.inputs).collect(),
        input_types: conv.input_types.into_iter().chain(step.input_types).collect(),
        flops: conv.flops + step.flops,
        ..step
    });
}
