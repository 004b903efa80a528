//! SGD optimizer, with optional (Nesterov) momentum.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::setters;
use systole_ir::Tensor;

/// SGD: m ← μ·m − lr·g, p ← p + m; with `nesterov` p ← p + μ·m − lr·g.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    /// Momentum μ; 0: plain gradient descent without state.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

/// Stochastic gradient descent without momentum. Keras's default rate is 0.01.
///
/// ```
/// use systole_nn::{optimizer::sgd, schedule::Schedule};
/// assert!(sgd(Schedule::cosine_decay(0.1, 1000)).momentum(0.9).nesterov(true).check().is_ok());
/// ```
pub fn sgd(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Sgd { momentum: 0.0, nesterov: false }, learning_rate)
}

setters!(Optimizer:
    /// Nesterov momentum of SGD.
    nesterov: bool as bool;
);

impl OptimizerRule for Sgd {
    fn class_name(&self) -> &'static str {
        "SGD"
    }

    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("momentum", self.momentum)]
    }

    fn slots(&self) -> Vec<&'static str> {
        if self.momentum > 0.0 { vec!["momentum"] } else { vec![] }
    }

    fn takes_momentum(&self) -> bool {
        self.momentum > 0.0
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let change = g * rate;
        if self.momentum <= 0.0 {
            return p - change;
        }
        let momentum = slots.momentum(self.momentum);
        let m = momentum.of(&slots.get("momentum")) - &change;
        slots.set("momentum", &m);
        if self.nesterov { p + (momentum.of(&m) - change) } else { p + m }
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "sgd", "class": "SGD", "kwargs": {"learning_rate": 0.1}},
    {"name": "sgd_momentum", "class": "SGD", "kwargs": {"learning_rate": 0.1, "momentum": 0.9}},
    {"name": "sgd_nesterov", "class": "SGD", "kwargs": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": true}},
    {"name": "sgd_weight_decay", "class": "SGD", "kwargs": {"learning_rate": 0.1, "weight_decay": 0.01}},
    {"name": "sgd_schedule", "class": "SGD", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}},
    {"name": "sgd_clipvalue", "class": "SGD", "kwargs": {"learning_rate": 0.1, "clipvalue": 0.5}},
    {"name": "sgd_clipnorm", "class": "SGD", "kwargs": {"learning_rate": 0.1, "clipnorm": 1.0}},
    {"name": "sgd_global_clipnorm", "class": "SGD", "kwargs": {"learning_rate": 0.1, "global_clipnorm": 1.5}},
    {"name": "sgd_ema", "class": "SGD", "kwargs": {"learning_rate": 0.1, "use_ema": true, "ema_momentum": 0.9}},
    {"name": "sgd_ema_overwrite", "class": "SGD",
        "kwargs": {"learning_rate": 0.1, "momentum": 0.9, "use_ema": true, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}}
]"#;
