//! Conv1DTranspose, Conv2DTranspose and Conv3DTranspose layers: transposed convolution (deconvolution).

use crate::layer::activation::Activation;
use crate::layer::argument::listed;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::regularized_weight::{check_rules, finished, ruled_weight};
use crate::layers::sample::*;
use crate::layers::sliding_window::{SlidingWindow, check_some_place};
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};
use systole_ir::op::{ConvDims, Convolution};

arguments! {
    /// `x: T[B, …, C] → T[B, …', filters]`: transposed convolution (deconvolution) over `N` spatial dimensions, the
    /// gradient of a convolution.
    ///
    /// ```
    /// use systole_nn::layers::conv2d_transpose;
    /// assert!(conv2d_transpose(64, (4, 4)).strides(2).padding("same").use_bias(false).check().is_ok());
    /// let e = conv2d_transpose(64, 4).output_padding(1).check().unwrap_err().to_string();
    /// assert!(e.contains("output_padding below its strides"), "{e}");
    /// ```
    pub struct ConvTranspose<const N: usize> {
        /// Number of output channels. Required.
        pub filters: usize = 0,
        /// Size of the kernel along each spatial dimension. Required.
        pub kernel_size: Sizes<N> = Sizes([0; N]),
        /// Upsampling factor along each spatial dimension; 1 each by default.
        pub strides: Sizes<N> = Sizes([1; N]),
        /// Padding mode: "same" crops the output to `stride · n`, "valid" does not. Default: "valid".
        pub padding: Padding = Padding::Valid,
        /// Size added at the end of the output, less than the strides. Default: as needed for the usual output size.
        pub output_padding: Option<Sizes<N>> = None,
        /// Dilation of the kernel, which must be 1 if strides are above 1; 1 each by default.
        pub dilation_rate: Sizes<N> = Sizes([1; N]),
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

/// `x: T[B, S, C] → T[B, S', filters]`: transposed 1D convolution. Output sizes as in [`Conv2DTranspose`].
///
/// Weights: `kernel: f32[k, filters, C]`, `bias: f32[filters]`.
pub type Conv1DTranspose = ConvTranspose<1>;

/// `x: T[B, H, W, C] → T[B, H', W', filters]`: transposed 2D convolution (deconvolution).
///
/// With `padding` "same", `H' = H · stride`; with "valid", `(H − 1) · stride + max(kh, stride)`. With `output_padding`
/// `(H − 1) · stride + kh % 2 + output_padding` or `(H − 1) · stride + kh + output_padding`, where `kh` includes the
/// dilation. Weights: `kernel: f32[kh, kw, filters, C]`, `bias: f32[filters]`. Source: Zeiler et al. 2010; sizes as in
/// Keras.
pub type Conv2DTranspose = ConvTranspose<2>;

/// `x: T[B, D, H, W, C] → T[B, D', H', W', filters]`: transposed 3D convolution. Output sizes as in
/// [`Conv2DTranspose`].
///
/// Weights: `kernel: f32[kd, kh, kw, filters, C]`, `bias: f32[filters]`.
pub type Conv3DTranspose = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    fn stamps(&self) -> TransposedWindow {
        let class = self.class_name();
        TransposedWindow {
            window: SlidingWindow::of_kernel(
                class,
                self.kernel_size,
                self.strides,
                self.dilation_rate,
                self.padding,
            ),
            output_padding: self.output_padding.map(|sizes| sizes.0.to_vec()),
        }
    }
}

impl<const N: usize> Arguments for ConvTranspose<N> {
    fn check(&self) -> Result<()> {
        let class = self.class_name();
        check_rules(class, [self.kernel_regularizer, self.bias_regularizer, self.activity_regularizer])?;
        check_filters(class, self.filters)?;
        self.stamps().check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let class = self.class_name();
        check_some_place(class, N, x)?;
        let shape = [&self.kernel_size.0[..], &[self.filters, channels_of(class, x)?]].concat();
        let rules = (self.kernel_regularizer, self.kernel_constraint);
        let kernel = ruled_weight(cx, class, "kernel", &shape, &self.kernel_initializer, rules)?;
        let y = self.stamps().convolve(&cast(cx, x), &kernel)?;
        let rules = (self.bias_regularizer, self.bias_constraint);
        let bias = self.use_bias.then_some((&self.bias_initializer, rules));
        finished(cx, class, y, bias, (self.activation, self.activity_regularizer))
    }
}

impl<const N: usize> Layer for ConvTranspose<N> {
    named!(by_rank::<N, 3>(["Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"]), one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        let kind = ConvolutionKind::Transposed { has_output_padding: self.output_padding.is_some() };
        operators_if(self, N == 2, self.stamps().window.lowering(kind, 1, self.use_bias, self.activation))
    }

    weights!("kernel" => "weight" as Convolution, "bias" => "bias" or none);
}

/// Window, strides and output padding of a transposed convolution.
struct TransposedWindow {
    window: SlidingWindow,
    output_padding: Option<Vec<usize>>,
}

impl TransposedWindow {
    fn check(&self) -> Result<()> {
        self.window.check()?;
        let SlidingWindow { class, strides, dilation, .. } = &self.window;
        if strides.iter().any(|s| *s > 1) && dilation.iter().any(|d| *d > 1) {
            return Err(wrong(class, "strides of 1 with a dilation_rate above 1", listed(strides)));
        }
        match &self.output_padding {
            Some(own) if own.iter().zip(strides).any(|(o, s)| o >= s) => Err(wrong(
                class,
                &format!("output_padding below its strides {}", listed(strides)),
                listed(own),
            )),
            _ => Ok(()),
        }
    }

    /// `x: T[B, …, C], kernel: T[…, filters, C] → T[B, …', filters]`: a convolution of the dilated input with the
    /// reversed kernel.
    fn convolve(&self, x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let window = &self.window;
        let n = window.size.len();
        let op = Convolution {
            strides: vec![1; n].into(),
            padding: (0..n).map(|i| self.padding_along(i)).collect::<Result<Vec<_>>>()?,
            lhs_dilation: window.strides.clone().into(),
            rhs_dilation: window.dilation.clone().into(),
            reversal: vec![false; n],
            dims: ConvDims {
                kernel_input_feature: n + 1,
                kernel_output_feature: n,
                ..ConvDims::channels_last(n)
            },
            feature_groups: 1,
            batch_groups: 1,
            element_type: x.dtype(),
        };
        Ok(x.convolution(&kernel.reverse(&(0..n).collect::<Vec<_>>()), op))
    }

    /// Padding before and after the dilated input along a dimension.
    fn padding_along(&self, i: usize) -> Result<[i64; 2]> {
        let (stride, reach) = (self.window.strides[i], self.window.reach(i));
        let own = self.output_padding.as_ref().map(|o| o[i]);
        let [low, high] = match self.window.padding {
            Padding::Valid => [reach - 1, reach - 1 + own.unwrap_or(reach.max(stride) - reach)],
            _ => {
                let all = own.map_or(stride + reach - 2, |o| reach + reach % 2 + o - 2);
                let low = all.div_ceil(2).min(reach - 1);
                [low, all - low]
            }
        };
        let too_far = |_| wrong(self.window.class, "sizes that do not overflow", stride);
        Ok([i64::try_from(low).map_err(too_far)?, i64::try_from(high).map_err(too_far)?])
    }
}

constructors!(LayerSpec:
    /// `x: T[B, S, C] → T[B, S', filters]`: transposed 1D convolution. Arguments: [`Conv1DTranspose`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv1d_transpose, Model};
    /// let layer = conv1d_transpose(8, 4).strides(2).padding("same");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 3])])?;
    /// assert_eq!(output.shape.dims(), [32, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv1d_transpose(filters: usize, kernel_size: usize) =
        Conv1DTranspose { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H', W', filters]`: transposed 2D convolution. Arguments: [`Conv2DTranspose`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv2d_transpose, Model};
    /// let layer = conv2d_transpose(8, 4).strides(2).padding("same");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [7, 7, 64])])?;
    /// assert_eq!(output.shape.dims(), [14, 14, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv2d_transpose(filters: usize, kernel_size: impl Into<Sizes<2>>) =
        Conv2DTranspose { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, D, H, W, C] → T[B, D', H', W', filters]`: transposed 3D convolution. Arguments: [`Conv3DTranspose`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv3d_transpose, Model};
    /// let layer = conv3d_transpose(8, 2).strides(2);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [4, 4, 4, 6])])?;
    /// assert_eq!(output.shape.dims(), [8, 8, 8, 8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv3d_transpose(filters: usize, kernel_size: impl Into<Sizes<3>>) =
        Conv3DTranspose { filters, kernel_size: kernel_size.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// Size that a transposed convolution adds at the end of the output.
    output_padding: impl Into<SizeArgument> as SizeArgument;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(conv1d_transpose(4, 3).strides(2), &[2, 5, 3], &[2, 11, 4], BOTH, FLAT),
        LayerSample::new(
            conv2d_transpose(4, 4).strides(2).padding("same"),
            IMAGE,
            &[2, 12, 10, 4],
            BOTH,
            FLAT,
        ),
        LayerSample::new(
            conv2d_transpose(4, (3, 2)).strides((2, 3)).output_padding(1),
            IMAGE,
            &[2, 14, 15, 4],
            BOTH,
            Some(&[2, 0, 5, 3]),
        ),
        LayerSample::new(conv3d_transpose(2, 2).use_bias(false), VOLUME, &[2, 4, 5, 4, 2], &["kernel"], FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "conv2d_transpose_valid", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 4, "kernel_size": 3}},
    {"name": "conv2d_transpose_valid_s2", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2}},
    {"name": "conv2d_transpose_valid_s3_k2", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 2, "strides": 3}},
    {"name": "conv2d_transpose_same", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 3, "padding": "same"}},
    {"name": "conv2d_transpose_same_s2", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 4, "strides": 2, "padding": "same"}},
    {"name": "conv2d_transpose_same_s2_odd", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": [3, 5], "strides": 2, "padding": "same", "activation": "relu"}},
    {"name": "conv2d_transpose_same_s3_k2", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 2, "strides": 3, "padding": "same"}},
    {"name": "conv2d_transpose_same_output", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same", "output_padding": [0, 1]}},
    {"name": "conv2d_transpose_valid_output", "class": "Conv2DTranspose", "x_shape": [2, 4, 3, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": [2, 1], "output_padding": [1, 0], "use_bias": false}},
    {"name": "conv1d_transpose_valid_s2", "class": "Conv1DTranspose", "x_shape": [2, 5, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2}},
    {"name": "conv1d_transpose_same_s2", "class": "Conv1DTranspose", "x_shape": [2, 5, 3], "kwargs": {"filters": 2, "kernel_size": 4, "strides": 2, "padding": "same"}},
    {"name": "conv3d_transpose_valid", "class": "Conv3DTranspose", "x_shape": [1, 2, 3, 2, 2], "kwargs": {"filters": 2, "kernel_size": 2, "strides": 2}},
    {"name": "conv3d_transpose_same", "class": "Conv3DTranspose", "x_shape": [1, 2, 3, 2, 2], "kwargs": {"filters": 2, "kernel_size": [2, 3, 3], "strides": [1, 2, 1], "padding": "same"}}
]"#;
