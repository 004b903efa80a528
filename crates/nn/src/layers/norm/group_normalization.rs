//! GroupNormalization layer: normalizes groups of features per sample, independent of the batch.

use super::normalization::feature_dim;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …, C] → T[B, …, C]`: normalizes groups of features of each sample over all positions.
    ///
    /// Statistics are f32 under every precision policy. Weights: `gamma`, `beta`: `f32[C]`. Source: Wu and He 2018.
    ///
    /// ```
    /// use systole_nn::layers::group_normalization;
    /// let instance_normalization = group_normalization().groups(-1);
    /// assert!(instance_normalization.check().is_ok());
    /// ```
    pub struct GroupNormalization {
        /// Number of groups, a divisor of the features; −1 makes one group per feature. Default: 32.
        pub groups: i64 = 32,
        /// The feature dimension. Default: −1, the last.
        pub axis: i64 = -1,
        /// Epsilon added to the variance. Default: 1e-3.
        pub epsilon: f64 = 1e-3,
        /// Whether `beta` is added. Default: true.
        pub center: bool = true,
        /// Whether the result is multiplied by `gamma`. Default: true.
        pub scale: bool = true,
        /// Initializer of `beta`. Default: `zeros`.
        pub beta_initializer: Initializer = Initializer::Zeros,
        /// Initializer of `gamma`. Default: `ones`.
        pub gamma_initializer: Initializer = Initializer::Ones,
    }
}

impl GroupNormalization {
    fn groups_of(&self, features: usize, x: &Tensor) -> Result<usize> {
        let groups = usize::try_from(self.groups).unwrap_or(features);
        if groups == 0 || features == 0 || !features.is_multiple_of(groups) {
            let needs = format!("a number of features divisible by {groups} groups");
            return Err(unfit("GroupNormalization", &needs, x.ty())
                .because(format!("the input has {features} features along axis {}", self.axis))
                .hint(
                    "choose a number of groups that divides the features; −1 makes one group per feature",
                ));
        }
        Ok(groups)
    }
}

impl Arguments for GroupNormalization {
    fn check(&self) -> Result<()> {
        if self.groups == 0 || self.groups < -1 {
            return Err(wrong("GroupNormalization", "groups of at least 1, or −1", self.groups));
        }
        at_least_0("GroupNormalization", "epsilon", self.epsilon)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let axis = feature_dim("GroupNormalization", self.axis, x)?;
        let features = x.dim(axis as isize);
        let groups = self.groups_of(features, x)?;
        sized("GroupNormalization", "gamma", &[features])?;
        let x32 = cast(cx, x).convert(DType::F32);
        let others: Vec<usize> = (1..x.rank()).filter(|d| *d != axis).collect();
        let (batch, places) = (x.dim(0), others.iter().map(|d| x.shape()[*d]).product::<usize>());
        // Reduces per feature first: sums over positions keep the innermost dimension contiguous, and broadcasts
        // have one value per feature. The group reduction then works on `[B, C]` only.
        let spread = |of_features: &Tensor| of_features.broadcast_in_dim(x.shape(), &[0, axis]);
        let mean_of_groups = |t: &Tensor| {
            let of_features = if places == 1 { t.reshape([batch, features]) } else { t.mean(&others) };
            let grouped = of_features.reshape([batch, groups, features / groups]);
            grouped.mean(&[2]).broadcast_except(grouped.shape(), &[2]).reshape([batch, features])
        };
        let centred = &x32 - spread(&mean_of_groups(&x32));
        let mut factor = (mean_of_groups(&(&centred * &centred)) + self.epsilon).rsqrt();
        if self.scale {
            let gamma = cx.variable("gamma", &[features], &self.gamma_initializer, true);
            factor = &factor * gamma.broadcast_in_dim(factor.shape(), &[1]);
        }
        let mut y = centred * spread(&factor);
        if self.center {
            let beta = cx.variable("beta", &[features], &self.beta_initializer, true);
            y = y + beta.broadcast_in_dim(x.shape(), &[axis]);
        }
        Ok(cast(cx, &y))
    }
}

impl Layer for GroupNormalization {
    named!("GroupNormalization", one_input);

    masked!(First);

    weights!("gamma" => "weight", "beta" => "bias");
}

constructors!(LayerSpec:
    /// `x: T[B, …, C] → T[B, …, C]`: normalizes groups of features of each sample to mean 0 and variance 1. Arguments:
    /// [`GroupNormalization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::group_normalization, Model};
    /// let layer = group_normalization().groups(4);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn group_normalization() = GroupNormalization::default();
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(
            group_normalization().groups(3),
            IMAGE,
            IMAGE,
            &["gamma", "beta"],
            Some(&[2, 6, 5, 4]),
        ),
        LayerSample::new(group_normalization().groups(2), &[4, 6], &[4, 6], &["gamma", "beta"], Some(&[2])),
        LayerSample::new(
            group_normalization().groups(-1).axis(1).center(false),
            IMAGE,
            IMAGE,
            &["gamma"],
            Some(&[2]),
        ),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "group_norm", "class": "GroupNormalization", "x_shape": [2, 3, 2, 6], "kwargs": {"groups": 3}},
    {"name": "group_norm_rank2", "class": "GroupNormalization", "x_shape": [3, 8], "kwargs": {"groups": 2, "epsilon": 1e-5}},
    {"name": "group_norm_instance", "class": "GroupNormalization", "x_shape": [2, 3, 4, 2], "kwargs": {"groups": -1, "scale": false}},
    {"name": "group_norm_axis1", "class": "GroupNormalization", "x_shape": [2, 4, 3, 2], "kwargs": {"groups": 2, "axis": 1, "center": false}}
]"#;
