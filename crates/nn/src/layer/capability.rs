//! What layers can do besides computing: types that methods of [`Layer`](crate::Layer) return, and what follows from a layer's operators.

use crate::layer::activation::Activation;
use crate::layer::lowering::{ConvolutionKind, LayerLowering};
use crate::layer::masks::MaskPropagation;
use systole_ir::{Error, ErrorKind, Result};

/// How a layer computes the next token of a sequence from what the tokens before left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncrementalDecoding {
    /// The output at a position depends on that position alone.
    Positionwise,
    /// The layer keeps what it needs of the positions before.
    Stateful,
}

/// What a layer does with channels, the last dimension, when some of them are pruned.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelPruning {
    /// Sums over its input channels; can lose output channels. `kernel: f32[…, in, out]`.
    Mixes {
        /// The argument with the number of output channels.
        argument: &'static str,
        /// Whether there is a `bias`.
        use_bias: bool,
        /// Groups of channels; those of more than one stay as they are.
        groups: usize,
        /// Whether a channel without weights is 0 in the output.
        keeps_zeros: bool,
    },
    /// Treats each channel by itself.
    PerChannel {
        /// Output channels for each input channel.
        multiplier: usize,
        /// Weights that must be 0 for a channel to stay 0.
        zeroed: Vec<&'static str>,
        /// Weights that lose channels, with the dimension of those counted from the last, 1.
        weights: Vec<(&'static str, usize)>,
    },
    /// Has no weights, and gives 0 for channels of 0.
    Passes,
}

/// Whether an activation leaves zeros as they are.
fn keeps_zeros(activation: Activation) -> bool {
    !matches!(activation, Activation::Sigmoid | Activation::Softmax | Activation::Softplus)
}

impl LayerLowering {
    /// What becomes of masks; `None`: they end here.
    pub(crate) fn masks(&self) -> Option<MaskPropagation> {
        use LayerLowering::*;
        match self {
            Identity
            | Regularization
            | Dense { .. }
            | Activation(_)
            | Relu { .. }
            | LeakyRelu(_)
            | Elu(_)
            | Softmax(_)
            | PRelu
            | BatchNormalization { .. }
            | LayerNormalization { .. }
            | Rescaling { .. }
            | Attention { .. }
            | TransformerBlock { .. }
            | PositionEmbedding => Some(MaskPropagation::First),
            ElementWise(_) => Some(MaskPropagation::Any),
            Concatenation(_) => Some(MaskPropagation::Concatenated),
            _ => self.returns_sequences().then_some(MaskPropagation::First),
        }
    }

    /// How it decodes; `None`: it may look at later positions.
    pub(crate) fn decoding(&self) -> Option<Result<IncrementalDecoding>> {
        use LayerLowering::*;
        Some(Ok(match self {
            Embedding { mask_zero: true, .. } => {
                return Some(Err(no_decoding()
                    .because("its tokens of 0 are padding, which a text has not")
                    .hint("train one without mask_zero")));
            }
            Identity
            | Regularization
            | Dense { .. }
            | Activation(_)
            | Relu { .. }
            | LeakyRelu(_)
            | Elu(_)
            | LayerNormalization { .. }
            | Rescaling { .. }
            | ElementWise(_)
            | Embedding { .. }
            | ReversibleEmbedding { .. } => IncrementalDecoding::Positionwise,
            Attention { .. } | TransformerBlock { .. } | PositionEmbedding | Recurrent(_) => {
                IncrementalDecoding::Stateful
            }
            _ => return None,
        }))
    }

    /// What it does with channels; `None`: they cannot be followed through it.
    pub(crate) fn channels(&self) -> Option<ChannelPruning> {
        use LayerLowering::*;
        let mixes = |argument, use_bias, groups| ChannelPruning::Mixes {
            argument,
            use_bias,
            groups,
            keeps_zeros: keeps_zeros(self.activation()),
        };
        match self {
            Dense { use_bias, .. } => Some(mixes("units", *use_bias, 1)),
            Convolution(c) => match c.kind {
                ConvolutionKind::Plain => Some(mixes("filters", c.use_bias, c.groups)),
                ConvolutionKind::Depthwise { multiplier } if keeps_zeros(c.activation) => {
                    let zeroed = if c.use_bias { vec!["kernel", "bias"] } else { vec!["kernel"] };
                    let weights = vec![("kernel", 2), ("bias", 1)];
                    Some(ChannelPruning::PerChannel { multiplier, zeroed, weights })
                }
                _ => None,
            },
            // Without a gamma what is left of the moving mean remains.
            BatchNormalization { axis: -1, scale: true, center, .. } => Some(ChannelPruning::PerChannel {
                multiplier: 1,
                zeroed: if *center { vec!["gamma", "beta"] } else { vec!["gamma"] },
                weights: ["gamma", "beta", "moving_mean", "moving_variance"].map(|name| (name, 1)).into(),
            }),
            Activation(activation) if keeps_zeros(*activation) => Some(ChannelPruning::Passes),
            Relu { threshold: 0.0, .. } => Some(ChannelPruning::Passes),
            Identity
            | Regularization
            | LeakyRelu(_)
            | Elu(_)
            | Pooling { .. }
            | GlobalPooling { .. }
            | Padding(_)
            | Cropping(_)
            | UpSampling { .. }
            | Flatten => Some(ChannelPruning::Passes),
            _ => None,
        }
    }
}

/// The error of models that cannot generate token by token, without a reason.
pub(crate) fn no_decoding() -> Error {
    Error::new(ErrorKind::Unsupported, "the model cannot generate token by token")
}
