//! `fit`: epochs of training steps over a pipeline, with validation, callbacks and progress.

use crate::callback::limits::Limit;
use crate::callback::progress::{Elapsed, Progress, ProgressEvent, report};
use crate::callback::{Callback, CallbackState, FitCx, Pace};
use crate::checkpoint::backup::{BackupAndRestore, Backups, FoundBackup, RunPlace, RunState, snapshot};
use crate::checkpoint::best::{KeepBest, Keeper};
use crate::diagnose::anomaly::Probe;
use crate::model::Model;
use crate::model::batch::{Batch, DeviceBatch};
use crate::model::endless::check_end;
use crate::model::history::{History, Logs, Validation};
use crate::train::averages::Took;
use crate::train::feed::{BatchRecipe, Feed, ReadyBatch};
use crate::train::hosts::{Due, Meetings};
use crate::train::val_check::{ValCheck, ValCheckInterval};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use systole_data::{Cardinality, Dataset, DatasetIter, Options, Position};
use systole_dist::Strategy;
use systole_ir::{Error, ErrorKind, Result, ResultExt};
use systole_runtime::{Ended, InFlight, STEPS_IN_FLIGHT, trace};

/// The stages of the data are timed for one of so many elements: often enough for a verdict, and almost for nothing.
const MEASURED: u32 = 16;

/// The arguments of Keras's `fit`.
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
    /// Number of the last epoch plus one; training runs epochs `initial_epoch..epochs`.
    pub epochs: usize,
    /// The first epoch's number.
    pub initial_epoch: usize,
    /// Steps in an epoch; `None`: until the data end.
    pub steps_per_epoch: Option<usize>,
    /// Data to evaluate on.
    pub validation: Option<Dataset>,
    /// Evaluate after every so many epochs; Lightning's `check_val_every_n_epoch`.
    pub validation_freq: usize,
    /// Evaluate in the middle of epochs, too: after a share of their batches, so many of them, or some time.
    pub val_check_interval: Option<ValCheckInterval>,
    /// Evaluate when training ends, whatever the epochs before.
    pub validate_last: bool,
    /// Evaluate on at most so many batches.
    pub validation_steps: Option<usize>,
    /// Train on this part of each epoch's batches: its first ones.
    pub limit_train_batches: Option<Limit>,
    /// Evaluate on this part of the validation's batches; 0: not at all.
    pub limit_val_batches: Option<Limit>,
    /// Train on the same few batches in every epoch and evaluate on as many: a model that can learn reaches a loss of
    /// next to nothing. Takes the place of both limits.
    pub overfit_batches: Option<Limit>,
    /// One epoch of so many batches, validation included, without callbacks, backup and best model: does it run at all?
    pub fast_dev_run: Option<usize>,
    /// Training ends after the step in which this time is over, all starts of a run together.
    pub max_time: Option<Duration>,
    /// Stops, as if asked to, once this many epochs of `epochs` are over: the backup goes on from there, to the same bits as a run
    /// that was never stopped.
    pub pause_after: Option<usize>,
    /// Looks at each step before it is taken, and ends with an error where numbers would arise in it that are not finite: the op, the
    /// layer, and whether forward or backward. Its batch is written to this file, an `.npz`. A step costs twice as much.
    pub detect_anomaly: Option<PathBuf>,
    /// The loop alone, to measure it: without callbacks, backups, best model, progress, anomaly detection, and validation
    /// before the first step.
    pub barebones: bool,
    /// Evaluate on so many batches before the first step, so that validation that fails does so at once; the results
    /// are not kept.
    pub num_sanity_val_steps: usize,
    /// Weight of each class in the loss.
    pub class_weight: BTreeMap<i64, f64>,
    /// Called as training goes on, in order.
    pub callbacks: Vec<Box<dyn Callback>>,
    /// Keeps the run in a folder, and goes on with the run that the folder holds.
    pub backup: Option<BackupAndRestore>,
    /// Keeps the model of the best epoch in a file.
    pub best: Option<KeepBest>,
    /// 1: report progress; 0: be silent.
    pub verbose: usize,
    /// Set by another thread (a signal handler) to stop after the current step.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for Fit {
    fn default() -> Fit {
        Fit {
            epochs: 1,
            initial_epoch: 0,
            steps_per_epoch: None,
            validation: None,
            validation_freq: 1,
            val_check_interval: None,
            validate_last: false,
            validation_steps: None,
            limit_train_batches: None,
            limit_val_batches: None,
            overfit_batches: None,
            fast_dev_run: None,
            max_time: None,
            pause_after: None,
            detect_anomaly: None,
            barebones: false,
            num_sanity_val_steps: 0,
            class_weight: BTreeMap::new(),
            callbacks: Vec::new(),
            backup: None,
            best: None,
            verbose: 1,
            stop: None,
        }
    }
}

impl Fit {
    fn check(&self) -> Result<()> {
        let zero = |name: &str| {
            Error::new(ErrorKind::Config, format!("{name} is 0")).hint(format!("{name} must be at least 1"))
        };
        if self.validation_freq == 0 {
            return Err(zero("validation_freq"));
        }
        if self.steps_per_epoch == Some(0) {
            return Err(zero("steps_per_epoch"));
        }
        if self.fast_dev_run == Some(0) {
            return Err(zero("fast_dev_run"));
        }
        Ok(())
    }

    /// What the limits leave of the data; what they take away is taken out of the arguments.
    fn limit(&mut self, data: &Dataset) -> Result<Dataset> {
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
            match limit.of("limit_val_batches", validation, self.validation_steps)? {
                0 => self.validation = None,
                n => self.validation_steps = Some(n),
            }
        }
        let Some(limit) = self.limit_train_batches else { return Ok(data.clone()) };
        let name = if self.overfit_batches.is_some() { "overfit_batches" } else { "limit_train_batches" };
        let n = limit.of(name, data, self.steps_per_epoch)?;
        if n == 0 {
            let what = format!("{name} leaves no batch to train on");
            return Err(Error::new(ErrorKind::Config, what).hint("1 is one batch, 1.0 all of them"));
        }
        // An epoch of steps of its own goes on in the data where the last one ended.
        if self.steps_per_epoch.is_some() && self.overfit_batches.is_none() {
            self.steps_per_epoch = Some(n);
            return Ok(data.clone());
        }
        self.steps_per_epoch = None;
        Ok(data.take(n as u64))
    }

    /// Which of the orders of the data an epoch has.
    fn pass_of(&self, epoch: usize) -> u64 {
        if self.overfit_batches.is_some() { 0 } else { epoch as u64 }
    }

    /// Validation that cannot run is found out before the first epoch is trained.
    fn check_validation(&self, model: &mut Model) -> Result<()> {
        match &self.validation {
            Some(data) if self.num_sanity_val_steps > 0 && model.steps() == 0 => {
                let steps = self
                    .validation_steps
                    .map_or(self.num_sanity_val_steps, |n| n.min(self.num_sanity_val_steps));
                let place = "the validation before the first step (num_sanity_val_steps)";
                model.evaluate_steps(data, Some(steps)).at(|| place.to_string()).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn asked_to_stop(&self) -> bool {
        self.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }
}

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
        let data = &data.with_options(Options { measure: Some(MEASURED), ..Options::default() });
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

    /// The batches of a pass, which `iter` is at the begin of or in.
    fn feed(&self, run: &FitRun, options: &Fit, iter: DatasetIter) -> Result<Feed> {
        let epochs = options.epochs.saturating_sub(run.epoch);
        let most = |n: usize| n.saturating_mul(epochs).saturating_sub(run.taken);
        let recipe = BatchRecipe {
            fields: self.batch_fields(),
            class_weight: options.class_weight.clone(),
            backend: self.compiled()?.backend.clone(),
            positions: run.backups.is_some(),
            most: options.steps_per_epoch.map(most),
        };
        Ok(Feed::start(iter, recipe))
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

fn steps_in(data: &Dataset) -> Option<usize> {
    match data.cardinality() {
        Cardinality::Finite(n) => usize::try_from(n).ok(),
        _ => None,
    }
}

struct FitRun {
    history: History,
    callbacks: Vec<Box<dyn Callback>>,
    /// Has no part in backups, and sees no steps.
    best: Option<Keeper>,
    stop_because: Option<String>,
    /// Of the host that writes them.
    backups: Option<Backups>,
    /// Where there are several hosts.
    meetings: Option<Meetings>,
    /// The epoch of the next step, the steps that were taken in it, and the place in the data behind them, for backups.
    epoch: usize,
    taken: usize,
    /// Steps that devices may still compute by themselves.
    in_flight: InFlight<Begun>,
    /// When the last step ended.
    ended: Option<Instant>,
    /// Time that the steps of this epoch waited for data, and that the host waited for them.
    waited: Duration,
    device_waited: Duration,
    position: Position,
    /// When this start began, and what earlier ones of the run trained, as far as their backups know.
    began: Instant,
    trained_before: Duration,
    max_time: Option<Duration>,
    val_check: ValCheck,
    is_validated: bool,
    pace: Pace,
    /// Where a callback looks at it.
    last_batch: Option<Batch>,
    /// Looks for numbers that are not finite, where that is asked for.
    probe: Option<Probe>,
}

/// Which callbacks are called.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    All,
    /// What keeps the best model.
    Keeper,
    /// The user's.
    Callbacks,
}

/// A step that was begun.
struct Begun {
    /// When the host turned to it.
    at: Instant,
    /// When its batch was there.
    fetched: Instant,
    /// Whether a device computes it by itself.
    on_device: bool,
}

impl FitRun {
    /// Tells the user something that does not end training.
    fn tell(&mut self, note: Option<String>) {
        if let Some(text) = note {
            report(&Some(ProgressEvent::Note(&text)));
            self.history.notes.push(text);
        }
    }

    /// At its begin, or where the folder of backups has it.
    fn open(model: &mut Model, data: &Dataset, options: &mut Fit) -> Result<FitRun> {
        let backup = options.backup.take();
        let mut run = FitRun {
            meetings: model.hosts().map(|_| Meetings::new(backup.is_some())),
            history: History { initial_epoch: options.initial_epoch, ..History::default() },
            callbacks: std::mem::take(&mut options.callbacks),
            best: None,
            stop_because: None,
            backups: backup.clone().filter(|_| model.leads()).map(Backups::open).transpose()?,
            epoch: options.initial_epoch,
            taken: 0,
            in_flight: InFlight::default(),
            ended: None,
            waited: Duration::ZERO,
            device_waited: Duration::ZERO,
            position: Position::new(options.pass_of(options.initial_epoch), 0),
            began: Instant::now(),
            trained_before: Duration::ZERO,
            max_time: options.max_time,
            val_check: ValCheck::new(
                options.val_check_interval,
                (options.validation_freq, options.initial_epoch),
                options.steps_per_epoch.or(steps_in(data)),
            )?,
            is_validated: options.validation.is_some(),
            pace: Pace::default(),
            last_batch: None,
            probe: None,
        };
        if options.detect_anomaly.is_some() && model.is_spread() {
            return Err(Error::new(ErrorKind::Config, "detect_anomaly looks at steps on one device")
                .hint("train on one device to find where the number arises: strategy one_device"));
        }
        let found = match &run.backups {
            Some(own) => own.latest()?,
            None => backup.as_ref().map_or(Ok(None), BackupAndRestore::found)?,
        };
        let goes_on = found.is_some();
        run.restore(model, data, found)?;
        let over = goes_on.then_some(run.epoch);
        run.best = options.best.take().map(|best| Keeper::open(best, model, over)).transpose()?;
        Ok(run)
    }

    /// Goes on with the run that the folder of backups holds.
    fn restore(&mut self, model: &mut Model, data: &Dataset, found: Option<FoundBackup>) -> Result<()> {
        let Some(mut found) = found else { return Ok(()) };
        let path = found.path.display().to_string();
        if !model.is_built() {
            let first = data.iter().next().ok_or_else(|| out_of_data(0, 0, None))??;
            model.build_for(&model.batch_of(&first)?)?;
        }
        self.restore_callbacks(model, found.callbacks()).at(|| path.clone())?;
        self.history = found.run.history().at(|| path.clone())?;
        self.position = found.run.position().at(|| path.clone())?;
        (self.epoch, self.taken) = (found.run.place.epoch, found.run.place.steps);
        self.stop_because = found.run.place.stopped_because.take();
        let waited = found.run.place.validated_seconds.unwrap_or_default();
        let last = self.history.validations.last().map(|v| (v.step, v.logs.clone()));
        self.val_check.go_on(Duration::try_from_secs_f64(waited).unwrap_or_default(), last);
        let before = found.run.place.trained_seconds.unwrap_or_default();
        self.trained_before = Duration::try_from_secs_f64(before).unwrap_or_default();
        model.restore(found.file).at(|| path)
    }

    /// Gives each callback the state that it had; loggers may have come and gone.
    fn restore_callbacks(&mut self, model: &mut Model, states: Vec<(CallbackState, bool)>) -> Result<()> {
        let (all, now) = (states.len(), self.callbacks.len());
        // An earlier version did not say which are loggers: where their number is the same they are the same.
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
            return Err(Error::new(ErrorKind::Config, "the backup is of a run with other callbacks")
                .because(format!("it had {all}, there are {now} now"))
                .hint("go on with the callbacks that the run was started with"));
        }
        Ok(())
    }

    /// On several hosts: an error where they are not about to do the same.
    fn agree(&self, model: &Model, options: &Fit) -> Result<()> {
        if self.meetings.is_none() {
            return Ok(());
        }
        if model.compile_config().is_some_and(|c| c.strategy == Strategy::one_device()) {
            return Err(Error::new(
                ErrorKind::Config,
                "one_device trains on one host, and there are several",
            )
            .because("each would train the whole model by itself")
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
        let best = self.best.as_ref().and_then(|keeper| keeper.kept.as_ref());
        if self.val_check.is_by_time() {
            return Err(Error::new(
                ErrorKind::Config,
                "val_check_interval is a time, and there are several hosts",
            )
            .because("their clocks do not agree on a step")
            .hint("give a number of batches: val_check_interval = 100"));
        }
        let place = format!("step {} (epoch {}, {} steps of it)", model.steps(), self.epoch, self.taken);
        let place = format!("{place}, the best so far {best:?}");
        let mut things = model.common()?;
        things.push(("the arguments of fit", arguments));
        things.push(("where they go on", place));
        model.agree(&things)
    }

    /// What is to happen after a step (or, `epoch_ends`, an epoch), agreed on by all hosts.
    fn due(&mut self, model: &Model, interrupts: bool, epoch_ends: bool) -> Result<Due> {
        let ends = self.stop_because.is_some();
        let own = Due { interrupts, ends, saves: self.backup_is_due(model, epoch_ends) };
        let (Some(meetings), Some(hosts)) = (&mut self.meetings, model.hosts()) else { return Ok(own) };
        let due = match epoch_ends {
            true => meetings.after_epoch(hosts, own),
            false => meetings.after_step(hosts, own),
        }?;
        if due.ends {
            self.stop_because.get_or_insert_with(|| "a callback on another host ended it".into());
        }
        Ok(due)
    }

    /// What all starts of the run have trained.
    fn trained(&self) -> Duration {
        self.trained_before + self.began.elapsed()
    }

    /// Ends training where its time is over.
    fn check_time(&mut self) {
        if let Some(most) =
            self.max_time.filter(|most| self.stop_because.is_none() && self.trained() >= *most)
        {
            let seconds = most.as_secs_f64();
            self.stop_because = Some(format!("the time of {seconds} s for this run (max_time) is over"));
        }
    }

    /// Takes a backup of the run as it stands; `finished`: of one that has come to its end, which is waited for.
    /// A backup that could not be written is told and does not end training.
    fn back_up(&mut self, model: &Model, finished: bool, verbose: usize) {
        let start = Instant::now();
        let (history, callbacks) = (&self.history, &self.callbacks);
        let must = finished || history.interrupted;
        let place = RunPlace {
            epoch: self.epoch,
            steps: self.taken,
            finished,
            stopped_because: self.stop_because.clone(),
            trained_seconds: self.max_time.map(|_| self.trained().as_secs_f64()),
            validated_seconds: self.val_check.is_by_time().then(|| self.val_check.waited().as_secs_f64()),
            data: self.position.to_string(),
        };
        let file = || {
            let states = callbacks.iter().map(|c| c.state()).collect::<Result<Vec<CallbackState>>>()?;
            let loggers =
                callbacks.iter().enumerate().filter(|(_, c)| c.is_logger()).map(|(k, _)| k).collect();
            snapshot(model, &RunState::new(place, history, &states, loggers), states)
        };
        let saved = match (&mut self.backups, &self.meetings) {
            (Some(backups), None) => backups.save(model.steps(), must, file),
            // All hosts put the arrays together, so it cannot be left out while an earlier one is being written.
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
        self.backups.as_ref().is_some_and(|b| b.is_due(model.steps(), epoch_ends))
    }

    /// Calls every callback with what it may see and change.
    fn each(
        &mut self,
        model: &mut Model,
        logs: &Logs,
        at: (usize, bool),
        f: impl FnMut(&mut dyn Callback, &mut FitCx<'_>) -> Result<()>,
    ) -> Result<()> {
        self.each_of(Who::All, model, logs, at, f)
    }

    fn each_of(
        &mut self,
        who: Who,
        model: &mut Model,
        logs: &Logs,
        (epoch, is_within_epoch): (usize, bool),
        mut f: impl FnMut(&mut dyn Callback, &mut FitCx<'_>) -> Result<()>,
    ) -> Result<()> {
        let last_batch = self.last_batch.as_ref();
        let (is_validated, batch, pace) = (self.is_validated, self.taken.saturating_sub(1), self.pace);
        let keeper = self.best.iter_mut().filter(|_| who != Who::Callbacks);
        let keeper = keeper.map(|keeper| keeper as &mut dyn Callback);
        let callbacks = self.callbacks.iter_mut().filter(|_| who != Who::Keeper);
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

    /// What callbacks measure, beside what the model does.
    fn add_values(&mut self, model: &mut Model, logs: &mut Logs, at: (usize, bool)) -> Result<()> {
        let mut added = Logs::new();
        self.each(model, logs, at, |c, cx| {
            c.values(cx)?.iter().for_each(|(name, value)| added.insert(name, value));
            Ok(())
        })?;
        added.iter().for_each(|(name, value)| logs.insert(name, value));
        Ok(())
    }

    /// All epochs that are left.
    fn train(&mut self, model: &mut Model, data: &Dataset, options: &Fit) -> Result<()> {
        self.each(model, &Logs::new(), (0, false), |c, cx| c.on_train_begin(cx))?;
        let (first, start) = (self.epoch, (self.epoch, self.taken));
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
                None if epoch == first => model.feed(self, options, data.iter_at(&self.position))?,
                None => model.feed(self, options, data.iter_epoch(options.pass_of(epoch)))?,
            };
            let steps = options.steps_per_epoch.or(steps_in(data));
            self.epoch(model, options, epoch, &mut feed, steps)?;
            self.history.data = Some(feed.report());
            goes_on = options.steps_per_epoch.map(|_| feed);
            if self.history.interrupted {
                break;
            }
        }
        if !self.history.interrupted {
            self.validate_last(model, options)?;
            if (self.epoch, self.taken) != start {
                self.back_up(model, true, options.verbose);
            }
            self.take_averages(model, data, options)?;
        }
        let logs = self.history.last();
        self.each(model, &logs, (options.epochs, false), |c, cx| c.on_train_end(cx))
    }

    /// The weights of the end, where they are means. What is said of the model at the end is then measured anew.
    fn take_averages(&mut self, model: &mut Model, data: &Dataset, options: &Fit) -> Result<()> {
        let took = model.take_averages()?;
        model.apply_masks()?;
        if took == Took::MeansOfEpochs {
            model.refresh_statistics(data, options.steps_per_epoch)?;
        }
        if took == Took::Nothing || !options.validate_last || !self.is_validated {
            return Ok(());
        }
        let values = self.measured(model, options)?;
        if let Some(last) = self.history.epochs.last_mut() {
            last.extend_with_prefix("", &values);
        }
        Ok(())
    }

    fn into_history(self) -> History {
        let best = self.best.and_then(|keeper| keeper.kept);
        History { stopped_because: self.stop_because, best, ..self.history }
    }

    /// Tells callbacks why training fails; what they write is all that is left of it.
    fn tell_error(&mut self, model: &mut Model, e: &Error) {
        let epoch = self.epoch;
        // None of them returns an error.
        let _ = self.each(model, &Logs::new(), (epoch, true), |c, cx| {
            c.on_exception(cx, e);
            Ok(())
        });
    }

    /// Measures the model on the validation data, with its running means where a callback asks for that.
    fn measure(&mut self, model: &mut Model, options: &Fit) -> Result<Logs> {
        let swapped = self.swaps_averages().is_some() && model.swap_averages();
        let measured = self.measured(model, options);
        if swapped {
            model.swap_averages();
        }
        let logs = measured?;
        self.val_check.take(model.steps(), logs.clone());
        Ok(logs)
    }

    fn measured(&self, model: &mut Model, options: &Fit) -> Result<Logs> {
        let Some(data) = &options.validation else { return Ok(Logs::new()) };
        let mut logs = Logs::new();
        logs.extend_with_prefix("val_", &model.evaluate_steps(data, options.validation_steps)?);
        Ok(logs)
    }

    /// See [`Callback::swaps_averages`].
    fn swaps_averages(&self) -> Option<bool> {
        self.callbacks.iter().filter_map(|c| c.swaps_averages()).reduce(|a, b| a || b)
    }

    /// Shows an epoch that is over to all callbacks: what keeps the best model sees it as it was measured.
    fn end_epoch(&mut self, model: &mut Model, options: &Fit, logs: &Logs, epoch: usize) -> Result<()> {
        let owed = options.validate_last && epoch + 1 == options.epochs;
        let owed = owed && !self.val_check.is_due(epoch, self.taken, true);
        let swaps = self.swaps_averages();
        let swapped = swaps.is_some() && model.swap_averages();
        let end = |c: &mut dyn Callback, cx: &mut FitCx<'_>| c.on_epoch_end(cx);
        let mut shown = match owed && self.has_no_best() {
            true => Ok(()),
            false => self.each_of(Who::Keeper, model, logs, (epoch, false), end),
        };
        let stays = swapped && swaps == Some(true);
        if swapped && !stays {
            model.swap_averages();
        }
        shown = shown.and_then(|()| self.each_of(Who::Callbacks, model, logs, (epoch, false), end));
        if stays {
            model.swap_averages();
        }
        shown
    }

    /// Adds the validation of an epoch that is over, where it is one of those that have one.
    fn validate(&mut self, model: &mut Model, options: &Fit, logs: &mut Logs) -> Result<()> {
        let (epoch, is_over) = (model.epoch - 1, model.epoch == options.epochs);
        let due = self.val_check.is_due(epoch, self.taken, true) || (options.validate_last && is_over);
        let values = match self.val_check.at(model.steps()) {
            // The last batch was one after which it is due.
            Some(values) => values.clone(),
            None if due && self.is_validated => self.measure(model, options)?,
            None => return Ok(()),
        };
        logs.extend_with_prefix("", &values);
        Ok(())
    }

    /// In the middle of an epoch.
    fn validate_within(
        &mut self,
        model: &mut Model,
        options: &Fit,
        (epoch, steps): (usize, Option<usize>),
    ) -> Result<()> {
        let is_whole = steps == Some(self.taken);
        if !self.is_validated || is_whole || !self.val_check.is_due(epoch, self.taken, is_whole) {
            return Ok(());
        }
        self.take_ends(0)?;
        let values = self.measure(model, options)?;
        self.history.validations.push(Validation { epoch, step: model.steps(), logs: values.clone() });
        let mut logs = model.compiled()?.train.metrics.logs(&model.state.metrics)?;
        logs.extend_with_prefix("", &values);
        report(&(options.verbose > 0).then_some(ProgressEvent::Validation { step: self.taken, logs: &logs }));
        self.add_values(model, &mut logs, (epoch, true))?;
        self.each(model, &logs, (epoch, true), |c, cx| c.on_validation_end(cx))
    }

    /// The validation that the end of training is owed, where its last epoch had none.
    fn validate_last(&mut self, model: &mut Model, options: &Fit) -> Result<()> {
        let Some(mut logs) = self.history.epochs.last().cloned() else { return Ok(()) };
        if !options.validate_last || !self.is_validated || logs.iter().any(|(n, _)| n.starts_with("val_")) {
            return Ok(());
        }
        let values = self.measure(model, options)?;
        logs.extend_with_prefix("", &values);
        if let Some(last) = self.history.epochs.last_mut() {
            *last = logs.clone();
        }
        let epoch = model.epoch.saturating_sub(1);
        let who = if self.has_no_best() { Who::Callbacks } else { Who::All };
        self.each_of(who, model, &logs, (epoch, false), |c, cx| c.on_validation_end(cx))
    }

    /// Whether no epoch was validated while training: the model of the end is the only one that is measured, and needs no second
    /// file.
    fn has_no_best(&self) -> bool {
        self.best.as_ref().is_none_or(|keeper| keeper.kept.is_none())
    }

    /// Steps since there were so many batches and samples, which took this time.
    fn pace_since(&self, (batches, samples): (usize, u64), time: Duration) -> Pace {
        let batches = self.taken.saturating_sub(batches) as u64;
        Pace { batches, samples: self.history.samples - samples, time }
    }

    fn epoch(
        &mut self,
        model: &mut Model,
        options: &Fit,
        epoch: usize,
        feed: &mut Feed,
        steps: Option<usize>,
    ) -> Result<()> {
        let began = Instant::now();
        let before = (self.taken, self.history.samples);
        (self.waited, self.device_waited) = (Duration::ZERO, Duration::ZERO);
        if self.taken == 0 {
            self.each(model, &Logs::new(), (epoch, false), |c, cx| c.on_epoch_begin(cx))?;
        }
        let progress = Progress { epoch, epochs: options.epochs, steps, verbose: options.verbose };
        report(&progress.begin(self.taken));
        if self.taken == 0 {
            model.state.metrics = model.compiled()?.train.metrics.zeros(&model.output_shapes());
        }
        let done = self.steps(model, options, &progress, feed, steps, began)?;
        if done == 0 {
            return match self.history.interrupted {
                true => Ok(()),
                false => Err(out_of_data(epoch, 0, steps)),
            };
        }
        if let Some(wanted) = options.steps_per_epoch.filter(|&n| done < n)
            && !self.history.interrupted
            && self.stop_because.is_none()
        {
            return Err(out_of_data(epoch, done, Some(wanted)));
        }
        let trained = began.elapsed();
        self.pace = self.pace_since(before, trained);
        let mut logs = model.compiled()?.train.metrics.logs(&model.state.metrics)?;
        if !self.history.interrupted {
            model.epoch = epoch + 1;
            self.validate(model, options, &mut logs)?;
        }
        let at = self.elapsed(done, trained);
        report(&progress.end(at, &logs, !self.history.interrupted));
        if self.history.interrupted {
            // The backup knows nothing of an epoch that is not over.
            self.back_up(model, false, options.verbose);
            self.history.epochs.push(logs);
            return Ok(());
        }
        self.add_values(model, &mut logs, (epoch, false))?;
        self.history.epochs.push(logs.clone());
        self.end_epoch(model, options, &logs, epoch)?;
        (self.epoch, self.taken) = (epoch + 1, 0);
        if options.steps_per_epoch.is_none() {
            self.position = Position::new(options.pass_of(self.epoch), 0);
        }
        let due = self.due(model, false, true)?;
        if due.saves && self.epoch < options.epochs && self.stop_because.is_none() {
            self.back_up(model, false, options.verbose);
        }
        Ok(())
    }

    fn steps(
        &mut self,
        model: &mut Model,
        options: &Fit,
        progress: &Progress,
        feed: &mut Feed,
        steps: Option<usize>,
        began: Instant,
    ) -> Result<usize> {
        let mut done = self.taken;
        let (mut is_ready, mut last) = (false, None);
        while options.steps_per_epoch.is_none_or(|n| done < n) {
            // Before data are asked for: the time until they come is theirs only while the device has nothing to do.
            self.take_ends(STEPS_IN_FLIGHT - 1)?;
            let start = Instant::now();
            let Some(fed) = feed.next() else { break };
            let fetched = Instant::now();
            trace::span("data", "wait for data", Some(start), || "{}".into());
            let ReadyBatch { batch, on_device, position } = fed?;
            if self.is_left_out(progress.epoch, &batch) {
                done += 1;
                (self.taken, self.position) = (done, position.unwrap_or_default());
                continue;
            }
            match std::mem::replace(&mut is_ready, true) {
                false => model.ready_for(&batch)?,
                true => model.check_step_batch(&batch)?,
            }
            if let Some(file) = &options.detect_anomaly {
                self.take_ends(0)?;
                model.detect_anomaly(&mut self.probe, &batch, file)?;
            }
            model.take_step(on_device)?;
            let event = model.state.ready_event();
            let is_over = event.is_none();
            self.in_flight.push(Begun { at: start, fetched, on_device: !is_over }, event);
            done += 1;
            self.taken = done;
            self.position = position.unwrap_or_default();
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
                self.take_ends(0)?;
                self.back_up(model, false, options.verbose);
            }
            last = Some(batch);
        }
        self.take_ends(0)?;
        last.map_or(Ok(done), |batch| self.check_loss(model, &batch, false).map(|()| done))
    }

    /// Whether callbacks leave out the next batch of an epoch; otherwise it is kept for those that look at the last one.
    fn is_left_out(&mut self, epoch: usize, batch: &Batch) -> bool {
        if self.callbacks.iter().any(|c| c.skips(epoch, self.taken)) {
            return true;
        }
        if self.callbacks.iter().any(|c| c.wants_last_batch(epoch)) {
            self.last_batch = Some(batch.clone());
        }
        false
    }

    /// Shows a step and has callbacks look at it, where they want that.
    fn look_at_step(
        &mut self,
        model: &mut Model,
        progress: &Progress,
        (batch, is_over): (&Batch, bool),
        began: Instant,
    ) -> Result<()> {
        let shown = progress.wants_batch(self.taken, progress.steps, began.elapsed());
        let wants_logs = shown || self.callbacks.iter().any(|c| c.wants_batch(model.step));
        self.take_ends(if wants_logs { 0 } else { STEPS_IN_FLIGHT })?;
        if is_over || wants_logs {
            self.check_loss(model, batch, is_over)?;
        }
        if !wants_logs {
            return Ok(());
        }
        let at = self.elapsed(self.taken, began.elapsed());
        let mut logs = model.compiled()?.train.metrics.logs(&model.state.metrics)?;
        report(&shown.then(|| progress.batch(at, &logs)));
        self.add_values(model, &mut logs, (progress.epoch, true))?;
        self.each(model, &logs, (progress.epoch, true), |c, cx| c.on_train_batch_end(cx))
    }

    /// Writes down the steps that have ended, and waits for those before the last `most` that were begun.
    fn take_ends(&mut self, most: usize) -> Result<()> {
        while let Some(Ended { step, at, waited }) = self.in_flight.next_end(most)? {
            // Steps follow each other on the device, so this one's time began when the one before it had ended.
            let from = self.ended.map_or(step.at, |ended| ended.max(step.at));
            let (took, lacked) =
                (at.saturating_duration_since(from), step.fetched.saturating_duration_since(from));
            let millis = |time: Duration| time.as_secs_f32() * 1e3;
            self.history.step_ms.push(millis(took));
            self.history.wait_ms.push(millis(lacked));
            self.history.device_wait_ms.push(millis(waited));
            self.waited += lacked;
            self.device_waited += waited;
            if step.on_device {
                trace::device_span("step", "train step", from.max(step.fetched), at);
            }
            self.ended = Some(at.max(from));
        }
        Ok(())
    }

    /// Ends training where the loss is not finite, and says why. `exactly`: every step before was looked at.
    fn check_loss(&mut self, model: &mut Model, batch: &Batch, exactly: bool) -> Result<()> {
        let train = &model.compiled()?.train;
        if self.stop_because.is_none() && !train.losses_are_finite(&model.state)? {
            // Weights are those before that step, the optimizer's slots are not.
            let slots = train.optimizer_state(&model.state.trainable)?;
            self.stop_because = Some(model.explain_loss(batch, exactly));
            model.state.optimizer = slots;
        }
        Ok(())
    }

    fn elapsed(&self, step: usize, elapsed: Duration) -> Elapsed {
        Elapsed { step, elapsed, waited: self.waited, device_waited: self.device_waited }
    }
}

fn out_of_data(epoch: usize, done: usize, wanted: Option<usize>) -> Error {
    let what = match wanted {
        Some(n) => format!("the data ended after {done} of the {n} steps of epoch {}", epoch + 1),
        None => format!("the data of epoch {} are empty", epoch + 1),
    };
    Error::new(ErrorKind::Data, what)
        .hint("add .repeat() before .batch(n), lower steps_per_epoch, or check take/skip/filter stages")
}
