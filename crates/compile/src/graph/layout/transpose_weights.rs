//! Transposes weights with few columns, such as a classifier's `[features, classes]`, to `[classes, features]` before
//! use.
//!
//! Vectors then run along the many features in all three GEMMs of a training step, with no idle SIMD lanes: `y = h·W`,
//! `dh = dy·Wᵀ`, and `dWᵀ = dyᵀ·h`, which is transposed back. W is transposed once, for all of its readers.

use crate::graph::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{DotGeneral, Transpose};
use systole_ir::{DType, Dims, Graph, Node, Op, TensorType, ValueId};

/// Maximum number of columns of weights that the pass transposes: the f32 lanes of a 512-bit vector.
pub const FEW: usize = 16;
/// Minimum number of features, and of rows (batch), for which the transposes pay.
const FEATURES: usize = 2048;
const ROWS: usize = 128;

/// Transposes weights with few columns before use.
pub fn run(graph: &Graph) -> Graph {
    let weights: Vec<ValueId> = graph.nodes.iter().filter_map(|n| weight(graph, n)).collect();
    let mut transposed: HashMap<ValueId, ValueId> = HashMap::new();
    rebuild(graph, |g, _, node, inputs| {
        let (a, b) = (*inputs.first()?, *inputs.get(1)?);
        let (along, reads) = (product(graph, node)?, weights.contains(&node.inputs[1]));
        let value = match along {
            [1, 0] if reads => {
                let b = *transposed.entry(b).or_insert_with(|| transpose(g, b, node));
                push(g, node, [a, b], [1, 1])
            }
            [1, 1] if reads => {
                let b = *transposed.entry(b).or_insert_with(|| transpose(g, b, node));
                push(g, node, [a, b], [1, 0])
            }
            [0, 0] if is_slim(&node.outs[0], g.ty(a).shape[0]) => {
                let sum = push(g, node, [b, a], [0, 0]);
                transpose(g, sum, node)
            }
            _ => return None,
        };
        Some(smallvec![value])
    })
}

/// Whether this is the type of a weight with few columns, or of its gradient, in a GEMM with that many rows.
fn is_slim(weight: &TensorType, rows: usize) -> bool {
    let s = &weight.shape;
    matches!(weight.dtype, DType::F32 | DType::BF16 | DType::F16)
        && s[0] >= FEATURES
        && s[1] <= FEW
        && rows >= ROWS
}

/// The weight, if `node` is a GEMM `rows · weight` with a weight of few columns.
fn weight(graph: &Graph, node: &Node) -> Option<ValueId> {
    let (a, b) = (*node.inputs.first()?, *node.inputs.get(1)?);
    (product(graph, node)? == [1, 0] && is_slim(graph.ty(b), graph.ty(a).shape[0])).then_some(b)
}

/// The contracted dimension of each operand, if `node` is a GEMM of two matrices.
fn product(graph: &Graph, node: &Node) -> Option<[usize; 2]> {
    let Op::DotGeneral(d) = &node.op else { return None };
    let matrices = node.inputs.iter().all(|&v| graph.ty(v).rank() == 2);
    match (&d.lhs_contract[..], &d.rhs_contract[..]) {
        (&[l], &[r]) if matrices && d.lhs_batch.is_empty() => Some([l, r]),
        _ => None,
    }
}

fn push(g: &mut Rewriter, node: &Node, operands: [ValueId; 2], along: [usize; 2]) -> ValueId {
    let [lhs_contract, rhs_contract] = along.map(|d| Dims::from_slice(&[d]));
    let element_type = node.outs[0].dtype;
    let none = Dims::new();
    let op =
        DotGeneral { lhs_batch: none.clone(), rhs_batch: none, lhs_contract, rhs_contract, element_type };
    g.push(op, &operands, node)
}

fn transpose(g: &mut Rewriter, v: ValueId, node: &Node) -> ValueId {
    g.push(Transpose { permutation: Dims::from_slice(&[1, 0]) }, &[v], node)
}
