//! How masks go on from layer to layer: which steps of an output count, by which steps of the inputs count.

use crate::layer::cx::Cx;
use systole_ir::{DType, Tensor, TensorType};

/// What a layer makes of the masks of its inputs (`bool[B, S]`: which steps count).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskPropagation {
    /// The output has the steps of the first input.
    First,
    /// A step of the output counts where it does in any input, if all have masks.
    Any,
    /// The masks follow each other as the inputs do; an input without one counts everywhere.
    Concatenated,
}

impl MaskPropagation {
    /// The mask of the output `y`.
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

/// An input without a mask counts everywhere. Along the features a step counts where it does in any input.
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
