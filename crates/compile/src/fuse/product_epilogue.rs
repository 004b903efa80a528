//! Products that hand their elements on: the element-wise program that alone reads a product takes each part of it while
//! that is in a near cache, and the product never becomes an array. So an optimizer's update is computed in the product
//! that is a weight's gradient, and an activation in its layer, where sums are short.
//!
//! Of narrow floats the program takes the sums as they are, in f32, where excess precision is allowed.
//!
//! This runs when all else that joins steps has run: programs that those want are theirs.

use super::excess_precision::{from_wide, is_narrow};
use crate::program::{Kernel, Load, Location, ProductEpilogue, Schedule, Slot, Step, right_operand};
use systole_ir::{DType, Op, TensorType};

/// A product that is smaller would not gain.
const LEAST: usize = 4096;
/// Products of an element, at most: of longer sums, so few columns fit a cache at a time that the program would read and
/// write its arrays in short runs, and the product's own traffic hardly counts.
const LONGEST: usize = 256;
/// As [`LONGEST`], where weights are updated that may lie in panels of columns: there all runs are long.
const LONGEST_IN_PANELS: usize = 1024;

/// Joins products and programs where that may be; `narrow`: those of narrow floats too. The buffer plan comes later.
pub fn join(s: &mut Schedule, narrow: bool) {
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

/// The element-wise step that alone reads the product of step `at`, once and element by element.
fn reader(s: &Schedule, at: usize, narrow: bool) -> Option<usize> {
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
        // Biases of narrow products would have to be widened too; they are part of the program.
        && (ty.dtype == DType::F32 || narrow && !bias && is_narrow(ty.dtype))
        && other.input_types[k].dtype == ty.dtype
        && ty.elements() >= LEAST
        && d.lhs_contract.iter().map(|&d| step.input_types[0].shape[d]).product::<usize>() <= longest
        && map.shape.elements() == ty.elements()
        && map.linear_loads(k) == Some(1);
    fits.then_some(place)
}

/// Whether an element-wise step replaces a matrix whose other readers are products, as their right operand `[K, N]`.
fn updates_weights(s: &Schedule, update: usize, ty: &TensorType) -> bool {
    let is_weight = |&x: &Slot| {
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

/// Both steps in one: the product's inputs, then the program's.
fn joined(product: Step, mut step: Step) -> Step {
    let (Kernel::Op { op: Op::DotGeneral(mut dot), bias }, Kernel::Map(mut map)) =
        (product.kernel, step.kernel)
    else {
        systole_ir::bug!("only products and element-wise programs are joined")
    };
    let made = product.outputs[0];
    let Some(k) = step.inputs.iter().position(|&x| x == made) else {
        systole_ir::bug!("the program does not read the product")
    };
    let ty = TensorType::new(DType::F32, product.output_types[0].shape.clone());
    if dot.element_type != DType::F32 {
        dot.element_type = DType::F32;
        map = from_wide(&map, k);
    }
    step.inputs.remove(k);
    let others = step.inputs.len();
    for load in &mut map.loads {
        if let Load::Array { input, .. } = load {
            *input = match *input {
                i if i == k => others,
                i if i > k => i - 1,
                i => i,
            };
        }
    }
    step.input_types.remove(k);
    Step {
        kernel: Kernel::ProductEpilogue(ProductEpilogue { op: dot.into(), bias, product: ty, map }),
        inputs: product.inputs.into_iter().chain(step.inputs).collect(),
        input_types: product.input_types.into_iter().chain(step.input_types).collect(),
        flops: product.flops + step.flops,
        ..step
    }
}
