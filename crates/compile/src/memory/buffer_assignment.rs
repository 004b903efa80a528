//! Buffer assignment: chooses the memory location of each array, so that arrays with disjoint live ranges share memory.
//!
//! Arrays share one arena according to their live ranges, and `dynamic_slice` results may be views of their operand
//! ([`views`]). A step writes in place over an operand of which it is the last reader, if its kernel allows that. A
//! result is written into a donated parameter that has no later reader, and so are the arrays over which it is written.

use super::views;
use crate::options::PipelineOptions;
use crate::program::{ALIGN, Location, ProgramSchedule, SlotId};
use systole_ir::{Error, Result, err};

/// Assigns buffers: live ranges, memory locations, aliases with donated parameters, and the size of the arena.
pub fn run(s: &mut ProgramSchedule, options: &PipelineOptions) -> Result<()> {
    lifetimes(s);
    views::run(s, options);
    reuse_donated(s, options);
    let shared = write_in_place(s);
    allocate(s, &shared)
}

fn lifetimes(s: &mut ProgramSchedule) {
    for (i, step) in s.steps.iter().enumerate() {
        for &slot in &step.outputs {
            s.slots[slot].first = i;
            s.slots[slot].last = i;
        }
        for &slot in &step.inputs {
            s.slots[slot].last = i;
        }
    }
    for r in &s.results {
        s.slots[r.slot].last = s.steps.len();
    }
}

/// Assigns donated parameters to results, and moves the arrays over which a result is written to their memory as well.
fn reuse_donated(s: &mut ProgramSchedule, options: &PipelineOptions) {
    let mut free: Vec<usize> = options.donated.iter().copied().filter(|&p| p < s.params.len()).collect();
    for k in 0..s.results.len() {
        let slot = s.results[k].slot;
        if s.slots[slot].place != Location::Result(k) || s.slots[slot].bytes == 0 {
            continue;
        }
        let mut chain = vec![slot];
        while let Some(before) = written_over(s, chain[chain.len() - 1]) {
            chain.push(before);
        }
        // The longest chain that fits: each array that is not in it is copied.
        while let Some(&first) = chain.last() {
            if let Some(at) = donated_for(s, options, &free, k, first) {
                s.results[k].reuse = Some(free.remove(at));
                chain.iter().for_each(|&x| s.slots[x].place = Location::Result(k));
                break;
            }
            chain.pop();
        }
    }
}

/// Returns which of the parameters `free` result `k` may reuse if `slot` is the first array in its memory.
fn donated_for(
    s: &ProgramSchedule,
    options: &PipelineOptions,
    free: &[usize],
    k: usize,
    slot: SlotId,
) -> Option<usize> {
    let param_slot = |p: usize| s.slots.iter().position(|x| x.place == Location::Param(p));
    let (made, bytes) = (s.slots[slot].first, s.slots[slot].bytes);
    let fits = |&p: &usize| {
        if options.state_at.is_some_and(|at| at + k != p) {
            return false;
        }
        let Some(x) = param_slot(p) else { return false };
        let storage = &s.slots[x];
        if storage.bytes != bytes || s.results.iter().any(|r| r.slot == x) {
            return false;
        }
        let read_here = s.steps[made].inputs.contains(&x);
        if !read_here {
            return storage.last < made || !s.steps.iter().any(|st| st.inputs.contains(&x));
        }
        storage.last == made && s.steps[made].may_write_over(x, slot)
    };
    // The parameter with the result's own index comes first, because states usually return in the order of the
    // parameters. Next is a parameter that the producing step reads (an update in place), last any of the same type.
    let in_place = |p: &usize| param_slot(*p).is_some_and(|x| s.steps[made].inputs.contains(&x));
    free.iter()
        .position(|p| *p == k && fits(p))
        .or_else(|| free.iter().position(|p| in_place(p) && fits(p)))
        .or_else(|| free.iter().position(|p| s.params[*p] == s.results[k].ty && fits(p)))
}

/// Returns the array in the arena over which the step that makes a slot may write it.
fn written_over(s: &ProgramSchedule, slot: SlotId) -> Option<SlotId> {
    let made = s.slots[slot].first;
    let step = &s.steps[made];
    let fits = |&x: &SlotId| {
        let storage = &s.slots[x];
        matches!(storage.place, Location::Arena(_))
            && storage.bytes == s.slots[slot].bytes
            && storage.last == made
            && storage.first < made
            && step.may_write_over(x, slot)
    };
    step.inputs.iter().copied().find(fits)
}

/// For each slot, the input slot whose memory it reuses if the producing step writes in place.
fn write_in_place(s: &mut ProgramSchedule) -> Vec<Option<SlotId>> {
    let mut takes: Vec<Option<SlotId>> = vec![None; s.slots.len()];
    let mut taken = vec![false; s.slots.len()];
    for (i, step) in s.steps.iter().enumerate() {
        for &out in &step.outputs {
            if !matches!(s.slots[out].place, Location::Arena(_)) {
                continue;
            }
            let candidate = step.inputs.iter().copied().find(|&x| {
                matches!(s.slots[x].place, Location::Arena(_))
                    && s.slots[x].last == i
                    && s.slots[x].first < i
                    && !taken[x]
                    && step.may_write_over(x, out)
            });
            if let Some(x) = candidate {
                taken[x] = true;
                takes[out] = Some(x);
            }
        }
    }
    takes
}

/// First-fit allocation in order of decreasing size: each slot gets the lowest gap between the slots with overlapping
/// live ranges that are placed already.
fn allocate(s: &mut ProgramSchedule, takes: &[Option<SlotId>]) -> Result<()> {
    // A chain of in-place writes is one allocation, live from its first write to its last read.
    let root = |mut slot: SlotId| {
        while let Some(before) = takes[slot] {
            slot = before;
        }
        slot
    };
    let mut blocks: Vec<(SlotId, usize, usize, usize)> = Vec::new();
    for slot in 0..s.slots.len() {
        if !matches!(s.slots[slot].place, Location::Arena(_)) {
            continue;
        }
        let r = root(slot);
        let x = &s.slots[slot];
        match blocks.iter_mut().find(|b| b.0 == r) {
            Some(b) => {
                b.2 = b.2.min(x.first);
                b.3 = b.3.max(x.last);
            }
            None => blocks.push((r, x.bytes, x.first, x.last)),
        }
    }
    blocks.sort_by_key(|&(slot, bytes, ..)| (std::cmp::Reverse(bytes), slot));
    let mut placed: Vec<(usize, usize, usize, usize)> = Vec::new();
    let mut offsets = std::collections::HashMap::new();
    for (slot, bytes, first, last) in blocks {
        let mut busy: Vec<(usize, usize)> =
            placed.iter().filter(|p| p.2 <= last && first <= p.3).map(|p| (p.0, p.1)).collect();
        busy.sort_unstable();
        let mut at = 0usize;
        for (start, end) in busy {
            if start >= at && start - at >= bytes {
                break;
            }
            at = at.max(end);
        }
        let end =
            at.checked_add(bytes).and_then(|e| e.checked_next_multiple_of(ALIGN)).ok_or_else(too_large)?;
        placed.push((at, end, first, last));
        offsets.insert(slot, at);
        s.arena_bytes = s.arena_bytes.max(end);
    }
    for slot in 0..s.slots.len() {
        if matches!(s.slots[slot].place, Location::Arena(_)) {
            s.slots[slot].place = Location::Arena(offsets[&root(slot)]);
        }
    }
    Ok(())
}

fn too_large() -> Error {
    err!(Unsupported, "the program's arrays exceed the address space").hint("use a smaller batch size")
}

#[cfg(test)]
mod tests {
    use crate::{Location, PipelineOptions, ProgramSchedule};
    use systole_ir::DType::{F32, I32};
    use systole_ir::{GraphBuilder, Tensor, TensorType, control_builders};

    fn planned(build: impl Fn(&GraphBuilder) -> Vec<Tensor>, donated: Vec<usize>) -> ProgramSchedule {
        let g = GraphBuilder::new("main");
        let results = build(&g);
        let graph = g.finish(&results).unwrap();
        let (graph, _) = crate::optimize(&graph).unwrap();
        crate::schedule(&graph, &PipelineOptions { donated, ..PipelineOptions::default() }).unwrap()
    }

    #[test]
    fn states_are_updated_in_place_and_read_parameters_are_not() {
        let ty = TensorType::new(F32, [64, 64]);
        let s = planned(
            |g| {
                let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty.clone(), "x"));
                vec![&w - &(&x * 0.1), x.dot(&w)]
            },
            vec![0, 1],
        );
        // The dot still reads `w`, so the new `w` uses the memory of `x` or of no parameter.
        assert!(s.results.iter().all(|r| r.reuse != Some(0)) || s.steps.len() == 2);
        let s = planned(
            |g| {
                let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty.clone(), "x"));
                vec![&w - &(&x * 0.1)]
            },
            vec![0],
        );
        assert_eq!(s.results[0].reuse, Some(0));
        assert_eq!(s.arena_bytes, 0);
    }

    /// The program of `build(x, once, row, i)`: `once` is `x: f32[64, 32]`, which is donated, with a row replaced. Also
    /// the number of arrays in the memory of its result.
    fn updated(build: impl Fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Tensor) -> (ProgramSchedule, usize) {
        let s = planned(
            |g| {
                let x = g.parameter(TensorType::new(F32, [64, 32]), "x");
                let row = g.parameter(TensorType::new(F32, [1, 32]), "row");
                let i = g.parameter(TensorType::scalar(I32), "i");
                vec![build(&x, &x.dynamic_update_slice(&row, &[&i, &i]), &row, &i)]
            },
            vec![0],
        );
        let count = s.slots.iter().filter(|x| x.place == Location::Result(0)).count();
        (s, count)
    }

    #[test]
    fn updates_one_after_the_other_and_in_branches_stay_in_the_state() {
        let (s, count) = updated(|_, once, row, i| {
            let again = || vec![once.dynamic_update_slice(row, &[i, &i.scalar_like(0.0)])];
            control_builders::cond(&i.less(&i.scalar_like(9.0)), again, || vec![once.clone()]).remove(0)
        });
        assert_eq!(s.results[0].reuse, Some(0), "{s}");
        // The arena holds the index of the branch only.
        assert_eq!((count, s.arena_bytes), (2, 64), "{s}");
    }

    /// A parameter that is read after the first update keeps it out of the parameter's memory.
    #[test]
    fn a_chain_begins_after_the_last_reader_of_the_parameter() {
        let (s, count) = updated(|x, once, _, i| {
            let product = once.dot(&x.transpose(&[1, 0])).slice_dim(0, 0, 1).slice_dim(1, 0, 32);
            once.dynamic_update_slice(&product, &[&i.scalar_like(5.0), i])
        });
        assert_eq!((s.results[0].reuse, count), (Some(0), 1), "{s}");
    }

    #[test]
    fn arrays_alive_together_do_not_overlap() {
        let ty = TensorType::new(F32, [32, 32]);
        let s = planned(
            |g| {
                let x = g.parameter(ty.clone(), "x");
                let mut h = x.clone();
                for _ in 0..6 {
                    h = h.dot(&x).tanh().dot(&h);
                }
                vec![h]
            },
            vec![],
        );
        for (i, a) in s.slots.iter().enumerate() {
            for b in &s.slots[..i] {
                let (Location::Arena(x), Location::Arena(y)) = (a.place, b.place) else { continue };
                let together = a.first < b.last && b.first < a.last;
                assert!(!together || x + a.bytes <= y || y + b.bytes <= x, "{a:?} {b:?}");
            }
        }
        let all: usize = s.slots.iter().map(|x| x.bytes).sum();
        assert!(s.arena_bytes * 2 < all, "{} of {all}", s.arena_bytes);
    }
}
