//! Cross-layer weight equalization and bias correction (Nagel et al. 2019, Data-Free Quantization Through Weight
//! Equalization and Bias Correction). Channel ranges of adjacent layers are equalized before quantization; the mean
//! error of rounded weights is subtracted from the biases after it.

use crate::calibrate::is_float;
use crate::float_eval::{each_sample, made};
use systole_ir::{Literal, Result, err};
use systole_tflite::{FusedActivation, TfliteModel, TfliteOp, TfliteOperator};

/// Number of equalization rounds; each pair changes the next one's ranges.
const ROUNDS: usize = 10;

/// Scales each channel between two convolutions or dense layers so that the weights before and after it have equal
/// ranges; the function does not change. Only pairs with nothing or RELU between them are scaled.
///
/// # Errors
/// If the graph's constants are not floats.
pub fn equalize(model: &TfliteModel) -> Result<TfliteModel> {
    let mut made = model.clone();
    for _ in 0..ROUNDS {
        for n in 0..made.operators.len() {
            if let Some(next) = partner(&made, n) {
                equalize_pair(&mut made, n, next)?;
            }
        }
    }
    Ok(made)
}

fn is_weighted(op: TfliteOp) -> bool {
    matches!(op, TfliteOp::Conv2D | TfliteOp::DepthwiseConv2D | TfliteOp::FullyConnected)
}

/// Returns the only reader of operator `n`'s output if both have weights of their own.
fn partner(model: &TfliteModel, n: usize) -> Option<usize> {
    let o = model.operators.get(n)?;
    let y = *o.outputs.first()?;
    let fits = |o: &TfliteOperator| is_weighted(o.op) && owned(model, o).is_some();
    let passes = matches!(o.activation().ok()?, FusedActivation::None | FusedActivation::Relu);
    if !fits(o) || !passes || model.outputs.contains(&y) {
        return None;
    }
    let mut readers = model.operators.iter().enumerate().filter(|(_, o)| o.inputs.contains(&Some(y)));
    let (next, reader) = readers.next()?;
    let plain = reader.inputs.first() == Some(&Some(y)) && fits(reader) && readers.next().is_none();
    let (_, before, _) = owned(model, o)?;
    let (_, _, dims) = owned(model, reader)?;
    // Grouped channels and flattened images are skipped.
    let own = if reader.op == TfliteOp::DepthwiseConv2D { *dims.get(3)? } else { *dims.last()? };
    (plain && own == before).then_some(next)
}

/// Returns weights that only one operator reads: tensor index, the operator's output channels, dimensions.
fn owned(model: &TfliteModel, o: &TfliteOperator) -> Option<(usize, usize, Vec<usize>)> {
    let w = o.inputs.get(1).copied().flatten()?;
    let alone = model.operators.iter().filter(|o| o.inputs.contains(&Some(w))).count() == 1;
    let dims = model.tensors.get(w)?.dims().to_vec();
    let channels = if o.op == TfliteOp::DepthwiseConv2D { *dims.last()? } else { *dims.first()? };
    (alone && is_float(model, w) && model.tensors[w].data.is_some()).then_some((w, channels, dims))
}

fn equalize_pair(model: &mut TfliteModel, n: usize, next: usize) -> Result<()> {
    let (a, b) = (model.operators[n].clone(), model.operators[next].clone());
    let (Some((wa, channels, _)), Some((wb, _, _))) = (owned(model, &a), owned(model, &b)) else {
        return Ok(());
    };
    let Some(bias) = a.inputs.get(2).copied().flatten() else { return Ok(()) };
    let (mut first, mut second, mut offset) = (floats(model, wa)?, floats(model, wb)?, floats(model, bias)?);
    let per = first.len() / channels.max(1);
    let made_by = |at: usize| if a.op == TfliteOp::DepthwiseConv2D { at % channels } else { at / per.max(1) };
    // The last dimension is the input's channels; for depthwise also the output's.
    let read_by = |at: usize| at % channels;
    let greatest = |values: &[f32], channel: &dyn Fn(usize) -> usize| {
        let mut all = vec![0f32; channels];
        values.iter().enumerate().for_each(|(at, v)| all[channel(at)] = all[channel(at)].max(v.abs()));
        all
    };
    let (ranges, next_ranges) = (greatest(&first, &made_by), greatest(&second, &read_by));
    let factor = |(a, b): (&f32, &f32)| {
        let s = (a / b).sqrt();
        if s.is_normal() { s.clamp(1e-3, 1e3) } else { 1.0 }
    };
    let factors: Vec<f32> = ranges.iter().zip(&next_ranges).map(factor).collect();
    first.iter_mut().enumerate().for_each(|(at, v)| *v /= factors[made_by(at)]);
    offset.iter_mut().zip(&factors).for_each(|(v, s)| *v /= s);
    second.iter_mut().enumerate().for_each(|(at, v)| *v *= factors[read_by(at)]);
    [(wa, first), (wb, second), (bias, offset)].into_iter().try_for_each(|(t, values)| set(model, t, &values))
}

fn floats(model: &TfliteModel, tensor: usize) -> Result<Vec<f32>> {
    let t = model.tensor(tensor)?;
    let data = t.data.as_ref().ok_or_else(|| err!(Unsupported, "the weights {} are not constant", t.name))?;
    Ok(data.as_slice::<f32>()?.to_vec())
}

fn set(model: &mut TfliteModel, tensor: usize, values: &[f32]) -> Result<()> {
    let shape = model.tensor(tensor)?.ty.shape.clone();
    model.tensors[tensor].data = Some(Literal::from_slice(shape, values)?);
    Ok(())
}

/// Corrects the int8 graph's biases by the mean shift of each channel from weight rounding, with the input means on
/// `samples`; padding at image borders is ignored.
///
/// # Errors
/// If a sample does not match the input.
pub fn correct_bias(float: &TfliteModel, int8: &TfliteModel, samples: &[Literal]) -> Result<TfliteModel> {
    let means = means(float, samples)?;
    let mut made = int8.clone();
    for o in float.operators.iter().filter(|o| is_weighted(o.op)) {
        let name = |i: Option<usize>| i.and_then(|i| float.tensors.get(i)).map(|t| t.name.as_str());
        let own = name(o.outputs.first().copied());
        let twin = int8.operators.iter().find(|q| {
            q.op == o.op
                && q.outputs.first().and_then(|&y| int8.tensors.get(y)).map(|t| t.name.as_str()) == own
        });
        let (Some(twin), Some(x), Some(w)) =
            (twin, o.inputs.first().copied().flatten(), o.inputs.get(1).copied().flatten())
        else {
            continue;
        };
        let (Some(q), Some(bias)) =
            (twin.inputs.get(1).copied().flatten(), twin.inputs.get(2).copied().flatten())
        else {
            continue;
        };
        let moved = moved(float.tensor(w)?, int8.tensor(q)?, &means[x], o.op == TfliteOp::DepthwiseConv2D)?;
        let t = int8.tensor(bias)?;
        let (Some(data), Some(steps), Some(moved)) = (&t.data, &t.quantization, moved) else { continue };
        let Ok(values) = data.as_slice::<i32>() else { continue };
        let step = |c: usize| f64::from(steps.scale[if steps.scale.len() == 1 { 0 } else { c }]);
        let one = |(c, (&b, m)): (usize, (&i32, &f64))| b.saturating_sub((m / step(c)).round() as i32);
        let corrected: Vec<i32> = values.iter().zip(&moved).enumerate().map(one).collect();
        made.tensors[bias].data = Some(Literal::from_slice(&t.ty.shape, &corrected)?);
    }
    Ok(made)
}

/// Computes Σ (w' − w) · mean of the input channel per output channel; `None` if the weights stayed floats.
fn moved(
    w: &systole_tflite::TfliteTensor,
    q: &systole_tflite::TfliteTensor,
    means: &[f64],
    is_depthwise: bool,
) -> Result<Option<Vec<f64>>> {
    let (Some(exact), Some(rounded), Some(scheme)) = (&w.data, &q.data, &q.quantization) else {
        return Ok(None);
    };
    let (Ok(exact), Ok(rounded)) = (exact.as_slice::<f32>(), rounded.as_slice::<i8>()) else {
        return Ok(None);
    };
    let channels = if is_depthwise { w.dims().last() } else { w.dims().first() }.copied().unwrap_or(0);
    let per = exact.len() / channels.max(1);
    if channels == 0 || means.is_empty() {
        return Ok(None);
    }
    let multiplier = if is_depthwise { channels / means.len().max(1) } else { 1 };
    let mut sums = vec![0.0; channels];
    for (at, (&w, &q)) in exact.iter().zip(rounded).enumerate() {
        let c = if is_depthwise { at % channels } else { at / per };
        let input = if is_depthwise { c / multiplier.max(1) } else { at % means.len() };
        let scale = scheme.scale[if scheme.scale.len() == 1 { 0 } else { c }];
        sums[c] +=
            (f64::from(scale) * f64::from(q) - f64::from(w)) * means.get(input).copied().unwrap_or(0.0);
    }
    Ok(Some(sums))
}

/// Computes the mean of each channel (last dimension) of each tensor.
fn means(model: &TfliteModel, samples: &[Literal]) -> Result<Vec<Vec<f64>>> {
    let (tensors, n) = (made(model), model.tensors.len());
    let mut sums: Vec<(Vec<f64>, f64)> = vec![(Vec::new(), 0.0); n];
    let mut add = |t: usize, values: &[f32]| {
        let Some(&channels) = model.tensors.get(t).and_then(|t| t.dims().last()) else { return };
        let (sum, n) = &mut sums[t];
        sum.resize(channels, 0.0);
        values.iter().enumerate().for_each(|(at, v)| sum[at % channels] += f64::from(*v));
        *n += (values.len() / channels.max(1)) as f64;
    };
    for (&t, x) in samples.iter().flat_map(|x| model.inputs.iter().zip([x])) {
        x.as_slice::<f32>().into_iter().for_each(|values| add(t, values));
    }
    each_sample(model, &tensors, samples, |_, values| {
        tensors.iter().zip(values).for_each(|(&t, values)| add(t, values));
        Ok(())
    })?;
    Ok(sums.into_iter().map(|(sum, n)| sum.into_iter().map(|s| s / n.max(1.0)).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, TensorType};
    use systole_tflite::{TfliteQuantization, TfliteTensor};

    fn constant<T: systole_base::Element>(dims: &[usize], values: &[T]) -> TfliteTensor {
        TfliteTensor::constant("c", Literal::from_slice(dims, values).unwrap())
    }

    fn values(model: &TfliteModel, tensor: usize) -> Vec<f32> {
        model.tensors[tensor].data.as_ref().unwrap().to_f32s()
    }

    /// Two dense layers of two units.
    fn two_layers() -> TfliteModel {
        let tensor = |name: &str| TfliteTensor::new(name, [1, 2], DType::F32);
        TfliteModel {
            tensors: vec![
                tensor("x"),
                constant(&[2, 2], &[4.0f32, -1.0, 0.5, 0.25]),
                constant(&[2], &[2.0f32, 3.0]),
                tensor("hidden"),
                constant(&[2, 2], &[1.0f32, -8.0, 0.5, 2.0]),
                constant(&[2], &[1.0f32, 1.0]),
                tensor("y"),
            ],
            operators: vec![
                TfliteOperator::new(TfliteOp::FullyConnected, [0, 1, 2], [3]),
                TfliteOperator::new(TfliteOp::FullyConnected, [3, 4, 5], [6]),
            ],
            inputs: vec![0],
            outputs: vec![6],
            ..TfliteModel::default()
        }
    }

    #[test]
    fn both_sides_of_a_channel_get_the_geometric_mean_of_their_ranges() {
        let made = equalize(&two_layers()).unwrap();
        // Channel 0 has 4 and 1: divided by 2; channel 1 has 0.5 and 8: divided by 1/4.
        assert_eq!(values(&made, 1), [2.0, -0.5, 2.0, 1.0]);
        assert_eq!(values(&made, 2), [1.0, 12.0]);
        assert_eq!(values(&made, 4), [2.0, -2.0, 1.0, 0.5]);
        assert_eq!(values(&made, 5), [1.0, 1.0]);
        // A result that is an output of the graph, or has another reader, keeps its scale.
        let outputs = vec![3, 6];
        let output = TfliteModel { outputs, ..two_layers() };
        assert_eq!(equalize(&output).unwrap(), output);
        let mut read = two_layers();
        read.tensors.push(TfliteTensor::new("z", [1, 2], DType::F32));
        read.operators.push(TfliteOperator::new(TfliteOp::Tanh, [3], [7]));
        assert_eq!(equalize(&read).unwrap(), read);
    }

    #[test]
    fn biases_are_corrected_by_the_rounding_of_weights_times_mean_inputs() {
        let w = constant(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let q = |values: &[i8], scales: Vec<f32>, dimension| {
            constant(w.dims(), values).quantized(TfliteQuantization::per_channel(scales, dimension))
        };
        let means = [1.0, 10.0, 100.0];
        let found = moved(&w, &q(&[2, 5, 6, 16, 20, 25], vec![0.5, 0.25], 0), &means, false).unwrap();
        assert_eq!(found, Some(vec![0.5 * 10.0, 0.25 * 100.0]));
        // Depthwise: [1, 2, 3] kernels of three channels.
        let found = moved(&w, &q(&[2, 5, 6, 9, 10, 11], vec![0.5; 3], 1), &means, true).unwrap();
        assert_eq!(found, Some(vec![0.5, 0.5 * 10.0, -0.5 * 100.0]));
        assert_eq!(moved(&w, &w, &means, false).unwrap(), None);
    }

    #[test]
    fn corrected_biases_are_in_steps_of_the_bias() {
        let float = two_layers();
        let mut int8 = float.clone();
        let scheme = || TfliteQuantization::per_tensor(0.5, 0);
        // Rounded weights: 4, -1.5, 0.5, 0.5.
        int8.tensors[1] = constant(&[2, 2], &[8i8, -3, 1, 1]).quantized(scheme());
        int8.tensors[2] = constant(&[2], &[8i32, 12]).quantized(TfliteQuantization::per_tensor(0.25, 0));
        let sample = |values: [f32; 2]| Literal::from_slice([1, 2], &values).unwrap();
        let samples = [sample([0.0, 2.0]), sample([5.0, 6.0])];
        let made = correct_bias(&float, &int8, &samples).unwrap();
        // Mean input 4: −0.5 · 4 and 0.25 · 4 are −8 and 4 steps of 0.25.
        let expected = Literal::from_slice([2], &[16i32, 8]).unwrap();
        assert_eq!(made.tensors[2].data, Some(expected));
        assert_eq!(made.tensors[2].ty, TensorType::new(DType::I32, [2]));
        assert_eq!(made.tensors[5], int8.tensors[5], "these weights stayed floats");
    }
}
