//! Ops of StableHLO that the IR writes by others.

use super::attribute::{sizes, text};
use super::types::{not_there, wrong};
use crate::syntax::Operation;
use systole_base::{DType, Result, TensorType};
use systole_ir::op::{BroadcastInDim, DotGeneral};
use systole_ir::{GraphBuilder, Tensor};

/// The results of an op that is written by others; `None`: it is not one.
pub(super) fn write(
    op: &Operation,
    operands: &[Tensor],
    results: &[TensorType],
    g: &GraphBuilder,
) -> Result<Option<Vec<Tensor>>> {
    let one = |i: usize| operands.get(i).ok_or_else(|| wrong("an operand is missing"));
    let result = || results.first().ok_or_else(|| wrong("a result is missing"));
    let written = match op.name.as_str() {
        "stablehlo.broadcast" => {
            let (x, shape) = (one(0)?, result()?.shape.clone());
            let new = sizes(op, "broadcast_sizes")?.len();
            let dims = (new..new + x.ty().rank()).collect();
            g.emit(BroadcastInDim { dims, shape }, &[x])
        }
        "stablehlo.dot" => {
            let (a, b) = (one(0)?, one(1)?);
            if a.ty().rank() == 0 || b.ty().rank() == 0 {
                return Err(wrong("dot takes vectors and matrices"));
            }
            let contract = |x: &Tensor, last: bool| if last { x.ty().rank() - 1 } else { 0 };
            g.emit(
                DotGeneral {
                    lhs_batch: Default::default(),
                    rhs_batch: Default::default(),
                    lhs_contract: [contract(a, true)].into_iter().collect(),
                    rhs_contract: [contract(b, false)].into_iter().collect(),
                    element_type: result()?.dtype,
                },
                &[a, b],
            )
        }
        "stablehlo.get_dimension_size" => {
            let d = match crate::text::find(&op.attributes, "dimension") {
                Some(crate::syntax::Attribute::Int(d)) => usize::try_from(*d).ok(),
                _ => None,
            };
            let size = d.and_then(|d| one(0).ok()?.shape().get(d).copied());
            let size = size.ok_or_else(|| wrong("there is no such dimension"))?;
            vec![g.scalar(DType::I32, size as f64)]
        }
        "stablehlo.custom_call" => return custom_call(op, operands).map(Some),
        _ => return Ok(None),
    };
    Ok(Some(written))
}

/// Calls of what other systems define: those that change no value, else an error with the name.
fn custom_call(op: &Operation, operands: &[Tensor]) -> Result<Vec<Tensor>> {
    let name = text(op, "call_target_name").unwrap_or_default();
    match name {
        "Sharding" | "SPMDFullToShardShape" | "SPMDShardToFullShape" | "annotate_device_placement" => {
            Ok(operands.to_vec())
        }
        _ => Err(not_there(format!("the custom call `{name}` is not supported"))
            .because("what it computes is defined by the system that wrote the program")),
    }
}
