//! What a loop moves anew in every trip though it never changes: slices, transposes, reversals and conversions of what the
//! loop captures are made once, before it. No number changes by it.

use super::rewrite::{Rewriter, Values, rebuild};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::sync::Arc;
use systole_ir::op::{Parameter, While};
use systole_ir::{Graph, Node, Op, TensorType, ValueId};

/// Entry point of the pass.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        let found = invariants(&w.body, w.captures);
        (!found.is_empty()).then(|| hoisted(g, w, &found, inputs, node))
    })
}

/// Whether the op only moves or converts elements, and so costs a copy.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Slice(_) | Op::Transpose(_) | Op::Reverse(_) | Op::Convert(_))
}

/// Values of a body that are moved captures, are read by what changes, and are no larger than what they are made of.
fn invariants(body: &Graph, captures: usize) -> Vec<ValueId> {
    let mut same = vec![false; body.nodes.len()];
    for (i, node) in body.nodes.iter().enumerate() {
        same[i] = match &node.op {
            Op::Parameter(p) => p.index < captures,
            Op::Reshape(_) => same[node.inputs[0].index()],
            op => moves(op) && node.inputs.iter().all(|v| same[v.index()]),
        };
    }
    let readers = body.nodes.iter().enumerate().filter(|(i, _)| !same[*i]).flat_map(|(_, n)| &n.inputs);
    let mut found = Vec::new();
    for &v in readers.filter(|v| same[v.index()]) {
        // A reshape is no copy: it stays where it is.
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

/// The loop with these values as captures of their own.
fn hoisted(g: &mut Rewriter, w: &While, found: &[ValueId], inputs: &[ValueId], node: &Node) -> Values {
    let made: Vec<ValueId> = found.iter().map(|&v| outside(g, &w.body, v, inputs)).collect();
    let types: Vec<TensorType> = made.iter().map(|&v| g.ty(v).clone()).collect();
    let places: HashMap<ValueId, usize> =
        found.iter().enumerate().map(|(i, &v)| (v, w.captures + i)).collect();
    let (captures, states) = inputs.split_at(w.captures);
    let all: Vec<ValueId> = captures.iter().chain(&made).chain(states).copied().collect();
    let new = While {
        captures: w.captures + found.len(),
        cond: Arc::new(with_captures(&w.cond, w.captures, &types, &HashMap::new())),
        body: Arc::new(with_captures(&w.body, w.captures, &types, &places)),
        recorded: None,
        ..w.clone()
    };
    let first = g.push(new, &all, node);
    (0..node.outs.len()).map(|k| ValueId { node: first.node, out: k as u32 }).collect()
}

/// A value of the body, made of what is captured.
fn outside(g: &mut Rewriter, body: &Graph, v: ValueId, inputs: &[ValueId]) -> ValueId {
    let node = body.node(v);
    if let Op::Parameter(p) = &node.op {
        return inputs[p.index];
    }
    let given: SmallVec<[ValueId; 1]> = node.inputs.iter().map(|&x| outside(g, body, x, inputs)).collect();
    g.push(Op::clone(&node.op), &given, &Node { scope: 0, ..node.clone() })
}

/// A body with more parameters behind those of its captures, which stand for the values at `places`.
fn with_captures(
    body: &Graph,
    captures: usize,
    types: &[TensorType],
    places: &HashMap<ValueId, usize>,
) -> Graph {
    let count = body.params.len();
    let mut nodes: Vec<Node> = Vec::with_capacity(body.nodes.len() + types.len());
    let parameter = |index: usize, ty: &TensorType| Node {
        op: Parameter { index, ty: ty.clone() }.into(),
        inputs: smallvec![],
        outs: smallvec![ty.clone()],
        loc: None,
        scope: 0,
    };
    let old = |v: &ValueId| body.ty(*v).clone();
    let kept = body.params[..captures].iter().map(old);
    let all = kept.chain(types.iter().cloned()).chain(body.params[captures..].iter().map(old));
    nodes.extend(all.enumerate().map(|(i, ty)| parameter(i, &ty)));
    let mut map: HashMap<ValueId, ValueId> = HashMap::new();
    for (i, &v) in body.params.iter().enumerate() {
        let at = if i < captures { i } else { i + types.len() };
        map.insert(v, ValueId::new(at, 0));
    }
    for (i, node) in body.nodes.iter().enumerate() {
        if matches!(node.op, Op::Parameter(_)) {
            continue;
        }
        let inputs = node.inputs.iter().map(|v| map[v]).collect();
        for out in 0..node.outs.len() {
            let v = ValueId::new(i, out);
            let place = places.get(&v).map_or(ValueId::new(nodes.len(), out), |&p| ValueId::new(p, 0));
            map.insert(v, place);
        }
        nodes.push(Node { inputs, ..node.clone() });
    }
    let names = (0..types.len()).map(|i| format!("moved{i}"));
    let mut param_names: Vec<String> = body.param_names.clone();
    param_names.splice(captures.min(param_names.len())..captures.min(param_names.len()), names);
    Graph {
        name: body.name.clone(),
        params: (0..count + types.len()).map(|i| ValueId::new(i, 0)).collect(),
        param_names,
        results: body.results.iter().map(|v| map[v]).collect(),
        scopes: body.scopes.clone(),
        nodes,
    }
}
