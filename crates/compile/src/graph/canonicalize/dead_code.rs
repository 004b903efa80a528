//! Dead-code elimination: drops nodes that no result depends on. Keeps parameters, since they are the signature.

use smallvec::SmallVec;
use systole_ir::{Graph, Node, Op, ValueId};

/// Runs dead-code elimination.
pub fn run(graph: &Graph) -> Graph {
    let mut live = vec![false; graph.nodes.len()];
    graph.results.iter().chain(&graph.params).for_each(|v| live[v.index()] = true);
    for i in (0..graph.nodes.len()).rev() {
        if live[i] || matches!(graph.nodes[i].op, Op::Parameter(_)) {
            live[i] = true;
            graph.nodes[i].inputs.iter().for_each(|v| live[v.index()] = true);
        }
    }
    let mut place = vec![0u32; graph.nodes.len()];
    let mut nodes: Vec<Node> = Vec::new();
    let moved = |v: ValueId, place: &[u32]| ValueId { node: place[v.index()], out: v.out };
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        place[i] = nodes.len() as u32;
        let inputs: SmallVec<[ValueId; 2]> = node.inputs.iter().map(|&v| moved(v, &place)).collect();
        nodes.push(Node { inputs, ..node.clone() });
    }
    Graph {
        name: graph.name.clone(),
        params: graph.params.iter().map(|&v| moved(v, &place)).collect(),
        param_names: graph.param_names.clone(),
        results: graph.results.iter().map(|&v| moved(v, &place)).collect(),
        scopes: graph.scopes.clone(),
        nodes,
    }
}
