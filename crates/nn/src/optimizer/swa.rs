//! Stochastic weight averaging: which epochs count, and the learning rate in them.

use crate::setters::field_setters;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;
use systole_ir::{Error, ErrorKind, Result};

/// Stochastic weight averaging (Izmailov et al., 2018): from an epoch on the learning rate goes to one of its own, and the
/// weights at the end of each of these epochs have a mean, which they are at the end of `fit`. Statistics of batch
/// normalisation are then computed anew by one pass over the training data. Arguments and defaults are Lightning's
/// `StochasticWeightAveraging`; as in PyTorch's recipe (`torch.optim.swa_utils`) an epoch's last weights count.
///
/// ```
/// use systole_nn::optimizer::{sgd, Swa};
/// let optimizer = sgd(0.1).momentum(0.9).swa(Swa::new(0.02));
/// assert!(optimizer.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swa {
    /// The learning rate of the epochs that are averaged.
    pub swa_lrs: f64,
    /// The first of them, counted from 0; below 1: so much of all epochs goes before it.
    #[serde(default = "start")]
    pub swa_epoch_start: f64,
    /// Epochs in which the rate goes there.
    #[serde(default = "annealing")]
    pub annealing_epochs: u64,
    /// On the way the rate follows half a cosine (`cos`) or a line (`linear`).
    #[serde(default)]
    pub annealing_strategy: Annealing,
    /// The step at which they begin, and the steps of an epoch, which `fit` fills in.
    #[serde(default)]
    begin: u64,
    #[serde(default)]
    epoch_steps: u64,
}

/// How a rate goes from one value to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Annealing {
    /// Half a cosine.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

fn start() -> f64 {
    0.8
}

fn annealing() -> u64 {
    10
}

impl Swa {
    /// With Lightning's defaults: from 0.8 of the epochs on, ten epochs on the way to the rate `swa_lrs`.
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
            return refuse("swa_lrs is not above 0", "a half to a tenth of the learning rate is usual");
        }
        let start = self.swa_epoch_start;
        if !(start >= 0.0 && start.is_finite()) || (start >= 1.0 && start.fract() != 0.0) {
            return refuse(
                "swa_epoch_start is neither a part of the epochs nor an epoch",
                "0.8 begins after four fifths of them, 10 with epoch 10, counted from 0",
            );
        }
        Ok(())
    }

    pub(super) fn is_of_the_run(&self) -> bool {
        self.epoch_steps == 0
    }

    /// Takes over where in a run the epochs begin.
    pub(super) fn take_place(&mut self, run: &Swa) {
        (self.begin, self.epoch_steps) = (run.begin, run.epoch_steps);
    }

    /// Fills in a run of `steps` that begins at step `from`, with epochs of so many.
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

    /// Epochs that are over at the end of `step` and count.
    pub(super) fn epochs_at(&self, step: u64) -> u64 {
        match self.epoch_steps {
            0 => 0,
            each => (step + 1).saturating_sub(self.begin) / each,
        }
    }

    /// How much of the way to the weights after `step` their mean goes: 1/n after the n-th of the epochs, else nothing.
    pub(super) fn weight_at(&self, step: u64) -> f64 {
        let n = self.epochs_at(step);
        let is_end = step + 1 > self.begin && (step + 1 - self.begin).is_multiple_of(self.epoch_steps.max(1));
        if n > 0 && is_end { 1.0 / n as f64 } else { 0.0 }
    }

    /// The learning rate of `step` where it is one of those epochs; `usual` is that of the step where they begin.
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
        /// The first epoch that is averaged.
        swa_epoch_start(epoch: f64);
        /// Epochs in which the rate goes to `swa_lrs`.
        annealing_epochs(epochs: u64);
    }
}
