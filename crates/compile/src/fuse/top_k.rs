//! Fuses sorts with slices of their first elements into top-k steps.

use crate::program::{Kernel, Step, StepList, TopK};
use systole_ir::Op;

/// Fuses each sort with the slices that are its only readers, to a top-k.
pub fn of_sorts(steps: &mut StepList<'_>) {
    for at in steps.find(|s| matches!(s.kernel, Kernel::Op { op: Op::Sort(_), bias: false })) {
        let Some((k, slices)) = slices_of(steps, at) else { continue };
        let taken: Vec<Step> = slices.iter().filter_map(|&(_, s)| steps.list[s].take()).collect();
        let Some(step) = &mut steps.list[at] else { continue };
        let Kernel::Op { op: Op::Sort(sort), .. } = &step.kernel else { continue };
        let of = slices.iter().map(|&(x, _)| x).collect();
        step.kernel = Kernel::TopK(TopK { sort: sort.clone(), k, of });
        step.outputs = taken.iter().map(|s| s.outputs[0]).collect();
        step.output_types = taken.iter().map(|s| s.output_types[0].clone()).collect();
    }
}

/// Number of elements of each row that are read, and the slices that read them, with the operand index of each.
fn slices_of(steps: &StepList<'_>, at: usize) -> Option<(usize, Vec<(usize, usize)>)> {
    let step = steps.step(at)?;
    let mut found = Vec::new();
    let mut count = None;
    for (x, &slot) in step.outputs.iter().enumerate() {
        if steps.is_result(slot) {
            return None;
        }
        for reader in steps.readers(slot) {
            let k = first_of_lines(steps.step(reader)?, step, x)?;
            if *count.get_or_insert(k) != k {
                return None;
            }
            found.push((x, reader));
        }
    }
    Some((count?, found))
}

/// The k of a slice that reads the first k elements of every sorted row of result `x`.
fn first_of_lines(slice: &Step, sort: &Step, x: usize) -> Option<usize> {
    let (Kernel::Op { op: Op::Slice(s), bias: false }, Kernel::Op { op: Op::Sort(by), .. }) =
        (&slice.kernel, &sort.kernel)
    else {
        return None;
    };
    let (from, to) = (slice.input_types.first()?, slice.output_types.first()?);
    let whole = (0..from.rank()).all(|d| d == by.dim || s.limit[d] == from.shape[d]);
    // A reshape is not a step, so the slice may have other dimensions.
    let fits = *from == sort.output_types[x]
        && whole
        && s.start.iter().all(|&i| i == 0)
        && s.strides.iter().all(|&i| i == 1);
    (fits && from.rank() == to.rank()).then(|| to.shape[by.dim])
}
