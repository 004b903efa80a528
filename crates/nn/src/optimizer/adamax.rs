//! Adamax optimizer: Adam with the decayed maximum of |gradient| in place of the second moment.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::Tensor;

/// Adamax: u ← max(β₂·u, |g|), p ← p − lr·m / ((1 − β₁ᵗ)·(u + ε)) (Kingma and Ba, 2015, section 7.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adamax {
    /// Decay of the first moment.
    pub beta_1: f64,
    /// Decay of the infinity norm (maximum gradient).
    pub beta_2: f64,
    /// Numerical stability constant ε.
    pub epsilon: f64,
}

/// Adamax with Keras's β₁ 0.9, β₂ 0.999, ε 1e-7. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::adamax;
/// assert!(adamax(2e-3).betas(0.9, 0.99).check().is_ok());
/// ```
pub fn adamax(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Adamax { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-7 }, learning_rate)
}

impl OptimizerRule for Adamax {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("beta_1", self.beta_1), ("beta_2", self.beta_2)]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["momentum", "norm"]
    }

    fn takes_momentum(&self) -> bool {
        true
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let (m, beta_1) = (slots.get("momentum"), slots.momentum(self.beta_1));
        let m = &m + beta_1.rest_of(&(g - &m));
        let greatest = (slots.get("norm") * self.beta_2).maximum(&g.abs());
        slots.set("momentum", &m);
        slots.set("norm", &greatest);
        p - (rate * m) / ((1.0 - slots.power(beta_1)) * (greatest + self.epsilon))
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "adamax", "class": "Adamax", "kwargs": {"learning_rate": 0.01}},
    {"name": "adamax_betas", "class": "Adamax",
        "kwargs": {"learning_rate": 0.01, "beta_1": 0.71, "beta_2": 0.937, "epsilon": 0.05}},
    {"name": "adamax_clipnorm", "class": "Adamax", "kwargs": {"learning_rate": 0.01, "clipnorm": 1.0}},
    {"name": "adamax_schedule", "class": "Adamax", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
