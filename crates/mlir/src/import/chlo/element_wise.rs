//! Ops of elements, by name.

use super::{gamma, math, zeta};
use systole_base::DType;
use systole_ir::Tensor;

/// An op of elements; narrow floats are computed in f32.
pub(super) fn write(name: &str, operands: &[Tensor]) -> Option<Tensor> {
    match (name, operands) {
        ("square", [x]) => return Some(x * x),
        ("erf", [x]) if x.dtype().is_float() => return Some(x.erf()),
        ("erfc", [x]) if x.dtype().is_float() => return Some(x.erfc()),
        ("erf_inv", [x]) if x.dtype().is_float() => return Some(x.erf_inv()),
        ("conj", [x]) => return Some(x.clone()),
        ("is_inf", [x]) => return Some(x.abs().equal(&x.scalar_like(f64::INFINITY))),
        ("is_pos_inf", [x]) => return Some(x.equal(&x.scalar_like(f64::INFINITY))),
        ("is_neg_inf", [x]) => return Some(x.equal(&x.scalar_like(f64::NEG_INFINITY))),
        ("next_after", [x, y]) => return math::next_after(x, y),
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
        ("lgamma", [x]) => gamma::lgamma(x),
        ("polygamma", [n, x]) => zeta::polygamma(n, x),
        ("sinh", [x]) => x.sinh(),
        ("tan", [x]) => x.tan(),
        ("zeta", [x, q]) => zeta::zeta(x, q),
        _ => return None,
    };
    Some(written.convert(first.dtype()))
}
