//! `ModelCheckpoint` callback: saves models during training.
//!
//! Supports Keras's arguments (`filepath`) and Lightning's (`filename`, `dirpath`).

use super::callback_trait::{Callback, CallbackState, FitCx, WriteRetry, duration, measured};
use super::checkpoint_retention::RetainedCheckpoints;
use super::config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback, checked};
use super::monitored_value::{Mode, is_better, is_upward, is_validated, watched};
use super::path_template::PathTemplate;
use super::save_last::SaveLast;
use crate::callback::trainer_limits::time;
use crate::json::{Deserialize, Serialize};
use crate::model::history::Logs;
use crate::model::model_file::ModelFile;
use crate::setters::field_setters;
use serde::{Deserializer, Serializer};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systole_data::file_system::{FileSystem, OsFileSystem, link_atomically, sweep};
use systole_ir::{Error, ErrorKind, Result, err};

/// Name of the file with the last save.
const LAST: &str = "last.safetensors";

/// When [`ModelCheckpoint`] saves: Keras's `save_freq`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveFreq {
    /// After epochs.
    #[default]
    Epoch,
    /// After every this many steps of the run.
    Steps(u64),
}

/// Serialized form in configurations.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"epoch\" or a number of steps")]
enum SerializedSaveFreq {
    Named(EpochWord),
    Steps(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EpochWord {
    Epoch,
}

impl Serialize for SaveFreq {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            SaveFreq::Epoch => SerializedSaveFreq::Named(EpochWord::Epoch),
            SaveFreq::Steps(n) => SerializedSaveFreq::Steps(*n),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SaveFreq {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<SaveFreq, D::Error> {
        Ok(match SerializedSaveFreq::deserialize(deserializer)? {
            SerializedSaveFreq::Named(EpochWord::Epoch) => SaveFreq::Epoch,
            SerializedSaveFreq::Steps(n) => SaveFreq::Steps(n),
        })
    }
}

/// Callback that saves the model after epochs. `{epoch}`, `{step}` and names of logged values are substituted in the
/// path.
///
/// With `filepath`, works as Keras's callback: saves after each epoch, or only the best, replacing a file of the same
/// name. With `filename` or `dirpath`, works as Lightning's: keeps the `save_top_k` best, inserts value names
/// (`epoch=02-val_loss=0.31.safetensors`), and numbers names that are used (`-v1`). Epochs count from 1 in both.
///
/// A model that cannot be written is reported, kept, and written after the next epoch unless a newer one is saved then:
/// a full disk does not end training.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::{Callback, Mode, ModelCheckpoint}, Fit};
/// let dir = std::env::temp_dir().join(format!("doc-checkpoint-{}", std::process::id()));
/// let path = format!("{}/{{epoch}}.safetensors", dir.display());
/// let best = ModelCheckpoint::new(&path).save_best_only("loss", Mode::Min);
/// let two = ModelCheckpoint::in_dir(&dir, "{epoch:02d}-{loss:.2f}").monitor("loss", Mode::Min).save_top_k(2);
/// let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(best), Box::new(two)];
/// model.fit(&data, Fit { epochs: 3, callbacks, ..Default::default() })?;
/// assert_eq!(Model::load(dir.join("3.safetensors"))?.epochs(), 3);
/// let names = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
/// assert_eq!(names.filter(|n| n.starts_with("epoch=0")).count(), 2);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound(serialize = "", deserialize = "F: FileSystem + Default"))]
pub struct ModelCheckpoint<F: FileSystem = OsFileSystem> {
    /// Keras's file name, in the run's folder; `{epoch:02}`, `{step}` and `{val_loss:.2}` are substituted. Default:
    /// none.
    pub filepath: Option<String>,
    /// Lightning's folder, in the run's folder. Default: `checkpoints`.
    pub dirpath: Option<String>,
    /// Lightning's file name, without `.safetensors`. Default: `{epoch}-{step}`.
    pub filename: Option<String>,
    /// Value that decides which model is best. Default: `val_loss`; with `filename` or `dirpath` none.
    pub monitor: Option<String>,
    /// Direction of improvement.
    pub mode: Mode,
    /// Whether to save only the best model so far.
    pub save_best_only: bool,
    /// Value that the first save must beat, with `save_best_only`. Default: none.
    pub initial_value_threshold: Option<f64>,
    /// Number of best models to keep; -1: all, 0: none. Default: 1 with `filename` or `dirpath`.
    pub save_top_k: Option<i64>,
    /// Whether to write each save as `last.safetensors`, too; `"link"`: as a symbolic link to the last one.
    pub save_last: SaveLast,
    /// Whether to save the model as `on_exception.safetensors` when training fails.
    pub save_on_exception: bool,
    /// Whether to omit the optimizer's state: for prediction, or to continue with a fresh optimizer.
    pub save_weights_only: bool,
    /// Whether to insert names before substituted values. Default: `true` with `filename` or `dirpath`.
    pub auto_insert_metric_name: Option<bool>,
    /// Whether to number names that are already used. Default: `true` with `filename` or `dirpath`.
    pub enable_version_counter: Option<bool>,
    /// When to save: after epochs, or after every this many steps.
    pub save_freq: SaveFreq,
    /// Saves after every this many steps, as `save_freq`. Default: none.
    pub every_n_train_steps: Option<u64>,
    /// Saves after every this many epochs. Default: 1.
    pub every_n_epochs: Option<usize>,
    /// Saves when this time has passed since the last save: `HH:MM:SS`. Default: none.
    pub train_time_interval: Option<String>,
    /// Whether to save only at the ends of epochs (`true`), or only after validations (`false`). Default: after each
    /// validation that measures the value, otherwise at the ends of epochs.
    pub save_on_train_epoch_end: Option<bool>,
    #[serde(skip)]
    files: F,
    #[serde(skip)]
    best: Option<f64>,
    #[serde(skip)]
    kept: RetainedCheckpoints,
    /// Values of the last validation, for saves within an epoch.
    #[serde(skip)]
    validated: Logs,
    /// Last step that was checked.
    #[serde(skip)]
    seen: Option<u64>,
    /// Time of the last check, and the time since it from before this process started.
    #[serde(skip)]
    since: Option<(Instant, Duration)>,
    /// The run's folder, if it belongs to the run: its files are of this run, or of a discarded one.
    #[serde(skip)]
    run_folder: Option<PathBuf>,
    #[serde(skip)]
    goes_on: bool,
    /// Save that is not written yet.
    #[serde(skip)]
    pending: Option<PendingCheckpoint>,
    #[serde(skip)]
    delay: WriteRetry,
}

/// A model to be written.
struct PendingCheckpoint {
    file: ModelFile,
    paths: Vec<PathBuf>,
    /// Symbolic link to create afterwards: its name and target.
    link: Option<(PathBuf, PathBuf)>,
}

impl<F: FileSystem + Default> Default for ModelCheckpoint<F> {
    fn default() -> ModelCheckpoint<F> {
        ModelCheckpoint { filepath: None, ..ModelCheckpoint::with_files(F::default(), "") }
    }
}

impl ModelCheckpoint {
    /// Creates a callback that saves the model to `path` after every epoch:
    /// `"runs/{epoch:02}-{val_loss:.2}.safetensors"`.
    pub fn new(path: &str) -> ModelCheckpoint {
        ModelCheckpoint::with_files(OsFileSystem, path)
    }

    /// Creates a callback like Lightning's: saves the model to `dirpath` under names from `filename`, without
    /// `.safetensors`.
    pub fn in_dir(dirpath: impl AsRef<Path>, filename: &str) -> ModelCheckpoint {
        let dirpath = Some(dirpath.as_ref().display().to_string());
        ModelCheckpoint { dirpath, filename: Some(filename.into()), ..ModelCheckpoint::default() }
    }
}

impl<F: FileSystem> ModelCheckpoint<F> {
    /// Like [`ModelCheckpoint::new`], on another file system.
    pub fn with_files(files: F, path: &str) -> ModelCheckpoint<F> {
        ModelCheckpoint {
            filepath: Some(path.into()),
            dirpath: None,
            filename: None,
            monitor: None,
            mode: Mode::Auto,
            save_best_only: false,
            initial_value_threshold: None,
            save_top_k: None,
            save_last: SaveLast::No,
            save_on_exception: false,
            save_weights_only: false,
            auto_insert_metric_name: None,
            enable_version_counter: None,
            save_freq: SaveFreq::Epoch,
            every_n_train_steps: None,
            every_n_epochs: None,
            train_time_interval: None,
            save_on_train_epoch_end: None,
            files,
            best: None,
            kept: RetainedCheckpoints::default(),
            validated: Logs::new(),
            seen: None,
            since: None,
            run_folder: None,
            goes_on: false,
            pending: None,
            delay: WriteRetry::default(),
        }
    }

    /// Saves the model only if `monitor` is the best so far. Default: after every epoch.
    pub fn save_best_only(mut self, monitor: &str, mode: Mode) -> Self {
        (self.monitor, self.mode, self.save_best_only) = (Some(monitor.into()), mode, true);
        self
    }

    /// Sets the value that decides which models are best, with [`save_top_k`](ModelCheckpoint::save_top_k). Default:
    /// none.
    pub fn monitor(mut self, monitor: &str, mode: Mode) -> Self {
        (self.monitor, self.mode) = (Some(monitor.into()), mode);
        self
    }

    /// Whether it works as Lightning's callback.
    fn is_lightnings(&self) -> bool {
        self.filepath.is_none()
    }

    fn counts_versions(&self) -> bool {
        self.enable_version_counter.unwrap_or(self.is_lightnings())
    }

    /// Returns the number of best models to keep; `None`: all are saved, or the best by Keras's rule.
    fn top_k(&self) -> Option<i64> {
        self.save_top_k.or(self.is_lightnings().then_some(1))
    }

    /// Returns the monitored value.
    fn watches(&self) -> Option<&str> {
        let usual = (!self.is_lightnings()).then_some("val_loss");
        match (self.save_best_only, self.top_k()) {
            (false, None | Some(-1 | 0)) => None,
            _ => self.monitor.as_deref().or(usual),
        }
    }

    fn every_steps(&self) -> Option<u64> {
        match self.save_freq {
            SaveFreq::Steps(n) => Some(n),
            SaveFreq::Epoch => self.every_n_train_steps.filter(|n| *n > 0),
        }
    }

    fn interval(&self) -> Option<Duration> {
        self.train_time_interval.as_deref().and_then(|text| time(text).ok())
    }

    fn is_by_epochs(&self) -> bool {
        self.every_steps().is_none() && self.train_time_interval.is_none()
    }

    /// Returns the whole path template.
    fn path(&self) -> String {
        match &self.filepath {
            Some(path) => path.clone(),
            None => {
                let dir = self.dirpath.as_deref().unwrap_or("checkpoints");
                let name = self.filename.as_deref().unwrap_or("{epoch}-{step}");
                Path::new(dir).join(format!("{name}.safetensors")).display().to_string()
            }
        }
    }

    fn template(&self) -> Result<PathTemplate> {
        let template = PathTemplate::parse(&self.path())?;
        let named = self.auto_insert_metric_name.unwrap_or(self.is_lightnings());
        Ok(if named { template.with_names() } else { template })
    }

    /// Returns the path of a file next to the checkpoints.
    fn beside(&self, name: &str) -> Result<PathBuf> {
        Ok(self.template()?.folder().unwrap_or_default().join(name))
    }

    /// Returns the time since the last check, including earlier starts.
    fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |(at, before)| at.elapsed() + before)
    }

    /// Whether a value is the best so far, by Keras's rule.
    fn is_best(&mut self, value: f64, upward: bool) -> bool {
        let better = is_better(value, self.best.or(self.initial_value_threshold), upward, 0.0);
        if better {
            self.best = Some(value);
        }
        better
    }

    /// Returns the path to save the model to, if it is to be saved; updates retention.
    fn place_for(&mut self, path: PathBuf, logs: &Logs) -> Result<Option<PathBuf>> {
        let upward = self.watches().is_some_and(|monitor| is_upward(self.mode, monitor));
        let value = match self.watches() {
            Some(monitor) => match watched(monitor, logs)? {
                Some(value) => Some(value),
                None => return Ok(None),
            },
            None => None,
        };
        match (self.top_k(), value) {
            (None, Some(value)) => Ok(self.is_best(value, upward).then_some(path)),
            (None, None) => Ok(Some(path)),
            (Some(k), value) => {
                let counts = self.counts_versions();
                Ok(self.kept.take(k, path, value, upward, counts))
            }
        }
    }

    /// Saves the model if its values qualify.
    fn look(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.seen == Some(cx.model.steps()) {
            return Ok(());
        }
        let mut logs = if cx.is_within_epoch { self.validated.clone() } else { Logs::new() };
        cx.logs.iter().for_each(|(name, value)| logs.insert(name, value));
        let template = self.template()?;
        self.needs_met(&template, &logs)?;
        // The name needs a validation value: wait for a validation.
        let Some(path) = template.fill(cx.epoch, cx.model.steps(), &logs) else { return Ok(()) };
        self.since = Some((Instant::now(), Duration::ZERO));
        // Without the value, this step may still be checked after its validation.
        let is_known = self.watches().map_or(Ok(true), |m| watched(m, &logs).map(|value| value.is_some()))?;
        if is_known {
            self.seen = Some(cx.model.steps());
        }
        let mut paths: Vec<PathBuf> = self.place_for(path, &logs)?.into_iter().collect();
        let mut link = None;
        match (self.save_last, paths.first()) {
            (SaveLast::No, _) => {}
            (SaveLast::Link, Some(saved)) => link = Some((self.beside(LAST)?, saved.clone())),
            // The link stays at the last save.
            (SaveLast::Link, None) if self.top_k() != Some(0) => {}
            (SaveLast::Yes | SaveLast::Link, _) => paths.push(self.beside(LAST)?),
        }
        if paths.is_empty() {
            return Ok(());
        }
        // All hosts gather the arrays together; one host writes them.
        let file = self.file(cx)?;
        self.pending = cx.model.leads().then_some(PendingCheckpoint { file, paths, link });
        Ok(())
    }

    fn file(&self, cx: &FitCx<'_>) -> Result<ModelFile> {
        let mut file = cx.model.to_file()?;
        if self.save_weights_only {
            file.tensors.retain(|(name, _)| !name.starts_with("optimizer/"));
        }
        Ok(file)
    }

    /// Training values are always available, validation values only after a validation.
    fn needs_met(&self, template: &PathTemplate, logs: &Logs) -> Result<()> {
        let needed = template.values().filter(|v| !v.starts_with("val_"));
        match needed.into_iter().find(|v| logs.get(v).is_none()) {
            None => Ok(()),
            Some(lacking) => {
                Err(err!(Config, "the file name `{}` needs {lacking}", self.path())
                    .because("the value was not measured in this epoch")
                    .hint("use only values that are measured in every epoch"))
            }
        }
    }

    /// Writes the pending save and deletes files that are not kept; on failure both stay pending.
    fn write(&mut self) -> Result<()> {
        while let Some(PendingCheckpoint { file, paths, link }) = &mut self.pending {
            match (paths.first(), &link) {
                (Some(path), _) => {
                    file.save_to(&self.files, path)?;
                    paths.remove(0);
                }
                (None, Some((name, to))) => {
                    if !link_atomically(&self.files, name, to)? {
                        paths.push(name.clone());
                    }
                    *link = None;
                }
                (None, None) => self.pending = None,
            }
        }
        self.kept.remove_others(&self.files)
    }

    fn settle(&mut self, cx: &mut FitCx<'_>) {
        let written = self.write();
        self.delay.tell(written, "a checkpoint is", cx);
    }
}

field_setters! {
    impl<F: FileSystem> ModelCheckpoint<F> {
        /// Sets a value that the first save must beat.
        initial_value_threshold(value: f64) => Some(value);
        /// Sets the number of best models to keep; -1: all, 0: none. Default: 1 with `in_dir`.
        save_top_k(k: i64) => Some(k);
        /// Writes each save as `last.safetensors`, too; with [`SaveLast::Link`] as a symbolic link to the last one.
        save_last(how: impl Into<SaveLast>) => how.into();
        /// Saves the model as `on_exception.safetensors` when training fails.
        save_on_exception(yes: bool);
        /// Omits the optimizer's state.
        save_weights_only(yes: bool);
        /// Inserts names before substituted values. Default: true with `in_dir`.
        auto_insert_metric_name(yes: bool) => Some(yes);
        /// Numbers names that are already used. Default: true with `in_dir`.
        enable_version_counter(yes: bool) => Some(yes);
        /// Saves after epochs, or after every this many steps.
        save_freq(freq: SaveFreq);
        /// Saves after every this many steps of the run.
        every_n_train_steps(steps: u64) => Some(steps);
        /// Saves after every this many epochs. Default: 1.
        every_n_epochs(epochs: usize) => Some(epochs);
        /// Saves when this time has passed since the last save: `HH:MM:SS`.
        train_time_interval(text: &str) => Some(text.into());
        /// Saves only at the ends of epochs, or only after validations. Default: whenever its value is measured.
        save_on_train_epoch_end(yes: bool) => Some(yes);
    }
}

impl<F: FileSystem + Send> ConfigCallback for ModelCheckpoint<F> {
    fn check(&self) -> ArgumentCheck {
        let wrong =
            |key, what: String, hint: &str| Err((key, Error::new(ErrorKind::Config, what).hint(hint)));
        if self.filepath.is_some() && (self.filename.is_some() || self.dirpath.is_some()) {
            let what = "filepath cannot be combined with filename or dirpath".into();
            return wrong("filepath", what, "keep filepath (Keras), or filename and dirpath (Lightning)");
        }
        let triggers = [
            ("save_freq", self.save_freq != SaveFreq::Epoch),
            ("every_n_train_steps", self.every_n_train_steps.is_some_and(|n| n > 0)),
            ("every_n_epochs", self.every_n_epochs.is_some_and(|n| n > 0)),
            ("train_time_interval", self.train_time_interval.is_some()),
        ];
        let set: Vec<&str> = triggers.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect();
        if let [_, second, ..] = set[..] {
            return wrong(
                triggers.iter().find(|t| t.0 == second).map_or("", |t| t.0),
                format!("{} are mutually exclusive", set.join(" and ")),
                "keep one of them",
            );
        }
        if self.save_freq == SaveFreq::Steps(0) {
            return wrong(
                "save_freq",
                "save_freq is 0".into(),
                "choose \"epoch\" or a number of steps of at least 1",
            );
        }
        if self.save_on_train_epoch_end.is_some() && !self.is_by_epochs() {
            return wrong(
                "save_on_train_epoch_end",
                "save_on_train_epoch_end cannot be combined with saving by steps or time".into(),
                "keep one of them",
            );
        }
        if let Some(text) = &self.train_time_interval {
            time(text).map_err(|e| ("train_time_interval", e))?;
        }
        self.check_choice()?;
        self.template().map(drop).map_err(|e| (if self.is_lightnings() { "filename" } else { "filepath" }, e))
    }

    fn monitor(&self) -> Option<&str> {
        self.watches()
    }

    fn files(&self) -> Vec<(&'static str, &str)> {
        match (&self.filepath, &self.dirpath, &self.filename) {
            (Some(path), ..) => vec![("filepath", path)],
            (None, Some(dir), _) => vec![("dirpath", dir)],
            (None, None, Some(name)) => vec![("filename", name)],
            (None, None, None) => Vec::new(),
        }
    }

    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.run_folder = Some(place.folder.into());
        self.monitor = self.monitor.as_deref().map(place.logged);
        match &mut self.filepath {
            Some(path) => *path = place.file(&path).display().to_string(),
            None => {
                let dir = self.dirpath.as_deref().unwrap_or("checkpoints");
                self.dirpath = Some(place.file(dir).display().to_string());
            }
        }
    }
}

impl<F: FileSystem> ModelCheckpoint<F> {
    /// Checks that the arguments for retention are compatible.
    fn check_choice(&self) -> ArgumentCheck {
        let wrong =
            |key, what: String, hint: &str| Err((key, Error::new(ErrorKind::Config, what).hint(hint)));
        if self.save_best_only && self.save_top_k.is_some() {
            return wrong(
                "save_top_k",
                "save_best_only cannot be combined with save_top_k".into(),
                "use save_top_k = 1 to keep the best one",
            );
        }
        if self.initial_value_threshold.is_some() && !self.save_best_only {
            let what = "initial_value_threshold has no effect without save_best_only".into();
            return wrong("initial_value_threshold", what, "set save_best_only, or remove it");
        }
        let Some(k) = self.save_top_k else { return Ok(()) };
        if k < -1 {
            return wrong(
                "save_top_k",
                format!("save_top_k is {k}"),
                "choose -1 for all, 0 for none, or a number to keep",
            );
        }
        if k > 1 && self.watches().is_none() {
            return wrong(
                "save_top_k",
                format!("save_top_k is {k}, but no monitor is set to compare models"),
                "set monitor",
            );
        }
        let is_fixed = self.template().is_ok_and(|template| template.is_fixed());
        if k != 0 && k != 1 && is_fixed && !self.counts_versions() {
            let key = if self.is_lightnings() { "filename" } else { "filepath" };
            let what = format!("all checkpoints would have the name `{}`", self.path());
            return wrong(key, what, "add a field such as {epoch}, or set enable_version_counter");
        }
        Ok(())
    }
}

impl<F: FileSystem + Send> Callback for ModelCheckpoint<F> {
    fn state(&self) -> Result<CallbackState> {
        let values = json!({
            "best": CallbackState::float(self.best),
            "kept": self.kept.state(self.run_folder.as_deref()),
            "validated": CallbackState::logs(&self.validated),
            "seen": self.seen,
            "waited": self.train_time_interval.is_some().then(|| self.waited().as_secs_f64()),
        });
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.goes_on = true;
        self.best = state.float_of("best")?;
        // Earlier versions wrote only the best value.
        self.kept = RetainedCheckpoints::restored(&state.values["kept"], self.run_folder.as_deref())?;
        self.validated = CallbackState::logs_of(&state.values["validated"])?;
        self.seen = state.values["seen"].as_u64();
        let waited = &state.values["waited"];
        let waited = if waited.is_null() { 0.0 } else { waited.as_f64().unwrap_or(f64::NAN) };
        self.since = Some((Instant::now(), duration("waited", waited)?));
        Ok(())
    }

    fn wants_batch(&self, step: u64) -> bool {
        let by_time = self.interval().is_some_and(|interval| self.waited() >= interval);
        by_time || self.every_steps().is_some_and(|n| step.is_multiple_of(n))
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "ModelCheckpoint")?;
        let template = self.template()?;
        template.check(&measured(cx.model))?;
        if let Some(monitor) = self.watches() {
            cx.must_measure(monitor, "ModelCheckpoint")?;
        }
        self.since.get_or_insert((Instant::now(), Duration::ZERO));
        let Some(folder) = template.folder().filter(|_| cx.model.leads()) else { return Ok(()) };
        std::fs::create_dir_all(&folder)
            .map_err(|e| Error::io("cannot create the folder", &folder, e).hint("choose another path"))?;
        // A run has its folder for itself; in any other folder, other processes may be writing.
        if self.run_folder.as_ref().is_some_and(|of_run| folder.starts_with(of_run)) {
            sweep(&folder);
        }
        if self.counts_versions() && self.run_folder.is_none() && !self.goes_on {
            self.kept.spare_files_of(&folder);
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.wants_batch(cx.model.steps()) {
            self.look(cx)?;
            self.settle(cx);
        }
        Ok(())
    }

    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.remember(cx.logs);
        let watched = self.watches().or(self.monitor.as_deref());
        let watches = watched.is_some_and(|monitor| monitor.starts_with("val_"));
        let looks = match self.save_on_train_epoch_end {
            None => watches && self.every_n_epochs.is_none(),
            Some(at_end) => !at_end && self.is_one_of(cx.epoch),
        };
        if looks && self.is_by_epochs() {
            self.look(cx)?;
            self.settle(cx);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.remember(cx.logs);
        let looks = self.save_on_train_epoch_end != Some(false) || is_validated(cx.logs);
        if looks && self.is_by_epochs() && self.is_one_of(cx.epoch) {
            self.look(cx)?;
        }
        self.settle(cx);
        Ok(())
    }

    fn on_exception(&mut self, cx: &mut FitCx<'_>, _error: &Error) {
        if !self.save_on_exception {
            return;
        }
        let saved = self.file(cx).and_then(|file| {
            let path = self.beside("on_exception.safetensors")?;
            if cx.model.leads() { file.save_to(&self.files, &path) } else { Ok(()) }
        });
        if let Err(e) = saved {
            cx.note(format!("the model is not saved after the error: {e}"));
        }
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the last checkpoint is", cx);
        Ok(())
    }
}

impl<F: FileSystem> ModelCheckpoint<F> {
    /// Whether `every_n_epochs` includes this epoch, from 0.
    fn is_one_of(&self, epoch: usize) -> bool {
        let every = self.every_n_epochs.unwrap_or(1);
        every > 0 && (epoch + 1).is_multiple_of(every)
    }

    fn remember(&mut self, logs: &Logs) {
        let values = logs.iter().filter(|(name, _)| name.starts_with("val_"));
        values.for_each(|(name, value)| self.validated.insert(name, value));
    }
}
