//! `fit`: epochs of training steps over a pipeline, with validation, callbacks and progress.

mod backup;
mod epoch;
mod hooks;
mod options;
mod run;
mod step_times;
mod validation;

pub use options::Fit;

use crate::model::Model;
use crate::model::batch::{Batch, DeviceBatch};
use crate::model::history::{History, Logs};
use crate::model::infinite_data::check_end;
use options::steps_in;
use run::FitRun;
use systole_data::{Dataset, DatasetOptions};
use systole_dist::Strategy;
use systole_ir::{Error, ErrorKind, Result};

/// The stages of the data are timed for one of so many elements: often enough for a verdict, and almost for nothing.
const MEASURED: u32 = 16;

impl Model {
    /// Trains on `data`, batches of samples with a `label` field.
    ///
    /// With `steps_per_epoch` one pass over `data` goes on through the epochs (use `repeat`); without, each epoch is
    /// one pass, shuffled anew.
    ///
    /// # Errors
    /// When the model is not compiled, data and model do not fit, the data end before the steps do, or a callback
    /// fails; on several hosts when they differ in what they train. Weights of the last finished step stay.
    pub fn fit(&mut self, data: &Dataset, mut options: Fit) -> Result<History> {
        options.check()?;
        self.compiled()?;
        let data = &options.limit(data)?;
        self.settle_schedule(data, &options)?;
        let note = check_run(self, data, &options)?;
        if !self.leads() {
            options.verbose = 0;
        }
        // So that the verdict can name the slow stage.
        let data =
            &data.with_options(DatasetOptions { measure: Some(MEASURED), ..DatasetOptions::default() });
        let mut run = FitRun::open(self, data, &mut options)?;
        run.agree(self, &options)?;
        run.tell(note);
        options.check_validation(self)?;
        match run.train(self, data, &options) {
            Ok(()) => Ok(run.into_history()),
            Err(e) => {
                run.tell_error(self, &e);
                Err(e)
            }
        }
    }

    /// Whether steps are split over devices.
    fn is_spread(&self) -> bool {
        let split = self.compile_config().is_some_and(|c| c.strategy != Strategy::one_device());
        split && self.devices().len() > 1
    }

    /// A schedule over the whole run learns how many steps that has. A run that goes on takes the one of its backup.
    fn settle_schedule(&mut self, data: &Dataset, options: &Fit) -> Result<()> {
        let from = self.step;
        let Some(compiled) = self.compiled.as_mut() else { return Ok(()) };
        let optimizer = &mut compiled.config.optimizer;
        if !optimizer.is_of_the_run() {
            return Ok(());
        }
        let steps = options.steps_per_epoch.or(steps_in(data)).ok_or_else(|| {
            Error::new(
                ErrorKind::Config,
                "the optimizer's schedule goes over the whole run, whose steps are unknown",
            )
            .because("the data do not tell how many batches they have")
            .hint("set steps_per_epoch, or the schedule's total_steps")
        })?;
        let epochs = options.epochs.saturating_sub(options.initial_epoch) as u64;
        optimizer.settle(from, epochs.saturating_mul(steps as u64), steps as u64);
        Ok(())
    }

    /// One optimizer step on one batch; returns the loss and metrics of this batch alone.
    pub fn train_on_batch(&mut self, batch: &Batch) -> Result<Logs> {
        self.ready_for(batch)?;
        self.state.metrics = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        self.take_step(batch.buffers())?;
        self.compiled()?.train.metrics.logs(&self.state.metrics)
    }

    /// How many programs the training step was compiled into: one for each batch size.
    pub fn compiled_programs(&self) -> usize {
        self.compiled.as_ref().map_or(0, |c| c.train.compiled_programs())
    }

    fn take_step(&mut self, batch: DeviceBatch) -> Result<()> {
        self.compiled()?.train.prepare(&self.state, &batch, self.controls())?;
        self.step_on(batch)
    }

    /// One step of a program that is compiled already.
    pub(crate) fn step_on(&mut self, batch: DeviceBatch) -> Result<()> {
        self.renew_masks()?;
        let controls = self.controls();
        let mut state = std::mem::take(&mut self.state);
        let result = self.compiled().and_then(|c| c.train.run(&mut state, batch, controls));
        self.state = state;
        result?;
        self.step += 1;
        Ok(())
    }
}

/// What is wrong with the arguments of `fit` together with its data; and what is to be said of them.
fn check_run(model: &Model, data: &Dataset, options: &Fit) -> Result<Option<String>> {
    check_end(data, options.steps_per_epoch, "an epoch of training", "set steps_per_epoch")?;
    if let Some(validation) = &options.validation {
        check_end(validation, options.validation_steps, "the validation", "set validation_steps")?;
    }
    let wanted = model.compile_config().and_then(|c| c.optimizer.gradient_accumulation_steps).unwrap_or(1);
    let known = data.cardinality().finite().and_then(|n| usize::try_from(n).ok());
    let Some(each) = options.steps_per_epoch.or(known) else { return Ok(None) };
    let epochs = options.epochs.saturating_sub(options.initial_epoch);
    let steps = each.saturating_mul(epochs);
    // A run that goes on has counted some already.
    if model.steps() > 0 || steps == 0 || steps >= wanted {
        return Ok(None);
    }
    Ok(Some(format!(
        "no weight will change: gradients of {wanted} steps are gathered for each change (gradient_accumulation_steps), and \
         the run has {steps}"
    )))
}
