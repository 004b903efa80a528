//! [`LayerLowering`]: the inference operators of a layer, for `.tflite` and ONNX export and quantization.

use crate::layer::cx::Cx;
use systole_ir::{DType, Tensor, TensorType};

/// How a layer propagates the masks of its inputs (`bool[B, S]`: the valid time steps).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskPropagation {
    /// The output has the mask of the first input.
    First,
    /// A step of the output is valid if it is valid in any input, provided that all inputs have masks.
    Any,
    /// Concatenates the masks along with the inputs; an input without a mask is valid everywhere.
    Concatenated,
}

impl MaskPropagation {
    /// Computes the mask of the output `y`.
    pub(crate) fn of(self, cx: &Cx, inputs: &[Tensor], y: &Tensor) -> Option<Tensor> {
        let mask = match self {
            MaskPropagation::First => cx.mask_of(inputs.first()?),
            MaskPropagation::Any => joined(cx, inputs),
            MaskPropagation::Concatenated => concatenated(cx, inputs, y),
        };
        mask.filter(|mask| y.shape().starts_with(mask.shape()))
    }
}

fn joined(cx: &Cx, inputs: &[Tensor]) -> Option<Tensor> {
    let masks: Vec<Tensor> = inputs.iter().map(|x| cx.mask_of(x)).collect::<Option<_>>()?;
    let same = masks.iter().all(|mask| mask.shape() == masks[0].shape());
    same.then(|| masks.into_iter().reduce(|a, b| a.or(&b)))?
}

/// An input without a mask is valid everywhere. When features are concatenated, a step is valid if it is valid in any
/// input.
fn concatenated(cx: &Cx, inputs: &[Tensor], y: &Tensor) -> Option<Tensor> {
    let rank = inputs.iter().find_map(|x| cx.mask_of(x)).map(|mask| mask.rank())?;
    let of = |x: &Tensor| {
        let shape = x.shape().get(..rank)?;
        let all = || x.builder().full(&TensorType::new(DType::Bool, shape), 1.0);
        Some(cx.mask_of(x).filter(|mask| mask.shape().dims() == shape).unwrap_or_else(all))
    };
    let masks: Vec<Tensor> = inputs.iter().map(of).collect::<Option<_>>()?;
    let grown = (0..rank).find(|&d| inputs.iter().any(|x| x.shape()[d] != y.shape()[d]));
    match grown {
        Some(axis) => Some(Tensor::concatenate(&masks.iter().collect::<Vec<_>>(), axis)),
        None => masks.into_iter().reduce(|a, b| a.or(&b)),
    }
}
