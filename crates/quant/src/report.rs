//! What eight bits do to each layer: how far its integers are from the floats, on samples.

use crate::calibrate::{Ranges, layer_of};
use crate::ends::{dequantized, quantized};
use crate::quantize::{Options, quantize};
use std::collections::BTreeMap;
use systole_ir::{DType, Literal, Result};
use systole_tflite::{Interpreter, Model};

/// A layer in eight bits.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReport {
    /// Its name.
    pub layer: String,
    /// Its operators' names.
    pub operators: Vec<&'static str>,
    /// What was seen of its output.
    pub seen: (f32, f32),
    /// What its integers cover.
    pub chosen: (f32, f32),
    /// Share of the values that lie outside.
    pub clipped: f64,
    /// Signal over noise of its output in the whole int8 graph, in dB: 10 · log₁₀(Σ x² / Σ (x − x')²); infinite where equal.
    pub snr: f64,
}

/// Each layer with operators, in their order.
///
/// # Errors
/// When a sample does not fit.
pub fn report(float: &Model, int8: &Model, ranges: &Ranges, samples: &[Literal]) -> Result<Vec<LayerReport>> {
    let noise = noise(float, int8, samples)?;
    let mut layers: Vec<LayerReport> = Vec::new();
    for o in &float.operators {
        let Some((&y, t)) = o.outputs.first().and_then(|y| Some((y, float.tensors.get(*y)?))) else {
            continue;
        };
        let layer = layer_of(&t.name);
        let (signal, error) = noise.get(&t.name).copied().unwrap_or((0.0, 0.0));
        let range = |of: &[Option<(f32, f32)>]| of.get(y).copied().flatten().unwrap_or((0.0, 0.0));
        let row = LayerReport {
            layer: layer.into(),
            operators: vec![o.op.name()],
            seen: range(&ranges.seen),
            chosen: range(&ranges.chosen),
            clipped: ranges.clipped.get(y).copied().unwrap_or(0.0),
            snr: 10.0 * (signal / error).log10(),
        };
        match layers.last_mut().filter(|l| l.layer == row.layer) {
            Some(last) => {
                let operators = [last.operators.clone(), row.operators].concat();
                *last = LayerReport { operators, ..row };
            }
            None => layers.push(row),
        }
    }
    Ok(layers)
}

/// Squares of what tensors hold, and of what integers are away from it, by name.
fn noise(float: &Model, int8: &Model, samples: &[Literal]) -> Result<BTreeMap<String, (f64, f64)>> {
    let (exact, rounded) = (Interpreter::new(float)?, Interpreter::new(int8)?);
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for sample in samples {
        let mut known: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
        exact.run_with(std::slice::from_ref(sample), |i, x| {
            if let (DType::F32, Some(t)) = (x.dtype(), float.tensors.get(i)) {
                known.insert(&t.name, x.to_f32s());
            }
        })?;
        let input = int8.tensor(int8.inputs.first().copied().unwrap_or(0))?;
        let mut failed = None;
        rounded.run_with(&[quantized(sample, input)?], |i, x| {
            let Some((t, exact)) = int8.tensors.get(i).and_then(|t| Some((t, known.get(t.name.as_str())?)))
            else {
                return;
            };
            match dequantized(x, t) {
                Ok(y) => {
                    let sum = sums.entry(t.name.clone()).or_default();
                    for (a, b) in exact.iter().zip(y.to_f32s()) {
                        sum.0 += f64::from(*a) * f64::from(*a);
                        sum.1 += f64::from(a - b) * f64::from(a - b);
                    }
                }
                Err(e) => failed = Some(e),
            }
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    Ok(sums)
}

/// The graph with one layer in eight bits and all others in floats: what it alone costs.
///
/// # Errors
/// As of [`quantize`].
pub fn alone(float: &Model, ranges: &Ranges, options: &Options, layer: &str) -> Result<Model> {
    let name = |y: &usize| float.tensors.get(*y).map(|t| layer_of(&t.name).to_string());
    let others = float.operators.iter().filter_map(|o| name(o.outputs.first()?)).filter(|name| name != layer);
    let mut skip: Vec<String> = others.collect();
    skip.dedup();
    quantize(float, ranges, &Options { skip, float_interface: true, ..options.clone() })
}
