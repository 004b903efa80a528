//! What a layer is: a function from tensors to tensors that asks its context for weights by name.
//!
//! The same [`Layer::call`] serves shape inference, initialisation, training and prediction. A first trace, with
//! [`Cx::collecting`], records which weights the layers ask for; later traces bind them.

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
use systole_ir::{Error, ErrorKind, Result, Tensor};

/// A building block of models. Implement it for layers of your own.
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
    /// Its name in model files and, in snake case and numbered, of its weights.
    fn class_name(&self) -> &'static str;

    /// Builds the layer's part of the graph. Weights come from `cx`; their shapes may depend on the inputs' shapes.
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor;

    /// Its arguments, for model files. A user-written layer gets them back when its model is loaded.
    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// What it computes when the model predicts, as operators: for `.tflite` and ONNX files, and for training in eight bits. The other
    /// capabilities follow from it unless the layer says otherwise.
    ///
    /// # Errors
    /// By default: the layer has no operators.
    fn lowering(&self) -> Result<LayerLowering> {
        Err(no_operators(self.class_name()))
    }

    /// What becomes of the masks of its inputs, where [`Layer::call`] sets none by [`Cx::set_mask`].
    ///
    /// # Errors
    /// When masks end at the layer.
    fn masks(&self) -> Result<MaskPropagation> {
        self.lowering().ok().and_then(|own| own.masks()).ok_or_else(|| {
            let what = format!("masks end at {}", self.class_name());
            Error::new(ErrorKind::Unsupported, what).because("its output may have other steps than its input")
        })
    }

    /// How it computes the next token of a sequence.
    ///
    /// # Errors
    /// When it may look at later positions.
    fn decoding(&self) -> Result<IncrementalDecoding> {
        self.lowering().ok().and_then(|own| own.decoding()).unwrap_or_else(|| {
            let class = self.class_name();
            let why = format!("{class} may look at places that come later, or is a layer of your own");
            Err(no_decoding().because(why))
        })
    }

    /// What it does with pruned channels.
    ///
    /// # Errors
    /// When channels cannot be followed through it.
    fn channels(&self) -> Result<ChannelPruning> {
        self.lowering().ok().and_then(|own| own.channels()).ok_or_else(|| {
            let what = format!("channels cannot be followed through {}", self.class_name());
            Error::new(ErrorKind::Unsupported, what)
        })
    }

    /// Whether its weights `kernel` and `embeddings` can have low-rank adapters: by default, as [`Cx::weight`] adds them.
    ///
    /// # Errors
    /// When such a weight is no matrix from inputs to outputs, or is changed before it is used.
    fn adapters(&self) -> Result<()> {
        Ok(())
    }

    /// Its weights as PyTorch's module of that kind has them; by default none: no such module is known.
    fn weight_roles(&self) -> Vec<WeightRole> {
        Vec::new()
    }
}
