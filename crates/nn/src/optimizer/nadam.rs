//! Nadam optimizer: Adam with Nesterov momentum.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots, SlotInit};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::{Tensor, TensorType};

/// Nadam: Adam whose bias-corrected first moment looks one step ahead, with momentum μₜ = β₁·(1 − 0.5·0.96ᵗ) (Dozat,
/// 2016; Keras).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nadam {
    /// Decay of the first moment.
    pub beta_1: f64,
    /// Decay of the second moment.
    pub beta_2: f64,
    /// Numerical stability constant ε.
    pub epsilon: f64,
}

/// Nadam with Keras's β₁ 0.9, β₂ 0.999, ε 1e-7. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::nadam;
/// assert!(nadam(1e-3).betas(0.9, 0.99).check().is_ok());
/// ```
pub fn nadam(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Nadam { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-7 }, learning_rate)
}

impl OptimizerRule for Nadam {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("beta_1", self.beta_1), ("beta_2", self.beta_2)]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["momentum", "velocity", "u_product"]
    }

    fn slot_type(&self, slot: &str, _: &str, ty: &TensorType) -> Option<TensorType> {
        Some(if slot == "u_product" { TensorType::scalar(ty.dtype) } else { ty.clone() })
    }

    fn start(&self, slot: &str) -> SlotInit {
        SlotInit::Value(if slot == "u_product" { 1.0 } else { 0.0 })
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let t = slots.number();
        let decay = t.scalar_like(0.96);
        let momentum_at = |t: &Tensor| (1.0 - decay.power(t) * 0.5) * self.beta_1;
        let (now, next) = (momentum_at(&t), momentum_at(&(&t + 1.0)));
        let product = slots.get("u_product") * &now;
        let (m, v) = (slots.get("momentum"), slots.get("velocity"));
        // Betas are rounded to f32 before the subtraction from 1, as in Keras.
        let rest = |beta: f64| 1.0 - t.scalar_like(beta);
        let m = &m + (g - &m) * rest(self.beta_1);
        let v = &v + (g * g - &v) * rest(self.beta_2);
        slots.set("u_product", &product);
        slots.set("momentum", &m);
        slots.set("velocity", &v);
        let ahead = (&next * m) / (1.0 - &product * &next) + ((1.0 - now) * g) / (1.0 - product);
        let size = v / (1.0 - slots.power(self.beta_2));
        p - (ahead * rate) / (size.sqrt() + self.epsilon)
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "nadam", "class": "Nadam", "kwargs": {"learning_rate": 0.01}},
    {"name": "nadam_betas", "class": "Nadam",
        "kwargs": {"learning_rate": 0.01, "beta_1": 0.71, "beta_2": 0.937, "epsilon": 0.05}},
    {"name": "nadam_weight_decay", "class": "Nadam", "kwargs": {"learning_rate": 0.01, "weight_decay": 0.1}},
    {"name": "nadam_schedule", "class": "Nadam", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
