//! Sorts of which only the first elements are read, as `top_k` is: the rest is not put in order.

use crate::program::{FirstSorted, Kernel, Load, Step, Steps};
use systole_ir::op::Sort;
use systole_ir::{Op, TensorType};

/// Fuses the slices that alone read a sort into it, where all begin at the first element and are of one length.
pub fn join(steps: &mut Steps<'_>) {
    for at in steps.find(|s| matches!(s.kernel, Kernel::Op { op: Op::Sort(_), .. })) {
        let Some((count, slices)) = first_of(steps, at) else { continue };
        let Some(step) = &steps.list[at] else { continue };
        let Kernel::Op { op: Op::Sort(sort), .. } = &step.kernel else { continue };
        let sort = sort.clone();
        let (mut outputs, mut types) = (Vec::new(), Vec::new());
        for (ty, slice) in step.output_types.clone().iter().zip(&slices) {
            let ty = first(ty, sort.dim, count);
            let removed = slice.and_then(|s| steps.list[s].take());
            outputs.push(removed.map_or_else(|| steps.new_slot(&ty), |s| s.outputs[0]));
            types.push(ty);
        }
        if let Some(step) = &mut steps.list[at] {
            *step = Step {
                kernel: Kernel::FirstSorted(FirstSorted { sort, count }),
                outputs,
                output_types: types,
                ..step.clone()
            };
        }
    }
}

fn first(ty: &TensorType, dim: usize, count: usize) -> TensorType {
    let mut dims = ty.shape.dims().to_vec();
    dims[dim] = count;
    ty.with_shape(dims)
}

/// How many elements are read, and for each result of the sort the slice that reads it; `None` there: nobody does.
fn first_of(steps: &Steps<'_>, at: usize) -> Option<(usize, Vec<Option<usize>>)> {
    let step = steps.step(at)?;
    let Kernel::Op { op: Op::Sort(sort), .. } = &step.kernel else { return None };
    let mut count = None;
    let mut slices = Vec::with_capacity(step.outputs.len());
    for (&slot, ty) in step.outputs.iter().zip(&step.output_types) {
        let readers = steps.readers(slot);
        if readers.is_empty() && !steps.is_result(slot) {
            slices.push(None);
            continue;
        }
        let reader = steps.only_reader(slot)?;
        let own = sliced(steps.step(reader)?, sort, ty)?;
        if *count.get_or_insert(own) != own {
            return None;
        }
        slices.push(Some(reader));
    }
    // With half of the elements read, putting the others in order is a small part.
    let count = count.filter(|n| 2 * n <= step.output_types[0].shape[sort.dim])?;
    Some((count, slices))
}

/// The number of elements along the sorted dimension, if a step does nothing but take the first of a sort's result.
fn sliced(step: &Step, sort: &Sort, ty: &TensorType) -> Option<usize> {
    let count = *step.output_types.first()?.shape.get(sort.dim)?;
    let fits = step.outputs.len() == 1 && step.output_types[0] == first(ty, sort.dim, count);
    fits.then_some(())?;
    match &step.kernel {
        Kernel::Op { op: Op::Slice(s), .. } => {
            (s.start.iter().all(|&n| n == 0) && s.strides.iter().all(|&n| n == 1)).then_some(count)
        }
        Kernel::Map(map) => {
            let [Load::Array { strides, offset: 0, .. }] = &map.loads[..] else { return None };
            let is_copy = map.instrs.is_empty() && map.stores[..] == [0];
            // The map may have merged dimensions.
            let read: Vec<_> = map.shape.iter().copied().zip(strides.iter().copied()).collect();
            let wanted: Vec<_> = step.output_types[0].shape.iter().copied().zip(own_strides(ty)).collect();
            (is_copy && same_walk(&read, &wanted)).then_some(count)
        }
        _ => None,
    }
}

fn own_strides(ty: &TensorType) -> Vec<usize> {
    ty.shape.strides().iter().copied().collect()
}

/// Whether two lists of sizes and strides visit the same elements in the same order.
fn same_walk(a: &[(usize, usize)], b: &[(usize, usize)]) -> bool {
    let merged = |walk: &[(usize, usize)]| {
        let mut all: Vec<(usize, usize)> = Vec::new();
        for &(n, stride) in walk.iter().filter(|(n, _)| *n != 1) {
            match all.last_mut() {
                Some(last) if last.1 == n * stride => *last = (last.0 * n, stride),
                _ => all.push((n, stride)),
            }
        }
        all
    };
    merged(a) == merged(b)
}
