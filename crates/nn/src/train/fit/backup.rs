//! Backups of a `fit` run: restoring, saving when due, and agreement between hosts.

use super::options::Fit;
use super::run::{FitRun, out_of_data};
use crate::callback::progress::{ProgressEvent, report};
use crate::callback::{CallbackState, duration};
use crate::checkpoint::backup::{LoadedBackup, RunPosition, RunState, snapshot};
use crate::model::Model;
use crate::train::multi_host::HostRequests;
use std::time::Instant;
use systole_data::Dataset;
use systole_dist::Strategy;
use systole_ir::{Result, ResultExt, err};

impl FitRun {
    /// Resumes the run in the backup folder. `epochs`: the run's planned number. Returns a note if its schedules change.
    pub(super) fn restore(
        &mut self,
        model: &mut Model,
        data: &Dataset,
        found: Option<LoadedBackup>,
        epochs: usize,
    ) -> Result<Option<String>> {
        let Some(mut found) = found else { return Ok(None) };
        let path = found.path.display().to_string();
        if !model.is_built() {
            let first = data.iter().next().ok_or_else(|| out_of_data(0, 0, None))??;
            model.build_for(&model.batch_of(&first)?)?;
        }
        self.restore_callbacks(model, found.callbacks()).at(|| path.clone())?;
        self.history = found.run.history().at(|| path.clone())?;
        self.steps.position = found.run.position().at(|| path.clone())?;
        (self.steps.epoch, self.steps.taken) = (found.run.place.epoch, found.run.place.steps);
        self.stop_because = found.run.place.stopped_because.take();
        let waited = duration("validated_seconds", found.run.place.validated_seconds.unwrap_or(0.0))?;
        let last = self.history.validations.last().map(|v| (v.step, v.logs.clone()));
        self.validation.check.go_on(waited, last);
        let before = found.run.place.trained_seconds.unwrap_or(0.0);
        self.clock.trained_before = duration("trained_seconds", before)?;
        // A killed run keeps its schedules: its callbacks may have set their lengths.
        let is_longer = found.run.place.finished && self.stop_because.is_none() && self.steps.epoch < epochs;
        model.restore(found.file, is_longer).at(|| path)
    }

    /// Restores the state of each callback; loggers may have been added or removed.
    fn restore_callbacks(&mut self, model: &mut Model, states: Vec<(CallbackState, bool)>) -> Result<()> {
        let (all, now) = (states.len(), self.callbacks.len());
        // Earlier versions did not record which callbacks are loggers; equal counts are taken as equal callbacks.
        let is_apart = all != now || states.iter().any(|(_, is_logger)| *is_logger);
        let (loggers, others): (Vec<_>, Vec<_>) = states.into_iter().partition(|(_, is_logger)| *is_logger);
        let (mut loggers, mut others) = (loggers.into_iter(), others.into_iter());
        let mut wanting = 0;
        for callback in &mut self.callbacks {
            let is_free = is_apart && callback.is_logger();
            let state = if is_free { loggers.next() } else { others.next() };
            wanting += usize::from(state.is_none() && !is_free);
            if let Some((state, _)) = state {
                callback.restore(&state)?;
                callback.prepare(model)?;
            }
        }
        if wanting + others.len() > 0 {
            return Err(err!(Config, "the backup is of a run with other callbacks")
                .because(format!("the backup has {all} callbacks, this run has {now}"))
                .hint("resume with the callbacks of the original run"));
        }
        Ok(())
    }

    /// With several hosts: returns an error if their runs differ.
    pub(super) fn agree(&self, model: &Model, options: &Fit) -> Result<()> {
        if self.backup.meetings.is_none() {
            return Ok(());
        }
        if model.compile_config().is_some_and(|c| c.strategy == Strategy::one_device()) {
            return Err(err!(Config, "strategy one_device does not support several hosts")
                .because("each host would train the whole model separately")
                .hint("choose data_parallel or fully_sharded"));
        }
        let Fit { epochs, initial_epoch, steps_per_epoch, validation_freq, validation_steps, .. } = options;
        let validates = options.validation.is_some();
        let arguments = format!(
            "epochs {initial_epoch} to {epochs} of {steps_per_epoch:?} steps, validation {validates} every \
             {validation_freq} and {:?} for {validation_steps:?} steps, class weights {:?}, {} callbacks",
            options.val_check_interval,
            options.class_weight,
            self.callbacks.len()
        );
        let best = self.validation.best.as_ref().and_then(|keeper| keeper.kept.as_ref());
        if self.validation.check.is_by_time() {
            return Err(err!(Config, "val_check_interval cannot be a time with several hosts")
                .because("the clocks of the hosts cannot agree on a step")
                .hint("give a number of batches: val_check_interval = 100"));
        }
        let place =
            format!("step {} (epoch {}, {} steps of it)", model.steps(), self.steps.epoch, self.steps.taken);
        let place = format!("{place}, the best so far {best:?}");
        let mut things = model.common()?;
        things.push(("the arguments of fit", arguments));
        things.push(("the position to resume from", place));
        model.agree(&things)
    }

    /// Returns the actions after a step (or, with `epoch_ends`, an epoch), agreed on by all hosts.
    pub(super) fn due(&mut self, model: &Model, interrupts: bool, epoch_ends: bool) -> Result<HostRequests> {
        let ends = self.stop_because.is_some();
        let own = HostRequests { interrupts, ends, saves: self.backup_is_due(model, epoch_ends) };
        let (Some(meetings), Some(hosts)) = (&mut self.backup.meetings, model.hosts()) else {
            return Ok(own);
        };
        let due = match epoch_ends {
            true => meetings.after_epoch(hosts, own),
            false => meetings.after_step(hosts, own),
        }?;
        if due.ends {
            self.stop_because.get_or_insert_with(|| "a callback on another host ended training".into());
        }
        Ok(due)
    }

    /// Backs up the run. With `finished`, the run is complete and the write is awaited. A failed backup is reported and
    /// does not end training.
    pub(super) fn back_up(&mut self, model: &Model, finished: bool, verbose: usize) {
        let start = Instant::now();
        let (history, callbacks) = (&self.history, &self.callbacks);
        let must = finished || history.interrupted;
        let place = RunPosition {
            epoch: self.steps.epoch,
            steps: self.steps.taken,
            finished,
            stopped_because: self.stop_because.clone(),
            trained_seconds: self.clock.max_time.map(|_| self.clock.trained().as_secs_f64()),
            validated_seconds: self
                .validation
                .check
                .is_by_time()
                .then(|| self.validation.check.waited().as_secs_f64()),
            data: self.steps.position.to_string(),
        };
        let file = || {
            let states = callbacks.iter().map(|c| c.state()).collect::<Result<Vec<CallbackState>>>()?;
            let loggers =
                callbacks.iter().enumerate().filter(|(_, c)| c.is_logger()).map(|(k, _)| k).collect();
            snapshot(model, &RunState::new(place, history, &states, loggers), states)
        };
        let saved = match (&mut self.backup.backups, &self.backup.meetings) {
            (Some(backups), None) => backups.save(model.steps(), must, file),
            // All hosts gather the arrays together, so the backup cannot be skipped while an earlier one is being
            // written.
            (Some(backups), Some(_)) => {
                let (earlier, file) = (backups.wait(), file());
                earlier.and(backups.save(model.steps(), must, || file))
            }
            (None, Some(meetings)) if meetings.is_kept => file().map(drop),
            (None, _) => return,
        };
        self.history.backup_ms.push(start.elapsed().as_secs_f32() * 1e3);
        if let Err(e) = saved {
            let text = format!("the run is not backed up: {e}");
            report(&(verbose > 0).then_some(ProgressEvent::Note(&text)));
            self.history.notes.push(text);
        }
    }

    fn backup_is_due(&self, model: &Model, epoch_ends: bool) -> bool {
        self.backup.backups.as_ref().is_some_and(|b| b.is_due(model.steps(), epoch_ends))
    }
}
