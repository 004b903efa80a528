//! Layers that move elements.

use super::call::Call;
use systole_ir::Result;
use systole_tflite::{Field, Op, Operator};

pub(super) fn reshape(call: &mut Call) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    if call.dims() == output {
        return Ok(x);
    }
    call.b.reshape(&name, x, output)
}

pub(super) fn permute(call: &mut Call, dims: &[usize]) -> Result<usize> {
    let order: Vec<i32> = std::iter::once(0).chain(dims.iter().map(|&d| d as i32)).collect();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let order = call.b.ints(format!("{name}/order"), [order.len()], &order)?;
    Ok(call.b.apply(&name, Op::Transpose, &[x, order], output))
}

pub(super) fn padding(call: &mut Call, pairs: &[[usize; 2]]) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let mut list = vec![0, 0];
    pairs.iter().for_each(|p| list.extend([p[0] as i32, p[1] as i32]));
    list.extend([0, 0]);
    let paddings = call.b.ints(format!("{name}/paddings"), [list.len() / 2, 2], &list)?;
    Ok(call.b.apply(&name, Op::Pad, &[x, paddings], output))
}

pub(super) fn cropping(call: &mut Call, pairs: &[[usize; 2]]) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let mut begin = vec![0];
    begin.extend(pairs.iter().map(|p| p[0] as i32));
    begin.push(0);
    let size: Vec<i32> = output.iter().map(|&d| d as i32).collect();
    let begin = call.b.ints(format!("{name}/begin"), [begin.len()], &begin)?;
    let size = call.b.ints(format!("{name}/size"), [size.len()], &size)?;
    Ok(call.b.apply(&name, Op::Slice, &[x, begin, size], output))
}

/// Every pixel becomes several.
pub(super) fn upsampling(call: &mut Call, bilinear: bool) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let size = call.b.ints(format!("{name}/size"), [2], &[output[1] as i32, output[2] as i32])?;
    let operator = match bilinear {
        false => Operator::new(Op::ResizeNearest, [x, size], []),
        true => Operator::new(Op::ResizeBilinear, [x, size], []).with(Field::HalfPixelCenters, 1.0),
    };
    Ok(call.b.push(&name, output, operator))
}
