//! Keeps the best model of a run in a file while training continues to the last epoch.
//!
//! It is not part of backups: the file records its epoch and value, and a resumed run trusts it if that epoch is
//! complete. Epochs after the resumed position are measured and written again.

use crate::callback::{BestValue, Callback, FitCx, WriteRetry};
use crate::model::Model;
use crate::model::history::{BestEpoch, History, Logs};
use crate::model::model_file::ModelFile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use systole_data::file_system::OsFileSystem;
use systole_ir::{Error, Result};

/// Key of the model's note with the best epoch.
const NOTE: &str = "best";

/// Keeps the best model of a run in a file ([`crate::Fit::best`]): Keras's `ModelCheckpoint` with `save_best_only`, for
/// runs that may be killed at any time.
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
    /// Keeps the model with the best validation value: `val_loss`, `val_accuracy`. The name determines whether higher
    /// or lower is better, as in [`Mode::Auto`](crate::callback::Mode::Auto).
    pub fn new(path: impl AsRef<Path>, monitor: &str) -> KeepBest {
        KeepBest { path: path.as_ref().into(), monitor: monitor.into(), goes_on: false }
    }

    /// Sets whether a new run must beat the existing file's value instead of starting without one. Default: false.
    pub fn goes_on(mut self, yes: bool) -> Self {
        self.goes_on = yes;
        self
    }

    /// Compares values measured after `fit`, the last of the history: writes the model if they are the best. Does
    /// nothing if no epoch was validated during training, because only the final model was measured.
    ///
    /// # Errors
    /// If the state cannot be gathered. A failed write is reported in the history's notes.
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

    /// Measures the kept model again, from its file, and replaces its value. Needed if the file is not the model that
    /// was validated: adapters are merged when it is written ([`Model::enable_lora`]), or channels were removed since.
    ///
    /// # Errors
    /// If the file cannot be read, measured or written.
    pub fn remeasure(
        &self,
        history: &mut History,
        measure: impl FnOnce(&mut Model) -> Result<Logs>,
    ) -> Result<()> {
        let Some(best) = &mut history.best else { return Ok(()) };
        let mut model = Model::load(&self.path)?;
        let mut logs = Logs::new();
        logs.extend_with_prefix("val_", &measure(&mut model)?);
        let Some(value) = logs.get(&best.monitor).filter(|value| *value != best.value) else { return Ok(()) };
        best.value = value;
        model.notes.insert(NOTE.into(), best.note());
        model.save(&self.path)
    }
}

impl BestEpoch {
    /// Serializes to JSON; the value as text, because JSON has no infinity.
    fn note(&self) -> String {
        json!({"epoch": self.epoch, "monitor": self.monitor, "value": self.value.to_string()}).to_string()
    }

    /// Reads the best epoch from the notes in a model file.
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

/// Best model during a run, and its file.
pub(crate) struct BestModelWriter {
    options: KeepBest,
    watch: BestValue,
    /// Best epoch, whose model is in the file.
    pub(crate) kept: Option<BestEpoch>,
    /// Best model that is not written yet.
    pending: Option<(BestEpoch, ModelFile)>,
    delay: WriteRetry,
}

impl BestModelWriter {
    /// Opens the file. `over`: completed epochs of a resumed run; `None`: a new run, which deletes the file of an
    /// earlier one.
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

    /// Writes the pending model; on failure it stays pending.
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
            // All hosts gather the arrays together; one host writes them.
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

    /// Only epochs are compared, not validations within them.
    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.is_within_epoch { Ok(()) } else { self.on_epoch_end(cx) }
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the best model is", cx);
        Ok(())
    }
}
