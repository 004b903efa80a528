//! Orders steps for low memory (list scheduling): a step that frees more bytes than it allocates runs as soon as it is
//! ready.
//!
//! A training graph lists all gradients before the first weight update. In that order every gradient would be live at
//! once. Here each update directly follows the gradient that it consumes, which is then still in cache.

use crate::options::PipelineOptions;
use crate::program::{Location, ProgramSchedule, SlotId, Step};
use std::collections::BTreeSet;

/// Maximum bytes of the outputs of a tiny step, which runs as soon as it is ready: it costs almost no memory, and steps
/// that free large arrays may depend on it.
const TINY: i64 = 4096;

/// Reorders the steps of a program for low memory. Runs before arena offsets are assigned, because these depend on the
/// order.
pub fn run(s: &mut ProgramSchedule, options: &PipelineOptions) {
    let order = StepScheduler::new(s, options).run();
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut s.steps).into_iter().map(Some).collect();
    s.steps = order.into_iter().filter_map(|i| steps[i].take()).collect();
}

struct StepScheduler<'s> {
    s: &'s ProgramSchedule,
    /// For each slot, whether its memory is free after its last reader. False for results, constants, views and
    /// parameters that are not donated.
    may_end: Vec<bool>,
    /// Steps that read each slot.
    readers: Vec<Vec<usize>>,
    /// Number of readers of each slot that have not run yet.
    left: Vec<usize>,
    /// Number of inputs of each step that are not computed yet.
    missing: Vec<usize>,
    ready: BTreeSet<usize>,
}

impl<'s> StepScheduler<'s> {
    fn new(s: &'s ProgramSchedule, options: &PipelineOptions) -> StepScheduler<'s> {
        let mut readers = vec![Vec::new(); s.slots.len()];
        let mut made = vec![false; s.slots.len()];
        for (i, step) in s.steps.iter().enumerate() {
            for slot in distinct(&step.inputs) {
                readers[slot].push(i);
            }
            step.outputs.iter().for_each(|&slot| made[slot] = true);
        }
        let mut may_end: Vec<bool> = s
            .slots
            .iter()
            .map(|x| match x.place {
                Location::Param(p) => options.donated.contains(&p),
                Location::Constant(_) | Location::View(_) => false,
                Location::Arena(_) | Location::Result(_) => true,
            })
            .collect();
        s.results.iter().for_each(|r| may_end[r.slot] = false);
        let missing: Vec<usize> =
            s.steps.iter().map(|step| distinct(&step.inputs).filter(|&x| made[x]).count()).collect();
        let ready = (0..s.steps.len()).filter(|&i| missing[i] == 0).collect();
        let left = readers.iter().map(Vec::len).collect();
        StepScheduler { s, may_end, readers, left, missing, ready }
    }

    fn run(mut self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.s.steps.len());
        while let Some(&first) = self.ready.first() {
            let i = self.ready.iter().copied().find(|&i| self.growth(i) < 0).unwrap_or(first);
            self.ready.remove(&i);
            self.finish(i);
            order.push(i);
        }
        order
    }

    /// Number of bytes by which live memory grows if step `i` runs next; −1 for steps with tiny outputs.
    fn growth(&self, i: usize) -> i64 {
        let step = &self.s.steps[i];
        let takes: i64 = step.outputs.iter().map(|&x| self.s.slots[x].bytes as i64).sum();
        if takes <= TINY {
            return -1;
        }
        let ends = |&x: &usize| self.may_end[x] && self.left[x] == 1;
        let gives: i64 = distinct(&step.inputs).filter(ends).map(|x| self.s.slots[x].bytes as i64).sum();
        takes - gives
    }

    fn finish(&mut self, i: usize) {
        let step = &self.s.steps[i];
        for slot in distinct(&step.inputs) {
            self.left[slot] -= 1;
        }
        // An output that is also an input is an array of which the step writes a part. An earlier step produced it and
        // has released its readers.
        for &slot in step.outputs.iter().filter(|slot| !step.inputs.contains(slot)) {
            for &reader in &self.readers[slot] {
                self.missing[reader] -= 1;
                if self.missing[reader] == 0 {
                    self.ready.insert(reader);
                }
            }
        }
    }
}

/// The slots without duplicates.
fn distinct(slots: &[SlotId]) -> impl Iterator<Item = SlotId> {
    slots.iter().enumerate().filter(|(k, x)| !slots[..*k].contains(x)).map(|(_, &x)| x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType::F32, GraphBuilder, TensorType, grad};

    #[test]
    fn a_weight_is_updated_as_soon_as_its_gradient_is_there() {
        let ty = TensorType::new(F32, [64, 64]);
        let layers = 6;
        let g = GraphBuilder::new("main");
        let x = g.parameter(ty.clone(), "x");
        let weights: Vec<_> = (0..layers).map(|i| g.parameter(ty.clone(), &format!("w{i}"))).collect();
        let y = weights.iter().fold(x, |h, w| h.dot(w).tanh());
        let refs: Vec<_> = weights.iter().collect();
        let loss = y.sum(&[0, 1]);
        let updated: Vec<_> = grad(&loss, &refs).iter().zip(&weights).map(|(d, w)| w - &(d * 0.1)).collect();
        let (graph, _) = crate::optimize(&g.finish(&updated).unwrap()).unwrap();
        let options = PipelineOptions { donated: (1..=layers).collect(), ..PipelineOptions::default() };
        let s = crate::schedule(&graph, &options).unwrap();
        // The activations of the forward pass and a few more arrays, but not one gradient for each weight in addition.
        let array = ty.bytes();
        assert!(s.arena_bytes < (layers + 4) * array, "{} arrays\n{s}", s.arena_bytes / array);
        assert!(s.results.iter().all(|r| r.reuse.is_some()), "{s}");
        // The last layer's weight is updated before the first layer's gradient is computed.
        let update = |k: usize| s.slots[s.results[k].slot].first;
        assert!(update(layers - 1) < update(0), "{s}");
    }
}
