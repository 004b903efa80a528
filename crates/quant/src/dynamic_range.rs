//! Dynamic-range quantization: int8 weights, float activations; a quarter of the size, no calibration samples.

use crate::calibrate::layer_of;
use crate::quantize_weights::{QuantWeightLayout, weights_alone};
use systole_ir::{Result, ResultExt};
use systole_tflite::{TfliteModel, TfliteOp};

/// Weights with fewer elements stay f32, as in TensorFlow's converter.
const LEAST: usize = 1024;

/// Quantizes the weights of convolutions (per channel) and dense layers to int8. Operators dequantize them or quantize
/// their inputs at run time.
///
/// # Errors
/// If a scale underflows; names the layer.
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
