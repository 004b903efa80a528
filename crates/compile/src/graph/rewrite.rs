//! Graph rewriter: copies a graph node by node with replacements. All passes build on it.

use smallvec::SmallVec;
use systole_ir::op::{BroadcastInDim, Constant, ResultTypes};
use systole_ir::{DType, Dims, Graph, Literal, Node, Op, Shape, TensorType, ValueId, bug};

/// Access to nodes by value, in a finished graph or one under construction.
pub trait NodeLookup {
    /// The node that produces a value.
    fn producer(&self, v: ValueId) -> &Node;

    /// The number that all elements of a value equal, if it is a constant or a broadcast of one.
    fn splat(&self, v: ValueId) -> Option<f64> {
        let node = self.producer(v);
        match &node.op {
            Op::Constant(c) if c.value.ty().elements() > 0 && c.value.is_splat() => {
                Some(c.value.get(0).as_f64())
            }
            Op::BroadcastInDim(_) => self.splat(node.inputs[0]),
            _ => None,
        }
    }

    /// Whether a value is a constant zero or a broadcast of one.
    fn is_zero(&self, v: ValueId) -> bool {
        self.splat(v) == Some(0.0)
    }
}

impl NodeLookup for Graph {
    fn producer(&self, v: ValueId) -> &Node {
        self.node(v)
    }
}

impl NodeLookup for Rewriter {
    fn producer(&self, v: ValueId) -> &Node {
        self.node(v)
    }
}

/// A graph under construction by a graph pass, with the values of the old graph mapped to the new one.
#[derive(Default)]
pub struct Rewriter {
    nodes: Vec<Node>,
}

/// New values that replace the results of one old node.
pub type NodeResults = SmallVec<[ValueId; 1]>;

impl Rewriter {
    /// Type of a value in the new graph.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        &self.nodes[v.index()].outs[v.out as usize]
    }

    /// The new node that produces a value.
    pub fn node(&self, v: ValueId) -> &Node {
        &self.nodes[v.index()]
    }

    /// Appends a node with the scope and source location of `like`, and returns its first result.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[ValueId], like: &Node) -> ValueId {
        let op = op.into();
        let types: Vec<&TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        let outs = match op.rule().infer(&types) {
            Ok(outs) => outs,
            Err(c) => bug!("a pass created an invalid {}: ({}) {}", op.name(), c.label, c.message),
        };
        self.append(op, inputs, outs, like)[0]
    }

    /// Appends a scalar constant.
    pub fn scalar(&mut self, dtype: DType, value: f64, like: &Node) -> ValueId {
        self.push(Constant { value: Literal::scalar(dtype, value) }, &[], like)
    }

    /// Appends an array filled with one number.
    pub fn full(&mut self, ty: &TensorType, value: f64, like: &Node) -> ValueId {
        let scalar = self.scalar(ty.dtype, value, like);
        self.push(BroadcastInDim { dims: Dims::new(), shape: ty.shape.clone() }, &[scalar], like)
    }

    /// Appends a copy of an old node with other operands of the same types, and returns its first result.
    pub fn push_as(&mut self, node: &Node, inputs: &[ValueId]) -> ValueId {
        self.append(node.op.clone(), inputs, node.outs.clone(), node)[0]
    }

    /// Applies an element-wise body over scalars to arrays of one shape; `given` are its parameters. Copies only the
    /// nodes that the `wanted` values need.
    pub fn on_arrays(
        &mut self,
        body: &Graph,
        given: &[Option<ValueId>],
        wanted: &[ValueId],
        shape: &Shape,
        like: &Node,
    ) -> Vec<ValueId> {
        let mut needed = vec![false; body.nodes.len()];
        wanted.iter().for_each(|v| needed[v.index()] = true);
        for (i, node) in body.nodes.iter().enumerate().rev() {
            if needed[i] {
                node.inputs.iter().for_each(|v| needed[v.index()] = true);
            }
        }
        let mut values: Vec<Option<ValueId>> = Vec::with_capacity(body.nodes.len());
        let made = |v: &ValueId, values: &[Option<ValueId>]| {
            values[v.index()].unwrap_or_else(|| bug!("a parameter of a body is missing"))
        };
        for (node, needed) in body.nodes.iter().zip(needed) {
            values.push(match &node.op {
                _ if !needed => None,
                Op::Parameter(p) => given[p.index],
                Op::Constant(c) => {
                    let one = self.push(Constant { value: c.value.clone() }, &[], like);
                    let spread = BroadcastInDim { dims: Default::default(), shape: shape.clone() };
                    Some(self.push(spread, &[one], like))
                }
                op => {
                    let inputs: SmallVec<[ValueId; 3]> =
                        node.inputs.iter().map(|v| made(v, &values)).collect();
                    Some(self.push(op.clone(), &inputs, like))
                }
            });
        }
        wanted.iter().map(|v| made(v, &values)).collect()
    }

    /// Returns the nodes of the new graph that were built so far.
    pub fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }

    /// Appends a node with results of these types; with [`Rewriter::push`], the types are inferred.
    pub fn append(&mut self, op: Op, inputs: &[ValueId], outs: ResultTypes, like: &Node) -> NodeResults {
        let count = outs.len();
        let inputs = SmallVec::from_slice(inputs);
        self.nodes.push(Node { op, inputs, outs, loc: like.loc, scope: like.scope });
        let node = self.nodes.len() - 1;
        (0..count).map(|k| ValueId::new(node, k)).collect()
    }
}

/// Copies `graph`. For each old node, `replace` gets its index, the node and its new operands. It returns the values to
/// use instead, or `None` to copy the node.
pub fn rebuild(
    graph: &Graph,
    mut replace: impl FnMut(&mut Rewriter, usize, &Node, &[ValueId]) -> Option<NodeResults>,
) -> Graph {
    let mut new = Rewriter { nodes: Vec::with_capacity(graph.nodes.len()) };
    let mut map: Vec<NodeResults> = Vec::with_capacity(graph.nodes.len());
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
