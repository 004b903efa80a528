//! Comparison, logical and selection kernels: LESS, EQUAL, LOGICAL_AND, SELECT and others.

use super::binary::{common_shape, sources};
use super::call::{KernelOperand, OperatorCall};
use super::op_row::operators;
use crate::model::broken;
use std::cmp::Ordering;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Less "LESS" 58; options 41 []; versions 1 2; NoInt8; |call| compare(call, |o| o == Some(Ordering::Less))
    Greater "GREATER" 61; options 44 []; versions 1 2; NoInt8;
        |call| compare(call, |o| o == Some(Ordering::Greater))
    GreaterEqual "GREATER_EQUAL" 62; options 45 []; versions 1 2; NoInt8;
        |call| compare(call, |o| o.is_some_and(Ordering::is_ge))
    LessEqual "LESS_EQUAL" 63; options 46 []; versions 1 2; NoInt8;
        |call| compare(call, |o| o.is_some_and(Ordering::is_le))
    Equal "EQUAL" 71; options 53 []; versions 1 2; NoInt8; |call| compare(call, |o| o == Some(Ordering::Equal))
    NotEqual "NOT_EQUAL" 72; options 54 []; versions 1 2; NoInt8;
        |call| compare(call, |o| o != Some(Ordering::Equal))
    Select "SELECT" 64; options 47 []; versions 1 2; NoInt8; select
    LogicalOr "LOGICAL_OR" 84; options 60 []; versions 1 1; NoInt8; |call| logical(call, |a, b| a || b)
    LogicalAnd "LOGICAL_AND" 86; options 62 []; versions 1 1; NoInt8; |call| logical(call, |a, b| a && b)
    LogicalNot "LOGICAL_NOT" 87; options 63 []; versions 1 1; NoInt8; logical_not
    SelectV2 "SELECT_V2" 123; options 98 []; versions 1 1; NoInt8; select
}

/// Computes a comparison, `a: T[…], b: T[…] → bool[…]`, with broadcasting.
fn compare(call: &OperatorCall, of: fn(Option<Ordering>) -> bool) -> Result<Vec<Literal>> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let dims = common_shape(a.dims(), b.dims())?;
    call.check_output(&dims)?;
    ensure!(a.dtype() == b.dtype(), call.unsupported(format_args!("types {} and {}", a.dtype(), b.dtype())));
    let scales =
        |x: &KernelOperand| x.tensor.quantization.as_ref().map(|q| (q.scale.clone(), q.zero_point.clone()));
    ensure!(scales(&a) == scales(&b), call.unsupported("operands of different scales"));
    let (i, j) = (sources(a.dims(), &dims), sources(b.dims(), &dims));
    let found: Vec<bool> = if a.dtype() == DType::F32 {
        let (x, y) = (a.elements::<f32>()?, b.elements::<f32>()?);
        i.iter().zip(&j).map(|(&i, &j)| of(x[i].partial_cmp(&y[j]))).collect()
    } else {
        let (x, y) = (call.ints(&a)?, call.ints(&b)?);
        i.iter().zip(&j).map(|(&i, &j)| of(Some(x[i].cmp(&y[j])))).collect()
    };
    Ok(vec![Literal::from_bools(&dims[..], &found)?])
}

fn bools(call: &OperatorCall, n: usize) -> Result<Vec<bool>> {
    let x = call.input(n)?;
    ensure!(x.dtype() == DType::Bool, call.unsupported(format_args!("element type {}", x.dtype())));
    Ok(x.value.to_bools())
}

/// Computes a logical operator of bools, with broadcasting.
fn logical(call: &OperatorCall, of: fn(bool, bool) -> bool) -> Result<Vec<Literal>> {
    let (x, y) = (bools(call, 0)?, bools(call, 1)?);
    let (a, b) = (call.input(0)?.dims(), call.input(1)?.dims());
    let dims = common_shape(a, b)?;
    call.check_output(&dims)?;
    let (i, j) = (sources(a, &dims), sources(b, &dims));
    let found: Vec<bool> = i.iter().zip(&j).map(|(&i, &j)| of(x[i], y[j])).collect();
    Ok(vec![Literal::from_bools(&dims[..], &found)?])
}

fn logical_not(call: &OperatorCall) -> Result<Vec<Literal>> {
    let dims = call.input(0)?.dims();
    call.check_output(dims)?;
    let found: Vec<bool> = bools(call, 0)?.into_iter().map(|x| !x).collect();
    Ok(vec![Literal::from_bools(dims, &found)?])
}

/// Computes SELECT and SELECT_V2: elements of `a` where a condition is true, of `b` elsewhere. SELECT's condition of
/// rank 1 chooses whole rows.
fn select(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (condition, a, b) = (call.input(0)?, call.input(1)?, call.input(2)?);
    ensure!(a.dtype() == b.dtype(), broken(format!("cannot select from {} and {}", a.ty(), b.ty())));
    let mut of = condition.dims().to_vec();
    if call.operator.op == crate::TfliteOp::Select && of.len() == 1 && a.dims().len() > 1 {
        of.resize(a.dims().len(), 1);
    }
    let dims = common_shape(&common_shape(&of, a.dims())?, b.dims())?;
    let n = call.check_output(&dims)?;
    let chosen = bools(call, 0)?;
    let [c, i, j] = [&of[..], a.dims(), b.dims()].map(|own| sources(own, &dims));
    let size = a.dtype().size();
    let mut bytes = Vec::with_capacity(n * size);
    for ((&c, &i), &j) in c.iter().zip(&i).zip(&j) {
        let (from, at) = if chosen[c] { (a.value, i) } else { (b.value, j) };
        bytes.extend_from_slice(&from.bytes()[at * size..(at + 1) * size]);
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}
