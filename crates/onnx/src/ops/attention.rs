//! Imports ONNX Attention (multi-head and grouped, masks, caches) and RotaryEmbedding.

use super::call::{NodeCall, RuleResult, output, unsupported};
use super::conv_pool::sums_in;
use super::elementwise::several_outputs;
use super::op_row::operators;
use crate::model::{broken, dtype_of};
use systole_base::{DType, Result, TensorType, ensure};
use systole_ir::Tensor;

operators! {
    "Attention" 23..28: attention;
    "RotaryEmbedding" 23..23: rotary_embedding;
}

/// Splits `[B, S, H·D]` to heads, `[B, H, S, D]`; operands of rank 4 are returned unchanged.
fn heads(c: &mut NodeCall, i: usize, attribute: &str) -> Result<Tensor> {
    let x = c.tensor(i)?;
    match x.shape().dims() {
        [_, _, _, _] => Ok(x),
        &[batch, length, hidden] => {
            let n = c.count(attribute, 0)?;
            match hidden.is_multiple_of(n) {
                true => Ok(x.reshape([batch, length, n, hidden / n]).transpose(&[0, 2, 1, 3])),
                false => Err(broken(format!("{n} heads do not divide {}", x.ty()))),
            }
        }
        _ => Err(broken(format!("operand {i} is {}, expected rank 3 or 4", x.ty()))),
    }
}

/// Appends keys or values to their cache.
fn cached(c: &mut NodeCall, i: usize, t: Tensor) -> Result<Tensor> {
    Ok(match c.optional(i)? {
        Some(past) => Tensor::concatenate(&[&past, &t], 2),
        None => t,
    })
}

/// Repeats keys or values, `[B, G, L, D] → [B, H, L, D]`, so that H / G heads share each.
fn repeated(t: &Tensor, heads: usize) -> Tensor {
    let &[batch, groups, length, size] = t.shape().dims() else { return t.clone() };
    let wide = [batch, groups, heads / groups.max(1), length, size];
    let apart = t.reshape([batch, groups, 1, length, size]);
    apart.broadcast_to(&wide.into()).reshape([batch, heads, length, size])
}

fn attention(c: &mut NodeCall) -> RuleResult {
    let is_flat = c.tensor(0)?.rank() == 3;
    let q = heads(c, 0, "q_num_heads")?;
    let (k, v) = (heads(c, 1, "kv_num_heads")?, heads(c, 2, "kv_num_heads")?);
    let fresh = k.shape()[2];
    let (k, v) = (cached(c, 4, k)?, cached(c, 5, v)?);
    let (&[batch, n, length, size], &[_, groups, past, _]) = (q.shape().dims(), k.shape().dims()) else {
        return Err(broken(format!("queries {} and keys {} have no heads", q.ty(), k.ty())));
    };
    if groups == 0 || !n.is_multiple_of(groups) || v.shape()[..3] != k.shape()[..3] {
        return Err(broken(format!(
            "queries {}, keys {} and values {} do not match",
            q.ty(),
            k.ty(),
            v.ty()
        )));
    }
    let bias = attention_bias(c, &q, &k, past - fresh)?;
    let scale = c.float("scale", 1.0 / (size as f64).sqrt())?.sqrt();
    let keys = repeated(&k, n);
    let raw = (q * scale).dot_general(&(keys * scale), &[0, 1], &[0, 1], &[3], &[3]);
    let capped = match c.float("softcap", 0.0)? {
        cap if cap > 0.0 => (&raw / cap).tanh() * cap,
        _ => raw.clone(),
    };
    let bias = bias.map(|b| b.broadcast_to(raw.shape()));
    let scores = bias.as_ref().map_or(capped.clone(), |b| &capped + b);
    let shares = attention_shares(c, &scores, bias.as_ref())?;
    let y = shares.matmul(&repeated(&v, n));
    let y = match is_flat {
        true => y.transpose(&[0, 2, 1, 3]).reshape([batch, length, n * v.shape()[3]]),
        false => y,
    };
    let products = match c.int("qk_matmul_output_mode", 0)? {
        0 => raw,
        1 => capped,
        2 => scores,
        3 => shares,
        other => return Err(unsupported(format!("unsupported qk_matmul_output_mode {other}"))),
    };
    several_outputs(vec![y, k, v, products])
}

/// Softmax of the scores; rows whose keys are all masked are 0.
fn attention_shares(c: &NodeCall, scores: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let dtype = match c.int("softmax_precision", 0)? {
        0 => sums_in(scores.dtype()),
        code => dtype_of(code).filter(|d| d.is_float()).ok_or_else(|| {
            unsupported(format!("unsupported softmax_precision {code}")).hint("use a float type")
        })?,
    };
    let shares = scores.convert(dtype).softmax().convert(scores.dtype());
    let Some(bias) = bias else { return Ok(shares) };
    let most = bias.reduce_max(&[3]).broadcast_except(bias.shape(), &[3]);
    let is_masked = most.equal(&c.scalar(bias.dtype(), f64::NEG_INFINITY).broadcast_to(bias.shape()));
    Ok(is_masked.select(&shares.zeros_like(), &shares))
}

/// Returns 0 where a key may be read, and −∞ elsewhere.
fn penalty(c: &NodeCall, allowed: &Tensor, dtype: DType) -> Tensor {
    let full = |v: f64| c.scalar(dtype, v).broadcast_to(allowed.shape());
    allowed.select(&full(0.0), &full(f64::NEG_INFINITY))
}

/// Sum of the masks, which broadcasts to `[B, H, S, L]`: the node's mask, causality, windows and padding of the cache.
fn attention_bias(c: &mut NodeCall, q: &Tensor, k: &Tensor, past: usize) -> Result<Option<Tensor>> {
    let (length, keys, batch, dtype) = (q.shape()[2], k.shape()[2], q.shape()[0], q.dtype());
    let mut all = Vec::new();
    if let Some(mask) = c.optional(3)? {
        let mask = if mask.dtype() == DType::Bool { penalty(c, &mask, dtype) } else { mask };
        let short = mask.shape().last().map_or(0, |n| keys.saturating_sub(*n));
        let (low, mut high) = (vec![0; mask.rank()], vec![0; mask.rank()]);
        high.iter_mut().last().into_iter().for_each(|n| *n = short as i64);
        let blocked = c.scalar(dtype, f64::NEG_INFINITY);
        all.push(if short > 0 { mask.pad(&blocked, &low, &high, &vec![0; mask.rank()]) } else { mask });
    }
    let per_sample = c.optional(6)?.map(|n| n.convert(DType::I64).reshape([batch, 1, 1, 1]));
    let places = TensorType::new(DType::I64, [1, 1, length, keys]);
    let column = c.g.iota(places.clone(), 3);
    let offset = match &per_sample {
        Some(n) if !c.has(4) => n - length as f64,
        _ => c.scalar(DType::I64, past as f64),
    };
    // How many positions a key is before its query.
    let distance = c.g.iota(places, 2) + offset - &column;
    let bound = |v: i64| distance.scalar_like(v as f64).broadcast_to(distance.shape());
    let (left, right) = (c.int("left_window_size", -1)?, c.int("right_window_size", -1)?);
    if c.is("is_causal", false)? {
        all.push(penalty(c, &distance.greater_equal(&bound(0)), dtype));
    }
    if left >= 0 {
        all.push(penalty(c, &distance.less_equal(&bound(left)), dtype));
    }
    if right >= 0 {
        all.push(penalty(c, &distance.greater_equal(&bound(right.saturating_neg())), dtype));
    }
    if let Some(n) = per_sample {
        all.push(penalty(c, &column.less(&n), dtype));
    }
    Ok(all.into_iter().reduce(|a, b| a + b))
}

/// Imports RotaryEmbedding: rotates pairs of elements of each head by the angles of their position.
fn rotary_embedding(c: &mut NodeCall) -> RuleResult {
    let given = c.tensor(0)?;
    let x = match given.shape().dims() {
        [_, _, _, _] => given.transpose(&[0, 2, 1, 3]),
        &[batch, length, hidden] => {
            let n = c.count("num_heads", 0)?;
            ensure!(hidden.is_multiple_of(n), broken(format!("{n} heads do not divide {}", given.ty())));
            given.reshape([batch, length, n, hidden / n])
        }
        _ => return Err(broken(format!("the operand is {}, expected rank 3 or 4", given.ty()))),
    };
    let (rank, size) = (given.rank(), x.shape()[3]);
    let turned = match c.int("rotary_embedding_dim", 0)? {
        0 => size,
        n => usize::try_from(n)
            .ok()
            .filter(|n| *n <= size)
            .ok_or_else(|| broken(format!("rotary_embedding_dim is {n}, but heads have {size} elements")))?,
    };
    let half = turned / 2;
    let (batch, length, n) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let mut angles = Vec::new();
    for i in [1, 2] {
        let t = c.tensor(i)?;
        let t = if c.has(3) { t.take(&c.tensor(3)?) } else { t };
        if t.shape().dims() != [batch, length, half] {
            return Err(broken(format!("operand {i} is {}, expected [{batch}, {length}, {half}]", t.ty())));
        }
        angles.push(t.broadcast_in_dim(&[batch, length, n, half].into(), &[0, 1, 3]));
    }
    let (inner, rest) = (x.slice_dim(3, 0, turned), x.slice_dim(3, turned, size));
    let pairs = c.is("interleaved", false)?;
    let apart = if pairs { [batch, length, n, half, 2] } else { [batch, length, n, 2, half] };
    let dim = if pairs { 4 } else { 3 };
    let inner = inner.reshape(apart);
    let part = |i: usize| inner.slice_dim(dim, i, i + 1).reshape([batch, length, n, half]);
    let (a, b, cos, sin) = (part(0), part(1), &angles[0], &angles[1]);
    let mut one = apart;
    one[dim] = 1;
    let real = (cos * &a - sin * &b).reshape(one);
    let imaginary = (sin * a + cos * b).reshape(one);
    let y = Tensor::concatenate(&[&real, &imaginary], dim).reshape([batch, length, n, turned]);
    let y = if turned < size { Tensor::concatenate(&[&y, &rest], 3) } else { y };
    output(if rank == 4 { y.transpose(&[0, 2, 1, 3]) } else { y.reshape(given.shape().clone()) })
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{assert_close, floats, run_node};
    use systole_base::Literal;

    /// One head of size 1 with scale 1: shares are softmax(q · k).
    #[test]
    fn shares_are_masked_softmax_of_products() {
        let (q, k) = (floats([1, 1, 2, 1], [1.0, 1.0]), floats([1, 1, 2, 1], [0.0, 3f32.ln()]));
        let v = floats([1, 1, 2, 1], [4.0, 8.0]);
        let node = OnnxNode::new("Attention", ["q", "k", "v"], "y");
        assert_close(&run_node(23, node.clone(), &[&q, &k, &v])[0], &[7.0, 7.0]);
        let causal = node.with("is_causal", OnnxAttribute::Int(1));
        assert_close(&run_node(23, causal, &[&q, &k, &v])[0], &[4.0, 7.0]);
        let mask = Literal::from_bools([2, 2], &[false, false, false, true]).unwrap();
        let masked = OnnxNode::new("Attention", ["q", "k", "v", "m"], "y");
        assert_close(&run_node(23, masked, &[&q, &k, &v, &mask])[0], &[0.0, 8.0]);
    }

    #[test]
    fn heads_share_keys_and_caches_are_extended() {
        // Two query heads, one key head; one cached position.
        let (q, k) = (floats([1, 1, 2], [0.0, 1.0]), floats([1, 1, 1], [3f32.ln()]));
        let (v, past) = (floats([1, 1, 1], [8.0]), floats([1, 1, 1, 1], [0.0]));
        let mut node = OnnxNode::new("Attention", ["q", "k", "v", "", "pk", "pv"], "y")
            .with("q_num_heads", OnnxAttribute::Int(2))
            .with("kv_num_heads", OnnxAttribute::Int(1))
            .with("qk_matmul_output_mode", OnnxAttribute::Int(3));
        node.outputs = ["y", "k2", "v2", "qk"].map(String::from).into();
        let y = run_node(23, node, &[&q, &k, &v, &past, &past]);
        assert_close(&y[0], &[4.0, 6.0]);
        assert_close(&y[1], &[0.0, 3f32.ln()]);
        assert_close(&y[3], &[0.5, 0.5, 0.25, 0.75]);
    }

    #[test]
    fn pairs_are_rotated() {
        let x = floats([1, 1, 1, 4], [1.0, 2.0, 3.0, 4.0]);
        // Rotations by 90° and 0°.
        let (cos, sin) = (floats([1, 1, 2], [0.0, 1.0]), floats([1, 1, 2], [1.0, 0.0]));
        let node = OnnxNode::new("RotaryEmbedding", ["x", "c", "s"], "y");
        assert_close(&run_node(23, node.clone(), &[&x, &cos, &sin])[0], &[-3.0, 2.0, 1.0, 4.0]);
        let node = node.with("interleaved", OnnxAttribute::Int(1));
        assert_close(&run_node(23, node, &[&x, &cos, &sin])[0], &[-2.0, 1.0, 3.0, 4.0]);
    }
}
