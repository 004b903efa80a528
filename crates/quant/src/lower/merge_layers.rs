//! Lowers merge layers (Add, Multiply, Concatenate …) to TFLite.

use super::call::QuantLayerCall;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::ElementWise;
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

pub(super) fn element_wise(call: &mut QuantLayerCall, join: ElementWise) -> Result<usize> {
    let op = operator(join);
    let (name, output) = (call.name(), call.output.clone());
    let inputs = call.inputs.clone();
    let mut y = inputs[0];
    for (n, &x) in inputs.iter().enumerate().skip(1) {
        let dims = match n + 1 == inputs.len() {
            true => output.clone(),
            false => broadcast(&call.b.dims(y), &call.b.dims(x)),
        };
        y = call.b.apply(&name, op, &[y, x], dims);
    }
    if join == ElementWise::Average {
        let share = call.b.floats(format!("{name}/share"), [1], &[1.0 / inputs.len() as f32])?;
        y = call.b.apply(&format!("{name}/mean"), TfliteOp::Mul, &[y, share], output);
    }
    Ok(y)
}

/// Returns the binary operator; an average is an addition first.
pub(super) fn operator(join: ElementWise) -> TfliteOp {
    match join {
        ElementWise::Add | ElementWise::Average => TfliteOp::Add,
        ElementWise::Subtract => TfliteOp::Sub,
        ElementWise::Multiply => TfliteOp::Mul,
        ElementWise::Maximum => TfliteOp::Maximum,
        ElementWise::Minimum => TfliteOp::Minimum,
    }
}

fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(&a, &b)| if a == 1 { b } else { a }).collect()
}

pub(super) fn concatenate(call: &mut QuantLayerCall, axis: i64) -> Result<usize> {
    let rank = call.output.len() as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    if axis == 0 {
        let what = "Concatenate along the batch has no TFLite operator";
        return Err(Error::new(ErrorKind::Unsupported, what).hint("concatenate along another axis"));
    }
    let operator = TfliteOperator::new(TfliteOp::Concatenation, call.inputs.clone(), [])
        .with(OptionField::Axis, axis as f64);
    let (name, output) = (call.name(), call.output.clone());
    Ok(call.b.push(&name, output, operator))
}
