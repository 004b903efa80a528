//! Imports CHLO ops that broadcast, make constants, compare, or select: broadcast_*, constant, constant_like, top_k and
//! others.

use super::{element_wise, math};
use crate::import::attribute::{elements, flag, keyword, size, sizes};
use crate::import::call::{ArrayCall, ImportRule, OpImport, OpResults, op};
use crate::import::const_eval;
use crate::import::types::wrong;
use crate::syntax::{Attribute, Operation, find};
use systole_base::{DType, Literal, Result, Shape, TensorType, ensure};
use systole_ir::Tensor;
use systole_ir::op::{CompareType, Direction};

pub(crate) const OPERATIONS: &[OpImport] = &[
    op("chlo.constant_like").arrays(constant_like),
    op("chlo.dynamic_reshape").arrays(|c| {
        let [x, shape] = c.all::<2>()?;
        Ok(Some(vec![x.reshape(const_eval::shape(shape, "the shape")?)]))
    }),
    op("chlo.minimum_broadcast_shapes").refused("the resulting shapes would be known only at run time"),
    TOP_K,
    // Older name.
    OpImport { name: "chlo.topk", ..TOP_K },
];

const TOP_K: OpImport = op("chlo.top_k").arrays(|c| {
    let [x] = c.all::<1>()?;
    let k = size(c.op, "k")?.ok_or_else(|| wrong("missing attribute `k`"))?;
    top_k(x, k, flag(c.op, "largest", true)?).map(Some)
});

/// Imports `chlo.broadcast_NAME`: broadcasts both operands to a common shape. `broadcast_dimensions` maps the
/// dimensions of the operand with the lower rank to those of the other.
pub(crate) const BROADCAST: OpImport = op("chlo.broadcast_").arrays(broadcast);

fn broadcast(c: &ArrayCall) -> OpResults {
    let (op, operands) = (c.op, c.operands);
    let name = op.name.trim_start_matches("chlo.broadcast_");
    let all = in_one_shape(op, operands)?;
    let function = element_wise::OPERATIONS.iter().find(|row| row.name.strip_prefix("chlo.") == Some(name));
    let written = match (name, all.as_slice(), function.map(|row| row.import)) {
        ("select", [pred, a, b], _) => pred.select(a, b),
        ("compare", [a, b], _) => compared(op, a, b)?,
        (_, [_, _], Some(ImportRule::Elements(function))) => function.apply(&op.name, &all)?,
        (_, [a, b], _) => match math::binary(name) {
            Some(binary) => return Ok(Some(a.builder().emit(binary, &[a, b]))),
            None => return Ok(None),
        },
        _ => return Err(wrong(format!("got {} operands", operands.len()))),
    };
    Ok(Some(vec![written]))
}

fn compared(op: &Operation, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let word = keyword(op, "comparison_direction").unwrap_or_default();
    let found = Direction::ALL.iter().find(|d| d.1 == word).map(|d| d.0);
    let direction = found.ok_or_else(|| wrong(format!("unknown comparison direction `{word}`")))?;
    let compare_type = match keyword(op, "compare_type") {
        Some("TOTALORDER") => CompareType::TotalOrder,
        _ => CompareType::of(a.dtype()),
    };
    let op = systole_ir::op::Compare { direction, compare_type };
    Ok(a.builder().emit(op, &[a, b]).remove(0))
}

fn in_one_shape(op: &Operation, operands: &[Tensor]) -> Result<Vec<Tensor>> {
    let said = match find(&op.attributes, "broadcast_dimensions") {
        Some(_) => Some(sizes(op, "broadcast_dimensions")?),
        None => None,
    };
    let rank = operands.iter().map(Tensor::rank).max().unwrap_or(0);
    let mut aligned = Vec::new();
    for x in operands {
        let places: Vec<usize> = match &said {
            Some(dims) if x.rank() < rank && dims.len() == x.rank() => dims.clone(),
            _ => (rank - x.rank()..rank).collect(),
        };
        aligned.push((x, places));
    }
    let mut shape = vec![1; rank];
    for (x, places) in &aligned {
        for (d, &place) in places.iter().enumerate() {
            let slot = shape
                .get_mut(place)
                .ok_or_else(|| wrong("`broadcast_dimensions` is out of range for the rank"))?;
            match (*slot, x.shape()[d]) {
                (_, 1) => {}
                (1, n) => *slot = n,
                (m, n) if m == n => {}
                (m, n) => return Err(wrong(format!("cannot broadcast sizes {m} and {n}"))),
            }
        }
    }
    if shape.iter().try_fold(8usize, |n, d| n.checked_mul((*d).max(1))).is_none_or(|n| n >= 1 << 46) {
        return Err(wrong(format!("the broadcast shape {shape:?} is too large")));
    }
    let shape = Shape::new(&shape);
    let one = |(x, places): (&Tensor, Vec<usize>)| match x.shape() == &shape {
        true => x.clone(),
        false => x.broadcast_in_dim(&shape, &places),
    };
    Ok(aligned.into_iter().map(one).collect())
}

fn constant_like(c: &ArrayCall) -> OpResults {
    let (op, x) = (c.op, c.operand(0)?);
    let value = match find(&op.attributes, "value") {
        Some(Attribute::Float(digits, _)) => digits.clone(),
        Some(Attribute::Int(i)) => i.to_string(),
        Some(Attribute::Bool(b)) => b.to_string(),
        _ => {
            let one = elements(op, "value")?
                .into_iter()
                .next()
                .ok_or_else(|| wrong("missing attribute `value`"))?;
            return Ok(Some(vec![c.g.constant(Literal::splat(x.ty().clone(), one.get(0)))]));
        }
    };
    let bits = systole_ir::text::parse_element(&value, x.dtype()).map_err(wrong)?;
    let value = Literal::splat(x.ty().clone(), systole_base::Scalar::from_bits(x.dtype(), bits));
    Ok(Some(vec![c.g.constant(value)]))
}

/// Returns the `k` largest (or smallest) elements of the last dimension and their indices; floats in total order.
pub(crate) fn top_k(x: &Tensor, k: usize, largest: bool) -> Result<Vec<Tensor>> {
    let last =
        x.shape().dims().last().copied().ok_or_else(|| wrong("top_k requires an array, got a scalar"))?;
    ensure!(k <= last, wrong(format!("k = {k} is more than the {last} elements")));
    if largest {
        let (values, places) = x.top_k(k);
        return Ok(vec![values, places]);
    }
    let dim = x.rank() - 1;
    let places = x.argsort(dim, false).slice_dim(dim, 0, k);
    Ok(vec![x.sort(dim, false).slice_dim(dim, 0, k), places])
}

/// Returns `T[n]`: the numbers 0 ≤ i < n.
pub(super) fn counted(like: &Tensor, n: usize) -> Tensor {
    like.builder().iota(TensorType::new(DType::I64, [n]), 0)
}
