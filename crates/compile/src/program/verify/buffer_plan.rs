//! Verifies the buffer plan: live arrays do not overlap in memory, and no array is read after it is overwritten.
//!
//! Live ranges are recomputed here, independently of the stage that made the plan.

use super::error::broken;
use crate::program::kernel::{Kernel, ProgramSchedule, Step};
use crate::program::storage::{ALIGN, Location, SlotId};
use systole_ir::{Op, Result};

/// Live range: from the step that writes an array to the last one that reads it.
#[derive(Clone, Copy)]
struct LiveRange {
    first: usize,
    last: usize,
}

/// Checks the buffer plan: live ranges, views, the arena, and the memory of results and donated parameters.
pub fn check(s: &ProgramSchedule, donated: &[usize]) -> Result<()> {
    let own = lives(s);
    for (x, (storage, life)) in s.slots.iter().zip(&own).enumerate() {
        let Some(life) = life else { continue };
        let is_view = matches!(storage.place, Location::View(_));
        if storage.last < life.last || storage.first != life.first && !is_view {
            return Err(broken(s, life.last, format!("slot {x} lives longer than its storage says")));
        }
    }
    let all = views(s, &own)?;
    arena(s, &own, &all)?;
    for k in 0..s.results.len() {
        result(s, k, donated, &own, &all)?;
    }
    Ok(())
}

fn lives(s: &ProgramSchedule) -> Vec<Option<LiveRange>> {
    let given = |place| matches!(place, Location::Param(_) | Location::Constant(_));
    let mut all: Vec<Option<LiveRange>> =
        s.slots.iter().map(|x| given(x.place).then_some(LiveRange { first: 0, last: 0 })).collect();
    for (i, step) in s.steps.iter().enumerate() {
        reads(&mut all, &step.inputs, i);
        for &x in &step.outputs {
            all[x].get_or_insert(LiveRange { first: i, last: i }).last = i;
        }
    }
    let results: Vec<SlotId> = s.results.iter().map(|r| r.slot).collect();
    reads(&mut all, &results, s.steps.len());
    all
}

fn reads(all: &mut [Option<LiveRange>], slots: &[SlotId], at: usize) {
    for &x in slots {
        if let Some(life) = &mut all[x] {
            life.last = at;
        }
    }
}

/// For each slot, the last step that accesses it through a view; `None` without views. Checks that each view is a slice
/// of an array that is not itself a view.
fn views(s: &ProgramSchedule, own: &[Option<LiveRange>]) -> Result<Vec<Option<usize>>> {
    let mut by_views: Vec<Option<usize>> = vec![None; s.slots.len()];
    for (x, storage) in s.slots.iter().enumerate() {
        let Location::View(v) = storage.place else { continue };
        let Some(view) = s.views.get(v) else {
            return Err(broken(s, 0, format!("slot {x} refers to a missing view")));
        };
        let slices = s.steps.get(view.by).is_some_and(|step| {
            let is_slice = matches!(step.kernel, Kernel::Op { op: Op::DynamicSlice(_), .. });
            is_slice && step.inputs[0] == view.of && step.outputs[..] == [x]
        });
        if !slices || matches!(s.slots[view.of].place, Location::View(_)) {
            return Err(broken(s, view.by, format!("slot {x} is not a slice of a materialized array")));
        }
        let last = own[x].map_or(0, |life| life.last);
        by_views[view.of] = Some(by_views[view.of].map_or(last, |other: usize| other.max(last)));
        written_view(s, x, view.of)?;
    }
    Ok(by_views)
}

/// If a step writes into a view, its array must be a result (a loop state), and no later step may read it or the view.
fn written_view(s: &ProgramSchedule, x: SlotId, of: SlotId) -> Result<()> {
    let writes = |step: &Step| step.outputs.contains(&x) && step.inputs.contains(&x);
    let Some(j) = s.steps.iter().position(writes) else { return Ok(()) };
    let later = s.steps[j + 1..].iter().any(|step| step.inputs.contains(&of) || step.inputs.contains(&x));
    if later || s.results.iter().all(|r| r.slot != of) {
        return Err(broken(s, j, format!("slot {of} is read after a part of it is overwritten")));
    }
    Ok(())
}

/// Checks that arena slots that share bytes have disjoint live ranges, unless a step writes one over the other.
fn arena(s: &ProgramSchedule, own: &[Option<LiveRange>], by_views: &[Option<usize>]) -> Result<()> {
    let mut placed: Vec<(usize, SlotId, LiveRange)> = Vec::new();
    for (x, storage) in s.slots.iter().enumerate().filter(|(_, storage)| storage.bytes > 0) {
        let (Location::Arena(at), Some(life)) = (storage.place, own[x]) else { continue };
        if at % ALIGN != 0 || at + storage.bytes > s.arena_bytes {
            return Err(broken(s, life.first, format!("slot {x} is outside of the arena")));
        }
        placed.push((at, x, life));
    }
    placed.sort_unstable_by_key(|&(at, x, _)| (at, x));
    for (k, &(at, x, life)) in placed.iter().enumerate() {
        for &(other, y, theirs) in &placed[k + 1..] {
            if other >= at + s.slots[x].bytes {
                break;
            }
            let ((before, from), (after, to)) =
                if life.first < theirs.first { ((life, x), (theirs, y)) } else { ((theirs, y), (life, x)) };
            let last = by_views[from].map_or(before.last, |last| last.max(before.last));
            let in_place = at == other
                && last == after.first
                && before.first < after.first
                && by_views[from].is_none_or(|view| view < last)
                && s.steps[after.first].may_write_over(from, to);
            if last >= after.first && !in_place {
                return Err(broken(
                    s,
                    after.first,
                    format!("slots {from} and {to} share bytes while both are live"),
                ));
            }
        }
    }
    Ok(())
}

/// Checks that a result has its own memory, or that of a donated parameter that is not read after the result is
/// written.
fn result(
    s: &ProgramSchedule,
    k: usize,
    donated: &[usize],
    own: &[Option<LiveRange>],
    by_views: &[Option<usize>],
) -> Result<()> {
    let r = &s.results[k];
    let (made, first) = written_one_after_the_other(s, k, own, by_views)?;
    if let Location::Arena(_) | Location::View(_) = s.slots[r.slot].place {
        return Err(broken(s, made, format!("result {k} is in the arena")));
    }
    let Some(p) = r.reuse else { return Ok(()) };
    let twice = s.results[..k].iter().any(|other| other.reuse == Some(p));
    let fits = s.params.get(p).is_some_and(|ty| ty.bytes() == s.slots[r.slot].bytes);
    if !donated.contains(&p) || twice || !fits || s.slots[r.slot].place != Location::Result(k) {
        return Err(broken(s, made, format!("result {k} reuses parameter {p}, which is not donated to it")));
    }
    let Some(x) = s.slots.iter().position(|x| x.place == Location::Param(p)) else { return Ok(()) };
    let is_read = s.steps.iter().any(|step| step.inputs.contains(&x));
    let last = own[x].map_or(0, |life| life.last).max(by_views[x].unwrap_or(0));
    let in_place = || {
        last == made && by_views[x].is_none_or(|view| view < made) && s.steps[made].may_write_over(x, first)
    };
    if s.results.iter().any(|other| other.slot == x) || is_read && last >= made && !in_place() {
        return Err(broken(s, last, format!("parameter {p} is read after result {k} has overwritten it")));
    }
    Ok(())
}

/// Checks that each array in a result's memory is written over the previous one, of which its step is the last reader.
/// Returns the first step that writes there, and its slot.
fn written_one_after_the_other(
    s: &ProgramSchedule,
    k: usize,
    own: &[Option<LiveRange>],
    by_views: &[Option<usize>],
) -> Result<(usize, SlotId)> {
    let slot = s.results[k].slot;
    let there = s.slots.iter().enumerate().filter(|(_, x)| x.place == Location::Result(k));
    let mut all: Vec<(LiveRange, SlotId)> = there.filter_map(|(x, _)| Some((own[x]?, x))).collect();
    all.sort_unstable_by_key(|(life, x)| (life.first, *x));
    for pair in all.windows(2) {
        let [(before, from), (after, to)] = [pair[0], pair[1]];
        let in_place = before.last == after.first
            && before.first < after.first
            && by_views[from].is_none_or(|view| view < after.first)
            && s.steps[after.first].may_write_over(from, to);
        if !in_place {
            let what = format!("slots {from} and {to} share the memory of result {k} while both are live");
            return Err(broken(s, after.first, what));
        }
    }
    let made = own[slot].map_or(0, |life| life.first);
    Ok(all.first().map_or((made, slot), |(life, x)| (life.first, *x)))
}
