//! Callbacks with Keras's names and arguments.

pub use crate::tensorboard::{TensorBoard, UpdateFreq};
pub use systole_data::format::events::HParam;

use crate::file::ModelFile;
use crate::history::Logs;
use crate::model::{Model, counted};
use crate::progress::{ProgressEvent, report};
use crate::schedule::Schedule;
use crate::template::Template;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use systole_data::disk::{Disk, FileSystem, append, cut};
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_runtime::{Buffer, Params};

/// What a callback may see and change.
pub struct FitCx<'a> {
    /// The model.
    pub model: &'a mut Model,
    /// Loss and metrics so far in this epoch; at the epoch's end with `val_…`.
    pub logs: &'a Logs,
    /// The epoch, from 0.
    pub epoch: usize,
    /// Set it to end training after this step or epoch.
    pub stop_because: &'a mut Option<String>,
    /// What the user should know of it: [`History::notes`](crate::History::notes).
    pub notes: &'a mut Vec<String>,
}

impl FitCx<'_> {
    /// Tells the user something that does not end training.
    pub fn note(&mut self, text: String) {
        report(&Some(ProgressEvent::Note(&text)));
        self.notes.push(text);
    }
}

/// Files that cannot be written now and will be tried again: told when that begins, and when it has not ended with training.
#[derive(Default)]
pub(crate) struct Delay {
    pub(crate) is_told: bool,
}

impl Delay {
    /// `what` is `a checkpoint is`, followed by `not written yet`.
    pub(crate) fn tell(&mut self, written: Result<()>, what: &str, cx: &mut FitCx<'_>) {
        match written {
            Ok(()) => self.is_told = false,
            Err(_) if self.is_told => {}
            Err(e) => {
                self.is_told = true;
                cx.note(format!("{what} not written yet, which is tried again after each epoch: {e}"));
            }
        }
    }

    /// At the end of training.
    pub(crate) fn tell_at_end(&self, what: &str, cx: &mut FitCx<'_>) {
        if self.is_told {
            cx.note(format!("{what} not written: that could not be done until training ended"));
        }
    }
}

/// What a callback has found out so far, as backups of a run keep it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallbackState {
    /// Numbers and texts. JSON has no NaN: write floats with [`CallbackState::float`].
    pub values: Value,
    /// Arrays by name.
    pub tensors: Vec<(String, Literal)>,
}

impl CallbackState {
    /// A float as text that reads back to the same bits, NaN and infinities too.
    pub fn float(value: Option<f64>) -> Value {
        value.map_or(Value::Null, |v| v.to_string().into())
    }

    fn get(&self, name: &str) -> Result<&Value> {
        self.values.get(name).ok_or_else(|| {
            Error::new(ErrorKind::Data, format!("a callback's state in the backup has no `{name}`"))
                .hint("go on with the callbacks that the run was started with")
        })
    }

    /// A whole number of [`CallbackState::values`].
    pub fn count(&self, name: &str) -> Result<usize> {
        let wrong = || Error::new(ErrorKind::Data, format!("`{name}` in a callback's state is no number"));
        self.get(name)?.as_u64().and_then(|n| n.try_into().ok()).ok_or_else(wrong)
    }

    /// What [`CallbackState::float`] wrote.
    pub fn float_of(&self, name: &str) -> Result<Option<f64>> {
        let wrong = || Error::new(ErrorKind::Data, format!("`{name}` in a callback's state is no number"));
        match self.get(name)? {
            Value::Null => Ok(None),
            value => value.as_str().and_then(|s| s.parse().ok()).map(Some).ok_or_else(wrong),
        }
    }
}

/// Hooks into `fit`. Every method does nothing unless written.
///
/// On several hosts each calls its own, with the same values: they must decide the same everywhere, and only the one whose
/// [`Model::leads`] may write files.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_ir::Result;
/// use systole_nn::{callback::{Callback, FitCx}, Fit};
/// /// Ends training once the loss is small enough.
/// struct GoodEnough(f64);
/// impl Callback for GoodEnough {
///     fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
///         if cx.logs["loss"] < self.0 {
///             *cx.stop_because = Some(format!("the loss is below {}", self.0));
///         }
///         Ok(())
///     }
/// }
/// let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(GoodEnough(100.0))];
/// let history = model.fit(&data, Fit { epochs: 50, callbacks, ..Default::default() })?;
/// assert_eq!(history.epochs.len(), 1);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub trait Callback: Send {
    /// What must be known for a killed run to go on as if it had not been; nothing, unless written.
    fn state(&self) -> Result<CallbackState> {
        Ok(CallbackState::default())
    }
    /// Takes up what [`Callback::state`] gave; called before [`Callback::on_train_begin`].
    fn restore(&mut self, _state: &CallbackState) -> Result<()> {
        Ok(())
    }
    /// Before the first epoch.
    fn on_train_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Before each epoch.
    fn on_epoch_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Whether it looks at the run after this step, which it does unless written; where no callback does, devices compute on by
    /// themselves.
    fn wants_batch(&self, _step: u64) -> bool {
        true
    }
    /// After each step that one of the callbacks wants.
    fn on_train_batch_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// After each epoch, validation included.
    fn on_epoch_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// After the last epoch.
    fn on_train_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
}

/// Which direction of a watched value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// From the name: accuracies, precision, recall and AUC grow; everything else falls.
    #[default]
    Auto,
    /// Lower is better.
    Min,
    /// Higher is better.
    Max,
}

/// Whether a value of this name is better when it is greater: an accuracy, not a loss.
pub fn grows(monitor: &str) -> bool {
    let words = [
        "acc",
        "precision",
        "recall",
        "auc",
        "top_k",
        "f1_",
        "fbeta",
        "r2_",
        "iou",
        "correlation",
        "cosine",
        "sensitivity",
        "specificity",
        "true_positives",
        "true_negatives",
    ];
    words.iter().any(|word| monitor.contains(word))
}

/// A watched value and its best so far.
#[derive(Clone, Debug)]
pub(crate) struct Best {
    monitor: String,
    higher: bool,
    min_delta: f64,
    pub(crate) best: Option<f64>,
}

impl Best {
    pub(crate) fn new(monitor: &str, mode: Mode, min_delta: f64) -> Best {
        let higher = mode == Mode::Max || (mode == Mode::Auto && grows(monitor));
        Best { monitor: monitor.into(), higher, min_delta: min_delta.abs(), best: None }
    }

    /// Whether this epoch's value is the best so far; `None` when it was not measured this epoch.
    pub(crate) fn improved(&mut self, logs: &Logs) -> Result<Option<bool>> {
        let Some(value) = logs.get(&self.monitor) else {
            // Validation may run every few epochs only: then the value is absent now and then.
            if self.monitor.starts_with("val_") && logs.get(&self.monitor[4..]).is_some() {
                return Ok(None);
            }
            let known: Vec<&str> = logs.iter().map(|(n, _)| n).collect();
            return Err(Error::new(
                ErrorKind::Config,
                format!("a callback watches {}, which is not measured", self.monitor),
            )
            .hint(format!("measured are: {}", known.join(", "))));
        };
        let better = match self.best {
            None => !value.is_nan(),
            Some(best) if self.higher => value > best + self.min_delta,
            Some(best) => value < best - self.min_delta,
        };
        if better {
            self.best = Some(value);
        }
        Ok(Some(better))
    }
}

/// Ends training when a value has stopped improving.
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
/// let stop = EarlyStopping::new("val_loss", 2).min_delta(1e9).restore_best_weights(true);
/// let (validation, callbacks) = (Some(data.clone()), vec![Box::new(stop) as _]);
/// let history = model.fit(&data, Fit { epochs: 50, validation, callbacks, ..Default::default() })?;
/// assert_eq!(history.epochs.len(), 3); // the first, and two that were no better
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct EarlyStopping {
    watch: Best,
    patience: usize,
    start_from_epoch: usize,
    restore_best_weights: bool,
    baseline: Option<f64>,
    wait: usize,
    best_weights: Option<(Params<Buffer>, Params<Buffer>)>,
}

impl EarlyStopping {
    /// Watches `monitor` (Keras's default: `val_loss`) and waits `patience` epochs.
    pub fn new(monitor: &str, patience: usize) -> EarlyStopping {
        EarlyStopping {
            watch: Best::new(monitor, Mode::Auto, 0.0),
            patience,
            start_from_epoch: 0,
            restore_best_weights: false,
            baseline: None,
            wait: 0,
            best_weights: None,
        }
    }

    /// Sets the direction. Default: `Mode::Auto`.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.watch = Best::new(&self.watch.monitor, mode, self.watch.min_delta);
        self
    }

    /// Changes smaller than this are no improvement. Default: 0.
    pub fn min_delta(mut self, min_delta: f64) -> Self {
        self.watch.min_delta = min_delta.abs();
        self
    }

    /// Puts the weights of the best epoch back at the end.
    pub fn restore_best_weights(mut self, yes: bool) -> Self {
        self.restore_best_weights = yes;
        self
    }

    /// Epochs before this one do not count.
    pub fn start_from_epoch(mut self, epoch: usize) -> Self {
        self.start_from_epoch = epoch;
        self
    }

    /// A value that must be beaten for waiting to start over.
    pub fn baseline(mut self, baseline: f64) -> Self {
        self.baseline = Some(baseline);
        self
    }
}

const TRAINABLE: &str = "trainable/";
const FROZEN: &str = "frozen/";

impl Callback for EarlyStopping {
    fn state(&self) -> Result<CallbackState> {
        let mut tensors = Vec::new();
        if let Some((trainable, frozen)) = &self.best_weights {
            for (prefix, group) in [(TRAINABLE, trainable), (FROZEN, frozen)] {
                for (name, value) in group.iter() {
                    tensors.push((format!("{prefix}{name}"), value.to_literal()?));
                }
            }
        }
        let values = json!({"best": CallbackState::float(self.watch.best), "wait": self.wait});
        Ok(CallbackState { values, tensors })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        (self.watch.best, self.wait) = (state.float_of("best")?, state.count("wait")?);
        let group = |prefix: &str| -> Params<Buffer> {
            let own = state.tensors.iter().filter_map(|(n, x)| Some((n.strip_prefix(prefix)?, x)));
            own.map(|(n, x)| (n.to_string(), x.clone().into())).collect()
        };
        self.best_weights = (!state.tensors.is_empty()).then(|| (group(TRAINABLE), group(FROZEN)));
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.epoch < self.start_from_epoch {
            return Ok(());
        }
        let Some(improved) = self.watch.improved(cx.logs)? else { return Ok(()) };
        if improved {
            if self.restore_best_weights {
                self.best_weights = Some(owned_weights(cx.model)?);
            }
            let best = self.watch.best.unwrap_or(f64::NAN);
            let beats = self.baseline.is_none_or(|b| if self.watch.higher { best > b } else { best < b });
            self.wait = if beats { 0 } else { self.wait + 1 };
        } else {
            self.wait += 1;
        }
        if self.wait >= self.patience && cx.epoch > 0 {
            *cx.stop_because = Some(format!(
                "{} has not improved on {:.4} for {}",
                self.watch.monitor,
                self.watch.best.unwrap_or(f64::NAN),
                counted(self.wait as u64, "epoch")
            ));
        }
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if let Some((trainable, frozen)) = self.best_weights.take() {
            cx.model.state.trainable = trainable;
            cx.model.state.frozen = frozen;
        }
        Ok(())
    }
}

/// Weights that share no storage with the model's: the next step would otherwise have to copy its state.
fn owned_weights(model: &Model) -> Result<(Params<Buffer>, Params<Buffer>)> {
    let copy = |p: &Params<Buffer>| -> Result<Params<Buffer>> {
        p.iter()
            .map(|(n, b)| Ok((n.to_string(), model.whole(b)?.into())))
            .collect::<Result<Vec<_>>>()
            .map(|v| v.into_iter().collect())
    };
    Ok((copy(&model.state.trainable)?, copy(&model.state.frozen)?))
}

/// Saves the model after epochs. `{epoch}` and names of values in the path are filled in.
///
/// A model that cannot be written is told, kept, and written after the next epoch unless that saves a newer one: a full disk
/// ends no training.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::{Mode, ModelCheckpoint}, Fit};
/// let dir = std::env::temp_dir().join(format!("doc-checkpoint-{}", std::process::id()));
/// let path = format!("{}/{{epoch}}.safetensors", dir.display());
/// let keep = ModelCheckpoint::new(&path).save_best_only("loss", Mode::Min);
/// model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(keep)], ..Default::default() })?;
/// assert_eq!(Model::load(dir.join("2.safetensors"))?.epochs(), 2);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct ModelCheckpoint<F: FileSystem = Disk> {
    files: F,
    path: String,
    watch: Best,
    save_best_only: bool,
    /// What could not be written yet, and where.
    pending: Option<(PathBuf, ModelFile)>,
    delay: Delay,
}

impl ModelCheckpoint {
    /// Saves to `path` after every epoch: `"runs/{epoch:02}-{val_loss:.2}.safetensors"`.
    pub fn new(path: &str) -> ModelCheckpoint {
        ModelCheckpoint::with_files(Disk, path)
    }
}

impl<F: FileSystem> ModelCheckpoint<F> {
    /// [`ModelCheckpoint::new`] on another file system.
    pub fn with_files(files: F, path: &str) -> ModelCheckpoint<F> {
        ModelCheckpoint {
            files,
            path: path.into(),
            watch: Best::new("val_loss", Mode::Auto, 0.0),
            save_best_only: false,
            pending: None,
            delay: Delay::default(),
        }
    }

    /// Saves only when `monitor` is the best so far. Default: after every epoch.
    pub fn save_best_only(mut self, monitor: &str, mode: Mode) -> Self {
        self.watch = Best::new(monitor, mode, 0.0);
        self.save_best_only = true;
        self
    }

    /// Writes what is to be written; what cannot be stays.
    fn write(&mut self) -> Result<()> {
        if let Some((path, file)) = &self.pending {
            file.save_to(&self.files, path)?;
            self.pending = None;
        }
        Ok(())
    }
}

impl<F: FileSystem + Send> Callback for ModelCheckpoint<F> {
    fn state(&self) -> Result<CallbackState> {
        Ok(CallbackState {
            values: json!({"best": CallbackState::float(self.watch.best)}),
            ..Default::default()
        })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.watch.best = state.float_of("best")?;
        Ok(())
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let template = Template::parse(&self.path)?;
        template.check(&measured(cx.model))?;
        match template.folder().filter(|_| cx.model.leads()) {
            Some(folder) => std::fs::create_dir_all(&folder)
                .map_err(|e| Error::io("cannot make the folder", &folder, e).hint("choose another path")),
            None => Ok(()),
        }
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !self.save_best_only || self.watch.improved(cx.logs)? == Some(true) {
            let template = Template::parse(&self.path)?;
            template.check(&measured(cx.model))?;
            // Validation may run every few epochs only: a name that needs its values is known then.
            let needed = template.values().filter(|v| !v.starts_with("val_")).collect::<Vec<_>>();
            if let Some(lacking) = needed.into_iter().find(|v| cx.logs.get(v).is_none()) {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("the path `{}` needs {lacking}", self.path),
                )
                .because("it was not measured in this epoch")
                .hint("name values that each epoch has"));
            }
            if let Some(path) = template.fill(cx.epoch, cx.logs) {
                // All hosts put the arrays together; one writes them.
                let file = cx.model.to_file()?;
                self.pending = cx.model.leads().then_some((path, file));
            }
        }
        let written = self.write();
        self.delay.tell(written, "a checkpoint is", cx);
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the last checkpoint is", cx);
        Ok(())
    }
}

/// The values that training measures, without those of a validation.
fn measured(model: &Model) -> Vec<String> {
    let metrics = model.compile_config().map(|c| c.metrics.iter().map(|m| m.name().to_string()));
    std::iter::once("loss".to_string()).chain(metrics.into_iter().flatten()).collect()
}

/// A callback cannot set a rate that a schedule sets too: one of them would be without effect.
fn refuse_schedule(cx: &FitCx<'_>, who: &str) -> Result<()> {
    let rate = cx.model.compile_config().map(|c| &c.optimizer.learning_rate);
    match rate {
        None | Some(Schedule::Constant(_)) => Ok(()),
        Some(_) => {
            Err(Error::new(ErrorKind::Config, format!("{who} would replace the optimizer's schedule"))
                .because("the learning rate is set by a schedule at each step")
                .hint("give the optimizer a number as learning_rate, or leave the callback out"))
        }
    }
}

/// Sets the learning rate before each epoch by a function of (epoch, current rate).
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::LearningRateScheduler, Fit};
/// let halve = LearningRateScheduler(|epoch, rate| if epoch == 0 { rate } else { rate / 2.0 });
/// model.fit(&data, Fit { epochs: 3, callbacks: vec![Box::new(halve)], ..Default::default() })?;
/// assert_eq!(model.learning_rate(), 0.05 / 4.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct LearningRateScheduler<F>(pub F);

impl<F: FnMut(usize, f64) -> f64 + Send> Callback for LearningRateScheduler<F> {
    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        refuse_schedule(cx, "LearningRateScheduler")
    }

    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let rate = (self.0)(cx.epoch, cx.model.learning_rate());
        cx.model.set_learning_rate(rate);
        Ok(())
    }
}

/// Lowers the learning rate when a value has stopped improving.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::ReduceLROnPlateau, Fit};
/// let reduce = ReduceLROnPlateau::new("loss").factor(0.5).patience(5).min_lr(1e-5);
/// model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(reduce)], ..Default::default() })?;
/// assert_eq!(model.learning_rate(), 0.05); // the loss falls
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct ReduceLROnPlateau {
    watch: Best,
    factor: f64,
    patience: usize,
    cooldown: usize,
    min_lr: f64,
    wait: usize,
    cooling: usize,
}

impl ReduceLROnPlateau {
    /// Watches `monitor`; multiplies the rate by 0.1 after 10 epochs without improvement (Keras's defaults).
    pub fn new(monitor: &str) -> ReduceLROnPlateau {
        ReduceLROnPlateau {
            watch: Best::new(monitor, Mode::Auto, 1e-4),
            factor: 0.1,
            patience: 10,
            cooldown: 0,
            min_lr: 0.0,
            wait: 0,
            cooling: 0,
        }
    }

    /// Sets the factor, below 1.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Sets how many epochs to wait.
    pub fn patience(mut self, patience: usize) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how many epochs after a change do not count.
    pub fn cooldown(mut self, epochs: usize) -> Self {
        self.cooldown = epochs;
        self
    }

    /// Sets the lowest rate.
    pub fn min_lr(mut self, min_lr: f64) -> Self {
        self.min_lr = min_lr;
        self
    }
}

impl Callback for ReduceLROnPlateau {
    fn state(&self) -> Result<CallbackState> {
        let best = CallbackState::float(self.watch.best);
        let values = json!({"best": best, "wait": self.wait, "cooling": self.cooling});
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.watch.best = state.float_of("best")?;
        (self.wait, self.cooling) = (state.count("wait")?, state.count("cooling")?);
        Ok(())
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !(self.factor >= 0.0 && self.factor < 1.0) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("ReduceLROnPlateau's factor is {}", self.factor),
            )
            .because("the rate is multiplied by it and is to become lower")
            .hint("choose a number from 0 to below 1, such as 0.1"));
        }
        refuse_schedule(cx, "ReduceLROnPlateau")
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let Some(improved) = self.watch.improved(cx.logs)? else { return Ok(()) };
        if self.cooling > 0 {
            self.cooling -= 1;
            self.wait = 0;
        }
        if improved {
            self.wait = 0;
        } else if self.cooling == 0 {
            self.wait += 1;
            let rate = cx.model.learning_rate();
            if self.wait >= self.patience && rate > self.min_lr {
                cx.model.set_learning_rate((rate * self.factor).max(self.min_lr));
                self.cooling = self.cooldown;
                self.wait = 0;
            }
        }
        Ok(())
    }
}

/// Writes a line for each epoch to a CSV file.
///
/// A line that cannot be written is told, kept, and written with the next one: a full disk ends no training. A file that
/// cannot be begun ends a new run before its first step, and no run that goes on.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::CSVLogger, Fit};
/// let path = std::env::temp_dir().join(format!("doc-log-{}.csv", std::process::id()));
/// let log = CSVLogger::new(&path);
/// model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(log)], ..Default::default() })?;
/// assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3); // names and two epochs
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct CSVLogger<F: FileSystem = Disk> {
    files: F,
    path: PathBuf,
    append: bool,
    columns: Vec<String>,
    /// Lines that could not be written yet.
    pending: String,
    /// Where the file ended when the backup was taken that the run goes on from.
    resumed_at: Option<u64>,
    /// Where it is still to be cut off: lines behind are of another run, or of steps that are taken again.
    cut: Option<u64>,
    delay: Delay,
}

impl CSVLogger {
    /// Starts the file anew.
    pub fn new(path: impl AsRef<Path>) -> CSVLogger {
        CSVLogger::with_files(Disk, path)
    }
}

impl<F: FileSystem> CSVLogger<F> {
    /// [`CSVLogger::new`] on another file system.
    pub fn with_files(files: F, path: impl AsRef<Path>) -> CSVLogger<F> {
        CSVLogger {
            files,
            path: path.as_ref().into(),
            append: false,
            columns: Vec::new(),
            pending: String::new(),
            resumed_at: None,
            cut: None,
            delay: Delay::default(),
        }
    }

    /// Adds to the file where it exists.
    pub fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// Bytes of the file that are to stay.
    fn length(&self) -> u64 {
        let length = std::fs::metadata(&self.path).map_or(0, |m| m.len());
        self.cut.map_or(length, |cut| length.min(cut))
    }

    /// The columns of the file that is added to: its header stays.
    fn columns_of_file(&self) -> Option<Vec<String>> {
        let text = std::fs::read_to_string(&self.path).ok().filter(|_| self.append && self.length() > 0)?;
        let header = text.lines().next()?.strip_prefix("epoch,learning_rate,")?;
        Some(header.split(',').map(str::to_string).collect())
    }

    /// Values that the file has no column for are told, not written into other columns.
    fn tell_lacking(&self, cx: &mut FitCx<'_>) {
        let lacking: Vec<&str> =
            cx.logs.iter().map(|(n, _)| n).filter(|n| !self.columns.iter().any(|c| c == n)).collect();
        if !lacking.is_empty() {
            cx.note(format!("{} has no column for {}", self.path.display(), lacking.join(", ")));
        }
    }

    /// Writes what is to be written; what cannot be stays.
    fn write(&mut self) -> Result<()> {
        let failed = |e| Error::io("cannot write", &self.path, e);
        if self.cut.is_some() {
            cut(&self.files, &self.path, self.length()).map_err(failed)?;
            self.cut = None;
        }
        if !self.pending.is_empty() {
            append(&self.files, &self.path, self.pending.as_bytes()).map_err(failed)?;
            self.pending.clear();
        }
        Ok(())
    }
}

impl<F: FileSystem + Send> Callback for CSVLogger<F> {
    fn state(&self) -> Result<CallbackState> {
        let values = json!({"bytes": self.length(), "columns": self.columns, "pending": self.pending});
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.resumed_at = Some(state.count("bytes")? as u64);
        self.pending = state.get("pending")?.as_str().unwrap_or_default().into();
        let columns = state.get("columns")?.as_array().into_iter().flatten();
        self.columns = columns.filter_map(|c| c.as_str().map(str::to_string)).collect();
        Ok(())
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !cx.model.leads() {
            return Ok(());
        }
        let resumed_at = self.resumed_at.take();
        self.cut = Some(resumed_at.unwrap_or(if self.append { u64::MAX } else { 0 }));
        let begun = self.write();
        if resumed_at.is_none() {
            return begun;
        }
        self.delay.tell(begun, "the log is", cx);
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !cx.model.leads() {
            return Ok(());
        }
        if self.columns.is_empty()
            && let Some(columns) = self.columns_of_file()
        {
            self.columns = columns;
            self.tell_lacking(cx);
        }
        if self.columns.is_empty() {
            self.columns = cx.logs.iter().map(|(n, _)| n.to_string()).collect();
            // Values that only some epochs have (validation) need their column from the start.
            let validated: Vec<String> = self.columns.iter().map(|c| format!("val_{c}")).collect();
            if !self.columns.iter().any(|c| c.starts_with("val_")) {
                self.columns.extend(validated);
            }
            if !(self.append && self.length() > 0) {
                self.pending += &format!("epoch,learning_rate,{}\n", self.columns.join(","));
            }
        }
        let cells: Vec<String> =
            self.columns.iter().map(|c| cx.logs.get(c).map_or(String::new(), |v| v.to_string())).collect();
        self.pending += &format!("{},{},{}\n", cx.epoch, cx.model.learning_rate(), cells.join(","));
        let written = self.write();
        self.delay.tell(written, "an epoch of the log is", cx);
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the last epochs of the log are", cx);
        Ok(())
    }
}

/// Ends training as soon as the loss is NaN or infinite. So does every training without it; where devices work
/// asynchronously, this looks after each step.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::TerminateOnNaN, Fit};
/// let callbacks = vec![Box::new(TerminateOnNaN) as _];
/// assert!(model.fit(&data, Fit { callbacks, ..Default::default() }).is_ok());
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default)]
pub struct TerminateOnNaN;

impl Callback for TerminateOnNaN {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.logs.get("loss").is_some_and(|v| !v.is_finite()) {
            let what = || format!("the loss is not finite at step {}", cx.model.steps());
            cx.stop_because.get_or_insert_with(what);
        }
        Ok(())
    }
}
