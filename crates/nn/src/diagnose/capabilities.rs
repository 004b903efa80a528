//! Capability matrix of built-in layers: int8 training, pruning, decoding, LoRA, PyTorch weights.
//!
//! Computed from the layers' sample arguments.

use crate::layer::adapter::is_adaptable;
use crate::layer::{Cx, Precision, WeightSpec};
use crate::layers::testing::{LayerSample, samples};
use crate::layers::{BuiltIn, LAYER_NAMES, LayerSpec, conv1d, conv2d, dense};
use crate::model::architecture::{Architecture, input_of};
use crate::model::quantize_options::Quantize;
use systole_ir::{Error, GraphBuilder, Result};

/// Names of optional layer capabilities, in the order of [`LayerCapabilities::all`].
pub const CAPABILITIES: [&str; 7] =
    ["operators", "int8 training", "channel pruning", "masks", "decoding", "adapters", "PyTorch weights"];

/// Capabilities of a layer class: int8 training, pruning, decoding, LoRA and others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerCapabilities {
    /// Class name, such as `Conv2D`.
    pub class: &'static str,
    /// For each of [`CAPABILITIES`], nothing or the reason why the layer lacks it.
    pub all: [std::result::Result<(), String>; 7],
}

/// Returns the matrix of built-in layers and capabilities. A layer has a capability if any of its samples does.
///
/// ```
/// let all = systole_nn::layer_capabilities();
/// let dense = all.iter().find(|layer| layer.class == "Dense").unwrap();
/// assert!(dense.all.iter().all(|capability| capability.is_ok()));
/// ```
pub fn layer_capabilities() -> Vec<LayerCapabilities> {
    let samples = samples();
    let of_class = |class: &'static str| {
        let own = samples.iter().filter(|sample| sample.spec.class_name() == class);
        let all = own.map(of_sample).reduce(|known, other| {
            let mut pairs = known.into_iter().zip(other);
            std::array::from_fn(|_| pairs.next().map_or(Ok(()), |(a, b)| a.or_else(|why| b.map_err(|_| why))))
        });
        let mut all = all.unwrap_or_else(|| std::array::from_fn(|_| Err("untried".into())));
        // Samples have unusual arguments; some capabilities require the defaults.
        if let Some(usual) = BuiltIn::with_defaults(class) {
            let usual = usual.layer();
            let methods =
                [why(usual.lowering()), why(usual.channels()), why(usual.masks()), why(usual.decoding())];
            for (at, own) in [0, 2, 3, 4].into_iter().zip(methods) {
                if own.is_ok() {
                    all[at] = own;
                }
            }
        }
        LayerCapabilities { class, all }
    };
    LAYER_NAMES.iter().map(|class| of_class(class)).collect()
}

fn of_sample(sample: &LayerSample) -> [std::result::Result<(), String>; 7] {
    let (layer, weights) = (sample.spec.layer(), weights(sample));
    let adapters = match weights.iter().any(|w| is_adaptable(&w.path) && w.shape.len() > 1) {
        true => why(layer.adapters()),
        false => Err("it has no kernel or embedding table".into()),
    };
    let roles = layer.weight_roles();
    let torch = match weights.iter().all(|w| roles.iter().any(|role| role.name == w.path)) {
        _ if weights.is_empty() => Err("it has no weights".into()),
        true => Ok(()),
        false => Err("no PyTorch module with its weights is known".into()),
    };
    [
        why(layer.lowering()),
        why(quantized(sample)),
        why(layer.channels()),
        why(layer.masks()),
        why(layer.decoding()),
        adapters,
        torch,
    ]
}

fn why<T>(result: Result<T>) -> std::result::Result<(), String> {
    let reason = |e: Error| e.reasons().first().cloned().unwrap_or_else(|| e.what().to_string());
    result.map(|_| ()).map_err(reason)
}

fn weights(sample: &LayerSample) -> Vec<WeightSpec> {
    let g = GraphBuilder::new("weights");
    let mut cx = Cx::collecting(&g, Precision::Float32);
    let inputs: Vec<_> = sample.inputs.iter().map(|ty| g.parameter(ty.clone(), "x")).collect();
    sample.spec.call(&mut cx, &inputs);
    cx.into_specs()
}

/// Tests quantization-aware training of a layer, alone or folded into a preceding layer with weights.
fn quantized(sample: &LayerSample) -> Result<Architecture> {
    let alone = planned(&[&sample.spec], sample);
    let [input] = &sample.inputs[..] else { return alone };
    let channels = input.shape.last().copied().unwrap_or(1);
    let before = match input.rank() {
        4 => conv2d(channels, 3).padding("same"),
        3 => conv1d(channels, 3).padding("same"),
        _ => dense(channels),
    };
    alone.or_else(|e| planned(&[&before, &sample.spec], sample).map_err(|_| e))
}

fn planned(chain: &[&LayerSpec], sample: &LayerSample) -> Result<Architecture> {
    let inputs: Vec<_> = sample
        .inputs
        .iter()
        .enumerate()
        .map(|(i, ty)| input_of(&format!("x{i}"), ty.dtype, ty.shape.get(1..).unwrap_or_default()))
        .collect();
    let first = chain[0].clone().on(&inputs.iter().collect::<Vec<_>>());
    let output = chain[1..].iter().fold(first, |x, layer| x.apply((*layer).clone()));
    Architecture::functional(&inputs, &output)?.quantized(&Quantize::default())
}
