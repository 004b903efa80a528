//! Lowers layers that move elements to TFLite (Flatten, Reshape, Permute, padding, cropping, upsampling).

use super::call::QuantLayerCall;
use systole_ir::Result;
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

pub(super) fn reshape(call: &mut QuantLayerCall) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    if call.dims() == output {
        return Ok(x);
    }
    call.b.reshape(&name, x, output)
}

pub(super) fn permute(call: &mut QuantLayerCall, dims: &[usize]) -> Result<usize> {
    let order: Vec<i32> = std::iter::once(0).chain(dims.iter().map(|&d| d as i32)).collect();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let order = call.b.ints(format!("{name}/order"), [order.len()], &order)?;
    Ok(call.b.apply(&name, TfliteOp::Transpose, &[x, order], output))
}

pub(super) fn padding(call: &mut QuantLayerCall, pairs: &[[usize; 2]]) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let mut list = vec![0, 0];
    pairs.iter().for_each(|p| list.extend([p[0] as i32, p[1] as i32]));
    list.extend([0, 0]);
    let paddings = call.b.ints(format!("{name}/paddings"), [list.len() / 2, 2], &list)?;
    Ok(call.b.apply(&name, TfliteOp::Pad, &[x, paddings], output))
}

pub(super) fn cropping(call: &mut QuantLayerCall, pairs: &[[usize; 2]]) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let mut begin = vec![0];
    begin.extend(pairs.iter().map(|p| p[0] as i32));
    begin.push(0);
    let size: Vec<i32> = output.iter().map(|&d| d as i32).collect();
    let begin = call.b.ints(format!("{name}/begin"), [begin.len()], &begin)?;
    let size = call.b.ints(format!("{name}/size"), [size.len()], &size)?;
    Ok(call.b.apply(&name, TfliteOp::Slice, &[x, begin, size], output))
}

/// Lowers UpSampling2D.
pub(super) fn upsampling(call: &mut QuantLayerCall, bilinear: bool) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let size = call.b.ints(format!("{name}/size"), [2], &[output[1] as i32, output[2] as i32])?;
    let operator = match bilinear {
        false => TfliteOperator::new(TfliteOp::ResizeNearest, [x, size], []),
        true => TfliteOperator::new(TfliteOp::ResizeBilinear, [x, size], [])
            .with(OptionField::HalfPixelCenters, 1.0),
    };
    Ok(call.b.push(&name, output, operator))
}
