//! Copying a graph node by node while replacing some: the frame of every pass.

use smallvec::SmallVec;
use systole_ir::op::Outs;
use systole_ir::{Graph, Node, Op, TensorType, ValueId, bug};

/// The graph under construction.
#[derive(Default)]
pub struct Rewriter {
    nodes: Vec<Node>,
}

/// The new values of one old node's results.
pub type Values = SmallVec<[ValueId; 1]>;

impl Rewriter {
    /// Type of a new value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        &self.nodes[v.index()].outs[v.out as usize]
    }

    /// The new node that makes a value.
    pub fn node(&self, v: ValueId) -> &Node {
        &self.nodes[v.index()]
    }

    /// Appends a node in the place (scope, source line) of `like` and returns its first result.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId], like: &Node) -> ValueId {
        let op = op.into();
        let types: Vec<&TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        let outs = match op.rule().infer(&types) {
            Ok(outs) => outs,
            Err(c) => bug!("a pass made an ill-typed {}: ({}) {}", op.name(), c.label, c.message),
        };
        self.append(op, inputs, outs, like)[0]
    }

    /// Appends a node like an old one, with other operands of the same types, and returns its first result.
    pub fn push_as(&mut self, node: &Node, inputs: &[ValueId]) -> ValueId {
        self.append(node.op.clone(), inputs, node.outs.clone(), node)[0]
    }

    /// All nodes.
    pub fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    fn append(&mut self, op: Op, inputs: &[ValueId], outs: Outs, like: &Node) -> Values {
        let count = outs.len();
        let inputs = SmallVec::from_slice(inputs);
        self.nodes.push(Node { op, inputs, outs, loc: like.loc, scope: like.scope });
        let node = self.nodes.len() - 1;
        (0..count).map(|k| ValueId::new(node, k)).collect()
    }
}

/// Copies `graph`. For each node `replace` sees its new operands and may give values to use in its stead.
pub fn rebuild(
    graph: &Graph,
    mut replace: impl FnMut(&mut Rewriter, usize, &Node, &[ValueId]) -> Option<Values>,
) -> Graph {
    let mut new = Rewriter { nodes: Vec::with_capacity(graph.nodes.len()) };
    let mut map: Vec<Values> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let inputs: SmallVec<[ValueId; 4]> =
            node.inputs.iter().map(|v| map[v.index()][v.out as usize]).collect();
        let values = match replace(&mut new, i, node, &inputs) {
            Some(values) => values,
            None => new.append(node.op.clone(), &inputs, node.outs.clone(), node),
        };
        map.push(values);
    }
    let at = |v: &ValueId| map[v.index()][v.out as usize];
    Graph {
        name: graph.name.clone(),
        params: graph.params.iter().map(at).collect(),
        param_names: graph.param_names.clone(),
        results: graph.results.iter().map(at).collect(),
        scopes: graph.scopes.clone(),
        nodes: new.nodes,
    }
}
