//! Computes int8 quantization parameters (scale, zero point) from ranges, and quantizes weights and biases.

use systole_ir::{Error, Literal, Result, err};
use systole_tflite::{TfliteQuantization, TfliteTensor};

/// Returns asymmetric int8 scale and zero point that cover a range and 0. For the range of only 0 the scale is 1.
///
/// # Errors
/// If the scale is not a normal f32.
pub(crate) fn asymmetric((low, high): (f32, f32)) -> Result<(f32, i32)> {
    let (low, high) = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
    if low == 0.0 && high == 0.0 {
        return Ok((1.0, 0));
    }
    let scale = (high - low) / 255.0;
    if !(scale as f32).is_normal() || !(1.0 / scale as f32).is_finite() {
        return Err(underflow(scale, format!("its values range from {low:e} to {high:e}")));
    }
    let zero = (-128.0 - low / scale).round().clamp(-128.0, 127.0);
    Ok((scale as f32, zero as i32))
}

fn underflow(scale: f64, why: String) -> Error {
    err!(Numeric, "an int8 step would be {scale:e}, which f32 cannot hold")
        .because(why)
        .hint_command("keep this layer in floats (--skip), or scale the data to values of about 1")
}

/// Quantized weights and bias of an operator.
pub(crate) struct QuantizedWeights {
    pub weights: TfliteTensor,
    pub bias: TfliteTensor,
}

/// Layout of an operator's weights.
pub(crate) struct QuantWeightLayout<'a> {
    /// Dimension of the output channels.
    pub dimension: usize,
    pub channels: usize,
    /// Whether each channel has its own scale.
    pub per_channel: bool,
    /// Given scales: one, or one per channel.
    pub steps: Option<&'a [f32]>,
}

/// Quantizes weights symmetrically to −127 … 127, and the bias to int32 with the accumulators' scale.
///
/// # Errors
/// If a scale underflows.
pub(crate) fn weighted(
    w: &TfliteTensor,
    bias: &TfliteTensor,
    input_scale: f32,
    layout: &QuantWeightLayout<'_>,
) -> Result<QuantizedWeights> {
    let values = floats(w)?;
    let bias_values = floats(bias)?;
    let inner: usize = w.dims().iter().skip(layout.dimension + 1).product::<usize>().max(1);
    let channel = |at: usize| at / inner % layout.channels.max(1);
    let mut scales = own_scales(&values, channel, layout);
    // A bias must fit into 32 bits, with room for the sums.
    let least = |b: f32| (f64::from(b.abs()) / (f64::from(input_scale) * f64::from(1 << 30))) as f32;
    for (s, &b) in scales.iter_mut().zip(&bias_values) {
        *s = s.max(least(b));
    }
    if !layout.per_channel {
        let all = scales.iter().copied().fold(0.0, f32::max);
        scales.fill(all);
    }
    let sums: Vec<f64> = scales.iter().map(|&s| f64::from(s) * f64::from(input_scale)).collect();
    if let Some(&s) = sums.iter().find(|&&s| !(s as f32).is_normal()) {
        return Err(underflow(
            s,
            format!("its input has steps of {input_scale:e}, and its weights are as small"),
        ));
    }
    let q: Vec<i8> = values
        .iter()
        .enumerate()
        .map(|(at, v)| (v / scales[channel(at)]).round().clamp(-127.0, 127.0) as i8)
        .collect();
    let b: Vec<i32> =
        bias_values.iter().zip(&sums).map(|(&b, s)| (f64::from(b) / s).round() as i32).collect();
    let narrow: Vec<f32> = sums.iter().map(|&s| s as f32).collect();
    let scheme = |scales: Vec<f32>, dimension: usize| match layout.per_channel {
        true => TfliteQuantization::per_channel(scales, dimension),
        false => TfliteQuantization::per_tensor(scales.first().copied().unwrap_or(1.0), 0),
    };
    let weights = TfliteTensor::constant(&w.name, Literal::from_slice(&w.ty.shape, &q)?);
    let biases = TfliteTensor::constant(&bias.name, Literal::from_slice([b.len()], &b)?);
    Ok(QuantizedWeights {
        weights: weights.quantized(scheme(scales, layout.dimension)),
        bias: biases.quantized(scheme(narrow, 0)),
    })
}

/// Returns the scale of each channel: the given one, or one that maps the largest weight to 127.
fn own_scales(values: &[f32], channel: impl Fn(usize) -> usize, layout: &QuantWeightLayout<'_>) -> Vec<f32> {
    match layout.steps {
        Some(steps) if steps.len() == layout.channels => return steps.to_vec(),
        Some(&[step]) => return vec![step; layout.channels],
        _ => {}
    }
    let mut greatest = vec![0f32; layout.channels];
    for (at, v) in values.iter().enumerate() {
        greatest[channel(at)] = greatest[channel(at)].max(v.abs());
    }
    if !layout.per_channel {
        let all = greatest.iter().copied().fold(0.0, f32::max);
        greatest.fill(all);
    }
    greatest.iter().map(|&m| if m == 0.0 { 1.0 / 127.0 } else { m / 127.0 }).collect()
}

/// Quantizes weights symmetrically to −127 … 127, for operators on floats.
///
/// # Errors
/// If a scale underflows.
pub(crate) fn weights_alone(w: &TfliteTensor, layout: &QuantWeightLayout<'_>) -> Result<TfliteTensor> {
    let none =
        TfliteTensor::constant("", Literal::from_slice([layout.channels], &vec![0f32; layout.channels])?);
    Ok(weighted(w, &none, 1.0, layout)?.weights)
}

/// Quantizes a constant operand with its own range.
pub(crate) fn constant(t: &TfliteTensor, scale: f32, zero: i32) -> Result<TfliteTensor> {
    let q: Vec<i8> =
        floats(t)?.iter().map(|v| ((v / scale).round() + zero as f32).clamp(-128.0, 127.0) as i8).collect();
    let made = TfliteTensor::constant(&t.name, Literal::from_slice(&t.ty.shape, &q)?);
    Ok(made.quantized(TfliteQuantization::per_tensor(scale, zero)))
}

/// Returns the minimum and maximum of a constant.
pub(crate) fn range_of(t: &TfliteTensor) -> Result<(f32, f32)> {
    Ok(floats(t)?.iter().fold((0.0, 0.0), |(low, high): (f32, f32), &v| (low.min(v), high.max(v))))
}

fn floats(t: &TfliteTensor) -> Result<Vec<f32>> {
    let data = t.data.as_ref();
    let data = data.ok_or_else(|| err!(Unsupported, "the weights {} are not constant", t.name))?;
    Ok(data.as_slice::<f32>()?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;

    fn floats_of(values: &[f32], dims: &[usize]) -> TfliteTensor {
        TfliteTensor::constant("w", Literal::from_slice(dims, values).unwrap())
    }

    #[test]
    fn asymmetric_ranges_contain_zero() {
        assert_eq!(asymmetric((-1.0, 1.55)).unwrap(), (0.01, -28));
        assert_eq!(asymmetric((1.0, 2.55)).unwrap(), (0.01, -128));
        assert_eq!(asymmetric((-2.55, -1.0)).unwrap(), (0.01, 127));
        assert_eq!(asymmetric((0.0, 0.0)).unwrap(), (1.0, 0));
        assert_eq!(asymmetric((0.0, 1e-40)).unwrap_err().kind(), ErrorKind::Numeric);
        assert_eq!(range_of(&floats_of(&[0.5, -3.0, 2.0], &[3])).unwrap(), (-3.0, 2.0));
        assert_eq!(range_of(&floats_of(&[0.5, 3.0], &[2])).unwrap(), (0.0, 3.0));
    }

    #[test]
    fn scales_are_given_or_map_the_largest_weight_to_127() {
        let values = [1.27, -0.5, 0.0, 0.0, 0.254, -2.54];
        let layout = |per_channel, steps| QuantWeightLayout { dimension: 0, channels: 3, per_channel, steps };
        let scales = |per_channel, steps| own_scales(&values, |at| at / 2, &layout(per_channel, steps));
        assert_eq!(scales(true, None), [1.27 / 127.0, 1.0 / 127.0, 2.54 / 127.0]);
        assert_eq!(scales(false, None), [2.54 / 127.0; 3]);
        assert_eq!(scales(true, Some(&[0.5])), [0.5; 3]);
        assert_eq!(scales(true, Some(&[0.5, 0.25, 1.0])), [0.5, 0.25, 1.0]);
        let q = weights_alone(&floats_of(&values, &[3, 2]), &layout(true, None)).unwrap();
        assert_eq!(q.data, Some(Literal::from_slice([3, 2], &[127i8, -50, 0, 0, 13, -127]).unwrap()));
    }
}
