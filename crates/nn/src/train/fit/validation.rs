//! Runs validation in `fit`, and passes its results to callbacks.

use super::hooks::CallbackSelection;
use super::options::Fit;
use super::run::FitRun;
use crate::callback::progress::{ProgressEvent, report};
use crate::callback::{Callback, FitCx};
use crate::model::Model;
use crate::model::history::{Logs, Validation};
use crate::train::measured_weights::MeasuredWeights;
use systole_ir::Result;

impl FitRun {
    /// Evaluates the model on the validation data, with its weight averages if a callback requests that.
    fn measure(&mut self, model: &mut Model, options: &Fit) -> Result<Logs> {
        let swapped = self.swaps_averages().is_some() && model.swap_averages();
        let measured = self.measured(model, options);
        if swapped {
            model.swap_averages();
        }
        let logs = measured?;
        self.validation.check.take(model.steps(), logs.clone());
        Ok(logs)
    }

    pub(super) fn measured(&mut self, model: &mut Model, options: &Fit) -> Result<Logs> {
        let Some(data) = &options.validation else { return Ok(Logs::new()) };
        let mut logs = Logs::new();
        logs.extend_with_prefix("val_", &model.evaluate_steps(data, options.validation_steps)?);
        self.validation.measured = MeasuredWeights::of(model);
        Ok(logs)
    }

    /// See [`Callback::swaps_averages`].
    fn swaps_averages(&self) -> Option<bool> {
        self.callbacks.iter().filter_map(|c| c.swaps_averages()).reduce(|a, b| a || b)
    }

    /// Calls `on_epoch_end` of all callbacks. The best-model callback sees the weights that were validated.
    pub(super) fn end_epoch(
        &mut self,
        model: &mut Model,
        options: &Fit,
        logs: &Logs,
        epoch: usize,
    ) -> Result<()> {
        let owed = options.validate_last && epoch + 1 == options.epochs;
        let owed = owed && !self.validation.check.is_due(epoch, self.steps.taken, true);
        let swaps = self.swaps_averages();
        let swapped = swaps.is_some() && model.swap_averages();
        let end = |c: &mut dyn Callback, cx: &mut FitCx<'_>| c.on_epoch_end(cx);
        let mut shown = match owed && self.has_no_best() {
            true => Ok(()),
            false => self.each_of(CallbackSelection::Keeper, model, logs, (epoch, false), end),
        };
        let stays = swapped && swaps == Some(true);
        if swapped && !stays {
            model.swap_averages();
        }
        shown =
            shown.and_then(|()| self.each_of(CallbackSelection::Callbacks, model, logs, (epoch, false), end));
        if stays {
            model.swap_averages();
        }
        shown
    }

    /// Adds the validation of a finished epoch to its logs, if one is due.
    pub(super) fn validate(&mut self, model: &mut Model, options: &Fit, logs: &mut Logs) -> Result<()> {
        let (epoch, is_over) = (model.epoch - 1, model.epoch == options.epochs);
        let due =
            self.validation.check.is_due(epoch, self.steps.taken, true) || (options.validate_last && is_over);
        let values = match self.validation.check.at(model.steps()) {
            // The validation within the epoch already covered the last batch.
            Some(values) => values.clone(),
            None if due && self.validation.is_validated => self.measure(model, options)?,
            None => return Ok(()),
        };
        logs.extend_with_prefix("", &values);
        Ok(())
    }

    /// Validates within an epoch, if due.
    pub(super) fn validate_within(
        &mut self,
        model: &mut Model,
        options: &Fit,
        (epoch, steps): (usize, Option<usize>),
    ) -> Result<()> {
        let is_whole = steps == Some(self.steps.taken);
        if !self.validation.is_validated
            || is_whole
            || !self.validation.check.is_due(epoch, self.steps.taken, is_whole)
        {
            return Ok(());
        }
        self.steps.times.take_ends(0, &mut self.history)?;
        let values = self.measure(model, options)?;
        self.history.validations.push(Validation { epoch, step: model.steps(), logs: values.clone() });
        let mut logs = model.compiled()?.train.metrics.logs(&model.state.metrics)?;
        logs.extend_with_prefix("", &values);
        report(
            &(options.verbose > 0)
                .then_some(ProgressEvent::Validation { step: self.steps.taken, logs: &logs }),
        );
        self.add_values(model, &mut logs, (epoch, true))?;
        self.each(model, &logs, (epoch, true), |c, cx| c.on_validation_end(cx))
    }

    /// Runs the final validation if the last epoch had none.
    pub(super) fn validate_last(&mut self, model: &mut Model, options: &Fit) -> Result<()> {
        let Some(mut logs) = self.history.epochs.last().cloned() else { return Ok(()) };
        if !options.validate_last
            || !self.validation.is_validated
            || logs.iter().any(|(n, _)| n.starts_with("val_"))
        {
            return Ok(());
        }
        let values = self.measure(model, options)?;
        logs.extend_with_prefix("", &values);
        if let Some(last) = self.history.epochs.last_mut() {
            *last = logs.clone();
        }
        let epoch = model.epoch.saturating_sub(1);
        let who = if self.has_no_best() { CallbackSelection::Callbacks } else { CallbackSelection::All };
        self.each_of(who, model, &logs, (epoch, false), |c, cx| c.on_validation_end(cx))
    }

    /// Whether no epoch was validated during training: only the final model is measured, so a second file is
    /// unnecessary.
    pub(super) fn has_no_best(&self) -> bool {
        self.validation.best.as_ref().is_none_or(|keeper| keeper.kept.is_none())
    }
}
