//! The callback that ends training once a value has stopped improving.

use crate::setters::{field_setters, with_defaults};
use super::callback_trait::{Callback, CallbackState, FitCx};
use super::config_callback::{ArgumentCheck, ConfigCallback, CallbackRunInfo, checked};
use super::monitored_value::{Mode, is_better, is_upward, is_validated, watched};
use crate::model::{Model, counted};
use serde::{Deserialize, Serialize};
use serde_json::json;
use systole_ir::{Error, ErrorKind, Result};
use systole_runtime::{Buffer, Params};

with_defaults! {
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
    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct EarlyStopping {
        /// What is watched.
        pub monitor: String = "val_loss".into(),
        /// Changes smaller than this are no improvement.
        pub min_delta: f64 = 0.0,
        /// Epochs without improvement that are waited for.
        pub patience: usize = 0,
        /// Which direction is better.
        pub mode: Mode = Mode::Auto,
        /// A value that must be beaten for waiting to start over. Default: none.
        pub baseline: Option<f64> = None,
        /// Whether the weights of the best epoch are put back at the end.
        pub restore_best_weights: bool = false,
        /// Epochs before this one do not count.
        pub start_from_epoch: usize = 0,
        /// Whether training ends where the value is not finite.
        pub check_finite: bool = true,
        /// Training ends once the value is better than this: it is good enough. Default: none.
        pub stopping_threshold: Option<f64> = None,
        /// Training ends once the value is worse than this: it will not come back. Default: none.
        pub divergence_threshold: Option<f64> = None,
        /// Whether a value that is not measured is an error.
        pub strict: bool = true,
        /// Whether it looks at the ends of epochs, and there alone; `false`: after validations alone. Default: after each validation that
        /// measures its value, and at the ends of epochs.
        pub check_on_train_epoch_end: Option<bool> = None,
        #[serde(skip)]
        best: Option<f64> = None,
        /// The step whose value was looked at last: an epoch may end with a validation that was seen already.
        #[serde(skip)]
        seen: Option<u64> = None,
        #[serde(skip)]
        wait: usize = 0,
        #[serde(skip)]
        best_weights: Option<WeightSnapshot> = None,
    }
}

/// Those that are trained, and the others.
type WeightSnapshot = (Params<Buffer>, Params<Buffer>);

impl EarlyStopping {
    /// Watches `monitor` (Keras's default: `val_loss`) and waits `patience` epochs.
    pub fn new(monitor: &str, patience: usize) -> EarlyStopping {
        EarlyStopping { monitor: monitor.into(), patience, ..EarlyStopping::default() }
    }
}

field_setters! {
    impl EarlyStopping {
        /// Sets the direction.
        mode(mode: Mode);
        /// Changes smaller than this are no improvement.
        min_delta(min_delta: f64);
        /// Puts the weights of the best epoch back at the end.
        restore_best_weights(yes: bool);
        /// Epochs before this one do not count.
        start_from_epoch(epoch: usize);
        /// Whether training ends where the value is not finite.
        check_finite(yes: bool);
        /// Ends training once the value is better than this.
        stopping_threshold(value: f64) => Some(value);
        /// Ends training once the value is worse than this.
        divergence_threshold(value: f64) => Some(value);
        /// Whether a value that is not measured is an error; otherwise nothing is done without it.
        strict(yes: bool);
        /// Looks at the ends of epochs alone, or after validations alone. Default: at both, where its value is measured.
        check_on_train_epoch_end(yes: bool) => Some(yes);
        /// A value that must be beaten for waiting to start over.
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
                let e = Error::new(ErrorKind::Config, format!("{name} is no number"));
                Err((name, e.hint("leave it out, or choose a number")))
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
    /// Judges the value, in Lightning's order of conditions.
    fn look(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.epoch < self.start_from_epoch || self.seen == Some(cx.model.steps()) {
            return Ok(());
        }
        let found = watched(&self.monitor, cx.logs);
        let Some(value) = (if self.strict { found? } else { found.unwrap_or(None) }) else { return Ok(()) };
        self.seen = Some(cx.model.steps());
        let mut why = self.passed(value);
        if why.is_none() {
            self.judge(value, cx.model)?;
            // As in Keras, one value alone ends nothing.
            why = (self.wait >= self.patience && (cx.epoch > 0 || cx.is_within_epoch)).then(|| self.waited());
        }
        if let Some(why) = why {
            *cx.stop_because = Some(why);
        }
        Ok(())
    }

    /// Why a value ends training by itself.
    fn passed(&self, value: f64) -> Option<String> {
        let (monitor, upward) = (&self.monitor, is_upward(self.mode, &self.monitor));
        let beyond = |limit: f64, upward: bool| if upward { value > limit } else { value < limit };
        if self.check_finite && !value.is_finite() {
            let best = self.best.map_or(String::new(), |best| format!(", after {best:.4} at the best"));
            return Some(format!("{monitor} is {value}{best} (check_finite)"));
        }
        if let Some(limit) = self.stopping_threshold.filter(|limit| beyond(*limit, upward)) {
            return Some(format!("{monitor} is {value:.4}, better than {limit} (stopping_threshold)"));
        }
        let limit = self.divergence_threshold.filter(|limit| beyond(*limit, !upward))?;
        Some(format!("{monitor} is {value:.4}, worse than {limit} (divergence_threshold)"))
    }

    /// Whether it is the best, and how long there has been none.
    fn judge(&mut self, value: f64, model: &Model) -> Result<()> {
        let upward = is_upward(self.mode, &self.monitor);
        if !is_better(value, self.best, upward, self.min_delta) {
            self.wait += 1;
            return Ok(());
        }
        self.best = Some(value);
        if self.restore_best_weights {
            self.best_weights = Some(owned_weights(model)?);
        }
        let beats = self.baseline.is_none_or(|b| if upward { value > b } else { value < b });
        self.wait = if beats { 0 } else { self.wait + 1 };
        Ok(())
    }

    fn waited(&self) -> String {
        format!(
            "{} has not improved on {:.4} for {}",
            self.monitor,
            self.best.unwrap_or(f64::NAN),
            counted(self.wait as u64, "epoch")
        )
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
        let values = json!({"best": CallbackState::float(self.best), "wait": self.wait, "seen": self.seen});
        Ok(CallbackState { values, tensors })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        (self.best, self.wait) = (state.float_of("best")?, state.count("wait")?);
        // Earlier versions did not write it.
        self.seen = state.values["seen"].as_u64();
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
        // Layers may have been frozen or set free since.
        for (name, value) in trainable.iter().chain(frozen.iter()) {
            let trains = state.trainable.get(name).is_some();
            if trains { &mut state.trainable } else { &mut state.frozen }.insert(name, value.clone());
        }
        Ok(())
    }
}

/// Weights that share no storage with the model's: the next step would otherwise have to copy its state.
fn owned_weights(model: &Model) -> Result<WeightSnapshot> {
    let copy = |p: &Params<Buffer>| -> Result<Params<Buffer>> {
        p.iter()
            .map(|(n, b)| Ok((n.to_string(), model.whole(b)?.into())))
            .collect::<Result<Vec<_>>>()
            .map(|v| v.into_iter().collect())
    };
    Ok((copy(&model.state.trainable)?, copy(&model.state.frozen)?))
}
