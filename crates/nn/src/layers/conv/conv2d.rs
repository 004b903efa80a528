//! Convolutions over images, channels last.

use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::ruled::{check_rules, penalize_output, ruled_weight};
use crate::layers::sample::*;
use crate::layers::sliding::{Sliding, check_images};
use crate::layers::spec::LayerSpec;
use crate::setters::setters;

/// `x: T[B, H, W, C] → T[B, H', W', filters]`: a learned weighted sum of each window's pixels.
///
/// With `padding` "valid", `H' = ⌊(H − (kh − 1)·dilation − 1) / stride⌋ + 1`; with "same", `⌈H / stride⌉`.
/// Weights: `kernel: f32[kh, kw, C / groups, filters]`, `bias: f32[filters]`.
///
/// ```
/// use systole_nn::layers::conv2d;
/// let c = conv2d(64, (3, 3)).strides(2).padding("same").use_bias(false);
/// assert!(c.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conv2D {
    /// Number of output channels. Required.
    pub filters: usize,
    /// Height and width of the window. Required.
    pub kernel_size: Pair,
    /// Steps of the window. Default: (1, 1).
    pub strides: Pair,
    /// What happens at the border. Default: "valid".
    pub padding: Padding,
    /// Distance between the window's elements. Default: (1, 1).
    pub dilation_rate: Pair,
    /// Groups of channels that do not see each other. Default: 1.
    pub groups: usize,
    /// Applied at the end. Default: linear.
    #[serde(deserialize_with = "argument::activation")]
    pub activation: Activation,
    /// Whether a bias is added. Default: true.
    pub use_bias: bool,
    /// How the kernel starts. Default: `glorot_uniform`.
    #[serde(deserialize_with = "argument::named")]
    pub kernel_initializer: Initializer,
    /// How the bias starts. Default: `zeros`.
    #[serde(deserialize_with = "argument::named")]
    pub bias_initializer: Initializer,
    /// Penalty on the kernel, which is added to the loss. Default: none.
    pub kernel_regularizer: Option<Regularizer>,
    /// Penalty on the bias. Default: none.
    pub bias_regularizer: Option<Regularizer>,
    /// Penalty on the output. Default: none.
    pub activity_regularizer: Option<Regularizer>,
    /// Where the kernel is brought back to after each step. Default: as it is.
    #[serde(deserialize_with = "argument::optional")]
    pub kernel_constraint: Option<Constraint>,
    /// Where the bias is brought back to after each step. Default: as it is.
    #[serde(deserialize_with = "argument::optional")]
    pub bias_constraint: Option<Constraint>,
}

impl Default for Conv2D {
    fn default() -> Conv2D {
        Conv2D {
            filters: 0,
            kernel_size: Pair(0, 0),
            strides: Pair(1, 1),
            padding: Padding::Valid,
            dilation_rate: Pair(1, 1),
            groups: 1,
            activation: Activation::Linear,
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform,
            bias_initializer: Initializer::Zeros,
            kernel_regularizer: None,
            bias_regularizer: None,
            activity_regularizer: None,
            kernel_constraint: None,
            bias_constraint: None,
        }
    }
}

impl Conv2D {
    fn sliding(&self) -> Sliding {
        Sliding {
            class: "Conv2D",
            argument: "kernel_size",
            size: self.kernel_size.dims().to_vec(),
            strides: self.strides.dims().to_vec(),
            dilation: self.dilation_rate.dims().to_vec(),
            padding: self.padding,
        }
    }
}

impl Arguments for Conv2D {
    fn check(&self) -> Result<()> {
        check_rules("Conv2D", [self.kernel_regularizer, self.bias_regularizer, self.activity_regularizer])?;
        if self.filters == 0 {
            return Err(wrong("Conv2D", "filters of at least 1", self.filters));
        }
        if self.groups == 0 || !self.filters.is_multiple_of(self.groups) {
            let needs = format!("groups of at least 1 that divide its {} filters", self.filters);
            return Err(wrong("Conv2D", &needs, self.groups));
        }
        self.sliding().check()
    }
}

impl Layer for Conv2D {
    fn class_name(&self) -> &'static str {
        "Conv2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_images("Conv2D", x)?;
            let channels = x.dim(3);
            if channels == 0 || !channels.is_multiple_of(self.groups) {
                let needs = format!("channels that {} groups divide", self.groups);
                return Err(unfit("Conv2D", &needs, x.ty()).hint("choose groups that divide the channels"));
            }
            let sliding = self.sliding();
            let padding = sliding.padding_for(x)?;
            let Pair(kh, kw) = self.kernel_size;
            let shape = [kh, kw, channels / self.groups, self.filters];
            let kernel = ruled_weight(
                cx,
                "Conv2D",
                "kernel",
                &shape,
                &self.kernel_initializer,
                (self.kernel_regularizer, self.kernel_constraint),
            )?;
            let mut y = sliding.convolve(&cast(cx, x), &kernel, &padding, self.groups);
            if self.use_bias {
                y = y + ruled_weight(
                    cx,
                    "Conv2D",
                    "bias",
                    &[self.filters],
                    &self.bias_initializer,
                    (self.bias_regularizer, self.bias_constraint),
                )?;
            }
            let y = cx.activate(self.activation, &y);
            penalize_output(cx, self.activity_regularizer, &y);
            Ok(y)
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        Ok(Lowering::Convolution(Convolution {
            kind: ConvolutionKind::Plain,
            strides: self.strides.dims().to_vec(),
            dilation: self.dilation_rate.dims().to_vec(),
            padding: self.padding,
            groups: self.groups,
            use_bias: self.use_bias,
            activation: self.activation,
        }))
    }

    fn weight_roles(&self) -> Vec<WeightRole> {
        vec![
            WeightRole::new("kernel", "weight", WeightLayout::Convolution),
            WeightRole::optional("bias", "bias"),
        ]
    }
}

/// `x: T[B, H, W, C] → T[B, H', W', C · depth_multiplier]`: each channel convolved on its own.
///
/// Output channel `c · depth_multiplier + m` is input channel `c` under its kernel `m`.
/// Weights: `kernel: f32[kh, kw, C, depth_multiplier]`, `bias: f32[C · depth_multiplier]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DepthwiseConv2D {
    /// Height and width of the window. Required.
    pub kernel_size: Pair,
    /// Steps of the window. Default: (1, 1).
    pub strides: Pair,
    /// What happens at the border. Default: "valid".
    pub padding: Padding,
    /// Output channels for each input channel. Default: 1.
    pub depth_multiplier: usize,
    /// Distance between the window's elements. Default: (1, 1).
    pub dilation_rate: Pair,
    /// Applied at the end. Default: linear.
    #[serde(deserialize_with = "argument::activation")]
    pub activation: Activation,
    /// Whether a bias is added. Default: true.
    pub use_bias: bool,
    /// How the kernel starts. Default: `glorot_uniform`.
    #[serde(deserialize_with = "argument::named")]
    pub depthwise_initializer: Initializer,
    /// How the bias starts. Default: `zeros`.
    #[serde(deserialize_with = "argument::named")]
    pub bias_initializer: Initializer,
    /// Penalty on the kernel of single channels, which is added to the loss. Default: none.
    pub depthwise_regularizer: Option<Regularizer>,
    /// Penalty on the bias, which is added to the loss. Default: none.
    pub bias_regularizer: Option<Regularizer>,
    /// Penalty on the output. Default: none.
    pub activity_regularizer: Option<Regularizer>,
    /// Where the kernel of single channels is brought back to after each step. Default: as it is.
    #[serde(deserialize_with = "argument::optional")]
    pub depthwise_constraint: Option<Constraint>,
    /// Where the bias is brought back to after each step. Default: as it is.
    #[serde(deserialize_with = "argument::optional")]
    pub bias_constraint: Option<Constraint>,
}

impl Default for DepthwiseConv2D {
    fn default() -> DepthwiseConv2D {
        DepthwiseConv2D {
            kernel_size: Pair(0, 0),
            strides: Pair(1, 1),
            padding: Padding::Valid,
            depth_multiplier: 1,
            dilation_rate: Pair(1, 1),
            activation: Activation::Linear,
            use_bias: true,
            depthwise_initializer: Initializer::GlorotUniform,
            bias_initializer: Initializer::Zeros,
            depthwise_regularizer: None,
            bias_regularizer: None,
            activity_regularizer: None,
            depthwise_constraint: None,
            bias_constraint: None,
        }
    }
}

impl DepthwiseConv2D {
    fn sliding(&self) -> Sliding {
        Sliding {
            class: "DepthwiseConv2D",
            argument: "kernel_size",
            size: self.kernel_size.dims().to_vec(),
            strides: self.strides.dims().to_vec(),
            dilation: self.dilation_rate.dims().to_vec(),
            padding: self.padding,
        }
    }
}

impl Arguments for DepthwiseConv2D {
    fn check(&self) -> Result<()> {
        let rules = [self.depthwise_regularizer, self.bias_regularizer, self.activity_regularizer];
        check_rules("DepthwiseConv2D", rules)?;
        if self.depth_multiplier == 0 {
            return Err(wrong("DepthwiseConv2D", "depth_multiplier of at least 1", self.depth_multiplier));
        }
        self.sliding().check()
    }
}

impl Layer for DepthwiseConv2D {
    fn class_name(&self) -> &'static str {
        "DepthwiseConv2D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_images("DepthwiseConv2D", x)?;
            let channels = x.dim(3);
            if channels == 0 {
                let hint = "look at the layers before it: one of them leaves no channels";
                return Err(unfit("DepthwiseConv2D", "at least one channel [B, H, W, C]", x.ty()).hint(hint));
            }
            let sliding = self.sliding();
            let padding = sliding.padding_for(x)?;
            let Pair(kh, kw) = self.kernel_size;
            let shape = [kh, kw, channels, self.depth_multiplier];
            let rule = (self.depthwise_regularizer, self.depthwise_constraint);
            let class = "DepthwiseConv2D";
            let kernel = ruled_weight(cx, class, "kernel", &shape, &self.depthwise_initializer, rule)?;
            let filters = channels * self.depth_multiplier;
            let kernel = kernel.reshape([kh, kw, 1, filters]);
            let mut y = sliding.convolve(&cast(cx, x), &kernel, &padding, channels);
            if self.use_bias {
                let rule = (self.bias_regularizer, self.bias_constraint);
                y = y + ruled_weight(cx, class, "bias", &[filters], &self.bias_initializer, rule)?;
            }
            let y = cx.activate(self.activation, &y);
            penalize_output(cx, self.activity_regularizer, &y);
            Ok(y)
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }

    fn lowering(&self) -> Result<Lowering> {
        Ok(Lowering::Convolution(Convolution {
            kind: ConvolutionKind::Depthwise { multiplier: self.depth_multiplier },
            strides: self.strides.dims().to_vec(),
            dilation: self.dilation_rate.dims().to_vec(),
            padding: self.padding,
            groups: 1,
            use_bias: self.use_bias,
            activation: self.activation,
        }))
    }

    fn adapters(&self) -> Result<()> {
        Err(no_adapters(self.class_name()))
    }

    fn weight_roles(&self) -> Vec<WeightRole> {
        vec![
            WeightRole::new("kernel", "weight", WeightLayout::Depthwise),
            WeightRole::optional("bias", "bias"),
        ]
    }
}

/// `x: T[B, H, W, C] → T[B, H', W', filters]`: learned filters that slide over pictures. Arguments: [`Conv2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::conv2d, Model};
/// let layer = conv2d(64, (3, 3)).padding("same").activation("relu");
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
/// assert_eq!(output.shape.dims(), [28, 28, 64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn conv2d(filters: usize, kernel_size: impl Into<Pair>) -> LayerSpec {
    LayerSpec::of(Conv2D { filters, kernel_size: kernel_size.into(), ..Default::default() })
}

/// `x: T[B, H, W, C] → T[B, H', W', C · depth_multiplier]`: filters that slide over each channel on its own.
/// Arguments: [`DepthwiseConv2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::depthwise_conv2d, Model};
/// let layer = depthwise_conv2d(3).padding("same");
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
/// assert_eq!(output.shape.dims(), [28, 28, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn depthwise_conv2d(kernel_size: impl Into<Pair>) -> LayerSpec {
    LayerSpec::of(DepthwiseConv2D { kernel_size: kernel_size.into(), ..Default::default() })
}

setters!(LayerSpec:
    /// How the kernel of single channels of a depthwise or separable convolution starts.
    depthwise_initializer: impl Into<Value> as Value;
    /// Penalty on the kernel of single channels of a depthwise or separable convolution.
    depthwise_regularizer: impl Into<Value> as Value;
    /// Where the kernel of single channels is brought back to after each step.
    depthwise_constraint: impl Into<Value> as Value;
    /// Distance between a kernel's elements.
    dilation_rate: impl Into<Each> as Each;
    /// Groups of a convolution's channels or a normalisation's features; of the latter −1 for one of each feature.
    groups: i64 as i64;
    /// Output channels of a depthwise convolution for each input channel.
    depth_multiplier: usize as usize;
);

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(conv2d(4, 3), IMAGE, &[2, 4, 3, 4], BOTH, FLAT),
        LayerSample::new(conv2d(4, (2, 3)).padding("same").strides((2, 1)), IMAGE, &[2, 3, 5, 4], BOTH, FLAT),
        LayerSample::new(
            conv2d(6, 2).groups(3).dilation_rate(2),
            IMAGE,
            &[2, 4, 3, 6],
            BOTH,
            Some(&[2, 6, 5, 4]),
        ),
        LayerSample::new(depthwise_conv2d((3, 3)).depth_multiplier(2), IMAGE, &[2, 4, 3, 6], BOTH, FLAT),
    ]
}
