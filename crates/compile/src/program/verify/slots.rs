//! Verifies slots: each has one writer, before all of its readers, and is used with its own size in bytes.

use super::error::broken;
use crate::program::kernel::{Kernel, ProgramSchedule};
use crate::program::storage::{Location, SlotId};
use systole_ir::Result;

/// Checks the slots of a program: writers, readers, sizes and results.
pub fn check(s: &ProgramSchedule) -> Result<()> {
    let mut made: Vec<bool> = s.slots.iter().map(|x| is_given(x.place)).collect();
    for (slot, storage) in s.slots.iter().enumerate() {
        let given = match storage.place {
            Location::Param(p) => s.params.get(p).map(|ty| ty.bytes()),
            Location::Constant(c) => s.constants.get(c).map(|value| value.ty().bytes()),
            Location::Arena(_) | Location::Result(_) | Location::View(_) => continue,
        };
        if given != Some(storage.bytes) {
            return Err(broken(s, 0, format!("slot {slot} differs in size from its parameter or constant")));
        }
    }
    for i in 0..s.steps.len() {
        step(s, i, &mut made).map_err(|what| broken(s, i, what))?;
    }
    for (k, r) in s.results.iter().enumerate() {
        if !made.get(r.slot).copied().unwrap_or(false) {
            return Err(broken(s, s.steps.len(), format!("result {k} is never written")));
        }
        sized(s, r.slot, r.ty.bytes()).map_err(|what| broken(s, s.steps.len(), what))?;
    }
    Ok(())
}

fn is_given(place: Location) -> bool {
    matches!(place, Location::Param(_) | Location::Constant(_))
}

fn sized(s: &ProgramSchedule, slot: SlotId, bytes: usize) -> Result<(), String> {
    let have = s.slots[slot].bytes;
    if have == bytes {
        Ok(())
    } else {
        Err(format!("slot {slot} has {have} bytes, but is used with {bytes} bytes"))
    }
}

fn step(s: &ProgramSchedule, i: usize, made: &mut [bool]) -> Result<(), String> {
    let step = &s.steps[i];
    if (step.inputs.len(), step.outputs.len()) != (step.input_types.len(), step.output_types.len()) {
        return Err("the number of operand or result types is wrong".into());
    }
    for (&slot, ty) in step.inputs.iter().zip(&step.input_types) {
        if !made.get(slot).copied().unwrap_or(false) {
            return Err(format!("slot {slot} is read before it is written"));
        }
        sized(s, slot, ty.bytes())?;
    }
    for (k, (&slot, ty)) in step.outputs.iter().zip(&step.output_types).enumerate() {
        // A view of a loop state exists already; the map only stores into it.
        let is_part = matches!(step.kernel, Kernel::StridedMap(_)) && step.inputs.contains(&slot);
        match made.get(slot) {
            None => return Err(format!("slot {slot} does not exist")),
            Some(true) if !is_part || is_given(s.slots[slot].place) || step.outputs[..k].contains(&slot) => {
                return Err(format!("slot {slot} has a second writer"));
            }
            Some(_) => made[slot] = true,
        }
        sized(s, slot, ty.bytes())?;
    }
    Ok(())
}
