//! Conv1D, Conv2D and Conv3D layers, channels last.

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
    /// `x: T[B, …, C] → T[B, …', filters]`: convolution over `N` spatial dimensions.
    ///
    /// ```
    /// use systole_nn::layers::{conv1d, conv2d};
    /// assert!(conv2d(64, (3, 3)).strides(2).padding("same").use_bias(false).check().is_ok());
    /// assert!(conv1d(64, 3).padding("causal").dilation_rate(2).check().is_ok());
    /// ```
    pub struct Conv<const N: usize> {
        /// Number of output channels. Required.
        pub filters: usize = 0,
        /// Size of the window along each spatial dimension. Required.
        pub kernel_size: Sizes<N> = Sizes([0; N]),
        /// Strides of the window; 1 each by default.
        pub strides: Sizes<N> = Sizes([1; N]),
        /// Padding mode: "valid", "same" or, for Conv1D, "causal" (no step sees a later one). Default: "valid".
        pub padding: Padding = Padding::Valid,
        /// Dilation of the window; 1 each by default.
        pub dilation_rate: Sizes<N> = Sizes([1; N]),
        /// Number of channel groups that are convolved separately. Default: 1.
        pub groups: usize = 1,
        /// Activation of the output. Default: linear.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Linear,
        /// Whether a bias is added. Default: true.
        pub use_bias: bool = true,
        /// Initializer of the kernel. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the bias. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
        /// Penalty on the kernel, added to the loss. Default: none.
        pub kernel_regularizer: Option<Regularizer> = None,
        /// Penalty on the bias. Default: none.
        pub bias_regularizer: Option<Regularizer> = None,
        /// Penalty on the output. Default: none.
        pub activity_regularizer: Option<Regularizer> = None,
        /// Constraint on the kernel, applied after each step. Default: none.
        pub kernel_constraint: Option<Constraint> = None,
        /// Constraint on the bias, applied after each step. Default: none.
        pub bias_constraint: Option<Constraint> = None,
    }
}

/// `x: T[B, S, C] → T[B, S', filters]`: 1D convolution over sequences.
///
/// With `padding` "valid", `S' = ⌊(S − (k − 1)·dilation − 1) / stride⌋ + 1`; with "same" and "causal", `⌈S / stride⌉`.
/// Weights: `kernel: f32[k, C / groups, filters]`, `bias: f32[filters]`.
pub type Conv1D = Conv<1>;

/// `x: T[B, H, W, C] → T[B, H', W', filters]`: 2D convolution over images.
///
/// With `padding` "valid", `H' = ⌊(H − (kh − 1)·dilation − 1) / stride⌋ + 1`; with "same", `⌈H / stride⌉`. Weights:
/// `kernel: f32[kh, kw, C / groups, filters]`, `bias: f32[filters]`.
pub type Conv2D = Conv<2>;

/// `x: T[B, D, H, W, C] → T[B, D', H', W', filters]`: 3D convolution over volumes.
///
/// With `padding` "valid", `D' = ⌊(D − (kd − 1)·dilation − 1) / stride⌋ + 1`; with "same", `⌈D / stride⌉`. Weights:
/// `kernel: f32[kd, kh, kw, C / groups, filters]`, `bias: f32[filters]`.
pub type Conv3D = Conv<3>;

impl<const N: usize> Conv<N> {
    fn sliding(&self) -> SlidingWindow {
        let class = self.class_name();
        let sliding =
            SlidingWindow::of_kernel(class, self.kernel_size, self.strides, self.dilation_rate, self.padding);
        SlidingWindow { takes_causal: N == 1, ..sliding }
    }
}

impl<const N: usize> Arguments for Conv<N> {
    fn check(&self) -> Result<()> {
        let class = self.class_name();
        check_rules(class, [self.kernel_regularizer, self.bias_regularizer, self.activity_regularizer])?;
        check_filters(class, self.filters)?;
        if self.groups == 0 || !self.filters.is_multiple_of(self.groups) {
            let needs = format!("groups of at least 1 that divide its {} filters", self.filters);
            return Err(wrong(class, &needs, self.groups));
        }
        self.sliding().check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let (class, sliding) = (self.class_name(), self.sliding());
        check_places(class, N, x)?;
        let channels = channels_of(class, x)?;
        if !channels.is_multiple_of(self.groups) {
            let needs = format!("a number of channels divisible by {} groups", self.groups);
            return Err(unfit(class, &needs, x.ty())
                .hint("choose a number of groups that divides the number of channels"));
        }
        let padding = sliding.padding_for(x)?;
        let shape = [&self.kernel_size.0[..], &[channels / self.groups, self.filters]].concat();
        let rules = (self.kernel_regularizer, self.kernel_constraint);
        let kernel = ruled_weight(cx, class, "kernel", &shape, &self.kernel_initializer, rules)?;
        let y = sliding.convolve(&cast(cx, x), &kernel, &padding, self.groups);
        let rules = (self.bias_regularizer, self.bias_constraint);
        let bias = self.use_bias.then_some((&self.bias_initializer, rules));
        finished(cx, class, y, bias, (self.activation, self.activity_regularizer))
    }
}

impl<const N: usize> Layer for Conv<N> {
    named!(by_rank::<N, 3>(["Conv1D", "Conv2D", "Conv3D"]), one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        operators_if(
            self,
            N < 3,
            self.sliding().lowering(ConvolutionKind::Plain, self.groups, self.use_bias, self.activation),
        )
    }

    weights!("kernel" => "weight" as Convolution, "bias" => "bias" or none);
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S', filters]`: 1D convolution over sequences. Arguments: [`Conv1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv1d, Model};
    /// let layer = conv1d(64, 3).padding("same").activation("relu");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
    /// assert_eq!(output.shape.dims(), [100, 64]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv1d(filters: usize, kernel_size: usize) =
        Conv1D { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H', W', filters]`: 2D convolution over images. Arguments: [`Conv2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv2d, Model};
    /// let layer = conv2d(64, (3, 3)).padding("same").activation("relu");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 64]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv2d(filters: usize, kernel_size: impl Into<Sizes<2>>) =
        Conv2D { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, D, H, W, C] → T[B, D', H', W', filters]`: 3D convolution over volumes. Arguments: [`Conv3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv3d, Model};
    /// let layer = conv3d(16, (3, 3, 3));
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
    /// assert_eq!(output.shape.dims(), [6, 6, 6, 16]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv3d(filters: usize, kernel_size: impl Into<Sizes<3>>) =
        Conv3D { filters, kernel_size: kernel_size.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// Dilation rate of a convolution's kernel.
    dilation_rate: impl Into<SizeArgument> as SizeArgument;
    /// Groups of a convolution's channels or of GroupNormalization's features; for the latter, −1 makes one group per
    /// feature.
    groups: i64 as i64;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let causal = conv1d(4, 3).padding("causal").strides(2);
    let (dilated, strided) = (conv2d(6, 2).groups(3).dilation_rate(2), conv3d(4, 2).strides((1, 2, 2)));
    let plain = conv3d(2, (2, 3, 1)).use_bias(false);
    vec![
        LayerSample::new(conv1d(4, 3), SEQUENCE, &[2, 5, 4], BOTH, Some(&[2, 2, 4])),
        LayerSample::new(causal, SEQUENCE, &[2, 4, 4], BOTH, FLAT),
        LayerSample::new(conv1d(4, 2).groups(2), SEQUENCE, &[2, 6, 4], BOTH, Some(&[2, 7, 3])),
        LayerSample::new(conv2d(4, 3), IMAGE, &[2, 4, 3, 4], BOTH, FLAT),
        LayerSample::new(conv2d(4, (2, 3)).padding("same").strides((2, 1)), IMAGE, &[2, 3, 5, 4], BOTH, FLAT),
        LayerSample::new(dilated, IMAGE, &[2, 4, 3, 6], BOTH, Some(&[2, 6, 5, 4])),
        LayerSample::new(strided.padding("same"), VOLUME, &[2, 3, 2, 2, 4], BOTH, FLAT),
        LayerSample::new(plain, VOLUME, &[2, 2, 2, 3, 2], &["kernel"], Some(IMAGE)),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "conv1d_valid", "class": "Conv1D", "x_shape": [2, 7, 3], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "conv1d_same_s2", "class": "Conv1D", "x_shape": [2, 7, 3], "kwargs": {"filters": 2, "kernel_size": 4, "strides": 2, "padding": "same", "activation": "relu"}},
    {"name": "conv1d_causal", "class": "Conv1D", "x_shape": [2, 7, 3], "kwargs": {"filters": 2, "kernel_size": 3, "dilation_rate": 2, "padding": "causal"}},
    {"name": "conv1d_causal_s2", "class": "Conv1D", "x_shape": [2, 8, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "causal"}},
    {"name": "conv1d_groups", "class": "Conv1D", "x_shape": [2, 7, 4], "kwargs": {"filters": 4, "kernel_size": 3, "groups": 2, "use_bias": false}},
    {"name": "conv3d_valid", "class": "Conv3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"filters": 2, "kernel_size": [2, 3, 2]}},
    {"name": "conv3d_same_s2", "class": "Conv3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"filters": 2, "kernel_size": 2, "strides": 2, "padding": "same"}}
]"#;
