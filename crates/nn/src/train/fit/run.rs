//! [`FitRun`]: state of a `fit` run, new or resumed from a backup.

use super::options::Fit;
use super::step_times::TrainStepTimes;
use crate::callback::{Callback, EpochPace};
use crate::checkpoint::backup::{BackupAndRestore, BackupWriter};
use crate::checkpoint::best_model::BestModelWriter;
use crate::diagnose::anomaly_detection::AnomalyProbe;
use crate::model::Model;
use crate::model::batch::Batch;
use crate::model::history::{History, WEIGHTS_NOTE};
use crate::train::measured_weights::MeasuredWeights;
use crate::train::multi_host::HostCoordinator;
use crate::train::val_check::ValCheck;
use std::time::{Duration, Instant};
use systole_data::{Dataset, PipelinePosition};
use systole_ir::{Error, ErrorKind, Result, err};

/// State of a `fit` run.
pub(super) struct FitRun {
    pub(super) history: History,
    pub(super) callbacks: Vec<Box<dyn Callback>>,
    pub(super) stop_because: Option<String>,
    pub(super) steps: StepState,
    pub(super) clock: RunClock,
    pub(super) validation: ValidationState,
    pub(super) backup: BackupState,
}

/// State of the step loop.
pub(super) struct StepState {
    /// Epoch of the next step, steps done in it, and the data position after them, for backups.
    pub(super) epoch: usize,
    pub(super) taken: usize,
    pub(super) position: PipelinePosition,
    pub(super) times: TrainStepTimes,
    pub(super) pace: EpochPace,
    /// Last batch, if a callback needs it.
    pub(super) last_batch: Option<Batch>,
    /// Anomaly detection, if enabled.
    pub(super) probe: Option<AnomalyProbe>,
}

/// Training time of the run.
pub(super) struct RunClock {
    /// Time of this start.
    began: Instant,
    /// Training time of earlier starts, as recorded in their backups.
    pub(super) trained_before: Duration,
    pub(super) max_time: Option<Duration>,
}

impl RunClock {
    /// Returns the total training time of all starts.
    pub(super) fn trained(&self) -> Duration {
        self.trained_before + self.began.elapsed()
    }
}

/// Validation schedule and the best model.
pub(super) struct ValidationState {
    pub(super) check: ValCheck,
    pub(super) is_validated: bool,
    /// Storage of the weights that the last validation measured; empty after a step.
    pub(super) measured: MeasuredWeights,
    /// Not part of backups; not called for steps.
    pub(super) best: Option<BestModelWriter>,
}

/// Backups and coordination of hosts.
pub(super) struct BackupState {
    /// Only on the host that writes backups.
    pub(super) backups: Option<BackupWriter>,
    /// Only with several hosts.
    pub(super) meetings: Option<HostCoordinator>,
}

impl FitRun {
    /// Opens a new run, or resumes the one in the backup folder.
    pub(super) fn open(model: &mut Model, data: &Dataset, options: &mut Fit) -> Result<FitRun> {
        let backup = options.backup.take();
        model.notes.remove(WEIGHTS_NOTE);
        let mut run = FitRun {
            history: History { initial_epoch: options.initial_epoch, ..History::default() },
            callbacks: std::mem::take(&mut options.callbacks),
            stop_because: None,
            steps: StepState {
                epoch: options.initial_epoch,
                taken: 0,
                position: PipelinePosition::new(options.pass_of(options.initial_epoch), 0),
                times: TrainStepTimes::default(),
                pace: EpochPace::default(),
                last_batch: None,
                probe: None,
            },
            clock: RunClock {
                began: Instant::now(),
                trained_before: Duration::ZERO,
                max_time: options.max_time,
            },
            validation: ValidationState {
                check: ValCheck::new(
                    options.val_check_interval,
                    (options.validation_freq, options.initial_epoch),
                    options.steps_of(data),
                )?,
                is_validated: options.validation.is_some(),
                measured: MeasuredWeights::default(),
                best: None,
            },
            backup: BackupState {
                backups: backup.clone().filter(|_| model.leads()).map(BackupWriter::open).transpose()?,
                meetings: model.hosts().map(|_| HostCoordinator::new(backup.is_some())),
            },
        };
        if options.detect_anomaly.is_some() && model.is_spread() {
            return Err(err!(Config, "detect_anomaly supports only one device")
                .hint("train with strategy one_device to find the anomaly"));
        }
        let found = match &run.backup.backups {
            Some(own) => own.latest()?,
            None => backup.as_ref().map_or(Ok(None), BackupAndRestore::found)?,
        };
        let goes_on = found.is_some();
        let note = run.restore(model, data, found, options.epochs)?;
        run.tell(note);
        let over = goes_on.then_some(run.steps.epoch);
        run.validation.best =
            options.best.take().map(|best| BestModelWriter::open(best, model, over)).transpose()?;
        Ok(run)
    }

    pub(super) fn into_history(self) -> History {
        let best = self.validation.best.and_then(|keeper| keeper.kept);
        History { stopped_because: self.stop_because, best, ..self.history }
    }

    /// Ends training if its time is over.
    pub(super) fn check_time(&mut self) {
        if let Some(most) =
            self.clock.max_time.filter(|most| self.stop_because.is_none() && self.clock.trained() >= *most)
        {
            let seconds = most.as_secs_f64();
            self.stop_because =
                Some(format!("the time limit of {seconds} s for this run (max_time) is reached"));
        }
    }
}

/// Error for data that ends before the `wanted` steps of an epoch, or is empty.
pub(super) fn out_of_data(epoch: usize, done: usize, wanted: Option<usize>) -> Error {
    let what = match wanted {
        Some(n) => format!("the data ended after {done} of the {n} steps of epoch {}", epoch + 1),
        None => format!("the data of epoch {} is empty", epoch + 1),
    };
    Error::new(ErrorKind::Data, what)
        .hint("add .repeat() before .batch(n), lower steps_per_epoch, or check take/skip/filter stages")
}
