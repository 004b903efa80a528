//! What callbacks are: the hooks of `fit`, what they see, and what backups keep of them.

use crate::callback::progress::{ProgressEvent, report};
use crate::model::Model;
use crate::model::batch::Batch;
use crate::model::history::Logs;
use serde_json::Value;
use std::time::Duration;
use systole_ir::{Error, ErrorKind, Literal, Result};

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
    /// The batch of the epoch that was trained on last, from 0.
    pub batch: usize,
    /// How far this start went in the last epoch, and how fast.
    pub pace: EpochPace,
    /// The last batch that was trained on, where a callback [`wants_last_batch`](Callback::wants_last_batch).
    pub last_batch: Option<&'a Batch>,
    /// Whether the run has a validation.
    pub is_validated: bool,
    /// Whether the epoch is not over yet.
    pub is_within_epoch: bool,
}

/// Steps of an epoch and the time that they took, validation left out; of one in which a run went on, what came then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochPace {
    /// Batches.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their time, waiting for data included.
    pub time: Duration,
}

impl FitCx<'_> {
    /// Tells the user something that does not end training.
    pub fn note(&mut self, text: String) {
        report(&Some(ProgressEvent::Note(&text)));
        self.notes.push(text);
    }

    /// An error of the callback `who` where a value is not one that the run will measure.
    pub(super) fn must_measure(&self, monitor: &str, who: &str) -> Result<()> {
        let (plain, is_of_validation) = match monitor.strip_prefix("val_") {
            Some(plain) => (plain, true),
            None => (monitor, false),
        };
        let all = measured(self.model);
        // A metric of several values adds a number to its name.
        let is_known = all.iter().any(|name| plain.strip_prefix(name.as_str()).is_some_and(is_index));
        let because = match (is_known, is_of_validation && !self.is_validated) {
            (true, false) => return Ok(()),
            (true, true) => "the run has no validation".to_string(),
            (false, _) => format!("measured are: {}, and these with val_ before", all.join(", ")),
        };
        let what = format!("{who} watches {monitor}, which is not measured");
        Err(Error::new(ErrorKind::Config, what).because(because).hint("choose another monitor"))
    }
}

fn is_index(rest: &str) -> bool {
    rest.is_empty() || rest.strip_prefix('_').is_some_and(|n| n.parse::<usize>().is_ok())
}

/// The values that training measures, without those of a validation.
pub(super) fn measured(model: &Model) -> Vec<String> {
    let goals = model.compiled.as_ref().map(|compiled| &compiled.goals);
    let losses = goals.into_iter().flat_map(|goals| goals.losses().map(|(_, name)| name));
    let metrics = goals.map_or(Vec::new(), |goals| goals.metric_names());
    std::iter::once("loss".to_string()).chain(losses).chain(metrics).collect()
}

/// Files that cannot be written now and will be tried again: told when that begins, and when it has not ended with training.
#[derive(Default)]
pub(crate) struct WriteRetry {
    pub(crate) is_told: bool,
}

impl WriteRetry {
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

    /// Values as texts that read back to the same bits.
    pub(super) fn logs(logs: &Logs) -> Value {
        logs.iter().map(|(name, value)| serde_json::json!([name, value.to_string()])).collect()
    }

    /// What [`CallbackState::logs`] gave; nothing where there is none.
    pub(super) fn logs_of(value: &Value) -> Result<Logs> {
        let wrong = || Error::new(ErrorKind::Data, "the values in a callback's state are not readable");
        let mut logs = Logs::new();
        for entry in value.as_array().into_iter().flatten() {
            let number = entry[1].as_str().and_then(|v| v.parse().ok()).ok_or_else(wrong)?;
            logs.insert(entry[0].as_str().ok_or_else(wrong)?, number);
        }
        Ok(logs)
    }

    pub(super) fn get(&self, name: &str) -> Result<&Value> {
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

    /// A text of [`CallbackState::values`].
    pub(super) fn text_of(&self, name: &str) -> Result<&str> {
        let wrong = || Error::new(ErrorKind::Data, format!("`{name}` in a callback's state is no text"));
        self.get(name)?.as_str().ok_or_else(wrong)
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

/// A time that a backup has in seconds.
pub(crate) fn duration(name: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| {
        Error::new(ErrorKind::Data, format!("`{name}` in the backup is {seconds} seconds"))
            .because(e.to_string())
            .hint("go on from an earlier backup")
    })
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
    /// Whether it only writes down how a run goes on, so that the run may go on without it, and it may join one that goes on.
    fn is_logger(&self) -> bool {
        false
    }
    /// Makes the model ready to take up the backup whose state this is; called after [`Callback::restore`].
    fn prepare(&mut self, _model: &mut Model) -> Result<()> {
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
    /// Whether it looks at the last batch of this epoch, from 0, when that is over.
    fn wants_last_batch(&self, _epoch: usize) -> bool {
        false
    }
    /// Whether a batch is left out: its epoch and its place in that, from 0.
    fn skips(&self, _epoch: usize, _batch: usize) -> bool {
        false
    }
    /// Whether the model is measured with the running means of its weights, and whether callbacks see those at the end of each
    /// epoch: [`SwapEMAWeights`](super::SwapEMAWeights).
    fn swaps_averages(&self) -> Option<bool> {
        None
    }
    /// Values that it adds to those of this step or epoch: before any callback sees them.
    fn values(&mut self, _cx: &mut FitCx<'_>) -> Result<Logs> {
        Ok(Logs::new())
    }
    /// After each step that one of the callbacks wants.
    fn on_train_batch_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// After a validation in the middle of an epoch ([`Fit::val_check_interval`](crate::Fit::val_check_interval)), and after that
    /// of the last epoch where it came when the epoch was over ([`Fit::validate_last`](crate::Fit::validate_last)).
    fn on_validation_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// After each epoch, validation included.
    fn on_epoch_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// When training fails with this error: of the data, of a step, of another callback. Not when it is killed.
    fn on_exception(&mut self, _cx: &mut FitCx<'_>, _error: &Error) {}
    /// After the last epoch.
    fn on_train_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
}
