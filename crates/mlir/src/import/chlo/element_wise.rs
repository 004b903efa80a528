//! Functions of elements, of real and of complex numbers.

use super::{gamma, math, zeta};
use crate::import::call::{Elements, Import, OpRow, op};
use crate::import::complex::{functions, inverse};
use crate::import::complex_number::Number;
use systole_ir::Tensor;

const fn any(name: &'static str, f: fn(&Tensor) -> Tensor) -> OpRow {
    op(name).import(Import::Elements(Elements::Any(f)))
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
    any("chlo.erfc", Tensor::erfc),
    any("chlo.erf_inv", Tensor::erf_inv),
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
