//! Lowers pooling layers to TFLite, windowed and global.

use super::call::QuantLayerCall;
use super::convolutions::{of_picture, padding, row};
use crate::builder::window;
use systole_ir::Result;
use systole_nn::layers::Padding as Layout;
use systole_tflite::{OptionField, TfliteOp, TfliteOperator, TflitePadding};

pub(super) fn windows(
    call: &mut QuantLayerCall,
    max: bool,
    [size, strides]: [&[usize]; 2],
    layout: Layout,
) -> Result<usize> {
    let is_line = size.len() == 1;
    let op = if max { TfliteOp::MaxPool2D } else { TfliteOp::AveragePool2D };
    let (name, output) = (call.name(), call.output.clone());
    let x = if is_line { row(call, &name)? } else { call.input() };
    let [ph, pw] = of_picture(size);
    let operator = window(TfliteOperator::new(op, [x], []), padding(layout)?, of_picture(strides))
        .with(OptionField::FilterH, ph as f64)
        .with(OptionField::FilterW, pw as f64);
    if !is_line {
        return Ok(call.b.push(&name, output, operator));
    }
    let y = call.b.push(&name, [1, 1, output[1], output[2]], operator);
    call.b.reshape(&format!("{name}/steps"), y, output)
}

pub(super) fn global_average(call: &mut QuantLayerCall) -> Result<usize> {
    let (name, x, dims, output) = (call.name(), call.input(), call.dims(), call.output.clone());
    let axes: Vec<i32> = (1..dims.len() as i32 - 1).collect();
    let keeps = f64::from(u8::from(output.len() == dims.len()));
    let axes = call.b.ints(format!("{name}/axes"), [axes.len()], &axes)?;
    let operator = TfliteOperator::new(TfliteOp::Mean, [x, axes], []).with(OptionField::KeepDims, keeps);
    Ok(call.b.push(&name, output, operator))
}

/// Lowers global max pooling as one window of the image's size.
pub(super) fn global_max(call: &mut QuantLayerCall) -> Result<usize> {
    let (name, dims, output) = (call.name(), call.dims(), call.output.clone());
    let x = if dims.len() == 3 { row(call, &name)? } else { call.input() };
    let [h, w] = if dims.len() == 3 { [1, dims[1]] } else { [dims[1], dims[2]] };
    let operator = window(TfliteOperator::new(TfliteOp::MaxPool2D, [x], []), TflitePadding::Valid, [1, 1])
        .with(OptionField::FilterH, h as f64)
        .with(OptionField::FilterW, w as f64);
    let channels = dims[dims.len() - 1];
    let y = call.b.push(&format!("{name}/window"), [1, 1, 1, channels], operator);
    call.b.reshape(&name, y, output)
}
