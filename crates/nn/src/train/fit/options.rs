//! [`Fit`]: the arguments of `fit`, and how its limits restrict the data.

use crate::callback::Callback;
use crate::callback::trainer_limits::Limit;
use crate::checkpoint::backup::BackupAndRestore;
use crate::checkpoint::best_model::KeepBest;
use crate::model::Model;
use crate::setters::with_defaults;
use crate::train::val_check::ValCheckInterval;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use systole_data::{Cardinality, Dataset};
use systole_ir::{Result, ResultExt, ensure, err};

with_defaults! {
    /// Arguments of Keras's `fit`.
    ///
    /// ```
    /// # use systole_data::Dataset;
    /// # use systole_ir::Literal;
    /// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
    /// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
    /// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
    /// # let mut model = Model::sequential([dense(1)]);
    /// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
    /// use systole_nn::{callback::EarlyStopping, Fit};
    /// let history = model.fit(&data, Fit {
    ///     epochs: 3,
    ///     validation: Some(data.clone()),
    ///     callbacks: vec![Box::new(EarlyStopping::new("val_loss", 10))],
    ///     ..Default::default()
    /// })?;
    /// assert_eq!(history.get("val_loss").len(), 3);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub struct Fit {
        /// End of the epoch range; training runs epochs `initial_epoch..epochs`.
        pub epochs: usize = 1,
        /// First epoch.
        pub initial_epoch: usize = 0,
        /// Steps per epoch; `None`: until the data ends.
        pub steps_per_epoch: Option<usize> = None,
        /// Number of batches in one pass over the data, if known although the data does not report it (a filtered stream).
        /// Used by whole-run schedules, fractions of an epoch and progress; does not limit the data.
        pub num_training_batches: Option<usize> = None,
        /// Validation data.
        pub validation: Option<Dataset> = None,
        /// Validate every this many epochs; Lightning's `check_val_every_n_epoch`.
        pub validation_freq: usize = 1,
        /// Also validate within epochs: after a fraction of the batches, a number of batches, or a time.
        pub val_check_interval: Option<ValCheckInterval> = None,
        /// Validate at the end of training in any case.
        pub validate_last: bool = false,
        /// Maximum number of validation batches.
        pub validation_steps: Option<usize> = None,
        /// Number of batches in the validation data, if known although the data does not report it.
        pub num_val_batches: Option<usize> = None,
        /// Train only on the first batches of each epoch.
        pub limit_train_batches: Option<Limit> = None,
        /// Validate only on the first batches; 0: no validation.
        pub limit_val_batches: Option<Limit> = None,
        /// Train on the same few batches in every epoch and validate on as many: a model that can learn reaches a loss near
        /// zero. Replaces both limits.
        pub overfit_batches: Option<Limit> = None,
        /// Smoke test: one epoch of so many batches, including validation, without callbacks, backup or best model.
        pub fast_dev_run: Option<usize> = None,
        /// Training ends after the step in which this total time is over; counts all starts of a run.
        pub max_time: Option<Duration> = None,
        /// Pauses the run after this many epochs: the backup resumes it, bit-identical to a run that was never paused.
        pub pause_after: Option<usize> = None,
        /// Checks each step before it is applied, and fails if it would produce non-finite numbers: reports op, layer, and
        /// forward or backward. Writes the batch to this `.npz` file. Doubles the time per step.
        pub detect_anomaly: Option<PathBuf> = None,
        /// Bare training loop for benchmarks: no callbacks, backups, best model, progress, anomaly detection, or validation
        /// before the first step.
        pub barebones: bool = false,
        /// Validate on so many batches before the first step, so that a failing validation is found at once; discards the
        /// results.
        pub num_sanity_val_steps: usize = 0,
        /// Weight of each class in the loss.
        pub class_weight: BTreeMap<i64, f64> = BTreeMap::new(),
        /// Callbacks, called in order.
        pub callbacks: Vec<Box<dyn Callback>> = Vec::new(),
        /// Backs up the run in a folder, and resumes the run in that folder.
        pub backup: Option<BackupAndRestore> = None,
        /// Keeps the model of the best epoch in a file.
        pub best: Option<KeepBest> = None,
        /// 1: report progress; 0: silent.
        pub verbose: usize = 1,
        /// Set by another thread (a signal handler) to stop after the current step.
        pub stop: Option<Arc<AtomicBool>> = None,
    }
}

impl Fit {
    pub(super) fn check(&self) -> Result<()> {
        let zero = |name: &str| err!(Config, "{name} is 0").hint(format!("{name} must be at least 1"));
        ensure!(self.validation_freq != 0, zero("validation_freq"));
        ensure!(self.steps_per_epoch != Some(0), zero("steps_per_epoch"));
        ensure!(self.fast_dev_run != Some(0), zero("fast_dev_run"));
        Ok(())
    }

    /// Applies the limits: returns the restricted data and updates the arguments.
    pub(super) fn limit(&mut self, data: &Dataset) -> Result<Dataset> {
        if let Some(n) = self.fast_dev_run {
            let few = Some(Limit::Batches(n));
            (self.limit_train_batches, self.limit_val_batches) = (few, few);
            (self.epochs, self.validation_freq) = (self.initial_epoch + 1, 1);
            self.val_check_interval = None;
            (self.backup, self.best, self.num_sanity_val_steps) = (None, None, 0);
            self.callbacks.clear();
        }
        if self.barebones {
            (self.backup, self.best, self.num_sanity_val_steps, self.verbose) = (None, None, 0, 0);
            self.detect_anomaly = None;
            self.callbacks.clear();
        }
        if let Some(limit) = self.overfit_batches {
            (self.limit_train_batches, self.limit_val_batches) = (Some(limit), Some(limit));
        }
        if let (Some(limit), Some(validation)) = (self.limit_val_batches, &self.validation) {
            let all = self.validation_steps.or(steps_in(validation)).or(self.num_val_batches);
            match limit.of("limit_val_batches", validation, all)? {
                0 => self.validation = None,
                n => self.validation_steps = Some(n),
            }
        }
        let Some(limit) = self.limit_train_batches else { return Ok(data.clone()) };
        let name = if self.overfit_batches.is_some() { "overfit_batches" } else { "limit_train_batches" };
        let n = limit.of(name, data, self.steps_of(data))?;
        if n == 0 {
            return Err(err!(Config, "{name} leaves no batch to train on")
                .hint("use 1 for one batch of the epoch, or 1.0 for all batches"));
        }
        // An epoch with a fixed number of steps continues in the data where the previous one ended.
        if self.steps_per_epoch.is_some() && self.overfit_batches.is_none() {
            self.steps_per_epoch = Some(n);
            return Ok(data.clone());
        }
        self.steps_per_epoch = None;
        self.num_training_batches = self.num_training_batches.map(|all| all.min(n));
        Ok(data.take(n as u64))
    }

    /// Returns the number of steps of an epoch over the data, if known.
    pub(super) fn steps_of(&self, data: &Dataset) -> Option<usize> {
        self.steps_per_epoch.or(steps_in(data)).or(self.num_training_batches)
    }

    /// Returns the pass over the data (its shuffle order) of an epoch.
    pub(super) fn pass_of(&self, epoch: usize) -> u64 {
        if self.overfit_batches.is_some() { 0 } else { epoch as u64 }
    }

    /// Runs a sanity check of the validation before the first epoch.
    pub(super) fn check_validation(&self, model: &mut Model) -> Result<()> {
        match &self.validation {
            Some(data) if self.num_sanity_val_steps > 0 && model.steps() == 0 => {
                let steps = self
                    .validation_steps
                    .map_or(self.num_sanity_val_steps, |n| n.min(self.num_sanity_val_steps));
                let place = "validation before the first step (num_sanity_val_steps)";
                model.evaluate_steps(data, Some(steps)).at(|| place.to_string()).map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn asked_to_stop(&self) -> bool {
        self.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }
}

/// Returns the number of steps in one pass over the data, if known.
fn steps_in(data: &Dataset) -> Option<usize> {
    match data.cardinality() {
        Cardinality::Finite(n) => usize::try_from(n).ok(),
        _ => None,
    }
}
