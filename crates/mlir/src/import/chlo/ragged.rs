//! Imports CHLO's ragged_dot (grouped matrix multiplication) in its three modes.

use super::arrays::counted;
use crate::import::call::{ArrayCall, OpImport, op};
use crate::import::types::{not_there, wrong};
use crate::syntax::{Attribute, NamedAttributes, find};
use systole_base::{DType, Dims, Result, ensure};
use systole_ir::Tensor;
use systole_ir::op::DotGeneral;

/// Maximum number of groups: each becomes a separate product.
const MOST_GROUPS: usize = 1 << 10;

pub(crate) const OPERATIONS: &[OpImport] = &[op("chlo.ragged_dot").arrays(|c| products(c).map(Some))];

/// Multiplies `lhs, rhs, group_sizes: int[groups]`. The ragged dimension of lhs is a row dimension (each group has its
/// own matrix), a contracted one (each group has its own result), or a batch dimension (nothing is ragged).
fn products(c: &ArrayCall) -> Result<Vec<Tensor>> {
    let (op, [lhs, rhs, sizes]) = (c.op, c.all::<3>()?);
    let Some(Attribute::Struct(_, fields)) = find(&op.attributes, "ragged_dot_dimension_numbers") else {
        return Err(wrong("missing attribute `ragged_dot_dimension_numbers`"));
    };
    let dot = DotGeneral {
        lhs_batch: list(fields, "lhs_batching_dimensions")?,
        rhs_batch: list(fields, "rhs_batching_dimensions")?,
        lhs_contract: list(fields, "lhs_contracting_dimensions")?,
        rhs_contract: list(fields, "rhs_contracting_dimensions")?,
        element_type: lhs.dtype(),
    };
    let ragged = list(fields, "lhs_ragged_dimensions")?;
    let [ragged] = ragged[..] else { return Err(wrong("exactly one ragged dimension is required")) };
    let groups = list(fields, "rhs_group_dimensions")?;
    ensure!(ragged < lhs.rank(), wrong("the ragged dimension is out of range for the rank"));
    if sizes.rank() != 1 || !sizes.dtype().is_int() {
        return Err(not_there("group sizes that differ along the batch are not supported"));
    }
    if sizes.shape()[0] > MOST_GROUPS {
        return Err(not_there(format!(
            "{} groups are too many: at most {MOST_GROUPS} are supported",
            sizes.shape()[0]
        )));
    }
    if dot.lhs_batch.contains(&ragged) {
        return Ok(lhs.builder().emit(dot, &[lhs, rhs]));
    }
    let parts = in_groups(lhs, ragged, sizes);
    if dot.lhs_contract.contains(&ragged) {
        let each = parts.iter().map(|part| {
            let product = lhs.builder().emit(dot.clone(), &[part, rhs]).remove(0);
            let shape: Dims = std::iter::once(1).chain(product.shape().iter().copied()).collect();
            product.reshape(&shape[..])
        });
        let each: Vec<Tensor> = each.collect();
        return Ok(vec![Tensor::concatenate(&each.iter().collect::<Vec<_>>(), 0)]);
    }
    let [group] = groups[..] else { return Err(wrong("exactly one group dimension is required")) };
    if group >= rhs.rank() || rhs.shape()[group] != parts.len() {
        return Err(wrong("rhs has a different number of groups"));
    }
    let below = |dims: &Dims| dims.iter().map(|&d| if d > group { d - 1 } else { d }).collect();
    let dot = DotGeneral { rhs_batch: below(&dot.rhs_batch), rhs_contract: below(&dot.rhs_contract), ..dot };
    let shape: Dims = rhs.shape().iter().enumerate().filter(|(d, _)| *d != group).map(|(_, n)| *n).collect();
    let products = parts.iter().enumerate().map(|(i, part)| {
        let own = rhs.slice_dim(group, i, i + 1).reshape(&shape[..]);
        lhs.builder().emit(dot.clone(), &[part, &own]).remove(0)
    });
    let sum = products.reduce(|a, b| a + b);
    Ok(vec![sum.ok_or_else(|| not_there("ragged_dot has no groups"))?])
}

/// Returns `lhs` once per group, with zeros outside the group's rows.
fn in_groups(lhs: &Tensor, ragged: usize, sizes: &Tensor) -> Vec<Tensor> {
    let sizes = sizes.convert(DType::I64);
    let row = counted(lhs, lhs.shape()[ragged]).broadcast_in_dim(lhs.shape(), &[ragged]);
    let mut start = row.scalar_like(0.0);
    let mut parts = Vec::new();
    for i in 0..sizes.shape()[0] {
        let end = &start + sizes.slice_dim(0, i, i + 1).reshape([0usize; 0]);
        let inside = row.greater_equal(&start).and(&row.less(&end));
        parts.push(inside.select(lhs, &lhs.zeros_like()));
        start = end;
    }
    parts
}

fn list(fields: &NamedAttributes, name: &str) -> Result<Dims> {
    match find(fields, name) {
        None => Ok(Dims::new()),
        Some(Attribute::List(items)) => {
            let one = |item: &Attribute| match item {
                Attribute::Int(i) => usize::try_from(*i).ok(),
                _ => None,
            };
            let all: Option<Dims> = items.iter().map(one).collect();
            all.ok_or_else(|| wrong(format!("`{name}` must be a list of dimensions")))
        }
        _ => Err(wrong(format!("`{name}` must be a list of dimensions"))),
    }
}
