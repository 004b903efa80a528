//! Lowers attention and transformer blocks of one sequence to TFLite matrix products and softmax.

use super::activations::activate;
use super::call::QuantLayerCall;
use super::matmul::{product, sum};
use super::normalizations::{LayerNormParams, standardized};
use crate::scales::MASKED;
use systole_ir::{Error, Result, ensure, err};
use systole_nn::Activation;
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

/// Parameters of an attention, within any layer.
pub(super) struct AttentionHeads {
    /// Prefix of its weights' names.
    pub prefix: String,
    pub heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub use_bias: bool,
    pub causal: bool,
}

/// Parameters of a transformer block besides attention.
pub(super) struct EncoderBlock {
    pub activation: Activation,
    pub epsilon: f64,
    /// Whether normalization comes first (pre-norm).
    pub is_first: bool,
}

pub(super) fn other_axes() -> Error {
    err!(Unsupported, "attention over other axes than the first is not supported")
        .hint("attend over sequences [B, S, D], without attention_axes")
}

pub(super) fn multi_head(call: &mut QuantLayerCall, of: &AttentionHeads) -> Result<usize> {
    ensure!(!call.inputs.iter().any(|&x| call.b.dims(x).len() != 3), other_axes());
    let query = call.inputs[0];
    let value = call.inputs.get(1).copied().unwrap_or(query);
    let key = call.inputs.get(2).copied().unwrap_or(value);
    attend(call, of, [query, key, value])
}

/// Lowers attention: `f32[1, S, D], f32[1, T, E], f32[1, T, E] → f32[1, S, output]`.
fn attend(call: &mut QuantLayerCall, of: &AttentionHeads, [query, key, value]: [usize; 3]) -> Result<usize> {
    let name = format!("{}/{}", call.name(), of.prefix).trim_end_matches('/').to_string();
    let scale = (1.0 / (of.key_dim as f64).sqrt()) as f32;
    let q = project(call, of, "query", query, of.key_dim, scale)?;
    let k = project(call, of, "key", key, of.key_dim, 1.0)?;
    let v = project(call, of, "value", value, of.value_dim, 1.0)?;
    let (s, t) = (call.b.dims(q)[2], call.b.dims(k)[2]);
    let dims = vec![1, of.heads, s, t];
    let operator = TfliteOperator::new(TfliteOp::BatchMatmul, [q, k], []).with(OptionField::AdjY, 1.0);
    let mut scores = call.b.push(&format!("{name}/scores"), dims.clone(), operator);
    if of.causal {
        let seen = |at: usize| if at % t <= at / t { -MASKED } else { MASKED };
        let mask: Vec<f32> = (0..s * t).map(seen).collect();
        let mask = call.b.floats(format!("{name}/mask"), [1, 1, s, t], &mask)?;
        scores = call.b.apply(&format!("{name}/masked"), TfliteOp::Minimum, &[scores, mask], dims);
    }
    let weights = activate(call.b, &format!("{name}/weights"), scores, Activation::Softmax)?;
    let dims = vec![1, of.heads, s, of.value_dim];
    let heads = call.b.apply(&format!("{name}/heads"), TfliteOp::BatchMatmul, &[weights, v], dims);
    let turned = transposed(call, &format!("{name}/turned"), heads)?;
    let joined = call.b.reshape(&format!("{name}/joined"), turned, vec![1, s, of.heads * of.value_dim])?;
    let kernel = call.weight(&format!("{}attention_output/kernel", of.prefix))?;
    let units = kernel.shape().dims().last().copied().unwrap_or(1);
    let bias = match of.use_bias {
        true => call.weight(&format!("{}attention_output/bias", of.prefix))?.to_f32s(),
        false => vec![0.0; units],
    };
    product(call.b, &name, joined, &kernel.to_f32s(), &bias)
}

/// Projects to heads: `f32[1, S, D] → f32[1, heads, S, width]`.
fn project(
    call: &mut QuantLayerCall,
    of: &AttentionHeads,
    part: &str,
    x: usize,
    width: usize,
    scale: f32,
) -> Result<usize> {
    let name = format!("{}/{}{part}", call.name(), of.prefix);
    let scaled = |x: Vec<f32>| x.into_iter().map(|v| v * scale).collect::<Vec<f32>>();
    let kernel = scaled(call.weight(&format!("{}{part}/kernel", of.prefix))?.to_f32s());
    let bias = match of.use_bias {
        true => scaled(call.weight(&format!("{}{part}/bias", of.prefix))?.to_f32s()),
        false => vec![0.0; of.heads * width],
    };
    let places = call.b.dims(x)[1];
    let y = product(call.b, &name, x, &kernel, &bias)?;
    let y = call.b.reshape(&format!("{name}/heads"), y, vec![1, places, of.heads, width])?;
    transposed(call, &format!("{name}/turned"), y)
}

/// Swaps the two middle dimensions.
fn transposed(call: &mut QuantLayerCall, name: &str, x: usize) -> Result<usize> {
    let mut dims = call.b.dims(x);
    dims.swap(1, 2);
    let order = call.b.ints(format!("{name}/order"), [4], &[0, 2, 1, 3])?;
    Ok(call.b.apply(name, TfliteOp::Transpose, &[x, order], dims))
}

pub(super) fn transformer_block(
    call: &mut QuantLayerCall,
    heads: usize,
    causal: bool,
    block: &EncoderBlock,
) -> Result<usize> {
    let (name, x) = (call.name(), call.input());
    let features = call.dims().last().copied().unwrap_or(1);
    let key_dim = features / heads.max(1);
    let of = AttentionHeads {
        prefix: "self_attention/".into(),
        heads,
        key_dim,
        value_dim: key_dim,
        use_bias: true,
        causal,
    };
    let attended = part(call, block, "self_attention", x, |call, x| attend(call, &of, [x, x, x]))?;
    part(call, block, "feedforward", attended, |call, x| {
        let inside = dense(call, "feedforward_intermediate_dense", x)?;
        let inside = activate(call.b, &format!("{name}/inside"), inside, block.activation)?;
        dense(call, "feedforward_output_dense", inside)
    })
}

/// Lowers a dense layer inside this one.
fn dense(call: &mut QuantLayerCall, layer: &str, x: usize) -> Result<usize> {
    let kernel = call.weight(&format!("{layer}/kernel"))?.to_f32s();
    let bias = call.weight(&format!("{layer}/bias"))?.to_f32s();
    let name = format!("{}/{layer}", call.name());
    product(call.b, &name, x, &kernel, &bias)
}

/// Lowers a residual branch: `x + inner(norm(x))`, or `norm(x + inner(x))`.
fn part(
    call: &mut QuantLayerCall,
    block: &EncoderBlock,
    which: &str,
    x: usize,
    inner: impl FnOnce(&mut QuantLayerCall, usize) -> Result<usize>,
) -> Result<usize> {
    let norm = format!("{which}_layer_norm");
    let name = format!("{}/{norm}", call.name());
    let moments = LayerNormParams {
        epsilon: block.epsilon,
        gamma: Some(call.weight(&format!("{norm}/gamma"))?.to_f32s()),
        beta: Some(call.weight(&format!("{norm}/beta"))?.to_f32s()),
    };
    let entering = if block.is_first { standardized(call.b, &name, x, &moments)? } else { x };
    let y = inner(call, entering)?;
    let both = format!("{}/{which}_sum", call.name());
    let y = sum(call.b, &both, x, y);
    if block.is_first { Ok(y) } else { standardized(call.b, &name, y, &moments) }
}
