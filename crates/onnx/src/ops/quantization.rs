//! Imports and exports ONNX QuantizeLinear and DequantizeLinear: real = scale · (q − zero point).

use super::call::{NodeCall, RuleResult, axis, output, unsupported};
use super::graph_builder::OnnxBuilder;
use super::op_row::{TfliteSource, operators};
use crate::model::{OnnxNode, broken, dtype_of};
use systole_base::{DType, Result};
use systole_ir::Tensor;
use systole_tflite::FusedActivation;

operators! {
    "DequantizeLinear" 10..28: dequantize => Dequantize write_dequantize;
    "QuantizeLinear" 10..28: quantize => Quantize write_quantize;
}

/// Returns scale and zero point, broadcast to an operand, and the integer type.
fn scheme(c: &mut NodeCall, x: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    if c.is("block_size", false)? {
        return Err(unsupported("blocked quantization (attribute block_size) is not supported")
            .hint("use one scale per tensor or per channel"));
    }
    let along = c.int("axis", 1)?;
    let scale = c.tensor(1)?;
    let zero = c.optional(2)?;
    let spread = |t: Tensor| -> Result<Tensor> {
        match t.shape().dims() {
            [] | [1] => Ok(t.reshape([]).broadcast_to(x.shape())),
            [_] => {
                let dim = axis(along, x.rank())?;
                Ok(t.broadcast_in_dim(x.shape(), &[dim]))
            }
            _ => Err(broken(format!("scales or zero points {} do not match {}", t.ty(), x.ty()))),
        }
    };
    Ok((spread(scale)?, zero.map(spread).transpose()?))
}

fn quantize(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let (scale, zero) = scheme(c, &x)?;
    if let Some(to) = element_type(c, "precision")?.filter(|to| *to != scale.dtype()) {
        return Err(unsupported(format!(
            "attribute precision = {to} is not supported with scales of {}",
            scale.dtype()
        ))
        .hint("export it without precision"));
    }
    let dtype = match (&zero, element_type(c, "output_dtype")?) {
        (Some(zero), None) => zero.dtype(),
        (Some(zero), Some(to)) if to == zero.dtype() => to,
        (Some(zero), Some(to)) => {
            return Err(broken(format!("output_dtype is {to}, but the zero point is {}", zero.ty())));
        }
        (None, to) => to.unwrap_or(DType::U8),
    };
    if !matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16) {
        return Err(unsupported(format!("unsupported integer type {dtype}")));
    }
    let q = (&x.convert(scale.dtype()) / &scale).round_nearest_even();
    let q = match zero {
        Some(zero) => q + zero.convert(scale.dtype()),
        None => q,
    };
    let (low, high) = (dtype.lowest().as_f64(), dtype.max_value().as_f64());
    output(q.clamp(&c.scalar(scale.dtype(), low), &c.scalar(scale.dtype(), high)).convert(dtype))
}

/// Returns an attribute that is an element type; `None` if it is absent or 0.
fn element_type(c: &NodeCall, name: &str) -> Result<Option<DType>> {
    match c.int(name, 0)? {
        0 => Ok(None),
        code => dtype_of(code)
            .map(Some)
            .ok_or_else(|| unsupported(format!("attribute {name}: unsupported ONNX element type {code}"))),
    }
}

fn dequantize(c: &mut NodeCall) -> RuleResult {
    let q = c.tensor(0)?;
    let (scale, zero) = scheme(c, &q)?;
    let dtype = scale.dtype();
    let whole = match zero {
        // Differences of int32 values are computed in integers, which are exact where f32 is not.
        Some(zero) if q.dtype() == DType::I32 => (q - zero).convert(dtype),
        Some(zero) => q.convert(dtype) - zero.convert(dtype),
        None => q.convert(dtype),
    };
    let to = element_type(c, "output_dtype")?.unwrap_or(dtype);
    output((whole * scale).convert(to))
}

fn write_quantize(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (real, order) = e.single(o, y)?;
    e.store(y, order, &real)
}

/// Exports DEQUANTIZE: the operand's real values already exist.
fn write_dequantize(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (real, order) = e.single(o, y)?;
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Identity", [real], out))
}
