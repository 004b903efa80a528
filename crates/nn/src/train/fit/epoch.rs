//! Runs the epoch and step loop of `fit`.

use super::hooks::CallbackSelection;
use super::options::Fit;
use super::run::{FitRun, out_of_data};
use super::step_times::StartedStep;
use crate::callback::EpochPace;
use crate::callback::progress::{EpochProgress, report};
use crate::model::Model;
use crate::model::batch::Batch;
use crate::model::history::{Logs, WEIGHTS_NOTE};
use crate::train::input_pipeline::{BatchRecipe, InputPipeline, ReadyBatch};
use crate::train::measured_weights::MeasuredWeights;
use crate::train::weight_averaging::AveragedWeights;
use std::time::{Duration, Instant};
use systole_data::{Dataset, DatasetIter, PipelinePosition};
use systole_ir::Result;
use systole_runtime::{STEPS_IN_FLIGHT, trace};

impl FitRun {
    /// Trains all remaining epochs.
    pub(super) fn train(&mut self, model: &mut Model, data: &Dataset, options: &Fit) -> Result<()> {
        self.each(model, &Logs::new(), (0, false), |c, cx| c.on_train_begin(cx))?;
        let (first, start) = (self.steps.epoch, (self.steps.epoch, self.steps.taken));
        let mut goes_on = None;
        for epoch in first..options.epochs {
            if self.stop_because.is_some() {
                break;
            }
            if options.pause_after.is_some_and(|epochs| epoch >= epochs) {
                self.history.interrupted = true;
                self.back_up(model, false, options.verbose);
                break;
            }
            let mut feed = match goes_on.take() {
                Some(feed) => feed,
                None if epoch == first => self.feed(model, options, data.iter_at(&self.steps.position))?,
                None => self.feed(model, options, data.iter_epoch(options.pass_of(epoch)))?,
            };
            let steps = options.steps_of(data);
            self.run_epoch(model, options, epoch, &mut feed, steps)?;
            self.history.data = Some(feed.report());
            goes_on = options.steps_per_epoch.map(|_| feed);
            if self.history.interrupted {
                break;
            }
        }
        if !self.history.interrupted {
            self.validate_last(model, options)?;
            if (self.steps.epoch, self.steps.taken) != start {
                self.back_up(model, true, options.verbose);
            }
            self.take_averages(model, data, options)?;
        }
        let logs = self.history.last();
        self.each(model, &logs, (options.epochs, false), |c, cx| c.on_train_end(cx))?;
        self.history.is_final_validated = self.validation.measured.are_those_of(model);
        Ok(())
    }

    /// Starts the input pipeline of a pass; `iter` is at its start or in the middle.
    fn feed(&self, model: &Model, options: &Fit, iter: DatasetIter) -> Result<InputPipeline> {
        let epochs = options.epochs.saturating_sub(self.steps.epoch);
        let most = |n: usize| n.saturating_mul(epochs).saturating_sub(self.steps.taken);
        let recipe = BatchRecipe {
            fields: model.batch_fields(),
            class_weight: options.class_weight.clone(),
            backend: model.compiled()?.backend.clone(),
            positions: self.backup.backups.is_some(),
            most: options.steps_per_epoch.map(most),
        };
        Ok(InputPipeline::start(iter, recipe))
    }

    /// Applies weight averages at the end of the run and repeats the final validation with them.
    fn take_averages(&mut self, model: &mut Model, data: &Dataset, options: &Fit) -> Result<()> {
        let took = model.take_averages()?;
        model.apply_masks()?;
        if took == AveragedWeights::MeansOfEpochs {
            model.refresh_statistics(data, options.steps_per_epoch)?;
        }
        if let Some(which) = took.description() {
            model.notes.insert(WEIGHTS_NOTE.into(), which.into());
        }
        if took == AveragedWeights::Nothing || !options.validate_last || !self.validation.is_validated {
            return Ok(());
        }
        let values = self.measured(model, options)?;
        let Some(last) = self.history.epochs.last_mut() else { return Ok(()) };
        last.extend_with_prefix("", &values);
        let (logs, at) = (last.clone(), (model.epoch.saturating_sub(1), false));
        if self.has_no_best() {
            return Ok(());
        }
        // The averaged model competes with those of the epochs.
        self.each_of(CallbackSelection::Keeper, model, &logs, at, |c, cx| c.on_validation_end(cx))
    }

    fn run_epoch(
        &mut self,
        model: &mut Model,
        options: &Fit,
        epoch: usize,
        feed: &mut InputPipeline,
        steps: Option<usize>,
    ) -> Result<()> {
        let began = Instant::now();
        let before = (self.steps.taken, self.history.samples);
        self.steps.times.begin_epoch();
        if self.steps.taken == 0 {
            self.each(model, &Logs::new(), (epoch, false), |c, cx| c.on_epoch_begin(cx))?;
        }
        let progress = EpochProgress { epoch, epochs: options.epochs, steps, verbose: options.verbose };
        report(&progress.begin(self.steps.taken));
        if self.steps.taken == 0 {
            model.state.metrics = model.compiled()?.train.metrics.zeros(&model.output_shapes());
        }
        let done = self.run_steps(model, options, &progress, feed, steps, began)?;
        if done == 0 {
            return if self.history.interrupted { Ok(()) } else { Err(out_of_data(epoch, 0, steps)) };
        }
        if let Some(wanted) = options.steps_per_epoch.filter(|&n| done < n)
            && !self.history.interrupted
            && self.stop_because.is_none()
        {
            return Err(out_of_data(epoch, done, Some(wanted)));
        }
        let trained = began.elapsed();
        self.steps.pace = self.pace_since(before, trained);
        let mut logs = model.compiled()?.train.metrics.logs(&model.state.metrics)?;
        if !self.history.interrupted {
            model.epoch = epoch + 1;
            self.validate(model, options, &mut logs)?;
        }
        let at = self.steps.times.elapsed(done, trained);
        report(&progress.end(at, &logs, !self.history.interrupted));
        if self.history.interrupted {
            // A backup does not record an unfinished epoch.
            self.back_up(model, false, options.verbose);
            self.history.epochs.push(logs);
            return Ok(());
        }
        self.add_values(model, &mut logs, (epoch, false))?;
        self.history.epochs.push(logs.clone());
        self.end_epoch(model, options, &logs, epoch)?;
        (self.steps.epoch, self.steps.taken) = (epoch + 1, 0);
        if options.steps_per_epoch.is_none() {
            self.steps.position = PipelinePosition::new(options.pass_of(self.steps.epoch), 0);
        }
        let due = self.due(model, false, true)?;
        if due.saves && self.steps.epoch < options.epochs && self.stop_because.is_none() {
            self.back_up(model, false, options.verbose);
        }
        Ok(())
    }

    fn run_steps(
        &mut self,
        model: &mut Model,
        options: &Fit,
        progress: &EpochProgress,
        feed: &mut InputPipeline,
        steps: Option<usize>,
        began: Instant,
    ) -> Result<usize> {
        let mut done = self.steps.taken;
        let (mut is_ready, mut last) = (false, None);
        while options.steps_per_epoch.is_none_or(|n| done < n) {
            // Before data is requested: waiting for data counts only while the device is idle.
            self.steps.times.take_ends(STEPS_IN_FLIGHT - 1, &mut self.history)?;
            let start = Instant::now();
            let Some(fed) = feed.next() else { break };
            let fetched = Instant::now();
            trace::span("data", "wait for data", Some(start), || "{}".into());
            let ReadyBatch { batch, on_device, position } = fed?;
            if self.is_left_out(progress.epoch, &batch) {
                done += 1;
                (self.steps.taken, self.steps.position) = (done, position.unwrap_or_default());
                continue;
            }
            match std::mem::replace(&mut is_ready, true) {
                false => model.ready_for(&batch)?,
                true => model.check_step_batch(&batch)?,
            }
            if let Some(file) = &options.detect_anomaly {
                self.steps.times.take_ends(0, &mut self.history)?;
                model.detect_anomaly(&mut self.steps.probe, &batch, file)?;
            }
            // A weak reference would keep the step from updating weights in place.
            self.validation.measured = MeasuredWeights::default();
            model.take_step(on_device)?;
            let event = model.state.ready_event();
            let is_over = event.is_none();
            self.steps.times.in_flight.push(StartedStep { at: start, fetched, on_device: !is_over }, event);
            done += 1;
            self.steps.taken = done;
            self.steps.position = position.unwrap_or_default();
            self.history.samples += batch.size() as u64;
            self.look_at_step(model, progress, (&batch, is_over), began)?;
            self.check_time();
            self.validate_within(model, options, (progress.epoch, steps))?;
            let due = self.due(model, options.asked_to_stop(), false)?;
            self.history.interrupted = due.interrupts;
            if due.interrupts || due.ends {
                break;
            }
            if due.saves {
                self.steps.times.take_ends(0, &mut self.history)?;
                self.back_up(model, false, options.verbose);
            }
            last = Some(batch);
        }
        self.steps.times.take_ends(0, &mut self.history)?;
        last.map_or(Ok(done), |batch| self.check_loss(model, &batch, false).map(|()| done))
    }

    /// Whether a callback skips the next batch of an epoch; otherwise keeps the batch for callbacks that need the last
    /// one.
    fn is_left_out(&mut self, epoch: usize, batch: &Batch) -> bool {
        if self.callbacks.iter().any(|c| c.skips(epoch, self.steps.taken)) {
            return true;
        }
        if self.callbacks.iter().any(|c| c.wants_last_batch(epoch)) {
            self.steps.last_batch = Some(batch.clone());
        }
        false
    }

    /// Reports a step and calls callbacks that need it.
    fn look_at_step(
        &mut self,
        model: &mut Model,
        progress: &EpochProgress,
        (batch, is_over): (&Batch, bool),
        began: Instant,
    ) -> Result<()> {
        let shown = progress.wants_batch(self.steps.taken, progress.steps, began.elapsed());
        let wants_logs = shown || self.callbacks.iter().any(|c| c.wants_batch(model.step));
        self.steps.times.take_ends(if wants_logs { 0 } else { STEPS_IN_FLIGHT }, &mut self.history)?;
        if is_over || wants_logs {
            self.check_loss(model, batch, is_over)?;
        }
        if !wants_logs {
            return Ok(());
        }
        let at = self.steps.times.elapsed(self.steps.taken, began.elapsed());
        let mut logs = model.compiled()?.train.metrics.logs(&model.state.metrics)?;
        report(&shown.then(|| progress.batch(at, &logs)));
        self.add_values(model, &mut logs, (progress.epoch, true))?;
        self.each(model, &logs, (progress.epoch, true), |c, cx| c.on_train_batch_end(cx))
    }

    /// Ends training with an explanation if the loss is not finite. `exactly`: whether every earlier step was checked.
    fn check_loss(&mut self, model: &mut Model, batch: &Batch, exactly: bool) -> Result<()> {
        let train = &model.compiled()?.train;
        if self.stop_because.is_none() && !train.losses_are_finite(&model.state)? {
            // Weights are from before that step, optimizer slots are not.
            let slots = train.optimizer_state(&model.state.trainable)?;
            self.stop_because = Some(model.explain_loss(batch, exactly));
            model.state.optimizer = slots;
        }
        Ok(())
    }

    /// Returns the batches and samples since the given counts, with the elapsed time.
    fn pace_since(&self, (batches, samples): (usize, u64), time: Duration) -> EpochPace {
        let batches = self.steps.taken.saturating_sub(batches) as u64;
        EpochPace { batches, samples: self.history.samples - samples, time }
    }
}
