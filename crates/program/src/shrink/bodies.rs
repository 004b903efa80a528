//! Shrinks bodies of loops, conditionals and calls: replaces an op by its body, or removes ops in the body.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use systole_base::{Literal, Scalar};
use systole_ir::op::{Constant, Op, Parameter, While};
use systole_ir::{Graph, Node, ValueId};

/// Counts the nodes of a graph and all bodies except parameters; with `constants`, constants too.
pub(super) fn count(graph: &Graph, constants: bool) -> usize {
    let own = |n: &&Node| match n.op {
        Op::Parameter(_) => false,
        Op::Constant(_) => constants,
        _ => true,
    };
    let inner = graph.nodes.iter().flat_map(|n| n.op.rule().regions());
    graph.nodes.iter().filter(own).count() + inner.map(|g| count(g, constants)).sum::<usize>()
}

/// Returns the bodies of a loop or conditional that may be shrunk, with their numbers. Loop conditions are kept.
fn bodies(op: &Op) -> Vec<(usize, &Arc<Graph>)> {
    match op {
        // The values that autodiff recorded for a loop refer to its body.
        Op::While(w) if w.recorded.is_none() => vec![(1, &w.body)],
        Op::Case(c) => c.branches.iter().enumerate().collect(),
        _ => Vec::new(),
    }
}

/// The loop state that the condition depends on; it must stay, so that the loop ends after the same number of
/// iterations.
#[derive(Default)]
pub(super) struct LoopControl {
    results: BTreeSet<usize>,
    nodes: Vec<bool>,
}

impl LoopControl {
    /// Finds it for the body at a path.
    pub(super) fn of(graph: &Graph, path: &[(usize, usize)]) -> LoopControl {
        let Some(((node, _), around)) = path.split_last() else { return LoopControl::default() };
        match at(graph, around).and_then(|g| g.nodes.get(*node)).map(|n| &n.op) {
            Some(Op::While(w)) => LoopControl::in_loop(w),
            _ => LoopControl::default(),
        }
    }

    fn in_loop(w: &While) -> LoopControl {
        let states = |graph: &Graph, live: &[bool]| -> BTreeSet<usize> {
            let own = graph.params.iter().skip(w.captures).enumerate();
            own.filter(|(_, p)| live.get(p.index()) == Some(&true)).map(|(state, _)| state).collect()
        };
        let mut results = states(&w.cond, &w.cond.live(&w.cond.results));
        loop {
            let ends: Vec<ValueId> = results.iter().filter_map(|s| w.body.results.get(*s).copied()).collect();
            let nodes = w.body.live(&ends);
            let more: BTreeSet<usize> = results.union(&states(&w.body, &nodes)).copied().collect();
            if more == results {
                return LoopControl { results, nodes };
            }
            results = more;
        }
    }

    fn has(&self, node: usize) -> bool {
        self.nodes.get(node) == Some(&true)
    }
}

fn body_mut(op: &mut Op, body: usize) -> Option<&mut Arc<Graph>> {
    match op {
        Op::While(w) => Some(&mut w.body),
        Op::Case(c) => c.branches.get_mut(body),
        _ => None,
    }
}

/// Path to a body: op and body index, from the outermost to the innermost.
pub(super) type BodyPath = Vec<(usize, usize)>;

/// Returns the paths of all bodies, each before those inside it.
pub(super) fn paths(graph: &Graph) -> Vec<BodyPath> {
    paths_beside(graph, &LoopControl::default())
}

fn paths_beside(graph: &Graph, fixed: &LoopControl) -> Vec<BodyPath> {
    let mut all = Vec::new();
    for (node, n) in graph.nodes.iter().enumerate().filter(|(i, _)| !fixed.has(*i)) {
        for (k, body) in bodies(&n.op) {
            let own = if let Op::While(w) = &n.op { LoopControl::in_loop(w) } else { LoopControl::default() };
            all.push(vec![(node, k)]);
            all.extend(paths_beside(body, &own).into_iter().map(|rest| [vec![(node, k)], rest].concat()));
        }
    }
    all
}

/// Returns the body at a path.
pub(super) fn at<'a>(graph: &'a Graph, path: &[(usize, usize)]) -> Option<&'a Graph> {
    let [(node, body), rest @ ..] = path else { return Some(graph) };
    let all = bodies(&graph.nodes.get(*node)?.op);
    at(all.into_iter().find(|(k, _)| k == body)?.1, rest)
}

/// Returns the program with the body at a path replaced.
pub(super) fn with(graph: &Graph, path: &[(usize, usize)], body: Graph) -> Option<Graph> {
    let mut graph = graph.clone();
    set(&mut graph, path, body)?;
    Some(graph)
}

fn set(graph: &mut Graph, path: &[(usize, usize)], body: Graph) -> Option<()> {
    let [(node, k), rest @ ..] = path else {
        *graph = body;
        return Some(());
    };
    set(Arc::make_mut(body_mut(&mut graph.nodes.get_mut(*node)?.op, *k)?), rest, body)
}

/// Replaces the values of some of a body's ops by a number and removes what becomes unused. `None` if they compute
/// nothing.
pub(super) fn with_numbers(
    body: &Graph,
    nodes: Range<usize>,
    number: f64,
    fixed: &LoopControl,
) -> Option<Graph> {
    let mut out = body.clone();
    let mut changed = false;
    for (i, node) in out.nodes.iter_mut().enumerate() {
        let [ty] = &node.outs[..] else { continue };
        if !nodes.contains(&i) || fixed.has(i) || matches!(node.op, Op::Parameter(_) | Op::Constant(_)) {
            continue;
        }
        let value = Literal::splat(ty.clone(), Scalar::Float(number));
        node.op = Op::Constant(Constant { value });
        node.inputs.clear();
        changed = true;
    }
    changed.then(|| tidy(&out))
}

/// Returns bodies with one result replaced by a value of the same type: an operand of the result, or an argument.
pub(super) fn with_results(body: &Graph, result: usize, fixed: &LoopControl) -> Vec<Graph> {
    let own = body.results.get(result).copied().filter(|_| !fixed.results.contains(&result));
    let Some(own) = own else { return Vec::new() };
    let fits = |v: &ValueId| *v != own && body.ty(*v) == body.ty(own);
    let inputs = body.node(own).inputs.iter().chain(&body.params).copied();
    let one = |v: ValueId| {
        let mut out = body.clone();
        out.results.iter_mut().skip(result).take(1).for_each(|r| *r = v);
        tidy(&out)
    };
    inputs.filter(fits).map(one).collect()
}

/// Removes unused ops; parameters stay.
pub(super) fn tidy(body: &Graph) -> Graph {
    let live = body.live(&body.results);
    let mut out = Graph { nodes: Vec::new(), ..body.clone() };
    let mut new = BTreeMap::new();
    for (i, node) in body.nodes.iter().enumerate() {
        if live.get(i) == Some(&true) || matches!(node.op, Op::Parameter(_)) {
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|v| *v = moved(&new, *v));
            new.insert(i, out.nodes.len());
            out.nodes.push(node);
        }
    }
    out.params.iter_mut().chain(&mut out.results).for_each(|v| *v = moved(&new, *v));
    out
}

/// Returns the graph with an op replaced by its body: a branch, or the first iteration of a loop. Unused values are not
/// removed.
pub(super) fn opened(graph: &Graph, node: usize, fixed: &LoopControl) -> Vec<Graph> {
    let Some(n) = graph.nodes.get(node).filter(|_| !fixed.has(node)) else { return Vec::new() };
    let given = |body: &Graph| n.inputs.iter().copied().take(body.params.len()).collect::<Vec<_>>();
    let inner = bodies(&n.op).into_iter().map(|(_, body)| body);
    inner.map(|body| spliced(graph, node, body, &given(body))).collect()
}

fn spliced(graph: &Graph, at: usize, body: &Graph, given: &[ValueId]) -> Graph {
    let mut out = Graph { nodes: Vec::new(), ..graph.clone() };
    let mut new: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let place = |new: &BTreeMap<ValueId, ValueId>, v: ValueId| new.get(&v).copied().unwrap_or(v);
    for (i, node) in graph.nodes.iter().enumerate() {
        if i != at {
            copied(node, i, &mut new, &mut out);
            continue;
        }
        let mut inner: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for (k, node) in body.nodes.iter().enumerate() {
            match &node.op {
                Op::Parameter(Parameter { index, .. }) => {
                    let v = given.get(*index).map_or(ValueId::new(0, 0), |v| place(&new, *v));
                    inner.insert(ValueId::new(k, 0), v);
                }
                _ => copied(node, k, &mut inner, &mut out),
            }
        }
        for (k, v) in body.results.iter().enumerate() {
            new.insert(ValueId::new(at, k), place(&inner, *v));
        }
    }
    out.params.iter_mut().chain(&mut out.results).for_each(|v| *v = place(&new, *v));
    out
}

/// Appends a node with remapped inputs.
fn copied(node: &Node, old: usize, new: &mut BTreeMap<ValueId, ValueId>, out: &mut Graph) {
    let mut node = Node { scope: 0, loc: None, ..node.clone() };
    node.inputs.iter_mut().for_each(|v| *v = new.get(v).copied().unwrap_or(*v));
    for k in 0..node.outs.len() {
        new.insert(ValueId::new(old, k), ValueId::new(out.nodes.len(), k));
    }
    out.nodes.push(node);
}

/// Returns the remapped value.
pub(super) fn moved(new: &BTreeMap<usize, usize>, v: ValueId) -> ValueId {
    ValueId::new(new.get(&v.index()).copied().unwrap_or_default(), v.out as usize)
}
