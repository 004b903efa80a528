//! LSTM: a loop over steps, in one direction or both.

use super::call::{Call, Makes, unsupported};
use super::elementwise::all_plain;
use crate::model::{Attribute, broken};
use systole_base::Result;
use systole_ir::{Tensor, flow};

/// `x: [S, N, I]`, weights `[D, 4H, I]` and `[D, 4H, H]` in the order input, output, forget, cell → `[S, D, N, H]`, and the last
/// states `[D, N, H]`.
pub(super) fn lstm(c: &mut Call) -> Makes {
    let x = c.plain(0)?;
    let (w, r) = (c.plain(1)?, c.plain(2)?);
    let (&[steps, n, _], &[directions, _, h]) = (x.shape().dims(), r.shape().dims()) else {
        return Err(broken(format!("an LSTM of {} with {}", x.ty(), r.ty())));
    };
    plain_form(c)?;
    let bias = c.optional(3)?;
    let zeros = c.scalar(x.dtype(), 0.0).broadcast_to(&[directions, n, h].into());
    let states = [5, 6].map(|i| c.optional(i));
    let [h0, c0] = states;
    let (h0, c0) = (h0?.unwrap_or(zeros.clone()), c0?.unwrap_or(zeros));
    let word = c.word("direction", "forward");
    let is_known = matches!((word.as_str(), directions), ("forward" | "reverse", 1) | ("bidirectional", 2));
    if !is_known || steps == 0 {
        return Err(broken(format!("an LSTM of {steps} steps, {word}, with {directions} directions")));
    }
    for t in [&w, &h0, &c0].into_iter().chain(&bias) {
        if t.shape().first() != Some(&directions) {
            return Err(broken(format!("an LSTM of {directions} directions has {}", t.ty())));
        }
    }
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    for d in 0..directions {
        let own = |t: &Tensor| {
            let dims = t.shape()[1..].to_vec();
            t.slice_dim(0, d, d + 1).reshape(dims)
        };
        let backwards = word == "reverse" || d == 1;
        let seen = if backwards { x.reverse(&[0]) } else { x.clone() };
        let weights = Weights { w: own(&w), r: own(&r), bias: bias.as_ref().map(own) };
        let [ys, last_h, last_c] = direction(&seen, &weights, &own(&h0), &own(&c0), h)?;
        let ys = if backwards { ys.reverse(&[0]) } else { ys };
        parts[0].push(ys.reshape([steps, 1, n, h]));
        parts[1].push(last_h.reshape([1, n, h]));
        parts[2].push(last_c.reshape([1, n, h]));
    }
    let joined = |all: &[Tensor], dim: usize| match all {
        [one] => one.clone(),
        all => Tensor::concatenate(&all.iter().collect::<Vec<_>>(), dim),
    };
    let [ys, h, c] = &parts;
    all_plain(vec![joined(ys, 1), joined(h, 0), joined(c, 0)])
}

/// Refuses the forms that PyTorch does not write.
fn plain_form(c: &Call) -> Result<()> {
    let usual = |a: &Attribute| match a {
        Attribute::Texts(t) => t.chunks(3).all(|t| t == ["Sigmoid", "Tanh", "Tanh"]),
        _ => false,
    };
    let activations = c.node.attributes.get("activations").is_none_or(usual);
    let rest = ["clip", "input_forget", "layout"]
        .iter()
        .any(|name| c.node.attributes.get(*name).is_some_and(|a| !matches!(a, Attribute::Int(0))));
    if !activations || rest || c.has(4) || c.has(7) {
        return Err(unsupported(
            "an LSTM with other activations, peepholes, clipping, lengths of sequences or layout",
        )
        .hint("export it as PyTorch's nn.LSTM has it"));
    }
    Ok(())
}

struct Weights {
    w: Tensor,
    r: Tensor,
    bias: Option<Tensor>,
}

/// All steps of one direction: outputs, the last output, the last cell.
fn direction(x: &Tensor, weights: &Weights, h0: &Tensor, c0: &Tensor, h: usize) -> Result<[Tensor; 3]> {
    if weights.r.shape().dims() != [4 * h, h] || weights.w.rank() != 2 {
        return Err(broken(format!("weights of an LSTM are {} and {}", weights.w.ty(), weights.r.ty())));
    }
    // All steps' products with the input at once.
    let mut gates = x.dot_general(&weights.w, &[], &[], &[2], &[1]);
    if let Some(bias) = &weights.bias {
        if bias.shape().dims() != [8 * h] {
            return Err(broken(format!("the bias of an LSTM is {}", bias.ty())));
        }
        gates = gates + (bias.slice_dim(0, 0, 4 * h) + bias.slice_dim(0, 4 * h, 8 * h));
    }
    let (last, ys) = flow::scan(&[h0, c0], &[&gates], |carry, x| {
        let all = &x[0] + carry[0].dot_general(&weights.r, &[], &[], &[1], &[1]);
        let gate = |i: usize| all.slice_dim(1, i * h, (i + 1) * h);
        let (input, output, forget) = (gate(0).logistic(), gate(1).logistic(), gate(2).logistic());
        let cell = forget * &carry[1] + input * gate(3).tanh();
        let y = output * cell.tanh();
        (vec![y.clone(), cell], vec![y])
    });
    match (&last[..], &ys[..]) {
        ([h, c], [ys]) => Ok([ys.clone(), h.clone(), c.clone()]),
        _ => Err(broken("an LSTM cannot be built")),
    }
}
