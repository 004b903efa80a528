//! CHLO: ops of clients that are written by StableHLO's own, as CHLO's document and its decomposition define them.

mod arrays;
mod gamma;
mod math;
mod ragged;
pub(super) mod scan;
mod zeta;

use crate::syntax::Operation;
use systole_base::{DType, Result};
use systole_ir::Tensor;

pub(super) use arrays::top_k;

/// The results of an op of CHLO; `None`: it is none, or the IR has it.
pub(super) fn write(op: &Operation, operands: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    let Some(name) = op.name.strip_prefix("chlo.").or_else(|| called(op)) else { return Ok(None) };
    if let Some(name) = name.strip_prefix("broadcast_") {
        return arrays::broadcast(name, op, operands);
    }
    if let Some(written) = element_wise(name, operands) {
        return Ok(Some(vec![written]));
    }
    match name {
        "ragged_dot" => ragged::write(op, operands).map(Some),
        _ => arrays::write(name, op, operands),
    }
}

/// `stablehlo.custom_call @mhlo.erf(…)` and its kin: how JAX keeps CHLO's ops in what it exports.
fn called(op: &Operation) -> Option<&str> {
    let is_call = op.name == "stablehlo.custom_call";
    let name = super::attribute::text(op, "call_target_name").filter(|_| is_call)?;
    name.strip_prefix("mhlo.").or_else(|| name.strip_prefix("chlo."))
}

/// An op of elements; narrow floats are computed in f32.
fn element_wise(name: &str, operands: &[Tensor]) -> Option<Tensor> {
    match (name, operands) {
        ("square", [x]) => return Some(x * x),
        ("conj", [x]) => return Some(x.clone()),
        ("is_inf", [x]) => return Some(x.abs().equal(&x.scalar_like(f64::INFINITY))),
        ("is_pos_inf", [x]) => return Some(x.equal(&x.scalar_like(f64::INFINITY))),
        ("is_neg_inf", [x]) => return Some(x.equal(&x.scalar_like(f64::NEG_INFINITY))),
        ("next_after", [x, y]) => return math::next_after(x, y),
        // The IR has these for every float.
        ("erf", [x]) if x.dtype().is_float() => return Some(x.erf()),
        ("erf_inv", [x]) if x.dtype().is_float() => return Some(x.erf_inv()),
        ("mulhi", [x, y]) => return math::high_product(x, y),
        _ => {}
    }
    let first = operands.first()?;
    if !first.dtype().is_float() {
        return None;
    }
    let dtype = if first.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let wide: Vec<Tensor> = operands.iter().map(|x| x.convert(dtype)).collect();
    let written = match (name, wide.as_slice()) {
        ("acos", [x]) => math::acos(x),
        ("acosh", [x]) => math::acosh(x),
        ("asin", [x]) => math::asin(x),
        ("asinh", [x]) => math::asinh(x),
        ("atan", [x]) => math::atan(x),
        ("atanh", [x]) => math::atanh(x),
        ("bessel_i1e", [x]) => math::bessel_i1e(x),
        ("cosh", [x]) => math::cosh(x),
        ("digamma", [x]) => gamma::digamma(x),
        ("erfc", [x]) => math::erfc(x),
        ("lgamma", [x]) => gamma::lgamma(x),
        ("polygamma", [n, x]) => zeta::polygamma(n, x),
        ("sinh", [x]) => x.sinh(),
        ("tan", [x]) => x.tan(),
        ("zeta", [x, q]) => zeta::zeta(x, q),
        _ => return None,
    };
    Some(written.convert(first.dtype()))
}

/// The polynomial with these coefficients, the highest power's first.
fn polynomial(x: &Tensor, coefficients: &[f64]) -> Tensor {
    let mut all = coefficients.iter();
    let first = x.builder().full(x.ty(), all.next().copied().unwrap_or(0.0));
    all.fold(first, |sum, &c| &(&sum * x) + c)
}

/// `T[]`: the greatest finite number of the type.
fn greatest(x: &Tensor) -> f64 {
    if x.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) }
}
