//! RMSprop optimizer: divides the gradient by its running root mean square.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::setters;
use systole_ir::Tensor;

/// RMSprop: divides the gradient by its running root mean square.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsProp {
    /// Decay of the running mean.
    pub rho: f64,
    /// Momentum of the updates.
    pub momentum: f64,
    /// ε, inside the square root.
    pub epsilon: f64,
    /// Whether to divide by the variance instead of the second moment.
    pub centered: bool,
}

/// RMSprop with Keras's ρ 0.9, ε 1e-7. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::rmsprop;
/// assert!(rmsprop(1e-3).momentum(0.9).check().is_ok());
/// ```
pub fn rmsprop(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(RmsProp { rho: 0.9, momentum: 0.0, epsilon: 1e-7, centered: false }, learning_rate)
}

setters!(Optimizer:
    /// ρ of RMSprop.
    rho: f64 as f64;
    /// Whether RMSprop is centered.
    centered: bool as bool;
);

impl OptimizerRule for RmsProp {
    fn class_name(&self) -> &'static str {
        "RMSprop"
    }

    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("rho", self.rho), ("momentum", self.momentum)]
    }

    fn slots(&self) -> Vec<&'static str> {
        let mut names = vec!["velocity"];
        if self.momentum > 0.0 {
            names.push("momentum");
        }
        if self.centered {
            names.push("average_gradient");
        }
        names
    }

    fn takes_momentum(&self) -> bool {
        self.momentum > 0.0
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let v = slots.get("velocity") * self.rho + (g * g) * (1.0 - self.rho);
        slots.set("velocity", &v);
        let size = if self.centered {
            let mean = slots.get("average_gradient") * self.rho + g * (1.0 - self.rho);
            slots.set("average_gradient", &mean);
            v - &mean * &mean
        } else {
            v
        };
        let change = (rate * g) / (size + self.epsilon).sqrt();
        if self.momentum > 0.0 {
            let m = slots.momentum(self.momentum).of(&slots.get("momentum")) + change;
            slots.set("momentum", &m);
            return p - m;
        }
        p - change
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "rmsprop", "class": "RMSprop", "kwargs": {"learning_rate": 0.01}},
    {"name": "rmsprop_momentum", "class": "RMSprop", "kwargs": {"learning_rate": 0.01, "momentum": 0.9}},
    {"name": "rmsprop_centered", "class": "RMSprop", "kwargs": {"learning_rate": 0.01, "centered": true}},
    {"name": "rmsprop_epsilon", "class": "RMSprop", "kwargs": {"learning_rate": 0.01, "rho": 0.8, "epsilon": 0.05}},
    {"name": "rmsprop_all", "class": "RMSprop",
        "kwargs": {"learning_rate": 0.01, "rho": 0.8, "momentum": 0.5, "centered": true}}
]"#;
