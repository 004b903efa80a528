//! Convolutions over sequences and volumes, channels last; those over images are in `conv.rs`.

use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::ruled::{check_rules, penalize_output, ruled_weight};
use crate::layers::sample::*;
use crate::layers::sliding::{Sliding, check_places};
use crate::layers::spec::LayerSpec;

macro_rules! convolutions {
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
            /// What happens at the border; of Conv1D "causal", too: no step sees a later one. Default: "valid".
            pub padding: Padding,
            /// Distance between the window's elements; 1 each unless given.
            pub dilation_rate: Sizes<$rank>,
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

        impl Default for $class {
            fn default() -> $class {
                $class {
                    filters: 0,
                    kernel_size: Sizes([0; $rank]),
                    strides: Sizes([1; $rank]),
                    padding: Padding::Valid,
                    dilation_rate: Sizes([1; $rank]),
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
check_rules(stringify!($class), [self.kernel_regularizer, self.bias_regularizer, self.activity_regularizer])?;
                if self.filters == 0 {
                    return Err(wrong(stringify!($class), "filters of at least 1", self.filters));
                }
                if self.groups == 0 || !self.filters.is_multiple_of(self.groups) {
                    let needs = format!("groups of at least 1 that divide its {} filters", self.filters);
                    return Err(wrong(stringify!($class), &needs, self.groups));
                }
                self.sliding().check()
            }

            fn parity() -> &'static str {
                if $rank == 1 { PARITY } else { "[]" }
            }
        }

        impl Layer for $class {
            fn class_name(&self) -> &'static str {
                stringify!($class)
            }

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                one_input(self, cx, inputs, |cx, x| {
                    let sliding = self.sliding();
                    let class = sliding.class;
                    check_places(class, $rank, x)?;
                    let channels = channels_of(class, x)?;
                    if !channels.is_multiple_of(self.groups) {
                        let needs = format!("channels that {} groups divide", self.groups);
                        return Err(unfit(class, &needs, x.ty()).hint("choose groups that divide the channels"));
                    }
                    let padding = sliding.padding_for(x)?;
                    let shape =
                        [self.kernel_size.0.as_slice(), &[channels / self.groups, self.filters]].concat();
                    let kernel = ruled_weight(cx, class, "kernel", &shape, &self.kernel_initializer, (self.kernel_regularizer, self.kernel_constraint))?;
                    let mut y = sliding.convolve(&cast(cx, x), &kernel, &padding, self.groups);
                    if self.use_bias {
                        y = y + ruled_weight(cx, class, "bias", &[self.filters], &self.bias_initializer, (self.bias_regularizer, self.bias_constraint))?;
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
                if $rank != 1 {
                    return Err(no_operators(self.class_name()));
                }
                Ok(Lowering::Convolution(Convolution {
                    kind: ConvolutionKind::Plain,
                    strides: self.strides.0.to_vec(),
                    dilation: self.dilation_rate.0.to_vec(),
                    padding: self.padding,
                    groups: self.groups,
                    use_bias: self.use_bias,
                    activation: self.activation,
                }))
            }

            fn weight_roles(&self) -> Vec<WeightRole> {
                vec![WeightRole::new("kernel", "weight", WeightLayout::Convolution), WeightRole::optional("bias", "bias")]
            }
        }
    )* };
}

convolutions!(
    /// `x: T[B, S, C] → T[B, S', filters]`: a learned weighted sum of each window's steps.
    ///
    /// With `padding` "valid", `S' = ⌊(S − (k − 1)·dilation − 1) / stride⌋ + 1`; with "same" and "causal", `⌈S / stride⌉`.
    /// Weights: `kernel: f32[k, C / groups, filters]`, `bias: f32[filters]`.
    ///
    /// ```
    /// use systole_nn::layers::conv1d;
    /// assert!(conv1d(64, 3).padding("causal").dilation_rate(2).check().is_ok());
    /// ```
    Conv1D { 1 }
    /// `x: T[B, D, H, W, C] → T[B, D', H', W', filters]`: a learned weighted sum of each window's places.
    ///
    /// With `padding` "valid", `D' = ⌊(D − (kd − 1)·dilation − 1) / stride⌋ + 1`; with "same", `⌈D / stride⌉`.
    /// Weights: `kernel: f32[kd, kh, kw, C / groups, filters]`, `bias: f32[filters]`.
    Conv3D { 3 }
);

/// `x: T[B, S, C] → T[B, S', filters]`: learned filters that slide over sequences. Arguments: [`Conv1D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::conv1d, Model};
/// let layer = conv1d(64, 3).padding("same").activation("relu");
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [100, 8])])?;
/// assert_eq!(output.shape.dims(), [100, 64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn conv1d(filters: usize, kernel_size: usize) -> LayerSpec {
    LayerSpec::of(Conv1D { filters, kernel_size: kernel_size.into(), ..Default::default() })
}

/// `x: T[B, D, H, W, C] → T[B, D', H', W', filters]`: learned filters that slide over volumes. Arguments:
/// [`Conv3D`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::conv3d, Model};
/// let layer = conv3d(16, (3, 3, 3));
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 8, 2])])?;
/// assert_eq!(output.shape.dims(), [6, 6, 6, 16]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn conv3d(filters: usize, kernel_size: impl Into<Sizes<3>>) -> LayerSpec {
    LayerSpec::of(Conv3D { filters, kernel_size: kernel_size.into(), ..Default::default() })
}

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(conv1d(4, 3), SEQUENCE, &[2, 5, 4], BOTH, Some(&[2, 2, 4])),
        LayerSample::new(conv1d(4, 3).padding("causal").strides(2), SEQUENCE, &[2, 4, 4], BOTH, FLAT),
        LayerSample::new(conv1d(4, 2).groups(2), SEQUENCE, &[2, 6, 4], BOTH, Some(&[2, 7, 3])),
        LayerSample::new(
            conv3d(4, 2).padding("same").strides((1, 2, 2)),
            VOLUME,
            &[2, 3, 2, 2, 4],
            BOTH,
            FLAT,
        ),
        LayerSample::new(
            conv3d(2, (2, 3, 1)).use_bias(false),
            VOLUME,
            &[2, 2, 2, 3, 2],
            &["kernel"],
            Some(IMAGE),
        ),
    ]
}

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
const PARITY: &str = r#"[
    {"name": "conv1d_valid", "class": "Conv1D", "x_shape": [2, 7, 3], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "conv1d_same_s2", "class": "Conv1D", "x_shape": [2, 7, 3], "kwargs": {"filters": 2, "kernel_size": 4, "strides": 2, "padding": "same", "activation": "relu"}},
    {"name": "conv1d_causal", "class": "Conv1D", "x_shape": [2, 7, 3], "kwargs": {"filters": 2, "kernel_size": 3, "dilation_rate": 2, "padding": "causal"}},
    {"name": "conv1d_causal_s2", "class": "Conv1D", "x_shape": [2, 8, 3], "kwargs": {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "causal"}},
    {"name": "conv1d_groups", "class": "Conv1D", "x_shape": [2, 7, 4], "kwargs": {"filters": 4, "kernel_size": 3, "groups": 2, "use_bias": false}},
    {"name": "conv3d_valid", "class": "Conv3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"filters": 2, "kernel_size": [2, 3, 2]}},
    {"name": "conv3d_same_s2", "class": "Conv3D", "x_shape": [1, 4, 3, 4, 2], "kwargs": {"filters": 2, "kernel_size": 2, "strides": 2, "padding": "same"}}
]"#;
