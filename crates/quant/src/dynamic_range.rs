//! Weights in eight bits, all else in floats: a quarter of the size, no samples needed.

use crate::calibrate::layer_of;
use crate::quantize_weights::{QuantWeightLayout, weights_alone};
use systole_ir::{Result, ResultExt};
use systole_tflite::{TfliteModel, TfliteOp};

/// Weights of fewer elements stay floats, as TensorFlow's converter has it.
const LEAST: usize = 1024;

/// The graph with the weights of convolutions and dense layers in int8, each output channel of a convolution with its own
/// scale; operators dequantise them or quantise their inputs on the way.
///
/// # Errors
/// When a scale underflows; names the layer.
pub fn dynamic(model: &TfliteModel) -> Result<TfliteModel> {
    let mut made = model.clone();
    for o in &model.operators {
        let dimension = match o.op {
            TfliteOp::Conv2D | TfliteOp::FullyConnected => 0,
            TfliteOp::DepthwiseConv2D => 3,
            _ => continue,
        };
        let Some(w) = o.inputs.get(1).copied().flatten() else { continue };
        let weights = model.tensor(w)?;
        if weights.data.is_none() || weights.ty.elements() < LEAST {
            continue;
        }
        let channels = weights.dims().get(dimension).copied().unwrap_or(1);
        let layout = QuantWeightLayout {
            dimension,
            channels,
            per_channel: o.op != TfliteOp::FullyConnected,
            steps: None,
        };
        made.tensors[w] =
            weights_alone(weights, &layout).at(|| format!("layer {}", layer_of(&weights.name)))?;
    }
    Ok(made)
}
