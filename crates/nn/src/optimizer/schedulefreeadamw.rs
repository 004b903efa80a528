//! Schedule-Free AdamW: averages its weights instead of decaying the learning rate.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots, SlotInit};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::setters;
use systole_ir::Tensor;

/// Schedule-Free AdamW. z takes RMSprop steps with Adam's bias correction, x is the mean of all z, and the parameter is
/// in between: y = (1 − β₁)·z + β₁·x (Defazio et al., 2024; Keras).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleFreeAdamW {
    /// Interpolation of the parameter towards the mean.
    pub beta_1: f64,
    /// Decay of the second moment.
    pub beta_2: f64,
    /// Numerical stability constant ε.
    pub epsilon: f64,
    /// Steps of linear learning-rate warm-up from 0.
    pub warmup_steps: u64,
}

/// ScheduleFreeAdamW with Keras's β₁ 0.9, β₂ 0.999, ε 1e-8 and no warm-up. Keras's default rate is 0.0025.
///
/// ```
/// use systole_nn::optimizer::schedulefreeadamw;
/// assert!(schedulefreeadamw(2.5e-3).warmup_steps(100).weight_decay(0.01).check().is_ok());
/// ```
pub fn schedulefreeadamw(learning_rate: impl Into<Schedule>) -> Optimizer {
    let rule = ScheduleFreeAdamW { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8, warmup_steps: 0 };
    Optimizer::of(rule, learning_rate)
}

setters!(Optimizer:
    /// Warm-up steps of ScheduleFreeAdamW, in which the rate rises from 0.
    warmup_steps: u64 as u64;
);

impl OptimizerRule for ScheduleFreeAdamW {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("beta_1", self.beta_1), ("beta_2", self.beta_2)]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["momentum", "velocity"]
    }

    fn start(&self, slot: &str) -> SlotInit {
        if slot == "momentum" { SlotInit::Parameter } else { SlotInit::Value(0.0) }
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let t = slots.number();
        let one = t.scalar_like(1.0);
        let (beta_1, beta_2) = (t.scalar_like(self.beta_1), t.scalar_like(self.beta_2));
        let rate = match self.warmup_steps {
            0 => rate.clone(),
            steps => rate * (&t / steps as f64).minimum(&one),
        };
        let (z, v) = (slots.get("momentum"), slots.get("velocity"));
        let v = &v + (g * g - &v) * (1.0 - &beta_2);
        let size = (&v / (1.0 - slots.power(self.beta_2))).sqrt() + t.scalar_like(self.epsilon);
        let mean = (p - (1.0 - &beta_1) * &z) / &beta_1;
        let z = z - (rate * g) / size;
        let weight = 1.0 / &t;
        let mean = (1.0 - &weight) * mean + weight * &z;
        slots.set("momentum", &z);
        slots.set("velocity", &v);
        (1.0 - &beta_1) * z + beta_1 * mean
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "schedulefreeadamw", "class": "ScheduleFreeAdamW", "kwargs": {"learning_rate": 0.01}},
    {"name": "schedulefreeadamw_warmup", "class": "ScheduleFreeAdamW",
        "kwargs": {"learning_rate": 0.01, "beta_1": 0.8, "beta_2": 0.937, "epsilon": 0.05, "warmup_steps": 4}},
    {"name": "schedulefreeadamw_weight_decay", "class": "ScheduleFreeAdamW",
        "kwargs": {"learning_rate": 0.01, "weight_decay": 0.1}}
]"#;
