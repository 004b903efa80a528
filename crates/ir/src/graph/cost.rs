//! Work of a whole graph: the sum of its ops' own cost rules.

use super::{Graph, OpCost};
use systole_base::TensorType;

/// Floating-point operations and bytes moved if every node that a result needs ran alone, bodies of loops counted once
/// per trip where the trip count is known.
pub fn cost(graph: &Graph) -> OpCost {
    let mut needed = vec![false; graph.nodes.len()];
    graph.results.iter().for_each(|r| needed[r.index()] = true);
    let mut total = OpCost::default();
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if !needed[i] {
            continue;
        }
        node.inputs.iter().for_each(|v| needed[v.index()] = true);
        let args: Vec<&TensorType> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let c = node.op.rule().cost(&args, &node.outs);
        total = OpCost { flops: total.flops + c.flops, bytes: total.bytes + c.bytes };
    }
    total
}
