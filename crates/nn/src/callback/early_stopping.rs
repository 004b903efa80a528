//! `EarlyStopping` callback: ends training when a monitored value stops improving.

use super::callback_trait::{Callback, CallbackState, FitCx};
use super::config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback, checked};
use super::monitored_value::{Mode, is_better, is_upward, is_validated, watched};
use crate::json::{Deserialize, Serialize};
use crate::model::history::WEIGHTS_NOTE;
use crate::model::{Model, counted};
use crate::setters::{field_setters, with_defaults};
use serde_json::json;
use systole_ir::{Result, err};
use systole_runtime::{Buffer, Params};

with_defaults! {
    /// Callback that ends training when a monitored value has stopped improving.
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
    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct EarlyStopping {
        /// Monitored value.
        pub monitor: String = "val_loss".into(),
        /// Minimum change that counts as an improvement.
        pub min_delta: f64 = 0.0,
        /// Epochs without improvement before training ends.
        pub patience: usize = 0,
        /// Direction of improvement.
        pub mode: Mode = Mode::Auto,
        /// Value that must be beaten to reset the patience. Default: none.
        pub baseline: Option<f64> = None,
        /// Whether to restore the weights of the best epoch at the end.
        pub restore_best_weights: bool = false,
        /// First epoch that counts.
        pub start_from_epoch: usize = 0,
        /// Whether training ends if the value is not finite.
        pub check_finite: bool = true,
        /// Training ends once the value is better than this. Default: none.
        pub stopping_threshold: Option<f64> = None,
        /// Training ends once the value is worse than this. Default: none.
        pub divergence_threshold: Option<f64> = None,
        /// Whether a value that is not measured is an error.
        pub strict: bool = true,
        /// Whether to check only at the ends of epochs (`true`), or only after validations (`false`). Default: after
        /// each validation that measures the value, and at the ends of epochs.
        pub check_on_train_epoch_end: Option<bool> = None,
        #[serde(skip)]
        best: Option<f64> = None,
        /// Epoch of the best value, from 0.
        #[serde(skip)]
        best_epoch: Option<usize> = None,
        /// Step of the last checked value: an epoch may end with a validation that was already checked.
        #[serde(skip)]
        seen: Option<u64> = None,
        #[serde(skip)]
        wait: usize = 0,
        #[serde(skip)]
        best_weights: Option<WeightSnapshot> = None,
    }
}

/// Trainable and frozen weights.
type WeightSnapshot = (Params<Buffer>, Params<Buffer>);

impl EarlyStopping {
    /// Creates a callback that monitors `monitor` (Keras's default: `val_loss`) with a patience of `patience` epochs.
    pub fn new(monitor: &str, patience: usize) -> EarlyStopping {
        EarlyStopping { monitor: monitor.into(), patience, ..EarlyStopping::default() }
    }
}

field_setters! {
    impl EarlyStopping {
        /// Sets the direction of improvement.
        mode(mode: Mode);
        /// Sets the minimum change that counts as an improvement.
        min_delta(min_delta: f64);
        /// Restores the weights of the best epoch at the end.
        restore_best_weights(yes: bool);
        /// Sets the first epoch that counts.
        start_from_epoch(epoch: usize);
        /// Sets whether training ends if the value is not finite.
        check_finite(yes: bool);
        /// Ends training once the value is better than this.
        stopping_threshold(value: f64) => Some(value);
        /// Ends training once the value is worse than this.
        divergence_threshold(value: f64) => Some(value);
        /// Sets whether a value that is not measured is an error; otherwise the check is skipped.
        strict(yes: bool);
        /// Checks only at the ends of epochs, or only after validations. Default: both, if the value is measured.
        check_on_train_epoch_end(yes: bool) => Some(yes);
        /// Sets a value that must be beaten to reset the patience.
        baseline(baseline: f64) => Some(baseline);
    }
}

impl ConfigCallback for EarlyStopping {
    fn check(&self) -> ArgumentCheck {
        let no_number = [
            ("min_delta", Some(self.min_delta)),
            ("baseline", self.baseline),
            ("stopping_threshold", self.stopping_threshold),
            ("divergence_threshold", self.divergence_threshold),
        ];
        match no_number.into_iter().find(|(_, value)| value.is_some_and(f64::is_nan)) {
            Some((name, _)) => {
                let e =
                    err!(Config, "the callback's argument {name} is not a number");
                Err((name, e.hint("remove the argument, or set it to a number")))
            }
            None => Ok(()),
        }
    }

    fn monitor(&self) -> Option<&str> {
        Some(&self.monitor)
    }

    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.monitor = (place.logged)(&self.monitor);
    }
}

impl EarlyStopping {
    /// Checks the value, with Lightning's order of conditions.
    fn look(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.epoch < self.start_from_epoch || self.seen == Some(cx.model.steps()) {
            return Ok(());
        }
        let found = watched(&self.monitor, cx.logs);
        let Some(value) = (if self.strict { found? } else { found.unwrap_or(None) }) else { return Ok(()) };
        self.seen = Some(cx.model.steps());
        let mut why = self.passed(value);
        if why.is_none() {
            self.judge(value, cx)?;
            // As in Keras, a single value does not end training.
            why = (self.wait >= self.patience && (cx.epoch > 0 || cx.is_within_epoch)).then(|| self.waited());
        }
        if let Some(why) = why {
            *cx.stop_because = Some(why);
        }
        Ok(())
    }

    /// Returns why a single value ends training, if it does.
    fn passed(&self, value: f64) -> Option<String> {
        let (monitor, upward) = (&self.monitor, is_upward(self.mode, &self.monitor));
        let beyond = |limit: f64, upward: bool| if upward { value > limit } else { value < limit };
        if self.check_finite && !value.is_finite() {
            let best = self.best.map_or(String::new(), |best| format!(", best was {best:.4}"));
            return Some(format!("{monitor} is {value}{best} (check_finite)"));
        }
        if let Some(limit) = self.stopping_threshold.filter(|limit| beyond(*limit, upward)) {
            return Some(format!("{monitor} is {value:.4}, better than {limit} (stopping_threshold)"));
        }
        let limit = self.divergence_threshold.filter(|limit| beyond(*limit, !upward))?;
        Some(format!("{monitor} is {value:.4}, worse than {limit} (divergence_threshold)"))
    }

    /// Updates the best value and the number of epochs without improvement.
    fn judge(&mut self, value: f64, cx: &FitCx<'_>) -> Result<()> {
        let upward = is_upward(self.mode, &self.monitor);
        if !is_better(value, self.best, upward, self.min_delta) {
            self.wait += 1;
            return Ok(());
        }
        (self.best, self.best_epoch) = (Some(value), Some(cx.epoch));
        if self.restore_best_weights {
            self.best_weights = Some(owned_weights(cx.model)?);
        }
        self.wait = if self.beats_baseline(value) { 0 } else { self.wait + 1 };
        Ok(())
    }

    fn beats_baseline(&self, value: f64) -> bool {
        let upward = is_upward(self.mode, &self.monitor);
        self.baseline.is_none_or(|b| if upward { value > b } else { value < b })
    }

    fn waited(&self) -> String {
        let (monitor, best) = (&self.monitor, self.best.unwrap_or(f64::NAN));
        let epochs = counted(self.wait as u64, "epoch");
        match self.baseline.filter(|_| !self.beats_baseline(best)) {
            Some(baseline) => {
                format!(
                    "{monitor} has not passed the baseline {baseline} for {epochs}; its best is {best:.4}"
                )
            }
            None => format!("{monitor} has not improved on {best:.4} for {epochs}"),
        }
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
        let values = json!({
            "best": CallbackState::float(self.best),
            "best_epoch": self.best_epoch,
            "wait": self.wait,
            "seen": self.seen,
        });
        Ok(CallbackState { values, tensors })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        (self.best, self.wait) = (state.float_of("best")?, state.count("wait")?);
        // Earlier versions did not write these.
        self.seen = state.values["seen"].as_u64();
        self.best_epoch = state.values["best_epoch"].as_u64().and_then(|n| n.try_into().ok());
        let group = |prefix: &str| -> Params<Buffer> {
            let own = state.tensors.iter().filter_map(|(n, x)| Some((n.strip_prefix(prefix)?, x)));
            own.map(|(n, x)| (n.to_string(), x.clone().into())).collect()
        };
        self.best_weights = (!state.tensors.is_empty()).then(|| (group(TRAINABLE), group(FROZEN)));
        Ok(())
    }

    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "EarlyStopping")?;
        if self.strict { cx.must_measure(&self.monitor, "EarlyStopping") } else { Ok(()) }
    }

    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let looks = self.check_on_train_epoch_end.map_or(self.monitor.starts_with("val_"), |at_end| !at_end);
        if looks { self.look(cx) } else { Ok(()) }
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let looks = self.check_on_train_epoch_end != Some(false) || is_validated(cx.logs);
        if looks { self.look(cx) } else { Ok(()) }
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let Some((trainable, frozen)) = self.best_weights.take() else { return Ok(()) };
        let state = &mut cx.model.state;
        // Layers may have been frozen or unfrozen since.
        for (name, value) in trainable.iter().chain(frozen.iter()) {
            let trains = state.trainable.get(name).is_some();
            if trains { &mut state.trainable } else { &mut state.frozen }.insert(name, value.clone());
        }
        let epoch = self.best_epoch.map_or("the best epoch".into(), |epoch| format!("epoch {}", epoch + 1));
        let which = format!("{epoch}, the best by {} (EarlyStopping)", self.monitor);
        cx.model.notes.insert(WEIGHTS_NOTE.into(), which);
        Ok(())
    }
}

/// Copies the weights, so that the next step can update the model's in place.
fn owned_weights(model: &Model) -> Result<WeightSnapshot> {
    let copy = |p: &Params<Buffer>| -> Result<Params<Buffer>> {
        p.iter()
            .map(|(n, b)| Ok((n.to_string(), model.whole(b)?.into())))
            .collect::<Result<Vec<_>>>()
            .map(|v| v.into_iter().collect())
    };
    Ok((copy(&model.state.trainable)?, copy(&model.state.frozen)?))
}
