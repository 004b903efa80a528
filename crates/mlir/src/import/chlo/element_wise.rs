//! Table of CHLO's element-wise functions, real and complex, with the import function of each.

use super::{gamma, math, zeta};
use crate::import::call::{ElementwiseFn, ImportRule, OpImport, op};
use crate::import::complex::{functions, inverse};
use crate::import::complex_number::RealOrComplex;
use systole_ir::Tensor;

const fn any(name: &'static str, f: fn(&Tensor) -> Tensor) -> OpImport {
    op(name).import(ImportRule::Elements(ElementwiseFn::Any(f)))
}

const fn floats(name: &'static str, f: fn(&Tensor) -> Tensor) -> OpImport {
    op(name).import(ImportRule::Elements(ElementwiseFn::Floats(f)))
}

const fn float_pairs(name: &'static str, f: fn(&Tensor, &Tensor) -> Tensor) -> OpImport {
    op(name).import(ImportRule::Elements(ElementwiseFn::FloatPairs(f)))
}

const fn pairs(name: &'static str, f: fn(&Tensor, &Tensor) -> Option<Tensor>) -> OpImport {
    op(name).import(ImportRule::Elements(ElementwiseFn::Pairs(f)))
}

pub(crate) const OPERATIONS: &[OpImport] = &[
    floats("chlo.acos", math::acos).unary(inverse::acos),
    floats("chlo.acosh", math::acosh).unary(inverse::acosh),
    floats("chlo.asin", math::asin).unary(inverse::asin),
    floats("chlo.asinh", math::asinh).unary(inverse::asinh),
    floats("chlo.atan", math::atan).unary(inverse::atan),
    floats("chlo.atanh", math::atanh).unary(inverse::atanh),
    floats("chlo.bessel_i1e", math::bessel_i1e),
    any("chlo.conj", Tensor::clone).unary(RealOrComplex::conj),
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
