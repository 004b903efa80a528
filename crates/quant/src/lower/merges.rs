//! Layers of several inputs.

use super::call::Call;
use systole_ir::Result;
use systole_tflite::{Field, Op, Operator};

pub(super) fn element_wise(call: &mut Call) -> Result<usize> {
    let class = call.node.layer.class_name();
    let op = match class {
        "Add" | "Average" => Op::Add,
        "Subtract" => Op::Sub,
        "Multiply" => Op::Mul,
        "Maximum" => Op::Maximum,
        _ => Op::Minimum,
    };
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
    if class == "Average" {
        let share = call.b.floats(format!("{name}/share"), [1], &[1.0 / inputs.len() as f32])?;
        y = call.b.apply(&format!("{name}/mean"), Op::Mul, &[y, share], output);
    }
    Ok(y)
}

fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(&a, &b)| if a == 1 { b } else { a }).collect()
}

pub(super) fn concatenate(call: &mut Call) -> Result<usize> {
    let config = call.node.layer.layer().config();
    let axis = config.get("axis").and_then(serde_json::Value::as_i64).unwrap_or(-1);
    let rank = call.output.len() as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    let operator = Operator::new(Op::Concatenation, call.inputs.clone(), []).with(Field::Axis, axis as f64);
    let (name, output) = (call.name(), call.output.clone());
    Ok(call.b.push(&name, output, operator))
}
