//! Work of a whole graph: the sum of its ops' own cost rules.

use crate::graph::Graph;
use crate::op::Cost;
use systole_base::TensorType;

/// Floating-point operations and bytes moved if every node ran alone, bodies of loops counted once per trip
/// where the trip count is known.
pub fn cost(graph: &Graph) -> Cost {
    graph.nodes.iter().fold(Cost::default(), |total, node| {
        let args: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let c = node.op.rule().cost(&args, &node.outs);
        Cost { flops: total.flops + c.flops, bytes: total.bytes + c.bytes }
    })
}
