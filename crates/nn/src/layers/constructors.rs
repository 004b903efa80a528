//! Layers by Keras's snake names, and setters by Keras's argument names.

use super::*;

/// See [`Dense`].
pub fn dense(units: usize) -> LayerSpec {
    Dense { units, ..Default::default() }.into()
}

/// See [`Conv2D`].
pub fn conv2d(filters: usize, kernel_size: impl Into<Pair>) -> LayerSpec {
    Conv2D { filters, kernel_size: kernel_size.into(), ..Default::default() }.into()
}

/// See [`DepthwiseConv2D`].
pub fn depthwise_conv2d(kernel_size: impl Into<Pair>) -> LayerSpec {
    DepthwiseConv2D { kernel_size: kernel_size.into(), ..Default::default() }.into()
}

/// See [`MaxPooling2D`].
pub fn max_pooling2d(pool_size: impl Into<Pair>) -> LayerSpec {
    MaxPooling2D { pool_size: pool_size.into(), ..Default::default() }.into()
}

/// See [`AveragePooling2D`].
pub fn average_pooling2d(pool_size: impl Into<Pair>) -> LayerSpec {
    AveragePooling2D { pool_size: pool_size.into(), ..Default::default() }.into()
}

/// See [`GlobalMaxPooling2D`].
pub fn global_max_pooling2d() -> LayerSpec {
    GlobalMaxPooling2D::default().into()
}

/// See [`GlobalAveragePooling2D`].
pub fn global_average_pooling2d() -> LayerSpec {
    GlobalAveragePooling2D::default().into()
}

/// See [`Flatten`].
pub fn flatten() -> LayerSpec {
    Flatten {}.into()
}

/// See [`Reshape`].
pub fn reshape(target_shape: impl AsRef<[i64]>) -> LayerSpec {
    Reshape { target_shape: target_shape.as_ref().into() }.into()
}

/// See [`ActivationLayer`]. Takes a name (`"relu"`) or an [`Activation`](crate::Activation).
#[track_caller]
pub fn activation(function: impl Into<Value>) -> LayerSpec {
    LayerSpec::from(ActivationLayer::default()).set("activation", function.into())
}

/// See [`ReLU`].
pub fn relu() -> LayerSpec {
    ReLU::default().into()
}

/// See [`LeakyReLU`].
pub fn leaky_relu() -> LayerSpec {
    LeakyReLU::default().into()
}

/// See [`ELU`].
pub fn elu() -> LayerSpec {
    ELU::default().into()
}

/// See [`Softmax`].
pub fn softmax() -> LayerSpec {
    Softmax::default().into()
}

/// See [`Dropout`].
pub fn dropout(rate: f64) -> LayerSpec {
    Dropout { rate }.into()
}

/// See [`BatchNormalization`].
pub fn batch_normalization() -> LayerSpec {
    BatchNormalization::default().into()
}

/// See [`LayerNormalization`].
pub fn layer_normalization() -> LayerSpec {
    LayerNormalization::default().into()
}

/// See [`Embedding`].
pub fn embedding(input_dim: usize, output_dim: usize) -> LayerSpec {
    Embedding { input_dim, output_dim, ..Default::default() }.into()
}

/// See [`Rescaling`].
pub fn rescaling(scale: f64) -> LayerSpec {
    Rescaling { scale, ..Default::default() }.into()
}

/// See [`Add`].
pub fn add() -> LayerSpec {
    Add {}.into()
}

/// See [`Subtract`].
pub fn subtract() -> LayerSpec {
    Subtract {}.into()
}

/// See [`Multiply`].
pub fn multiply() -> LayerSpec {
    Multiply {}.into()
}

/// See [`Average`].
pub fn average() -> LayerSpec {
    Average {}.into()
}

/// See [`Maximum`].
pub fn maximum() -> LayerSpec {
    Maximum {}.into()
}

/// See [`Minimum`].
pub fn minimum() -> LayerSpec {
    Minimum {}.into()
}

/// See [`Concatenate`].
pub fn concatenate(axis: i64) -> LayerSpec {
    Concatenate { axis }.into()
}

/// See [`ZeroPadding2D`].
pub fn zero_padding2d(padding: impl Into<Borders>) -> LayerSpec {
    ZeroPadding2D { padding: padding.into() }.into()
}

/// See [`LSTM`].
pub fn lstm(units: usize) -> LayerSpec {
    LSTM { units, ..Default::default() }.into()
}

/// See [`GRU`].
pub fn gru(units: usize) -> LayerSpec {
    GRU { units, ..Default::default() }.into()
}

/// See [`SimpleRNN`].
pub fn simple_rnn(units: usize) -> LayerSpec {
    SimpleRNN { units, ..Default::default() }.into()
}

/// See [`MultiHeadAttention`].
pub fn multi_head_attention(num_heads: usize, key_dim: usize) -> LayerSpec {
    MultiHeadAttention { num_heads, key_dim, ..Default::default() }.into()
}

/// See [`TransformerBlock`].
pub fn transformer_block(intermediate_dim: usize, num_heads: usize) -> LayerSpec {
    TransformerBlock { intermediate_dim, num_heads, ..Default::default() }.into()
}

/// See [`PositionEmbedding`].
pub fn position_embedding(sequence_length: usize) -> LayerSpec {
    PositionEmbedding { sequence_length, ..Default::default() }.into()
}

/// See [`ReversibleEmbedding`].
pub fn reversible_embedding(input_dim: usize, output_dim: usize) -> LayerSpec {
    ReversibleEmbedding { input_dim, output_dim, ..Default::default() }.into()
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $given:ty as $value:ty;)*) => {
        /// Keras's arguments. Initializers and activations are given by name or as a value.
        impl LayerSpec {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(self, value: $given) -> LayerSpec {
                let value: $value = value.into();
                self.set(stringify!($name), value.into())
            })*
        }
    };
}

setters!(
    /// Function applied at the end of Dense and convolutions.
    activation: impl Into<Value> as Value;
    /// Whether Dense or a convolution adds a bias.
    use_bias: bool as bool;
    /// How the kernel of Dense or Conv2D starts.
    kernel_initializer: impl Into<Value> as Value;
    /// How the kernel of DepthwiseConv2D starts.
    depthwise_initializer: impl Into<Value> as Value;
    /// How a bias starts.
    bias_initializer: impl Into<Value> as Value;
    /// How the table of Embedding starts.
    embeddings_initializer: impl Into<Value> as Value;
    /// How a normalisation's beta starts.
    beta_initializer: impl Into<Value> as Value;
    /// How a normalisation's gamma starts.
    gamma_initializer: impl Into<Value> as Value;
    /// How BatchNormalization's moving mean starts.
    moving_mean_initializer: impl Into<Value> as Value;
    /// How BatchNormalization's moving variance starts.
    moving_variance_initializer: impl Into<Value> as Value;
    /// Steps of a window: `2` or `(2, 1)`.
    strides: impl Into<Pair> as Pair;
    /// "valid" or "same".
    padding: impl Into<Value> as Value;
    /// Distance between a kernel's elements.
    dilation_rate: impl Into<Pair> as Pair;
    /// Groups of Conv2D's channels.
    groups: usize as usize;
    /// Output channels of DepthwiseConv2D for each input channel.
    depth_multiplier: usize as usize;
    /// Whether a global pooling keeps height and width as 1.
    keepdims: bool as bool;
    /// The dimension of Softmax, Concatenate and BatchNormalization; one or several of LayerNormalization.
    axis: impl Into<Axes> as Axes;
    /// How much of its moving statistics BatchNormalization keeps.
    momentum: f64 as f64;
    /// What a normalisation adds to the variance.
    epsilon: f64 as f64;
    /// Whether a normalisation has a beta.
    center: bool as bool;
    /// Whether a normalisation has a gamma; Rescaling's factor.
    scale: impl Into<Value> as Value;
    /// What Rescaling adds.
    offset: f64 as f64;
    /// Greatest output of ReLU.
    max_value: f64 as f64;
    /// Slope of ReLU and LeakyReLU for negative inputs.
    negative_slope: f64 as f64;
    /// Where ReLU starts.
    threshold: f64 as f64;
    /// ELU's limit.
    alpha: f64 as f64;
    /// Function of a recurrent layer's gates.
    recurrent_activation: impl Into<Value> as Value;
    /// How the kernel of a recurrent layer's state starts.
    recurrent_initializer: impl Into<Value> as Value;
    /// Whether the bias of LSTM's forget gates starts as 1.
    unit_forget_bias: bool as bool;
    /// Whether GRU's reset gate acts after the product with the state.
    reset_after: bool as bool;
    /// What fraction a recurrent layer drops of its inputs, an attention of its weights, a transformer block of both.
    dropout: f64 as f64;
    /// What fraction a recurrent layer drops of its state.
    recurrent_dropout: f64 as f64;
    /// Whether a recurrent layer gives every step's state instead of the last one's.
    return_sequences: bool as bool;
    /// Whether a recurrent layer takes the last step first.
    go_backwards: bool as bool;
    /// Whether a recurrent layer's steps stand one after the other in the graph.
    unroll: bool as bool;
    /// Width of an attention head's values.
    value_dim: usize as usize;
    /// Features of an attention's output.
    output_shape: usize as usize;
    /// The dimensions that an attention attends over.
    attention_axes: impl Into<Axes> as Axes;
    /// Whether a place of an attention sees only itself and those before it.
    use_causal_mask: bool as bool;
    /// What a transformer block's normalisations add to variances.
    layer_norm_epsilon: f64 as f64;
    /// Whether a transformer block normalises the inputs of its parts instead of their sums.
    normalize_first: bool as bool;
    /// How the table of PositionEmbedding starts.
    initializer: impl Into<Value> as Value;
    /// Whether ReversibleEmbedding's way back uses the same table.
    tie_weights: bool as bool;
    /// What ReversibleEmbedding's way back stays within.
    logit_soft_cap: f64 as f64;
);
