//! Functions of elements, of real and of complex numbers.

use super::{gamma, math, zeta};
use crate::import::call::{Elements, Import, OpRow, op};
use crate::import::complex::{functions, inverse};
use crate::import::number::Number;
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

const fn floats(name: &'static str, f: fn(&Tensor) -> Tensor) -> OpRow {
    op(name).import(Import::Elements(Elements::Floats(f)))
}

const fn float_pairs(name: &'static str, f: fn(&Tensor, &Tensor) -> Tensor) -> OpRow {
    op(name).import(Import::Elements(Elements::FloatPairs(f)))
}

const fn pairs(name: &'static str, f: fn(&Tensor, &Tensor) -> Option<Tensor>) -> OpRow {
    op(name).import(Import::Elements(Elements::Pairs(f)))
}

pub(crate) const OPERATIONS: &[OpRow] = &[
    floats("chlo.acos", math::acos).unary(inverse::acos),
    floats("chlo.acosh", math::acosh).unary(inverse::acosh),
    floats("chlo.asin", math::asin).unary(inverse::asin),
    floats("chlo.asinh", math::asinh).unary(inverse::asinh),
    floats("chlo.atan", math::atan).unary(inverse::atan),
    floats("chlo.atanh", math::atanh).unary(inverse::atanh),
    floats("chlo.bessel_i1e", math::bessel_i1e),
    any("chlo.conj", Tensor::clone).unary(Number::conj),
    floats("chlo.cosh", math::cosh).unary(functions::cosh),
    floats("chlo.digamma", gamma::digamma),
    any("chlo.erf", Tensor::erf),
    any("chlo.erf_inv", Tensor::erf_inv),
    floats("chlo.erfc", math::erfc),
    any("chlo.is_inf", |x| x.abs().equal(&x.scalar_like(f64::INFINITY))),
    any("chlo.is_neg_inf", |x| x.equal(&x.scalar_like(f64::NEG_INFINITY))),
    any("chlo.is_pos_inf", |x| x.equal(&x.scalar_like(f64::INFINITY))),
    floats("chlo.lgamma", gamma::lgamma),
    pairs("chlo.mulhi", math::high_product),
    pairs("chlo.next_after", math::next_after),
    float_pairs("chlo.polygamma", zeta::polygamma),
    floats("chlo.sinh", Tensor::sinh).unary(functions::sinh),
    any("chlo.square", |x| x * x).unary(|z| z.mul(z)),
    floats("chlo.tan", Tensor::tan).unary(functions::tan),
    float_pairs("chlo.zeta", zeta::zeta),
];
