//! Loops and branches in ONNX.

use super::nodes;
use super::writer::{ExportedValue, GraphWriter};
use crate::model::{OnnxAttribute, OnnxNode, ValueInfo};
use std::sync::Arc;
use systole_base::{DType, Result, TensorType, err};
use systole_ir::Graph;
use systole_ir::op::{Case, While};

/// Writes a loop: captures are read from the graph outside, states go around.
pub(super) fn while_loop(
    w: &mut GraphWriter,
    op: &While,
    operands: &[ExportedValue],
) -> Result<Vec<ExportedValue>> {
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
pub(super) fn case(w: &mut GraphWriter, op: &Case, operands: &[ExportedValue]) -> Result<Vec<ExportedValue>> {
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
