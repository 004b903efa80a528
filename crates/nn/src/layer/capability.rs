//! Optional layer capabilities: mask propagation, incremental decoding, channel pruning.
//!
//! Return types of [`Layer`](crate::Layer) methods, and their defaults derived from a layer's lowering.

use crate::layer::lowering::{ConvolutionKind, LayerLowering};
use crate::layer::masks::MaskPropagation;
use systole_ir::{Error, Result, err};

/// How a layer computes the next token of a sequence during incremental decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncrementalDecoding {
    /// The output at a position depends on that position only.
    Positionwise,
    /// The layer caches state of earlier positions, such as a KV cache.
    Stateful,
}

/// How a layer behaves if channels (the last dimension) are pruned.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelPruning {
    /// Sums over its input channels; its output channels can be pruned. `kernel: f32[…, in, out]`.
    Mixes {
        /// Argument that holds the number of output channels.
        argument: &'static str,
        /// Whether there is a `bias`.
        use_bias: bool,
        /// Number of channel groups; grouped convolutions are not pruned.
        groups: usize,
        /// Whether an output channel with all-zero weights is 0.
        keeps_zeros: bool,
    },
    /// Treats each channel independently.
    PerChannel {
        /// Output channels per input channel.
        multiplier: usize,
        /// Weights that must be 0 for a zero channel to stay 0.
        zeroed: Vec<&'static str>,
        /// Weights to prune, each with its channel dimension counted from the last (1).
        weights: Vec<(&'static str, usize)>,
    },
    /// Has no weights, and maps zero channels to zero.
    Passes,
}

impl LayerLowering {
    /// Whether the layer has one input, each position of which gives the same position of the output.
    fn is_positionwise(&self) -> bool {
        use LayerLowering::*;
        matches!(
            self,
            Identity
                | Regularization
                | Dense { .. }
                | Activation(_)
                | Relu { .. }
                | LeakyRelu(_)
                | Elu(_)
                | LayerNormalization { .. }
                | Rescaling { .. }
                | Normalization { .. }
        )
    }

    /// Returns how masks propagate; `None` if they end here.
    pub(crate) fn masks(&self) -> Option<MaskPropagation> {
        use LayerLowering::*;
        match self {
            _ if self.is_positionwise() => Some(MaskPropagation::First),
            Softmax(_)
            | PRelu
            | BatchNormalization { .. }
            | Attention { .. }
            | TransformerBlock { .. }
            | PositionEmbedding => Some(MaskPropagation::First),
            ElementWise(_) => Some(MaskPropagation::Any),
            Concatenation(_) => Some(MaskPropagation::Concatenated),
            _ => self.returns_sequences().then_some(MaskPropagation::First),
        }
    }

    /// Returns how the layer decodes incrementally; `None` if it may look at later positions.
    pub(crate) fn decoding(&self) -> Option<Result<IncrementalDecoding>> {
        use LayerLowering::*;
        Some(Ok(match self {
            Embedding { mask_zero: true, .. } => {
                return Some(Err(no_decoding()
                    .because("mask_zero treats token 0 as padding, and a prompt contains no padding")
                    .hint("train a model without mask_zero")));
            }
            _ if self.is_positionwise() => IncrementalDecoding::Positionwise,
            ElementWise(_) | Embedding { .. } | ReversibleEmbedding { .. } => {
                IncrementalDecoding::Positionwise
            }
            Attention { .. } | TransformerBlock { .. } | PositionEmbedding | Recurrent(_) => {
                IncrementalDecoding::Stateful
            }
            _ => return None,
        }))
    }

    /// Returns how the layer treats pruned channels; `None` if channels cannot be traced through it.
    pub(crate) fn channels(&self) -> Option<ChannelPruning> {
        use LayerLowering::*;
        let mixes = |argument, use_bias, groups| ChannelPruning::Mixes {
            argument,
            use_bias,
            groups,
            keeps_zeros: self.activation().keeps_zeros(),
        };
        match self {
            Dense { use_bias, .. } => Some(mixes("units", *use_bias, 1)),
            Convolution(c) => match c.kind {
                ConvolutionKind::Plain => Some(mixes("filters", c.use_bias, c.groups)),
                ConvolutionKind::Depthwise { multiplier } if c.activation.keeps_zeros() => {
                    let zeroed = if c.use_bias { vec!["kernel", "bias"] } else { vec!["kernel"] };
                    let weights = vec![("kernel", 2), ("bias", 1)];
                    Some(ChannelPruning::PerChannel { multiplier, zeroed, weights })
                }
                _ => None,
            },
            // Without a gamma the moving mean's contribution stays in the output.
            BatchNormalization { axis: -1, scale: true, center, .. } => Some(ChannelPruning::PerChannel {
                multiplier: 1,
                zeroed: if *center { vec!["gamma", "beta"] } else { vec!["gamma"] },
                weights: ["gamma", "beta", "moving_mean", "moving_variance"].map(|name| (name, 1)).into(),
            }),
            Activation(activation) if activation.keeps_zeros() => Some(ChannelPruning::Passes),
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

/// Returns the error for models that cannot decode incrementally, without a reason.
pub(crate) fn no_decoding() -> Error {
    err!(Unsupported, "the model cannot generate token by token")
}
