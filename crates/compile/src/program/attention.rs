//! The type check of attention kernels, whose data is the IR's [`AttentionMatch`].

use super::type_check::{CheckResult, alike, holds, same};
use systole_ir::attention::{AttentionMatch, AttentionOperand};
use systole_ir::{DType, TensorType};

/// `q: T[B, S, N, K], k: T[B, S', N, K], v: T[B, S', N, V] → T[B, S, N, V]` for N heads, or the gradients w.r.t. these
/// operands. With dropout the random state `u64[2 or 3]` is an operand too.
pub fn check(a: &AttentionMatch, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let (index, operands) = ins.split_last().ok_or("attention has no operands")?;
    same("the branch index of attention", index, &TensorType::scalar(DType::I32))?;
    let operand = |what: &str, i: usize| {
        operands.get(i).ok_or_else(|| format!("{what} of attention: operand {i} of {}", operands.len()))
    };
    let (q, k, v) = (operand("the queries", a.q)?, operand("the keys", a.k)?, operand("the values", a.v)?);
    let (&[batch, queries, heads, width], &[_, keys, _, _], &[_, _, _, depth]) =
        (q.shape.dims(), k.shape.dims(), v.shape.dims())
    else {
        return Err(format!("attention of {q}, {k} and {v}, which are not all of rank 4"));
    };
    let has_kernel = matches!(q.dtype, DType::F32 | DType::BF16 | DType::F16);
    holds(has_kernel, || format!("attention of {q}, a type that no kernel takes"))?;
    same("the keys of attention", k, &q.with_shape([batch, keys, heads, width]))?;
    same("the values of attention", v, &q.with_shape([batch, keys, heads, depth]))?;
    match (a.random, a.attention.dropout) {
        (None, None) => {}
        (Some(i), Some(_)) => {
            let state = operand("the random state", i)?;
            let words = state.shape.first().copied().filter(|words| [2, 3].contains(words)).unwrap_or(2);
            same("the random state of attention", state, &TensorType::new(DType::U64, [words]))?;
        }
        _ => return Err("attention has dropout without a random state, or the other way round".into()),
    }
    let y = q.with_shape([batch, queries, heads, depth]);
    let Some((dy, wanted)) = &a.gradient else {
        return alike("the result of attention", outs, std::slice::from_ref(&y));
    };
    same("the output gradient of attention", operand("the output gradient", *dy)?, &y)?;
    let twice = wanted.iter().enumerate().any(|(i, w)| wanted[..i].contains(w));
    holds(!twice, || format!("attention computes one gradient twice: {wanted:?}"))?;
    let of = |w: &AttentionOperand| match w {
        AttentionOperand::Queries => q.clone(),
        AttentionOperand::Keys => k.clone(),
        AttentionOperand::Values => v.clone(),
    };
    alike("a gradient of attention", outs, &wanted.iter().map(of).collect::<Vec<_>>())
}
