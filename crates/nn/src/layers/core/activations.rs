//! Activation layers: Activation, ReLU, LeakyReLU, ELU, Softmax.

use crate::layer::activation::Activation;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

/// `x: T[…] → T[…]`: applies an [`Activation`]. Its class name is `Activation`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationLayer {
    /// Activation function. Required in Keras, linear here.
    #[serde(deserialize_with = "argument::activation")]
    pub activation: Activation,
}

impl Arguments for ActivationLayer {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if self.activation == Activation::Softmax {
            check_last("Activation", x)?;
        }
        Ok(cx.activate(self.activation, &cast(cx, x)))
    }
}

impl Layer for ActivationLayer {
    named!("Activation", one_input);

    lowered!(self => Ok(LayerLowering::Activation(self.activation)));
}

/// `x: T[…] → T[…]`: rectified linear unit: x above `threshold`, 0 below it, at most `max_value`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReLU {
    /// Maximum output. Default: none.
    pub max_value: Option<f64>,
    /// Slope of `negative_slope · (x − threshold)` below the threshold. Default: 0.
    pub negative_slope: f64,
    /// Value above which the output is x. Default: 0.
    pub threshold: f64,
}

impl Arguments for ReLU {
    fn check(&self) -> Result<()> {
        if let Some(limit) = self.max_value.filter(|m| m.is_nan() || *m < 0.0) {
            return Err(wrong("ReLU", "max_value of at least 0", limit));
        }
        at_least_0("ReLU", "negative_slope", self.negative_slope)?;
        at_least_0("ReLU", "threshold", self.threshold)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let x = cast(cx, x);
        let below = match self.negative_slope {
            0.0 => x.zeros_like(),
            slope => (&x - self.threshold) * slope,
        };
        // This comparison is false for NaN, so NaN passes through.
        let y = x.less_equal(&x.scalar_like(self.threshold)).select(&below, &x);
        // Uses select, so that the gradient above the limit is 0.
        let limited = self.max_value.map(|m| {
            let limit = y.builder().full(y.ty(), m);
            y.greater_equal(&limit).select(&limit, &y)
        });
        Ok(limited.unwrap_or(y))
    }
}

impl Layer for ReLU {
    named!("ReLU", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::Relu {
            max_value: self.max_value,
            negative_slope: self.negative_slope,
            threshold: self.threshold,
        })
    }
}

arguments! {
    /// `x: T[…] → T[…]`: leaky ReLU: x if positive, otherwise `negative_slope · x`.
    pub struct LeakyReLU {
        /// Slope for negative x. Default: 0.3 (the function `leaky_relu` has 0.2, as in Keras).
        pub negative_slope: f64 = 0.3,
    }
}

impl Arguments for LeakyReLU {
    fn check(&self) -> Result<()> {
        at_least_0("LeakyReLU", "negative_slope", self.negative_slope)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let y = cast(cx, x).leaky_relu(self.negative_slope);
        cx.made_as_leaky(&y, x, self.negative_slope);
        Ok(y)
    }
}

impl Layer for LeakyReLU {
    named!("LeakyReLU", one_input);

    lowered!(self => Ok(LayerLowering::LeakyRelu(self.negative_slope)));
}

arguments! {
    /// `x: T[…] → T[…]`: exponential linear unit: x if positive, otherwise `alpha · (eˣ − 1)`.
    pub struct ELU {
        /// The output for negative x is bounded below by −alpha. Default: 1.
        pub alpha: f64 = 1.0,
    }
}

impl Arguments for ELU {
    fn check(&self) -> Result<()> {
        ensure!(self.alpha.is_finite(), wrong("ELU", "a finite alpha", self.alpha));
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        Ok(cast(cx, x).elu(self.alpha))
    }
}

impl Layer for ELU {
    named!("ELU", one_input);

    lowered!(self => Ok(LayerLowering::Elu(self.alpha)));
}

arguments! {
    /// `x: T[…] → T[…]`: softmax `eˣ / Σ eˣ` along `axis`.
    pub struct Softmax {
        /// Axis along which the output sums to 1. Default: −1, the last.
        pub axis: i64 = -1,
    }
}

impl Arguments for Softmax {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let axis = dim_index("Softmax", self.axis, x)?;
        let x = cast(cx, x);
        if axis + 1 == x.rank() {
            return Ok(cx.activate(Activation::Softmax, &x));
        }
        let mut swapped: Vec<usize> = (0..x.rank()).collect();
        swapped.swap(axis, x.rank() - 1);
        Ok(x.transpose(&swapped).softmax().transpose(&swapped))
    }
}

impl Layer for Softmax {
    named!("Softmax", one_input);

    lowered!(self => Ok(LayerLowering::Softmax(self.axis)));
}

/// Rejects inputs without a last dimension to normalize over.
fn check_last(class: &str, x: &Tensor) -> Result<()> {
    if x.rank() == 0 {
        return Err(unfit(class, "a last dimension for softmax [B, …, N]", x.ty())
            .hint("feed batches: data.batch(32)"));
    }
    Ok(())
}

constructors!(LayerSpec:
    /// `x: T[…] → T[…]`: an activation by name (`"relu"`) or an [`Activation`](crate::Activation), applied element-wise.
    /// Arguments: [`ActivationLayer`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::activation, Model};
    /// let layer = activation("tanh");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn activation(function: impl Into<Value>) =
        LayerSpec::of(ActivationLayer::default()).set("activation", function.into());

    /// `x: T[…] → T[…]`: x if positive, otherwise 0. Arguments: [`ReLU`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::relu, Model};
    /// let layer = relu();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn relu() = ReLU::default();

    /// `x: T[…] → T[…]`: x if positive, otherwise 0.3 · x. Arguments: [`LeakyReLU`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::leaky_relu, Model};
    /// let layer = leaky_relu().negative_slope(0.1);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn leaky_relu() = LeakyReLU::default();

    /// `x: T[…] → T[…]`: x if positive, otherwise eˣ − 1. Arguments: [`ELU`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::elu, Model};
    /// let layer = elu();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8])])?;
    /// assert_eq!(output.shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn elu() = ELU::default();

    /// `x: T[…] → T[…]`: softmax `eˣ / Σ eˣ` along the last axis: logits to probabilities. Arguments: [`Softmax`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::softmax, Model};
    /// let layer = softmax();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [10])])?;
    /// assert_eq!(output.shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn softmax() = Softmax::default();
);

setters!(LayerSpec:
    /// Maximum output of ReLU.
    max_value: f64 as f64;
    /// Slope of ReLU and LeakyReLU for negative inputs.
    negative_slope: f64 as f64;
    /// Threshold of ReLU.
    threshold: f64 as f64;
    /// Negative saturation value of ELU.
    alpha: f64 as f64;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(activation("softmax"), &[2, 5], &[2, 5], &[], Some(&[])),
        LayerSample::new(
            relu().max_value(6.0).negative_slope(0.1).threshold(0.5),
            &[2, 5],
            &[2, 5],
            &[],
            None,
        ),
        LayerSample::new(leaky_relu(), &[2, 5], &[2, 5], &[], None),
        LayerSample::new(elu().alpha(0.5), &[2, 5], &[2, 5], &[], None),
        LayerSample::new(softmax().axis(1), &[2, 5, 3], &[2, 5, 3], &[], Some(&[2])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "activation_gelu", "class": "Activation", "x_shape": [3, 5], "inputs": "wide", "kwargs": {"activation": "gelu"}}
]"#;
