//! Stochastic weight averaging (SWA): which epochs are averaged, and their learning rate.

use crate::json::{Deserialize, Serialize};
use crate::setters::field_setters;
use std::f64::consts::PI;
use systole_ir::{Error, ErrorKind, Result};

/// Stochastic weight averaging (Izmailov et al., 2018): from `swa_epoch_start` on, the learning rate moves to `swa_lrs`
/// and the weights at the end of each epoch are averaged; the mean replaces the weights at the end of `fit`. Batch
/// normalization statistics are then recomputed in one pass over the training data. Arguments and defaults are
/// Lightning's `StochasticWeightAveraging`; as in PyTorch's `torch.optim.swa_utils`, an epoch contributes its last
/// weights.
///
/// ```
/// use systole_nn::optimizer::{sgd, Swa};
/// let optimizer = sgd(0.1).momentum(0.9).swa(Swa::new(0.02));
/// assert!(optimizer.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swa {
    /// Learning rate of the averaged epochs.
    pub swa_lrs: f64,
    /// First averaged epoch, counted from 0; below 1: a fraction of all epochs.
    #[serde(default = "start")]
    pub swa_epoch_start: f64,
    /// Number of epochs over which the rate moves to `swa_lrs`.
    #[serde(default = "annealing")]
    pub annealing_epochs: u64,
    /// Shape of that transition: cosine (`cos`) or `linear`.
    #[serde(default)]
    pub annealing_strategy: Annealing,
    /// First averaged step, and steps per epoch; `fit` fills them in.
    #[serde(default)]
    begin: u64,
    #[serde(default)]
    epoch_steps: u64,
}

/// Shape of the transition between two learning rates of stochastic weight averaging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Annealing {
    /// Half a cosine.
    #[default]
    Cos,
    /// Straight line.
    Linear,
}

fn start() -> f64 {
    0.8
}

fn annealing() -> u64 {
    10
}

impl Swa {
    /// Creates SWA with Lightning's defaults: starts at 0.8 of the epochs, ten epochs of annealing to `swa_lrs`.
    pub fn new(swa_lrs: f64) -> Swa {
        Swa {
            swa_lrs,
            swa_epoch_start: start(),
            annealing_epochs: annealing(),
            annealing_strategy: Annealing::Cos,
            begin: 0,
            epoch_steps: 0,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let refuse =
            |what: &str, hint: &str| Err(Error::new(ErrorKind::Config, what).at("optimizer.swa").hint(hint));
        if !(self.swa_lrs > 0.0 && self.swa_lrs.is_finite()) {
            return refuse("swa_lrs is not above 0", "use a half to a tenth of the learning rate");
        }
        let start = self.swa_epoch_start;
        if !(start >= 0.0 && start.is_finite()) || (start >= 1.0 && start.fract() != 0.0) {
            return refuse(
                "swa_epoch_start is neither a fraction of the epochs nor an epoch number",
                "use 0.8 to start after 80 % of the epochs, or 10 for epoch 10, counted from 0",
            );
        }
        Ok(())
    }

    pub(super) fn is_of_the_run(&self) -> bool {
        self.epoch_steps == 0
    }

    /// Copies the run's start of averaging.
    pub(super) fn take_place(&mut self, run: &Swa) {
        (self.begin, self.epoch_steps) = (run.begin, run.epoch_steps);
    }

    /// Copies the start of averaging from `planned`, which is resolved for a run of another length. `step` is the next
    /// step. Returns the new first averaged step if it differs.
    pub(super) fn take_length(&mut self, planned: &Swa, step: u64) -> Option<u64> {
        if planned.epoch_steps == 0 || planned.begin == self.begin {
            return None;
        }
        let (own_began, planned_began) = (self.begin < step, planned.begin < step);
        if own_began && planned_began {
            // The mean so far counts epochs from its own start.
            return None;
        }
        // A mean can only start with the epochs that are left.
        let missed = step.saturating_sub(planned.begin).div_ceil(planned.epoch_steps);
        let begin = planned.begin + if planned_began { missed * planned.epoch_steps } else { 0 };
        let is_new = begin != self.begin;
        (self.begin, self.epoch_steps) = (begin, planned.epoch_steps);
        is_new.then_some(begin)
    }

    /// Sets the start of averaging for a run of `steps` from step `from`, with `epoch_steps` per epoch.
    pub(super) fn settle(&mut self, from: u64, steps: u64, epoch_steps: u64) {
        if !self.is_of_the_run() {
            return;
        }
        self.epoch_steps = epoch_steps.max(1);
        let epochs = steps / self.epoch_steps;
        let first = match self.swa_epoch_start {
            part if part < 1.0 => (epochs as f64 * part) as u64,
            epoch => epoch as u64,
        };
        self.begin = from + first * self.epoch_steps;
    }

    /// Returns the number of averaged epochs complete at the end of `step`.
    pub(super) fn epochs_at(&self, step: u64) -> u64 {
        match self.epoch_steps {
            0 => 0,
            each => (step + 1).saturating_sub(self.begin) / each,
        }
    }

    /// Returns the averaging weight after `step`: 1/n at the end of the n-th averaged epoch, otherwise 0.
    pub(super) fn weight_at(&self, step: u64) -> f64 {
        let n = self.epochs_at(step);
        let is_end = step + 1 > self.begin && (step + 1 - self.begin).is_multiple_of(self.epoch_steps.max(1));
        if n > 0 && is_end { 1.0 / n as f64 } else { 0.0 }
    }

    /// Returns the learning rate of `step` if it is in an averaged epoch; `usual` gives the regular rate at the first
    /// of them.
    pub(super) fn rate_at(&self, step: u64, usual: impl Fn(u64) -> f64) -> f64 {
        if self.epoch_steps == 0 || step < self.begin {
            return usual(step);
        }
        let epoch = (step - self.begin) / self.epoch_steps;
        let way = (epoch as f64 / self.annealing_epochs.max(1) as f64).min(1.0);
        let way = if self.annealing_epochs == 0 { 1.0 } else { way };
        let part = match self.annealing_strategy {
            Annealing::Cos => 0.5 * (1.0 - (PI * way).cos()),
            Annealing::Linear => way,
        };
        self.swa_lrs * part + usual(self.begin) * (1.0 - part)
    }
}

field_setters! {
    impl Swa {
        /// First averaged epoch.
        swa_epoch_start(epoch: f64);
        /// Number of epochs over which the rate moves to `swa_lrs`.
        annealing_epochs(epochs: u64);
    }
}
