//! Masked attention from matrix products and softmax. The fused attention op supports no masks.

use crate::layers::built_in::*;
use crate::layers::random::dropout::kept;

/// Combines masks: `query: T[B, S, …], value, key: T[B, T, …] → bool[B, S, T]`, true if a position may attend to
/// another. `None` without masks. As in Keras, a masked query position attends to nothing.
pub(super) fn seen(cx: &Cx, [query, value, key]: [&Tensor; 3], causal: bool) -> Option<Tensor> {
    let shape = Shape::new([query.dim(0), query.dim(1), value.dim(1)]);
    let of_key = cx.mask_of(key).filter(|_| key.id() != value.id());
    let masks = [
        cx.mask_of(query).map(|mask| mask.broadcast_in_dim(&shape, &[0, 1])),
        cx.mask_of(value).map(|mask| mask.broadcast_in_dim(&shape, &[0, 2])),
        of_key.map(|mask| mask.broadcast_in_dim(&shape, &[0, 2])),
    ];
    let seen = masks.into_iter().flatten().reduce(|a, b| a.and(&b))?;
    if !causal {
        return Some(seen);
    }
    Some(seen.and(&looking_back(&seen, &shape)))
}

/// Causal mask: `q: T[B, S, N, K], k: T[B, T, N, K] → bool[B, S, T]`.
pub(super) fn causal(q: &Tensor, k: &Tensor) -> Tensor {
    looking_back(q, &Shape::new([q.dim(0), q.dim(1), k.dim(1)]))
}

fn looking_back(like: &Tensor, shape: &Shape) -> Tensor {
    let place = |dim| like.builder().iota(TensorType::new(DType::I32, shape.clone()), dim);
    place(1).greater_equal(&place(2))
}

/// Masked attention: `q: T[B, S, N, K], k: T[B, T, N, K], v: T[B, T, N, V] → T[B, S, N, V]`, with the mask `seen: bool[B,
/// S, T]`, and a `bias: T[B, N, S, T]` of the scores.
pub(super) fn weigh(
    cx: &mut Cx,
    [q, k, v]: [&Tensor; 3],
    scale: f64,
    (seen, bias): (Option<&Tensor>, Option<&Tensor>),
    dropout: f64,
) -> Tensor {
    let mut scores = (q * scale).dot_general(k, &[0, 2], &[0, 2], &[3], &[3]).convert(DType::F32);
    if let Some(bias) = bias {
        scores = scores + bias.convert(DType::F32);
    }
    let seen = seen.map(|seen| seen.broadcast_in_dim(scores.shape(), &[0, 2, 3]));
    if let Some(seen) = &seen {
        // Below all scores, and finite.
        let hidden = scores.builder().full(scores.ty(), -1e9);
        scores = seen.select(&scores, &hidden);
    }
    let mut weights = scores.softmax();
    if dropout > 0.0 {
        // As in Keras's softmax layer, which it uses with dropout.
        if let Some(seen) = &seen {
            weights = seen.select(&weights, &weights.zeros_like());
        }
        if let Some(kept) = kept(cx, weights.shape(), dropout) {
            let factor = if dropout < 1.0 { 1.0 / (1.0 - dropout) } else { 0.0 };
            weights = kept.select(&(&weights * factor), &weights.zeros_like());
        }
    }
    let weights = weights.convert(q.dtype());
    weights.dot_general(v, &[0, 1], &[0, 2], &[3], &[1]).transpose(&[0, 2, 1, 3])
}
