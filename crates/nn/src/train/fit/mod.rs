//! `fit`: trains for epochs of steps over a dataset, with validation, callbacks and progress.

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
use run::FitRun;
use systole_data::{Dataset, DatasetOptions};
use systole_dist::Strategy;
use systole_ir::{Result, err};

/// Pipeline stages are timed for one in so many elements: enough to find bottlenecks, at almost no cost.
const MEASURED: u32 = 16;

impl Model {
    /// Trains the model on `data`, batches of samples with a `label` field.
    ///
    /// With `steps_per_epoch` one pass over `data` continues across epochs (use `repeat`); otherwise each epoch is one
    /// pass, reshuffled.
    ///
    /// # Errors
    /// If the model is not compiled, data and model are incompatible, the data ends before the steps do, a callback
    /// fails, or several hosts disagree. Weights of the last finished step are kept.
    pub fn fit(&mut self, data: &Dataset, mut options: Fit) -> Result<History> {
        options.check()?;
        self.compiled()?;
        let data = &options.limit(data)?;
        self.settle_schedule(data, &options)?;
        let notes = check_run(self, data, &options)?.into_iter().chain(self.loss_activation_warnings());
        let notes: Vec<String> = notes.collect();
        if !self.leads() {
            options.verbose = 0;
        }
        // So that the bottleneck report can name the slow stage.
        let data =
            &data.with_options(DatasetOptions { measure: Some(MEASURED), ..DatasetOptions::default() });
        let mut run = FitRun::open(self, data, &mut options)?;
        run.agree(self, &options)?;
        notes.into_iter().for_each(|note| run.tell(Some(note)));
        options.check_validation(self)?;
        match run.train(self, data, &options) {
            Ok(()) => Ok(run.into_history()),
            Err(e) => {
                run.tell_error(self, &e);
                Err(e)
            }
        }
    }

    /// Whether steps are distributed over devices.
    fn is_spread(&self) -> bool {
        let split = self.compile_config().is_some_and(|c| c.strategy != Strategy::one_device());
        split && self.devices().len() > 1
    }

    /// Sets the number of steps of a whole-run schedule. A resumed run takes it from its backup.
    fn settle_schedule(&mut self, data: &Dataset, options: &Fit) -> Result<()> {
        let from = self.step;
        let Some(compiled) = self.compiled.as_mut() else { return Ok(()) };
        let optimizer = &mut compiled.config.optimizer;
        if !optimizer.is_of_the_run() {
            return Ok(());
        }
        let steps = options.steps_of(data).ok_or_else(|| {
            err!(Config, "the optimizer's schedule spans the whole run, whose number of steps is unknown")
                .because("the dataset does not report its number of batches")
                .hint("set steps_per_epoch, or the schedule's total_steps")
        })?;
        let epochs = options.epochs.saturating_sub(options.initial_epoch) as u64;
        optimizer.settle(from, epochs.saturating_mul(steps as u64), steps as u64);
        Ok(())
    }

    /// Trains one optimizer step on one batch; returns the loss and metrics of this batch alone.
    pub fn train_on_batch(&mut self, batch: &Batch) -> Result<Logs> {
        self.ready_for(batch)?;
        self.state.metrics = self.compiled()?.train.metrics.zeros(&self.output_shapes());
        self.take_step(batch.buffers())?;
        self.compiled()?.train.metrics.logs(&self.state.metrics)
    }

    /// Returns the number of programs compiled for the training step: one per batch size.
    pub fn compiled_programs(&self) -> usize {
        self.compiled.as_ref().map_or(0, |c| c.train.compiled_programs())
    }

    fn take_step(&mut self, batch: DeviceBatch) -> Result<()> {
        self.compiled()?.train.prepare(&self.state, &batch, self.controls())?;
        self.step_on(batch)
    }

    /// Runs one step of a compiled program.
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

/// Checks the arguments of `fit` against the data; returns a warning, if any.
fn check_run(model: &Model, data: &Dataset, options: &Fit) -> Result<Option<String>> {
    check_end(data, options.steps_per_epoch, "an epoch of training", "set steps_per_epoch")?;
    if let Some(validation) = &options.validation {
        check_end(validation, options.validation_steps, "the validation", "set validation_steps")?;
    }
    let wanted = model.compile_config().and_then(|c| c.optimizer.gradient_accumulation_steps).unwrap_or(1);
    let Some(each) = options.steps_of(data) else { return Ok(None) };
    let epochs = options.epochs.saturating_sub(options.initial_epoch);
    let steps = each.saturating_mul(epochs);
    // A resumed run has already accumulated some steps.
    if model.steps() > 0 || steps == 0 || steps >= wanted {
        return Ok(None);
    }
    Ok(Some(format!(
        "no weight will change: gradients of {wanted} steps are accumulated for each update (gradient_accumulation_steps), but \
         the run has {steps}"
    )))
}
