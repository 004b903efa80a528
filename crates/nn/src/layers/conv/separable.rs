//! SeparableConv1D and SeparableConv2D layers: depthwise convolution followed by a pointwise (1×1) convolution.

use super::depthwise::{DepthwiseKernel, check_multiplier};
use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::regularized_weight::{check_rules, finished, ruled_weight};
use crate::layers::sample::*;
use crate::layers::sliding_window::{SlidingWindow, check_places};
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, …, C] → T[B, …', filters]`: depthwise convolution over `N` spatial dimensions, then pointwise
    /// convolution.
    pub struct SeparableConv<const N: usize> {
        /// Number of output channels. Required.
        pub filters: usize = 0,
        /// Size of the window along each spatial dimension. Required.
        pub kernel_size: Sizes<N> = Sizes([0; N]),
        /// Strides of the window; 1 each by default.
        pub strides: Sizes<N> = Sizes([1; N]),
        /// Padding mode. Default: "valid".
        pub padding: Padding = Padding::Valid,
        /// Dilation of the window; 1 each by default.
        pub dilation_rate: Sizes<N> = Sizes([1; N]),
        /// Intermediate channels per input channel. Default: 1.
        pub depth_multiplier: usize = 1,
        /// Activation of the output. Default: linear.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Linear,
        /// Whether a bias is added. Default: true.
        pub use_bias: bool = true,
        /// Initializer of the depthwise kernel. Default: `glorot_uniform`.
        pub depthwise_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the pointwise kernel. Default: `glorot_uniform`.
        pub pointwise_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the bias. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
        /// Penalty on the depthwise kernel, added to the loss. Default: none.
        pub depthwise_regularizer: Option<Regularizer> = None,
        /// Penalty on the pointwise kernel, added to the loss. Default: none.
        pub pointwise_regularizer: Option<Regularizer> = None,
        /// Penalty on the bias, added to the loss. Default: none.
        pub bias_regularizer: Option<Regularizer> = None,
        /// Penalty on the output. Default: none.
        pub activity_regularizer: Option<Regularizer> = None,
        /// Constraint on the depthwise kernel, applied after each step. Default: none.
        pub depthwise_constraint: Option<Constraint> = None,
        /// Constraint on the pointwise kernel, applied after each step. Default: none.
        pub pointwise_constraint: Option<Constraint> = None,
        /// Constraint on the bias, applied after each step. Default: none.
        pub bias_constraint: Option<Constraint> = None,
    }
}

/// `x: T[B, S, C] → T[B, S', filters]`: depthwise 1D convolution, then pointwise convolution.
///
/// Weights: `depthwise_kernel: f32[k, C, depth_multiplier]`, `pointwise_kernel: f32[1, C · depth_multiplier, filters]`,
/// `bias: f32[filters]`.
pub type SeparableConv1D = SeparableConv<1>;

/// `x: T[B, H, W, C] → T[B, H', W', filters]`: depthwise 2D convolution, then pointwise convolution.
///
/// Weights: `depthwise_kernel: f32[kh, kw, C, depth_multiplier]`, `pointwise_kernel: f32[1, 1, C · depth_multiplier,
/// filters]`, `bias: f32[filters]`. Source: Chollet 2017.
pub type SeparableConv2D = SeparableConv<2>;

impl<const N: usize> SeparableConv<N> {
    fn sliding(&self) -> SlidingWindow {
        let class = self.class_name();
        SlidingWindow::of_kernel(class, self.kernel_size, self.strides, self.dilation_rate, self.padding)
    }
}

impl<const N: usize> Arguments for SeparableConv<N> {
    fn check(&self) -> Result<()> {
        let class = self.class_name();
        let own = [self.depthwise_regularizer, self.pointwise_regularizer, self.bias_regularizer];
        check_rules(class, own)?;
        check_rules(class, [self.activity_regularizer, None, None])?;
        check_filters(class, self.filters)?;
        check_multiplier(class, self.depth_multiplier)?;
        self.sliding().check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let (class, filters) = (self.class_name(), self.filters);
        check_places(class, N, x)?;
        let kernel = DepthwiseKernel {
            name: "depthwise_kernel",
            multiplier: self.depth_multiplier,
            initializer: &self.depthwise_initializer,
            rules: (self.depthwise_regularizer, self.depthwise_constraint),
        };
        let parts = kernel.convolve(cx, &self.sliding(), x)?;
        let parts = cx.rounded_parts(parts);
        let mixed = parts.dim(-1);
        let shape = [&[1; N][..], &[mixed, filters]].concat();
        let rules = (self.pointwise_regularizer, self.pointwise_constraint);
        let start = &self.pointwise_initializer;
        let kernel = ruled_weight(cx, class, "pointwise_kernel", &shape, start, rules)?;
        let y = parts.dot(&kernel.reshape([mixed, filters]));
        let rules = (self.bias_regularizer, self.bias_constraint);
        let bias = self.use_bias.then_some((&self.bias_initializer, rules));
        finished(cx, class, y, bias, (self.activation, self.activity_regularizer))
    }
}

impl<const N: usize> Layer for SeparableConv<N> {
    named!(by_rank::<N, 2>(["SeparableConv1D", "SeparableConv2D"]), one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        operators_if(
            self,
            N == 2,
            self.sliding().lowering(ConvolutionKind::Separable, 1, self.use_bias, self.activation),
        )
    }
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S', filters]`: depthwise 1D convolution, then pointwise convolution. Arguments:
    /// [`SeparableConv1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::separable_conv1d, Model};
    /// let layer = separable_conv1d(64, 3).padding("same");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [100, 64]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn separable_conv1d(filters: usize, kernel_size: usize) =
        SeparableConv1D { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H', W', filters]`: depthwise 2D convolution, then pointwise convolution. Arguments:
    /// [`SeparableConv2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::separable_conv2d, Model};
    /// let layer = separable_conv2d(64, 3).padding("same").activation("relu");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 64]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn separable_conv2d(filters: usize, kernel_size: impl Into<Sizes<2>>) =
        SeparableConv2D { filters, kernel_size: kernel_size.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// Initializer of a separable convolution's pointwise kernel.
    pointwise_initializer: impl Into<Value> as Value;
    /// Penalty on a separable convolution's pointwise kernel.
    pointwise_regularizer: impl Into<Value> as Value;
    /// Constraint on the pointwise kernel, applied after each step.
    pointwise_constraint: impl Into<Value> as Value;
);

const PARTS: &[&str] = &["depthwise_kernel", "pointwise_kernel", "bias"];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(separable_conv1d(5, 3), SEQUENCE, &[2, 5, 5], PARTS, Some(&[2, 2, 4])),
        LayerSample::new(
            separable_conv2d(4, (2, 3)).padding("same").depth_multiplier(2),
            IMAGE,
            &[2, 6, 5, 4],
            PARTS,
            FLAT,
        ),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "separable_conv2d", "class": "SeparableConv2D", "x_shape": [2, 5, 4, 3], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "separable_conv2d_same_s2", "class": "SeparableConv2D", "x_shape": [2, 5, 4, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2, "activation": "relu"}},
    {"name": "separable_conv2d_dilated", "class": "SeparableConv2D", "x_shape": [2, 5, 6, 2], "kwargs": {"filters": 2, "kernel_size": 2, "dilation_rate": 2, "use_bias": false}},
    {"name": "separable_conv1d", "class": "SeparableConv1D", "x_shape": [2, 6, 3], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "separable_conv1d_same_s2", "class": "SeparableConv1D", "x_shape": [2, 6, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2}}
]"#;
