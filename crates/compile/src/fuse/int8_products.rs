//! Fuses int8 products with the padding of their input and with the element-wise map that reads their sums, so that
//! activations between layers are bytes and sums are not materialized.

use super::product_epilogue::{merge, only_map};
use crate::program::{Int8Product, Kernel, SlotId, Step, StepList};
use systole_ir::Op;
use systole_ir::op::{Convolution, Pad};

/// Turns int8 products with int32 sums into steps of their own, with padding and epilogue.
pub fn with_epilogues(steps: &mut StepList<'_>) {
    for at in steps.find(|s| int8_product(s).is_some()) {
        let Some(mut product) = steps.step(at).and_then(int8_product) else { continue };
        let pad = padding(steps, at);
        let Some(step) = &mut steps.list[at] else { continue };
        if let Some(ConstantPadding { value, convolution, source, ty, by }) = pad {
            (product.padding, product.op) = (value, convolution.into());
            (step.inputs[0], step.input_types[0]) = (source, ty);
            step.kernel = Kernel::Int8Product(product);
            if let Some(by) = by {
                steps.list[by] = None;
            }
        } else {
            step.kernel = Kernel::Int8Product(product);
        }
        if let Some(reader) = only_map(steps, at) {
            merge(steps, at, reader, |kernel, map| {
                let Kernel::Int8Product(product) = kernel else {
                    systole_ir::bug!("only an int8 product can be fused with its epilogue")
                };
                Kernel::Int8Product(Int8Product { map: Some(map), ..product })
            });
        }
    }
}

/// The int8 product that a step computes, if there are kernels for it.
fn int8_product(step: &Step) -> Option<Int8Product> {
    let Kernel::Op { op, bias: false } = &step.kernel else { return None };
    let (x, w) = (step.input_types.first()?, step.input_types.get(1)?);
    let sums = step.output_types.first()?;
    Int8Product::supports(op, x, w, sums).then(|| Int8Product {
        op: op.clone(),
        padding: 0,
        sums: sums.clone(),
        map: None,
    })
}

/// Padding of a convolution's input by a constant.
struct ConstantPadding {
    value: i8,
    /// The convolution that pads its input itself.
    convolution: Convolution,
    /// The array without padding, and its type.
    source: SlotId,
    ty: systole_ir::TensorType,
    /// The step that pads, if nothing else reads its result.
    by: Option<usize>,
}

/// The step that pads the input of the convolution at `at` by a constant, if the convolution has no padding.
fn padding(steps: &StepList<'_>, at: usize) -> Option<ConstantPadding> {
    let step = steps.step(at)?;
    let Kernel::Op { op: Op::Convolution(c), .. } = &step.kernel else { return None };
    let input = step.inputs[0];
    let by = steps.writer(input)?;
    let pad = steps.step(by)?;
    let Kernel::Op { op: Op::Pad(p), bias: false } = &pad.kernel else { return None };
    let value = steps.constant(pad.inputs[1])?.get(0).as_f64() as i8;
    let is_whole = pad.output_types[0] == step.input_types[0] && c.padding.iter().all(|p| *p == [0, 0]);
    if !is_whole || !surrounds_images(p) {
        return None;
    }
    let around = (1..3).map(|d| [p.low[d], p.high[d]]).collect();
    Some(ConstantPadding {
        value,
        convolution: Convolution { padding: around, ..c.clone() },
        source: pad.inputs[0],
        ty: pad.input_types[0].clone(),
        by: steps.only_reader(input).map(|_| by),
    })
}

/// Whether `[B, H, W, C]` is padded along H and W only.
fn surrounds_images(p: &Pad) -> bool {
    p.low.len() == 4
        && p.low.iter().chain(&p.high).all(|&n| n >= 0)
        && p.interior.iter().all(|&n| n == 0)
        && [p.low[0], p.high[0], p.low[3], p.high[3]] == [0; 4]
}
