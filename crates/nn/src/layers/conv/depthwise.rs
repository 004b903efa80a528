//! DepthwiseConv1D and DepthwiseConv2D layers: each channel is convolved separately.

use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::regularized_weight::{WeightRules, check_rules, finished, ruled_weight};
use crate::layers::sample::*;
use crate::layers::sliding_window::{SlidingWindow, check_places};
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, …, C] → T[B, …', C · depth_multiplier]`: depthwise convolution over `N` spatial dimensions.
    ///
    /// Output channel `c · depth_multiplier + m` is input channel `c` convolved with its kernel `m`.
    pub struct DepthwiseConv<const N: usize> {
        /// Size of the window along each spatial dimension. Required.
        pub kernel_size: Sizes<N> = Sizes([0; N]),
        /// Strides of the window; 1 each by default.
        pub strides: Sizes<N> = Sizes([1; N]),
        /// Padding mode. Default: "valid".
        pub padding: Padding = Padding::Valid,
        /// Output channels per input channel. Default: 1.
        pub depth_multiplier: usize = 1,
        /// Dilation of the window; 1 each by default.
        pub dilation_rate: Sizes<N> = Sizes([1; N]),
        /// Activation of the output. Default: linear.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Linear,
        /// Whether a bias is added. Default: true.
        pub use_bias: bool = true,
        /// Initializer of the kernel. Default: `glorot_uniform`.
        pub depthwise_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the bias. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
        /// Penalty on the depthwise kernel, added to the loss. Default: none.
        pub depthwise_regularizer: Option<Regularizer> = None,
        /// Penalty on the bias, added to the loss. Default: none.
        pub bias_regularizer: Option<Regularizer> = None,
        /// Penalty on the output. Default: none.
        pub activity_regularizer: Option<Regularizer> = None,
        /// Constraint on the depthwise kernel, applied after each step. Default: none.
        pub depthwise_constraint: Option<Constraint> = None,
        /// Constraint on the bias, applied after each step. Default: none.
        pub bias_constraint: Option<Constraint> = None,
    }
}

/// `x: T[B, S, C] → T[B, S', C · depth_multiplier]`: depthwise 1D convolution: each channel is convolved separately.
///
/// Output channel `c · depth_multiplier + m` is input channel `c` convolved with its kernel `m`. Weights: `kernel:
/// f32[k, C, depth_multiplier]`, `bias: f32[C · depth_multiplier]`.
pub type DepthwiseConv1D = DepthwiseConv<1>;

/// `x: T[B, H, W, C] → T[B, H', W', C · depth_multiplier]`: depthwise 2D convolution: each channel is convolved
/// separately.
///
/// Output channel `c · depth_multiplier + m` is input channel `c` convolved with its kernel `m`. Weights: `kernel:
/// f32[kh, kw, C, depth_multiplier]`, `bias: f32[C · depth_multiplier]`.
pub type DepthwiseConv2D = DepthwiseConv<2>;

impl<const N: usize> DepthwiseConv<N> {
    fn sliding(&self) -> SlidingWindow {
        let class = self.class_name();
        SlidingWindow::of_kernel(class, self.kernel_size, self.strides, self.dilation_rate, self.padding)
    }
}

impl<const N: usize> Arguments for DepthwiseConv<N> {
    fn check(&self) -> Result<()> {
        let rules = [self.depthwise_regularizer, self.bias_regularizer, self.activity_regularizer];
        check_rules(self.class_name(), rules)?;
        check_multiplier(self.class_name(), self.depth_multiplier)?;
        self.sliding().check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_places(self.class_name(), N, x)?;
        let kernel = DepthwiseKernel {
            name: "kernel",
            multiplier: self.depth_multiplier,
            initializer: &self.depthwise_initializer,
            rules: (self.depthwise_regularizer, self.depthwise_constraint),
        };
        let y = kernel.convolve(cx, &self.sliding(), x)?;
        let rules = (self.bias_regularizer, self.bias_constraint);
        let bias = self.use_bias.then_some((&self.bias_initializer, rules));
        finished(cx, self.class_name(), y, bias, (self.activation, self.activity_regularizer))
    }
}

impl<const N: usize> Layer for DepthwiseConv<N> {
    named!(by_rank::<N, 2>(["DepthwiseConv1D", "DepthwiseConv2D"]), one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        let kind = ConvolutionKind::Depthwise { multiplier: self.depth_multiplier };
        operators_if(self, N == 2, self.sliding().lowering(kind, 1, self.use_bias, self.activation))
    }

    fn adapters(&self) -> Result<()> {
        Err(no_adapters(self.class_name()))
    }

    weights!("kernel" => "weight" as Depthwise, "bias" => "bias" or none);
}

pub(super) fn check_multiplier(class: &str, depth_multiplier: usize) -> Result<()> {
    match depth_multiplier {
        0 => Err(wrong(class, "depth_multiplier of at least 1", 0)),
        _ => Ok(()),
    }
}

/// Kernel of a depthwise convolution.
pub(super) struct DepthwiseKernel<'a> {
    pub(super) name: &'a str,
    /// Output channels per input channel.
    pub(super) multiplier: usize,
    pub(super) initializer: &'a Initializer,
    pub(super) rules: WeightRules,
}

impl DepthwiseKernel<'_> {
    /// Applies it: `x: T[B, …, C] → T[B, …', C · multiplier]`, with a kernel `f32[…, C, multiplier]`.
    pub(super) fn convolve(self, cx: &mut Cx, sliding: &SlidingWindow, x: &Tensor) -> Result<Tensor> {
        let channels = channels_of(sliding.class, x)?;
        let padding = sliding.padding_for(x)?;
        let shape = [sliding.size.as_slice(), &[channels, self.multiplier]].concat();
        let kernel = ruled_weight(cx, sliding.class, self.name, &shape, self.initializer, self.rules)?;
        let grouped = [sliding.size.as_slice(), &[1, channels * self.multiplier]].concat();
        let kernel = kernel.reshape(grouped);
        Ok(sliding.convolve(&cast(cx, x), &kernel, &padding, channels))
    }
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S', C · depth_multiplier]`: depthwise 1D convolution. Arguments: [`DepthwiseConv1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::depthwise_conv1d, Model};
    /// let layer = depthwise_conv1d(3).padding("same");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [100, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn depthwise_conv1d(kernel_size: usize) =
        DepthwiseConv1D { kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H', W', C · depth_multiplier]`: depthwise 2D convolution. Arguments: [`DepthwiseConv2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::depthwise_conv2d, Model};
    /// let layer = depthwise_conv2d(3).padding("same");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn depthwise_conv2d(kernel_size: impl Into<Sizes<2>>) =
        DepthwiseConv2D { kernel_size: kernel_size.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// Initializer of the depthwise kernel of a depthwise or separable convolution.
    depthwise_initializer: impl Into<Value> as Value;
    /// Penalty on the depthwise kernel of a depthwise or separable convolution.
    depthwise_regularizer: impl Into<Value> as Value;
    /// Constraint on the depthwise kernel, applied after each step.
    depthwise_constraint: impl Into<Value> as Value;
    /// Output channels per input channel of a depthwise convolution.
    depth_multiplier: usize as usize;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(depthwise_conv1d(3).depth_multiplier(2), SEQUENCE, &[2, 5, 8], BOTH, FLAT),
        LayerSample::new(depthwise_conv2d((3, 3)).depth_multiplier(2), IMAGE, &[2, 4, 3, 6], BOTH, FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "depthwise_conv1d", "class": "DepthwiseConv1D", "x_shape": [2, 6, 3], "kwargs": {"kernel_size": 3}},
    {"name": "depthwise_conv1d_same_s2", "class": "DepthwiseConv1D", "x_shape": [2, 6, 3], "kwargs": {"kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2}}
]"#;
