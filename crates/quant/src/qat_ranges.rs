//! Uses the ranges learned in quantization-aware training, instead of calibration, for the tensors of the lowered
//! graph.

use crate::calibrate::{TensorRanges, layer_of};
use crate::lower::lowered;
use crate::quantize::{QuantizeOptions, choose};
use crate::scales::spread;
use std::collections::BTreeMap;
use systole_ir::{Result, ResultExt, err};
use systole_nn::{Model as Layers, NodeInput, TrainedRanges};
use systole_tflite::{TfliteModel, TfliteOp, TfliteOperator};

/// A model from quantization-aware training: float graph, ranges and quantization options.
#[derive(Clone, Debug)]
pub struct QatModel {
    /// Float graph; see [`crate::lower`].
    pub float: TfliteModel,
    /// Trained ranges.
    pub ranges: TensorRanges,
    /// Layers that stay in floats, and whether channels have their own scales.
    pub options: QuantizeOptions,
}

/// Returns the inputs of [`crate::quantize`] for a model trained with quantization; `None` for other models.
///
/// # Errors
/// See [`crate::lower`]; also if the model was not trained after it was prepared for quantization, or the ranges belong
/// to another model: names the layer.
pub fn trained(layers: &Layers) -> Result<Option<QatModel>> {
    let Some(found) = layers.trained_ranges()? else { return Ok(None) };
    let (float, made, _) = lowered(layers)?;
    let names: Vec<&str> =
        float.operators.iter().filter_map(|o| Some(layer_of(name(&float, *o.outputs.first()?)))).collect();
    let skip = found.floats.iter().filter(|layer| names.contains(&layer.as_str())).cloned().collect();
    let options = QuantizeOptions { skip, per_channel: found.per_channel, ..QuantizeOptions::default() };
    let mut chosen = vec![None; float.tensors.len()];
    for place in &found.places {
        let tensor = tensor_of(layers, &float, &made, &place.layer, &place.place)
            .at(|| format!("layer {}", place.layer))?;
        chosen[tensor] = Some(place.range);
    }
    let steps = steps_of(&float, &found)?;
    let ranges = TensorRanges { seen: chosen.clone(), clipped: vec![0.0; chosen.len()], chosen, steps };
    let chosen = spread(&float, &ranges, &choose(&float, &options)?)?;
    Ok(Some(QatModel { float, ranges: TensorRanges { seen: chosen.clone(), chosen, ..ranges }, options }))
}

fn name(model: &TfliteModel, tensor: usize) -> &str {
    model.tensors.get(tensor).map_or("", |t| t.name.as_str())
}

/// Returns the output and weights of a layer's operators with weights.
fn weighted(model: &TfliteModel, layer: &str) -> Vec<(usize, usize)> {
    let is_weighted = |op: TfliteOp| {
        matches!(
            op,
            TfliteOp::Conv2D | TfliteOp::DepthwiseConv2D | TfliteOp::FullyConnected | TfliteOp::TransposeConv
        )
    };
    let own = model.operators.iter().filter(|o| is_weighted(o.op));
    let own = own.filter_map(|o| Some((*o.outputs.first()?, o.inputs.get(1).copied().flatten()?)));
    own.filter(|(y, _)| layer_of(name(model, *y)) == layer).collect()
}

/// Returns the tensor at a quantization point of a layer.
fn tensor_of(
    layers: &Layers,
    float: &TfliteModel,
    made: &[usize],
    layer: &str,
    place: &str,
) -> Result<usize> {
    let nodes = &layers.architecture().nodes;
    // A table used both for lookup and as a matrix is two nodes.
    let is_rows = |i: usize| {
        let looks_up = |o: &TfliteOperator| {
            o.op == TfliteOp::Gather && made.get(i).is_some_and(|y| o.outputs.contains(y))
        };
        float.operators.iter().any(looks_up)
    };
    let mut own = (0..nodes.len()).filter(|&i| nodes[i].name == layer);
    let node = match place {
        "rows" => own.find(|&i| is_rows(i)),
        _ => own.find(|&i| !is_rows(i)),
    };
    let input = |k: usize| {
        let source = nodes.get(node?)?.inputs.get(k)?;
        match source {
            NodeInput::Input(i) => float.inputs.get(*i).copied(),
            NodeInput::Layer(i) => made.get(*i).copied(),
        }
    };
    let own = weighted(float, layer);
    let found = match place {
        "output" | "rows" => node.and_then(|i| made.get(i).copied()),
        "inner" => own.last().map(|(y, _)| *y),
        "parts" => own.first().map(|(y, _)| *y),
        "input" => input(0),
        // In layer normalization the normalized value has the layer's own name.
        "normalized" => named(float, layer),
        "scores" => scores(float, layer),
        "mean" | "centred" | "squared" | "variance" | "sum" | "rsqrt" | "scaled" | "heads"
        | "self_attention_sum" | "feedforward_sum" => named(float, &format!("{layer}/{place}")),
        within if within.contains('/') => within_layer(float, layer, within),
        other => other.strip_prefix("input_").and_then(|k| k.parse().ok()).and_then(input),
    };
    found.ok_or_else(|| err!(Bug, "no tensor found for {place}"))
}

/// Returns the attention scores, after masking if there is a mask.
fn scores(float: &TfliteModel, attention: &str) -> Option<usize> {
    named(float, &format!("{attention}/masked")).or_else(|| named(float, &format!("{attention}/scores")))
}

fn named(float: &TfliteModel, name: &str) -> Option<usize> {
    float.tensors.iter().position(|t| t.name == name)
}

/// Returns the tensor at a quantization point of a nested layer: `self_attention/query/output`.
fn within_layer(float: &TfliteModel, layer: &str, place: &str) -> Option<usize> {
    let (path, what) = place.rsplit_once('/')?;
    let own = format!("{layer}/{path}");
    match what {
        "inner" | "normalized" => named(float, &own),
        "scores" => scores(float, &own),
        "output" if path.ends_with("_layer_norm") => named(float, &format!("{own}/shifted")),
        // An activation that is a separate operator.
        "output" if path == "feedforward_intermediate_dense" => {
            let inside = format!("{layer}/inside");
            let is_it = |name: &str| {
                name.strip_prefix(&inside).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            float.tensors.iter().position(|t| is_it(&t.name)).or_else(|| named(float, &own))
        }
        // The combined heads have the attention's own name.
        "output" => named(float, own.strip_suffix("/attention_output").unwrap_or(&own)),
        _ => named(float, &format!("{own}/{what}")),
    }
}

/// Returns trained weight scales by weight tensor.
fn steps_of(float: &TfliteModel, found: &TrainedRanges) -> Result<BTreeMap<usize, Vec<f32>>> {
    let one = |((layer, weight), steps): (&(String, String), &Vec<f32>)| {
        let missing = || err!(Bug, "no operator has weight {layer}/{weight}");
        if let Some((path, _)) = weight.rsplit_once('/') {
            let own = format!("{layer}/{path}");
            let y =
                named(float, own.strip_suffix("/attention_output").unwrap_or(&own)).ok_or_else(missing)?;
            let w = weighted(float, layer).into_iter().find(|(made, _)| *made == y).ok_or_else(missing)?.1;
            // In the graph the score divisor is folded into the query kernel.
            let heads = named(float, &format!("{own}/heads")).filter(|_| path.ends_with("query"));
            let width = heads.and_then(|heads| float.tensors[heads].dims().last().copied());
            let factor = width.map_or(1.0, |width| (1.0 / (width as f64).sqrt()) as f32);
            return Ok((w, steps.iter().map(|step| step * factor).collect()));
        }
        let own = weighted(float, layer);
        let at = if weight == "depthwise_kernel" { own.first() } else { own.last() };
        Ok((at.ok_or_else(missing)?.1, steps.clone()))
    };
    found.steps.iter().map(one).collect()
}
