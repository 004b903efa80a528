//! Separable convolutions: each channel convolved on its own, then mixed place by place; and the first half alone over
//! sequences.

use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::ruled::{check_rules, penalize_output, ruled_weight};
use crate::layers::sample::*;
use crate::layers::sliding::{Sliding, check_places};
use crate::layers::spec::LayerSpec;
use crate::setters::setters;

macro_rules! separable {
    ($($(#[$doc:meta])* $class:ident { $rank:literal })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $class {
            /// Number of output channels. Required.
            pub filters: usize,
            /// Size of the window along each dimension of places. Required.
            pub kernel_size: Sizes<$rank>,
            /// Steps of the window; 1 each unless given.
            pub strides: Sizes<$rank>,
            /// What happens at the border. Default: "valid".
            pub padding: Padding,
            /// Distance between the window's elements; 1 each unless given.
            pub dilation_rate: Sizes<$rank>,
            /// Channels in between for each input channel. Default: 1.
            pub depth_multiplier: usize,
            /// Applied at the end. Default: linear.
            #[serde(deserialize_with = "argument::activation")]
            pub activation: Activation,
            /// Whether a bias is added. Default: true.
            pub use_bias: bool,
            /// How the kernel of single channels starts. Default: `glorot_uniform`.
            #[serde(deserialize_with = "argument::named")]
            pub depthwise_initializer: Initializer,
            /// How the kernel that mixes channels starts. Default: `glorot_uniform`.
            #[serde(deserialize_with = "argument::named")]
            pub pointwise_initializer: Initializer,
            /// How the bias starts. Default: `zeros`.
            #[serde(deserialize_with = "argument::named")]
            pub bias_initializer: Initializer,
            /// Penalty on the kernel of single channels, which is added to the loss. Default: none.
            pub depthwise_regularizer: Option<Regularizer>,
            /// Penalty on the kernel that mixes channels, which is added to the loss. Default: none.
            pub pointwise_regularizer: Option<Regularizer>,
            /// Penalty on the bias, which is added to the loss. Default: none.
            pub bias_regularizer: Option<Regularizer>,
            /// Penalty on the output. Default: none.
            pub activity_regularizer: Option<Regularizer>,
            /// Where the kernel of single channels is brought back to after each step. Default: as it is.
            #[serde(deserialize_with = "argument::optional")]
            pub depthwise_constraint: Option<Constraint>,
            /// Where the kernel that mixes channels is brought back to after each step. Default: as it is.
            #[serde(deserialize_with = "argument::optional")]
            pub pointwise_constraint: Option<Constraint>,
            /// Where the bias is brought back to after each step. Default: as it is.
            #[serde(deserialize_with = "argument::optional")]
            pub bias_constraint: Option<Constraint>,
        }

        impl Default for $class {
            fn default() -> $class {
                $class {
                    filters: 0,
                    kernel_size: Sizes([0; $rank]),
                    strides: Sizes([1; $rank]),
                    padding: Padding::Valid,
                    dilation_rate: Sizes([1; $rank]),
                    depth_multiplier: 1,
                    activation: Activation::Linear,
                    use_bias: true,
                    depthwise_initializer: Initializer::GlorotUniform,
                    pointwise_initializer: Initializer::GlorotUniform,
                    bias_initializer: Initializer::Zeros,
                    depthwise_regularizer: None,
                    pointwise_regularizer: None,
                    bias_regularizer: None,
                    activity_regularizer: None,
                    depthwise_constraint: None,
                    pointwise_constraint: None,
                    bias_constraint: None,
                }
            }
        }

        impl $class {
            fn sliding(&self) -> Sliding {
                Sliding {
                    class: stringify!($class),
                    argument: "kernel_size",
                    size: self.kernel_size.0.to_vec(),
                    strides: self.strides.0.to_vec(),
                    dilation: self.dilation_rate.0.to_vec(),
                    padding: self.padding,
                }
            }
        }

        impl Arguments for $class {
            fn check(&self) -> Result<()> {
                let own = [self.depthwise_regularizer, self.pointwise_regularizer, self.bias_regularizer];
                check_rules(stringify!($class), own)?;
                check_rules(stringify!($class), [self.activity_regularizer, None, None])?;
                if self.filters == 0 {
                    return Err(wrong(stringify!($class), "filters of at least 1", self.filters));
                }
                check_multiplier(stringify!($class), self.depth_multiplier)?;
                self.sliding().check()
            }

            fn parity() -> &'static str {
                if $rank == 2 { PARITY } else { "[]" }
            }
        }

        impl Layer for $class {
            fn class_name(&self) -> &'static str {
                stringify!($class)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                one_input(self, cx, inputs, |cx, x| {
                    let sliding = self.sliding();
                    let (class, filters) = (sliding.class, self.filters);
                    check_places(class, $rank, x)?;
                    let own = Depthwise {
                        name: "depthwise_kernel",
                        multiplier: self.depth_multiplier,
                        initializer: &self.depthwise_initializer,
                        rule: (self.depthwise_regularizer, self.depthwise_constraint),
                    };
                    let parts = depthwise(cx, &sliding, x, own)?;
                    let parts = cx.rounded_parts(parts);
                    let mixed = parts.dim(-1);
                    let shape = [[1; $rank].as_slice(), &[mixed, filters]].concat();
                    let rule = (self.pointwise_regularizer, self.pointwise_constraint);
                    let start = &self.pointwise_initializer;
                    let kernel = ruled_weight(cx, class, "pointwise_kernel", &shape, start, rule)?;
                    let mut y = parts.dot(&kernel.reshape([mixed, filters]));
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
                if $rank != 2 {
                    return Err(no_operators(self.class_name()));
                }
                Ok(Lowering::Convolution(Convolution {
                    kind: ConvolutionKind::Separable,
                    strides: self.strides.0.to_vec(),
                    dilation: self.dilation_rate.0.to_vec(),
                    padding: self.padding,
                    groups: 1,
                    use_bias: self.use_bias,
                    activation: self.activation,
                }))
            }
        }
    )* };
}

separable!(
    /// `x: T[B, S, C] → T[B, S', filters]`: each channel convolved on its own, then all mixed at each step.
    ///
    /// Weights: `depthwise_kernel: f32[k, C, depth_multiplier]`, `pointwise_kernel: f32[1, C · depth_multiplier, filters]`,
    /// `bias: f32[filters]`.
    SeparableConv1D { 1 }
    /// `x: T[B, H, W, C] → T[B, H', W', filters]`: each channel convolved on its own, then all mixed at each pixel.
    ///
    /// Weights: `depthwise_kernel: f32[kh, kw, C, depth_multiplier]`,
    /// `pointwise_kernel: f32[1, 1, C · depth_multiplier, filters]`, `bias: f32[filters]`. Source: Chollet 2017.
    SeparableConv2D { 2 }
);

/// `x: T[B, S, C] → T[B, S', C · depth_multiplier]`: each channel of a sequence convolved on its own.
///
/// Output channel `c · depth_multiplier + m` is input channel `c` under its kernel `m`.
/// Weights: `kernel: f32[k, C, depth_multiplier]`, `bias: f32[C · depth_multiplier]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DepthwiseConv1D {
    /// Size of the window. Required.
    pub kernel_size: Sizes<1>,
    /// Steps of the window. Default: 1.
    pub strides: Sizes<1>,
    /// What happens at the border. Default: "valid".
    pub padding: Padding,
    /// Output channels for each input channel. Default: 1.
    pub depth_multiplier: usize,
    /// Distance between the window's elements. Default: 1.
    pub dilation_rate: Sizes<1>,
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

impl Default for DepthwiseConv1D {
    fn default() -> DepthwiseConv1D {
        DepthwiseConv1D {
            kernel_size: Sizes([0]),
            strides: Sizes([1]),
            padding: Padding::Valid,
            depth_multiplier: 1,
            dilation_rate: Sizes([1]),
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

impl DepthwiseConv1D {
    fn sliding(&self) -> Sliding {
        Sliding {
            class: "DepthwiseConv1D",
            argument: "kernel_size",
            size: self.kernel_size.0.to_vec(),
            strides: self.strides.0.to_vec(),
            dilation: self.dilation_rate.0.to_vec(),
            padding: self.padding,
        }
    }
}

impl Arguments for DepthwiseConv1D {
    fn check(&self) -> Result<()> {
        let rules = [self.depthwise_regularizer, self.bias_regularizer, self.activity_regularizer];
        check_rules("DepthwiseConv1D", rules)?;
        check_multiplier("DepthwiseConv1D", self.depth_multiplier)?;
        self.sliding().check()
    }
}

impl Layer for DepthwiseConv1D {
    fn class_name(&self) -> &'static str {
        "DepthwiseConv1D"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            check_places("DepthwiseConv1D", 1, x)?;
            let own = Depthwise {
                name: "kernel",
                multiplier: self.depth_multiplier,
                initializer: &self.depthwise_initializer,
                rule: (self.depthwise_regularizer, self.depthwise_constraint),
            };
            let mut y = depthwise(cx, &self.sliding(), x, own)?;
            if self.use_bias {
                let (shape, rule) = ([y.dim(-1)], (self.bias_regularizer, self.bias_constraint));
                y = y + ruled_weight(cx, "DepthwiseConv1D", "bias", &shape, &self.bias_initializer, rule)?;
            }
            let y = cx.activate(self.activation, &y);
            penalize_output(cx, self.activity_regularizer, &y);
            Ok(y)
        })
    }

    fn config(&self) -> Value {
        config_of(self)
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

fn check_multiplier(class: &str, depth_multiplier: usize) -> Result<()> {
    match depth_multiplier {
        0 => Err(wrong(class, "depth_multiplier of at least 1", 0)),
        _ => Ok(()),
    }
}

/// The kernel of single channels: its name, how many channels it makes of each, how it starts, what is added to the loss for it and
/// where it is brought back to.
struct Depthwise<'a> {
    name: &'a str,
    multiplier: usize,
    initializer: &'a Initializer,
    rule: (Option<Regularizer>, Option<Constraint>),
}

/// `x: T[B, …, C] → T[B, …', C · multiplier]`, by a kernel `f32[…, C, multiplier]`.
fn depthwise(cx: &mut Cx, sliding: &Sliding, x: &Tensor, own: Depthwise<'_>) -> Result<Tensor> {
    let Depthwise { name, multiplier, initializer, rule } = own;
    let channels = channels_of(sliding.class, x)?;
    let padding = sliding.padding_for(x)?;
    let shape = [sliding.size.as_slice(), &[channels, multiplier]].concat();
    let kernel = ruled_weight(cx, sliding.class, name, &shape, initializer, rule)?;
    let grouped = [sliding.size.as_slice(), &[1, channels * multiplier]].concat();
    Ok(sliding.convolve(&cast(cx, x), &kernel.reshape(grouped), &padding, channels))
}

/// `x: T[B, S, C] → T[B, S', filters]`: filters of single channels, then a mixture of all. Arguments:
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
#[track_caller]
pub fn separable_conv1d(filters: usize, kernel_size: usize) -> LayerSpec {
    LayerSpec::of(SeparableConv1D { filters, kernel_size: kernel_size.into(), ..Default::default() })
}

/// `x: T[B, H, W, C] → T[B, H', W', filters]`: filters of single channels, then a mixture of all.
/// Arguments: [`SeparableConv2D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::separable_conv2d, Model};
/// let layer = separable_conv2d(64, 3).padding("same").activation("relu");
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
/// assert_eq!(output.shape.dims(), [28, 28, 64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn separable_conv2d(filters: usize, kernel_size: impl Into<Sizes<2>>) -> LayerSpec {
    LayerSpec::of(SeparableConv2D { filters, kernel_size: kernel_size.into(), ..Default::default() })
}

/// `x: T[B, S, C] → T[B, S', C · depth_multiplier]`: filters that slide over each channel of a sequence on
/// its own. Arguments: [`DepthwiseConv1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::depthwise_conv1d, Model};
/// let layer = depthwise_conv1d(3).padding("same");
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [100, 8]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn depthwise_conv1d(kernel_size: usize) -> LayerSpec {
    LayerSpec::of(DepthwiseConv1D { kernel_size: kernel_size.into(), ..Default::default() })
}

setters!(LayerSpec:
    /// How the kernel of a separable convolution that mixes channels starts.
    pointwise_initializer: impl Into<Value> as Value;
    /// Penalty on the kernel of a separable convolution that mixes channels.
    pointwise_regularizer: impl Into<Value> as Value;
    /// Where the kernel that mixes channels is brought back to after each step.
    pointwise_constraint: impl Into<Value> as Value;
);

const PARTS: &[&str] = &["depthwise_kernel", "pointwise_kernel", "bias"];

/// Layers with inputs that they take and refuse.
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
        LayerSample::new(depthwise_conv1d(3).depth_multiplier(2), SEQUENCE, &[2, 5, 8], BOTH, FLAT),
    ]
}

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
const PARITY: &str = r#"[
    {"name": "separable_conv2d", "class": "SeparableConv2D", "x_shape": [2, 5, 4, 3], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "separable_conv2d_same_s2", "class": "SeparableConv2D", "x_shape": [2, 5, 4, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2, "activation": "relu"}},
    {"name": "separable_conv2d_dilated", "class": "SeparableConv2D", "x_shape": [2, 5, 6, 2], "kwargs": {"filters": 2, "kernel_size": 2, "dilation_rate": 2, "use_bias": false}},
    {"name": "separable_conv1d", "class": "SeparableConv1D", "x_shape": [2, 6, 3], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "separable_conv1d_same_s2", "class": "SeparableConv1D", "x_shape": [2, 6, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2}},
    {"name": "depthwise_conv1d", "class": "DepthwiseConv1D", "x_shape": [2, 6, 3], "kwargs": {"kernel_size": 3}},
    {"name": "depthwise_conv1d_same_s2", "class": "DepthwiseConv1D", "x_shape": [2, 6, 3], "kwargs": {"kernel_size": 3, "strides": 2, "padding": "same", "depth_multiplier": 2}}
]"#;
