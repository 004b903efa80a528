//! The best model of a run: kept in a file of its own while the run goes on to its last epoch.
//!
//! Nothing of it is in the backups: the file says which epoch it is and how good that was, and a run that goes on believes it
//! where that epoch is over. What lies ahead of the place that a run goes on from is measured and written again.

use crate::callback::{BestValue, Callback, FitCx, WriteRetry};
use crate::model::Model;
use crate::model::history::{BestEpoch, History};
use crate::model::model_file::ModelFile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use systole_data::file_system::OsFileSystem;
use systole_ir::{Error, Result};

/// The note of a model that says which epoch it is.
const NOTE: &str = "best";

/// Keeps the best model of a run in a file ([`crate::Fit::best`]): Keras's `ModelCheckpoint` with `save_best_only`, for runs that may
/// be killed at any time.
///
/// ```
/// use systole_data::Dataset;
/// use systole_ir::Literal;
/// use systole_nn::{layers::*, loss::mean_squared_error, optimizer::sgd, Compile, Fit, KeepBest, Model};
/// let x = Literal::from_slice([8, 1], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
/// let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(2);
/// let path = std::env::temp_dir().join(format!("doc-best-{}.safetensors", std::process::id()));
/// let mut model = Model::sequential([dense(1)]);
/// model.compile(Compile { optimizer: sgd(0.01), loss: mean_squared_error(), ..Default::default() })?;
/// let best = Some(KeepBest::new(&path, "val_loss"));
/// let history = model.fit(&data, Fit { epochs: 3, validation: Some(data.clone()), best, ..Default::default() })?;
/// let best = history.best.unwrap();
/// assert_eq!(Model::load(&path)?.epochs(), best.epoch);
/// assert!(history.epochs.iter().all(|e| e["val_loss"] >= best.value));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct KeepBest {
    path: PathBuf,
    monitor: String,
    goes_on: bool,
}

impl KeepBest {
    /// Watches `monitor`, a value of the validation: `val_loss`, `val_accuracy`. Whether more or less of it is better its name
    /// tells, as [`Mode::Auto`](crate::callback::Mode::Auto) does.
    pub fn new(path: impl AsRef<Path>, monitor: &str) -> KeepBest {
        KeepBest { path: path.as_ref().into(), monitor: monitor.into(), goes_on: false }
    }

    /// Whether a new run must beat what the file holds already, rather than begin with none. Default: false.
    pub fn goes_on(mut self, yes: bool) -> Self {
        self.goes_on = yes;
        self
    }

    /// Takes up values that were measured after `fit`, the last of the history's: writes the model where they are the best. Does nothing
    /// where no epoch was validated while training: the model is the only one that was measured.
    ///
    /// # Errors
    /// When the state cannot be brought together. A file that cannot be written is told in the history's notes.
    pub fn update(&self, model: &mut Model, history: &mut History) -> Result<()> {
        let Some(best) = history.best.clone() else { return Ok(()) };
        let (logs, epoch) = (history.last(), model.epochs().saturating_sub(1));
        let mut keeper = BestModelWriter::of(self.clone(), Some(best));
        let notes = &mut history.notes;
        let mut cx = FitCx {
            model,
            logs: &logs,
            epoch,
            stop_because: &mut None,
            notes,
            batch: 0,
            pace: Default::default(),
            last_batch: None,
            is_validated: true,
            is_within_epoch: false,
        };
        keeper.on_epoch_end(&mut cx)?;
        history.best = keeper.kept;
        Ok(())
    }
}

impl BestEpoch {
    /// Values as text: JSON has no infinity.
    fn note(&self) -> String {
        json!({"epoch": self.epoch, "monitor": self.monitor, "value": self.value.to_string()}).to_string()
    }

    /// What a model's notes say of it.
    pub fn of(model: &Model) -> Option<BestEpoch> {
        BestEpoch::read(model.notes.get(NOTE)?)
    }

    fn read(note: &str) -> Option<BestEpoch> {
        let note: Value = serde_json::from_str(note).ok()?;
        Some(BestEpoch {
            epoch: note["epoch"].as_u64()?.try_into().ok()?,
            monitor: note["monitor"].as_str()?.into(),
            value: note["value"].as_str()?.parse().ok()?,
        })
    }

    fn of_file(path: &Path) -> Option<BestEpoch> {
        let file = ModelFile::load(path).ok()?;
        let training: Value = serde_json::from_str(file.metadata.get("training")?).ok()?;
        BestEpoch::read(training["notes"][NOTE].as_str()?)
    }
}

/// The file during a run.
pub(crate) struct BestModelWriter {
    options: KeepBest,
    watch: BestValue,
    /// What the file holds.
    pub(crate) kept: Option<BestEpoch>,
    /// What could not be written yet.
    pending: Option<(BestEpoch, ModelFile)>,
    delay: WriteRetry,
}

impl BestModelWriter {
    /// `over`: epochs that are over in the run that goes on; `None`: a new run, which has no use for the file of an earlier one.
    pub(crate) fn open(options: KeepBest, model: &mut Model, over: Option<usize>) -> Result<BestModelWriter> {
        model.notes.remove(NOTE);
        let there = BestEpoch::of_file(&options.path).filter(|best| best.monitor == options.monitor);
        let kept = match over {
            Some(epochs) => there.filter(|best| best.epoch <= epochs),
            None => there.filter(|_| options.goes_on),
        };
        if over.is_none() && kept.is_none() && model.leads() && options.path.exists() {
            let hint = "remove it, or choose another folder";
            std::fs::remove_file(&options.path).map_err(|e| {
                Error::io("cannot remove the best model of an earlier run,", &options.path, e).hint(hint)
            })?;
        }
        Ok(BestModelWriter::of(options, kept))
    }

    fn of(options: KeepBest, kept: Option<BestEpoch>) -> BestModelWriter {
        let watch = BestValue::new(&options.monitor, kept.as_ref().map(|best| best.value));
        BestModelWriter { options, watch, kept, pending: None, delay: WriteRetry::default() }
    }

    /// Writes what is to be written; what cannot be stays.
    fn write(&mut self) -> Result<()> {
        if let Some((best, file)) = self.pending.take() {
            if let Err(e) = file.save_to(&OsFileSystem, &self.options.path) {
                self.pending = Some((best, file));
                return Err(e);
            }
            self.kept = Some(best);
        }
        Ok(())
    }
}

impl Callback for BestModelWriter {
    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.watch.improved(cx.logs)? == Some(true) {
            let value = self.watch.best.unwrap_or(f64::NAN);
            let best = BestEpoch { epoch: cx.epoch + 1, monitor: self.options.monitor.clone(), value };
            cx.model.notes.insert(NOTE.into(), best.note());
            // All hosts put the arrays together; one writes them.
            let file = cx.model.to_file();
            cx.model.notes.remove(NOTE);
            match cx.model.leads() {
                true => self.pending = Some((best, file?)),
                false => self.kept = file.map(|_| Some(best))?,
            }
        }
        let written = self.write();
        self.delay.tell(written, "the best model is", cx);
        Ok(())
    }

    /// Epochs are compared, not what lies between.
    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.is_within_epoch { Ok(()) } else { self.on_epoch_end(cx) }
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the best model is", cx);
        Ok(())
    }
}
