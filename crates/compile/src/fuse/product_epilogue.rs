//! GEMM epilogues: fuses a GEMM with the element-wise map that is the only reader of its result.
//!
//! The map runs on each block of complete sums while it is in cache, and the GEMM's result is not materialized.
//! Examples are activations, and the optimizer update in the GEMM that computes a weight gradient.
//!
//! For bf16 and f16 the epilogue reads the f32 accumulators without rounding, which requires excess precision to be
//! allowed. The rule runs after most others: a map that another rule can fuse is left to that rule.

use super::excess_precision::{from_wide, is_narrow};
use crate::program::{
    Kernel, Location, Map, MapLoad, ProductEpilogue, ProgramSchedule, SlotId, Step, StepList, right_operand,
};
use systole_ir::{DType, Op, TensorType};

/// Minimum number of elements of the GEMM's result; smaller ones do not gain.
const LEAST: usize = 4096;
/// Maximum K. With a larger K fewer columns fit in cache at a time, so the epilogue would access its arrays in short
/// runs, and the traffic saved is small compared with that of the operands.
const LONGEST: usize = 256;
/// Maximum K for updates of weights that may be stored as packed column panels, where all runs are long.
const LONGEST_IN_PANELS: usize = 1024;

/// Fuses element-wise epilogues into GEMMs where that is legal, with `narrow` also for bf16 and f16. Runs before the
/// buffer plan.
pub fn join(s: &mut ProgramSchedule, narrow: bool) {
    let mut at = 0;
    while at < s.steps.len() {
        match reader(s, at, narrow) {
            Some(reader) => {
                let product = s.steps.remove(at);
                let map = s.steps.remove(reader - 1);
                s.slots[product.outputs[0]].bytes = 0;
                s.steps.insert(reader - 1, joined(product, map));
            }
            None => at += 1,
        }
    }
}

/// The map that is the only reader of the GEMM at `at`, and reads each of its elements once, at the element's own
/// index.
fn reader(s: &ProgramSchedule, at: usize, narrow: bool) -> Option<usize> {
    let step = &s.steps[at];
    let Kernel::Op { op: Op::DotGeneral(d), bias } = &step.kernel else { return None };
    let (product, ty) = (step.outputs[0], &step.output_types[0]);
    let mut readers = s.steps.iter().enumerate().filter(|(_, other)| other.inputs.contains(&product));
    let (place, other) = readers.next()?;
    let Kernel::Map(map) = &other.kernel else { return None };
    let k = other.inputs.iter().position(|&x| x == product)?;
    let longest = if updates_weights(s, place, ty) { LONGEST_IN_PANELS } else { LONGEST };
    let fits = readers.next().is_none()
        && s.results.iter().all(|r| r.slot != product)
        && other.inputs.iter().filter(|&&x| x == product).count() == 1
        // The bias of a bf16 or f16 GEMM would have to be widened too; such a GEMM has the bias in the map.
        && (ty.dtype == DType::F32 || narrow && !bias && is_narrow(ty.dtype))
        && other.input_types[k].dtype == ty.dtype
        && ty.elements() >= LEAST
        && d.lhs_contract.iter().map(|&d| step.input_types[0].shape[d]).product::<usize>() <= longest
        && map.shape.elements() == ty.elements()
        && map.linear_loads(k) == Some(1);
    fits.then_some(place)
}

/// Whether a map updates a parameter of type `ty` whose other readers are all GEMMs with it as right operand `[K, N]`:
/// the backend may store such a weight as packed panels.
fn updates_weights(s: &ProgramSchedule, update: usize, ty: &TensorType) -> bool {
    let is_weight = |&x: &SlotId| {
        let mut others = s
            .steps
            .iter()
            .enumerate()
            .filter(|(i, step)| *i != update && step.inputs.contains(&x))
            .peekable();
        let multiplies = |step: &Step| right_operand(step) == Some((x, [ty.shape[0], ty.shape[1]]));
        matches!(s.slots[x].place, Location::Param(_))
            && others.peek().is_some()
            && others.all(|(_, step)| multiplies(step))
    };
    ty.rank() == 2 && s.steps[update].inputs.iter().any(is_weight)
}

/// Merges both steps. The inputs are those of the GEMM, then those of the map.
fn joined(product: Step, mut step: Step) -> Step {
    let (Kernel::Op { op: Op::DotGeneral(mut dot), bias }, Kernel::Map(mut map)) =
        (product.kernel, step.kernel)
    else {
        systole_ir::bug!("only a GEMM and an element-wise program can be fused")
    };
    let made = product.outputs[0];
    let Some(k) = step.inputs.iter().position(|&x| x == made) else {
        systole_ir::bug!("the element-wise program does not read the GEMM's result")
    };
    let ty = TensorType::new(DType::F32, product.output_types[0].shape.clone());
    if dot.element_type != DType::F32 {
        dot.element_type = DType::F32;
        map = from_wide(&map, k);
    }
    step.inputs.remove(k);
    put_last(&mut map, k, step.inputs.len());
    step.input_types.remove(k);
    Step {
        kernel: Kernel::ProductEpilogue(ProductEpilogue { op: dot.into(), bias, product: ty, map }),
        inputs: product.inputs.into_iter().chain(step.inputs).collect(),
        input_types: product.input_types.into_iter().chain(step.input_types).collect(),
        flops: product.flops + step.flops,
        ..step
    }
}

/// The map that is the only reader of the result of the step at `at`, and reads each of its elements once, at the
/// element's own index.
pub(super) fn only_map(steps: &StepList<'_>, at: usize) -> Option<usize> {
    let step = steps.step(at)?;
    let (result, ty) = (step.outputs[0], &step.output_types[0]);
    let reader = steps.only_reader(result)?;
    let other = steps.step(reader)?;
    let Kernel::Map(map) = &other.kernel else { return None };
    let k = other.inputs.iter().position(|&x| x == result)?;
    let fits = other.input_types[k].dtype == ty.dtype
        && map.shape.elements() == ty.elements()
        && map.linear_loads(k) == Some(1);
    fits.then_some(reader)
}

/// Merges the step at `at` and the map that reads its result, at `reader`. The inputs are those of the step, then those
/// of the map; `kernel` gets the kernel of the step and the map, whose last input is the step's result.
pub(super) fn merge(
    steps: &mut StepList<'_>,
    at: usize,
    reader: usize,
    kernel: impl FnOnce(Kernel, Map) -> Kernel,
) {
    let (Some(product), Some(mut step)) = (steps.list[at].take(), steps.list[reader].take()) else { return };
    let Kernel::Map(mut map) = step.kernel else {
        systole_ir::bug!("only an element-wise program can be an epilogue")
    };
    let Some(k) = step.inputs.iter().position(|&x| x == product.outputs[0]) else {
        systole_ir::bug!("the element-wise program does not read the product's result")
    };
    step.inputs.remove(k);
    step.input_types.remove(k);
    put_last(&mut map, k, step.inputs.len());
    steps.list[reader] = Some(Step {
        kernel: kernel(product.kernel, map),
        inputs: product.inputs.into_iter().chain(step.inputs).collect(),
        input_types: product.input_types.into_iter().chain(step.input_types).collect(),
        flops: product.flops + step.flops,
        ..step
    });
}

/// Renumbers the inputs of an element-wise program after input `k` was removed: it becomes the last, `others`.
fn put_last(map: &mut Map, k: usize, others: usize) {
    for load in &mut map.loads {
        if let MapLoad::Array { input, .. } = load {
            *input = match *input {
                i if i == k => others,
                i if i > k => i - 1,
                i => i,
            };
        }
    }
}
