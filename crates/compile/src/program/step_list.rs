//! Step list editing for fusion rules: readers, writers, replacement and removal of steps.
//!
//! Before steps are ordered and buffers are planned, every array has one writer and a known list of readers. A rule can
//! check that no other step reads an array that it removes.

use super::kernel::{ProgramSchedule, Step};
use super::storage::{Location, SlotId, SlotStorage};
use systole_ir::{Literal, TensorType};

/// Steps that read a slot.
pub fn readers(s: &ProgramSchedule, slot: SlotId) -> impl Iterator<Item = usize> {
    s.steps.iter().enumerate().filter(move |(_, step)| step.inputs.contains(&slot)).map(|(i, _)| i)
}

/// Step that writes a slot.
pub fn writer(s: &ProgramSchedule, slot: SlotId) -> Option<usize> {
    s.steps.iter().position(|step| step.outputs.contains(&slot))
}

/// Whether a slot is a result of the program.
pub fn is_result(s: &ProgramSchedule, slot: SlotId) -> bool {
    s.results.iter().any(|r| r.slot == slot)
}

/// Sets the size of slots that no step writes any more to 0.
fn forget_unmade(s: &mut ProgramSchedule) {
    let mut made = vec![false; s.slots.len()];
    s.steps.iter().flat_map(|step| &step.outputs).for_each(|&slot| made[slot] = true);
    for (storage, made) in s.slots.iter_mut().zip(made) {
        if matches!(storage.place, Location::Arena(_)) && !made {
            storage.bytes = 0;
        }
    }
}

/// The steps of a program while a rule rewrites them.
pub struct StepList<'s> {
    /// `None` if a step was removed, so that indices stay valid.
    pub list: Vec<Option<Step>>,
    /// Whether each slot is a result; excludes slots added since.
    results: Vec<bool>,
    schedule: &'s mut ProgramSchedule,
}

impl<'s> StepList<'s> {
    /// Takes the steps out of a program for rewriting, until [`close`](Self::close).
    pub fn open(s: &'s mut ProgramSchedule) -> StepList<'s> {
        let steps = std::mem::take(&mut s.steps);
        let mut results = vec![false; s.slots.len()];
        s.results.iter().for_each(|r| results[r.slot] = true);
        StepList { list: steps.into_iter().map(Some).collect(), results, schedule: s }
    }

    /// Puts the remaining steps back into the program.
    pub fn close(self) {
        self.schedule.steps = self.list.into_iter().flatten().collect();
        forget_unmade(self.schedule);
    }

    /// Indices of the steps that pass a test.
    pub fn find(&self, test: impl Fn(&Step) -> bool) -> Vec<usize> {
        let fits = |i: &usize| self.list[*i].as_ref().is_some_and(&test);
        (0..self.list.len()).filter(fits).collect()
    }

    /// Indices of the steps that read a slot, without duplicates.
    pub fn readers(&self, slot: SlotId) -> Vec<usize> {
        self.find(|s| s.inputs.contains(&slot))
    }

    /// Whether a slot is a result of the program.
    pub fn is_result(&self, slot: SlotId) -> bool {
        self.results.get(slot).copied().unwrap_or(false)
    }

    /// The only step that reads a slot, if it reads it as one input and the slot is not a result.
    pub fn only_reader(&self, slot: SlotId) -> Option<usize> {
        let &[reader] = &self.readers(slot)[..] else { return None };
        let uses = self.step(reader)?.inputs.iter().filter(|&&x| x == slot).count();
        (uses == 1 && !self.is_result(slot)).then_some(reader)
    }

    /// Index of the step that writes a slot.
    pub fn writer(&self, slot: SlotId) -> Option<usize> {
        self.find(|s| s.outputs.contains(&slot)).first().copied()
    }

    /// The step at an index, unless it was removed.
    pub fn step(&self, i: usize) -> Option<&Step> {
        self.list[i].as_ref()
    }

    /// Value of a slot that is a constant.
    pub fn constant(&self, slot: SlotId) -> Option<&Literal> {
        match self.schedule.slots[slot].place {
            Location::Constant(c) => self.schedule.constants.get(c),
            _ => None,
        }
    }

    /// Creates a slot for an array of type `ty`.
    pub fn new_slot(&mut self, ty: &TensorType) -> SlotId {
        self.schedule.slots.push(SlotStorage {
            bytes: ty.bytes(),
            place: Location::Arena(0),
            first: 0,
            last: 0,
        });
        self.schedule.slots.len() - 1
    }
}
