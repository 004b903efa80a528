//! Imports ops on complex numbers as ops on pairs of real arrays. Ops that only move elements are applied to each part;
//! loops, branches and reductions other than sums take the parts as separate values.

mod bits;
pub(super) mod functions;
pub(super) mod inverse;

use super::attribute;
use super::call::{ComplexRule, OpCall};
use super::complex_number::RealOrComplex;
use super::types::{held, not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{Attribute, MlirRegion, find};
use systole_base::{Result, TensorType};
use systole_ir::Tensor;
use systole_ir::op::Monoid;
use systole_ir::op::scatter::overwrite_body;

pub(super) const CONVERT: ComplexRule = ComplexRule::Number(1, convert);
pub(super) const CAST: ComplexRule =
    ComplexRule::Number(1, |c| bits::cast(&c.number(0)?, &c.ty()?, is_complex(c)));
pub(super) const COMPARE: ComplexRule = ComplexRule::Number(2, compare);
pub(super) const BROADCAST: ComplexRule = ComplexRule::Number(1, broadcast);
/// Products of two operands.
pub(super) const PRODUCT: ComplexRule = ComplexRule::Number(2, bilinear);
/// Products whose padding is an operand.
pub(super) const PADDED_PRODUCT: ComplexRule = ComplexRule::Number(3, bilinear);
pub(super) const DOT: ComplexRule =
    ComplexRule::Number(2, |c| Ok(c.number(0)?.product(&c.number(1)?, Tensor::dot).convert(c.ty()?.dtype)));
pub(super) const IOTA: ComplexRule = ComplexRule::Number(0, counted);
/// Iota whose shape is an operand.
pub(super) const SHAPED_IOTA: ComplexRule = ComplexRule::Number(1, counted);
pub(super) const JOIN: ComplexRule =
    ComplexRule::Number(2, |c| Ok(RealOrComplex::complex(c.number(0)?.re, c.number(1)?.re)));
pub(super) const CLAMP: ComplexRule = ComplexRule::Number(3, |c| {
    let x = larger(&c.number(1)?, &c.number(0)?);
    Ok(smaller(&x, &c.number(2)?))
});

/// Imports an op on complex numbers; `None` if no operand is complex or its parts become separate values.
pub(super) fn write(call: &OpCall, complex: ComplexRule) -> Result<Option<Vec<ImportedValue>>> {
    let is_real = call.operands.iter().all(|v| !matches!(v, ImportedValue::Complex(..)))
        && !call.results.iter().any(|ty| held(ty).is_ok_and(|parts| parts.len() == 2));
    // real and imag also accept real numbers.
    let takes_parts = matches!(call.op.name.as_str(), "stablehlo.real" | "stablehlo.imag");
    if is_real && !takes_parts {
        return Ok(None);
    }
    let one = |n: RealOrComplex| Ok(Some(vec![n.into()]));
    let refused = || not_there(format!("{} of complex numbers is not supported", call.op.name));
    match (complex, call.operands.len()) {
        (ComplexRule::Parts, _) => each_part(call, None).map(Some),
        (ComplexRule::Folds | ComplexRule::FoldsOrApart, _) => {
            match (call.op.regions.first().and_then(fold_of), complex) {
                (Some(fold), _) => each_part(call, Some(fold)).map(Some),
                (None, ComplexRule::Folds) => Err(refused()),
                (None, _) => Ok(None),
            }
        }
        (ComplexRule::Apart, _) => Ok(None),
        (ComplexRule::Nothing, _) => Ok(Some(call.operands.to_vec())),
        (ComplexRule::Constant, _) => constant(call).map(Some),
        (ComplexRule::Unary(f), 1) => one(f(&call.number(0)?)),
        (ComplexRule::Binary(f), 2) => one(f(&call.number(0)?, &call.number(1)?)),
        (ComplexRule::Number(count, f), n) if n == count => one(f(call)?),
        _ => Err(refused()),
    }
}

/// Returns the parameters of a region's body, each with its part, in the order of the IR's op. Those of a comparator
/// are in pairs.
pub(super) fn parameters(name: &str, counts: &[usize]) -> Vec<(usize, usize)> {
    let group = if name == "stablehlo.sort" { 2 } else { 1 };
    let mut order = Vec::new();
    for (first, group) in counts.chunks(group).enumerate().map(|(i, c)| (i * group, c)) {
        let parts = group.first().copied().unwrap_or(1);
        order.extend((0..parts).flat_map(|p| (0..group.len()).map(move |k| (first + k, p))));
    }
    order
}

/// A reduction that applies to each part separately.
#[derive(Clone, Copy)]
enum ComplexReduction {
    Sum,
    Last,
}

/// Returns what a body of two arguments computes: their sum, or the second one.
fn fold_of(region: &MlirRegion) -> Option<ComplexReduction> {
    let [a, b] = region.arguments[..] else { return None };
    match region.operations.as_slice() {
        [add, end] if add.name == "stablehlo.add" && end.operands == add.results => {
            (add.operands == [a, b] || add.operands == [b, a]).then_some(ComplexReduction::Sum)
        }
        [end] if end.operands == [b] => Some(ComplexReduction::Last),
        _ => None,
    }
}

fn constant(call: &OpCall) -> Result<Vec<ImportedValue>> {
    let Some(Attribute::Dense(dense)) = find(&call.op.attributes, "value") else {
        return Err(wrong("missing attribute `value`"));
    };
    let (one, shape) = (attribute::one_for_all(dense), call.ty()?.shape);
    let parts = attribute::literals(one.as_ref().unwrap_or(dense), call.module)?;
    let mut parts = parts.into_iter().map(|part| match &one {
        Some(_) => call.g.constant(part).broadcast_in_dim(&shape, &[]),
        None => call.g.constant(part),
    });
    ImportedValue::of_parts(&mut parts, 2)
        .map(|v| vec![v])
        .ok_or_else(|| wrong("the elements are not complex"))
}

/// Applies the op to each part; real operands are used for both.
fn each_part(call: &OpCall, fold: Option<ComplexReduction>) -> Result<Vec<ImportedValue>> {
    let types = call.results.iter().map(|ty| held(ty)).collect::<Result<Vec<_>>>()?;
    let part = |p: usize| -> Result<Vec<Tensor>> {
        let of = |v: &ImportedValue| match v {
            ImportedValue::Complex(_, im) if p == 1 => Ok(im.clone()),
            ImportedValue::Complex(re, _) => Ok(re.clone()),
            other => other.clone().array(),
        };
        let operands = call.operands.iter().map(of).collect::<Result<Vec<_>>>()?;
        let results: Vec<TensorType> =
            types.iter().filter_map(|parts| parts.get(p).or(parts.first()).cloned()).collect();
        let dtype = results.first().ok_or_else(|| wrong("a result is missing"))?.dtype;
        let bodies = fold.map(|fold| match fold {
            ComplexReduction::Sum => Monoid::Add.body(dtype),
            ComplexReduction::Last => overwrite_body(dtype),
        });
        call.on_arrays(operands, results, bodies.into_iter().collect())
    };
    let (re, im) = (part(0)?, part(1)?);
    let join = |((re, im), parts): ((Tensor, Tensor), &Vec<TensorType>)| match parts.len() {
        2 => ImportedValue::Complex(re, im),
        _ => ImportedValue::Array(re),
    };
    Ok(re.into_iter().zip(im).zip(&types).map(join).collect())
}

/// Returns the index numbers of an op without complex operands (iota).
fn counted(call: &OpCall) -> Result<RealOrComplex> {
    let sizes = call.operands.iter().map(|v| v.clone().array()).collect::<Result<Vec<_>>>()?;
    Ok(RealOrComplex::real(first(call.on_arrays(sizes, vec![call.ty()?], Vec::new())?)?).widened())
}

fn first(made: Vec<Tensor>) -> Result<Tensor> {
    made.into_iter().next().ok_or_else(|| wrong("a result is missing"))
}

/// Imports `broadcast`: new leading dimensions.
fn broadcast(call: &OpCall) -> Result<RealOrComplex> {
    let (x, shape) = (call.number(0)?, call.ty()?.shape);
    let dims: Vec<usize> = (shape.rank().saturating_sub(x.rank())..shape.rank()).collect();
    Ok(x.map(|t| t.broadcast_in_dim(&shape, &dims)))
}

fn is_complex(call: &OpCall) -> bool {
    call.results.first().is_some_and(|ty| held(ty).is_ok_and(|parts| parts.len() == 2))
}

fn convert(call: &OpCall) -> Result<RealOrComplex> {
    let (x, to) = (call.number(0)?, call.ty()?.dtype);
    let re = x.re.convert(to);
    Ok(if is_complex(call) {
        RealOrComplex::complex(re, x.imag().convert(to))
    } else {
        RealOrComplex::real(re)
    })
}

/// Computes complex products by applying the op to the parts.
fn bilinear(call: &OpCall) -> Result<RealOrComplex> {
    let (x, y, ty) = (call.number(0)?, call.number(1)?, call.ty()?);
    let of = |a: &Tensor, b: &Tensor| {
        // `dynamic_conv` has more operands.
        let more = call.operands[2..].iter().map(|v| v.clone().array()).collect::<Result<Vec<_>>>()?;
        let all = [a.clone(), b.clone()].into_iter().chain(more).collect();
        first(call.on_arrays(all, vec![ty.clone()], Vec::new())?)
    };
    Ok(match (&x.im, &y.im) {
        (None, None) => RealOrComplex::real(of(&x.re, &y.re)?),
        (Some(b), None) => RealOrComplex::complex(of(&x.re, &y.re)?, of(b, &y.re)?),
        (None, Some(d)) => RealOrComplex::complex(of(&x.re, &y.re)?, of(&x.re, d)?),
        (Some(b), Some(d)) => {
            RealOrComplex::complex(of(&x.re, &y.re)? - of(b, d)?, of(&x.re, d)? + of(b, &y.re)?)
        }
    })
}

/// Compares: equality of both parts; order by the real part, then the imaginary part.
fn compare(call: &OpCall) -> Result<RealOrComplex> {
    let (x, y) = (call.number(0)?, call.number(1)?);
    let Some(Attribute::Keyword(_, direction)) = find(&call.op.attributes, "comparison_direction") else {
        return Err(wrong("missing attribute `comparison_direction`"));
    };
    let order = |less: fn(&Tensor, &Tensor) -> Tensor, last: fn(&Tensor, &Tensor) -> Tensor| {
        let tie = x.re.equal(&y.re);
        less(&x.re, &y.re).or(&tie.and(&last(&x.imag(), &y.imag())))
    };
    Ok(RealOrComplex::real(match direction.as_str() {
        "EQ" => x.equal(&y),
        "NE" => x.equal(&y).not(),
        "LT" => order(Tensor::less, Tensor::less),
        "LE" => order(Tensor::less, Tensor::less_equal),
        "GT" => order(Tensor::greater, Tensor::greater),
        "GE" => order(Tensor::greater, Tensor::greater_equal),
        other => return Err(wrong(format!("unknown comparison direction `{other}`"))),
    }))
}

/// Returns the larger of two numbers in the order of [`compare`].
pub(super) fn larger(x: &RealOrComplex, y: &RealOrComplex) -> RealOrComplex {
    let tie = x.re.equal(&y.re);
    let first = x.re.greater(&y.re).or(&tie.and(&x.imag().greater_equal(&y.imag())));
    RealOrComplex::select(&first, x, y)
}

pub(super) fn smaller(x: &RealOrComplex, y: &RealOrComplex) -> RealOrComplex {
    larger(&x.neg(), &y.neg()).neg()
}
