//! Lowers programs with their loops and branches.
#![forbid(unsafe_code)]

use crate::run::control_flow::{CaseKernel, WhileKernel};
use crate::run::loop_code::indexed::is_simple_view;
use crate::run::loop_code::loop_call::{JitLoopCall, PointerSource, SlotMemory};
use crate::run::loop_code::lowering::{LoopArgument, LoopLowering, ProgramSlot, SMALL};
use crate::run::loop_code::steps::is_elementwise;
use crate::simd::jit::scalar_code::{ScalarItem, ScalarType, ScalarValue};
use crate::simd::jit::scalar_lower::scalar_type;
use systole_compile::{Location, ProgramSchedule};
use systole_ir::op::Direction;
use systole_ir::{DType, TensorType};

/// Most items of scalar code.
const MOST_ITEMS: usize = 20_000;

/// Whether scalar code can run a program: views have simple indices, and those that steps write are of large arrays,
/// whose elements are not values.
pub fn is_supported(schedule: &ProgramSchedule) -> bool {
    let is_of_small = |slot: usize| match schedule.slots[slot].place {
        Location::View(v) => schedule.slots[schedule.views[v].of].bytes <= SMALL,
        _ => false,
    };
    schedule.steps.iter().enumerate().all(|(i, step)| {
        let makes_view = schedule.views.iter().any(|v| v.by == i);
        match makes_view {
            true => is_simple_view(step),
            false => !step.outputs.iter().any(|&slot| is_of_small(slot)),
        }
    })
}

impl LoopLowering {
    /// Lowers the steps of a program.
    fn steps(&mut self, program: usize) -> Option<()> {
        let executor = self.programs[program].program.clone();
        let schedule = executor.schedule();
        if !is_supported(schedule) || self.code.items.len() > MOST_ITEMS {
            return None;
        }
        for (i, step) in schedule.steps.iter().enumerate() {
            if executor.makes_view(i).is_some() {
                self.view(program, step)?;
            } else if is_elementwise(step, self.level) {
                self.elementwise_step(program, step)?;
            } else {
                self.control_or_call(program, i)?;
            }
        }
        Some(())
    }

    fn control_or_call(&mut self, program: usize, i: usize) -> Option<()> {
        let executor = self.programs[program].program.clone();
        let step = &executor.schedule().steps[i];
        let inputs: Vec<LoopArgument> =
            step.inputs.iter().map(|&s| LoopArgument::Slot((program, s))).collect();
        let scratch = self.programs[program].scratch;
        let kernel = executor.kernel(i).control_flow();
        if let Some(inner) = kernel.and_then(|k| k.downcast_ref::<WhileKernel>())
            && inner.precomputes_nothing()
            && [&inner.cond, &inner.body].iter().all(|p| is_supported(p.schedule()))
            && inner.updates_in_place(SMALL)
        {
            let states: Vec<SlotMemory> = step.outputs.iter().map(|&s| self.memory((program, s))).collect();
            for (k, start) in inner.starts.iter().enumerate() {
                let Some(start) = *start else { continue };
                self.assign((program, step.inputs[start]), states[k], &step.output_types[k])?;
            }
            self.repeat(inner, inputs, states, &step.output_types, scratch)?;
        } else if let Some(inner) = kernel.and_then(|k| k.downcast_ref::<CaseKernel>())
            && inner.branches.iter().all(|p| is_supported(p.schedule()))
        {
            self.branches(inner, program, i)?;
        } else {
            self.kernel_call(program, i);
        }
        Some(())
    }

    /// Returns the values of all elements of a small slot; `None` if it is large, or no number of scalar code.
    fn elements(&mut self, slot: ProgramSlot, ty: &TensorType) -> Option<Vec<ScalarValue>> {
        let scalar = scalar_type(ty.dtype).filter(|_| ty.bytes() <= SMALL)?;
        (0..ty.elements()).map(|i| self.element(slot, i, scalar)).collect()
    }

    /// Stores numbers in an array's memory.
    fn fill(&mut self, to: SlotMemory, values: &[ScalarValue], ty: &TensorType) -> Option<()> {
        let scalar = scalar_type(ty.dtype)?;
        for (i, &value) in values.iter().enumerate() {
            let address = self.address(to, i * scalar.bytes(), None)?;
            self.code.store(value, address, scalar);
        }
        Some(())
    }

    /// Copies a slot to other memory.
    fn assign(&mut self, from: ProgramSlot, to: SlotMemory, ty: &TensorType) -> Option<()> {
        if let Some(values) = self.elements(from, ty) {
            return self.fill(to, &values, ty);
        }
        let from = self.expose(from);
        if from != to {
            self.copy(from, to, ty.bytes());
        }
        Some(())
    }

    /// Lowers a loop whose states have their initial values. `scratch`: offset of the loop kernel's scratch.
    pub fn repeat(
        &mut self,
        inner: &WhileKernel,
        inputs: Vec<LoopArgument>,
        states: Vec<SlotMemory>,
        types: &[TensorType],
        scratch: usize,
    ) -> Option<()> {
        let mut params = inputs;
        params.truncate(inner.captures);
        params.extend(states.iter().map(|&s| LoopArgument::Memory(s)));
        let (head, end) = (self.code.label(), self.code.label());
        self.place(head);
        let flag = self.code.reserve(1);
        let cond = self.enter(
            &inner.cond,
            params.clone(),
            vec![(SlotMemory::Frame(flag), false)],
            scratch + inner.cond_at,
        );
        self.steps(cond)?;
        let holds = self.element((cond, inner.cond.schedule().results[0].slot), 0, ScalarType::Bool)?;
        self.code.items.push(ScalarItem::JumpUnless(holds, end));
        let is_in_place = |k: usize| inner.body.schedule().results[k].reuse == Some(inner.captures + k);
        let results = states.iter().enumerate().map(|(k, &s)| (s, is_in_place(k))).collect();
        let body = self.enter(&inner.body, params, results, scratch + inner.body_at);
        self.steps(body)?;
        self.next_states(body, inner, &states, types)?;
        self.interruption();
        self.code.items.push(ScalarItem::Jump(head));
        self.place(end);
        Some(())
    }

    /// Copies the body's results to the states.
    fn next_states(
        &mut self,
        body: usize,
        inner: &WhileKernel,
        states: &[SlotMemory],
        types: &[TensorType],
    ) -> Option<()> {
        let mut next = Vec::new();
        for (k, ty) in types.iter().enumerate() {
            let slot = inner.body.schedule().results[k].slot;
            let param = match inner.body.schedule().slots[slot].place {
                Location::Param(p) => Some(p),
                _ => None,
            };
            if param == Some(inner.captures + k) || self.memory((body, slot)) == states[k] {
                continue;
            }
            match self.elements((body, slot), ty) {
                Some(values) => next.push((k, values)),
                // A small array of other numbers, which no state is copied from. Large ones are updated in place.
                None if ty.bytes() <= SMALL && param.is_none() => {
                    let from = self.expose((body, slot));
                    self.copy(from, states[k], ty.bytes());
                }
                None => return None,
            }
        }
        next.into_iter().try_for_each(|(k, values)| self.fill(states[k], &values, &types[k]))
    }

    /// Lets Ctrl-C end the code.
    fn interruption(&mut self) {
        let pointer = self.pointer(PointerSource::InterruptCount);
        let known = self.pointer(PointerSource::KnownInterrupts);
        self.calls.push(JitLoopCall::Interrupted);
        self.code.items.push(ScalarItem::CallIfChanged { call: self.calls.len() - 1, pointer, known });
    }

    /// Lowers branches.
    fn branches(&mut self, inner: &CaseKernel, program: usize, i: usize) -> Option<()> {
        let executor = self.programs[program].program.clone();
        let step = &executor.schedule().steps[i];
        let (&index, captures) = step.inputs.split_last()?;
        let params: Vec<LoopArgument> = captures.iter().map(|&s| LoopArgument::Slot((program, s))).collect();
        let results: Vec<SlotMemory> = step.outputs.iter().map(|&s| self.memory((program, s))).collect();
        let scratch = self.programs[program].scratch;
        let end = self.code.label();
        let last = inner.branches.len() - 1;
        for (k, branch) in inner.branches.iter().enumerate() {
            let next = self.code.label();
            if k < last {
                let chosen = self.element((program, index), 0, ScalarType::I32)?;
                let number = self.code.word(k as u32);
                let is_chosen = self.code.relation(Direction::Eq, DType::I32, chosen, number);
                self.code.items.push(ScalarItem::JumpUnless(is_chosen, next));
            }
            let to = results.iter().map(|&memory| (memory, true)).collect();
            let inside = self.enter(branch, params.clone(), to, scratch);
            self.steps(inside)?;
            self.branch_results(inside, &results)?;
            self.code.items.push(ScalarItem::Jump(end));
            self.place(next);
        }
        self.place(end);
        Some(())
    }

    /// Copies a branch's results to those of the step.
    fn branch_results(&mut self, branch: usize, results: &[SlotMemory]) -> Option<()> {
        let executor = self.programs[branch].program.clone();
        let schedule = executor.schedule();
        let mut values = Vec::new();
        for (k, r) in schedule.results.iter().enumerate() {
            if self.memory((branch, r.slot)) == results[k] {
                continue;
            }
            match self.elements((branch, r.slot), &r.ty) {
                Some(elements) => values.push((k, elements)),
                None => {
                    let from = self.expose((branch, r.slot));
                    self.copy(from, results[k], r.ty.bytes());
                }
            }
        }
        values.into_iter().try_for_each(|(k, values)| self.fill(results[k], &values, &schedule.results[k].ty))
    }
}
