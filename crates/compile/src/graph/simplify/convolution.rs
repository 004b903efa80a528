//! Convolutions that do themselves what was done to their operands before.

use super::{is, splat};
use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Convolution, Pad, Reverse};
use systole_ir::{Node, Op, ValueId};

/// A kernel that was turned around is read backwards, zeros around the input are the convolution's own padding.
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

/// The directions in which the kernel is read that `r` turns around. Only of dense convolutions: those with groups
/// are computed by kernels that read forwards.
fn reversed(c: &Convolution, r: &Reverse) -> Option<Vec<bool>> {
    let spatial = &c.dims.kernel_spatial;
    let dense = c.feature_groups == 1 && c.batch_groups == 1;
    let turned = |(d, before): (&usize, &bool)| before ^ r.dims.contains(d);
    (dense && r.dims.iter().all(|d| spatial.contains(d)))
        .then(|| spatial.iter().zip(&c.reversal).map(turned).collect())
}

/// The padding with the zeros of `p`, where these are around spatial dimensions only.
fn padded(c: &Convolution, p: &Pad) -> Option<Vec<[i64; 2]>> {
    let spatial = &c.dims.input_spatial;
    let fits = |d: usize| {
        let around = p.low[d] >= 0 && p.high[d] >= 0 && spatial.contains(&d);
        p.interior[d] == 0 && (around || (p.low[d], p.high[d]) == (0, 0))
    };
    let with = |(i, &d): (usize, &usize)| {
        let holes = c.lhs_dilation[i] as i64;
        [c.padding[i][0] + p.low[d] * holes, c.padding[i][1] + p.high[d] * holes]
    };
    (0..p.low.len()).all(fits).then(|| spatial.iter().enumerate().map(with).collect())
}
