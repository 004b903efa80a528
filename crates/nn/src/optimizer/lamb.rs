//! LAMB optimizer: Adam with layer-wise adaptive step sizes (trust ratio), for large batches.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::Tensor;

/// LAMB optimizer: u = m̂ / (√v̂ + ε) from Adam's bias-corrected moments, p ← p − lr·(‖p‖/‖u‖)·u. The trust ratio is 1
/// if a norm is 0. Weight decay is applied before and is not part of u (You et al., 2020; Keras).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lamb {
    /// Decay of the first moment.
    pub beta_1: f64,
    /// Decay of the second moment.
    pub beta_2: f64,
    /// Numerical stability constant ε.
    pub epsilon: f64,
}

/// LAMB with Keras's β₁ 0.9, β₂ 0.999, ε 1e-7: for large batches. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::lamb;
/// assert!(lamb(1e-3).betas(0.9, 0.99).weight_decay(0.01).check().is_ok());
/// ```
pub fn lamb(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Lamb { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-7 }, learning_rate)
}

impl OptimizerRule for Lamb {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("beta_1", self.beta_1), ("beta_2", self.beta_2)]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["momentum", "velocity"]
    }

    fn takes_momentum(&self) -> bool {
        true
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let (m, v) = slots.moments(g, self.beta_1, self.beta_2);
        let size = (v / (1.0 - slots.power(self.beta_2))).sqrt() + self.epsilon;
        let u = m / (1.0 - slots.power(slots.momentum(self.beta_1))) / size;
        let norm = |x: &Tensor| (x * x).sum_all().sqrt();
        let (of_p, of_u) = (norm(p), norm(&u));
        let zero = of_p.zeros_like();
        let both = of_p.greater(&zero).and(&of_u.greater(&zero));
        let ratio = both.select(&(of_p / of_u), &zero.scalar_like(1.0));
        p - ratio * rate * u
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "lamb", "class": "Lamb", "kwargs": {"learning_rate": 0.01}},
    {"name": "lamb_betas", "class": "Lamb",
        "kwargs": {"learning_rate": 0.01, "beta_1": 0.71, "beta_2": 0.937, "epsilon": 0.05}},
    {"name": "lamb_weight_decay", "class": "Lamb", "kwargs": {"learning_rate": 0.01, "weight_decay": 0.1}},
    {"name": "lamb_schedule", "class": "Lamb", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
