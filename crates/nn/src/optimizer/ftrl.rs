//! FTRL (follow the regularized leader) optimizer, for linear models with many sparse inputs.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots, SlotInit};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::setters;
use systole_ir::Tensor;

/// FTRL-proximal: minimizes the sum of all linearized losses plus penalties; l1 sets parameters to 0 (McMahan et al.,
/// 2013; Keras).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ftrl {
    /// Exponent of the accumulators of squared gradients, at most 0.
    pub learning_rate_power: f64,
    /// Initial value of the accumulators.
    pub initial_accumulator_value: f64,
    /// L1 penalty.
    pub l1_regularization_strength: f64,
    /// L2 penalty.
    pub l2_regularization_strength: f64,
    /// L2 penalty that is added to the gradient.
    pub l2_shrinkage_regularization_strength: f64,
    /// β of the paper.
    pub beta: f64,
}

/// FTRL with Keras's power −0.5, initial accumulator 0.1 and no penalties. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::ftrl;
/// assert!(ftrl(0.05).l1_regularization_strength(0.01).check().is_ok());
/// ```
pub fn ftrl(learning_rate: impl Into<Schedule>) -> Optimizer {
    let rule = Ftrl {
        learning_rate_power: -0.5,
        initial_accumulator_value: 0.1,
        l1_regularization_strength: 0.0,
        l2_regularization_strength: 0.0,
        l2_shrinkage_regularization_strength: 0.0,
        beta: 0.0,
    };
    Optimizer::of(rule, learning_rate)
}

setters!(Optimizer:
    /// Exponent of FTRL's accumulators.
    learning_rate_power: f64 as f64;
    /// L1 penalty of FTRL.
    l1_regularization_strength: f64 as f64;
    /// L2 penalty of FTRL.
    l2_regularization_strength: f64 as f64;
    /// L2 penalty of FTRL that is added to the gradient.
    l2_shrinkage_regularization_strength: f64 as f64;
    /// β of FTRL.
    beta: f64 as f64;
);

impl OptimizerRule for Ftrl {
    fn slots(&self) -> Vec<&'static str> {
        vec!["accumulator", "linear"]
    }

    fn start(&self, slot: &str) -> SlotInit {
        SlotInit::Value(if slot == "accumulator" { self.initial_accumulator_value } else { 0.0 })
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let (sum, linear) = (slots.get("accumulator"), slots.get("linear"));
        let power = |x: &Tensor| x.power(&x.scalar_like(-self.learning_rate_power));
        let l2 = rate.scalar_like(self.beta) / (rate * 2.0) + self.l2_regularization_strength;
        let shrunk = g + p * (2.0 * self.l2_shrinkage_regularization_strength);
        let new_sum = &sum + g * g;
        let linear = linear + (shrunk - ((power(&new_sum) - power(&sum)) / rate) * p);
        let quadratic = power(&new_sum) / rate + l2 * 2.0;
        let l1 = linear.scalar_like(self.l1_regularization_strength);
        let clipped = linear.maximum(&-&l1).minimum(&l1);
        slots.set("accumulator", &new_sum);
        slots.set("linear", &linear);
        (clipped - linear) / quadratic
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "ftrl", "class": "Ftrl", "kwargs": {"learning_rate": 0.1}},
    {"name": "ftrl_penalties", "class": "Ftrl", "kwargs": {"learning_rate": 0.1, "l1_regularization_strength": 0.05,
        "l2_regularization_strength": 0.1, "l2_shrinkage_regularization_strength": 0.02, "beta": 0.3}},
    {"name": "ftrl_power", "class": "Ftrl",
        "kwargs": {"learning_rate": 0.1, "learning_rate_power": -0.7, "initial_accumulator_value": 0.4}}
]"#;
