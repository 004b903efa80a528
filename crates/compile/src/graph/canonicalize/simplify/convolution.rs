//! Folds `reverse` and `pad` of a convolution's operands into the convolution's own attributes.

use crate::graph::canonicalize::simplify::constant_folding::{is, splat};
use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Convolution, Pad, Reverse};
use systole_ir::{Node, Op, ValueId};

/// Folds a convolution's `reverse` and `pad`: a reversed kernel becomes `window_reversal`, zeros around the input
/// become padding.
pub fn run(g: &mut Rewriter, c: &Convolution, node: &Node, inputs: &[ValueId]) -> Option<ValueId> {
    let (mut op, mut x, mut kernel) = (c.clone(), inputs[0], inputs[1]);
    if let Op::Reverse(r) = &g.node(kernel).op
        && let Some(reversal) = reversed(c, r)
    {
        (op.reversal, kernel) = (reversal, g.node(kernel).inputs[0]);
    }
    if let (Op::Pad(p), &[inner, value]) = (&g.node(x).op, &g.node(x).inputs[..])
        && is(splat(g, value), 0.0)
        && g.ty(inner).elements() > 0
        && let Some(padding) = padded(c, p)
    {
        (op.padding, x) = (padding, inner);
    }
    ([x, kernel] != inputs).then(|| g.push(op, &[x, kernel], node))
}

/// `window_reversal` combined with the reversal `r`. Dense convolutions only: the kernels of grouped ones have no
/// reversed variant.
fn reversed(c: &Convolution, r: &Reverse) -> Option<Vec<bool>> {
    let spatial = &c.dims.kernel_spatial;
    let dense = c.feature_groups == 1 && c.batch_groups == 1;
    let flipped = |(d, before): (&usize, &bool)| before ^ r.dims.contains(d);
    (dense && r.dims.iter().all(|d| spatial.contains(d)))
        .then(|| spatial.iter().zip(&c.reversal).map(flipped).collect())
}

/// The convolution's padding plus that of `p`, if `p` pads spatial dimensions only and does not crop.
fn padded(c: &Convolution, p: &Pad) -> Option<Vec<[i64; 2]>> {
    let spatial = &c.dims.input_spatial;
    let fits = |d: usize| {
        let around = p.low[d] >= 0 && p.high[d] >= 0 && spatial.contains(&d);
        p.interior[d] == 0 && (around || (p.low[d], p.high[d]) == (0, 0))
    };
    let with = |(i, &d): (usize, &usize)| {
        let dilation = c.lhs_dilation[i] as i64;
        [c.padding[i][0] + p.low[d] * dilation, c.padding[i][1] + p.high[d] * dilation]
    };
    (0..p.low.len()).all(fits).then(|| spatial.iter().enumerate().map(with).collect())
}
