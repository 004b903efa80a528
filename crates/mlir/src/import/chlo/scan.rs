//! Imports CHLO's scan as a loop: applies a body to slices of arrays along a dimension, with carried values.

use crate::import::attribute::{flag, size};
use crate::import::call::{ArrayCall, ComplexRule, ImportRule, OpImport, OpResults, op};
use crate::import::types::wrong;
use crate::syntax::{Attribute, find};
use std::sync::Arc;
use systole_base::{DType, Dims, Result, TensorType};
use systole_ir::{Graph, Tensor, control_builders};

pub(crate) const OPERATIONS: &[OpImport] =
    &[op("chlo.scan").complex(ComplexRule::Apart).import(ImportRule::Bodies(scan))];

/// Imports `inputs: T[…, n, …], inits → outputs: U[…, n, …], carries` as a loop over `n` slices.
fn scan(c: &ArrayCall, captured: &[Tensor], bodies: &[Arc<Graph>]) -> OpResults {
    let (op, operands, results) = (c.op, c.operands, c.results);
    let ([body], []) = (bodies, captured) else { return Ok(None) };
    let inputs = match find(&op.attributes, "operandSegmentSizes") {
        Some(Attribute::Array(_, items)) => match items.first() {
            Some(Attribute::Int(n)) => usize::try_from(*n).ok(),
            _ => None,
        },
        _ => None,
    };
    let inputs = inputs.filter(|n| *n <= operands.len());
    let inputs = inputs.ok_or_else(|| wrong("missing attribute `operandSegmentSizes`"))?;
    let dim = size(op, "dimension")?.ok_or_else(|| wrong("missing attribute `dimension`"))?;
    let (xs, inits) = operands.split_at(inputs);
    let counts = xs.iter().map(|x| x.shape().get(dim).copied()).collect::<Option<Vec<usize>>>();
    let counts = counts.ok_or_else(|| wrong("`dimension` is out of range for the rank"))?;
    let said = size(op, "scan_dim_size")?;
    let n = counts.first().copied().or(said);
    let n = n
        .filter(|n| counts.iter().all(|c| c == n))
        .ok_or_else(|| wrong("the inputs have different numbers of slices"))?;
    check(body, xs, inits, results, dim, n)?;
    let outputs = results.len() - inits.len();
    let reverse = flag(op, "is_reverse", false)?;
    let Some(like) = operands.first() else { return Err(wrong("scan has no operands")) };
    let mut state: Vec<Tensor> = inits.to_vec();
    state.extend(results[..outputs].iter().map(|ty| like.builder().full(ty, 0.0)));
    let step = |trip: &Tensor, state: &[Tensor]| {
        let at = if reverse { (n as f64 - 1.0) - trip } else { trip.clone() };
        let mut args: Vec<Tensor> = xs.iter().map(|x| read(x, &at, dim)).collect();
        args.extend(state[..inits.len()].iter().cloned());
        let mut made = at.builder().inline(body, &args.iter().collect::<Vec<_>>());
        let carries = made.split_off(outputs);
        let written = made.iter().zip(&state[inits.len()..]).map(|(y, all)| write_at(all, y, &at, dim));
        let written: Vec<Tensor> = written.collect();
        carries.into_iter().chain(written).collect()
    };
    let last = control_builders::fori_loop(n, &state.iter().collect::<Vec<_>>(), step);
    let (carries, ys) = last.split_at(inits.len().min(last.len()));
    Ok(Some(ys.iter().chain(carries).cloned().collect()))
}

/// Checks that the body maps slices and carried values to those of the results.
fn check(
    body: &Graph,
    xs: &[Tensor],
    inits: &[Tensor],
    results: &[TensorType],
    dim: usize,
    n: usize,
) -> Result<()> {
    let outputs = results.len().checked_sub(inits.len());
    let outputs = outputs.ok_or_else(|| wrong("scan has fewer results than carried values"))?;
    let slice = |ty: &TensorType| {
        let dims: Dims = ty.shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, n)| *n).collect();
        ty.with_shape(&dims[..])
    };
    if results[..outputs].iter().any(|ty| ty.shape.get(dim) != Some(&n)) {
        return Err(wrong(format!("an output must have {n} slices, like the inputs")));
    }
    let taken: Vec<TensorType> =
        xs.iter().map(|x| slice(x.ty())).chain(inits.iter().map(|t| t.ty().clone())).collect();
    let given: Vec<TensorType> =
        results[..outputs].iter().map(slice).chain(inits.iter().map(|t| t.ty().clone())).collect();
    match body.param_types() == taken && body.result_types() == given {
        true => Ok(()),
        false => Err(wrong(format!("the body must have arguments {taken:?} and results {given:?}"))),
    }
}

fn place(like: &Tensor, at: &Tensor, dim: usize) -> Vec<Tensor> {
    let zero = at.scalar_like(0.0).convert(DType::I32);
    (0..like.rank()).map(|d| if d == dim { at.convert(DType::I32) } else { zero.clone() }).collect()
}

fn read(x: &Tensor, at: &Tensor, dim: usize) -> Tensor {
    let mut sizes: Dims = x.shape().iter().copied().collect();
    sizes[dim] = 1;
    let slice = x.dynamic_slice(&place(x, at, dim).iter().collect::<Vec<_>>(), &sizes);
    sizes.remove(dim);
    slice.reshape(&sizes[..])
}

fn write_at(all: &Tensor, y: &Tensor, at: &Tensor, dim: usize) -> Tensor {
    let mut sizes: Dims = all.shape().iter().copied().collect();
    sizes[dim] = 1;
    all.dynamic_update_slice(&y.reshape(&sizes[..]), &place(all, at, dim).iter().collect::<Vec<_>>())
}
