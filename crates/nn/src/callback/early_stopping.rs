//! The callback that ends training once a value has stopped improving.

use super::common::{Callback, CallbackState, FitCx};
use super::configured::{Configured, Place};
use super::watch::{Mode, is_better, is_upward, watched};
use crate::model::{Model, counted};
use serde::{Deserialize, Serialize};
use serde_json::json;
use systole_ir::Result;
use systole_runtime::{Buffer, Params};

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
    pub monitor: String,
    /// Changes smaller than this are no improvement.
    pub min_delta: f64,
    /// Epochs without improvement that are waited for.
    pub patience: usize,
    /// Which direction is better.
    pub mode: Mode,
    /// A value that must be beaten for waiting to start over. Default: none.
    pub baseline: Option<f64>,
    /// Whether the weights of the best epoch are put back at the end.
    pub restore_best_weights: bool,
    /// Epochs before this one do not count.
    pub start_from_epoch: usize,
    #[serde(skip)]
    best: Option<f64>,
    #[serde(skip)]
    wait: usize,
    #[serde(skip)]
    best_weights: Option<Weights>,
}

/// Those that are trained, and the others.
type Weights = (Params<Buffer>, Params<Buffer>);

impl Default for EarlyStopping {
    fn default() -> EarlyStopping {
        EarlyStopping {
            monitor: "val_loss".into(),
            min_delta: 0.0,
            patience: 0,
            mode: Mode::Auto,
            baseline: None,
            restore_best_weights: false,
            start_from_epoch: 0,
            best: None,
            wait: 0,
            best_weights: None,
        }
    }
}

impl EarlyStopping {
    /// Watches `monitor` (Keras's default: `val_loss`) and waits `patience` epochs.
    pub fn new(monitor: &str, patience: usize) -> EarlyStopping {
        EarlyStopping { monitor: monitor.into(), patience, ..EarlyStopping::default() }
    }

    /// Sets the direction.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Changes smaller than this are no improvement.
    pub fn min_delta(mut self, min_delta: f64) -> Self {
        self.min_delta = min_delta;
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

impl Configured for EarlyStopping {
    fn monitor(&self) -> Option<&str> {
        Some(&self.monitor)
    }

    fn take_place(&mut self, place: &Place<'_>) {
        self.monitor = (place.logged)(&self.monitor);
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
        let values = json!({"best": CallbackState::float(self.best), "wait": self.wait});
        Ok(CallbackState { values, tensors })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        (self.best, self.wait) = (state.float_of("best")?, state.count("wait")?);
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
        let Some(value) = watched(&self.monitor, cx.logs)? else { return Ok(()) };
        let upward = is_upward(self.mode, &self.monitor);
        if is_better(value, self.best, upward, self.min_delta) {
            self.best = Some(value);
            if self.restore_best_weights {
                self.best_weights = Some(owned_weights(cx.model)?);
            }
            let beats = self.baseline.is_none_or(|b| if upward { value > b } else { value < b });
            self.wait = if beats { 0 } else { self.wait + 1 };
        } else {
            self.wait += 1;
        }
        if self.wait >= self.patience && cx.epoch > 0 {
            *cx.stop_because = Some(format!(
                "{} has not improved on {:.4} for {}",
                self.monitor,
                self.best.unwrap_or(f64::NAN),
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
fn owned_weights(model: &Model) -> Result<Weights> {
    let copy = |p: &Params<Buffer>| -> Result<Params<Buffer>> {
        p.iter()
            .map(|(n, b)| Ok((n.to_string(), model.whole(b)?.into())))
            .collect::<Result<Vec<_>>>()
            .map(|v| v.into_iter().collect())
    };
    Ok((copy(&model.state.trainable)?, copy(&model.state.frozen)?))
}
