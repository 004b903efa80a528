//! Memory footprint of a program by kind, and its largest arrays, for error messages and listings.

use crate::program::{Location, ProgramSchedule, ResultPlan, SlotId};
use systole_ir::TensorType;

/// One array in a listing of memory use.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayUsage {
    /// Type of the array.
    pub ty: TensorType,
    /// The kernel that computes it and its layer, such as `convolution of conv2d`; for an argument, its name.
    pub what: String,
}

/// Bytes that one run of a program needs, by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footprint {
    /// Parameters: weights, optimizer state, the batch.
    pub arguments: usize,
    /// Results that do not alias an argument.
    pub results: usize,
    /// The arena of intermediate values.
    pub arena: usize,
}

/// Computes the memory that a run needs, not counting the workspace of its kernels.
pub fn footprint(s: &ProgramSchedule) -> Footprint {
    let fresh = |(k, r): (usize, &ResultPlan)| {
        let owns = s.slots[r.slot].place == Location::Result(k) && r.reuse.is_none();
        if owns { s.slots[r.slot].bytes } else { 0 }
    };
    let add = usize::saturating_add;
    Footprint {
        arguments: s.params.iter().map(TensorType::bytes).fold(0, add),
        results: s.results.iter().enumerate().map(fresh).fold(0, add),
        arena: s.arena_bytes,
    }
}

/// Intermediate values that are live at the step of peak arena use, largest first.
pub fn largest_intermediates(s: &ProgramSchedule) -> Vec<ArrayUsage> {
    let slots: Vec<usize> =
        (0..s.slots.len()).filter(|&x| matches!(s.slots[x].place, Location::Arena(_))).collect();
    let alive =
        |i: usize| slots.iter().copied().filter(move |&x| s.slots[x].first <= i && i <= s.slots[x].last);
    let need = |i: usize| alive(i).map(|x| s.slots[x].bytes).fold(0, usize::saturating_add);
    let Some(fullest) = (0..s.steps.len()).max_by_key(|&i| need(i)) else { return Vec::new() };
    let mut found: Vec<usize> = alive(fullest).collect();
    found.sort_by_key(|&x| (std::cmp::Reverse(s.slots[x].bytes), x));
    found.into_iter().filter_map(|x| made_by(s, x)).collect()
}

fn made_by(s: &ProgramSchedule, slot: SlotId) -> Option<ArrayUsage> {
    let step = s.steps.get(s.slots[slot].first)?;
    let output = step.outputs.iter().position(|&o| o == slot)?;
    let name = step.kernel.name();
    let what = if step.scope.is_empty() { name } else { format!("{name} of {}", step.scope) };
    Some(ArrayUsage { ty: step.output_types[output].clone(), what })
}
