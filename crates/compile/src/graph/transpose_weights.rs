//! Weights of few columns, such as a classifier's `[features, classes]`, are used turned, `[classes, features]`.
//!
//! Vectors then lie along the many features in all three products of a training step, and no lane of them is idle:
//! `y = h·W`, `dh = dy·Wᵀ`, and `dWᵀ = dyᵀ·h`, which is turned back. W is turned once, however often it is read.

use super::rewrite::{Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashMap;
use systole_ir::op::{DotGeneral, Transpose};
use systole_ir::{DType, Dims, Graph, Node, Op, TensorType, ValueId};

/// Columns that are few: those of the vectors of today's machines.
pub const FEW: usize = 16;
/// Features that are many, and rows that make up for turning.
const FEATURES: usize = 2048;
const ROWS: usize = 128;

/// The pass.
pub fn run(graph: &Graph) -> Graph {
    let weights: Vec<ValueId> = graph.nodes.iter().filter_map(|n| weight(graph, n)).collect();
    let mut turned: HashMap<ValueId, ValueId> = HashMap::new();
    rebuild(graph, |g, _, node, inputs| {
        let (a, b) = (*inputs.first()?, *inputs.get(1)?);
        let (along, reads) = (product(graph, node)?, weights.contains(&node.inputs[1]));
        let value = match along {
            [1, 0] if reads => {
                let b = *turned.entry(b).or_insert_with(|| turn(g, b, node));
                push(g, node, [a, b], [1, 1])
            }
            [1, 1] if reads => {
                let b = *turned.entry(b).or_insert_with(|| turn(g, b, node));
                push(g, node, [a, b], [1, 0])
            }
            [0, 0] if is_slim(&node.outs[0], g.ty(a).shape[0]) => {
                let sum = push(g, node, [b, a], [0, 0]);
                turn(g, sum, node)
            }
            _ => return None,
        };
        Some(smallvec![value])
    })
}

/// Whether this is a weight of few columns for that many rows, or its gradient.
fn is_slim(weight: &TensorType, rows: usize) -> bool {
    let s = &weight.shape;
    matches!(weight.dtype, DType::F32 | DType::BF16) && s[0] >= FEATURES && s[1] <= FEW && rows >= ROWS
}

/// The weight of few columns that a node multiplies rows by.
fn weight(graph: &Graph, node: &Node) -> Option<ValueId> {
    let (a, b) = (*node.inputs.first()?, *node.inputs.get(1)?);
    (product(graph, node)? == [1, 0] && is_slim(graph.ty(b), graph.ty(a).shape[0])).then_some(b)
}

/// The dimensions of its operands that a product of two matrices sums along.
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

fn turn(g: &mut Rewriter, v: ValueId, node: &Node) -> ValueId {
    g.push(Transpose { permutation: Dims::from_slice(&[1, 0]) }, &[v], node)
}
