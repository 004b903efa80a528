//! Ops of complex numbers, written on pairs of real arrays. What only moves elements is done to each part; loops, branches
//! and folds with other bodies than a sum take the parts as values of their own.

mod bits;
mod functions;
mod inverse;

use super::attribute::{self, text};
use super::given::Given;
use super::number::Number;
use super::types::{held, not_there, wrong};
use crate::syntax::{Attribute, Module, Operation, Region, Type};
use crate::text::find;
use std::sync::Arc;
use systole_base::{Result, TensorType};
use systole_ir::op::Monoid;
use systole_ir::op::scatter::overwrite_body;
use systole_ir::{Graph, GraphBuilder, Tensor};

/// What emits the op itself on other operands: operands, result types and bodies to results.
pub(super) type Emit<'a> = &'a dyn Fn(Vec<Tensor>, Vec<TensorType>, Vec<Arc<Graph>>) -> Result<Vec<Tensor>>;

/// One op on values of which some are complex.
pub(super) struct Call<'a> {
    pub(super) module: &'a Module,
    pub(super) op: &'a Operation,
    pub(super) operands: &'a [Given],
    /// Types of the results, as the module says them.
    pub(super) results: &'a [&'a Type],
    pub(super) g: &'a GraphBuilder,
    pub(super) emit: Emit<'a>,
}

/// Ops that move elements, or fold them by what the second list says.
const MOVES: [&str; 21] = [
    "reshape",
    "transpose",
    "slice",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "pad",
    "reverse",
    "concatenate",
    "broadcast_in_dim",
    "select",
    "all_gather",
    "all_to_all",
    "collective_permute",
    "collective_broadcast",
    "optimization_barrier",
    "dynamic_reshape",
    "dynamic_broadcast_in_dim",
    "dynamic_pad",
    "dynamic_gather",
    "real_dynamic_slice",
];
const FOLDS: [&str; 5] = ["reduce", "reduce_window", "scatter", "all_reduce", "reduce_scatter"];

/// The results of an op of complex numbers; `None`: it is none, or its parts are values of their own.
pub(super) fn write(call: &Call<'_>) -> Result<Option<Vec<Given>>> {
    let is_complex = |ty: &&Type| held(ty).is_ok_and(|parts| parts.len() == 2);
    let concerned = call.operands.iter().any(|v| matches!(v, Given::Complex(..)));
    let name = call.name();
    let of_real = matches!(call.op.name.as_str(), "stablehlo.real" | "stablehlo.imag");
    if !concerned && !of_real && !call.results.iter().any(is_complex) {
        return Ok(None);
    }
    if name == "constant" {
        return call.constant().map(Some);
    }
    if MOVES.contains(&name) {
        return call.each_part(None).map(Some);
    }
    if FOLDS.contains(&name)
        && let Some(fold) = call.op.regions.first().and_then(fold_of)
    {
        return call.each_part(Some(fold)).map(Some);
    }
    if let Some(written) = call.numbers(name)? {
        return Ok(Some(vec![written.into()]));
    }
    match name {
        "while" | "case" | "if" | "reduce" | "reduce_window" | "scatter" | "sort" | "map" | "scan" => {
            Ok(None)
        }
        _ if name.starts_with("check.") => Ok(None),
        "custom_call" if text(call.op, "call_target_name").is_some_and(|n| n.starts_with("check.")) => {
            Ok(None)
        }
        "custom_call" if moves_nothing(call.op) => Ok(Some(call.operands.to_vec())),
        "custom_call" => Ok(None),
        _ => Err(not_there(format!("{} of complex numbers is not supported", call.op.name))),
    }
}

fn moves_nothing(op: &Operation) -> bool {
    let name = text(op, "call_target_name").unwrap_or_default();
    matches!(
        name,
        "Sharding"
            | "SPMDFullToShardShape"
            | "SPMDShardToFullShape"
            | "annotate_device_placement"
            | "LayoutConstraint"
    )
}

/// The parameters of a region's body, with the part of each: as the IR's ops take them. Those of a comparator stand in pairs.
pub(super) fn parameters(name: &str, counts: &[usize]) -> Vec<(usize, usize)> {
    let group = if name == "stablehlo.sort" { 2 } else { 1 };
    let mut order = Vec::new();
    for (first, group) in counts.chunks(group).enumerate().map(|(i, c)| (i * group, c)) {
        let parts = group.first().copied().unwrap_or(1);
        order.extend((0..parts).flat_map(|p| (0..group.len()).map(move |k| (first + k, p))));
    }
    order
}

/// A fold that does not mix the parts.
#[derive(Clone, Copy)]
enum Fold {
    Sum,
    Last,
}

/// What a body of two arguments computes: their sum, or the second.
fn fold_of(region: &Region) -> Option<Fold> {
    let [a, b] = region.arguments[..] else { return None };
    match region.operations.as_slice() {
        [add, end] if add.name == "stablehlo.add" && end.operands == add.results => {
            (add.operands == [a, b] || add.operands == [b, a]).then_some(Fold::Sum)
        }
        [end] if end.operands == [b] => Some(Fold::Last),
        _ => None,
    }
}

impl Call<'_> {
    fn name(&self) -> &str {
        let name = self.op.name.as_str();
        let name = name.strip_prefix("stablehlo.").or_else(|| name.strip_prefix("chlo.")).unwrap_or(name);
        name.strip_prefix("broadcast_").filter(|n| *n != "in_dim").unwrap_or(name)
    }

    fn number(&self, i: usize) -> Result<Number> {
        self.operands.get(i).ok_or_else(|| wrong("an operand is missing"))?.number()
    }

    /// The type of each part of the first result.
    fn ty(&self) -> Result<TensorType> {
        let ty = self.results.first().ok_or_else(|| wrong("a result is missing"))?;
        held(ty)?.into_iter().next().ok_or_else(|| wrong("a result without a type"))
    }

    fn constant(&self) -> Result<Vec<Given>> {
        let Some(Attribute::Dense(dense)) = find(&self.op.attributes, "value") else {
            return Err(wrong("the attribute `value` is missing"));
        };
        let parts = attribute::literals(dense, self.module)?;
        let mut parts = parts.into_iter().map(|part| self.g.constant(part));
        Given::of_parts(&mut parts, 2).map(|v| vec![v]).ok_or_else(|| wrong("the elements are not complex"))
    }

    /// The op itself on each part; operands that are not complex are those of both.
    fn each_part(&self, fold: Option<Fold>) -> Result<Vec<Given>> {
        let types = self.results.iter().map(|ty| held(ty)).collect::<Result<Vec<_>>>()?;
        let part = |p: usize| -> Result<Vec<Tensor>> {
            let of = |v: &Given| match v {
                Given::Complex(_, im) if p == 1 => Ok(im.clone()),
                Given::Complex(re, _) => Ok(re.clone()),
                other => other.clone().array(),
            };
            let operands = self.operands.iter().map(of).collect::<Result<Vec<_>>>()?;
            let results: Vec<TensorType> =
                types.iter().filter_map(|parts| parts.get(p).or(parts.first()).cloned()).collect();
            let dtype = results.first().ok_or_else(|| wrong("a result is missing"))?.dtype;
            let bodies = fold.map(|fold| match fold {
                Fold::Sum => Monoid::Add.body(dtype),
                Fold::Last => overwrite_body(dtype),
            });
            (self.emit)(operands, results, bodies.into_iter().collect())
        };
        let (re, im) = (part(0)?, part(1)?);
        let join = |((re, im), parts): ((Tensor, Tensor), &Vec<TensorType>)| match parts.len() {
            2 => Given::Complex(re, im),
            _ => Given::Array(re),
        };
        Ok(re.into_iter().zip(im).zip(&types).map(join).collect())
    }

    /// Ops with one result.
    fn numbers(&self, name: &str) -> Result<Option<Number>> {
        Ok(Some(match (name, self.operands.len()) {
            ("complex", 2) => Number::complex(self.number(0)?.re, self.number(1)?.re),
            ("iota" | "dynamic_iota", 0 | 1) => {
                let sizes = self.operands.iter().map(|v| v.clone().array()).collect::<Result<Vec<_>>>()?;
                let re = (self.emit)(sizes, vec![self.ty()?], Vec::new())?;
                Number::real(re.into_iter().next().ok_or_else(|| wrong("a result is missing"))?).widened()
            }
            ("dot", 2) => self.number(0)?.product(&self.number(1)?, Tensor::dot).convert(self.ty()?.dtype),
            ("broadcast", 1) => {
                let (x, shape) = (self.number(0)?, self.ty()?.shape);
                let dims: Vec<usize> = (shape.rank().saturating_sub(x.rank())..shape.rank()).collect();
                x.map(|t| t.broadcast_in_dim(&shape, &dims))
            }
            ("dot_general" | "convolution" | "dynamic_conv", 2..) => self.bilinear()?,
            ("convert", 1) => self.convert()?,
            ("bitcast_convert", 1) => bits::cast(&self.number(0)?, &self.ty()?, self.is_complex())?,
            ("compare", 2) => Number::real(self.compare()?),
            ("clamp", 3) => {
                let x = larger(&self.number(1)?, &self.number(0)?);
                larger(&x.neg(), &self.number(2)?.neg()).neg()
            }
            (_, 1) => match unary(name, &self.number(0)?) {
                Some(written) => written,
                None => return Ok(None),
            },
            (_, 2) => match binary(name, &self.number(0)?, &self.number(1)?) {
                Some(written) => written,
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    fn is_complex(&self) -> bool {
        self.results.first().is_some_and(|ty| held(ty).is_ok_and(|parts| parts.len() == 2))
    }

    fn convert(&self) -> Result<Number> {
        let (x, to) = (self.number(0)?, self.ty()?.dtype);
        let re = x.re.convert(to);
        Ok(if self.is_complex() { Number::complex(re, x.imag().convert(to)) } else { Number::real(re) })
    }

    /// Products of the parts by the op itself.
    fn bilinear(&self) -> Result<Number> {
        let (x, y, ty) = (self.number(0)?, self.number(1)?, self.ty()?);
        let of = |a: &Tensor, b: &Tensor| {
            // Those of `dynamic_conv` say more.
            let more = self.operands[2..].iter().map(|v| v.clone().array()).collect::<Result<Vec<_>>>()?;
            let all = [a.clone(), b.clone()].into_iter().chain(more).collect();
            let made = (self.emit)(all, vec![ty.clone()], Vec::new())?;
            made.into_iter().next().ok_or_else(|| wrong("a result is missing"))
        };
        Ok(match (&x.im, &y.im) {
            (None, None) => Number::real(of(&x.re, &y.re)?),
            (Some(b), None) => Number::complex(of(&x.re, &y.re)?, of(b, &y.re)?),
            (None, Some(d)) => Number::complex(of(&x.re, &y.re)?, of(&x.re, d)?),
            (Some(b), Some(d)) => {
                Number::complex(of(&x.re, &y.re)? - of(b, d)?, of(&x.re, d)? + of(b, &y.re)?)
            }
        })
    }

    /// Equality of both parts; order by the real part, then by the imaginary one.
    fn compare(&self) -> Result<Tensor> {
        let (x, y) = (self.number(0)?, self.number(1)?);
        let Some(Attribute::Keyword(_, direction)) = find(&self.op.attributes, "comparison_direction") else {
            return Err(wrong("the attribute `comparison_direction` is missing"));
        };
        let order = |less: fn(&Tensor, &Tensor) -> Tensor, last: fn(&Tensor, &Tensor) -> Tensor| {
            let tie = x.re.equal(&y.re);
            less(&x.re, &y.re).or(&tie.and(&last(&x.imag(), &y.imag())))
        };
        Ok(match direction.as_str() {
            "EQ" => x.equal(&y),
            "NE" => x.equal(&y).not(),
            "LT" => order(Tensor::less, Tensor::less),
            "LE" => order(Tensor::less, Tensor::less_equal),
            "GT" => order(Tensor::greater, Tensor::greater),
            "GE" => order(Tensor::greater, Tensor::greater_equal),
            other => return Err(wrong(format!("there is no relation `{other}`"))),
        })
    }
}

/// The later of two in the order of [`Call::compare`].
fn larger(x: &Number, y: &Number) -> Number {
    let tie = x.re.equal(&y.re);
    let first = x.re.greater(&y.re).or(&tie.and(&x.imag().greater_equal(&y.imag())));
    Number::select(&first, x, y)
}

fn unary(name: &str, z: &Number) -> Option<Number> {
    Some(match name {
        "real" => Number::real(z.re.clone()),
        "imag" => Number::real(z.imag()),
        "conj" => z.conj(),
        "abs" => Number::real(z.abs()),
        "is_finite" => Number::real(z.re.is_finite().and(&z.imag().is_finite())),
        "negate" => z.neg(),
        "square" => z.mul(z),
        "sign" => functions::sign(z),
        "exponential" => functions::exp(z),
        "exponential_minus_one" => functions::expm1(z),
        "log" => functions::log(z),
        "log_plus_one" => functions::log1p(z),
        "sqrt" => functions::sqrt(z),
        "rsqrt" => functions::rsqrt(z),
        "cbrt" => functions::cbrt(z),
        "sine" => functions::sine(z),
        "cosine" => functions::cosine(z),
        "tan" => functions::tan(z),
        "tanh" => functions::tanh(z),
        "sinh" => functions::sinh(z),
        "cosh" => functions::cosh(z),
        "logistic" => functions::logistic(z),
        "asin" => inverse::asin(z),
        "acos" => inverse::acos(z),
        "atan" => inverse::atan(z),
        "asinh" => inverse::asinh(z),
        "acosh" => inverse::acosh(z),
        "atanh" => inverse::atanh(z),
        _ => return None,
    })
}

fn binary(name: &str, x: &Number, y: &Number) -> Option<Number> {
    Some(match name {
        "add" => x.add(y),
        "subtract" => x.sub(y),
        "multiply" => x.mul(y),
        "divide" => x.div(y),
        "power" => functions::power(x, y),
        "atan2" => functions::atan2(x, y),
        "maximum" => larger(x, y),
        "minimum" => larger(&x.neg(), &y.neg()).neg(),
        _ => return None,
    })
}
