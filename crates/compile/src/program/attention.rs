//! Type-checks attention kernels. Their description is the IR's [`AttentionMatch`].

use super::type_check::{CheckResult, alike, holds, same};
use systole_ir::attention::{AttentionMatch, AttentionOperand};
use systole_ir::{DType, TensorType};

/// Type-checks attention: `q: T[B, S, N, K], k: T[B, S', N, K], v: T[B, S', N, V] → T[B, S, N, V]` for N heads, or its
/// gradients. With dropout the random state `u64[2 or 3]` is an operand too.
pub fn check(a: &AttentionMatch, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let (index, operands) = ins.split_last().ok_or("attention has no operands")?;
    same("branch index of attention", index, &TensorType::scalar(DType::I32))?;
    let operand = |what: &str, i: usize| {
        operands.get(i).ok_or_else(|| {
            format!("{what} of attention: operand {i} is out of range for {} operands", operands.len())
        })
    };
    let (q, k, v) = (operand("queries", a.q)?, operand("keys", a.k)?, operand("values", a.v)?);
    let (&[batch, queries, heads, width], &[_, keys, _, _], &[_, _, _, depth]) =
        (q.shape.dims(), k.shape.dims(), v.shape.dims())
    else {
        return Err(format!("attention operands {q}, {k} and {v} must all have rank 4"));
    };
    let has_kernel = matches!(q.dtype, DType::F32 | DType::BF16 | DType::F16);
    holds(has_kernel, || format!("no attention kernel for the element type of {q}"))?;
    same("keys of attention", k, &q.with_shape([batch, keys, heads, width]))?;
    same("values of attention", v, &q.with_shape([batch, keys, heads, depth]))?;
    match (a.random, a.attention.dropout) {
        (None, None) => {}
        (Some(i), Some(_)) => {
            let state = operand("random state", i)?;
            let words = state.shape.first().copied().filter(|words| [2, 3].contains(words)).unwrap_or(2);
            same("random state of attention", state, &TensorType::new(DType::U64, [words]))?;
        }
        _ => return Err("attention must have both dropout and a random state, or neither".into()),
    }
    let y = q.with_shape([batch, queries, heads, depth]);
    let Some((dy, wanted)) = &a.gradient else {
        return alike("result of attention", outs, std::slice::from_ref(&y));
    };
    same("output gradient of attention", operand("output gradient", *dy)?, &y)?;
    let twice = wanted.iter().enumerate().any(|(i, w)| wanted[..i].contains(w));
    holds(!twice, || format!("attention computes the same gradient twice: {wanted:?}"))?;
    let of = |w: &AttentionOperand| match w {
        AttentionOperand::Queries => q.clone(),
        AttentionOperand::Keys => k.clone(),
        AttentionOperand::Values => v.clone(),
    };
    alike("gradient of attention", outs, &wanted.iter().map(of).collect::<Vec<_>>())
}
