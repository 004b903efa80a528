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
);
