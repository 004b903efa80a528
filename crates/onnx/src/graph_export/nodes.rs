//! Writes the nodes of a graph: each op by its family, loops and branches as nested graphs.

use super::writer::{ExportedValue, GraphWriter, unsupported};
use super::{arrays, elementwise, indexing, products, reductions};
use crate::model::{OnnxAttribute, OnnxNode, ValueInfo};
use std::sync::Arc;
use systole_base::{DType, Result, ResultExt, TensorType, err};
use systole_ir::op::{Case, While};
use systole_ir::{Graph, Node, Op};

/// Writes the live nodes of a graph; returns its results.
pub(super) fn nodes(
    w: &mut GraphWriter,
    graph: &Graph,
    arguments: &[ExportedValue],
) -> Result<Vec<ExportedValue>> {
    let live = graph.live(&graph.results);
    let mut values: Vec<Vec<ExportedValue>> = Vec::with_capacity(graph.nodes.len());
    for (node, is_live) in graph.nodes.iter().zip(live) {
        values.push(match &node.op {
            Op::Parameter(p) => vec![arguments[p.index].clone()],
            _ if !is_live => Vec::new(),
            _ => {
                let inputs: Vec<ExportedValue> =
                    node.inputs.iter().map(|v| values[v.index()][v.out as usize].clone()).collect();
                w.scope = graph.scope(node).to_string();
                match w.folded(node, &inputs)? {
                    Some(constants) => constants,
                    None => one(w, node, &inputs).at(|| place(graph, node))?,
                }
            }
        });
    }
    Ok(graph.results.iter().map(|r| values[r.index()][r.out as usize].clone()).collect())
}

fn place(graph: &Graph, node: &Node) -> String {
    match graph.scope(node) {
        "" => format!("op {}", node.op.name()),
        scope => format!("op {} of layer {scope}", node.op.name()),
    }
}

/// Writes one node.
fn one(w: &mut GraphWriter, node: &Node, x: &[ExportedValue]) -> Result<Vec<ExportedValue>> {
    let ty = node.outs.first().cloned().ok_or_else(|| err!(Bug, "an op has no result"))?;
    let y = match &node.op {
        Op::Unary(op) => elementwise::unary(w, *op, &x[0], ty),
        Op::Binary(op) => elementwise::binary(w, *op, [&x[0], &x[1]], ty),
        Op::Compare(op) => elementwise::compare(w, op, [&x[0], &x[1]], ty),
        Op::Select(_) => elementwise::select(w, [&x[0], &x[1], &x[2]], ty),
        Op::Clamp(_) => elementwise::clamp(w, [&x[0], &x[1], &x[2]], ty),
        Op::Convert(op) => elementwise::convert(w, &x[0], op.to, ty),
        Op::OptimizationBarrier(_) => return Ok(x.to_vec()),
        Op::Iota(op) => arrays::iota(w, op.dim, ty),
        Op::BroadcastInDim(op) => arrays::broadcast(w, &x[0], &op.dims, ty),
        Op::Reshape(_) => arrays::reshape(w, &x[0], ty),
        Op::Transpose(op) => arrays::transpose(w, &x[0], &op.permutation, ty),
        Op::Reverse(op) => arrays::reverse(w, &x[0], &op.dims, ty),
        Op::Concatenate(op) => arrays::concatenate(w, x, op.dim, ty),
        Op::Slice(op) => arrays::slice(w, &x[0], [&op.start, &op.limit, &op.strides], ty),
        Op::Pad(op) => arrays::pad(w, [&x[0], &x[1]], op, ty),
        Op::DynamicSlice(op) => indexing::dynamic_slice(w, x, &op.sizes, ty),
        Op::DynamicUpdateSlice(_) => indexing::dynamic_update_slice(w, x, ty),
        Op::Gather(op) => indexing::gather(w, [&x[0], &x[1]], op, ty),
        Op::DotGeneral(op) => products::dot(w, [&x[0], &x[1]], op, ty),
        Op::Convolution(op) => products::convolution(w, [&x[0], &x[1]], op, ty),
        Op::Reduce(op) if x.len() == 2 => reductions::reduce(w, [&x[0], &x[1]], op, ty),
        Op::ReduceWindow(op) if x.len() == 2 => reductions::window(w, [&x[0], &x[1]], op, ty),
        Op::Case(op) => return case(w, op, x),
        Op::While(op) => return while_loop(w, op, x),
        _ => Err(unsupported(format!("cannot export {} to ONNX", node.op.name()))),
    };
    y.map(|y| vec![y])
}

/// Writes a loop: captures are read from the graph outside, states go around.
fn while_loop(w: &mut GraphWriter, op: &While, operands: &[ExportedValue]) -> Result<Vec<ExportedValue>> {
    let (captures, states) = operands.split_at(op.captures);
    let states = states.iter().map(|x| Ok(ExportedValue::whole(w.expanded(x)?, x.ty.clone())));
    let states = states.collect::<Result<Vec<_>>>()?;
    let scope = w.scope.clone();
    let first = match op.trip_count {
        Some(_) => w.scalar(DType::Bool, 1.0),
        None => condition(w, op, captures, &states)?,
    };
    let count = op.trip_count.map_or(String::new(), |n| w.scalar(DType::I64, n as f64));
    let (step, go) = (w.input_name("step"), w.input_name("go"));
    let inner: Vec<ExportedValue> =
        states.iter().map(|x| ExportedValue::whole(w.input_name("state"), x.ty.clone())).collect();
    let scalar = TensorType::scalar;
    let mut inputs = vec![port(w, &step, &scalar(DType::I64)), port(w, &go, &scalar(DType::Bool))];
    inputs.extend(inner.iter().map(|x| port(w, &x.name, &x.ty)));
    let body = w.nested(inputs, |w| {
        let results = nodes(w, &op.body, &[captures, &inner].concat())?;
        w.scope.clone_from(&scope);
        let names = results.iter().map(|x| returned(w, x)).collect::<Result<Vec<_>>>()?;
        let again = match op.trip_count {
            Some(_) => go.clone(),
            None => condition(w, op, captures, &names)?,
        };
        let again = w.emit("Identity", &[&again]);
        let mut outputs = vec![port(w, &again, &scalar(DType::Bool))];
        outputs.extend(names.iter().map(|x| port(w, &x.name, &x.ty)));
        Ok(outputs)
    })?;
    w.scope = scope;
    let names = states.iter().map(|x| x.name.clone());
    let mut node = OnnxNode::new("Loop", [count, first].into_iter().chain(names), "")
        .with("body", OnnxAttribute::Graph(Box::new(body)));
    let outputs: Vec<ExportedValue> =
        states.iter().map(|x| ExportedValue::whole(w.input_name("loop"), x.ty.clone())).collect();
    node.outputs = outputs.iter().map(|x| x.name.clone()).collect();
    w.nodes.push(node);
    Ok(outputs)
}

fn condition(
    w: &mut GraphWriter,
    op: &While,
    captures: &[ExportedValue],
    states: &[ExportedValue],
) -> Result<String> {
    let results = nodes(w, &op.cond, &[captures, states].concat())?;
    w.expanded(&results[0])
}

/// Writes a choice between branches as nested `If` nodes; the last branch is taken for all other indices.
fn case(w: &mut GraphWriter, op: &Case, operands: &[ExportedValue]) -> Result<Vec<ExportedValue>> {
    let (index, captures) = operands.split_last().ok_or_else(|| err!(Bug, "a case without an index"))?;
    choice(w, &op.branches, 0, index, captures)
}

fn choice(
    w: &mut GraphWriter,
    branches: &[Arc<Graph>],
    at: usize,
    index: &ExportedValue,
    captures: &[ExportedValue],
) -> Result<Vec<ExportedValue>> {
    if at + 1 == branches.len() {
        return nodes(w, &branches[at], captures);
    }
    let scope = w.scope.clone();
    let number = w.scalar(index.ty.dtype, at as f64);
    let condition = w.emit("Equal", &[&index.name, &number]);
    let branch = |w: &mut GraphWriter, is_taken: bool| {
        w.nested(Vec::new(), |w| {
            let results = match is_taken {
                true => nodes(w, &branches[at], captures)?,
                false => choice(w, branches, at + 1, index, captures)?,
            };
            w.scope.clone_from(&scope);
            results.iter().map(|x| returned(w, x).map(|x| port(w, &x.name, &x.ty))).collect()
        })
    };
    let (taken, other) = (branch(w, true)?, branch(w, false)?);
    let mut node = OnnxNode::new("If", [condition], "")
        .with("then_branch", OnnxAttribute::Graph(Box::new(taken)))
        .with("else_branch", OnnxAttribute::Graph(Box::new(other)));
    let types = branches[at].result_types();
    let outputs: Vec<ExportedValue> =
        types.into_iter().map(|ty| ExportedValue::whole(w.input_name("if"), ty)).collect();
    node.outputs = outputs.iter().map(|x| x.name.clone()).collect();
    w.nodes.push(node);
    Ok(outputs)
}

/// A result of a nested graph. It may be an array from outside, which the graph cannot return as it is.
fn returned(w: &mut GraphWriter, x: &ExportedValue) -> Result<ExportedValue> {
    let whole = w.expanded(x)?;
    Ok(ExportedValue::whole(w.emit("Identity", &[&whole]), x.ty.clone()))
}

fn port(w: &GraphWriter, name: &str, ty: &TensorType) -> ValueInfo {
    ValueInfo { name: name.into(), dtype: Some(ty.dtype), sizes: Some(w.sizes(&ty.shape)) }
}
