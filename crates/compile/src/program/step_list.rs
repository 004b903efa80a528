//! Rewriting of step lists for fusion rules, before steps are ordered and buffers are planned.
//!
//! At this point every array has one writer and a known list of readers, so a rule can check that no other step reads
//! an array that it removes.

use super::kernel::{Schedule, Step};
use super::storage::{Location, Slot, Storage};
use systole_ir::{Literal, TensorType};

/// The steps that read a slot.
pub fn readers(s: &Schedule, slot: Slot) -> impl Iterator<Item = usize> {
    s.steps.iter().enumerate().filter(move |(_, step)| step.inputs.contains(&slot)).map(|(i, _)| i)
}

/// The step that writes a slot.
pub fn writer(s: &Schedule, slot: Slot) -> Option<usize> {
    s.steps.iter().position(|step| step.outputs.contains(&slot))
}

/// Whether a slot is a result of the program.
pub fn is_result(s: &Schedule, slot: Slot) -> bool {
    s.results.iter().any(|r| r.slot == slot)
}

/// Sets the size of slots to 0 that no step writes any more.
fn forget_unmade(s: &mut Schedule) {
    let mut made = vec![false; s.slots.len()];
    s.steps.iter().flat_map(|step| &step.outputs).for_each(|&slot| made[slot] = true);
    for (storage, made) in s.slots.iter_mut().zip(made) {
        if matches!(storage.place, Location::Arena(_)) && !made {
            storage.bytes = 0;
        }
    }
}

/// The steps while a rule rewrites them.
pub struct Steps<'s> {
    /// `None` where a step was removed, so that indices stay valid.
    pub list: Vec<Option<Step>>,
    /// Whether each slot is a result; slots that are new since then are not.
    results: Vec<bool>,
    schedule: &'s mut Schedule,
}

impl<'s> Steps<'s> {
    /// Takes the steps out of a program, until [`close`](Self::close).
    pub fn open(s: &'s mut Schedule) -> Steps<'s> {
        let steps = std::mem::take(&mut s.steps);
        let mut results = vec![false; s.slots.len()];
        s.results.iter().for_each(|r| results[r.slot] = true);
        Steps { list: steps.into_iter().map(Some).collect(), results, schedule: s }
    }

    /// Puts the steps back that are left.
    pub fn close(self) {
        self.schedule.steps = self.list.into_iter().flatten().collect();
        forget_unmade(self.schedule);
    }

    /// Indices of the steps that pass a test.
    pub fn find(&self, test: impl Fn(&Step) -> bool) -> Vec<usize> {
        let fits = |i: &usize| self.list[*i].as_ref().is_some_and(&test);
        (0..self.list.len()).filter(fits).collect()
    }

    /// Indices of the steps that read a slot, each once.
    pub fn readers(&self, slot: Slot) -> Vec<usize> {
        self.find(|s| s.inputs.contains(&slot))
    }

    /// Whether a slot is a result of the program.
    pub fn is_result(&self, slot: Slot) -> bool {
        self.results.get(slot).copied().unwrap_or(false)
    }

    /// The only step that reads a slot, if it has one input of that slot and the slot is no result.
    pub fn only_reader(&self, slot: Slot) -> Option<usize> {
        let &[reader] = &self.readers(slot)[..] else { return None };
        let uses = self.step(reader)?.inputs.iter().filter(|&&x| x == slot).count();
        (uses == 1 && !self.is_result(slot)).then_some(reader)
    }

    /// The step that writes a slot.
    pub fn writer(&self, slot: Slot) -> Option<usize> {
        self.find(|s| s.outputs.contains(&slot)).first().copied()
    }

    /// The step at an index, unless it was removed.
    pub fn step(&self, i: usize) -> Option<&Step> {
        self.list[i].as_ref()
    }

    /// The value of a slot that is a constant.
    pub fn constant(&self, slot: Slot) -> Option<&Literal> {
        match self.schedule.slots[slot].place {
            Location::Constant(c) => self.schedule.constants.get(c),
            _ => None,
        }
    }

    /// A new slot for an array of type `ty`.
    pub fn new_slot(&mut self, ty: &TensorType) -> Slot {
        self.schedule.slots.push(Storage { bytes: ty.bytes(), place: Location::Arena(0), first: 0, last: 0 });
        self.schedule.slots.len() - 1
    }
}
