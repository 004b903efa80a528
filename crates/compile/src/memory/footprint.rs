//! What a program's memory is taken up by, for people who must make it smaller.

use crate::program::{Location, ResultPlan, Schedule, Slot};
use systole_ir::TensorType;

/// One array of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    /// Its type.
    pub ty: TensorType,
    /// What makes it, and for which layer: `convolution of conv2d`; the name of a parameter.
    pub what: String,
}

/// The bytes that one run needs, by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footprint {
    /// Arguments: weights, optimizer state, the batch.
    pub arguments: usize,
    /// Results that are not written over arguments.
    pub results: usize,
    /// Intermediate values.
    pub arena: usize,
}

/// How much memory the program needs beside its kernels' working memory.
pub fn footprint(s: &Schedule) -> Footprint {
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

/// The intermediate values that exist when most memory is in use, largest first.
pub fn largest_intermediates(s: &Schedule) -> Vec<Holding> {
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

fn made_by(s: &Schedule, slot: Slot) -> Option<Holding> {
    let step = s.steps.get(s.slots[slot].first)?;
    let output = step.outputs.iter().position(|&o| o == slot)?;
    let name = step.kernel.name();
    let what = if step.scope.is_empty() { name } else { format!("{name} of {}", step.scope) };
    Some(Holding { ty: step.output_types[output].clone(), what })
}
