//! Reports the quantization error of each layer (SNR of int8 against float) on samples.

use crate::calibrate::{TensorRanges, layer_of};
use crate::float_eval::{each_sample, made};
use crate::io_quantization::{dequantized, quantized};
use crate::quantize::{QuantizeOptions, quantize};
use std::collections::BTreeMap;
use systole_int8::{Int8Program, Settings};
use systole_ir::{Literal, Result};
use systole_tflite::TfliteModel;

/// Quantization error of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReport {
    /// Layer name.
    pub layer: String,
    /// Names of its operators.
    pub operators: Vec<&'static str>,
    /// Observed range of its output.
    pub seen: (f32, f32),
    /// Quantization range.
    pub chosen: (f32, f32),
    /// Fraction of the values outside the quantization range.
    pub clipped: f64,
    /// Signal-to-noise ratio of its output in the int8 graph, in dB: 10 · log₁₀(Σ x² / Σ (x − x')²); infinite if equal.
    pub snr: f64,
}

/// Reports the quantization error of every layer with operators, in order.
///
/// # Errors
/// If a sample does not match the input.
pub fn report(
    float: &TfliteModel,
    int8: &TfliteModel,
    ranges: &TensorRanges,
    samples: &[Literal],
) -> Result<Vec<LayerReport>> {
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

/// Computes squared tensor values and squared int8 errors, by tensor name.
fn noise(
    float: &TfliteModel,
    int8: &TfliteModel,
    samples: &[Literal],
) -> Result<BTreeMap<String, (f64, f64)>> {
    let tensors = made(float);
    let place = |o: &usize| {
        let name = &int8.tensors.get(*o)?.name;
        tensors.iter().position(|&t| float.tensors.get(t).is_some_and(|t| t.name == *name))
    };
    let outputs = int8.operators.iter().flat_map(|o| o.outputs.iter().copied());
    let twins: Vec<(usize, usize)> = outputs.filter_map(|t| Some((place(&t)?, t))).collect();
    let asked = TfliteModel { outputs: twins.iter().map(|(_, t)| *t).collect(), ..int8.clone() };
    let program = Int8Program::new(asked, &Settings::from_knobs()?)?;
    let input = int8.tensor(int8.inputs.first().copied().unwrap_or(0))?;
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    each_sample(float, &tensors, samples, |k, exact| {
        for ((place, t), y) in twins.iter().zip(program.run(&[quantized(&samples[k], input)?])?) {
            let tensor = int8.tensor(*t)?;
            let sum = sums.entry(tensor.name.clone()).or_default();
            for (a, b) in exact[*place].iter().zip(dequantized(&y, tensor)?.to_f32s()) {
                sum.0 += f64::from(*a) * f64::from(*a);
                sum.1 += f64::from(a - b) * f64::from(a - b);
            }
        }
        Ok(())
    })?;
    Ok(sums)
}

/// Quantizes only one layer and keeps all others in floats, to measure its error alone.
///
/// # Errors
/// See [`quantize`].
pub fn alone(
    float: &TfliteModel,
    ranges: &TensorRanges,
    options: &QuantizeOptions,
    layer: &str,
) -> Result<TfliteModel> {
    let name = |y: &usize| float.tensors.get(*y).map(|t| layer_of(&t.name).to_string());
    let others = float.operators.iter().filter_map(|o| name(o.outputs.first()?)).filter(|name| name != layer);
    let mut skip: Vec<String> = others.collect();
    skip.dedup();
    quantize(float, ranges, &QuantizeOptions { skip, float_interface: true, ..options.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::DType;
    use systole_tflite::{TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor};

    #[test]
    fn the_error_of_a_layer_is_that_of_its_rounded_values() {
        let graph = |tensor: fn(&str) -> TfliteTensor| TfliteModel {
            tensors: ["x", "relu/y"].map(tensor).to_vec(),
            operators: vec![TfliteOperator::new(TfliteOp::Relu, [0], [1])],
            inputs: vec![0],
            outputs: vec![1],
            ..TfliteModel::default()
        };
        let float = graph(|name| TfliteTensor::new(name, [1, 3], DType::F32));
        let int8 = graph(|name| {
            TfliteTensor::new(name, [1, 3], DType::I8).quantized(TfliteQuantization::per_tensor(1.0, 0))
        });
        let samples = [[1.25f32, 3.0, -1.0], [0.0, 2.0, 0.0]]
            .map(|values| Literal::from_slice([1, 3], &values).unwrap());
        let sums = noise(&float, &int8, &samples).unwrap();
        // 1.25 becomes 1; all other values are multiples of the step.
        let expected = (1.25 * 1.25 + 9.0 + 4.0, 0.25 * 0.25);
        assert_eq!(sums, BTreeMap::from([("relu/y".to_string(), expected)]));
        let ranges = TensorRanges {
            chosen: vec![None, Some((0.0, 2.0))],
            seen: vec![None, Some((0.0, 3.0))],
            clipped: vec![0.0, 0.25],
            steps: BTreeMap::new(),
        };
        let row = LayerReport {
            layer: "relu".into(),
            operators: vec!["RELU"],
            seen: (0.0, 3.0),
            chosen: (0.0, 2.0),
            clipped: 0.25,
            snr: 10.0 * (expected.0 / expected.1).log10(),
        };
        assert_eq!(report(&float, &int8, &ranges, &samples).unwrap(), [row]);
    }
}
