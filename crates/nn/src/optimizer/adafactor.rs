//! Adafactor optimizer: Adam with a second moment factored into rows and columns, and no first moment.

use super::optimizer_config::Optimizer;
use super::rule::{OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::setters;
use systole_ir::{Tensor, TensorType};

/// Adafactor optimizer. For matrices, mean squares r of rows and c of columns approximate the second moment: v = (r /
/// mean r)·c. u = g / √v is clipped to a root mean square of `clip_threshold`, p ← p − max(ε₂, rms p)·min(lr, 1/√t)·u
/// (Shazeer and Stern, 2018; Keras).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adafactor {
    /// Exponent in the second-moment decay: β₂ = 1 − t^decay.
    pub beta_2_decay: f64,
    /// Added to squared gradients.
    pub epsilon_1: f64,
    /// Minimum parameter scale (root mean square).
    pub epsilon_2: f64,
    /// Maximum root mean square of an update before the learning rate.
    pub clip_threshold: f64,
    /// Accepted for compatibility with Keras, where it has no effect: the rate is at most 1/√t in any case.
    pub relative_step: bool,
}

/// Adafactor with Keras's arguments. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::adafactor;
/// assert!(adafactor(0.01).clip_threshold(2.0).check().is_ok());
/// ```
pub fn adafactor(learning_rate: impl Into<Schedule>) -> Optimizer {
    let rule = Adafactor {
        beta_2_decay: -0.8,
        epsilon_1: 1e-30,
        epsilon_2: 1e-3,
        clip_threshold: 1.0,
        relative_step: true,
    };
    Optimizer::of(rule, learning_rate)
}

setters!(Optimizer:
    /// Maximum root mean square of an Adafactor update before the learning rate.
    clip_threshold: f64 as f64;
);

impl OptimizerRule for Adafactor {
    fn slots(&self) -> Vec<&'static str> {
        vec!["r", "c", "v"]
    }

    fn slot_type(&self, slot: &str, _: &str, ty: &TensorType) -> Option<TensorType> {
        let rank = ty.rank();
        let without = |dim: usize| {
            let mut dims = ty.shape.to_vec();
            dims.remove(dim);
            TensorType::new(ty.dtype, dims)
        };
        match slot {
            "r" if rank >= 2 => Some(without(rank - 1)),
            "c" if rank >= 2 => Some(without(rank - 2)),
            "v" if rank < 2 => Some(ty.clone()),
            _ => None,
        }
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let t = slots.number();
        let rms = |x: &Tensor| (x * x).mean_all().sqrt();
        let most = 1.0 / t.sqrt();
        let alpha = rms(p).maximum(&t.scalar_like(self.epsilon_2)) * rate.minimum(&most);
        let beta = 1.0 - t.power(&t.scalar_like(self.beta_2_decay));
        let v = self.second_moment(&(g * g + self.epsilon_1), &beta, slots);
        let u = g / v.sqrt();
        let limited = &u / (rms(&u) / self.clip_threshold).maximum(&t.scalar_like(1.0));
        p - alpha * limited
    }
}

impl Adafactor {
    /// `squares: T[…, R, C] → T[…, R, C]`: running mean of the squares; factored by rows and columns except for
    /// vectors.
    fn second_moment(&self, squares: &Tensor, beta: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        let rank = squares.rank();
        let mut mean = |slot: &str, new: &Tensor| {
            let mean = slots.get(slot) * beta + new * (1.0 - beta);
            slots.set(slot, &mean);
            mean
        };
        if rank < 2 {
            return mean("v", squares);
        }
        let r = mean("r", &squares.mean(&[rank - 1]));
        let c = mean("c", &squares.mean(&[rank - 2]));
        let share = &r / r.mean(&[rank - 2]).broadcast_except(r.shape(), &[rank - 2]);
        let shape = squares.shape();
        share.broadcast_except(shape, &[rank - 1]) * c.broadcast_except(shape, &[rank - 2])
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "adafactor", "class": "Adafactor", "kwargs": {"learning_rate": 0.1}},
    {"name": "adafactor_arguments", "class": "Adafactor", "kwargs": {"learning_rate": 0.05, "beta_2_decay": -0.6,
        "epsilon_1": 1e-6, "epsilon_2": 0.5, "clip_threshold": 0.5}},
    {"name": "adafactor_own_rate", "class": "Adafactor", "kwargs": {"learning_rate": 0.1, "relative_step": false}},
    {"name": "adafactor_schedule", "class": "Adafactor", "kwargs": {"learning_rate": {"class": "ExponentialDecay",
        "kwargs": {"initial_learning_rate": 0.1, "decay_steps": 2, "decay_rate": 0.5}}}}
]"#;
