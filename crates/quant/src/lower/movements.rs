//! Layers that move elements.

use super::call::Call;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::layers;
use systole_tflite::{Field, Op, Operator};

pub(super) fn reshape(call: &mut Call) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    if call.dims() == output {
        return Ok(x);
    }
    call.b.reshape(&name, x, output)
}

pub(super) fn permute(call: &mut Call) -> Result<usize> {
    let a: layers::Permute = call.arguments()?;
    let order: Vec<i32> = std::iter::once(0).chain(a.dims.iter().map(|&d| d as i32)).collect();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let order = call.b.ints(format!("{name}/order"), [order.len()], &order)?;
    Ok(call.b.apply(&name, Op::Transpose, &[x, order], output))
}

/// How far the output begins before the input: the numbers of a configuration, as pairs.
fn edges(config: &serde_json::Value) -> Vec<usize> {
    let mut found = Vec::new();
    fn walk(value: &serde_json::Value, found: &mut Vec<usize>) {
        match value {
            serde_json::Value::Array(list) => list.iter().for_each(|v| walk(v, found)),
            serde_json::Value::Object(map) => map.values().for_each(|v| walk(v, found)),
            one => found.extend(one.as_u64().map(|v| v as usize)),
        }
    }
    walk(config, &mut found);
    found
}

/// Pairs of places at both sides of each dimension of places, however the layer spells them.
fn pairs(call: &Call, config: &serde_json::Value) -> Vec<[usize; 2]> {
    let places = call.dims().len() - 2;
    let found = edges(config);
    match found.len() {
        1 => vec![[found[0]; 2]; places],
        n if n == 2 * places => found.chunks_exact(2).map(|p| [p[0], p[1]]).collect(),
        _ => found.iter().map(|&p| [p, p]).collect(),
    }
}

pub(super) fn padding(call: &mut Call) -> Result<usize> {
    let config = call.node.layer.layer().config();
    let pairs = pairs(call, &config);
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let mut list = vec![0, 0];
    pairs.iter().for_each(|p| list.extend([p[0] as i32, p[1] as i32]));
    list.extend([0, 0]);
    let paddings = call.b.ints(format!("{name}/paddings"), [list.len() / 2, 2], &list)?;
    Ok(call.b.apply(&name, Op::Pad, &[x, paddings], output))
}

pub(super) fn cropping(call: &mut Call) -> Result<usize> {
    let config = call.node.layer.layer().config();
    let pairs = pairs(call, &config);
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
pub(super) fn upsampling(call: &mut Call) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let size = call.b.ints(format!("{name}/size"), [2], &[output[1] as i32, output[2] as i32])?;
    let config = call.node.layer.layer().config();
    let operator = match config.get("interpolation").and_then(serde_json::Value::as_str) {
        None | Some("nearest") => Operator::new(Op::ResizeNearest, [x, size], []),
        Some("bilinear") => Operator::new(Op::ResizeBilinear, [x, size], []).with(Field::HalfPixelCenters, 1.0),
        Some(other) => {
            let what = format!("UpSampling2D with interpolation {other} has no operator of .tflite");
            return Err(Error::new(ErrorKind::Unsupported, what).hint("use nearest or bilinear"));
        }
    };
    Ok(call.b.push(&name, output, operator))
}
