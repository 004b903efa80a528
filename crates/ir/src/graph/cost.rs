//! Cost of a whole graph: floating-point operations and bytes moved, summed over its ops.

use super::{Graph, OpCost};
use systole_base::TensorType;

/// Sums the operations and bytes of all live nodes, without fusion. Loop bodies count once per iteration, if that is known.
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
