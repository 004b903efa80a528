//! Gradient accumulation with a number of micro-batches that may change during training.

use crate::model::Model;
use crate::model::compiled_steps::CompiledTrainStep;
use serde_json::Value;
use systole_ir::Result;
use systole_runtime::Params;

/// A phase of a run with a constant gradient accumulation factor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccumulationPhase {
    /// Steps per weight update, at least 1.
    factor: u64,
    /// First step of the phase.
    since: u64,
    /// Number of weight updates before the phase.
    updates: u64,
    /// Index of the phase; 0 is the first.
    index: u64,
}

impl AccumulationPhase {
    /// The phase of a run with a single factor.
    pub(crate) fn plain(factor: usize) -> AccumulationPhase {
        AccumulationPhase { factor: factor.max(1) as u64, ..AccumulationPhase::default() }
    }

    /// Returns the optimizer's step counter, as if all earlier updates had used this factor.
    pub(crate) fn step(self, step: u64) -> u64 {
        self.updates * self.factor + (step - self.since.min(step))
    }

    /// Returns the seed of the phase. Counters repeat when the factor shrinks, so each phase has its own seed.
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
    /// Number of steps per weight update.
    pub(crate) fn accumulation(&self) -> usize {
        let of = self.compile_config().and_then(|c| c.optimizer.gradient_accumulation_steps);
        of.unwrap_or(1).max(1)
    }

    fn phase(&self) -> AccumulationPhase {
        self.phase.unwrap_or(AccumulationPhase::plain(self.accumulation()))
    }

    /// Number of steps accumulated for the next update.
    pub(crate) fn gathered(&self) -> u64 {
        let phase = self.phase();
        phase.step(self.step) % phase.factor
    }

    /// Returns the phase with another factor that starts with the next step.
    pub(crate) fn next_phase(&self, factor: usize) -> AccumulationPhase {
        let phase = self.phase();
        let updates = phase.step(self.step) / phase.factor;
        AccumulationPhase { factor: factor as u64, since: self.step, updates, index: phase.index + 1 }
    }

    /// Returns the phase that starts with the next step, for a reset optimizer.
    pub(crate) fn fresh_phase(&self) -> AccumulationPhase {
        AccumulationPhase { updates: 0, ..self.next_phase(self.accumulation()) }
    }

    /// Compiles the step for a phase. Optimizer slots are kept, accumulated gradients are dropped.
    pub(crate) fn accumulate_as(&mut self, phase: AccumulationPhase) -> Result<()> {
        let changes = self.accumulation() as u64 != phase.factor;
        // In the first phase the factor is that of the model's optimizer.
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
