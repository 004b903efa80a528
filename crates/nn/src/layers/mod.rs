//! The built-in layers, with Keras's names, arguments and defaults. One file for each family.
//!
//! Each layer is a plain struct that implements [`Layer`]; [`LayerSpec`] is one in its place in a model, made by the
//! functions with Keras's snake names ([`conv2d`], [`dense`], …) and changed by setters named as Keras's arguments.
//! Layers cast what they compute with to the policy's compute type, integers included; layers that only move
//! elements cast floats and leave integers alone.
//!
//! ```
//! use systole_nn::layers::*;
//! let c = conv2d(64, (3, 3)).padding("same").activation("relu");
//! assert!(c.check().is_ok());
//! let e = conv2d(64, (3, 3)).padding("smae").check().unwrap_err().to_string();
//! assert!(e.contains("did you mean `same`"), "{e}");
//! ```

mod activations;
mod argument;
mod attention;
mod constructors;
mod conv;
mod dense;
mod dropout;
mod embedding;
mod merge;
mod normalization;
mod padding;
mod pool;
mod recurrent;
mod rescaling;
mod shape;
mod sliding;
mod spec;
mod transformer;

pub use activations::{ActivationLayer, ELU, LeakyReLU, ReLU, Softmax};
pub use argument::{Axes, Padding, Pair};
pub use attention::MultiHeadAttention;
pub use constructors::*;
pub use conv::{Conv2D, DepthwiseConv2D};
pub use dense::Dense;
pub use dropout::Dropout;
pub use embedding::{Embedding, PositionEmbedding, ReversibleEmbedding};
pub use merge::{Add, Average, Concatenate, Maximum, Minimum, Multiply, Subtract};
pub use normalization::{BatchNormalization, LayerNormalization};
pub use padding::{Borders, ZeroPadding2D};
pub use pool::{AveragePooling2D, GlobalAveragePooling2D, GlobalMaxPooling2D, MaxPooling2D};
pub use recurrent::{GRU, LSTM, SimpleRNN};
pub use rescaling::Rescaling;
pub use shape::{Flatten, Reshape};
pub use spec::{BuiltIn, CustomLayers, Kind, LAYER_NAMES, LayerConstructor, LayerSpec};
pub use transformer::TransformerBlock;

use crate::initializer::Initializer;
use crate::layer::{Cx, Layer};
use serde::Serialize;
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Result, Shape, Tensor, TensorType};

/// What every built-in layer has besides [`Layer`]: arguments whose values can be wrong on their own.
trait Arguments: Layer {
    /// Errors with the first argument that no input could make right.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Applies a layer that takes one input: checks arguments and the number of inputs, then builds.
fn one_input<L: Arguments>(
    layer: &L,
    cx: &mut Cx,
    inputs: &[Tensor],
    build: impl FnOnce(&mut Cx, &Tensor) -> Result<Tensor>,
) -> Tensor {
    let built = match inputs {
        [x] if x.is_poisoned() => return x.clone(),
        [x] => layer.check().and_then(|()| build(cx, x)),
        _ => Err(Error::new(
            ErrorKind::Graph,
            format!("{} takes one input, got {}", layer.class_name(), inputs.len()),
        )
        .hint("join several with concatenate or add first")),
    };
    built.unwrap_or_else(|e| refuse(cx, inputs, e))
}

/// Records that a layer cannot take its inputs.
fn refuse(cx: &Cx, inputs: &[Tensor], error: Error) -> Tensor {
    match inputs.first() {
        Some(x) => cx.fail(x, error),
        None => cx.builder().scalar(DType::F32, 0.0).fail(error),
    }
}

/// `x: T[…] → compute type[…]`.
fn cast(cx: &Cx, x: &Tensor) -> Tensor {
    x.convert(cx.precision().compute_dtype())
}

/// Casts floats to the compute type and leaves integers alone: they may be on their way to an embedding.
fn cast_floats(cx: &Cx, x: &Tensor) -> Tensor {
    if x.dtype().is_float() { cast(cx, x) } else { x.clone() }
}

/// A trainable weight in the compute type, or an error where its size is out of reach.
fn weight(
    cx: &mut Cx,
    class: &str,
    name: &str,
    shape: &[usize],
    initializer: &Initializer,
) -> Result<Tensor> {
    sized(class, name, shape)?;
    Ok(cx.weight(name, shape, initializer))
}

/// Errors when a weight would have more elements than any machine holds, before their count overflows.
fn sized(class: &str, name: &str, shape: &[usize]) -> Result<()> {
    let shape = Shape::new(shape);
    match shape.checked_elements() {
        Some(n) if n < 1 << 40 => Ok(()),
        _ => Err(Error::new(ErrorKind::Graph, format!("{class}'s {name} would be f32{shape}"))
            .because("that is more than 2⁴⁰ elements")
            .hint("make the layer or its input smaller")),
    }
}

/// `Conv2D needs images [B, H, W, C], got f32[1000, 784]`. The caller adds what to try.
fn unfit(class: &str, needs: &str, got: &TensorType) -> Error {
    Error::new(ErrorKind::Graph, format!("{class} needs {needs}, got {got}"))
}

/// `Dense needs units of at least 1; it is 0`.
fn wrong(class: &str, needs: &str, is: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("{class} needs {needs}; it is {is}"))
}

/// Errors unless an argument is a finite number of at least 0.
fn at_least_0(class: &str, argument: &str, value: f64) -> Result<()> {
    if !value.is_finite() || value < 0.0 {
        return Err(wrong(class, &format!("{argument} of at least 0"), value));
    }
    Ok(())
}

/// A dimension number that may count from the last, as an index below `rank`.
fn dim_index(class: &str, axis: i64, x: &Tensor) -> Result<usize> {
    let rank = x.rank() as i64;
    let index = if axis < 0 { axis.saturating_add(rank) } else { axis };
    match usize::try_from(index) {
        Ok(i) if index < rank => Ok(i),
        _ => Err(unfit(class, &format!("an input with dimension {axis} (its axis)"), x.ty()).hint(format!(
            "axis counts from 0 or, negative, from the last: {} to {}",
            -rank,
            rank - 1
        ))),
    }
}

/// A layer's arguments for model files.
fn config_of(layer: &impl Serialize) -> Value {
    // Only a map with keys that are not text fails, which no layer has.
    serde_json::to_value(layer).unwrap_or(Value::Null)
}
