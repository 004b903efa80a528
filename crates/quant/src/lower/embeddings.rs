//! Lowers embeddings, position embeddings, class tokens, and layers that repeat vectors to TFLite.

use super::call::QuantLayerCall;
use super::matmul::product;
use systole_ir::{Result, err};
use systole_nn::NodeInput;
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

/// Looks up rows of a table: `x: i32[1, …] → f32[1, …, D]`.
fn looked_up(call: &mut QuantLayerCall, rows: usize) -> Result<usize> {
    let table = call.weight("embeddings")?.to_f32s();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    if call.b.model.tensors[x].ty.dtype.is_float() {
        return Err(err!(Unsupported, "an embedding requires integer inputs")
            .hint("give the model an integer input: input_of(name, I32, …)"));
    }
    let table = call.b.floats(format!("{name}/embeddings"), [rows, table.len() / rows.max(1)], &table)?;
    Ok(call.b.push(
        &name,
        output,
        TfliteOperator::new(TfliteOp::Gather, [table, x], []).with(OptionField::Axis, 0.0),
    ))
}

pub(super) fn embedding(call: &mut QuantLayerCall, rows: usize, mask_zero: bool) -> Result<usize> {
    if mask_zero {
        return Err(err!(Unsupported, "padding masks have no TFLite operator")
            .hint("export a model whose embedding has mask_zero = false"));
    }
    looked_up(call, rows)
}

/// Lowers a reversible embedding: integers are looked up, floats are multiplied by every row.
pub(super) fn reversible(
    call: &mut QuantLayerCall,
    [rows, width]: [usize; 2],
    tie_weights: bool,
    is_capped: bool,
) -> Result<usize> {
    if !call.b.model.tensors[call.input()].ty.dtype.is_float() {
        return looked_up(call, rows);
    }
    if is_capped {
        return Err(
            err!(Unsupported, "logit_soft_cap has no TFLite operator").hint("train without logit_soft_cap")
        );
    }
    let kernel = match tie_weights {
        false => call.weight("reverse_embeddings")?.to_f32s(),
        true => {
            let table = call.weight("embeddings")?.to_f32s();
            let columns = 0..width;
            columns.flat_map(|d| table.iter().skip(d).step_by(width).copied()).collect()
        }
    };
    // Distinct from the rows that the same layer may return for tokens.
    let is_taken = call.b.model.tensors.iter().any(|t| t.name == call.name());
    let name = if is_taken { format!("{}/scores", call.name()) } else { call.name() };
    let x = call.input();
    product(call.b, &name, x, &kernel, &vec![0.0; rows])
}

/// Returns the first rows of the table, independent of the input.
pub(super) fn position(call: &mut QuantLayerCall) -> Result<usize> {
    let whole = call.layers.architecture();
    let is_answer = |s: NodeInput| matches!(s, NodeInput::Layer(i) if whole.nodes[i].name == call.node.name);
    if whole.outputs().any(is_answer) {
        return Err(err!(Unsupported, "the model's output does not depend on its input")
            .hint("add the position embeddings to the token embeddings"));
    }
    let (name, output) = (call.name(), call.output.clone());
    let n: usize = output.iter().product();
    let rows: usize = output.iter().rev().take(2).product();
    let table = call.weight("embeddings")?.to_f32s();
    let values: Vec<f32> = table[..rows.min(table.len())].iter().copied().cycle().take(n).collect();
    call.b.floats(name, output, &values)
}

/// Prepends a learned class token.
pub(super) fn class_token(call: &mut QuantLayerCall) -> Result<usize> {
    let token = call.weight("token")?.to_f32s();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    // Pads a zero step in front and adds the token there; this works for any batch size.
    let paddings = call.b.ints(format!("{name}/paddings"), [3, 2], &[0, 0, 1, 0, 0, 0])?;
    let longer = call.b.apply(&format!("{name}/longer"), TfliteOp::Pad, &[x, paddings], output.clone());
    let mut all = vec![0.0; output.iter().product()];
    all[..token.len()].copy_from_slice(&token);
    let token = call.b.floats(format!("{name}/token"), output.clone(), &all)?;
    Ok(call.b.apply(&name, TfliteOp::Add, &[longer, token], output))
}

pub(super) fn first_step(call: &mut QuantLayerCall) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let features = output.last().copied().unwrap_or(1);
    let begin = call.b.ints(format!("{name}/begin"), [3], &[0, 0, 0])?;
    let size = call.b.ints(format!("{name}/size"), [3], &[1, 1, features as i32])?;
    let one = call.b.apply(&format!("{name}/step"), TfliteOp::Slice, &[x, begin, size], vec![1, 1, features]);
    call.b.reshape(&name, one, output)
}

/// Repeats a vector once per step.
pub(super) fn repeat(call: &mut QuantLayerCall) -> Result<usize> {
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let (n, features) = (output[1], output[2]);
    let one = call.b.reshape(&format!("{name}/step"), x, vec![1, 1, features])?;
    if n == 1 {
        return Ok(one);
    }
    let operator =
        TfliteOperator::new(TfliteOp::Concatenation, vec![one; n], []).with(OptionField::Axis, 1.0);
    Ok(call.b.push(&name, output, operator))
}
