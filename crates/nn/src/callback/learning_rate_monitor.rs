//! `LearningRateMonitor` callback: logs the learning rate.

use super::callback_trait::{Callback, FitCx};
use super::config_callback::ConfigCallback;
use crate::json::{Deserialize, Serialize};
use crate::model::history::Logs;
use crate::optimizer::Optimizer;
use crate::setters::field_setters;
use systole_ir::Result;

/// When [`LearningRateMonitor`] logs: per step or epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoggingInterval {
    /// After each step, and after each epoch.
    Step,
    /// After each epoch.
    Epoch,
}

/// Callback that adds the learning rate to the logs of each epoch: `learning_rate` in the history, in `CSVLogger`'s
/// lines and TensorBoard's curves, independent of the order of callbacks. Optionally adds momentum and weight decay.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05).momentum(0.9), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::LearningRateMonitor, Fit};
/// let monitor = LearningRateMonitor::new().log_momentum(true);
/// let history = model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(monitor)], ..Default::default() })?;
/// assert_eq!((history.get("learning_rate"), history.get("momentum")), (vec![0.05; 2], vec![0.9; 2]));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LearningRateMonitor {
    /// When to log: after each step too, or only after epochs. Default: `epoch`.
    pub logging_interval: Option<LoggingInterval>,
    /// Whether to log the optimizer's momentum, too: `momentum`, or β₁.
    pub log_momentum: bool,
    /// Whether to log the optimizer's weight decay, too.
    pub log_weight_decay: bool,
    /// Prefix of the names. Default: none.
    pub log_key_prefix: Option<String>,
}

impl LearningRateMonitor {
    /// Creates a callback that logs the learning rate after each epoch.
    pub fn new() -> LearningRateMonitor {
        LearningRateMonitor::default()
    }
}

field_setters! {
    impl LearningRateMonitor {
        /// Sets when to log: after each step too, or only after epochs. Default: `LoggingInterval::Epoch`.
        logging_interval(interval: LoggingInterval) => Some(interval);
        /// Logs the optimizer's momentum, too: `momentum`, or β₁. Default: `false`.
        log_momentum(yes: bool);
        /// Logs the optimizer's weight decay, too. Default: `false`.
        log_weight_decay(yes: bool);
        /// Sets the prefix of the names. Default: none.
        log_key_prefix(prefix: &str) => Some(prefix.into());
    }
}

impl ConfigCallback for LearningRateMonitor {}

impl Callback for LearningRateMonitor {
    fn wants_batch(&self, _step: u64) -> bool {
        self.logging_interval == Some(LoggingInterval::Step)
    }

    fn values(&mut self, cx: &mut FitCx<'_>) -> Result<Logs> {
        let mut logs = Logs::new();
        if cx.is_within_epoch && self.logging_interval != Some(LoggingInterval::Step) {
            return Ok(logs);
        }
        let prefix = self.log_key_prefix.as_deref().unwrap_or_default();
        logs.insert(format!("{prefix}learning_rate"), cx.model.learning_rate());
        let optimizer = cx.model.compile_config().map(|c| &c.optimizer);
        let momentum = optimizer.filter(|_| self.log_momentum);
        // As in Lightning: the momentum, or the first β.
        let momentum = momentum.and_then(|o| o.momentum_at(cx.model.steps()));
        let decay = optimizer.filter(|_| self.log_weight_decay);
        let decay = decay.map(|o| o.weight_decay.or_else(|| argument(o, "weight_decay")).unwrap_or(0.0));
        for (name, value) in [("momentum", momentum), ("weight_decay", decay)] {
            if let Some(value) = value {
                logs.insert(format!("{prefix}{name}"), value);
            }
        }
        Ok(logs)
    }
}

/// Returns a numeric argument of the optimizer's rule.
fn argument(optimizer: &Optimizer, name: &str) -> Option<f64> {
    let all = serde_json::to_value(&optimizer.kind).ok()?;
    all.get("config").unwrap_or(&all).get(name)?.as_f64()
}
