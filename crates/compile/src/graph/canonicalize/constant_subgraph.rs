//! Splits off what depends on constants alone, such as transposed or scaled weights: a backend computes it once, when it
//! prepares a program, and [`ConstantSubgraph::replace`] puts the values into the graph.

use crate::graph::canonicalize::dead_code;
use crate::graph::rewrite::rebuild;
use smallvec::smallvec;
use systole_ir::op::{Constant, LoweringClass};
use systole_ir::{DType, Graph, Literal, Node, Op, ValueId};

/// Results with fewer elements are left: the pass `simplify` has folded them, or kernels compute them at no cost.
const FEWEST_ELEMENTS: usize = 257;

/// The part of a graph that depends on constants alone.
pub struct ConstantSubgraph {
    /// A graph without parameters, whose results are the values to replace.
    pub graph: Graph,
    /// These values in the whole graph.
    values: Vec<ValueId>,
}

impl ConstantSubgraph {
    /// Finds values that are computed from constants and take no more memory than those constants. Returns `None` if
    /// there are none.
    ///
    /// Element-wise ops on bf16 and f16 are left in the graph, because fusion may skip their rounding.
    pub fn of(graph: &Graph) -> Option<ConstantSubgraph> {
        let mut roots: Vec<Option<Vec<usize>>> = Vec::with_capacity(graph.nodes.len());
        for (i, node) in graph.nodes.iter().enumerate() {
            let found = roots_of(i, node, &roots);
            roots.push(found);
        }
        let bytes = |i: usize| graph.nodes[i].outs[0].bytes();
        let is_folded = |i: usize, own: &[usize]| {
            !matches!(graph.nodes[i].op, Op::Constant(_))
                && graph.nodes[i].outs[0].elements() >= FEWEST_ELEMENTS
                && bytes(i) <= own.iter().map(|&root| bytes(root)).sum()
        };
        // Readers come after what they read; a value that is not folded needs its operands.
        let mut values: Vec<ValueId> = Vec::new();
        let mut is_read = vec![false; graph.nodes.len()];
        graph.results.iter().for_each(|v| is_read[v.index()] = true);
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            match &roots[i] {
                Some(own) if is_read[i] && is_folded(i, own) => values.push(ValueId::new(i, 0)),
                Some(_) if !is_read[i] => {}
                _ => node.inputs.iter().for_each(|v| is_read[v.index()] = true),
            }
        }
        if values.is_empty() {
            return None;
        }
        let whole = Graph {
            name: format!("constants of {}", graph.name),
            results: values.clone(),
            params: Vec::new(),
            param_names: Vec::new(),
            ..graph.clone()
        };
        Some(ConstantSubgraph { graph: without_parameters(&whole), values })
    }

    /// Returns `graph`, of which this is a part, with the `computed` results of [`ConstantSubgraph::graph`] as constants.
    pub fn replace(&self, graph: &Graph, computed: &[Literal]) -> Graph {
        let new = rebuild(graph, |g, i, node, _| {
            let k = self.values.iter().position(|v| v.index() == i)?;
            Some(smallvec![g.push(Constant { value: computed[k].clone() }, &[], node)])
        });
        dead_code::run(&new)
    }
}

/// Removes parameters, which nothing in the graph uses, and dead nodes.
fn without_parameters(graph: &Graph) -> Graph {
    let live = graph.live(&graph.results);
    let mut new_index = vec![0; graph.nodes.len()];
    let mut nodes: Vec<Node> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
        new_index[i] = nodes.len();
        let mut node = node.clone();
        node.inputs.iter_mut().for_each(|v| v.node = new_index[v.index()] as u32);
        nodes.push(node);
    }
    let renumber = |v: &ValueId| ValueId::new(new_index[v.index()], v.out as usize);
    let results = graph.results.iter().map(renumber).collect();
    Graph { name: graph.name.clone(), scopes: graph.scopes.clone(), nodes, results, ..Graph::default() }
}

/// Returns the constants that node `i` is computed from, if it depends on nothing else.
fn roots_of(i: usize, node: &Node, roots: &[Option<Vec<usize>>]) -> Option<Vec<usize>> {
    if matches!(node.op, Op::Constant(_)) {
        return Some(vec![i]);
    }
    let class = node.op.rule().lower();
    let is_narrow = node.outs.iter().any(|t| matches!(t.dtype, DType::BF16 | DType::F16));
    let is_pure = match class {
        LoweringClass::Move | LoweringClass::Fold => true,
        LoweringClass::Map => !is_narrow,
        _ => false,
    };
    let is_pure = is_pure
        && !node.inputs.is_empty()
        && node.outs.len() == 1
        && node.op.rule().regions().is_empty()
        && !matches!(node.op, Op::OptimizationBarrier(_));
    if !is_pure {
        return None;
    }
    let mut all = Vec::new();
    for v in &node.inputs {
        all.extend_from_slice(roots[v.index()].as_ref()?);
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}
