//! Adagrad optimizer: divides by the root of the sum of all squared gradients.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots, SlotInit};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::setters;
use systole_ir::Tensor;

/// Adagrad optimizer: a ← a + g², p ← p − lr·g / √(a + ε) (Duchi et al., 2011).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adagrad {
    /// Initial value of the accumulators of squared gradients.
    pub initial_accumulator_value: f64,
    /// Numerical stability constant ε.
    pub epsilon: f64,
}

/// Adagrad with Keras's initial accumulator 0.1 and ε 1e-7. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::adagrad;
/// assert!(adagrad(0.01).initial_accumulator_value(0.2).check().is_ok());
/// ```
pub fn adagrad(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Adagrad { initial_accumulator_value: 0.1, epsilon: 1e-7 }, learning_rate)
}

setters!(Optimizer:
    /// Initial accumulator value of Adagrad and FTRL.
    initial_accumulator_value: f64 as f64;
);

impl OptimizerRule for Adagrad {
    fn slots(&self) -> Vec<&'static str> {
        vec!["accumulator"]
    }

    fn start(&self, _: &str) -> SlotInit {
        SlotInit::Value(self.initial_accumulator_value)
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let sum = slots.get("accumulator") + g * g;
        slots.set("accumulator", &sum);
        p - (rate * g) / (sum + self.epsilon).sqrt()
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "adagrad", "class": "Adagrad", "kwargs": {"learning_rate": 0.01}},
    {"name": "adagrad_start", "class": "Adagrad",
        "kwargs": {"learning_rate": 0.01, "initial_accumulator_value": 0.5, "epsilon": 0.05}},
    {"name": "adagrad_schedule", "class": "Adagrad", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
