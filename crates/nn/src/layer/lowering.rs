//! What a layer computes when its model predicts, as operators: one description for files of other formats (`.tflite`, ONNX), for
//! training in eight bits, and for all that follows from it.

use crate::layer::activation::Activation;
use crate::layer::argument::Padding;
use systole_ir::{Error, ErrorKind};

/// The operators of a layer. Weights have the names that the layer gives them: `kernel`, `bias`, `gamma`, ….
#[derive(Clone, Debug, PartialEq)]
pub enum LayerLowering {
    /// The input.
    Identity,
    /// The input, except while training: dropout, noise, penalties.
    Regularization,
    /// `activation(x · kernel + bias)`.
    Dense {
        /// Whether there is a `bias`.
        use_bias: bool,
        /// Applied at the end.
        activation: Activation,
    },
    /// A convolution of sequences or images.
    Convolution(ConvolutionLowering),
    /// Windows of sequences or images.
    Pooling {
        /// Whether the maximum is taken instead of the mean.
        max: bool,
        /// Size of the window along each spatial dimension.
        size: Vec<usize>,
        /// Steps of the window.
        strides: Vec<usize>,
        /// What happens at the border.
        padding: Padding,
    },
    /// All of a sequence or image.
    GlobalPooling {
        /// Whether the maximum is taken instead of the mean.
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
        /// Where the output is 0.
        threshold: f64,
    },
    /// `x` above 0, else this slope times it.
    LeakyRelu(f64),
    /// `x` above 0, else `alpha · (eˣ − 1)`.
    Elu(f64),
    /// Softmax over this axis.
    Softmax(i64),
    /// `x` above 0, else the weight `alpha` times it.
    PRelu,
    /// Normalization by `moving_mean` and `moving_variance`.
    BatchNormalization {
        /// The dimension that keeps its statistics.
        axis: i64,
        /// Added to the variance.
        epsilon: f64,
        /// Whether there is a `beta`.
        center: bool,
        /// Whether there is a `gamma`.
        scale: bool,
    },
    /// Normalization by the sample's own mean and variance.
    LayerNormalization {
        /// The dimensions of mean and variance.
        axis: Vec<i64>,
        /// Added to the variance.
        epsilon: f64,
        /// Whether there is a `beta`.
        center: bool,
        /// Whether there is a `gamma`.
        scale: bool,
    },
    /// `x · scale + offset`.
    Rescaling {
        /// The factor.
        scale: f64,
        /// What is added.
        offset: f64,
    },
    /// All inputs, element by element.
    ElementWise(ElementWise),
    /// All inputs along this axis.
    Concatenation(i64),
    /// All features in one dimension.
    Flatten,
    /// The elements in the shape of the output.
    Reshape,
    /// For each dimension of the output that of the input, counted from 1.
    Permute(Vec<usize>),
    /// Zeros before and after each spatial dimension.
    Padding(Vec<[usize; 2]>),
    /// Cut off before and after each spatial dimension.
    Cropping(Vec<[usize; 2]>),
    /// Larger images.
    UpSampling {
        /// Whether pixels are interpolated instead of repeated.
        bilinear: bool,
    },
    /// As many copies of a vector as the output has steps.
    Repeat,
    /// Multi-head attention over sequences of query, value and key.
    Attention {
        /// Number of heads.
        heads: usize,
        /// Features of a head's query and key.
        key_dim: usize,
        /// Features of a head's value.
        value_dim: usize,
        /// Whether the projections have a `bias`.
        use_bias: bool,
        /// Whether a step sees only itself and those before.
        causal: bool,
        /// The dimensions attended over, where not the first one.
        axes: Option<Vec<i64>>,
    },
    /// Attention and a feed-forward network, each with normalization and residual.
    TransformerBlock {
        /// Number of heads.
        heads: usize,
        /// Whether a step sees only itself and those before.
        causal: bool,
        /// Between both dense layers.
        activation: Activation,
        /// Added to the variances.
        epsilon: f64,
        /// Whether normalization comes before attention and feed-forward network instead of after the sums.
        normalize_first: bool,
    },
    /// Rows of the table `embeddings` for integers.
    Embedding {
        /// Rows of the table.
        rows: usize,
        /// Whether 0 is padding.
        mask_zero: bool,
    },
    /// Rows of the table for integers; for vectors their products with all rows.
    ReversibleEmbedding {
        /// Rows of the table.
        rows: usize,
        /// Length of a row.
        width: usize,
        /// Whether both directions share `embeddings`; else the way back has `reverse_embeddings`.
        tie_weights: bool,
        /// Whether the products are bounded.
        is_capped: bool,
    },
    /// The first rows of the table `embeddings`, whatever the input.
    PositionEmbedding,
    /// The weight `token` as a step before all others.
    ClassToken,
    /// The first step of each sequence.
    FirstStep,
    /// A recurrent layer.
    Recurrent(RecurrentLowering),
    /// A recurrent layer in both directions.
    Bidirectional {
        /// Forward and backward layer, with their names in the paths of weights.
        directions: Box<[(String, RecurrentLowering); 2]>,
        /// How the outputs are joined; `None`: side by side.
        join: Option<ElementWise>,
    },
}

/// How inputs are joined element by element.
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

/// The arguments of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvolutionLowering {
    /// Which one.
    pub kind: ConvolutionKind,
    /// Steps of the window along each spatial dimension.
    pub strides: Vec<usize>,
    /// Distance between the window's elements.
    pub dilation: Vec<usize>,
    /// What happens at the border.
    pub padding: Padding,
    /// Groups of channels that are convolved apart.
    pub groups: usize,
    /// Whether there is a `bias`.
    pub use_bias: bool,
    /// Applied at the end.
    pub activation: Activation,
}

/// Which convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionKind {
    /// `kernel: f32[window…, in, out]`.
    Plain,
    /// `kernel: f32[window…, channels, multiplier]`: each channel by itself.
    Depthwise {
        /// Output channels for each input channel.
        multiplier: usize,
    },
    /// `depthwise_kernel`, then `pointwise_kernel`.
    Separable,
    /// `kernel: f32[window…, out, in]`: the transpose of a convolution.
    Transposed {
        /// Whether the size of the output was given.
        has_output_padding: bool,
    },
}

/// The arguments of a recurrent layer: `kernel`, `recurrent_kernel`, `bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentLowering {
    /// Which one.
    pub kind: RecurrentCell,
    /// Features of the state.
    pub units: usize,
    /// Function of the new state.
    pub activation: Activation,
    /// Function of the gates; [`RecurrentCell::Simple`] has none.
    pub recurrent_activation: Activation,
    /// Whether there is a `bias`.
    pub use_bias: bool,
    /// Whether the last step comes first.
    pub go_backwards: bool,
    /// Whether the output has every step's state.
    pub return_sequences: bool,
}

/// Which recurrent layer, with its gates in Keras's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// No gate.
    Simple,
    /// Input, forget, candidate, output.
    Lstm,
    /// Update, reset, candidate.
    Gru {
        /// Whether the reset gate acts after the product with the state.
        reset_after: bool,
    },
}

impl LayerLowering {
    /// The layer's own activation, of layers that multiply with weights or are activations.
    pub(crate) fn activation(&self) -> Activation {
        match self {
            LayerLowering::Dense { activation, .. } | LayerLowering::Activation(activation) => *activation,
            LayerLowering::Convolution(c) => c.activation,
            _ => Activation::Linear,
        }
    }

    /// Whether every step of the output has the state after that step.
    pub(crate) fn returns_sequences(&self) -> bool {
        match self {
            LayerLowering::Recurrent(own) => own.return_sequences,
            LayerLowering::Bidirectional { directions, .. } => directions[0].1.return_sequences,
            _ => false,
        }
    }
}

/// What a layer without operators answers.
pub(crate) fn no_operators(class: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{class} has no operators of .tflite here"))
        .hint("leave this layer out of what you export, or use `systole export --format keras`")
}
