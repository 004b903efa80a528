//! Muon optimizer: momentum orthogonalized by Newton–Schulz iterations for matrices, AdamW for the rest.

use super::adam::Adam;
use super::optimizer_config::Optimizer;
use super::rule::{Coefficient, OptimizerRule, OptimizerSlots};
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use systole_ir::{Tensor, TensorType};

/// Muon optimizer. Matrices: m ← μ·m + g, five Newton–Schulz iterations X ← a·X + (b·XXᵀ + c·(XXᵀ)²)·X on g + μ·m, p ←
/// p − lr·√max(R, C)·`rms_rate`·X. Vectors, embeddings and `exclude_layers` use AdamW (Jordan et al., 2024; Liu et al.,
/// 2025; Keras).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Muon {
    /// β₁ of AdamW.
    pub adam_beta_1: f64,
    /// β₂ of AdamW.
    pub adam_beta_2: f64,
    /// Weight decay of parameters that use AdamW.
    pub adam_weight_decay: Option<f64>,
    /// ε of AdamW.
    pub epsilon: f64,
    /// Parameters whose path contains one of these strings use AdamW (Keras: regular expressions).
    pub exclude_layers: Vec<String>,
    /// Whether matrices with "embedding" in their path use AdamW.
    pub exclude_embeddings: bool,
    /// Coefficient a of the Newton–Schulz iteration.
    pub muon_a: f64,
    /// Coefficient b of the iteration.
    pub muon_b: f64,
    /// Coefficient c of the iteration.
    pub muon_c: f64,
    /// AdamW's learning rate as a multiple of Muon's.
    pub adam_lr_ratio: f64,
    /// Momentum μ.
    pub momentum: f64,
    /// Newton–Schulz iterations.
    pub ns_steps: usize,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Root mean square of an update relative to the learning rate. `None`: not scaled by the matrix's size.
    pub rms_rate: Option<f64>,
}

/// Muon with Keras's arguments: μ 0.95, five iterations, decay 0.004. Keras's default rate is 0.001.
///
/// ```
/// use systole_nn::optimizer::muon;
/// assert!(muon(1e-3).momentum(0.9).nesterov(false).check().is_ok());
/// ```
pub fn muon(learning_rate: impl Into<Schedule>) -> Optimizer {
    let rule = Muon {
        adam_beta_1: 0.9,
        adam_beta_2: 0.999,
        adam_weight_decay: Some(0.004),
        epsilon: 1e-7,
        exclude_layers: Vec::new(),
        exclude_embeddings: true,
        muon_a: 3.4445,
        muon_b: -4.7750,
        muon_c: 2.0315,
        adam_lr_ratio: 1.0,
        momentum: 0.95,
        ns_steps: 5,
        nesterov: true,
        rms_rate: Some(0.2),
    };
    Optimizer::of(rule, learning_rate).weight_decay(0.004)
}

impl OptimizerRule for Muon {
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("adam_beta_1", self.adam_beta_1),
            ("adam_beta_2", self.adam_beta_2),
            ("momentum", self.momentum),
        ]
    }

    fn slots(&self) -> Vec<&'static str> {
        vec!["momentum", "velocity"]
    }

    fn slot_type(&self, slot: &str, param: &str, ty: &TensorType) -> Option<TensorType> {
        (slot == "momentum" || self.goes_by_adamw(param, ty)).then(|| ty.clone())
    }

    fn weight_decay(&self, param: &str, ty: &TensorType, common: Option<f64>) -> Option<f64> {
        if self.goes_by_adamw(param, ty) { self.adam_weight_decay } else { common }
    }

    fn takes_momentum(&self) -> bool {
        true
    }

    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor {
        if self.goes_by_adamw(slots.name, p.ty()) {
            let adam = self.adam();
            let rate =
                adam.rate(&(rate * self.adam_lr_ratio), slots.updates, slots.momentum).convert(p.dtype());
            return adam.step(p, g, &rate, slots);
        }
        let m = slots.get("momentum");
        let momentum = slots.momentum(self.momentum);
        let shrunk = match &momentum {
            Coefficient::Fixed(momentum) => &m * (momentum - 1.0),
            Coefficient::Traced(momentum) => &m * (momentum - 1.0),
        };
        let m = &m + (g + shrunk);
        slots.set("momentum", &m);
        let ahead = if self.nesterov { g + momentum.of(&m) } else { m };
        let change = rate * self.orthogonalized(&ahead);
        let longest = p.shape().iter().copied().max().unwrap_or(1) as f64;
        p - match self.rms_rate {
            Some(rms) => change * longest.sqrt() * rms,
            None => change,
        }
    }
}

impl Muon {
    fn goes_by_adamw(&self, param: &str, ty: &TensorType) -> bool {
        ty.rank() != 2
            || self.exclude_embeddings && param.to_lowercase().contains("embedding")
            || self.exclude_layers.iter().any(|part| param.contains(part.as_str()))
    }

    /// Returns the AdamW rule for the other parameters.
    fn adam(&self) -> Adam {
        Adam { beta_1: self.adam_beta_1, beta_2: self.adam_beta_2, epsilon: self.epsilon, amsgrad: false }
    }

    /// `x: T[R, C] → T[R, C]`: orthogonalizes x = U·S·Vᵀ to approximately U·Vᵀ by Newton–Schulz iterations.
    fn orthogonalized(&self, x: &Tensor) -> Tensor {
        let is_tall = x.dim(0) > x.dim(1);
        let wide = if is_tall { x.transpose(&[1, 0]) } else { x.clone() };
        let norm = (&wide * &wide).sum_all().sqrt();
        let mut x = wide / (norm + 1e-7);
        for _ in 0..self.ns_steps {
            let a = x.matmul(&x.transpose(&[1, 0]));
            let b = &a * self.muon_b + (&a * self.muon_c).matmul(&a);
            x = &x * self.muon_a + b.matmul(&x);
        }
        if is_tall { x.transpose(&[1, 0]) } else { x }
    }
}

/// Keras parity test cases as JSON; `fixtures/keras/generate.py` reads them from this constant.
pub(super) const PARITY: &str = r#"[
    {"name": "muon", "class": "Muon", "kwargs": {"learning_rate": 0.01}},
    {"name": "muon_plain", "class": "Muon", "kwargs": {"learning_rate": 0.01, "nesterov": false, "momentum": 0.8,
        "rms_rate": null, "weight_decay": null, "ns_steps": 3}},
    {"name": "muon_adam", "class": "Muon", "kwargs": {"learning_rate": 0.01, "exclude_layers": ["p0"],
        "adam_beta_1": 0.8, "adam_beta_2": 0.937, "adam_weight_decay": 0.1, "adam_lr_ratio": 0.5, "epsilon": 0.05}}
]"#;
