//! Fuses batch-normalization statistics (mean, squared deviations) into the convolution that they are computed from.
//!
//! Batch normalization reduces its operand twice before it normalizes: to the mean of each sample and channel, and to
//! the sum of squared deviations from it. The convolution has its result in cache one strip of pixels at a time. It
//! computes both from each strip's own mean and squared deviations, and combines the strips.

use crate::program::{ConvWithMoments, Kernel, Map, MapLoad, MapRegister, SlotId, Step, StepList};
use systole_ir::op::{Binary, Convolution, Monoid};
use systole_ir::{DType, Op, Scalar, TensorType};

/// Fuses two reductions of a convolution's result into it: a sum over pixels, and the sum of squared deviations from
/// the mean that follows from the first.
pub fn of_convolutions(steps: &mut StepList<'_>) {
    for sum in steps.find(|s| matches!(s.kernel, Kernel::Reduce { .. })) {
        let Some((conv, squares)) = moments_at(steps, sum) else { continue };
        let (Some(sum), Some(squares)) = (steps.list[sum].take(), steps.list[squares].take()) else {
            continue;
        };
        let Some(step) = &mut steps.list[conv] else { continue };
        let Kernel::Op { op: Op::Convolution(c), bias } = &step.kernel else { continue };
        step.kernel = Kernel::Moments(ConvWithMoments { conv: c.clone(), bias: *bias });
        step.outputs.extend([sum.outputs[0], squares.outputs[0]]);
        step.output_types.extend([sum.output_types[0].clone(), squares.output_types[0].clone()]);
        step.flops += sum.flops + squares.flops;
    }
}

/// The convolution whose result step `sum` reduces, and the step that sums the squared deviations from its means.
fn moments_at(steps: &StepList<'_>, sum: usize) -> Option<(usize, usize)> {
    let step = steps.step(sum)?;
    let (map, x) = fold_of_pixels(steps, step)?;
    is_operand(step, map, map.stores[0], x).then_some(())?;
    let conv = steps.writer(x)?;
    let y = steps.step(conv)?;
    let Kernel::Op { op: Op::Convolution(c), .. } = &y.kernel else { return None };
    let types = y.input_types.iter().chain(&y.output_types);
    let known = |t: &TensorType| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.elements() > 0;
    let ty = &y.output_types[0];
    let fits = is_plain(c)
        && { types }.all(known)
        && ty.elements() == map.shape.elements()
        && step.output_types[0].elements() == ty.shape[0] * ty.shape[ty.rank() - 1];
    fits.then_some(())?;
    let around = |&s: &usize| s != sum && steps.step(s).is_some_and(|s| is_around_mean(steps, s, x, step));
    Some((conv, steps.readers(x).into_iter().find(around)?))
}

/// Whether a convolution is channels-last, with one group and no input dilation.
fn is_plain(c: &Convolution) -> bool {
    let d = &c.dims;
    let last = |batch: usize, feature: usize, spatial: &[usize]| {
        batch == 0 && feature == spatial.len() + 1 && spatial.iter().copied().eq(1..=spatial.len())
    };
    last(d.input_batch, d.input_feature, &d.input_spatial)
        && last(d.output_batch, d.output_feature, &d.output_spatial)
        && !d.input_spatial.is_empty()
        && c.feature_groups == 1
        && c.batch_groups == 1
        && c.lhs_dilation.iter().all(|&d| d == 1)
}

/// The map and the first operand of a sum over all but the batch and channel dimensions, starting at zero, into f32.
fn fold_of_pixels<'s>(steps: &'s StepList<'_>, step: &'s Step) -> Option<(&'s Map, SlotId)> {
    let Kernel::Reduce { map, folded, monoid: Monoid::Add } = &step.kernel else { return None };
    let zero = |&init: &SlotId| steps.constant(init).is_some_and(|c| c.get(0).as_f64() == 0.0);
    // A batch of one has no batch dimension in the index space.
    let fits = (folded[..] == [false, true, false] || folded[..] == [true, false])
        && map.stores.len() == 1
        && step.output_types[0].dtype == DType::F32
        && step.inputs.last().is_some_and(zero);
    fits.then_some((map, step.inputs[0]))
}

/// Whether a register holds the elements of slot `x`, converted to f32 if they are bf16 or f16.
fn is_operand(step: &Step, map: &Map, e: MapRegister, x: SlotId) -> bool {
    let is_load = |e: MapRegister| match map.loads.get(e) {
        Some(load @ MapLoad::Array { input, .. }) => step.inputs[*input] == x && map.is_linear(load),
        _ => false,
    };
    match e.checked_sub(map.loads.len()) {
        None => is_load(e),
        Some(k) => {
            let instr = &map.instrs[k];
            matches!(&instr.op, Op::Convert(_)) && instr.to == DType::F32 && is_load(instr.args[0])
        }
    }
}

/// Whether a step sums `(x − mean)²`, with the means computed from the sums of `first`.
fn is_around_mean(steps: &StepList<'_>, step: &Step, x: SlotId, first: &Step) -> bool {
    let Some((map, _)) = fold_of_pixels(steps, step) else { return false };
    let instr = |e: MapRegister| e.checked_sub(map.loads.len()).map(|k| &map.instrs[k]);
    let Some(square) = instr(map.stores[0]) else { return false };
    let Some(centred) = instr(square.args[0]) else { return false };
    let is_mean = |e: MapRegister| match map.loads.get(e) {
        Some(MapLoad::Array { input, strides, offset: 0, .. }) => {
            let &[.., pixels, features] = map.shape.dims() else { return false };
            (strides[..] == [features, 0, 1] || strides[..] == [0, 1])
                && is_mean(steps, step.inputs[*input], first, pixels)
        }
        _ => false,
    };
    square.op == Op::Binary(Binary::Multiply)
        && square.args[0] == square.args[1]
        && centred.op == Op::Binary(Binary::Subtract)
        && is_operand(step, map, centred.args[0], x)
        && is_mean(centred.args[1])
}

/// Whether a slot holds the sums of `first` times `1 / count`, to a relative error of 1e-6.
fn is_mean(steps: &StepList<'_>, mean: SlotId, first: &Step, count: usize) -> bool {
    let Some(step) = steps.writer(mean).and_then(|w| steps.step(w)) else { return false };
    let Kernel::Map(map) = &step.kernel else { return false };
    let stored = step.outputs.iter().position(|&o| o == mean).map(|k| map.stores[k]);
    let Some(instr) = stored.and_then(|e| e.checked_sub(map.loads.len())).map(|k| &map.instrs[k]) else {
        return false;
    };
    let is_share = |e: MapRegister| match map.loads.get(e) {
        Some(MapLoad::Splat { value: Scalar::Float(share), .. }) => (share * count as f64 - 1.0).abs() < 1e-6,
        _ => false,
    };
    let is_sum = |e: MapRegister| is_operand(step, map, e, first.outputs[0]);
    let &[a, b] = &instr.args[..] else { return false };
    instr.op == Op::Binary(Binary::Multiply) && (is_sum(a) && is_share(b) || is_sum(b) && is_share(a))
}
