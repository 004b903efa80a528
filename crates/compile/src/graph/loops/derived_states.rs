//! Removes stacked loop states that are cheap functions of other stacked states.
//!
//! The residuals that JAX stores for a derivative contain both `f` and `f · (1 − f)`. The loop that reads such entries
//! computes them from those of `f`, and the loop that produced them no longer stores them. Results are bit-identical;
//! an LSTM stores 7 arrays instead of 12.

use super::counted_loop::CountedLoop;
use super::licm::with_parameters;
use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use std::collections::HashMap;
use std::sync::Arc;
use systole_ir::op::{Binary, Reshape, Unary, While};
use systole_ir::{Graph, Node, Op, TensorType, ValueId};

/// Maximum number of ops that compute an entry from others.
const MOST_OPS: usize = 3;

/// Removes loop states that are cheap functions of other states.
pub fn run(graph: &Graph) -> Graph {
    let found = find(graph);
    if found.is_empty() {
        return graph.clone();
    }
    drop_unread(&read_from_others(graph, &found))
}

/// A stacked state whose entries can be computed from those of `bases`: other states of the same loop, with their
/// values in its body.
struct DerivedState {
    value: ValueId,
    bases: Vec<(usize, ValueId)>,
}

/// Finds derived states, by the value in the outer graph that is their result.
fn find(graph: &Graph) -> HashMap<ValueId, DerivedState> {
    let mut found = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let Op::While(w) = &node.op else { continue };
        let trips = CountedLoop::of_node(graph, node, w);
        // Index of the state, value of an entry, and the index at which it is stored.
        let filled: Vec<(usize, ValueId, ValueId)> =
            (0..w.body.results.len()).filter_map(|k| trips.entry(k).map(|(v, at)| (k, v, at))).collect();
        let mut pinned = Vec::new();
        let mut gone = Vec::new();
        for &(k, value, at) in &filled {
            let result = ValueId::new(i, k);
            if pinned.contains(&k) || !is_read_by_loops(graph, result) {
                continue;
            }
            let others = filled.iter().filter(|(j, _, place)| *j != k && *place == at && !gone.contains(j));
            let others: Vec<(usize, ValueId)> = others.map(|&(j, v, _)| (j, v)).collect();
            let (mut used, mut ops) = (Vec::new(), 0);
            if is_made_of(&w.body, value, &others, &mut used, &mut ops) && !used.is_empty() {
                pinned.extend(used.iter().map(|(j, _)| *j));
                gone.push(k);
                found.insert(result, DerivedState { value, bases: used });
            }
        }
    }
    found
}

/// Whether a value is a cheap function of others; collects those that it uses.
fn is_made_of(
    body: &Graph,
    v: ValueId,
    others: &[(usize, ValueId)],
    used: &mut Vec<(usize, ValueId)>,
    ops: &mut usize,
) -> bool {
    if let Some(base) = others.iter().find(|(_, other)| *other == v) {
        if !used.contains(base) {
            used.push(*base);
        }
        return true;
    }
    let node = body.node(v);
    match &node.op {
        Op::Binary(Binary::Add | Binary::Subtract | Binary::Multiply) | Op::Unary(Unary::Negate) => {
            *ops += 1;
            *ops <= MOST_OPS && node.inputs.iter().all(|&x| is_made_of(body, x, others, used, ops))
        }
        _ => is_constant(body, v),
    }
}

/// Whether a value is a broadcast constant.
fn is_constant(body: &Graph, v: ValueId) -> bool {
    let node = body.node(v);
    let of_number = |&x: &ValueId| matches!(body.node(x).op, Op::Constant(_)) && body.ty(x).rank() == 0;
    matches!(node.op, Op::BroadcastInDim(_)) && node.inputs.iter().all(of_number)
}

/// Whether only loops read a stacked array, entry by entry.
fn is_read_by_loops(graph: &Graph, stack: ValueId) -> bool {
    let mut readers = graph.nodes.iter().filter(|n| n.inputs.contains(&stack)).peekable();
    let by_entry = |node: &Node| {
        let Op::While(w) = &node.op else { return false };
        let places = node.inputs.iter().enumerate().filter(|(_, v)| **v == stack);
        places.into_iter().all(|(p, _)| p < w.captures && reads_entries(w, p, graph.ty(stack)))
    };
    readers.peek().is_some() && !graph.results.contains(&stack) && readers.all(by_entry)
}

/// Whether a loop reads its capture `p` only by slices of one entry, each without its first dimension.
fn reads_entries(w: &While, p: usize, stack: &TensorType) -> bool {
    let own = w.body.params[p];
    let readers_of = |v: ValueId| w.body.nodes.iter().enumerate().filter(move |(_, n)| n.inputs.contains(&v));
    let is_entry = |(i, node): (usize, &Node)| {
        let slice = ValueId::new(i, 0);
        matches!(node.op, Op::DynamicSlice(_))
            && node.inputs[0] == own
            && !node.inputs[1..].contains(&own)
            && node.outs[0].shape[0] == 1
            && node.outs[0].shape[1..] == stack.shape[1..]
            && !w.body.results.contains(&slice)
            && readers_of(slice)
                .all(|(_, r)| matches!(r.op, Op::Reshape(_)) && r.outs[0].shape[..] == stack.shape[1..])
    };
    w.cond.use_counts()[w.cond.params[p].index()] == 0 && readers_of(own).all(is_entry)
}

/// Rewrites the loops that read such arrays to compute the entries.
fn read_from_others(graph: &Graph, found: &HashMap<ValueId, DerivedState>) -> Graph {
    // First result of each rewritten loop in the new graph.
    let mut made: HashMap<usize, ValueId> = HashMap::new();
    rebuild(graph, |g, i, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        let read: Vec<usize> = (0..w.captures).filter(|&p| found.contains_key(&node.inputs[p])).collect();
        let first = match read.is_empty() {
            true => g.push_as(node, inputs),
            false => {
                let of = |p: usize| {
                    let stack = node.inputs[p];
                    let derived = &found[&stack];
                    let Op::While(maker) = &graph.node(stack).op else { return None };
                    let bases =
                        derived.bases.iter().map(|&(j, _)| ValueId::new(made[&stack.index()].index(), j));
                    Some(DerivedRead {
                        capture: p,
                        maker: maker.body.clone(),
                        derived,
                        bases: bases.collect(),
                    })
                };
                let all: Vec<DerivedRead<'_>> = read.iter().filter_map(|&p| of(p)).collect();
                computing(g, w, &all, node, inputs)
            }
        };
        made.insert(i, first);
        Some((0..node.outs.len()).map(|k| ValueId::new(first.index(), k)).collect::<NodeResults>())
    })
}

/// A derived array that a loop reads.
struct DerivedRead<'a> {
    capture: usize,
    /// Body of the loop that produced it.
    maker: Arc<Graph>,
    derived: &'a DerivedState,
    /// Arrays of the outer graph that correspond to the bases of `derived`.
    bases: Vec<ValueId>,
}

/// Rewrites a loop to compute the entries that it read.
fn computing(
    g: &mut Rewriter,
    w: &While,
    all: &[DerivedRead<'_>],
    node: &Node,
    inputs: &[ValueId],
) -> ValueId {
    let mut added: Vec<ValueId> = Vec::new();
    for base in all.iter().flat_map(|read| &read.bases) {
        if !added.contains(base) {
            added.push(*base);
        }
    }
    let types: Vec<TensorType> = added.iter().map(|&v| g.ty(v).clone()).collect();
    let is_gone = |p: usize| all.iter().any(|read| read.capture == p);
    let longer = |body: &Graph, keeps: &dyn Fn(usize) -> bool| {
        let old = |p: usize| (body.ty(body.params[p]).clone(), Some(body.params[p]));
        let new = types.iter().map(|ty| (ty.clone(), None));
        let captures = (0..w.captures).filter(|&p| keeps(p)).map(old);
        captures.chain(new).chain((w.captures..inputs.len()).map(old)).collect::<Vec<_>>()
    };
    let body = with_parameters(&w.body, &longer(&w.body, &|_| true), &w.body.results);
    let body = rebuild(&body, |b, _, reshape, given| {
        let (Op::Reshape(_), &[slice]) = (&reshape.op, given) else { return None };
        let (slice, stack) = (b.node(slice).clone(), b.node(slice).inputs.first().copied()?);
        let (Op::DynamicSlice(_), Op::Parameter(p)) = (&slice.op, &b.node(stack).op) else { return None };
        let read = all.iter().find(|read| read.capture == p.index)?;
        let entry = |base: &ValueId| {
            let place = w.captures + added.iter().position(|v| v == base).unwrap_or(0);
            let from = [&[ValueId::new(place, 0)][..], &slice.inputs[1..]].concat();
            let entry = b.push(slice.op.clone(), &from, reshape);
            b.push(Reshape { shape: reshape.outs[0].shape.clone() }, &[entry], reshape)
        };
        let entries: Vec<ValueId> = read.bases.iter().map(entry).collect();
        let values: HashMap<ValueId, ValueId> =
            read.derived.bases.iter().map(|(_, v)| *v).zip(entries).collect();
        let value = copied(b, &read.maker, read.derived.value, &values, reshape);
        Some([value].into_iter().collect())
    });
    let body = crate::graph::canonicalize::cse::run(&body);
    // The replaced captures have no reader any more.
    let keeps = |p: usize| !is_gone(p);
    let old = |p: usize| (body.ty(body.params[p]).clone(), Some(body.params[p]));
    let kept: Vec<_> = (0..body.params.len()).filter(|&p| p >= w.captures || keeps(p)).map(old).collect();
    let operands: Vec<ValueId> = (0..w.captures).filter(|&p| keeps(p)).map(|p| inputs[p]).collect();
    let captures = operands.len() + added.len();
    let new = While {
        captures,
        cond: Arc::new(with_parameters(&w.cond, &longer(&w.cond, &keeps), &w.cond.results)),
        body: Arc::new(with_parameters(&body, &kept, &body.results)),
        recorded: None,
        ..w.clone()
    };
    g.push(new, &[&operands[..], &added, &inputs[w.captures..]].concat(), node)
}

/// Copies a value of another body, given the values that it is computed from.
fn copied(
    g: &mut Rewriter,
    from: &Graph,
    v: ValueId,
    known: &HashMap<ValueId, ValueId>,
    like: &Node,
) -> ValueId {
    if let Some(value) = known.get(&v) {
        return *value;
    }
    let node = from.node(v);
    let inputs: Vec<ValueId> = node.inputs.iter().map(|&x| copied(g, from, x, known, like)).collect();
    g.push(node.op.clone(), &inputs, like)
}

/// Removes stacked states that nothing reads.
fn drop_unread(graph: &Graph) -> Graph {
    let uses = read_results(graph);
    rebuild(graph, |g, i, node, inputs| {
        let Op::While(w) = &node.op else { return None };
        let trips = CountedLoop::of_node(graph, node, w);
        let stays = |k: usize| uses.contains(&ValueId::new(i, k)) || trips.entry(k).is_none();
        let states = w.body.results.len();
        if (0..states).all(stays) {
            return None;
        }
        let parameters = |body: &Graph| {
            let kept = (0..inputs.len()).filter(|&p| p < w.captures || stays(p - w.captures));
            kept.map(|p| (body.ty(body.params[p]).clone(), Some(body.params[p]))).collect::<Vec<_>>()
        };
        let results: Vec<ValueId> = (0..states).filter(|&k| stays(k)).map(|k| w.body.results[k]).collect();
        let new = While {
            cond: Arc::new(with_parameters(&w.cond, &parameters(&w.cond), &w.cond.results)),
            body: Arc::new(with_parameters(&w.body, &parameters(&w.body), &results)),
            recorded: None,
            ..w.clone()
        };
        let operands: Vec<ValueId> = (0..inputs.len())
            .filter(|&p| p < w.captures || stays(p - w.captures))
            .map(|p| inputs[p])
            .collect();
        let first = g.push(new, &operands, node);
        // A removed result has no reader; any value can replace it.
        let place = |k: usize| (0..k).filter(|&j| stays(j)).count().min(results.len() - 1);
        Some((0..states).map(|k| ValueId::new(first.index(), place(k))).collect::<NodeResults>())
    })
}

/// All values that are operands of a node or results of the graph.
fn read_results(graph: &Graph) -> std::collections::HashSet<ValueId> {
    graph.nodes.iter().flat_map(|n| n.inputs.iter().copied()).chain(graph.results.iter().copied()).collect()
}
