//! Lion optimizer: fixed-size steps in the direction of the sign of the momentum.

use super::optimizer_config::Optimizer;
use super::rule::{Coefficient, OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::Tensor;

/// Lion optimizer: p ← p − lr·sign(β₁·m + (1 − β₁)·g), then m ← β₂·m + (1 − β₂)·g (Chen et al., 2023).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lion {
    /// Weight of the momentum in the update's direction.
    pub beta_1: f64,
    /// Decay of the momentum.
    pub beta_2: f64,
}

/// Lion with Keras's β₁ 0.9, β₂ 0.99. Keras's default rate is 0.001; its authors use a third to a tenth of Adam's.
///
/// ```
/// use systole_nn::optimizer::lion;
/// assert!(lion(1e-4).betas(0.95, 0.98).weight_decay(0.01).check().is_ok());
/// ```
pub fn lion(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Lion { beta_1: 0.9, beta_2: 0.99 }, learning_rate)
}

impl OptimizerRule for Lion {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("beta_1", self.beta_1), ("beta_2", self.beta_2)]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["momentum"]
    }

    fn takes_momentum(&self) -> bool {
        true
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let m = slots.get("momentum");
        // Betas are rounded to f32 before the subtraction from 1, as in Keras.
        let mean = |beta: f64| &m * beta + g * (1.0 - f64::from(beta as f32));
        let direction = match slots.momentum(self.beta_1) {
            Coefficient::Fixed(beta) => mean(beta),
            beta => beta.of(&m) + beta.rest_of(g),
        };
        slots.set("momentum", &mean(self.beta_2));
        p - direction.sign() * rate
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "lion", "class": "Lion", "kwargs": {"learning_rate": 0.01}},
    {"name": "lion_betas", "class": "Lion", "kwargs": {"learning_rate": 0.01, "beta_1": 0.71, "beta_2": 0.937}},
    {"name": "lion_weight_decay", "class": "Lion", "kwargs": {"learning_rate": 0.01, "weight_decay": 0.1}},
    {"name": "lion_clipnorm", "class": "Lion", "kwargs": {"learning_rate": 0.01, "clipnorm": 1.0}},
    {"name": "lion_schedule", "class": "Lion", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
