//! Adadelta optimizer: scales gradients by the ratio of the RMS of past updates to the RMS of past gradients.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::Tensor;

/// Adadelta optimizer: a ← ρ·a + (1 − ρ)·g², Δ = −√(d + ε)/√(a + ε)·g, d ← ρ·d + (1 − ρ)·Δ², p ← p + lr·Δ (Zeiler,
/// 2012).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adadelta {
    /// Decay of both mean squares.
    pub rho: f64,
    /// Numerical stability constant ε.
    pub epsilon: f64,
}

/// Adadelta with Keras's ρ 0.95 and ε 1e-7. Keras's default rate is 0.001; the paper's is 1.
///
/// ```
/// use systole_nn::optimizer::adadelta;
/// assert!(adadelta(1.0).rho(0.9).check().is_ok());
/// ```
pub fn adadelta(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Adadelta { rho: 0.95, epsilon: 1e-7 }, learning_rate)
}

impl OptimizerRule for Adadelta {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("rho", self.rho)]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["accumulated_grad", "accumulated_delta_var"]
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let mean = |old: &Tensor, x: &Tensor| old * self.rho + (x * x) * (1.0 - self.rho);
        let rms = |x: &Tensor| (x + self.epsilon).sqrt();
        let gradients = mean(&slots.get("accumulated_grad"), g);
        let changes = slots.get("accumulated_delta_var");
        let change = -((rms(&changes) * g) / rms(&gradients));
        slots.set("accumulated_grad", &gradients);
        slots.set("accumulated_delta_var", &mean(&changes, &change));
        p + rate * change
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "adadelta", "class": "Adadelta", "kwargs": {"learning_rate": 0.01}},
    {"name": "adadelta_rho", "class": "Adadelta", "kwargs": {"learning_rate": 1.0, "rho": 0.8, "epsilon": 0.05}},
    {"name": "adadelta_schedule", "class": "Adadelta", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
