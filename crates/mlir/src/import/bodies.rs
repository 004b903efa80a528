//! Imports op bodies (regions): captured values, and applying a scalar body to whole arrays.

use super::attribute::sizes;
use super::call::{ArrayCall, OpResults};
use super::types::{not_there, wrong};
use crate::syntax::Operation;
use std::sync::Arc;
use systole_base::{DType, Result, Shape, TensorType};
use systole_ir::op::{Case, LoweringClass, Op};
use systole_ir::{Graph, GraphBuilder, Tensor};

/// Applies a scalar body to whole arrays of one shape, as `map` requires; scalars are broadcast.
pub(super) fn on_arrays(
    g: &GraphBuilder,
    body: &Graph,
    args: &[Tensor],
    shape: &Shape,
) -> Result<Vec<Tensor>> {
    if args.len() != body.params.len() {
        return Err(wrong(format!("the body takes {} arguments, got {}", body.params.len(), args.len())));
    }
    let mut values: Vec<Vec<Tensor>> = Vec::with_capacity(body.nodes.len());
    for (i, node) in body.nodes.iter().enumerate() {
        let found: Option<Vec<&Tensor>> =
            node.inputs.iter().map(|v| values.get(v.index())?.get(v.out as usize)).collect();
        let inputs = found.ok_or_else(|| wrong("a value of the body is missing"))?;
        let place = body.params.iter().position(|p| p.index() == i);
        let outs = match (&node.op, place) {
            (_, Some(p)) => vec![args[p].clone()],
            (Op::Constant(_), _) => g.emit(node.op.clone(), &[]),
            (op, _) if op.rule().lower() == LoweringClass::Map => {
                // If all operands have rank 0, they keep it.
                let is_wide = inputs.iter().any(|t| t.rank() > 0);
                let wide = inputs.iter().map(|t| if is_wide { t.broadcast_to(shape) } else { (*t).clone() });
                let wide: Vec<Tensor> = wide.collect();
                g.emit(op.clone(), &wide.iter().collect::<Vec<_>>())
            }
            (op, _) => {
                return Err(not_there(format!("cannot apply a scalar body with op {} to arrays", op.name()))
                    .because("only element-wise ops can run on whole arrays"));
            }
        };
        values.push(outs);
    }
    let results = body.results.iter().map(|r| values.get(r.index())?.get(r.out as usize));
    let results = results.collect::<Option<Vec<&Tensor>>>().ok_or_else(|| wrong("a result is missing"))?;
    Ok(results.into_iter().map(|t| t.broadcast_to(shape)).collect())
}

/// Imports `if`: two branches with equal result types.
pub(super) fn branches(c: &ArrayCall, captured: &[Tensor], bodies: &[Arc<Graph>]) -> OpResults {
    let ([pred], [on_true, on_false]) = (c.operands, bodies) else { return Ok(None) };
    if on_true.result_types() != on_false.result_types() {
        return Err(wrong("(C2) the branches have different result types"));
    }
    // Branch 0 is the false branch, since false converts to 0.
    let case = Case { branches: vec![on_false.clone(), on_true.clone()] };
    let index = pred.convert(DType::I32);
    Ok(Some(c.g.emit(case, &captured.iter().chain([&index]).collect::<Vec<_>>())))
}

/// Imports `map`: applies the body to whole arrays.
pub(super) fn mapped(c: &ArrayCall, captured: &[Tensor], bodies: &[Arc<Graph>]) -> OpResults {
    let ([x, ..], [body]) = (c.operands, bodies) else { return Ok(None) };
    check_map(c.op, body, c.operands, captured.len())?;
    let args: Vec<Tensor> = captured.iter().chain(c.operands).cloned().collect();
    on_arrays(c.g, body, &args, x.shape()).map(Some)
}

/// Bodies of an op that cannot capture values, without the parameters for captures. Captured constants are recreated
/// inside; other captured scalars become additional operands.
pub(super) struct LiftedBodies {
    /// Bodies.
    pub bodies: Vec<Arc<Graph>>,
    /// Captured scalars that become additional operands.
    pub further: Vec<Tensor>,
}

/// Lifts captured values out of bodies; see [`LiftedBodies`].
pub(super) fn lift(captured: &[Tensor], bodies: &[Arc<Graph>], kind: BodyParams) -> Result<LiftedBodies> {
    let further: Vec<Tensor> = captured.iter().filter(|t| t.known().is_none()).cloned().collect();
    if let Some(t) = further.iter().find(|t| t.rank() > 0) {
        return Err(not_there(format!("its body captures an array {} from outside", t.ty())));
    }
    if !further.is_empty() && kind == BodyParams::Closed {
        return Err(not_there("its body captures a value from outside that is not a constant"));
    }
    let lift = |body: &Arc<Graph>| one(captured, body, kind);
    Ok(LiftedBodies { bodies: bodies.iter().map(lift).collect::<Result<_>>()?, further })
}

/// How a body's parameters correspond to the op's operands.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum BodyParams {
    /// All accumulators, then all elements.
    Halves,
    /// Both compared elements of an operand next to each other; the body returns none of them.
    Pairs,
    /// Exactly the operands that the op defines.
    Closed,
}

fn one(captured: &[Tensor], body: &Graph, kind: BodyParams) -> Result<Arc<Graph>> {
    let inner = GraphBuilder::new(&body.name);
    let types = body.param_types();
    let own = types.get(captured.len()..).unwrap_or_default();
    let half = match kind {
        BodyParams::Halves => own.len() / 2,
        _ => own.len(),
    };
    let param = |ty: &systole_base::TensorType| inner.parameter(ty.clone(), "arg");
    let mut arguments: Vec<Tensor> = own[..half].iter().map(param).collect();
    let mut handed = Vec::new();
    let mut args = Vec::new();
    for t in captured {
        match t.known() {
            Some(value) => args.push(inner.constant(value)),
            None => {
                let accumulated = param(t.ty());
                handed.push(accumulated.clone());
                args.push(accumulated);
                if kind == BodyParams::Pairs {
                    param(t.ty());
                }
            }
        }
    }
    arguments.extend(own[half..].iter().map(param));
    if kind == BodyParams::Halves {
        handed.iter().for_each(|t| drop(param(t.ty())));
    }
    args.extend(arguments);
    let mut results = inner.inline(body, &args.iter().collect::<Vec<_>>());
    if kind == BodyParams::Halves {
        results.extend(handed);
    }
    inner.finish(&results)
}

/// Returns the parameter layout of an op's bodies.
pub(super) fn kind_of(name: &str) -> BodyParams {
    match name {
        "stablehlo.reduce" | "stablehlo.reduce_window" | "stablehlo.scatter" => BodyParams::Halves,
        "stablehlo.sort" => BodyParams::Pairs,
        _ => BodyParams::Closed,
    }
}

/// Appends the lifted operands of an op, broadcast to the shape of the others.
pub(super) fn with_further(name: &str, operands: Vec<Tensor>, further: &[Tensor]) -> Vec<Tensor> {
    let wide = |like: Option<&Tensor>| -> Vec<Tensor> {
        further.iter().map(|t| like.map_or_else(|| t.clone(), |x| t.broadcast_to(x.shape()))).collect()
    };
    let n = match name {
        "stablehlo.sort" => operands.len(),
        _ => operands.len() / 2,
    };
    let (first, rest) = operands.split_at(n.min(operands.len()));
    let mut all = first.to_vec();
    all.extend(wide(first.first()));
    match (name, rest) {
        ("stablehlo.scatter", [indices, updates @ ..]) => {
            all.push(indices.clone());
            all.extend(updates.iter().cloned());
            all.extend(wide(updates.first()));
        }
        ("stablehlo.sort", _) => {}
        _ => {
            all.extend(rest.iter().cloned());
            all.extend(further.iter().cloned());
        }
    }
    all
}

/// Checks the specification's constraints for `map`.
fn check_map(op: &Operation, body: &Graph, operands: &[Tensor], captures: usize) -> Result<()> {
    let Some(first) = operands.first() else { return Err(wrong("(C2) at least one operand is required")) };
    if let Some(other) = operands.iter().find(|x| x.shape() != first.shape()) {
        return Err(wrong(format!("(C1) operand shapes differ: {} and {}", first.ty(), other.ty())));
    }
    if !sizes(op, "dimensions")?.into_iter().eq(0..first.rank()) {
        return Err(wrong("(C3) `dimensions` must list all operand dimensions in order"));
    }
    let scalars = operands.iter().map(|x| TensorType::scalar(x.dtype()));
    let takes = body.param_types();
    let fits = takes.iter().skip(captures).cloned().eq(scalars) && body.results.len() == 1;
    match fits && body.result_types().iter().all(|ty| ty.rank() == 0) {
        true => Ok(()),
        false => Err(wrong(format!("(C4) the body takes {takes:?}, expected one element of each operand"))),
    }
}
