//! States that a loop hands on unchanged become captures: they are not copied to be the loop's own, and kernels inside may
//! prepare them once, as they do with packed weights. JAX passes all that a loop reads as states.

use super::rewrite::{Values, rebuild};
use std::sync::Arc;
use systole_ir::op::While;
use systole_ir::{Graph, Op, ValueId};

/// Entry point of the pass.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        let own = w.captures..w.body.params.len();
        let is_held = |k: usize| w.body.results.get(k) == w.body.params.get(w.captures + k);
        let (held, left): (Vec<usize>, Vec<usize>) = (0..own.len()).partition(|&k| is_held(k));
        if held.is_empty() || left.is_empty() || w.recorded.is_some() {
            return None;
        }
        let states = held.iter().chain(&left).map(|k| w.captures + k);
        let order: Vec<usize> = (0..w.captures).chain(states).collect();
        let body = reordered(&w.body, &order);
        let body = Graph { results: left.iter().map(|&k| w.body.results[k]).collect(), ..body };
        let op = While {
            captures: w.captures + held.len(),
            cond: Arc::new(reordered(&w.cond, &order)),
            body: Arc::new(body),
            ..w.clone()
        };
        let operands: Vec<ValueId> = order.iter().map(|&k| inputs[k]).collect();
        let first = g.push(op, &operands, node);
        let mut made: Values = own.clone().map(|k| inputs[k]).collect();
        for (out, &k) in left.iter().enumerate() {
            made[k] = ValueId { node: first.node, out: out as u32 };
        }
        Some(made)
    })
}

/// The graph with its parameters in another order.
fn reordered(graph: &Graph, order: &[usize]) -> Graph {
    let mut new = graph.clone();
    new.params = order.iter().map(|&k| graph.params[k]).collect();
    new.param_names = order.iter().filter_map(|&k| graph.param_names.get(k).cloned()).collect();
    for (index, param) in new.params.iter().enumerate() {
        if let Some(Op::Parameter(p)) = new.nodes.get_mut(param.index()).map(|n| &mut n.op) {
            p.index = index;
        }
    }
    new
}
