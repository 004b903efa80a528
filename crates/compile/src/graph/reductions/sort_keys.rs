//! Precomputes sort keys: rewrites `sort` with comparator `f(a) < f(b)` to a sort by an additional operand `f(x)`.
//!
//! JAX's comparators use such a function, which maps −0 to 0 and all NaNs to one.

use crate::graph::rewrite::{NodeResults, Rewriter, rebuild};
use smallvec::smallvec;
use std::collections::HashSet;
use std::sync::Arc;
use systole_ir::op::{LoweringClass, Parameter, Sort};
use systole_ir::{Graph, Node, Op, TensorType, ValueId};

/// Precomputes the keys of sorts whose comparator is `f(a) < f(b)`.
pub fn run(graph: &Graph) -> Graph {
    rebuild(graph, |g, _, node, inputs| {
        let Op::Sort(sort) = &node.op else { return None };
        let [a, b] = compared(&sort.comparator)?;
        let (p, q) = (source(&sort.comparator, a)?, source(&sort.comparator, b)?);
        let is_function = !matches!(sort.comparator.node(a).op, Op::Parameter(_));
        let fits = is_function && p / 2 == q / 2 && p != q && alike(&sort.comparator, a, b);
        fits.then(|| by_keys(g, sort, a, p, inputs, node))
    })
}

/// Operands of the comparator's comparison.
fn compared(body: &Graph) -> Option<[ValueId; 2]> {
    let node = body.node(*body.results.first()?);
    let Op::Compare(_) = &node.op else { return None };
    Some([*node.inputs.first()?, *node.inputs.get(1)?])
}

/// The sort with the keys before its operands. `a` is the comparison's first operand, a function of parameter `p`.
fn by_keys(
    g: &mut Rewriter,
    sort: &Sort,
    a: ValueId,
    p: usize,
    inputs: &[ValueId],
    node: &Node,
) -> NodeResults {
    let body = &*sort.comparator;
    let x = inputs[p / 2];
    let mut given = vec![None; 2 * inputs.len()];
    given[p] = Some(x);
    let shape = g.ty(x).shape.clone();
    let keys = g.on_arrays(body, &given, &[a], &shape, node)[0];
    // Parameters of the new comparator: both keys, then both elements of each operand.
    let of = |ty: &TensorType, index: usize| Node {
        op: Parameter { index, ty: ty.clone() }.into(),
        inputs: smallvec![],
        outs: smallvec![ty.clone()],
        loc: node.loc,
        scope: 0,
    };
    let key = TensorType::scalar(g.ty(keys).dtype);
    let elements = inputs.iter().flat_map(|&x| [g.ty(x).dtype; 2]).map(TensorType::scalar);
    let types: Vec<TensorType> = [key.clone(), key].into_iter().chain(elements).collect();
    let mut nodes: Vec<Node> = types.iter().enumerate().map(|(i, ty)| of(ty, i)).collect();
    let params: Vec<ValueId> = (0..nodes.len()).map(|i| ValueId::new(i, 0)).collect();
    let first = p % 2;
    let last = body.node(body.results[0]);
    nodes.push(Node { inputs: smallvec![params[first], params[1 - first]], scope: 0, ..last.clone() });
    let comparator = Graph {
        name: body.name.clone(),
        param_names: (0..params.len()).map(|i| format!("v{i}")).collect(),
        results: vec![ValueId::new(params.len(), 0)],
        params,
        nodes,
        scopes: vec![String::new()],
    };
    let operands: Vec<ValueId> = std::iter::once(keys).chain(inputs.iter().copied()).collect();
    let sorted = g.push(Sort { comparator: Arc::new(comparator), ..sort.clone() }, &operands, node);
    (1..operands.len()).map(|k| ValueId { node: sorted.node, out: k as u32 }).collect()
}

/// The single parameter that a value depends on through element-wise ops.
fn source(body: &Graph, v: ValueId) -> Option<usize> {
    // Parameter of each node: none (`Ok(None)`), one, or several or unknown (`Err`).
    let mut of: Vec<Result<Option<usize>, ()>> = Vec::with_capacity(v.index() + 1);
    for node in body.nodes.iter().take(v.index() + 1) {
        let join = |a: Result<Option<usize>, ()>, b: Result<Option<usize>, ()>| match (a?, b?) {
            (Some(a), Some(b)) if a != b => Err(()),
            (a, b) => Ok(a.or(b)),
        };
        of.push(match &node.op {
            Op::Parameter(p) => Ok(Some(p.index)),
            Op::Constant(_) => Ok(None),
            op if op.rule().lower() == LoweringClass::Map && node.outs.len() == 1 => {
                node.inputs.iter().try_fold(None, |all, v| join(Ok(all), of[v.index()]))
            }
            _ => Err(()),
        });
    }
    of.pop()?.ok()?
}

/// Whether two values are the same function of their parameter.
fn alike(body: &Graph, a: ValueId, b: ValueId) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![(a, b)]);
    while let Some((a, b)) = open.pop() {
        if !seen.insert((a, b)) {
            continue;
        }
        let (x, y) = (body.node(a), body.node(b));
        let same = x.op == y.op || matches!((&x.op, &y.op), (Op::Parameter(_), Op::Parameter(_)));
        if !same || x.inputs.len() != y.inputs.len() {
            return false;
        }
        open.extend(x.inputs.iter().copied().zip(y.inputs.iter().copied()));
    }
    true
}
