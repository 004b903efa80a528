//! Calls the callbacks of a `fit` run, and shows notes to the user.

use super::run::FitRun;
use crate::callback::progress::{ProgressEvent, report};
use crate::callback::{Callback, FitCx};
use crate::model::Model;
use crate::model::history::Logs;
use systole_ir::{Error, Result};

/// Which callbacks to call.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum CallbackSelection {
    All,
    /// The one that keeps the best model.
    Keeper,
    /// The user's callbacks.
    Callbacks,
}

impl FitRun {
    /// Reports a note to the user; training continues.
    pub(super) fn tell(&mut self, note: Option<String>) {
        if let Some(text) = note {
            report(&Some(ProgressEvent::Note(&text)));
            self.history.notes.push(text);
        }
    }

    /// Calls every callback with the current context.
    pub(super) fn each(
        &mut self,
        model: &mut Model,
        logs: &Logs,
        at: (usize, bool),
        f: impl FnMut(&mut dyn Callback, &mut FitCx<'_>) -> Result<()>,
    ) -> Result<()> {
        self.each_of(CallbackSelection::All, model, logs, at, f)
    }

    pub(super) fn each_of(
        &mut self,
        who: CallbackSelection,
        model: &mut Model,
        logs: &Logs,
        (epoch, is_within_epoch): (usize, bool),
        mut f: impl FnMut(&mut dyn Callback, &mut FitCx<'_>) -> Result<()>,
    ) -> Result<()> {
        let last_batch = self.steps.last_batch.as_ref();
        let (is_validated, batch, pace) =
            (self.validation.is_validated, self.steps.taken.saturating_sub(1), self.steps.pace);
        let keeper = self.validation.best.iter_mut().filter(|_| who != CallbackSelection::Callbacks);
        let keeper = keeper.map(|keeper| keeper as &mut dyn Callback);
        let callbacks = self.callbacks.iter_mut().filter(|_| who != CallbackSelection::Keeper);
        for callback in keeper.chain(callbacks.map(|c| c.as_mut() as &mut dyn Callback)) {
            let (stop_because, notes) = (&mut self.stop_because, &mut self.history.notes);
            let mut cx = FitCx {
                model,
                logs,
                epoch,
                stop_because,
                notes,
                batch,
                pace,
                last_batch,
                is_validated,
                is_within_epoch,
            };
            f(callback, &mut cx)?;
        }
        Ok(())
    }

    /// Adds values measured by callbacks to the logs.
    pub(super) fn add_values(&mut self, model: &mut Model, logs: &mut Logs, at: (usize, bool)) -> Result<()> {
        let mut added = Logs::new();
        self.each(model, logs, at, |c, cx| {
            c.values(cx)?.iter().for_each(|(name, value)| added.insert(name, value));
            Ok(())
        })?;
        added.iter().for_each(|(name, value)| logs.insert(name, value));
        Ok(())
    }

    /// Notifies callbacks that training failed, so that they can write what they have.
    pub(super) fn tell_error(&mut self, model: &mut Model, e: &Error) {
        let epoch = self.steps.epoch;
        // The closure never returns an error.
        let _ = self.each(model, &Logs::new(), (epoch, true), |c, cx| {
            c.on_exception(cx, e);
            Ok(())
        });
    }
}
