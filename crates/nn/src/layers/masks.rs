//! How masks go on from layer to layer: what of an output counts, by what counts of the inputs.

use super::built_in::*;

/// Layers whose output has the steps of their first input: what counts there counts behind them.
const THAT_HAND_ON: [&str; 27] = [
    "Activation",
    "ActivityRegularization",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
    "BatchNormalization",
    "Dense",
    "Dropout",
    "ELU",
    "GaussianDropout",
    "GaussianNoise",
    "GroupNormalization",
    "GroupQueryAttention",
    "Identity",
    "LayerNormalization",
    "LeakyReLU",
    "MultiHeadAttention",
    "Normalization",
    "PReLU",
    "PositionEmbedding",
    "ReLU",
    "Rescaling",
    "Softmax",
    "SpatialDropout1D",
    "TimeDistributed",
    "TransformerBlock",
    "UnitNormalization",
];

/// Layers that join inputs of one shape: a step counts where it does in any input, if all have masks.
const THAT_JOIN: [&str; 6] = ["Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract"];

/// Layers that give one output for each step where they are asked to.
const RECURRENT: [&str; 4] = ["Bidirectional", "GRU", "LSTM", "SimpleRNN"];

/// Gives a layer's output the mask that its inputs' make.
pub(super) fn pass_on(cx: &mut Cx, class: &str, inputs: &[Tensor], y: &Tensor) {
    let mask = match inputs {
        [] => None,
        _ if THAT_JOIN.contains(&class) => joined(cx, inputs),
        _ if class == "Concatenate" => concatenated(cx, inputs, y),
        [x, ..] if THAT_HAND_ON.contains(&class) || (RECURRENT.contains(&class) && y.rank() == 3) => {
            cx.mask_of(x)
        }
        _ => None,
    };
    let fits = |mask: &Tensor| y.shape().starts_with(mask.shape());
    if let Some(mask) = mask.filter(fits) {
        cx.set_mask(y, &mask);
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
