//! Core of the IR: [`Graph`] and [`Op`] (data), [`OpRule`] (rules of an op), and [`GraphBuilder`], which appends typed
//! nodes. Independent of the rules of any single op.
//!
//! The nodes of a finished graph are topologically sorted. Graphs are immutable; passes create new ones. Source
//! locations and layer paths are kept for messages and ignored when graphs are compared.

pub mod attr;
mod builder;
pub mod cost;
pub(crate) mod elementwise;
pub mod op;
mod op_rule;
mod verify;

pub use builder::{GraphBuilder, Tensor};
pub use elementwise::{Binary, Unary};
pub(crate) use elementwise::{binary_ops, mnemonic, unary_ops};
pub use op::*;
pub use op_rule::{EvalCx, Grad, LoweringClass, OpCost, OpRule, ResultTypes, SpecConstraint, moved_bytes};
pub(crate) use op_rule::{MAX_DEPTH, too_deep};

use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use systole_base::{Result, TensorType, ensure, err};

/// Id of a value: one result of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId {
    /// Index into [`Graph::nodes`].
    pub node: u32,
    /// Index of the result.
    pub out: u32,
}

impl ValueId {
    /// Creates the id of result `out` of node `node`.
    pub fn new(node: usize, out: usize) -> ValueId {
        ValueId { node: node as u32, out: out as u32 }
    }

    /// Index of the node that defines the value.
    pub fn index(self) -> usize {
        self.node as usize
    }
}

/// User code location that created a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLoc {
    /// Source file.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
}

/// Bit in [`Node::scope`] that marks nodes of a derivative.
pub const DERIVATIVE: u32 = 1 << 31;

/// An operation with its operands and result types.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation and its attributes.
    pub op: Op,
    /// Operands, defined by earlier nodes.
    pub inputs: SmallVec<[ValueId; 2]>,
    /// Types of the results.
    pub outs: SmallVec<[TensorType; 1]>,
    /// User code location. Ignored in comparisons.
    pub loc: Option<SourceLoc>,
    /// Layer path (index into [`Graph::scopes`]); the highest bit marks the layer's derivative. Ignored in comparisons.
    pub scope: u32,
}

/// A function over tensors: typed nodes, parameters and results.
///
/// In finished graphs the parameters are the first nodes.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    /// Name of the function, `main` for whole programs.
    pub name: String,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Parameters, in order.
    pub params: Vec<ValueId>,
    /// Names of the parameters, for messages and text.
    pub param_names: Vec<String>,
    /// Results, in order.
    pub results: Vec<ValueId>,
    /// Layer paths that nodes refer to; entry 0 is the empty path.
    pub scopes: Vec<String>,
}

impl Graph {
    /// Returns the type of a value of the graph.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        &self.nodes[v.index()].outs[v.out as usize]
    }

    /// Returns the node that defines a value.
    pub fn node(&self, v: ValueId) -> &Node {
        &self.nodes[v.index()]
    }

    /// Types of the graph's parameters.
    pub fn param_types(&self) -> Vec<TensorType> {
        self.params.iter().map(|&p| self.ty(p).clone()).collect()
    }

    /// Types of the graph's results.
    pub fn result_types(&self) -> Vec<TensorType> {
        self.results.iter().map(|&r| self.ty(r).clone()).collect()
    }

    /// Layer path of a node, empty if it belongs to no layer.
    pub fn scope(&self, node: &Node) -> &str {
        self.scopes.get((node.scope & !DERIVATIVE) as usize).map_or("", |s| s.as_str())
    }

    /// Whether a node belongs to a derivative.
    pub fn is_derivative(&self, node: &Node) -> bool {
        node.scope & DERIVATIVE != 0
    }

    /// For each node, whether any of `results` depends on it.
    pub fn live(&self, results: &[ValueId]) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        results.iter().for_each(|r| live[r.index()] = true);
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if live[i] {
                node.inputs.iter().for_each(|v| live[v.index()] = true);
            }
        }
        live
    }

    /// Extracts the subgraph that computes `results` from the first `params` parameters, on which alone `results` depend.
    pub(crate) fn pruned(&self, results: &[ValueId], params: usize) -> Graph {
        let mut keep = self.live(results);
        self.params[..params].iter().for_each(|p| keep[p.index()] = true);
        let mut new_index = vec![0; self.nodes.len()];
        let mut nodes: Vec<Node> = Vec::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|&(i, _)| keep[i]) {
            new_index[i] = nodes.len();
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|v| v.node = new_index[v.index()] as u32);
            nodes.push(node);
        }
        let renumber = |v: &ValueId| ValueId::new(new_index[v.index()], v.out as usize);
        Graph {
            name: self.name.clone(),
            nodes,
            params: self.params[..params].iter().map(renumber).collect(),
            param_names: self.param_names[..params].to_vec(),
            results: results.iter().map(renumber).collect(),
            scopes: self.scopes.clone(),
        }
    }

    /// Number of uses of each node's values by other nodes and as results.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.nodes.len()];
        for v in self.nodes.iter().flat_map(|n| n.inputs.iter()).chain(&self.results) {
            counts[v.index()] += 1;
        }
        counts
    }
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.params == other.params
            && self.results == other.results
            && self.nodes.len() == other.nodes.len()
            && self
                .nodes
                .iter()
                .zip(&other.nodes)
                .all(|(a, b)| a.op == b.op && a.inputs == b.inputs && a.outs == b.outs)
    }
}

impl Eq for Graph {}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.params.hash(state);
        self.results.hash(state);
        for n in &self.nodes {
            (&n.op, &n.inputs, &n.outs).hash(state);
        }
    }
}

/// Checks the number and types of arguments against a graph's parameters.
pub fn check_args(graph: &Graph, args: &[&TensorType]) -> Result<()> {
    let (name, count) = (&graph.name, graph.params.len());
    ensure!(args.len() == count, err!(Graph, "`{name}` takes {count} arguments, got {}", args.len()));
    for (i, (&p, &arg)) in graph.params.iter().zip(args).enumerate() {
        if graph.ty(p) != arg {
            let (param, expected) = (&graph.param_names[i], graph.ty(p));
            return Err(err!(Graph, "argument `{param}` of `{name}` has type {arg}, expected {expected}"));
        }
    }
    Ok(())
}
