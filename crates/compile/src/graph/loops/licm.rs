//! Loop-invariant code motion (LICM): turns unchanged loop states into captures and hoists their data movement out of
//! the loop.
//!
//! States that every iteration passes on unchanged become captures, which are not copied; other systems pass constants
//! to a loop as such states. Slices, transposes, reversals and conversions of captures run once, before the loop.
//! Results are bit-identical.

use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::{SmallVec, smallvec};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_ir::op::{Parameter, While};
use systole_ir::{Graph, Node, Op, TensorType, ValueId};

/// Runs loop-invariant code motion (LICM).
pub fn run(graph: &Graph) -> Graph {
    with(graph, |w, kept| moved(&w.body, |p| p < w.captures || kept.contains(&p)))
}

/// Turns unchanged states into captures, but hoists nothing: in bodies that are not simplified yet, the hoisted values
/// may be useless.
pub fn captures(graph: &Graph) -> Graph {
    with(graph, |_, _| Vec::new())
}

fn with(graph: &Graph, moved: impl Fn(&While, &[usize]) -> Vec<ValueId>) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        let kept = unchanged(w);
        let moved = moved(w, &kept);
        // A loop with only unchanged states never ends or never starts.
        let fits = kept.len() + w.captures < inputs.len() && (!kept.is_empty() || !moved.is_empty());
        fits.then(|| rewritten(g, w, &kept, &moved, inputs, node))
    })
}

/// Parameters of the states that are passed on unchanged.
fn unchanged(w: &While) -> Vec<usize> {
    let states = w.captures..w.body.params.len();
    states.filter(|&p| w.body.results.get(p - w.captures) == Some(&w.body.params[p])).collect()
}

/// Whether the op only moves or converts elements, so that it costs a copy.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Slice(_) | Op::Transpose(_) | Op::Reverse(_) | Op::Convert(_))
}

/// Values of a body to hoist: moved or converted captures that changing values read and that are not larger than their
/// source.
fn moved(body: &Graph, is_capture: impl Fn(usize) -> bool) -> Vec<ValueId> {
    let mut same = vec![false; body.nodes.len()];
    for (i, node) in body.nodes.iter().enumerate() {
        same[i] = match &node.op {
            Op::Parameter(p) => is_capture(p.index),
            Op::Reshape(_) => same[node.inputs[0].index()],
            op => moves(op) && node.inputs.iter().all(|v| same[v.index()]),
        };
    }
    let readers = body.nodes.iter().enumerate().filter(|(i, _)| !same[*i]).flat_map(|(_, n)| &n.inputs);
    let mut found = Vec::new();
    for &v in readers.filter(|v| same[v.index()]) {
        // A reshape needs no copy and is not hoisted.
        let mut moved = v;
        while matches!(body.node(moved).op, Op::Reshape(_)) {
            moved = body.node(moved).inputs[0];
        }
        let node = body.node(moved);
        let fits = moves(&node.op) && body.ty(moved).bytes() <= body.ty(node.inputs[0]).bytes();
        if fits && !found.contains(&moved) {
            found.push(moved);
        }
    }
    found
}

/// Rewrites the loop with the states `kept` and the values `moved` as captures.
fn rewritten(
    g: &mut Rewriter,
    w: &While,
    kept: &[usize],
    moved: &[ValueId],
    inputs: &[ValueId],
    node: &Node,
) -> NodeResults {
    let made: Vec<ValueId> = moved.iter().map(|&v| outside(g, &w.body, v, inputs)).collect();
    let captures: Vec<usize> = (0..w.captures).chain(kept.iter().copied()).collect();
    let states: Vec<usize> = (w.captures..inputs.len()).filter(|p| !kept.contains(p)).collect();
    let given = |all: &[usize]| all.iter().map(|&p| inputs[p]).collect::<Vec<_>>();
    let operands = [given(&captures), made.clone(), given(&states)].concat();
    // Value that each parameter replaces. The condition reads no hoisted values.
    let of = |body: &Graph, inside: bool| {
        let old = |p: &usize| (body.ty(body.params[*p]).clone(), Some(body.params[*p]));
        let new = made.iter().zip(moved).map(|(&v, &from)| (g.ty(v).clone(), inside.then_some(from)));
        captures.iter().map(old).chain(new).chain(states.iter().map(old)).collect::<Vec<_>>()
    };
    let results = states.iter().map(|p| w.body.results[p - w.captures]).collect::<Vec<_>>();
    let (cond, body) = (of(&w.cond, false), of(&w.body, true));
    let new = While {
        captures: captures.len() + made.len(),
        cond: Arc::new(with_parameters(&w.cond, &cond, &w.cond.results)),
        body: Arc::new(with_parameters(&w.body, &body, &results)),
        recorded: None,
        ..w.clone()
    };
    let first = g.push(new, &operands, node);
    let result = |p: usize| match states.iter().position(|&state| state == p) {
        Some(k) => ValueId { node: first.node, out: k as u32 },
        None => inputs[p],
    };
    (w.captures..inputs.len()).map(result).collect()
}

/// Computes a hoisted value before the loop, from the captures.
fn outside(g: &mut Rewriter, body: &Graph, v: ValueId, inputs: &[ValueId]) -> ValueId {
    let node = body.node(v);
    if let Op::Parameter(p) = &node.op {
        return inputs[p.index];
    }
    let given: SmallVec<[ValueId; 1]> = node.inputs.iter().map(|&x| outside(g, body, x, inputs)).collect();
    g.push(Op::clone(&node.op), &given, &Node { scope: 0, ..node.clone() })
}

/// Copies a body with other parameters, each of which replaces an old value, and with other results.
pub(super) fn with_parameters(
    body: &Graph,
    parameters: &[(TensorType, Option<ValueId>)],
    results: &[ValueId],
) -> Graph {
    let parameter = |(index, (ty, _)): (usize, &(TensorType, Option<ValueId>))| Node {
        op: Parameter { index, ty: ty.clone() }.into(),
        inputs: smallvec![],
        outs: smallvec![ty.clone()],
        loc: None,
        scope: 0,
    };
    let mut nodes: Vec<Node> = parameters.iter().enumerate().map(parameter).collect();
    let places = parameters.iter().enumerate().filter_map(|(i, (_, v))| Some(((*v)?, ValueId::new(i, 0))));
    let mut map: HashMap<ValueId, ValueId> = places.collect();
    let replaced: HashSet<ValueId> = map.keys().copied().collect();
    for (i, node) in body.nodes.iter().enumerate() {
        // All replaced nodes have one result.
        if replaced.contains(&ValueId::new(i, 0)) {
            continue;
        }
        for out in 0..node.outs.len() {
            map.insert(ValueId::new(i, out), ValueId::new(nodes.len(), out));
        }
        nodes.push(Node { inputs: node.inputs.iter().map(|v| map[v]).collect(), ..node.clone() });
    }
    crate::graph::canonicalize::dead_code::run(&Graph {
        name: body.name.clone(),
        params: (0..parameters.len()).map(|i| ValueId::new(i, 0)).collect(),
        param_names: (0..parameters.len()).map(|i| format!("v{i}")).collect(),
        results: results.iter().map(|v| map[v]).collect(),
        scopes: body.scopes.clone(),
        nodes,
    })
}
