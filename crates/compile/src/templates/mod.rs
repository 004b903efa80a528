//! Templates: rules that replace neighbouring steps by one whose values in between never become arrays.
//!
//! They run on the finished list of steps, before the buffer plan: there every array has one writer and a known list
//! of readers, so a rule fires only where nothing else wants what it removes. [`RULES`] is the whole list.

mod moments;
mod pooling;

use crate::schedule::*;
use std::collections::HashSet;
use systole_ir::{Literal, TensorType};

pub use moments::Moments;
pub use pooling::{DEAD, Pool, Relu, Unpool, UnpooledGradient};

/// One template.
struct Rule {
    /// Fires wherever it may.
    run: fn(&mut Steps<'_>),
}

/// All templates, in the order they run.
const RULES: &[Rule] = &[
    // Max pooling remembers where the maximum was, so that its derivative does not read the operand again.
    Rule { run: pooling::remember_places },
    // The derivative of sum and average pooling.
    Rule { run: pooling::spread_sums },
    // The maximum of relus, and its derivative.
    Rule { run: pooling::relu_before },
    // A convolution whose result is only pooled.
    Rule { run: pooling::convolution_into_pool },
    // relu of a maximum, and its derivative.
    Rule { run: pooling::relu_after },
    // Running sums of such gradients are added to apart: they are small, and the rule below is not for sums.
    Rule { run: pooling::add_kernel_gradients_apart },
    // The gradients of kernel and bias from a pooled gradient: only the chosen places contribute.
    Rule { run: pooling::gradient_of_pooled },
    // That pooled gradient, where it is a product of few terms.
    Rule { run: pooling::product_into_gradient },
    // Statistics of a convolution's result are gathered while that is computed.
    Rule { run: moments::of_convolutions },
    // A product with the result of a pooled convolution.
    Rule { run: pooling::product_of_pooled },
];

/// Runs [`RULES`] on a schedule that has no buffer plan yet.
pub fn run(s: &mut Schedule) {
    let steps = std::mem::take(&mut s.steps);
    let results = s.results.iter().map(|r| r.slot).collect();
    let mut all = Steps { list: steps.into_iter().map(Some).collect(), results, schedule: s };
    RULES.iter().for_each(|r| (r.run)(&mut all));
    let steps: Vec<Step> = all.list.into_iter().flatten().collect();
    s.steps = steps;
    forget_unmade(s);
}

/// Arrays that no step makes any more need no memory.
fn forget_unmade(s: &mut Schedule) {
    let made: HashSet<Slot> = s.steps.iter().flat_map(|step| step.outputs.iter().copied()).collect();
    for (slot, storage) in s.slots.iter_mut().enumerate() {
        if matches!(storage.place, Place::Arena(_)) && !made.contains(&slot) {
            storage.bytes = 0;
        }
    }
}

/// The steps while rules rewrite them; a place stays empty where a step was taken out.
struct Steps<'s> {
    list: Vec<Option<Step>>,
    results: HashSet<Slot>,
    schedule: &'s mut Schedule,
}

impl Steps<'_> {
    /// Places of the steps that pass a test.
    fn find(&self, test: impl Fn(&Step) -> bool) -> Vec<usize> {
        let fits = |i: &usize| self.list[*i].as_ref().is_some_and(&test);
        (0..self.list.len()).filter(fits).collect()
    }

    /// The steps that read a slot, each once.
    fn readers(&self, slot: Slot) -> Vec<usize> {
        self.find(|s| s.inputs.contains(&slot))
    }

    fn is_result(&self, slot: Slot) -> bool {
        self.results.contains(&slot)
    }

    /// The one step that reads a slot, where it reads it once and nothing else wants it.
    fn only_reader(&self, slot: Slot) -> Option<usize> {
        let &[reader] = &self.readers(slot)[..] else { return None };
        let uses = self.step(reader)?.inputs.iter().filter(|&&x| x == slot).count();
        (uses == 1 && !self.is_result(slot)).then_some(reader)
    }

    fn writer(&self, slot: Slot) -> Option<usize> {
        self.find(|s| s.outputs.contains(&slot)).first().copied()
    }

    fn step(&self, i: usize) -> Option<&Step> {
        self.list[i].as_ref()
    }

    /// The value of a slot that is a constant.
    fn constant(&self, slot: Slot) -> Option<&Literal> {
        match self.schedule.slots[slot].place {
            Place::Constant(c) => self.schedule.constants.get(c),
            _ => None,
        }
    }

    fn new_slot(&mut self, ty: &TensorType) -> Slot {
        self.schedule.slots.push(Storage { bytes: ty.bytes(), place: Place::Arena(0), first: 0, last: 0 });
        self.schedule.slots.len() - 1
    }
}
