//! Poolings of windows and of whole pictures.

use super::call::Call;
use super::convolutions::row;
use crate::builder::window;
use systole_ir::Result;
use systole_tflite::{Field, Op, Operator, Padding};

/// One or two sizes of a configuration.
fn sizes(config: &serde_json::Value, key: &str) -> Option<Vec<usize>> {
    match config.get(key)? {
        serde_json::Value::Array(list) => list.iter().map(|v| v.as_u64().map(|v| v as usize)).collect(),
        one => Some(vec![one.as_u64()? as usize]),
    }
}

pub(super) fn windows(call: &mut Call) -> Result<usize> {
    let config = call.node.layer.layer().config();
    let class = call.node.layer.class_name();
    let pool = sizes(&config, "pool_size").unwrap_or(vec![2]);
    let strides = sizes(&config, "strides").unwrap_or(pool.clone());
    let same = config.get("padding").and_then(serde_json::Value::as_str) == Some("same");
    let is_line = class.ends_with("1D");
    let both = |v: &[usize]| match v {
        [one] if is_line => [1, *one],
        [one] => [*one, *one],
        more => [more[0], more[1]],
    };
    let op = if class.starts_with("Max") { Op::MaxPool2D } else { Op::AveragePool2D };
    let (name, output) = (call.name(), call.output.clone());
    let x = if is_line { row(call, &name)? } else { call.input() };
    let [ph, pw] = both(&pool);
    let padding = if same { Padding::Same } else { Padding::Valid };
    let operator = window(Operator::new(op, [x], []), padding, both(&strides))
        .with(Field::FilterH, ph as f64)
        .with(Field::FilterW, pw as f64);
    if !is_line {
        return Ok(call.b.push(&name, output, operator));
    }
    let y = call.b.push(&name, [1, 1, output[1], output[2]], operator);
    call.b.reshape(&format!("{name}/steps"), y, output)
}

pub(super) fn global_average(call: &mut Call) -> Result<usize> {
    let (name, x, dims, output) = (call.name(), call.input(), call.dims(), call.output.clone());
    let axes: Vec<i32> = (1..dims.len() as i32 - 1).collect();
    let keeps = f64::from(u8::from(output.len() == dims.len()));
    let axes = call.b.ints(format!("{name}/axes"), [axes.len()], &axes)?;
    let operator = Operator::new(Op::Mean, [x, axes], []).with(Field::KeepDims, keeps);
    Ok(call.b.push(&name, output, operator))
}

/// The greatest of one window as large as the picture.
pub(super) fn global_max(call: &mut Call) -> Result<usize> {
    let (name, dims, output) = (call.name(), call.dims(), call.output.clone());
    let x = if dims.len() == 3 { row(call, &name)? } else { call.input() };
    let [h, w] = if dims.len() == 3 { [1, dims[1]] } else { [dims[1], dims[2]] };
    let operator = window(Operator::new(Op::MaxPool2D, [x], []), Padding::Valid, [1, 1])
        .with(Field::FilterH, h as f64)
        .with(Field::FilterW, w as f64);
    let channels = dims[dims.len() - 1];
    let y = call.b.push(&format!("{name}/window"), [1, 1, 1, channels], operator);
    call.b.reshape(&name, y, output)
}
