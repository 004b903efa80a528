//! QUANTIZE, DEQUANTIZE and CAST kernels.

use super::call::{KernelOperand, OperatorCall};
use super::op_row::operators;
use crate::fixed_point::{multiply_by_quantized_multiplier, quantize_multiplier};
use crate::model::{TfliteTensor, broken};
use systole_base::{DType, Literal, Result, ensure, f16};

operators! {
    Dequantize "DEQUANTIZE" 6; options 38 [];
        versions 2 2 or |t| if t.input(0).is_some_and(is_per_channel) { 5 } else { t.base }; NoInt8; dequantize
    Cast "CAST" 53; options 37 []; versions 1 1; NoInt8; cast
    Quantize "QUANTIZE" 114; options 89 []; versions 1 1; NoInt8; quantize
    Bitcast "BITCAST" 159; options 124 []; versions 1 1; NoInt8; bitcast
}

fn is_per_channel(t: &TfliteTensor) -> bool {
    t.quantization.as_ref().is_some_and(|q| q.scale.len() > 1)
}

/// Computes QUANTIZE, `x: f32[…] or int[…] → int[…]`: rounds floats, rescales integers.
fn quantize(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, output) = (call.input(0)?, call.output()?);
    call.check_output(x.dims())?;
    let (scale, zero_point) = output.scale()?;
    let (low, high) = if output.ty.dtype == DType::U8 { (0, 255) } else { (-128, 127) };
    let q: Vec<i32> = match x.dtype() {
        DType::F32 => {
            let one = |&v: &f32| ((v / scale).round() as i32).saturating_add(zero_point);
            x.elements::<f32>()?.iter().map(one).collect()
        }
        DType::I8 | DType::U8 => {
            let (own, zero) = x.tensor.scale()?;
            let (m, shift) = quantize_multiplier(f64::from(own) / f64::from(scale));
            let one =
                |q: i32| multiply_by_quantized_multiplier(q - zero, m, shift).saturating_add(zero_point);
            bytes_of(&x)?.into_iter().map(one).collect()
        }
        other => return Err(call.unsupported(format_args!("element type {other}"))),
    };
    let q = q.into_iter().map(|q| q.clamp(low, high));
    match output.ty.dtype {
        DType::I8 => call.made(&q.map(|q| q as i8).collect::<Vec<_>>()),
        DType::U8 => call.made(&q.map(|q| q as u8).collect::<Vec<_>>()),
        other => Err(call.unsupported(format_args!("result type {other}"))),
    }
}

/// Computes CAST: numbers of another type, truncated; scales are ignored.
fn cast(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    Ok(vec![x.value.convert(call.output()?.ty.dtype)])
}

/// Computes BITCAST between types of one size.
fn bitcast(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    let to = &call.output()?.ty;
    ensure!(to.dtype.size() == x.dtype().size(), call.unsupported(format_args!("types {} and {to}", x.ty())));
    Ok(vec![Literal::from_bytes(to.clone(), x.value.bytes())?])
}

/// Returns one-byte elements, signed or not.
fn bytes_of(x: &KernelOperand) -> Result<Vec<i32>> {
    match x.dtype() {
        DType::U8 => Ok(x.elements::<u8>()?.iter().map(|&q| q.into()).collect()),
        _ => Ok(x.elements::<i8>()?.iter().map(|&q| q.into()).collect()),
    }
}

/// Computes DEQUANTIZE, `x: int[…] or f16[…] → f32[…]`.
fn dequantize(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    if x.dtype() == DType::F16 {
        let y: Vec<f32> = x.elements::<f16>()?.iter().map(|v| v.to_f32()).collect();
        return call.made(&y);
    }
    let channels = x.tensor.quantization.as_ref().map_or(1, |q| q.scale.len());
    call.made(&dequantized(&x, channels)?)
}

/// Rounds f32 inputs of int8 weights as if quantized to int8 per batch (dynamic-range quantization): symmetric (dense)
/// or with a zero point.
pub(super) fn rounded(x: &[f32], batches: usize, around_0: bool) -> Vec<f32> {
    let per = (x.len() / batches.max(1)).max(1);
    x.chunks(per).flat_map(|x| if around_0 { rounded_around_0(x) } else { rounded_with_zero(x) }).collect()
}

fn rounded_around_0(x: &[f32]) -> Vec<f32> {
    let range = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    if range == 0.0 {
        return x.to_vec();
    }
    let (scale, inverse) = (range / 127.0, 127.0 / range);
    x.iter().map(|v| (v * inverse).round().clamp(-127.0, 127.0) * scale).collect()
}

fn rounded_with_zero(x: &[f32]) -> Vec<f32> {
    let (low, high) = x.iter().fold((0f64, 0f64), |(l, h), &v| (l.min(v.into()), h.max(v.into())));
    if low == high {
        return x.to_vec();
    }
    let scale = (high - low) / 255.0;
    // The zero point with the smaller error at its own end.
    let (from_low, from_high) = (-128.0 - low / scale, 127.0 - high / scale);
    let zero = if 128.0 + (low / scale).abs() < 127.0 + (high / scale).abs() { from_low } else { from_high };
    let zero = zero.clamp(-128.0, 127.0).round() as f32;
    let inverse = (1.0 / scale) as f32;
    let one = |&v: &f32| ((zero + v * inverse).round().clamp(-128.0, 127.0) - zero) * scale as f32;
    x.iter().map(one).collect()
}

/// Dequantizes integers: scale · (q − zero point), in f64.
pub(super) fn dequantized(x: &KernelOperand, channels: usize) -> Result<Vec<f32>> {
    let q = x.tensor.quantization.as_ref().filter(|q| q.scale.len() == 1 || q.scale.len() == channels);
    let q = q.ok_or_else(|| broken(format!("tensor {} has no matching scales", x.tensor.name)))?;
    let inner: usize = x.dims().iter().skip(q.dimension + 1).product();
    let per = q.scale.len();
    let one = |(at, v): (usize, i32)| {
        let c = at / inner.max(1) % per;
        (f64::from(q.scale[c]) * (i64::from(v) - q.zero_point[c]) as f64) as f32
    };
    Ok(bytes_of(x)?.into_iter().enumerate().map(one).collect())
}
