//! BatchNormalization and LayerNormalization layers.
//!
//! Statistics are f32 under every precision policy: half precision loses the variance of features far from zero.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[…, C, …] → T[…]`: batch normalization: normalizes each feature along `axis` over all other dimensions.
    ///
    /// Training uses the batch's mean and (biased) variance, and updates the moving statistics: `moving · momentum +
    /// batch · (1 − momentum)`. Inference and non-trainable layers use the moving statistics. Weights: `gamma`, `beta`,
    /// and, not trainable, `moving_mean`, `moving_variance`: all `f32[C]`. Source: Ioffe and Szegedy 2015.
    ///
    /// ```
    /// use systole_nn::layers::batch_normalization;
    /// assert!(batch_normalization().momentum(0.9).epsilon(1e-5).check().is_ok());
    /// ```
    pub struct BatchNormalization {
        /// The feature dimension. Default: −1, the last.
        pub axis: i64 = -1,
        /// Fraction of the moving statistics kept per step. Default: 0.99.
        pub momentum: f64 = 0.99,
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
        /// Initializer of `moving_mean`. Default: `zeros`.
        pub moving_mean_initializer: Initializer = Initializer::Zeros,
        /// Initializer of `moving_variance`. Default: `ones`.
        pub moving_variance_initializer: Initializer = Initializer::Ones,
    }
}

impl BatchNormalization {
    /// Like [`Layer::call`], with an explicit choice of batch statistics (`training`) or moving statistics.
    fn call_as(&self, cx: &mut Cx, inputs: &[Tensor], training: bool) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            let axis = feature_dim("BatchNormalization", self.axis, x)?;
            let features = [x.dim(axis as isize)];
            sized("BatchNormalization", "gamma", &features)?;
            let mut variable = |wanted: bool, name: &str, initializer: &Initializer, trains: bool| {
                wanted.then(|| cx.variable(name, &features, initializer, trains))
            };
            let gamma = variable(self.scale, "gamma", &self.gamma_initializer, true);
            let beta = variable(self.center, "beta", &self.beta_initializer, true);
            let moving_mean = cx.variable("moving_mean", &features, &self.moving_mean_initializer, false);
            let moving_variance =
                cx.variable("moving_variance", &features, &self.moving_variance_initializer, false);
            let wide = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[axis]);
            let x32 = cast(cx, x).convert(DType::F32);
            let (centred, variance) = if training {
                let others: Vec<usize> = (0..x.rank()).filter(|d| *d != axis).collect();
                let mask =
                    cx.mask_of(x).filter(|m| axis + 1 == x.rank() && m.shape().dims() == &x.shape()[..axis]);
                let mean_of = |x: &Tensor| match &mask {
                    Some(mask) => mean_of_counted(x, mask),
                    None => x.mean(&others),
                };
                let mean = mean_of(&x32);
                let centred = &x32 - wide(&mean);
                let variance = mean_of(&(&centred * &centred));
                let follow = |moving, batch| cx.follow(moving, batch, self.momentum);
                let (mean, var) = (follow(&moving_mean, &mean), follow(&moving_variance, &variance));
                let of_now = [mean, var, centred, variance];
                let [mean, var, centred, variance] = match cx.statistics_rest() {
                    None => of_now,
                    Some(rests) => {
                        let still = &x32 - wide(&moving_mean);
                        let of_before = [&moving_mean, &moving_variance, &still, &moving_variance];
                        std::array::from_fn(|i| rests.select(of_before[i], &of_now[i]))
                    }
                };
                cx.update("moving_mean", mean);
                cx.update("moving_variance", var);
                (centred, variance)
            } else {
                (&x32 - wide(&moving_mean), moving_variance)
            };
            let inverse = (variance + self.epsilon).rsqrt();
            let factor = gamma.map_or(inverse.clone(), |g| &inverse * g);
            let y = centred * wide(&factor);
            Ok(cast(cx, &beta.map_or(y.clone(), |b| &y + wide(&b))))
        })
    }
}

/// `x: f32[…, F], mask: bool[…] → f32[F]`: mean over unmasked elements, with Keras's ε.
fn mean_of_counted(x: &Tensor, mask: &Tensor) -> Tensor {
    let dims: Vec<usize> = (0..mask.rank()).collect();
    let counted = mask.broadcast_in_dim(x.shape(), &dims).select(x, &x.zeros_like());
    let sum = counted.sum(&dims);
    let count = mask.convert(DType::F32).sum_all() + 1e-7;
    &sum / count.broadcast_to(sum.shape())
}

impl Arguments for BatchNormalization {
    fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(wrong("BatchNormalization", "a momentum from 0 to 1", self.momentum));
        }
        at_least_0("BatchNormalization", "epsilon", self.epsilon)
    }

    /// As in Keras, a frozen layer uses its moving statistics even in training.
    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_as(cx, inputs, false)
    }
}

impl Layer for BatchNormalization {
    named!("BatchNormalization");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let training = cx.training();
        self.call_as(cx, inputs, training)
    }

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::BatchNormalization {
            axis: self.axis,
            epsilon: self.epsilon,
            center: self.center,
            scale: self.scale,
        })
    }

    weights!("gamma" => "weight", "beta" => "bias", "moving_mean" => "running_mean", "moving_variance" => "running_var");
}

arguments! {
    /// `x: T[B, …] → T[B, …]`: layer normalization: normalizes each sample over the dimensions `axis`.
    ///
    /// Weights: `gamma`, `beta`, of the shape of those dimensions. Source: Ba, Kiros and Hinton 2016.
    pub struct LayerNormalization {
        /// Axes to normalize over. Default: −1, the last.
        pub axis: Axes = Axes(vec![-1]),
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

impl Arguments for LayerNormalization {
    fn check(&self) -> Result<()> {
        ensure!(!self.axis.0.is_empty(), wrong("LayerNormalization", "at least one axis", "an empty list"));
        at_least_0("LayerNormalization", "epsilon", self.epsilon)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let dims = self.axis.0.iter().map(|&a| feature_dim("LayerNormalization", a, x));
        let mut dims = dims.collect::<Result<Vec<usize>>>()?;
        dims.sort_unstable();
        dims.dedup();
        let shape: Vec<usize> = dims.iter().map(|&d| x.dim(d as isize)).collect();
        sized("LayerNormalization", "gamma", &shape)?;
        let x32 = cast(cx, x).convert(DType::F32);
        let mut way = LayerNormOps { cx, dims, shape: x.shape().clone() };
        let mean = way.mean("mean", &x32);
        let mean = way.wide(&mean);
        let centred = way.sum("centred", [&x32, &mean], true);
        let squared = way.product("squared", [&centred, &centred]);
        let variance = way.mean("variance", &squared);
        let sum = &variance + self.epsilon;
        way.cx.made_with_constant(&sum, &variance, self.epsilon);
        let sum = way.cx.rounded_within("sum", sum);
        let factor = way.cx.root_within("rsqrt", &sum);
        let factor = way.wide(&factor);
        let mut y = way.product("normalized", [&centred, &factor]);
        if self.scale {
            let gamma = way.constant("gamma", &shape, &self.gamma_initializer);
            y = way.product("scaled", [&y, &gamma]);
        }
        if self.center {
            let beta = way.constant("beta", &shape, &self.beta_initializer);
            y = way.sum("output", [&y, &beta], false);
        }
        Ok(cast(cx, &y))
    }
}

impl Layer for LayerNormalization {
    named!("LayerNormalization", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::LayerNormalization {
            axis: self.axis.0.clone(),
            epsilon: self.epsilon,
            center: self.center,
            scale: self.scale,
        })
    }

    weights!("gamma" => "weight", "beta" => "bias");
}

/// Operators of a layer normalization, fake-quantized one by one as in the int8 model.
struct LayerNormOps<'a> {
    cx: &'a mut Cx,
    dims: Vec<usize>,
    shape: Shape,
}

impl LayerNormOps<'_> {
    fn mean(&mut self, place: &str, x: &Tensor) -> Tensor {
        let mean = x.mean(&self.dims);
        self.cx.made_as_mean(&mean, x, &self.dims);
        self.cx.rounded_within(place, mean)
    }

    fn wide(&mut self, t: &Tensor) -> Tensor {
        let y = t.broadcast_except(&self.shape, &self.dims);
        self.cx.same_levels(&y, t);
        y
    }

    fn sum(&mut self, place: &str, [a, b]: [&Tensor; 2], is_difference: bool) -> Tensor {
        let y = if is_difference { a - b } else { a + b };
        self.cx.made_as_sum(&y, [a, b], is_difference);
        self.cx.rounded_within(place, y)
    }

    fn product(&mut self, place: &str, [a, b]: [&Tensor; 2]) -> Tensor {
        let y = a * b;
        self.cx.made_as_product(&y, [a, b]);
        self.cx.rounded_within(place, y)
    }

    fn constant(&mut self, name: &str, shape: &[usize], start: &Initializer) -> Tensor {
        let w = self.cx.variable(name, shape, start, true);
        let w = self.cx.rounded_constant(w);
        let y = w.broadcast_in_dim(&self.shape, &self.dims);
        self.cx.same_levels(&y, &w);
        y
    }
}

/// Converts a feature axis to an index; rejects the batch, whose size weights cannot depend on.
pub(in crate::layers) fn feature_dim(class: &str, axis: i64, x: &Tensor) -> Result<usize> {
    match dim_index(class, axis, x)? {
        0 => Err(unfit(class, "a feature dimension after the batch [B, …]", x.ty())
            .because(format!("the layer's axis {axis} is the batch dimension"))
            .hint("choose another axis; −1 is the last")),
        d => Ok(d),
    }
}

constructors!(LayerSpec:
    /// `x: T[…, C] → T[…, C]`: batch normalization: each feature to mean 0 and variance 1 over the batch. Arguments:
    /// [`BatchNormalization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::batch_normalization, Model};
    /// let layer = batch_normalization();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn batch_normalization() = BatchNormalization::default();

    /// `x: T[B, …] → T[B, …]`: layer normalization: the last axis of each sample to mean 0 and variance 1. Arguments:
    /// [`LayerNormalization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::layer_normalization, Model};
    /// let layer = layer_normalization().epsilon(1e-5);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn layer_normalization() = LayerNormalization::default();
);

setters!(LayerSpec:
    /// Initializer of a normalization layer's beta.
    beta_initializer: impl Into<Value> as Value;
    /// Initializer of a normalization layer's gamma.
    gamma_initializer: impl Into<Value> as Value;
    /// Initializer of BatchNormalization's moving mean.
    moving_mean_initializer: impl Into<Value> as Value;
    /// Initializer of BatchNormalization's moving variance.
    moving_variance_initializer: impl Into<Value> as Value;
    /// Fraction of the moving statistics that BatchNormalization keeps per step.
    momentum: f64 as f64;
    /// Epsilon that a normalization layer adds to the variance.
    epsilon: f64 as f64;
    /// Whether a normalization layer has a beta.
    center: bool as bool;
);

const MOVING: &[&str] = &["gamma", "beta", "moving_mean", "moving_variance"];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(batch_normalization(), IMAGE, IMAGE, MOVING, Some(&[2])),
        LayerSample::new(batch_normalization().axis(1), IMAGE, IMAGE, MOVING, Some(&[2])),
        LayerSample::new(layer_normalization(), &[2, 5], &[2, 5], &["gamma", "beta"], Some(&[2])),
        LayerSample::new(layer_normalization().axis([1, 2]), IMAGE, IMAGE, &["gamma", "beta"], Some(&[2, 3])),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
