//! Weight averaging (EMA, stochastic weight averaging) and Lookahead in the optimizer's update.

use super::optimizer_config::Optimizer;
use super::rule::{key, slot};
use super::scheduled_values::StepValues;
use systole_ir::{Error, ErrorKind, Result, Tensor};
use systole_runtime::Params;

/// Keras's name of the EMA slot.
pub(super) const AVERAGE: &str = "average";
/// Slot with Lookahead's slow weights.
pub(super) const SLOW: &str = "slow";

impl Optimizer {
    pub(super) fn check_averages(&self) -> Result<()> {
        let refuse = |what: &str, hint: &str| {
            Err(Error::new(ErrorKind::Config, what).at(format!("optimizer {}", self.name())).hint(hint))
        };
        if self.lookahead_steps == Some(0) {
            return refuse("lookahead_steps is 0", "omit it to disable Lookahead; the paper's value is 5");
        }
        let Some(swa) = &self.swa else { return Ok(()) };
        if self.use_ema {
            return refuse(
                "`use_ema` and `swa` are both set",
                "set one of them: only one average can replace the weights",
            );
        }
        swa.check()
    }

    /// Updates the averages with the parameters. Every step counts, also with gradient accumulation, as in Keras.
    pub(super) fn averaged(
        &self,
        step: &Tensor,
        values: &StepValues,
        params: Params,
        mut state: Params,
    ) -> (Params, Params) {
        if let Some(part) = &values.swa {
            for (name, p) in params.iter() {
                let mean = slot(&state, AVERAGE, name, p);
                let mean = &mean + (p - &mean) * part.convert(p.dtype());
                state.insert(key(AVERAGE, name), mean);
            }
        }
        if !self.use_ema {
            return (params, state);
        }
        let is_first = step.equal(&step.zeros_like());
        let means = params.map(|name, p| {
            let kept = p.scalar_like(self.ema_momentum);
            let kept = is_first.select(&kept.zeros_like(), &kept);
            &kept * slot(&state, AVERAGE, name, p) + (p.scalar_like(1.0) - &kept) * p
        });
        for (name, mean) in means.iter() {
            state.insert(key(AVERAGE, name), mean.clone());
        }
        let Some(frequency) = self.ema_overwrite_frequency else { return (params, state) };
        let due = (step + 1.0).remainder(&step.scalar_like(frequency as f64)).equal(&step.zeros_like());
        (params.map(|name, p| due.select(&means[name], p)), state)
    }

    /// Lookahead: resets parameters to the slow weights when due; `updates: i64[]` is the number of earlier updates.
    pub(super) fn look_ahead(&self, updates: &Tensor, params: Params, mut state: Params) -> (Params, Params) {
        let Some(k) = self.lookahead_steps else { return (params, state) };
        let due = (updates + 1.0).remainder(&updates.scalar_like(k as f64)).equal(&updates.zeros_like());
        let new = params.map(|name, fast| {
            let slow = slot(&state, SLOW, name, fast);
            let nearer = &slow + (fast - &slow) * self.lookahead_alpha;
            state.insert(key(SLOW, name), due.select(&nearer, &slow));
            due.select(&nearer, fast)
        });
        (new, state)
    }

    /// Returns the state key of a parameter's average after `steps`, if there is an average to use.
    pub(crate) fn average_of(&self, param: &str, steps: u64) -> Option<String> {
        let is_there = match &self.swa {
            Some(swa) => steps > 0 && swa.epochs_at(steps - 1) > 0,
            // Before the first step the averages are zero.
            None => self.use_ema && steps > 0,
        };
        is_there.then(|| key(AVERAGE, param))
    }
}
