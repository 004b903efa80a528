//! [`LayerLowering`]: operators that a layer computes in inference.
//!
//! Shared description for `.tflite` and ONNX export, quantization-aware training and layer capabilities.

use crate::layer::activation::Activation;
use crate::layer::argument::Padding;
use systole_ir::{Error, err};

/// Inference operators of a layer. Weights keep the layer's names: `kernel`, `bias`, `gamma`, ….
#[derive(Clone, Debug, PartialEq)]
pub enum LayerLowering {
    /// Returns the input.
    Identity,
    /// Identity except in training: dropout, noise, penalties.
    Regularization,
    /// `activation(x · kernel + bias)`.
    Dense {
        /// Whether there is a `bias`.
        use_bias: bool,
        /// Activation of the output.
        activation: Activation,
    },
    /// A convolution of sequences or images.
    Convolution(ConvolutionLowering),
    /// Max or average pooling of sequences or images.
    Pooling {
        /// Whether it is max pooling; otherwise average pooling.
        max: bool,
        /// Size of the window along each spatial dimension.
        size: Vec<usize>,
        /// Strides of the window.
        strides: Vec<usize>,
        /// Padding mode.
        padding: Padding,
    },
    /// Pooling over all positions of a sequence or image.
    GlobalPooling {
        /// Whether it is max pooling; otherwise average pooling.
        max: bool,
    },
    /// An activation function; softmax is over the last dimension.
    Activation(Activation),
    /// [`ReLU`](crate::layers::ReLU) with its arguments.
    Relu {
        /// Maximum of the output.
        max_value: Option<f64>,
        /// Slope below the threshold.
        negative_slope: f64,
        /// Values below it give 0, or the slope.
        threshold: f64,
    },
    /// `x` if positive, otherwise this slope times `x`.
    LeakyRelu(f64),
    /// `x` if positive, otherwise `alpha · (eˣ − 1)`.
    Elu(f64),
    /// Softmax over this axis.
    Softmax(i64),
    /// `x` if positive, otherwise the weight `alpha` times `x`.
    PRelu,
    /// Normalization by `moving_mean` and `moving_variance`.
    BatchNormalization {
        /// Dimension that keeps separate statistics.
        axis: i64,
        /// Epsilon added to the variance.
        epsilon: f64,
        /// Whether there is a `beta`.
        center: bool,
        /// Whether there is a `gamma`.
        scale: bool,
    },
    /// Normalization by each sample's mean and variance.
    LayerNormalization {
        /// Dimensions over which mean and variance are computed.
        axis: Vec<i64>,
        /// Epsilon added to the variance.
        epsilon: f64,
        /// Whether there is a `beta`.
        center: bool,
        /// Whether there is a `gamma`.
        scale: bool,
    },
    /// `x · scale + offset`.
    Rescaling {
        /// Factor.
        scale: f64,
        /// Added constant.
        offset: f64,
    },
    /// `x · scale + offset`, with a factor and a constant for each index of the last dimension, or one for all.
    Normalization {
        /// Factors.
        scale: Vec<f64>,
        /// Added constants.
        offset: Vec<f64>,
    },
    /// Element-wise combination of all inputs.
    ElementWise(ElementWise),
    /// Concatenation of all inputs along this axis.
    Concatenation(i64),
    /// Flattens all features into one dimension.
    Flatten,
    /// Reshapes to the output's shape.
    Reshape,
    /// Permutes dimensions: the input dimension of each output dimension, counted from 1.
    Permute(Vec<usize>),
    /// Zero padding before and after each spatial dimension.
    Padding(Vec<[usize; 2]>),
    /// Cropping before and after each spatial dimension.
    Cropping(Vec<[usize; 2]>),
    /// Image upsampling.
    UpSampling {
        /// Whether pixels are interpolated instead of repeated.
        bilinear: bool,
    },
    /// Repeats a vector for each time step of the output.
    Repeat,
    /// Multi-head attention over sequences of query, value and key.
    Attention {
        /// Number of heads.
        heads: usize,
        /// Query and key features per head.
        key_dim: usize,
        /// Value features per head.
        value_dim: usize,
        /// Whether the projections have a `bias`.
        use_bias: bool,
        /// Whether a step attends only to itself and earlier steps.
        causal: bool,
        /// Dimensions attended over, if not the first.
        axes: Option<Vec<i64>>,
    },
    /// Transformer block: attention and feed-forward network, each with normalization and residual.
    TransformerBlock {
        /// Number of heads.
        heads: usize,
        /// Whether a step attends only to itself and earlier steps.
        causal: bool,
        /// Activation between the two dense layers.
        activation: Activation,
        /// Epsilon added to the variances.
        epsilon: f64,
        /// Whether normalization precedes attention and feed-forward network (pre-norm) instead of following the sums.
        normalize_first: bool,
    },
    /// Looks up integer ids in the table `embeddings`.
    Embedding {
        /// Number of table rows.
        rows: usize,
        /// Whether 0 is padding.
        mask_zero: bool,
    },
    /// Looks up integer ids in the table; multiplies vectors with all rows.
    ReversibleEmbedding {
        /// Number of table rows.
        rows: usize,
        /// Embedding size.
        width: usize,
        /// Whether both directions share `embeddings`; otherwise the reverse direction uses `reverse_embeddings`.
        tie_weights: bool,
        /// Whether the products are soft-capped.
        is_capped: bool,
    },
    /// Returns the first rows of the table `embeddings`, independent of the input values.
    PositionEmbedding,
    /// Prepends the weight `token` as the first step.
    ClassToken,
    /// Selects the first step of each sequence.
    FirstStep,
    /// A recurrent layer.
    Recurrent(RecurrentLowering),
    /// A recurrent layer in both directions.
    Bidirectional {
        /// Forward and backward layers with their names in weight paths.
        directions: Box<[(String, RecurrentLowering); 2]>,
        /// How the outputs are merged; `None` concatenates them.
        join: Option<ElementWise>,
    },
}

/// Element-wise operation of a merge layer: add, multiply, maximum and others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of Keras's layers")]
pub enum ElementWise {
    Add,
    Subtract,
    Multiply,
    Average,
    Maximum,
    Minimum,
}

/// Arguments of a convolution layer in inference.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionLowering {
    /// Kind of convolution.
    pub kind: ConvolutionKind,
    /// Strides along each spatial dimension.
    pub strides: Vec<usize>,
    /// Dilation rate along each spatial dimension.
    pub dilation: Vec<usize>,
    /// Padding mode.
    pub padding: Padding,
    /// Number of channel groups.
    pub groups: usize,
    /// Whether there is a `bias`.
    pub use_bias: bool,
    /// Activation of the output.
    pub activation: Activation,
}

/// Kind of convolution (standard, depthwise, transposed) and its kernel layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionKind {
    /// `kernel: f32[window…, in, out]`.
    Plain,
    /// `kernel: f32[window…, channels, multiplier]`: each channel convolved separately.
    Depthwise {
        /// Output channels per input channel.
        multiplier: usize,
    },
    /// `depthwise_kernel` followed by `pointwise_kernel`.
    Separable,
    /// `kernel: f32[window…, out, in]`: transposed convolution.
    Transposed {
        /// Whether `output_padding` was given.
        has_output_padding: bool,
    },
}

/// Arguments of a recurrent layer with weights `kernel`, `recurrent_kernel`, `bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentLowering {
    /// Kind of cell.
    pub kind: RecurrentCell,
    /// Size of the state.
    pub units: usize,
    /// Activation of the new state.
    pub activation: Activation,
    /// Activation of the gates; unused by [`RecurrentCell::Simple`].
    pub recurrent_activation: Activation,
    /// Whether there is a `bias`.
    pub use_bias: bool,
    /// Whether the sequence is processed in reverse.
    pub go_backwards: bool,
    /// Whether the output contains the state of every step.
    pub return_sequences: bool,
}

/// Cell of a recurrent layer (simple, LSTM, GRU), with its gates in Keras's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// No gates.
    Simple,
    /// Input, forget, candidate, output.
    Lstm,
    /// Update, reset, candidate.
    Gru {
        /// Whether the reset gate is applied after the recurrent matrix product.
        reset_after: bool,
    },
}

impl LayerLowering {
    /// Returns the fused activation of a layer with weights, or of an activation layer.
    pub(crate) fn activation(&self) -> Activation {
        match self {
            LayerLowering::Dense { activation, .. } | LayerLowering::Activation(activation) => *activation,
            LayerLowering::Convolution(c) => c.activation,
            _ => Activation::Linear,
        }
    }

    /// Whether the output contains the state of every step.
    pub(crate) fn returns_sequences(&self) -> bool {
        match self {
            LayerLowering::Recurrent(own) => own.return_sequences,
            LayerLowering::Bidirectional { directions, .. } => directions[0].1.return_sequences,
            _ => false,
        }
    }
}

/// Returns the error for layers without inference operators.
pub(crate) fn no_operators(class: &str) -> Error {
    err!(
        Unsupported,
        "cannot export {class} to .tflite or int8: these formats have no operators for the layer"
    )
    .hint(match class {
        "Sequential" | "Functional" => {
            "write the layers of the nested model into the model itself, and train that"
        }
        _ => "export ONNX in float, which has every layer: `systole export --format onnx`; or use `systole export --format keras`",
    })
}
