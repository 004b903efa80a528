//! The [`Callback`] trait: hooks of `fit`, the context they get, and callback state in backups.

use crate::callback::progress::{ProgressEvent, report};
use crate::model::Model;
use crate::model::batch::Batch;
use crate::model::history::Logs;
use serde_json::Value;
use std::time::Duration;
use systole_ir::{Error, Literal, Result, err};

/// Context of a callback in `fit`: what the callback may read and change.
pub struct FitCx<'a> {
    /// The model.
    pub model: &'a mut Model,
    /// Loss and metrics of this epoch so far; at the epoch's end with `val_…`.
    pub logs: &'a Logs,
    /// Epoch, from 0.
    pub epoch: usize,
    /// Set it to end training after this step or epoch.
    pub stop_because: &'a mut Option<String>,
    /// Notes for the user: [`History::notes`](crate::History::notes).
    pub notes: &'a mut Vec<String>,
    /// Last trained batch of the epoch, from 0.
    pub batch: usize,
    /// Batches, samples and time of this start in the last epoch.
    pub pace: EpochPace,
    /// Last trained batch, if a callback [`wants_last_batch`](Callback::wants_last_batch).
    pub last_batch: Option<&'a Batch>,
    /// Whether the run has validation data.
    pub is_validated: bool,
    /// Whether the epoch is still in progress.
    pub is_within_epoch: bool,
}

/// Number and time of an epoch's steps, without validation; in a resumed epoch, only those after resuming.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EpochPace {
    /// Number of batches.
    pub batches: u64,
    /// Number of samples.
    pub samples: u64,
    /// Training time, including waiting for data.
    pub time: Duration,
}

impl FitCx<'_> {
    /// Reports a note to the user; training continues.
    pub fn note(&mut self, text: String) {
        report(&Some(ProgressEvent::Note(&text)));
        self.notes.push(text);
    }

    /// Returns an error of the callback `who` if the run does not measure `monitor`.
    pub(super) fn must_measure(&self, monitor: &str, who: &str) -> Result<()> {
        let (plain, is_of_validation) = match monitor.strip_prefix("val_") {
            Some(plain) => (plain, true),
            None => (monitor, false),
        };
        let all = measured(self.model);
        // A metric with several values appends an index to its name.
        let is_known = all.iter().any(|name| plain.strip_prefix(name.as_str()).is_some_and(is_index));
        let because = match (is_known, is_of_validation && !self.is_validated) {
            (true, false) => return Ok(()),
            (true, true) => "the run has no validation".to_string(),
            (false, _) => format!("measured are: {}, and these with val_ before", all.join(", ")),
        };
        Err(err!(Config, "{who} monitors {monitor}, which is not measured")
            .because(because)
            .hint("choose another monitor"))
    }
}

fn is_index(rest: &str) -> bool {
    rest.is_empty() || rest.strip_prefix('_').is_some_and(|n| n.parse::<usize>().is_ok())
}

/// Returns the names of values measured in training, without validation.
pub(super) fn measured(model: &Model) -> Vec<String> {
    let goals = model.compiled.as_ref().map(|compiled| &compiled.goals);
    let losses = goals.into_iter().flat_map(|goals| goals.losses().map(|(_, name)| name));
    let metrics = goals.map_or(Vec::new(), |goals| goals.metric_names());
    std::iter::once("loss".to_string()).chain(losses).chain(metrics).collect()
}

/// Retries failed file writes. Reports the first failure, and a write that still fails at the end of training.
#[derive(Default)]
pub(crate) struct WriteRetry {
    pub(crate) is_told: bool,
}

impl WriteRetry {
    /// Reports a failed write. `what` is `a checkpoint is`, followed by `not written yet`.
    pub(crate) fn tell(&mut self, written: Result<()>, what: &str, cx: &mut FitCx<'_>) {
        match written {
            Ok(()) => self.is_told = false,
            Err(_) if self.is_told => {}
            Err(e) => {
                self.is_told = true;
                cx.note(format!("{what} not written yet; retrying after each epoch: {e}"));
            }
        }
    }

    /// Reports at the end of training if the last write failed.
    pub(crate) fn tell_at_end(&self, what: &str, cx: &mut FitCx<'_>) {
        if self.is_told {
            cx.note(format!("{what} not written: all attempts until the end of training failed"));
        }
    }
}

/// State of a training callback, stored in backups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallbackState {
    /// Numbers and strings. JSON has no NaN: write floats with [`CallbackState::float`].
    pub values: Value,
    /// Arrays by name.
    pub tensors: Vec<(String, Literal)>,
}

impl CallbackState {
    /// Converts a float to a string that parses to the same bits, including NaN and infinities.
    pub fn float(value: Option<f64>) -> Value {
        value.map_or(Value::Null, |v| v.to_string().into())
    }

    /// Converts logs to strings that parse to the same bits.
    pub(super) fn logs(logs: &Logs) -> Value {
        logs.iter().map(|(name, value)| serde_json::json!([name, value.to_string()])).collect()
    }

    /// Reads the result of [`CallbackState::logs`]; empty if absent.
    pub(super) fn logs_of(value: &Value) -> Result<Logs> {
        let wrong = || err!(Data, "cannot read the values in a callback's state");
        let mut logs = Logs::new();
        for entry in value.as_array().into_iter().flatten() {
            let number = entry[1].as_str().and_then(|v| v.parse().ok()).ok_or_else(wrong)?;
            logs.insert(entry[0].as_str().ok_or_else(wrong)?, number);
        }
        Ok(logs)
    }

    pub(super) fn get(&self, name: &str) -> Result<&Value> {
        self.values.get(name).ok_or_else(|| {
            err!(Data, "the state of a callback in the backup has no `{name}`")
                .hint("resume with the callbacks of the original run")
        })
    }

    /// Returns an integer of the callback's state ([`CallbackState::values`]).
    pub fn count(&self, name: &str) -> Result<usize> {
        let wrong = || err!(Data, "`{name}` in a callback's state is not an integer");
        self.get(name)?.as_u64().and_then(|n| n.try_into().ok()).ok_or_else(wrong)
    }

    /// Returns a string of [`CallbackState::values`].
    pub(super) fn text_of(&self, name: &str) -> Result<&str> {
        let wrong = || err!(Data, "`{name}` in a callback's state is not a string");
        self.get(name)?.as_str().ok_or_else(wrong)
    }

    /// Returns a float of the callback's state, as written by [`CallbackState::float`].
    pub fn float_of(&self, name: &str) -> Result<Option<f64>> {
        let wrong = || err!(Data, "`{name}` in a callback's state is not a number");
        match self.get(name)? {
            Value::Null => Ok(None),
            value => value.as_str().and_then(|s| s.parse().ok()).map(Some).ok_or_else(wrong),
        }
    }
}

/// Converts seconds of a backup to a duration.
pub(crate) fn duration(name: &str, seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| {
        err!(Data, "`{name}` in the backup is {seconds} seconds")
            .because(e.to_string())
            .hint("resume from an earlier backup")
    })
}

/// Hooks into `fit`. All methods do nothing by default.
///
/// With several hosts, each calls its own callbacks with the same values. Callbacks must decide the same everywhere,
/// and only the host with [`Model::leads`] may write files.
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
    /// Returns the state needed to resume a killed run exactly; empty by default.
    fn state(&self) -> Result<CallbackState> {
        Ok(CallbackState::default())
    }
    /// Restores the result of [`Callback::state`]; called before [`Callback::on_train_begin`].
    fn restore(&mut self, _state: &CallbackState) -> Result<()> {
        Ok(())
    }
    /// Whether it only logs the run, so that it may be added to or removed from a resumed run.
    fn is_logger(&self) -> bool {
        false
    }
    /// Prepares the model for restoring this backup; called after [`Callback::restore`].
    fn prepare(&mut self, _model: &mut Model) -> Result<()> {
        Ok(())
    }
    /// Called before the first epoch.
    fn on_train_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Called before each epoch.
    fn on_epoch_begin(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Whether it needs the run's values after this step; true by default. If no callback does, devices continue
    /// asynchronously.
    fn wants_batch(&self, _step: u64) -> bool {
        true
    }
    /// Whether it needs the last batch of this epoch (from 0) at the epoch's end.
    fn wants_last_batch(&self, _epoch: usize) -> bool {
        false
    }
    /// Whether to skip a batch: its epoch and its index in the epoch, from 0.
    fn skips(&self, _epoch: usize, _batch: usize) -> bool {
        false
    }
    /// Whether validation uses the weight averages (`Some`), and whether callbacks see them at the end of each epoch
    /// (`true`): [`SwapEMAWeights`](super::SwapEMAWeights).
    fn swaps_averages(&self) -> Option<bool> {
        None
    }
    /// Returns values to add to the logs of this step or epoch, before any callback sees them.
    fn values(&mut self, _cx: &mut FitCx<'_>) -> Result<Logs> {
        Ok(Logs::new())
    }
    /// Called after each step that any callback wants.
    fn on_train_batch_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Called after a validation within an epoch ([`Fit::val_check_interval`](crate::Fit::val_check_interval)), and
    /// after the final validation if it follows the last epoch ([`Fit::validate_last`](crate::Fit::validate_last)).
    fn on_validation_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Called after each epoch, including its validation.
    fn on_epoch_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
    /// Called when training fails: an error of the data, of a step or of another callback. Not called if the process is
    /// killed.
    fn on_exception(&mut self, _cx: &mut FitCx<'_>, _error: &Error) {}
    /// Called after the last epoch.
    fn on_train_end(&mut self, _cx: &mut FitCx<'_>) -> Result<()> {
        Ok(())
    }
}
