//! CHLO: ops of clients that are written by StableHLO's own, as CHLO's document and its decomposition define them.

mod arrays;
mod element_wise;
mod gamma;
mod math;
mod ragged;
pub(super) mod scan;
mod zeta;

use crate::syntax::Operation;
use systole_base::Result;
use systole_ir::Tensor;

pub(super) use arrays::top_k;

/// The results of an op of CHLO; `None`: it is none, or the IR has it.
pub(super) fn write(op: &Operation, operands: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    let Some(name) = op.name.strip_prefix("chlo.").or_else(|| called(op)) else { return Ok(None) };
    if let Some(name) = name.strip_prefix("broadcast_") {
        return arrays::broadcast(name, op, operands);
    }
    if let Some(written) = element_wise::write(name, operands) {
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
