//! AdamW optimizer: Adam with decoupled weight decay.

use super::adam::Adam;
use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::Tensor;

/// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdamW(
    /// Arguments, those of Adam.
    pub Adam,
);

/// AdamW: Adam with decoupled weight decay, 0.004 unless set. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::adamw;
/// assert!(adamw(3e-4).weight_decay(0.1).check().is_ok());
/// ```
pub fn adamw(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(AdamW::default(), learning_rate).weight_decay(0.004)
}

impl OptimizerRule for AdamW {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        self.0.fractions()
    }

    fn slots(&self) -> Vec<&'static str> {
        self.0.slots()
    }

    fn takes_momentum(&self) -> bool {
        true
    }

    fn rate(&self, learning_rate: &Tensor, updates: &Tensor, momentum: Option<&Tensor>) -> Tensor {
        self.0.rate(learning_rate, updates, momentum)
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        self.0.step(p, g, rate, slots)
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "adamw", "class": "AdamW", "kwargs": {"learning_rate": 0.01, "weight_decay": 0.004}},
    {"name": "adamw_default_decay", "class": "AdamW", "kwargs": {"learning_rate": 0.05}}
]"#;
