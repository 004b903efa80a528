//! How many steps' gradients are gathered for a change of the weights, where that changes while a model is trained.

use crate::model::Model;
use crate::model::compiled_steps::CompiledTrainStep;
use serde_json::Value;
use systole_ir::Result;
use systole_runtime::Params;

/// A part of a run in which gradients of the same number of steps are gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccumulationPhase {
    /// The number, at least 1.
    factor: u64,
    /// The step with which it began.
    since: u64,
    /// Changes of the weights before.
    updates: u64,
    /// Its place among the phases; 0: no other was before.
    index: u64,
}

impl AccumulationPhase {
    /// Of a run that has no other.
    pub(crate) fn plain(factor: usize) -> AccumulationPhase {
        AccumulationPhase { factor: factor.max(1) as u64, ..AccumulationPhase::default() }
    }

    /// What the optimizer counts as the number of earlier steps: groups of this size, all changes before among them.
    pub(crate) fn step(self, step: u64) -> u64 {
        self.updates * self.factor + (step - self.since.min(step))
    }

    /// Counters come again where a group becomes smaller: draws of each phase have a seed of their own.
    pub(crate) fn seed(self, seed: u64) -> u64 {
        seed.wrapping_add(self.index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn to_array(self) -> [u64; 4] {
        [self.factor, self.since, self.updates, self.index]
    }

    pub(crate) fn from_json(value: &Value) -> Option<AccumulationPhase> {
        let number = |i: usize| value.get(i).and_then(Value::as_u64);
        let phase = AccumulationPhase {
            factor: number(0)?,
            since: number(1)?,
            updates: number(2)?,
            index: number(3)?,
        };
        (phase.factor > 0).then_some(phase)
    }
}

impl Model {
    /// Steps whose gradients are gathered for each change of the weights.
    pub(crate) fn accumulation(&self) -> usize {
        let of = self.compile_config().and_then(|c| c.optimizer.gradient_accumulation_steps);
        of.unwrap_or(1).max(1)
    }

    fn phase(&self) -> AccumulationPhase {
        self.phase.unwrap_or(AccumulationPhase::plain(self.accumulation()))
    }

    /// Steps of the group that is not whole yet.
    pub(crate) fn gathered(&self) -> u64 {
        let phase = self.phase();
        phase.step(self.step) % phase.factor
    }

    /// The phase of another number that begins with the next step.
    pub(crate) fn next_phase(&self, factor: usize) -> AccumulationPhase {
        let phase = self.phase();
        let updates = phase.step(self.step) / phase.factor;
        AccumulationPhase { factor: factor as u64, since: self.step, updates, index: phase.index + 1 }
    }

    /// The phase that begins with the next step, of an optimizer that begins anew.
    pub(crate) fn fresh_phase(&self) -> AccumulationPhase {
        AccumulationPhase { updates: 0, ..self.next_phase(self.accumulation()) }
    }

    /// Compiles the step for a phase. What the optimizer keeps stays; gathered gradients do not.
    pub(crate) fn accumulate_as(&mut self, phase: AccumulationPhase) -> Result<()> {
        let changes = self.accumulation() as u64 != phase.factor;
        // Of a whole run it is what the model's own number says.
        self.phase = (phase.index > 0).then_some(phase);
        let architecture = self.architecture.clone();
        let Some(compiled) = self.compiled.as_mut().filter(|_| changes) else { return Ok(()) };
        compiled.config.optimizer.gradient_accumulation_steps =
            (phase.factor > 1).then_some(phase.factor as usize);
        compiled.train =
            CompiledTrainStep::new(&architecture, &compiled.config, &compiled.goals, &compiled.backend);
        if self.state.optimizer.iter().next().is_none() && self.step == 0 {
            return Ok(());
        }
        let fresh = self.compiled()?.train.optimizer_state(&self.state.trainable)?;
        let kept: Params<_> = fresh
            .iter()
            .map(|(name, zero)| {
                let gathers = name.starts_with("gradient_accumulator/");
                let old = self.state.optimizer.get(name).filter(|_| !gathers);
                (name.to_string(), old.unwrap_or(zero).clone())
            })
            .collect();
        self.state.optimizer = kept;
        Ok(())
    }
}
