//! Built-in layers with Keras's names, arguments and defaults.
//!
//! One file per layer or family contains the argument struct, the computation, the constructor function, setters that
//! only this file uses, and test samples.
//!
//! Each layer is a plain struct that implements [`Layer`](crate::Layer). A [`LayerSpec`] is a layer with its name and
//! flags in a model; the functions with Keras's snake-case names ([`conv2d`], [`dense`], …) create it, and setters
//! named after Keras's arguments modify it. Layers that compute cast their inputs to the policy's compute type,
//! integers included; layers that only move elements cast floats and leave integers unchanged.
//!
//! ```
//! use systole_nn::layers::*;
//! let c = conv2d(64, (3, 3)).padding("same").activation("relu");
//! assert!(c.check().is_ok());
//! let e = conv2d(64, (3, 3)).padding("smae").check().unwrap_err().to_string();
//! assert!(e.contains("did you mean `same`"), "{e}");
//! ```

mod built_in;
mod from_config;
mod masked_attention;
mod regularized_weight;
mod resample;
mod sample;
mod sliding_window;
mod spec;
mod wrapped_layer;

#[allow(deprecated, reason = "kept for the previous version's API")]
pub use crate::layer::argument::Pair;
pub use crate::layer::argument::{Axes, Edges, Padding, SizeArgument, Sizes};
pub use built_in::BuiltIn;
pub use from_config::{CustomLayers, CustomObjects, LayerConstructor};
pub use spec::{LayerKind, LayerSpec, NestedModel};
pub use wrapped_layer::WrappedLayer;

/// The struct of a class: the same name, unless the row gives another.
macro_rules! layer_of {
    ($class:ident) => {
        $class
    };
    ($class:ident $layer:ident) => {
        $layer
    };
}

macro_rules! layers {
    ($(mod $folder:ident {
        $($($class:ident $(($layer:ident))?),+ in mod $module:ident;)*
    })*) => {
        $(mod $folder {
            $(pub mod $module;)*
        }
        $(pub use self::$folder::$module::*;)*)*

        /// Class names of the built-in layers.
        pub const LAYER_NAMES: &[&str] = &[$($($(stringify!($class)),+),*),*];

        /// Each layer with default arguments, in the order of [`LAYER_NAMES`].
        const DEFAULTS: &[fn() -> BuiltIn] =
            &[$($($(|| BuiltIn::of(<layer_of!($class $($layer)?)>::default())),+),*),*];

        /// Parity test cases as JSON arrays.
        const PARITY: &[&str] = &[$($(self::$folder::$module::PARITY),*),*];

        $($($(impl From<layer_of!($class $($layer)?)> for LayerSpec {
            #[track_caller]
            fn from(layer: layer_of!($class $($layer)?)) -> LayerSpec {
                LayerSpec::of(layer)
            }
        })+)*)*

        fn all_samples() -> Vec<sample::LayerSample> {
            [$($(self::$folder::$module::samples()),*),*].concat()
        }
    };
}

// Registers layers: each row lists the classes of one file in a folder.
layers! {
    mod core {
        Dense in mod dense;
        EinsumDense in mod einsum_dense;
        Activation(ActivationLayer), ReLU, LeakyReLU, ELU, Softmax in mod activations;
        PReLU in mod prelu;
        ResidualGain in mod residual_gain;
        ActivityRegularization in mod activity_regularization;
        Embedding, PositionEmbedding, ReversibleEmbedding in mod embedding;
        Rescaling in mod rescaling;
        Normalization in mod normalization_preprocessing;
        CategoryEncoding, Discretization in mod encoding;
        Add, Subtract, Multiply, Average, Maximum, Minimum, Concatenate in mod merge;
        Masking in mod masking;
        LayerScale in mod layer_scale;
        ModelOutput in mod model_output;
        MelSpectrogram in mod mel_spectrogram;
    }
    mod conv {
        Conv1D, Conv2D, Conv3D in mod convolution;
        DepthwiseConv1D, DepthwiseConv2D in mod depthwise;
        SeparableConv1D, SeparableConv2D in mod separable;
        Conv1DTranspose, Conv2DTranspose, Conv3DTranspose in mod transposed;
    }
    mod pool {
        MaxPooling1D, MaxPooling2D, MaxPooling3D, AveragePooling1D, AveragePooling2D, AveragePooling3D in mod pooling;
        GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D, GlobalAveragePooling1D, GlobalAveragePooling2D, GlobalAveragePooling3D in mod global_pool;
        AdaptiveAveragePooling1D, AdaptiveAveragePooling2D, AdaptiveAveragePooling3D, AdaptiveMaxPooling1D, AdaptiveMaxPooling2D, AdaptiveMaxPooling3D in mod adaptive;
    }
    mod shape {
        Flatten, Reshape in mod reshape;
        Permute, RepeatVector, Identity in mod permute;
        SelectStep, SliceSteps in mod select_step;
        ZeroPadding1D, ZeroPadding2D, ZeroPadding3D in mod zero_padding;
        Cropping1D, Cropping2D, Cropping3D in mod cropping;
        UpSampling1D, UpSampling2D, UpSampling3D in mod upsampling;
        Resizing, CenterCrop, RandomCrop in mod resizing;
    }
    mod norm {
        BatchNormalization, LayerNormalization in mod normalization;
        GroupNormalization in mod group_normalization;
        RMSNormalization, UnitNormalization in mod rms_normalization;
        SpectralNormalization in mod spectral_normalization;
    }
    mod random {
        Dropout in mod dropout;
        SpatialDropout1D, SpatialDropout2D, SpatialDropout3D in mod spatial_dropout;
        GaussianNoise, GaussianDropout, AlphaDropout in mod noise;
        RandomFlip, RandomTranslation, RandomRotation, RandomZoom, RandomBrightness, RandomContrast in mod random_image;
        StochasticDepth in mod stochastic_depth;
    }
    mod recurrent {
        LSTM, GRU, SimpleRNN in mod rnn;
        ConvLSTM1D, ConvLSTM2D, ConvLSTM3D in mod conv_lstm;
        Bidirectional in mod bidirectional;
        TimeDistributed in mod time_distributed;
    }
    mod attention {
        Dot in mod dot;
        MultiHeadAttention in mod multi_head_attention;
        Attention, AdditiveAttention in mod plain_attention;
        GroupQueryAttention in mod group_query_attention;
        TransformerBlock in mod transformer;
        ClassToken, FirstStep in mod class_token;
        TokenStep in mod token_step;
        RelativePositionBias in mod relative_position_bias;
        WindowAttention in mod window_attention;
    }
}

/// Samples and parity cases for tests of all layers.
pub mod testing {
    pub use super::sample::LayerSample;

    /// Returns test samples of all layers, with valid and invalid inputs: at least one per class.
    pub fn samples() -> Vec<LayerSample> {
        super::all_samples()
    }

    /// Keras parity test cases listed in the layers' files, each as a JSON array.
    pub fn parity_cases() -> impl Iterator<Item = &'static str> {
        super::PARITY.iter().copied()
    }
}

// Names of the previous version.
#[doc(hidden)]
pub use self::{FactorRange as Span, SizeArgument as Each, WrappedLayer as Wrapped};
