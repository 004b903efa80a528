//! The [`Layer`] trait: a function from tensors to tensors that requests weights by name from its context.
//!
//! The same [`Layer::call`] serves shape inference, initialization, training and prediction. A first trace with
//! [`Cx::collecting`] records which weights the layers request; later traces bind them.

pub(crate) mod activation;
pub(crate) mod adapter;
pub(crate) mod argument;
pub(crate) mod capability;
pub(crate) mod constraint;
mod context;
pub(crate) mod cx;
pub(crate) mod decoding_state;
pub(crate) mod fake_quant;
pub(crate) mod fixed_point;
pub(crate) mod initializer;
pub(crate) mod lowering;
pub(crate) mod masks;
pub(crate) mod precision;
pub(crate) mod quantization_state;
pub(crate) mod quantize_values;
pub(crate) mod quantized_weight;
pub(crate) mod quantizer;
pub(crate) mod regularizer;
pub(crate) mod weight_role;

pub(crate) use cx::PieceInput;
pub use cx::{Cx, WeightSpec};
pub use precision::Precision;

use crate::layer::capability::{ChannelPruning, IncrementalDecoding, no_decoding};
use crate::layer::lowering::{LayerLowering, no_operators};
use crate::layer::masks::MaskPropagation;
use crate::layer::weight_role::WeightRole;
use std::fmt::Debug;
use systole_ir::{Result, Tensor, err};

/// A building block of models. Implement it for custom layers.
///
/// ```
/// use systole_nn::{Cx, Layer, Initializer};
/// use systole_ir::Tensor;
/// /// `x: T[B, K] → T[B, K]`: a learned scale for each feature.
/// #[derive(Debug)]
/// struct Scale;
/// impl Layer for Scale {
///     fn class_name(&self) -> &'static str { "Scale" }
///     fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
///         let features = inputs[0].dim(-1);
///         let scale = cx.weight("scale", &[features], &Initializer::Ones);
///         &inputs[0] * scale
///     }
/// }
/// ```
pub trait Layer: Debug + Send + Sync {
    /// Class name in model files. In snake case, with a number, it is the default layer name.
    fn class_name(&self) -> &'static str;

    /// Builds the layer's part of the graph. Weights come from `cx`; their shapes may depend on the inputs' shapes.
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor;

    /// Returns the arguments for model files. A custom layer is reconstructed from them when its model is loaded.
    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Returns the inference operators, for `.tflite` and ONNX export and for quantization-aware training. The other
    /// capabilities are derived from it unless the layer overrides them.
    ///
    /// # Errors
    /// By default: the layer has no operators.
    fn lowering(&self) -> Result<LayerLowering> {
        Err(no_operators(self.class_name()))
    }

    /// Returns how masks of the inputs propagate, if [`Layer::call`] sets none with [`Cx::set_mask`].
    ///
    /// # Errors
    /// If masks end at the layer.
    fn masks(&self) -> Result<MaskPropagation> {
        self.lowering().ok().and_then(|own| own.masks()).ok_or_else(|| {
            err!(Unsupported, "cannot propagate masks through {}", self.class_name())
                .because("the layer's output may have other time steps than its input")
        })
    }

    /// Returns how the layer computes the next token of a sequence.
    ///
    /// # Errors
    /// If it may look at later positions.
    fn decoding(&self) -> Result<IncrementalDecoding> {
        self.lowering().ok().and_then(|own| own.decoding()).unwrap_or_else(|| {
            let class = self.class_name();
            let why = format!("{class} may look at later positions, or is a custom layer");
            Err(no_decoding().because(why))
        })
    }

    /// Returns how the layer treats pruned channels.
    ///
    /// # Errors
    /// If channels cannot be traced through it.
    fn channels(&self) -> Result<ChannelPruning> {
        self.lowering()
            .ok()
            .and_then(|own| own.channels())
            .ok_or_else(|| err!(Unsupported, "cannot trace channels through {}", self.class_name()))
    }

    /// Whether its weights `kernel` and `embeddings` can have LoRA adapters. By default they can, and [`Cx::weight`]
    /// adds them.
    ///
    /// # Errors
    /// If the weight is not a matrix from inputs to outputs, or is transformed before use.
    fn adapters(&self) -> Result<()> {
        Ok(())
    }

    /// Returns how its weights map to the corresponding PyTorch module; by default none.
    fn weight_roles(&self) -> Vec<WeightRole> {
        Vec::new()
    }
}
