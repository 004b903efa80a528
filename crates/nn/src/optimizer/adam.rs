//! Adam optimizer: running mean of gradients divided by the root of their running second moment.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::{setters, with_defaults};
use systole_ir::{DType, Tensor};

with_defaults! {
    /// Adam (Kingma and Ba, 2015), with ε outside the square root ("epsilon hat").
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Adam {
        /// Decay of the first moment.
        pub beta_1: f64 = 0.9,
        /// Decay of the second moment.
        pub beta_2: f64 = 0.999,
        /// Numerical stability constant ε.
        pub epsilon: f64 = 1e-7,
        /// Whether to divide by the maximum of past second moments (AMSGrad).
        pub amsgrad: bool = false,
    }
}

/// Adam with Keras's β₁ 0.9, β₂ 0.999, ε 1e-7. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::adam;
/// assert!(adam(1e-3).betas(0.9, 0.95).clipnorm(1.0).check().is_ok());
/// ```
pub fn adam(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(Adam::default(), learning_rate)
}

setters!(Optimizer:
    /// AMSGrad for Adam and AdamW.
    amsgrad: bool as bool;
);

impl OptimizerRule for Adam {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![("beta_1", self.beta_1), ("beta_2", self.beta_2)]
    }

    fn slots(&self) -> Vec<&'static str> {
        if self.amsgrad { vec!["momentum", "velocity", "velocity_hat"] } else { vec!["momentum", "velocity"] }
    }

    /// Bias-corrected for moments that start at zero.
    fn rate(&self, learning_rate: &Tensor, updates: &Tensor, momentum: Option<&Tensor>) -> Tensor {
        let t = updates.convert(DType::F32) + 1.0;
        // Powers in f32 of betas rounded to f32, as in Keras.
        let power = |beta: f64| t.scalar_like(beta).power(&t);
        // As in fastai, the correction assumes that the momentum was always this step's.
        let power_1 = |own| momentum.map_or_else(|| power(own), |m| m.power(&t));
        learning_rate * (1.0 - power(self.beta_2)).sqrt() / (1.0 - power_1(self.beta_1))
    }

    fn takes_momentum(&self) -> bool {
        true
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let (m, v) = slots.moments(g, self.beta_1, self.beta_2);
        let size = if self.amsgrad {
            let greatest = slots.get("velocity_hat").maximum(&v);
            slots.set("velocity_hat", &greatest);
            greatest
        } else {
            v
        };
        p - (m * rate) / (size.sqrt() + self.epsilon)
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "adam", "class": "Adam", "kwargs": {"learning_rate": 0.01}},
    {"name": "adam_odd_betas", "class": "Adam",
        "kwargs": {"learning_rate": 0.01, "beta_1": 0.71, "beta_2": 0.937, "amsgrad": false}},
    {"name": "adam_epsilon", "class": "Adam", "kwargs": {"learning_rate": 0.01, "epsilon": 0.05}},
    {"name": "adam_amsgrad", "class": "Adam", "kwargs": {"learning_rate": 0.01, "amsgrad": true}},
    {"name": "adam_weight_decay", "class": "Adam", "kwargs": {"learning_rate": 0.01, "weight_decay": 0.004}},
    {"name": "adam_schedule", "class": "Adam", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}},
    {"name": "adam_clipvalue", "class": "Adam", "kwargs": {"learning_rate": 0.01, "clipvalue": 0.5}},
    {"name": "adam_clipnorm", "class": "Adam", "kwargs": {"learning_rate": 0.01, "clipnorm": 1.0}},
    {"name": "adam_global_clipnorm", "class": "Adam", "kwargs": {"learning_rate": 0.01, "global_clipnorm": 1.5}}
]"#;
