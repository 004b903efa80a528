//! Which version of an operator a file asks for: the lowest that computes it, since compilers of 2021 refuse later ones.

use crate::model::{Model, Operator, Tensor};
use crate::op::{Field, Op};
use systole_base::{DType, Result};

/// The version that the file names.
pub(crate) fn version(model: &Model, o: &Operator) -> Result<i32> {
    if o.version > 0 {
        return Ok(o.version);
    }
    let input = |n: usize| o.inputs.get(n).copied().flatten().and_then(|i| model.tensors.get(i));
    let made = o.outputs.first().and_then(|&i| model.tensors.get(i));
    let is_int8 = |t: Option<&Tensor>| t.is_some_and(|t| matches!(t.ty.dtype, DType::I8 | DType::U8));
    let (float, int8) = o.op.row().versions;
    let takes_int8 = is_int8(input(usize::from(matches!(o.op, Op::Split)))) || is_int8(made);
    let base = if takes_int8 { int8 } else { float };
    Ok(match o.op {
        Op::Conv2D => {
            let channels = |t: Option<&Tensor>| t.and_then(|t| t.dims().last().copied());
            let is_hybrid = !takes_int8 && is_int8(input(1));
            match channels(input(0)) != channels(input(1)) {
                true => 6,
                false if is_hybrid => 5,
                false => base,
            }
        }
        Op::DepthwiseConv2D if !takes_int8 && is_int8(input(1)) => 6,
        Op::DepthwiseConv2D if o.int(Field::DilationW) > 1 || o.int(Field::DilationH) > 1 => base.max(2),
        Op::FullyConnected if o.inputs.len() == 2 => 6,
        Op::FullyConnected if o.is(Field::KeepNumDims) => 5,
        Op::FullyConnected if !takes_int8 && is_int8(input(1)) => 3,
        Op::Mul if takes_int8 && is_amplified(input(0), input(1), made) => 3,
        Op::TransposeConv if o.int(Field::Activation) != 0 => 4,
        Op::TransposeConv if o.inputs.len() == 4 => 3,
        Op::TransposeConv if takes_int8 => 2,
        Op::TransposeConv => 1,
        Op::ResizeBilinear | Op::ResizeNearest if o.is(Field::HalfPixelCenters) => 3,
        Op::Transpose if input(0).is_some_and(|t| t.ty.rank() > 4) => {
            4 + 2 * i32::from(input(0).is_some_and(|t| t.ty.rank() > 5))
        }
        Op::Pad if input(0).is_some_and(|t| t.ty.rank() > 4) => 4,
        Op::Dequantize
            if input(0).is_some_and(|t| t.quantization.as_ref().is_some_and(|q| q.scale.len() > 1)) =>
        {
            5
        }
        Op::Quantize => 1,
        _ => base,
    })
}

/// Whether the product's scale grows: a version of its own.
fn is_amplified(a: Option<&Tensor>, b: Option<&Tensor>, y: Option<&Tensor>) -> bool {
    let scale = |t: Option<&Tensor>| t.and_then(|t| t.scale().ok()).map(|(s, _)| s);
    match (scale(a), scale(b), scale(y)) {
        (Some(a), Some(b), Some(y)) => a * b / y >= 1.0,
        _ => false,
    }
}
